//! [`World`]: what a test holds.

use std::fmt;
use std::future::Future;
use std::io::Write;
use std::net::IpAddr;
use std::ops::Range;
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Waker};
use std::time::Duration;

use super::config::{DiskConfig, SimConfig};
use super::core::{NODES_MAX, Node};
use super::disk::DiskId;
use super::driver::{Driver, State, UNIX_EPOCH_OFFSET};
use super::id::{HARNESS, NodeId};
use super::network;
use super::rng::nanos;
use super::sched::{Next, Scheduler, Tag};
use crate::runtime::{self, Context};
use crate::task::Task;
use crate::time::Instant;

/// Why a run cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StallReason {
    /// Nothing can run and nothing will happen.
    Deadlock,
    /// [`SimConfig::virtual_time_max`] has passed.
    TimeLimit,
    /// Tasks poll for ever without any time passing ([`SimConfig::polls_per_instant_max`]).
    Livelock,
}

impl fmt::Display for StallReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StallReason::Deadlock => "deadlock: every task waits and nothing will happen",
            StallReason::TimeLimit => "the limit of virtual time has passed",
            StallReason::Livelock => "livelock: tasks run on and on without any time passing",
        })
    }
}

/// A run that cannot go on; run the same seed again to see the same.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}: {reason}, at {at:?} with {tasks} tasks. The last events:\n{trace}")]
pub struct Stalled {
    /// What is the matter.
    pub reason: StallReason,
    /// The world's seed.
    pub seed: u64,
    /// Virtual time since the world began.
    pub at: Duration,
    /// Tasks that have not ended.
    pub tasks: usize,
    /// The end of the trace.
    pub trace: String,
}

/// A simulated world. Dropping it drops all of its tasks.
pub struct World {
    pub(super) driver: Rc<Driver>,
}

/// Prints the way to the same failure again when a test panics inside the world.
struct Report<'a>(&'a Driver);

impl Drop for Report<'_> {
    fn drop(&mut self) {
        // tidy: thread: asks whether the test is failing; nothing in the world depends on it
        if std::thread::panicking()
            && let Ok(state) = self.0.state.try_borrow()
        {
            let trace = state.core.trace.text();
            // If not even standard error takes it there is nobody to tell.
            let _nobody = writeln!(std::io::stderr(), "{trace}panic in the simulated world of seed {}", self.0.seed);
        }
    }
}

impl World {
    /// A world of which everything follows from `seed`.
    pub fn new(seed: u64, config: SimConfig) -> World {
        let world = World { driver: Rc::new(Driver::new(seed, config)) };
        world.node("world"); // HARNESS
        world
    }

    /// The seed it was made from.
    pub fn seed(&self) -> u64 {
        self.driver.seed
    }

    /// A new machine. `name` stands in the trace.
    ///
    /// # Panics
    /// If there are too many.
    pub fn node(&self, name: &str) -> NodeId {
        self.driver.step(|state| {
            let core = &mut state.core;
            assert!(core.nodes.len() < NODES_MAX, "a simulated world has at most {NODES_MAX} nodes");
            let offset_max = nanos(core.config.clock_offset_max).min(i64::MAX as u64 / 2);
            let drift_max = u64::from(core.config.clock_drift_ppm_max);
            let clock_offset = core.rngs.clocks.below(2 * offset_max + 1) as i64 - offset_max as i64;
            let clock_drift_ppm = core.rngs.clocks.below(2 * drift_max + 1) as i64 - drift_max as i64;
            // The test's own clock is the world's.
            let monotonic_max = if core.nodes.is_empty() { 0 } else { u64::from(core.config.monotonic_drift_ppm_max) };
            let monotonic_drift_ppm = core.rngs.clocks.below(2 * monotonic_max + 1) as i64 - monotonic_max as i64;
            let name = name.into();
            core.nodes.push(Node {
                name,
                up: true,
                paused: false,
                stood: 0,
                stands_since: None,
                incarnation: 0,
                clock_offset,
                clock_drift_ppm,
                monotonic_drift_ppm,
            });
            NodeId((core.nodes.len() - 1) as u32)
        })
    }

    /// The address of `node`: bind to it, or to the unspecified address, on the node; connect to it from any.
    pub fn addr(&self, node: NodeId) -> IpAddr {
        network::address(node)
    }

    /// Starts a task on `node`.
    ///
    /// A task that was dropped by a crash has no output: [`Task::outcome`] says so, waiting for the task itself panics.
    ///
    /// # Panics
    /// If the node is down.
    #[track_caller]
    pub fn spawn_on<T: 'static>(&self, node: NodeId, future: impl Future<Output = T> + 'static) -> Task<T> {
        let tag = self.tag(node);
        assert!(self.driver.state.borrow().alive(tag), "a task was spawned on a crashed node: restart it first");
        Task::new(self.driver.scheduler.spawn(tag, future))
    }

    /// Runs the world until `future` ends. The future plays the outside: it is on no node that could fail.
    ///
    /// # Errors
    /// [`Stalled`] if it never will.
    pub fn run_until<T>(&self, future: impl Future<Output = T>) -> Result<T, Stalled> {
        let _entered = runtime::enter(Context::Sim(self.driver.clone()));
        let _report = Report(&self.driver);
        let mut output = None;
        // Also a future that does not end is dropped inside the world.
        self.run_main(pin!(async { output = Some(future.await) }))?;
        Ok(output.expect("the future has ended"))
    }

    /// Not generic: every test would compile the loop again.
    fn run_main(&self, mut future: Pin<&mut dyn Future<Output = ()>>) -> Result<(), Stalled> {
        let driver = &*self.driver;
        let main = Waker::from(Arc::<Scheduler>::clone(&driver.scheduler));
        let polls_max = driver.state.borrow().core.config.polls_per_instant_max;
        driver.scheduler.wake_main();
        let mut polls = 0;
        loop {
            let next = driver.scheduler.take(&mut driver.state.borrow_mut().core.rngs.schedule);
            match next {
                Some(Next::Main) => {
                    driver.current.set(self.tag(HARNESS));
                    driver.step(|state| state.core.trace.poll(state.core.now, 0));
                    if future.as_mut().poll(&mut TaskContext::from_waker(&main)).is_ready() {
                        return Ok(());
                    }
                }
                Some(Next::Task(entry)) => self.run(entry),
                None => {
                    self.advance()?;
                    polls = 0;
                }
            }
            driver.current.set(self.tag(HARNESS));
            polls += 1;
            if polls > polls_max {
                return Err(self.stalled(StallReason::Livelock));
            }
        }
    }

    /// Polls one task, unless its node has crashed or stands still.
    fn run(&self, entry: super::sched::Entry) {
        let driver = &*self.driver;
        let (alive, paused) = {
            let state = driver.state.borrow();
            (state.alive(entry.tag), state.core.node(entry.tag.node).paused)
        };
        if !alive {
            driver.drop_task(entry);
        } else if paused {
            driver.scheduler.park(entry);
        } else {
            driver.current.set(entry.tag);
            driver.step(|state| state.core.trace.poll(state.core.now, entry.number));
            entry.runnable.run();
        }
    }

    /// Lets time jump to the next event, and everything happen that is due then.
    fn advance(&self) -> Result<(), Stalled> {
        let (next, limit) = {
            let state = self.driver.state.borrow();
            (state.next_at(), nanos(state.core.config.virtual_time_max))
        };
        let next = next.ok_or_else(|| self.stalled(StallReason::Deadlock))?;
        if next > limit {
            return Err(self.stalled(StallReason::TimeLimit));
        }
        self.driver.step(|state| {
            // A deadline in the past is due now: time never goes back.
            state.core.now = state.core.now.max(next);
            state.happen();
        });
        Ok(())
    }

    fn stalled(&self, reason: StallReason) -> Stalled {
        let state = self.driver.state.borrow();
        Stalled {
            reason,
            seed: self.driver.seed,
            at: Duration::from_nanos(state.core.now),
            tasks: self.driver.scheduler.tasks(),
            trace: state.core.trace.text(),
        }
    }

    /// Runs the world for `duration` of its time.
    ///
    /// # Errors
    /// [`Stalled`] at the limit of virtual time, or if tasks spin.
    pub fn run_for(&self, duration: Duration) -> Result<(), Stalled> {
        self.run_until(async { crate::time::sleep(duration).await })
    }

    /// A calendar that is right, as no node's is: the time since the Unix epoch.
    pub fn calendar(&self) -> impl Fn() -> Duration + 'static {
        let driver = self.driver.clone();
        move || UNIX_EPOCH_OFFSET + Duration::from_nanos(driver.state.borrow().core.now)
    }

    /// The world's time.
    pub fn now(&self) -> Instant {
        self.driver.now()
    }

    fn tag(&self, node: NodeId) -> Tag {
        Tag { node, incarnation: self.driver.state.borrow().core.node(node).incarnation }
    }

    fn note(&self, node: NodeId, what: &str) {
        self.driver.step(|state| state.core.note(node, format_args!("{what}")));
    }

    /// Adds a line of the test's own to the trace.
    pub fn mark(&self, what: &str) {
        self.note(HARNESS, what);
    }

    /// Power fails on `node`: its tasks are dropped (their destructors have no effect on others), its connections are reset
    /// (peers learn it after a delay), unflushed writes of its disks are lost or torn. Nothing for a node that is down.
    ///
    /// # Panics
    /// On the node of the test itself.
    pub fn crash(&self, node: NodeId) {
        assert_ne!(node, HARNESS, "the test cannot crash itself");
        let tag = self.tag(node);
        if !self.driver.state.borrow().alive(tag) {
            return;
        }
        self.driver.step(|state| {
            let State { core, net, disks, .. } = state;
            core.note(node, format_args!("crash"));
            let now = core.now;
            let machine = core.node_mut(node);
            (machine.up, machine.paused) = (false, false);
            machine.stood += machine.stands_since.take().map_or(0, |since| now - since);
            machine.incarnation += 1;
            net.crash(core, node);
            disks.crash(core, node);
        });
        // Destructors may ask for the world, also where a test crashes a node between two runs.
        let _entered = runtime::enter(Context::Sim(self.driver.clone()));
        self.driver.drop_tasks(tag);
    }

    /// The node may run tasks again; its disks are as the crash left them. Nothing for a node that is up.
    pub fn restart(&self, node: NodeId) {
        if self.is_up(node) {
            return;
        }
        self.note(node, "restart");
        self.driver.step(|state| state.core.node_mut(node).up = true);
    }

    /// Whether `node` has not crashed, or was restarted.
    pub fn is_up(&self, node: NodeId) -> bool {
        self.driver.state.borrow().core.node(node).up
    }

    /// Stops the processes of `node`: nothing runs there, its kernel goes on (sockets stay open and take what fits).
    ///
    /// # Panics
    /// On the node of the test itself.
    pub fn pause(&self, node: NodeId) {
        assert_ne!(node, HARNESS, "the test cannot pause itself");
        self.note(node, "pause");
        self.driver.step(|state| state.core.node_mut(node).paused = true);
    }

    /// Suspends `node`, as a virtual machine is: it is paused, and its monotonic clock stands still, while its calendar goes on.
    ///
    /// # Panics
    /// On the node of the test itself.
    pub fn suspend(&self, node: NodeId) {
        self.pause(node);
        self.driver.step(|state| {
            let now = state.core.now;
            state.core.node_mut(node).stands_since.get_or_insert(now);
        });
    }

    /// Lets the processes of `node` go on.
    pub fn resume(&self, node: NodeId) {
        self.note(node, "resume");
        self.driver.step(|state| {
            let now = state.core.now;
            let node = state.core.node_mut(node);
            node.paused = false;
            node.stood += node.stands_since.take().map_or(0, |since| now - since);
        });
        self.driver.scheduler.unpark(node);
    }

    /// Holds everything between the two nodes until it heals; senders give up after [`SimConfig::connection_timeout`].
    pub fn partition(&self, a: NodeId, b: NodeId) {
        self.driver.step(|state| {
            let other = state.core.node(b).name.clone();
            state.core.note(a, format_args!("partition from {other}"));
            state.net.partition(a, b);
            state.net.partition(b, a);
        });
    }

    /// Holds what goes from one node to the other until that heals; what goes back comes through.
    pub fn partition_one_way(&self, from: NodeId, to: NodeId) {
        self.driver.step(|state| {
            let other = state.core.node(to).name.clone();
            state.core.note(from, format_args!("cut off on the way to {other}"));
            state.net.partition(from, to);
        });
    }

    /// Ends a partition: what was held comes through, unless its sender gave up.
    pub fn heal(&self, a: NodeId, b: NodeId) {
        self.driver.step(|state| {
            let other = state.core.node(b).name.clone();
            state.core.note(a, format_args!("heal with {other}"));
            state.net.heal(&mut state.core, a, b);
        });
    }

    /// The calendar clock of `node` jumps, forth or back.
    pub fn jump_clock(&self, node: NodeId, millis: i64) {
        self.note(node, &format!("the calendar clock jumps by {millis} ms"));
        self.driver.step(|state| {
            let offset = &mut state.core.node_mut(node).clock_offset;
            *offset = offset.saturating_add(millis.saturating_mul(1_000_000));
        });
    }

    /// Ends all partitions.
    pub fn heal_all(&self) {
        let partitions = self.driver.state.borrow().net.partitions();
        for (a, b) in partitions {
            self.heal(a, b);
        }
    }

    /// Resets every connection between the two nodes; both ends learn it after a delay.
    pub fn reset_connections(&self, a: NodeId, b: NodeId) {
        self.driver.step(|state| state.net.sever_all(&mut state.core, a, b));
    }

    /// Segments between the two nodes take `delay` from now on, instead of [`SimConfig::link_delay`].
    pub fn set_link_delay(&self, a: NodeId, b: NodeId, delay: Range<Duration>) {
        self.driver.step(|state| state.net.set_delay(a, b, delay));
    }

    /// The chance of a connection being reset, per call of `send`, from now on.
    pub fn set_connection_reset_ppm(&self, ppm: u32) {
        self.driver.step(|state| state.core.config.connection_reset_ppm = ppm);
    }

    /// Ends every fault that has an end: partitions heal, paused nodes resume, links and disks no longer fail and take
    /// their usual time. Crashed nodes stay down; what was lost is lost.
    pub fn calm(&self) {
        self.mark("calm");
        self.heal_all();
        let nodes = self.driver.state.borrow().core.nodes.len();
        let paused: Vec<NodeId> =
            (0..nodes as u32).map(NodeId).filter(|node| self.driver.state.borrow().core.node(*node).paused).collect();
        paused.into_iter().for_each(|node| self.resume(node));
        self.driver.step(|state| {
            state.core.config.connection_reset_ppm = 0;
            state.net.clear_delays();
            let usual = state.core.config.disk.delay.clone();
            for disk in state.disks.configs_mut().chain([&mut state.core.config.disk]) {
                (disk.read_error_ppm, disk.misread_ppm, disk.write_error_ppm) = (0, 0, 0);
                disk.delay = usual.clone();
            }
        });
    }

    /// Makes a disk of zeroes that `File::open` finds at `path` on `node`; changes size and dials of one that is there.
    ///
    /// # Panics
    /// If it is too large.
    pub fn disk(&self, node: NodeId, path: impl AsRef<Path>, size: u64, config: DiskConfig) {
        let made = self.driver.step(|state| state.disks.create(node, path.as_ref(), size, config));
        made.unwrap_or_else(|error| panic!("the test asks for an impossible disk: {error}"));
    }

    /// Changes the dials of a disk.
    ///
    /// # Panics
    /// If there is no such disk.
    pub fn set_disk_config(&self, node: NodeId, path: impl AsRef<Path>, config: DiskConfig) {
        let disk = self.find(node, path.as_ref());
        self.driver.step(|state| *state.disks.config_mut(disk) = config);
    }

    /// Silently changes every byte of the range, in the cache and on the medium.
    ///
    /// # Panics
    /// If there is no such disk.
    pub fn corrupt(&self, node: NodeId, path: impl AsRef<Path>, offset: u64, len: u64) {
        let disk = self.find(node, path.as_ref());
        self.driver.step(|state| state.disks.corrupt(&mut state.core, disk, offset, len));
    }

    /// What a reader of the disk would see now, from outside and in no time.
    ///
    /// # Panics
    /// If there is no such disk.
    pub fn peek(&self, node: NodeId, path: impl AsRef<Path>, offset: u64, len: usize) -> Vec<u8> {
        let disk = self.find(node, path.as_ref());
        let mut bytes = vec![0; len];
        self.driver.step(|state| state.disks.peek(disk, offset, &mut bytes));
        bytes
    }

    pub(super) fn find(&self, node: NodeId, path: &Path) -> DiskId {
        let found = self.driver.state.borrow().disks.find(node, path);
        // The caller is a test that names what it never made, as documented.
        found.unwrap_or_else(|| panic!("node {node:?} has no disk at {}", path.display()))
    }

    /// The kept text of the trace: its tail, or all of it with [`SimConfig::complete_trace`].
    pub fn trace(&self) -> String {
        self.driver.state.borrow().core.trace.text()
    }

    /// The hash of everything that has happened. Equal for two runs exactly if they were the same run.
    pub fn trace_hash(&self) -> u64 {
        self.driver.state.borrow().core.trace.hash()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Destructors of tasks that a panic has left half-way could panic again: better a leak than an abort.
        // tidy: thread: asks whether the test is failing; nothing in the world depends on it
        if std::thread::panicking() {
            return;
        }
        let _entered = runtime::enter(Context::Sim(self.driver.clone()));
        let nodes = self.driver.state.borrow().core.nodes.len();
        for node in (0..nodes as u32).map(NodeId) {
            let tag = self.tag(node);
            self.driver.state.borrow_mut().core.node_mut(node).up = false;
            self.driver.drop_tasks(tag);
        }
    }
}
