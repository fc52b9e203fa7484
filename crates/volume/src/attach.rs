//! How a host attaches a volume (ATTACH in the model's README).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use engine::backoff::{Backoff, jittered};
use engine::sync::{Notify, Semaphore};
use engine::task::{self, LocalFuture, Task, TaskSet};
use engine::time;

use crate::bitmap::Bitmap;
use crate::clear::clear;
use crate::conn::{Conn, Said};
use crate::error::Error;
use crate::figures::Figures;
use crate::keep::keep;
use crate::label::Shape;
use crate::lease::renew;
use crate::log;
use crate::mirror::{Choice, Mirror, Promise, Refusal, choose};
use crate::options::Options;
use crate::reach::Reach;
use crate::record::{Ballot, HOLDERS_MAX, Record};
use crate::resync::resync;
use crate::settle::{AT_ONCE, settle};
use crate::shared::{Begin, Shared, info, lease_wait};
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
        let changed = Notify::new();
        let figures = Figures::default();
        let reasons = Reasons::default();
        let gathered = gather(&reaches, &options, (&changed, &figures), &reasons).await?;
        let shape = shape_of(&gathered, reaches.len())?;
        // Looked at first: a promise ends the host that has the volume, which may be one that can go on.
        let seen = seen(&gathered);
        choose(&shape, &seen).map_err(|refusal| refused(refusal, &seen, &reasons))?;
        let ballot = ballot(&gathered);
        let promises = promise(&shape, &gathered, ballot).await?;
        let promised = promises.map(|promise| promise.is_some());
        let choice = choose(&shape, &promises).map_err(|refusal| refused(refusal, &promises, &reasons))?;
        if choice.waits() {
            // A replica in sync was not reached: an older host may read there as long as its lease lasts.
            time::sleep(lease_wait(&shape)).await;
        }
        let conns: Conns = std::array::from_fn(|slot| gathered[slot].clone().filter(|_| promised[slot]));
        let begin = Begin {
            shape,
            ballot,
            options,
            mirror: Mirror::new(shape, ballot, &choice),
            reaches,
            info: info(&shape, &conns),
            unsettled: unsettled(&shape, &conns, &choice),
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

/// Preempts at all holders: all answers, or a majority's and those that come soon after.
async fn gather(
    reaches: &[Rc<dyn Reach>],
    options: &Options,
    (changed, figures): (&Notify, &Figures),
    reasons: &Reasons,
) -> Result<Conns, Error> {
    if reaches.is_empty() || reaches.len() > HOLDERS_MAX {
        return Err(Error::Impossible("a volume has one to three holders"));
    }
    let mut tries = TaskSet::new(HOLDERS_MAX);
    for (slot, reach) in reaches.iter().enumerate() {
        let pushed = tries.push(open(Rc::clone(reach), slot, changed.clone(), figures.clone(), Rc::clone(reasons)));
        debug_assert!(pushed.is_ok(), "a slot for each holder");
    }
    let (mut conns, mut unfit) = (Conns::default(), 0);
    let deadline = time::now() + options.attach_timeout;
    let mut until = deadline;
    while let Ok(Some((slot, conn))) = time::timeout(until.duration_since(time::now()), tries.next()).await {
        unfit += usize::from(conn.is_none());
        conns[slot] = conn;
        if unfit > (reaches.len() - 1) / 2 {
            break;
        }
        if conns.iter().flatten().count() > reaches.len() / 2 {
            until = deadline.min(time::now() + options.give_up_after);
        }
    }
    if conns.iter().flatten().count() > reaches.len() / 2 {
        return Ok(conns);
    }
    Err(Error::NoMajority { reasons: told(reasons) })
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
        match Conn::open(&reach, (slot, None), changed.clone(), figures.clone()).await {
            Ok(conn) => return Some(conn),
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

/// All holders are of one volume.
fn shape_of(conns: &Conns, holders: usize) -> Result<Shape, Error> {
    let mut known = conns.iter().flatten();
    let first = known.next().ok_or(Error::NoMajority { reasons: String::new() })?;
    let shape = first.label.shape;
    let other = known.find(|conn| conn.label.shape != shape);
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
    let mut promises = [None; HOLDERS_MAX];
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
    let newest = promises.iter().flatten().map(|promise| promise.record).max_by_key(Record::order).unwrap_or_default();
    for (slot, promise) in promises.iter().enumerate() {
        if promise.is_some_and(|promise| newest.exists() && promise.life != newest.lives[slot]) {
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

/// The regions with intent in a log of those in sync.
fn unsettled(shape: &Shape, conns: &Conns, choice: &Choice) -> Bitmap {
    let mut unsettled = Bitmap::new(shape.regions());
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
            let regions = shared.shape.regions();
            tasks.push(task::spawn(settle(Rc::clone(&shared), Rc::clone(&job), number, regions)));
        }
    }
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
