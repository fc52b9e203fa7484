//! What stands on the holders of a simulated volume, as the mirror that has it attached writes it there.

use std::collections::{BTreeMap, BTreeSet};

use control::provision::{Done, DriveError, Epoch, HolderKind, Moment, Progress, Replacement, Restored, Stopped, Work};
use uuid::Uuid;

use super::drives::GIB;

/// What stands on the holders of a volume.
#[derive(Clone, Default, Debug)]
pub struct Mirror {
    pub bytes: u64,
    pub moments: Vec<Moment>,
    /// Attachments that there were.
    pub round: u64,
    /// The namespace that each slot is, as the mirror has it.
    pub has: BTreeMap<usize, Uuid>,
    /// Those that were it before.
    pub had: BTreeMap<Uuid, usize>,
    /// Slots that are not in sync: how often it is asked for still until they are.
    pub behind: BTreeMap<usize, u32>,
    /// Slots whose holders whoever has the volume attached does not reach.
    pub away: BTreeSet<usize>,
    /// The namespaces that were reached, by slot; empty: all that it has.
    pub reached: BTreeMap<usize, Uuid>,
    /// A new holder takes a hundred times as long.
    pub slow: bool,
    /// The slots that take snapshots; none: all.
    pub takes: Option<u8>,
    /// What is written to it, and what was when each of its snapshots was taken, by the attempt.
    pub written: u32,
    pub kept: BTreeMap<u32, u32>,
    /// The bytes up to which it is put back to a snapshot, while it is.
    pub back: Option<(Moment, u64)>,
    /// Slots whose holders are given up for good.
    pub gone: BTreeSet<usize>,
    /// Its drives have no room left for what is put back.
    pub is_full: bool,
}

/// By which record it is put back.
const EPOCH: Epoch = Epoch { round: 3, host: 7 };

/// How often it is asked for until a new holder is in sync.
const FILLED_AFTER: u32 = 3;

impl Mirror {
    /// Does what whoever has the volume attached is asked.
    pub fn work(&mut self, work: &Work) -> Done {
        let (mut taken, mut progress, mut restored, mut room) = (None, None, None, None);
        match work {
            Work::Look => {}
            Work::Grow { bytes } => self.bytes = self.bytes.max(*bytes),
            Work::Take { before } => {
                let found = self.moments.iter().find(|moment| !before.iter().any(|known| known.is(moment)));
                taken = Some(found.copied().unwrap_or_else(|| {
                    assert_eq!(self.back, None, "a snapshot of a part");
                    let attempt = self.kept.len() as u32;
                    self.kept.insert(attempt, self.written);
                    Moment { round: self.round, host: 7, attempt, slots: self.takes.unwrap_or(0b111) }
                }));
                self.moments.extend(taken.filter(|_| found.is_none()));
            }
            Work::Forget { moment } => self.moments.retain(|found| !found.is(moment)),
            Work::Replace(replacement) => progress = Some(self.replace(replacement)),
            Work::Room { moment } => room = Some(if self.is_as(moment) { 0 } else { self.bytes }),
            Work::Restore { moment, at, by } => restored = Some(self.restore(moment, *at, *by)),
        }
        Done { bytes: self.bytes, snapshots: self.moments.clone(), taken, progress, restored, room }
    }

    fn is_as(&self, moment: &Moment) -> bool {
        self.back.is_none() && self.written == self.kept[&moment.attempt]
    }

    /// Slots that have a copy of the snapshot, and are not given up.
    fn copies(&self, moment: &Moment) -> Vec<usize> {
        let slots = self.moments.iter().find(|found| found.is(moment)).map_or(0, |found| found.slots);
        (0..3).filter(|slot| slots >> slot & 1 == 1 && !self.gone.contains(slot)).collect()
    }

    /// Whether a snapshot that is needed for the work is reached, or what is to be said of it, where the holders of these slots are
    /// given up for good.
    pub fn reads(&mut self, work: &Work, gone: impl Iterator<Item = usize>) -> Result<(), DriveError> {
        self.gone = gone.collect();
        let (Work::Room { moment } | Work::Restore { moment, .. }) = work else { return Ok(()) };
        let copies = self.copies(moment);
        let (is_reached, is_begun) = (copies.iter().any(|slot| self.reached.contains_key(slot)), self.back.is_some());
        match (is_reached, is_begun) {
            (true, _) => Ok(()),
            (false, false) => Err(DriveError::Refused("the snapshot can't be read".into())),
            (false, true) if copies.is_empty() || matches!(work, Work::Room { .. }) => Ok(()),
            (false, true) => Err(DriveError::Unknown("no copy of the snapshot is reached".into())),
        }
    }

    /// Two GiB at a time.
    fn restore(&mut self, moment: &Moment, at: u64, by: Option<Epoch>) -> Restored {
        assert!(at == 0 || by == Some(EPOCH), "it is said by which record all before is done");
        let stopped = |stopped| Restored { at, left: self.bytes - at, by: Some(EPOCH), stopped: Some(stopped) };
        if self.copies(moment).is_empty() {
            return stopped(Stopped::Lost);
        }
        if self.is_full {
            let stopped = stopped(Stopped::Full);
            self.back = self.back.or(Some((*moment, 0)));
            return stopped;
        }
        let done = self.back.filter(|(to, _)| to.is(moment)).map_or(0, |(_, done)| done);
        let is_over = self.is_as(moment);
        assert!(at <= done || is_over, "bytes were left out");
        let upto = (at + 2 * GIB).min(self.bytes);
        self.back = Some((*moment, done.max(upto)));
        if upto == self.bytes {
            (self.back, self.written) = (None, self.kept[&moment.attempt]);
        }
        Restored { at: upto, left: self.bytes - upto, by: Some(EPOCH), stopped: None }
    }

    /// Whether the holder that it has in a slot is there.
    fn holds(&self, slot: usize) -> bool {
        let is_it = |uid: &Uuid| self.has.get(&slot).is_none_or(|has| has == uid);
        !self.away.contains(&slot) && (self.reached.is_empty() || self.reached.get(&slot).is_some_and(is_it))
    }

    /// Whether a majority of its holders is.
    pub fn is_attachable(&self, holders: usize) -> bool {
        !self.reached.is_empty() && 2 * (0..holders).filter(|slot| self.holds(*slot)).count() > holders
    }

    fn replace(&mut self, replacement: &Replacement) -> Progress {
        let (slot, life) = (replacement.slot, replacement.life);
        let is_replica = replacement.kind == HolderKind::Replica;
        if self.has.get(&slot) != Some(&life) && replacement.go {
            let others = self.behind.keys().any(|behind| *behind != slot);
            assert!(!is_replica || self.behind.contains_key(&slot) || !others, "the last replica in sync was given up");
            let there = (0..3).filter(|other| *other != slot && self.holds(*other)).count();
            assert!(there > 1, "a holder was given up that the majority needs");
            self.had.extend(self.has.insert(slot, life).map(|former| (former, slot)));
            self.moments.iter_mut().for_each(|moment| moment.slots &= !(1 << slot));
            self.moments.retain(|moment| moment.slots != 0);
            if is_replica {
                self.behind.insert(slot, if self.slow { 100 * FILLED_AFTER } else { FILLED_AFTER });
            }
        }
        if self.has.get(&slot) == Some(&life)
            && let Some(times) = self.behind.get_mut(&slot)
        {
            *times -= 1;
            if *times == 0 {
                self.behind.remove(&slot);
            }
        }
        let in_sync = (0..3).filter(|slot| !self.behind.contains_key(slot)).fold(0, |all, slot| all | 1 << slot);
        let holding = (0..3).filter(|slot| self.holds(*slot)).fold(0, |all, slot| all | 1 << slot);
        let left = self.behind.get(&slot).map_or(0, |times| u64::from(*times) * GIB);
        Progress { in_sync, holding, is_taken: self.has.get(&slot) == Some(&life), left }
    }
}
