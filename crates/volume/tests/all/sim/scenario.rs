//! What a seed draws.

use std::time::Duration;

use engine::rng::SplitMix;
use engine::sim::SimConfig;
use volume::Options;

use crate::cluster::options;

/// The numbers of one concern of a seed.
pub struct Rng(SplitMix);

impl Rng {
    pub fn new(seed: u64, concern: u64) -> Rng {
        let mut mix = SplitMix(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ concern << 48);
        mix.draw();
        Rng(mix)
    }

    /// From `low` to `high`, both possible.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.below(high - low + 1)
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.0.below(count) == 0
    }

    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.within(low * 1000, high * 1000))
    }

    pub fn index(&mut self, end: usize) -> usize {
        self.0.index(end)
    }
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub resets: bool,
    pub slow_links: bool,
    pub partitions: bool,
    pub one_way: bool,
    pub host_crashes: bool,
    pub node_crashes: bool,
    pub pauses: bool,
    pub slow_disks: bool,
    /// The disk of one storage node fails writes.
    pub write_errors: bool,
    /// A storage node dies for good, and a blank one takes its place.
    pub loss: bool,
}

/// Everything about one run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub replicas: u8,
    /// Hosts that attach, each taking the volume from the other.
    pub hosts: usize,
    /// Clients on each host.
    pub clients: usize,
    /// Operations of each client, over all lives of its host.
    pub operations: u64,
    /// Blocks that are used: few, so that they meet.
    pub blocks: u64,
    pub think: Duration,
    /// The longest time for which a host keeps the volume to itself.
    pub tenure: Duration,
    pub faults: Faults,
    /// Snapshots are taken and deleted.
    pub snapshots: bool,
    /// The volume grows.
    pub grows: bool,
    /// How the hosts' volumes behave.
    pub options: Options,
}

/// The storage node whose disk fails.
pub const VICTIM: usize = 0;

/// Some settle or resynchronise so slowly that the next fault meets them half done; some clear intents at once, some hardly ever.
fn drawn(rng: &mut Rng) -> Options {
    let slowly = |rng: &mut Rng| rng.one_in(3).then(|| rng.within(50_000, 2_000_000));
    Options {
        give_up_after: rng.millis(100, 2_000),
        clear_after: rng.millis(30, 3_000),
        settle_bytes_per_second: slowly(rng),
        resync_bytes_per_second: slowly(rng),
        ..options()
    }
}

impl Scenario {
    pub fn new(seed: u64) -> Scenario {
        let rng = &mut Rng::new(seed, 1);
        let replicas = [1, 2, 2, 3, 3, 3][rng.index(6)];
        let mut faults = Faults {
            resets: rng.one_in(2),
            slow_links: rng.one_in(3),
            partitions: rng.one_in(2),
            one_way: rng.one_in(3),
            host_crashes: rng.one_in(2),
            node_crashes: rng.one_in(2),
            pauses: rng.one_in(2),
            slow_disks: rng.one_in(4),
            write_errors: rng.one_in(8),
            loss: rng.one_in(4),
        };
        if replicas == 1 {
            (faults.write_errors, faults.loss) = (false, false);
        }
        Scenario {
            seed,
            replicas,
            hosts: rng.within(1, 3) as usize,
            clients: rng.within(1, 4) as usize,
            operations: rng.within(20, 80),
            blocks: [4, 8, 24, 64][rng.index(4)],
            think: rng.millis(1, 40),
            tenure: rng.millis(200, 6_000),
            faults,
            snapshots: Rng::new(seed, 4).one_in(2),
            grows: Rng::new(seed, 5).one_in(3),
            options: drawn(&mut Rng::new(seed, 3)),
        }
    }

    pub fn world(&self) -> SimConfig {
        SimConfig { monotonic_drift_ppm_max: 10_000, ..SimConfig::default() }
    }
}
