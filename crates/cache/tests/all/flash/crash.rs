//! The process is killed, or power is lost, at every moment at which a write begins or ends, one run for each: whatever
//! is found again is the latest acknowledged value of its key.
//!
//! A life runs once to its end in the simulated world, and its trace says when each write began and ended. The same
//! seed is the same run, so each of these moments can be had again. What the crash does to writes that were under way
//! (kept, lost, torn) follows from the seed. The journal's memory stays, as the page cache does; after power loss it is
//! of another boot.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cache::flash::{Boot, Fresh, Options};
use device::{FileNamespace, FileOptions};
use engine::Mapped;
use engine::sim::{DiskConfig, NodeId, SimConfig, World};

use crate::flash::owner::{Owner, SEGMENT_BYTES, Truth, journal, options};

const PATH: &str = "log";
const KEYS: u32 = 40;
const SEGMENTS: u64 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// What was written is there.
    Kill,
    /// What was not made stable may be lost, of the journal too.
    PowerLoss,
}

fn world(seed: u64, end: End) -> (World, NodeId) {
    let world = World::new(seed, SimConfig { complete_trace: true, ..SimConfig::default() });
    let node = world.node("n");
    let config = DiskConfig { volatile_cache: end == End::PowerLoss, ..DiskConfig::default() };
    world.disk(node, PATH, (SEGMENTS + 1) * SEGMENT_BYTES as u64, config);
    (world, node)
}

async fn namespace() -> Arc<FileNamespace> {
    let options = FileOptions { nguid: Some([1; 16]), ..FileOptions::default() };
    Arc::new(FileNamespace::open(Path::new(PATH), &options).await.expect("a namespace"))
}

/// The first life. It notes when it is closed.
async fn live(journal: Rc<Cell<Option<Arc<Mapped>>>>, truth: Rc<Truth>, closed: Rc<Cell<bool>>) {
    let namespace = namespace().await;
    let mapped = self::journal(&*namespace, &options());
    journal.set(Some(Arc::clone(&mapped)));
    let owner = Owner::open(namespace, &mapped, &options(), &truth, u32::MAX).await.expect("opened");
    let owner = Rc::new(owner);
    owner.live_together(3, 400, KEYS).await;
    owner.flush();
    owner.live(200, KEYS).await;
    owner.log.close().await.expect("closed");
    closed.set(true);
}

/// The moments at which a write began or ended.
fn moments(seed: u64, end: End) -> Vec<Duration> {
    let (world, node) = world(seed, end);
    let task = world.spawn_on(node, live(Rc::default(), Rc::default(), Rc::default()));
    world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
    let trace = world.trace();
    let mut moments: Vec<Duration> = Vec::new();
    let mut writes = std::collections::BTreeSet::new();
    for line in trace.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(operation) = words.get(2).filter(|word| word.starts_with('d')) else { continue };
        let changes = matches!(words.get(4), Some(&"write" | &"sync"));
        if changes {
            writes.insert(operation.to_string());
        }
        if changes || (words.get(3) == Some(&"ok") && writes.contains(*operation)) {
            let seconds: f64 = words[0].parse().expect("a trace line begins with its time");
            moments.push(Duration::from_nanos((seconds * 1e9).round() as u64));
        }
    }
    moments.dedup();
    assert!(moments.len() > 40, "only {} moments", moments.len());
    moments
}

/// One life up to `moment`, its end, and what is found. Items that were found.
fn crash_at(seed: u64, end: End, moment: Duration) -> u32 {
    let (world, node) = world(seed, end);
    let (mapped, truth, closed) = (Rc::new(Cell::new(None)), Rc::new(Truth::default()), Rc::new(Cell::new(false)));
    let task = world.spawn_on(node, live(Rc::clone(&mapped), Rc::clone(&truth), Rc::clone(&closed)));
    world.run_for(moment).unwrap_or_else(|stalled| panic!("{stalled}"));
    world.crash(node);
    drop(task);
    world.restart(node);
    let Some(mapped) = mapped.take() else { return 0 };
    let was_closed = closed.get();
    let after = world.spawn_on(node, async move {
        let boot = if end == End::Kill { options().boot } else { Boot([9, 9]) };
        let options = Options { boot, ..options() };
        let owner = Owner::open(namespace().await, &mapped, &options, &truth, u32::MAX).await.expect("opened");
        let fresh = owner.recovery.fresh;
        match end {
            // Before the journal begins there is nothing to be known.
            End::Kill => assert!(fresh.is_none_or(|_| owner.truth.hits_on_flash.get() == 0), "{fresh:?}"),
            End::PowerLoss if was_closed => assert_eq!(fresh, None),
            End::PowerLoss => assert!(fresh.is_some() && owner.indexed() == 0),
        }
        let found = owner.verify(KEYS).await;
        // Life goes on, and what it adds is found again after a good end: now also when power is lost.
        owner.live(150, KEYS).await;
        let found_before = owner.indexed();
        owner.log.close().await.expect("closed");
        drop(owner);
        engine::time::sleep(Duration::from_secs(1)).await;
        let options = Options { boot: Boot([8, 8]), ..options };
        let owner = Owner::open(namespace().await, &mapped, &options, &truth, u32::MAX).await.expect("opened again");
        assert_eq!(owner.recovery.fresh, None::<Fresh>);
        assert!(owner.indexed() * 4 >= found_before * 3, "{} of {found_before}", owner.indexed());
        owner.verify(KEYS).await;
        found
    });
    world.run_until(after).unwrap_or_else(|stalled| panic!("{end:?} at {moment:?}: {stalled}"))
}

fn crash_everywhere(end: End, seeds: std::ops::Range<u64>) -> u32 {
    let mut found = 0;
    for seed in seeds {
        for moment in moments(seed, end) {
            // At the moment and just after it: a write that has begun, one that has ended.
            for moment in [moment, moment + Duration::from_nanos(1)] {
                found += crash_at(seed, end, moment);
            }
        }
    }
    found
}

#[test]
fn killed_at_every_write_it_serves_the_latest_values_or_none() {
    let found = crash_everywhere(End::Kill, 1..3);
    assert!(found > 700, "only {found} items outlived a kill");
}

#[test]
fn after_power_loss_what_is_in_doubt_is_given_up() {
    crash_everywhere(End::PowerLoss, 1..2);
}
