//! The pool: which namespaces belong together, how each is laid out, and which of them a key lives on.
//!
//! Everything a host must know is small and static between changes of the map, and is read from the members themselves
//! ([`open`]); [`create`] is the only writer. What is stored in the pool is not known here.
//!
//! - [`superblock`]: the block that makes a namespace a member.
//! - [`map`]: the body the superblock names: members, replica count, seed, geometry.
//! - [`geometry`]: where table and heap lie on a member.
//! - [`ring`]: consistent hashing, from a key to its members.

mod create;
pub mod error;
pub mod fuzz;
pub mod geometry;
pub mod map;
mod open;
pub mod ring;
pub mod superblock;

pub use create::{CreateOptions, NewMember, TABLE_SHARE_DEFAULT, create};
pub use error::Error;
pub use geometry::{Geometry, HeapGroup, HeapPage, Layout, TablePage};
pub use map::{Domain, Level, Map, Member, MemberId};
pub use open::{Label, Opened, Presence, Report, check_member, inspect, open};
pub use ring::{KeyHash, Ring};
pub use superblock::{Ballot, Superblock, SuperblockError};

#[cfg(test)]
mod testing;
