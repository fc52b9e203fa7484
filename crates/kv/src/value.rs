//! A value: bytes in one or more buffers, as they were received or read, never gathered for their own sake.

use engine::{Buf, View};
use xxhash_rust::xxh3::Xxh3;

use crate::types::{ChecksumSeed, VALUE_PART_BYTES, checksum_of_parts};

/// Bytes of the segments that bytes are copied to: whole parts, so that each can be sent from where it lies.
const SEGMENT_BYTES: usize = 1 << 20;
const _: () = assert!(SEGMENT_BYTES.is_multiple_of(VALUE_PART_BYTES) && SEGMENT_BYTES <= engine::buf::BUF_BYTES_MAX);

/// An immutable value in segments. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Value {
    segments: Vec<View>,
}

impl Value {
    /// Concatenates segments.
    pub fn new(segments: Vec<View>) -> Value {
        Value { segments }
    }

    /// Copies bytes.
    pub fn copy_from(bytes: &[u8]) -> Value {
        Value { segments: bytes.chunks(SEGMENT_BYTES).map(|chunk| Buf::copy_from(chunk).freeze()).collect() }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.len()).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its parts, in order.
    pub fn segments(&self) -> &[View] {
        &self.segments
    }

    /// One copy of it all.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.segments.iter().for_each(|segment| bytes.extend_from_slice(segment));
        bytes
    }

    /// Whether it is exactly these bytes.
    pub fn equals(&self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        self.segments.iter().all(|segment| match rest.strip_prefix(&segment[..]) {
            Some(behind) => {
                rest = behind;
                true
            }
            None => false,
        }) && rest.is_empty()
    }

    /// Its bytes with `part` in place of those from `offset` on; zeroes where it was shorter. One copy of it all.
    pub fn overwritten(&self, offset: usize, part: &[u8]) -> Value {
        let length = self.len().max(offset + part.len());
        let segment = |start: usize| {
            let end = length.min(start + SEGMENT_BYTES);
            let mut buf = Buf::zeroed(end - start);
            self.copy_to(start, &mut buf);
            let (from, to) = (start.max(offset), end.min(offset + part.len()));
            if from < to {
                buf[from - start..to - start].copy_from_slice(&part[from - offset..to - offset]);
            }
            buf.freeze()
        };
        Value { segments: (0..length).step_by(SEGMENT_BYTES).map(segment).collect() }
    }

    /// Its checksum for the operation that wrote it: [`crate::types::value_checksum`] of the whole, or, beyond
    /// [`VALUE_PART_BYTES`], [`checksum_of_parts`].
    pub fn checksum(&self, seed: ChecksumSeed) -> u64 {
        let new = || Xxh3::with_seed(seed.0);
        let (mut hasher, mut room, mut parts) = (new(), VALUE_PART_BYTES, Vec::new());
        for mut rest in self.segments.iter().map(|segment| &segment[..]) {
            while !rest.is_empty() {
                if room == 0 {
                    parts.push(std::mem::replace(&mut hasher, new()).digest());
                    room = VALUE_PART_BYTES;
                }
                let (now, later) = rest.split_at(rest.len().min(room));
                hasher.update(now);
                (rest, room) = (later, room - now.len());
            }
        }
        let last = hasher.digest();
        if parts.is_empty() { last } else { checksum_of_parts(seed, parts.into_iter().chain([last])) }
    }

    /// Bytes `from..from + len`, padded with zeroes to a multiple of `block` and fit for direct I/O: a slice of a segment
    /// where that is possible, else the one copy.
    pub fn padded(&self, from: usize, len: usize, block: usize) -> View {
        let mut start = 0;
        for segment in &self.segments {
            let end = start + segment.len();
            if from >= start && from + len <= end && len.is_multiple_of(block) {
                let slice = segment.slice(from - start..from - start + len);
                if (slice.as_ptr() as usize).is_multiple_of(engine::buf::ALIGN) {
                    return slice;
                }
            }
            start = end;
        }
        let mut buf = Buf::zeroed(len.next_multiple_of(block));
        self.copy_to(from, &mut buf[..len]);
        buf.freeze()
    }

    /// The whole in one piece: its only segment, or a copy. At most [`engine::buf::BUF_BYTES_MAX`] bytes.
    pub fn contiguous(&self) -> View {
        match self.segments.as_slice() {
            [] => View::default(),
            [segment] => segment.clone(),
            _ => self.padded(0, self.len(), 1),
        }
    }

    fn copy_to(&self, from: usize, out: &mut [u8]) {
        let (mut start, mut filled) = (0, 0);
        for segment in &self.segments {
            let end = start + segment.len();
            let at = from + filled;
            if at >= start && at < end && filled < out.len() {
                let count = (end - at).min(out.len() - filled);
                out[filled..filled + count].copy_from_slice(&segment[at - start..at - start + count]);
                filled += count;
            }
            start = end;
        }
    }
}

impl From<View> for Value {
    fn from(view: View) -> Value {
        Value { segments: vec![view] }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::{ChecksumKey, OpId, value_checksum};

    #[test]
    fn checksum_of_a_long_value_is_that_of_its_parts_whatever_its_segments() {
        let seed = ChecksumKey::new(1).of(OpId { host: 3, sequence: 4 });
        let bytes: Vec<u8> = (0..2 * VALUE_PART_BYTES + 7).map(|at| (at / 100) as u8).collect();
        let expected = checksum_of_parts(seed, bytes.chunks(VALUE_PART_BYTES).map(|part| value_checksum(seed, part)));
        for segment in [1000, VALUE_PART_BYTES, 1 << 20] {
            let value = Value::new(bytes.chunks(segment).map(|chunk| Buf::copy_from(chunk).freeze()).collect());
            assert_eq!(value.checksum(seed), expected);
        }
        let one = Value::copy_from(&bytes[..VALUE_PART_BYTES]);
        assert_eq!(one.checksum(seed), value_checksum(seed, &bytes[..VALUE_PART_BYTES]));
    }

    proptest! {
        #[test]
        fn segments_do_not_matter(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..6),
            from in 0usize..100, len in 0usize..100)
        {
            let whole: Vec<u8> = parts.concat();
            let value = Value::new(parts.iter().map(|part| Buf::copy_from(part).freeze()).collect());
            let seed = ChecksumKey::new(1).of(OpId { host: 3, sequence: 4 });
            prop_assert_eq!(value.to_vec(), whole.clone());
            prop_assert!(value.equals(&whole) && !value.equals(&[&whole[..], b"x"].concat()));
            prop_assert_eq!(value.checksum(seed), value_checksum(seed, &whole));
            prop_assert_eq!(&value.contiguous()[..], &whole[..]);
            let (from, len) = (from.min(whole.len()), len.min(whole.len() - from.min(whole.len())));
            let mut padded = whole[from..from + len].to_vec();
            padded.resize(len.next_multiple_of(16), 0);
            prop_assert_eq!(&value.padded(from, len, 16)[..], &padded[..]);
        }
    }
}
