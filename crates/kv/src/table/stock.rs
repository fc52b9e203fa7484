//! The stock: data pages that this host has claimed before it knows what for, so that a value can be written while the home
//! page is read and its extent is bound to that page: two round trips for a put out of line.
//!
//! - A page of the stock is referred to by nobody: it is bound to a home page first, by compare-and-write on its allocation
//!   page. So a collector that finds an unbound slot need not look for references.
//! - Data goes to a slot of the stock before the binding is known to have succeeded, if it was claimed just now. It can only fail
//!   if a collector was there first, and a collector leaves alone what it has not seen for [`super::collect::AGE_MIN`], while this
//!   host uses nothing older than [`STOCK_TIME_MAX`], by a clock that goes on while it is suspended. A virtual machine may have
//!   been paused without its clock: so an older run is bound before anything is written there, and none is used once the
//!   connection is another, as it is after a pause that outlasts the target's patience.
//! - Bounded, returned by [`Table::quiesce`], and by a crash left to the collector.

use std::time::Duration;

use device::Namespace;
use pool::HeapGroup;

use super::ledger::{Leftover, Run};
use super::slots::{Answer, Change};
use super::{Table, TableError};
use crate::page::SLOTS;

/// Data pages in one host's stock of one member. Guessed: four groups hold a round trip's worth at 10 GbE.
pub const STOCK_PAGES_MAX: usize = 4 * SLOTS;
/// How long a page of the stock is used after it was claimed. Chosen: far below the age at which a collector takes it.
pub const STOCK_TIME_MAX: Duration = Duration::from_secs(600);

impl Table {
    /// `pages` pages in a row of the stock, if it has them. Sees to it that there is more next time.
    pub(super) fn take_stock(&self, pages: usize) -> Option<Run> {
        if self.is_tight() {
            return None;
        }
        let mut stock = self.stock.borrow_mut();
        let connection = self.namespace.link().epoch;
        let is_usable = |run: &&Run| run.claimed.elapsed() < STOCK_TIME_MAX && run.connection == connection;
        let (usable, old): (Vec<Run>, Vec<Run>) = stock.runs.iter().partition(is_usable);
        stock.runs = usable;
        // The shortest run that is long enough, so that long ones stay whole.
        let fitting = stock.runs.iter_mut().filter(|run| run.pages >= pages).min_by_key(|run| run.pages);
        let taken = fitting.map(|run| {
            let taken = Run { pages, ..*run };
            (run.slot, run.pages) = (run.slot + pages, run.pages - pages);
            taken
        });
        stock.runs.retain(|run| run.pages > 0);
        if taken.is_none() {
            // What is asked for in one go doubles until it lasts.
            stock.wanted = (stock.wanted * 2).max(pages * 4).min(STOCK_PAGES_MAX);
        }
        if stock.pages() < stock.wanted / 2 && !stock.filling {
            stock.filling = true;
            if let Some(table) = self.me.upgrade() {
                engine::task::spawn(async move { table.fill_stock().await }).detach();
            }
        }
        drop(stock);
        old.into_iter().for_each(|run| self.keep(Leftover::Stock(run.group, run.slot, run.pages, run.tag)));
        taken
    }

    /// Claims what the stock lacks, from the group that is looked at first.
    async fn fill_stock(&self) {
        let lacking = {
            let stock = self.stock.borrow();
            stock.wanted.saturating_sub(stock.pages())
        };
        let groups = self.layout.geometry.heap_groups;
        if lacking > 0 && groups > 0 {
            let group = HeapGroup(self.group_next.get() % groups);
            let (tag, claimed) = (engine::task::random_u64().max(1), engine::time::now());
            let connection = self.namespace.link().epoch;
            match self.change_group(group, Change::Stock { pages: lacking, tag }).await {
                Ok(Answer::Run(slot, pages)) => {
                    self.stock.borrow_mut().runs.push(Run { group, tag, slot, pages, claimed, connection });
                }
                Ok(Answer::Nothing) => self.next_group(group),
                Err(error) => {
                    if error.may_pass() {
                        self.keep(Leftover::Extent(group, tag));
                    }
                    self.next_group(group);
                }
            }
        }
        let mut stock = self.stock.borrow_mut();
        stock.filling = false;
        stock.filled.notify_all();
    }

    /// Turns `run` of the stock into an extent of `tag`; whether it was still there.
    pub(super) async fn bind_stock(&self, run: Run, tag: u64, home: pool::TablePage) -> Result<bool, TableError> {
        let Run { group, tag: stock, slot, pages, .. } = run;
        Ok(self.change_group(group, Change::Bind { stock, slot, pages, tag, home }).await? != Answer::Nothing)
    }

    /// Takes what lies in a group whose allocation page is damaged out of the stock: it can neither be bound nor given back.
    pub(super) fn forget_stock(&self, group: HeapGroup) {
        self.stock.borrow_mut().runs.retain(|run| run.group != group);
        self.next_group(group);
    }

    /// Gives the whole stock back, also what is just being claimed for it; whether there was any.
    pub(super) async fn return_stock(&self) -> bool {
        self.stock.borrow_mut().wanted = 0;
        let filled = self.stock.borrow().filled.clone();
        while self.stock.borrow().filling {
            filled.notified().await;
        }
        let runs = std::mem::take(&mut self.stock.borrow_mut().runs);
        let any = !runs.is_empty();
        for run in runs {
            self.return_run(run).await;
        }
        any
    }

    /// Gives one run of the stock back.
    pub(super) async fn return_run(&self, run: Run) {
        let Run { group, slot, pages, tag, .. } = run;
        if self.change_group(group, Change::ReleaseRun { slot, pages, tag }).await.is_err_and(|error| error.may_pass())
        {
            self.keep(Leftover::Stock(group, slot, pages, tag));
        }
        self.heap_full.set(None);
    }
}
