//! Yagura's store for programs: a replicated key-value store that needs no server of its own.
//!
//! ```
//! use client::{Client, Options};
//!
//! # let pool = client::testing::MemoryPool::start(3)?;
//! # let addresses = pool.addresses();
//! // Any member's address is enough; the others are found from the pool's map.
//! let client = Client::connect(addresses, Options::default()).wait()?;
//! client.put("lantern", "lit").wait()?;
//! assert_eq!(client.get("lantern").wait()?.as_deref(), Some(&b"lit"[..]));
//!
//! // Requests begin when they are made: these two are under way together.
//! let (first, second) = (client.get("lantern"), client.get("shadow"));
//! assert!(first.wait()?.is_some() && second.wait()?.is_none());
//! # Ok::<(), client::Error>(())
//! ```
//!
//! A [`Client`] may be cloned and used from any thread. Its requests are carried out by reactor threads of its own; each method
//! returns a [`Pending`], which is awaited on any executor or waited for by [`Pending::wait`].
//!
//! **Linearizable**: every operation on a key takes effect at one moment between its call and its result, as all clients and
//! gateways of the pool see it. A scan is not.
//!
//! **Unknown outcomes**: where a change was sent and no majority could say what became of it,
//! [`Error::outcome_unknown`] is true: it may have taken effect, or may do so later, or never. A later read tells, once it has
//! returned the change or something newer.
//!
//! **Limits**: keys have 1 to [`KEY_BYTES_MAX`] bytes, values up to [`VALUE_BYTES_MAX`].
//!
//! **Panics** of a closure given to [`Client::update`] go on where its result is waited for; the client goes on, too.
//!
//! **Fork**: a child of `fork` has none of the client's threads. Requests of its copy fail ([`Error::Usage`]); it has to connect
//! anew. Dropping or closing the copy leaves the parent's client alone. A [`Pending`] is answered in the process that made it.
//!
//! **Stability**: what is documented here stays within a middle number of the version, but for [`reach`]; errors may gain variants,
//! and [`Options`] fields.
//!
//! [`files`] are file systems whose names are in the pool, and whose bytes are on namespaces of their own.
//!
//! [`block`] is for programs that use namespaces and volumes themselves, instead of a store. [`reach`] and [`members`] are for
//! programs that run their own reactors, as the command line and the gateway do.

pub mod block;
mod client;
mod conditional;
mod error;
pub mod files;
mod find;
mod item;
pub mod members;
mod options;
mod pending;
pub mod reach;
mod resolve;
mod scan;
mod security;
mod source;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod way;
mod worker;

pub use client::Client;
pub use error::{Error, ErrorKind};
pub use item::{Change, Versioned, expiry_in};
pub use kv::store::{CasOutcome, Increment, ListEntry, ListPage, MemberStatus, PutOptions};
pub use kv::types::Version;
pub use kv::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use options::{Options, QUEUE_DEFAULT, QUEUE_MAX, REACTORS_MAX};
pub use pending::Pending;
pub use pool::Uuid;
pub use scan::Scan;
pub use security::{SecurityOptions, tls_key};

use kv::Store;
