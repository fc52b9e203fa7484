//! The server's sockets: each connection is served by one thread, whole; all threads share the items.
//!
//! Invariants:
//! - A connection holds no more than its session does and one batch that is being sent; nothing is received while replies wait, so
//!   that a peer that does not read is slowed by its own socket.
//! - Where clients have to say who they are, one address has a share of the connections until they have: whoever says nothing, and
//!   comes back when it is ended for that, leaves room for others.
//! - Nothing on a connection's way blocks: what waits (for the peer, for flash, for room) lets the thread's others go on.

mod connection;
mod counters;
mod desk;
mod dump;
mod figures;
mod holdings;
mod prefixes;
mod room;
mod seen;
mod shared;
mod statistics;
mod times;
mod watch;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::net::serving::{Dealer, accept_next, all_closed};
use engine::net::{DetachedStream, TcpListener, UnixListener, UnixStream};
use engine::sync::{MailReceiver, MailSender, Notify, Semaphore};
use engine::task::{LocalFuture, Task};
use engine::time;
use tls::{HANDSHAKE_TIME_MAX, REFUSALS_MAX, Transport};

pub use counters::{Counters, Totals};
pub use desk::Desk;
pub use figures::CacheMetrics;
pub use holdings::{Figures, FlashFigures, Holdings, Listed, Tiered};
#[cfg(any(test, feature = "testing"))]
pub(crate) use prefixes::Prefixes;
use room::keep_memory;
pub use room::resident_bytes;
pub use shared::{Clock, Options, Program, Said, Shared};
pub use statistics::cpu_seconds;
pub use times::Times;
use watch::tell_evictions;

use crate::flash::Tier;
use crate::item::Seconds;
use crate::protocol::Now;
use crate::session::{Ending, Server};
use crate::slot::Slots;
use crate::store::Store;
use connection::{Connection, Origin, Tcp};
use room::{Resting, Spares};
use seen::{Activity, Seen};
use shared::{NoPlace, Place};

/// How often a thread looks at the clock and for connections that rest too long. Times are in whole seconds.
const TICK: Duration = Duration::from_millis(250);
/// After how long a connection in the middle of a command or a reply has stopped, where memory is short.
const STUCK_SECONDS: u32 = 2;
/// How long a connection may take to say who it is, where that is asked for. Chosen: as long as a TLS handshake may.
const AUTHENTICATION_SECONDS_MAX: u32 = HANDSHAKE_TIME_MAX.as_secs() as u32;
/// The part of such connections that is ended at a tick: it may be enough.
const STUCK_PART: usize = 8;

/// A connection on its way from the thread that accepted it to the one that serves it.
pub enum Accepted {
    /// TCP, before a handshake if there is to be one.
    Tcp(DetachedStream),
    /// A socket of this machine.
    Unix(UnixStream),
}

impl Accepted {
    /// Where it comes from, if that is an address.
    fn peer(&self) -> Option<IpAddr> {
        match self {
            Accepted::Tcp(stream) => Some(stream.peer_addr().ip()),
            Accepted::Unix(_) => None,
        }
    }

    /// On the thread that serves it.
    fn attach(self) -> Transport {
        match self {
            Accepted::Tcp(stream) => Transport::Plain(stream.attach()),
            Accepted::Unix(stream) => Transport::Unix(stream),
        }
    }
}

/// The connections of one reactor thread.
pub struct Worker<S, V> {
    thread: Rc<Thread<S, V>>,
    /// Serves a connection. A pointer, so that all of that is compiled where the worker is made, not where it accepts.
    serve: Serve<S, V>,
    /// Peers that are being told that there is no place.
    refusals: Semaphore,
    _ticker: Task<()>,
}

type Serve<S, V> = fn(Rc<Thread<S, V>>, Accepted, Place) -> LocalFuture<'static, ()>;

/// A store that is served; the server is compiled here for each of them, and nowhere else.
pub trait Served: Slots + Holdings + Send + Sync + 'static {
    /// Serves it on the current thread.
    fn worker(self: Arc<Self>, shared: &Arc<Shared>) -> Worker<Self, Desk<Self>>
    where
        Self: Sized;

    /// [`keep_memory`] of it, by what the kernel has of this process.
    fn keep_memory(self: Arc<Self>, shared: Arc<Shared>) -> LocalFuture<'static, ()>;

    /// Has watchers told of items that are let go for others.
    fn tell_evictions(&self, shared: &Arc<Shared>);
}

macro_rules! served {
    ($($store:ty),+) => { $(
        impl Served for $store {
            fn worker(self: Arc<Self>, shared: &Arc<Shared>) -> Worker<Self, Desk<Self>> {
                worker(self, shared)
            }

            fn keep_memory(self: Arc<Self>, shared: Arc<Shared>) -> LocalFuture<'static, ()> {
                Box::pin(keep_memory(self, shared, resident_bytes))
            }

            fn tell_evictions(&self, shared: &Arc<Shared>) {
                tell_evictions(self, shared);
            }
        }
    )+ };
}

served!(Store<()>, Store<Tier>);

fn worker<S: Slots + Holdings + 'static>(store: Arc<S>, shared: &Arc<Shared>) -> Worker<S, Desk<S>> {
    let counters = shared.add_thread();
    let desk = Desk::new(store.clone(), shared.clone(), counters.clone());
    Worker::new(store, desk, shared.clone(), counters)
}

/// What the connections of a thread have in common.
struct Thread<S, V> {
    slots: Arc<S>,
    server: V,
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    times: Arc<Times>,
    now: Cell<Now>,
    stopping: Cell<bool>,
    spares: Spares,
    resting: Resting,
    open: RefCell<BTreeMap<u64, Rc<Open>>>,
    /// Told when a connection has ended.
    ended: Notify,
}

/// An open connection.
struct Open {
    stream: Transport,
    seen: Arc<Seen>,
}

impl<S: Slots + Holdings + 'static, V: Server + 'static> Worker<S, V> {
    /// For the current thread. `counters` are this thread's.
    pub fn new(slots: Arc<S>, server: V, shared: Arc<Shared>, counters: Arc<Counters>) -> Worker<S, V> {
        let resting = Resting::new(slots.budget(), shared.threads_max());
        let thread = Rc::new(Thread {
            slots,
            server,
            now: Cell::new(shared.now()),
            times: shared.add_times(),
            shared,
            counters,
            stopping: Cell::default(),
            spares: Spares::default(),
            resting,
            open: RefCell::default(),
            ended: Notify::new(),
        });
        let ticker = engine::task::spawn(tick(thread.clone()));
        let serve: Serve<S, V> = |thread, accepted, place| Box::pin(serve(thread, accepted, place));
        Worker { thread, serve, refusals: Semaphore::new(REFUSALS_MAX), _ticker: ticker }
    }

    /// Accepts TCP connections until the future is dropped; they go round this thread and `others`.
    pub fn accept<'a>(&'a self, listener: &'a TcpListener, others: &'a [MailSender<Accepted>]) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            let mut dealer = Dealer::new(others);
            let address = listener.local_addr();
            self.thread.shared.listens(Tcp(address).to_string(), Some(address.port()));
            loop {
                let (stream, _) = accept_next(|| listener.accept(), || self.note_pause()).await;
                dealer.deal(Accepted::Tcp(stream.detach())).into_iter().for_each(|accepted| self.adopt(accepted));
            }
        })
    }

    /// The same of connections over a path.
    pub fn accept_unix<'a>(
        &'a self,
        listener: &'a UnixListener,
        others: &'a [MailSender<Accepted>],
    ) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            let mut dealer = Dealer::new(others);
            self.thread.shared.listens(self.thread.shared.unix_address(), None);
            loop {
                let stream = accept_next(|| listener.accept(), || self.note_pause()).await;
                dealer.deal(Accepted::Unix(stream)).into_iter().for_each(|accepted| self.adopt(accepted));
            }
        })
    }

    fn note_pause(&self) {
        Counters::add(&self.thread.counters.accept_pauses, 1);
    }

    /// Serves the connections that another thread accepts, until that thread is gone.
    pub fn adopt_all<'a>(&'a self, mail: &'a MailReceiver<Accepted>) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            while let Some(accepted) = mail.recv().await {
                self.adopt(accepted);
            }
        })
    }

    /// Serves one connection in a task of its own.
    pub fn adopt(&self, accepted: Accepted) {
        let thread = self.thread.clone();
        Counters::add(&thread.counters.connections_total, 1);
        match thread.shared.place(accepted.peer()) {
            Ok(place) => engine::task::spawn_boxed((self.serve)(thread, accepted, place)).detach(),
            Err(why) => self.turn_away(accepted, why),
        }
    }

    fn turn_away(&self, accepted: Accepted, why: NoPlace) {
        let thread = &self.thread;
        Counters::add(&thread.counters.connections_rejected, 1);
        if why == NoPlace::Newcomer {
            Counters::add(&thread.counters.rejected_unauthenticated, 1);
        }
        let why = b"ERROR Too many open connections\r\n";
        accepted.attach().refuse_apart(&self.refusals, thread.shared.tls().is_some(), why);
    }

    /// Lets every connection finish the commands that were received, then closes them; waits a bounded time.
    pub fn stop(&self) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            self.thread.stopping.set(true);
            for open in self.thread.open.borrow().values() {
                open.close_if_resting(Ending::Shutdown);
            }
            all_closed(|| self.thread.open.borrow().len(), &self.thread.ended).await;
        })
    }
}

/// Serves one connection, which holds its place until the end.
async fn serve<S: Slots + Holdings + 'static, V: Server + 'static>(
    thread: Rc<Thread<S, V>>,
    accepted: Accepted,
    place: Place,
) {
    let tls = thread.shared.tls().filter(|_| matches!(accepted, Accepted::Tcp(_)));
    let Some(_admitted) = Box::pin(room::admit(&*thread.slots, &thread.shared, tls.is_some())).await else {
        Counters::add(&thread.counters.connections_rejected, 1);
        let why = b"SERVER_ERROR out of memory for another connection\r\n";
        return Box::pin(accepted.attach().refuse(tls.is_some(), why)).await;
    };
    let (stream, origin) = match accepted {
        Accepted::Unix(stream) => (Transport::Unix(stream), Origin::Unix),
        Accepted::Tcp(stream) => {
            let stream = stream.attach();
            let origin = Origin::Tcp { peer: stream.peer_addr(), local: stream.local_addr() };
            match Box::pin(Transport::accept(stream, tls.as_ref())).await {
                Ok(stream) => (stream, origin),
                Err(error) => {
                    Counters::add(&thread.counters.tls_errors, 1);
                    return tracing::info!(%origin, %error, "no TLS connection");
                }
            }
        }
    };
    Connection::serve(thread, stream, origin, place).await;
}

impl<S, V> Thread<S, V> {
    /// Ends some of the connections that hold memory for a peer that does not go on: that does not read what it asked for, or has
    /// stopped in the middle of a command. Nothing else is left to give up, or only items, which are not to leave for them.
    fn close_stuck(&self) {
        let now = self.now.get().at;
        let open = self.open.borrow();
        let stuck = |open: &&Rc<Open>| {
            let may_end = open.seen.ended().is_none() && open.seen.activity() != Activity::Watches;
            let since = open.seen.waits_since().filter(|_| may_end);
            since.is_some_and(|since| now.0.saturating_sub(since.0) >= STUCK_SECONDS)
        };
        let count = open.values().filter(stuck).count().div_ceil(STUCK_PART);
        for open in open.values().filter(stuck).take(count) {
            tracing::info!(origin = %open.seen.origin, "closed: memory is short, and its peer does not go on");
            open.seen.set_ended(Ending::Error);
            open.stream.shutdown();
        }
    }
}

impl<S, V> Thread<S, V> {
    /// Ends connections that have not said who they are in time: they would keep the places of others for ever.
    fn close_unknown(&self) {
        let now = self.now.get().at;
        let is_late = |since: Seconds| now.0.saturating_sub(since.0) > AUTHENTICATION_SECONDS_MAX;
        for open in self.open.borrow().values().filter(|open| open.seen.unknown_since().is_some_and(is_late)) {
            tracing::info!(origin = %open.seen.origin, "closed: it has not said who it is in {AUTHENTICATION_SECONDS_MAX} s");
            open.seen.set_ended(Ending::Error);
            open.stream.shutdown();
        }
    }
}

impl Open {
    /// A receive that waits ends by this.
    fn close_if_resting(&self, why: Ending) {
        if matches!(self.seen.activity(), Activity::Rests | Activity::Watches) {
            self.seen.set_ended(why);
            self.stream.shutdown();
        }
    }
}

/// Moves the thread's clock on, and ends connections that have rested for too long.
async fn tick<S: Holdings, V>(thread: Rc<Thread<S, V>>) {
    loop {
        time::sleep(TICK).await;
        let now = thread.shared.now();
        let is_new = now != thread.now.replace(now);
        if thread.shared.is_short() || room::is_over_part(thread.slots.budget()) {
            thread.close_stuck();
        }
        if is_new {
            thread.close_unknown();
        }
        let Some(idle) = thread.shared.idle_timeout().filter(|_| is_new) else { continue };
        for open in thread.open.borrow().values() {
            if now.at.0.saturating_sub(open.seen.active().0) > idle && open.seen.activity() == Activity::Rests {
                Counters::add(&thread.counters.idle_kicks, 1);
                open.close_if_resting(Ending::IdleTimeout);
            }
        }
    }
}
