//! The suite on a file, and what only a file has: a bounded history, one owner, leases over a restart. The clock is the test's
//! own: it jumps when there is nothing else to do.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use control::catalogue::{Catalogue, Embedded, EmbeddedOptions, Error, Prefix, Range, Revision};

use crate::suite;
use crate::words::*;

pub async fn open(folder: &Path) -> Embedded {
    Embedded::open(folder.join("catalogue.redb"), EmbeddedOptions::default()).await.expect("a catalogue")
}

macro_rules! on_a_file {
    ($($case:ident)*) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $case() {
                let folder = tempfile::tempdir().unwrap();
                suite::$case(Arc::new(open(folder.path()).await)).await;
            }
        )*
    };
}
suite::cases!(on_a_file);

async fn with_short_history(folder: &Path) -> Embedded {
    let options = EmbeddedOptions { history_changes: 10, ..EmbeddedOptions::default() };
    Embedded::open(folder.join("catalogue.redb"), options).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_is_too_slow_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let catalogue = with_short_history(folder.path()).await;
    let start = change(&catalogue, vec![put("a", "0")]).await;
    let (mut slow, mut quick) = (catalogue.watch(Prefix::all(), start), catalogue.watch(Prefix::all(), start));
    for count in 1..=30 {
        let revision = change(&catalogue, vec![put("a", count.to_string()), put("b", "")]).await;
        assert_eq!(next(&mut quick).await.revision, revision);
    }
    let told = try_next(&mut slow).await.unwrap_err();
    // Ten changes are five commits.
    let oldest = Revision(start.0 + 25);
    assert!(matches!(told, Error::Compacted { asked, oldest: at } if asked == start && at == oldest), "{told:?}");
    assert!(matches!(try_next(&mut slow).await.unwrap_err(), Error::Closed));
    // From where history begins a watch gives all the rest.
    let mut watch = catalogue.watch(Prefix::all(), oldest);
    for count in 26..=30 {
        assert_eq!(changes(&next(&mut watch).await), [format!("+a={count}"), "+b=".to_owned()]);
    }
    let told = catalogue.range(Range::of(Prefix::all()).at(Revision(oldest.0 - 1))).await.unwrap_err();
    assert!(matches!(told, Error::Compacted { .. }), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn history_keeps_the_newest_commit_however_large() {
    let folder = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { history_bytes: 1000, ..EmbeddedOptions::default() };
    let catalogue = Embedded::open(folder.path().join("catalogue.redb"), options).await.unwrap();
    let start = present(&catalogue).await;
    let mut watch = catalogue.watch(Prefix::all(), start);
    let first = change(&catalogue, vec![put("a", vec![b'x'; 5000])]).await;
    assert_eq!(next(&mut watch).await.revision, first);
    let second = change(&catalogue, vec![put("b", vec![b'x'; 5000])]).await;
    assert_eq!(next(&mut watch).await.revision, second);
    assert!(matches!(try_next(&mut catalogue.watch(Prefix::all(), start)).await, Err(Error::Compacted { .. })));
}

#[tokio::test(start_paused = true)]
async fn all_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let catalogue = open(folder.path()).await;
    let identity = catalogue.identity().await.unwrap();
    let first = change(&catalogue, vec![put("a", "1"), put("b", "1")]).await;
    let second = change(&catalogue, vec![delete("a")]).await;
    let mut watch = catalogue.watch(Prefix::all(), second);
    let waiting = tokio::spawn(async move { watch.next().await });
    tokio::task::yield_now().await;
    catalogue.close().await;
    assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
    let catalogue = open(folder.path()).await;
    assert_eq!(catalogue.identity().await.unwrap(), identity);
    assert_eq!(present(&catalogue).await, second);
    let mut watch = catalogue.watch(Prefix::all(), first);
    assert_eq!(changes(&next(&mut watch).await), ["-a"]);
    let (_, entries) = read_all(&catalogue, Range::of(Prefix::all()).at(first)).await.unwrap();
    assert_eq!(entries.len(), 2);
    assert!(change(&catalogue, vec![put("a", "2")]).await > second);
}

#[tokio::test(start_paused = true)]
async fn a_lease_lasts_its_whole_time_anew_after_a_restart_and_ends_then() {
    let folder = tempfile::tempdir().unwrap();
    let catalogue = open(folder.path()).await;
    let lease = catalogue.grant(ttl(10)).await.unwrap();
    change(&catalogue, vec![put_leased("a", "1", lease.id)]).await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    catalogue.close().await;
    let catalogue = open(folder.path()).await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    let entry = get(&catalogue, "a").await.expect("the lease lasts");
    assert_eq!(catalogue.grant(ttl(10)).await.unwrap().id.0, lease.id.0 + 1, "no number is given twice");
    let mut watch = catalogue.watch(Prefix::all(), entry.modified);
    assert_eq!(changes(&next(&mut watch).await), ["-a"]);
    // Gone from the file, too.
    catalogue.close().await;
    let catalogue = open(folder.path()).await;
    assert!(matches!(catalogue.keep_alive(lease.id).await.unwrap_err(), Error::LeaseGone { .. }));
}

#[tokio::test]
async fn a_file_has_one_owner_and_whoever_comes_second_is_told_whom_to_ask() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("catalogue.redb");
    let options = EmbeddedOptions { owner: "yagura control at 192.0.2.7:8080".into(), ..EmbeddedOptions::default() };
    let first = Embedded::open(&file, options).await.unwrap();
    let Err(told) = Embedded::open(&file, EmbeddedOptions::default()).await else { panic!("two owners") };
    let words = told.to_string();
    assert!(matches!(told, Error::InUse { .. }), "{words}");
    let process = format!("(process {})", std::process::id());
    assert!(words.contains("yagura control at 192.0.2.7:8080") && words.contains(&process), "{words}");
    // From another process: this test, run again by name, opens the file that it is told of.
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "embedded::opens_the_file_that_it_is_told_of", "--nocapture"])
        .env("CATALOGUE_FILE", &file)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&again.stdout).into_owned() + &String::from_utf8_lossy(&again.stderr);
    assert!(printed.contains("refused") && printed.contains(&process), "{printed}");
    first.close().await;
    Embedded::open(&file, EmbeddedOptions::default()).await.expect("it is free again");
}

/// The second process of the test above; by itself it opens a file of its own.
#[tokio::test]
async fn opens_the_file_that_it_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let file = std::env::var_os("CATALOGUE_FILE").map_or(folder.path().join("own"), Into::into);
    match Embedded::open(&file, EmbeddedOptions::default()).await {
        Ok(catalogue) => assert_eq!(present(&catalogue).await, Revision(1)),
        Err(told) => panic!("refused: {told}"),
    }
}

#[tokio::test]
async fn a_file_of_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    std::fs::write(&text, "not a database at all, but something longer than a header".repeat(100)).unwrap();
    let Err(told) = Embedded::open(&text, EmbeddedOptions::default()).await else { panic!("it was opened") };
    assert!(matches!(told, Error::Storage { .. }), "{told}");
    let other = folder.path().join("other");
    let database = redb::Database::create(&other).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(redb::TableDefinition::<u64, u64>::new("songs")).unwrap().insert(1, 1).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let Err(told) = Embedded::open(&other, EmbeddedOptions::default()).await else { panic!("it was opened") };
    assert!(matches!(&told, Error::Foreign { what, .. } if what.contains("songs")), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_is_dropped_is_done_or_not_and_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let catalogue = open(folder.path()).await;
    for count in 0..50 {
        let transaction = control::catalogue::Transaction::new(Vec::new(), vec![put("a", count.to_string())]).unwrap();
        let _dropped = tokio::time::timeout(Duration::from_micros(50 * count), catalogue.commit(transaction)).await;
    }
    let last = change(&catalogue, vec![put("b", "1")]).await;
    let mut watch = catalogue.watch(Prefix::all(), Revision(1));
    let mut expected = 2;
    loop {
        let commit = next(&mut watch).await;
        assert_eq!(commit.revision, Revision(expected));
        expected += 1;
        if commit.revision == last {
            break;
        }
    }
}
