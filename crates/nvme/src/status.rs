//! Status codes of completions, with the names people know them by (NVMe Base 2.0 §3.3.3.2.1, figures 93 to 99).
//!
//! ```text
//!  15   14   13 12   11 10 9    8 … 1      0
//!  DNR   M    CRD      SCT       SC        P       the last word of a completion; P is not used over fabrics
//! ```
//! A [`Status`] holds that word without P: DNR is bit 14, M 13, CRD 12:11, SCT 10:8, SC 7:0.

use std::fmt;

/// The outcome of a command: status code type, status code, and whether a retry can help.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(u16);

/// Status Code Type (NVMe Base 2.0 figure 93).
pub mod code_type {
    /// Generic Command Status.
    pub const GENERIC: u8 = 0;
    /// Command Specific Status.
    pub const COMMAND_SPECIFIC: u8 = 1;
    /// Media and Data Integrity Errors.
    pub const MEDIA: u8 = 2;
    /// Path Related Status.
    pub const PATH: u8 = 3;
    /// Vendor Specific.
    pub const VENDOR: u8 = 7;
}

const DNR: u16 = 1 << 14;
const MORE: u16 = 1 << 13;

impl Status {
    /// A status of the given type and code, retry allowed.
    pub const fn new(code_type: u8, code: u8) -> Status {
        Status(((code_type as u16) & 7) << 8 | code as u16)
    }

    /// The status in a completion's last word (the phase bit is dropped).
    pub const fn from_field(field: u16) -> Status {
        Status(field >> 1)
    }

    /// The completion's last word, phase bit 0.
    pub const fn to_field(self) -> u16 {
        self.0 << 1
    }

    /// The same status with Do Not Retry set: the same command would fail again.
    pub const fn do_not_retry(self) -> Status {
        Status(self.0 | DNR)
    }

    /// Whether Do Not Retry is set.
    pub const fn is_do_not_retry(self) -> bool {
        self.0 & DNR != 0
    }

    /// Whether more is said of this error in the Error Information log.
    pub const fn is_more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Status Code Type.
    pub const fn code_type(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// Status Code.
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// Type and code alone, for comparison with the constants here.
    pub const fn kind(self) -> Status {
        Status(self.0 & 0x7FF)
    }

    /// Whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.kind().0 == 0
    }
}

macro_rules! statuses {
    ($($name:ident = $sct:ident, $sc:literal, $text:literal;)+) => {
        impl Status {
            $(#[doc = $text] pub const $name: Status = Status::new(code_type::$sct, $sc);)+

            /// Every status this crate names.
            pub const ALL: &'static [Status] = &[$(Status::$name),+];

            /// The specification's name, where the code is known.
            pub fn name(self) -> Option<&'static str> {
                match self.kind() {
                    $(Status::$name => Some($text),)+
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    SUCCESS = GENERIC, 0x00, "Successful Completion";
    INVALID_OPCODE = GENERIC, 0x01, "Invalid Command Opcode";
    INVALID_FIELD = GENERIC, 0x02, "Invalid Field in Command";
    COMMAND_ID_CONFLICT = GENERIC, 0x03, "Command ID Conflict";
    DATA_TRANSFER_ERROR = GENERIC, 0x04, "Data Transfer Error";
    ABORTED_POWER_LOSS = GENERIC, 0x05, "Commands Aborted due to Power Loss Notification";
    INTERNAL_ERROR = GENERIC, 0x06, "Internal Error";
    ABORT_REQUESTED = GENERIC, 0x07, "Command Abort Requested";
    ABORTED_SQ_DELETION = GENERIC, 0x08, "Command Aborted due to SQ Deletion";
    FAILED_FUSED = GENERIC, 0x09, "Command Aborted due to Failed Fused Command";
    MISSING_FUSED = GENERIC, 0x0A, "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE = GENERIC, 0x0B, "Invalid Namespace or Format";
    SEQUENCE_ERROR = GENERIC, 0x0C, "Command Sequence Error";
    INVALID_SGL_SEGMENT = GENERIC, 0x0D, "Invalid SGL Segment Descriptor";
    INVALID_SGL_COUNT = GENERIC, 0x0E, "Invalid Number of SGL Descriptors";
    DATA_SGL_LENGTH_INVALID = GENERIC, 0x0F, "Data SGL Length Invalid";
    METADATA_SGL_LENGTH_INVALID = GENERIC, 0x10, "Metadata SGL Length Invalid";
    SGL_TYPE_INVALID = GENERIC, 0x11, "SGL Descriptor Type Invalid";
    INVALID_CMB_USE = GENERIC, 0x12, "Invalid Use of Controller Memory Buffer";
    PRP_OFFSET_INVALID = GENERIC, 0x13, "PRP Offset Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = GENERIC, 0x14, "Atomic Write Unit Exceeded";
    OPERATION_DENIED = GENERIC, 0x15, "Operation Denied";
    SGL_OFFSET_INVALID = GENERIC, 0x16, "SGL Offset Invalid";
    HOST_ID_INCONSISTENT = GENERIC, 0x18, "Host Identifier Inconsistent Format";
    KEEP_ALIVE_EXPIRED = GENERIC, 0x19, "Keep Alive Timer Expired";
    KEEP_ALIVE_INVALID = GENERIC, 0x1A, "Keep Alive Timeout Invalid";
    ABORTED_PREEMPT = GENERIC, 0x1B, "Command Aborted due to Preempt and Abort";
    SANITIZE_FAILED = GENERIC, 0x1C, "Sanitize Failed";
    SANITIZE_IN_PROGRESS = GENERIC, 0x1D, "Sanitize In Progress";
    SGL_GRANULARITY_INVALID = GENERIC, 0x1E, "SGL Data Block Granularity Invalid";
    UNSUPPORTED_IN_CMB = GENERIC, 0x1F, "Command Not Supported for Queue in CMB";
    WRITE_PROTECTED = GENERIC, 0x20, "Namespace is Write Protected";
    INTERRUPTED = GENERIC, 0x21, "Command Interrupted";
    TRANSIENT_TRANSPORT_ERROR = GENERIC, 0x22, "Transient Transport Error";
    PROHIBITED_BY_LOCKDOWN = GENERIC, 0x23, "Command Prohibited by Command and Feature Lockdown";
    MEDIA_NOT_READY = GENERIC, 0x24, "Admin Command Media Not Ready";
    LBA_OUT_OF_RANGE = GENERIC, 0x80, "LBA Out of Range";
    CAPACITY_EXCEEDED = GENERIC, 0x81, "Capacity Exceeded";
    NAMESPACE_NOT_READY = GENERIC, 0x82, "Namespace Not Ready";
    RESERVATION_CONFLICT = GENERIC, 0x83, "Reservation Conflict";
    FORMAT_IN_PROGRESS = GENERIC, 0x84, "Format In Progress";

    INVALID_COMPLETION_QUEUE = COMMAND_SPECIFIC, 0x00, "Completion Queue Invalid";
    INVALID_QUEUE_ID = COMMAND_SPECIFIC, 0x01, "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = COMMAND_SPECIFIC, 0x02, "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED = COMMAND_SPECIFIC, 0x03, "Abort Command Limit Exceeded";
    ASYNC_EVENT_LIMIT_EXCEEDED = COMMAND_SPECIFIC, 0x05, "Asynchronous Event Request Limit Exceeded";
    INVALID_FIRMWARE_SLOT = COMMAND_SPECIFIC, 0x06, "Invalid Firmware Slot";
    INVALID_FIRMWARE_IMAGE = COMMAND_SPECIFIC, 0x07, "Invalid Firmware Image";
    INVALID_INTERRUPT_VECTOR = COMMAND_SPECIFIC, 0x08, "Invalid Interrupt Vector";
    INVALID_LOG_PAGE = COMMAND_SPECIFIC, 0x09, "Invalid Log Page";
    INVALID_FORMAT = COMMAND_SPECIFIC, 0x0A, "Invalid Format";
    FEATURE_NOT_SAVEABLE = COMMAND_SPECIFIC, 0x0D, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = COMMAND_SPECIFIC, 0x0E, "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE = COMMAND_SPECIFIC, 0x0F, "Feature Not Namespace Specific";
    OVERLAPPING_RANGE = COMMAND_SPECIFIC, 0x14, "Overlapping Range";
    INSUFFICIENT_CAPACITY = COMMAND_SPECIFIC, 0x15, "Namespace Insufficient Capacity";
    NAMESPACE_ID_UNAVAILABLE = COMMAND_SPECIFIC, 0x16, "Namespace Identifier Unavailable";
    NAMESPACE_ALREADY_ATTACHED = COMMAND_SPECIFIC, 0x18, "Namespace Already Attached";
    NAMESPACE_PRIVATE = COMMAND_SPECIFIC, 0x19, "Namespace Is Private";
    NAMESPACE_NOT_ATTACHED = COMMAND_SPECIFIC, 0x1A, "Namespace Not Attached";
    INVALID_CONTROLLER_LIST = COMMAND_SPECIFIC, 0x1C, "Controller List Invalid";
    INVALID_ANA_GROUP = COMMAND_SPECIFIC, 0x24, "ANA Group Identifier Invalid";
    ATTACHMENT_LIMIT_EXCEEDED = COMMAND_SPECIFIC, 0x27, "Namespace Attachment Limit Exceeded";
    COMMAND_SET_NOT_SUPPORTED = COMMAND_SPECIFIC, 0x29, "I/O Command Set Not Supported";
    COMMAND_SET_COMBINATION_REJECTED = COMMAND_SPECIFIC, 0x2B, "I/O Command Set Combination Rejected";
    CONFLICTING_ATTRIBUTES = COMMAND_SPECIFIC, 0x80, "Conflicting Attributes (Connect: Incompatible Format)";
    INVALID_PROTECTION_INFO = COMMAND_SPECIFIC, 0x81, "Invalid Protection Information (Connect: Controller Busy)";
    CONNECT_INVALID_PARAMETERS = COMMAND_SPECIFIC, 0x82, "Connect Invalid Parameters (NVM: Attempted Write to Read Only Range)";
    CONNECT_RESTART_DISCOVERY = COMMAND_SPECIFIC, 0x83, "Connect Restart Discovery (Copy: Command Size Limit Exceeded)";
    CONNECT_INVALID_HOST = COMMAND_SPECIFIC, 0x84, "Connect Invalid Host";
    INVALID_QUEUE_TYPE = COMMAND_SPECIFIC, 0x85, "Invalid Queue Type";
    OVERLAPPING_IO_RANGE = COMMAND_SPECIFIC, 0x87, "Overlapping I/O Range";
    DISCOVER_RESTART = COMMAND_SPECIFIC, 0x90, "Discover Restart";
    AUTHENTICATION_REQUIRED = COMMAND_SPECIFIC, 0x91, "Authentication Required";
    ZONE_BOUNDARY_ERROR = COMMAND_SPECIFIC, 0xB8, "Zone Boundary Error";
    ZONE_IS_FULL = COMMAND_SPECIFIC, 0xB9, "Zone Is Full";
    ZONE_IS_READ_ONLY = COMMAND_SPECIFIC, 0xBA, "Zone Is Read Only";
    ZONE_IS_OFFLINE = COMMAND_SPECIFIC, 0xBB, "Zone Is Offline";
    ZONE_INVALID_WRITE = COMMAND_SPECIFIC, 0xBC, "Zone Invalid Write";
    TOO_MANY_ACTIVE_ZONES = COMMAND_SPECIFIC, 0xBD, "Too Many Active Zones";
    TOO_MANY_OPEN_ZONES = COMMAND_SPECIFIC, 0xBE, "Too Many Open Zones";
    INVALID_ZONE_TRANSITION = COMMAND_SPECIFIC, 0xBF, "Invalid Zone State Transition";

    WRITE_FAULT = MEDIA, 0x80, "Write Fault";
    UNRECOVERED_READ_ERROR = MEDIA, 0x81, "Unrecovered Read Error";
    GUARD_CHECK_ERROR = MEDIA, 0x82, "End-to-end Guard Check Error";
    APPLICATION_TAG_ERROR = MEDIA, 0x83, "End-to-end Application Tag Check Error";
    REFERENCE_TAG_ERROR = MEDIA, 0x84, "End-to-end Reference Tag Check Error";
    COMPARE_FAILURE = MEDIA, 0x85, "Compare Failure";
    ACCESS_DENIED = MEDIA, 0x86, "Access Denied";
    DEALLOCATED_BLOCK = MEDIA, 0x87, "Deallocated or Unwritten Logical Block";

    INTERNAL_PATH_ERROR = PATH, 0x00, "Internal Path Error";
    ANA_PERSISTENT_LOSS = PATH, 0x01, "Asymmetric Access Persistent Loss";
    ANA_INACCESSIBLE = PATH, 0x02, "Asymmetric Access Inaccessible";
    ANA_TRANSITION = PATH, 0x03, "Asymmetric Access Transition";
    CONTROLLER_PATHING_ERROR = PATH, 0x60, "Controller Pathing Error";
    HOST_PATHING_ERROR = PATH, 0x70, "Host Pathing Error";
    ABORTED_BY_HOST = PATH, 0x71, "Command Aborted By Host";
}

impl Status {
    /// Connect: Incompatible Format (shares its number with Conflicting Attributes).
    pub const CONNECT_INCOMPATIBLE_FORMAT: Status = Status::CONFLICTING_ATTRIBUTES;
    /// Copy: Command Size Limit Exceeded (shares its number with Connect Restart Discovery).
    pub const COMMAND_SIZE_LIMIT_EXCEEDED: Status = Status::CONNECT_RESTART_DISCOVERY;
    /// Connect: Controller Busy (shares its number with Invalid Protection Information).
    pub const CONNECT_CONTROLLER_BUSY: Status = Status::INVALID_PROTECTION_INFO;
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dnr = if self.is_do_not_retry() { ", do not retry" } else { "" };
        let name = self.name().unwrap_or("unknown status");
        write!(f, "{name} (SCT {:x}h SC {:02x}h{dnr})", self.code_type(), self.code())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_of_a_completion_and_back() {
        let status = Status::COMPARE_FAILURE.do_not_retry();
        assert_eq!(status.to_field(), 0x8000 | 0x2 << 9 | 0x85 << 1);
        assert_eq!(Status::from_field(status.to_field() | 1), status);
        assert_eq!(status.kind(), Status::COMPARE_FAILURE);
        assert!(status.is_do_not_retry() && !status.is_success());
    }

    #[test]
    fn every_status_has_its_own_number_and_name() {
        let mut seen = std::collections::BTreeSet::new();
        for status in Status::ALL {
            assert!(seen.insert(*status), "{status} is listed twice");
            assert!(status.name().is_some());
        }
        assert_eq!(Status::new(7, 1).to_string(), "unknown status (SCT 7h SC 01h)");
    }
}
