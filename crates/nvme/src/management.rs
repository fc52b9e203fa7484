//! Namespace Management and Namespace Attachment (NVMe Base 2.0c §5.22, §5.23; NVM Command Set 1.0c §4.1.6).
//!
//! ```text
//!  Namespace Management: CDW10 3:0 SEL (0 create, 1 delete), CDW11 31:24 CSI; create brings 4096 bytes, laid out as the
//!                        Identify Namespace structure; its completion's dword 0 is the new NSID
//!  Namespace Attachment: CDW10 3:0 SEL (0 attach, 1 detach); brings a Controller List of 4096 bytes
//! ```

use crate::opcode::AdminOpcode;
use crate::{PAGE_BYTES, Submission};

/// Identifiers in a Controller List, at most (NVMe Base 2.0c §4.4.1).
pub const CONTROLLER_LIST_MAX: usize = PAGE_BYTES / 2 - 1;

/// What one of the two commands asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ManagementCommand {
    /// Make a namespace of this I/O command set.
    Create {
        /// CSI.
        command_set: u8,
    },
    /// Delete one, or all.
    Delete,
    /// Attach one to controllers.
    Attach,
    /// Detach it from controllers.
    Detach,
}

impl ManagementCommand {
    /// Reads a command; `None` where it is neither of the two, or SEL means nothing.
    pub fn from_submission(command: &Submission) -> Option<ManagementCommand> {
        let select = command.cdw10.get() & 0xF;
        match (AdminOpcode(command.opcode), select) {
            (AdminOpcode::NAMESPACE_MANAGEMENT, 0) => {
                Some(ManagementCommand::Create { command_set: (command.cdw11.get() >> 24) as u8 })
            }
            (AdminOpcode::NAMESPACE_MANAGEMENT, 1) => Some(ManagementCommand::Delete),
            (AdminOpcode::NAMESPACE_ATTACHMENT, 0) => Some(ManagementCommand::Attach),
            (AdminOpcode::NAMESPACE_ATTACHMENT, 1) => Some(ManagementCommand::Detach),
            _ => None,
        }
    }

    /// Fills opcode, CDW10 and CDW11 of a command.
    pub fn fill(self, command: &mut Submission) {
        let (opcode, select, command_set) = match self {
            ManagementCommand::Create { command_set } => (AdminOpcode::NAMESPACE_MANAGEMENT, 0, command_set),
            ManagementCommand::Delete => (AdminOpcode::NAMESPACE_MANAGEMENT, 1, 0),
            ManagementCommand::Attach => (AdminOpcode::NAMESPACE_ATTACHMENT, 0, 0),
            ManagementCommand::Detach => (AdminOpcode::NAMESPACE_ATTACHMENT, 1, 0),
        };
        command.opcode = opcode.0;
        command.cdw10 = select.into();
        command.cdw11 = (u32::from(command_set) << 24).into();
    }

    /// What it is called where one is told of it.
    pub fn name(self) -> &'static str {
        match self {
            ManagementCommand::Create { .. } => "create a namespace",
            ManagementCommand::Delete => "delete a namespace",
            ManagementCommand::Attach => "attach a namespace",
            ManagementCommand::Detach => "detach a namespace",
        }
    }

    /// Bytes of data from the host.
    pub fn data_bytes(self) -> u32 {
        if self == ManagementCommand::Delete { 0 } else { PAGE_BYTES as u32 }
    }
}

/// The identifiers of a Controller List; `None` where it is none: too long for its bytes, or not ascending
/// (NVMe Base 2.0c §4.4.1).
pub fn controller_list(bytes: &[u8]) -> Option<Vec<u16>> {
    let mut words = bytes.chunks_exact(2).map(|word| u16::from_le_bytes([word[0], word[1]]));
    let count = usize::from(words.next()?);
    let ids: Vec<u16> = words.take(count).collect();
    (ids.len() == count && count <= CONTROLLER_LIST_MAX && ids.is_sorted_by(|a, b| a < b)).then_some(ids)
}

/// A Controller List of `ids`, at most [`CONTROLLER_LIST_MAX`] of them.
pub fn controller_list_bytes(ids: &[u16]) -> Vec<u8> {
    debug_assert!(ids.len() <= CONTROLLER_LIST_MAX);
    std::iter::once(&(ids.len() as u16)).chain(ids).flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_survive_the_wire() {
        let create = ManagementCommand::Create { command_set: 2 };
        for asked in [create, ManagementCommand::Delete, ManagementCommand::Attach, ManagementCommand::Detach] {
            let mut command = Submission::admin(AdminOpcode::IDENTIFY, 1, 0);
            asked.fill(&mut command);
            assert_eq!(ManagementCommand::from_submission(&command), Some(asked));
            command.cdw10 = 2.into();
            assert_eq!(ManagementCommand::from_submission(&command), None);
        }
    }

    #[test]
    fn controller_lists_ascend_and_fit() {
        assert_eq!(controller_list(&controller_list_bytes(&[1, 7, 9])), Some(vec![1, 7, 9]));
        assert_eq!(controller_list(&controller_list_bytes(&[])), Some(vec![]));
        for bad in [&[2, 0, 1, 0][..], &[2, 0, 1, 0, 1, 0], &[2, 0, 2, 0, 1, 0], &[]] {
            assert_eq!(controller_list(bad), None, "{bad:?}");
        }
        let long: Vec<u8> = 2048_u16.to_le_bytes().into_iter().chain((1..2048).flat_map(u16::to_le_bytes)).collect();
        assert_eq!(controller_list(&long), None, "more than a list has room for");
    }
}
