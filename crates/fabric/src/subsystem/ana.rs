//! ANA groups of a subsystem: their states by port, and the log page that tells of them (NVMe Base 2.0 §8.1, §5.16.1.13).
//!
//! Invariants:
//! - A group is in one state at a port, for all its namespaces and all controllers there.
//! - A change count never goes back, so that a host that reads the page in parts sees every change.
//! - Nothing leaves the persistent loss state.

use std::collections::BTreeMap;

use nvme::ana::{AnaGroup, AnaHeader};
use nvme::{AnaState, Nqn};
use zerocopy::{FromZeros, IntoBytes};

use super::config::{ConfigError, PortId};
use super::controller::Controller;
use super::limits::ANA_GROUPS_MAX;
use super::shared::{Change, Shared};

/// The group of a namespace that was not given one.
pub const ANA_GROUP_DEFAULT: u32 = 1;

/// See the module.
#[derive(Default)]
pub(super) struct AnaGroups {
    /// Every group that has or had namespaces or a state, and how often its namespaces have changed.
    members: BTreeMap<u32, u64>,
    /// States that were set, and how often. All others are optimized.
    states: BTreeMap<(PortId, u32), (AnaState, u64)>,
}

impl AnaGroups {
    pub fn state(&self, port: PortId, group: u32) -> AnaState {
        self.states.get(&(port, group)).map_or_else(AnaState::default, |(state, _)| *state)
    }

    /// States that were set: port, group, state.
    pub fn states(&self) -> impl Iterator<Item = (PortId, u32, AnaState)> {
        self.states.iter().map(|((port, group), (state, _))| (*port, *group, *state))
    }

    /// Sets a state; whether it is another one than before.
    pub fn set(&mut self, port: PortId, group: u32, wanted: AnaState) -> Result<bool, ConfigError> {
        check(group)?;
        let state = self.state(port, group);
        if state == wanted {
            return Ok(false);
        }
        if state == AnaState::PersistentLoss {
            return Err(ConfigError::PersistentLoss { port, group, wanted });
        }
        self.members.entry(group).or_default();
        let (state, changes) = self.states.entry((port, group)).or_default();
        *state = wanted;
        *changes += 1;
        Ok(true)
    }

    /// A namespace has come to the group, or left it.
    pub fn members_changed(&mut self, group: u32) {
        *self.members.entry(group).or_default() += 1;
    }

    /// The log page as a controller at `port` gives it. `namespaces`: the identifiers in a group, ascending.
    pub fn page(&self, port: PortId, namespaces: impl Fn(u32) -> Vec<u32>, groups_only: bool) -> Vec<u8> {
        let mut header = AnaHeader::new_zeroed();
        let here = self.states.iter().filter(|((at, _), _)| *at == port).map(|(_, (_, changes))| changes);
        header.change_count = (self.members.values().chain(here).sum::<u64>()).into();
        header.groups = (self.members.len() as u16).into();
        let mut page = header.as_bytes().to_vec();
        for (&id, changes) in &self.members {
            let nsids = if groups_only { Vec::new() } else { namespaces(id) };
            let set = self.states.get(&(port, id)).map_or(0, |(_, changes)| *changes);
            let mut group = AnaGroup::new_zeroed();
            group.id = id.into();
            group.namespaces = (nsids.len() as u32).into();
            group.change_count = (changes + set).into();
            group.state = self.state(port, id).code();
            page.extend_from_slice(group.as_bytes());
            page.extend(nsids.iter().flat_map(|nsid| nsid.to_le_bytes()));
        }
        page
    }
}

/// Whether a group has an identifier that there can be.
pub(super) fn check(group: u32) -> Result<(), ConfigError> {
    if (1..=ANA_GROUPS_MAX).contains(&group) { Ok(()) } else { Err(ConfigError::AnaGroup(group)) }
}

impl Shared {
    pub fn set_ana_state(&self, nqn: &Nqn, port: PortId, group: u32, wanted: AnaState) -> Result<(), ConfigError> {
        let mut state = self.lock();
        if state.ports.get(port).is_none() {
            return Err(ConfigError::NoPort(port));
        }
        if !state.subsystem(nqn)?.groups.set(port, group, wanted)? {
            return Ok(());
        }
        // Entering the Change state is not told; what comes of it is (NVMe Base 2.0 §8.1.1.9).
        let told = wanted != AnaState::Change;
        self.changed(&mut state, &Change::Ana { nqn, port: Some(port), told });
        Ok(())
    }

    /// Moves a namespace to another group.
    pub fn set_ana_group(&self, nqn: &Nqn, nsid: u32, group: u32) -> Result<(), ConfigError> {
        check(group)?;
        let mut state = self.lock();
        let subsystem = state.subsystem(nqn)?;
        let attached = subsystem.namespaces.get_mut(&nsid).ok_or(ConfigError::NoNamespace(nsid))?;
        let before = std::mem::replace(&mut attached.group, group);
        if let Some(managed) = subsystem.managed.get_mut(&nsid) {
            managed.attachment.group = group; // kept with the next change of where it is attached
        }
        if before != group {
            subsystem.groups.members_changed(before);
            subsystem.groups.members_changed(group);
            self.changed(&mut state, &Change::Ana { nqn, port: None, told: true });
        }
        Ok(())
    }

    /// The ANA log page as a controller gives it.
    pub fn ana_page(&self, controller: &Controller, groups_only: bool) -> Vec<u8> {
        let state = self.lock();
        let Some(subsystem) = state.subsystems.get(controller.subsystem()) else { return Vec::new() };
        let members = |group| {
            let found = subsystem.namespaces.values();
            let found = found.filter(|found| found.group == group && subsystem.has(found.nsid, controller));
            found.map(|attached| attached.nsid).collect()
        };
        subsystem.groups.page(controller.port(), members, groups_only)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortId = PortId(1);

    fn counts(groups: &AnaGroups) -> (u64, Vec<u64>) {
        let page = groups.page(PORT, |_| vec![1, 2], false);
        let header = u64::from_le_bytes(page[..8].try_into().expect("8 bytes"));
        (header, nvme::ana::groups(&page).map(|(group, _)| group.change_count.get()).collect())
    }

    #[test]
    fn counts_move_with_what_they_count() {
        let mut groups = AnaGroups::default();
        groups.members_changed(1);
        groups.members_changed(7);
        assert_eq!(counts(&groups), (2, vec![1, 1]));
        assert_eq!(groups.set(PORT, 7, AnaState::NonOptimized), Ok(true));
        assert_eq!(groups.set(PORT, 7, AnaState::NonOptimized), Ok(false));
        assert_eq!(counts(&groups), (3, vec![1, 2]));
        assert_eq!(groups.set(PortId(2), 7, AnaState::Change), Ok(true));
        assert_eq!(counts(&groups), (3, vec![1, 2]), "another port's states are not in this page");
    }

    #[test]
    fn there_is_no_way_back_from_persistent_loss() {
        let mut groups = AnaGroups::default();
        for state in [AnaState::Inaccessible, AnaState::Change, AnaState::PersistentLoss] {
            assert_eq!(groups.set(PORT, 1, state), Ok(true));
        }
        let error = groups.set(PORT, 1, AnaState::Optimized).expect_err("refused").to_string();
        assert!(error.contains("group 1 at port 1") && error.contains("no way back to optimized"), "{error}");
        assert_eq!(groups.set(PORT, 1, AnaState::PersistentLoss), Ok(false));
        assert_eq!(groups.set(PORT, 0, AnaState::Optimized), Err(ConfigError::AnaGroup(0)));
        assert_eq!(groups.set(PORT, ANA_GROUPS_MAX + 1, AnaState::Optimized), Err(ConfigError::AnaGroup(129)));
    }
}
