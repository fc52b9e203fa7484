//! [`Backend`]: what the gateway needs of a store. The fake in the tests is a `BTreeMap`; the product's is [`crate::store::Store`].

use crate::value::Value;

/// An operation that did not work, as the peer is told.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{code} {sentence}")]
pub struct Failure {
    /// The reply's first word: `ERR`, [`Failure::OUT_OF_SPACE`] or [`Failure::UNAVAILABLE`].
    pub code: &'static str,
    /// What was wrong and what to do.
    pub sentence: String,
}

impl Failure {
    /// The code of a full pool: what Redis says when it takes no more.
    pub const OUT_OF_SPACE: &str = "OOM";
    /// The code of an operation that no majority answered.
    pub const UNAVAILABLE: &str = "UNAVAILABLE";

    /// A failure of this code.
    pub fn new(code: &'static str, sentence: impl std::fmt::Display) -> Failure {
        Failure { code, sentence: sentence.to_string() }
    }
}

/// One step of a scan.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ScanPage {
    /// Keys, in the store's own order.
    pub keys: Vec<Vec<u8>>,
    /// Where to go on; 0: the scan is complete.
    pub next: u64,
}

/// A string store. Futures are local to their thread.
#[allow(async_fn_in_trait)] // local futures by design: one reactor per thread
pub trait Backend: 'static {
    /// The value of `key`.
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, Failure>;

    /// Sets `key` to `value`.
    async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure>;

    /// Removes `key`; whether it was there.
    async fn delete(&self, key: &[u8]) -> Result<bool, Failure>;

    /// About `count` keys from `cursor` on (0: from the start). A key that is there throughout a scan appears at least once.
    async fn scan(&self, cursor: u64, count: usize) -> Result<ScanPage, Failure>;

    /// Lines for `INFO`, as name and value, about the pool behind.
    fn info(&self) -> Vec<(String, String)>;
}
