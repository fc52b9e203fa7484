//! Features (NVMe Base 2.0 §5.27.1).

use crate::words::codes;

/// A feature identifier (NVMe Base 2.0 figure 317).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FeatureId(pub u8);

codes! { FeatureId(u8), "feature";
    ARBITRATION = 0x01, "Arbitration";
    POWER_MANAGEMENT = 0x02, "Power Management";
    TEMPERATURE_THRESHOLD = 0x04, "Temperature Threshold";
    ERROR_RECOVERY = 0x05, "Error Recovery";
    VOLATILE_WRITE_CACHE = 0x06, "Volatile Write Cache";
    NUMBER_OF_QUEUES = 0x07, "Number of Queues";
    INTERRUPT_COALESCING = 0x08, "Interrupt Coalescing";
    INTERRUPT_VECTOR = 0x09, "Interrupt Vector Configuration";
    WRITE_ATOMICITY = 0x0A, "Write Atomicity Normal";
    ASYNC_EVENT_CONFIG = 0x0B, "Asynchronous Event Configuration";
    TIMESTAMP = 0x0E, "Timestamp";
    KEEP_ALIVE_TIMER = 0x0F, "Keep Alive Timer";
    HOST_BEHAVIOR = 0x16, "Host Behavior Support";
    COMMAND_SET_PROFILE = 0x19, "I/O Command Set Profile";
    HOST_ID = 0x81, "Host Identifier";
    RESERVATION_NOTIFICATION = 0x82, "Reservation Notification Mask";
    RESERVATION_PERSISTENCE = 0x83, "Reservation Persistence";
    WRITE_PROTECT = 0x84, "Namespace Write Protection Config";
}

/// The SELECT field of Get Features, CDW10 bits 10:8.
pub mod select {
    /// The current value.
    pub const CURRENT: u8 = 0;
    /// The value after a reset.
    pub const DEFAULT: u8 = 1;
    /// The value kept over a power cycle.
    pub const SAVED: u8 = 2;
    /// What can be done with the feature: bit 0 saveable, bit 1 per namespace, bit 2 changeable.
    pub const CAPABILITIES: u8 = 3;
}

/// SAVE, CDW10 bit 31 of Set Features.
pub const SAVE: u32 = 1 << 31;

/// Bits of the Asynchronous Event Configuration feature (NVMe Base 2.0 figure 326) and of OAES.
pub mod async_event_config {
    /// Namespace Attribute Notices.
    pub const NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
    /// Firmware Activation Notices.
    pub const FIRMWARE_ACTIVATION: u32 = 1 << 9;
    /// Asymmetric Namespace Access Change Notices.
    pub const ANA_CHANGE: u32 = 1 << 11;
    /// Discovery Log Page Change Notification (discovery controllers).
    pub const DISCOVERY_CHANGE: u32 = 1 << 31;
    /// SMART / health critical warnings: a temperature threshold is crossed.
    pub const HEALTH_TEMPERATURE: u32 = 1 << 1;
    /// SMART / health critical warnings: the subsystem is not reliable any more.
    pub const HEALTH_RELIABILITY: u32 = 1 << 2;
    /// SMART / health critical warnings: all media are read-only.
    pub const HEALTH_READ_ONLY: u32 = 1 << 3;
    /// SMART / health critical warnings.
    pub const HEALTH_MASK: u32 = 0xFF;
}
