//! Flags of `yagura file`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Common, FileMemberVerb, FileRebuildArgs, FileScrubArgs, FileUseVerb, PoolAddress};
use crate::size::Size;

/// `yagura file …`
#[derive(Subcommand, Debug)]
pub enum FileVerb {
    /// Make a file system: its names in a pool, its bytes on namespaces of its own.
    Create(FileCreateArgs),
    /// Mount a file system (FUSE), until it is unmounted or a signal comes.
    Mount(FileMountArgs),
    /// Read everything that is stored, and make good what does not verify or is missing.
    Scrub(FileScrubArgs),
    /// Write anew what has a column missing, or one on a member that is to be empty.
    Rebuild(FileRebuildArgs),
    /// Show members, add and empty them, take them out.
    #[command(subcommand)]
    Member(FileMemberVerb),
    /// Find what is damaged and what the dead have left, beside those who use the file system, and mend it.
    Fsck(super::FileFsckArgs),
    #[command(flatten)]
    Use(FileUseVerb),
}

/// `yagura file create`
#[derive(Args, Debug)]
pub struct FileCreateArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// What it is to be called: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// A namespace for its bytes: `HOST:PORT[,nqn=NQN][,nsid=N][,machine=NAME|,rack=NAME|,zone=NAME]`, as a member of `pool
    /// create`.
    /// Of one failure domain no two columns of a stripe are taken; without a domain each address is one.
    #[arg(long = "member", value_name = "SPEC", num_args = 1, required = true)]
    pub members: Vec<crate::member::MemberSpec>,
    /// Columns of data of each stripe.
    #[arg(long, value_name = "K", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=31))]
    pub data: u8,
    /// Columns of parity: so many failure domains may be lost.
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub parity: u8,
    /// Room is handed out to clients in regions of this size, a power of two; by default what suits the smallest member.
    #[arg(long, value_name = "SIZE")]
    pub region: Option<Size>,
    /// Take namespaces that are in use, and destroy what they hold.
    #[arg(long)]
    pub force: bool,
}

/// `yagura file mount`
#[derive(Args, Debug)]
pub struct FileMountArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// The file system.
    pub name: String,
    /// The directory where it is to be seen.
    pub directory: PathBuf,
    /// Change nothing by this mount.
    #[arg(long)]
    pub read_only: bool,
    /// Let other users in, too; what they may is said by owners and modes.
    #[arg(long)]
    pub allow_other: bool,
    /// Serve Prometheus metrics (/metrics) and /healthz at this address.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// Stop when standard input ends: a child process must not outlive its supervisor.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}
