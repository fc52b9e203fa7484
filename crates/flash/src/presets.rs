//! Models that are known by name. Each number says where it is from; none was chosen by what an experiment gave.

use std::time::Duration;

use crate::geometry::Geometry;
use crate::nand::{Chances, NandConfig, Port, PortKind, Timing};

/// A model that is known by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preset {
    /// For tests: 8 MiB on four parallel units, without timing.
    Small,
    /// A TLC drive of 64 GiB on 32 parallel units.
    Tlc,
    /// Olive: four buses with one eMMC each, four coherent ports.
    Olive,
    /// For hosts that manage zones: 768 MiB on eight parallel units in chunks that take single sectors, without timing.
    Zoned,
}

impl Preset {
    /// All of them.
    pub const ALL: [Preset; 4] = [Preset::Small, Preset::Tlc, Preset::Olive, Preset::Zoned];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Small => "small",
            Preset::Tlc => "tlc",
            Preset::Olive => "olive",
            Preset::Zoned => "zoned",
        }
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Preset> {
        Preset::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// The model; `seed` decides what happens by chance.
    pub fn config(self, seed: u64) -> NandConfig {
        match self {
            Preset::Small => small(seed),
            Preset::Tlc => tlc(seed),
            Preset::Olive => olive(seed),
            Preset::Zoned => zoned(seed),
        }
    }
}

fn small(seed: u64) -> NandConfig {
    // Chosen: as small as a media manager can work on, so that a test sees lines turn over many times.
    let geometry =
        Geometry { groups: 2, units_per_group: 2, chunks: 32, sectors: 16, write_unit: 4, oob_bytes: 32, open_max: 0 };
    NandConfig::ideal(geometry, seed)
}

fn tlc(seed: u64) -> NandConfig {
    let geometry = Geometry {
        // Chosen: a usual controller has 8 channels, with 4 dies on each at this capacity.
        groups: 8,
        units_per_group: 4,
        // Chosen, for 64 GiB in all with chunks as below.
        chunks: 170,
        // 96 layers of four word lines, three pages of 16 KiB each on one plane of two, rounded to whole write units: 3072 sectors.
        sectors: 3072,
        // Two planes of three pages of 16 KiB, which a TLC word line is programmed by in one pass (Open-Channel 2.0, ws_min of 24).
        write_unit: 24,
        // Open-Channel 2.0 drives of this kind report 64 bytes a sector of 4 KiB; the error correction's part is not shown to
        // hosts.
        oob_bytes: 64,
        open_max: 0,
    };
    let timing = Timing {
        // Guessed: firmware on a path without translation.
        controller: Duration::from_micros(1),
        // PCIe 3.0 with four lanes.
        ports: vec![Port { kind: PortKind::Coherent, bytes_per_second: 3_500_000_000, overhead: Duration::ZERO }],
        // ONFI 4.0: NV-DDR3 at 800 MT/s on eight bits.
        bus_bytes_per_second: 800_000_000,
        // 3D TLC of 96 layers, as published at ISSCC (2018 to 2019): 60 us to read a page, 1.8 ms for a word line's three pages.
        read: Duration::from_micros(60),
        program: Duration::from_micros(1800),
        // The same, and MQSim's default for TLC: 3.8 to 5 ms.
        erase: Duration::from_micros(5000),
    };
    // 3,000 cycles: what data sheets of client TLC promise. 0.2 % bad from the factory: within the 2 % that ONFI allows.
    NandConfig { geometry, timing, endurance: 3000, factory_bad_ppm: 2000, chances: Chances::default(), seed }
}

fn olive(seed: u64) -> NandConfig {
    // Source: the article on Open-Channel SSDs on Olive (row S3), sections 4.2 and 4.3, figure 1.
    let geometry = Geometry {
        // Section 4.3: four buses with one eMMC each.
        groups: 4,
        // An eMMC executes one command at a time before version 5.1's queue.
        units_per_group: 1,
        // Chosen: a part of the eMMC, which says nothing of its inside, large enough for the experiments.
        chunks: 128,
        // 4 MiB: the erase group of eMMC of that time (JEDEC JESD84-B45, HC_ERASE_GRP_SIZE counted in 512 KiB).
        sectors: 1024,
        // A page of 16 KiB, of MLC of that time.
        write_unit: 4,
        // An eMMC has no area that hosts see.
        oob_bytes: 0,
        open_max: 0,
    };
    // Zynq-7000's technical reference manual (UG585, 22.3): ports of 64 bits at 150 MHz give 1,200 MB/s in one direction. A
    // coherent port (ACP) looks into the caches by itself.
    let coherent = Port { kind: PortKind::Coherent, bytes_per_second: 1_200_000_000, overhead: Duration::ZERO };
    let timing = Timing {
        // Guessed: the driver's part of a command, interrupt included, on a Cortex-A9 at 667 MHz.
        controller: Duration::from_micros(20),
        ports: vec![coherent; 4],
        // JESD84-B45, high speed: eight bits at 52 MHz.
        bus_bytes_per_second: 52_000_000,
        // MLC of that time, from data sheets: 75 us to read a page, 1.3 ms to program one, 3.8 ms to erase a block.
        read: Duration::from_micros(75),
        program: Duration::from_micros(1300),
        erase: Duration::from_micros(3800),
    };
    NandConfig { geometry, timing, endurance: 3000, factory_bad_ppm: 0, chances: Chances::default(), seed }
}

fn zoned(seed: u64) -> NandConfig {
    let geometry = Geometry {
        groups: 4,
        units_per_group: 2,
        // Chosen: 128 zones in all. btrfs keeps its superblocks in two of the first, and needs five active ones at the least
        // (fs/btrfs/zoned.c); fio and tests fill the rest in seconds.
        chunks: 16,
        // 6 MiB in zones of 8 MiB. Linux takes zones whose size is a power of two alone (drivers/nvme/host/zns.c), and btrfs none
        // below 4 MiB; a capacity that is less, as drives on TLC have, is what users of zones get wrong first.
        sectors: 1536,
        // Linux before 6.15 makes no block devices with blocks above a page: what a drive gathers for a word line is behind its
        // buffer.
        write_unit: 1,
        oob_bytes: 0,
        // As the data sheet of Western Digital's Ultrastar DC ZN540 has it: 14 zones open and active.
        open_max: 14,
    };
    NandConfig::ideal(geometry, seed)
}

/// Olive with its transfers through plain ports, which the caches have to be kept up for (section 4.3): four of them for the
/// four buses; the fifth port, the one coherent one, has no bus.
pub fn olive_on_plain_ports(seed: u64) -> NandConfig {
    let mut config = olive(seed);
    let plain = Port {
        kind: PortKind::Plain,
        // As wide as the coherent ones, 1,200 MB/s, and beside that the upkeep of the caches, line by line of 32 bytes. Guessed:
        // a line takes 50 cycles of 667 MHz over both levels, 427 MB/s; one behind the other that makes 315 MB/s.
        bytes_per_second: 315_000_000,
        overhead: Duration::ZERO,
    };
    config.timing.ports = [vec![plain; 4], config.timing.ports[..1].to_vec()].concat();
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_works_and_is_found_by_its_name() {
        for preset in Preset::ALL {
            assert_eq!(Preset::named(preset.name()), Some(preset));
            assert_eq!(preset.config(1).geometry.checked(), Ok(preset.config(1).geometry));
        }
        assert_eq!(Preset::named("none"), None);
    }
}
