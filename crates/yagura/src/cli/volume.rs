//! `yagura volume …`

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use uuid::Uuid;

use super::{
    Common, NvmeHost, VolumeDiffArgs, VolumeExportArgs, VolumeHolders, VolumeImportArgs, VolumeOf, VolumeSnapshotArgs,
};
use crate::holder::HolderSpec;
use crate::size::Size;

/// `yagura volume …`
#[derive(Subcommand, Debug)]
pub enum VolumeVerb {
    /// Make a volume of namespaces on one to three targets.
    Create(VolumeCreateArgs),
    /// Attach a volume and serve it as an NVMe/TCP namespace, until stopped. A host that has it attached loses it.
    Attach(Box<VolumeAttachArgs>),
    /// Show what the holders of a volume say.
    Status(VolumeStatusArgs),
    /// Attach a volume, and compare its replicas.
    Verify(VolumeVerifyArgs),
    /// Make a blank namespace the holder of a slot whose own is gone for good; attach the volume with it to have it filled.
    Replace(VolumeReplaceArgs),
    /// Go on with one copy where a majority of the holders is lost for good: it becomes a new volume, and the others are made anew.
    Recover(VolumeRecoverArgs),
    /// Take a snapshot of a volume, or delete one, where no control plane does that.
    Snapshot(VolumeSnapshotArgs),
    /// Show where a snapshot differs from an older one, or where it is not empty.
    Diff(VolumeDiffArgs),
    /// Write a snapshot, or what it differs from an older one in, to a file or to standard output.
    Export(VolumeExportArgs),
    /// Read what `export` has written into a volume.
    Import(VolumeImportArgs),
}

/// `yagura volume create`
#[derive(Args, Debug)]
pub struct VolumeCreateArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub holders: VolumeHolders,
    /// Size of the volume; default: what the smallest replica has room for.
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// How long, in seconds, a host may read after a majority of the holders has confirmed it. Who attaches while a replica
    /// can't be reached waits as long.
    #[arg(long, value_name = "SECONDS", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=120))]
    pub lease: u32,
    /// Take namespaces that are in use, and destroy what they hold.
    #[arg(long)]
    pub force: bool,
}

/// `yagura volume attach`
#[derive(Args, Debug)]
pub struct VolumeAttachArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub of: VolumeOf,
    /// Also where the control plane has it that another host uses the volume; by addresses it is taken in any case.
    #[arg(long, requires = "name")]
    pub take: bool,
    /// Have this machine's kernel connect to it, and report its block device (needs root, and `modprobe nvme-tcp`). When this
    /// process is killed the kernel waits for the next one, at the same port; a signal to stop gives the device up.
    #[arg(long, requires = "name", conflicts_with = "allowed")]
    pub device: bool,
    /// Where to serve it; port 0 takes a free one, which is reported.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4420")]
    pub listen: SocketAddr,
    /// Name of the subsystem that serves it; default: one made from the volume's identifier.
    #[arg(long, value_name = "NQN")]
    pub nqn: Option<String>,
    /// Serve it over NBD as well, for what has no NVMe/TCP (nbdcopy, qemu-img, nbd-client): ADDR, or unix:PATH. An address that
    /// other machines reach wants --nbd-tls-ca.
    #[arg(long, value_name = "ADDR|unix:PATH")]
    pub nbd: Option<NbdAt>,
    #[command(flatten)]
    pub nbd_tls: NbdTls,
    /// A host that is let in; may be given several times. Default: any, which only an address of this machine alone may say.
    #[arg(long = "allow-host", value_name = "NQN", num_args = 1)]
    pub allowed: Vec<String>,
    /// How long, in milliseconds, a replica that is lost may take to come back before the volume goes on without it.
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=60_000))]
    pub give_up_after: u32,
    /// Bytes a second that are copied to a replica that is behind, at most.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub resync_rate: Size,
    /// Serve Prometheus metrics (/metrics) and /healthz at this address.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// Only in the tenure that a former attachment of this host reported: not if another host may have had the volume since.
    #[arg(long, value_name = "ID", requires = "name", hide = true)]
    pub tenure: Option<Uuid>,
    /// Stop when standard input ends: a child process must not outlive its supervisor.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// Where NBD is served.
#[derive(Clone, Debug)]
pub enum NbdAt {
    /// Over TCP; port 0 takes a free one.
    Tcp(SocketAddr),
    /// At a socket of this machine, which only its owner may use.
    Unix(PathBuf),
}

impl FromStr for NbdAt {
    type Err = String;

    fn from_str(text: &str) -> Result<NbdAt, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("unix: names no path".into()),
            Some(path) => Ok(NbdAt::Unix(path.into())),
            None => text
                .parse()
                .map(NbdAt::Tcp)
                .map_err(|_| format!("`{text}` is no address and port, as in 127.0.0.1:10809, nor unix: and a path")),
        }
    }
}

/// Certificates of NBD over TCP.
#[derive(Args, Clone, Debug)]
pub struct NbdTls {
    /// Serve NBD over TCP by TLS 1.3 alone, with the certificate chain of this PEM file.
    #[arg(long, value_name = "FILE", requires = "nbd_tls_key", requires = "nbd")]
    pub nbd_tls_cert: Option<PathBuf>,
    /// The certificate's private key, a PEM file.
    #[arg(long, value_name = "FILE", requires = "nbd_tls_cert")]
    pub nbd_tls_key: Option<PathBuf>,
    /// Let in only NBD clients with a certificate of an authority of this PEM file.
    #[arg(long, value_name = "FILE", requires = "nbd_tls_cert")]
    pub nbd_tls_ca: Option<PathBuf>,
}

/// `yagura volume status`
#[derive(Args, Debug)]
pub struct VolumeStatusArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub of: VolumeOf,
    /// Take each holder for a moment to read it: a host that has the volume attached takes it back.
    #[arg(long)]
    pub take: bool,
}

/// `yagura volume verify`
#[derive(Args, Debug)]
pub struct VolumeVerifyArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub of: VolumeOf,
    /// Take the volume from the host that has it attached, or had it last: which of both can't be told.
    #[arg(long)]
    pub take: bool,
}

/// `yagura volume replace`
#[derive(Args, Debug)]
pub struct VolumeReplaceArgs {
    #[command(flatten)]
    pub common: Common,
    /// The namespace that is to be the holder: as --replica of `volume create`.
    #[arg(long, value_name = "SPEC")]
    pub with: HolderSpec,
    /// The slot: the how-many-th holder it is, from 0.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub slot: u8,
    /// Another holder of the volume, which says what the volume is. A host that has it attached loses it for a moment.
    #[arg(long, value_name = "SPEC")]
    pub like: HolderSpec,
    #[command(flatten)]
    pub host: NvmeHost,
    /// Take a namespace that is in use, and destroy what it holds.
    #[arg(long)]
    pub force: bool,
}

/// `yagura volume recover`
#[derive(Args, Debug)]
pub struct VolumeRecoverArgs {
    #[command(flatten)]
    pub common: Common,
    /// The holders of the new volume: the copy in its slot, and namespaces in place of those that are lost.
    #[command(flatten)]
    pub holders: VolumeHolders,
    /// The slot of the copy, from 0.
    #[arg(long, value_name = "SLOT", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub from: u8,
    /// How large the volume was, where no holder's record can be read that says so.
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Lose writes that were acknowledged and that the copy has not, and what the other namespaces hold. Without it: say what.
    #[arg(long)]
    pub force: bool,
}
