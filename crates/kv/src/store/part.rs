//! One member's part in a round: reads the home page, reports, waits for what is asked next, asks it, and so on.
//!
//! A member that fails for now is tried again as long as the operation is under way: a connection that comes back in time
//! shows as a slow operation, not as an error. After that it is marked for repair instead.
//!
//! A member answers in turn: what it was asked first may land after the operation has gone on to the next request, which it
//! then gets, too. Only answers to the latest request count.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use engine::backoff::Backoff;
use engine::sync::Notify;

use super::member::{Member, MemberError, UnderWay};
use super::quorum::{Quorum, Sets};
use super::{Inner, count};
use crate::table::{Early, Forgets, Found, Known, Outcome, PageImage, Request, both};
use crate::types::{Ballot, Key, OpId, Timestamp};
use crate::value::Value;

/// First pause before a failed member is tried again; doubles. Guessed: a few round trips.
const RETRY_FIRST: Duration = Duration::from_millis(1);
/// Longest pause.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(100);

/// Whether a member has room for the entry to come, whose value is placed before it: a put's while its page is read.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) enum Room {
    /// Not asked, or it has failed otherwise: that shows when the entry is stored.
    #[default]
    Unknown,
    /// The value is being placed.
    Asked,
    /// It is placed, or fits the page.
    Placed,
    /// It found no place.
    Full(MemberError),
}

/// A value that was placed in some turn; none: it fits the page.
type Placing = Result<Option<(u32, Early)>, MemberError>;

/// What the members are asked after the read.
#[derive(Clone)]
pub(super) enum Asked {
    /// To place the value of the entry to come, which verifies under this operation, if it fits no page.
    Place(OpId, Value),
    /// This.
    Do(Rc<Request>),
}

/// What is known of one member.
pub(super) struct Slot {
    pub(super) member: Rc<Member>,
    /// The sets of homes it counts in.
    pub(super) sets: Sets,
    /// What it holds, by its answer to the read or the latest prepare.
    pub(super) found: Option<Found>,
    /// The page that it was read from was open to operations of older epochs than this one's.
    pub(super) open: bool,
    /// Whether it has room for the entry to come.
    pub(super) room: Room,
    /// Its answer to the latest request, which no read is.
    pub(super) outcome: Option<Outcome>,
    /// The last failure; a permanent one ends the member's part.
    pub(super) failure: Option<MemberError>,
    /// The latest request was sent.
    pub(super) sent: bool,
    /// It was, and at least once neither done nor refused: it may have happened, or may yet.
    pub(super) in_doubt: bool,
    pub(super) under_way: Option<Rc<UnderWay>>,
    /// It has done what was asked of it and holds on to nothing.
    pub(super) idle: bool,
    /// A task of its own carries its part on: the operation does not.
    pub(super) apart: bool,
}

/// What an operation and its parts share.
pub(super) struct Shared {
    pub(super) store: Rc<Inner>,
    pub(super) quorum: Quorum,
    /// Of the map it goes by.
    pub(super) epoch: u64,
    /// Which deleted keys that map lets be forgotten.
    pub(super) forgets: Forgets,
    pub(super) key: Key,
    pub(super) slots: RefCell<Vec<Slot>>,
    /// What is asked of the members, and the how-many-th request it is; before the first they are read. `None` between two of them
    /// where that was withdrawn and nobody is at it any more ([`super::round::Round::withdraw`]).
    pub(super) request: RefCell<Option<Asked>>,
    pub(super) turn: Cell<u32>,
    /// Nobody is to begin with it any more.
    pub(super) withdrawn: Cell<bool>,
    pub(super) asked: Notify,
    /// Wakes the operation when a part that a task carries has reported something.
    pub(super) waker: RefCell<Option<Waker>>,
    pub(super) closed: Cell<bool>,
    /// The put that is to follow, whose value is too long for its page: the value is placed while the page is read.
    pub(super) early: Option<(OpId, Value)>,
}

/// A member's part in a round, counted until it ends.
pub(super) struct Part {
    shared: Rc<Shared>,
    index: usize,
    member: Rc<Member>,
    /// The home page as the member last showed it, and what it says of the key.
    image: Option<PageImage>,
    held: Option<Timestamp>,
    /// The value, placed in this turn, before it was known where its reference will stand. It is for the next turn alone: of
    /// two attempts of a conditional operation each may have a value of its own under the same operation.
    placed: Option<(u32, Early)>,
    backoff: Backoff,
    begun: Option<Rc<UnderWay>>,
}

impl Drop for Part {
    fn drop(&mut self) {
        let store = &self.shared.store;
        store.parts.set(store.parts.get() - 1);
        store.part_done.notify_all();
    }
}

impl Slot {
    /// Whether it may still do what it has not done; one that has lost its connection, within `patience` of that.
    pub(super) fn may_yet(&self, patience: Duration) -> bool {
        let comes_back = || self.member.away_for().is_none_or(|away| away <= patience);
        self.outcome.is_none() && self.failure.as_ref().is_none_or(|failure| failure.is_transient() && comes_back())
    }
}

impl Shared {
    /// The epoch of a seal that has refused a member's part.
    pub(super) fn sealed(&self) -> Option<u64> {
        let slots = self.slots.borrow();
        slots.iter().filter_map(|slot| slot.failure.as_ref().and_then(MemberError::sealed)).max()
    }

    /// The highest ballot for whose sake a member has refused.
    pub(super) fn refusal(&self) -> Option<Ballot> {
        let refused = |slot: &Slot| match slot.outcome {
            Some(Outcome::Refused(ballot)) => Some(ballot),
            _ => None,
        };
        self.slots.borrow().iter().filter_map(refused).max()
    }

    /// Whether those are enough.
    pub(super) fn is_met(&self, which: impl Fn(&Slot) -> bool) -> bool {
        self.quorum.is_met(self.slots.borrow().iter().filter(|slot| which(slot)).map(|slot| slot.sets))
    }

    /// Changes what is known of a member, which the operation then looks at.
    fn change(&self, index: usize, change: impl FnOnce(&mut Slot)) {
        let mut slots = self.slots.borrow_mut();
        change(&mut slots[index]);
        if slots[index].apart
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }

    /// Lets go of what was withdrawn once nobody is at it.
    pub(super) fn forget_withdrawn(&self) {
        if self.withdrawn.get() && self.slots.borrow().iter().all(|slot| slot.idle) {
            self.request.take();
        }
    }

    /// Bytes that a part holds on to.
    pub(super) fn held_bytes(&self) -> usize {
        let request = self.request.borrow();
        let asked = match &*request {
            Some(Asked::Place(_, value)) => Some(value),
            Some(Asked::Do(request)) => request.record().and_then(|record| record.value.as_ref()),
            None => None,
        };
        let early = self.early.as_ref().map(|(_, value)| value);
        asked.or(early).map_or(0, Value::len)
    }
}

/// Gives way once: whoever carries the part on looks again when anything happens.
async fn give_way() {
    let mut given = false;
    poll_fn(|_| if std::mem::replace(&mut given, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

impl Part {
    pub(super) fn new(shared: &Rc<Shared>, index: usize) -> Part {
        shared.store.parts.set(shared.store.parts.get() + 1);
        let member = shared.slots.borrow()[index].member.clone();
        let (image, held, placed, begun) = (None, None, None, None);
        let backoff = Backoff::new(RETRY_FIRST, RETRY_PAUSE_MAX);
        Part { shared: shared.clone(), index, member, image, held, placed, backoff, begun }
    }

    /// Takes part until the round is over.
    pub(super) async fn take(mut self) {
        match self.shared.early.clone() {
            Some((op, value)) => {
                let place = self.place(0, op, value);
                let ((), placed) = both(self.read(), place).await;
                // What has failed is tried again when it is needed.
                self.placed = placed.ok().flatten();
            }
            None => self.read().await,
        }
        let mut done = 0;
        while let Some((turn, asked)) = self.next(done).await {
            if self.placed.as_ref().is_some_and(|(placed, _)| placed + 1 != turn) {
                self.discard().await;
                // That may take its time, and what was asked be withdrawn meanwhile: then it counts as sent to nobody.
                continue;
            }
            match asked {
                Asked::Place(op, value) => self.place_until(turn, op, value).await,
                Asked::Do(request) => self.ask(turn, &request).await,
            }
            done = turn;
        }
        self.discard().await;
    }

    /// Places a value, as long as the operation waits for that.
    async fn place_until(&mut self, turn: u32, op: OpId, value: Value) {
        if let Some((placed, _)) = &mut self.placed {
            // The put's, which it was placed for while the page was read.
            *placed = turn;
            return self.report(turn, |slot| slot.room = Room::Placed);
        }
        loop {
            let error = match self.place(turn, op, value.clone()).await {
                Ok(placed) => {
                    self.placed = placed;
                    return;
                }
                Err(error) => error,
            };
            let ends = error.is_out_of_space() || !error.is_transient();
            self.report(turn, |slot| slot.failure = Some(error));
            if !ends {
                self.pause(turn).await;
            }
            if ends || self.is_past(turn) {
                return;
            }
        }
    }

    /// Whether the operation waits for something else by now, or for nothing.
    fn is_past(&self, turn: u32) -> bool {
        self.shared.closed.get() || self.shared.turn.get() != turn
    }

    /// Places a value, and reports whether there was room.
    fn place(&mut self, turn: u32, op: OpId, value: Value) -> impl Future<Output = Placing> + use<> {
        let begun = self.begin();
        let (member, shared, index) = (self.member.clone(), self.shared.clone(), self.index);
        async move {
            let report = |room: Room| {
                if shared.turn.get() == turn {
                    shared.change(index, |slot| slot.room = room);
                }
            };
            report(Room::Asked);
            let placed = match begun {
                Ok(()) => member.place(&shared.key, op, &value).await,
                Err(error) => Err(error),
            };
            report(match &placed {
                Ok(_) => Room::Placed,
                Err(error) if error.is_out_of_space() => Room::Full(error.clone()),
                Err(_) => Room::Unknown,
            });
            placed.map(|placed| placed.map(|placed| (turn, placed)))
        }
    }

    /// Frees what was placed for an entry that did not follow.
    async fn discard(&mut self) {
        if let Some((_, placed)) = self.placed.take() {
            self.member.discard(&self.shared.key, placed).await;
        }
    }

    /// The request after `turn`, once there is one; `None`: there will be none, or none worth it.
    async fn next(&self, turn: u32) -> Option<(u32, Asked)> {
        let shared = &self.shared;
        let idle = |idle: bool| shared.slots.borrow_mut()[self.index].idle = idle;
        idle(self.placed.is_none());
        shared.forget_withdrawn();
        while (shared.turn.get() == turn || shared.withdrawn.get()) && !shared.closed.get() {
            let apart = shared.slots.borrow()[self.index].apart;
            if apart { shared.asked.notified().await } else { give_way().await }
        }
        idle(false);
        let is_asked = shared.turn.get() != turn && !shared.withdrawn.get();
        let asked = shared.request.borrow().clone().filter(|_| is_asked)?;
        let stores = matches!(&asked, Asked::Do(request) if request.record().is_some());
        (stores || !shared.closed.get()).then(|| (shared.turn.get(), asked))
    }

    fn report(&self, turn: u32, change: impl FnOnce(&mut Slot)) {
        if self.shared.turn.get() == turn {
            self.shared.change(self.index, change);
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
                    let open = image.seal() < self.shared.epoch;
                    (self.image, self.held) = (Some(image), Some(found.timestamp));
                    return self.report(0, |slot| (slot.found, slot.open, slot.failure) = (Some(found), open, None));
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
                Ok(()) => {
                    if self.shared.turn.get() == turn {
                        self.shared.slots.borrow_mut()[self.index].sent = true;
                    }
                    let placed = self.placed.take().map(|(_, placed)| placed);
                    let known = Known { image: self.image.take(), placed, damaged: None };
                    self.member.apply(&self.shared.key, request, known).await
                }
                Err(error) => Err(error),
            };
            let found = result.and_then(|reply| Ok((self.member.found(&reply, &self.shared.key)?, reply)));
            match found {
                Ok((found, reply)) => {
                    (self.image, self.held) = (Some(reply.image), Some(found.timestamp));
                    return self.report(turn, |slot| {
                        slot.failure = None;
                        slot.in_doubt |= reply.doubt;
                        slot.outcome = Some(reply.outcome);
                        if reply.outcome == Outcome::Promised {
                            slot.found = Some(found);
                        }
                    });
                }
                Err(error) => {
                    let transient = error.is_transient();
                    self.report(turn, |slot| {
                        slot.in_doubt |= sent && !error.is_refusal();
                        slot.failure = Some(error);
                    });
                    let storing = request.record().is_some();
                    if !transient || self.shared.closed.get() {
                        return if storing {
                            self.shared.store.mark_stale(&self.member)
                        };
                    }
                    self.pause(turn).await;
                    if self.shared.turn.get() != turn || self.shared.withdrawn.get() {
                        // It is not marked stale: the next request to store brings it up to date, or marks it. Where none
                        // follows, as the operation ends in its pause, the attempt's outcome is told as unknown: a member that
                        // lacks it is as one that has refused it, and nobody marks that. Who reads both makes the key equal, or
                        // the next repair.
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
        if self.is_past(turn) {
            return;
        }
        // Either way the caller looks at what has changed.
        let _elapsed = engine::time::timeout(self.backoff.pause(), self.shared.asked.notified()).await;
    }
}
