//! Who has a catalogue's file open, for whoever comes second.
//!
//! The lock is redb's, on the file itself, and goes with the process that holds it. The note beside the file only says who that
//! is: it is written after the lock was had, and read after it was refused, and may be wrong for a moment between.

use std::path::{Path, PathBuf};

/// Bytes of a note that are looked at. Chosen: a name, an address, a number.
const NOTE_BYTES_MAX: usize = 256;

fn place(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".owner");
    PathBuf::from(name)
}

/// Notes that `owner`, this process, has the file.
pub fn note(file: &Path, owner: &str) -> std::io::Result<()> {
    std::fs::write(place(file), format!("{owner} (process {})\n", std::process::id()))
}

/// What the owner has noted.
pub fn read(file: &Path) -> String {
    let note = std::fs::read(place(file)).unwrap_or_default();
    let note = String::from_utf8_lossy(&note[..note.len().min(NOTE_BYTES_MAX)]).trim().to_owned();
    if note.is_empty() { format!("a process that left no note (`fuser {}` names it)", file.display()) } else { note }
}
