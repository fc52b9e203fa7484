//! [`ZonedMemory`]: zones in this process's memory, the plainest that keep the rules of `zone`. It is for tests: of what uses
//! zones, and of the other kinds, which must come to the same.
//!
//! Invariants:
//! - A command does all of its work under one lock and never waits, so it is atomic towards every other command.
//! - To make room for a zone that is to be open the one that a write has opened first is closed; none that was opened by name.

use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::{Buf, View};

use crate::limits::{TRANSFER_BYTES_MAX, check_length, check_range};
use crate::{Durability, Error, Lba, Namespace, NamespaceInfo, Zone, ZoneAction, ZoneError, ZoneState, ZonedInfo};

const BLOCK: usize = 4096;

struct Content {
    state: ZoneState,
    /// Blocks that are written, from the first on.
    bytes: Vec<u8>,
    /// When a write has opened it, among all.
    opened: u64,
}

impl Content {
    fn written(&self) -> u64 {
        (self.bytes.len() / BLOCK) as u64
    }
}

/// See the module. Its blocks have 4 KiB.
pub struct ZonedMemory {
    info: NamespaceInfo,
    zoned: ZonedInfo,
    capacity: u64,
    zones: Mutex<Vec<Content>>,
}

impl ZonedMemory {
    /// So many empty zones, of which `capacity` blocks each can be written.
    pub fn new(zones: usize, capacity: u64, zoned: ZonedInfo, nguid: [u8; 16]) -> ZonedMemory {
        debug_assert!(zones > 0 && (1..=zoned.zone_blocks).contains(&capacity));
        let transfer_blocks_max = (TRANSFER_BYTES_MAX / BLOCK) as u32;
        let blocks = zones as u64 * zoned.zone_blocks;
        let info = NamespaceInfo::in_zones(BLOCK as u32, blocks, transfer_blocks_max, nguid);
        let info = NamespaceInfo { volatile_medium: true, ..info };
        let empty = || Content { state: ZoneState::Empty, bytes: Vec::new(), opened: 0 };
        ZonedMemory { info, zoned, capacity, zones: Mutex::new((0..zones).map(|_| empty()).collect()) }
    }

    /// Lets the zone of a block fail: it is read only or offline from now on.
    pub fn fail_zone(&self, lba: Lba, state: ZoneState) {
        if let Some(zone) = self.lock().get_mut((lba.0 / self.zoned.zone_blocks) as usize) {
            zone.state = state;
        }
    }

    /// A panic elsewhere leaves zones that are each valid.
    fn lock(&self) -> MutexGuard<'_, Vec<Content>> {
        self.zones.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for one more zone that is open, and for one more that is active unless it is.
    fn admit(&self, zones: &mut [Content], zone: usize) -> Result<(), ZoneError> {
        let is_full = |most: Option<u32>, count: usize| most.is_some_and(|most| count >= most as usize);
        let count = |zones: &[Content], of: fn(ZoneState) -> bool| zones.iter().filter(|zone| of(zone.state)).count();
        let state = zones[zone].state;
        if !state.is_active() && is_full(self.zoned.active_max, count(zones, ZoneState::is_active)) {
            return Err(ZoneError::TooManyActive);
        }
        if !state.is_open() && is_full(self.zoned.open_max, count(zones, ZoneState::is_open)) {
            let by_writes = zones.iter_mut().filter(|zone| zone.state == ZoneState::ImplicitlyOpen);
            by_writes.min_by_key(|zone| zone.opened).ok_or(ZoneError::TooManyOpen)?.state = ZoneState::Closed;
        }
        Ok(())
    }

    /// Writes at a place that must be the write pointer; where there is none, at the write pointer. The block written first.
    fn put(&self, zone: usize, at: Option<u64>, data: &[u8]) -> Result<u64, Error> {
        let mut zones = self.lock();
        let (state, written) = (zones[zone].state, zones[zone].written());
        let (at, blocks) = (at.unwrap_or(written), (data.len() / BLOCK) as u64);
        let refused = match state {
            ZoneState::Full => Some(ZoneError::Full),
            ZoneState::ReadOnly => Some(ZoneError::ReadOnly),
            ZoneState::Offline => Some(ZoneError::Offline),
            _ if at + blocks > self.capacity => Some(ZoneError::Boundary),
            _ if at != written => Some(ZoneError::InvalidWrite),
            _ => self.admit(&mut zones, zone).err(),
        };
        if let Some(error) = refused {
            return Err(Error::Zone(error));
        }
        let opened = 1 + zones.iter().map(|zone| zone.opened).max().unwrap_or_default();
        let found = &mut zones[zone];
        if !found.state.is_open() {
            (found.state, found.opened) = (ZoneState::ImplicitlyOpen, opened);
        }
        found.bytes.extend_from_slice(data);
        if found.written() == self.capacity {
            found.state = ZoneState::Full;
        }
        Ok(zone as u64 * self.zoned.zone_blocks + at)
    }

    fn change_one(&self, zones: &mut [Content], zone: usize, action: ZoneAction) -> Result<(), ZoneError> {
        let state = zones[zone].state;
        zones[zone].state = match action {
            ZoneAction::Open if state == ZoneState::Empty || state.is_active() => {
                self.admit(zones, zone)?;
                ZoneState::ExplicitlyOpen
            }
            ZoneAction::Close if state.is_active() => ZoneState::Closed,
            ZoneAction::Finish if state.is_active() || matches!(state, ZoneState::Empty | ZoneState::Full) => {
                ZoneState::Full
            }
            ZoneAction::Reset if state.is_active() || matches!(state, ZoneState::Empty | ZoneState::Full) => {
                zones[zone].bytes.clear();
                ZoneState::Empty
            }
            ZoneAction::Offline if matches!(state, ZoneState::ReadOnly | ZoneState::Offline) => ZoneState::Offline,
            _ => return Err(ZoneError::InvalidTransition),
        };
        Ok(())
    }
}

impl Namespace for ZonedMemory {
    crate::namespace_without!(verify, write_uncorrectable, hint_lifetime, writability, used_blocks, link, attributes);

    fn info(&self) -> NamespaceInfo {
        self.info.clone()
    }

    async fn read(&self, lba: Lba, mut buf: Buf) -> (Result<(), Error>, Buf) {
        if let Err(error) = check_length(&self.info, lba, buf.len(), self.info.transfer_blocks_max) {
            return (Err(error), buf);
        }
        let zones = self.lock();
        for (number, block) in buf.chunks_exact_mut(BLOCK).enumerate() {
            let (zone, at) = self.zoned.locate(Lba(lba.0 + number as u64));
            if zones[zone].state == ZoneState::Offline {
                return (Err(Error::Zone(ZoneError::Offline)), buf);
            }
            match zones[zone].bytes.chunks_exact(BLOCK).nth(at as usize) {
                Some(written) => block.copy_from_slice(written),
                None => block.fill(0),
            }
        }
        (Ok(()), buf)
    }

    async fn write(&self, lba: Lba, data: View, _durability: Durability) -> Result<(), Error> {
        check_length(&self.info, lba, data.len(), self.info.transfer_blocks_max)?;
        let (zone, at) = self.zoned.locate(lba);
        self.put(zone, Some(at), &data).map(|_| ())
    }

    async fn flush(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        let (result, found) = self.read(lba, Buf::with_len(expected.len())).await;
        result?;
        if *found == *expected { Ok(()) } else { Err(Error::CompareFailure) }
    }

    async fn compare_and_write(&self, _: Lba, _: View, _: View, _: Durability) -> Result<(), Error> {
        Err(Error::Unsupported("compare-and-write: what is written in a zone stays until the zone is reset"))
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, _durability: Durability) -> Result<(), Error> {
        check_range(&self.info, lba, blocks)?;
        let (zone, at) = self.zoned.locate(lba);
        match blocks {
            0 => Ok(()),
            blocks if at + blocks > self.capacity => Err(Error::Zone(ZoneError::Boundary)),
            blocks => self.put(zone, Some(at), &vec![0; blocks as usize * BLOCK]).map(|_| ()),
        }
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        check_range(&self.info, lba, blocks)?;
        let touched = self.zoned.touched(lba, blocks);
        let offline = self.lock()[touched].iter().any(|zone| zone.state == ZoneState::Offline);
        if offline { Err(Error::Zone(ZoneError::Offline)) } else { Ok(()) }
    }

    fn zoned(&self) -> Option<ZonedInfo> {
        Some(self.zoned)
    }

    async fn zones(&self, from: Lba, max: usize) -> Result<Vec<Zone>, Error> {
        check_range(&self.info, from, 1)?;
        let (first, _) = self.zoned.locate(from);
        let zones = self.lock();
        let told = |(number, zone): (usize, &Content)| {
            let start = number as u64 * self.zoned.zone_blocks;
            let write_pointer = Lba(start + zone.written());
            Zone { start: Lba(start), capacity: self.capacity, write_pointer, state: zone.state }
        };
        Ok(zones.iter().enumerate().skip(first).take(max).map(told).collect())
    }

    async fn change_zone(&self, zone: Option<Lba>, action: ZoneAction) -> Result<(), Error> {
        let one = zone.map(|zone| self.zoned.begins(&self.info, zone)).transpose()?;
        let mut zones = self.lock();
        if let Some(zone) = one {
            return self.change_one(&mut zones, zone, action).map_err(Error::Zone);
        }
        if action == ZoneAction::Open {
            self.zoned.check_open_all(zones.iter().map(|zone| zone.state)).map_err(Error::Zone)?;
        }
        // Those that are closed only to make room are none of them.
        let concerned: Vec<usize> = (0..zones.len()).filter(|&zone| action.concerns(zones[zone].state)).collect();
        concerned.into_iter().try_for_each(|zone| self.change_one(&mut zones, zone, action)).map_err(Error::Zone)
    }

    async fn append(&self, zone: Lba, data: View, _durability: Durability) -> Result<Lba, Error> {
        let zone = self.zoned.begins(&self.info, zone)?;
        let start = Lba(zone as u64 * self.zoned.zone_blocks);
        check_length(&self.info, start, data.len(), self.zoned.append_blocks_max)?;
        self.put(zone, None, &data).map(Lba)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use engine::{Reactor, ReactorConfig};

    use super::*;
    use crate::conformance::zones::check_all;

    #[test]
    fn zones_in_memory_keep_the_rules() {
        for (open_max, active_max) in [(None, None), (Some(2), Some(3)), (Some(3), Some(3)), (Some(1), None)] {
            let zoned = ZonedInfo { zone_blocks: 32, open_max, active_max, append_blocks_max: 4 };
            Reactor::run(ReactorConfig::default(), async move {
                let namespace = Rc::new(ZonedMemory::new(12, 24, zoned, [5; 16]));
                let failing = namespace.clone();
                check_all(namespace, 7, Some(&move |zone, state| failing.fail_zone(zone, state))).await;
            })
            .expect("a reactor");
        }
    }
}
