//! Namespace Management and Namespace Attachment (NVMe Base 2.0c §5.22, §5.23, §8.12), for hosts that have the right to manage. To
//! the others these commands are not there, as OACS and the effects log say. Our own commands ([`extension`]) go the same way.
//!
//! A command is executed as I/O is, beside the other commands of its queue, because it writes to a medium. All changes of a
//! target, also those of its operator, take turns; each is durable before it is published, and published before it is
//! answered. Once begun it runs to its end whatever becomes of its connection, and not before it was its turn
//! ([`turn`](super::turn)): else a namespace could be left that nobody knows of until the target starts anew.
//!
//! Thin namespaces and capacity: NCAP is the room that must be free when the namespace is made; nothing is set aside. A host
//! that wants to promise more than there is says NSZE above NCAP. What it gets has NCAP equal to NSZE: all of its blocks may
//! be written, as long as the store has room.

use std::sync::Arc;

use device::{AnyNamespace, Mode, Namespace};
use engine::Buf;
use nvme::extension::ExtensionCommand;
use nvme::identify::IdentifyNamespace;
use nvme::management::{ManagementCommand, controller_list};
use nvme::opcode::AdminOpcode;
use nvme::reservation::Access;
use nvme::{Nqn, Status, Submission};
use zerocopy::FromBytes;

use super::ana::{self, ANA_GROUP_DEFAULT};
use super::attachment::{Attachment, Hosts, Managed};
use super::commands::align_in_capsule;
use super::config::ConfigError;
use super::connection::Connection;
use super::controller::Controller;
use super::drain::{Drain, drain};
use super::io;
use super::limits::NSID_MAX;
use super::reservation::Rights;
use super::shared::{Attached, Change, Shared, State, Subsystem};
use super::slots::Stage;
use super::store::{BLOCK_SIZES, NamespaceStore, NewNamespace, Room, StoreError};
use super::turn::{Changed, Keep};

mod deletion;
mod extension;

pub use deletion::DeleteError;

/// CSI of the NVM command set.
const CSI_NVM: u8 = 0;
/// FLBAS: the lower and the upper bits of the format's index (NVM Command Set 1.0c figure 97).
const FORMAT_LOW: u8 = 0xF;
const FORMAT_HIGH: u8 = 0x60;

const INVALID_FIELD: Status = Status::INVALID_FIELD.do_not_retry();
const UNLISTED: Status = Status::INVALID_CONTROLLER_LIST.do_not_retry();
const INVALID_NAMESPACE: Status = Status::INVALID_NAMESPACE.do_not_retry();

/// Controllers, each with the identifier by which it knows a namespace.
type Watchers = Vec<(Arc<Controller>, u32)>;

/// Whether it is one of the commands that are executed here.
pub(super) fn is_one(opcode: AdminOpcode) -> bool {
    let standard = [AdminOpcode::NAMESPACE_MANAGEMENT, AdminOpcode::NAMESPACE_ATTACHMENT];
    standard.contains(&opcode) || ExtensionCommand::OPCODES.contains(&opcode)
}

/// Bytes that one of the commands brings.
pub(super) fn data_bytes(command: &Submission) -> Option<u32> {
    let standard = ManagementCommand::from_submission(command).map(ManagementCommand::data_bytes);
    let own = || ExtensionCommand::from_submission(command).map(ExtensionCommand::data_bytes);
    standard.or_else(own).filter(|&bytes| bytes > 0)
}

/// One of the commands on its way.
pub(super) struct Request {
    shared: Arc<Shared>,
    controller: Arc<Controller>,
    command: Submission,
    data: Vec<u8>,
}

impl Connection {
    /// Lets the command wait to be executed; `data` is here as [`data_bytes`] says.
    pub(super) fn manage(&mut self, slot: u16, command: &Submission, controller: &Arc<Controller>) {
        if !self.shared.manages_by(controller, AdminOpcode(command.opcode)) {
            return self.answer(slot, Status::INVALID_OPCODE.do_not_retry(), 0);
        }
        let page = ExtensionCommand::from_submission(command).map_or(0, ExtensionCommand::page_bytes);
        if page > 0
            && let Err(status) = io::check_to_host(command, page)
        {
            return self.answer(slot, status, 0);
        }
        let entry = self.slots.at(slot);
        align_in_capsule(entry);
        entry.stage = Stage::Ready;
        let data = entry.data.to_vec();
        let (shared, controller) = (self.shared.clone(), controller.clone());
        self.requests.push_back((slot, Box::new(Request { shared, controller, command: *command, data })));
    }
}

impl Request {
    /// Carries it out: the status, dword 0 of the completion, and data for the host.
    pub async fn execute(self: Box<Self>, keep: Keep) -> (Status, u32, Buf) {
        let done = match ExtensionCommand::OPCODES.contains(&AdminOpcode(self.command.opcode)) {
            true => self.extend(keep).await,
            false => self.run(keep).await.map(|result| (result, Buf::default())),
        };
        match done {
            Ok((result, data)) => (Status::SUCCESS, result, data),
            Err(status) => (status, 0, Buf::default()),
        }
    }

    async fn run(self: Box<Self>, keep: Keep) -> Changed {
        let asked = ManagementCommand::from_submission(&self.command).ok_or(INVALID_FIELD)?;
        self.in_turn(keep, async move |request: &Request| request.change(asked).await).await
    }

    /// Makes a change when its turn has come.
    async fn in_turn(self: Box<Self>, keep: Keep, change: impl AsyncFnOnce(&Request) -> Changed + 'static) -> Changed {
        let own = self.controller.may_wait(0).await;
        let turn = self.shared.management.lock(0, 1, Mode::Exclusive).await;
        self.controller.check_there()?;
        keep(Box::pin(async move {
            let _turns = (own, turn);
            change(&self).await
        }))
        .await
    }

    async fn change(&self, asked: ManagementCommand) -> Changed {
        let nsid = self.command.nsid.get();
        self.check_right(&self.shared.lock())?; // it may have ended: the turns of others took their time
        match asked {
            ManagementCommand::Create { .. } if nsid != 0 => Err(INVALID_FIELD),
            ManagementCommand::Create { command_set: CSI_NVM } => self.create().await,
            ManagementCommand::Create { .. } => Err(Status::COMMAND_SET_NOT_SUPPORTED.do_not_retry()),
            ManagementCommand::Delete => self.delete(nsid).await.map(|()| 0),
            ManagementCommand::Attach => self.attach(nsid, true).await.map(|()| 0),
            ManagementCommand::Detach => self.attach(nsid, false).await.map(|()| 0),
        }
    }

    fn nqn(&self) -> &Nqn {
        self.controller.subsystem()
    }

    // Create.

    async fn create(&self) -> Result<u32, Status> {
        let wanted = Wanted::read(&self.data)?;
        let (store, nsid) = self.choose(&wanted)?;
        let Wanted { group, shared, bytes, block_size, .. } = wanted;
        let subsystem = self.nqn().clone();
        let hosts = self.shared.lock().first_hosts(&self.controller, shared);
        let attachment = Attachment { subsystem, nsid, group, shared, hosts, copy: None };
        let record = attachment.encode().ok_or(Status::INTERNAL_ERROR)?;
        let new = NewNamespace { bytes, block_size, record: &record };
        let made = store.create(new).await.map_err(|error| status_of(&error))?;
        let managed = Managed { store, attachment, controllers: Default::default() };
        let right = self.check_right(&self.shared.lock());
        self.take_in(made, managed, right).await
    }

    /// Lets everybody see a namespace that was made, if its host has the right to that still; else it is deleted again.
    async fn take_in(&self, made: AnyNamespace, managed: Managed, right: Result<(), Status>) -> Result<u32, Status> {
        let (nguid, store) = (made.info().nguid, managed.store.clone());
        let (nsid, group) = (managed.attachment.nsid, managed.attachment.group);
        let refused = match right {
            Ok(()) => match self.shared.insert(self.nqn(), nsid, group, made, Some(managed)) {
                Ok(()) => return Ok(nsid),
                Err(error) => {
                    // The operator has added one under the same identifier meanwhile.
                    tracing::warn!(%error, nsid, "a namespace was made in vain");
                    Status::INTERRUPTED
                }
            },
            Err(status) => {
                tracing::warn!(nsid, "a namespace was made in vain: its host may manage no more");
                status
            }
        };
        store.delete(nguid).await.map_err(|error| status_of(&error))?;
        Err(refused)
    }

    /// The store with the most room of those that offer the format, and the lowest identifier that is free.
    fn choose(&self, wanted: &Wanted) -> Result<(Arc<dyn NamespaceStore>, u32), Status> {
        let state = self.shared.lock();
        let subsystem = state.subsystems.get(self.nqn()).ok_or(INVALID_FIELD)?;
        let offering = subsystem.stores.iter().filter(|store| store.block_sizes().contains(&wanted.block_size));
        let store = offering.max_by_key(|store| store.room().free).ok_or(Status::INVALID_FORMAT.do_not_retry())?;
        if wanted.room > store.room().free {
            return Err(Status::INSUFFICIENT_CAPACITY.do_not_retry());
        }
        let nsid = free_nsid(subsystem).ok_or(Status::NAMESPACE_ID_UNAVAILABLE.do_not_retry())?;
        Ok((store.clone(), nsid))
    }

    /// Whether the host may manage namespaces still.
    fn check_right(&self, state: &State) -> Result<(), Status> {
        if state.may_manage(&self.controller) { Ok(()) } else { Err(Status::INVALID_OPCODE.do_not_retry()) }
    }

    /// Whether this host may change the namespace: it may manage, the namespace is a store's, and no reservation keeps the host
    /// out. To be asked in the step that makes the change: while a medium is waited for, each of them may become otherwise.
    fn check(&self, state: &State, nsid: u32) -> Result<(), Status> {
        self.check_right(state)?;
        let subsystem = state.subsystems.get(self.nqn()).ok_or(INVALID_FIELD)?;
        let attached = allocated(subsystem, nsid)?;
        if !subsystem.managed.contains_key(&nsid) {
            return Err(Status::OPERATION_DENIED.do_not_retry());
        }
        let wanted = Access::wanted_by_admin(AdminOpcode(self.command.opcode));
        if !attached.reservations.admits(&mut Rights::default(), &self.controller.host_id(), wanted) {
            return Err(Status::RESERVATION_CONFLICT.do_not_retry());
        }
        Ok(())
    }

    // Attach and detach.

    async fn attach(&self, nsid: u32, attach: bool) -> Result<(), Status> {
        let listed = controller_list(&self.data).filter(|listed| !listed.is_empty()).ok_or(UNLISTED)?;
        let (namespace, attachment) = self.plan_attach(&self.shared.lock(), nsid, attach, &listed)?;
        let record = attachment.encode().ok_or(Status::ATTACHMENT_LIMIT_EXCEEDED.do_not_retry())?;
        keep(&namespace, nsid, &record).await.map_err(|error| io::status_of(&error))?;
        let concerned = match self.publish(nsid, attach, attachment, &listed) {
            Ok(concerned) => concerned,
            Err(status) => {
                self.keep_what_holds(nsid).await;
                return Err(status);
            }
        };
        if !attach {
            // Whoever detaches a namespace from another host, and then reads it, must not be overtaken by what that host had
            // under way.
            drain(&concerned, |_| Some(Drain::Finish)).await;
        }
        Ok(())
    }

    /// Lets everybody see the attachment that is durable now, if it is still what follows from the command: while it was written
    /// a host may have come back to its private namespace, or this one lost its right. The controllers concerned.
    fn publish(&self, nsid: u32, attach: bool, attachment: Attachment, listed: &[u16]) -> Result<Watchers, Status> {
        let mut state = self.shared.lock();
        let state = &mut *state;
        let (_, now) = self.plan_attach(state, nsid, attach, listed)?;
        if now != attachment {
            return Err(Status::INTERRUPTED);
        }
        let subsystem = state.subsystems.get_mut(self.nqn()).ok_or(INVALID_FIELD)?;
        let managed = subsystem.managed.get_mut(&nsid).ok_or(INVALID_FIELD)?;
        managed.attachment = attachment;
        for id in listed {
            if attach {
                managed.controllers.insert(*id)
            } else {
                managed.controllers.remove(id)
            };
        }
        let concerned = subsystem.attachment_changed(nsid);
        // The one that was asked tells its host by the completion (NVMe Base 2.0c §5.2).
        let told: Vec<u16> = listed.iter().copied().filter(|&id| id != self.controller.id()).collect();
        self.shared.changed(state, &Change::Attachment(self.nqn(), &concerned, &told));
        Ok(listed.iter().filter_map(|id| Some((state.controllers.get(id)?.clone(), nsid))).collect())
    }

    /// An attachment was made durable in vain: what holds is written over it.
    async fn keep_what_holds(&self, nsid: u32) {
        let holding = {
            let state = self.shared.lock();
            let subsystem = state.subsystems.get(self.nqn());
            subsystem.and_then(|found| {
                let namespace = found.namespaces.get(&nsid)?.namespace.clone();
                Some((namespace, found.managed.get(&nsid)?.attachment.encode()?))
            })
        };
        if let Some((namespace, record)) = holding {
            // The error was told; the next start takes the namespace in as it was to be, of which nobody was told.
            let _ = keep(&namespace, nsid, &record).await;
        }
    }

    /// What the attachment becomes; or why not.
    fn plan_attach(
        &self,
        state: &State,
        nsid: u32,
        attach: bool,
        listed: &[u16],
    ) -> Result<(AnyNamespace, Attachment), Status> {
        let subsystem = state.subsystems.get(self.nqn()).ok_or(INVALID_FIELD)?;
        allocated(subsystem, nsid)?;
        let found = |id| state.controllers.get(id).filter(|found| found.is_let_in());
        if !listed.iter().all(|id| found(id).is_some_and(|found| found.subsystem() == self.nqn())) {
            return Err(UNLISTED);
        }
        if attach && listed.iter().any(|&id| subsystem.is_attached(nsid, id)) {
            return Err(Status::NAMESPACE_ALREADY_ATTACHED.do_not_retry());
        }
        self.check(state, nsid)?;
        let (namespace, managed) = (&allocated(subsystem, nsid)?.namespace, subsystem.managed.get(&nsid));
        let managed = managed.ok_or(INVALID_FIELD)?;
        if !attach && listed.iter().any(|id| !managed.controllers.contains(id)) {
            return Err(Status::NAMESPACE_NOT_ATTACHED.do_not_retry());
        }
        if attach && !managed.attachment.shared && listed.len() + managed.controllers.len() > 1 {
            return Err(Status::NAMESPACE_PRIVATE.do_not_retry());
        }
        let mut attachment = managed.attachment.clone();
        for id in listed {
            let Some(host) = state.controllers.get(id).map(|found| found.host()) else { continue };
            let stays = managed.controllers.iter().filter(|other| !listed.contains(other));
            let stays = stays.filter_map(|other| state.controllers.get(other)).any(|other| other.host() == host);
            attachment.hosts.set(host, attach || stays);
        }
        Ok((namespace.clone(), attachment))
    }
}

/// Makes an attachment durable.
async fn keep(namespace: &AnyNamespace, nsid: u32, record: &[u8]) -> Result<(), device::Error> {
    let known = namespace.attribute(super::attachment::ATTRIBUTE)?;
    if known.as_deref() != Some(record) {
        let kept = namespace.set_attribute(super::attachment::ATTRIBUTE, record).await;
        kept.inspect_err(|error| {
            tracing::error!(%error, nsid, "an attachment could not be made durable, and so was not made");
        })?;
    }
    Ok(())
}

/// What a host wants of a namespace to be made (NVM Command Set 1.0c §4.1.6): the fields that a host sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wanted {
    bytes: u64,
    /// NCAP in bytes.
    room: u64,
    block_size: u32,
    group: u32,
    shared: bool,
}

impl Wanted {
    fn read(data: &[u8]) -> Result<Wanted, Status> {
        let short = Status::DATA_SGL_LENGTH_INVALID.do_not_retry();
        let (page, _) = IdentifyNamespace::read_from_prefix(data).map_err(|_| short)?;
        let format = usize::from(page.flbas & FORMAT_LOW | (page.flbas & FORMAT_HIGH) >> 1);
        let block_size = *BLOCK_SIZES.get(format).ok_or(Status::INVALID_FORMAT.do_not_retry())?;
        if page.dps != 0 {
            return Err(Status::INVALID_FORMAT.do_not_retry()); // blocks have no metadata to protect them
        }
        let (size, capacity) = (page.nsze.get(), page.ncap.get());
        if size == 0 || capacity == 0 || capacity > size || page.nmic & !1 != 0 {
            return Err(INVALID_FIELD);
        }
        if page.nvmsetid.get() != 0 || page.endgid.get() != 0 {
            return Err(INVALID_FIELD); // neither NVM sets nor endurance groups are here
        }
        let group = if page.anagrpid.get() == 0 { ANA_GROUP_DEFAULT } else { page.anagrpid.get() };
        ana::check(group).map_err(|_| Status::INVALID_ANA_GROUP.do_not_retry())?;
        let bytes_of = |blocks: u64| blocks.checked_mul(u64::from(block_size));
        let too_large = Status::INSUFFICIENT_CAPACITY.do_not_retry();
        let (bytes, room) = (bytes_of(size).ok_or(too_large)?, bytes_of(capacity).ok_or(too_large)?);
        Ok(Wanted { bytes, room, block_size, group, shared: page.nmic & 1 != 0 })
    }
}

/// The namespace with this identifier; the status for one that can't be, or is not (NVMe Base 2.0c §3.2.1.2).
fn allocated(subsystem: &Subsystem, nsid: u32) -> Result<&Attached, Status> {
    if nsid == 0 || nsid > NSID_MAX {
        return Err(INVALID_NAMESPACE);
    }
    subsystem.namespaces.get(&nsid).ok_or(INVALID_FIELD)
}

fn free_nsid(subsystem: &Subsystem) -> Option<u32> {
    (1..=NSID_MAX).find(|nsid| !subsystem.namespaces.contains_key(nsid))
}

fn status_of(error: &StoreError) -> Status {
    match error {
        StoreError::NoRoom(_) => Status::INSUFFICIENT_CAPACITY.do_not_retry(),
        StoreError::Unknown | StoreError::Unfit(_) => INVALID_FIELD,
        StoreError::Device(device::Error::OutOfSpace) => Status::INSUFFICIENT_CAPACITY.do_not_retry(),
        StoreError::Device(error) => io::status_of(error),
    }
}

/// Why a namespace is not taken in.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// As for every namespace.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What is kept with it can't be read.
    #[error(
        "where the namespace belongs can't be read: {0}; start a newer version, or detach it from the drive's target"
    )]
    Record(String),
    /// The subsystem has no identifier left.
    #[error("the subsystem has {NSID_MAX} namespaces, which is the most; delete some first")]
    NoNamespaceId,
    /// What is to be kept with it could not be.
    #[error("where the namespace belongs can't be kept with it: {0}")]
    Device(#[from] device::Error),
}

impl State {
    fn may_manage(&self, controller: &Controller) -> bool {
        let subsystem = self.subsystems.get(controller.subsystem()).filter(|found| !found.stores.is_empty());
        subsystem.is_some_and(|subsystem| subsystem.access.config(controller.host()).manage)
    }

    /// The hosts that begin with what a controller's host makes.
    fn first_hosts(&self, controller: &Controller, shared: bool) -> Hosts {
        let subsystem = self.subsystems.get(controller.subsystem());
        let for_all = subsystem.is_some_and(|subsystem| subsystem.access.config(controller.host()).makes_for_all);
        if for_all && shared { Hosts::any() } else { Hosts::default() }
    }
}

impl Shared {
    /// Whether a controller's host may make and delete namespaces of its subsystem.
    pub fn may_manage(&self, controller: &Controller) -> bool {
        self.lock().may_manage(controller)
    }

    /// The room of its stores together; `None` where it has none.
    pub fn room(&self, nqn: &Nqn) -> Option<Room> {
        let stores = self.lock().subsystems.get(nqn)?.stores.clone();
        let sum = |sum: Room, room: Room| Room { total: sum.total + room.total, free: sum.free + room.free };
        stores.iter().map(|store| store.room()).reduce(sum)
    }

    /// The block sizes that its stores offer.
    pub fn formats(&self, nqn: &Nqn) -> &'static [u32] {
        let state = self.lock();
        let stores = state.subsystems.get(nqn).map_or(&[][..], |subsystem| &subsystem.stores[..]);
        stores.iter().map(|store| store.block_sizes()).max_by_key(|sizes| sizes.len()).unwrap_or(&BLOCK_SIZES[..1])
    }

    pub fn add_store(&self, nqn: &Nqn, store: Arc<dyn NamespaceStore>) -> Result<(), ConfigError> {
        self.lock().subsystem(nqn)?.stores.push(store);
        Ok(())
    }
}

impl Shared {
    /// Takes in a namespace of a store: as it was when it was last served, or for every host where it never was.
    pub async fn adopt(
        &self,
        nqn: &Nqn,
        store: Arc<dyn NamespaceStore>,
        namespace: AnyNamespace,
    ) -> Result<u32, AdoptError> {
        let _turn = self.management.lock(0, 1, Mode::Exclusive).await;
        let kept = Attachment::of(&namespace).map_err(AdoptError::Record)?;
        let subsystem = nqn.clone();
        let attachment = match kept.clone() {
            Some(kept) => Attachment { subsystem, ..kept },
            None => {
                let nsid = free_nsid(self.lock().subsystem(nqn)?).ok_or(AdoptError::NoNamespaceId)?;
                Attachment { subsystem, nsid, group: ANA_GROUP_DEFAULT, shared: true, hosts: Hosts::any(), copy: None }
            }
        };
        let nsid = attachment.nsid;
        if kept.as_ref() != Some(&attachment) {
            let record = attachment.encode().ok_or(device::Error::OutOfSpace)?;
            namespace.set_attribute(super::attachment::ATTRIBUTE, &record).await?;
        }
        let (group, controllers) = (attachment.group, Default::default());
        self.insert(nqn, nsid, group, namespace, Some(Managed { store, attachment, controllers }))?;
        self.greet_all(nqn, nsid);
        Ok(nsid)
    }

    /// Attaches a namespace that has come to the controllers that are there already. Others stay as they are: what was detached
    /// from a controller is not its again because another namespace has come.
    fn greet_all(&self, nqn: &Nqn, nsid: u32) {
        let mut state = self.lock();
        let State { subsystems, controllers, .. } = &mut *state;
        let Some(subsystem) = subsystems.get_mut(nqn) else { return };
        let here = controllers.values().filter(|controller| controller.subsystem() == nqn);
        if let Some(managed) = subsystem.managed.get_mut(&nsid) {
            for controller in here.clone() {
                managed.greet(controller);
            }
        }
        let concerned = subsystem.attachment_changed(nsid);
        let told: Vec<u16> = here.map(|found| found.id()).filter(|&id| subsystem.is_attached(nsid, id)).collect();
        self.changed(&mut state, &Change::Attachment(nqn, &concerned, &told));
    }
}
