//! Content and space: which bytes of a file lie where, and where there is room for more.
//!
//! - `shape`, `stripe`, `map`: how data is cut into columns, what is known of what was written, which bytes of a file that is.
//! - `record`, `key`: records in the store, changed once each.
//! - `label`, `member`: the namespaces that the bytes are on.
//! - `chunk`, `rest`, `regions`, `place`, `places`, `unowned`, `chunks`, `rows`, `space`, `room`: room, taken and given back.
//! - `funds`: what rows count for a quota.
//! - `rope`, `write`, `gather`, `read`, `balance`, `pending`: stripes, written and read.
//! - `examine`, `mend`: stripes of which something is missing or does not verify, found and written anew.
//! - `survey`, `audit`: what records of space say, beside what maps name.
//! - `append`: bytes behind what others append.
//! - `content`, `span`: what inode and spans say of a file's bytes; `file`, `reader`, `writer`, `overdue`, `under_way`, `cut`,
//!   `rewrite`: what is done with them.

mod append;
mod audit;
mod balance;
mod chunk;
mod chunks;
mod content;
mod cut;
mod examine;
mod file;
mod funds;
mod gather;
mod key;
mod label;
mod map;
mod member;
mod mend;
mod overdue;
mod pending;
mod place;
mod places;
mod read;
mod reader;
mod record;
mod regions;
mod rest;
mod rewrite;
mod room;
mod rope;
mod rows;
mod shape;
mod space;
mod span;
mod stripe;
mod survey;
mod under_way;
mod unowned;
mod write;
mod writer;

pub use audit::{Audit, Auditor, ChunkAudit};
pub use balance::Way;
pub use chunk::Region;
pub(crate) use chunk::{Marks, Run, UNOWNED_MAX};
pub(crate) use chunks::Chunks;
pub use content::{Content, EXTENTS_BYTES_MAX, INLINE_BYTES_MAX, Inode, Spans, State};
pub use file::{Contents, Figures};
pub(crate) use funds::counted;
pub use funds::{Charge, Funds, Hold, Payer};
pub use key::FsId;
pub use label::{Label, LabelError, REGION_BYTES_MAX, REGION_BYTES_MIN};
pub use map::{Extent, FILE_BYTES_MAX, MAP_BYTES_MAX, Map, Moved, Piece, SPAN_BYTES};
pub use member::{Layout, Learn, Member, MemberSpec, Members};
pub use mend::{Fault, Outcome, Question, Seen};
pub(crate) use pending::Few;
pub use rope::Rope;
pub use rows::ChunkPlace;
pub(crate) use rows::may_clear;
pub use shape::{COLUMN_ROWS_MAX, Cut, PARITY_COLUMNS_MAX, ROW_BYTES, SUMS_MAX, Shape};
pub(crate) use space::RENEWED_WITHIN;
pub use space::{Renew, Space};
pub(crate) use span::SpanId;
pub use stripe::{Lain, REGION_ROWS_MAX, Stripe, StripeId, SumSeed};
pub(crate) use survey::{Survey, Wrong, overlap};
