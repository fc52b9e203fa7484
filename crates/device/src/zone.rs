//! Zones: what a namespace is beside its blocks where they are written in order.
//!
//! The words and rules are those of NVMe's Zoned Namespace Command Set 1.1; the zoned block devices of Linux are the same with two
//! limits told and zones of a second kind, which are written anywhere.
//!
//! Invariants every kind keeps:
//! - A zone that is written in order takes a write at its write pointer alone, and within its capacity; anything else is refused
//!   by name, and changes nothing.
//! - No more zones are open, and no more active (open or closed), than [`ZonedInfo`] says. A write opens the zone that it goes to;
//!   to make room for it a zone that a write has opened may be closed, and never one that was opened by name.
//! - A reset, a finish, an open and a close are stable when they are acknowledged, but for which zones are open: that may be
//!   forgotten with the power, and then they are closed.
//! - Blocks of such a zone from its write pointer on read as zeroes.

use std::fmt;
use std::ops::Range;

use crate::lba::Lba;

/// What a zoned namespace is; constant while it is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZonedInfo {
    /// Blocks from a zone's first to the next one's.
    pub zone_blocks: u64,
    /// Zones that may be open at a time; `None`: all.
    pub open_max: Option<u32>,
    /// Zones that may be open or closed at a time; `None`: all.
    pub active_max: Option<u32>,
    /// The largest append, in blocks; 0: appends are not offered.
    pub append_blocks_max: u32,
}

impl ZonedInfo {
    /// The zone of a block, and the block's place there.
    pub fn locate(&self, lba: Lba) -> (usize, u64) {
        ((lba.0 / self.zone_blocks) as usize, lba.0 % self.zone_blocks)
    }

    /// The zones that a range of blocks touches.
    pub fn touched(&self, lba: Lba, blocks: u64) -> Range<usize> {
        let (first, _) = self.locate(lba);
        if blocks == 0 { first..first } else { first..(lba.0 + blocks).div_ceil(self.zone_blocks) as usize }
    }

    /// Whether all zones that are closed can be open by name at once, for kinds that change one zone after the other: either
    /// all are opened, or none.
    ///
    /// # Errors
    /// [`ZoneError::TooManyOpen`]; zones that writes have opened do not count, as they can be closed to make room.
    pub fn check_open_all(&self, states: impl Iterator<Item = ZoneState>) -> Result<(), ZoneError> {
        let open = states.filter(|state| matches!(state, ZoneState::ExplicitlyOpen | ZoneState::Closed)).count();
        match self.open_max {
            Some(most) if open > most as usize => Err(ZoneError::TooManyOpen),
            _ => Ok(()),
        }
    }
}

/// The state of a zone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ZoneState {
    /// Nothing is written in it.
    Empty,
    /// A write has opened it.
    ImplicitlyOpen,
    /// It was opened by name.
    ExplicitlyOpen,
    /// It is written in part, and takes writes when it is opened again.
    Closed,
    /// It takes no writes before it is reset.
    Full,
    /// It takes neither writes nor resets any more.
    ReadOnly,
    /// It takes nothing at all any more.
    Offline,
    /// It is written anywhere, and has no write pointer.
    Conventional,
}

impl ZoneState {
    /// It counts as open.
    pub fn is_open(self) -> bool {
        matches!(self, ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen)
    }

    /// It counts as active.
    pub fn is_active(self) -> bool {
        self.is_open() || self == ZoneState::Closed
    }
}

impl fmt::Display for ZoneState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ZoneState::Empty => "empty",
            ZoneState::ImplicitlyOpen => "implicitly open",
            ZoneState::ExplicitlyOpen => "explicitly open",
            ZoneState::Closed => "closed",
            ZoneState::Full => "full",
            ZoneState::ReadOnly => "read only",
            ZoneState::Offline => "offline",
            ZoneState::Conventional => "conventional",
        })
    }
}

/// A zone, as its namespace tells of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zone {
    /// Its first block.
    pub start: Lba,
    /// Blocks that can be written, from its first on.
    pub capacity: u64,
    /// Where it is written next. It means nothing where the zone is full, read only, offline or conventional.
    pub write_pointer: Lba,
    /// Its state.
    pub state: ZoneState,
}

/// What is done with a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZoneAction {
    /// It is open no more, and stays active.
    Close,
    /// It is full, whatever is written.
    Finish,
    /// It is open until it is closed.
    Open,
    /// It is empty.
    Reset,
    /// A zone that is read only is given up.
    Offline,
}

impl ZoneAction {
    /// Whether it concerns a zone in this state when all zones are to be changed.
    pub fn concerns(self, state: ZoneState) -> bool {
        match self {
            ZoneAction::Close => state.is_open(),
            ZoneAction::Finish => state.is_active(),
            ZoneAction::Open => state == ZoneState::Closed,
            ZoneAction::Reset => state.is_active() || state == ZoneState::Full,
            ZoneAction::Offline => state == ZoneState::ReadOnly,
        }
    }
}

/// Why a zone does not take a command. Each has a status of its own on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ZoneError {
    /// The range goes beyond the zone, or beyond what can be written of it.
    #[error("the range crosses the end of a zone, or of its capacity")]
    Boundary,
    /// The zone is full.
    #[error("the zone is full: reset it first")]
    Full,
    /// The zone takes no writes any more.
    #[error("the zone is read only")]
    ReadOnly,
    /// The zone is given up.
    #[error("the zone is offline")]
    Offline,
    /// A write elsewhere than at the write pointer.
    #[error("a write elsewhere than at the zone's write pointer")]
    InvalidWrite,
    /// As many zones as may be are active.
    #[error("as many zones as may be are open or closed: finish or reset one first")]
    TooManyActive,
    /// As many zones as may be were opened by name.
    #[error("as many zones as may be are open: close one first")]
    TooManyOpen,
    /// The zone's state does not allow it.
    #[error("the zone's state does not allow that")]
    InvalidTransition,
}
