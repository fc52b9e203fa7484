//! An image of a real file system, made of a directory, and checked: by e2fsprogs, which are no part of ours.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::aside::{aside, succeeded};
use crate::exit::Failure;
use crate::tree::{Tree, TreeFile};

/// Bytes of the files that go into an image. Chosen: enough to kill a node in the middle of it, few enough for the patience of
/// whoever watches.
const FILES_BYTES_MAX: u64 = 128 << 20;
/// Files that go into it. Chosen: likewise.
const FILES_MAX: usize = 10_000;
/// Bytes of a block of the file system.
const BLOCK: u64 = 4096;
/// Journal, tables and what else a file system has beside its files. Chosen: the journal is a third of it.
const OVERHEAD: u64 = 12 << 20;
/// Inodes that a file system keeps for itself, and `lost+found`. Chosen: more than the eleven that there are.
const INODES_OWN: u64 = 64;
/// Bytes of an inode with its name. Derived: 256 bytes, and an entry of 264 at most.
const INODE_BYTES_MAX: u64 = 520;
/// How long a tool may take. Guessed: far above what any disk needs for so few bytes.
const TOOL_TIME_MAX: Duration = Duration::from_secs(120);

/// An image.
pub struct Image {
    /// Its file.
    pub path: PathBuf,
    /// Its bytes, a multiple of 1 MiB.
    pub bytes: u64,
    /// Files in it.
    pub files: u64,
}

/// Makes an ext4 image in `directory`, of as much of the tree as its bounds and half of the `room` take.
pub async fn make(tree: &Tree, directory: &Path, room: u64) -> Result<Image, Failure> {
    let files = chosen(tree, FILES_BYTES_MAX.min(room / 2), FILES_MAX);
    let (count, directories) = (files.len() as u64, directories(&files));
    let inodes = count + directories + INODES_OWN;
    let blocks: u64 = files.iter().map(|file| file.bytes.div_ceil(BLOCK)).sum();
    let (staged, path) = (directory.join("tree"), directory.join("image"));
    let into = staged.clone();
    aside(move || stage(&files, &into)).await??;
    // An eighth of the blocks for what maps them.
    let bytes =
        (blocks * BLOCK * 9 / 8 + directories * BLOCK + inodes * INODE_BYTES_MAX + OVERHEAD).next_multiple_of(1 << 20);
    let mut command = tool("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-m", "0", "-J", "size=4", "-b"]).arg(BLOCK.to_string());
    command.arg("-N").arg(inodes.to_string()).arg("-d").args([&staged, &path]);
    command.arg(format!("{}k", bytes >> 10));
    succeeded(command, TOOL_TIME_MAX).await.map_err(named)?;
    Ok(Image { path, bytes, files: count })
}

/// Whether the file system in the image at `path` is whole; else what is wrong with it.
pub async fn check(path: &Path) -> Result<(), Failure> {
    let mut command = tool("e2fsck");
    command.arg("-fn").arg(path);
    succeeded(command, TOOL_TIME_MAX).await.map(drop).map_err(named)
}

fn named(failure: Failure) -> Failure {
    failure.during("the drill's file system (e2fsprogs)")
}

/// A tool of the administrator's, which is in no other user's path.
fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// The files that fit.
pub fn chosen(tree: &Tree, bytes_max: u64, files_max: usize) -> Vec<TreeFile> {
    let mut left = bytes_max;
    let fits = |file: &&TreeFile| match left.checked_sub(file.bytes) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    tree.files.iter().filter(fits).take(files_max).cloned().collect()
}

/// Directories that the files are in.
fn directories(files: &[TreeFile]) -> u64 {
    let paths = files.iter().map(|file| Path::new(OsStr::from_bytes(&file.key)));
    paths.flat_map(|path| path.ancestors().skip(1)).collect::<BTreeSet<_>>().len() as u64
}

/// Copies them to a directory.
pub fn stage(files: &[TreeFile], directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory)?;
    for file in files {
        let to = directory.join(OsStr::from_bytes(&file.key));
        let copied = to.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::copy(&file.path, &to));
        copied.map_err(|error| Failure::from(error).during(file.path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_as_fits_is_chosen() {
        let file = |name: &str, bytes| TreeFile { path: name.into(), key: name.into(), bytes };
        let tree = Tree { files: vec![file("a", 6), file("b", 5), file("c", 4), file("d", 0)], skipped: 0 };
        let names = |bytes_max| chosen(&tree, bytes_max, 4).iter().map(TreeFile::name).collect::<String>();
        let deep = [file("a/b/c", 1), file("a/d", 1), file("e", 1)];
        assert_eq!(directories(&deep), 3, "the root, a and a/b");
        assert_eq!([names(15), names(10), names(5), names(0)], ["abcd", "acd", "bd", "d"]);
    }
}
