//! `yagura bench erasure`: parity and rebuilding beside ISA-L and beside a plain copy, on one core.
//!
//! Sides are compared by the operations on stripes. The copy moves half of a stripe to its other half: it touches as many bytes, of
//! which every one is read or written once, too.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use erasure::Code;

use crate::figures::{Aim, Ratio, Row, Sample, Side, histogram};
use crate::isal::{Factors, Isal, Places};
use crate::machine;
use crate::progress::Progress;

/// Units of data and of parity.
const SHAPES: [(usize, usize); 4] = [(2, 1), (4, 2), (8, 3), (10, 4)];
/// Bytes of a unit.
const UNITS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Bytes of the stripes that have their turn one after the other where data comes out of memory. Chosen: eight times the last cache
/// of what is measured on.
pub const MEMORY_BYTES: usize = 256 << 20;
/// Bytes of stripes between two looks at the clock. Chosen: microseconds, of which a look is a hundredth.
const BATCH_BYTES: usize = 256 << 10;
/// Where units begin. ISA-L asks for 32, pages are what storage has.
const ALIGNMENT: usize = 4096;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Rounds, each of which runs all sides.
    pub rounds: usize,
    /// Length of one side of a round.
    pub time: Duration,
    /// Bytes of stripes that are more than the caches hold, such as [`MEMORY_BYTES`].
    pub memory: usize,
}

/// What is done with stripes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    /// All parity is made.
    Encode,
    /// As many units of data are lost as there is parity, and made again.
    Decode,
}

/// Sources of an operation, and its outputs.
type Operation<'a> = (Vec<&'a [u8]>, Vec<&'a mut [u8]>);

/// Stripes of one shape in memory.
struct Stripes {
    memory: Vec<u8>,
    data: usize,
    parity: usize,
    unit: usize,
}

impl Stripes {
    /// As many as fit into `bytes`, but one at least.
    fn new(data: usize, parity: usize, unit: usize, bytes: usize) -> Stripes {
        let stripe = (data + parity) * unit;
        let count = (bytes / stripe).max(1);
        let memory = (0..count * stripe + ALIGNMENT).map(|at| (at * 31 + at / 4093) as u8).collect();
        Stripes { memory, data, parity, unit }
    }

    /// Bytes that an operation on a stripe touches.
    fn bytes(&self) -> usize {
        (self.data + self.parity) * self.unit
    }

    /// Each stripe, aligned.
    fn all(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let (first, bytes) = (self.memory.as_ptr().align_offset(ALIGNMENT), self.bytes());
        self.memory[first..].chunks_exact_mut(bytes)
    }

    /// Of each stripe the sources of an operation, and its outputs. What is lost of the data are its first units.
    fn split(&mut self, verb: Verb) -> Vec<Operation<'_>> {
        let (data, parity, unit) = (self.data, self.parity, self.unit);
        let split = |stripe| {
            let (sources, outs) = match verb {
                Verb::Encode => <[u8]>::split_at_mut(stripe, data * unit),
                Verb::Decode => {
                    let (lost, left) = <[u8]>::split_at_mut(stripe, parity * unit);
                    (left, lost)
                }
            };
            let sources: &[u8] = sources;
            (sources.chunks_exact(unit).collect(), outs.chunks_exact_mut(unit).collect())
        };
        self.all().map(split).collect()
    }
}

/// Runs the row. Without ISA-L a condition of the row says what to install, and ours is beside the copy alone.
pub fn run(options: Options, progress: &Progress) -> anyhow::Result<Row> {
    let core = *machine::cores()?.first().context("no core to run on")?;
    let isal = Isal::load();
    let mut row = Row {
        row: "B12".to_owned(),
        title: "erasure codes on one core, beside ISA-L and beside a copy of as many bytes".to_owned(),
        conditions: vec![
            machine::describe(),
            format!("core {core}; our kernel: {:?}", Code::new(2, 1)?.kernel()),
            format!(
                "cached: the same stripe again and again; memory: {} MiB of stripes one after the other",
                options.memory >> 20
            ),
            "decode: as many units of data as there is parity; ISA-L's tables are made beforehand, ours each time"
                .to_owned(),
            format!("{} interleaved rounds of {:?} a side", options.rounds, options.time),
        ],
        sides: Vec::new(),
        ratios: Vec::new(),
        curves: Vec::new(),
    };
    if let Err(error) = &isal {
        row.conditions.push(format!("{error:#}"));
    }
    progress.begin("measuring", SHAPES.len() * UNITS.len() * 2 * options.rounds * 2);
    for is_cached in [true, false] {
        for (data, parity) in SHAPES {
            for unit in UNITS {
                let stripes = &mut Stripes::new(data, parity, unit, if is_cached { 0 } else { options.memory });
                for verb in [Verb::Encode, Verb::Decode] {
                    let place = if is_cached { "cached" } else { "memory" };
                    let word = if verb == Verb::Encode { "encode" } else { "decode" };
                    let name = format!("{word} {data}+{parity}, {} KiB, {place}", unit >> 10);
                    machine::pinned(core, || {
                        case(options, &name, verb, stripes, isal.as_ref().ok(), progress, &mut row)
                    })??;
                }
            }
        }
    }
    progress.end();
    Ok(row)
}

/// One operation on stripes of one shape, by all sides.
fn case(
    options: Options,
    name: &str,
    verb: Verb,
    stripes: &mut Stripes,
    isal: Option<&Isal>,
    progress: &Progress,
    row: &mut Row,
) -> anyhow::Result<()> {
    let (data, parity) = (stripes.data, stripes.parity);
    let code = Code::new(data, parity)?;
    let peer = isal.map(|isal| anyhow::Ok((*isal, factors(isal, verb, data, parity)?))).transpose()?;
    let mut ours = Side::new(format!("{name}: ours"));
    let mut theirs = Side::new(format!("{name}: ISA-L"));
    let mut copy = Side::new(format!("{name}: copy"));
    for _ in 0..options.rounds {
        ours.rounds.push(our_round(options, &code, verb, stripes)?);
        if let Some((isal, factors)) = &peer {
            let made = outputs(stripes, verb);
            theirs.rounds.push(their_round(options, *isal, factors.as_ref(), verb, stripes)?);
            anyhow::ensure!(made == outputs(stripes, verb), "{name}: ISA-L makes other bytes than we do");
        }
        if verb == Verb::Encode {
            copy.rounds.push(copy_round(options, stripes)?);
        }
        progress.step()?;
    }
    let is_xor = parity == 1;
    if peer.is_some() {
        let ratio = Ratio::new(format!("{name}: rate, ours / ISA-L"), &ours, &theirs, |s| s.rate);
        row.ratios.push(ratio.aim(Aim::AtLeast, 1.0));
        row.sides.push(theirs);
    }
    if verb == Verb::Encode {
        let ratio = Ratio::new(format!("{name}: rate, ours / copy"), &ours, &copy, |s| s.rate);
        row.ratios.push(if is_xor { ratio.aim(Aim::AtLeast, 0.9) } else { ratio });
        row.sides.push(copy);
    }
    row.sides.push(ours);
    Ok(())
}

/// The factors that ISA-L computes with; none for one unit of parity, for which it has a function of its own.
fn factors(isal: &Isal, verb: Verb, data: usize, parity: usize) -> anyhow::Result<Option<Factors>> {
    match verb {
        _ if parity == 1 => Ok(None),
        Verb::Encode => isal.of_parity(data, parity).map(Some),
        Verb::Decode => isal.of_lost(data, parity, parity).map(Some),
    }
}

/// What an operation has made of the first stripe.
fn outputs(stripes: &mut Stripes, verb: Verb) -> Vec<Vec<u8>> {
    let split = stripes.split(verb);
    split.first().map_or_else(Vec::new, |(_, outs)| outs.iter().map(|out| out.to_vec()).collect())
}

fn our_round(options: Options, code: &Code, verb: Verb, stripes: &mut Stripes) -> anyhow::Result<Sample> {
    let (bytes, lost) = (stripes.bytes(), code.parity());
    let split = stripes.split(verb);
    match verb {
        Verb::Encode => turns(options, bytes, split, |(sources, outs)| Ok(code.encode(sources, outs)?)),
        Verb::Decode => {
            let operation = |(sources, outs): (Vec<_>, Vec<_>)| {
                let left = std::iter::repeat_n(None, lost).chain(sources.into_iter().map(Some));
                (left.collect::<Vec<_>>(), outs.into_iter().enumerate().collect::<Vec<_>>())
            };
            let operations = split.into_iter().map(operation).collect();
            turns(options, bytes, operations, |(units, wanted)| Ok(code.decode(units, wanted)?))
        }
    }
}

fn their_round(
    options: Options,
    isal: Isal,
    factors: Option<&Factors>,
    verb: Verb,
    stripes: &mut Stripes,
) -> anyhow::Result<Sample> {
    let bytes = stripes.bytes();
    let places = stripes.split(verb).into_iter().map(|(sources, outs)| Places::new(&sources, outs));
    let places = places.collect::<anyhow::Result<Vec<_>>>()?;
    match factors {
        None => turns(options, bytes, places, |places| {
            isal.xor(places);
            Ok(())
        }),
        Some(factors) => turns(options, bytes, places, |places| {
            isal.sum(factors, places);
            Ok(())
        }),
    }
}

fn copy_round(options: Options, stripes: &mut Stripes) -> anyhow::Result<Sample> {
    let bytes = stripes.bytes();
    let halves = stripes.all().map(|stripe| stripe.split_at_mut(bytes / 2)).collect();
    turns(options, bytes, halves, |(from, to)| {
        to.copy_from_slice(from);
        Ok(())
    })
}

/// The operation on one stripe after the other, as long as a side has.
fn turns<T>(
    options: Options,
    bytes: usize,
    mut stripes: Vec<T>,
    mut operation: impl FnMut(&mut T) -> anyhow::Result<()>,
) -> anyhow::Result<Sample> {
    let batch = (BATCH_BYTES / bytes).max(1);
    let mut latencies = histogram();
    let cpu = machine::cpu_time(std::process::id())?;
    let begin = Instant::now();
    let (mut last, mut next) = (begin, 0);
    while last.duration_since(begin) < options.time {
        for _ in 0..batch {
            operation(&mut stripes[next])?;
            next = if next + 1 < stripes.len() { next + 1 } else { 0 };
        }
        let now = Instant::now();
        let each = now.duration_since(last).as_nanos() as u64 / batch as u64;
        latencies.saturating_record_n(each, batch as u64);
        last = now;
    }
    let used = machine::cpu_time(std::process::id())?.saturating_sub(cpu);
    Ok(Sample::new(&latencies, last.duration_since(begin), used, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Stop;

    /// The whole row, each side as briefly as can be: it compares with ISA-L what ours made, too.
    #[test]
    fn a_short_row_has_all_sides() {
        let options = Options { rounds: 1, time: Duration::from_millis(1), memory: 32 << 20 };
        let row = run(options, &Progress::new(Stop::default())).unwrap();
        let cases = 2 * 2 * SHAPES.len() * UNITS.len();
        assert_eq!(row.sides.len(), 2 * cases + cases / 2, "{:?}", row.conditions);
        assert_eq!(row.ratios.len(), cases + cases / 2);
    }
}
