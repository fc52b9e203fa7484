//! What a connection carries of the volume's data, and whether there is room for it.

use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Lba, Namespace};
use engine::{Buf, View, time};
use fabric::host::AnyRemote;
use nvme::identify::IdentifyNamespace;

use super::{Conn, Lost};
use crate::blocks::PIECE_BYTES;
use crate::change::Change;
use crate::error::Error;
use crate::label::Kind;

/// How long a target may take to tell of a namespace that has grown, and how often that is looked for. Guessed: an event's time.
const ROOM_TIME: Duration = Duration::from_secs(1);
const ROOM_PAUSE: Duration = Duration::from_millis(10);

impl Conn {
    /// Whether the namespace has room for so many blocks of the volume, as far as this connection knows; a witness needs none.
    pub(crate) fn check_room(&self, blocks: u64) -> Result<(), Error> {
        let needed = self.label.data_first.saturating_add(blocks);
        let has = self.taken.namespace.info().blocks;
        if self.label.kind == Kind::Witness || has >= needed {
            return Ok(());
        }
        Err(Error::TooSmall { holder: self.name.clone(), blocks: has, needed })
    }

    /// The same, asked of the target: what has grown a short time ago is not known here before its target has said so. Whoever is
    /// lost meanwhile is to be looked at again.
    pub(crate) async fn look_for_room(&self, blocks: u64) -> Result<(), Error> {
        let begin = time::now();
        while let Err(error) = self.check_room(blocks) {
            if let AnyRemote::Remote(remote) = &self.taken.namespace {
                let needed = self.label.data_first.saturating_add(blocks);
                let has_it = |page: IdentifyNamespace| page.nsze.get() >= needed;
                let said = self.run(remote.identify()).await;
                if said.is_ok_and(|page| !page.is_ok_and(has_it)) {
                    return Err(error);
                }
                // A target that does not tell by itself is asked by the next connection.
                if begin.elapsed() >= ROOM_TIME {
                    self.end();
                    return Ok(());
                }
            } else if begin.elapsed() >= ROOM_TIME {
                return Err(error);
            }
            if !self.is_up() {
                return Ok(());
            }
            time::sleep(ROOM_PAUSE).await;
        }
        Ok(())
    }

    /// Where the volume's blocks lie.
    fn place(&self, lba: u64) -> Lba {
        Lba(self.label.data_first + lba)
    }

    /// What is acknowledged must survive a power loss of the replica: it stays in sync if it is back soon.
    pub(super) fn durability(&self) -> Durability {
        if self.taken.namespace.info().volatile_cache { Durability::Stable } else { Durability::Cached }
    }

    /// Reads blocks of the volume. The buffer is lost where the connection ends.
    pub(crate) async fn read(&self, lba: u64, buf: Buf) -> Result<Buf, Lost> {
        let bytes = buf.len() as u64;
        let read = self.taken.namespace.read(self.place(lba), buf);
        let (result, buf) = self.timed((true, bytes), read).await?;
        self.judge(result).map(|()| buf)
    }

    /// Checks that blocks can be read.
    pub(crate) async fn verify(&self, lba: u64, blocks: u64) -> Result<(), Lost> {
        let verified = self.run(self.taken.namespace.verify(self.place(lba), blocks)).await?;
        self.judge(verified)
    }

    /// Makes a change of blocks in regions that are marked first.
    pub(crate) async fn put(self: Rc<Self>, lba: u64, change: Change, regions: (u64, u64)) -> Result<(), Lost> {
        self.mark(regions).await?;
        match change {
            Change::Write(data) => self.write(lba, data).await,
            Change::Zero { blocks, gives_back } => self.zero(lba, blocks, gives_back).await,
        }
    }

    /// Makes a block unreadable, which nobody whose copy counts can read.
    pub(crate) async fn spoil(self: &Rc<Self>, lba: u64, region: u64) -> Result<(), Lost> {
        self.mark((region, region)).await?;
        let spoilt = self.run(self.taken.namespace.write_uncorrectable(self.place(lba), 1)).await?;
        self.judge(spoilt)
    }

    async fn write(&self, lba: u64, data: View) -> Result<(), Lost> {
        let bytes = data.len() as u64;
        let write = self.taken.namespace.write(self.place(lba), data, self.durability());
        let written = self.timed((false, bytes), write).await?;
        self.judge(written)
    }

    /// Zeroes, in the best way that the target has.
    async fn zero(&self, lba: u64, blocks: u64, gives_back: bool) -> Result<(), Lost> {
        let (namespace, info) = (&self.taken.namespace, self.taken.namespace.info());
        if gives_back && info.deallocated_reads_zero {
            let given = self.timed((false, 0), namespace.deallocate(self.place(lba), blocks)).await?;
            match self.judge(given) {
                Err(Lost::Refused(device::Error::Unsupported(_))) => {}
                // To deallocate is not stable by itself.
                Ok(()) if info.volatile_cache => {
                    return self.judge(self.run(namespace.flush()).await?).map_err(in_part);
                }
                result => return result,
            }
        }
        let zeroes = namespace.write_zeroes(self.place(lba), blocks, self.durability());
        let zeroed = self.timed((false, 0), zeroes).await?;
        match self.judge(zeroed) {
            Err(Lost::Refused(device::Error::Unsupported(_))) => {}
            result => return result,
        }
        let block_size = u64::from(info.block_size);
        let most = (PIECE_BYTES as u64 / block_size).min(u64::from(info.transfer_blocks_max)).min(blocks).max(1);
        let zeroes = Buf::zeroed((most * block_size) as usize).freeze();
        for first in (0..blocks).step_by(most as usize) {
            let now = most.min(blocks - first) * block_size;
            let written = self.write(lba + first, zeroes.slice(..now as usize)).await;
            written.map_err(|lost| if first > 0 { in_part(lost) } else { lost })?;
        }
        Ok(())
    }
}

/// A refusal behind a part that was done says that nothing more was.
fn in_part(lost: Lost) -> Lost {
    match lost {
        Lost::Refused(error) if !error.outcome_unknown() => Lost::Refused(device::Error::WriteFault(error.to_string())),
        lost => lost,
    }
}
