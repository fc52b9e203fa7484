//! How a host attaches a volume (ATTACH in the model's README).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use device::{Namespace, NamespaceInfo};
use engine::backoff::{Backoff, jittered};
use engine::sync::{Notify, Semaphore};
use engine::task::{self, LocalFuture, Task, TaskSet};
use engine::time::{self, Instant};

use crate::bitmap::Bitmap;
use crate::clear::clear;
use crate::conn::{Conn, Expected, Said};
use crate::error::Error;
use crate::figures::Figures;
use crate::garbage::collect;
use crate::keep::keep;
use crate::label::Shape;
use crate::lease::renew;
use crate::log;
use crate::mirror::{Choice, Mirror, Promise, Refusal, choose};
use crate::options::Options;
use crate::reach::Reach;
use crate::record::{Ballot, HOLDERS_MAX, Record, Set};
use crate::resync::resync;
use crate::settle::{AT_ONCE, settle};
use crate::shared::{Begin, Shared, lease_wait};
use crate::volume::Volume;
use crate::watch::watch;

/// Pauses between tries to reach a holder.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

type Conns = [Option<Rc<Conn>>; HOLDERS_MAX];

/// What the holders that were not reached have said last.
type Reasons = Rc<RefCell<[String; HOLDERS_MAX]>>;

/// Attaches the volume whose holders these are, by slot: the replicas, and behind two of them the witness. Whoever has it attached
/// loses it.
///
/// # Errors
/// Too few were reached, none in sync was, or another host was quicker.
pub fn attach(reaches: Vec<Rc<dyn Reach>>, options: Options) -> LocalFuture<'static, Result<Volume, Error>> {
    Box::pin(async move {
        if reaches.is_empty() || reaches.len() > HOLDERS_MAX {
            return Err(Error::Impossible("a volume has one to three holders"));
        }
        let candidate = Candidacy { reaches, options, ..Candidacy::default() };
        let Won { shape, ballot, choice, mut conns } = candidate.win().await?;
        let Candidacy { reaches, changed, figures, reasons, .. } = candidate;
        let regions = Shape { blocks: choice.record.size(shape.blocks), ..shape }.regions();
        cover(&mut conns, &choice, regions).await?;
        if choice.waits() {
            // A replica in sync was not reached: an older host may read there as long as its lease lasts.
            time::sleep(lease_wait(&shape)).await;
        }
        let begin = Begin {
            shape,
            ballot,
            before: choice.record.ballot,
            options,
            mirror: Mirror::new(shape, ballot, &choice),
            reaches,
            info: info(&shape, &conns),
            unsettled: unsettled(regions, &conns, &choice),
            changed,
            figures,
        };
        let volume = start(Shared::new(begin), conns);
        let attached = time::timeout(options.attach_timeout, until_attached(volume.shared())).await;
        attached.unwrap_or_else(|_| Err(Error::NoMajority { reasons: told(&reasons) }))?;
        tracing::info!(volume = volume.shared().name(), in_sync = ?choice.in_sync, "attached");
        Ok(volume)
    })
}

/// A host that wants the volume.
#[derive(Default)]
struct Candidacy {
    reaches: Vec<Rc<dyn Reach>>,
    options: Options,
    changed: Notify,
    figures: Figures,
    reasons: Reasons,
}

/// What a host goes on from that has promises enough.
struct Won {
    shape: Shape,
    ballot: Ballot,
    choice: Choice,
    /// To those that have promised.
    conns: Conns,
}

impl Candidacy {
    /// Takes the holders and asks for their promises, again and again once it has seen that it could go on: a host that has the
    /// volume and is busy takes holders back before they were asked, until it sees the first promise that one has made.
    async fn win(&self) -> Result<Won, Error> {
        let deadline = time::now() + self.options.attach_timeout;
        let (mut conns, mut could_go_on) = (Conns::default(), false);
        loop {
            conns = self.gather(conns, deadline).await?;
            let shape = shape_of(&conns, self.options.volume, self.reaches.len())?;
            // Looked at first: a promise ends the host that has the volume, which may be one that can go on.
            let mut promises = seen(&conns);
            let mut chosen = choose(&shape, &promises);
            if chosen.is_ok() {
                could_go_on = true;
                let ballot = ballot(&conns);
                promises = promise(&shape, &conns, ballot).await?;
                chosen = choose(&shape, &promises);
                if let Ok(choice) = chosen {
                    let conns = std::array::from_fn(|slot| conns[slot].clone().filter(|_| promises[slot].is_some()));
                    return Ok(Won { shape, ballot, choice, conns });
                }
            }
            for conn in conns.iter().flatten().filter(|conn| !conn.is_up()) {
                self.reasons.borrow_mut()[conn.slot] = conn.reason();
            }
            if let Err(refusal) = chosen
                && (!could_go_on || time::now() >= deadline)
            {
                return Err(refused(refusal, &promises, &self.reasons));
            }
            time::sleep(jittered(PAUSE.0)).await;
        }
    }

    /// Preempts at the holders that it has not got, or has lost: all answers, or a majority's and those that come soon after. Where
    /// it had some before, no others are waited for: those that it has may be taken back meanwhile.
    async fn gather(&self, mut conns: Conns, deadline: Instant) -> Result<Conns, Error> {
        let holders = self.reaches.len();
        let before = Set::of(holders, |slot| conns[slot].is_some());
        conns.iter_mut().for_each(|conn| drop(conn.take_if(|conn| !conn.is_up())));
        let mut tries = TaskSet::new(HOLDERS_MAX);
        for (slot, reach) in self.reaches.iter().enumerate().filter(|(slot, _)| conns[*slot].is_none()) {
            let (changed, figures, reasons) = (self.changed.clone(), self.figures.clone(), Rc::clone(&self.reasons));
            let opened = open(Rc::clone(reach), slot, changed, figures, reasons);
            let pushed = tries.push(async move { (slot, opened.await) });
            debug_assert!(pushed.is_ok(), "a slot for each holder");
        }
        let (mut unfit, mut until) = (0, deadline);
        loop {
            let there = Set::of(holders, |slot| conns[slot].is_some());
            let is_majority = there.len() as usize > holders / 2;
            if unfit > (holders - 1) / 2 || is_majority && !before.is_empty() && before.without(there).is_empty() {
                break;
            }
            if is_majority {
                until = until.min(time::now() + self.options.give_up_after);
            }
            let tried = time::timeout(until.duration_since(time::now()), tries.next()).await;
            let Ok(Some((_, (slot, conn)))) = tried else { break };
            unfit += usize::from(conn.is_none());
            conns[slot] = conn;
        }
        if conns.iter().flatten().count() > holders / 2 {
            return Ok(conns);
        }
        Err(Error::NoMajority { reasons: told(&self.reasons) })
    }
}

/// Tries until it has the holder. `None`: to try again is of no use.
async fn open(
    reach: Rc<dyn Reach>,
    slot: usize,
    changed: Notify,
    figures: Figures,
    reasons: Reasons,
) -> Option<Rc<Conn>> {
    let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
    loop {
        match Conn::open(&reach, Expected { slot, volume: None, regions: 0 }, changed.clone(), figures.clone()).await {
            Ok(conn) => {
                reasons.borrow_mut()[slot].clear();
                return Some(conn);
            }
            Err(error) => {
                reasons.borrow_mut()[slot] = error.to_string();
                if !error.may_pass() {
                    return None;
                }
            }
        }
        time::sleep(jittered(backoff.pause())).await;
    }
}

fn told(reasons: &Reasons) -> String {
    let reasons = reasons.borrow();
    let told: Vec<&str> = reasons.iter().map(String::as_str).filter(|reason| !reason.is_empty()).collect();
    if told.is_empty() { "they did not answer in time".to_owned() } else { told.join("; ") }
}

/// All holders are of one volume: of the one that is meant, if that was said.
fn shape_of(conns: &Conns, meant: Option<u128>, holders: usize) -> Result<Shape, Error> {
    let mut known = conns.iter().flatten();
    let first = known.clone().next().ok_or(Error::NoMajority { reasons: String::new() })?;
    let shape = first.label.shape;
    let is_other = |found: &Shape| *found != shape || meant.is_some_and(|volume| volume != found.volume);
    let other = known.find(|conn| is_other(&conn.label.shape));
    if let Some(conn) = other {
        let (holder, volume) = (conn.name().to_owned(), conn.label.shape.volume);
        return Err(Error::OtherVolume { holder, volume, slot: conn.label.slot });
    }
    if shape.holders() != holders {
        return Err(Error::Impossible("the volume has another number of holders than were named"));
    }
    Ok(shape)
}

/// What the holders say before they promise anything.
fn seen(conns: &Conns) -> [Option<Promise>; HOLDERS_MAX] {
    let of = |conn: &Rc<Conn>| Promise { life: conn.label.life, record: conn.block().accepted };
    std::array::from_fn(|slot| conns[slot].as_ref().map(of))
}

/// Above all that was seen.
fn ballot(conns: &Conns) -> Ballot {
    let seen = conns.iter().flatten().map(|conn| conn.block());
    let highest = seen.map(|block| block.promised.max(block.accepted.ballot)).max().unwrap_or_default();
    Ballot { round: highest.round + 1, host: task::random_u64() }
}

async fn promise(shape: &Shape, conns: &Conns, ballot: Ballot) -> Result<[Option<Promise>; HOLDERS_MAX], Error> {
    let mut asked = TaskSet::new(HOLDERS_MAX);
    for conn in conns.iter().flatten().take(shape.holders()).cloned() {
        let pushed = asked.push(async move {
            let said = conn.promise(ballot).await;
            (conn, said)
        });
        debug_assert!(pushed.is_ok(), "a slot for each holder");
    }
    let mut promises = [const { None }; HOLDERS_MAX];
    while let Some((_, (conn, said))) = asked.next().await {
        match said {
            Ok(Said::Yes) => {
                promises[conn.slot] = Some(Promise { life: conn.label.life, record: conn.block().accepted });
            }
            Ok(Said::Higher) => return Err(Error::Superseded),
            Err(_) => {}
        }
    }
    Ok(promises)
}

fn refused(refusal: Refusal, promises: &[Option<Promise>; HOLDERS_MAX], reasons: &Reasons) -> Error {
    let records = promises.iter().flatten().map(|promise| promise.record.clone());
    let newest = records.max_by_key(Record::order).unwrap_or_default();
    for (slot, promise) in promises.iter().enumerate() {
        if promise.as_ref().is_some_and(|promise| newest.exists() && promise.life != newest.lives[slot]) {
            let why = "it was formatted since, and nobody has taken it in for its former self yet";
            reasons.borrow_mut()[slot] = format!("slot {slot} is another than the record says: {why}");
        }
    }
    let reasons = told(reasons);
    match refusal {
        Refusal::NoMajority => Error::NoMajority { reasons },
        Refusal::NoRecord => Error::NoRecord,
        Refusal::NoneInSync => Error::NoneInSync { slots: format!("{:?}", newest.in_sync), reasons },
    }
}

/// What a volume is, over these replicas.
fn info(shape: &Shape, conns: &Conns) -> NamespaceInfo {
    let replicas = conns.iter().flatten().filter(|conn| conn.slot < usize::from(shape.replicas));
    let infos = replicas.map(|conn| conn.taken().namespace.info());
    let first = NamespaceInfo {
        block_size: shape.block_size,
        blocks: shape.blocks,
        atomic_blocks: u32::MAX,
        compare_and_write_blocks_max: u32::MAX,
        transfer_blocks_max: u32::MAX,
        volatile_cache: false,
        volatile_medium: false,
        deallocated_reads_zero: true,
        thin: false,
        preferred_write_blocks: 1,
        preferred_deallocate_blocks: 1,
        write_uncorrectable: false,
        persists_attributes: false,
        nguid: shape.volume.to_be_bytes(),
    };
    let info = infos.fold(first, |info, replica| NamespaceInfo {
        atomic_blocks: info.atomic_blocks.min(replica.atomic_blocks),
        transfer_blocks_max: info.transfer_blocks_max.min(replica.transfer_blocks_max),
        volatile_medium: info.volatile_medium | replica.volatile_medium,
        thin: info.thin | replica.thin,
        preferred_write_blocks: info.preferred_write_blocks.max(replica.preferred_write_blocks),
        preferred_deallocate_blocks: info.preferred_deallocate_blocks.max(replica.preferred_deallocate_blocks),
        ..info
    });
    // A compare-and-write is a write under a lock of ours.
    let most = info.transfer_blocks_max.min((device::COMPARE_AND_WRITE_BYTES_MAX as u32 / shape.block_size).max(1));
    NamespaceInfo { compare_and_write_blocks_max: most, ..info }
}

/// As many regions count as the record says that the host goes on from. Whoever does not show the log of all of them is connected
/// to again, if not one of those in sync is it: the host would know of no intent there.
async fn cover(conns: &mut Conns, choice: &Choice, regions: u64) -> Result<(), Error> {
    for (slot, held) in conns.iter_mut().enumerate() {
        let Some(conn) = held else { continue };
        if conn.is_covered(regions) || conn.cover(regions).await.is_ok() {
            conn.count_regions(regions);
            continue;
        }
        if choice.in_sync.has(slot) && regions > conn.label.regions_max() {
            return Err(Error::log_too_small(&conn.label));
        }
        if choice.in_sync.has(slot) {
            let source = device::Error::Disconnected(conn.name().to_owned());
            return Err(Error::Device { holder: conn.name().to_owned(), source });
        }
        conn.end();
        *held = None;
    }
    Ok(())
}

/// The regions with intent in a log of those in sync.
fn unsettled(regions: u64, conns: &Conns, choice: &Choice) -> Bitmap {
    let mut unsettled = Bitmap::new(regions);
    for conn in conns.iter().flatten().filter(|conn| choice.in_sync.has(conn.slot)) {
        let mut next = 0;
        while let Some(region) = conn.with_log(|log| log.next_unclean(next)) {
            if conn.with_log(|log| log.entry(region)) != Some(log::BEHIND) {
                unsettled.insert(region);
            }
            next = region + 1;
        }
    }
    unsettled
}

/// Starts what an attached volume does by itself.
fn start(shared: Shared, conns: Conns) -> Volume {
    let shared = Rc::new(shared);
    let mut tasks: Vec<Task<()>> = Vec::new();
    // Before the first record is stable: who has promised may be sent it.
    for (slot, conn) in conns.into_iter().enumerate().take(shared.shape.holders()) {
        tasks.push(task::spawn(keep(Rc::clone(&shared), slot, conn)));
    }
    tasks.push(task::spawn(watch(Rc::clone(&shared))));
    tasks.push(task::spawn(renew(Rc::clone(&shared))));
    tasks.push(task::spawn(clear(Rc::clone(&shared))));
    if !shared.unsettled.borrow().is_empty() {
        let job = shared.figures.jobs().begin("settle", shared.options.settle_bytes_per_second, None);
        for number in 0..AT_ONCE as u64 {
            let regions = shared.regions_counted();
            tasks.push(task::spawn(settle(Rc::clone(&shared), Rc::clone(&job), number, regions)));
        }
    }
    tasks.push(task::spawn(collect(Rc::clone(&shared))));
    let turn = Semaphore::new(1);
    for slot in 0..usize::from(shared.shape.replicas) {
        tasks.push(task::spawn(resync(Rc::clone(&shared), slot, turn.clone())));
    }
    Volume::new(shared, tasks)
}

async fn until_attached(shared: &Shared) -> Result<(), Error> {
    loop {
        let changed = shared.changed.notified();
        if shared.mirror.borrow().is_over() {
            return Err(Error::Superseded);
        }
        if shared.mirror.borrow().is_attached() {
            return Ok(());
        }
        changed.await;
    }
}
