//! What goes to whom: results to standard output (one JSON document with `--json`), logs and progress to standard error.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::exit::Failure;

/// Logs to standard error: warnings unless `RUST_LOG` says otherwise.
pub fn log_to_stderr() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
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

/// A bar for a walk of which only the share that is done is known.
pub fn progress_share(what: &'static str, quiet: bool) -> ProgressBar {
    bar(what, SHARE_UNITS, quiet, "{msg} {wide_bar} {percent:>3} % {eta}")
}

/// Shows the share (0 to 1) of a [`progress_share`].
pub fn show_share(bar: &ProgressBar, share: f64) {
    bar.set_position((share * SHARE_UNITS as f64) as u64);
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
