//! What was written lasts, whatever comes between: another answer, a truncation that fails, an outage at the last close.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use engine::{task, time};
use file::data::Auditor;
use file::meta::{Faults, Meta};
use file::record::Time;
use file::{DIRTY_BYTES_MAX, Error, ROOT};

use crate::opened::{MIB, Place, bytes, make};
use crate::world::run;

/// A block that arrived while `stat` was under way was in neither: the kernel cut what it had of the file by that.
#[test]
fn stat_says_at_least_what_was_written() {
    for seed in 0..12 {
        run(seed, async {
            let place = Place::new().await;
            let files = place.client().await;
            let file = make(&files, "a").await;
            place.set_delay(Duration::from_millis(20));
            let (written, is_over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let asking: Vec<_> = (0..4)
                .map(|by_name| {
                    let (files, written, is_over) = (Rc::clone(&files), Rc::clone(&written), Rc::clone(&is_over));
                    let ino = file.ino();
                    task::spawn(async move {
                        while !is_over.get() {
                            let least = written.get();
                            let told = match by_name % 2 {
                                0 => files.getattr(ino).await,
                                _ => files.lookup(ROOT, b"a").await,
                            };
                            let told = told.unwrap();
                            assert!(told.size >= least, "seed {seed}: {} of {least}", told.size);
                        }
                    })
                })
                .collect();
            for block in 0..30 {
                file.write(block * MIB, &vec![7; MIB as usize]).await.unwrap();
                written.set((block + 1) * MIB);
                time::sleep(Duration::from_millis(10)).await;
            }
            file.flush().await.unwrap();
            is_over.set(true);
            for task in asking {
                task.await;
            }
        });
    }
}

/// What lay behind was dropped before the truncation had failed: the file kept its length, and older bytes came back.
#[test]
fn a_truncation_that_fails_drops_nothing() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        file.write(0, &vec![1; 3 * MIB as usize]).await.unwrap();
        file.flush().await.unwrap();
        let parts = [(MIB / 2 - 100, 200), (2 * MIB + 5, 4000)];
        let mut expected = vec![1; 3 * MIB as usize];
        for (at, length) in parts {
            file.write(at, &vec![2; length]).await.unwrap();
            expected[at as usize..at as usize + length].fill(2);
        }
        place.meta.set_faults(Faults { refused_ppm: 1_000_000, ..Faults::default() });
        for size in [0, MIB / 2] {
            assert!(file.truncate(size).await.is_err(), "nothing can be changed");
        }
        assert!(bytes(&file).await == expected);
        place.meta.set_faults(Faults::default());
        file.flush().await.unwrap();
        let other = place.client().await;
        assert!(bytes(&other.open_file(file.ino()).await.unwrap()).await == expected);
        file.truncate(MIB / 2).await.unwrap();
        expected.truncate(MIB as usize / 2);
        assert!(bytes(&file).await == expected);
    });
}

/// A truncation that took away all that was gathered left its time behind: what was written much later had that.
#[test]
fn a_truncation_takes_the_time_of_what_it_takes() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        file.write(0, &[1; 5000]).await.unwrap();
        time::sleep(Duration::from_secs(3)).await;
        file.truncate(0).await.unwrap();
        time::sleep(Duration::from_secs(600)).await;
        let before = Time::now();
        file.append(b"later").await.unwrap();
        let told = files.getattr(file.ino()).await.unwrap();
        assert!(told.modified >= before, "{before:?}, {told:?}");
    });
}

/// The last close of a removed file fell into an outage: nobody tried again, and its bytes were kept as long as the client lived.
#[test]
fn what_was_closed_in_an_outage_is_let_go_after_it() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let _alive = files.keep_itself_alive();
        let file = make(&files, "a").await;
        file.write(0, &vec![7; 2 * MIB as usize]).await.unwrap();
        file.flush().await.unwrap();
        let ino = file.ino();
        files.names().unlink(ROOT, b"a").await.unwrap();
        place.meta.set_faults(Faults { refused_ppm: 1_000_000, ..Faults::default() });
        assert!(files.close_file(&file).await.is_err(), "nothing can be changed");
        place.meta.set_faults(Faults::default());
        assert!(files.names().getattr(ino).await.is_ok());
        time::sleep(Duration::from_secs(30)).await;
        assert!(matches!(files.names().getattr(ino).await, Err(Error::Stale)));
        time::sleep(Duration::from_secs(2400)).await;
        let client: Rc<dyn Meta> = place.meta.client();
        let audit = Auditor::new(client, Rc::clone(files.members())).audit(&[]).await.unwrap();
        assert_eq!(audit.faults, [""; 0]);
    });
}

/// A block of thousands of little parts was one change of a map, which had no room for it: it could never be stored.
#[test]
fn a_block_of_very_many_parts_goes_out() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        let mut expected = vec![0; MIB as usize];
        for at in (0..MIB).step_by(256) {
            file.write(at, &[7; 8]).await.unwrap();
            expected[at as usize..at as usize + 8].fill(7);
        }
        expected.truncate(MIB as usize - 256 + 8);
        file.flush().await.unwrap();
        let other = place.client().await;
        assert!(bytes(&other.open_file(file.ino()).await.unwrap()).await == expected);
    });
}

/// Blocks that left with one that can't be stored were kept back with it, flush after flush.
#[test]
fn a_block_that_can_not_be_stored_keeps_no_other_back() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        // Long enough that its map is in spans.
        for at in 0..400 {
            file.write(at * 8192, &[1; 1]).await.unwrap();
        }
        file.flush().await.unwrap();
        for at in [10 * MIB, 20 * MIB] {
            file.write(at, &[1]).await.unwrap();
        }
        file.flush().await.unwrap();
        let is_second = |key: &[u8]| key.ends_with(&1u64.to_be_bytes()) && key.get(12 + 16) == Some(&b'b');
        let spans: Vec<Vec<u8>> =
            place.meta.dump().into_iter().map(|(key, _)| key).filter(|key| is_second(key)).collect();
        let [span] = &spans[..] else { panic!("{spans:?}") };
        let client = place.meta.client();
        let stood = client.get(span).await.unwrap().expect("it is there");
        client.swap(span, Some(stood.version), Some(b"damaged".to_vec())).await.unwrap();
        let places = [3 * MIB + 1, 10 * MIB, 18 * MIB];
        for at in places {
            file.write(at, &[7]).await.unwrap();
        }
        assert!(matches!(file.flush().await, Err(Error::Damaged(_))));
        let other = place.client().await;
        let again = other.open_file(file.ino()).await.unwrap();
        for at in [places[0], places[2]] {
            assert_eq!(again.read(at, 1).await.unwrap().to_vec(), [7], "{at}");
            again.write(at, &[9]).await.unwrap();
        }
        again.flush().await.unwrap();
        // What has arrived goes out no more.
        assert!(matches!(file.flush().await, Err(Error::Damaged(_))));
        let third = place.client().await;
        let again = third.open_file(file.ino()).await.unwrap();
        for at in [places[0], places[2]] {
            assert_eq!(again.read(at, 1).await.unwrap().to_vec(), [9], "{at}");
        }
    });
}

/// What a truncation that failed had taken was back beside as much as others had gathered in its room.
#[test]
fn what_a_failed_truncation_puts_back_has_its_room() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let [one, two] = [make(&files, "a").await, make(&files, "b").await];
        let blocks = DIRTY_BYTES_MAX as u64 / MIB;
        place.set_down(true);
        for block in 1..=blocks {
            one.write(block * MIB, &[1]).await.unwrap();
        }
        assert!(one.truncate(MIB + MIB / 2).await.is_err(), "what lies below can't go out");
        assert!(two.write(MIB, &[2]).await.is_err(), "there is no room for more");
        place.set_down(false);
        one.flush().await.unwrap();
        two.write(MIB, &[2]).await.unwrap();
        two.flush().await.unwrap();
        assert_eq!(one.read(blocks * MIB, 1).await.unwrap().to_vec(), [1]);
    });
}
