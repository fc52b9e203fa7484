//! Controller properties (NVMe Base 2.0 §3.1.3), which over fabrics are read and written by Property Get and Set.

/// Property offsets, bytes (NVMe Base 2.0 figure 35).
pub mod offset {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Controller Configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Controller Status, 4 bytes.
    pub const CSTS: u32 = 0x1C;
    /// NVM Subsystem Reset, 4 bytes.
    pub const NSSR: u32 = 0x20;
    /// Controller Ready Timeouts, 4 bytes: with media 15:0, independent of media 31:16, units of 500 ms.
    pub const CRTO: u32 = 0x68;
}

/// Controller Capabilities, the fields that have a meaning over fabrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// CSS bit 6: hosts may enable all I/O command sets there are (CC.CSS 110b).
    const COMMAND_SETS: u64 = 1 << 43;

    /// Capabilities of a fabrics controller: contiguous queues, NVM command set, 4 KiB memory pages.
    /// `entries_max` is the longest queue; `timeout_500ms` how long a host waits for CSTS.RDY, in units of 500 ms.
    pub const fn fabrics(entries_max: u16, timeout_500ms: u8) -> Capabilities {
        let contiguous = 1 << 16;
        let nvm = 1 << 37;
        // CRMS.CRWMS: ready with media, which a controller of version 2.0 has to offer (NVMe Base 2.0c §3.1.3.1).
        let ready_with_media = 1 << 59;
        Capabilities((entries_max - 1) as u64 | contiguous | (timeout_500ms as u64) << 24 | nvm | ready_with_media)
    }

    /// The same of a controller with several I/O command sets.
    pub const fn with_command_sets(self) -> Capabilities {
        Capabilities(self.0 | Capabilities::COMMAND_SETS)
    }

    /// Whether it has several I/O command sets.
    pub const fn has_command_sets(self) -> bool {
        self.0 & Capabilities::COMMAND_SETS != 0
    }

    /// The longest queue, in entries (MQES, zero based on the wire).
    pub const fn queue_entries_max(self) -> u32 {
        (self.0 & 0xFFFF) as u32 + 1
    }

    /// How long to wait for CSTS.RDY, in units of 500 ms.
    pub const fn timeout_500ms(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// CRMS.CRWMS: the controller can be ready with its media, and has CRTO.
    pub const fn ready_with_media(self) -> bool {
        self.0 & 1 << 59 != 0
    }

    /// Bytes of the smallest memory page, the unit of MDTS.
    pub const fn page_bytes_min(self) -> u32 {
        1 << (12 + ((self.0 >> 48) & 0xF))
    }
}

/// Controller Configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Configuration(pub u32);

impl Configuration {
    /// What a host sets to enable: EN, 64 byte submissions (IOSQES 6), 16 byte completions (IOCQES 4), 4 KiB pages.
    pub const ENABLE: Configuration = Configuration(1 | 6 << 16 | 4 << 20);

    /// CC.CSS 110b: all I/O command sets that the controller supports.
    pub const ALL_COMMAND_SETS: u8 = 6;

    /// [`Configuration::ENABLE`] with all I/O command sets that a controller of these capabilities has.
    pub const fn enable_all(capabilities: Capabilities) -> Configuration {
        let sets = if capabilities.has_command_sets() { Configuration::ALL_COMMAND_SETS } else { 0 };
        Configuration(Configuration::ENABLE.0 | (sets as u32) << 4)
    }

    /// EN.
    pub const fn enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// CSS: the I/O command set selected.
    pub const fn command_set(self) -> u8 {
        (self.0 >> 4) as u8 & 7
    }

    /// MPS: memory page size as a power of two above 4 KiB.
    pub const fn memory_page_size(self) -> u8 {
        (self.0 >> 7) as u8 & 0xF
    }

    /// AMS: arbitration mechanism selected.
    pub const fn arbitration(self) -> u8 {
        (self.0 >> 11) as u8 & 7
    }

    /// SHN: 0 none, 1 normal, 2 abrupt.
    pub const fn shutdown(self) -> u8 {
        (self.0 >> 14) as u8 & 3
    }

    /// The same with a normal shutdown notification.
    pub const fn with_normal_shutdown(self) -> Configuration {
        Configuration(self.0 & !(3 << 14) | 1 << 14)
    }

    /// IOSQES: log2 of the submission entry.
    pub const fn sq_entry_size(self) -> u8 {
        (self.0 >> 16) as u8 & 0xF
    }

    /// IOCQES: log2 of the completion entry.
    pub const fn cq_entry_size(self) -> u8 {
        (self.0 >> 20) as u8 & 0xF
    }
}

/// Controller Status bits.
pub mod status_bits {
    /// RDY: the controller takes commands.
    pub const READY: u32 = 1;
    /// CFS: controller fatal status.
    pub const FATAL: u32 = 1 << 1;
    /// SHST: shutdown status, two bits.
    pub const SHUTDOWN_MASK: u32 = 3 << 2;
    /// SHST: shutdown processing complete.
    pub const SHUTDOWN_COMPLETE: u32 = 2 << 2;
}
