//! Appending: bytes go behind all that others have appended before, whoever they are.
//!
//! Where a file's map lies in its inode, the compare-and-set that names the bytes says where they are, too. Of a long file the
//! bytes are put into stripes, then the file is made longer by a compare-and-set of its size, and then its map names them: between
//! the two, and for good where the writer dies there, they are zeroes.

use std::rc::Rc;

use super::content::{Content, Inode, State};
use super::cut::Behind;
use super::file::{Contents, TRIES_MAX, before_try};
use super::map::FILE_BYTES_MAX;
use super::rope::Rope;
use super::writer::{Step, Write};
use crate::error::Error;

impl Contents {
    /// Writes bytes at a file's end: where that was. When it returns they are stable, and all clients see them.
    ///
    /// # Errors
    /// As [`Contents::write`].
    pub async fn append(self: &Rc<Self>, inode: &dyn Inode, data: Rope) -> Result<u64, Error> {
        let mut behind = Behind::default();
        for attempt in 0..TRIES_MAX {
            before_try(attempt).await;
            let (state, version) = inode.load(true).await?;
            let (at, size) = (state.size, state.size.saturating_add(data.len() as u64));
            if size > FILE_BYTES_MAX {
                return Err(Error::TooLong(FILE_BYTES_MAX));
            }
            let mut write = Write::new(vec![(at, data.clone())]);
            let step = match &state.content {
                Content::Inline(bytes) => self.write_inline(inode, &state, version, bytes, &mut write).await?,
                Content::Extents(map) => self.write_extents(inode, &state, version, map, &mut write).await?,
                Content::Spans(spans) if spans.cut.is_some() => {
                    self.finish_cut(inode, &state, version, *spans).await?;
                    Step::Again
                }
                Content::Spans(spans) if at < spans.reach && !behind.is_nothing(spans) => {
                    self.begin_cut(inode, &state, version, *spans, at).await?;
                    Step::Again
                }
                Content::Spans(_) => {
                    // What may fail for want of members or of room comes first.
                    self.put_missing(inode, &mut write).await?;
                    let longer = State { size, ..(*state).clone() };
                    if inode.store(version, longer).await? {
                        return self.write_out(inode, write).await.map(|()| at);
                    }
                    Step::Again
                }
            };
            if matches!(step, Step::Done) {
                self.space.tend().await;
                return Ok(at);
            }
        }
        Err(Error::Unavailable("others change the file all the time".into()))
    }
}
