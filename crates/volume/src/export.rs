//! A snapshot as a stream ([`crate::stream`]): all of it, or what it differs from an older one in.
//!
//! Where to look says a target that has both ([`SnapshotView::differences`]); where none can tell, both are read and compared. To
//! say blocks in which there is no difference is as good. Zeroes are said in few bytes; of all of a snapshot they are left out.

use std::ops::Range;

use device::{Error as DeviceError, Lba, Namespace, NamespaceInfo};
use engine::Buf;
use engine::job::Job;
use engine::task::LocalFuture;

use crate::backup::{BackupError, Sink};
use crate::stream::{Counts, EXTENT_BYTES_MAX, Encoder, Header};
use crate::view::SnapshotView;

/// Zeroes are looked for in pieces of so many bytes, at least. Chosen: what a file system and a drive have as a unit; smaller
/// extents cost more than they save.
const GRAIN_BYTES: usize = 4096;
/// Differences that are listed, at most: the last one has all that follow. Guessed: 16 MiB of them.
const LISTED_MAX: usize = 1 << 20;

/// Where two snapshots differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Differences {
    /// Ranges of bytes, ascending; elsewhere they are the same.
    pub ranges: Vec<Range<u64>>,
    /// Whether both were read and compared, since no target could tell.
    pub is_compared: bool,
}

impl Differences {
    /// Bytes in which there may be a difference.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }
}

/// What was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exported {
    /// What it is of.
    pub header: Header,
    /// What there is in it.
    pub counts: Counts,
    /// Whether both snapshots were read, since no target could tell where they differ.
    pub is_compared: bool,
}

/// Where a snapshot differs from an older one of the same volume (`None`: from zeroes).
///
/// # Errors
/// A snapshot can't be read; it is not the older one.
pub fn differences<'a>(
    to: &'a SnapshotView,
    from: Option<&'a SnapshotView>,
    job: &'a Job,
) -> LocalFuture<'a, Result<Differences, BackupError>> {
    Box::pin(async move {
        check(to, from)?;
        let block = u64::from(to.info().block_size);
        if let Some(told) = to.differences(from).await {
            let ranges = told.into_iter().map(|range| range.start * block..range.end * block).collect();
            return Ok(Differences { ranges, is_compared: false });
        }
        let mut found = Differences { ranges: Vec::new(), is_compared: true };
        let mut pieces = Pieces::new(to, from, None, job);
        while let Some(piece) = pieces.next().await? {
            for range in piece.changed() {
                let is_full = found.ranges.len() >= LISTED_MAX;
                match found.ranges.last_mut() {
                    Some(last) if last.end == range.start || is_full => last.end = range.end,
                    _ => found.ranges.push(range),
                }
            }
        }
        Ok(found)
    })
}

/// Writes a snapshot as a stream: what it differs from an older one in, or all of it.
///
/// # Errors
/// A snapshot can't be read, or the stream not be written; `from` is not the older one; the volume was a part
/// of another snapshot when this one was taken. What was written then is no whole stream.
pub fn export<'a>(
    to: &'a SnapshotView,
    from: Option<&'a SnapshotView>,
    job: &'a Job,
    sink: &'a mut dyn Sink,
) -> LocalFuture<'a, Result<Exported, BackupError>> {
    Box::pin(async move {
        check(to, from)?;
        // Imported, it would be taken for whole.
        if let Some(is) = to.part() {
            return Err(BackupError::InPart { of: to.id(), is: Box::new(is) });
        }
        let info = to.info();
        let header = Header {
            to: to.id(),
            from: from.map(|from| (from.id().name, from.info().bytes())),
            bytes: info.bytes(),
            block_size: info.block_size,
        };
        let told = to.differences(from).await;
        let is_compared = told.is_none() && from.is_some();
        let mut pieces = Pieces::new(to, from.filter(|_| is_compared), told, job);
        let mut written = Written::begin(&header, sink).await?;
        while let Some(piece) = pieces.next().await? {
            for range in piece.changed() {
                for (range, is_zero) in piece.runs(range) {
                    let offset = range.start - piece.offset;
                    let bytes = &piece.bytes[offset as usize..][..(range.end - range.start) as usize];
                    match (is_zero, from) {
                        (false, _) => written.data(range.start, bytes).await?,
                        (true, Some(_)) => written.zeroes(range).await?,
                        (true, None) => {}
                    }
                }
            }
        }
        Ok(Exported { header, counts: written.end().await?, is_compared })
    })
}

fn check(to: &SnapshotView, from: Option<&SnapshotView>) -> Result<(), BackupError> {
    let Some(from) = from else { return Ok(()) };
    let is_older = from.id().volume == to.id().volume && from.id().name < to.id().name;
    let fits = from.info().block_size == to.info().block_size && from.info().blocks <= to.info().blocks;
    if is_older && fits { Ok(()) } else { Err(BackupError::NotOlder { from: from.id(), to: to.id() }) }
}

/// A piece of a snapshot, with what the older one has there, where that is compared.
struct Piece {
    offset: u64,
    bytes: Buf,
    before: Option<Buf>,
    grain: usize,
}

impl Piece {
    fn grains(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.bytes.len()).step_by(self.grain).map(|at| at..(at + self.grain).min(self.bytes.len()))
    }

    /// Ranges of bytes of the volume in which there is, or may be, a difference.
    fn changed(&self) -> Vec<Range<u64>> {
        let Some(before) = &self.before else {
            return vec![self.place(0..self.bytes.len())];
        };
        let differing = self.grains().filter(|grain| self.bytes[grain.clone()] != before[grain.clone()]);
        merged(differing.map(|grain| (self.place(grain), false))).into_iter().map(|(range, _)| range).collect()
    }

    /// A range in runs that are zeroes, or are not.
    fn runs(&self, range: Range<u64>) -> Vec<(Range<u64>, bool)> {
        let within = self.grains().filter(|grain| range.contains(&self.place(grain.clone()).start));
        merged(within.map(|grain| (self.place(grain.clone()), is_zero(&self.bytes[grain]))))
    }

    fn place(&self, grain: Range<usize>) -> Range<u64> {
        self.offset + grain.start as u64..self.offset + grain.end as u64
    }
}

/// What adjoins and is alike is one.
fn merged(ranges: impl Iterator<Item = (Range<u64>, bool)>) -> Vec<(Range<u64>, bool)> {
    let mut all: Vec<(Range<u64>, bool)> = Vec::new();
    for (range, kind) in ranges {
        match all.last_mut() {
            Some((last, of)) if last.end == range.start && *of == kind => last.end = range.end,
            _ => all.push((range, kind)),
        }
    }
    all
}

/// Blocks of an extent at most, which one command reads or writes.
pub(crate) fn piece_blocks(info: &NamespaceInfo) -> u64 {
    (EXTENT_BYTES_MAX as u64 / u64::from(info.block_size)).min(info.transfer_blocks_max.into()).max(1)
}

/// Whether all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    // Sixteen at a time: the compiler makes no such loop of the bytes.
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|&byte| byte == 0)
}

/// Reads a snapshot piece by piece, and an older one beside it.
struct Pieces<'a> {
    to: &'a SnapshotView,
    from: Option<&'a SnapshotView>,
    /// Blocks that are left, ascending.
    left: std::vec::IntoIter<Range<u64>>,
    range: Range<u64>,
    job: &'a Job,
    done: u64,
    all: u64,
}

impl<'a> Pieces<'a> {
    fn new(
        to: &'a SnapshotView,
        from: Option<&'a SnapshotView>,
        told: Option<Vec<Range<u64>>>,
        job: &'a Job,
    ) -> Pieces<'a> {
        let info = to.info();
        let ranges = told.unwrap_or_else(|| vec![Range { start: 0, end: info.blocks }]);
        let all = ranges.iter().map(|range| range.end - range.start).sum::<u64>() * u64::from(info.block_size);
        Pieces { to, from, left: ranges.into_iter(), range: 0..0, job, done: 0, all }
    }

    async fn next(&mut self) -> Result<Option<Piece>, BackupError> {
        if self.range.is_empty() {
            let Some(range) = self.left.next() else { return Ok(None) };
            self.range = range;
        }
        let info = self.to.info();
        let block = u64::from(info.block_size);
        let (lba, blocks) = (self.range.start, piece_blocks(&info).min(self.range.end - self.range.start));
        self.range.start += blocks;
        let length = (blocks * block) as usize;
        self.job.take(length as u64).await;
        let bytes = read(self.to, lba, length).await?;
        let before = match self.from {
            Some(from) => {
                self.job.take(length as u64).await;
                Some(read_or_zeroes(from, lba, length).await?)
            }
            None => None,
        };
        self.done += length as u64;
        self.job.reached(self.done as f64 / self.all as f64);
        let grain = GRAIN_BYTES.max(info.block_size as usize);
        Ok(Some(Piece { offset: lba * block, bytes, before, grain }))
    }
}

/// Reads bytes of a snapshot.
pub(crate) async fn read(view: &SnapshotView, lba: u64, bytes: usize) -> Result<Buf, BackupError> {
    let (read, buf) = view.read(Lba(lba), Buf::with_len(bytes)).await;
    let failed = |source: DeviceError| BackupError::Device { of: view.id().to_string(), source };
    read.map(|()| buf).map_err(failed)
}

/// The same of a snapshot that may be smaller: behind its end a volume has zeroes when it grows.
pub(crate) async fn read_or_zeroes(view: &SnapshotView, lba: u64, bytes: usize) -> Result<Buf, BackupError> {
    let info = view.info();
    let there = info.blocks.saturating_sub(lba).saturating_mul(u64::from(info.block_size)).min(bytes as u64) as usize;
    let mut all = Buf::zeroed(bytes);
    if there > 0 {
        all[..there].copy_from_slice(&read(view, lba, there).await?);
    }
    Ok(all)
}

/// A stream that is being written. Zeroes that adjoin are one extent.
struct Written<'a> {
    encoder: Encoder,
    sink: &'a mut dyn Sink,
    zeroes: Range<u64>,
}

impl<'a> Written<'a> {
    async fn begin(header: &Header, sink: &'a mut dyn Sink) -> Result<Written<'a>, BackupError> {
        let (encoder, bytes) = Encoder::new(header);
        sink.write(bytes).await.map_err(BackupError::Pipe)?;
        Ok(Written { encoder, sink, zeroes: 0..0 })
    }

    async fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BackupError> {
        self.flush().await?;
        let bytes = self.encoder.data(offset, bytes);
        self.sink.write(bytes).await.map_err(BackupError::Pipe)
    }

    async fn zeroes(&mut self, range: Range<u64>) -> Result<(), BackupError> {
        if self.zeroes.end != range.start || self.zeroes.is_empty() {
            self.flush().await?;
            self.zeroes.start = range.start;
        }
        self.zeroes.end = range.end;
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), BackupError> {
        let Range { start, end } = std::mem::replace(&mut self.zeroes, 0..0);
        if start == end {
            return Ok(());
        }
        let bytes = self.encoder.zeroes(start, end - start);
        self.sink.write(bytes).await.map_err(BackupError::Pipe)
    }

    async fn end(mut self) -> Result<Counts, BackupError> {
        self.flush().await?;
        let counts = self.encoder.counts();
        self.sink.write(self.encoder.end()).await.map_err(BackupError::Pipe)?;
        Ok(counts)
    }
}
