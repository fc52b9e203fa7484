//! The collector: what hosts that ended in the middle of a store have left on a member is freed.
//!
//! It walks over the heap groups and table pages of each member and has every extent and guest that is old enough looked at
//! (`table::collect`, which argues why nothing that is or may yet be in use is freed). What a rebuilt allocation page has set
//! aside ([`LOST`]) bears no home to look at: it is freed if a walk over all pages of the member, begun when it was old enough
//! that no store of before the damage is under way any more, finds no reference to it.
//!
//! Any number of collectors may run at once, and any may end anywhere: each step frees one copy by its tag, or leaves a
//! mark that the next collector takes off.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use engine::task::LocalFuture;
use pool::{HeapGroup, TablePage};

use super::Store;
use super::heap::mark;
use super::member::{Member, MemberError};
use super::repair::REASONS_MAX;
use crate::page::{Claim, LOST};
use crate::table::{AGE_MIN, Collected, Table};
use engine::job::{Job, ShowProgress};

/// How to collect.
#[derive(Clone)]
pub struct CollectOptions {
    /// Bytes read a second, over all members; `None`: as fast as it goes.
    pub bytes_per_second: Option<u64>,
    /// Called as it goes on.
    pub progress: Option<ShowProgress>,
    /// How long ago this store must have first seen that nobody refers to a copy; until then it is taken for one of a store under
    /// way. Less than [`AGE_MIN`] is for tests, and for operators who know that nobody uses the pool.
    pub age_min: Duration,
}

impl Default for CollectOptions {
    fn default() -> CollectOptions {
        CollectOptions { bytes_per_second: None, progress: None, age_min: AGE_MIN }
    }
}

/// What was collected.
#[derive(Clone, PartialEq, Eq, serde::Serialize, Debug, Default)]
pub struct CollectReport {
    /// Extents looked at.
    pub extents: u64,
    /// Those that nobody referred to, freed.
    pub extents_freed: u64,
    /// Their pages.
    pub heap_pages_freed: u64,
    /// Guests looked at.
    pub guests: u64,
    /// Those that nobody referred to, freed.
    pub guests_freed: u64,
    /// Copies left alone since they may belong to a store under way.
    pub young: u64,
    /// What could not be looked at.
    pub failed: u64,
    /// The first reasons.
    pub reasons: Vec<String>,
    /// Bytes read.
    pub bytes: u64,
}

impl CollectReport {
    fn fail(&mut self, reason: String) {
        self.failed += 1;
        if self.reasons.len() < REASONS_MAX {
            self.reasons.push(reason);
        }
    }

    fn count(&mut self, collected: Collected, guest: bool) {
        match collected {
            Collected::Freed(_) if guest => self.guests_freed += 1,
            Collected::Freed(pages) => {
                self.extents_freed += 1;
                self.heap_pages_freed += pages as u64;
            }
            Collected::Young => self.young += 1,
            Collected::InUse | Collected::Gone => {}
        }
    }
}

impl Store {
    /// Frees, on every member that can be reached, what nobody refers to. Traffic goes on.
    pub fn collect<'a>(&'a self, options: &'a CollectOptions) -> LocalFuture<'a, CollectReport> {
        Box::pin(async move {
            let mut report = CollectReport::default();
            let job = self.inner.stats.jobs.begin("collect", options.bytes_per_second, options.progress.clone());
            for member in &self.inner.topology().members {
                if let Err(error) = collect_member(member, options.age_min, &job, &mut report).await {
                    report.fail(format!("member {}: {error}", member.index));
                }
            }
            report.bytes = job.end().await;
            report
        })
    }
}

async fn collect_member(
    member: &Member,
    age_min: Duration,
    job: &Job,
    report: &mut CollectReport,
) -> Result<(), MemberError> {
    let (table, epoch) = member.voting().await?;
    job.begin("collect extents");
    let orphans = member.orphans();
    orphans.begin();
    let mut set_aside = BTreeSet::new();
    let wanted = |group: HeapGroup, claim: &Claim| {
        if claim.home == LOST {
            set_aside.insert(group.0);
        }
        claim.home != LOST
    };
    collect_extents(member, wanted, age_min, job, report).await?;
    if !set_aside.is_empty() {
        collect_set_aside(member, set_aside, age_min, job, report).await?;
    }
    orphans.end();
    job.begin("collect guests");
    collect_guests(member, table, epoch, job, report).await
}

/// Frees what pages that are cleared referred to, as far as it is old enough: how many pages of the heap, and the first reason
/// why not all could be looked at.
pub(super) async fn collect_of(member: &Member, homes: &BTreeSet<TablePage>, job: &Job) -> (u64, Option<String>) {
    let mut report = CollectReport::default();
    job.begin("make room for damaged pages");
    let wanted = |_, claim: &Claim| homes.contains(&TablePage(claim.home));
    if let Err(error) = collect_extents(member, wanted, AGE_MIN, job, &mut report).await {
        report.fail(error.to_string());
    }
    (report.heap_pages_freed, report.reasons.into_iter().next())
}

/// Looks at the extents that are `wanted`. One that cannot be looked at is not in the way of the others.
async fn collect_extents(
    member: &Member,
    mut wanted: impl FnMut(HeapGroup, &Claim) -> bool,
    age_min: Duration,
    job: &Job,
    report: &mut CollectReport,
) -> Result<(), MemberError> {
    let (table, epoch) = member.voting().await?;
    let groups = table.layout().geometry.heap_groups;
    let page_bytes = table.layout().page_bytes() as u64;
    for group in (0..groups).map(HeapGroup) {
        member.counts(epoch)?;
        job.take(page_bytes).await;
        match table.extents(group).await {
            Ok(extents) => {
                report.extents += extents.len() as u64;
                for (tag, _) in extents.into_iter().filter(|(_, claim)| wanted(group, claim)) {
                    // A look at the allocation page and one at the home page.
                    job.take(2 * page_bytes).await;
                    match table.collect_extent(group, tag, member.orphans(), age_min).await {
                        Ok(collected) => report.count(collected, false),
                        Err(error) => report.fail(format!("an extent in heap group {}: {error}", group.0)),
                    }
                }
            }
            Err(error) if error.group_is_damaged() => report.fail(format!("member {}: {error}", member.index)),
            Err(error) => return Err(error.into()),
        }
        job.reached(f64::from(group.0 + 1) / f64::from(groups));
    }
    Ok(())
}

/// What was set aside when an allocation page was rebuilt.
async fn collect_set_aside(
    member: &Member,
    groups: BTreeSet<u32>,
    age_min: Duration,
    job: &Job,
    report: &mut CollectReport,
) -> Result<(), MemberError> {
    let (table, _) = member.voting().await?;
    // Those that are old enough now: the walk begins after that.
    let mut old = Vec::new();
    for group in groups.into_iter().map(HeapGroup) {
        old.push((group, table.set_aside(group, member.orphans(), age_min).await?));
    }
    if old.iter().all(|(_, tags)| tags.is_empty()) {
        return Ok(());
    }
    job.begin("collect what was set aside");
    let mut marks = mark(table, None, job).await?;
    table.settle_cleared(&mut marks).await?;
    if marks.unread > 0 {
        report.fail("pages or indices are damaged, so what was set aside may be in use: repair first".into());
        return Ok(());
    }
    for (group, tags) in old {
        let pages = table.free_set_aside(group, &tags, &marks).await?;
        report.extents_freed += pages as u64;
        report.heap_pages_freed += pages as u64;
    }
    Ok(())
}

async fn collect_guests(
    member: &Member,
    table: &Rc<Table>,
    epoch: u64,
    job: &Job,
    report: &mut CollectReport,
) -> Result<(), MemberError> {
    let pages = table.layout().geometry.table_pages;
    let page_bytes = table.layout().page_bytes() as u64;
    let mut next = 0;
    while next < pages {
        member.counts(epoch)?;
        job.take(u64::from(table.pages_per_read().min(pages - next)) * page_bytes).await;
        let images = table.read_pages(TablePage(next)).await?;
        next += images.len() as u32;
        for image in images {
            let Ok(image) = image else { continue };
            for (copy, home) in table.guests(&image)? {
                report.guests += 1;
                job.take(page_bytes).await;
                match table.collect_guest(image.page(), copy, home).await {
                    Ok(collected) => report.count(collected, true),
                    Err(error) => report.fail(format!("a guest in page {}: {error}", image.page().0)),
                }
            }
        }
        job.reached(f64::from(next) / f64::from(pages));
    }
    Ok(())
}
