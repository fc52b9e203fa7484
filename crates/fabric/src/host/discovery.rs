//! What targets offer: the log of their discovery controllers (NVMe Base 2.0 §3.1.2.3, §5.16.1.23).
//!
//! [`discover`] asks once; [`follow`] also asks the discovery services that are referred to; [`Discovery`] stays connected
//! and is told of changes; [`watch`] does that for ever, over lost connections too, and [`super::watch_all`] for all services that
//! are referred to.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use engine::backoff::jittered;
use engine::sync::Notify;
use engine::task::{self, LocalFuture, Task};
use engine::time;
use nvme::fabrics::{DiscoveryEntry, DiscoveryHeader, SubsystemType, TransportType, entry_flags, text_field};
use nvme::feature::{FeatureId, async_event_config};
use nvme::identify::{Cns, IdentifyController};
use nvme::log::{AsyncEvent, LogId};
use nvme::opcode::AdminOpcode;
use nvme::register::Configuration;
use nvme::{Nqn, PAGE_BYTES, Submission};

use super::admin::{Admin, read_page};
use super::association::{admin_alone, keep_alive};
use super::error::ConnectError;
use super::identity::HostIdentity;
use super::link::Link;
use super::options::Options;
use super::queue::Payload;
use super::slot::Ended;

/// The most entries that are read of a log; a longer one is refused. Guessed: far more than any target has.
pub const DISCOVERY_ENTRIES_MAX: u64 = 1024;
/// Discovery services that [`follow`] asks, the first one included. Guessed: more than a data centre has.
pub const DISCOVERY_SERVICES_MAX: usize = 64;
/// Referrals in a row that [`follow`] goes along. Chosen: NVMe Base 2.0 §3.1.2.3 wants at least eight levels borne with.
pub const REFERRAL_DEPTH_MAX: u32 = 8;
/// How often a log that changes while it is read is read anew.
const ATTEMPTS_MAX: u32 = 5;
/// Bytes of the header and of each entry.
const RECORD_BYTES: usize = 1024;

/// An entry of a discovery log.
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
    /// The port of the subsystem (PORTID).
    pub port: u16,
    /// A secure channel is required (TREQ bits 1:0 are 01b).
    pub secure_channel_required: bool,
    /// The secure channel that the port speaks (TSAS of TCP; 0 none, 1 TLS 1.2, 2 TLS 1.3).
    pub secure_channel: u8,
    /// A discovery service that keeps connections and tells of changes (EFLAGS.EPCSD).
    pub persistent: bool,
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

/// A discovery log, as it was at one instant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiscoveryLog {
    /// The discovery service that has told it.
    pub service: SocketAddr,
    /// Its generation counter.
    pub generation: u64,
    /// What it names.
    pub entries: Vec<Discovered>,
    /// Entries that are left out because a field of theirs is no text.
    pub skipped: usize,
}

/// Asks the discovery controller at `address` what it offers. Takes at most about `timeout` per step.
///
/// # Errors
/// If the controller can't be reached, or its log can't be understood.
pub fn discover<'a>(
    address: SocketAddr,
    host: &'a HostIdentity,
    timeout: Duration,
) -> LocalFuture<'a, Result<Vec<Discovered>, ConnectError>> {
    Box::pin(async move {
        let options = Options { host: host.clone(), connect_timeout: timeout, ..Options::discovery(address) };
        Ok(ask(&Options { command_timeout: timeout, keep_alive: Duration::ZERO, ..options }).await?.entries)
    })
}

/// Connects, reads the log and leaves.
async fn ask(options: &Options) -> Result<DiscoveryLog, ConnectError> {
    let discovery = Discovery::connect(options).await?;
    let log = discovery.log().await;
    discovery.leave().await;
    log
}

/// Asks the discovery service that `options` names and all that it refers to, each once; at most [`DISCOVERY_SERVICES_MAX`],
/// and no farther than [`REFERRAL_DEPTH_MAX`] referrals away. Returns what each said, or why it said nothing.
pub fn follow<'a>(options: &'a Options) -> LocalFuture<'a, Vec<(SocketAddr, Result<DiscoveryLog, ConnectError>)>> {
    Box::pin(async move {
        let mut asked = BTreeSet::from([options.address]);
        let mut waiting = vec![(options.clone(), 0)];
        let mut all = Vec::new();
        while let Some((options, depth)) = waiting.pop() {
            let log = ask(&Options { keep_alive: Duration::ZERO, ..options.clone() }).await;
            for entry in log.iter().flat_map(|log| &log.entries).filter(|entry| entry.kind == SubsystemType::REFERRAL) {
                let Some(address) = entry.socket_address() else { continue };
                // A service that was asked is not asked again, so that a circle of referrals ends.
                if depth < REFERRAL_DEPTH_MAX && asked.len() < DISCOVERY_SERVICES_MAX && asked.insert(address) {
                    let subsystem = entry.subsystem.clone();
                    waiting.push((Options { address, subsystem, ..options.clone() }, depth + 1));
                }
            }
            all.push((options.address, log));
        }
        all
    })
}

/// A connection with a discovery controller that is kept (NVMe Base 2.0 §3.1.2.3: an explicit persistent connection has a keep
/// alive timeout other than zero). Dropping it ends it.
pub struct Discovery {
    link: Rc<Link>,
    address: SocketAddr,
    tells_changes: bool,
    events: Rc<Events>,
    _tasks: Vec<Task<()>>,
}

/// What the controller has told.
#[derive(Default)]
struct Events {
    changed: Cell<bool>,
    noticed: Notify,
}

impl Discovery {
    /// Connects; [`Options::discovery`] makes the options.
    ///
    /// # Errors
    /// If the controller can't be reached or refuses.
    pub fn connect<'a>(options: &'a Options) -> LocalFuture<'a, Result<Discovery, ConnectError>> {
        Box::pin(async move {
            let address = options.address;
            let (link, _) = admin_alone(options).await?;
            let admin = Admin { link: &link, address };
            let mut tells_changes = false;
            let events = Rc::new(Events::default());
            let mut tasks = Vec::new();
            if !options.keep_alive.is_zero() {
                let page: IdentifyController = read_page(&admin.identify(Cns::CONTROLLER, 0).await?);
                tells_changes = page.oaes.get() & async_event_config::DISCOVERY_CHANGE != 0;
                if tells_changes {
                    let wanted = async_event_config::DISCOVERY_CHANGE;
                    admin.set_feature(FeatureId::ASYNC_EVENT_CONFIG, wanted).await?;
                }
                tasks.push(task::spawn(watch_events(Rc::clone(&link), Rc::clone(&events))));
                tasks.push(task::spawn(keep_alive(Rc::clone(&link), address, options.keep_alive)));
            }
            Ok(Discovery { link, address, tells_changes, events, _tasks: tasks })
        })
    }

    fn admin(&self) -> Admin<'_> {
        Admin { link: &self.link, address: self.address }
    }

    /// Whether the controller tells of changes.
    pub fn tells_changes(&self) -> bool {
        self.tells_changes
    }

    /// Reads the log, all of it at one generation.
    ///
    /// # Errors
    /// The connection is lost, or the log can't be understood.
    pub fn log(&self) -> LocalFuture<'_, Result<DiscoveryLog, ConnectError>> {
        Box::pin(async move {
            let admin = self.admin();
            for _ in 0..ATTEMPTS_MAX {
                let header = log_header(&admin).await?;
                let records = 1 + records(&header)?;
                let mut bytes = Vec::with_capacity(records * RECORD_BYTES);
                while bytes.len() < records * RECORD_BYTES {
                    let piece = (records * RECORD_BYTES - bytes.len()).min(PAGE_BYTES);
                    bytes.extend_from_slice(&admin.log(LogId::DISCOVERY, bytes.len() as u64, piece).await?);
                }
                // The generation counter tells of a change between the pieces (NVMe Base 2.0 §5.16.1.23).
                let (first, last): (DiscoveryHeader, _) = (read_page(&bytes), log_header(&admin).await?);
                if first.genctr == header.genctr && last.genctr == header.genctr {
                    return parse_log(self.address, &bytes);
                }
            }
            Err(refused("it kept changing while it was read"))
        })
    }

    /// Ends when the log has changed (never, where [`Discovery::tells_changes`] is false). A change that was told while nobody
    /// waited is told to the next who does.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn changed(&self) -> Result<(), ConnectError> {
        loop {
            let noticed = self.events.noticed.notified();
            if self.events.changed.take() {
                return Ok(());
            }
            if let Some(error) = self.link.error() {
                return Err(ConnectError::Link { address: self.address, error });
            }
            noticed.await;
        }
    }

    /// Tells the controller that the host is leaving, and disconnects.
    pub async fn leave(self) {
        // Politeness: the log is here, or is not, whether or not the target takes notice of our leaving.
        let _ = self.admin().announce_shutdown(Configuration::ENABLE).await;
    }
}

/// Tells the log to `tell` now and after every change, for ever: connects anew when the connection is lost, and tells why
/// there is none. Where the controller tells of no changes, or keeps no connections, the log is read every keep alive timeout, or
/// every [`Options::backoff_max`] where there is none.
pub async fn watch(options: Options, mut tell: impl FnMut(Result<&DiscoveryLog, &ConnectError>)) -> Infallible {
    let mut backoff = options.backoff();
    let mut known = None;
    loop {
        let since = time::now();
        let error = match keep(&options).await {
            Err(error) => error,
            Ok(discovery) => loop {
                match discovery.log().await {
                    Err(error) => break error,
                    Ok(log) if known.as_ref() == Some(&log) => {}
                    Ok(log) => tell(Ok(known.insert(log))),
                }
                if !discovery.tells_changes() {
                    let every = if options.keep_alive.is_zero() { options.backoff_max } else { options.keep_alive };
                    time::sleep(every).await;
                } else if let Err(error) = discovery.changed().await {
                    break error;
                }
            },
        };
        tell(Err(&error));
        // A service that lets us in only to drop us must not be stormed.
        if since.elapsed() > options.backoff_max {
            backoff.reset();
        }
        time::sleep(jittered(backoff.pause())).await;
    }
}

/// A connection that is kept. Services from before NVMe-oF 1.1 refuse a keep alive timeout; without one they are asked now and
/// then.
async fn keep(options: &Options) -> Result<Discovery, ConnectError> {
    match Discovery::connect(options).await {
        Err(ConnectError::Refused { step, status }) if !options.keep_alive.is_zero() => {
            tracing::debug!(address = %options.address, step, %status, "again, without a keep alive timeout");
            Discovery::connect(&Options { keep_alive: Duration::ZERO, ..options.clone() }).await
        }
        connected => connected,
    }
}

/// Keeps an Asynchronous Event Request under way until the connection ends.
async fn watch_events(link: Rc<Link>, events: Rc<Events>) {
    loop {
        let request = Submission::admin(AdminOpcode::ASYNC_EVENT_REQUEST, 0, 0);
        match link.execute_whenever(request, Payload::None).await {
            Ok((Ended::Completed(completion), _)) if completion.status().is_success() => {
                let event = AsyncEvent::from_result(completion.result.get());
                if event == AsyncEvent::DISCOVERY_CHANGED {
                    events.changed.set(true);
                    events.noticed.notify_all();
                }
            }
            // Refused: there are no events, and the connection's end is to be noticed all the same.
            Ok((Ended::Completed(_), _)) => drop(link.closed().await),
            _ => {}
        }
        if link.is_closed() {
            events.noticed.notify_all();
            return;
        }
    }
}

fn refused(ended: &'static str) -> ConnectError {
    ConnectError::NoAnswer { step: "read the discovery log", ended }
}

/// How many entries follow a header.
fn records(header: &DiscoveryHeader) -> Result<usize, ConnectError> {
    if header.recfmt.get() != 0 {
        return Err(refused("its record format is unknown"));
    }
    match header.numrec.get() {
        count if count <= DISCOVERY_ENTRIES_MAX => Ok(count as usize),
        _ => Err(refused("it has too many entries")),
    }
}

async fn log_header(admin: &Admin<'_>) -> Result<DiscoveryHeader, ConnectError> {
    Ok(read_page(&admin.log(LogId::DISCOVERY, 0, RECORD_BYTES).await?))
}

/// A whole log page: the header and its entries.
pub(super) fn parse_log(service: SocketAddr, page: &[u8]) -> Result<DiscoveryLog, ConnectError> {
    let header: DiscoveryHeader = read_page(page);
    let count = records(&header)?;
    let records: Vec<_> = page.chunks_exact(RECORD_BYTES).skip(1).take(count).collect();
    if records.len() < count {
        return Err(refused("it is shorter than it says"));
    }
    // One that nobody can read keeps nobody from the others.
    let entries: Vec<_> = records.into_iter().filter_map(|record| parse(&read_page(record))).collect();
    let skipped = count - entries.len();
    if skipped > 0 {
        tracing::warn!(%service, skipped, "entries of the discovery log have fields that are no text: left out");
    }
    Ok(DiscoveryLog { service, generation: header.genctr.get(), entries, skipped })
}

fn parse(entry: &DiscoveryEntry) -> Option<Discovered> {
    Some(Discovered {
        kind: SubsystemType(entry.subtype),
        transport: TransportType(entry.trtype),
        subsystem: Nqn::foreign_field(&entry.subnqn).ok()?,
        address: text_field(&entry.traddr)?.to_owned(),
        service: text_field(&entry.trsvcid)?.to_owned(),
        port: entry.portid.get(),
        secure_channel_required: entry.treq & 3 == 1,
        secure_channel: if entry.trtype == TransportType::TCP.0 { entry.tsas[0] } else { 0 },
        persistent: entry.eflags.get() & entry_flags::PERSISTENT != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    fn entry(name: &[u8]) -> DiscoveryEntry {
        let mut entry = DiscoveryEntry::new_zeroed();
        (entry.trtype, entry.subtype) = (TransportType::TCP.0, SubsystemType::NVM.0);
        entry.subnqn[..name.len()].copy_from_slice(name);
        entry.traddr[..9].copy_from_slice(b"192.0.2.1");
        entry.trsvcid[..4].copy_from_slice(b"4420");
        entry
    }

    /// A subsystem of Linux's target bears whatever name its directory has. One such entry once voided the whole log, and nothing
    /// behind that service could be found any more.
    #[test]
    fn a_name_without_the_form_voids_no_log() {
        let mut header = DiscoveryHeader::new_zeroed();
        (header.genctr, header.numrec) = (7.into(), 3.into());
        let mut page = header.as_bytes().to_vec();
        for name in [&b"blktests-subsystem-1"[..], b"\xFF\xFE", b"nqn.2026-01.example.yagura:a"] {
            page.extend_from_slice(entry(name).as_bytes());
        }
        let service = SocketAddr::from(([192, 0, 2, 1], 8009));
        let log = parse_log(service, &page).expect("a log");
        let names: Vec<_> = log.entries.iter().map(|entry| entry.subsystem.as_str()).collect();
        assert_eq!((names, log.skipped), (vec!["blktests-subsystem-1", "nqn.2026-01.example.yagura:a"], 1));
        page.truncate(3 * RECORD_BYTES);
        assert!(parse_log(service, &page).is_err_and(|error| error.to_string().contains("shorter")));
    }
}
