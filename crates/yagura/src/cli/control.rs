//! `yagura control …`

use std::net::SocketAddr;
use std::path::PathBuf;

use ::control::provision::{Malformed, Name};
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
    /// Take a drive into use, drain it, or say that it is gone for good: what is lost with it is rebuilt on other drives.
    SetDrive(ControlSetDriveArgs),
    /// Empty a drive, or all drives of a node: what volumes have there is replaced elsewhere, while they are used.
    /// `set-drive DRIVE in-use` ends that.
    Drain(ControlDrainArgs),
    /// Replace what a volume has on a drive by a new holder on another drive, while the volume is used.
    Replace(ControlReplaceArgs),
    /// Make a tenant, or change what the tenant's volumes may take.
    Tenant(ControlTenantArgs),
    /// Make a token; it is shown once.
    Token(ControlTokenArgs),
    /// Make a volume.
    Create(ControlCreateArgs),
    /// Make a volume larger, also while a host has it attached.
    Grow(ControlGrowArgs),
    /// Say anew how much a volume may be used: what is left out has no limit. The host that has it attached is told.
    SetVolume(ControlSetVolumeArgs),
    /// Take a snapshot of a volume, also while a host has it attached.
    Snapshot(ControlSnapshotArgs),
    /// Delete a snapshot. Volumes that were made of it stay.
    DeleteSnapshot(ControlSnapshotArgs),
    /// Put a volume, which no host has attached, back to one of its snapshots: what it has that is in no snapshot is lost. All
    /// snapshots stay.
    RestoreVolume(ControlRestoreVolumeArgs),
    /// Delete a volume, with all it holds.
    Delete(ControlDeleteArgs),
    /// Forget which host has a volume attached: of a host that is gone.
    Detach(ControlDetachArgs),
    /// Write all that a catalogue holds to a file; of one in etcd also while control planes work on it.
    Dump(ControlDumpArgs),
    /// Read what was dumped into an empty catalogue. Called again after it was interrupted, it goes on. (A volume is put back to a
    /// snapshot by `restore-volume`.)
    Restore(ControlRestoreArgs),
    /// Copy a catalogue that is a file into etcd, for control planes on several machines. The file stays, and is served no more.
    Move(ControlMoveArgs),
    /// Show nodes, drives, tenants, tokens, volumes, operations, the pool, or one of them; or the snapshots of a volume, or the
    /// holders on a drive.
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
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub tenant: Option<String>,
}

/// Where a catalogue is kept.
#[derive(Args, Debug)]
pub struct CatalogueAt {
    /// The catalogue is this file; what writes to it makes it if it is not there. One process has it open.
    #[arg(long, value_name = "FILE", required_unless_present = "etcd", conflicts_with = "etcd")]
    pub catalogue: Option<PathBuf>,
    #[command(flatten)]
    pub etcd: CatalogueInEtcd,
}

/// A catalogue that is kept in etcd.
#[derive(Args, Debug)]
pub struct CatalogueInEtcd {
    /// The catalogue is in etcd: http://HOST:PORT or https://HOST:PORT of every member.
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
}

/// `yagura control dump`
#[derive(Args, Debug)]
pub struct ControlDumpArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub at: CatalogueAt,
    /// The file to write, which must not be there yet; `-` is standard output. What it holds of tokens does not let in.
    #[arg(value_name = "FILE")]
    pub to: PathBuf,
}

/// `yagura control restore`
#[derive(Args, Debug)]
pub struct ControlRestoreArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub at: CatalogueAt,
    /// What `yagura control dump` wrote; `-` is standard input.
    #[arg(value_name = "FILE")]
    pub from: PathBuf,
    /// Delete all that the catalogue holds first.
    #[arg(long)]
    pub force: bool,
}

/// `yagura control move`
#[derive(Args, Debug)]
pub struct ControlMoveArgs {
    #[command(flatten)]
    pub common: Common,
    /// The catalogue to copy, which no control plane may have open.
    #[arg(long, value_name = "FILE")]
    pub catalogue: PathBuf,
    #[command(flatten)]
    pub etcd: CatalogueInEtcd,
    /// Delete all that etcd holds under the catalogue's names first.
    #[arg(long)]
    pub force: bool,
}

/// `yagura control serve`
#[derive(Args, Debug)]
pub struct ControlServeArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub at: CatalogueAt,
    /// Serve the file though it was moved to etcd: nobody may serve that one then.
    #[arg(long, conflicts_with = "etcd")]
    pub although_moved: bool,
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
    /// Name the request: sent again with the same name and the same words it is done once, and answered as it was.
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
}

/// How much a volume may be used.
#[derive(Args, Clone, Debug)]
pub struct VolumeLimits {
    /// Commands a second.
    #[arg(long, value_name = "N")]
    pub iops: Option<u64>,
    /// Bytes a second, read and written; 1 MiB at least.
    #[arg(long, value_name = "SIZE")]
    pub bandwidth: Option<Size>,
    /// For how many seconds what was not used is saved up. Default: one.
    #[arg(long, value_name = "SECONDS")]
    pub burst: Option<u32>,
}

/// `yagura control node`
#[derive(Args, Debug)]
pub struct ControlNodeArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// Its name.
    #[arg(value_parser = name)]
    pub name: String,
    /// The rack that it is in.
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub rack: Option<String>,
    /// The zone that it is in.
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub zone: Option<String>,
}

/// `yagura control drive`
#[derive(Args, Debug)]
pub struct ControlDriveArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// Its name.
    #[arg(value_parser = name)]
    pub name: String,
    /// The node that it is in.
    #[arg(long, value_name = "NAME", value_parser = name)]
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
    #[arg(value_parser = name)]
    pub name: String,
    /// What is wanted of it.
    #[arg(value_parser = ["in-use", "draining", "out"])]
    pub state: String,
}

/// `yagura control drain`
#[derive(Args, Debug)]
pub struct ControlDrainArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The drive's name.
    #[arg(required_unless_present = "node", conflicts_with = "node", value_parser = name)]
    pub drive: Option<String>,
    /// All drives of this node.
    #[arg(long, value_name = "NODE", value_parser = name)]
    pub node: Option<String>,
    /// Wait until nothing is left there, and say meanwhile why it is.
    #[arg(long)]
    pub wait: bool,
}

/// `yagura control replace`
#[derive(Args, Debug)]
pub struct ControlReplaceArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The volume's name.
    #[arg(value_parser = name)]
    pub volume: String,
    /// The drive that has the holder.
    #[arg(value_parser = name)]
    pub drive: String,
}

/// `yagura control tenant`
#[derive(Args, Debug)]
pub struct ControlTenantArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The tenant's name.
    #[arg(value_parser = name)]
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
    #[arg(long = "for", value_name = "TENANT", value_parser = name)]
    pub whom: Option<String>,
    /// It lets in to /metrics and nothing else.
    #[arg(long, conflicts_with = "whom")]
    pub metrics: bool,
    /// Seconds for which it lets in. Default: until it is revoked.
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,
}

/// `yagura control create`
#[derive(Args, Debug)]
pub struct ControlCreateArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The volume's name.
    #[arg(value_parser = name)]
    pub name: String,
    /// Its size, a multiple of 4 KiB. Default of a clone: that of what it is made of.
    #[arg(long, value_name = "SIZE", required_unless_present = "from")]
    pub size: Option<Size>,
    /// Make it a clone of another volume as it is now, also while a host has that one attached, or of that snapshot of it.
    #[arg(long, value_name = "VOLUME[@SNAPSHOT]", value_parser = model_of)]
    pub from: Option<(String, Option<String>)>,
    #[command(flatten)]
    pub limits: VolumeLimits,
    /// Copies of the data. Default: 3; a clone has as many as what it is made of.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=3))]
    pub replicas: Option<u8>,
    /// How far apart they stand: on different drives, on different nodes, in different racks or zones.
    #[arg(long, value_name = "LEVEL", default_value = "node", value_parser = ["drive", "node", "rack", "zone"])]
    pub apart: String,
    /// Let them stand nearer together where that can't be had.
    #[arg(long)]
    pub relax: bool,
}

/// A name, by the rule of the control plane: what is none is refused before anybody is asked.
pub fn name(text: &str) -> Result<String, Malformed> {
    Name::new(text).map(String::from)
}

fn model_of(text: &str) -> Result<(String, Option<String>), String> {
    let (volume, snapshot) = text.split_once('@').map_or((text, None), |(volume, snapshot)| (volume, Some(snapshot)));
    let named = |text| name(text).map_err(|error| format!("neither VOLUME nor VOLUME@SNAPSHOT: {error}"));
    Ok((named(volume)?, snapshot.map(named).transpose()?))
}

/// `yagura control grow`
#[derive(Args, Debug)]
pub struct ControlGrowArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The volume's name.
    #[arg(value_parser = name)]
    pub name: String,
    /// Its size afterwards, a multiple of 4 KiB.
    #[arg(long, value_name = "SIZE")]
    pub size: Size,
}

/// `yagura control set-volume`
#[derive(Args, Debug)]
pub struct ControlSetVolumeArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The volume's name.
    #[arg(value_parser = name)]
    pub name: String,
    #[command(flatten)]
    pub limits: VolumeLimits,
}

/// `yagura control snapshot`, `yagura control delete-snapshot`
#[derive(Args, Debug)]
pub struct ControlSnapshotArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The volume's name.
    #[arg(value_parser = name)]
    pub volume: String,
    /// The snapshot's name.
    #[arg(value_parser = name)]
    pub name: String,
}

/// `yagura control restore-volume`
#[derive(Args, Debug)]
pub struct ControlRestoreVolumeArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The volume's name.
    pub volume: String,
    /// The snapshot's name.
    #[arg(long, value_name = "NAME")]
    pub snapshot: String,
}

/// `yagura control delete`
#[derive(Args, Debug)]
pub struct ControlDeleteArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The volume's name.
    #[arg(value_parser = name)]
    pub name: String,
    /// Also while a host has the volume attached, with its snapshots, and whatever is under way on it.
    #[arg(long)]
    pub force: bool,
}

/// `yagura control detach`
#[derive(Args, Debug)]
pub struct ControlDetachArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// The volume's name.
    #[arg(value_parser = name)]
    pub name: String,
}

/// `yagura control show`
#[derive(Args, Debug)]
pub struct ControlShowArgs {
    #[command(flatten)]
    pub asking: Asking,
    /// What kind of thing.
    #[arg(value_parser = ["pool", "nodes", "drives", "tenants", "tokens", "volumes", "operations", "snapshots", "holders"])]
    pub kind: String,
    /// Which of them; of snapshots: those of which volume; of holders: those on which drive.
    #[arg(required_if_eq_any([("kind", "snapshots"), ("kind", "holders")]))]
    pub name: Option<String>,
}
