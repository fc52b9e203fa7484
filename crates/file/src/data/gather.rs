//! [`Gather`]: what of a stripe's columns is there, what is wanted of them, and what can be made of it. No I/O.
//!
//! A column is looked at by granules, as bits of a u64: there are no more than [`SUMS_MAX`] in one.
//! Invariant: nothing is given out that does not verify. Parity has no checksums; what was made by it is verified, and where that
//! fails, other parity is tried.

use std::ops::Range;

use device::Error as DeviceError;
use engine::{Buf, View};
use erasure::Code;

use super::rope::Rope;
use super::shape::{Cut, SUMS_MAX};
use super::stripe::{Stripe, SumSeed};

const _: () = assert!(SUMS_MAX <= u64::BITS as usize, "the granules of a column are bits of a word");

/// Bytes of a column that were read or made.
struct Part {
    column: usize,
    /// Its first granule.
    first: usize,
    bytes: View,
    /// Granules of the column that it has, and that verify.
    good: u64,
}

/// What is known of a column.
#[derive(Clone, Default)]
struct Column {
    /// Granules that are wanted.
    wanted: u64,
    /// Granules that were asked for and are there, or are still to come.
    asked: u64,
    /// Its answer is late: others are asked instead.
    is_late: bool,
    /// It can't be had, or does not verify.
    fault: Option<String>,
}

/// See the module.
pub(crate) struct Gather<'a> {
    stripe: &'a Stripe,
    pub(crate) cut: Cut,
    seed: SumSeed,
    code: &'a Code,
    columns: Vec<Column>,
    parts: Vec<Part>,
}

/// Granules `from..to` as bits.
fn bits(from: usize, to: usize) -> u64 {
    if from >= to { 0 } else { (u64::MAX >> (64 - (to - from))) << from }
}

/// The first granule of a set, and the one behind its last.
fn hull(granules: u64) -> (usize, usize) {
    (granules.trailing_zeros() as usize, 64 - granules.leading_zeros() as usize)
}

impl<'a> Gather<'a> {
    /// Bytes `from..to` of the stripe's data are wanted.
    pub(crate) fn new(
        stripe: &'a Stripe,
        cut: Cut,
        seed: SumSeed,
        code: &'a Code,
        from: usize,
        to: usize,
    ) -> Gather<'a> {
        let mut columns = vec![Column::default(); cut.shape().columns()];
        for (number, column) in columns.iter_mut().enumerate() {
            if number < cut.shape().data() {
                let start = from.max(number * cut.width()) - number * cut.width();
                let end = to.min((number + 1) * cut.width()).saturating_sub(number * cut.width());
                if start < end {
                    let granules = end.div_ceil(cut.granule()).min(cut.granules(number));
                    column.wanted = bits(start / cut.granule(), granules);
                }
            }
            if stripe.is_missing(number) {
                column.fault = Some("was not written".into());
            }
        }
        Gather { stripe, cut, seed, code, columns, parts: Vec::new() }
    }

    /// Granules of a column that are not zeroes for sure.
    fn filled(&self, column: usize) -> u64 {
        bits(0, self.cut.granules(column))
    }

    /// Granules of a column that are there and verify.
    fn good(&self, column: usize) -> u64 {
        self.parts.iter().filter(|part| part.column == column).fold(0, |good, part| good | part.good)
    }

    /// Granules of a column that are wanted and not there.
    fn open(&self, column: usize) -> u64 {
        self.columns[column].wanted & !self.good(column)
    }

    /// Granules of which any column's is wanted and not there.
    pub(crate) fn all_open(&self) -> u64 {
        (0..self.columns.len()).fold(0, |open, column| open | self.open(column))
    }

    pub(crate) fn is_done(&self) -> bool {
        self.all_open() == 0
    }

    /// Columns of which something is wanted.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.columns.len()).filter(|column| self.columns[*column].wanted != 0)
    }

    /// Bytes of a column between the granules of a set: from where, and how many; none where it has only zeroes there.
    pub(crate) fn bytes(&self, column: usize, granules: u64) -> Option<(usize, usize)> {
        let granules = granules & self.filled(column);
        if granules == 0 {
            return None;
        }
        let (first, end) = hull(granules);
        let from = first * self.cut.granule();
        Some((from, self.cut.filled(column).min(end * self.cut.granule()) - from))
    }

    /// What a column is wanted for.
    pub(crate) fn wanted_of(&self, column: usize) -> u64 {
        self.columns[column].wanted
    }

    /// Whether a column can still be asked.
    pub(crate) fn is_usable(&self, column: usize) -> bool {
        self.columns[column].fault.is_none()
    }

    /// A column is asked for these granules, and what lies between them.
    pub(crate) fn ask(&mut self, column: usize, granules: u64) {
        let (first, end) = hull(granules & self.filled(column));
        self.columns[column].asked |= bits(first, end);
    }

    /// Answers of these columns are late.
    pub(crate) fn mark_late(&mut self, columns: impl Iterator<Item = usize>) {
        columns.for_each(|column| self.columns[column].is_late = true);
    }

    /// Columns of which all these granules are there, will be, or are zeroes.
    pub(crate) fn expected(&self, granules: u64) -> usize {
        let is_expected = |column: &usize| {
            let needed = granules & self.filled(*column) & !self.good(*column);
            let Column { asked, is_late, fault, .. } = &self.columns[*column];
            needed == 0 || (needed & !asked == 0 && !is_late && fault.is_none())
        };
        (0..self.columns.len()).filter(is_expected).count()
    }

    /// Columns of which all these granules are there, or are zeroes.
    pub(crate) fn there(&self, granules: u64) -> usize {
        let is_there = |column: &usize| granules & self.filled(*column) & !self.good(*column) == 0;
        (0..self.columns.len()).filter(is_there).count()
    }

    /// Columns that could be asked for these granules, and were not yet.
    pub(crate) fn askable(&self, granules: u64) -> Vec<usize> {
        let is_askable = |column: &usize| {
            let needed = granules & self.filled(*column) & !self.good(*column);
            self.is_usable(*column) && needed & !self.columns[*column].asked != 0
        };
        (0..self.columns.len()).filter(is_askable).collect()
    }

    /// A column has answered for bytes from `from` on.
    pub(crate) fn absorb(&mut self, column: usize, from: usize, result: Result<Buf, DeviceError>) {
        let bytes = match result {
            Ok(buf) => buf.freeze(),
            Err(error) => return self.fail(column, error.to_string()),
        };
        let first = from / self.cut.granule();
        let end = first + bytes.len().div_ceil(self.cut.granule());
        let mut good = bits(first, end);
        if column < self.cut.shape().data() {
            for granule in first..end {
                let part = &bytes[(granule - first) * self.cut.granule()..];
                if !self.verifies(column, granule, &part[..part.len().min(self.cut.granule())]) {
                    good &= !bits(granule, granule + 1);
                }
            }
        }
        self.columns[column].is_late = false;
        if good != bits(first, end) {
            self.fail(column, "does not verify".into());
        }
        self.parts.push(Part { column, first, bytes, good });
    }

    fn fail(&mut self, column: usize, fault: String) {
        let column = &mut self.columns[column];
        (column.fault, column.asked, column.is_late) = (Some(fault), 0, false);
    }

    fn verifies(&self, column: usize, granule: usize, bytes: &[u8]) -> bool {
        let expected = self.stripe.sums.get(self.cut.sum_index(column, granule));
        expected == Some(&self.seed.sum(self.stripe.id, column, granule, bytes))
    }

    /// Bytes of a granule of a column, as far as they lie on its member.
    fn granule(&self, column: usize, granule: usize) -> Option<&[u8]> {
        let part =
            self.parts.iter().find(|part| part.column == column && part.good & bits(granule, granule + 1) != 0)?;
        let bytes = &part.bytes[(granule - part.first) * self.cut.granule()..];
        Some(&bytes[..bytes.len().min(self.cut.granule())])
    }

    /// Makes what is wanted of what is there.
    pub(crate) fn solve(&mut self) {
        let mut open = self.all_open();
        while open != 0 {
            let granule = open.trailing_zeros() as usize;
            open &= open - 1;
            for (column, bytes) in self.decode(granule) {
                let good = bits(granule, granule + 1);
                self.parts.push(Part { column, first: granule, bytes: bytes.freeze(), good });
            }
        }
    }

    /// A granule of all columns that want it and have it not, as far as what is made verifies.
    fn decode(&self, granule: usize) -> Vec<(usize, Buf)> {
        let (data, all) = (self.cut.shape().data(), self.cut.shape().columns());
        let length = (self.cut.width() - granule * self.cut.granule()).min(self.cut.granule());
        let mut units: Vec<Option<Vec<u8>>> = Vec::with_capacity(all);
        for column in 0..all {
            let is_zero = self.filled(column) & bits(granule, granule + 1) == 0;
            let found = if is_zero { Some(&[][..]) } else { self.granule(column, granule) };
            units.push(found.map(|bytes| {
                let mut unit = Vec::with_capacity(length);
                unit.extend_from_slice(bytes);
                unit.resize(length, 0);
                unit
            }));
        }
        let lost = units[..data].iter().filter(|unit| unit.is_none()).count() as u32;
        let parity = (data..all).fold(0u32, |set, column| set | u32::from(units[column].is_some()) << (column - data));
        let mut made: Vec<(usize, Buf)> = Vec::new();
        // Usually the first subset is the last one: more than it were read only because one does not verify.
        for subset in (1..=parity).filter(|subset| subset & !parity == 0 && subset.count_ones() == lost) {
            let open: Vec<usize> = (0..data)
                .filter(|column| self.open(*column) & bits(granule, granule + 1) != 0)
                .filter(|column| made.iter().all(|(other, _)| other != column))
                .collect();
            if open.is_empty() {
                break;
            }
            let is_used = |column: usize| column < data || subset >> (column - data) & 1 == 1;
            let given: Vec<Option<&[u8]>> =
                (0..all).map(|column| units[column].as_deref().filter(|_| is_used(column))).collect();
            let mut outs: Vec<Buf> = open.iter().map(|_| Buf::with_len(length)).collect();
            let mut wanted: Vec<(usize, &mut [u8])> =
                open.iter().copied().zip(outs.iter_mut().map(|out| &mut out[..])).collect();
            if self.code.decode(&given, &mut wanted).is_err() {
                continue;
            }
            for (column, mut out) in open.into_iter().zip(outs) {
                out.set_len(length.min(self.cut.filled(column) - granule * self.cut.granule()));
                if self.verifies(column, granule, &out) {
                    made.push((column, out));
                }
            }
        }
        made
    }

    /// The bytes `from..to` of the stripe's data, all of which are there. One piece of each column; a copy where it is of several.
    pub(crate) fn give(&self, from: usize, to: usize) -> Rope {
        let mut rope = Rope::default();
        let mut at = from;
        while at < to {
            let (column, start) = (at / self.cut.width(), at % self.cut.width());
            let end = (start + to - at).min(self.cut.width());
            rope.push(self.piece(column, start, end));
            at += end - start;
        }
        rope
    }

    fn piece(&self, column: usize, start: usize, end: usize) -> View {
        let granule = self.cut.granule();
        let granules = bits(start / granule, end.div_ceil(granule));
        let whole = self.parts.iter().find(|part| part.column == column && part.good & granules == granules);
        if let Some(part) = whole {
            let first = part.first * granule;
            return part.bytes.slice(start - first..end - first);
        }
        let mut buf = Buf::with_capacity(end - start);
        for number in start / granule..end.div_ceil(granule) {
            // Whoever asks has seen that nothing is open.
            let bytes = self.granule(column, number).unwrap_or_default();
            let (from, to) = (start.max(number * granule), end.min((number + 1) * granule));
            buf.extend_from_slice(&bytes[from - number * granule..to - number * granule]);
        }
        buf.freeze()
    }

    /// All bytes of a column, if it has answered with them in one piece.
    pub(crate) fn column(&self, column: usize) -> Option<&View> {
        let whole =
            |part: &&Part| part.column == column && part.first == 0 && part.bytes.len() == self.cut.filled(column);
        self.parts.iter().find(whole).map(|part| &part.bytes)
    }

    /// The parts of the stripe's data that are wanted and not there: those that can't be had, and those that could if these
    /// columns were there.
    pub(crate) fn lost(&self, hoped: u32) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
        let (mut lost, mut unknown) = (Vec::<Range<usize>>::new(), Vec::<Range<usize>>::new());
        let is_hoped = |column: usize, granule: u64| {
            let comes =
                |column: usize| hoped >> column & 1 == 1 && self.filled(column) & granule & !self.good(column) != 0;
            let coming = (0..self.columns.len()).filter(|column| comes(*column)).count();
            comes(column) || (coming > 0 && self.there(granule) + coming >= self.cut.shape().data())
        };
        for column in self.wanted() {
            let open = self.open(column);
            for granule in (0..self.cut.granules(column)).filter(|granule| open & bits(*granule, granule + 1) != 0) {
                let from = column * self.cut.width() + granule * self.cut.granule();
                let to = (from + self.cut.granule()).min((column + 1) * self.cut.width()).min(self.cut.length());
                let parts = if is_hoped(column, bits(granule, granule + 1)) { &mut unknown } else { &mut lost };
                match parts.last_mut().filter(|last| last.end == from) {
                    Some(last) => last.end = to,
                    None => parts.push(from..to),
                }
            }
        }
        (lost, unknown)
    }

    /// Why it can't be done.
    pub(crate) fn faults(&self) -> Vec<(usize, &str)> {
        let faults = self.columns.iter().enumerate();
        faults.filter_map(|(number, column)| Some((number, column.fault.as_deref()?))).collect()
    }
}
