//! [`Backend`]: what the gateway needs of a store. The fake in the tests is a `BTreeMap`; the product's is [`crate::store::Store`].

use std::rc::Rc;

use crate::store::Reserve;
use crate::value::Value;

use super::reply::Reply;

/// The tag of a plain string: what every other writer of the store uses too.
pub const TAG_STRING: u32 = 0;
/// The tag of a hash ([`super::hash`]).
pub const TAG_HASH: u32 = 1;

/// An operation that did not work, as the peer is told.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{code} {sentence}")]
pub struct Failure {
    /// The reply's first word: `ERR`, [`Failure::OUT_OF_SPACE`], [`Failure::TRY_AGAIN`] or [`Failure::UNKNOWN`].
    pub code: &'static str,
    /// What was wrong and what to do.
    pub sentence: String,
    /// Members were full, whatever the code.
    pub is_full: bool,
}

impl Failure {
    /// The code of a full pool: what Redis says when it takes no more.
    pub const OUT_OF_SPACE: &str = "OOM";
    /// The code of an operation that no majority answered and that changed nothing: it may be sent again.
    pub const TRY_AGAIN: &str = "TRYAGAIN";
    /// The code of a change of which nobody knows whether it has taken effect, or will: the caller reads before it goes on.
    pub const UNKNOWN: &str = "UNKNOWN";

    /// A failure of this code.
    pub fn new(code: &'static str, sentence: impl std::fmt::Display) -> Failure {
        Failure { code, sentence: sentence.to_string(), is_full: code == Failure::OUT_OF_SPACE }
    }
}

/// What is stored under a key.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// Its bytes.
    pub value: Value,
    /// When it ends, in Unix milliseconds.
    pub expiry: Option<u64>,
    /// What the bytes are: [`TAG_STRING`] or [`TAG_HASH`].
    pub tag: u32,
}

/// What is stored under a key, without its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// How many bytes.
    pub length: usize,
    /// See [`Entry::expiry`].
    pub expiry: Option<u64>,
    /// See [`Entry::tag`].
    pub tag: u32,
}

impl From<&Entry> for Look {
    fn from(entry: &Entry) -> Look {
        Look { length: entry.value.len(), expiry: entry.expiry, tag: entry.tag }
    }
}

/// Who is asked for room before a value is read; nobody, where the caller holds few.
pub type Room = Option<Rc<dyn Reserve>>;

/// What becomes of a key, and what the peer is told if it does.
#[derive(Clone, Debug)]
pub enum Change {
    /// Nothing changes.
    Keep(Reply),
    /// The entry takes the place of what was there.
    Put(Entry, Reply),
    /// The key goes.
    Delete(Reply),
}

/// A key that a scan has met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanKey {
    /// The key.
    pub key: Vec<u8>,
    /// The tag of what it holds.
    pub tag: u32,
}

/// One step of a scan.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ScanPage {
    /// Keys, in the store's own order.
    pub keys: Vec<ScanKey>,
    /// Where to go on; 0: the scan is complete.
    pub next: u64,
}

/// A store. Futures are local to their thread. An entry whose time is over is not there, for whoever asks.
///
/// Nothing here has a default: in [`super::Watched`] it would be in the place of what the store that is watched does.
#[allow(async_fn_in_trait)] // local futures by design: one reactor per thread
pub trait Backend: 'static {
    /// What is under `key`.
    async fn entry(&self, key: &[u8], room: Room) -> Result<Option<Entry>, Failure>;

    /// The same without its bytes, which cost nothing then.
    async fn look(&self, key: &[u8]) -> Result<Option<Look>, Failure>;

    /// Puts `entry` under `key`, whatever was there.
    async fn put_entry(&self, key: &[u8], entry: Entry) -> Result<(), Failure>;

    /// Removes `key`, whatever was there. Whether there was something: of two that remove it at once both may say so.
    async fn delete(&self, key: &[u8]) -> Result<bool, Failure>;

    /// Changes `key` at once by what `decide` says of what is there. `decide` may run several times; the reply is that of
    /// the run that counted. `room` is asked before each of them.
    async fn update(
        &self,
        key: &[u8],
        room: Room,
        decide: impl FnMut(Option<&Entry>) -> Change,
    ) -> Result<Reply, Failure>;

    /// Puts each of these, each on its own, in their order; no key may stand twice.
    async fn put_entries(&self, puts: Vec<(&[u8], Entry)>) -> Vec<Result<(), Failure>>;

    /// The bytes under `key`, whatever they are.
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, Failure>;

    /// Sets `key` to a string that lives for ever.
    async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure>;

    /// About `count` keys from `cursor` on (0: from the start). A key that is there throughout a scan appears at least once.
    async fn scan(&self, cursor: u64, count: usize) -> Result<ScanPage, Failure>;

    /// Where a scan begins that is to meet some key by chance.
    fn random_cursor(&self) -> u64;

    /// About how many keys there are: an estimate, as good as is to be had cheaply.
    async fn estimate_keys(&self) -> Result<u64, Failure>;

    /// How many copies of a change are stable, beside the first, when it is acknowledged.
    fn further_copies(&self) -> u64;

    /// Lines for `INFO`, as name and value, about the pool behind.
    fn info(&self) -> Vec<(String, String)>;
}
