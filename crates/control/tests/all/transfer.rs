//! Dumps, restores and moves, whole, damaged and interrupted.

use std::sync::atomic::{AtomicU64, Ordering};

use control::catalogue::{
    Answer, Catalogue, DUMP_LINE_BYTES_MAX, Dump, Embedded, EmbeddedOptions, Error, Key, Lease, LeaseId, Outcome, Page,
    Prefix, Range, Reading, Restore, Restored, Revision, Transaction, TransferError, Ttl, VALUE_BYTES_MAX, Watch,
    move_all,
};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redb::backends::InMemoryBackend;

use crate::cluster::Cluster;
use crate::etcd;
use crate::words::*;

const ENTRIES: usize = 400;

/// Text, bytes that are none, long and empty values, an entry of a lease.
pub async fn fill(catalogue: &dyn Catalogue) {
    let lease = catalogue.grant(ttl(3600)).await.unwrap();
    for part in 0..ENTRIES / 50 {
        let one = |index: usize| match index % 4 {
            0 => put(format!("volumes/{index:04}"), format!("{{\"size\":{index}}}")),
            1 => put([b"bin/", &index.to_be_bytes()[6..]].concat(), [0xff, 0, index as u8]),
            2 => put(format!("empty/{index:04}"), ""),
            _ => put(format!("\u{fc}nicode \" \\ /{index:04}"), "\u{1f600}\n".repeat(index % 32)),
        };
        change(catalogue, (0..50).map(|index| one(part * 50 + index)).collect()).await;
    }
    change(catalogue, vec![put_leased("leased/a", "x", lease.id), put("large/a", vec![b'"'; 30_000])]).await;
    change(catalogue, vec![put_leased("leased/b", "x", lease.id), put("large/b", vec![7; 30_000])]).await;
}

pub async fn dump(catalogue: &dyn Catalogue) -> String {
    let (mut dump, mut text) = (Dump::of(catalogue), String::new());
    while let Some(lines) = dump.next().await.unwrap() {
        text.push_str(&lines);
    }
    text
}

pub async fn restore(catalogue: &dyn Catalogue, text: &str, is_forced: bool) -> Result<Restored, TransferError> {
    let mut restore = Restore::into(catalogue, is_forced);
    for line in text.lines() {
        restore.line(line).await?;
    }
    restore.finish()
}

/// What stays: all entries without a lease.
pub async fn content(catalogue: &dyn Catalogue) -> Vec<(String, String)> {
    let (_, mut entries) = read_all(catalogue, Range::of(Prefix::all())).await.unwrap();
    entries.retain(|entry| entry.lease.is_none());
    told(&entries)
}

/// A catalogue in memory: what a disk does is shown elsewhere.
pub async fn fresh() -> Embedded {
    Embedded::on(InMemoryBackend::new(), EmbeddedOptions::default()).await.expect("a catalogue")
}

pub const WHOLE: Restored = Restored { entries: ENTRIES as u64 + 2, found: 0, leased: 2 };

#[tokio::test(start_paused = true)]
async fn a_dump_restores_what_was_there() {
    let (source, target) = (fresh().await, fresh().await);
    fill(&source).await;
    let text = dump(&source).await;
    assert_eq!(text, dump(&source).await, "the same catalogue is the same to the byte");
    assert!(text.starts_with("{\"header\":{\"version\":1,\"origin\":\"redb "), "{}", &text[..100]);
    assert!(text.contains("{\"entry\":{\"key\":\"volumes/0004\",\"value\":\"{\\\"size\\\":4}\"}}\n"));
    assert!(text.lines().last().unwrap().starts_with("{\"end\":{\"entries\":402,\"leased\":2,\"xxh3\":\""));
    assert_eq!(restore(&target, &text, false).await.unwrap(), WHOLE);
    assert_eq!(content(&target).await, content(&source).await);
    // Again it is known, and nothing is done.
    let before = present(&target).await;
    assert_eq!(restore(&target, &text, false).await.unwrap(), Restored { found: 402, ..WHOLE });
    assert_eq!(present(&target).await, before);
    // Of the target a dump has the same entries: the note of the restore is none.
    let entries =
        |text: &str| text.lines().filter(|line| line.starts_with("{\"entry\"")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(entries(&dump(&target).await), entries(&text));
}

#[tokio::test(start_paused = true)]
async fn values_of_the_largest_size_are_parts_of_their_own() {
    let (source, target) = (fresh().await, fresh().await);
    for name in ["a", "b", "c"] {
        change(&source, vec![put(name, vec![b'"'; VALUE_BYTES_MAX])]).await;
    }
    let text = dump(&source).await;
    assert_eq!(text.lines().filter(|line| line.starts_with("{\"check\"")).count(), 3);
    assert!(text.lines().all(|line| line.len() <= DUMP_LINE_BYTES_MAX));
    assert_eq!(restore(&target, &text, false).await.unwrap(), Restored { entries: 3, found: 0, leased: 0 });
    assert_eq!(content(&target).await, content(&source).await);
}

#[tokio::test(start_paused = true)]
async fn what_is_there_is_deleted_by_force_alone() {
    let (source, target) = (fresh().await, fresh().await);
    fill(&source).await;
    for part in 0..3 {
        change(&target, (0..90).map(|index| put(format!("own/{part}/{index}"), "x")).collect()).await;
    }
    let (text, before) = (dump(&source).await, content(&target).await);
    let told = restore(&target, &text, false).await.unwrap_err();
    assert!(matches!(&told, TransferError::NotEmpty { key } if key.contains("own/0/0")), "{told}");
    assert_eq!(content(&target).await, before);
    assert_eq!(restore(&target, &text, true).await.unwrap(), WHOLE);
    assert_eq!(content(&target).await, content(&source).await);
    // Restored, and used since: another dump needs force again.
    change(&source, vec![put("later", "x")]).await;
    let told = restore(&target, &dump(&source).await, false).await.unwrap_err();
    assert!(matches!(told, TransferError::NotEmpty { .. }), "{told}");
}

#[tokio::test(start_paused = true)]
async fn a_restore_by_force_is_done_though_the_same_dump_was_restored_last() {
    let (source, target) = (fresh().await, fresh().await);
    fill(&source).await;
    let text = dump(&source).await;
    assert_eq!(restore(&target, &text, false).await.unwrap(), WHOLE);
    change(&target, vec![put("volumes/0004", "written since"), delete("large/a"), put("new", "1")]).await;
    assert_eq!(restore(&target, &text, true).await.unwrap(), WHOLE);
    assert_eq!(content(&target).await, content(&source).await);
}

/// Two dumps of one catalogue at one revision, as of a file that was copied and used twice.
async fn twins() -> (String, String) {
    let one = fresh().await;
    let other = fresh().await;
    for (catalogue, word) in [(&one, "one"), (&other, "other")] {
        change(catalogue, (0..95).map(|index| put(format!("k{index:02}"), word)).collect()).await;
    }
    let (origin, copy) = (one.identity().await.unwrap(), other.identity().await.unwrap());
    let mut told = [String::new(), String::new()];
    for (text, catalogue) in told.iter_mut().zip([&one, &other]) {
        let failing = Renamed { inner: catalogue, origin: origin.clone() };
        *text = dump(&failing).await;
        assert!(!text.contains(&copy));
    }
    let [one, other] = told;
    assert_eq!(one.lines().next(), other.lines().next());
    (one, other)
}

#[tokio::test(start_paused = true)]
async fn a_restore_that_was_cut_short_does_not_go_on_with_another_dump() {
    let (one, other) = twins().await;
    for (lines, found) in [(92, 90), (98, 95)] {
        let target = fresh().await;
        let short: Vec<&str> = one.lines().take(lines).collect();
        let told = restore(&target, &short.join("\n"), false).await.unwrap_err();
        assert!(matches!(told, TransferError::Short { .. }), "{told}");
        let before = content(&target).await;
        let told = restore(&target, &other, false).await.unwrap_err();
        assert!(matches!(told, TransferError::OtherDump { .. }), "{told}");
        assert_eq!(content(&target).await, before);
        assert_eq!(restore(&target, &one, false).await.unwrap(), Restored { entries: 95, found, leased: 0 });
        // Restored whole, the other one is none that was restored already.
        let told = restore(&target, &other, false).await.unwrap_err();
        assert!(matches!(told, TransferError::OtherDump { .. }), "{told}");
        assert_eq!(restore(&target, &other, true).await.unwrap(), Restored { entries: 95, found: 0, leased: 0 });
        assert!(content(&target).await.iter().all(|(_, value)| value == "other"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_move_goes_on_though_the_revision_has_risen_meanwhile() {
    let (source, target) = (fresh().await, fresh().await);
    fill(&source).await;
    let failing = Failing { inner: &target, commits_left: AtomicU64::new(4), is_applied: false, goes_on: false };
    move_all(&source, &failing, false).await.unwrap_err();
    // As in an etcd that others use, and by a change behind what was moved.
    change(&source, vec![put("zzz", "1")]).await;
    change(&source, vec![delete("zzz"), put("volumes/9999", "new")]).await;
    let moved = move_all(&source, &target, false).await.unwrap();
    assert!(moved.found > 0, "{moved:?}");
    assert_eq!(content(&target).await, content(&source).await);
    // A change of what was moved is noticed.
    let (source, target) = (fresh().await, fresh().await);
    fill(&source).await;
    let failing = Failing { inner: &target, commits_left: AtomicU64::new(4), is_applied: false, goes_on: false };
    move_all(&source, &failing, false).await.unwrap_err();
    let first = read_all(&source, Range::of(Prefix::all())).await.unwrap().1.remove(0);
    change(&source, vec![put(first.key.as_bytes(), "changed")]).await;
    let told = move_all(&source, &target, false).await.unwrap_err();
    assert!(matches!(told, TransferError::OtherDump { .. }), "{told}");
    assert_eq!(move_all(&source, &target, true).await.unwrap(), WHOLE);
    assert_eq!(content(&target).await, content(&source).await);
}

type Damage = Box<dyn Fn(&mut Vec<String>)>;

#[tokio::test(start_paused = true)]
async fn a_damaged_dump_is_refused_before_its_damage_is_applied() {
    let source = fresh().await;
    change(&source, (0..95).map(|index| put(format!("k{index:02}"), "value")).collect()).await;
    let text = dump(&source).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 90 + 1 + 5 + 1 + 1);
    let all = content(&source).await;
    let damages: [(&str, Damage, usize); 8] = [
        ("a value", Box::new(|lines| lines[50] = lines[50].replace("value\":\"value", "value\":\"valve")), 0),
        ("a key", Box::new(|lines| lines[95] = lines[95].replace("k93", "k94")), 90),
        ("an entry left out", Box::new(|lines| drop(lines.remove(20))), 0),
        ("an entry twice", Box::new(|lines| lines.insert(20, lines[19].clone())), 0),
        ("entries changed over", Box::new(|lines| lines.swap(93, 94)), 90),
        ("a check left out", Box::new(|lines| drop(lines.remove(91))), 0),
        ("no JSON", Box::new(|lines| lines[93].truncate(20)), 90),
        ("a line behind the end", Box::new(|lines| lines.push(lines[1].clone())), 95),
    ];
    for (what, damage, applied) in damages {
        let mut damaged: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        damage(&mut damaged);
        let target = fresh().await;
        let told = restore(&target, &damaged.join("\n"), false).await.unwrap_err();
        assert!(matches!(told, TransferError::Damaged { .. }), "{what}: {told}");
        assert_eq!(content(&target).await, all[..applied], "{what}");
    }
    let target = fresh().await;
    let told = restore(&target, &lines[..96].join("\n"), false).await.unwrap_err();
    assert!(matches!(told, TransferError::Short { lines: 96 }), "{told}");
    let mut half = Dump::of(&target);
    let told = half.next().await.unwrap_err();
    assert!(matches!(told, TransferError::Unfinished { .. }), "{told}");
    let other = text.replace("\"origin\":\"redb", "\"origin\":\"else");
    let told = restore(&target, &other, false).await.unwrap_err();
    assert!(matches!(told, TransferError::OtherDump { revision: 2, .. }), "{told}");
    let newer = text.replace("\"version\":1", "\"version\":2");
    assert!(matches!(restore(&target, &newer, true).await.unwrap_err(), TransferError::Version { version: 2 }));
    // The whole dump goes on where the short one ended.
    assert_eq!(restore(&target, &text, false).await.unwrap(), Restored { entries: 95, found: 90, leased: 0 });
    assert_eq!(content(&target).await, all);
}

#[test]
fn whatever_comes_as_a_dump_is_restored_or_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let source = runtime.block_on(fresh());
    runtime.block_on(change(&source, vec![put("a", "text"), put("b", [0xff]), put("c", "")]));
    let text = runtime.block_on(dump(&source)).into_bytes();
    let expected = runtime.block_on(content(&source));
    // Bytes changed, taken out and put in, also such that the line is JSON still.
    let edit = (
        0..text.len(),
        0..3u8,
        prop_oneof![any::<u8>(), proptest::sample::select(b"0123456789abcdef\"{}:,\n\\".to_vec())],
    );
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    let run = |edits: Vec<(usize, u8, u8)>| {
        let mut damaged = text.clone();
        for (at, kind, byte) in edits {
            match (kind, at.min(damaged.len() - 1)) {
                (0, at) => damaged[at] = byte,
                (1, at) => drop(damaged.remove(at)),
                (_, at) => damaged.insert(at, byte),
            }
        }
        runtime.block_on(async {
            let target = fresh().await;
            let restored = restore(&target, &String::from_utf8_lossy(&damaged), false).await;
            let found = content(&target).await;
            // All of it or nothing: the dump has one part.
            assert!(found == expected || (found.is_empty() && restored.is_err()), "{restored:?}: {found:?}");
        });
        Ok(())
    };
    runner.run(&proptest::collection::vec(edit, 1..4), run).unwrap();
}

/// A catalogue that says that it is another one.
struct Renamed<'c> {
    inner: &'c dyn Catalogue,
    origin: String,
}

/// All but what is named is asked of the catalogue behind.
macro_rules! delegate {
    ($($name:ident($($argument:ident: $kind:ty)?) -> $answer:ty;)*) => {
        $(fn $name(&self $(, $argument: $kind)?) -> Answer<'_, $answer> {
            self.inner.$name($($argument)?)
        })*

        fn watch(&self, prefix: Prefix, after: Revision) -> Box<dyn Watch> {
            self.inner.watch(prefix, after)
        }
    };
}

impl Catalogue for Renamed<'_> {
    fn identity(&self) -> Answer<'_, String> {
        Box::pin(async { Ok(self.origin.clone()) })
    }

    delegate! {
        get(key: Key) -> Reading;
        range(range: Range) -> Page;
        commit(transaction: Transaction) -> Outcome;
        compact(through: Revision) -> ();
        grant(ttl: Ttl) -> Lease;
        keep_alive(id: LeaseId) -> Lease;
        revoke(id: LeaseId) -> ();
    }
}

/// A catalogue whose n-th commit fails, and all that is asked after it: as one that crashes, seen from the process that restores.
struct Failing<'c> {
    inner: &'c dyn Catalogue,
    commits_left: AtomicU64,
    /// Whether the last commit is applied, its answer lost.
    is_applied: bool,
    /// Whether there are answers after it.
    goes_on: bool,
}

impl Failing<'_> {
    fn check(&self) -> Result<(), Error> {
        if self.commits_left.load(Ordering::Relaxed) == 0 && !self.goes_on {
            return Err(Error::NoAnswer { place: "a test".into(), why: "it has crashed".into() });
        }
        Ok(())
    }
}

impl Catalogue for Failing<'_> {
    fn get(&self, key: Key) -> Answer<'_, Reading> {
        Box::pin(async { self.check().and(Ok(self.inner.get(key).await?)) })
    }

    fn range(&self, range: Range) -> Answer<'_, Page> {
        Box::pin(async { self.check().and(Ok(self.inner.range(range).await?)) })
    }

    fn commit(&self, transaction: Transaction) -> Answer<'_, Outcome> {
        Box::pin(async {
            self.check()?;
            let left = self.commits_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if left == Ok(1) {
                if self.is_applied {
                    let _ = self.inner.commit(transaction).await?;
                }
                return Err(Error::OutcomeUnknown { why: "the answer was lost".into() });
            }
            self.inner.commit(transaction).await
        })
    }

    delegate! {
        identity() -> String;
        compact(through: Revision) -> ();
        grant(ttl: Ttl) -> Lease;
        keep_alive(id: LeaseId) -> Lease;
        revoke(id: LeaseId) -> ();
    }
}

/// Crashes the move at every commit, before and after it is applied, and begins it anew.
async fn interrupt(source: &dyn Catalogue, target: &dyn Catalogue, commits: u64) {
    let expected = content(source).await;
    for left in 1..=commits {
        for is_applied in [false, true] {
            let mut stray = Restore::into(target, true);
            stray.line("{\"header\":{\"version\":1,\"origin\":\"nobody\",\"revision\":1}}").await.unwrap();
            let failing = Failing { inner: target, commits_left: AtomicU64::new(left), is_applied, goes_on: false };
            let told = move_all(source, &failing, true).await.unwrap_err();
            assert!(matches!(told, TransferError::Catalogue(Error::NoAnswer { .. })), "{told}");
            let moved = move_all(source, target, left == 1).await.unwrap();
            assert_eq!((moved.entries, moved.leased), (WHOLE.entries, WHOLE.leased));
            assert_eq!(moved.found > 0, left > 2 || (left == 2 && is_applied), "{left} {is_applied}: {moved:?}");
            assert_eq!(content(target).await, expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_restore_that_crashes_at_any_commit_goes_on() {
    let (source, target) = (fresh().await, fresh().await);
    fill(&source).await;
    interrupt(&source, &target, 7).await;
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_is_unknown_is_settled_by_the_note() {
    let (source, target) = (fresh().await, fresh().await);
    fill(&source).await;
    for left in 1..=7 {
        for is_applied in [false, true] {
            let target = fresh().await;
            let failing = Failing { inner: &target, commits_left: AtomicU64::new(left), is_applied, goes_on: true };
            assert_eq!(move_all(&source, &failing, false).await.unwrap(), WHOLE);
            assert_eq!(content(&target).await, content(&source).await);
        }
    }
    // Somebody else's restore in between is no outcome of ours.
    let text = dump(&source).await;
    let (mut mine, mut other) = (Restore::into(&target, false), Restore::into(&target, true));
    let header = text.lines().next().unwrap();
    mine.line(header).await.unwrap();
    other.line(&header.replace("redb", "else")).await.unwrap();
    let mut told = Ok(());
    for line in text.lines().skip(1).take(91) {
        told = mine.line(line).await;
    }
    assert!(matches!(told, Err(TransferError::Raced)), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_catalogue_moves_from_a_file_to_etcd_and_back() {
    let cluster = Cluster::start().await;
    let (source, back) = (fresh().await, fresh().await);
    fill(&source).await;
    let target = etcd::open(cluster.endpoints(), "moved/").await;
    assert_eq!(move_all(&source, &target, false).await.unwrap(), WHOLE);
    assert_eq!(content(&target).await, content(&source).await);
    assert_eq!(move_all(&target, &back, false).await.unwrap(), Restored { leased: 0, ..WHOLE });
    assert_eq!(content(&back).await, content(&source).await);
    interrupt(&source, &target, 3).await;
}
