//! The text and the meta protocol.

use std::ops::Range;

use cache::session::{Authentication, CasResult, Event, Rules, Users};
use cache::slot::Slots;
use cache::testing::{PlainSlots, ready};

use super::cases;
use super::generator::Generator;
use super::memcached::{Answers, Pair};

/// Ends what is sent, so that the end of the answer is known.
pub const SENTINEL: &[u8] = b"mn\r\n";
/// Ends the answer.
pub const SENTINEL_ANSWER: &[u8] = b"MN\r\n";

async fn ask<S: Slots>(pair: &mut Pair<S>, bytes: &[u8]) -> Answers {
    let mut connection = pair.connect();
    let bytes = [bytes, SENTINEL].concat();
    pair.exchange(&mut connection, &bytes, SENTINEL_ANSWER).await
}

/// Runs every case on both; tells all that differ, not the first alone.
pub async fn compare<S: Slots>(pair: &mut Pair<S>, cases: &[Vec<u8>]) {
    let mut differences = Vec::new();
    for case in cases {
        if let Some(difference) = ask(pair, case).await.difference() {
            differences.push(format!("{}\n{difference}", super::memcached::shown(case)));
        }
    }
    assert!(differences.is_empty(), "{} of {} differ:\n{}", differences.len(), cases.len(), differences.join("\n\n"));
}

#[test]
fn every_command_and_every_malformed_line() {
    ready(compare(&mut Pair::usual(), &cases::text()));
}

#[test]
fn the_order_of_eviction_is_tuned() {
    ready(compare(&mut Pair::new(&[], Rules::default(), PlainSlots::default()), &cases::lru()));
}

#[test]
fn every_meta_command_and_every_malformed_one() {
    ready(compare(&mut Pair::usual(), &cases::meta()));
}

#[test]
fn values_of_all_lengths() {
    ready(compare(&mut Pair::usual(), &cases::lengths()));
}

#[test]
fn gets_of_more_keys_than_are_held() {
    ready(compare(&mut Pair::usual(), &cases::long_gets()));
}

/// The rarely taken ways: every other look needs a fetch first.
#[test]
fn the_same_with_every_other_item_on_flash() {
    let mut cases = cases::text();
    cases.extend(cases::meta());
    cases.extend(cases::lengths());
    ready(compare(&mut Pair::at_rest(PlainSlots::with_flash()), &cases));
}

/// The store itself, with memory enough.
#[test]
fn the_same_over_the_store() {
    let mut cases = cases::text();
    cases.extend(cases::meta());
    cases.extend(cases::lengths());
    ready(compare(&mut Pair::at_rest(super::store()), &cases));
}

#[test]
fn prefixes_are_counted_as_memcached_counts_them() {
    ready(compare(&mut Pair::usual(), &cases::prefixes()));
}

#[test]
fn sizes_are_told_once_they_were_asked_for() {
    ready(compare(&mut Pair::usual(), &cases::sizes()));
}

#[test]
fn the_crawler_is_off_and_on_again() {
    let mut pair = Pair::usual();
    for case in cases::crawler_off() {
        ready(compare(&mut pair, &[case]));
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

#[test]
fn what_is_not_served() {
    let rules = Rules { serves_flush: false, serves_dump: false, serves_watch: false, ..Rules::default() };
    let cases: Vec<Vec<u8>> = [
        "flush_all\r\n",
        "flush_all noreply\r\n",
        "flush_all x\r\n",
        "stats cachedump 1 1\r\n",
        "stats cachedump\r\n",
        "lru_crawler metadump all\r\n",
        "watch\r\n",
        "watch foo\r\n",
        "shutdown\r\n",
        "shutdown graceful\r\n",
    ]
    .map(|line| line.as_bytes().to_vec())
    .to_vec();
    ready(compare(&mut Pair::new(&["-F", "-X", "-W"], rules, PlainSlots::default()), &cases));
}

#[test]
fn random_streams() {
    ready(stream(&mut Pair::at_rest(PlainSlots::default()), 0..8));
}

#[test]
fn random_streams_over_the_store() {
    ready(stream(&mut Pair::at_rest(super::store()), 8..16));
}

pub async fn stream<S: Slots>(pair: &mut Pair<S>, seeds: Range<u64>) {
    for seed in seeds {
        let mut generator = Generator::new(seed);
        let mut connection = pair.connect();
        for round in 0..250 {
            let bytes = [&generator.text_batch()[..], SENTINEL].concat();
            let answers = pair.exchange_filled(&mut connection, &bytes, SENTINEL_ANSWER, b"\r\nmn\r\n").await;
            if !answers.are_cut() {
                answers.check(&format!("seed {seed}, round {round}"), &bytes);
            }
            if answers.our_end {
                connection = pair.connect();
            }
        }
    }
}

#[test]
fn passwords_of_the_text_protocol() {
    let folder = std::env::temp_dir().join(format!("yagura-cache-users-{}", std::process::id()));
    std::fs::write(&folder, "user:pass\nother:with:colon\n").expect("a temporary file can be written");
    let users = Users::parse("user:pass\nother:with:colon\n").expect("every line has a colon");
    let rules = Rules { authentication: Authentication::Text(users), ..Rules::default() };
    let mut pair = Pair::new(&["-Y", folder.to_str().expect("a plain path")], rules, PlainSlots::default());
    let long = format!("set a 0 0 1024\r\n{}\r\n", "x".repeat(1024));
    // One line at a time: memcached answers the last of several that are refused.
    let connections: &[&[&str]] = &[
        &["version\r\n", "get a\r\n", "set a 0 0 9\r\nuser pasx\r\n", "set a 0 0 9\r\nuser pass\r\n", "version\r\n"],
        &["set a 0 0 4\r\nuser\r\n", "set a 0 0 x\r\n", "set a 0 0\r\n", "\r\n"],
        &["set a 0 0 16 noreply\r\nother with:colon\r\n", "mn\r\n", "version\r\n"],
        &["set a 0 0 11\r\nuser pass x\r\n", "mg a\r\n"],
        &["add a 0 0 9\r\n", "user pass\r\n"],
        &[&long, "version\r\n"],
    ];
    for lines in connections {
        let mut connection = pair.connect();
        for line in *lines {
            ready(pair.exchange(&mut connection, line.as_bytes(), b"\r\n")).check("password", line.as_bytes());
        }
    }
    let _ = std::fs::remove_file(&folder);
}

/// The statistics by which people judge a cache: the same commands are counted as the same.
#[test]
fn commands_are_counted_as_memcached_counts_them() {
    let mut pair = Pair::usual();
    // Where one key of a `get` is too long, memcached has looked up those before it, and tells nothing of them.
    let mut text = cases::text();
    let has = |case: &[u8], part: &[u8]| case.windows(part.len()).any(|window| window == part);
    text.retain(|case| !has(case, &[b'k'; 251]) && !has(case, b"stats reset"));
    ready(compare(&mut pair, &text));
    ready(compare(&mut pair, &cases::meta()));
    ready(compare(&mut pair, &cases::lengths()));
    let theirs = ready(ask(&mut pair, b"stats\r\n")).theirs;
    let theirs = String::from_utf8_lossy(&theirs);
    let told = |name: &str| -> u64 {
        let value = theirs.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("memcached tells no {name}"))
    };
    let one = |event| pair.server.counted(event);
    let both = |event: fn(bool) -> Event| one(event(true)) + one(event(false));
    let ours = [
        ("cmd_get", both(Event::Get)),
        ("get_hits", one(Event::Get(true))),
        ("get_misses", one(Event::Get(false))),
        ("cmd_touch", both(Event::Touch)),
        ("touch_hits", one(Event::Touch(true))),
        ("touch_misses", one(Event::Touch(false))),
        ("cmd_set", one(Event::Set)),
        ("cas_hits", one(Event::Cas(CasResult::Hit))),
        ("cas_badval", one(Event::Cas(CasResult::BadValue))),
        ("cas_misses", one(Event::Cas(CasResult::Miss))),
        ("delete_hits", one(Event::Delete(true))),
        ("delete_misses", one(Event::Delete(false))),
        ("incr_hits", one(Event::Increment(true))),
        ("incr_misses", one(Event::Increment(false))),
        ("decr_hits", one(Event::Decrement(true))),
        ("decr_misses", one(Event::Decrement(false))),
        ("cmd_flush", one(Event::Flush)),
        ("cmd_meta", one(Event::Meta)),
        ("store_too_large", one(Event::TooLarge)),
        ("store_no_memory", one(Event::NoMemory)),
    ];
    let differences: Vec<String> = ours
        .iter()
        .filter(|(name, count)| told(name) != *count)
        .map(|(name, count)| format!("{name}: memcached {}, ours {count}", told(name)))
        .collect();
    assert!(differences.is_empty(), "{differences:#?}");
    let idle: Vec<_> = ours.iter().filter(|(name, count)| *count == 0 && *name != "store_no_memory").collect();
    assert!(idle.is_empty(), "nothing was counted: {idle:?}");
}

/// Whoever looks for them. Without memcached's threads, which would take some away before, as room for a new item does: what stores
/// one is not among them.
#[test]
fn expired_items_are_counted_as_memcached_counts_them() {
    ready(count_expired(&mut Pair::at_rest(PlainSlots::default())));
    ready(count_expired(&mut Pair::at_rest(super::store())));
}

async fn count_expired<S: Slots>(pair: &mut Pair<S>) {
    let looks = [
        "get k",
        "gat 0 k",
        "touch k 0",
        "incr k 1",
        "delete k",
        "mg k",
        "mg k N30",
        "md k",
        "ma k",
        "ma k N0",
        "me k",
        "get k k",
        "get other",
    ];
    for look in looks {
        let bytes = format!("set k 0 -1 1\r\n1\r\n{look}\r\n");
        ask(pair, bytes.as_bytes()).await.check("expired", bytes.as_bytes());
    }
    let theirs = ask(pair, b"stats\r\n").await.theirs;
    let ours = format!("STAT get_expired {}\r", pair.server.counted(Event::Expired));
    let theirs = String::from_utf8_lossy(&theirs);
    let theirs = theirs.lines().find(|line| line.starts_with("STAT get_expired")).unwrap_or("nothing");
    assert_eq!(theirs, ours.trim_end());
    assert!(pair.server.counted(Event::Expired) > 11, "{ours}");
}

/// What time does: real seconds pass.
#[test]
fn items_expire_and_are_flushed_later() {
    ready(pass_time(&mut Pair::usual()));
}

#[test]
fn items_expire_and_are_flushed_later_over_the_store() {
    ready(pass_time(&mut Pair::at_rest(super::store())));
}

async fn pass_time<S: Slots>(pair: &mut Pair<S>) {
    let first = "set a 0 2 1\r\nx\r\nset b 0 -1 1\r\nx\r\nset c 0 0 1\r\nx\r\nget a b c\r\ntouch c 2\r\nms d 1 T2\r\nx\r\nset e 0 100 1\r\nx\r\n\
        mg e t\r\nset f 0 2 1\r\nx\r\ngat 0 f\r\nset z 0 0 1\r\nx\r\n";
    ask(pair, first.as_bytes()).await.check("before", first.as_bytes());
    std::thread::sleep(std::time::Duration::from_millis(3500));
    let second = "get a b c d e f\r\nincr a 1\r\nadd a 0 0 1\r\ny\r\nget a\r\nflush_all 2\r\nget a z\r\n";
    ask(pair, second.as_bytes()).await.check("after", second.as_bytes());
    std::thread::sleep(std::time::Duration::from_millis(3500));
    let third = "get a z e f\r\nset a 0 0 1\r\nz\r\nget a\r\n";
    ask(pair, third.as_bytes()).await.check("flushed", third.as_bytes());
}
