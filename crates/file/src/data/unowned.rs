//! The list of chunks that nobody owns and that have free rows: where a client looks before it makes a chunk.
//!
//! Hints, each looked at before it is used: a chunk that was forgotten here, as the list was full, is found by `fsck`, and by who
//! finds no room without it.

use std::rc::Rc;

use super::chunk::{UNOWNED_MAX, decode_list, encode_list};
use super::key::{self, FsId};
use super::record::{self, Next};
use crate::error::Error;
use crate::meta::Meta;

pub(crate) struct Unowned {
    meta: Rc<dyn Meta>,
    key: Vec<u8>,
}

impl Unowned {
    pub(crate) fn new(meta: Rc<dyn Meta>, fs: &FsId) -> Unowned {
        Unowned { meta, key: key::unowned(fs) }
    }

    pub(crate) async fn load(&self) -> Result<Vec<u32>, Error> {
        let found = record::load(&*self.meta, &self.key).await?;
        decode_list(found.as_ref().map(|found| &*found.body))
    }

    pub(crate) async fn add(&self, chunk: u32) -> Result<(), Error> {
        self.add_all(&[chunk]).await
    }

    /// As many of these as there is room for.
    pub(crate) async fn add_all(&self, chunks: &[u32]) -> Result<(), Error> {
        self.change(|list| {
            let before = list.len();
            for chunk in chunks {
                if !list.contains(chunk) && list.len() < UNOWNED_MAX {
                    list.push(*chunk);
                }
            }
            list.len() > before
        })
        .await
    }

    pub(crate) async fn remove(&self, chunk: u32) -> Result<(), Error> {
        self.change(|list| {
            let before = list.len();
            list.retain(|other| *other != chunk);
            list.len() < before
        })
        .await
    }

    async fn change(&self, mut edit: impl FnMut(&mut Vec<u32>) -> bool) -> Result<(), Error> {
        record::ensure(&*self.meta, &self.key, |body| {
            let mut list = decode_list(body)?;
            Ok(match (edit(&mut list), list.is_empty()) {
                (false, _) => Next::Keep(()),
                (true, true) => Next::Remove(()),
                (true, false) => Next::Put(encode_list(&list), ()),
            })
        })
        .await
    }
}
