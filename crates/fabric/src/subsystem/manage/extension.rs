//! Commands of our own on the namespaces of stores that can do it: copies, growth, and where two namespaces differ. What goes
//! over the wire is in [`nvme::extension`].
//!
//! Invariants:
//! - A snapshot is a change as a write is: for whoever may write to the namespace at the moment it is taken. The reservation stays
//!   as it is from the look at it until the snapshot is durable ([`Reservations::hold`](Reservations)): so when a Preempt is
//!   answered every snapshot of the preempted host has been taken, and none will be.
//! - A tag is given once for each source and kind: the list that is looked at and the entry into it lie in one turn of management.
//!   It is durable in the step that makes the copy, so that a copy without a tag, which nobody asks for again, is never left.
//! - Clones, growth, and what concerns all namespaces are for who may manage. Growth takes nothing from anybody: no reservation
//!   stands in its way.
//!
//! A snapshot is for the hosts of its source, as long as the source is there; afterwards for those that a manager names. A clone
//! is attached as a namespace is that the same host creates. A snapshot of a snapshot is for managers to take. Either is a
//! namespace of its own that outlives its source. What a snapshot holds may be read by whoever has the source, whatever reservation
//! the source has.

use std::ops::Bound;
use std::sync::Arc;

use device::{Namespace, Writability};
use engine::Buf;
use nvme::extension::{
    COPY_ENTRIES_MAX, CopyEntry, CopyKind, CopyRequest, DIFFERENCE_RANGES_MAX, DIFFERENCES_END, DifferenceRange,
    DifferencesHead, Extension, ExtensionCommand,
};
use nvme::opcode::AdminOpcode;
use nvme::reservation::Access;
use nvme::{NSID_ALL, PAGE_BYTES, Status};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{INVALID_FIELD, INVALID_NAMESPACE, Request, allocated, free_nsid, status_of};
use crate::subsystem::attachment::{Attachment, CopyOf, Hosts, Managed};
use crate::subsystem::controller::Controller;
use crate::subsystem::limits::{NSID_MAX, NSIDS_OF_MANAGERS, SNAPSHOTS_MAX};
use crate::subsystem::reservation::{Reservations, Rights};
use crate::subsystem::shared::{Attached, Shared, State, Subsystem};
use crate::subsystem::store::{CopyStore, NamespaceStore, NewCopy};
use crate::subsystem::turn::Keep;

const DENIED: Status = Status::OPERATION_DENIED.do_not_retry();

/// A namespace that a command names, of a store with the extension.
struct Named<'a> {
    subsystem: &'a Subsystem,
    attached: &'a Attached,
    managed: &'a Managed,
}

/// What becomes of the wish for a copy.
enum Planned {
    /// It was made before, and has this identifier.
    Before(u32),
    /// It is to be made of the namespace with this NGUID.
    New { store: Arc<dyn NamespaceStore>, source: [u8; 16], attachment: Attachment, record: Vec<u8> },
}

impl Request {
    /// Carries out a command of our own: dword 0 of the completion, and data for the host. Looked at before the wait, what is
    /// refused takes no turn.
    pub(super) async fn extend(self: Box<Self>, keep: Keep) -> Result<(u32, Buf), Status> {
        let asked = ExtensionCommand::from_submission(&self.command).ok_or(INVALID_FIELD)?;
        let nsid = self.command.nsid.get();
        let changed = match asked {
            ExtensionCommand::Copies { after } => return Ok((0, self.copies(nsid, after)?)),
            ExtensionCommand::Differences { base, lba } => return Ok((0, self.differences(nsid, base, lba)?)),
            ExtensionCommand::Copy(kind) => {
                self.check_copy(&self.shared.lock(), nsid, kind)?;
                self.in_turn(keep, async move |request: &Request| request.copy(nsid, kind).await).await?
            }
            ExtensionCommand::DeleteCopy { nguid } => {
                self.check_delete_copy(&self.shared.lock(), nsid, nguid)?;
                let change = async move |request: &Request| request.delete_copy(nsid, nguid).await.map(|()| 0);
                self.in_turn(keep, change).await?
            }
            ExtensionCommand::Grow { blocks } => {
                self.check_right(&self.shared.lock())?;
                self.in_turn(keep, async move |request: &Request| request.grow(nsid, blocks).await.map(|()| 0)).await?
            }
        };
        Ok((changed, Buf::default()))
    }

    fn manages(&self, state: &State) -> bool {
        state.may_manage(&self.controller)
    }

    /// The namespace with this identifier, if this host has it or manages.
    fn named<'a>(&self, state: &'a State, nsid: u32) -> Result<Named<'a>, Status> {
        let subsystem = state.subsystems.get(self.nqn()).ok_or(INVALID_NAMESPACE)?;
        let attached = allocated(subsystem, nsid).map_err(|_| INVALID_NAMESPACE)?;
        if !subsystem.is_attached(nsid, self.controller.id()) && !self.manages(state) {
            return Err(INVALID_NAMESPACE);
        }
        let managed = subsystem.managed.get(&nsid).filter(|managed| managed.store.copying().is_some());
        Ok(Named { subsystem, attached, managed: managed.ok_or(INVALID_FIELD)? })
    }

    /// Whether a reservation lets this host do what is wanted.
    fn check_reservation(&self, attached: &Attached, wanted: Access) -> Result<(), Status> {
        let admitted = attached.reservations.admits(&mut Rights::default(), &self.controller.host_id(), wanted);
        if admitted { Ok(()) } else { Err(Status::RESERVATION_CONFLICT.do_not_retry()) }
    }

    /// Whether this host could write to the namespace at this moment, were it not read only: as a write would be looked at.
    fn check_writer(&self, named: &Named<'_>) -> Result<(), Status> {
        let (attached, group) = (named.attached, named.attached.group);
        if self.controller.is_ended() || !named.subsystem.is_attached(attached.nsid, self.controller.id()) {
            return Err(DENIED);
        }
        if let Some(status) = named.subsystem.groups.state(self.controller.port(), group).refusal() {
            return Err(status);
        }
        self.check_reservation(attached, Access::WRITE)
    }

    /// The reservations of a namespace; held, they stay as they are.
    fn reservations(&self, nsid: u32) -> Result<Arc<Reservations>, Status> {
        Ok(self.named(&self.shared.lock(), nsid)?.attached.reservations.clone())
    }

    // Copies.

    async fn copy(&self, nsid: u32, kind: CopyKind) -> Result<u32, Status> {
        let short = Status::DATA_SGL_LENGTH_INVALID.do_not_retry();
        let (request, _) = CopyRequest::read_from_prefix(&self.data).map_err(|_| short)?;
        if request.reserved != [0; 32] {
            return Err(INVALID_FIELD);
        }
        let reservations = self.reservations(nsid)?;
        let _hold = reservations.hold().await;
        let planned = self.plan_copy(&self.shared.lock(), nsid, (kind, request.tag), &reservations)?;
        let (store, source, attachment, record) = match planned {
            Planned::Before(nsid) => return Ok(nsid),
            Planned::New { store, source, attachment, record } => (store, source, attachment, record),
        };
        let copying = copying(&store)?;
        let made = copying.copy(NewCopy { source, kind, record: &record }).await.map_err(|error| status_of(&error))?;
        let managed = Managed { store: store.clone(), attachment, controllers: Default::default() };
        let right = match kind {
            CopyKind::Snapshot => Ok(()), // held
            CopyKind::Clone if self.manages(&self.shared.lock()) => Ok(()),
            CopyKind::Clone => Err(DENIED),
        };
        self.take_in(made, managed, right).await
    }

    /// Whether this host may have a copy of the namespace made.
    fn check_copy<'a>(&self, state: &'a State, nsid: u32, kind: CopyKind) -> Result<Named<'a>, Status> {
        let named = self.named(state, nsid)?;
        match kind {
            CopyKind::Snapshot => self.check_writer(&named)?,
            CopyKind::Clone if !self.manages(state) => return Err(DENIED),
            CopyKind::Clone => self.check_reservation(named.attached, Access::READ)?,
        }
        Ok(named)
    }

    /// What is to be made, or was made before by this tag; or why not.
    fn plan_copy(
        &self,
        state: &State,
        nsid: u32,
        (kind, tag): (CopyKind, [u8; 32]),
        held: &Arc<Reservations>,
    ) -> Result<Planned, Status> {
        let Named { subsystem, attached, managed } = self.check_copy(state, nsid, kind)?;
        if !Arc::ptr_eq(&attached.reservations, held) {
            return Err(Status::INTERRUPTED); // another namespace has the identifier by now
        }
        let source = attached.info.nguid;
        let of_source = || copies_above(subsystem, 0).filter(|(_, copy)| copy.source == source);
        if let Some((made_before, _)) = of_source().find(|(_, copy)| (copy.kind, copy.tag) == (kind, tag)) {
            return Ok(Planned::Before(made_before));
        }
        let unavailable = Status::NAMESPACE_ID_UNAVAILABLE.do_not_retry();
        if !self.manages(state) {
            // Else there were no end to what one host takes: each snapshot could have as many of its own.
            if managed.attachment.is_snapshot() {
                return Err(DENIED);
            }
            if subsystem.namespaces.len() + NSIDS_OF_MANAGERS >= NSID_MAX as usize {
                return Err(unavailable);
            }
        }
        if kind == CopyKind::Snapshot
            && of_source().filter(|(_, copy)| copy.kind == CopyKind::Snapshot).count() >= SNAPSHOTS_MAX
        {
            return Err(unavailable);
        }
        let nsid = free_nsid(subsystem).ok_or(unavailable)?;
        let copy = Some(CopyOf { kind, source, source_nsid: attached.nsid, tag });
        // A snapshot follows its source; nobody minds who else reads it.
        let shared = managed.attachment.shared || kind == CopyKind::Snapshot;
        let hosts =
            if kind == CopyKind::Clone { state.first_hosts(&self.controller, shared) } else { Hosts::default() };
        let attachment = Attachment { nsid, shared, copy, hosts, ..managed.attachment.clone() };
        let record = attachment.encode().ok_or(Status::ATTACHMENT_LIMIT_EXCEEDED.do_not_retry())?;
        Ok(Planned::New { store: managed.store.clone(), source, attachment, record })
    }

    async fn delete_copy(&self, nsid: u32, nguid: [u8; 16]) -> Result<(), Status> {
        let source = {
            let state = self.shared.lock();
            self.check_delete_copy(&state, nsid, nguid)?.map(|source| source.reservations.clone())
        };
        let _hold = match &source {
            Some(reservations) => Some(reservations.hold().await),
            None => None,
        };
        let check = |state: &State| {
            let now = self.check_delete_copy(state, nsid, nguid)?;
            let same = match (now, &source) {
                (Some(now), Some(held)) => Arc::ptr_eq(&now.reservations, held),
                (now, held) => now.is_none() && held.is_none(),
            };
            if same { Ok(()) } else { Err(Status::INTERRUPTED) }
        };
        self.shared.delete(self.nqn(), nsid, Some(self.controller.id()), check).await
    }

    /// Whether this host may delete a snapshot; what comes back is its source, if that is there still. Identifiers are given
    /// again at once: without the NGUID a deletion that comes late, or again, would take another namespace.
    fn check_delete_copy<'a>(
        &self,
        state: &'a State,
        nsid: u32,
        nguid: [u8; 16],
    ) -> Result<Option<&'a Attached>, Status> {
        let subsystem = state.subsystems.get(self.nqn()).ok_or(INVALID_NAMESPACE)?;
        let attached = allocated(subsystem, nsid).map_err(|_| INVALID_NAMESPACE)?;
        let seen = self.manages(state) || subsystem.is_attached(nsid, self.controller.id());
        if attached.info.nguid != nguid || !seen {
            return Err(INVALID_NAMESPACE);
        }
        let copy = subsystem.managed.get(&nsid).and_then(|managed| managed.attachment.copy.as_ref());
        let copy = copy.filter(|copy| copy.kind == CopyKind::Snapshot).ok_or(INVALID_FIELD)?;
        let source = subsystem.namespaces.values().find(|other| other.info.nguid == copy.source);
        if !self.manages(state) {
            let source = source.ok_or(DENIED)?;
            let managed = subsystem.managed.get(&source.nsid).ok_or(DENIED)?;
            self.check_writer(&Named { subsystem, attached: source, managed })?;
        }
        Ok(source)
    }

    /// The page of copies with identifiers above `after`, of those that this host has; of all for managers.
    fn copies(&self, nsid: u32, after: u32) -> Result<Buf, Status> {
        let state = self.shared.lock();
        let source = match nsid {
            NSID_ALL if self.manages(&state) => None,
            NSID_ALL => return Err(DENIED),
            _ => Some(self.named(&state, nsid)?.attached.info.nguid),
        };
        let subsystem = state.subsystems.get(self.nqn()).ok_or(INVALID_NAMESPACE)?;
        let mut page = Buf::zeroed(PAGE_BYTES);
        let all = self.manages(&state);
        let seen = |nsid: u32| all || subsystem.is_attached(nsid, self.controller.id());
        let wanted = copies_above(subsystem, after)
            .filter(|&(nsid, copy)| source.is_none_or(|source| source == copy.source) && seen(nsid));
        for (place, (nsid, copy)) in page.chunks_exact_mut(size_of::<CopyEntry>()).zip(wanted.take(COPY_ENTRIES_MAX)) {
            let Some(attached) = subsystem.namespaces.get(&nsid) else { continue };
            let mut entry = CopyEntry::new_zeroed();
            (entry.nsid, entry.kind) = (nsid.into(), copy.kind.code().into());
            (entry.source, entry.nguid, entry.tag) = (copy.source, attached.info.nguid, copy.tag);
            entry.bytes = attached.info.bytes().into();
            place.copy_from_slice(entry.as_bytes());
        }
        Ok(page)
    }

    // Growth and differences.

    async fn grow(&self, nsid: u32, blocks: u64) -> Result<(), Status> {
        let (store, attached) = {
            let state = self.shared.lock();
            self.check_right(&state)?;
            let named = self.named(&state, nsid)?;
            (named.managed.store.clone(), named.attached.clone())
        };
        let namespace = &attached.namespace;
        let now = namespace.info();
        match namespace.writability() {
            _ if blocks < now.blocks => return Err(INVALID_FIELD),
            Writability::Writable => {}
            Writability::ReadOnly | Writability::Failed => return Err(Status::WRITE_PROTECTED.do_not_retry()),
        }
        if blocks > now.blocks {
            let bytes = blocks.checked_mul(now.block_size.into());
            let bytes = bytes.ok_or(Status::INSUFFICIENT_CAPACITY.do_not_retry())?;
            copying(&store)?.grow(now.nguid, bytes).await.map_err(|error| status_of(&error))?;
        }
        if namespace.info().blocks != attached.info.blocks {
            // Removed meanwhile by the operator, there is nobody to tell.
            let _ = self.shared.update_namespace(self.nqn(), nsid, now.nguid);
        }
        Ok(())
    }

    fn differences(&self, nsid: u32, base: u32, lba: u64) -> Result<Buf, Status> {
        let (store, newer, base) = {
            let state = self.shared.lock();
            let newer = self.named(&state, nsid)?;
            let base = if base == 0 { None } else { Some(self.named(&state, base)?) };
            for named in [Some(&newer), base.as_ref()].into_iter().flatten() {
                self.check_reservation(named.attached, Access::READ)?;
            }
            let base = base.map(|base| base.attached.info.clone());
            (newer.managed.store.clone(), newer.attached.info.clone(), base)
        };
        if base.as_ref().is_some_and(|base| base.block_size != newer.block_size) {
            return Err(INVALID_FIELD);
        }
        if lba >= newer.blocks {
            return Err(Status::LBA_OUT_OF_RANGE.do_not_retry());
        }
        let block = u64::from(newer.block_size);
        let base = base.map(|base| base.nguid);
        let looked = copying(&store)?.differences(newer.nguid, base, lba * block, DIFFERENCE_RANGES_MAX);
        let looked = looked.map_err(|error| status_of(&error))?;
        let next = looked.next.map_or(DIFFERENCES_END, |next| next / block);
        let count = looked.ranges.len() as u32;
        let head = DifferencesHead { next: next.into(), count: count.into(), reserved: 0.into() };
        let mut page = Buf::zeroed(PAGE_BYTES);
        let (first, rest) = page.split_at_mut(size_of::<DifferencesHead>());
        first.copy_from_slice(head.as_bytes());
        for (place, range) in rest.chunks_exact_mut(size_of::<DifferenceRange>()).zip(&looked.ranges) {
            let (slba, nlb) = (range.start / block, (range.end - range.start) / block);
            let range = DifferenceRange { slba: slba.into(), nlb: nlb.into() };
            place.copy_from_slice(range.as_bytes());
        }
        Ok(page)
    }
}

fn copying(store: &Arc<dyn NamespaceStore>) -> Result<&dyn CopyStore, Status> {
    store.copying().ok_or(INVALID_FIELD)
}

/// The copies among the namespaces of a subsystem with identifiers above this one, by identifier.
fn copies_above(subsystem: &Subsystem, after: u32) -> impl Iterator<Item = (u32, &CopyOf)> {
    let managed = subsystem.managed.range((Bound::Excluded(after), Bound::Unbounded));
    managed.filter_map(|(&nsid, managed)| Some((nsid, managed.attachment.copy.as_ref()?)))
}

impl Shared {
    /// What a controller's host is offered of the extension.
    pub fn extension(&self, controller: &Controller) -> Extension {
        let state = self.lock();
        let subsystem = state.subsystems.get(controller.subsystem());
        let offered = subsystem.is_some_and(|found| found.stores.iter().any(|store| store.copying().is_some()));
        Extension { copies: offered, grow: offered && state.may_manage(controller), differences: offered }
    }

    /// Whether a controller's host has this command of those for namespaces.
    pub fn manages_by(&self, controller: &Controller, opcode: AdminOpcode) -> bool {
        match ExtensionCommand::OPCODES.contains(&opcode) {
            true => self.extension(controller).has(opcode),
            false => self.may_manage(controller),
        }
    }
}
