//! Volumes that are put back to snapshots in place: with each fault at each effect, and what is refused.

use std::time::Duration;

use control::catalogue::{Prefix, Range};
use control::provision::{Error, Nqn, OperationState, Request, RequestId, Usage, VolumeState, VolumeView, restored};
use tokio::time::sleep;
use uuid::Uuid;

use super::changes::take;
use super::crash::{put_back, used, with_faults};
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
