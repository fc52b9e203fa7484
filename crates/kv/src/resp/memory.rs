//! What the connections of one thread may hold of the memory, whatever their peers do.
//!
//! Invariants:
//! - A value is read, made or copied only once there is room for all that becomes of it, replies included; the room is given back
//!   when the last byte of the reply has been sent.
//! - Who waits for room holds none: a job asks once, before it holds a value. A job of several values takes what is free; where
//!   that is not enough it gives all back, and waits for as much as it may hold at most. Else four `MGET`s with a value each would
//!   wait for each other.
//! - Of one connection a later job takes room before an earlier one only while there is enough for any command beside it: its reply
//!   has to wait for the earlier one's (`turn`).
//! - Commands on their way have room of their own, and jobs hold it while they wait for the other: never the other way round.
//! - Short values have a part of their own: who does not read long replies keeps nobody from those. Of that part a connection holds
//!   a share of what is free, beyond which it alone waits, for as long as its own peer takes.
//! - A command that only reads is given up where there is no room, and begun anew when there is: what it has looked at is held by
//!   nobody meanwhile (thousands of them held a hundred kilobytes each), and the store's time is not its peer's.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::sync::{Notify, Permit, Semaphore};
use engine::task::LocalFuture;

use super::hash::{FIELD_HEAD_BYTES, FIELDS_MAX};
use super::turn::{Order, Taken, Turn};
use super::{COMMANDS_BYTES_MAX, LONG_BYTES_MAX, REPLY_BYTES_MAX, SHORT_BYTES_MAX, SHORT_VALUE_BYTES_MAX};
use crate::store::Reserve;
use crate::types::VALUE_BYTES_MAX;

/// What one field of a hash costs beside its bytes, while it is changed or its reply is made. Derived: two replies, two slices, two
/// allocations, or its node in a map.
pub(super) const FIELD_COST: usize = 160;
/// What a key of a listing costs beside its bytes. Derived: a node in a set, and an allocation.
pub(super) const LISTED_COST: usize = 64;
/// What a job of several values takes at once, at least. Guessed: that of ten short ones.
const STEP_BYTES: usize = 4 << 10;
/// A connection may hold what is free of the short part, divided by this, or one value. Chosen: a hundred that read nothing leave a
/// sixth of it, and one that is alone has a mebibyte, as much as is on its way over a fast link.
const SHORT_SHARES: usize = 64;

/// The room of one thread's connections.
#[derive(Clone)]
pub struct Budget {
    short: Semaphore,
    long: Semaphore,
    commands: Semaphore,
    listing: Semaphore,
    /// What there is of the long part.
    long_max: usize,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new(SHORT_BYTES_MAX, LONG_BYTES_MAX, COMMANDS_BYTES_MAX)
    }
}

impl Budget {
    /// So many bytes of short values, of long ones, and of commands. What a command takes beyond that it does without: values are
    /// to be so short that the dearest fits.
    pub fn new(short: usize, long: usize, commands: usize) -> Budget {
        assert!(short >= SHORT_VALUE_BYTES_MAX && long > SHORT_VALUE_BYTES_MAX, "no room for one value");
        let [short, commands, listing] = [short, commands, 1].map(Semaphore::new);
        Budget { short, long: Semaphore::new(long), commands, listing, long_max: long }
    }

    /// The part that `bytes` come from, and as many of them as it ever has.
    fn part(&self, bytes: usize) -> (&Semaphore, usize) {
        if bytes <= SHORT_VALUE_BYTES_MAX { (&self.short, bytes) } else { (&self.long, bytes.min(self.long_max)) }
    }

    /// Room for `bytes` of values, if there is now.
    pub fn try_take(&self, bytes: usize) -> Option<Permit> {
        let (part, bytes) = self.part(bytes);
        part.try_acquire(bytes)
    }

    /// The most that a connection may hold of the short part now.
    fn share(&self) -> usize {
        (self.short.available() / SHORT_SHARES).max(SHORT_VALUE_BYTES_MAX)
    }

    /// Whether a connection may begin another command: not where much of what is before it has yet to be sent.
    pub(super) fn lets_begin(&self, order: &Order) -> bool {
        order.held() <= self.share() / 4
    }

    /// Room where `turn` has come, or there is enough left for whoever's has; it is all that the job takes.
    fn try_take_at(&self, bytes: usize, turn: &Turn) -> Option<Taken> {
        self.try_take_part_at(bytes, turn).inspect(|_| turn.settle())
    }

    /// The same where the job may take more: those behind it still leave it room.
    fn try_take_part_at(&self, bytes: usize, turn: &Turn) -> Option<Taken> {
        let (part, is_short) = (self.part(bytes).0, bytes <= SHORT_VALUE_BYTES_MAX);
        let dearest = if is_short { SHORT_VALUE_BYTES_MAX } else { DEAREST };
        let is_left = turn.has_come() || part.available() >= bytes.saturating_add(dearest);
        if !is_left || (is_short && !turn.fits(bytes, self.share())) {
            return None;
        }
        self.try_take(bytes).map(|permit| turn.took_part(permit, is_short))
    }

    /// Room for `bytes` of values, at its turn.
    pub(super) async fn take(&self, bytes: usize, turn: &Turn) -> Taken {
        if let Some(taken) = self.try_take_at(bytes, turn) {
            return taken;
        }
        self.await_share(bytes, turn).await;
        let (part, most) = self.part(bytes);
        turn.took(part.acquire(most).await, bytes <= SHORT_VALUE_BYTES_MAX)
    }

    /// Waits for the turn, and until the connection's share has as much: that is for its own peer to bring about.
    pub(super) async fn await_share(&self, bytes: usize, turn: &Turn) {
        turn.come().await;
        if bytes <= SHORT_VALUE_BYTES_MAX {
            turn.await_share(bytes, || self.share()).await;
        }
    }

    /// Room for the bytes of commands.
    pub(super) fn commands(&self) -> &Semaphore {
        &self.commands
    }

    /// The place of the one listing of all keys at a time: a walk has no limit in time, and what it has found is held.
    pub(super) fn listing(&self) -> &Semaphore {
        &self.listing
    }

    /// Whether somebody waits for room.
    pub fn is_scarce(&self) -> bool {
        [&self.short, &self.long, &self.commands].iter().any(|part| part.try_acquire(0).is_none())
    }

    /// Bytes that nobody holds.
    pub fn free(&self) -> usize {
        self.short.available() + self.long.available() + self.commands.available()
    }
}

/// Room that a reply holds until it has been sent.
#[derive(Default)]
pub struct Hold {
    first: Option<Taken>,
    more: Vec<Taken>,
}

impl From<Option<Taken>> for Hold {
    fn from(first: Option<Taken>) -> Hold {
        Hold { first, more: Vec::new() }
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hold({})", self.bytes())
    }
}

impl Hold {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.first.iter().chain(&self.more).map(Taken::count).sum()
    }

    /// Holds more.
    pub fn push(&mut self, more: impl Into<Taken>) {
        self.more.push(more.into());
    }

    /// Gives back what is held beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let mut excess = self.bytes().saturating_sub(bytes);
        for taken in self.first.iter_mut().chain(&mut self.more) {
            let now = excess.min(taken.count());
            drop(taken.split(now));
            excess -= now;
        }
        self.more.retain(|taken| taken.count() > 0);
    }
}

/// What a command makes of a value, for what it costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cost {
    /// It is passed on.
    Value,
    /// It is taken apart: a hash that is read. Its reply has so much beside what the hash has.
    Hash(usize),
    /// Another is made of it, longer by so much at most.
    Grown(usize),
    /// The same, and the reply is what was there: an attempt that was sent has to keep its own, while the next one reads anew.
    GrownAndTold(usize),
    /// The same of a hash.
    GrownHash(usize),
}

/// The most that a listing of keys takes.
pub(super) const LISTING_BYTES_MAX: usize = REPLY_BYTES_MAX + super::KEYS_MAX * LISTED_COST;
/// The most that a command takes.
const DEAREST: usize = 4 * VALUE_BYTES_MAX + FIELDS_MAX * FIELD_COST;
const _: () = assert!(DEAREST < LONG_BYTES_MAX && LISTING_BYTES_MAX <= DEAREST);

impl Cost {
    /// Of a value of this length.
    pub(super) fn of(self, length: usize) -> usize {
        let fields = |bytes: usize| (bytes / FIELD_HEAD_BYTES).min(FIELDS_MAX) * FIELD_COST;
        let grown = |by: usize| length.saturating_add(by).min(VALUE_BYTES_MAX);
        match self {
            Cost::Value => length,
            // The value, the same in one piece, the replies.
            Cost::Hash(more) => 3 * length + fields(length) + more,
            Cost::Grown(by) => length + grown(by),
            Cost::GrownAndTold(by) => 2 * length + grown(by),
            // The value, the same in one piece; the other, and its encoding.
            Cost::GrownHash(by) => 2 * length + 2 * grown(by) + fields(grown(by)),
        }
    }
}

/// The room of a job with one value.
pub(super) struct One {
    budget: Budget,
    turn: Rc<Turn>,
    cost: Cost,
    held: RefCell<Option<Taken>>,
    waits: Cell<bool>,
    /// It is to be done anew with as much room, rather than wait for it within its time.
    lacks: Cell<Option<usize>>,
    is_read: bool,
}

impl One {
    pub(super) fn new(budget: &Budget, turn: &Rc<Turn>, cost: Cost) -> Rc<One> {
        One::with(budget, turn, cost, None, false)
    }

    /// That of a job which only reads, and holds some.
    pub(super) fn of_read(budget: &Budget, turn: &Rc<Turn>, cost: Cost, held: Option<Taken>) -> Rc<One> {
        One::with(budget, turn, cost, held, true)
    }

    fn with(budget: &Budget, turn: &Rc<Turn>, cost: Cost, held: Option<Taken>, is_read: bool) -> Rc<One> {
        let (budget, turn, held) = (budget.clone(), turn.clone(), RefCell::new(held));
        Rc::new(One { budget, turn, cost, held, waits: Cell::default(), lacks: Cell::default(), is_read })
    }

    /// What a read lacks that is to be dropped and done anew with as much room.
    pub(super) fn lacks(&self) -> Option<usize> {
        self.lacks.get()
    }

    /// What is held, for the reply.
    pub(super) fn take(&self) -> Hold {
        self.held.borrow_mut().take().into()
    }

    /// The job is waiting for room.
    pub(super) fn waits(&self) -> bool {
        self.waits.get()
    }

    #[cfg(test)]
    pub(super) fn set_waits(&self, waits: bool) {
        self.waits.set(waits);
    }
}

impl Reserve for One {
    fn reserve(&self, length: usize) -> Option<LocalFuture<'_, ()>> {
        let bytes = self.cost.of(length);
        let mut held = self.held.borrow_mut();
        if held.as_ref().map_or(0, Taken::count) >= bytes {
            return None;
        }
        // First: who waits for room holds none.
        *held = None;
        *held = self.budget.try_take_at(bytes, &self.turn);
        if held.is_some() {
            return None;
        }
        if self.is_read {
            self.lacks.set(Some(bytes));
            return Some(Box::pin(std::future::pending()));
        }
        Some(Box::pin(async move {
            self.waits.set(true);
            let taken = self.budget.take(bytes, &self.turn).await;
            self.waits.set(false);
            *self.held.borrow_mut() = Some(taken);
        }))
    }
}

/// What becomes of a job with several values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Excess {
    /// Its values are longer than a reply may be.
    Reply,
    /// There is not so much room now.
    Room,
}

/// The room of a job with several values, which are read at once.
pub(super) struct Several {
    budget: Budget,
    turn: Rc<Turn>,
    /// What it may take in all.
    most: usize,
    /// What is held, or was reserved.
    held: RefCell<Vec<Taken>>,
    /// Bytes of that which nobody has taken yet.
    left: Cell<usize>,
    taken: Cell<usize>,
    excess: Cell<Option<Excess>>,
    exceeded: Notify,
}

impl Several {
    /// One that takes what is free.
    pub(super) fn new(budget: &Budget, turn: &Rc<Turn>, most: usize) -> Rc<Several> {
        Several::with(budget, turn, most, None)
    }

    /// One that holds as much as it may ever take.
    pub(super) async fn reserved(budget: &Budget, turn: &Rc<Turn>, most: usize) -> Rc<Several> {
        Several::with(budget, turn, most, Some(budget.take(most, turn).await))
    }

    fn with(budget: &Budget, turn: &Rc<Turn>, most: usize, reserved: Option<Taken>) -> Rc<Several> {
        let (left, most) = (Cell::new(reserved.as_ref().map_or(0, Taken::count)), most.min(budget.long_max));
        Rc::new(Several {
            budget: budget.clone(),
            turn: turn.clone(),
            most,
            held: RefCell::new(reserved.into_iter().collect()),
            left,
            taken: Cell::new(0),
            excess: Cell::new(None),
            exceeded: Notify::new(),
        })
    }

    /// The room of one of the values.
    pub(super) fn part(self: &Rc<Self>) -> Rc<dyn Reserve> {
        Rc::new(Part { several: self.clone(), taken: Cell::new(0) })
    }

    /// Waits until it has taken too much: what is under way then waits for ever, and is to be dropped.
    pub(super) async fn excess(&self) -> Excess {
        loop {
            if let Some(excess) = self.excess.get() {
                return excess;
            }
            self.exceeded.notified().await;
        }
    }

    /// What is held, for the reply.
    pub(super) fn take(&self) -> Hold {
        self.turn.settle();
        Hold { first: None, more: std::mem::take(&mut *self.held.borrow_mut()) }
    }

    /// Takes so much more.
    pub(super) fn grow(&self, by: usize) -> Result<(), Excess> {
        if self.taken.get() + by > self.most {
            return Err(Excess::Reply);
        }
        if self.left.get() < by {
            let taken = self.budget.try_take_part_at(by.max(STEP_BYTES), &self.turn).ok_or(Excess::Room)?;
            self.left.set(self.left.get() + taken.count());
            self.held.borrow_mut().push(taken);
        }
        self.left.set(self.left.get().saturating_sub(by));
        self.taken.set(self.taken.get() + by);
        Ok(())
    }
}

struct Part {
    several: Rc<Several>,
    taken: Cell<usize>,
}

impl Reserve for Part {
    fn reserve(&self, length: usize) -> Option<LocalFuture<'_, ()>> {
        let more = length.saturating_sub(self.taken.get());
        match self.several.grow(more) {
            Ok(()) => {
                self.taken.set(self.taken.get() + more);
                None
            }
            Err(excess) => {
                self.several.excess.set(Some(excess));
                self.several.exceeded.notify_all();
                Some(Box::pin(std::future::pending()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fuzz::ready;
    use super::super::turn::Order;
    use super::*;

    /// Each held one value and waited for its second.
    #[test]
    fn who_wants_several_values_holds_none_while_it_waits() {
        let budget = Budget::default();
        let several: Vec<_> = (0..LONG_BYTES_MAX / VALUE_BYTES_MAX)
            .map(|_| Several::new(&budget, &Order::default().turn(), REPLY_BYTES_MAX))
            .collect();
        for one in &several {
            assert!(one.part().reserve(VALUE_BYTES_MAX - (1 << 20)).is_none(), "there is room");
        }
        assert!(several[0].part().reserve(1 << 19).is_none(), "a little is left");
        let _rest = budget.try_take(budget.long.available());
        assert!(several[1].part().reserve(1 << 18).is_some() && several[0].part().reserve(VALUE_BYTES_MAX).is_some());
        assert_eq!(ready(several[1].excess()), Some(Excess::Room));
        assert_eq!(ready(several[0].excess()), Some(Excess::Reply));
    }

    #[test]
    fn a_value_that_was_replaced_by_a_longer_one_is_waited_for_without_holding_the_first() {
        let budget = Budget::default();
        let one = One::new(&budget, &Order::default().turn(), Cost::Value);
        assert!(one.reserve(VALUE_BYTES_MAX / 2).is_none());
        let others = budget.try_take(budget.long.available());
        assert!(one.reserve(VALUE_BYTES_MAX).is_some_and(|wait| ready(wait).is_none()));
        assert_eq!(budget.long.available(), VALUE_BYTES_MAX / 2);
        drop(others);
        assert!(one.reserve(VALUE_BYTES_MAX).is_none() && one.take().bytes() == VALUE_BYTES_MAX);
    }

    #[test]
    fn the_dearest_command_fits() {
        let longest = VALUE_BYTES_MAX;
        let grown = [Cost::Grown(longest), Cost::GrownAndTold(longest), Cost::GrownHash(longest)];
        for cost in [Cost::Value, Cost::Hash(FIELDS_MAX * LISTED_COST)].into_iter().chain(grown) {
            assert!(cost.of(longest) <= LONG_BYTES_MAX, "{cost:?} takes {}", cost.of(longest));
        }
    }
}
