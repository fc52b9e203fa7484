//! Writing a run of units that lie side by side on the medium.
//!
//! Order, for units that hold data already:
//! 1. an intent with the new checksums becomes stable in the journal;
//! 2. the data is written in place;
//! 3. the checksums enter their pages.
//!
//! A crash between 1 and 3 leaves the old content, which matches the checksum before the intent, or the new one, which
//! matches the intent: recovery reads the unit and takes the one it matches. Without the intent the new content would match
//! nothing; were the checksum recomputed from what is found, a flipped bit would be taken for data.
//!
//! Units that were never written have no content to tell from the new one. There the data comes first, stable, and the
//! checksums become stable after it: until then the unit reads as the zeroes it was.
//!
//! Whatever step a future is dropped in, [`Writing`] brings to a known end.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use engine::{Buf, View};

use super::bytes::{set_value, value};
use super::commit::Admission;
use super::core::{Core, Inner, journal_need};
use super::map::NONE;
use super::pages::{CHECKSUM_MIN, unit_hash, unit_value};
use super::record::Record;
use super::reserve::Reservation;
use super::span::Span;
use crate::range_lock::RangeGuard;
use crate::{Durability, Error};

/// Bytes of a record that carries one checksum: the worst case, where every other unit needs a record of its own.
const RECORD_BYTES_PER_UNIT: usize = 24;

/// What holds for a command that writes, until it ends.
pub(super) struct Writing {
    inner: Arc<Inner>,
    /// The range lock; none where the caller keeps it.
    guard: Option<RangeGuard>,
    _admission: Admission,
    /// Its place on the medium, in units of the drive.
    unit: u64,
    /// The new checksums.
    values: Buf,
    /// The intent's sequence, while the outcome of the data is open.
    intent: Option<u64>,
    /// The data was handed to the medium.
    issued: bool,
}

/// A command's journal need before anything is known of its units: map, intent, its reversal, set.
pub(super) fn write_need(units: u32) -> u64 {
    let records = units as usize * RECORD_BYTES_PER_UNIT;
    journal_need(&[512, records, records, records])
}

impl Writing {
    /// The data is on the medium: overwritten units have their new checksums from now on.
    fn written(&mut self) {
        let Some(sequence) = self.intent.take() else { return };
        let (unit, values) = (self.unit, &self.values);
        self.inner.with(|core| {
            core.for_runs(unit, values, true, |core, extent, first, run| core.store(extent, first, &values[run]));
            core.data.close(sequence);
        });
    }

    /// Units written for the first time have their checksums from now on: the sequence of the record that says so.
    fn set_fresh(&mut self) -> Option<u64> {
        let (unit, values) = (self.unit, &self.values);
        self.inner.with(|core| {
            core.begin();
            core.for_runs(unit, values, false, |core, extent, first, run| {
                core.add(&Record::Set { extent, first, values: &values[run] });
            });
            Some(core.end())
        })
    }

    fn late(mut self, result: &io::Result<()>) {
        match result {
            Ok(()) => self.written(),
            Err(error) if self.lost_nothing(error) => {}
            Err(error) => self.failed(error),
        }
        drop(self.guard.take());
    }

    /// There was no room below, and nothing refers to what may have been written. (A write that was cut short there, and whose
    /// caller has gone, is not gone on with: `WriteZero`.)
    fn lost_nothing(&self, error: &io::Error) -> bool {
        self.intent.is_none() && matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::WriteZero)
    }

    fn failed(&mut self, error: &io::Error) {
        self.inner.with(|core| core.fail(format!("write on {}: {error}", self.inner.path.display())));
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let Some(sequence) = self.intent.take() else { return };
        if self.issued {
            // Only the end of its world ends a write without a result. A checkpoint would now make the old checksums definite,
            // over data that may be the new one: opened anew the drive looks which it is.
            self.failed(&io::Error::other("cut off"));
            return;
        }
        let (unit, values) = (self.unit, &mut self.values);
        self.inner.with(|core| core.take_back(sequence, unit, values));
    }
}

impl Core {
    /// The data of intent `sequence` never was: a later intent for the old checksums, which are still in their pages. Otherwise a
    /// flush could prove the first one's data stable, and recovery would expect what was never written.
    pub(super) fn take_back(&mut self, sequence: u64, unit: u64, values: &mut [u8]) {
        self.current(unit, values);
        self.begin();
        let values = &*values;
        self.for_runs(unit, values, true, |core, extent, first, run| {
            core.add(&Record::Intent { extent, first, values: &values[run] });
        });
        let by = self.end();
        self.data.reverse(sequence, by);
        self.journal.left = by;
    }

    /// Calls `each` with every run of units that hold data (or that hold none), as extent, first unit and the run's values.
    fn for_runs(
        &mut self,
        unit: u64,
        values: &[u8],
        written: bool,
        mut each: impl FnMut(&mut Core, u32, u32, Range<usize>),
    ) {
        let (extent_units, units) = (u64::from(self.extent_units()), values.len() as u64 / 8);
        let mut at = 0;
        while at < units {
            let (extent, first) = ((unit + at) / extent_units, (unit + at) % extent_units);
            let end = units.min(at + extent_units - first);
            let matches = self.value_at(unit + at).is_some_and(|value| value >= CHECKSUM_MIN) == written;
            let mut next = at + 1;
            while next < end
                && (self.value_at(unit + next).is_some_and(|value| value >= CHECKSUM_MIN) == written) == matches
            {
                next += 1;
            }
            if matches {
                each(self, extent as u32, first as u32, at as usize * 8..next as usize * 8);
            }
            at = next;
        }
    }

    /// Replaces `values` by the checksums in force.
    fn current(&mut self, unit: u64, values: &mut [u8]) {
        for at in 0..values.len() / 8 {
            if let Some(current) = self.value_at(unit + at as u64) {
                set_value(values, at, current);
            }
        }
    }
}

/// What [`Inner::begin_write`] found.
pub(super) enum Begun {
    /// All in one piece: its first unit of the drive, the intent's sequence, and whether some units were never written.
    Run { unit: u64, intent: Option<u64>, fresh: bool },
    /// In several pieces, or in extents that snapshots share: one by one.
    Pieces,
}

impl Inner {
    /// Hashes of the units of `data`, to be turned into checksums once their place is known.
    pub(super) fn hashes(&self, data: &[u8]) -> Buf {
        let units = data.len() / self.layout.unit as usize;
        let mut hashes = Buf::with_len(units * 8);
        for (at, content) in data.chunks_exact(self.layout.unit as usize).enumerate() {
            set_value(&mut hashes, at, unit_hash(content));
        }
        hashes
    }

    /// Maps what is not mapped, and records the intent. The caller is admitted and holds the range lock.
    pub(super) async fn begin_write(
        self: &Arc<Self>,
        namespace: u32,
        span: &mut Span,
        hashes: &mut [u8],
    ) -> Result<Begun, Error> {
        let mut reserved = Reservation::new(self);
        loop {
            let step = self.with(|core| {
                if !reserved.cover(core, namespace, span)? {
                    return Ok(Err(None));
                }
                let extent_units = self.layout.extent_units();
                for piece in span.pieces() {
                    let (extent, first, units) = match piece.extent {
                        NONE => (reserved.for_index(piece.index), 0, extent_units),
                        extent => (extent, piece.first, piece.units),
                    };
                    if let Some(page) = core.missing(extent, first, units) {
                        return Ok(Err(Some(page)));
                    }
                }
                Ok(Ok(self.record_intent(core, namespace, span, &mut reserved, hashes)))
            })?;
            match step {
                Ok(begun) => return Ok(begun),
                Err(Some(page)) => self.load_page(page).await?,
                Err(None) => self.wait_for_free().await?,
            }
        }
    }

    fn record_intent(
        &self,
        core: &mut Core,
        namespace: u32,
        span: &mut Span,
        reserved: &mut Reservation,
        hashes: &mut [u8],
    ) -> Begun {
        core.map_reserved(namespace, span, reserved);
        let shared = span.pieces().any(|piece| core.state.references[piece.extent as usize] > 1);
        let Some(unit) = span.contiguous().filter(|_| !shared) else { return Begun::Pieces };
        for at in 0..hashes.len() / 8 {
            set_value(hashes, at, unit_value(self.seed, unit + at as u64, value(hashes, at)));
        }
        let values = &*hashes;
        let (mut overwritten, mut fresh) = (false, false);
        core.for_runs(unit, values, true, |_, _, _, _| overwritten = true);
        core.for_runs(unit, values, false, |_, _, _, _| fresh = true);
        let intent = overwritten.then(|| {
            core.begin();
            core.for_runs(unit, values, true, |core, extent, first, run| {
                core.add(&Record::Intent { extent, first, values: &values[run] });
            });
            let sequence = core.end();
            core.data.open.push(sequence);
            sequence
        });
        Begun::Run { unit, intent, fresh }
    }

    /// Writes a span that lies in one piece, after [`Inner::begin_write`].
    pub(super) async fn write_run(
        self: &Arc<Self>,
        (guard, admission): (Option<RangeGuard>, Admission),
        (unit, intent, fresh): (u64, Option<u64>, bool),
        values: Buf,
        data: View,
        durability: Durability,
    ) -> Result<Option<RangeGuard>, Error> {
        let inner = Arc::clone(self);
        let mut writing = Writing { inner, guard, _admission: admission, unit, values, intent, issued: false };
        if let Some(sequence) = intent {
            self.commit(sequence).await?;
        }
        writing.issued = true;
        let stable = fresh || durability == Durability::Stable;
        let data = aligned(data, self.file.logical_block_size());
        let late = |writing: Writing, result: io::Result<()>| writing.late(&result);
        let at = self.layout.unit_at(unit);
        let (result, mut writing) = self.file.write_at_holding(at, data, stable, writing, late).await;
        if let Err(error) = result {
            if writing.lost_nothing(&error) {
                return Err(Error::OutOfSpace);
            }
            return Err(self.with(|core| core.fail(format!("write on {}: {error}", self.path.display()))));
        }
        writing.written();
        if fresh && let Some(sequence) = writing.set_fresh() {
            self.commit(sequence).await?;
        }
        if stable {
            self.still("write")?;
        }
        Ok(writing.guard.take())
    }

    /// What has just become stable is, unless something failed meanwhile.
    pub(super) fn still(&self, what: &str) -> Result<(), Error> {
        self.with(|core| match &core.failed {
            None => Ok(()),
            Some(reason) => Err(Error::WriteFault(format!("{what} on {}: {reason}", self.path.display()))),
        })
    }
}

/// `data` at an address that direct I/O takes: itself, or a copy if it is an odd slice of something larger.
fn aligned(data: View, granularity: u32) -> View {
    if data.as_ptr().addr().is_multiple_of(granularity as usize) { data } else { Buf::copy_from(&data).freeze() }
}
