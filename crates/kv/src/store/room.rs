//! What operations do where members are full.
//!
//! A put whose value fits no page places it while the pages are read, a conditional operation once it has been promised. Nothing
//! is stored anywhere before a majority has placed it: what finds no room has then not happened, and leaves nothing newer on a
//! minority for gets to deal with.
//!
//! A get whose replicas differ stores the newest first. Where members refuse that for want of space, and too many do for a
//! majority, the get answers without it if that is right by what the members hold as it is (`kv/model` searched these rules):
//! - a majority holds exactly the same: as ever;
//! - all homes have answered: what the majority-th newest shows is held, or something newer, by a majority, and nothing newer
//!   has been acknowledged. Among three homes or more it must be a put's: a conditional operation's may be an attempt that
//!   nobody chose, which others have decided past. (Of two homes both are needed for anything: nobody decides past one.)
//! - while the pool changes, a majority of the old homes holds exactly the same on pages that are still open to the epoch
//!   before: migration reads them again once they are sealed, and carries this, or something newer. What is sealed may have
//!   been read for that already.

use std::rc::Rc;
use std::time::Duration;

use engine::time;

use super::Inner;
use super::error::StoreError;
use super::operation::{Course, EARLY_BYTES_MIN};
use super::part::{Asked, Room, Slot};
use super::quorum::Sets;
use super::round::Round;
use super::topology::Topology;
use super::value::Versioned;
use crate::table::{Found, Record};
use crate::types::{Ballot, Key, OpId, Timestamp};
use crate::value::Value;

/// How long members that do not answer are waited for. Guessed: a slow disk's worst; the others have answered.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Looks at values that are replaced each time before they can be fetched. Guessed.
const LOOKS_MAX: usize = 5;

/// What a get answers without a write-back, for which members are too `full`.
pub(super) async fn get_as_it_is(
    inner: &Rc<Inner>,
    pool: &Rc<Topology>,
    key: &Key,
    course: &Course,
    full: StoreError,
) -> Result<Option<Versioned>, StoreError> {
    for _ in 0..LOOKS_MAX {
        let round = course.begin(inner, pool, key);
        let judge = || match round.map_changed() {
            Some(changed) => Some(Err(changed)),
            None => round.readable_as_it_is().map(Ok).or_else(|| round.is_answered().then(|| Err(full.clone()))),
        };
        let readable = time::timeout(WAIT_MAX, round.until(judge)).await;
        let readable = readable.unwrap_or_else(|_elapsed| Err(full.clone()));
        let found = round.found(&readable.inspect_err(|_| round.let_go())?);
        let shown = found.first().map_or(Found::NOTHING, |(_, found)| found.clone());
        if shown.is_expired(inner.unix_millis()) {
            // To say that it has ended takes a delete.
            return Err(full);
        }
        if let Ok(held) = course.fetch(&round, found).await {
            return Ok(held.value.map(|value| Versioned::new(&shown, value)));
        }
    }
    Err(full)
}

fn is_placed(slot: &Slot) -> bool {
    slot.room == Room::Placed
}

fn is_full(slot: &Slot) -> bool {
    matches!(slot.room, Room::Full(_))
}

impl Round {
    /// Has the value of an entry to come placed, as that of a put is, if it fits no page.
    pub(super) async fn place(&self, record: &Record) -> Result<(), StoreError> {
        match record.value.as_ref().filter(|value| value.len() >= EARLY_BYTES_MIN) {
            Some(value) => self.place_on_majority(record.timestamp.op, value.clone()).await,
            None => Ok(()),
        }
    }

    /// Waits until a majority has placed the value of a put to come, if it fits no page, which it does while it is read. Where
    /// nobody is full who has failed is asked again with the put itself.
    pub(super) async fn has_room(&self) -> Result<(), StoreError> {
        let Some((op, value)) = &self.shared.early else { return Ok(()) };
        let told = || {
            let all_told = || self.shared.slots.borrow().iter().all(|slot| slot.room != Room::Asked);
            (self.shared.is_met(is_placed) || self.is_roomless() || all_told()).then_some(())
        };
        self.until(told).await;
        let any_full = self.shared.slots.borrow().iter().any(is_full);
        if self.shared.is_met(is_placed) || !any_full {
            return Ok(());
        }
        if self.is_roomless() {
            self.let_go();
            return Err(self.no_room());
        }
        self.place_on_majority(*op, value.clone()).await
    }

    /// Has a value placed, until a majority has, or it is clear that none will. Who fails for now is asked again: with others full
    /// it may be the one that is missing.
    async fn place_on_majority(&self, op: OpId, value: Value) -> Result<(), StoreError> {
        self.turn_to(Asked::Place(op, value));
        let judge = || match self.shared.is_met(is_placed) {
            true => Some(Ok(())),
            false => self.is_roomless().then(|| Err(self.no_room())),
        };
        let result = self.until(judge).await;
        if result.is_err() {
            self.let_go();
        }
        result
    }

    /// Whether no majority can place the value any more.
    fn is_roomless(&self) -> bool {
        let patience = self.patience();
        !self.shared.is_met(|slot| is_placed(slot) || (!is_full(slot) && slot.may_yet(patience)))
    }

    fn no_room(&self) -> StoreError {
        let slots = self.shared.slots.borrow();
        let reason = |slot: &Slot| match &slot.room {
            Room::Full(error) => Some(format!("member {}: {error}", slot.member.index)),
            _ => None,
        };
        let reasons = slots.iter().filter_map(reason).collect::<Vec<_>>().join("; ");
        if !reasons.is_empty() {
            return StoreError::OutOfSpace { outcome_unknown: false, reasons };
        }
        drop(slots);
        self.unavailable(false)
    }

    /// Whether all members have answered the read, or will not.
    fn is_answered(&self) -> bool {
        let patience = self.patience();
        self.shared.slots.borrow().iter().all(|slot| slot.found.is_some() || !slot.may_yet(patience))
    }

    /// The slots that show what can be answered although no majority holds it exactly.
    fn readable_as_it_is(&self) -> Option<Vec<usize>> {
        let (slots, quorum) = (self.shared.slots.borrow(), &self.shared.quorum);
        let time = |slot: &Slot| slot.found.as_ref().map(|found| self.timestamp_of(found));
        let showing = |timestamp: Timestamp| {
            let shows = move |(index, slot): (usize, &Slot)| (time(slot) == Some(timestamp)).then_some(index);
            slots.iter().enumerate().filter_map(shows).collect::<Vec<usize>>()
        };
        let mut times: Vec<Timestamp> = slots.iter().filter_map(time).collect();
        let agreed = |&timestamp: &Timestamp| {
            let shown = showing(timestamp);
            let open = shown.iter().filter(|&&index| slots[index].open).map(|&index| slots[index].sets);
            let joint = quorum.sets().meets(Sets::OLD);
            quorum.is_met(shown.iter().map(|&index| slots[index].sets)) || (joint && quorum.is_majority_of_old(open))
        };
        if let Some(&timestamp) = times.iter().find(|time| agreed(time)) {
            return Some(showing(timestamp));
        }
        let one_set = slots.iter().all(|slot| slot.sets.are(quorum.sets()));
        if !one_set || times.len() < slots.len() {
            return None;
        }
        times.sort_unstable_by(|one, other| other.cmp(one));
        let timestamp = *times.get(quorum.majority_of_new() - 1)?;
        (slots.len() <= 2 || timestamp.ballot == Ballot::NONE).then(|| showing(timestamp))
    }

    /// A deleted key that may be forgotten is as one that was never written.
    fn timestamp_of(&self, found: &Found) -> Timestamp {
        if found.is_forgotten(self.shared.forgets) { Timestamp::ZERO } else { found.timestamp }
    }
}
