//! The edge to the kernel's driver of block devices whose requests a process answers (`ublk_drv`, `include/uapi/linux/ublk_cmd.h`):
//! what of it needs `unsafe`, and no more. What the bytes mean is told by the crate `ublk`.
//!
//! - A [`Control`] makes, starts, stops and deletes devices. Its commands block, and some of them until others have answered the
//!   device's requests: they belong on a thread that is no reactor.
//! - A [`Queue`] is the requests of a device: one for each tag at a time.
//!
//! Invariants:
//! - The kernel never holds an address of ours longer than a command of a [`Control`] takes: the commands of a [`Queue`] have none,
//!   and data is copied by [`Queue::read`] and [`Queue::write`]. So a process may end, and a future be dropped, at any time.
//! - A request's description is read after the command of its tag has ended, and before the next one of that tag was begun: the
//!   driver writes it at no other time.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::{pread, pwrite};
use rustix::mm::{self, MapFlags, ProtFlags};

use super::op::Op;
use super::slots::{Held, Kind};
use crate::runtime::{self, Context};

/// Tags of a queue, at most: the driver's limit.
pub const TAGS_MAX: u16 = 4096;
/// Of a request's description, words of eight bytes.
pub const DESCRIPTION_WORDS: usize = 3;
/// Where the data of requests is in the device's file, and how far the tags' are from each other there.
const DATA_OFFSET: u64 = 0x8000_0000;
const DATA_BYTES_PER_TAG: u64 = 1 << 25;
/// Of linux/fs.h.
const BLKFLSBUF: libc::Ioctl = 0x1261;

/// Commands of a [`Control`]. None that has addresses in what its address points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Operation {
    /// Fills the buffer with what the driver knows of the device.
    GetDeviceInfo = 0x02,
    /// Makes a device as the buffer says.
    AddDevice = 0x04,
    /// Deletes a device, and waits until nobody has it open.
    DeleteDevice = 0x05,
    /// Has a block device of it; waits until the queue is served. The data is the server's process.
    StartDevice = 0x06,
    /// Ends the block device; waits for the requests under way.
    StopDevice = 0x07,
    /// Says of what size and kind the block device is to be.
    SetParameters = 0x08,
    /// Has a device whose server has ended take another one.
    StartUserRecovery = 0x10,
    /// Goes on with its requests; waits until the queue is served. The data is the server's process.
    EndUserRecovery = 0x11,
    /// Fills the buffer with what the driver offers.
    GetFeatures = 0x13,
    /// Deletes a device, and does not wait.
    DeleteDeviceAsync = 0x14,
    /// Makes the block device that large; the data is its size.
    UpdateSize = 0x15,
}

/// A command's number as `ioctl` encodes it: direction (1: to the kernel, 2: from it), bytes of its argument, the driver's letter.
const fn encoded(direction: u32, argument_bytes: u32, number: u8) -> u32 {
    direction << 30 | argument_bytes << 16 | (b'u' as u32) << 8 | number as u32
}

impl Operation {
    const fn code(self) -> u32 {
        let is_read = matches!(self, Self::GetDeviceInfo | Self::GetFeatures | Self::DeleteDeviceAsync);
        encoded(if is_read { 2 } else { 3 }, 32, self as u8)
    }
}

/// The file that the driver takes its commands at.
pub struct Control {
    file: OwnedFd,
}

impl Control {
    /// Opens the file, usually `/dev/ublk-control`.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Control> {
        Ok(Control { file: fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())? })
    }

    /// Carries a command out, and waits for its end. `data` and what `buffer` holds before and after are the operation's business.
    ///
    /// # Errors
    /// What the driver, or `io_uring`, says. `InvalidInput`: the buffer has more bytes than a command can tell.
    pub fn run(&self, operation: Operation, device: u32, data: u64, buffer: &mut [u8]) -> io::Result<()> {
        let bytes = u16::try_from(buffer.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut ring: IoUring<squeue::Entry128> = IoUring::builder().dontfork().build(1)?;
        let mut held: Box<[u8]> = (&*buffer).into();
        let address = if bytes == 0 { 0 } else { held.as_mut_ptr().expose_provenance() as u64 };
        let mut command = [0; 80];
        command[..4].copy_from_slice(&device.to_ne_bytes());
        command[4..6].copy_from_slice(&u16::MAX.to_ne_bytes()); // for no queue
        command[6..8].copy_from_slice(&bytes.to_ne_bytes());
        command[8..16].copy_from_slice(&address.to_ne_bytes());
        command[16..24].copy_from_slice(&data.to_ne_bytes());
        let file = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(file, operation.code()).cmd(command).build();
        // SAFETY: the entry points into `held`, of which it tells the length, and `held` is freed when the command has ended, or
        // not at all. None of the operations has the kernel follow an address in there.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        let result = loop {
            match ring.submit_and_wait(1) {
                Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                    mem::forget(held); // the kernel may have the command still
                    return Err(error);
                }
                _ => {}
            }
            if let Some(completion) = ring.completion().next() {
                break completion.result();
            }
        };
        buffer.copy_from_slice(&held);
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
    }
}

/// The requests of a device that has one queue and whose data is copied by its server.
pub struct Queue {
    file: Arc<OwnedFd>,
    descriptions: NonNull<AtomicU64>,
    mapped_bytes: usize,
    tags: u16,
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this length and unmapped nowhere else; no borrow of it leaves a method. It cannot fail for
        // a range that is mapped.
        let _ = unsafe { mm::munmap(self.descriptions.as_ptr().cast(), self.mapped_bytes) };
    }
}

fn page_bytes() -> usize {
    // SAFETY: it reads a number of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Queue {
    /// Opens the file of a device's server, `/dev/ublkcN`, whose only queue has that many tags.
    ///
    /// # Errors
    /// What the system says: `ResourceBusy` where another process has it. `InvalidInput` for no tags or more than [`TAGS_MAX`].
    pub fn open(path: &Path, tags: u16) -> io::Result<Queue> {
        if tags == 0 || tags > TAGS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("a queue has 1 to {TAGS_MAX} tags")));
        }
        let file = fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let bytes = usize::from(tags) * DESCRIPTION_WORDS * size_of::<AtomicU64>();
        let mapped_bytes = bytes.next_multiple_of(page_bytes());
        // SAFETY: a new mapping at a place of the system's choice touches no memory of this process.
        let base = unsafe { mm::mmap(ptr::null_mut(), mapped_bytes, ProtFlags::READ, MapFlags::SHARED, &file, 0) }?;
        let descriptions = NonNull::new(base.cast::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Queue { file: Arc::new(file), descriptions, mapped_bytes, tags })
    }

    /// Waits for the next request of a tag; `answer`: of the former request, `None` for the first one. The device can be started
    /// when this waits for every tag. All of them are asked for by one reactor. A dropped future is no end of the command: what
    /// comes for the tag then waits until the process has ended.
    ///
    /// # Errors
    /// What the driver says: `ENODEV` where the device was stopped. `Unsupported` in a simulation.
    ///
    /// # Panics
    /// If there is no such tag; outside a world.
    pub async fn fetch(&self, tag: u16, answer: Option<i32>) -> io::Result<()> {
        assert!(tag < self.tags, "tag {tag} of {}", self.tags);
        let Context::Uring(driver) = runtime::current() else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "there is no such driver in a simulation"));
        };
        let number = if answer.is_some() { 0x21 } else { 0x20 };
        let mut command = [0; 16];
        command[2..4].copy_from_slice(&tag.to_ne_bytes());
        command[4..8].copy_from_slice(&answer.unwrap_or(0).to_ne_bytes());
        let file = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd16::new(file, encoded(3, 16, number)).cmd(command).build();
        // SAFETY: the entry points to nothing: the address in the command is zero.
        let op = unsafe { Op::start(driver, entry, Held::Nothing, &self.file, Kind::Command) };
        op.await.0.map(drop)
    }

    /// The description of the request that a tag has.
    ///
    /// # Panics
    /// If there is no such tag.
    pub fn description(&self, tag: u16) -> [u64; DESCRIPTION_WORDS] {
        assert!(tag < self.tags, "tag {tag} of {}", self.tags);
        std::array::from_fn(|word| {
            // SAFETY: the tag's words are mapped, readable and aligned, until `self` is dropped; what is there is the kernel's, and
            // any bytes are a valid word.
            let word = unsafe { self.descriptions.add(usize::from(tag) * DESCRIPTION_WORDS + word).as_ref() };
            word.load(Ordering::Acquire)
        })
    }

    fn place(tag: u16, from: usize) -> u64 {
        DATA_OFFSET + u64::from(tag) * DATA_BYTES_PER_TAG + from as u64
    }

    /// Copies data of the write that a tag has, `from` bytes behind the request's first one.
    ///
    /// # Errors
    /// What the driver says; `UnexpectedEof` where the request has less data.
    pub fn read(&self, tag: u16, from: usize, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            match pread(&*self.file, &mut into[done..], Queue::place(tag, from + done))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => done += count,
            }
        }
        Ok(())
    }

    /// Copies data to the read that a tag has, `from` bytes behind the request's first one.
    ///
    /// # Errors
    /// What the driver says; `WriteZero` where the request has room for less.
    pub fn write(&self, tag: u16, from: usize, data: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            match pwrite(&*self.file, &data[done..], Queue::place(tag, from + done))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => done += count,
            }
        }
        Ok(())
    }
}

/// Has a block device's filesystem, or else its cache, write what waits to be written to it. Blocks.
///
/// # Errors
/// What the system says.
pub fn sync_block_device(path: &Path) -> io::Result<()> {
    let device = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: the descriptor is open, and the request has no argument.
    match unsafe { libc::ioctl(device.as_raw_fd(), BLKFLSBUF, 0) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{SimConfig, World};
    use crate::{Reactor, ReactorConfig};

    #[test]
    fn commands_are_encoded_as_the_driver_reads_them() {
        let codes = [
            (Operation::GetDeviceInfo, 0x8020_7502),
            (Operation::AddDevice, 0xC020_7504),
            (Operation::StartDevice, 0xC020_7506),
            (Operation::EndUserRecovery, 0xC020_7511),
            (Operation::GetFeatures, 0x8020_7513),
            (Operation::DeleteDeviceAsync, 0x8020_7514),
            (Operation::UpdateSize, 0xC020_7515),
        ];
        for (operation, code) in codes {
            assert_eq!(operation.code(), code, "{operation:?}");
        }
        assert_eq!([encoded(3, 16, 0x20), encoded(3, 16, 0x21)], [0xC010_7520, 0xC010_7521]);
        assert_eq!(Queue::place(3, 512), 0x8000_0000 + (3 << 25) + 512);
    }

    #[test]
    fn what_takes_no_such_commands_says_so() {
        let control = Control::open(Path::new("/dev/zero")).expect("a file");
        let mut features = [0; 8];
        control.run(Operation::GetFeatures, 0, 0, &mut features).expect_err("no such driver");
        assert_eq!(features, [0; 8]);
        let long = control.run(Operation::SetParameters, 0, 0, &mut vec![0; 1 << 16]).expect_err("too long");
        assert_eq!(long.kind(), io::ErrorKind::InvalidInput);
        for tags in [0, TAGS_MAX + 1] {
            let none = Queue::open(Path::new("/dev/zero"), tags).err().expect("no such queue");
            assert_eq!(none.kind(), io::ErrorKind::InvalidInput);
        }
    }

    /// `/dev/zero` stands for the device: it can be mapped, and knows no commands.
    #[test]
    fn a_queue_of_no_device_ends_its_fetches_and_copies_what_is_there() {
        let fetched = Reactor::run(ReactorConfig::default(), async {
            let queue = Queue::open(Path::new("/dev/zero"), 4).expect("mapped");
            assert_eq!(queue.description(3), [0; 3]);
            let mut data = [1; 8];
            queue.read(3, 0, &mut data).expect("zeroes");
            assert_eq!(data, [0; 8]);
            queue.write(3, 0, &data).expect("taken");
            (queue.fetch(0, None).await.is_err(), queue.fetch(3, Some(-5)).await.is_err())
        });
        assert_eq!(fetched.expect("a reactor"), (true, true));
        let world = World::new(1, SimConfig::default());
        let fetched = world.run_until(async {
            let queue = Queue::open(Path::new("/dev/zero"), 1).expect("mapped");
            queue.fetch(0, None).await.map_err(|error| error.kind())
        });
        assert_eq!(fetched.expect("it ends"), Err(io::ErrorKind::Unsupported));
    }
}
