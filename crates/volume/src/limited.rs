//! How much a volume is used: commands and bytes a second, in front of the mirror.
//!
//! A command waits before the mirror sees it, in the order in which commands came; what has been let through is never held back.
//! What was not used is saved up for as long as the limits say, so that a burst goes through at once. Without a limit a command
//! costs a look at two numbers.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use device::{Durability, Error, Lba, Mailed, Namespace};
use engine::figures;
use engine::pace::Pace;
use engine::time;
use engine::{Buf, View};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::volume::Volume;

/// How much a volume may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Commands a second; none: no limit.
    pub iops: Option<u64>,
    /// Bytes a second that are read and written; none: no limit.
    pub bandwidth: Option<u64>,
    /// For how many seconds what was not used is saved up; none: one.
    pub burst: Option<u32>,
}

/// What was held back; a clone is the same figures, on any thread.
#[derive(Clone, Debug, Default)]
pub struct HeldBack(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    commands: AtomicU64,
    microseconds: AtomicU64,
    iops: AtomicU64,
    bandwidth: AtomicU64,
}

impl Collector for HeldBack {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Counts { commands, microseconds, iops, bandwidth } = &*self.0;
        let counters = [
            ("commands", "Commands that waited because of the volume's limits.", commands.load(Relaxed)),
            ("microseconds", "How long they waited, all together.", microseconds.load(Relaxed)),
        ];
        figures::counters(&mut encoder, "yagura_volume_held_back_", &counters)?;
        let (help, of_bytes) = ("Commands a second that are let through; 0: all.", "Bytes a second; 0: all.");
        figures::gauge(&mut encoder, "yagura_volume_limit_iops", help, iops.load(Relaxed))?;
        figures::gauge(&mut encoder, "yagura_volume_limit_bandwidth", of_bytes, bandwidth.load(Relaxed))
    }
}

/// The limits, as they are now.
#[derive(Default)]
pub struct Limiter {
    limits: Cell<Limits>,
    commands: Pace,
    bytes: Pace,
    held_back: HeldBack,
}

impl Limiter {
    /// With these limits.
    pub fn new(limits: Limits) -> Limiter {
        let limiter = Limiter::default();
        limiter.set(limits);
        limiter
    }

    /// Other limits, from the next command on. What was saved up, or owed, is forgotten.
    pub fn set(&self, limits: Limits) {
        if self.limits.get() == limits {
            return;
        }
        self.limits.set(limits);
        self.commands.begin();
        self.bytes.begin();
        self.held_back.0.iops.store(limits.iops.unwrap_or(0), Relaxed);
        self.held_back.0.bandwidth.store(limits.bandwidth.unwrap_or(0), Relaxed);
    }

    /// What was held back.
    pub fn figures(&self) -> &HeldBack {
        &self.held_back
    }

    /// Waits for the turn of a command that moves so many bytes.
    async fn take(&self, bytes: usize) {
        let Limits { iops, bandwidth, burst } = self.limits.get();
        if iops.is_none() && bandwidth.is_none() {
            return;
        }
        let saved = Duration::from_secs(burst.unwrap_or(1).into());
        let turn = |pace: &Pace, rate: Option<u64>, amount: u64| rate.map(|rate| pace.turn(amount, rate, saved));
        let turn = turn(&self.commands, iops, 1).max(turn(&self.bytes, bandwidth, bytes as u64));
        let now = time::now();
        let Some(turn) = turn.filter(|turn| *turn > now) else { return };
        self.held_back.0.commands.fetch_add(1, Relaxed);
        let waits = u64::try_from((turn - now).as_micros()).unwrap_or(u64::MAX);
        self.held_back.0.microseconds.fetch_add(waits, Relaxed);
        time::sleep_until(turn).await;
    }
}

/// The volume, used as much as its limiter says, for all threads of the process.
#[inline(never)]
pub fn limited(volume: Rc<Volume>, limiter: Rc<Limiter>) -> Mailed {
    Mailed::new(Rc::new(Limited { inner: volume, limiter }))
}

struct Limited<N> {
    inner: Rc<N>,
    limiter: Rc<Limiter>,
}

impl<N: Namespace> Namespace for Limited<N> {
    device::delegate_namespace!(this => { Limited { inner, .. } => inner };
        info, flush, hint_lifetime, writability, used_blocks, link, attribute, set_attribute);
    // No volume has any.
    device::namespace_without!(zones);

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        self.limiter.take(buf.len()).await;
        self.inner.read(lba, buf).await
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        self.limiter.take(data.len()).await;
        self.inner.write(lba, data, durability).await
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        self.limiter.take(expected.len()).await;
        self.inner.compare(lba, expected).await
    }

    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, how: Durability) -> Result<(), Error> {
        self.limiter.take(expected.len() + new.len()).await;
        self.inner.compare_and_write(lba, expected, new, how).await
    }

    // What moves no bytes counts as a command.

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        self.limiter.take(0).await;
        self.inner.write_zeroes(lba, blocks, durability).await
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.limiter.take(0).await;
        self.inner.deallocate(lba, blocks).await
    }

    async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.limiter.take(0).await;
        self.inner.verify(lba, blocks).await
    }

    async fn write_uncorrectable(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.limiter.take(0).await;
        self.inner.write_uncorrectable(lba, blocks).await
    }
}

#[cfg(test)]
mod tests {
    use device::Memory;
    use engine::sim::{SimConfig, World};

    use super::*;

    fn limits(iops: Option<u64>, bandwidth: Option<u64>, burst: Option<u32>) -> Limits {
        Limits { iops, bandwidth, burst }
    }

    /// Seconds that so many reads of a MiB take, begun all at once.
    async fn take(limited: &Limited<Memory>, reads: usize) -> f64 {
        let began = time::now();
        for _ in 0..reads {
            let (read, _) = limited.read(Lba(0), Buf::with_len(1 << 20)).await;
            read.expect("it is there");
        }
        (time::now() - began).as_secs_f64()
    }

    fn run(work: impl AsyncFnOnce(Limited<Memory>, Rc<Limiter>) + 'static) {
        let world = World::new(1, SimConfig::default());
        let ran = world.run_until(async move {
            let memory = Memory::new(4 << 20, 4096, [1; 16]).expect("it fits");
            let limiter = Rc::new(Limiter::default());
            work(Limited { inner: Rc::new(memory), limiter: limiter.clone() }, limiter).await;
        });
        ran.expect("it ends");
    }

    #[test]
    fn commands_and_bytes_keep_to_their_rates() {
        run(async |limited, limiter| {
            assert!(take(&limited, 1000).await < 0.5, "without limits nothing waits");
            limiter.set(limits(Some(10), None, Some(1)));
            // Ten are saved up by nobody: the limits are new.
            let took = take(&limited, 31).await;
            assert!((2.9..3.2).contains(&took), "{took}");
            limiter.set(limits(None, Some(2 << 20), Some(1)));
            let took = take(&limited, 9).await;
            assert!((3.9..4.2).contains(&took), "{took}");
            // The narrower one counts.
            limiter.set(limits(Some(1), Some(1 << 30), Some(1)));
            let took = take(&limited, 4).await;
            assert!((2.9..3.2).contains(&took), "{took}");
            assert!(limiter.figures().0.commands.load(Relaxed) >= 40);
            assert!(limiter.figures().0.microseconds.load(Relaxed) >= 9_000_000);
        });
    }

    #[test]
    fn what_was_not_used_is_saved_up_as_long_as_the_limits_say() {
        run(async |limited, limiter| {
            limiter.set(limits(Some(10), None, Some(3)));
            time::sleep(Duration::from_secs(60)).await;
            // Thirty of three seconds, and the one that always begins.
            let took = take(&limited, 31).await;
            assert!(took < 0.2, "{took}");
            let took = take(&limited, 10).await;
            assert!((0.9..1.2).contains(&took), "{took}");
        });
    }

    #[test]
    fn limits_that_are_taken_back_hold_nothing_any_more() {
        run(async |limited, limiter| {
            limiter.set(limits(Some(1), None, None));
            take(&limited, 2).await;
            limiter.set(Limits::default());
            assert!(take(&limited, 100).await < 0.1);
        });
    }
}
