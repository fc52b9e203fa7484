//! The heap's part of scrub and repair: what a member's pages refer to, against what its allocation pages say.

use std::collections::BTreeSet;

use pool::HeapGroup;

use super::link::Link;
use super::member::{Member, MemberError};
use super::pace::Pace;
use super::repair::RepairReport;
use super::scrub::ScrubReport;
use crate::table::{HeapState, Marks, Table, TableError};

/// Looks before an extent that is referred to and not claimed is believed to be so: it may be freed between two reads.
const LOOKS: usize = 3;

/// Walks over a member's pages; by name in the groups of `wanted`.
pub(super) async fn mark<N: Link>(
    table: &Table<N>,
    wanted: BTreeSet<u32>,
    pace: &mut Pace,
) -> Result<Marks, TableError> {
    let mut before = 0;
    table
        .mark(wanted, async |bytes, done| {
            pace.step_to(done, bytes - before).await;
            before = bytes;
        })
        .await
}

/// What a member's allocation pages say, looked at until what they contradict stays the same. The marks name the owners of
/// the groups that are damaged or contradict them.
async fn look<N: Link>(table: &Table<N>, pace: &mut Pace) -> Result<(Marks, HeapState), TableError> {
    let mut marks = mark(table, BTreeSet::new(), pace).await?;
    let mut state = table.heap_state(&marks).await?;
    for _ in 1..LOOKS {
        let mut wanted: BTreeSet<u32> = state.missing.clone();
        wanted.extend(state.damaged.iter().map(|(group, _)| group.0));
        if wanted.is_empty() {
            break;
        }
        marks = mark(table, wanted.clone(), pace).await?;
        let again = table.heap_state(&marks).await?;
        let missing = state.missing.intersection(&again.missing).copied().collect();
        state = HeapState { missing, ..again };
        // Groups that are bad only now have no owners by name yet: the next run sees to them.
        state.damaged.retain(|(group, _)| wanted.contains(&group.0));
    }
    Ok((marks, state))
}

/// Compares the allocation pages of a member with its references.
pub(super) async fn scrub_heap<N: Link>(member: &Member<N>, pace: &mut Pace, report: &mut ScrubReport) {
    match try_look(member, pace).await {
        Ok((marks, state)) => {
            report.extents += marks.extents;
            report.heap_pages_claimed += state.claimed;
            if marks.unread == 0 {
                report.heap_pages_unreferenced += state.unreferenced;
                report.heap_pages_lost += state.lost;
                report.guests_unreferenced += marks.guests.1.saturating_sub(marks.guests.0);
            }
            for (group, error) in &state.damaged {
                report.damaged_groups.push((member.index, group.0, error.to_string()));
            }
            for group in &state.missing {
                let what = "an extent that is referred to is not claimed: the next writer would be given its place";
                report.damaged_groups.push((member.index, *group, what.into()));
            }
        }
        Err(error) => report.missed(member.index, &error),
    }
}

async fn try_look<N: Link>(member: &Member<N>, pace: &mut Pace) -> Result<(Marks, HeapState), MemberError> {
    let (table, epoch) = member.voting().await?;
    let looked = look(table, pace).await?;
    member.counts(epoch)?;
    Ok(looked)
}

/// Rebuilds what is damaged of a member's allocation pages.
pub(super) async fn repair_heap<N: Link>(member: &Member<N>, pace: &mut Pace, report: &mut RepairReport) {
    if let Err(error) = try_repair(member, pace, report).await {
        report.fail(format!("the heap of member {}: {error}", member.index));
    }
}

async fn try_repair<N: Link>(
    member: &Member<N>,
    pace: &mut Pace,
    report: &mut RepairReport,
) -> Result<(), MemberError> {
    let (table, epoch) = member.voting().await?;
    let mut damaged = Vec::new();
    for (group, error) in table.heap_state(&mark(table, BTreeSet::new(), pace).await?).await?.damaged {
        match table.damaged_allocation(group).await {
            Ok(Some(bytes)) => damaged.push((group, bytes)),
            Ok(None) => {}
            Err(_) => report.fail(format!("heap group {} of member {}: {error}", group.0, member.index)),
        }
    }
    // What is rebuilt is gathered after the damage was seen, from all pages.
    let (marks, state) = look(table, pace).await?;
    if marks.unread > 0 && !(damaged.is_empty() && state.missing.is_empty()) {
        report.fail(format!(
            "the heap of member {}: {} of its pages or indices are damaged, so what lies in it is not known",
            member.index, marks.unread
        ));
        return Ok(());
    }
    member.counts(epoch)?;
    for (group, bytes) in damaged {
        // One that `look` does not name was put right by somebody else.
        if state.damaged.iter().any(|(still, _)| *still == group) {
            table.rebuild_allocation(group, bytes, &marks).await?;
            report.groups_rebuilt += 1;
        }
    }
    for group in state.missing {
        report.extents_claimed += table.claim_missing(HeapGroup(group), &marks).await? as u64;
    }
    Ok(())
}
