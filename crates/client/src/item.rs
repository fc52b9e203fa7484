//! What a client gives and takes: values with their versions.

use std::time::Duration;

use kv::store::PutOptions;
use kv::types::Version;

/// A value as it was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Versioned {
    /// The value.
    pub value: Vec<u8>,
    /// Which change of the key it came by.
    pub version: Version,
    /// When it ends, in Unix milliseconds; `None`: never.
    pub expiry: Option<u64>,
    /// What it is, as it was put; 0: plain bytes.
    pub tag: u32,
}

impl From<kv::store::Versioned> for Versioned {
    fn from(found: kv::store::Versioned) -> Versioned {
        let kv::store::Versioned { value, version, expiry, tag } = found;
        Versioned { value: value.to_vec(), version, expiry, tag }
    }
}

/// What [`Client::update`](crate::Client::update) makes of a key. `R` is what the update returns if this is what took effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change<R> {
    /// The key stays as it is.
    Keep(R),
    /// The key gets this value.
    Put {
        /// The value.
        value: Vec<u8>,
        /// Its expiry and tag.
        options: PutOptions,
        /// What to return.
        result: R,
    },
    /// The key goes.
    Delete(R),
}

impl<R> Change<R> {
    /// As the store wants it; `None` is for an update that could not decide.
    pub(crate) fn into_store(self) -> kv::store::Change<Option<R>> {
        match self {
            Change::Keep(result) => kv::store::Change::Keep(Some(result)),
            Change::Put { value, options, result } => {
                kv::store::Change::Put { value: kv::Value::copy_from(&value), options, result: Some(result) }
            }
            Change::Delete(result) => kv::store::Change::Delete(Some(result)),
        }
    }
}

/// The expiry of what shall live for `time` from now by this machine's clock, for [`PutOptions::expiry`].
pub fn expiry_in(time: Duration) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // A clock before 1970 is as wrong as can be; the expiry is then long past.
    let end = now.unwrap_or_default().saturating_add(time);
    u64::try_from(end.as_millis()).unwrap_or(u64::MAX)
}
