//! Members that leave and join beside clients that have not heard of it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::{task, time};
use file::RosterError;

use super::yard::{Yard, get, in_world, inodes, mender, put, rebuild};
use crate::data::bed::drawn;

/// Drained while others write all the time: it becomes empty, and nothing of theirs is lost.
#[test]
fn a_member_is_drained_beside_writers() {
    for seed in 0..4 {
        in_world(seed, async move {
            let yard = Rc::new(Yard::new(2, 1, 4).await);
            yard.meta.set_faults(file::meta::Faults { delay: Duration::from_millis(1), ..Default::default() });
            let is_over = Rc::new(Cell::new(false));
            let writers = [0u64, 1].map(|number| {
                let (yard, is_over) = (Rc::clone(&yard), Rc::clone(&is_over));
                task::spawn(async move {
                    let files = yard.client().await;
                    let alive = files.keep_alive();
                    let (mut rng, mut model) = (SplitMix(seed * 2 + number), BTreeMap::new());
                    while !is_over.get() {
                        let name = format!("{number} {}", rng.index(6));
                        let length = 1 + rng.index(400_000);
                        let bytes = drawn(&mut rng, length);
                        let old: &mut Vec<u8> = model.entry(name.clone()).or_default();
                        put(&files, &name, 0, &bytes).await.unwrap();
                        old.resize(old.len().max(bytes.len()), 0);
                        old[..bytes.len()].copy_from_slice(&bytes);
                        time::sleep(Duration::from_millis(200)).await;
                    }
                    drop(alive);
                    files.close().await.unwrap();
                    model
                })
            });
            time::sleep(Duration::from_secs(20)).await;
            let roster = yard.client().await;
            roster.roster().drain(2, false).await.unwrap();
            let rebuilt = rebuild(&yard).await;
            assert_eq!((rebuilt.left.failed, rebuilt.taken), (0, vec![]), "seed {seed}");
            roster.roster().remove(2).await.unwrap();
            roster.close().await.unwrap();
            yard.set_down(2, true);
            time::sleep(Duration::from_secs(20)).await;
            is_over.set(true);
            let mut model = BTreeMap::new();
            for writer in writers {
                model.extend(writer.await);
            }
            yard.verify(&model, &format!("seed {seed}")).await;
            yard.audit().await;
        });
    }
}

/// A client that has not heard takes no region of the member, and asks then; what it puts into a chunk that it has there is found.
#[test]
fn who_has_not_heard_gets_no_region_and_is_waited_for() {
    in_world(7, async {
        let yard = Yard::new(2, 1, 4).await;
        let (old, other) = (yard.client().await, yard.client().await);
        put(&old, "a", 0, &[1; 5000]).await.unwrap();
        let on = |files: Rc<file::Files>| async move { files.roster().chunks_on(0).await.unwrap() };
        // The first member that it has a chunk on.
        let first = on(Rc::clone(&other)).await;
        let member = if first.is_empty() { 1 } else { 0 };
        other.roster().drain(member, false).await.unwrap();
        let taken = other.roster().chunks_on(member).await.unwrap();
        // It goes on, and takes chunk after chunk.
        let mut all = Vec::new();
        for number in 0..20 {
            put(&old, &format!("b{number}"), 0, &vec![number; 700_000]).await.unwrap();
            all.push(number);
        }
        let now = other.roster().chunks_on(member).await.unwrap();
        assert!(now.iter().all(|chunk| taken.contains(chunk)), "{now:?} after {taken:?}");
        assert!(old.members().all()[usize::from(member)].is_out(), "it has met a closed page, and asked");
        // As long as it has a chunk there, that is told.
        let hindered = mender(&other).rebuild().await.unwrap();
        assert_eq!(hindered.taken.len(), 1, "{hindered:?}");
        let regions = hindered.taken[0].1;
        assert_eq!(other.roster().remove(member).await, Err(RosterError::Held { member, regions }));
        old.refresh_members().await.unwrap();
        old.close().await.unwrap();
        let rebuilt = mender(&other).rebuild().await.unwrap();
        assert_eq!(rebuilt.taken, vec![]);
        other.roster().remove(member).await.unwrap();
        assert_eq!(get(&other, "b7").await.unwrap(), vec![7; 700_000]);
    });
}

/// Chunks on members that have joined since: they are asked for at once.
#[test]
fn what_lies_on_members_that_joined_is_read_at_once() {
    in_world(8, async {
        let yard = Yard::new(2, 1, 3).await;
        let old = yard.client().await;
        let other = yard.client().await;
        for _ in 0..3 {
            yard.add(&other).await;
        }
        put(&other, "a", 0, &[1; 100_000]).await.unwrap();
        for member in 0..3 {
            other.roster().drain(member, false).await.unwrap();
        }
        let rebuilt = mender(&other).rebuild().await.unwrap();
        assert_eq!(rebuilt.taken, vec![]);
        for member in 0..3 {
            other.roster().remove(member).await.unwrap();
            yard.set_down(member, true);
        }
        assert_eq!(old.members().all().len(), 3, "it has not heard of them");
        assert_eq!(get(&old, "a").await.unwrap(), [1; 100_000]);
        assert_eq!(old.members().all().len(), 6);
        put(&old, "a", 0, &[2; 100_000]).await.unwrap();
        assert_eq!(get(&other, "a").await.unwrap(), [2; 100_000]);
        // A number is not given twice.
        assert!(!other.roster().add(1, &other.roster().root().members[0].clone(), None).await.unwrap());
    });
}

/// Whoever drains it dies before its pages are closed: a rebuild closes them.
#[test]
fn a_drain_that_was_broken_off_is_gone_on_with() {
    in_world(9, async {
        for swaps in 0..4 {
            let yard = Yard::new(2, 1, 4).await;
            let files = yard.client().await;
            put(&files, "a", 0, &[1; 900_000]).await.unwrap();
            let meta = yard.meta.client();
            let dying = yard.client_over(Rc::clone(&meta) as Rc<dyn file::meta::Meta>).await;
            meta.die_at(Some(file::meta::Death { swaps, takes_effect: true }));
            let _never = time::timeout(Duration::from_secs(60), dying.roster().drain(1, false)).await;
            files.close().await.unwrap();
            let rebuilt = rebuild(&yard).await;
            assert_eq!((rebuilt.left.failed, rebuilt.taken), (0, vec![]), "{swaps}");
            let other = yard.client().await;
            other.roster().remove(1).await.unwrap();
            yard.set_down(1, true);
            for number in 0..30 {
                put(&other, &format!("b{number}"), 0, &[3; 500_000]).await.unwrap();
            }
            assert_eq!(other.roster().chunks_on(1).await.unwrap(), Vec::<u32>::new());
            assert_eq!(get(&other, "a").await.unwrap(), vec![1; 900_000]);
        }
    });
}

/// Said to be lost by mistake: that is taken back, and until then whoever mends reads it, if it answers.
#[test]
fn a_member_that_is_said_to_be_lost_and_answers_is_read() {
    in_world(10, async {
        let yard = Yard::new(2, 1, 5).await;
        let files = yard.client().await;
        let bytes = drawn(&mut SplitMix(10), 1_000_000);
        put(&files, "a", 0, &bytes).await.unwrap();
        let ino = inodes(&files).await["a"];
        let (_, stripe) = files.stripes_of(ino).await.unwrap().swap_remove(0);
        yard.flip(&files, &stripe, 1).await;
        let member = {
            let space = file::data::Space::new(yard.meta.client(), Rc::clone(files.members()), 1);
            space.place(stripe.id.chunk).await.unwrap().unwrap().columns[0].member
        };
        files.roster().drain(member, true).await.unwrap();
        assert_eq!(files.roster().place_of(member), None, "mounts do not wait for it");
        let rebuilt = rebuild(&yard).await;
        assert_eq!((rebuilt.left.lost_bytes, rebuilt.left.unread), (0, 0), "{rebuilt:?}");
        assert!(get(&files, "a").await.unwrap() == bytes);
        files.roster().drain(member, false).await.unwrap();
        assert!(files.roster().place_of(member).is_some());
    });
}

/// Several are drained, all or none; and not where there is no room for what they have.
#[test]
fn members_are_drained_all_or_none() {
    in_world(11, async {
        let yard = Yard::new(2, 1, 4).await;
        let files = yard.client().await;
        let refused = files.roster().drain_all(&[0, 1], false).await;
        assert_eq!(refused, Err(RosterError::TooFewDomains { left: 2, needed: 3 }));
        assert_eq!(files.roster().leaving(), Vec::<u16>::new(), "none of them");
        assert_eq!(files.roster().drain_all(&[0, 7], false).await, Err(RosterError::None(7)));
        assert_eq!(files.roster().leaving(), Vec::<u16>::new());
        for number in 0..60 {
            put(&files, &format!("f{number}"), 0, &[7; 1_000_000]).await.unwrap();
        }
        files.roster().check_room(&[0]).await.unwrap();
        for number in 60..115 {
            put(&files, &format!("f{number}"), 0, &[7; 1_000_000]).await.unwrap();
        }
        // What is free is counted once a minute.
        time::sleep(Duration::from_secs(61)).await;
        let full = files.roster().check_room(&[0]).await;
        assert!(matches!(full, Err(RosterError::NoRoom { .. })), "{full:?}");
    });
}

/// Of two that add one namespace at once one is told that it is a member.
#[test]
fn one_namespace_is_one_member() {
    in_world(12, async {
        let yard = Yard::new(2, 1, 4).await;
        let (one, other) = (yard.client().await, yard.client().await);
        let record = file::record::root::MemberRecord { place: "x".into(), ..one.roster().root().members[0].clone() };
        assert!(one.roster().add(4, &record, None).await.unwrap());
        assert_eq!(other.roster().add(5, &record, None).await, Err(RosterError::Twice(4)));
        other.roster().drain(4, true).await.unwrap();
        assert!(other.roster().add(5, &record, None).await.unwrap(), "where the lost one was is another one");
    });
}
