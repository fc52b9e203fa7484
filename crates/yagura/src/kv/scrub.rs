//! `yagura kv scrub`: everything that is stored, read and compared. `yagura kv repair`: what is wrong, put right.

use std::time::Duration;

use engine::time;
use kv::store::{
    CollectOptions, CollectReport, Findings, ForgetOptions, ForgetReport, RepairOptions, RepairReport, ScrubOptions,
    ScrubReport, Store,
};
use kv::table::AGE_MIN;
use pool::MemberId;
use serde::Serialize;

use crate::cli::{KvRepairArgs, KvScrubArgs, Walk};
use crate::client;
use crate::exit::Failure;
use crate::output;
use crate::output::many;
use crate::pool::change::Renewal;
use crate::size::Size;

/// What a repair did.
#[derive(Serialize, Debug)]
struct Repaired {
    /// Members that had lost what they held (rolled back, emptied, given up as lost), and were filled again in their places.
    renewed: Vec<String>,
    /// Those of which nothing was to be begun by the newest map, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_begun: Vec<String>,
    /// What is said of each.
    #[serde(skip)]
    told: Vec<String>,
    #[serde(flatten)]
    report: RepairReport,
}

/// What a scrub found.
#[derive(Clone, Serialize, Debug)]
pub struct Scrubbed {
    /// Whether all replicas of all keys are there and equal.
    pub equal: bool,
    /// Whether nothing at all was found that a repair should see to.
    pub clean: bool,
    /// What was found.
    #[serde(flatten)]
    pub found: ScrubReport,
    /// How long it took.
    pub seconds: f64,
    /// What was freed, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collected: Option<CollectReport>,
    /// Deleted keys that were forgotten, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forgotten: Option<ForgetReport>,
}

/// Reads and compares everything.
pub async fn scrub_store(store: &Store, data: bool, rate: Option<Size>, quiet: bool) -> Scrubbed {
    let (bar, progress) = output::walk_bar(quiet);
    let start = time::now();
    let options = ScrubOptions {
        check_values: data,
        check_heap: true,
        bytes_per_second: rate.map(|rate| rate.0),
        progress: Some(progress),
    };
    let report = store.scrub(&options).await;
    bar.finish_and_clear();
    let (equal, clean, seconds) = (report.is_equal(), report.is_clean(), start.elapsed().as_secs_f64());
    Scrubbed { equal, clean, found: report, seconds, collected: None, forgotten: None }
}

/// Runs `kv scrub`.
pub async fn scrub(args: &KvScrubArgs) -> Result<(), Failure> {
    let Walk { common, address, rate } = &args.walk;
    let store = client::open(address).await?;
    let mut scrubbed = scrub_store(&store, args.data, *rate, common.json).await;
    if args.collect {
        let (bar, progress) = output::walk_bar(common.json);
        let rate = rate.map(|rate| rate.0);
        let options = CollectOptions { bytes_per_second: rate, progress: Some(progress), ..CollectOptions::default() };
        let mut collected = store.collect(&options).await;
        bar.finish_and_clear();
        if args.wait && collected.young > 0 {
            wait(common.json).await;
            let again = store.collect(&options).await;
            collected = CollectReport {
                extents_freed: collected.extents_freed + again.extents_freed,
                heap_pages_freed: collected.heap_pages_freed + again.heap_pages_freed,
                guests_freed: collected.guests_freed + again.guests_freed,
                ..again
            };
        }
        scrubbed.collected = Some(collected);
        let (bar, progress) = output::walk_bar(common.json);
        let options = ForgetOptions { at_once: true, bytes_per_second: rate, progress: Some(progress) };
        scrubbed.forgotten = Some(store.forget(&options).await);
        bar.finish_and_clear();
    }
    output::report(common.json, &scrubbed, describe_scrub)?;
    verdict(&scrubbed)
}

/// Lets the time pass after which what nobody has referred to since is nobody's.
async fn wait(quiet: bool) {
    let (bar, start) = (output::progress_share("wait for stores under way", quiet), time::now());
    while start.elapsed() < AGE_MIN {
        bar.show(start.elapsed().as_secs_f64() / AGE_MIN.as_secs_f64());
        time::sleep(Duration::from_secs(1)).await;
    }
    bar.finish_and_clear();
}

/// Runs `kv repair`.
pub async fn repair(args: &KvRepairArgs) -> Result<(), Failure> {
    let walk @ Walk { common, address, rate } = &args.walk;
    let reached = client::reach(&client::way(&address.host)?, address).await?;
    let (renewed, hindered) = crate::pool::change::renew(&reached, walk).await?;
    // What still hinders is said in the log.
    let store = client::open(address).await?;
    let (bar, progress) = output::walk_bar(common.json);
    let options = RepairOptions {
        check_values: true,
        check_heap: true,
        accept_stale: args.accept_stale,
        bytes_per_second: rate.map(|rate| rate.0),
        progress: Some(progress),
    };
    let mut report = store.repair(&options).await;
    report.failed += hindered.len() as u64;
    report.reasons.extend(hindered);
    bar.finish_and_clear();
    super::settle(&store).await;
    let repaired = repaired(&renewed, report);
    output::report(common.json, &repaired, describe_repair)?;
    let Repaired { report: repaired, .. } = repaired;
    if repaired.failed > 0 {
        return Err(Failure::check(format!("{} could not be repaired", output::many(repaired.failed, "thing"))));
    }
    match repaired.unreachable.as_slice() {
        [] => Ok(()),
        missing => {
            let who = output::members(missing);
            Err(Failure::unavailable(format!("{who} did not answer: what is lacking there is not known")))
        }
    }
}

fn repaired(renewals: &[(MemberId, Renewal)], report: RepairReport) -> Repaired {
    let words = |(id, how): &(MemberId, Renewal)| format!("member {id} {}", how.words());
    let (filled, others): (Vec<_>, Vec<_>) = renewals.iter().partition(|(_, how)| how.is_filled());
    Repaired {
        renewed: filled.iter().map(|(id, _)| id.to_string()).collect(),
        not_begun: others.iter().map(words).collect(),
        told: renewals.iter().map(words).collect(),
        report,
    }
}

/// An exit status for what was found.
fn verdict(scrubbed: &Scrubbed) -> Result<(), Failure> {
    let missing = &scrubbed.found.unreachable;
    if !missing.is_empty() {
        let who = output::members(missing);
        return Err(Failure::unavailable(format!("{who} did not answer: the replicas there are not compared")));
    }
    if !scrubbed.clean {
        return Err(Failure::check("not everything is as it must be; `yagura kv repair` puts right what can be"));
    }
    match scrubbed.collected.as_ref().map_or(0, |collected| collected.failed) {
        0 => Ok(()),
        failed => {
            let things = output::many(failed, "thing");
            Err(Failure::check(format!("{things} could not be looked at: what is held there is not freed")))
        }
    }
}

/// What a repair did, for people.
fn describe_repair(repaired: &Repaired) -> String {
    let RepairReport { keys, stored, expired, copies_replaced, pages_rebuilt, .. } = &repaired.report;
    let RepairReport { groups_rebuilt, extents_claimed, pages_stale, failed, .. } = &repaired.report;
    let mut text = format!(
        "repair: {} seen, {} stored, {} replaced, {} that had ended deleted, {} and {} rebuilt, {} claimed again, {failed} failed\n",
        many(*keys, "key"),
        many(*stored, "replica"),
        many(*copies_replaced, "damaged value"),
        many(*expired, "key"),
        many(*pages_rebuilt, "page"),
        many(*groups_rebuilt, "allocation page"),
        many(*extents_claimed, "extent"),
    );
    if *pages_stale > 0 {
        let pages = many(*pages_stale, "page");
        text += &format!("  {pages} rebuilt from replicas that may lack what was stored last: the log names them\n");
    }
    repaired.told.iter().for_each(|told| text += &format!("  {told}\n"));
    repaired.report.reasons.iter().for_each(|reason| text += &format!("  {reason}\n"));
    text
}

/// What a scrub found, for people.
pub fn describe_scrub(scrubbed: &Scrubbed) -> String {
    let found = &scrubbed.found;
    let verdict = match (scrubbed.clean, scrubbed.equal) {
        (true, _) => "all replicas are equal".into(),
        (false, true) => "all replicas are equal, but the heap needs repair".into(),
        (false, false) => format!(
            "{} of which replicas differ, {} damaged, {} without an answer",
            many(found.differing.count, "key"),
            many(found.damaged_pages.count, "page"),
            many(found.unreachable.len() as u64, "member")
        ),
    };
    let mut text = format!(
        "replicas: {}, {} of values, {} that have ended, {} remembered: {verdict}\n\
         heap:     {}; {} claimed, {} of them unreferenced ({} set aside by repair); {} unreferenced\n\
         read:     {} in {:.2} s\n",
        many(found.keys, "key"),
        Size(found.value_bytes),
        found.expired,
        many(found.tombstones, "deleted key"),
        many(found.extents, "extent"),
        many(found.heap_pages_claimed, "page"),
        found.heap_pages_unreferenced,
        found.heap_pages_lost,
        many(found.guests_unreferenced, "guest"),
        Size(found.bytes),
        scrubbed.seconds,
    );
    list(&mut text, &found.differing, |difference| format!("{}: {}", difference.key.escape_debug(), difference.what));
    list(&mut text, &found.damaged_pages, |(member, page, why)| format!("page {page} of member {member}: {why}"));
    list(&mut text, &found.damaged_groups, |(member, group, why)| {
        format!("heap group {group} of member {member}: {why}")
    });
    if let Some(collected) = &scrubbed.collected {
        text += &format!(
            "freed:    {} of {} extents ({}), {} of {} guests; {} may be of stores under way (--wait), {} failed\n",
            collected.extents_freed,
            collected.extents,
            many(collected.heap_pages_freed, "page"),
            collected.guests_freed,
            collected.guests,
            collected.young,
            collected.failed,
        );
        collected.reasons.iter().for_each(|line| text += &format!("  {line}\n"));
    }
    if let Some(ForgetReport { dropped, hindered, .. }) = &scrubbed.forgotten {
        text += &format!("forgot:   {} of deleted keys\n", many(*dropped, "replica"));
        hindered.iter().for_each(|why| text += &format!("  not all that could be: {why}\n"));
    }
    text
}

/// Adds the first findings of a kind, and how many more there are.
fn list<T>(text: &mut String, findings: &Findings<T>, words: impl Fn(&T) -> String) {
    findings.first.iter().for_each(|finding| *text += &format!("  {}\n", words(finding)));
    match findings.count - findings.first.len() as u64 {
        0 => {}
        more => *text += &format!("  and {more} more\n"),
    }
}
