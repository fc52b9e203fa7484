//! Progress of a row: a bar on a terminal, nothing elsewhere.

use std::cell::RefCell;
use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

/// Shows how far a row has come.
#[derive(Default)]
pub struct Progress {
    bar: RefCell<Option<ProgressBar>>,
}

impl Progress {
    /// Silent until the first phase begins.
    pub fn new() -> Progress {
        Progress::default()
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

    /// One step is done.
    pub fn step(&self) {
        if let Some(bar) = &*self.bar.borrow() {
            bar.inc(1);
        }
    }

    /// The phase is over; the bar goes away.
    pub fn end(&self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
