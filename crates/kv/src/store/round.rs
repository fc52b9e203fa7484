//! One round of an operation over a key's members: a task per member reads the home page, reports, waits for what is asked
//! next, asks it, and so on. The operation goes on as soon as a majority has answered; the others follow in the background,
//! bounded per member (`member`).
//!
//! A member that fails for now is tried again as long as the operation is under way: a connection that comes back in time
//! shows as a slow operation, not as an error. After that it is marked for repair instead.
//!
//! A member answers in turn: what it was asked first may land after the operation has gone on to the next request, which it
//! then gets, too. Only answers to the latest request count.

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
use crate::table::{Content, Found, Outcome, PageImage, Request};
use crate::types::{Ballot, Key, Timestamp};

/// First pause before a failed member is tried again; doubles. Guessed: a few round trips.
const RETRY_FIRST: Duration = Duration::from_millis(1);
/// Longest pause.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(100);

/// What is known of one member.
struct Slot<N: Link> {
    member: Rc<Member<N>>,
    /// The sets of homes it counts in.
    sets: Sets,
    /// What it holds, by its answer to the read or the latest prepare.
    found: Option<Found>,
    /// Its answer to the latest request, which no read is.
    outcome: Option<Outcome>,
    /// The last failure; a permanent one ends the member's part.
    failure: Option<MemberError>,
    /// The latest request was sent and failed in another way than for want of space: it may have happened, or may yet.
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
    /// What is asked of the members, and the how-many-th request it is; before the first they are read.
    request: RefCell<Option<Rc<Request>>>,
    turn: Cell<u32>,
    asked: Notify,
    /// Wakes the operation: something was reported.
    reported: Notify,
    closed: Cell<bool>,
}

/// A member's part in a round, counted until it ends.
struct Part<N: Link> {
    shared: Rc<Shared<N>>,
    index: usize,
    member: Rc<Member<N>>,
    /// The home page as the member last showed it, and what it says of the key.
    image: Option<PageImage>,
    held: Option<Timestamp>,
    tries: u32,
    begun: Option<Rc<UnderWay<N>>>,
}

impl<N: Link> Drop for Part<N> {
    fn drop(&mut self) {
        let store = &self.shared.store;
        store.parts.set(store.parts.get() - 1);
        store.part_done.notify_all();
    }
}

/// What a majority of reads, or of promises, says.
pub(super) enum Majority {
    /// A majority shows the same timestamp, on these slots.
    Agreed(Vec<usize>),
    /// A majority answered, without one; these show the newest.
    Split(Vec<usize>),
}

impl Majority {
    /// The slots that show the newest.
    pub(super) fn slots(&self) -> &[usize] {
        match self {
            Majority::Agreed(slots) | Majority::Split(slots) => slots,
        }
    }
}

/// What the members said to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// A majority has done it.
    Done,
    /// A member has promised this higher ballot.
    Refused(Ballot),
}

impl<N: Link> Round<N> {
    /// Asks all of the key's members.
    pub(super) fn start(store: &Rc<Inner<N>>, topology: &Rc<Topology<N>>, key: &Key) -> Round<N> {
        let homes = topology.homes(key);
        let slot = |home: &Home| Slot {
            member: topology.members[usize::from(home.member)].clone(),
            sets: home.sets,
            found: None,
            outcome: None,
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
            request: RefCell::default(),
            turn: Cell::new(0),
            asked: Notify::new(),
            reported: Notify::new(),
            closed: Cell::new(false),
        });
        for (index, home) in homes.iter().enumerate() {
            store.parts.set(store.parts.get() + 1);
            let member = topology.members[usize::from(home.member)].clone();
            let (image, held, begun) = (None, None, None);
            let part = Part { shared: shared.clone(), index, member, image, held, tries: 0, begun };
            engine::task::spawn(part.take()).detach();
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
    pub(super) fn map_changed(&self) -> Option<StoreError> {
        let epoch = self.shared.sealed()?;
        Some(StoreError::MapChanged { epoch, known: self.shared.epoch })
    }

    /// What the members that have answered say, if they are a majority.
    pub(super) fn judge(&self) -> Option<Majority> {
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
                Majority::Split(showing(newest))
            }
        })
    }

    /// What the members say that have promised `ballot`, if they are a majority: their answers to the read are then as good
    /// as those to a prepare. The answers of the others do not count any more.
    pub(super) fn promised(&self, ballot: Ballot) -> Option<Majority> {
        let promised = |slot: &Slot<N>| slot.found.as_ref().is_some_and(|found| found.promise == ballot);
        if !self.shared.is_met(promised) {
            return None;
        }
        for slot in self.shared.slots.borrow_mut().iter_mut() {
            slot.found.take_if(|found| found.promise != ballot);
        }
        self.judge()
    }

    /// What the members in `slots` hold.
    pub(super) fn found(&self, slots: &[usize]) -> Vec<(Rc<Member<N>>, Found)> {
        let all = self.shared.slots.borrow();
        let found = |&index: &usize| Some((all[index].member.clone(), all[index].found.clone()?));
        slots.iter().filter_map(found).collect()
    }

    /// The largest counter, and the largest round of a ballot, that was reported; none below the epoch's own.
    pub(super) fn largest(&self) -> (u64, u64) {
        let start = self.epoch_start();
        let slots = self.shared.slots.borrow();
        slots.iter().filter_map(|slot| slot.found.as_ref()).fold((start, start), |(counter, round), found| {
            let rounds = found.promise.round.max(found.timestamp.ballot.round);
            (counter.max(found.timestamp.counter), round.max(rounds))
        })
    }

    /// Counters and ballots' rounds of its epoch are above this.
    pub(super) fn epoch_start(&self) -> u64 {
        self.shared.slots.borrow().first().map_or(0, |slot| slot.member.epoch_start())
    }

    /// Asks all for `request`, and waits for a majority.
    pub(super) async fn ask(&self, request: Request) -> Result<Answer, StoreError> {
        let shared = &self.shared;
        for slot in shared.slots.borrow_mut().iter_mut() {
            (slot.outcome, slot.in_doubt) = (None, false);
            if matches!(request, Request::Prepare(_)) {
                slot.found = None;
            }
        }
        *shared.request.borrow_mut() = Some(Rc::new(request));
        shared.turn.set(shared.turn.get() + 1);
        shared.asked.notify_all();
        let done = |slot: &Slot<N>| slot.outcome.is_some_and(|outcome| !matches!(outcome, Outcome::Refused(_)));
        loop {
            if shared.is_met(done) {
                return Ok(Answer::Done);
            }
            if let Some(ballot) = shared.refusal() {
                return Ok(Answer::Refused(ballot));
            }
            if !shared.is_met(|slot| done(slot) || slot.may_yet()) {
                return Err(self.failed());
            }
            shared.reported.notified().await;
        }
    }

    fn failed(&self) -> StoreError {
        let slots = self.shared.slots.borrow();
        let full = |slot: &Slot<N>| slot.failure.as_ref().is_some_and(MemberError::is_out_of_space);
        // A member that is full now may have been sent a store before whose fate is not known.
        let harmless = slots.iter().all(|slot| slot.outcome.is_none() && full(slot) && !slot.in_doubt);
        if slots.iter().any(full) {
            return StoreError::OutOfSpace { outcome_unknown: !harmless, reasons: reasons(&slots) };
        }
        drop(slots);
        self.unavailable(true)
    }

    /// The error of an operation that has found no majority.
    pub(super) fn unavailable(&self, outcome_unknown: bool) -> StoreError {
        let slots = self.shared.slots.borrow();
        let did = |slot: &&Slot<N>| if outcome_unknown { slot.outcome.is_some() } else { slot.found.is_some() };
        StoreError::Unavailable {
            answered: slots.iter().filter(did).count(),
            replicas: slots.len(),
            needed: self.shared.quorum.needed(),
            outcome_unknown,
            reasons: reasons(&slots),
        }
    }
}

impl<N: Link> Drop for Round<N> {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.closed.set(true);
        let bytes = shared.held_bytes();
        for slot in shared.slots.borrow_mut().iter_mut() {
            if let Some(under_way) = slot.under_way.take() {
                under_way.straggle(bytes);
            }
        }
        shared.asked.notify_all();
    }
}

fn reasons<N: Link>(slots: &[Slot<N>]) -> String {
    let reason = |slot: &Slot<N>| {
        let failure = slot.failure.as_ref().map_or("no answer in time".into(), ToString::to_string);
        (slot.outcome.is_none()).then(|| format!("member {}: {failure}", slot.member.index))
    };
    slots.iter().filter_map(reason).collect::<Vec<_>>().join("; ")
}

impl<N: Link> Slot<N> {
    /// Whether it may still do what it has not done.
    fn may_yet(&self) -> bool {
        self.outcome.is_none() && self.failure.as_ref().is_none_or(MemberError::is_transient)
    }
}

impl<N: Link> Shared<N> {
    /// The epoch of a seal that has refused a member's part.
    fn sealed(&self) -> Option<u64> {
        let slots = self.slots.borrow();
        slots.iter().filter_map(|slot| slot.failure.as_ref().and_then(MemberError::sealed)).max()
    }

    /// The highest ballot for whose sake a member has refused.
    fn refusal(&self) -> Option<Ballot> {
        let refused = |slot: &Slot<N>| match slot.outcome {
            Some(Outcome::Refused(ballot)) => Some(ballot),
            _ => None,
        };
        self.slots.borrow().iter().filter_map(refused).max()
    }

    /// Whether those are enough.
    fn is_met(&self, which: impl Fn(&Slot<N>) -> bool) -> bool {
        self.quorum.is_met(self.slots.borrow().iter().filter(|slot| which(slot)).map(|slot| slot.sets))
    }

    /// Bytes that a part holds on to.
    fn held_bytes(&self) -> usize {
        let request = self.request.borrow();
        let record = request.as_deref().and_then(Request::record);
        record.and_then(|record| record.value.as_ref()).map_or(0, crate::value::Value::len)
    }

    /// The request after `turn`, once there is one; `None`: there will be none, or none worth it.
    async fn next(&self, turn: u32) -> Option<(u32, Rc<Request>)> {
        while self.turn.get() == turn && !self.closed.get() {
            self.asked.notified().await;
        }
        let request = self.request.borrow().clone().filter(|_| self.turn.get() != turn)?;
        let in_vain = self.closed.get() && matches!(*request, Request::Prepare(_));
        (!in_vain).then(|| (self.turn.get(), request))
    }
}

impl<N: Link> Part<N> {
    async fn take(mut self) {
        self.read().await;
        let mut done = 0;
        while let Some((turn, request)) = self.shared.next(done).await {
            self.ask(turn, &request).await;
            done = turn;
        }
    }

    fn report(&self, turn: u32, change: impl FnOnce(&mut Slot<N>)) {
        if self.shared.turn.get() == turn {
            change(&mut self.shared.slots.borrow_mut()[self.index]);
            self.shared.reported.notify_one();
        }
    }

    /// Reads the member's replica, until it has or nobody asks any more.
    async fn read(&mut self) {
        while self.shared.turn.get() == 0 && !self.shared.closed.get() {
            let result = match self.begin() {
                Ok(()) => self.member.read(&self.shared.key).await,
                Err(error) => Err(error),
            };
            match result {
                Ok((image, found)) => {
                    (self.image, self.held) = (Some(image), Some(found.timestamp));
                    return self.report(0, |slot| (slot.found, slot.failure) = (Some(found), None));
                }
                Err(error) => {
                    let transient = error.is_transient();
                    self.report(0, |slot| slot.failure = Some(error));
                    if !transient {
                        return;
                    }
                    self.pause(0).await;
                }
            }
        }
    }

    /// Asks the member for what the operation asks of all, until it has answered or must be left behind.
    async fn ask(&mut self, turn: u32, request: &Request) {
        if let Some(outcome) = self.known(request) {
            return self.report(turn, |slot| slot.outcome = Some(outcome));
        }
        loop {
            let begun = self.begin();
            let sent = begun.is_ok();
            let result = match begun {
                Ok(()) => self.member.apply(&self.shared.key, request, self.image.take(), None).await,
                Err(error) => Err(error),
            };
            let found = result.and_then(|reply| Ok((self.member.found(&reply, &self.shared.key)?, reply)));
            match found {
                Ok((found, reply)) => {
                    (self.image, self.held) = (Some(reply.image), Some(found.timestamp));
                    return self.report(turn, |slot| {
                        slot.failure = None;
                        slot.outcome = Some(reply.outcome);
                        if reply.outcome == Outcome::Promised {
                            slot.found = Some(found);
                        }
                    });
                }
                Err(error) => {
                    let transient = error.is_transient();
                    self.report(turn, |slot| {
                        slot.in_doubt |= sent && !error.is_out_of_space();
                        slot.failure = Some(error);
                    });
                    let storing = request.record().is_some();
                    if !transient || self.shared.closed.get() {
                        return if storing {
                            self.shared.store.mark_stale(&self.member)
                        };
                    }
                    self.pause(turn).await;
                    if self.shared.turn.get() != turn {
                        return;
                    }
                }
            }
        }
    }

    /// What the member would say, if it is known from its last answer. That a member holds a record, or something newer than
    /// a put, stays true.
    fn known(&self, request: &Request) -> Option<Outcome> {
        let (held, record) = (self.held?, request.record()?);
        match request {
            _ if held == record.timestamp => Some(Outcome::Stored),
            Request::Store(_) if held > record.timestamp => Some(Outcome::Superseded),
            _ => None,
        }
    }

    /// Counts this part as under way on the member, once it can be.
    fn begin(&mut self) -> Result<(), MemberError> {
        if self.begun.is_none() {
            let under_way = match self.member.begin() {
                Ok(under_way) => Rc::new(under_way),
                Err(error) => {
                    if error == MemberError::Busy {
                        count(&self.shared.store.stats.skips);
                    }
                    return Err(error);
                }
            };
            if self.shared.closed.get() {
                under_way.straggle(self.shared.held_bytes());
            } else {
                self.shared.slots.borrow_mut()[self.index].under_way = Some(Rc::clone(&under_way));
            }
            self.begun = Some(under_way);
        }
        Ok(())
    }

    /// Waits a little before the next try; not beyond the operation's end, nor its next request.
    async fn pause(&mut self, turn: u32) {
        if self.shared.closed.get() || self.shared.turn.get() != turn {
            return;
        }
        let pause = (RETRY_FIRST * (1 << self.tries.min(10))).min(RETRY_PAUSE_MAX);
        self.tries += 1;
        // Either way the caller looks at what has changed.
        let _elapsed = engine::time::timeout(pause, self.shared.asked.notified()).await;
    }
}

/// Whether a member's content is a value.
pub(super) fn is_value(content: &Content) -> bool {
    !matches!(content, Content::Nothing)
}
