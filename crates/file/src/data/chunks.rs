//! [`Chunks`]: records of chunks, and what is done with one when its marks have been cleared: one that has room is listed, one
//! without marks is buried.

use std::rc::Rc;

use super::chunk::{After, Chunk, DYING, UNOWNED_MAX};

use super::key;
use super::member::Members;
use super::pending::{Few, TOGETHER};
use super::record::{self, Next};
use super::regions::Regions;
use super::rest::unix_now;
use super::unowned::Unowned;
use crate::error::Error;
use crate::meta::Meta;

/// Keys that are asked for at once.
const KEYS_LISTED: usize = 1024;

pub(crate) struct Chunks {
    meta: Rc<dyn Meta>,
    members: Rc<Members>,
    pub(crate) regions: Regions,
    pub(crate) unowned: Unowned,
}

impl Chunks {
    pub(crate) fn new(meta: Rc<dyn Meta>, members: Rc<Members>) -> Chunks {
        let regions = Regions::new(Rc::clone(&meta), Rc::clone(&members));
        let unowned = Unowned::new(Rc::clone(&meta), &members.layout().fs);
        Chunks { meta, members, regions, unowned }
    }

    /// The key of a chunk's record.
    pub(crate) fn key(&self, number: u32) -> Vec<u8> {
        key::chunk(&self.members.layout().fs, number)
    }

    /// A chunk of this file system: with as many columns and rows as all have.
    pub(crate) fn decode(&self, body: &[u8]) -> Result<Chunk, Error> {
        let layout = self.members.layout();
        let chunk = Chunk::decode(body)?;
        let (columns, rows) = (chunk.columns.len(), chunk.marks.rows());
        if (columns, rows) == (layout.shape.columns(), layout.region_rows()) {
            return Ok(chunk);
        }
        Err(Error::Damaged(format!("the record of a chunk: {columns} columns of {rows} rows, as no chunk here has")))
    }

    /// A chunk, if there is one of this number.
    pub(crate) async fn load(&self, number: u32) -> Result<Option<Chunk>, Error> {
        let found = record::load(&*self.meta, &self.key(number)).await?;
        found.map(|found| self.decode(&found.body)).transpose()
    }

    /// Numbers of chunks, some at a time, from `cursor` on (0: from the start), and where to go on (0: that was all).
    pub(crate) async fn numbers(&self, cursor: u64) -> Result<(Vec<u32>, u64), Error> {
        let prefix = key::chunks(&self.members.layout().fs);
        let (keys, next) = self.meta.list(&prefix, cursor, KEYS_LISTED).await?;
        // A key that is none is told by whoever reads all keys.
        let number = |key: &Vec<u8>| Some(u32::from_be_bytes(key.strip_prefix(&*prefix)?.try_into().ok()?));
        Ok((keys.iter().filter_map(number).collect(), next))
    }

    /// Lists chunks that nobody owns and that have room, and are not in the list: it was full when they got that. Whether there
    /// are any.
    pub(crate) async fn list_forgotten(&self) -> Result<bool, Error> {
        let listed = self.unowned.load().await?;
        let (mut found, mut cursor) = (Vec::new(), 0);
        loop {
            let (numbers, next) = self.numbers(cursor).await?;
            let (mut few, mut numbers) = (Few::new(), numbers.into_iter().filter(|number| !listed.contains(number)));
            loop {
                while few.keys().count() < TOGETHER
                    && let Some(number) = numbers.next()
                {
                    few.push(number, self.load(number));
                }
                let Some((number, chunk)) = few.next().await else { break };
                match chunk {
                    Ok(chunk) => found.extend(chunk.filter(Chunk::is_listed).map(|_| number)),
                    // `fsck` tells of it.
                    Err(Error::Damaged(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            if next == 0 || listed.len() + found.len() >= UNOWNED_MAX {
                break;
            }
            cursor = next;
        }
        if !found.is_empty() {
            self.unowned.add_all(&found).await?;
        }
        Ok(!found.is_empty())
    }

    /// Does what is to be done after marks of a chunk were cleared.
    pub(crate) async fn see_to(&self, number: u32, after: After) -> Result<(), Error> {
        match after {
            After::Nothing => Ok(()),
            After::List => self.unowned.add(number).await,
            After::Bury => {
                self.bury(number).await?;
                self.unowned.remove(number).await
            }
        }
    }

    /// Clears what of a chunk has rested, or rests for the sake of members alone that get nothing new: the chunk is closed for
    /// that, as its owner may not have heard of it. All pages of these members must be closed. One that is dying is buried.
    pub(crate) async fn tidy(&self, number: u32) -> Result<(), Error> {
        let key = self.key(number);
        let tidied = record::change(&*self.meta, &key, |body| {
            let Some(body) = body else { return Ok(Next::Keep(After::Nothing)) };
            let mut chunk = self.decode(body)?;
            if chunk.owner == DYING {
                return Ok(Next::Keep(After::Bury));
            }
            let harmless = self.members.out_of(&chunk.columns);
            if !chunk.marks.wake(unix_now(), harmless) {
                return Ok(Next::Keep(After::Nothing));
            }
            let after = chunk.clear(number, &[], false);
            Ok(Next::Put(chunk.encode(), after))
        });
        let after = tidied.await.map_err(|failed| failed.error)?;
        self.see_to(number, after).await
    }

    /// Gives the regions of a dying chunk back; whoever meets it does.
    pub(crate) async fn bury(&self, number: u32) -> Result<(), Error> {
        let Some(chunk) = self.load(number).await?.filter(|chunk| chunk.owner == DYING) else { return Ok(()) };
        self.regions.give_back(number, &chunk.columns).await?;
        record::ensure(&*self.meta, &self.key(number), |body| {
            let owner = body.map(Chunk::decode).transpose()?.map(|chunk| chunk.owner);
            Ok(if owner == Some(DYING) { Next::Remove(()) } else { Next::Keep(()) })
        })
        .await
    }
}
