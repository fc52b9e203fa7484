//! Quotas that several clients use at once: what is counted is never less than what is there.

use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::{task, time};
use file::meta::Faults;
use file::record::Kind;
use file::{Amount, Error, Files, ROOT, RenameFlags};

use crate::data::bed::drawn;
use crate::opened::Place;
use crate::quotas::{MIB, assert_covered, assert_exact, counted, with_quota};
use crate::world::{file, run};

/// The model: every change of a few files by several clients, with calls that take their time and outcomes that are not told.
async fn work(files: Rc<Files>, dir: u64, seed: u64, steps: u64) {
    let mut rng = SplitMix(seed);
    for step in 0..steps {
        let name = format!("f{}", rng.index(4));
        // What others do at the same time, and what nobody learns the outcome of, may fail as it likes.
        let _done: Result<(), Error> = async {
            match rng.index(9) {
                0 => {
                    files.names().mkdir(dir, format!("d{}", rng.index(2)).as_bytes(), 0o755, 0, 0).await?;
                }
                1 => files.names().rmdir(dir, format!("d{}", rng.index(2)).as_bytes()).await?,
                2 => files.names().unlink(dir, name.as_bytes()).await?,
                3 => {
                    let other = format!("f{}", rng.index(4));
                    files
                        .names()
                        .rename((dir, name.as_bytes()), (dir, other.as_bytes()), RenameFlags::default())
                        .await?;
                }
                _ => {
                    let (told, _) = files.names().create(dir, name.as_bytes(), &file(), false).await?;
                    if told.kind != Kind::File {
                        return Ok(());
                    }
                    let file = files.open_file(told.ino).await?;
                    let written = async {
                        for _ in 0..1 + rng.index(3) {
                            let (at, length) = (rng.below(150_000), 1 + rng.index(60_000));
                            match rng.index(5) {
                                0 => file.truncate(at).await?,
                                1 => file.punch(at, at + length as u64).await?,
                                2 => drop(file.append(&vec![1; length]).await?),
                                _ => drop(file.write(at, &drawn(&mut rng, length)).await?),
                            }
                        }
                        file.flush().await
                    };
                    let written = written.await;
                    files.close_file(&file).await.and(written)?;
                }
            }
            Ok(())
        }
        .await;
        if step % 7 == 0 {
            files.names().settle_quotas().await;
        }
    }
}

#[test]
fn what_several_do_at_once_counts_exactly_and_is_never_over() {
    for seed in 0..12 {
        run(seed, async move {
            let place = Place::new().await;
            let (first, limit) = (place.client().await, 1200 * 1024);
            let dir = with_quota(first.names(), ROOT, "dir", Some(limit), Some(5)).await;
            place.meta.set_faults(Faults { delay: Duration::from_millis(2), ..Faults::default() });
            let (mut clients, mut tasks) = (vec![first], Vec::new());
            for number in 0..3 {
                let files = place.client().await;
                tasks.push(task::spawn(work(Rc::clone(&files), dir, seed * 10 + number, 60)));
                clients.push(files);
            }
            while tasks.iter().any(|task| !task.is_finished()) {
                time::sleep(Duration::from_millis(5)).await;
                for (truth, record) in counted(&place.meta).into_values() {
                    assert!(truth.fits(record.taken()), "seed {seed}: {truth:?}, {record:?}");
                    // Small pieces are put together beyond it, and leave their inodes.
                    let most = Amount { bytes: limit as i64 + 4 * MIB as i64 / 10, files: 5 };
                    assert!(truth.fits(most), "seed {seed}: {truth:?}, {record:?}");
                }
            }
            for files in clients {
                files.close().await.unwrap();
            }
            assert_exact(&place.meta);
        });
    }
}

/// With outcomes that nobody learns, and a store that refuses: too much may be counted then, and never too little.
#[test]
fn what_nobody_learns_the_outcome_of_stays_counted() {
    for seed in 0..12 {
        run(seed, async move {
            let place = Place::new().await;
            let first = place.client().await;
            let dir = with_quota(first.names(), ROOT, "dir", Some(1200 * 1024), Some(6)).await;
            let delay = Duration::from_millis(2);
            let faults = Faults { delay, unknown_ppm: 60_000, refused_ppm: 20_000, ..Faults::default() };
            let mut tasks = Vec::new();
            for number in 0..3 {
                let files = place.client().await;
                tasks.push(task::spawn(work(Rc::clone(&files), dir, seed * 10 + number, 40)));
                tasks.push(task::spawn(async move {
                    time::sleep(Duration::from_secs(200)).await;
                    drop(files)
                }));
            }
            place.meta.set_faults(faults);
            while tasks.iter().any(|task| !task.is_finished()) {
                time::sleep(Duration::from_millis(5)).await;
                assert_covered(&place.meta);
            }
            assert_covered(&place.meta);
        });
    }
}
