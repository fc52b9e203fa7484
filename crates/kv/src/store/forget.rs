//! Forgetting deleted keys: a tombstone may go when nobody has anything older than it in hand any more.
//!
//! Rules (`kv/model` searched them, and what each broken one leads to stands in its README):
//! - *Sweep* of epoch f, in a map at rest: every page of every member is sealed for f, and after that every key is read at all
//!   its homes and made to hold the newest at all of them. Only when both are complete is f noted as swept.
//! - A map of a later epoch says that f is its *floor*. Under it a tombstone older than f counts as absent, and a conditional
//!   operation on an absent key begins at the floor, above all that may be forgotten.
//! - *Drop*, in an epoch e with that floor: in the compare-and-write that seals a page for e, tombstones older than the floor
//!   go, but for those with a promise of epoch e. No other member is looked at.
//!
//! Why that is safe: when the map with floor f came into force every home held the key's newest entry and took nothing from
//! epochs before f. Whoever works on a page sealed for e > f began after that.
//!
//! Members that were given up as lost are passed over, and the map says so. Of keys that are served to nobody without them a sweep
//! would make nothing equal, and shut out who alone can bring them back: there is none then.
//!
//! Anybody may do it, several at once, and end anywhere: an epoch that was raised meanwhile makes a sweep count for nothing. So
//! that hosts which do it daily do not void each other's sweeps for ever, one that has seen the epoch begin lately sweeps that
//! one: whoever is done first notes it, and was helped by the others. Each does all of it by itself, behind marks of all members
//! that it has had taken before it seals its first page: who has raised the epoch may have done so for another reason, without.

use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::task::LocalFuture;
use engine::time;
use pool::{Map, State};

use super::clean::clean;
use super::repair::RepairOptions;
use super::{Inner, Store};
use engine::job::ShowProgress;

/// How long somebody who has raised the epoch is taken to be sweeping. Chosen: the period of the scrub.
const SWEEP_TIME: Duration = Duration::from_secs(86_400);

/// How to forget.
#[derive(Clone, Default)]
pub struct ForgetOptions {
    /// Drop what was deleted before the beginning, too, and not only before the last time: all pages are written once more.
    pub at_once: bool,
    /// Bytes read a second, over all members; `None`: as fast as it goes.
    pub bytes_per_second: Option<u64>,
    /// Called as it goes on.
    pub progress: Option<ShowProgress>,
}

/// What was forgotten.
#[derive(Clone, PartialEq, Eq, serde::Serialize, Debug, Default)]
pub struct ForgetReport {
    /// Tombstones dropped, over all members.
    pub dropped: u64,
    /// Whether all replicas were made equal, so that the next time drops what was deleted before this one.
    pub swept: bool,
    /// Why it ended early, if it did.
    pub hindered: Option<String>,
}

impl Store {
    /// Drops tombstones that were swept the last time, and sweeps for the next. Traffic goes on; all members must answer.
    pub fn forget<'a>(&'a self, options: &'a ForgetOptions) -> LocalFuture<'a, ForgetReport> {
        Box::pin(async move {
            let mut report = ForgetReport::default();
            let before = self.inner.stats.dropped.load(Ordering::Relaxed);
            if let Err(reason) = self.try_forget(options, &mut report).await {
                report.hindered = Some(reason);
            }
            report.dropped = self.inner.stats.dropped.load(Ordering::Relaxed) - before;
            report
        })
    }

    async fn try_forget(&self, options: &ForgetOptions, report: &mut ForgetReport) -> Result<(), String> {
        let inner = &self.inner;
        // Asked for at once, what was deleted up to now is to be swept.
        let joins = !options.at_once && inner.was_raised_within(SWEEP_TIME);
        self.refresh().await?;
        let source = inner.source()?;
        // A store does not follow how far a sweep is.
        let known = source.newest().await?;
        if known.state != State::Stable {
            return Err("the pool is being changed: finish that first".into());
        }
        if !known.serves_all() {
            return Err("too few members are left of some keys, which are served to nobody: first bring back those that were given up as \
                        lost (`yagura pool rebalance --returned`)"
                .into());
        }
        let joins = joins && known.swept < known.epoch;
        let before = known.epoch - u64::from(joins);
        let map = source.begin_sweep(before).await?;
        let epoch = map.epoch;
        self.seal_and_drop(options, map).await?;
        let repair = RepairOptions {
            bytes_per_second: options.bytes_per_second,
            progress: options.progress.clone(),
            ..RepairOptions::default()
        };
        let made_equal = self.repair(&repair).await;
        if !made_equal.is_complete() {
            let silent = &made_equal.unreachable;
            return Err(format!("not all replicas could be made equal: {:?}, members {silent:?}", made_equal.reasons));
        }
        let map = source.note_swept(epoch).await?;
        if (map.epoch, map.swept) != (epoch, epoch) {
            return Err("the pool's map has changed meanwhile; nothing is lost, try again".into());
        }
        report.swept = true;
        if options.at_once {
            let map = source.raise_epoch(epoch).await?;
            self.seal_and_drop(options, map).await?;
        }
        Ok(())
    }

    /// Seals all pages for the epoch of this map, which has just been raised or is being swept, and drops below its floor.
    async fn seal_and_drop(&self, options: &ForgetOptions, map: Map) -> Result<(), String> {
        let inner = &self.inner;
        inner.adopt(map.clone()).await;
        // Hosts that are awake learn of it by themselves, and need not meet a seal half way.
        time::sleep(inner.lease()).await;
        let job = inner.stats.jobs.begin("forget", options.bytes_per_second, options.progress.clone());
        job.begin("forget deleted keys");
        let mut next = Some(0);
        while let Some(from) = next {
            let topology = inner.topology();
            if (topology.map.epoch, topology.map.state) != (map.epoch, State::Stable) {
                return Err("the pool's map has changed meanwhile; nothing is lost, try again".into());
            }
            let stretch = topology.stretch(from);
            for member in &topology.members {
                job.take(member.bytes_of(stretch)).await;
            }
            clean(inner, &topology, stretch).await?;
            next = stretch.to;
            job.reached_hash(next);
        }
        job.end().await;
        Ok(())
    }
}

impl Inner {
    pub(super) fn source(&self) -> Result<std::rc::Rc<dyn super::MapSource>, String> {
        self.follow.source.borrow().clone().ok_or_else(|| "this store follows no map".to_owned())
    }
}
