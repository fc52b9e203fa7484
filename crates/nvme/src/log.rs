//! Log pages (NVMe Base 2.0 §5.16.1).

use crate::words::{codes, size};
use crate::{Submission, U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A log page identifier (NVMe Base 2.0 figure 202).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LogId(pub u8);

codes! { LogId(u8), "log page";
    SUPPORTED = 0x00, "Supported Log Pages";
    ERROR = 0x01, "Error Information";
    SMART = 0x02, "SMART / Health Information";
    FIRMWARE = 0x03, "Firmware Slot Information";
    CHANGED_NAMESPACES = 0x04, "Changed Namespace List";
    EFFECTS = 0x05, "Commands Supported and Effects";
    FEATURES = 0x12, "Feature Identifiers Supported and Effects";
    ANA = 0x0C, "Asymmetric Namespace Access";
    DISCOVERY = 0x70, "Discovery";
    RESERVATION = 0x80, "Reservation Notification";
}

/// What a Get Log Page command asks for (NVMe Base 2.0 §5.16).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogRequest {
    /// Which page.
    pub log: LogId,
    /// Log specific field.
    pub specific: u8,
    /// The event that belongs to the page stays masked.
    pub retain_event: bool,
    /// Bytes asked for, a multiple of 4.
    pub bytes: u64,
    /// Offset, in bytes.
    pub offset: u64,
    /// The offset is an index of entries instead.
    pub offset_is_index: bool,
    /// The I/O command set that the page is asked for.
    pub csi: u8,
}

impl LogRequest {
    /// Reads the request of a Get Log Page command.
    pub fn from_submission(command: &Submission) -> LogRequest {
        let cdw10 = command.cdw10.get();
        let cdw11 = command.cdw11.get();
        let dwords = u64::from(cdw10 >> 16) | u64::from(cdw11 & 0xFFFF) << 16;
        LogRequest {
            log: LogId(cdw10 as u8),
            specific: (cdw10 >> 8) as u8 & 0x7F,
            retain_event: cdw10 & 1 << 15 != 0,
            bytes: (dwords + 1) * 4,
            offset: u64::from(command.cdw12.get()) | u64::from(command.cdw13.get()) << 32,
            offset_is_index: command.cdw14.get() & 1 << 23 != 0,
            csi: (command.cdw14.get() >> 24) as u8,
        }
    }

    /// Writes the request into a Get Log Page command; `bytes` is rounded up to a multiple of 4.
    pub fn fill(&self, command: &mut Submission) {
        let dwords = self.bytes.div_ceil(4).saturating_sub(1);
        let low = (dwords as u32 & 0xFFFF) << 16;
        let flags = u32::from(self.log.0) | u32::from(self.specific & 0x7F) << 8 | u32::from(self.retain_event) << 15;
        command.cdw10 = (low | flags).into();
        command.cdw11 = ((dwords >> 16) as u32 & 0xFFFF).into();
        command.cdw12 = (self.offset as u32).into();
        command.cdw13 = ((self.offset >> 32) as u32).into();
        command.cdw14 = (u32::from(self.offset_is_index) << 23 | u32::from(self.csi) << 24).into();
    }
}

/// One entry of the Error Information log (NVMe Base 2.0 figure 206).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ErrorEntry {
    /// Counts errors, from 1; 0 marks an entry that is not used.
    pub error_count: U64,
    /// Submission queue.
    pub sqid: U16,
    /// Command identifier.
    pub cid: U16,
    /// Status field as in the completion.
    pub status: U16,
    /// Byte (7:0) and bit (10:8) of the parameter in error; FFFFh: not a parameter.
    pub parameter: U16,
    /// First LBA in error.
    pub lba: U64,
    /// Namespace.
    pub nsid: U32,
    /// Vendor specific log that says more; 0: none.
    pub vendor_log: u8,
    /// Transport type.
    pub trtype: u8,
    /// Reserved.
    pub reserved1: [u8; 2],
    /// Command specific information.
    pub command_info: U64,
    /// Transport specific information.
    pub transport_info: U16,
    /// Reserved.
    pub reserved2: [u8; 22],
}

/// SMART / Health Information (NVMe Base 2.0 figure 207).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SmartLog {
    /// Critical warnings: bit 1 a temperature threshold is crossed.
    pub critical_warning: u8,
    /// Composite temperature, kelvin.
    pub temperature: U16,
    /// Available spare, percent.
    pub available_spare: u8,
    /// Available spare threshold, percent.
    pub spare_threshold: u8,
    /// Percentage of the endurance used.
    pub percentage_used: u8,
    /// Endurance group critical warning summary.
    pub group_warning: u8,
    /// Reserved.
    pub reserved1: [u8; 25],
    /// Units of 512,000 bytes read by hosts.
    pub data_units_read: U128,
    /// Units of 512,000 bytes written by hosts.
    pub data_units_written: U128,
    /// Read commands.
    pub host_reads: U128,
    /// Write commands.
    pub host_writes: U128,
    /// Minutes during which commands were outstanding.
    pub busy_minutes: U128,
    /// Power cycles.
    pub power_cycles: U128,
    /// Hours of operation.
    pub power_on_hours: U128,
    /// Unsafe shutdowns.
    pub unsafe_shutdowns: U128,
    /// Errors of the medium.
    pub media_errors: U128,
    /// Entries written to the Error Information log.
    pub error_entries: U128,
    /// Minutes above the warning temperature.
    pub warning_temperature_minutes: U32,
    /// Minutes above the critical temperature.
    pub critical_temperature_minutes: U32,
    /// Temperature sensors, kelvin; 0: not there.
    pub sensors: [U16; 8],
    /// Thermal management counters and times.
    pub thermal_management: [U32; 4],
    /// Reserved.
    pub reserved2: [u8; 280],
}

/// Firmware Slot Information (NVMe Base 2.0 figure 208).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FirmwareLog {
    /// Active slot in bits 2:0, the next in bits 6:4.
    pub active: u8,
    /// Reserved.
    pub reserved1: [u8; 7],
    /// Revisions by slot, ASCII.
    pub revisions: [[u8; 8]; 7],
    /// Reserved.
    pub reserved2: [u8; 448],
}

/// Changed Namespace List: the NSIDs, ascending, 0 where not used; more than fit: the first is FFFFFFFFh, the rest 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChangedNamespaces {
    /// Namespace identifiers.
    pub nsids: [U32; 1024],
}

/// Commands Supported and Effects (NVMe Base 2.0 figure 211).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EffectsLog {
    /// By admin opcode.
    pub admin: [U32; 256],
    /// By I/O opcode.
    pub io: [U32; 256],
    /// Reserved.
    pub reserved: [u8; 2048],
}

/// Bits of a command's entry in [`EffectsLog`].
pub mod effects {
    /// The command is supported.
    pub const SUPPORTED: u32 = 1 << 0;
    /// The command changes the content of logical blocks.
    pub const CONTENT_CHANGE: u32 = 1 << 1;
    /// The command changes what a namespace can do, or its size.
    pub const NAMESPACE_CAPABILITY_CHANGE: u32 = 1 << 2;
    /// The command changes what namespaces there are.
    pub const NAMESPACE_INVENTORY_CHANGE: u32 = 1 << 3;
}

size!(ErrorEntry = 64, SmartLog = 512, FirmwareLog = 512, ChangedNamespaces = 4096, EffectsLog = 4096);

/// The result of an Asynchronous Event Request, dword 0 (NVMe Base 2.0 figure 145).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncEvent {
    /// Event type.
    pub kind: u8,
    /// Event information.
    pub information: u8,
    /// The log page that says more and that, once read, lets the next event of this type through.
    pub log: LogId,
}

impl AsyncEvent {
    /// SMART / Health: a temperature threshold is crossed.
    pub const TEMPERATURE: AsyncEvent = AsyncEvent { kind: 1, information: 1, log: LogId::SMART };
    /// SMART / Health: NVM subsystem reliability.
    pub const RELIABILITY: AsyncEvent = AsyncEvent { kind: 1, information: 0, log: LogId::SMART };
    /// Notice: Namespace Attribute Changed.
    pub const NAMESPACE_CHANGED: AsyncEvent = AsyncEvent { kind: 2, information: 0, log: LogId::CHANGED_NAMESPACES };
    /// Notice: Asymmetric Namespace Access Change.
    pub const ANA_CHANGED: AsyncEvent = AsyncEvent { kind: 2, information: 3, log: LogId::ANA };
    /// I/O Command Set specific: Reservation Log Page Available (NVMe Base 2.0 §5.2).
    pub const RESERVATION_NOTIFICATION: AsyncEvent = AsyncEvent { kind: 6, information: 0, log: LogId::RESERVATION };
    /// Notice: Discovery Log Page Change.
    pub const DISCOVERY_CHANGED: AsyncEvent = AsyncEvent { kind: 2, information: 0xF0, log: LogId::DISCOVERY };

    /// Dword 0 of the completion.
    pub fn to_result(self) -> u64 {
        u64::from(self.kind & 7) | u64::from(self.information) << 8 | u64::from(self.log.0) << 16
    }

    /// Reads dword 0 of the completion.
    pub fn from_result(result: u64) -> AsyncEvent {
        AsyncEvent { kind: result as u8 & 7, information: (result >> 8) as u8, log: LogId((result >> 16) as u8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opcode::AdminOpcode;

    #[test]
    fn a_log_request_survives_the_command() {
        let request = LogRequest {
            log: LogId::DISCOVERY,
            specific: 5,
            retain_event: true,
            bytes: 0x4_0000 * 4 + 8,
            offset: 0x1_0000_0400,
            offset_is_index: true,
            csi: 2,
        };
        let mut command = Submission::admin(AdminOpcode::GET_LOG_PAGE, 1, 0);
        request.fill(&mut command);
        assert_eq!(LogRequest::from_submission(&command), request);
    }

    #[test]
    fn an_event_survives_the_completion() {
        for event in [AsyncEvent::NAMESPACE_CHANGED, AsyncEvent::ANA_CHANGED, AsyncEvent::DISCOVERY_CHANGED] {
            assert_eq!(AsyncEvent::from_result(event.to_result()), event);
        }
        assert_eq!(AsyncEvent::NAMESPACE_CHANGED.to_result(), 0x04_0002);
    }
}
