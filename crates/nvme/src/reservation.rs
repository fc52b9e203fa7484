//! Reservations: the words of the four commands, the report and the notification log (NVMe Base 2.0 §7.2 to §7.5, §8.19).
//!
//! A host is known by its Host Identifier, which over fabrics always has 128 bits; so only the *extended* structures of the
//! report are here (NVMe Base 2.0 §5.27.1.25: with a 128-bit identifier the short ones are refused).

use std::fmt;

use crate::opcode::{AdminOpcode, NvmOpcode};
use crate::words::{codes, size};
use crate::{Submission, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Who may do what while a reservation is held (NVMe Base 2.0 §8.19).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ReservationType {
    /// One holder writes, all read.
    WriteExclusive = 1,
    /// One holder reads and writes.
    ExclusiveAccess = 2,
    /// Registrants write, all read; one of them holds the reservation.
    WriteExclusiveRegistrants = 3,
    /// Registrants read and write; one of them holds the reservation.
    ExclusiveAccessRegistrants = 4,
    /// Registrants write, all read; each of them holds the reservation.
    WriteExclusiveAll = 5,
    /// Registrants read and write; each of them holds the reservation.
    ExclusiveAccessAll = 6,
}

impl ReservationType {
    /// Every type, by code.
    pub const ALL: [ReservationType; 6] = [
        ReservationType::WriteExclusive,
        ReservationType::ExclusiveAccess,
        ReservationType::WriteExclusiveRegistrants,
        ReservationType::ExclusiveAccessRegistrants,
        ReservationType::WriteExclusiveAll,
        ReservationType::ExclusiveAccessAll,
    ];

    /// The type with this code.
    pub fn from_code(code: u8) -> Option<ReservationType> {
        ReservationType::ALL.into_iter().find(|rtype| rtype.code() == code)
    }

    /// RTYPE.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether every registrant is a holder.
    pub const fn is_all_registrants(self) -> bool {
        matches!(self, ReservationType::WriteExclusiveAll | ReservationType::ExclusiveAccessAll)
    }

    /// Whether registrants that do not hold the reservation may do what its holder may.
    pub const fn admits_registrants(self) -> bool {
        !matches!(self, ReservationType::WriteExclusive | ReservationType::ExclusiveAccess)
    }

    /// Whether those who are shut out may read.
    pub const fn admits_readers(self) -> bool {
        matches!(
            self,
            ReservationType::WriteExclusive
                | ReservationType::WriteExclusiveRegistrants
                | ReservationType::WriteExclusiveAll
        )
    }

    /// A name for the command line and reports: lower case with hyphens.
    pub const fn label(self) -> &'static str {
        match self {
            ReservationType::WriteExclusive => "write-exclusive",
            ReservationType::ExclusiveAccess => "exclusive-access",
            ReservationType::WriteExclusiveRegistrants => "write-exclusive-registrants",
            ReservationType::ExclusiveAccessRegistrants => "exclusive-access-registrants",
            ReservationType::WriteExclusiveAll => "write-exclusive-all-registrants",
            ReservationType::ExclusiveAccessAll => "exclusive-access-all-registrants",
        }
    }
}

impl fmt::Display for ReservationType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// RREGA of Reservation Register (NVMe Base 2.0 §7.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegisterAction {
    /// Become a registrant.
    Register = 0,
    /// Cease to be one.
    Unregister = 1,
    /// Change the key.
    Replace = 2,
}

/// CPTPL of Reservation Register: what becomes of the Persist Through Power Loss state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PersistChange {
    /// It stays.
    Keep = 0,
    /// Reservation and registrants are dropped at power on.
    Clear = 2,
    /// They survive power loss.
    Set = 3,
}

/// RACQA of Reservation Acquire (NVMe Base 2.0 §7.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AcquireAction {
    /// Take the reservation if nobody holds it.
    Acquire = 0,
    /// Take it, or registrations, from others.
    Preempt = 1,
    /// The same, and abort the commands of those it was taken from.
    PreemptAndAbort = 2,
}

/// RRELA of Reservation Release (NVMe Base 2.0 §7.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleaseAction {
    /// Give the reservation up.
    Release = 0,
    /// Drop the reservation and all registrations.
    Clear = 1,
}

/// What a reservation command asks for; its keys are in its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReservationCommand {
    /// Reservation Register; data: [`RegisterKeys`].
    Register {
        /// RREGA.
        action: RegisterAction,
        /// IEKEY: the current key is not looked at.
        ignore_key: bool,
        /// CPTPL.
        persist: PersistChange,
    },
    /// Reservation Acquire; data: [`AcquireKeys`].
    Acquire {
        /// RACQA.
        action: AcquireAction,
        /// RTYPE.
        rtype: ReservationType,
    },
    /// Reservation Release; data: [`ReleaseKey`].
    Release {
        /// RRELA.
        action: ReleaseAction,
        /// RTYPE; without meaning, and so not checked, for Clear.
        rtype: Option<ReservationType>,
    },
    /// Reservation Report.
    Report {
        /// Bytes to transfer, a multiple of 4.
        bytes: u64,
        /// EDS: the extended structures, with 128-bit host identifiers.
        extended: bool,
    },
}

/// IEKEY, CDW10 bit 3.
const IGNORE_KEY: u32 = 1 << 3;

impl ReservationCommand {
    /// Reads a command; `None` where its opcode is another's, or a field has a reserved value.
    pub fn from_submission(command: &Submission) -> Option<ReservationCommand> {
        let cdw10 = command.cdw10.get();
        let ignore_key = cdw10 & IGNORE_KEY != 0;
        let rtype = ReservationType::from_code((cdw10 >> 8) as u8);
        Some(match NvmOpcode(command.opcode) {
            NvmOpcode::RESERVATION_REGISTER => ReservationCommand::Register {
                action: match cdw10 & 7 {
                    0 => RegisterAction::Register,
                    1 => RegisterAction::Unregister,
                    2 => RegisterAction::Replace,
                    _ => return None,
                },
                ignore_key,
                persist: match cdw10 >> 30 {
                    0 => PersistChange::Keep,
                    2 => PersistChange::Clear,
                    3 => PersistChange::Set,
                    _ => return None,
                },
            },
            // From NVMe 1.3 on IEKEY is an error in these two (RESCAP bit 7).
            NvmOpcode::RESERVATION_ACQUIRE | NvmOpcode::RESERVATION_RELEASE if ignore_key => return None,
            NvmOpcode::RESERVATION_ACQUIRE => ReservationCommand::Acquire {
                action: match cdw10 & 7 {
                    0 => AcquireAction::Acquire,
                    1 => AcquireAction::Preempt,
                    2 => AcquireAction::PreemptAndAbort,
                    _ => return None,
                },
                rtype: rtype?,
            },
            NvmOpcode::RESERVATION_RELEASE => match cdw10 & 7 {
                0 => ReservationCommand::Release { action: ReleaseAction::Release, rtype: Some(rtype?) },
                1 => ReservationCommand::Release { action: ReleaseAction::Clear, rtype },
                _ => return None,
            },
            NvmOpcode::RESERVATION_REPORT => {
                ReservationCommand::Report { bytes: (u64::from(cdw10) + 1) * 4, extended: command.cdw11.get() & 1 != 0 }
            }
            _ => return None,
        })
    }

    /// The command for namespace `nsid`, without its data pointer. A report's length is rounded up to a multiple of 4.
    pub fn to_submission(self, nsid: u32) -> Submission {
        let (opcode, cdw10) = match self {
            ReservationCommand::Register { action, ignore_key, persist } => (
                NvmOpcode::RESERVATION_REGISTER,
                action as u32 | (u32::from(ignore_key) * IGNORE_KEY) | (persist as u32) << 30,
            ),
            ReservationCommand::Acquire { action, rtype } => {
                (NvmOpcode::RESERVATION_ACQUIRE, action as u32 | u32::from(rtype.code()) << 8)
            }
            ReservationCommand::Release { action, rtype } => {
                (NvmOpcode::RESERVATION_RELEASE, action as u32 | rtype.map_or(0, |rtype| u32::from(rtype.code()) << 8))
            }
            ReservationCommand::Report { bytes, .. } => {
                (NvmOpcode::RESERVATION_REPORT, bytes.div_ceil(4).saturating_sub(1) as u32)
            }
        };
        let mut command = Submission::nvm(opcode, 0, nsid);
        command.cdw10 = cdw10.into();
        command.cdw11 = u32::from(matches!(self, ReservationCommand::Report { extended: true, .. })).into();
        command
    }

    /// Bytes of keys that the command brings.
    pub const fn data_bytes(self) -> u32 {
        match self {
            ReservationCommand::Register { .. } => size_of::<RegisterKeys>() as u32,
            ReservationCommand::Acquire { .. } => size_of::<AcquireKeys>() as u32,
            ReservationCommand::Release { .. } => size_of::<ReleaseKey>() as u32,
            ReservationCommand::Report { .. } => 0,
        }
    }
}

/// Data of Reservation Register (NVMe Base 2.0 §7.3).
#[derive(Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RegisterKeys {
    /// CRKEY: the host's key so far.
    pub current: U64,
    /// NRKEY: its key from now on.
    pub new: U64,
}

/// Data of Reservation Acquire (NVMe Base 2.0 §7.2).
#[derive(Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AcquireKeys {
    /// CRKEY: the host's key.
    pub current: U64,
    /// PRKEY: the key of those who are preempted.
    pub preempt: U64,
}

/// Data of Reservation Release (NVMe Base 2.0 §7.4).
#[derive(Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReleaseKey {
    /// CRKEY: the host's key.
    pub current: U64,
}

/// Head of the Reservation Status Extended data structure (NVMe Base 2.0 §7.5); a [`RegisteredController`] for
/// each of REGCTL follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReservationStatus {
    /// GEN: counts registrations, clears and preemptions; wraps.
    pub generation: U32,
    /// RTYPE; 0: no reservation is held.
    pub rtype: u8,
    /// REGCTL: registered controllers.
    pub controllers: U16,
    /// Reserved.
    pub reserved7: [u8; 2],
    /// PTPLS: 1: reservation and registrants survive power loss.
    pub persist: u8,
    /// Reserved.
    pub reserved10: [u8; 54],
}

/// Registered Controller Extended data structure (NVMe Base 2.0 §7.5).
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RegisteredController {
    /// CNTLID; FFFFh where the controllers are dynamic.
    pub cntlid: U16,
    /// RCSTS: bit 0: its host holds the reservation.
    pub status: u8,
    /// Reserved.
    pub reserved3: [u8; 5],
    /// RKEY.
    pub key: U64,
    /// HOSTID.
    pub host_id: [u8; 16],
    /// Reserved.
    pub reserved32: [u8; 32],
}

/// What a Reservation Notification tells (NVMe Base 2.0 §5.16.1.24).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NotificationType(pub u8);

codes! { NotificationType(u8), "reservation notification";
    EMPTY = 0, "Empty Log Page";
    REGISTRATION_PREEMPTED = 1, "Registration Preempted";
    RESERVATION_RELEASED = 2, "Reservation Released";
    RESERVATION_PREEMPTED = 3, "Reservation Preempted";
}

impl NotificationType {
    /// Its bit in the Reservation Notification Mask feature (NVMe Base 2.0 §5.27.1.26).
    pub const fn mask_bit(self) -> u32 {
        1 << self.0
    }
}

/// The bits of the Reservation Notification Mask feature that mean something.
pub const NOTIFICATION_MASK: u32 = NotificationType::REGISTRATION_PREEMPTED.mask_bit()
    | NotificationType::RESERVATION_RELEASED.mask_bit()
    | NotificationType::RESERVATION_PREEMPTED.mask_bit();

/// Reservation Notification log page (NVMe Base 2.0 §5.16.1.24): one notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReservationNotification {
    /// Log Page Count: numbers the notifications, from 1; a gap tells that some were lost.
    pub count: U64,
    /// [`NotificationType`].
    pub kind: u8,
    /// Further notifications that wait, at most 255.
    pub available: u8,
    /// Reserved.
    pub reserved10: [u8; 2],
    /// The namespace concerned.
    pub nsid: U32,
    /// Reserved.
    pub reserved16: [u8; 48],
}

size!(
    RegisterKeys = 16,
    AcquireKeys = 16,
    ReleaseKey = 8,
    ReservationStatus = 64,
    RegisteredController = 64,
    ReservationNotification = 64,
);

/// Bits of RESCAP in Identify Namespace (NVM Command Set 1.0 §4.1.5.1).
pub mod rescap {
    /// Persist Through Power Loss.
    pub const PERSIST: u8 = 1 << 0;
    /// All six types.
    pub const TYPES: u8 = 0x7E;
    /// IEKEY as from NVMe 1.3 on.
    pub const IGNORE_KEY_1_3: u8 = 1 << 7;
}

/// What a command may do, or wants to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// The Read Command Group.
    pub read: bool,
    /// The Write Command Group.
    pub write: bool,
}

impl Access {
    /// Commands that no reservation stops.
    pub const NONE: Access = Access { read: false, write: false };
    /// The Read Command Group.
    pub const READ: Access = Access { read: true, write: false };
    /// The Write Command Group.
    pub const WRITE: Access = Access { read: false, write: true };
    /// Both.
    pub const ALL: Access = Access { read: true, write: true };

    /// What an NVM command wants (NVMe Base 2.0 §8.19, NVM Command Set 1.0). Copy reads its source and writes its
    /// destination. Of the commands on zones see ZNS 1.1 §5.1. The reservation commands have rules of their own.
    pub const fn wanted_by(opcode: NvmOpcode) -> Access {
        match opcode {
            NvmOpcode::READ | NvmOpcode::COMPARE | NvmOpcode::VERIFY | NvmOpcode::ZONE_MANAGEMENT_RECEIVE => {
                Access::READ
            }
            NvmOpcode::COPY => Access::ALL,
            NvmOpcode::FLUSH
            | NvmOpcode::WRITE
            | NvmOpcode::WRITE_UNCORRECTABLE
            | NvmOpcode::WRITE_ZEROES
            | NvmOpcode::DATASET_MANAGEMENT
            | NvmOpcode::ZONE_MANAGEMENT_SEND
            | NvmOpcode::ZONE_APPEND => Access::WRITE,
            _ => Access::NONE,
        }
    }

    /// What an admin command wants of the namespace it names (NVMe Base 2.0 §8.19).
    pub const fn wanted_by_admin(opcode: AdminOpcode) -> Access {
        match opcode {
            AdminOpcode::SECURITY_RECEIVE => Access::READ,
            AdminOpcode::FORMAT_NVM
            | AdminOpcode::NAMESPACE_ATTACHMENT
            | AdminOpcode::NAMESPACE_MANAGEMENT
            | AdminOpcode::SANITIZE
            | AdminOpcode::SECURITY_SEND => Access::WRITE,
            _ => Access::NONE,
        }
    }

    /// Whether whoever may do this may do all of `wanted`.
    pub const fn covers(self, wanted: Access) -> bool {
        (self.read || !wanted.read) && (self.write || !wanted.write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_survives_the_wire() {
        let mut commands = vec![ReservationCommand::Report { bytes: 4096, extended: true }];
        for persist in [PersistChange::Keep, PersistChange::Clear, PersistChange::Set] {
            for action in [RegisterAction::Register, RegisterAction::Unregister, RegisterAction::Replace] {
                commands.push(ReservationCommand::Register { action, ignore_key: action as u32 == 2, persist });
            }
        }
        for rtype in ReservationType::ALL {
            for action in [AcquireAction::Acquire, AcquireAction::Preempt, AcquireAction::PreemptAndAbort] {
                commands.push(ReservationCommand::Acquire { action, rtype });
            }
            for action in [ReleaseAction::Release, ReleaseAction::Clear] {
                commands.push(ReservationCommand::Release { action, rtype: Some(rtype) });
            }
        }
        for command in commands {
            assert_eq!(ReservationCommand::from_submission(&command.to_submission(1)), Some(command));
        }
    }

    #[test]
    fn reserved_values_are_no_command() {
        let parse = |opcode, cdw10: u32| {
            let mut command = Submission::nvm(opcode, 0, 1);
            command.cdw10 = cdw10.into();
            ReservationCommand::from_submission(&command)
        };
        for (opcode, cdw10) in [
            (NvmOpcode::RESERVATION_REGISTER, 3),
            (NvmOpcode::RESERVATION_REGISTER, 1 << 30),
            (NvmOpcode::RESERVATION_ACQUIRE, 3 | 1 << 8),
            (NvmOpcode::RESERVATION_ACQUIRE, 0),
            (NvmOpcode::RESERVATION_ACQUIRE, 7 << 8),
            (NvmOpcode::RESERVATION_ACQUIRE, IGNORE_KEY | 1 << 8),
            (NvmOpcode::RESERVATION_RELEASE, 2 | 1 << 8),
            (NvmOpcode::RESERVATION_RELEASE, 0),
            (NvmOpcode::RESERVATION_RELEASE, IGNORE_KEY | 1 << 8),
            (NvmOpcode::READ, 0),
        ] {
            assert_eq!(parse(opcode, cdw10), None, "{opcode} {cdw10:#x}");
        }
        // Clear does not look at the type.
        assert!(parse(NvmOpcode::RESERVATION_RELEASE, 1).is_some());
    }
}
