//! What is to become of slots of a group, and who waits for that: the changes that `group` puts into force, many at a time.
//!
//! Every change knows its tag, so one that took effect unnoticed is recognised when it is applied again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pool::{HeapGroup, TablePage};

use super::error::TableError;
use crate::page::AllocationPage;

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
    pub(super) change: Change,
    pub(super) answer: RefCell<Option<Result<Answer, TableError>>>,
}

/// Changes that wait, by group.
#[derive(Default)]
pub(super) struct Requests(RefCell<BTreeMap<u32, Vec<Rc<Request>>>>);

impl Requests {
    pub(super) fn push(&self, group: HeapGroup, request: &Rc<Request>) {
        self.0.borrow_mut().entry(group.0).or_default().push(request.clone());
    }

    /// Those of a group that somebody still waits for.
    pub(super) fn take(&self, group: HeapGroup) -> Vec<Rc<Request>> {
        let mut requests = self.0.borrow_mut().remove(&group.0).unwrap_or_default();
        requests.retain(|request| Rc::strong_count(request) > 1);
        requests
    }
}

impl Change {
    /// Applies the change; what came of it, and whether the page is another now.
    pub(super) fn apply(&self, page: &mut AllocationPage, stamp: u16) -> (Answer, bool) {
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
