//! What a client gives and takes: values with their versions.

use std::time::Duration;

use kv::types::Version;

/// A value as it was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Versioned {
    /// The value.
    pub value: Vec<u8>,
    /// Which change of the key it came by.
    pub version: Version,
    /// Its expiry as it was put, in Unix milliseconds; `None`: it has none. Nothing ends by it yet.
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

/// The expiry that is `time` from now by this machine's clock, for [`kv::store::PutOptions::expiry`]. It is kept and given
/// back; nothing ends by it yet.
pub fn expiry_in(time: Duration) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // A clock before 1970 is as wrong as can be; the expiry is then long past.
    let end = now.unwrap_or_default().saturating_add(time);
    u64::try_from(end.as_millis()).unwrap_or(u64::MAX)
}
