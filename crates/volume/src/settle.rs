//! Makes equal what an older host may have left different: regions with intent in a log of the set that attached.
//!
//! Invariants:
//! - A region is settled with its lock held alone, to the copy of any one member of READ; each other copy that differs is marked
//!   before it is written.
//! - Regions that somebody waits for come first.
//! - A block is taken from whoever can read it. Where NEED is one replica there is nothing to settle, and nothing is read.
//! - A block that each of NEED says it can't read is made unreadable at each, where targets can do that, and so is settled: nothing
//!   that anybody writes later could bring it back, and the other blocks of the region would be lost with it.
//!
//! What a replica in sync can't read is mended likewise: it is written anew with what another one has.

use std::rc::Rc;
use std::time::Duration;

use engine::job::Job;
use engine::{Buf, View, task, time};

use crate::change::Change;
use crate::conn::Lost;
use crate::fan_out::fan_out;
use crate::patience::Patience;
use crate::record::Set;
use crate::shared::Shared;

/// Regions that are settled at a time. Guessed: enough to have all replicas busy.
pub(crate) const AT_ONCE: usize = 4;
/// The pause after a region could not be settled. Guessed.
const PAUSE: Duration = Duration::from_millis(200);

/// One of those who settle; ends when nothing is left.
pub(crate) async fn settle(shared: Rc<Shared>, job: Rc<Job>, number: u64, all: u64) {
    let share = all.div_ceil(AT_ONCE as u64);
    let (mut cursor, end) = (number * share, ((number + 1) * share).min(all));
    while !shared.is_over() {
        // Taken in one step, so that no two of us settle the same region for those who wait.
        let urgent = shared.urgent.borrow_mut().pop_front();
        let next = urgent.or_else(|| shared.unsettled.borrow().next(cursor).filter(|&region| region < end));
        let Some(region) = next else {
            if shared.unsettled.borrow().is_empty() {
                return;
            }
            shared.changed.notified().await;
            continue;
        };
        if urgent.is_none() {
            cursor = region;
            job.take(u64::from(shared.shape.region_blocks) * u64::from(shared.shape.block_size)).await;
        }
        if let Err(error) = region_of(&shared, region).await {
            shared.stuck(region, &error);
            time::sleep(PAUSE).await;
        }
        job.reached(1.0 - shared.unsettled.borrow().len() as f64 / all.max(1) as f64);
    }
}

async fn region_of(shared: &Rc<Shared>, region: u64) -> Result<(), device::Error> {
    let (_guard, pieces) = shared.lock_region(region).await;
    if !shared.unsettled.borrow().has(region) {
        return Ok(());
    }
    if shared.mirror.borrow().need().len() > 1 {
        make_equal(shared, region, pieces, true).await?;
    }
    shared.unstuck(region);
    shared.unsettled.borrow_mut().remove(region);
    shared.changed.notify_all();
    Ok(())
}

/// The caller has the region's lock. `settles`: the region may differ; else only what some can't read does.
async fn make_equal(
    shared: &Rc<Shared>,
    region: u64,
    pieces: impl Iterator<Item = (u64, u64)>,
    settles: bool,
) -> Result<(), device::Error> {
    for (lba, blocks) in pieces {
        match piece(shared, region, lba, blocks).await {
            Ok(()) => continue,
            Err(error @ (device::Error::Aborted | device::Error::Disconnected(_))) => return Err(error),
            Err(_) => {}
        }
        for lba in lba..lba + blocks {
            match piece(shared, region, lba, 1).await {
                Err(device::Error::ReadFault(_)) if settles => spoil(shared, region, lba).await?,
                Err(device::Error::ReadFault(_)) => {}
                made => made?,
            }
        }
    }
    Ok(())
}

/// Makes a block unreadable that nobody who may be read can read: it is not to be one thing at the one replica and another thing at
/// the other, should they read it later. Where NEED has somebody else the block is not lost yet.
async fn spoil(shared: &Rc<Shared>, region: u64, lba: u64) -> Result<(), device::Error> {
    let (need, readable) = (shared.mirror.borrow().need(), shared.mirror.borrow().readable());
    if need != readable {
        return Err(device::Error::ReadFault(format!("block {lba} of {}", shared.name())));
    }
    for slot in need.iter() {
        let conn = shared.usable(slot).ok_or_else(|| device::Error::Disconnected(shared.name()))?;
        match conn.spoil(lba, region).await {
            Ok(()) | Err(Lost::Refused(device::Error::Unsupported(_))) => {}
            Err(Lost::Refused(error)) => return Err(error),
            Err(Lost::Ended) => return Err(device::Error::Disconnected(shared.name())),
        }
    }
    tracing::warn!(volume = shared.name(), lba, "no replica in sync can read a block: it is lost until it is written");
    Ok(())
}

/// Blocks can't be read at a replica: their regions are made equal soon, each by one task.
pub(crate) fn mend(shared: &Rc<Shared>, lba: u64, bytes: usize) {
    let blocks = bytes as u64 / u64::from(shared.shape.block_size);
    let (first, last) = shared.span(lba, blocks.max(1));
    for region in (first..=last).filter(|&region| shared.mending.borrow_mut().insert(region)) {
        let shared = Rc::clone(shared);
        task::spawn(async move {
            let (guard, pieces) = shared.lock_region(region).await;
            let mended = make_equal(&shared, region, pieces, false).await;
            drop(guard);
            shared.mending.borrow_mut().remove(&region);
            tracing::info!(volume = shared.name(), region, ?mended, "what a replica could not read was written anew");
        })
        .detach();
    }
}

async fn piece(shared: &Rc<Shared>, region: u64, lba: u64, blocks: u64) -> Result<(), device::Error> {
    let bytes = (blocks * u64::from(shared.shape.block_size)) as usize;
    let (source, data) = chosen(shared, lba, bytes, || true).await?;
    let mut done = Set::one(source);
    let others = shared.mirror.borrow().need().without(done);
    for slot in others.iter() {
        let Some(conn) = shared.usable(slot) else { continue };
        // What can't be read is written over.
        if let Ok(copy) = conn.read(lba, Buf::with_len(bytes)).await
            && copy[..] == data[..]
        {
            done = done.with(Set::one(slot));
        }
    }
    fan_out(shared, lba, Change::Write(data), (region, region), done).await
}

/// The copy that others will be like, and whose it is; waits for one as long as that `is_of_use`. A read fault: every replica that
/// may be read has said that it can't read all of it. Where one of them has refused by something else, which may pass: that.
pub(crate) async fn chosen(
    shared: &Shared,
    lba: u64,
    bytes: usize,
    is_of_use: impl Fn() -> bool,
) -> Result<(usize, View), device::Error> {
    let (mut faulty, mut given_up, mut patience) = (Set::default(), Set::default(), Patience::default());
    let mut refusal = None;
    loop {
        let changed = shared.changed.notified();
        if shared.is_over() || !is_of_use() {
            return Err(device::Error::Aborted);
        }
        let Some(conn) = shared.best(faulty.with(given_up)) else {
            let left = shared.mirror.borrow().readable().without(faulty);
            if left.is_empty() {
                let fault = || device::Error::ReadFault(format!("no replica of {} can be read", shared.name()));
                return Err(refusal.unwrap_or_else(fault));
            }
            if left.without(given_up).is_empty() {
                return Err(device::Error::Disconnected(shared.name()));
            }
            changed.await;
            continue;
        };
        match conn.read(lba, Buf::with_len(bytes)).await {
            Ok(copy) => return Ok((conn.slot, copy.freeze())),
            Err(Lost::Ended) => {
                shared.sweep();
                if patience.is_over(conn.slot, shared.options.give_up_after) {
                    given_up = given_up.with(Set::one(conn.slot));
                }
            }
            Err(Lost::Refused(error)) => {
                faulty = faulty.with(Set::one(conn.slot));
                refusal = Some(error).filter(|error| !matches!(error, device::Error::ReadFault(_))).or(refusal);
            }
        }
    }
}
