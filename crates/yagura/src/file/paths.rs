//! Names of files of which only numbers are known.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ::file::record::Kind;
use ::file::{Error, FileSystem, ROOT};
use engine::time;

/// How long names are looked for. Chosen: shorter than a verb that a signal has ended has for its report.
const WITHIN: Duration = Duration::from_secs(10);
/// Names that are asked for at once.
const NAMES_LISTED: usize = 1024;
/// Directories that can't be read until it is given up. Chosen: a damaged one hides no others; for a store that is away nobody
/// waits long.
const HINDERED_MAX: usize = 4;

/// A path of each of these inodes that has one, by a walk over all directories that ends with the last of them; and what hindered
/// with a directory first: the others are looked at.
pub async fn of(names: &FileSystem, inodes: BTreeSet<u64>) -> (BTreeMap<u64, String>, Option<Error>) {
    let (mut found, mut open, mut fault) = (BTreeMap::new(), vec![(ROOT, String::new())], None);
    let (mut hindered, begun) = (0, time::now());
    while let Some((dir, path)) = open.pop() {
        let mut from = 0;
        while found.len() < inodes.len() {
            if begun.elapsed() >= WITHIN {
                return (found, Some(Error::Unavailable("there are more names than can be looked at soon".into())));
            }
            let entries = match names.readdir(dir, from, NAMES_LISTED).await {
                Ok(entries) => entries,
                // It was removed meanwhile.
                Err(Error::Stale | Error::NotFound(_)) => break,
                Err(error) => {
                    fault.get_or_insert(error);
                    hindered += 1;
                    if hindered == HINDERED_MAX {
                        return (found, fault);
                    }
                    break;
                }
            };
            let Some(last) = entries.last() else { break };
            from = last.cursor;
            for entry in entries.iter().filter(|entry| !matches!(&entry.name[..], b"." | b"..")) {
                let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
                if inodes.contains(&entry.ino) {
                    found.entry(entry.ino).or_insert_with(|| path.clone());
                }
                if entry.kind == Kind::Directory {
                    open.push((entry.ino, path));
                }
            }
        }
    }
    (found, fault)
}
