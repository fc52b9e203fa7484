//! The protocol of the key-value store, small enough to be searched completely.
//!
//! Several models share one explorer ([`explore`]):
//! - [`quorum`]: one key on three members, each an atomic register, joined by majorities. It shows that puts, gets,
//!   deletes and conditional operations are linearizable although every message may land at any time or never.
//! - [`page`]: one member seen from inside: home page, guests, extents. It shows that the rules of `crates/kv/README.md`
//!   make the member the atomic register that the first model takes for granted.
//! - [`orphan`]: who frees what a crashed host has left on a member.
//! - [`bundle`]: entries that leave a full page together.
//! - [`agree`]: how voters agree on the next map.
//! - [`superblock`]: one voter seen from inside.
//!
//! All also hold the rules that look right and are not: each broken variant must lead to a violation, and the tests
//! assert that it does. State counts are in `README.md`.

pub mod agree;
pub mod bundle;
pub use check::explore;
pub mod orphan;
pub mod page;
pub mod quorum;
pub mod superblock;
