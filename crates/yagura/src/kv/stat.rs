//! `yagura kv stat`: how much a pool holds.

use kv::store::{Estimate, ScrubOptions, Store, Usage};
use serde::Serialize;

use crate::cli::KvStatArgs;
use crate::client;
use crate::exit::Failure;
use crate::output;
use crate::size::Size;

#[derive(Serialize)]
struct Stat {
    pool: String,
    keys: u64,
    tombstones: u64,
    value_bytes: u64,
    /// Share of the table pages that was looked at; 1: these are counts, no estimates.
    sampled: f64,
    members_connected: usize,
    members_voting: usize,
    /// Members that did not answer the question: what they hold is taken from the others, or not counted (--exact).
    unreachable: Vec<usize>,
    members: Vec<MemberStat>,
}

#[derive(Serialize)]
struct MemberStat {
    index: usize,
    connected: bool,
    votes: bool,
    table_bytes: u64,
    heap_bytes: u64,
    /// Estimates, unless the member is small; missing if it did not answer.
    table_bytes_used: Option<u64>,
    heap_bytes_used: Option<u64>,
}

/// Runs the verb.
pub async fn stat(args: &KvStatArgs) -> Result<(), Failure> {
    let store = client::open(&args.address).await?;
    let held = if args.exact { count(&store, args.common.json).await } else { store.estimate().await };
    let (map, mut members) = (store.map(), Vec::new());
    for member in store.ask_members(crate::nvme::CONNECT_TIME).await {
        let (geometry, page) = (map.geometry(member.index), u64::from(map.page_size));
        let usage: Option<Usage> = store.usage(member.index).await.ok();
        members.push(MemberStat {
            index: member.index,
            connected: member.connected,
            votes: member.votes,
            table_bytes: u64::from(geometry.table_pages) * page,
            heap_bytes: geometry.heap_pages() * page,
            table_bytes_used: usage.map(|usage| usage.table_bytes_used),
            heap_bytes_used: usage.map(|usage| usage.heap_pages_used * page),
        });
    }
    let stat = Stat {
        pool: map.pool.to_string(),
        keys: held.keys,
        tombstones: held.tombstones,
        value_bytes: held.value_bytes,
        sampled: held.pages_read as f64 / held.pages.max(1) as f64,
        members_connected: members.iter().filter(|member| member.connected).count(),
        members_voting: members.iter().filter(|member| member.votes).count(),
        unreachable: held.unreachable,
        members,
    };
    output::report(args.common.json, &stat, describe)
}

/// Counts every key.
async fn count(store: &Store, quiet: bool) -> Estimate {
    let (bar, progress) = output::walk_bar(quiet);
    let report = store.scrub(&ScrubOptions { progress: Some(progress), ..ScrubOptions::default() }).await;
    bar.finish_and_clear();
    Estimate {
        keys: report.keys,
        tombstones: report.tombstones,
        value_bytes: report.value_bytes,
        pages_read: 1,
        pages: 1,
        unreachable: report.unreachable,
    }
}

fn describe(stat: &Stat) -> String {
    let about = if stat.sampled < 1.0 { "about " } else { "" };
    let mut text = format!(
        "pool {}\n{about}{}, {} of values, {} remembered",
        stat.pool,
        output::many(stat.keys, "key"),
        Size(stat.value_bytes),
        output::many(stat.tombstones, "deleted key"),
    );
    if stat.sampled < 1.0 {
        text += &format!(" (from {:.2} % of the table; --exact counts)", stat.sampled * 100.0);
    }
    text += &format!(
        "\n{} of {} members connected, {} with a vote\n",
        stat.members_connected,
        stat.members.len(),
        stat.members_voting
    );
    if !stat.unreachable.is_empty() {
        text += &format!("{} did not answer: the figures are from the others\n", output::members(&stat.unreachable));
    }
    let used = |used: Option<u64>| used.map_or("unknown".into(), |bytes| Size(bytes).to_string());
    for MemberStat { index, table_bytes, heap_bytes, table_bytes_used, heap_bytes_used, .. } in &stat.members {
        text += &format!(
            "member {index}: table {}, used {}; heap {}, used {}\n",
            Size(*table_bytes),
            used(*table_bytes_used),
            Size(*heap_bytes),
            used(*heap_bytes_used)
        );
    }
    text
}
