//! Regions of members: given to chunks, and taken back.
//!
//! A region is the chunk's from the change of its member's record on. Regions of a chunk whose record was never made are found by
//! `fsck`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use engine::task;
use engine::time::{self, Instant};

use super::chunk::{REGIONS_PER_PAGE, Region, RegionPage};
use super::key;
use super::member::{Member, Members};
use super::place::{Candidate, Fit, Reach, Resort, place};
use super::record::{self, Next};
use crate::error::Error;
use crate::meta::Meta;

/// Pages of a member that are looked at to estimate how much is free.
const PAGES_SAMPLED: u32 = 4;
/// For how long an estimate counts.
const ESTIMATE_AGE: Duration = Duration::from_secs(60);
/// For how long a member is taken for full. Chosen: whoever waits for room hardly notices; its pages are not read for each write.
const FULL_AGE: Duration = Duration::from_secs(2);

pub(crate) struct Regions {
    meta: Rc<dyn Meta>,
    members: Rc<Members>,
    /// By member: free regions, and when they were counted.
    estimates: RefCell<BTreeMap<u16, (Instant, u64)>>,
    /// Members all of whose pages are closed, as far as is known: no page opens again.
    closed: RefCell<BTreeSet<u16>>,
}

/// What became of an attempt to get a region of a member.
enum Took {
    /// This one.
    Region(u32),
    /// It has none.
    Full,
    /// Nobody gets one any more.
    Closed,
}

/// Regions on the page of a member that has so many in all.
fn on_page(regions: u32, page: u32) -> u32 {
    regions.saturating_sub(page * REGIONS_PER_PAGE).min(REGIONS_PER_PAGE)
}

impl Regions {
    pub(crate) fn new(meta: Rc<dyn Meta>, members: Rc<Members>) -> Regions {
        Regions { meta, members, estimates: RefCell::default(), closed: RefCell::default() }
    }

    fn key(&self, member: u16, page: u32) -> Vec<u8> {
        key::regions(&self.members.layout().fs, member, page)
    }

    /// A region for each column of a new chunk.
    pub(crate) async fn take(&self, chunk: u32, resort: Resort) -> Result<Vec<Region>, Error> {
        let count = self.members.layout().shape.columns();
        // Each round without success has found a member full that was thought to have room.
        for _ in 0..=self.members.all().len() {
            let candidates = self.candidates().await?;
            let chosen = place(&candidates, count, resort, task::random_u64)?;
            let mut taken = Vec::with_capacity(count);
            let mut fault = None;
            for index in chosen {
                match self.take_of(index, chunk).await {
                    Ok(Took::Region(region)) => taken.push(Region { member: index, region }),
                    Ok(Took::Full) => fault = Some(None),
                    Ok(Took::Closed) => {
                        // It is to be empty, and others have joined, perhaps, in its place.
                        self.members.learn().await;
                        fault = Some(None);
                    }
                    Err(error) => fault = Some(Some(error)),
                }
                if fault.is_some() {
                    break;
                }
            }
            let Some(fault) = fault else { return Ok(taken) };
            self.give_back(chunk, &taken).await?;
            if let Some(error) = fault {
                return Err(error);
            }
        }
        Err(Error::NoSpace("members fill up while regions are looked for".into()))
    }

    async fn candidates(&self) -> Result<Vec<Candidate>, Error> {
        let mut candidates = Vec::new();
        for member in self.members.all() {
            let spec = member.spec();
            let reach = match (member.is_reachable(), member.is_well()) {
                (false, _) => Reach::Away,
                (true, false) => Reach::Failed,
                (true, true) => Reach::Well,
            };
            let fit = if spec.is_out {
                Err("is out")
            } else {
                match self.free_of(&member).await? {
                    0 => Err("has no free region"),
                    free => Ok(Fit { free, load: member.pace().load() }),
                }
            };
            candidates.push(Candidate { index: member.index(), domain: spec.domain, fit, reach });
        }
        Ok(candidates)
    }

    /// Regions of all members that are not out, and those of them that are free, about.
    pub(crate) async fn count(&self) -> Result<(u64, u64), Error> {
        let (mut all, mut free) = (0, 0);
        for member in self.members.all().iter().filter(|member| !member.spec().is_out) {
            all += u64::from(member.regions());
            free += self.free_of(member).await?;
        }
        Ok((all, free))
    }

    /// The same of each member, out or not.
    pub(crate) async fn count_each(&self) -> Result<Vec<(u64, u64)>, Error> {
        let mut counts = Vec::new();
        for member in self.members.all() {
            counts.push((member.regions().into(), self.free_of(&member).await?));
        }
        Ok(counts)
    }

    /// Free regions of a member, about.
    pub(crate) async fn free_of(&self, member: &Member) -> Result<u64, Error> {
        let known = self.estimates.borrow().get(&member.index()).copied();
        if let Some((at, free)) = known
            && at.elapsed() < if free > 0 { ESTIMATE_AGE } else { FULL_AGE }
        {
            return Ok(free);
        }
        let regions = member.regions();
        let pages = regions.div_ceil(REGIONS_PER_PAGE);
        // Few pages are all looked at; of many, the last ones also when the sample is full.
        let step = pages.div_ceil(PAGES_SAMPLED).max(1);
        let (mut free, mut seen) = (0, 0);
        let order = (0..pages).step_by(step as usize).chain((0..pages).filter(|page| page % step != 0));
        for (looked, page) in order.enumerate() {
            if looked as u32 >= PAGES_SAMPLED && free > 0 {
                break;
            }
            let found = record::load(&*self.meta, &self.key(member.index(), page)).await?;
            let count = on_page(regions, page);
            free += u64::from(RegionPage::decode(found.as_ref().map(|found| &*found.body))?.free(count));
            seen += u64::from(count);
        }
        let free = free * u64::from(regions) / seen.max(1);
        self.estimates.borrow_mut().insert(member.index(), (time::now(), free));
        Ok(free)
    }

    /// A region of a member.
    async fn take_of(&self, index: u16, chunk: u32) -> Result<Took, Error> {
        let regions = self.members.get(index).map_or(0, |member| member.regions());
        let pages = regions.div_ceil(REGIONS_PER_PAGE);
        if pages == 0 {
            return Ok(Took::Full);
        }
        let mut is_closed = false;
        let first = task::random_u64() as u32 % pages;
        for page in (first..pages).chain(0..first) {
            let count = on_page(regions, page);
            let key = self.key(index, page);
            // Where nobody can tell whether one was taken, another is: the first is found by `fsck`.
            let taken = record::ensure(&*self.meta, &key, |body| {
                let mut page = RegionPage::decode(body)?;
                let taken = page.take(chunk, count, 0);
                Ok(match taken {
                    Some(region) => Next::Put(page.encode(), (Some(region), false)),
                    None => Next::Keep((None, page.is_closed())),
                })
            });
            let (taken, closed) = taken.await?;
            is_closed |= closed;
            if let Some(region) = taken {
                self.estimates.borrow_mut().entry(index).and_modify(|(_, free)| *free = free.saturating_sub(1).max(1));
                return Ok(Took::Region(page * REGIONS_PER_PAGE + region));
            }
        }
        self.estimates.borrow_mut().insert(index, (time::now(), 0));
        Ok(if is_closed { Took::Closed } else { Took::Full })
    }

    fn pages_of(&self, index: u16) -> u32 {
        self.members.get(index).map_or(0, |member| member.regions()).div_ceil(REGIONS_PER_PAGE)
    }

    /// From now on nothing gets a region of this member, by no client.
    pub(crate) async fn close(&self, index: u16) -> Result<(), Error> {
        if self.closed.borrow().contains(&index) {
            return Ok(());
        }
        for page in 0..self.pages_of(index) {
            let key = self.key(index, page);
            let closed = record::ensure(&*self.meta, &key, |body| {
                let mut page = RegionPage::decode(body)?;
                Ok(if page.close() { Next::Put(page.encode(), ()) } else { Next::Keep(()) })
            });
            closed.await?;
        }
        self.closed.borrow_mut().insert(index);
        self.estimates.borrow_mut().remove(&index);
        Ok(())
    }

    /// Of each region of a member that is taken the chunk that has it.
    pub(crate) async fn taken(&self, index: u16) -> Result<Vec<u32>, Error> {
        let mut chunks = Vec::new();
        for page in 0..self.pages_of(index) {
            let found = record::load(&*self.meta, &self.key(index, page)).await?;
            let page = RegionPage::decode(found.as_ref().map(|found| &*found.body))?;
            chunks.extend(page.taken().map(|(_, chunk)| chunk));
        }
        Ok(chunks)
    }

    /// Takes regions from a chunk, where it has them.
    pub(crate) async fn give_back(&self, chunk: u32, columns: &[Region]) -> Result<(), Error> {
        for Region { member, region } in columns.iter().copied() {
            let key = self.key(member, region / REGIONS_PER_PAGE);
            let given = record::ensure(&*self.meta, &key, |body| {
                let mut page = RegionPage::decode(body)?;
                let is_changed = page.give_back(chunk, region % REGIONS_PER_PAGE);
                Ok(match (is_changed, page.is_blank()) {
                    (false, _) => Next::Keep(()),
                    (true, true) => Next::Remove(()),
                    (true, false) => Next::Put(page.encode(), ()),
                })
            });
            given.await?;
            self.estimates.borrow_mut().remove(&member);
        }
        Ok(())
    }
}
