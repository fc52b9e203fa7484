//! What goes to whom: results to standard output (one JSON document with `--json`), logs and progress to standard error.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

use engine::job::{Job, Progress, ShowProgress};
use engine::time;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::exit::Failure;
use crate::size::Size;

/// Logs to standard error: warnings unless `RUST_LOG` says otherwise.
pub fn log_to_stderr() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,fuser=error"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    let builder = builder.with_ansi(std::io::stderr().is_terminal()).with_filter_reloading();
    let handle = builder.reload_handle();
    builder.init();
    let reload = move |filter| {
        if let Err(error) = handle.reload(filter) {
            tracing::warn!(%error, "the log goes on as before");
        }
    };
    // It is set once, here.
    let _ = RELOAD.set(Box::new(reload));
}

/// How the log's filter is replaced.
static RELOAD: OnceLock<Box<dyn Fn(tracing_subscriber::EnvFilter) + Send + Sync>> = OnceLock::new();

/// Logs warnings (level 0), what happens seldom (1), each connection and command of the cache (2), or what goes on within too (3).
pub fn set_log_level(level: u32) {
    let levels = ["warn", "info", "info,cache::server=debug"];
    let level = levels.get(level as usize).copied().unwrap_or("debug,cache=trace");
    if let Some(reload) = RELOAD.get() {
        reload(tracing_subscriber::EnvFilter::new(level));
    }
}

/// Prints `value` as JSON, or else what `people` writes.
pub fn report<T: Serialize>(json: bool, value: &T, people: impl FnOnce(&T) -> String) -> Result<(), Failure> {
    let text = if json {
        let text = serde_json::to_string_pretty(value);
        text.map_err(|error| Failure::usage(format!("the report cannot be written as JSON: {error}")))?
    } else {
        people(value)
    };
    write(format!("{}\n", text.trim_end()).as_bytes())
}

/// Writes bytes to standard output, at once. A reader that has gone (`| head`) ends the program quietly.
pub fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.map_err(|error| Failure::from(error).during("standard output")),
    }
}

/// A bar of `length` units on a terminal, and nothing elsewhere.
pub fn progress(what: &'static str, length: u64, quiet: bool) -> ProgressBar {
    let template = "{msg} {wide_bar} {percent:>3} % {binary_bytes}/{binary_total_bytes} {eta}";
    bar(what, length, quiet, template)
}

/// A bar for bytes that are copied, of which more become known meanwhile; it tells how many a second.
pub fn copying(what: &'static str, quiet: bool) -> ProgressBar {
    bar(what, 0, quiet, "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}")
}

/// A bar for work of which only the share that is done is known, phase after phase.
pub fn progress_share(what: &'static str, quiet: bool) -> ShareBar {
    let bar = bar(what, SHARE_UNITS, quiet, "{msg} {wide_bar} {percent:>3} %{prefix}");
    ShareBar { bar, phase: Cell::new((Duration::ZERO, 0.0)), share: Cell::new(0.0) }
}

/// A progress bar for a walk over all that there is: what is being done, how fast, and how long it will take.
pub fn walk_bar(quiet: bool) -> (Rc<ShareBar>, ShowProgress) {
    let bar = Rc::new(progress_share("", quiet));
    let (shown, start) = (bar.clone(), time::now());
    let show = move |progress: &Progress| {
        let rate = progress.bytes as f64 / start.elapsed().as_secs_f64().max(1e-3);
        shown.say(format!("{}, {}/s", progress.what, Size(rate as u64)));
        shown.show(progress.done);
    };
    (bar, Rc::new(show))
}

/// A job of this rate that such a bar shows; its command alone is told of it.
pub fn walk_job(bytes_per_second: Option<u64>, quiet: bool) -> (Rc<ShareBar>, Rc<Job>) {
    let (bar, show) = walk_bar(quiet);
    (bar, Job::unlisted(bytes_per_second, Some(show)))
}

/// See [`progress_share`]. What time is left it tells by the pace since the phase began here: a phase that somebody else has begun
/// is not taken for one that was quick, nor one phase for another.
pub struct ShareBar {
    bar: ProgressBar,
    /// When the phase began, by the bar's clock, and at what share.
    phase: Cell<(Duration, f64)>,
    share: Cell<f64>,
}

impl ShareBar {
    /// What is being done.
    pub fn say(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
    }

    /// How much of it is done, 0 to 1; less than before: something else has begun.
    pub fn show(&self, share: f64) {
        let now = self.bar.elapsed();
        if share < self.share.replace(share) || self.phase.get().0.is_zero() {
            self.phase.set((now.max(Duration::from_nanos(1)), share));
        }
        let (began, from) = self.phase.get();
        self.bar.set_position((share * SHARE_UNITS as f64) as u64);
        self.bar.set_prefix(time_left(now.saturating_sub(began), share - from, 1.0 - share));
    }

    /// Takes it off the terminal.
    pub fn finish_and_clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// Share of a phase, and time, before its pace says anything. Guessed.
const PACE_SHARE_MIN: f64 = 0.02;
const PACE_TIME_MIN: Duration = Duration::from_secs(1);

/// For people: how long `left` takes where `done` took so long; nothing where that can't be known yet.
fn time_left(took: Duration, done: f64, left: f64) -> String {
    if took < PACE_TIME_MIN || done < PACE_SHARE_MIN {
        return String::new();
    }
    let seconds = took.as_secs_f64() / done * left;
    match seconds {
        _ if seconds < 90.0 => format!(", {seconds:.0} s left"),
        _ if seconds < 5400.0 => format!(", {:.0} min left", seconds / 60.0),
        _ => format!(", {:.0} h left", seconds / 3600.0),
    }
}

/// Of a share, as people read it: what is not quite done is not said to be.
pub fn percent(done: f64) -> String {
    format!("{:.0} %", (done * 100.0).floor())
}

/// So many of them: `1 key`, `2 keys`.
pub fn many(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// These members, by the numbers that `pool status` shows.
pub fn members(numbers: &[usize]) -> String {
    let list: Vec<String> = numbers.iter().map(usize::to_string).collect();
    format!("member{} {}", if numbers.len() == 1 { "" } else { "s" }, list.join(", "))
}

/// In how many steps a share is shown.
const SHARE_UNITS: u64 = 1000;

fn bar(what: &'static str, length: u64, quiet: bool, template: &str) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    bar.with_style(style).with_message(what)
}

/// Time for people: three digits and a unit.
pub fn duration(time: Duration) -> String {
    let us = time.as_secs_f64() * 1e6;
    match us {
        _ if us < 1e3 => format!("{us:.0} us"),
        _ if us < 1e6 => format!("{:.2} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_one_of_use_or_none() {
        let left = |took: u64, done: f64, left: f64| time_left(Duration::from_millis(took), done, left);
        assert_eq!(left(2000, 0.27, 0.73), ", 5 s left");
        assert_eq!(left(600, 0.2, 0.8), "", "too early to say");
        assert_eq!(left(9000, 0.01, 0.99), "");
        assert_eq!(left(60_000, 0.1, 0.9), ", 9 min left");
        assert_eq!(left(3_600_000, 0.1, 0.9), ", 9 h left");
        // Gone on with at the half: what was done before was not done in this time.
        let bar = progress_share("change", true);
        bar.show(0.5);
        assert_eq!(bar.phase.get().1, 0.5);
        bar.show(0.6);
        assert_eq!(bar.phase.get().1, 0.5);
        bar.show(0.0);
        assert_eq!(bar.phase.get().1, 0.0, "the next phase");
    }

    #[test]
    fn one_is_one() {
        assert_eq!(
            (many(1, "key"), many(2, "key"), many(0, "key")),
            ("1 key".into(), "2 keys".into(), "0 keys".into())
        );
        assert_eq!((members(&[3]), members(&[0, 2])), ("member 3".into(), "members 0, 2".into()));
    }
}
