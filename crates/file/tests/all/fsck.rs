//! `fsck`: after every death of one who writes bytes, beside those who live, and with each kind of record damaged.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::task::{self, LocalFuture};
use engine::time;
use file::data::Auditor;
use file::meta::{Death, Faults, KeyPage, MemoryClient, MemoryMeta, Meta, Seen, Swapped, Version};
use file::{Error, FileSystem, Files, Fsck, Left, ROOT, RenameFlags, Report};

use crate::audit::{Leaks, audit, count};
use crate::opened::{Place, make};
use crate::random::disturb;
use crate::world::{at, client, create, fresh, kind_of, mkdir, names, over, run_long};

pub const MINUTE: Duration = Duration::from_secs(60);

/// A check that mends, and waits for what an hour settles.
pub async fn mended(meta: &MemoryMeta) -> Report {
    check(meta.client(), true).await
}

pub async fn check(meta: Rc<dyn Meta>, repairs: bool) -> Report {
    let files = Files::open(meta, "test", "fsck").await.unwrap();
    let report = Fsck::new(&files, repairs, None).run(repairs).await.unwrap();
    files.close().await.unwrap();
    report
}

/// A look finds nothing.
pub async fn assert_clean(meta: &MemoryMeta) {
    let report = check(meta.client(), false).await;
    assert!(!report.is_damaged() && report.left() == 0, "{report:?}");
}

/// What is done before calls, of which it is told whether they are changes, and of which keys.
type Hook = Box<dyn FnMut(bool, &[u8]) -> Option<LocalFuture<'static, ()>>>;

/// A client before whose calls something else may be done.
pub struct Hooked {
    inner: Rc<MemoryClient>,
    hook: RefCell<Hook>,
}

impl Hooked {
    pub fn new(
        meta: &MemoryMeta,
        hook: impl FnMut(bool, &[u8]) -> Option<LocalFuture<'static, ()>> + 'static,
    ) -> Rc<Hooked> {
        Rc::new(Hooked { inner: meta.client(), hook: RefCell::new(Box::new(hook)) })
    }

    async fn call(&self, is_change: bool, key: &[u8]) {
        let before = (self.hook.borrow_mut())(is_change, key);
        if let Some(before) = before {
            before.await;
        }
    }
}

impl Meta for Hooked {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        Box::pin(async move {
            self.call(false, key).await;
            self.inner.get(key).await
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        Box::pin(async move {
            self.call(true, key).await;
            self.inner.swap(key, expected, new).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        self.inner.list(prefix, cursor, limit)
    }
}

/// All kinds of content, and the ways between them; of two files, one of which goes.
async fn write_all(files: Rc<Files>) {
    let mut rng = SplitMix(5);
    let (short, long) = (make(&files, "short").await, make(&files, "long").await);
    short.write(0, &crate::data::bed::drawn(&mut rng, 20_000)).await.unwrap();
    short.flush().await.unwrap();
    for piece in 0..120 {
        long.write(piece * 9000, &crate::data::bed::drawn(&mut rng, 5000)).await.unwrap();
        long.flush().await.unwrap();
    }
    long.truncate(200_000).await.unwrap();
    long.write(9 << 20, &crate::data::bed::drawn(&mut rng, 300_000)).await.unwrap();
    long.flush().await.unwrap();
    files.names().unlink(ROOT, b"short").await.unwrap();
    files.close_file(&short).await.unwrap();
    long.write(0, &crate::data::bed::drawn(&mut rng, 100_000)).await.unwrap();
    files.close_file(&long).await.unwrap();
    let again = make(&files, "again").await;
    again.write(0, &crate::data::bed::drawn(&mut rng, 3000)).await.unwrap();
    again.flush().await.unwrap();
    files.names().unlink(ROOT, b"long").await.unwrap();
    files.close().await.unwrap();
}

async fn bytes_and_death(death: Death) -> bool {
    let place = Place::new().await;
    let dying = place.meta.client();
    let files = place.client_over(dying.clone()).await;
    dying.die_at(Some(death));
    let writing = task::spawn(write_all(files));
    while !writing.is_finished() && !dying.is_dead() {
        time::sleep(Duration::from_millis(100)).await;
    }
    drop(writing);
    let report = mended(&place.meta).await;
    assert!(!report.is_damaged() && report.left() == 0, "{death:?}: {report:?}");
    assert_clean(&place.meta).await;
    assert_eq!(count(&place.meta), Leaks::default(), "{death:?}");
    // Whatever is there can be read; and when all of it is gone, nothing is left.
    let last = place.client().await;
    for (name, ino) in names(last.names(), ROOT, 10).await.unwrap() {
        let file = last.open_file(ino).await.unwrap();
        file.read(0, 64 << 20).await.unwrap_or_else(|error| panic!("{death:?}, {name}: {error}"));
        last.close_file(&file).await.unwrap();
        last.names().unlink(ROOT, name.as_bytes()).await.unwrap();
    }
    let members = Rc::clone(last.members());
    last.close().await.unwrap();
    let audit = Auditor::new(place.meta.client(), members).audit(&[]).await.unwrap();
    assert_eq!((audit.faults, audit.stray, audit.chunks), (Vec::new(), Vec::new(), Vec::new()), "{death:?}");
    let kinds: Vec<u8> = place.meta.dump().iter().filter_map(|(key, _)| kind_of(key).copied()).collect();
    assert!(!kinds.iter().any(|kind| b"abcikmx".contains(kind) && *kind != b'i'), "{death:?}: {kinds:?}");
    dying.is_dead()
}

#[test]
fn after_every_death_of_a_writer_nothing_is_left_that_no_file_has() {
    for takes_effect in [false, true] {
        let mut swaps = 0;
        while run_long(swaps, bytes_and_death(Death { swaps, takes_effect })) {
            swaps += if swaps < 40 { 1 } else { 2 };
        }
        assert!(swaps > 120, "{swaps}");
    }
}

/// A linker stands still for an hour between the inode and the entry, and goes on when `fsck` has read all names: before it changes
/// the inode, or before it reads that once more for it.
#[test]
fn a_name_that_comes_when_its_link_is_about_to_go_stays() {
    let reads = linked_late(None);
    linked_late(Some(reads));
}

/// The linker comes to its end before that so many-th read of an inode by `fsck`, or before its first change of one. How many reads
/// there were before that.
fn linked_late(last: Option<u32>) -> u32 {
    run_long(1, async move {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let dir = mkdir(&fs, ROOT, "dir").await;
        let ino = create(&fs, dir, "first").await;
        let go: Rc<Cell<bool>> = Rc::default();
        let late = over(Hooked::new(&meta, {
            let go = Rc::clone(&go);
            move |is_change, key| {
                let waits = is_change && kind_of(key) == Some(&b'd') && !go.get();
                let go = Rc::clone(&go);
                waits.then(|| -> LocalFuture<'static, ()> {
                    Box::pin(async move {
                        while !go.get() {
                            time::sleep(Duration::from_millis(1)).await;
                        }
                    })
                })
            }
        }))
        .await;
        let linking = task::spawn({
            let late = late.clone();
            async move { late.link(ino, dir, b"second").await.map(drop) }
        });
        time::sleep(Duration::from_secs(1)).await;
        let (linking, reads) = (Rc::new(linking), Rc::new(Cell::new(0)));
        let hooked = Hooked::new(&meta, {
            let (go, linking, reads) = (Rc::clone(&go), Rc::clone(&linking), Rc::clone(&reads));
            move |is_change, key| {
                if kind_of(key) != Some(&b'i') || go.get() {
                    return None;
                }
                reads.set(reads.get() + u32::from(!is_change));
                go.set(is_change || Some(reads.get()) == last);
                let linking = Rc::clone(&linking);
                go.get().then(|| -> LocalFuture<'static, ()> {
                    Box::pin(async move {
                        while !linking.is_finished() {
                            time::sleep(Duration::from_millis(1)).await;
                        }
                    })
                })
            }
        });
        let renewing = task::spawn({
            let (late, fs) = (late.clone(), fs.clone());
            async move {
                loop {
                    time::sleep(MINUTE).await;
                    late.renew().await.unwrap();
                    fs.renew().await.unwrap();
                }
            }
        });
        let report = check(hooked, true).await;
        assert!(go.get() && !report.is_damaged(), "{report:?}");
        drop(renewing);
        for path in ["dir/first", "dir/second"] {
            assert_eq!(at(&fs, path).await.map(|told| (told.ino, told.links)), Ok((ino, 2)), "{path}");
        }
        reads.get()
    })
}

/// Whenever all names are read, a name goes from the directory that is read later to the one that was read before.
#[test]
fn a_name_that_is_met_at_neither_place_is_no_reason_to_remove_what_it_leads_to() {
    run_long(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let dirs = [mkdir(&fs, ROOT, "p").await, mkdir(&fs, ROOT, "q").await];
        let ino = create(&fs, dirs[0], "x").await;
        let (first, moves): (Rc<Cell<u64>>, Rc<Cell<u32>>) = Default::default();
        let hooked = Hooked::new(&meta, {
            let (fs, first, moves) = (fs.clone(), first, Rc::clone(&moves));
            move |is_change, key| {
                let dir =
                    dirs.into_iter().find(|dir| key.ends_with(&dir.to_be_bytes()) && kind_of(key) == Some(&b'd'))?;
                if is_change {
                    return None;
                }
                // It is brought to the one that is read later, and when that is read, to the one that was read before.
                let (before, other) = (first.get(), dirs.into_iter().find(|other| *other != dir)?);
                let (from, to) = match before {
                    0 => (dir, other),
                    _ if before == dir => return None,
                    _ => (dir, before),
                };
                first.set(if before == 0 { dir } else { 0 });
                let (fs, moves) = (fs.clone(), Rc::clone(&moves));
                Some(Box::pin(async move {
                    let moved = fs.rename((from, b"x"), (to, b"x"), RenameFlags::default()).await;
                    moves.set(moves.get() + u32::from(moved.is_ok()));
                }))
            }
        });
        check(hooked, true).await;
        assert!(moves.get() >= 3, "{moves:?}");
        assert!(fs.getattr(ino).await.is_ok(), "a file that has a name was removed");
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}

/// It becomes a keeper when `fsck` has read what clients keep, and not yet the inodes.
#[test]
fn a_client_that_keeps_a_file_since_clients_were_read_keeps_it() {
    run_long(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let ino = create(&fs, ROOT, "x").await;
        fs.open_inode(ino).await.unwrap();
        let is_done = Rc::new(Cell::new(false));
        let hooked = Hooked::new(&meta, {
            let (fs, is_done) = (fs.clone(), Rc::clone(&is_done));
            move |_, key| {
                let comes = kind_of(key) == Some(&b'i') && !is_done.replace(true);
                let fs = fs.clone();
                comes.then(|| -> LocalFuture<'static, ()> {
                    Box::pin(async move { fs.unlink(ROOT, b"x").await.unwrap() })
                })
            }
        });
        let files = Files::open(hooked, "test", "fsck").await.unwrap();
        Fsck::new(&files, true, None).run(false).await.unwrap();
        assert!(is_done.get());
        assert_eq!(fs.getattr(ino).await.map(|told| told.links), Ok(0), "it is open");
        fs.release(ino).await.unwrap();
        fs.close().await.unwrap();
        files.close().await.unwrap();
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}

/// A client some of whose calls stand still for up to 100 minutes before they are sent, and which lives.
async fn sleepy(meta: &MemoryMeta, seed: u64) -> (Rc<FileSystem>, task::Task<()>) {
    let draw = RefCell::new(SplitMix(seed));
    let hooked = Hooked::new(meta, move |_, key| {
        let mut draw = draw.borrow_mut();
        // What says that it lives comes in time.
        let sleeps = draw.below(40) == 0 && kind_of(key) != Some(&b'c');
        let time = Duration::from_secs(draw.below(100 * 60));
        sleeps.then(|| -> LocalFuture<'static, ()> { Box::pin(time::sleep(time)) })
    });
    let fs = over(hooked).await;
    let renewing = task::spawn({
        let fs = fs.clone();
        async move {
            loop {
                time::sleep(MINUTE).await;
                let _unknown = fs.renew().await;
            }
        }
    });
    (fs, renewing)
}

/// Two checks at once, again and again, beside clients that live, are slow, and die.
#[test]
fn what_clients_do_beside_checks_fits_together() {
    for seed in 0..12 {
        run_long(seed, async move {
            let meta = fresh().await;
            let unknown_ppm = if seed % 3 == 0 { 10_000 } else { 0 };
            meta.set_faults(Faults { delay: Duration::from_millis(50), unknown_ppm, ..Faults::default() });
            let mut acting = Vec::new();
            for which in 0..3 {
                let (fs, renewing) = sleepy(&meta, seed * 10 + which).await;
                for half in 0..2 {
                    let (fs, mut draw) = (fs.clone(), SplitMix(seed * 100 + which * 10 + half));
                    acting.push(task::spawn(async move {
                        let mut dirs = vec![ROOT];
                        while time::now().as_nanos() < 5 * 3_600_000_000_000 {
                            disturb(&fs, &mut draw, &mut dirs).await;
                            time::sleep(Duration::from_secs(draw.below(120))).await;
                        }
                    }));
                }
                acting.push(renewing);
            }
            // One of them dies.
            let (dying, fs) = client(&meta).await;
            dying.die_at(Some(Death { swaps: 20 + seed, takes_effect: seed % 2 == 0 }));
            acting.push(task::spawn(async move {
                let (mut draw, mut dirs) = (SplitMix(seed), vec![ROOT]);
                loop {
                    disturb(&fs, &mut draw, &mut dirs).await;
                }
            }));
            let checks = [0, 1].map(|which| {
                let meta = meta.clone();
                task::spawn(async move {
                    time::sleep(which * 7 * MINUTE).await;
                    while time::now().as_nanos() < 5 * 3_600_000_000_000 {
                        let report = check(meta.client(), true).await;
                        assert!(!report.is_damaged(), "seed {seed}: {report:?}");
                    }
                })
            });
            for check in checks {
                check.await;
            }
            drop(acting);
            meta.set_faults(Faults::default());
            let report = mended(&meta).await;
            assert!(!report.is_damaged() && report.left() == 0, "seed {seed}: {report:?}");
            assert_eq!(count(&meta), Leaks::default(), "seed {seed}");
        });
    }
}

/// It lives, and has in its memory what it has marked; it has written nothing for hours.
#[test]
fn rows_that_a_client_that_lives_has_marked_stay_its_own() {
    run_long(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let _alive = files.keep_alive();
        let before = make(&files, "before").await;
        before.write(0, &vec![1; 300_000]).await.unwrap();
        before.flush().await.unwrap();
        // Another is no more: so there is something to wait for.
        drop(place.client().await);
        let report = mended(&place.meta).await;
        assert_eq!(report.left.get(&Left::Client).map(|tally| tally.mended), Some(1), "{report:?}");
        let other = place.client().await;
        let (after, theirs) = (make(&files, "after").await, make(&other, "theirs").await);
        for (file, byte) in [(&theirs, 3), (&after, 2)] {
            file.write(0, &vec![byte; 900_000]).await.unwrap();
            file.flush().await.unwrap();
        }
        assert_clean(&place.meta).await;
        for (file, expected) in [(&before, vec![1; 300_000]), (&after, vec![2; 900_000]), (&theirs, vec![3; 900_000])] {
            assert!(
                place.client().await.open_file(file.ino()).await.unwrap().read(0, 1 << 20).await.unwrap().to_vec()
                    == expected
            );
        }
    });
}

/// A writer has put the map of a file into spans, and stands still before the inode says so; it goes on when these were removed.
#[test]
fn a_map_whose_spans_were_taken_for_left_over_is_given_to_nobody() {
    run_long(1, async {
        let place = Place::new().await;
        let (go, has_spans): (Rc<Cell<bool>>, Rc<Cell<bool>>) = Default::default();
        let hooked = Hooked::new(&place.meta, {
            let (go, has_spans) = (Rc::clone(&go), Rc::clone(&has_spans));
            move |is_change, key| {
                has_spans.set(has_spans.get() || (is_change && kind_of(key) == Some(&b'b')));
                let waits = is_change && kind_of(key) == Some(&b'i') && has_spans.get() && !go.get();
                let go = Rc::clone(&go);
                waits.then(|| -> LocalFuture<'static, ()> {
                    Box::pin(async move {
                        while !go.get() {
                            time::sleep(Duration::from_secs(1)).await;
                        }
                    })
                })
            }
        });
        let files = place.client_over(hooked).await;
        let _alive = files.keep_alive();
        let file = make(&files, "long").await;
        let flushed: Rc<Cell<usize>> = Rc::default();
        let writing = task::spawn({
            let (file, flushed) = (Rc::clone(&file), Rc::clone(&flushed));
            async move {
                for piece in 0..120 {
                    file.write(piece * 9000, &[piece as u8 + 1; 5000]).await?;
                    file.flush().await?;
                    flushed.set(flushed.get() + 1);
                }
                Ok::<(), Error>(())
            }
        });
        time::sleep(MINUTE).await;
        assert!(has_spans.get() && !writing.is_finished());
        let report = mended(&place.meta).await;
        assert!(report.left.get(&Left::Span).is_some_and(|tally| tally.mended > 0), "{report:?}");
        go.set(true);
        let late = writing.await;
        assert!(matches!(late, Err(Error::Unavailable(_))), "its rows were taken hours ago: {late:?}");
        let read = async |pieces: usize| {
            let read =
                place.client().await.open_file(file.ino()).await.unwrap().read(0, 2 << 20).await.unwrap().to_vec();
            assert_eq!(read.len(), (pieces - 1) * 9000 + 5000);
            for (piece, bytes) in read.chunks(9000).enumerate() {
                let (bytes, hole) = bytes.split_at(5000);
                assert!(bytes == [piece as u8 + 1; 5000] && hole.iter().all(|byte| *byte == 0), "{piece} of {pieces}");
            }
        };
        // What was in the map before is in it yet: the spans were of one that the file has never had.
        read(flushed.get()).await;
        file.flush().await.unwrap();
        read(flushed.get() + 1).await;
        for piece in flushed.get() as u64..120 {
            file.write(piece * 9000, &[piece as u8 + 1; 5000]).await.unwrap();
        }
        file.flush().await.unwrap();
        read(120).await;
        assert_clean(&place.meta).await;
    });
}
