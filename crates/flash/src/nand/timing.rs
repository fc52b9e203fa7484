//! When a command ends: it passes controller, port, bus and array one after the other, each first come first served.
//!
//! A part of the device that takes no time (zero) is passed at once, without a wait.

use std::cell::Cell;
use std::time::Duration;

use engine::time::{self, Instant};

use crate::geometry::Geometry;

/// How a port moves data between the device and the memory of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortKind {
    /// The processor's caches see it.
    Coherent,
    /// The caches have to be written back, or thrown away, around each transfer.
    Plain,
}

/// A port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    /// What kind it is.
    pub kind: PortKind,
    /// Bytes a second; 0: no limit.
    pub bytes_per_second: u64,
    /// What each transfer costs beside its bytes: the upkeep of the caches.
    pub overhead: Duration,
}

/// Times of a device; the default takes none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Timing {
    /// What the controller takes for each command.
    pub controller: Duration,
    /// Ports; groups are on them in turn. Empty: transfers take no time.
    pub ports: Vec<Port>,
    /// Bytes a second on the bus of a group; 0: no limit.
    pub bus_bytes_per_second: u64,
    /// What the array takes to read a write unit's worth or less.
    pub read: Duration,
    /// What the array takes to program a write unit.
    pub program: Duration,
    /// What the array takes to erase a chunk.
    pub erase: Duration,
}

/// One part that works on one command at a time.
#[derive(Debug, Default)]
struct Lane {
    free: Cell<Option<Instant>>,
}

impl Lane {
    async fn pass(&self, takes: Duration) {
        if takes.is_zero() {
            return;
        }
        let now = time::now();
        let begin = self.free.get().map_or(now, |free| free.max(now));
        self.free.set(Some(begin + takes));
        time::sleep_until(begin + takes).await;
    }
}

/// The parts of one device.
#[derive(Debug)]
pub(crate) struct Lanes {
    timing: Timing,
    geometry: Geometry,
    controller: Lane,
    ports: Vec<Lane>,
    buses: Vec<Lane>,
    arrays: Vec<Lane>,
}

fn transfer(bytes: usize, bytes_per_second: u64) -> Duration {
    if bytes_per_second == 0 {
        return Duration::ZERO;
    }
    Duration::from_nanos((bytes as u128 * 1_000_000_000 / u128::from(bytes_per_second)) as u64)
}

fn lanes(count: u32) -> Vec<Lane> {
    (0..count).map(|_| Lane::default()).collect()
}

impl Lanes {
    pub(crate) fn new(timing: Timing, geometry: Geometry) -> Lanes {
        Lanes {
            controller: Lane::default(),
            ports: lanes(timing.ports.len() as u32),
            buses: lanes(geometry.groups),
            arrays: lanes(geometry.units()),
            timing,
            geometry,
        }
    }

    /// The way of a command and of `bytes` between the host and the registers of a parallel unit.
    pub(crate) async fn to_unit(&self, unit: u32, bytes: usize) {
        self.controller.pass(self.timing.controller).await;
        self.through_port(unit, bytes).await;
        self.through_bus(unit, bytes).await;
    }

    /// The way back.
    pub(crate) async fn to_host(&self, unit: u32, bytes: usize) {
        self.through_bus(unit, bytes).await;
        self.through_port(unit, bytes).await;
    }

    async fn through_port(&self, unit: u32, bytes: usize) {
        if self.ports.is_empty() || bytes == 0 {
            return;
        }
        let index = self.geometry.group_of(unit) as usize % self.ports.len();
        let port = self.timing.ports[index];
        self.ports[index].pass(port.overhead + transfer(bytes, port.bytes_per_second)).await;
    }

    async fn through_bus(&self, unit: u32, bytes: usize) {
        let bus = &self.buses[self.geometry.group_of(unit) as usize];
        bus.pass(transfer(bytes, self.timing.bus_bytes_per_second)).await;
    }

    pub(super) async fn read(&self, unit: u32, units: u32) {
        self.arrays[unit as usize].pass(self.timing.read * units).await;
    }

    /// `share`: the part of it that passes, for one that is cut short.
    pub(super) async fn program(&self, unit: u32, units: u32, share: u32) {
        self.arrays[unit as usize].pass(self.timing.program * units / share).await;
    }

    pub(super) async fn erase(&self, unit: u32, share: u32) {
        self.arrays[unit as usize].pass(self.timing.erase / share).await;
    }
}
