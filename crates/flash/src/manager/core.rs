//! [`Core`]: the state of a media manager, and what its parts ask of one another.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use device::{Attributes, Error};
use engine::sync::Notify;

use super::buffer::{Buffer, STREAMS, Stream};
use super::lines::{LineState, Lines};
use super::map::{Map, Place};
use super::reserve::Reserve;
use super::root::{Root, Totals};
use super::tag::{Codec, Logical};
use crate::address::{Chunk, Sector};
use crate::device::{FlashDevice, FlashError};

/// Sequences that are given between two roots at most. Chosen: far more than ever are, and few enough for 2^26 crashes.
pub(super) const SEQUENCES_PER_ROOT: u64 = 1 << 30;

/// How lines are chosen for collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// The one with the fewest valid sectors.
    #[default]
    Greedy,
    /// The one that brings the most room for what is moved, times how long it was left alone.
    CostBenefit,
}

/// How a media manager works; it may be another at each opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagerOptions {
    /// How lines are chosen for collection.
    pub policy: Policy,
    /// Write units that wait for each parallel unit before hosts have to.
    pub buffer_units: u32,
    /// Lines that are written between two roots: what has to be read after a crash.
    pub lines_per_root: u32,
    /// Wear that lines may differ by before content that stays is moved.
    pub wear_spread: u32,
    /// Sectors of hosts that go to one parallel unit before it is the next one's turn; 0: what a write unit has room for. Fewer are
    /// dealt out to the units of all of them, as far as so much waits; of more, the next one waits for the one whose turn it is.
    pub interleave: u32,
}

impl Default for ManagerOptions {
    fn default() -> ManagerOptions {
        ManagerOptions { policy: Policy::Greedy, buffer_units: 4, lines_per_root: 4, wear_spread: 50, interleave: 0 }
    }
}

/// Where roots are, and which one is in force.
#[derive(Clone, Debug)]
pub(super) struct RootArea {
    /// Chunks by slot and copy, as they were set apart.
    pub apart: [Vec<Chunk>; 2],
    /// Those of them that are good.
    pub chunks: [Vec<Chunk>; 2],
    /// The slot that is written.
    pub slot: usize,
    /// The slot that the root in force is in: it is never reset, since what would be lost with it is everything.
    pub in_force: usize,
    /// Sectors of the slot that are written.
    pub offset: u32,
    pub number: u64,
    /// All changes up to here are in the pages of the root in force.
    pub up_to: u64,
    /// No higher sequence may be given.
    pub limit: u64,
    /// It was written since the device was opened.
    pub is_ours: bool,
}

pub(super) struct State {
    pub map: Map,
    pub lines: Lines,
    pub buffer: Buffer,
    pub open: [Option<u32>; STREAMS],
    /// Parallel units with a program under way.
    pub busy: Vec<bool>,
    /// Units that are still to be made of what is dealt out to all parallel units, by stream.
    pub to_deal: [usize; STREAMS],
    /// The last sequence given.
    pub sequence: u64,
    /// The first sequences of the programs under way.
    pub programs: BTreeSet<u64>,
    /// Programs behind the root in force that have failed, by their first sequences: what of them is stable nowhere yet. Were a
    /// unit to say that they had ended, what is left of them after a crash would be taken for something that was acknowledged and
    /// is lost, and with it the version before it, which was.
    pub failed: BTreeMap<u64, BTreeSet<Logical>>,
    /// Up to these tickets a stream does not wait for more.
    pub forced: [u64; STREAMS],
    /// Pages of the map that were replaced, and are named by the root in force.
    pub held: Vec<Sector>,
    pub root: RootArea,
    pub attributes: Attributes,
    pub attributes_next: Option<Attributes>,
    /// Changes of attributes that were asked for.
    pub attribute_changes: u64,
    /// How many of them are in the root in force.
    pub attribute_changes_kept: u64,
    pub totals: Totals,
    /// Sectors programmed since the last root.
    pub since_root: u64,
    pub wants_root: bool,
    /// What is moved may take the line that is kept beside those for pages.
    pub is_pressed: bool,
    /// Out of spare lines: no more writes are taken.
    pub is_read_only: bool,
    pub is_stopping: bool,
    /// A line is being emptied.
    pub is_emptying: bool,
    /// Collection had nothing to do when it looked last.
    pub is_at_rest: bool,
    /// While a line is walked through: units of what is moved that may still be made before they are full, for a flush. More would
    /// take what its emptying is to bring. `None`: no line is walked through.
    pub padding_left: Option<u64>,
    /// Counts what enters from hosts and what ends.
    pub changes: u64,
    /// Lines that were reset since it was looked at how much their wear differs.
    pub resets: u32,
    /// Why nothing goes on any more.
    pub failure: Option<Error>,
}

/// What a media manager begins with.
pub(super) struct Parts {
    pub codec: Codec,
    pub identity: [u8; 16],
    pub map: Map,
    pub lines: Lines,
    pub root: RootArea,
    pub sequence: u64,
}

/// See the module.
pub(super) struct Core {
    pub device: Rc<dyn FlashDevice>,
    pub codec: Codec,
    pub identity: [u8; 16],
    pub options: ManagerOptions,
    pub state: RefCell<State>,
    /// Something has ended: whoever waits looks again.
    pub changed: Notify,
}

impl State {
    pub fn reserve(&self) -> Reserve {
        Reserve::of(self.map.directory().len() as u32, self.lines.codec())
    }

    /// Whether hosts wait for a line.
    pub fn hosts_are_blocked(&self) -> bool {
        !self.is_read_only && (self.is_blocked(Stream::Hot) || self.is_blocked(Stream::Cold))
    }

    /// Whether a stream has something that is to be programmed now, has no line for it, and may open none.
    pub fn is_blocked(&self, stream: Stream) -> bool {
        let has_line = self.open[stream.index()].is_some_and(|line| self.lines.has_room(line));
        let is_forced = |first| first <= self.forced[stream.index()];
        let is_due = self.buffer.queued(stream) >= self.lines.codec().payload() as usize
            || self.buffer.first_queued(stream).is_some_and(is_forced);
        is_due && !has_line && self.lines.free() <= self.reserve().hosts
    }

    /// Sequences for a unit of so many sectors; the first one.
    pub fn next_sequences(&mut self, count: u64) -> u64 {
        let first = self.sequence + 1;
        self.sequence += count;
        debug_assert!(self.sequence <= self.root.limit, "a root is asked for long before");
        first
    }

    /// The map names another place for a sector; counts of valid sectors follow.
    pub fn place(&mut self, logical: u32, place: Place) {
        if let Some(sector) = place.sector() {
            self.lines.add_valid(sector);
        }
        if let Some(before) = self.map.set(logical, place).sector() {
            self.lines.remove_valid(before);
        }
    }

    /// All programs up to this sequence have ended; those behind it may not have.
    pub fn settled(&self) -> u64 {
        self.programs.first().map_or(self.sequence, |first| first - 1)
    }

    /// All programs up to this sequence have ended, as far as that is decided. Before the first root of an opening what a crash has
    /// left behind the older root is in doubt, and nobody may be told that it has ended. Nor has one that failed, before what it
    /// was to bring is stable elsewhere.
    pub fn ended(&self) -> u64 {
        let failed = self.failed.first_key_value().map_or(u64::MAX, |(first, _)| first - 1);
        if self.root.is_ours { self.settled().min(failed) } else { self.root.up_to }
    }

    /// Whether the log has still the room that it needs.
    pub fn has_spare(&self) -> bool {
        self.lines.payload() >= self.reserve().payload_needed(self.map.capacity().into())
    }

    /// What programs of a stream may have up to this ticket need not wait for a full unit.
    pub fn force(&mut self, stream: Stream, ticket: u64) {
        let forced = &mut self.forced[stream.index()];
        *forced = ticket.max(*forced);
    }

    pub fn check(&self) -> Result<(), Error> {
        match &self.failure {
            None => Ok(()),
            Some(why) => Err(why.clone()),
        }
    }

    pub fn lines_in(&self, wanted: impl Fn(LineState) -> bool) -> usize {
        self.lines.all.iter().filter(|line| wanted(line.state)).count()
    }
}

impl Core {
    /// A media manager whose log is as these say.
    pub fn new(device: Rc<dyn FlashDevice>, parts: Parts, options: ManagerOptions) -> Rc<Core> {
        let Parts { codec, identity, map, lines, root, sequence } = parts;
        let state = State {
            map,
            lines,
            buffer: Buffer::default(),
            open: [None; STREAMS],
            busy: vec![false; codec.geometry.units() as usize],
            to_deal: [0; STREAMS],
            sequence,
            programs: BTreeSet::new(),
            failed: BTreeMap::new(),
            forced: [0; STREAMS],
            held: Vec::new(),
            root,
            attributes: Attributes::default(),
            attributes_next: None,
            attribute_changes: 0,
            attribute_changes_kept: 0,
            totals: Totals::default(),
            since_root: 0,
            wants_root: false,
            is_pressed: false,
            is_read_only: false,
            is_stopping: false,
            is_emptying: false,
            is_at_rest: false,
            padding_left: None,
            changes: 0,
            resets: 0,
            failure: None,
        };
        Rc::new(Core { device, codec, identity, options, state: RefCell::new(state), changed: Notify::new() })
    }

    /// Nothing goes on any more: what the device then holds is found when it is opened anew.
    pub fn fail(&self, why: impl std::fmt::Display) {
        self.stop(Error::WriteFault(why.to_string()));
    }

    fn stop(&self, why: Error) {
        let mut state = self.state.borrow_mut();
        if state.failure.is_none() {
            tracing::error!(%why, "the media manager has stopped");
            state.failure = Some(why);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until something has ended.
    ///
    /// # Errors
    /// Nothing goes on any more.
    pub async fn wait(&self) -> Result<(), Error> {
        self.state.borrow().check()?;
        self.changed.notified().await;
        self.state.borrow().check()
    }

    /// Room for hosts will not come any more: they are told, and what they have brought has what is kept for collection.
    pub fn give_up_writes(&self) {
        tracing::error!("too few lines are left for collection: no more writes are taken");
        self.state.borrow_mut().is_read_only = true;
        self.changed.notify_all();
    }

    /// Whether what waits for room waits in vain: no more writes are taken, so no line becomes free but one that is being emptied,
    /// and nothing is under way.
    pub fn has_no_room(&self) -> bool {
        let state = self.state.borrow();
        state.is_read_only && state.programs.is_empty() && !state.is_emptying
    }

    /// Waits until something has ended, behind what was asked to be programmed now.
    ///
    /// # Errors
    /// Nothing goes on any more, or there is no room.
    pub async fn wait_for_room(&self) -> Result<(), Error> {
        self.state.borrow().check()?;
        if self.has_no_room() {
            return Err(Error::ReadOnly("the flash behind it has no room left, also for what was not flushed yet"));
        }
        self.wait().await
    }

    /// A command of the device has failed: what is no chunk's own fault ends everything.
    pub fn judge(&self, error: &FlashError) {
        match error {
            FlashError::NoRoom => self.stop(Error::OutOfSpace),
            error if error.is_of_a_chunk() => {}
            error => self.fail(error),
        }
    }

    /// The root as it would be written now.
    pub fn root(&self, up_to: u64, is_closed: bool) -> Root {
        let state = self.state.borrow();
        let note = |line: &super::lines::Line| super::root::LineNote {
            last: line.last,
            open: match line.state {
                LineState::Open(stream) => Some(stream.index() as u8),
                LineState::Free | LineState::Closed | LineState::Emptying => None,
            },
        };
        Root {
            number: state.root.number + 1,
            identity: self.identity,
            serial: self.device.serial(),
            geometry: self.codec.geometry,
            unit: self.codec.unit,
            up_to,
            limit: state.sequence + SEQUENCES_PER_ROOT,
            capacity: state.map.capacity(),
            is_closed,
            totals: state.totals,
            directory: state.map.directory().to_vec(),
            lines: state.lines.all.iter().map(note).collect(),
            apart: state.root.apart.clone(),
            attributes: state.attributes_next.as_ref().unwrap_or(&state.attributes).clone(),
        }
    }
}

impl Drop for Core {
    /// Only now: a program that was under way when the media manager was given up has ended.
    fn drop(&mut self) {
        self.device.release();
    }
}
