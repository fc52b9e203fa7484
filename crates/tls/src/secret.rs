//! Key material: where it may come from, and that it leaves no traces.
//!
//! Invariants:
//! - A [`Secret`] is never printed: `Debug` says how long it is, and it has no `Display`. It is wiped when it is dropped.
//! - It is read only from a file that nobody but its owner and root can read or replace the content of; what the checks
//!   look at is the open file, not its name, so that nothing can be put in its place between the check and the reading.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// The longest key file, bytes. Chosen: many times the longest key in its text form (128 characters).
pub const SECRET_BYTES_MAX: u64 = 4096;

/// Permission bits of a key file that let somebody else in.
const OTHERS: u32 = 0o077;

/// Why a key file can not be used, or not be written.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It can't be opened, read or made.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A folder, a device, a pipe.
    #[error("{}: it must be a regular file", .0.display())]
    NotAFile(PathBuf),
    /// Others may read or write it.
    #[error("{}: its mode {mode:03o} lets others than its owner read or change it: chmod 600 {}", path.display(), path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Somebody else's.
    #[error("{}: it belongs to user {owner}, who may change it: chown it to the user that runs this (or root)", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// Nothing in it, or far too much.
    #[error("{}: it must have 1 to {max} bytes, and has {bytes}", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The largest that is read.
        max: u64,
    },
}

/// Bytes that nobody may see.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes the bytes, and the duty to wipe them.
    pub fn new(bytes: Vec<u8>) -> Secret {
        Secret(Zeroizing::new(bytes))
    }

    /// The content of a key file, without white space at its end.
    ///
    /// # Errors
    /// Not a regular file, readable by others, of another owner than this process's user or root, empty, too long, or what the
    /// system says.
    pub fn from_file(path: &Path) -> Result<Secret, SecretError> {
        Secret::from_file_within(path, SECRET_BYTES_MAX)
    }

    /// The same of a file of up to `max` bytes.
    pub(crate) fn from_file_within(path: &Path, max: u64) -> Result<Secret, SecretError> {
        let failed = |error| SecretError::Io { path: path.to_owned(), error };
        // A pipe without a writer would hold the open for ever.
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        check(path, &found)?;
        // Room for all of it at once: a vector that grows leaves copies behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(max as usize + 1));
        file.take(max + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > max {
            return Err(SecretError::Size { path: path.to_owned(), bytes: bytes.len() as u64, max });
        }
        let end = bytes.trim_ascii_end().len();
        bytes.truncate(end);
        if bytes.is_empty() {
            return Err(SecretError::Size { path: path.to_owned(), bytes: 0, max });
        }
        Ok(Secret(bytes))
    }

    /// Writes the secret and a line end to a new file that only its owner can read.
    ///
    /// # Errors
    /// The file exists, or what the system says.
    pub fn write_new(&self, path: &Path) -> Result<(), SecretError> {
        let failed = |error| SecretError::Io { path: path.to_owned(), error };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        let written: io::Result<()> = (|| {
            file.write_all(&self.0)?;
            file.write_all(b"\n")?;
            File::sync_all(&file)
        })();
        written.map_err(failed)
    }

    /// The bytes themselves, for the one who computes with them.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Whether these are the bytes, in a time that does not tell how much of them is right.
    pub fn is(&self, given: &[u8]) -> bool {
        self.0.len() == given.len() && openssl::memcmp::eq(&self.0, given)
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.is(&other.0)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

fn check(path: &Path, found: &std::fs::Metadata) -> Result<(), SecretError> {
    if !found.is_file() {
        return Err(SecretError::NotAFile(path.to_owned()));
    }
    let user = rustix::process::geteuid().as_raw();
    if found.uid() != user && found.uid() != 0 {
        return Err(SecretError::Owner { path: path.to_owned(), owner: found.uid() });
    }
    let mode = found.mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(SecretError::Exposed { path: path.to_owned(), mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(bytes: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        std::fs::write(&path, bytes).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("changed");
        (folder, path)
    }

    #[test]
    fn a_private_file_is_read_without_its_line_end() {
        for mode in [0o600, 0o400] {
            let (_folder, path) = file(b"the key\n\n", mode);
            assert_eq!(Secret::from_file(&path).expect("read").expose(), b"the key");
        }
    }

    #[test]
    fn a_file_that_others_can_read_or_write_is_refused() {
        for mode in [0o640, 0o604, 0o620, 0o602, 0o601, 0o610] {
            let (_folder, path) = file(b"the key", mode);
            let error = Secret::from_file(&path).expect_err("refused");
            assert!(matches!(error, SecretError::Exposed { .. }), "{mode:o}: {error}");
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn what_is_no_key_file_is_refused_and_said_why() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .expect("a pipe");
        assert!(matches!(Secret::from_file(&pipe), Err(SecretError::NotAFile(_))));
        assert!(matches!(Secret::from_file(folder.path()), Err(SecretError::NotAFile(_))));
        assert!(matches!(Secret::from_file(&folder.path().join("none")), Err(SecretError::Io { .. })));
        for bytes in [&b""[..], b"  \n", &[b'x'; SECRET_BYTES_MAX as usize + 1]] {
            let (_folder, path) = file(bytes, 0o600);
            assert!(matches!(Secret::from_file(&path), Err(SecretError::Size { .. })));
        }
    }

    #[test]
    fn what_is_written_is_private_and_never_replaces_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let secret = Secret::new(b"NVMeTLSkey-1".to_vec());
        secret.write_new(&path).expect("written");
        assert_eq!(std::fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        assert!(Secret::from_file(&path).expect("read") == secret);
        assert!(matches!(secret.write_new(&path), Err(SecretError::Io { .. })));
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret::new(b"hunter2".to_vec())), "Secret(7 bytes)");
    }
}
