//! The gateway as Redis's clients meet it: beside Redis itself, with its tools and a client library, and several at once.

mod beside;
mod clients;
mod random;

use std::path::Path;

use crate::support::Server;

/// Three nodes, a pool and a gateway.
fn up(data: &Path) -> Server {
    let data = format!("--data={}", data.display());
    Server::start(&["up", &data, "--listen=127.0.0.1:0", "--size=64MiB", "--no-files"])
}
