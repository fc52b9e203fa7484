//! `yagura kv verify`: stored bytes against a directory, and replicas against one another.

use std::rc::Rc;

use kv::store::{Progress, RepairOptions, RepairReport, ShowProgress, Store, VerifyOptions, VerifyReport};
use serde::Serialize;

use super::copy::{self, Compared, describe_comparison};
use super::timed::Timed;
use crate::cli::KvVerifyArgs;
use crate::client::{self, Connected};
use crate::exit::Failure;
use crate::output;
use crate::size::Size;
use crate::tree::Tree;

/// What was found; parts that were not asked for are missing.
#[derive(Default, Serialize)]
struct Verified {
    against: Option<Compared>,
    repair: Option<Repaired>,
    replicas: Option<Replicas>,
}

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
    /// What could not be repaired, and the first reasons.
    pub failed: u64,
    /// The first of the reasons.
    pub reasons: Vec<String>,
    /// Members that did not answer throughout.
    pub unreachable: Vec<usize>,
}

impl From<RepairReport> for Repaired {
    fn from(report: RepairReport) -> Repaired {
        let RepairReport { keys, stored, copies_replaced, pages_rebuilt, failed, reasons, unreachable } = report;
        Repaired { keys, stored, copies_replaced, pages_rebuilt, failed, reasons, unreachable }
    }
}

/// How the replicas compare.
#[derive(Clone, Serialize, Debug)]
pub struct Replicas {
    /// Whether all replicas of all keys are there and equal.
    pub equal: bool,
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
    /// The first of them, in words.
    pub differences: Vec<String>,
    /// Damaged pages, in words.
    pub damaged_pages: Vec<String>,
    /// Members that did not answer throughout.
    pub unreachable: Vec<usize>,
}

impl From<VerifyReport> for Replicas {
    fn from(report: VerifyReport) -> Replicas {
        let difference = |difference: &kv::store::Difference| {
            format!("{}: {}", String::from_utf8_lossy(&difference.key).escape_debug(), difference.what)
        };
        let page = |(member, page, why): &(usize, u32, String)| format!("page {page} of member {member}: {why}");
        Replicas {
            equal: report.is_equal(),
            keys: report.keys,
            tombstones: report.tombstones,
            value_bytes: report.value_bytes,
            replicas: report.replicas,
            differing: report.differing,
            differences: report.differences.iter().map(difference).collect(),
            damaged_pages: report.damaged_pages.iter().map(page).collect(),
            unreachable: report.unreachable,
        }
    }
}

/// A progress bar for a walk over all keys.
pub fn walk_bar(what: &'static str, quiet: bool) -> (indicatif::ProgressBar, ShowProgress) {
    let bar = output::progress_share(what, quiet);
    let shown = bar.clone();
    (bar, Rc::new(move |progress: &Progress| output::show_share(&shown, progress.done)))
}

/// Compares all replicas of all keys, the values too.
pub async fn replicas(store: &Store<Connected>, quiet: bool) -> Replicas {
    let (bar, progress) = walk_bar("compare replicas", quiet);
    let report = store.verify(&VerifyOptions { check_values: true, progress: Some(progress) }).await;
    bar.finish_and_clear();
    report.into()
}

async fn repair(store: &Store<Connected>, quiet: bool) -> Repaired {
    let (bar, progress) = walk_bar("repair", quiet);
    let options = RepairOptions { check_values: true, bytes_per_second: None, progress: Some(progress) };
    let report = store.repair(&options).await;
    bar.finish_and_clear();
    report.into()
}

/// Runs the verb.
pub async fn verify(args: &KvVerifyArgs) -> Result<(), Failure> {
    let tree = args.against.as_ref().map(|directory| Tree::list(directory, &args.prefix)).transpose()?;
    let store = Timed::new(client::open(&args.address).await?);
    let mut verified = Verified::default();
    if let Some(tree) = tree {
        let bar = output::progress("compare", tree.bytes(), args.common.json);
        let compared = copy::compare(&store, &tree, usize::from(args.depth), |bytes| bar.inc(bytes)).await;
        bar.finish_and_clear();
        verified.against = Some(compared?);
    }
    if args.repair {
        verified.repair = Some(repair(store.inner(), args.common.json).await);
        super::settle(store.inner()).await;
    }
    if args.replicas || args.repair {
        verified.replicas = Some(replicas(store.inner(), args.common.json).await);
    }
    output::report(args.common.json, &verified, describe)?;
    let different = verified.against.as_ref().map_or(0, |compared| compared.different);
    if different > 0 {
        return Err(Failure::check(format!("{different} files are not stored as they are")));
    }
    match &verified.replicas {
        Some(replicas) if !replicas.unreachable.is_empty() => Err(Failure::unavailable(format!(
            "members {:?} did not answer: their replicas are not compared",
            replicas.unreachable
        ))),
        Some(replicas) if !replicas.equal => {
            Err(Failure::check("the replicas are not equal; `yagura kv verify --repair` stores the newest everywhere"))
        }
        _ => Ok(()),
    }
}

fn describe(verified: &Verified) -> String {
    let mut text = verified.against.as_ref().map_or_else(String::new, describe_comparison);
    text += &verified.repair.as_ref().map_or_else(String::new, describe_repair);
    text + &verified.replicas.as_ref().map_or_else(String::new, describe_replicas)
}

/// What a repair did, for people.
pub fn describe_repair(repaired: &Repaired) -> String {
    let Repaired { keys, stored, copies_replaced, pages_rebuilt, failed, reasons, .. } = repaired;
    let mut text = format!(
        "repair: {keys} keys seen, {stored} replicas stored, {copies_replaced} damaged values replaced, \
         {pages_rebuilt} pages rebuilt, {failed} failed\n"
    );
    reasons.iter().for_each(|reason| text += &format!("  {reason}\n"));
    text
}

/// How the replicas compare, for people.
pub fn describe_replicas(replicas: &Replicas) -> String {
    let Replicas { equal, keys, tombstones, value_bytes, differing, differences, damaged_pages, .. } = replicas;
    let verdict = if *equal { "all replicas are equal".into() } else { format!("{differing} keys differ") };
    let size = Size(*value_bytes);
    let mut text =
        format!("replicas: {keys} keys, {size} of values, {tombstones} deleted keys remembered: {verdict}\n");
    differences.iter().chain(damaged_pages).for_each(|line| text += &format!("  {line}\n"));
    text
}
