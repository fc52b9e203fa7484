use engine::sim::{SimConfig, World};

use super::*;
use crate::testing::{Plain, plain_pool, renew_under};

/// An accept has reached copy A alone when that is lost, and mended by another proposer from copy B, which is newer for
/// it than the accept, and knows nothing of it.
#[test]
fn a_step_counts_only_if_copy_b_shows_it() {
    let world = World::new(1, SimConfig::default()).run_until(async {
        let namespaces = vec![Plain::new(1, 2 << 20, 4096)];
        let map = plain_pool(&namespaces, 1).await;
        let acceptor = Acceptor { namespace: &namespaces[0], pool: map.pool, life: None };
        let ballot = |round: u64| Ballot { round: 10 + round, host: 7 };
        let promise = acceptor.prepare(ballot(1)).await.unwrap();
        let generation = promise.superblock.generation + 1;
        let to = Superblock { generation, accepted: ballot(1), ..promise.superblock };
        let image = acceptor.image(&to);
        let damaged = SUPERBLOCK_OFFSETS[0] as usize + 100;
        namespaces[0].0.bytes.borrow_mut()[damaged] ^= 1;
        acceptor.prepare(ballot(2)).await.unwrap();
        let refused = acceptor.follow(&to, &image, Step::Accept).await;
        assert_eq!(refused, Err(Refusal::Promised(ballot(2))));
        let (_, found) = acceptor.look().await.unwrap();
        assert_eq!(found.promised, ballot(2));
        assert!(found.accepted < ballot(1));
    });
    world.unwrap();
}

/// Copy A was two steps ahead of copy B when it was lost: none of the two counts once it is mended without them.
#[test]
fn no_step_of_a_lost_copy_counts_once_it_is_mended_without_it() {
    let world = World::new(1, SimConfig::default()).run_until(async {
        let namespaces = vec![Plain::new(1, 2 << 20, 4096)];
        let map = plain_pool(&namespaces, 1).await;
        let acceptor = Acceptor { namespace: &namespaces[0], pool: map.pool, life: None };
        let (_, before) = acceptor.look().await.unwrap();
        let ballot = Ballot { round: 10, host: 7 };
        let promised = Superblock { promised: ballot, generation: before.generation + 1, ..before };
        let accepted = Superblock { accepted: ballot, generation: before.generation + 2, ..promised.clone() };
        let damaged = SUPERBLOCK_OFFSETS[0] as usize + 100;
        namespaces[0].0.bytes.borrow_mut()[damaged] ^= 1;
        let (_, mended) = acceptor.look().await.unwrap();
        assert_eq!((mended.promised, mended.accepted), (before.promised, before.accepted));
        for (to, step) in [(promised, Step::Promise), (accepted, Step::Accept)] {
            let refused = acceptor.follow(&to, &acceptor.image(&to), step).await;
            assert_eq!(refused, Err(Refusal::Contended));
        }
    });
    world.unwrap();
}

/// Copy A alone has fallen back, from a step on its way to copy B to what was before both. It was mended from copy B as that
/// was, so that the step came to stand in copy B afterwards, and counted, while copy A knew nothing of it.
#[test]
fn no_step_counts_whose_copy_a_has_fallen_back() {
    let world = World::new(1, SimConfig::default()).run_until(async {
        let namespaces = vec![Plain::new(1, 2 << 20, 4096)];
        let map = plain_pool(&namespaces, 1).await;
        let acceptor = Acceptor { namespace: &namespaces[0], pool: map.pool, life: None };
        let ([old, _], _) = acceptor.look().await.unwrap();
        let ballot = |round: u64| Ballot { round, host: 7 };
        let promise = acceptor.prepare(ballot(10)).await.unwrap();
        let generation = promise.superblock.generation + 1;
        let to = Superblock { generation, accepted: ballot(10), ..promise.superblock };
        let at = SUPERBLOCK_OFFSETS[0] as usize;
        namespaces[0].0.bytes.borrow_mut()[at..][..old.len()].copy_from_slice(&old);
        let (_, mended) = acceptor.look().await.unwrap();
        assert_eq!(mended.promised, ballot(10));
        let refused = acceptor.follow(&to, &acceptor.image(&to), Step::Accept).await;
        assert_eq!(refused, Err(Refusal::Contended));
        let (_, found) = acceptor.look().await.unwrap();
        assert_eq!(found, mended);
    });
    world.unwrap();
}

/// Whoever raises the generation stops after copy B, and a step that has reached copy A meanwhile does not count; one that
/// was there before does.
#[test]
fn a_generation_is_raised_in_both_copies_or_told_to_nobody() {
    let world = World::new(1, SimConfig::default()).run_until(async {
        let namespaces = vec![Plain::new(1, 2 << 20, 4096)];
        let map = plain_pool(&namespaces, 1).await;
        let acceptor = Acceptor { namespace: &namespaces[0], pool: map.pool, life: None };
        let (images, before) = acceptor.look().await.unwrap();
        let ballot = Ballot { round: 10, host: 7 };
        let promised = Superblock { promised: ballot, generation: before.generation + 1, ..before.clone() };
        let image = acceptor.image(&promised);
        // It is in copy A alone when the generation is raised.
        assert!(swap(&namespaces[0], SUPERBLOCK_OFFSETS[0], &images[0], &image).await.unwrap());
        let raised = acceptor.raise().await.unwrap();
        assert_eq!(raised, promised.generation + MARK_STRIDE);
        assert_eq!(acceptor.follow(&promised, &image, Step::Promise).await, Ok(()));
        // The next one reaches copy A between the two writes of another raise.
        let (images, found) = acceptor.look().await.unwrap();
        assert_eq!((found.promised, found.generation), (ballot, raised));
        let accepted = Superblock { accepted: ballot, generation: raised + 1, ..found.clone() };
        let image = acceptor.image(&accepted);
        namespaces[0].0.writes_max.set(namespaces[0].0.writes.get() + 1);
        let stopped = acceptor.raise_from(&images, found, MARK_STRIDE).await;
        assert!(matches!(stopped, Err(Refusal::Device(_))), "{stopped:?}");
        namespaces[0].0.writes_max.set(u32::MAX);
        assert!(swap(&namespaces[0], SUPERBLOCK_OFFSETS[0], &images[0], &image).await.unwrap());
        let refused = acceptor.follow(&accepted, &image, Step::Accept).await;
        assert_eq!(refused, Err(Refusal::Contended));
        let (_, mended) = acceptor.look().await.unwrap();
        assert!(mended.accepted < ballot && mended.generation > raised + MARK_STRIDE, "{mended:?}");
    });
    world.unwrap();
}

/// Whoever raises the generation read both copies, and writes copy B, when the member has begun a new life in copy A. It was
/// taken back to its old life, whose pages are gone. Nor does a step of the old life find its way into copy B.
#[test]
fn a_life_that_has_begun_is_not_undone_by_what_comes_late_from_the_one_before() {
    let world = World::new(1, SimConfig::default()).run_until(async {
        let namespaces: Vec<Plain> = (1..=2).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
        let map = plain_pool(&namespaces, 2).await;
        let old = Acceptor { namespace: &namespaces[0], pool: map.pool, life: None };
        let (images, before) = old.look().await.unwrap();
        namespaces[0].0.bytes.borrow_mut().fill(0);
        // Nor into a member that has been emptied, which it would make a member again.
        let late = old.follow(&before, &images[0], Step::Promise).await;
        assert_eq!(late, Err(Refusal::Contended));
        let fresh = renew_under(&namespaces[0], &map).await.unwrap();
        let new = Acceptor { life: Some((fresh.incarnation, fresh.mark)), ..old };
        let put = |image: &[u8]| {
            let at = SUPERBLOCK_OFFSETS[1] as usize;
            namespaces[0].0.bytes.borrow_mut()[at..][..image.len()].copy_from_slice(image);
        };
        // A step of the old life, on its way from copy A, also where copy B is lost.
        let late = Superblock { generation: before.generation + MARK_STRIDE, ..before.clone() };
        for copy_b in [new.copy(1).await.unwrap(), vec![0; images[1].len()]] {
            put(&copy_b);
            let refused = old.follow(&late, &old.image(&late), Step::Promise).await;
            assert_eq!(refused, Err(Refusal::Contended));
            assert_eq!(new.look().await.unwrap().1.incarnation, fresh.incarnation);
        }
        put(&images[1]);
        assert_eq!(old.raise_from(&images, before, MARK_STRIDE).await, Ok(None));
        let found = crate::open::inspect(&namespaces[0], "m").await.unwrap().superblock;
        assert_eq!((found.incarnation, found.generation), (fresh.incarnation, fresh.mark));
        let promise = new.prepare(Ballot { round: 10, host: 7 }).await.unwrap();
        assert_eq!(promise.superblock.incarnation, fresh.incarnation);
        assert!(crate::open::inspect(&namespaces[0], "m").await.unwrap().whole, "copy B has followed");
    });
    world.unwrap();
}

/// Whoever has written a disk label to the first block, which copy B is not a part of, lost it to the next ballot; and a label that
/// leaves the first bytes alone, as most do, counted as damage.
#[test]
fn what_somebody_else_has_written_over_copy_a_stays() {
    let world = World::new(1, SimConfig::default()).run_until(async {
        let namespaces = vec![Plain::new(1, 2 << 20, 4096)];
        let map = plain_pool(&namespaces, 1).await;
        let acceptor = Acceptor { namespace: &namespaces[0], pool: map.pool, life: None };
        let ours = acceptor.copy(0).await.unwrap();
        // A copied medium's superblock is another's as well.
        let other = Superblock { member: MemberId([9; 16]), ..acceptor.look().await.unwrap().1 };
        let over_ours = |parts: &[(usize, &[u8])]| {
            let mut page = ours.clone();
            parts.iter().for_each(|(at, bytes)| page[*at..][..bytes.len()].copy_from_slice(bytes));
            page
        };
        let partitions = over_ours(&[(450, &[0xee, 0xff, 0xff, 0xff]), (510, &[0x55, 0xaa])]);
        let gpt = over_ours(&[(450, &[0xee]), (510, &[0x55, 0xaa]), (512, b"EFI PART"), (1024, &[7; 128])]);
        let (ext4, lvm) = (over_ours(&[(1080, &[0x53, 0xef])]), over_ours(&[(512, b"LABELONE")]));
        for theirs in [vec![0x55; ours.len()], acceptor.image(&other), partitions, gpt, ext4, lvm] {
            namespaces[0].0.bytes.borrow_mut()[..theirs.len()].copy_from_slice(&theirs);
            let writes = namespaces[0].0.writes.get();
            let promise = acceptor.prepare(Ballot { round: 10, host: 7 }).await;
            assert!(matches!(promise, Err(Refusal::NoVote(_))));
            assert!(matches!(renew_under(&namespaces[0], &map).await, Err(crate::Error::Unfit { .. })));
            assert!(matches!(acceptor.raise().await, Err(Refusal::NoVote(_))));
            assert_eq!(namespaces[0].0.writes.get(), writes);
            let refused = crate::open::check_member(&namespaces[0], &map, 0).await.unwrap_err().to_string();
            let is_label = !refused.contains("belongs to namespace");
            assert_eq!(refused.contains("`yagura pool replace`"), is_label, "nor has it a vote on keys: {refused}");
        }
        // Wiped, as they say, it is mended from copy B.
        namespaces[0].0.bytes.borrow_mut()[..ours.len()].fill(0);
        assert!(acceptor.prepare(Ballot { round: 10, host: 8 }).await.is_ok());
        // One transfer that brings a byte wrong is no label.
        namespaces[0].0.misread.set(Some(300));
        assert!(crate::open::check_member(&namespaces[0], &map, 0).await.is_ok());
        namespaces[0].0.misread.set(Some(300));
        assert!(acceptor.prepare(Ballot { round: 10, host: 9 }).await.is_ok());
        assert_eq!(namespaces[0].0.misread.get(), None);
        // Damage to its very first bytes is damage, and mended.
        namespaces[0].0.bytes.borrow_mut()[..ours.len()].copy_from_slice(&ours);
        namespaces[0].0.bytes.borrow_mut()[0] ^= 1;
        assert!(acceptor.prepare(Ballot { round: 11, host: 7 }).await.is_ok());
    });
    world.unwrap();
}

/// Each try to mend it raised copy B, by which in the end nobody would know that it was rolled back to before its mark.
#[test]
fn a_copy_a_that_cannot_be_read_is_not_mended_in_vain() {
    let world = World::new(1, SimConfig::default()).run_until(async {
        let namespaces = vec![Plain::new(1, 2 << 20, 4096)];
        let map = plain_pool(&namespaces, 1).await;
        let acceptor = Acceptor { namespace: &namespaces[0], pool: map.pool, life: None };
        let before = acceptor.copy(1).await.unwrap();
        namespaces[0].0.unreadable.set(Some(100));
        for round in 10..20 {
            let promise = acceptor.prepare(Ballot { round, host: 7 }).await;
            assert!(matches!(promise, Err(Refusal::NoVote(reason)) if reason.contains("can't be read")));
            assert!(acceptor.raise().await.is_err());
        }
        assert_eq!(acceptor.copy(1).await.unwrap(), before);
        // A fault that was one of the moment.
        namespaces[0].0.unreadable.set(None);
        assert!(acceptor.prepare(Ballot { round: 20, host: 7 }).await.is_ok());
    });
    world.unwrap();
}
