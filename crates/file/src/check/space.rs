//! What maps and records of space say of each other, looked at a second time before it is told: files are changed meanwhile.
//!
//! Rows are marked before a map names them, and are cleared when none does any more. So a stripe that a map has named before its
//! chunk was read, and names after that, is marked there; and of two stripes of one row no two maps can be at any one moment.

use std::rc::Rc;

use engine::job::Job;

use super::listed::Listed;
use super::maps::{Inodes, Whose};
use super::unless_damaged;
use crate::data::{Auditor, Content, Contents, Region, Run, StripeId, Survey, Wrong, overlap};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::stored::content_of;

/// Something that must not be, and the files that it touches.
pub(crate) struct Fault {
    pub(crate) what: String,
    pub(crate) inos: Vec<u64>,
}

/// A stripe, and the map that names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    chunk: u32,
    run: Run,
    id: StripeId,
    whose: Whose,
}

/// Looks at what seems to contradict once more.
pub(crate) struct Second<'a> {
    pub(crate) names: &'a FileSystem,
    pub(crate) contents: &'a Rc<Contents>,
    pub(crate) auditor: &'a Auditor,
}

impl Second<'_> {
    /// Of stripes whose rows seem to contradict: those that do.
    pub(crate) async fn stripes(&self, listed: &Listed, survey: &Survey, job: &Job) -> Result<Vec<Fault>, Error> {
        if survey.suspects().is_empty() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        let visit = |whose: Whose, stripe: &crate::data::Stripe| {
            if !whose.goes && survey.is_suspect(stripe) {
                found.push(Named { chunk: stripe.id.chunk, run: survey.run(stripe), id: stripe.id, whose });
            }
        };
        Inodes::read(self.names, self.contents, listed, job, visit).await?;
        found.sort_unstable();
        let mut faults = Vec::new();
        for named in &found {
            faults.extend(self.unmarked(named).await?);
        }
        for (at, one) in found.iter().enumerate() {
            let behind = found[at + 1..].iter();
            for two in behind.take_while(|two| two.chunk == one.chunk && two.run.row < one.run.row + one.run.rows) {
                if overlap(one.run, two.run)
                    && self.names(one).await?
                    && self.names(two).await?
                    && self.names(one).await?
                {
                    let what = format!("row {} of chunk {} is in two stripes", two.run.row, one.chunk);
                    faults.push(Fault { what, inos: vec![one.whose.ino, two.whose.ino] });
                }
            }
        }
        Ok(faults)
    }

    async fn unmarked(&self, named: &Named) -> Result<Option<Fault>, Error> {
        let what = match self.auditor.chunk(named.chunk).await {
            Ok(Some(chunk)) if chunk.marks.keeps(named.run) && !chunk.is_dying() => return Ok(None),
            Ok(Some(_)) => format!("rows {:?} of chunk {} are not marked, or rest", named.run.range(), named.chunk),
            Ok(None) => format!("chunk {} is not there", named.chunk),
            Err(Error::Damaged(_)) => return Ok(None), // it is told as such
            Err(error) => return Err(error),
        };
        let is_named = self.names(named).await?;
        Ok(is_named.then(|| Fault { what: format!("{what}, and a stripe lies there"), inos: vec![named.whose.ino] }))
    }

    /// Whether a map still names the stripe that it has named.
    async fn names(&self, named: &Named) -> Result<bool, Error> {
        Ok(unless_damaged(self.names_now(named).await)?.unwrap_or(false))
    }

    async fn names_now(&self, named: &Named) -> Result<bool, Error> {
        let Some(held) = self.names.inode(named.whose.ino).await? else { return Ok(false) };
        match (content_of(&held.record, self.contents.members().layout().shape)?, named.whose.span) {
            (Content::Extents(map), None) => Ok(map.names(named.id)),
            (Content::Spans(spans), Some(id)) if spans.map == id.map => {
                let stood = self.contents.spans.load(id).await?;
                Ok(stood.0.as_ref().is_some_and(|span| span.map.names(named.id)))
            }
            _ => Ok(false),
        }
    }

    /// Of a region of which chunk and member seem to say different things: what they do say.
    pub(crate) async fn region(&self, wrong: Wrong) -> Result<Option<String>, Error> {
        Ok(match wrong {
            Wrong::Shared(region, a, b) => {
                let is_so = self.has(a, region).await? && self.has(b, region).await? && self.has(a, region).await?;
                is_so.then(|| format!("{} is in chunks {a} and {b}", shown(region)))
            }
            Wrong::Others(region, chunk, _) => {
                let before = self.has(chunk, region).await?;
                let Some(holder) = unless_damaged(self.auditor.holder(region).await)? else { return Ok(None) };
                let is_so = before && holder != Some(chunk) && self.has(chunk, region).await?;
                let told = holder.map_or("nobody".to_owned(), |other| format!("chunk {other}"));
                is_so.then(|| format!("{} of chunk {chunk} is {told}'s by the member's record", shown(region)))
            }
        })
    }

    /// Whether a chunk has a region, and keeps it.
    pub(crate) async fn has(&self, chunk: u32, region: Region) -> Result<bool, Error> {
        let found = unless_damaged(self.auditor.chunk(chunk).await)?.flatten();
        Ok(found.is_some_and(|chunk| !chunk.is_dying() && chunk.columns.contains(&region)))
    }
}

fn shown(region: Region) -> String {
    format!("region {} of member {}", region.region, region.member)
}
