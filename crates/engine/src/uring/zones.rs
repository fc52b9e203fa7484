//! The zones of a block device of the kernel, by its ioctls.
//!
//! The numbers and structures are those of linux/blkzoned.h, which neither `libc` nor `rustix` has.

use std::io;
use std::os::fd::AsRawFd;

use super::file::File;
use crate::file::{KernelZone, KernelZoneCondition, KernelZoneKind, ZoneCommand};

/// Bytes of the kernel's sectors, whatever the device's blocks are.
const SECTOR: u64 = 512;
/// Zones that one call tells of. Chosen: a quarter of a megabyte of them.
const ZONES_MAX: usize = 4096;

/// Set by the kernel where it tells of capacities; without it a zone is written to its end.
const REPORTS_CAPACITY: u32 = 1;

const BLKREPORTZONE: libc::Ioctl = request(3, 130, size_of::<Head>());
const BLKRESETZONE: libc::Ioctl = request(1, 131, size_of::<Range>());
const BLKOPENZONE: libc::Ioctl = request(1, 134, size_of::<Range>());
const BLKCLOSEZONE: libc::Ioctl = request(1, 135, size_of::<Range>());
const BLKFINISHZONE: libc::Ioctl = request(1, 136, size_of::<Range>());

/// The number of a request: whether the kernel reads (1), writes (2) or both (3), its number among those of block devices, and
/// the bytes of its argument.
const fn request(direction: u32, number: u32, bytes: usize) -> libc::Ioctl {
    ((direction << 30) | ((bytes as u32) << 16) | (0x12 << 8) | number) as libc::Ioctl
}

/// `struct blk_zone_report`, before its zones.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Head {
    sector: u64,
    zones: u32,
    flags: u32,
}

/// `struct blk_zone`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Entry {
    start: u64,
    length: u64,
    write_pointer: u64,
    kind: u8,
    condition: u8,
    non_sequential: u8,
    reset: u8,
    reserved: [u8; 4],
    capacity: u64,
    reserved_too: [u8; 24],
}

/// `struct blk_zone_range`.
#[repr(C)]
struct Range {
    sector: u64,
    sectors: u64,
}

/// What goes to the kernel and comes back: the head, then the zones. Entries, so that it is aligned for both.
const HEAD_ENTRIES: usize = 1;
const _: () = assert!(size_of::<Entry>() == 64 && size_of::<Head>() == 16 && size_of::<Range>() == 16);

impl File {
    pub(crate) fn zones(&self, from: u64, max: usize) -> io::Result<Vec<KernelZone>> {
        if from >= self.size() || max == 0 {
            return Ok(Vec::new());
        }
        let max = max.min(ZONES_MAX);
        let mut area = vec![Entry::default(); HEAD_ENTRIES + max];
        let head = Head { sector: from / SECTOR, zones: max as u32, flags: 0 };
        // The head is at the end of the first entry, so that the zones are where the second one begins.
        let place = area.as_mut_ptr().cast::<u8>().wrapping_add(size_of::<Entry>() - size_of::<Head>()).cast::<Head>();
        // SAFETY: the place is within the first entry, and aligned as that is; nobody else has the area.
        unsafe { place.write(head) };
        // SAFETY: the descriptor is open; the kernel reads the head and writes it and at most `max` zones behind it, for which
        // there is room; they are plain numbers.
        if unsafe { libc::ioctl(self.descriptor().as_raw_fd(), BLKREPORTZONE, place) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as before.
        let head = unsafe { place.read() };
        let zones = area[HEAD_ENTRIES..].iter().take(head.zones as usize);
        Ok(zones.map(|zone| told(zone, head.flags & REPORTS_CAPACITY != 0)).collect())
    }

    pub(crate) fn change_zone(&self, start: u64, length: u64, command: ZoneCommand) -> io::Result<()> {
        let range = Range { sector: start / SECTOR, sectors: length / SECTOR };
        let request = match command {
            ZoneCommand::Reset => BLKRESETZONE,
            ZoneCommand::Open => BLKOPENZONE,
            ZoneCommand::Close => BLKCLOSEZONE,
            ZoneCommand::Finish => BLKFINISHZONE,
        };
        // SAFETY: the descriptor is open, and the kernel reads one range at the address.
        match unsafe { libc::ioctl(self.descriptor().as_raw_fd(), request, &raw const range) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn told(zone: &Entry, has_capacity: bool) -> KernelZone {
    KernelZone {
        start: zone.start * SECTOR,
        length: zone.length * SECTOR,
        capacity: if has_capacity { zone.capacity } else { zone.length } * SECTOR,
        // Of a zone without a pointer it is anything.
        write_pointer: zone.write_pointer.saturating_mul(SECTOR),
        kind: KernelZoneKind::decode(zone.kind),
        condition: KernelZoneCondition::decode(zone.condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As strace shows them of other programs.
    #[test]
    fn requests_have_the_kernels_numbers() {
        let numbers =
            [BLKREPORTZONE, BLKRESETZONE, BLKOPENZONE, BLKCLOSEZONE, BLKFINISHZONE].map(|number| number as u32);
        assert_eq!(numbers, [0xc010_1282, 0x4010_1283, 0x4010_1286, 0x4010_1287, 0x4010_1288]);
    }

    #[test]
    fn a_zone_is_told_in_bytes() {
        let zone =
            Entry { start: 16, length: 16, write_pointer: 18, kind: 2, condition: 4, capacity: 12, ..Entry::default() };
        let found = told(&zone, true);
        assert_eq!((found.start, found.length, found.capacity, found.write_pointer), (8192, 8192, 6144, 9216));
        assert_eq!((found.kind, found.condition), (KernelZoneKind::Sequential, KernelZoneCondition::Closed));
        assert_eq!(told(&zone, false).capacity, 8192, "an older kernel");
        assert_eq!(
            told(&Entry { write_pointer: u64::MAX, condition: 0xd, ..zone }, true).condition,
            KernelZoneCondition::ReadOnly
        );
    }
}
