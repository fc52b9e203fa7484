//! A connection: two streams of bytes, one each way.
//!
//! Invariants:
//! - Bytes arrive in order: an `Event::Arrive` takes whatever is first in flight, so events may overtake each other but
//!   bytes never do.
//! - `outstanding` (in flight, unread, and read but not yet credited) never exceeds the window: `send` waits instead. A
//!   slow reader thus slows its writer, and the memory of a connection is bounded.
//! - An end that was closed, shut down or broken takes no bytes: their sender is reset, as TCP does (RFC 9293 §3.10.7).
//! - An end whose handle is gone (`closed`) is never woken and never handed out again.

mod ending;
mod flow;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::task::Waker;

use crate::sim::core::Core;
use crate::sim::id::{NodeId, Side};

#[derive(Debug)]
enum Item {
    Data(Vec<u8>),
    Fin,
    Reset,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Credit {
    None,
    UnderWay,
    Held,
}

/// One end: what has come in, what goes out, and what its program did.
#[derive(Debug)]
struct End {
    node: NodeId,
    addr: SocketAddr,
    inbound: VecDeque<u8>,
    /// The peer will send no more.
    fin: bool,
    /// To be told once, as a socket's pending error is.
    error: Option<io::ErrorKind>,
    /// Reset or timed out.
    broken: bool,
    shut: bool,
    closed: bool,
    receiver: Option<Waker>,
    sender: Option<Waker>,
    flight: VecDeque<Item>,
    /// When the last item in flight arrives.
    arrival: u64,
    /// When the last byte has left, where the bandwidth is limited.
    departure: u64,
    outstanding: usize,
    /// Read by the peer, not yet credited.
    consumed: usize,
    credit: Credit,
    /// Arrivals that a partition holds.
    held: usize,
    /// Counts partitions that held something: tells a late timeout from a current one.
    stall: u64,
}

impl End {
    fn new((node, addr): (NodeId, SocketAddr)) -> End {
        End {
            node,
            addr,
            inbound: VecDeque::new(),
            fin: false,
            error: None,
            broken: false,
            shut: false,
            closed: false,
            receiver: None,
            sender: None,
            flight: VecDeque::new(),
            arrival: 0,
            departure: 0,
            outstanding: 0,
            consumed: 0,
            credit: Credit::None,
            held: 0,
            stall: 0,
        }
    }

    fn wake(&mut self, core: &mut Core) {
        core.wake(&mut self.receiver);
        core.wake(&mut self.sender);
    }

    fn break_with(&mut self, core: &mut Core, kind: io::ErrorKind) {
        if self.broken || self.closed {
            return;
        }
        core.note(self.node, format_args!("{} breaks: {kind:?}", self.addr));
        self.broken = true;
        // After the peer's end (RFC 9293: CLOSE-WAIT) a reset is a broken pipe, and whoever still reads sees the end.
        self.error = Some(if self.fin { io::ErrorKind::BrokenPipe } else { kind });
        self.flight.clear();
        // Of a stream without an end a kernel may or may not hand out what had arrived before the reset.
        if !self.fin && core.rngs.links.coin() {
            self.inbound.clear();
        }
        self.wake(core);
    }
}

/// Two ends.
#[derive(Debug)]
pub(super) struct Conn {
    ends: [End; 2],
    /// The network has reset the connection; nothing arrives any more.
    severed: bool,
}

impl Conn {
    /// A connection between the two addresses, the client's first.
    pub(super) fn new(ends: [(NodeId, SocketAddr); 2]) -> Conn {
        Conn { ends: ends.map(End::new), severed: false }
    }

    pub(super) fn addr(&self, side: Side) -> SocketAddr {
        self.end(side).addr
    }

    pub(super) fn node(&self, side: Side) -> NodeId {
        self.end(side).node
    }

    pub(super) fn joins(&self, nodes: (NodeId, NodeId)) -> bool {
        self.pair() == nodes
    }

    fn pair(&self) -> (NodeId, NodeId) {
        pair(self.ends[0].node, self.ends[1].node)
    }

    /// The way on which what comes to `side` travels.
    fn way_to(&self, side: Side) -> (NodeId, NodeId) {
        (self.node(side.other()), self.node(side))
    }

    fn end(&self, side: Side) -> &End {
        &self.ends[usize::from(side.0)]
    }

    fn end_mut(&mut self, side: Side) -> &mut End {
        &mut self.ends[usize::from(side.0)]
    }
}

/// Two nodes in either order.
pub(super) fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}
