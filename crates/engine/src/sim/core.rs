//! What the machines of the world (network, disks, scheduler) share: clock, queue of events, chance, trace, nodes.

use std::fmt;
use std::rc::Rc;
use std::task::Waker;

use super::config::SimConfig;
use super::event::{Event, EventKey, Events};
use super::id::NodeId;
use super::rng::Rngs;
use super::trace::{Frequent, Trace};

/// Nodes of one world: one byte of their addresses' space would be too few, two are enough.
pub(super) const NODES_MAX: usize = 60_000;

/// The state of one machine.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: Rc<str>,
    pub(super) up: bool,
    pub(super) paused: bool,
    /// Counts crashes: a task, socket or file handle of an earlier life has no effect in a later one.
    pub(super) incarnation: u32,
    /// Error of the wall clock at the world's start, in nanoseconds.
    pub(super) clock_offset: i64,
    /// Error of the wall clock's rate.
    pub(super) clock_drift_ppm: i64,
    /// Error of the monotonic clock's rate.
    pub(super) monotonic_drift_ppm: i64,
    /// How long the monotonic clock has stood still, in nanoseconds.
    pub(super) stood: u64,
    /// Since when it stands still.
    pub(super) stands_since: Option<u64>,
}

impl Node {
    /// What its monotonic clock shows when the world's is `world`.
    pub(super) fn monotonic(&self, world: u64) -> u64 {
        let world = self.stands_since.unwrap_or(world).saturating_sub(self.stood);
        let error = i128::from(world) * i128::from(self.monotonic_drift_ppm) / 1_000_000;
        (i128::from(world) + error).clamp(0, i128::from(u64::MAX)) as u64
    }

    /// The first time of the world's at which its monotonic clock shows `local` or more.
    pub(super) fn world_time(&self, local: u64) -> u64 {
        if self.monotonic_drift_ppm == 0 {
            return local.saturating_add(self.stood);
        }
        let about = i128::from(local) * 1_000_000 / (1_000_000 + i128::from(self.monotonic_drift_ppm));
        let mut world =
            u64::try_from(about - 2).unwrap_or(if about < 2 { 0 } else { u64::MAX }).saturating_add(self.stood);
        // Rounding is off by less than two nanoseconds either way.
        while self.monotonic(world) < local && world < u64::MAX {
            world += 1;
        }
        world
    }
}

/// The shared services.
pub(super) struct Core {
    /// Nanoseconds since the world began.
    pub(super) now: u64,
    pub(super) config: SimConfig,
    pub(super) events: Events,
    pub(super) rngs: Rngs,
    pub(super) trace: Trace,
    pub(super) nodes: Vec<Node>,
    /// To be woken when the world's state is no longer borrowed: a waker is foreign code.
    pub(super) wakes: Vec<Waker>,
    /// To be done then, for the same reason.
    pub(super) later: Vec<Box<dyn FnOnce()>>,
}

impl Core {
    pub(super) fn new(seed: u64, config: SimConfig) -> Core {
        Core {
            now: 0,
            events: Events::default(),
            rngs: Rngs::new(seed),
            trace: Trace::new(config.complete_trace),
            nodes: Vec::new(),
            wakes: Vec::new(),
            later: Vec::new(),
            config,
        }
    }

    pub(super) fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.0 as usize]
    }

    pub(super) fn node_mut(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[node.0 as usize]
    }

    /// Makes `event` happen `delay` nanoseconds from now.
    pub(super) fn after(&mut self, delay: u64, event: Event) -> EventKey {
        self.events.schedule(self.now.saturating_add(delay), event)
    }

    /// A one-way delay of a link.
    pub(super) fn link_delay(&mut self) -> u64 {
        self.rngs.links.nanos(&self.config.link_delay)
    }

    /// Adds a line to the trace.
    pub(super) fn note(&mut self, node: NodeId, what: fmt::Arguments<'_>) {
        let Core { trace, nodes, now, .. } = self;
        trace.line(*now, &nodes[node.0 as usize].name, what);
    }

    /// The same of what happens all the time.
    pub(super) fn note_frequent(&mut self, node: NodeId, what: Frequent) {
        let Core { trace, nodes, now, .. } = self;
        trace.frequent(*now, &nodes[node.0 as usize].name, what);
    }

    /// Queues a wake-up for the end of the current step.
    pub(super) fn wake(&mut self, waker: &mut Option<Waker>) {
        self.wakes.extend(waker.take());
    }
}
