//! Extents: runs of data pages in the heap, for values that do not fit a page or find no room in one.
//!
//! - An extent is written by exactly one command, which is never sent again. A second one that lands late would overwrite the
//!   value of whoever owns the place by then. In doubt the extent is abandoned: it stays claimed, and nobody refers to it.
//! - A value longer than [`EXTENT_BYTES`] is cut into several, listed in an index extent. A few are under way at once; each is
//!   a view of the value where its memory allows that, so a value of 64 MiB is not copied for each of its members.
//!
//! ```text
//!   0  checksum   u64    of the rest, under the operation
//!   8  count      u32
//!  12  zero       u32
//!  16  parts, 32 bytes each: first heap page u64, length u32, zero u32, checksum u64, tag u64
//! ```

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use device::{Durability, Namespace};
use engine::task::TaskSet;
use engine::{Buf, View};
use pool::geometry::GROUP_DATA_PAGES;
use pool::{HeapPage, TablePage};

use super::group::place;
use super::ledger::Leftover;
use super::{Table, TableError, bump, uncertain};
use crate::page::{EXTENT_PAGES_MAX, PlaceKind, Reference};
use crate::types::{ChecksumSeed, OpId, VALUE_BYTES_MAX, VALUE_PART_BYTES, checksum_of_parts, value_checksum};
use crate::value::Value;

/// Bytes of the longest extent: what every namespace takes in one command, atomic or not.
pub const EXTENT_BYTES: usize = VALUE_PART_BYTES;
/// Most extents of a value.
const PARTS_MAX: usize = VALUE_BYTES_MAX.div_ceil(EXTENT_BYTES);
/// Extents of one value under way at once on one member. Guessed: 1 MiB fills a fast network's round trip.
const PARTS_AT_ONCE_MAX: usize = 8;
const INDEX_FIXED_BYTES: usize = 16;
const PART_BYTES: usize = 32;
const _: () = assert!(EXTENT_BYTES / pool::geometry::PAGE_SIZE_MIN as usize <= EXTENT_PAGES_MAX);
const _: () = assert!(INDEX_FIXED_BYTES + PARTS_MAX * PART_BYTES <= EXTENT_BYTES && PARTS_MAX <= u16::MAX as usize);
/// Writes of one extent that may end in doubt before the value is given up: each costs an abandoned extent. Guessed.
const WRITES_MAX: usize = 2;

/// One extent of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) place: HeapPage,
    pub(super) length: u32,
    checksum: u64,
    pub(super) tag: u64,
}

impl Table {
    /// Writes a value of the key at home in `home` to the heap, stable when done.
    pub(super) async fn place_extents(
        &self,
        home: TablePage,
        op: OpId,
        value: &Value,
    ) -> Result<Reference, TableError> {
        if value.len() <= EXTENT_BYTES {
            let part = self.write_extent(home, op, value, 0, value.len()).await?;
            let (place, checksum, copy) = (part.place.0, part.checksum, part.tag);
            return Ok(Reference { kind: PlaceKind::Extent, parts: 1, length: part.length, place, checksum, copy });
        }
        let mut parts = Vec::with_capacity(value.len().div_ceil(EXTENT_BYTES));
        let written = self.write_parts(home, op, value, &mut parts).await;
        match written {
            Ok(index) => Ok(Reference {
                kind: PlaceKind::Index,
                parts: parts.len() as u16,
                length: index.length,
                place: index.place.0,
                checksum: checksum_of_parts(self.checksums.of(op), parts.iter().map(|part| part.checksum)),
                copy: index.tag,
            }),
            Err(error) => {
                // Nobody has ever seen these.
                for part in parts {
                    self.release_or_keep(part.place.group(), part.tag).await;
                }
                Err(error)
            }
        }
    }

    /// Writes a value's parts, some at once, then their index. `parts`: what was written, in order unless it failed.
    async fn write_parts(
        &self,
        home: TablePage,
        op: OpId,
        value: &Value,
        parts: &mut Vec<Part>,
    ) -> Result<Part, TableError> {
        let mut under_way = TaskSet::new(PARTS_AT_ONCE_MAX);
        let mut starts = (0..value.len()).step_by(EXTENT_BYTES);
        let (mut failure, mut written) = (None, Vec::with_capacity(parts.capacity()));
        loop {
            while failure.is_none() && !under_way.is_full() {
                let Some(from) = starts.next() else { break };
                let length = EXTENT_BYTES.min(value.len() - from);
                let write = async move { (from, self.write_extent(home, op, value, from, length).await) };
                let pushed = under_way.push(write).is_ok();
                debug_assert!(pushed, "invariant: it is not full");
            }
            match under_way.next().await {
                Some((_, (from, Ok(part)))) => written.push((from, part)),
                Some((_, (_, Err(error)))) => failure = Some(error),
                None => break,
            }
        }
        written.sort_unstable_by_key(|(from, _)| *from);
        parts.extend(written.into_iter().map(|(_, part)| part));
        if let Some(error) = failure {
            return Err(error);
        }
        let index = Value::from(encode_index(self.checksums.of(op), parts));
        self.write_extent(home, op, &index, 0, index.len()).await
    }

    /// Claims an extent and writes `length` bytes of `value` from `from` on to it.
    async fn write_extent(
        &self,
        home: TablePage,
        op: OpId,
        value: &Value,
        from: usize,
        length: usize,
    ) -> Result<Part, TableError> {
        let page_bytes = self.layout.page_bytes();
        let pages = length.div_ceil(page_bytes).max(1);
        let bytes = if length == 0 { Buf::zeroed(page_bytes).freeze() } else { value.padded(from, length, page_bytes) };
        let mut writes = 0;
        loop {
            let tag = engine::task::random_u64().max(1);
            let (place, written, bound) = self.write_new(home, &bytes, pages, tag).await?;
            bump(&self.stats.extents);
            writes += 1;
            match (written, bound) {
                (Ok(()), true) => {
                    let checksum =
                        value_checksum(self.checksums.of(op), if length == 0 { &[] } else { &bytes[..length] });
                    return Ok(Part { place, length: length as u32, checksum, tag });
                }
                // The stock was gone: another place.
                (Ok(()), false) => {}
                (Err(error), _) if uncertain(&error) => {
                    bump(&self.stats.abandoned);
                    if writes == WRITES_MAX {
                        return Err(error.into());
                    }
                }
                (Err(error), _) => {
                    self.release_or_keep(place.group(), tag).await;
                    return Err(error.into());
                }
            }
        }
    }

    /// Writes `bytes` to an extent of `tag`: one of the stock, which is bound meanwhile, or one that is claimed first. Returns
    /// where, what became of the write, and whether the extent is `tag`'s.
    async fn write_new(
        &self,
        home: TablePage,
        bytes: &View,
        pages: usize,
        tag: u64,
    ) -> Result<(HeapPage, Result<(), device::Error>, bool), TableError> {
        let Some(run) = self.take_stock(pages) else {
            let place = self.claim(home, pages, tag).await?;
            let written = self.namespace.write(self.layout.data(place), bytes.clone(), Durability::Stable).await;
            return Ok((place, written, true));
        };
        let place = place(run.group, run.slot);
        let write = self.namespace.write(self.layout.data(place), bytes.clone(), Durability::Stable);
        let bind = self.bind_stock(run, tag, home);
        let (written, bound) = match run.is_fresh() {
            true => both(write, bind).await,
            false => match bind.await {
                Ok(true) => (write.await, Ok(true)),
                bound => (Ok(()), bound),
            },
        };
        let in_doubt = written.as_ref().is_err_and(uncertain);
        match bound {
            Ok(bound) => {
                if !bound {
                    tracing::warn!(place = place.0, "claimed pages were taken away");
                }
                Ok((place, written, bound))
            }
            // Nobody can bind anything there until it is rebuilt, and then the place is set aside: another one.
            Err(error) if error.group_is_damaged() => {
                self.forget_stock(run.group);
                Ok((place, written, false))
            }
            // The write may yet land: the pages stay as they are, whichever tag they have.
            Err(error) if in_doubt => {
                bump(&self.stats.abandoned);
                Err(error)
            }
            Err(error) => {
                if error.may_pass() {
                    self.keep(Leftover::Extent(run.group, tag));
                }
                self.return_run(run).await;
                Err(error)
            }
        }
    }

    /// Frees the extents of a reference that is gone from its home page. The index goes last: nothing else tells where the
    /// parts are, should this have to be tried again.
    pub(super) async fn free_extents(&self, reference: &Reference, op: OpId) -> Result<(), TableError> {
        let parts = match reference.kind {
            PlaceKind::Index => self.own_parts(reference, op).await,
            PlaceKind::Guest | PlaceKind::Extent => Ok(Vec::new()),
        };
        let parts = match parts {
            Ok(parts) => parts,
            Err(error) if error.may_pass() => return Err(error),
            // Where the parts were is lost.
            Err(_) => Vec::new(),
        };
        for part in parts {
            match self.release(part.place.group(), part.tag).await {
                Err(error) if error.may_pass() => return Err(error),
                // A damaged group keeps what it holds; the others need not.
                Ok(()) | Err(_) => {}
            }
        }
        self.release(HeapPage(reference.place).group(), reference.copy).await
    }

    /// The parts that the index of a reference lists, as long as that is there. It may have been freed before, by somebody who did
    /// not hear so: what verifies at its place is then another's, of an operation of the same id even (ids of conditional
    /// operations are those of the put before), and its parts are in use. A tag is claimed once: what was read before it is seen
    /// to own the place was written under it.
    async fn own_parts(&self, reference: &Reference, op: OpId) -> Result<Vec<Part>, TableError> {
        let Some(parts) = self.read_index(reference, op).await? else { return Ok(Vec::new()) };
        let place = HeapPage(reference.place);
        let owned = self.read_allocation(place.group()).await?.owns(place.slot() as usize, reference.copy);
        Ok(if owned { parts } else { Vec::new() })
    }

    /// The value a reference names, verified; `None` if what lies there is not it.
    pub(super) async fn fetch_extents(
        &self,
        reference: &Reference,
        length: usize,
        op: OpId,
    ) -> Result<Option<Value>, TableError> {
        let seed = self.checksums.of(op);
        if reference.kind != PlaceKind::Index {
            let bytes = self.read_extent(HeapPage(reference.place), length).await?;
            return Ok(bytes.filter(|bytes| value_checksum(seed, bytes) == reference.checksum).map(Value::from));
        }
        let Some(parts) = self.read_index(reference, op).await? else { return Ok(None) };
        let listed = parts.iter().map(|part| part.length as usize).sum::<usize>();
        if listed != length || checksum_of_parts(seed, parts.iter().map(|part| part.checksum)) != reference.checksum {
            return Ok(None);
        }
        let mut under_way = TaskSet::new(PARTS_AT_ONCE_MAX);
        let mut segments = vec![View::default(); parts.len()];
        let mut waiting = parts.iter().enumerate();
        loop {
            while !under_way.is_full() {
                let Some((index, part)) = waiting.next() else { break };
                let read = async move { (index, self.read_extent(part.place, part.length as usize).await) };
                let pushed = under_way.push(read).is_ok();
                debug_assert!(pushed, "invariant: it is not full");
            }
            match under_way.next().await {
                Some((_, (index, bytes))) => match bytes? {
                    Some(bytes) if value_checksum(seed, &bytes) == parts[index].checksum => segments[index] = bytes,
                    _ => return Ok(None),
                },
                None => return Ok(Some(Value::new(segments))),
            }
        }
    }

    pub(super) async fn read_index(&self, reference: &Reference, op: OpId) -> Result<Option<Vec<Part>>, TableError> {
        let bytes = self.read_extent(HeapPage(reference.place), reference.length as usize).await?;
        Ok(bytes.and_then(|bytes| decode_index(self.checksums.of(op), &bytes, usize::from(reference.parts))))
    }

    /// Where the parts of a value lie and under which tags, for tests that look from outside.
    #[cfg(test)]
    pub(super) async fn index_places(&self, reference: &Reference, op: OpId) -> Vec<(HeapPage, u64)> {
        let parts = self.read_index(reference, op).await.unwrap().unwrap();
        parts.iter().map(|part| (part.place, part.tag)).collect()
    }

    /// `length` bytes from `place` on; `None` if no extent of ours can lie there.
    async fn read_extent(&self, place: HeapPage, length: usize) -> Result<Option<View>, TableError> {
        let page_bytes = self.layout.page_bytes();
        let pages = length.div_ceil(page_bytes).max(1);
        let inside = place.0 < self.layout.geometry.heap_pages();
        if !inside || length > EXTENT_BYTES || place.slot() as usize + pages > GROUP_DATA_PAGES as usize {
            return Ok(None);
        }
        let bytes = self.read_at(self.layout.data(place), pages * page_bytes).await?;
        Ok(Some(bytes.slice(..length)))
    }
}

/// Waits for both.
pub(crate) async fn both<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(output) = one.as_mut().poll(cx)
        {
            first = Some(output);
        }
        if second.is_none()
            && let Poll::Ready(output) = other.as_mut().poll(cx)
        {
            second = Some(output);
        }
        if first.is_none() || second.is_none() {
            return Poll::Pending;
        }
        first.take().zip(second.take()).map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

fn encode_index(seed: ChecksumSeed, parts: &[Part]) -> View {
    let mut bytes = Buf::zeroed(INDEX_FIXED_BYTES + parts.len() * PART_BYTES);
    bytes[8..12].copy_from_slice(&(parts.len() as u32).to_le_bytes());
    for (part, slot) in parts.iter().zip(bytes[INDEX_FIXED_BYTES..].chunks_exact_mut(PART_BYTES)) {
        slot[..8].copy_from_slice(&part.place.0.to_le_bytes());
        slot[8..12].copy_from_slice(&part.length.to_le_bytes());
        slot[16..24].copy_from_slice(&part.checksum.to_le_bytes());
        slot[24..].copy_from_slice(&part.tag.to_le_bytes());
    }
    let checksum = value_checksum(seed, &bytes[8..]);
    bytes[..8].copy_from_slice(&checksum.to_le_bytes());
    bytes.freeze()
}

/// `None` unless `bytes` are the index of `count` parts that `op` wrote.
fn decode_index(seed: ChecksumSeed, bytes: &[u8], count: usize) -> Option<Vec<Part>> {
    if bytes.len() != INDEX_FIXED_BYTES + count * PART_BYTES || count > PARTS_MAX {
        return None;
    }
    let u64_at = |bytes: &[u8], at: usize| bytes[at..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
    if u64_at(bytes, 0) != value_checksum(seed, &bytes[8..]) || u64_at(bytes, 8) != count as u64 {
        return None;
    }
    let part = |slot: &[u8]| {
        let length = u64_at(slot, 8);
        let (place, checksum, tag) = (HeapPage(u64_at(slot, 0)), u64_at(slot, 16), u64_at(slot, 24));
        let shaped = tag != 0 && length <= EXTENT_BYTES as u64;
        shaped.then_some(Part { place, length: length as u32, checksum, tag })
    };
    bytes[INDEX_FIXED_BYTES..].chunks_exact(PART_BYTES).map(part).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn index_round_trip_and_owner() {
        let key = crate::types::ChecksumKey::new(7);
        let op = |sequence| key.of(OpId { host: 1, sequence });
        let parts = vec![Part { place: HeapPage(5), length: 131_072, checksum: 6, tag: 7 }; 8];
        let bytes = encode_index(op(1), &parts);
        assert_eq!(decode_index(op(1), &bytes, 8).as_ref(), Some(&parts));
        assert_eq!(decode_index(op(2), &bytes, 8), None, "an index of another operation is none");
        assert_eq!(decode_index(op(1), &bytes, 7), None);
        for (length, tag) in [(131_073, 7), (5, 0)] {
            let hostile = encode_index(op(1), &[Part { length, tag, ..parts[0] }]);
            assert_eq!(decode_index(op(1), &hostile, 1), None, "{length} bytes of {tag}");
        }
        let other_pool = crate::types::ChecksumKey::new(8).of(OpId { host: 1, sequence: 1 });
        assert_eq!(
            decode_index(other_pool, &bytes, 8),
            None,
            "what is written for no seed of the pool's does not verify"
        );
    }

    proptest! {
        #[test]
        fn hostile_index_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), count in 0usize..10) {
            prop_assert_eq!(decode_index(crate::types::ChecksumKey::new(7).of(OpId::default()), &bytes, count), None);
        }
    }
}
