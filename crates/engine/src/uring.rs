//! The reactor on the kernel's `io_uring`: one ring, one thread, one run queue.
//!
//! A turn runs what is runnable, fires timers, and makes one `io_uring_enter` that hands over every operation the tasks have
//! prepared and takes every completion that is there; where they prepare many, the first are handed over before. With nothing
//! runnable it spins for a while, if that has lately paid ([`spin`]), and then sleeps in the same system call.
//!
//! Invariants:
//! - Whatever the kernel may touch (buffer, message header, descriptor) is owned by the operation's slot until its completion
//!   came, also when its future is gone ([`slots`]). Otherwise the kernel would write into reused memory, or a recycled
//!   descriptor would receive another connection's bytes.
//! - Tasks run and are dropped on the reactor's thread only ([`remote`]).
//! - When [`Reactor::run`] returns, every task has been dropped and the kernel holds nothing of ours, or it has been leaked.

use std::{
    future::Future,
    io,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context as TaskContext, Wake, Waker},
    time::Duration,
};

use crate::runtime::{self, Context};
use crate::task::LocalFuture;

mod driver;
pub(crate) mod file;
mod message;
pub(crate) mod net;
mod op;
mod receive;
mod remote;
mod ring;
mod slots;
mod spin;
pub mod ublk;
pub(crate) mod unix;
mod zones;

pub(crate) use driver::Driver;

/// How a reactor runs.
#[derive(Clone, Debug)]
pub struct ReactorConfig {
    /// The core to pin the thread to.
    pub core: Option<usize>,
    /// The longest time to spin before sleeping while operations are in flight; zero: never spin.
    pub spin_max: Duration,
    /// Submission queue entries: operations handed over per system call. Rounded up to a power of two by the kernel.
    pub ring_entries: u32,
}

impl Default for ReactorConfig {
    /// Not pinned, spinning up to 200 us: several round trips over loopback where cores are far apart, and some latencies of a
    /// read from flash. Only waits of this order ever spin so long.
    fn default() -> ReactorConfig {
        ReactorConfig { core: None, spin_max: Duration::from_micros(200), ring_entries: 256 }
    }
}

/// The reactor of one thread.
pub struct Reactor;

impl Reactor {
    /// Runs `main` and the tasks it spawns on the calling thread until `main` ends; what is left of the tasks is then dropped.
    ///
    /// # Errors
    /// If the kernel lacks what the reactor needs or forbids it, the core does not exist, or the ring fails.
    ///
    /// # Panics
    /// Inside another world, and with what `main` or a task panics with.
    pub fn run<T>(config: ReactorConfig, main: impl Future<Output = T>) -> io::Result<T> {
        let mut output = None;
        run_to_end(config, Box::pin(async { output = Some(main.await) }))?;
        Ok(output.expect("main has ended"))
    }
}

struct Shutdown<'a>(&'a Rc<Driver>);

impl Drop for Shutdown<'_> {
    fn drop(&mut self) {
        self.0.shut_down();
    }
}

/// [`Reactor::run`], once for all that is run.
fn run_to_end(config: ReactorConfig, main: LocalFuture<'_, ()>) -> io::Result<()> {
    assert!(runtime::try_current().is_none(), "Reactor::run inside a world: one thread has one reactor");
    if let Some(core) = config.core {
        pin_to(core)?;
    }
    let driver = Rc::new(Driver::new(config.ring_entries, config.spin_max)?);
    let entered = runtime::enter(Context::Uring(driver.clone()));
    let ended = {
        // Also when `main` panics: tasks must be dropped here and the kernel be done before memory is given back.
        let _shutdown = Shutdown(&driver);
        // Here: it is dropped before the shutdown, and in this world.
        let mut main = main;
        run_until(&driver, main.as_mut())
    };
    drop(entered);
    ended
}

/// Not generic: every crate that runs a reactor would compile the driver's loop again.
fn run_until(driver: &Rc<Driver>, mut main: Pin<&mut dyn Future<Output = ()>>) -> io::Result<()> {
    let wake = Arc::new(MainWake { woken: AtomicBool::new(true), remote: driver.remote().clone() });
    let waker = Waker::from(wake.clone());
    loop {
        if wake.woken.swap(false, Ordering::AcqRel)
            && main.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_ready()
        {
            return Ok(());
        }
        driver.run_tasks();
        driver.turn(|| wake.woken.load(Ordering::Acquire))?;
    }
}

/// Wakes the main future, which is no task: it may borrow from the caller's stack.
struct MainWake {
    woken: AtomicBool,
    remote: Arc<remote::Remote>,
}

impl Wake for MainWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.remote.notify();
        }
    }
}

fn pin_to(core: usize) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no core {core}")));
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set)
        .map_err(|error| io::Error::new(io::Error::from(error).kind(), format!("pinning to core {core}: {error}")))
}
