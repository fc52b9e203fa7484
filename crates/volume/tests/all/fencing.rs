//! A host that has lost its attachment changes nothing and tells nothing old, however late its commands arrive.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Error, Lba, Namespace};
use engine::time;
use fabric::host::{AnyRemote, RemoteNamespace};
use nvme::reservation::{
    AcquireAction, AcquireKeys, PersistChange, RegisterAction, RegisterKeys, ReservationCommand, ReservationType,
};
use volume::{AdoptOptions, FormatOptions, Options, Set, Takes};
use zerocopy::IntoBytes;

use crate::basics::{block, equal, get, host, put};
use crate::cluster::{BLOCK, Cluster, attach, format, run, whole};

#[test]
fn a_host_that_stood_still_writes_nothing_and_reads_nothing_old() {
    run(4, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let (node, attached) = host(world, cluster, "a");
        let first = attached.await;
        put(&first, 5, 1).await.expect("all is well");
        let (reader, writer) = (first.clone(), first.clone());
        // Sent, and held back on its way.
        (0..3).for_each(|slot| world.partition_one_way(node, cluster.nodes[slot]));
        let late = world.spawn_on(node, async move { put(&writer, 5, 9).await });
        time::sleep(Duration::from_millis(5)).await;
        world.pause(node);
        let second = attach(&cluster.places, "b").await;
        put(&second, 5, 2).await.expect("it is the second's");
        (0..3).for_each(|slot| world.heal(node, cluster.nodes[slot]));
        world.resume(node);
        let read = world.spawn_on(node, async move { get(&reader, 5).await });
        let written = late.outcome().await.expect("it ends");
        assert!(matches!(written, Err(Error::Aborted | Error::Reserved(_))), "{written:?}");
        let read = read.outcome().await.expect("it ends");
        assert!(matches!(read, Err(Error::Reserved(_))), "{read:?}");
        assert!(first.is_superseded());
        assert_eq!(get(&second, 5).await, Ok(2));
        whole(&second).await;
        equal(world, cluster, 3);
    });
}

/// A replica that the newer host could not reach still answers the older one, which must not ask.
#[test]
fn who_is_cut_off_from_the_majority_reads_nothing_old() {
    run(8, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let (old, attached) = host(world, cluster, "a");
        let first = attached.await;
        put(&first, 5, 1).await.expect("all is well");
        let new = world.node("b");
        world.partition(new, cluster.nodes[0]);
        world.partition(old, cluster.nodes[1]);
        world.partition(old, cluster.nodes[2]);
        let places = cluster.places.clone();
        let begin = time::now();
        let taken = world.spawn_on(new, async move {
            let second = attach(&places, "b").await;
            put(&second, 5, 2).await.expect("two of three are enough");
            second
        });
        let (reads_old, stop) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        // Several: some wait for the replicas that do not answer any more.
        let reads = (0..6).map(|_| {
            let (reader, told, stopped) = (first.clone(), reads_old.clone(), stop.clone());
            world.spawn_on(old, async move {
                while !stopped.get() {
                    if get(&reader, 5).await == Ok(1) {
                        told.set(told.get() + 1);
                    }
                    time::sleep(Duration::from_millis(5)).await;
                }
            })
        });
        let reads: Vec<_> = reads.collect();
        let second = taken.await;
        assert!(reads_old.get() > 0 && begin.elapsed() >= Duration::from_secs(3), "its lease lasts for a while");
        reads_old.set(0);
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(reads_old.get(), 0, "what is old was read after the newer host's write was acknowledged");
        stop.set(true);
        world.heal_all();
        for read in reads {
            read.await;
        }
        whole(&second).await;
        equal(world, cluster, 3);
    });
}

/// A simulated run, seed 202922: the host that came between had detached, and given up its reservations with that.
#[test]
fn late_commands_do_not_outlive_the_host_that_came_between() {
    run(24, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let (node, attached) = host(world, cluster, "a");
        let first = attached.await;
        put(&first, 5, 1).await.expect("all is well");
        (0..3).for_each(|slot| world.partition_one_way(node, cluster.nodes[slot]));
        let writer = first.clone();
        let late = world.spawn_on(node, async move { put(&writer, 5, 9).await });
        time::sleep(Duration::from_millis(5)).await;
        let second = attach(&cluster.places, "b").await;
        put(&second, 5, 2).await.expect("it is the second's");
        second.detach().await.expect("it is attached");
        (0..3).for_each(|slot| world.heal(node, cluster.nodes[slot]));
        let written = late.outcome().await.expect("it ends");
        assert!(matches!(written, Err(Error::Aborted | Error::Reserved(_))), "{written:?}");
        let third = attach(&cluster.places, "c").await;
        assert_eq!((get(&third, 5).await, third.regions_marked()), (Ok(2), 0));
        equal(world, cluster, 3);
    });
}

#[test]
fn the_next_connection_of_a_host_ends_the_commands_of_the_one_before() {
    run(13, 1, 0, async |_, cluster| {
        format(&cluster.places, 1).await;
        let reach = cluster.places.reach(0, "a");
        let first = reach.take(Takes::Holder).await.expect("it is up");
        let write = async |taken: &volume::Taken| taken.namespace.write(Lba(1000), block(1), Durability::Stable).await;
        assert_eq!(write(&first).await, Ok(()));
        let second = reach.take(Takes::Holder).await.expect("it is up");
        assert!(matches!(write(&first).await, Err(Error::Reserved(_))), "the first connection goes on");
        assert_eq!(write(&second).await, Ok(()));
        // As often as one likes: keys of connections that are gone do not fill the target.
        for _ in 0..70 {
            reach.take(Takes::Holder).await.expect("it is up");
        }
    });
}

/// What the host has connected anew by itself is known to the target by the old name: late commands of before are let through.
#[test]
fn a_connection_that_was_made_again_is_not_used() {
    run(21, 1, 0, async |world, cluster| {
        format(&cluster.places, 1).await;
        let node = world.node("a");
        let reach = cluster.places.reach(0, "a");
        let taken = world.spawn_on(node, async move { reach.take(Takes::Holder).await }).await.expect("it is up");
        assert!(taken.is_up());
        world.reset_connections(node, cluster.nodes[0]);
        while taken.namespace.link().epoch == taken.epoch || !taken.namespace.link().is_up {
            time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!taken.is_up());
    });
}

/// Another program's connection to a namespace, and how it reserves that.
async fn other(cluster: &Cluster) -> Rc<RemoteNamespace> {
    loop {
        if let Ok(AnyRemote::Remote(other)) = cluster.places.reach(0, "other").look().await {
            return other;
        }
        time::sleep(Duration::from_millis(10)).await;
    }
}

async fn reserved(by: &RemoteNamespace, rtype: ReservationType) {
    let (action, persist) = (RegisterAction::Register, PersistChange::Keep);
    let keys = RegisterKeys { current: 0.into(), new: 5.into() };
    let register = ReservationCommand::Register { action, ignore_key: false, persist };
    by.reserve(register, keys.as_bytes()).await.expect("nobody is registered");
    let keys = AcquireKeys { current: 5.into(), preempt: 0.into() };
    let acquire = ReservationCommand::Acquire { action: AcquireAction::Acquire, rtype };
    by.reserve(acquire, keys.as_bytes()).await.expect("nobody has it");
}

/// Who is registered, and how the namespace is reserved.
async fn registered(of: &RemoteNamespace) -> (Vec<u64>, u8, u8) {
    let (head, registrants) = of.reservation_report().await.expect("it is up");
    (registrants.iter().map(|entry| entry.key.get()).collect(), head.rtype, head.persist)
}

/// Everything that is asked of a volume, and asked of what is none.
async fn refused_by_all(cluster: &Cluster) {
    let reach = || cluster.places.reach(0, "a");
    let attached = volume::attach(vec![reach()], Options::default()).await.map(drop);
    let inspected = volume::inspect(&*reach(), true).await.map(drop);
    let recovered = volume::recover(vec![reach()], 0, None, false).await.map(drop);
    let adopted = AdoptOptions { of: 1, clones: Set::first(1), volume: None, force: false };
    let adopted = volume::adopt(vec![reach()], adopted).await.map(drop);
    for (what, done) in [("attach", attached), ("inspect", inspected), ("recover", recovered), ("adopt", adopted)] {
        let error = done.expect_err(what);
        let is_clear = matches!(
            error,
            volume::Error::Label { .. }
                | volume::Error::Foreign { .. }
                | volume::Error::InUse { .. }
                | volume::Error::NoMajority { .. }
        );
        assert!(is_clear, "{what}: {error:?}");
    }
}

/// A pool's member that was named by mistake was locked out of its pool, for good: an exclusive reservation was left there.
#[test]
fn what_is_no_holder_is_left_as_it_was() {
    for (seed, first) in [(27, b"YAGURASB".as_slice()), (28, b"".as_slice()), (29, b"something else".as_slice())] {
        run(seed, 1, 0, async |_, cluster| {
            let other = other(cluster).await;
            let mut bytes = engine::Buf::zeroed(BLOCK);
            bytes[..first.len()].copy_from_slice(first);
            other.write(Lba(0), bytes.freeze(), Durability::Stable).await.expect("nobody has it");
            refused_by_all(cluster).await;
            assert_eq!(registered(&other).await, (Vec::new(), 0, 0), "{first:?}");
        });
    }
}

/// A reservation of another program was preempted before anybody had looked what the namespace is.
#[test]
fn what_another_program_has_reserved_is_left_to_it() {
    for (seed, rtype) in (30..).zip(ReservationType::ALL) {
        run(seed, 1, 0, async |_, cluster| {
            let other = other(cluster).await;
            reserved(&other, rtype).await;
            refused_by_all(cluster).await;
            let options = FormatOptions { replicas: 1, ..FormatOptions::default() };
            let formatted = volume::format(vec![cluster.places.reach(0, "a")], options).await.map(drop);
            let is_clear = matches!(formatted, Err(volume::Error::InUse { .. } | volume::Error::Foreign { .. }));
            assert!(is_clear, "{formatted:?}");
            assert_eq!(registered(&other).await, (vec![5], rtype.code(), 0), "{rtype}");
            // By force it is taken.
            let options = FormatOptions { replicas: 1, force: true, ..FormatOptions::default() };
            volume::format(vec![cluster.places.reach(0, "a")], options).await.expect("it was said so");
            attach(&cluster.places, "b").await;
        });
    }
}

/// Of a reservation that all registrants hold nobody's key is the holder's: to preempt one of them left the others what they had.
#[test]
fn a_reservation_that_all_registrants_hold_is_taken_too() {
    run(26, 1, 0, async |_, cluster| {
        let (reach, other) = (cluster.places.reach(0, "a"), other(cluster).await);
        reserved(&other, ReservationType::ExclusiveAccessAll).await;
        let taken = reach.take(Takes::Anything).await.expect("it is up");
        assert_eq!(taken.namespace.write(Lba(1000), block(1), Durability::Stable).await, Ok(()));
        let late = other.write(Lba(1000), block(2), Durability::Stable).await;
        assert!(matches!(late, Err(Error::Reserved(_))), "{late:?}");
        let (head, registrants) = other.reservation_report().await.expect("it is up");
        assert_eq!((head.rtype, head.persist, registrants.len()), (ReservationType::ExclusiveAccess.code(), 1, 1));
    });
}
