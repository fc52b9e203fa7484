//! [`Audit`]: records of space beside the stripes that maps name: what contradicts, and what nobody has. [`Auditor`] looks, and
//! clears what nobody has.

use std::rc::Rc;

use super::chunk::{After, Chunk, DYING, REGIONS_PER_PAGE, Region, RegionPage, Run};
use super::chunks::Chunks;
use super::key;
use super::member::Members;
use super::record::{self, Next};
use super::stripe::Stripe;
use super::survey::{Contradiction, Regions, Survey, Surveyed, Wrong};
use crate::error::Error;
use crate::meta::{Meta, Version};

/// A chunk, and what of it is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkAudit {
    /// Its number.
    pub number: u32,
    /// Of its record, as it was seen.
    pub version: Version,
    /// The client that marks rows of it, if there is one.
    pub owner: Option<u64>,
    /// It gives its regions back, and whoever did that may be gone.
    pub is_dying: bool,
    /// Rows that are marked, of each of its columns.
    pub marked: u32,
    /// Of these, those that no stripe has: its owner's, or of a client that is gone. First row and how many.
    pub unnamed: Vec<(u32, u32)>,
}

/// See the module. Taken while files are changed, it sees faults that are none: what was written since the maps were read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Audit {
    /// All chunks.
    pub chunks: Vec<ChunkAudit>,
    /// What must not be, in words.
    pub faults: Vec<String>,
    /// Regions that a chunk has by their member's record, and not by its own; with the chunk's number.
    pub stray: Vec<(Region, u32)>,
}

/// Looks at space as a whole.
pub struct Auditor {
    meta: Rc<dyn Meta>,
    members: Rc<Members>,
    chunks: Chunks,
}

impl Auditor {
    /// Of a file system.
    pub fn new(meta: Rc<dyn Meta>, members: Rc<Members>) -> Auditor {
        let chunks = Chunks::new(Rc::clone(&meta), Rc::clone(&members));
        Auditor { meta, members, chunks }
    }

    /// Compares all records of space with the stripes that maps name.
    ///
    /// # Errors
    /// What the store says, and records that do not parse.
    pub async fn audit(&self, named: &[Rc<Stripe>]) -> Result<Audit, Error> {
        let mut survey = self.survey().await?;
        named.iter().for_each(|stripe| survey.name(stripe));
        let Regions { wrong, stray, damaged } = self.regions(&survey).await?;
        if let Some(why) = survey.damaged.values().chain(&damaged).next() {
            return Err(Error::Damaged(why.clone()));
        }
        let faults = survey.suspects().iter().map(|(chunk, run, what)| shown(*chunk, *run, *what));
        let faults = faults.chain(wrong.into_iter().map(shown_region)).collect();
        let chunks = survey.chunks.iter().map(|(number, at)| audit_of(*number, at)).collect();
        Ok(Audit { chunks, faults, stray })
    }

    /// All chunks as they stand.
    pub(crate) async fn survey(&self) -> Result<Survey, Error> {
        Survey::read(&*self.meta, &self.chunks, &self.members).await
    }

    /// Regions of members beside them.
    pub(crate) async fn regions(&self, survey: &Survey) -> Result<Regions, Error> {
        survey.regions(&*self.meta, &self.members).await
    }

    /// A chunk as it stands now.
    pub(crate) async fn chunk(&self, number: u32) -> Result<Option<Chunk>, Error> {
        self.chunks.load(number).await
    }

    /// The chunk that a region is by its member's record.
    pub(crate) async fn holder(&self, region: Region) -> Result<Option<u32>, Error> {
        let (page, at) = (region.region / REGIONS_PER_PAGE, region.region % REGIONS_PER_PAGE);
        let key = key::regions(&self.members.layout().fs, region.member, page);
        let found = record::load(&*self.meta, &key).await?;
        let page = RegionPage::decode(found.as_ref().map(|found| &*found.body))?;
        Ok(page.taken().find(|(region, _)| *region == at).map(|(_, chunk)| chunk))
    }

    /// Clears marks of rows that no stripe has, of a chunk whose owner is gone or whose rows have had no change for an hour; with
    /// `disowns` the chunk is nobody's then. One that has room then is listed, one without marks gives its regions back, and so
    /// does one that is dying. False: the chunk has been changed since it was looked at, and stays.
    ///
    /// # Errors
    /// What the store says.
    pub async fn clear(&self, chunk: &ChunkAudit, rows: &[(u32, u32)], disowns: bool) -> Result<bool, Error> {
        let runs: Vec<Run> = rows.iter().map(|(row, rows)| Run { row: *row, rows: *rows }).collect();
        self.clear_at(chunk.number, chunk.version, &runs, disowns).await
    }

    pub(crate) async fn clear_at(
        &self,
        number: u32,
        version: Version,
        runs: &[Run],
        disowns: bool,
    ) -> Result<bool, Error> {
        let key = self.chunks.key(number);
        // At any other version somebody may have taken these rows, or the chunk.
        let cleared = record::change_at(&*self.meta, &key, version, |body| {
            let mut chunk = self.chunks.decode(body)?;
            if chunk.owner == DYING {
                return Ok(Next::Keep(After::Bury));
            }
            let after = chunk.clear(number, runs, disowns);
            Ok(Next::Put(chunk.encode(), after))
        });
        let Some(after) = cleared.await.map_err(|failed| failed.error)? else { return Ok(false) };
        self.chunks.see_to(number, after).await?;
        Ok(true)
    }

    /// Chunks of a client, as they stand. Where it is no more they are made nobody's, and what it had marked stays marked: some of
    /// it may be named.
    pub(crate) async fn owned(&self, client: u64) -> Result<Vec<(u32, Version)>, Error> {
        let survey = self.survey().await?;
        let owned = survey.chunks.iter().filter(|(_, at)| at.owner() == Some(client));
        Ok(owned.map(|(number, at)| (*number, at.version)).collect())
    }

    /// Gives back the regions of a dying chunk.
    pub(crate) async fn bury(&self, number: u32) -> Result<(), Error> {
        self.chunks.see_to(number, After::Bury).await
    }

    /// Takes regions from a chunk that has them by their members' records alone.
    pub(crate) async fn give_back(&self, region: Region, chunk: u32) -> Result<(), Error> {
        self.chunks.regions.give_back(chunk, &[region]).await
    }

    /// The list of chunks without an owner.
    pub(crate) async fn unowned(&self) -> Result<Vec<u32>, Error> {
        self.chunks.unowned.load().await
    }

    /// Puts a chunk into that list, or takes it out.
    pub(crate) async fn set_unowned(&self, number: u32, is_listed: bool) -> Result<(), Error> {
        match is_listed {
            true => self.chunks.unowned.add(number).await,
            false => self.chunks.unowned.remove(number).await,
        }
    }
}

fn shown(chunk: u32, run: Run, what: Contradiction) -> String {
    match what {
        Contradiction::Absent => format!("a stripe lies in chunk {chunk}, which is not there"),
        Contradiction::Unmarked => {
            format!("rows {:?} of chunk {chunk} are in a stripe and not marked", run.range())
        }
        Contradiction::Twice => format!("a row of {:?} of chunk {chunk} is in two stripes", run.range()),
    }
}

fn shown_region(wrong: Wrong) -> String {
    match wrong {
        Wrong::Shared(region, chunk, other) => format!("{region:?} is in chunks {chunk} and {other}"),
        Wrong::Others(region, chunk, 0) => format!("{region:?} of chunk {chunk} is free"),
        Wrong::Others(region, chunk, other) => format!("{region:?} of chunk {chunk} is chunk {other}'s"),
    }
}

fn audit_of(number: u32, at: &Surveyed) -> ChunkAudit {
    ChunkAudit {
        number,
        version: at.version,
        owner: at.owner(),
        is_dying: at.is_dying(),
        marked: at.chunk.marks.marked(),
        unnamed: at.unnamed().into_iter().map(|run| (run.row, run.rows)).collect(),
    }
}
