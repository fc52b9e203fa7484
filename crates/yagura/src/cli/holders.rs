//! Which volume a verb of `yagura volume` is about.

use clap::Args;

use super::{ControlAccess, NvmeHost};
use crate::holder::HolderSpec;

/// Where the holders of a volume are.
#[derive(Args, Clone, Debug)]
pub struct VolumeHolders {
    /// A replica: ADDR[,nqn=NQN][,nsid=N]; one to three times, in the same order in every command. Without nqn: the only
    /// subsystem there. Without nsid: 1.
    #[arg(long = "replica", value_name = "SPEC", num_args = 1, required = true)]
    pub replicas: Vec<HolderSpec>,
    /// The third holder of the record where there are two replicas, on another machine than both: a namespace of two blocks.
    #[arg(long, value_name = "SPEC")]
    pub witness: Option<HolderSpec>,
    #[command(flatten)]
    pub host: NvmeHost,
}

/// A volume that is there: by the addresses of its holders, or by its name at a control plane.
#[derive(Args, Clone, Debug)]
pub struct VolumeOf {
    /// A replica: ADDR[,nqn=NQN][,nsid=N]; one to three times, in the same order in every command. Without nqn: the only
    /// subsystem there. Without nsid: 1.
    #[arg(
        long = "replica",
        value_name = "SPEC",
        num_args = 1,
        required_unless_present = "name",
        conflicts_with = "name"
    )]
    pub replicas: Vec<HolderSpec>,
    /// The third holder of the record where there are two replicas.
    #[arg(long, value_name = "SPEC", conflicts_with = "name")]
    pub witness: Option<HolderSpec>,
    /// The volume's name at a control plane, which says where the holders are.
    #[arg(long, value_name = "NAME", requires = "token_file", value_parser = super::control::name)]
    pub name: Option<String>,
    #[command(flatten)]
    pub access: ControlAccess,
    #[command(flatten)]
    pub host: NvmeHost,
}
