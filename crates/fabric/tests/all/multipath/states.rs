//! ANA states that change, and ports that are restarted or cut at any step, under the traffic.

use super::*;

/// Writes and reads for a while, alone.
async fn work(paths: Rc<Multipath>, rounds: u64) {
    for round in 0..rounds {
        paths.write(Lba(7), page(round), Durability::Stable).await.expect("written");
        assert_eq!(read(&paths, 7).await, round);
    }
}

/// The states as the host knows them.
fn states(paths: &Multipath) -> Vec<Option<AnaState>> {
    paths.paths().iter().map(|path| path.ana).collect()
}

#[test]
fn the_better_path_is_used_and_events_tell_which_that_is() {
    let scene = Scene::new(11, SimConfig::default());
    scene.state(0, AnaState::NonOptimized);
    let paths = scene.connect();
    assert_eq!(states(&paths), [Some(AnaState::NonOptimized), Some(AnaState::Optimized)]);
    // Only the better path can answer now: were the other one asked, the work would take until its time-outs.
    let stalled = Duration::from_secs(30);
    scene.delay(0, stalled..stalled + Duration::from_millis(1));
    let (worker, started) = (Rc::clone(&paths), scene.world.now());
    scene.run(work(worker, 50));
    assert!(scene.world.now().duration_since(started) < Duration::from_millis(300), "the worse path was asked");
    scene.delay(0, usual());
    scene.run_for(Duration::from_secs(40));
    scene.state(0, AnaState::Optimized);
    scene.state(1, AnaState::Inaccessible);
    scene.run_for(Duration::from_millis(50));
    assert_eq!(states(&paths), [Some(AnaState::Optimized), Some(AnaState::Inaccessible)], "an event tells");
    scene.delay(1, stalled..stalled + Duration::from_millis(1));
    let started = scene.world.now();
    scene.run(work(paths, 50));
    assert!(scene.world.now().duration_since(started) < Duration::from_millis(300), "an inaccessible path was asked");
}

/// A namespace that is moved to another ANA group is served in that group's state, also where the old group's stays as it was
/// (NVMe Base 2.0c figure 280, ANAGRPID: a change is told by the event of the ANA log page).
#[test]
fn a_namespace_that_is_moved_to_another_group_is_looked_at_anew() {
    let scene = Scene::new(13, SimConfig::default());
    let move_to = |group| scene.target.set_ana_group(&nqn(), 1, group).expect("a group");
    for (port, state) in [(1, AnaState::Inaccessible), (2, AnaState::NonOptimized)] {
        scene.target.set_ana_state(&nqn(), PortId(port), 2, state).expect("a state");
    }
    let paths = scene.connect();
    move_to(2);
    scene.run_for(Duration::from_millis(50));
    assert_eq!(states(&paths), [Some(AnaState::Inaccessible), Some(AnaState::NonOptimized)]);
    scene.run(work(Rc::clone(&paths), 20));
    move_to(1);
    scene.run_for(Duration::from_millis(50));
    assert_eq!(states(&paths), [Some(AnaState::Optimized); 2]);
}

/// Making the queues of an association may take longer than its keep alive timeout: the controller is kept alive meanwhile.
#[test]
fn an_association_is_kept_alive_while_its_queues_are_made() {
    let scene = Scene::new(14, SimConfig::default());
    let far = Duration::from_millis(20);
    scene.delay(0, far..far + Duration::from_millis(1));
    let options = Options { queues: 16, ..scene.options.paths[0].clone() };
    let took = scene.run(async move {
        let started = time::now();
        let remote = fabric::host::RemoteNamespace::connect(options).await.expect("connected");
        assert_eq!(remote.queues(), 16);
        let took = started.elapsed();
        time::sleep(KEEP_ALIVE * 4).await;
        assert!(remote.is_connected() && remote.epoch() == 1, "{:?}", remote.last_error());
        took
    });
    assert!(took > KEEP_ALIVE * 2, "the queues were made within {took:?}: this shows nothing");
}

/// States change under the traffic; commands that meet the wrong one go elsewhere, or wait until there is a way.
#[test]
fn changing_states_are_no_errors() {
    for seed in 0..6u64 {
        let scene = Scene::new(seed, SimConfig::default());
        let paths = scene.connect();
        let workers: Vec<_> = (0..4).map(|_| scene.world.spawn_on(scene.host, work_apart(Rc::clone(&paths)))).collect();
        for (round, state) in [AnaState::Inaccessible, AnaState::Change, AnaState::NonOptimized].into_iter().enumerate()
        {
            scene.run_for(Duration::from_millis(40 + seed));
            scene.state(0, state);
            if round == 1 {
                scene.state(1, AnaState::Inaccessible);
            }
            scene.run_for(Duration::from_millis(300));
            scene.state(1, AnaState::Optimized);
            scene.run_for(Duration::from_millis(20));
            scene.state(0, AnaState::Optimized);
        }
        for worker in workers {
            scene.run(worker);
        }
        assert!(paths.paths().iter().all(|path| path.epoch == 1), "seed {seed}: no state ends an association");
    }
}

async fn work_apart(paths: Rc<Multipath>) {
    for round in 0..60u64 {
        let lba = 20 + task::random_u64() % 100;
        paths.write(Lba(lba), page(round), Durability::Stable).await.expect("written");
        let (_, found) = read_image(&paths).await;
        match paths
            .compare_and_write(Lba(5), found.freeze(), image(round, lba, task::random_u64()), Durability::Stable)
            .await
        {
            Ok(()) | Err(Error::CompareFailure) => {}
            Err(error) => panic!("{error}"),
        }
        time::sleep(Duration::from_millis(task::random_u64() % 20)).await;
    }
}

/// A target that is restarted while writes are under way: everything acknowledged is there, and nothing comes twice.
#[test]
fn a_restarted_port_takes_up_its_work_again() {
    for seed in 0..4u64 {
        let scene = Scene::new(seed, SimConfig::default());
        let paths = scene.connect();
        let worker = scene.world.spawn_on(scene.host, work(Rc::clone(&paths), 600));
        for port in [0, 1, 0] {
            scene.run_for(Duration::from_millis(10 + seed));
            scene.world.crash(scene.ports[port]);
            scene.run_for(Duration::from_millis(100));
            scene.world.restart(scene.ports[port]);
            scene.serve(scene.ports[port]);
            scene.run_for(Duration::from_millis(2500));
        }
        scene.run(worker);
        assert!(paths.paths().iter().all(|path| path.epoch > 1), "seed {seed}: {:?}", paths.paths());
    }
}

/// One write and one pair, with a path cut at every instant of them: both end well, whichever step the cut meets.
#[test]
fn a_path_cut_at_every_step_of_a_command() {
    let mut cut_through = 0;
    for step in 0..80u64 {
        let scene = Scene::new(step, SimConfig::default());
        let paths = scene.connect();
        let working = Rc::clone(&paths);
        let worker = scene.world.spawn_on(scene.host, async move {
            working.write(Lba(5), image(1, 0, step), Durability::Stable).await.expect("written");
            let (count, found) = read_image(&working).await;
            assert_eq!(count, 1);
            let swap = working.compare_and_write(Lba(5), found.freeze(), image(2, 0, step), Durability::Stable).await;
            let (count, _) = read_image(&working).await;
            match swap {
                Ok(()) => assert_eq!(count, 2, "a pair that was not executed was called a success"),
                // It says that the pair was not executed, and never will be.
                Err(Error::NotConnected(_)) => assert_eq!(count, 1, "a pair that was executed was called undone"),
                Err(error) => panic!("alone on its blocks, the outcome is known: {error}"),
            }
        });
        scene.world.run_for(Duration::from_micros(step * 12)).expect("no stall");
        scene.world.reset_connections(scene.host, scene.ports[step as usize % 2]);
        let started = scene.world.now();
        scene.run(worker);
        cut_through += usize::from(scene.world.now().duration_since(started) > Duration::from_secs(1));
    }
    assert!(cut_through > 5, "only {cut_through} cuts met a command under way");
}
