//! Flags of `yagura bench`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use ::bench::cache_row::ValueSizes;
use ::bench::kv_row::Record;

use super::Common;
use crate::size::Size;

/// `yagura bench …`
#[derive(Subcommand, Debug)]
pub enum BenchVerb {
    /// A file namespace beside fio on the same file.
    Device(BenchDeviceArgs),
    /// Our target and host beside bare sockets that exchange the same bytes (rows B1, B2, B2a, B2b and those of --rows).
    Wire(BenchWireArgs),
    /// Our host on a target that is there already (half of row B3; the other half is fio on the kernel's initiator).
    Remote(BenchRemoteArgs),
    /// Gets, puts and YCSB mixes beside memcached, Redis and bare sockets (row B4).
    Kv(BenchKvArgs),
    /// Placement with many members: balance, data moved by a change, sizes, time of a lookup.
    Scale(BenchScaleArgs),
    /// One member's table: what gets and misses cost as it fills up, and how full it gets.
    Table(BenchTableArgs),
    /// The cache by DRAM share, beside memcached in DRAM, with swap and with extstore, by the ETC model (rows B6 and B7). Swap and
    /// extstore's cgroup want root.
    Cache(BenchCacheArgs),
    /// Hits in memory beside flash that has all it can do.
    CacheBusy(BenchCacheFlashArgs),
    /// Start of the cache over flash, with nothing there and with much (row B15).
    CacheStart(BenchCacheStartArgs),
    /// A volume over three targets, beside one namespace and bare sockets; what a snapshot and a resync cost who uses it (row B9).
    Volume(BenchVolumeArgs),
    /// Volumes on drives beside Ceph and beside the disk itself, against depth (row B8). Needs Debian's Ceph.
    Ceph(BenchCephArgs),
    /// The store against numbers of hosts and members, in virtual time, and the messages of an update (row B5).
    KvScale(Rounds),
    /// Files read around a hot node by their parity, in virtual time (row B13).
    HotNode(Rounds),
    /// Erasure codes on one core, beside ISA-L and a plain copy (row B12). Wants Debian's libisal2.
    Erasure(Rounds),
    /// Host-managed flash on the model of NAND, in virtual time: beside a plain block device (row B10), and what the media manager
    /// costs in writes beside the bound that analysis gives (row B11).
    Flash(BenchFlashArgs),
}

/// `yagura bench flash`
#[derive(Args, Debug)]
pub struct BenchFlashArgs {
    #[command(flatten)]
    pub rounds: Rounds,
    /// What to measure.
    #[arg(long, value_name = "ROW", value_delimiter = ',', value_enum,
          default_values_t = [FlashRow::Olive, FlashRow::Cost])]
    pub rows: Vec<FlashRow>,
    /// How often all of the small preset is written before its wear is looked at.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub device_writes: u32,
}

/// Rows of `yagura bench flash`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlashRow {
    /// B10: tables 3 and 4, figures 5, 6 and 7 of the article on Olive; --time is virtual, and there is one seed.
    Olive,
    /// B11: write amplification, wear, lookups; each round has a seed of its own.
    Cost,
}

/// `yagura bench cache`
#[derive(Args, Debug)]
pub struct BenchCacheArgs {
    #[command(flatten)]
    pub rounds: Rounds,
    /// Keys and values, all together.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub size: Size,
    /// Values: `etc`, or all of so many bytes.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [ValueSizes::Etc, ValueSizes::Fixed(3900)])]
    pub values: Vec<ValueSizes>,
    /// DRAM shares in percent of those bytes; 100: all in DRAM.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [5, 10, 20, 50, 100],
          value_parser = clap::value_parser!(u8).range(1..=100))]
    pub shares: Vec<u8>,
    /// Connections.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [16, 64],
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub connections: Vec<u16>,
    /// Folder for the files of flash, swap and extstore, on the disk to be measured.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,
}

/// `yagura bench cache-start`
#[derive(Args, Debug)]
pub struct BenchCacheStartArgs {
    #[command(flatten)]
    pub flash: BenchCacheFlashArgs,
    /// Values: `etc`, or all of so many bytes.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [ValueSizes::Etc, ValueSizes::Fixed(3900)])]
    pub values: Vec<ValueSizes>,
}

/// `yagura bench cache-busy`
#[derive(Args, Debug)]
pub struct BenchCacheFlashArgs {
    #[command(flatten)]
    pub rounds: Rounds,
    /// Keys and values on flash, all together.
    #[arg(long, value_name = "SIZE", default_value = "10GiB")]
    pub size: Size,
    /// Folder for the file.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,
}

/// `yagura bench volume`
#[derive(Args, Debug)]
pub struct BenchVolumeArgs {
    #[command(flatten)]
    pub rounds: Rounds,
    /// Folder for the replicas' files; without it they are in memory (/dev/shm).
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// `yagura bench ceph`
#[derive(Args, Debug)]
pub struct BenchCephArgs {
    #[command(flatten)]
    pub rounds: Rounds,
    /// Folder for the files of all replicas, ours and Ceph's.
    #[arg(long, value_name = "DIR")]
    pub folder: PathBuf,
    /// Size of each of the four clients' volumes.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub size: Size,
    /// Accesses that each client has under way.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 16, 64, 150],
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depths: Vec<u16>,
}

/// Flags that every row has.
#[derive(Args, Debug)]
pub struct Rounds {
    #[command(flatten)]
    pub common: Common,
    /// Rounds; in each of them every side runs once.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Length of one side of a round, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=600_000))]
    pub time: u32,
    /// Write each row as JSON and as an SVG picture into this directory.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// `yagura bench device`
#[derive(Args, Debug)]
pub struct BenchDeviceArgs {
    #[command(flatten)]
    pub rounds: Rounds,
    /// The file; it is created with --size if it is not there, and overwritten.
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Its size, in whole MiB.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub size: Size,
    /// Commands under way at the same time.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 32, 128],
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depths: Vec<u16>,
    /// What to measure.
    #[arg(long, value_name = "ROW", value_delimiter = ',', value_enum,
          default_values_t = [DeviceRow::Local, DeviceRow::Wire])]
    pub rows: Vec<DeviceRow>,
}

/// Rows of `yagura bench device`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceRow {
    /// The file in the measuring process.
    Local,
    /// The file behind a target on another core.
    Wire,
}

/// `yagura bench wire`
#[derive(Args, Debug)]
pub struct BenchWireArgs {
    #[command(flatten)]
    pub rounds: Rounds,
    /// What to measure.
    #[arg(long, value_name = "ROW", value_delimiter = ',', value_enum,
          default_values_t = [WireRow::Load, WireRow::Connections, WireRow::Stream, WireRow::Memory, WireRow::Hostile])]
    pub rows: Vec<WireRow>,
    /// Numbers of connections of the row of that name; the others are compared to the first.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64],
          value_parser = clap::value_parser!(u8).range(1..=64))]
    pub connections: Vec<u8>,
}

/// Rows of `yagura bench wire`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireRow {
    /// B1, B2, B2a and B2b: latency, load, compare-and-write, one shared core.
    Load,
    /// The same load over ever more connections.
    Connections,
    /// 128 KiB beside a bare stream.
    Stream,
    /// Memory of an idle queue pair.
    Memory,
    /// A well-behaved host beside a hostile peer.
    Hostile,
}

/// `yagura bench remote`
#[derive(Args, Debug)]
pub struct BenchRemoteArgs {
    #[command(flatten)]
    pub rounds: Rounds,
    /// Address of the target.
    pub address: SocketAddr,
    /// Its subsystem.
    #[arg(long, value_name = "NQN")]
    pub nqn: String,
    /// Its namespace.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nsid: u32,
    /// Commands under way at the same time.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 32],
          value_parser = clap::value_parser!(u16).range(1..=1023))]
    pub depths: Vec<u16>,
    /// Reads, or writes that overwrite the namespace with zeroes.
    #[arg(long, value_name = "ACCESS", value_enum, default_value_t = RemoteAccess::Read)]
    pub access: RemoteAccess,
}

/// What `yagura bench remote` does.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteAccess {
    /// Reads at random places.
    Read,
    /// Writes at random places.
    Write,
}

/// `yagura bench kv`
#[derive(Args, Debug)]
pub struct BenchKvArgs {
    #[command(flatten)]
    pub rounds: Rounds,
    /// Replicas of each key, on as many memory targets.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 3],
          value_parser = clap::value_parser!(u8).range(1..=7))]
    pub replicas: Vec<u8>,
    /// Bytes of a value, and after an @ those of a page (4096): 3900 fits a page, 4096 does not, 4096@8192 does.
    #[arg(long, value_name = "BYTES[@PAGE]", value_delimiter = ',', default_values = ["3900", "4096", "4096@8192"],
          value_parser = parse_record)]
    pub values: Vec<Record>,
    /// Put the members into files in this folder, in place of memory.
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// Bytes of a value that the row takes. Chosen: what the peers' clients receive in one buffer.
const VALUE_BYTES_MAX: usize = 60_000;

fn parse_record(text: &str) -> Result<Record, String> {
    let (value, page_size) = text.split_once('@').unwrap_or((text, "4096"));
    let value = value.parse().ok().filter(|value| (1..=VALUE_BYTES_MAX).contains(value));
    let (value, page_size) = value.zip(parse_page_size(page_size).ok()).ok_or_else(|| {
        format!("give the bytes of a value, 1 to {VALUE_BYTES_MAX}, and perhaps of a page, a power of two from 4096 to 65536: 4096@8192")
    })?;
    Ok(Record { value, page_size })
}

/// `yagura bench scale`
#[derive(Args, Debug)]
pub struct BenchScaleArgs {
    #[command(flatten)]
    pub rounds: Rounds,
    /// Numbers of members.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [10, 100, 1000],
          value_parser = clap::value_parser!(u16).range(4..=1000))]
    pub members: Vec<u16>,
}

/// `yagura bench table`
#[derive(Args, Debug)]
pub struct BenchTableArgs {
    #[command(flatten)]
    pub rounds: Rounds,
    /// Bytes of a page, a power of two from 4096 to 65536.
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = parse_page_size)]
    pub page_size: u32,
    /// Pages of the member.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(512..=1_000_000))]
    pub pages: u32,
}

fn parse_page_size(text: &str) -> Result<u32, String> {
    let size = text.parse().ok().filter(|size: &u32| size.is_power_of_two() && (4096..=65_536).contains(size));
    size.ok_or_else(|| "give a power of two from 4096 to 65536".to_owned())
}
