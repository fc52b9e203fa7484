//! [`RemoteNamespace`]: a namespace behind NVMe/TCP that comes back by itself.
//!
//! Invariants:
//! - A command is sent at most once. Whether a command that was under way when the connection ended took effect is not
//!   known here, and sending a write again could undo what others wrote since: the caller, who knows what it means,
//!   decides ([`Error::Disconnected`], [`Error::Aborted`]). While there is no connection commands fail at once
//!   ([`Error::NotConnected`]) and were certainly not sent.
//! - After a reconnect the namespace is the same one (identity, block size, at least the size), or it stays down and says why:
//!   writing pages of one store into another's namespace would destroy both.
//! - A compare-and-write is never split; what is longer than the target's unit is refused.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Error, Lba, Namespace, NamespaceInfo};
use engine::sync::{Notified, Notify};
use engine::task::{self, Task};
use engine::{Buf, View, time};
use nvme::Submission;
use nvme::command::{DATASET_DEALLOCATE, DatasetRange, FORCE_UNIT_ACCESS};
use nvme::opcode::NvmOpcode;
use zerocopy::IntoBytes;

use super::association::Association;
use super::error::{ConnectError, Target, fused_outcome, outcome};
use super::options::Options;
use super::queue::Payload;

/// A namespace of a target. It belongs to the reactor thread that made it.
pub struct RemoteNamespace {
    inner: Rc<Inner>,
    _supervisor: Task<()>,
}

struct Inner {
    options: Options,
    /// For errors: namespace, subsystem and address.
    name: String,
    association: RefCell<Option<Rc<Association>>>,
    /// What was found when it was first connected, and grows.
    info: RefCell<NamespaceInfo>,
    /// Counts the associations that were made.
    epoch: Cell<u64>,
    changed: Notify,
    last_error: RefCell<Option<String>>,
}

impl RemoteNamespace {
    /// Connects; ends with an error if the first attempt fails. Afterwards it reconnects by itself.
    pub async fn connect(options: Options) -> Result<RemoteNamespace, ConnectError> {
        let association = Association::connect(&options).await?;
        let info = association.info.borrow().clone();
        Ok(RemoteNamespace::start(options, info, Some(association)))
    }

    /// A namespace that is known from before, as `expected`. It is down at first and connects in the background; only a
    /// namespace with this identity and block size, and at least this size, is let in.
    pub fn expecting(options: Options, expected: NamespaceInfo) -> RemoteNamespace {
        RemoteNamespace::start(options, expected, None)
    }

    fn start(options: Options, info: NamespaceInfo, association: Option<Association>) -> RemoteNamespace {
        let inner = Rc::new(Inner {
            name: format!("{} namespace {} at {}", options.subsystem, options.nsid, options.address),
            options,
            association: RefCell::new(None),
            info: RefCell::new(info),
            epoch: Cell::new(0),
            changed: Notify::new(),
            last_error: RefCell::new(None),
        });
        let first = association.map(|association| inner.up(association));
        let supervisor = task::spawn(supervise(Rc::clone(&inner), first));
        RemoteNamespace { inner, _supervisor: supervisor }
    }

    /// Whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.inner.association.borrow().as_ref().is_some_and(|association| association.is_alive())
    }

    /// Counts the connections that were made: a change means that what was under way before was lost.
    pub fn epoch(&self) -> u64 {
        self.inner.epoch.get()
    }

    /// Ends when the connection has come or gone. Look at [`RemoteNamespace::is_connected`] after making this and before
    /// awaiting it.
    pub fn changed(&self) -> Notified {
        self.inner.changed.notified()
    }

    /// Waits until there is a connection.
    pub async fn connected(&self) {
        loop {
            let changed = self.changed();
            if self.is_connected() {
                return;
            }
            changed.await;
        }
    }

    /// Why it is down, or why it was last.
    pub fn last_error(&self) -> Option<String> {
        self.inner.last_error.borrow().clone()
    }

    /// The target in words, as errors name it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Tells the target that the host is leaving and disconnects for good. Commands under way are lost.
    pub async fn disconnect(self) {
        let association = self.inner.association.borrow_mut().take();
        if let Some(association) = association {
            association.leave().await;
        }
    }
}

impl Inner {
    fn up(&self, association: Association) -> Rc<Association> {
        let association = Rc::new(association);
        *self.association.borrow_mut() = Some(Rc::clone(&association));
        self.epoch.set(self.epoch.get() + 1);
        self.changed.notify_all();
        association
    }

    fn down(&self, reason: String) {
        let before = self.association.borrow_mut().take();
        *self.last_error.borrow_mut() = Some(reason);
        if before.is_some() {
            self.changed.notify_all();
        }
    }

    /// Lets a new association in only if the same namespace is behind it.
    fn check(&self, association: &Association) -> Result<(), ConnectError> {
        let (found, mut expected) = (association.info.borrow(), self.info.borrow_mut());
        let same = found.nguid == expected.nguid && found.block_size == expected.block_size;
        if !same || found.blocks < expected.blocks {
            return Err(ConnectError::OtherNamespace { expected: describe(&expected), found: describe(&found) });
        }
        *expected = found.clone();
        Ok(())
    }
}

fn describe(info: &NamespaceInfo) -> String {
    format!("{:032x} of {} blocks of {} bytes", u128::from_be_bytes(info.nguid), info.blocks, info.block_size)
}

/// Keeps the namespace connected, for as long as its owner keeps it.
async fn supervise(inner: Rc<Inner>, first: Option<Rc<Association>>) {
    let options = &inner.options;
    let mut current = first;
    let mut pause = options.backoff_min;
    loop {
        if let Some(association) = current.take() {
            let since = time::now();
            let error = association.closed().await;
            tracing::warn!(target = %inner.name, %error, "connection lost");
            inner.down(error.to_string());
            // A target that lets us in only to drop us must not be stormed.
            if since.elapsed() > options.backoff_max {
                pause = options.backoff_min;
            }
        }
        time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(options.backoff_max);
        match Association::connect(options).await {
            Ok(association) => match inner.check(&association) {
                Ok(()) => {
                    tracing::info!(target = %inner.name, "connected");
                    current = Some(inner.up(association));
                }
                Err(error) => {
                    tracing::error!(target = %inner.name, %error, "refused");
                    association.leave().await;
                    inner.down(error.to_string());
                    pause = options.backoff_max;
                }
            },
            Err(error) => {
                tracing::debug!(target = %inner.name, %error, "could not connect");
                inner.down(error.to_string());
            }
        }
    }
}

/// Between half of `pause` and all of it, so that hosts that lost a target together do not return together.
fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    let spread = half.as_nanos().max(1) as u64;
    half + Duration::from_nanos(task::random_u64() % spread)
}

/// A read, write or compare of `blocks` blocks.
fn ranged(opcode: NvmOpcode, nsid: u32, lba: Lba, blocks: u32, durability: Durability) -> Submission {
    let mut command = Submission::nvm(opcode, 0, nsid);
    if durability == Durability::Stable {
        command.cdw12 = FORCE_UNIT_ACCESS.into();
    }
    command.set_range(lba.0, blocks);
    command
}

impl Inner {
    fn association(&self) -> Result<Rc<Association>, Error> {
        self.association.borrow().clone().ok_or_else(|| self.not_connected())
    }

    fn not_connected(&self) -> Error {
        Error::NotConnected(self.name.clone())
    }

    fn target(&self, lba: Lba, blocks: u64) -> Target<'_> {
        Target { name: &self.name, lba, blocks, end: self.info.borrow().blocks }
    }

    /// Whole blocks, at least one and at most `blocks_max`, within the namespace. Returns how many.
    fn check_length(&self, lba: Lba, bytes: usize, blocks_max: u32) -> Result<u32, Error> {
        let info = self.info.borrow();
        let block_size = info.block_size as usize;
        if bytes == 0 || !bytes.is_multiple_of(block_size) || bytes / block_size > blocks_max as usize {
            let bytes_max = blocks_max as usize * block_size;
            return Err(Error::InvalidLength { bytes, block_size: info.block_size, bytes_max });
        }
        self.check_range(lba, (bytes / block_size) as u64).map(|()| (bytes / block_size) as u32)
    }

    fn check_range(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        let end = self.size();
        match lba.0.checked_add(blocks) {
            Some(last) if last <= end => Ok(()),
            _ => Err(Error::OutOfRange { lba, blocks, end }),
        }
    }

    /// In blocks; an event may have told of growth.
    fn size(&self) -> u64 {
        let known = self.info.borrow().blocks;
        self.association.borrow().as_ref().map_or(known, |now| now.info.borrow().blocks.max(known))
    }

    async fn command(
        &self,
        association: &Association,
        command: Submission,
        payload: Payload,
    ) -> (Result<(), Error>, Payload) {
        let (lba, blocks) = (Lba(command.lba()), u64::from(command.blocks()));
        match association.io.execute(command, payload).await {
            Ok((ended, payload)) => (outcome(ended, self.target(lba, blocks)), payload),
            Err(payload) => (Err(self.not_connected()), payload),
        }
    }

    /// One command's read. The buffer is made anew if the connection's end took it.
    async fn read_once(&self, association: &Association, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        let bytes = buf.len();
        let blocks = (bytes / self.info.borrow().block_size as usize) as u32;
        let command = ranged(NvmOpcode::READ, self.options.nsid, lba, blocks, Durability::Cached);
        let (result, payload) = self.command(association, command, Payload::In(buf)).await;
        match payload {
            Payload::In(buf) if buf.len() == bytes => (result, buf),
            _ => (result, Buf::with_len(bytes)),
        }
    }

    /// A read in as many commands as it takes.
    async fn read_split(&self, association: &Association, lba: Lba, mut buf: Buf) -> (Result<(), Error>, Buf) {
        let block_size = self.info.borrow().block_size as usize;
        let piece_bytes = association.limits.command_blocks_max as usize * block_size;
        for start in (0..buf.len()).step_by(piece_bytes) {
            let end = buf.len().min(start + piece_bytes);
            let at = Lba(lba.0 + (start / block_size) as u64);
            let (result, piece) = self.read_once(association, at, Buf::with_len(end - start)).await;
            if result.is_err() {
                return (result, buf);
            }
            buf[start..end].copy_from_slice(&piece);
        }
        (Ok(()), buf)
    }

    /// A write or compare, in as many commands as it takes.
    async fn send(&self, opcode: NvmOpcode, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        let (block_size, most) = {
            let info = self.info.borrow();
            (info.block_size as usize, info.transfer_blocks_max)
        };
        let blocks = self.check_length(lba, data.len(), most)?;
        let association = self.association()?;
        if opcode == NvmOpcode::COMPARE && !association.limits.compare {
            return Err(Error::Unsupported("compare"));
        }
        let nsid = self.options.nsid;
        let piece = association.limits.command_blocks_max;
        if blocks <= piece {
            let command = ranged(opcode, nsid, lba, blocks, durability);
            return self.command(&association, command, Payload::Out(data)).await.0;
        }
        for first in (0..blocks).step_by(piece as usize) {
            let count = piece.min(blocks - first);
            let part = data.slice(first as usize * block_size..(first + count) as usize * block_size);
            let command = ranged(opcode, nsid, Lba(lba.0 + u64::from(first)), count, durability);
            self.command(&association, command, Payload::Out(part)).await.0?;
        }
        Ok(())
    }

    async fn fused(&self, lba: Lba, expected: View, new: View, durability: Durability) -> Result<(), Error> {
        let most = self.info.borrow().compare_and_write_blocks_max;
        if most == 0 {
            return Err(Error::Unsupported("fused compare and write"));
        }
        let blocks = self.check_length(lba, expected.len(), most)?;
        if expected.len() != new.len() {
            self.check_length(lba, new.len(), 0)?;
        }
        let association = self.association()?;
        let nsid = self.options.nsid;
        let compare = ranged(NvmOpcode::COMPARE, nsid, lba, blocks, Durability::Cached);
        let write = ranged(NvmOpcode::WRITE, nsid, lba, blocks, durability);
        let halves = ((compare, Payload::Out(expected)), (write, Payload::Out(new)));
        match association.io.execute_fused(halves.0, halves.1).await {
            Some((compare, write)) => fused_outcome(compare, write, self.target(lba, u64::from(blocks))),
            None => Err(self.not_connected()),
        }
    }
}

impl Namespace for RemoteNamespace {
    fn info(&self) -> NamespaceInfo {
        NamespaceInfo { blocks: self.inner.size(), ..self.inner.info.borrow().clone() }
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        let inner = &*self.inner;
        let most = inner.info.borrow().transfer_blocks_max;
        let checked = inner.check_length(lba, buf.len(), most);
        let (blocks, association) = match checked.and_then(|blocks| Ok((blocks, inner.association()?))) {
            Ok(ready) => ready,
            Err(error) => return (Err(error), buf),
        };
        match blocks <= association.limits.command_blocks_max {
            true => inner.read_once(&association, lba, buf).await,
            false => inner.read_split(&association, lba, buf).await,
        }
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        self.inner.send(NvmOpcode::WRITE, lba, data, durability).await
    }

    async fn flush(&self) -> Result<(), Error> {
        let association = self.inner.association()?;
        let command = Submission::nvm(NvmOpcode::FLUSH, 0, self.inner.options.nsid);
        self.inner.command(&association, command, Payload::None).await.0
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        self.inner.send(NvmOpcode::COMPARE, lba, expected, Durability::Cached).await
    }

    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, how: Durability) -> Result<(), Error> {
        self.inner.fused(lba, expected, new, how).await
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        let inner = &*self.inner;
        inner.check_range(lba, blocks)?;
        let association = inner.association()?;
        if !association.limits.write_zeroes {
            return Err(Error::Unsupported("write zeroes"));
        }
        let most = association.limits.write_zeroes_blocks_max;
        let mut done = 0;
        while done < blocks {
            let count = (blocks - done).min(u64::from(most));
            let at = Lba(lba.0 + done);
            let command = ranged(NvmOpcode::WRITE_ZEROES, inner.options.nsid, at, count as u32, durability);
            inner.command(&association, command, Payload::None).await.0?;
            done += count;
        }
        Ok(())
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        let inner = &*self.inner;
        inner.check_range(lba, blocks)?;
        let association = inner.association()?;
        if !association.limits.deallocate {
            return Err(Error::Unsupported("deallocate"));
        }
        let mut done = 0;
        while done < blocks {
            let count = (blocks - done).min(u64::from(u32::MAX));
            let range =
                DatasetRange { attributes: 0.into(), blocks: (count as u32).into(), lba: (lba.0 + done).into() };
            // One range: its number is zero based in CDW10 (NVM Command Set 1.0 §3.2.3).
            let mut command = Submission::nvm(NvmOpcode::DATASET_MANAGEMENT, 0, inner.options.nsid);
            command.cdw11 = DATASET_DEALLOCATE.into();
            let payload = Payload::Out(Buf::copy_from(range.as_bytes()).freeze());
            let result = match association.io.execute(command, payload).await {
                Ok((ended, _)) => outcome(ended, inner.target(Lba(lba.0 + done), count)),
                Err(_) => Err(inner.not_connected()),
            };
            result?;
            done += count;
        }
        Ok(())
    }
}
