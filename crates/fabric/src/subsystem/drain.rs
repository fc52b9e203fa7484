//! Draining: whoever loses a right lets go of what was begun by it, and whoever has taken the right waits for that.
//!
//! Invariants:
//! - A right is taken in this order: what holds from now on is published, the queues concerned are asked to drain, their commands
//!   that execute come to their end, and only then it is answered. So what is read after the answer is what stays.
//! - What has not begun never does: see [`super::rights`].

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use nvme::Status;

use super::connection::Connection;
use super::controller::Controller;
use super::reservation::HostId;
use super::slots::Stage;
use super::stats::CommandKind;

/// What becomes of a connection's commands on a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Drain {
    /// Those that would not be admitted now end.
    Finish,
    /// All that execute end; those that have not begun are aborted.
    Abort,
}

/// Asks a connection to drain a namespace. The command that asked waits until every clone of `hold` is gone: each command
/// that executes keeps one until it ends, and with its connection goes whatever that had.
#[derive(Clone)]
pub(super) struct DrainRequest {
    pub nsid: u32,
    pub how: Drain,
    pub hold: Arc<Hold>,
}

/// Kept by what a drain waits for; see [`DrainRequest`].
pub(super) struct Hold(Arc<Drained>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.done.store(true, Ordering::Release);
        let waker = self.0.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[derive(Default)]
struct Drained {
    done: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// Waits for what `watchers` have under way on a namespace, which each knows by an identifier, as far as `how` says so for
/// their host.
///
/// No command slips through: a connection looks at what is published and begins a command in one step. It takes this request
/// either after that step, and then finds the command executing; or before, and then what was published before the request
/// was made (the request goes through a mutex) is what it looks at. A queue that is connected meanwhile either was in the
/// controller's list when this went through it, or has entered it since and so looks at what was published before.
pub(super) async fn drain(watchers: &[(Arc<Controller>, u32)], how: impl Fn(&HostId) -> Option<Drain>) {
    let drained: Arc<Drained> = Arc::default();
    let hold = Arc::new(Hold(drained.clone()));
    for (controller, nsid) in watchers {
        if let Some(how) = how(&controller.host_id()) {
            controller.drain(&DrainRequest { nsid: *nsid, how, hold: hold.clone() });
        }
    }
    drop(hold);
    poll_fn(|cx| {
        *drained.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        if drained.done.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl Connection {
    /// Does what others have asked of this queue.
    pub(super) fn drain_requested(&mut self) {
        for request in self.attention.take_drains() {
            self.look_again();
            self.drain(&request);
        }
    }

    /// Lets go of what this queue has under way on a namespace: see [`DrainRequest`]. Reservation commands are left alone:
    /// they wait for each other's turn, and the one that asked is perhaps among them.
    fn drain(&mut self, request: &DrainRequest) {
        let concerned = self.slots.iter().filter(|(_, entry)| {
            entry.command.nsid.get() == request.nsid && entry.kind.is_some_and(|kind| kind != CommandKind::Reservation)
        });
        let concerned: Vec<u16> = concerned.map(|(slot, _)| slot).collect();
        for slot in concerned {
            let entry = self.slots.at(slot);
            let (command, stage, life) = (entry.command, entry.stage, entry.life());
            if stage == Stage::Executing {
                if request.how == Drain::Abort || self.refusal(&command, life).is_some() {
                    self.slots.at(slot).hold = Some(request.hold.clone());
                }
            } else if stage.is_unbegun() && request.how == Drain::Abort {
                self.part(slot); // each half is told the same
                self.end_unbegun(slot, Status::ABORTED_PREEMPT.do_not_retry());
            } else {
                self.end_if_refused(slot);
            }
        }
    }
}
