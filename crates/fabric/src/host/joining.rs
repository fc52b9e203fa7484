//! Other reactors' part in an association: each brings an I/O queue of its own to the one controller, and shares nothing with
//! the others on the data path.
//!
//! What crosses threads is [`Offers`]: the association in force (its number, the controller, what is known of its namespaces)
//! and the queue identifiers that are free. It is looked at when an association begins or ends, by no command.
//!
//! Invariant: an association that one reactor has lost is over for all: whoever sees its queue end withdraws the offer, and the
//! others end their queues when they see that.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use device::{NamespaceInfo, ZonedInfo};

use super::options::{Options, Security};
use super::queue::QueueConfig;
use super::shape::{Controller, Found};

/// An association that can be joined.
#[derive(Clone)]
pub(super) struct Offer {
    pub(super) number: u64,
    pub(super) controller: Controller,
    pub(super) config: QueueConfig,
    /// What secures its queues.
    pub(super) security: Security,
    /// The namespaces that are there.
    pub(super) namespaces: Vec<(u32, Found)>,
}

#[derive(Default)]
struct State {
    /// Moves with every change.
    generation: u64,
    /// Of the last offer.
    number: u64,
    offer: Option<Offer>,
    /// Queue identifiers; the one given back last is used last, so that the target has noticed its end.
    free: VecDeque<u16>,
    waiting: Vec<Waker>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Offers {
    state: Mutex<State>,
}

impl Offers {
    /// A panic elsewhere while the lock was held leaves fields that are valid one by one: at worst a waker is missing, of the
    /// thread that panicked.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        state.generation += 1;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
        result
    }

    /// Offers a new association; returns its number.
    pub(super) fn offer(
        &self,
        controller: Controller,
        (config, security): (QueueConfig, Security),
        spare: impl Iterator<Item = u16>,
        namespaces: Vec<(u32, Found)>,
    ) -> u64 {
        self.change(|state| {
            state.number += 1;
            state.free = spare.collect();
            state.offer = Some(Offer { number: state.number, controller, config, security, namespaces });
            state.number
        })
    }

    /// Tells of a namespace that was found, or found changed.
    pub(super) fn update(&self, nsid: u32, found: &Found) {
        self.change(|state| {
            let Some(offer) = &mut state.offer else { return };
            offer.namespaces.retain(|(known, _)| *known != nsid);
            offer.namespaces.push((nsid, found.clone()));
        });
    }

    /// The association with this number is over.
    pub(super) fn withdraw(&self, number: u64) {
        self.change(|state| {
            if state.offer.as_ref().is_some_and(|offer| offer.number == number) {
                state.offer = None;
            }
        });
    }

    /// The association in force.
    pub(super) fn current(&self) -> Option<Offer> {
        self.lock().offer.clone()
    }

    /// Whether the association with this number is in force.
    pub(super) fn is_current(&self, number: u64) -> bool {
        self.lock().offer.as_ref().is_some_and(|offer| offer.number == number)
    }

    /// A queue identifier of the association with this number.
    pub(super) fn take_id(self: &Arc<Offers>, number: u64) -> Option<QueueId> {
        let mut state = self.lock();
        state.offer.as_ref().filter(|offer| offer.number == number)?;
        let id = state.free.pop_front()?;
        Some(QueueId { shared: Arc::clone(self), number, id })
    }

    /// Ends with the first change after the one that `seen` says.
    pub(super) fn poll_changed(&self, seen: &mut u64, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.generation != *seen {
            *seen = state.generation;
            return Poll::Ready(());
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// A queue identifier that is in use; dropped, it is free again.
pub(super) struct QueueId {
    shared: Arc<Offers>,
    number: u64,
    pub(super) id: u16,
}

impl Drop for QueueId {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if state.offer.as_ref().is_some_and(|offer| offer.number == self.number) {
            state.free.push_back(self.id);
        }
    }
}

/// What another reactor needs to join a namespace's association; it may be sent to any thread.
#[derive(Clone)]
pub struct Joiner {
    pub(super) shared: Arc<Offers>,
    pub(super) options: Options,
    pub(super) nsid: u32,
    pub(super) info: NamespaceInfo,
    pub(super) zoned: Option<ZonedInfo>,
}

const _: () = {
    const fn crosses_threads<T: Send>() {}
    crosses_threads::<Joiner>();
};
