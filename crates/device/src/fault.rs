//! [`Fault`]: a namespace that fails as told, for tests of what stands above it.
//!
//! The fault model, each drawn per command from the seed, in this order:
//! - a *lost command* never reaches the medium; the caller gets [`Error::Disconnected`];
//! - a *late command* also gives [`Error::Disconnected`], and takes effect once, some time after the caller was told;
//! - a *medium error* ([`Error::ReadFault`], [`Error::WriteFault`]): nothing is read or written;
//! - a *delay* before the command takes effect;
//! - a *lost reply*: the command took effect, the caller gets [`Error::Disconnected`].
//!
//! What it never does: corrupt, tear or reorder within a command. Those are faults of media and are simulated there.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::rng::SplitMix;
use engine::{Buf, View, task, time};

use crate::{Durability, Error, Lba, Namespace};

/// How often what goes wrong, in events per million commands.
#[derive(Clone, Debug, Default)]
pub struct FaultConfig {
    /// Where the draws start; the same seed and the same commands give the same faults.
    pub seed: u64,
    /// Commands that are lost on their way.
    pub lost_command_ppm: u32,
    /// Commands (other than reads and compares) that take effect after their caller was told of the loss.
    pub late_command_ppm: u32,
    /// Commands whose reply is lost.
    pub lost_reply_ppm: u32,
    /// Reads and compares that fail.
    pub read_error_ppm: u32,
    /// Writes of any kind and flushes that fail.
    pub write_error_ppm: u32,
    /// How long a command takes before it has its effect; a late one waits as long again. Empty: no delay.
    pub delay: Range<Duration>,
}

/// A namespace with faults.
#[derive(Debug)]
pub struct Fault<N> {
    inner: Arc<N>,
    config: FaultConfig,
    draws: Mutex<SplitMix>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

/// What is to happen to one command.
struct Fate {
    delay: Duration,
    verdict: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Done,
    LostCommand,
    Late,
    MediumError,
    LostReply,
}

impl<N: Namespace> Fault<N> {
    /// `inner` with the faults of `config`.
    pub fn new(inner: Arc<N>, config: FaultConfig) -> Fault<N> {
        let draws = Mutex::new(SplitMix(config.seed));
        Fault { inner, config, draws }
    }

    /// The namespace without faults, for a checker that looks from outside.
    pub fn inner(&self) -> &Arc<N> {
        &self.inner
    }

    fn draw(&self) -> u64 {
        self.draws.lock().unwrap_or_else(PoisonError::into_inner).draw()
    }

    fn happens(&self, ppm: u32) -> bool {
        ppm > 0 && self.draw() % 1_000_000 < u64::from(ppm)
    }

    fn fate(&self, kind: Kind) -> Fate {
        let Range { start, end } = self.config.delay;
        let spread = end.saturating_sub(start).as_nanos() as u64;
        let delay = if spread == 0 { start } else { start + Duration::from_nanos(self.draw() % spread) };
        let medium_error_ppm =
            if kind == Kind::Read { self.config.read_error_ppm } else { self.config.write_error_ppm };
        let verdict = if self.happens(self.config.lost_command_ppm) {
            Verdict::LostCommand
        } else if kind == Kind::Write && self.happens(self.config.late_command_ppm) {
            Verdict::Late
        } else if self.happens(medium_error_ppm) {
            Verdict::MediumError
        } else if self.happens(self.config.lost_reply_ppm) {
            Verdict::LostReply
        } else {
            Verdict::Done
        };
        Fate { delay, verdict }
    }

    /// A command that only reads.
    async fn observe<T>(&self, command: impl Future<Output = T>, fail: impl FnOnce(T, Error) -> T) -> T {
        let fate = self.fate(Kind::Read);
        if !fate.delay.is_zero() {
            time::sleep(fate.delay).await;
        }
        let output = command.await;
        match fate.verdict {
            Verdict::Done => output,
            Verdict::MediumError => fail(output, Error::ReadFault("injected".into())),
            Verdict::LostCommand | Verdict::Late | Verdict::LostReply => fail(output, lost()),
        }
    }

    /// A command that changes the medium.
    async fn change(&self, command: impl Future<Output = Result<(), Error>> + 'static) -> Result<(), Error> {
        let fate = self.fate(Kind::Write);
        match fate.verdict {
            Verdict::LostCommand => return Err(lost()),
            Verdict::MediumError => return Err(Error::WriteFault("injected".into())),
            Verdict::Late => {
                let late = async move {
                    time::sleep(fate.delay * 2).await;
                    // Nobody is left to be told.
                    let _ = command.await;
                };
                task::spawn(late).detach();
                time::sleep(fate.delay).await;
                return Err(lost());
            }
            Verdict::Done | Verdict::LostReply => {}
        }
        if !fate.delay.is_zero() {
            time::sleep(fate.delay).await;
        }
        let result = command.await;
        if fate.verdict == Verdict::LostReply { Err(lost()) } else { result }
    }
}

fn lost() -> Error {
    Error::Disconnected("the fault injector".into())
}

impl<N: Namespace> Namespace for Fault<N> {
    crate::delegate_namespace!(this => { Fault { inner, .. } => inner };
        info, hint_lifetime, writability, used_blocks, link, attribute, zones);

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        self.observe(self.inner.read(lba, buf), |(_, mut buf), error| {
            // What a failed read leaves in the buffer must not look like data.
            buf.fill(0xee);
            (Err(error), buf)
        })
        .await
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        self.change(async move { inner.write(lba, data, durability).await }).await
    }

    async fn flush(&self) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        self.change(async move { inner.flush().await }).await
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        self.observe(self.inner.compare(lba, expected), |_, error| Err(error)).await
    }

    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, how: Durability) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        self.change(async move { inner.compare_and_write(lba, expected, new, how).await }).await
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        self.change(async move { inner.write_zeroes(lba, blocks, durability).await }).await
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        self.change(async move { inner.deallocate(lba, blocks).await }).await
    }

    async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.observe(self.inner.verify(lba, blocks), |_, error| Err(error)).await
    }

    async fn write_uncorrectable(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        let inner = Arc::clone(&self.inner);
        self.change(async move { inner.write_uncorrectable(lba, blocks).await }).await
    }

    async fn set_attribute(&self, key: &'static str, value: &[u8]) -> Result<(), Error> {
        let (inner, value) = (Arc::clone(&self.inner), value.to_vec());
        self.change(async move { inner.set_attribute(key, &value).await }).await
    }
}
