//! Where a cache server listens.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use engine::net::TcpListener;

use crate::cli::{CacheServeArgs, Listen};
use crate::exit::Failure;
use crate::listening::once_it_is_free;

/// The addresses of each place that was named.
pub fn addresses(args: &CacheServeArgs) -> Result<Vec<Vec<SocketAddr>>, Failure> {
    let of = |listen: &Listen| {
        let addresses = listen.addresses(args.port);
        addresses.map_err(|error| Failure::usage(format!("-l {}: {error}; write an address in its place", listen.host)))
    };
    args.listen.iter().map(of).collect()
}

/// Listens at the addresses of one place. Of a name's one may not be of this machine, such as `::1` where there is no IPv6.
pub async fn bind(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, Failure> {
    let (mut listeners, mut failed) = (Vec::new(), None);
    for &address in addresses {
        match once_it_is_free(|| TcpListener::bind(address)).await {
            Ok(listener) => listeners.push(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(cannot_listen(&error)),
            Err(error) => failed = Some(cannot_listen(&error)),
        }
    }
    match failed {
        Some(failure) if listeners.is_empty() => Err(failure),
        _ => Ok(listeners),
    }
}

/// The variable that names a file for the ports, as memcached's does: whoever starts it on any free port finds that there.
const PORTS_VARIABLE: &str = "MEMCACHED_PORT_FILENAME";

/// Writes the ports to the file that the environment names, if it does. It is there at once, whole.
pub fn tell_ports(listeners: &[TcpListener]) -> Result<(), Failure> {
    let Some(path) = std::env::var_os(PORTS_VARIABLE) else { return Ok(()) };
    let line = |listener: &TcpListener| {
        let address = listener.local_addr();
        format!("TCP {}: {}\n", if address.is_ipv4() { "INET" } else { "INET6" }, address.port())
    };
    let text: String = listeners.iter().map(line).collect();
    let mut unfinished = path.clone();
    unfinished.push(".lck");
    std::fs::write(&unfinished, text).and_then(|()| std::fs::rename(&unfinished, &path)).map_err(|error| {
        let path = path.display();
        Failure::refused(format!(
            "{PORTS_VARIABLE} names {path}, which cannot be written: {error}; unset it, or mend that"
        ))
    })
}

fn cannot_listen(error: &io::Error) -> Failure {
    let mend = match error.kind() {
        ErrorKind::AddrInUse => "does another cache server run there? -p 0 takes a free port",
        ErrorKind::AddrNotAvailable => "-l takes addresses of this machine, and 0.0.0.0 or :: for all of them",
        ErrorKind::PermissionDenied => "ports below 1024 are root's, as a rule: say another by -p",
        _ => return Failure::refused(format!("cannot listen: {error}")),
    };
    Failure::refused(format!("cannot listen: {error} ({mend})"))
}
