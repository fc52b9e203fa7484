//! The files of `yagura up`: a namespace beside each node's member, and a file system over these, whose names are in the pool.
//!
//! Invariants:
//! - The namespace is in the subsystem of the member, and its identifier is behind a gap: whoever looks for the pool by the nodes'
//!   addresses alone tries identifiers from 1 on up to the first that is not there, and finds the member. What is to find the files
//!   says which namespace it means.
//! - All else is served where no files can be.
//! - What was there once is never made anew by itself: a blank namespace would hide that columns are lost, and a new file system
//!   take the name of one whose files somebody still wants.

use std::ffi::OsStr;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use ::file::meta::{Meta, StoreMeta};
use ::file::record::root::{MemberRecord, MemberState, RootRecord};
use ::file::{Error, Roster};
use kv::store::Store;
use serde::Serialize;

use super::state::{FilesState, State, check_made, subsystem};
use crate::client::Way;
use crate::exit::Failure;
use crate::file::{failure, make, options};
use crate::member::{MemberSpec, find_all};
use crate::size::Size;

/// What the file system is called.
pub const NAME: &str = "files";
/// The identifier of a node's namespace for files. Chosen: far behind that of the member.
const NSID: u32 = 16;
/// Bytes of a namespace, unless the members have more. Chosen: as for drives.
const SIZE_DEFAULT: u64 = 1 << 30;
/// The least, and what it is a multiple of. Chosen: some dozens of the smallest regions; one of them.
const SIZE_MIN: u64 = 64 << 20;
const SIZE_UNIT: u64 = 1 << 20;

/// Columns of data and of parity where there are so many nodes.
fn code(nodes: usize) -> Option<(u8, u8)> {
    match nodes {
        0 | 1 => None,
        2 => Some((1, 1)),
        _ => Some((2, 1)),
    }
}

/// Makes the namespaces of a directory that has none.
pub fn prepare(data: &Path, state: &mut State, asked: Option<Size>) -> Result<(), Failure> {
    if let Some(FilesState { size, .. }) = state.files {
        check_made("--files", "namespaces for files", data, size, asked)?;
    } else {
        let size = asked.map_or(state.size.max(SIZE_DEFAULT), |asked| asked.0).next_multiple_of(SIZE_UNIT);
        if asked.is_some_and(|asked| asked.0 < SIZE_MIN || asked.0 != size) {
            let (least, unit) = (Size(SIZE_MIN), Size(SIZE_UNIT));
            return Err(Failure::usage(format!("--files SIZE is {least} at least, and a multiple of {unit}")));
        }
        if code(state.nodes.len()).is_none() {
            let few = Failure::usage("--files: files take two nodes at least");
            return if asked.is_some() { Err(few) } else { Ok(()) };
        }
        let strange = (0..state.nodes.len()).map(|node| State::files(data, node)).find(|path| path.exists());
        if let Some(path) = strange {
            let path = path.display();
            let strange = Failure::refused(format!("{path} is there, and nothing says whose it is: move it away"));
            return told(strange, asked);
        }
        state.files = Some(FilesState { size, homes: Vec::new() });
        // Before they are there: whose they are is known then, however this ends.
        state.save(data)?;
    }
    let Some(FilesState { size, .. }) = state.files.as_ref().filter(|files| files.homes.is_empty()) else {
        return Ok(());
    };
    let all: Vec<PathBuf> = (0..state.nodes.len()).map(|node| State::files(data, node)).collect();
    let fresh: Vec<&PathBuf> = all.iter().filter(|path| !path.exists()).collect();
    let made = fresh.iter().map(|path| blank(path, *size).map_err(|error| Failure::from(error).during(path.display())));
    made.collect::<Result<(), Failure>>().or_else(|failure| {
        // As before: another start tries again, perhaps with less.
        for path in fresh.iter().filter(|path| path.exists()) {
            std::fs::remove_file(path)?;
        }
        state.files = None;
        state.save(data)?;
        told(failure, asked)
    })
}

/// Without files all else is served, unless they were asked for.
fn told(failure: Failure, asked: Option<Size>) -> Result<(), Failure> {
    if asked.is_some() {
        return Err(failure.during("--files"));
    }
    tracing::error!("no files can be kept here: {}", failure.sentence());
    Ok(())
}

/// Makes a namespace's file, unless an earlier start has. What a crash leaves half made has another name.
fn blank(path: &Path, size: u64) -> std::io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let fresh = path.with_extension("fresh");
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    File::create(&fresh)?.set_len(size)?;
    std::fs::rename(&fresh, path)
}

/// What a node's target is told of its namespace for files; nothing where that is gone.
pub fn arguments(data: &Path, node: usize) -> Vec<String> {
    let path = State::files(data, node);
    if !path.exists() {
        let path = path.display();
        tracing::error!(
            "{path}: it is gone, with a column of all files; a sparse one of the same size there, served at the next start, is put \
             in its place by `yagura file member replace … --lost`"
        );
        return Vec::new();
    }
    vec![format!("--namespace=file={},subsystem={},nsid={NSID}", path.display(), subsystem(node))]
}

/// The file system.
pub struct Files {
    program: PathBuf,
    /// The nodes, as who wants to reach the pool says them.
    pool: String,
    root: RootRecord,
}

/// The file system of an earlier start, or a new one.
pub async fn find_or_make(store: &Store, state: &mut State) -> Result<Files, Failure> {
    let State { nodes, files, .. } = state;
    let Some(kept) = files else { return Err(Failure::refused("there are no namespaces for them")) };
    let meta: Rc<dyn Meta> = Rc::new(StoreMeta::new(Rc::new(store.clone())));
    let root = match Roster::open(Rc::clone(&meta), NAME).await {
        Ok(roster) => roster.root(),
        Err(Error::NotFound(_)) if !kept.homes.is_empty() => {
            let gone = format!("file system {NAME} was here once, and is gone; `yagura file create` makes another");
            return Err(Failure::refused(gone));
        }
        Err(Error::NotFound(_)) => new(meta, nodes).await?,
        Err(error) => return Err(failure(error)),
    };
    kept.homes = homes(&root, nodes)?;
    let program = std::env::current_exe().map_err(|error| Failure::from(error).during("this program's own file"))?;
    let pool: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    Ok(Files { program, pool: format!("--pool={}", pool.join(",")), root })
}

async fn new(meta: Rc<dyn Meta>, nodes: &[SocketAddr]) -> Result<RootRecord, Failure> {
    let code = code(nodes.len()).ok_or_else(|| Failure::refused("there are too few nodes"))?;
    let spec = |(node, address): (usize, &SocketAddr)| MemberSpec {
        address: address.to_string(),
        nqn: Some(subsystem(node)),
        nsid: Some(NSID),
        weight: None,
        domain: pool::Domain { machine: format!("node-{}", node + 1), ..pool::Domain::default() },
    };
    let specs: Vec<MemberSpec> = nodes.iter().enumerate().map(spec).collect();
    let found = find_all(&Way::plain(), &specs).await?;
    // Whatever is on them is left alone: somebody may have made files of them.
    make(meta, NAME, &options(code, None, &found)?, &found, false).await
}

/// Where a file system over these nodes looks for each of them; what it looks for in vain is told.
fn homes(root: &RootRecord, nodes: &[SocketAddr]) -> Result<Vec<SocketAddr>, Failure> {
    let (mut homes, mut is_ours) = (nodes.to_vec(), false);
    for (node, address) in nodes.iter().enumerate() {
        let namespace = format!(",nqn={},nsid={NSID}", subsystem(node));
        let known = |member: &MemberRecord| match member.state {
            MemberState::Removed => None,
            _ => member.place.strip_suffix(&namespace)?.parse().ok(),
        };
        let Some(known) = root.members.iter().find_map(known) else { continue };
        (homes[node], is_ours) = (known, true);
        if known != *address {
            tracing::error!(
                "storage node {} is at {address}, and files look for it at {known}: they do without it until it is started with \
                 that port free",
                node + 1
            );
        }
    }
    match is_ours {
        true => Ok(homes),
        false => {
            Err(Failure::refused(format!("the pool has a file system {NAME} already, which is not on these nodes")))
        }
    }
}

/// What is said of files once they are served.
#[derive(Serialize, Debug)]
pub struct Ready {
    name: &'static str,
    data: u8,
    parity: u8,
    /// Bytes that fit.
    bytes: u64,
    copy: String,
    list: String,
    mount: String,
}

impl Files {
    /// This program with these words behind `file`.
    pub fn command(&self, words: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("file").args(words).arg(&self.pool);
        command
    }

    /// Columns of data and of parity.
    pub fn code(&self) -> (u8, u8) {
        (self.root.data, self.root.parity)
    }

    /// What is said once all serves.
    pub fn ready(&self) -> Ready {
        let line = |words: &str| format!("yagura file {words} {}", self.pool);
        let (data, parity) = self.code();
        let active = self.root.members.iter().filter(|member| member.state == MemberState::Active);
        let bytes = active.map(|member| member.bytes).sum::<u64>() / u64::from(data + parity) * u64::from(data);
        Ready {
            name: NAME,
            data,
            parity,
            bytes,
            copy: line(&format!("cp -r TREE {NAME}:")),
            list: line(&format!("ls -l {NAME}:")),
            mount: line(&format!("mount {NAME} DIRECTORY")),
        }
    }
}

impl Ready {
    /// For people.
    pub fn describe(&self) -> String {
        let Ready { data, parity, bytes, copy, list, mount, .. } = self;
        let room = Size(*bytes);
        format!(
            "files: {data} + {parity} columns, room for {room}\ncopy in:   {copy}\nlist them: {list}\nmount:     {mount}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use ::file::record::Stamps;

    use super::*;

    #[test]
    fn a_file_system_over_other_nodes_is_not_taken() {
        let member = |place: &str, state| MemberRecord { place: place.into(), bytes: 1, state, domain: String::new() };
        let root = |members| RootRecord {
            stamps: Stamps::default(),
            id: [0; 16],
            data: 2,
            parity: 1,
            region_bytes: 1,
            seed: 0,
            members,
        };
        let nodes = ["127.0.0.1:1".parse().expect("an address"), "127.0.0.1:2".parse().expect("an address")];
        let place = "127.0.0.1:1,nqn=nqn.2026-11.io.yagura:up-node-2,nsid=16";
        let found = |members| homes(&root(members), &nodes).ok();
        let strange = member("h:1,nqn=x,nsid=16", MemberState::Active);
        // The second one has moved.
        assert_eq!(found(vec![strange.clone(), member(place, MemberState::Lost)]), Some(vec![nodes[0]; 2]));
        assert_eq!(found(vec![strange, member(place, MemberState::Removed)]), None);
        assert_eq!(found(vec![member(&place.replace("16", "1"), MemberState::Active)]), None);
    }
}
