//! Keys of the catalogue as keys of etcd: all of ours begin with the namespace.

use super::wire::{KeyValue, ResponseHeader};
use crate::catalogue::types::{Entry, Key, LeaseId, Prefix, Revision, Value, successor};

/// What etcd takes for "up to the end".
const TO_THE_END: &[u8] = &[0];

/// The namespace.
#[derive(Clone)]
pub struct Names(pub Vec<u8>);

impl Names {
    pub fn full(&self, key: &Key) -> Vec<u8> {
        self.join(key.as_bytes())
    }

    fn join(&self, bytes: &[u8]) -> Vec<u8> {
        [&self.0, bytes].concat()
    }

    /// The first key of a range and the one behind its end.
    pub fn bounds(&self, prefix: &Prefix, after: Option<&Key>) -> (Vec<u8>, Vec<u8>) {
        let (start, end) = prefix.bounds();
        // The least key above it.
        let start = after.map_or(start, |after| [after.as_bytes(), &[0]].concat());
        let end = match end {
            Some(end) => self.join(&end),
            None => successor(&self.0).unwrap_or_else(|| TO_THE_END.to_vec()),
        };
        (self.join(&start), end)
    }

    pub fn key(&self, full: &[u8]) -> Option<Key> {
        full.strip_prefix(&self.0[..]).filter(|key| !key.is_empty()).map(Key::stored)
    }

    pub fn entry(&self, stored: &KeyValue) -> Option<Entry> {
        let lease = (stored.lease != 0).then_some(LeaseId(stored.lease as u64));
        let modified = Revision(stored.mod_revision as u64);
        Some(Entry { key: self.key(&stored.key)?, value: Value::stored(&stored.value), modified, lease })
    }
}

/// As of when an answer is.
pub fn revision(header: Option<ResponseHeader>) -> Revision {
    Revision(header.map_or(0, |header| header.revision as u64))
}
