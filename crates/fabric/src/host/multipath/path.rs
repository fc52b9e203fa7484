//! One path: a controller through which the namespace can be reached.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use engine::time::{self, Instant};
use nvme::AnaState;

use super::super::association::Association;
use super::super::error::Fate;
use super::super::io::Io;
use super::super::remote::RemoteNamespace;
use super::super::session::Up;
use super::PathState;

/// How long a path that answered with a path error is left alone where others are as good. Guessed.
const REST: Duration = Duration::from_millis(100);

pub(super) struct Path {
    pub(super) remote: RemoteNamespace,
    under_way: Rc<Cell<u32>>,
    /// It answered that it can't, on this association, until then.
    rests: Cell<Option<(u64, Instant)>>,
    /// It interrupted a command: others come first, until then.
    tires: Cell<Option<Instant>>,
}

/// A path that was chosen: the association is held, so that what becomes of it can be followed.
pub(super) struct Chosen<'a> {
    path: &'a Path,
    up: Up,
}

impl Path {
    pub(super) fn new(remote: RemoteNamespace) -> Path {
        Path { remote, under_way: Rc::default(), rests: Cell::new(None), tires: Cell::new(None) }
    }

    pub(super) fn state(&self) -> PathState {
        PathState {
            address: self.remote.address(),
            ana: self.remote.ana_state().filter(|_| self.remote.is_connected()),
            epoch: self.remote.epoch(),
            under_way: self.under_way.get(),
            last_error: self.remote.last_error(),
        }
    }

    /// How good it is now, less is better; `None`: no command may go there.
    pub(super) fn rank(&self) -> Option<u8> {
        if !self.remote.is_connected() || self.is_resting() {
            return None;
        }
        // A good one that fails comes after a lesser one that may work.
        let behind = if self.tires.get().is_some_and(|until| time::now() < until) { 2 } else { 0 };
        match self.remote.ana_state()? {
            AnaState::Optimized => Some(behind),
            AnaState::NonOptimized => Some(behind + 1),
            AnaState::Inaccessible | AnaState::PersistentLoss | AnaState::Change => None,
        }
    }

    fn is_resting(&self) -> bool {
        let epoch = self.remote.epoch();
        self.rests.get().is_some_and(|(at, until)| at == epoch && time::now() < until)
    }

    pub(super) fn under_way(&self) -> u32 {
        self.under_way.get()
    }

    pub(super) fn choose(&self) -> Option<Chosen<'_>> {
        let up = self.remote.up().ok()?;
        self.under_way.set(self.under_way.get() + 1);
        Some(Chosen { path: self, up })
    }
}

impl Chosen<'_> {
    pub(super) fn association(&self) -> &Rc<Association> {
        &self.up.association
    }

    pub(super) fn io(&self) -> Io<'_> {
        Io { attached: &self.path.remote.attached, up: &self.up }
    }

    /// Takes note of a path error: the state it told holds until the log page says otherwise, which is asked for soon; any
    /// other lets the path rest, or comes after the others.
    pub(super) fn note(&self, fate: Fate) {
        match fate {
            Fate::Ana(state) => {
                if self.up.association.note_ana(self.up.limits.ana_group, state) {
                    self.path.remote.session.refresh_ana_soon();
                } else {
                    // It reports no states, so nothing else would keep the command from coming back at once.
                    self.rest();
                }
            }
            Fate::NotExecuted => self.rest(),
            Fate::Interrupted | Fate::Faulty => self.path.tires.set(Some(time::now() + REST)),
            Fate::Answered | Fate::InDoubt => {}
        }
    }

    fn rest(&self) {
        self.path.rests.set(Some((self.path.remote.epoch(), time::now() + REST)));
    }
}

impl Drop for Chosen<'_> {
    fn drop(&mut self) {
        self.path.under_way.set(self.path.under_way.get() - 1);
    }
}
