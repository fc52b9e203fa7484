//! `check`: whether the structures of a drive agree with one another.

use super::Drive;
use super::core::{Core, Inner};
use super::layout::{Layout, PAGE, PAGE_VALUES};
use super::map::NONE;
use super::recover;
use crate::Error;
use engine::task::LocalFuture;

/// What a check has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// What is wrong, in words; empty: nothing.
    pub faults: Vec<String>,
    /// Namespaces looked at.
    pub namespaces: u64,
    /// Extents in use.
    pub extents_used: u64,
    /// Extents that are free.
    pub extents_free: u64,
    /// Checksum pages on the medium, all of which were read and verified.
    pub pages: u64,
    /// Blocks (or parts of one, where checksums are over less) that were written.
    pub units_written: u64,
    /// Those of them that are marked uncorrectable.
    pub units_uncorrectable: u64,
}

/// Faults listed; behind them a report only says that there are more. Guessed.
const FAULTS_MAX: usize = 1000;

impl Report {
    fn fault(&mut self, text: String) {
        match self.faults.len() {
            FAULTS_MAX => self.faults.push("… and more".into()),
            len if len < FAULTS_MAX => self.faults.push(text),
            _ => {}
        }
    }
}

impl Drive {
    /// Checks every structure: superblocks, references against maps, free extents, checksum pages. `progress` is told of pages
    /// done and pages there are. (Blocks are the scrub's.)
    pub async fn check(&self, mut progress: impl FnMut(u64, u64)) -> Result<Report, Error> {
        self.check_telling(&mut progress).await
    }

    fn check_telling<'a>(&'a self, progress: &'a mut dyn FnMut(u64, u64)) -> LocalFuture<'a, Result<Report, Error>> {
        Box::pin(async move {
            let inner = &self.inner;
            let mut report = Report::default();
            self.check_superblocks(&mut report).await;
            let table = inner.with(|core| {
                core.check_references(&mut report, &inner.layout);
                core.pages.table().to_vec()
            });
            for (page, &entry) in table.iter().enumerate() {
                if entry != 0 {
                    report.pages += 1;
                    match inner.read_page(page as u32, entry).await {
                        Ok(_) => {}
                        // Written anew since the table was taken: the checkpoint that did it has verified it.
                        Err(_) if inner.with(|core| core.pages.table()[page] != entry) => {}
                        Err(error) => report.fault(format!("{error}; {}", inner.affected(page as u32))),
                    }
                }
                if inner.load_page(page as u32).await.is_ok() {
                    self.count_units(page as u32, &mut report);
                }
                progress(page as u64 + 1, table.len() as u64);
            }
            Ok(report)
        })
    }

    async fn check_superblocks(&self, report: &mut Report) {
        let inner = &self.inner;
        for at in inner.layout.superblocks() {
            let (result, page) = inner.file.read_at(at, engine::Buf::with_len(PAGE)).await;
            match (result, Layout::decode(&page)) {
                (Ok(()), Ok(Some(layout))) if layout == inner.layout => {}
                (Err(error), _) => report.fault(format!("the superblock at {at} can't be read: {error}")),
                _ => report.fault(format!("the superblock at {at} is damaged; the other one is good")),
            }
        }
        for slot in 0..2 {
            let (result, pages) = inner.file.read_at(inner.layout.slot_at(slot), engine::Buf::with_len(2 * PAGE)).await;
            let copies = recover::headers(&pages, &inner.layout.id);
            if result.is_err() || copies.iter().any(Option::is_none) {
                report.fault(format!("a header of checkpoint slot {slot} is damaged; its twin may be good"));
            }
        }
    }

    fn count_units(&self, page: u32, report: &mut Report) {
        let extent_units = u64::from(self.inner.layout.extent_units());
        self.inner.with(|core| {
            for slot in 0..PAGE_VALUES as u64 {
                let unit = u64::from(page) * PAGE_VALUES as u64 + slot;
                let references = core.state.references.get((unit / extent_units) as usize);
                if references.is_none_or(|&references| references == 0) {
                    continue;
                }
                match core.value_at(unit) {
                    Some(super::pages::UNWRITTEN) | None => {}
                    Some(super::pages::UNCORRECTABLE) => report.units_uncorrectable += 1,
                    Some(_) => report.units_written += 1,
                }
            }
        });
    }
}

impl Inner {
    /// What can't be read without a checksum page, in words: namespaces, and how many bytes of each.
    fn affected(&self, page: u32) -> String {
        let extent_units = u64::from(self.layout.extent_units());
        let first = u64::from(page) * PAGE_VALUES as u64;
        let end = first + PAGE_VALUES as u64;
        let said: Vec<String> = self.with(|core| {
            let units_of = |extent: u32| {
                let base = u64::from(extent) * extent_units;
                end.min(base + extent_units).saturating_sub(first.max(base))
            };
            let each = core.state.namespaces.values().map(|space| {
                let units: u64 = space.map.iter().map(|(_, extent)| units_of(extent)).sum();
                (space.name.clone(), units * u64::from(self.layout.unit))
            });
            each.filter(|(_, bytes)| *bytes > 0).map(|(name, bytes)| format!("{bytes} bytes of {name}")).collect()
        });
        match said.as_slice() {
            [] => "no namespace is affected".to_owned(),
            said => format!("unreadable: {}", said.join(", ")),
        }
    }
}

impl Core {
    /// Every extent is referred to as often as its count says, and is free exactly if nobody refers to it.
    fn check_references(&mut self, report: &mut Report, layout: &Layout) {
        let mut counted = vec![0_u32; self.state.references.len()];
        let mut entries = 0;
        for (number, space) in &self.state.namespaces {
            report.namespaces += 1;
            let end = space.bytes.div_ceil(u64::from(layout.extent_bytes));
            for (index, extent) in space.map.iter() {
                entries += 1;
                match counted.get_mut(extent as usize) {
                    Some(count) if extent != NONE => *count += 1,
                    _ => report.fault(format!("namespace {number} maps extent {extent}, which is not there")),
                }
                if u64::from(index) >= end {
                    report
                        .fault(format!("namespace {number} maps extent {extent} at {index}, beyond its end at {end}"));
                }
            }
        }
        if entries != self.state.entries {
            report.fault(format!("{entries} extents are mapped; the count says {}", self.state.entries));
        }
        for (extent, (&counted, &noted)) in counted.iter().zip(&self.state.references).enumerate() {
            if counted != noted {
                report.fault(format!("extent {extent} is referred to {counted} times; the count says {noted}"));
            }
            let free = self.state.is_free(extent as u32);
            if free && counted > 0 {
                report.fault(format!("extent {extent} is free and referred to {counted} times"));
            }
            report.extents_free += u64::from(free);
            report.extents_used += u64::from(counted > 0);
        }
        let known = report.extents_free + report.extents_used + self.state.unsettled();
        if self.admitted.commands == 0 && known != counted.len() as u64 {
            report.fault(format!("{} extents are neither free nor in use", counted.len() as u64 - known));
        }
    }
}
