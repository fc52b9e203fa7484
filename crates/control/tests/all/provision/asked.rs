//! What callers ask, and what they are refused.

use std::time::Duration;

use control::provision::{
    Address, DriveState, Error, Name, Namespace, NewVolume, Nqn, OperationState, Owner, Pool, Quota, Request,
    RequestId, Role, Rule, Usage, VOLUME_BYTES_MAX, VolumeState,
};
use tokio::time::sleep;
use uuid::Uuid;

use super::drives::{GIB, HEAD, SimDrive};
use super::world::*;

fn host(text: &str) -> Nqn {
    Nqn::new(format!("nqn.2026-11.io.yagura:host:{text}")).unwrap()
}

fn once() -> Request {
    Request::unnamed()
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_made_shown_attached_and_deleted() {
    let world = World::new(&[100, 100, 100]).await;
    let asked = &world.provisioner;
    let id = asked.create_volume(&once(), &owner(), &new_volume("v", 10, 2)).await.expect("begun");
    let volume = asked.volume(&owner(), &name("v")).await.expect("there at once");
    assert_eq!((volume.state, volume.operation), (VolumeState::Creating, Some(id)));
    // Nothing else is done to it meanwhile.
    let busy = |error: Error| assert!(matches!(error, Error::Busy { operation, .. } if operation == id), "{error}");
    busy(asked.attach(&once(), &owner(), &name("v"), &host("a"), true).await.expect_err("not ready"));
    busy(asked.delete_volume(&once(), &owner(), &name("v"), true).await.expect_err("not ready"));
    done(&world.end(id).await);
    world.at_rest().await;
    let volume = asked.attach(&once(), &owner(), &name("v"), &host("a"), false).await.expect("attached");
    assert_eq!(volume.holders.len(), 3);
    let nqns: Vec<_> = volume.holders.iter().map(|holder| holder.nqn.to_string()).collect();
    assert_eq!(nqns, ["d0", "d1", "d2"].map(nqn));
    // The same host again is let in, and what it had before is over; another one is refused, and takes it by force.
    let first = volume.attachment.expect("attached");
    assert_eq!((first.instead_of, first.tenure), (None, first.id));
    let again = asked.attach(&once(), &owner(), &name("v"), &host("a"), false).await.expect("the same");
    let again = again.attachment.expect("attached");
    assert_eq!((again.instead_of, again.tenure), (Some(host("a")), first.id), "no other host had it meanwhile");
    let refused = asked.detach(&once(), &owner(), &name("v"), Some(first.id), false).await.expect_err("another's");
    assert!(matches!(refused, Error::NotAttached { .. }), "{refused}");
    let refused = asked.attach(&once(), &owner(), &name("v"), &host("b"), false).await.expect_err("taken");
    assert!(matches!(refused, Error::Attached { .. }), "{refused}");
    let taken = asked.attach(&once(), &owner(), &name("v"), &host("b"), true).await.expect("by force");
    let taken = taken.attachment.expect("attached");
    assert_eq!((&taken.host, taken.instead_of, taken.tenure), (&host("b"), Some(host("a")), taken.id));
    let refused = asked.delete_volume(&once(), &owner(), &name("v"), false).await.expect_err("attached");
    assert!(matches!(refused, Error::Attached { .. }), "{refused}");
    asked.detach(&once(), &owner(), &name("v"), Some(taken.id), false).await.expect("detached");
    // Its place was nobody's for a while: who could tell whether another host was there?
    let later = asked.attach(&once(), &owner(), &name("v"), &host("b"), false).await.expect("attached");
    let later = later.attachment.expect("attached");
    assert_eq!(later.tenure, later.id);
    asked.detach(&once(), &owner(), &name("v"), Some(later.id), false).await.expect("detached");
    let id = asked.delete_volume(&once(), &owner(), &name("v"), false).await.expect("begun");
    done(&world.end(id).await);
    world.at_rest().await;
    assert!(world.drives.namespaces().is_empty());
    assert!(matches!(asked.volume(&owner(), &name("v")).await, Err(Error::NotFound { .. })));
}

#[tokio::test(start_paused = true)]
async fn an_attached_volume_is_deleted_by_force() {
    let world = World::new(&[100]).await;
    done(&world.create(&new_volume("v", 1, 1)).await);
    let asked = &world.provisioner;
    asked.attach(&once(), &owner(), &name("v"), &host("a"), false).await.expect("attached");
    let id = asked.delete_volume(&once(), &owner(), &name("v"), true).await.expect("begun");
    done(&world.end(id).await);
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_a_host_uses_past_the_catalogue_is_deleted_by_force_alone() {
    let world = World::new(&[100, 100, 100]).await;
    done(&world.create(&new_volume("v", 1, 3)).await);
    let asked = &world.provisioner;
    let volume = asked.volume(&owner(), &name("v")).await.expect("there");
    assert_eq!(volume.attachment, None, "nobody is meant to use it");
    world.drives.used.lock().unwrap().insert(volume.id, Usage::Now);
    let id = asked.delete_volume(&once(), &owner(), &name("v"), false).await.expect("begun");
    let operation = world.end(id).await;
    assert_eq!(operation.state, OperationState::Failed, "{operation:?}");
    assert!(operation.undo.as_ref().is_some_and(|why| why.contains("say force")), "{operation:?}");
    assert_eq!(world.drives.namespaces().len(), 3);
    world.at_rest().await;
    // While a drive is away nobody can tell.
    world.drives.with(&nqn("d1"), |drive| drive.is_away = true);
    let id = asked.delete_volume(&once(), &owner(), &name("v"), false).await.expect("begun");
    let worker = world.worker();
    sleep(Duration::from_secs(60)).await;
    worker.abort();
    assert_eq!(world.drives.namespaces().len(), 3);
    world.drives.with(&nqn("d1"), |drive| drive.is_away = false);
    assert_eq!(world.end(id).await.state, OperationState::Failed);
    // The host is gone.
    world.drives.used.lock().unwrap().insert(volume.id, Usage::Before);
    let id = asked.delete_volume(&once(), &owner(), &name("v"), false).await.expect("begun");
    done(&world.end(id).await);
    world.at_rest().await;
    done(&world.create(&new_volume("v", 1, 3)).await);
    let volume = asked.volume(&owner(), &name("v")).await.expect("there");
    world.drives.used.lock().unwrap().insert(volume.id, Usage::Now);
    let id = asked.delete_volume(&once(), &owner(), &name("v"), true).await.expect("begun");
    done(&world.end(id).await);
    world.at_rest().await;
}

/// The worker's lease is renewed many times meanwhile.
#[tokio::test(start_paused = true)]
async fn a_volume_that_takes_long_to_format_is_made() {
    let world = World::new(&[10_000]).await;
    done(&world.create(&new_volume("v", 5_000, 1)).await);
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn sizes_and_counts_that_cannot_be_are_refused() {
    let world = World::new(&[100, 100, 100]).await;
    let sizes = [(0, "4096"), (4095, "4096"), (GIB + 1, "1073745920"), (VOLUME_BYTES_MAX + 4096, "70368744177664")];
    let refused = async |new: &NewVolume, part: &str| {
        let error = world.provisioner.create_volume(&once(), &owner(), new).await.expect_err("refused");
        assert!(matches!(error, Error::Impossible(_)) && error.to_string().contains(part), "{error}");
    };
    for (bytes, part) in sizes {
        refused(&NewVolume { bytes: Some(bytes), ..new_volume("v", 1, 3) }, part).await;
    }
    for replicas in [0, 4, 255] {
        refused(&new_volume("v", 1, replicas), "1 to 3").await;
    }
    for overcommit_percent in [0, 99, 10_001] {
        let set = world.provisioner.set_pool(&once(), Pool { overcommit_percent }).await;
        assert!(matches!(set, Err(Error::Impossible(_))), "{set:?}");
    }
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_room_is_promised_once() {
    // Each drive has room for four.
    let world = World::new(&[42, 42, 42]).await;
    let mut asked = tokio::task::JoinSet::new();
    for index in 0..12 {
        // Nothing but the drives is common to them.
        let owner = Owner { name: name(&format!("t{index}")), id: None };
        world.provisioner.put_tenant(&once(), &owner.name, &Quota::default()).await.expect("made");
        let provisioner = world.provisioner.clone();
        asked.spawn(
            async move { provisioner.create_volume(&Request::unnamed(), &owner, &new_volume("v", 10, 3)).await },
        );
    }
    let (mut begun, mut refused) = (Vec::new(), 0);
    for answer in asked.join_all().await {
        match answer {
            Ok(id) => begun.push(id),
            Err(Error::NoRoom(refusal)) => {
                assert!(refusal.drives.iter().all(|(_, rule)| matches!(rule, Rule::Promised { .. })), "{refusal}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((begun.len(), refused), (4, 8));
    for id in begun {
        done(&world.end(id).await);
    }
    world.at_rest().await;
    for drive in world.provisioner.drives(None).await.expect("a list").items {
        assert_eq!(drive.promised, 4 * (10 * GIB + HEAD));
    }
}

#[tokio::test(start_paused = true)]
async fn quotas_hold_for_those_who_create_at_once() {
    let world = World::new(&[1000]).await;
    let quota = Quota { quota_bytes: Some(30 * GIB), quota_volumes: Some(100) };
    world.provisioner.put_tenant(&once(), &name(TENANT), &quota).await.expect("changed");
    let mut asked = tokio::task::JoinSet::new();
    for index in 0..6 {
        let provisioner = world.provisioner.clone();
        asked.spawn(async move {
            let new = new_volume(&format!("v{index}"), 10, 1);
            provisioner.create_volume(&Request::unnamed(), &owner(), &new).await
        });
    }
    let answers = asked.join_all().await;
    let is_over = |answer: &&Result<Uuid, Error>| matches!(answer, Err(Error::Quota { unit: "bytes", limit, wanted, .. }) if *limit == 30 * GIB && *wanted == 40 * GIB);
    assert_eq!(answers.iter().filter(is_over).count(), 3, "{answers:?}");
    for id in answers.into_iter().flatten() {
        done(&world.end(id).await);
    }
    world.at_rest().await;
    let quota = Quota { quota_bytes: None, quota_volumes: Some(3) };
    world.provisioner.put_tenant(&once(), &name(TENANT), &quota).await.expect("changed");
    let over = world.provisioner.create_volume(&once(), &owner(), &new_volume("w", 1, 1)).await;
    assert!(matches!(over, Err(Error::Quota { unit: "volumes", limit: 3, wanted: 4, .. })), "{over:?}");
}

#[tokio::test(start_paused = true)]
async fn quotas_hold_for_volumes_on_different_drives() {
    let world = World::new(&[100, 50]).await;
    done(&world.create(&new_volume("v", 40, 1)).await);
    let quota = Quota { quota_bytes: Some(100 * GIB), quota_volumes: None };
    world.provisioner.put_tenant(&once(), &name(TENANT), &quota).await.expect("changed");
    // The large one has room on the first drive alone, the small one goes to the second.
    let create = async |volume: &str, gib: u64| {
        world.provisioner.create_volume(&once(), &owner(), &new_volume(volume, gib, 1)).await
    };
    let (large, small) = tokio::join!(create("large", 55), create("small", 10));
    assert!(large.is_ok() != small.is_ok(), "{large:?} {small:?}");
    let id = large.or(small).expect("one of them");
    done(&world.end(id).await);
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_id_is_one_request() {
    let world = World::new(&[100]).await;
    let id = RequestId::new("r1").unwrap();
    let first = Request::named(None, &id, b"create v");
    let begun = world.provisioner.create_volume(&first, &owner(), &new_volume("v", 1, 1)).await.expect("begun");
    let again = world.provisioner.create_volume(&first, &owner(), &new_volume("v", 1, 1)).await.expect("the same");
    assert_eq!(begun, again);
    let other = Request::named(None, &id, b"create w");
    let refused = world.provisioner.create_volume(&other, &owner(), &new_volume("w", 1, 1)).await;
    assert!(matches!(refused, Err(Error::RequestReused { .. })), "{refused:?}");
    // Another caller's ids are another's.
    let tenants = Request::named(Some(Uuid::new_v4()), &id, b"create w");
    let second = world.provisioner.create_volume(&tenants, &owner(), &new_volume("w", 1, 1)).await.expect("begun");
    assert_ne!(second, begun);
    done(&world.end(begun).await);
    done(&world.end(second).await);
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn tenants_are_apart_and_a_later_one_of_the_same_name_is_another() {
    let world = World::new(&[100]).await;
    let asked = &world.provisioner;
    let other = name("other");
    let tenant = asked.put_tenant(&once(), &other, &Quota::default()).await.expect("made");
    let (_, token) = asked.issue_token(Some(&other)).await.expect("issued");
    let token = String::from_utf8(token.expose().to_vec()).unwrap();
    let role = asked.caller(&token).await.expect("known");
    assert_eq!(role, Role::Tenant { name: other.clone(), id: tenant.id });
    let others = Owner { name: other.clone(), id: Some(tenant.id) };
    let id = asked.create_volume(&once(), &owner(), &new_volume("v", 1, 1)).await.expect("begun");
    assert!(matches!(asked.volume(&others, &name("v")).await, Err(Error::NotFound { .. })));
    assert!(matches!(asked.operation(Some(tenant.id), id).await, Err(Error::NotFound { .. })));
    assert!(asked.volumes(&others, None).await.expect("a list").items.is_empty());
    asked.remove_tenant(&once(), &other).await.expect("it has nothing");
    assert!(matches!(asked.caller(&token).await, Err(Error::Unauthenticated)));
    asked.put_tenant(&once(), &other, &Quota::default()).await.expect("made anew");
    assert!(matches!(asked.caller(&token).await, Err(Error::Unauthenticated)));
    assert!(matches!(asked.volumes(&others, None).await, Err(Error::Unauthenticated)));
    done(&world.end(id).await);
    // With a volume a tenant stays.
    let refused = asked.remove_tenant(&once(), &name(TENANT)).await;
    assert!(matches!(refused, Err(Error::InUse { kind: "tenant", .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn tokens_let_in_until_they_are_revoked_and_no_other_secret_does() {
    let world = World::new(&[]).await;
    let asked = &world.provisioner;
    let (known, secret) = asked.issue_token(None).await.expect("issued");
    let token = String::from_utf8(secret.expose().to_vec()).unwrap();
    assert_eq!(asked.caller(&token).await.expect("known"), Role::Operator);
    let mut wrong = token.clone();
    let last = if wrong.pop() == Some('0') { '1' } else { '0' };
    wrong.push(last);
    let cut = &token[..token.len() - 1];
    for wrong in [wrong.as_str(), cut, "", "yagura", "yagura_", "yagura__", "yagura_x_y"] {
        assert!(matches!(asked.caller(wrong).await, Err(Error::Unauthenticated)), "{wrong}");
    }
    // The catalogue does not have it.
    let secret = token.rsplit('_').next().unwrap();
    for prefix in ["/token/", "/request/"] {
        let range = control::catalogue::Range::of(control::catalogue::Prefix::new(prefix).unwrap());
        let page = world.catalogue.range(range).await.expect("a page");
        assert!(!page.entries.is_empty());
        let has = |entry: &control::catalogue::Entry| String::from_utf8_lossy(entry.value.as_bytes()).contains(secret);
        assert!(!page.entries.iter().any(has));
    }
    asked.revoke_token(&once(), known.id).await.expect("revoked");
    assert!(matches!(asked.caller(&token).await, Err(Error::Unauthenticated)));
}

#[tokio::test(start_paused = true)]
async fn a_drive_in_use_is_registered_only_if_its_namespaces_are_kept() {
    let world = World::new(&[100]).await;
    let asked = &world.provisioner;
    world.drives.add(&nqn("x"), SimDrive::new(100));
    let foreign = world.drives.make_sacred(&nqn("x"), 7 * GIB);
    let mut new = new_drive("x", "n0");
    new.keep_foreign = false;
    let refused = asked.register_drive(&once(), &new).await;
    assert!(matches!(refused, Err(Error::HasNamespaces { namespaces: 1, .. })), "{refused:?}");
    new.keep_foreign = true;
    assert_eq!(asked.register_drive(&once(), &new).await.expect("registered").foreign, [foreign]);
    // A subsystem is one drive, and a name is one drive.
    new.name = name("y");
    assert!(matches!(asked.register_drive(&once(), &new).await, Err(Error::Registered { .. })));
    assert!(matches!(asked.register_drive(&once(), &new_drive("d0", "n0")).await, Err(Error::Exists { .. })));
    let nowhere = asked.register_drive(&once(), &new_drive("z", "nowhere")).await;
    assert!(matches!(nowhere, Err(Error::NotFound { kind: "node", .. })), "{nowhere:?}");
    let away = asked.register_drive(&once(), &new_drive("z", "n0")).await;
    assert!(matches!(away, Err(Error::Drive { .. })), "{away:?}");
    // What somebody makes there later is shown, and left alone.
    let later = world.drives.make_sacred(&nqn("x"), GIB + HEAD);
    let status = asked.drive(&name("x")).await.expect("there");
    assert_eq!(status.unrecorded, [later]);
    for index in 0..4 {
        done(&world.create(&new_volume(&format!("v{index}"), 1, 1)).await);
    }
    for index in 0..4 {
        let id = asked.delete_volume(&once(), &owner(), &name(&format!("v{index}")), false).await.expect("begun");
        done(&world.end(id).await);
    }
    world.at_rest().await;
    let refused = asked.remove_node(&once(), &name("n0")).await;
    assert!(matches!(refused, Err(Error::InUse { kind: "node", .. })), "{refused:?}");
    for drive in ["x", "d0"] {
        asked.remove_drive(&once(), &name(drive)).await.expect("it has no holders");
    }
    asked.remove_node(&once(), &name("n0")).await.expect("it has no drives");
}

#[tokio::test(start_paused = true)]
async fn a_create_waits_for_a_drive_that_is_away_and_says_so() {
    let world = World::new(&[100]).await;
    let id = world.provisioner.create_volume(&once(), &owner(), &new_volume("v", 1, 1)).await.expect("begun");
    world.drives.with(&nqn("d0"), |drive| drive.is_away = true);
    let worker = world.worker();
    sleep(Duration::from_secs(20)).await;
    let operation = world.provisioner.operation(None, id).await.expect("there");
    assert_eq!(operation.state, OperationState::Pending);
    assert_eq!(operation.waits.as_deref(), Some("drive d0: it can't be reached (it is away)"));
    world.drives.with(&nqn("d0"), |drive| drive.is_away = false);
    sleep(Duration::from_secs(5)).await;
    worker.abort();
    done(&world.provisioner.operation(None, id).await.expect("there"));
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_drive_says_for_whom_and_not_for_ever() {
    let world = World::new(&[100]).await;
    done(&world.create(&new_volume("old", 1, 1)).await);
    let asked = &world.provisioner;
    world.drives.with(&nqn("d0"), |drive| drive.is_away = true);
    let first = asked.delete_volume(&once(), &owner(), &name("old"), true).await.expect("begun");
    let worker = world.worker();
    sleep(Duration::from_secs(5)).await;
    world.drives.with(&nqn("d0"), |drive| drive.is_away = false);
    let id = asked.create_volume(&once(), &owner(), &new_volume("v", 1, 1)).await.expect("begun");
    world.drives.with(&nqn("d0"), |drive| drive.is_away = true);
    sleep(Duration::from_secs(30)).await;
    let operation = asked.operation(None, id).await.expect("there");
    assert_eq!(operation.waits, Some(format!("drive d0 is taken by operation {first}")));
    assert_eq!(operation.at, None, "it does not have the drive");
    sleep(Duration::from_secs(60)).await;
    let operation = asked.operation(None, id).await.expect("there");
    assert_eq!(operation.state, OperationState::Failed, "{operation:?}");
    world.drives.with(&nqn("d0"), |drive| drive.is_away = false);
    worker.abort();
    done(&world.end(first).await);
    world.at_rest().await;
}

/// Its operations would have the drive for ever.
#[tokio::test(start_paused = true)]
async fn a_create_that_cannot_judge_what_it_made_lets_go_of_the_drive() {
    let world = World::new(&[100]).await;
    world.drives.with(&nqn("d0"), |drive| drive.is_dark = true);
    let operation = world.create(&new_volume("v", 1, 1)).await;
    assert_eq!(operation.state, OperationState::Failed, "{operation:?}");
    assert!(operation.undo.as_ref().is_some_and(|why| why.contains("may be left there")), "{operation:?}");
    let left: Vec<Uuid> = world.drives.namespaces().keys().copied().collect();
    assert_eq!(left.len(), 1);
    let status = world.provisioner.drive(&name("d0")).await.expect("shown");
    assert_eq!(status.unrecorded.iter().map(|namespace| namespace.uid).collect::<Vec<_>>(), left);
    world.drives.sacred.lock().unwrap().extend(left);
    world.drives.with(&nqn("d0"), |drive| drive.is_dark = false);
    done(&world.create(&new_volume("v", 1, 1)).await);
    world.at_rest().await;
}

/// A drive gave it another number, or says another size: it was looked for and asked for without a pause, for ever.
#[tokio::test(start_paused = true)]
async fn a_namespace_is_deleted_by_its_identifier_as_it_is_now() {
    let world = World::new(&[100]).await;
    done(&world.create(&new_volume("v", 1, 1)).await);
    world.drives.with(&nqn("d0"), |drive| {
        let (made, label) = drive.namespaces.remove(&1).expect("it was made");
        let moved = Namespace { nsid: 7, bytes: made.bytes + 4096, ..made };
        drive.namespaces.insert(7, (moved, label));
    });
    let id = world.provisioner.delete_volume(&once(), &owner(), &name("v"), true).await.expect("begun");
    done(&world.end(id).await);
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_delete_waits_for_a_drive_until_that_is_out() {
    let world = World::new(&[100, 100, 100]).await;
    done(&world.create(&new_volume("v", 1, 3)).await);
    world.drives.with(&nqn("d1"), |drive| drive.is_away = true);
    let asked = &world.provisioner;
    let id = asked.delete_volume(&once(), &owner(), &name("v"), false).await.expect("begun");
    let worker = world.worker();
    sleep(Duration::from_secs(300)).await;
    let operation = asked.operation(None, id).await.expect("there");
    assert_eq!((operation.state, operation.waits.is_some()), (OperationState::Pending, true), "{operation:?}");
    let refused = asked.remove_drive(&once(), &name("d1")).await;
    assert!(matches!(refused, Err(Error::InUse { kind: "drive", .. })), "{refused:?}");
    asked.set_drive_state(&once(), &name("d1"), DriveState::Out).await.expect("out");
    sleep(Duration::from_secs(10)).await;
    worker.abort();
    done(&asked.operation(None, id).await.expect("there"));
    asked.remove_drive(&once(), &name("d1")).await.expect("it has no holders any more");
    world.drives.state.lock().unwrap().remove(&nqn("d1"));
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_drive_that_moved_is_found_at_its_new_address_and_another_one_is_not_taken_for_it() {
    let world = World::new(&[100]).await;
    done(&world.create(&new_volume("v", 1, 1)).await);
    let asked = &world.provisioner;
    let moved = Address::new("127.0.0.1:4421").unwrap();
    let drive = asked.move_drive(&once(), &name("d0"), &moved).await.expect("it is there");
    assert_eq!(drive.address, moved);
    let volume = asked.volume(&owner(), &name("v")).await.expect("there");
    assert_eq!(volume.holders[0].address, moved, "who attaches is told");
    // A subsystem of that name, without what the volume has.
    let before = world.drives.with(&nqn("d0"), |drive| std::mem::replace(drive, SimDrive::new(100)));
    let elsewhere = Address::new("127.0.0.1:4422").unwrap();
    let refused = asked.move_drive(&once(), &name("d0"), &elsewhere).await.expect_err("another drive");
    assert!(matches!(&refused, Error::Impossible(why) if why.contains("volume v of tenant acme")), "{refused}");
    world.drives.with(&nqn("d0"), |drive| drive.is_away = true);
    let refused = asked.move_drive(&once(), &name("d0"), &elsewhere).await.expect_err("nothing is there");
    assert!(matches!(refused, Error::Drive { .. }), "{refused}");
    world.drives.with(&nqn("d0"), |drive| *drive = before);
    assert_eq!(asked.drive(&name("d0")).await.expect("there").drive.address, moved);
    done(&world.create(&new_volume("w", 1, 1)).await);
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn names_are_those_of_one_tenant_and_taken_once() {
    let world = World::new(&[100]).await;
    done(&world.create(&new_volume("v", 1, 1)).await);
    let again = world.provisioner.create_volume(&once(), &owner(), &new_volume("v", 1, 1)).await;
    assert!(matches!(again, Err(Error::Exists { kind: "volume", .. })), "{again:?}");
    let nobody = Owner { name: Name::new("nobody").unwrap(), id: None };
    let none = world.provisioner.create_volume(&once(), &nobody, &new_volume("v", 1, 1)).await;
    assert!(matches!(none, Err(Error::NotFound { kind: "tenant", .. })), "{none:?}");
}

#[tokio::test(start_paused = true)]
async fn old_requests_are_forgotten_and_those_that_were_named_are_apart() {
    let world = World::new(&[]).await;
    let named = Request::named(None, &RequestId::new("r1").unwrap(), b"");
    let pool = Pool { overcommit_percent: 200 };
    world.provisioner.set_pool(&named, pool.clone()).await.expect("set");
    for _ in 0..1010 {
        world.provisioner.set_pool(&once(), pool.clone()).await.expect("set");
    }
    assert!(world.keys("/request/").await.len() > 1011);
    let worker = world.worker();
    sleep(Duration::from_secs(61)).await;
    worker.abort();
    assert_eq!(world.keys("/request/-/").await.len(), 1000);
    let other = world.provisioner.set_pool(&Request::named(None, &RequestId::new("r1").unwrap(), b"x"), pool).await;
    assert!(matches!(other, Err(Error::RequestReused { .. })), "{other:?}");
}
