//! Who makes, attaches or looks at a volume, and what it is refused.

use std::time::Duration;

use device::{Durability, Error, Lba, Namespace};
use engine::{Buf, time};
use volume::{FormatOptions, Options};

use crate::basics::{get, put};
use crate::cluster::{BLOCK, format, options, run, whole};
use crate::faulty::{attached, nothing_told, reaches, within};

/// Their connections were as old as the wait, and so counted as given up.
#[test]
fn who_waits_for_leases_keeps_the_connections() {
    run(42, 3, 0, async |world, cluster| {
        format(&cluster.places, 3).await;
        world.crash(cluster.nodes[2]);
        let told = nothing_told();
        let volume = volume::attach(reaches(cluster, "a", &told), options()).await.expect("two of three are up");
        put(&volume, 5, 1).await.expect("two of three are up");
        assert_eq!((told[0].taken.get(), told[1].taken.get()), (1, 1));
    });
}

#[test]
fn a_host_without_patience_gets_to_attach() {
    run(43, 2, 0, async |world, cluster| {
        format(&cluster.places, 2).await;
        let node = world.node("a");
        cluster
            .nodes
            .iter()
            .for_each(|&at| world.set_link_delay(node, at, Duration::from_millis(9)..Duration::from_millis(10)));
        let reaches = cluster.places.reaches("a");
        let how = Options { give_up_after: Duration::from_millis(10), ..options() };
        let served = world.spawn_on(node, async move {
            let volume = volume::attach(reaches, how).await.map_err(|error| error.to_string())?;
            put(&volume, 5, 1).await.map_err(|error| error.to_string())
        });
        assert_eq!(within(60, served).await, Some(Ok(())));
    });
}

/// It promised first, and saw then that none in sync was there.
#[test]
fn who_can_not_attach_takes_nothing_from_who_has() {
    run(44, 2, 0, async |world, cluster| {
        let slowly = Options { resync_bytes_per_second: Some(1), ..options() };
        let (volume, _) = attached(cluster, 2, slowly).await;
        put(&volume, 5, 1).await.expect("all is well");
        world.crash(cluster.nodes[1]);
        put(&volume, 5, 2).await.expect("the other one goes on");
        cluster.restart(world, 1);
        let other = world.node("b");
        world.partition(other, cluster.nodes[0]);
        let reaches = cluster.places.reaches("b");
        let attached = world.spawn_on(other, async move { volume::attach(reaches, options()).await.map(drop) });
        let refused = attached.await;
        assert!(matches!(refused, Err(volume::Error::NoneInSync { .. })), "{refused:?}");
        // Until the leases would have shown it.
        time::sleep(Duration::from_secs(5)).await;
        assert_eq!(within(10, put(&volume, 5, 3)).await, Some(Ok(())));
        assert!(!volume.is_superseded());
    });
}

#[test]
fn a_namespace_with_anything_at_its_beginning_or_end_is_in_use() {
    run(45, 1, 0, async |_, cluster| {
        let reach = cluster.places.reach(0, "x");
        let look = async || loop {
            if let Ok(namespace) = reach.look().await {
                return namespace;
            }
            time::sleep(Duration::from_millis(10)).await;
        };
        let blocks = look().await.info().blocks;
        for (at, what) in
            [(16, "btrfs"), (255, "the first MiB"), (blocks - 2, "md 1.0"), (blocks - 256, "the last MiB")]
        {
            let namespace = look().await;
            let write = async |byte: u8| {
                let data = Buf::copy_from(&[byte; BLOCK]).freeze();
                namespace.write(Lba(at), data, Durability::Stable).await.expect("it is up");
            };
            write(7).await;
            let made = volume::format(cluster.places.reaches("x"), crate::cluster::format_options(1)).await;
            assert!(matches!(made, Err(volume::Error::InUse { .. })), "{what}: {made:?}");
            write(0).await;
        }
        format(&cluster.places, 1).await;
    });
}

#[test]
fn a_format_that_was_begun_is_seen_by_all() {
    run(46, 3, 0, async |_, cluster| {
        let (volume, _) = attached(cluster, 3, options()).await;
        let told = nothing_told();
        told[1].deallocates.replace(Some(Error::WriteFault("told to fail".into())));
        let forced = || volume::FormatOptions { force: true, ..crate::cluster::format_options(3) };
        let made = volume::format(reaches(cluster, "operator", &told), forced()).await;
        assert!(matches!(made, Err(volume::Error::Device { .. })), "{made:?}");
        // The volume does not take back what is not its own any more.
        let lost = within(30, put(&volume, 5, 2)).await;
        assert!(matches!(lost, Some(Err(Error::Disconnected(_)))), "{lost:?}");
        let refused = volume::format(cluster.places.reaches("operator"), crate::cluster::format_options(3)).await;
        assert!(matches!(refused, Err(volume::Error::InUse { .. })), "{refused:?}");
        for slot in 0..2 {
            let found = volume::inspect(&*cluster.places.reach(slot, "x"), true).await;
            let said = found.map(|_| ()).map_err(|error| error.to_string());
            assert!(said.as_ref().is_err_and(|said| said.contains("being formatted")), "slot {slot}: {said:?}");
        }
        drop(volume);
        volume::format(cluster.places.reaches("operator"), forced()).await.expect("by force");
        let volume = crate::cluster::attach(&cluster.places, "b").await;
        assert_eq!(get(&volume, 5).await, Ok(0));
    });
}

/// They were said not to have answered in time.
#[test]
fn holders_that_were_formatted_since_are_told_as_that() {
    run(47, 3, 0, async |_, cluster| {
        let shape = format(&cluster.places, 3).await;
        for slot in 1..3 {
            let made = volume::format_replacement(cluster.places.reach(slot, "x"), shape, slot, true).await;
            made.expect("all nodes are up");
        }
        let refused = volume::attach(cluster.places.reaches("a"), options()).await.map(drop);
        let said = refused.expect_err("one of three").to_string();
        assert!(said.contains("slot 1 is another than the record says") && said.contains("slot 2 is"), "{said}");
    });
}

#[test]
fn figures_tell_of_the_holders_that_there_are() {
    for (replicas, holders) in [(1, 1), (2, 3), (3, 3)] {
        run(50, replicas, 0, async |_, cluster| {
            let (volume, _) = attached(cluster, replicas, options()).await;
            put(&volume, 5, 1).await.expect("all is well");
            let mut registry = prometheus_client::registry::Registry::default();
            registry.register_collector(Box::new(volume.figures().clone()));
            let mut told = String::new();
            prometheus_client::encoding::text::encode(&mut told, &registry).expect("a string takes all");
            let states: Vec<&str> =
                told.lines().filter(|line| line.starts_with("yagura_volume_replica_state{")).collect();
            assert_eq!(states.len(), holders, "{states:?}");
            assert!(states.iter().all(|line| line.ends_with(" 3")), "{states:?}");
        });
    }
}

/// The host of the volume took its namespaces back under the format, which failed in the middle each time. (It comes in between in
/// half of the seeds.)
#[test]
fn by_force_a_living_volume_loses_its_namespaces() {
    for seed in 51..=55 {
        run(seed, 3, 0, async |_, cluster| {
            let (volume, _) = attached(cluster, 3, options()).await;
            let writer = volume.clone();
            let writing = engine::task::spawn(async move {
                while put(&writer, 5, 1).await.is_ok() {
                    time::sleep(Duration::from_millis(1)).await;
                }
            });
            time::sleep(Duration::from_secs(1)).await;
            // One of them, and then all.
            let shape = volume.shape();
            let replaced = volume::format_replacement(cluster.places.reach(1, "operator"), shape, 1, true).await;
            replaced.expect("by force");
            volume.set_reach(1, cluster.places.reach(1, "a"));
            whole(&volume).await;
            let forced = FormatOptions { force: true, ..crate::cluster::format_options(3) };
            volume::format(cluster.places.reaches("operator"), forced).await.expect("by force");
            assert!(within(60, writing).await.is_some(), "the volume's own writes end");
            let second = crate::cluster::attach(&cluster.places, "b").await;
            assert_eq!(get(&second, 5).await, Ok(0));
            put(&second, 5, 2).await.expect("it is another volume");
            time::sleep(Duration::from_secs(5)).await;
            assert!(second.is_whole(), "the former host keeps away");
        });
    }
}

/// It took the holders back while a third one was waited for: nobody got the volume, or nobody kept it.
#[test]
fn a_busy_host_loses_the_volume_at_once_though_a_holder_is_away() {
    for (seed, replicas) in [(53, 3), (54, 2), (55, 3)] {
        run(seed, replicas, 0, async |world, cluster| {
            let (volume, _) = attached(cluster, replicas, options()).await;
            world.crash(cluster.nodes[2]);
            put(&volume, 5, 1).await.expect("the others go on");
            let writer = volume.clone();
            let writing = engine::task::spawn(async move { while put(&writer, 5, 1).await.is_ok() {} });
            time::sleep(Duration::from_secs(2)).await;
            let second = volume::attach(cluster.places.reaches("b"), options()).await.expect("two of three are up");
            assert_eq!(within(30, put(&second, 5, 2)).await, Some(Ok(())));
            assert!(within(30, writing).await.is_some() && volume.is_superseded());
            assert_eq!(get(&second, 5).await, Ok(2));
        });
    }
}

#[test]
fn holders_of_another_volume_than_is_meant_are_refused() {
    run(56, 3, 0, async |_, cluster| {
        let found = format(&cluster.places, 3).await.volume;
        let how = |volume| Options { volume: Some(volume), ..options() };
        let refused = volume::attach(cluster.places.reaches("a"), how(found ^ 1)).await.map(drop);
        assert!(matches!(refused, Err(volume::Error::OtherVolume { volume, .. }) if volume == found), "{refused:?}");
        let volume = volume::attach(cluster.places.reaches("a"), how(found)).await.expect("it is the one");
        put(&volume, 5, 1).await.expect("all is well");
    });
}

/// The others were made anew without a word, whatever they were.
#[test]
fn a_volume_that_attaches_is_not_recovered() {
    run(57, 3, 1, async |world, cluster| {
        let (volume, _) = attached(cluster, 3, options()).await;
        put(&volume, 5, 1).await.expect("all is well");
        let writer = volume.clone();
        let writing = engine::task::spawn(async move { while put(&writer, 5, 2).await.is_ok() {} });
        let asked = volume::recover(cluster.places.reaches("operator"), 0, None, false).await.map(drop);
        let said = asked.expect_err("it is not forced").to_string();
        assert!(said.contains("has what was named for slot 1") && said.contains("for slot 2"), "{said}");
        let attaches = |refused: Result<volume::Shape, volume::Error>| {
            let said = refused.expect_err("it attaches").to_string();
            assert!(said.contains("attach it instead"), "{said}");
        };
        attaches(volume::recover(cluster.places.reaches("operator"), 0, None, true).await);
        world.crash(cluster.nodes[2]);
        cluster.places.replace(2, 3);
        attaches(volume::recover(cluster.places.reaches("operator"), 0, None, true).await);
        time::sleep(Duration::from_secs(5)).await;
        assert_eq!((volume.is_superseded(), writing.is_finished()), (false, false));
    });
}

/// A majority answers, and nobody of it that is in sync.
#[test]
fn a_copy_that_was_not_in_sync_is_gone_on_with_beside_its_witness() {
    run(58, 2, 1, async |world, cluster| {
        let (volume, _) = attached(cluster, 2, options()).await;
        put(&volume, 5, 1).await.expect("all is well");
        world.crash(cluster.nodes[1]);
        put(&volume, 5, 2).await.expect("the other one goes on");
        drop(volume);
        world.crash(cluster.nodes[0]);
        cluster.restart(world, 1);
        cluster.places.replace(0, 3);
        time::sleep(Duration::from_secs(1)).await;
        volume::recover(cluster.places.reaches("operator"), 1, None, true).await.expect("the other copy is lost");
        let volume = crate::cluster::attach(&cluster.places, "b").await;
        assert_eq!(get(&volume, 5).await, Ok(1));
    });
}

/// As a control plane makes a volume: whoever goes on with it does the same again.
#[test]
fn a_format_by_identifier_is_gone_on_with_and_done_once() {
    run(47, 3, 0, async |_, cluster| {
        let named = || volume::FormatOptions { volume: Some(77), ..crate::cluster::format_options(3) };
        let told = nothing_told();
        for slot in 0..3 {
            while cluster.places.reach(slot, "x").look().await.is_err() {
                time::sleep(Duration::from_millis(10)).await;
            }
        }
        told[1].deallocates.replace(Some(Error::WriteFault("told to fail".into())));
        let cut_short = volume::format(reaches(cluster, "control", &told), named()).await;
        assert!(matches!(cut_short, Err(volume::Error::Device { .. })), "{cut_short:?}");
        told[1].deallocates.replace(None);
        let other = volume::FormatOptions { volume: Some(78), ..named() };
        let refused = volume::format(cluster.places.reaches("control"), other.clone()).await;
        assert!(matches!(refused, Err(volume::Error::InUse { .. })), "{refused:?}");
        let shape = volume::format(reaches(cluster, "control", &told), named()).await.expect("gone on with");
        assert_eq!(shape.volume, 77);
        let refused = volume::format(cluster.places.reaches("control"), other.clone()).await;
        assert!(matches!(refused, Err(volume::Error::InUse { .. })), "{refused:?}");
        // Once it is made it is left as it is.
        let volume = crate::cluster::attach(&cluster.places, "a").await;
        put(&volume, 5, 1).await.expect("all are up");
        volume.detach().await.expect("detached");
        let again = volume::format(cluster.places.reaches("control"), named()).await;
        assert_eq!(again.expect("it is made"), shape);
        let refused = volume::format(cluster.places.reaches("control"), other).await;
        assert!(matches!(refused, Err(volume::Error::InUse { .. })), "{refused:?}");
        let volume = crate::cluster::attach(&cluster.places, "a").await;
        assert_eq!(get(&volume, 5).await, Ok(1));
        // Who knows it otherwise, by an older catalogue, makes nothing of its holders, whether a host has it or not.
        let fresh: Vec<_> = [1, 0, 2].map(|node| cluster.places.reach(node, "control")).into();
        for has_it in [true, false] {
            let refused = volume::format(fresh.clone(), named()).await;
            assert!(matches!(refused, Err(volume::Error::InUse { .. })), "{refused:?}");
            if has_it {
                volume.detach().await.expect("detached");
            }
        }
        let volume = crate::cluster::attach(&cluster.places, "a").await;
        assert_eq!(get(&volume, 5).await, Ok(1));
    });
}
