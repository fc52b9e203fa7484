//! Block devices for programs: a namespace of a target, or a volume, on a reactor thread of its own, and queues to that thread.
//!
//! ```no_run
//! use client::block::{Device, Operation};
//! use client::SecurityOptions;
//!
//! let place = "volume 127.0.0.1:4421 127.0.0.1:4422 127.0.0.1:4423".parse()?;
//! let device = Device::open(place, &SecurityOptions::default())?;
//! let mut queue = device.queue(32)?;
//! queue.submit(7, 0, Operation::Write { data: engine::Buf::zeroed(4096), stable: true })?;
//! let mut ended = Vec::new();
//! queue.wait(1, None, 1, &mut ended)?;
//! assert!(ended[0].tag == 7 && ended[0].result.is_ok());
//! device.close()?;
//! # Ok::<(), client::Error>(())
//! ```
//!
//! Invariants:
//! - A buffer belongs to its request until the completion is taken: the device's thread touches no other memory of the caller's.
//! - Of a queue's requests at most `depth` are not taken yet: both ways are bounded, and a submission never waits.
//! - Whoever waits is told when the device has ended.

use std::collections::VecDeque;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use device::{Durability, Lba, Namespace, TRANSFER_BYTES_MAX};
use engine::sync::{MailReceiver, MailSender, mailbox};
use engine::{Buf, Reactor, ReactorConfig, task};
use fabric::host::AnyRemote;

use crate::SecurityOptions;
use crate::error::Error;
use crate::way::Way;

mod place;

use place::Opened;
pub use place::{Holder, Place};

/// Most requests of a queue. Chosen: more than any target takes at once of one connection.
pub const DEPTH_MAX: usize = 1 << 16;
/// Queues on their way to a thread. Chosen: few, as the thread takes each at once.
const JOINING_MAX: usize = 16;

/// What a device is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Size in bytes, when it was opened.
    pub bytes: u64,
    /// Offsets and lengths are multiples of so many bytes.
    pub block_size: u32,
    /// Most bytes of one request.
    pub transfer_bytes_max: u32,
}

/// What a request does.
#[derive(Debug)]
pub enum Operation {
    /// Fills the buffer.
    Read(Buf),
    /// Writes all of the buffer.
    Write {
        /// What is written.
        data: Buf,
        /// Ends when the data would survive the loss of power. (With a volume that is always so.)
        stable: bool,
    },
    /// What was written before would survive the loss of power.
    Flush,
    /// So many bytes are needed no more.
    Discard(u64),
}

/// What became of a request.
#[derive(Debug)]
pub struct Completed {
    /// The caller's mark.
    pub tag: u64,
    /// Whether it was done.
    pub result: Result<(), Error>,
    /// It changes something, has failed, and may have taken effect, or may yet.
    pub outcome_unknown: bool,
    /// The buffer that came with it, with what was read.
    pub buf: Option<Buf>,
}

struct Request {
    tag: u64,
    lba: Lba,
    blocks: u64,
    operation: Operation,
}

/// What has ended and was not taken yet.
#[derive(Default)]
struct Ended {
    completed: VecDeque<Completed>,
    /// Nothing more will come.
    is_over: bool,
    /// Who waits wants so many; 0: nobody waits.
    wanted: usize,
}

#[derive(Default)]
struct Completions {
    ended: Mutex<Ended>,
    some: Condvar,
}

impl Completions {
    fn lock(&self) -> MutexGuard<'_, Ended> {
        // Nothing panics while the lock is held; what it guards is whole.
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, completed: Completed) {
        let mut ended = self.lock();
        ended.completed.push_back(completed);
        // A wake costs a system call: none before the waiter has what it waits for.
        let wake = ended.wanted > 0 && ended.completed.len() >= ended.wanted;
        drop(ended);
        if wake {
            self.some.notify_one();
        }
    }
}

/// The thread's end of a queue.
struct Joining {
    requests: MailReceiver<Request>,
    completions: Arc<Completions>,
}

impl Drop for Joining {
    fn drop(&mut self) {
        self.completions.lock().is_over = true;
        self.completions.some.notify_one();
    }
}

/// A device that is open; may be used from any thread. A volume is this host's until it is closed or dropped: another host, or a
/// second device, that opens it takes it away.
pub struct Device {
    geometry: Geometry,
    joining: Option<MailSender<Joining>>,
    thread: Option<JoinHandle<Result<(), Error>>>,
    /// The process that has the thread.
    process: u32,
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// A name or a key file is wrong; a target that is needed does not answer, or the volume is not whole enough. Also on a reactor
    /// thread, which would wait for itself.
    pub fn open(place: Place, security: &SecurityOptions) -> Result<Device, Error> {
        if task::in_world() {
            return Err(Error::Usage("a device can't be opened on a reactor thread: it blocks".to_owned()));
        }
        let security = security.clone();
        let (joining, joins) = mailbox(JOINING_MAX);
        let (opened, told) = channel();
        let run = move || {
            let failed = opened.clone();
            let ran = Reactor::run(ReactorConfig::default(), serve_device(place, security, opened, joins));
            ran.unwrap_or_else(|error| {
                let why = Error::Unavailable(format!("this machine gives no reactor (io_uring): {error}"));
                // Who opens may have been told already.
                drop(failed.send(Err(why.clone())));
                Err(why)
            })
        };
        let thread = std::thread::Builder::new().name("yagura-device".to_owned()).spawn(run);
        let thread = thread.map_err(|error| Error::Unavailable(format!("no thread for the device: {error}")))?;
        let process = std::process::id();
        let geometry = told.recv().unwrap_or(Err(Error::Closed { outcome_unknown: false }))?;
        Ok(Device { geometry, joining: Some(joining), thread: Some(thread), process })
    }

    /// What it is like.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// A queue that holds `depth` requests.
    ///
    /// # Errors
    /// The depth is 0 or too large; the device has ended, or belongs to the process that this one was forked from.
    pub fn queue(&self, depth: usize) -> Result<Queue, Error> {
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(Error::Usage(format!("a queue of {depth} requests: 1 to {DEPTH_MAX}")));
        }
        if std::process::id() != self.process {
            let sentence = "the device belongs to the process that this one was forked from: open it anew in this one";
            return Err(Error::Usage(sentence.to_owned()));
        }
        let (sender, requests) = mailbox(depth);
        let completions = Arc::new(Completions::default());
        let mut joining = Joining { requests, completions: completions.clone() };
        let thread = self.joining.as_ref().ok_or(Error::Closed { outcome_unknown: false })?;
        loop {
            match thread.try_send(joining) {
                Ok(()) => break,
                Err(engine::sync::TrySendError::Closed(_)) => return Err(Error::Closed { outcome_unknown: false }),
                // The thread takes them as they come.
                Err(engine::sync::TrySendError::Full(back)) => joining = back,
            }
            std::thread::yield_now();
        }
        Ok(Queue { requests: sender, completions, geometry: self.geometry, depth, under_way: 0 })
    }

    /// Lets go of a volume, and ends the thread. What is under way on queues is ended or given up; they say so.
    ///
    /// # Errors
    /// Another host has the volume.
    pub fn close(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        if std::process::id() != self.process {
            // The handle of a thread that is not here may not be touched.
            std::mem::forget((self.joining.take(), self.thread.take()));
            return Ok(());
        }
        drop(self.joining.take());
        let ended = self.thread.take().map(JoinHandle::join);
        // A panic there was told by the hook.
        ended.unwrap_or(Ok(Ok(()))).unwrap_or(Err(Error::Closed { outcome_unknown: true }))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Nobody is left to be told.
        drop(self.end());
    }
}

/// A way to the device for one thread at a time.
pub struct Queue {
    requests: MailSender<Request>,
    completions: Arc<Completions>,
    geometry: Geometry,
    depth: usize,
    under_way: usize,
}

impl Queue {
    /// Begins a request at `offset` (of no meaning for a flush); its completion has the tag.
    ///
    /// # Errors
    /// The queue is full; offset or length is no multiple of the block size; the request is too long; the device has ended.
    pub fn submit(&mut self, tag: u64, offset: u64, operation: Operation) -> Result<(), Error> {
        if self.under_way == self.depth {
            return Err(Error::Usage(format!("the queue is full: {} requests are not taken yet", self.depth)));
        }
        let Geometry { block_size, transfer_bytes_max, .. } = self.geometry;
        let (bytes, most) = match &operation {
            Operation::Read(buf) | Operation::Write { data: buf, .. } => (buf.len() as u64, transfer_bytes_max.into()),
            Operation::Flush => (0, 0),
            Operation::Discard(bytes) => (*bytes, u64::MAX),
        };
        let block = u64::from(block_size);
        let is_flush = matches!(operation, Operation::Flush);
        if !is_flush && (!offset.is_multiple_of(block) || !bytes.is_multiple_of(block) || bytes == 0 || bytes > most) {
            let most = if most == u64::MAX { String::new() } else { format!(", at most {most} bytes") };
            let rule = format!("whole blocks of {block} bytes{most}");
            return Err(Error::Usage(format!("{bytes} bytes at {offset}: a request of this device is of {rule}")));
        }
        let request = Request { tag, lba: Lba(offset / block), blocks: bytes / block, operation };
        // There is room for each of `depth`.
        self.requests.try_send(request).map_err(|_| Error::Closed { outcome_unknown: false })?;
        self.under_way += 1;
        Ok(())
    }

    /// Waits until `least` requests have ended (of those there are) or `limit` has passed, and moves at most `most` of them.
    ///
    /// # Errors
    /// The device has ended, and with it what was under way.
    pub fn wait(
        &mut self,
        least: usize,
        limit: Option<Duration>,
        most: usize,
        taken: &mut Vec<Completed>,
    ) -> Result<(), Error> {
        let (begin, least) = (Instant::now(), least.min(most).min(self.under_way));
        let mut ended = self.completions.lock();
        while ended.completed.len() < least && !ended.is_over {
            let left = limit.map(|limit| limit.saturating_sub(begin.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            ended.wanted = least;
            ended = match left {
                None => self.completions.some.wait(ended).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.completions.some.wait_timeout(ended, left).unwrap_or_else(PoisonError::into_inner).0,
            };
            ended.wanted = 0;
        }
        if ended.is_over && ended.completed.is_empty() && self.under_way > 0 {
            self.under_way = 0;
            return Err(Error::Closed { outcome_unknown: true });
        }
        let count = ended.completed.len().min(most);
        taken.extend(ended.completed.drain(..count));
        self.under_way -= count;
        Ok(())
    }
}

/// The thread's life: until the device is closed.
async fn serve_device(
    place: Place,
    security: SecurityOptions,
    opened: Sender<Result<Geometry, Error>>,
    joins: MailReceiver<Joining>,
) -> Result<(), Error> {
    let way = Way::new(&security);
    let opening = async { Opened::open(&place, &way?).await };
    let device = match opening.await {
        Ok(device) => device,
        Err(error) => {
            drop(opened.send(Err(error.clone())));
            return Err(error);
        }
    };
    let namespace = device.namespace();
    let info = namespace.info();
    let most = u64::from(info.transfer_blocks_max) * u64::from(info.block_size);
    let geometry = Geometry {
        bytes: info.bytes(),
        block_size: info.block_size,
        // At most a constant of this size.
        transfer_bytes_max: most.min(TRANSFER_BYTES_MAX as u64) as u32,
    };
    // Who opens waits for it.
    drop(opened.send(Ok(geometry)));
    let mut queues = Vec::new();
    while let Some(joining) = joins.recv().await {
        queues.retain(|queue: &task::Task<()>| !queue.is_finished());
        queues.push(task::spawn(serve_queue(namespace.clone(), joining)));
    }
    drop((queues, namespace));
    device.close().await
}

async fn serve_queue(namespace: AnyRemote, joining: Joining) {
    while let Some(request) = joining.requests.recv().await {
        let (namespace, completions) = (namespace.clone(), joining.completions.clone());
        task::spawn(async move { completions.push(carry_out(&namespace, request).await) }).detach();
    }
}

async fn carry_out(namespace: &AnyRemote, request: Request) -> Completed {
    let Request { tag, lba, blocks, operation } = request;
    let changes = matches!(operation, Operation::Write { .. } | Operation::Discard(_));
    let (result, buf) = match operation {
        Operation::Read(buf) => {
            let (result, buf) = namespace.read(lba, buf).await;
            (result, Some(buf))
        }
        Operation::Write { data, stable } => {
            let (view, how) = (data.freeze(), if stable { Durability::Stable } else { Durability::Cached });
            let result = namespace.write(lba, view.clone(), how).await;
            // A connection that has ended may hold it still.
            (result, view.try_into_buf().ok())
        }
        Operation::Flush => (namespace.flush().await, None),
        Operation::Discard(_) => (namespace.deallocate(lba, blocks).await, None),
    };
    let outcome_unknown = changes && result.as_ref().is_err_and(device::Error::outcome_unknown);
    Completed { tag, result: result.map_err(Error::from), outcome_unknown, buf }
}

#[cfg(test)]
mod tests;
