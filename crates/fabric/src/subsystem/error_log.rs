//! The Error Information log of a controller (NVMe Base 2.0c §5.16.1.2): the latest commands that failed.

use std::collections::VecDeque;

use nvme::log::ErrorEntry;
use nvme::opcode::NvmOpcode;
use nvme::{Status, Submission};

use super::limits::ERROR_ENTRIES_MAX;

/// See the module.
#[derive(Default)]
pub(super) struct ErrorLog {
    entries: VecDeque<ErrorEntry>,
    count: u64,
}

impl ErrorLog {
    /// Notes a command that failed. LBA and namespace are told where the command has them: elsewhere the same bytes of it
    /// mean other things.
    pub fn note(&mut self, qid: u16, command: &Submission, status: Status) {
        let has_lba = qid != 0 && NvmOpcode(command.opcode).has_lba();
        self.count += 1;
        let entry = ErrorEntry {
            error_count: self.count.into(),
            sqid: qid.into(),
            cid: command.command_id,
            status: status.to_field().into(),
            parameter: 0xFFFF.into(),
            lba: if has_lba { command.lba() } else { 0 }.into(),
            nsid: if command.fabrics_type().is_some() { 0.into() } else { command.nsid },
            vendor_log: 0,
            trtype: nvme::fabrics::TransportType::TCP.0,
            reserved1: [0; 2],
            command_info: 0.into(),
            transport_info: 0.into(),
            reserved2: [0; 22],
        };
        if self.entries.len() == ERROR_ENTRIES_MAX {
            self.entries.pop_back();
        }
        self.entries.push_front(entry);
    }

    /// The latest first, and how many there were.
    pub fn read(&self) -> (Vec<ErrorEntry>, u64) {
        (self.entries.iter().copied().collect(), self.count)
    }
}
