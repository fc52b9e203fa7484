//! A check from outside of all records: after what others have left was finished, every name leads to an inode that knows of it,
//! every directory is in one other, and what is left over is counted.

use std::collections::{BTreeMap, BTreeSet};

use file::meta::{Faults, MemoryMeta};
use file::record::inode::Inode;
use file::record::intent::Intent;
use file::record::node::{Node, Shape, Target};
use file::record::small::{ClientRecord, Moves};
use file::record::{Kind, Record};
use file::{FileSystem, ROOT};

use crate::world::{HEAD, client};

/// What nothing leads to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Leaks {
    pub inodes: usize,
    pub links: usize,
    pub nodes: usize,
    pub intents: usize,
    pub orphans: usize,
    /// Keepers that do not list what they keep.
    pub keepers: usize,
    /// Files that somebody has locked.
    pub locks: usize,
}

#[derive(Default)]
struct Records {
    inodes: BTreeMap<u64, Inode>,
    nodes: BTreeMap<(u64, Vec<u8>), Node>,
    intents: BTreeMap<u64, Intent>,
    moves: Option<Moves>,
    clients: BTreeMap<u64, ClientRecord>,
    locks: usize,
}

impl Records {
    fn keeps(&self, client: u64, ino: u64) -> bool {
        self.clients.get(&client).is_some_and(|client| client.orphans.contains(&ino))
    }
}

fn records(meta: &MemoryMeta) -> Records {
    let mut found = Records::default();
    for (key, value) in meta.dump() {
        if key.starts_with(b"yagura-file:=") {
            continue;
        }
        let rest = &key[HEAD + 1..];
        let number = |bytes: &[u8]| u64::from_be_bytes(bytes[..8].try_into().unwrap());
        match key[HEAD] {
            b'i' => drop(found.inodes.insert(number(rest), Inode::decode(&value).unwrap())),
            b'd' => drop(found.nodes.insert((number(rest), rest[8..].to_vec()), Node::decode(&value).unwrap())),
            b'x' => drop(found.intents.insert(number(rest), Intent::decode(&value).unwrap())),
            b'v' => found.moves = Some(Moves::decode(&value).unwrap()),
            b'c' => drop(found.clients.insert(number(rest), ClientRecord::decode(&value).unwrap())),
            b'l' => found.locks += 1,
            b'n' | b'a' | b'b' | b'k' | b'm' | b'q' | b's' => {}
            kind => panic!("a key of kind {kind}"),
        }
    }
    found
}

/// Finishes all that others have left, wherever a name leads.
pub async fn tidy(fs: &FileSystem) {
    let mut waiting = vec![ROOT];
    while let Some(dir) = waiting.pop() {
        fs.tidy(dir).await.unwrap();
        let mut cursor = 0;
        loop {
            let step = fs.readdir(dir, cursor, 1000).await.unwrap();
            let Some(last) = step.last() else { break };
            cursor = last.cursor;
            let below = step.iter().filter(|entry| entry.kind == Kind::Directory && !entry.name.starts_with(b"."));
            waiting.extend(below.map(|entry| entry.ino));
        }
    }
}

fn entries(records: &Records, dir: u64, path: &[u8], nodes: &mut BTreeSet<(u64, Vec<u8>)>) -> Vec<(Vec<u8>, Target)> {
    let place = (dir, path.to_vec());
    let node = records.nodes.get(&place).unwrap_or_else(|| panic!("no node {place:?}"));
    nodes.insert(place);
    assert!(node.root.is_some() == path.is_empty() && node.root.is_none_or(|root| root.dying.is_none()));
    match &node.shape {
        Shape::Leaf(leaf) => {
            assert!(leaf.gone.is_empty(), "a link that is gone is left in {dir}");
            let target = |entry: &file::record::node::Entry| {
                assert_eq!(entry.intent, None, "an intent is left in {dir}");
                (entry.name.clone(), entry.target.unwrap())
            };
            leaf.entries.iter().map(target).collect()
        }
        Shape::Splitting(_) => panic!("{dir} splits"),
        Shape::Dead => {
            assert!(!path.is_empty(), "{dir} has a name and is removed");
            Vec::new()
        }
        Shape::Split => (0..16).flat_map(|nibble| entries(records, dir, &[path, &[nibble]].concat(), nodes)).collect(),
    }
}

/// Finishes what others have left, checks everything, and counts what is left over.
pub async fn audit(meta: &MemoryMeta) -> Leaks {
    meta.set_faults(Faults::default());
    let (_, fs) = client(meta).await;
    tidy(&fs).await;
    fs.close().await.unwrap();
    count(meta)
}

/// Checks everything as it is, and counts what is left over.
pub fn count(meta: &MemoryMeta) -> Leaks {
    let records = records(meta);
    let (mut links, mut nodes): (BTreeMap<u64, BTreeSet<u64>>, _) = Default::default();
    let mut waiting = vec![ROOT];
    while let Some(dir) = waiting.pop() {
        for (name, target) in entries(&records, dir, &[], &mut nodes) {
            let name = name.escape_ascii().to_string();
            let inode = records.inodes.get(&target.ino);
            let inode = inode.unwrap_or_else(|| panic!("{name} in {dir} leads to {}, which is not there", target.ino));
            assert_eq!(inode.kind, target.kind, "{name} in {dir}");
            assert!(inode.has_link(target.link), "{name} in {dir}: its inode does not know");
            let known = links.entry(target.ino).or_default();
            assert!(known.insert(target.link), "{name} in {dir}: another name has its link");
            if target.kind == Kind::Directory {
                assert!(known.len() == 1 && inode.parent == dir, "{name} in {dir}: two parents");
                waiting.push(target.ino);
            }
        }
    }
    let mut leaks = Leaks { intents: records.intents.len(), locks: records.locks, ..Leaks::default() };
    let kept: BTreeSet<u64> = records.clients.values().flat_map(|client| client.orphans.iter().copied()).collect();
    for ino in &kept {
        assert!(records.inodes.contains_key(ino), "inode {ino} is gone, which a client keeps");
    }
    for (ino, inode) in records.inodes.iter().filter(|(ino, _)| **ino != ROOT) {
        leaks.keepers += inode.keepers.iter().filter(|keeper| !records.keeps(**keeper, *ino)).count();
        match links.get(ino) {
            Some(named) => leaks.links += inode.links.len() - named.len(),
            None if inode.keepers.iter().any(|keeper| records.keeps(*keeper, *ino)) => leaks.orphans += 1,
            None => leaks.inodes += 1,
        }
    }
    leaks.nodes = records.nodes.keys().filter(|place| !nodes.contains(place)).count();
    if let Some(current) = records.moves.and_then(|moves| moves.current) {
        assert!(leaks.intents > 0 || !records.intents.contains_key(&current));
    }
    leaks
}
