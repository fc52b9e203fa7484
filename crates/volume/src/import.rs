//! A stream ([`crate::stream`]) into a volume that this host has attached.
//!
//! Invariants:
//! - A volume is said to have the bytes of a snapshot ([`Origin::Whole`]) only in a record that is proposed after the stream's
//!   trailer was right and every byte of the stream was stable, by the host that has had the volume from before it looked at what
//!   the volume was. Until then the record says that it has a part ([`Origin::InPart`]), from before the first byte is written.
//! - A difference is applied only to the bytes of its base: the record names the base and the volume's own snapshot of it, and what
//!   the volume has is compared with that snapshot. Of an import that broke off the volume is put back to that snapshot first: what
//!   the stream does not say would else be what another stream, or anybody, has left there.
//! - A stream of everything makes every block of the volume: what it does not say is zeroes, behind its end as well.
//!
//! So an import that broke off is begun again with the same stream, or another one from the same base; a volume that is imported in
//! part is good for nothing else, and what is written to it meanwhile is lost.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::task::Poll;

use device::{Durability, Error as DeviceError, Lba, Namespace};
use engine::Buf;
use engine::job::Job;
use engine::task::{LocalFuture, TaskSet};

use crate::backup::{BackupError, Source};
use crate::error::Error;
use crate::export::{is_zero, piece_blocks, read_or_zeroes};
use crate::origin::Origin;
use crate::snapshot_name::{SnapshotId, SnapshotName};
use crate::stream::{Counts, Decoder, Header, Item};
use crate::view::SnapshotView;
use crate::volume::Volume;

/// Changes that are under way at once. Chosen: as many as keep three replicas busy; each has a megabyte at most.
pub(crate) const AT_ONCE: usize = 8;

/// What was imported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Imported {
    /// What the stream is of.
    pub header: Header,
    /// What there was in it; `None`: the volume has it already, and nothing but its header was read.
    pub counts: Option<Counts>,
    /// The volume's own snapshot of it; `None`: its targets offer none, so that no difference can be imported.
    pub own: Option<SnapshotName>,
}

/// Imports a stream. The volume is nobody else's meanwhile. `force`: a stream of everything also into one that is not blank: what
/// it has is lost.
///
/// # Errors
/// The volume is not what the stream is to be applied to; the stream is damaged or cut off; a command fails. Once something was
/// written the volume's record says so ([`Volume::origin`]).
pub fn import<'a>(
    volume: &'a Volume,
    source: &'a mut dyn Source,
    force: bool,
    job: &'a Job,
) -> LocalFuture<'a, Result<Imported, BackupError>> {
    Box::pin(async move {
        let mut stream = Stream { source, decoder: Decoder::default() };
        let Item::Header(header) = stream.item().await? else {
            return Err(BackupError::Volume(Error::Impossible("invariant: a stream begins with its header")));
        };
        check_size(volume, &header)?;
        // What was acknowledged already is found by who did not hear of it.
        if let Some(Origin::Whole { source, own: Some(own) }) = volume.origin().filter(|_| !force)
            && source == header.to
        {
            unchanged(volume, source, own, job).await?;
            return Ok(Imported { header, counts: None, own: Some(own) });
        }
        let start = match header.base() {
            None => Start { base: None, back: None },
            Some(base) => at_base(volume, base, job).await?,
        };
        if header.from.is_none() {
            check_blank(volume, force, job).await?;
        }
        volume.set_origin(Origin::InPart { source: header.to, base: start.base }).await?;
        if let Some((own, ranges)) = start.back {
            put_back(volume, &own, ranges, job).await?;
        }
        let counts = Applying::new(volume, &header, job).all(&mut stream).await?;
        volume.flush().await.map_err(|source| failed(volume, source))?;
        let own = match volume.snapshot_of(header.to).await {
            Ok(own) => Some(own),
            Err(Error::NoCopies) if start.base.is_none() => {
                volume.set_origin(Origin::Whole { source: header.to, own: None }).await?;
                None
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Imported { header, counts: Some(counts), own })
    })
}

pub(crate) fn failed(volume: &Volume, source: DeviceError) -> BackupError {
    BackupError::Device { of: format!("volume {:032x}", volume.shape().volume), source }
}

/// What the volume is, for people.
fn described(volume: &Volume) -> String {
    volume.origin().map_or_else(|| "imported from nothing".to_owned(), |origin| origin.to_string())
}

fn check_size(volume: &Volume, header: &Header) -> Result<(), BackupError> {
    let info = volume.info();
    if !header.block_size.is_multiple_of(info.block_size) {
        return Err(BackupError::BlockSize { volume: info.block_size, stream: header.block_size });
    }
    match info.bytes() {
        bytes if bytes < header.bytes => Err(BackupError::TooSmall { bytes, needed: header.bytes }),
        _ => Ok(()),
    }
}

/// What a difference is applied to.
struct Start {
    base: Option<(SnapshotId, SnapshotName)>,
    /// Where the volume is to be put back first, to its own snapshot.
    back: Option<(SnapshotView, Vec<Range<u64>>)>,
}

/// The volume has the bytes of the base, or is to be put back to them.
async fn at_base(volume: &Volume, needs: SnapshotId, job: &Job) -> Result<Start, BackupError> {
    match volume.origin() {
        Some(Origin::Whole { source, own: Some(own) }) if source == needs => {
            unchanged(volume, needs, own, job).await?;
            Ok(Start { base: Some((needs, own)), back: None })
        }
        Some(Origin::InPart { base: Some((base, own)), .. }) if base == needs => {
            let view = own_snapshot(volume, needs, own).await?;
            let ranges = may_differ(volume, Some(&view)).await?;
            Ok(Start { base: Some((base, own)), back: Some((view, ranges)) })
        }
        Some(Origin::Whole { source, own: None }) if source == needs => Err(BackupError::BaseGone { of: needs }),
        _ => Err(BackupError::NotAtBase { needs, is: described(volume) }),
    }
}

async fn own_snapshot(volume: &Volume, of: SnapshotId, own: SnapshotName) -> Result<SnapshotView, BackupError> {
    match volume.snapshot_view(own).await {
        Err(Error::NoSuchSnapshot { .. }) => Err(BackupError::BaseGone { of }),
        opened => Ok(opened?),
    }
}

/// Ranges of blocks in which the volume may differ from its snapshot, or from zeroes.
pub(crate) async fn may_differ(volume: &Volume, from: Option<&SnapshotView>) -> Result<Vec<Range<u64>>, BackupError> {
    let told = volume.differences(from).await?;
    Ok(told.unwrap_or_else(|| vec![Range { start: 0, end: volume.info().blocks }]))
}

/// The volume has the bytes of its own snapshot, and behind the end of the snapshot zeroes.
async fn unchanged(volume: &Volume, since: SnapshotId, own: SnapshotName, job: &Job) -> Result<(), BackupError> {
    let view = own_snapshot(volume, since, own).await?;
    let block = u64::from(volume.info().block_size);
    for (lba, blocks) in pieces(volume, may_differ(volume, Some(&view)).await?) {
        let bytes = (blocks * block) as usize;
        job.take(2 * bytes as u64).await;
        let (now, before) = (read(volume, lba, bytes).await?, read_or_zeroes(&view, lba, bytes).await?);
        if now[..] != before[..] {
            let differs = now.iter().zip(before.iter()).position(|(now, before)| now != before);
            return Err(BackupError::Written { since, at: lba * block + differs.unwrap_or(0) as u64 });
        }
    }
    Ok(())
}

/// A stream of everything would destroy nothing: the volume has nothing but zeroes, or a part of such a stream.
async fn check_blank(volume: &Volume, force: bool, job: &Job) -> Result<(), BackupError> {
    match volume.origin() {
        _ if force => return Ok(()),
        Some(Origin::InPart { base: None, .. }) => return Ok(()),
        Some(origin) => return Err(BackupError::NotBlank { is: origin.to_string() }),
        None => {}
    }
    let block = u64::from(volume.info().block_size);
    for (lba, blocks) in pieces(volume, may_differ(volume, None).await?) {
        let bytes = (blocks * block) as usize;
        job.take(bytes as u64).await;
        if !is_zero(&read(volume, lba, bytes).await?) {
            return Err(BackupError::NotBlank { is: format!("it has data in the MiB from byte {} on", lba * block) });
        }
    }
    Ok(())
}

/// The volume gets the bytes of its own snapshot where it may have others.
async fn put_back(volume: &Volume, own: &SnapshotView, ranges: Vec<Range<u64>>, job: &Job) -> Result<(), BackupError> {
    let block = u64::from(volume.info().block_size);
    for (lba, blocks) in pieces(volume, ranges) {
        let length = (blocks * block) as usize;
        job.take(length as u64).await;
        let bytes = read_or_zeroes(own, lba, length).await?;
        let done = match is_zero(&bytes) {
            true => volume.deallocate(Lba(lba), blocks).await,
            false => {
                job.take(length as u64).await;
                volume.write(Lba(lba), bytes.freeze(), Durability::Stable).await
            }
        };
        done.map_err(|source| failed(volume, source))?;
    }
    Ok(())
}

/// Ranges of blocks in pieces: the first block of each, and how many.
pub(crate) fn pieces(volume: &Volume, ranges: Vec<Range<u64>>) -> impl Iterator<Item = (u64, u64)> + use<> {
    let most = piece_blocks(&volume.info());
    ranges.into_iter().flat_map(move |Range { start, end }| {
        (start..end).step_by(most as usize).map(move |lba| (lba, most.min(end - lba)))
    })
}

pub(crate) async fn read(volume: &Volume, lba: u64, bytes: usize) -> Result<Buf, BackupError> {
    let (read, buf) = volume.read(Lba(lba), Buf::with_len(bytes)).await;
    read.map(|()| buf).map_err(|source| failed(volume, source))
}

/// A stream that is read.
struct Stream<'a> {
    source: &'a mut dyn Source,
    decoder: Decoder,
}

impl Stream<'_> {
    async fn item(&mut self) -> Result<Item, BackupError> {
        loop {
            if let Some(item) = self.decoder.item()? {
                return Ok(item);
            }
            if !self.more().await? {
                return Err(Error::Impossible("invariant: behind its end nobody asks for more of a stream").into());
            }
        }
    }

    /// False: it has ended, as it has to.
    async fn more(&mut self) -> Result<bool, BackupError> {
        let bytes = self.source.read().await.map_err(BackupError::Pipe)?;
        if bytes.is_empty() {
            self.decoder.finish()?;
            return Ok(false);
        }
        self.decoder.push(&bytes);
        Ok(true)
    }

    /// Behind the trailer nothing comes.
    async fn end(&mut self) -> Result<(), BackupError> {
        loop {
            self.decoder.item()?;
            if !self.more().await? {
                return Ok(());
            }
        }
    }
}

/// What a stream says is done.
struct Applying<'a> {
    volume: &'a Volume,
    block: u64,
    /// What is not said is zeroes.
    is_all: bool,
    /// Block of the volume up to which everything is done or under way.
    at: u64,
    under_way: TaskSet<LocalFuture<'a, Result<(), DeviceError>>>,
    job: &'a Job,
}

impl<'a> Applying<'a> {
    fn new(volume: &'a Volume, header: &Header, job: &'a Job) -> Applying<'a> {
        Applying {
            volume,
            block: volume.info().block_size.into(),
            is_all: header.from.is_none(),
            at: 0,
            under_way: TaskSet::new(AT_ONCE),
            job,
        }
    }

    async fn all(mut self, stream: &mut Stream<'_>) -> Result<Counts, BackupError> {
        let counts = loop {
            match self.beside(stream.item()).await?? {
                Item::Data { offset, bytes } => self.data(offset, &bytes).await?,
                Item::Zeroes { offset, bytes } => self.zeroes(offset / self.block, bytes / self.block).await?,
                Item::End(counts) => break counts,
                Item::Header(_) => {}
            }
        };
        self.beside(stream.end()).await??;
        self.reach(self.volume.info().blocks).await?;
        while !self.under_way.is_empty() {
            self.one_ended().await?;
        }
        Ok(counts)
    }

    /// Up to that block nothing more is said.
    async fn reach(&mut self, lba: u64) -> Result<(), BackupError> {
        if self.is_all && lba > self.at {
            let (volume, at) = (self.volume, self.at);
            self.begin(Box::pin(volume.deallocate(Lba(at), lba - at))).await?;
        }
        self.at = lba;
        self.job.reached(self.at as f64 / self.volume.info().blocks as f64);
        Ok(())
    }

    async fn zeroes(&mut self, lba: u64, blocks: u64) -> Result<(), BackupError> {
        self.reach(lba).await?;
        let volume = self.volume;
        self.begin(Box::pin(volume.deallocate(Lba(lba), blocks))).await?;
        self.at = lba + blocks;
        Ok(())
    }

    async fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BackupError> {
        self.reach(offset / self.block).await?;
        let volume = self.volume;
        for piece in bytes.chunks((piece_blocks(&volume.info()) * self.block) as usize) {
            let job = self.job;
            self.beside(job.take(piece.len() as u64)).await?;
            let (lba, view) = (Lba(self.at), Buf::copy_from(piece).freeze());
            self.begin(Box::pin(volume.write(lba, view, Durability::Stable))).await?;
            self.at += piece.len() as u64 / self.block;
        }
        Ok(())
    }

    async fn begin(&mut self, change: LocalFuture<'a, Result<(), DeviceError>>) -> Result<(), BackupError> {
        if self.under_way.is_full() {
            self.one_ended().await?;
        }
        let pushed = self.under_way.push(change);
        debug_assert!(pushed.is_ok(), "there was room");
        Ok(())
    }

    /// Waits for something else. What is under way goes on meanwhile: it has locks of blocks.
    async fn beside<T>(&mut self, until: impl Future<Output = T>) -> Result<T, BackupError> {
        let mut until = pin!(until);
        poll_fn(|context| {
            if let Poll::Ready(done) = until.as_mut().poll(context) {
                return Poll::Ready(Ok(done));
            }
            loop {
                match pin!(self.under_way.next()).poll(context) {
                    Poll::Ready(Some((_, Err(source)))) => return Poll::Ready(Err(failed(self.volume, source))),
                    Poll::Ready(Some((_, Ok(())))) => {}
                    Poll::Ready(None) | Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    async fn one_ended(&mut self) -> Result<(), BackupError> {
        match self.under_way.next().await {
            Some((_, Err(source))) => Err(failed(self.volume, source)),
            _ => Ok(()),
        }
    }
}
