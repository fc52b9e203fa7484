//! The task of one connection: it moves bytes between the socket and the [`Connection`] core, and runs its operations.
//!
//! Invariants:
//! - In each turn of the task: receive, execute, send. All answers that a turn produced leave in one send.
//! - Nothing is allocated per command: operations run in slots that grow to the depth the host uses, buffers come from the
//!   pool, receive and send are two futures that live as long as the connection.
//! - When the task ends or is dropped, the core is dropped with it, which ends the association or frees the queue.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use device::{AnyNamespace, Durability, Error, Lba, Namespace};
use engine::Buf;
use engine::net::{SendBatch, TcpStream};
use engine::task::TaskSet;
use engine::time::{self, Instant, Sleep};
use tls::Transport;

use super::complaints::Complaints;
use super::connection::Connection;
use super::end::End;
use super::io::{self, Job, Operation, Outcome, Work};
use super::limits::{
    COMMANDS_STEP, COPY_BUFFER_BYTES, HANDSHAKE_TIME_MAX, RECEIVE_BYTES, RECEIVE_BYTES_MAX, SILENT_HOST_TIME_MAX,
};
use super::manage::Request;
use super::ports::Origin;
use super::secure::{self, Begun};
use super::serve::Place;
use super::shared::Shared;
use super::turn::{Keep, to_its_end};
use super::zns;

/// After this long without traffic a connection gives back what a burst had made it take.
const QUIET_TIME: Duration = Duration::from_secs(1);

/// How a connection ended.
enum Closed {
    /// The core says so.
    End(End),
    /// The peer closed its side.
    Peer,
    /// The socket failed.
    Socket(std::io::Error),
}

/// Serves `stream` until it ends.
pub(super) async fn drive(shared: Arc<Shared>, stream: TcpStream, place: Place) {
    let Place { port, load, mut ticket } = place;
    let (peer, local) = (stream.peer_addr(), stream.local_addr());
    if let Err(error) = stream.expect_peer(SILENT_HOST_TIME_MAX) {
        tracing::debug!(%peer, %error, "a host that goes without a word is noticed by its keep alive only");
    }
    let accepted = time::now();
    let begun = secure::accept(&shared, stream, port, accepted + HANDSHAKE_TIME_MAX).await;
    let Some(Begun { stream, psk, first }) = begun else { return };
    let origin = Origin { peer, local, port, psk };
    let core = RefCell::new(Connection::new(shared, origin, Some(load), accepted));
    core.borrow_mut().connecting = ticket.connecting.take();
    let taken = core.borrow_mut().receive(&first, accepted);
    debug_assert_eq!(taken, first.len(), "no connection begins with more capsules than it has room for");
    let sending = Cell::new(false);
    let traffic = Cell::new(0);
    let mut receive = pin!(receive(&core, &stream, &traffic));
    let mut send = pin!(send(&core, &stream, &sending));
    let mut timer = Timer::default();
    let mut commands = Commands::new(carry_out);
    let closed = poll_fn(|cx| {
        core.borrow().set_waker(cx.waker());
        loop {
            if let Poll::Ready(closed) = receive.as_mut().poll(cx) {
                return Poll::Ready(closed);
            }
            let paused = core.borrow().is_paused();
            core.borrow_mut().poll(time::now());
            commands.run(&core, cx);
            if let Poll::Ready(error) = send.as_mut().poll(cx) {
                return Poll::Ready(Closed::Socket(error));
            }
            if let Some(end) = ended(&core.borrow(), sending.get()) {
                return Poll::Ready(Closed::End(end));
            }
            // Sending may have made room for commands that waited for data buffers, and for capsules.
            if core.borrow().has_operations() || paused && !core.borrow().is_paused() {
                continue;
            }
            if timer.is_quiet(commands.is_grown(), traffic.get()) {
                commands.shrink();
                core.borrow_mut().shrink();
            }
            let deadline = core.borrow().deadline();
            if !timer.poll(cx, deadline) {
                return Poll::Pending;
            }
        }
    })
    .await;
    stream.shutdown();
    // The host that is told of its bad PDU closes from its side, as it should: the reason is ours all the same.
    let reason = core.borrow().reason().cloned();
    tell(&core.borrow().shared.complaints, peer, &reason.map_or(closed, Closed::End));
    drop(ticket);
}

/// Why the connection must be closed now, if it must. The last answers may be on their way still, but not for ever: a peer that
/// reads nothing would keep its connection and its controller, and a core that is closed has no deadline to be called at.
fn ended(core: &Connection, sending: bool) -> Option<End> {
    core.ended().filter(|end| !(end.answers_first() && sending) || core.is_closed()).cloned()
}

/// Tells the operator why a connection has ended, where the peer or the network did something wrong.
fn tell(complaints: &Complaints, peer: SocketAddr, closed: &Closed) {
    let (what, reason): (&str, &dyn fmt::Display) = match closed {
        Closed::End(end) if end.is_fault() => ("connection ended", end),
        // Linux ends TLS so. What could have been cut off is an incomplete PDU, which has no effect.
        Closed::Socket(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            return tracing::debug!(%peer, reason = %error, "the peer closed the connection");
        }
        Closed::Socket(error) => ("connection lost", error),
        Closed::End(end) => return tracing::debug!(%peer, reason = %end, "connection ended"),
        Closed::Peer => return tracing::debug!(%peer, "the peer closed the connection"),
    };
    complaints.tell(time::now(), &peer, what, reason);
}

/// Feeds the core. Returns only when the connection is over.
async fn receive(core: &RefCell<Connection>, stream: &Transport, traffic: &Cell<u64>) -> Closed {
    let mut buf = Buf::with_capacity(RECEIVE_BYTES);
    loop {
        let direct = core.borrow_mut().take_direct();
        let lent = direct.is_some();
        let (result, mut filled) = match direct {
            Some(direct) => stream.recv(direct).await,
            None => stream.recv(std::mem::take(&mut buf)).await,
        };
        let bytes = match result {
            Ok(0) => return Closed::Peer,
            Ok(bytes) => bytes,
            Err(error) => return Closed::Socket(error),
        };
        traffic.set(traffic.get() + 1);
        if lent {
            core.borrow_mut().received_directly(filled, bytes, time::now());
            continue;
        }
        let mut taken = 0;
        while taken < filled.len() {
            poll_fn(|_| if core.borrow().is_paused() { Poll::Pending } else { Poll::Ready(()) }).await;
            taken += core.borrow_mut().receive(&filled[taken..], time::now());
        }
        // A full buffer: there is more to come than it holds. A hardly used large one: the burst is over.
        let wanted = match filled.capacity() {
            RECEIVE_BYTES if bytes == RECEIVE_BYTES => RECEIVE_BYTES_MAX,
            RECEIVE_BYTES_MAX if bytes < RECEIVE_BYTES / 2 => RECEIVE_BYTES,
            capacity => capacity,
        };
        if wanted == filled.capacity() {
            filled.set_len(0);
            buf = filled;
        } else {
            buf = Buf::with_capacity(wanted);
        }
    }
}

/// Sends what the core has to say. Returns only when the socket failed.
async fn send(core: &RefCell<Connection>, stream: &Transport, sending: &Cell<bool>) -> std::io::Error {
    let mut batch = SendBatch::new();
    loop {
        poll_fn(|_| {
            // The task polls this future after everything that makes output, so no wake is needed.
            if !core.borrow().has_output() {
                return Poll::Pending;
            }
            core.borrow_mut().transmit(&mut batch, time::now());
            Poll::Ready(())
        })
        .await;
        sending.set(true);
        let (result, returned) = stream.send(batch).await;
        sending.set(false);
        batch = returned;
        core.borrow_mut().sent();
        if let Err(error) = result {
            return error;
        }
    }
}

/// Carries out a job; a change that has begun goes on when the connection has gone.
async fn carry_out(job: Job) -> Outcome {
    match job {
        Job::Operation(operation) => execute(operation, to_its_end).await,
        Job::Manage(slot, request) => manage(slot, request, to_its_end).await,
    }
}

/// Carries out Namespace Management or Attachment, or a command of our own.
pub(super) async fn manage(slot: u16, request: Box<Request>, keep: Keep) -> Outcome {
    let (status, dword0, data) = request.execute(keep).await;
    Outcome { slot: Some(slot), result: Ok(()), status: Some(status), data, dwords: dword0.into() }
}

/// Carries out one operation.
pub(super) async fn execute(operation: Operation, keep: Keep) -> Outcome {
    let Operation { slot, namespace, commit, work } = operation;
    if commit && let Err(error) = namespace.flush().await {
        // Who reads is not told that something is protected from writes.
        let error = match error {
            Error::ReadOnly(reason) => Error::WriteFault(reason.to_owned()),
            error => error,
        };
        return Outcome { slot, result: Err(error), status: None, data: Buf::default(), dwords: 0 };
    }
    let result = match work {
        Work::Read { lba, buf } => {
            let (result, data) = namespace.read(lba, buf).await;
            return Outcome { slot, result, status: None, data, dwords: 0 };
        }
        Work::Reserve(request) => {
            let (status, data) = request.execute(keep).await;
            return Outcome { slot, result: Ok(()), status: Some(status), data, dwords: 0 };
        }
        Work::Write { lba, data, durability } => namespace.write(lba, data, durability).await,
        Work::Flush => namespace.flush().await,
        Work::Compare { lba, expected } => namespace.compare(lba, expected).await,
        Work::CompareAndWrite { lba, expected, new, durability } => {
            namespace.compare_and_write(lba, expected, new, durability).await
        }
        Work::WriteZeroes { lba, blocks, durability, deallocates: false } => {
            namespace.write_zeroes(lba, blocks, durability).await
        }
        Work::WriteZeroes { lba, blocks, durability, deallocates: true } => {
            match namespace.deallocate(lba, blocks).await {
                // To deallocate is not stable by itself.
                Ok(()) if durability == Durability::Stable => namespace.flush().await,
                result => result,
            }
        }
        Work::Deallocate { ranges } => {
            let mut result = Ok(());
            for (lba, blocks) in io::ranges(&ranges).filter(|(_, blocks)| *blocks > 0) {
                result = namespace.deallocate(Lba(lba), blocks).await;
                if result.is_err() {
                    break;
                }
            }
            result
        }
        Work::Verify { lba, blocks } => namespace.verify(lba, blocks).await,
        Work::WriteUncorrectable { lba, blocks } => namespace.write_uncorrectable(lba, blocks).await,
        Work::Zones(work) => {
            let (result, data, dwords) = zns::execute(&namespace, work).await;
            return Outcome { slot, result, status: None, data, dwords };
        }
        Work::Copy { lba, ranges, block_size, durability } => {
            let (result, range) = copy(&namespace, lba, &ranges, block_size, durability).await;
            return Outcome { slot, result, status: None, data: Buf::default(), dwords: range.into() };
        }
    };
    Outcome { slot, result, status: None, data: Buf::default(), dwords: 0 }
}

/// Copies the source ranges, one after the other and piece by piece, to where the blocks from `to` on are. With an error
/// comes the number of the range that was not copied whole.
async fn copy(
    namespace: &AnyNamespace,
    to: Lba,
    ranges: &[u8],
    block_size: u32,
    durability: Durability,
) -> (Result<(), Error>, u32) {
    let piece_blocks = u64::from(COPY_BUFFER_BYTES / block_size);
    let mut to = to.0;
    for (index, (mut from, mut left)) in io::copy_ranges(ranges).enumerate() {
        while left > 0 {
            let blocks = left.min(piece_blocks);
            let buf = Buf::with_len(blocks as usize * block_size as usize);
            let (read, buf) = namespace.read(Lba(from), buf).await;
            let copied = match read {
                Ok(()) => namespace.write(Lba(to), buf.freeze(), durability).await,
                Err(error) => Err(error),
            };
            if let Err(error) = copied {
                return (Err(error), index as u32);
            }
            (from, to, left) = (from + blocks, to + blocks, left - blocks);
        }
    }
    (Ok(()), 0)
}

/// The operations under way: task sets of a fixed size each, as many as the queue's depth in use needs. `make` makes the
/// future of an operation; all are of one type, so they live in the sets' slots.
struct Commands<F, M> {
    make: M,
    sets: Vec<TaskSet<F>>,
}

impl<F: Future<Output = Outcome>, M> Commands<F, M> {
    fn new(make: M) -> Commands<F, M> {
        Commands { make, sets: Vec::new() }
    }

    /// Starts what the core has ready and gives it the outcomes, until it has no more and none has ended.
    fn run(&mut self, core: &RefCell<Connection>, cx: &mut Context<'_>)
    where
        M: Fn(Job) -> F,
    {
        loop {
            while let Some(operation) = core.borrow_mut().next_operation() {
                let future = (self.make)(Job::Operation(operation));
                self.push(future);
            }
            while let Some((slot, request)) = core.borrow_mut().next_request() {
                let future = (self.make)(Job::Manage(slot, request));
                self.push(future);
            }
            let mut ended = false;
            for set in &mut self.sets {
                while let Poll::Ready(Some((_, outcome))) = set.poll_next(cx) {
                    core.borrow_mut().complete(outcome);
                    ended = true;
                }
            }
            if !ended && !core.borrow().has_operations() {
                return;
            }
        }
    }

    /// There is always room: the core has no more operations than slots, which the queue's entries bound, and flushes of a
    /// shutdown, one for each namespace.
    fn push(&mut self, future: F) {
        let future = match self.sets.iter_mut().find(|set| !set.is_full()) {
            Some(set) => set.push(future),
            None => Err(future),
        };
        if let Err(future) = future {
            let mut set = TaskSet::new(COMMANDS_STEP);
            let pushed = set.push(future);
            debug_assert!(pushed.is_ok(), "a new set has room");
            self.sets.push(set);
        }
    }

    fn is_grown(&self) -> bool {
        self.sets.len() > 1
    }

    /// Frees what a burst made the sets take, if nothing is under way.
    fn shrink(&mut self) {
        if self.sets.iter().all(TaskSet::is_empty) {
            self.sets.truncate(1);
        }
    }
}

/// The one timer of a connection: for the core's deadline, and for noticing that a burst is over.
#[derive(Default)]
struct Timer {
    armed: Option<(Instant, Sleep)>,
    /// When to look whether the connection is quiet, and the traffic seen when that was decided.
    quiet: Option<(Instant, u64)>,
}

impl Timer {
    /// Arms the timer for what comes first; true if that is now.
    fn poll(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> bool {
        let quiet = self.quiet.map(|(when, _)| when);
        let next = deadline.into_iter().chain(quiet).min();
        let armed = self.armed.as_ref().map(|(when, _)| *when);
        if next != armed {
            self.armed = next.map(|when| (when, time::sleep_until(when)));
        }
        let Some((_, sleep)) = &mut self.armed else { return false };
        let fired = Pin::new(sleep).poll(cx).is_ready();
        if fired {
            self.armed = None;
        }
        fired
    }

    /// Whether a connection that has grown was without traffic for [`QUIET_TIME`].
    fn is_quiet(&mut self, grown: bool, traffic: u64) -> bool {
        match self.quiet {
            None if grown => self.quiet = Some((time::now() + QUIET_TIME, traffic)),
            Some((when, seen)) if time::now() >= when => {
                self.quiet = None;
                return seen == traffic;
            }
            _ => {}
        }
        false
    }
}
