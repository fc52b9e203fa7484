//! Holders that are replaced: by name, off a drive that is to be empty, and of a drive that is gone for good.

use std::time::Duration;

use control::catalogue::{Entry, Prefix, Range};
use control::provision::{DriveState, Error, HolderView, Nqn, Operation, OperationState, Request, Usage, VolumeView};
use tokio::time::sleep;
use uuid::Uuid;

use super::changes::take;
use super::crash::{put_back, used, with_faults};
use super::drives::{GIB, HEAD, SimDrive};
use super::emptying::emptied;
use super::hosts::Host;
use super::mirror::Mirror;
use super::world::*;
use crate::words::read_all;

pub fn once() -> Request {
    Request::unnamed()
}

pub async fn volume(world: &World, volume: &str) -> VolumeView {
    world.provisioner.volume(&owner(), &name(volume)).await.expect("there")
}

pub async fn replace(world: &World, volume: &str, drive: &str) -> Result<Uuid, Error> {
    world.provisioner.replace_holder(&once(), &owner(), &name(volume), &name(drive)).await
}

pub async fn set(world: &World, drive: &str, state: DriveState) {
    world.provisioner.set_drive_state(&once(), &name(drive), state).await.expect("set");
}

async fn operation(world: &World, id: Uuid) -> Operation {
    world.provisioner.operation(None, id).await.expect("there")
}

/// The volume is one that must not lose what it needs.
pub async fn keep(world: &World, of: &str) -> VolumeView {
    let found = volume(world, of).await;
    world.drives.kept.lock().unwrap().insert(found.id);
    found
}

pub fn uid(holder: &HolderView) -> Uuid {
    holder.namespace.expect("it is ready").uid
}

#[tokio::test(start_paused = true)]
async fn a_holder_of_a_volume_that_nobody_has_is_replaced() {
    let case = async |world: &World| {
        let old = keep(world, "old").await;
        replace(world, "old", old.holders[1].drive.as_str()).await.expect("begun")
    };
    let after = async |world: &World| {
        let now = volume(world, "old").await;
        let mirror = world.drives.mirrors.lock().unwrap()[&now.id].clone();
        let has: Vec<_> = now.holders.iter().map(uid).collect();
        assert_eq!(has, mirror.has.values().copied().collect::<Vec<_>>(), "the record is what the mirror has");
        assert_eq!((mirror.had.len(), mirror.behind.len()), (1, 0), "one was replaced, once, and all are in sync");
    };
    with_faults((OperationState::Done, 16), case, after).await;
}

#[tokio::test(start_paused = true)]
async fn the_host_that_has_the_volume_replaces_its_holder() {
    let case = async |world: &World| {
        Host::new(world).await.live();
        let old = keep(world, "old").await;
        replace(world, "old", old.holders[2].drive.as_str()).await.expect("begun")
    };
    let after = async |world: &World| {
        let now = volume(world, "old").await;
        let mirror = world.drives.mirrors.lock().unwrap()[&now.id].clone();
        assert_eq!(mirror.has[&2], uid(&now.holders[2]));
        assert_eq!(mirror.round, 0, "the control plane has not attached the volume");
    };
    with_faults((OperationState::Done, 16), case, after).await;
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_a_drive_refuses_is_undone() {
    let case = async |world: &World| {
        let old = keep(world, "old").await;
        let gone = old.holders[0].drive.as_str();
        let id = replace(world, "old", gone).await.expect("begun");
        for drive in ["d0", "d1", "d2", "e0", "e1", "e2"] {
            world.drives.with(&nqn(drive), |drive| drive.refuses = Some("capacity exceeded".into()));
        }
        id
    };
    let after = async |world: &World| {
        let now = volume(world, "old").await;
        let mirror = world.drives.mirrors.lock().unwrap()[&now.id].clone();
        assert_eq!(mirror.has[&0], uid(&now.holders[0]), "all is as it was");
    };
    with_faults((OperationState::Failed, 6), case, after).await;
}

#[tokio::test(start_paused = true)]
async fn a_witness_is_replaced() {
    let world = World::new(&[100, 100, 100, 100]).await;
    done(&world.create(&new_volume("v", 5, 2)).await);
    let before = keep(&world, "v").await;
    let id = replace(&world, "v", before.holders[2].drive.as_str()).await.expect("begun");
    done(&world.end(id).await);
    let after = volume(&world, "v").await;
    assert_eq!(after.holders[..2], before.holders[..2]);
    assert_ne!(after.holders[2].drive, before.holders[2].drive);
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_holder_stays_while_another_one_is_not_in_sync() {
    for is_attached in [false, true] {
        let world = used().await;
        let old = keep(&world, "old").await;
        world.drives.mirrors.lock().unwrap().get_mut(&old.id).unwrap().behind.insert(2, 1_000_000);
        let host = if is_attached { Some(Host::new(&world).await.live()) } else { None };
        let id = replace(&world, "old", old.holders[0].drive.as_str()).await.expect("begun");
        let ended = world.end(id).await;
        assert_eq!(ended.state, OperationState::Failed, "{ended:?}");
        assert!(ended.undo.as_ref().is_some_and(|why| why.contains("slot 2")), "{ended:?}");
        assert_eq!(volume(&world, "old").await.holders, old.holders);
        world.at_rest().await;
        // The one that is behind may go itself.
        world.drives.mirrors.lock().unwrap().get_mut(&old.id).unwrap().behind.insert(2, u32::MAX);
        let id = replace(&world, "old", old.holders[2].drive.as_str()).await.expect("begun");
        done(&world.end(id).await);
        world.at_rest().await;
        host.inspect(|host| host.abort());
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_stays_where_the_others_are_no_majority() {
    // The witness beside a lost replica, a replica beside a lost witness, one that is behind beside a lost one.
    for (replicas, away, slot, behind) in [(2, 1, 2, vec![1]), (2, 2, 0, vec![]), (3, 1, 2, vec![1, 2])] {
        for is_attached in [false, true] {
            let world = World::new(&[100, 100, 100, 100]).await;
            done(&world.create(&new_volume("old", 5, replicas)).await);
            let old = keep(&world, "old").await;
            let change = |change: &dyn Fn(&mut Mirror)| {
                change(world.drives.mirrors.lock().unwrap().get_mut(&old.id).unwrap());
            };
            change(&|mirror| mirror.away = [away].into());
            change(&|mirror| mirror.behind.extend(behind.iter().map(|slot| (*slot, u32::MAX))));
            let host = if is_attached { Some(Host::new(&world).await.live()) } else { None };
            let id = replace(&world, "old", old.holders[slot].drive.as_str()).await.expect("begun");
            let ended = world.end(id).await;
            assert_eq!(ended.state, OperationState::Failed, "{ended:?}");
            assert!(ended.undo.as_ref().is_some_and(|why| why.contains(&format!("slot {away} "))), "{ended:?}");
            assert_eq!(volume(&world, "old").await.holders, old.holders);
            world.at_rest().await;
            // They are a majority again.
            change(&|mirror| (mirror.away, mirror.behind) = Default::default());
            let id = replace(&world, "old", old.holders[slot].drive.as_str()).await.expect("begun");
            done(&world.end(id).await);
            world.at_rest().await;
            host.inspect(|host| host.abort());
        }
    }
}

/// The host has kept the former holder, and is started again: without it there is no majority.
#[tokio::test(start_paused = true)]
async fn a_former_holder_that_the_volume_needs_gets_its_place_back() {
    for is_out in [false, true] {
        let world = used().await;
        let old = keep(&world, "old").await;
        let mut host = Host::new(&world).await;
        let id = replace(&world, "old", old.holders[0].drive.as_str()).await.expect("begun");
        let worker = world.worker();
        while volume(&world, "old").await.holders[0] == old.holders[0] {
            host.ask().await.expect("it has the volume");
            sleep(Duration::from_millis(500)).await;
        }
        worker.abort();
        host.die();
        let new = volume(&world, "old").await.holders[0].drive.to_string();
        let other = nqn(old.holders[1].drive.as_str());
        world.drives.with(&other, |drive| drive.is_away = true);
        if is_out {
            world.drives.with(&nqn(&new), |drive| drive.is_away = true);
            set(&world, &new, DriveState::Out).await;
        }
        let ended = world.end(id).await;
        assert_eq!(ended.state, OperationState::Failed, "{ended:?}");
        assert!(ended.undo.as_ref().is_some_and(|why| why.contains("has its place again")), "{ended:?}");
        let now = volume(&world, "old").await;
        assert_eq!(now.holders, old.holders);
        // When all are there it is replaced as any other one, and what was to replace it goes, too.
        world.drives.with(&other, |drive| drive.is_away = false);
        world.add_drive("f0", "n0", SimDrive::new(100)).await;
        let id = replace(&world, "old", old.holders[0].drive.as_str()).await.expect("begun");
        done(&world.end(id).await);
        if is_out {
            world.drives.state.lock().unwrap().remove(&nqn(&new));
            // What others had there is gone with it.
            let left = world.drives.namespaces();
            world.drives.sacred.lock().unwrap().retain(|uid| left.contains_key(uid));
            world.provisioner.remove_drive(&once(), &name(&new)).await.expect("nothing of it is known any more");
        }
        world.at_rest().await;
    }
}

/// A host that wants the volume does not wait for the undoing of a replacement.
#[tokio::test(start_paused = true)]
async fn an_undo_holds_no_volume() {
    let world = used().await;
    let old = keep(&world, "old").await;
    world.drives.mirrors.lock().unwrap().get_mut(&old.id).unwrap().behind.insert(2, 1_000_000);
    let id = replace(&world, "old", old.holders[0].drive.as_str()).await.expect("begun");
    let worker = world.worker();
    while !world.keys_and_values("/volume/").await[0].1.contains(r#""held":true"#) {
        sleep(Duration::from_millis(100)).await;
    }
    // The new one can't be deleted.
    for drive in ["d0", "e0", "d1", "e1", "d2", "e2"].map(nqn) {
        let holds = old.holders.iter().any(|holder| nqn(holder.drive.as_str()) == drive);
        world.drives.with(&drive, |drive| drive.is_away = !holds);
    }
    sleep(Duration::from_secs(120)).await;
    assert!(operation(&world, id).await.undo.is_some());
    let host = Nqn::new("nqn.2026-11.io.yagura:host:b").unwrap();
    world.provisioner.attach(&once(), &owner(), &name("old"), &host, false).await.expect("nobody holds it");
    worker.abort();
}

/// Another volume was recovered from it meanwhile.
#[tokio::test(start_paused = true)]
async fn what_belongs_to_another_volume_is_not_deleted_with_a_replacement() {
    let belongs = |world: &World, uid: Uuid, to: Uuid| {
        let (drive, found, _) = world.drives.namespaces()[&uid].clone();
        world.drives.with(&drive, |drive| drive.namespaces.insert(found.nsid, (found, Some((to, 0)))));
    };
    // What was to replace a holder, in the undo.
    let world = used().await;
    let old = keep(&world, "old").await;
    world.drives.mirrors.lock().unwrap().get_mut(&old.id).unwrap().behind.insert(2, 1_000_000);
    let before = world.drives.namespaces();
    let id = replace(&world, "old", old.holders[0].drive.as_str()).await.expect("begun");
    let worker = world.worker();
    while !world.keys_and_values("/volume/").await[0].1.contains(r#""held":true"#) {
        sleep(Duration::from_millis(100)).await;
    }
    let made = *world.drives.namespaces().keys().find(|uid| !before.contains_key(uid)).expect("it is made");
    belongs(&world, made, Uuid::from_u128(7));
    sleep(Duration::from_secs(180)).await;
    let waits = operation(&world, id).await.waits;
    assert!(waits.as_ref().is_some_and(|why| why.contains("belongs to another volume")), "{waits:?}");
    assert!(world.drives.namespaces().contains_key(&made));
    belongs(&world, made, old.id);
    sleep(Duration::from_secs(60)).await;
    worker.abort();
    assert_eq!(operation(&world, id).await.state, OperationState::Failed);
    // What had the place before, in a delete.
    let world = used().await;
    let old = volume(&world, "old").await;
    let mut host = Host::new(&world).await;
    replace(&world, "old", old.holders[0].drive.as_str()).await.expect("begun");
    let worker = world.worker();
    while !world.drives.mirrors.lock().unwrap()[&old.id].behind.contains_key(&0) {
        host.ask().await.expect("it has the volume");
        sleep(Duration::from_millis(500)).await;
    }
    let new = volume(&world, "old").await.holders[0].drive.to_string();
    set(&world, &new, DriveState::Out).await;
    let host = host.live();
    while volume(&world, "old").await.operation.is_some() {
        sleep(Duration::from_secs(1)).await;
    }
    host.abort();
    worker.abort();
    world.drives.in_use.lock().unwrap().clear();
    world.drives.used.lock().unwrap().insert(old.id, Usage::Before);
    let former = uid(&old.holders[0]);
    belongs(&world, former, Uuid::from_u128(7));
    let attachment = volume(&world, "old").await.attachment.expect("attached").id;
    world.provisioner.detach(&once(), &owner(), &name("old"), Some(attachment), false).await.expect("detached");
    let id = world.provisioner.delete_volume(&once(), &owner(), &name("old"), false).await.expect("begun");
    let ended = world.end(id).await;
    assert!(ended.undo.as_ref().is_some_and(|why| why.contains("another volume")), "{ended:?}");
    assert!(world.drives.namespaces().contains_key(&former));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_says_nothing_keeps_its_holders() {
    let world = used().await;
    let old = keep(&world, "old").await;
    let host = Host::new(&world).await;
    let id = replace(&world, "old", old.holders[0].drive.as_str()).await.expect("begun");
    let ended = world.end(id).await;
    assert_eq!(ended.state, OperationState::Failed, "{ended:?}");
    assert!(ended.undo.as_ref().is_some_and(|why| why.contains("does not ask")), "{ended:?}");
    assert_eq!(volume(&world, "old").await.holders, old.holders);
    world.at_rest().await;
    // One that is gone is found out.
    host.die();
    let id = replace(&world, "old", old.holders[0].drive.as_str()).await.expect("begun");
    done(&world.end(id).await);
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_holder_that_is_lost_is_replaced_again_and_what_was_before_goes_then() {
    let world = World::new(&[100, 100, 100, 100, 100]).await;
    done(&world.create(&new_volume("old", 5, 3)).await);
    let before = keep(&world, "old").await;
    let mut host = Host::new(&world).await;
    set(&world, "d0", DriveState::Draining).await;
    let worker = world.worker();
    // Until the new one is used.
    let slot = before.holders.iter().position(|holder| holder.drive == name("d0")).expect("one on each");
    while !world.drives.mirrors.lock().unwrap()[&before.id].behind.contains_key(&slot) {
        host.ask().await.expect("it has the volume");
        sleep(Duration::from_secs(2)).await;
    }
    let lost = volume(&world, "old").await.holders[slot].drive.to_string();
    assert_ne!(lost, "d0");
    world.drives.mirrors.lock().unwrap().get_mut(&before.id).unwrap().behind.insert(slot, u32::MAX);
    set(&world, &lost, DriveState::Out).await;
    let _host = host.live();
    worker.abort();
    emptied(&world, &lost, 0).await;
    emptied(&world, "d0", 0).await;
    let there = world.drives.namespaces();
    assert!(!there.contains_key(&uid(&before.holders[slot])), "the first one is gone");
    let operations = world.provisioner.operations(None, None).await.expect("a list").items;
    let ended = |state| operations.iter().filter(|operation| operation.state == state).count();
    assert_eq!((ended(OperationState::Failed), ended(OperationState::Pending)), (1, 0), "{operations:?}");
    world.drives.state.lock().unwrap().remove(&nqn(&lost));
    world.provisioner.remove_drive(&once(), &name(&lost)).await.expect("nothing is on it");
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_former_holder_that_somebody_uses_is_not_deleted() {
    let world = used().await;
    let old = keep(&world, "old").await;
    let _host = Host::new(&world).await.live();
    world.drives.clung.lock().unwrap().insert(uid(&old.holders[0]));
    let id = replace(&world, "old", old.holders[0].drive.as_str()).await.expect("begun");
    let worker = world.worker();
    sleep(Duration::from_secs(120)).await;
    let pending = operation(&world, id).await;
    assert!(pending.waits.as_ref().is_some_and(|why| why.contains("a host uses the former holder")), "{pending:?}");
    assert!(world.drives.namespaces().contains_key(&uid(&old.holders[0])));
    world.drives.clung.lock().unwrap().clear();
    sleep(Duration::from_secs(10)).await;
    worker.abort();
    done(&operation(&world, id).await);
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_host_need_not_wait_for_a_volume_that_is_filled() {
    let world = used().await;
    let old = keep(&world, "old").await;
    let id = replace(&world, "old", old.holders[0].drive.as_str()).await.expect("begun");
    world.drives.mirrors.lock().unwrap().get_mut(&old.id).unwrap().slow = true;
    let worker = world.worker();
    while !world.drives.mirrors.lock().unwrap()[&old.id].behind.contains_key(&0) {
        sleep(Duration::from_millis(100)).await;
    }
    assert!(world.keys_and_values("/volume/").await[0].1.contains(r#""held":true"#));
    let host = Nqn::new("nqn.2026-11.io.yagura:host:b").unwrap();
    let attached = world.provisioner.attach(&once(), &owner(), &name("old"), &host, false).await;
    let attached = attached.expect("the control plane lets go of it");
    assert_eq!(attached.holders[0].drive, volume(&world, "old").await.holders[0].drive);
    assert_ne!(attached.holders[0].drive, old.holders[0].drive, "it reaches the new one");
    assert_eq!(attached.operation, Some(id));
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn the_last_room_is_promised_to_one_replacement() {
    let world = World::new(&[100, 100, 100]).await;
    for of in ["a", "b"] {
        done(&world.create(&new_volume(of, 10, 3)).await);
        keep(&world, of).await;
    }
    world.add_drive("d3", "n3", SimDrive::new(15)).await;
    let (a, b) = tokio::join!(replace(&world, "a", "d0"), replace(&world, "b", "d1"));
    let refused = a.as_ref().err().or(b.as_ref().err()).expect("there is room for one of them");
    assert!(matches!(refused, Error::NoRoom(_)), "{refused}");
    done(&world.end(a.or(b).expect("one of them")).await);
    world.at_rest().await;
    let drive = world.provisioner.drive(&name("d3")).await.expect("there").drive;
    assert_eq!(drive.promised, 10 * GIB + HEAD);
}

#[tokio::test(start_paused = true)]
async fn copies_of_snapshots_go_with_a_replica_and_the_only_one_keeps_it() {
    let world = used().await;
    let old = keep(&world, "old").await;
    let id = take(&world, "old", "s").await.expect("begun");
    done(&world.end(id).await);
    let copies = async || world.provisioner.snapshot(&owner(), &name("old"), &name("s")).await.expect("there").copies;
    assert_eq!(copies().await, [0, 1, 2]);
    for (slot, left) in [(0, vec![1, 2]), (1, vec![2])] {
        let drive = volume(&world, "old").await.holders[slot].drive.to_string();
        let id = replace(&world, "old", &drive).await.expect("begun");
        done(&world.end(id).await);
        assert_eq!(copies().await, left);
        world.at_rest().await;
    }
    let last = old.holders[2].drive.to_string();
    let refused = replace(&world, "old", &last).await.expect_err("the only copy");
    assert!(matches!(&refused, Error::InUse { kind: "snapshot", by, .. } if by.contains("only copy")), "{refused}");
    // It is lost with a drive that is.
    world.drives.mirrors.lock().unwrap().get_mut(&old.id).unwrap().behind.insert(2, u32::MAX);
    set(&world, &last, DriveState::Out).await;
    emptied(&world, &last, 0).await;
    assert_eq!(copies().await, Vec::<usize>::new());
}

#[tokio::test(start_paused = true)]
async fn a_delete_by_force_takes_the_place_of_a_replacement_at_any_moment() {
    for moment in (0..80).step_by(3) {
        let world = used().await;
        let old = volume(&world, "old").await;
        replace(&world, "old", old.holders[0].drive.as_str()).await.expect("begun");
        let worker = world.worker();
        sleep(Duration::from_millis(moment)).await;
        let id = world.provisioner.delete_volume(&once(), &owner(), &name("old"), true).await.expect("begun");
        worker.abort();
        done(&world.end(id).await);
        world.at_rest().await;
        assert!(world.volumes().await.is_empty());
    }
}

/// The copy knows the new holder as one that is to be undone, and in truth it is in use.
#[tokio::test(start_paused = true)]
async fn an_older_copy_of_the_catalogue_deletes_no_holder_that_is_needed() {
    let world = used().await;
    let old = keep(&world, "old").await;
    let first = old.holders[0].drive.to_string();
    set(&world, &first, DriveState::Draining).await;
    let worker = world.worker();
    let older = loop {
        sleep(Duration::from_millis(1)).await;
        let (_, all) = read_all(&*world.catalogue, Range::of(Prefix::new("/").unwrap())).await.expect("all");
        let is_formatted = |entry: &Entry| String::from_utf8_lossy(entry.value.as_bytes()).contains(r#""life":""#);
        if all.iter().any(is_formatted) {
            break all;
        }
    };
    worker.abort();
    emptied(&world, &first, 0).await;
    let now = volume(&world, "old").await;
    put_back(&world, &older).await;
    // It would be undone.
    set(&world, &first, DriveState::InUse).await;
    let worker = world.worker();
    sleep(Duration::from_secs(120)).await;
    worker.abort();
    assert_eq!(volume(&world, "old").await.holders, now.holders);
    world.at_rest().await;
}

/// Who is told of a holder that is replaced, and says that a stranger's operation is done, is not believed.
#[tokio::test(start_paused = true)]
async fn a_host_is_believed_about_its_own_attachment_alone() {
    let world = used().await;
    let old = keep(&world, "old").await;
    let mut former = Host::new(&world).await;
    let id = replace(&world, "old", old.holders[0].drive.as_str()).await.expect("begun");
    let worker = world.worker();
    for _ in 0..3 {
        sleep(Duration::from_secs(2)).await;
        former.ask().await.expect("it has the volume");
    }
    let mut next = Host::of(&world, "b", true).await;
    assert!(former.ask().await.is_err(), "it has the volume no more");
    for _ in 0..20 {
        sleep(Duration::from_secs(2)).await;
        next.ask().await.expect("it has the volume");
    }
    worker.abort();
    world.drives.used.lock().unwrap().insert(old.id, Usage::Before);
    let _next = next.live();
    done(&world.end(id).await);
    world.at_rest().await;
}
