//! What a client has met a moment ago is a first guess for its changes, and never an answer: each of these was told or done by
//! what another had changed since, had it been one.

use std::time::Duration;

use engine::{task, time};
use file::meta::Death;
use file::{Change, Error, ROOT, RenameFlags};

use crate::audit::{Leaks, audit};
use crate::world::{client, create, file, fresh, mkdir, run};

#[test]
fn what_another_has_changed_a_moment_ago_is_seen_by_each_change() {
    run(1, async {
        let meta = fresh().await;
        let ((_, one), (_, two)) = (client(&meta).await, client(&meta).await);
        let dir = mkdir(&one, ROOT, "dir").await;
        let flags = RenameFlags::default();
        // Each line: the first has met the leaf and the inodes, the second changes them, the first comes by what it has met.
        let kept = create(&one, dir, "kept").await;
        create(&two, dir, "taken").await;
        let refused = one.create(dir, b"taken", &file(), true).await;
        assert!(matches!(refused, Err(Error::Exists(_))), "{refused:?}");

        let gone = create(&one, dir, "gone").await;
        two.unlink(dir, b"gone").await.unwrap();
        assert!(matches!(one.unlink(dir, b"gone").await, Err(Error::NotFound(_))));
        assert_eq!(
            one.setattr(gone, &Change { mode: Some(0o600), ..Change::default() }).await.err(),
            Some(Error::Stale)
        );
        create(&one, dir, "gone").await;
        two.rename((dir, b"gone"), (dir, b"there"), flags).await.unwrap();
        let moved = one.rename((dir, b"gone"), (ROOT, b"goal"), flags).await;
        assert!(matches!(moved, Err(Error::NotFound(_))), "{moved:?}");

        create(&one, dir, "source").await;
        create(&two, dir, "goal").await;
        let keep = RenameFlags { no_replace: true, ..flags };
        let refused = one.rename((dir, b"source"), (dir, b"goal"), keep).await;
        assert!(matches!(refused, Err(Error::Exists(_))), "{refused:?}");

        one.setattr(kept, &Change { uid: Some(7), ..Change::default() }).await.unwrap();
        two.setattr(kept, &Change { mode: Some(0o600), ..Change::default() }).await.unwrap();
        let told = one.setattr(kept, &Change { gid: Some(8), ..Change::default() }).await.unwrap();
        assert_eq!((told.mode & 0o777, told.uid, told.gid), (0o600, 7, 8));

        // At one moment, so that what the first asks for is what it has met.
        two.setattr(kept, &Change { mode: Some(0o640), ..Change::default() }).await.unwrap();
        let told = one.setattr(kept, &Change { mode: Some(0o600), ..Change::default() }).await.unwrap();
        assert_eq!((told.mode & 0o777, two.getattr(kept).await.unwrap().mode & 0o777), (0o600, 0o600));

        create(&one, dir, "free again").await;
        two.unlink(dir, b"free again").await.unwrap();
        one.link(kept, dir, b"free again").await.unwrap();
        assert_eq!(two.lookup(dir, b"free again").await.unwrap().ino, kept);

        let empty = mkdir(&one, ROOT, "empty").await;
        two.rmdir(ROOT, b"empty").await.unwrap();
        let refused = one.create(empty, b"name", &file(), true).await;
        assert!(matches!(refused, Err(Error::NotFound(_))), "{refused:?}");

        create(&one, dir, "last of one leaf").await;
        for number in 0..200 {
            create(&two, dir, &format!("a name that is long enough for leaves to split soon: {number}")).await;
        }
        create(&one, dir, "first of many").await;
        assert!(two.lookup(dir, b"first of many").await.is_ok());
        for fs in [&one, &two] {
            fs.close().await.unwrap();
        }
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}

/// What the kernel has looked up a moment before is not read again to be changed: a name made or taken away costs its two changes.
#[test]
fn what_was_met_a_moment_ago_is_changed_without_a_read() {
    run(1, async {
        let meta = fresh().await;
        let (counted, fs) = client(&meta).await;
        let dir = mkdir(&fs, ROOT, "dir").await;
        create(&fs, dir, "first").await;
        let taken =
            |what: &str, expected: (u64, u64)| assert_eq!(counted.take_counts(), expected, "{what}: reads, changes");
        counted.take_counts();
        let ino = create(&fs, dir, "name").await;
        taken("create", (0, 2));
        fs.setattr(ino, &Change { mode: Some(0o600), ..Change::default() }).await.unwrap();
        taken("chmod", (0, 1));
        time::sleep(Duration::from_millis(1)).await; // or the time of the change is the same, and is none
        fs.rename((dir, b"name"), (dir, b"other"), RenameFlags::default()).await.unwrap();
        taken("rename", (0, 2));
        fs.unlink(dir, b"other").await.unwrap();
        taken("unlink", (0, 2));
    });
}

/// One who renames dies after each of its changes; another finishes that, who has met both leaves a moment before and remembers
/// them without the intent.
#[test]
fn what_others_have_begun_is_not_finished_by_what_was_met_before() {
    for swaps in 0..12 {
        run(1, async {
            let meta = fresh().await;
            let ((dying, two), (_, one)) = (client(&meta).await, client(&meta).await);
            let (a, b) = (mkdir(&one, ROOT, "a").await, mkdir(&one, ROOT, "b").await);
            let ino = create(&one, a, "x").await;
            create(&one, b, "there").await;
            dying.die_at(Some(Death { swaps, takes_effect: true }));
            let rename = async move { two.rename((a, b"x"), (b, b"y"), RenameFlags::default()).await };
            let rename = task::spawn(rename);
            while !rename.is_finished() && !dying.is_dead() {
                time::sleep(Duration::from_millis(1)).await;
            }
            drop(rename);
            let made = one.create(a, b"x", &file(), true).await;
            let (_, three) = client(&meta).await;
            let leads = async |dir, name: &[u8]| three.lookup(dir, name).await.map(|told| told.ino);
            match made {
                Ok((made, _)) => {
                    assert_eq!((leads(a, b"x").await, leads(b, b"y").await), (Ok(made.ino), Ok(ino)), "{swaps}");
                }
                Err(Error::Exists(_)) => {
                    let is_absent = matches!(leads(b, b"y").await, Err(Error::NotFound(_)));
                    assert!(leads(a, b"x").await == Ok(ino) && is_absent, "{swaps}");
                }
                Err(error) => panic!("{swaps}: {error}"),
            }
        });
    }
}
