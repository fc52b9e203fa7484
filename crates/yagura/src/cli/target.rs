//! Flags of `yagura target`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use fabric::subsystem::Profile;

use super::{Common, Serving, TargetDriveVerb};
use crate::namespaces::NamespaceSpec;
use crate::size::Size;
use crate::spec::parse_group;
use crate::subsystem::DriveSpec;
use crate::subsystem::spec::{HostSpec, PortSpec, SubsystemSpec, parse_profile};

/// `yagura target`: serve, or with a verb talk to one that serves.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TargetCommand {
    #[command(subcommand)]
    pub verb: Option<TargetVerb>,
    #[command(flatten)]
    pub serve: TargetArgs,
}

/// What a target is made of.
#[derive(Args, Debug)]
pub struct TargetArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub serving: Serving,
    /// Where to listen; port 0 takes a free one, which is reported.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4420")]
    pub listen: SocketAddr,
    /// A port of the subsystems, in place of --listen; may be given several times:
    /// ADDR[,id=N][,advertise=ADDR][,tls=off|allowed|required][,discovery=only][,ana=GROUP:STATE]….
    /// Ids count from 1.
    #[arg(long = "port", value_name = "SPEC", num_args = 1, conflicts_with_all = ["listen", "advertise"])]
    pub ports: Vec<PortSpec>,
    /// Name of the subsystem that holds the namespaces.
    #[arg(long, value_name = "NQN", default_value = "nqn.2026-11.io.yagura:node")]
    pub nqn: String,
    /// A subsystem, in place of --nqn; may be given several times: nqn=NQN[,serial=TEXT][,allow=any|listed][,port=ID]….
    /// Without port: at all of them.
    #[arg(long = "subsystem", value_name = "SPEC", num_args = 1, conflicts_with = "nqn")]
    pub subsystems: Vec<SubsystemSpec>,
    /// A host that is let in: nqn=NQN[,subsystem=NQN]…[,dhchap-key-file=FILE[,dhchap-ctrl-key-file=FILE]]
    /// [,tls-key-file=FILE[,tls-legacy=yes]][,tls=required][,concat=yes][,manage=yes|all]; may be given
    /// several times. Without subsystem: to all of them. A subsystem for which there is one lets in no other, unless it says
    /// allow=any. With a key file the host has to authenticate itself by that key (DH-HMAC-CHAP), with the second one the
    /// target authenticates itself too, if the host asks. With concat=yes the authentication may make its key for TLS, also at
    /// a port that requires TLS. With manage=yes it may make, delete, attach and detach namespaces of drives, those of other
    /// hosts too; give it a key. With manage=all the namespaces that it makes are, besides, for all hosts that are let in: a
    /// control plane's way.
    #[arg(long = "host", value_name = "SPEC", num_args = 1)]
    pub hosts: Vec<HostSpec>,
    /// Let in only hosts that authenticate themselves, at the discovery subsystem too.
    #[arg(long)]
    pub require_auth: bool,
    /// Hashes to authenticate with, the preferred ones first: sha256,sha384,sha512 by default.
    #[arg(long, value_name = "NAMES")]
    pub dhchap_hashes: Option<String>,
    /// DH groups to authenticate with, the preferred ones first; default:
    /// ffdhe2048,ffdhe3072,ffdhe4096,ffdhe6144,ffdhe8192,null.
    #[arg(long, value_name = "NAMES")]
    pub dhchap_groups: Option<String>,
    /// Address that discovery tells hosts to connect to, where it is not the one listened on.
    #[arg(long, value_name = "ADDR")]
    pub advertise: Option<SocketAddr>,
    /// Serve the discovery subsystem, and nothing else, at this address too (8009 is the port hosts expect it at).
    #[arg(long, value_name = "ADDR")]
    pub discovery: Option<SocketAddr>,
    /// Another discovery service that discovery refers hosts to; may be given several times.
    #[arg(long = "referral", value_name = "ADDR", num_args = 1)]
    pub referrals: Vec<SocketAddr>,
    /// A namespace; may be given several times, ids count from 1. One of file=PATH[,size=SIZE], device=PATH, memory=SIZE,
    /// drive=PATH,name=NAME (see `yagura drive`), flash=FILE or zones=FILE (see `yagura flash`);
    /// and [,block=512|4096][,subsystem=NQN][,nsid=N][,group=N], not for a drive's or on flash also [,nguid=HEX], which a
    /// device needs that has no serial number. A file that does not exist is created with its size.
    #[arg(long = "namespace", value_name = "SPEC", num_args = 1)]
    pub namespaces: Vec<NamespaceSpec>,
    /// A drive; may be given several times: PATH[,subsystem=NQN]. All its namespaces but snapshots are served, each under
    /// the identifier that it keeps, and hosts with manage=yes may make, delete, attach and detach namespaces.
    #[arg(long = "drive", value_name = "SPEC", num_args = 1)]
    pub drives: Vec<DriveSpec>,
    /// What to offer hosts: `full`, or `minimal`, the least that a controller with fused compare-and-write may offer (one I/O
    /// queue of three entries, no data in capsules, transfers of 8 KiB, atomic units of one block, no optional commands):
    /// a host that works with it works with any.
    #[arg(long, value_name = "NAME", default_value = "full", value_parser = parse_profile)]
    pub profile: Profile,
    /// Take the verbs of `yagura target` at this Unix socket, which is made, for its owner only.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

/// `yagura target VERB`: what an operator asks of a target that serves.
#[derive(Subcommand, Debug)]
pub enum TargetVerb {
    /// Show ports, subsystems, hosts, controllers, and what goes on in the background.
    Status(TargetStatusArgs),
    /// Set the state of an ANA group at a port, or put a namespace into another group.
    Ana(TargetAnaArgs),
    /// Add a namespace.
    AddNamespace(TargetAddNamespaceArgs),
    /// Take a namespace away.
    RemoveNamespace(TargetRemoveNamespaceArgs),
    /// Let a namespace grow.
    ResizeNamespace(TargetResizeNamespaceArgs),
    /// Work on a drive that is served.
    #[command(subcommand)]
    Drive(TargetDriveVerb),
    /// Let a host in.
    AllowHost(TargetAllowHostArgs),
    /// Let a host in no more, and end its controllers.
    DenyHost(TargetHostArgs),
    /// Give a host another key to authenticate with. What is connected goes on, and needs the new key when it connects anew.
    SetHostKey(TargetHostKeyArgs),
}

/// Which target.
#[derive(Args, Clone, Debug)]
pub struct TargetControl {
    #[command(flatten)]
    pub common: Common,
    /// The socket that the target was given by --control.
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
}

/// Which subsystem of it.
#[derive(Args, Clone, Debug)]
pub struct TargetSubsystem {
    /// The subsystem; default: the only one.
    #[arg(long, value_name = "NQN")]
    pub subsystem: Option<String>,
}

/// `yagura target status`
#[derive(Args, Debug)]
pub struct TargetStatusArgs {
    #[command(flatten)]
    pub control: TargetControl,
}

/// `yagura target ana`
#[derive(Args, Debug)]
pub struct TargetAnaArgs {
    #[command(flatten)]
    pub control: TargetControl,
    #[command(flatten)]
    pub subsystem: TargetSubsystem,
    /// The ANA group.
    #[arg(long, value_name = "N", value_parser = parse_group)]
    pub group: u32,
    /// The port.
    #[arg(long, value_name = "ID", requires = "state")]
    pub port: Option<fabric::subsystem::PortId>,
    /// optimized, non-optimized, inaccessible, persistent-loss or change.
    #[arg(long, value_name = "STATE", requires = "port")]
    pub state: Option<nvme::AnaState>,
    /// Put this namespace into the group.
    #[arg(long, value_name = "N", required_unless_present = "state", conflicts_with = "state")]
    pub nsid: Option<u32>,
}

/// `yagura target add-namespace`
#[derive(Args, Debug)]
pub struct TargetAddNamespaceArgs {
    #[command(flatten)]
    pub control: TargetControl,
    /// As --namespace of `yagura target`; a relative path is one of the directory in which the target runs.
    #[arg(value_name = "SPEC")]
    pub namespace: NamespaceSpec,
}

/// `yagura target remove-namespace`
#[derive(Args, Debug)]
pub struct TargetRemoveNamespaceArgs {
    #[command(flatten)]
    pub control: TargetControl,
    #[command(flatten)]
    pub subsystem: TargetSubsystem,
    /// The namespace.
    #[arg(long, value_name = "N")]
    pub nsid: u32,
}

/// `yagura target resize-namespace`
#[derive(Args, Debug)]
pub struct TargetResizeNamespaceArgs {
    #[command(flatten)]
    pub control: TargetControl,
    #[command(flatten)]
    pub subsystem: TargetSubsystem,
    /// The namespace.
    #[arg(long, value_name = "N")]
    pub nsid: u32,
    /// Its new size; it can only grow.
    #[arg(long, value_name = "SIZE")]
    pub size: Size,
}

/// `yagura target allow-host`
#[derive(Args, Debug)]
pub struct TargetAllowHostArgs {
    #[command(flatten)]
    pub host: TargetHostArgs,
    /// Whether it may make, delete, attach and detach namespaces of drives from now on, those of other hosts too (default: as
    /// before; of a host that was not listed, no). Its connections end, and it comes back with what it may.
    #[arg(long, value_name = "yes|no", value_parser = clap::builder::BoolishValueParser::new())]
    pub manage: Option<bool>,
}

/// `yagura target allow-host` and `deny-host`
#[derive(Args, Debug)]
pub struct TargetHostArgs {
    #[command(flatten)]
    pub control: TargetControl,
    #[command(flatten)]
    pub subsystem: TargetSubsystem,
    /// The host's NQN, or `any` for all that are not listed.
    #[arg(value_name = "NQN")]
    pub host: String,
}

/// `yagura target set-host-key`
#[derive(Args, Debug)]
pub struct TargetHostKeyArgs {
    #[command(flatten)]
    pub control: TargetControl,
    #[command(flatten)]
    pub subsystem: TargetSubsystem,
    /// The host's NQN.
    #[arg(value_name = "NQN")]
    pub host: String,
    /// File with the key by which the host authenticates itself (DH-HMAC-CHAP); the target reads it.
    #[arg(long, value_name = "FILE")]
    pub dhchap_key_file: PathBuf,
    /// File with the key by which the target authenticates itself to the host; without it, it can't any more.
    #[arg(long, value_name = "FILE")]
    pub dhchap_ctrl_key_file: Option<PathBuf>,
}
