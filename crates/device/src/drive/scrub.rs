//! `scrub`: reads every block that was written and verifies it.

use std::sync::Arc;

use engine::Buf;
use engine::task::LocalFuture;

use super::Drive;
use super::bytes::value;
use super::map::NONE;
use super::pages::{CHECKSUM_MIN, UNCORRECTABLE};
use super::registry::Shared;
use super::span::Span;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::range_lock::Mode;
use crate::{Error, Lba};

/// Damage listed; behind it only the count goes on. Guessed.
const DAMAGE_MAX: usize = 1000;

/// A block that can't be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The namespace through which it was found; others may share it.
    pub namespace: String,
    /// The block.
    pub lba: Lba,
    /// What is wrong.
    pub what: String,
}

/// What a scrub has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scrub {
    /// Bytes read and verified.
    pub bytes: u64,
    /// Blocks that do not match their checksum, or could not be read: the first thousand.
    pub damage: Vec<Damage>,
    /// How many there are.
    pub damaged: u64,
    /// Those that are marked uncorrectable, as somebody asked for or a copy found.
    pub uncorrectable: u64,
}

impl Scrub {
    fn damage(&mut self, shared: &Shared, lba: Lba, what: String, blocks: u64) {
        self.damaged += blocks;
        if self.damage.len() < DAMAGE_MAX {
            self.damage.push(Damage { namespace: shared.name.clone(), lba, what });
        }
    }
}

impl Drive {
    /// Reads and verifies every block that was written, each extent once, beside whatever else goes on. `progress` is told of
    /// the extents done and those there are.
    pub async fn scrub(&self, mut progress: impl FnMut(u64, u64)) -> Result<Scrub, Error> {
        self.scrub_telling(&mut progress).await
    }

    fn scrub_telling<'a>(&'a self, progress: &'a mut dyn FnMut(u64, u64)) -> LocalFuture<'a, Result<Scrub, Error>> {
        Box::pin(async move {
            let (numbers, total, extents) = self.inner.with(|core| {
                let numbers: Vec<u32> = core.state.namespaces.keys().copied().collect();
                (numbers, core.state.used(), core.state.references.len())
            });
            let (mut scrub, mut seen, mut done) = (Scrub::default(), vec![false; extents], 0);
            for number in numbers {
                let Ok(shared) = self.shared(number) else { continue };
                let mut next = 0;
                // One at a time: the map may change between any two.
                while let Some((index, extent)) =
                    self.inner.with(|core| core.state.space(number).ok()?.map.range(next, u32::MAX).next())
                {
                    if !std::mem::replace(&mut seen[extent as usize], true) {
                        self.scrub_extent(&shared, index, &mut scrub).await?;
                        done += 1;
                        progress(done, total.max(done));
                    }
                    let Some(following) = index.checked_add(1) else { break };
                    next = following;
                }
            }
            Ok(scrub)
        })
    }

    async fn scrub_extent(&self, shared: &Arc<Shared>, index: u32, scrub: &mut Scrub) -> Result<(), Error> {
        let layout = &self.inner.layout;
        let per_block = u64::from(shared.block_size / layout.unit);
        let extent_units = u64::from(layout.extent_units());
        let chunk = (TRANSFER_BYTES_MAX as u64 / u64::from(layout.unit)).min(extent_units);
        for at in (0..extent_units).step_by(chunk as usize) {
            let first = u64::from(index) * extent_units + at;
            let _guard = shared.locks.lock(first / per_block, chunk / per_block, Mode::Shared).await;
            let mut span = Span::new(layout, first, chunk as u32);
            let mut values = Buf::with_len(chunk as usize * 8);
            match self.inner.resolve(shared.number, &mut span, &mut values).await {
                Err(Error::OutOfRange { .. }) => return Ok(()), // deleted meanwhile
                Err(Error::ReadFault(what)) => {
                    // Without their checksums the blocks can't be read, those that were never written among them.
                    let what = format!("and those behind it have no checksums: {what}");
                    scrub.damage(shared, Lba(first / per_block), what, chunk / per_block);
                    continue;
                }
                result => result?,
            }
            let Some(piece) = span.pieces().next().filter(|piece| piece.extent != NONE) else { return Ok(()) };
            let state = |step: u32| value(&values, step as usize);
            scrub.uncorrectable += (0..piece.units).filter(|&step| state(step) == UNCORRECTABLE).count() as u64;
            if (0..piece.units).all(|step| state(step) < CHECKSUM_MIN) {
                continue;
            }
            let buf = Buf::with_len(piece.units as usize * layout.unit as usize);
            let (result, content) =
                self.inner.file.read_at(layout.unit_at(piece.unit(layout.extent_units())), buf).await;
            for (step, unit) in (0..piece.units).zip(content.chunks_exact(layout.unit as usize)) {
                if state(step) < CHECKSUM_MIN {
                    continue;
                }
                scrub.bytes += unit.len() as u64;
                let what = match &result {
                    Err(error) => error.to_string(),
                    Ok(()) if self.inner.matches(&piece, step, state(step), unit) => continue,
                    Ok(()) => "does not match its checksum".to_owned(),
                };
                scrub.damage(shared, Lba((first + u64::from(step)) / per_block), what, 1);
            }
        }
        Ok(())
    }
}
