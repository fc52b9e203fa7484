//! The contract of [`Drives`], kept towards a real target with a drive.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;

use ::control::provision::{Address, Epoch, Moment, Nqn as Name, Stopped};
use ::volume::{NvmeReach, Volume};
use device::{Drive, FormatOptions as DriveFormat};
use engine::job::Job;
use engine::net::TcpListener;
use fabric::host::HostIdentity;
use fabric::subsystem::{HostConfig, Target};

use super::*;

const SUBSYSTEM: &str = "nqn.2026-11.io.yagura:drive";
const CONTROL: &str = "nqn.2026-11.io.yagura:control";

/// A target with a drive, which makes namespaces for all at the word of the control plane's host, for as long as the tests run.
fn target(path: PathBuf) -> Place {
    target_of(path, true)
}

fn target_of(path: PathBuf, makes_for_all: bool) -> Place {
    let (told, address) = mpsc::channel();
    std::thread::spawn(move || {
        Reactor::run(ReactorConfig::default(), async move {
            let options = DriveFormat { create: Some(96 << 20), extent_bytes: 1 << 20, ..DriveFormat::default() };
            let drive = Drive::format(&path, &options).await.expect("a drive");
            let (target, subsystem) = (Target::default(), SUBSYSTEM.parse().expect("a name"));
            target.add_subsystem(Nqn::clone(&subsystem), "1").expect("a subsystem");
            target.add_store(&subsystem, Arc::new(drive)).expect("a store");
            let config = HostConfig { manage: true, makes_for_all, ..HostConfig::default() };
            target.allow_host(&subsystem, &CONTROL.parse().expect("a name"), config).expect("a host");
            let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
            told.send(listener.local_addr()).expect("the test waits");
            match target.serve(listener, Vec::new()).await {}
        })
    });
    let address: SocketAddr = address.recv().expect("an address");
    Place { address: Address::new(address.to_string()).expect("one"), nqn: Name::new(SUBSYSTEM).expect("a name") }
}

fn drives(host: Option<&str>) -> NvmeDrives {
    use clap::Parser;
    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        host: NvmeHost,
    }
    let host = host.map(|host| format!("--host-nqn={host}"));
    let flags = Flags::parse_from(std::iter::once("test".to_owned()).chain(host));
    NvmeDrives::start(flags.host, mailbox(1).0).expect("a reactor")
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { timeout(Duration::from_secs(120), work).await.expect("the test hangs") })
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// A namespace with room for a replica of 4 MiB, the first one of a drive.
async fn made(drives: &NvmeDrives, place: &Place) -> Blank {
    let bytes = drives.holder_bytes(HolderKind::Replica, 4 << 20);
    drives.create(place, bytes, soon()).await.expect("made");
    let namespace = drives.look(place).await.expect("a look").namespaces[0];
    Blank { kind: HolderKind::Replica, place: place.clone(), namespace }
}

const KIB_64: u64 = 64 << 10;

/// The same as the one holder of a volume, with the time that is left for what is done to it.
async fn formatted(drives: &NvmeDrives, place: &Place) -> (Uuid, [Blank; 1], Until) {
    let (id, until) = (Uuid::from_u128(77), Until::new(Instant::now() + CALL_TIME));
    let holder = [made(drives, place).await];
    drives.format(id, 4 << 20, &holder, &until).await.expect("formatted");
    (id, holder, until)
}

#[test]
fn namespaces_are_made_formatted_and_deleted_by_what_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = target(folder.path().join("drive"));
    run(async {
        let drives = drives(Some(CONTROL));
        let look = drives.look(&place).await.expect("a look");
        assert!(
            look.thin && look.total >= 90 << 20 && look.namespaces_max > 0 && look.namespaces.is_empty(),
            "{look:?}"
        );

        // What came too late was not begun.
        let late = drives.create(&place, KIB_64, Instant::now() - Duration::from_millis(1)).await;
        assert!(matches!(late, Err(DriveError::Unreachable(_))), "{late:?}");
        assert_eq!(drives.look(&place).await.expect("a look").namespaces, []);

        let bytes = drives.holder_bytes(HolderKind::Replica, 4 << 20);
        drives.create(&place, bytes, soon()).await.expect("made");
        let made = drives.look(&place).await.expect("a look").namespaces;
        let &[namespace] = &made[..] else { panic!("one namespace: {made:?}") };
        assert_eq!(namespace.bytes, bytes);
        assert_eq!(drives.is_blank(&place, namespace).await, Ok(true));
        let refused = drives.create(&place, 1 << 50, soon()).await;
        assert!(matches!(refused, Err(DriveError::Refused(_))), "{refused:?}");

        // Made a holder of a volume, once or again, and of no other.
        let volume = Uuid::from_u128(77);
        let holder = [Blank { kind: HolderKind::Replica, place: place.clone(), namespace }];
        for _ in 0..2 {
            drives.format(volume, 4 << 20, &holder, &Until::new(soon())).await.expect("formatted");
        }
        assert_eq!(drives.is_blank(&place, namespace).await, Ok(false));
        let refused = drives.format(Uuid::from_u128(78), 4 << 20, &holder, &Until::new(soon())).await;
        assert!(matches!(refused, Err(DriveError::Refused(_))), "{refused:?}");

        // A number is used again: what has another identifier is left alone, though a host holds its reservation.
        let other = Namespace { uid: Uuid::from_u128(1), ..namespace };
        drives.delete(&place, other, soon()).await.expect("it is gone");
        assert_eq!(drives.look(&place).await.expect("a look").namespaces, [namespace]);
        drives.delete(&place, namespace, soon()).await.expect("deleted, with its reservation");
        drives.delete(&place, namespace, soon()).await.expect("it is gone");
        assert_eq!(drives.look(&place).await.expect("a look").namespaces, []);
    });
}

#[test]
fn a_volume_grows_and_its_snapshot_is_cloned() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = target(folder.path().join("drive"));
    run(async {
        let drives = drives(Some(CONTROL));
        let made = made(&drives, &place).await.namespace;
        let (volume, until) = (Uuid::from_u128(77), Until::new(Instant::now() + CALL_TIME));
        let blank = |namespace| Blank { kind: HolderKind::Replica, place: place.clone(), namespace };
        drives.format(volume, 4 << 20, &[blank(made)], &until).await.expect("formatted");
        let holders = [Some(blank(made))];
        let work = async |work: Work| drives.work(volume, &holders, &work, &until).await;

        // Not before the namespace has the room; grown once or again.
        let larger = drives.holder_bytes(HolderKind::Replica, 8 << 20);
        let refused = work(Work::Grow { bytes: 8 << 20 }).await;
        assert!(matches!(refused, Err(DriveError::Refused(_))), "{refused:?}");
        let late = drives.grow(&place, made, larger, Instant::now() - Duration::from_millis(1)).await;
        assert!(late.is_err(), "it was late");
        for _ in 0..2 {
            drives.grow(&place, made, larger, soon()).await.expect("grown");
            assert_eq!(work(Work::Grow { bytes: 8 << 20 }).await.expect("grown").bytes, 8 << 20);
        }
        let stranger = Namespace { uid: Uuid::from_u128(1), ..made };
        let refused = drives.grow(&place, stranger, 2 * larger, soon()).await;
        assert!(matches!(refused, Err(DriveError::Refused(_))), "{refused:?}");

        // Taken once, however often it is asked for.
        let before = work(Work::Look).await.expect("a look").snapshots;
        assert_eq!(before, []);
        let take = || work(Work::Take { before: before.clone() });
        let moment = take().await.expect("taken").taken.expect("it says which");
        let again = take().await.expect("taken before");
        assert_eq!((again.taken, &again.snapshots[..]), (Some(moment), &[moment][..]));
        let there = drives.look(&place).await.expect("a look").namespaces;
        assert_eq!(there.len(), 1, "a snapshot is no namespace to count: {there:?}");

        // Cloned once for each tag.
        let (tag, namespace) = (Uuid::from_u128(5), there[0]);
        let replica = Replica { place: place.clone(), namespace, volume, moment };
        assert_eq!(drives.copied(&place, tag).await, Ok(None));
        let clone = drives.copy(&replica, tag, soon()).await.expect("cloned");
        assert_eq!(drives.copy(&replica, tag, soon()).await, Ok(clone));
        assert_eq!(drives.copied(&place, tag).await, Ok(Some(clone)));
        let unknown = Replica { moment: Moment { round: 99, ..moment }, ..replica };
        let refused = drives.copy(&unknown, Uuid::from_u128(6), soon()).await;
        assert!(matches!(refused, Err(DriveError::Refused(_))), "{refused:?}");
        let new = Uuid::from_u128(78);
        for _ in 0..2 {
            let adopted = drives.adopt(new, volume, &[blank(clone)], &[true], &until).await;
            assert_eq!(adopted, Ok(8 << 20), "a volume of its own");
        }
        let look = drives.work(new, &[Some(blank(clone))], &Work::Look, &until).await.expect("attached");
        assert_eq!((look.bytes, look.snapshots), (8 << 20, vec![]));

        // Without the snapshot the clone stays, and with the volume what is left of its snapshots goes.
        assert_eq!(work(Work::Forget { moment }).await.expect("gone").snapshots, []);
        work(Work::Forget { moment }).await.expect("it is gone");
        work(Work::Take { before: vec![] }).await.expect("taken");
        drives.delete(&place, there[0], soon()).await.expect("deleted");
        assert_eq!(drives.look(&place).await.expect("a look").namespaces, [clone]);
        drives.delete(&place, clone, soon()).await.expect("deleted");
        assert_eq!(drives.look(&place).await.expect("a look").namespaces, []);
    });
}

/// What comes of it at the drive, past the control plane.
fn managed<T: Send + 'static>(place: &Place, work: impl AsyncFnOnce(&Manager) -> T + Send + 'static) -> T {
    let (told, said) = mpsc::channel();
    let address = place.address.as_str().parse().expect("an address");
    std::thread::spawn(move || {
        Reactor::run(ReactorConfig::default(), async move {
            let host = HostIdentity { nqn: CONTROL.parse().expect("a name"), ..HostIdentity::random() };
            let subsystem = SUBSYSTEM.parse().expect("a name");
            let manager = Manager::connect(Options { host, ..Options::new(address, subsystem, 1) }).await;
            told.send(work(&manager.expect("connected")).await).expect("the test waits");
        })
    });
    said.recv().expect("it is done")
}

/// How many snapshots of a namespace the drive has.
fn copies(place: &Place, nsid: u32) -> usize {
    managed(place, async move |manager| manager.copies(Some(nsid)).await.expect("a list").len())
}

/// Nobody attaches the volume afterwards, so that nobody would delete them later.
#[test]
fn a_snapshot_that_is_deleted_takes_no_room_of_the_drive_any_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = target(folder.path().join("drive"));
    run(async {
        let drives = drives(Some(CONTROL));
        let (id, holder, until) = formatted(&drives, &place).await;
        let nsid = holder[0].namespace.nsid;
        let holders = holder.map(Some);
        let work = async |work: Work| drives.work(id, &holders, &work, &until).await.expect("done");
        for _ in 0..3 {
            let moment = work(Work::Take { before: vec![] }).await.taken.expect("it was taken");
            assert_eq!(copies(&place, nsid), 1);
            work(Work::Forget { moment }).await;
            assert_eq!(copies(&place, nsid), 0);
        }
    });
}

/// A volume's stream, in memory.
#[derive(Default)]
struct Held(Vec<u8>);

impl ::volume::Sink for Held {
    fn write(&mut self, bytes: Vec<u8>) -> LocalFuture<'_, Result<(), std::io::Error>> {
        self.0.extend(bytes);
        Box::pin(async { Ok(()) })
    }
}

impl ::volume::Source for Held {
    fn read(&mut self) -> LocalFuture<'_, Result<Vec<u8>, std::io::Error>> {
        Box::pin(async { Ok(std::mem::take(&mut self.0)) })
    }
}

/// What comes of it where a host has the volume of one holder attached by its address, past the control plane.
fn attached<T: Send + 'static>(place: &Place, nsid: u32, work: impl AsyncFnOnce(&Volume) -> T + Send + 'static) -> T {
    let (told, said) = mpsc::channel();
    let address = place.address.as_str().parse().expect("an address");
    std::thread::spawn(move || {
        Reactor::run(ReactorConfig::default(), async move {
            let name = CONTROL.parse().expect("a name");
            let holder = NvmeReach::at(address, SUBSYSTEM.parse().expect("a name"), nsid, name);
            let volume = ::volume::attach(vec![Rc::new(holder)], ::volume::Options::default()).await.expect("attached");
            told.send(work(&volume).await).expect("the test waits");
            volume.detach().await.expect("it is attached");
        })
    });
    said.recv().expect("it was attached")
}

/// The volume of one holder gets its own bytes once more, by an import: the snapshot that the import keeps for itself.
fn imported(place: &Place, nsid: u32) -> Moment {
    attached(place, nsid, async |volume| {
        let name = volume.snapshot().await.expect("drives have them");
        let (view, mut held) = (volume.snapshot_view(name).await.expect("it is there"), Held::default());
        ::volume::export(&view, None, &Job::unlisted(None, None), &mut held).await.expect("exported");
        volume.delete_snapshot(name).await.expect("it is attached");
        ::volume::import(volume, &mut held, true, &Job::unlisted(None, None)).await.expect("imported");
        crate::volume::work::moments(volume)[0]
    })
}

/// The first block of each of the first three MiB.
async fn put(volume: &Volume, what: u8) {
    for mib in 0..3 {
        let mut block = Buf::with_len(4096);
        block.fill(what);
        volume.write(Lba(256 * mib), block.freeze(), device::Durability::Stable).await.expect("it is attached");
    }
}

/// Which bytes these begin with.
async fn got(volume: &Volume) -> Vec<u8> {
    let mut found = Vec::new();
    for mib in 0..3 {
        let (read, block) = volume.read(Lba(256 * mib), Buf::with_len(4096)).await;
        read.expect("it is attached");
        found.push(block[0]);
    }
    found
}

/// A volume of ones is put back to a snapshot of itself after it was written, the first piece of it; by which record.
fn put_back_in_part(place: &Place, nsid: u32) -> (Moment, Epoch) {
    attached(place, nsid, async |volume| {
        put(volume, 1).await;
        let name = volume.snapshot().await.expect("drives have them");
        put(volume, 2).await;
        let view = volume.snapshot_view(name).await.expect("it is there");
        let ::volume::Restored { at, left } =
            ::volume::restore(volume, &view, 0, Duration::ZERO).await.expect("it can be read");
        assert!(at > 0 && left > 0 && got(volume).await == [1, 2, 2], "a piece is done");
        let (moment, ballot) = (crate::volume::work::moments(volume)[0], volume.record().0.ballot);
        (moment, Epoch { round: ballot.round, host: ballot.host })
    })
}

/// What a host had overwritten there meanwhile, past the control plane, stayed in a volume that was said to be as the snapshot.
#[test]
fn a_volume_that_another_host_has_had_in_between_is_put_back_from_its_beginning() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = target(folder.path().join("drive"));
    run(async {
        let drives = drives(Some(CONTROL));
        // What is said to be done is left as it is, unless somebody else has had the volume.
        for (is_written, expected) in [(false, [1, 2, 1]), (true, [1, 1, 1])] {
            let (id, holder, until) = formatted(&drives, &place).await;
            let namespace = holder[0].namespace;
            let (moment, by) = put_back_in_part(&place, namespace.nsid);
            if is_written {
                attached(&place, namespace.nsid, async |volume| put(volume, 9).await);
            }
            let holders = holder.map(Some);
            let goes_on = Work::Restore { moment, at: 2 << 20, by: Some(by) };
            let back = drives.work(id, &holders, &goes_on, &until).await.expect("done").restored.expect("it is said");
            assert_eq!((back.at, back.left, back.stopped), (4 << 20, 0, None));
            assert_eq!(attached(&place, namespace.nsid, async |volume| got(volume).await), expected);
            drives.delete(&place, namespace, soon()).await.expect("deleted");
        }
    });
}

#[test]
fn a_volume_that_is_put_back_goes_on_until_no_copy_of_the_snapshot_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = target(folder.path().join("drive"));
    run(async {
        let drives = drives(Some(CONTROL));
        let (id, holder, until) = formatted(&drives, &place).await;
        let namespace = holder[0].namespace;
        let (moment, by) = put_back_in_part(&place, namespace.nsid);
        let goes_on = Work::Restore { moment, at: 1 << 20, by: Some(by) };
        // Behind the volume's back.
        managed(&place, async move |manager| {
            changes::delete_snapshots(manager, namespace.nsid).await.expect("they are there");
        });
        let holders = holder.map(Some);
        let room = drives.work(id, &holders, &Work::Room { moment }, &until).await.expect("attached").room;
        assert_eq!(room, Some(0), "what has begun goes on");
        let ended = drives.work(id, &holders, &goes_on, &until).await.expect("that is known");
        assert_eq!(ended.restored.and_then(|restored| restored.stopped), Some(Stopped::Lost));
        // Of one that was not begun nothing was changed.
        let moment = Moment { attempt: 99, ..moment };
        for work in [Work::Room { moment }, Work::Restore { moment, at: 0, by: None }] {
            let refused = drives.work(id, &holders, &work, &until).await;
            assert!(matches!(refused, Err(DriveError::Refused(_))), "{refused:?}");
        }
    });
}

#[test]
fn the_own_snapshot_of_an_import_is_nobody_elses() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = target(folder.path().join("drive"));
    run(async {
        let drives = drives(Some(CONTROL));
        let (id, holder, until) = formatted(&drives, &place).await;
        let own = imported(&place, holder[0].namespace.nsid);
        let holders = holder.map(Some);
        let work = async |work: Work| drives.work(id, &holders, &work, &until).await.expect("done");
        // The import has taken it since the control plane looked.
        let taken = work(Work::Take { before: vec![] }).await;
        assert!(taken.taken.is_some_and(|taken| !taken.is(&own)), "{taken:?}");
        assert_eq!(taken.snapshots.len(), 2);
        assert!(work(Work::Forget { moment: own }).await.snapshots.iter().any(|there| there.is(&own)));
        // Nor is the volume put back to it, or to one that there is not; to the other one it is.
        for moment in [own, Moment { attempt: 99, ..own }] {
            let refused = drives.work(id, &holders, &Work::Restore { moment, at: 0, by: None }, &until).await;
            assert!(matches!(refused, Err(DriveError::Refused(_))), "{refused:?}");
        }
        let moment = taken.taken.expect("it was taken");
        assert_eq!(work(Work::Room { moment }).await.room, Some(0), "nothing was written since");
        let back = work(Work::Restore { moment, at: 0, by: None }).await.restored.expect("it is said");
        assert_eq!((back.at, back.left, back.stopped), (4 << 20, 0, None));
    });
}

/// A host that attaches the volume of one holder, for as long as the sender is not told; then it reads, and is gone without a word.
fn host(place: &Place, nsid: u32) -> (MailSender<()>, mpsc::Receiver<bool>) {
    let (end, ended) = mailbox::<()>(1);
    let (told, said) = mpsc::channel();
    let address = place.address.as_str().parse().expect("an address");
    std::thread::spawn(move || {
        Reactor::run(ReactorConfig::default(), async move {
            let name = CONTROL.parse().expect("a name");
            let holder = NvmeReach::at(address, SUBSYSTEM.parse().expect("a name"), nsid, name);
            let volume = ::volume::attach(vec![Rc::new(holder)], ::volume::Options::default()).await.expect("attached");
            told.send(true).expect("the test waits");
            ended.recv().await;
            let (read, _) = volume.read(Lba(0), Buf::with_len(4096)).await;
            told.send(read.is_ok() && !volume.is_superseded()).expect("the test waits");
        })
    });
    assert!(said.recv().expect("attached"));
    (end, said)
}

#[test]
fn a_host_that_has_the_volume_is_told_from_one_that_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = target(folder.path().join("drive"));
    run(async {
        let drives = drives(Some(CONTROL));
        let (id, holder) = (Uuid::from_u128(77), [made(&drives, &place).await]);
        let namespace = holder[0].namespace;
        assert_eq!(drives.usage(id, None, &holder, soon()).await, Ok(Usage::Never), "it is blank");
        drives.format(id, 4 << 20, &holder, &Until::new(soon())).await.expect("formatted");
        assert_eq!(drives.usage(id, None, &holder, soon()).await, Ok(Usage::Never));
        let (end, said) = host(&place, namespace.nsid);
        // It has nothing to do, and still it has the volume.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(drives.usage(id, None, &holder, soon()).await, Ok(Usage::Now));
        // Its number under which another namespace is meant takes it from nobody.
        let stranger = Blank { namespace: Namespace { uid: Uuid::from_u128(1), ..namespace }, ..holder[0].clone() };
        // Waited for as one that is away.
        let (stranger, until) = ([Some(stranger)], Until::new(soon()));
        let waited = timeout(Duration::from_secs(3), drives.work(id, &stranger, &Work::Look, &until)).await;
        assert!(waited.is_err(), "{waited:?}");
        assert!(end.try_send(()).is_ok());
        assert!(said.recv().expect("it has read"), "the host has the volume as before");
        assert_eq!(drives.usage(id, None, &holder, soon()).await, Ok(Usage::Before));
        // A holder of another volume is told, but for one that a clone begins as.
        let other = Uuid::from_u128(78);
        assert_eq!(drives.usage(other, None, &holder, soon()).await, Ok(Usage::Another));
        assert_eq!(drives.usage(other, Some(other), &holder, soon()).await, Ok(Usage::Another));
        assert_eq!(drives.usage(other, Some(id), &holder, soon()).await, Ok(Usage::Never));
        let late = drives.usage(id, None, &holder, Instant::now() - Duration::from_millis(1)).await;
        assert!(matches!(late, Err(DriveError::Unreachable(_))), "{late:?}");
    });
}

#[test]
fn a_drive_whose_namespaces_no_host_gets_is_refused_and_nothing_is_left_on_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = target_of(folder.path().join("drive"), false);
    run(async {
        let drives = drives(Some(CONTROL));
        let refused = drives.create(&place, KIB_64, soon()).await;
        assert!(matches!(&refused, Err(DriveError::Refused(why)) if why.contains("manage=all")), "{refused:?}");
        assert_eq!(drives.look(&place).await.expect("a look").namespaces, []);
    });
}

#[test]
fn a_target_that_ends_lost_connections_late_or_never_is_refused() {
    assert_eq!(ends_in_time(Some(LATE)), Ok(()));
    for late in [None, Some(LATE + Duration::from_millis(1))] {
        assert!(matches!(ends_in_time(late), Err(DriveError::Refused(_))), "{late:?}");
    }
}

#[test]
fn the_end_of_the_thread_for_drives_is_told() {
    let (ended, end) = mailbox(1);
    let thread = std::thread::spawn(move || {
        let _ended = Ended(ended);
        panic!("the reactor does");
    });
    assert!(thread.join().is_err());
    assert!(end.try_recv().is_some_and(|why| why.contains("no longer be reached")));
}

#[test]
fn who_may_not_manage_is_told_what_to_say_to_the_target() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = target(folder.path().join("drive"));
    run(async {
        let stranger = drives(Some("nqn.2026-11.io.yagura:stranger")).look(&place).await;
        assert!(matches!(stranger, Err(DriveError::Refused(_))), "{stranger:?}");
        let nobody = Place { address: Address::new("127.0.0.1:1").expect("one"), ..place };
        let unreached = drives(Some(CONTROL)).look(&nobody).await;
        assert!(matches!(unreached, Err(DriveError::Unreachable(_))), "{unreached:?}");
        let unknown = Place { address: Address::new("no-such-host.invalid:1").expect("one"), ..nobody };
        let unreached = drives(Some(CONTROL)).look(&unknown).await;
        assert!(matches!(unreached, Err(DriveError::Unreachable(_))), "{unreached:?}");
    });
}
