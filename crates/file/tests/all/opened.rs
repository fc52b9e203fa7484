//! Files as those see them who have them open: names and bytes as one, by several clients.

use std::rc::Rc;
use std::time::Duration;

use device::Memory;
use engine::rng::SplitMix;
use engine::{task, time};
use file::data::Auditor;
use file::meta::{Faults, MemoryMeta, Meta};
use file::record::Time;
use file::record::root::{MemberRecord, MemberState};
use file::{Change, CreateOptions, DIRTY_BYTES_MAX, Error, FileSystem, Files, OpenFile, ROOT};

use crate::data::bed::{Gate, Shelf, drawn};
use crate::world::{file, options, run};

pub const MIB: u64 = 1 << 20;
const MEMBER_BYTES: u64 = 32 * MIB;

/// A file system of three members: two columns of data and one of parity.
pub struct Place {
    pub meta: MemoryMeta,
    pub shelves: Vec<Rc<Shelf>>,
}

impl Place {
    pub async fn new() -> Place {
        let (meta, mut shelves, mut members) = (MemoryMeta::new(), Vec::new(), Vec::new());
        for index in 0..3u8 {
            shelves.push(Shelf::new(Memory::new(MEMBER_BYTES, 4096, [index + 1; 16]).unwrap()));
            members.push(MemberRecord {
                place: String::new(),
                bytes: MEMBER_BYTES,
                state: MemberState::Active,
                domain: format!("rack {index}"),
            });
        }
        let options = CreateOptions { data: 2, parity: 1, region_bytes: MIB, members, ..options() };
        FileSystem::create_root(meta.client(), "test", &options).await.unwrap();
        Place { meta, shelves }
    }

    /// One more client.
    pub async fn client(&self) -> Rc<Files> {
        self.client_over(self.meta.client()).await
    }

    pub async fn client_over(&self, client: Rc<dyn Meta>) -> Rc<Files> {
        let files = Files::open(client, "test", "here").await.unwrap();
        let gate = Gate::at(None);
        for (index, shelf) in self.shelves.iter().enumerate() {
            files.members().connect(index as u16, Some(shelf.reached(&gate)));
        }
        files
    }

    /// Calls and commands take up to this long.
    pub fn set_delay(&self, delay: Duration) {
        self.meta.set_faults(Faults { delay, ..Faults::default() });
        self.shelves.iter().for_each(|shelf| shelf.delay.set(delay));
    }

    pub fn set_down(&self, is_down: bool) {
        self.shelves.iter().for_each(|shelf| shelf.is_down.set(is_down));
    }
}

pub async fn make(files: &Rc<Files>, name: &str) -> Rc<OpenFile> {
    let (made, _) = files.names().create(ROOT, name.as_bytes(), &file(), true).await.unwrap();
    files.open_file(made.ino).await.unwrap()
}

pub async fn bytes(file: &OpenFile) -> Vec<u8> {
    file.read(0, 64 * MIB as usize).await.unwrap().to_vec()
}

/// Writes at random places, most of them small: the map of such a file is a long one.
fn write_of(rng: &mut SplitMix) -> (u64, Vec<u8>) {
    let length = if rng.index(8) == 0 { 300_000 } else { 1 + rng.index(6000) };
    (rng.below(10 * MIB), drawn(rng, length))
}

fn put(model: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let at = at as usize;
    model.resize(model.len().max(at + bytes.len()), 0);
    model[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Reads what is written all the time, in the blocks' order or not, while blocks leave.
#[test]
fn a_read_sees_what_was_written_before_wherever_that_is() {
    for seed in 0..6 {
        run(seed, async {
            let place = Place::new().await;
            let files = place.client().await;
            let file = make(&files, "a").await;
            place.set_delay(Duration::from_millis(3));
            let (mut rng, mut model) = (SplitMix(seed), Vec::new());
            let flushing = {
                let file = Rc::clone(&file);
                task::spawn(async move {
                    loop {
                        time::sleep(Duration::from_millis(7)).await;
                        file.flush().await.unwrap();
                    }
                })
            };
            for _ in 0..150 {
                let (at, written) = write_of(&mut rng);
                file.write(at, &written).await.unwrap();
                put(&mut model, at, &written);
                // Some while the bytes lie here, some while they leave, some when they have arrived.
                for _ in 0..6 {
                    let from = if rng.index(4) > 0 { at } else { rng.below(model.len() as u64 + 1) };
                    let wanted = rng.index(200_000);
                    let read = file.read(from, wanted).await.unwrap().to_vec();
                    let end = model.len().min(from as usize + wanted);
                    assert!(read == model[from as usize..end], "seed {seed}: {wanted} bytes from {from}");
                }
            }
            drop(flushing);
            files.close_file(&file).await.unwrap();
            let again = place.client().await;
            let file = again.open_file(file.ino()).await.unwrap();
            assert!(bytes(&file).await == model, "seed {seed}");
        });
    }
}

/// Two clients in turns, each with the file open or just closed before: what was closed is seen by who opens then, also where
/// the map
/// is long and was remembered.
#[test]
fn what_was_closed_is_seen_by_whoever_opens_it_then() {
    run(1, async {
        let place = Place::new().await;
        let clients = [place.client().await, place.client().await];
        let first = make(&clients[0], "a").await;
        let (ino, mut rng, mut model) = (first.ino(), SplitMix(5), Vec::new());
        // Held open all the time by one of them: its next handle looks again.
        for turn in 0..60 {
            let files = &clients[turn % 2];
            let file = files.open_file(ino).await.unwrap();
            assert!(bytes(&file).await == model, "turn {turn}");
            for _ in 0..8 {
                let (at, written) = write_of(&mut rng);
                file.write(at, &written).await.unwrap();
                put(&mut model, at, &written);
            }
            file.flush().await.unwrap();
            files.close_file(&file).await.unwrap();
            let told = clients[(turn + 1) % 2].getattr(ino).await.unwrap();
            assert_eq!(told.size, model.len() as u64, "turn {turn}");
        }
        clients[0].close_file(&first).await.unwrap();
    });
}

#[test]
fn a_time_that_is_set_stays_though_bytes_go_out_after_it() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        file.write(0, &[1; 10_000]).await.unwrap();
        let old = Time { seconds: 1_000_000_000, nanos: 5 };
        let change = Change { modified: Some(old), ..Change::default() };
        assert_eq!(files.setattr(file.ino(), &change).await.unwrap().modified, old);
        files.close_file(&file).await.unwrap();
        assert_eq!(files.getattr(file.ino()).await.unwrap().modified, old);
    });
}

/// The moment of the last write is the file's, not that of the flush.
#[test]
fn bytes_that_go_out_later_do_not_change_the_time() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        file.write(0, &[1; 10_000]).await.unwrap();
        let before = files.getattr(file.ino()).await.unwrap();
        time::sleep(Duration::from_secs(2)).await;
        files.close_file(&file).await.unwrap();
        let after = files.getattr(file.ino()).await.unwrap();
        assert_eq!((after.size, after.modified), (10_000, before.modified));
    });
}

#[test]
fn a_fault_is_told_and_the_bytes_are_kept_for_the_next_flush() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        file.write(0, &[7; 5000]).await.unwrap();
        place.set_down(true);
        assert!(file.flush().await.is_err(), "no member answers");
        assert_eq!(file.read(0, 5000).await.unwrap().to_vec(), [7; 5000]);
        place.set_down(false);
        file.flush().await.unwrap();
        let other = place.client().await;
        assert_eq!(bytes(&other.open_file(file.ino()).await.unwrap()).await, [7; 5000]);
    });
}

/// Memory is bounded: a writer that is faster than its members waits, and is told where nothing goes out.
#[test]
fn what_is_not_in_stripes_is_bounded() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let [one, two] = [make(&files, "a").await, make(&files, "b").await];
        place.set_down(true);
        let blocks = DIRTY_BYTES_MAX as u64 / MIB;
        // Nothing at their begin: that would go into their inodes.
        for block in 1..=blocks / 2 {
            one.write(block * MIB, &[1]).await.unwrap();
            two.write(block * MIB, &[2]).await.unwrap();
        }
        assert!(one.write((blocks + 1) * MIB, &[1]).await.is_err(), "there is no room, and nothing goes out");
        place.set_down(false);
        // The first one's faults are told; then there is room.
        let mut told = 0;
        while let Err(error) = one.write((blocks + 1) * MIB, &[1]).await {
            assert!(matches!(error, Error::Unavailable(_) | Error::NoSpace(_)), "{error}");
            told += 1;
            assert!(told < 10, "{error}");
        }
        // Closed files give their room back.
        for file in [&one, &two] {
            let _told = files.close_file(file).await;
        }
        let three = make(&files, "c").await;
        for block in 0..blocks {
            three.write(block * MIB, &[3]).await.unwrap();
        }
    });
}

#[test]
fn a_file_without_a_name_lives_until_it_is_closed() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        file.write(0, &[1; 100_000]).await.unwrap();
        file.flush().await.unwrap();
        files.names().unlink(ROOT, b"a").await.unwrap();
        file.write(100_000, &[2; 10]).await.unwrap();
        file.flush().await.unwrap();
        assert_eq!(bytes(&file).await.len(), 100_010);
        files.close_file(&file).await.unwrap();
        assert_eq!(files.open_file(file.ino()).await.err(), Some(Error::Stale));
    });
}

/// What is open when its client ends goes out.
#[test]
fn the_end_of_a_client_takes_nothing_with_it() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        file.write(3, b"abc").await.unwrap();
        files.close().await.unwrap();
        let other = place.client().await;
        assert_eq!(bytes(&other.open_file(file.ino()).await.unwrap()).await, b"\0\0\0abc");
    });
}

/// Hosts that append to one file at once, short and long: each piece is there whole, and none lies over another.
#[test]
fn what_several_append_lies_apart() {
    for (seed, length) in [(1, 30), (2, 3000), (3, 70_000)] {
        run(seed, async {
            let place = Place::new().await;
            let clients = [place.client().await, place.client().await, place.client().await];
            let ino = make(&clients[0], "a").await.ino();
            place.set_delay(Duration::from_millis(2));
            let mut tasks = Vec::new();
            for (number, files) in clients.iter().enumerate() {
                let files = Rc::clone(files);
                tasks.push(task::spawn(async move {
                    let file = files.open_file(ino).await.unwrap();
                    for piece in 0..40u8 {
                        file.append(&vec![number as u8 * 50 + piece + 1; length]).await.unwrap();
                    }
                }));
            }
            for task in tasks {
                task.await;
            }
            let file = clients[0].open_file(ino).await.unwrap();
            let mut found: Vec<u8> = Vec::new();
            for piece in bytes(&file).await.chunks(length) {
                assert!(piece.len() == length && piece.iter().all(|byte| *byte == piece[0]), "seed {seed}");
                found.push(piece[0]);
            }
            for number in 0..3 {
                let own: Vec<u8> = found.iter().copied().filter(|byte| (byte - 1) / 50 == number).collect();
                assert_eq!(own, (1..=40).map(|piece| number * 50 + piece).collect::<Vec<u8>>(), "seed {seed}");
            }
        });
    }
}

/// Of files whose map is in the inode, and of long ones; also of such as are open when their names go, and by two at once.
#[test]
fn what_removed_files_had_is_free_again() {
    run(1, async {
        let place = Place::new().await;
        let (files, other) = (place.client().await, place.client().await);
        let mut rng = SplitMix(1);
        let mut made = Vec::new();
        for name in ["short", "long", "open", "twice"] {
            let file = make(&files, name).await;
            let writes = if name == "long" { 200 } else { 3 };
            for _ in 0..writes {
                let (at, written) = write_of(&mut rng);
                file.write(at, &written).await.unwrap();
            }
            file.flush().await.unwrap();
            made.push(file);
        }
        let open = made.remove(2);
        for file in &made {
            files.close_file(file).await.unwrap();
        }
        for name in ["short", "long", "open"] {
            files.names().unlink(ROOT, name.as_bytes()).await.unwrap();
        }
        open.write(0, &drawn(&mut rng, 10_000)).await.unwrap();
        files.close_file(&open).await.unwrap();
        let twice = {
            let files = Rc::clone(&files);
            task::spawn(async move { files.names().unlink(ROOT, b"twice").await })
        };
        let again = other.names().unlink(ROOT, b"twice").await;
        assert!(again.is_ok() != twice.await.is_ok(), "it had one name");
        let members = Rc::clone(files.members());
        for files in [&files, &other] {
            files.close().await.unwrap();
        }
        let audit = Auditor::new(place.meta.client(), members).audit(&[]).await.unwrap();
        assert_eq!(audit.faults, [""; 0]);
        let marked: u32 = audit.chunks.iter().map(|chunk| chunk.marked).sum();
        assert_eq!(marked, 0, "rows that nobody has: {audit:?}");
    });
}

/// Of a long file, whose length is not in the change that names the bytes.
#[test]
fn an_append_that_fails_leaves_the_length() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        let mut rng = SplitMix(1);
        for _ in 0..200 {
            let (at, written) = write_of(&mut rng);
            file.write(at, &written).await.unwrap();
        }
        file.flush().await.unwrap();
        let before = files.getattr(file.ino()).await.unwrap().size;
        place.set_down(true);
        assert!(file.append(&[1; 3000]).await.is_err(), "no member answers");
        assert_eq!(files.getattr(file.ino()).await.unwrap().size, before);
        place.set_down(false);
        time::sleep(Duration::from_secs(60)).await;
        assert_eq!(file.append(&[1; 3000]).await, Ok(before));
    });
}

#[test]
fn a_file_that_another_host_removed_holds_no_room() {
    run(1, async {
        let place = Place::new().await;
        let (files, other) = (place.client().await, place.client().await);
        let file = make(&files, "a").await;
        let blocks = DIRTY_BYTES_MAX as u64 / MIB;
        for block in 1..=blocks {
            file.write(block * MIB, &[1]).await.unwrap();
        }
        other.names().unlink(ROOT, b"a").await.unwrap();
        assert_eq!(file.flush().await, Err(Error::Stale));
        let next = make(&files, "b").await;
        for block in 1..=blocks {
            next.write(block * MIB, &[2]).await.unwrap();
        }
        assert_eq!(file.write(0, &[1]).await, Err(Error::Stale));
        assert_eq!(files.close_file(&file).await, Err(Error::Stale));
        files.close_file(&next).await.unwrap();
    });
}

/// Many blocks, of which the first are written again all the time.
#[test]
fn what_nobody_flushes_is_out_after_ten_seconds() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let _alive = files.keep_alive();
        let file = make(&files, "a").await;
        for block in 1..=100 {
            file.write(block * MIB / 4, &[1]).await.unwrap();
        }
        place.set_delay(Duration::from_millis(12));
        for _ in 0..1100 {
            time::sleep(Duration::from_millis(10)).await;
            for block in 0..6 {
                file.write(block * MIB, &[2]).await.unwrap();
            }
        }
        let other = place.client().await;
        let seen = bytes(&other.open_file(file.ino()).await.unwrap()).await;
        let missing: Vec<u64> = (24..=100).filter(|block| seen.get((block * MIB / 4) as usize) != Some(&1)).collect();
        assert_eq!(missing, [0; 0]);
    });
}

#[test]
fn an_open_handle_reads_as_far_as_stat_says() {
    run(1, async {
        let place = Place::new().await;
        let (files, other) = (place.client().await, place.client().await);
        let file = make(&files, "a").await;
        file.write(0, &[1; 10_000]).await.unwrap();
        file.flush().await.unwrap();
        assert_eq!(bytes(&file).await.len(), 10_000);
        let theirs = other.open_file(file.ino()).await.unwrap();
        theirs.append(&[2; 5000]).await.unwrap();
        assert_eq!(files.getattr(file.ino()).await.unwrap().size, 15_000);
        assert_eq!(bytes(&file).await, [[1; 10_000].as_slice(), &[2; 5000]].concat());
        // And no further, though it has been longer.
        theirs.truncate(4000).await.unwrap();
        assert_eq!(files.getattr(file.ino()).await.unwrap().size, 4000);
        assert_eq!(bytes(&file).await, [1; 4000]);
        let old = Time { seconds: 1_000_000_000, nanos: 5 };
        let change = Change { modified: Some(old), ..Change::default() };
        other.setattr(file.ino(), &change).await.unwrap();
        assert_eq!(files.getattr(file.ino()).await.unwrap().modified, old);
    });
}

/// What is not wanted any more needs no room.
#[test]
fn a_file_is_emptied_though_nothing_can_go_out() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        file.write(0, &[1; 3_000_000]).await.unwrap();
        place.set_down(true);
        assert!(file.flush().await.is_err(), "no member answers");
        file.truncate(0).await.unwrap();
        file.write(0, b"new").await.unwrap();
        files.close_file(&file).await.unwrap();
        assert_eq!(bytes(&files.open_file(file.ino()).await.unwrap()).await, b"new");
    });
}

#[test]
fn who_writes_takes_away_what_a_program_gains_by_its_owner() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        for (mode, left) in [(0o6755, 0o755), (0o2644, 0o2644), (0o1777, 0o1777)] {
            files.setattr(file.ino(), &Change { mode: Some(mode), ..Change::default() }).await.unwrap();
            files.names().drop_rights(file.ino()).await.unwrap();
            assert_eq!(files.getattr(file.ino()).await.unwrap().mode, left);
        }
    });
}
