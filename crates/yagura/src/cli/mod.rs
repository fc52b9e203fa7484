//! The command line: every verb and flag, with its help.
//!
//! Verbs come before flags; `--config` may say what any flag says (see [`crate::config`]).

mod backup;
mod bench;
mod cache;
mod control;
mod csi;
mod drive;
mod file;
mod file_mend;
mod file_quota;
mod file_use;
mod flash;
mod fsck;
mod holders;
mod kv;
mod memcached;
mod nvme;
mod pool;
mod target;
mod target_drive;
mod volume;

use std::net::SocketAddr;
use std::path::PathBuf;

pub use backup::*;
pub use bench::*;
pub use cache::*;
pub use control::*;
pub use csi::*;
pub use drive::*;
pub use file::*;
pub use file_mend::*;
pub use file_quota::*;
pub use file_use::*;
pub use flash::*;
pub use fsck::*;
pub use holders::*;
pub use kv::*;
pub use memcached::instead_of_memcached;
pub use nvme::*;
pub use pool::*;
pub use target::*;
pub use target_drive::*;
pub use volume::*;

use engine::ReactorConfig;
use tls::{CertificateContext, CertificateFiles};

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::exit::{EXIT_STATUS_HELP, Failure};
use crate::size::Size;

/// A pool of flash over NVMe-oF: target, key-value store, Redis gateway, cache.
#[derive(Parser, Debug)]
#[command(name = "yagura", version, after_help = EXIT_STATUS_HELP, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The command with all its verbs.
pub fn command() -> clap::Command {
    Cli::command()
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Serve files, block devices or memory as NVMe/TCP namespaces.
    Target(Box<TargetCommand>),
    /// Carve a file or block device into thin namespaces, with snapshots and checksums.
    #[command(subcommand)]
    Drive(DriveVerb),
    /// Make and inspect models of flash devices that the host manages.
    #[command(subcommand)]
    Flash(FlashVerb),
    /// Make, inspect and change pools.
    #[command(subcommand)]
    Pool(PoolVerb),
    /// Use the key-value store of a pool.
    #[command(subcommand)]
    Kv(KvVerb),
    /// Files, striped over machines with parity.
    #[command(subcommand)]
    File(FileVerb),
    /// Serve a pool to Redis clients (RESP2 and RESP3).
    Gateway(GatewayArgs),
    /// Serve memcached's protocols.
    #[command(subcommand)]
    Cache(CacheVerb),
    /// Block volumes, mirrored by the host that uses them.
    #[command(subcommand)]
    Volume(VolumeVerb),
    /// Volumes by name: where they are placed, who may have them, making and deleting them.
    #[command(subcommand)]
    Control(ControlVerb),
    /// Serve volumes by name to a container orchestrator, by the Container Storage Interface.
    Csi(Box<CsiArgs>),
    /// Run storage nodes, a pool, a gateway, volumes by name and files on this machine.
    Up(UpArgs),
    /// Talk to any NVMe/TCP target.
    #[command(subcommand)]
    Nvme(NvmeVerb),
    /// Measure, beside what the machine can do at best and beside peers.
    #[command(subcommand)]
    Bench(BenchVerb),
}

/// Flags that every verb has.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Read flags from this TOML file; those on the command line win.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Report as JSON on standard output.
    #[arg(long)]
    pub json: bool,
}

/// Flags of a process that serves.
#[derive(Args, Clone, Debug)]
pub struct Serving {
    /// Serve Prometheus metrics (/metrics) and /healthz at this address.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// Reactor threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub reactors: u16,
    /// Pin one reactor to each of these cores, such as 0,2-3; takes the place of --reactors.
    #[arg(long, value_name = "LIST")]
    pub cores: Option<Cores>,
    /// Stop when standard input ends: a child process must not outlive its supervisor.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

impl Serving {
    /// The reactor threads, each with the core it is pinned to, if any.
    pub fn reactors(&self) -> Vec<ReactorConfig> {
        let one = ReactorConfig::default();
        match &self.cores {
            Some(cores) => cores.0.iter().map(|&core| ReactorConfig { core: Some(core), ..one.clone() }).collect(),
            None => vec![one; usize::from(self.reactors)],
        }
    }
}

/// A list of cores.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cores(pub Vec<usize>);

impl std::str::FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Cores, String> {
        // The kernel's own bound (CONFIG_NR_CPUS on large builds).
        const CORE_MAX: usize = 8191;
        let wrong =
            |part: &str| format!("`{part}` is no core: write numbers up to {CORE_MAX} and ranges, such as 0,2-3");
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.parse::<usize>().ok().filter(|n| *n <= CORE_MAX).ok_or_else(|| wrong(part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong(part));
            }
            cores.extend(first..=last);
        }
        cores.sort_unstable();
        cores.dedup();
        Ok(Cores(cores))
    }
}

/// How to reach a pool.
#[derive(Args, Clone, Debug)]
pub struct PoolAddress {
    /// Addresses of members; one that answers is enough, the others are found from the pool's map. What is given here wins
    /// over what the map says.
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    pub pool: Vec<String>,
    /// The pool that is meant, if members of several are at these addresses: the UUID that `yagura pool status` shows.
    #[arg(long, value_name = "UUID")]
    pub pool_id: Option<::pool::Uuid>,
    #[command(flatten)]
    pub host: NvmeHost,
}

/// Flags of every verb that goes over all that a pool holds.
#[derive(Args, Debug)]
pub struct Walk {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// Read or move at most so many bytes a second, over all members.
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Size>,
}

/// Certificates of a process that serves clients over TCP.
#[derive(Args, Clone, Debug)]
pub struct ServingTls {
    /// Serve TLS 1.3 alone over TCP, with the certificate chain of this PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Let in only clients with a certificate of an authority of this PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_ca: Option<PathBuf>,
}

impl ServingTls {
    /// The files that are named; `None`: connections are not TLS ones.
    pub fn files(&self) -> Option<CertificateFiles> {
        let (chain, key) = self.tls_cert.clone().zip(self.tls_key.clone())?;
        Some(CertificateFiles { chain, key, authorities: self.tls_ca.clone() })
    }

    /// What connections are made with, of these files.
    pub fn context(&self) -> Result<Option<CertificateContext>, Failure> {
        self.files().as_ref().map(CertificateContext::new).transpose().map_err(Failure::refused)
    }
}

/// `yagura gateway`
#[derive(Args, Debug)]
pub struct GatewayArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub serving: Serving,
    #[command(flatten)]
    pub address: PoolAddress,
    /// Where to listen; port 0 takes a free one, which is reported.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6379")]
    pub listen: SocketAddr,
    /// Connections served at once, per reactor.
    #[arg(long, value_name = "N", default_value_t = ::kv::resp::CONNECTIONS_MAX)]
    pub connections_max: usize,
    /// Ask every client for the password in this file, which only its owner may read.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    #[command(flatten)]
    pub tls: ServingTls,
}

/// `yagura up`
#[derive(Args, Debug)]
pub struct UpArgs {
    #[command(flatten)]
    pub common: Common,
    /// Directory of the members and their state; made if it is not there.
    #[arg(long, value_name = "DIR", default_value = "yagura-data")]
    pub data: PathBuf,
    /// Storage nodes, each a process with one member. Counts only when the pool is made.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub nodes: u8,
    /// Members that hold each key. Counts only when the pool is made.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
    pub replicas: u8,
    /// Size of each member; the files are sparse. Counts only when the pool is made. Default: 1 GiB, or room for what the
    /// drill imports.
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Thousandths of each member that hold table pages (small values); the rest holds larger values. Listing and repair read
    /// the whole table. Counts only when the pool is made.
    #[arg(long, value_name = "N", default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub table_share: u32,
    /// Where the gateway listens; default: 127.0.0.1:6379, or a free port if that is taken.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Room for volumes on each node; the files are sparse. Counts only when they are made. Default: as much as the members have,
    /// 1 GiB at least.
    #[arg(long, value_name = "SIZE")]
    pub volumes: Option<Size>,
    /// Room for files on each node, with their parity; sparse, too. Counts only when it is made, which takes two nodes at least.
    /// Default: as for volumes.
    #[arg(long, value_name = "SIZE")]
    pub files: Option<Size>,
    /// Make no file system: its names are keys of the pool, and whoever lists the keys of the store meets them.
    #[arg(long, conflicts_with = "files")]
    pub no_files: bool,
    /// Serve Prometheus metrics (/metrics) and /healthz of the gateway at this address.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// Import DIR, write a file system made of it to a volume, copy some of it to the files, kill a storage node meanwhile, verify
    /// every byte of all three, restart the node, wait until it has what it missed. The volume takes Debian's e2fsprogs.
    #[arg(long, value_name = "DIR")]
    pub drill: Option<PathBuf>,
    /// Stop after the drill; exit status 0 if all was well.
    #[arg(long, requires = "drill")]
    pub once: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn cores() {
        assert_eq!("0,2-3,2".parse(), Ok(Cores(vec![0, 2, 3])));
        for bad in ["", "a", "3-2", "1,", "9999999"] {
            assert!(bad.parse::<Cores>().is_err(), "{bad}");
        }
    }
}
