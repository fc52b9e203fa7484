//! A directory tree as keys: every regular file, its key the relative path.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use crate::exit::Failure;

/// One file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its key: the prefix and the path below the root, with `/` between the parts.
    pub key: Vec<u8>,
    /// Bytes, when it was listed.
    pub bytes: u64,
}

impl TreeFile {
    /// Its key, for people.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.key).into_owned()
    }
}

/// What a tree holds.
#[derive(Default, Debug)]
pub struct Tree {
    /// Its regular files, by key.
    pub files: Vec<TreeFile>,
    /// Symbolic links, devices, sockets and pipes: not stored.
    pub skipped: u64,
}

impl Tree {
    /// Lists `root`. What cannot be read is an error: an import that left it out silently would not be one.
    pub fn list(root: &Path, prefix: &str) -> Result<Tree, Failure> {
        let mut tree = Tree::default();
        if !root.is_dir() {
            return Err(Failure::usage(format!("{}: not a directory", root.display())));
        }
        for entry in WalkDir::new(root).sort_by_file_name() {
            let entry = entry.map_err(|error| Failure::usage(format!("{}: {error}", root.display())))?;
            if entry.file_type().is_dir() {
                continue;
            }
            if !entry.file_type().is_file() {
                tree.skipped += 1;
                continue;
            }
            let metadata = entry.metadata().map_err(|error| Failure::usage(error.to_string()))?;
            let below = entry.path().strip_prefix(root).unwrap_or(entry.path());
            let key = [prefix.as_bytes(), below.as_os_str().as_bytes()].concat();
            tree.files.push(TreeFile { path: entry.path().to_owned(), key, bytes: metadata.len() });
        }
        Ok(tree)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_relative_paths_and_links_are_counted() {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(root.path().join("a/b")).expect("made");
        std::fs::write(root.path().join("a/b/c"), "123").expect("written");
        std::fs::write(root.path().join("x"), "").expect("written");
        std::os::unix::fs::symlink("x", root.path().join("link")).expect("linked");
        let tree = Tree::list(root.path(), "p/").expect("listed");
        let keys: Vec<_> = tree.files.iter().map(|file| (file.name(), file.bytes)).collect();
        assert_eq!(keys, [("p/a/b/c".to_string(), 3), ("p/x".to_string(), 0)]);
        assert_eq!((tree.skipped, tree.bytes()), (1, 3));
        assert!(Tree::list(&root.path().join("x"), "").is_err());
    }
}
