//! Every operation, with each fault at each of its effects: it ends done or undone, and nothing is left or lost.

use std::sync::Arc;
use std::time::Duration;

use control::catalogue::{Change, Entry, Outcome, Prefix, Range, Transaction};
use control::provision::{OperationState, Provisioner, Request, RequestId, Usage, VolumeState, Worker, WorkerOptions};
use tokio::sync::Notify;
use tokio::time::sleep;
use uuid::Uuid;

use super::drives::{GIB, HEAD, SimDrive};
use super::faults::{Fault, Faulty};
use super::world::*;
use crate::words::read_all;

/// Effects that no operation here comes to.
const EFFECTS_MAX: u64 = 200;

/// A pool that is in use: a volume of another, and a namespace that was there before.
pub async fn used() -> World {
    let world = World::new(&[100, 100, 100]).await;
    for drive in ["e0", "e1", "e2"] {
        world.drives.add(&nqn(drive), SimDrive::new(100));
        world.drives.make_sacred(&nqn(drive), 5 * GIB + HEAD);
        let node = drive.replace('e', "n");
        world.provisioner.register_drive(&Request::unnamed(), &new_drive(drive, &node)).await.expect("registered");
    }
    done(&world.create(&new_volume("old", 5, 3)).await);
    world.at_rest().await;
    world
}

/// Runs the case with each fault at its first effect, its second, and so on, until the fault has nothing to strike.
pub async fn with_every_fault(end: OperationState, case: impl AsyncFn(&World) -> Uuid) {
    with_faults((end, 12), case, async |_| {}).await;
}

/// The same where an operation has so many effects at least; `after` looks at each world when the operation has ended.
pub async fn with_faults(
    (end, effects): (OperationState, u64),
    case: impl AsyncFn(&World) -> Uuid,
    after: impl AsyncFn(&World),
) {
    for fault in Fault::ALL {
        let mut at = 0;
        loop {
            let world = used().await;
            let id = case(&world).await;
            world.faults.arm(at, fault);
            let operation = world.end(id).await;
            world.faults.clear();
            assert_eq!(operation.state, end, "{fault:?} at effect {at}: {operation:?}");
            // What comes late is there by now, and what the operation has left to be done is done.
            let worker = world.worker();
            sleep(Duration::from_secs(60)).await;
            worker.abort();
            world.at_rest().await;
            after(&world).await;
            if world.faults.strikes() == 0 {
                break;
            }
            at += 1;
            assert!(at < EFFECTS_MAX, "{fault:?} strikes for ever");
        }
        assert!(at >= effects, "{fault:?} struck {at} times, and an operation has more effects");
    }
}

async fn begin(world: &World, replicas: u8) -> Uuid {
    let request = Request::unnamed();
    world.provisioner.create_volume(&request, &owner(), &new_volume("new", 5, replicas)).await.expect("begun")
}

#[tokio::test(start_paused = true)]
async fn a_create_ends_done() {
    with_every_fault(OperationState::Done, async |world| begin(world, 3).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_create_with_a_witness_ends_done() {
    with_every_fault(OperationState::Done, async |world| begin(world, 2).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_create_that_a_drive_refuses_ends_undone() {
    let case = async |world: &World| {
        let id = begin(world, 3).await;
        let volume = world.provisioner.volume(&owner(), &name("new")).await.expect("there at once");
        let last = volume.holders[2].nqn.to_string();
        world.drives.with(&last, |drive| drive.refuses = Some("capacity exceeded".into()));
        id
    };
    with_every_fault(OperationState::Failed, case).await;
}

#[tokio::test(start_paused = true)]
async fn a_delete_ends_done() {
    let case = async |world: &World| {
        let request = Request::unnamed();
        world.provisioner.delete_volume(&request, &owner(), &name("old"), false).await.expect("begun")
    };
    with_every_fault(OperationState::Done, case).await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_dies_or_loses_the_answer_asks_again_and_has_one_volume() {
    for fault in Fault::ALL {
        let world = used().await;
        world.faults.arm(0, fault);
        let request = Request::named(None, &RequestId::new("r1").unwrap(), b"new");
        let new = new_volume("new", 5, 3);
        let ask = async || world.provisioner.create_volume(&request, &owner(), &new).await;
        let first = tokio::time::timeout(Duration::from_secs(60), ask()).await;
        assert_eq!(first.is_err(), fault.kills(), "{fault:?}: {first:?}");
        world.faults.clear();
        let id = ask().await.expect("begun, or begun before");
        if let Ok(first) = first {
            assert_eq!(first.expect("settled by itself"), id);
        }
        assert_eq!(ask().await.expect("the same answer"), id);
        done(&world.end(id).await);
        world.at_rest().await;
        assert_eq!(world.volumes().await.len(), 2);
    }
}

/// Somebody puts the catalogue back to where the volume's namespaces were known and not formatted, and a drive is away for long.
#[tokio::test(start_paused = true)]
async fn a_catalogue_that_was_put_back_undoes_no_volume_that_hosts_have_used() {
    for missing in [false, true] {
        let world = used().await;
        let id = begin(&world, 3).await;
        let held = Arc::new(Notify::new());
        let dump = async || read_all(&*world.catalogue, Range::of(Prefix::new("/").unwrap())).await.expect("all").1;
        let mut older = Vec::new();
        *world.drives.held.lock().unwrap() = Some(held.clone());
        let worker = world.worker();
        // The last change of a drive before which so many namespaces are known: the third create, or the format.
        let known = if missing { 2 } else { 3 };
        loop {
            // Looked at before the volume is: what was read before the worker stood still may be older than that.
            let is_standing = world.drives.held.lock().unwrap().is_none();
            let volume = world.provisioner.volume(&owner(), &name("new")).await.expect("there at once");
            if volume.state == VolumeState::Ready {
                break;
            }
            if is_standing {
                if volume.holders.iter().filter(|holder| holder.namespace.is_some()).count() == known {
                    older = dump().await;
                }
                *world.drives.held.lock().unwrap() = Some(held.clone());
                held.notify_one();
            }
            sleep(Duration::from_millis(1)).await;
        }
        assert!(!older.is_empty(), "no change of a drive came where {known} namespaces were known");
        *world.drives.held.lock().unwrap() = None;
        let volume = world.provisioner.volume(&owner(), &name("new")).await.expect("there");
        done(&world.end(id).await);
        worker.abort();
        world.drives.used.lock().unwrap().insert(volume.id, Usage::Now);
        put_back(&world, &older).await;
        world.drives.with(volume.holders[1].nqn.as_str(), |drive| drive.is_away = true);
        let worker = world.worker();
        // Until the create is given up, for want of the drive, and a while longer.
        let mut looks = 0..3600;
        while world.provisioner.operation(None, id).await.expect("there").undo.is_none() {
            assert!(looks.next().is_some(), "{:?}", world.provisioner.operation(None, id).await);
            sleep(Duration::from_secs(1)).await;
        }
        sleep(Duration::from_secs(200)).await;
        world.drives.with(volume.holders[1].nqn.as_str(), |drive| drive.is_away = false);
        // The pauses between two tries grow for as long as the drive is away.
        let mut looks = 0..3600;
        loop {
            sleep(Duration::from_secs(1)).await;
            let operation = world.provisioner.operation(None, id).await.expect("there");
            let is_told = operation.waits.as_ref().is_some_and(|why| why.contains("an older copy"));
            let has_ended = operation.state == OperationState::Done;
            if (missing && is_told) || (!missing && has_ended) {
                break;
            }
            assert!(looks.next().is_some(), "{operation:?}");
        }
        sleep(Duration::from_secs(120)).await;
        worker.abort();
        let there = world.drives.namespaces();
        for holder in &volume.holders {
            let uid = holder.namespace.expect("it was ready").uid;
            assert!(there.contains_key(&uid), "a namespace of a volume in use was deleted");
        }
        if !missing {
            world.at_rest().await;
        }
    }
}

pub async fn put_back(world: &World, older: &[Entry]) {
    let (_, present) = read_all(&*world.catalogue, Range::of(Prefix::new("/").unwrap())).await.expect("all");
    let kept = |entry: &&Entry| !older.iter().any(|older| older.key == entry.key);
    let gone = present.iter().filter(kept).map(|entry| Change::delete(entry.key.clone()));
    let back = older.iter().filter(|entry| entry.lease.is_none());
    let changes = gone.chain(back.map(|entry| Change::put(entry.key.clone(), entry.value.clone()))).collect();
    let outcome = world.catalogue.commit(Transaction::new(Vec::new(), changes).expect("a transaction")).await;
    assert!(matches!(outcome, Ok(Outcome::Committed(_))), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_has_lost_its_lease_does_nothing_more() {
    let world = used().await;
    let id = begin(&world, 3).await;
    let held = Arc::new(Notify::new());
    *world.drives.held.lock().unwrap() = Some(held.clone());
    // It can't prolong its lease, and stands still before it asks the drive.
    let cut_off = Faulty { keeps: false, ..Faulty::new(&world.catalogue, &world.faults) };
    let stale = Provisioner::new(Arc::new(cut_off), world.drives.clone());
    let stale = tokio::spawn(Worker::new(&stale, WorkerOptions::default()).run());
    while world.drives.held.lock().unwrap().is_some() {
        sleep(Duration::from_millis(100)).await;
    }
    // Another one makes the volume, and only then the first one goes on.
    done(&world.end(id).await);
    held.notify_one();
    sleep(Duration::from_secs(60)).await;
    stale.abort();
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_meets_its_own_copy_gets_the_answer_of_that() {
    let world = used().await;
    let request = Request::named(None, &RequestId::new("r1").unwrap(), b"new");
    // Sent twice: the second one has seen that nobody has done it, and looks for the volume when the first one is through.
    let (late, held) = (Faulty::new(&world.catalogue, &world.faults), Arc::new(Notify::new()));
    *late.held.lock().unwrap() = Some(("/volume/", held.clone()));
    let late = Arc::new(late);
    let second = Provisioner::new(late.clone(), world.drives.clone());
    let second = tokio::spawn({
        let request = request.clone();
        async move { second.create_volume(&request, &owner(), &new_volume("new", 5, 3)).await }
    });
    while late.held.lock().unwrap().is_some() {
        sleep(Duration::from_millis(10)).await;
    }
    let first = world.provisioner.create_volume(&request, &owner(), &new_volume("new", 5, 3)).await.expect("begun");
    held.notify_one();
    assert_eq!(second.await.unwrap().expect("begun"), first);
    done(&world.end(first).await);
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_makes_meanwhile_is_left_alone_if_it_holds_anything() {
    for refuses in [false, true] {
        let world = used().await;
        let id = begin(&world, 3).await;
        let held = Arc::new(Notify::new());
        *world.drives.held.lock().unwrap() = Some(held.clone());
        let volume = world.provisioner.volume(&owner(), &name("new")).await.expect("there at once");
        let first = volume.holders[0].nqn.to_string();
        let worker = world.worker();
        while world.drives.held.lock().unwrap().is_some() {
            sleep(Duration::from_millis(10)).await;
        }
        // The operation has the drive, and knows what was there before.
        world.drives.make_sacred(&first, 5 * GIB + HEAD);
        world.drives.with(&first, |drive| drive.refuses = refuses.then(|| "capacity exceeded".into()));
        held.notify_one();
        sleep(Duration::from_secs(5)).await;
        worker.abort();
        let expected = if refuses { OperationState::Failed } else { OperationState::Done };
        assert_eq!(world.provisioner.operation(None, id).await.expect("there").state, expected);
        world.at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_create_beside_a_blank_namespace_leaves_it_alone() {
    for refuses in [false, true] {
        let world = World::new(&[]).await;
        world.drives.add(&nqn("d"), SimDrive::new(100));
        let blank = world.drives.make_sacred(&nqn("d"), 5 * GIB + HEAD);
        world.drives.with(&nqn("d"), |drive| drive.namespaces.insert(blank.nsid, (blank, None)));
        world.add_known("d", "n").await;
        let id = begin(&world, 1).await;
        world.drives.with(&nqn("d"), |drive| drive.refuses = refuses.then(|| "capacity exceeded".into()));
        let expected = if refuses { OperationState::Failed } else { OperationState::Done };
        assert_eq!(world.end(id).await.state, expected);
        world.at_rest().await;
    }
}
