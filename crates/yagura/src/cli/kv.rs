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
    /// Store a value unless there is one.
    Add(KvPutArgs),
    /// Store a value if there is one.
    Replace(KvPutArgs),
    /// Store a value if the key still has the version that `kv get --json` has shown.
    Cas(KvCasArgs),
    /// Add to a decimal number of 64 bits, and show the sum.
    Incr(KvIncrArgs),
    /// Put bytes behind a value, or store them.
    Append(KvPutArgs),
    /// Have a key end by itself after some time, or never.
    Expire(KvExpireArgs),
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

/// `yagura kv put`, `add`, `replace`, `append`
#[derive(Args, Debug)]
pub struct KvPutArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// The key.
    pub key: String,
    #[command(flatten)]
    pub given: Given,
}

/// A value on the command line.
#[derive(Args, Debug)]
pub struct Given {
    /// The value; without it --file or standard input.
    #[arg(conflicts_with = "file")]
    pub value: Option<String>,
    /// Take the value from this file.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `yagura kv cas`
#[derive(Args, Debug)]
pub struct KvCasArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// The key.
    pub key: String,
    /// The version that it must still have.
    pub version: kv::Version,
    #[command(flatten)]
    pub given: Given,
}

/// `yagura kv incr`
#[derive(Args, Debug)]
pub struct KvIncrArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// The key.
    pub key: String,
    /// What to add.
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    pub delta: i64,
    /// What a key that is not there counts as.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub initial: i64,
}

/// `yagura kv expire`
#[derive(Args, Debug)]
pub struct KvExpireArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// The key.
    pub key: String,
    /// Seconds from now.
    #[arg(required_unless_present = "never", value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: Option<u32>,
    /// It does not end by itself any more.
    #[arg(long, conflicts_with = "seconds")]
    pub never: bool,
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
    /// Write the value to this file; with --json and without a file, the report holds the value, which must be text.
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
    /// Then free what nothing refers to, and forget deleted keys, for which all members must answer. What hosts that ended in the
    /// middle of a store left behind is told from a store under way by time alone: see --wait.
    #[arg(long)]
    pub collect: bool,
    /// Look again at what may be of a store under way when half an hour has passed, and free it then. (A gateway does so from one
    /// of its scrubs to the next.)
    #[arg(long, requires = "collect")]
    pub wait: bool,
}

/// `yagura kv repair`
#[derive(Args, Debug)]
pub struct KvRepairArgs {
    #[command(flatten)]
    pub walk: Walk,
    /// Rebuild damaged pages also where, of an even number of replicas, the half that is left may lack what was acknowledged last
    /// (a change was taken back, or lost members were taken in again, and the replicas have not been made equal since). What such
    /// a page alone knew is gone then: deleted keys may be back, and values as they were. Only if no other replica comes back.
    #[arg(long)]
    pub accept_stale: bool,
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
