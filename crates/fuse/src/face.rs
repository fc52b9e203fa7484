//! [`Face`]: each request of the kernel, handed to the reactor with its reply.

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use engine::sync::{MailSender, TrySendError};
use engine::time;
use file::record::lock::LockKind;
use file::record::{self, Time};
use file::{Change, DirEntry, Error, New, SetMode};
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::caller::Caller;
use crate::figures::{Kind, Outcome};
use crate::replies::{answer, attributes, bytes, data, done, entry, how_opened, joined, opened, room, sought, tested};
use crate::serve::{Job, Served, Way, Write};
use crate::told::{self, Moment, TTL};

/// Bytes of one write. Chosen: a block of what is gathered.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel may have under way for readahead and writeback. Chosen: as many as a fast network takes.
const BACKGROUND_MAX: u16 = 64;
/// Between two tries to hand a request on to a reactor that has very many.
const PAUSE: Duration = Duration::from_micros(100);

/// See the module.
pub struct Face {
    letters: MailSender<Job>,
}

impl Face {
    pub fn new(letters: MailSender<Job>) -> Face {
        Face { letters }
    }

    /// Has it done on the reactor. Where that is gone the job is dropped, and its reply says EIO.
    fn hand_on<F: Future<Output = Outcome> + 'static>(
        &self,
        kind: Kind,
        job: impl FnOnce(Rc<Served>) -> F + Send + 'static,
    ) {
        let arrived = time::now();
        let mut job: Job = Box::new(move |served| {
            Box::pin(async move {
                let outcome = job(Rc::clone(&served)).await;
                served.metrics.answered(kind, arrived.elapsed(), &outcome);
            })
        });
        while let Err(TrySendError::Full(back)) = self.letters.try_send(job) {
            job = back;
            // tidy: thread: the kernel's thread, not a reactor's.
            std::thread::sleep(PAUSE);
        }
    }
}

/// The bits of a mode that are permissions.
fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

fn time(time: TimeOrNow) -> Time {
    match time {
        TimeOrNow::SpecificTime(time) => told::asked_time(time),
        TimeOrNow::Now => Time::now(),
    }
}

impl Filesystem for Face {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // What the kernel does not know is done without; of sizes it takes what it can. Not FUSE_ASYNC_DIO: writes by AIO past the
        // pages would not be made stable, and where one failed it would cut the file to what it believes.
        let wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_AUTO_INVAL_DATA
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
            | InitFlags::FUSE_POSIX_LOCKS
            | InitFlags::FUSE_FLOCK_LOCKS
            // Numbers of inodes are never used again, and `.` and `..` are looked up: files are found by their handles.
            | InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_MAX_PAGES;
        let _unknown = config.add_capabilities(wanted & config.capabilities());
        let _most = config.set_max_write(WRITE_BYTES_MAX);
        let _most = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        self.hand_on(
            Kind::Lookup,
            move |served| async move { entry(reply, served.files.lookup(parent.0, &name).await) },
        );
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.hand_on(Kind::Getattr, move |served| async move { attributes(reply, served.files.getattr(ino.0).await) });
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<Moment>,
        _handle: Option<FileHandle>,
        _created: Option<Moment>,
        _: Option<Moment>,
        _: Option<Moment>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mode = mode.map(permissions);
        self.hand_on(Kind::Setattr, move |served| async move {
            let (accessed, modified) = (accessed.map(time), modified.map(time));
            let change = Change { mode, uid, gid, size, accessed, modified };
            attributes(reply, served.files.setattr(ino.0, &change).await)
        });
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        self.hand_on(
            Kind::Readlink,
            move |served| async move { data(reply, served.files.names().readlink(ino.0).await) },
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = told::kind_of_mode(mode) else { return reply.error(Errno::EINVAL) };
        let mut new = New::of(kind, permissions(mode), request.uid(), request.gid());
        new.device = rdev.into();
        let name = name.as_bytes().to_vec();
        self.hand_on(Kind::Make, move |served| async move {
            entry(reply, served.files.names().make(parent.0, &name, &new).await)
        });
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let new = New::of(record::Kind::Directory, permissions(mode), request.uid(), request.gid());
        let name = name.as_bytes().to_vec();
        self.hand_on(Kind::Make, move |served| async move {
            entry(reply, served.files.names().make(parent.0, &name, &new).await)
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.hand_on(Kind::Remove, move |served| async move {
            done(reply, served.files.names().unlink(parent.0, &name).await)
        });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.hand_on(Kind::Remove, move |served| async move {
            done(reply, served.files.names().rmdir(parent.0, &name).await)
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (name, path) = (name.as_bytes().to_vec(), target.as_os_str().as_bytes().to_vec());
        let (uid, gid) = (request.uid(), request.gid());
        self.hand_on(Kind::Make, move |served| async move {
            entry(reply, served.files.names().symlink(parent.0, &name, &path, uid, gid).await)
        });
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if flags.contains(RenameFlags::RENAME_WHITEOUT) {
            return reply.error(Errno::EINVAL);
        }
        let flags = file::RenameFlags {
            no_replace: flags.contains(RenameFlags::RENAME_NOREPLACE),
            exchange: flags.contains(RenameFlags::RENAME_EXCHANGE),
        };
        let (name, new_name) = (name.as_bytes().to_vec(), new_name.as_bytes().to_vec());
        self.hand_on(Kind::Rename, move |served| async move {
            let names = served.files.names();
            done(reply, names.rename((parent.0, &name), (new_parent.0, &new_name), flags).await)
        });
    }

    fn link(&self, _request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        self.hand_on(
            Kind::Make,
            move |served| async move { entry(reply, served.files.link(ino.0, parent.0, &name).await) },
        );
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let how = how_opened(flags.0);
        self.hand_on(Kind::Open, move |served| async move { opened(reply, served.open(ino.0, how).await, how) });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let new = New::of(record::Kind::File, permissions(mode), request.uid(), request.gid());
        let (name, exclusive, how) = (name.as_bytes().to_vec(), flags & libc::O_EXCL != 0, how_opened(flags));
        self.hand_on(Kind::Create, move |served| async move {
            let made = async {
                // Nobody has asked whether whoever creates it may have what is there: told so, the kernel looks the name up anew.
                let created = served.files.create_file(parent.0, &name, &new).await;
                let (made, file) = created.map_err(|error| match error {
                    Error::Exists(_) if !exclusive => Error::Stale,
                    error => error,
                })?;
                Ok((made, served.hand_out(file, how)))
            };
            let made = made.await;
            match &made {
                Ok((found, handle)) => {
                    let handle = FileHandle(*handle);
                    reply.created(&TTL, &told::attributes(found), Generation(0), handle, how);
                }
                Err(error) => reply.error(told::errno(error)),
            }
            made.map(drop)
        });
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.hand_on(Kind::Read, move |served| async move {
            let read = async { served.file(handle.0)?.read(offset, size as usize).await };
            bytes(reply, read.await)
        });
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let has = |flag| flags.0 & flag != 0;
        let (is_direct, is_stable) = (has(libc::O_DIRECT), has(libc::O_DSYNC));
        // Pages of a mapping know their places.
        let way = match write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            true => Way::Pages,
            false if has(libc::O_APPEND) => Way::Append,
            false => Way::Place,
        };
        // The kernel does it itself, but for writes past its pages.
        let drops_rights = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let data = data.to_vec();
        self.hand_on(Kind::Write, move |served| async move {
            let write = Write { at: offset, bytes: &data, way, is_direct, is_stable, drops_rights };
            let written = served.write(handle.0, &write).await;
            match &written {
                Ok(written) => reply.written(*written as u32),
                Err(error) => reply.error(told::errno(error)),
            }
            written.map(drop)
        });
    }

    fn flush(&self, _request: &Request, _ino: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        self.hand_on(Kind::Flush, move |served| async move { done(reply, served.leave(handle.0, owner.0).await) });
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.hand_on(Kind::Release, move |served| async move { done(reply, served.take_back(handle.0).await) });
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, handle: FileHandle, _data: bool, reply: ReplyEmpty) {
        self.hand_on(Kind::Fsync, move |served| async move { done(reply, served.flush(handle.0).await) });
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.hand_on(Kind::Opendir, move |served| async move {
            let found = served.files.names().open_dir(ino.0).await;
            opened(reply, found.map(|found| found.ino), FopenFlags::empty())
        });
    }

    fn releasedir(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.hand_on(Kind::Releasedir, move |served| async move {
            served.files.names().release_dir(ino.0);
            reply.ok();
            Ok(())
        });
    }

    fn getlk(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        // No call but `fcntl` asks.
        let wanted = told::lock_request(owner, LockKind::Posix, (start, end), kind, pid);
        self.hand_on(Kind::Getlk, move |served| async move {
            let test = async { served.files.test_lock(&served.file(handle.0)?, &wanted).await };
            tested(reply, test.await, (start, end))
        });
    }

    fn setlk(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let caller = Caller::new(request.pid());
        let call = if told::is_everything(start, end) { caller.kind() } else { LockKind::Posix };
        let wanted = told::lock_request(owner, call, (start, end), kind, pid);
        self.hand_on(Kind::Setlk, move |served| async move {
            let goes_on = || !caller.is_signalled();
            let waits: Option<&dyn Fn() -> bool> = if waits { Some(&goes_on) } else { None };
            let changed = match kind {
                libc::F_UNLCK => served.unlock(handle.0, &wanted).await,
                _ => served.lock(handle.0, &wanted, waits).await,
            };
            done(reply, changed)
        });
    }

    // A change of names is stable when it is acknowledged.
    fn fsyncdir(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, _data: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.hand_on(Kind::Readdir, move |served| async move {
            let add = |name: &DirEntry| {
                reply.add(INodeNo(name.ino), name.cursor, told::kind(name.kind), OsStr::from_bytes(&name.name))
            };
            let told = served.tell_names(ino.0, offset, add).await;
            match &told {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(told::errno(error)),
            }
            told
        });
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.hand_on(Kind::Statfs, move |served| async move { room(reply, served.files.usage_at(ino.0).await) });
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            libc::XATTR_CREATE => SetMode::Create,
            libc::XATTR_REPLACE => SetMode::Replace,
            0 => SetMode::Any,
            _ => return reply.error(Errno::EINVAL),
        };
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        self.hand_on(Kind::Setxattr, move |served| async move {
            done(reply, served.files.names().set_xattr(ino.0, &name, &value, mode).await)
        });
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.as_bytes().to_vec();
        self.hand_on(Kind::Getxattr, move |served| async move {
            answer(reply, size, served.files.names().get_xattr(ino.0, &name).await)
        });
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        // Of those of whoever is trusted others than root are told nothing.
        let is_told = request.uid() == 0;
        self.hand_on(Kind::Listxattr, move |served| async move {
            let names = served.files.names().list_xattrs(ino.0).await;
            answer(reply, size, names.map(|names| joined(names, is_told)))
        });
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.hand_on(Kind::Removexattr, move |served| async move {
            done(reply, served.files.names().remove_xattr(ino.0, &name).await)
        });
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(how) = told::allocation(mode) else { return reply.error(Errno::EOPNOTSUPP) };
        let range = offset..offset.saturating_add(length);
        self.hand_on(
            Kind::Fallocate,
            move |served| async move { done(reply, served.allocate(handle.0, range, how).await) },
        );
    }

    // The kernel asks for data and for holes alone.
    fn lseek(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let (Ok(at), true) = (u64::try_from(offset), [libc::SEEK_DATA, libc::SEEK_HOLE].contains(&whence)) else {
            return reply.error(Errno::EINVAL);
        };
        self.hand_on(Kind::Lseek, move |served| async move {
            sought(reply, served.seek(handle.0, at, whence == libc::SEEK_DATA).await)
        });
    }
}
