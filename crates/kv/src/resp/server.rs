//! The gateway's sockets: one task per connection drives its [`Session`].
//!
//! Invariants:
//! - A write that was started is finished even when its connection ends: a put that is cut off midway would leave copies
//!   on a minority, and space claimed for it.
//! - One receive and one send are outstanding at most; nothing is received while the session accepts nothing, so that a peer
//!   that is too fast is slowed by its own socket.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use engine::net::{DetachedStream, SendBatch, TcpListener, TcpStream};
use engine::sync::{MailReceiver, MailSender, Notify};
use engine::task::{LocalFuture, Task, TaskSet};
use engine::{Buf, time};
use fabric::tls::{CertificateContext, ClientStream};

use super::SEND_SECONDS_MAX;
use super::backend::Backend;
use super::execute::execute;
use super::reply::Reply;
use super::session::{Job, Session};
use super::stats::{GatewayStats, Shared};
use crate::Store;

/// What one receive takes while commands are short.
const RECEIVE_BYTES: usize = 16 << 10;
/// What one receive takes in the middle of a long value.
const RECEIVE_LONG_BYTES: usize = 256 << 10;
/// What one send gathers: long enough to be cheap, short enough that its end is progress within the send's time limit.
const SEND_BYTES: usize = 256 << 10;
/// The pause after an accept failed, as it does when descriptors run out: a loop without it would burn the core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long [`Gateway::stop`] waits for connections to finish what they have begun.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// The connections of one reactor thread, all served by one backend.
pub struct Gateway<B> {
    backend: Rc<B>,
    shared: Arc<Shared>,
    connections_max: usize,
    connections: Rc<Cell<usize>>,
    stopping: Rc<Cell<bool>>,
    /// Wakes every connection to look at `stopping` and `open`.
    stop: Notify,
    /// Connections by their number; true: it is to end.
    open: Rc<RefCell<BTreeMap<u64, bool>>>,
    /// Notes which connections are to end.
    _kills: Task<()>,
    /// Certificate and key, if connections are TLS ones.
    tls: Option<CertificateContext>,
    /// Wakes [`Gateway::stop`] when a connection has ended.
    ended: Notify,
    /// Serves a connection. A pointer, so that all of that is compiled where the gateway is made, not where it accepts.
    serve: fn(Connection<B>) -> LocalFuture<'static, ()>,
}

impl Store {
    /// A gateway in front of this store, for the current thread. `shared` is common to all threads of a gateway.
    pub fn gateway(&self, shared: Arc<Shared>, connections_max: usize) -> Gateway<Store> {
        Gateway::new(Rc::new(self.clone()), shared, connections_max)
    }
}

impl<B: Backend> Gateway<B> {
    /// A gateway in front of `backend`, for the current thread. `shared` is common to all threads of a gateway.
    pub fn new(backend: Rc<B>, shared: Arc<Shared>, connections_max: usize) -> Gateway<B> {
        let (stop, open) = (Notify::new(), Rc::new(RefCell::new(BTreeMap::new())));
        let kills = note_kills(shared.add_thread(), open.clone(), stop.clone());
        Gateway {
            backend,
            shared,
            connections_max,
            connections: Rc::default(),
            stopping: Rc::default(),
            stop,
            open,
            _kills: engine::task::spawn(kills),
            tls: None,
            ended: Notify::new(),
            serve: |connection| Box::pin(connection.serve()),
        }
    }

    /// The same for TLS connections alone.
    pub fn with_tls(self, tls: CertificateContext) -> Gateway<B> {
        Gateway { tls: Some(tls), ..self }
    }

    /// Accepts until the future is dropped. Connections go round this thread and `others`.
    pub async fn accept(&self, listener: &TcpListener, others: &[MailSender<DetachedStream>]) {
        let mut turn = 0;
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            turn = (turn + 1) % (others.len() + 1);
            match others.get(turn.wrapping_sub(1)) {
                None => self.adopt(stream),
                Some(other) => {
                    if other.send(stream.detach()).await.is_err() {
                        tracing::warn!("a gateway thread has ended: the connection is closed");
                    }
                }
            }
        }
    }

    /// Serves the connections that another thread accepts, until that thread is gone.
    pub async fn adopt_all(&self, mail: &MailReceiver<DetachedStream>) {
        while let Some(stream) = mail.recv().await {
            self.adopt(stream.attach());
        }
    }

    /// Serves one connection in a task of its own.
    pub fn adopt(&self, stream: TcpStream) {
        let stats = &self.shared.stats;
        GatewayStats::add(&stats.connections_total, 1);
        if self.connections.get() >= self.connections_max {
            GatewayStats::add(&stats.connections_refused, 1);
            engine::task::spawn(refuse(stream)).detach();
            return;
        }
        let guard = Open::new(&self.connections, &self.shared, &self.ended);
        let (backend, shared) = (self.backend.clone(), self.shared.clone());
        let (stopping, stop, open) = (self.stopping.clone(), self.stop.clone(), self.open.clone());
        let (tls, serve) = (self.tls.clone(), self.serve);
        let connection = async move {
            let _guard = guard;
            let (peer, local) = (stream.peer_addr(), stream.local_addr());
            match ClientStream::accept(stream, tls.as_ref()).await {
                Ok(stream) => {
                    serve(Connection { backend, shared, stream, peer, local, stopping, stop, open }).await;
                }
                Err(error) => tracing::warn!(%peer, %error, "no TLS connection"),
            }
        };
        engine::task::spawn(connection).detach();
    }

    /// Lets every connection finish what was received, then closes them; waits a bounded time.
    pub async fn stop(&self) {
        self.stopping.set(true);
        self.stop.notify_all();
        let all_ended = async {
            while self.connections.get() > 0 {
                self.ended.notified().await;
            }
        };
        if time::timeout(STOP_PATIENCE, all_ended).await.is_err() {
            tracing::warn!(connections = self.connections.get(), "closed with commands under way");
        }
    }
}

/// Counts one open connection, whatever way its task ends.
struct Open {
    connections: Rc<Cell<usize>>,
    shared: Arc<Shared>,
    ended: Notify,
}

impl Open {
    fn new(connections: &Rc<Cell<usize>>, shared: &Arc<Shared>, ended: &Notify) -> Open {
        connections.set(connections.get() + 1);
        GatewayStats::add(&shared.stats.connections, 1);
        Open { connections: connections.clone(), shared: shared.clone(), ended: ended.clone() }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connections.set(self.connections.get() - 1);
        self.shared.stats.connections.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        self.ended.notify_all();
    }
}

async fn refuse(stream: TcpStream) {
    let mut batch = SendBatch::new();
    batch.head(b"-ERR max number of clients reached\r\n");
    // The peer may be gone already; there is nobody else to tell.
    let _ = time::timeout(ACCEPT_PAUSE, stream.send(batch)).await;
}

/// Notes the connections that [`Shared::kill`] names.
async fn note_kills(mail: MailReceiver<u64>, open: Rc<RefCell<BTreeMap<u64, bool>>>, stop: Notify) {
    while let Some(id) = mail.recv().await {
        // Every thread is told; one of them has it, unless it has ended.
        if let Some(ends) = open.borrow_mut().get_mut(&id) {
            *ends = true;
            stop.notify_all();
        }
    }
}

struct Connection<B> {
    backend: Rc<B>,
    shared: Arc<Shared>,
    stream: ClientStream,
    peer: SocketAddr,
    local: SocketAddr,
    stopping: Rc<Cell<bool>>,
    stop: Notify,
    open: Rc<RefCell<BTreeMap<u64, bool>>>,
}

/// What a connection waits for.
enum Event {
    Received(io::Result<usize>, Buf),
    Sent(io::Result<()>, SendBatch),
    Done(Job, Reply),
    SendTimeout,
    Stop,
}

impl<B: Backend> Connection<B> {
    async fn serve(self) {
        let (peer, local) = (self.peer, self.local);
        let mut session = Session::new(self.shared.clone(), peer.to_string(), local.to_string());
        self.open.borrow_mut().insert(session.id(), false);
        let mut jobs = Jobs { sets: Vec::new(), slots: 0 };
        let gone = Rc::new(Cell::new(false));
        let start = |job| run(self.backend.clone(), self.shared.clone(), gone.clone(), job);
        if let Err(error) = self.drive(&mut session, &mut jobs, start).await {
            tracing::debug!(%peer, %error, "connection ended");
        }
        if let Some(error) = session.protocol_error() {
            tracing::warn!(%peer, %error, "connection closed");
        }
        self.open.borrow_mut().remove(&session.id());
        self.stream.shutdown();
        gone.set(true);
        while poll_fn(|context| jobs.poll_next(context)).await.is_some() {}
    }

    /// Serves until the connection is finished or broken.
    async fn drive<F: Future<Output = (Job, Reply)>>(
        &self,
        session: &mut Session,
        jobs: &mut Jobs<F>,
        start: impl Fn(Job) -> F,
    ) -> io::Result<()> {
        let mut receiving = pin!(None);
        let mut sending = pin!(None);
        let mut send_limit = pin!(None);
        let mut stop = pin!(Some(self.stop.notified()));
        let mut batch = Some(SendBatch::new());
        let mut input = Input::default();
        loop {
            // Looked at before every wait: a stop between two events would else be missed.
            if self.stopping.get() {
                session.close();
            }
            if self.open.borrow().get(&session.id()) == Some(&true) {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "ended by another client"));
            }
            input.decode(session);
            while let Some(job) = session.next_job() {
                jobs.push(start(job));
            }
            if !session.output().is_empty()
                && let Some(mut ready) = batch.take()
            {
                self.gather(&mut ready, session);
                sending.set(Some(self.stream.send(ready)));
                send_limit.set(Some(time::sleep(Duration::from_secs(SEND_SECONDS_MAX))));
            }
            if receiving.is_none() && input.is_empty() && session.accepts() {
                receiving.set(Some(self.stream.recv(input.buffer(session.expected_bytes()))));
            }
            if session.is_finished() && sending.is_none() {
                return Ok(());
            }
            let event = poll_fn(|context| {
                if let Some((result, buf)) = poll_slot(receiving.as_mut(), context) {
                    return Poll::Ready(Event::Received(result, buf));
                }
                if let Poll::Ready(Some((job, reply))) = jobs.poll_next(context) {
                    return Poll::Ready(Event::Done(job, reply));
                }
                if let Some((result, batch)) = poll_slot(sending.as_mut(), context) {
                    return Poll::Ready(Event::Sent(result, batch));
                }
                if poll_slot(send_limit.as_mut(), context).is_some() {
                    return Poll::Ready(Event::SendTimeout);
                }
                poll_slot(stop.as_mut(), context).map_or(Poll::Pending, |()| Poll::Ready(Event::Stop))
            });
            match event.await {
                Event::Received(result, buf) => self.received(session, &mut input, result?, buf),
                Event::Sent(result, sent) => {
                    result?;
                    send_limit.set(None);
                    batch = Some(sent);
                }
                Event::Done(job, reply) => session.complete(job, reply),
                Event::SendTimeout => {
                    tracing::warn!(peer = %self.peer, "closed: replies unread for {SEND_SECONDS_MAX} s");
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Event::Stop => stop.set(Some(self.stop.notified())),
            }
        }
    }

    fn received(&self, session: &mut Session, input: &mut Input, bytes: usize, buf: Buf) {
        GatewayStats::add(&self.shared.stats.bytes_received, bytes as u64);
        if bytes == 0 {
            // What was sent before the peer closed its side is answered all the same.
            session.close();
        }
        *input = Input { buf, used: 0 };
    }

    fn gather(&self, batch: &mut SendBatch, session: &mut Session) {
        while !batch.is_full()
            && batch.len() < SEND_BYTES
            && let Some(chunk) = session.output().pop()
        {
            batch.view(chunk);
        }
        GatewayStats::add(&self.shared.stats.bytes_sent, batch.len() as u64);
    }
}

/// Jobs of one connection that run. The slots grow to the depth that the peer uses and stay: a put's future takes a few
/// kilobytes, and most connections send one command at a time.
struct Jobs<F> {
    sets: Vec<TaskSet<F>>,
    slots: usize,
}

impl<F: Future> Jobs<F> {
    fn push(&mut self, mut job: F) {
        for set in &mut self.sets {
            match set.push(job) {
                Ok(_) => return,
                Err(back) => job = back,
            }
        }
        // As many again: there are never more than RUNNING_MAX jobs, so slots stay below twice that.
        let mut set = TaskSet::new(self.slots.max(1));
        self.slots += self.slots.max(1);
        let pushed = set.push(job);
        assert!(pushed.is_ok(), "invariant: a new set has a free slot");
        self.sets.push(set);
    }

    /// The next result; `None` if nothing runs.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        let mut any = false;
        for set in &mut self.sets {
            match set.poll_next(context) {
                Poll::Ready(Some((_, output))) => return Poll::Ready(Some(output)),
                Poll::Ready(None) => {}
                Poll::Pending => any = true,
            }
        }
        if any { Poll::Pending } else { Poll::Ready(None) }
    }
}

/// Executes one job and takes its time.
async fn run<B: Backend>(backend: Rc<B>, shared: Arc<Shared>, gone: Rc<Cell<bool>>, job: Job) -> (Job, Reply) {
    let started = time::now();
    let reply = execute(&*backend, &shared, job.request, &job.command, &gone).await;
    shared.stats.by_command()[job.place].took(started.elapsed());
    let histogram = if job.access.writes() { &shared.stats.write_latency } else { &shared.stats.read_latency };
    histogram.record(started.elapsed());
    (job, reply)
}

/// Received bytes of which some are not decoded yet.
#[derive(Default)]
struct Input {
    buf: Buf,
    used: usize,
}

impl Input {
    fn is_empty(&self) -> bool {
        self.used == self.buf.len()
    }

    fn decode(&mut self, session: &mut Session) {
        let mut rest = &self.buf[self.used..];
        session.receive(&mut rest);
        self.used = self.buf.len() - rest.len();
    }

    /// An empty buffer to receive into; larger while `expected` bytes of one argument are to come.
    fn buffer(&mut self, expected: u64) -> Buf {
        let wanted = if expected > RECEIVE_BYTES as u64 { RECEIVE_LONG_BYTES } else { RECEIVE_BYTES };
        let mut buf = std::mem::take(self).buf;
        if buf.capacity() != wanted {
            return Buf::with_capacity(wanted);
        }
        buf.set_len(0);
        buf
    }
}

/// Polls the future in `slot`, if there is one; empties the slot when it has ended.
fn poll_slot<F: Future>(mut slot: Pin<&mut Option<F>>, context: &mut Context<'_>) -> Option<F::Output> {
    match slot.as_mut().as_pin_mut()?.poll(context) {
        Poll::Ready(output) => {
            slot.set(None);
            Some(output)
        }
        Poll::Pending => None,
    }
}
