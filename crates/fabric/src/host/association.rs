//! An association with one namespace of a subsystem: an admin queue and an I/O queue, made and kept together.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use device::{NamespaceInfo, TRANSFER_BYTES_MAX};
use engine::task::{self, Task};
use engine::time;
use nvme::feature::{FeatureId, async_event_config};
use nvme::identify::{Cns, IdentifyController, IdentifyNamespace, descriptor, descriptors, oncs};
use nvme::log::{AsyncEvent, LogId};
use nvme::opcode::AdminOpcode;
use nvme::register::Capabilities;
use nvme::{PAGE_BYTES, Submission};

use super::admin::{Admin, ConnectQueue, read_page};
use super::connect::connect_queue;
use super::error::ConnectError;
use super::link::{Link, LinkError};
use super::options::Options;
use super::queue::{Payload, QUEUE_DEPTH_MAX, QueueConfig};
use super::slot::Ended;

/// Commands under way on an admin queue. Guessed: events, keep alive and one step at a time need three.
const ADMIN_DEPTH: u16 = 8;
/// Entries of an admin queue: one more than it holds commands (NVMe Base 2.0 §3.3.1.5); 32 is the least a target must take.
pub(super) const ADMIN_ENTRIES: u16 = 32;
/// Blocks that the block count field of a command can say.
const COMMAND_BLOCKS_MAX: u32 = 1 << 16;

const _: () = assert!(ADMIN_DEPTH < ADMIN_ENTRIES);

/// What the controller takes, beyond what [`NamespaceInfo`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    /// Blocks of one read, write or compare (MDTS).
    pub(super) command_blocks_max: u32,
    /// Blocks of one Write Zeroes.
    pub(super) write_zeroes_blocks_max: u32,
    pub(super) compare: bool,
    pub(super) write_zeroes: bool,
    pub(super) deallocate: bool,
}

/// Two connected queues and what is known of the namespace behind them.
pub(super) struct Association {
    pub(super) io: Link,
    pub(super) info: Rc<RefCell<NamespaceInfo>>,
    pub(super) limits: Limits,
    admin: Rc<Link>,
    address: SocketAddr,
    _keep_alive: Option<Task<()>>,
    _events: Task<()>,
}

/// The configuration of an admin queue.
pub(super) fn admin_config(header_digest: bool, data_digest: bool) -> QueueConfig {
    QueueConfig {
        depth: ADMIN_DEPTH,
        in_capsule_bytes_max: nvme::tcp::ADMIN_IN_CAPSULE_BYTES,
        header_digest,
        data_digest,
        read_bytes_max: PAGE_BYTES as u32,
    }
}

impl Association {
    /// Connects and enables the controller, identifies the namespace and connects an I/O queue.
    pub(super) async fn connect(options: &Options) -> Result<Association, ConnectError> {
        // A controller that is silent for as long as it would bear with us is as good as gone.
        let patience = if options.keep_alive.is_zero() { options.command_timeout } else { options.keep_alive };
        let config = admin_config(options.header_digest, options.data_digest);
        let kato = options.keep_alive.as_millis().try_into().unwrap_or(u32::MAX);
        let queue = ConnectQueue::admin(ADMIN_ENTRIES, kato);
        let (link, id) = connect_queue(options, config, &queue, patience).await?;
        let admin = Admin { link: &link, address: options.address };
        let capabilities = admin.enable().await?;
        let controller: IdentifyController = read_page(&admin.identify(Cns::CONTROLLER, 0).await?);
        let (info, limits) = identify(&admin, options, &controller, capabilities).await?;
        // Zero based, submission queues low, completion queues high: one of each (NVMe Base 2.0 §5.27.1.5).
        admin.set_feature(FeatureId::NUMBER_OF_QUEUES, 0).await?;
        let io = connect_io(options, &controller, capabilities, id).await?;
        Association::start(link, io, options, info, limits, controller.oaes.get()).await
    }

    async fn start(
        admin: Link,
        io: Link,
        options: &Options,
        info: NamespaceInfo,
        limits: Limits,
        events_offered: u32,
    ) -> Result<Association, ConnectError> {
        let (admin, info) = (Rc::new(admin), Rc::new(RefCell::new(info)));
        let verbs = Admin { link: &admin, address: options.address };
        // Asked for only where it is offered: Linux's target refuses the whole feature for one bit that it does not know.
        if events_offered & async_event_config::NAMESPACE_ATTRIBUTE != 0 {
            verbs.set_feature(FeatureId::ASYNC_EVENT_CONFIG, async_event_config::NAMESPACE_ATTRIBUTE).await?;
        }
        let keep_alive = (!options.keep_alive.is_zero())
            .then(|| task::spawn(keep_alive(Rc::clone(&admin), options.address, options.keep_alive / 2)));
        let events = task::spawn(watch_events(Rc::clone(&admin), options.clone(), Rc::clone(&info)));
        let address = options.address;
        Ok(Association { io, info, limits, admin, address, _keep_alive: keep_alive, _events: events })
    }

    /// Whether both queues are there.
    pub(super) fn is_alive(&self) -> bool {
        !self.io.is_closed() && !self.admin.is_closed()
    }

    /// Ends when one of the queues has ended, and so the association.
    pub(super) async fn closed(&self) -> LinkError {
        let (mut io, mut admin) = (pin!(self.io.closed()), pin!(self.admin.closed()));
        let error = std::future::poll_fn(|cx| match io.as_mut().poll(cx) {
            Poll::Ready(error) => Poll::Ready(error),
            Poll::Pending => admin.as_mut().poll(cx),
        })
        .await;
        self.shutdown();
        error
    }

    /// Ends both queues at once.
    pub(super) fn shutdown(&self) {
        self.io.shutdown();
        self.admin.shutdown();
    }

    /// Tells the controller that the host is leaving, and ends both queues.
    pub(super) async fn leave(&self) {
        // It learns of it from the connections' end otherwise.
        let _ = Admin { link: &self.admin, address: self.address }.announce_shutdown().await;
        self.shutdown();
    }
}

async fn connect_io(
    options: &Options,
    controller: &IdentifyController,
    capabilities: Capabilities,
    controller_id: u16,
) -> Result<Link, ConnectError> {
    // One entry of a queue stays empty (NVMe Base 2.0 §3.3.1.5); MAXCMD 0 states nothing.
    let entries_max = capabilities.queue_entries_max().min(u32::from(QUEUE_DEPTH_MAX) + 1);
    let commands_max = match controller.maxcmd.get() {
        0 => entries_max - 1,
        most => (entries_max - 1).min(u32::from(most)),
    };
    let depth = u32::from(options.depth).min(commands_max).max(2) as u16;
    // IOCCSZ counts the submission entry too; an ICDOFF other than zero does not exist over TCP (NVMe/TCP 1.0 §3.3.2).
    let in_capsule = if controller.icdoff.get() == 0 { controller.ioccsz.get().saturating_mul(16) } else { 0 };
    let config = QueueConfig {
        depth,
        in_capsule_bytes_max: in_capsule.saturating_sub(64).min(TRANSFER_BYTES_MAX as u32),
        header_digest: options.header_digest,
        data_digest: options.data_digest,
        read_bytes_max: TRANSFER_BYTES_MAX as u32,
    };
    let queue = ConnectQueue { id: 1, entries: depth + 1, controller: controller_id, keep_alive_ms: 0 };
    let (link, _) = connect_queue(options, config, &queue, options.command_timeout).await?;
    Ok(link)
}

async fn identify(
    admin: &Admin<'_>,
    options: &Options,
    controller: &IdentifyController,
    capabilities: Capabilities,
) -> Result<(NamespaceInfo, Limits), ConnectError> {
    let namespace = identify_namespace(admin, options).await?;
    let nguid = match namespace.nguid {
        none if none == [0; 16] => identity_from_descriptors(admin, options, &namespace).await?,
        nguid => nguid,
    };
    shape(options.nsid, controller, capabilities, &namespace, nguid)
}

async fn identify_namespace(admin: &Admin<'_>, options: &Options) -> Result<IdentifyNamespace, ConnectError> {
    let none = || ConnectError::NoNamespace { subsystem: options.subsystem.clone(), nsid: options.nsid };
    let page = match admin.identify(Cns::NAMESPACE, options.nsid).await {
        Err(ConnectError::Refused { status, .. }) if status.kind() == nvme::Status::INVALID_NAMESPACE => {
            return Err(none());
        }
        page => page?,
    };
    let namespace: IdentifyNamespace = read_page(&page);
    // An inactive namespace is a page of zeroes (NVM Command Set 1.0 §4.1.5.1).
    if namespace.nsze.get() == 0 { Err(none()) } else { Ok(namespace) }
}

/// The UUID or EUI-64 of a namespace without an NGUID: some targets have only those.
async fn identity_from_descriptors(
    admin: &Admin<'_>,
    options: &Options,
    namespace: &IdentifyNamespace,
) -> Result<[u8; 16], ConnectError> {
    let page = admin.identify(Cns::DESCRIPTORS, options.nsid).await?;
    let found = descriptors(&page).find(|(kind, _)| [descriptor::UUID, descriptor::NGUID].contains(kind));
    if let Some(value) = found.and_then(|(_, value)| <[u8; 16]>::try_from(value).ok())
        && value != [0; 16]
    {
        return Ok(value);
    }
    if namespace.eui64 != [0; 8] {
        let mut value = [0; 16];
        value[8..].copy_from_slice(&namespace.eui64);
        return Ok(value);
    }
    let reason = "it has no NGUID, UUID or EUI-64, so it could not be told from another one".to_owned();
    Err(ConnectError::Unusable { nsid: options.nsid, reason })
}

/// Geometry and limits from the identify pages (NVM Command Set 1.0 figure 97, NVMe Base 2.0 figure 275).
fn shape(
    nsid: u32,
    controller: &IdentifyController,
    capabilities: Capabilities,
    namespace: &IdentifyNamespace,
    nguid: [u8; 16],
) -> Result<(NamespaceInfo, Limits), ConnectError> {
    let unusable = |reason: String| ConnectError::Unusable { nsid, reason };
    let format = usize::from(namespace.flbas & 0xF | (namespace.flbas >> 1) & 0x30);
    let format = namespace.lbaf[format];
    if !(9..=16).contains(&format.lbads) {
        return Err(unusable(format!("blocks of 2^{} bytes; 512 to 65536 are supported", format.lbads)));
    }
    if format.ms.get() != 0 {
        return Err(unusable(format!("{} bytes of metadata per block; only plain blocks are supported", format.ms)));
    }
    let block_size = 1u32 << format.lbads;
    let transfer_blocks_max = TRANSFER_BYTES_MAX as u32 / block_size;
    let mdts_bytes = match controller.mdts {
        0 => u64::MAX,
        mdts => u64::from(capabilities.page_bytes_min()).checked_shl(u32::from(mdts)).unwrap_or(u64::MAX),
    };
    let command_blocks_max = (mdts_bytes / u64::from(block_size)).min(u64::from(transfer_blocks_max)) as u32;
    if command_blocks_max == 0 {
        return Err(unusable(format!("blocks of {block_size} bytes, transfers of at most {mdts_bytes}")));
    }
    // Zero based; the namespace's own fields count where it says so, and zero there means: as the controller's.
    let own = namespace.nsfeat & 2 != 0;
    let unit = |general: u16, special: u16| 1 + u32::from(if own && special != 0 { special } else { general });
    let preferred = |zero_based: u16| if namespace.nsfeat & 1 << 4 != 0 { u32::from(zero_based) + 1 } else { 1 };
    let fused = controller.fuses.get() & 1 != 0;
    let supports = |bit| controller.oncs.get() & bit != 0;
    let info = NamespaceInfo {
        block_size,
        blocks: namespace.nsze.get(),
        atomic_blocks: unit(controller.awun.get(), namespace.nawun.get()).min(command_blocks_max),
        compare_and_write_blocks_max: match fused {
            true => unit(controller.acwu.get(), namespace.nacwu.get()).min(command_blocks_max),
            false => 0,
        },
        transfer_blocks_max,
        volatile_cache: controller.vwc & 1 != 0,
        volatile_medium: false,
        deallocated_reads_zero: namespace.dlfeat & 7 == 1,
        thin: namespace.nsfeat & 1 != 0,
        preferred_write_blocks: preferred(namespace.npwg.get()),
        preferred_deallocate_blocks: preferred(namespace.npdg.get()),
        // Neither is sent by this host.
        write_uncorrectable: false,
        persists_attributes: false,
        nguid,
    };
    let limits = Limits {
        command_blocks_max,
        // The limit proper is in CNS 06h, which not every target has; MDTS-sized pieces are within it.
        write_zeroes_blocks_max: command_blocks_max.min(COMMAND_BLOCKS_MAX),
        compare: supports(oncs::COMPARE),
        write_zeroes: supports(oncs::WRITE_ZEROES),
        deallocate: supports(oncs::DATASET_MANAGEMENT),
    };
    Ok((info, limits))
}

async fn keep_alive(admin: Rc<Link>, address: SocketAddr, interval: Duration) {
    let admin = Admin { link: &admin, address };
    loop {
        time::sleep(interval).await;
        if let Err(error) = admin.keep_alive().await {
            tracing::warn!(%address, %error, "keep alive failed");
            admin.link.shutdown();
            return;
        }
    }
}

/// Takes the controller's events, one at a time (NVMe Base 2.0 §5.2). Reading the log page that an event names lets the next
/// one of its kind through.
async fn watch_events(admin: Rc<Link>, options: Options, info: Rc<RefCell<NamespaceInfo>>) {
    let verbs = Admin { link: &admin, address: options.address };
    loop {
        let request = Submission::admin(AdminOpcode::ASYNC_EVENT_REQUEST, 0, 0);
        let Ok((Ended::Completed(completion), _)) = admin.execute_whenever(request, Payload::None).await else {
            return;
        };
        if !completion.status().is_success() {
            // Events are not offered, or too many are asked for: keep alive watches the controller all the same.
            return;
        }
        let event = AsyncEvent::from_result(completion.result.get());
        let changed = event == AsyncEvent::NAMESPACE_CHANGED;
        let bytes = if event.log == LogId::CHANGED_NAMESPACES { PAGE_BYTES } else { 512 };
        let acknowledged = verbs.log(event.log, 0, bytes).await;
        if let Err(ConnectError::Link { .. }) = acknowledged {
            return;
        }
        tracing::info!(address = %options.address, ?event, "event from the target");
        if changed && let Err(reason) = look_again(&verbs, &options, &info).await {
            tracing::warn!(address = %options.address, %reason, "the namespace has changed: connecting anew");
            admin.shutdown();
            return;
        }
    }
}

/// Looks at a namespace that has changed: growing is taken note of, anything else is for a new association to judge.
async fn look_again(admin: &Admin<'_>, options: &Options, info: &RefCell<NamespaceInfo>) -> Result<(), ConnectError> {
    let namespace = identify_namespace(admin, options).await?;
    let mut info = info.borrow_mut();
    let format = usize::from(namespace.flbas & 0xF | (namespace.flbas >> 1) & 0x30);
    let same_format = 1u64.checked_shl(u32::from(namespace.lbaf[format].lbads)) == Some(u64::from(info.block_size));
    let same_identity = namespace.nguid == info.nguid || namespace.nguid == [0; 16];
    if !same_format || !same_identity || namespace.nsze.get() < info.blocks {
        let reason = "it has another identity, block size or a smaller size than before".to_owned();
        return Err(ConnectError::Unusable { nsid: options.nsid, reason });
    }
    info.blocks = namespace.nsze.get();
    Ok(())
}
