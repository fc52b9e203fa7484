//! Files and block devices of the kernel.

use std::{
    future::Future,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    pin::Pin,
    rc::Rc,
    sync::Arc,
};

use io_uring::{opcode, squeue, types};
use rustix::{
    fs::{self, AtFlags, FileType, FlockOperation, Mode, OFlags, StatxFlags},
    io::Errno,
};

use super::{
    Driver,
    op::Op,
    slots::{Held, Kind},
};
use crate::{
    Buf, View, buf,
    file::{Late, Lifetime, OpenOptions},
    runtime::{self, Context},
    task::LocalFuture,
};

/// The granularity reported for buffered access: the smallest block NVMe knows.
const BUFFERED_BLOCK_SIZE: u32 = 512;

/// Of linux/fcntl.h.
const F_SET_RW_HINT: libc::c_int = 1024 + 12;

#[derive(Clone)]
pub(crate) struct File {
    shared: Arc<Shared>,
}

struct Shared {
    descriptor: Arc<OwnedFd>,
    size: u64,
    block_size: u32,
    block_device: bool,
}

impl File {
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
        open(path, options).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    pub(crate) fn size(&self) -> u64 {
        self.shared.size
    }

    pub(crate) fn grow(&self, bytes: u64) -> io::Result<()> {
        Ok(fs::ftruncate(&*self.shared.descriptor, bytes)?)
    }

    pub(crate) fn hint_lifetime(&self, lifetime: Lifetime) -> io::Result<()> {
        // RWH_WRITE_LIFE_SHORT, MEDIUM, LONG of linux/fcntl.h.
        let hint: u64 = match lifetime {
            Lifetime::Short => 2,
            Lifetime::Medium => 3,
            Lifetime::Long => 4,
        };
        // SAFETY: the descriptor is open, and the kernel reads one u64 at the address.
        match unsafe { libc::fcntl(self.shared.descriptor.as_raw_fd(), F_SET_RW_HINT, &raw const hint) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn logical_block_size(&self) -> u32 {
        self.shared.block_size
    }

    pub(crate) fn is_block_device(&self) -> bool {
        self.shared.block_device
    }

    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.shared.descriptor
    }

    fn fd(&self) -> types::Fd {
        types::Fd(self.shared.descriptor.as_raw_fd())
    }

    pub(crate) async fn read_at(&self, driver: Rc<Driver>, offset: u64, mut buf: Buf) -> (io::Result<()>, Buf) {
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut buf[done..];
            let (place, length) = (rest.as_mut_ptr(), rest.len() as u32);
            let entry = opcode::Read::new(self.fd(), place, length).offset(offset + done as u64).build();
            // SAFETY: the entry points into the buffer's block, which the slot holds and which does not move with it.
            let op = unsafe { Op::start(driver.clone(), entry, Held::Buf(buf), &self.shared.descriptor, Kind::File) };
            let (result, held) = op.await;
            let Held::Buf(back) = held else { unreachable!("an operation gives back what it was given") };
            buf = back;
            match result {
                Ok(count) => done += count,
                Err(error) if is_transient(&error) => continue,
                Err(error) => return (Err(error), buf),
            }
            // A short read off the grid can not go on directly, and needs not: only the end of a file cuts a block.
            let at_end = done % self.shared.block_size as usize != 0;
            if done < buf.len() && (at_end || matches!(result, Ok(0))) {
                let text = format!("the file ends after {done} of the {} bytes at {offset}", buf.len());
                return (Err(io::Error::new(io::ErrorKind::UnexpectedEof, text)), buf);
            }
        }
        (Ok(()), buf)
    }

    pub(crate) async fn write_at(&self, driver: Rc<Driver>, offset: u64, data: View, durable: bool) -> io::Result<()> {
        self.write_at_holding(driver, offset, data, durable, (), |(), _| {}).await.0
    }

    pub(crate) async fn write_at_holding<G: 'static>(
        &self,
        driver: Rc<Driver>,
        offset: u64,
        data: View,
        durable: bool,
        held: G,
        late: Late<G>,
    ) -> (io::Result<()>, G) {
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        let left = Left::Write { offset, data, durable };
        let mut writing = Holding { file: self, left, op: None, held: Some(held), late };
        let result = loop {
            let Left::Write { offset, data, .. } = &writing.left else { unreachable!("it is a write") };
            if data.is_empty() {
                break Ok(());
            }
            let entry =
                opcode::Write::new(self.fd(), data.as_ptr(), data.len() as u32).offset(*offset).rw_flags(flags).build();
            let view = Held::View(data.clone());
            // SAFETY: the entry points into the view's block, which the slot keeps alive and nobody may write to.
            let op = unsafe { Op::start(driver.clone(), entry, view, &self.shared.descriptor, Kind::File) };
            match writing.run(op).await {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => writing.left.advance(count),
                Err(error) if is_transient(&error) => {}
                Err(error) => break Err(error),
            }
        };
        (result, writing.held.take().expect("taken only here and when dropped"))
    }

    pub(crate) async fn sync_data_holding<G: 'static>(
        &self,
        driver: Rc<Driver>,
        held: G,
        late: Late<G>,
    ) -> (io::Result<()>, G) {
        let mut syncing = Holding { file: self, left: Left::Sync, op: None, held: Some(held), late };
        let result = loop {
            let entry = opcode::Fsync::new(self.fd()).flags(types::FsyncFlags::DATASYNC).build();
            // SAFETY: the entry points to nothing and names the descriptor.
            let op = unsafe { Op::start(driver.clone(), entry, Held::Nothing, &self.shared.descriptor, Kind::File) };
            match syncing.run(op).await {
                Err(error) if is_transient(&error) => {}
                result => break result.map(drop),
            }
        };
        (result, syncing.held.take().expect("taken only here and when dropped"))
    }

    pub(crate) async fn punch_hole(&self, driver: Rc<Driver>, offset: u64, len: u64) -> io::Result<()> {
        let result = self.fallocate(&driver, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len).await;
        match result {
            // Zeroes are what matters; giving the room back is a favour.
            Err(error) if is_unsupported(&error) => self.write_zeroes(driver, offset, len).await,
            result => result,
        }
    }

    pub(crate) async fn write_zeroes(&self, driver: Rc<Driver>, offset: u64, len: u64) -> io::Result<()> {
        let result = self.fallocate(&driver, libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, offset, len).await;
        match result {
            Err(error) if is_unsupported(&error) => {
                let part = buf::BUF_BYTES_MAX as u64 - buf::ALIGN as u64;
                let zeroes = Buf::zeroed(len.min(part) as usize).freeze();
                let mut done = 0;
                while done < len {
                    let now = (len - done).min(part);
                    let data = zeroes.slice(..now as usize);
                    self.write_at(driver.clone(), offset + done, data, false).await?;
                    done += now;
                }
                Ok(())
            }
            result => result,
        }
    }

    /// On a block device the kernel turns this into a discard that zeroes, or into write-zeroes (`blkdev_fallocate`).
    async fn fallocate(&self, driver: &Rc<Driver>, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(()); // the kernel calls that an error
        }
        self.simple(driver, || opcode::Fallocate::new(self.fd(), len).offset(offset).mode(mode).build()).await
    }

    async fn simple(&self, driver: &Rc<Driver>, entry: impl Fn() -> squeue::Entry) -> io::Result<()> {
        loop {
            let descriptor = &self.shared.descriptor;
            // SAFETY: the entries of this file's callers point to nothing and name the descriptor.
            let op = unsafe { Op::start(driver.clone(), entry(), Held::Nothing, descriptor, Kind::File) };
            match op.await.0 {
                Ok(_) => return Ok(()),
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// What there is still to do.
enum Left {
    Write { offset: u64, data: View, durable: bool },
    Sync,
}

impl Left {
    /// So many bytes are written.
    fn advance(&mut self, count: usize) {
        if let Left::Write { offset, data, .. } = self {
            *offset += count as u64;
            *data = data.slice(count..);
        }
    }

    /// The last system call of a future that has gone has ended so. Told as a failure, "not now" would make a medium read-only
    /// that is as good as ever.
    fn settle<G: 'static>(self, result: io::Result<()>, file: File, held: G, late: Late<G>) {
        match result {
            Err(error) if is_transient(&error) => self.go_on(file, held, late),
            result => late(held, result),
        }
    }

    /// Does it for a future that has gone: the kernel was only kept from it for the moment. (A box, and a task: this is as rare
    /// as it gets.)
    fn go_on<G: 'static>(self, file: File, held: G, late: Late<G>) {
        // At the end of the reactor, or after it, nobody is told: there nothing goes on.
        let Some(Context::Uring(driver)) = runtime::try_current() else { return };
        if driver.remote().is_closed() {
            return;
        }
        let own = driver.clone();
        let rest: LocalFuture<'static, ()> = Box::pin(async move {
            let (result, held) = match self {
                Left::Write { offset, data, durable } => {
                    file.write_at_holding(own, offset, data, durable, held, late).await
                }
                Left::Sync => file.sync_data_holding(own, held, late).await,
            };
            late(held, result);
        });
        driver.spawn(rest).detach();
    }
}

/// An operation under way with what must stay held until the kernel is done. Dropping it leaves both to the reactor, which is
/// the only case that costs an allocation.
struct Holding<'a, G: 'static> {
    file: &'a File,
    left: Left,
    op: Option<Op>,
    held: Option<G>,
    late: Late<G>,
}

impl<G: 'static> Holding<'_, G> {
    async fn run(&mut self, op: Op) -> io::Result<usize> {
        let op = self.op.insert(op);
        let (result, _) = std::future::poll_fn(|cx| Pin::new(&mut *op).poll(cx)).await;
        self.op = None;
        result
    }
}

impl<G: 'static> Drop for Holding<'_, G> {
    fn drop(&mut self) {
        let late = self.late;
        if let (Some(op), Some(held)) = (self.op.take(), self.held.take()) {
            let (file, left) = (self.file.clone(), std::mem::replace(&mut self.left, Left::Sync));
            op.leave(Box::new(move |result| left.settle(result, file, held, late)));
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV))
}

fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let block_device = match fs::stat(path) {
        Ok(stat) => FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice,
        Err(Errno::NOENT) if options.create.is_some() => false,
        Err(error) => return Err(error.into()),
    };
    let mut flags = OFlags::CLOEXEC;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if options.direct {
        flags |= OFlags::DIRECT;
    }
    if options.create.is_some() && !block_device {
        flags |= OFlags::CREATE;
    }
    if options.exclusive && block_device {
        flags |= OFlags::EXCL; // of block devices without CREATE: nobody else, and not mounted
    }
    let descriptor = fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|error| explain_open(error, options))?;
    if options.exclusive && !block_device {
        lock(&descriptor)?;
    }
    let stat = fs::fstat(&descriptor)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a regular file nor a block device"));
    }
    if let Some(size) = options.create
        && kind == FileType::RegularFile
        && stat.st_size == 0
    {
        // Under the lock, and also if it existed without content: whoever created it may have died before this.
        fs::ftruncate(&descriptor, size)?;
        // Its name as well: what is written durably to a file that power loss takes away is not durable.
        fs::fsync(&descriptor)?;
        fs::fsync(&fs::open(parent(path), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)?;
    }
    let size = fs::seek(&descriptor, fs::SeekFrom::End(0))?;
    let block_size = block_size(&descriptor, kind == FileType::BlockDevice, options.direct)?;
    let shared =
        Shared { descriptor: Arc::new(descriptor), size, block_size, block_device: kind == FileType::BlockDevice };
    Ok(File { shared: Arc::new(shared) })
}

/// The directory that holds `path`.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        Some(_) => Path::new("."),
        None => Path::new("/"),
    }
}

fn busy() -> io::Error {
    let text = "in use: another process (or another part of this one) has it open; stop that one first";
    io::Error::new(io::ErrorKind::ResourceBusy, text)
}

/// A lock of the open file description: it ends with its last descriptor, however the process ends, and keeps out other
/// openers in this process as well.
fn lock(descriptor: &OwnedFd) -> io::Result<()> {
    match fs::flock(descriptor, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(busy()),
        Err(error) => Err(error.into()),
    }
}

fn explain_open(error: Errno, options: &OpenOptions) -> io::Error {
    match error {
        Errno::BUSY => busy(),
        Errno::INVAL if options.direct => {
            io::Error::new(io::ErrorKind::Unsupported, "the file system has no direct access (O_DIRECT)")
        }
        error => error.into(),
    }
}

fn block_size(descriptor: &OwnedFd, block_device: bool, direct: bool) -> io::Result<u32> {
    if block_device {
        return Ok(fs::ioctl_blksszget(descriptor)?);
    }
    if !direct {
        return Ok(BUFFERED_BLOCK_SIZE);
    }
    let known = fs::statx(descriptor, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    // Kernels and file systems that do not say: a page is a multiple of whatever they want.
    Ok(known
        .map(|stat| stat.stx_dio_offset_align)
        .filter(|&align| align.is_power_of_two())
        .unwrap_or(buf::ALIGN as u32))
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc, time::Duration};

    use super::*;
    use crate::{Reactor, ReactorConfig, time};

    /// The kernel may say "not now" to a write as to anything. To a write whose future was dropped that was told as its failure, and
    /// the medium took no writes any more. (No file that a test can make says so: it is said in the kernel's place.)
    #[test]
    fn a_forgotten_write_that_met_a_busy_kernel_is_done_all_the_same() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let options = OpenOptions { create: Some(1 << 16), ..OpenOptions::default() };
        let file = open(&path, &options).expect("created");
        let late = |ended: Rc<Cell<Option<bool>>>, result: io::Result<()>| ended.set(Some(result.is_ok()));
        let write = |offset| Left::Write { offset, data: Buf::copy_from(&[7; 4096]).freeze(), durable: false };
        let main = async {
            for (number, kind) in [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].into_iter().enumerate() {
                for left in [write(number as u64 * 8192), Left::Sync] {
                    let ended = Rc::new(Cell::new(None));
                    left.settle(Err(kind.into()), file.clone(), ended.clone(), late);
                    assert_eq!(ended.get(), None, "it is not over");
                    while ended.get().is_none() {
                        time::sleep(Duration::from_millis(1)).await;
                    }
                    assert_eq!(ended.get(), Some(true));
                }
            }
            let ended = Rc::new(Cell::new(None));
            write(4096).settle(Err(io::ErrorKind::Other.into()), file.clone(), ended.clone(), late);
            assert_eq!(ended.get(), Some(false), "what has failed has failed");
        };
        let bounded = async { time::timeout(Duration::from_secs(20), main).await.expect("it goes on") };
        Reactor::run(ReactorConfig::default(), bounded).expect("a reactor");
        let bytes = std::fs::read(&path).expect("the file");
        let written = |at: usize| bytes[at..at + 4096].iter().all(|&byte| byte == 7);
        assert_eq!([0, 4096, 8192].map(written), [true, false, true]);
    }
}
