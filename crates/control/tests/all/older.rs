//! An etcd that was put back to an older copy, or for which another one stands: whoever watches it must be told, also where that
//! one has more revisions than were seen.

use control::catalogue::{Catalogue, Error, Etcd, Prefix, Revision, Watch};

use crate::cluster::Cluster;
use crate::etcd::open;
use crate::proxy::Proxy;
use crate::words::*;

/// A member that runs, and a relay before it.
async fn start() -> (Cluster, Proxy) {
    let cluster = Cluster::begin(1, "http", Vec::new());
    cluster.settle().await;
    let proxy = Proxy::to(cluster.address(0)).await;
    (cluster, proxy)
}

async fn stop_and_run(cluster: &mut Cluster, between: impl FnOnce(&Cluster)) {
    cluster.kill(0);
    between(cluster);
    cluster.run(0);
    cluster.settle().await;
}

/// Cuts the watch off, puts the member back to the copy, and commits until its revision is beyond what the watch has seen.
async fn overtake(cluster: &mut Cluster, proxy: &Proxy, seen: Revision) -> Etcd {
    proxy.cut(true);
    stop_and_run(cluster, |cluster| cluster.put_back(0, "copy")).await;
    let direct = open(cluster.endpoints(), "").await;
    while present(&direct).await <= seen {
        change(&direct, vec![put("a", "of another history")]).await;
    }
    proxy.open();
    direct
}

async fn is_told(watch: &mut Box<dyn Watch>, seen: Revision) {
    let told = try_next(watch).await;
    assert!(matches!(told, Err(Error::PutBack { after, .. }) if after == seen), "{told:?}");
    assert!(matches!(try_next(watch).await, Err(Error::Closed)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_that_has_overtaken_a_watch_is_told_by_what_it_holds() {
    let (mut cluster, proxy) = start().await;
    let through = open(vec![proxy.endpoint.clone()], "").await;
    change(&through, vec![put("a", "0")]).await;
    stop_and_run(&mut cluster, |cluster| cluster.copy(0, "copy")).await;
    let start = present(&through).await;
    // One that was given what it stands at, one that was begun after a reading, and one that only saw that go by.
    let (mut given, mut begun) = (through.watch(Prefix::all(), start), None);
    for count in 1..=3 {
        let written = change(&through, vec![put("a", count.to_string()), put("b", "1")]).await;
        assert_eq!(next(&mut given).await.revision, written);
        begun = Some((through.watch(Prefix::all(), written), written));
    }
    let (mut begun, written) = begun.unwrap();
    assert!(tokio::time::timeout(std::time::Duration::from_secs(2), begun.next()).await.is_err(), "nothing is new");
    overtake(&mut cluster, &proxy, written).await;
    is_told(&mut given, written).await;
    is_told(&mut begun, written).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_that_has_overtaken_a_watch_is_told_by_its_term() {
    let (mut cluster, proxy) = start().await;
    let through = open(vec![proxy.endpoint.clone()], "").await;
    change(&through, vec![put("a", "0")]).await;
    stop_and_run(&mut cluster, |cluster| cluster.copy(0, "copy")).await;
    // Each beginning is a term.
    stop_and_run(&mut cluster, |_| ()).await;
    stop_and_run(&mut cluster, |_| ()).await;
    let seen = change(&through, vec![put("a", "1")]).await;
    // Of what it covers nothing was ever written.
    let mut watch = through.watch(prefix("none/"), seen);
    assert!(tokio::time::timeout(std::time::Duration::from_secs(2), watch.next()).await.is_err(), "nothing is new");
    overtake(&mut cluster, &proxy, seen).await;
    is_told(&mut watch, seen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_has_begun_anew_is_no_older_copy() {
    let (mut cluster, proxy) = start().await;
    let through = open(vec![proxy.endpoint.clone()], "").await;
    let start = change(&through, vec![put("a", "0"), put("b", "0")]).await;
    let mut watch = through.watch(Prefix::all(), start);
    // Puts, puts and deletes, deletes alone; and all that is left of the last is forgotten by a compaction of that very revision.
    for changes in [vec![put("a", "1"), put("b", "1")], vec![put("a", "2"), delete("b")], vec![delete("a")]] {
        let written = change(&through, changes).await;
        assert_eq!(next(&mut watch).await.revision, written);
        proxy.cut(true);
        stop_and_run(&mut cluster, |_| ()).await;
        open(cluster.endpoints(), "").await.compact(written).await.unwrap();
        proxy.open();
        let written = change(&through, vec![put("c", "1"), put("b", "2")]).await;
        assert_eq!(next(&mut watch).await.revision, written);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_etcd_in_the_place_of_the_one_that_was_watched_is_told() {
    let (cluster, proxy) = start().await;
    let through = open(vec![proxy.endpoint.clone()], "").await;
    let seen = change(&through, vec![put("a", "0")]).await;
    let mut watch = through.watch(Prefix::all(), seen);
    let other = Cluster::begin(1, "http", Vec::new());
    other.settle().await;
    proxy.turn_to(other.address(0));
    proxy.cut(false);
    let told = try_next(&mut watch).await;
    assert!(matches!(told, Err(Error::AnotherCluster { known, found, .. }) if known != found), "{told:?}");
    let told = through.get(key("a")).await;
    assert!(matches!(told, Err(Error::AnotherCluster { .. })), "{told:?}");
    // It is back.
    proxy.turn_to(cluster.address(0));
    assert!(get(&through, "a").await.is_some());
}
