//! What the parts of an attached volume share: the mirror, the connections, and what is waited for.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use device::{Mode, NamespaceInfo, RangeGuard, RangeLocks};
use engine::sync::{Notified, Notify, Semaphore};
use engine::time::{self, Instant};

use crate::bitmap::Bitmap;
use crate::conn::Conn;
use crate::error::Error;
use crate::figures::{Figures, State};
use crate::label::Shape;
use crate::mirror::Mirror;
use crate::options::Options;
use crate::reach::Reach;
use crate::record::{Ballot, HOLDERS_MAX, Record, Set};
use crate::regions::{Regions, Span};
use crate::snapshot_name::SnapshotName;

/// What a lease is shorter at the host that has it, and longer at who waits for its end, as a part of it: clocks run apart.
/// Guessed, high: clocks differ by less than a thousandth.
const LEASE_MARGIN: u32 = 8;

/// Whether commands are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Serving,
    /// What is under way ends, nothing begins.
    Quiescing,
    /// Detached, or dropped.
    Closed,
}

/// See the module.
pub(crate) struct Shared {
    /// As the volume was made: it may have grown since.
    pub(crate) shape: Shape,
    pub(crate) ballot: Ballot,
    /// That of the record that this host has gone on from.
    pub(crate) before: Ballot,
    pub(crate) options: Options,
    pub(crate) info: NamespaceInfo,
    pub(crate) mirror: RefCell<Mirror>,
    conns: RefCell<[Option<Rc<Conn>>; HOLDERS_MAX]>,
    pub(crate) reaches: RefCell<Vec<Rc<dyn Reach>>>,
    /// Since when a slot has had no connection that lasted: see [`Shared::sweep`].
    down_since: [Cell<Option<Instant>>; HOLDERS_MAX],
    began: Instant,
    /// The medium of a slot has refused a write, or does none.
    refused: [Cell<bool>; HOLDERS_MAX],
    /// Why a slot was lost last, in words.
    reasons: RefCell<[String; HOLDERS_MAX]>,
    /// Told when anything here has changed that somebody may wait for.
    pub(crate) changed: Notify,
    /// The locks of the volume's blocks.
    pub(crate) locks: Arc<RangeLocks>,
    lease_until: Cell<Instant>,
    proposed_at: Cell<Instant>,
    pub(crate) phase: Cell<Phase>,
    pub(crate) regions: RefCell<Regions>,
    pub(crate) unsettled: RefCell<Bitmap>,
    /// Regions that are to be settled first, since somebody waits for them.
    pub(crate) urgent: RefCell<VecDeque<u64>>,
    /// Regions that are written anew where a replica could not read them.
    pub(crate) mending: RefCell<BTreeSet<u64>>,
    /// Regions that can't be settled, or copied to a replica that lacks them.
    stuck: RefCell<BTreeSet<u64>>,
    /// What the replica that joins lacks still.
    pub(crate) lacks: RefCell<Bitmap>,
    /// The size that the volume is to grow to, in blocks, while that goes on; else 0.
    pub(crate) growing_to: Cell<u64>,
    /// The volume grows once at a time.
    pub(crate) grows: Semaphore,
    /// Snapshots are taken one at a time.
    pub(crate) takes: Semaphore,
    /// The snapshot that replicas are being asked for.
    pub(crate) taking: Cell<Option<SnapshotName>>,
    /// Attempts at snapshots so far.
    attempts: Cell<u32>,
    /// Counts what may have left garbage.
    litter: Cell<u64>,
    /// Up to which of these it was deleted where replicas are reached.
    collected: Cell<Option<u64>>,
    pub(crate) figures: Figures,
}

/// What a volume begins with.
pub(crate) struct Begin {
    pub(crate) shape: Shape,
    pub(crate) ballot: Ballot,
    pub(crate) before: Ballot,
    pub(crate) options: Options,
    pub(crate) mirror: Mirror,
    pub(crate) reaches: Vec<Rc<dyn Reach>>,
    pub(crate) info: NamespaceInfo,
    pub(crate) unsettled: Bitmap,
    pub(crate) changed: Notify,
    pub(crate) figures: Figures,
}

impl Shared {
    pub(crate) fn new(begin: Begin) -> Shared {
        let now = time::now();
        begin.figures.has_holders(begin.shape.holders());
        Shared {
            shape: begin.shape,
            ballot: begin.ballot,
            before: begin.before,
            options: begin.options,
            info: begin.info,
            mirror: RefCell::new(begin.mirror),
            conns: RefCell::default(),
            reaches: RefCell::new(begin.reaches),
            down_since: Default::default(),
            began: now,
            refused: Default::default(),
            reasons: RefCell::default(),
            changed: begin.changed,
            locks: Arc::new(RangeLocks::new(begin.shape.region_blocks.ilog2())),
            lease_until: Cell::default(),
            proposed_at: Cell::new(now),
            phase: Cell::new(Phase::Serving),
            regions: RefCell::default(),
            unsettled: RefCell::new(begin.unsettled),
            urgent: RefCell::default(),
            mending: RefCell::default(),
            stuck: RefCell::default(),
            lacks: RefCell::default(),
            growing_to: Cell::new(0),
            grows: Semaphore::new(1),
            takes: Semaphore::new(1),
            taking: Cell::new(None),
            attempts: Cell::new(0),
            litter: Cell::new(0),
            collected: Cell::new(None),
            figures: begin.figures,
        }
    }

    /// The volume in words.
    pub(crate) fn name(&self) -> String {
        format!("volume {:032x}", self.shape.volume)
    }

    /// Regions of blocks.
    pub(crate) fn span(&self, lba: u64, blocks: u64) -> Span {
        let region = u64::from(self.shape.region_blocks);
        (lba / region, (lba + blocks - 1) / region)
    }

    /// Blocks of the volume that are served.
    pub(crate) fn blocks(&self) -> u64 {
        self.mirror.borrow().blocks()
    }

    /// The shape that counts inside: with the blocks that the volume is growing to, which are marked, settled and copied as all
    /// others are, and served to nobody.
    fn counted(&self) -> Shape {
        let proposed = self.mirror.borrow().current().size(self.shape.blocks);
        Shape { blocks: proposed.max(self.growing_to.get()), ..self.shape }
    }

    /// Blocks that count.
    pub(crate) fn blocks_counted(&self) -> u64 {
        self.counted().blocks
    }

    /// Regions that count.
    pub(crate) fn regions_counted(&self) -> u64 {
        self.counted().regions()
    }

    /// Takes the lock of a region alone, and of what the volume may grow by in it. Returns what of it counts by then, in pieces
    /// that one command reads or writes: none, where growing has come to nothing meanwhile.
    pub(crate) async fn lock_region(&self, region: u64) -> (RangeGuard, impl Iterator<Item = (u64, u64)> + use<>) {
        let region_blocks = u64::from(self.shape.region_blocks);
        let guard = self.locks.lock(region * region_blocks, region_blocks, Mode::Exclusive).await;
        let (first, blocks) = self.counted().region(region);
        (guard, self.cut(first, blocks))
    }

    /// Blocks in pieces that one command reads or writes: the first one of each and how many.
    pub(crate) fn cut(&self, first: u64, blocks: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let step = u64::from(self.info.transfer_blocks_max).min(blocks).max(1);
        (0..blocks).step_by(step as usize).map(move |at| (first + at, step.min(blocks - at)))
    }

    /// Nobody in sync can read a block of the region, which keeps it from being settled or copied. Told once.
    pub(crate) fn stuck(&self, region: u64, error: &device::Error) {
        if self.stuck.borrow_mut().insert(region) {
            tracing::warn!(volume = self.name(), region, %error, "a region can't be settled, or copied to who lacks it");
        }
        self.figures.stuck(self.stuck.borrow().len());
    }

    /// The region is settled, or copied.
    pub(crate) fn unstuck(&self, region: u64) {
        self.stuck.borrow_mut().remove(&region);
        self.figures.stuck(self.stuck.borrow().len());
    }

    /// Whether commands may begin, and if not, what they fail with.
    pub(crate) fn check(&self) -> Result<(), device::Error> {
        if self.mirror.borrow().is_over() {
            return Err(device::Error::Reserved(self.name()));
        }
        match self.phase.get() {
            Phase::Serving => Ok(()),
            Phase::Quiescing | Phase::Closed => Err(device::Error::NotConnected(self.name())),
        }
    }

    /// Whether nothing goes on any more.
    pub(crate) fn is_over(&self) -> bool {
        self.phase.get() == Phase::Closed || self.mirror.borrow().is_over()
    }

    /// A newer host was promised more: this one stops for good.
    pub(crate) fn supersede(&self) {
        if !self.mirror.borrow().is_over() {
            tracing::warn!(volume = self.name(), "another host has attached the volume: this one stops");
            self.mirror.borrow_mut().supersede();
            self.lease_until.set(Instant::default());
            self.changed.notify_all();
        }
    }

    /// Nothing begins any more, and what waits ends.
    pub(crate) fn close(&self) {
        self.phase.set(Phase::Closed);
        self.changed.notify_all();
    }

    /// As [`Shared::check`], for what is asked of the volume as a whole.
    pub(crate) fn check_whole(&self) -> Result<(), Error> {
        self.check().map_err(|error| match error {
            device::Error::Reserved(_) => Error::Superseded,
            _ => Error::Detached,
        })
    }

    // Snapshots.

    /// A name that was never used.
    pub(crate) fn next_name(&self) -> SnapshotName {
        self.attempts.set(self.attempts.get() + 1);
        SnapshotName { ballot: self.ballot, attempt: self.attempts.get() }
    }

    /// Replicas may have snapshots that nobody names.
    pub(crate) fn litter(&self) {
        self.litter.set(self.litter.get() + 1);
        self.changed.notify_all();
    }

    /// Counts how often they may have got some.
    pub(crate) fn littered(&self) -> u64 {
        self.litter.get()
    }

    /// What there was up to that count is deleted where replicas are reached, as far as they do that.
    pub(crate) fn set_collected(&self, littered: u64) {
        if self.collected.replace(Some(littered)) != Some(littered) {
            self.changed.notify_all();
        }
    }

    /// Whether nothing is left to be deleted where replicas are reached.
    pub(crate) fn is_collected(&self) -> bool {
        self.collected.get() == Some(self.litter.get())
    }

    // Connections.

    /// The connection of a slot, if it is up.
    pub(crate) fn conn(&self, slot: usize) -> Option<Rc<Conn>> {
        self.conns.borrow()[slot].clone().filter(|conn| conn.is_up())
    }

    /// The connection of a slot over which data may be sent.
    pub(crate) fn usable(&self, slot: usize) -> Option<Rc<Conn>> {
        self.conn(slot).filter(|_| self.mirror.borrow().is_usable(slot))
    }

    /// Whether one is missing that a write needs.
    pub(crate) fn is_short(&self) -> bool {
        let targets = self.mirror.borrow().targets();
        targets.iter().any(|slot| self.usable(slot).is_none())
    }

    /// A connection has preempted.
    pub(crate) fn connected(&self, conn: &Rc<Conn>) {
        conn.since.set(time::now());
        // Of what the volume began to grow by when the connection was made already, it knows no log.
        if !conn.is_covered(self.regions_counted()) {
            conn.end();
        }
        conn.count_regions(self.regions_counted());
        self.mirror.borrow_mut().connected(conn.slot, conn.label.life);
        self.conns.borrow_mut()[conn.slot] = Some(Rc::clone(conn));
        self.changed.notify_all();
    }

    /// Takes note of connections that have ended. One that was there for less time than a replica has to come back was no return,
    /// nor was one that never took the record: what ends each connection so is as good as away from the first of them on.
    pub(crate) fn sweep(&self) {
        let mut any = false;
        for slot in 0..self.shape.holders() {
            let ended = self.conns.borrow()[slot].clone().filter(|conn| !conn.is_up());
            let Some(conn) = ended else { continue };
            self.conns.borrow_mut()[slot] = None;
            let was_of_use = self.mirror.borrow().is_checked(slot);
            self.mirror.borrow_mut().down(slot);
            self.refused[slot].set(conn.is_refused());
            let has_lasted = was_of_use && conn.since.get().elapsed() >= self.options.give_up_after;
            if has_lasted || self.down_since[slot].get().is_none() {
                self.down_since[slot].set(Some(time::now()));
                self.reasons.borrow_mut()[slot].clear();
            }
            self.note(slot, conn.reason());
            any = true;
        }
        if any {
            self.tell_states();
            self.changed.notify_all();
        }
    }

    /// Why a slot can't be had: told once, not with every try.
    pub(crate) fn note(&self, slot: usize, reason: String) {
        let mut reasons = self.reasons.borrow_mut();
        if reasons[slot] != reason {
            tracing::warn!(volume = self.name(), slot, reason, "a holder is lost");
            reasons[slot] = reason;
        }
    }

    /// Why a slot was lost last.
    pub(crate) fn reason(&self, slot: usize) -> String {
        self.reasons.borrow()[slot].clone()
    }

    /// A replica ends each connection under the same command: it is left out, as one that is away. The last one is not.
    pub(crate) fn give_up(&self, slot: usize) {
        if self.mirror.borrow().targets() == Set::one(slot) {
            return;
        }
        if let Some(conn) = self.conn(slot) {
            conn.end();
        }
        self.sweep();
        self.refused[slot].set(true);
        self.changed.notify_all();
    }

    /// Whether the slot's medium has refused a write, or does none.
    pub(crate) fn is_refused(&self, slot: usize) -> bool {
        self.refused[slot].get()
    }

    /// Since when a slot has had no connection that lasted.
    pub(crate) fn down_since(&self, slot: usize) -> Instant {
        self.down_since[slot].get().unwrap_or(self.began)
    }

    // The record.

    /// A record is stable at a holder.
    pub(crate) fn accepted(&self, slot: usize, record: &Record) {
        let is_stable = self.mirror.borrow_mut().accepted(slot, record);
        self.refused[slot].set(false);
        if is_stable {
            tracing::debug!(volume = self.name(), record = ?self.mirror.borrow().current(), "a record is stable");
            self.extend_lease(self.proposed_at.get());
        }
        self.tell_states();
        self.changed.notify_all();
    }

    /// Proposes by `how`, which says whether there was anything to propose.
    pub(crate) fn propose(&self, how: impl FnOnce(&mut Mirror) -> bool) -> bool {
        let is_new = how(&mut self.mirror.borrow_mut());
        if is_new {
            self.proposed_at.set(time::now());
            self.tell_states();
            self.changed.notify_all();
        }
        is_new
    }

    fn tell_states(&self) {
        let mirror = self.mirror.borrow();
        for slot in 0..self.shape.holders() {
            let state = match () {
                () if mirror.joining().has(slot) => State::Joining,
                () if self.conns.borrow()[slot].is_none() => State::Away,
                () if mirror.current().in_sync.has(slot) || slot >= usize::from(self.shape.replicas) => State::InSync,
                () => State::Behind,
            };
            self.figures.replica(slot).state.store(state as u64, Relaxed);
        }
    }

    // The lease.

    fn lease(&self) -> Duration {
        Duration::from_millis(u64::from(self.shape.lease_ms))
    }

    /// A majority has confirmed, in a round that began then, that nobody newer was promised anything.
    pub(crate) fn extend_lease(&self, began: Instant) {
        let until = began + (self.lease() - self.lease() / LEASE_MARGIN);
        if until > self.lease_until.get() {
            self.lease_until.set(until);
            self.changed.notify_all();
        }
    }

    /// Whether what is read now may be believed.
    pub(crate) fn is_leased(&self) -> bool {
        time::now() < self.lease_until.get()
    }

    /// How often the lease is renewed.
    pub(crate) fn renew_every(&self) -> Duration {
        self.lease() / 3
    }

    // Waiting.

    /// Waits for a change, at most as long as commands wait; `since`: when that began.
    pub(crate) async fn wait(&self, since: &mut Option<Instant>, changed: Notified) -> Result<(), device::Error> {
        let deadline = *since.get_or_insert_with(time::now) + self.options.wait_max;
        let left = deadline.duration_since(time::now());
        time::timeout(left, changed).await.map_err(|_| device::Error::NotConnected(self.name()))
    }

    /// Takes the lock of blocks, at most as long as commands wait: who holds it may be a change that no replica takes.
    pub(crate) async fn lock(&self, first: u64, blocks: u64, mode: Mode) -> Result<RangeGuard, device::Error> {
        let mut lock = pin!(self.locks.lock(first, blocks, mode));
        // Without a timer, where it is free.
        if let Poll::Ready(guard) = poll_fn(|cx| Poll::Ready(lock.as_mut().poll(cx))).await {
            return Ok(guard);
        }
        let locked = time::timeout(self.options.wait_max, lock).await;
        locked.map_err(|_| device::Error::NotConnected(self.name()))
    }

    /// Waits until no block of these regions may differ between replicas.
    pub(crate) async fn settled(&self, (first, last): Span) -> Result<(), device::Error> {
        let mut since = None;
        loop {
            let changed = self.changed.notified();
            let next = {
                let unsettled = self.unsettled.borrow();
                if unsettled.is_empty() {
                    return Ok(());
                }
                unsettled.next(first).filter(|&region| region <= last)
            };
            let Some(region) = next else { return Ok(()) };
            if !self.urgent.borrow().contains(&region) {
                self.urgent.borrow_mut().push_back(region);
                self.changed.notify_all();
            }
            self.check()?;
            self.wait(&mut since, changed).await?;
        }
    }

    /// Whether commands of users are under way, as far as regions tell: writes, or reads in a queue.
    pub(crate) fn is_busy(&self) -> bool {
        let is_read = (0..self.shape.holders()).any(|slot| self.figures.replica(slot).queue() > 0);
        is_read || self.regions.borrow().busy().next().is_some()
    }

    /// A replica to read from, but for those in `without`.
    pub(crate) fn best(&self, without: Set) -> Option<Rc<Conn>> {
        let readable = self.mirror.borrow().readable().without(without);
        readable.iter().filter_map(|slot| self.usable(slot)).min_by_key(|conn| conn.cost())
    }
}

/// How long who attaches waits for older leases to run out.
pub(crate) fn lease_wait(shape: &Shape) -> Duration {
    let lease = Duration::from_millis(u64::from(shape.lease_ms));
    lease + lease / LEASE_MARGIN
}
