//! Drives that are emptied: off one that is draining, and of one that is gone for good; and replacements among everything else.

use std::time::Duration;

use control::provision::{DriveState, Error, Level, NewVolume, Operation, OperationState, Rule, VolumeView};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tokio::time::sleep;

use super::crash::used;
use super::drives::SimDrive;
use super::faults::Fault;
use super::hosts::Host;
use super::replacing::{keep, once, replace, set, uid, volume};
use super::world::*;

pub async fn holders(world: &World, drive: &str) -> u32 {
    world.provisioner.drive(&name(drive)).await.expect("there").drive.holders
}

/// Lets a worker work until so many holders are on the drive.
pub async fn emptied(world: &World, drive: &str, left: u32) {
    let worker = world.worker();
    for _ in 0..600 {
        if holders(world, drive).await == left {
            worker.abort();
            return;
        }
        sleep(Duration::from_secs(1)).await;
    }
    panic!(
        "{:?} of {:?}",
        world.provisioner.holders_on(&name(drive)).await,
        world.provisioner.operations(None, None).await
    );
}

#[tokio::test(start_paused = true)]
async fn a_drive_that_is_draining_is_emptied_and_one_in_use_again_is_not() {
    let world = World::new(&[100, 100, 100, 100]).await;
    for index in 0..7 {
        done(&world.create(&new_volume(&format!("v{index}"), 2, 2 + index % 2)).await);
        keep(&world, &format!("v{index}")).await;
    }
    let before = holders(&world, "d0").await;
    assert!(before > 0);
    set(&world, "d0", DriveState::Draining).await;
    emptied(&world, "d0", 0).await;
    world.at_rest().await;
    for volume in world.volumes().await {
        let mut nodes: Vec<_> = volume.holders.iter().map(|holder| holder.drive.clone()).collect();
        nodes.sort();
        nodes.dedup();
        assert_eq!(nodes.len(), 3, "each on a node of its own: {volume:?}");
    }
    world.provisioner.remove_drive(&once(), &name("d0")).await.expect("nothing is on it");
    world.add_known("d0", "n0").await;
    // In use again while the first of them are under way: those that have not begun to use the new one are undone.
    set(&world, "d1", DriveState::Draining).await;
    let worker = world.worker();
    while world.keys("/busy/").await.is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    set(&world, "d1", DriveState::InUse).await;
    sleep(Duration::from_secs(120)).await;
    worker.abort();
    assert!(holders(&world, "d1").await > 0, "it has kept some");
    let failed = |operation: &&Operation| operation.undo.as_ref().is_some_and(|why| why.contains("in use again"));
    let operations = world.provisioner.operations(None, None).await.expect("a list").items;
    assert!(operations.iter().filter(failed).count() > 0, "{operations:?}");
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_is_drained_with_all_its_drives_at_once() {
    let world = used().await;
    for (drive, node) in [("f0", "n3"), ("f1", "n3")] {
        world.add_drive(drive, node, SimDrive::new(100)).await;
    }
    keep(&world, "old").await;
    let set = world.provisioner.set_node_state(&once(), &name("n1"), DriveState::Draining).await.expect("set");
    assert_eq!(set.iter().map(|drive| drive.name.as_str()).collect::<Vec<_>>(), ["d1", "e1"]);
    emptied(&world, "d1", 0).await;
    emptied(&world, "e1", 0).await;
    world.at_rest().await;
    let nodes = world.provisioner.nodes(None).await.expect("a list").items;
    let holders: Vec<_> = nodes.iter().map(|(node, holders)| (node.name.as_str(), *holders)).collect();
    assert_eq!(holders, [("n0", 1), ("n1", 0), ("n2", 1), ("n3", 1)]);
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_with_a_drive_is_rebuilt_elsewhere_whoever_has_the_volume() {
    for is_attached in [false, true] {
        let world = World::new(&[100, 100, 100, 100]).await;
        done(&world.create(&new_volume("old", 5, 3)).await);
        let before = keep(&world, "old").await;
        let lost = before.holders[1].drive.to_string();
        let host = if is_attached { Some(Host::new(&world).await.live()) } else { None };
        world.drives.with(&nqn(&lost), |drive| drive.is_away = true);
        world.drives.mirrors.lock().unwrap().get_mut(&before.id).unwrap().behind.insert(1, u32::MAX);
        set(&world, &lost, DriveState::Out).await;
        emptied(&world, &lost, 0).await;
        let after = volume(&world, "old").await;
        assert_eq!(after.holders[1].drive.as_str(), "d3");
        // What is there still on the drive is nobody's business any more.
        let left = world.drives.namespaces();
        assert!(left.contains_key(&uid(&before.holders[1])), "a drive that is out is asked nothing");
        world.provisioner.remove_drive(&once(), &name(&lost)).await.expect("nothing of it is known any more");
        world.drives.state.lock().unwrap().remove(&nqn(&lost));
        world.at_rest().await;
        host.inspect(|host| host.abort());
    }
}

/// Four replacements off a drive of one kind do not go on: those off a drive of the other kind have places of their own.
#[tokio::test(start_paused = true)]
async fn what_is_lost_does_not_wait_for_what_is_drained_nor_the_other_way_round() {
    for (first, second) in [(DriveState::Draining, DriveState::Out), (DriveState::Out, DriveState::Draining)] {
        let world = World::new(&[100, 100, 100, 100, 100]).await;
        for index in 0..20 {
            done(&world.create(&new_volume(&format!("v{index}"), 2, 3)).await);
            let of = keep(&world, &format!("v{index}")).await.id;
            world.drives.mirrors.lock().unwrap().get_mut(&of).unwrap().slow = true;
        }
        let at_work = async || {
            let operations = world.provisioner.operations(None, None).await.expect("a list").items;
            operations.iter().filter(|operation| operation.ended.is_none()).count()
        };
        let worker = world.worker();
        for (drive, state, expected) in [("d0", first, 4), ("d1", second, 8)] {
            if state == DriveState::Out {
                world.drives.with(&nqn(drive), |drive| drive.is_away = true);
            }
            set(&world, drive, state).await;
            let left = holders(&world, drive).await;
            assert!(left >= 12, "{left} on {drive}");
            // Time for many rounds, and not for the end of any of them.
            sleep(Duration::from_secs(60)).await;
            assert_eq!(at_work().await, expected, "{first:?} before {second:?}");
        }
        worker.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_go_elsewhere_stays_and_says_which_rule_failed_on_which_drive() {
    let world = World::new(&[100, 100, 100]).await;
    done(&world.create(&new_volume("v", 5, 3)).await);
    done(&world.create(&new_volume("one", 5, 1)).await);
    world.add_drive("e1", "n1", SimDrive::new(100)).await;
    world.add_drive("small", "n3", SimDrive::new(4)).await;
    let one = volume(&world, "one").await.holders[0].drive.to_string();
    // The other drive of its node is as good, but not where another holder stands.
    let refused = replace(&world, "v", "d0").await.expect_err("there is no room");
    let Error::NoRoom(refusal) = &refused else { panic!("{refused}") };
    assert!(matches!(
        &refusal.drives[..],
        [(_, Rule::Replaced), (_, Rule::Together { .. }), (_, Rule::Promised { .. })]
    ));
    let said = refused.to_string();
    assert!(said.contains("drive e1: it is in the same node as drive d1") && said.contains("drive small: "), "{said}");
    let refused = replace(&world, "one", &one).await.expect_err("it is the only one");
    assert!(refused.to_string().contains("one replica"), "{refused}");
    let refused = replace(&world, "v", "small").await.expect_err("nothing is there");
    assert!(matches!(refused, Error::NotFound { kind: "holder", .. }), "{refused}");
    let before = world.volumes().await;
    set(&world, &one, DriveState::Draining).await;
    let worker = world.worker();
    sleep(Duration::from_secs(200)).await;
    worker.abort();
    let left = world.provisioner.holders_on(&name(&one)).await.expect("a list");
    let told: Vec<_> = left.iter().map(|left| (left.volume.as_str(), left.waits.clone().unwrap_or_default())).collect();
    assert!(told.iter().any(|(of, why)| *of == "one" && why.contains("one replica")), "{told:?}");
    assert_eq!(left.len() as u32, holders(&world, &one).await);
    if let Some((_, why)) = told.iter().find(|(of, _)| *of == "v") {
        assert!(why.contains("drive small: ") && why.contains("it is draining"), "{why}");
    }
    let holders_of = |all: &[VolumeView]| all.iter().map(|volume| volume.holders.clone()).collect::<Vec<_>>();
    if one != "d1" {
        assert_eq!(holders_of(&world.volumes().await), holders_of(&before));
    }
    world.at_rest().await;
}

#[derive(Clone, Debug)]
struct Round {
    /// What is done to which volume: made or deleted, or a holder replaced.
    volumes: Vec<(u8, u8, Option<u8>)>,
    /// A drive that is draining until the round is over.
    drains: u8,
    fault: (u64, usize),
}

fn round() -> impl Strategy<Value = Round> {
    let volumes = prop::collection::vec((0..5u8, 1..4u8, prop::option::of(0..5u8)), 1..5);
    (volumes, 0..8u8, (0..120u64, 0..Fault::ALL.len())).prop_map(|(volumes, drains, fault)| Round {
        volumes,
        drains,
        fault,
    })
}

async fn run(rounds: Vec<Round>) -> Result<(), TestCaseError> {
    let world = World::new(&[100, 100, 100, 100, 100]).await;
    for Round { volumes, drains, fault: (at, fault) } in rounds {
        let (mut begun, drained) = (Vec::new(), format!("d{drains}"));
        if drains < 5 {
            set(&world, &drained, DriveState::Draining).await;
        }
        for (volume, replicas, replaced) in volumes {
            let of = format!("v{volume}");
            let id = match replaced {
                Some(drive) => replace(&world, &of, &format!("d{drive}")).await,
                None => {
                    let new = NewVolume { level: Level::Drive, ..new_volume(&of, 5, replicas) };
                    match world.provisioner.create_volume(&once(), &owner(), &new).await {
                        Ok(id) => Ok(id),
                        Err(_) => {
                            let deleted = world.provisioner.delete_volume(&once(), &owner(), &name(&of), false).await;
                            if deleted.is_ok()
                                && let Ok(gone) = world.provisioner.volume(&owner(), &name(&of)).await
                            {
                                world.drives.kept.lock().unwrap().remove(&gone.id);
                            }
                            deleted
                        }
                    }
                }
            };
            begun.extend(id.ok());
        }
        world.faults.arm(at, Fault::ALL[fault]);
        let ended = world.end_all(&begun, 2).await;
        for operation in ended {
            prop_assert_eq!(operation.state, OperationState::Done, "{:?}", operation);
        }
        world.faults.clear();
        if drains < 5 {
            set(&world, &drained, DriveState::InUse).await;
        }
        // What drains has begun ends, and what comes late is there by now.
        let worker = world.worker();
        sleep(Duration::from_secs(120)).await;
        worker.abort();
        world.at_rest().await;
        for volume in world.volumes().await {
            world.drives.kept.lock().unwrap().insert(volume.id);
            let mirror = world.drives.mirrors.lock().unwrap()[&volume.id].clone();
            let has: Vec<_> = volume.holders.iter().map(uid).collect();
            prop_assert_eq!(has, mirror.has.values().copied().collect::<Vec<_>>());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, max_shrink_iters: 100, ..ProptestConfig::default() })]

    #[test]
    fn holders_that_are_replaced_among_everything_else_leave_nothing(rounds in prop::collection::vec(round(), 1..6)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(run(rounds))?;
    }
}
