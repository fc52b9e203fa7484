//! The heap's part of scrub and repair: what a member's pages refer to, against what its allocation pages say.
//!
//! The allocation pages are read first, then the table pages are walked over once more, member by member: what a member's
//! pages refer to takes a bit for each of its data pages, so that the marks of all members at once, which the comparison of
//! replicas could make as it goes, would be without bound.

use std::collections::BTreeMap;

use pool::HeapGroup;

use super::member::{Member, MemberError};
use super::repair::RepairReport;
use super::scrub::ScrubReport;
use crate::table::{Heap, Marks, Owner, Table, TableError};
use engine::job::Job;

/// Reads a member's allocation pages.
async fn read_heap(table: &Table, job: &Job) -> Result<Heap, TableError> {
    table.heap(async |bytes, done| turn(job, bytes, done).await).await
}

/// Walks over a member's pages; against `heap`, if what is not claimed is to be found.
pub(super) async fn mark(table: &Table, heap: Option<Heap>, job: &Job) -> Result<Marks, TableError> {
    table.mark(heap, async |bytes, done| turn(job, bytes, done).await).await
}

async fn turn(job: &Job, bytes: u64, done: f64) {
    job.reached(done);
    job.take(bytes).await;
}

/// Compares the allocation pages of a member with its references.
pub(super) async fn scrub_heap(member: &Member, job: &Job, report: &mut ScrubReport) {
    match try_look(member, job).await {
        Ok(marks) => {
            let claimed = marks.claimed();
            report.extents += marks.extents;
            report.heap_pages_claimed += claimed.pages;
            if marks.unread == 0 {
                report.heap_pages_unreferenced += claimed.unreferenced;
                report.heap_pages_lost += claimed.lost;
                report.guests_unreferenced += marks.guests.1.saturating_sub(marks.guests.0);
            }
            let (damaged, more) = marks.damaged();
            for (group, error) in damaged {
                report.damaged_groups.add(|| (member.index, group.0, error.to_string()));
            }
            report.damaged_groups.count += more;
            for (group, owners) in by_group(&marks) {
                let what = "extents that are referred to are not claimed: the next writer would be given their place";
                report.damaged_groups.add(|| (member.index, group.0, format!("{} {what}", owners.len())));
            }
            report.damaged_groups.count += marks.missing_more;
        }
        Err(error) => report.missed(member.index, &error),
    }
}

async fn try_look(member: &Member, job: &Job) -> Result<Marks, MemberError> {
    let (table, epoch) = member.voting().await?;
    let heap = read_heap(table, job).await?;
    let marks = mark(table, Some(heap), job).await?;
    member.counts(epoch)?;
    Ok(marks)
}

/// What is referred to and not claimed.
fn by_group(marks: &Marks) -> BTreeMap<HeapGroup, Vec<Owner>> {
    let mut groups: BTreeMap<HeapGroup, Vec<Owner>> = BTreeMap::new();
    for owner in &marks.missing {
        groups.entry(owner.place.group()).or_default().push(*owner);
    }
    groups
}

/// Rebuilds what is damaged of a member's allocation pages.
pub(super) async fn repair_heap(member: &Member, job: &Job, report: &mut RepairReport) {
    if let Err(error) = try_repair(member, job, report).await {
        report.fail(format!("the heap of member {}: {error}", member.index));
    }
}

async fn try_repair(member: &Member, job: &Job, report: &mut RepairReport) -> Result<(), MemberError> {
    let (table, epoch) = member.voting().await?;
    let heap = read_heap(table, job).await?;
    let mut damaged = Vec::new();
    for (group, error) in &heap.damaged {
        match table.damaged_allocation(*group).await {
            Ok(Some(bytes)) => damaged.push((*group, bytes)),
            Ok(None) => {}
            Err(_) => report.fail(format!("heap group {} of member {}: {error}", group.0, member.index)),
        }
    }
    if !damaged.is_empty() {
        // Pages of a new life of the member are not damaged, but for a host that has slept.
        member.check_again().await?;
    }
    for (group, bytes) in &mut damaged {
        *bytes = table.clear_allocation(*group, bytes.clone()).await?;
    }
    // What is rebuilt is gathered after the damage was seen, from all pages.
    let mut marks = mark(table, Some(heap), job).await?;
    let needed = !damaged.is_empty() || !marks.missing.is_empty();
    if needed {
        // Their rebuilding may be waiting for room in these very groups.
        table.settle_cleared(&mut marks).await?;
    }
    if marks.unread > 0 && needed {
        report.fail(format!(
            "the heap of member {}: {} of its pages or indices are damaged, so what lies in it is not known",
            member.index, marks.unread
        ));
        return Ok(());
    }
    member.counts(epoch)?;
    for (group, bytes) in damaged {
        // One that was put right by somebody else is no longer these bytes.
        if table.damaged_allocation(group).await?.is_some_and(|still| still[..] == bytes[..]) {
            table.rebuild_allocation(group, bytes, &marks).await?;
            report.groups_rebuilt += 1;
        }
    }
    for (group, owners) in by_group(&marks) {
        report.extents_claimed += table.claim_missing(group, &owners).await? as u64;
    }
    let more = marks.damaged().1 + marks.missing_more;
    if more > 0 {
        report.fail(format!(
            "the heap of member {}: {more} more damaged groups and lost claims: repair again",
            member.index
        ));
    }
    Ok(())
}
