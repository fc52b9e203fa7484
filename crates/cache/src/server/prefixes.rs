//! Statistics by prefix of keys (`stats detail`): what stands before the first `:`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::session::Event;

/// Prefixes that are told apart; the commands of others are not counted. Guessed: more than a person reads.
const PREFIXES_MAX: usize = 4096;
/// What ends a prefix, memcached's default (`-D`).
const DELIMITER: u8 = b':';

#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

/// Counts by prefix, while they are asked for.
#[derive(Default, Debug)]
pub(crate) struct Prefixes {
    on: AtomicBool,
    counts: Mutex<BTreeMap<Vec<u8>, Counts>>,
}

impl Prefixes {
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    pub(crate) fn set(&self, on: bool) {
        self.on.store(on, Relaxed);
    }

    pub(crate) fn clear(&self) {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn count(&self, key: &[u8], event: Event) {
        // A key without the delimiter has no prefix.
        let Some(end) = key.iter().position(|&byte| byte == DELIMITER) else { return };
        let mut all = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = all.len() < PREFIXES_MAX;
        let counts = match all.get_mut(&key[..end]) {
            Some(counts) => counts,
            None if has_room => all.entry(key[..end].to_vec()).or_default(),
            None => return,
        };
        match event {
            Event::Get(hit) => {
                counts.gets += 1;
                counts.hits += u64::from(hit);
            }
            Event::Set => counts.sets += 1,
            Event::Delete(_) => counts.deletes += 1,
            _ => {}
        }
    }

    /// Lines as memcached has them.
    pub(crate) fn dump(&self) -> String {
        let mut text = String::new();
        for (prefix, counts) in &*self.counts.lock().unwrap_or_else(PoisonError::into_inner) {
            let prefix = String::from_utf8_lossy(prefix);
            let Counts { gets, hits, sets, deletes } = counts;
            let written = write!(text, "PREFIX {prefix} get {gets} hit {hits} set {sets} del {deletes}\r\n");
            written.expect("invariant: a string takes all that is written to it");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_before_the_first_colon_is_counted() {
        let prefixes = Prefixes::default();
        for (key, event) in [
            (&b"user:1"[..], Event::Get(true)),
            (b"user:1:2", Event::Get(false)),
            (b"user:3", Event::Set),
            (b"none", Event::Set),
            (b"a:b", Event::Delete(false)),
        ] {
            prefixes.count(key, event);
        }
        assert_eq!(prefixes.dump(), "PREFIX a get 0 hit 0 set 0 del 1\r\nPREFIX user get 2 hit 1 set 1 del 0\r\n");
        for number in 0..2 * PREFIXES_MAX {
            prefixes.count(format!("{number}:").as_bytes(), Event::Set);
        }
        assert_eq!(prefixes.dump().lines().count(), PREFIXES_MAX);
        prefixes.clear();
        assert_eq!(prefixes.dump(), "");
    }
}
