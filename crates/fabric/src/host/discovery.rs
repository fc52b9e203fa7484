//! What a target offers: the log of its discovery controller (NVMe Base 2.0 §5.16.1.23).

use std::net::SocketAddr;
use std::time::Duration;

use nvme::Nqn;
use nvme::fabrics::{DiscoveryEntry, DiscoveryHeader, SubsystemType, TransportType, text_field};
use nvme::log::LogId;

use super::admin::{Admin, ConnectQueue, read_page};
use super::association::{ADMIN_ENTRIES, admin_config};
use super::connect::connect_queue;
use super::error::ConnectError;
use super::identity::HostIdentity;
use super::options::Options;

/// The most entries that are read of a log; a longer one is refused. Guessed: far more than any target has.
pub const DISCOVERY_ENTRIES_MAX: u64 = 1024;
/// How often a log that changes while it is read is read anew.
const ATTEMPTS_MAX: u32 = 5;
/// Bytes of the header and of each entry.
const RECORD_BYTES: usize = 1024;

/// A subsystem that a discovery controller tells of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Discovered {
    /// What it is.
    pub kind: SubsystemType,
    /// How to reach it.
    pub transport: TransportType,
    /// Its name.
    pub subsystem: Nqn,
    /// Its address, as the target gives it (for TCP an IP address).
    pub address: String,
    /// Its service, as the target gives it (for TCP a port).
    pub service: String,
}

impl Discovered {
    /// Where to connect to, if the entry is for TCP and its fields are an IP address and a port.
    pub fn socket_address(&self) -> Option<SocketAddr> {
        if self.transport != TransportType::TCP {
            return None;
        }
        Some(SocketAddr::new(self.address.parse().ok()?, self.service.parse().ok()?))
    }
}

/// Asks the discovery controller at `address` what it offers. Takes at most about `timeout` per step.
///
/// # Errors
/// If the controller can't be reached, or its log can't be understood.
pub async fn discover(
    address: SocketAddr,
    host: &HostIdentity,
    timeout: Duration,
) -> Result<Vec<Discovered>, ConnectError> {
    let options =
        Options { host: host.clone(), connect_timeout: timeout, ..Options::new(address, Nqn::discovery(), 0) };
    let queue = ConnectQueue::admin(ADMIN_ENTRIES, 0);
    let (link, _) = connect_queue(&options, admin_config(false, false), &queue, timeout).await?;
    let admin = Admin { link: &link, address };
    admin.enable().await?;
    let entries = read_log(&admin).await;
    // Politeness: the log is here, or is not, whether or not the target takes notice of our leaving.
    let _ = admin.announce_shutdown().await;
    entries
}

async fn read_log(admin: &Admin<'_>) -> Result<Vec<Discovered>, ConnectError> {
    let refused = |ended| ConnectError::NoAnswer { step: "read the discovery log", ended };
    for _ in 0..ATTEMPTS_MAX {
        let header = log_header(admin).await?;
        if header.recfmt.get() != 0 {
            return Err(refused("its record format is unknown"));
        }
        if header.numrec.get() > DISCOVERY_ENTRIES_MAX {
            return Err(refused("it has too many entries"));
        }
        let mut entries = Vec::new();
        for index in 0..header.numrec.get() {
            let page = admin.log(LogId::DISCOVERY, (index + 1) * RECORD_BYTES as u64, RECORD_BYTES).await?;
            entries.push(parse(&read_page(&page)).ok_or_else(|| refused("an entry has fields that are no text"))?);
        }
        // The generation counter tells of a change between the pieces (NVMe Base 2.0 §5.16.1.23).
        if log_header(admin).await?.genctr == header.genctr {
            return Ok(entries);
        }
    }
    Err(refused("it kept changing while it was read"))
}

async fn log_header(admin: &Admin<'_>) -> Result<DiscoveryHeader, ConnectError> {
    Ok(read_page(&admin.log(LogId::DISCOVERY, 0, RECORD_BYTES).await?))
}

fn parse(entry: &DiscoveryEntry) -> Option<Discovered> {
    Some(Discovered {
        kind: SubsystemType(entry.subtype),
        transport: TransportType(entry.trtype),
        subsystem: Nqn::from_field(&entry.subnqn).ok()?,
        address: text_field(&entry.traddr)?.to_owned(),
        service: text_field(&entry.trsvcid)?.to_owned(),
    })
}
