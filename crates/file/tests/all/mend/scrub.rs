//! Rot in any column is found and made good, and a scrub that was ended goes on.

use std::rc::Rc;
use std::time::Duration;

use engine::job::Jobs;
use engine::rng::SplitMix;
use engine::time;
use file::mend::{Fault, Mender};
use file::meta::Faults;

use super::yard::{Yard, get, in_world, inodes, mender, put};
use crate::data::bed::drawn;

/// A bit in each column in turn, in data as in parity; and in two columns at once, one of each.
#[test]
fn a_flipped_bit_is_found_in_every_column() {
    for (data, parity) in [(2, 1), (3, 2)] {
        in_world(1, async {
            let columns = usize::from(data + parity);
            let yard = Yard::new(data, parity, columns + 1).await;
            let files = yard.client().await;
            let bytes = drawn(&mut SplitMix(1), 1_200_000);
            put(&files, "a", 0, &bytes).await.unwrap();
            let ino = inodes(&files).await["a"];
            let sets = (0..columns).map(|column| vec![column]);
            let pairs = (0..usize::from(parity)).skip(1).map(|_| vec![0, columns - 1]);
            for set in sets.chain(pairs) {
                let (_, stripe) = files.stripes_of(ino).await.unwrap().swap_remove(1);
                let mut members = Vec::new();
                for column in &set {
                    members.push(yard.flip(&files, &stripe, *column).await);
                }
                members.sort_unstable();
                let found = mender(&files).scrub(false).await.unwrap().report;
                let told: Vec<((u16, Fault), u64)> =
                    found.faults.iter().map(|(fault, count)| (*fault, *count)).collect();
                let expected: Vec<_> = members.into_iter().map(|member| ((member, Fault::Rotten), 1)).collect();
                assert_eq!((told, found.rewritten), (expected, 1), "{data}+{parity}, columns {set:?}");
                let again = mender(&files).scrub(false).await.unwrap().report;
                assert_eq!((again.faults.len(), again.rewritten), (0, 0), "{again:?}");
                assert!(get(&files, "a").await.unwrap() == bytes);
            }
        });
    }
}

/// One more than parity makes good: which bytes of which file, and what else is rotten is mended all the same.
#[test]
fn more_than_parity_makes_good_is_told_by_file_and_bytes() {
    in_world(2, async {
        let yard = Yard::new(2, 1, 4).await;
        let files = yard.client().await;
        for name in ["a", "b"] {
            put(&files, name, 0, &drawn(&mut SplitMix(2), 1_000_000)).await.unwrap();
        }
        let inodes = inodes(&files).await;
        let (at, bad) = files.stripes_of(inodes["a"]).await.unwrap().swap_remove(0);
        yard.flip(&files, &bad, 0).await;
        yard.flip(&files, &bad, 2).await;
        let (_, good) = files.stripes_of(inodes["b"]).await.unwrap().swap_remove(0);
        yard.flip(&files, &good, 2).await;
        let found = mender(&files).scrub(false).await.unwrap().report;
        let [lost] = &found.lost[..] else { panic!("{found:?}") };
        assert_eq!((lost.inode, lost.range.start), (inodes["a"], at));
        assert!(found.lost_bytes < 100_000, "a granule: {found:?}");
        assert_eq!((found.rewritten, found.failed), (2, 0), "what of the stripe can be read is elsewhere: {found:?}");
        let again = mender(&files).scrub(false).await.unwrap().report;
        assert_eq!((again.rewritten, again.lost_bytes), (0, found.lost_bytes), "{again:?}");
        assert!(get(&files, "a").await.is_err());
        assert!(get(&files, "b").await.is_ok());
    });
}

/// A member that does not answer is no rot: nothing is moved away from it, and what is known says that it is not known.
#[test]
fn a_member_that_is_away_is_not_taken_for_rotten() {
    in_world(3, async {
        let yard = Yard::new(2, 1, 4).await;
        let files = yard.client().await;
        put(&files, "a", 0, &[5; 2_000_000]).await.unwrap();
        yard.set_down(0, true);
        let found = mender(&files).scrub(false).await.unwrap().report;
        assert_eq!((found.rewritten, found.count(Fault::Rotten), found.failed), (0, 0, 0), "{found:?}");
        assert!(found.count(Fault::Unread) > 0);
        yard.set_down(0, false);
        // What its medium can't give back is: that goes elsewhere.
        yard.shelf(0).is_unreadable.set(true);
        let found = mender(&files).scrub(false).await.unwrap().report;
        assert!(found.rewritten > 0 && found.rewritten == found.count(Fault::Rotten), "{found:?}");
    });
}

#[test]
fn columns_that_were_not_written_are_filled() {
    in_world(4, async {
        let yard = Yard::new(2, 2, 4).await;
        let files = yard.client().await;
        yard.set_down(1, true);
        put(&files, "a", 0, &[5; 2_000_000]).await.unwrap();
        yard.set_down(1, false);
        time::sleep(Duration::from_secs(10)).await;
        let found = mender(&files).scrub(false).await.unwrap().report;
        assert!(found.rewritten > 0 && found.rewritten == found.count(Fault::Missing), "{found:?}");
        assert_eq!(mender(&files).scrub(false).await.unwrap().report.faults.len(), 0);
    });
}

/// Chunks that a client has left are claimed for what is rotten, by many stripes at once, while the store takes its time: each
/// finds a place. Once the rows of a chunk that was just claimed were gone before the one who had claimed it took any, and a
/// stripe was told that members fail.
#[test]
fn many_rotten_stripes_find_places_in_chunks_that_others_left() {
    for seed in 0..16 {
        in_world(seed, async move {
            let mut rng = SplitMix(seed);
            let yard = Yard::new(2, 1, 3).await;
            // Each leaves a chunk in which one more of these stripes has room.
            let mut before = Vec::new();
            for number in 0..16 {
                let files = yard.client().await;
                put(&files, &format!("f{number}"), 0, &drawn(&mut rng, 800_000)).await.unwrap();
                before.push(files);
            }
            for files in before {
                files.close().await.unwrap();
            }
            let files = yard.client().await;
            for ino in inodes(&files).await.into_values() {
                let [(_, stripe)] = &files.stripes_of(ino).await.unwrap()[..] else { panic!("one stripe each") };
                yard.flip(&files, stripe, rng.index(2)).await;
            }
            yard.meta.set_faults(Faults { delay: Duration::from_millis(200), ..Faults::default() });
            let found = mender(&files).scrub(false).await.unwrap().report;
            assert_eq!((found.failed, &found.failures[..]), (0, &[][..]), "seed {seed}");
            assert_eq!(found.rewritten, 16, "seed {seed}");
        });
    }
}

/// Beside writers nothing is rot: what is freed and written over while it is looked at is overtaken.
#[test]
fn what_is_written_over_meanwhile_is_no_rot() {
    for seed in 0..8 {
        in_world(seed, async move {
            let mut rng = SplitMix(seed);
            let yard = Yard::new(2, 1, 3).await;
            let files = yard.client().await;
            for shelf in yard.shelves.borrow().iter() {
                shelf.delay.set(Duration::from_millis(3));
            }
            put(&files, "a", 0, &drawn(&mut rng, 1_000_000)).await.unwrap();
            let other = yard.client().await;
            let scrubs = engine::task::spawn(async move {
                for _ in 0..15 {
                    let found = mender(&other).scrub(true).await.unwrap().report;
                    assert_eq!((found.faults.len(), found.lost_bytes, found.failed), (0, 0, 0), "{found:?}");
                }
            });
            for _ in 0..60 {
                let length = 1 + rng.index(200_000);
                put(&files, "a", rng.below(800_000), &drawn(&mut rng, length)).await.unwrap();
            }
            scrubs.await;
        });
    }
}

/// Paced by a rate, it takes its time; ended, the next one begins where it was, and sees all that is left.
#[test]
fn a_scrub_that_was_ended_goes_on() {
    in_world(5, async {
        let yard = Yard::new(2, 1, 3).await;
        let files = yard.client().await;
        for number in 0..400 {
            put(&files, &format!("f{number}"), 0, &[7; 5000]).await.unwrap();
        }
        let all = mender(&files).scrub(false).await.unwrap().report;
        assert_eq!((all.files, all.stripes), (400, 400));
        // Of each file 12 KiB are read: 10 files a second.
        let paced = || {
            let job = Jobs::default().begin("a test", Some(120 << 10), None);
            Mender::new(Rc::clone(&files), job)
        };
        let begun = time::now();
        assert!(time::timeout(Duration::from_secs(30), paced().scrub(false)).await.is_err());
        let going_on = paced();
        let rest = going_on.scrub(false).await.unwrap();
        assert!(rest.went_on.is_some() && begun.elapsed() < Duration::from_secs(62), "{rest:?}");
        assert_eq!((rest.report.files, rest.report.stripes), (400, 400), "it tells of all");
        assert!(begun.elapsed() > Duration::from_secs(40), "{:?}", begun.elapsed());
        let next = mender(&files).scrub(false).await.unwrap();
        assert!(next.went_on.is_some() && next.report.files == 400, "nobody was told yet: {next:?}");
        going_on.forget().await.unwrap();
        let next = mender(&files).scrub(false).await.unwrap();
        assert_eq!((next.went_on, next.report.files), (None, 400), "what was told is not gone on with");
        assert!(time::timeout(Duration::from_secs(30), paced().scrub(false)).await.is_err());
        let anew = mender(&files).scrub(true).await.unwrap();
        assert_eq!((anew.went_on, anew.report.files), (None, 400));
    });
}

/// What a scrub found before it was ended is told by the one that goes on: it is not clean, and why.
#[test]
fn what_was_found_before_the_end_is_told() {
    in_world(6, async {
        let yard = Yard::new(2, 1, 4).await;
        let files = yard.client().await;
        for number in 0..400 {
            put(&files, &format!("f{number}"), 0, &[7; 5000]).await.unwrap();
        }
        let all = inodes(&files).await;
        let (mut flipped, mut ruined) = (0, 0);
        for (number, ino) in all.into_values().enumerate() {
            let (_, stripe) = files.stripes_of(ino).await.unwrap().swap_remove(0);
            yard.flip(&files, &stripe, 2).await;
            flipped += 1;
            if number % 20 == 0 {
                yard.flip(&files, &stripe, 0).await;
                ruined += 1;
            }
        }
        let paced = || Mender::new(Rc::clone(&files), Jobs::default().begin("a test", Some(300 << 10), None));
        let ended = paced();
        assert!(time::timeout(Duration::from_secs(20), ended.scrub(false)).await.is_err());
        ended.note().await.unwrap();
        assert!(!ended.so_far().is_clean() && ended.so_far().rewritten > 0);
        let rest = paced().scrub(false).await.unwrap();
        assert!(rest.went_on.is_some());
        let (rotten, lost) = (rest.report.count(Fault::Rotten), rest.report.lost.len());
        assert!(rotten >= flipped && rest.report.rewritten >= flipped - ruined, "{rest:?}");
        assert_eq!(lost as u64, ruined, "{rest:?}");
    });
}
