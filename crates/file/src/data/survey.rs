//! [`Survey`]: all records of space as they stood when they were read, and which of their rows maps name.
//!
//! Taken while files are changed, it sees contradictions that are none: each is looked at once more by whoever tells of it.
//! Memory: three sets of marks a chunk, 6 KiB with the longest regions, which is a 10,000th of what such a chunk holds.

use std::collections::{BTreeMap, BTreeSet};

use super::chunk::{Chunk, Marks, NOBODY, REGIONS_PER_PAGE, Region, RegionPage, Run};
use super::chunks::Chunks;
use super::key;
use super::member::Members;
use super::record;
use super::shape::Shape;
use super::stripe::Stripe;
use crate::error::Error;
use crate::meta::{Meta, Version};

/// Stripes that seem to contradict, of which each is looked at again. Chosen: thousands are one fault.
const SUSPECTS_MAX: usize = 4096;

/// A chunk as it was read.
pub(crate) struct Surveyed {
    pub(crate) version: Version,
    pub(crate) chunk: Chunk,
    named: Marks,
    /// Rows that only what goes names, or what nobody has: somebody may be about to free them.
    held: Marks,
    /// What maps name of it contradicts its record, or other maps.
    pub(crate) is_contradicted: bool,
}

impl Surveyed {
    /// The client that marks rows of it.
    pub(crate) fn owner(&self) -> Option<u64> {
        Some(self.chunk.owner).filter(|owner| *owner != NOBODY && !self.is_dying())
    }

    /// It gives its regions back.
    pub(crate) fn is_dying(&self) -> bool {
        self.chunk.is_dying()
    }

    /// Rows that are marked and that no map has named.
    pub(crate) fn unnamed(&self) -> Vec<Run> {
        self.marked_unnamed().marked_runs()
    }

    fn marked_unnamed(&self) -> Marks {
        let mut marks = self.chunk.marks.bare();
        marks.clear_all(&self.named);
        marks
    }

    /// Of these, those that nothing names that is about to go. Rows that rest are among them: when nobody has named them for an
    /// hour, late commands are over, whatever the clock said that noted their time.
    pub(crate) fn free(&self) -> Marks {
        let mut marks = self.marked_unnamed();
        marks.clear_all(&self.held);
        marks
    }
}

/// How rows that a map names contradict what chunks say.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Contradiction {
    /// Their chunk is not there.
    Absent,
    /// They are not marked, or rest, so that others may take them.
    Unmarked,
    /// Another stripe has one of them.
    Twice,
}

/// Regions of which chunk and member say different things.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Wrong {
    /// Two chunks have it.
    Shared(Region, u32, u32),
    /// The first chunk has it, and by the member's record the second (0: none).
    Others(Region, u32, u32),
}

/// What members' records say of regions, beside the chunks.
#[derive(Default)]
pub(crate) struct Regions {
    pub(crate) wrong: Vec<Wrong>,
    /// By the member's record the chunk has it, and by its own it does not, or is not there.
    pub(crate) stray: Vec<(Region, u32)>,
    /// Records that do not parse.
    pub(crate) damaged: Vec<String>,
}

/// See the module.
pub(crate) struct Survey {
    shape: Shape,
    pub(crate) chunks: BTreeMap<u32, Surveyed>,
    /// Chunks whose records do not parse, and why: what lies in them is neither named nor not.
    pub(crate) damaged: BTreeMap<u32, String>,
    suspects: BTreeSet<(u32, Run, Contradiction)>,
}

impl Survey {
    /// All chunks, none of their rows named yet.
    pub(crate) async fn read(meta: &dyn Meta, chunks: &Chunks, members: &Members) -> Result<Survey, Error> {
        let mut cursor = 0;
        let mut survey = Survey {
            shape: members.layout().shape,
            chunks: BTreeMap::new(),
            damaged: BTreeMap::new(),
            suspects: BTreeSet::new(),
        };
        loop {
            let (numbers, next) = chunks.numbers(cursor).await?;
            for number in numbers {
                survey.add(meta, chunks, number).await?;
            }
            if next == 0 {
                return Ok(survey);
            }
            cursor = next;
        }
    }

    async fn add(&mut self, meta: &dyn Meta, chunks: &Chunks, number: u32) -> Result<(), Error> {
        let read = async {
            let found = record::load(meta, &chunks.key(number)).await?;
            found.map(|found| Ok((found.version, chunks.decode(&found.body)?))).transpose()
        };
        match read.await {
            Ok(Some((version, chunk))) => {
                let named = Marks::new(chunk.marks.rows());
                let held = named.clone();
                self.chunks.insert(number, Surveyed { version, chunk, named, held, is_contradicted: false });
            }
            Ok(None) => {}
            Err(Error::Damaged(why)) => drop(self.damaged.insert(number, why)),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Rows of a stripe.
    pub(crate) fn run(&self, stripe: &Stripe) -> Run {
        Run { row: stripe.id.row, rows: stripe.rows(self.shape) }
    }

    /// What goes, or what nobody has, names a stripe.
    pub(crate) fn hold(&mut self, stripe: &Stripe) {
        let run = self.run(stripe);
        if let Some(at) = self.chunks.get_mut(&stripe.id.chunk) {
            at.held.set_within(run);
        }
    }

    /// A map names a stripe, which no other map does. Its rows are named whatever contradicts that: they are nobody's to clear.
    pub(crate) fn name(&mut self, stripe: &Stripe) {
        let (number, run) = (stripe.id.chunk, self.run(stripe));
        if self.damaged.contains_key(&number) {
            return;
        }
        let contradiction = match self.chunks.get_mut(&number) {
            None => Contradiction::Absent,
            Some(at) => {
                let is_marked = !at.is_dying() && at.chunk.marks.keeps(run);
                let is_shared = is_marked && at.named.touches(run);
                at.named.set_within(run);
                if is_marked && !is_shared {
                    return;
                }
                at.is_contradicted = true;
                if is_marked { Contradiction::Twice } else { Contradiction::Unmarked }
            }
        };
        if self.suspects.len() < SUSPECTS_MAX {
            self.suspects.insert((number, run, contradiction));
        }
    }

    /// What seems to contradict; in the order of chunks.
    pub(crate) fn suspects(&self) -> &BTreeSet<(u32, Run, Contradiction)> {
        &self.suspects
    }

    /// Whether a stripe has rows that seem to contradict.
    pub(crate) fn is_suspect(&self, stripe: &Stripe) -> bool {
        let (number, run) = (stripe.id.chunk, self.run(stripe));
        let of_chunk = self.suspects.iter().filter(|(chunk, ..)| *chunk == number);
        of_chunk.into_iter().any(|(_, other, _)| overlap(*other, run))
    }

    /// Each region of a chunk is its own by the member's record, and the other way round.
    pub(crate) async fn regions(&self, meta: &dyn Meta, members: &Members) -> Result<Regions, Error> {
        let (mut found, mut of_chunks) = (Regions::default(), BTreeMap::<Region, u32>::new());
        for (number, at) in &self.chunks {
            for region in &at.chunk.columns {
                if let Some(other) = of_chunks.insert(*region, *number) {
                    found.wrong.push(Wrong::Shared(*region, *number, other));
                }
            }
        }
        for member in members.all() {
            for page in 0..member.regions().div_ceil(REGIONS_PER_PAGE) {
                let regions = |at: u32| Region { member: member.index(), region: page * REGIONS_PER_PAGE + at };
                let record = record::load(meta, &key::regions(&members.layout().fs, member.index(), page)).await;
                let taken = record.and_then(|found| RegionPage::decode(found.as_ref().map(|found| &*found.body)));
                let taken = match taken {
                    Ok(taken) => taken,
                    Err(Error::Damaged(why)) => {
                        found.damaged.push(format!("page {page} of the regions of member {}: {why}", member.index()));
                        of_chunks.retain(|region, _| !(regions(0)..regions(REGIONS_PER_PAGE)).contains(region));
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                for (at, chunk) in taken.taken() {
                    match of_chunks.remove(&regions(at)) {
                        Some(owner) if owner == chunk => {}
                        Some(owner) => found.wrong.push(Wrong::Others(regions(at), owner, chunk)),
                        None => found.stray.push((regions(at), chunk)),
                    }
                }
            }
        }
        // Where a chunk's record does not parse, its regions are its own.
        found.stray.retain(|(_, chunk)| !self.damaged.contains_key(chunk));
        // A dying chunk's may be given back already.
        let is_dying = |number: &u32| self.chunks.get(number).is_some_and(Surveyed::is_dying);
        let free = of_chunks.into_iter().filter(|(_, number)| !is_dying(number));
        found.wrong.extend(free.map(|(region, chunk)| Wrong::Others(region, chunk, 0)));
        Ok(found)
    }
}

/// Whether two runs of one chunk have a row in common.
pub(crate) fn overlap(a: Run, b: Run) -> bool {
    a.row < b.row + b.rows && b.row < a.row + a.rows
}
