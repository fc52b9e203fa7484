//! The pool: which namespaces belong together, how each is laid out, and which of them a key lives on.
//!
//! Everything a host must know is small and static between changes of the map, and is read from the members themselves
//! ([`open`]); [`create`] is the only writer. What is stored in the pool is not known here.
//!
//! - [`superblock`]: the block that makes a namespace a member.
//! - [`map`]: the body the superblock names: members, replica count, seed, geometry.
//! - [`change`]: how one map becomes the next.
//! - [`plan`]: from what an operator asks for to the next map, and what that moves.
//! - `lost`: members that are lost for good meanwhile, and the way back.
//! - [`rebalance`]: carrying a change out, phase after phase.
//! - [`balance`]: who holds how much, and what a change moves.
//! - [`agree`]: how the members' hosts agree on it, by ballots in the superblocks.
//! - [`geometry`]: where table and heap lie on a member.
//! - [`ring`]: consistent hashing, from a key to its members.

mod acceptor;
mod admit;
pub mod agree;
pub mod balance;
pub mod blank;
mod body;
pub mod change;
mod claim;
pub mod clock;
mod create;
pub mod domain;
mod enough;
pub mod error;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub mod geometry;
mod id;
mod lives;
mod lost;
pub mod map;
mod new_member;
mod open;
pub mod plan;
pub mod rebalance;
mod renew;
pub mod ring;
mod room;
pub mod search;
mod seen;
mod slot;
pub mod superblock;
mod together;

pub use admit::{admit, candidate};
pub use agree::{AgreeError, Proposer, Word};
pub use balance::Moved;
pub use change::{Change, ChangeKind, Epoch, Phase, Seat, Side, State};
pub use create::{CreateOptions, TABLE_SHARE_DEFAULT, create};
pub use domain::{Domain, Level};
pub use enough::Enough;
pub use error::Error;
pub use geometry::{Geometry, HeapGroup, HeapPage, Layout, TablePage, member_bytes_min};
pub use lost::HalfLeft;
pub use map::{Map, MapError, Member, MemberId};
pub use new_member::NewMember;
pub use open::{Label, Opened, Presence, Report, check_member, check_returned, inspect, open};
pub use plan::{PlanError, Request};
pub use rebalance::{Mover, RebalanceError, Step};
pub use renew::renew;
pub use ring::{KeyHash, Placements, Ring};
pub use room::table_share_for;
pub use search::Search;
pub use slot::MAP_BYTES_MAX;
pub use superblock::{Ballot, Superblock, SuperblockError};
pub use together::together;
pub use uuid::Uuid;

#[cfg(test)]
mod testing;
