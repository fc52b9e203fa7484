//! What is sent again, and what is said of it: changes that were executed and whose answer was lost, in whole or in part.

use device::NamespaceInfo;

use super::*;

/// A write is executed, its answer lost, and no path returns before the deadline. "Not connected" would say that it was not sent.
#[test]
fn a_write_in_doubt_is_never_called_unsent() {
    let mut executed = 0;
    for seed in 0..6u64 {
        let mut scene = Scene::new(seed, SimConfig::default());
        scene.options.deadline = Duration::from_secs(8);
        let paths = scene.connect();
        // The command arrives, its answer does not.
        scene.delay(0, Duration::from_millis(20)..Duration::from_millis(21));
        let writer = Rc::clone(&paths);
        let write = scene.world.spawn_on(scene.host, async move {
            writer.write(Lba(0), page(1), Durability::Stable).await.expect_err("every path is cut")
        });
        scene.run_for(Duration::from_millis(30));
        for port in scene.ports {
            scene.world.partition(scene.host, port);
        }
        let error = scene.run(write);
        scene.world.heal_all();
        scene.delay(0, usual());
        let found = scene.run(async move { read(&paths, 0).await });
        executed += found;
        assert!(error.outcome_unknown(), "the blocks hold {found}, and the write failed with: {error}");
    }
    assert!(executed > 0, "no write was executed before the cut");
}

/// Two changes of the same blocks at once. The first one is executed and seen, its answer is late; the second one is acknowledged;
/// then the first one's path is lost. Sent again it would take effect a second time, over the second change.
#[test]
fn a_change_under_way_holds_overlapping_ones_back() {
    for (seed, fused) in [(0, false), (1, true)] {
        let mut scene = Scene::new(seed, SimConfig::default());
        // The one that is under way fills its path: everything else takes the other one.
        scene.options.policy = PathPolicy::LeastQueued;
        let paths = scene.connect();
        scene.delay(0, Duration::from_millis(50)..Duration::from_millis(51));
        let writer = Rc::clone(&paths);
        let first = scene.world.spawn_on(scene.host, async move {
            writer.write(Lba(0), page(1), Durability::Stable).await.expect("written in the end");
        });
        let (reader, newer) = (Rc::clone(&paths), Rc::clone(&paths));
        scene.run_for(Duration::from_millis(60));
        let seen = scene.run(async move { read(&reader, 0).await });
        assert_eq!(seen, 1, "the first one was executed");
        let second = scene.world.spawn_on(scene.host, async move {
            match fused {
                true => newer.compare_and_write(Lba(0), page(1), page(2), Durability::Stable).await,
                false => newer.write(Lba(0), page(2), Durability::Stable).await,
            }
        });
        scene.run_for(Duration::from_millis(10));
        scene.world.reset_connections(scene.host, scene.ports[0]);
        scene.delay(0, usual());
        scene.run(first);
        scene.run(second).expect("the second one comes after the first");
        let found = scene.run(async move { read(&paths, 0).await });
        assert_eq!(found, 2, "an acknowledged change was covered by one that had taken effect before it");
    }
}

/// A command ends at its deadline also while its path is silent and its own time is not over; and what is written to its blocks
/// afterwards is not covered by it.
#[test]
fn a_deadline_holds_on_a_silent_path() {
    for seed in 0..4u64 {
        let mut scene = Scene::new(seed, SimConfig::default());
        scene.options.deadline = Duration::from_millis(300);
        scene.options.paths.iter_mut().for_each(|path| {
            path.command_timeout = Duration::from_secs(4);
            path.keep_alive = Duration::from_secs(4);
        });
        let paths = scene.connect();
        // The first of two goes over the path that stalls.
        let stall = Duration::from_millis(900 + seed * 50);
        scene.delay(0, stall..stall + Duration::from_millis(1));
        let started = scene.world.now();
        let writer = Rc::clone(&paths);
        let old = scene.run(async move { writer.write(Lba(0), page(1), Durability::Stable).await });
        let error = old.expect_err("its path is silent");
        assert!(error.outcome_unknown(), "{error}");
        let reader = Rc::clone(&paths);
        // By turn: one of these takes the silent path too.
        for _ in 0..2 {
            let reader = Rc::clone(&reader);
            // Success, or a definite error: in time.
            let _ = scene.run(async move { reader.read(Lba(1), Buf::with_len(BLOCK)).await.0 });
        }
        assert!(scene.world.now().duration_since(started) < Duration::from_millis(1000), "the deadline was overrun");
        scene.run(async move {
            // It may be refused for as long as the old one may land.
            while paths.write(Lba(0), page(2), Durability::Stable).await.is_err() {}
            for _ in 0..300 {
                let (result, buf) = paths.read(Lba(0), Buf::with_len(BLOCK)).await;
                assert!(result.is_err() || stamp(&buf) == 2, "a write that was given up has covered a newer one");
                time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
}

/// A long change goes out in several commands. When its connection is lost between two of them it was executed in part.
#[test]
fn a_change_that_was_executed_in_part_is_never_called_unsent() {
    let mut in_part = 0;
    for step in 0..60u64 {
        let mut scene = Scene::new(step, SimConfig::default());
        // The second piece has to wait for a place in the queue.
        scene.options.paths.truncate(1);
        scene.options.paths[0].depth = 2;
        scene.options.deadline = Duration::from_millis(1500);
        let options = scene.options.paths[0].clone();
        let (blocks, outcome) = scene.run(async move {
            let remote = Rc::new(fabric::host::RemoteNamespace::connect(options).await.expect("connected"));
            let NamespaceInfo { blocks, .. } = remote.info();
            for lba in 0..blocks {
                remote.write(Lba(lba), page(7), Durability::Cached).await.expect("written");
            }
            let readers: Vec<_> = (0..6)
                .map(|_| {
                    let remote = Rc::clone(&remote);
                    let read = async move || remote.read(Lba(0), Buf::with_len(BLOCK)).await.0;
                    task::spawn(async move { while let Ok(()) | Err(Error::ReadFault(_)) = read().await {} })
                })
                .collect();
            let writer = Rc::clone(&remote);
            let spoils = task::spawn(async move { writer.write_uncorrectable(Lba(0), blocks).await });
            (blocks, (remote, readers, spoils))
        });
        let (remote, readers, spoils) = outcome;
        scene.world.run_for(Duration::from_micros(step * 25)).expect("no stall");
        scene.world.reset_connections(scene.host, scene.ports[0]);
        let result = scene.run(spoils);
        let changed = scene.run(async move {
            for reader in readers {
                reader.await;
            }
            let mut changed = 0;
            for lba in 0..blocks {
                remote.connected().await;
                match remote.read(Lba(lba), Buf::with_len(BLOCK)).await.0 {
                    Err(Error::ReadFault(_)) => changed += 1,
                    result => result.expect("the connection is back for good"),
                }
            }
            changed
        });
        in_part += u64::from((1..blocks).contains(&changed) && result.is_err());
        match result {
            Ok(()) => assert_eq!(changed, blocks, "step {step}"),
            Err(error) => {
                assert!(changed == 0 || error.outcome_unknown(), "step {step}: {changed} blocks were changed: {error}");
            }
        }
    }
    assert!(in_part > 0, "no cut came between two pieces");
}
