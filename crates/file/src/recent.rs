//! [`Recent`]: what records held when they were last met, for a moment: a first guess for whoever is to change one. **A guess is
//! never an answer**: it is what a compare-and-set names as seen, which fails where it was wrong, and costs a read then. But for
//! one question, which the kernel asks before each write: what a program may do. That is as old then as what the kernel goes by.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::time::{self, Instant};

use crate::meta::Seen;

/// How long a value is remembered. Derived: as long as the kernel takes names and attributes for true; and a change under an
/// unknown outcome is found again by whoever has seen no more than three changes less.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// Values of each of two ages. Chosen: some MiB, and what a copy of a tree touches in a second.
const KEPT_MAX: usize = 1024;

struct Kept {
    seen: Seen,
    at: Instant,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Recent {
    young: BTreeMap<Vec<u8>, Kept>,
    old: BTreeMap<Vec<u8>, Kept>,
}

impl Recent {
    /// A record held this, at `at` or later. What was met later than that stays.
    pub(crate) fn keep(&mut self, key: &[u8], seen: Seen, at: Instant) {
        if [&self.young, &self.old].iter().any(|kept| kept.get(key).is_some_and(|kept| kept.at > at)) {
            return;
        }
        if self.young.len() >= KEPT_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key.to_vec(), Kept { seen, at });
    }

    /// Nobody knows what it holds.
    pub(crate) fn forget(&mut self, key: &[u8]) {
        self.young.remove(key);
        self.old.remove(key);
    }

    /// What a record held a moment ago.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Seen> {
        let kept = self.young.get(key).or_else(|| self.old.get(key))?;
        (time::now().duration_since(kept.at) < KEPT_FOR).then_some(&kept.seen)
    }
}

#[cfg(test)]
mod tests {
    use engine::sim::{SimConfig, World};
    use kv::Timestamp;

    use super::*;
    use crate::meta::Version;

    fn seen(value: u8) -> Seen {
        Seen { value: vec![value], version: Version::new(Timestamp::ZERO, &[]) }
    }

    #[test]
    fn the_latest_is_remembered_for_a_second_and_no_more_than_are_held() {
        let ended = World::new(1, SimConfig::default()).run_until(async {
            let (mut recent, sent) = (Recent::default(), time::now());
            time::sleep(Duration::from_millis(10)).await;
            recent.keep(b"a", seen(2), time::now());
            recent.keep(b"a", seen(1), sent);
            assert_eq!(recent.get(b"a"), Some(&seen(2)), "an answer that was asked for earlier");
            time::sleep(KEPT_FOR).await;
            assert_eq!(recent.get(b"a"), None);
            for number in 0..5 * KEPT_MAX as u32 {
                recent.keep(&number.to_le_bytes(), seen(0), time::now());
            }
            assert!(recent.young.len() + recent.old.len() <= 2 * KEPT_MAX);
            let last = (5 * KEPT_MAX as u32 - 1).to_le_bytes();
            assert_eq!(recent.get(&last), Some(&seen(0)));
            recent.forget(&last);
            assert_eq!(recent.get(&last), None);
        });
        ended.expect("it ends");
    }
}
