//! `yagura flash replay`: what a trace would take on a device of a preset.

use engine::histogram::Histogram;
use flash::FormatOptions;
use flash::replay::{ReplayError, ReplayOptions, Replayed, replay};
use flash::{ManagerError, trace};
use serde::Serialize;

use crate::cli::FlashReplayArgs;
use crate::exit::Failure;
use crate::output;
use crate::size::Size;

/// Latencies of one kind of commands, in microseconds: each is the upper bound of what the histogram tells apart (12.5 %).
#[derive(Serialize)]
struct Latency {
    kind: &'static str,
    commands: u64,
    mean_us: f64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

#[derive(Serialize)]
struct Report {
    preset: &'static str,
    bytes: u64,
    seconds: f64,
    latencies: Vec<Latency>,
    wrapped_commands: u64,
    host_sectors: u64,
    programmed_sectors: u64,
    moved_sectors: u64,
    padding_sectors: u64,
    write_amplification: f64,
    erases: u64,
    wear_least: u32,
    wear_most: u32,
}

/// The value below which this share of all lies, in microseconds.
fn quantile(histogram: &Histogram, share: f64) -> f64 {
    let wanted = (histogram.count() as f64 * share).ceil() as u64;
    let mut counted = 0;
    let found = histogram.buckets().find(|&(_, count)| {
        counted += count;
        counted >= wanted
    });
    found.map_or(0.0, |(bound, _)| bound as f64 / 1000.0)
}

fn latency(kind: &'static str, histogram: &Histogram) -> Option<Latency> {
    let commands = histogram.count();
    let at = |share| quantile(histogram, share);
    (commands > 0).then(|| Latency {
        kind,
        commands,
        mean_us: histogram.sum() as f64 / commands as f64 / 1000.0,
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: at(1.0),
    })
}

/// Runs the verb.
pub fn run(args: &FlashReplayArgs) -> Result<(), Failure> {
    let (path, preset) = (args.trace.display(), args.preset);
    let text = std::fs::read_to_string(&args.trace).map_err(|error| Failure::from(error).during(&path))?;
    let commands = trace::parse(&text).map_err(|error| Failure::usage(format!("{path}: {error}")))?;
    if commands.is_empty() {
        return Err(Failure::usage(format!("{path}: there are no commands in it")));
    }
    let format = FormatOptions { spare_percent: args.spare, capacity: None };
    let options = ReplayOptions { format, is_filled: args.fill, ..ReplayOptions::default() };
    let mut config = preset.config(args.seed);
    if let Some(size) = args.size {
        config.geometry.chunks = super::served::chunks_for(size, &config.geometry)?;
    }
    let replayed = replay(config, options, commands).map_err(|error| match error {
        ReplayError::Manager(
            ManagerError::TooSmall { .. } | ManagerError::SpareTooSmall { .. } | ManagerError::RootTooLarge { .. },
        )
        | ReplayError::Nand(_) => Failure::usage(error),
        error => Failure::check(format!("{path}: {error}")),
    })?;
    let Replayed { latencies, wrapped, took, figures, counts, bytes } = replayed;
    let kinds = ["read", "write", "trim", "flush"];
    let report = Report {
        preset: preset.name(),
        bytes,
        seconds: took.as_secs_f64(),
        latencies: kinds.into_iter().zip(&latencies).filter_map(|(kind, found)| latency(kind, found)).collect(),
        wrapped_commands: wrapped,
        host_sectors: figures.host_sectors,
        programmed_sectors: figures.programmed_sectors,
        moved_sectors: figures.moved_sectors,
        padding_sectors: figures.padding_sectors,
        write_amplification: figures.write_amplification(),
        erases: counts.erases,
        wear_least: figures.wear[0],
        wear_most: figures.wear[1],
    };
    output::report(args.common.json, &report, Report::describe)
}

impl Report {
    fn describe(&self) -> String {
        let mut text =
            format!("{}: a namespace of {}, {:.6} s of its time\n", self.preset, Size(self.bytes), self.seconds);
        text += "            commands    mean us     p50 us     p90 us     p99 us   p99.9 us     max us\n";
        for Latency { kind, commands, mean_us, p50_us, p90_us, p99_us, p999_us, max_us } in &self.latencies {
            text += &format!("{kind:<8} {commands:>11} ");
            for value in [mean_us, p50_us, p90_us, p99_us, p999_us, max_us] {
                text += &format!("{value:>10.1} ");
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        if self.wrapped_commands > 0 {
            let commands = output::many(self.wrapped_commands, "command");
            text += &format!("{commands} reached beyond the end, and went on at the begin\n");
        }
        let written = output::many(self.host_sectors, "sector");
        text += &format!("{written} written by the trace, {} programmed ", self.programmed_sectors);
        text += &format!("({} moved, {} padding): ", self.moved_sectors, self.padding_sectors);
        text += &format!("write amplification {:.3}\n", self.write_amplification);
        text + &format!("{} erases; lines reset {} to {} times", self.erases, self.wear_least, self.wear_most)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn quantiles_are_bounds_of_what_was_counted() {
        let histogram = Histogram::default();
        (1..=1000).for_each(|micros| histogram.record(Duration::from_micros(micros)));
        for (share, exact) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = quantile(&histogram, share);
            assert!((exact..exact * 1.13).contains(&found), "{share}: {found}");
        }
        assert_eq!(quantile(&Histogram::default(), 0.5), 0.0);
    }
}
