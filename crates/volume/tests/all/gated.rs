//! What goes out when: holders behind a gate, which holds back what a test says.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use device::{Durability, Error, Lba, Namespace};
use engine::sync::Notify;
use engine::task::LocalFuture;
use engine::{Buf, View, time};
use fabric::host::AnyRemote;
use volume::{Label, Reach, Taken, Takes, Volume};

use crate::basics::{equal, get, put};
use crate::cluster::{BLOCK, Cluster, format, options, run};

/// A namespace whose writes of the log, or reads of data, wait until they are let through, and whose writes of data are counted.
struct Gated {
    inner: AnyRemote,
    data_first: u64,
    gate: Gate,
}

#[derive(Clone, Default)]
struct Gate {
    holds_log: Rc<Cell<bool>>,
    holds_reads: Rc<Cell<bool>>,
    fails_flush: Rc<Cell<bool>>,
    opened: Notify,
    data_writes: Rc<Cell<u64>>,
    /// The holders' namespaces, and where the data begins in each.
    behind: Rc<RefCell<Vec<(AnyRemote, u64)>>>,
}

impl Namespace for Gated {
    device::delegate_namespace!(this => { Gated { inner, .. } => inner }; info, compare, compare_and_write,
        write_zeroes, deallocate, verify, write_uncorrectable, hint_lifetime, writability, used_blocks, link, attribute,
        set_attribute, zones);

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        if lba.0 >= self.data_first {
            self.gate.data_writes.set(self.gate.data_writes.get() + 1);
        } else if self.gate.holds_log.get() {
            self.gate.opened.notified().await;
        }
        self.inner.write(lba, data, durability).await
    }

    async fn flush(&self) -> Result<(), Error> {
        if self.gate.fails_flush.take() { Err(Error::ReadOnly("told to fail")) } else { self.inner.flush().await }
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        if lba.0 >= self.data_first && self.gate.holds_reads.get() {
            self.gate.opened.notified().await;
        }
        self.inner.read(lba, buf).await
    }
}

/// How a holder behind a gate is reached.
struct GatedReach(Rc<dyn Reach>, Gate);

impl Reach for GatedReach {
    fn name(&self) -> String {
        self.0.name()
    }

    fn look(&self) -> LocalFuture<'_, Result<AnyRemote, volume::Error>> {
        self.0.look()
    }

    fn take(&self, takes: Takes) -> LocalFuture<'_, Result<Taken, volume::Error>> {
        Box::pin(async move {
            let taken = self.0.take(takes).await?;
            let (result, label) = taken.namespace.read(Lba(0), Buf::with_len(BLOCK)).await;
            result.expect("it is up");
            let data_first = Label::decode(&label).expect("a holder").data_first;
            self.1.behind.borrow_mut().push((taken.namespace.clone(), data_first));
            let gated = Gated { inner: taken.namespace.clone(), data_first, gate: self.1.clone() };
            Ok(Taken { namespace: AnyRemote::from(Rc::new(gated)), ..taken })
        })
    }
}

/// An attached volume behind a gate.
async fn gated(cluster: &Cluster, replicas: u8) -> (Rc<Volume>, Gate) {
    format(&cluster.places, replicas).await;
    let gate = Gate::default();
    let gated = |reach| Rc::new(GatedReach(reach, gate.clone())) as Rc<dyn Reach>;
    let reaches = cluster.places.reaches("a").into_iter().map(gated).collect();
    (Rc::new(volume::attach(reaches, options()).await.expect("all nodes are up")), gate)
}

#[test]
fn no_data_goes_out_before_the_intent_is_stable() {
    run(16, 3, 0, async |_, cluster| {
        let (volume, gate) = gated(cluster, 3).await;
        gate.holds_log.set(true);
        let writer = volume.clone();
        let write = engine::task::spawn(async move { put(&writer, 5, 2).await });
        time::sleep(Duration::from_millis(100)).await;
        assert_eq!(gate.data_writes.get(), 0, "the intent is not stable yet");
        gate.holds_log.set(false);
        gate.opened.notify_all();
        assert_eq!(write.await, Ok(()));
        assert_eq!(gate.data_writes.get(), 3);
        // The region is marked now: the data goes out at once.
        gate.holds_log.set(true);
        {
            let mut write = pin!(put(&volume, 6, 2));
            let first = poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx).is_pending())).await;
            assert_eq!((first, gate.data_writes.get()), (true, 6), "to all replicas in one turn");
            assert_eq!(write.await, Ok(()));
        }
        assert_eq!(gate.data_writes.get(), 6);
    });
}

#[test]
fn a_write_waits_for_the_reads_of_its_blocks() {
    run(17, 3, 0, async |_, cluster| {
        let (volume, gate) = gated(cluster, 3).await;
        put(&volume, 5, 1).await.expect("all is well");
        gate.holds_reads.set(true);
        let (reader, writer) = (volume.clone(), volume.clone());
        let read = engine::task::spawn(async move { get(&reader, 5).await });
        time::sleep(Duration::from_millis(10)).await;
        let write = engine::task::spawn(async move { put(&writer, 5, 2).await });
        time::sleep(Duration::from_millis(100)).await;
        assert_eq!(gate.data_writes.get(), 3, "a replica has what the read might see, and another one has not");
        gate.holds_reads.set(false);
        gate.opened.notify_all();
        assert_eq!((read.await, write.await), (Ok(1), Ok(())));
    });
}

/// A simulated run, seed 2090: the last good replica deallocated blocks, and failed to make that stable. It took no writes by then,
/// so the command ended as one that had done nothing. Reads saw zeroes, and after a restart what had been there before.
#[test]
fn a_deallocation_that_is_not_stable_was_not_refused() {
    run(22, 1, 0, async |_, cluster| {
        let (volume, gate) = gated(cluster, 1).await;
        put(&volume, 5, 1).await.expect("all is well");
        gate.fails_flush.set(true);
        let (other, begin) = (volume.clone(), time::now());
        let deallocated = engine::task::spawn(async move { other.deallocate(Lba(5), 1).await });
        time::sleep(Duration::from_millis(100)).await;
        let reader = volume.clone();
        let read = engine::task::spawn(async move { get(&reader, 5).await });
        time::sleep(Duration::from_millis(500)).await;
        assert!(!deallocated.is_finished() && !read.is_finished(), "nobody knows what is there");
        // The medium takes writes again when it is asked next.
        assert_eq!((deallocated.await, read.await), (Ok(()), Ok(0)));
        assert!(begin.elapsed() > Duration::from_secs(1));
    });
}

#[test]
fn what_a_replica_can_not_read_is_read_from_another_and_mended() {
    run(25, 3, 0, async |world, cluster| {
        let (volume, gate) = gated(cluster, 3).await;
        put(&volume, 5, 1).await.expect("all is well");
        let behind = gate.behind.borrow().clone();
        let (namespace, data_first) = &behind[1];
        assert_eq!(namespace.write_uncorrectable(Lba(data_first + 5), 1).await, Ok(()));
        // At once, so that each replica is asked.
        let read = |_| {
            let volume = volume.clone();
            engine::task::spawn(async move { get(&volume, 5).await })
        };
        for read in (0..100).map(read).collect::<Vec<_>>() {
            assert_eq!(read.await, Ok(1));
        }
        time::sleep(Duration::from_secs(1)).await;
        let (result, buf) = namespace.read(Lba(data_first + 5), Buf::with_len(BLOCK)).await;
        assert_eq!((result, buf[0]), (Ok(()), 1), "it was written anew");
        assert_eq!(volume.in_sync(), volume::Set::first(3), "and stays in sync");
        equal(world, cluster, 3);
    });
}
