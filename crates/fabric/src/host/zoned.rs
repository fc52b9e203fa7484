//! What is found of a namespace's zones when it is connected (ZNS 1.1 §4.1.5), and what is asked of them.

use device::{Lba, TRANSFER_BYTES_MAX, ZoneAction, ZonedInfo};
use nvme::Submission;
use nvme::identify::{Cns, descriptor, descriptors};
use nvme::register::Capabilities;
use nvme::zns::{
    IdentifyZoned, IdentifyZonedController, NO_LIMIT, READ_ACROSS_ZONES, ZoneSend, command_set, send_action,
};

use super::admin::{Admin, read_page};
use super::error::ConnectError;

/// What the other pages say that matters for zones.
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) capabilities: Capabilities,
    pub(super) mdts: u8,
    /// The number of the namespace's format, and its block size as a power of two.
    pub(super) format: usize,
    pub(super) block_power: u8,
    pub(super) blocks: u64,
}

/// What is found of a namespace's zones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Zones {
    pub(super) info: ZonedInfo,
    /// Reads may go across a zone's end.
    pub(super) across: bool,
}

/// Looks whether a namespace has zones, and what they are. Only a controller with several I/O command sets has such namespaces.
pub(super) async fn find(admin: &Admin<'_>, nsid: u32, known: Known) -> Result<Option<Zones>, ConnectError> {
    if !known.capabilities.has_command_sets() {
        return Ok(None);
    }
    let list = admin.identify(Cns::DESCRIPTORS, nsid).await?;
    let set = descriptors(&list).find(|(kind, _)| *kind == descriptor::CSI).and_then(|(_, value)| value.first());
    match set.copied().unwrap_or(command_set::NVM) {
        command_set::NVM => return Ok(None),
        command_set::ZONED => {}
        other => {
            let reason = format!("its I/O command set is {other:#x}; NVM and Zoned Namespace are supported");
            return Err(ConnectError::Unusable { nsid, reason });
        }
    }
    let page: IdentifyZoned = read_page(&admin.identify_of(Cns::CSI_NAMESPACE, command_set::ZONED, nsid).await?);
    let of_all: IdentifyZonedController =
        read_page(&admin.identify_of(Cns::CSI_CONTROLLER, command_set::ZONED, 0).await?);
    shape(known, &page, of_all.zasl).map(Some).map_err(|reason| ConnectError::Unusable { nsid, reason })
}

/// Zones from the Identify pages (ZNS 1.1 §4.1.5.1, §4.1.5.2).
fn shape(known: Known, page: &IdentifyZoned, zasl: u8) -> Result<Zones, String> {
    let (blocks, zone_blocks) = (known.blocks, page.lbafe[known.format & 63].zsze.get());
    if zone_blocks == 0 || !blocks.is_multiple_of(zone_blocks) {
        return Err(format!("{blocks} blocks in zones of {zone_blocks}, which is no whole number of zones"));
    }
    let most = |field: u32| (field != NO_LIMIT).then(|| field.saturating_add(1));
    let power = if zasl == 0 { known.mdts } else { zasl };
    let append_bytes = match power {
        0 => u64::MAX,
        power => u64::from(known.capabilities.page_bytes_min()).checked_shl(u32::from(power)).unwrap_or(u64::MAX),
    };
    let append_blocks = append_bytes.min(TRANSFER_BYTES_MAX as u64) >> known.block_power.min(63);
    let info = ZonedInfo {
        zone_blocks,
        open_max: most(page.mor.get()),
        active_max: most(page.mar.get()),
        append_blocks_max: append_blocks.min(zone_blocks) as u32,
    };
    Ok(Zones { info, across: page.ozcs.get() & READ_ACROSS_ZONES != 0 })
}

fn code(action: ZoneAction) -> u8 {
    match action {
        ZoneAction::Close => send_action::CLOSE,
        ZoneAction::Finish => send_action::FINISH,
        ZoneAction::Open => send_action::OPEN,
        ZoneAction::Reset => send_action::RESET,
        ZoneAction::Offline => send_action::OFFLINE,
    }
}

/// A Zone Management Send.
pub(super) fn change(nsid: u32, zone: Option<Lba>, action: ZoneAction) -> Submission {
    ZoneSend { zone: zone.map(|zone| zone.0), action: code(action) }.to_submission(nsid)
}
