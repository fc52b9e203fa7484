//! Locks between clients: ranges as POSIX has them, one at a time, and what becomes of them when their holder is no more.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use engine::{task, time};
use file::meta::Faults;
use file::record::Record as _;
use file::record::lock::{Holder, LOCK_END, Lock, LockKind, LockRecord};
use file::{Error, Files, Fsck, LockRequest, OpenFile, ROOT};
use proptest::prelude::*;

use crate::opened::{Place, bytes, make};
use crate::world::{kind_of, run};

pub const GOES_ON: Option<&dyn Fn() -> bool> = Some(&|| true);

pub fn wanted(owner: u64, start: u64, end: u64, is_exclusive: bool) -> LockRequest {
    LockRequest { owner, kind: LockKind::Posix, start, end, is_exclusive, pid: owner as u32 }
}

/// All of it, for one.
pub fn whole(owner: u64) -> LockRequest {
    wanted(owner, 0, LOCK_END, true)
}

/// Files that somebody has locked.
pub fn locked(place: &Place) -> usize {
    place.meta.dump().iter().filter(|(key, _)| kind_of(key) == Some(&b'l')).count()
}

/// A file that two clients have open.
pub async fn two() -> (Place, [Rc<Files>; 2], [Rc<OpenFile>; 2]) {
    let place = Place::new().await;
    let files = [place.client().await, place.client().await];
    let one = make(&files[0], "a").await;
    let two = files[1].open_file(one.ino()).await.unwrap();
    (place, files, [one, two])
}

/// Takes or frees a range of a few bytes.
fn step() -> impl Strategy<Value = (bool, Lock)> {
    let holder = (1..3u64, 0..2u64).prop_map(|(client, owner)| Holder { client, term: 0, owner });
    let kind = prop_oneof![4 => Just(LockKind::Posix), 1 => Just(LockKind::Flock)];
    let range = prop_oneof![6 => (0..20u64, 1..6u64), 1 => Just((0, LOCK_END))];
    (any::<bool>(), holder, kind, range, any::<bool>()).prop_map(
        |(takes, holder, kind, (start, length), is_exclusive)| {
            (takes, Lock { holder, kind, start, end: start + length.min(LOCK_END - start), is_exclusive, pid: 0 })
        },
    )
}

/// Who has each byte, and whether alone.
type Bytes = BTreeMap<(Holder, LockKind, u64), bool>;

fn bytes_of(lock: &Lock) -> impl Iterator<Item = u64> {
    (0..30).chain([LOCK_END - 1]).filter(|byte| (lock.start..lock.end).contains(byte))
}

proptest! {
    #[test]
    fn ranges_are_those_of_a_map_of_bytes(steps in prop::collection::vec(step(), 1..60)) {
        let (mut record, mut model) = (LockRecord::default(), Bytes::new());
        for (takes, lock) in steps {
            let clashes = |(holder, kind, byte): &(Holder, LockKind, u64), is_exclusive: bool| {
                *holder != lock.holder && *kind == lock.kind && bytes_of(&lock).any(|own| own == *byte)
                    && (is_exclusive || lock.is_exclusive)
            };
            let is_free = !model.iter().any(|(key, is_exclusive)| clashes(key, *is_exclusive));
            if takes {
                prop_assert_eq!(record.in_the_way(&lock).is_empty(), is_free);
                prop_assert_eq!(record.held_against(&lock).is_none(), is_free);
            }
            if takes && is_free {
                record.grant(lock);
                model.extend(bytes_of(&lock).map(|byte| ((lock.holder, lock.kind, byte), lock.is_exclusive)));
            } else if !takes {
                record.clear(&lock);
                model.retain(|(holder, kind, byte), _| {
                    (*holder, *kind) != (lock.holder, lock.kind) || bytes_of(&lock).all(|freed| freed != *byte)
                });
            }
            let mut found = Bytes::new();
            for lock in &record.locks {
                for byte in bytes_of(lock) {
                    prop_assert!(found.insert((lock.holder, lock.kind, byte), lock.is_exclusive).is_none());
                }
            }
            prop_assert_eq!(&found, &model);
            for pair in record.locks.windows(2) {
                let of = |lock: &Lock| (lock.holder, lock.kind, lock.is_exclusive);
                prop_assert!(of(&pair[0]) != of(&pair[1]) || pair[0].end < pair[1].start, "two that could be one");
            }
            prop_assert_eq!(LockRecord::decode(&record.encode()), Ok(record.clone()));
        }
    }
}

#[test]
fn two_clients_exclude_one_another_and_see_what_was_written_under_a_lock() {
    run(1, async {
        let (place, files, open) = two().await;
        open[0].write(0, b"0").await.unwrap();
        open[0].flush().await.unwrap();
        assert_eq!(bytes(&open[1]).await, b"", "as it was opened");
        for round in 1..=40u8 {
            let (at, other) = (usize::from(round % 2), usize::from((round + 1) % 2));
            files[at].lock(&open[at], &whole(7), None).await.unwrap();
            assert_eq!(
                files[other].lock(&open[other], &whole(7), None).await,
                Err(Error::Locked),
                "the same owner's number"
            );
            let seen = bytes(&open[at]).await[0];
            assert_eq!(seen, b'0' + round - 1);
            open[at].write(0, &[seen + 1]).await.unwrap();
            files[at].unlock(&open[at], &whole(7)).await.unwrap();
        }
        assert_eq!(locked(&place), 0);
        // Those of fcntl and of flock do not see one another; who does not know which it asks for sees both.
        let flock = LockRequest { kind: LockKind::Flock, ..whole(8) };
        files[0].lock(&open[0], &whole(7), None).await.unwrap();
        files[1].lock(&open[1], &flock, None).await.unwrap();
        for kind in [LockKind::Posix, LockKind::Flock, LockKind::Either] {
            let third = LockRequest { kind, ..whole(9) };
            assert_eq!(files[0].lock(&open[0], &third, None).await, Err(Error::Locked));
        }
        let found = files[1].test_lock(&open[1], &whole(9)).await.unwrap().map(|lock| (lock.holder.owner, lock.pid));
        assert_eq!(found, Some((7, 0)), "another client's process is none of ours");
        files[1].leave(&open[1], 8).await.unwrap();
        files[0].leave(&open[0], 7).await.unwrap();
        assert_eq!((locked(&place), files[1].test_lock(&open[1], &whole(9)).await), (0, Ok(None)));
    });
}

/// A file whose locks nobody asks for costs no more than before, and locks are given back in one change.
#[test]
fn locks_cost_what_they_are_said_to() {
    run(1, async {
        let place = Place::new().await;
        let meta = place.meta.client();
        let files = Files::open(meta.clone(), "test", "here").await.unwrap();
        let file = make(&files, "a").await;
        let _before = meta.take_counts();
        files.leave(&file, 1).await.unwrap();
        files.unlock(&file, &whole(1)).await.unwrap();
        assert_eq!(meta.take_counts(), (0, 0));
        files.lock(&file, &wanted(1, 0, 10, false), None).await.unwrap();
        assert_eq!(meta.take_counts(), (2, 1), "its locks and its inode are read, and one is changed");
        files.lock(&file, &wanted(1, 0, 10, true), None).await.unwrap();
        assert_eq!(meta.take_counts(), (1, 1));
        files.unlock(&file, &whole(1)).await.unwrap();
        assert_eq!(meta.take_counts(), (0, 1));
        files.close_file(&file).await.unwrap();
        let (_, changes) = meta.take_counts();
        assert_eq!((changes, locked(&place)), (0, 0));
    });
}

#[test]
fn who_waits_gets_a_lock_when_it_is_given_back_and_leaves_nothing_when_it_gives_up() {
    run(1, async {
        let (place, files, open) = two().await;
        place.set_delay(Duration::from_millis(1));
        files[0].lock(&open[0], &whole(1), None).await.unwrap();
        let waiting: Vec<_> = (0..2)
            .map(|at| {
                let (files, open) = (Rc::clone(&files[at]), Rc::clone(&open[at]));
                task::spawn(async move {
                    files.lock(&open, &whole(2), GOES_ON).await.unwrap();
                    time::now()
                })
            })
            .collect();
        time::sleep(Duration::from_secs(20)).await;
        let left = Cell::new(5);
        let goes_on = || left.replace(left.get() - 1) > 1;
        assert_eq!(files[1].lock(&open[1], &whole(3), Some(&goes_on)).await, Err(Error::Interrupted));
        for file in &files {
            file.names().renew().await.unwrap();
        }
        let mut free = time::now();
        files[0].unlock(&open[0], &whole(1)).await.unwrap();
        for (at, waiting) in waiting.into_iter().enumerate() {
            let got = waiting.await;
            let within = Duration::from_millis(if at == 0 { 10 } else { 250 });
            assert!(got.duration_since(free) < within, "client {at} after {:?}", got.duration_since(free));
            free = time::now();
            files[at].leave(&open[at], 2).await.unwrap();
        }
        assert_eq!(locked(&place), 0);
    });
}

/// Others that come and go here, or that share it all the time, hold nobody up for ever.
#[test]
fn nobody_starves() {
    for is_exclusive in [true, false] {
        run(1, async move {
            let (place, files, open) = two().await;
            place.set_delay(Duration::from_millis(1));
            let ends = Rc::new(Cell::new(false));
            let busy: Vec<_> = (10..14)
                .map(|owner| {
                    let (files, open, ends) = (Rc::clone(&files[0]), Rc::clone(&open[0]), Rc::clone(&ends));
                    task::spawn(async move {
                        while !ends.get() {
                            files.lock(&open, &wanted(owner, 0, 9, is_exclusive), GOES_ON).await.unwrap();
                            time::sleep(Duration::from_millis(5 * owner)).await;
                            files.unlock(&open, &whole(owner)).await.unwrap();
                        }
                    })
                })
                .collect();
            for _ in 0..5 {
                time::sleep(Duration::from_millis(100)).await;
                let waited = time::timeout(Duration::from_secs(2), files[1].lock(&open[1], &whole(1), GOES_ON)).await;
                assert_eq!(waited, Ok(Ok(())), "exclusive: {is_exclusive}");
                files[1].unlock(&open[1], &whole(1)).await.unwrap();
            }
            ends.set(true);
            for busy in busy {
                busy.await;
            }
            assert_eq!(locked(&place), 0);
        });
    }
}

/// The holder dies, or its host does: others wait a minute and a half.
#[test]
fn a_dead_clients_locks_end() {
    run(1, async {
        let (place, files, open) = two().await;
        let _alive = files[1].keep_alive();
        files[0].lock(&open[0], &whole(1), None).await.unwrap();
        let begun = time::now();
        files[1].lock(&open[1], &whole(1), GOES_ON).await.unwrap();
        let waited = begun.elapsed();
        assert!((90..94).contains(&waited.as_secs()), "{waited:?}");
        files[1].unlock(&open[1], &whole(1)).await.unwrap();
        // One that has ended in order, and left a lock, keeps nobody waiting.
        let third = place.client().await;
        let file = third.open_file(open[1].ino()).await.unwrap();
        third.lock(&file, &whole(1), None).await.unwrap();
        third.names().close().await.unwrap();
        files[1].lock(&open[1], &whole(1), None).await.unwrap();
    });
}

/// As its host was suspended, or the pool was away: it knows before others have its locks, and nothing of it comes over theirs.
#[test]
fn who_loses_its_locks_is_told_so_before_others_have_them() {
    run(1, async {
        let (place, files, open) = two().await;
        let _alive = files[1].keep_alive();
        open[0].write(0, b"before").await.unwrap();
        files[0].lock(&open[0], &whole(1), None).await.unwrap();
        let waiting = task::spawn({
            let (files, open) = (Rc::clone(&files[1]), Rc::clone(&open[1]));
            async move {
                files.lock(&open, &whole(1), GOES_ON).await.unwrap();
                open.write(0, b"theirs").await.unwrap();
                files.unlock(&open, &whole(1)).await.unwrap();
                time::now()
            }
        });
        let begun = time::now();
        time::sleep(Duration::from_secs(39)).await;
        assert_eq!(bytes(&open[0]).await, b"before");
        open[0].write(0, b"late").await.unwrap();
        time::sleep(Duration::from_secs(2)).await;
        let noticed = time::now();
        assert_eq!(open[0].read(0, 9).await.err(), Some(Error::LostLock));
        assert_eq!(open[0].write(0, b"x").await, Err(Error::LostLock));
        assert_eq!(open[0].flush().await, Err(Error::LostLock));
        assert_eq!(files[0].unlock(&open[0], &whole(1)).await, Err(Error::LostLock));
        assert_eq!(files[0].lock(&open[0], &whole(1), None).await, Err(Error::LostLock));
        assert_eq!(files[0].open_file(open[0].ino()).await.err(), Some(Error::LostLock));
        assert_eq!(files[0].next_lost().await, open[0].ino());
        // It says again that it lives: its locks do not come back with that.
        files[0].names().renew().await.unwrap();
        assert_eq!(open[0].read(0, 9).await.err(), Some(Error::LostLock));
        // Nor do others have them sooner for that: what was sent before may be under way.
        time::sleep(Duration::from_secs(49)).await;
        assert!(!waiting.is_finished());
        files[0].names().renew().await.unwrap();
        let taken = waiting.await;
        let waited = taken.duration_since(begun);
        assert!(noticed < taken && (90..95).contains(&waited.as_secs()), "{waited:?}");
        assert_eq!(files[0].close_file(&open[0]).await, Err(Error::LostLock), "what it wrote is lost");
        let again = files[0].open_file(open[0].ino()).await.unwrap();
        assert_eq!(bytes(&again).await, b"theirs");
        files[0].lock(&again, &whole(1), None).await.unwrap();
        assert_eq!(files[1].lock(&open[1], &whole(1), None).await, Err(Error::Locked));
        files[0].leave(&again, 1).await.unwrap();
        assert_eq!(locked(&place), 0);
    });
}

/// A client that renews goes on: nobody takes its locks.
#[test]
fn a_lock_lasts_as_long_as_its_client_lives() {
    run(1, async {
        let (_place, files, open) = two().await;
        let _alive = [files[0].keep_alive(), files[1].keep_alive()];
        time::sleep(Duration::from_secs(59)).await;
        files[0].lock(&open[0], &whole(1), None).await.unwrap();
        let wanted = whole(1);
        let others = time::timeout(Duration::from_secs(600), files[1].lock(&open[1], &wanted, GOES_ON));
        assert!(others.await.is_err());
        open[0].write(0, b"mine").await.unwrap();
        files[0].unlock(&open[0], &whole(1)).await.unwrap();
    });
}

/// A short outage of the store: what is given back in it is given back later.
#[test]
fn what_could_not_be_given_back_is_given_back_later() {
    run(1, async {
        let (place, files, open) = two().await;
        let _alive = [files[0].keep_alive(), files[1].keep_alive()];
        files[0].lock(&open[0], &whole(1), None).await.unwrap();
        place.meta.set_faults(Faults { refused_ppm: 1_000_000, ..Faults::default() });
        assert!(files[0].leave(&open[0], 1).await.is_err());
        files[0].close_file(&open[0]).await.unwrap();
        place.meta.set_faults(Faults::default());
        time::sleep(Duration::from_secs(16)).await;
        assert_eq!(locked(&place), 0);
        files[1].lock(&open[1], &whole(1), None).await.unwrap();
        files[1].leave(&open[1], 1).await.unwrap();
    });
}

/// Changes of which nobody knows whether they took effect, and which do so late.
#[test]
fn nobody_has_it_with_another_whatever_is_unknown() {
    for seed in 0..12 {
        run(seed, async {
            let (place, files, open) = two().await;
            let _alive = [files[0].keep_alive(), files[1].keep_alive()];
            let late = Duration::from_secs(3);
            let faults = Faults { delay: Duration::from_millis(3), unknown_ppm: 250_000, late, ..Faults::default() };
            place.meta.set_faults(faults);
            let (inside, entered) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let users: Vec<_> = (0..6)
                .map(|user| {
                    let (files, open) = (Rc::clone(&files[user % 2]), Rc::clone(&open[user % 2]));
                    let (inside, entered) = (Rc::clone(&inside), Rc::clone(&entered));
                    task::spawn(async move {
                        let wanted = whole(user as u64);
                        for _ in 0..8 {
                            let mut ends = Ok(());
                            if files.lock(&open, &wanted, GOES_ON).await.is_ok() {
                                assert_eq!(inside.replace(1), 0, "two have it");
                                time::sleep(Duration::from_millis(7)).await;
                                inside.set(0);
                                entered.set(entered.get() + 1);
                                ends = files.unlock(&open, &wanted).await;
                            }
                            while ends.is_err() {
                                time::sleep(Duration::from_millis(20)).await;
                                ends = files.unlock(&open, &wanted).await;
                            }
                        }
                        while files.leave(&open, wanted.owner).await.is_err() {}
                    })
                })
                .collect();
            for user in users {
                user.await;
            }
            assert!(entered.get() > 30, "{}", entered.get());
            place.meta.set_faults(Faults::default());
            time::sleep(Duration::from_secs(60)).await;
            assert_eq!(locked(&place), 0);
        });
    }
}

/// A file that is gone has no locks, and its last locks go with their holder's close.
#[test]
fn a_removed_files_locks_go_with_their_holder() {
    run(1, async {
        let (place, files, open) = two().await;
        files[0].lock(&open[0], &whole(1), None).await.unwrap();
        files[1].close_file(&open[1]).await.unwrap();
        files[1].names().unlink(ROOT, b"a").await.unwrap();
        assert_eq!(files[0].lock(&open[0], &whole(2), None).await, Err(Error::Locked));
        assert_eq!(files[0].lock(&open[0], &wanted(1, 5, 9, false), None).await, Err(Error::Stale));
        files[0].leave(&open[0], 1).await.unwrap();
        assert_eq!(files[0].lock(&open[0], &whole(2), None).await, Err(Error::Stale));
        assert_eq!(locked(&place), 0);
        // One that dies with the file leaves them to the check.
        let last = make(&files[0], "b").await;
        files[0].lock(&last, &whole(1), None).await.unwrap();
        files[1].names().unlink(ROOT, b"b").await.unwrap();
        for (repairs, left) in [(false, 1), (true, 0)] {
            Fsck::new(&files[1], repairs, None).run(false).await.unwrap();
            assert_eq!(locked(&place), left);
        }
    });
}

#[test]
fn a_file_has_so_many_locks_and_no_more() {
    run(1, async {
        let (_place, files, open) = two().await;
        for at in 0..file::record::lock::LOCKS_MAX as u64 {
            files[0].lock(&open[0], &wanted(1, 2 * at, 2 * at + 1, true), None).await.unwrap();
        }
        assert_eq!(files[1].lock(&open[1], &wanted(1, 5001, 5002, true), None).await, Err(Error::NoLocks));
        assert_eq!(files[1].lock(&open[1], &whole(1), GOES_ON).await, Err(Error::NoLocks));
        files[0].lock(&open[0], &whole(1), None).await.unwrap();
        files[0].unlock(&open[0], &whole(1)).await.unwrap();
        files[1].lock(&open[1], &whole(1), None).await.unwrap();
    });
}

/// Two that share it and want it alone: by `flock` the one that asks first gives back what it has.
#[test]
fn two_that_have_flock_shared_do_not_wait_for_one_another() {
    run(1, async {
        let (_place, files, open) = two().await;
        let flock = |is_exclusive| LockRequest { kind: LockKind::Flock, is_exclusive, ..whole(1) };
        for at in 0..2 {
            files[at].lock(&open[at], &flock(false), None).await.unwrap();
        }
        let both: Vec<_> = (0..2)
            .map(|at| {
                let (files, open) = (Rc::clone(&files[at]), Rc::clone(&open[at]));
                task::spawn(async move {
                    files.lock(&open, &flock(true), GOES_ON).await.unwrap();
                    files.unlock(&open, &flock(true)).await.unwrap();
                })
            })
            .collect();
        for one in both {
            time::timeout(Duration::from_secs(5), one).await.expect("it comes to an end");
        }
    });
}
