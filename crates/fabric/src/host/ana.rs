//! Which ANA state each group of namespaces has on a controller (NVMe Base 2.0 §8.1).

use std::collections::BTreeMap;

use engine::Buf;
use nvme::PAGE_BYTES;
use nvme::ana::{AnaGroup, AnaHeader, AnaState, CMIC_ANA, GROUPS_ONLY, groups};
use nvme::identify::IdentifyController;
use nvme::log::LogId;

use super::admin::{Admin, read_page};
use super::error::ConnectError;

/// ANA groups of a subsystem that are read; more are refused. Guessed: one per namespace of the largest we know.
pub const ANA_GROUPS_MAX: u32 = 1024;
/// How often a log page that changes while it is read is read anew.
const ATTEMPTS_MAX: u32 = 5;

/// The states by group; `None`: the controller does not report ANA, and every path is as good as any.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AnaStates {
    states: Option<BTreeMap<u32, AnaState>>,
}

impl AnaStates {
    /// Of a controller that does not report ANA.
    pub(super) fn none() -> AnaStates {
        AnaStates { states: None }
    }

    /// Reads the log page, groups only.
    pub(super) async fn read(admin: &Admin<'_>, controller: &IdentifyController) -> Result<AnaStates, ConnectError> {
        if controller.cmic & CMIC_ANA == 0 {
            return Ok(AnaStates::none());
        }
        let refused = |ended| ConnectError::NoAnswer { step: "read the ANA log page", ended };
        for _ in 0..ATTEMPTS_MAX {
            // How many groups are in use, only the page says: NANAGRPID is how many there may be.
            let before: AnaHeader = read_page(&read_pieces(admin, size_of::<AnaHeader>()).await?);
            let count = before.groups.get();
            if u32::from(count) > ANA_GROUPS_MAX {
                return Err(refused("it has too many groups"));
            }
            let page = read_pieces(admin, size_of::<AnaHeader>() + usize::from(count) * size_of::<AnaGroup>()).await?;
            let after: AnaHeader = read_page(&page);
            let last: AnaHeader = read_page(&read_pieces(admin, size_of::<AnaHeader>()).await?);
            // The change count tells of a change between the pieces (NVMe Base 2.0 §5.16.1.13).
            if before.change_count == after.change_count && after.change_count == last.change_count {
                return Ok(AnaStates::parse(&page));
            }
        }
        Err(refused("it kept changing while it was read"))
    }

    /// What a log page says. A state that is reserved is no state to send commands in.
    pub(super) fn parse(page: &[u8]) -> AnaStates {
        let state = |group: &AnaGroup| AnaState::from_code(group.state).unwrap_or(AnaState::Inaccessible);
        AnaStates { states: Some(groups(page).map(|(group, _)| (group.id.get(), state(&group))).collect()) }
    }

    /// The state of a group; one that the page does not name is not served here.
    pub(super) fn of(&self, group: u32) -> AnaState {
        match &self.states {
            None => AnaState::Optimized,
            Some(states) => states.get(&group).copied().unwrap_or(AnaState::Inaccessible),
        }
    }

    /// False: states are not reported.
    pub(super) fn set(&mut self, group: u32, state: AnaState) -> bool {
        let Some(states) = &mut self.states else { return false };
        states.insert(group, state);
        true
    }
}

async fn read_pieces(admin: &Admin<'_>, bytes: usize) -> Result<Buf, ConnectError> {
    let mut page = Buf::with_capacity(bytes);
    while page.len() < bytes {
        let piece = (bytes - page.len()).min(PAGE_BYTES);
        let piece = admin.log_specific(LogId::ANA, GROUPS_ONLY, page.len() as u64, piece).await?;
        page.extend_from_slice(&piece);
    }
    Ok(page)
}
