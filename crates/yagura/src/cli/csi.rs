//! `yagura csi`

use std::path::PathBuf;

use clap::Args;

use super::{Common, ControlAccess, NvmeHost};

/// `yagura csi`
#[derive(Args, Debug)]
pub struct CsiArgs {
    #[command(flatten)]
    pub common: Common,
    /// Where to serve gRPC: unix:///PATH, a socket that its owner alone may use.
    #[arg(long, value_name = "URL")]
    pub endpoint: String,
    #[command(flatten)]
    pub access: ControlAccess,
    /// Which services this process has: the one that makes volumes, the one that mounts them on a node, or both.
    #[arg(long, value_name = "MODE", default_value = "all", value_parser = ["controller", "node", "all"])]
    pub mode: String,
    /// What the orchestrator calls this node; needed where the part that mounts is served.
    #[arg(long, value_name = "NAME")]
    pub node_id: Option<String>,
    /// Folder of what is known of this node's volumes, which outlives the driver; made if it is not there. Needed as --node-id.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Where this node stands, told to the orchestrator: zone=a,rack=b become topology.yagura.io/zone and topology.yagura.io/rack.
    /// The part that makes volumes says the words alone (zone,rack) where nodes say them.
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    pub topology: Vec<String>,
    #[command(flatten)]
    pub host: NvmeHost,
    /// Stop when standard input ends: a child process must not outlive its supervisor.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}
