//! Extents that are taken to be mapped, but are not yet.

use std::sync::Arc;

use super::core::{Core, Inner};
use super::map::NONE;
use super::record::Record;
use super::span::Span;
use crate::Error;

/// Free extents in the hands of a command; those that it does not map are free again when it ends.
pub(super) struct Reservation {
    inner: Arc<Inner>,
    /// The namespace's extent number each is meant for, and the extent.
    taken: Vec<(u32, u32)>,
}

impl Reservation {
    pub(super) fn new(inner: &Arc<Inner>) -> Reservation {
        Reservation { inner: Arc::clone(inner), taken: Vec::new() }
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Looks up the span's extents and takes one for each that is missing. False: some will be free soon.
    ///
    /// # Errors
    /// No extents are left, or the map has no room; then nothing was written.
    pub(super) fn cover(&mut self, core: &mut Core, namespace: u32, span: &mut Span) -> Result<bool, Error> {
        let Some(space) = core.state.namespaces.get(&namespace) else { return Err(super::read::gone(span)) };
        span.look_up(|index| space.map.get(index));
        for piece in span.pieces().filter(|piece| piece.extent == NONE) {
            if self.for_index(piece.index) == NONE && !self.take(core, piece.index)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes an extent for `index`. False: some will be free soon.
    pub(super) fn take(&mut self, core: &mut Core, index: u32) -> Result<bool, Error> {
        if core.state.entries + core.state.entries_promised >= self.inner.layout.entries_max() {
            return Err(Error::OutOfSpace);
        }
        match core.state.free.take_any() {
            Some(extent) => {
                self.taken.push((index, extent));
                core.state.entries_promised += 1;
                Ok(true)
            }
            None if core.state.frees_later().is_some() => Ok(false),
            None => Err(Error::OutOfSpace),
        }
    }

    /// The extent taken for `index`, or [`NONE`].
    pub(super) fn for_index(&self, index: u32) -> u32 {
        self.taken.iter().find(|(meant, _)| *meant == index).map_or(NONE, |(_, extent)| *extent)
    }

    /// The extent meant for `index` is mapped now.
    pub(super) fn mapped(&mut self, core: &mut Core, index: u32) {
        core.state.entries_promised -= u64::from(self.for_index(index) != NONE);
        self.taken.retain(|(meant, _)| *meant != index);
    }

    /// What was taken for `index`, by itself.
    pub(super) fn split(&mut self, index: u32) -> Reservation {
        let taken = self.taken.extract_if(.., |(meant, _)| *meant == index).collect();
        Reservation { inner: Arc::clone(&self.inner), taken }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.taken.is_empty() {
            self.inner.with(|core| {
                core.state.entries_promised -= self.taken.len() as u64;
                self.taken.iter().for_each(|(_, extent)| core.state.free.give(*extent));
            });
        }
    }
}

impl Core {
    /// Maps what the reservation took for the missing extents of a span. Their checksum pages are in memory.
    pub(super) fn map_reserved(&mut self, namespace: u32, span: &mut Span, reserved: &mut Reservation) {
        if span.pieces().all(|piece| piece.extent != NONE) {
            return;
        }
        self.begin();
        for piece in span.pieces().filter(|piece| piece.extent == NONE) {
            let extent = reserved.for_index(piece.index);
            self.add(&Record::Map { namespace, index: piece.index, extent });
            reserved.mapped(self, piece.index);
        }
        self.end();
        if let Ok(space) = self.state.space(namespace) {
            span.look_up(|index| space.map.get(index));
        }
    }
}

impl Inner {
    /// Waits until extents that were given back may be used again.
    pub(super) async fn wait_for_free(self: &Arc<Self>) -> Result<(), Error> {
        match self.with(|core| core.state.frees_later()) {
            Some(sequence) => self.commit(sequence).await,
            None => Ok(()),
        }
    }
}
