//! Row B6: the cache beside memcached all in DRAM, with swap and with extstore, by DRAM share, over one harness.
//!
//! The items of a row are stored on every side, and the popular ones once more, as many as the share holds: as after long use,
//! which would take hours with short items. Then look-aside clients ask for them by the ETC model ([`crate::etc`]), one side after
//! the other in every round, first as fast as they can and then at fixed rates.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use engine::{Reactor, ReactorConfig};

use crate::cache_client::{self, Arrivals, Counts, Order, Popularity, VALUE_BYTES_MAX, Work};
use crate::cache_peers::{Peer, Shape, Way};
use crate::etc::{Items, Values};
use crate::figures::{Aim, Curve, Ratio, Row, Sample, Side, median};
use crate::fio;
use crate::machine;
use crate::process::{self, Server};
use crate::progress::{Progress, Stop};
use crate::workload::Zipfian;

/// Connections that store the items.
const LOADING: usize = 8;
/// SETs a second while extstore is filled: what its writer has not moved out in time it evicts. Measured on two cores.
const EXTSTORE_LOAD_RATE: f64 = 40_000.0;
/// Of memcached's limit over the items' own bytes, where it is to hold them all: headers, size classes, the table.
const DRAM_FACTOR: f64 = 1.8;
/// Of the flash namespace's size over the items' own bytes: packing, summaries, segments that wait to be collected.
const FLASH_FACTOR: f64 = 2.0;
/// Shares of the rate of memcached in DRAM at which latencies are compared.
const FIXED_SHARES: [f64; 3] = [0.25, 0.5, 0.75];
/// From so many items on the index is judged by bytes an item: with fewer, the tables that it begins with count for more.
const INDEX_ITEMS_MIN: f64 = 1e6;
/// Reads of flash a get: one, and of an index that holds no keys now and then one in vain, for a key that is not there.
const READS_MAX: f64 = 1.001;
/// Threads of each server.
const THREADS: usize = 2;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of all keys and values.
    pub bytes: u64,
    /// The items.
    pub values: Vec<ValueSizes>,
    /// DRAM shares in percent of those bytes; 100: all in DRAM.
    pub shares: Vec<u8>,
    /// Connections.
    pub connections: Vec<u16>,
    /// Folder of flash, swap and extstore files.
    pub folder: PathBuf,
    /// Rounds.
    pub rounds: usize,
    /// Time of one side of a round.
    pub time: Duration,
}

/// Which values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueSizes {
    /// The ETC model's.
    Etc,
    /// All so many bytes.
    Fixed(u16),
}

impl std::str::FromStr for ValueSizes {
    type Err = String;

    fn from_str(text: &str) -> Result<ValueSizes, String> {
        match text {
            "etc" => Ok(ValueSizes::Etc),
            _ => text
                .parse()
                .map(ValueSizes::Fixed)
                .map_err(|_| format!("`{text}` is neither etc nor bytes up to 65535")),
        }
    }
}

impl std::fmt::Display for ValueSizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ValueSizes::Etc => f.write_str("etc"),
            ValueSizes::Fixed(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// A system under test; the peer's surroundings live as long as it does.
enum Cache {
    Yagura(Server),
    Memcached(Box<Peer>),
}

impl Cache {
    fn server(&self) -> &Server {
        match self {
            Cache::Yagura(server) => server,
            Cache::Memcached(peer) => &peer.server,
        }
    }
}

/// One row for each kind of values, share and number of connections, and one that sums up the shares.
pub fn run(options: &Options, progress: &Progress, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    for &values in &options.values {
        let first = rows.len();
        for &share in &options.shares {
            let contest = Contest::new(options, values, share, progress)?;
            for &connections in &options.connections {
                rows.push(contest.row(options, usize::from(connections), progress)?);
            }
        }
        if options.shares.len() > 1 {
            let summary = by_share(options, values, &rows[first..]);
            rows.push(summary);
        }
    }
    Ok(())
}

/// Sides that hold the same items with the same DRAM.
struct Contest {
    values: ValueSizes,
    share: u8,
    items: Items,
    bytes: u64,
    names: Vec<&'static str>,
    caches: Vec<Cache>,
    popularity: Rc<Popularity>,
    /// Our flash, if there is any.
    flash: Option<PathBuf>,
    _folder: tempfile::TempDir,
}

impl Contest {
    fn new(options: &Options, values: ValueSizes, share: u8, progress: &Progress) -> anyhow::Result<Contest> {
        let items = items(values, options.bytes);
        let bytes = items.bytes();
        let folder = tempfile::tempdir_in(&options.folder).context("cannot make a folder for flash and swap")?;
        let mib = |factor: f64| ((bytes as f64 * factor) as u64 >> 20).max(64);
        let in_dram = share >= 100;
        let shape = Shape {
            items: items.count,
            total_mib: mib(DRAM_FACTOR),
            dram_mib: mib(f64::from(share) / 100.0),
            threads: THREADS,
            folder: folder.path(),
        };
        let flash = (!in_dram).then(|| (folder.path().join("flash"), mib(FLASH_FACTOR)));
        let memory = if in_dram { shape.total_mib } else { shape.dram_mib };
        let mut names = vec!["Yagura"];
        let mut caches =
            vec![Cache::Yagura(process::cache(THREADS, memory, flash.as_ref().map(|(file, mib)| (&**file, *mib)))?)];
        for way in Way::ALL {
            // Its headers of ETC's short items alone take more than the share; and all in DRAM there is nothing to move.
            let suits = way == Way::Dram || !in_dram && (way == Way::Swap || values != ValueSizes::Etc);
            if suits {
                names.push(way.name());
                caches.push(Cache::Memcached(Box::new(Peer::start(way, shape)?)));
            }
        }
        let zipfian = Rc::new(Zipfian::new(items.count));
        let popular = Order::Popular(zipfian.clone(), if in_dram { 0 } else { items.count * u64::from(share) / 100 });
        progress.begin("storing the items on all sides", caches.len());
        for (cache, name) in caches.iter().zip(&names) {
            store(cache, &items, &popular, *name == Way::Extstore.name(), &progress.stop)?;
            if let Cache::Memcached(peer) = cache {
                peer.confine()?;
            }
            progress.step()?;
        }
        let popularity = Rc::new(Popularity::Zipfian(zipfian));
        let flash = flash.map(|(file, _)| file);
        Ok(Contest { values, share, items, bytes, names, caches, popularity, flash, _folder: folder })
    }

    fn row(&self, options: &Options, connections: usize, progress: &Progress) -> anyhow::Result<Row> {
        let mut sides: Vec<Side> = self.names.iter().map(|name| Side::new(*name)).collect();
        let mut counts = vec![Vec::new(); sides.len()];
        progress.begin("measuring", sides.len() * (options.rounds * (1 + FIXED_SHARES.len()) + 1));
        // Once unmeasured: what is popular comes to DRAM.
        for cache in &self.caches {
            self.round(cache, connections, Arrivals::Closed, 0, options.time * 2)?;
            progress.step()?;
        }
        let mut floors = Vec::new();
        for round in 0..options.rounds {
            for (place, cache) in self.caches.iter().enumerate() {
                let before = self.flash_gets()?;
                let (sample, count) = self.round(cache, connections, Arrivals::Closed, round + 1, options.time)?;
                if let (0, Some(file)) = (place, &self.flash) {
                    let gets = (self.flash_gets()? - before) / sample.seconds;
                    floors.push(gets / self.disk_reads(file, connections, options.time)?);
                }
                sides[place].rounds.push(sample);
                counts[place].push(count);
                progress.step()?;
            }
        }
        let dram =
            self.names.iter().position(|name| *name == Way::Dram.name()).context("memcached in DRAM runs always")?;
        let full = sides[dram].median(|sample| sample.rate);
        let mut fixed = Vec::new();
        for share in FIXED_SHARES {
            let rate = full * share;
            let names = self.names.iter().map(|name| format!("{name}, {rate:.0}/s"));
            let mut paced: Vec<Side> = names.map(Side::new).collect();
            for round in 0..options.rounds {
                for (place, cache) in self.caches.iter().enumerate() {
                    let sample = self.round(cache, connections, Arrivals::Open(rate), round + 1, options.time)?.0;
                    paced[place].rounds.push(sample);
                    progress.step()?;
                }
            }
            fixed.extend(paced);
        }
        progress.end();
        let mut ratios = self.ratios(&sides);
        ratios.extend(self.hit_ratios(&counts));
        if !floors.is_empty() {
            let name = "gets from flash a second / fio's random reads of 4 KiB, as many under way as connections";
            ratios.push(Ratio::of(name, &floors));
        }
        ratios.extend(self.of_ours()?);
        Ok(Row {
            row: self.name(connections),
            title: format!("cache, {} values, DRAM share {} %, {connections} connections", self.values, self.share),
            conditions: self.conditions(options),
            sides: sides.into_iter().chain(fixed).collect(),
            ratios,
            curves: Vec::new(),
        })
    }

    fn name(&self, connections: usize) -> String {
        format!("B6-{}-{}-{connections}", self.values, self.share)
    }

    fn conditions(&self, options: &Options) -> Vec<String> {
        let sizes = match self.values {
            ValueSizes::Etc => "ETC model (Atikoglu et al. 2012, as in mutilate)".to_owned(),
            ValueSizes::Fixed(bytes) => format!("values of {bytes} bytes, keys of the ETC model"),
        };
        vec![
            machine::describe(),
            format!("{} items, {} MiB of keys and values; {sizes}", self.items.count, self.bytes >> 20),
            "popularity Zipfian, 0.99; one SET to 30 GETs, and one after each miss; every hit verified".to_owned(),
            format!("servers with {THREADS} threads, clients on one, none pinned; TCP over loopback"),
            "all items are stored, then once more the popular ones, as many as the share holds".to_owned(),
            "swap (once all is stored) and extstore in a memory cgroup of the DRAM share; files and swap on one disk"
                .to_owned(),
            format!("{} interleaved rounds of {:?} a side", options.rounds, options.time),
        ]
    }

    fn round(
        &self,
        cache: &Cache,
        connections: usize,
        arrivals: Arrivals,
        round: usize,
        time: Duration,
    ) -> anyhow::Result<(Sample, Counts)> {
        let server = cache.server();
        let (items, popularity) = (self.items.clone(), self.popularity.clone());
        let work = Work { items, popularity, seed: round as u64 + 1 };
        let before = (machine::own_cpu_time(), server.cpu_time()?);
        let address = server.address;
        let run = Reactor::run(ReactorConfig::default(), async move {
            cache_client::run(address, connections, &work, arrivals, time).await
        })??;
        let used = machine::own_cpu_time().saturating_sub(before.0);
        let answering = server.cpu_time()?.saturating_sub(before.1);
        Ok((Sample::new(&run.outcome.all(), run.outcome.wall, used, Some(answering)), run.counts))
    }

    /// Gets that our server has answered from flash.
    fn flash_gets(&self) -> anyhow::Result<f64> {
        if self.flash.is_some() { self.caches[0].server().figure("get_extstore") } else { Ok(0.0) }
    }

    /// What the disk does a second with nobody else: of what the servers wait for, the floor.
    fn disk_reads(&self, file: &Path, depth: usize, time: Duration) -> anyhow::Result<f64> {
        // The first half is written for sure, and holes would be read from nowhere.
        let job = fio::Job { file, size: self.bytes / 2, depth, write: false, stable: false, time };
        Ok(fio::run(job)?.rate)
    }

    fn ratios(&self, sides: &[Side]) -> Vec<Ratio> {
        let ours = &sides[0];
        let mut ratios = Vec::new();
        for (name, theirs) in self.names.iter().zip(sides).skip(1) {
            let rate = Ratio::new(format!("rate / {name}"), ours, theirs, |sample| sample.rate);
            let aim = match *name {
                name if name == Way::Dram.name() && self.share >= 100 => Some(1.1),
                name if name == Way::Dram.name() => Some(0.97),
                name if name == Way::Swap.name() => Some(3.0),
                _ => Some(1.5),
            };
            // The aims are those of one part DRAM to ten of flash, and of all in DRAM.
            let aim = aim.filter(|_| self.share == 10 || self.share >= 100);
            ratios.push(aim.map_or(rate.clone(), |figure| rate.aim(Aim::AtLeast, figure)));
            let p99 = Ratio::new(format!("p99 / {name}"), ours, theirs, |sample| sample.p99_us);
            ratios.push(if self.share >= 100 { p99.aim(Aim::AtMost, 1.0) } else { p99 });
            let cpu = |sample: &Sample| sample.server_cpu_us.unwrap_or_default();
            ratios.push(Ratio::new(format!("server's CPU an operation / {name}"), ours, theirs, cpu));
        }
        ratios
    }

    fn hit_ratios(&self, counts: &[Vec<Counts>]) -> Vec<Ratio> {
        let hits = |count: &Counts| count.hits as f64 / (count.hits + count.misses).max(1) as f64;
        let of = |(name, counts): (&&str, &Vec<Counts>)| {
            Ratio::of(format!("hits of gets: {name}"), &counts.iter().map(hits).collect::<Vec<_>>())
        };
        self.names.iter().zip(counts).map(of).collect()
    }

    /// Memory, and what row B7 asks of flash, since the server started.
    fn of_ours(&self) -> anyhow::Result<Vec<Ratio>> {
        let ours = self.caches[0].server();
        let resident = ours.resident_bytes()? as f64 / self.bytes as f64;
        let mut ratios = vec![Ratio::of("Yagura's resident memory / keys and values", &[resident])];
        if self.share < 100 {
            let of = |name: &str| ours.figure(name);
            let index = of("hash_bytes")? / of("curr_items")?;
            // What is kept of a collected segment was read for nobody.
            let reads = (of("extstore_objects_read")? - of("extstore_compact_rescues")?) / of("get_extstore")?;
            let written = of("extstore_bytes_written")? / of("flash_admitted_bytes")?;
            let index = Ratio::of("B7: bytes of index an item", &[index]);
            ratios.extend([
                if of("curr_items")? >= INDEX_ITEMS_MIN { index.aim(Aim::AtMost, 10.0) } else { index },
                Ratio::of("B7: reads of flash a get that was answered from there", &[reads])
                    .aim(Aim::AtMost, READS_MAX),
                Ratio::of("B7: bytes written a byte admitted", &[written]).aim(Aim::AtMost, 1.1),
            ]);
        }
        Ok(ratios)
    }
}

/// So many items that their keys and values are about `bytes`.
pub(crate) fn items(values: ValueSizes, bytes: u64) -> Items {
    const SAMPLE: u64 = 10_000;
    let values = match values {
        ValueSizes::Etc => Values::Etc { bytes_max: VALUE_BYTES_MAX.min((1 << 20) - 512) },
        ValueSizes::Fixed(bytes) => Values::Fixed(usize::from(bytes)),
    };
    let mean = Items::new(SAMPLE, values).bytes() / SAMPLE;
    Items::new((bytes / mean).max(1000), values)
}

/// Stores all items, then the `popular` ones once more.
fn store(cache: &Cache, items: &Items, popular: &Order, extstore: bool, stop: &Stop) -> anyhow::Result<()> {
    let address = cache.server().address;
    let (all, popular, stop) = (items.clone(), popular.clone(), stop.clone());
    Reactor::run(ReactorConfig::default(), async move {
        let mut rate = None;
        if extstore {
            // Its headers' size class gets its memory first: later it would grow by a page a second, and what has no header is
            // evicted.
            let heads = Items::new(all.count, Values::Fixed(12));
            cache_client::load(address, LOADING, &heads, &Order::All, None, &stop).await?;
            rate = Some(EXTSTORE_LOAD_RATE);
        }
        for order in [&Order::All, &popular] {
            let refused = cache_client::load(address, LOADING, &all, order, rate, &stop).await?;
            anyhow::ensure!(refused * 100 < all.count, "{refused} of {} items were refused", all.count);
        }
        Ok(())
    })?
}

/// The rate of every system against the DRAM share, as the source's figure 4 shows it.
fn by_share(options: &Options, values: ValueSizes, rows: &[Row]) -> Row {
    let connections = options.connections[0];
    let mut curves: Vec<Curve> = Vec::new();
    for share in &options.shares {
        let name = format!("B6-{values}-{share}-{connections}");
        let Some(row) = rows.iter().find(|row| row.row == name) else { continue };
        for side in row.sides.iter().filter(|side| !side.name.contains("/s")) {
            let point = (f64::from(*share), median(side.rounds.iter().map(|sample| sample.rate).collect()));
            match curves.iter_mut().find(|curve| curve.name == side.name) {
                Some(curve) => curve.points.push(point),
                None => curves.push(Curve { name: side.name.clone(), points: vec![point] }),
            }
        }
    }
    Row {
        row: format!("B6-{values}"),
        title: format!("cache, {values} values: requests a second against the DRAM share in percent"),
        conditions: vec![machine::describe(), format!("{connections} connections; see the rows of each share")],
        sides: Vec::new(),
        ratios: Vec::new(),
        curves,
    }
}
