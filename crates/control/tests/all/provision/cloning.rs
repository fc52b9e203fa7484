//! Volumes that are made of other volumes as these are: the snapshot for that is taken and deleted by itself.

use std::cell::RefCell;
use std::time::Duration;

use control::provision::{
    Error, NewVolume, Nqn, Operation, OperationKind, OperationState, Request, RequestId, SnapshotView, Source,
    VolumeState, VolumeView,
};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use uuid::Uuid;

use super::changes::take;
use super::crash::{used, with_every_fault, with_faults};
use super::drives::{GIB, HEAD};
use super::hosts::Host;
use super::replacing::{once, volume};
use super::world::*;

fn of_old(gib: u64) -> NewVolume {
    let from = Source { volume: name("old"), snapshot: None };
    NewVolume { from: Some(from), replicas: None, ..new_volume("new", gib, 3) }
}

async fn begin(world: &World, gib: u64) -> Result<Uuid, Error> {
    world.provisioner.create_volume(&once(), &owner(), &of_old(gib)).await
}

/// Nothing is left at the volume of what was taken for the other one.
fn is_clean(world: &World, old: &VolumeView) {
    assert_eq!(old.snapshots, []);
    assert_eq!(world.drives.mirrors.lock().unwrap()[&old.id].moments, []);
}

/// Two of three replicas take the snapshot.
async fn begin_of_two(world: &World) -> Uuid {
    let old = volume(world, "old").await.id;
    world.drives.mirrors.lock().unwrap().get_mut(&old).unwrap().takes = Some(0b101);
    begin(world, 8).await.expect("begun")
}

#[tokio::test(start_paused = true)]
async fn a_clone_of_a_volume_as_it_is_ends_done() {
    let after = async |world: &World| {
        let (old, new) = (volume(world, "old").await, volume(world, "new").await);
        is_clean(world, &old);
        assert_eq!((new.bytes, new.from), (8 * GIB, Some(Source { volume: name("old"), snapshot: None })));
        assert!(new.holders.iter().all(|holder| holder.namespace.unwrap().bytes == 8 * GIB + HEAD));
        for slot in 0..3 {
            assert_eq!(new.holders[slot].drive, old.holders[slot].drive, "it is beside what it is made of");
        }
        let clones: usize = world.drives.state.lock().unwrap().values().map(|drive| drive.copies.len()).sum();
        assert_eq!(clones, 2, "who has no copy of the snapshot has a holder to be filled");
    };
    with_faults((OperationState::Done, 24), async |world: &World| begin_of_two(world).await, after).await;
}

#[tokio::test(start_paused = true)]
async fn a_clone_of_a_volume_that_a_drive_refuses_ends_undone() {
    let case = async |world: &World| {
        let id = begin(world, 5).await.expect("begun");
        let last = volume(world, "new").await.holders[2].nqn.to_string();
        world.drives.with(&last, |drive| drive.refuses = Some("capacity exceeded".into()));
        id
    };
    let after = async |world: &World| is_clean(world, &volume(world, "old").await);
    with_faults((OperationState::Failed, 12), case, after).await;
}

/// The host that has the volume says nothing.
#[tokio::test(start_paused = true)]
async fn a_clone_of_which_no_snapshot_is_taken_ends_undone() {
    let case = async |world: &World| {
        let _silent = Host::new(world).await;
        begin(world, 5).await.expect("begun")
    };
    with_every_fault(OperationState::Failed, case).await;
}

#[tokio::test(start_paused = true)]
async fn the_host_that_has_the_volume_takes_the_snapshot_and_deletes_it() {
    let living: RefCell<Option<JoinHandle<()>>> = RefCell::default();
    let case = async |world: &World| {
        // That of the world before is gone.
        let host = Host::new(world).await.live();
        living.replace(Some(host)).inspect(|former| former.abort());
        begin(world, 5).await.expect("begun")
    };
    let after = async |world: &World| {
        let old = volume(world, "old").await;
        is_clean(world, &old);
        assert_eq!(world.drives.mirrors.lock().unwrap()[&old.id].round, 0, "the control plane has not attached it");
    };
    with_faults((OperationState::Done, 16), case, after).await;
}

/// A clone whose host has taken the snapshot for it, and says nothing since.
async fn begun_by_a_host(world: &World) -> (Host, Uuid, JoinHandle<()>) {
    let mut host = Host::new(world).await;
    let id = begin(world, 5).await.expect("begun");
    let worker = world.worker();
    while volume(world, "old").await.snapshots.is_empty() {
        host.ask().await.expect("it has the volume");
        sleep(Duration::from_secs(2)).await;
    }
    (host, id, worker)
}

/// Its host says nothing while the snapshot is to be deleted.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_a_volume_could_not_delete_goes_when_it_can() {
    let world = used().await;
    let (host, id, worker) = begun_by_a_host(&world).await;
    sleep(Duration::from_secs(120)).await;
    done(&world.provisioner.operation(None, id).await.expect("there"));
    let left = world.provisioner.snapshots(&owner(), &name("old")).await.expect("a list");
    let is_said = |snapshot: &SnapshotView| snapshot.waits.as_ref().is_some_and(|why| why.contains("does not ask"));
    assert!(left.iter().all(|snapshot| snapshot.temporary && is_said(snapshot)) && left.len() == 1, "{left:?}");
    let operations = world.provisioner.operations(None, None).await.expect("a list").items;
    let is_failed = |one: &Operation| one.kind == OperationKind::Forget && one.state == OperationState::Failed;
    assert!(operations.iter().any(is_failed), "the host has said nothing: {operations:?}");
    let _host = host.live();
    sleep(Duration::from_secs(120)).await;
    worker.abort();
    is_clean(&world, &volume(&world, "old").await);
    world.at_rest().await;
}

/// It was tried once a minute for ever, and each time the holders were taken from the host.
#[tokio::test(start_paused = true)]
async fn a_host_that_says_nothing_is_disturbed_by_a_snapshot_less_and_less_often() {
    let world = used().await;
    let (host, id, worker) = begun_by_a_host(&world).await;
    sleep(Duration::from_secs(6 * 3600)).await;
    done(&world.provisioner.operation(None, id).await.expect("there"));
    let tries = async || {
        let operations = world.provisioner.operations(None, None).await.expect("a list").items;
        operations.iter().filter(|one| one.kind == OperationKind::Forget).count()
    };
    let before = tries().await;
    assert!((8..16).contains(&before), "{before} tries in six hours");
    // Another host has it by now, and asks: it is tried at once.
    host.die();
    let _host = Host::of(&world, "b", true).await.live();
    sleep(Duration::from_secs(120)).await;
    worker.abort();
    assert_eq!(tries().await, before + 1);
    is_clean(&world, &volume(&world, "old").await);
}

#[tokio::test(start_paused = true)]
async fn what_no_clone_can_be_made_of_is_refused_and_what_is_made_keeps_its_snapshot() {
    let world = used().await;
    assert!(matches!(begin(&world, 4).await, Err(Error::Impossible(why)) if why.contains("a volume of 5")));
    assert!(matches!(begin(&world, 100).await, Err(Error::Impossible(why)) if why.contains("at most")));
    let none = Source { volume: name("none"), snapshot: None };
    let refused =
        world.provisioner.create_volume(&once(), &owner(), &NewVolume { from: Some(none), ..of_old(5) }).await;
    assert!(matches!(refused, Err(Error::NotFound { kind: "volume", .. })), "{refused:?}");
    let id = take(&world, "old", "s").await.expect("begun");
    assert!(matches!(begin(&world, 5).await, Err(Error::Busy { .. })));
    done(&world.end(id).await);
    let id = begin(&world, 5).await.expect("begun");
    assert!(matches!(take(&world, "old", "t").await, Err(Error::Busy { .. })), "the snapshot is being taken");
    let worker = world.worker();
    while volume(&world, "old").await.snapshots.len() < 2 {
        sleep(Duration::from_millis(10)).await;
    }
    let passing = volume(&world, "old").await.snapshots[1].clone();
    let refused = world.provisioner.delete_snapshot(&once(), &owner(), &name("old"), &passing).await;
    assert!(matches!(refused, Err(Error::InUse { kind: "snapshot", .. } | Error::Busy { .. })), "{refused:?}");
    worker.abort();
    done(&world.end(id).await);
    assert_eq!(volume(&world, "old").await.snapshots, [name("s")], "what somebody has taken stays");
    world.at_rest().await;
}

/// It is none that was taken before, whatever that is called, and the volume goes on meanwhile.
#[tokio::test(start_paused = true)]
async fn a_clone_has_the_bytes_of_one_moment_after_it_was_asked_for() {
    let world = used().await;
    let old = volume(&world, "old").await.id;
    let written = |of: Uuid| world.drives.mirrors.lock().unwrap()[&of].written;
    let write = |what| world.drives.mirrors.lock().unwrap().get_mut(&old).unwrap().written = what;
    write(1);
    let id = take(&world, "old", "s").await.expect("begun");
    done(&world.end(id).await);
    write(2);
    let id = begin(&world, 5).await.expect("begun");
    let worker = world.worker();
    while volume(&world, "old").await.snapshots.len() < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    write(3);
    worker.abort();
    done(&world.end(id).await);
    assert_eq!((written(volume(&world, "new").await.id), written(old)), (2, 3));
    world.at_rest().await;
}

/// Who asked looked at the size first: after the source had grown the same request was another one.
#[tokio::test(start_paused = true)]
async fn a_clone_without_a_size_is_as_large_as_its_source_was_when_the_request_was_first_heard() {
    let world = used().await;
    let new = NewVolume { bytes: None, ..of_old(5) };
    let request = Request::named(None, &RequestId::new("r1").unwrap(), b"a clone of old");
    let ask = async || world.provisioner.create_volume(&request, &owner(), &new).await;
    let id = ask().await.expect("begun");
    done(&world.end(id).await);
    let grown = world.provisioner.grow_volume(&once(), &owner(), &name("old"), 9 * GIB).await.expect("begun");
    done(&world.end(grown).await);
    assert_eq!(ask().await.expect("the same request"), id);
    assert_eq!(volume(&world, "new").await.bytes, 5 * GIB);
    let id = take(&world, "old", "s").await.expect("begun");
    done(&world.end(id).await);
    for (called, snapshot) in [("newer", None), ("of-s", Some(name("s")))] {
        let from = Some(Source { volume: name("old"), snapshot });
        done(&world.create(&NewVolume { name: name(called), from, ..new.clone() }).await);
        assert_eq!(volume(&world, called).await.bytes, 9 * GIB);
    }
    let refused = world.provisioner.create_volume(&once(), &owner(), &NewVolume { from: None, ..new }).await;
    assert!(matches!(&refused, Err(Error::Impossible(why)) if why.contains("how many bytes")), "{refused:?}");
}

/// While the snapshot is to be deleted the new volume is there, and neither needs the other.
#[tokio::test(start_paused = true)]
async fn a_volume_is_deleted_with_what_was_taken_for_another_one() {
    let world = used().await;
    let id = begin(&world, 5).await.expect("begun");
    let worker = world.worker();
    while volume(&world, "new").await.state != VolumeState::Ready {
        sleep(Duration::from_millis(1)).await;
    }
    worker.abort();
    let host = Nqn::new("nqn.2026-11.io.yagura:host:b").unwrap();
    let asked = &world.provisioner;
    assert_eq!(volume(&world, "new").await.operation, Some(id));
    let new = asked.attach(&once(), &owner(), &name("new"), &host, false).await.expect("it is made");
    world.drives.in_use.lock().unwrap().insert(new.id);
    let deleted = asked.delete_volume(&once(), &owner(), &name("old"), true).await.expect("begun");
    for operation in world.end_all(&[deleted, id], 1).await {
        done(&operation);
    }
    world.at_rest().await;
    assert_eq!(world.volumes().await.len(), 1);
}
