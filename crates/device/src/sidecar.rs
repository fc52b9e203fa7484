//! The sidecar of a namespace in a file, `<file>.yagura`: its identity, and what else goes with it.
//!
//! ```text
//!  bytes      0  identity: TOML padded with line ends, readable and editable by hand (4 KiB)
//!          4096  attributes, copy A (16 KiB, see `attributes`)
//!         20480  attributes, copy B
//!
//! # The identity of the namespace in the file beside this one. Keep the two together.
//! version = 2
//! nguid = "00112233445566778899aabbccddeeff"
//! block_size = 4096
//! ```
//! The text is shorter than a sector, so a power loss leaves all or nothing of it. A sidecar whose text is empty (all zeroes)
//! is one whose creation was cut short, before the identity was handed out: it is written anew. Version 1 had the text alone;
//! it becomes version 2 when it is opened for writing: the attributes are laid out first, the text then says that they are
//! there. Any other damage is refused.
//!
//! Invariants:
//! - Attributes are changed one at a time, under a lock that is held until the medium is done: of two writes at once to the
//!   two copies a power loss could tear both.
//! - A mark of an unreadable block is taken away only when what was written there is stable; otherwise a power loss could
//!   bring back neither the mark nor the new content.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::file::File;
use engine::{Buf, View, task};

use crate::attributes::{Attributes, COPY_BYTES};
use crate::claim;
use crate::identity::{IdentityError, random_nguid};
use crate::range_lock::{Mode, RangeGuard, RangeLocks};
use crate::uncorrectable::{self, Marks, Uncorrectable};
use crate::{Error, Lba};

/// Bytes of the text: one block on any medium.
const TEXT_BLOCK_BYTES: usize = 4096;
/// The text must fit what every medium writes in one piece.
const TEXT_BYTES_MAX: usize = 512;
const SIDECAR_BYTES: usize = TEXT_BLOCK_BYTES + 2 * COPY_BYTES;
/// The version written; a newer one is refused.
const VERSION: i64 = 2;
/// The version without attributes.
const VERSION_OF_TEXT_ALONE: i64 = 1;

/// An open sidecar.
#[derive(Debug)]
pub(crate) struct Sidecar {
    path: PathBuf,
    file: Handle,
    /// Of one block: whoever changes an attribute.
    lock: Arc<RangeLocks>,
    /// Sequence of the copy in force, and what it says.
    state: Mutex<(u64, Attributes)>,
    uncorrectable: Uncorrectable,
}

/// A file that has nothing to say for itself in a debug print.
struct Handle(File);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("File")
    }
}

impl Sidecar {
    /// Opens the sidecar of the file at `path`, which is made if it is missing. Returns the identity with it.
    pub async fn open(path: &Path, block_size: u32, read_only: bool) -> Result<([u8; 16], Sidecar), IdentityError> {
        let path = sidecar_path(path);
        let create = if read_only { None } else { Some(SIDECAR_BYTES as u64) };
        let file = match claim::open(&path, create, read_only).await {
            Ok(file) => file,
            Err(error) if read_only && error.kind() == io::ErrorKind::NotFound => {
                return Err(IdentityError::None { path });
            }
            Err(source) => return Err(IdentityError::Io { path, source }),
        };
        let damaged = |reason: String| IdentityError::Damaged { path: path.clone(), reason };
        let failed = |source| IdentityError::Io { path: path.clone(), source };
        if !(TEXT_BLOCK_BYTES..=SIDECAR_BYTES).contains(&(file.size() as usize)) {
            return Err(damaged(format!("has {} bytes instead of {SIDECAR_BYTES}", file.size())));
        }
        let (result, text) = file.read_at(0, Buf::with_len(TEXT_BLOCK_BYTES)).await;
        result.map_err(failed)?;
        let (version, nguid, recorded) = match !read_only && text.iter().all(|&byte| byte == 0) {
            true => (VERSION_OF_TEXT_ALONE, random_nguid(), block_size),
            false => decode(&text).map_err(damaged)?,
        };
        if recorded != block_size {
            return Err(IdentityError::BlockSize { path, recorded, asked: block_size });
        }
        let state = match (version, read_only) {
            (VERSION_OF_TEXT_ALONE, true) => (0, Attributes::default()),
            (VERSION_OF_TEXT_ALONE, false) => lay_out(&file, nguid, block_size).await.map_err(failed)?,
            _ => load(&file).await.map_err(failed)?.ok_or_else(|| damaged("has lost its attributes".into()))?,
        };
        let marks = match state.1.get(uncorrectable::ATTRIBUTE) {
            Some(bytes) => Marks::decode(bytes).ok_or_else(|| damaged("has marks that are none".into()))?,
            None => Marks::default(),
        };
        let (lock, uncorrectable) = (Arc::new(RangeLocks::new(0)), Uncorrectable::new(marks));
        let state = Mutex::new(state);
        Ok((nguid, Sidecar { path, file: Handle(file), lock, state, uncorrectable }))
    }

    fn state(&self) -> MutexGuard<'_, (u64, Attributes)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // replaced whole, so always sound
    }

    pub fn attribute(&self, key: &str) -> Option<Vec<u8>> {
        self.state().1.get(key).cloned()
    }

    pub async fn set_attribute(&self, key: &'static str, value: &[u8]) -> Result<(), Error> {
        let guard = self.lock.lock(0, 1, Mode::Exclusive).await;
        self.store(guard, key, value).await.map(drop)
    }

    /// Makes an attribute durable, then current. The guard comes back: what depends on the attribute is changed under it.
    async fn store(&self, guard: RangeGuard, key: &'static str, value: &[u8]) -> Result<RangeGuard, Error> {
        let (sequence, attributes) = {
            let state = self.state();
            (state.0 + 1, state.1.with(key, value)?)
        };
        let copy = attributes.encode(sequence);
        // Dropped half way the write goes on: the next one has to wait for it.
        let (result, guard) = self.file.0.write_at_holding(copy_at(sequence), copy, true, guard, |_, _| {}).await;
        result.map_err(|error| Error::WriteFault(format!("write on {}: {error}", self.path.display())))?;
        *self.state() = (sequence, attributes);
        Ok(guard)
    }

    // Blocks marked unreadable. The caller holds the lock of the range.

    /// Whether any of the range is marked: one load where no block is.
    pub fn touches(&self, lba: Lba, blocks: u64) -> bool {
        self.uncorrectable.touches(lba, blocks)
    }

    pub fn check(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.uncorrectable.check(lba, blocks)
    }

    /// Under the range's lock, and to its end also when the caller has gone: a mark that is on the medium and not in memory would
    /// not be taken away by the next write there, and after a restart hide what that has made stable.
    pub async fn mark(self: Arc<Self>, lba: Lba, blocks: u64, range: RangeGuard) -> Result<(), Error> {
        let marked = task::to_its_end(async move {
            let result = self.change_marks(|marks| marks.with(lba, blocks)).await;
            drop(range);
            result
        });
        marked.await.unwrap_or(Err(Error::Aborted))
    }

    /// What was written to the range is stable: it can be read again.
    pub async fn unmark(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.change_marks(|marks| Ok(marks.without(lba, blocks))).await
    }

    async fn change_marks(&self, change: impl FnOnce(&Marks) -> Result<Marks, Error>) -> Result<(), Error> {
        let guard = self.lock.lock(0, 1, Mode::Exclusive).await;
        let marks = change(&self.uncorrectable.marks())?;
        let guard = self.store(guard, uncorrectable::ATTRIBUTE, &marks.encode()).await?;
        self.uncorrectable.publish(marks);
        drop(guard);
        Ok(())
    }
}

fn copy_at(sequence: u64) -> u64 {
    TEXT_BLOCK_BYTES as u64 + sequence % 2 * COPY_BYTES as u64
}

/// No attributes, then the text that says that they are kept.
async fn lay_out(file: &File, nguid: [u8; 16], block_size: u32) -> io::Result<(u64, Attributes)> {
    let (sequence, attributes) = (0, Attributes::default());
    let mut copies = Buf::zeroed(2 * COPY_BYTES);
    copies[..COPY_BYTES].copy_from_slice(&attributes.encode(sequence));
    file.write_at(copy_at(sequence), copies.freeze(), true).await?;
    file.write_at(0, encode(nguid, block_size), true).await?;
    Ok((sequence, attributes))
}

/// The copy in force; `None` where neither is valid.
async fn load(file: &File) -> io::Result<Option<(u64, Attributes)>> {
    let (result, copies) = file.read_at(TEXT_BLOCK_BYTES as u64, Buf::with_len(2 * COPY_BYTES)).await;
    result?;
    Ok(copies.chunks_exact(COPY_BYTES).filter_map(Attributes::decode).max_by_key(|(sequence, _)| *sequence))
}

fn sidecar_path(path: &Path) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(".yagura");
    name.into()
}

fn encode(nguid: [u8; 16], block_size: u32) -> View {
    let text = format!(
        "# The identity of the namespace in the file beside this one. Keep the two together.\n\
         version = {VERSION}\nnguid = \"{:032x}\"\nblock_size = {block_size}\n",
        u128::from_be_bytes(nguid)
    );
    debug_assert!(text.len() <= TEXT_BYTES_MAX);
    let mut buf = Buf::with_len(TEXT_BLOCK_BYTES);
    buf.fill(b'\n');
    buf[..text.len()].copy_from_slice(text.as_bytes());
    buf.freeze()
}

/// Version, identity and block size.
fn decode(bytes: &[u8]) -> Result<(i64, [u8; 16], u32), String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "is not text".to_owned())?;
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| format!("is not TOML: {}", error.message()))?;
    let version = table.get("version").and_then(toml::Value::as_integer).ok_or("names no version")?;
    if ![VERSION_OF_TEXT_ALONE, VERSION].contains(&version) {
        return Err(format!("has version {version}, this program knows versions up to {VERSION}"));
    }
    let nguid = table.get("nguid").and_then(toml::Value::as_str).ok_or("names no nguid")?;
    let digits = nguid.len() == 32 && nguid.bytes().all(|byte| byte.is_ascii_hexdigit());
    let nguid = u128::from_str_radix(nguid, 16).ok().filter(|&value| digits && value != 0);
    let nguid = nguid.ok_or("has an nguid that is not 32 hexadecimal digits, or all zero")?;
    let block_size = table.get("block_size").and_then(toml::Value::as_integer);
    let block_size = block_size.and_then(|size| u32::try_from(size).ok()).ok_or("names no block_size")?;
    Ok((version, nguid.to_be_bytes(), block_size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_reads_back() {
        let nguid = *b"0123456789abcdef";
        assert_eq!(decode(&encode(nguid, 512)), Ok((2, nguid, 512)));
    }

    #[test]
    fn damage_is_named() {
        let good = String::from_utf8(encode([7; 16], 4096).to_vec()).unwrap();
        let cases = [
            (good.replace("version = 2", "version = 3"), "version 3"),
            (good.replace("version", "verison"), "no version"),
            (good.replace("0707", "07"), "32 hexadecimal digits"),
            (good.replace("0707", "+707"), "32 hexadecimal digits"),
            (good.replace("0707", "xyzw"), "32 hexadecimal digits"),
            (good.replace("07070707070707070707070707070707", &"0".repeat(32)), "all zero"),
            (good.replace("4096", "-1"), "block_size"),
            (good.replace("= 2", "="), "not TOML"),
        ];
        for (text, reason) in cases {
            let found = decode(text.as_bytes()).expect_err("damage must be seen");
            assert!(found.contains(reason), "{found:?} should say {reason:?}");
        }
        assert_eq!(decode(&[0xff; 64]), Err("is not text".into()));
    }
}
