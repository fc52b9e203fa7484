//! A scrub beside hosts: it keeps to its rate, is told of while it lasts, holds nobody up, misses nothing that they move, and may
//! be ended half-way.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::drive_model::PATH;
use device::drive::{Damage, Scrub, Usage};
use device::{Drive, DriveNamespace, DriveOptions, Durability, FormatOptions, Lba, Namespace, NamespaceSpec};
use engine::job::{Job, Jobs};
use engine::sim::{DiskConfig, NodeId, SimConfig, World};
use engine::{Buf, View, task, time};

/// Written, and so to be verified.
const BYTES: u64 = 4 << 20;
const RATE: u64 = 1 << 20;
const DRIVE_BYTES: u64 = 16 << 20;
const EXTENT_BYTES: u32 = 256 << 10;
/// Blocks of such an extent.
const EXTENT_BLOCKS: u64 = EXTENT_BYTES as u64 / 4096;

/// No two blocks hold the same.
fn content(lba: u64, blocks: u64) -> View {
    let mut data = Buf::with_len(blocks as usize * 4096);
    for (lba, block) in (lba..).zip(data.chunks_exact_mut(4096)) {
        block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&((0xA5 << 56) | lba).to_le_bytes()));
    }
    data.freeze()
}

async fn write(namespace: &DriveNamespace, lba: u64, blocks: u64) {
    for at in (lba..lba + blocks).step_by(256) {
        let data = content(at, (lba + blocks - at).min(256));
        namespace.write(Lba(at), data, Durability::Stable).await.expect("written");
    }
}

async fn written(extent_bytes: u32) -> (Drive, DriveNamespace) {
    let options = FormatOptions { extent_bytes, journal_bytes: Some(512 << 10), ..FormatOptions::default() };
    let drive = Drive::format(Path::new(PATH), &options).await.expect("formatted");
    let spec = NamespaceSpec { name: "a".into(), bytes: BYTES, block_size: 4096 };
    let namespace = drive.create(&spec).await.expect("created");
    write(&namespace, 0, BYTES / 4096).await;
    (drive, namespace)
}

fn world() -> (World, NodeId) {
    world_of(DRIVE_BYTES)
}

fn world_of(bytes: u64) -> (World, NodeId) {
    let world = World::new(1, SimConfig::default());
    let node = world.node("n");
    world.disk(node, PATH, bytes, DiskConfig { volatile_cache: false, ..DiskConfig::default() });
    (world, node)
}

fn run_on<T: 'static>((world, node): &(World, NodeId), future: impl Future<Output = T> + 'static) -> T {
    let task = world.spawn_on(*node, future);
    world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"))
}

fn run(future: impl Future<Output = ()> + 'static) {
    run_on(&world(), future);
}

/// What a scrub finds beside `hosts`, who have namespace "a" and, if `is_shared`, its snapshot "s"; some blocks were damaged before.
fn scrubbed_beside<F: Future<Output = ()> + 'static>(
    (extent_bytes, is_shared): (u32, bool),
    damaged: &[u64],
    hosts: impl FnOnce(Drive, DriveNamespace) -> F + 'static,
) -> Scrub {
    let world = world();
    let (drive, namespace) = run_on(&world, async move {
        let (drive, namespace) = written(extent_bytes).await;
        if is_shared {
            drive.snapshot(namespace.number(), "s").await.expect("a snapshot");
        }
        (drive, namespace)
    });
    let medium = world.0.peek(world.1, PATH, 0, DRIVE_BYTES as usize);
    for &lba in damaged {
        let at = medium.chunks_exact(4096).position(|block| *block == content(lba, 1)[..]).expect("it was written");
        world.0.corrupt(world.1, PATH, at as u64 * 4096 + 7, 1);
    }
    run_on(&world, async move {
        let scrub = task::spawn({
            let drive = drive.clone();
            async move { drive.scrub(&Job::unlisted(Some(RATE), None)).await }
        });
        hosts(drive, namespace).await;
        scrub.await.expect("scrubbed")
    })
}

/// It read as fast as the medium gave, beside hosts, and was in nobody's list.
#[test]
fn a_scrub_keeps_to_its_rate_and_is_listed_meanwhile() {
    run(async {
        let (drive, namespace) = written(EXTENT_BYTES).await;
        let (jobs, began) = (Jobs::default(), time::now());
        let job = jobs.begin_of("scrub", PATH, Some(RATE), None);
        let scrubbed = task::spawn({
            let drive = drive.clone();
            async move { drive.scrub(&job).await.map(|found| found.bytes) }
        });
        time::sleep(Duration::from_millis(2100)).await;
        let listed = jobs.list();
        let [job] = &listed[..] else { panic!("{listed:?}") };
        assert_eq!((job.kind, job.of.as_str(), job.bytes_per_second), ("scrub", PATH, Some(RATE)));
        assert!((0.4..0.7).contains(&job.done) && job.bytes >= 2 << 20, "{job:?}");
        // It waits for its turn with no lock in hand: nobody who writes waits along.
        for lba in (0..BYTES / 4096).step_by(16) {
            let asked = time::now();
            namespace.write(Lba(lba), Buf::zeroed(4096).freeze(), Durability::Cached).await.expect("written");
            assert!(asked.elapsed() < Duration::from_millis(100), "block {lba} took {:?}", asked.elapsed());
        }
        assert_eq!(scrubbed.await.expect("scrubbed"), BYTES);
        // Nothing comes behind the last piece that would have to wait until that is paid for.
        let (took, due) = (began.elapsed().as_secs_f64(), (BYTES - u64::from(EXTENT_BYTES)) as f64 / RATE as f64);
        assert!((due..due + 0.5).contains(&took), "{took} s of {due} s");
        assert_eq!(jobs.list(), []);
    });
}

/// What ends it drops it: what was found until then is there still, and the job in no list any more.
#[test]
fn a_scrub_that_is_dropped_has_said_what_it_found() {
    run(async {
        let (drive, namespace) = written(EXTENT_BYTES).await;
        namespace.write_uncorrectable(Lba(1), 2).await.expect("marked");
        let (jobs, found) = (Jobs::default(), Rc::new(RefCell::new(Scrub::default())));
        let job = jobs.begin("scrub", Some(RATE), None);
        let scrub = task::spawn({
            let (drive, found) = (drive.clone(), found.clone());
            async move { drive.scrub_into(&job, &found).await }
        });
        time::sleep(Duration::from_millis(1600)).await;
        assert!(scrub.cancel().await.is_none(), "it is not through");
        assert_eq!(jobs.list(), []);
        let Scrub { bytes, uncorrectable, damaged, .. } = *found.borrow();
        assert!((1 << 20..3 << 20).contains(&bytes), "{bytes} bytes");
        assert_eq!((uncorrectable, damaged), (2, 0));
        assert_eq!(drive.scrub(&jobs.begin("scrub", None, None)).await.expect("scrubbed").bytes, BYTES - 8192);
    });
}

/// A damaged block of the extent that the scrub below comes to next after 1.9 s.
const NEXT: u64 = 8 * EXTENT_BLOCKS;

fn damage_of_snapshot(lba: u64) -> Damage {
    Damage { namespace: "s".into(), lba: Lba(lba), what: "does not match its checksum".into() }
}

/// An extent was taken for seen while the scrub waited for its turn. A host wrote then, so that its snapshot alone had the extent;
/// the scrub read the new one, passed the old one by at the snapshot, and called the drive whole.
#[test]
fn what_a_host_writes_away_from_is_verified_where_a_snapshot_keeps_it() {
    let found = scrubbed_beside((EXTENT_BYTES, true), &[NEXT + 2], |_, namespace| async move {
        time::sleep(Duration::from_millis(1900)).await;
        write(&namespace, NEXT, EXTENT_BLOCKS).await;
    });
    assert_eq!((found.damaged, &*found.damage), (1, &[damage_of_snapshot(NEXT + 2)][..]));
    assert_eq!((found.bytes, found.uncorrectable), (BYTES + u64::from(EXTENT_BYTES), 0), "the new one as well");
    let found = scrubbed_beside((EXTENT_BYTES, true), &[NEXT + 2], |drive, namespace| async move {
        time::sleep(Duration::from_millis(1900)).await;
        drive.delete(namespace.number()).await.expect("deleted");
    });
    assert_eq!((found.damaged, &*found.damage), (1, &[damage_of_snapshot(NEXT + 2)][..]));
    assert_eq!(found.bytes, BYTES);
}

/// The same between two pieces of one extent. What had been found in the first of them is not told twice.
#[test]
fn an_extent_that_is_half_read_is_read_again_where_it_is_then() {
    let drive = Rc::<RefCell<Option<Drive>>>::default();
    let kept = drive.clone();
    let found = scrubbed_beside((4 << 20, true), &[2, 1000], |drive, namespace| async move {
        *kept.borrow_mut() = Some(drive);
        time::sleep(Duration::from_millis(1500)).await;
        write(&namespace, 0, 1).await;
    });
    assert_eq!((found.damaged, &*found.damage), (2, &[damage_of_snapshot(2), damage_of_snapshot(1000)][..]));
    assert_eq!((found.bytes, found.uncorrectable), (2 * BYTES - 2 * 4096, 2), "the copy's are marked");
    let told = drive.borrow().as_ref().map(|drive| drive.usage().mismatches);
    assert_eq!(told, Some(2 + 2), "as what could not be moved, and in the snapshot: not when it was half read");
}

/// An extent that has the number of one that is half read is not that one: read on as if it were, it would not be marked, and be
/// told of again wherever others have it.
#[test]
fn an_extent_that_is_taken_again_when_half_read_is_told_once() {
    let found = scrubbed_beside((4 << 20, false), &[], |drive, namespace| async move {
        time::sleep(Duration::from_millis(1500)).await;
        namespace.deallocate(Lba(0), BYTES / 4096).await.expect("taken out");
        write(&namespace, 0, BYTES / 4096).await;
        namespace.write_uncorrectable(Lba(1000), 1).await.expect("marked");
        drive.snapshot(namespace.number(), "s").await.expect("a snapshot");
    });
    assert_eq!((found.bytes, found.uncorrectable), (BYTES - 4096, 1));
}

/// Namespaces were listed once, at the beginning: what a snapshot of later alone had was never read.
#[test]
fn what_moves_into_a_snapshot_of_meanwhile_is_verified() {
    let found = scrubbed_beside((EXTENT_BYTES, false), &[NEXT + 2], |drive, namespace| async move {
        time::sleep(Duration::from_secs(1)).await;
        drive.snapshot(namespace.number(), "s").await.expect("a snapshot");
        time::sleep(Duration::from_millis(900)).await;
        write(&namespace, NEXT, EXTENT_BLOCKS).await;
    });
    assert_eq!((found.damaged, &*found.damage), (1, &[damage_of_snapshot(NEXT + 2)][..]));
    assert_eq!(found.bytes, BYTES + u64::from(EXTENT_BYTES));
}

/// A scrub that looked at a place until it stood still would look for as long as a host replaces what is there.
#[test]
fn a_host_that_replaces_an_extent_for_ever_does_not_hold_a_scrub_up() {
    run(async {
        let (drive, namespace) = written(4 << 20).await;
        // What comes next would have the extent's number again but for another that takes it first, each other time.
        let spec = NamespaceSpec { name: "b".into(), bytes: BYTES, block_size: 4096 };
        let other = drive.create(&spec).await.expect("created");
        let jobs = Jobs::default();
        let job = jobs.begin("scrub", Some(RATE), None);
        task::spawn(async move { drive.scrub(&job).await }).detach();
        for round in 0..20 {
            time::sleep(Duration::from_millis(900)).await;
            for of in [&namespace, &other] {
                of.deallocate(Lba(0), BYTES / 4096).await.expect("taken out");
            }
            for of in if round % 2 == 0 { [&other, &namespace] } else { [&namespace, &other] } {
                write(of, 0, BYTES / 4096).await;
            }
        }
        assert_eq!(jobs.list(), [], "it goes on after 18 s, where 4 s are due");
    });
}

/// What held an extent's number when that was verified is not what holds it now: an extent was passed over that had been freed
/// since, and taken for what a host moved out of a damaged one. Of the damage nothing was told.
#[test]
fn an_extent_that_is_taken_for_something_else_is_verified_anew() {
    let found = scrubbed_beside((EXTENT_BYTES, false), &[NEXT + 2], |drive, namespace| async move {
        let began = time::now();
        let Usage { bytes, used_bytes, .. } = drive.usage();
        let spec = NamespaceSpec { name: "rest".into(), bytes: bytes - used_bytes, block_size: 4096 };
        let rest = drive.create(&spec).await.expect("created");
        write(&rest, 0, spec.bytes / 4096).await;
        assert!(began.elapsed() < Duration::from_millis(1900), "it took {:?}", began.elapsed());
        // What the scrub verified first is all that is free, when a snapshot makes the host's write move the damaged extent.
        time::sleep(Duration::from_millis(1900) - began.elapsed()).await;
        namespace.deallocate(Lba(0), EXTENT_BLOCKS).await.expect("taken out");
        let snapshot = drive.snapshot(namespace.number(), "s").await.expect("a snapshot");
        write(&namespace, NEXT, 1).await;
        assert_eq!(drive.usage().used_bytes, bytes, "it is moved to where the first one was");
        drive.delete(snapshot.number()).await.expect("deleted");
    });
    assert_eq!((found.damaged, found.uncorrectable), (0, 1), "the block that could not be moved is marked");
}

/// Where a block has several checksums each of them was counted, and told, as a block.
#[test]
fn a_block_of_several_checksums_is_counted_once() {
    let world = world();
    let (drive, clone) = run_on(&world, async {
        let options = FormatOptions { unit: 512, journal_bytes: Some(512 << 10), ..FormatOptions::default() };
        let drive = Drive::format(Path::new(PATH), &options).await.expect("formatted");
        let mut made = Vec::new();
        for (name, block_size) in [("large", 4096), ("small", 512)] {
            let spec = NamespaceSpec { name: name.into(), bytes: 1 << 20, block_size };
            let namespace = drive.create(&spec).await.expect("created");
            for at in 0..64 {
                let lba = Lba(at * 4096 / u64::from(block_size));
                let data = content(at + u64::from(block_size), 1);
                namespace.write(lba, data, Durability::Stable).await.expect("written");
            }
            namespace.write_uncorrectable(Lba(9), 2).await.expect("marked");
            made.push(namespace);
        }
        let clone = drive.clone_of(made[0].number(), "copy").await.expect("a clone");
        (drive, clone)
    });
    let medium = world.0.peek(world.1, PATH, 0, DRIVE_BYTES as usize);
    for (block, sectors) in [(4096 + 2, &[0, 3, 7][..]), (4096 + 5, &[1]), (512 + 4, &[0, 6])] {
        let at = medium.chunks_exact(4096).position(|found| *found == content(block, 1)[..]).expect("it was written");
        for sector in sectors {
            world.0.corrupt(world.1, PATH, at as u64 * 4096 + sector * 512 + 7, 1);
        }
    }
    run_on(&world, async move {
        let found = drive.scrub(&Job::unlisted(None, None)).await.expect("scrubbed");
        let told: Vec<_> = found.damage.iter().map(|one| (&*one.namespace, one.lba.0)).collect();
        assert_eq!(told, [("large", 2), ("large", 5), ("small", 32), ("small", 38)]);
        assert_eq!((found.damaged, found.uncorrectable), (4, 4));
        assert_eq!(drive.usage().mismatches, 4, "and whoever watches the drive is told");
        clone.write(Lba(20), content(0, 1), Durability::Stable).await.expect("moved and written");
        assert_eq!(drive.usage().mismatches, 6, "two blocks could not be moved");
        let found = drive.scrub(&Job::unlisted(None, None)).await.expect("scrubbed");
        assert_eq!((found.damaged, found.uncorrectable), (4, 4 + 4));
    });
}

/// One sector that could not be read made damage of all blocks that were read along with it.
#[test]
fn blocks_are_read_one_by_one_where_not_all_can_be_read_at_once() {
    let world = world();
    let drive = run_on(&world, async { written(1 << 20).await.0 });
    let config = DiskConfig { read_error_ppm: 300_000, volatile_cache: false, ..DiskConfig::default() };
    world.0.set_disk_config(world.1, PATH, config);
    let (found, told) = run_on(&world, {
        let drive = drive.clone();
        async move {
            let found = drive.scrub(&Job::unlisted(None, None)).await.expect("scrubbed");
            (found, drive.usage().mismatches)
        }
    });
    assert_eq!((found.bytes, found.damaged), (BYTES, told), "each block was read once");
    let listed: std::collections::BTreeSet<_> = found.damage.iter().map(|one| one.lba).collect();
    assert_eq!(listed.len() as u64, found.damaged);
    assert!((1..BYTES / 4096 / 2).contains(&found.damaged), "{} blocks of {}", found.damaged, BYTES / 4096);
    // Of what one finds that is ended half-way, in the middle of an extent, whoever watches the drive is told as well.
    run_on(&world, async move {
        let found = Rc::<RefCell<Scrub>>::default();
        let (scrubbed, into) = (drive.clone(), found.clone());
        let scrub = task::spawn(async move { scrubbed.scrub_into(&Job::unlisted(Some(RATE), None), &into).await });
        time::sleep(Duration::from_millis(1500)).await;
        assert!(scrub.cancel().await.is_none(), "it is not through");
        let Scrub { bytes, damaged, .. } = *found.borrow();
        assert!(damaged > 0 && !bytes.is_multiple_of(1 << 20), "{damaged} of {bytes} bytes");
        assert_eq!(drive.usage().mismatches, told + damaged);
    });
}

/// Whoever watches the drive was told of blocks that did not match, and of none that could not be read.
#[test]
fn blocks_that_can_not_be_read_are_told_to_who_watches_the_drive() {
    const BLOCKS: u64 = BYTES / 4096;
    // Checksums over 512: neither those nor pages of them are counted.
    let options = FormatOptions { unit: 512, journal_bytes: Some(512 << 10), ..FormatOptions::default() };
    let world = world();
    let drive = run_on(&world, async move {
        let drive = Drive::format(Path::new(PATH), &options).await.expect("formatted");
        let spec = NamespaceSpec { name: "a".into(), bytes: BYTES, block_size: 4096 };
        write(&drive.create(&spec).await.expect("created"), 0, BLOCKS).await;
        drive
    });
    let scrubbed = |drive: Drive, read_error_ppm| {
        let config = DiskConfig { read_error_ppm, volatile_cache: false, ..DiskConfig::default() };
        world.0.set_disk_config(world.1, PATH, config);
        run_on(&world, async move {
            let found = drive.scrub(&Job::unlisted(None, None)).await.expect("scrubbed");
            let what = found.damage.first().map_or(String::new(), |one| one.what.clone());
            (found.damaged, drive.usage().mismatches, what.contains("checksum"), drive)
        })
    };
    let (damaged, told, of_checksums, drive) = scrubbed(drive, 1_000_000);
    assert_eq!((damaged, told, of_checksums), (BLOCKS, BLOCKS, false), "no data can be read");
    let (damaged, told, _, drive) = scrubbed(drive, 0);
    assert_eq!((damaged, told), (0, BLOCKS), "all of it was found once");
    // Opened anew it has read none of the pages with checksums.
    let drive = run_on(&world, async move {
        drive.close().await.expect("closed");
        Drive::open(Path::new(PATH), &DriveOptions::default()).await.expect("opened")
    });
    let (damaged, told, of_checksums, _) = scrubbed(drive, 1_000_000);
    assert_eq!((damaged, told, of_checksums), (BLOCKS, BLOCKS, true), "no checksum can be read");
}

/// One scrub's marks are nothing to another, nor is its end.
#[test]
fn of_two_scrubs_at_once_each_reads_all() {
    for is_first_dropped in [true, false] {
        run(async move {
            let (drive, _) = written(EXTENT_BYTES).await;
            let begun = |found: &Rc<RefCell<Scrub>>| {
                let (drive, found) = (drive.clone(), found.clone());
                task::spawn(async move { drive.scrub_into(&Job::unlisted(Some(RATE), None), &found).await })
            };
            let founds: [Rc<RefCell<Scrub>>; 2] = Default::default();
            let first = begun(&founds[0]);
            time::sleep(Duration::from_secs(1)).await;
            let second = begun(&founds[1]);
            time::sleep(Duration::from_secs(1)).await;
            let (dropped, other) = if is_first_dropped { (first, second) } else { (second, first) };
            assert!(dropped.cancel().await.is_none(), "it is not through");
            other.await.expect("scrubbed");
            let bytes = founds.map(|found| found.borrow().bytes);
            let [half, all] = if is_first_dropped { bytes } else { [bytes[1], bytes[0]] };
            assert!((512 << 10..3 << 20).contains(&half), "{half} bytes");
            assert_eq!(all, BYTES, "the first is dropped: {is_first_dropped}");
        });
    }
}

/// How often a scrub has let others have their turn since it last read or came to something new, and since it began.
async fn turns_given(drive: &Drive) -> (u64, u64) {
    let (polls, last) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (now, came) = (polls.clone(), last.clone());
    let job = Job::unlisted(None, Some(Rc::new(move |_| came.set(now.get()))));
    let mut scrub = drive.scrub(&job);
    poll_fn(|cx| {
        polls.set(polls.get() + 1);
        scrub.as_mut().poll(cx)
    })
    .await
    .expect("scrubbed");
    (polls.get() - last.get(), polls.get() - 1)
}

/// All others of the thread waited while a scrub passed over what it had seen, or looked at what was never written: it waits for
/// nothing there.
#[test]
fn a_scrub_that_reads_nothing_gives_others_their_turn() {
    const EXTENTS: u64 = BYTES / (64 << 10);
    // The larger a drive is the more extents its snapshots can have.
    run_on(&world_of(64 << 20), async {
        let (drive, namespace) = written(64 << 10).await;
        for number in 0..40 {
            drive.snapshot(namespace.number(), &format!("s{number}")).await.expect("a snapshot");
        }
        let (passing, _) = turns_given(&drive).await;
        assert_eq!(passing, 40 * EXTENTS / 1024, "{EXTENTS} extents are seen once, and passed over 40 times");
    });
    run(async {
        let options = FormatOptions { extent_bytes: 64 << 10, ..FormatOptions::default() };
        let drive = Drive::format(Path::new(PATH), &options).await.expect("formatted");
        let spec = NamespaceSpec { name: "a".into(), bytes: BYTES, block_size: 4096 };
        let namespace = drive.create(&spec).await.expect("created");
        namespace.write_uncorrectable(Lba(0), BYTES / 4096).await.expect("marked");
        let (_, turns) = turns_given(&drive).await;
        assert!(turns >= EXTENTS, "{turns} turns in {EXTENTS} extents");
    });
}
