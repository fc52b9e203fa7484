//! One change of blocks on its way to the replicas.
//!
//! Invariants:
//! - It is acknowledged when all of NEED and all that join have it. Who joins could be left out; to wait costs a slow replica's
//!   time while it joins, and saves keeping account of what it was not given.
//! - What has begun is finished, also when its caller is gone: were it left half done, replicas in sync would differ, and reads
//!   would see the one value and then the other. It holds its lock until then.
//! - In steady state all replicas get it in one turn: no task and no wait lies between.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use device::RangeGuard;
use engine::Buf;
use engine::task::{self, LocalFuture};
use engine::time::{self, Sleep};

use crate::change::Change;
use crate::conn::{Conn, Lost};
use crate::patience::Patience;
use crate::record::{HOLDERS_MAX, Set};
use crate::regions::Span;
use crate::shared::{Phase, Shared};

/// A change that goes on when its caller is gone. The caller's wait has a bound, where a replica is missing.
pub(crate) struct Finishing {
    shared: Rc<Shared>,
    change: Option<LocalFuture<'static, Result<(), device::Error>>>,
    patience: Option<Sleep>,
}

/// Makes a change of the blocks from `lba` on, in the regions of `span`, with their lock held.
pub(crate) fn finish(shared: &Rc<Shared>, guard: RangeGuard, lba: u64, change: Change, span: Span) -> Finishing {
    let owned = Rc::clone(shared);
    let change = Box::pin(async move {
        let _guard = guard;
        fan_out(&owned, lba, change, span, Set::default()).await
    });
    Finishing { shared: Rc::clone(shared), change: Some(change), patience: None }
}

impl Future for Finishing {
    type Output = Result<(), device::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(change) = &mut this.change else { return Poll::Ready(Err(device::Error::Aborted)) };
        if let Poll::Ready(result) = change.as_mut().poll(cx) {
            this.change = None;
            return Poll::Ready(result);
        }
        // Counted from the first time on: a replica that comes and goes is not waited for anew each time.
        if !this.shared.is_short() {
            return Poll::Pending;
        }
        let wait_max = this.shared.options.wait_max;
        let patience = this.patience.get_or_insert_with(|| time::sleep(wait_max));
        Pin::new(patience).poll(cx).map(|()| Err(device::Error::Disconnected(this.shared.name())))
    }
}

impl Drop for Finishing {
    fn drop(&mut self) {
        if let Some(change) = self.change.take()
            && self.shared.phase.get() != Phase::Closed
            && task::in_world()
        {
            task::spawn_boxed(change).detach();
        }
    }
}

/// Counts a write while it is under way.
struct Busy<'a>(&'a Shared, Span);

impl<'a> Busy<'a> {
    fn new(shared: &'a Shared, span: Span) -> Busy<'a> {
        shared.regions.borrow_mut().begin(span, time::now());
        Busy(shared, span)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        // Where the world has ended there is no time either, and nobody who would ask.
        if task::in_world() {
            self.0.regions.borrow_mut().end(self.1, time::now());
        }
    }
}

/// The change at each replica, and over which connection.
struct Puts<'a, F> {
    puts: [Pin<&'a mut Option<F>>; HOLDERS_MAX],
    over: [Option<Rc<Conn>>; HOLDERS_MAX],
    done: Set,
    has_begun: bool,
    /// Replicas that may have it, wholly or in part, without having said so.
    doubt: Set,
    /// What replicas say that have not made it, and will not.
    refused: [Option<device::Error>; HOLDERS_MAX],
    patience: Patience,
}

/// How far a change has come.
enum Outcome {
    Made,
    /// Every replica of NEED has refused it, and says that it has done nothing.
    Refused(device::Error),
    Over(device::Error),
}

impl<F: Future<Output = Result<(), Lost>>> Puts<'_, F> {
    fn stop(&mut self, slot: usize) {
        self.puts[slot].set(None);
        self.over[slot] = None;
    }

    /// Nobody needs the change at the slot any more. What is under way there is not waited for, and must not arrive when newer
    /// changes have: its connection ends with it, and the next one has it aborted.
    fn leave(&mut self, slot: usize) {
        if let Some(conn) = &self.over[slot] {
            conn.end();
        }
        self.stop(slot);
    }

    /// The connection has ended under the change. What no replica has done is the change's fault: to go on without them would put
    /// out one after the other.
    fn ended(&mut self, shared: &Shared, slot: usize) {
        self.doubt = self.doubt.with(Set::one(slot));
        self.stop(slot);
        if self.patience.is_over(slot, shared.options.give_up_after) && !self.done.is_empty() {
            shared.give_up(slot);
        }
    }

    /// Goes on with one replica.
    fn go_on(&mut self, shared: &Shared, slot: usize, cx: &mut Context<'_>, begin: &impl Fn(&Rc<Conn>) -> F) {
        let conn = shared.usable(slot);
        let is_same = match (&conn, &self.over[slot]) {
            (Some(conn), Some(over)) => Rc::ptr_eq(conn, over),
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            if self.over[slot].is_some() {
                self.ended(shared, slot);
            }
            if let Some(conn) = &conn {
                self.has_begun = true;
                self.puts[slot].set(Some(begin(conn)));
                self.over[slot] = Some(Rc::clone(conn));
            }
        }
        let Some(put) = self.puts[slot].as_mut().as_pin_mut() else { return };
        match put.poll(cx) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => {
                self.done = self.done.with(Set::one(slot));
                self.stop(slot);
            }
            Poll::Ready(Err(Lost::Ended)) => self.ended(shared, slot),
            Poll::Ready(Err(Lost::Refused(error))) if error.outcome_unknown() => {
                self.doubt = self.doubt.with(Set::one(slot));
                self.refuse(shared, slot, &error);
            }
            Poll::Ready(Err(Lost::Refused(error))) => {
                self.refused[slot] = Some(error);
                self.stop(slot);
            }
        }
    }

    /// The replica is left behind, as one that others go on without.
    fn refuse(&mut self, shared: &Shared, slot: usize, error: &device::Error) {
        if let Some(conn) = shared.usable(slot) {
            conn.refuse(error);
        }
        self.stop(slot);
    }

    /// What the replicas have said comes to; `None`: that is not known yet.
    ///
    /// A refusal of all of NEED is the volume's, where each says that it has done nothing. Where one has made the change, or may
    /// have, the change goes on until it is made: reads might see the one value and, from another replica or after a power loss,
    /// the other. So those that refuse it are left behind.
    fn judge(&mut self, shared: &Shared) -> Option<Outcome> {
        let (need, targets) = (shared.mirror.borrow().need(), shared.mirror.borrow().targets());
        let left = targets.without(self.done);
        if left.is_empty() {
            return Some(Outcome::Made);
        }
        let has_refused = |slot: &usize| self.refused[*slot].is_some();
        if need.and(self.done.with(self.doubt)).is_empty() && need.iter().all(|slot| has_refused(&slot)) {
            let errors = need.iter().find_map(|slot| self.refused[slot].clone());
            return errors.map(Outcome::Refused);
        }
        if left.iter().all(|slot| has_refused(&slot)) {
            for slot in left.iter() {
                if let Some(error) = self.refused[slot].take() {
                    self.refuse(shared, slot, &error);
                }
            }
        }
        None
    }

    fn poll(&mut self, shared: &Shared, cx: &mut Context<'_>, begin: &impl Fn(&Rc<Conn>) -> F) -> Option<Outcome> {
        if shared.is_over() {
            let refused = shared.check().err().unwrap_or(device::Error::Aborted);
            return Some(Outcome::Over(if self.has_begun { device::Error::Aborted } else { refused }));
        }
        let targets = shared.mirror.borrow().targets();
        for slot in 0..HOLDERS_MAX {
            if !targets.has(slot) {
                self.leave(slot);
            } else if !self.done.has(slot) && self.refused[slot].is_none() {
                self.go_on(shared, slot, cx, begin);
            }
        }
        // Who is needed is asked for anew: what has ended meanwhile may have changed it.
        self.judge(shared)
    }
}

/// Makes the change at all that need it but for those of `done`, which have it. The caller holds the lock of the blocks, and the
/// regions are settled, or are being settled by this.
pub(crate) async fn fan_out(
    shared: &Rc<Shared>,
    lba: u64,
    change: Change,
    span: Span,
    done: Set,
) -> Result<(), device::Error> {
    let _busy = Busy::new(shared, span);
    let begin = |conn: &Rc<Conn>| Rc::clone(conn).put(lba, change.clone(), span);
    let (first, second, third) = (pin!(None), pin!(None), pin!(None));
    let (puts, over, patience) = ([first, second, third], [None, None, None], Patience::default());
    let (doubt, refused) = (Set::default(), [None, None, None]);
    let mut puts = Puts { puts, over, done, has_begun: false, doubt, refused, patience };
    let mut changed = pin!(shared.changed.notified());
    loop {
        let outcome = poll_fn(|cx| {
            loop {
                if let Some(outcome) = puts.poll(shared, cx, &begin) {
                    return Poll::Ready(outcome);
                }
                if changed.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                changed.set(shared.changed.notified());
            }
        })
        .await;
        match outcome {
            Outcome::Made => return Ok(()),
            Outcome::Over(error) => return Err(error),
            Outcome::Refused(error) if is_unchanged(shared, lba, change.blocks(shared.shape.block_size)).await => {
                return Err(error);
            }
            // Those that differ are being left out; the others are looked at again then.
            Outcome::Refused(_) => shared.changed.notified().await,
        }
    }
}

/// Whether all of NEED have the same blocks. A medium that has become full in the middle of a change may have made a part of it:
/// replicas that differ are left out. So are those that join: they may have what the others have refused.
async fn is_unchanged(shared: &Rc<Shared>, lba: u64, blocks: u64) -> bool {
    let (need, joining) = (shared.mirror.borrow().need(), shared.mirror.borrow().joining());
    for conn in joining.without(need).iter().filter_map(|slot| shared.conn(slot)) {
        conn.end();
    }
    shared.sweep();
    let mut same: Vec<Rc<Conn>> = need.iter().filter_map(|slot| shared.usable(slot)).collect();
    while same.len() > 1
        && let Some(other) = odd_one(shared, &same, lba, blocks).await
    {
        same.remove(other);
    }
    let is_same = |slot: usize| same.iter().any(|conn| conn.slot == slot);
    let need = shared.mirror.borrow().need();
    need.iter().filter(|&slot| !is_same(slot)).for_each(|slot| shared.give_up(slot));
    need.len() == 1 || need.iter().all(is_same)
}

/// One that differs from the first, or can't be read.
async fn odd_one(shared: &Shared, conns: &[Rc<Conn>], lba: u64, blocks: u64) -> Option<usize> {
    for (at, now) in shared.cut(lba, blocks) {
        let bytes = (now * u64::from(shared.shape.block_size)) as usize;
        let mut first = None;
        for (index, conn) in conns.iter().enumerate() {
            match (conn.read(at, Buf::with_len(bytes)).await, &first) {
                (Ok(copy), None) => first = Some(copy),
                (Ok(copy), Some(first)) if copy[..] == first[..] => {}
                _ => return Some(index),
            }
        }
    }
    None
}
