//! Volumes that are put back to snapshots in place: with each fault at each effect, and what is refused.

use std::time::Duration;

use control::catalogue::{Prefix, Range};
use control::provision::{
    DriveState, Error, NewVolume, Nqn, OperationState, Reason, Request, RequestId, Source, Usage, VolumeState,
    VolumeView, restored,
};
use tokio::time::sleep;
use uuid::Uuid;

use super::changes::take;
use super::crash::{put_back, used, with_faults};
use super::drives::GIB;
use super::hosts::Host;
use super::mirror::Mirror;
use super::replacing::{once, volume};
use super::world::*;
use crate::words::read_all;

async fn restore(world: &World, of: &str, snapshot: &str) -> Result<Uuid, Error> {
    world.provisioner.restore_volume(&once(), &owner(), &name(of), &name(snapshot)).await
}

/// A volume with two snapshots, that was written before each of them and after both.
async fn written(world: &World) -> VolumeView {
    let id = volume(world, "old").await.id;
    let write = |what| world.drives.mirrors.lock().unwrap().get_mut(&id).unwrap().written = what;
    for (what, snapshot) in [(1, "s"), (2, "t")] {
        write(what);
        let id = take(world, "old", snapshot).await.expect("begun");
        done(&world.end(id).await);
    }
    write(3);
    volume(world, "old").await
}

fn mirror(world: &World, of: &VolumeView) -> Mirror {
    world.drives.mirrors.lock().unwrap()[&of.id].clone()
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_put_back_to_an_older_snapshot_and_keeps_all_of_them() {
    let case = async |world: &World| {
        written(world).await;
        restore(world, "old", "s").await.expect("begun")
    };
    let after = async |world: &World| {
        let old = volume(world, "old").await;
        let mirror = mirror(world, &old);
        assert_eq!((&old.snapshots[..], mirror.moments.len()), (&[name("s"), name("t")][..], 2));
        assert_eq!((mirror.written, mirror.back), (1, None), "the volume is as the snapshot");
    };
    // Three parts, each of them written down.
    with_faults((OperationState::Done, 12), case, after).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_a_host_has_is_not_put_back() {
    let world = used().await;
    let old = written(&world).await;
    let host = Host::new(&world).await;
    let refused = restore(&world, "old", "s").await.expect_err("a host has it");
    assert!(matches!(&refused, Error::AttachedStill { .. }), "{refused}");
    assert!(refused.to_string().contains("`yagura control detach old`"), "{refused}");
    // The catalogue knows of none, and the host has it still.
    world.provisioner.detach(&once(), &owner(), &name("old"), None, true).await.expect("by force");
    let id = restore(&world, "old", "s").await.expect("begun");
    let ended = world.end(id).await;
    assert_eq!(ended.state, OperationState::Failed, "{ended:?}");
    assert!(ended.undo.as_ref().is_some_and(|why| why.contains("detach it there")), "{ended:?}");
    assert_eq!(mirror(&world, &old).written, 3);
    world.at_rest().await;
    host.die();
    let id = restore(&world, "old", "s").await.expect("begun");
    done(&world.end(id).await);
    assert_eq!(mirror(&world, &old).written, 1);
    world.at_rest().await;
}

/// Two drives are away when a part is done, and a host wants the volume: it would get a part.
#[tokio::test(start_paused = true)]
async fn what_has_begun_goes_on_until_it_is_done_and_no_host_gets_the_volume_before() {
    let world = used().await;
    let old = written(&world).await;
    let id = restore(&world, "old", "s").await.expect("begun");
    let host = Nqn::new("nqn.2026-11.io.yagura:host:b").unwrap();
    let refused = async || {
        let attached = world.provisioner.attach(&once(), &owner(), &name("old"), &host, true).await;
        assert!(matches!(attached, Err(Error::Busy { state: VolumeState::Restoring, .. })), "{attached:?}");
    };
    refused().await;
    let worker = world.worker();
    while mirror(&world, &old).back.is_none() {
        sleep(Duration::from_millis(1)).await;
    }
    let away = |is_away| {
        for holder in &old.holders[..2] {
            world.drives.with(holder.nqn.as_str(), |drive| drive.is_away = is_away);
        }
    };
    away(true);
    sleep(Duration::from_secs(300)).await;
    let pending = world.provisioner.operation(None, id).await.expect("there");
    assert!(pending.ended.is_none() && pending.waits.is_some(), "{pending:?}");
    refused().await;
    away(false);
    worker.abort();
    done(&world.end(id).await);
    assert_eq!(mirror(&world, &old).written, 1);
    world.at_rest().await;
    world.provisioner.attach(&once(), &owner(), &name("old"), &host, false).await.expect("it is whole");
}

/// A volume that is put back in part to a snapshot of which one drive has the only copy.
async fn half_back() -> (World, VolumeView, Uuid) {
    // No other drive could take the place of one that is lost.
    let world = World::new(&[100, 100, 100]).await;
    done(&world.create(&new_volume("old", 5, 3)).await);
    let old = volume(&world, "old").await;
    world.drives.mirrors.lock().unwrap().get_mut(&old.id).unwrap().takes = Some(0b001);
    let old = written(&world).await;
    let id = restore(&world, "old", "s").await.expect("begun");
    let worker = world.worker();
    while mirror(&world, &old).back.is_none() {
        sleep(Duration::from_millis(1)).await;
    }
    worker.abort();
    (world, old, id)
}

async fn set(world: &World, drive: &str, state: DriveState) {
    world.provisioner.set_drive_state(&once(), &name(drive), state).await.expect("there");
}

/// It waited for ever, and nothing but a delete by force ended that.
#[tokio::test(start_paused = true)]
async fn a_restore_whose_snapshot_loses_its_last_copy_ends_and_the_volume_says_that_it_is_a_part() {
    let (world, old, id) = half_back().await;
    set(&world, old.holders[0].drive.as_str(), DriveState::Out).await;
    let ended = world.end(id).await;
    assert_eq!((ended.state, ended.reason), (OperationState::Failed, Some(Reason::SnapshotLost)), "{ended:?}");
    assert!(ended.undo.as_ref().is_some_and(|why| why.contains("no copy of snapshot s is left")), "{ended:?}");
    let now = volume(&world, "old").await;
    assert_eq!((now.state, now.part), (VolumeState::Ready, Some(name("s"))));
    // No host gets it by mistake, nothing is made of it, and by force what is there can be saved.
    let host = Nqn::new("nqn.2026-11.io.yagura:host:b").unwrap();
    let attach = async |force| world.provisioner.attach(&once(), &owner(), &name("old"), &host, force).await;
    let refused = attach(false).await;
    assert!(matches!(&refused, Err(Error::Part { snapshot, .. }) if *snapshot == name("s")), "{refused:?}");
    assert!(matches!(take(&world, "old", "u").await, Err(Error::Part { .. })));
    let from = Source { volume: name("old"), snapshot: None };
    let clone = NewVolume { from: Some(from), replicas: None, ..new_volume("new", 5, 3) };
    let refused = world.provisioner.create_volume(&once(), &owner(), &clone).await;
    assert!(matches!(refused, Err(Error::Part { .. })), "{refused:?}");
    attach(true).await.expect("by force");
    world.provisioner.detach(&once(), &owner(), &name("old"), None, true).await.expect("by force");
    // To the same one it ends the same, and to one that there is it becomes whole.
    let id = restore(&world, "old", "s").await.expect("begun");
    assert_eq!(world.end(id).await.reason, Some(Reason::SnapshotLost));
    world.drives.mirrors.lock().unwrap().get_mut(&old.id).unwrap().moments[1].slots = 0b110;
    let id = restore(&world, "old", "t").await.expect("begun");
    done(&world.end(id).await);
    assert_eq!((mirror(&world, &old).written, volume(&world, "old").await.part), (2, None));
    attach(false).await.expect("it is whole");
}

/// Away is not gone.
#[tokio::test(start_paused = true)]
async fn a_restore_waits_for_a_drive_that_is_away_with_the_only_copy() {
    let (world, old, id) = half_back().await;
    let away = |is_away| world.drives.with(old.holders[0].nqn.as_str(), |drive| drive.is_away = is_away);
    away(true);
    let worker = world.worker();
    sleep(Duration::from_secs(600)).await;
    let pending = world.provisioner.operation(None, id).await.expect("there");
    assert!(pending.ended.is_none() && pending.waits.is_some(), "{pending:?}");
    away(false);
    worker.abort();
    done(&world.end(id).await);
    assert_eq!((mirror(&world, &old).written, volume(&world, "old").await.part), (1, None));
    world.at_rest().await;
}

/// Full drives stopped it half way, and nobody was told what it waited for.
#[tokio::test(start_paused = true)]
async fn a_restore_for_which_drives_have_no_room_is_refused_and_one_that_finds_none_waits_for_it() {
    let world = used().await;
    let old = written(&world).await;
    let (drive, nqn) = (old.holders[1].drive.clone(), old.holders[1].nqn.to_string());
    let total = world.drives.with(&nqn, |drive| drive.total);
    world.drives.with(&nqn, |drive| drive.total -= drive.free() - GIB);
    let id = restore(&world, "old", "s").await.expect("begun");
    let ended = world.end(id).await;
    assert_eq!((ended.state, ended.reason), (OperationState::Failed, Some(Reason::NoRoom)), "{ended:?}");
    let said = format!("drive {drive} has {GIB} bytes free, and {} may be needed: {} more", 5 * GIB, 4 * GIB);
    assert!(ended.undo.as_ref().is_some_and(|why| why.contains(&said)), "{ended:?}");
    assert_eq!((mirror(&world, &old).written, mirror(&world, &old).back), (3, None), "nothing was changed");
    world.at_rest().await;
    world.drives.with(&nqn, |drive| drive.total = total);
    // Somebody else takes the room meanwhile.
    let fill = |is_full| world.drives.mirrors.lock().unwrap().get_mut(&old.id).unwrap().is_full = is_full;
    fill(true);
    let id = restore(&world, "old", "s").await.expect("begun");
    let worker = world.worker();
    sleep(Duration::from_secs(300)).await;
    let pending = world.provisioner.operation(None, id).await.expect("there");
    let says = |part: &str| pending.waits.as_ref().is_some_and(|waits| waits.contains(part));
    assert!(pending.ended.is_none() && says("no room is left") && says(&format!("drive {drive}: ")), "{pending:?}");
    fill(false);
    worker.abort();
    done(&world.end(id).await);
    assert_eq!(mirror(&world, &old).written, 1);
    world.at_rest().await;
}

/// It was done again, and what hosts had written since was gone.
#[tokio::test(start_paused = true)]
async fn a_restore_of_an_older_catalogue_is_not_gone_on_with() {
    let world = used().await;
    let old = written(&world).await;
    let id = restore(&world, "old", "s").await.expect("begun");
    let worker = world.worker();
    while mirror(&world, &old).back.is_none() {
        sleep(Duration::from_millis(1)).await;
    }
    let (_, mut older) = read_all(&*world.catalogue, Range::of(Prefix::new("/").unwrap())).await.expect("all");
    worker.abort();
    done(&world.end(id).await);
    world.drives.mirrors.lock().unwrap().get_mut(&old.id).unwrap().written = 4;
    for entry in &mut older {
        entry.value = restored(&entry.key, entry.value.clone());
    }
    put_back(&world, &older).await;
    let ended = world.end(id).await;
    assert_eq!(ended.state, OperationState::Failed, "{ended:?}");
    assert!(ended.undo.as_ref().is_some_and(|why| why.contains("ask again")), "{ended:?}");
    assert_eq!(mirror(&world, &old).written, 4);
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_delete_by_force_takes_the_place_of_a_restore_at_any_moment() {
    for moment in (0..200).step_by(7) {
        let world = used().await;
        written(&world).await;
        restore(&world, "old", "t").await.expect("begun");
        let worker = world.worker();
        sleep(Duration::from_millis(moment)).await;
        let deleted = world.provisioner.delete_volume(&once(), &owner(), &name("old"), false).await;
        assert!(matches!(deleted, Err(Error::Busy { .. } | Error::InUse { .. })), "{deleted:?}");
        let id = world.provisioner.delete_volume(&once(), &owner(), &name("old"), true).await.expect("begun");
        worker.abort();
        done(&world.end(id).await);
        world.at_rest().await;
        assert!(world.volumes().await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_put_back_is_refused_and_changes_nothing() {
    let world = used().await;
    let old = written(&world).await;
    assert!(matches!(restore(&world, "none", "s").await, Err(Error::NotFound { kind: "volume", .. })));
    assert!(matches!(restore(&world, "old", "none").await, Err(Error::NotFound { kind: "snapshot", .. })));
    // Asked twice by its name it is done once.
    let request = Request::named(None, &RequestId::new("r1").unwrap(), b"s");
    let ask = async || world.provisioner.restore_volume(&request, &owner(), &name("old"), &name("s")).await;
    let id = ask().await.expect("begun");
    assert!(matches!(restore(&world, "old", "s").await, Err(Error::Busy { .. })));
    done(&world.end(id).await);
    assert_eq!(ask().await.expect("the same answer"), id);
    // Those that had copies of it are gone.
    world.drives.mirrors.lock().unwrap().get_mut(&old.id).unwrap().moments.retain(|moment| moment.attempt != 0);
    let id = take(&world, "old", "u").await.expect("begun");
    done(&world.end(id).await);
    let refused = restore(&world, "old", "s").await.expect_err("nobody has it");
    assert!(matches!(&refused, Error::Impossible(why) if why.contains("no copy")), "{refused}");
    assert_eq!(volume(&world, "old").await.state, VolumeState::Ready);
}

/// Nobody has ever had it attached, by its holders.
#[tokio::test(start_paused = true)]
async fn a_volume_of_a_host_that_is_gone_without_a_word_is_put_back_when_that_is_said() {
    let world = used().await;
    let old = written(&world).await;
    Host::new(&world).await.die();
    assert!(matches!(restore(&world, "old", "t").await, Err(Error::AttachedStill { .. })));
    world.provisioner.detach(&once(), &owner(), &name("old"), None, true).await.expect("by force");
    assert_eq!(world.drives.used.lock().unwrap()[&old.id], Usage::Before);
    let id = restore(&world, "old", "t").await.expect("begun");
    done(&world.end(id).await);
    assert_eq!(mirror(&world, &old).written, 2);
    world.at_rest().await;
}
