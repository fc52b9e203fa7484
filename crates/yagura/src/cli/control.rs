//! `yagura control …`

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Common, NvmeHost, ServingTls};
use crate::size::Size;

/// `yagura control …`
#[derive(Subcommand, Debug)]
pub enum ControlVerb {
    /// Serve volumes by name: a REST interface over a catalogue, and the work on volumes that are made and deleted.
    Serve(Box<ControlServeArgs>),
    /// Say where a storage node stands.
    Node(ControlNodeArgs),
    /// Register a drive: a subsystem of a target that makes namespaces for the control plane.
    Drive(ControlDriveArgs),
    /// Take a drive into use, drain it (it gets nothing new), or say that it is gone for good.
    SetDrive(ControlSetDriveArgs),
    /// Make a tenant, or change what the tenant's volumes may take.
    Tenant(ControlTenantArgs),
    /// Make a token; it is shown once.
    Token(ControlTokenArgs),
    /// Make a volume.
    Create(ControlCreateArgs),
    /// Delete a volume, with all it holds.
    Delete(ControlDeleteArgs),
    /// Forget which host has a volume attached: of a host that is gone.
    Detach(ControlDetachArgs),
    /// Show nodes, drives, tenants, tokens, volumes, the pool, or one of them.
    Show(ControlShowArgs),
}

/// Where a control plane is, and who asks.
#[derive(Args, Clone, Debug)]
pub struct ControlAccess {
    /// The control plane: http://HOST:PORT or https://HOST:PORT.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7420")]
    pub control: String,
    /// File with the token, which only its owner may read.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Trust the authorities of this PEM file, not the machine's.
    #[arg(long, value_name = "FILE")]
    pub control_ca: Option<PathBuf>,
    /// Whose volumes are meant, for an operator's token.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
}

/// `yagura control serve`
#[derive(Args, Debug)]
pub struct ControlServeArgs {
    #[command(flatten)]
    pub common: Common,
    /// Keep the catalogue in this file; it is made if it is not there. One process has it open.
    #[arg(long, value_name = "FILE", required_unless_present = "etcd", conflicts_with = "etcd")]
    pub catalogue: Option<PathBuf>,
    /// Keep the catalogue in etcd: http://HOST:PORT or https://HOST:PORT of every member.
    #[arg(long, value_name = "URL", num_args = 1)]
    pub etcd: Vec<String>,
    /// Trust the authorities of this PEM file for etcd, not the machine's.
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub etcd_ca: Option<PathBuf>,
    /// Certificate by which etcd knows this process, a PEM file.
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    pub etcd_cert: Option<PathBuf>,
    /// Its private key, a PEM file.
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
    /// Where to serve REST; port 0 takes a free one, which is reported.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7420")]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub tls: ServingTls,
    /// Serve plain HTTP to other machines as well: whoever is on the way can read the tokens.
    #[arg(long, conflicts_with = "tls_cert")]
    pub plain_text: bool,
    /// Make an operator's token when there is no file of this name, and write it there.
    #[arg(long, value_name = "FILE")]
    pub operator_token: Option<PathBuf>,
    #[command(flatten)]
    pub host: NvmeHost,
    /// Stop when standard input ends: a child process must not outlive its supervisor.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// What all that ask have in common.
#[derive(Args, Clone, Debug)]
pub struct Asking {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub access: ControlAccess,
}

/// `yagura control node`
#[derive(Args, Debug)]
pub struct ControlNodeArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// Its name.
    pub name: String,
    /// The rack that it is in.
    #[arg(long, value_name = "NAME")]
    pub rack: Option<String>,
    /// The zone that it is in.
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,
}

/// `yagura control drive`
#[derive(Args, Debug)]
pub struct ControlDriveArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// Its name.
    pub name: String,
    /// The node that it is in.
    #[arg(long, value_name = "NAME")]
    pub node: String,
    /// Where its target listens: HOST:PORT.
    #[arg(long, value_name = "ADDR")]
    pub address: String,
    /// Its subsystem.
    #[arg(long, value_name = "NQN")]
    pub nqn: String,
    /// Take a drive that has namespaces, and leave these alone.
    #[arg(long)]
    pub keep_foreign: bool,
}

/// `yagura control set-drive`
#[derive(Args, Debug)]
pub struct ControlSetDriveArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// Its name.
    pub name: String,
    /// What is wanted of it.
    #[arg(value_parser = ["in-use", "draining", "out"])]
    pub state: String,
}

/// `yagura control tenant`
#[derive(Args, Debug)]
pub struct ControlTenantArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The tenant's name.
    pub name: String,
    /// What all volumes of the tenant may have together.
    #[arg(long, value_name = "SIZE")]
    pub quota: Option<Size>,
    /// Volumes that the tenant may have.
    #[arg(long, value_name = "N")]
    pub volumes: Option<u32>,
}

/// `yagura control token`
#[derive(Args, Debug)]
pub struct ControlTokenArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The tenant that it is for; without one it is an operator's.
    #[arg(long = "for", value_name = "TENANT")]
    pub whom: Option<String>,
}

/// `yagura control create`
#[derive(Args, Debug)]
pub struct ControlCreateArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The volume's name.
    pub name: String,
    /// Its size, a multiple of 4 KiB.
    #[arg(long, value_name = "SIZE")]
    pub size: Size,
    /// Copies of the data.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=3))]
    pub replicas: u8,
    /// How far apart they stand: on different drives, on different nodes, in different racks or zones.
    #[arg(long, value_name = "LEVEL", default_value = "node", value_parser = ["drive", "node", "rack", "zone"])]
    pub apart: String,
    /// Let them stand nearer together where that can't be had.
    #[arg(long)]
    pub relax: bool,
}

/// `yagura control delete`
#[derive(Args, Debug)]
pub struct ControlDeleteArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The volume's name.
    pub name: String,
    /// Also while a host has the volume attached.
    #[arg(long)]
    pub force: bool,
}

/// `yagura control detach`
#[derive(Args, Debug)]
pub struct ControlDetachArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The volume's name.
    pub name: String,
}

/// `yagura control show`
#[derive(Args, Debug)]
pub struct ControlShowArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// What kind of thing.
    #[arg(value_parser = ["pool", "nodes", "drives", "tenants", "tokens", "volumes"])]
    pub kind: String,
    /// Which of them.
    pub name: Option<String>,
}
