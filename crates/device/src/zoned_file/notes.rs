//! [`Notes`]: what is known of the zones of a device, and what may be done with them.
//!
//! Invariant: a zone that something is under way in, or has failed in, is in doubt, and is asked for before anything else is done
//! with it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::file::{KernelZone, KernelZoneCondition, KernelZoneKind, ZoneCommand};

use crate::{Lba, Zone, ZoneAction, ZoneError, ZoneState, ZonedInfo};

/// A zone, in blocks from its first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Note {
    pub written: u64,
    pub capacity: u64,
    pub length: u64,
    pub state: ZoneState,
    pub is_in_doubt: bool,
}

impl Note {
    pub fn of(zone: &KernelZone, block_size: u32) -> Note {
        let blocks = |bytes: u64| bytes / u64::from(block_size);
        let state = match (zone.kind, zone.condition) {
            // Whatever has become of it: who leaves such zones out would take all behind it for others.
            (KernelZoneKind::Conventional, _) => ZoneState::Conventional,
            (_, KernelZoneCondition::ReadOnly) => ZoneState::ReadOnly,
            (_, KernelZoneCondition::Offline) => ZoneState::Offline,
            (KernelZoneKind::Sequential, KernelZoneCondition::Empty) => ZoneState::Empty,
            (KernelZoneKind::Sequential, KernelZoneCondition::ImplicitlyOpen) => ZoneState::ImplicitlyOpen,
            (KernelZoneKind::Sequential, KernelZoneCondition::ExplicitlyOpen) => ZoneState::ExplicitlyOpen,
            (KernelZoneKind::Sequential, KernelZoneCondition::Closed) => ZoneState::Closed,
            (KernelZoneKind::Sequential, KernelZoneCondition::Full) => ZoneState::Full,
            // What this program does not know it does not touch.
            _ => ZoneState::Offline,
        };
        let (capacity, length) = (blocks(zone.capacity), blocks(zone.length));
        let written = match state {
            ZoneState::Empty | ZoneState::Offline => 0,
            ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen | ZoneState::Closed => {
                blocks(zone.write_pointer.saturating_sub(zone.start)).min(capacity)
            }
            // Where it ends is not told: what is not written the device itself reads as zeroes.
            ZoneState::Full | ZoneState::ReadOnly | ZoneState::Conventional => capacity,
        };
        Note { written, capacity, length, state, is_in_doubt: false }
    }

    /// Whether a write of so many blocks at this place is there, as the kernel tells behind it: of zones that have no pointer any
    /// more that is known of one alone, which the write's last block has filled. In any other it is the zone that has failed.
    pub fn holds(&self, at: u64, blocks: u64) -> bool {
        match self.state {
            ZoneState::Full => at + blocks == self.capacity,
            state => state.is_active() && self.written >= at + blocks,
        }
    }

    pub fn zone(&self, start: Lba) -> Zone {
        Zone { start, capacity: self.capacity, write_pointer: Lba(start.0 + self.written), state: self.state }
    }
}

#[derive(Debug)]
pub(super) struct Notes {
    zoned: ZonedInfo,
    all: Mutex<Vec<Note>>,
}

impl Notes {
    pub fn new(zoned: ZonedInfo, all: Vec<Note>) -> Notes {
        Notes { zoned, all: Mutex::new(all) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Note>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner) // each is replaced whole
    }

    pub fn count(&self) -> usize {
        self.lock().len()
    }

    pub fn get(&self, zone: usize) -> Note {
        self.lock()[zone]
    }

    pub fn set(&self, zone: usize, note: Note) {
        self.lock()[zone] = note;
    }

    pub fn doubt(&self, zone: usize) {
        self.lock()[zone].is_in_doubt = true;
    }

    /// So many blocks are written at the write pointer.
    pub fn wrote(&self, zone: usize, blocks: u64) {
        let note = &mut self.lock()[zone];
        if note.state != ZoneState::Conventional {
            note.written += blocks;
            if note.written >= note.capacity {
                note.state = ZoneState::Full;
            }
        }
    }

    /// One more zone may be active.
    fn check_active(&self, all: &[Note]) -> Result<(), ZoneError> {
        let active = all.iter().filter(|note| note.state.is_active()).count();
        match self.zoned.active_max {
            Some(most) if active >= most as usize => Err(ZoneError::TooManyActive),
            _ => Ok(()),
        }
    }

    /// One more zone may be open, when all that writes have opened are closed.
    fn check_open(&self, all: &[Note]) -> Result<(), ZoneError> {
        let open = all.iter().filter(|note| note.state == ZoneState::ExplicitlyOpen).count();
        match self.zoned.open_max {
            Some(most) if open >= most as usize => Err(ZoneError::TooManyOpen),
            _ => Ok(()),
        }
    }

    /// The zone takes so many blocks at this place, and is open.
    pub fn admit(&self, zone: usize, at: u64, blocks: u64) -> Result<(), ZoneError> {
        let mut all = self.lock();
        let note = all[zone];
        match note.state {
            ZoneState::ReadOnly => return Err(ZoneError::ReadOnly),
            ZoneState::Offline => return Err(ZoneError::Offline),
            ZoneState::Full => return Err(ZoneError::Full),
            _ if at + blocks > note.capacity => return Err(ZoneError::Boundary),
            ZoneState::Conventional => return Ok(()),
            _ if at != note.written => return Err(ZoneError::InvalidWrite),
            ZoneState::ExplicitlyOpen => return Ok(()),
            ZoneState::Empty => {
                self.check_active(&all)?;
                self.check_open(&all)?;
            }
            ZoneState::Closed => self.check_open(&all)?,
            ZoneState::ImplicitlyOpen => {}
        }
        all[zone].state = ZoneState::ImplicitlyOpen;
        Ok(())
    }

    /// What the kernel has to do for an action, and what the zone is then; `None`: nothing, it is that already.
    pub fn plan(&self, zone: usize, action: ZoneAction) -> Result<Option<(ZoneCommand, Note)>, ZoneError> {
        let all = self.lock();
        let note = all[zone];
        let then = |command, state| Ok(Some((command, Note { state, is_in_doubt: false, ..note })));
        match (action, note.state) {
            (ZoneAction::Open, ZoneState::ExplicitlyOpen)
            | (ZoneAction::Close, ZoneState::Closed)
            | (ZoneAction::Finish, ZoneState::Full)
            | (ZoneAction::Reset, ZoneState::Empty)
            | (ZoneAction::Offline, ZoneState::Offline) => Ok(None),
            (ZoneAction::Open, state) if state.is_active() || state == ZoneState::Empty => {
                if state == ZoneState::Empty {
                    self.check_active(&all)?;
                }
                self.check_open(&all)?;
                then(ZoneCommand::Open, ZoneState::ExplicitlyOpen)
            }
            (ZoneAction::Close, state) if state.is_open() => {
                // Where nothing is written a zone of ZNS is closed, and one of ZBC empty.
                let closed = Note { state: ZoneState::Closed, is_in_doubt: note.written == 0, ..note };
                Ok(Some((ZoneCommand::Close, closed)))
            }
            (ZoneAction::Finish, state) if state.is_active() || state == ZoneState::Empty => {
                then(ZoneCommand::Finish, ZoneState::Full)
            }
            (ZoneAction::Reset, state) if state.is_active() || state == ZoneState::Full => {
                let empty = Note { written: 0, state: ZoneState::Empty, is_in_doubt: false, ..note };
                Ok(Some((ZoneCommand::Reset, empty)))
            }
            _ => Err(ZoneError::InvalidTransition),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: Note = Note { written: 0, capacity: 6, length: 8, state: ZoneState::Empty, is_in_doubt: false };

    fn notes() -> Notes {
        let zoned = ZonedInfo { zone_blocks: 8, open_max: Some(1), active_max: Some(2), append_blocks_max: 6 };
        let conventional = Note { written: 6, state: ZoneState::Conventional, ..EMPTY };
        Notes::new(zoned, vec![EMPTY, EMPTY, EMPTY, conventional])
    }

    fn state(notes: &Notes, zone: usize, action: ZoneAction) -> Result<ZoneState, ZoneError> {
        if let Some((_, then)) = notes.plan(zone, action)? {
            notes.set(zone, then);
        }
        Ok(notes.get(zone).state)
    }

    #[test]
    fn writes_are_taken_at_the_pointer_alone() {
        let notes = notes();
        assert_eq!(notes.admit(0, 1, 1), Err(ZoneError::InvalidWrite));
        assert_eq!(notes.admit(0, 0, 7), Err(ZoneError::Boundary));
        assert_eq!(notes.get(0), EMPTY, "nothing has changed");
        assert_eq!(notes.admit(0, 0, 4), Ok(()));
        notes.wrote(0, 4);
        assert_eq!((notes.admit(0, 4, 2), notes.get(0).state), (Ok(()), ZoneState::ImplicitlyOpen));
        notes.wrote(0, 2);
        assert_eq!((notes.admit(0, 6, 1), notes.get(0).state), (Err(ZoneError::Full), ZoneState::Full));
        assert_eq!((notes.admit(3, 2, 2), notes.admit(3, 5, 2)), (Ok(()), Err(ZoneError::Boundary)));
        assert_eq!(notes.plan(3, ZoneAction::Reset), Err(ZoneError::InvalidTransition));
    }

    #[test]
    fn as_many_zones_are_active_and_open_as_may_be() {
        let notes = notes();
        assert_eq!(notes.admit(0, 0, 1), Ok(()));
        notes.wrote(0, 1);
        assert_eq!(state(&notes, 1, ZoneAction::Open), Ok(ZoneState::ExplicitlyOpen), "the other one may be closed");
        assert_eq!(notes.admit(2, 0, 1), Err(ZoneError::TooManyActive));
        assert_eq!(state(&notes, 0, ZoneAction::Close), Ok(ZoneState::Closed));
        assert_eq!(notes.admit(0, 1, 1), Err(ZoneError::TooManyOpen));
        assert_eq!(state(&notes, 0, ZoneAction::Open), Err(ZoneError::TooManyOpen));
        assert_eq!(state(&notes, 1, ZoneAction::Close), Ok(ZoneState::Closed));
        assert!(notes.get(1).is_in_doubt, "the kernel is asked what it is");
        notes.set(1, EMPTY);
        assert_eq!(state(&notes, 0, ZoneAction::Finish), Ok(ZoneState::Full));
        assert_eq!(notes.plan(0, ZoneAction::Open), Err(ZoneError::InvalidTransition));
        assert_eq!(state(&notes, 0, ZoneAction::Reset), Ok(ZoneState::Empty));
        assert_eq!(notes.get(0), EMPTY);
    }

    #[test]
    fn a_zone_of_the_kernel_is_told_in_blocks() {
        let zone = KernelZone {
            start: 8 << 20,
            length: 8 << 20,
            capacity: 6 << 20,
            write_pointer: (8 << 20) + 4096,
            kind: KernelZoneKind::Sequential,
            condition: KernelZoneCondition::Closed,
        };
        let of = |condition, kind| {
            let note = Note::of(&KernelZone { condition, kind, ..zone }, 4096);
            assert_eq!((note.capacity, note.length), (1536, 2048));
            (note.state, note.written)
        };
        let sequential = |condition| of(condition, KernelZoneKind::Sequential);
        assert_eq!(sequential(KernelZoneCondition::Closed), (ZoneState::Closed, 1));
        assert_eq!(sequential(KernelZoneCondition::Full), (ZoneState::Full, 1536));
        assert_eq!(sequential(KernelZoneCondition::ReadOnly), (ZoneState::ReadOnly, 1536));
        assert_eq!(sequential(KernelZoneCondition::Other(7)).0, ZoneState::Offline);
        assert_eq!(of(KernelZoneCondition::NoPointer, KernelZoneKind::Conventional).0, ZoneState::Conventional);
        assert_eq!(of(KernelZoneCondition::Empty, KernelZoneKind::Other(9)).0, ZoneState::Offline);
        // One that has failed was told as a zone that is written in order, and all behind it were other chunks than before.
        for condition in [KernelZoneCondition::ReadOnly, KernelZoneCondition::Offline] {
            assert_eq!(of(condition, KernelZoneKind::Conventional).0, ZoneState::Conventional);
        }
    }

    /// A zone that was read only behind a write that failed was taken for one that holds it, so that a flush seemed to have failed:
    /// nothing was written on the whole device any more.
    #[test]
    fn what_a_zone_holds_is_told_by_its_pointer_alone() {
        let zone = |state: ZoneState, written: u64| Note { written, state, ..EMPTY };
        for state in [ZoneState::ImplicitlyOpen, ZoneState::ExplicitlyOpen, ZoneState::Closed] {
            assert_eq!([2, 3, 4].map(|written| zone(state, written).holds(1, 2)), [false, true, true], "{state}");
        }
        assert!(zone(ZoneState::Full, 6).holds(4, 2), "its last block has filled it");
        for state in [ZoneState::Full, ZoneState::ReadOnly, ZoneState::Conventional] {
            assert!(!zone(state, 6).holds(1, 2), "{state}");
        }
        assert!(!zone(ZoneState::ReadOnly, 6).holds(4, 2) && !zone(ZoneState::Offline, 0).holds(0, 1));
    }
}
