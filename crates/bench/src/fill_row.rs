//! `yagura bench table`: what a get and a miss cost as one member's table fills up, and how full it gets.
//!
//! Reads are counted, not timed: the row is the same wherever it runs.

use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use device::Memory;
use engine::rng::SplitMix;
use engine::sim::{SimConfig, World};
use kv::table::{Content, Fetched, Known, Record, Request, Table, TableError};
use kv::types::{OpId, Timestamp};
use kv::{Key, Value};
use pool::geometry::{Geometry, TABLE_OFFSET};
use pool::{CreateOptions, Map, NewMember};

use crate::figures::{Aim, Curve, Ratio, Row};
use crate::metered::Metered;
use crate::progress::Progress;

/// Bytes of a key.
const KEY_BYTES: usize = 16;
/// Bytes of an entry beside key and value, and of a page's header.
const ENTRY_BYTES: usize = kv::page::ENTRY_FIXED_BYTES + KEY_BYTES;
/// Keys looked at for one point of a curve.
const SAMPLE: u64 = 1000;
/// Points of a curve, in hundredths of what can be packed.
const POINTS: [u64; 17] = [10, 20, 30, 40, 50, 60, 65, 70, 75, 80, 85, 90, 92, 94, 96, 98, 100];
/// The point whose figures are reported.
const REPORTED: u64 = 90;
/// What a get may cost there, and a miss.
const GET_ALLOWED: f64 = 1.5;
const MISS_ALLOWED: f64 = 1.1;
/// Fill, in hundredths, at which a table of mixed lengths is written over, and how often.
const WRITTEN_OVER: [u64; 3] = [86, 88, 90];
const TURNS: u64 = 5;
/// Part of those writes that may find no room.
const REFUSED_ALLOWED: f64 = 0.01;
/// Thousandths of a member that are table where values lie in the heap: an entry with a reference is 80 bytes.
const TABLE_SHARE_OF_LONG: u32 = 30;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Tables; each has keys of its own.
    pub rounds: usize,
    /// Bytes of a page.
    pub page_size: u32,
    /// Pages of the member's table and heap.
    pub pages: u32,
}

/// Lengths of values.
#[derive(Clone, Copy)]
enum Lengths {
    All(usize),
    Between(usize, usize),
}

/// Of a table that is written over.
const MIXED: Lengths = Lengths::Between(16, 1024);
/// Those that are measured.
const LENGTHS: [Lengths; 6] =
    [Lengths::All(32), Lengths::All(128), Lengths::All(512), Lengths::All(1024), MIXED, Lengths::All(4096)];

/// One point of a curve.
#[derive(Clone, Copy)]
struct Point {
    hundredths: u64,
    get: f64,
    most: u64,
    miss: f64,
}

/// One table, filled.
struct Filled {
    points: Vec<Point>,
    /// Keys that were stored before it took no more, over those that can be packed; or writes that were refused, over all.
    reached: f64,
}

/// Runs the row.
pub fn run(options: Options, progress: &Progress) -> anyhow::Result<Row> {
    let (mut ratios, mut curves) = (Vec::new(), Vec::new());
    progress.begin("filling", options.rounds * LENGTHS.len() + WRITTEN_OVER.len());
    for lengths in LENGTHS {
        let mut rounds = Vec::new();
        for round in 0..options.rounds {
            let world = World::new(round as u64 + 1, SimConfig::default());
            let filled =
                world.run_until(fill(options, lengths)).map_err(|stalled| anyhow::anyhow!("{stalled:?}"))??;
            rounds.push(filled);
            progress.step()?;
        }
        let name = lengths.name();
        let at = |figure: fn(&Point) -> f64| {
            let point = |filled: &Filled| filled.points.iter().rfind(|point| point.hundredths <= REPORTED).map(figure);
            rounds.iter().filter_map(point).collect::<Vec<_>>()
        };
        let reached: Vec<f64> = rounds.iter().map(|filled| filled.reached).collect();
        ratios.push(Ratio::of(format!("{name}: stored / what can be packed"), &reached).aim(Aim::AtLeast, 0.9));
        // A value outside the table takes a second read.
        let allowed = GET_ALLOWED + f64::from(u8::from(lengths.is_long(options)));
        let gets =
            Ratio::of(format!("{name}: reads per get at {REPORTED} %, or where it was full"), &at(|point| point.get));
        ratios.push(gets.aim(Aim::AtMost, allowed));
        ratios.push(Ratio::of(format!("{name}: most reads of a get"), &at(|point| point.most as f64)));
        let misses = Ratio::of(format!("{name}: reads per miss"), &at(|point| point.miss));
        ratios.push(misses.aim(Aim::AtMost, MISS_ALLOWED));
        for (what, figure) in [("get", (|point| point.get) as fn(&Point) -> f64), ("miss", |point| point.miss)] {
            let points = rounds[0].points.iter().map(|point| (point.hundredths as f64, figure(point))).collect();
            curves.push(Curve { name: format!("{name}, {what}"), points });
        }
    }
    for hundredths in WRITTEN_OVER {
        let world = World::new(hundredths, SimConfig::default());
        let over =
            world.run_until(write_over(options, hundredths)).map_err(|stalled| anyhow::anyhow!("{stalled:?}"))??;
        let name = format!("{}, written over {TURNS} times at {hundredths} %", MIXED.name());
        ratios.push(Ratio::of(format!("{name}: refused / written"), &[over.reached]).aim(Aim::AtMost, REFUSED_ALLOWED));
        let gets: Vec<f64> = over.points.iter().map(|point| point.get).collect();
        ratios.push(Ratio::of(format!("{name}: reads per get"), &gets).aim(Aim::AtMost, GET_ALLOWED));
        progress.step()?;
    }
    progress.end();
    Ok(Row {
        row: if options.page_size == 4096 { "table".into() } else { format!("table-{}", options.page_size) },
        title: "reads of a get and of a miss against the fill of the table, in hundredths of what can be packed".into(),
        conditions: vec![
            format!("one member of {} pages of {} bytes; keys of {KEY_BYTES} bytes", options.pages, options.page_size),
            "stored one after the other; packed: as many entries as its pages hold if none is left with room for one more".into(),
            format!(
                "values that are longer than a page lie in the heap; {TABLE_SHARE_OF_LONG} thousandths are table then, else all"
            ),
            format!("{} tables; {SAMPLE} stored keys and {SAMPLE} others are read for a point", options.rounds),
        ],
        sides: Vec::new(),
        ratios,
        curves,
    })
}

impl Lengths {
    fn name(self) -> String {
        match self {
            Lengths::All(bytes) => format!("{bytes} bytes"),
            Lengths::Between(least, most) => format!("{least} to {most} bytes"),
        }
    }

    fn of(self, number: u64) -> usize {
        match self {
            Lengths::All(bytes) => bytes,
            Lengths::Between(least, most) => least + SplitMix(number).below((most - least + 1) as u64) as usize,
        }
    }

    fn room(options: Options) -> usize {
        options.page_size as usize - kv::page::HEADER_BYTES
    }

    /// Whether such a value fits no page.
    fn is_long(self, options: Options) -> bool {
        matches!(self, Lengths::All(bytes) if ENTRY_BYTES + bytes > Lengths::room(options))
    }

    /// Entries that can be packed.
    fn packed(self, options: Options, geometry: Geometry) -> u64 {
        let (room, pages) = (Lengths::room(options), geometry.table_pages as usize);
        let packed = match self {
            Lengths::All(bytes) if self.is_long(options) => {
                geometry.heap_pages() as usize / bytes.div_ceil(options.page_size as usize)
            }
            Lengths::All(bytes) => pages * (room / (ENTRY_BYTES + bytes)),
            Lengths::Between(least, most) => pages * room / (ENTRY_BYTES + least.midpoint(most)),
        };
        packed as u64
    }
}

/// A member with a table.
struct Scene {
    member: Rc<Metered>,
    map: Map,
    table: Rc<Table>,
}

impl Scene {
    async fn new(options: Options, lengths: Lengths) -> anyhow::Result<Scene> {
        let bytes = TABLE_OFFSET + u64::from(options.pages) * u64::from(options.page_size);
        let member = Metered::new(Memory::new(bytes, 4096, [1; 16])?, Duration::ZERO, Duration::ZERO);
        let new = NewMember::at(member.clone(), "nqn.2026-11.io.yagura:bench-table", 1, Vec::new());
        let table_share = if lengths.is_long(options) { TABLE_SHARE_OF_LONG } else { 1000 };
        let create =
            CreateOptions { replicas: 1, page_size: options.page_size, table_share, ..CreateOptions::default() };
        let map = pool::create(&[new], &create, |_| ()).await?;
        let table = Table::new(member.clone(), &map, 0);
        Ok(Scene { member, map, table })
    }

    /// Stores `bytes` bytes under key `number` by operation `counter`; `false`: there is no room.
    async fn store(&self, number: u64, counter: u64, bytes: usize) -> anyhow::Result<bool> {
        let value = Value::copy_from(&vec![number as u8; bytes]);
        let timestamp = Timestamp { counter, op: OpId { host: 1, sequence: number }, ..Timestamp::ZERO };
        let record = Record { timestamp, value: Some(value), ..Record::default() };
        match self.table.apply(&key(&self.map, number)?, &Request::Store(record), Known::default()).await {
            Ok(_) => Ok(true),
            Err(TableError::OutOfSpace(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn measure(&self, stored: u64, hundredths: u64) -> anyhow::Result<Point> {
        self.table.quiesce().await;
        measure(&self.table, &self.member, &self.map, stored, hundredths).await
    }
}

async fn fill(options: Options, lengths: Lengths) -> anyhow::Result<Filled> {
    let scene = Scene::new(options, lengths).await?;
    let (packed, mut stored, mut points) = (lengths.packed(options, scene.table.layout().geometry), 0, Vec::new());
    for hundredths in POINTS {
        while stored < packed * hundredths / 100 {
            if !scene.store(stored, 1, lengths.of(stored)).await? {
                return Ok(Filled { points, reached: stored as f64 / packed as f64 });
            }
            stored += 1;
        }
        points.push(scene.measure(stored, hundredths).await?);
    }
    Ok(Filled { points, reached: stored as f64 / packed as f64 })
}

/// Writes every key of a table of mixed lengths over, again and again, each turn with the same lengths in another order.
async fn write_over(options: Options, hundredths: u64) -> anyhow::Result<Filled> {
    let scene = Scene::new(options, MIXED).await?;
    let keys = MIXED.packed(options, scene.table.layout().geometry) * hundredths / 100;
    let mut refused = 0;
    for turn in 0..=TURNS {
        for number in 0..keys {
            refused += u64::from(!scene.store(number, turn + 1, MIXED.of((number + turn * 311) % keys)).await?);
            // What goes on in the background is let go on, as a network would.
            engine::task::yield_now().await;
        }
    }
    let point = scene.measure(keys, hundredths).await?;
    Ok(Filled { points: vec![point], reached: refused as f64 / (keys * (TURNS + 1)) as f64 })
}

/// Reads some of the keys stored so far, and as many that were not.
async fn measure(
    table: &Rc<Table>,
    member: &Metered,
    map: &Map,
    stored: u64,
    hundredths: u64,
) -> anyhow::Result<Point> {
    let mut random = SplitMix(stored);
    let (begun, mut most) = (member.commands(), 0);
    for _ in 0..SAMPLE {
        let before = member.commands();
        let key = key(map, random.below(stored))?;
        let found = table.read(&key).await?;
        let fetched = table.fetch(&key, &found).await?;
        anyhow::ensure!(matches!(fetched, Fetched::Value(value) if !value.is_empty()), "a stored key is missing");
        most = most.max(member.commands() - before);
    }
    let gets = member.commands() - begun;
    for number in 0..SAMPLE {
        let found = table.read(&key(map, u64::MAX - number)?).await?;
        anyhow::ensure!(matches!(found.content, Content::Nothing), "a key is there that was not stored");
    }
    let misses = member.commands() - begun - gets;
    let mean = |reads: u64| reads as f64 / SAMPLE as f64;
    Ok(Point { hundredths, get: mean(gets), most, miss: mean(misses) })
}

fn key(map: &Map, number: u64) -> anyhow::Result<Key> {
    let name = SplitMix(number).draw();
    let bytes = [number.to_le_bytes(), name.to_le_bytes()].concat();
    Key::new(&bytes, map.hash_seed).context("a key of 16 bytes is refused")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Stop;

    #[test]
    fn entries_fill_nine_tenths_at_bounded_reads() {
        let options = Options { rounds: 1, page_size: 4096, pages: 512 };
        let row = run(options, &Progress::new(Stop::default())).unwrap();
        println!("{}", row.table());
        for lengths in &LENGTHS {
            let of_these = |ratio: &&Ratio| ratio.name.starts_with(&lengths.name());
            for ratio in row.ratios.iter().filter(of_these) {
                assert_ne!(ratio.met(), Some(false), "{}: {}", ratio.name, ratio.median);
            }
        }
        assert_eq!(row.curves.len(), 2 * LENGTHS.len());
        let directory = tempfile::tempdir().unwrap();
        row.save(directory.path()).unwrap();
        let svg = std::fs::read_to_string(directory.path().join("table.svg")).unwrap();
        assert!(svg.contains("1024 bytes, get"), "{svg}");
    }
}
