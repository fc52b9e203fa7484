//! `yagura cache serve`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::cache::flash::Medium;
use ::cache::hash::Hasher;
use ::cache::memory::{Budget, Kind};
use ::cache::server::{
    Accepted, CacheMetrics, Clock, Desk, Options, Program, Said, Served, Shared, Worker, resident_bytes,
};
use ::cache::session::{Authentication, Protocols, Rules, Users};
use ::cache::store::{Store, StoreOptions};
use ::cache::{ITEM_BYTES_MIN, VALUE_BYTES_MAX};
use engine::ReactorConfig;
use engine::net::TcpListener;
use engine::sync::{MailReceiver, MailSender, mailbox};
use prometheus_client::registry::Registry;
use serde::Serialize;
use tls::CertificateContext;
use tls::Secret;

use super::flash::{FlashThread, Found};
use super::listening;
use super::namespace;
use crate::cli::{CacheProtocol, CacheServeArgs};
use crate::exit::Failure;
use crate::handout::Handout;
use crate::listening::bind_path;
use crate::race::first_of;
use crate::stop::Reason;
use crate::{descriptors, metrics, output, reactors, stop};

/// How long a reactor spins for its next request at most, on a core that nobody else waits for. Measured, two threads and their
/// client on two cores: shorter makes no difference beside memcached, 200 us take the core from the client (rate 0.97 of
/// memcached's, and then 0.8 to 0.9).
const SPIN_MAX: Duration = Duration::from_micros(50);
/// Connections on their way to another reactor. Guessed; at the bound the accepting reactor passes them on to the next.
const HANDED_MAX: usize = 64;
/// Threads where none are asked for: memcached's default, if there are as many cores.
const THREADS_DEFAULT_MAX: usize = 4;

/// What is said on standard output once it serves.
#[derive(Serialize, Debug)]
struct Ready {
    /// The first address, if it listens to TCP at all.
    listening: Option<SocketAddr>,
    addresses: Vec<SocketAddr>,
    unix_socket: Option<PathBuf>,
    metrics: Option<SocketAddr>,
    memory_mib: u32,
    threads: usize,
    flash: Option<Found>,
}

/// Serves until a signal.
pub fn run(args: &CacheServeArgs) -> Result<(), Failure> {
    match args.verbose {
        0 => {}
        level => output::set_log_level(u32::from(level)),
    }
    let rules = Arc::new(rules(args)?);
    let threads = threads(args);
    let addresses = listening::addresses(args)?;
    let tls = args.tls.context()?;
    let read_users_again = {
        let (path, rules) = (args.auth_file.clone(), rules.clone());
        move || path.iter().for_each(|path| read_users_again(path, &rules))
    };
    let letters = stop::letters_and_hangups(threads, args.until_stdin_closes, read_users_again)?;
    let secret = secret().map_err(|error| Failure::from(error).during("random numbers of the system"))?;
    let store = store(args, threads, secret)?;
    let serving = Serving { args, addresses, threads, letters, clock: None, namespace: None, flash: None };
    let Some(spec) = &args.flash.flash else {
        let hasher = store.hasher();
        return serve(serving, rules, tls, Arc::new(store), hasher);
    };
    let thread = FlashThread::start(&args.flash, spec, store, secret, threads)?;
    let (namespace, flash) = (Some(thread.namespace.clone()), Some(Found::new(spec, &thread)));
    let serving = Serving { clock: Some(thread.clock), namespace, flash, ..serving };
    let served = serve(serving, rules, tls, thread.store.clone(), thread.store.hasher());
    served.and(thread.finish())
}

/// What serving needs, over whatever store.
struct Serving<'a> {
    args: &'a CacheServeArgs,
    /// Where to listen: the addresses of each place that was named.
    addresses: Vec<Vec<SocketAddr>>,
    threads: usize,
    letters: Vec<MailReceiver<Reason>>,
    clock: Option<Clock>,
    namespace: Option<Medium>,
    flash: Option<Found>,
}

fn serve<S: Served>(
    serving: Serving<'_>,
    rules: Arc<Rules>,
    tls: Option<CertificateContext>,
    store: Arc<S>,
    hasher: Hasher,
) -> Result<(), Failure> {
    let Serving { args, addresses, threads, letters, clock, namespace, flash } = serving;
    let letters = Handout::new(letters);
    let (senders, receivers): (Vec<_>, Vec<_>) = (1..threads).map(|_| mailbox::<Accepted>(HANDED_MAX)).unzip();
    let (receivers, senders) = (Handout::new(receivers), Handout::new([senders]));
    let shared = Arc::new(shared(args, rules, tls, clock, hasher));
    shared.keep_room_for_connections(store.budget());
    store.tell_evictions(&shared);
    let config = ReactorConfig { spin_max: SPIN_MAX, ..ReactorConfig::default() };
    reactors::run(&vec![config; threads], async |index| {
        let Some(letter) = letters.take(index) else { return Ok(()) };
        if let Some(namespace) = &namespace {
            namespace::join(namespace).await;
        }
        let worker = store.clone().worker(&shared);
        match index.checked_sub(1).and_then(|other| receivers.take(other)) {
            Some(connections) => {
                first_of(worker.adopt_all(&connections), letter.recv()).await;
            }
            None => {
                // Whatever fails from here on, the others end with these.
                let others = senders.take(0).unwrap_or_default();
                let _keeper = engine::task::spawn(store.clone().keep_memory(shared.clone()));
                let mut registry = Registry::default();
                let metrics = CacheMetrics { shared: shared.clone(), store: store.clone() };
                registry.register_collector(Box::new(metrics));
                let ready = Ready {
                    listening: None,
                    addresses: Vec::new(),
                    unix_socket: args.unix_socket.clone(),
                    metrics: args
                        .metrics
                        .map(|address| metrics::serve(address, registry, metrics::always()))
                        .transpose()?,
                    memory_mib: args.memory_limit,
                    threads,
                    flash: flash.clone(),
                };
                listen(args, &addresses, &worker, &others, ready, &letter).await?;
            }
        }
        worker.stop().await;
        if let Some(namespace) = &namespace {
            namespace::leave(namespace);
        }
        Ok(())
    })
}

/// Accepts on the first thread until it is told to stop.
async fn listen<S: Served>(
    args: &CacheServeArgs,
    addresses: &[Vec<SocketAddr>],
    worker: &Worker<S, Desk<S>>,
    others: &[MailSender<Accepted>],
    mut ready: Ready,
    letter: &MailReceiver<Reason>,
) -> Result<(), Failure> {
    if let Some(path) = &args.unix_socket {
        let listener = bind_path(path, args.unix_mask.0).await?;
        output::report(args.common.json, &ready, describe)?;
        first_of(worker.accept_unix(&listener, others), letter.recv()).await;
        return Ok(());
    }
    let mut listeners = Vec::new();
    for addresses in addresses {
        listeners.extend(listening::bind(addresses).await?);
    }
    ready.addresses = listeners.iter().map(TcpListener::local_addr).collect();
    ready.listening = ready.addresses.first().copied();
    listening::tell_ports(&listeners)?;
    output::report(args.common.json, &ready, describe)?;
    let accepting = listeners.iter().map(|listener| worker.accept(listener, others));
    first_of(never_ending(accepting.collect()), letter.recv()).await;
    Ok(())
}

/// Runs all of them; they end only by being dropped.
async fn never_ending<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut set = engine::task::TaskSet::new(futures.len().max(1));
    for future in futures {
        let pushed = set.push(future);
        assert!(pushed.is_ok(), "invariant: the set was made for as many");
    }
    while std::future::poll_fn(|context| set.poll_next(context)).await.is_some() {}
}

fn threads(args: &CacheServeArgs) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    args.threads.map_or(cores.min(THREADS_DEFAULT_MAX), usize::from)
}

fn store(args: &CacheServeArgs, threads: usize, secret: [u64; 2]) -> Result<Store, Failure> {
    let limit = (args.memory_limit as usize) << 20;
    let budget = Arc::new(Budget::new(limit));
    let base = resident_bytes().map_err(|error| Failure::from(error).during("/proc/self/statm"))?;
    budget.take(Kind::Base, base + threads * THREAD_BYTES);
    budget.require(budget.used() + ROOM_BYTES_MIN);
    if limit < budget.limit_min() {
        let needed = budget.limit_min().div_ceil(1 << 20);
        return Err(Failure::refused(format!(
            "-m {} leaves no room for items: {threads} threads need {needed} MiB or more",
            args.memory_limit
        )));
    }
    let options = StoreOptions { threads, evict: !args.disable_evictions, ..StoreOptions::default() };
    Ok(Store::new(Hasher::new(secret), budget, options))
}

/// The least that items and connections get. Chosen: some fifty segments; as much as that holds however many pages of the program
/// the kernel has in memory, which varies by a few mebibytes.
const ROOM_BYTES_MIN: usize = 12 << 20;

/// What a reactor thread takes beside the buffers of its connections: ring, stack, timers. Measured, idle, and rounded up.
const THREAD_BYTES: usize = 512 << 10;

/// The secret of the hash of keys: no client may know which keys meet.
fn secret() -> std::io::Result<[u64; 2]> {
    use std::io::Read as _;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let (first, second) = bytes.split_at(8);
    let word = |half: &[u8]| half.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    Ok([word(first), word(second)])
}

fn rules(args: &CacheServeArgs) -> Result<Rules, Failure> {
    let item_bytes_max = args.max_item_size.0;
    if !(ITEM_BYTES_MIN as u64..=VALUE_BYTES_MAX as u64).contains(&item_bytes_max) {
        return Err(Failure::usage(format!(
            "-I {} is no limit of items: from {} to {} bytes",
            args.max_item_size, ITEM_BYTES_MIN, VALUE_BYTES_MAX
        )));
    }
    if item_bytes_max > u64::from(args.memory_limit) << 19 {
        let message = format!("items of {} want -m twice as large at least", args.max_item_size);
        return Err(Failure::usage(message));
    }
    let protocols = protocols(args)?;
    let users = args.auth_file.as_deref().map(users).transpose()?;
    let authentication = match users {
        None => Authentication::None,
        Some(users) if args.enable_sasl => Authentication::Sasl(users),
        Some(users) => Authentication::Text(users),
    };
    Ok(Rules {
        item_bytes_max: item_bytes_max as usize,
        protocols,
        authentication,
        serves_shutdown: args.enable_shutdown,
        serves_flush: !args.disable_flush_all,
        serves_dump: !args.disable_dumping,
        serves_watch: !args.disable_watch,
    })
}

/// Who has to say who he is does so by one protocol; another beside it would be a way around that, or serve nobody.
fn protocols(args: &CacheServeArgs) -> Result<Protocols, Failure> {
    let (protocol, needs) = match (args.enable_sasl, &args.auth_file) {
        (true, _) => {
            (Some(CacheProtocol::Binary), "-S asks by SASL, in the binary protocol: leave -B away, or say -B binary")
        }
        (false, Some(_)) => (
            Some(CacheProtocol::Ascii),
            "-Y asks in the text protocol: leave -B away, say -B ascii, or add -S for the binary protocol",
        ),
        (false, None) => (None, ""),
    };
    if protocol.is_some() && args.protocol.is_some_and(|given| protocol != Some(given)) {
        return Err(Failure::usage(needs));
    }
    Ok(match protocol.or(args.protocol).unwrap_or(CacheProtocol::Auto) {
        CacheProtocol::Auto => Protocols::Both,
        CacheProtocol::Ascii => Protocols::Text,
        CacheProtocol::Binary => Protocols::Binary,
    })
}

fn users(path: &Path) -> Result<Users, Failure> {
    let refused = |what: String| Failure::refused(format!("--auth-file {}: {what}", path.display()));
    // What is wrong with the file names it.
    let secret = Secret::from_file(path).map_err(|error| Failure::refused(format!("--auth-file {error}")))?;
    let text = std::str::from_utf8(secret.expose()).map_err(|_| refused("it is no text".to_owned()))?;
    Users::parse(text).map_err(|error| refused(error.to_string()))
}

/// For those who say who they are from now on.
fn read_users_again(path: &Path, rules: &Rules) {
    let Some(known) = rules.authentication.users() else { return };
    match users(path) {
        Ok(users) => {
            known.replace(users);
            tracing::info!(path = %path.display(), "users were read again");
        }
        Err(failure) => tracing::warn!("{}; the users stay as they were", failure.sentence()),
    }
}

fn shared(
    args: &CacheServeArgs,
    rules: Arc<Rules>,
    tls: Option<CertificateContext>,
    clock: Option<Clock>,
    hasher: Hasher,
) -> Shared {
    let shown = |path: &Path| path.display().to_string();
    let listen: Vec<String> = args.listen.iter().map(|listen| listen.host.clone()).collect();
    let said = Said {
        port: if args.unix_socket.is_some() { 0 } else { args.port },
        listen: listen.join(","),
        unix_socket: args.unix_socket.as_deref().map(shown),
        evicts: !args.disable_evictions,
        tls: args.tls.files(),
    };
    let threads = threads(args);
    let options = Options {
        rules,
        connections_max: descriptors::cache_clients(threads, args.conn_limit as usize),
        threads,
        idle_timeout: args.idle_timeout,
        verbosity: u32::from(args.verbose),
        tls,
        said,
        clock,
        program: Box::new(Process),
    };
    Shared::new(options, hasher)
}

/// This process, as the server uses it.
struct Process;

impl Program for Process {
    fn shut_down(&self, gracefully: bool) {
        if !gracefully {
            std::process::exit(0);
        }
        if let Err(error) = signal_hook::low_level::raise(signal_hook::consts::SIGTERM) {
            tracing::error!(%error, "cannot shut down");
        }
    }

    fn set_verbosity(&self, level: u32) {
        output::set_log_level(level);
    }
}

fn describe(ready: &Ready) -> String {
    let Ready { addresses, unix_socket, metrics, memory_mib, threads, flash, .. } = ready;
    let mut text = format!("cache of {memory_mib} MiB, {threads} threads, listening at ");
    text += &match unix_socket {
        Some(path) => path.display().to_string(),
        None => addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", "),
    };
    text.push('\n');
    text += &flash.as_ref().map(Found::describe).unwrap_or_default();
    if let Some(address) = metrics {
        text += &format!("metrics at http://{address}/metrics\n");
    }
    text
}
