//! A pool of two members with two replicas, of which one dies: what is left goes on by an operator's word.

use engine::{Reactor, ReactorConfig};

use crate::membership::{address, change, node, node_at, status};
use crate::port::Port;
use crate::support::run;

/// Has the voters agree that not every key's homes were made equal after a change was taken back.
fn mark_unequal(addresses: Vec<String>) {
    let marked = Reactor::run(ReactorConfig::default(), async move {
        let reached =
            client::reach::reach(&client::reach::Way::plain(), &addresses, None).await.expect("the pool is there");
        let mark = |map: &pool::Map| Ok(pool::Map { unequal: true, revision: map.revision + 1, ..map.clone() });
        reached.source().agree(mark).await.expect("agreed on").unequal
    });
    assert!(marked.expect("a reactor"));
}

/// Of two members one votes on the map. It dies, and no command went on.
#[test]
fn what_is_left_of_two_members_goes_on_by_an_operators_word() {
    let directory = tempfile::tempdir().expect("a directory");
    let [a, b, c] = ["a", "b", "c"].map(|name| node(directory.path(), name));
    let members = [&a, &b].map(|node| format!("--member={}", address(node)));
    let (created, _, stderr) = run(&["pool", "create", "--replicas=2", &members[0], &members[1]]);
    assert_eq!(created, 0, "{stderr}");
    let pool = format!("--pool={}", address(&b));
    for number in 0..20 {
        assert_eq!(run(&["kv", "put", &pool, &format!("k{number}"), "value"]).0, 0);
    }
    let report = status(&pool);
    let voter = report["members"].as_array().expect("members").iter().find(|member| member["voter"] == true);
    let voter = voter.expect("one votes");
    let (nguid, at) = (voter["nguid"].as_str().expect("text").to_owned(), voter["address"].as_str().expect("text"));
    let (left, gone) = if at == address(&a) { (b, a) } else { (a, b) };
    let pool = format!("--pool={}", address(&left));
    let other = report["members"].as_array().expect("members").iter().find(|member| member["voter"] == false);
    let other = other.expect("one does not vote")["nguid"].as_str().expect("text").to_owned();
    let lost = format!("--lost={nguid}");
    let (refused, _, stderr) = run(&["pool", "rebalance", &pool, &lost, "--force"]);
    assert!(refused != 0 && stderr.contains("it is not lost"), "{stderr}");
    // A change was taken back, say, and half of the homes may be all that know of an operation.
    mark_unequal(vec![address(&left), address(&gone)]);
    drop(gone);
    let (refused, _, stderr) = run(&["pool", "rebalance", &pool, &lost]);
    assert!(refused != 0 && stderr.contains("no majority"), "{stderr}");
    let (refused, _, stderr) = run(&["pool", "rebalance", &pool, &format!("--lost={other}"), "--force"]);
    assert!(refused != 0, "{stderr}");
    let (refused, _, stderr) = run(&["pool", "rebalance", &pool, &lost, "--force"]);
    assert!(refused != 0 && stderr.contains("say so by `--accept-stale`"), "{stderr}");
    let (seized, _, stderr) = run(&["pool", "rebalance", &pool, &lost, "--force", "--accept-stale"]);
    assert_eq!(seized, 0, "{stderr}");
    assert_eq!(run(&["kv", "get", &pool, "k7"]).1, "value", "the one that is left knows all");
    let replaced = change(&["replace", &pool, &nguid, &address(&c)]);
    assert_eq!(replaced["done"], true, "{replaced}");
    let report = status(&pool);
    assert!(report["members"].as_array().expect("members").iter().all(|member| member["votes"] == true), "{report}");
    let (verified, _, stderr) = run(&["kv", "scrub", &pool]);
    assert_eq!(verified, 0, "{stderr}");
}

/// The voter of two is left, of a pool whose homes may not know all. No command went on without the other one.
#[test]
fn what_is_left_of_two_members_goes_on_by_an_operators_word_where_it_votes_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let [a, b, c] = ["a", "b", "c"].map(|name| node(directory.path(), name));
    let members = [&a, &b].map(|node| format!("--member={}", address(node)));
    let (created, _, stderr) = run(&["pool", "create", "--replicas=2", &members[0], &members[1]]);
    assert_eq!(created, 0, "{stderr}");
    assert_eq!(run(&["kv", "put", &format!("--pool={}", address(&a)), "k", "value"]).0, 0);
    mark_unequal(vec![address(&a), address(&b)]);
    let report = status(&format!("--pool={}", address(&a)));
    let other = report["members"].as_array().expect("members").iter().find(|member| member["voter"] == false);
    let other = other.expect("one does not vote");
    let (nguid, at) = (other["nguid"].as_str().expect("text"), other["address"].as_str().expect("text"));
    let (left, gone) = if at == address(&a) { (b, a) } else { (a, b) };
    drop(gone);
    let (pool, lost) = (format!("--pool={}", address(&left)), format!("--lost={nguid}"));
    let word = change(&["rebalance", &pool, &lost, "--accept-stale"]);
    assert_eq!(word["done"], false, "nothing was under way: {word}");
    let replaced = change(&["replace", &pool, nguid, &address(&c)]);
    assert_eq!(replaced["done"], true, "{replaced}");
    assert_eq!(run(&["kv", "get", &pool, "k"]).1, "value");
    let (verified, _, stderr) = run(&["kv", "scrub", &pool]);
    assert_eq!(verified, 0, "{stderr}");
}

/// One of two was given up and is back, and the other one, which was served alone and alone votes, dies for good.
#[test]
fn who_is_back_of_two_members_goes_on_when_the_other_one_dies() {
    let directory = tempfile::tempdir().expect("a directory");
    let (kept, names) = ([Port::keep(), Port::keep()], ["a", "b"]);
    let at = |index: usize| kept[index].address.to_string();
    let nguid = |index: usize| format!("{:02x}", names[index].as_bytes()[0]).repeat(16);
    let start = |index: usize| Some(node_at(directory.path(), names[index], &at(index)));
    let (mut nodes, spare) = ([start(0), start(1)], node(directory.path(), "c"));
    let members = [0, 1].map(|index| format!("--member={}", at(index)));
    let (created, _, stderr) = run(&["pool", "create", "--replicas=2", &members[0], &members[1]]);
    assert_eq!(created, 0, "{stderr}");
    let pool = |index| format!("--pool={}", at(index));
    assert_eq!(run(&["kv", "put", &pool(0), "k", "value"]).0, 0);
    mark_unequal(vec![at(0), at(1)]);
    let report = status(&pool(0));
    let voter = report["members"].as_array().expect("members").iter().find(|member| member["voter"] == true);
    let voter = usize::from(voter.expect("one votes")["nguid"] != nguid(0));
    let other = 1 - voter;
    let (lost, returned) = (format!("--lost={}", nguid(voter)), format!("--returned={}", nguid(other)));
    drop(nodes[other].take());
    change(&["rebalance", &pool(voter), &format!("--lost={}", nguid(other)), "--accept-stale"]);
    assert_eq!(run(&["kv", "put", &pool(voter), "alone", "value"]).0, 0);
    nodes[other] = start(other);
    drop(nodes[voter].take());
    let pool = pool(other);
    let (refused, _, stderr) = run(&["pool", "rebalance", &pool, &lost, &returned, "--force"]);
    assert!(refused != 0 && stderr.contains("say so by `--accept-stale`"), "{stderr}");
    let went_on = change(&["rebalance", &pool, &lost, &returned, "--force", "--accept-stale"]);
    assert_eq!(went_on["returned"], serde_json::json!([nguid(other)]), "{went_on}");
    assert_eq!(run(&["kv", "get", &pool, "k"]).1, "value");
    assert_eq!(change(&["replace", &pool, &nguid(voter), &address(&spare)])["done"], true);
    let (verified, _, stderr) = run(&["kv", "scrub", &pool]);
    assert_eq!(verified, 0, "{stderr}");
}
