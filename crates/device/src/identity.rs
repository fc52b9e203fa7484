//! The identity (NGUID) of a namespace in a file or on a block device.
//!
//! A host takes two namespaces with one NGUID for the same data, and a namespace with another NGUID for other data. So the
//! identity must stay with the bytes:
//! - **a file** has it in a *sidecar*, `<file>.yagura`: one block of 4096 bytes, TOML padded with line ends, readable and
//!   editable by hand. It is copied and moved together with the file, or the copy is (rightly) a new namespace;
//! - **a block device** has it from its hardware's serial or world-wide name, as the kernel tells it: nothing is written to it.
//!
//! ```text
//! # The identity of the namespace in the file beside this one. Keep the two together.
//! version = 1
//! nguid = "00112233445566778899aabbccddeeff"
//! block_size = 4096
//! ```
//!
//! The text is shorter than a sector, so a power loss leaves all or nothing of it. A sidecar that is empty (all zeroes) is one
//! whose creation was cut short, before the identity was handed out: it is written anew. Any other damage is refused.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use engine::Buf;
use engine::file::{File, OpenOptions};

/// Size of a sidecar: one block on any medium.
const SIDECAR_BYTES: usize = 4096;
/// The text must fit what every medium writes in one piece.
const TEXT_BYTES_MAX: usize = 512;
/// The version written; a newer one is refused.
const VERSION: i64 = 1;

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

/// The identity of the file at `path`, from its sidecar, which is made if it is missing.
pub(crate) async fn of_file(path: &Path, block_size: u32, read_only: bool) -> Result<[u8; 16], IdentityError> {
    let path = sidecar_path(path);
    let create = if read_only { None } else { Some(SIDECAR_BYTES as u64) };
    let options = OpenOptions { create, direct: true, exclusive: true, read_only };
    let file = match File::open(&path, &options) {
        Ok(file) => file,
        Err(error) if read_only && error.kind() == io::ErrorKind::NotFound => return Err(IdentityError::None { path }),
        Err(source) => return Err(IdentityError::Io { path, source }),
    };
    if file.size() != SIDECAR_BYTES as u64 {
        let reason = format!("has {} bytes instead of {SIDECAR_BYTES}", file.size());
        return Err(IdentityError::Damaged { path, reason });
    }
    let (result, bytes) = file.read_at(0, Buf::with_len(SIDECAR_BYTES)).await;
    if let Err(source) = result {
        return Err(IdentityError::Io { path, source });
    }
    if !read_only && bytes.iter().all(|&byte| byte == 0) {
        let nguid = random_nguid();
        let written = file.write_at(0, encode(nguid, block_size).freeze(), true).await;
        return written.map(|()| nguid).map_err(|source| IdentityError::Io { path, source });
    }
    match decode(&bytes) {
        Err(reason) => Err(IdentityError::Damaged { path, reason }),
        Ok((_, recorded)) if recorded != block_size => {
            Err(IdentityError::BlockSize { path, recorded, asked: block_size })
        }
        Ok((nguid, _)) => Ok(nguid),
    }
}

fn sidecar_path(path: &Path) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(".yagura");
    name.into()
}

fn encode(nguid: [u8; 16], block_size: u32) -> Buf {
    let text = format!(
        "# The identity of the namespace in the file beside this one. Keep the two together.\n\
         version = {VERSION}\nnguid = \"{:032x}\"\nblock_size = {block_size}\n",
        u128::from_be_bytes(nguid)
    );
    debug_assert!(text.len() <= TEXT_BYTES_MAX);
    let mut buf = Buf::with_len(SIDECAR_BYTES);
    buf.fill(b'\n');
    buf[..text.len()].copy_from_slice(text.as_bytes());
    buf
}

fn decode(bytes: &[u8]) -> Result<([u8; 16], u32), String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "is not text".to_owned())?;
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| format!("is not TOML: {}", error.message()))?;
    let version = table.get("version").and_then(toml::Value::as_integer).ok_or("names no version")?;
    if version != VERSION {
        return Err(format!("has version {version}, this program knows version {VERSION}"));
    }
    let nguid = table.get("nguid").and_then(toml::Value::as_str).ok_or("names no nguid")?;
    let digits = nguid.len() == 32 && nguid.bytes().all(|byte| byte.is_ascii_hexdigit());
    let nguid = u128::from_str_radix(nguid, 16).ok().filter(|&value| digits && value != 0);
    let nguid = nguid.ok_or("has an nguid that is not 32 hexadecimal digits, or all zero")?;
    let block_size = table.get("block_size").and_then(toml::Value::as_integer);
    let block_size = block_size.and_then(|size| u32::try_from(size).ok()).ok_or("names no block_size")?;
    Ok((nguid.to_be_bytes(), block_size))
}

/// The identity of the block device at `path`, from what its hardware tells the kernel.
pub(crate) fn of_device(path: &Path) -> Result<[u8; 16], IdentityError> {
    let none = || IdentityError::NoSerial { path: path.to_owned() };
    let number = std::fs::metadata(path).map_err(|_| none())?.rdev();
    // The kernel's encoding of a device number (glibc's gnu_dev_major and gnu_dev_minor).
    let major = ((number >> 32) & 0xffff_f000) | ((number >> 8) & 0xfff);
    let minor = ((number >> 12) & 0xffff_ff00) | (number & 0xff);
    let node = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).map_err(|_| none())?;
    let partition = attribute(&node, "partition");
    let disk = if partition.is_some() { node.parent().ok_or_else(none)? } else { &node };
    let names = ["wwid", "nguid", "uuid", "device/wwid", "device/serial", "serial", "dm/uuid", "md/uuid"];
    let serial = names.iter().find_map(|name| attribute(disk, name)).ok_or_else(none)?;
    Ok(digest(&format!("{serial}/{}", partition.unwrap_or_default())))
}

fn attribute(node: &Path, name: &str) -> Option<String> {
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
    fn a_sidecar_reads_back() {
        let nguid = *b"0123456789abcdef";
        assert_eq!(decode(&encode(nguid, 512)), Ok((nguid, 512)));
    }

    #[test]
    fn damage_is_named() {
        let good = String::from_utf8(encode([7; 16], 4096).to_vec()).unwrap();
        let cases = [
            (good.replace("version = 1", "version = 2"), "version 2"),
            (good.replace("version", "verison"), "no version"),
            (good.replace("0707", "07"), "32 hexadecimal digits"),
            (good.replace("0707", "+707"), "32 hexadecimal digits"),
            (good.replace("0707", "xyzw"), "32 hexadecimal digits"),
            (good.replace("07070707070707070707070707070707", &"0".repeat(32)), "all zero"),
            (good.replace("4096", "-1"), "block_size"),
            (good.replace("= 1", "="), "not TOML"),
        ];
        for (text, reason) in cases {
            let found = decode(text.as_bytes()).expect_err("damage must be seen");
            assert!(found.contains(reason), "{found:?} should say {reason:?}");
        }
        assert_eq!(decode(&[0xff; 64]), Err("is not text".into()));
    }

    #[test]
    fn names_that_differ_have_identities_that_differ() {
        assert_ne!(digest("eui.0025/"), digest("eui.0025/1"));
        assert_ne!(digest("a")[..8], digest("a")[8..]);
    }
}
