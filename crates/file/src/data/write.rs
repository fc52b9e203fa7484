//! Writing a stripe: data cut into columns, parity and checksums made in one pass, all columns written at once.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use device::Error as DeviceError;
use engine::time;
use engine::{Buf, View};
use erasure::{Code, UNITS_MAX};

use super::balance::Way;
use super::member::Members;
use super::pending::Pending;
use super::rope::Rope;
use super::rows::ChunkPlace;
use super::shape::{Cut, PARITY_COLUMNS_MAX, ROW_BYTES};
use super::stripe::{Stripe, StripeId, SumSeed};
use crate::error::Error;

/// Bytes of each column that parity is made of at a time. Chosen: a few columns of it, and their checksums, stay in the nearest
/// caches.
const PIECE_BYTES: usize = 16 << 10;
static ZEROES: [u8; PIECE_BYTES] = [0; PIECE_BYTES];

/// For how long members are waited for. Chosen: what hosts wait for a command of a namespace.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Columns that may fail when a stripe is written, however much parity there is: each is a loss less that can be borne later.
pub(crate) const FAILED_MAX: usize = 1;

/// Reads and writes stripes.
pub(crate) struct Stripes {
    pub(crate) members: Rc<Members>,
    pub(crate) code: Code,
    /// Reads that were answered, by their way.
    pub(crate) reads: [Cell<u64>; Way::LABELS.len()],
}

/// What a stripe's columns hold; data columns that no data reaches are empty.
pub(crate) struct Columns {
    pub(crate) columns: Vec<View>,
    pub(crate) sums: Box<[u32]>,
}

/// A stripe that was not written.
#[derive(Debug)]
pub(crate) struct NotWritten {
    pub(crate) error: Error,
    /// What was sent may still be written.
    pub(crate) is_late: bool,
}

/// Cuts data, makes its parity and its checksums.
pub(crate) fn columns_of(data: &Rope, cut: &Cut, code: &Code, seed: SumSeed, id: StripeId) -> Columns {
    let (shape, width) = (cut.shape(), cut.width());
    let column = |column: usize| {
        let (from, to) = ((column * width).min(data.len()), ((column + 1) * width).min(data.len()));
        data.slice(from, to).whole(cut.filled(column))
    };
    let mut columns: Vec<View> = (0..shape.data()).map(column).collect();
    let mut parity: Vec<Buf> = (0..shape.parity()).map(|_| Buf::with_len(width)).collect();
    let mut sums = vec![0; cut.sums()];
    for granule in 0..width.div_ceil(cut.granule()) {
        let (from, to) = (granule * cut.granule(), width.min((granule + 1) * cut.granule()));
        encode(&columns, &mut parity, code, from, to);
        for (number, column) in columns.iter().enumerate().filter(|(_, column)| column.len() > from) {
            let bytes = &column[from..to.min(column.len())];
            sums[cut.sum_index(number, granule)] = seed.sum(id, number, granule, bytes);
        }
    }
    columns.extend(parity.into_iter().map(Buf::freeze));
    Columns { columns, sums: sums.into() }
}

/// Makes the parity of bytes `from..to` of all columns; behind the end of a data column are zeroes.
fn encode(data: &[View], parity: &mut [Buf], code: &Code, from: usize, to: usize) {
    let mut at = from;
    while at < to {
        let piece = to.min(at + PIECE_BYTES);
        // A piece ends where a column does: before that it has bytes, behind it zeroes.
        let ends = data.iter().map(|column| column.len()).filter(|len| (at + 1..piece).contains(len));
        let end = ends.min().unwrap_or(piece);
        let mut sources = [&[][..]; UNITS_MAX];
        for (source, column) in sources.iter_mut().zip(data) {
            *source = column.get(at..end).unwrap_or(&ZEROES[..end - at]);
        }
        let count = parity.len();
        let mut outs: [&mut [u8]; PARITY_COLUMNS_MAX] = Default::default();
        for (out, parity) in outs.iter_mut().zip(parity.iter_mut()) {
            *out = &mut parity[at..end];
        }
        let encoded = code.encode(&sources[..data.len()], &mut outs[..count]);
        debug_assert_eq!(encoded, Ok(()), "counts and lengths are the code's");
        at = end;
    }
}

impl Stripes {
    /// Reads and writes stripes of these members.
    pub(crate) fn new(members: Rc<Members>) -> Result<Stripes, Error> {
        let shape = members.layout().shape;
        let code = Code::new(shape.data(), shape.parity()).map_err(|_| Error::Invalid("there is no such code"))?;
        Ok(Stripes { members, code, reads: Default::default() })
    }

    /// Writes data (no more than a stripe holds) to rows of a chunk, and waits until it is stable on all columns, or on all but one
    /// that has failed.
    pub(crate) async fn write(
        &self,
        data: &Rope,
        place: &ChunkPlace,
        row: u32,
        write: u32,
    ) -> Result<Stripe, NotWritten> {
        let layout = self.members.layout();
        let cut = layout.shape.cut(data.len());
        let id = StripeId { chunk: place.number, row, write };
        let Columns { columns, sums } = columns_of(data, &cut, &self.code, layout.seed, id);
        let mut pending = Pending::new();
        for (number, (column, region)) in columns.into_iter().zip(&place.columns).enumerate() {
            if column.is_empty() {
                continue;
            }
            let (member, region, offset) = (self.members.get(region.member), region.region, u64::from(row));
            pending.push(number, async move {
                let member = member.ok_or(DeviceError::NotConnected("a member that is not known".into()))?;
                member.write(region, offset * ROW_BYTES as u64, column).await
            });
        }
        let deadline = time::now() + PATIENCE;
        let mut failed: Vec<(usize, DeviceError)> = Vec::new();
        while let Some((column, result)) = pending.next_until(deadline).await {
            if let Err(error) = result {
                failed.push((column, error));
            }
        }
        failed.extend(pending.keys().map(|column| (*column, DeviceError::Aborted)));
        for (column, _) in &failed {
            if let Some(member) = self.members.get(place.columns[*column].member) {
                member.shun();
            }
        }
        if failed.len() > FAILED_MAX {
            // Commands of columns that have not failed have ended.
            let is_late = failed.iter().any(|(_, error)| error.outcome_unknown());
            return Err(NotWritten { error: not_written(place, &failed), is_late });
        }
        let missing = failed.iter().fold(0, |missing, (column, _)| missing | 1 << column);
        Ok(Stripe { id, length: data.len() as u32, missing, sums })
    }
}

fn not_written(place: &ChunkPlace, failed: &[(usize, DeviceError)]) -> Error {
    let told = |(column, error): &(usize, DeviceError)| format!("member {}: {error}", place.columns[*column].member);
    let told: Vec<String> = failed.iter().map(told).collect();
    if failed.iter().any(|(_, error)| matches!(error, DeviceError::OutOfSpace)) {
        return Error::NoSpace(told.join("; "));
    }
    Error::Unavailable(format!("a write failed on {} members: {}", failed.len(), told.join("; ")))
}

#[cfg(test)]
mod tests {
    use engine::rng::SplitMix;

    use super::*;
    use crate::data::shape::Shape;

    /// Against the plainest columns: all zeroes written out, parity of whole columns at once.
    #[test]
    fn columns_are_those_of_plain_arrays() {
        let mut rng = SplitMix(7);
        for (data, parity) in [(1, 1), (2, 1), (4, 2), (3, 4)] {
            let shape = Shape::new(data, parity).unwrap();
            let code = Code::new(data, parity).unwrap();
            for length in [1, 4096, 5000, 4096 * data + 1, 70_000, 300_000, shape.stripe_bytes_max() - 3] {
                let bytes: Vec<u8> = (0..length).map(|_| rng.draw() as u8).collect();
                let mut rope = Rope::default();
                let split = rng.index(length + 1);
                for part in [&bytes[..split], &bytes[split..]].into_iter().flat_map(|part| part.chunks(1 << 20)) {
                    rope.push(Buf::copy_from(part).freeze());
                }
                let cut = shape.cut(length);
                let id = StripeId { chunk: 1, row: 2, write: 3 };
                let found = columns_of(&rope, &cut, &code, SumSeed(5), id);
                let mut plain = bytes.clone();
                plain.resize(cut.width() * data, 0);
                let columns: Vec<&[u8]> = plain.chunks(cut.width()).collect();
                let mut made = vec![vec![0; cut.width()]; parity];
                let mut outs: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
                code.encode(&columns, &mut outs).unwrap();
                for (number, column) in columns.into_iter().chain(made.iter().map(Vec::as_slice)).enumerate() {
                    assert_eq!(&*found.columns[number], &column[..cut.filled(number)], "{data}+{parity} of {length}");
                }
                for number in 0..data {
                    for granule in 0..cut.granules(number) {
                        let part = &found.columns[number][granule * cut.granule()..];
                        let sum = SumSeed(5).sum(id, number, granule, &part[..part.len().min(cut.granule())]);
                        assert_eq!(found.sums[cut.sum_index(number, granule)], sum);
                    }
                }
            }
        }
    }

    #[test]
    fn a_buffer_in_one_piece_is_sent_as_it_is() {
        let view = Buf::zeroed(64 << 10).freeze();
        let shape = Shape::new(4, 2).unwrap();
        let cut = shape.cut(view.len());
        let id = StripeId { chunk: 1, row: 0, write: 0 };
        let rope = Rope::from(view.clone());
        let columns = columns_of(&rope, &cut, &Code::new(4, 2).unwrap(), SumSeed(0), id).columns;
        for (number, column) in columns.iter().take(4).enumerate() {
            assert_eq!(column.as_ptr(), view[number * cut.width()..].as_ptr(), "it was copied");
        }
    }
}
