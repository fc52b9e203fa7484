//! Locks whose holder is late, away, or back again: nothing of it comes over what others do, and nobody takes what it has by right.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use engine::task::{self, LocalFuture};
use engine::time;
use file::meta::{Death, Faults};
use file::record::Record as _;
use file::record::lock::{LOCKS_MAX, LockRecord};
use file::{Error, LockRequest};

use crate::fsck::Hooked;
use crate::locks::{GOES_ON, locked, two, wanted, whole};
use crate::opened::{Place, bytes, make};
use crate::world::{kind_of, run};

const MIB: usize = 1 << 20;

fn refuse(place: &Place) {
    place.meta.set_faults(Faults { refused_ppm: 1_000_000, ..Faults::default() });
}

/// The inodes, and who has locks.
fn seen(place: &Place) -> (Vec<Vec<u8>>, Vec<u64>) {
    let all = place.meta.dump();
    let of = |kind: u8| all.iter().filter(move |(key, _)| kind_of(key) == Some(&kind)).map(|(_, value)| value);
    let locks = of(b'l').flat_map(|value| LockRecord::decode(value).unwrap().locks);
    (of(b'i').cloned().collect(), locks.map(|lock| lock.holder.client).collect())
}

/// It has closed the file, which could not be told; then it opens it again, and locks it.
#[test]
fn who_is_back_keeps_what_it_asks_for_now() {
    run(1, async {
        let (place, files, open) = two().await;
        let _alive = [files[0].keep_alive(), files[1].keep_alive()];
        files[0].lock(&open[0], &wanted(1, 0, 100, true), None).await.unwrap();
        refuse(&place);
        assert!(files[0].leave(&open[0], 1).await.is_err());
        place.meta.set_faults(Faults::default());
        files[0].lock(&open[0], &wanted(1, 0, 10, true), None).await.unwrap();
        // What it had and has not asked for is given back by that.
        files[1].lock(&open[1], &wanted(1, 10, 100, true), None).await.unwrap();
        time::sleep(Duration::from_secs(30)).await;
        assert_eq!(files[1].lock(&open[1], &wanted(1, 0, 10, true), None).await, Err(Error::Locked));
        files[0].leave(&open[0], 1).await.unwrap();
        files[1].leave(&open[1], 1).await.unwrap();
        assert_eq!(locked(&place), 0);
    });
}

/// Who stops waiting while the store is away stands in nobody's way for long.
#[test]
fn a_claim_that_could_not_be_given_up_is_given_up_later() {
    run(1, async {
        let (place, files, open) = two().await;
        let _alive = [files[0].keep_alive(), files[1].keep_alive()];
        files[0].lock(&open[0], &wanted(1, 0, 10, true), None).await.unwrap();
        let waiting = task::spawn({
            let (files, open) = (Rc::clone(&files[1]), Rc::clone(&open[1]));
            let ends = time::now() + Duration::from_secs(3);
            async move { files.lock(&open, &whole(1), Some(&|| time::now() < ends)).await }
        });
        time::sleep(Duration::from_secs(2)).await;
        refuse(&place);
        assert_eq!(waiting.await, Err(Error::Interrupted));
        place.meta.set_faults(Faults::default());
        assert_eq!(files[0].lock(&open[0], &wanted(2, 20, 30, true), None).await, Err(Error::Locked));
        time::sleep(Duration::from_secs(16)).await;
        files[0].lock(&open[0], &wanted(2, 20, 30, true), None).await.unwrap();
    });
}

/// What a dead holder had under way is kept out before the record forgets it, also by who waits for another's lock then.
#[test]
fn who_drops_a_dead_holder_changes_the_inode_first() {
    for swaps in 0..3 {
        run(1, async move {
            let (place, files, open) = two().await;
            let meta = place.meta.client();
            let third = place.client_over(meta.clone()).await;
            let file = third.open_file(open[1].ino()).await.unwrap();
            files[0].lock(&open[0], &wanted(1, 0, 10, false), None).await.unwrap();
            let _alive = files[1].keep_alive();
            files[1].lock(&open[1], &wanted(1, 0, 10, false), None).await.unwrap();
            let dead = files[0].names().client();
            for _ in 0..100 {
                third.test_lock(&file, &wanted(1, 0, 10, true)).await.unwrap();
                time::sleep(Duration::from_secs(1)).await;
            }
            third.names().renew().await.unwrap();
            let (before, holders) = seen(&place);
            assert!(holders.contains(&dead));
            meta.die_at(Some(Death { swaps, takes_effect: true }));
            let whole = wanted(1, 0, 10, true);
            let asking = third.lock(&file, &whole, GOES_ON);
            let _dies = time::timeout(Duration::from_secs(1), asking).await;
            let (after, holders) = seen(&place);
            assert!(holders.contains(&dead) || after != before, "{swaps}");
            assert_eq!(swaps > 0, !holders.contains(&dead), "{swaps}");
        });
    }
}

/// Members are slow: what was on its way when the lease ended does not come, also where the file was closed and the loss forgiven.
#[test]
fn what_is_on_its_way_when_a_lock_is_lost_does_not_come() {
    for (is_long, is_closed) in [(false, false), (false, true), (true, false), (true, true)] {
        run(1, async move {
            let (place, files, open) = two().await;
            if is_long {
                for at in 0..300 {
                    open[0].write(at * 20_000, &[1; 5000]).await.unwrap();
                }
                open[0].flush().await.unwrap();
            }
            let before = bytes(&open[0]).await;
            files[0].lock(&open[0], &whole(1), None).await.unwrap();
            time::sleep(Duration::from_secs(39)).await;
            place.shelves.iter().for_each(|shelf| shelf.delay.set(Duration::from_secs(25)));
            // Whole blocks leave at once.
            open[0].write(0, &vec![7; 8 * MIB]).await.unwrap();
            time::sleep(Duration::from_millis(1100)).await;
            if is_closed {
                assert_eq!(files[0].close_file(&open[0]).await, Err(Error::LostLock));
            }
            time::sleep(Duration::from_secs(200)).await;
            place.shelves.iter().for_each(|shelf| shelf.delay.set(Duration::ZERO));
            let again = files[1].open_file(open[1].ino()).await.unwrap();
            assert!(bytes(&again).await == before, "long: {is_long}, closed: {is_closed}");
        });
    }
}

/// One that leaves can't store what another has written: that one is told.
#[test]
fn whose_bytes_are_dropped_by_another_is_told_once() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        let [one, two] = [file.handle(), file.handle()];
        files.lock(&file, &LockRequest { is_exclusive: false, ..whole(1) }, None).await.unwrap();
        file.write(0, &[7; MIB]).await.unwrap();
        place.set_down(true);
        assert!(files.leave(&file, 1).await.is_err());
        assert!(one.told(&file).is_err());
        place.set_down(false);
        assert!(two.flush(&file).await.is_err(), "the bytes are gone");
        assert_eq!((one.flush(&file).await, two.flush(&file).await), (Ok(()), Ok(())));
        let new = file.handle();
        assert_eq!(new.flush(&file).await, Ok(()));
    });
}

/// The pool does not answer: that the lease is over is noticed then, and not when the answer comes.
#[test]
fn a_loss_is_noticed_when_it_is_one() {
    run(1, async {
        let (place, files, open) = two().await;
        let _alive = files[0].keep_alive();
        files[0].lock(&open[0], &whole(1), None).await.unwrap();
        open[0].write(0, b"never").await.unwrap();
        let begun = time::now();
        place.meta.set_faults(Faults { delay: Duration::from_secs(3600), ..Faults::default() });
        assert_eq!(files[0].next_lost().await, open[0].ino());
        assert!((35..41).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    });
}

/// A client that lives has forgotten that it waits: others go on all the same.
#[test]
fn a_claim_of_nobody_ends() {
    run(1, async {
        let (_place, files, open) = two().await;
        let _alive = [files[0].keep_alive(), files[1].keep_alive()];
        files[0].lock(&open[0], &wanted(1, 0, 10, true), None).await.unwrap();
        let all = whole(1);
        assert!(time::timeout(Duration::from_secs(1), files[1].lock(&open[1], &all, GOES_ON)).await.is_err());
        files[0].unlock(&open[0], &whole(1)).await.unwrap();
        assert_eq!(files[0].lock(&open[0], &wanted(1, 0, 10, true), None).await, Err(Error::Locked));
        let begun = time::now();
        files[0].lock(&open[0], &wanted(1, 0, 10, true), GOES_ON).await.unwrap();
        assert!((28..32).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    });
}

/// Many wait here, and one of them looks.
#[test]
fn of_many_that_wait_one_looks() {
    run(1, async {
        let place = Place::new().await;
        let holder = place.client().await;
        let file = make(&holder, "a").await;
        holder.lock(&file, &wanted(1, 0, 100, true), None).await.unwrap();
        let meta = place.meta.client();
        let files = place.client_over(meta.clone()).await;
        let open = files.open_file(file.ino()).await.unwrap();
        let waiting: Vec<_> = (0..50)
            .map(|at| {
                let (files, open) = (Rc::clone(&files), Rc::clone(&open));
                task::spawn(async move { files.lock(&open, &wanted(at, at, at + 1, true), GOES_ON).await })
            })
            .collect();
        time::sleep(Duration::from_secs(5)).await;
        let _before = meta.take_counts();
        time::sleep(Duration::from_secs(10)).await;
        let (gets, swaps) = meta.take_counts();
        assert!(gets < 300 && swaps < 5, "{gets} {swaps}");
        for at in 0..50 {
            holder.unlock(&file, &wanted(1, at, at + 1, true)).await.unwrap();
        }
        for waiting in waiting {
            time::timeout(Duration::from_secs(1), waiting).await.unwrap().unwrap();
        }
    });
}

/// Two wait here, each for another's lock: the one that looks is not in need of what the other one's holder leaves.
#[test]
fn who_leaves_looking_to_another_finds_its_own_holder_dead() {
    run(1, async {
        let (place, files, open) = two().await;
        let dead = place.client().await;
        let file = dead.open_file(open[0].ino()).await.unwrap();
        dead.lock(&file, &wanted(1, 50, 60, true), None).await.unwrap();
        let _alive = [files[0].keep_alive(), files[1].keep_alive()];
        files[0].lock(&open[0], &wanted(1, 0, 10, true), None).await.unwrap();
        let _looks = task::spawn({
            let (files, open) = (Rc::clone(&files[1]), Rc::clone(&open[1]));
            async move { files.lock(&open, &wanted(1, 0, 10, true), GOES_ON).await }
        });
        time::sleep(Duration::from_secs(1)).await;
        let wanted = wanted(2, 50, 60, true);
        let waited = time::timeout(Duration::from_secs(115), files[1].lock(&open[1], &wanted, GOES_ON)).await;
        assert_eq!(waited, Ok(Ok(())));
    });
}

/// A hole that was begun under a lock is made nowhere when the lock is another's: the record of the span was slow to read.
#[test]
fn a_hole_that_is_on_its_way_when_a_lock_is_lost_is_not_made() {
    run(1, async {
        let place = Place::new().await;
        let is_slow = Rc::new(Cell::new(false));
        let hooked = Hooked::new(&place.meta, {
            let is_slow = Rc::clone(&is_slow);
            move |is_change, key| {
                let waits = is_slow.get() && !is_change && kind_of(key) == Some(&b'b');
                waits.then(|| -> LocalFuture<'static, ()> { Box::pin(time::sleep(Duration::from_secs(60))) })
            }
        });
        let files = place.client_over(hooked).await;
        let file = make(&files, "a").await;
        for at in 0..300 {
            file.write(at * 20_000, &[1; 5000]).await.unwrap();
        }
        file.flush().await.unwrap();
        let before = bytes(&file).await;
        files.lock(&file, &whole(1), None).await.unwrap();
        time::sleep(Duration::from_secs(39)).await;
        is_slow.set(true);
        assert_eq!(file.punch(0, 6_000_000).await, Err(Error::LostLock));
        let other = place.client().await;
        let again = other.open_file(file.ino()).await.unwrap();
        assert!(bytes(&again).await == before);
    });
}

/// Who asks again while what it had is given back keeps it.
#[test]
fn nothing_is_given_back_of_one_that_is_back() {
    run(1, async {
        let (_place, files, open) = two().await;
        files[0].lock(&open[0], &whole(1), None).await.unwrap();
        files[0].leave_unless(&open[0], 1, &|| true).await.unwrap();
        assert_eq!(files[1].lock(&open[1], &whole(1), None).await, Err(Error::Locked));
        files[0].leave_unless(&open[0], 1, &|| false).await.unwrap();
        files[1].lock(&open[1], &whole(1), None).await.unwrap();
    });
}

/// As many locks as there may be are of one that died, and in nobody's way.
#[test]
fn locks_of_the_dead_keep_no_file_full() {
    run(1, async {
        let (_place, files, open) = two().await;
        let _alive = files[1].keep_alive();
        for at in 0..LOCKS_MAX as u64 {
            files[0].lock(&open[0], &wanted(1, 2 * at, 2 * at + 1, true), None).await.unwrap();
        }
        let (begun, mut told) = (time::now(), Err(Error::NoLocks));
        while told == Err(Error::NoLocks) && begun.elapsed() < Duration::from_secs(200) {
            time::sleep(Duration::from_secs(2)).await;
            told = files[1].lock(&open[1], &wanted(1, 5001, 5002, true), None).await;
        }
        assert_eq!(told, Ok(()));
        assert!((88..96).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    });
}
