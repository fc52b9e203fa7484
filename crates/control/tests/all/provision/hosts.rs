//! Volumes that a host has attached: what is wanted of the host, and hosts that are gone or say nothing.

use std::sync::{Arc, Weak};
use std::time::Duration;

use control::catalogue::{Dump, Restore};
use control::provision::{
    Assigned, Attachment, Ended, Error, Limits, NewSnapshot, Noted, Nqn, OperationState, Outcome, Progress,
    Provisioner, Report, Request, Usage, Work, Working, restored,
};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use uuid::Uuid;

use super::changes::take;
use super::crash::{used, with_faults};
use super::drives::{GIB, HEAD, SimDrives};
use super::world::*;

fn once() -> Request {
    Request::unnamed()
}

async fn attach(world: &World, host: &str, force: bool) -> Attachment {
    let host = Nqn::new(format!("nqn.2026-11.io.yagura:host:{host}")).unwrap();
    let volume = world.provisioner.attach(&once(), &owner(), &name("old"), &host, force).await.expect("attached");
    volume.attachment.expect("attached")
}

/// A host that has the volume `old`, and does what is wanted; it has a way of its own to the control plane.
pub struct Host {
    provisioner: Provisioner,
    drives: Arc<SimDrives>,
    volume: Uuid,
    attachment: Uuid,
    ended: Option<Ended>,
    working: Option<Working>,
    world: Weak<()>,
}

impl Host {
    pub async fn new(world: &World) -> Host {
        Host::of(world, "a", false).await
    }

    /// One of that name, by force in the place of another.
    pub async fn of(world: &World, host: &str, force: bool) -> Host {
        let attachment = attach(world, host, force).await.id;
        let volume = world.provisioner.volume(&owner(), &name("old")).await.expect("there").id;
        world.drives.in_use.lock().unwrap().insert(volume);
        world.drives.used.lock().unwrap().insert(volume, Usage::Now);
        let provisioner = Provisioner::new(world.catalogue.clone(), world.drives.clone());
        let (drives, world) = (world.drives.clone(), Arc::downgrade(&world.here));
        Host { provisioner, drives, volume, attachment, ended: None, working: None, world }
    }

    pub async fn ask(&mut self) -> Result<Option<Noted>, Error> {
        let snapshots = self.drives.mirrors.lock().unwrap()[&self.volume].moments.clone();
        let report = Report { snapshots, ended: self.ended.clone(), working: self.working.take() };
        let wish = self.provisioner.ask(&owner(), &name("old"), self.attachment, &report).await?;
        if wish.noted != Noted::Open {
            let ended = self.ended.take();
            if let (Noted::Unwanted, Some(Outcome::Done(done))) = (wish.noted, ended.map(|ended| ended.outcome)) {
                let mut mirrors = self.drives.mirrors.lock().unwrap();
                let mirror = mirrors.get_mut(&self.volume).expect("there");
                mirror.work(&Work::Forget { moment: done.taken.expect("a snapshot") });
            }
            return Ok(Some(wish.noted));
        }
        if let Some(Assigned { operation, work: work @ Work::Replace(_) }) = &wish.work {
            let mut mirrors = self.drives.mirrors.lock().unwrap();
            let mirror = mirrors.get_mut(&self.volume).expect("there");
            mirror.reached.clear();
            let done = mirror.work(work);
            let progress: Progress = done.progress.expect("it is said");
            self.working = Some(Working { operation: *operation, progress });
            return Ok(None);
        }
        if let Some(work) = wish.work {
            let done = self.drives.mirrors.lock().unwrap().get_mut(&self.volume).expect("there").work(&work.work);
            self.ended = Some(Ended { operation: work.operation, outcome: Outcome::Done(done) });
        }
        Ok(None)
    }

    /// Asks for as long as it lives.
    pub fn live(mut self) -> JoinHandle<()> {
        tokio::spawn(async move {
            while self.world.strong_count() > 0 {
                self.ask().await.expect("it has the volume");
                sleep(Duration::from_secs(2)).await;
            }
        })
    }

    /// It is gone without a word.
    pub fn die(self) {
        self.drives.in_use.lock().unwrap().clear();
        self.drives.used.lock().unwrap().insert(self.volume, Usage::Before);
    }
}

#[tokio::test(start_paused = true)]
async fn the_host_that_has_the_volume_does_it() {
    let growth = async |world: &World| {
        Host::new(world).await.live();
        world.provisioner.grow_volume(&once(), &owner(), &name("old"), 9 * GIB).await.expect("begun")
    };
    let after = async |world: &World| {
        assert_eq!(world.provisioner.volume(&owner(), &name("old")).await.expect("there").bytes, 9 * GIB);
    };
    with_faults((OperationState::Done, 15), growth, after).await;
    let snapshot = async |world: &World| {
        Host::new(world).await.live();
        take(world, "old", "s").await.expect("begun")
    };
    let after = async |world: &World| {
        let volume = world.provisioner.volume(&owner(), &name("old")).await.expect("there");
        assert_eq!(volume.snapshots, [name("s")]);
        assert_eq!(world.drives.mirrors.lock().unwrap()[&volume.id].moments.len(), 1, "it was taken once");
    };
    with_faults((OperationState::Done, 4), snapshot, after).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_gone_is_found_out_and_holds_nothing_up() {
    for told in [false, true] {
        let world = used().await;
        let mut host = Host::new(&world).await;
        let id = take(&world, "old", "s").await.expect("begun");
        let worker = world.worker();
        sleep(Duration::from_secs(3)).await;
        if told {
            // It has taken the snapshot, and nobody hears of it.
            host.ask().await.expect("it has the volume");
            assert!(host.ended.is_some());
        }
        host.die();
        worker.abort();
        done(&world.end(id).await);
        world.at_rest().await;
        let volume = world.provisioner.volume(&owner(), &name("old")).await.expect("there");
        assert_eq!(world.drives.mirrors.lock().unwrap()[&volume.id].moments.len(), 1, "what was taken was found");
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_does_not_ask_keeps_the_volume_and_the_mending_command_is_named() {
    let world = used().await;
    let host = Host::new(&world).await;
    for growth in [false, true] {
        let id = match growth {
            true => world.provisioner.grow_volume(&once(), &owner(), &name("old"), 9 * GIB).await.expect("begun"),
            false => take(&world, "old", "s").await.expect("begun"),
        };
        let operation = world.end(id).await;
        assert_eq!(operation.state, OperationState::Failed, "{operation:?}");
        let why = operation.undo.expect("a reason");
        assert!(why.contains("yagura control detach") && why.contains("host:a"), "{why}");
        assert_eq!(why.contains("keep the room"), growth, "{why}");
    }
    world.at_rest().await;
    let volume = world.provisioner.volume(&owner(), &name("old")).await.expect("there");
    assert_eq!((volume.bytes, volume.holders[0].namespace.unwrap().bytes), (5 * GIB, 9 * GIB + HEAD));
    // Asked for again it takes no more room than it has.
    host.live();
    let id = world.provisioner.grow_volume(&once(), &owner(), &name("old"), 8 * GIB).await.expect("begun");
    done(&world.end(id).await);
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_host_undoes_what_nobody_wants_any_more_and_keeps_what_is_wanted() {
    let world = used().await;
    let mut host = Host::new(&world).await;
    // It is told, takes the snapshot, and is long in saying so: the volume is detached by force, and another takes it.
    let id = take(&world, "old", "s").await.expect("begun");
    let worker = world.worker();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(host.ask().await.expect("it has the volume"), None);
    let taken = host.ended.clone().expect("it was taken");
    // Said twice, since the answer was lost: it is there.
    assert_eq!(host.ask().await.expect("noted"), Some(Noted::Wanted));
    sleep(Duration::from_secs(5)).await;
    worker.abort();
    done(&world.provisioner.operation(None, id).await.expect("there"));
    host.ended = Some(taken);
    assert_eq!(host.ask().await.expect("noted before"), Some(Noted::Wanted));
    world.at_rest().await;
    // A snapshot that ended failed.
    let moment = control::provision::Moment { round: 99, host: 1, attempt: 0, slots: 1 };
    world.drives.mirrors.lock().unwrap().get_mut(&host.volume).unwrap().moments.push(moment);
    let done = control::provision::Done {
        bytes: 5 * GIB,
        snapshots: vec![moment],
        taken: Some(moment),
        progress: None,
        restored: None,
        room: None,
    };
    host.ended = Some(Ended { operation: Uuid::new_v4(), outcome: Outcome::Done(done) });
    assert_eq!(host.ask().await.expect("said"), Some(Noted::Unwanted));
    assert_eq!(world.drives.mirrors.lock().unwrap()[&host.volume].moments.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn only_the_host_that_has_the_volume_is_told() {
    let world = used().await;
    let mut host = Host::new(&world).await;
    let limits = Limits { iops: Some(1000), bandwidth: None, burst: Some(5) };
    world.provisioner.set_limits(&once(), &owner(), &name("old"), limits).await.expect("set");
    let report = Report::default();
    let wish = world.provisioner.ask(&owner(), &name("old"), host.attachment, &report).await.expect("told");
    assert_eq!((wish.limits, wish.work), (limits, None));
    let stranger = world.provisioner.ask(&owner(), &name("old"), Uuid::new_v4(), &report).await;
    assert!(matches!(stranger, Err(Error::NotAttached { .. })), "{stranger:?}");
    // Asking writes nothing.
    let before = world.keys("/").await;
    for _ in 0..10 {
        host.ask().await.expect("it has the volume");
    }
    assert_eq!(world.keys("/").await, before);
    // A host that takes the volume from it goes on with what it was told.
    let new = NewSnapshot { name: name("s") };
    let id = world.provisioner.take_snapshot(&once(), &owner(), &name("old"), &new).await.expect("begun");
    let worker = world.worker();
    sleep(Duration::from_secs(3)).await;
    host.ask().await.expect("told");
    let other = Nqn::new("nqn.2026-11.io.yagura:host:b").unwrap();
    let taken = world.provisioner.attach(&once(), &owner(), &name("old"), &other, true).await.expect("by force");
    let lost = host.ask().await;
    assert!(matches!(lost, Err(Error::NotAttached { .. })), "{lost:?}");
    (host.attachment, host.ended) = (taken.attachment.expect("attached").id, None);
    let next = host.live();
    sleep(Duration::from_secs(10)).await;
    done(&world.provisioner.operation(None, id).await.expect("there"));
    worker.abort();
    next.abort();
    world.at_rest().await;
}

/// Begins to take a snapshot, or to grow the volume.
async fn begin(world: &World, growth: bool) -> Uuid {
    match growth {
        true => world.provisioner.grow_volume(&once(), &owner(), &name("old"), 9 * GIB).await.expect("begun"),
        false => take(world, "old", "s").await.expect("begun"),
    }
}

/// It was called undone, since the host that had the volume then had not been told: the volume was larger than anybody knew.
#[tokio::test(start_paused = true)]
async fn what_a_former_host_has_done_is_found_by_the_next_one_and_not_taken_back() {
    for growth in [false, true] {
        let world = used().await;
        let mut former = Host::new(&world).await;
        let id = begin(&world, growth).await;
        let worker = world.worker();
        sleep(Duration::from_secs(3)).await;
        assert_eq!(former.ask().await.expect("it has the volume"), None);
        assert!(former.ended.is_some(), "it is done, and nobody hears of it");
        former.die();
        let present = Host::of(&world, "b", true).await;
        // Long enough for somebody to look whether that one lives.
        sleep(Duration::from_secs(200)).await;
        let operation = world.provisioner.operation(None, id).await.expect("there");
        assert_eq!(operation.state, OperationState::Pending, "{operation:?}");
        present.live();
        sleep(Duration::from_secs(10)).await;
        worker.abort();
        done(&world.provisioner.operation(None, id).await.expect("there"));
        world.at_rest().await;
        let volume = world.provisioner.volume(&owner(), &name("old")).await.expect("there");
        assert_eq!(world.drives.mirrors.lock().unwrap()[&volume.id].moments.len(), usize::from(!growth));
    }
}

/// A snapshot of no bytes made volumes of any size that counted nothing.
#[tokio::test(start_paused = true)]
async fn a_size_is_taken_from_no_host() {
    for (growth, bytes) in [(false, 0), (false, 4096), (false, 9 * GIB), (true, 4096), (true, 10 * GIB)] {
        let world = used().await;
        let mut host = Host::new(&world).await;
        let id = begin(&world, growth).await;
        let worker = world.worker();
        sleep(Duration::from_secs(3)).await;
        assert_eq!(host.ask().await.expect("it has the volume"), None);
        world.drives.mirrors.lock().unwrap().get_mut(&host.volume).unwrap().bytes = 5 * GIB;
        let Some(Ended { outcome: Outcome::Done(done), .. }) = &mut host.ended else { panic!("{:?}", host.ended) };
        done.bytes = bytes;
        host.live();
        sleep(Duration::from_secs(10)).await;
        worker.abort();
        let operation = world.provisioner.operation(None, id).await.expect("there");
        assert_eq!(operation.state, OperationState::Failed, "{bytes}: {operation:?}");
        world.at_rest().await;
        let volume = world.provisioner.volume(&owner(), &name("old")).await.expect("there");
        assert_eq!((volume.bytes, &volume.snapshots[..]), (5 * GIB, &[][..]));
        assert_eq!(world.drives.mirrors.lock().unwrap()[&volume.id].moments, [], "the host has undone it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_of_a_volume_that_is_larger_than_the_catalogue_says_is_refused_until_that_is_mended() {
    let world = used().await;
    let volume = world.provisioner.volume(&owner(), &name("old")).await.expect("there").id;
    world.drives.mirrors.lock().unwrap().get_mut(&volume).unwrap().bytes = 7 * GIB;
    let id = take(&world, "old", "s").await.expect("begun");
    let operation = world.end(id).await;
    assert!(operation.undo.as_ref().is_some_and(|why| why.contains("grow it")), "{operation:?}");
    let id = world.provisioner.grow_volume(&once(), &owner(), &name("old"), 7 * GIB).await.expect("begun");
    done(&world.end(id).await);
    assert!(world.drives.mirrors.lock().unwrap()[&volume].moments.is_empty(), "a snapshot that nobody knows of");
    let id = take(&world, "old", "s").await.expect("begun");
    done(&world.end(id).await);
    world.at_rest().await;
}

/// The time of the operation's other steps was counted as the host's.
#[tokio::test(start_paused = true)]
async fn a_host_has_its_own_time_to_ask() {
    let world = used().await;
    let last = world.provisioner.volume(&owner(), &name("old")).await.expect("there").holders[2].nqn.to_string();
    Host::new(&world).await.live();
    let id = begin(&world, true).await;
    world.drives.with(&last, |drive| drive.is_away = true);
    let worker = world.worker();
    sleep(Duration::from_secs(50)).await;
    world.drives.with(&last, |drive| drive.is_away = false);
    sleep(Duration::from_secs(20)).await;
    worker.abort();
    done(&world.provisioner.operation(None, id).await.expect("there"));
    world.at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_takes_the_volume_meanwhile_has_its_own_time_too() {
    let world = used().await;
    let silent = Host::new(&world).await;
    let id = begin(&world, false).await;
    let worker = world.worker();
    sleep(Duration::from_secs(9)).await;
    let present = Host::of(&world, "b", true).await;
    drop(silent);
    sleep(Duration::from_secs(5)).await;
    present.live();
    sleep(Duration::from_secs(5)).await;
    worker.abort();
    done(&world.provisioner.operation(None, id).await.expect("there"));
    world.at_rest().await;
}

/// The catalogue named nobody, so that the volume was taken from the host: see what the drives assert of each work.
#[tokio::test(start_paused = true)]
async fn a_host_that_uses_a_volume_past_the_catalogue_keeps_it() {
    let world = used().await;
    let id = take(&world, "old", "s").await.expect("begun");
    done(&world.end(id).await);
    let volume = world.provisioner.volume(&owner(), &name("old")).await.expect("there").id;
    let is_used = |is_used: bool| {
        let mut in_use = world.drives.in_use.lock().unwrap();
        if is_used {
            in_use.insert(volume)
        } else {
            in_use.remove(&volume)
        };
        world.drives.used.lock().unwrap().insert(volume, if is_used { Usage::Now } else { Usage::Before });
    };
    let begin = async |what: usize| match what {
        0 => take(&world, "old", "t").await.expect("begun"),
        1 => begin(&world, true).await,
        _ => world.provisioner.delete_snapshot(&once(), &owner(), &name("old"), &name("s")).await.expect("begun"),
    };
    is_used(true);
    for what in 0..3 {
        let id = begin(what).await;
        let operation = world.end(id).await;
        assert_eq!(operation.state, OperationState::Failed, "{operation:?}");
        assert!(operation.undo.as_ref().is_some_and(|why| why.contains("does not know of")), "{operation:?}");
        world.at_rest().await;
    }
    // With one of three drives away it can be told, and be done.
    is_used(false);
    world.drives.with(&nqn("d0"), |drive| drive.is_away = true);
    let id = begin(2).await;
    let operation = world.end(id).await;
    assert_eq!(operation.undo, None, "{operation:?}");
    world.drives.with(&nqn("d0"), |drive| drive.is_away = false);
    for what in 0..2 {
        let id = begin(what).await;
        done(&world.end(id).await);
    }
    world.at_rest().await;
}

/// A thousand of them were 64 MB of the catalogue.
#[tokio::test(start_paused = true)]
async fn a_hosts_reason_is_cut() {
    let world = used().await;
    let mut host = Host::new(&world).await;
    let id = begin(&world, false).await;
    let worker = world.worker();
    sleep(Duration::from_secs(3)).await;
    host.ended = Some(Ended { operation: id, outcome: Outcome::Refused("\u{20ac}".repeat(20_000)) });
    // Told first, or nobody would listen.
    let ended = host.ended.take();
    host.ask().await.expect("told");
    host.ended = ended;
    assert_eq!(host.ask().await.expect("noted"), Some(Noted::Wanted));
    sleep(Duration::from_secs(5)).await;
    worker.abort();
    let operation = world.provisioner.operation(None, id).await.expect("there");
    assert_eq!((operation.state, operation.undo.map(|why| why.len())), (OperationState::Failed, Some(1023)));
}

/// A host that attached again after an older copy was restored was told that no other had had the volume meanwhile, and what it
/// held for it still was written over what the other one had written.
#[tokio::test(start_paused = true)]
async fn a_restored_catalogue_does_not_say_that_a_host_had_a_volume_without_a_break() {
    let world = used().await;
    let first = attach(&world, "a", false).await;
    let (mut dump, mut copy) = (Dump::of(&*world.catalogue), String::new());
    while let Some(lines) = dump.next().await.expect("dumped") {
        copy += &lines;
    }
    // Of this the copy does not know.
    attach(&world, "b", true).await;
    let mut restore = Restore::into(&*world.catalogue, true).changing(restored);
    for line in copy.lines() {
        restore.line(line).await.expect("restored");
    }
    restore.finish().expect("whole");
    let again = attach(&world, "a", false).await;
    assert_ne!(again.tenure, first.tenure, "another host may have had it");
    assert_eq!(again.tenure, again.id);
}
