//! The zones of a block device, as the kernel tells of them and as it changes them (linux/blkzoned.h).
//!
//! These calls block for as long as the device takes, which is milliseconds for a reset: off a reactor with them, by
//! [`crate::offload::compute`].

use std::io;

use super::{File, Kind};

/// A zone of a block device. Places and lengths are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelZone {
    /// Where it begins.
    pub start: u64,
    /// Where the next one begins, less its own begin.
    pub length: u64,
    /// What can be written of it.
    pub capacity: u64,
    /// Where it is written next; it means nothing in a zone that takes no writes at one place.
    pub write_pointer: u64,
    /// What it is for.
    pub kind: KernelZoneKind,
    /// What may be done with it.
    pub condition: KernelZoneCondition,
}

/// What a zone is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelZoneKind {
    /// It is written anywhere.
    Conventional,
    /// It must be written in order.
    Sequential,
    /// It should be.
    Preferred,
    /// What no kernel has told of yet.
    Other(u8),
}

/// What may be done with a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelZoneCondition {
    /// It has no write pointer.
    NoPointer,
    /// Nothing is written in it.
    Empty,
    /// A write has opened it.
    ImplicitlyOpen,
    /// It was opened by name.
    ExplicitlyOpen,
    /// It is written in part, and not open.
    Closed,
    /// It takes neither writes nor resets.
    ReadOnly,
    /// It takes no writes before its reset.
    Full,
    /// It takes nothing.
    Offline,
    /// What this program knows nothing of.
    Other(u8),
}

/// What the kernel can do with a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZoneCommand {
    /// It is empty.
    Reset,
    /// It is open.
    Open,
    /// It is open no more.
    Close,
    /// It is full.
    Finish,
}

impl KernelZoneKind {
    pub(crate) fn decode(number: u8) -> KernelZoneKind {
        match number {
            1 => KernelZoneKind::Conventional,
            2 => KernelZoneKind::Sequential,
            3 => KernelZoneKind::Preferred,
            other => KernelZoneKind::Other(other),
        }
    }
}

impl KernelZoneCondition {
    pub(crate) fn decode(number: u8) -> KernelZoneCondition {
        match number {
            0x0 => KernelZoneCondition::NoPointer,
            0x1 => KernelZoneCondition::Empty,
            0x2 => KernelZoneCondition::ImplicitlyOpen,
            0x3 => KernelZoneCondition::ExplicitlyOpen,
            0x4 => KernelZoneCondition::Closed,
            0xd => KernelZoneCondition::ReadOnly,
            0xe => KernelZoneCondition::Full,
            0xf => KernelZoneCondition::Offline,
            other => KernelZoneCondition::Other(other),
        }
    }
}

impl File {
    /// The zones from the one that has the byte `from` on, `max` of them or as many as one call tells of; none beyond the end.
    /// Blocks.
    ///
    /// # Errors
    /// The device has no zones, or what the system says; `Unsupported` in a simulation.
    pub fn zones(&self, from: u64, max: usize) -> io::Result<Vec<KernelZone>> {
        match &self.inner {
            Kind::Uring(file) => file.zones(from, max),
            Kind::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Changes the zone that begins at `start` and is `length` bytes long. Blocks.
    ///
    /// # Errors
    /// As [`File::zones`].
    pub fn change_zone(&self, start: u64, length: u64, command: ZoneCommand) -> io::Result<()> {
        match &self.inner {
            Kind::Uring(file) => file.change_zone(start, length, command),
            Kind::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}
