//! `yagura flash info` of a device whose chunks are zones.

use device::{Lba, Namespace, ZoneState};
use flash::presets::Preset;
use flash::{SECTOR_BYTES, Zones};
use serde::Serialize;

use super::served::{On, manager_failure};
use crate::cli::FlashFileArgs;
use crate::exit::Failure;
use crate::output;
use crate::size::Size;

#[derive(Serialize)]
struct Info {
    preset: Option<&'static str>,
    nguid: String,
    bytes: u64,
    flash_bytes: u64,
    block_bytes: u32,
    units: u32,
    zones: usize,
    zone_bytes: u64,
    zone_capacity_bytes: u64,
    open_max: Option<u32>,
    empty: usize,
    closed: usize,
    full: usize,
    failed: usize,
    written_bytes: u64,
}

/// Shows what the device is, and how far its zones are written.
pub async fn info(args: &FlashFileArgs, on: On) -> Result<(), Failure> {
    let (preset, geometry) = (on.preset, on.device.geometry());
    let namespace = Zones::open(on.device).await.map_err(|error| manager_failure(&args.path, error.into()))?;
    let (info, zoned) = (namespace.info(), namespace.zoned());
    let zones = namespace.zones(Lba(0), usize::MAX).await.map_err(Failure::refused)?;
    let bytes = |blocks: u64| blocks * u64::from(info.block_size);
    let count = |is: fn(ZoneState) -> bool| zones.iter().filter(|zone| is(zone.state)).count();
    let written = zones.iter().map(|zone| zone.write_pointer.0 - zone.start.0);
    let report = Info {
        preset: preset.map(Preset::name),
        nguid: format!("{:032x}", u128::from_be_bytes(info.nguid)),
        bytes: info.bytes(),
        flash_bytes: u64::from(geometry.sectors_total()) * SECTOR_BYTES as u64,
        block_bytes: info.block_size,
        units: geometry.units(),
        zones: zones.len(),
        zone_bytes: bytes(zoned.map_or(0, |zoned| zoned.zone_blocks)),
        zone_capacity_bytes: bytes(zones.first().map_or(0, |zone| zone.capacity)),
        open_max: zoned.and_then(|zoned| zoned.open_max),
        empty: count(|state| state == ZoneState::Empty),
        closed: count(ZoneState::is_active),
        full: count(|state| state == ZoneState::Full),
        failed: count(|state| matches!(state, ZoneState::ReadOnly | ZoneState::Offline)),
        written_bytes: bytes(written.sum()),
    };
    output::report(args.common.json, &report, Info::describe)
}

impl Info {
    fn describe(&self) -> String {
        let Info { preset, zones, units, empty, closed, full, failed, .. } = self;
        let (flash, zone, capacity) = (Size(self.flash_bytes), Size(self.zone_bytes), Size(self.zone_capacity_bytes));
        let name = preset.unwrap_or("zones");
        let mut text = format!("{name}: {zones} zones of {zone}, of which {capacity} can be written, ");
        text += &format!("on {flash} of flash in {units} parallel units\n");
        text += &format!("blocks of {}; ", Size(self.block_bytes.into()));
        match self.open_max {
            Some(most) => text += &format!("{most} zones may be open or closed at a time\n"),
            None => text += "all zones may be open at a time\n",
        }
        text += &format!("{} written: {empty} zones empty, {closed} written in part, ", Size(self.written_bytes));
        text + &format!("{full} full, {failed} failed")
    }
}
