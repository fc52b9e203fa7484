//! What these tests share: a simulated world, clients of one file system in memory, trees as they see them.

use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use engine::sim::{SimConfig, World};
use file::meta::{MemoryClient, MemoryMeta, Meta};
use file::record::Kind;
use file::{Attributes, CreateOptions, Error, FileSystem, New, ROOT};

/// Runs a future in a simulated world of this seed.
pub fn run<T>(seed: u64, future: impl Future<Output = T>) -> T {
    match World::new(seed, SimConfig::default()).run_until(future) {
        Ok(output) => output,
        Err(stalled) => panic!("seed {seed}: {stalled:?}"),
    }
}

/// The same for a test of hours.
pub fn run_long<T>(seed: u64, future: impl Future<Output = T>) -> T {
    let config = SimConfig { virtual_time_max: Duration::from_secs(48 * 3600), ..SimConfig::default() };
    match World::new(seed, config).run_until(future) {
        Ok(output) => output,
        Err(stalled) => panic!("seed {seed}: {stalled:?}"),
    }
}

pub fn options() -> CreateOptions {
    CreateOptions { data: 4, parity: 2, region_bytes: 32 << 20, members: Vec::new(), mode: 0o755, uid: 0, gid: 0 }
}

/// An empty file system.
pub async fn fresh() -> MemoryMeta {
    let meta = MemoryMeta::new();
    FileSystem::create_root(meta.client(), "test", &options()).await.unwrap();
    meta
}

/// One more client.
pub async fn client(meta: &MemoryMeta) -> (Rc<MemoryClient>, Rc<FileSystem>) {
    let client = meta.client();
    (client.clone(), over(client).await)
}

pub async fn over(meta: Rc<dyn Meta>) -> Rc<FileSystem> {
    Rc::new(FileSystem::open(meta, "test", "here").await.unwrap())
}

pub fn file() -> New {
    New::of(Kind::File, 0o644, 1, 2)
}

pub async fn create(fs: &FileSystem, dir: u64, name: &str) -> u64 {
    fs.create(dir, name.as_bytes(), &file(), true).await.unwrap().0.ino
}

pub async fn mkdir(fs: &FileSystem, dir: u64, name: &str) -> u64 {
    fs.mkdir(dir, name.as_bytes(), 0o755, 1, 2).await.unwrap().ino
}

/// What a path leads to.
pub async fn at(fs: &FileSystem, path: &str) -> Result<Attributes, Error> {
    let mut found = fs.getattr(ROOT).await?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        found = fs.lookup(found.ino, name.as_bytes()).await?;
    }
    Ok(found)
}

/// All names of a directory but `.` and `..`, in some steps.
pub async fn names(fs: &FileSystem, dir: u64, limit: usize) -> Result<Vec<(String, u64)>, Error> {
    let (mut cursor, mut names) = (0, Vec::new());
    loop {
        let step = fs.readdir(dir, cursor, limit).await?;
        let Some(last) = step.last() else { return Ok(names) };
        cursor = last.cursor;
        let shown = step.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..");
        names.extend(shown.map(|entry| (String::from_utf8(entry.name).unwrap(), entry.ino)));
    }
}

/// A tree by its paths: what each is, and which inode.
pub type Tree = BTreeMap<String, (Kind, u64)>;

/// The whole tree, by lookups of every name that is listed.
pub async fn tree(fs: &FileSystem) -> Tree {
    let (mut found, mut waiting) = (Tree::new(), vec![(String::new(), ROOT)]);
    while let Some((path, dir)) = waiting.pop() {
        for (name, listed) in names(fs, dir, 100).await.unwrap() {
            let path = format!("{path}/{name}");
            let told = match fs.lookup(dir, name.as_bytes()).await {
                Ok(told) => told,
                Err(error) => panic!("{path}, which is listed: {error}"),
            };
            assert_eq!(told.ino, listed, "{path}");
            if told.kind == Kind::Directory {
                assert!(found.values().all(|(_, ino)| *ino != told.ino), "{path} is there twice");
                assert_eq!(fs.lookup(told.ino, b"..").await.unwrap().ino, dir, "the parent of {path}");
                waiting.push((path.clone(), told.ino));
            }
            found.insert(path, (told.kind, told.ino));
        }
    }
    found
}

/// Bytes of a key before its kind.
pub const HEAD: usize = "yagura-file:".len() + 16;

/// Which kind of record a key is of.
pub fn kind_of(key: &[u8]) -> Option<&u8> {
    key.get(HEAD)
}
