//! Opcodes of the command sets we speak.

use crate::words::codes;

/// An opcode of the Admin Command Set (NVMe Base 2.0 §5, figure 138); those from C0h on are vendor specific: ours stand in
/// [`crate::extension`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AdminOpcode(pub u8);

codes! { AdminOpcode(u8), "admin opcode";
    DELETE_IO_SQ = 0x00, "Delete I/O Submission Queue";
    CREATE_IO_SQ = 0x01, "Create I/O Submission Queue";
    GET_LOG_PAGE = 0x02, "Get Log Page";
    DELETE_IO_CQ = 0x04, "Delete I/O Completion Queue";
    CREATE_IO_CQ = 0x05, "Create I/O Completion Queue";
    IDENTIFY = 0x06, "Identify";
    ABORT = 0x08, "Abort";
    SET_FEATURES = 0x09, "Set Features";
    GET_FEATURES = 0x0A, "Get Features";
    ASYNC_EVENT_REQUEST = 0x0C, "Asynchronous Event Request";
    NAMESPACE_MANAGEMENT = 0x0D, "Namespace Management";
    FIRMWARE_COMMIT = 0x10, "Firmware Commit";
    FIRMWARE_DOWNLOAD = 0x11, "Firmware Image Download";
    SELF_TEST = 0x14, "Device Self-test";
    NAMESPACE_ATTACHMENT = 0x15, "Namespace Attachment";
    KEEP_ALIVE = 0x18, "Keep Alive";
    FABRICS = 0x7F, "Fabrics";
    FORMAT_NVM = 0x80, "Format NVM";
    SECURITY_SEND = 0x81, "Security Send";
    SECURITY_RECEIVE = 0x82, "Security Receive";
    SANITIZE = 0x84, "Sanitize";
    NAMESPACE_COPY = 0xC1, "Namespace Copy (Yagura)";
    NAMESPACE_COPIES = 0xC2, "Namespace Copies (Yagura)";
    GROW_NAMESPACE = 0xC4, "Grow Namespace (Yagura)";
    DELETE_COPY = 0xC8, "Delete Copy (Yagura)";
    NAMESPACE_DIFFERENCES = 0xCE, "Namespace Differences (Yagura)";
}

/// An opcode of the NVM Command Set (NVM Command Set 1.0 §3, figure 16), or of the Zoned Namespace Command Set, which adds to it
/// (ZNS 1.1 §3.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NvmOpcode(pub u8);

codes! { NvmOpcode(u8), "NVM opcode";
    FLUSH = 0x00, "Flush";
    WRITE = 0x01, "Write";
    READ = 0x02, "Read";
    WRITE_UNCORRECTABLE = 0x04, "Write Uncorrectable";
    COMPARE = 0x05, "Compare";
    WRITE_ZEROES = 0x08, "Write Zeroes";
    DATASET_MANAGEMENT = 0x09, "Dataset Management";
    VERIFY = 0x0C, "Verify";
    RESERVATION_REGISTER = 0x0D, "Reservation Register";
    RESERVATION_REPORT = 0x0E, "Reservation Report";
    RESERVATION_ACQUIRE = 0x11, "Reservation Acquire";
    IO_MANAGEMENT_RECEIVE = 0x12, "I/O Management Receive";
    RESERVATION_RELEASE = 0x15, "Reservation Release";
    COPY = 0x19, "Copy";
    ZONE_MANAGEMENT_SEND = 0x79, "Zone Management Send";
    ZONE_MANAGEMENT_RECEIVE = 0x7A, "Zone Management Receive";
    ZONE_APPEND = 0x7D, "Zone Append";
    FABRICS = 0x7F, "Fabrics";
}

impl NvmOpcode {
    /// Whether CDW10 and CDW11 are a starting LBA.
    pub const fn has_lba(self) -> bool {
        matches!(
            self,
            NvmOpcode::READ
                | NvmOpcode::WRITE
                | NvmOpcode::WRITE_UNCORRECTABLE
                | NvmOpcode::COMPARE
                | NvmOpcode::WRITE_ZEROES
                | NvmOpcode::VERIFY
                | NvmOpcode::COPY
                | NvmOpcode::ZONE_MANAGEMENT_SEND
                | NvmOpcode::ZONE_MANAGEMENT_RECEIVE
                | NvmOpcode::ZONE_APPEND
        )
    }
}

/// A Fabrics command type, byte 4 of a command whose opcode is 7Fh (NVMe Base 2.0 §6, figure 376).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FabricsType(pub u8);

codes! { FabricsType(u8), "Fabrics command type";
    PROPERTY_SET = 0x00, "Property Set";
    CONNECT = 0x01, "Connect";
    PROPERTY_GET = 0x04, "Property Get";
    AUTHENTICATION_SEND = 0x05, "Authentication Send";
    AUTHENTICATION_RECEIVE = 0x06, "Authentication Receive";
    DISCONNECT = 0x08, "Disconnect";
}
