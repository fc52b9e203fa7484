//! What the machine can do at best: bare sockets that exchange the same number of bytes in the same pattern.
//!
//! The answering side is one thread that polls its sockets without ever sleeping, or where asked for a thread for each peer,
//! which sleeps between messages as several processes of one core must; the asking side polls. There is no protocol: a
//! request of `request` bytes is answered by `reply` bytes as soon as its last byte is there.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;

use crate::figures::{Sample, histogram, record};
use crate::machine;

/// How long one message may take before the run is given up.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(10);

/// One exchange: so many bytes out, so many back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Bytes of the request.
    pub request: usize,
    /// Bytes of the reply.
    pub reply: usize,
}

/// NVMe/TCP's 4 KiB read: a command capsule out, a data PDU with the SUCCESS flag back.
pub const READ_4K: Exchange = Exchange { request: 72, reply: 24 + 4096 };
/// A 4 KiB fused compare-and-write with in-capsule data, two responses back.
pub const COMPARE_AND_WRITE_4K: Exchange = Exchange { request: 2 * (72 + 4096), reply: 2 * 24 };

/// Who answers several peers on one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answering {
    /// One thread polls all connections.
    OneThread,
    /// Each connection has a thread, which sleeps until a message comes.
    ThreadEach,
}

impl Answering {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Answering::OneThread => "one thread polls all connections",
            Answering::ThreadEach => "a thread for each connection, asleep between messages",
        }
    }
}

/// The answering peers of a round.
#[derive(Clone, Copy, Debug)]
pub struct Peers {
    /// How many.
    pub count: usize,
    /// How many answers end a phase.
    pub majority: usize,
    /// By whom.
    pub answering: Answering,
    /// Where.
    pub core: usize,
}

/// The answering side: one thread that takes turns over its connections; the i-th message on each is answered as `exchanges[i]`
/// says, cyclically.
struct Answerer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Answerer {
    /// Starts the thread on `core`; it takes exactly `connections` connections before it begins to answer. With one it may
    /// sleep between messages (`sleeps`), otherwise it polls.
    fn start(core: usize, exchanges: Vec<Exchange>, connections: usize, sleeps: bool) -> anyhow::Result<Answerer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on loopback")?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("floor".to_owned()).spawn({
            let stop = Arc::clone(&stop);
            move || {
                machine::pin(core)?;
                let mut peers = Vec::new();
                for _ in 0..connections {
                    let (stream, _) = listener.accept()?;
                    peers.push(Peer::new(stream, sleeps)?);
                }
                let mut buffer = vec![0u8; exchanges.iter().map(|e| e.request.max(e.reply)).max().unwrap_or(0)];
                while !stop.load(Ordering::Relaxed) && !peers.is_empty() {
                    let mut alive = Vec::with_capacity(peers.len());
                    for peer in &mut peers {
                        alive.push(peer.turn(&exchanges, &mut buffer)?);
                    }
                    let mut alive = alive.into_iter();
                    peers.retain(|_| alive.next().unwrap_or(false));
                }
                Ok(())
            }
        })?;
        Ok(Answerer { address, stop, thread: Some(thread) })
    }

    /// Connects the asking side.
    fn connect(&self) -> anyhow::Result<TcpStream> {
        let stream = TcpStream::connect(self.address).context("cannot connect to the answering side")?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// Ends the thread and gives its error, if it had one.
    fn stop(mut self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => anyhow::bail!("the answering thread panicked"),
            None => Ok(()),
        }
    }
}

/// One connection of the answering side: which message it is at, and how much of that has come.
struct Peer {
    stream: TcpStream,
    message: usize,
    received: usize,
}

impl Peer {
    fn new(stream: TcpStream, sleeps: bool) -> io::Result<Peer> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(!sleeps)?;
        Ok(Peer { stream, message: 0, received: 0 })
    }

    /// Takes what is there and answers a message that is whole; false when the peer has closed.
    fn turn(&mut self, exchanges: &[Exchange], buffer: &mut [u8]) -> io::Result<bool> {
        let exchange = exchanges[self.message % exchanges.len()];
        match self.stream.read(&mut buffer[..exchange.request - self.received]) {
            Ok(0) => return Ok(false),
            Ok(n) => self.received += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(e) => return Err(e),
        }
        if self.received == exchange.request {
            self.received = 0;
            self.message += 1;
            send_exactly(&self.stream, &buffer[..exchange.reply])?;
        }
        Ok(true)
    }
}

pub(crate) fn send_exactly(mut stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Asks `peers` one after another in phases: a phase sends its exchange to every peer and ends when `majority` of them have
/// answered (late answers are collected before the next message to that peer). One operation is all `phases` in turn.
pub fn ask(peers: &[TcpStream], phases: &[Exchange], majority: usize, time: Duration) -> anyhow::Result<Sample> {
    let size = phases.iter().map(|e| e.request.max(e.reply)).max().unwrap_or(0);
    let request = vec![0u8; size];
    let mut reply = vec![0u8; size];
    let mut owed = vec![0usize; peers.len()];
    let mut latencies: Histogram<u64> = histogram();
    let cpu = machine::own_cpu_time();
    let begin = Instant::now();
    let mut now = begin;
    while now - begin < time {
        for phase in phases {
            for (peer, owed) in peers.iter().zip(&mut owed) {
                drain(peer, owed, &mut reply, true)?;
                send_exactly(peer, &request[..phase.request])?;
                *owed = phase.reply;
            }
            while owed.iter().filter(|&&bytes| bytes == 0).count() < majority {
                for (peer, owed) in peers.iter().zip(&mut owed) {
                    drain(peer, owed, &mut reply, false)?;
                }
            }
        }
        let done = Instant::now();
        record(&mut latencies, done - now);
        now = done;
    }
    for (peer, owed) in peers.iter().zip(&mut owed) {
        drain(peer, owed, &mut reply, true)?;
    }
    // Asking and answering threads live in this process: their sum is given as the client's.
    let used = machine::own_cpu_time() - cpu;
    Ok(Sample::new(&latencies, now - begin, used, None))
}

/// Takes what has come of the `owed` bytes; all of them if `wait`.
fn drain(mut peer: &TcpStream, owed: &mut usize, reply: &mut [u8], wait: bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + MESSAGE_TIME_MAX;
    while *owed > 0 {
        match peer.read(&mut reply[..*owed]) {
            Ok(0) => anyhow::bail!("the answering side closed the connection"),
            Ok(n) => *owed -= n,
            Err(e) if e.kind() == ErrorKind::WouldBlock && !wait => return Ok(()),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                anyhow::ensure!(Instant::now() < deadline, "no answer within {MESSAGE_TIME_MAX:?}");
                std::hint::spin_loop();
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// One round of the plain ping-pong: `exchange` at depth 1, answered on `answer_core`, asked on `ask_core`.
pub fn ping_pong(exchange: Exchange, ask_core: usize, answer_core: usize, time: Duration) -> anyhow::Result<Sample> {
    let peers = Peers { count: 1, majority: 1, answering: Answering::OneThread, core: answer_core };
    round(&[exchange], peers, ask_core, time)
}

/// One round against `peers`, a connection to each.
pub fn round(phases: &[Exchange], peers: Peers, ask_core: usize, time: Duration) -> anyhow::Result<Sample> {
    let answerers: Vec<Answerer> = match peers.answering {
        Answering::OneThread => vec![Answerer::start(peers.core, phases.to_vec(), peers.count, false)?],
        Answering::ThreadEach => (0..peers.count)
            .map(|_| Answerer::start(peers.core, phases.to_vec(), 1, true))
            .collect::<anyhow::Result<_>>()?,
    };
    let streams: Vec<TcpStream> =
        answerers.iter().cycle().take(peers.count).map(Answerer::connect).collect::<Result<_, _>>()?;
    let sample = machine::pinned(ask_core, || ask(&streams, phases, peers.majority, time))??;
    drop(streams);
    answerers.into_iter().try_for_each(Answerer::stop)?;
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_answers_every_message() {
        let core = machine::cores().unwrap();
        let (ask, answer) = (core[0], core[core.len() - 1]);
        let sample = ping_pong(READ_4K, ask, answer, Duration::from_millis(50)).unwrap();
        assert!(sample.operations > 0 && sample.p50_us > 0.0, "{sample:?}");
    }

    #[test]
    fn a_majority_of_three_is_enough_for_an_operation() {
        let core = machine::cores().unwrap();
        let (ask, answer) = (core[0], core[core.len() - 1]);
        for answering in [Answering::OneThread, Answering::ThreadEach] {
            let peers = Peers { count: 3, majority: 2, answering, core: answer };
            let sample = round(&[READ_4K, COMPARE_AND_WRITE_4K], peers, ask, Duration::from_millis(100)).unwrap();
            assert!(sample.operations > 0, "{answering:?}: {sample:?}");
        }
    }
}
