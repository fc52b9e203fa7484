//! The stream that a snapshot is kept in, or carried by: all bytes of it, or what makes it of an older one. Pure bytes, no I/O; the
//! page `docs/volume-stream.md` has the layout.
//!
//! Invariants:
//! - A stream ends with a trailer that has the checksum of all bytes before it, and nothing follows: whatever is damaged, left out,
//!   put elsewhere or cut off is an error, at its place where its own checksum tells, and at the end in any case.
//! - Extents rise and do not overlap, so that each block is said once; of an item no more is held than [`EXTENT_BYTES_MAX`].
//! - Nothing of an extent is given out before its checksum was right.

use crc_fast::{CrcAlgorithm::Crc64Nvme, Digest};
use device::sealed;

use crate::snapshot_name::{NAME_BYTES, SnapshotId, SnapshotName};

const MAGIC: [u8; 8] = *b"YAGURAVS";
/// The format that this code writes, and the only one that it reads.
const FORMAT: u32 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 128;
/// Bytes before the data of an extent.
const HEAD_BYTES: usize = 32;
/// Those of them before the checksum.
const CHECKED_BYTES: usize = 24;
/// Bytes of the trailer.
const TRAILER_BYTES: usize = 56;
/// Data of an extent, at most. Chosen: what a read of a volume brings at once; whoever reads a stream holds one of them.
pub const EXTENT_BYTES_MAX: usize = 1 << 20;
/// Block sizes, as namespaces have them.
const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 512..=65_536;

const DATA: u8 = 1;
const ZEROES: u8 = 2;
const TRAILER: u8 = 3;

/// Why bytes are no stream, or not a whole one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StreamError {
    /// It begins with something else.
    #[error("it is no stream of a volume")]
    NotOne,
    /// A later version has written it.
    #[error("a later version has written the stream: its format is {0}")]
    Newer(u32),
    /// Its header has a wrong checksum.
    #[error("the header of the stream is damaged")]
    Header,
    /// A field has a value that nobody writes.
    #[error("the stream is damaged: {0} at its byte {1}")]
    Field(&'static str, u64),
    /// A checksum is wrong.
    #[error("the stream is damaged: the checksum of what begins at its byte {0} is wrong")]
    Checksum(u64),
    /// The checksum over all is wrong, or the counts are: something is missing, or is there twice.
    #[error("the stream is damaged: it is not what its trailer says")]
    NotAsWritten,
    /// It has no trailer.
    #[error("the stream is cut off at its byte {0}")]
    Cut(u64),
    /// Something follows.
    #[error("something follows the end of the stream at its byte {0}")]
    Follows(u64),
}

/// What a stream is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The snapshot that it makes.
    pub to: SnapshotId,
    /// The snapshot of the same volume, and its size in bytes, that it is to be applied to; `None`: to nothing, it has everything.
    pub from: Option<(SnapshotName, u64)>,
    /// Size of the volume, bytes.
    pub bytes: u64,
    /// Extents are of whole blocks of this size.
    pub block_size: u32,
}

impl Header {
    /// The snapshot that it is to be applied to.
    pub fn base(&self) -> Option<SnapshotId> {
        self.from.map(|(name, _)| SnapshotId { volume: self.to.volume, name })
    }

    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut block = [0; HEADER_BYTES];
        let (from, from_bytes) = self.from.map_or(([0; NAME_BYTES], 0), |(name, bytes)| (name.to_bytes(), bytes));
        block[12..16].copy_from_slice(&self.block_size.to_le_bytes());
        block[24..40].copy_from_slice(&self.to.volume.to_le_bytes());
        block[40..48].copy_from_slice(&self.bytes.to_le_bytes());
        block[48..72].copy_from_slice(&self.to.name.to_bytes());
        block[72..96].copy_from_slice(&from);
        block[96..104].copy_from_slice(&from_bytes.to_le_bytes());
        sealed::seal(&mut block, MAGIC, FORMAT);
        block
    }

    fn decode(block: &[u8; HEADER_BYTES]) -> Result<Header, StreamError> {
        match sealed::format(block) {
            _ if !block.starts_with(&MAGIC) => return Err(StreamError::NotOne),
            _ if !sealed::is_whole(block) => return Err(StreamError::Header),
            format if format > FORMAT => return Err(StreamError::Newer(format)),
            FORMAT => {}
            _ => return Err(StreamError::Field("a format", 8)),
        }
        let name = |at: usize| block[at..].first_chunk().and_then(SnapshotName::from_bytes);
        let wrong = |at: u64| StreamError::Field("a field of the header", at);
        let volume = block[24..].first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes));
        let to = name(48).flatten().ok_or(wrong(48))?;
        let from = name(72).ok_or(wrong(72))?;
        let (bytes, from_bytes) = (u64_at(block, 40), u64_at(block, 96));
        let block_size = u32_at(block, 12);
        let is_sized = |bytes: u64| bytes > 0 && bytes.is_multiple_of(block_size.into());
        if !BLOCK_SIZES.contains(&block_size) || !block_size.is_power_of_two() {
            return Err(wrong(12));
        }
        if !is_sized(bytes) || from.map_or(from_bytes > 0, |_| !is_sized(from_bytes) || from_bytes > bytes) {
            return Err(wrong(40));
        }
        // Of the snapshots of a volume the later one has the greater name.
        if from.is_some_and(|from| from >= to) {
            return Err(wrong(72));
        }
        if block[104..].iter().any(|&byte| byte != 0) {
            return Err(wrong(104));
        }
        let from = from.map(|name| (name, from_bytes));
        Ok(Header { to: SnapshotId { volume, name: to }, from, bytes, block_size })
    }
}

/// What there is in a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Extents of data.
    pub extents: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Extents that are zeroes.
    pub zero_extents: u64,
    /// Their bytes.
    pub zero_bytes: u64,
}

/// What comes next in a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// The first.
    Header(Header),
    /// The bytes that are at an offset.
    Data {
        /// Where, in bytes.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// Zeroes.
    Zeroes {
        /// Where, in bytes.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// The last: it was all that was written.
    End(Counts),
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn checksum(head: &[u8], data: &[u8]) -> u64 {
    let mut digest = Digest::new(Crc64Nvme);
    digest.update(head);
    digest.update(data);
    digest.finalize()
}

/// The checksum over all has an extent, without its own checksum: bytes and their checksum behind them change what a checksum over
/// both is in no way, whatever the bytes are, so that an extent of zeroes could be any other.
fn all_have(all: &mut Digest, extent: &[u8]) {
    let (head, data) = extent.split_at(HEAD_BYTES);
    all.update(&head[..CHECKED_BYTES]);
    all.update(data);
}

/// Writes a stream: what each of these returns is to be written behind what was returned before.
pub struct Encoder {
    all: Digest,
    counts: Counts,
}

impl Encoder {
    /// Begins.
    pub fn new(header: &Header) -> (Encoder, Vec<u8>) {
        let mut encoder = Encoder { all: Digest::new(Crc64Nvme), counts: Counts::default() };
        let block = header.encode();
        encoder.all.update(&block);
        (encoder, block.to_vec())
    }

    /// What there is so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Some blocks, [`EXTENT_BYTES_MAX`] bytes at most, behind those before.
    pub fn data(&mut self, offset: u64, data: &[u8]) -> Vec<u8> {
        debug_assert!(!data.is_empty() && data.len() <= EXTENT_BYTES_MAX, "an extent is bounded");
        (self.counts.extents, self.counts.bytes) = (self.counts.extents + 1, self.counts.bytes + data.len() as u64);
        self.extent(DATA, offset, data.len() as u64, data)
    }

    /// Blocks of zeroes, behind those before.
    pub fn zeroes(&mut self, offset: u64, bytes: u64) -> Vec<u8> {
        self.counts.zero_extents += 1;
        self.counts.zero_bytes += bytes;
        self.extent(ZEROES, offset, bytes, &[])
    }

    fn extent(&mut self, kind: u8, offset: u64, length: u64, data: &[u8]) -> Vec<u8> {
        let mut item = Vec::with_capacity(HEAD_BYTES + data.len());
        item.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
        item.extend(offset.to_le_bytes());
        item.extend(length.to_le_bytes());
        item.extend(checksum(&item, data).to_le_bytes());
        item.extend(data);
        all_have(&mut self.all, &item);
        item
    }

    /// The trailer.
    pub fn end(self) -> Vec<u8> {
        let Counts { extents, bytes, zero_extents, zero_bytes } = self.counts;
        let mut trailer = vec![TRAILER, 0, 0, 0, 0, 0, 0, 0];
        for number in [extents, bytes, zero_extents, zero_bytes, self.all.finalize()] {
            trailer.extend(number.to_le_bytes());
        }
        trailer.extend(checksum(&trailer, &[]).to_le_bytes());
        trailer
    }
}

/// Reads a stream: bytes in, items out.
pub struct Decoder {
    /// What came and is not read, from `at` on.
    buffer: Vec<u8>,
    at: usize,
    /// Bytes of the stream that were read.
    read: u64,
    all: Digest,
    header: Option<Header>,
    /// Where the last extent ends.
    end: u64,
    counts: Counts,
    is_ended: bool,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder {
            buffer: Vec::new(),
            at: 0,
            read: 0,
            all: Digest::new(Crc64Nvme),
            header: None,
            end: 0,
            counts: Counts::default(),
            is_ended: false,
        }
    }
}

impl Decoder {
    /// Bytes have come. They are held until they are read: whoever calls this asks for all items before the next call.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// No more bytes will come.
    ///
    /// # Errors
    /// The stream is cut off.
    pub fn finish(&self) -> Result<(), StreamError> {
        match self.is_ended {
            true => Ok(()),
            false if self.read == 0 && self.buffer.len() < MAGIC.len() => Err(StreamError::NotOne),
            false => Err(StreamError::Cut(self.read + (self.buffer.len() - self.at) as u64)),
        }
    }

    /// The next item; `None`: more bytes are needed.
    ///
    /// # Errors
    /// The stream is damaged. It stays so.
    pub fn item(&mut self) -> Result<Option<Item>, StreamError> {
        let rest = &self.buffer[self.at..];
        if self.is_ended {
            return if rest.is_empty() { Ok(None) } else { Err(StreamError::Follows(self.read)) };
        }
        let Some(header) = self.header else {
            if rest.len() >= MAGIC.len() && !rest.starts_with(&MAGIC) {
                return Err(StreamError::NotOne);
            }
            let Some(block) = rest.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
            let header = Header::decode(block)?;
            self.all.update(block);
            self.header = Some(header);
            self.take(HEADER_BYTES);
            return Ok(Some(Item::Header(header)));
        };
        match rest.first() {
            None => Ok(None),
            Some(&(DATA | ZEROES)) => self.extent(&header),
            Some(&TRAILER) => self.trailer(),
            Some(_) => Err(StreamError::Field("an item of an unknown kind", self.read)),
        }
    }

    /// So many bytes are read.
    fn take(&mut self, bytes: usize) {
        self.at += bytes;
        self.read += bytes as u64;
    }

    fn extent(&mut self, header: &Header) -> Result<Option<Item>, StreamError> {
        let Some(head) = self.buffer[self.at..].first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let (is_data, offset, length) = (head[0] == DATA, u64_at(head, 8), u64_at(head, 16));
        let wrong = |what| Err(StreamError::Field(what, self.read));
        if head[1..8] != [0; 7] {
            return wrong("an item with a byte that is not zero");
        }
        let block = u64::from(header.block_size);
        let Some(end) = offset.checked_add(length).filter(|&end| end <= header.bytes && length > 0) else {
            return wrong("an extent that the volume has not");
        };
        if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            return wrong("an extent that is not of whole blocks");
        }
        if offset < self.end {
            return wrong("an extent that lies before the end of another");
        }
        if is_data && length > EXTENT_BYTES_MAX as u64 {
            return wrong("an extent that is too long");
        }
        let data_bytes = if is_data { length as usize } else { 0 };
        let Some(data) = self.buffer[self.at + HEAD_BYTES..].get(..data_bytes) else { return Ok(None) };
        if checksum(&head[..CHECKED_BYTES], data) != u64_at(head, CHECKED_BYTES) {
            return Err(StreamError::Checksum(self.read));
        }
        let item = match is_data {
            true => Item::Data { offset, bytes: data.to_vec() },
            false => Item::Zeroes { offset, bytes: length },
        };
        let Counts { extents, bytes, zero_extents, zero_bytes } = &mut self.counts;
        let (count, sum) = if is_data { (extents, bytes) } else { (zero_extents, zero_bytes) };
        (*count, *sum) = (*count + 1, *sum + length);
        self.end = end;
        all_have(&mut self.all, &self.buffer[self.at..self.at + HEAD_BYTES + data_bytes]);
        self.take(HEAD_BYTES + data_bytes);
        Ok(Some(item))
    }

    fn trailer(&mut self) -> Result<Option<Item>, StreamError> {
        let Some(trailer) = self.buffer[self.at..].first_chunk::<TRAILER_BYTES>() else { return Ok(None) };
        if checksum(&trailer[..48], &[]) != u64_at(trailer, 48) {
            return Err(StreamError::Checksum(self.read));
        }
        if trailer[1..8] != [0; 7] {
            return Err(StreamError::Field("a trailer with a byte that is not zero", self.read));
        }
        let [extents, bytes, zero_extents, zero_bytes] = [8, 16, 24, 32].map(|at| u64_at(trailer, at));
        let said = Counts { extents, bytes, zero_extents, zero_bytes };
        if said != self.counts || u64_at(trailer, 40) != self.all.clone().finalize() {
            return Err(StreamError::NotAsWritten);
        }
        self.is_ended = true;
        self.take(TRAILER_BYTES);
        Ok(Some(Item::End(said)))
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
