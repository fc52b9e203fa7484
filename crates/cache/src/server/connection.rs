//! One connection: does what its session says.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use engine::net::SendBatch;
use engine::{Buf, time};
use tls::Transport;

use super::dump;
use super::holdings::Holdings;
use super::seen::{Activity, Seen};
use super::times::Begun;
use super::watch::{Lines, WAITING_BYTES};
use super::{Counters, Open, Place, Thread, room};
use crate::item::Seconds;
use crate::session::{Awaits, Dump, Ending, FETCHES_MAX, RECEIVE_BYTES, Server, Session, Step, Watch};
use crate::slot::Slots;

/// How long a peer may take to read one batch of replies. Guessed: a slow line's time for 64 KiB, many times over.
const SEND_TIME_MAX: Duration = Duration::from_secs(120);
/// About so many bytes of a dump are made before some are sent.
const DUMP_BYTES: usize = 32 << 10;

/// Where a connection comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// Over TCP.
    Tcp {
        /// The client's address.
        peer: SocketAddr,
        /// Ours.
        local: SocketAddr,
    },
    /// Over a path.
    Unix,
}

impl Origin {
    /// Our own address.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        match self {
            Origin::Tcp { local, .. } => Some(*local),
            Origin::Unix => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Tcp { peer, .. } => Tcp(*peer).fmt(f),
            Origin::Unix => f.write_str("unix:"),
        }
    }
}

/// The other end, as watchers are told it.
struct Remote(Origin);

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Origin::Tcp { peer, .. } => write!(f, "rip={} rport={} transport=tcp", peer.ip(), peer.port()),
            Origin::Unix => f.write_str("rip=unix rport=0 transport=local"),
        }
    }
}

/// An address under memcached's names for its kind.
pub(super) struct Tcp(pub(super) SocketAddr);

impl fmt::Display for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.0.is_ipv4() { "tcp" } else { "tcp6" };
        write!(f, "{kind}:{}", self.0)
    }
}

/// A connection while it is served.
pub(super) struct Connection<S: Slots, V> {
    thread: Rc<Thread<S, V>>,
    open: Rc<Open>,
    session: Session<S>,
    begun: Begun,
    place: Place,
    /// Something was received.
    has_spoken: bool,
}

impl<S: Slots + Holdings, V: Server> Connection<S, V> {
    /// Serves until either side ends it.
    pub(super) async fn serve(thread: Rc<Thread<S, V>>, stream: Transport, origin: Origin, place: Place) {
        let seen = Arc::new(Seen::new(origin, thread.now.get().at));
        let id = thread.shared.opened(seen.clone());
        let open = Rc::new(Open { stream, seen });
        thread.open.borrow_mut().insert(id, open.clone());
        let watchers = thread.shared.watchers();
        let remote = Remote(origin);
        watchers.tell(Watch::CONNEVENTS, &format_args!("type=conn_new {remote} cfd={id}"));
        tracing::debug!(%origin, "<{id} a connection begins");
        let session = Session::new(thread.shared.rules(), thread.shared.hasher(), id);
        let begun = Begun::default();
        let mut connection = Connection { thread: thread.clone(), open, session, begun, place, has_spoken: false };
        let ended = connection.drive().await;
        let error = ended.as_ref().err().map(|error| format!(": {error}")).unwrap_or_default();
        let why = match connection.open.seen.ended().or(ended.ok()).unwrap_or(Ending::Error) {
            Ending::Error => {
                tracing::info!(%origin, "<{id} the connection ends by an error{error}");
                Ending::Error.name()
            }
            ending => {
                tracing::debug!(%origin, reason = ending.name(), "<{id} the connection ends");
                ending.name()
            }
        };
        watchers.tell(Watch::CONNEVENTS, &format_args!("type=conn_close {remote} reason={why} cfd={id}"));
        thread.open.borrow_mut().remove(&id);
        thread.shared.closed(id);
        thread.ended.notify_all();
    }

    async fn drive(&mut self) -> io::Result<Ending> {
        loop {
            let thread = &self.thread;
            let step = self.session.step(&*thread.slots, &thread.server, thread.now.get());
            self.note_known();
            match step {
                // With nothing to send it has run for long enough: others of this thread have their turn.
                Step::Send if self.session.output().is_empty() => engine::task::yield_now().await,
                Step::Send => self.send().await?,
                Step::Receive => {
                    self.send().await?;
                    if !self.receive().await? {
                        return Ok(Ending::Normal);
                    }
                }
                Step::Fetch(places) => {
                    self.begun.reads_flash();
                    self.send().await?;
                    let slots = &*self.thread.slots;
                    let items = Box::pin(all(places.into_iter().map(|place| slots.fetch(place)))).await;
                    self.session.fetched(items);
                }
                Step::MakeRoom(no_room) => {
                    self.send().await?;
                    let made = Box::pin(self.thread.slots.make_room(no_room)).await;
                    self.session.made_room(made);
                }
                // What is seldom has boxes: every connection that rests would have the room for it.
                Step::Watch(watch) => Box::pin(self.watch(watch)).await?,
                Step::Dump(dump) => Box::pin(self.dump(&dump)).await?,
                Step::Close(ending) => return self.send().await.map(|()| ending),
            }
        }
    }

    /// Notes since when it is not known who speaks: that has a deadline, and counts against others of the address.
    fn note_known(&mut self) {
        let (seen, is_known) = (&self.open.seen, self.session.is_known());
        if is_known {
            self.place.is_known();
        }
        if is_known == seen.unknown_since().is_some() {
            seen.set_unknown((!is_known).then(|| self.thread.now.get().at));
        }
    }

    /// Sends what happens until the peer ends the connection.
    async fn watch(&mut self, watch: Watch) -> io::Result<()> {
        let thread = self.thread.clone();
        let Some(_held) = room::hold(&*thread.slots, WAITING_BYTES).await else {
            self.session.output().line(b"WATCHER_FAILED failed to add log watcher");
            self.send().await?;
            return Err(io::Error::other("no memory for a watcher"));
        };
        let Some((number, lines)) = thread.shared.watchers().add(watch) else {
            self.session.output().line(b"WATCHER_TOO_MANY log watcher limit reached");
            self.send().await?;
            return Err(io::Error::other("too many watchers"));
        };
        self.open.seen.set_activity(Activity::Watches);
        let ended = self.tell_of(&lines).await;
        thread.shared.watchers().remove(number);
        ended
    }

    async fn tell_of(&mut self, lines: &Lines) -> io::Result<()> {
        self.send().await?;
        let open = self.open.clone();
        let mut ends = pin!(async move {
            loop {
                // What a watcher says is not listened to; only its end counts.
                match open.stream.recv(Buf::with_capacity(engine::buf::ALIGN)).await {
                    (Ok(1..), _) => {}
                    (result, _) => return result.map(|_| ()),
                }
            }
        });
        loop {
            let next = pin!(lines.next());
            let text = match either(ends.as_mut(), next).await {
                Either::Ended(result) => return result.and(Err(io::ErrorKind::ConnectionAborted.into())),
                Either::Text(text) => text,
            };
            let Some(text) = text else { return Ok(()) };
            self.session.output().bytes(&text);
            self.send().await?;
        }
    }

    /// Sends a line for each item.
    async fn dump(&mut self, dump: &Dump) -> io::Result<()> {
        let mut rest = dump.has_items.then(S::Scan::default);
        let now = self.thread.now.get();
        while let Some(at) = rest {
            let mut text = String::with_capacity(DUMP_BYTES);
            rest = self.thread.slots.scan(at, now.at, &mut |item| dump::line(&mut text, &item, now.began));
            self.session.output().bytes(text.as_bytes());
            self.send().await?;
            // Others of this thread have their turn between two pieces.
            engine::task::yield_now().await;
        }
        self.session.output().line(b"END");
        Ok(())
    }

    /// Receives once. False: the connection is to end.
    async fn receive(&mut self) -> io::Result<bool> {
        let rests = self.session.rest();
        if rests {
            self.begun.answered(&self.thread.times);
        }
        if rests && self.thread.stopping.get() {
            self.open.seen.set_ended(Ending::Shutdown);
            return Ok(false);
        }
        if rests {
            self.session.output().spare().into_iter().for_each(|batch| self.thread.spares.put(batch));
        }
        let seen = &self.open.seen;
        seen.set_activity(match self.session.awaits() {
            _ if rests => Activity::Rests,
            Awaits::Command => Activity::ReadsCommand,
            Awaits::Value => Activity::ReadsValue,
            Awaits::Nothing => Activity::Swallows,
        });
        seen.set_waits((!rests).then(|| self.thread.now.get().at));
        let may_rest = if rests { self.has_spoken } else { self.session.may_condense() };
        let holding = if may_rest { self.thread.resting.hold() } else { None };
        if holding.is_none() {
            without_buffer(&*self.thread.slots, &mut self.session, &self.open.stream).await?;
        }
        let buf = self.session.lend(self.thread.slots.may_hold(RECEIVE_BYTES));
        let (result, buf) = self.open.stream.recv(buf).await;
        drop(holding);
        seen.set_activity(Activity::Runs);
        seen.set_waits(None);
        self.session.receive(buf);
        self.has_spoken = true;
        if rests {
            self.thread.spares.take().into_iter().for_each(|batch| self.session.output().give_back(batch));
        }
        let bytes = result?;
        self.begun.received();
        self.open.seen.set_active(self.thread.now.get().at);
        Counters::add(&self.thread.counters.bytes_read, bytes as u64);
        Ok(bytes > 0)
    }

    /// Sends all that waits.
    async fn send(&mut self) -> io::Result<()> {
        while !self.session.output().is_empty() {
            let batch = self.session.output().take();
            let bytes = batch.len();
            let batch = patiently(&self.open.seen, self.thread.now.get().at, self.open.stream.send(batch)).await?;
            self.session.output().give_back(batch);
            Counters::add(&self.thread.counters.bytes_written, bytes as u64);
        }
        Ok(())
    }
}

/// Waits for bytes without a buffer: at rest, and where little has come of a command, of which many would else hold one each.
async fn without_buffer<S: Slots + Holdings>(
    slots: &S,
    session: &mut Session<S>,
    stream: &Transport,
) -> io::Result<()> {
    if matches!(stream, Transport::Tls(_)) {
        return Ok(());
    }
    let Some(kept) = session.condense() else { return Ok(()) };
    // Of who rests there is nothing to count.
    let _kept = (kept > 0).then(|| room::keep(slots.budget(), kept));
    readable(stream).await
}

/// Waits until there is something to be received, without a buffer. What TLS has decrypted already is not seen at the socket: there
/// the receive waits.
async fn readable(stream: &Transport) -> io::Result<()> {
    match stream {
        Transport::Plain(stream) => stream.readable().await,
        Transport::Unix(stream) => stream.readable().await,
        Transport::Tls(_) => Ok(()),
    }
}

/// Waits for a send as long as a peer may take to read it. The clock is looked at only where the socket has no room.
async fn patiently(
    seen: &Seen,
    now: Seconds,
    send: impl Future<Output = (io::Result<()>, SendBatch)>,
) -> io::Result<SendBatch> {
    let mut send = pin!(send);
    let at_once = poll_fn(|context| Poll::Ready(send.as_mut().poll(context))).await;
    let (result, batch) = match at_once {
        Poll::Ready(sent) => sent,
        Poll::Pending => {
            seen.set_waits(Some(now));
            let sent = time::timeout(SEND_TIME_MAX, send).await;
            seen.set_waits(None);
            sent.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "replies were not read"))?
        }
    };
    result.map(|()| batch)
}

enum Either<E, L> {
    Ended(E),
    Text(L),
}

/// Awaits whichever comes first.
async fn either<E, L>(
    mut ends: std::pin::Pin<&mut impl Future<Output = E>>,
    mut next: std::pin::Pin<&mut impl Future<Output = L>>,
) -> Either<E, L> {
    poll_fn(|context| {
        if let Poll::Ready(ended) = ends.as_mut().poll(context) {
            return Poll::Ready(Either::Ended(ended));
        }
        next.as_mut().poll(context).map(Either::Text)
    })
    .await
}

/// Awaits all at once; the results in their order.
async fn all<T>(mut futures: impl ExactSizeIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    if futures.len() <= 1 {
        return match futures.next() {
            Some(future) => vec![future.await],
            None => Vec::new(),
        };
    }
    let mut set = engine::task::TaskSet::new(futures.len());
    let mut results: Vec<Option<T>> = Vec::new();
    let mut places = [0; FETCHES_MAX];
    for (index, future) in futures.enumerate() {
        results.push(None);
        let pushed = set.push(future);
        let Ok(slot) = pushed else { unreachable!("a session asks for FETCHES_MAX items at most, and the set is new") };
        places[slot] = index;
    }
    while let Some((slot, result)) = poll_fn(|context| set.poll_next(context)).await {
        results[places[slot]] = Some(result);
    }
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_as_memcached_tells_them() {
        let told = |text: &str| Tcp(text.parse().expect("an address")).to_string();
        assert_eq!((&told("127.0.0.1:7")[..], &told("[::1]:7")[..]), ("tcp:127.0.0.1:7", "tcp6:[::1]:7"));
    }
}
