//! Volumes that nobody has attached grow, get snapshots and are cloned: with each fault at each effect, and what is refused.

use std::time::Duration;

use control::catalogue::{Change, Key, Outcome, Transaction, Value};
use control::provision::{
    DriveState, Error, Limits, NewSnapshot, NewVolume, Nqn, OperationState, Quota, Request, Rule, Source, VolumeView,
    WorkerOptions,
};
use tokio::time::sleep;
use uuid::Uuid;

use super::crash::{used, with_every_fault, with_faults};
use super::drives::{GIB, HEAD, SimDrive};
use super::faults::Fault;
use super::world::*;

fn once() -> Request {
    Request::unnamed()
}

async fn grow(world: &World, volume: &str, gib: u64) -> Result<Uuid, Error> {
    world.provisioner.grow_volume(&once(), &owner(), &name(volume), gib * GIB).await
}

pub async fn take(world: &World, volume: &str, snapshot: &str) -> Result<Uuid, Error> {
    let new = NewSnapshot { name: name(snapshot) };
    world.provisioner.take_snapshot(&once(), &owner(), &name(volume), &new).await
}

async fn forget(world: &World, volume: &str, snapshot: &str) -> Result<Uuid, Error> {
    world.provisioner.delete_snapshot(&once(), &owner(), &name(volume), &name(snapshot)).await
}

/// A clone of the snapshot `s` of `old`.
fn clone(gib: u64, replicas: u8) -> NewVolume {
    let from = Source { volume: name("old"), snapshot: Some(name("s")) };
    NewVolume { from: Some(from), ..new_volume("new", gib, replicas) }
}

async fn volume(world: &World, volume: &str) -> VolumeView {
    world.provisioner.volume(&owner(), &name(volume)).await.expect("there")
}

/// Snapshots that stand on the replicas.
fn moments(world: &World, volume: &VolumeView) -> usize {
    world.drives.mirrors.lock().unwrap()[&volume.id].moments.len()
}

#[tokio::test(start_paused = true)]
async fn a_growth_ends_done() {
    let case = async |world: &World| grow(world, "old", 9).await.expect("begun");
    let after = async |world: &World| {
        let volume = volume(world, "old").await;
        assert_eq!(volume.bytes, 9 * GIB);
        assert!(volume.holders.iter().all(|holder| holder.namespace.unwrap().bytes == 9 * GIB + HEAD));
    };
    with_faults((OperationState::Done, 16), case, after).await;
}

#[tokio::test(start_paused = true)]
async fn a_growth_that_a_drive_refuses_leaves_the_volume_as_it_was() {
    let case = async |world: &World| {
        let last = volume(world, "old").await.holders[2].nqn.to_string();
        world.drives.with(&last, |drive| drive.grows_to = 6 * GIB);
        grow(world, "old", 9).await.expect("begun")
    };
    let after = async |world: &World| {
        let volume = volume(world, "old").await;
        assert_eq!(volume.bytes, 5 * GIB);
        let sizes: Vec<_> = volume.holders.iter().map(|holder| holder.namespace.unwrap().bytes - HEAD).collect();
        assert_eq!(sizes, [9 * GIB, 9 * GIB, 5 * GIB], "what has grown keeps its room");
    };
    with_faults((OperationState::Failed, 12), case, after).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_taken_once() {
    let case = async |world: &World| take(world, "old", "s").await.expect("begun");
    let after = async |world: &World| {
        let volume = volume(world, "old").await;
        assert_eq!((&volume.snapshots[..], moments(world, &volume)), (&[name("s")][..], 1));
    };
    with_faults((OperationState::Done, 7), case, after).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_deleted() {
    let case = async |world: &World| {
        for snapshot in ["s", "t"] {
            let id = take(world, "old", snapshot).await.expect("begun");
            done(&world.end(id).await);
        }
        forget(world, "old", "s").await.expect("begun")
    };
    let after = async |world: &World| {
        let volume = volume(world, "old").await;
        assert_eq!((&volume.snapshots[..], moments(world, &volume)), (&[name("t")][..], 1));
    };
    with_faults((OperationState::Done, 5), case, after).await;
}

/// Of a snapshot that two of three replicas have: the third holder is placed as any.
async fn begin_clone(world: &World, gib: u64) -> Uuid {
    let id = take(world, "old", "s").await.expect("begun");
    done(&world.end(id).await);
    {
        let mut mirrors = world.drives.mirrors.lock().unwrap();
        mirrors.values_mut().for_each(|mirror| mirror.moments.iter_mut().for_each(|moment| moment.slots = 0b101));
    }
    // Whoever attaches the volume next tells of it.
    let id = take(world, "old", "t").await.expect("begun");
    done(&world.end(id).await);
    world.provisioner.create_volume(&once(), &owner(), &clone(gib, 3)).await.expect("begun")
}

#[tokio::test(start_paused = true)]
async fn a_clone_that_is_to_be_larger_ends_done() {
    let after = async |world: &World| {
        let (old, new) = (volume(world, "old").await, volume(world, "new").await);
        assert_eq!(new.bytes, 8 * GIB);
        assert!(new.holders.iter().all(|holder| holder.namespace.unwrap().bytes == 8 * GIB + HEAD));
        for slot in [0, 2] {
            assert_eq!(new.holders[slot].drive, old.holders[slot].drive, "it is beside what it is made of");
        }
        let clones: usize = world.drives.state.lock().unwrap().values().map(|drive| drive.copies.len()).sum();
        assert_eq!(clones, 2);
    };
    with_faults((OperationState::Done, 20), async |world: &World| begin_clone(world, 8).await, after).await;
}

#[tokio::test(start_paused = true)]
async fn a_clone_that_a_drive_refuses_ends_undone() {
    let case = async |world: &World| {
        let id = begin_clone(world, 5).await;
        let last = volume(world, "new").await.holders[2].nqn.to_string();
        world.drives.with(&last, |drive| drive.refuses = Some("capacity exceeded".into()));
        id
    };
    with_every_fault(OperationState::Failed, case).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_snapshot_is_needed_for_keeps_it() {
    let world = used().await;
    let asked = &world.provisioner;
    let id = begin_clone(&world, 5).await;
    let refused = forget(&world, "old", "s").await.expect_err("a clone is made of it");
    assert!(matches!(refused, Error::InUse { kind: "snapshot", .. }), "{refused}");
    let refused = asked.delete_volume(&once(), &owner(), &name("old"), true).await.expect_err("a clone is made of it");
    assert!(matches!(&refused, Error::InUse { kind: "volume", by, .. } if by.ends_with(": s")), "{refused}");
    done(&world.end(id).await);
    let refused = asked.delete_volume(&once(), &owner(), &name("old"), false).await.expect_err("it has snapshots");
    assert!(matches!(&refused, Error::InUse { kind: "volume", by, .. } if by.contains("s, t")), "{refused}");
    // The clone does not need it.
    for snapshot in ["s", "t"] {
        let id = forget(&world, "old", snapshot).await.expect("begun");
        done(&world.end(id).await);
    }
    let id = asked.delete_volume(&once(), &owner(), &name("old"), false).await.expect("begun");
    done(&world.end(id).await);
    world.at_rest().await;
    assert_eq!(volume(&world, "new").await.bytes, 5 * GIB);
}

/// It was pinned, deleted all the same, and the clone failed with what was not true.
#[tokio::test(start_paused = true)]
async fn of_a_snapshot_that_is_being_deleted_no_volume_is_made() {
    let world = used().await;
    let asked = &world.provisioner;
    for snapshot in ["s", "t"] {
        let id = take(&world, "old", snapshot).await.expect("begun");
        done(&world.end(id).await);
    }
    let id = forget(&world, "old", "s").await.expect("begun");
    let refused = asked.create_volume(&once(), &owner(), &clone(5, 3)).await;
    assert!(matches!(refused, Err(Error::Busy { operation, .. }) if operation == id), "{refused:?}");
    done(&world.end(id).await);
    let refused = asked.create_volume(&once(), &owner(), &clone(5, 3)).await;
    assert!(matches!(refused, Err(Error::NotFound { kind: "snapshot", .. })), "{refused:?}");
    // Of the other one there is, also while something is done about a third.
    let id = take(&world, "old", "u").await.expect("begun");
    let from = Source { volume: name("old"), snapshot: Some(name("t")) };
    done(&world.create(&NewVolume { from: Some(from), ..clone(5, 3) }).await);
    done(&world.end(id).await);
    world.at_rest().await;
}

/// The clone stayed on its drive, in no record, and its room was given back.
#[tokio::test(start_paused = true)]
async fn a_clone_whose_answer_was_lost_is_found_by_its_tag_alone() {
    let world = used().await;
    let id = begin_clone(&world, 5).await;
    let held = std::sync::Arc::new(tokio::sync::Notify::new());
    *world.drives.held.lock().unwrap() = Some(held.clone());
    let worker = world.worker();
    while world.drives.held.lock().unwrap().is_some() {
        sleep(Duration::from_millis(10)).await;
    }
    // The next change is the first clone. The process dies behind it, and the snapshot is in the catalogue no more.
    world.faults.arm(0, Fault::DiesAfter);
    held.notify_one();
    world.faults.struck.notified().await;
    worker.abort();
    world.faults.clear();
    let clones = || world.drives.state.lock().unwrap().values().map(|drive| drive.copies.len()).sum::<usize>();
    assert_eq!(clones(), 1);
    let key = format!("/volume/{TENANT}/old");
    let text = world.keys_and_values(&key).await.remove(0).1;
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record["snapshots"] = serde_json::json!([]);
    let change = Change::put(Key::new(key).unwrap(), Value::new(record.to_string()).unwrap());
    let outcome = world.catalogue.commit(Transaction::new(Vec::new(), vec![change]).unwrap()).await;
    assert!(matches!(outcome, Ok(Outcome::Committed(_))), "{outcome:?}");
    let operation = world.end(id).await;
    assert_eq!(operation.state, OperationState::Failed, "{operation:?}");
    world.at_rest().await;
    assert_eq!(clones(), 0);
}

/// Made with three, it had the shape of what it was made of all the same.
#[tokio::test(start_paused = true)]
async fn a_clone_has_as_many_replicas_as_what_it_is_made_of() {
    let world = used().await;
    let id = take(&world, "old", "s").await.expect("begun");
    done(&world.end(id).await);
    for replicas in [1, 2] {
        let refused = world.provisioner.create_volume(&once(), &owner(), &clone(5, replicas)).await;
        assert!(matches!(&refused, Err(Error::Impossible(why)) if why.contains("has 3")), "{refused:?}");
    }
    done(&world.create(&new_volume("two", 5, 2)).await);
    let id = take(&world, "two", "s").await.expect("begun");
    done(&world.end(id).await);
    let from = Source { volume: name("two"), snapshot: Some(name("s")) };
    let new = NewVolume { from: Some(from), ..new_volume("new", 5, 3) };
    let refused = world.provisioner.create_volume(&once(), &owner(), &new).await;
    assert!(matches!(&refused, Err(Error::Impossible(why)) if why.contains("has 2")), "{refused:?}");
    done(&world.create(&NewVolume { replicas: None, ..new }).await);
    let kinds = async |of: &str| volume(&world, of).await.holders.iter().map(|holder| holder.kind).collect::<Vec<_>>();
    assert_eq!(kinds("new").await, kinds("two").await);
    // Whoever asks for the same volume again has to know whether that is the one.
    let from = Source { volume: name("two"), snapshot: Some(name("s")) };
    assert_eq!((volume(&world, "new").await.from, volume(&world, "two").await.from), (Some(from), None));
    world.at_rest().await;
}

/// As a host once could have it: the tenant had room for the smaller size alone.
#[tokio::test(start_paused = true)]
async fn no_clone_is_larger_than_its_snapshot_was_counted() {
    let world = used().await;
    let id = take(&world, "old", "s").await.expect("begun");
    done(&world.end(id).await);
    let key = format!("/volume/{TENANT}/old");
    let text = world.keys_and_values(&key).await.remove(0).1;
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record["snapshots"][0]["bytes"] = 0.into();
    let change = Change::put(Key::new(key).unwrap(), Value::new(record.to_string()).unwrap());
    let outcome = world.catalogue.commit(Transaction::new(Vec::new(), vec![change]).unwrap()).await;
    assert!(matches!(outcome, Ok(Outcome::Committed(_))), "{outcome:?}");
    for gib in [1, 5, 6] {
        let operation = world.create(&clone(gib, 3)).await;
        assert_eq!(operation.state, OperationState::Failed, "{operation:?}");
        assert!(operation.undo.as_ref().is_some_and(|why| why.contains("by the catalogue")), "{operation:?}");
        world.at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_is_refused_and_changes_nothing() {
    let world = used().await;
    let asked = &world.provisioner;
    for (gib, part) in [(4, "does not shrink"), (0, "4096"), (1 << 20, "70368744177664"), (100, "at most")] {
        let refused = grow(&world, "old", gib).await.expect_err("refused");
        assert!(matches!(refused, Error::Impossible(_)) && refused.to_string().contains(part), "{refused}");
    }
    let quota = Quota { quota_bytes: Some(8 * GIB), quota_volumes: None };
    asked.put_tenant(&once(), &name(TENANT), &quota).await.expect("changed");
    let refused = grow(&world, "old", 9).await.expect_err("over the quota");
    assert!(matches!(refused, Error::Quota { unit: "bytes", wanted, .. } if wanted == 9 * GIB), "{refused}");
    asked.put_tenant(&once(), &name(TENANT), &Quota::default()).await.expect("changed");
    assert!(matches!(grow(&world, "none", 9).await, Err(Error::NotFound { kind: "volume", .. })));
    assert!(matches!(forget(&world, "old", "none").await, Err(Error::NotFound { kind: "snapshot", .. })));
    let id = take(&world, "old", "s").await.expect("begun");
    assert!(matches!(take(&world, "old", "t").await, Err(Error::Busy { .. })));
    assert!(matches!(grow(&world, "old", 9).await, Err(Error::Busy { .. })));
    done(&world.end(id).await);
    assert!(matches!(take(&world, "old", "s").await, Err(Error::Exists { kind: "snapshot", .. })));
    let smaller = asked.create_volume(&once(), &owner(), &clone(4, 3)).await.expect_err("smaller");
    assert!(smaller.to_string().contains("can't be smaller"), "{smaller}");
    let larger = asked.create_volume(&once(), &owner(), &clone(100, 3)).await.expect_err("larger");
    assert!(matches!(larger, Error::Impossible(_)) && larger.to_string().contains("at most"), "{larger}");
    let from = Source { volume: name("old"), snapshot: Some(name("none")) };
    let none = NewVolume { from: Some(from), ..new_volume("new", 5, 3) };
    let none = asked.create_volume(&once(), &owner(), &none).await;
    assert!(matches!(none, Err(Error::NotFound { kind: "snapshot", .. })), "{none:?}");
    let limits = [
        Limits { iops: Some(0), ..Limits::default() },
        Limits { bandwidth: Some(4096), ..Limits::default() },
        Limits { burst: Some(0), ..Limits::default() },
        Limits { burst: Some(3601), ..Limits::default() },
    ];
    for limits in limits {
        let refused = asked.set_limits(&once(), &owner(), &name("old"), limits).await;
        assert!(matches!(refused, Err(Error::Impossible(_))), "{refused:?}");
    }
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn room_to_grow_is_promised_once() {
    let world = World::new(&[30]).await;
    for volume in ["a", "b"] {
        done(&world.create(&new_volume(volume, 10, 1)).await);
    }
    let (a, b) = tokio::join!(grow(&world, "a", 16), grow(&world, "b", 16));
    let refused = a.as_ref().err().or(b.as_ref().err()).expect("there is room for one of them");
    let Error::NoRoomToGrow { drives, .. } = refused else { panic!("{refused}") };
    assert!(matches!(&drives[..], [(_, Rule::Promised { .. })]), "{refused}");
    done(&world.end(a.or(b).expect("one of them")).await);
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_drive_that_is_gone_for_good_holds_up_no_growth() {
    let world = used().await;
    let gone = volume(&world, "old").await.holders[1].drive.clone();
    world.provisioner.set_drive_state(&once(), &gone, DriveState::Out).await.expect("out");
    let id = grow(&world, "old", 9).await.expect("begun");
    done(&world.end(id).await);
    assert_eq!(volume(&world, "old").await.bytes, 9 * GIB);
}

#[tokio::test(start_paused = true)]
async fn hosts_are_kept_away_while_the_control_plane_has_the_volume() {
    let world = used().await;
    let id = grow(&world, "old", 9).await.expect("begun");
    let held = std::sync::Arc::new(tokio::sync::Notify::new());
    let host = Nqn::new("nqn.2026-11.io.yagura:host:a").unwrap();
    let attach = async || world.provisioner.attach(&once(), &owner(), &name("old"), &host, true).await;
    *world.drives.held.lock().unwrap() = Some(held.clone());
    let worker = world.worker();
    let mut was_kept = false;
    while world.provisioner.operation(None, id).await.expect("there").ended.is_none() {
        sleep(Duration::from_millis(1)).await;
        if world.drives.held.lock().unwrap().is_some() {
            continue;
        }
        // Before a change of a drive, or of the volume itself.
        let record = world.keys_and_values("/volume/").await.remove(0).1;
        if record.contains(r#""held":true"#) {
            let refused = attach().await.expect_err("the control plane has it");
            assert!(matches!(refused, Error::Busy { .. }), "{refused}");
            was_kept = true;
        }
        *world.drives.held.lock().unwrap() = Some(held.clone());
        held.notify_one();
    }
    *world.drives.held.lock().unwrap() = None;
    worker.abort();
    assert!(was_kept);
    attach().await.expect("it is free again");
    world.at_rest().await;
}

/// A drive that is away kept every place of a worker busy.
#[tokio::test(start_paused = true)]
async fn what_waits_for_a_drive_leaves_places_to_what_need_not() {
    let world = World::new(&[100]).await;
    for index in 0..8 {
        done(&world.create(&new_volume(&format!("v{index}"), 1, 1)).await);
    }
    world.drives.with(&nqn("d0"), |drive| (drive.is_away, drive.answers_late) = (true, true));
    let mut waiting = Vec::new();
    for index in 0..8 {
        let volume = name(&format!("v{index}"));
        waiting.push(world.provisioner.delete_volume(&once(), &owner(), &volume, true).await.expect("begun"));
    }
    let options = WorkerOptions { operations: 4, ..WorkerOptions::default() };
    let worker = tokio::spawn(control::provision::Worker::new(&world.provisioner, options).run());
    sleep(Duration::from_secs(60)).await;
    world.add_drive("d1", "n1", SimDrive::new(100)).await;
    let id = world.provisioner.create_volume(&once(), &owner(), &new_volume("new", 1, 1)).await.expect("begun");
    sleep(Duration::from_secs(2)).await;
    done(&world.provisioner.operation(None, id).await.expect("there"));
    worker.abort();
    world.drives.with(&nqn("d0"), |drive| (drive.is_away, drive.answers_late) = (false, false));
    world.end_all(&waiting, 1).await.iter().for_each(done);
    world.at_rest().await;
}
