//! Flags of `yagura nvme`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nvme::reservation::ReservationType;

use super::Common;
use crate::size::Size;

/// `yagura nvme …`
#[derive(Subcommand, Debug)]
pub enum NvmeVerb {
    /// List the subsystems that a discovery controller knows.
    Discover(NvmeDiscoverArgs),
    /// Show a controller, and in short the namespace.
    Identify(NvmeIdentifyArgs),
    /// Show a namespace, field by field.
    IdNs(NvmeIdentifyArgs),
    /// Connect step by step, and say whether the namespace is good for the store. Writes nothing.
    ConnectTest(NvmeIdentifyArgs),
    /// Read blocks.
    Read(NvmeReadArgs),
    /// Write blocks.
    Write(NvmeWriteArgs),
    /// Show or change the reservations of a namespace.
    Reservations(NvmeReservationsArgs),
    /// Make a key by which a host or a target authenticates itself (DH-HMAC-CHAP).
    GenDhchapKey(GenDhchapKeyArgs),
    /// Make a pre-shared key for TLS, which both the host and the target get.
    GenTlsKey(GenTlsKeyArgs),
    /// Check a key file for TLS, and show the identity under which a host offers it.
    CheckTlsKey(CheckTlsKeyArgs),
}

/// `yagura nvme gen-tls-key`
#[derive(Args, Debug)]
pub struct GenTlsKeyArgs {
    #[command(flatten)]
    pub common: Common,
    /// New file for the key; only its owner will be able to read it.
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Hash of the key and of the connections' cipher suite: sha256 or sha384.
    #[arg(long, value_name = "NAME", default_value = "sha256")]
    pub hash: String,
    /// Use the key as it is, not transformed for each host.
    #[arg(long)]
    pub no_transform: bool,
}

/// `yagura nvme check-tls-key`
#[derive(Args, Debug)]
pub struct CheckTlsKeyArgs {
    #[command(flatten)]
    pub common: Common,
    /// File with the key.
    pub file: PathBuf,
    /// The host.
    #[arg(long, value_name = "NQN", requires = "nqn")]
    pub host_nqn: Option<String>,
    /// The subsystem.
    #[arg(long, value_name = "NQN", requires = "host_nqn")]
    pub nqn: Option<String>,
    /// Version of the identity: 0 or 1.
    #[arg(long, value_name = "VERSION", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub tls_identity: u8,
    /// Derive keys as nvme-cli before 2.14 does.
    #[arg(long)]
    pub tls_legacy: bool,
}

/// What `yagura nvme reservations` does.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReservationVerb {
    /// Who is registered, and who holds the reservation.
    Report,
    /// Become a registrant with --key; with --new-key put that in its place.
    Register,
    /// Cease to be a registrant.
    Unregister,
    /// Take the reservation, if nobody holds it.
    Acquire,
    /// Take it, or registrations, from the hosts with --preempt-key.
    Preempt,
    /// Give the reservation up.
    Release,
    /// Drop the reservation and all registrations.
    Clear,
}

/// `yagura nvme reservations`
#[derive(Args, Debug)]
pub struct NvmeReservationsArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub namespace: NvmeNamespace,
    /// What to do.
    #[arg(value_enum)]
    pub verb: ReservationVerb,
    /// Identifier of this host, 32 hexadecimal digits or a UUID: reservations belong to it and the host's name, and last longer
    /// than this command. Without --host-nqn the name is made from it.
    #[arg(long, value_name = "ID", required_if_eq_any = [("verb", "register"), ("verb", "unregister"), ("verb", "acquire"),
        ("verb", "preempt"), ("verb", "release"), ("verb", "clear")])]
    pub host_id: Option<String>,
    /// Key of this host, decimal or 0x and hexadecimal.
    #[arg(long, value_name = "KEY", value_parser = key, required_if_eq_any = [("verb", "register"), ("verb", "unregister"),
        ("verb", "acquire"), ("verb", "preempt"), ("verb", "release"), ("verb", "clear")])]
    pub key: Option<u64>,
    /// Key in place of --key.
    #[arg(long, value_name = "KEY", value_parser = key)]
    pub new_key: Option<u64>,
    /// Key of those who are preempted; 0: all registrants.
    #[arg(long, value_name = "KEY", value_parser = key, required_if_eq("verb", "preempt"))]
    pub preempt_key: Option<u64>,
    /// Preempting: abort what those hosts have under way.
    #[arg(long)]
    pub abort: bool,
    /// Type of the reservation: write-exclusive, exclusive-access, either also with -registrants or -all-registrants.
    #[arg(long = "type", value_name = "TYPE", value_parser = reservation_type, default_value = "write-exclusive")]
    pub rtype: ReservationType,
    /// Registering: reservations of the namespace survive power loss.
    #[arg(long)]
    pub persist: bool,
}

fn key(text: &str) -> Result<u64, String> {
    let read = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    read.map_err(|_| format!("{text:?} is no key: give 64 bits in decimal, or 0x and hexadecimal digits"))
}

fn reservation_type(text: &str) -> Result<ReservationType, String> {
    let found = ReservationType::ALL.into_iter().find(|rtype| rtype.label() == text);
    found.ok_or_else(|| format!("{text:?} is none of {}", ReservationType::ALL.map(ReservationType::label).join(", ")))
}

/// `yagura nvme gen-dhchap-key`
#[derive(Args, Debug)]
pub struct GenDhchapKeyArgs {
    #[command(flatten)]
    pub common: Common,
    /// New file for the key; only its owner will be able to read it.
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Hash by which the key is transformed for each name, which also says how long it is: sha256, sha384, sha512, none.
    #[arg(long, value_name = "NAME", default_value = "sha256")]
    pub hash: String,
    /// Transform it for this host (or subsystem, for a controller's key) right now: it then serves that one alone.
    #[arg(long, value_name = "NQN")]
    pub nqn: Option<String>,
}

/// Who connects, and what it shows and wants to see.
#[derive(Args, Clone, Debug, Default)]
pub struct NvmeHost {
    /// Name of this host, as targets know it; default: a random one.
    #[arg(long, value_name = "NQN")]
    pub host_nqn: Option<String>,
    /// File with the key by which this host authenticates itself (DH-HMAC-CHAP).
    #[arg(long, value_name = "FILE", requires = "host_nqn")]
    pub dhchap_key_file: Option<PathBuf>,
    /// File with the key by which the target has to authenticate itself.
    #[arg(long, value_name = "FILE", requires = "dhchap_key_file")]
    pub dhchap_ctrl_key_file: Option<PathBuf>,
    /// Connect over TLS 1.3, with a key that the authentication makes anew for each association (secure channel concatenation).
    #[arg(long, requires = "dhchap_key_file", conflicts_with = "tls_key_file")]
    pub concat: bool,
    /// Connect over TLS 1.3, with the key of --tls-key-file.
    #[arg(long, requires = "tls_key_file")]
    pub tls: bool,
    /// File with the pre-shared key for TLS; the target must have the same.
    #[arg(long, value_name = "FILE", requires = "host_nqn")]
    pub tls_key_file: Option<PathBuf>,
    /// Version of the identity under which the key is offered: 0 for targets that know no other.
    #[arg(long, value_name = "VERSION", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub tls_identity: u8,
    /// Derive keys as nvme-cli before 2.14 does, for targets whose keys were made so.
    #[arg(long, requires = "tls_key_file")]
    pub tls_legacy: bool,
}

/// `yagura nvme discover`
#[derive(Args, Debug)]
pub struct NvmeDiscoverArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub host: NvmeHost,
    /// Address of the discovery controller.
    pub address: SocketAddr,
    /// Ask the discovery services that it refers to as well.
    #[arg(long)]
    pub follow: bool,
    /// Stay connected and print the log again whenever it changes, until stopped; with --follow those of all services.
    #[arg(long)]
    pub watch: bool,
}

/// Further paths to a namespace.
#[derive(Args, Clone, Debug)]
pub struct NvmePaths {
    /// Another address of the subsystem; may be repeated. Paths are used as their ANA states say.
    #[arg(long, value_name = "ADDRESS")]
    pub path: Vec<SocketAddr>,
    /// How long a command may take in all while paths are lost, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub deadline: u64,
}

/// A namespace of a target.
#[derive(Args, Clone, Debug)]
pub struct NvmeNamespace {
    /// Address of the target.
    pub address: SocketAddr,
    /// Subsystem; default: the only one that is discovered at the address.
    #[arg(long, value_name = "NQN")]
    pub nqn: Option<String>,
    /// Namespace id.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nsid: u32,
    /// Protect PDU headers by CRC32C.
    #[arg(long)]
    pub header_digest: bool,
    /// Protect data by CRC32C.
    #[arg(long)]
    pub data_digest: bool,
    /// After how many seconds without a sign of life the target gives us up (KATO); default: 5, over several paths 2. Longer
    /// for a target that computes for longer than that while we authenticate.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=u64::from(u32::MAX / 1000)))]
    pub keep_alive: Option<u64>,
    /// How long each step of connecting, and each command, may take, in seconds; default: 5 and 10. Longer for a slow target.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: Option<u64>,
    #[command(flatten)]
    pub host: NvmeHost,
}

/// `yagura nvme identify`, `id-ns` and `connect-test`
#[derive(Args, Debug)]
pub struct NvmeIdentifyArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub namespace: NvmeNamespace,
}

/// `yagura nvme read`
#[derive(Args, Debug)]
pub struct NvmeReadArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub namespace: NvmeNamespace,
    #[command(flatten)]
    pub paths: NvmePaths,
    /// First block.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub lba: u64,
    /// How many bytes to read; default: one block.
    #[arg(long, value_name = "SIZE")]
    pub length: Option<Size>,
    /// Write what is read to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Compare with the pattern of this seed (written by `write --pattern`) instead of giving the bytes out.
    #[arg(long, value_name = "SEED", conflicts_with = "file")]
    pub verify_pattern: Option<u64>,
}

/// `yagura nvme write`
#[derive(Args, Debug)]
pub struct NvmeWriteArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub namespace: NvmeNamespace,
    #[command(flatten)]
    pub paths: NvmePaths,
    /// First block.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub lba: u64,
    /// Write the bytes of this file; the last block is filled up with zeroes.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["stdin", "pattern"])]
    pub file: Option<PathBuf>,
    /// Write the bytes of standard input.
    #[arg(long, conflicts_with_all = ["file", "pattern"])]
    pub stdin: bool,
    /// Write a pattern that depends on this seed and the place.
    #[arg(long, value_name = "SEED", requires = "length", conflicts_with = "file")]
    pub pattern: Option<u64>,
    /// How many bytes of the pattern to write.
    #[arg(long, value_name = "SIZE", requires = "pattern")]
    pub length: Option<Size>,
    /// Acknowledge each write only when it is stable (force unit access). Where the controller has a volatile cache that is done
    /// in any case, since the connection may be lost and the target restarted between a write and a flush.
    #[arg(long)]
    pub fua: bool,
}
