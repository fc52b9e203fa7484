//! A volume is put back to one of its own snapshots, in place.
//!
//! Invariants:
//! - From before the first byte is changed until every byte is as the snapshot has it, and stable, the record says that the volume
//!   has a part of that snapshot ([`Origin::InPart`]): who attaches the volume meanwhile is told, and a snapshot that is taken of
//!   the volume meanwhile is exported to nobody.
//! - The snapshots of the volume stay, those that are newer than the one that is restored, too; but the one that an import has
//!   taken for itself goes, for the volume has not the bytes of what was imported any more.
//! - What is the same is not written: the volume shares that with its snapshots.
//!
//! So what breaks off is begun again, from the beginning or from where all before was done; what is written to the volume meanwhile
//! is lost.

use std::ops::Range;
use std::time::Duration;

use device::{Durability, Error as DeviceError, Lba, Namespace};
use engine::task::{LocalFuture, TaskSet};
use engine::time;

use crate::backup::BackupError;
use crate::error::Error;
use crate::export::{is_zero, read_or_zeroes};
use crate::import::{AT_ONCE, failed, may_differ, pieces, read};
use crate::origin::Origin;
use crate::view::SnapshotView;
use crate::volume::Volume;

/// How far a volume is put back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restored {
    /// Bytes from the beginning on that are as the snapshot has them.
    pub at: u64,
    /// Bytes behind these that may still differ. 0: the volume has the bytes of the snapshot, and its record says so.
    pub left: u64,
}

/// Gives the volume the bytes of a snapshot of its own, from byte `at` on, for that time or a little longer. What the volume has
/// grown by since becomes zeroes. The volume is nobody else's meanwhile, and has the bytes before `at` already.
///
/// # Errors
/// [`BackupError::InPart`], [`Error::Impossible`] and [`Error::TooManySnapshots`]: nothing was changed. Any other one: the volume
/// has a part of the snapshot, perhaps ([`Volume::origin`]).
pub fn restore<'a>(
    volume: &'a Volume,
    snapshot: &'a SnapshotView,
    at: u64,
    time: Duration,
) -> LocalFuture<'a, Result<Restored, BackupError>> {
    Box::pin(async move {
        let source = snapshot.id();
        if source.volume != volume.shape().volume {
            return Err(Error::Impossible("a volume is put back to a snapshot of its own").into());
        }
        // Also of a record that is not stable yet.
        if volume.record().0.origin.and_then(|origin| origin.own()) == Some(source.name) {
            return Err(
                Error::Impossible("an import has taken the snapshot for itself: import into the volume again").into()
            );
        }
        if let Some(is) = snapshot.part() {
            return Err(BackupError::InPart { of: source, is: Box::new(is) });
        }
        volume.set_origin(Origin::InPart { source, base: None }).await?;
        let (info, until) = (volume.info(), time::now() + time);
        let block = u64::from(info.block_size);
        let mut ranges = may_differ(volume, Some(snapshot)).await?;
        ranges.iter_mut().for_each(|range| range.start = range.start.max(at / block));
        let left = |from: u64| ranges.iter().map(|range| range.end.saturating_sub(range.start.max(from))).sum::<u64>();
        let mut under_way = TaskSet::new(AT_ONCE);
        let mut stopped = None;
        for (index, (lba, blocks)) in pieces(volume, ranges.clone()).enumerate() {
            if under_way.is_full() {
                ended(volume, under_way.next().await)?;
            }
            // Something is done each time.
            if index > 0 && time::now() >= until {
                stopped = Some(lba);
                break;
            }
            let pushed = under_way.push(piece(volume, snapshot, lba, blocks));
            debug_assert!(pushed.is_ok(), "there was room");
        }
        while !under_way.is_empty() {
            ended(volume, under_way.next().await)?;
        }
        volume.flush().await.map_err(|source| failed(volume, source))?;
        if let Some(lba) = stopped {
            return Ok(Restored { at: lba * block, left: left(lba) * block });
        }
        volume.set_origin(Origin::Whole { source, own: None }).await?;
        Ok(Restored { at: info.bytes(), left: 0 })
    })
}

/// Bytes that each replica's target needs room for, at most, while the volume is put back to a snapshot of its own: all that may
/// differ but for what the volume has changed since its newest snapshot and has room for, which is written where it is.
///
/// # Errors
/// Regions that may differ between replicas are not settled in time.
pub fn room<'a>(volume: &'a Volume, snapshot: &'a SnapshotView) -> LocalFuture<'a, Result<u64, BackupError>> {
    Box::pin(async move {
        let differs = may_differ(volume, Some(snapshot)).await?;
        let newest = volume.snapshots().iter().map(|snapshot| snapshot.name).max();
        // What can't be told needs room.
        let changed = match newest {
            Some(name) if name == snapshot.id().name => differs.clone(),
            Some(name) => match volume.snapshot_view(name).await {
                Ok(newest) => volume.differences(Some(&newest)).await?.unwrap_or_default(),
                Err(_) => Vec::new(),
            },
            None => Vec::new(),
        };
        let has_room = volume.differences(None).await?.unwrap_or_default();
        let blocks = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        let own = common(&common(&differs, &changed), &has_room);
        Ok((blocks(&differs) - blocks(&own)) * u64::from(volume.info().block_size))
    })
}

/// What is in both; each is ascending.
fn common(these: &[Range<u64>], those: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut at, mut found) = (0, Vec::new());
    for this in these {
        while those.get(at).is_some_and(|that| that.end <= this.start) {
            at += 1;
        }
        let meeting = those[at..].iter().take_while(|that| that.start < this.end);
        found.extend(meeting.map(|that| that.start.max(this.start)..that.end.min(this.end)));
    }
    found
}

fn ended(volume: &Volume, one: Option<(usize, Result<(), DeviceError>)>) -> Result<(), BackupError> {
    one.map_or(Ok(()), |(_, done)| done).map_err(|source| failed(volume, source))
}

/// Some blocks get the bytes of the snapshot, unless they have them.
fn piece<'a>(
    volume: &'a Volume,
    snapshot: &'a SnapshotView,
    lba: u64,
    blocks: u64,
) -> LocalFuture<'a, Result<(), DeviceError>> {
    Box::pin(async move {
        let bytes = (blocks * u64::from(volume.info().block_size)) as usize;
        let before = read_or_zeroes(snapshot, lba, bytes).await;
        let before = before.map_err(|error| DeviceError::ReadFault(error.to_string()))?;
        // What can't be read any more is written: then it can.
        if read(volume, lba, bytes).await.is_ok_and(|now| now[..] == before[..]) {
            return Ok(());
        }
        match is_zero(&before) {
            true => volume.deallocate(Lba(lba), blocks).await,
            false => volume.write(Lba(lba), before.freeze(), Durability::Stable).await,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_both_is_found() {
        let all = |ranges: &[(u64, u64)]| ranges.iter().map(|&(start, end)| start..end).collect::<Vec<_>>();
        for (these, those, expected) in [
            (all(&[]), all(&[(0, 9)]), all(&[])),
            (all(&[(0, 9)]), all(&[(0, 9)]), all(&[(0, 9)])),
            (all(&[(0, 4), (6, 9)]), all(&[(3, 7)]), all(&[(3, 4), (6, 7)])),
            (all(&[(3, 7)]), all(&[(0, 4), (6, 9)]), all(&[(3, 4), (6, 7)])),
            (all(&[(0, 2), (8, 9)]), all(&[(2, 8)]), all(&[])),
            (all(&[(0, 20)]), all(&[(1, 2), (4, 6), (19, 30)]), all(&[(1, 2), (4, 6), (19, 20)])),
        ] {
            assert_eq!(common(&these, &those), expected, "{these:?} and {those:?}");
        }
    }
}
