//! [`Meta`]: what files need of the store: small values by key, changed only by who has seen what was there.

mod memory;
mod store;

use engine::task::LocalFuture;

use crate::error::Error;

pub use kv::types::Version;
pub use memory::{Death, Faults, MemoryClient, MemoryMeta};
pub use store::StoreMeta;

/// A value and the version that a change of it has to name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The bytes.
    pub value: Vec<u8>,
    /// Which change they came by.
    pub version: Version,
}

/// What became of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swapped {
    /// It is done; what is there now has this version. Of a removal it says nothing.
    Done(Version),
    /// Something else is there (or nothing, or something where nothing was expected): nothing was changed.
    Changed,
    /// No majority said what became of it: it has taken effect, or will yet, or never; it will only as long as nothing else has
    /// changed the key since. Whoever asked reads again and looks for its own change there.
    Unknown,
}

/// Some keys, and where to go on; 0: that was all.
pub type KeyPage = (Vec<Vec<u8>>, u64);

/// Small values by key. Linearizable by key; nothing is promised over two.
pub trait Meta: 'static {
    /// The value of `key`, if there is one.
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>>;

    /// Makes `key` hold `new` (`None`: nothing) if it still holds what came by `expected` (`None`: nothing).
    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>>;

    /// Some keys that begin with `prefix`, about `limit`, from `cursor` on (0: from the start), and where to go on (0: that was
    /// all). No snapshot: a key that is there throughout comes at least once.
    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>>;
}
