//! What callers give and get: values with their versions, and what is to become of a key.

use crate::table::Found;
use crate::types::Version;
use crate::value::Value;

/// What a put says of a value beside its bytes. By default it has no expiry and the tag 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PutOptions {
    /// When the key ends by itself, in Unix milliseconds, by the clock of whoever looks; `None`: never.
    pub expiry: Option<u64>,
    /// What the value is, for whoever stores it: kept, never looked at. 0: plain bytes.
    pub tag: u32,
}

impl PutOptions {
    /// As an entry holds it, where 0 is "never".
    pub(super) fn stored_expiry(&self) -> u64 {
        self.expiry.map_or(0, |expiry| expiry.max(1))
    }
}

/// A value as it was found.
#[derive(Clone, Debug)]
pub struct Versioned {
    /// The value.
    pub value: Value,
    /// Which change of the key it came by.
    pub version: Version,
    /// When it ends, in Unix milliseconds; `None`: never.
    pub expiry: Option<u64>,
    /// What it is, as it was put.
    pub tag: u32,
}

/// What a key holds, without its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shown {
    /// Bytes of the value.
    pub length: usize,
    /// When it ends, in Unix milliseconds; `None`: never.
    pub expiry: Option<u64>,
    /// What it is, as it was put.
    pub tag: u32,
}

impl Shown {
    pub(super) fn new(found: &Found) -> Option<Shown> {
        let length = found.content.value_len()?;
        Some(Shown { length, expiry: (found.expiry != 0).then_some(found.expiry), tag: found.tag })
    }
}

impl Versioned {
    pub(super) fn new(found: &Found, value: Value) -> Versioned {
        Versioned {
            value,
            version: Version::new(found.timestamp, &found.ops),
            expiry: (found.expiry != 0).then_some(found.expiry),
            tag: found.tag,
        }
    }
}

/// What an update makes of a key. `R` is what the update returns if this is what took effect.
#[derive(Clone, Debug)]
pub enum Change<R> {
    /// The key stays as it is.
    Keep(R),
    /// The key gets this value.
    Put {
        /// The value.
        value: Value,
        /// Its expiry and tag.
        options: PutOptions,
        /// What to return.
        result: R,
    },
    /// The key goes.
    Delete(R),
}

impl<R> Change<R> {
    /// The same change with another result.
    pub(super) fn map<S>(self, other: impl FnOnce(R) -> S) -> Change<S> {
        match self {
            Change::Keep(result) => Change::Keep(other(result)),
            Change::Put { value, options, result } => Change::Put { value, options, result: other(result) },
            Change::Delete(result) => Change::Delete(other(result)),
        }
    }
}

/// What a compare-and-set came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CasOutcome {
    /// The value is stored, as this version.
    Stored(Version),
    /// Nothing is: the key holds another version, or (`None`) nothing.
    Changed(Option<Version>),
}

/// What an increment came to; all but [`Increment::Value`] leave the key as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Increment {
    /// The sum, which is stored.
    Value(i64),
    /// There is no such key, and nothing was given to begin with.
    Missing,
    /// The value is no decimal number of 64 bits, as it is usually written.
    NotANumber,
    /// The sum does not fit 64 bits.
    Overflow,
}
