//! What every engine must do. Each case is given an empty catalogue.

use std::sync::Arc;
use std::time::Duration;

use control::catalogue::{
    Catalogue, Condition, Error, KEY_BYTES_MAX, Key, LEASE_KEYS_MAX, LeaseId, LimitError, Outcome, PAGE_ENTRIES_MAX,
    Prefix, Range, Revision, TRANSACTION_PARTS_MAX, Transaction, Ttl, VALUE_BYTES_MAX, Value,
};

use tokio::time::Instant;

use crate::words::*;

/// A catalogue that several tasks share.
pub type Shared = Arc<dyn Catalogue>;

fn transaction(conditions: Vec<Condition>, changes: Vec<control::catalogue::Change>) -> Transaction {
    Transaction::new(conditions, changes).expect("within the limits")
}

pub async fn a_commit_is_one_revision_and_all_or_nothing(catalogue: Shared) {
    let first = change(&*catalogue, vec![put("a", "1"), put("b", "2")]).await;
    let second = change(&*catalogue, vec![put("b", "3"), delete("a")]).await;
    assert!(first < second);
    let (revision, entries) = read_all(&*catalogue, Range::of(Prefix::all())).await.unwrap();
    assert!(revision >= second);
    assert_eq!(told(&entries), [("b".to_owned(), "3".to_owned())]);
    assert_eq!((entries[0].modified, entries[0].lease), (second, None));
    // The first condition holds, the second does not: nothing of it is done.
    let conditions = vec![Condition::holds(key("b"), value("3")), Condition::absent(key("b"))];
    let missed = miss(&*catalogue, transaction(conditions, vec![put("a", "9"), delete("b")])).await;
    assert_eq!(missed.seen, [Some(entries[0].clone()), Some(entries[0].clone())]);
    assert_eq!(missed.revision, second);
    assert_eq!(read_all(&*catalogue, Range::of(Prefix::all())).await.unwrap().1, entries);
}

pub async fn every_kind_of_condition_is_checked(catalogue: Shared) {
    let revision = change(&*catalogue, vec![put("there", "x")]).await;
    let entry = get(&*catalogue, "there").await.unwrap();
    let hold = [
        Condition::absent(key("gone")),
        Condition::unchanged(&entry),
        Condition::modified(key("there"), revision),
        Condition::modified(key("gone"), Revision::NONE),
        Condition::holds(key("there"), value("x")),
    ];
    let miss_alone = [
        Condition::absent(key("there")),
        Condition::modified(key("there"), Revision(revision.0 - 1)),
        Condition::modified(key("there"), Revision(revision.0 + 1)),
        Condition::modified(key("gone"), revision),
        Condition::holds(key("there"), value("")),
        Condition::holds(key("there"), value("xx")),
        Condition::holds(key("gone"), value("")),
    ];
    for condition in miss_alone {
        let missed = miss(&*catalogue, transaction(vec![condition.clone()], vec![put("written", "1")])).await;
        let there = (missed.seen[0].as_ref() == Some(&entry), missed.seen[0].is_none());
        assert!(there.0 || there.1, "{condition:?}: {missed:?}");
        let mut conditions = hold.to_vec();
        conditions.push(condition);
        assert_eq!(
            miss(&*catalogue, transaction(conditions, vec![put("written", "1")])).await.seen.len(),
            hold.len() + 1
        );
    }
    assert_eq!(get(&*catalogue, "written").await, None);
    let outcome = catalogue.commit(transaction(hold.to_vec(), vec![put("written", "1")])).await.unwrap();
    assert!(matches!(outcome, Outcome::Committed(at) if at > revision), "{outcome:?}");
}

pub async fn what_changes_nothing_takes_no_revision(catalogue: Shared) {
    let revision = change(&*catalogue, vec![put("a", "1")]).await;
    let nothing = transaction(vec![Condition::holds(key("a"), value("1"))], Vec::new());
    assert_eq!(catalogue.commit(nothing).await.unwrap(), Outcome::Committed(revision));
    assert_eq!(change(&*catalogue, vec![delete("gone")]).await, revision);
    // Writing what is there already is a change.
    assert!(change(&*catalogue, vec![put("a", "1")]).await > revision);
}

pub async fn pages_are_of_one_moment(catalogue: Shared) {
    for part in 0..3 {
        let one = |index: usize| put(format!("k{:03}", part * 80 + index), "old");
        change(&*catalogue, (0..80).map(one).collect()).await;
    }
    let range = Range::of(prefix("k")).entries(50).unwrap();
    let page = catalogue.range(range.clone()).await.unwrap();
    assert_eq!(page.entries.len(), 50);
    // Behind the page, before it, new and gone: the next pages show nothing of it.
    change(&*catalogue, vec![put("k100", "new"), put("k100a", "new"), delete("k239"), delete("k001"), put("l", "new")])
        .await;
    change(&*catalogue, vec![put("k100", "newer"), delete("k101"), put("k239", "back")]).await;
    let rest = read_all(&*catalogue, page.next.clone().unwrap()).await.unwrap();
    assert_eq!(rest.0, page.revision);
    let whole: Vec<_> = page.entries.iter().chain(&rest.1).cloned().collect();
    let expected: Vec<_> = (0..240).map(|index| (format!("k{index:03}"), "old".to_owned())).collect();
    assert_eq!(told(&whole), expected);
    assert_eq!(read_all(&*catalogue, range.clone().at(page.revision)).await.unwrap(), (page.revision, whole));
    let (_, now) = read_all(&*catalogue, range).await.unwrap();
    assert_eq!(now.len(), 239);
    let at = |name: &str| now.iter().find(|entry| entry.key == key(name)).map(|entry| entry.value.clone());
    assert_eq!(
        [at("k100"), at("k100a"), at("k239")].map(Option::unwrap),
        [value("newer"), value("new"), value("back")]
    );
    assert_eq!([at("k001"), at("k101")], [None, None]);
    assert!(catalogue.range(Range::of(prefix("m"))).await.unwrap().entries.is_empty());
}

pub async fn a_prefix_covers_what_begins_with_it(catalogue: Shared) {
    let names: [&[u8]; 8] = [b"\x01", b"a", b"a\xff", b"a\xff\xff", b"a\xff\xff\x00", b"b", b"\xff", b"\xff\xff"];
    change(&*catalogue, names.iter().map(|name| put(name, "")).collect()).await;
    let covered = async |bytes: &[u8]| -> Vec<Vec<u8>> {
        let range = Range::of(Prefix::new(bytes).unwrap()).entries(2).unwrap();
        let (_, entries) = read_all(&*catalogue, range).await.unwrap();
        entries.iter().map(|entry| entry.key.as_bytes().to_vec()).collect()
    };
    assert_eq!(covered(b"").await, names);
    assert_eq!(covered(b"a").await, names[1..5]);
    assert_eq!(covered(b"a\xff\xff").await, names[3..5]);
    assert_eq!(covered(b"\xff").await, names[6..]);
    assert_eq!(covered(b"\xff\xff").await, names[7..]);
}

pub async fn a_watch_gives_every_commit_once_and_in_order(catalogue: Shared) {
    let before = present(&*catalogue).await;
    let early = change(&*catalogue, vec![put("w/b", "1"), put("other", "1"), put("w/a", "1")]).await;
    let mut from_before = catalogue.watch(prefix("w/"), before);
    let mut from_there = catalogue.watch(prefix("w/"), early);
    let mut all = catalogue.watch(Prefix::all(), early);
    let commit = next(&mut from_before).await;
    assert_eq!((commit.revision, changes(&commit)), (early, vec!["+w/a=1".to_owned(), "+w/b=1".to_owned()]));
    let other = change(&*catalogue, vec![put("other", "2")]).await;
    let later = change(&*catalogue, vec![delete("w/b"), delete("w/none"), put("w/a", "2")]).await;
    for watch in [&mut from_before, &mut from_there] {
        let commit = next(watch).await;
        assert_eq!((commit.revision, changes(&commit)), (later, vec!["+w/a=2".to_owned(), "-w/b".to_owned()]));
    }
    assert_eq!(next(&mut all).await.revision, other);
    assert_eq!(next(&mut all).await.revision, later);
    // More than is given at once, before the watch begins and while it runs.
    let mut expected = Vec::new();
    for count in 0..200 {
        expected.push(change(&*catalogue, vec![put("w/n", count.to_string())]).await);
    }
    for watch in [&mut from_before, &mut all] {
        for (count, revision) in expected.iter().enumerate() {
            let commit = next(watch).await;
            assert_eq!((commit.revision, changes(&commit)), (*revision, vec![format!("+w/n={count}")]));
        }
    }
}

pub async fn what_was_compacted_is_told_never_skipped(catalogue: Shared) {
    let start = present(&*catalogue).await;
    let first = change(&*catalogue, vec![put("a", "1"), put("b", "1")]).await;
    let gone = change(&*catalogue, vec![delete("a")]).await;
    let last = change(&*catalogue, vec![put("b", "2")]).await;
    catalogue.compact(gone).await.unwrap();
    catalogue.compact(gone).await.expect("again is no error");
    catalogue.compact(first).await.expect("nor is less");
    for after in [Revision::NONE, start, first] {
        let told = try_next(&mut catalogue.watch(Prefix::all(), after)).await;
        assert!(matches!(told, Err(Error::Compacted { .. })), "after {after}: {told:?}");
    }
    for at in [Revision::NONE, start, first] {
        let told = catalogue.range(Range::of(Prefix::all()).at(at)).await;
        assert!(
            matches!(told, Err(Error::Compacted { asked, oldest }) if asked == at && oldest > at),
            "at {at}: {told:?}"
        );
    }
    // From what was compacted on, all is there.
    let (_, entries) = read_all(&*catalogue, Range::of(Prefix::all()).at(gone)).await.unwrap();
    assert_eq!(told(&entries), [("b".to_owned(), "1".to_owned())]);
    let mut watch = catalogue.watch(Prefix::all(), gone);
    assert_eq!(next(&mut watch).await.revision, last);
    assert_eq!(
        told(&read_all(&*catalogue, Range::of(Prefix::all())).await.unwrap().1),
        [("b".to_owned(), "2".to_owned())]
    );
}

pub async fn a_revision_that_has_not_been_is_told(catalogue: Shared) {
    let present = change(&*catalogue, vec![put("a", "1")]).await;
    let beyond = Revision(present.0 + 1000);
    let is_told =
        |told: &Error| matches!(told, Error::NotYet { asked, present: at } if *asked == beyond && *at >= present);
    let told = try_next(&mut catalogue.watch(Prefix::all(), beyond)).await.unwrap_err();
    assert!(is_told(&told), "{told:?}");
    let told = catalogue.range(Range::of(Prefix::all()).at(beyond)).await.unwrap_err();
    assert!(is_told(&told), "{told:?}");
    let told = catalogue.compact(beyond).await.unwrap_err();
    assert!(is_told(&told), "{told:?}");
}

pub async fn keys_of_a_lease_go_when_it_ends(catalogue: Shared) {
    let lease = catalogue.grant(ttl(2)).await.unwrap();
    assert!(lease.ttl >= Duration::from_secs(2));
    let changes_made = vec![put_leased("l/a", "1", lease.id), put_leased("l/b", "1", lease.id), put("l/c", "1")];
    let written = change(&*catalogue, changes_made).await;
    assert_eq!(get(&*catalogue, "l/a").await.unwrap().lease, Some(lease.id));
    let mut watch = catalogue.watch(prefix("l/"), written);
    // Kept alive for longer than it lasts.
    let mut kept_alive = Instant::now();
    for _ in 0..8 {
        tokio::time::sleep(lease.ttl / 4).await;
        let began = Instant::now();
        match catalogue.keep_alive(lease.id).await {
            Ok(kept) => assert_eq!(kept, lease),
            // Right only where the machine stood still for as long as the lease lasts.
            Err(error) => {
                assert!(matches!(error, Error::LeaseGone { .. }) && kept_alive.elapsed() >= lease.ttl, "{error}")
            }
        }
        kept_alive = began;
    }
    let commit = next(&mut watch).await;
    assert_eq!(changes(&commit), ["-l/a", "-l/b"]);
    assert!(commit.revision > written);
    assert_eq!(
        told(&read_all(&*catalogue, Range::of(prefix("l/"))).await.unwrap().1),
        [("l/c".to_owned(), "1".to_owned())]
    );
    let told = catalogue.keep_alive(lease.id).await.unwrap_err();
    assert!(matches!(told, Error::LeaseGone { id } if id == lease.id), "{told:?}");
    let late = transaction(Vec::new(), vec![put("l/d", "1"), put_leased("l/e", "1", lease.id)]);
    let told = catalogue.commit(late).await.unwrap_err();
    assert!(matches!(told, Error::LeaseGone { id } if id == lease.id), "{told:?}");
    assert_eq!((get(&*catalogue, "l/d").await, get(&*catalogue, "l/e").await), (None, None));
}

pub async fn a_revoked_lease_takes_exactly_its_keys(catalogue: Shared) {
    let (lease, other) = (catalogue.grant(ttl(600)).await.unwrap(), catalogue.grant(ttl(600)).await.unwrap());
    assert_ne!(lease.id, other.id);
    for name in ["a", "b", "c", "d", "e"] {
        change(&*catalogue, vec![put_leased(name, "1", lease.id)]).await;
    }
    // Written anew without the lease, with another one, deleted, and written anew after that.
    change(&*catalogue, vec![put("a", "2"), put_leased("b", "2", other.id), delete("c"), delete("d")]).await;
    let written = change(&*catalogue, vec![put("d", "2")]).await;
    let mut watch = catalogue.watch(Prefix::all(), written);
    catalogue.revoke(lease.id).await.unwrap();
    assert_eq!(changes(&next(&mut watch).await), ["-e"]);
    catalogue.revoke(lease.id).await.expect("that it has ended is no error");
    let told = catalogue.keep_alive(lease.id).await.unwrap_err();
    assert!(matches!(told, Error::LeaseGone { .. }), "{told:?}");
    catalogue.revoke(other.id).await.unwrap();
    assert_eq!(changes(&next(&mut watch).await), ["-b"]);
    let (_, entries) = read_all(&*catalogue, Range::of(Prefix::all())).await.unwrap();
    assert_eq!(entries.iter().map(|entry| entry.key.clone()).collect::<Vec<_>>(), [key("a"), key("d")]);
    let unknown = catalogue.keep_alive(LeaseId(77)).await.unwrap_err();
    assert!(matches!(unknown, Error::LeaseGone { .. }), "{unknown:?}");
}

pub async fn keys_of_a_lease_have_a_bound(catalogue: Shared) {
    let (lease, other) = (catalogue.grant(ttl(600)).await.unwrap(), catalogue.grant(ttl(600)).await.unwrap());
    let bind = |range: std::ops::Range<usize>, to: LeaseId| {
        range.map(|index| put_leased(&format!("{index:04}"), "1", to)).collect::<Vec<_>>()
    };
    for start in (0..LEASE_KEYS_MAX).step_by(TRANSACTION_PARTS_MAX) {
        change(&*catalogue, bind(start..start + TRANSACTION_PARTS_MAX, lease.id)).await;
    }
    // The member of an etcd that counts may be behind the one that has answered.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let told = catalogue.commit(transaction(Vec::new(), bind(LEASE_KEYS_MAX..LEASE_KEYS_MAX + 1, lease.id))).await;
    assert!(matches!(told, Err(Error::LeaseFull { id }) if id == lease.id), "{told:?}");
    assert_eq!(get(&*catalogue, format!("{LEASE_KEYS_MAX:04}")).await, None);
    // Written again, in the place of one that goes, and bound to another one.
    change(&*catalogue, bind(0..TRANSACTION_PARTS_MAX, lease.id)).await;
    let mut changes = vec![delete("0000"), put("0001", "1"), put_leased("0002", "1", other.id)];
    changes.extend((0..3).map(|index| put_leased(&format!("in the place of {index}"), "1", lease.id)));
    change(&*catalogue, changes).await;
    change(&*catalogue, bind(LEASE_KEYS_MAX..LEASE_KEYS_MAX + 1, other.id)).await;
    let written = present(&*catalogue).await;
    let mut watch = catalogue.watch(Prefix::all(), written);
    catalogue.revoke(lease.id).await.unwrap();
    assert_eq!(next(&mut watch).await.changes.len(), LEASE_KEYS_MAX);
}

pub async fn what_is_within_the_limits_is_taken_and_nothing_else(catalogue: Shared) {
    let (long, large) = (vec![b'k'; KEY_BYTES_MAX], vec![b'v'; VALUE_BYTES_MAX]);
    let start = present(&*catalogue).await;
    let revision =
        change(&*catalogue, vec![put(&long, vec![0; VALUE_BYTES_MAX - 2 * KEY_BYTES_MAX]), put("large", &large)]).await;
    assert_eq!(get(&*catalogue, "large").await.unwrap().value.as_bytes(), large);
    assert_eq!(get(&*catalogue, &long).await.unwrap().modified, revision);
    let name = |index: usize| [format!("{index:03}").as_bytes(), &vec![b'x'; KEY_BYTES_MAX - 3]].concat();
    let many = (0..TRANSACTION_PARTS_MAX).map(|index| put(name(index), vec![b'v'; 9000])).collect();
    let absent =
        (0..TRANSACTION_PARTS_MAX).map(|index| Condition::absent(key(&name(index)[..KEY_BYTES_MAX / 4]))).collect();
    assert!(matches!(catalogue.commit(transaction(absent, many)).await.unwrap(), Outcome::Committed(_)));
    let (_, entries) = read_all(&*catalogue, Range::of(Prefix::all())).await.unwrap();
    assert_eq!(entries.len(), TRANSACTION_PARTS_MAX + 2);
    change(&*catalogue, (0..TRANSACTION_PARTS_MAX).map(|index| put(name(index), vec![b'w'; 9000])).collect()).await;
    // Three commits that are more than an answer of etcd's holds: each comes whole all the same.
    let mut watch = catalogue.watch(Prefix::all(), start);
    for parts in [2, TRANSACTION_PARTS_MAX, TRANSACTION_PARTS_MAX] {
        assert_eq!(next(&mut watch).await.changes.len(), parts);
    }
    assert_eq!(Key::new([]), Err(LimitError::KeyLength { bytes: 0 }));
    assert_eq!(Key::new([0, 1]), Err(LimitError::KeyReserved));
    assert_eq!(Key::new([1; KEY_BYTES_MAX + 1]), Err(LimitError::KeyLength { bytes: KEY_BYTES_MAX + 1 }));
    assert_eq!(Value::new(vec![0; VALUE_BYTES_MAX + 1]), Err(LimitError::ValueLength { bytes: VALUE_BYTES_MAX + 1 }));
    let twice = Transaction::new(Vec::new(), vec![put("a", "1"), delete("a")]);
    assert!(matches!(twice, Err(LimitError::KeyTwice { .. })), "{twice:?}");
    let parts =
        Transaction::new(Vec::new(), (0..=TRANSACTION_PARTS_MAX).map(|index| delete(index.to_string())).collect());
    assert_eq!(parts, Err(LimitError::Parts { conditions: 0, changes: TRANSACTION_PARTS_MAX + 1 }));
    let bytes = Transaction::new(Vec::new(), ["a", "b"].map(|name| put(name, &large)).to_vec());
    assert_eq!(bytes, Err(LimitError::TransactionBytes { bytes: 2 * VALUE_BYTES_MAX + 2 }));
    assert!(Range::of(Prefix::all()).entries(PAGE_ENTRIES_MAX + 1).is_err());
    assert_eq!(Ttl::new(Duration::from_millis(999)), Err(LimitError::Ttl { ttl: Duration::from_millis(999) }));
    assert_eq!(Ttl::new(Duration::from_millis(1001)).unwrap().as_duration(), Duration::from_secs(2));
}

pub async fn counters_lose_and_double_nothing(catalogue: Shared) {
    const WORKERS: u64 = 4;
    const ROUNDS: u64 = 15;
    let start = change(&*catalogue, vec![put("n", "0")]).await;
    let mut watch = catalogue.watch(prefix("n"), start);
    let worker = |catalogue: Shared| async move {
        for _ in 0..ROUNDS {
            loop {
                let entry = get(&*catalogue, "n").await.unwrap();
                let count: u64 = std::str::from_utf8(entry.value.as_bytes()).unwrap().parse().unwrap();
                let next = transaction(vec![Condition::unchanged(&entry)], vec![put("n", (count + 1).to_string())]);
                if let Outcome::Committed(_) = catalogue.commit(next).await.unwrap() {
                    break;
                }
            }
        }
    };
    let workers: Vec<_> = (0..WORKERS).map(|_| tokio::spawn(worker(catalogue.clone()))).collect();
    for count in 1..=WORKERS * ROUNDS {
        assert_eq!(changes(&next(&mut watch).await), [format!("+n={count}")]);
    }
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(get(&*catalogue, "n").await.unwrap().value, value((WORKERS * ROUNDS).to_string()));
}

/// Names every case to a macro of the engine's.
macro_rules! cases {
    ($engine:ident) => {
        $engine! {
            a_commit_is_one_revision_and_all_or_nothing
            every_kind_of_condition_is_checked
            what_changes_nothing_takes_no_revision
            pages_are_of_one_moment
            a_prefix_covers_what_begins_with_it
            a_watch_gives_every_commit_once_and_in_order
            what_was_compacted_is_told_never_skipped
            a_revision_that_has_not_been_is_told
            keys_of_a_lease_go_when_it_ends
            a_revoked_lease_takes_exactly_its_keys
            keys_of_a_lease_have_a_bound
            what_is_within_the_limits_is_taken_and_nothing_else
            counters_lose_and_double_nothing
        }
    };
}
pub(crate) use cases;
