//! `yagura bench flash`: row B10. The experiments of Ishikawa and Oikawa's article on Open-Channel SSDs on Olive, on the model
//! of it in virtual time: tables 3 and 4, figures 5, 6 and 7, and reads beside collection.
//!
//! Published figures stand in the names of ratios. The model is not fitted: where it does not give what the article does, that is
//! reported. Of fio the article says lengths and patterns alone: one access at a time, as fio has it unless told otherwise.

use std::time::Duration;

use flash::experiment::{Access, Cache, Served, Side as Who, serve};
use flash::nand::NandConfig;
use flash::presets::{Preset, olive_on_plain_ports};
use flash::{Geometry, ManagerOptions, SECTOR_BYTES};

use crate::figures::{Aim, Curve, Ratio, Row, Sample, Side, histogram, record};
use crate::progress::Progress;

/// Lengths of accesses.
const LENGTHS: [usize; 3] = [4 << 10, 64 << 10, 128 << 10];
/// Sizes of interleave, in KiB; the last one is the driver's default.
const INTERLEAVES: [u32; 7] = [4, 8, 16, 32, 64, 128, 2048];
/// What is filled before, and accessed.
const SPAN: u64 = 32 << 20;
/// Published, of the block device and of LightNVM, by length: sequential reads in MB/s (the table prints 128.632 for the third,
/// but the text's 5.7 % wants 198.6), random ones in thousands a second; then writes.
const PUBLISHED: [(&str, [f64; 3], [f64; 3]); 4] = [
    ("seq. read", [42.620, 165.325, 198.6], [42.776, 165.234, 210.009]),
    ("rand. read", [9.833, 4.584, 2.760], [10.154, 4.367, 2.741]),
    ("seq. write", [5.9816, 15.719, 24.854], [16.205, 32.212, 51.138]),
    ("rand. write", [2.839, 0.553, 0.449], [4.516, 0.813, 0.825]),
];

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Virtual time of each measurement.
    pub time: Duration,
}

fn managed(interleave_kib: u32) -> Who {
    let interleave = interleave_kib * 1024 / SECTOR_BYTES as u32;
    Who::Managed(ManagerOptions { interleave, ..ManagerOptions::default() })
}

fn access(options: Options, is_write: bool, is_random: bool, bytes: usize) -> Access {
    Access { is_write, is_random, bytes, depth: 1, span: SPAN, time: options.time }
}

fn side(name: String, served: &Served) -> Side {
    let mut latencies = histogram();
    served.latencies.iter().for_each(|&latency| record(&mut latencies, latency));
    Side { name, rounds: vec![Sample::new(&latencies, served.took, Duration::ZERO, None)] }
}

fn row(name: &str, title: &str, options: Options) -> Row {
    let conditions = vec![
        "the preset `olive`: four buses of 52 MB/s with one eMMC each, on four coherent ports; virtual time, one seed"
            .into(),
        format!(
            "one access at a time for {:?}, writes with the flush behind them, over {} MiB that were written before",
            options.time,
            SPAN >> 20
        ),
    ];
    Row { row: name.into(), title: title.into(), conditions, sides: Vec::new(), ratios: Vec::new(), curves: Vec::new() }
}

fn figure(name: impl Into<String>, value: f64) -> Ratio {
    Ratio::of(name, &[value])
}

/// Runs the rows.
pub fn run(options: Options, progress: &Progress, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    rows.push(tables(options, progress)?);
    for is_write in [false, true] {
        rows.push(interleaves(options, is_write, progress)?);
    }
    rows.push(ports(options, progress)?);
    rows.push(collecting(options, progress)?);
    progress.end();
    Ok(())
}

/// Tables 3 and 4.
fn tables(options: Options, progress: &Progress) -> anyhow::Result<Row> {
    let mut row = row("B10", "host-managed flash beside a plain block device (tables 3 and 4)", options);
    row.conditions.push(
        "block device: the driver stripes by 2 MiB over eMMCs, each of which has our manager inside over one parallel unit, its \
         firmware's time and its map's left out; without its cache (as after power on) and with one of 512 KiB"
            .into(),
    );
    row.conditions
        .push("host-managed: interleave of a write unit, 128 KiB; a volatile buffer of 2 MiB in the host".into());
    let whos = [
        ("host-managed", managed(0)),
        ("block", Who::Plain(Cache::Off)),
        ("block with a cache", Who::Plain(Cache::On)),
    ];
    progress.begin("tables 3 and 4", PUBLISHED.len() * LENGTHS.len() * whos.len());
    for (index, (what, block, lightnvm)) in PUBLISHED.into_iter().enumerate() {
        let (is_write, is_random) = (index >= 2, index % 2 == 1);
        for (at, bytes) in LENGTHS.into_iter().enumerate() {
            let name = format!("{what} {} KiB", bytes >> 10);
            let mut values = Vec::new();
            for (who, kind) in whos {
                let served = serve(Preset::Olive.config(1), kind, access(options, is_write, is_random, bytes), None)?;
                // As the tables have it.
                values.push(if is_random { served.rate() / 1000.0 } else { served.megabytes() });
                row.sides.push(side(format!("{name}: {who}"), &served));
                progress.step()?;
            }
            let unit = if is_random { "kIOPS" } else { "MB/s" };
            let published = lightnvm[at] / block[at];
            let aim = if is_write { 1.0 } else { 0.95 };
            row.ratios.extend([
                figure(format!("{name}: host-managed, {unit} (published {})", lightnvm[at]), values[0]),
                figure(format!("{name}: block, {unit} (published {})", block[at]), values[1]),
                figure(format!("{name}: host-managed / block (published {published:.2})"), values[0] / values[1])
                    .aim(Aim::AtLeast, aim),
                figure(format!("{name}: host-managed / block with a cache"), values[0] / values[2]),
            ]);
        }
    }
    row.ratios.extend(bandwidth(options)?);
    Ok(row)
}

/// What all buses and parallel units give together, with enough under way that each of them has something to do.
fn bandwidth(options: Options) -> anyhow::Result<[Ratio; 2]> {
    let config = Preset::Olive.config(1);
    let (groups, timing) = (f64::from(config.geometry.groups), &config.timing);
    let buses = groups * timing.bus_bytes_per_second as f64 / 1e6;
    let page = f64::from(config.geometry.write_unit) * SECTOR_BYTES as f64;
    let arrays = f64::from(config.geometry.units()) * page / timing.program.as_secs_f64() / 1e6;
    let deep = |is_write| Access { depth: 32, ..access(options, is_write, false, 128 << 10) };
    let read = serve(config.clone(), managed(0), deep(false), None)?.megabytes();
    let write = serve(config, managed(0), deep(true), None)?.megabytes();
    Ok([
        figure(format!("seq. read 128 KiB, depth 32 / {buses:.0} MB/s of all buses"), read / buses)
            .aim(Aim::AtLeast, 0.95),
        figure(
            format!("seq. write 128 KiB, depth 32 / {:.1} MB/s of all buses or arrays", arrays.min(buses)),
            write / arrays.min(buses),
        )
        .aim(Aim::AtLeast, 0.95),
    ])
}

/// Figures 5 and 6.
fn interleaves(options: Options, is_write: bool, progress: &Progress) -> anyhow::Result<Row> {
    let (name, what) = if is_write { ("B10-writes", "writes") } else { ("B10-reads", "reads") };
    let number = if is_write { 6 } else { 5 };
    let title = format!("sequential {what} by interleave (figure {number})");
    let mut row = row(name, &title, options);
    row.conditions
        .push("curves: MB/s against the interleave, the binary logarithm of its KiB (2: 4 KiB … 11: 2 MiB)".into());
    progress.begin(what, LENGTHS.len() * INTERLEAVES.len());
    for bytes in LENGTHS {
        let name = format!("{what} {} KiB", bytes >> 10);
        let mut values = Vec::new();
        for interleave in INTERLEAVES {
            let served =
                serve(Preset::Olive.config(1), managed(interleave), access(options, is_write, false, bytes), None)?;
            values.push(served.megabytes());
            row.sides.push(side(format!("{name}: by {interleave} KiB"), &served));
            row.ratios.push(figure(format!("{name}: by {interleave} KiB, MB/s"), served.megabytes()));
            progress.step()?;
        }
        row.ratios.extend(directions(&name, is_write, bytes, &values));
        let points = INTERLEAVES.iter().map(|&kib| f64::from(kib).log2()).zip(values).collect();
        row.curves.push(Curve { name, points });
    }
    Ok(row)
}

/// What the article says of the figures.
fn directions(name: &str, is_write: bool, bytes: usize, values: &[f64]) -> Vec<Ratio> {
    let at = |kib: u32| INTERLEAVES.iter().position(|&size| size == kib).map_or(0.0, |index| values[index]);
    let best = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let (short, least) = (&values[..values.len() - 1], values[..values.len() - 1].iter().copied().fold(best, f64::min));
    let most = short.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let of = |what: &str, value: f64| figure(format!("{name}: {what}"), value);
    let mut ratios = match (is_write, bytes >> 10) {
        (false, 4) => {
            vec![of("least / best of 4 to 128 KiB (published: no difference)", least / most).aim(Aim::AtLeast, 0.95)]
        }
        (false, 64) => vec![of("by 16 KiB / best (published: the best)", at(16) / best).aim(Aim::AtLeast, 1.0)],
        (false, _) => vec![of("by 32 KiB / best (published: the best)", at(32) / best).aim(Aim::AtLeast, 1.0)],
        (true, 4) => {
            vec![of("by 8 KiB / by 128 KiB (published: the best, above 1)", at(8) / at(128)).aim(Aim::AtLeast, 1.01)]
        }
        (true, _) => {
            vec![of("by 128 KiB / by 4 KiB (published: the best, above 1)", at(128) / at(4)).aim(Aim::AtLeast, 1.01)]
        }
    };
    ratios.push(of("by 2 MiB / best (published: poor)", at(2048) / best).aim(Aim::AtMost, 0.5));
    ratios
}

/// Figure 7.
fn ports(options: Options, progress: &Progress) -> anyhow::Result<Row> {
    let mut row = row("B10-ports", "coherent ports beside plain ones (figure 7)", options);
    row.conditions.push(
        "interleave 128 KiB; plain: the four buses on HP ports, of 1,200 MB/s and the caches' upkeep, 315 MB/s together (guessed)".into(),
    );
    progress.begin("ports", 2 * 2 * LENGTHS.len());
    for (is_write, what) in [(false, "read"), (true, "write")] {
        for bytes in LENGTHS {
            let name = format!("seq. {what} {} KiB", bytes >> 10);
            let mut values = Vec::new();
            for (who, config) in [("ACP", Preset::Olive.config(1)), ("HP", olive_on_plain_ports(1))] {
                let served = serve(config, managed(128), access(options, is_write, false, bytes), None)?;
                values.push(served.megabytes());
                row.sides.push(side(format!("{name}: {who}"), &served));
                progress.step()?;
            }
            let ratio = values[0] / values[1];
            row.ratios.push(match (bytes >> 10, is_write) {
                (4, _) => figure(format!("{name}: ACP / HP (published: no difference)"), ratio).aim(Aim::AtMost, 1.1),
                (128, false) => figure(format!("{name}: ACP / HP (published 2.4)"), ratio).aim(Aim::AtLeast, 1.1),
                (128, true) => figure(format!("{name}: ACP / HP (published 3.9)"), ratio).aim(Aim::AtLeast, 1.1),
                _ => figure(format!("{name}: ACP / HP (published: a large difference)"), ratio).aim(Aim::AtLeast, 1.1),
            });
        }
    }
    Ok(row)
}

/// Reads on a full device, alone and while random writes have it collect.
fn collecting(options: Options, progress: &Progress) -> anyhow::Result<Row> {
    let mut row = row("B10-collecting", "reads of 4 KiB on a full device, alone and beside random writes", options);
    row.conditions.push(
        "32 chunks on each parallel unit, all of the namespace written before; the manager isolates nothing".into(),
    );
    row.conditions.push("beside: random writes of 4 KiB, 4 under way, for four times as long before".into());
    let config = || {
        let olive = Preset::Olive.config(1);
        NandConfig { geometry: Geometry { chunks: 32, ..olive.geometry }, ..olive }
    };
    let span = u64::from(config().geometry.sectors_total()) * SECTOR_BYTES as u64;
    let read = Access { span, ..access(options, false, true, 4 << 10) };
    let write = Access { span, depth: 4, time: options.time * 4, ..access(options, true, true, 4 << 10) };
    progress.begin("collecting", 4);
    for (who, kind) in [("host-managed", managed(0)), ("block with a cache", Who::Plain(Cache::On))] {
        let mut tails = Vec::new();
        for (how, beside) in [("alone", None), ("beside writes", Some(write))] {
            let served = serve(config(), kind, read, beside)?;
            tails.push(served.quantile(0.999).as_secs_f64() * 1e6);
            row.sides.push(side(format!("{who}: reads {how}"), &served));
            progress.step()?;
        }
        row.ratios.push(figure(format!("{who}: p99.9 of reads alone, us"), tails[0]));
        row.ratios.push(figure(format!("{who}: p99.9 of reads beside writes, us"), tails[1]));
    }
    Ok(row)
}
