//! A queue on its TCP connection: one task that receives, sends and watches the deadlines.
//!
//! Invariants:
//! - The queue is never borrowed across an await, nor while anything is woken.
//! - All commands that were entered before the task runs go out in one send. While a send is under way, what is entered
//!   waits for the next: it is sent in order, and a busy link gathers by itself.
//! - When the task ends, for whatever reason, the queue is closed first: every command has an outcome, and nobody who
//!   waits for a slot waits for ever.
//! - A connection that ends for any reason but a shutdown in order is reset: nothing of it is sent any more.

mod error;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use engine::net::{SendBatch, TcpStream};
use engine::sync::{Notify, Permit, Semaphore};
use engine::task::{self, Task};
use engine::{Buf, time};
use nvme::Submission;

pub use error::LinkError;
use tls::{TlsStream, Transport};

use super::queue::{Aftermath, Payload, Queue, QueueConfig, QueueError};
use super::slot::{Ended, SlotId};
use crate::psk::TlsPsk;

/// The buffer that receives what has no place of its own. Guessed: a usual turn's worth of answers and small reads.
const RECEIVE_BYTES: usize = 32 << 10;
/// How often deadlines are looked at: so many times within one. A command may outlast its deadline by the difference.
const CHECKS_PER_TIMEOUT: u32 = 4;
/// What part of its time a command that is being aborted has on top. Guessed: an abort is answered at once or never.
const GRACE_PART: u32 = 2;
/// How long a peer that is being told why the connection ends may take to listen. Guessed.
const TERM_REQ_TIMEOUT: Duration = Duration::from_millis(200);

/// One queue and its connection. Dropping it ends both.
pub struct Link {
    shared: Rc<Shared>,
    _task: Task<()>,
}

struct Shared {
    queue: RefCell<Queue>,
    stream: Transport,
    slots: Semaphore,
    timeout: Duration,
    /// The connection's task, when it has nothing to send.
    sender: Cell<Option<Waker>>,
    /// A send is under way: nothing may be sent past it.
    sending: Cell<bool>,
    changed: Notify,
    /// Commands to be aborted; somebody does that: `aborts`.
    overdue: RefCell<VecDeque<u16>>,
    aborts: Cell<bool>,
    end: RefCell<Option<LinkError>>,
    /// Swapped with the queue's, so that settling allocates nothing.
    aftermath: Cell<Aftermath>,
}

impl Link {
    /// Connects to `address`, over TLS if there is a key, and exchanges ICReq and ICResp, all within `connect_timeout`. Commands
    /// that take longer than `command_timeout` end the link.
    pub async fn connect(
        address: SocketAddr,
        psk: Option<Arc<TlsPsk>>,
        config: QueueConfig,
        connect_timeout: Duration,
        command_timeout: Duration,
    ) -> Result<Link, LinkError> {
        let connect = async {
            let stream = TcpStream::connect(address).await?;
            let stream = match psk {
                Some(psk) => Transport::Tls(TlsStream::connect(stream, psk.psk().clone()).await?),
                None => Transport::Plain(stream),
            };
            let link = Link::start(stream, config, command_timeout);
            link.initialized().await?;
            Ok(link)
        };
        time::timeout(connect_timeout, connect).await.unwrap_or(Err(LinkError::ConnectTimeout(connect_timeout)))
    }

    fn start(stream: Transport, config: QueueConfig, timeout: Duration) -> Link {
        let shared = Rc::new(Shared {
            slots: Semaphore::new(usize::from(config.depth)),
            queue: RefCell::new(Queue::new(config)),
            stream,
            timeout,
            sender: Cell::new(None),
            sending: Cell::new(false),
            changed: Notify::new(),
            overdue: RefCell::default(),
            aborts: Cell::new(false),
            end: RefCell::new(None),
            aftermath: Cell::new(Aftermath::default()),
        });
        let task = task::spawn(run(Rc::clone(&shared)));
        Link { shared, _task: task }
    }

    async fn initialized(&self) -> Result<(), LinkError> {
        loop {
            let changed = self.shared.changed.notified();
            if let Some(error) = self.error() {
                return Err(error);
            }
            if self.shared.queue.borrow().is_initialized() {
                return Ok(());
            }
            changed.await;
        }
    }

    /// Why the link has ended; `None` while it works.
    pub fn error(&self) -> Option<LinkError> {
        self.shared.end.borrow().clone()
    }

    /// Whether the link has ended.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.shared.end.borrow().is_some()
    }

    /// Ends when the link has ended.
    pub async fn closed(&self) -> LinkError {
        loop {
            let changed = self.shared.changed.notified();
            if let Some(error) = self.error() {
                return error;
            }
            changed.await;
        }
    }

    /// Commands that may be entered now.
    pub fn available(&self) -> usize {
        self.shared.slots.available()
    }

    /// From now on somebody asks for [`Link::next_overdue`]: a command that outlasts its time gets a grace instead of ending the
    /// link at once.
    pub fn arm_aborts(&self) {
        self.shared.aborts.set(true);
    }

    /// The next command that has outlasted its time; `None`: the link has ended.
    pub async fn next_overdue(&self) -> Option<u16> {
        loop {
            let changed = self.shared.changed.notified();
            if self.is_closed() {
                return None;
            }
            while let Some(command) = self.shared.overdue.borrow_mut().pop_front() {
                // It may have ended while others were being aborted; its identifier is free then, and used again.
                if self.is_overdue(command) {
                    return Some(command);
                }
            }
            changed.await;
        }
    }

    /// Whether this command is under way still and past its time.
    pub fn is_overdue(&self, command: u16) -> bool {
        self.shared.queue.borrow().is_overdue(command)
    }

    /// Commands under way that nobody waits for.
    pub fn abandoned(&self) -> usize {
        self.shared.queue.borrow().abandoned()
    }

    /// Ends when there is no such command, with whether that is because they were answered: otherwise the link has ended.
    pub async fn abandoned_ended(&self) -> bool {
        loop {
            let changed = self.shared.changed.notified();
            if self.is_closed() {
                return false;
            }
            if self.abandoned() == 0 {
                return true;
            }
            changed.await;
        }
    }

    /// Ends the link in order: what was sent may still arrive. Commands under way are lost.
    pub fn shutdown(&self) {
        self.shared.close(LinkError::Shutdown);
    }

    /// Gives the link up, for this reason: what waits in its socket is dropped. Commands under way are lost.
    pub fn give_up(&self, reason: LinkError) {
        self.shared.close(reason);
    }

    /// Sends a command and waits for its outcome; the payload comes back with it. Waits for a slot if all are taken.
    /// `Err`: the link has ended and the command was not sent.
    pub async fn execute(&self, command: Submission, payload: Payload) -> Result<(Ended, Payload), Payload> {
        self.execute_within(command, payload, Duration::ZERO).await
    }

    /// The same for a command that may take as long as `patience`, where that is more than others may.
    pub async fn execute_within(
        &self,
        command: Submission,
        payload: Payload,
        patience: Duration,
    ) -> Result<(Ended, Payload), Payload> {
        let permit = self.shared.acquire(1).await;
        // Its time begins with its place in the queue: while callers wait for one, nothing is wrong with the target.
        let by = (time::now() + patience.max(self.shared.timeout)).as_nanos();
        self.execute_by(command, payload, by, permit).await
    }

    /// The same without a deadline, for an Asynchronous Event Request.
    pub async fn execute_whenever(&self, command: Submission, payload: Payload) -> Result<(Ended, Payload), Payload> {
        let permit = self.shared.acquire(1).await;
        self.execute_by(command, payload, u64::MAX, permit).await
    }

    async fn execute_by(
        &self,
        command: Submission,
        payload: Payload,
        by: u64,
        permit: Permit,
    ) -> Result<(Ended, Payload), Payload> {
        let slot = self.shared.enter(command, payload, by, permit)?;
        Ok(Command { shared: &self.shared, slot, done: false }.await)
    }

    /// Sends the halves of a fused command, adjacent, and waits for both. `None`: the link has ended, nothing was sent.
    pub async fn execute_fused(
        &self,
        first: (Submission, Payload),
        second: (Submission, Payload),
    ) -> Option<(Ended, Ended)> {
        let shared = &self.shared;
        let permit = shared.acquire(2).await;
        let (one, two) = shared.enter_fused(first, second, permit)?;
        let (one, two) = (Command { shared, slot: one, done: false }, Command { shared, slot: two, done: false });
        let ((first, _), (second, _)) = (one.await, two.await);
        Some((first, second))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// A command under way. Dropped before its end it keeps its slot until then.
struct Command<'a> {
    shared: &'a Rc<Shared>,
    slot: SlotId,
    done: bool,
}

impl Future for Command<'_> {
    type Output = (Ended, Payload);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(Ended, Payload)> {
        let polled = self.shared.queue.borrow_mut().poll_outcome(self.slot, cx.waker());
        let Some(outcome) = polled else { return Poll::Pending };
        self.done = true;
        self.shared.settle();
        Poll::Ready(outcome)
    }
}

impl Drop for Command<'_> {
    fn drop(&mut self) {
        if !self.done {
            let waker = self.shared.queue.borrow_mut().abandon(self.slot);
            drop(waker);
            self.shared.settle();
        }
    }
}

impl Shared {
    async fn acquire(&self, slots: usize) -> Permit {
        match self.slots.try_acquire(slots) {
            Some(permit) => permit,
            None => self.slots.acquire(slots).await,
        }
    }

    fn enter(&self, command: Submission, payload: Payload, by: u64, permit: Permit) -> Result<SlotId, Payload> {
        let mut queue = self.queue.borrow_mut();
        if queue.is_closed() {
            drop(queue);
            return Err(payload);
        }
        let slot = queue.submit(command, payload, by).expect("invariant: a permit stands for a free slot");
        queue.attach_permit(slot, permit);
        drop(queue);
        self.kick();
        Ok(slot)
    }

    fn enter_fused(
        &self,
        first: (Submission, Payload),
        second: (Submission, Payload),
        mut permit: Permit,
    ) -> Option<(SlotId, SlotId)> {
        let mut queue = self.queue.borrow_mut();
        if queue.is_closed() {
            drop(queue);
            return None;
        }
        let pair = queue.submit_fused(first, second, self.deadline());
        let (one, two) = pair.expect("invariant: two permits stand for two free slots");
        // Each slot has its own: a target may answer the halves in any order, and one of them never.
        queue.attach_permit(one, permit.split(1));
        queue.attach_permit(two, permit);
        drop(queue);
        self.kick();
        Some((one, two))
    }

    fn deadline(&self) -> u64 {
        (time::now() + self.timeout).as_nanos()
    }

    /// Lets the connection's task know that there is something to send.
    fn kick(&self) {
        if let Some(waker) = self.sender.take() {
            waker.wake();
        }
    }

    fn settle(&self) {
        let mut aftermath = self.aftermath.take();
        self.queue.borrow_mut().take_aftermath(&mut aftermath);
        aftermath.settle();
        self.aftermath.set(aftermath);
        // Taken before anybody is told: who is woken may settle too.
        if self.queue.borrow_mut().take_abandoned_over() {
            self.changed.notify_all();
        }
    }

    fn close(&self, error: LinkError) {
        if self.end.borrow().is_some() {
            return;
        }
        let in_order = error == LinkError::Shutdown;
        *self.end.borrow_mut() = Some(error);
        self.queue.borrow_mut().close(time::now().as_nanos());
        self.settle();
        // Data of a write that is given up must not lie in wait in a socket: see `fence`.
        let end = if in_order { Transport::shutdown } else { Transport::abort };
        end(&self.stream);
        self.changed.notify_all();
    }
}

async fn run(shared: Rc<Shared>) {
    let error = {
        let mut receive = pin!(receive(&shared));
        let mut send = pin!(send(&shared));
        let mut watch = pin!(watch(&shared));
        // Received first: what it asks for goes out in the same turn.
        poll_fn(|cx| {
            if let Poll::Ready(error) = receive.as_mut().poll(cx) {
                return Poll::Ready(error);
            }
            if let Poll::Ready(error) = send.as_mut().poll(cx) {
                return Poll::Ready(error);
            }
            watch.as_mut().poll(cx)
        })
        .await
    };
    if let LinkError::Queue(error) = &error {
        tell_peer(&shared, error).await;
    }
    shared.close(error);
}

/// Says why the connection ends, where the specification wants it said and the connection can still carry it.
async fn tell_peer(shared: &Shared, error: &QueueError) {
    let term_req = shared.queue.borrow().term_req(error);
    if let Some(term_req) = term_req
        && !shared.sending.get()
    {
        let mut batch = SendBatch::new();
        batch.head(&term_req);
        let told = async {
            let (sent, _) = shared.stream.send(batch).await;
            let mut buf = Buf::with_capacity(RECEIVE_BYTES);
            // It closes when it has read that; a reset at once could overtake it.
            while sent.is_ok() {
                let (received, taken) = shared.stream.recv(std::mem::take(&mut buf)).await;
                let Ok(1..) = received else { return };
                buf = taken;
                buf.set_len(0);
            }
        };
        // The connection ends either way.
        let _ = time::timeout(TERM_REQ_TIMEOUT, told).await;
    }
}

async fn receive(shared: &Shared) -> LinkError {
    let mut buf = Buf::with_capacity(RECEIVE_BYTES);
    loop {
        let direct = shared.queue.borrow_mut().take_direct();
        let is_direct = direct.is_some();
        let target = direct.unwrap_or_else(|| std::mem::take(&mut buf));
        let (received, mut target) = shared.stream.recv(target).await;
        match received {
            Ok(0) if shared.queue.borrow().is_initialized() => return LinkError::Closed,
            Ok(0) => return LinkError::ClosedUnanswered,
            Ok(_) => {}
            Err(error) => return error.into(),
        }
        let initialized = shared.queue.borrow().is_initialized();
        let taken = if is_direct {
            shared.queue.borrow_mut().give_direct(target)
        } else {
            let taken = shared.queue.borrow_mut().input(&target);
            target.set_len(0);
            buf = target;
            taken
        };
        shared.settle();
        if let Err(error) = taken {
            return error.into();
        }
        if !initialized {
            shared.changed.notify_all();
        }
    }
}

async fn send(shared: &Shared) -> LinkError {
    let mut batch = SendBatch::new();
    loop {
        poll_fn(|cx| match shared.queue.borrow().has_outgoing() {
            true => Poll::Ready(()),
            false => {
                shared.sender.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await;
        shared.queue.borrow_mut().fill(&mut batch);
        shared.sending.set(true);
        let (sent, returned) = shared.stream.send(batch).await;
        shared.sending.set(false);
        if let Err(error) = sent {
            return error.into();
        }
        batch = returned;
    }
}

async fn watch(shared: &Shared) -> LinkError {
    loop {
        time::sleep(shared.timeout / CHECKS_PER_TIMEOUT).await;
        let grace = if shared.aborts.get() { (shared.timeout / GRACE_PART).as_nanos() as u64 } else { 0 };
        let now = time::now().as_nanos();
        if shared.queue.borrow_mut().check_deadlines(now, grace, &mut shared.overdue.borrow_mut()) {
            return LinkError::CommandTimeout(shared.timeout);
        }
        if !shared.overdue.borrow().is_empty() {
            shared.changed.notify_all();
        }
    }
}
