//! Reading: every unit that was written is verified, what was not is zeroes, what is known to be bad is a fault.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::Buf;

use super::bytes::{set_value, value};
use super::core::Inner;
use super::layout::PAGE;
use super::map::NONE;
use super::pages::{CHECKSUM_MIN, UNCORRECTABLE, UNWRITTEN, page_entry, unit_hash, unit_value};
use super::registry::Shared;
use super::span::{Piece, Span};
use crate::{Error, Lba};

/// Who loads a page; when it is dropped, others may.
struct Loading<'a> {
    inner: &'a Inner,
    page: u32,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.inner.with(|core| {
            core.pages.end_load(self.page);
            core.changed();
        });
    }
}

impl Inner {
    /// Brings a checksum page into memory.
    pub(super) async fn load_page(&self, page: u32) -> Result<(), Error> {
        let entry = self.wait(|core| match core.pages.is_present(page) {
            true => Some(None),
            false => core.pages.begin_load(page).map(Some),
        });
        let Some(entry) = entry.await else { return Ok(()) };
        let _loading = Loading { inner: self, page };
        let content = self.read_page(page, entry).await?;
        let mut values = [UNWRITTEN; PAGE / 8];
        values.iter_mut().enumerate().for_each(|(slot, place)| *place = value(&content, slot));
        self.with(|core| core.pages.insert(page, Arc::new(values)));
        Ok(())
    }

    /// A checksum page from the medium, verified.
    pub(super) async fn read_page(&self, page: u32, entry: u64) -> Result<Buf, Error> {
        let copy = entry & 1;
        let (result, content) = self.file.read_at(self.layout.page_at(page, copy), Buf::with_len(PAGE)).await;
        result.map_err(|error| self.read_fault(&format!("checksum page {page}: {error}")))?;
        if page_entry(self.seed, page, &content, copy) != entry {
            return Err(self.read_fault(&format!("checksum page {page}, copy {copy}, does not match the checkpoint")));
        }
        Ok(content)
    }

    pub(super) fn read_fault(&self, what: &str) -> Error {
        Error::ReadFault(format!("drive {}: {what}", self.path.display()))
    }

    /// Looks up the extents of a span, and the checksums of its units into `values`.
    pub(super) async fn resolve(&self, namespace: u32, span: &mut Span, values: &mut [u8]) -> Result<(), Error> {
        loop {
            let missing = self.with(|core| {
                let Some(space) = core.state.namespaces.get(&namespace) else { return Err(gone(span)) };
                span.look_up(|index| space.map.get(index));
                for piece in span.pieces() {
                    if piece.extent == NONE {
                        let at = piece.at as usize * 8;
                        values[at..at + piece.units as usize * 8].fill(0);
                        continue;
                    }
                    let mut at = piece.at as usize;
                    for (page, slots) in core.places(piece.extent, piece.first, piece.units) {
                        if !core.pages.is_present(page) {
                            return Ok(Some(page));
                        }
                        let Some(page) = core.pages.get(page) else { return Ok(Some(page)) };
                        for entry in &page[slots] {
                            set_value(values, at, *entry);
                            at += 1;
                        }
                    }
                }
                Ok(None)
            })?;
            match missing {
                None => return Ok(()),
                Some(page) => self.load_page(page).await?,
            }
        }
    }

    /// Fills `buf` with a span of a namespace. The caller holds its range lock.
    pub(super) async fn fetch(&self, shared: &Shared, first: u64, mut buf: Buf) -> (Result<(), Error>, Buf) {
        let units = (buf.len() / self.layout.unit as usize) as u32;
        let mut span = Span::new(&self.layout, first, units);
        let mut values = Buf::with_len(units as usize * 8);
        if let Err(error) = self.resolve(shared.number, &mut span, &mut values).await {
            return (Err(error), buf);
        }
        let state = |unit: u32| value(&values, unit as usize);
        if let Some(bad) = (0..units).find(|&unit| state(unit) == UNCORRECTABLE) {
            let error = self.unit_fault(shared, first + u64::from(bad), "was marked uncorrectable");
            return (Err(error), buf);
        }
        if (0..units).all(|unit| state(unit) == UNWRITTEN) {
            buf.fill(0);
            return (Ok(()), buf);
        }
        let (result, mut buf) = match span.contiguous() {
            Some(unit) => self.file.read_at(self.layout.unit_at(unit), buf).await,
            None => self.gather(&span, buf).await,
        };
        if let Err(error) = result {
            let what = format!("namespace {}, unit {first}: {error}", shared.name);
            return (Err(self.read_fault(&what)), buf);
        }
        (self.verify(shared, &span, &values, &mut buf), buf)
    }

    /// Reads pieces that do not lie side by side.
    async fn gather(&self, span: &Span, mut buf: Buf) -> (std::io::Result<()>, Buf) {
        let unit_bytes = self.layout.unit as usize;
        for piece in span.pieces().filter(|piece| piece.extent != NONE) {
            let part = Buf::with_len(piece.units as usize * unit_bytes);
            let at = self.layout.unit_at(piece.unit(self.layout.extent_units()));
            let (result, part) = self.file.read_at(at, part).await;
            if result.is_err() {
                return (result, buf);
            }
            let at = piece.at as usize * unit_bytes;
            buf[at..at + part.len()].copy_from_slice(&part);
        }
        (Ok(()), buf)
    }

    fn verify(&self, shared: &Shared, span: &Span, values: &[u8], buf: &mut [u8]) -> Result<(), Error> {
        for piece in span.pieces() {
            for step in 0..piece.units {
                let at = (piece.at + step) as usize;
                let content = &mut buf[at * self.layout.unit as usize..][..self.layout.unit as usize];
                let expected = value(values, at);
                if expected < CHECKSUM_MIN {
                    content.fill(0);
                } else if !self.matches(&piece, step, expected, content) {
                    self.mismatches.fetch_add(1, Ordering::Relaxed);
                    return Err(self.unit_fault(shared, span.first + at as u64, "does not match its checksum"));
                }
            }
        }
        Ok(())
    }

    /// Whether unit `step` of a piece has the content that its checksum was made of.
    pub(super) fn matches(&self, piece: &Piece, step: u32, expected: u64, content: &[u8]) -> bool {
        let unit = piece.unit(self.layout.extent_units()) + u64::from(step);
        unit_value(self.seed, unit, unit_hash(content)) == expected
    }

    fn unit_fault(&self, shared: &Shared, unit: u64, what: &str) -> Error {
        let lba = unit * u64::from(self.layout.unit) / u64::from(shared.block_size);
        self.read_fault(&format!("namespace {}, block {lba} {what}", shared.name))
    }
}

/// The namespace was deleted while the command waited.
pub(super) fn gone(span: &Span) -> Error {
    Error::OutOfRange { lba: Lba(span.first), blocks: span.units.into(), end: 0 }
}
