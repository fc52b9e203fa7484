//! What `yagura up` keeps beside its members: `up.toml` in the data directory.
//!
//! ```toml
//! version = 3
//! size = 8589934592
//! nodes = ["127.0.0.1:40001", "127.0.0.1:40002", "127.0.0.1:40003"]
//!
//! [volumes]
//! id = "0e8a1c9e-6a52-4a41-9d8d-3d3f0d1a0b57"
//! size = 8589934592
//! control = "127.0.0.1:40004"
//!
//! [files]
//! size = 8589934592
//! homes = ["127.0.0.1:40001", "127.0.0.1:40002", "127.0.0.1:40003"]
//! ```
//!
//! The addresses are kept so that a restart finds the nodes where the pool's map says they are. Version 1 had no volumes,
//! version 2 no files.
//! The file is written whole and renamed into place: a crash leaves the old one or the new one.

use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::exit::Failure;
use crate::size::Size;

const VERSION: u32 = 3;
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
    /// What volumes are made of; none: nothing yet.
    pub volumes: Option<VolumesState>,
    /// What files are made of; none: nothing yet.
    pub files: Option<FilesState>,
}

/// The drives beside the members, and the control plane over them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct VolumesState {
    /// Tells these drives from those of other directories: of two that are served on this machine one may come to listen where the
    /// other one did, and is not to be taken for it.
    pub id: Uuid,
    /// Bytes of each drive.
    pub size: u64,
    /// Where the control plane listens.
    pub control: SocketAddr,
}

/// The namespaces beside the members for the bytes of files, and the file system over them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct FilesState {
    /// Bytes of each namespace.
    pub size: u64,
    /// Where files look for each node; empty: the file system was never there. Else neither it nor a namespace is made anew.
    pub homes: Vec<SocketAddr>,
}

/// Wherever a port is free on this machine.
pub const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Refuses another size than what was made once has.
pub fn check_made(flag: &str, what: &str, data: &Path, there: u64, asked: Option<Size>) -> Result<(), Failure> {
    match asked.filter(|asked| asked.0 != there) {
        Some(asked) => Err(Failure::usage(format!(
            "{flag} {asked}: the {what} in {} have {}; leave it out, or use another directory",
            data.display(),
            Size(there)
        ))),
        None => Ok(()),
    }
}

/// The subsystem of a node's member.
pub fn subsystem(node: usize) -> String {
    format!("nqn.2026-11.io.yagura:up-node-{}", node + 1)
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
                let nodes = vec![ANYWHERE; usize::from(nodes)];
                return Ok(State { version: VERSION, size, nodes, volumes: None, files: None });
            }
            Err(error) => return Err(named(&error)),
        };
        let mut state: State = toml::from_str(&text).map_err(|error| named(&error))?;
        if !(1..=VERSION).contains(&state.version) {
            return Err(named(&format!("version {}; this program knows versions up to {VERSION}", state.version)));
        }
        state.version = VERSION;
        if state.nodes.is_empty() {
            return Err(named(&"it names no nodes"));
        }
        Ok(state)
    }

    /// Gives up addresses that somebody else listens at by now; whose they were gets free ones. A node goes back to where files
    /// look for it as soon as it can.
    pub fn leave_busy_ports(&mut self) {
        let homes = self.files.iter().flat_map(|files| &files.homes);
        for (address, home) in self.nodes.iter_mut().zip(homes) {
            if address != home && TcpListener::bind(*home).is_ok() {
                *address = *home;
            }
        }
        for address in self.nodes.iter_mut().chain(self.volumes.as_mut().map(|volumes| &mut volumes.control)) {
            // Bound and dropped: the node binds it in a moment. Who is faster than that makes the node fail, and be restarted.
            if address.port() != 0 && TcpListener::bind(*address).is_err() {
                tracing::warn!(%address, "somebody else listens there: another port is taken");
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

    /// The file of node `index`'s drive.
    pub fn drive(directory: &Path, index: usize) -> PathBuf {
        State::member(directory, index).with_file_name("drive.img")
    }

    /// The file of node `index`'s namespace for the bytes of files.
    pub fn files(directory: &Path, index: usize) -> PathBuf {
        State::member(directory, index).with_file_name("files.img")
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
        state.volumes = Some(VolumesState { id: Uuid::new_v4(), size: 8192, control: ANYWHERE });
        state.files = Some(FilesState { size: 8192, homes: vec![ANYWHERE; 3] });
        state.save(directory.path()).expect("saved");
        // What is there wins over what is asked.
        assert_eq!(State::load(directory.path(), 5, 1).expect("loaded"), state);
        std::fs::write(directory.path().join(FILE), "version = 1\nsize = 1\nnods = []\n").expect("written");
        assert!(State::load(directory.path(), 3, 1).is_err());
        let first = "version = 1\nsize = 4096\nnodes = [\"127.0.0.1:4420\"]\n";
        std::fs::write(directory.path().join(FILE), first).expect("written");
        let state = State::load(directory.path(), 3, 1).expect("of version 1");
        assert_eq!((state.version, state.size, state.volumes, state.files), (VERSION, 4096, None, None));
        std::fs::write(directory.path().join(FILE), first.replace("= 1", "= 4")).expect("written");
        assert!(State::load(directory.path(), 3, 1).is_err());
    }

    #[test]
    fn a_busy_port_is_left() {
        let busy = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (taken, id) = (busy.local_addr().expect("bound"), Uuid::new_v4());
        let volumes = Some(VolumesState { id, size: 1, control: taken });
        let files = Some(FilesState { size: 1, homes: vec![taken] });
        let mut state = State { version: VERSION, size: 1, nodes: vec![taken], volumes, files };
        state.leave_busy_ports();
        assert_eq!((state.nodes[0].port(), state.volumes.as_ref().map(|volumes| volumes.control.port())), (0, Some(0)));
        drop(busy);
        state.leave_busy_ports();
        assert_eq!(state.nodes[0], taken, "files look for it there");
    }
}
