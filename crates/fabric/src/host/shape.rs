//! What is behind an association: identify pages as geometry and limits.

use device::{NamespaceInfo, TRANSFER_BYTES_MAX};
use engine::Buf;
use nvme::identify::{
    Cns, IdentifyController, IdentifyNamespace, IdentifyNvmController, LbaFormat, descriptor, descriptors, oncs,
};
use nvme::register::Capabilities;

use super::admin::{Admin, read_page};
use super::error::ConnectError;
use super::options::Options;
use super::zoned::{self, Known, Zones};

/// Blocks that the block count field of a command can say.
const COMMAND_BLOCKS_MAX: u32 = 1 << 16;
/// Namespaces of a subsystem that are looked at; a list goes on beyond. Guessed: as many as one page of a list names.
pub const NAMESPACES_MAX: usize = 1024;

/// What a controller says of itself.
#[derive(Clone, Copy)]
pub(super) struct Controller {
    pub(super) id: u16,
    pub(super) page: IdentifyController,
    pub(super) capabilities: Capabilities,
    pub(super) dataless: Dataless,
}

impl Controller {
    /// Identifies the controller that `admin` is connected with.
    pub(super) async fn identify(
        admin: &Admin<'_>,
        id: u16,
        capabilities: Capabilities,
    ) -> Result<Controller, ConnectError> {
        let page = read_page(&admin.identify(Cns::CONTROLLER, 0).await?);
        let dataless = match admin.identify(Cns::CSI_CONTROLLER, 0).await {
            // A controller from before NVMe 2.0 does not have the page; no limit is worth a connection.
            Err(ConnectError::Refused { .. } | ConnectError::NoAnswer { .. }) => Dataless::default(),
            page => Dataless::of(&read_page(&page?), capabilities),
        };
        Ok(Controller { id, page, capabilities, dataless })
    }

    /// Commands under way at a time that a queue of it takes: one entry of a queue stays empty (NVMe Base 2.0 §3.3.1.5), and
    /// MAXCMD 0 states nothing.
    pub(super) fn commands_max(&self) -> u32 {
        let by_entries = self.capabilities.queue_entries_max() - 1;
        match self.page.maxcmd.get() {
            0 => by_entries,
            most => by_entries.min(u32::from(most)),
        }
        .max(1)
    }
}

/// How much a command without data may be for, in bytes (Deallocate: in blocks); `None`: the controller does not say. From
/// CNS 06h of the NVM Command Set (NVM Command Set 1.0 figure 102).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Dataless {
    write_zeroes: Option<u64>,
    verify: Option<u64>,
    write_uncorrectable: Option<u64>,
    deallocate_blocks: Option<u64>,
}

impl Dataless {
    fn of(page: &IdentifyNvmController, capabilities: Capabilities) -> Dataless {
        let unit = u64::from(capabilities.page_bytes_min());
        let bytes = |power: u8| (power != 0).then(|| unit.checked_mul(1u64.checked_shl(power.into())?)).flatten();
        let deallocate = [u64::from(page.dmrsl.get()), page.dmsl.get()].into_iter().filter(|&blocks| blocks != 0).min();
        Dataless {
            write_zeroes: bytes(page.wzsl),
            verify: bytes(page.vsl),
            write_uncorrectable: bytes(page.wusl),
            deallocate_blocks: deallocate,
        }
    }
}

/// A namespace as it was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) info: NamespaceInfo,
    pub(super) limits: Limits,
}

/// What the controller takes, beyond what [`NamespaceInfo`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    /// Its zones, if it has zones.
    pub(super) zones: Option<Zones>,
    /// Blocks of one read, write or compare (MDTS).
    pub(super) command_blocks_max: u32,
    pub(super) compare: bool,
    /// Blocks of one such command; 0: it is not supported.
    pub(super) write_zeroes: u32,
    pub(super) deallocate: u32,
    pub(super) verify: u32,
    pub(super) write_uncorrectable: u32,
    /// The ANA group; 0: none.
    pub(super) ana_group: u32,
}

/// Identifies namespace `nsid` of `options`' subsystem.
pub(super) async fn find(
    admin: &Admin<'_>,
    options: &Options,
    controller: &Controller,
    nsid: u32,
) -> Result<Found, ConnectError> {
    let namespace = identify_namespace(admin, options, nsid).await?;
    let nguid = match namespace.nguid {
        none if none == [0; 16] => identity_from_descriptors(admin, nsid, &namespace).await?,
        nguid => nguid,
    };
    let known = Known {
        capabilities: controller.capabilities,
        mdts: controller.page.mdts,
        format: format_index(&namespace),
        block_power: format_of(&namespace).lbads,
        blocks: namespace.nsze.get(),
    };
    let zones = zoned::find(admin, nsid, known).await?;
    shape(nsid, controller, &namespace, nguid, zones)
}

/// The active namespaces (CNS 02h), or those that answer where there is no such list.
pub(super) async fn active(
    admin: &Admin<'_>,
    options: &Options,
    controller: &Controller,
) -> Result<Vec<u32>, ConnectError> {
    let page = match admin.identify(Cns::ACTIVE_NAMESPACES, 0).await {
        Err(ConnectError::Refused { .. }) => return probe(admin, options, controller).await,
        page => page?,
    };
    let words = page.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    Ok(words.take_while(|&nsid| nsid != 0).collect())
}

/// Asks for each namespace that there may be: for controllers from before NVMe 1.1, and others without the list.
async fn probe(admin: &Admin<'_>, options: &Options, controller: &Controller) -> Result<Vec<u32>, ConnectError> {
    let mut found = Vec::new();
    for nsid in 1..=controller.page.nn.get().min(NAMESPACES_MAX as u32) {
        match identify_namespace(admin, options, nsid).await {
            Ok(_) => found.push(nsid),
            Err(ConnectError::NoNamespace { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

async fn identify_namespace(
    admin: &Admin<'_>,
    options: &Options,
    nsid: u32,
) -> Result<IdentifyNamespace, ConnectError> {
    let none = || ConnectError::NoNamespace { subsystem: options.subsystem.clone(), nsid };
    let page = match admin.identify(Cns::NAMESPACE, nsid).await {
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
    nsid: u32,
    namespace: &IdentifyNamespace,
) -> Result<[u8; 16], ConnectError> {
    let page = match admin.identify(Cns::DESCRIPTORS, nsid).await {
        // A controller from before NVMe 1.3 does not have the list.
        Err(ConnectError::Refused { .. }) => Buf::default(),
        page => page?,
    };
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
    Err(ConnectError::Unusable { nsid, reason })
}

/// The number of the format that a namespace has (NVM Command Set 1.0 figure 97: bits 3:0, then 5:4 in bits 6:5).
pub(super) fn format_index(namespace: &IdentifyNamespace) -> usize {
    usize::from(namespace.flbas & 0xF | (namespace.flbas >> 1) & 0x30)
}

/// The format that a namespace has.
pub(super) fn format_of(namespace: &IdentifyNamespace) -> LbaFormat {
    namespace.lbaf[format_index(namespace)]
}

/// Geometry and limits from the identify pages (NVM Command Set 1.0 figure 97, NVMe Base 2.0 figure 275).
fn shape(
    nsid: u32,
    of: &Controller,
    namespace: &IdentifyNamespace,
    nguid: [u8; 16],
    zones: Option<Zones>,
) -> Result<Found, ConnectError> {
    let (controller, capabilities) = (&of.page, of.capabilities);
    let unusable = |reason: String| ConnectError::Unusable { nsid, reason };
    let format = plain_format(namespace).map_err(unusable)?;
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
    // Both halves are under way together.
    let fused = controller.fuses.get() & 1 != 0 && of.commands_max() >= 2 && zones.is_none();
    let supports = |bit| controller.oncs.get() & bit != 0;
    let preferred = |zero_based: u16| if namespace.nsfeat & 1 << 4 != 0 { u32::from(zero_based) + 1 } else { 1 };
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
        // Blocks that were deallocated do, and Write Zeroes can be told to deallocate.
        deallocated_reads_zero: namespace.dlfeat & 0xF == 1 | 1 << 3 && supports(oncs::WRITE_ZEROES) && zones.is_none(),
        thin: namespace.nsfeat & 1 != 0,
        preferred_write_blocks: preferred(namespace.npwg.get()),
        preferred_deallocate_blocks: preferred(namespace.npdg.get()),
        write_uncorrectable: supports(oncs::WRITE_UNCORRECTABLE),
        // Attributes are no part of the wire.
        persists_attributes: false,
        nguid,
    };
    // Where there is no limit of its own, pieces as long as MDTS allows will do.
    let dataless = |bit, bytes: Option<u64>| match (supports(bit), bytes) {
        (false, _) => 0,
        (true, None) => command_blocks_max.min(COMMAND_BLOCKS_MAX),
        (true, Some(bytes)) => (bytes / u64::from(block_size)).clamp(1, COMMAND_BLOCKS_MAX.into()) as u32,
    };
    let deallocate = of.dataless.deallocate_blocks.unwrap_or(u64::MAX).min(u32::MAX.into()) as u32;
    let limits = Limits {
        zones,
        command_blocks_max,
        compare: supports(oncs::COMPARE),
        write_zeroes: dataless(oncs::WRITE_ZEROES, of.dataless.write_zeroes),
        deallocate: if supports(oncs::DATASET_MANAGEMENT) { deallocate } else { 0 },
        verify: dataless(oncs::VERIFY, of.dataless.verify),
        write_uncorrectable: dataless(oncs::WRITE_UNCORRECTABLE, of.dataless.write_uncorrectable),
        ana_group: namespace.anagrpid.get(),
    };
    Ok(Found { info, limits })
}

/// The format of a namespace whose blocks are plain, and of a size that there is.
fn plain_format(namespace: &IdentifyNamespace) -> Result<LbaFormat, String> {
    let format = format_of(namespace);
    if !(9..=16).contains(&format.lbads) {
        return Err(format!("blocks of 2^{} bytes; 512 to 65536 are supported", format.lbads));
    }
    if format.ms.get() != 0 {
        return Err(format!("{} bytes of metadata per block; only plain blocks are supported", format.ms));
    }
    Ok(format)
}
