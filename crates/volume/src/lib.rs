//! A volume, mirrored by the host that has it attached. The page beside this crate (`README.md`) says what holds and why.
//!
//! Use: [`format()`] makes a volume of namespaces, [`attach`] attaches it, and a [`Volume`] is a [`device::Namespace`]. How a
//! holder is reached says a [`Reach`]: over NVMe-oF that is [`NvmeReach`].

mod adopt;
mod attach;
mod backup;
mod ballot;
mod bitmap;
mod block;
mod blocks;
mod candidate;
mod change;
mod clear;
mod conn;
mod error;
mod export;
mod fan_out;
mod figures;
mod format;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod garbage;
mod grow;
mod import;
mod inspect;
mod keep;
mod label;
mod lease;
mod limited;
mod log;
mod making;
mod mirror;
mod nvmeof;
mod options;
mod origin;
mod patience;
mod reach;
mod read;
mod record;
mod recover;
mod regions;
mod reserve;
mod restore;
mod resync;
mod settle;
mod shared;
mod snapshot;
mod snapshot_name;
mod stream;
mod verify;
mod view;
mod volume;
mod watch;

pub use adopt::{AdoptOptions, adopt};
pub use attach::attach;
pub use backup::{BackupError, Sink, Source};
pub use candidate::is_blank;
pub use error::Error;
pub use export::{Differences, Exported, differences, export};
pub use figures::{Figures, ReplicaFigures, State};
pub use format::{FormatOptions, format, format_replacement, holder_bytes};
pub use import::{Imported, import};
pub use inspect::{Inspected, inspect};
pub use label::{
    Born, DATA_ALIGN, Kind, LOG_BLOCK, Label, LabelError, Life, RECORD_BLOCK, REGIONS_MAX, REPLICAS_MAX, Shape,
};
pub use limited::{HeldBack, Limiter, Limits, limited};
pub use nvmeof::NvmeReach;
pub use options::Options;
pub use origin::Origin;
pub use reach::{Copies, Reach, Taken, Takes};
pub use record::{Ballot, FORMAT_ROUND, HOLDERS_MAX, Record, RecordBlock, RecordError, Set, Snapshot, snapshots_max};
pub use recover::recover;
pub use restore::{Restored, restore, room};
pub use snapshot_name::{NotAName, SnapshotId, SnapshotName};
pub use stream::{Counts, Decoder, EXTENT_BYTES_MAX, Encoder, Header, Item, StreamError};
pub use verify::Report;
pub use view::SnapshotView;
pub use volume::Volume;
