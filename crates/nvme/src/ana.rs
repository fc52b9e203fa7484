//! Asymmetric Namespace Access: which paths to a namespace are good (NVMe Base 2.0 §8.1, §5.16.1.13).

use std::fmt;
use std::str::FromStr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::words::size;
use crate::{Status, U16, U32, U64};

/// The state of the relation between a controller and an ANA group (NVMe Base 2.0 §8.1.1.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum AnaState {
    /// The best way to the group's namespaces.
    #[default]
    Optimized = 0x1,
    /// A way that works, but another one is better.
    NonOptimized = 0x2,
    /// No way at the moment.
    Inaccessible = 0x3,
    /// No way any more; there is no way back from this state.
    PersistentLoss = 0x4,
    /// From one state to another; it will take no longer than ANATT.
    Change = 0xF,
}

/// Text that names no state.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no ANA state: write optimized, non-optimized, inaccessible, persistent-loss or change")]
pub struct AnaStateError(String);

impl AnaState {
    /// Every state.
    pub const ALL: [AnaState; 5] = [
        AnaState::Optimized,
        AnaState::NonOptimized,
        AnaState::Inaccessible,
        AnaState::PersistentLoss,
        AnaState::Change,
    ];

    /// The state with a code of the log page; `None` where it is reserved.
    pub fn from_code(code: u8) -> Option<AnaState> {
        AnaState::ALL.into_iter().find(|state| state.code() == code & 0xF)
    }

    /// The code in the log page.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Its name, as the command line writes it.
    pub const fn name(self) -> &'static str {
        match self {
            AnaState::Optimized => "optimized",
            AnaState::NonOptimized => "non-optimized",
            AnaState::Inaccessible => "inaccessible",
            AnaState::PersistentLoss => "persistent-loss",
            AnaState::Change => "change",
        }
    }

    /// The status of a command for a namespace of a group in this state, where it is not served (NVMe Base 2.0 §8.1.1.6 to
    /// §8.1.1.8). Do Not Retry stays clear in all of them: a retry over another path is just what the host should do.
    pub const fn refusal(self) -> Option<Status> {
        match self {
            AnaState::Optimized | AnaState::NonOptimized => None,
            AnaState::Inaccessible => Some(Status::ANA_INACCESSIBLE),
            AnaState::PersistentLoss => Some(Status::ANA_PERSISTENT_LOSS),
            AnaState::Change => Some(Status::ANA_TRANSITION),
        }
    }
}

impl fmt::Display for AnaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AnaState {
    type Err = AnaStateError;

    fn from_str(text: &str) -> Result<AnaState, AnaStateError> {
        let found = AnaState::ALL.into_iter().find(|state| state.name() == text);
        found.ok_or_else(|| AnaStateError(text.to_owned()))
    }
}

/// CMIC: the subsystem may have several ports.
pub const CMIC_PORTS: u8 = 1 << 0;
/// CMIC: the subsystem may have several controllers.
pub const CMIC_CONTROLLERS: u8 = 1 << 1;
/// CMIC: the subsystem reports ANA.
pub const CMIC_ANA: u8 = 1 << 3;
/// ANACAP: every state can be reported (bits 4:0).
pub const ANACAP_STATES: u8 = 0x1F;
/// LSP of the log page: groups only, without their namespaces (RGO).
pub const GROUPS_ONLY: u8 = 1 << 0;

/// Header of the log page (NVMe Base 2.0 figure 221).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AnaHeader {
    /// Moves with every change of the page.
    pub change_count: U64,
    /// Group descriptors that follow.
    pub groups: U16,
    /// Reserved.
    pub reserved: [u8; 6],
}

/// One group of the log page; the namespace identifiers, a dword each, follow (NVMe Base 2.0 figure 222).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AnaGroup {
    /// The group, from 1.
    pub id: U32,
    /// Namespace identifiers that follow.
    pub namespaces: U32,
    /// Moves with every change of this group.
    pub change_count: U64,
    /// Bits 3:0: the state, see [`AnaState`].
    pub state: u8,
    /// Reserved.
    pub reserved: [u8; 15],
}

size!(AnaHeader = 16, AnaGroup = 32);

/// Walks the groups of a log page: each with its namespace identifiers, until the end or the first that does not fit.
pub fn groups(page: &[u8]) -> impl Iterator<Item = (AnaGroup, Vec<u32>)> {
    let header = AnaHeader::read_from_prefix(page).ok().map(|(header, _)| header);
    let count = header.map_or(0, |header| header.groups.get());
    let mut rest = page.get(size_of::<AnaHeader>()..).unwrap_or_default();
    (0..count).map_while(move |_| {
        let (group, after) = AnaGroup::read_from_prefix(rest).ok()?;
        let bytes = usize::try_from(group.namespaces.get()).ok()?.checked_mul(4)?;
        let (nsids, after) = after.split_at_checked(bytes)?;
        rest = after;
        let nsid = |word: &[u8]| u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        Some((group, nsids.chunks_exact(4).map(nsid).collect()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn states_have_names_and_codes() {
        for state in AnaState::ALL {
            assert_eq!(state.name().parse(), Ok(state));
            assert_eq!(AnaState::from_code(state.code()), Some(state));
        }
        assert_eq!(AnaState::from_code(0), None);
        let error = "optimised".parse::<AnaState>().expect_err("refused").to_string();
        assert!(error.contains("`optimised`") && error.contains("non-optimized"), "{error}");
    }

    #[test]
    fn a_refusal_asks_for_another_path() {
        let refusals: Vec<_> = AnaState::ALL.into_iter().filter_map(AnaState::refusal).collect();
        let expected = [Status::ANA_INACCESSIBLE, Status::ANA_PERSISTENT_LOSS, Status::ANA_TRANSITION];
        assert_eq!(refusals, expected);
        assert!(refusals.iter().all(|status| !status.is_do_not_retry() && status.code_type() == 3));
    }

    #[test]
    fn a_page_is_walked_to_the_first_group_that_does_not_fit() {
        let mut header = AnaHeader::new_zeroed();
        header.groups = 3.into();
        let mut group = AnaGroup::new_zeroed();
        (group.id, group.namespaces, group.state) = (1.into(), 2.into(), AnaState::Optimized.code());
        let mut page = [header.as_bytes(), group.as_bytes(), &[1, 0, 0, 0, 9, 0, 0, 0]].concat();
        group.namespaces = u32::MAX.into();
        page.extend_from_slice(group.as_bytes());
        let found: Vec<_> = groups(&page).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].1, vec![1, 9]);
        assert_eq!(groups(&page[..7]).count(), 0);
    }
}
