//! Takes and deletes snapshots of an attached volume (TAKE and DELETE in the model's README).
//!
//! Invariants:
//! - Replicas are asked while nothing is written: no write, settling, copying or mending is in flight and every region is settled.
//!   All of these hold the lock of their blocks alone, so a shared lock of all blocks holds them off, and lets reads pass.
//! - Asked are members of NEED that have the current record, which has the volume's size, over a connection that counts. Who joins
//!   is not.
//! - A replica counts that has answered over a connection that is still the same, in the life that the record says, and as long as
//!   the size is the same.
//! - A snapshot is there when a record that names it is stable, and gone when one is that does not.
//!
//! Writes are held until the last replica has answered, or [`HELD_TIME_MAX`] is over: who has not answered by then is not named.

use std::rc::Rc;
use std::time::Duration;

use device::{Mode, RangeGuard};
use engine::sync::Notified;
use engine::task::{self, LocalFuture, TaskSet};
use engine::time::{self, Instant};
use fabric::host::CopyTag;

use crate::conn::{Conn, Lost};
use crate::error::Error;
use crate::origin::Origin;
use crate::record::{HOLDERS_MAX, Record, Set};
use crate::shared::Shared;
use crate::snapshot_name::{SnapshotId, SnapshotName};

/// How long an attempt holds writes, at most. Chosen: a drive answers in milliseconds; one that does not is as well missed.
const HELD_TIME_MAX: Duration = Duration::from_secs(1);
/// How much of that is for the writes in flight. Chosen: what is left is enough for the replicas.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(500);
/// How long all of NEED may take for a record, before anything is held. Chosen: as long.
const RECORD_TIME_MAX: Duration = Duration::from_secs(1);
/// Attempts before the snapshot is given up. Guessed: each fails only if a replica is lost meanwhile, or slow.
const TRIES_MAX: u32 = 5;
/// The pause between two, in which writes go on. Guessed: longer than they were held.
const PAUSE: Duration = Duration::from_secs(1);

/// See [`Volume::snapshot`](crate::Volume::snapshot); of a volume that has all bytes of `source` by now, if it was imported.
pub(crate) async fn take(shared: &Rc<Shared>, source: Option<SnapshotId>) -> Result<SnapshotName, Error> {
    let _turn = shared.takes.acquire(1).await;
    let mut reasons = String::new();
    for attempt in 0..TRIES_MAX {
        if attempt > 0 {
            time::sleep(PAUSE).await;
        }
        check_room(shared, source)?;
        settled(shared).await?;
        if !all_current(shared).await {
            "a replica that is needed does not take the record".clone_into(&mut reasons);
            continue;
        }
        let until = time::now() + HELD_TIME_MAX;
        let Some(guard) = hold(shared).await else {
            "the writes in flight take too long".clone_into(&mut reasons);
            continue;
        };
        match ask_and_propose(shared, (guard, until), source).await? {
            Ok(name) => {
                if until_stable(shared, name).await? {
                    return Ok(name);
                }
                "those that had it were replaced".clone_into(&mut reasons);
            }
            Err(said) => reasons = said,
        }
    }
    Err(Error::NotTaken { reasons })
}

/// The record has room for one more snapshot; that of what was imported takes the place of the volume's own one of before.
fn check_room(shared: &Shared, source: Option<SnapshotId>) -> Result<(), Error> {
    let mirror = shared.mirror.borrow();
    let record = mirror.current();
    let origin = source.map(|source| Origin::InPart { source, base: None }).or(record.origin);
    let max = Record { origin, ..Record::default() }.snapshots_max(shared.shape.block_size);
    let own = source.and(record.origin).and_then(|origin| origin.own());
    let stay = record.snapshots.iter().filter(|snapshot| Some(snapshot.name) != own).count();
    if stay < max { Ok(()) } else { Err(Error::TooManySnapshots { max }) }
}

/// Waits until no region may differ between replicas, as long as at least one is settled from time to time, and until the record is
/// stable.
pub(crate) async fn settled(shared: &Shared) -> Result<(), Error> {
    let (mut least, mut since) = (u64::MAX, None);
    loop {
        let changed = shared.changed.notified();
        shared.check_whole()?;
        let left = shared.unsettled.borrow().len();
        if left == 0 && shared.mirror.borrow().is_stable() {
            return Ok(());
        }
        if left < least {
            (least, since) = (left, None);
        }
        let waited = shared.wait(&mut since, changed).await;
        waited.map_err(|source| Error::Device { holder: shared.name(), source })?;
    }
}

/// Waits until each of NEED has the current record: who has not is not asked. False: that takes too long.
async fn all_current(shared: &Shared) -> bool {
    let deadline = time::now() + RECORD_TIME_MAX;
    loop {
        let changed = shared.changed.notified();
        let is_all = {
            let mirror = shared.mirror.borrow();
            mirror.need().iter().all(|slot| mirror.is_current(slot))
        };
        if is_all || shared.is_over() {
            return is_all;
        }
        if time::timeout(deadline.duration_since(time::now()), changed).await.is_err() {
            return false;
        }
    }
}

/// New changes wait, and those in flight have ended; `None`: they do not end.
async fn hold(shared: &Shared) -> Option<RangeGuard> {
    time::timeout(DRAIN_TIME_MAX, shared.locks.lock(0, u64::MAX, Mode::Shared)).await.ok()
}

/// The attempt ends with this, and what it has left is garbage.
struct Attempt<'a>(&'a Shared);

impl<'a> Attempt<'a> {
    fn begin(shared: &'a Shared, name: SnapshotName) -> Attempt<'a> {
        shared.taking.set(Some(name));
        Attempt(shared)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.0.taking.set(None);
        self.0.litter();
    }
}

/// One attempt, with changes held. Within: what the replicas say of whom none counts.
async fn ask_and_propose(
    shared: &Rc<Shared>,
    (guard, until): (RangeGuard, Instant),
    source: Option<SnapshotId>,
) -> Result<Result<SnapshotName, String>, Error> {
    shared.check_whole()?;
    let name = shared.next_name();
    let tag = name.tag(shared.shape.volume).ok_or(Error::Impossible("the volume was attached too often for that"))?;
    let blocks = shared.mirror.borrow().current().blocks;
    let need = shared.mirror.borrow().need();
    let conns: Vec<Rc<Conn>> = need.iter().filter_map(|slot| shared.usable(slot)).collect();
    if !conns.is_empty() && !conns.iter().any(|conn| conn.offers_snapshots()) {
        return Err(Error::NoCopies);
    }
    let attempt = Attempt::begin(shared, name);
    let may = |conn: &Rc<Conn>| conn.offers_snapshots() && shared.mirror.borrow().is_current(conn.slot);
    let conns = conns.into_iter().filter(may).collect();
    let (answered, mut reasons) = ask(shared, (conns, until), tag).await;
    // In one step from here.
    let counts = |conn: &&Rc<Conn>| shared.usable(conn.slot).is_some_and(|now| Rc::ptr_eq(&now, conn));
    let counted = answered.iter().filter(counts).fold(Set::default(), |set, conn| set.with(Set::one(conn.slot)));
    let is_as_large = shared.mirror.borrow().current().blocks == blocks;
    let is_proposed = is_as_large && shared.propose(|mirror| mirror.add_snapshot(name, counted, source));
    drop((attempt, guard));
    if reasons.is_empty() {
        "those that have answered do not count any more".clone_into(&mut reasons);
    }
    Ok(if is_proposed { Ok(name) } else { Err(reasons) })
}

/// What replicas say that were asked, and over which connection.
type Answer = (Result<(), Lost>, Rc<Conn>);

/// Those that are asked. Who has not answered when this ends, also by a caller that is gone, may take it yet: somebody else waits
/// for that, and it is garbage then.
struct Asked {
    shared: Rc<Shared>,
    all: TaskSet<LocalFuture<'static, Answer>>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut late = std::mem::replace(&mut self.all, TaskSet::new(0));
        if late.is_empty() || !task::in_world() {
            return;
        }
        let shared = Rc::clone(&self.shared);
        task::spawn(async move {
            while late.next().await.is_some() {}
            shared.litter();
        })
        .detach();
    }
}

/// Who has taken it in time.
async fn ask(shared: &Rc<Shared>, (conns, until): (Vec<Rc<Conn>>, Instant), tag: CopyTag) -> (Vec<Rc<Conn>>, String) {
    let mut asked = Asked { shared: Rc::clone(shared), all: TaskSet::new(HOLDERS_MAX) };
    for conn in conns {
        let pushed = asked.all.push(Box::pin(async move { (conn.snapshot(tag).await, conn) }));
        debug_assert!(pushed.is_ok(), "a slot for each holder");
    }
    let (mut answered, mut reasons) = (Vec::new(), Vec::new());
    while !asked.all.is_empty() {
        let left = until.duration_since(time::now());
        let Ok(Some((_, (said, conn)))) = time::timeout(left, asked.all.next()).await else {
            reasons.push("not all have answered in time".to_owned());
            break;
        };
        match said {
            Ok(()) => answered.push(conn),
            Err(Lost::Refused(error)) => {
                tracing::warn!(holder = conn.name(), %error, "a replica does not take a snapshot, and is not named");
                reasons.push(format!("{}: {error}", conn.name()));
            }
            Err(Lost::Ended) => {
                reasons.push(format!("the connection to {} was lost", conn.name()));
                shared.sweep();
            }
        }
    }
    (answered, reasons.join("; "))
}

/// The record says from now on of what the volume is a copy: when this has ended, to every host.
pub(crate) async fn set_origin(shared: &Rc<Shared>, origin: Origin) -> Result<(), Error> {
    let mut since = None;
    if let Origin::InPart { source, .. } = origin {
        // For the snapshot at the end: not to be found out when all is written.
        check_room(shared, Some(source))?;
    }
    loop {
        let changed = shared.changed.notified();
        shared.check_whole()?;
        let max = Record { origin: Some(origin), ..Record::default() }.snapshots_max(shared.shape.block_size);
        if shared.mirror.borrow().current().snapshots.len() > max {
            return Err(Error::TooManySnapshots { max });
        }
        shared.propose(|mirror| mirror.set_origin(origin));
        if shared.mirror.borrow().has_origin(origin) {
            shared.litter();
            return Ok(());
        }
        wait(shared, &mut since, changed).await?;
    }
}

/// Waits for a change, as long as commands wait; the next host may find what was proposed by then.
async fn wait(shared: &Shared, since: &mut Option<Instant>, changed: Notified) -> Result<(), Error> {
    let unknown = || Error::Device { holder: shared.name(), source: device::Error::Disconnected(shared.name()) };
    shared.wait(since, changed).await.map_err(|_| unknown())
}

/// Whether it is there; false: whoever had it was replaced meanwhile.
async fn until_stable(shared: &Shared, name: SnapshotName) -> Result<bool, Error> {
    let mut since = None;
    loop {
        let changed = shared.changed.notified();
        {
            let mirror = shared.mirror.borrow();
            let is_there = mirror.stable().is_some_and(|record| !record.snapshot(name).is_empty());
            if is_there || mirror.current().snapshot(name).is_empty() {
                return Ok(is_there);
            }
        }
        shared.check_whole()?;
        wait(shared, &mut since, changed).await?;
    }
}

/// See [`Volume::delete_snapshot`](crate::Volume::delete_snapshot).
pub(crate) async fn delete(shared: &Rc<Shared>, name: SnapshotName) -> Result<(), Error> {
    let mut since = None;
    loop {
        let changed = shared.changed.notified();
        shared.check_whole()?;
        shared.propose(|mirror| mirror.delete_snapshot(name));
        if shared.mirror.borrow().is_gone(name) {
            shared.litter();
            return Ok(());
        }
        wait(shared, &mut since, changed).await?;
    }
}
