//! A host is killed after every single change that it makes on a holder, and a storage node after every change that it gets: in
//! formatting, attaching, writing, going on without a replica, resynchronising, replacing and detaching. One run for each.
//! Afterwards another host finds the volume, and every acknowledged write in it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Error, Lba, Namespace};
use engine::sim::World;
use engine::sync::Notify;
use engine::task::LocalFuture;
use engine::{Buf, View, time};
use fabric::host::{AnyRemote, CopyTag, NamespaceCopy};
use volume::{Copies, Reach, Taken, Takes, Volume};

use crate::cluster::{BLOCK, Cluster, attach, format_options, options, run, whole};

/// Counts the changes that a host makes, and says when one of them is the last.
#[derive(Clone, Default)]
pub struct Counter {
    pub count: Rc<Cell<u64>>,
    /// The host stands still after so many.
    pub last: Rc<Cell<Option<u64>>>,
    pub tripped: Notify,
    is_over: Rc<Cell<bool>>,
    /// Who got the last one.
    node: Rc<Cell<usize>>,
    /// The host goes on: it is the storage node that dies.
    goes_on: bool,
}

impl Counter {
    /// After a change; a host that is to die does nothing any more.
    async fn tick(&self, node: usize) {
        self.count.set(self.count.get() + 1);
        if self.last.get() == Some(self.count.get()) {
            self.is_over.set(true);
            self.node.set(node);
            self.tripped.notify_one();
        }
        while self.is_over.get() && !self.goes_on {
            time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A namespace whose changes are counted.
struct Counted {
    inner: AnyRemote,
    counter: Counter,
    node: usize,
}

impl Namespace for Counted {
    device::delegate_namespace!(this => { Counted { inner, .. } => inner }; info, read, flush, compare, verify,
        write_uncorrectable, hint_lifetime, writability, used_blocks, link, attribute, set_attribute, zones);

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        let result = self.inner.write(lba, data, durability).await;
        self.counter.tick(self.node).await;
        result
    }

    async fn compare_and_write(&self, lba: Lba, old: View, new: View, durability: Durability) -> Result<(), Error> {
        let result = self.inner.compare_and_write(lba, old, new, durability).await;
        self.counter.tick(self.node).await;
        result
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        let result = self.inner.write_zeroes(lba, blocks, durability).await;
        self.counter.tick(self.node).await;
        result
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        let result = self.inner.deallocate(lba, blocks).await;
        self.counter.tick(self.node).await;
        result
    }
}

/// Snapshots, of which each that is taken or deleted is counted as a change.
struct CountedCopies {
    inner: Rc<dyn Copies>,
    counter: Counter,
    node: usize,
}

impl Copies for CountedCopies {
    fn snapshot(&self, tag: CopyTag) -> LocalFuture<'_, Result<u32, Error>> {
        Box::pin(async move {
            let result = self.inner.snapshot(tag).await;
            self.counter.tick(self.node).await;
            result
        })
    }

    fn copies(&self) -> LocalFuture<'_, Result<Vec<NamespaceCopy>, Error>> {
        self.inner.copies()
    }

    fn delete_copy(&self, nsid: u32, nguid: [u8; 16]) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let result = self.inner.delete_copy(nsid, nguid).await;
            self.counter.tick(self.node).await;
            result
        })
    }
}

/// A holder whose changes are counted.
pub struct CountedReach {
    pub inner: Rc<dyn Reach>,
    pub counter: Counter,
    pub node: usize,
}

impl Reach for CountedReach {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn look(&self) -> LocalFuture<'_, Result<AnyRemote, volume::Error>> {
        self.inner.look()
    }

    fn take(&self, takes: Takes) -> LocalFuture<'_, Result<Taken, volume::Error>> {
        Box::pin(async move {
            let taken = self.inner.take(takes).await?;
            self.counter.tick(self.node).await;
            let counted = Counted { inner: taken.namespace.clone(), counter: self.counter.clone(), node: self.node };
            let (counter, node) = (self.counter.clone(), self.node);
            let copies = taken.copies.map(|inner| Rc::new(CountedCopies { inner, counter, node }) as Rc<dyn Copies>);
            Ok(Taken { namespace: AnyRemote::from(Rc::new(counted)), copies, ..taken })
        })
    }
}

/// What a block may hold: what was acknowledged last, and what was under way since.
type Expected = Rc<RefCell<BTreeMap<u64, Vec<u8>>>>;

/// The host's life. It goes through everything that changes what holders have.
struct Life {
    counter: Counter,
    expected: Expected,
    places: crate::cluster::Places,
    /// Asked of the outside: a storage node is to die, or to come back.
    asked: Rc<RefCell<Vec<(usize, bool)>>>,
}

impl Life {
    fn reach(&self, node: usize) -> Rc<dyn Reach> {
        let inner = self.places.reach(node, "first");
        Rc::new(CountedReach { inner, counter: self.counter.clone(), node })
    }

    async fn put(&self, volume: &Volume, lba: u64, byte: u8) {
        self.expected.borrow_mut().entry(lba).or_insert_with(|| vec![0]).push(byte);
        let view = Buf::copy_from(&[byte; BLOCK]).freeze();
        volume.write(Lba(lba), view, Durability::Cached).await.expect("one fault at a time");
        self.expected.borrow_mut().insert(lba, vec![byte]);
    }

    async fn ask(&self, node: usize, is_up: bool) {
        self.asked.borrow_mut().push((node, is_up));
        time::sleep(Duration::from_millis(20)).await;
    }

    async fn live(self, loses: bool) {
        let reaches: Vec<_> = (0..3).map(|node| self.reach(node)).collect();
        let shape = loop {
            match volume::format(reaches.clone(), format_options(3)).await {
                Ok(shape) => break shape,
                // A storage node that has died has kept its claim, or has not.
                Err(_) if self.counter.is_over.get() => {
                    let forced = volume::FormatOptions { force: true, ..format_options(3) };
                    match volume::format(reaches.clone(), forced).await {
                        Ok(shape) => break shape,
                        Err(_) => time::sleep(Duration::from_millis(50)).await,
                    }
                }
                Err(_) => time::sleep(Duration::from_millis(10)).await,
            }
        };
        let volume = loop {
            match volume::attach(reaches.clone(), options()).await {
                Ok(volume) => break volume,
                Err(_) => time::sleep(Duration::from_millis(50)).await,
            }
        };
        self.put(&volume, 1, 1).await;
        self.put(&volume, 1, 2).await;
        volume.write_zeroes(Lba(8), 8, Durability::Cached).await.expect("one fault at a time");
        if loses {
            self.ask(2, false).await;
        }
        self.put(&volume, 1, 3).await;
        self.put(&volume, 30, 4).await;
        if loses {
            self.ask(2, true).await;
            whole(&volume).await;
            self.put(&volume, 1, 5).await;
            self.ask(1, false).await;
            self.put(&volume, 31, 6).await;
            let spare = self.reach(3);
            volume::format_replacement(spare.clone(), shape, 1, false).await.expect("it is blank");
            self.places.replace(1, 3);
            volume.set_reach(1, spare);
        }
        self.put(&volume, 1, 7).await;
        whole(&volume).await;
        volume.detach().await.expect("it is attached");
    }
}

/// Lives until `last` changes were made, and looks at what is left. Returns how many there were.
fn lives(last: Option<u64>, node_dies: bool) -> u64 {
    run(11, 3, 1, async |world, cluster| {
        let counter = Counter { last: Rc::new(Cell::new(last)), goes_on: node_dies, ..Counter::default() };
        let expected = Expected::default();
        let asked = Rc::new(RefCell::new(Vec::new()));
        let places = cluster.places.clone();
        let life = Life { counter: counter.clone(), expected: expected.clone(), places, asked: asked.clone() };
        let host = world.node("host");
        let mut process = Some(world.spawn_on(host, life.live(!node_dies)));
        let begin = time::now();
        while let Some(running) = process.take_if(|process| !process.is_finished()) {
            let tripped = counter.tripped.notified();
            if time::timeout(Duration::from_millis(1), tripped).await.is_ok() {
                if !node_dies {
                    world.crash(host);
                    break;
                }
                world.crash(cluster.nodes[counter.node.get()]);
                time::sleep(Duration::from_millis(30)).await;
                cluster.restart(world, counter.node.get());
            }
            for (node, is_up) in asked.borrow_mut().drain(..) {
                if is_up { cluster.restart(world, node) } else { world.crash(cluster.nodes[node]) }
            }
            assert!(begin.elapsed() < Duration::from_secs(300), "change {last:?}: the host does not come to its end");
            process = Some(running);
        }
        (0..4).for_each(|node| cluster.restart(world, node));
        judge(world, cluster, &expected, last).await;
        counter.count.get()
    })
}

async fn judge(world: &World, cluster: &Cluster, expected: &Expected, last: Option<u64>) {
    let mut attached = volume::attach(cluster.places.reaches("judge"), options()).await;
    if attached.is_err() && expected.borrow().is_empty() {
        // It died while it formatted: nothing was promised, and it can be done again.
        let forced = volume::FormatOptions { force: true, ..format_options(3) };
        volume::format(cluster.places.reaches("judge"), forced).await.expect("all nodes are up");
        attached = volume::attach(cluster.places.reaches("judge"), options()).await;
    }
    let volume = match attached {
        Ok(volume) => volume,
        Err(_) => attach(&cluster.places, "judge").await,
    };
    let look = async |volume: &Volume| {
        let expected = expected.borrow().clone();
        for (lba, bytes) in expected {
            let (result, buf) = volume.read(Lba(lba), Buf::with_len(BLOCK)).await;
            result.expect("all nodes are up");
            assert!(buf.iter().all(|&byte| byte == buf[0]), "change {last:?}: block {lba} is torn");
            assert!(bytes.contains(&buf[0]), "change {last:?}: block {lba} has {}, not one of {bytes:?}", buf[0]);
        }
    };
    look(&volume).await;
    heal(cluster, &volume).await;
    whole(&volume).await;
    look(&volume).await;
    assert!(volume.verify(None).await.expect("it is attached").is_clean(), "change {last:?}");
    volume.detach().await.expect("it is attached");
    for slot in 1..3 {
        assert!(cluster.data(world, 0) == cluster.data(world, slot), "change {last:?}: slot {slot} differs");
    }
}

/// A holder that was never formatted to its end, or whose replacement was not, is replaced.
async fn heal(cluster: &Cluster, volume: &Volume) {
    let begin = time::now();
    while !volume.is_whole() && begin.elapsed() < Duration::from_secs(20) {
        time::sleep(Duration::from_millis(100)).await;
    }
    for slot in (0..3).filter(|&slot| !volume.is_whole() && !volume.in_sync().has(slot)) {
        let node = cluster.places.nodes()[slot];
        let reach = cluster.places.reach(node, "judge");
        let made = volume::format_replacement(reach.clone(), volume.shape(), slot, true).await;
        made.expect("all nodes are up");
        volume.set_reach(slot, reach);
    }
}

/// A majority is lost, and who goes on with the copy that is left dies after so many changes. Returns how many there were.
fn recovers(last: Option<u64>) -> u64 {
    run(12, 3, 2, async |world, cluster| {
        let shape = crate::cluster::format(&cluster.places, 3).await;
        let volume = attach(&cluster.places, "first").await;
        let view = Buf::copy_from(&[7; BLOCK]).freeze();
        volume.write(Lba(5), view, Durability::Cached).await.expect("all is well");
        drop(volume);
        (1..3).for_each(|node| world.crash(cluster.nodes[node]));
        let counter = Counter::default();
        let reach = |node: usize| {
            let inner = cluster.places.reach(node, "operator");
            Rc::new(CountedReach { inner, counter: counter.clone(), node }) as Rc<dyn Reach>
        };
        let refused = volume::recover([0, 3, 4].map(reach).to_vec(), 0, None, false).await;
        assert!(matches!(refused, Err(volume::Error::Loses { .. })), "{refused:?}");
        counter.count.set(0);
        counter.last.set(last);
        let host = world.node("operator");
        let reaches = [0, 3, 4].map(reach).to_vec();
        let process = world.spawn_on(host, async move { volume::recover(reaches, 0, None, true).await.map(drop) });
        let tripped = time::timeout(Duration::from_secs(5), counter.tripped.notified()).await;
        world.crash(host);
        drop(process);
        [(1, 3), (2, 4)].into_iter().for_each(|(slot, node)| cluster.places.replace(slot, node));
        if tripped.is_ok() {
            let again = volume::recover(cluster.places.reaches("judge"), 0, None, true).await;
            // It is the new volume already, which attaches.
            let is_made = |error: &volume::Error| error.to_string().contains("attach it instead");
            assert!(again.as_ref().err().is_none_or(is_made), "change {last:?}: {again:?}");
        }
        let volume = attach(&cluster.places, "judge").await;
        assert_ne!(volume.shape().volume, shape.volume);
        let (result, buf) = volume.read(Lba(5), Buf::with_len(BLOCK)).await;
        assert!(result.is_ok() && buf[..] == [7; BLOCK], "change {last:?}");
        whole(&volume).await;
        volume.detach().await.expect("it is attached");
        for slot in 1..3 {
            assert!(cluster.data(world, 0) == cluster.data(world, slot), "change {last:?}: slot {slot} differs");
        }
        // The old majority is back, and is never taken for this volume, nor for a part of it.
        (1..3).for_each(|node| cluster.restart(world, node));
        time::sleep(Duration::from_secs(1)).await;
        [(1, 1), (2, 2)].into_iter().for_each(|(slot, node)| cluster.places.replace(slot, node));
        let mixed = volume::attach(cluster.places.reaches("late"), options()).await.map(drop);
        assert!(matches!(mixed, Err(volume::Error::OtherVolume { .. })), "change {last:?}: {mixed:?}");
        counter.count.get()
    })
}

#[test]
fn a_copy_is_gone_on_with_wherever_that_broke_off() {
    let all = recovers(None);
    assert!(all >= 12, "everything is counted: {all}");
    for last in 1..=all {
        recovers(Some(last));
    }
}

/// It stood still between label and record, and wrote its record over that of a host that had attached the new volume meanwhile.
#[test]
fn a_recovery_that_is_late_takes_no_promise_back() {
    let all = recovers(None);
    run(12, 3, 2, async |world, cluster| {
        crate::cluster::format(&cluster.places, 3).await;
        let volume = attach(&cluster.places, "first").await;
        volume.write(Lba(5), Buf::copy_from(&[7; BLOCK]).freeze(), Durability::Cached).await.expect("all is well");
        drop(volume);
        (1..3).for_each(|node| world.crash(cluster.nodes[node]));
        [(1, 3), (2, 4)].into_iter().for_each(|(slot, node)| cluster.places.replace(slot, node));
        let counter = Counter::default();
        counter.last.set(Some(all - 1));
        let counted = |(inner, node)| Rc::new(CountedReach { inner, counter: counter.clone(), node }) as Rc<dyn Reach>;
        let reaches = cluster.places.reaches("operator").into_iter().zip(cluster.places.nodes()).map(counted);
        let recovery = engine::task::spawn(volume::recover(reaches.collect(), 0, None, true));
        counter.tripped.notified().await;
        let volume = attach(&cluster.places, "second").await;
        volume.detach().await.expect("it is attached");
        let promised = async || {
            let holder = volume::inspect(&*cluster.places.reach(0, "x"), true).await.expect("it is up");
            holder.record.promised
        };
        let before = promised().await;
        counter.is_over.set(false);
        recovery.await.expect("all nodes are up");
        assert_eq!((promised().await, before.round), (before, 2));
    });
}

/// Each change is the last one in a run; in the gate, each of several. `CRASH_EVERY=1` has all of them.
fn each(node_dies: bool, step: usize) {
    let all = lives(None, node_dies);
    println!("{all} changes");
    assert!(all > 30, "everything is counted: {all}");
    let step = std::env::var("CRASH_EVERY").ok().map_or(step, |every| every.parse().expect("a number"));
    for last in (1..=all).step_by(step) {
        lives(Some(last), node_dies);
    }
}

#[test]
fn a_host_that_dies_after_any_change_loses_nothing() {
    each(false, 5);
}

#[test]
fn a_storage_node_that_dies_after_any_change_loses_nothing() {
    each(true, 2);
}
