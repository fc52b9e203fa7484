//! [`Places`]: where chunks lie, as far as it is remembered.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::chunk::Chunk;
use super::chunks::Chunks;
use super::member::Members;
use super::rows::ChunkPlace;
use crate::error::Error;

/// Places that are remembered.
const PLACES_KEPT: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Places(RefCell<BTreeMap<u32, Rc<ChunkPlace>>>);

impl Places {
    /// Where a chunk lies; `None`: there is no such chunk. Members of it that have joined since this client has heard of members
    /// are asked for first.
    pub(crate) async fn get(
        &self,
        chunks: &Chunks,
        members: &Members,
        number: u32,
    ) -> Result<Option<Rc<ChunkPlace>>, Error> {
        if let Some(place) = self.known(number) {
            return Ok(Some(place));
        }
        let Some(Chunk { columns, .. }) = chunks.load(number).await? else { return Ok(None) };
        if columns.iter().any(|column| members.get(column.member).is_none()) {
            members.learn().await;
        }
        let place = Rc::new(ChunkPlace { number, columns });
        let mut places = self.0.borrow_mut();
        if places.len() >= PLACES_KEPT {
            places.clear();
        }
        places.insert(number, Rc::clone(&place));
        Ok(Some(place))
    }

    /// Where a chunk lies, if that is remembered.
    pub(crate) fn known(&self, number: u32) -> Option<Rc<ChunkPlace>> {
        self.0.borrow().get(&number).cloned()
    }

    /// It may be another one of the same number.
    pub(crate) fn forget(&self, number: u32) {
        self.0.borrow_mut().remove(&number);
    }
}
