//! Volumes that have lost a majority of their holders, or became others: what goes by force alone, and what was under way then.

use std::time::Duration;

use control::provision::{DriveState, Error, Operation, OperationState, Reason, Request, VolumeState};
use tokio::time::sleep;
use uuid::Uuid;

use super::changes::take;
use super::crash::{used, with_faults};
use super::drives::GIB;
use super::hosts::Host;
use super::world::*;

fn once() -> Request {
    Request::unnamed()
}

async fn delete(world: &World, force: bool) -> Result<Uuid, Error> {
    world.provisioner.delete_volume(&once(), &owner(), &name("old"), force).await
}

async fn out(world: &World, drives: &[&str]) {
    for drive in drives {
        world.provisioner.set_drive_state(&once(), &name(drive), DriveState::Out).await.expect("out");
    }
}

async fn operation(world: &World, id: Uuid) -> Operation {
    world.provisioner.operation(None, id).await.expect("there")
}

/// Nothing is promised or counted any more, and nothing is left of operations.
async fn is_empty(world: &World) {
    for drive in world.provisioner.drives(None).await.expect("a list").items {
        assert_eq!((drive.promised, drive.holders), (0, 0), "drive {}", drive.name);
    }
    let tenant = world.provisioner.tenants(None).await.expect("a list").items.remove(0);
    assert_eq!((tenant.bytes, tenant.volumes, tenant.pending), (0, 0, 0));
    for left in ["/volume/", "/todo/", "/taken/", "/busy/", "/wanted/"] {
        assert_eq!(world.keys(left).await, Vec::<String>::new());
    }
}

/// After `volume recover` the last copy is another volume's, which the catalogue does not know of: an unforced delete took it, with
/// the host that used it.
#[tokio::test(start_paused = true)]
async fn a_copy_that_became_another_volume_goes_by_force_alone() {
    let world = World::new(&[100, 100, 100]).await;
    done(&world.create(&new_volume("old", 5, 3)).await);
    out(&world, &["d1", "d2"]).await;
    let volume = world.provisioner.volume(&owner(), &name("old")).await.expect("there");
    let last = volume.holders.iter().find(|holder| holder.drive == name("d0")).expect("a holder on each drive");
    let uid = last.namespace.expect("it is ready").uid;
    world.drives.with(&nqn("d0"), |drive| {
        let (_, label) = drive.namespaces.values_mut().find(|(found, _)| found.uid == uid).expect("there");
        *label = Some((Uuid::new_v4(), 0));
    });
    let id = delete(&world, false).await.expect("begun");
    let ended = world.end(id).await;
    assert_eq!(ended.state, OperationState::Failed, "{ended:?}");
    assert!(ended.undo.as_ref().is_some_and(|why| why.contains("another volume")), "{ended:?}");
    assert!(world.drives.namespaces().contains_key(&uid), "the last copy is there");
    let volume = world.provisioner.volume(&owner(), &name("old")).await.expect("there");
    assert_eq!(volume.state, VolumeState::Ready);
    let id = delete(&world, true).await.expect("begun");
    done(&world.end(id).await);
    assert!(!world.drives.namespaces().contains_key(&uid));
    is_empty(&world).await;
}

/// Each of these waited for ever, and kept away all others and the delete.
#[tokio::test(start_paused = true)]
async fn what_has_lost_its_majority_fails_and_goes_by_force_with_its_snapshots() {
    for gone in [&["d0", "d1"][..], &["d0", "d1", "d2"]] {
        let world = World::new(&[100, 100, 100]).await;
        done(&world.create(&new_volume("old", 5, 3)).await);
        let id = take(&world, "old", "s").await.expect("begun");
        done(&world.end(id).await);
        out(&world, gone).await;
        let asked = &world.provisioner;
        for what in 0..3 {
            let begun = match what {
                0 => asked.delete_snapshot(&once(), &owner(), &name("old"), &name("s")).await,
                1 => asked.grow_volume(&once(), &owner(), &name("old"), 9 * GIB).await,
                _ => take(&world, "old", "t").await,
            };
            let ended = world.end(begun.expect("begun")).await;
            assert_eq!(ended.state, OperationState::Failed, "{ended:?}");
            assert!(ended.undo.as_ref().is_some_and(|why| why.contains("majority")), "{ended:?}");
        }
        assert!(matches!(delete(&world, false).await, Err(Error::InUse { kind: "volume", .. })));
        let id = delete(&world, true).await.expect("begun");
        done(&world.end(id).await);
        is_empty(&world).await;
    }
}

/// Its host is gone, and nobody can attach the volume: it was waited for all the same.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_a_host_was_told_to_take_fails_where_the_majority_is_lost() {
    let world = used().await;
    let mut host = Host::new(&world).await;
    let id = take(&world, "old", "s").await.expect("begun");
    let worker = world.worker();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(host.ask().await.expect("it has the volume"), None);
    host.die();
    out(&world, &["d0", "d1"]).await;
    sleep(Duration::from_secs(600)).await;
    worker.abort();
    let ended = operation(&world, id).await;
    assert_eq!(ended.state, OperationState::Failed, "{ended:?}");
    assert!(ended.undo.as_ref().is_some_and(|why| why.contains("majority")), "{ended:?}");
    let id = delete(&world, true).await.expect("begun");
    done(&world.end(id).await);
    is_empty(&world).await;
}

/// A drive kept an unforced delete waiting, and force was refused since that was under way.
#[tokio::test(start_paused = true)]
async fn a_delete_by_force_takes_the_place_of_one_that_waits() {
    let world = used().await;
    let asked = &world.provisioner;
    let away = asked.volume(&owner(), &name("old")).await.expect("there").holders[1].drive.clone();
    world.drives.with(&nqn(away.as_str()), |drive| drive.is_away = true);
    let former = delete(&world, false).await.expect("begun");
    let worker = world.worker();
    sleep(Duration::from_secs(300)).await;
    assert_eq!(operation(&world, former).await.state, OperationState::Pending);
    assert!(matches!(delete(&world, false).await, Err(Error::Busy { .. })));
    let id = delete(&world, true).await.expect("begun");
    sleep(Duration::from_secs(30)).await;
    let ended = operation(&world, former).await;
    assert_eq!(ended.state, OperationState::Failed, "{ended:?}");
    assert!(ended.undo.as_ref().is_some_and(|why| why.contains("by force")), "{ended:?}");
    // That one waits for the drive, and is not waited for by another one.
    assert!(matches!(delete(&world, true).await, Err(Error::Busy { operation, .. }) if operation == id));
    assert!(!world.drives.namespaces().values().any(|(nqn, ..)| nqn.ends_with(":d2")), "the others go");
    world.drives.with(&nqn(away.as_str()), |drive| drive.is_away = false);
    sleep(Duration::from_secs(30)).await;
    worker.abort();
    done(&operation(&world, id).await);
    world.at_rest().await;
}

/// What a host is told, and never says to have ended.
#[tokio::test(start_paused = true)]
async fn a_delete_by_force_takes_the_place_of_what_a_host_is_at() {
    for growth in [false, true] {
        let world = used().await;
        let mut host = Host::new(&world).await;
        let former = match growth {
            true => world.provisioner.grow_volume(&once(), &owner(), &name("old"), 9 * GIB).await.expect("begun"),
            false => take(&world, "old", "s").await.expect("begun"),
        };
        let worker = world.worker();
        sleep(Duration::from_secs(3)).await;
        host.ask().await.expect("told");
        sleep(Duration::from_secs(600)).await;
        assert_eq!(operation(&world, former).await.state, OperationState::Pending);
        let id = delete(&world, true).await.expect("begun");
        sleep(Duration::from_secs(30)).await;
        worker.abort();
        assert_eq!(operation(&world, former).await.state, OperationState::Failed);
        done(&operation(&world, id).await);
        world.at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_delete_in_the_place_of_a_growth_ends_done() {
    let case = async |world: &World| {
        let second = world.provisioner.volume(&owner(), &name("old")).await.expect("there").holders[1].nqn.to_string();
        world.provisioner.grow_volume(&once(), &owner(), &name("old"), 9 * GIB).await.expect("begun");
        world.drives.with(&second, |drive| drive.is_away = true);
        // It has grown on one drive, and has the second one to itself.
        let worker = world.worker();
        sleep(Duration::from_secs(5)).await;
        worker.abort();
        world.drives.with(&second, |drive| drive.is_away = false);
        assert_eq!(world.keys("/busy/").await.len(), 1);
        delete(world, true).await.expect("begun")
    };
    with_faults((OperationState::Done, 14), case, async |_| {}).await;
}

/// The undo waited for ever on what another program had reserved in the meantime, and so did a delete.
#[tokio::test(start_paused = true)]
async fn what_another_program_has_reserved_is_left_and_nothing_waits_for_it() {
    let world = used().await;
    let id = world.provisioner.create_volume(&once(), &owner(), &new_volume("new", 5, 3)).await.expect("begun");
    let worker = world.worker();
    let reserved = loop {
        let volume = world.provisioner.volume(&owner(), &name("new")).await.expect("there at once");
        match volume.holders[1].namespace {
            Some(namespace) => break namespace,
            None => sleep(Duration::from_millis(1)).await,
        }
    };
    worker.abort();
    world.drives.foreign.lock().unwrap().insert(reserved.uid);
    world.drives.sacred.lock().unwrap().insert(reserved.uid);
    let ended = world.end(id).await;
    assert_eq!((ended.state, ended.reason), (OperationState::Failed, Some(Reason::Foreign)), "{ended:?}");
    let says = |ended: &Operation, part: &str| ended.undo.as_ref().is_some_and(|why| why.contains(part));
    assert!(says(&ended, "is left there") && says(&ended, "key 0x5"), "{ended:?}");
    world.at_rest().await;
    let old = world.provisioner.volume(&owner(), &name("old")).await.expect("there");
    let uid = old.holders[0].namespace.expect("it is ready").uid;
    world.drives.foreign.lock().unwrap().insert(uid);
    let ended = world.end(delete(&world, false).await.expect("begun")).await;
    assert_eq!((ended.state, ended.reason), (OperationState::Failed, Some(Reason::Foreign)), "{ended:?}");
    assert!(says(&ended, "--force"), "{ended:?}");
    world.at_rest().await;
}
