//! [`PerThread`]: a remote namespace for all threads of a process, each with a queue of its own.
//!
//! Invariant: a command goes by the queue of the thread that gives it; no lock or channel is between two threads.
//! Downsides: a thread joins with its first command, and what it gives before its queue is connected fails
//! ([`Error::NotConnected`](device::Error::NotConnected)): who starts a thread has it join and wait. And a thread's link is that
//! queue's: after it has left and joined again its epochs begin anew, so that this is no member of a store.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use device::{Durability, Error, Lba, Link, Namespace, NamespaceInfo, Zone, ZoneAction, ZonedInfo};
use engine::View;
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

    /// This thread's reactor is about to end. A queue whose reactor is gone answers nothing any more: whoever joins on one calls
    /// this before it ends, and asks for nothing afterwards.
    pub fn leave(&self) {
        QUEUES.with_borrow_mut(|queues| queues.remove(&self.number));
    }

    fn joined(&self) -> Option<Rc<RemoteNamespace>> {
        QUEUES.with_borrow(|queues| queues.get(&self.number).cloned())
    }

    /// The namespace by this thread's queue; a thread that has none joins.
    pub fn here(&self) -> Rc<RemoteNamespace> {
        if let Some(joined) = self.joined() {
            return joined;
        }
        let joined = Rc::new(RemoteNamespace::join((*self.joiner).clone()));
        QUEUES.with_borrow_mut(|queues| queues.insert(self.number, joined.clone()));
        joined
    }
}

impl Namespace for PerThread {
    device::delegate_namespace!(this => { this => this.here() }; read, write, flush, compare, compare_and_write, write_zeroes,
        deallocate, verify, write_uncorrectable, hint_lifetime);
    // What is only asked costs no queue: any thread may, also one without a reactor.
    //
    // Of a remote medium that has failed each write learns by its error: what serves it on goes on saying that it takes writes.
    device::namespace_without!(writability, used_blocks, attributes);

    fn info(&self) -> NamespaceInfo {
        self.joined().map_or_else(|| self.joiner.info.clone(), |here| here.info())
    }

    fn link(&self) -> Link {
        self.joined().map_or(Link { is_up: false, epoch: 0 }, |here| here.link())
    }

    fn zoned(&self) -> Option<ZonedInfo> {
        self.joined().map_or(self.joiner.zoned, |here| here.zoned())
    }

    async fn zones(&self, from: Lba, max: usize) -> Result<Vec<Zone>, Error> {
        self.here().zones(from, max).await
    }

    async fn change_zone(&self, zone: Option<Lba>, action: ZoneAction) -> Result<(), Error> {
        self.here().change_zone(zone, action).await
    }

    async fn append(&self, zone: Lba, data: View, durability: Durability) -> Result<Lba, Error> {
        self.here().append(zone, data, durability).await
    }
}
