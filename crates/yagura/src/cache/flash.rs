//! The flash tier of a cache server: one thread opens it, writes what has left memory, collects, and closes it at the end.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use ::cache::flash::admission::{Admission, AdmitAll, Sketch};
use ::cache::flash::{BUFFERED_SEGMENTS_MIN, FlashLog, Medium, OpenError, Options, Origin, Recovery, Tier, Wanted};
use ::cache::memory::{Budget, Kind};
use ::cache::server::Clock;
use ::cache::store::Store;
use engine::sync::{MailReceiver, MailSender, mailbox};
use engine::{Mapped, Reactor, ReactorConfig, task, time};
use serde::Serialize;

use super::namespace::{FlashSpec, leave};
use crate::cli::{FlashAdmission, FlashArgs};
use crate::exit::Failure;
use crate::output::many;
use crate::race::{First, first_of};
use crate::size::Size;

/// The part of the memory limit for what is on its way to flash, as a divisor, where the usual is more than that. Guessed: what
/// little memory there is serves items.
const BUFFERS_PART: usize = 8;
/// The most memory for counting how often keys are asked for, as a divisor of the limit. Guessed likewise.
const SKETCH_PART: usize = 32;
/// Bytes of an item that the sketch reckons with. Guessed: ETC's mean is 330; one twice as long is counted better than needed.
const ITEM_BYTES_TYPICAL: u64 = 512;

/// How long nothing may be written at the end. Guessed: several times what a device takes that pauses, or a path that fails over.
const STILL_TIME: Duration = Duration::from_secs(30);

/// Before it is tried again to collect a segment whose target is away.
const COLLECT_PAUSE: Duration = Duration::from_millis(100);

/// A store over flash.
pub type FlashStore = Store<Tier>;

/// The thread, and what it has opened.
pub struct FlashThread {
    /// The store over it.
    pub store: Arc<FlashStore>,
    /// For the threads that serve.
    pub namespace: Medium,
    /// The clock by which its items expire.
    pub clock: Clock,
    /// What was there.
    pub recovery: Recovery,
    stop: MailSender<()>,
    thread: JoinHandle<Result<(), Failure>>,
}

/// What the thread hands out when it has opened all.
type Opened = (Arc<FlashStore>, Medium, Clock, Recovery);

impl FlashThread {
    /// Opens what `args` say, for `threads` that serve; `store` is over it from then on.
    pub fn start(
        args: &FlashArgs,
        spec: &FlashSpec,
        store: Store,
        secret: [u64; 2],
        threads: usize,
    ) -> Result<FlashThread, Failure> {
        let journal = args.flash_journal.clone().or_else(|| spec.journal()).ok_or_else(|| {
            Failure::usage("--flash on no file wants --flash-journal FILE: where it is noted which items still count")
        })?;
        let opening = Opening { args: args.clone(), spec: spec.clone(), journal, secret, threads };
        let (hand_out, opened) = mpsc::sync_channel(1);
        let (stop, stopped) = mailbox(1);
        let main = move || {
            // It has time to sleep: what waits for it are writes.
            let config = ReactorConfig { spin_max: Duration::ZERO, ..ReactorConfig::default() };
            let keep = keep(opening, store, hand_out, stopped);
            Reactor::run(config, keep).map_err(|error| Failure::from(error).during("the flash tier's reactor"))?
        };
        let thread = std::thread::Builder::new().name("flash".into()).spawn(main)?;
        match opened.recv() {
            Ok((store, namespace, clock, recovery)) => {
                Ok(FlashThread { store, namespace, clock, recovery, stop, thread })
            }
            Err(_) => Err(join(thread).err().unwrap_or_else(|| Failure::refused("the flash tier has ended"))),
        }
    }

    /// Closes the log, when nobody uses the store any more.
    pub fn finish(self) -> Result<(), Failure> {
        // It has ended by itself: that is what `join` tells.
        let _ = self.stop.try_send(());
        join(self.thread)
    }
}

fn join(thread: JoinHandle<Result<(), Failure>>) -> Result<(), Failure> {
    thread.join().unwrap_or_else(|_| Err(Failure::refused("the flash tier's thread has panicked")))
}

struct Opening {
    args: FlashArgs,
    spec: FlashSpec,
    journal: PathBuf,
    secret: [u64; 2],
    threads: usize,
}

async fn keep(
    opening: Opening,
    store: Store,
    hand_out: mpsc::SyncSender<Opened>,
    stopped: MailReceiver<()>,
) -> Result<(), Failure> {
    let what = opening.spec.describe();
    let clock = Clock::start();
    let namespace = opening.spec.open(&opening.args.host, opening.threads).await?;
    let (store, recovery) = opening.open(&namespace, store, clock).await.map_err(|error| {
        leave(&namespace);
        error.during(&what)
    })?;
    let store = Arc::new(store);
    let log = store.lower().log().clone();
    let writer = task::spawn_boxed(log.clone().run());
    let (end, ending) = mailbox(1);
    let collector = task::spawn(collect(store.clone(), ending));
    if hand_out.send((store.clone(), namespace.clone(), clock, recovery)).is_err() {
        return Ok(()); // whoever wanted it is gone
    }
    stopped.recv().await;
    let ending = async {
        store.lower_all().await;
        drop(end);
        collector.await;
        log.close().await.map(|()| writer)
    };
    match while_it_writes(&log, ending).await {
        Some(Ok(writer)) => writer.await,
        Some(Err(error)) => tracing::error!(%what, %error, "flash could not be closed: what is there is given up"),
        None => tracing::error!(%what, "flash does not answer: what was not written is lost, the rest is found again"),
    }
    leave(&namespace);
    Ok(())
}

/// Runs `ending`, unless nothing is written for [`STILL_TIME`]: a device that hangs must not keep the process from its end.
async fn while_it_writes<T>(log: &FlashLog, ending: impl Future<Output = T>) -> Option<T> {
    let mut ending = pin!(ending);
    let written = || log.stats().device_written_bytes;
    let mut before = written();
    loop {
        match first_of(ending.as_mut(), time::sleep(STILL_TIME)).await {
            First::A(ended) => return Some(ended),
            First::B(()) if written() == before => return None,
            First::B(()) => before = written(),
        }
    }
}

/// Collects until `ending` ends. A collection is finished before that is looked for: what is in the midst of one would be lost.
async fn collect(store: Arc<FlashStore>, ending: MailReceiver<()>) {
    let log = store.lower().log();
    while let First::A(wanted) = first_of(log.collection_wanted(), ending.recv()).await {
        match wanted {
            Wanted::Collection => match log.collect().await {
                Some(collection) => store.collect(collection).await,
                None => time::sleep(COLLECT_PAUSE).await,
            },
            // Nothing is written any more, or will be.
            Wanted::End => {
                store.forget_flash().await;
                ending.recv().await;
                return;
            }
        }
    }
}

impl Opening {
    async fn open(&self, namespace: &Medium, store: Store, clock: Clock) -> Result<(FlashStore, Recovery), Failure> {
        let info = namespace.info();
        let limit = store.budget().limit();
        let usual = Options::new(Origin(clock.began()), self.secret);
        let segment_bytes = Options::segment_bytes_for(info.bytes());
        let buffer_bytes = usual.buffer_bytes.min(limit / BUFFERS_PART).max(BUFFERED_SEGMENTS_MIN * segment_bytes);
        let options = Options { segment_bytes, buffer_bytes, overwrite: self.args.flash_overwrite, ..usual };
        let words = options.journal_words(&info).map_err(failure)?;
        let items = (info.bytes() / ITEM_BYTES_TYPICAL).min((limit / SKETCH_PART) as u64 / Sketch::BYTES_PER_ITEM);
        let (admission, sketch_bytes): (Box<dyn Admission>, _) = match self.args.flash_admission {
            FlashAdmission::All => (Box::new(AdmitAll), 0),
            FlashAdmission::Frequent => {
                (Box::new(Sketch::new(items as usize)), (items * Sketch::BYTES_PER_ITEM) as usize)
            }
        };
        reserve(store.budget(), options.memory_bytes(&info).map_err(failure)?, options.buffer_bytes, sketch_bytes)?;
        let journal = Mapped::open(&self.journal, words).map_err(|error| match error.kind() {
            std::io::ErrorKind::ResourceBusy => Failure::refused(format!("{error}: another cache server uses it")),
            _ => Failure::from(error).during("--flash-journal"),
        })?;
        let opened = FlashLog::open(namespace.clone(), Arc::new(journal), &options, store.restoring()).await;
        let (log, recovery) = opened.map_err(failure)?;
        Ok((store.over(Tier::new(Arc::new(log), admission), &recovery), recovery))
    }
}

/// Counts what flash takes of the memory: `all`, of which `buffers` count themselves as they are taken, and the sketch.
fn reserve(budget: &Budget, all: usize, buffers: usize, sketch: usize) -> Result<(), Failure> {
    let limit = budget.limit();
    // A quarter is left for items and connections.
    budget.require((budget.used() + all + sketch).saturating_mul(4).div_ceil(3));
    if limit < budget.limit_min() {
        return Err(Failure::refused(format!(
            "-m {} leaves no room for items beside flash: give -m {} or more",
            limit >> 20,
            budget.limit_min().div_ceil(1 << 20)
        )));
    }
    budget.take(Kind::Base, all.saturating_sub(buffers) + sketch);
    Ok(())
}

fn failure(error: OpenError) -> Failure {
    match &error {
        OpenError::Foreign(_) => Failure::refused(format!("{error}: --flash-overwrite")),
        OpenError::TooSmall { .. } => Failure::usage(error),
        OpenError::Device(_) => Failure::unavailable(error),
        _ => Failure::refused(error),
    }
}

/// What there is, for the report.
#[derive(Clone, Serialize, Debug)]
pub struct Found {
    namespace: String,
    capacity_bytes: u64,
    items: u64,
    segments_lost: u32,
    begun_anew: Option<String>,
}

impl Found {
    /// Of a thread that has opened `spec`.
    pub fn new(spec: &FlashSpec, thread: &FlashThread) -> Found {
        let Recovery { items, segments_lost, fresh, .. } = &thread.recovery;
        Found {
            namespace: spec.describe(),
            capacity_bytes: thread.store.lower().log().capacity_bytes(),
            items: *items,
            segments_lost: *segments_lost,
            begun_anew: fresh.map(|fresh| fresh.to_string()),
        }
    }

    /// In a line.
    pub fn describe(&self) -> String {
        let Found { namespace, capacity_bytes, items, segments_lost, begun_anew } = self;
        let found = match begun_anew {
            None if *segments_lost == 0 => format!("{} found", many(*items, "item")),
            None => format!("{} found, {} lost", many(*items, "item"), many(u64::from(*segments_lost), "segment")),
            Some(why) => why.clone(),
        };
        format!("flash of {} in {namespace}: {found}\n", Size(*capacity_bytes))
    }
}
