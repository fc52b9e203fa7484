//! [`Content`]: what an inode says of its file's bytes; and [`Inode`], by which it is read and changed.
//!
//! ```text
//!  inline    0, the bytes
//!  extents   1, a map of the whole file
//!  spans     2, map u64, reach varint, cuts varint, cut varint (0: none; else one more)
//! ```
//! Invariants of a long file:
//! - Nothing lies in spans from `reach` on: it is raised before a write goes there.
//! - Bytes behind the file's size are nobody's (of a writer that died). Before the size is raised over bytes that are not
//!   written by that, a *cut* is made there: `cuts` is raised, `cut` says from where spans are to be emptied, and nobody raises the
//!   size until that is done. So is a truncation.
//! - A span's record has the number of the last cut that was made on it or before it was written. Who is late with a cut passes
//!   over spans that have its number; who is late with a write finds a higher one there, or in the inode after it, and changes the
//!   span again: with the stripes that it still names, and the bytes of others written anew.

use std::rc::Rc;

use engine::task::LocalFuture;

use super::funds::Funds;
use super::map::{FILE_BYTES_MAX, Map};
use super::shape::Shape;
use crate::bytes::{Reader, put_varint};
use crate::error::Error;
use crate::meta::Version;

/// Bytes of a file that lie in its inode. Chosen: with the inode's own they fit a page of the store.
pub const INLINE_BYTES_MAX: usize = 2048;
/// Bytes of a map that lies in the inode. Chosen likewise.
pub const EXTENTS_BYTES_MAX: usize = 2400;
/// By so much `reach` is raised at once. Chosen: a file that grows is changed once more each time.
pub(crate) const REACH_STEP: u64 = 64 << 20;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// The bytes themselves.
    Inline(Vec<u8>),
    /// Where all bytes lie.
    Extents(Map),
    /// Where records that say so are.
    Spans(Spans),
}

/// The map of a long file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spans {
    /// Drawn for it.
    pub map: u64,
    /// No span has anything from here on.
    pub reach: u64,
    /// Cuts that were begun.
    pub cuts: u32,
    /// Where the last one was made, until it is done.
    pub cut: Option<u64>,
}

impl Content {
    /// Of an empty file.
    pub fn empty() -> Content {
        Content::Inline(Vec::new())
    }

    /// Its bytes in an inode.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Content::Inline(bytes) => {
                out.push(0);
                out.extend(bytes);
            }
            Content::Extents(map) => {
                out.push(1);
                map.encode(0, &mut out);
            }
            Content::Spans(Spans { map, reach, cuts, cut }) => {
                out.push(2);
                out.extend(map.to_le_bytes());
                put_varint(&mut out, *reach);
                put_varint(&mut out, (*cuts).into());
                put_varint(&mut out, cut.map_or(0, |cut| cut + 1));
            }
        }
        out
    }

    /// The content that these bytes are; nothing is left of them.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn decode(bytes: &[u8], shape: Shape) -> Result<Content, Error> {
        let mut reader = Reader::new("the content of a file", bytes);
        match reader.u8()? {
            0 => {
                reader.check(reader.rest() <= INLINE_BYTES_MAX, "too many bytes in an inode")?;
                Ok(Content::Inline(reader.raw(reader.rest())?.to_vec()))
            }
            1 => {
                reader.check(reader.rest() <= EXTENTS_BYTES_MAX, "too long a map in an inode")?;
                Map::decode(reader.raw(reader.rest())?, shape, 0..FILE_BYTES_MAX).map(Content::Extents)
            }
            2 => {
                let map = reader.u64()?;
                let reach = reader.varint_to(FILE_BYTES_MAX, "its reach")?;
                let cuts = reader.varint_to(u32::MAX.into(), "its cuts")? as u32;
                let cut = reader.varint_to(reach + 1, "its cut")?.checked_sub(1);
                reader.end()?;
                Ok(Content::Spans(Spans { map, reach, cuts, cut }))
            }
            _ => Err(reader.damaged("its kind")),
        }
    }
}

/// What of an inode changes with its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// Where its bytes are.
    pub content: Content,
    /// How many.
    pub size: u64,
}

/// An inode as whoever reads and writes its bytes needs it. Times change with every [`Inode::store`].
pub trait Inode {
    /// Its number.
    fn number(&self) -> u64;

    /// How it stands; without `fresh` it may be as it was seen before.
    fn load(&self, fresh: bool) -> LocalFuture<'_, Result<(Rc<State>, Version), Error>>;

    /// Makes it stand so, if it still is at this version; false: it is not. An outcome of which no answer came is found out before
    /// this returns; after an error nobody knows it.
    fn store(&self, version: Version, state: State) -> LocalFuture<'_, Result<bool, Error>> {
        self.store_while(version, state, &|| Ok(()))
    }

    /// The same as long as it may be done, which is asked right before each try.
    fn store_while<'a>(
        &'a self,
        version: Version,
        state: State,
        may: &'a dyn Fn() -> Result<(), Error>,
    ) -> LocalFuture<'a, Result<bool, Error>>;

    /// The same, whether bytes may be changed or not: for what must not stay as it is.
    fn store_anyway(&self, version: Version, state: State) -> LocalFuture<'_, Result<bool, Error>> {
        self.store(version, state)
    }

    /// What its rows are paid from.
    fn funds(&self) -> Funds {
        Funds::none()
    }

    /// Whether bytes may be changed yet. It is asked right before each change of a map, as that may have been long in the making.
    ///
    /// # Errors
    /// Why not: what is not changed yet never will be.
    fn may_change(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn contents_are_what_was_encoded() {
        let shape = Shape::new(2, 1).unwrap();
        let spans = Spans { map: 7, reach: 1 << 40, cuts: 3, cut: Some(0) };
        let contents = [
            Content::empty(),
            Content::Inline(vec![1; INLINE_BYTES_MAX]),
            Content::Extents(Map::default()),
            Content::Spans(spans),
            Content::Spans(Spans { cut: None, ..spans }),
        ];
        for content in contents {
            assert_eq!(Content::decode(&content.encode(), shape), Ok(content));
        }
        assert!(Content::decode(&Content::Inline(vec![1; INLINE_BYTES_MAX + 1]).encode(), shape).is_err());
    }

    proptest! {
        #[test]
        fn foreign_bytes_are_content_or_damage(kind in 0..4u8, bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let bytes = [&[kind][..], &bytes].concat();
            if let Ok(content) = Content::decode(&bytes, Shape::new(2, 1).unwrap()) {
                prop_assert_eq!(content.encode(), bytes);
            }
        }
    }
}
