//! One round of an operation over a key's members: each takes its part (`part`), and the operation goes on as soon as a
//! majority has answered.
//!
//! The operation itself carries the parts on while it waits for them, which spares a task per member and the waking of one
//! another. Those that are not done when it ends, or turns to something else, get a task each and follow in the background,
//! bounded per member (`member`).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use engine::sync::Notify;
use engine::time;

use super::Inner;
use super::error::StoreError;
use super::fetch::{Gone, Held, fetch};
use super::member::{Member, MemberError};
use super::part::{Asked, Part, Room, Shared, Slot};
use super::quorum::Home;
use super::topology::{Topology, forgets};
use crate::table::{Content, Forgets, Found, Outcome, Request};
use crate::types::{Ballot, Key, OpId, Timestamp};
use crate::value::Value;

/// How long members are waited for that have not answered when others have refused a change by a seal: if all have, it is known
/// not to have happened. Guessed: above the spread of answers over members that are well.
const LAST_WORD: Duration = Duration::from_millis(100);

/// A round under way. Dropping it ends the operation's interest; what was decided is still carried out.
pub(super) struct Round {
    pub(super) shared: Rc<Shared>,
    /// The members' parts that this operation carries on itself.
    parts: RefCell<Vec<Option<PartFuture>>>,
}

type PartFuture = Pin<Box<dyn Future<Output = ()>>>;

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

impl Round {
    /// Asks all of the key's members. `early`: the put that is to follow, if its value fits no page.
    pub(super) fn start(store: &Rc<Inner>, topology: &Rc<Topology>, key: &Key, early: Option<(OpId, Value)>) -> Round {
        let homes = topology.homes(key);
        let slot = |home: &Home| Slot {
            member: topology.members[usize::from(home.member)].clone(),
            sets: home.sets,
            found: None,
            open: false,
            room: Room::Unknown,
            outcome: None,
            failure: None,
            sent: false,
            in_doubt: false,
            under_way: None,
            idle: false,
            apart: false,
        };
        let shared = Rc::new(Shared {
            store: store.clone(),
            key: key.clone(),
            epoch: topology.map.epoch,
            forgets: forgets(&topology.map),
            quorum: homes.quorum(),
            slots: RefCell::new(homes.iter().map(slot).collect()),
            request: RefCell::default(),
            turn: Cell::new(0),
            withdrawn: Cell::new(false),
            asked: Notify::new(),
            waker: RefCell::default(),
            closed: Cell::new(false),
            early,
        });
        let part = |index: usize| -> Option<PartFuture> { Some(Box::pin(Part::new(&shared, index).take())) };
        let parts = RefCell::new((0..homes.len()).map(part).collect());
        Round { shared, parts }
    }

    /// Carries the parts on until `judge` has an answer; each is asked before the first look at what they say.
    pub(super) async fn until<T>(&self, mut judge: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| {
            for part in self.parts.borrow_mut().iter_mut() {
                if part.as_mut().is_some_and(|part| part.as_mut().poll(context).is_ready()) {
                    *part = None;
                }
            }
            match judge() {
                Some(answer) => Poll::Ready(answer),
                None => {
                    *self.shared.waker.borrow_mut() = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Gives the parts that are in the middle of something a task of their own: the operation is going to wait for other
    /// things, and they may hold what others wait for.
    pub(super) fn let_go(&self) {
        for (index, part) in self.parts.borrow_mut().iter_mut().enumerate() {
            let slot = &mut self.shared.slots.borrow_mut()[index];
            if !slot.idle
                && let Some(part) = part.take()
            {
                slot.apart = true;
                engine::task::spawn(part).detach();
            }
        }
    }

    /// Waits until a majority has reported. Prefers a majority that agrees, if the replies at hand contain one.
    pub(super) async fn majority(&self) -> Result<Majority, StoreError> {
        let patience = self.patience();
        let judge = || {
            if let Some(changed) = self.map_changed() {
                return Some(Err(Some(changed)));
            }
            if let Some(majority) = self.judge() {
                return Some(Ok(majority));
            }
            let hopeless = !self.shared.is_met(|slot| slot.found.is_some() || slot.may_yet(patience));
            hopeless.then_some(Err(None))
        };
        let majority = match self.until(judge).await {
            Ok(majority) => Ok(majority),
            Err(Some(changed)) => Err(changed),
            Err(None) => {
                self.hear_all(|slot| slot.found.is_some()).await;
                self.judge().ok_or_else(|| {
                    self.mark_damaged();
                    self.unavailable(false)
                })
            }
        };
        if majority.is_err() {
            self.let_go();
        }
        majority
    }

    /// Has those repaired whose pages are why there is no majority: nothing is ever stored then, which would mark them.
    fn mark_damaged(&self) {
        let slots = self.shared.slots.borrow();
        let is_damaged = |slot: &&Slot| slot.failure.as_ref().is_some_and(MemberError::is_damage);
        slots.iter().filter(is_damaged).for_each(|slot| self.shared.store.mark_stale(&slot.member));
    }

    /// The value that `holders` speak of. Where it has to be fetched, the parts go on by themselves meanwhile.
    pub(super) async fn fetch(&self, holders: Vec<(Rc<Member>, Found)>) -> Result<Held, Gone> {
        if holders.iter().all(|(_, found)| matches!(found.content, Content::Elsewhere(..))) {
            self.let_go();
        }
        fetch(&self.shared.store, &self.shared.key, holders).await
    }

    /// How long it waits for a member that has lost its connection.
    pub(super) fn patience(&self) -> Duration {
        self.shared.store.patience.get()
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
        let promised = |slot: &Slot| slot.found.as_ref().is_some_and(|found| found.promise == ballot);
        if !self.shared.is_met(promised) {
            return None;
        }
        for slot in self.shared.slots.borrow_mut().iter_mut() {
            slot.found.take_if(|found| found.promise != ballot);
        }
        self.judge()
    }

    /// What the members in `slots` hold.
    pub(super) fn found(&self, slots: &[usize]) -> Vec<(Rc<Member>, Found)> {
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

    /// Which deleted keys its map lets be forgotten.
    pub(super) fn forgets(&self) -> Forgets {
        self.shared.forgets
    }

    /// Counters and ballots' rounds of its epoch are above this.
    pub(super) fn epoch_start(&self) -> u64 {
        self.shared.slots.borrow().first().map_or(0, |slot| slot.member.epoch_start())
    }

    /// Lets all turn to something new.
    pub(super) fn turn_to(&self, asked: Asked) {
        let shared = &self.shared;
        for slot in shared.slots.borrow_mut().iter_mut() {
            // A failure was of what was asked before.
            (slot.outcome, slot.failure, slot.sent, slot.in_doubt) = (None, None, false, false);
            if matches!(asked, Asked::Place(..)) {
                slot.room = Room::Asked;
            }
        }
        *shared.request.borrow_mut() = Some(asked);
        shared.turn.set(shared.turn.get() + 1);
        shared.withdrawn.set(false);
        shared.asked.notify_all();
    }

    /// What was asked last is asked of nobody any more who has not begun with it: the operation is going to pause, and its record
    /// may be long.
    pub(super) fn withdraw(&self) {
        self.shared.withdrawn.set(true);
        self.shared.forget_withdrawn();
        self.shared.asked.notify_all();
    }

    /// Asks all for `request`, and waits for a majority.
    pub(super) async fn ask(&self, request: Request) -> Result<Answer, StoreError> {
        let shared = &self.shared;
        if matches!(request, Request::Prepare(_)) {
            shared.slots.borrow_mut().iter_mut().for_each(|slot| slot.found = None);
        }
        self.turn_to(Asked::Do(Rc::new(request)));
        let patience = self.patience();
        let done = |slot: &Slot| slot.outcome.is_some_and(|outcome| !matches!(outcome, Outcome::Refused(_)));
        let judge = || {
            if shared.is_met(done) {
                return Some(Ok(Answer::Done));
            }
            if let Some(ballot) = shared.refusal() {
                return Some(Ok(Answer::Refused(ballot)));
            }
            let hopeless = !shared.is_met(|slot| done(slot) || slot.may_yet(patience));
            hopeless.then_some(Err(()))
        };
        let answer = match self.until(judge).await {
            Ok(answer) => Ok(answer),
            Err(()) => {
                self.hear_all(|slot| slot.outcome.is_some()).await;
                if shared.is_met(done) { Ok(Answer::Done) } else { Err(self.failed()) }
            }
        };
        if !matches!(answer, Ok(Answer::Done)) {
            self.let_go();
        }
        answer
    }

    /// Waits a little for what the others say, of which a majority is out of reach.
    pub(super) async fn hear_all(&self, did: impl Fn(&Slot) -> bool) {
        let told = |slot: &Slot| did(slot) || slot.failure.is_some();
        let all = || self.shared.slots.borrow().iter().all(told).then_some(());
        let _elapsed = time::timeout(LAST_WORD, self.until(all)).await;
    }

    /// Whether the request asked last was refused by every member, and is under way nowhere: it has changed nothing, and never
    /// will.
    pub(super) fn is_refused_by_all(&self) -> bool {
        self.is_refused_by(|_| true)
    }

    /// The same once something else is asked of all: a member that was not sent what was asked last never gets it. (Until then it
    /// may, also when the round has ended.)
    pub(super) fn is_taken_by_none(&self) -> bool {
        self.is_refused_by(|slot| slot.sent || slot.outcome.is_some())
    }

    fn is_refused_by(&self, which: impl Fn(&Slot) -> bool) -> bool {
        let refused = |slot: &Slot| match slot.outcome {
            Some(outcome) => matches!(outcome, Outcome::Refused(_)),
            None => slot.failure.as_ref().is_some_and(MemberError::is_refusal),
        };
        self.shared.slots.borrow().iter().filter(|slot| which(slot)).all(|slot| refused(slot) && !slot.in_doubt)
    }

    fn failed(&self) -> StoreError {
        let slots = self.shared.slots.borrow();
        let full = |slot: &Slot| slot.failure.as_ref().is_some_and(MemberError::is_out_of_space);
        if slots.iter().any(full) {
            let outcome_unknown = !self.is_refused_by_all();
            let reasons = reasons(&slots, |slot| slot.outcome.is_some());
            return StoreError::OutOfSpace { outcome_unknown, reasons };
        }
        drop(slots);
        self.unavailable(true)
    }

    /// The error of an operation that has found no majority.
    pub(super) fn unavailable(&self, outcome_unknown: bool) -> StoreError {
        let slots = self.shared.slots.borrow();
        let did = |slot: &Slot| if outcome_unknown { slot.outcome.is_some() } else { slot.found.is_some() };
        StoreError::Unavailable {
            answered: slots.iter().filter(|slot| did(slot)).count(),
            replicas: slots.len(),
            needed: self.shared.quorum.needed(),
            outcome_unknown,
            reasons: reasons(&slots, did),
        }
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.closed.set(true);
        let bytes = shared.held_bytes();
        for slot in shared.slots.borrow_mut().iter_mut() {
            if let Some(under_way) = slot.under_way.take() {
                under_way.straggle(bytes);
            }
        }
        self.let_go();
        shared.asked.notify_all();
    }
}

/// What is with those who did not do what was asked, for people.
fn reasons(slots: &[Slot], did: impl Fn(&Slot) -> bool) -> String {
    let reason = |slot: &Slot| {
        let failure = slot.failure.as_ref().map_or("no answer in time".into(), ToString::to_string);
        (!did(slot)).then(|| format!("member {}: {failure}", slot.member.index))
    };
    slots.iter().filter_map(reason).collect::<Vec<_>>().join("; ")
}

/// Whether a member's content is a value.
pub(super) fn is_value(content: &Content) -> bool {
    !matches!(content, Content::Nothing)
}
