//! What all threads of a server have in common.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use engine::net::peers::{Peer, Peers};
use engine::time::{self, Instant};
use tls::{CertificateContext, CertificateFiles};

use super::counters::{Counters, Totals};
use super::holdings::Figures;
use super::prefixes::Prefixes;
use super::room::Reserve;
use super::seen::Seen;
use super::times::Times;
use super::watch::Watchers;
use crate::hash::Hasher;
use crate::item::Seconds;
use crate::memory::Budget;
use crate::protocol::Now;
use crate::session::{Authentication, Rules, Switches};

/// The verbosity (`-vv`) from which on commands are told on the log.
pub(super) const TELLS_COMMANDS: u32 = 2;

/// What the clock shows when a server starts. As in memcached: no moment is 0, and one second ago there was one too.
const CLOCK_START: u64 = 2;

/// A server's clock. It goes on evenly whatever is done to the system's.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    /// When it was 0, in seconds since 1970.
    began: u64,
}

impl Clock {
    /// Starts it, on a reactor.
    pub fn start() -> Clock {
        Clock { started: time::now(), began: time::unix_time().as_secs().saturating_sub(CLOCK_START) }
    }

    /// When it was 0, in seconds since 1970.
    pub fn began(&self) -> u64 {
        self.began
    }

    fn uptime(&self) -> u64 {
        time::now().duration_since(self.started).as_secs()
    }
}

/// What only the program around a server can do.
pub trait Program: Send + Sync {
    /// Ends the server: after what is under way, or at once.
    fn shut_down(&self, gracefully: bool);

    /// Says more or less on its log.
    fn set_verbosity(&self, level: u32);
}

/// What a server was told at its start, for those who ask later.
#[derive(Clone, Default, Debug)]
pub struct Said {
    /// The TCP port; 0: any, see [`Shared::port`].
    pub port: u16,
    /// Where it listens.
    pub listen: String,
    /// The path it listens at.
    pub unix_socket: Option<String>,
    /// Items are let go for others.
    pub evicts: bool,
    /// Where certificate, key and the authorities of clients are, if TCP connections are TLS ones.
    pub tls: Option<CertificateFiles>,
}

/// How connections are served.
pub struct Options {
    /// What holds for every session.
    pub rules: Arc<Rules>,
    /// Connections at once, over all threads.
    pub connections_max: usize,
    /// Threads that will serve them.
    pub threads: usize,
    /// Seconds after which a connection that rests is ended; 0: never.
    pub idle_timeout: u32,
    /// Certificate and key, if TCP connections are TLS ones.
    pub tls: Option<CertificateContext>,
    /// What it was told.
    pub said: Said,
    /// How much it says on the log.
    pub verbosity: u32,
    /// Its clock, where others have it too; else it starts when it is first looked at.
    pub clock: Option<Clock>,
    /// The program around it.
    pub program: Box<dyn Program>,
}

/// What all threads of a server have in common.
pub struct Shared {
    rules: Arc<Rules>,
    hasher: Hasher,
    connections_max: usize,
    threads_max: usize,
    idle_timeout: u32,
    tls: RwLock<Option<CertificateContext>>,
    /// The uptime when certificate and key were read last.
    refreshed: AtomicU64,
    said: Said,
    program: Box<dyn Program>,
    verbosity: AtomicU32,
    prefixes: Prefixes,
    switches: Switches,
    watchers: Watchers,
    seen: Mutex<BTreeMap<u64, Arc<Seen>>>,
    /// Where connections are accepted, under numbers as theirs.
    listeners: Mutex<Vec<(u64, String)>>,
    /// The first TCP port of these: what a server got that took any free one.
    port: OnceLock<u16>,
    clock: OnceLock<Clock>,
    open: Arc<AtomicUsize>,
    /// Those of the open connections that have yet to say who they are, where that is asked for.
    newcomers: Peers,
    /// Memory is over its limit, and there is no item left to let go.
    is_short: AtomicBool,
    reserve: Reserve,
    next_id: AtomicU64,
    threads: Mutex<Vec<Arc<Counters>>>,
    times: Mutex<Vec<Arc<Times>>>,
    /// What was counted when it was reset: in all, and of the items.
    reset: Mutex<(Totals, Figures)>,
}

/// One of the connections that may be open at once.
pub(super) struct Place {
    open: Arc<AtomicUsize>,
    /// Of those of its address that have yet to say who they are.
    newcomer: Option<Peer>,
}

impl Place {
    /// It is known who speaks: the connection counts no longer against others of its address.
    pub(super) fn is_known(&mut self) {
        self.newcomer = None;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Relaxed);
    }
}

/// Why there is no place for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoPlace {
    /// All are taken.
    Full,
    /// Its address has its share of those that have yet to say who they are.
    Newcomer,
}

impl Shared {
    /// A server that starts now.
    pub fn new(options: Options, hasher: Hasher) -> Shared {
        let asks = options.tls.is_some() || !matches!(options.rules.authentication, Authentication::None);
        Shared {
            newcomers: if asks { Peers::newcomers(options.connections_max) } else { Peers::unbounded() },
            rules: options.rules,
            hasher,
            connections_max: options.connections_max,
            threads_max: options.threads,
            idle_timeout: options.idle_timeout,
            tls: RwLock::new(options.tls),
            refreshed: AtomicU64::new(0),
            said: options.said,
            program: options.program,
            verbosity: AtomicU32::new(options.verbosity),
            prefixes: Prefixes::default(),
            switches: Switches::default(),
            watchers: Watchers::default(),
            seen: Mutex::default(),
            listeners: Mutex::default(),
            port: OnceLock::new(),
            clock: options.clock.map_or_else(OnceLock::new, OnceLock::from),
            open: Arc::default(),
            is_short: AtomicBool::new(false),
            reserve: Reserve::default(),
            next_id: AtomicU64::new(1),
            threads: Mutex::default(),
            times: Mutex::default(),
            reset: Mutex::default(),
        }
    }

    /// The time.
    pub fn now(&self) -> Now {
        let (at, began) = (self.uptime() + CLOCK_START, self.clock().began);
        Now { at: Seconds(u32::try_from(at).unwrap_or(u32::MAX)), began }
    }

    /// Seconds since the server started.
    pub fn uptime(&self) -> u64 {
        self.clock().uptime()
    }

    /// When the server started, in seconds since 1970, once its clock has been looked at. It asks no clock itself, so that any
    /// thread may call it.
    pub fn started(&self) -> Option<u64> {
        self.clock.get().map(|clock| clock.began + CLOCK_START)
    }

    fn clock(&self) -> &Clock {
        self.clock.get_or_init(Clock::start)
    }

    /// What holds for every session.
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.clone()
    }

    /// The hash of keys.
    pub fn hasher(&self) -> Hasher {
        self.hasher
    }

    /// Connections at once.
    pub fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// Threads that serve, or will.
    pub(super) fn threads_max(&self) -> usize {
        self.threads_max
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Seconds that a connection may rest, if that is bounded.
    pub fn idle_timeout(&self) -> Option<u32> {
        (self.idle_timeout > 0).then_some(self.idle_timeout)
    }

    /// Certificate and key for the next connection.
    pub fn tls(&self) -> Option<CertificateContext> {
        // A panic elsewhere leaves a whole context behind.
        self.tls.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads certificate and key anew, for connections that come from now on.
    ///
    /// # Errors
    /// Why they can't be read; those in use stay.
    pub fn refresh_certificates(&self) -> Result<(), String> {
        let files = self.said.tls.as_ref().ok_or("TLS is not served")?;
        let found = CertificateContext::new(files).map_err(|error| error.to_string())?;
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = Some(found);
        self.refreshed.store(self.uptime(), Relaxed);
        Ok(())
    }

    /// The uptime when certificate and key were read last.
    pub(super) fn refreshed(&self) -> u64 {
        self.refreshed.load(Relaxed)
    }

    /// What the server was told.
    pub fn said(&self) -> &Said {
        &self.said
    }

    /// The path it listens at, as an address.
    pub(super) fn unix_address(&self) -> String {
        format!("unix:{}", self.said.unix_socket.as_deref().unwrap_or_default())
    }

    /// How much is said on the log.
    pub fn verbosity(&self) -> u32 {
        self.verbosity.load(Relaxed)
    }

    /// Says more or less on the log.
    pub fn set_verbosity(&self, level: u32) {
        self.verbosity.store(level, Relaxed);
        self.program.set_verbosity(level);
    }

    /// Ends the server.
    pub fn shut_down(&self, gracefully: bool) {
        self.program.shut_down(gracefully);
    }

    pub(super) fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    pub(super) fn switches(&self) -> &Switches {
        &self.switches
    }

    pub(super) fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    /// How many watchers there are, and the lines that were sent to such, and not, since the server started.
    pub fn watched(&self) -> (usize, u64, u64) {
        self.watchers.totals()
    }

    /// The TCP port that was asked for, or the one in use where any was to do; 0: there is none.
    pub fn port(&self) -> u16 {
        if self.said.port > 0 { self.said.port } else { self.port.get().copied().unwrap_or(0) }
    }

    /// Notes where connections are accepted, and at which TCP port.
    pub(super) fn listens(&self, at: String, port: Option<u16>) {
        if let Some(port) = port {
            self.port.get_or_init(|| port);
        }
        let id = self.next_id.fetch_add(1, Relaxed);
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push((id, at));
    }

    /// Where connections are accepted, and the numbers of these places.
    pub(super) fn listeners(&self) -> Vec<(u64, String)> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes a connection; the number it is known by.
    pub(super) fn opened(&self, seen: Arc<Seen>) -> u64 {
        let id = self.next_id.fetch_add(1, Relaxed);
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(id, seen);
        id
    }

    pub(super) fn closed(&self, id: u64) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Tells of every open connection.
    pub(super) fn each_connection(&self, mut tell: impl FnMut(u64, &Seen)) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|(id, seen)| tell(*id, seen));
    }

    /// Whether memory is over its limit with no item left to let go.
    pub(super) fn is_short(&self) -> bool {
        self.is_short.load(Relaxed)
    }

    pub(super) fn set_short(&self, short: bool) {
        self.is_short.store(short, Relaxed);
    }

    pub(super) fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    /// Before anything is stored: where items never leave, keeps some of the memory for connections.
    pub fn keep_room_for_connections(&self, budget: &Budget) {
        if !self.said.evicts {
            let with_tls = self.tls().is_some() && self.said.unix_socket.is_none();
            self.reserve.fill(budget, self.connections_max, with_tls);
        }
    }

    /// Takes one of the places for connections, if one is free, and one of what `peer` may have before it has said who it is.
    pub(super) fn place(&self, peer: Option<IpAddr>) -> Result<Place, NoPlace> {
        let mut place = Place { open: self.open.clone(), newcomer: None };
        if self.open.fetch_add(1, Relaxed) >= self.connections_max {
            return Err(NoPlace::Full);
        }
        // Who may open the path is a matter of its permissions.
        if let Some(peer) = peer {
            place.newcomer = Some(self.newcomers.count(peer).ok_or(NoPlace::Newcomer)?);
        }
        Ok(place)
    }

    /// The counters of one more thread.
    pub fn add_thread(&self) -> Arc<Counters> {
        let counters = Arc::<Counters>::default();
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(counters.clone());
        counters
    }

    pub(super) fn add_times(&self) -> Arc<Times> {
        let times = Arc::<Times>::default();
        self.times.lock().unwrap_or_else(PoisonError::into_inner).push(times.clone());
        times
    }

    /// How long commands took, of each thread, since the server started.
    pub fn times(&self) -> Vec<Arc<Times>> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many threads there are.
    pub fn threads(&self) -> usize {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// What was counted since the last reset, in all and of the items.
    pub(super) fn since_reset(&self, figures: Figures) -> (Totals, Figures) {
        let totals = self.totals();
        let reset = self.reset.lock().unwrap_or_else(PoisonError::into_inner);
        (totals.since(&reset.0), figures.since(&reset.1))
    }

    /// Counts anew, but for [`Shared::totals`]: what reads these takes a lower count for a new start.
    pub(super) fn reset(&self, figures: Figures) {
        let totals = self.totals();
        *self.reset.lock().unwrap_or_else(PoisonError::into_inner) = (totals, figures);
        self.prefixes.clear();
        self.watchers.reset();
    }

    /// What was counted since the server started.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|thread| totals.add(thread));
        totals
    }
}
