//! A member is lost, or fails for a while: what it lacks is written anew, and then another one may be lost.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::{task, time};
use file::mend::Fault;
use file::{ROOT, RosterError};

use super::yard::{Yard, get, in_world, inodes, mender, put, rebuild};
use crate::data::bed::drawn;

type Model = BTreeMap<String, Vec<u8>>;

/// Files of all kinds of content: in the inode, a map in it, a long map.
async fn fill(yard: &Yard, model: &mut Model, rng: &mut SplitMix, tag: &str) {
    let files = yard.client().await;
    for (name, length) in [("tiny", 100), ("short", 5000), ("middle", 700_000), ("long", 9_500_000)] {
        let (name, bytes) = (format!("{name} {tag}"), drawn(rng, length));
        put(&files, &name, 0, &bytes).await.unwrap();
        model.insert(name, bytes);
    }
    files.close().await.unwrap();
}

async fn readable_without_any(yard: &Yard, model: &Model, members: &[u16], what: &str) {
    for member in members {
        yard.set_down(*member, true);
        yard.verify(model, &format!("{what}, without {member}")).await;
        yard.set_down(*member, false);
    }
}

/// The whole story: a member dies while files are written, another one takes its place, it is taken out, and any one may die then.
#[test]
fn a_lost_member_is_replaced_and_another_one_may_be_lost() {
    for (data, parity, members) in [(2, 1, 3), (2, 1, 5), (3, 2, 5)] {
        in_world(1, async {
            let (mut rng, mut model) = (SplitMix(1), Model::new());
            let yard = Yard::new(data, parity, members).await;
            fill(&yard, &mut model, &mut rng, "before").await;
            yard.set_down(1, true);
            fill(&yard, &mut model, &mut rng, "after").await;
            let files = yard.client().await;
            if usize::from(data + parity) == members {
                let refused = files.roster().drain(1, true).await;
                let (left, needed) = (members - 1, members);
                assert_eq!(refused, Err(RosterError::TooFewDomains { left, needed }));
            }
            let new = yard.add(&files).await;
            assert_eq!(files.roster().remove(1).await, Err(RosterError::InUse(1)));
            files.roster().drain(1, true).await.unwrap();
            assert!(matches!(files.roster().remove(1).await, Err(RosterError::Held { member: 1, .. })));
            let rebuilt = rebuild(&yard).await;
            assert!(rebuilt.rewritten > 0 && rebuilt.left.rewritten == 0, "{rebuilt:?}");
            assert_eq!((rebuilt.left.failed, rebuilt.left.lost_bytes, rebuilt.taken), (0, 0, vec![]));
            files.roster().remove(1).await.unwrap();
            assert_eq!(files.roster().remove(1).await, Err(RosterError::None(1)));
            files.close().await.unwrap();
            let others: Vec<u16> = (0..=new).filter(|member| *member != 1).collect();
            readable_without_any(&yard, &model, &others, &format!("{data}+{parity}")).await;
            let audit = yard.audit().await;
            let held = audit.chunks.iter().map(|chunk| chunk.unnamed.len()).sum::<usize>();
            assert_eq!((held, audit.stray.len()), (0, 0), "rows and regions of nobody: {audit:?}");
        });
    }
}

/// It was away for a while, and is back: what was written meanwhile gets its column, and the files' times stay.
#[test]
fn a_member_that_was_away_gets_what_it_lacks() {
    in_world(2, async {
        let (mut rng, mut model) = (SplitMix(2), Model::new());
        let yard = Yard::new(2, 1, 3).await;
        yard.set_down(2, true);
        fill(&yard, &mut model, &mut rng, "a").await;
        let hindered = rebuild(&yard).await;
        assert!(hindered.left.failed > 0 && hindered.rewritten == 0, "there is nowhere to put it: {hindered:?}");
        assert_eq!(hindered.left.count(Fault::Missing), hindered.left.stripes);
        yard.set_down(2, false);
        let files = yard.client().await;
        let times = |files: std::rc::Rc<file::Files>| async move {
            let mut times = Vec::new();
            for ino in inodes(&files).await.into_values() {
                let told = files.getattr(ino).await.unwrap();
                times.push((told.modified, told.changed, told.size));
            }
            times
        };
        let before = times(std::rc::Rc::clone(&files)).await;
        time::sleep(Duration::from_secs(60)).await;
        let rebuilt = rebuild(&yard).await;
        assert_eq!((rebuilt.rewritten, rebuilt.left.failed), (hindered.left.stripes, 0));
        assert_eq!(rebuild(&yard).await.rewritten, 0);
        assert_eq!(times(files).await, before, "nobody has changed the files");
        readable_without_any(&yard, &model, &[0, 1, 2], "mended").await;
    });
}

/// Two at once, and a writer beside: nothing is mended into what it was before.
#[test]
fn two_rebuilds_and_a_writer_do_not_disturb_one_another() {
    for seed in 0..6 {
        in_world(seed, async move {
            let (mut rng, mut model) = (SplitMix(seed), Model::new());
            let yard = std::rc::Rc::new(Yard::new(2, 1, 4).await);
            yard.meta.set_faults(file::meta::Faults { delay: Duration::from_millis(2), ..Default::default() });
            yard.set_down(3, true);
            fill(&yard, &mut model, &mut rng, "a").await;
            let files = yard.client().await;
            files.roster().drain(3, true).await.unwrap();
            let rebuilds = [0, 1].map(|_| {
                let yard = std::rc::Rc::clone(&yard);
                task::spawn(async move { rebuild(&yard).await })
            });
            let name = "long a".to_owned();
            for _ in 0..40 {
                let (at, part) = (rng.index(9_000_000), rng.index(30_000));
                let bytes = drawn(&mut rng, part);
                put(&files, &name, at as u64, &bytes).await.unwrap();
                model.get_mut(&name).unwrap()[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            files.close().await.unwrap();
            for rebuild in rebuilds {
                let rebuilt = rebuild.await;
                assert_eq!((rebuilt.left.failed, rebuilt.left.lost_bytes), (0, 0), "seed {seed}: {rebuilt:?}");
            }
            assert_eq!(rebuild(&yard).await.taken, vec![], "seed {seed}");
            readable_without_any(&yard, &model, &[0, 1, 2], &format!("seed {seed}")).await;
            yard.audit().await;
        });
    }
}

/// More than parity makes good is lost: that is said by file and bytes, the rest is mended, and what can be read still is.
#[test]
fn what_is_lost_is_told_and_all_else_is_mended() {
    in_world(4, async {
        let (mut rng, mut model) = (SplitMix(4), Model::new());
        let yard = Yard::new(2, 1, 5).await;
        fill(&yard, &mut model, &mut rng, "a").await;
        let files = yard.client().await;
        let ino = inodes(&files).await["long a"];
        let stripes = files.stripes_of(ino).await.unwrap();
        let (at, stripe) = &stripes[3];
        // Its data is rotten in one column, and another one is lost.
        yard.flip(&files, stripe, 1).await;
        let lost = {
            let space = file::data::Space::new(yard.meta.client(), std::rc::Rc::clone(files.members()), 1);
            space.place(stripe.id.chunk).await.unwrap().unwrap().columns[0].member
        };
        yard.set_down(lost, true);
        files.roster().drain(lost, true).await.unwrap();
        let rebuilt = rebuild(&yard).await;
        let told: Vec<_> = rebuilt.left.lost.iter().map(|lost| (lost.inode, lost.range.clone())).collect();
        let bytes = u64::from(stripe.length);
        assert!(told.iter().all(|(inode, range)| *inode == ino && *at <= range.start && range.end <= at + bytes));
        assert!(!told.is_empty() && rebuilt.left.lost_bytes < bytes, "granules of it can be read: {rebuilt:?}");
        assert_eq!(rebuilt.left.count(Fault::Leaving), 1, "all others are elsewhere: {rebuilt:?}");
        assert!(matches!(&rebuilt.taken[..], [(member, _)] if *member == lost), "{rebuilt:?}");
        for (name, bytes) in model.iter().filter(|(name, _)| *name != "long a") {
            assert!(get(&files, name).await.unwrap() == *bytes, "{name}");
        }
        // When the file is gone, nothing holds the member.
        files.names().unlink(ROOT, b"long a").await.unwrap();
        files.close().await.unwrap();
        assert_eq!(rebuild(&yard).await.taken, vec![]);
    });
}

/// A member that comes back with what it had long ago: its bytes do not verify, and are never given out.
#[test]
fn a_member_that_is_back_with_old_bytes_is_not_believed() {
    in_world(5, async {
        let (mut rng, mut model) = (SplitMix(5), Model::new());
        let yard = Yard::new(2, 1, 3).await;
        fill(&yard, &mut model, &mut rng, "a").await;
        let old = yard.shelf(1);
        // As its medium is now, it comes back later.
        let copy = device::Memory::new(super::yard::MEMBER_BYTES, 4096, [2; 16]).unwrap();
        use device::Namespace as _;
        for lba in 0..super::yard::MEMBER_BYTES / 4096 {
            let (result, page) = old.memory.read(device::Lba(lba), engine::Buf::with_len(4096)).await;
            result.unwrap();
            copy.write(device::Lba(lba), page.freeze(), device::Durability::Stable).await.unwrap();
        }
        let files = yard.client().await;
        for name in ["short a", "middle a", "long a"] {
            let length = model[name].len();
            let bytes = drawn(&mut rng, length);
            put(&files, name, 0, &bytes).await.unwrap();
            model.insert(name.into(), bytes);
        }
        files.close().await.unwrap();
        yard.shelves.borrow_mut()[1] = crate::data::bed::Shelf::new(copy);
        yard.verify(&model, "with old bytes").await;
        let files = yard.client().await;
        let scrubbed = mender(&files).scrub(false).await.unwrap();
        assert!(scrubbed.report.count(Fault::Rotten) > 0, "{scrubbed:?}");
        assert_eq!(scrubbed.report.faults.keys().map(|(member, _)| *member).collect::<Vec<_>>(), [1], "{scrubbed:?}");
        assert_eq!((scrubbed.report.failed, scrubbed.report.lost_bytes), (0, 0));
        files.close().await.unwrap();
        readable_without_any(&yard, &model, &[0, 1, 2], "scrubbed").await;
    });
}

/// Two members are emptied while a third is away: what can be read from all columns is not written anew with one less.
#[test]
fn stripes_on_two_members_that_leave_get_no_worse() {
    in_world(6, async {
        let (mut rng, mut model) = (SplitMix(6), Model::new());
        let yard = Yard::new(2, 2, 6).await;
        fill(&yard, &mut model, &mut rng, "a").await;
        yard.set_down(2, true);
        let files = yard.client().await;
        let lacking = async || {
            let mut lacking = 0;
            for ino in inodes(&files).await.into_values() {
                let stripes = files.stripes_of(ino).await.unwrap();
                lacking += stripes.iter().filter(|(_, stripe)| (0..4).any(|column| stripe.is_missing(column))).count();
            }
            lacking
        };
        files.roster().drain(0, false).await.unwrap();
        files.roster().drain(1, false).await.unwrap();
        let rebuilt = rebuild(&yard).await;
        assert!(rebuilt.left.failed > 0, "there are three members for four columns: {rebuilt:?}");
        assert_eq!(lacking().await, 0, "{rebuilt:?}");
        yard.set_down(2, false);
        let rebuilt = rebuild(&yard).await;
        assert_eq!((rebuilt.left.failed, lacking().await, rebuilt.taken), (0, 0, vec![]));
        yard.verify(&model, "emptied").await;
    });
}

/// A member that does not answer may make up what is rotten: nobody is told that it is lost until the member is said to be.
#[test]
fn silence_is_not_told_as_loss() {
    in_world(7, async {
        let (mut rng, mut model) = (SplitMix(7), Model::new());
        let yard = Yard::new(2, 1, 5).await;
        fill(&yard, &mut model, &mut rng, "a").await;
        let files = yard.client().await;
        let ino = inodes(&files).await["long a"];
        let (_, stripe) = files.stripes_of(ino).await.unwrap().swap_remove(3);
        yard.flip(&files, &stripe, 1).await;
        let silent = {
            let space = file::data::Space::new(yard.meta.client(), std::rc::Rc::clone(files.members()), 1);
            space.place(stripe.id.chunk).await.unwrap().unwrap().columns[0].member
        };
        files.roster().drain(silent, false).await.unwrap();
        yard.set_down(silent, true);
        let rebuilt = rebuild(&yard).await;
        assert_eq!((rebuilt.left.lost_bytes, rebuilt.left.failed, rebuilt.left.unread), (0, 0, 1), "{rebuilt:?}");
        let scrubbed = mender(&files).scrub(true).await.unwrap().report;
        assert_eq!((scrubbed.lost_bytes, scrubbed.unread), (0, 1), "{scrubbed:?}");
        yard.set_down(silent, false);
        let rebuilt = rebuild(&yard).await;
        assert_eq!((rebuilt.left.failed, rebuilt.left.unread, rebuilt.taken), (0, 0, vec![]));
        yard.verify(&model, "it was there all the time").await;
    });
}

/// What a rebuild frees rests, and rests on when the command has ended: later anybody clears it, and members become empty.
#[test]
fn what_a_rebuild_has_freed_is_free_in_time() {
    in_world(8, async {
        let (mut rng, mut model) = (SplitMix(8), Model::new());
        let yard = Yard::new(2, 1, 3).await;
        yard.set_down(2, true);
        fill(&yard, &mut model, &mut rng, "a").await;
        yard.set_down(2, false);
        let files = yard.client().await;
        yard.add(&files).await;
        assert!(rebuild(&yard).await.rewritten > 0);
        files.roster().drain(0, false).await.unwrap();
        let taken = rebuild(&yard).await.taken;
        assert!(matches!(taken[..], [(0, _)]), "late commands may still write there: {taken:?}");
        assert!(matches!(files.roster().remove(0).await, Err(RosterError::Held { member: 0, .. })));
        time::sleep(Duration::from_secs(41 * 60)).await;
        files.roster().remove(0).await.unwrap();
        let held = yard.audit().await.chunks.iter().map(|chunk| chunk.unnamed.len()).sum::<usize>();
        assert_eq!(held, 0, "rows of nobody");
        yard.verify(&model, "moved").await;
    });
}
