//! Zones over several paths: what is not sent again, and how it is seen what became of what was.

use std::ops::Range;

use device::{Durability, Error, Lba, Namespace, Zone, ZoneError, ZoneState, ZonedInfo};
use engine::{Buf, View};

use super::super::error::Fate;
use super::super::io::Change;
use super::Inner;
use super::path::Chosen;

impl Inner {
    pub(super) fn zoned(&self) -> Option<ZonedInfo> {
        self.paths.iter().find_map(|path| path.remote.zoned())
    }

    /// The blocks of a zone, or of all zones.
    pub(super) fn blocks_of_zone(&self, zone: Option<Lba>) -> Range<u64> {
        match (zone, self.zoned()) {
            (Some(zone), Some(zoned)) => zone.0..zone.0.saturating_add(zoned.zone_blocks),
            _ => 0..u64::MAX,
        }
    }

    pub(super) async fn zones(&self, from: Lba, max: usize) -> Result<Vec<Zone>, Error> {
        let mut zones = Vec::new();
        let report = async |chosen: &Chosen<'_>| match chosen.io().zones(from, max).await {
            Ok(found) => {
                zones = found;
                (Ok(()), ())
            }
            Err(failed) => (Err(failed), ()),
        };
        self.harmless(report).await.0?;
        Ok(zones)
    }

    /// An append goes to another path as long as it was surely not executed, and no further.
    pub(super) async fn append(&self, zone: Lba, data: View, durability: Durability) -> Result<Lba, Error> {
        let clock = self.clock();
        let passed = self.doubts.pass(self.blocks_of_zone(Some(zone)));
        let mut under_way = clock.within(passed).await.ok_or_else(|| self.held_back())?;
        loop {
            let chosen = self.path(&clock).await?;
            under_way.carried_by(chosen.association());
            // Dropped at the deadline, it holds changes of its zone back until it has ended.
            let sent = clock.within(chosen.io().append(zone, data.clone(), durability)).await;
            let failed = match sent.ok_or_else(|| self.in_doubt(&clock))? {
                Ok(lba) => {
                    under_way.answered();
                    return Ok(lba);
                }
                Err(failed) => failed,
            };
            let fate = clock.judge(&failed);
            chosen.note(fate);
            match fate {
                Fate::Ana(_) | Fate::NotExecuted => under_way.answered(),
                Fate::Answered | Fate::Interrupted | Fate::Faulty => {
                    under_way.answered();
                    return Err(failed.error);
                }
                Fate::InDoubt => return Err(failed.error),
            }
        }
    }

    /// Whether a write in a zone that was sent before, and is refused now, was executed: the write pointer is behind its blocks,
    /// and they hold its data.
    pub(super) async fn is_written(&self, change: &Change, refused: &Error) -> bool {
        let Change::Write { lba, data, .. } = change else { return false };
        if !matches!(refused, Error::Zone(ZoneError::InvalidWrite | ZoneError::Full)) {
            return false;
        }
        let Ok(zones) = self.zones(*lba, 1).await else { return false };
        let end = self.blocks(*lba, data.len()).end;
        let behind = |zone: &Zone| zone.state == ZoneState::Full || zone.write_pointer.0 >= end;
        if !zones.first().is_some_and(behind) {
            return false;
        }
        let (read, found) = self.read(*lba, Buf::with_len(data.len())).await;
        read.is_ok() && *found == **data
    }
}
