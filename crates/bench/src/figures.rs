//! Samples, sides and ratios: the one shape in which every row is reported, printed, stored and drawn.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latencies are recorded in nanoseconds up to this; slower ones count as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// A latency histogram: nanoseconds, three significant digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("bounds are constants: 1 < max, 3 digits <= 5")
}

/// Records one latency; never fails, the slowest ones saturate.
pub fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    histogram.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(LATENCY_NS_MAX));
}

/// One round of one side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Operations finished.
    pub operations: u64,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Operations per second.
    pub rate: f64,
    /// Latency in microseconds.
    pub p50_us: f64,
    /// Latency in microseconds.
    pub p99_us: f64,
    /// Latency in microseconds.
    pub p999_us: f64,
    /// Slowest operation, microseconds.
    pub max_us: f64,
    /// CPU time per operation of the side that asks, microseconds.
    pub client_cpu_us: f64,
    /// CPU time per operation of the side (or sides) that answer, microseconds; absent where it is the same process.
    pub server_cpu_us: Option<f64>,
}

impl Sample {
    /// Sums up one round.
    pub fn new(
        histogram: &Histogram<u64>,
        wall: Duration,
        client_cpu: Duration,
        server_cpu: Option<Duration>,
    ) -> Sample {
        let operations = histogram.len();
        let us = |q: f64| histogram.value_at_quantile(q) as f64 / 1e3;
        let per_operation = |cpu: Duration| cpu.as_secs_f64() * 1e6 / operations.max(1) as f64;
        Sample {
            operations,
            seconds: wall.as_secs_f64(),
            rate: operations as f64 / wall.as_secs_f64(),
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: histogram.max() as f64 / 1e3,
            client_cpu_us: per_operation(client_cpu),
            server_cpu_us: server_cpu.map(per_operation),
        }
    }
}

/// One side of a row: ours, a peer or a floor, with all its rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Side {
    /// What ran, in words.
    pub name: String,
    /// One sample a round, in the order in which they ran.
    pub rounds: Vec<Sample>,
}

impl Side {
    /// A side without rounds yet.
    pub fn new(name: impl Into<String>) -> Side {
        Side { name: name.into(), rounds: Vec::new() }
    }

    /// The median over the rounds of one figure.
    pub fn median(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        median(self.rounds.iter().map(figure).collect())
    }
}

/// Which way a ratio should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aim {
    /// At most the given figure.
    AtMost,
    /// At least the given figure.
    AtLeast,
}

/// The ratio of two sides' medians, with the least and the greatest ratio seen in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ratio {
    /// What is divided by what.
    pub name: String,
    /// Ratio of the medians.
    pub median: f64,
    /// Least ratio of a round.
    pub low: f64,
    /// Greatest ratio of a round.
    pub high: f64,
    /// What it should be, if anything is asked.
    pub aim: Option<(Aim, f64)>,
}

impl Ratio {
    /// `ours / theirs` of the figure that `of` picks, round by round.
    pub fn new(name: impl Into<String>, ours: &Side, theirs: &Side, of: impl Fn(&Sample) -> f64 + Copy) -> Ratio {
        Ratio::mixed(name, ours, of, theirs, of)
    }

    /// The same for two different figures, such as a rate over the inverse of a latency.
    pub fn mixed(
        name: impl Into<String>,
        ours: &Side,
        our_figure: impl Fn(&Sample) -> f64 + Copy,
        theirs: &Side,
        their_figure: impl Fn(&Sample) -> f64 + Copy,
    ) -> Ratio {
        let rounds: Vec<f64> =
            ours.rounds.iter().zip(&theirs.rounds).map(|(a, b)| our_figure(a) / their_figure(b)).collect();
        Ratio {
            name: name.into(),
            median: ours.median(our_figure) / theirs.median(their_figure),
            low: rounds.iter().copied().fold(f64::INFINITY, f64::min),
            high: rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            aim: None,
        }
    }

    /// A figure that no side's samples hold, one value a round; such as bytes over the bytes allowed.
    pub fn of(name: impl Into<String>, rounds: &[f64]) -> Ratio {
        Ratio {
            name: name.into(),
            median: median(rounds.to_vec()),
            low: rounds.iter().copied().fold(f64::INFINITY, f64::min),
            high: rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            aim: None,
        }
    }

    /// Another name.
    pub fn named(self, name: impl Into<String>) -> Ratio {
        Ratio { name: name.into(), ..self }
    }

    /// States what the ratio should be.
    pub fn aim(mut self, aim: Aim, figure: f64) -> Ratio {
        self.aim = Some((aim, figure));
        self
    }

    /// Whether the median meets the aim; absent where none is stated.
    pub fn met(&self) -> Option<bool> {
        self.aim.map(|(aim, figure)| match aim {
            Aim::AtMost => self.median <= figure,
            Aim::AtLeast => self.median >= figure,
        })
    }
}

/// One row of the benchmark table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The row's name (`B1`, …).
    pub row: String,
    /// What is measured, in a sentence.
    pub title: String,
    /// Device under test, transport, threads, depth, value size, what is pinned where.
    pub conditions: Vec<String>,
    /// Everything that ran.
    pub sides: Vec<Side>,
    /// What it comes to.
    pub ratios: Vec<Ratio>,
    /// One figure against another, if that is what the row is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curves: Vec<Curve>,
}

/// A figure against another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Curve {
    /// What it is.
    pub name: String,
    /// In the order in which they are joined.
    pub points: Vec<(f64, f64)>,
}

impl Row {
    /// The row as a table for people.
    pub fn table(&self) -> String {
        use std::fmt::Write as _;
        let mut text = format!("{} · {}\n", self.row, self.title);
        for condition in &self.conditions {
            let _ = writeln!(text, "    {condition}");
        }
        let width = self.sides.iter().map(|s| s.name.len()).max().unwrap_or(0);
        let _ = writeln!(
            text,
            "  {:width$}  {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "median of rounds", "per second", "p50 us", "p99 us", "p99.9 us", "client us", "server us"
        );
        for side in &self.sides {
            let server = if side.rounds.iter().all(|s| s.server_cpu_us.is_some()) {
                format!("{:.2}", side.median(|s| s.server_cpu_us.unwrap_or(0.0)))
            } else {
                "-".to_owned()
            };
            let _ = writeln!(
                text,
                "  {:width$}  {:>10.0} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9}",
                side.name,
                side.median(|s| s.rate),
                side.median(|s| s.p50_us),
                side.median(|s| s.p99_us),
                side.median(|s| s.p999_us),
                side.median(|s| s.client_cpu_us),
                server
            );
        }
        for ratio in &self.ratios {
            let verdict = match (ratio.aim, ratio.met()) {
                (Some((Aim::AtMost, f)), Some(met)) => format!("aim <= {f}: {}", if met { "met" } else { "MISSED" }),
                (Some((Aim::AtLeast, f)), Some(met)) => format!("aim >= {f}: {}", if met { "met" } else { "MISSED" }),
                _ => "reported".to_owned(),
            };
            let _ = writeln!(
                text,
                "  {} = {:.3} [{:.3} .. {:.3}]  {verdict}",
                ratio.name, ratio.median, ratio.low, ratio.high
            );
        }
        text
    }

    /// Writes `<row>.json` and `<row>.svg` into `directory`.
    pub fn save(&self, directory: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let json = directory.join(format!("{}.json", self.row));
        std::fs::write(&json, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("cannot write {}", json.display()))?;
        crate::plot::draw(self, &directory.join(format!("{}.svg", self.row)))
    }
}

/// The median; 0 of nothing.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(name: &str, p50s: &[u64]) -> Side {
        let mut side = Side::new(name);
        for &us in p50s {
            let mut h = histogram();
            record(&mut h, Duration::from_micros(us));
            side.rounds.push(Sample::new(&h, Duration::from_secs(1), Duration::from_micros(3), None));
        }
        side
    }

    #[test]
    fn ratio_is_of_medians_and_spread_is_by_round() {
        let ratio = Ratio::new("a/b", &side("a", &[10, 30, 20]), &side("b", &[10, 10, 10]), |s| s.p50_us);
        assert!((ratio.median - 2.0).abs() < 0.01, "{ratio:?}");
        assert!((ratio.low - 1.0).abs() < 0.01 && (ratio.high - 3.0).abs() < 0.01, "{ratio:?}");
        assert_eq!(ratio.clone().aim(Aim::AtMost, 1.9).met(), Some(false));
        assert_eq!(ratio.aim(Aim::AtLeast, 1.9).met(), Some(true));
    }

    #[test]
    fn slowest_latencies_saturate_instead_of_failing() {
        let mut h = histogram();
        record(&mut h, Duration::from_secs(3600));
        assert_eq!(h.len(), 1);
        assert!(h.max() >= LATENCY_NS_MAX);
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
