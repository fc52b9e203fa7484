//! Flags of `yagura kv`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Common, PoolAddress, Walk};
use crate::size::Size;

/// `yagura kv …`
#[derive(Subcommand, Debug)]
pub enum KvVerb {
    /// Store a value: of an argument, a file, or standard input.
    Put(KvPutArgs),
    /// Write a value to standard output or a file.
    Get(KvGetArgs),
    /// Remove keys.
    Delete(KvDeleteArgs),
    /// List keys.
    List(KvListArgs),
    /// Store every file of a directory tree; keys are relative paths.
    Import(KvImportArgs),
    /// Compare what is stored with a directory.
    Verify(KvVerifyArgs),
    /// Read everything: compare all replicas, verify all checksums, look for what is lost or left behind.
    Scrub(KvScrubArgs),
    /// Store what is missing, old or damaged on some member, rebuild damaged pages, and begin members anew that were rolled back
    /// or emptied.
    Repair(KvRepairArgs),
    /// Show figures of the store.
    Stat(KvStatArgs),
}

/// `yagura kv put`
#[derive(Args, Debug)]
pub struct KvPutArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// The key.
    pub key: String,
    /// The value; without it --file or standard input.
    #[arg(conflicts_with = "file")]
    pub value: Option<String>,
    /// Take the value from this file.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `yagura kv get`
#[derive(Args, Debug)]
pub struct KvGetArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// The key.
    pub key: String,
    /// Write the value to this file.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Give what is stored under the key itself: of a file in parts, its manifest.
    #[arg(long)]
    pub raw: bool,
}

/// `yagura kv delete`
#[derive(Args, Debug)]
pub struct KvDeleteArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// The keys.
    #[arg(required = true)]
    pub keys: Vec<String>,
}

/// `yagura kv list`
#[derive(Args, Debug)]
pub struct KvListArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// Only keys that begin with this.
    #[arg(default_value = "")]
    pub prefix: String,
    /// Stop after this many.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Show the parts of larger files too.
    #[arg(long)]
    pub parts: bool,
}

/// `yagura kv import`
#[derive(Args, Debug)]
pub struct KvImportArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// The directory.
    pub directory: PathBuf,
    /// Put this in front of every key.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// Cut files longer than this into parts.
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    pub part_size: Size,
    /// Files stored at once.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,
}

/// `yagura kv verify`
#[derive(Args, Debug)]
pub struct KvVerifyArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// Read every file of this directory back from the pool and compare each byte.
    #[arg(long, value_name = "DIR")]
    pub against: PathBuf,
    /// What `import --prefix` put in front of every key.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// Files read at once.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,
}

/// `yagura kv scrub`
#[derive(Args, Debug)]
pub struct KvScrubArgs {
    #[command(flatten)]
    pub walk: Walk,
    /// Read and check the values that lie outside their pages, too, on every replica.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
        default_missing_value = "true")]
    pub data: bool,
    /// Then free what nothing refers to: what hosts that ended in the middle of a store left behind more than two hours ago; and
    /// forget deleted keys, for which all members must answer.
    #[arg(long)]
    pub collect: bool,
}

/// `yagura kv repair`
#[derive(Args, Debug)]
pub struct KvRepairArgs {
    #[command(flatten)]
    pub walk: Walk,
}

/// `yagura kv stat`
#[derive(Args, Debug)]
pub struct KvStatArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// Count every key; without it counts are estimated from a sample of the tables' pages.
    #[arg(long)]
    pub exact: bool,
}
