//! Progress of a row: a bar on a terminal, nothing elsewhere; and its end before its time, so that what a row has set up (servers,
//! swap, cgroups, files) is always taken down by its owners.

use std::cell::RefCell;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

/// Set from outside once rows are to end.
#[derive(Clone, Default, Debug)]
pub struct Stop(pub Arc<AtomicBool>);

impl Stop {
    /// An error if the row is not to go on.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.0.load(Ordering::Relaxed), "ended by a signal: the row under way is not reported");
        Ok(())
    }
}

/// Shows how far a row has come.
pub struct Progress {
    /// For work that is long within one step.
    pub stop: Stop,
    bar: RefCell<Option<ProgressBar>>,
}

impl Progress {
    /// Silent until the first phase begins. Once `stop` is set the next step is an error.
    pub fn new(stop: Stop) -> Progress {
        Progress { stop, bar: RefCell::default() }
    }

    /// A new phase of so many steps; replaces the one before.
    pub fn begin(&self, what: &str, steps: usize) {
        self.end();
        if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(steps as u64);
            let style = ProgressStyle::with_template("{msg:30} {bar:40} {pos}/{len} {eta}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(what.to_owned());
            self.bar.replace(Some(bar));
        }
    }

    /// One step is done. An error if the row is not to go on.
    pub fn step(&self) -> anyhow::Result<()> {
        if let Some(bar) = &*self.bar.borrow() {
            bar.inc(1);
        }
        self.stop.check()
    }

    /// The phase is over; the bar goes away.
    pub fn end(&self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
