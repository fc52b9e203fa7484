//! Clocks and timers of the current world.

use std::{
    future::Future,
    os::unix::fs::MetadataExt,
    pin::{Pin, pin},
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use crate::runtime::{self, Context};

mod instant;

pub use instant::Instant;
pub(crate) use instant::monotonic;

impl Instant {
    /// Time from `self` to now.
    pub fn elapsed(self) -> Duration {
        now().duration_since(self)
    }
}

/// The current time of the world; outside any world, of the machine.
#[inline]
pub fn now() -> Instant {
    runtime::with_current(|world| match world {
        Some(Context::Sim(sim)) => sim.now(),
        Some(Context::Uring(_)) | None => monotonic(),
    })
}

/// The machine that [`now`] is the time of, as long as it runs: where it is the same, the moments of different processes can be
/// compared. `None`: nobody knows.
pub fn machine() -> Option<u64> {
    match runtime::try_current() {
        Some(Context::Sim(sim)) => Some(sim.machine()),
        Some(Context::Uring(_)) | None => {
            // In a namespace of its own the clock has an offset of its own.
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
            let offset = std::fs::metadata("/proc/self/ns/time").map_or(0, |file| file.ino());
            let boot = u64::from_str_radix(boot.trim().replace('-', "").get(..16)?, 16).ok()?;
            Some(boot ^ offset.rotate_left(32))
        }
    }
}

/// Time since 1970-01-01 00:00 UTC by the world's calendar clock, which may jump.
pub fn unix_time() -> Duration {
    match runtime::try_current() {
        Some(Context::Sim(sim)) => sim.unix_time(),
        Some(Context::Uring(_)) | None => {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
            Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
        }
    }
}

/// Ends `duration` from now.
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(now() + duration)
}

/// Ends at some moment before `longest` is over, by chance: so that those who pause for one another don't meet again.
pub fn sleep_within(longest: Duration) -> Sleep {
    sleep(within(longest))
}

/// A part of `longest`, by chance.
pub fn within(longest: Duration) -> Duration {
    let nanos = longest.as_nanos().clamp(1, u128::from(u64::MAX)) as u64;
    Duration::from_nanos(crate::task::random_u64() % nanos)
}

/// Ends at `deadline`.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, timer: None }
}

/// See [`sleep`].
pub struct Sleep {
    deadline: Instant,
    timer: Option<(Context, usize)>,
}

impl Sleep {
    /// When it ends.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        if now() >= self.deadline {
            self.cancel();
            return Poll::Ready(());
        }
        match &self.timer {
            Some((Context::Uring(driver), key)) => driver.timer_rearm(*key, cx.waker()),
            Some((Context::Sim(driver), key)) => driver.timer_rearm(*key, self.deadline, cx.waker()),
            None => {
                let context = runtime::current();
                let key = match &context {
                    Context::Uring(driver) => driver.timer_add(self.deadline, cx.waker()),
                    Context::Sim(driver) => driver.timer_add(self.deadline, cx.waker()),
                };
                self.timer = Some((context, key));
            }
        }
        Poll::Pending
    }
}

impl Sleep {
    fn cancel(&mut self) {
        match self.timer.take() {
            Some((Context::Uring(driver), key)) => driver.timer_remove(key),
            Some((Context::Sim(driver), key)) => driver.timer_remove(key),
            None => {}
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// The time given to [`timeout`] passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the time allowed has passed")]
pub struct Elapsed;

/// Waits for `future`, at most for `duration`; the future is dropped when the time has passed.
///
/// # Errors
/// [`Elapsed`] when the time passed first. A future that is ready at once wins even with a zero duration.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut sleep = pin!(sleep(duration));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        sleep.as_mut().poll(cx).map(|()| Err(Elapsed))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    fn read(clock: ClockId) -> Duration {
        let time = clock_gettime(clock);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// Leases, and the ages of claimed pages, stood still while the machine was suspended.
    #[test]
    fn the_clock_goes_on_while_the_machine_is_suspended() {
        let (before, shown, after) =
            (read(ClockId::Boottime), Duration::from_nanos(now().as_nanos()), read(ClockId::Boottime));
        assert!(before <= shown && shown <= after, "{before:?} {shown:?} {after:?}");
        // A machine that never slept shows the same by the other clock. In a namespace they are a day apart.
        let space = |program: &std::ffi::OsStr| {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--time", "--boottime=86400", "--fork"]).arg(program);
            command
        };
        let apart = read(ClockId::Boottime).saturating_sub(read(ClockId::Monotonic)) > Duration::from_secs(3600);
        if apart || !space("true".as_ref()).output().is_ok_and(|output| output.status.success()) {
            return;
        }
        let itself = std::env::current_exe().expect("a running test has a file");
        let name = "time::tests::the_clock_goes_on_while_the_machine_is_suspended";
        let output = space(itself.as_os_str()).args(["--exact", name]).output().expect("it ran before");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    fn the_machine_is_the_same_for_all_its_processes() {
        assert!(machine().is_some() && machine() == machine());
    }
}
