//! Brings a replica that is not in sync up to date, while the volume is in use.
//!
//! Invariants:
//! - What it lacks is what is not clean in a log of NEED or in its own, and what is written when it begins. From then on every
//!   write goes to it, too.
//! - A region is copied with its lock held alone: nothing else is written there meanwhile. It is marked before.
//! - It has room for the volume, also as large as that is growing to.
//! - It is proposed to be in sync only while it is still the connection that all of this went over.
//! - It begins when all regions are settled: before that NEED has no one content.
//! - A block that no replica in sync can read is made unreadable at the joiner, where its target can do that; else the joiner waits
//!   until the block is written.
//! - What it has got is cleared in its own log where every log of NEED says that nobody lacks it. So a rebuild that is cut short
//!   goes on where it was, also by another host.
//!
//! It gives way: while the volume has other commands under way it pauses as long as its last region took.

use std::rc::Rc;
use std::time::Duration;

use engine::job::Job;
use engine::sync::Semaphore;
use engine::time;

use crate::bitmap::Bitmap;
use crate::change::Change;
use crate::conn::{Conn, Lost};
use crate::log;
use crate::settle::chosen;
use crate::shared::Shared;

/// Regions that are copied before those that can be are cleared in one or two writes of the log. Guessed: what is copied again
/// after a break.
const CLEARED_TOGETHER: u64 = 64;

/// How often a replica without room for the volume is looked at. Guessed.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

/// Resynchronises the replica of a slot whenever it needs it; ends when the volume is over. `turn`: one at a time, so that a
/// volume that lost two replicas has one of them back as soon as can be.
pub(crate) async fn resync(shared: Rc<Shared>, slot: usize, turn: Semaphore) {
    while !shared.is_over() {
        let changed = shared.changed.notified();
        let may = shared.unsettled.borrow().is_empty() && shared.mirror.borrow().may_join(slot);
        let Some(conn) = shared.usable(slot).filter(|_| may) else {
            changed.await;
            continue;
        };
        if let Err(error) = conn.check_room(shared.blocks_counted()) {
            shared.note(slot, error.to_string());
            // Nobody says when it has got the room.
            let _ = time::timeout(ROOM_PAUSE, changed).await;
            continue;
        }
        let Some(_turn) = turn.try_acquire(1) else {
            changed.await;
            continue;
        };
        // In one step: no write may begin between the look at the logs and the time from which writes go there.
        let lacks = lacks(&shared, &conn);
        tracing::info!(volume = shared.name(), slot, regions = lacks.len(), "a replica is resynchronised");
        *shared.lacks.borrow_mut() = lacks;
        shared.mirror.borrow_mut().begin_joining(slot);
        shared.changed.notify_all();
        let job = shared.figures.jobs().begin("resync", shared.options.resync_bytes_per_second, None);
        let copied = copy_all(&shared, &conn, &job).await;
        drop(job);
        let has_room = conn.check_room(shared.blocks_counted()).is_ok();
        let is_there = copied.is_ok() && has_room && shared.usable(slot).is_some_and(|now| Rc::ptr_eq(&now, &conn));
        if is_there && shared.propose(|mirror| mirror.join(slot)) {
            tracing::info!(volume = shared.name(), slot, "a replica is in sync again");
        } else {
            // It is left to the next connection: soon, if not what was asked of the replica is what it refuses.
            match copied {
                Err(Lost::Refused(error)) => conn.refuse(&error),
                Ok(()) | Err(Lost::Ended) => conn.end(),
            }
            shared.sweep();
        }
    }
}

/// The regions in which the replica may lack something.
fn lacks(shared: &Shared, conn: &Rc<Conn>) -> Bitmap {
    let mut lacks = Bitmap::new(shared.regions_counted());
    let need = shared.mirror.borrow().need();
    let conns = need.iter().filter_map(|slot| shared.usable(slot)).chain([Rc::clone(conn)]);
    for conn in conns {
        let mut next = 0;
        while let Some(region) = conn.with_log(|log| log.next_unclean(next)) {
            lacks.insert(region);
            next = region + 1;
        }
    }
    let regions = shared.regions_counted();
    shared.regions.borrow().busy().filter(|&region| region < regions).for_each(|region| lacks.insert(region));
    lacks
}

async fn copy_all(shared: &Rc<Shared>, conn: &Rc<Conn>, job: &Rc<Job>) -> Result<(), Lost> {
    let all = shared.lacks.borrow().len();
    let mut next = 0;
    while let Some(region) = next_of(shared, next) {
        job.take(u64::from(shared.shape.region_blocks) * u64::from(shared.shape.block_size)).await;
        let begin = time::now();
        let (guard, pieces) = shared.lock_region(region).await;
        for (lba, blocks) in pieces {
            copy(shared, conn, region, lba, blocks).await?;
        }
        drop(guard);
        shared.unstuck(region);
        shared.lacks.borrow_mut().remove(region);
        next = region + 1;
        let left = shared.lacks.borrow().len();
        job.reached(1.0 - left as f64 / all as f64);
        if left.is_multiple_of(CLEARED_TOGETHER) {
            clear_joiner(shared, conn);
        }
        // No pace of so much a second: how long it gives way follows from how long the holders took, and only while others wait.
        if shared.is_busy() {
            time::sleep(begin.elapsed()).await;
        }
    }
    Ok(())
}

fn next_of(shared: &Shared, from: u64) -> Option<u64> {
    // Where growing has come to nothing, what it was to grow by counts no more.
    shared.lacks.borrow().next(from).filter(|&region| region < shared.regions_counted())
}

/// Clears in the log of the replica that joins what it has got, where all of NEED know that nobody lacks it.
fn clear_joiner(shared: &Rc<Shared>, conn: &Rc<Conn>) {
    let need = shared.mirror.borrow().need();
    let conns: Vec<_> = need.iter().map(|slot| shared.usable(slot)).collect();
    let is_clean =
        |region: u64| conns.iter().all(|of| of.as_ref().is_some_and(|of| of.with_log(|log| log.is_clean(region))));
    let since = time::now();
    let mut next = 0;
    while let Some(region) = conn.with_log(|log| log.next_unclean(next)) {
        next = region + 1;
        let is_known = conn.with_log(|log| log.entry(region)).is_some();
        let is_idle = shared.regions.borrow().is_idle(region, since);
        if is_known && is_idle && !shared.lacks.borrow().has(region) && is_clean(region) {
            conn.set_entry(region, log::CLEAN);
        }
    }
}

async fn copy(shared: &Rc<Shared>, conn: &Rc<Conn>, region: u64, lba: u64, blocks: u64) -> Result<(), Lost> {
    let bytes = (blocks * u64::from(shared.shape.block_size)) as usize;
    match chosen(shared, lba, bytes, || conn.is_up()).await {
        Ok((_, data)) => Rc::clone(conn).put(lba, Change::Write(data), (region, region)).await,
        Err(device::Error::Aborted | device::Error::Disconnected(_)) => Err(Lost::Ended),
        Err(_) if blocks > 1 => {
            for lba in lba..lba + blocks {
                Box::pin(copy(shared, conn, region, lba, 1)).await?;
            }
            Ok(())
        }
        // What nobody can read is to be read from nobody: neither may it be what the joiner had there.
        Err(error) => match conn.spoil(lba, region).await {
            Err(Lost::Refused(_)) => {
                shared.stuck(region, &error);
                Err(Lost::Refused(error))
            }
            spoilt => spoilt,
        },
    }
}

/// What an entry of a replica in sync becomes, where nothing is under way: clean if everybody has what it has.
pub(crate) fn cleared(shared: &Shared) -> u8 {
    if shared.mirror.borrow().is_full() { log::CLEAN } else { log::BEHIND }
}
