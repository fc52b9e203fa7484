//! [`LocalDraft`]: a file of this machine that gets its name when it is whole. Dropped before that, it goes.

use std::ffi::OsString;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use engine::{file, task};
use rustix::fs::{AtFlags, CWD, Gid, Timespec, Timestamps, Uid};

use super::source::{Times, Trait};

/// See the module.
pub struct LocalDraft {
    path: PathBuf,
    goal: PathBuf,
    /// As it is changed, and as its bytes are written.
    plain: fs::File,
    file: file::File,
    is_done: bool,
}

/// A path beside another one, that nobody has.
fn beside(goal: &Path) -> PathBuf {
    let name = [::file::DRAFT_PREFIX, format!("{:016x}", task::random_u64()).as_bytes()].concat();
    goal.parent().unwrap_or(Path::new("")).join(OsString::from_vec(name))
}

impl LocalDraft {
    /// Begins it.
    pub fn begin(goal: &Path) -> io::Result<LocalDraft> {
        // What would be refused at the end is refused before its bytes are copied.
        if goal.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "a directory has this name"));
        }
        let path = beside(goal);
        let plain = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let options = file::OpenOptions { create: None, direct: false, exclusive: false, read_only: false };
        match file::File::open(&path, &options) {
            Ok(file) => Ok(LocalDraft { path, goal: goal.to_owned(), plain, file, is_done: false }),
            Err(error) => {
                // The first error is the one to tell.
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    /// Its bytes.
    pub fn file(&self) -> &file::File {
        &self.file
    }

    /// The same, for whoever looks where it has holes.
    pub fn reopen(&self) -> io::Result<fs::File> {
        self.plain.try_clone()
    }

    /// Makes it so long.
    pub fn set_len(&self, size: u64) -> io::Result<()> {
        self.plain.set_len(size)
    }

    /// It gets attributes and its name; what has that, and is no directory, goes.
    pub fn finish(mut self, told: &Trait) -> io::Result<()> {
        settle(&self.path, told)?;
        fs::rename(&self.path, &self.goal)?;
        self.is_done = true;
        Ok(())
    }
}

impl Drop for LocalDraft {
    fn drop(&mut self) {
        if !self.is_done {
            // Nobody is left to be told.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Owner, permissions and times of what is there, in this order: a change of owner takes permissions away.
pub fn settle(path: &Path, told: &Trait) -> io::Result<()> {
    let (uid, gid, mode) = told.rights();
    if rustix::process::geteuid().is_root() {
        chown(path, uid, gid)?;
    }
    fs::set_permissions(path, Permissions::from_mode(mode.into()))?;
    told.times.map_or(Ok(()), |times| set_times(path, times))
}

fn chown(path: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    Ok(rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn set_times(path: &Path, times: Times) -> io::Result<()> {
    let time = |time: ::file::record::Time| Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.into() };
    let times = Timestamps { last_access: time(times.accessed), last_modification: time(times.modified) };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Makes a symbolic link in place of whatever has its name, but of a directory.
pub fn make_link(goal: &Path, told: &Trait) -> io::Result<()> {
    let path = beside(goal);
    symlink(std::ffi::OsStr::from_bytes(&told.target), &path)?;
    let made = (|| {
        if rustix::process::geteuid().is_root() {
            chown(&path, told.uid, told.gid)?;
        }
        told.times.map_or(Ok(()), |times| set_times(&path, times))?;
        fs::rename(&path, goal)
    })();
    if made.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&path);
    }
    made
}
