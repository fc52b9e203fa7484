//! [`Paths`]: how people call an inode.

use std::collections::BTreeMap;

use crate::fs::ROOT;

/// Directories that a path goes through. Chosen: as names are looked up.
const DEPTH_MAX: usize = 4096;

/// Where directories were met, and those inodes whose names are wanted.
#[derive(Default)]
pub(crate) struct Paths {
    pub(crate) dirs: BTreeMap<u64, (u64, Box<[u8]>)>,
    /// The first name of each that is wanted.
    pub(crate) wanted: BTreeMap<u64, Option<(u64, Vec<u8>)>>,
}

impl Paths {
    /// The path of a name.
    pub(crate) fn of_name(&self, dir: u64, name: &[u8]) -> String {
        let (mut parts, mut at) = (vec![name.escape_ascii().to_string()], dir);
        while at != ROOT && parts.len() < DEPTH_MAX {
            let Some((above, name)) = self.dirs.get(&at) else {
                parts.push(format!("(directory {at})"));
                return parts.iter().rev().map(String::as_str).collect::<Vec<_>>().join("/");
            };
            parts.push(name.escape_ascii().to_string());
            at = *above;
        }
        parts.push(String::new());
        parts.iter().rev().map(String::as_str).collect::<Vec<_>>().join("/")
    }

    /// A path of an inode, where one was met; else its number.
    pub(crate) fn of(&self, ino: u64) -> String {
        if ino == ROOT {
            return "/".to_owned();
        }
        match (self.wanted.get(&ino), self.dirs.get(&ino)) {
            (Some(Some((dir, name))), _) => format!("{} (inode {ino})", self.of_name(*dir, name)),
            (_, Some((dir, name))) => format!("{} (inode {ino})", self.of_name(*dir, name)),
            _ => format!("inode {ino}"),
        }
    }
}
