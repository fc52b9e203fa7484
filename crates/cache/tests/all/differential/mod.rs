//! The same bytes to memcached and to a session, over the plainest slots, the store in memory and the store over flash: the answers
//! are equal, byte for byte.
//!
//! memcached is Debian's (`scripts/deps.sh test` installs it). Its answers that tell a time may be off by the tick of a clock.

mod binary;
mod cases;
mod generator;
mod memcached;
mod sasl;
mod text;
mod tiers;

use std::sync::Arc;

use cache::hash::Hasher;
use cache::memory::Budget;
use cache::store::{Store, StoreOptions};
use cache::testing::SECRET;

/// Memory for all that a test stores.
const STORE_BYTES: usize = 256 << 20;

/// A store in memory.
fn store() -> Store {
    let budget = Arc::new(Budget::without_buffers(STORE_BYTES));
    Store::new(Hasher::new(SECRET), budget, StoreOptions::default())
}
