//! [`Lying`]: where a file's bytes lie: for whoever copies what is no hole, and for whoever looks at stripes and members.

use std::ops::Range;
use std::rc::Rc;

use engine::task::LocalFuture;

use crate::data::{Content, Inode as _, Piece, ROW_BYTES, Region, SPAN_BYTES, Shape, Stripe, StripeId};
use crate::error::Error;
use crate::opened::OpenFile;

/// Bytes of a file that are asked for at a time, at first. Chosen: some thousand stripes are known at once.
const STEP_BYTES: u64 = 128 * SPAN_BYTES;

/// How an inode knows where its bytes lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContentKind {
    /// They are in the inode.
    Inline,
    /// Their map is in the inode.
    Map,
    /// Their maps are in records of their own.
    Spans,
}

/// Where some bytes lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Spot {
    /// Nowhere: zeroes.
    Hole,
    /// In the inode.
    Inode,
    /// In a stripe.
    Stripe(Rc<Stripe>),
}

/// A part of a file, and where it lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Which bytes.
    pub range: Range<u64>,
    /// Where.
    pub spot: Spot,
}

/// What a file takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footprint {
    /// How it is known where its bytes lie.
    pub kind: ContentKind,
    /// Stripes.
    pub stripes: u64,
    /// Of these, those with a column that is missing.
    pub short: u64,
    /// Bytes that are not holes.
    pub data: u64,
    /// Bytes on members, or in the inode; parity too.
    pub stored: u64,
}

/// Parts of a file in their order, some at a time: see [`OpenFile::lying`].
pub struct Lying {
    file: Rc<OpenFile>,
    at: u64,
    end: u64,
    step: u64,
}

impl Lying {
    /// Parts that come next, without gaps; `None`: that was all. No stripe is in the parts of two calls.
    ///
    /// # Errors
    /// What inode or store say.
    #[allow(clippy::should_implement_trait)] // that one does not wait
    pub fn next(&mut self) -> LocalFuture<'_, Result<Option<Vec<Part>>, Error>> {
        Box::pin(async move {
            if self.at >= self.end {
                return Ok(None);
            }
            let range = self.at..self.end.min(self.at.saturating_add(self.step) / SPAN_BYTES * SPAN_BYTES + SPAN_BYTES);
            let parts = self.file.parts(range.clone()).await?;
            self.at = range.end;
            // Of a file that is next to nothing but holes, they are passed over in strides.
            let is_hole = parts.iter().all(|part| part.spot == Spot::Hole);
            self.step = if is_hole { self.step.saturating_mul(2).max(SPAN_BYTES) } else { STEP_BYTES };
            // It has become shorter meanwhile.
            Ok(Some(parts).filter(|parts| !parts.is_empty()))
        })
    }
}

/// Bytes that each column of a stripe has on its member; `None`: it is missing.
pub fn column_bytes(stripe: &Stripe, shape: Shape) -> Vec<Option<u64>> {
    let cut = stripe.cut(shape);
    let filled = |column| if stripe.is_missing(column) { None } else { Some(cut.filled(column) as u64) };
    (0..shape.columns()).map(filled).collect()
}

impl OpenFile {
    /// Where the bytes of a range lie that are in the file now; what was written here before is put into stripes first.
    ///
    /// # Errors
    /// As a flush.
    pub fn lying<'a>(self: &'a Rc<Self>, range: Range<u64>) -> LocalFuture<'a, Result<Lying, Error>> {
        Box::pin(async move {
            self.flush().await?;
            let (state, _) = self.inode().load(true).await?;
            let end = range.end.min(state.size);
            Ok(Lying { file: Rc::clone(self), at: range.start.min(end), end, step: STEP_BYTES })
        })
    }

    /// Where the next bytes are that are no hole, from `at` on, or the next hole, which is at the file's end at the latest. `None`:
    /// there are none, or the file ends before.
    ///
    /// # Errors
    /// As [`OpenFile::lying`].
    pub fn seek<'a>(self: &'a Rc<Self>, at: u64, wants_data: bool) -> LocalFuture<'a, Result<Option<u64>, Error>> {
        Box::pin(async move {
            let Ok(mut lying) = self.lying(at..u64::MAX).await else {
                // Not all can be stored, and all can be read: it is taken for data up to its end.
                let end = self.end().await?;
                return Ok(Some(if wants_data { at } else { end }).filter(|_| at < end));
            };
            let (mut is_there, mut end) = (false, at);
            // Who copies asks again where these end.
            lying.step = 0;
            while let Some(parts) = lying.next().await? {
                for Part { range, spot } in parts {
                    if wants_data != (spot == Spot::Hole) {
                        return Ok(Some(range.start.max(at)));
                    }
                    (is_there, end) = (true, range.end);
                }
            }
            Ok(Some(end).filter(|_| is_there && !wants_data))
        })
    }

    async fn parts(&self, range: Range<u64>) -> Result<Vec<Part>, Error> {
        let (state, _) = self.inode().load(true).await?;
        if let Content::Inline(_) = state.content {
            let range = range.start..range.end.min(state.size);
            return Ok(if range.is_empty() { Vec::new() } else { vec![Part { range, spot: Spot::Inode }] });
        }
        let pieces = self.contents().pieces(self.inode(), range).await?;
        let part = |piece| match piece {
            Piece::Hole(range) => Part { range, spot: Spot::Hole },
            Piece::Data(extent) => Part { range: extent.at..extent.end(), spot: Spot::Stripe(extent.stripe) },
        };
        Ok(pieces.into_iter().map(part).filter(|part| !part.range.is_empty()).collect())
    }

    /// Where the columns of a stripe are, data first; `None`: there is no such chunk, and nothing of it can be read.
    ///
    /// # Errors
    /// What the store says.
    pub fn columns_of(&self, stripe: StripeId) -> LocalFuture<'_, Result<Option<Vec<Region>>, Error>> {
        Box::pin(async move {
            let place = self.contents().space().place(stripe.chunk).await?;
            Ok(place.map(|place| place.columns.clone()))
        })
    }

    /// What the file takes.
    ///
    /// # Errors
    /// As [`OpenFile::lying`].
    pub fn footprint<'a>(self: &'a Rc<Self>) -> LocalFuture<'a, Result<Footprint, Error>> {
        Box::pin(async move {
            let mut lying = self.lying(0..u64::MAX).await?;
            let (state, _) = self.inode().load(true).await?;
            let kind = match state.content {
                Content::Inline(_) => ContentKind::Inline,
                Content::Extents(_) => ContentKind::Map,
                Content::Spans(_) => ContentKind::Spans,
            };
            let shape = self.contents().members().layout().shape;
            let mut found = Footprint { kind, stripes: 0, short: 0, data: 0, stored: 0 };
            while let Some(parts) = lying.next().await? {
                let mut known = std::collections::BTreeSet::new();
                for Part { range, spot } in parts {
                    let length = range.end - range.start;
                    match spot {
                        Spot::Hole => continue,
                        Spot::Inode => found.stored += length,
                        Spot::Stripe(stripe) if known.insert(stripe.id) => {
                            found.stripes += 1;
                            found.short += u64::from(stripe.missing != 0);
                            found.stored += column_bytes(&stripe, shape).into_iter().flatten().sum::<u64>();
                        }
                        Spot::Stripe(_) => {}
                    }
                    found.data += length;
                }
            }
            Ok(found)
        })
    }
}

const _: () = assert!(SPAN_BYTES.is_multiple_of(ROW_BYTES as u64), "no row is in two steps");
