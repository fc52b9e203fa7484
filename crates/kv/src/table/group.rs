//! Changes of allocation pages. All that tasks of this host want changed in one page while a compare-and-write of it is under
//! way goes into the next one: a hundred writers of large values cost a few compare-and-writes, not a hundred in a row.
//!
//! Every change knows its tag, so one that took effect unnoticed is recognised when it is applied again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use engine::View;
use pool::{HeapGroup, TablePage};

use super::locks::Guard;
use super::{ATTEMPTS_MAX, Table, TableError, bump, uncertain};
use crate::page::{AllocationPage, SLOTS};

/// Unit of a slot's stamp, in seconds.
const STAMP_SECONDS: u64 = 600;
/// Of what is free in a group, the part (one in so many) that one host may take into its stock.
const STOCK_SHARE: usize = 4;

/// What is to become of slots of a group.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// `pages` free ones in a row become an extent.
    Claim { pages: usize, tag: u64, home: TablePage },
    /// Up to `pages` free ones in a row go into this host's stock.
    Stock { pages: usize, tag: u64 },
    /// Those from `slot` on go from the stock to an extent.
    Bind { stock: u64, slot: usize, pages: usize, tag: u64, home: TablePage },
    /// All of a tag become free. `doubted`: it may have been claimed by a command that is yet to land; the page becomes another in
    /// any case, which that command will not find.
    Release { tag: u64, doubted: bool },
    /// Those of a stock become free.
    ReleaseRun { slot: usize, pages: usize, tag: u64 },
    /// All of a tag are marked, or not any more.
    Condemn { tag: u64, condemned: bool },
    /// All of a tag become free if they are condemned.
    Collect { tag: u64 },
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// These slots, first and count, are as was asked.
    Run(usize, usize),
    /// There is no room, or the tag owns nothing here.
    Nothing,
}

/// A change that waits for its turn.
pub(super) struct Request {
    change: Change,
    answer: RefCell<Option<Result<Answer, TableError>>>,
}

/// Changes that wait, by group.
#[derive(Default)]
pub(super) struct Requests(RefCell<BTreeMap<u32, Vec<Rc<Request>>>>);

impl Requests {
    fn push(&self, group: HeapGroup, request: &Rc<Request>) {
        self.0.borrow_mut().entry(group.0).or_default().push(request.clone());
    }

    /// Those of a group that somebody still waits for.
    fn take(&self, group: HeapGroup) -> Vec<Rc<Request>> {
        let mut requests = self.0.borrow_mut().remove(&group.0).unwrap_or_default();
        requests.retain(|request| Rc::strong_count(request) > 1);
        requests
    }
}

impl Change {
    /// Applies the change; what came of it, and whether the page is another now.
    fn apply(&self, page: &mut AllocationPage, stamp: u16) -> (Answer, bool) {
        let answer =
            |run: Option<(usize, usize)>| run.map_or(Answer::Nothing, |(slot, pages)| Answer::Run(slot, pages));
        match *self {
            Change::Claim { tag, .. } | Change::Stock { tag, .. } if page.run_of(tag).is_some() => {
                (answer(page.run_of(tag)), false)
            }
            Change::Claim { pages, tag, home } => {
                let Some(slot) = page.find_run(pages) else { return (Answer::Nothing, false) };
                page.claim(slot, pages, tag, home.0, stamp);
                (Answer::Run(slot, pages), true)
            }
            Change::Stock { pages, tag } => {
                let share = pages.min(page.free() / STOCK_SHARE);
                let halves = std::iter::successors(Some(share), |pages| Some(pages / 2)).take_while(|&pages| pages > 0);
                let run = halves.filter_map(|pages| Some((page.find_run(pages)?, pages))).next();
                let Some((slot, pages)) = run else { return (Answer::Nothing, false) };
                page.stock(slot, pages, tag, stamp);
                (Answer::Run(slot, pages), true)
            }
            Change::Bind { slot, pages, tag, .. } if page.owns(slot, tag) => (Answer::Run(slot, pages), false),
            Change::Bind { stock, slot, pages, tag, home } => {
                let bound = page.bind(slot, pages, stock, tag, home.0, stamp);
                (if bound { Answer::Run(slot, pages) } else { Answer::Nothing }, bound)
            }
            Change::Release { tag, doubted } => (answer(page.run_of(tag)), page.release(tag) || doubted),
            Change::ReleaseRun { slot, pages, tag } => (Answer::Run(slot, pages), page.release_run(slot, pages, tag)),
            Change::Condemn { tag, condemned } => (answer(page.run_of(tag)), page.condemn(tag, condemned)),
            Change::Collect { tag } => match page.run_of(tag) {
                Some((slot, pages)) if page.slots()[slot].condemned => (Answer::Run(slot, pages), page.release(tag)),
                _ => (Answer::Nothing, false),
            },
        }
    }
}

impl Table {
    /// Has `change` stored, with whatever else is to be changed in the group.
    pub(super) async fn change_group(&self, group: HeapGroup, change: Change) -> Result<Answer, TableError> {
        let request = Rc::new(Request { change, answer: RefCell::new(None) });
        self.requests.push(group, &request);
        let lock = self.group_locks.lock(u64::from(group.0)).await;
        if let Some(answer) = request.answer.take() {
            return answer;
        }
        let mut batch = self.requests.take(group);
        // Whoever took it may have been dropped in the middle of its turn.
        if !batch.iter().any(|other| Rc::ptr_eq(other, &request)) {
            batch.push(request.clone());
        }
        let changes: Vec<Change> = batch.iter().map(|request| request.change).collect();
        let answers = self.change_at_once(group, &lock, &changes).await;
        for (index, request) in batch.iter().enumerate() {
            let answer = answers.as_ref().map(|answers| answers[index]).map_err(Clone::clone);
            *request.answer.borrow_mut() = Some(answer);
        }
        request.answer.take().unwrap_or(Err(TableError::Contended))
    }

    /// Applies `changes`, again on every newer image, until they are stored or change nothing.
    async fn change_at_once(
        &self,
        group: HeapGroup,
        lock: &Guard<'_>,
        changes: &[Change],
    ) -> Result<Vec<Answer>, TableError> {
        let lba = self.layout.allocation(group);
        let mut in_doubt = false;
        let mut known =
            lock.image().or_else(|| self.last_group.borrow().clone().filter(|last| last.0 == group).map(|l| l.1));
        for _ in 0..ATTEMPTS_MAX {
            let fresh = known.is_none();
            let expected: View = match known.take() {
                Some(image) => image,
                None => self.read_at(lba, self.layout.page_bytes()).await?,
            };
            let decoded = AllocationPage::decode(&expected, group.0, self.incarnation);
            let mut page = decoded.map_err(|error| TableError::Allocation { group: group.0, error })?;
            let stamp = stamp_now();
            let applied: Vec<(Answer, bool)> = changes.iter().map(|change| change.apply(&mut page, stamp)).collect();
            let answers: Vec<Answer> = applied.iter().map(|(answer, _)| *answer).collect();
            // What an older image does not have may be there by now.
            if !fresh && answers.contains(&Answer::Nothing) {
                continue;
            }
            if !applied.iter().any(|(_, changed)| *changed) {
                return Ok(answers);
            }
            let new = page.encode_next(self.layout.page_bytes()).freeze();
            lock.set_image(None);
            match self.replace(lba, expected, new.clone()).await {
                Ok(()) => {
                    lock.set_image(Some(new.clone()));
                    *self.last_group.borrow_mut() = Some((group, new));
                    return Ok(answers);
                }
                Err(device::Error::CompareFailure) => bump(&self.stats.misses),
                Err(error) if uncertain(&error) && !in_doubt => in_doubt = true,
                Err(error) => return Err(error.into()),
            }
        }
        Err(TableError::Contended)
    }
}

/// The stamp of what is claimed now, by this host's calendar: for people, and for versions before, who went by it.
pub(super) fn stamp_now() -> u16 {
    (engine::time::unix_time().as_secs() / STAMP_SECONDS) as u16
}

/// The place of `slot` in its group.
pub(super) fn place(group: HeapGroup, slot: usize) -> pool::HeapPage {
    debug_assert!(slot < SLOTS);
    pool::HeapPage::new(group, slot as u32)
}
