//! Filesystems and mounts by the system's programs, and what the kernel says of them.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::capability::Filesystem;
use crate::node::{Free, MachineError, Shown, Usage};

/// How long a program may take. Chosen: a journal is played back, and filesystems are made, in less; one that waits for a device
/// that is away is tried again by whoever called.
const PROGRAM_TIME: Duration = Duration::from_secs(110);
/// How long the kernel may take to show a device's new size. Chosen: many times what it takes; who calls again waits again.
const SIZE_TIME: Duration = Duration::from_secs(20);
/// What the kernel counts the size of any device in.
const SECTOR_BYTES: u64 = 512;
/// How often a program, or a device, is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Bytes of a program's words that are read, at most. Chosen: a screen.
const WORDS_BYTES_MAX: u64 = 4096;
/// Bytes at either end of a device that are zeroes where nothing was ever written. Derived: every filesystem, partition table and
/// volume manager has its name in less.
const END_BYTES: u64 = 2 << 20;

fn failed(what: impl std::fmt::Display, error: &io::Error) -> MachineError {
    MachineError::Failed(format!("{what}: {error}"))
}

/// Runs a program to its end.
fn run(program: &str, arguments: &[&Path]) -> Result<(), MachineError> {
    match outcome(program, arguments, PROGRAM_TIME)? {
        (status, _) if status.success() => Ok(()),
        (status, words) => Err(MachineError::Failed(format!("{program}: {status}: {words}"))),
    }
}

/// The same; how it has ended, and what it said.
fn outcome(program: &str, arguments: &[&Path], time: Duration) -> Result<(ExitStatus, String), MachineError> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(format!("{program} (is it installed?)"), &error))?;
    let status = ended(program, &mut child, time)?;
    let mut words = String::new();
    if let Some(stderr) = child.stderr.take() {
        // What it says is for people: any part of it will do.
        let _ = stderr.take(WORDS_BYTES_MAX).read_to_string(&mut words);
    }
    Ok((status, words.trim().to_owned()))
}

fn ended(program: &str, child: &mut Child, time: Duration) -> Result<ExitStatus, MachineError> {
    let until = Instant::now() + time;
    loop {
        if let Some(status) = child.try_wait().map_err(|error| failed(program, &error))? {
            return Ok(status);
        }
        if Instant::now() >= until {
            // One that waits for a device can't be ended; it is not waited for.
            child.kill().map_err(|error| failed(program, &error))?;
            return Err(MachineError::Unavailable(format!("{program} did not end within {time:?}")));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether both ends of the device are zeroes, read from it and not assumed.
pub fn is_blank(device: &Path) -> Result<bool, MachineError> {
    is_blank_within(device, PROGRAM_TIME)
}

/// A program reads: whoever waits for a device whose process is away can't be called back, but a program can be ended.
fn is_blank_within(device: &Path, time: Duration) -> Result<bool, MachineError> {
    let size = || File::open(device)?.seek(SeekFrom::End(0));
    let bytes = size().map_err(|error| failed(device.display(), &error))?;
    for start in [0, bytes.saturating_sub(END_BYTES)] {
        let (skip, length) = (format!("--ignore-initial={start}:0"), format!("--bytes={}", END_BYTES.min(bytes)));
        let words = ["--silent", &skip, &length].map(Path::new);
        let (status, said) = outcome("cmp", &[&words[..], &[device, Path::new("/dev/zero")]].concat(), time)?;
        match status.code() {
            Some(0) => {}
            Some(1) => return Ok(false),
            _ => return Err(MachineError::Failed(format!("{} can't be read: {status}: {said}", device.display()))),
        }
    }
    Ok(true)
}

/// Makes a filesystem. Nothing has to be discarded first: the device was blank.
pub fn format(device: &Path, filesystem: Filesystem) -> Result<(), MachineError> {
    let (program, arguments): (_, &[&str]) = match filesystem {
        Filesystem::Ext4 => ("mkfs.ext4", &["-F", "-q", "-E", "nodiscard"]),
        Filesystem::Xfs => ("mkfs.xfs", &["-f", "-q", "-K"]),
    };
    let arguments: Vec<&Path> = arguments.iter().map(Path::new).chain([device]).collect();
    run(program, &arguments)
}

/// Mounts a device.
pub fn mount(device: &Path, at: &Path, filesystem: Filesystem, flags: &[String]) -> Result<(), MachineError> {
    let options = options(filesystem, flags);
    let mut arguments = vec![Path::new("-t"), Path::new(filesystem.name())];
    if !options.is_empty() {
        arguments.extend([Path::new("-o"), Path::new(&options)]);
    }
    arguments.extend([device, at]);
    run("mount", &arguments)
}

/// The options of a mount. XFS refuses a second filesystem of the same identifier, which a clone's has on the node that has what
/// the clone was made of.
fn options(filesystem: Filesystem, flags: &[String]) -> String {
    let own = (filesystem == Filesystem::Xfs).then_some("nouuid");
    flags.iter().map(String::as_str).filter(|flag| Some(*flag) != own).chain(own).collect::<Vec<_>>().join(",")
}

/// Makes a filesystem, which is mounted, as large as its device.
pub fn grow(device: &Path, at: &Path, filesystem: Filesystem) -> Result<(), MachineError> {
    match filesystem {
        Filesystem::Ext4 => run("resize2fs", &[device]),
        Filesystem::Xfs => run("xfs_growfs", &[at]),
    }
}

/// The size of a block device as the kernel has it, which is told by whoever serves the device that it has grown.
pub fn size(device: &Path, least: u64) -> Result<u64, MachineError> {
    size_within(&of_kernel(device).join("size"), least, SIZE_TIME)
}

fn size_within(path: &Path, least: u64, time: Duration) -> Result<u64, MachineError> {
    let until = Instant::now() + time;
    loop {
        let said = fs::read_to_string(path).map_err(|error| failed(path.display(), &error))?;
        let sectors: u64 =
            said.trim().parse().map_err(|_| MachineError::Failed(format!("{}: {said}", path.display())))?;
        let bytes = sectors.saturating_mul(SECTOR_BYTES);
        if bytes >= least || Instant::now() >= until {
            return Ok(bytes);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Where the kernel tells of a block device.
fn of_kernel(device: &Path) -> PathBuf {
    Path::new("/sys/class/block").join(device.file_name().unwrap_or_default())
}

/// Shows one path at another.
pub fn bind(source: &Path, target: &Path, is_read_only: bool) -> Result<(), MachineError> {
    if !is_mounted(target)? {
        run("mount", &[Path::new("--bind"), source, target])?;
    }
    match is_read_only {
        true => run("mount", &[Path::new("-o"), Path::new("remount,bind,ro"), target]),
        false => Ok(()),
    }
}

/// Ends a mount.
pub fn unmount(target: &Path) -> Result<(), MachineError> {
    run("umount", &[target])
}

/// Whether the kernel has something mounted there.
pub fn is_mounted(target: &Path) -> Result<bool, MachineError> {
    mounted(target).map(|number| number.is_some())
}

/// Whether what is mounted there is that device.
pub fn shown(device: &Path, target: &Path) -> Result<Shown, MachineError> {
    let Some(filesystem) = mounted(target)? else { return Ok(Shown::Nothing) };
    let number = fs::metadata(device).map_err(|error| failed(device.display(), &error))?.rdev();
    // A name may be another device's by now; a number is not, while a mount holds the device.
    let found = match fs::metadata(target) {
        Ok(found) if found.file_type().is_block_device() => found.rdev(),
        _ => filesystem,
    };
    Ok(if found == number { Shown::Device } else { Shown::Other })
}

/// Whether the kernel has a block device by that name, of the subsystem of that name.
pub fn is_of(device: &Path, nqn: &str) -> bool {
    let said = fs::read_to_string(of_kernel(device).join("device/subsysnqn"));
    said.is_ok_and(|said| said.trim() == nqn)
}

/// The number of the device of the filesystem that is mounted there, the last one where several are.
fn mounted(target: &Path) -> Result<Option<u64>, MachineError> {
    const MOUNTS: &str = "/proc/self/mountinfo";
    // As the kernel knows it. What can't be looked at may be a mount whose device is away.
    let known = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
    let mounts = fs::read(MOUNTS).map_err(|error| failed(MOUNTS, &error))?;
    let there = mounts_of(&mounts).filter(|(point, _)| *point == known || point == target);
    Ok(there.last().map(|(_, number)| number))
}

/// The fifth word of each line (proc(5)), in which bytes that would part words are octal numbers, and the third.
fn mounts_of(mounts: &[u8]) -> impl Iterator<Item = (PathBuf, u64)> {
    mounts.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ').skip(2);
        let (number, word) = (words.next()?, words.nth(1)?);
        let (major, minor) = std::str::from_utf8(number).ok()?.split_once(':')?;
        let number = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let (mut bytes, mut rest) = (Vec::new(), word);
        while let Some((first, after)) = rest.split_first() {
            let octal = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
            match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
                Some(byte) => {
                    bytes.push(byte);
                    rest = &after[3..];
                }
                None => {
                    bytes.push(*first);
                    rest = after;
                }
            }
        }
        Some((Path::new(std::ffi::OsStr::from_bytes(&bytes)).to_owned(), number))
    })
}

/// How full it is: a filesystem where it is a folder, otherwise a device.
pub fn usage(path: &Path) -> Result<Usage, MachineError> {
    let device =
        || -> io::Result<Usage> { Ok(Usage { bytes: File::open(path)?.seek(SeekFrom::End(0))?, filesystem: None }) };
    if !path.is_dir() {
        return device().map_err(|error| failed(path.display(), &error));
    }
    let found = rustix::fs::statvfs(path).map_err(|error| failed(path.display(), &error.into()))?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(Usage {
        bytes: bytes(found.f_blocks),
        filesystem: Some(Free {
            available: bytes(found.f_bavail),
            used: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
            files: found.f_files,
            files_free: found.f_ffree,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_blank_when_nothing_stands_at_either_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("device");
        let mut bytes = vec![0; 5 << 20];
        let blank = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("written");
            is_blank(&path).expect("read")
        };
        assert!(blank(&bytes) && blank(&bytes[..1000]));
        for at in [0, 1080, (2 << 20) - 1, 3 << 20, (5 << 20) - 1] {
            bytes[at] = 1;
            assert!(!blank(&bytes), "something at {at}");
            bytes[at] = 0;
        }
        assert!(is_blank(&folder.path().join("none")).is_err());
        assert!(is_blank(folder.path()).is_err(), "what can't be read is not blank");
    }

    /// A check that waited for a device whose process was away kept every other call on the volume waiting, for an hour.
    #[test]
    fn a_program_that_waits_for_a_device_is_given_up() {
        let said = outcome("sleep", &[Path::new("60")], Duration::from_millis(50));
        assert!(matches!(said, Err(MachineError::Unavailable(_))), "{said:?}");
    }

    #[test]
    fn mounts_are_read_as_the_kernel_writes_them() {
        let text = [
            "36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw\n",
            "37 35 0:1 /a\\040b /x\\040y\\134 ro - tmpfs none rw\n",
        ];
        let found: Vec<_> = mounts_of(text.concat().as_bytes()).collect();
        let number = rustix::fs::makedev;
        assert_eq!(found, [(PathBuf::from("/mnt"), number(98, 0)), (PathBuf::from("/x y\\"), number(0, 1))]);
        assert_eq!(is_mounted(Path::new("/proc")), Ok(true));
        assert_eq!(is_mounted(Path::new("/proc/self")), Ok(false));
        let shown = |target: &str| shown(Path::new("/dev/null"), Path::new(target));
        assert_eq!((shown("/proc"), shown("/proc/self")), (Ok(Shown::Other), Ok(Shown::Nothing)));
        assert!(!is_of(Path::new("/dev/null"), "nqn.a"), "no block device");
    }

    #[test]
    fn a_device_is_waited_for_until_it_is_as_large_as_wanted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("size");
        fs::write(&path, "8\n").expect("written");
        assert_eq!(size_within(&path, 4096, Duration::ZERO), Ok(4096));
        assert_eq!(size_within(&path, 8192, Duration::from_millis(20)), Ok(4096), "it is said as it is");
        let waiting = {
            let path = path.clone();
            std::thread::spawn(move || size_within(&path, 8192, Duration::from_secs(60)))
        };
        fs::write(folder.path().join("new"), "16\n").expect("written");
        fs::rename(folder.path().join("new"), &path).expect("renamed");
        assert_eq!(waiting.join().expect("waited"), Ok(8192));
        assert!(size(Path::new("/dev/null"), 0).is_err(), "no block device");
    }

    #[test]
    fn a_clone_of_xfs_is_mounted_beside_what_it_is_made_of() {
        let flags = ["noatime", "nouuid"].map(str::to_owned);
        assert_eq!(options(Filesystem::Xfs, &[]), "nouuid");
        assert_eq!(options(Filesystem::Xfs, &flags), "noatime,nouuid");
        assert_eq!(options(Filesystem::Ext4, &flags[..1]), "noatime");
        assert_eq!(options(Filesystem::Ext4, &[]), "");
    }

    #[test]
    fn a_program_that_fails_says_why() {
        let said = run("ls", &[Path::new("/no/such/folder")]).expect_err("there is none").to_string();
        assert!(said.contains("ls") && said.contains("/no/such/folder"), "{said}");
        let said = run("no-such-program", &[]).expect_err("there is none").to_string();
        assert!(said.contains("installed"), "{said}");
    }

    #[test]
    fn a_folder_has_files_and_a_device_has_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("device");
        fs::write(&path, [0; 4096]).expect("written");
        assert_eq!(usage(&path), Ok(Usage { bytes: 4096, filesystem: None }));
        let found = usage(folder.path()).expect("looked at");
        let free = found.filesystem.expect("a filesystem");
        assert!(found.bytes >= free.available && found.bytes >= free.used, "{found:?}");
        assert!(usage(&folder.path().join("none")).is_err());
    }
}
