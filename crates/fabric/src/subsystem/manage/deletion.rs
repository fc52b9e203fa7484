//! Deletion of namespaces: first nobody sees them any more, then the commands under way end, then they are gone for good.

use std::collections::BTreeSet;

use device::Mode;
use nvme::{NSID_ALL, Nqn, Status};

use super::{INVALID_FIELD, Request, allocated, status_of};
use crate::subsystem::attachment::Managed;
use crate::subsystem::config::ConfigError;
use crate::subsystem::shared::{Attached, Change, Shared, State};
use crate::subsystem::store::StoreError;

/// Why a namespace is not deleted.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    /// No such subsystem or namespace, or it is of no store.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Hosts have it.
    #[error("it is attached to controllers of {}", .0.iter().map(Nqn::to_string).collect::<Vec<_>>().join(", "))]
    Attached(Vec<Nqn>),
    /// The store could not.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<DeleteError> for Status {
    fn from(error: DeleteError) -> Status {
        match error {
            DeleteError::Store(error) => status_of(&error),
            DeleteError::Config(_) | DeleteError::Attached(_) => INVALID_FIELD,
        }
    }
}

impl Request {
    pub(super) async fn delete(&self, nsid: u32) -> Result<(), Status> {
        let doomed: Vec<u32> = {
            let state = self.shared.lock();
            let subsystem = state.subsystems.get(self.nqn()).ok_or(INVALID_FIELD)?;
            let doomed = match nsid {
                NSID_ALL => subsystem.namespaces.keys().copied().collect(),
                _ => vec![allocated(subsystem, nsid)?.nsid],
            };
            // All or none, as far as that is known beforehand.
            doomed.iter().try_for_each(|&nsid| self.check(&state, nsid))?;
            doomed
        };
        for nsid in doomed {
            let asked = Some(self.controller.id());
            self.shared.delete(self.nqn(), nsid, asked, |state| self.check(state, nsid)).await?;
        }
        Ok(())
    }
}

impl Shared {
    /// Deletes a namespace, if `check` finds nothing against it in the step in which it is taken out of sight: what was looked at
    /// before, while another one was deleted, may be otherwise. Where the store can't delete it, it is there again. `asked`: the
    /// controller whose host knows by the completion.
    pub(super) async fn delete<E: From<DeleteError>>(
        &self,
        nqn: &Nqn,
        nsid: u32,
        asked: Option<u16>,
        check: impl FnOnce(&State) -> Result<(), E>,
    ) -> Result<(), E> {
        let (attached, managed, here) = {
            let mut state = self.lock();
            check(&state)?;
            let here = state.controllers.keys().copied().collect();
            let State { subsystems, controllers, .. } = &mut *state;
            let unknown = || DeleteError::from(ConfigError::NoSubsystem(nqn.clone()));
            let subsystem = subsystems.get_mut(nqn).ok_or_else(unknown)?;
            let missing = || DeleteError::from(ConfigError::NoNamespace(nsid));
            let concerned = subsystem.with_followers(nsid);
            let had = |id: &u16| subsystem.is_attached(nsid, *id);
            let told: Vec<u16> = controllers.keys().copied().filter(|id| Some(*id) != asked && had(id)).collect();
            let managed = subsystem.managed.remove(&nsid).ok_or_else(missing)?;
            let attached = subsystem.namespaces.remove(&nsid).ok_or_else(missing)?;
            subsystem.groups.members_changed(attached.group);
            self.changed(&mut state, &Change::Attachment(nqn, &concerned, &told));
            (attached, managed, here)
        };
        let deleted = managed.store.delete(attached.info.nguid).await;
        if deleted.is_err() {
            let back = self.put_back(nqn, attached, managed, &here);
            if let Err(error) = back {
                tracing::error!(%error, nsid, "a namespace that was not deleted is served no more until the next start");
            }
        }
        Ok(deleted.map_err(DeleteError::from)?)
    }

    /// A namespace that was not deleted is there again, with its reservations: they are its hosts' as long as it has not gone.
    /// `here`: the controllers that were there when it was taken out of sight. Those that have gone since have it no more, and
    /// those that have come since get it as if it had been there.
    fn put_back(
        &self,
        nqn: &Nqn,
        attached: Attached,
        mut managed: Managed,
        here: &BTreeSet<u16>,
    ) -> Result<(), ConfigError> {
        let (nsid, group) = (attached.nsid, attached.group);
        let mut state = self.lock();
        let life = state.next_life();
        let State { subsystems, controllers, .. } = &mut *state;
        let subsystem = subsystems.get_mut(nqn).ok_or_else(|| ConfigError::NoSubsystem(nqn.clone()))?;
        if subsystem.namespaces.contains_key(&nsid) {
            return Err(ConfigError::NamespaceExists(nsid));
        }
        managed.controllers.retain(|id| controllers.contains_key(id));
        let private = !managed.attachment.shared;
        for controller in controllers.values().filter(|found| found.subsystem() == nqn) {
            if private || !here.contains(&controller.id()) {
                managed.greet(controller);
            }
        }
        subsystem.namespaces.insert(nsid, Attached { life, ..attached });
        subsystem.managed.insert(nsid, managed);
        subsystem.groups.members_changed(group);
        for nsid in subsystem.with_followers(nsid) {
            self.changed(&mut state, &Change::Namespace(nqn, nsid));
        }
        Ok(())
    }

    /// Deletes a namespace of a store for the operator. `in_use`: also one that hosts have.
    pub async fn delete_managed(&self, nqn: &Nqn, nsid: u32, in_use: bool) -> Result<(), DeleteError> {
        let _turn = self.management.lock(0, 1, Mode::Exclusive).await;
        let unused = |state: &State| {
            let hosts = state.hosts_with(nqn, nsid);
            if in_use || hosts.is_empty() { Ok(()) } else { Err(DeleteError::Attached(hosts)) }
        };
        self.delete(nqn, nsid, None, unused).await
    }
}
