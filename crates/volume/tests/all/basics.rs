//! What a volume does when nothing is random: attach, fail-over, settling, resynchronisation, hand-over, fencing.

use std::rc::Rc;
use std::time::Duration;

use device::{AnyNamespace, Durability, Error, Lba, Mailed, Namespace, conformance};
use engine::sim::World;
use engine::task::Task;
use engine::{Buf, View, time};
use fabric::host::RemoteNamespace;
use fabric::subsystem::{Target, TargetConfig, listen};
use volume::{Label, Options, Set, Volume};

use crate::cluster::{BLOCK, BLOCKS, Cluster, DISK, attach, format, options, run, whole};

pub fn block(byte: u8) -> View {
    Buf::copy_from(&[byte; BLOCK]).freeze()
}

pub async fn put(volume: &Volume, lba: u64, byte: u8) -> Result<(), Error> {
    volume.write(Lba(lba), block(byte), Durability::Cached).await
}

pub async fn get(volume: &Volume, lba: u64) -> Result<u8, Error> {
    let (result, buf) = volume.read(Lba(lba), Buf::with_len(BLOCK)).await;
    result?;
    assert!(buf.iter().all(|&byte| byte == buf[0]), "a torn block");
    Ok(buf[0])
}

/// All replicas have the same bytes.
pub fn equal(world: &World, cluster: &Cluster, replicas: usize) {
    for slot in 1..replicas {
        assert!(cluster.data(world, 0) == cluster.data(world, slot), "replicas 0 and {slot} differ");
    }
}

/// A host's process, which leaves its volume behind.
pub fn host(world: &World, cluster: &Cluster, name: &'static str) -> (engine::sim::NodeId, Task<Rc<Volume>>) {
    let node = world.node(name);
    let places = cluster.places.clone();
    (node, world.spawn_on(node, async move { Rc::new(attach(&places, name).await) }))
}

#[test]
fn a_volume_is_a_namespace_as_any_other() {
    for replicas in 1..=3 {
        run(u64::from(replicas), replicas, 0, async |world, cluster| {
            format(&cluster.places, replicas).await;
            let volume = Rc::new(attach(&cluster.places, "a").await);
            assert_eq!(volume.info().blocks, BLOCKS);
            conformance::check_all(Rc::clone(&volume), 7).await;
            assert_eq!(volume.detach().await.ok(), Some(()));
            equal(world, cluster, replicas.into());
        });
    }
}

#[test]
fn what_was_written_is_there_after_detaching_and_nothing_is_left_to_settle() {
    run(1, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let first = attach(&cluster.places, "a").await;
        put(&first, 3, 7).await.expect("all is well");
        assert!(first.regions_marked() > 0);
        first.detach().await.expect("it is attached");
        assert!(matches!(put(&first, 3, 8).await, Err(Error::NotConnected(_))), "it is detached");
        let begin = time::now();
        let second = attach(&cluster.places, "b").await;
        assert_eq!((get(&second, 3).await, second.regions_marked()), (Ok(7), 0));
        assert!(begin.elapsed() < Duration::from_secs(1), "nothing is waited for");
        equal(world, cluster, 3);
    });
}

#[test]
fn a_volume_goes_on_without_a_replica_and_takes_it_back() {
    for (replicas, lost) in [(3, 0), (3, 2), (2, 0), (2, 2)] {
        run(9, replicas, 0, async |world, cluster| {
            format(&cluster.places, replicas).await;
            let volume = attach(&cluster.places, "a").await;
            put(&volume, 1, 1).await.expect("all is well");
            world.crash(cluster.nodes[lost]);
            put(&volume, 1, 2).await.expect("the others go on");
            put(&volume, 40, 3).await.expect("the others go on");
            assert_eq!(get(&volume, 1).await, Ok(2));
            // Long enough for the logs to be cleared of what those that are left have.
            time::sleep(Duration::from_secs(2)).await;
            assert!(!volume.in_sync().has(lost) || lost == 2 && replicas == 2);
            cluster.restart(world, lost);
            whole(&volume).await;
            assert_eq!(get(&volume, 40).await, Ok(3));
            equal(world, cluster, replicas.into());
            assert!(volume.verify(None).await.is_ok_and(|report| report.is_clean()));
        });
    }
}

#[test]
fn a_host_that_dies_is_followed_by_one_that_settles() {
    run(3, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let (node, attached) = host(world, cluster, "a");
        let volume = attached.await;
        put(&volume, 5, 1).await.expect("all is well");
        // One replica hears nothing any more, so the write gets to two of them.
        world.partition(node, cluster.nodes[1]);
        let writer = volume.clone();
        let write = world.spawn_on(node, async move { put(&writer, 5, 2).await });
        time::sleep(Duration::from_millis(50)).await;
        drop(volume);
        world.crash(node);
        assert_eq!(write.outcome().await, None, "it was under way");
        let second = attach(&cluster.places, "b").await;
        let seen = get(&second, 5).await.expect("it is settled");
        assert!(seen == 1 || seen == 2);
        whole(&second).await;
        equal(world, cluster, 3);
    });
}

#[test]
fn a_volume_is_handed_over_between_two_hosts() {
    run(5, 3, 0, async |_, cluster| {
        format(&cluster.places, 3).await;
        let first = attach(&cluster.places, "a").await;
        put(&first, 5, 1).await.expect("all is well");
        let places = cluster.places.clone();
        let second = first.hand_over(Box::pin(async move { Ok(attach(&places, "b").await) })).await;
        let second = second.expect("nothing fails");
        assert_eq!(get(&second, 5).await, Ok(1));
        put(&second, 5, 2).await.expect("it is the second's");
        assert!(matches!(first.detach().await, Err(volume::Error::Detached)));
    });
}

/// It was given up for the time that it had been away, whenever it came back.
#[test]
fn the_last_replica_may_be_away_for_long() {
    for replicas in [1, 2] {
        run(23, replicas, 0, async |world, cluster| {
            format(&cluster.places, replicas).await;
            let volume = attach(&cluster.places, "a").await;
            put(&volume, 5, 1).await.expect("all is well");
            (0..cluster.nodes.len()).for_each(|node| world.crash(cluster.nodes[node]));
            time::sleep(Duration::from_secs(15)).await;
            (0..cluster.nodes.len()).for_each(|node| cluster.restart(world, node));
            assert_eq!(put(&volume, 5, 2).await, Ok(()));
            assert_eq!(get(&volume, 5).await, Ok(2));
            whole(&volume).await;
            equal(world, cluster, replicas.into());
        });
    }
}

#[test]
fn a_replica_that_is_gone_for_good_is_replaced() {
    for replicas in [2, 3] {
        run(6, replicas, 1, async |world, cluster| {
            let shape = format(&cluster.places, replicas).await;
            let volume = attach(&cluster.places, "a").await;
            for lba in 0..BLOCKS {
                put(&volume, lba, lba as u8).await.expect("all is well");
            }
            // All is clean by now: only the replacement itself knows what it lacks.
            time::sleep(Duration::from_secs(2)).await;
            assert_eq!(volume.regions_marked(), 0);
            world.crash(cluster.nodes[1]);
            put(&volume, 9, 77).await.expect("the others go on");
            let spare = cluster.places.reach(3, "a");
            volume::format_replacement(spare.clone(), shape, 1, false).await.expect("it is blank");
            cluster.places.replace(1, 3);
            volume.set_reach(1, spare);
            put(&volume, 10, 78).await.expect("it is rebuilt meanwhile");
            whole(&volume).await;
            assert_eq!(volume.in_sync(), Set::first(replicas.into()));
            equal(world, cluster, replicas.into());
            // The old one comes back when nothing is marked any more, and nobody is misled.
            time::sleep(Duration::from_secs(2)).await;
            assert_eq!(volume.regions_marked(), 0);
            cluster.restart(world, 1);
            drop(volume);
            cluster.places.replace(1, 1);
            let second = attach(&cluster.places, "b").await;
            assert_eq!((get(&second, 9).await, get(&second, 10).await), (Ok(77), Ok(78)));
            time::sleep(Duration::from_secs(5)).await;
            assert!(
                !second.in_sync().has(1) && second.reason(1).contains("had its place before"),
                "{}",
                second.reason(1)
            );
            // It is as good as any other, when it is made a new one.
            let anew = cluster.places.reach(1, "b");
            volume::format_replacement(anew.clone(), shape, 1, true).await.expect("by force");
            second.set_reach(1, anew);
            whole(&second).await;
            equal(world, cluster, replicas.into());
        });
    }
}

#[test]
fn what_was_damaged_behind_the_volume_is_found() {
    run(19, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let volume = attach(&cluster.places, "a").await;
        put(&volume, 9, 1).await.expect("all is well");
        assert!(volume.verify(None).await.is_ok_and(|report| report.is_clean()));
        let label = Label::decode(&world.peek(cluster.nodes[1], DISK, 0, BLOCK)).expect("a holder has a label");
        world.corrupt(cluster.nodes[1], DISK, (label.data_first + 9) * BLOCK as u64, 16);
        world.corrupt(cluster.nodes[2], DISK, 2 * BLOCK as u64 + 100, 4);
        let report = volume.verify(None).await.expect("it is attached");
        assert_eq!((report.differing, report.unreadable, report.damaged), (vec![2], vec![], vec![2]));
    });
}

#[test]
fn a_namespace_in_use_is_refused() {
    run(7, 3, 1, async |_, cluster| {
        let shape = format(&cluster.places, 3).await;
        let again = volume::format(cluster.places.reaches("x"), crate::cluster::format_options(3)).await;
        assert!(matches!(again, Err(volume::Error::InUse { .. })), "{again:?}");
        let volume = attach(&cluster.places, "a").await;
        let again = volume::format_replacement(cluster.places.reach(0, "x"), shape, 0, false).await;
        assert!(matches!(again, Err(volume::Error::InUse { .. })), "{again:?}");
        put(&volume, 0, 1).await.expect("nothing was taken from it");
        let large = volume::FormatOptions { bytes: Some(1 << 30), force: true, ..crate::cluster::format_options(3) };
        let large = volume::format(cluster.places.reaches("x"), large).await;
        assert!(matches!(large, Err(volume::Error::TooSmall { .. })), "{large:?}");
    });
}

/// Two copies differ, and reads go from one to the next: none may be answered before the region is settled.
#[test]
fn what_may_differ_is_not_read() {
    run(12, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let (node, attached) = host(world, cluster, "a");
        let volume = attached.await;
        // Whoever settles in the background begins with others of these.
        for lba in [0, 32, 64, 96, 120] {
            put(&volume, lba, 1).await.expect("all is well");
        }
        world.partition(node, cluster.nodes[1]);
        world.partition(node, cluster.nodes[2]);
        let writer = volume.clone();
        let write = world.spawn_on(node, async move { put(&writer, 120, 2).await });
        time::sleep(Duration::from_millis(20)).await;
        drop(volume);
        world.crash(node);
        drop(write);
        let slowly = Options { settle_bytes_per_second: Some(1000), ..options() };
        let second = volume::attach(cluster.places.reaches("b"), slowly).await.expect("all nodes are up");
        let first = get(&second, 120).await.expect("it is settled for who reads it");
        for _ in 0..8 {
            assert_eq!(get(&second, 120).await, Ok(first), "a read has gone back");
        }
    });
}

#[test]
fn a_replica_that_has_what_nobody_else_has_is_copied_to() {
    run(20, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let (node, attached) = host(world, cluster, "a");
        let volume = attached.await;
        world.partition(node, cluster.nodes[0]);
        world.partition(node, cluster.nodes[1]);
        let writer = volume.clone();
        let write = world.spawn_on(node, async move { put(&writer, 50, 2).await });
        time::sleep(Duration::from_millis(20)).await;
        drop(volume);
        world.crash(node);
        drop(write);
        let next = world.node("b");
        world.partition(next, cluster.nodes[2]);
        let places = cluster.places.clone();
        let second = world.spawn_on(next, async move { attach(&places, "b").await }).await;
        assert_eq!(
            (second.in_sync(), second.regions_marked()),
            (Set::first(2), 0),
            "those that are left know nothing of it"
        );
        world.heal_all();
        whole(&second).await;
        equal(world, cluster, 3);
        assert_eq!(get(&second, 50).await, Ok(0));
    });
}

#[test]
fn an_intent_stays_while_a_write_is_under_way() {
    run(14, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let node = world.node("a");
        let places = cluster.places.clone();
        let patient =
            Options { give_up_after: Duration::from_secs(60), wait_max: Duration::from_secs(60), ..options() };
        let attached = world.spawn_on(node, async move { volume::attach(places.reaches("a"), patient).await });
        let volume = Rc::new(attached.await.expect("all nodes are up"));
        world.partition(node, cluster.nodes[2]);
        let writer = volume.clone();
        let write = world.spawn_on(node, async move { put(&writer, 5, 2).await });
        time::sleep(Duration::from_secs(10)).await;
        assert!(!write.is_finished() && volume.regions_marked() == 1, "cleared before all have the data");
        world.heal_all();
        assert_eq!(write.await, Ok(()));
        time::sleep(Duration::from_secs(10)).await;
        assert_eq!(volume.regions_marked(), 0, "and then it is cleared");
        equal(world, cluster, 3);
    });
}

#[test]
fn a_write_whose_caller_is_gone_is_finished() {
    run(15, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let node = world.node("a");
        let places = cluster.places.clone();
        let patient = Options { give_up_after: Duration::from_secs(60), ..options() };
        let attached = world.spawn_on(node, async move { volume::attach(places.reaches("a"), patient).await });
        let volume = Rc::new(attached.await.expect("all nodes are up"));
        put(&volume, 5, 1).await.expect("all is well");
        world.partition(node, cluster.nodes[2]);
        world.reset_connections(node, cluster.nodes[2]);
        let writer = volume.clone();
        let write = world.spawn_on(node, async move { put(&writer, 5, 2).await });
        time::sleep(Duration::from_millis(500)).await;
        assert!(!write.is_finished(), "one of those in sync has not got it");
        drop(write);
        world.heal_all();
        time::sleep(Duration::from_secs(10)).await;
        equal(world, cluster, 3);
        assert_eq!(get(&volume, 5).await, Ok(2));
        assert_eq!(volume.in_sync(), Set::first(3));
    });
}

/// A target that serves the volume, as it would a local namespace; and what its hosts see when the volume goes to another.
#[test]
fn a_target_serves_a_volume() {
    run(18, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        let front = world.node("front");
        let address = std::net::SocketAddr::new(world.addr(front), 4420);
        let nqn: nvme::Nqn = "nqn.2026-01.example.sim:front".parse().expect("the form is an NQN");
        let (places, served_as) = (cluster.places.clone(), nqn.clone());
        world
            .spawn_on(front, async move {
                let volume = Rc::new(attach(&places, "front").await);
                let served = Mailed::new(Rc::clone(&volume));
                let target = Target::new(TargetConfig::default());
                target.add_subsystem(served_as.clone(), "FRONT").expect("the first subsystem");
                target.add_namespace(&served_as, 1, AnyNamespace::other(served)).expect("the first namespace");
                target.serve(listen(address).await.expect("a free port"), Vec::new()).await;
            })
            .detach();
        let remote = loop {
            match RemoteNamespace::connect(fabric::host::Options::new(address, nqn.clone(), 1)).await {
                Ok(remote) => break Rc::new(remote),
                Err(_) => time::sleep(Duration::from_millis(50)).await,
            }
        };
        conformance::check_all(Rc::clone(&remote), 5).await;
        let other = attach(&cluster.places, "b").await;
        let write = async || remote.write(Lba(3), block(9), Durability::Stable).await;
        let mut refused = write().await;
        // Of what was under way nobody can tell.
        if refused.as_ref().is_err_and(Error::outcome_unknown) {
            refused = write().await;
        }
        assert!(matches!(refused, Err(Error::Reserved(_))), "{refused:?}");
        put(&other, 3, 4).await.expect("it is the other's");
        whole(&other).await;
        equal(world, cluster, 3);
    });
}
