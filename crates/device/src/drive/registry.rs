//! The open namespaces of a drive: what every handle of one shares, its locks above all.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::state::Space;
use crate::range_lock::RangeLocks;

/// Bytes of neighbouring blocks whose locks share a shard. Guessed: several commands of the usual size.
const REGION_BYTES: u32 = 128 << 10;

/// One namespace, as all its handles see it.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) number: u32,
    pub(super) nguid: [u8; 16],
    pub(super) name: String,
    pub(super) block_size: u32,
    pub(super) read_only: bool,
    /// Its size; 0 once it is deleted.
    pub(super) blocks: AtomicU64,
    pub(super) locks: Arc<RangeLocks>,
}

impl Shared {
    pub(super) fn new(number: u32, space: &Space) -> Arc<Shared> {
        Arc::new(Shared {
            number,
            nguid: space.nguid,
            name: space.name.clone(),
            block_size: space.block_size,
            read_only: space.read_only,
            blocks: AtomicU64::new(space.bytes / u64::from(space.block_size)),
            locks: Arc::new(RangeLocks::new((REGION_BYTES / space.block_size).trailing_zeros())),
        })
    }
}

/// All of them, by number.
#[derive(Debug, Default)]
pub(super) struct Registry(Mutex<BTreeMap<u32, Arc<Shared>>>);

impl Registry {
    pub(super) fn of(namespaces: &BTreeMap<u32, Space>) -> Registry {
        Registry(Mutex::new(namespaces.iter().map(|(&number, space)| (number, Shared::new(number, space))).collect()))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Shared>>> {
        // Nothing under this mutex can panic half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, number: u32) -> Option<Arc<Shared>> {
        self.lock().get(&number).cloned()
    }

    pub(super) fn add(&self, shared: Arc<Shared>) {
        self.lock().insert(shared.number, shared);
    }

    pub(super) fn remove(&self, number: u32) {
        self.lock().remove(&number);
    }
}
