//! What `yagura up` keeps beside its members: `up.toml` in the data directory.
//!
//! ```toml
//! version = 1
//! size = 8589934592
//! nodes = ["127.0.0.1:40001", "127.0.0.1:40002", "127.0.0.1:40003"]
//! ```
//!
//! The addresses are kept so that a restart finds the nodes where the pool's map says they are. It is written whole and renamed
//! into place: a crash leaves the old one or the new one.

use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::exit::Failure;

const VERSION: u32 = 1;
const FILE: &str = "up.toml";

/// See the module.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct State {
    version: u32,
    /// Bytes of each member.
    pub size: u64,
    /// Where each node listens.
    pub nodes: Vec<SocketAddr>,
}

impl State {
    /// The state in `directory`, or a new one of `nodes` members of `size` bytes; the directory is made if it is not there.
    pub fn load(directory: &Path, nodes: u8, size: u64) -> Result<State, Failure> {
        let named =
            |error: &dyn std::fmt::Display| Failure::refused(format!("{}: {error}", directory.join(FILE).display()));
        std::fs::create_dir_all(directory)
            .map_err(|error| Failure::from(error).during(format!("data directory {}", directory.display())))?;
        let text = match std::fs::read_to_string(directory.join(FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
                return Ok(State { version: VERSION, size, nodes: vec![anywhere; usize::from(nodes)] });
            }
            Err(error) => return Err(named(&error)),
        };
        let state: State = toml::from_str(&text).map_err(|error| named(&error))?;
        if state.version != VERSION {
            return Err(named(&format!("version {}; this program knows version {VERSION}", state.version)));
        }
        if state.nodes.is_empty() {
            return Err(named(&"it names no nodes"));
        }
        Ok(state)
    }

    /// Gives up addresses that somebody else listens at by now; those nodes get free ones.
    pub fn leave_busy_ports(&mut self) {
        for address in &mut self.nodes {
            // Bound and dropped: the node binds it in a moment. Who is faster than that makes the node fail, and be restarted.
            if address.port() != 0 && TcpListener::bind(*address).is_err() {
                tracing::warn!(%address, "somebody else listens there: the node gets another port");
                address.set_port(0);
            }
        }
    }

    /// Keeps the state.
    pub fn save(&self, directory: &Path) -> Result<(), Failure> {
        let (path, fresh) = (directory.join(FILE), directory.join(format!("{FILE}.new")));
        let text = toml::to_string(self).map_err(|error| Failure::refused(format!("{}: {error}", path.display())))?;
        let write = || {
            let mut file = File::create(&fresh)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&fresh, &path)?;
            File::open(directory)?.sync_all()
        };
        write().map_err(|error| Failure::from(error).during(path.display()))
    }

    /// The file of node `index`'s member.
    pub fn member(directory: &Path, index: usize) -> PathBuf {
        directory.join(format!("node-{}", index + 1)).join("member.img")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut state = State::load(directory.path(), 3, 4096).expect("new");
        assert_eq!((state.nodes.len(), state.nodes[0].port(), state.size), (3, 0, 4096));
        state.nodes[1].set_port(4420);
        state.save(directory.path()).expect("saved");
        // What is there wins over what is asked.
        assert_eq!(State::load(directory.path(), 5, 1).expect("loaded"), state);
        std::fs::write(directory.path().join(FILE), "version = 1\nsize = 1\nnods = []\n").expect("written");
        assert!(State::load(directory.path(), 3, 1).is_err());
    }

    #[test]
    fn a_busy_port_is_left() {
        let busy = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut state = State { version: 1, size: 1, nodes: vec![busy.local_addr().expect("bound")] };
        state.leave_busy_ports();
        assert_eq!(state.nodes[0].port(), 0);
    }
}
