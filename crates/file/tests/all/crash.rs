//! Every operation, its client killed before and after each of its changes: another client finds all as before or as after, never
//! between, and what is left over is what the README's table says.

use std::rc::Rc;
use std::time::Duration;

use engine::task::{self, LocalFuture};
use engine::time;
use file::meta::{Death, MemoryMeta};
use file::record::inode::{Content, Inode};
use file::{Error, FileSystem, ROOT, RenameFlags, data};

use crate::audit::{Leaks, audit, count};
use crate::fsck::{assert_clean, mended};
use crate::world::{Tree, at, client, create, fresh, kind_of, mkdir, run, run_long, tree};

type Act = fn(Rc<FileSystem>) -> LocalFuture<'static, Result<(), Error>>;

const EXCHANGE: RenameFlags = RenameFlags { no_replace: false, exchange: true };
const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false };

/// What all operations begin with.
async fn prepare(meta: &MemoryMeta) {
    let (_, fs) = client(meta).await;
    let (a, b) = (mkdir(&fs, ROOT, "a").await, mkdir(&fs, ROOT, "b").await);
    for name in ["one", "two"] {
        create(&fs, a, name).await;
    }
    let twice = create(&fs, b, "three").await;
    fs.link(twice, b, b"four").await.unwrap();
    mkdir(&fs, a, "empty").await;
    let full = mkdir(&fs, a, "full").await;
    create(&fs, full, "inside").await;
    mkdir(&fs, b, "empty").await;
    let wide = mkdir(&fs, b, "wide").await;
    let name = |number: u32| format!("{number:0>200}");
    for number in 0..40 {
        create(&fs, wide, &name(number)).await;
    }
    for number in 0..40 {
        fs.unlink(wide, name(number).as_bytes()).await.unwrap();
    }
    let narrow = mkdir(&fs, b, "narrow").await;
    for number in 0..15 {
        create(&fs, narrow, &name(number)).await;
    }
    fs.close().await.unwrap();
}

/// The tree with what was made since under one number.
fn alike(tree: Tree, before: &Tree) -> Tree {
    let is_old = |ino: u64| before.values().any(|(_, old)| *old == ino);
    tree.into_iter().map(|(path, (kind, ino))| (path, (kind, if is_old(ino) { ino } else { 0 }))).collect()
}

async fn after(act: Option<Act>) -> Tree {
    let meta = fresh().await;
    prepare(&meta).await;
    let (_, fs) = client(&meta).await;
    let before = tree(&fs).await;
    if let Some(act) = act {
        act(fs.clone()).await.unwrap();
    }
    alike(tree(&fs).await, &before)
}

/// One death; whether the operation came so far.
async fn die(act: Act, death: Death, allowed: &Leaks, before: &Tree, after: &Tree) -> bool {
    let meta = fresh().await;
    prepare(&meta).await;
    let (dying, fs) = client(&meta).await;
    let same = tree(&fs).await;
    dying.die_at(Some(death));
    let operation = task::spawn(act(fs.clone()));
    while !operation.is_finished() && !dying.is_dead() {
        time::sleep(Duration::from_millis(1)).await;
    }
    if !dying.is_dead() {
        operation.await.unwrap();
        return false;
    }
    drop(operation);
    let (_, other) = client(&meta).await;
    let found = alike(tree(&other).await, &same);
    assert!(found == *before || found == *after, "{death:?}: {found:#?}");
    // What is there can be used: a reader's tree is what a writer meets.
    let (a, b) = (at(&other, "a").await.unwrap().ino, at(&other, "b").await);
    create(&other, a, "more").await;
    other.unlink(a, b"more").await.unwrap();
    if let Ok(b) = b {
        create(&other, b.ino, "more").await;
        other.unlink(b.ino, b"more").await.unwrap();
    }
    assert_eq!(alike(tree(&other).await, &same), found, "{death:?}: it changed once it was found");
    other.collect_client(fs.client()).await.unwrap();
    other.close().await.unwrap();
    let leaks = audit(&meta).await;
    let is_allowed = leaks.inodes <= allowed.inodes
        && leaks.links <= allowed.links
        && leaks.nodes <= allowed.nodes
        && leaks.intents <= allowed.intents
        && (leaks.orphans, leaks.keepers) == (0, 0);
    assert!(is_allowed, "{death:?}: {leaks:?}");
    let (_, last) = client(&meta).await;
    assert_eq!(alike(tree(&last).await, &same), found, "{death:?}: it changed once it was tidied");
    true
}

/// The same death, and nobody comes but `fsck`: an hour later there is what a tree has in which nobody died.
async fn die_and_mend(act: Act, death: Death, before: &Tree, after: &Tree) -> bool {
    let meta = fresh().await;
    prepare(&meta).await;
    let (dying, fs) = client(&meta).await;
    let same = tree(&fs).await;
    dying.die_at(Some(death));
    let operation = task::spawn(act(fs));
    while !operation.is_finished() && !dying.is_dead() {
        time::sleep(Duration::from_millis(1)).await;
    }
    if !dying.is_dead() {
        return false;
    }
    drop(operation);
    let report = mended(&meta).await;
    assert!(!report.is_damaged() && report.left() == 0, "{death:?}: {report:?}");
    assert_eq!(count(&meta), NONE, "{death:?}");
    let left = meta.dump().into_iter().filter(|(key, _)| !key.contains(&b'=') && kind_of(key) == Some(&b'c')).count();
    assert_eq!(left, 0, "{death:?}: clients");
    let (_, other) = client(&meta).await;
    let found = alike(tree(&other).await, &same);
    assert!(found == *before || found == *after, "{death:?}: {found:#?}");
    other.close().await.unwrap();
    assert_clean(&meta).await;
    true
}

fn enumerate(act: Act, allowed: Leaks, swaps_min: u64) {
    let (before, after) = (run(1, after(None)), run(1, after(Some(act))));
    assert_ne!(before, after);
    let mut swaps = 0;
    for takes_effect in [false, true] {
        swaps = 0;
        while run(1, die(act, Death { swaps, takes_effect }, &allowed, &before, &after)) {
            swaps += 1;
        }
    }
    assert!(swaps >= swaps_min, "{swaps} changes");
    for takes_effect in [false, true] {
        let mut swaps = 0;
        while run_long(1, die_and_mend(act, Death { swaps, takes_effect }, &before, &after)) {
            swaps += 1;
        }
    }
}

const NONE: Leaks = Leaks { inodes: 0, links: 0, nodes: 0, intents: 0, orphans: 0, keepers: 0, locks: 0 };
/// Whoever died before an entry had its number, or after all have lost it, leaves the intent that nobody meets.
const INTENT: Leaks = Leaks { intents: 1, ..NONE };

macro_rules! acts {
    ($($name:ident: $swaps:literal, $allowed:expr, |$fs:ident| $act:expr;)*) => {
        $(#[test]
        fn $name() {
            enumerate(|$fs| Box::pin(async move { $act }), $allowed, $swaps);
        })*
    };
}

async fn inode(fs: &FileSystem, path: &str) -> u64 {
    at(fs, path).await.unwrap().ino
}

async fn rename(fs: &FileSystem, from: (&str, &str), to: (&str, &str), flags: RenameFlags) -> Result<(), Error> {
    let (dir, goal) = (inode(fs, from.0).await, inode(fs, to.0).await);
    fs.rename((dir, from.1.as_bytes()), (goal, to.1.as_bytes()), flags).await
}

acts! {
    a_file_is_made: 2, Leaks { inodes: 1, ..NONE }, |fs| {
        fs.create(inode(&fs, "a").await, b"new", &crate::world::file(), true).await.map(drop)
    };
    a_directory_is_made: 3, Leaks { inodes: 1, nodes: 1, ..NONE }, |fs| {
        fs.mkdir(inode(&fs, "a").await, b"new", 0o755, 0, 0).await.map(drop)
    };
    a_leaf_splits: 19, Leaks { inodes: 1, ..NONE }, |fs| {
        let name = "n".repeat(220);
        fs.create(inode(&fs, "b/narrow").await, name.as_bytes(), &crate::world::file(), true).await.map(drop)
    };
    a_link_is_made: 2, Leaks { links: 1, ..NONE }, |fs| {
        fs.link(inode(&fs, "a/one").await, inode(&fs, "b").await, b"new").await.map(drop)
    };
    a_file_is_removed: 2, NONE, |fs| fs.unlink(inode(&fs, "a").await, b"one").await;
    a_file_with_content_elsewhere_is_removed: 4, Leaks { inodes: 1, ..NONE }, |fs| {
        let stripes = |inode: &mut Inode| {
            let spans = data::Content::Spans(data::Spans { map: 7, reach: 0, cuts: 0, cut: None });
            (inode.content, inode.size) = (Content::Stripes(spans.encode()), 5000);
            Ok(())
        };
        fs.change_inode(inode(&fs, "a/one").await, stripes).await?;
        fs.unlink(inode(&fs, "a").await, b"one").await
    };
    one_of_two_links_is_removed: 2, NONE, |fs| fs.unlink(inode(&fs, "b").await, b"three").await;
    an_open_file_is_removed: 6, NONE, |fs| {
        let ino = inode(&fs, "a/one").await;
        fs.open_inode(ino).await?;
        fs.unlink(inode(&fs, "a").await, b"one").await?;
        fs.release(ino).await
    };
    a_directory_is_removed: 8, INTENT, |fs| fs.rmdir(inode(&fs, "a").await, b"empty").await;
    a_directory_of_many_leaves_is_removed: 38, Leaks { nodes: 0, ..INTENT }, |fs| {
        fs.rmdir(inode(&fs, "b").await, b"wide").await
    };
    a_name_changes_in_its_leaf: 1, NONE, |fs| rename(&fs, ("a", "one"), ("a", "new"), PLAIN).await;
    a_name_takes_the_place_of_another_in_its_leaf: 2, NONE, |fs| rename(&fs, ("a", "one"), ("a", "two"), PLAIN).await;
    two_names_of_a_leaf_change_places: 1, NONE, |fs| rename(&fs, ("a", "one"), ("a", "full"), EXCHANGE).await;
    a_file_moves: 7, INTENT, |fs| rename(&fs, ("a", "one"), ("b", "new"), PLAIN).await;
    a_file_moves_over_another: 8, INTENT, |fs| rename(&fs, ("b", "three"), ("a", "one"), PLAIN).await;
    a_file_moves_over_one_that_is_open: 10, INTENT, |fs| {
        let ino = inode(&fs, "a/one").await;
        fs.open_inode(ino).await?;
        rename(&fs, ("b", "three"), ("a", "one"), PLAIN).await?;
        fs.release(ino).await
    };
    a_directory_moves: 10, INTENT, |fs| rename(&fs, ("a", "full"), ("b", "new"), PLAIN).await;
    a_directory_moves_over_an_empty_one: 13, INTENT, |fs| rename(&fs, ("a", "full"), ("b", "empty"), PLAIN).await;
    a_directory_takes_the_place_of_an_empty_one: 9, INTENT, |fs| rename(&fs, ("a", "full"), ("a", "empty"), PLAIN).await;
    a_directory_moves_over_one_of_many_leaves: 40, INTENT, |fs| rename(&fs, ("a", "full"), ("b", "wide"), PLAIN).await;
    two_files_change_places: 7, INTENT, |fs| rename(&fs, ("a", "one"), ("b", "three"), EXCHANGE).await;
    two_directories_change_places: 11, INTENT, |fs| rename(&fs, ("a", "full"), ("b", "narrow"), EXCHANGE).await;
    a_directory_and_a_file_change_places: 10, INTENT, |fs| rename(&fs, ("a", "full"), ("b", "four"), EXCHANGE).await;
}
