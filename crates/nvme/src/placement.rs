//! Data placement: where a write goes among a medium's reclaim units (NVMe Base 2.1 §7.3, §8.1.10; NVM Command Set 1.1 §3.2.6).
//!
//! A namespace whose endurance group places data has a list of placement handles. A write that names one by its placement
//! identifier goes to the same reclaim units as the others of that handle, apart from those of other handles.

use std::collections::BTreeSet;

use crate::opcode::NvmOpcode;
use crate::words::size;
use crate::{Submission, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// CDW10 of I/O Management Receive, management operation: Reclaim Unit Handle Status.
const RECLAIM_UNIT_HANDLE_STATUS: u32 = 1;
/// CDW12 bits 23:20 of writes, the directive's type: Data Placement.
const DATA_PLACEMENT: u32 = 2 << 20;

/// Head of the reclaim unit handle status (NVMe Base 2.1 §7.3.1.1).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HandleStatusHead {
    reserved: [u8; 14],
    /// NRUHSD: descriptors that follow.
    pub descriptors: U16,
}
size!(HandleStatusHead = 16);

/// One placement handle's state.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HandleStatus {
    /// PID: what a write names.
    pub placement: U16,
    /// RUHID: the reclaim unit handle.
    pub handle: U16,
    /// EARUTR: seconds that the reclaim unit remains active, an estimate.
    pub active_seconds: U32,
    /// RUAMW: blocks that the reclaim unit has room for.
    pub blocks_left: U64,
    reserved: [u8; 16],
}
size!(HandleStatus = 32);

/// Asks namespace `nsid` for the state of its placement handles, in so many bytes (a multiple of 4).
pub fn handle_status(nsid: u32, bytes: u32) -> Submission {
    let mut command = Submission::nvm(NvmOpcode::IO_MANAGEMENT_RECEIVE, 0, nsid);
    command.cdw10 = RECLAIM_UNIT_HANDLE_STATUS.into();
    // Dwords, zero based.
    command.cdw11 = (bytes / 4).saturating_sub(1).into();
    command
}

/// The placement identifiers in the answer to [`handle_status`], as far as it has room for them: one for each reclaim unit handle,
/// that in its first reclaim group. The status has one for each handle in each group.
pub fn placements(status: &[u8]) -> Vec<u16> {
    let Ok((head, rest)) = HandleStatusHead::read_from_prefix(status) else { return Vec::new() };
    let descriptors = rest.as_chunks::<{ size_of::<HandleStatus>() }>().0.iter();
    let told = descriptors.take(head.descriptors.get().into());
    let mut seen = BTreeSet::new();
    told.filter_map(|bytes| HandleStatus::read_from_bytes(bytes).ok())
        .filter(|status| seen.insert(status.handle.get()))
        .map(|status| status.placement.get())
        .collect()
}

impl Submission {
    /// A write that names where it goes.
    pub fn set_placement(&mut self, placement: u16) {
        self.cdw12 = (self.cdw12.get() | DATA_PLACEMENT).into();
        self.cdw13 = (self.cdw13.get() & 0xFFFF | u32::from(placement) << 16).into();
    }

    /// What a write says of where it goes.
    pub fn placement(&self) -> Option<u16> {
        (self.cdw12.get() & 0xF << 20 == DATA_PLACEMENT).then_some((self.cdw13.get() >> 16) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_names_its_placement_beside_its_range() {
        let mut command = Submission::nvm(NvmOpcode::WRITE, 7, 1);
        command.set_range(5, 9);
        assert_eq!(command.placement(), None);
        command.set_placement(0xBEEF);
        assert_eq!((command.placement(), command.lba(), command.blocks()), (Some(0xBEEF), 5, 9));
    }

    #[test]
    fn as_many_placements_are_read_as_were_told_and_are_there() {
        let told = |descriptors: u16| HandleStatusHead { reserved: [0; 14], descriptors: descriptors.into() };
        let one = |placement: u16| HandleStatus {
            placement: placement.into(),
            handle: (placement % 16).into(),
            active_seconds: 0.into(),
            blocks_left: 9.into(),
            reserved: [0; 16],
        };
        let both = [told(2).as_bytes(), one(3).as_bytes(), one(4).as_bytes()].concat();
        assert_eq!(placements(&both), [3, 4]);
        assert_eq!(placements(&both[..60]), [3]);
        assert_eq!(placements(&[told(1).as_bytes(), &both[16..]].concat()), [3]);
        assert_eq!(placements(&both[..15]), [0_u16; 0]);
        // Two handles in two reclaim groups.
        let one = |placement| one(placement).as_bytes().to_vec();
        let all = [told(4).as_bytes().to_vec(), one(3), one(19), one(4), one(20)];
        assert_eq!(placements(&all.concat()), [3, 4]);
    }
}
