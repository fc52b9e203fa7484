//! `dump`: every structure of a drive in words.

use std::fmt::Write;

use engine::Buf;
use engine::task::LocalFuture;

use super::bytes::Reader;
use super::frame::{self, Found};
use super::layout::PAGE;
use super::record::{Record, transactions};
use super::{Drive, recover};
use crate::Error;

impl Drive {
    /// The superblock, both checkpoints, the journal's frames, the namespaces with their maps, and the checksum pages.
    pub fn dump(&self) -> LocalFuture<'_, Result<String, Error>> {
        Box::pin(async move {
            let (inner, layout) = (&self.inner, &self.inner.layout);
            let mut out = String::new();
            let id = u128::from_be_bytes(layout.id);
            let _ = writeln!(out, "drive {id:032x} in {}: {} bytes", inner.path.display(), layout.bytes);
            let _ = writeln!(out, "  checksums over {} bytes, extents of {} bytes", layout.unit, layout.extent_bytes);
            let _ = writeln!(out, "  journal      {:>14} + {}", layout.journal_at, layout.journal_bytes);
            let _ = writeln!(out, "  checkpoints  {:>14} + 2 × {}", layout.slots_at, layout.slot_bytes);
            let _ = writeln!(out, "  pages        {:>14} + {} × 2 × {PAGE}", layout.pages_at, layout.pages);
            let _ = writeln!(
                out,
                "  extents      {:>14} + {} × {}",
                layout.extents_at, layout.extents, layout.extent_bytes
            );
            for slot in 0..2 {
                let (result, pages) = inner.file.read_at(layout.slot_at(slot), Buf::with_len(2 * PAGE)).await;
                result.map_err(|error| inner.read_fault(&format!("checkpoint slot {slot}: {error}")))?;
                for (copy, header) in recover::headers(&pages, &layout.id).into_iter().enumerate() {
                    // Formatting into a string cannot fail; nor below.
                    let _ = match header {
                        Some(header) => writeln!(out, "checkpoint slot {slot}, header {copy}: {header:?}"),
                        None => writeln!(out, "checkpoint slot {slot}, header {copy}: damaged"),
                    };
                }
            }
            self.dump_state(&mut out);
            self.dump_journal(&mut out).await?;
            Ok(out)
        })
    }

    fn dump_state(&self, out: &mut String) {
        self.inner.with(|core| {
            let state = &core.state;
            let free = state.free.len();
            let _ = writeln!(out, "{} extents in use, {free} free", state.used());
            for (number, space) in &state.namespaces {
                let kind = if space.read_only { "snapshot" } else { "namespace" };
                let nguid = u128::from_be_bytes(space.nguid);
                let _ = write!(out, "{kind} {number} {:?} nguid {nguid:032x}", space.name);
                let _ = write!(out, ": {} bytes in blocks of {}", space.bytes, space.block_size);
                // As above.
                let _ = match space.source {
                    0 => writeln!(out),
                    source => writeln!(out, ", made from {source}"),
                };
                for (key, value) in &space.attributes {
                    let _ = writeln!(out, "  attribute {key}: {} bytes", value.len());
                }
                for (index, extent) in space.map.iter() {
                    let references = state.references[extent as usize];
                    let _ = writeln!(out, "  {index}: extent {extent}, referred to {references} times");
                }
            }
            for (page, entry) in core.pages.table().iter().enumerate().filter(|(_, entry)| **entry != 0) {
                let _ = writeln!(out, "checksum page {page}: copy {}, checksum {entry:016x}", entry & 1);
            }
        });
    }

    async fn dump_journal(&self, out: &mut String) -> Result<(), Error> {
        let layout = &self.inner.layout;
        let mut ring = Vec::with_capacity(layout.journal_bytes as usize);
        while (ring.len() as u64) < layout.journal_bytes {
            let len = (layout.journal_bytes as usize - ring.len()).min(1 << 20);
            let at = layout.journal_at + ring.len() as u64;
            let (result, part) = self.inner.file.read_at(at, Buf::with_len(len)).await;
            result.map_err(|error| self.inner.read_fault(&format!("journal: {error}")))?;
            ring.extend_from_slice(&part);
        }
        for at in (0..ring.len()).step_by(PAGE) {
            match frame::any(&ring, at) {
                Found::Frame(range, head, records) => {
                    let _ = writeln!(out, "journal {at}+{}: {head:?}", range.len());
                    dump_records(out, &records);
                }
                Found::Damaged(place) => {
                    let _ = writeln!(out, "journal {at}: damaged at {place}");
                }
                Found::Nothing => {}
            }
        }
        Ok(())
    }
}

fn dump_records(out: &mut String, records: &[u8]) {
    for transaction in transactions(records) {
        let Ok((sequence, mut from)) = transaction else {
            let _ = writeln!(out, "  cut short");
            return;
        };
        let _ = writeln!(out, "  transaction {sequence}");
        dump_transaction(out, &mut from);
    }
}

fn dump_transaction(out: &mut String, from: &mut Reader<'_>) {
    while !from.is_empty() {
        let Ok(record) = Record::decode(from) else {
            let _ = writeln!(out, "    unreadable");
            return;
        };
        // Formatting into a string cannot fail.
        let _ = match record {
            Record::Intent { extent, first, values } => {
                writeln!(out, "    intent: extent {extent}, {} units from {first}", values.len() / 8)
            }
            Record::Set { extent, first, values } => {
                writeln!(out, "    set: extent {extent}, {} units from {first}", values.len() / 8)
            }
            Record::Move { namespace, index, extent, .. } => {
                writeln!(out, "    move: namespace {namespace}, {index} is extent {extent}")
            }
            Record::Attribute { namespace, key, value } => {
                writeln!(out, "    attribute: namespace {namespace}, {key}: {} bytes", value.len())
            }
            other => writeln!(out, "    {other:?}"),
        };
    }
}
