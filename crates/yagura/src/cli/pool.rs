//! `yagura pool …`

use clap::{Args, Subcommand, ValueEnum};

use super::{Common, NvmeHost, PoolAddress, Walk};
use crate::size::Size;

/// `yagura pool …`
#[derive(Subcommand, Debug)]
pub enum PoolVerb {
    /// Make a pool of namespaces.
    Create(PoolCreateArgs),
    /// Show a pool, its members and their state, and the change under way.
    Status(PoolStatusArgs),
    /// Add members; keys move to them while the pool is in use.
    Add(PoolAddArgs),
    /// Take members out, dead or alive; what they hold is first stored on others.
    Remove(PoolMembersArgs),
    /// Put a new member in the place of another, dead or alive: nothing else moves.
    Replace(PoolReplaceArgs),
    /// Empty members, which stay in the pool without keys.
    Drain(PoolMembersArgs),
    /// Give a member more or fewer keys.
    SetWeight(PoolWeightArgs),
    /// Go on with a change that was interrupted, or take it back.
    Rebalance(PoolRebalanceArgs),
}

/// Flags of every verb that begins a change.
#[derive(Args, Debug)]
pub struct Changing {
    #[command(flatten)]
    pub walk: Walk,
    /// Only show what would move.
    #[arg(long)]
    pub dry_run: bool,
}

/// `yagura pool add`
#[derive(Args, Debug)]
pub struct PoolAddArgs {
    #[command(flatten)]
    pub changing: Changing,
    /// A member: as for `pool create`.
    #[arg(long = "member", value_name = "SPEC", num_args = 1, required = true)]
    pub members: Vec<crate::member::MemberSpec>,
    /// Take namespaces that are in use, and destroy what they hold.
    #[arg(long)]
    pub force: bool,
}

/// `yagura pool remove` and `drain`
#[derive(Args, Debug)]
pub struct PoolMembersArgs {
    #[command(flatten)]
    pub changing: Changing,
    /// Members: NGUIDs, their beginnings, or addresses, as `pool status` shows them.
    #[arg(value_name = "MEMBER", required = true)]
    pub members: Vec<String>,
}

/// `yagura pool replace`
#[derive(Args, Debug)]
pub struct PoolReplaceArgs {
    #[command(flatten)]
    pub changing: Changing,
    /// The member that goes: its NGUID, the beginning of it, or its address.
    #[arg(value_name = "OLD")]
    pub old: String,
    /// The namespace that takes its place: as a member of `pool create`, one namespace.
    #[arg(value_name = "SPEC")]
    pub new: crate::member::MemberSpec,
    /// Take a namespace that is in use, and destroy what it holds.
    #[arg(long)]
    pub force: bool,
}

/// `yagura pool set-weight`
#[derive(Args, Debug)]
pub struct PoolWeightArgs {
    #[command(flatten)]
    pub changing: Changing,
    /// The member: its NGUID, the beginning of it, or its address.
    #[arg(value_name = "MEMBER")]
    pub member: String,
    /// Its share of the keys relative to the others; 0: none.
    #[arg(value_name = "WEIGHT", value_parser = clap::value_parser!(u32).range(0..=i64::from(::pool::map::WEIGHT_MAX)))]
    pub weight: u32,
}

/// `yagura pool rebalance`
#[derive(Args, Debug)]
pub struct PoolRebalanceArgs {
    #[command(flatten)]
    pub walk: Walk,
    /// Go back to before the change instead; possible until everything is moved.
    #[arg(long)]
    pub take_back: bool,
    /// Members that never come back, all of them: the change ends without them. Named as for `pool remove`.
    #[arg(long, value_name = "MEMBER", value_delimiter = ',')]
    pub lost: Vec<String>,
    /// Go on although a majority of those who vote on the pool's map is among the members lost. Only if none of them can ever
    /// come back: what they alone knew is gone.
    #[arg(long, requires = "lost")]
    pub force: bool,
    /// With --lost: also where the half of some keys' replicas that is left may lack what was acknowledged last, as a change was
    /// taken back and the replicas have not been made equal since; or as the change can only be taken back, which drops what was
    /// stored with its new members. That is gone then, and what was before may be read again.
    #[arg(long, requires = "lost")]
    pub accept_stale: bool,
    /// With --force: also where too few replicas of some keys are left. These are served to nobody until some of the members lost
    /// are back (--returned). It says what --accept-stale says, too.
    #[arg(long, requires = "force")]
    pub accept_unserved: bool,
    /// Members that were given up as lost and are back with all that they held, all of them: they are members as before. With
    /// --lost: first of all; with --force: by the same decision. Name there all that were away for a time: what was stored without
    /// them meanwhile, they don't know of, nor perhaps that they were given up.
    #[arg(long, value_name = "MEMBER", value_delimiter = ',', conflicts_with = "take_back")]
    pub returned: Vec<String>,
}

/// `yagura pool create`
#[derive(Args, Debug)]
pub struct PoolCreateArgs {
    #[command(flatten)]
    pub common: Common,
    /// A member: ADDR[,nqn=NQN][,nsid=N][,weight=N][,zone=…][,rack=…][,machine=…][,drive=…]. Without nqn and nsid: every
    /// namespace that is found at the address.
    #[arg(long = "member", value_name = "SPEC", num_args = 1)]
    pub members: Vec<crate::member::MemberSpec>,
    /// Members that hold each key.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
    pub replicas: u8,
    /// Bytes of a table page: the unit of compare-and-write.
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub page_size: Size,
    /// How long the values usually are that will be stored: each member is divided for that into table pages, for what is shorter
    /// than a page, and heap. It stays so. Default: half and half.
    #[arg(long, value_name = "SIZE", conflicts_with = "table_share")]
    pub values: Option<Size>,
    /// Thousandths of each member that hold table pages (small values); the rest holds larger values.
    #[arg(long, value_name = "N", default_value_t = ::pool::TABLE_SHARE_DEFAULT)]
    pub table_share: u32,
    /// What no two replicas of a key may share; default: the widest of which there are enough.
    #[arg(long, value_name = "LEVEL")]
    pub spread: Option<Spread>,
    /// Take namespaces that are in use, and destroy what they hold.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub host: NvmeHost,
}

/// Failure domains.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Spread {
    /// A drive.
    Drive,
    /// A machine.
    Machine,
    /// A rack.
    Rack,
    /// A zone.
    Zone,
}

/// `yagura pool status`
#[derive(Args, Debug)]
pub struct PoolStatusArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
}
