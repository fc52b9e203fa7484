//! Makes a volume larger while it is in use (GROW in the model's README).
//!
//! Invariants:
//! - The record says a size only when each of NEED, as it is then, has the room, and zeroes in all that the volume grows by. These
//!   are written as any write is: the intent, the zeroes, at all of NEED and at who joins.
//! - From when the first of them are written the new regions count: logs have entries of them, who joins is given them.
//! - They are served when the record with the new size is stable.
//! - The volume grows once at a time, from the size of a stable record; what has begun goes on when its caller is gone. So nothing
//!   is zeroed that somebody is served already.
//!
//! What a namespace has behind the volume is not believed to read as zeroes: somebody may have used it before. To deallocate costs
//! a target with thin namespaces little, and others write zeroes.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;

use device::Mode;
use engine::sync::{Notified, oneshot};
use engine::task;
use engine::time::{self, Instant};

use crate::change::{Change, ZERO_REGIONS_MAX};
use crate::conn::Conn;
use crate::error::Error;
use crate::fan_out::fan_out;
use crate::label::Shape;
use crate::record::Set;
use crate::shared::Shared;

/// The new regions count while this is there.
struct Growing<'a>(&'a Cell<u64>);

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

/// See [`Volume::grow`](crate::Volume::grow).
pub(crate) async fn grow(shared: &Rc<Shared>, bytes: u64) -> Result<(), Error> {
    let block_size = u64::from(shared.shape.block_size);
    if !bytes.is_multiple_of(block_size) {
        return Err(Error::Impossible("a volume grows by whole blocks"));
    }
    let turn = patiently(shared, shared.grows.acquire(1)).await?;
    let (sender, receiver) = oneshot();
    let owned = Rc::clone(shared);
    task::spawn(async move {
        let _turn = turn;
        // Nobody may wait for it any more.
        let _ = sender.send(grow_to(&owned, bytes / block_size).await);
    })
    .detach();
    patiently(shared, receiver).await?.unwrap_or(Err(Error::Detached))
}

/// Waits as long as nobody is missing whom growing has to wait for, or not for longer than commands wait.
async fn patiently<T>(shared: &Shared, what: impl Future<Output = T>) -> Result<T, Error> {
    let mut what = pin!(what);
    loop {
        if let Ok(done) = time::timeout(shared.options.wait_max, what.as_mut()).await {
            return Ok(done);
        }
        shared.check_whole()?;
        if shared.is_short() || !shared.mirror.borrow().is_stable() {
            let source = device::Error::Disconnected(shared.name());
            return Err(Error::Device { holder: shared.name(), source });
        }
    }
}

/// The caller has the turn.
async fn grow_to(shared: &Rc<Shared>, new: u64) -> Result<(), Error> {
    // As long as the turn is ours nobody else proposes a size.
    let old = stable_size(shared).await?;
    if new < old {
        return Err(Error::Impossible("a volume does not shrink"));
    }
    if new == old {
        return Ok(());
    }
    let _growing = Growing(&shared.growing_to);
    begin(shared, new).await?;
    zero(shared, old, new).await?;
    propose(shared, new).await?;
    stable_size(shared).await?;
    tracing::info!(volume = shared.name(), blocks = new, "the volume has grown");
    Ok(())
}

/// Waits until the record is stable, and returns the size that it says.
async fn stable_size(shared: &Shared) -> Result<u64, Error> {
    loop {
        let changed = shared.changed.notified();
        shared.check_whole()?;
        if shared.mirror.borrow().is_stable() {
            return Ok(shared.blocks());
        }
        changed.await;
    }
}

/// Waits until each of NEED is there, with the room, and knows its log of the new regions; from then on they count.
async fn begin(shared: &Rc<Shared>, blocks: u64) -> Result<(), Error> {
    let regions = Shape { blocks, ..shared.shape }.regions();
    let mut since = None;
    loop {
        let changed = shared.changed.notified();
        shared.check_whole()?;
        let conns = (0..shared.shape.holders()).filter_map(|slot| shared.conn(slot)).collect::<Vec<_>>();
        for conn in conns.iter().filter(|conn| !conn.is_covered(regions)) {
            if conn.label.regions_of(blocks).is_none() {
                return Err(Error::log_too_small(&conn.label));
            }
            if conn.cover(regions).await.is_err() {
                conn.end();
            }
        }
        for conn in needed(shared) {
            conn.look_for_room(blocks).await?;
        }
        shared.sweep();
        // In one step from here: who has connected meanwhile is looked at, too.
        let mut conns = (0..shared.shape.holders()).filter_map(|slot| shared.conn(slot));
        if conns.all(|conn| conn.is_covered(regions)) && has_all(shared, blocks)? {
            shared.growing_to.set(blocks);
            let conns = (0..shared.shape.holders()).filter_map(|slot| shared.conn(slot));
            conns.for_each(|conn| conn.count_regions(regions));
            return Ok(());
        }
        wait(shared, &mut since, changed).await?;
    }
}

/// What is needed, and there.
fn needed(shared: &Shared) -> Vec<Rc<Conn>> {
    let need = shared.mirror.borrow().need();
    need.iter().filter_map(|slot| shared.usable(slot)).collect()
}

/// Whether each of NEED is there, and has the room. An error: one has not.
fn has_all(shared: &Shared, blocks: u64) -> Result<bool, Error> {
    let (there, need) = (needed(shared), shared.mirror.borrow().need());
    there.iter().try_for_each(|conn| conn.check_room(blocks))?;
    Ok(there.len() as u32 == need.len())
}

async fn wait(shared: &Shared, since: &mut Option<Instant>, changed: Notified) -> Result<(), Error> {
    let waited = shared.wait(since, changed).await;
    waited.map_err(|source| Error::Device { holder: shared.name(), source })
}

/// Zeroes from the end on, region by region.
async fn zero(shared: &Rc<Shared>, old: u64, new: u64) -> Result<(), Error> {
    let failed = |source| Error::Device { holder: shared.name(), source };
    // Up to the end of a region, so that what follows begins with one.
    let most = ZERO_REGIONS_MAX * u64::from(shared.shape.region_blocks);
    let mut at = old;
    while at < new {
        let blocks = (most - at % most).min(new - at);
        let span = shared.span(at, blocks);
        shared.check_whole()?;
        // The last region of before may be one that is not settled.
        shared.settled(span).await.map_err(failed)?;
        let guard = shared.lock(at, blocks, Mode::Exclusive).await.map_err(failed)?;
        let change = Change::Zero { blocks, gives_back: true };
        // It has no end before it is done: a zero that comes later than this would come over what is served.
        fan_out(shared, at, change, span, Set::default()).await.map_err(failed)?;
        drop(guard);
        at += blocks;
    }
    Ok(())
}

/// NEED may have changed since the beginning.
async fn propose(shared: &Rc<Shared>, blocks: u64) -> Result<(), Error> {
    let mut since = None;
    loop {
        let changed = shared.changed.notified();
        shared.check_whole()?;
        if has_all(shared, blocks)? && shared.propose(|mirror| mirror.grow(blocks)) {
            return Ok(());
        }
        wait(shared, &mut since, changed).await?;
    }
}
