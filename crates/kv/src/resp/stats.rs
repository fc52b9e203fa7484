//! What a gateway counts, readable from any thread, and the list of its connections.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::histogram::Histogram;
use engine::sync::{MailReceiver, MailSender, mailbox};
use engine::time::Instant;
use tls::Secret;

use super::commands::COMMANDS;

/// Counters of one command.
#[derive(Default, Debug)]
pub struct CommandCounters {
    calls: AtomicU64,
    failed: AtomicU64,
    sum_us: AtomicU64,
}

impl CommandCounters {
    /// Counts one command that was answered.
    pub fn count(&self, failed: bool) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
    }

    /// Adds the microseconds that the store took for one.
    pub fn took(&self, us: u64) {
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Commands that were answered.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

/// A line of `INFO commandstats`, without the name.
impl std::fmt::Display for CommandCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (calls, us) = (self.calls(), self.sum_us.load(Ordering::Relaxed));
        let each = us as f64 / calls.max(1) as f64;
        let failed = self.failed.load(Ordering::Relaxed);
        write!(f, "calls={calls},usec={us},usec_per_call={each:.2},rejected_calls=0,failed_calls={failed}")
    }
}

/// Counters of a gateway, over all its connections and threads.
#[derive(Debug)]
pub struct GatewayStats {
    /// One for each of [`COMMANDS`].
    by_command: Vec<CommandCounters>,
    /// Connections accepted.
    pub connections_total: AtomicU64,
    /// Connections open.
    pub connections: AtomicU64,
    /// Connections refused at a limit.
    pub connections_refused: AtomicU64,
    /// Those of them whose address had its share of the connections that have yet to say who they are.
    pub refused_unauthenticated: AtomicU64,
    /// Commands answered, errors included.
    pub commands: AtomicU64,
    /// Commands answered by an error.
    pub errors: AtomicU64,
    /// Connections ended by a protocol error.
    pub protocol_errors: AtomicU64,
    /// Reads that found their key.
    pub hits: AtomicU64,
    /// Reads that found nothing.
    pub misses: AtomicU64,
    /// Bytes received.
    pub bytes_received: AtomicU64,
    /// Bytes sent.
    pub bytes_sent: AtomicU64,
    /// From the command's decoding to its reply, of commands that read, in microseconds.
    pub read_latency: Histogram,
    /// From the command's decoding to its reply, of commands that write, in microseconds.
    pub write_latency: Histogram,
}

impl Default for GatewayStats {
    fn default() -> GatewayStats {
        GatewayStats {
            by_command: COMMANDS.iter().map(|_| CommandCounters::default()).collect(),
            connections_total: AtomicU64::default(),
            connections: AtomicU64::default(),
            connections_refused: AtomicU64::default(),
            refused_unauthenticated: AtomicU64::default(),
            commands: AtomicU64::default(),
            errors: AtomicU64::default(),
            protocol_errors: AtomicU64::default(),
            hits: AtomicU64::default(),
            misses: AtomicU64::default(),
            bytes_received: AtomicU64::default(),
            bytes_sent: AtomicU64::default(),
            read_latency: Histogram::default(),
            write_latency: Histogram::default(),
        }
    }
}

impl GatewayStats {
    /// Counters of each of [`COMMANDS`].
    pub fn by_command(&self) -> &[CommandCounters] {
        &self.by_command
    }

    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// Reads a counter.
    pub fn load(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

/// What all connections of a gateway share. Off the data path but for the atomics.
pub struct GatewayState {
    /// Counters.
    pub stats: GatewayStats,
    password: Option<Secret>,
    started: Instant,
    /// One line per connection for `CLIENT LIST`, by id.
    clients: Mutex<BTreeMap<u64, Client>>,
    /// Where each thread is told that connections are to end.
    threads: Mutex<Vec<MailSender<()>>>,
    last_id: AtomicU64,
    /// How many keys there were when they were last counted.
    keys: Mutex<Option<(Instant, u64)>>,
}

/// A connection, as others see it.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its line in `CLIENT LIST`.
    pub line: String,
    /// The peer's address.
    pub peer: String,
    /// The address it is connected to.
    pub local: String,
    /// Set when it is to end.
    pub ends: Arc<AtomicBool>,
}

impl std::fmt::Debug for GatewayState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GatewayState").field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl Default for GatewayState {
    fn default() -> GatewayState {
        GatewayState::new(None)
    }
}

impl GatewayState {
    /// For a gateway whose peers must give this password, if there is one.
    pub fn new(password: Option<Secret>) -> GatewayState {
        GatewayState {
            stats: GatewayStats::default(),
            password,
            started: engine::time::now(),
            clients: Mutex::default(),
            threads: Mutex::default(),
            last_id: AtomicU64::default(),
            keys: Mutex::default(),
        }
    }

    /// How many keys there were when they were last counted, if that is no longer ago than `age`.
    pub fn keys_counted(&self, age: Duration) -> Option<u64> {
        lock(&self.keys).filter(|(when, _)| when.elapsed() <= age).map(|(_, count)| count)
    }

    /// Notes how many keys there are now.
    pub fn set_keys_counted(&self, count: u64) {
        *lock(&self.keys) = Some((engine::time::now(), count));
    }

    /// Whether peers must give a password.
    pub fn asks_password(&self) -> bool {
        self.password.is_some()
    }

    /// Whether this is the password, in a time that does not tell how much of it is right; `None` if none is asked for.
    pub fn is_password(&self, given: &[u8]) -> Option<bool> {
        self.password.as_ref().map(|password| password.is(given))
    }

    /// For how long the gateway has been running.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// An id that no connection of this gateway had before.
    pub fn next_client_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sets or replaces what others see of a connection.
    pub fn set_client(&self, id: u64, client: Client) {
        lock(&self.clients).insert(id, client);
    }

    /// Forgets a connection.
    pub fn remove_client(&self, id: u64) {
        lock(&self.clients).remove(&id);
    }

    /// What `look` says of a connection.
    pub fn with_client<T>(&self, id: u64, look: impl FnOnce(&Client) -> T) -> Option<T> {
        lock(&self.clients).get(&id).map(look)
    }

    /// The lines of the connections that are wanted, by id.
    pub fn client_lines(&self, is_wanted: impl Fn(u64) -> bool) -> String {
        let clients = lock(&self.clients);
        clients.iter().filter(|(id, _)| is_wanted(**id)).flat_map(|(_, client)| [&client.line[..], "\n"]).collect()
    }

    /// The length of all lines.
    pub fn clients_bytes(&self) -> usize {
        lock(&self.clients).values().map(|client| client.line.len() + 1).sum()
    }

    /// A thread that serves connections: it is told here when some are to end ([`Client::ends`]).
    pub fn add_thread(&self) -> MailReceiver<()> {
        let (sender, receiver) = mailbox(1);
        lock(&self.threads).push(sender);
        receiver
    }

    /// Ends the connections that are meant, whichever threads have them; how many they are.
    pub fn kill(&self, is_meant: impl Fn(u64, &Client) -> bool) -> usize {
        let clients = lock(&self.clients);
        let meant = clients.iter().filter(|(id, client)| is_meant(**id, client));
        let count = meant.map(|(_, client)| client.ends.store(true, Ordering::Relaxed)).count();
        drop(clients);
        if count > 0 {
            for thread in &*lock(&self.threads) {
                // One that has not looked since it was told last will see these too; one that has ended has none.
                let _ = thread.try_send(());
            }
        }
        count
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic elsewhere leaves whole entries behind: each change is one operation.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
