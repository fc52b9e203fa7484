//! [`Audit`]: records of space beside the stripes that maps name: what contradicts, and what nobody has.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::chunk::{After, Chunk, DYING, Marks, NOBODY, REGIONS_PER_PAGE, Region, RegionPage, Run};
use super::chunks::Chunks;
use super::key;
use super::member::Members;
use super::record::{self, Next};
use super::stripe::Stripe;
use crate::error::Error;
use crate::meta::{Meta, Version};

/// Keys that are asked for at once.
const KEYS_LISTED: usize = 256;

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
        let mut audit = Audit::default();
        let seen = self.all_chunks().await?;
        let versions: BTreeMap<u32, Version> = seen.iter().map(|(number, (_, version))| (*number, *version)).collect();
        let chunks: BTreeMap<u32, Chunk> = seen.into_iter().map(|(number, (chunk, _))| (number, chunk)).collect();
        let mut by_chunk: BTreeMap<u32, Vec<Run>> = BTreeMap::new();
        for stripe in named {
            let run = Run { row: stripe.id.row, rows: stripe.rows(self.members.layout().shape) };
            by_chunk.entry(stripe.id.chunk).or_default().push(run);
        }
        for (number, runs) in &by_chunk {
            let Some(chunk) = chunks.get(number) else {
                audit.faults.push(format!("{} stripes lie in chunk {number}, which is not there", runs.len()));
                continue;
            };
            audit.faults.extend(faults_of(*number, chunk, runs));
        }
        for (number, chunk) in &chunks {
            let named = by_chunk.get(number).map_or(&[][..], Vec::as_slice);
            audit.chunks.push(audit_of(*number, versions[number], chunk, named));
        }
        self.audit_regions(&chunks, &mut audit).await?;
        Ok(audit)
    }

    /// Clears marks of rows that no stripe has, of a chunk whose owner is gone or whose rows have had no change for an hour; with
    /// `disowns` the chunk is nobody's then. One that has room then is listed, one without marks gives its regions back, and so
    /// does one that is dying. False: the chunk has been changed since it was looked at, and stays.
    ///
    /// # Errors
    /// What the store says.
    pub async fn clear(&self, chunk: &ChunkAudit, rows: &[(u32, u32)], disowns: bool) -> Result<bool, Error> {
        let (number, key) = (chunk.number, self.chunks.key(chunk.number));
        let runs: Vec<Run> = rows.iter().map(|(row, rows)| Run { row: *row, rows: *rows }).collect();
        // At any other version somebody may have taken these rows, or the chunk.
        let cleared = record::change_at(&*self.meta, &key, chunk.version, |body| {
            let mut chunk = self.chunks.decode(body)?;
            if chunk.owner == DYING {
                return Ok(Next::Keep(After::Bury));
            }
            let after = chunk.clear(number, &runs, disowns);
            Ok(Next::Put(chunk.encode(), after))
        });
        let Some(after) = cleared.await.map_err(|failed| failed.error)? else { return Ok(false) };
        self.chunks.see_to(number, after).await?;
        Ok(true)
    }

    async fn all_chunks(&self) -> Result<BTreeMap<u32, (Chunk, Version)>, Error> {
        let prefix = key::chunks(&self.members.layout().fs);
        let (mut chunks, mut cursor) = (BTreeMap::new(), 0);
        loop {
            let (keys, next) = self.meta.list(&prefix, cursor, KEYS_LISTED).await?;
            for key in keys {
                let number =
                    key.strip_prefix(&*prefix).and_then(|rest| Some(u32::from_be_bytes(rest.try_into().ok()?)));
                let number = number.ok_or_else(|| Error::Damaged("the key of a chunk".into()))?;
                if let Some(found) = record::load(&*self.meta, &key).await? {
                    chunks.insert(number, (self.chunks.decode(&found.body)?, found.version));
                }
            }
            if next == 0 {
                return Ok(chunks);
            }
            cursor = next;
        }
    }

    /// Each region of a chunk is its own by the member's record, and the other way round.
    async fn audit_regions(&self, chunks: &BTreeMap<u32, Chunk>, audit: &mut Audit) -> Result<(), Error> {
        let mut of_chunks: BTreeMap<Region, u32> = BTreeMap::new();
        for (number, chunk) in chunks {
            for region in &chunk.columns {
                if let Some(other) = of_chunks.insert(*region, *number) {
                    audit.faults.push(format!("{region:?} is in chunks {number} and {other}"));
                }
            }
        }
        for member in self.members.all() {
            for page in 0..member.regions().div_ceil(REGIONS_PER_PAGE) {
                let key = key::regions(&self.members.layout().fs, member.index(), page);
                let found = record::load(&*self.meta, &key).await?;
                let taken = RegionPage::decode(found.as_ref().map(|found| &*found.body))?;
                for (at, chunk) in taken.taken() {
                    let region = Region { member: member.index(), region: page * REGIONS_PER_PAGE + at };
                    match of_chunks.remove(&region) {
                        Some(owner) if owner == chunk => {}
                        Some(owner) => audit.faults.push(format!("{region:?} of chunk {owner} is chunk {chunk}'s")),
                        None => audit.stray.push((region, chunk)),
                    }
                }
            }
        }
        // A dying chunk's may be given back already.
        of_chunks.retain(|_, number| chunks.get(number).is_none_or(|chunk| chunk.owner != DYING));
        audit
            .faults
            .extend(of_chunks.into_iter().map(|(region, chunk)| format!("{region:?} of chunk {chunk} is free")));
        Ok(())
    }
}

fn faults_of(number: u32, chunk: &Chunk, runs: &[Run]) -> Vec<String> {
    let mut runs = runs.to_vec();
    runs.sort_unstable();
    let twice = runs.windows(2).filter(|pair| pair[0].row + pair[0].rows > pair[1].row);
    let twice = twice.map(|pair| format!("row {} of chunk {number} is in two stripes", pair[1].row));
    let unmarked = runs.iter().filter(|run| !chunk.marks.holds(**run));
    let unmarked =
        unmarked.map(|run| format!("rows {:?} of chunk {number} are in a stripe and not marked", run.range()));
    twice.chain(unmarked).collect()
}

fn audit_of(number: u32, version: Version, chunk: &Chunk, named: &[Run]) -> ChunkAudit {
    let mut marks: Marks = chunk.marks.clone();
    named.iter().for_each(|run| marks.clear(*run));
    let is_dying = chunk.owner == DYING;
    let owner = Some(chunk.owner).filter(|owner| *owner != NOBODY && !is_dying);
    let unnamed = marks.marked_runs().into_iter().map(|run| (run.row, run.rows)).collect();
    ChunkAudit { number, version, owner, is_dying, marked: chunk.marks.marked(), unnamed }
}
