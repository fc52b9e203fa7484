//! Identify pages: what the target says of itself (NVMe Base 2.0 §5.17, NVM Command Set 1.0 §4.1.5).
//!
//! Every bit here is a promise; what is not built is not set.

use device::{Namespace, ZonedInfo};
use engine::{Buf, View};
use nvme::ana::{ANACAP_STATES, CMIC_ANA, CMIC_CONTROLLERS, CMIC_PORTS};
use nvme::feature::async_event_config;
use nvme::identify::{
    Cns, IdentifyController, IdentifyNamespace, IdentifyNvmController, LbaFormat, ascii_field, descriptor, oacs, oncs,
};
use nvme::management::{CONTROLLER_LIST_MAX, controller_list_bytes};
use nvme::reservation::rescap;
use nvme::zns::{IdentifyZoned, IdentifyZonedController, NO_LIMIT, READ_ACROSS_ZONES, command_set};
use nvme::{AnaState, CONTROLLER_ID_DYNAMIC, NSID_ALL, PAGE_BYTES, Status, Submission, VERSION};
use zerocopy::{FromZeros, IntoBytes};

use super::config::Profile;
use super::controller::Controller;
use super::io;
use super::limits::{
    ABORTS_MAX, ANA_GROUPS_MAX, ANA_TRANSITION_SECONDS_MAX, ASYNC_EVENTS_MAX, CONTROLLERS_MAX, COPY_RANGES_MAX,
    ERROR_ENTRIES_MAX, KEEP_ALIVE_GRANULARITY_100MS, NSID_MAX, SHUTDOWN_TIME_US_MAX,
};
use super::shared::{Attached, Shared};

const MODEL: &str = "Yagura";
/// CSI of the NVM command set.
const CSI_NVM: u8 = command_set::NVM;
/// WZSL, as a power of two of pages: 32 MiB. Chosen: a disk that has to write all of it takes well below a second.
const WRITE_ZEROES_PAGES_MAX: u8 = 13;

/// Answers an Identify command with a page, or with the status that refuses it.
pub(super) fn identify(shared: &Shared, controller: &Controller, command: &Submission) -> Result<View, Status> {
    let cns = Cns(command.cdw10.get() as u8);
    let csi = (command.cdw11.get() >> 24) as u8;
    let first = (command.cdw10.get() >> 16) as u16; // CNTID
    let nsid = command.nsid.get();
    if controller.is_discovery() && cns != Cns::CONTROLLER {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    let of_command_set = [
        Cns::CSI_NAMESPACE,
        Cns::CSI_CONTROLLER,
        Cns::CSI_ACTIVE_NAMESPACES,
        Cns::CSI_ALLOCATED_NAMESPACES,
        Cns::CSI_ALLOCATED_NAMESPACE,
    ];
    let known = csi == CSI_NVM || csi == command_set::ZONED && controller.has_all_sets();
    if of_command_set.contains(&cns) && !known {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    let profile = &shared.config.profile;
    let namespaces = shared.namespaces(controller);
    let managed = shared.may_manage(controller);
    let all = || shared.allocated(controller, |_, _| true);
    if of_command_set.contains(&cns) && csi == command_set::ZONED {
        return zoned(&namespaces, profile, managed.then(all).as_deref(), cns, nsid);
    }
    match cns {
        Cns::CONTROLLER => Ok(page(controller_page(shared, controller, &namespaces).as_bytes())),
        Cns::NAMESPACE | Cns::CSI_NAMESPACE | Cns::INDEPENDENT_NAMESPACE if nsid == NSID_ALL && managed => {
            Ok(common_page(shared, controller, cns))
        }
        Cns::NAMESPACE => whole_page(&namespaces, nsid, profile),
        Cns::ACTIVE_NAMESPACES => Ok(page(&active_list(&namespaces, nsid, None)?)),
        Cns::CSI_ACTIVE_NAMESPACES => Ok(page(&active_list(&namespaces, nsid, Some(csi))?)),
        Cns::DESCRIPTORS => {
            let found = find(&namespaces, nsid)?.ok_or(Status::INVALID_NAMESPACE.do_not_retry())?;
            Ok(page(&descriptor_list(found)))
        }
        Cns::CSI_CONTROLLER => Ok(page(nvm_controller_page(profile).as_bytes())),
        // No storage tags and no extended formats: all zero, for namespaces that exist.
        Cns::CSI_NAMESPACE => {
            find(&namespaces, nsid)?.ok_or(Status::INVALID_NAMESPACE.do_not_retry())?;
            Ok(page(&[]))
        }
        Cns::INDEPENDENT_NAMESPACE => {
            let found = find(&namespaces, nsid)?.ok_or(Status::INVALID_NAMESPACE.do_not_retry())?;
            Ok(page(&independent_page(found, profile)))
        }
        Cns::ALLOCATED_NAMESPACES if managed => Ok(page(&active_list(&all(), nsid, None)?)),
        Cns::CSI_ALLOCATED_NAMESPACES if managed => Ok(page(&active_list(&all(), nsid, Some(csi))?)),
        Cns::ALLOCATED_NAMESPACE if managed => whole_page(&all(), nsid, profile),
        Cns::CSI_ALLOCATED_NAMESPACE if managed => find(&all(), nsid).map(|_| page(&[])),
        Cns::NAMESPACE_CONTROLLERS if nsid == NSID_ALL => Err(Status::INVALID_FIELD.do_not_retry()),
        Cns::NAMESPACE_CONTROLLERS => {
            find(&all(), nsid)?.ok_or(Status::INVALID_NAMESPACE.do_not_retry())?;
            Ok(page(&controller_list_bytes(&shared.controllers(controller.subsystem(), Some(nsid), first))))
        }
        Cns::CONTROLLERS => Ok(page(&controller_list_bytes(&shared.controllers(controller.subsystem(), None, first)))),
        // One vector per combination of command sets: there is one, with all that there are.
        Cns::COMMAND_SETS if first == CONTROLLER_ID_DYNAMIC || first == controller.id() => {
            let zoned = u8::from(controller.offers_all_sets()) << command_set::ZONED;
            Ok(page(&[1 << CSI_NVM | zoned]))
        }
        _ => Err(Status::INVALID_FIELD.do_not_retry()),
    }
}

/// Of a namespace that is not there a page of zeroes.
fn whole_page(namespaces: &[Attached], nsid: u32, profile: &Profile) -> Result<View, Status> {
    let found = find(namespaces, nsid)?;
    Ok(page(found.map_or_else(IdentifyNamespace::new_zeroed, |found| namespace_page(found, profile)).as_bytes()))
}

/// What is asked of the Zoned Namespace Command Set; `all`: of all namespaces, for who manages them.
fn zoned(
    namespaces: &[Attached],
    profile: &Profile,
    all: Option<&[Attached]>,
    cns: Cns,
    nsid: u32,
) -> Result<View, Status> {
    let invalid = Status::INVALID_FIELD.do_not_retry();
    let namespace = |found: &Attached| found.zoned.as_ref().map(|zoned| page(zoned_namespace_page(zoned).as_bytes()));
    let list =
        |namespaces: &[Attached]| active_list(namespaces, nsid, Some(command_set::ZONED)).map(|list| page(&list));
    match (cns, all) {
        (Cns::CSI_CONTROLLER, _) => Ok(page(zoned_controller_page(namespaces, profile).as_bytes())),
        (Cns::CSI_NAMESPACE, _) => {
            let found = find(namespaces, nsid)?.ok_or(Status::INVALID_NAMESPACE.do_not_retry())?;
            namespace(found).ok_or(invalid)
        }
        (Cns::CSI_ACTIVE_NAMESPACES, _) => list(namespaces),
        (Cns::CSI_ALLOCATED_NAMESPACES, Some(all)) => list(all),
        (Cns::CSI_ALLOCATED_NAMESPACE, Some(all)) => match find(all, nsid)? {
            Some(found) => namespace(found).ok_or(invalid),
            None => Ok(page(&[])),
        },
        _ => Err(invalid),
    }
}

const _: () = assert!(CONTROLLERS_MAX < CONTROLLER_LIST_MAX, "a page holds every controller there can be");

fn page(bytes: &[u8]) -> View {
    let mut page = Buf::zeroed(PAGE_BYTES);
    page[..bytes.len()].copy_from_slice(bytes);
    page.freeze()
}

/// The namespace with an identifier that is valid here; `None` where no namespace is attached under it.
fn find(namespaces: &[Attached], nsid: u32) -> Result<Option<&Attached>, Status> {
    if nsid == 0 || nsid > NSID_MAX {
        return Err(Status::INVALID_NAMESPACE.do_not_retry());
    }
    Ok(namespaces.iter().find(|attached| attached.nsid == nsid))
}

/// A count of blocks as a zero based field; 0 blocks make 0 as well, where the field's use is ruled out elsewhere.
fn zero_based(blocks: u32) -> u16 {
    blocks.saturating_sub(1).min(0xFFFF) as u16
}

fn controller_page(shared: &Shared, controller: &Controller, namespaces: &[Attached]) -> IdentifyController {
    let profile = shared.config.profile;
    let mut page = IdentifyController::new_zeroed();
    page.sn = ascii_field(&shared.serial(controller.subsystem()));
    page.mn = ascii_field(MODEL);
    page.fr = ascii_field(env!("CARGO_PKG_VERSION"));
    page.mdts = profile.mdts;
    page.cntlid = controller.id().into();
    page.ver = VERSION.into();
    page.rtd3e = SHUTDOWN_TIME_US_MAX.into();
    page.ctratt = 1.into(); // 128-bit host identifiers
    page.acl = ABORTS_MAX - 1;
    page.aerl = ASYNC_EVENTS_MAX as u8 - 1;
    page.frmw = 1 << 1 | 1; // one slot, read only
    page.elpe = ERROR_ENTRIES_MAX as u8 - 1;
    page.lpa = 1 << 2; // extended data: parts of log pages
    page.kas = KEEP_ALIVE_GRANULARITY_100MS.into();
    page.maxcmd = profile.io_queue_entries_max.into();
    page.sgls = (1 | 1 << 20 | 1 << 21).into(); // SGLs, offsets in the capsule, transport data blocks
    page.subnqn = controller.subsystem().to_field();
    page.ioccsz = ((64 + profile.in_capsule_bytes_max) / 16).into();
    page.iorcsz = 1.into();
    page.msdbd = 1;
    page.ofcs = 1.into(); // Disconnect
    if controller.is_discovery() {
        page.cntrltype = 2;
        page.oaes = async_event_config::DISCOVERY_CHANGE.into();
        return page;
    }
    page.cntrltype = 1;
    page.lpa |= 1 << 1; // effects log
    page.cmic = CMIC_PORTS | CMIC_CONTROLLERS | CMIC_ANA;
    page.oaes = (async_event_config::NAMESPACE_ATTRIBUTE | async_event_config::ANA_CHANGE).into();
    page.anatt = ANA_TRANSITION_SECONDS_MAX;
    page.anacap = ANACAP_STATES; // bit 6 clear: a namespace may change its group while it is attached
    page.anagrpmax = ANA_GROUPS_MAX.into();
    page.nanagrpid = ANA_GROUPS_MAX.into();
    if let Some(room) = shared.room(controller.subsystem()).filter(|_| shared.may_manage(controller)) {
        page.oacs = oacs::NAMESPACE_MANAGEMENT.into();
        page.tnvmcap = u128::from(room.total).into();
        page.unvmcap = u128::from(room.free).into();
    }
    page.sqes = 6 << 4 | 6;
    page.cqes = 4 << 4 | 4;
    page.nn = NSID_MAX.into();
    page.mnan = NSID_MAX.into();
    let infos = || namespaces.iter().map(|attached| &attached.info);
    page.oncs = (oncs::COMPARE | oncs::SAVE_SELECT | oncs::TIMESTAMP).into();
    if profile.optional_commands {
        let optional = oncs::DATASET_MANAGEMENT | oncs::WRITE_ZEROES | oncs::VERIFY | oncs::COPY | oncs::RESERVATIONS;
        page.oncs = (page.oncs.get() | optional).into();
    }
    if infos().any(|info| info.write_uncorrectable) {
        page.oncs = (page.oncs.get() | oncs::WRITE_UNCORRECTABLE).into();
    }
    page.ocfs = u16::from(profile.optional_commands).into(); // Copy descriptor format 0h
    // Constants, as hosts read this page once, when they connect, and namespaces come later. Without the cache's bit a host
    // sends neither Flush nor FUA, also not to a namespace with a cache that is added then, and its acknowledged data is
    // lost with the power. Where nothing is cached both are done at once. Flush takes single namespaces only.
    page.vwc = 1 | 2 << 1;
    // One block, which every namespace keeps. Each says its own units, which are larger (NSFEAT bit 1).
    page.awun = 0.into();
    page.awupf = 0.into();
    page.acwu = 0.into();
    let fused = infos().any(|info| info.compare_and_write_blocks_max > 0);
    page.fuses = u16::from(fused || namespaces.is_empty()).into();
    page.psd[0].max_power = 0.into(); // not reported
    shared.extension(controller).fill(&mut page);
    page
}

/// The limits of commands that move no data (NVM Command Set 1.0c §4.1.5.4): Write Uncorrectable's is MDTS, that of Write Zeroes
/// what a medium does well within a host's time for a command. The others have none.
fn nvm_controller_page(profile: &Profile) -> IdentifyNvmController {
    let mut page = IdentifyNvmController::new_zeroed();
    page.wusl = profile.mdts;
    page.wzsl = WRITE_ZEROES_PAGES_MAX;
    page
}

fn namespace_page(attached: &Attached, profile: &Profile) -> IdentifyNamespace {
    let info = &attached.info;
    let mut page = IdentifyNamespace::new_zeroed();
    page.nsze = info.blocks.into();
    page.ncap = info.blocks.into();
    // Thin; this namespace's own atomic units follow; and its preferred sizes (OPTPERF).
    page.nsfeat = u8::from(info.thin) | 1 << 1 | 1 << 4;
    page.npwg = zero_based(info.preferred_write_blocks).into();
    page.npwa = page.npwg;
    page.npdg = zero_based(info.preferred_deallocate_blocks).into();
    page.npda = page.npdg;
    page.nows = page.npwg;
    if profile.optional_commands && attached.zoned.is_none() {
        page.mssrl = io::copy_range_blocks_max(info).into();
        page.mcl = io::copy_blocks_max(info).into();
        page.msrc = (COPY_RANGES_MAX - 1) as u8;
    }
    page.nsattr = attached.is_write_protected().into();
    page.nmic = u8::from(!attached.private); // may be attached to several controllers
    page.rescap = rescap_of(attached, profile);
    // Zeroes in a zone are written, and deallocate nothing.
    page.dlfeat = u8::from(info.deallocated_reads_zero) | u8::from(attached.zoned.is_none()) << 3;
    page.nawun = zero_based(info.atomic_blocks).into();
    page.nawupf = 0.into();
    page.nacwu = zero_based(info.compare_and_write_blocks_max).into();
    // Capacities are not told over a path that can't reach the namespace (NVMe Base 2.0 §8.1.1.10).
    if !matches!(attached.access, AnaState::Inaccessible | AnaState::PersistentLoss) {
        page.nuse = attached.namespace.used_blocks().into();
        page.nvmcap = u128::from(info.bytes()).into();
    }
    page.anagrpid = attached.group.into();
    page.nguid = info.nguid;
    match attached.formats {
        [] => set_formats(&mut page, &[info.block_size]),
        formats => set_formats(&mut page, formats),
    }
    let format = attached.formats.iter().position(|&size| size == info.block_size).unwrap_or(0);
    page.flbas = format as u8; // there are fewer than 16
    page
}

fn set_formats(page: &mut IdentifyNamespace, block_sizes: &[u32]) {
    page.nlbaf = (block_sizes.len() - 1) as u8;
    for (place, size) in page.lbaf.iter_mut().zip(block_sizes) {
        *place = LbaFormat { ms: 0.into(), lbads: size.trailing_zeros() as u8, rp: 0 };
    }
}

/// What all namespaces that a host can make have in common (NVMe Base 2.0c §5.17.2.1: NSID FFFFFFFFh).
fn common_page(shared: &Shared, controller: &Controller, cns: Cns) -> View {
    let mut common = IdentifyNamespace::new_zeroed();
    common.nsfeat = 1 | 1 << 1 | 1 << 4; // thin; atomic units and preferred sizes of their own
    common.nmic = 1;
    common.rescap = rescap::TYPES | rescap::IGNORE_KEY_1_3 | rescap::PERSIST;
    common.dlfeat = 1 | 1 << 3;
    set_formats(&mut common, shared.formats(controller.subsystem()));
    match cns {
        Cns::NAMESPACE => page(common.as_bytes()),
        Cns::INDEPENDENT_NAMESPACE => page(&[0, common.nmic, common.rescap]),
        _ => page(&[]),
    }
}

/// Those with identifiers above `after`: all, or those of one I/O command set.
fn active_list(namespaces: &[Attached], after: u32, set: Option<u8>) -> Result<[u8; PAGE_BYTES], Status> {
    if after >= 0xFFFF_FFFE {
        return Err(Status::INVALID_NAMESPACE.do_not_retry());
    }
    let mut list = [0; PAGE_BYTES];
    let wanted = namespaces.iter().filter(|attached| set.is_none_or(|set| set == attached.command_set()));
    let nsids = wanted.map(|attached| attached.nsid).filter(|&nsid| nsid > after);
    for (place, nsid) in list.chunks_exact_mut(4).zip(nsids) {
        place.copy_from_slice(&nsid.to_le_bytes());
    }
    Ok(list)
}

fn descriptor_list(attached: &Attached) -> [u8; 25] {
    let mut list = [0; 25];
    list[..4].copy_from_slice(&[descriptor::NGUID, 16, 0, 0]);
    list[4..20].copy_from_slice(&attached.info.nguid);
    list[20..].copy_from_slice(&[descriptor::CSI, 1, 0, 0, attached.command_set()]);
    list
}

fn rescap_of(attached: &Attached, profile: &Profile) -> u8 {
    if !profile.optional_commands || attached.snapshot {
        return 0;
    }
    let persist = if attached.info.persists_attributes { rescap::PERSIST } else { 0 };
    rescap::TYPES | rescap::IGNORE_KEY_1_3 | persist
}

/// I/O Command Set Independent Identify Namespace, CNS 08h (NVMe Base 2.0 figure 280).
fn independent_page(attached: &Attached, profile: &Profile) -> [u8; 24] {
    let mut page = [0; 24];
    page[1] = u8::from(!attached.private); // NMIC: shared
    page[2] = rescap_of(attached, profile);
    page[4..8].copy_from_slice(&attached.group.to_le_bytes()); // ANAGRPID
    page[8] = attached.is_write_protected().into(); // NSATTR
    page[14] = 1; // NSTAT: ready
    debug_assert!(attached.info.blocks > 0);
    page
}

/// Identify Namespace for zones (ZNS 1.1 §4.1.5.1), in the formats that the namespace has: one.
fn zoned_namespace_page(zoned: &ZonedInfo) -> IdentifyZoned {
    let most = |limit: Option<u32>| limit.map_or(NO_LIMIT, |limit| limit.saturating_sub(1));
    let mut page = IdentifyZoned::new_zeroed();
    page.ozcs = READ_ACROSS_ZONES.into();
    page.mar = most(zoned.active_max).into();
    page.mor = most(zoned.open_max).into();
    page.lbafe[0].zsze = zoned.zone_blocks.into();
    page
}

/// Identify Controller for zones (ZNS 1.1 §4.1.5.2): ZASL is what all zoned namespaces take that are attached.
fn zoned_controller_page(namespaces: &[Attached], profile: &Profile) -> IdentifyZonedController {
    let bytes = |attached: &Attached| {
        let blocks = attached.zoned?.append_blocks_max.min(attached.info.transfer_blocks_max);
        Some(u64::from(blocks) * u64::from(attached.info.block_size)).filter(|&bytes| bytes > 0)
    };
    let least = namespaces.iter().filter_map(bytes).min();
    let mut page = IdentifyZonedController::new_zeroed();
    // In pages of 4 KiB. 0 is MDTS, so a limit below two pages can't be told: longer appends are refused all the same.
    page.zasl = least.map_or(profile.mdts, |bytes| (bytes.ilog2().saturating_sub(12) as u8).min(profile.mdts));
    page
}
