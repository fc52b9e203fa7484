//! Files and block devices of the current world, addressed in bytes, meant for O_DIRECT.
//!
//! With [`OpenOptions::direct`] offsets and lengths are multiples of [`File::logical_block_size`]; buffers are always aligned.

use std::{io, path::Path};

use crate::{
    Buf, View,
    runtime::{self, Context},
    sim, uring,
};

mod options;
mod zones;

pub use options::{Late, Lifetime, OpenOptions};
pub use zones::{KernelZone, KernelZoneCondition, KernelZoneKind, ZoneCommand};

/// An open file or block device. Clones share it; operations run on the current thread's world, from any thread.
#[derive(Clone)]
pub struct File {
    inner: Kind,
}

#[derive(Clone)]
enum Kind {
    Uring(uring::file::File),
    Sim(sim::file::File),
}

const WRONG_WORLD: &str = "a file of the kernel was used in a simulation, or the other way round";

impl File {
    /// Opens `path`. Blocks: for start-up, not for the data path.
    ///
    /// # Errors
    /// What the system says, with the path; `ResourceBusy` with a sentence if another opener holds it.
    pub fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
        let inner = match runtime::try_current() {
            Some(Context::Sim(driver)) => Kind::Sim(sim::file::File::open(&driver, path, options)?),
            Some(Context::Uring(_)) | None => Kind::Uring(uring::file::File::open(path, options)?),
        };
        Ok(File { inner })
    }

    /// Size in bytes when it was opened.
    pub fn size(&self) -> u64 {
        match &self.inner {
            Kind::Uring(file) => file.size(),
            Kind::Sim(file) => file.size(),
        }
    }

    /// Makes a file `bytes` long, zeroes at the end; [`File::size`] stays what it was. Blocks: not for the data path.
    ///
    /// # Errors
    /// What the system says; `Unsupported` in a simulation.
    pub fn grow(&self, bytes: u64) -> io::Result<()> {
        match &self.inner {
            Kind::Uring(file) => file.grow(bytes),
            Kind::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The granularity of direct access, in bytes.
    pub fn logical_block_size(&self) -> u32 {
        match &self.inner {
            Kind::Uring(file) => file.logical_block_size(),
            Kind::Sim(file) => file.logical_block_size(),
        }
    }

    /// Whether it is a block device.
    pub fn is_block_device(&self) -> bool {
        match &self.inner {
            Kind::Uring(file) => file.is_block_device(),
            Kind::Sim(file) => file.is_block_device(),
        }
    }

    /// Says how long what is written from now on stays, so that the medium can keep it apart from what stays for another time
    /// (`F_SET_RW_HINT`). It is the file's, not this opener's.
    ///
    /// # Errors
    /// The system or the file system knows no such hints; `Unsupported` in a simulation.
    pub fn hint_lifetime(&self, lifetime: Lifetime) -> io::Result<()> {
        match &self.inner {
            Kind::Uring(file) => file.hint_lifetime(lifetime),
            Kind::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Fills all of `buf`'s content (`buf.len()` bytes) from `offset`. The buffer comes back in every case.
    ///
    /// # Errors
    /// What the system says; `UnexpectedEof` if the file ends before.
    pub async fn read_at(&self, offset: u64, buf: Buf) -> (io::Result<()>, Buf) {
        match (&self.inner, runtime::current()) {
            (Kind::Uring(file), Context::Uring(driver)) => file.read_at(driver, offset, buf).await,
            (Kind::Sim(file), Context::Sim(driver)) => file.read_at(driver, offset, buf).await,
            _ => panic!("{WRONG_WORLD}"),
        }
    }

    /// Writes all of `data` at `offset`. `durable`: it survives power loss once acknowledged (RWF_DSYNC). Dropping the
    /// future does not stop the write.
    ///
    /// # Errors
    /// What the system says; an unknown part was then written.
    pub async fn write_at(&self, offset: u64, data: View, durable: bool) -> io::Result<()> {
        match (&self.inner, runtime::current()) {
            (Kind::Uring(file), Context::Uring(driver)) => file.write_at(driver, offset, data, durable).await,
            (Kind::Sim(file), Context::Sim(driver)) => file.write_at(driver, offset, data, durable).await,
            _ => panic!("{WRONG_WORLD}"),
        }
    }

    /// As [`File::write_at`], with `held` kept until the world is done with the write, also when this future is dropped
    /// before: a lock on the range then stays locked for as long as the bytes may still change. `late` is then told how the
    /// write ended (its last system call; what that left out is not written any more). It is not told at the end of the world.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub async fn write_at_holding<G: 'static>(
        &self,
        offset: u64,
        data: View,
        durable: bool,
        held: G,
        late: Late<G>,
    ) -> (io::Result<()>, G) {
        match (&self.inner, runtime::current()) {
            (Kind::Uring(file), Context::Uring(driver)) => {
                file.write_at_holding(driver, offset, data, durable, held, late).await
            }
            (Kind::Sim(file), Context::Sim(driver)) => {
                file.write_at_holding(driver, offset, data, durable, held, late).await
            }
            _ => panic!("{WRONG_WORLD}"),
        }
    }

    /// Makes every write that was acknowledged before survive power loss (fdatasync).
    ///
    /// # Errors
    /// What the system says. What was written since the last success may then be lost.
    pub async fn sync_data(&self) -> io::Result<()> {
        self.sync_data_holding((), |(), _| {}).await.0
    }

    /// As [`File::sync_data`], with `held` and `late` as in [`File::write_at_holding`]: a failure is told once, and would
    /// otherwise be lost with this future.
    ///
    /// # Errors
    /// As [`File::sync_data`].
    pub async fn sync_data_holding<G: 'static>(&self, held: G, late: Late<G>) -> (io::Result<()>, G) {
        match (&self.inner, runtime::current()) {
            (Kind::Uring(file), Context::Uring(driver)) => file.sync_data_holding(driver, held, late).await,
            (Kind::Sim(file), Context::Sim(driver)) => file.sync_data_holding(driver, held, late).await,
            _ => panic!("{WRONG_WORLD}"),
        }
    }

    /// Makes the range read as zeroes and gives its room back where the medium can.
    ///
    /// # Errors
    /// What the system says.
    pub async fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        match (&self.inner, runtime::current()) {
            (Kind::Uring(file), Context::Uring(driver)) => file.punch_hole(driver, offset, len).await,
            (Kind::Sim(file), Context::Sim(driver)) => file.punch_hole(driver, offset, len).await,
            _ => panic!("{WRONG_WORLD}"),
        }
    }

    /// Makes the range read as zeroes and keeps its room.
    ///
    /// # Errors
    /// What the system says.
    pub async fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        match (&self.inner, runtime::current()) {
            (Kind::Uring(file), Context::Uring(driver)) => file.write_zeroes(driver, offset, len).await,
            (Kind::Sim(file), Context::Sim(driver)) => file.write_zeroes(driver, offset, len).await,
            _ => panic!("{WRONG_WORLD}"),
        }
    }
}
