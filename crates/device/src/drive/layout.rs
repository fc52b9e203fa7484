//! Where everything lies on the medium, and the superblock that says so.
//!
//! ```text
//!  0            superblock, copy A (one page of 4096 bytes)
//!  4096         journal: a ring of frames
//!  …            checkpoint slot 0: header twice, then the body
//!  …            checkpoint slot 1
//!  …            checksum pages, each with two places side by side: copy 0, copy 1
//!  …            extents
//!  end - 4096   superblock, copy B
//! ```
//!
//! The superblock is written by `format` and never again: no crash can hurt it, and of its two copies one is enough.
//!
//! ```text
//!   0  magic "YGDRIVE1"      8  version u32         12  unit u32 (bytes under one checksum)
//!  16  drive id, 16 bytes   32  medium bytes u64    40  extent bytes u32      44  zero u32
//!  48  journal offset u64   56  journal bytes u64   64  slot 0 offset u64     72  slot bytes u64
//!  80  pages offset u64     88  pages u64           96  extents offset u64   104  extents u64
//!  4088  checksum of bytes 0..4088
//! ```

use super::bytes::{Reader, Short, Writer, unsealed};

/// Bytes of a page: the unit of metadata.
pub(super) const PAGE: usize = 4096;
/// Checksums in a page.
pub(super) const PAGE_VALUES: usize = PAGE / 8;
/// The smallest extent. Guessed: below, maps grow faster than anybody profits.
pub const EXTENT_BYTES_MIN: u32 = 64 << 10;
/// The largest extent. Guessed: what one first write to a snapshot may copy.
pub const EXTENT_BYTES_MAX: u32 = 4 << 20;
/// The default extent.
pub const EXTENT_BYTES: u32 = 256 << 10;
/// The smallest journal: room for the largest frame, for those that are admitted meanwhile, and for what is lost at the end
/// of the ring. Derived.
pub(super) const JOURNAL_BYTES_MIN: u64 = 512 << 10;
/// The largest journal. Guessed: it is read whole when the drive is opened.
pub(super) const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// Extents of a drive: their numbers fit 32 bits, with one to spare for "none". Derived.
const EXTENTS_MAX: u64 = u32::MAX as u64 - 1;
/// Extents that all namespaces together may map, for each extent there is: what snapshots share is counted once for each.
/// Guessed.
const ENTRIES_PER_EXTENT: u64 = 4;

const MAGIC: &[u8; 8] = b"YGDRIVE1";
const VERSION: u32 = 1;

/// The places and sizes of a drive's structures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) id: [u8; 16],
    pub(super) bytes: u64,
    pub(super) unit: u32,
    pub(super) extent_bytes: u32,
    pub(super) journal_at: u64,
    pub(super) journal_bytes: u64,
    pub(super) slots_at: u64,
    pub(super) slot_bytes: u64,
    pub(super) pages_at: u64,
    pub(super) pages: u64,
    pub(super) extents_at: u64,
    pub(super) extents: u64,
}

/// Bytes of the names, identities and attributes of namespaces in a checkpoint.
fn words_bytes(bytes: u64) -> u64 {
    (bytes / 64).clamp(64 << 10, 1 << 20)
}

impl Layout {
    /// The largest number of extents that fits `bytes`; none: not even a few do.
    pub(super) fn new(id: [u8; 16], bytes: u64, unit: u32, extent_bytes: u32, journal: Option<u64>) -> Option<Layout> {
        let page = PAGE as u64;
        let bytes = bytes / page * page;
        let usual = (bytes / 256).clamp(2 * JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX);
        let journal_bytes = journal.unwrap_or(usual).div_ceil(page) * page;
        let arrange = |extents: u64| {
            let pages = (extents * u64::from(extent_bytes / unit)).div_ceil(PAGE_VALUES as u64);
            let body = words_bytes(bytes) + entries_max(extents) * 12 + pages * 12;
            let slots_at = page + journal_bytes;
            let slot_bytes = 2 * page + body.div_ceil(page) * page;
            let pages_at = slots_at + 2 * slot_bytes;
            let extents_at = pages_at + 2 * pages * page;
            let journal_at = page;
            Layout {
                id,
                bytes,
                unit,
                extent_bytes,
                journal_at,
                journal_bytes,
                slots_at,
                slot_bytes,
                pages_at,
                pages,
                extents_at,
                extents,
            }
        };
        let mut extents = (bytes / u64::from(extent_bytes)).min(EXTENTS_MAX);
        while extents > 0 {
            let layout = arrange(extents);
            let end = layout.extents_at + extents * u64::from(extent_bytes) + page;
            if end <= bytes {
                return Some(layout);
            }
            extents -= ((end - bytes) / u64::from(extent_bytes)).clamp(1, extents);
        }
        None
    }

    /// The smallest medium that holds one extent.
    pub(super) fn bytes_min(unit: u32, extent_bytes: u32) -> u64 {
        let mut bytes = JOURNAL_BYTES_MIN;
        while Layout::new([1; 16], bytes, unit, extent_bytes, None).is_none() {
            bytes += u64::from(extent_bytes);
        }
        bytes
    }

    pub(super) fn extent_units(&self) -> u32 {
        self.extent_bytes / self.unit
    }

    /// Where unit `unit` of the whole drive lies.
    pub(super) fn unit_at(&self, unit: u64) -> u64 {
        self.extents_at + unit * u64::from(self.unit)
    }

    pub(super) fn page_at(&self, page: u32, copy: u64) -> u64 {
        self.pages_at + (2 * u64::from(page) + copy) * PAGE as u64
    }

    pub(super) fn slot_at(&self, generation: u64) -> u64 {
        self.slots_at + generation % 2 * self.slot_bytes
    }

    /// Bytes a checkpoint's body may have.
    pub(super) fn body_bytes_max(&self) -> u64 {
        self.slot_bytes - 2 * PAGE as u64
    }

    pub(super) fn entries_max(&self) -> u64 {
        entries_max(self.extents)
    }

    /// Bytes that names, identities and attributes may have together.
    pub(super) fn words_bytes_max(&self) -> u64 {
        words_bytes(self.bytes)
    }

    pub(super) fn superblocks(&self) -> [u64; 2] {
        [0, self.bytes - PAGE as u64]
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.raw(MAGIC).u32(VERSION).u32(self.unit).raw(&self.id).u64(self.bytes).u32(self.extent_bytes).u32(0);
        out.u64(self.journal_at).u64(self.journal_bytes).u64(self.slots_at).u64(self.slot_bytes);
        out.u64(self.pages_at).u64(self.pages).u64(self.extents_at).u64(self.extents);
        out.sealed(PAGE)
    }

    /// `Ok(None)`: no superblock of a drive. `Err`: one that can't be read by this program, with the reason.
    pub(super) fn decode(page: &[u8]) -> Result<Option<Layout>, String> {
        if !page.starts_with(MAGIC) {
            return Ok(None);
        }
        let Some(content) = unsealed(page) else { return Err("does not match its checksum".into()) };
        let layout = Layout::fields(Reader(&content[8..])).map_err(|Short| "is too short".to_owned())?;
        let (version, layout) = layout;
        if version != VERSION {
            return Err(format!("has version {version}; this program knows version {VERSION}"));
        }
        let sound = [512, 4096].contains(&layout.unit)
            && layout.extent_bytes.is_power_of_two()
            && (EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&layout.extent_bytes)
            && (JOURNAL_BYTES_MIN..=JOURNAL_BYTES_MAX).contains(&layout.journal_bytes)
            && layout.bytes <= i64::MAX as u64;
        if !sound {
            return Err("names sizes that no drive has".into());
        }
        // Every offset follows from these figures: what differs was not written by `format`.
        let arranged =
            Layout::new(layout.id, layout.bytes, layout.unit, layout.extent_bytes, Some(layout.journal_bytes));
        match arranged {
            Some(arranged) if arranged == layout => Ok(Some(layout)),
            _ => Err("names places that do not follow from its sizes".into()),
        }
    }

    fn fields(mut from: Reader<'_>) -> Result<(u32, Layout), Short> {
        let (version, unit, id, bytes, extent_bytes) =
            (from.u32()?, from.u32()?, from.array16()?, from.u64()?, from.u32()?);
        from.u32()?;
        let mut field = || from.u64();
        let (journal_at, journal_bytes, slots_at, slot_bytes) = (field()?, field()?, field()?, field()?);
        let (pages_at, pages, extents_at, extents) = (field()?, field()?, field()?, field()?);
        let layout = Layout {
            id,
            bytes,
            unit,
            extent_bytes,
            journal_at,
            journal_bytes,
            slots_at,
            slot_bytes,
            pages_at,
            pages,
            extents_at,
            extents,
        };
        Ok((version, layout))
    }
}

fn entries_max(extents: u64) -> u64 {
    ENTRIES_PER_EXTENT * extents + 64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A superblock may name any journal whose places follow from its size, and all of it was read into memory at once.
    #[test]
    fn a_journal_larger_than_any_is_refused() {
        for (journal, good) in [(JOURNAL_BYTES_MAX, true), (2 * JOURNAL_BYTES_MAX, false), (PAGE as u64, false)] {
            let layout = Layout::new([1; 16], 1 << 40, 4096, EXTENT_BYTES, Some(journal)).expect("room for extents");
            assert_eq!(Layout::decode(&layout.encode()).is_ok(), good, "a journal of {journal} bytes");
        }
    }
}
