//! The label of a data member: which file system's it is, and which member of it.
//!
//! ```text
//!   0  magic "YGFILEMB", format u32 = 1     the head of a sealed page (`device::sealed`)
//!  12  index    u16
//!  14  zero     u16
//!  16  checksum u64
//!  24  file system   16 B
//!  40  bytes of a region    u32
//!  44  zero     u32
//!  48  bytes of the member  u64
//!  56  zero … 4096
//! ```
//! It stands at the begin and in the middle of the first MiB. It is written once, the second copy first: a copy that is whole
//! counts, and the first one where both are. What a broken off format has left is blank at its begin, or has its first copy.

use device::{Durability, ErasedMethods, Lba, sealed};
use engine::Buf;
use engine::task::LocalFuture;

use super::key::FsId;
use super::shape::ROW_BYTES;

const MAGIC: [u8; 8] = *b"YGFILEMB";
const FORMAT: u32 = 1;
const PAGE_BYTES: usize = 4096;
/// Bytes before the first region.
pub(crate) const LABEL_BYTES: u64 = 1 << 20;
const COPIES: [u64; 2] = [LABEL_BYTES / 2, 0];
/// Bytes at each end of a namespace that must be zero for it to be taken for blank.
const ENDS_BYTES: u64 = LABEL_BYTES;
/// The smallest region. Derived: two of the longest columns.
pub const REGION_BYTES_MIN: u32 = 1 << 20;
/// The largest region. Derived: as many rows as a chunk's record has marks for.
pub const REGION_BYTES_MAX: u32 = super::stripe::REGION_ROWS_MAX * ROW_BYTES as u32;

/// What a label says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label {
    /// The file system.
    pub fs: FsId,
    /// Which of its members.
    pub index: u16,
    /// Bytes of a region.
    pub region_bytes: u32,
    /// Bytes of the member.
    pub bytes: u64,
}

/// Why a namespace is not taken as a member.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LabelError {
    /// Something is there, and it was not said that it may go.
    #[error("the namespace is not blank: at byte {0} is something; format it with force if that may go")]
    NotBlank(u64),
    /// No label.
    #[error("the namespace has no label of a file system's member: format it first")]
    None,
    /// Written by a later version.
    #[error("the label has format {0}, this version reads {read}: use a newer version", read = FORMAT)]
    Newer(u32),
    /// Of another file system.
    #[error("the namespace belongs to file system {}, not to this one", hex(.0))]
    OtherFileSystem(FsId),
    /// Another member of the same one.
    #[error("the namespace is member {found}, member {expected} was expected: its address is another one's")]
    OtherMember {
        /// What it is.
        found: u16,
        /// What was looked for.
        expected: u16,
    },
    /// It has shrunk.
    #[error("the namespace has {found} bytes, and had {expected}: it has been made smaller, or is another one")]
    Smaller {
        /// Bytes that it has.
        found: u64,
        /// Bytes that its label says.
        expected: u64,
    },
    /// Its regions are of another size than the file system's.
    #[error("the member has regions of {found} bytes, the file system of {expected}")]
    Regions {
        /// What the label says.
        found: u32,
        /// What was expected.
        expected: u32,
    },
    /// It can be no member.
    #[error("the namespace can't be a member: {0}")]
    Unfit(&'static str),
    /// It does not answer, or not well.
    #[error("the namespace fails: {0}")]
    Device(#[from] device::Error),
}

fn hex(fs: &FsId) -> String {
    fs.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Label {
    fn encode(&self) -> Buf {
        let mut page = Buf::zeroed(PAGE_BYTES);
        page[12..14].copy_from_slice(&self.index.to_le_bytes());
        page[24..40].copy_from_slice(&self.fs);
        page[40..44].copy_from_slice(&self.region_bytes.to_le_bytes());
        page[48..56].copy_from_slice(&self.bytes.to_le_bytes());
        sealed::seal(&mut page, MAGIC, FORMAT);
        page
    }

    /// The label that a page is.
    ///
    /// # Errors
    /// [`LabelError::None`], [`LabelError::Newer`].
    pub fn decode(page: &[u8]) -> Result<Label, LabelError> {
        if page.len() != PAGE_BYTES || !page.starts_with(&MAGIC) || !sealed::is_whole(page) {
            return Err(LabelError::None);
        }
        if sealed::format(page) > FORMAT {
            return Err(LabelError::Newer(sealed::format(page)));
        }
        fn at<const N: usize>(page: &[u8], from: usize) -> [u8; N] {
            page[from..].first_chunk().copied().unwrap_or([0; N])
        }
        let label = Label {
            index: u16::from_le_bytes(at(page, 12)),
            fs: at(page, 24),
            region_bytes: u32::from_le_bytes(at(page, 40)),
            bytes: u64::from_le_bytes(at(page, 48)),
        };
        let is_one = *label.encode() == *page && is_region(label.region_bytes);
        if is_one { Ok(label) } else { Err(LabelError::None) }
    }

    /// Makes a namespace the member that this label says: it must be as long as that, and blank unless `force`d.
    ///
    /// # Errors
    /// [`LabelError`]; nothing is written but where writing failed.
    pub fn format<'a>(
        &'a self,
        namespace: &'a dyn ErasedMethods,
        force: bool,
    ) -> LocalFuture<'a, Result<(), LabelError>> {
        Box::pin(async move {
            let block = fits(namespace)?;
            let info = namespace.info();
            if !is_region(self.region_bytes) {
                return Err(LabelError::Unfit("a region is a power of two of 1 MiB to 64 MiB"));
            }
            if info.bytes() < LABEL_BYTES + u64::from(self.region_bytes) {
                return Err(LabelError::Unfit("it has no room for one region"));
            }
            if info.bytes() < self.bytes {
                return Err(LabelError::Smaller { found: info.bytes(), expected: self.bytes });
            }
            if !force {
                let end = info.bytes() / PAGE_BYTES as u64 * PAGE_BYTES as u64;
                for from in [0, end.saturating_sub(ENDS_BYTES)] {
                    is_blank(namespace, from, ENDS_BYTES.min(end - from)).await?;
                }
            }
            let page = self.encode().freeze();
            for copy in COPIES {
                namespace.write(Lba(copy / block), page.clone(), Durability::Stable).await?;
            }
            Ok(())
        })
    }

    /// Whether a namespace is the member that this label says, of whatever size.
    ///
    /// # Errors
    /// [`LabelError`]: what it is instead. [`Label::bytes`] of what is found is what the namespace was formatted with.
    pub fn check<'a>(&'a self, namespace: &'a dyn ErasedMethods) -> LocalFuture<'a, Result<Label, LabelError>> {
        Box::pin(async move {
            let found = Label::read(namespace).await?;
            if found.fs != self.fs {
                return Err(LabelError::OtherFileSystem(found.fs));
            }
            if found.index != self.index {
                return Err(LabelError::OtherMember { found: found.index, expected: self.index });
            }
            if found.region_bytes != self.region_bytes {
                return Err(LabelError::Regions { found: found.region_bytes, expected: self.region_bytes });
            }
            let bytes = namespace.info().bytes();
            let expected = found.bytes.max(self.bytes);
            if bytes < expected { Err(LabelError::Smaller { found: bytes, expected }) } else { Ok(found) }
        })
    }

    /// The label of a namespace.
    ///
    /// # Errors
    /// [`LabelError::None`], [`LabelError::Newer`], [`LabelError::Device`].
    pub fn read<'a>(namespace: &'a dyn ErasedMethods) -> LocalFuture<'a, Result<Label, LabelError>> {
        Box::pin(async move {
            let block = fits(namespace)?;
            let mut fault = LabelError::None;
            for copy in COPIES.into_iter().rev() {
                let (result, page) = namespace.read(Lba(copy / block), Buf::with_len(PAGE_BYTES)).await;
                match result.map_err(LabelError::Device).and_then(|()| Label::decode(&page)) {
                    Ok(label) => return Ok(label),
                    Err(LabelError::None) => {}
                    Err(error) => fault = error,
                }
            }
            Err(fault)
        })
    }
}

fn is_region(bytes: u32) -> bool {
    bytes.is_power_of_two() && (REGION_BYTES_MIN..=REGION_BYTES_MAX).contains(&bytes)
}

/// Bytes of a block, of a namespace that could be a member.
fn fits(namespace: &dyn ErasedMethods) -> Result<u64, LabelError> {
    let info = namespace.info();
    if info.block_size as usize > ROW_BYTES {
        return Err(LabelError::Unfit("its blocks are larger than 4 KiB"));
    }
    if info.bytes() < 2 * LABEL_BYTES {
        return Err(LabelError::Unfit("it is smaller than 2 MiB"));
    }
    Ok(u64::from(info.block_size))
}

async fn is_blank(namespace: &dyn ErasedMethods, from: u64, bytes: u64) -> Result<(), LabelError> {
    let info = namespace.info();
    let piece = (64 << 10).min(u64::from(info.transfer_blocks_max) * u64::from(info.block_size));
    let mut at = from;
    while at < from + bytes {
        let length = piece.min(from + bytes - at);
        let buf = Buf::with_len(length as usize);
        let (result, buf) = namespace.read(Lba(at / u64::from(info.block_size)), buf).await;
        result?;
        if let Some(place) = buf.iter().position(|byte| *byte != 0) {
            return Err(LabelError::NotBlank(at + place as u64));
        }
        at += length;
    }
    Ok(())
}
