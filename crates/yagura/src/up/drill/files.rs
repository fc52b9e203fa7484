//! The drill's files: a tree copied into the file system, read back around the loss of a node, copied once more without it, and all
//! columns given back once the node is there again.
//!
//! All that is asked is asked as a user would, by the verbs of this program.

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::time;
use serde::Serialize;
use serde_json::Value;

use super::super::files::{Files, NAME};
use super::image::{chosen, stage};
use crate::aside::{aside, succeeded};
use crate::exit::Failure;
use crate::output::many;
use crate::size::Size;
use crate::tree::{Tree, TreeFile};

/// What is copied of the directory, at most. Chosen: enough to kill a node in the middle of it, few enough for the patience of
/// whoever watches.
const BYTES_MAX: u64 = 32 << 20;
const FILES_MAX: usize = 250;
/// A file that is made here: small ones may all lie in their inodes, and have no columns.
const OWN: &str = "yagura-drill.bytes";
const OWN_BYTES: usize = 3 << 20;
/// Where it is copied to: nobody's else, so that what a drill has left behind can be removed.
const DIRECTORY: &str = "yagura-drill";
/// The names of both copies there.
const BEFORE: &str = "before";
const WITHOUT: &str = "without";
/// The pause between reads: they are not to share the disk with the rest more than a little.
const AGAIN_PAUSE: Duration = Duration::from_millis(200);
/// How long a verb may take. Guessed: far above what so little needs anywhere.
const VERB_TIME_MAX: Duration = Duration::from_secs(120);

/// What came of it.
#[derive(Serialize, Debug)]
pub struct Summary {
    data: u8,
    parity: u8,
    /// Files that were copied in, and their bytes.
    files: u64,
    bytes: u64,
    /// What that took.
    copy_seconds: f64,
    /// How often all were read around the loss of the node; the last time without it.
    reads: u64,
    /// Files that ever came back as others.
    different: u64,
    /// Stripes that were given a column back.
    rebuilt_stripes: u64,
    /// What that took.
    rebuild_seconds: f64,
}

/// Reads of all files, and what came back as others in them.
pub struct Reads {
    times: u64,
    different: u64,
}

/// A tree in the file system.
pub struct Copied<'a> {
    files: &'a Files,
    /// The same here.
    staged: PathBuf,
    tree: Arc<Tree>,
    /// Where it is read to.
    out: PathBuf,
    seconds: f64,
}

/// A path in the file system.
fn inside(name: &str) -> String {
    format!("{NAME}:{DIRECTORY}/{name}")
}

/// Copies some of the tree in; `directory` is for what is needed on the way.
pub async fn copy_in<'a>(files: &'a Files, tree: &Tree, directory: &Path) -> Result<Copied<'a>, Failure> {
    let directory = std::path::absolute(directory)?;
    let (staged, out) = (directory.join("staged"), directory.join("read"));
    let (chosen, into) = (chosen(tree, BYTES_MAX, FILES_MAX), staged.clone());
    let tree = aside(move || {
        stage(&chosen, &into)?;
        let bytes: Vec<u8> = (0..OWN_BYTES).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
        std::fs::write(into.join(OWN), bytes)?;
        Tree::list(&into, "")
    });
    let tree = Arc::new(tree.await??);
    let mut copied = Copied { files, staged, tree, out, seconds: 0.0 };
    let here = format!("{NAME}:{DIRECTORY}");
    if copied.ask(&["stat", &here]).await.is_ok() {
        copied.ask(&["rm", "-r", &here]).await?;
    }
    copied.ask(&["mkdir", &here]).await?;
    let began = time::now();
    copied.copy(BEFORE).await?;
    copied.seconds = began.elapsed().as_secs_f64();
    Ok(copied)
}

impl Copied<'_> {
    async fn ask(&self, words: &[impl AsRef<OsStr>]) -> Result<Vec<u8>, Failure> {
        succeeded(self.files.command(words), VERB_TIME_MAX).await
    }

    async fn copy(&self, name: &str) -> Result<(), Failure> {
        let (from, to) = (self.staged.as_os_str(), inside(name));
        self.ask(&["cp".as_ref(), "-r".as_ref(), "--verify".as_ref(), from, to.as_ref()]).await.map(drop)
    }

    /// Reads a copy: how many files are others than those that were copied.
    async fn read(&self, name: &str) -> Result<u64, Failure> {
        let (from, to) = (inside(name), self.out.as_os_str());
        self.ask(&["cp".as_ref(), "-r".as_ref(), from.as_ref(), to]).await?;
        let (tree, out) = (Arc::clone(&self.tree), self.out.clone());
        aside(move || {
            let different = different(&tree, &out)?;
            std::fs::remove_dir_all(&out)?;
            Ok(different)
        })
        .await?
    }

    /// Reads again and again until the node is dead, and then once without it.
    pub async fn read_around(&self, dead: &Cell<bool>) -> Result<Reads, Failure> {
        let mut reads = Reads { times: 0, different: 0 };
        loop {
            let was_dead = dead.get();
            reads.different += self.read(BEFORE).await?;
            reads.times += 1;
            if was_dead {
                return Ok(reads);
            }
            time::sleep(AGAIN_PAUSE).await;
        }
    }

    /// Copies all in once more: what is written without the node lacks a column.
    pub async fn copy_without_node(&self) -> Result<(), Failure> {
        self.copy(WITHOUT).await
    }

    /// Gives the columns back that the node, which is there again, has missed, reads all, and removes it.
    pub async fn rebuild(self, reads: Reads) -> Result<Summary, Failure> {
        let began = time::now();
        let said = self.ask(&["rebuild", NAME, "--json"]).await?;
        let rebuild_seconds = began.elapsed().as_secs_f64();
        let said: Value = serde_json::from_slice(&said).map_err(Failure::refused)?;
        let mut different = reads.different;
        for name in [BEFORE, WITHOUT] {
            different += self.read(name).await?;
        }
        self.ask(&["rm", "-r", &format!("{NAME}:{DIRECTORY}")]).await?;
        let (data, parity) = self.files.code();
        Ok(Summary {
            data,
            parity,
            files: self.tree.files.len() as u64,
            bytes: self.tree.bytes(),
            copy_seconds: self.seconds,
            reads: reads.times,
            different,
            rebuilt_stripes: said["rewritten"].as_u64().unwrap_or_default(),
            rebuild_seconds,
        })
    }
}

/// Files of a tree that are others in a directory, or are in one of both alone.
fn different(tree: &Tree, directory: &Path) -> Result<u64, Failure> {
    let found = Tree::list(directory, "")?;
    let mut different = found.files.len().saturating_sub(tree.files.len()) as u64;
    for TreeFile { path, key, .. } in &tree.files {
        let there = std::fs::read(directory.join(OsStr::from_bytes(key)));
        different += u64::from(!there.is_ok_and(|there| std::fs::read(path).is_ok_and(|expected| expected == there)));
    }
    Ok(different)
}

impl Summary {
    /// Whether everything was as it must be.
    pub fn verdict(&self) -> Result<(), Failure> {
        match self {
            Summary { different: 0, rebuilt_stripes: 0, .. } => {
                Err(Failure::check("files were written without a node, and none of their stripes was rebuilt"))
            }
            Summary { different: 0, .. } => Ok(()),
            Summary { different, .. } => {
                let files = many(*different, "file");
                Err(Failure::check(format!("{files} did not come back from the file system as copied")))
            }
        }
    }

    /// For people.
    pub fn describe(&self) -> String {
        let Summary { data, parity, files, bytes, copy_seconds, reads, rebuilt_stripes, rebuild_seconds, .. } = self;
        let right = match self.different {
            0 => "every byte right".to_owned(),
            different => format!("{} WRONG", many(different, "file")),
        };
        format!(
            "files:     {}, {} copied in, {data} + {parity} columns, in {copy_seconds:.2} s; read {} around the node's end\n\
             \x20          copied in once more without the node; rebuilt: {} given a column back in {rebuild_seconds:.2} s, \
             {right}\n",
            many(*files, "file"),
            Size(*bytes),
            many(*reads, "time"),
            many(*rebuilt_stripes, "stripe"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_or_file_that_is_other_is_counted() {
        let directory = tempfile::tempdir().expect("a directory");
        let [copied, read] = ["copied", "read"].map(|name| directory.path().join(name));
        for root in [&copied, &read] {
            std::fs::create_dir_all(root.join("a")).expect("made");
            ["a/b", "c", "d"].iter().for_each(|name| std::fs::write(root.join(name), *name).expect("written"));
        }
        let tree = Tree::list(&copied, "").expect("listed");
        let count = || different(&tree, &read).expect("compared");
        assert_eq!(count(), 0);
        std::fs::write(read.join("a/b"), "a/B").expect("written");
        assert_eq!(count(), 1);
        std::fs::remove_file(read.join("c")).expect("removed");
        assert_eq!(count(), 2);
        std::fs::write(read.join("a/b"), "a/b").expect("written");
        std::fs::write(read.join("c"), "c").expect("written");
        std::fs::write(read.join("more"), "").expect("written");
        assert_eq!(count(), 1);
    }
}
