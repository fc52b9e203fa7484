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
use engine::task::{self, LocalFuture};
use engine::time::{self, Sleep};

use crate::conn::{Change, Conn, Lost};
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
    /// A replica may have it, wholly or in part, without having said so.
    is_in_doubt: bool,
    patience: Patience,
}

impl<F: Future<Output = Result<(), Lost>>> Puts<'_, F> {
    fn stop(&mut self, slot: usize) {
        self.puts[slot].set(None);
        self.over[slot] = None;
    }

    /// The connection has ended under the change.
    fn ended(&mut self, shared: &Shared, slot: usize) {
        self.is_in_doubt = true;
        self.stop(slot);
        if self.patience.is_over(slot, shared.options.give_up_after) {
            shared.give_up(slot);
        }
    }

    /// Goes on with one replica. An error is the whole change's.
    fn go_on(
        &mut self,
        shared: &Shared,
        slot: usize,
        cx: &mut Context<'_>,
        begin: &impl Fn(&Rc<Conn>) -> F,
    ) -> Result<(), device::Error> {
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
        let Some(put) = self.puts[slot].as_mut().as_pin_mut() else { return Ok(()) };
        match put.poll(cx) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => {
                self.done = self.done.with(Set::one(slot));
                self.stop(slot);
            }
            Poll::Ready(Err(Lost::Ended)) => {
                self.ended(shared, slot);
            }
            Poll::Ready(Err(Lost::Refused(error))) => {
                // The last good replica's word is the volume's, where it says that nothing was written. Where it does not, reads
                // might see the one value and, after a power loss there, the other: the change goes on until it is made.
                self.is_in_doubt |= error.outcome_unknown();
                if shared.mirror.borrow().targets() == Set::one(slot) && !self.is_in_doubt {
                    return Err(error);
                }
                if let Some(conn) = &conn {
                    conn.refuse(&error);
                }
                self.stop(slot);
            }
        }
        Ok(())
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
    let mut puts = Puts { puts, over, done, has_begun: false, is_in_doubt: false, patience };
    let mut changed = pin!(shared.changed.notified());
    poll_fn(|cx| {
        loop {
            if shared.is_over() {
                let open = device::Error::Aborted;
                let refused = shared.check().err().unwrap_or(device::Error::Aborted);
                return Poll::Ready(Err(if puts.has_begun { open } else { refused }));
            }
            let targets = shared.mirror.borrow().targets();
            for slot in 0..HOLDERS_MAX {
                if !targets.has(slot) {
                    puts.stop(slot);
                } else if !puts.done.has(slot)
                    && let Err(error) = puts.go_on(shared, slot, cx, &begin)
                {
                    return Poll::Ready(Err(error));
                }
            }
            // Asked for anew: what has ended meanwhile may have changed it.
            if shared.mirror.borrow().targets().without(puts.done).is_empty() {
                return Poll::Ready(Ok(()));
            }
            if changed.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            changed.set(shared.changed.notified());
        }
    })
    .await
}
