//! One client: negotiation, then requests, each a task of its own.
//!
//! Invariants:
//! - Every request that was read is answered once, in whatever order; a client that says goodbye gets what it has asked for.
//! - A write that was begun is finished although its client has gone.
//! - Requests under way and the bytes they hold are bounded, of a client and of all together; a client that does not read its
//!   answers is given up.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use device::Durability;
use engine::net::SendBatch;
use engine::net::peers::Peer;
use engine::sync::{Notify, Permit, Queue, Semaphore};
use engine::{Buf, View, task, time};
use tls::{CertificateContext, Transport};

use crate::export::{Export, Failed};
use crate::figures::{Figures, add};
use crate::negotiation::{Negotiation, Next, OPTION_HEAD_BYTES, greeting, option_head};
use crate::wire::{Errno, OPTION_BYTES_MAX, PAYLOAD_BYTES_MAX, REQUEST_BYTES, Request};
use crate::wire::{command, command_flag, failure, four, option, success};

/// How long a client may take until it has chosen an export. Guessed.
const NEGOTIATION_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a client may take for the rest of a request, from its first byte, and to read what one send gathers. Chosen: the
/// largest request over a link of five megabits.
const STALL_TIME_MAX: Duration = Duration::from_secs(60);
/// How long an answer may wait for those before it. Chosen: all that a client may have under way, over such a link.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(120);
/// Requests of a client under way. Guessed: Linux's client has at most 128 for each connection.
const REQUESTS_MAX: usize = 128;
/// Data of a client's requests under way, KiB: two of the largest.
const ROOM_KIB: usize = 2 * PAYLOAD_BYTES_MAX as usize / 1024;
/// Received ahead, bytes. Guessed: many requests without data.
const INPUT_BYTES: usize = 16 << 10;
/// What one send gathers, bytes. Guessed.
const SEND_BYTES: usize = 256 << 10;
/// Pieces of memory that one send gathers, at most.
const SEND_PIECES: usize = 64;

/// What all connections of a server share.
pub(crate) struct Common {
    pub exports: Vec<Rc<Export>>,
    pub figures: Arc<Figures>,
    /// Data of all requests under way, KiB.
    pub room: Semaphore,
    pub stopping: Cell<bool>,
    pub stop: Notify,
}

/// Serves a client until one of both has enough.
pub(crate) async fn serve(
    common: Rc<Common>,
    stream: Transport,
    tls: Option<CertificateContext>,
    newcomer: Option<Peer>,
) -> io::Result<()> {
    let negotiated = time::timeout(NEGOTIATION_TIME_MAX, negotiate(&common, stream, tls));
    let negotiated = until_stop(&common, negotiated).await.unwrap_or(Ok(Ok(None)));
    drop(newcomer);
    let Some(chosen) = negotiated.map_err(|_| wrong("no export was chosen in time"))?? else { return Ok(()) };
    let (stream, structured) = (Rc::new(chosen.stream), chosen.structured);
    let replies = Rc::new(Queue::new(REQUESTS_MAX));
    let client = Client { common, export: chosen.export, structured, replies: replies.clone() };
    let sender = task::spawn(send_all(stream.clone(), replies.clone()));
    let result = client.receive_all(&stream, chosen.input).await;
    replies.close();
    sender.outcome().await;
    stream.shutdown();
    result
}

/// Ends with `None` when the server stops.
async fn until_stop<T>(common: &Common, future: impl Future<Output = T>) -> Option<T> {
    let (mut stop, mut future) = (pin!(common.stop.notified()), pin!(future));
    poll_fn(|context| {
        if common.stopping.get() || stop.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(context).map(Some)
    })
    .await
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// What was received and not yet looked at.
#[derive(Default)]
struct Input {
    bytes: Buf,
    taken: usize,
}

impl Input {
    /// Fills `into` to its capacity; `None`: the client has closed its side before the first byte.
    async fn fill(&mut self, stream: &Transport, mut into: Buf) -> io::Result<Option<Buf>> {
        loop {
            let ready = &self.bytes[self.taken..];
            let take = ready.len().min(into.capacity() - into.len());
            into.extend_from_slice(&ready[..take]);
            self.taken += take;
            let missing = into.capacity() - into.len();
            if missing == 0 {
                return Ok(Some(into));
            }
            let received;
            if missing >= INPUT_BYTES {
                (received, into) = stream.recv(into).await;
            } else {
                let mut bytes = std::mem::take(&mut self.bytes);
                if bytes.capacity() == 0 {
                    bytes = Buf::with_capacity(INPUT_BYTES);
                }
                bytes.set_len(0);
                (received, self.bytes) = stream.recv(bytes).await;
                self.taken = 0;
            }
            match received? {
                0 if into.is_empty() => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
    }

    async fn exact<const N: usize>(&mut self, stream: &Transport) -> io::Result<Option<[u8; N]>> {
        let filled = self.fill(stream, Buf::with_capacity(N)).await?;
        Ok(filled.and_then(|buf| buf.first_chunk().copied()))
    }

    /// A request's head: the first byte may take as long as it likes.
    async fn head(&mut self, stream: &Transport) -> io::Result<Option<[u8; REQUEST_BYTES]>> {
        let Some([first]) = self.exact::<1>(stream).await? else { return Ok(None) };
        let rest = self.data(stream, REQUEST_BYTES - 1).await?;
        let mut head = [first; REQUEST_BYTES];
        head[1..].copy_from_slice(&rest);
        Ok(Some(head))
    }

    /// What must follow, and soon.
    async fn data(&mut self, stream: &Transport, bytes: usize) -> io::Result<Buf> {
        let filled = time::timeout(STALL_TIME_MAX, self.fill(stream, Buf::with_capacity(bytes))).await;
        let filled = filled.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        filled.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }
}

/// What negotiation has led to.
struct Chosen {
    stream: Transport,
    input: Input,
    export: Rc<Export>,
    structured: bool,
}

async fn say(stream: &Transport, bytes: &[u8]) -> io::Result<()> {
    let mut batch = SendBatch::new();
    batch.head(bytes);
    stream.send(batch).await.0
}

async fn negotiate(
    common: &Common,
    mut stream: Transport,
    mut tls: Option<CertificateContext>,
) -> io::Result<Option<Chosen>> {
    say(&stream, &greeting()).await?;
    let mut input = Input::default();
    let Some(flags) = input.exact::<4>(&stream).await? else { return Ok(None) };
    let negotiation = Negotiation::new(&common.exports, four(&flags), tls.is_some());
    let mut negotiation = negotiation.ok_or_else(|| wrong("it speaks no fixed newstyle, or more than was offered"))?;
    loop {
        let Some(head) = input.exact::<OPTION_HEAD_BYTES>(&stream).await? else { return Ok(None) };
        let (option, bytes) = option_head(&head).ok_or_else(|| wrong("an option without its magic number"))?;
        if bytes > OPTION_BYTES_MAX {
            if option == option::EXPORT_NAME {
                return Err(wrong("the name of an export is too long"));
            }
            skip(&mut input, &stream, bytes.into()).await?;
            say(&stream, &negotiation.too_big(option)).await?;
            continue;
        }
        let data = input.data(&stream, bytes as usize).await?;
        let (reply, next) = negotiation.answer(option, &data);
        say(&stream, &reply).await?;
        match (next, tls.take()) {
            (Next::Option, kept) => tls = kept,
            (Next::Commands(export), _) => {
                let structured = negotiation.structured;
                return Ok(Some(Chosen { stream, input, export, structured }));
            }
            (Next::End, _) => return Ok(None),
            (Next::Tls, context) => {
                // Whoever stands between could have put them there.
                if !input.is_empty() {
                    return Err(wrong("bytes before TLS had begun"));
                }
                let Transport::Plain(plain) = stream else { return Err(wrong("TLS over what is no TCP")) };
                stream = Transport::accept(plain, context.as_ref()).await.map_err(io::Error::other)?;
                negotiation.secured();
            }
        }
    }
}

/// Drops what is not wanted.
async fn skip(input: &mut Input, stream: &Transport, mut bytes: u64) -> io::Result<()> {
    while bytes > 0 {
        let piece = bytes.min(INPUT_BYTES as u64);
        input.data(stream, piece as usize).await?;
        bytes -= piece;
    }
    Ok(())
}

/// An answer on its way, and what it holds until it is sent.
struct Reply {
    head: Vec<u8>,
    data: Vec<View>,
    made: time::Instant,
    _holds: Holds,
}

/// The places of a request: one of those under way, and, where it has data, its room of the client's and of all.
struct Holds {
    _place: Permit,
    _room: Option<(Permit, Permit)>,
}

/// A client that has chosen its export.
struct Client {
    common: Rc<Common>,
    export: Rc<Export>,
    structured: bool,
    replies: Rc<Queue<Reply>>,
}

impl Client {
    async fn receive_all(&self, stream: &Transport, mut input: Input) -> io::Result<()> {
        let (places, room) = (Semaphore::new(REQUESTS_MAX), Semaphore::new(ROOM_KIB));
        let received = self.receive(stream, &mut input, &places, &room).await;
        // What is under way is answered, whatever the reason of the end.
        places.acquire(REQUESTS_MAX).await;
        received
    }

    async fn receive(
        &self,
        stream: &Transport,
        input: &mut Input,
        places: &Semaphore,
        room: &Semaphore,
    ) -> io::Result<()> {
        loop {
            let next = until_stop(&self.common, input.head(stream)).await;
            let Some(Some(bytes)) = next.transpose()? else { return Ok(()) };
            let request = Request::read(&bytes).ok_or_else(|| wrong("a request without its magic number"))?;
            let carries = matches!(request.command, command::READ | command::WRITE);
            let is_long = carries && request.length > PAYLOAD_BYTES_MAX;
            if is_long && request.command == command::WRITE {
                return Err(wrong("more data in a request than a client may count on"));
            }
            let kib = if carries && !is_long { (request.length as usize).div_ceil(1024) } else { 0 };
            let mut holds = Holds { _place: places.acquire(1).await, _room: None };
            if kib > 0 {
                holds._room = Some((room.acquire(kib).await, self.common.room.acquire(kib).await));
            }
            match request.command {
                command::DISCONNECT => return Ok(()),
                command::WRITE => {
                    let received = time::timeout(STALL_TIME_MAX, self.receive_data(stream, input, &request)).await;
                    let data = received.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
                    self.begin(request, data, holds);
                }
                command::READ if is_long => {
                    let reason = format!("a read has at most {PAYLOAD_BYTES_MAX} bytes");
                    self.begin(request, Err(Failed::new(Errno::Invalid, reason)), holds);
                }
                _ => self.begin(request, Ok(Vec::new()), holds),
            }
        }
    }

    /// The data of a write, in the parts in which it is written; or why it is not to be.
    async fn receive_data(
        &self,
        stream: &Transport,
        input: &mut Input,
        request: &Request,
    ) -> io::Result<Result<Vec<View>, Failed>> {
        if let Err(failed) = self.export.check_write(request.offset, request.length.into()) {
            skip(input, stream, request.length.into()).await?;
            return Ok(Err(failed));
        }
        let mut data = Vec::new();
        for part in self.export.parts(request.offset, request.length.into()) {
            data.push(input.data(stream, part.bytes).await?.freeze());
        }
        Ok(Ok(data))
    }

    /// Carries the request out in a task of its own, which outlives the connection.
    fn begin(&self, request: Request, data: Result<Vec<View>, Failed>, holds: Holds) {
        let Client { common, export, structured, replies } = self;
        let (export, figures, structured) = (export.clone(), common.figures.clone(), *structured);
        let replies = replies.clone();
        let answered = async move {
            let outcome = match data {
                Ok(data) => execute(&export, &request, data, structured).await,
                Err(failed) => Err(failed),
            };
            add(&figures.requests, 1);
            let (head, data) = match outcome {
                Ok(data) => {
                    count(&figures, &request);
                    // A chunk of data has some.
                    let has_data = request.command == command::READ && request.length > 0;
                    let bytes = has_data.then_some((request.offset, request.length));
                    (success(structured, request.cookie, bytes), data)
                }
                Err(Failed { errno, reason }) => {
                    add(&figures.failed, 1);
                    tracing::debug!(export = export.name(), ?request, reason, "refused");
                    (failure(structured, request.cookie, errno, &reason), Vec::new())
                }
            };
            // Closed: the client has gone, and its answer with it.
            let _ = replies.push(Reply { head, data, made: time::now(), _holds: holds }).await;
        };
        task::spawn(answered).detach();
    }
}

fn count(figures: &Figures, request: &Request) {
    match request.command {
        command::READ => add(&figures.read_bytes, request.length.into()),
        command::WRITE => add(&figures.written_bytes, request.length.into()),
        _ => {}
    }
}

/// Carries a request out; `data` is that of a write, which may be written.
async fn execute(export: &Export, request: &Request, data: Vec<View>, structured: bool) -> Result<Vec<View>, Failed> {
    let Request { flags, command, offset, length, .. } = *request;
    let bytes = u64::from(length);
    let allowed = match command {
        command::READ if structured => command_flag::DF | command_flag::FUA,
        command::WRITE_ZEROES => command_flag::FUA | command_flag::NO_HOLE,
        _ => command_flag::FUA,
    };
    if flags & !allowed != 0 {
        return Err(Failed::new(Errno::Invalid, format!("flags {flags:#x} of command {command} were not offered")));
    }
    let durability = if flags & command_flag::FUA != 0 { Durability::Stable } else { Durability::Cached };
    match command {
        command::READ => {
            export.check(offset, bytes)?;
            return export.read(offset, bytes).await;
        }
        command::WRITE => {
            for (part, data) in export.parts(offset, bytes).zip(data) {
                export.write(part, data, durability).await?;
            }
        }
        command::FLUSH => export.flush().await?,
        command::TRIM => {
            export.check_write(offset, bytes)?;
            export.trim(offset, bytes, durability).await?;
        }
        command::WRITE_ZEROES => {
            export.check_write(offset, bytes)?;
            export.zero(offset, bytes, flags & command_flag::NO_HOLE != 0, durability).await?;
        }
        _ => return Err(Failed::new(Errno::Invalid, format!("there is no command {command}"))),
    }
    Ok(Vec::new())
}

/// Sends answers until there are no more; a client that does not take them is given up.
async fn send_all(stream: Rc<Transport>, replies: Rc<Queue<Reply>>) {
    let mut batch = SendBatch::new();
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(reply) => reply,
            None => match replies.pop().await {
                Some(reply) => reply,
                None => return,
            },
        };
        let mut sending = Vec::new();
        let mut waiting = Some(first);
        while let Some(reply) = waiting {
            // The first in any case.
            let fits = batch.segments() + reply.data.len() < SEND_PIECES && batch.len() < SEND_BYTES;
            if !sending.is_empty() && !fits {
                next = Some(reply);
                break;
            }
            batch.head(&reply.head);
            reply.data.iter().for_each(|view| batch.view(view.clone()));
            sending.push(reply);
            waiting = replies.try_pop();
        }
        let is_late = sending.first().is_some_and(|reply: &Reply| reply.made.elapsed() > ANSWER_TIME_MAX);
        let limit = if is_late { Duration::ZERO } else { STALL_TIME_MAX };
        let sent;
        (sent, batch) = match time::timeout(limit, stream.send(batch)).await {
            Ok((sent, batch)) => (sent, batch),
            Err(_) => (Err(io::ErrorKind::TimedOut.into()), SendBatch::new()),
        };
        batch.clear();
        if let Err(error) = sent {
            tracing::debug!(%error, "answers can't be sent");
            // Ends the receiving side, too.
            stream.abort();
            replies.close();
            // They hold places and room, for which the receiving side waits.
            while replies.try_pop().is_some() {}
            return;
        }
    }
}
