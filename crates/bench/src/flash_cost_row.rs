//! `yagura bench flash`: row B11. What the media manager costs: writes against spare space beside what analysis says greedy
//! collection costs at best, and wear, in virtual time; a lookup in the map and a write of 4 KiB in real time, on a model
//! without times.

use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use engine::rng::SplitMix;
use engine::{Buf, Reactor, ReactorConfig};
use flash::experiment::{Load, Plan, Written, endurance, write_amplification};
use flash::nand::{Nand, NandConfig};
use flash::presets::Preset;
use flash::{FlashDevice, FormatOptions, Geometry, Heat, Manager, ManagerOptions, Policy, SECTOR_BYTES, Sector};

use crate::figures::{Aim, Curve, Ratio, Row};
use crate::machine;
use crate::progress::Progress;
use crate::workload::Zipfian;

/// Room for data over the namespace, less one, in percent.
const SPARES: [u32; 4] = [7, 14, 21, 28];
/// Over the bound that uniform writes may cost.
const UNIFORM_ALLOWED: f64 = 1.05;
/// Lines between two roots: a sixteenth of the log, which is read after a crash.
const LINES_PER_ROOT: u32 = 128;
/// What a lookup may take, and a write of 4 KiB of the manager's time.
const LOOKUP_NS_ALLOWED: f64 = 50.0;
const WRITE_US_ALLOWED: f64 = 1.0;
/// Lookups of a round: long against the clock's resolution.
const LOOKUPS: u32 = 2_000_000;
/// Room for data over the namespace, less one, while wear is counted.
const WEAR_SPARE: f64 = 0.28;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Rounds, each with a seed of its own.
    pub rounds: usize,
    /// How often the small preset is written as a whole, for its wear.
    pub device_writes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Popularity {
    Uniform,
    Zipf,
}

impl Popularity {
    const ALL: [Popularity; 2] = [Popularity::Uniform, Popularity::Zipf];

    fn name(self) -> &'static str {
        match self {
            Popularity::Uniform => "uniform",
            Popularity::Zipf => "Zipf 0.99",
        }
    }

    fn load(self, capacity: u32, seed: u64) -> Load {
        let mut random = SplitMix(seed);
        match self {
            Popularity::Uniform => Box::new(move || random.below(u64::from(capacity)) as u32),
            Popularity::Zipf => {
                let zipfian = Zipfian::new(u64::from(capacity));
                // Popular sectors are not neighbours, and each rank has a sector of its own.
                let mut places: Vec<u32> = (0..capacity).collect();
                for end in (1..places.len()).rev() {
                    places.swap(end, random.index(end + 1));
                }
                Box::new(move || places[zipfian.rank(&mut random) as usize])
            }
        }
    }
}

const POLICIES: [(Policy, &str); 2] = [(Policy::Greedy, "greedy"), (Policy::CostBenefit, "cost-benefit")];

/// Small enough for seconds, and with lines enough that what is one of each (open lines, the reserve) is a small part of the spare.
fn config(seed: u64) -> NandConfig {
    // One sector is a write unit: on a drive padding is a ten-thousandth of a line, and with larger units it would be a percent
    // here.
    let geometry = Geometry {
        groups: 2,
        units_per_group: 2,
        chunks: 2048,
        sectors: 16,
        write_unit: 1,
        oob_bytes: 32,
        open_max: 0,
    };
    NandConfig::ideal(geometry, seed)
}

/// Runs the row.
pub fn run(options: Options, progress: &Progress) -> anyhow::Result<Row> {
    let cases: Vec<(Popularity, Policy, &str)> = Popularity::ALL
        .iter()
        .flat_map(|&popularity| POLICIES.map(|(policy, name)| (popularity, policy, name)))
        .collect();
    let (mut ratios, mut curves, mut unsteady) = (Vec::new(), Vec::new(), 0);
    let mut bound = Curve { name: "bound, uniform".into(), points: Vec::new() };
    progress.begin("writing", cases.len() * SPARES.len() * options.rounds);
    for &(popularity, policy, name) in &cases {
        let mut points = Vec::new();
        for percent in SPARES {
            let mut rounds = Vec::new();
            for seed in 1..=options.rounds as u64 {
                let manager = ManagerOptions { policy, lines_per_root: LINES_PER_ROOT, ..ManagerOptions::default() };
                let plan = Plan { config: config(seed), manager, spare: f64::from(percent) / 100.0 };
                rounds.push(write_amplification(plan, move |capacity| popularity.load(capacity, seed))?);
                progress.step()?;
            }
            unsteady += rounds.iter().filter(|round| !round.is_steady).count();
            let of = |what: &str, figure: fn(&Written) -> f64| {
                let rounds: Vec<f64> = rounds.iter().map(figure).collect();
                Ratio::of(format!("{}, {percent} %, {name}: {what}", popularity.name()), &rounds)
            };
            let total = of("write amplification", |round| round.last().amplification());
            points.push((f64::from(percent), total.median));
            if popularity == Popularity::Uniform && policy == Policy::Greedy {
                bound.points.push((f64::from(percent), rounds[0].bound()));
            }
            let allowed = if popularity == Popularity::Uniform { UNIFORM_ALLOWED } else { 1.0 };
            ratios.extend([
                total,
                of("over the uniform bound", |round| round.last().amplification() / round.bound())
                    .aim(Aim::AtMost, allowed),
                of("collection alone, over the bound", |round| round.last().of_collection() / round.bound()),
                of("over the bound if no line was kept free", |round| {
                    round.last().amplification() / round.bound_of_all()
                }),
            ]);
        }
        curves.push(Curve { name: format!("{}, {name}", popularity.name()), points });
    }
    progress.end();
    curves.push(bound);
    ratios.extend(wear(options, progress)?);
    ratios.extend(in_real_time(options, progress)?);
    let conditions = conditions(options, unsteady);
    let title = "what the media manager costs: writes against spare space, wear, lookups".into();
    Ok(Row { row: "B11".into(), title, conditions, sides: Vec::new(), ratios, curves })
}

fn conditions(options: Options, unsteady: usize) -> Vec<String> {
    let Geometry { chunks, sectors, .. } = config(1).geometry;
    vec![
        machine::describe(),
        format!("{chunks} lines of {} sectors of 4 KiB, write units of one; no times: writes, not seconds", 4 * sectors),
        "spare: room for data over the namespace, less one; room: the lines less those kept free (collection begins when no more are)"
            .into(),
        format!(
            "counted is all that the device programs: data, moved, map ({LINES_PER_ROOT} lines between two roots), padding, roots"
        ),
        "filled once, then windows of as many writes as the namespace has sectors, 3 to 12, until one is within 1 % of the one before"
            .into(),
        format!("{unsteady} of the runs were not steady after 12 windows; {} seeds", options.rounds),
        "bound: greedy collection of lines of this length under uniform writes (Bux and Iliadis 2010; Desnoyers 2012; Van Houdt 2013)"
            .into(),
        "under Zipf the buffer of 16 sectors takes in some rewrites; `collection alone` leaves these, the map and padding out".into(),
        format!(
            "wear: the small preset, {:.0} % spare, Zipf, {} device writes; spread allowed: 50",
            WEAR_SPARE * 100.0,
            options.device_writes
        ),
        "lookups and CPU of a write in real time, one thread, a model without times; a write's: of manager and model, more than the manager's own, which the aim is for".into(),
    ]
}

fn wear(options: Options, progress: &Progress) -> anyhow::Result<Vec<Ratio>> {
    progress.begin("wearing out", POLICIES.len() * options.rounds);
    let mut ratios = Vec::new();
    for (policy, name) in POLICIES {
        let mut rounds = Vec::new();
        for seed in 1..=options.rounds as u64 {
            let manager = ManagerOptions { policy, ..ManagerOptions::default() };
            let plan = Plan { config: Preset::Small.config(seed), manager, spare: WEAR_SPARE };
            rounds.push(endurance(plan, options.device_writes, move |capacity| Popularity::Zipf.load(capacity, seed))?);
            progress.step()?;
        }
        let of = |what: &str, figure: fn(&Written) -> f64| {
            Ratio::of(format!("{name}: {what}"), &rounds.iter().map(figure).collect::<Vec<_>>())
        };
        ratios.extend([
            of("resets of the most worn line", |round| f64::from(round.figures.wear[1])),
            of("resets of the least worn line", |round| f64::from(round.figures.wear[0])),
        ]);
    }
    progress.end();
    Ok(ratios)
}

/// Nanoseconds of a lookup, and microseconds of CPU that a write takes.
fn in_real_time(options: Options, progress: &Progress) -> anyhow::Result<Vec<Ratio>> {
    progress.begin("measuring", options.rounds);
    let core = *machine::cores()?.first().context("no core to run on")?;
    let (mut lookups, mut writes, mut models, mut collecting) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for seed in 1..=options.rounds as u64 {
        let times = machine::pinned(core, || Reactor::run(ReactorConfig::default(), times(seed)))???;
        lookups.push(times.lookup_ns);
        writes.push(times.write_us);
        models.push(times.model_us);
        collecting.push(times.collecting_us);
        progress.step()?;
    }
    progress.end();
    Ok(vec![
        Ratio::of("lookup in the map, ns", &lookups).aim(Aim::AtMost, LOOKUP_NS_ALLOWED),
        // The manager's own is less by what the model takes, which alone it does not take in the same way: no difference is told.
        Ratio::of("write of 4 KiB: CPU of manager and model, us", &writes).aim(Aim::AtMost, WRITE_US_ALLOWED),
        Ratio::of("program of 4 KiB: CPU of the model alone, us", &models),
        Ratio::of("while collecting: CPU of manager and model for each sector programmed, us", &collecting),
    ])
}

struct Times {
    lookup_ns: f64,
    write_us: f64,
    model_us: f64,
    collecting_us: f64,
}

/// Write units of 16 sectors: the model is asked as seldom as a drive is.
fn real_config(seed: u64) -> NandConfig {
    let config = config(seed);
    NandConfig { geometry: Geometry { chunks: 256, sectors: 64, write_unit: 16, ..config.geometry }, ..config }
}

async fn times(seed: u64) -> anyhow::Result<Times> {
    let per = |spent: Duration, count: u64| spent.as_secs_f64() * 1e6 / count.max(1) as f64;
    let sector = Buf::zeroed(SECTOR_BYTES).freeze();
    let nand = Nand::in_memory(real_config(seed))?;
    Manager::format(nand.power_on(), &FormatOptions { spare_percent: 20, capacity: None }).await?;
    let options = ManagerOptions { lines_per_root: 16, ..ManagerOptions::default() };
    let manager = Manager::open(nand.power_on(), options).await?;
    let capacity = manager.capacity();
    let mut random = SplitMix(seed);
    // The first fill takes the memory of the model from the system; it is overwritten before a time is taken.
    for number in 0..capacity {
        manager.write(number, sector.clone(), Heat::Hot).await?;
    }
    manager.flush().await?;
    manager.deallocate(0, capacity, false).await?;
    manager.flush().await?;
    let before = machine::own_cpu_time();
    for number in 0..capacity {
        manager.write(number, sector.clone(), Heat::Hot).await?;
    }
    manager.flush().await?;
    let write_us = per(machine::own_cpu_time() - before, u64::from(capacity));
    let (before, figures) = (machine::own_cpu_time(), manager.figures());
    for _ in 0..2 * capacity {
        manager.write(random.below(u64::from(capacity)) as u32, sector.clone(), Heat::Hot).await?;
    }
    manager.flush().await?;
    let programmed = manager.figures().programmed_sectors - figures.programmed_sectors;
    let collecting_us = per(machine::own_cpu_time() - before, programmed);
    let begun = Instant::now();
    for _ in 0..LOOKUPS {
        black_box(manager.place_of(black_box(random.below(u64::from(capacity)) as u32)));
    }
    let lookup_ns = begun.elapsed().as_secs_f64() * 1e9 / f64::from(LOOKUPS);
    Ok(Times { lookup_ns, write_us, model_us: model_alone(seed).await?, collecting_us })
}

/// Microseconds of CPU that the model takes for each sector that is programmed.
async fn model_alone(seed: u64) -> anyhow::Result<f64> {
    let nand = Nand::in_memory(real_config(seed))?;
    let device: Rc<dyn FlashDevice> = nand.power_on();
    let geometry = device.geometry();
    let data = Buf::zeroed(geometry.write_unit as usize * SECTOR_BYTES).freeze();
    let oob = Buf::zeroed((geometry.write_unit * geometry.oob_bytes) as usize).freeze();
    let mut spent = Duration::ZERO;
    for is_counted in [false, true] {
        let before = machine::own_cpu_time();
        for first in (0..geometry.sectors_total()).step_by(geometry.write_unit as usize) {
            device.write(Sector(first), data.clone(), oob.clone()).await?;
        }
        if is_counted {
            spent = machine::own_cpu_time() - before;
        }
        for chunk in 0..geometry.chunks_total() {
            device.reset(flash::Chunk(chunk)).await?;
        }
    }
    Ok(spent.as_secs_f64() * 1e6 / f64::from(geometry.sectors_total()))
}
