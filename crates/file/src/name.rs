//! Names of a directory: its trie, read and changed one node at a time.

mod change;
mod close;
mod find;
mod gone;
pub(crate) mod known;
mod list;

pub(crate) use change::Step;
pub(crate) use gone::spared;
pub use list::{Cursor, DirEntry};
