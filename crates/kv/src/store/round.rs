//! One round of an operation over a key's members: a task per member reads the home page, reports, waits for the decision,
//! and, if that is to store, stores. The operation goes on as soon as a majority has reported; the others follow in the
//! background, bounded per member (`member`).
//!
//! A member that fails for now is tried again as long as the operation is under way: a connection that comes back in time
//! shows as a slow operation, not as an error. After that it is marked for repair instead.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use engine::sync::Notify;

use super::error::StoreError;
use super::link::Link;
use super::member::{Member, MemberError, UnderWay};
use super::quorum::{Home, Quorum, Sets};
use super::topology::Topology;
use super::{Inner, count};
use crate::table::{Content, Found, Outcome, PageImage, Record};
use crate::types::{Key, Timestamp};

/// First pause before a failed member is tried again; doubles. Guessed: a few round trips.
const RETRY_FIRST: Duration = Duration::from_millis(1);
/// Longest pause.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(100);

/// What the tasks are to do next.
#[derive(Clone)]
enum Decision {
    Pending,
    Done,
    Store(Rc<Record>),
}

/// What is known of one member.
struct Slot<N: Link> {
    member: Rc<Member<N>>,
    /// The sets of homes it counts in.
    sets: Sets,
    found: Option<Found>,
    stored: Option<Outcome>,
    /// The last failure; a permanent one ends the member's part.
    failure: Option<MemberError>,
    /// A store was tried and failed in another way than for want of space: it may have happened, or may yet.
    in_doubt: bool,
    under_way: Option<Rc<UnderWay<N>>>,
}

/// A round under way. Dropping it ends the operation's interest; what was decided is still carried out.
pub(super) struct Round<N: Link> {
    shared: Rc<Shared<N>>,
}

struct Shared<N: Link> {
    store: Rc<Inner<N>>,
    quorum: Quorum,
    /// Of the map it goes by.
    epoch: u64,
    key: Key,
    slots: RefCell<Vec<Slot<N>>>,
    decision: RefCell<Decision>,
    decided: Notify,
    /// Wakes the operation: something was reported.
    reported: Notify,
    closed: Cell<bool>,
}

/// A member's part in a round, counted until it ends.
struct Part<N: Link> {
    shared: Rc<Shared<N>>,
    index: usize,
}

impl<N: Link> Drop for Part<N> {
    fn drop(&mut self) {
        let store = &self.shared.store;
        store.parts.set(store.parts.get() - 1);
        store.part_done.notify_all();
    }
}

/// What a majority of reads says.
pub(super) enum Majority {
    /// A majority shows the same timestamp, on these slots.
    Agreed(Vec<usize>),
    /// A majority answered, without one; the newest and who shows it.
    Split(Timestamp, Vec<usize>),
}

impl<N: Link> Round<N> {
    /// Asks all of the key's members.
    pub(super) fn start(store: &Rc<Inner<N>>, topology: &Rc<Topology<N>>, key: &Key) -> Round<N> {
        let homes = topology.homes(key);
        let slot = |home: &Home| Slot {
            member: topology.members[usize::from(home.member)].clone(),
            sets: home.sets,
            found: None,
            stored: None,
            failure: None,
            in_doubt: false,
            under_way: None,
        };
        let shared = Rc::new(Shared {
            store: store.clone(),
            key: key.clone(),
            epoch: topology.map.epoch,
            quorum: homes.quorum(),
            slots: RefCell::new(homes.iter().map(slot).collect()),
            decision: RefCell::new(Decision::Pending),
            decided: Notify::new(),
            reported: Notify::new(),
            closed: Cell::new(false),
        });
        for index in 0..homes.len() {
            store.parts.set(store.parts.get() + 1);
            let part = Part { shared: shared.clone(), index };
            engine::task::spawn(async move { part.shared.take_part(part.index).await }).detach();
        }
        Round { shared }
    }

    /// Waits until a majority has reported. Prefers a majority that agrees, if the replies at hand contain one.
    pub(super) async fn majority(&self) -> Result<Majority, StoreError> {
        loop {
            if let Some(changed) = self.map_changed() {
                return Err(changed);
            }
            if let Some(majority) = self.judge() {
                return Ok(majority);
            }
            if !self.shared.is_met(|slot| slot.found.is_some() || slot.may_yet()) {
                return Err(self.unavailable(false));
            }
            self.shared.reported.notified().await;
        }
    }

    /// The error of an operation that has met a seal before it had anything of its own stored.
    fn map_changed(&self) -> Option<StoreError> {
        let epoch = self.shared.sealed()?;
        Some(StoreError::MapChanged { epoch, known: self.shared.epoch })
    }

    /// Has what was found stored by all, and waits for a majority. It is nobody's own: refused by a seal it may be found
    /// again, or something newer, on the newer map.
    pub(super) async fn write_back(&self, record: Record) -> Result<(), StoreError> {
        self.store(record).await.map_err(|error| self.map_changed().unwrap_or(error))
    }

    fn judge(&self) -> Option<Majority> {
        if !self.shared.is_met(|slot| slot.found.is_some()) {
            return None;
        }
        let slots = self.shared.slots.borrow();
        let times: Vec<_> = slots.iter().map(|slot| slot.found.as_ref().map(|found| found.timestamp)).collect();
        let showing = |timestamp| -> Vec<usize> {
            let shows = |(index, time): (usize, &Option<Timestamp>)| (*time == Some(timestamp)).then_some(index);
            times.iter().enumerate().filter_map(shows).collect()
        };
        let is_met =
            |slots_showing: Vec<usize>| self.shared.quorum.is_met(slots_showing.iter().map(|&i| slots[i].sets));
        let agreed = times.iter().flatten().find(|&&time| is_met(showing(time)));
        Some(match agreed {
            Some(&timestamp) => Majority::Agreed(showing(timestamp)),
            None => {
                let newest = times.iter().flatten().max().copied().unwrap_or(Timestamp::ZERO);
                Majority::Split(newest, showing(newest))
            }
        })
    }

    /// What the members in `slots` hold.
    pub(super) fn found(&self, slots: &[usize]) -> Vec<(Rc<Member<N>>, Found)> {
        let all = self.shared.slots.borrow();
        let found = |&index: &usize| Some((all[index].member.clone(), all[index].found.clone()?));
        slots.iter().filter_map(found).collect()
    }

    /// The largest counter that was reported.
    pub(super) fn counter_max(&self) -> u64 {
        let slots = self.shared.slots.borrow();
        slots.iter().filter_map(|slot| slot.found.as_ref()).map(|found| found.timestamp.counter).max().unwrap_or(0)
    }

    /// Has `record` stored by all, and waits for a majority.
    pub(super) async fn store(&self, record: Record) -> Result<(), StoreError> {
        let shared = &self.shared;
        *shared.decision.borrow_mut() = Decision::Store(Rc::new(record));
        shared.decided.notify_all();
        loop {
            if shared.is_met(|slot| slot.stored.is_some()) {
                return Ok(());
            }
            if !shared.is_met(|slot| slot.stored.is_some() || slot.may_yet()) {
                return Err(self.store_failed());
            }
            shared.reported.notified().await;
        }
    }

    fn store_failed(&self) -> StoreError {
        let slots = self.shared.slots.borrow();
        let full = |slot: &Slot<N>| slot.failure.as_ref().is_some_and(MemberError::is_out_of_space);
        // A member that is full now may have been sent a store before whose fate is not known.
        let harmless = slots.iter().all(|slot| slot.stored.is_none() && full(slot) && !slot.in_doubt);
        if slots.iter().any(full) {
            return StoreError::OutOfSpace { outcome_unknown: !harmless, reasons: reasons(&slots) };
        }
        drop(slots);
        self.unavailable(true)
    }

    /// The error of an operation that has found no majority.
    pub(super) fn unavailable(&self, outcome_unknown: bool) -> StoreError {
        let slots = self.shared.slots.borrow();
        let did = |slot: &&Slot<N>| if outcome_unknown { slot.stored.is_some() } else { slot.found.is_some() };
        StoreError::Unavailable {
            answered: slots.iter().filter(did).count(),
            replicas: slots.len(),
            needed: self.shared.quorum.needed(),
            outcome_unknown,
            reasons: reasons(&slots),
        }
    }

    /// Whether storing was decided.
    pub(super) fn is_storing(&self) -> bool {
        matches!(*self.shared.decision.borrow(), Decision::Store(_))
    }
}

impl<N: Link> Drop for Round<N> {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.closed.set(true);
        if matches!(*shared.decision.borrow(), Decision::Pending) {
            drop(std::mem::replace(&mut *shared.decision.borrow_mut(), Decision::Done));
        }
        let bytes = shared.held_bytes();
        for slot in shared.slots.borrow_mut().iter_mut() {
            if let Some(under_way) = slot.under_way.take() {
                under_way.straggle(bytes);
            }
        }
        shared.decided.notify_all();
    }
}

fn reasons<N: Link>(slots: &[Slot<N>]) -> String {
    let reason = |slot: &Slot<N>| {
        let failure = slot.failure.as_ref().map_or("no answer in time".into(), ToString::to_string);
        (slot.stored.is_none()).then(|| format!("member {}: {failure}", slot.member.index))
    };
    slots.iter().filter_map(reason).collect::<Vec<_>>().join("; ")
}

impl<N: Link> Slot<N> {
    /// Whether it may still do what it has not done.
    fn may_yet(&self) -> bool {
        self.failure.as_ref().is_none_or(MemberError::is_transient)
    }
}

impl<N: Link> Shared<N> {
    /// The epoch of a seal that has refused a member's part.
    fn sealed(&self) -> Option<u64> {
        let slots = self.slots.borrow();
        slots.iter().filter_map(|slot| slot.failure.as_ref().and_then(MemberError::sealed)).max()
    }

    /// Whether those are enough.
    fn is_met(&self, which: impl Fn(&Slot<N>) -> bool) -> bool {
        self.quorum.is_met(self.slots.borrow().iter().filter(|slot| which(slot)).map(|slot| slot.sets))
    }

    fn report(&self, index: usize, change: impl FnOnce(&mut Slot<N>)) {
        change(&mut self.slots.borrow_mut()[index]);
        self.reported.notify_one();
    }

    /// One member's part.
    async fn take_part(&self, index: usize) {
        let member = self.slots.borrow()[index].member.clone();
        let (mut tries, mut begun) = (0, None);
        let image = self.read_part(&member, index, &mut tries, &mut begun).await;
        while self.pending() {
            self.decided.notified().await;
        }
        let Decision::Store(record) = self.decision.borrow().clone() else { return };
        let held = self.slots.borrow()[index].found.as_ref().map(|found| found.timestamp);
        if held.is_some_and(|held| held >= record.timestamp) {
            // What `store if newer` would find.
            self.report(index, |slot| slot.stored = Some(Outcome::Superseded));
            return;
        }
        self.store_part(&member, index, &record, image, &mut tries, &mut begun).await;
    }

    /// Reads the member's replica, until it has or nobody asks any more. Returns the page's image.
    async fn read_part(
        &self,
        member: &Rc<Member<N>>,
        index: usize,
        tries: &mut u32,
        begun: &mut Option<Rc<UnderWay<N>>>,
    ) -> Option<PageImage> {
        while self.pending() {
            let result = match self.begin(member, index, begun) {
                Ok(()) => member.read(&self.key).await,
                Err(error) => Err(error),
            };
            match result {
                Ok((page, found)) => {
                    self.report(index, |slot| {
                        slot.found = Some(found);
                        slot.failure = None;
                    });
                    return Some(page);
                }
                Err(error) => {
                    let transient = error.is_transient();
                    self.report(index, |slot| slot.failure = Some(error));
                    if !transient {
                        return None;
                    }
                    self.pause(tries).await;
                }
            }
        }
        None
    }

    /// Stores the record on the member, until it has or must be left behind.
    async fn store_part(
        &self,
        member: &Rc<Member<N>>,
        index: usize,
        record: &Rc<Record>,
        mut image: Option<PageImage>,
        tries: &mut u32,
        begun: &mut Option<Rc<UnderWay<N>>>,
    ) {
        loop {
            let mut sent = false;
            let result = match self.begin(member, index, begun) {
                Ok(()) => {
                    sent = true;
                    member.store(&self.key, record, image.take(), None).await
                }
                Err(error) => Err(error),
            };
            match result {
                Ok(outcome) => {
                    self.report(index, |slot| {
                        slot.stored = Some(outcome);
                        slot.failure = None;
                    });
                    return;
                }
                Err(error) => {
                    let transient = error.is_transient();
                    self.report(index, |slot| {
                        slot.in_doubt |= sent && !error.is_out_of_space();
                        slot.failure = Some(error);
                    });
                    if !transient || self.closed.get() {
                        self.store.mark_stale(member);
                        return;
                    }
                    self.pause(tries).await;
                }
            }
        }
    }

    /// Counts this part as under way on the member, once it can be.
    fn begin(
        &self,
        member: &Rc<Member<N>>,
        index: usize,
        begun: &mut Option<Rc<UnderWay<N>>>,
    ) -> Result<(), MemberError> {
        if begun.is_none() {
            let under_way = match member.begin() {
                Ok(under_way) => Rc::new(under_way),
                Err(error) => {
                    if error == MemberError::Busy {
                        count(&self.store.stats.skips);
                    }
                    return Err(error);
                }
            };
            if self.closed.get() {
                under_way.straggle(self.held_bytes());
            } else {
                self.slots.borrow_mut()[index].under_way = Some(Rc::clone(&under_way));
            }
            *begun = Some(under_way);
        }
        Ok(())
    }

    /// Bytes that a part holds on to.
    fn held_bytes(&self) -> usize {
        match &*self.decision.borrow() {
            Decision::Store(record) => record.value.as_ref().map_or(0, crate::value::Value::len),
            Decision::Pending | Decision::Done => 0,
        }
    }

    fn pending(&self) -> bool {
        matches!(*self.decision.borrow(), Decision::Pending)
    }

    /// Waits a little before the next try; not beyond the operation's end, nor a decision.
    async fn pause(&self, tries: &mut u32) {
        if self.closed.get() {
            return;
        }
        let pause = (RETRY_FIRST * (1 << (*tries).min(10))).min(RETRY_PAUSE_MAX);
        *tries += 1;
        // Either way the caller looks at what has changed.
        let _elapsed = engine::time::timeout(pause, self.decided.notified()).await;
    }
}

/// Whether a member's content is a value.
pub(super) fn is_value(content: &Content) -> bool {
    !matches!(content, Content::Nothing)
}
