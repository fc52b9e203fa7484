//! A namespace's commands over one association: each call is one operation, in as many commands as the controller takes.

use device::namespace::VERIFY_BYTES_MAX;
use device::{Durability, Error, Lba, ZoneAction};
use engine::{Buf, View};
use nvme::Submission;
use nvme::command::{DATASET_DEALLOCATE, DatasetRange, FORCE_UNIT_ACCESS, WRITE_ZEROES_DEALLOCATE};
use nvme::opcode::NvmOpcode;
use zerocopy::IntoBytes;

use super::error::{CommandError, Fate, Target, fused_judged, judged};
use super::queue::Payload;
use super::session::{Attached, Up};
use super::slot::Ended;
use super::zoned;

/// A change of blocks that comes out the same when it is made again.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write {
        lba: Lba,
        data: View,
        durability: Durability,
    },
    WriteZeroes {
        lba: Lba,
        blocks: u64,
        durability: Durability,
    },
    Deallocate {
        lba: Lba,
        blocks: u64,
    },
    WriteUncorrectable {
        lba: Lba,
        blocks: u64,
    },
    /// Of a zone, or of all zones. Done a second time it leaves the zone as it was.
    Zone {
        zone: Option<Lba>,
        action: ZoneAction,
    },
}

/// A fused compare and write.
#[derive(Clone, Debug)]
pub(super) struct Swap {
    pub(super) lba: Lba,
    pub(super) expected: View,
    pub(super) new: View,
    pub(super) durability: Durability,
}

/// See the module.
pub(super) struct Io<'a> {
    pub(super) attached: &'a Attached,
    pub(super) up: &'a Up,
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

/// Whole blocks, at least one and at most `blocks_max`, within the namespace. Returns how many.
pub(super) fn check_length(attached: &Attached, lba: Lba, bytes: usize, blocks_max: u32) -> Result<u32, Error> {
    let block_size = attached.info.borrow().block_size;
    let unit = block_size as usize;
    if bytes == 0 || !bytes.is_multiple_of(unit) || bytes / unit > blocks_max as usize {
        return Err(Error::InvalidLength { bytes, block_size, bytes_max: blocks_max as usize * unit });
    }
    check_range(attached, lba, (bytes / unit) as u64).map(|()| (bytes / unit) as u32)
}

pub(super) fn check_range(attached: &Attached, lba: Lba, blocks: u64) -> Result<(), Error> {
    let end = attached.info.borrow().blocks;
    match lba.0.checked_add(blocks) {
        Some(last) if last <= end => Ok(()),
        _ => Err(Error::OutOfRange { lba, blocks, end }),
    }
}

impl Io<'_> {
    fn target(&self, lba: Lba, blocks: u64) -> Target<'_> {
        Target { name: &self.attached.name, lba, blocks, end: self.attached.info.borrow().blocks }
    }

    fn not_connected(&self) -> CommandError {
        Error::NotConnected(self.attached.name.clone()).into()
    }

    /// What the failure of one command means for the call that it is a part of: where earlier parts were executed, no error may
    /// say that nothing was sent.
    fn in_part(&self, executed: bool, failed: CommandError) -> CommandError {
        match failed.fate {
            Fate::NotExecuted | Fate::Ana(_) if executed => {
                CommandError { error: Error::Disconnected(self.attached.name.clone()), ..failed }
            }
            _ => failed,
        }
    }

    fn block_size(&self) -> usize {
        self.attached.info.borrow().block_size as usize
    }

    /// The end of a command that has succeeded.
    pub(super) async fn ended(&self, command: Submission, payload: Payload) -> Result<Ended, CommandError> {
        let (lba, blocks) = (Lba(command.lba()), u64::from(command.blocks()));
        match self.up.association.queue().execute(command, payload).await {
            Ok((ended, _)) => judged(ended, self.target(lba, blocks)).map(|()| ended),
            Err(_) => Err(self.not_connected()),
        }
    }

    pub(super) async fn command(&self, command: Submission, payload: Payload) -> (Result<(), CommandError>, Payload) {
        let (lba, blocks) = (Lba(command.lba()), u64::from(command.blocks()));
        match self.up.association.queue().execute(command, payload).await {
            Ok((ended, payload)) => (judged(ended, self.target(lba, blocks)), payload),
            Err(payload) => (Err(self.not_connected()), payload),
        }
    }

    /// Fills `buf`. It is made anew if the connection's end took it.
    pub(super) async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), CommandError>, Buf) {
        let most = self.attached.info.borrow().transfer_blocks_max;
        let blocks = match check_length(self.attached, lba, buf.len(), most) {
            Ok(blocks) => blocks,
            Err(error) => return (Err(error.into()), buf),
        };
        match blocks <= self.read_blocks_max(lba) {
            true => self.read_once(lba, buf).await,
            false => self.read_split(lba, buf).await,
        }
    }

    /// Blocks that one command can read from a block on.
    fn read_blocks_max(&self, lba: Lba) -> u32 {
        let limits = &self.up.limits;
        let zone = limits.zones.filter(|zones| !zones.across).map(|zones| zones.info.zone_blocks);
        let left = zone.map_or(u64::MAX, |blocks| blocks - lba.0 % blocks);
        u64::from(limits.command_blocks_max).min(left) as u32
    }

    async fn read_once(&self, lba: Lba, buf: Buf) -> (Result<(), CommandError>, Buf) {
        let bytes = buf.len();
        let blocks = (bytes / self.block_size()) as u32;
        let command = ranged(NvmOpcode::READ, self.attached.nsid, lba, blocks, Durability::Cached);
        let (result, payload) = self.command(command, Payload::In(buf)).await;
        match payload {
            Payload::In(buf) if buf.len() == bytes => (result, buf),
            _ => (result, Buf::with_len(bytes)),
        }
    }

    /// A read in as many commands as it takes.
    async fn read_split(&self, lba: Lba, mut buf: Buf) -> (Result<(), CommandError>, Buf) {
        let block_size = self.block_size();
        let mut start = 0;
        while start < buf.len() {
            let at = Lba(lba.0 + (start / block_size) as u64);
            let end = buf.len().min(start + self.read_blocks_max(at) as usize * block_size);
            let (result, piece) = self.read_once(at, Buf::with_len(end - start)).await;
            if result.is_err() {
                return (result, buf);
            }
            buf[start..end].copy_from_slice(&piece);
            start = end;
        }
        (Ok(()), buf)
    }

    /// Makes a change.
    pub(super) async fn change(&self, change: &Change) -> Result<(), CommandError> {
        match change {
            Change::Write { lba, data, durability } => {
                let placement = self.attached.placement.get();
                let written = self.send(NvmOpcode::WRITE, *lba, data.clone(), *durability, placement).await;
                match &written {
                    // The handle may not be the namespace's any more. What was refused was not made: once more, without.
                    Err(CommandError { error: Error::Status(status), .. }) if placement.is_some() => {
                        tracing::warn!(target = self.attached.name, status, "writes do not say any more where they go");
                        self.attached.placement.set(None);
                        self.send(NvmOpcode::WRITE, *lba, data.clone(), *durability, None).await
                    }
                    _ => written,
                }
            }
            Change::WriteZeroes { lba, blocks, durability } => {
                let most = self.up.limits.write_zeroes;
                self.without_data((NvmOpcode::WRITE_ZEROES, 0), most, (*lba, *blocks), *durability).await
            }
            Change::WriteUncorrectable { lba, blocks } => {
                let most = self.up.limits.write_uncorrectable;
                self.without_data((NvmOpcode::WRITE_UNCORRECTABLE, 0), most, (*lba, *blocks), Durability::Cached).await
            }
            Change::Deallocate { lba, blocks } => self.deallocate(*lba, *blocks).await,
            Change::Zone { zone, action } => {
                self.attached.zones()?;
                zone.map_or(Ok(()), |zone| self.attached.check_zone(zone))?;
                self.command(zoned::change(self.attached.nsid, *zone, *action), Payload::None).await.0
            }
        }
    }

    pub(super) async fn compare(&self, lba: Lba, expected: View) -> Result<(), CommandError> {
        if !self.up.limits.compare {
            return Err(Error::Unsupported("compare").into());
        }
        self.send(NvmOpcode::COMPARE, lba, expected, Durability::Cached, None).await
    }

    pub(super) async fn flush(&self) -> Result<(), CommandError> {
        self.command(Submission::nvm(NvmOpcode::FLUSH, 0, self.attached.nsid), Payload::None).await.0
    }

    /// A write or compare, in as many commands as it takes.
    async fn send(
        &self,
        opcode: NvmOpcode,
        lba: Lba,
        data: View,
        durability: Durability,
        placement: Option<u16>,
    ) -> Result<(), CommandError> {
        let command = |lba, blocks| {
            let mut command = ranged(opcode, self.attached.nsid, lba, blocks, durability);
            placement.into_iter().for_each(|placement| command.set_placement(placement));
            command
        };
        let most = self.attached.info.borrow().transfer_blocks_max;
        let blocks = check_length(self.attached, lba, data.len(), most)?;
        let block_size = self.block_size();
        let piece = self.up.limits.command_blocks_max;
        if blocks <= piece {
            return self.command(command(lba, blocks), Payload::Out(data)).await.0;
        }
        for first in (0..blocks).step_by(piece as usize) {
            let count = piece.min(blocks - first);
            let part = data.slice(first as usize * block_size..(first + count) as usize * block_size);
            let command = command(Lba(lba.0 + u64::from(first)), count);
            self.command(command, Payload::Out(part)).await.0.map_err(|failed| self.in_part(first > 0, failed))?;
        }
        Ok(())
    }

    /// One fused pair; it is never split.
    pub(super) async fn swap(&self, swap: &Swap) -> Result<(), CommandError> {
        let most = self.attached.info.borrow().compare_and_write_blocks_max;
        if most == 0 {
            return Err(Error::Unsupported("fused compare and write").into());
        }
        let blocks = check_length(self.attached, swap.lba, swap.expected.len(), most)?;
        if swap.expected.len() != swap.new.len() {
            check_length(self.attached, swap.lba, swap.new.len(), 0)?;
        }
        let nsid = self.attached.nsid;
        let compare = ranged(NvmOpcode::COMPARE, nsid, swap.lba, blocks, Durability::Cached);
        let write = ranged(NvmOpcode::WRITE, nsid, swap.lba, blocks, swap.durability);
        let (expected, new) = (Payload::Out(swap.expected.clone()), Payload::Out(swap.new.clone()));
        match self.up.association.queue().execute_fused((compare, expected), (write, new)).await {
            Some((compare, write)) => fused_judged(compare, write, self.target(swap.lba, u64::from(blocks))),
            None => Err(self.not_connected()),
        }
    }

    /// Where the controller does not know Verify the blocks are read and dropped.
    pub(super) async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), CommandError> {
        if self.up.limits.verify > 0 {
            let most = self.up.limits.verify;
            return self.without_data((NvmOpcode::VERIFY, 0), most, (lba, blocks), Durability::Cached).await;
        }
        check_range(self.attached, lba, blocks)?;
        let piece_blocks = (VERIFY_BYTES_MAX / self.block_size()).max(1) as u64;
        let mut done = 0;
        while done < blocks {
            let now = (blocks - done).min(piece_blocks);
            let buf = Buf::with_len(now as usize * self.block_size());
            self.read(Lba(lba.0 + done), buf).await.0?;
            done += now;
        }
        Ok(())
    }

    /// A command for a range that carries no data, in as many pieces as it takes; with bits of its CDW12. `most`: blocks of one, 0:
    /// it is not supported.
    async fn without_data(
        &self,
        (opcode, bits): (NvmOpcode, u32),
        most: u32,
        (lba, blocks): (Lba, u64),
        durability: Durability,
    ) -> Result<(), CommandError> {
        check_range(self.attached, lba, blocks)?;
        if most == 0 {
            return Err(Error::Unsupported(opcode.name().unwrap_or("this command")).into());
        }
        let mut done = 0;
        while done < blocks {
            let count = (blocks - done).min(u64::from(most));
            let at = Lba(lba.0 + done);
            let mut command = ranged(opcode, self.attached.nsid, at, count as u32, durability);
            command.cdw12 = (command.cdw12.get() | bits).into();
            self.command(command, Payload::None).await.0.map_err(|failed| self.in_part(done > 0, failed))?;
            done += count;
        }
        Ok(())
    }

    /// By Write Zeroes, where that deallocates: Dataset Management is advisory, and may leave any block as it was (NVM Command Set
    /// 1.0 §3.2.3).
    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), CommandError> {
        if self.attached.info.borrow().deallocated_reads_zero {
            let how = (NvmOpcode::WRITE_ZEROES, WRITE_ZEROES_DEALLOCATE);
            return self.without_data(how, self.up.limits.write_zeroes, (lba, blocks), Durability::Cached).await;
        }
        check_range(self.attached, lba, blocks)?;
        let most = u64::from(self.up.limits.deallocate);
        if most == 0 {
            return Err(Error::Unsupported("deallocate").into());
        }
        let mut done = 0;
        while done < blocks {
            let count = (blocks - done).min(most);
            let range =
                DatasetRange { attributes: 0.into(), blocks: (count as u32).into(), lba: (lba.0 + done).into() };
            // One range: its number is zero based in CDW10 (NVM Command Set 1.0 §3.2.3).
            let mut command = Submission::nvm(NvmOpcode::DATASET_MANAGEMENT, 0, self.attached.nsid);
            command.cdw11 = DATASET_DEALLOCATE.into();
            let payload = Payload::Out(Buf::copy_from(range.as_bytes()).freeze());
            let result = match self.up.association.queue().execute(command, payload).await {
                Ok((ended, _)) => judged(ended, self.target(Lba(lba.0 + done), count)),
                Err(_) => Err(self.not_connected()),
            };
            result.map_err(|failed| self.in_part(done > 0, failed))?;
            done += count;
        }
        Ok(())
    }
}
