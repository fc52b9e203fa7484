//! Who makes, deletes and hands out the namespaces of a subsystem: Namespace Management and Namespace Attachment (NVMe Base 2.0c
//! §5.22, §5.23) over an admin queue alone.
//!
//! Invariant: a command is sent once. An error other than [`ConnectError::Refused`] leaves open whether a namespace was made or
//! deleted: [`Manager::namespaces`] tells.

use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Duration;

use engine::task::{self, LocalFuture, Task};
use nvme::extension::Extension;
use nvme::identify::{Cns, IdentifyController, IdentifyNamespace, LbaFormat, oacs};
use nvme::management::{ManagementCommand, controller_list_bytes};
use nvme::register::Configuration;
use nvme::{NSID_ALL, PAGE_BYTES, Status};
use zerocopy::{FromZeros, IntoBytes};

use super::admin::{Admin, read_page};
use super::association::{admin_alone, keep_alive};
use super::error::ConnectError;
use super::fence;
use super::link::Link;
use super::options::Options;
use super::shape::{NAMESPACES_MAX, format_of};

/// What makes a namespace, for those who are told that it failed.
const CREATE: &str = "create a namespace";

/// What a subsystem has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Bytes of all its media (TNVMCAP); 0 where it does not say.
    pub total: u128,
    /// Bytes that belong to no namespace (UNVMCAP).
    pub unallocated: u128,
    /// It makes and deletes namespaces for this host.
    pub manages: bool,
    /// How long after the end of a connection a command that was sent over it may still take effect; none: nothing bounds that.
    pub late: Option<Duration>,
    /// Namespaces that it can have (MNAN, or where it does not say that the highest identifier, NN).
    pub namespaces_max: u32,
}

/// A namespace of a subsystem, attached or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocated {
    /// Its identifier.
    pub nsid: u32,
    /// Its size, bytes.
    pub bytes: u64,
    /// Its NGUID; zero where it has none.
    pub nguid: [u8; 16],
}

/// A namespace to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Its size, bytes: whole blocks.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// It may promise more than there is room for (NCAP below NSZE), where the subsystem can do that.
    pub thin: bool,
}

/// How namespaces of a subsystem can be.
#[derive(Clone, Debug)]
pub struct Formats {
    /// They may promise more than there is room for.
    pub thin: bool,
    unallocated: u128,
    formats: Vec<LbaFormat>,
}

impl Formats {
    /// NCAP of a thin namespace, blocks: how many may be allocated at a time. Targets that set this room aside, or keep to it,
    /// leave what is above unusable, so that it is all where all has room; where not, it is what there is, but for a sixteenth:
    /// others write meanwhile, and a target refuses what has no room.
    fn thin_capacity(&self, wanted: Wanted) -> u64 {
        let blocks = wanted.bytes / u64::from(wanted.block_size);
        let free = self.unallocated.saturating_sub(self.unallocated / 16) / u128::from(wanted.block_size);
        blocks.min(u64::try_from(free).unwrap_or(u64::MAX)).max(1)
    }
}

/// An admin queue to a subsystem. Dropping it ends it; the controller is there for as long.
pub struct Manager {
    link: Rc<Link>,
    options: Options,
    controller: u16,
    offered: OnceCell<Extension>,
    _keep_alive: Option<Task<()>>,
}

impl Manager {
    /// Connects to the subsystem that `options` names; their namespace does not matter.
    ///
    /// # Errors
    /// If the controller can't be reached or refuses.
    pub fn connect(options: Options) -> LocalFuture<'static, Result<Manager, ConnectError>> {
        Box::pin(async move {
            let (link, controller) = admin_alone(&options).await?;
            let kept = (!options.keep_alive.is_zero())
                .then(|| task::spawn(keep_alive(Rc::clone(&link), options.address, options.keep_alive)));
            Ok(Manager { link, options, controller, offered: OnceCell::new(), _keep_alive: kept })
        })
    }

    /// What the controller offers of our own commands, once it was asked.
    pub(super) fn offered(&self) -> &OnceCell<Extension> {
        &self.offered
    }

    pub(super) fn admin(&self) -> Admin<'_> {
        Admin { link: &self.link, address: self.options.address }
    }

    /// The identifier of this host's controller: what another manager attaches a namespace to, so that this host gets it.
    pub fn controller(&self) -> u16 {
        self.controller
    }

    /// What the subsystem has room for now.
    ///
    /// # Errors
    /// The connection is lost, or the controller refuses.
    pub async fn capacity(&self) -> Result<Capacity, ConnectError> {
        let page: IdentifyController = read_page(&self.admin().identify(Cns::CONTROLLER, 0).await?);
        Ok(Capacity {
            total: page.tnvmcap.get(),
            unallocated: page.unvmcap.get(),
            late: fence::bound(self.options.keep_alive, &page),
            manages: page.oacs.get() & oacs::NAMESPACE_MANAGEMENT != 0,
            namespaces_max: if page.mnan.get() == 0 { page.nn.get() } else { page.mnan.get() },
        })
    }

    /// All namespaces of the subsystem, ascending.
    ///
    /// # Errors
    /// The connection is lost, the controller refuses, or there are more than [`NAMESPACES_MAX`].
    pub async fn namespaces(&self) -> Result<Vec<Allocated>, ConnectError> {
        let admin = self.admin();
        let mut found: Vec<Allocated> = Vec::new();
        let mut after = 0;
        loop {
            let list = admin.identify(Cns::ALLOCATED_NAMESPACES, after).await?;
            let ids: Vec<u32> = list
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                .take_while(|&nsid| nsid != 0)
                .collect();
            // A list that does not rise would be read for ever.
            let rises = ids.is_sorted_by(|a, b| a < b) && ids.first().is_none_or(|&first| first > after);
            if !rises || found.len() + ids.len() > NAMESPACES_MAX {
                let ended = "its list of namespaces is too long, or does not rise";
                return Err(ConnectError::NoAnswer { step: "list allocated namespaces", ended });
            }
            let is_last = ids.len() < PAGE_BYTES / 4;
            after = ids.last().copied().unwrap_or(after);
            for nsid in ids {
                let page: IdentifyNamespace = read_page(&admin.identify(Cns::ALLOCATED_NAMESPACE, nsid).await?);
                // A page of zeroes: it was deleted meanwhile.
                if page.nsze.get() != 0 {
                    let block = 1u64.checked_shl(format_of(&page).lbads.into()).unwrap_or(0);
                    found.push(Allocated { nsid, bytes: page.nsze.get().saturating_mul(block), nguid: page.nguid });
                }
            }
            if is_last {
                return Ok(found);
            }
        }
    }

    /// Whether this controller has the namespace. One that is newer than the namespace shows what every host's next one has, unless
    /// somebody has attached the namespace.
    ///
    /// # Errors
    /// The connection is lost, or the controller refuses.
    pub async fn is_attached(&self, nsid: u32) -> Result<bool, ConnectError> {
        // The list begins above the identifier that is asked about.
        let list = self.admin().identify(Cns::ACTIVE_NAMESPACES, nsid.saturating_sub(1)).await?;
        Ok(list.first_chunk().is_some_and(|first| u32::from_le_bytes(*first) == nsid))
    }

    /// How namespaces can be that are made here, with the capacity that was read.
    ///
    /// # Errors
    /// The connection is lost, or the controller makes none for this host.
    pub async fn formats(&self, capacity: &Capacity) -> Result<Formats, ConnectError> {
        if !capacity.manages {
            return Err(ConnectError::Refused { step: CREATE, status: Status::INVALID_OPCODE.do_not_retry() });
        }
        // What all namespaces have in common says which formats there are, and whether thin ones can be.
        let common: IdentifyNamespace = read_page(&self.admin().identify(Cns::NAMESPACE, NSID_ALL).await?);
        let count = usize::from(common.nlbaf) + 1;
        let formats = common.lbaf.iter().take(count).copied().collect();
        Ok(Formats { thin: common.nsfeat & 1 != 0, unallocated: capacity.unallocated, formats })
    }

    /// Makes a namespace that several controllers may have; returns its identifier. It is attached to none. Nothing but the one
    /// command is sent.
    ///
    /// # Errors
    /// [`ConnectError::Refused`]: it was not made. Any other: it may have been.
    pub async fn create(&self, formats: &Formats, wanted: Wanted) -> Result<u32, ConnectError> {
        let plain =
            |format: &LbaFormat| format.ms.get() == 0 && format.lbads < 32 && 1 << format.lbads == wanted.block_size;
        let no_format = ConnectError::Refused { step: CREATE, status: Status::INVALID_FORMAT.do_not_retry() };
        let index = formats.formats.iter().position(plain).ok_or(no_format)? as u8;
        let blocks = wanted.bytes / u64::from(wanted.block_size);
        let mut page = IdentifyNamespace::new_zeroed();
        page.nsze = blocks.into();
        page.ncap = if wanted.thin && formats.thin { formats.thin_capacity(wanted) } else { blocks }.into();
        page.flbas = index & 0xF | (index & 0x30) << 1;
        page.nmic = 1;
        self.admin().manage(ManagementCommand::Create { command_set: 0 }, 0, page.as_bytes()).await
    }

    /// Deletes a namespace, wherever it is attached.
    ///
    /// # Errors
    /// [`ConnectError::Refused`]: it is there as it was. Any other: it may be gone.
    pub async fn delete(&self, nsid: u32) -> Result<(), ConnectError> {
        self.admin().manage(ManagementCommand::Delete, nsid, &[]).await.map(|_| ())
    }

    /// Attaches a namespace to a controller, whose host then has it: its next controllers begin with it, where the target keeps to
    /// NVMe Base 2.0c §3.1.1.1. One that is attached already stays so.
    ///
    /// # Errors
    /// As [`Manager::delete`].
    pub async fn attach(&self, nsid: u32, controller: u16) -> Result<(), ConnectError> {
        let list = controller_list_bytes(&[controller]);
        match self.admin().manage(ManagementCommand::Attach, nsid, &list).await {
            Err(ConnectError::Refused { status, .. }) if status.kind() == Status::NAMESPACE_ALREADY_ATTACHED => Ok(()),
            attached => attached.map(|_| ()),
        }
    }

    /// Tells the controller that the host is leaving, and disconnects.
    pub async fn leave(self) {
        // Politeness: what was asked for is done, whether or not the target takes notice of our leaving.
        let _ = self.admin().announce_shutdown(Configuration::ENABLE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thin_namespace_may_use_all_of_its_blocks_where_there_is_room() {
        let capacity = |unallocated, bytes| {
            let formats = Formats { thin: true, unallocated, formats: Vec::new() };
            formats.thin_capacity(Wanted { bytes, block_size: 4096, thin: true })
        };
        assert_eq!(capacity(1 << 30, 15 << 26), 15 << 14);
        assert_eq!(capacity(1 << 30, 1 << 30), 15 << 14, "others write meanwhile");
        assert_eq!((capacity(0, 4096), capacity(u128::MAX, !4095)), (1, u64::MAX >> 12));
    }
}
