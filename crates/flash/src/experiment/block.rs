//! The plain block device of Olive: a driver that stripes over eMMCs, each of which hides its flash behind a translation of its
//! own.
//!
//! By the article the tables of translation and of bad blocks are inside each eMMC, and the driver interleaves by 2 MiB. Inside
//! each one here is our own media manager over one parallel unit, behind the same controller, ports and buses: so both sides
//! have the same flash and the same collection, and what differs is who sees the parallel units. What its firmware takes, and
//! what a map costs that does not fit its memory, is left out: that is to its favour.

use std::rc::Rc;

use device::{Durability, Error, Lba, Namespace};
use engine::task::LocalFuture;
use engine::{Buf, View};

use super::ExperimentError;
use crate::geometry::{Geometry, SECTOR_BYTES};
use crate::manager::{FormatOptions, Manager, ManagerOptions};
use crate::namespace::FlashNamespace;
use crate::nand::{Lanes, Nand, NandConfig, Timing};

/// Sectors that go to one eMMC before the next one: 2 MiB (section 4.2 of the article, the driver's default).
pub const STRIPE_SECTORS: u64 = 512;
/// Out-of-band bytes of a sector inside an eMMC. Chosen: as the model of a TLC drive has; hosts see none.
const OOB_BYTES: u32 = 64;
/// Write units of an eMMC's cache, where it has one: 512 KiB. Guessed: parts of that time report from 64 KiB to some MiB
/// (EXT_CSD, CACHE_SIZE).
const CACHE_UNITS: u32 = 32;

/// Whether an eMMC answers a write before it is on flash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// It does not: what it is after power on (JESD84-B451, CACHE_CTRL).
    Off,
    /// It does.
    On,
}

/// See the module.
pub struct BlockDevice {
    lanes: Lanes,
    disks: Vec<FlashNamespace>,
    durability: Durability,
    blocks: u64,
}

/// A part of an access: which eMMC, where there, and which sectors of the access.
struct Part {
    disk: usize,
    lba: u64,
    first: usize,
    count: usize,
}

impl BlockDevice {
    /// Of the parallel units of a model, each one behind its own translation.
    ///
    /// # Errors
    /// A device that can't be used.
    pub async fn new(config: &NandConfig, cache: Cache) -> Result<BlockDevice, ExperimentError> {
        let Timing { read, program, erase, .. } = config.timing;
        let inside = Timing { read, program, erase, ..Timing::default() };
        let outside = Timing { read: Default::default(), program: Default::default(), ..config.timing.clone() };
        let geometry = Geometry { groups: 1, units_per_group: 1, oob_bytes: OOB_BYTES, ..config.geometry };
        let mut disks = Vec::new();
        for unit in 0..config.geometry.units() {
            let seed = config.seed + 1 + u64::from(unit);
            let nand = Nand::in_memory(NandConfig { geometry, timing: inside.clone(), seed, ..config.clone() })?;
            Manager::format(nand.power_on(), &FormatOptions::default()).await?;
            let options = ManagerOptions { buffer_units: CACHE_UNITS, ..ManagerOptions::default() };
            disks.push(FlashNamespace::new(Manager::open(nand.power_on(), options).await?));
        }
        let each = disks.iter().map(|disk| disk.info().blocks).min().unwrap_or(0) / STRIPE_SECTORS * STRIPE_SECTORS;
        let durability = if cache == Cache::On { Durability::Cached } else { Durability::Stable };
        let blocks = each * disks.len() as u64;
        Ok(BlockDevice { lanes: Lanes::new(outside, config.geometry), disks, durability, blocks })
    }

    /// Sectors that it has.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    fn parts(&self, lba: u64, sectors: usize) -> Vec<Part> {
        let (mut parts, mut first) = (Vec::new(), 0);
        while first < sectors {
            let at = lba + first as u64;
            let (stripe, within) = (at / STRIPE_SECTORS, at % STRIPE_SECTORS);
            let count = (sectors - first).min((STRIPE_SECTORS - within) as usize);
            let disks = self.disks.len() as u64;
            let lba = stripe / disks * STRIPE_SECTORS + within;
            parts.push(Part { disk: (stripe % disks) as usize, lba, first, count });
            first += count;
        }
        parts
    }

    /// Reads sectors.
    ///
    /// # Errors
    /// The device has failed.
    pub async fn read(&self, lba: u64, sectors: usize) -> Result<(), Error> {
        let reads = self.parts(lba, sectors).into_iter().map(|part| -> LocalFuture<'_, Result<(), Error>> {
            Box::pin(async move {
                let (unit, bytes) = (part.disk as u32, part.count * SECTOR_BYTES);
                self.lanes.to_unit(unit, 0).await;
                self.disks[part.disk].read(Lba(part.lba), Buf::with_len(bytes)).await.0?;
                self.lanes.to_host(unit, bytes).await;
                Ok(())
            })
        });
        crate::manager::join_all(reads.collect()).await.into_iter().collect()
    }

    /// Writes sectors.
    ///
    /// # Errors
    /// The device has failed.
    pub async fn write(&self, lba: u64, data: &View) -> Result<(), Error> {
        let parts = self.parts(lba, data.len() / SECTOR_BYTES);
        let writes = parts.into_iter().map(|part| -> LocalFuture<'_, Result<(), Error>> {
            Box::pin(async move {
                let (from, bytes) = (part.first * SECTOR_BYTES, part.count * SECTOR_BYTES);
                self.lanes.to_unit(part.disk as u32, bytes).await;
                self.disks[part.disk].write(Lba(part.lba), data.slice(from..from + bytes), self.durability).await
            })
        });
        crate::manager::join_all(writes.collect()).await.into_iter().collect()
    }

    /// Makes stable what was written.
    ///
    /// # Errors
    /// The device has failed.
    pub async fn flush(&self) -> Result<(), Error> {
        for disk in &self.disks {
            disk.flush().await?;
        }
        Ok(())
    }
}

/// The two ways to have one device.
pub enum Store {
    /// The host sees the parallel units, and manages them.
    Managed(Rc<FlashNamespace>),
    /// It does not.
    Plain(Box<BlockDevice>),
}

impl Store {
    /// A fresh device under our media manager.
    ///
    /// # Errors
    /// A device that can't be used.
    pub async fn managed(config: NandConfig, manager: ManagerOptions) -> Result<Store, ExperimentError> {
        let nand = Nand::in_memory(config)?;
        Manager::format(nand.power_on(), &FormatOptions::default()).await?;
        Ok(Store::Managed(Rc::new(FlashNamespace::new(Manager::open(nand.power_on(), manager).await?))))
    }

    /// Sectors that it has.
    pub fn blocks(&self) -> u64 {
        match self {
            Store::Managed(namespace) => namespace.info().blocks,
            Store::Plain(device) => device.blocks(),
        }
    }

    /// Reads sectors.
    ///
    /// # Errors
    /// The device has failed.
    pub async fn read(&self, lba: u64, sectors: usize) -> Result<(), Error> {
        match self {
            Store::Managed(namespace) => namespace.read(Lba(lba), Buf::with_len(sectors * SECTOR_BYTES)).await.0,
            Store::Plain(device) => device.read(lba, sectors).await,
        }
    }

    /// Writes sectors.
    ///
    /// # Errors
    /// The device has failed.
    pub async fn write(&self, lba: u64, data: &View) -> Result<(), Error> {
        match self {
            Store::Managed(namespace) => namespace.write(Lba(lba), data.clone(), Durability::Cached).await,
            Store::Plain(device) => device.write(lba, data).await,
        }
    }

    /// Makes stable what was written.
    ///
    /// # Errors
    /// The device has failed.
    pub async fn flush(&self) -> Result<(), Error> {
        match self {
            Store::Managed(namespace) => namespace.flush().await,
            Store::Plain(device) => device.flush().await,
        }
    }
}
