//! Commands of our own, for what NVMe has no words: snapshots and clones of a namespace, its growth, and where two namespaces
//! differ. Vendor specific admin commands (NVMe Base 2.0c §5, figure 138: C0h to FFh; bits 1:0 of an opcode say which way data
//! goes), and a mark in the vendor specific bytes of Identify Controller by which a host knows them: another vendor's C1h may
//! erase the medium.
//!
//! ```text
//!  Identify Controller, byte 3072: "YAGURA\0\0", features (32 bits: 0 copies, 1 grow, 2 differences)
//!
//!  C1h Namespace Copy         NSID: the source; CDW10 3:0: 0 snapshot, 1 clone; brings CopyRequest; dword 0 of the
//!                             completion: NSID of the copy, the one of before where this source has a copy of this kind and tag
//!  C2h Namespace Copies       NSID: the source, or FFFFFFFFh: every one; CDW10: entries with an NSID above this;
//!                             gives 4096 bytes: up to 32 of CopyEntry, NSIDs ascending, NSID 0 behind the last;
//!                             to who manages all of them, to others those that are attached
//!  C8h Delete Copy            NSID: a snapshot; CDW10 to CDW13: its NGUID, the bytes in their order
//!  C4h Grow Namespace         CDW10, CDW11: the new NSZE, blocks
//!  CEh Namespace Differences  NSID: the newer; CDW10: NSID of the base, or 0: what is allocated at all; CDW12, CDW13: the
//!                             first LBA that is looked at; gives 4096 bytes: DifferencesHead, up to 255 of DifferenceRange
//! ```

use crate::identify::IdentifyController;
use crate::opcode::AdminOpcode;
use crate::words::size;
use crate::{PAGE_BYTES, Submission, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What the vendor specific bytes of a controller with these commands begin with.
const SIGNATURE: [u8; 8] = *b"YAGURA\0\0";

/// What a controller offers of the extension.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extension {
    /// Snapshots and clones: Namespace Copy, Namespace Copies, Delete Copy.
    pub copies: bool,
    /// Grow Namespace.
    pub grow: bool,
    /// Namespace Differences.
    pub differences: bool,
}

impl Extension {
    /// All of it.
    pub const ALL: Extension = Extension { copies: true, grow: true, differences: true };

    /// What a controller says; nothing where it is not one of ours.
    pub fn of(page: &IdentifyController) -> Extension {
        let Ok((mark, _)) = Mark::read_from_prefix(&page.vendor) else { return Extension::default() };
        let bit = |bit: u32| mark.signature == SIGNATURE && mark.features.get() >> bit & 1 != 0;
        Extension { copies: bit(0), grow: bit(1), differences: bit(2) }
    }

    /// Writes the mark; a controller that offers nothing leaves none.
    pub fn fill(self, page: &mut IdentifyController) {
        if self == Extension::default() {
            return;
        }
        let features = u32::from(self.copies) | u32::from(self.grow) << 1 | u32::from(self.differences) << 2;
        let mark = Mark { signature: SIGNATURE, features: features.into() };
        page.vendor[..size_of::<Mark>()].copy_from_slice(mark.as_bytes());
    }

    /// Whether it has this command.
    pub fn has(self, opcode: AdminOpcode) -> bool {
        match opcode {
            AdminOpcode::NAMESPACE_COPY | AdminOpcode::NAMESPACE_COPIES | AdminOpcode::DELETE_COPY => self.copies,
            AdminOpcode::GROW_NAMESPACE => self.grow,
            AdminOpcode::NAMESPACE_DIFFERENCES => self.differences,
            _ => false,
        }
    }
}

/// The mark in Identify Controller.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Mark {
    signature: [u8; 8],
    features: U32,
}

/// What kind of copy of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CopyKind {
    /// Read only: it keeps what the source held.
    Snapshot = 0,
    /// Writable: it begins with what the source held.
    Clone = 1,
}

impl CopyKind {
    /// The kind with this code.
    pub fn from_code(code: u32) -> Option<CopyKind> {
        [CopyKind::Snapshot, CopyKind::Clone].into_iter().find(|kind| kind.code() == code)
    }

    /// Its code.
    pub const fn code(self) -> u32 {
        self as u32
    }
}

/// Data of Namespace Copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CopyRequest {
    /// What the host calls the copy; of one source and kind each tag once.
    pub tag: [u8; 32],
    /// Zero.
    pub reserved: [u8; 32],
}

/// An entry of the page of Namespace Copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CopyEntry {
    /// The copy; 0 ends the list.
    pub nsid: U32,
    /// [`CopyKind`].
    pub kind: U32,
    /// NGUID of what it was made from, which may be gone.
    pub source: [u8; 16],
    /// Its own NGUID.
    pub nguid: [u8; 16],
    /// Its size, bytes.
    pub bytes: U64,
    /// Zero.
    pub reserved48: [u8; 16],
    /// What its host calls it.
    pub tag: [u8; 32],
    /// Zero.
    pub reserved96: [u8; 32],
}

/// Entries of a page of copies, at most.
pub const COPY_ENTRIES_MAX: usize = PAGE_BYTES / size_of::<CopyEntry>();

/// The first bytes of the page of Namespace Differences.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DifferencesHead {
    /// The first LBA that was not looked at; [`DIFFERENCES_END`]: all were.
    pub next: U64,
    /// Ranges that follow.
    pub count: U32,
    /// Zero.
    pub reserved: U32,
}

/// Where the last page of differences goes on.
pub const DIFFERENCES_END: u64 = u64::MAX;

/// Blocks that may differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DifferenceRange {
    /// The first.
    pub slba: U64,
    /// How many.
    pub nlb: U64,
}

/// Ranges of a page of differences, at most.
pub const DIFFERENCE_RANGES_MAX: usize = (PAGE_BYTES - size_of::<DifferencesHead>()) / size_of::<DifferenceRange>();

size!(Mark = 12, CopyRequest = 64, CopyEntry = 128, DifferencesHead = 16, DifferenceRange = 16);
const _: () = assert!(std::mem::offset_of!(IdentifyController, vendor) == 3072);
const _: () = assert!(std::mem::offset_of!(CopyEntry, bytes) == 40);
const _: () = assert!(std::mem::offset_of!(CopyEntry, tag) == 64);
const _: () = assert!(COPY_ENTRIES_MAX == 32 && DIFFERENCE_RANGES_MAX == 255);

/// What one of the commands asks for; the namespace that it names stands in its NSID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtensionCommand {
    /// Make a copy.
    Copy(CopyKind),
    /// List copies.
    Copies {
        /// Those with identifiers above this one.
        after: u32,
    },
    /// Delete a snapshot.
    DeleteCopy {
        /// The NGUID of the snapshot: its NSID may be another namespace's by the time that the command arrives.
        nguid: [u8; 16],
    },
    /// Make a namespace larger.
    Grow {
        /// Its size then.
        blocks: u64,
    },
    /// Where a namespace may differ from another one.
    Differences {
        /// The other one; 0: from one that is empty.
        base: u32,
        /// Where the look begins.
        lba: u64,
    },
}

impl ExtensionCommand {
    /// The opcodes.
    pub const OPCODES: [AdminOpcode; 5] = [
        AdminOpcode::NAMESPACE_COPY,
        AdminOpcode::NAMESPACE_COPIES,
        AdminOpcode::GROW_NAMESPACE,
        AdminOpcode::DELETE_COPY,
        AdminOpcode::NAMESPACE_DIFFERENCES,
    ];

    /// Reads a command; `None` where it is none of these, or asks for a kind of copy that there is not.
    pub fn from_submission(command: &Submission) -> Option<ExtensionCommand> {
        let first = command.cdw10.get();
        Some(match AdminOpcode(command.opcode) {
            AdminOpcode::NAMESPACE_COPY => ExtensionCommand::Copy(CopyKind::from_code(first & 0xF)?),
            AdminOpcode::NAMESPACE_COPIES => ExtensionCommand::Copies { after: first },
            AdminOpcode::DELETE_COPY => {
                let words = [command.cdw10, command.cdw11, command.cdw12, command.cdw13];
                ExtensionCommand::DeleteCopy { nguid: zerocopy::transmute!(words) }
            }
            AdminOpcode::GROW_NAMESPACE => {
                ExtensionCommand::Grow { blocks: u64::from(first) | u64::from(command.cdw11.get()) << 32 }
            }
            AdminOpcode::NAMESPACE_DIFFERENCES => {
                let lba = u64::from(command.cdw12.get()) | u64::from(command.cdw13.get()) << 32;
                ExtensionCommand::Differences { base: first, lba }
            }
            _ => return None,
        })
    }

    /// Fills opcode and command dwords.
    pub fn fill(self, command: &mut Submission) {
        let halves = |value: u64| ((value as u32).into(), ((value >> 32) as u32).into());
        command.opcode = self.opcode().0;
        match self {
            ExtensionCommand::Copy(kind) => command.cdw10 = kind.code().into(),
            ExtensionCommand::Copies { after } => command.cdw10 = after.into(),
            ExtensionCommand::DeleteCopy { nguid } => {
                [command.cdw10, command.cdw11, command.cdw12, command.cdw13] = zerocopy::transmute!(nguid);
            }
            ExtensionCommand::Grow { blocks } => (command.cdw10, command.cdw11) = halves(blocks),
            ExtensionCommand::Differences { base, lba } => {
                command.cdw10 = base.into();
                (command.cdw12, command.cdw13) = halves(lba);
            }
        }
    }

    /// Its opcode.
    pub fn opcode(self) -> AdminOpcode {
        match self {
            ExtensionCommand::Copy(_) => AdminOpcode::NAMESPACE_COPY,
            ExtensionCommand::Copies { .. } => AdminOpcode::NAMESPACE_COPIES,
            ExtensionCommand::DeleteCopy { .. } => AdminOpcode::DELETE_COPY,
            ExtensionCommand::Grow { .. } => AdminOpcode::GROW_NAMESPACE,
            ExtensionCommand::Differences { .. } => AdminOpcode::NAMESPACE_DIFFERENCES,
        }
    }

    /// What it is called where one is told of it.
    pub fn name(self) -> &'static str {
        match self {
            ExtensionCommand::Copy(CopyKind::Snapshot) => "take a snapshot of a namespace",
            ExtensionCommand::Copy(CopyKind::Clone) => "clone a namespace",
            ExtensionCommand::Copies { .. } => "list copies of a namespace",
            ExtensionCommand::DeleteCopy { .. } => "delete a snapshot",
            ExtensionCommand::Grow { .. } => "grow a namespace",
            ExtensionCommand::Differences { .. } => "compare the maps of namespaces",
        }
    }

    /// Bytes of data from the host.
    pub fn data_bytes(self) -> u32 {
        if matches!(self, ExtensionCommand::Copy(_)) { size_of::<CopyRequest>() as u32 } else { 0 }
    }

    /// Bytes of data for the host.
    pub fn page_bytes(self) -> u32 {
        let page = matches!(self, ExtensionCommand::Copies { .. } | ExtensionCommand::Differences { .. });
        if page { PAGE_BYTES as u32 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    const COMMANDS: [ExtensionCommand; 6] = [
        ExtensionCommand::Copy(CopyKind::Snapshot),
        ExtensionCommand::Copy(CopyKind::Clone),
        ExtensionCommand::Copies { after: 7 },
        ExtensionCommand::DeleteCopy { nguid: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16] },
        ExtensionCommand::Grow { blocks: 0x1_0000_0002 },
        ExtensionCommand::Differences { base: 3, lba: 0x5_0000_0006 },
    ];

    #[test]
    fn commands_survive_the_wire() {
        for asked in COMMANDS {
            let mut command = Submission::admin(AdminOpcode::IDENTIFY, 1, 9);
            asked.fill(&mut command);
            assert_eq!(ExtensionCommand::from_submission(&command), Some(asked));
            assert!(ExtensionCommand::OPCODES.contains(&AdminOpcode(command.opcode)));
            // NVMe Base 2.0c figure 138: bit 0 data from the host, bit 1 data to the host.
            let way = u8::from(asked.data_bytes() != 0) | u8::from(asked.page_bytes() != 0) << 1;
            assert_eq!(command.opcode & 3, way, "{asked:?}");
        }
        let mut unknown = Submission::admin(AdminOpcode::NAMESPACE_COPY, 1, 9);
        unknown.cdw10 = 2.into();
        assert_eq!(ExtensionCommand::from_submission(&unknown), None, "a third kind of copy");
        assert_eq!(ExtensionCommand::from_submission(&Submission::admin(AdminOpcode::IDENTIFY, 1, 9)), None);
    }

    #[test]
    fn a_controller_without_the_mark_offers_nothing() {
        let mut page = IdentifyController::new_zeroed();
        assert_eq!(Extension::of(&page), Extension::default());
        let offered = Extension { copies: true, grow: false, differences: true };
        offered.fill(&mut page);
        assert_eq!((&page.vendor[..8], page.vendor[8]), (&b"YAGURA\0\0"[..], 5));
        assert_eq!(Extension::of(&page), offered);
        assert_eq!(COMMANDS.map(|command| offered.has(command.opcode())), [true, true, true, true, false, true]);
        assert!(!Extension::ALL.has(AdminOpcode::IDENTIFY));
        page.vendor[0] ^= 1;
        assert_eq!(Extension::of(&page), Extension::default(), "another vendor's bytes");
    }
}
