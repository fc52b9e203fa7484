//! [`Reserve`]: what is kept free and for whom, and how much a namespace may hold so that hosts never wait for ever.
//!
//! Sectors are counted without tags. A unit has `p` of them and a line `l` at most; where chunks are bad lines differ, so what is
//! free is counted in lines' worth of sectors. Why hosts that wait for a line are gone on with after one line, or few, was
//! emptied:
//!
//! 1. *All but a few lines are closed then.* Hosts open a line while more than `hosts` lines are free. So where they wait less
//!    than `hosts + 1` are, and three at most are open: those of the other streams. Closed lines hold all but `hosts + 4` lines.
//! 2. *One of them is worth emptying.* Valid are the namespace and the pages twice at most (the root in force still names the old
//!    ones). What closed lines hold beyond that is more than lines of pages can hide (`Reserve::hidden`). So a line would bring a
//!    unit and more, or one without pages has a sector at least that is not valid.
//! 3. *Emptying takes no more than it brings.* `v` valid sectors make `v / p` units, rounded up: only the last one is not full.
//!    What a flush has padded before is paid from what the line brings beyond one unit (`State::padding_left`). What hosts write
//!    again of what is moved goes with it, and takes no other room.
//! 4. *Hosts go on by it.* A line that brings a unit brings it to what is free. One that brings less has room in its last unit,
//!    and what hosts wait with fills it (`State::fill_up`).
//! 5. *There is room for it.* `hosts` lines are left when hosts open one, and by 3 what is free and the rest of the open line of
//!    collection is not less before each line that is emptied: where a line has to be opened for that more than `map` are free.
//!    Pages may have taken one since, and what their lines hide: all else they bring back, since lines that bring a unit come
//!    first.
//!
//! What ends it: chunks that go bad, when [`Reserve::payload_needed`] no longer holds; and crash after crash, or failure after
//! failure, while few lines are free. Then no more writes are taken, and who waits is told (`Core::wait_for_moved`,
//! `Core::wait_for_room`).

use super::buffer::STREAMS;
use super::tag::Codec;

/// What lines have to be kept free, and for whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserve {
    /// For pages of the map: all of them, once more.
    pub map: usize,
    /// Below that many hosts wait.
    pub hosts: usize,
    /// Below that many collection begins.
    pub soft: usize,
    pages: u64,
    /// Sectors of a line whose chunks are all there.
    line: u64,
    /// Sectors that are not valid, in lines of pages that it brings nothing to empty.
    hidden: u64,
}

impl Reserve {
    /// Collection needs one line for what it moves; one more stands for a line that pages have opened, and for units that a crash
    /// or a failed program left unused; and as many as lines of pages can hide stand for what pages come to take since hosts went
    /// on.
    pub fn of(pages: u32, codec: &Codec) -> Reserve {
        let (pages, unit) = (u64::from(pages), u64::from(codec.payload()));
        let chunk = u64::from(codec.units_per_chunk()) * unit;
        let line = chunk * u64::from(codec.geometry.units());
        let map = 1 + pages.div_ceil(line) as usize;
        // A line of pages that would bring no unit has less than one beside its pages: of them it has all but that, and the
        // shortest line is a chunk.
        let hidden = (unit - 1) * pages.div_ceil(chunk - unit + 1);
        let hosts = map + 2 + (hidden / line) as usize;
        Reserve { map, hosts, soft: hosts + 2, pages, line, hidden }
    }

    /// Sectors that lines must hold for so many of a namespace, as far as that depends on no spare: what is free and open where
    /// hosts wait, the pages of the map twice, and the lines that collection begins early by.
    pub fn payload_planned(&self, capacity: u64) -> u64 {
        capacity + 2 * self.pages + (self.soft + STREAMS) as u64 * self.line
    }

    /// Sectors that lines must hold for so many of a namespace. With less hosts could wait for ever.
    pub fn payload_needed(&self, capacity: u64) -> u64 {
        let early = (self.soft - self.hosts) as u64 * self.line;
        self.payload_planned(capacity) + (self.hidden + 1).saturating_sub(early)
    }
}
