//! What the callers of a file say of it, whichever world it is in.

use std::io;

/// How to open a file. The default: existing, direct, exclusive, for writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// Create it with this size in bytes if it does not exist.
    pub create: Option<u64>,
    /// Past the page cache (O_DIRECT).
    pub direct: bool,
    /// One opener at a time, on the whole machine: a second one gets `ErrorKind::ResourceBusy`.
    pub exclusive: bool,
    /// No writes.
    pub read_only: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions { create: None, direct: true, exclusive: true, read_only: false }
    }
}

/// How long what is written stays until it is written over or given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// Shorter than most of what is on the medium.
    Short,
    /// About as long.
    Medium,
    /// Longer.
    Long,
}

/// What is done with the result of an operation whose future was dropped before its end, and with what the operation held.
pub type Late<G> = fn(G, io::Result<()>);
