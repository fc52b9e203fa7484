//! The catalogue: what is small, transactional and off the data path.
//!
//! One trait ([`Catalogue`]) and two engines: a file of this machine ([`Embedded`], by redb), and [`Etcd`] for several machines.

mod contract;
mod embedded;
mod error;
mod etcd;
mod limits;
mod serving;
mod transfer;
mod types;

pub use contract::{Answer, Catalogue, Watch};
pub use embedded::{Embedded, EmbeddedOptions};
pub use error::{Cause, Error};
pub use etcd::{Etcd, EtcdOptions, TlsFiles, User};
pub use limits::{
    KEY_BYTES_MAX, LEASE_KEYS_MAX, LEASE_TTL_MAX, LEASE_TTL_MIN, LimitError, PAGE_ENTRIES_MAX, TRANSACTION_BYTES_MAX,
    TRANSACTION_PARTS_MAX, VALUE_BYTES_MAX,
};
pub use serving::{SERVING_TTL, Serving};
pub use transfer::{
    Dump, LINE_BYTES_MAX as DUMP_LINE_BYTES_MAX, Restore, Restored, Restoring, TransferError, VERSION as DUMP_VERSION,
    check_not_moved, check_whole, mark_moved, move_all, move_marked, restoring, unmark_moved,
};
pub use types::{
    Change, Changed, Commit, Condition, Entry, Key, Lease, LeaseId, Missed, Outcome, Page, Prefix, Range, Reading,
    Revision, Transaction, Ttl, Value,
};
