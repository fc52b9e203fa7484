//! [`PerThread`]: a remote namespace for all threads of a process, each with a queue of its own.
//!
//! Invariant: a command goes by the queue of the thread that gives it; no lock or channel is between two threads.
//! Downside: a thread joins when it first asks, and what it gives before its queue is connected fails
//! ([`Error::NotConnected`](device::Error::NotConnected)); who starts a thread has it join and wait.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use device::Namespace;
use engine::time::{self, Elapsed};

use super::joining::Joiner;
use super::remote::RemoteNamespace;

thread_local! {
    /// This thread's queues, by the number of the namespace.
    static QUEUES: RefCell<BTreeMap<u64, Rc<RemoteNamespace>>> = const { RefCell::new(BTreeMap::new()) };
}

/// See the module. A clone is the same namespace.
#[derive(Clone)]
pub struct PerThread {
    /// Of all there were in this process.
    number: u64,
    joiner: Arc<Joiner>,
}

const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<PerThread>();
};

impl PerThread {
    /// Of a namespace that this thread has connected, with [`Options::queues_elsewhere`](super::Options::queues_elsewhere) for the
    /// others.
    pub fn new(remote: RemoteNamespace) -> PerThread {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let joiner = Arc::new(remote.joiner());
        QUEUES.with_borrow_mut(|queues| queues.insert(number, Rc::new(remote)));
        PerThread { number, joiner }
    }

    /// Makes it usable on this thread's reactor, and waits so long for the connection.
    ///
    /// # Errors
    /// There is no connection yet; it is still being made.
    pub async fn join(&self, wait: Duration) -> Result<(), Elapsed> {
        time::timeout(wait, self.here().connected()).await
    }

    /// This thread's reactor is about to end.
    pub fn leave(&self) {
        QUEUES.with_borrow_mut(|queues| queues.remove(&self.number));
    }

    /// The namespace by this thread's queue; a thread that has none joins.
    pub fn here(&self) -> Rc<RemoteNamespace> {
        if let Some(joined) = QUEUES.with_borrow(|queues| queues.get(&self.number).cloned()) {
            return joined;
        }
        let joined = Rc::new(RemoteNamespace::join((*self.joiner).clone()));
        QUEUES.with_borrow_mut(|queues| queues.insert(self.number, joined.clone()));
        joined
    }
}

impl Namespace for PerThread {
    device::delegate_namespace!(this => { this => this.here() });
}
