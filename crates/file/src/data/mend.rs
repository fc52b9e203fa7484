//! Mending: a stripe that lacks something is written anew elsewhere, if it is still named, and if the new one lacks less.
//!
//! What is found of a stripe counts only where its file still named it afterwards: a stripe that was freed meanwhile is another's
//! rows, which do not verify, and no fault.

use std::ops::Range;
use std::rc::Rc;

use engine::job::Job;
use erasure::UNITS_MAX;

use super::content::Inode;
use super::examine::Examined;
use super::file::Contents;
use super::map::Extent;
use super::rows::ChunkPlace;
use super::stripe::Stripe;
use crate::error::Error;

/// What is asked of a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// Whether all its columns are there, and what was written.
    Scrub,
    /// Whether a column was not written, or lies on a member that is to be empty. Nothing is read for that.
    Rebuild,
}

/// What is wrong with a column.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Fault {
    /// It was not written.
    Missing = 1,
    /// Its member is to be empty.
    Leaving,
    /// Its bytes are not what was written.
    Rotten,
    /// Its member did not answer.
    Unread,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 4] = [Fault::Missing, Fault::Leaving, Fault::Rotten, Fault::Unread];
}

/// What became of a stripe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It lacks nothing that is known of.
    Sound,
    /// It was written anew.
    Rewritten,
    /// Its file has nothing in it any more.
    Overtaken,
    /// These bytes of the file can't be read, and why. What else is in the stripe was written anew, or not.
    Lost {
        /// Parts of the file.
        ranges: Vec<Range<u64>>,
        /// Which columns failed, and how.
        reason: String,
        /// Whether the rest was written anew.
        is_rewritten: bool,
    },
    /// It could not be read now, as members did not answer, whose columns could make it up; it is as it was.
    Unread(String),
    /// It could not be written anew now; it is as it was.
    Failed(Error),
}

/// What was found of a stripe, and what became of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Columns that are not as they should be, by their members.
    pub faults: Vec<(u16, Fault)>,
    /// See there.
    pub outcome: Outcome,
}

/// What is known of a stripe.
struct Found {
    place: Option<Rc<ChunkPlace>>,
    missing: u32,
    out: u32,
    /// Of `out` those whose members can't be reached.
    gone: u32,
    examined: Examined,
}

impl Found {
    /// Columns that a new stripe is to have.
    fn bad(&self) -> u32 {
        self.missing | self.out | self.examined.rotten
    }

    /// How many columns a new stripe may lack: no more than this one does, of which those that merely leave can be read; and
    /// fewer than are bad, or it would be written again for ever.
    fn may_lack(&self) -> u32 {
        let lacks = self.missing | self.gone | self.examined.rotten;
        lacks.count_ones().min(self.bad().count_ones().saturating_sub(1))
    }

    fn faults(&self) -> Vec<(u16, Fault)> {
        let Examined { rotten, unread, .. } = self.examined;
        let kinds = [
            (self.missing, Fault::Missing),
            (self.out, Fault::Leaving),
            (rotten, Fault::Rotten),
            (unread & !rotten & !self.out, Fault::Unread),
        ];
        let columns = || (0u32..).zip(self.place.iter().flat_map(|place| &place.columns));
        let of_kind = |(bits, fault): (u32, Fault)| {
            columns().filter(move |(column, _)| bits >> column & 1 == 1).map(move |(_, region)| (region.member, fault))
        };
        kinds.into_iter().flat_map(of_kind).collect()
    }
}

impl Contents {
    /// Asks a question of a stripe of a file, `at` being a place of the file that lies in it, and mends what is wrong with it.
    pub async fn see_to(
        self: &Rc<Self>,
        inode: &dyn Inode,
        at: u64,
        stripe: &Stripe,
        question: Question,
        job: &Job,
    ) -> Seen {
        let found = match self.find_out(stripe, question, job).await {
            Ok(found) => found,
            Err(error) => return Seen { faults: Vec::new(), outcome: Outcome::Failed(error) },
        };
        let outcome = match found.bad() {
            0 => Outcome::Sound,
            _ => match self.mend(inode, at, stripe, &found, job).await {
                Ok(outcome) => outcome,
                Err(Error::Stale) => Outcome::Overtaken,
                Err(error) => Outcome::Failed(error),
            },
        };
        let faults = if outcome == Outcome::Overtaken { Vec::new() } else { found.faults() };
        Seen { faults, outcome }
    }

    /// What a question needs to know.
    async fn find_out(&self, stripe: &Stripe, question: Question, job: &Job) -> Result<Found, Error> {
        let found = self.look_at(stripe, question, job).await?;
        if found.examined.rotten == 0 && found.examined.lost.is_empty() && found.examined.unknown.is_empty() {
            return Ok(found);
        }
        // What is remembered may be another chunk of the same number.
        self.space.forget_place(stripe.id.chunk);
        self.look_at(stripe, question, job).await
    }

    async fn look_at(&self, stripe: &Stripe, question: Question, job: &Job) -> Result<Found, Error> {
        let shape = self.members().layout().shape;
        let Some(place) = self.space.place(stripe.id.chunk).await? else {
            let examined = Examined { rotten: u32::MAX >> (UNITS_MAX - shape.columns()), ..Examined::default() };
            return Ok(Found { place: None, missing: stripe.missing, out: 0, gone: 0, examined });
        };
        let examined = match question {
            Question::Rebuild => Examined::default(),
            Question::Scrub => {
                job.take(self.bytes_of(stripe)).await;
                self.stripes.examine(stripe, &place).await
            }
        };
        // Also of a column that holds nothing: the chunk, and its region there, stay as long as any stripe does.
        let out = self.members().out_of(&place.columns);
        let gone = out & !self.members().reachable_of(&place.columns);
        Ok(Found { place: Some(place), missing: stripe.missing, out, gone, examined })
    }

    /// Bytes of all columns of a stripe.
    fn bytes_of(&self, stripe: &Stripe) -> u64 {
        let shape = self.members().layout().shape;
        let cut = stripe.cut(shape);
        (0..shape.columns()).map(|column| cut.filled(column) as u64).sum()
    }

    async fn mend(
        self: &Rc<Self>,
        inode: &dyn Inode,
        at: u64,
        stripe: &Stripe,
        found: &Found,
        job: &Job,
    ) -> Result<Outcome, Error> {
        job.take(u64::from(stripe.length) + self.bytes_of(stripe)).await;
        match self.rewrite_better(inode, at, stripe.id, Some(found.may_lack()), &[]).await {
            Ok(true) => Ok(Outcome::Rewritten),
            Ok(false) => Ok(Outcome::Overtaken),
            Err(Error::Lost { reason, .. }) => {
                let is_unlooked = found.examined.lost.is_empty() && found.examined.unknown.is_empty();
                let (lost, unknown) = match &found.place {
                    None => (std::iter::once(0..stripe.length as usize).collect(), Vec::new()),
                    Some(place) if is_unlooked => {
                        let examined = self.stripes.examine(stripe, place).await;
                        (examined.lost, examined.unknown)
                    }
                    Some(_) => (found.examined.lost.clone(), found.examined.unknown.clone()),
                };
                // Named now, it was all the time: nobody has written over it.
                let named = self.extents_in(inode, at, stripe.id).await?;
                if named.is_empty() {
                    return Ok(Outcome::Overtaken);
                }
                let ranges = places(&named, &lost);
                // Silence is no loss: all that lacks could be made up by who did not answer, or can be had by now.
                if ranges.is_empty() {
                    return Ok(Outcome::Unread(reason));
                }
                // One granule that is lost keeps nothing else where it lacks a column.
                let without = [lost, unknown].concat();
                let is_rewritten =
                    match self.rewrite_better(inode, at, stripe.id, Some(found.may_lack()), &without).await {
                        Ok(is_rewritten) => is_rewritten,
                        Err(error) => {
                            tracing::debug!(inode = inode.number(), at, %error, "what of a stripe can be read stays");
                            false
                        }
                    };
                Ok(Outcome::Lost { ranges, reason, is_rewritten })
            }
            Err(error) => Err(error),
        }
    }
}

/// Where parts of a stripe are in the file.
fn places(named: &[Extent], lost: &[Range<usize>]) -> Vec<Range<u64>> {
    let mut places: Vec<Range<u64>> = Vec::new();
    for extent in named {
        for part in lost {
            let from = (part.start as u64).max(extent.from.into());
            let to = (part.end as u64).min(u64::from(extent.from) + u64::from(extent.length));
            if from < to {
                let at = |part: u64| extent.at + (part - u64::from(extent.from));
                places.push(at(from)..at(to));
            }
        }
    }
    places
}
