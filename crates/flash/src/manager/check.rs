//! The check of a media manager: the map against the tags on flash, and counts against the map.

use std::collections::BTreeMap;

use super::core::Core;
use super::tag::Logical;
use crate::address::Sector;

/// Faults that are told of one by one. Chosen: what somebody reads.
const FAULTS_MAX: usize = 100;

/// What a check has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// Sectors of the namespace that were looked at.
    pub sectors: u64,
    /// Pages of the map that were looked at.
    pub pages: u64,
    /// What is wrong, the first hundred of it.
    pub faults: Vec<String>,
}

impl Core {
    /// Looks at everything that the map names. To be called while nobody writes.
    pub async fn check_log(&self) -> CheckReport {
        let mut report = CheckReport::default();
        let named: Vec<(Logical, Sector)> = {
            let state = self.state.borrow();
            let data = state.map.places().map(|(logical, sector)| (Logical::Data(logical), sector));
            data.chain(state.map.page_places().map(|(page, sector)| (Logical::Page(page), sector))).collect()
        };
        let mut by_sector = BTreeMap::new();
        for (logical, sector) in named {
            match logical {
                Logical::Page(_) => report.pages += 1,
                _ => report.sectors += 1,
            }
            if let Some(other) = by_sector.insert(sector, logical) {
                report.add(format!("sector {sector} is named for {logical:?} and for {other:?}"));
            }
            match self.read_tagged(sector).await {
                Some((tag, _)) if tag.logical == logical => {}
                Some((tag, _)) => {
                    report.add(format!("{logical:?} should be in sector {sector}, where {:?} is", tag.logical))
                }
                None => {
                    report.add(format!("{logical:?} should be in sector {sector}, which can't be read or has no tag"))
                }
            }
        }
        self.recount(&by_sector, &mut report);
        report
    }

    fn recount(&self, named: &BTreeMap<Sector, Logical>, report: &mut CheckReport) {
        let state = self.state.borrow();
        let mut counts = vec![0u16; state.lines.valid_counts().len()];
        for &sector in named.keys().chain(&state.held) {
            counts[self.codec.unit_index(sector)] += 1;
        }
        for (unit, (counted, held)) in counts.iter().zip(state.lines.valid_counts()).enumerate() {
            if counted != held {
                report.add(format!("unit {unit} has {counted} valid sectors, and is taken for one with {held}"));
            }
        }
        for (number, line) in state.lines.all.iter().enumerate() {
            let first = |slot: &super::lines::Slot| self.codec.geometry.sector(slot.chunk, 0).0 / self.codec.unit;
            let units = line.slots.iter().flat_map(|slot| first(slot)..first(slot) + self.codec.units_per_chunk());
            let counted: u32 = units.map(|unit| u32::from(counts[unit as usize])).sum();
            if counted != line.valid {
                report.add(format!(
                    "line {number} has {counted} valid sectors, and is taken for one with {}",
                    line.valid
                ));
            }
        }
    }
}

impl CheckReport {
    fn add(&mut self, fault: String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        }
    }
}
