//! Flags of `yagura file scrub`, `rebuild` and `member`.

use clap::{Args, Subcommand};

use super::{Common, PoolAddress, Walk};

/// `yagura file scrub`
#[derive(Args, Debug)]
pub struct FileScrubArgs {
    #[command(flatten)]
    pub walk: Walk,
    /// The file system.
    pub name: String,
    /// Begin with the first file, also where a scrub before was ended half-way.
    #[arg(long)]
    pub anew: bool,
}

/// `yagura file rebuild`
#[derive(Args, Debug)]
pub struct FileRebuildArgs {
    #[command(flatten)]
    pub walk: Walk,
    /// The file system.
    pub name: String,
}

/// `yagura file member …`
#[derive(Subcommand, Debug)]
pub enum FileMemberVerb {
    /// Show a file system's members: where they are, and what they have.
    List(FileMemberListArgs),
    /// Add members: they get new bytes from now on.
    Add(FileMemberAddArgs),
    /// Empty members, dead or alive: they get nothing new, and what they have is written anew on others, also beside mounts.
    Drain(FileMemberDrainArgs),
    /// Take out members that are empty.
    Remove(FileMemberRemoveArgs),
    /// Put a new member in the place of another, dead or alive: add the one, drain and remove the other.
    Replace(FileMemberReplaceArgs),
}

/// `yagura file member list`
#[derive(Args, Debug)]
pub struct FileMemberListArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// The file system.
    pub name: String,
}

/// `yagura file member add`
#[derive(Args, Debug)]
pub struct FileMemberAddArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// The file system.
    pub name: String,
    /// A namespace for its bytes, as for `file create`.
    #[arg(long = "member", value_name = "SPEC", num_args = 1, required = true)]
    pub members: Vec<crate::member::MemberSpec>,
    /// Take namespaces that are in use, and destroy what they hold.
    #[arg(long)]
    pub force: bool,
}

/// `yagura file member drain`
#[derive(Args, Debug)]
pub struct FileMemberDrainArgs {
    #[command(flatten)]
    pub walk: Walk,
    /// The file system.
    pub name: String,
    /// Members: their numbers or addresses, as `file member list` shows them.
    #[arg(value_name = "MEMBER", required = true)]
    pub members: Vec<String>,
    /// They are gone for good: no mount tries to reach them any more. Drained again without it, that is taken back.
    #[arg(long)]
    pub lost: bool,
    /// Though the others seem to have no room for what they hold.
    #[arg(long)]
    pub force: bool,
}

/// `yagura file member remove`
#[derive(Args, Debug)]
pub struct FileMemberRemoveArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// The file system.
    pub name: String,
    /// Members: their numbers or addresses, as `file member list` shows them.
    #[arg(value_name = "MEMBER", required = true)]
    pub members: Vec<String>,
}

/// `yagura file member replace`
#[derive(Args, Debug)]
pub struct FileMemberReplaceArgs {
    #[command(flatten)]
    pub walk: Walk,
    /// The file system.
    pub name: String,
    /// The member that goes: its number or address, as `file member list` shows it.
    #[arg(value_name = "OLD")]
    pub old: String,
    /// The namespace that comes: as a member of `file create`, one namespace.
    #[arg(value_name = "NEW")]
    pub new: crate::member::MemberSpec,
    /// The old one is gone for good: no mount tries to reach it any more.
    #[arg(long)]
    pub lost: bool,
    /// Take a namespace that is in use, and destroy what it holds.
    #[arg(long)]
    pub force: bool,
}
