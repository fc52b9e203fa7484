//! The requests of a device: a task for each tag, which takes a request, carries it out and answers it with the command that asks
//! for the tag's next one.
//!
//! Invariants:
//! - A request is answered once: a tag's task does one thing at a time, and the kernel gives a tag no other request before the
//!   answer.
//! - What is answered after FUA or a flush is stable; no answer is given before the namespace has given one.
//! - Data is the request's own: that of a write is copied before the write is answered, and that of a read when it is there.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use device::{AnyNamespace, Durability, Lba, Namespace, TRANSFER_BYTES_MAX};
use engine::task::{self, Task};
use engine::{Buf, View};

use crate::figures::{Figures, add};
use crate::protocol::{Errno, Operation, Request};

/// What a fetch says when the device was stopped.
const ENODEV: i32 = 19;

/// The requests of a device's queue: the kernel's, or a double of them.
#[allow(async_fn_in_trait)] // local futures by design: one reactor per thread
pub trait Requests: 'static {
    /// Waits for the next request of a tag; `answer`: of the former one.
    ///
    /// # Errors
    /// `ENODEV` where the device was stopped, and what else the driver says.
    async fn fetch(&self, tag: u16, answer: Option<i32>) -> io::Result<()>;

    /// The description of the request that the tag has.
    fn description(&self, tag: u16) -> [u64; 3];

    /// Copies data of the write that the tag has, `from` bytes behind its first one.
    ///
    /// # Errors
    /// What the driver says.
    fn read(&self, tag: u16, from: usize, into: &mut [u8]) -> io::Result<()>;

    /// Copies data to the read that the tag has.
    ///
    /// # Errors
    /// What the driver says.
    fn write(&self, tag: u16, from: usize, data: &[u8]) -> io::Result<()>;
}

impl Requests for engine::ublk::Queue {
    async fn fetch(&self, tag: u16, answer: Option<i32>) -> io::Result<()> {
        engine::ublk::Queue::fetch(self, tag, answer).await
    }

    fn description(&self, tag: u16) -> [u64; 3] {
        engine::ublk::Queue::description(self, tag)
    }

    fn read(&self, tag: u16, from: usize, into: &mut [u8]) -> io::Result<()> {
        engine::ublk::Queue::read(self, tag, from, into)
    }

    fn write(&self, tag: u16, from: usize, data: &[u8]) -> io::Result<()> {
        engine::ublk::Queue::write(self, tag, from, data)
    }
}

/// Answers the requests of a device, on the thread that made it, until the device is stopped. Dropped, it answers no more.
pub struct Server {
    tags: Vec<Task<()>>,
}

impl Server {
    /// Answers with what `namespace` says, and counts in `figures`. The device can be started then: whoever starts it is another
    /// thread, and waits until all tags are asked for.
    pub fn begin(queue: engine::ublk::Queue, tags: u16, namespace: &AnyNamespace, figures: &Arc<Figures>) -> Server {
        Server::over(queue, tags, namespace, figures)
    }

    /// The same over requests of any kind.
    pub fn over(requests: impl Requests, tags: u16, namespace: &AnyNamespace, figures: &Arc<Figures>) -> Server {
        let queue = Rc::new(Queue { requests, namespace: namespace.clone(), figures: figures.clone() });
        let serve = |tag| {
            let queue = queue.clone();
            task::spawn(async move { queue.serve(tag).await })
        };
        Server { tags: (0..tags).map(serve).collect() }
    }

    /// Whether requests may come that nobody answers: the device was stopped, or the driver refuses to give some of its requests.
    pub fn is_over(&self) -> bool {
        self.tags.iter().any(Task::is_finished)
    }

    /// Ends when the device was stopped, and every request that it gave is answered.
    pub async fn ended(self) {
        for tag in self.tags {
            tag.outcome().await;
        }
    }
}

struct Queue<R> {
    requests: R,
    namespace: AnyNamespace,
    figures: Arc<Figures>,
}

impl<R: Requests> Queue<R> {
    async fn serve(&self, tag: u16) {
        let mut answer = None;
        loop {
            match self.requests.fetch(tag, answer).await {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(ENODEV) => return,
                Err(error) => {
                    tracing::error!(tag, %error, "the kernel's requests of this tag are not answered any more");
                    return;
                }
            }
            answer = Some(self.answer(tag).await);
        }
    }

    /// Carries the tag's request out: the bytes of a read or a write, or else zero; negative: an error's number.
    async fn answer(&self, tag: u16) -> i32 {
        let request = Request::read(self.requests.description(tag));
        let outcome = match &request {
            Some(request) => self.execute(tag, request).await,
            None => Err((Errno::Io, "no such range".into())),
        };
        add(&self.figures.requests, 1);
        match (outcome, request) {
            (Ok(()), Some(Request { operation: Operation::Read, bytes, .. })) => {
                add(&self.figures.read_bytes, bytes);
                i32::try_from(bytes).unwrap_or(i32::MAX)
            }
            (Ok(()), Some(Request { operation: Operation::Write, bytes, .. })) => {
                add(&self.figures.written_bytes, bytes);
                i32::try_from(bytes).unwrap_or(i32::MAX)
            }
            (Ok(()), _) => 0,
            (Err((errno, reason)), _) => {
                add(&self.figures.failed, 1);
                tracing::debug!(tag, ?request, reason, "a request has failed");
                -(errno as i32)
            }
        }
    }

    async fn execute(&self, tag: u16, request: &Request) -> Result<(), (Errno, String)> {
        let Request { operation, offset, bytes, fua, keeps_room } = *request;
        let info = self.namespace.info();
        let block = u64::from(info.block_size);
        if !offset.is_multiple_of(block) || !bytes.is_multiple_of(block) {
            return Err((Errno::Io, format!("not whole blocks of {block} bytes")));
        }
        let durability = if fua { Durability::Stable } else { Durability::Cached };
        let failed = |error: device::Error| (Errno::from(&error), error.to_string());
        let (lba, blocks) = (Lba(offset / block), bytes / block);
        match operation {
            Operation::Read => self.read(tag, offset, bytes).await,
            Operation::Write => self.write(offset, bytes, durability, |from, part| self.data(tag, from, part)).await,
            Operation::Flush => self.namespace.flush().await.map_err(failed),
            Operation::Discard => {
                self.namespace.deallocate(lba, blocks).await.map_err(failed)?;
                // A deallocation has no flag of its own for that.
                if fua { self.namespace.flush().await.map_err(failed) } else { Ok(()) }
            }
            // What keeps its room is written, where zeroes would give it back.
            Operation::WriteZeroes if keeps_room && info.thin => {
                let zeroes = Buf::zeroed(self.part_bytes().min(bytes) as usize).freeze();
                self.write(offset, bytes, durability, |_, part| Ok(zeroes.slice(..part))).await
            }
            Operation::WriteZeroes => self.namespace.write_zeroes(lba, blocks, durability).await.map_err(failed),
            Operation::Other(number) => Err((Errno::NotSupported, format!("there is no operation {number}"))),
        }
    }

    /// Bytes that the namespace takes at once: whole blocks.
    fn part_bytes(&self) -> u64 {
        let info = self.namespace.info();
        let block = u64::from(info.block_size);
        (u64::from(info.transfer_blocks_max) * block).min(TRANSFER_BYTES_MAX as u64 / block * block).max(block)
    }

    /// The parts of so many bytes: where each begins, and how long it is.
    fn parts(&self, bytes: u64) -> impl Iterator<Item = (usize, usize)> + use<R> {
        let most = self.part_bytes();
        (0..bytes).step_by(most as usize).map(move |from| (from as usize, most.min(bytes - from) as usize))
    }

    async fn read(&self, tag: u16, offset: u64, bytes: u64) -> Result<(), (Errno, String)> {
        let block = u64::from(self.namespace.info().block_size);
        for (from, part) in self.parts(bytes) {
            let lba = Lba((offset + from as u64) / block);
            let (read, buf) = self.namespace.read(lba, Buf::with_len(part)).await;
            read.map_err(|error| (Errno::from(&error), error.to_string()))?;
            self.requests.write(tag, from, &buf).map_err(not_copied)?;
        }
        Ok(())
    }

    /// Part of a write's data.
    fn data(&self, tag: u16, from: usize, bytes: usize) -> Result<View, (Errno, String)> {
        let mut buf = Buf::with_len(bytes);
        self.requests.read(tag, from, &mut buf).map_err(not_copied)?;
        Ok(buf.freeze())
    }

    async fn write(
        &self,
        offset: u64,
        bytes: u64,
        durability: Durability,
        data: impl Fn(usize, usize) -> Result<View, (Errno, String)>,
    ) -> Result<(), (Errno, String)> {
        let block = u64::from(self.namespace.info().block_size);
        for (from, part) in self.parts(bytes) {
            let lba = Lba((offset + from as u64) / block);
            let written = self.namespace.write(lba, data(from, part)?, durability).await;
            written.map_err(|error| (Errno::from(&error), error.to_string()))?;
        }
        Ok(())
    }
}

fn not_copied(error: io::Error) -> (Errno, String) {
    (Errno::Io, format!("the data is not copied: {error}"))
}
