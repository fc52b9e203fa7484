//! The suite on an etcd of three members, and what only a service elsewhere has: lost answers, members that go, TLS, users.

use std::sync::Arc;
use std::time::{Duration, Instant};

use control::catalogue::{
    Catalogue, Condition, Error, Etcd, EtcdOptions, Outcome, Prefix, Range, Revision, TlsFiles, Transaction, User,
};
use openssl::rsa::Rsa;
use tls::Secret;

use crate::cluster::{Cluster, post, post_as};
use crate::proxy::Proxy;
use crate::suite::{self, Shared};
use crate::words::*;

/// A catalogue below a name of its own.
pub async fn open(endpoints: Vec<String>, namespace: &str) -> Etcd {
    let options = EtcdOptions { namespace: namespace.into(), ..EtcdOptions::new(endpoints) };
    Etcd::open(options).await.expect("a catalogue")
}

type Case = (&'static str, fn(Shared) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>);

macro_rules! list {
    ($($case:ident)*) => {
        const CASES: &[Case] = &[$((stringify!($case), |catalogue| Box::pin(suite::$case(catalogue)))),*];
    };
}
suite::cases!(list);

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_holds() {
    let cluster = Cluster::start().await;
    // Neighbours below, between and above the names of the cases, which none of them must see.
    for neighbour in ["", "a", "zzz"] {
        let other = open(cluster.endpoints(), neighbour).await;
        change(&other, vec![put("\u{1}", "neighbour"), put("\u{7f}", "neighbour")]).await;
    }
    for (name, case) in CASES {
        println!("{name}");
        let catalogue: Shared = Arc::new(open(cluster.endpoints(), &format!("{name}/")).await);
        case(catalogue).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_told_and_not_sent_again() {
    let cluster = Cluster::start().await;
    let proxy = Proxy::to(cluster.address(0)).await;
    let direct = open(vec![cluster.endpoint(1)], "").await;
    let through = Arc::new(open(vec![proxy.endpoint.clone(), cluster.endpoint(2)], "").await);
    let written = change(&*through, vec![put("before", "1")]).await;
    proxy.mute();
    let once = Transaction::new(vec![Condition::absent(key("id"))], vec![put("id", "1")]).unwrap();
    let commit = tokio::spawn({
        let (through, once) = (through.clone(), once.clone());
        async move { through.commit(once).await }
    });
    let mut watch = direct.watch(Prefix::all(), written);
    let applied = next(&mut watch).await;
    assert_eq!(changes(&applied), ["+id=1"]);
    proxy.cut(true);
    let told = commit.await.unwrap();
    assert!(matches!(told, Err(Error::OutcomeUnknown { .. })), "{told:?}");
    // What settles it: the condition that the first copy has broken. Another member answers.
    assert!(matches!(through.commit(once).await.unwrap(), Outcome::Missed(missed) if missed.seen[0].is_some()));
    assert_eq!(get(&direct, "id").await.unwrap().modified, applied.revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_dies_is_left_for_the_next() {
    let mut cluster = Cluster::start().await;
    let catalogue = open(cluster.endpoints(), "").await;
    change(&catalogue, vec![put("a", "1")]).await;
    cluster.kill(0);
    cluster.settle().await;
    // The read finds the connection dead, and is asked of the next; from there on no change meets the dead one.
    assert!(get(&catalogue, "a").await.is_some());
    for count in 0..10 {
        change(&catalogue, vec![put("a", count.to_string())]).await;
    }
    assert_eq!(get(&catalogue, "a").await.unwrap().value, value("9"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_cut_off_goes_on_elsewhere_and_misses_nothing() {
    let cluster = Cluster::start().await;
    let (one, two) = (Proxy::to(cluster.address(0)).await, Proxy::to(cluster.address(1)).await);
    let direct = open(vec![cluster.endpoint(2)], "").await;
    let through = open(vec![one.endpoint.clone(), two.endpoint.clone()], "").await;
    let start = change(&direct, vec![put("n", "0")]).await;
    let mut watch = through.watch(Prefix::all(), start);
    let mut count = 0;
    for round in 0..6 {
        for _ in 0..5 {
            count += 1;
            change(&direct, vec![put("n", count.to_string()), put("m", count.to_string())]).await;
        }
        // Some were seen, some were sent, some are made while there is no connection at all.
        for expected in count - 4..count - 2 + round % 3 {
            let commit = next(&mut watch).await;
            assert_eq!(changes(&commit), [format!("+m={expected}"), format!("+n={expected}")]);
        }
        one.cut(true);
        two.cut(true);
        let seen = count - 3 + round % 3;
        for _ in 0..3 {
            count += 1;
            change(&direct, vec![put("n", count.to_string()), put("m", count.to_string())]).await;
        }
        if round % 2 == 0 { &one } else { &two }.open();
        for expected in seen + 1..=count {
            let commit = next(&mut watch).await;
            assert_eq!(changes(&commit), [format!("+m={expected}"), format!("+n={expected}")]);
        }
        one.open();
        two.open();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_was_cut_off_for_too_long_is_told_so() {
    let cluster = Cluster::begin(1, "http", Vec::new());
    cluster.settle().await;
    let proxy = Proxy::to(cluster.address(0)).await;
    let direct = open(vec![cluster.endpoint(0)], "").await;
    let through = open(vec![proxy.endpoint.clone()], "").await;
    let start = change(&direct, vec![put("a", "1"), put("b", "1")]).await;
    let mut watch = through.watch(Prefix::all(), start);
    let seen = change(&direct, vec![put("b", "2")]).await;
    assert_eq!(next(&mut watch).await.revision, seen);
    proxy.cut(true);
    // The commit right behind the watch's place is a delete, and the very one up to which is compacted: etcd itself would let a
    // watch begin there, and not tell of it.
    let gone = change(&direct, vec![delete("a")]).await;
    direct.compact(gone).await.unwrap();
    proxy.open();
    let told = try_next(&mut watch).await;
    assert!(matches!(told, Err(Error::Compacted { asked, .. }) if asked == seen), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there_is_told_in_time() {
    let mut cluster = Cluster::begin(1, "http", Vec::new());
    cluster.settle().await;
    let catalogue = open(cluster.endpoints(), "").await;
    let mut watch = catalogue.watch(Prefix::all(), change(&catalogue, vec![put("a", "1")]).await);
    let options = EtcdOptions { time_limit: Duration::from_secs(3), ..EtcdOptions::new(cluster.endpoints()) };
    let hurried = Etcd::open(options.clone()).await;
    cluster.kill(0);
    if let Ok(hurried) = hurried {
        // The first answer finds out that the connection has ended.
        let told = hurried.get(key("a")).await.unwrap_err();
        let place = cluster.address(0).to_string();
        assert!(matches!(&told, Error::NoAnswer { place: at, .. } if at.contains(&place)), "{told}");
        let once = Transaction::new(Vec::new(), vec![put("b", "1")]).unwrap();
        let told = hurried.commit(once).await.unwrap_err();
        assert!(matches!(told, Error::NoAnswer { .. }), "it was never sent: {told}");
    }
    let Err(told) = Etcd::open(options).await else { panic!("it was reached") };
    assert!(matches!(told, Error::NoAnswer { .. }), "{told}");
    // The watch waits, and goes on when the member is back.
    cluster.run(0);
    cluster.settle().await;
    assert!(get(&catalogue, "a").await.is_some());
    let revision = change(&catalogue, vec![put("a", "2")]).await;
    assert_eq!(next(&mut watch).await.revision, revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_ends_in_time_while_another_one_connects() {
    const LIMIT: Duration = Duration::from_secs(4);
    let cluster = Cluster::begin(1, "http", Vec::new());
    cluster.settle().await;
    let proxy = Proxy::to(cluster.address(0)).await;
    let options = EtcdOptions { time_limit: LIMIT, ..EtcdOptions::new([proxy.endpoint.clone()]) };
    let catalogue = Arc::new(Etcd::open(options).await.unwrap());
    proxy.mute();
    let read = |delay: Duration| {
        let catalogue = catalogue.clone();
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            let start = Instant::now();
            let told = catalogue.get(key("a")).await.unwrap_err();
            assert!(matches!(told, Error::NoAnswer { .. }), "{told}");
            start.elapsed()
        })
    };
    // The first finds out at its end that the connection is dead; the third connects from then on, while the second ends.
    let reads = [read(Duration::ZERO), read(LIMIT / 4), read(LIMIT + LIMIT / 8)];
    for read in reads {
        let lasted = read.await.unwrap();
        assert!(lasted < LIMIT + LIMIT / 2, "an operation of {LIMIT:?} has lasted {lasted:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_a_full_etcd_has_refused_may_have_been_made() {
    let cluster = Cluster::begin(1, "http", vec!["--quota-backend-bytes=33554432".into()]);
    cluster.settle().await;
    let catalogue = Arc::new(open(cluster.endpoints(), "").await);
    // Many at once: they may be let in while there is room, and applied when there is none any more.
    let write = |id: usize| {
        let catalogue = catalogue.clone();
        let large = vec![b'x'; 500_000];
        let changes = vec![put(format!("{id:03}/a"), &large), put(format!("{id:03}/b"), &large)];
        let once = Transaction::new(vec![Condition::absent(key(format!("{id:03}/a")))], changes).unwrap();
        tokio::spawn(async move { catalogue.commit(once).await })
    };
    let (mut unknown, mut made) = (0, 0);
    for round in 0..20 {
        let commits: Vec<_> = (round * 16..(round + 1) * 16).map(|id| (id, write(id))).collect();
        for (id, commit) in commits {
            let told = commit.await.unwrap();
            let is_there = get(&*catalogue, format!("{id:03}/a")).await.is_some();
            match told {
                Ok(_) => assert!(is_there),
                Err(Error::OutcomeUnknown { why }) => {
                    assert!(why.contains("database space exceeded") && why.contains("etcdctl alarm disarm"), "{why}");
                    (unknown, made) = (unknown + 1, made + usize::from(is_there));
                }
                Err(told) => panic!("{told} (and the change was made: {is_there})"),
            }
        }
        if unknown > 0 {
            break;
        }
    }
    println!("{unknown} unknown, of which {made} were made");
    assert!(unknown > 0, "there was room for all");
    // Reads go on, and what surely leaves nothing open says what it is.
    assert!(matches!(catalogue.grant(ttl(60)).await, Err(Error::Full { .. })));
    assert!(!read_all(&*catalogue, Range::of(Prefix::all()).entries(10).unwrap()).await.unwrap().1.is_empty());
}

async fn refused(options: EtcdOptions) -> String {
    match Etcd::open(options).await {
        Err(Error::Options { what }) => what,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was opened"),
    }
}

#[tokio::test]
async fn wrong_options_are_named() {
    assert!(refused(EtcdOptions::new(Vec::<String>::new())).await.contains("name 1 to 32"));
    for wrong in ["10.0.0.1:2379", "http://host", "ftp://host:1", "http://host:1/path", "http://"] {
        assert!(refused(EtcdOptions::new([wrong])).await.contains(wrong), "{wrong}");
    }
    let tls = TlsFiles { authority: Some("/nowhere/ca.pem".into()), ..TlsFiles::default() };
    let what = refused(EtcdOptions { tls, ..EtcdOptions::new(["https://localhost:1"]) }).await;
    assert!(what.contains("/nowhere/ca.pem"), "{what}");
    let namespace = vec![b'n'; 129];
    assert!(refused(EtcdOptions { namespace, ..EtcdOptions::new(["http://localhost:1"]) }).await.contains("129 bytes"));
}

/// A change of users, roles and rights, before users are asked who they are.
fn arrange(cluster: &Cluster, path: &str, body: &str) {
    post(cluster.address(0), path, body).unwrap_or_else(|fault| panic!("{path}: {fault}"));
}

/// Of "yagura". Longer than what an allocator writes over in what was given back to it.
pub const PASSWORD: &str = "secret of yagura, of which the end is looked for in memory";

/// Users "root" and "yagura", who may read and write what is below "yagura/"; from here on each must say who it is.
pub fn make_users(cluster: &Cluster) {
    let ask = |path: &str, body: &str| arrange(cluster, path, body);
    for (user, password) in [("root", "secret of root"), ("yagura", PASSWORD)] {
        ask("/v3/auth/role/add", &format!(r#"{{"name":"{user}"}}"#));
        ask("/v3/auth/user/add", &format!(r#"{{"name":"{user}","password":"{password}"}}"#));
        ask("/v3/auth/user/grant", &format!(r#"{{"user":"{user}","role":"{user}"}}"#));
    }
    // "yagura/" to "yagura0", reading and writing.
    let right = r#"{"name":"yagura","perm":{"permType":"READWRITE","key":"eWFndXJhLw==","range_end":"eWFndXJhMA=="}}"#;
    ask("/v3/auth/role/grant", right);
    ask("/v3/auth/enable", "{}");
}

fn with_password(endpoints: Vec<String>, password: &str) -> EtcdOptions {
    EtcdOptions {
        user: Some(User { name: "yagura".into(), password: Secret::new(password.into()) }),
        ..EtcdOptions::new(endpoints)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn users_are_known_by_their_password_and_kept_to_their_rights() {
    // Tokens end after a second, so that they are renewed in the test.
    let cluster = Cluster::begin(1, "http", vec!["--auth-token-ttl=1".into()]);
    cluster.settle().await;
    make_users(&cluster);
    let as_user = |password: &str| with_password(cluster.endpoints(), password);
    assert!(!format!("{:?}", as_user("hidden")).contains("hidden"));
    let catalogue = Etcd::open(as_user(PASSWORD)).await.unwrap();
    let lease = catalogue.grant(ttl(60)).await.unwrap();
    change(&catalogue, vec![put_leased("leased", "1", lease.id)]).await;
    let revision = change(&catalogue, vec![put("a", "1")]).await;
    assert_eq!(next(&mut catalogue.watch(Prefix::all(), Revision(revision.0 - 1))).await.revision, revision);
    for _ in 0..3 {
        // Longer than a token lasts: what is not there can't be waited for.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        change(&catalogue, vec![put("a", "2")]).await;
    }
    let elsewhere = EtcdOptions { namespace: b"others/".to_vec(), ..as_user(PASSWORD) };
    for wrong in [as_user("wrong"), EtcdOptions::new(cluster.endpoints()), elsewhere] {
        let Err(told) = Etcd::open(wrong).await else { panic!("it was let in") };
        assert!(matches!(told, Error::Refused { .. }), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_is_told_anew_when_the_rights_of_anybody_have_changed() {
    // A token of this kind is of one state of all users and roles, and refused in every other.
    let (folder, key) = (tempfile::tempdir().unwrap(), Rsa::generate(2048).unwrap());
    let (private, public) = (folder.path().join("private.pem"), folder.path().join("public.pem"));
    std::fs::write(&private, key.private_key_to_pem().unwrap()).unwrap();
    std::fs::write(&public, key.public_key_to_pem().unwrap()).unwrap();
    let (private, public) = (private.display(), public.display());
    let token = format!("--auth-token=jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=10m");
    let cluster = Cluster::begin(1, "http", vec![token]);
    cluster.settle().await;
    make_users(&cluster);
    let as_root = |path: &str, body: &str| {
        let who = r#"{"name":"root","password":"secret of root"}"#;
        let known = post(cluster.address(0), "/v3/auth/authenticate", who).unwrap();
        post_as(cluster.address(0), path, body, known["token"].as_str().unwrap()).unwrap();
    };
    let catalogue = Etcd::open(with_password(cluster.endpoints(), PASSWORD)).await.unwrap();
    let written = change(&catalogue, vec![put("a", "1")]).await;
    let mut watch = catalogue.watch(Prefix::all(), written);
    as_root("/v3/auth/role/add", r#"{"name":"another"}"#);
    assert!(get(&catalogue, "a").await.is_some());
    as_root("/v3/auth/role/delete", r#"{"role":"another"}"#);
    let written = change(&catalogue, vec![put("a", "2")]).await;
    assert_eq!(next(&mut watch).await.revision, written);
}

#[tokio::test]
async fn a_password_is_never_sent_for_all_to_read() {
    for open in ["http://192.0.2.1:2379", "http://etcd.example:2379", "http://localhost:2379"] {
        let endpoints = vec!["https://192.0.2.2:2379".into(), open.into()];
        let what = refused(with_password(endpoints, "hidden")).await;
        assert!(what.contains(open) && what.contains("https://") && what.contains("`plain_password`"), "{what}");
    }
    // Nobody is at port 1, and all that is asked is whether it may be tried.
    let time_limit = Duration::from_secs(1);
    let allowed = EtcdOptions { plain_password: true, ..with_password(vec!["http://localhost:1".into()], "hidden") };
    let loopback = ["http://127.0.0.1:1", "http://[::1]:1"].map(|open| with_password(vec![open.into()], "hidden"));
    for options in loopback.into_iter().chain([allowed]) {
        let Err(told) = Etcd::open(EtcdOptions { time_limit, ..options }).await else {
            panic!("somebody is at port 1")
        };
        assert!(matches!(told, Error::NoAnswer { .. }), "{told}");
    }
}

#[tokio::test]
async fn a_password_in_the_name_of_a_member_is_refused_and_not_printed() {
    for wrong in ["http://user:hidden@127.0.0.1:2379", "https://user:hidden@host", "user:hidden@", "http://hidden@ :1"]
    {
        let options = EtcdOptions::new([wrong]);
        assert!(!format!("{options:?}").contains("hidden"), "{options:?}");
        let what = refused(options).await;
        assert!(!what.contains("hidden") && what.contains("`user`"), "{what}");
    }
}
