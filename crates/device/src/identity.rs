//! The identity (NGUID) of a namespace in a file or on a block device.
//!
//! A host takes two namespaces with one NGUID for the same data, and a namespace with another NGUID for other data. So the
//! identity must stay with the bytes:
//! - **a file** has it in its sidecar ([`crate::sidecar`]), which is copied and moved together with the file, or the copy is
//!   (rightly) a new namespace;
//! - **a block device** has it from its hardware's serial or world-wide name, as the kernel tells it: nothing is written to it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why an identity could not be had.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The sidecar could not be opened, read or written.
    #[error("{path}: {source} (the sidecar that holds the identity of the namespace beside it)")]
    Io {
        /// The sidecar.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The sidecar does not say what it should.
    #[error(
        "{path}: {reason}; restore it, or remove it to give the data a new identity (hosts then take it for other data)"
    )]
    Damaged {
        /// The sidecar.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The data was used with another block size before.
    #[error(
        "{path}: the namespace was created with blocks of {recorded} bytes, not {asked}; use block size {recorded}"
    )]
    BlockSize {
        /// The sidecar.
        path: PathBuf,
        /// What it says.
        recorded: u32,
        /// What was asked for.
        asked: u32,
    },
    /// A file opened read-only has no sidecar yet and can't be given one.
    #[error("{path} does not exist: give an NGUID, or open the file once for writing")]
    None {
        /// The sidecar.
        path: PathBuf,
    },
    /// The kernel names no serial for the device.
    #[error("{path}: the kernel knows no serial number or world-wide name of this device: give an NGUID")]
    NoSerial {
        /// The device.
        path: PathBuf,
    },
}

/// 128 random bits; never the all-zero identity that means "none".
pub fn random_nguid() -> [u8; 16] {
    let mut nguid = [0; 16];
    nguid[..8].copy_from_slice(&engine::task::random_u64().to_be_bytes());
    nguid[8..].copy_from_slice(&(engine::task::random_u64() | 1).to_be_bytes());
    nguid
}

/// Where the kernel tells of the block device at `path`.
pub(crate) fn node(path: &Path) -> io::Result<PathBuf> {
    let number = std::fs::metadata(path)?.rdev();
    // The kernel's encoding of a device number (glibc's gnu_dev_major and gnu_dev_minor).
    let major = ((number >> 32) & 0xffff_f000) | ((number >> 8) & 0xfff);
    let minor = ((number >> 12) & 0xffff_ff00) | (number & 0xff);
    std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"))
}

/// The identity of the block device at `path`, from what its hardware tells the kernel.
pub(crate) fn of_device(path: &Path) -> Result<[u8; 16], IdentityError> {
    let none = || IdentityError::NoSerial { path: path.to_owned() };
    let node = node(path).map_err(|_| none())?;
    let partition = attribute(&node, "partition");
    let disk = if partition.is_some() { node.parent().ok_or_else(none)? } else { &node };
    let names = ["wwid", "nguid", "uuid", "device/wwid", "device/serial", "serial", "dm/uuid", "md/uuid"];
    let serial = names.iter().find_map(|name| attribute(disk, name)).ok_or_else(none)?;
    Ok(digest(&format!("{serial}/{}", partition.unwrap_or_default())))
}

pub(crate) fn attribute(node: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(node.join(name)).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// 128 bits of a name: two 64-bit CRCs of different polynomials. Names are not chosen by attackers.
fn digest(name: &str) -> [u8; 16] {
    let mut nguid = [0; 16];
    for (half, algorithm) in
        nguid.chunks_exact_mut(8).zip([crc_fast::CrcAlgorithm::Crc64Nvme, crc_fast::CrcAlgorithm::Crc64Xz])
    {
        half.copy_from_slice(&crc_fast::checksum(algorithm, name.as_bytes()).to_be_bytes());
    }
    nguid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_have_identities_that_differ() {
        assert_ne!(digest("eui.0025/"), digest("eui.0025/1"));
        assert_ne!(digest("a")[..8], digest("a")[8..]);
    }
}
