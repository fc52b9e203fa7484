//! The gateway's sockets: one task per connection drives its [`Session`].
//!
//! Invariants:
//! - A write that was started is finished even when its connection ends: a put that is cut off midway would leave copies
//!   on a minority, and space claimed for it.
//! - Nothing is received while there is no room for the command that is on its way (`memory`); nobody who holds room may stall.
//! - Where clients have to say who they are, one address has a share of the places until its connections have: whoever says
//!   nothing, and comes back when it is ended for that, leaves room for others.
//! - One receive and one send are outstanding at most; nothing is received while the session accepts nothing, so that a peer
//!   that is too fast is slowed by its own socket.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use engine::net::peers::{Peer, Peers};
use engine::net::serving::{Dealer, accept_next, all_closed};
use engine::net::{DetachedStream, SendBatch, TcpListener, TcpStream};
use engine::sync::{MailReceiver, MailSender, Notify, Permit, Semaphore};
use engine::task::{LocalFuture, Task};
use engine::{Buf, time};
use tls::{CertificateContext, HANDSHAKE_TIME_MAX, REFUSALS_MAX, Transport};

use super::backend::Backend;
use super::carry::{Input, Jobs, Limit, Patience, RECEIVE_LONG_BYTES, poll_slot};
use super::execute::Executor;
use super::memory::{Budget, Hold};
use super::reply::Reply;
use super::session::{Job, Session};
use super::stats::{GatewayState, GatewayStats};
use super::turn::{Order, Turn};
use super::{COMMAND_BYTES_FREE, ROOM_TIME_MAX, STALL_SECONDS_MAX, STALL_SECONDS_SCARCE};
use crate::Store;

/// What one send gathers: long enough to be cheap, short enough that its end is progress within the send's time limit.
const SEND_BYTES: usize = 256 << 10;

/// The connections of one reactor thread, all served by one backend.
pub struct Gateway<B> {
    executor: Rc<Executor<B>>,
    connections_max: usize,
    connections: Rc<Cell<usize>>,
    /// Those of them that have yet to say who they are.
    newcomers: Peers,
    /// Peers over the limit that are being told so.
    refusals: Semaphore,
    stopping: Rc<Cell<bool>>,
    /// Wakes every connection to look at `stopping`, and whether others want it to end.
    stop: Notify,
    /// Wakes them when others do.
    _kills: Task<()>,
    /// Certificate and key, if connections are TLS ones.
    tls: Option<CertificateContext>,
    /// Wakes [`Gateway::stop`] when a connection has ended.
    ended: Notify,
    /// Serves a connection. A pointer, so that all of that is compiled where the gateway is made, not where it accepts.
    serve: fn(Connection<B>, Peer) -> LocalFuture<'static, ()>,
}

impl Store {
    /// A gateway in front of this store, for the current thread. `shared` is common to all threads of a gateway.
    pub fn gateway(&self, shared: Arc<GatewayState>, connections_max: usize) -> Gateway<Store> {
        Gateway::new(Rc::new(self.clone()), shared, connections_max)
    }
}

impl<B: Backend> Gateway<B> {
    /// A gateway in front of `backend`, for the current thread. `shared` is common to all threads of a gateway.
    pub fn new(backend: Rc<B>, shared: Arc<GatewayState>, connections_max: usize) -> Gateway<B> {
        let stop = Notify::new();
        let kills = pass_kills_on(shared.add_thread(), stop.clone());
        let newcomers = if shared.asks_password() { Peers::newcomers(connections_max) } else { Peers::unbounded() };
        Gateway {
            executor: Rc::new(Executor { backend, shared, budget: Budget::default() }),
            connections_max,
            connections: Rc::default(),
            newcomers,
            refusals: Semaphore::new(REFUSALS_MAX),
            stopping: Rc::default(),
            stop,
            _kills: engine::task::spawn(kills),
            tls: None,
            ended: Notify::new(),
            serve: |connection, newcomer| Box::pin(connection.serve(newcomer)),
        }
    }

    /// The same for TLS connections alone.
    pub fn with_tls(self, tls: CertificateContext) -> Gateway<B> {
        Gateway { tls: Some(tls), newcomers: Peers::newcomers(self.connections_max), ..self }
    }

    /// The same with other room for what clients make it hold.
    pub fn with_budget(self, budget: Budget) -> Gateway<B> {
        let Executor { backend, shared, .. } = &*self.executor;
        let executor = Rc::new(Executor { backend: backend.clone(), shared: shared.clone(), budget });
        Gateway { executor, ..self }
    }

    /// Accepts until the future is dropped. Connections go round this thread and `others`.
    pub fn accept<'a>(
        &'a self,
        listener: &'a TcpListener,
        others: &'a [MailSender<DetachedStream>],
    ) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            let mut dealer = Dealer::new(others);
            loop {
                let (stream, _) = accept_next(|| listener.accept(), || ()).await;
                if let Some(stream) = dealer.deal(stream.detach()) {
                    self.adopt(stream.attach());
                }
            }
        })
    }

    /// Serves the connections that another thread accepts, until that thread is gone.
    pub fn adopt_all<'a>(&'a self, mail: &'a MailReceiver<DetachedStream>) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            while let Some(stream) = mail.recv().await {
                self.adopt(stream.attach());
            }
        })
    }

    /// Serves one connection in a task of its own.
    pub fn adopt(&self, stream: TcpStream) {
        let stats = &self.executor.shared.stats;
        GatewayStats::add(&stats.connections_total, 1);
        if self.connections.get() >= self.connections_max {
            return self.refuse(stream);
        }
        let Some(newcomer) = self.newcomers.count(stream.peer_addr().ip()) else {
            GatewayStats::add(&stats.refused_unauthenticated, 1);
            return self.refuse(stream);
        };
        let guard = Open::new(&self.connections, &self.executor.shared, &self.ended);
        let executor = self.executor.clone();
        let (stopping, stop) = (self.stopping.clone(), self.stop.clone());
        let (tls, serve) = (self.tls.clone(), self.serve);
        let connection = async move {
            let _guard = guard;
            let (peer, local) = (stream.peer_addr(), stream.local_addr());
            match Transport::accept(stream, tls.as_ref()).await {
                Ok(stream) => {
                    serve(Connection { executor, stream, peer, local, stopping, stop }, newcomer).await;
                }
                Err(error) => tracing::warn!(%peer, %error, "no TLS connection"),
            }
        };
        engine::task::spawn(connection).detach();
    }

    fn refuse(&self, stream: TcpStream) {
        GatewayStats::add(&self.executor.shared.stats.connections_refused, 1);
        let why = b"-ERR max number of clients reached\r\n";
        Transport::Plain(stream).refuse_apart(&self.refusals, self.tls.is_some(), why);
    }

    /// Lets every connection finish what was received, then closes them; waits a bounded time.
    pub fn stop(&self) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            self.stopping.set(true);
            self.stop.notify_all();
            all_closed(|| self.connections.get(), &self.ended).await;
        })
    }
}

/// Counts one open connection, whatever way its task ends.
struct Open {
    connections: Rc<Cell<usize>>,
    shared: Arc<GatewayState>,
    ended: Notify,
}

impl Open {
    fn new(connections: &Rc<Cell<usize>>, shared: &Arc<GatewayState>, ended: &Notify) -> Open {
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

/// Has every connection look whether it is to end when [`GatewayState::kill`] has named some.
async fn pass_kills_on(mail: MailReceiver<()>, stop: Notify) {
    while mail.recv().await.is_some() {
        stop.notify_all();
    }
}

struct Connection<B> {
    executor: Rc<Executor<B>>,
    stream: Transport,
    peer: SocketAddr,
    local: SocketAddr,
    stopping: Rc<Cell<bool>>,
    stop: Notify,
}

/// What a connection waits for.
enum Event {
    Received(io::Result<usize>, Buf),
    Sent(io::Result<()>, SendBatch),
    Done(Job, Reply, Hold),
    /// There is room for more of a command, or has not been for too long.
    Room(Option<Permit>),
    /// Time to look at the peer.
    Time(Limit),
    Stop,
}

impl<B: Backend> Connection<B> {
    async fn serve(self, newcomer: Peer) {
        let (peer, local) = (self.peer, self.local);
        let mut session = Session::new(self.executor.shared.clone(), peer.to_string(), local.to_string());
        let mut jobs = Jobs { sets: Vec::new(), slots: 0 };
        let gone = Rc::new(Cell::new(false));
        let order = Order::default();
        let next = |session: &mut Session| {
            let job = self.executor.budget.lets_begin(&order).then(|| session.next_job())??;
            Some(run(self.executor.clone(), gone.clone(), order.turn(), job))
        };
        let mut room = Hold::default();
        if let Err(error) = self.drive(&mut session, &mut jobs, &mut room, Patience::new(newcomer), next).await {
            tracing::debug!(%peer, %error, "connection ended");
        }
        if let Some(error) = session.protocol_error() {
            tracing::warn!(%peer, %error, "connection closed");
        }
        self.stream.shutdown();
        gone.set(true);
        // Commands outlive their connection, and so does their room: whoever ends connections and begins others would else have
        // any number of them under way.
        session.forget_waiting();
        room.shrink_to(room_of(session.command_bytes()));
        while let Some((job, ..)) = poll_fn(|context| jobs.poll_next(context)).await {
            done(&mut session, &mut room, job, Reply::Null, Hold::default());
        }
    }

    /// Serves until the connection is finished or broken.
    async fn drive<F: Future<Output = (Job, Reply, Hold)>>(
        &self,
        session: &mut Session,
        jobs: &mut Jobs<F>,
        room: &mut Hold,
        mut patience: Patience,
        next: impl Fn(&mut Session) -> Option<F>,
    ) -> io::Result<()> {
        let (mut receiving, mut sending, mut growing) = (pin!(None), pin!(None), pin!(None));
        let mut stop = pin!(Some(self.stop.notified()));
        let mut batch = Some(SendBatch::new());
        let mut input = Input::default();
        loop {
            // Looked at before every wait: a stop between two events would else be missed.
            self.heed_others(session)?;
            input.decode(session);
            std::iter::from_fn(|| next(session)).for_each(|job| jobs.push(job));
            if !session.output().is_empty()
                && let Some(mut ready) = batch.take()
            {
                self.gather(&mut ready, session);
                patience.sends = Some(time::now());
                sending.set(Some(self.stream.send(ready)));
            }
            if receiving.is_none() && growing.is_none() && input.is_empty() && session.accepts() {
                growing.set(self.fit(session.command_bytes(), room));
                if growing.is_none() {
                    patience.receives(session.is_amid_command() && room.bytes() > 0);
                    receiving.set(Some(self.stream.recv(input.buffer(session.expected_bytes()))));
                }
            }
            if session.is_finished() && sending.is_none() {
                return Ok(());
            }
            patience.begin(session.is_authenticated());
            let event = poll_fn(|context| {
                if let Some((result, buf)) = poll_slot(receiving.as_mut(), context) {
                    return Poll::Ready(Event::Received(result, buf));
                }
                if let Poll::Ready(Some((job, reply, hold))) = jobs.poll_next(context) {
                    return Poll::Ready(Event::Done(job, reply, hold));
                }
                if let Some((result, batch)) = poll_slot(sending.as_mut(), context) {
                    return Poll::Ready(Event::Sent(result, batch));
                }
                if let Some(more) = poll_slot(growing.as_mut(), context) {
                    return Poll::Ready(Event::Room(more.ok()));
                }
                if let Poll::Ready(limit) = patience.poll(context) {
                    return Poll::Ready(Event::Time(limit));
                }
                poll_slot(stop.as_mut(), context).map_or(Poll::Pending, |()| Poll::Ready(Event::Stop))
            });
            match event.await {
                Event::Received(result, buf) => {
                    patience.received(*result.as_ref().unwrap_or(&0), room.bytes());
                    self.received(session, &mut input, result?, buf);
                }
                Event::Sent(result, sent) => {
                    (batch, patience.sends) = (result.map(|()| Some(sent))?, None);
                    session.output().sent();
                }
                Event::Done(job, reply, hold) => done(session, room, job, reply, hold),
                Event::Room(Some(more)) => room.push(more),
                Event::Room(None) => session.refuse_command(),
                Event::Time(limit) => self.look(&patience, limit)?,
                Event::Stop => stop.set(Some(self.stop.notified())),
            }
        }
    }

    /// Ends the session, or the connection, if others want that.
    fn heed_others(&self, session: &mut Session) -> io::Result<()> {
        if self.stopping.get() {
            session.close();
        }
        match session.is_killed() {
            true => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "ended by another client")),
            false => Ok(()),
        }
    }

    /// Holds room for so many bytes of commands; what it waits for, if there is not enough now.
    fn fit(
        &self,
        bytes: usize,
        room: &mut Hold,
    ) -> Option<impl Future<Output = Result<Permit, time::Elapsed>> + 'static + use<B>> {
        let wanted = room_of(bytes);
        room.shrink_to(wanted);
        let (commands, lacking) = (self.executor.budget.commands(), wanted - room.bytes());
        match commands.try_acquire(lacking) {
            Some(more) => {
                room.push(more);
                None
            }
            None if lacking == 0 => None,
            None => Some(time::timeout(ROOM_TIME_MAX, commands.acquire(lacking))),
        }
    }

    /// An error if the peer has kept others waiting for longer than it may.
    fn look(&self, patience: &Patience, limit: Limit) -> io::Result<()> {
        let scarce = self.executor.budget.is_scarce();
        let max = Duration::from_secs(if scarce { STALL_SECONDS_SCARCE } else { STALL_SECONDS_MAX });
        let (what, max) = match limit {
            Limit::Unknown => (Some("no password"), HANDSHAKE_TIME_MAX),
            Limit::Stall => (patience.stalls(max), max),
        };
        let Some(what) = what else { return Ok(()) };
        tracing::warn!(peer = %self.peer, "closed: {what} for {max:?}");
        Err(io::ErrorKind::TimedOut.into())
    }

    fn received(&self, session: &mut Session, input: &mut Input, bytes: usize, buf: Buf) {
        GatewayStats::add(&self.executor.shared.stats.bytes_received, bytes as u64);
        if bytes == 0 {
            // What was sent before the peer closed its side is answered all the same.
            session.close();
        }
        *input = Input::new(buf);
    }

    fn gather(&self, batch: &mut SendBatch, session: &mut Session) {
        while !batch.is_full()
            && batch.len() < SEND_BYTES
            && let Some(chunk) = session.output().pop()
        {
            batch.view(chunk);
        }
        GatewayStats::add(&self.executor.shared.stats.bytes_sent, batch.len() as u64);
    }
}

/// A job has ended, and with it the need for the room of its command: its peer may not send anything for a long time.
fn done(session: &mut Session, room: &mut Hold, job: Job, reply: Reply, hold: Hold) {
    session.complete(job, reply, hold);
    room.shrink_to(room_of(session.command_bytes()));
}

/// The room that so many bytes of commands take.
fn room_of(bytes: usize) -> usize {
    if bytes <= COMMAND_BYTES_FREE { 0 } else { bytes.next_multiple_of(RECEIVE_LONG_BYTES) }
}

/// Executes one job and takes its time.
async fn run<B: Backend>(
    executor: Rc<Executor<B>>,
    gone: Rc<Cell<bool>>,
    turn: Rc<Turn>,
    job: Job,
) -> (Job, Reply, Hold) {
    let started = time::now();
    let (reply, hold) = executor.execute(job.request, &job.command, turn, &gone).await;
    let stats = &executor.shared.stats;
    let us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    stats.by_command()[job.place].took(us);
    let histogram = if job.access.writes() { &stats.write_latency } else { &stats.read_latency };
    histogram.record_units(us);
    (job, reply, hold)
}
