//! What one seed does: sizes of the system, the load, and which faults there are.
//!
//! Bounds that keep a run honest: what destroys data that was acknowledged (torn pages at a power failure, corruption, disk
//! errors that latch a drive, a medium that is put back) happens to one member, the *victim*, and only where each key has at least
//! three replicas. The rules promise nothing beyond a minority. Everything else may happen to any node, to all at once.
//! A read that fails, or gives other bytes, once, may happen on any member: that is no loss.

use std::time::Duration;

use engine::rng::SplitMix;
use engine::sim::{DiskConfig, SimConfig};

/// A generator of its own, so that the scenario does not depend on how often the code under test draws.
pub struct Rng(SplitMix);

impl Rng {
    /// The stream number `stream` of `seed`.
    pub fn new(seed: u64, stream: u64) -> Rng {
        let mut rng = Rng(SplitMix(seed ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93)));
        rng.next();
        rng
    }
    /// 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0.draw()
    }
    /// A number from `low` to `high`, both included.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }
    /// True in one case of `of`.
    pub fn one_in(&mut self, of: u64) -> bool {
        self.next().is_multiple_of(of)
    }
    /// A duration in milliseconds.
    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.within(low * 1000, high * 1000))
    }
}

/// The kinds of faults that a seed has.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    /// Connections are reset.
    pub resets: bool,
    /// Links grow slow.
    pub slow_links: bool,
    /// Disks are slow: commands outlive the connection they came over, and land late.
    pub slow_disks: bool,
    /// Hosts are cut off from storage nodes.
    pub partitions: bool,
    /// Only what goes one way is held.
    pub one_way: bool,
    /// Links come and go many times in a row.
    pub flapping: bool,
    /// Calendar clocks of hosts jump.
    pub clock_jumps: bool,
    /// Monotonic clocks drift, and so every deadline and lease.
    pub drift: bool,
    /// Hosts crash, and begin anew with nothing.
    pub host_crashes: bool,
    /// Storage nodes lose power.
    pub node_crashes: bool,
    /// Hosts or storage nodes stand still, some beyond every deadline.
    pub pauses: bool,
    /// Hosts are suspended: their monotonic clocks stand still, too.
    pub suspensions: bool,
    /// Any disk gives other bytes than are there, once, or fails to read.
    pub misreads: bool,
    /// The victim's writes tear when its power fails.
    pub torn: bool,
    /// The victim's disk fails.
    pub disk_errors: bool,
    /// The victim's disk forgets.
    pub corruption: bool,
    /// The victim's disk is put back to what it was, once that is known by the pool's map.
    pub rollbacks: bool,
    /// The only voter of two members dies for good.
    pub loss: bool,
}

impl Faults {
    /// Those of any scenario; `late` are drawn apart, so that what else a seed does is as before these came.
    fn drawn(rng: &mut Rng, late: &mut Rng) -> Faults {
        Faults {
            resets: rng.one_in(2),
            slow_links: rng.one_in(3),
            partitions: rng.one_in(2),
            host_crashes: rng.one_in(2),
            node_crashes: rng.one_in(2),
            pauses: rng.one_in(3),
            torn: rng.one_in(3),
            disk_errors: rng.one_in(5),
            corruption: rng.one_in(5),
            slow_disks: rng.one_in(3),
            one_way: rng.one_in(3),
            flapping: rng.one_in(4),
            clock_jumps: rng.one_in(3),
            drift: rng.one_in(2),
            suspensions: late.one_in(4),
            misreads: late.one_in(4),
            ..Faults::default()
        }
    }
}

/// Everything about one run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed it follows from.
    pub seed: u64,
    /// Storage nodes whose members make up the first pool.
    pub storage: usize,
    /// Storage nodes that may join it.
    pub spares: usize,
    /// Operators who change the pool while it is in use: the first begins changes, all carry them out.
    pub operators: usize,
    /// How long a host goes by a map before it asks for a newer one.
    pub lease: Duration,
    /// Operations that depend on what is there, numbers, appended pieces, values that end.
    pub conditional: bool,
    /// A host scrubs and collects in the background.
    pub scrubber: bool,
    /// Members that hold each key.
    pub replicas: u8,
    /// Hosts.
    pub hosts: usize,
    /// Clients on each host.
    pub clients: usize,
    /// Operations of each client.
    pub operations: u64,
    /// Keys.
    pub keys: usize,
    /// Home pages that the keys share.
    pub pages: usize,
    /// Bytes of each member.
    pub member_bytes: u64,
    /// Longest values: 0 small, 1 page-filling, 2 in the heap, 3 in several extents, 4 as 3 and most of them long.
    pub sizes: u64,
    /// Longest pause of a client between operations.
    pub think: Duration,
    /// The faults.
    pub faults: Faults,
    /// A host repairs in the background.
    pub repairer: bool,
    /// The load goes on for hours.
    pub drawn_out: bool,
    /// Clients come through gateways with little room, and want much of it ([`super::hungry`]).
    pub hungry: bool,
}

/// From this seed on clients are hungry. Apart from the others, so that these are as before there were such.
pub const HUNGRY: u64 = 1 << 60;

/// Delay of a slow disk's commands.
const SLOW_DISK: std::ops::Range<Duration> = Duration::from_micros(200)..Duration::from_millis(25);

/// Ten times what a bad crystal does, a tenth of what the store allows for.
const MONOTONIC_DRIFT_PPM_MAX: u32 = 10_000;

/// What a calendar's rate is wrong by.
const CLOCK_DRIFT_PPM_MAX: u32 = 100;
/// A run that takes longer, by its own time, has come to a stop.
const VIRTUAL_TIME_MAX: Duration = Duration::from_secs(5 * 3600);
/// The longest jump of a calendar clock. Nothing but the end of values counts on calendars.
pub const CLOCK_JUMP_MAX: Duration = Duration::from_secs(4 * 3600);

/// The member to which the worst happens.
pub const VICTIM: usize = 0;

impl Scenario {
    /// The scenario of a seed.
    pub fn new(seed: u64) -> Scenario {
        let (rng, late) = (&mut Rng::new(seed, 1), &mut Rng::new(seed, 3));
        let storage = [3, 3, 3, 4, 5][rng.within(0, 4) as usize];
        let replicas = match rng.within(0, 9) {
            0 => 1,
            1 => 2,
            2 => storage as u8,
            _ => 3,
        };
        let mut faults = Faults::drawn(rng, late);
        let (storage, replicas) =
            if rng.one_in(8) { (7, [3, 5, 7][rng.within(0, 2) as usize]) } else { (storage, replicas) };
        if replicas < 3 {
            (faults.torn, faults.disk_errors, faults.corruption) = (false, false, false);
        }
        let replicas = if storage > 4 && late.one_in(4) { 4 } else { replicas };
        let (changing, full) = (rng.one_in(2), rng.one_in(8));
        let sizes = [0, 1, 1, 2, 2, 3][rng.within(0, 5) as usize];
        let scenario = Scenario {
            seed,
            storage,
            spares: 0,
            operators: 0,
            lease: rng.millis(2_500, 6_000),
            conditional: rng.one_in(2),
            scrubber: rng.one_in(3),
            replicas,
            hosts: rng.within(2, 4) as usize,
            clients: rng.within(1, 3) as usize,
            operations: rng.within(30, 90),
            keys: rng.within(2, 8) as usize,
            pages: rng.within(1, 3) as usize,
            member_bytes: if sizes == 3 { 16 << 20 } else { 8 << 20 },
            sizes,
            think: rng.millis(1, 40),
            faults,
            repairer: rng.one_in(2),
            drawn_out: false,
            hungry: false,
        };
        if seed >= HUNGRY {
            return scenario.hungry(late);
        }
        if late.one_in(16) {
            return scenario.drawn_out(late);
        }
        let latest = &mut Rng::new(seed, 4);
        // A change that finds no room on the members that are to hold more waits for room: it need not come to its end.
        match (full, changing, latest.one_in(24)) {
            (_, _, true) => scenario.with_changes(rng).with_loss(),
            (true, ..) => scenario.nearly_full(rng),
            (_, true, _) => scenario.with_changes(rng).with_rollbacks(latest),
            _ => scenario,
        }
    }

    /// Gateways with many clients who want much, over members of which one is often away.
    fn hungry(self, rng: &mut Rng) -> Scenario {
        Scenario {
            hungry: true,
            conditional: false,
            hosts: 1,
            clients: rng.within(12, 16) as usize,
            operations: rng.within(5, 8),
            keys: rng.within(2, 3) as usize,
            member_bytes: 16 << 20,
            think: rng.millis(1, 20),
            faults: Faults {
                node_crashes: true,
                host_crashes: self.faults.host_crashes && rng.one_in(3),
                ..self.faults
            },
            ..self
        }
    }

    /// The victim's medium is put back, where an operator is there who begins it anew.
    fn with_rollbacks(self, rng: &mut Rng) -> Scenario {
        let rollbacks = self.replicas >= 3 && rng.one_in(3);
        Scenario { faults: Faults { rollbacks, ..self.faults }, ..self }
    }

    /// Members come and go while the load, drawn out for that, goes on.
    fn with_changes(self, rng: &mut Rng) -> Scenario {
        Scenario {
            spares: rng.within(1, 2) as usize,
            operators: rng.within(1, 2) as usize,
            think: rng.millis(40, 500),
            ..self
        }
    }

    /// Two members, of which the one that votes dies for good: an operator goes on with the other.
    fn with_loss(self) -> Scenario {
        let kept = Faults { torn: false, disk_errors: false, corruption: false, ..self.faults };
        Scenario { storage: 2, replicas: 2, faults: Faults { loss: true, ..kept }, ..self }
    }

    /// The load goes on for longer than what is left behind is let lie: hosts are collected from that may think that they own it.
    fn drawn_out(self, rng: &mut Rng) -> Scenario {
        let faults = Faults { suspensions: true, host_crashes: true, ..self.faults };
        let think = rng.millis(30_000, 90_000);
        Scenario { drawn_out: true, scrubber: true, faults, think, sizes: self.sizes.max(2), ..self }
    }

    /// By how much a calendar may be wrong.
    pub fn clock_error_max(&self) -> Duration {
        let jumps = if self.faults.clock_jumps { CLOCK_JUMP_MAX } else { Duration::ZERO };
        // The drift of hours; and a millisecond's rounding.
        jumps
            + self.clock_offset_max()
            + VIRTUAL_TIME_MAX / (1_000_000 / CLOCK_DRIFT_PPM_MAX)
            + Duration::from_millis(1)
    }

    /// What clocks differ by from the start. Where none jumps it is little, so that a value can't be lost long before its time.
    fn clock_offset_max(&self) -> Duration {
        if self.faults.clock_jumps { Duration::from_secs(5) } else { Duration::from_millis(20) }
    }

    /// Few groups of heap, and values that fill them.
    fn nearly_full(self, rng: &mut Rng) -> Scenario {
        Scenario { member_bytes: 4 << 20, sizes: 4, keys: rng.within(6, 14) as usize, ..self }
    }

    /// Whether members run out of room.
    pub fn is_nearly_full(&self) -> bool {
        self.sizes == 4
    }

    /// All storage nodes, spares included.
    pub fn nodes(&self) -> usize {
        self.storage + self.spares
    }

    /// The world of this scenario: links and disks take their time, everything else comes from [`super::chaos`].
    pub fn world(&self) -> SimConfig {
        let usual = SimConfig::default();
        SimConfig {
            // Long replies don't fit: who reads slowly has the gateway hold them.
            link_window: if self.hungry { usual.link_window / 4 } else { usual.link_window },
            connection_timeout: Duration::from_secs(2),
            virtual_time_max: VIRTUAL_TIME_MAX,
            clock_offset_max: self.clock_offset_max(),
            clock_drift_ppm_max: CLOCK_DRIFT_PPM_MAX,
            monotonic_drift_ppm_max: if self.faults.drift { MONOTONIC_DRIFT_PPM_MAX } else { 0 },
            ..usual
        }
    }

    /// Connections reset per million calls of `send`, once the pool is made.
    pub fn reset_ppm(&self) -> u32 {
        if self.faults.resets { 500 } else { 0 }
    }

    /// The disk of a storage node, once the pool is made.
    pub fn disk(&self, node: usize) -> DiskConfig {
        let errors = if node == VICTIM && self.faults.disk_errors { 300 } else { 0 };
        let misreads = if self.faults.misreads { 500 } else { 0 };
        let usual = DiskConfig::default();
        DiskConfig {
            delay: if self.faults.slow_disks { SLOW_DISK } else { usual.delay.clone() },
            torn: node == VICTIM && self.faults.torn,
            read_error_ppm: errors * 4 + misreads,
            misread_ppm: misreads,
            write_error_ppm: errors,
            ..usual
        }
    }
}
