//! Flags of `yagura file fsck`.

use clap::Args;

use super::{Common, PoolAddress};

/// `yagura file fsck`
#[derive(Args, Debug)]
pub struct FileFsckArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// The file system. It may be mounted and in use.
    pub name: String,
    /// Mend what can be: finish what others have left, and remove what nothing leads to. Without this nothing is changed.
    #[arg(long)]
    pub repair: bool,
    /// Go on until all that seems left over is settled, an hour or two: what somebody may be about to use is told from what the
    /// dead have left by nothing but the time that it stays unchanged.
    #[arg(long, requires = "repair")]
    pub wait: bool,
}
