//! Members killed under load: counters that several workers raise by compare-and-commit, and a watcher beside them.
//!
//! Each raise writes a key of its own on the condition that it is absent: what settles an unknown outcome, and what is counted in
//! the end. The watcher must see every value of every counter once, in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use control::catalogue::{
    Catalogue, Changed, Condition, Entry, Error, Etcd, Outcome, Prefix, Range, Revision, Transaction,
};

use crate::cluster::{Cluster, PATIENCE};
use crate::etcd::open;
use crate::words::*;

const WORKERS: u64 = 4;
const COUNTERS: u64 = 3;
/// Raises between two blows.
const STRETCH: u64 = 60;

#[derive(Default)]
struct Account {
    acknowledged: AtomicU64,
    unknown: AtomicU64,
    missed: AtomicU64,
    is_over: AtomicBool,
}

fn number(entry: &Entry) -> u64 {
    std::str::from_utf8(entry.value.as_bytes()).unwrap().parse().unwrap()
}

/// Reads until somebody answers.
async fn read(catalogue: &Etcd, name: &str) -> Entry {
    loop {
        match catalogue.get(key(name)).await {
            Ok(reading) => return reading.entry.expect("counters are never deleted"),
            Err(Error::NoAnswer { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

/// Raises a counter once; the keys of the raises that were acknowledged.
async fn raise(catalogue: &Etcd, counter: &str, id: &str, account: &Account) {
    let mut is_unknown = false;
    loop {
        let now = read(catalogue, counter).await;
        let changes = vec![put(counter, (number(&now) + 1).to_string()), put(id, counter)];
        let once = Transaction::new(vec![Condition::absent(key(id)), Condition::unchanged(&now)], changes).unwrap();
        match catalogue.commit(once).await {
            Ok(Outcome::Committed(_)) => return,
            Ok(Outcome::Missed(missed)) => {
                if missed.seen[0].is_some() {
                    assert!(is_unknown, "{id} was written before it was sent a second time");
                    return;
                }
                account.missed.fetch_add(1, Ordering::Relaxed);
            }
            Err(Error::OutcomeUnknown { .. }) => {
                is_unknown = true;
                account.unknown.fetch_add(1, Ordering::Relaxed);
            }
            Err(Error::NoAnswer { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

async fn work(worker: u64, endpoints: Vec<String>, account: Arc<Account>) -> Vec<String> {
    let catalogue = open(endpoints, "").await;
    let mut done = Vec::new();
    while !account.is_over.load(Ordering::Relaxed) {
        let counter = format!("counter/{}", (done.len() as u64 + worker) % COUNTERS);
        let id = format!("raise/{worker}/{:06}", done.len());
        raise(&catalogue, &counter, &id, &account).await;
        account.acknowledged.fetch_add(1, Ordering::Relaxed);
        done.push(id);
    }
    done
}

/// Follows the counters up to a revision; the last value of each.
async fn follow(
    catalogue: Etcd,
    start: Revision,
    mut end: tokio::sync::watch::Receiver<Revision>,
) -> BTreeMap<String, u64> {
    let mut watch = catalogue.watch(prefix("counter/"), start);
    let (mut values, mut last) = (BTreeMap::new(), start);
    loop {
        let told = tokio::select! {
            told = try_next(&mut watch) => told,
            _ = end.changed() => {
                if last >= *end.borrow() {
                    return values;
                }
                continue;
            }
        };
        let commit = told.expect("a watcher is never ended by a member");
        assert!(commit.revision > last, "{} after {last}", commit.revision);
        last = commit.revision;
        for changed in &commit.changes {
            let Changed::Put(entry) = changed else { panic!("{changed:?}") };
            let before = values.insert(entry.key.to_string(), number(entry)).unwrap_or(0);
            assert_eq!(number(entry), before + 1, "{} at {last}", entry.key);
        }
        if last >= *end.borrow() {
            return values;
        }
    }
}

async fn reach(account: &Account, count: u64) {
    let end = Instant::now() + PATIENCE;
    while account.acknowledged.load(Ordering::Relaxed) < count {
        assert!(Instant::now() < end, "the workers stand still at {}", account.acknowledged.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_killed_under_load_lose_and_double_nothing() {
    let mut cluster = Cluster::start().await;
    let direct = open(cluster.endpoints(), "").await;
    let zeros = (0..COUNTERS).map(|counter| put(format!("counter/{counter}"), "0")).collect();
    let start = change(&direct, zeros).await;
    let account = Arc::new(Account::default());
    let (end, ending) = tokio::sync::watch::channel(Revision(u64::MAX));
    let follower = tokio::spawn(follow(open(cluster.endpoints(), "").await, start, ending));
    let one = |worker| tokio::spawn(work(worker, cluster.endpoints(), account.clone()));
    let workers: Vec<_> = (0..WORKERS).map(one).collect();
    reach(&account, STRETCH).await;
    // A member that does not lead, and the one that does while the first is back; the workers are at the first that is named.
    for blow in 1..=4 {
        let leader = cluster.leader().await;
        let victim = if blow % 2 == 0 { leader } else { (0..3).find(|index| *index != leader).expect("three members") };
        cluster.kill(victim);
        reach(&account, account.acknowledged.load(Ordering::Relaxed) + STRETCH).await;
        cluster.run(victim);
        cluster.settle().await;
    }
    account.is_over.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for worker in workers {
        acknowledged.append(&mut worker.await.unwrap());
    }
    let (_, raises) = read_all(&direct, Range::of(prefix("raise/"))).await.unwrap();
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for raise in &raises {
        let counter = key(raise.value.as_bytes()).to_string();
        *expected.entry(counter).or_default() += 1;
    }
    // None lost: each that was acknowledged is there. None twice: a counter is as high as it was raised.
    for id in &acknowledged {
        assert!(raises.iter().any(|raise| raise.key == key(id)), "{id} is lost");
    }
    let (revision, counters) = read_all(&direct, Range::of(prefix("counter/"))).await.unwrap();
    let found: BTreeMap<String, u64> = counters.iter().map(|entry| (entry.key.to_string(), number(entry))).collect();
    assert_eq!(found, expected);
    let last = counters.iter().map(|entry| entry.modified).max().unwrap();
    assert!(last <= revision);
    end.send_replace(last);
    let follower = tokio::time::timeout(PATIENCE, follower).await.expect("the follower sees the last revision");
    assert_eq!(follower.unwrap(), expected);
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!("{} raises, {} unknown, {} missed", acknowledged.len(), count(&account.unknown), count(&account.missed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_sees_no_leader_is_passed_over() {
    let mut cluster = Cluster::start().await;
    let catalogue = open(cluster.endpoints(), "").await;
    change(&catalogue, vec![put("a", "1")]).await;
    // Two of three are gone: the one that is left can neither agree on a change nor confirm a read.
    cluster.kill(1);
    cluster.kill(2);
    let options = control::catalogue::EtcdOptions {
        time_limit: Duration::from_secs(4),
        ..control::catalogue::EtcdOptions::new(cluster.endpoints())
    };
    let Err(told) = Etcd::open(options).await else { panic!("a minority has answered") };
    assert!(matches!(told, Error::NoAnswer { .. }), "{told}");
    cluster.run(1);
    cluster.settle().await;
    change(&catalogue, vec![put("a", "2")]).await;
    let (_, entries) = read_all(&catalogue, Range::of(Prefix::all())).await.unwrap();
    assert_eq!(told_values(&entries), ["2"]);
}

fn told_values(entries: &[Entry]) -> Vec<String> {
    told(entries).into_iter().map(|(_, value)| value).collect()
}
