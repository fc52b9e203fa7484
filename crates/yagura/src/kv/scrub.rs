//! `yagura kv scrub`: everything that is stored, read and compared. `yagura kv repair`: what is wrong, put right.

use std::rc::Rc;

use engine::time;
use kv::store::{
    CollectOptions, CollectReport, Progress, RepairOptions, RepairReport, ScrubOptions, ScrubReport, ShowProgress,
    Store,
};
use serde::Serialize;

use crate::cli::{KvRepairArgs, KvScrubArgs};
use crate::client::{self, Connected};
use crate::exit::Failure;
use crate::output;
use crate::size::Size;

/// What a repair did.
#[derive(Clone, Serialize, Debug)]
pub struct Repaired {
    /// Keys seen.
    pub keys: u64,
    /// Replicas stored because they were missing or older.
    pub stored: u64,
    /// Damaged copies replaced.
    pub copies_replaced: u64,
    /// Damaged pages rebuilt.
    pub pages_rebuilt: u64,
    /// Damaged allocation pages rebuilt.
    pub groups_rebuilt: u64,
    /// Extents that were referred to and not claimed, claimed again.
    pub extents_claimed: u64,
    /// What could not be repaired.
    pub failed: u64,
    /// The first of the reasons.
    pub reasons: Vec<String>,
    /// Members that did not answer throughout.
    pub unreachable: Vec<usize>,
}

impl From<RepairReport> for Repaired {
    fn from(report: RepairReport) -> Repaired {
        Repaired {
            keys: report.keys,
            stored: report.stored,
            copies_replaced: report.copies_replaced,
            pages_rebuilt: report.pages_rebuilt,
            groups_rebuilt: report.groups_rebuilt,
            extents_claimed: report.extents_claimed,
            failed: report.failed,
            reasons: report.reasons,
            unreachable: report.unreachable,
        }
    }
}

/// What a scrub found.
#[derive(Clone, Serialize, Debug)]
pub struct Scrubbed {
    /// Whether all replicas of all keys are there and equal.
    pub equal: bool,
    /// Whether nothing at all was found that a repair should see to.
    pub clean: bool,
    /// Keys with a value.
    pub keys: u64,
    /// Deleted keys that are remembered.
    pub tombstones: u64,
    /// Bytes of all values, once.
    pub value_bytes: u64,
    /// Replicas compared.
    pub replicas: u64,
    /// Keys whose replicas differ.
    pub differing: u64,
    /// What is wrong, in words: the first keys that differ, damaged pages, damaged allocation pages.
    pub findings: Vec<String>,
    /// Extents that are referred to, over all members.
    pub extents: u64,
    /// Data pages of the heaps that are claimed.
    pub heap_pages_claimed: u64,
    /// Those that nothing refers to: on the way to their page, or left behind by a host that ended too early.
    pub heap_pages_unreferenced: u64,
    /// Those of them that the rebuilding of an allocation page has set aside.
    pub heap_pages_lost: u64,
    /// Guests that nothing refers to, likewise.
    pub guests_unreferenced: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// How long it took.
    pub seconds: f64,
    /// Members that did not answer throughout.
    pub unreachable: Vec<usize>,
    /// What was freed, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collected: Option<CollectedSpace>,
}

/// What a collection freed.
#[derive(Clone, Serialize, Debug)]
pub struct CollectedSpace {
    /// Extents looked at.
    pub extents: u64,
    /// Those that nothing referred to, freed.
    pub extents_freed: u64,
    /// Their pages.
    pub heap_pages_freed: u64,
    /// Guests looked at.
    pub guests: u64,
    /// Those that nothing referred to, freed.
    pub guests_freed: u64,
    /// Copies left alone since they may belong to a store under way.
    pub young: u64,
    /// What could not be looked at.
    pub failed: u64,
    /// The first reasons.
    pub reasons: Vec<String>,
}

impl From<CollectReport> for CollectedSpace {
    fn from(report: CollectReport) -> CollectedSpace {
        let CollectReport { extents, extents_freed, heap_pages_freed, guests, guests_freed, young, failed, .. } =
            report;
        let reasons = report.reasons;
        CollectedSpace { extents, extents_freed, heap_pages_freed, guests, guests_freed, young, failed, reasons }
    }
}

impl Scrubbed {
    fn new(report: ScrubReport, seconds: f64) -> Scrubbed {
        let difference = |difference: &kv::store::Difference| {
            format!("{}: {}", String::from_utf8_lossy(&difference.key).escape_debug(), difference.what)
        };
        let page = |(member, page, why): &(usize, u32, String)| format!("page {page} of member {member}: {why}");
        let group =
            |(member, group, why): &(usize, u32, String)| format!("heap group {group} of member {member}: {why}");
        let mut findings: Vec<String> = report.differences.iter().map(difference).collect();
        findings.extend(report.damaged_pages.iter().map(page));
        findings.extend(report.damaged_groups.iter().map(group));
        Scrubbed {
            equal: report.is_equal(),
            clean: report.is_clean(),
            keys: report.keys,
            tombstones: report.tombstones,
            value_bytes: report.value_bytes,
            replicas: report.replicas,
            differing: report.differing,
            findings,
            extents: report.extents,
            heap_pages_claimed: report.heap_pages_claimed,
            heap_pages_unreferenced: report.heap_pages_unreferenced,
            heap_pages_lost: report.heap_pages_lost,
            guests_unreferenced: report.guests_unreferenced,
            bytes_read: report.bytes,
            seconds,
            unreachable: report.unreachable,
            collected: None,
        }
    }
}

/// A progress bar for a walk over all keys: what is being done, how fast, and how long it will take.
pub fn walk_bar(quiet: bool) -> (indicatif::ProgressBar, ShowProgress) {
    let bar = output::progress_share("", quiet);
    let (shown, start) = (bar.clone(), time::now());
    let show = move |progress: &Progress| {
        let rate = progress.bytes as f64 / start.elapsed().as_secs_f64().max(1e-3);
        shown.set_message(format!("{}, {}/s", progress.what, Size(rate as u64)));
        output::show_share(&shown, progress.done);
    };
    (bar, Rc::new(show))
}

/// Reads and compares everything.
pub async fn scrub_store(store: &Store<Connected>, data: bool, rate: Option<Size>, quiet: bool) -> Scrubbed {
    let (bar, progress) = walk_bar(quiet);
    let start = time::now();
    let options = ScrubOptions {
        check_values: data,
        check_heap: true,
        bytes_per_second: rate.map(|rate| rate.0),
        progress: Some(progress),
    };
    let report = store.scrub(&options).await;
    bar.finish_and_clear();
    Scrubbed::new(report, start.elapsed().as_secs_f64())
}

/// Runs `kv scrub`.
pub async fn scrub(args: &KvScrubArgs) -> Result<(), Failure> {
    let store = client::open(&args.address).await?;
    let mut scrubbed = scrub_store(&store, args.data, args.rate, args.common.json).await;
    if args.collect {
        let (bar, progress) = walk_bar(args.common.json);
        let rate = args.rate.map(|rate| rate.0);
        let options = CollectOptions { bytes_per_second: rate, progress: Some(progress), ..CollectOptions::default() };
        scrubbed.collected = Some(store.collect(&options).await.into());
        bar.finish_and_clear();
    }
    output::report(args.common.json, &scrubbed, describe_scrub)?;
    verdict(&scrubbed)
}

/// Runs `kv repair`.
pub async fn repair(args: &KvRepairArgs) -> Result<(), Failure> {
    let store = client::open(&args.address).await?;
    let (bar, progress) = walk_bar(args.common.json);
    let options = RepairOptions {
        check_values: true,
        check_heap: true,
        bytes_per_second: args.rate.map(|rate| rate.0),
        progress: Some(progress),
    };
    let repaired: Repaired = store.repair(&options).await.into();
    bar.finish_and_clear();
    super::settle(&store).await;
    output::report(args.common.json, &repaired, describe_repair)?;
    if repaired.failed > 0 {
        return Err(Failure::check(format!("{} things could not be repaired", repaired.failed)));
    }
    match repaired.unreachable.as_slice() {
        [] => Ok(()),
        missing => {
            Err(Failure::unavailable(format!("members {missing:?} did not answer: what they lack is not known")))
        }
    }
}

/// An exit status for what was found.
fn verdict(scrubbed: &Scrubbed) -> Result<(), Failure> {
    if !scrubbed.unreachable.is_empty() {
        let missing = &scrubbed.unreachable;
        return Err(Failure::unavailable(format!(
            "members {missing:?} did not answer: their replicas are not compared"
        )));
    }
    if !scrubbed.clean {
        return Err(Failure::check("not everything is as it must be; `yagura kv repair` puts right what can be"));
    }
    Ok(())
}

/// What a repair did, for people.
fn describe_repair(repaired: &Repaired) -> String {
    let Repaired { keys, stored, copies_replaced, pages_rebuilt, groups_rebuilt, extents_claimed, failed, .. } =
        repaired;
    let mut text = format!(
        "repair: {keys} keys seen, {stored} replicas stored, {copies_replaced} damaged values replaced, \
         {pages_rebuilt} pages and {groups_rebuilt} allocation pages rebuilt, {extents_claimed} extents claimed again, \
         {failed} failed\n"
    );
    repaired.reasons.iter().for_each(|reason| text += &format!("  {reason}\n"));
    text
}

/// What a scrub found, for people.
pub fn describe_scrub(scrubbed: &Scrubbed) -> String {
    let verdict = match (scrubbed.clean, scrubbed.equal) {
        (true, _) => "all replicas are equal".into(),
        (false, true) => "all replicas are equal, but the heap needs repair".into(),
        (false, false) => format!("{} keys differ", scrubbed.differing),
    };
    let mut text = format!(
        "replicas: {} keys, {} of values, {} deleted keys remembered: {verdict}\n\
         heap:     {} extents; {} pages claimed, {} of them unreferenced ({} set aside by repair); {} guests unreferenced\n\
         read:     {} in {:.2} s\n",
        scrubbed.keys,
        Size(scrubbed.value_bytes),
        scrubbed.tombstones,
        scrubbed.extents,
        scrubbed.heap_pages_claimed,
        scrubbed.heap_pages_unreferenced,
        scrubbed.heap_pages_lost,
        scrubbed.guests_unreferenced,
        Size(scrubbed.bytes_read),
        scrubbed.seconds,
    );
    scrubbed.findings.iter().for_each(|line| text += &format!("  {line}\n"));
    if let Some(collected) = &scrubbed.collected {
        text += &format!(
            "freed:    {} of {} extents ({} pages), {} of {} guests; {} left alone as too young, {} failed\n",
            collected.extents_freed,
            collected.extents,
            collected.heap_pages_freed,
            collected.guests_freed,
            collected.guests,
            collected.young,
            collected.failed,
        );
        collected.reasons.iter().for_each(|line| text += &format!("  {line}\n"));
    }
    text
}
