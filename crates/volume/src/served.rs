//! [`Served`]: an attached volume for other threads, so that a target serves it from all of its reactors.
//!
//! Each command is a message to the volume's thread, which carries it out beside its others, and an answer. A caller that is gone
//! leaves its command running, as any other caller of a volume does.
//! *Cost:* two wakes and some allocations for a command. *When that is wrong:* for whoever is on the volume's own thread: the
//! [`Volume`] itself costs none of it.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use device::{Durability, Error, Lba, Link, Namespace, NamespaceInfo, Writability};
use engine::sync::{MailReceiver, MailSender, mailbox};
use engine::task::{self, Task};
use engine::{Buf, View};

use crate::volume::Volume;

/// Commands on their way to the volume's thread. Chosen: what a few connections have under way; further callers wait.
const WAITING_MAX: usize = 1024;

enum Command {
    Read(Lba, Buf),
    Write(Lba, View),
    Flush,
    Compare(Lba, View),
    Swap(Lba, View, View),
    Zero(Lba, u64),
    Deallocate(Lba, u64),
    Verify(Lba, u64),
}

type Outcome = (Result<(), Error>, Buf);

#[derive(Default)]
struct Waiting {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    is_gone: bool,
}

/// Where an answer is waited for.
#[derive(Default)]
struct Reply(Mutex<Waiting>);

impl Reply {
    /// What the lock guards is whole after any panic: it is set in single assignments.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command, and whom it is answered to. Dropped without an answer it tells that there will be none.
struct Request {
    command: Option<Command>,
    reply: Arc<Reply>,
}

impl Request {
    fn answer(self, outcome: Outcome) {
        self.reply.lock().outcome = Some(outcome);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut waiting = self.reply.lock();
        waiting.is_gone = true;
        let waker = waiting.waker.take();
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// What is asked without a command.
#[derive(Default)]
struct Flags {
    is_up: AtomicBool,
    is_superseded: AtomicBool,
}

/// See the module. A clone is the same volume.
#[derive(Clone)]
pub struct Served {
    to: MailSender<Request>,
    info: Arc<NamespaceInfo>,
    flags: Arc<Flags>,
}

const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Served>();
};

/// Serves a volume to other threads, by the task that is returned: on this thread, and as long as the task is kept.
pub fn serve(volume: &Rc<Volume>) -> (Served, Task<()>) {
    let (to, from) = mailbox(WAITING_MAX);
    let flags = Arc::new(Flags::default());
    let served = Served { to, info: Arc::new(volume.info()), flags: Arc::clone(&flags) };
    (served, task::spawn(run(Rc::clone(volume), from, flags)))
}

async fn run(volume: Rc<Volume>, from: MailReceiver<Request>, flags: Arc<Flags>) {
    loop {
        flags.is_up.store(volume.link().is_up, Relaxed);
        flags.is_superseded.store(volume.is_superseded(), Relaxed);
        let mut changed = pin!(volume.changed());
        let mut next = pin!(from.recv());
        let next = poll_fn(|cx| match next.as_mut().poll(cx) {
            Poll::Ready(request) => Poll::Ready(Some(request)),
            Poll::Pending => changed.as_mut().poll(cx).map(|()| None),
        });
        match next.await {
            None => {}
            Some(None) => return,
            Some(Some(request)) => task::spawn(carry_out(Rc::clone(&volume), request)).detach(),
        }
    }
}

async fn carry_out(volume: Rc<Volume>, mut request: Request) {
    let Some(command) = request.command.take() else { return };
    let result = match command {
        Command::Read(lba, buf) => return request.answer(volume.read(lba, buf).await),
        Command::Write(lba, data) => volume.write(lba, data, Durability::Stable).await,
        Command::Flush => volume.flush().await,
        Command::Compare(lba, expected) => volume.compare(lba, expected).await,
        Command::Swap(lba, old, new) => volume.compare_and_write(lba, old, new, Durability::Stable).await,
        Command::Zero(lba, blocks) => volume.write_zeroes(lba, blocks, Durability::Stable).await,
        Command::Deallocate(lba, blocks) => volume.deallocate(lba, blocks).await,
        Command::Verify(lba, blocks) => Namespace::verify(&*volume, lba, blocks).await,
    };
    request.answer((result, Buf::default()));
}

impl Served {
    async fn ask(&self, command: Command) -> Outcome {
        let reply = Arc::new(Reply::default());
        let request = Request { command: Some(command), reply: Arc::clone(&reply) };
        if self.to.send(request).await.is_err() {
            return (Err(Error::NotConnected(self.name())), Buf::default());
        }
        poll_fn(|cx| {
            let mut waiting = reply.lock();
            if let Some(outcome) = waiting.outcome.take() {
                return Poll::Ready(outcome);
            }
            if waiting.is_gone {
                return Poll::Ready((Err(Error::Disconnected(self.name())), Buf::default()));
            }
            let before = waiting.waker.replace(cx.waker().clone());
            drop(waiting);
            drop(before);
            Poll::Pending
        })
        .await
    }

    fn name(&self) -> String {
        format!("volume {:032x}", u128::from_be_bytes(self.info.nguid))
    }
}

impl Namespace for Served {
    device::namespace_without!(used_blocks, attributes, write_uncorrectable, hint_lifetime);

    fn info(&self) -> NamespaceInfo {
        (*self.info).clone()
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        let bytes = buf.len();
        let (result, buf) = self.ask(Command::Read(lba, buf)).await;
        // Where nobody answered the buffer is gone.
        (result, if buf.len() == bytes { buf } else { Buf::with_len(bytes) })
    }

    async fn write(&self, lba: Lba, data: View, _durability: Durability) -> Result<(), Error> {
        self.ask(Command::Write(lba, data)).await.0
    }

    async fn flush(&self) -> Result<(), Error> {
        self.ask(Command::Flush).await.0
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        self.ask(Command::Compare(lba, expected)).await.0
    }

    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, _how: Durability) -> Result<(), Error> {
        self.ask(Command::Swap(lba, expected, new)).await.0
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, _durability: Durability) -> Result<(), Error> {
        self.ask(Command::Zero(lba, blocks)).await.0
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.ask(Command::Deallocate(lba, blocks)).await.0
    }

    async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.ask(Command::Verify(lba, blocks)).await.0
    }

    fn writability(&self) -> Writability {
        if self.flags.is_superseded.load(Relaxed) { Writability::Failed } else { Writability::Writable }
    }

    fn link(&self) -> Link {
        Link { is_up: self.flags.is_up.load(Relaxed), epoch: 0 }
    }
}
