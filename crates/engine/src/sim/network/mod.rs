//! The network between the nodes: names, listeners, handshakes, partitions. What flows on a connection is in `conn::flow`.
//!
//! The fault model:
//! - Any node reaches any other, unless the way there is cut: from one to the other, or both ways. Nothing is lost or reordered
//!   *within* a connection: a partition holds what is under way until it heals; a sender whose bytes were held for the
//!   connection timeout gives up alone, the other side learns of it at its next send (or never). Where only the way back is
//!   cut, bytes arrive but nothing makes room for more than the window.
//! - A request for a connection is refused where nobody listens, waits where the backlog is full, and times out where one
//!   of the two ways is cut or the address belongs to nobody.
//! - A crashed node's connections are reset: the peer learns it after a delay, having received any prefix of what was
//!   under way. A paused node's kernel goes on: handshakes complete and bytes arrive until the window is full.

mod conn;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::task::{Poll, Waker};
use std::time::Duration;

use self::conn::{Conn, pair};
use super::core::{Core, NODES_MAX};
use super::event::{Event, EventKey};
use super::id::{ConnId, ConnectId, NodeId, Side};
use super::rng::nanos;

/// Connections that wait to be accepted, per listener; the 129th's request is repeated by its kernel. Linux's old default.
pub(super) const BACKLOG_MAX: usize = 128;
/// How long a kernel waits before it repeats a request for a connection (Linux: 1 s).
const SYN_RETRY: Duration = Duration::from_secs(1);
/// Ports handed out where a program asks for port 0 or connects (Linux: the same range).
const EPHEMERAL_PORTS: Range<u16> = 32_768..61_000;
/// The nodes' addresses are 10.0.0.1 and up: node `i` has this plus `i`.
const FIRST_ADDRESS: u32 = 0x0A00_0001;

const _: () = assert!(FIRST_ADDRESS as u64 + (NODES_MAX as u64) < 0x0B00_0000);

/// Names a listening socket. The number tells it from an earlier one on the same port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ListenerId {
    node: NodeId,
    port: u16,
    number: u64,
}

/// One side of a connection, as a program holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket {
    pub(crate) conn: ConnId,
    pub(crate) side: Side,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

#[derive(Debug)]
struct Listener {
    number: u64,
    ip: IpAddr,
    backlog: VecDeque<ConnId>,
    acceptors: Vec<Waker>,
}

#[derive(Debug)]
struct Connect {
    from: NodeId,
    local: SocketAddr,
    to: SocketAddr,
    conn: Option<ConnId>,
    /// For good once it is there: what the network still brings is for a request that its kernel has given up.
    outcome: Option<io::Result<ConnId>>,
    timeout: EventKey,
    waker: Option<Waker>,
}

/// The network.
#[derive(Debug, Default)]
pub(super) struct Net {
    conns: BTreeMap<ConnId, Conn>,
    listeners: BTreeMap<(NodeId, u16), Listener>,
    connects: BTreeMap<ConnectId, Connect>,
    /// From one node to another: ways on which everything is held.
    partitions: BTreeSet<(NodeId, NodeId)>,
    /// Handshakes that a partition holds, by the way they are on.
    held: Vec<((NodeId, NodeId), Event)>,
    /// Delays of pairs that differ from the world's.
    delays: BTreeMap<(NodeId, NodeId), Range<Duration>>,
    ports: BTreeMap<NodeId, u16>,
    sequence: u64,
}

/// The address of `node`.
pub(super) fn address(node: NodeId) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(FIRST_ADDRESS + node.0))
}

/// Whose address `ip` is, seen from `from`.
fn resolve(core: &Core, from: NodeId, ip: IpAddr) -> Option<NodeId> {
    match ip {
        ip if ip.is_loopback() => Some(from),
        IpAddr::V4(ip) => {
            let index = u32::from(ip).checked_sub(FIRST_ADDRESS)?;
            ((index as usize) < core.nodes.len()).then_some(NodeId(index))
        }
        IpAddr::V6(_) => None,
    }
}

impl Net {
    /// A listening socket on `node`; port 0 takes a free one.
    pub(super) fn bind(
        &mut self,
        core: &mut Core,
        node: NodeId,
        addr: SocketAddr,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        if !addr.ip().is_unspecified() && resolve(core, node, addr.ip()) != Some(node) {
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, format!("{addr} is no address of this node")));
        }
        let port = if addr.port() == 0 { self.free_port(node) } else { addr.port() };
        if self.listeners.contains_key(&(node, port)) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, format!("port {port} is in use on this node")));
        }
        self.sequence += 1;
        let number = self.sequence;
        let listener = Listener { number, ip: addr.ip(), backlog: VecDeque::new(), acceptors: Vec::new() };
        self.listeners.insert((node, port), listener);
        core.note(node, format_args!("listen :{port}"));
        Ok((ListenerId { node, port, number }, SocketAddr::new(addr.ip(), port)))
    }

    fn free_port(&mut self, node: NodeId) -> u16 {
        let next = self.ports.entry(node).or_insert(EPHEMERAL_PORTS.start);
        // Ends: 28,232 ports; a node with as many listeners would have been refused long before by memory.
        loop {
            let port = *next;
            *next = if port + 1 == EPHEMERAL_PORTS.end { EPHEMERAL_PORTS.start } else { port + 1 };
            if !self.listeners.contains_key(&(node, port)) {
                return port;
            }
        }
    }

    fn listener(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.listeners.get_mut(&(id.node, id.port)).filter(|listener| listener.number == id.number)
    }

    /// The next connection of the backlog.
    pub(super) fn poll_accept(&mut self, id: ListenerId, waker: &Waker) -> Poll<io::Result<Socket>> {
        let Some(listener) = self.listener(id) else {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::NotConnected, "the listening socket is closed")));
        };
        match listener.backlog.pop_front() {
            Some(conn) => Poll::Ready(Ok(self.socket(conn, Side::SERVER))),
            None => {
                if !listener.acceptors.iter().any(|other| other.will_wake(waker)) {
                    listener.acceptors.push(waker.clone());
                }
                Poll::Pending
            }
        }
    }

    /// Closes a listening socket; who waits in its backlog is reset.
    pub(super) fn close_listener(&mut self, core: &mut Core, id: ListenerId) {
        if self.listener(id).is_none() {
            return;
        }
        let Some(mut listener) = self.listeners.remove(&(id.node, id.port)) else { return };
        core.note(id.node, format_args!("listen :{} ends", id.port));
        core.wakes.append(&mut listener.acceptors);
        for conn in listener.backlog {
            self.reset_by(core, conn, Side::SERVER);
        }
    }

    /// Asks for a connection from `from` to `to`.
    pub(super) fn connect(&mut self, core: &mut Core, from: NodeId, to: SocketAddr) -> ConnectId {
        self.sequence += 1;
        let id = ConnectId(self.sequence);
        let ip = if to.ip().is_loopback() { to.ip() } else { address(from) };
        let local = SocketAddr::new(ip, self.free_port(from));
        let timeout = core.after(nanos(core.config.connection_timeout), Event::ConnectTimeout(id));
        self.connects.insert(id, Connect { from, local, to, conn: None, outcome: None, timeout, waker: None });
        core.note(from, format_args!("connect {local} > {to}"));
        if let Some(node) = resolve(core, from, to.ip()) {
            let delay = self.delay(core, from, node);
            core.after(delay, Event::Syn(id));
        }
        id
    }

    /// The outcome of a request for a connection.
    pub(super) fn poll_connect(&mut self, id: ConnectId, waker: &Waker) -> Poll<io::Result<Socket>> {
        let Some(connect) = self.connects.get_mut(&id) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())); // its node has crashed
        };
        match connect.outcome.take() {
            None => {
                connect.waker = Some(waker.clone());
                Poll::Pending
            }
            Some(outcome) => {
                self.connects.remove(&id);
                Poll::Ready(outcome.map(|conn| self.socket(conn, Side::CLIENT)))
            }
        }
    }

    /// Nobody waits for this connection any more.
    pub(super) fn abandon_connect(&mut self, core: &mut Core, id: ConnectId) {
        let Some(connect) = self.connects.remove(&id) else { return };
        core.events.cancel(connect.timeout);
        if let Some(conn) = connect.conn {
            self.close(core, conn, Side::CLIENT);
        }
    }

    fn socket(&self, conn: ConnId, side: Side) -> Socket {
        let ends = &self.conns[&conn];
        Socket { conn, side, local: ends.addr(side), peer: ends.addr(side.other()) }
    }

    /// [`Event::Syn`].
    pub(super) fn syn(&mut self, core: &mut Core, id: ConnectId) {
        let Some(connect) = self.connects.get(&id).filter(|connect| connect.outcome.is_none()) else { return };
        let (from, local, to) = (connect.from, connect.local, connect.to);
        let Some(node) = resolve(core, from, to.ip()) else { return };
        if self.partitioned(from, node) {
            return self.held.push(((from, node), Event::Syn(id)));
        }
        let delay = self.delay(core, from, node);
        let listening = self.listeners.get_mut(&(node, to.port()));
        let Some(listener) = listening.filter(|listener| listener.ip.is_unspecified() || listener.ip == to.ip()) else {
            core.after(delay, Event::SynAnswer { connect: id, conn: None });
            return;
        };
        if listener.backlog.len() >= BACKLOG_MAX {
            core.after(nanos(SYN_RETRY), Event::Syn(id));
            return;
        }
        self.sequence += 1;
        let conn = ConnId(self.sequence);
        listener.backlog.push_back(conn);
        core.wakes.append(&mut listener.acceptors);
        self.conns.insert(conn, Conn::new([(from, local), (node, to)]));
        if let Some(connect) = self.connects.get_mut(&id) {
            connect.conn = Some(conn);
        }
        core.note(node, format_args!("c{} from {local}", conn.0));
        core.after(delay, Event::SynAnswer { connect: id, conn: Some(conn) });
    }

    /// [`Event::SynAnswer`].
    pub(super) fn syn_answer(&mut self, core: &mut Core, id: ConnectId, conn: Option<ConnId>) {
        let Some(connect) = self.connects.get_mut(&id).filter(|connect| connect.outcome.is_none()) else { return };
        if let Some(node) = resolve(core, connect.from, connect.to.ip()) {
            let back = (node, connect.from);
            if self.partitions.contains(&back) {
                return self.held.push((back, Event::SynAnswer { connect: id, conn }));
            }
        }
        core.events.cancel(connect.timeout);
        let outcome = conn.ok_or_else(|| {
            io::Error::new(io::ErrorKind::ConnectionRefused, format!("nobody listens on {}", connect.to))
        });
        core.note(
            connect.from,
            format_args!("connect {} {}", connect.to, if conn.is_some() { "ok" } else { "refused" }),
        );
        connect.outcome = Some(outcome);
        core.wake(&mut connect.waker);
    }

    /// [`Event::ConnectTimeout`].
    pub(super) fn connect_timeout(&mut self, core: &mut Core, id: ConnectId) {
        let Some(connect) = self.connects.get_mut(&id) else { return };
        core.note(connect.from, format_args!("connect {} timed out", connect.to));
        connect.outcome = Some(Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer from {}", connect.to))));
        core.wake(&mut connect.waker);
        if let Some(conn) = connect.conn.take() {
            self.close(core, conn, Side::CLIENT);
        }
    }

    /// The node's sockets end without its programs' doing.
    pub(super) fn crash(&mut self, core: &mut Core, node: NodeId) {
        self.listeners.retain(|(owner, _), _| *owner != node);
        let gone: Vec<ConnectId> =
            self.connects.iter().filter(|(_, connect)| connect.from == node).map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(connect) = self.connects.remove(&id) {
                core.events.cancel(connect.timeout);
            }
        }
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in ids {
            for side in [Side::CLIENT, Side::SERVER] {
                if self.conns.get(&id).is_some_and(|conn| conn.node(side) == node) {
                    self.die(core, id, side);
                }
            }
        }
    }

    /// Whether bytes from one to the other are held.
    fn partitioned(&self, from: NodeId, to: NodeId) -> bool {
        self.partitions.contains(&(from, to))
    }

    /// Holds whatever is or will be under way from one to the other.
    pub(super) fn partition(&mut self, from: NodeId, to: NodeId) {
        if from != to {
            self.partitions.insert((from, to));
        }
    }

    /// Lets go what was held between the two.
    pub(super) fn heal(&mut self, core: &mut Core, a: NodeId, b: NodeId) {
        let healed = pair(a, b);
        let ways = [(a, b), (b, a)].map(|way| self.partitions.remove(&way));
        if ways == [false, false] {
            return;
        }
        let (free, held) =
            std::mem::take(&mut self.held).into_iter().partition(|((from, to), _)| pair(*from, *to) == healed);
        self.held = held;
        let free: Vec<((NodeId, NodeId), Event)> = free;
        for (_, event) in free {
            let delay = self.delay(core, a, b);
            core.after(delay, event);
        }
        let ids: Vec<ConnId> = self.conns.iter().filter(|(_, conn)| conn.joins(healed)).map(|(id, _)| *id).collect();
        for id in ids {
            self.release(core, id);
        }
    }

    /// The ways that are cut now.
    pub(super) fn partitions(&self) -> Vec<(NodeId, NodeId)> {
        self.partitions.iter().copied().collect()
    }

    /// From now on segments between the two take `delay`.
    pub(super) fn set_delay(&mut self, a: NodeId, b: NodeId, delay: Range<Duration>) {
        self.delays.insert(pair(a, b), delay);
    }

    /// Every pair takes the world's delay again.
    pub(super) fn clear_delays(&mut self) {
        self.delays.clear();
    }

    fn delay(&self, core: &mut Core, a: NodeId, b: NodeId) -> u64 {
        match self.delays.get(&pair(a, b)) {
            Some(delay) => core.rngs.links.nanos(delay),
            None => core.link_delay(),
        }
    }
}
