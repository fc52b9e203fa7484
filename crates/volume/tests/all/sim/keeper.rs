//! Who takes and deletes snapshots and lets the volume grow, while others use it; and what is judged of that.
//!
//! A snapshot is a read of every block, between its begin and its end, and all of them at one moment.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use check::{Action, History, Operation};
use device::Namespace;
use engine::time;
use volume::{Record, Set, SnapshotName, Volume};

use crate::cluster::{BLOCK, Cluster, Places};
use crate::sim::load::{Book, shown};
use crate::sim::scenario::{Rng, Scenario, VICTIM};

/// Blocks that a volume grows to, at most: the nodes have room for so many.
const BLOCKS_MAX: u64 = 600;
/// The first of the numbers by which snapshots are told apart in the history.
const READER: u32 = 1_000_000;
/// How long garbage may stay.
const GARBAGE_TIME: Duration = Duration::from_secs(10);

/// A snapshot that a client was told of.
#[derive(Clone)]
struct Told {
    name: SnapshotName,
    slots: Set,
    data: Rc<Vec<u8>>,
}

/// What all have been told.
#[derive(Clone, Default)]
pub struct Ledger {
    told: Rc<RefCell<Vec<Told>>>,
    asked: Rc<RefCell<u32>>,
    /// Those that were asked to be deleted.
    ended: Rc<RefCell<BTreeSet<SnapshotName>>>,
    /// Those that are gone.
    gone: Rc<RefCell<BTreeSet<SnapshotName>>>,
}

/// The bytes of a snapshot at all that the record names for it.
fn copies(places: &Places, volume: u128, record: &Record, name: SnapshotName) -> Rc<Vec<u8>> {
    let tag = name.tag(volume).expect("it fits");
    let mut first: Option<Rc<Vec<u8>>> = None;
    for slot in record.snapshot(name).iter() {
        let mut all = (0..places.count()).flat_map(|node| places.shelf.of(node));
        let kept = all.find(|kept| kept.tag == tag && kept.label.life == record.lives[slot]);
        let kept =
            kept.unwrap_or_else(|| panic!("the record names slot {slot} for {name}, which has no such snapshot"));
        let first = first.get_or_insert_with(|| kept.data.clone());
        assert!(*first == kept.data, "copies of {name} differ: that of slot {slot}");
    }
    first.expect("a record names somebody for each snapshot")
}

/// How long something is waited for: one in four is soon given up.
fn patience(rng: &mut Rng) -> Duration {
    if rng.one_in(4) { rng.millis(1, 40) } else { Duration::from_secs(600) }
}

impl Ledger {
    /// Keeps the volume as long as it is this host's.
    pub async fn keep(self, volume: Rc<Volume>, places: Places, book: Book, mut rng: Rng, scenario: Scenario) {
        while volume.link().is_up {
            let pause = rng.millis(20, 1_200);
            time::sleep(pause).await;
            match rng.within(0, 9) {
                0..=4 if scenario.snapshots => {
                    let patience = patience(&mut rng);
                    self.snapshot(&volume, patience, &places, &book, &scenario).await;
                }
                5..=6 if scenario.snapshots => self.delete(&volume, &mut rng).await,
                7..=8 if scenario.grows => {
                    let blocks = (volume.info().blocks + rng.within(1, 40)).min(BLOCKS_MAX);
                    // Another one may have the volume by now, or have made it larger.
                    drop(time::timeout(patience(&mut rng), volume.grow(blocks * BLOCK as u64)).await);
                }
                _ => {}
            }
        }
    }

    async fn snapshot(&self, volume: &Volume, patience: Duration, places: &Places, book: &Book, scenario: &Scenario) {
        let number = READER + *self.asked.borrow();
        *self.asked.borrow_mut() += 1;
        let begin = |lba: u64| book.recorder.invoked(number, &format!("{lba:03}"), Action::Get, None);
        let tokens: Vec<_> = (0..volume.info().blocks).map(begin).collect();
        let Ok(Ok(name)) = time::timeout(patience, volume.snapshot()).await else {
            return tokens.into_iter().for_each(|token| book.recorder.failed(token));
        };
        let (record, _) = volume.record();
        if record.snapshot(name).is_empty() {
            // Who had it is being replaced, or somebody else has it deleted.
            let may = scenario.faults.loss || scenario.faults.write_errors || self.ended.borrow().contains(&name);
            assert!(may, "{name} is missing right after it was told of");
            return tokens.into_iter().for_each(|token| book.recorder.failed(token));
        }
        let data = copies(places, volume.shape().volume, &record, name);
        assert!(data.len() >= tokens.len() * BLOCK, "it is smaller than the volume was");
        for (token, block) in tokens.into_iter().zip(data.chunks_exact(BLOCK)) {
            book.seen(token, shown(block, scenario));
        }
        book.answered.set(book.answered.get() + 1);
        self.told.borrow_mut().push(Told { name, slots: record.snapshot(name), data });
    }

    async fn delete(&self, volume: &Volume, rng: &mut Rng) {
        let all = volume.snapshots();
        if all.is_empty() {
            return;
        }
        let name = all[rng.index(all.len())].name;
        self.ended.borrow_mut().insert(name);
        if volume.delete_snapshot(name).await.is_ok() {
            self.gone.borrow_mut().insert(name);
        }
    }

    /// With all well again: what was told is there as it was, what is gone is gone, and nobody keeps what no record names.
    /// `replaced`: the slot whose holder may be another one by now.
    pub async fn judge(&self, cluster: &Cluster, volume: &Volume, replaced: Option<usize>, scenario: &Scenario) {
        let (record, is_stable) = volume.record();
        assert!(is_stable);
        for snapshot in &record.snapshots {
            copies(&cluster.places, volume.shape().volume, &record, snapshot.name);
            assert!(!self.gone.borrow().contains(&snapshot.name), "{} was gone, and is back", snapshot.name);
        }
        for Told { name, slots, data } in self.told.borrow().iter() {
            if self.ended.borrow().contains(name) {
                continue;
            }
            if record.snapshot(*name).is_empty() {
                let victim = Some(VICTIM).filter(|_| scenario.faults.write_errors);
                let may = replaced.into_iter().chain(victim).fold(Set(0), |set, slot| set.with(Set::one(slot)));
                assert!(slots.without(may).is_empty(), "{name} is missing, which was at {slots:?}");
                continue;
            }
            let found = copies(&cluster.places, volume.shape().volume, &record, *name);
            assert!(found == *data, "{name} has changed");
        }
        let begin = time::now();
        while let Some(left) = garbage(&cluster.places, volume, &record) {
            assert!(begin.elapsed() < GARBAGE_TIME, "garbage stays: {left:?}");
            time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// What a replica keeps that no record gives to that replica.
fn garbage(places: &Places, volume: &Volume, record: &Record) -> Option<(usize, SnapshotName)> {
    let replicas = usize::from(volume.shape().replicas);
    (0..replicas).find_map(|slot| {
        let names = places.shelf.names(places.nodes()[slot], volume.shape().volume);
        names.into_iter().find(|name| !record.snapshot(*name).has(slot)).map(|name| (slot, name))
    })
}

/// Each snapshot has what was done before all that another block of the same snapshot shows was begun.
pub fn of_one_moment(history: &History) -> Result<(), String> {
    let mut snapshots: BTreeMap<u32, Vec<&Operation>> = BTreeMap::new();
    let (mut wrote, mut changed) = (BTreeMap::new(), BTreeMap::<&str, Vec<&Operation>>::new());
    for of in &history.operations {
        if is_reader(of.client) && of.returned.is_some() {
            snapshots.entry(of.client).or_default().push(of);
        }
        if matches!(of.action, Action::Put | Action::Delete | Action::CompareAndSet { .. }) && of.done {
            changed.entry(&of.key).or_default().push(of);
            wrote.extend(of.value.map(|value| (value, of)));
        }
    }
    // When an effect was there for sure; without an answer: it may be there at any time.
    let ended = |of: &Operation| of.returned.unwrap_or(u64::MAX);
    for (reader, reads) in snapshots {
        let begun = reads.iter().filter_map(|read| wrote.get(&read.value?).map(|of| of.invoked));
        let Some(moment) = begun.max() else { continue };
        for read in reads {
            let of_block = changed.get(read.key.as_str()).map_or(&[][..], Vec::as_slice);
            // What is shown: one write, or any that left nothing.
            let is_shown = |of: &Operation| of.value == read.value;
            let there = of_block.iter().copied().filter(|of| is_shown(of)).map(ended).max().unwrap_or(0);
            let missed = |of: &&Operation| !is_shown(of) && ended(of) < moment && of.invoked > there;
            if let Some(missed) = of_block.iter().copied().find(missed) {
                return Err(format!("snapshot {reader} is of no one moment: block {} lacks {missed:?}", read.key));
            }
        }
    }
    Ok(())
}

fn is_reader(client: u32) -> bool {
    (READER..u32::MAX).contains(&client)
}
