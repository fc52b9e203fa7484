//! From the buffer to flash: units are made of what waits, and programmed, one at a time on each parallel unit.
//!
//! Invariants:
//! - A sector gets its sequence when its unit is made, and of each logical sector one program is under way at most: so of two
//!   sectors of the same address the one with the higher sequence is the newer one, whatever the streams.
//! - The map changes when a program has succeeded, never before.

use std::rc::Rc;

use device::Error;
use engine::{View, task};

use super::buffer::{Content, Entry, Range, Stream};
use super::core::{Core, State};
use super::lines::{LineState, Target};
use super::map::Place;
use super::tag::{Codec, Logical, Tag};
use crate::device::FlashError;
use crate::geometry::SECTOR_BYTES;

/// A unit on its way.
struct Job {
    target: Target,
    first_sequence: u64,
    sectors: Vec<Logical>,
    data: View,
    oob: View,
}

/// How what hosts write is spread over parallel units; see [`super::ManagerOptions::interleave`].
#[derive(Clone, Copy, Debug)]
struct Spread {
    /// Sectors that are dealt out at a time; 0: none are, units are made of what is oldest.
    part: usize,
    /// Write units of a turn.
    turn: u32,
}

/// Bytes of a range in a record.
const RANGE_BYTES: usize = 8;
/// Set in a range's count where its sectors can't be read.
const SPOILT_BIT: u32 = 1 << 31;

/// A record as it is written: the number of ranges, then the first sector and the number of sectors of each.
pub(super) fn encode_record(ranges: &[Range]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SECTOR_BYTES);
    bytes.extend((ranges.len() as u64).to_le_bytes());
    for range in ranges {
        bytes.extend(range.first.to_le_bytes());
        bytes.extend((range.count | if range.is_spoilt { SPOILT_BIT } else { 0 }).to_le_bytes());
    }
    bytes.resize(SECTOR_BYTES, 0);
    bytes
}

/// The ranges of a record; those that go beyond the end of the namespace are cut there.
pub(super) fn decode_record(bytes: &[u8], capacity: u32) -> Vec<Range> {
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let ranges = bytes[8..].chunks_exact(RANGE_BYTES).take(word(bytes) as usize);
    let range = |bytes: &[u8]| {
        let (first, count) = (word(bytes), word(&bytes[4..]));
        let most = capacity.saturating_sub(first);
        Range { first, count: (count & !SPOILT_BIT).min(most), is_spoilt: count & SPOILT_BIT != 0 }
    };
    ranges.map(range).collect()
}

impl State {
    /// What a record says takes effect.
    pub fn apply_record(&mut self, ranges: &[Range]) {
        for range in ranges {
            let place = if range.is_spoilt { Place::Spoilt } else { Place::Nothing };
            for logical in range.first..range.first + range.count {
                self.place(logical, place);
            }
        }
    }

    /// Whether a unit of the stream should be made now.
    fn is_due(&self, stream: Stream, payload: usize, spread: Spread) -> bool {
        let first = self.buffer.first_queued(stream);
        // What is dealt out waits until each parallel unit gets something of it, unless room is scarce.
        let begins = spread.is_dealt(stream) && self.to_deal[stream.index()] == 0;
        let is_scarce = self.lines.free() <= self.reserve().soft;
        let wanted = if begins && !is_scarce { payload * self.busy.len() } else { payload };
        let may_pad = stream != Stream::Moved || self.padding_left != Some(0);
        let is_forced = |first| may_pad && first <= self.forced[stream.index()];
        first.is_some_and(|first| self.buffer.queued(stream) >= wanted || is_forced(first))
    }

    /// The sectors of the next unit: the oldest that wait, or every n-th part of them, where `n` units are still to be made of
    /// these.
    fn deal(&mut self, stream: Stream, payload: usize, spread: Spread) -> Vec<(Logical, Entry)> {
        let full = self.buffer.queued(stream) / payload;
        let left = &mut self.to_deal[stream.index()];
        if !spread.is_dealt(stream) || full < 2 {
            *left = 0;
            return self.buffer.take(stream, payload);
        }
        let units = if *left == 0 { self.busy.len() } else { *left }.min(full);
        *left = units - 1;
        self.buffer.take_parts(stream, payload, spread.part, units)
    }

    /// Where the next unit of the stream goes. `None`: nowhere, for now.
    fn target(&mut self, stream: Stream, spread: Spread) -> Option<Target> {
        let turn = if stream.is_of_hosts() { spread.turn } else { 1 };
        loop {
            let open = &mut self.open[stream.index()];
            if let Some(line) = *open {
                if self.lines.has_room(line) {
                    return self.lines.next_target(line, &self.busy, turn);
                }
                self.lines.get_mut(line).state = LineState::Closed;
                *open = None;
            }
            let reserve = self.reserve();
            let kept = match stream {
                // Out of spare, hosts bring nothing more: what they have brought is written while there is room.
                Stream::Hot | Stream::Cold | Stream::Moved if self.is_read_only => 1,
                Stream::Hot | Stream::Cold => reserve.hosts,
                Stream::Moved => reserve.map - usize::from(self.is_pressed),
                Stream::Map => 0,
            };
            // Hosts leave so much whatever the line has that they take; the others take one that leaves it.
            if stream.is_of_hosts() && self.lines.free() <= kept {
                return None;
            }
            let most = self.lines.free_beyond(kept);
            self.open[stream.index()] = Some(self.lines.take_free(stream, most)?);
        }
    }

    /// The rest of a unit of what is moved is for what hosts wait with: it may be all that emptying a line brings.
    fn fill_up(&mut self, taken: &mut Vec<(Logical, Entry)>, payload: usize) {
        for stream in [Stream::Hot, Stream::Cold] {
            if self.is_blocked(stream) {
                taken.extend(self.buffer.take(stream, payload - taken.len()));
            }
        }
    }

    fn next_job(&mut self, stream: Stream, codec: &Codec, spread: Spread) -> Option<Job> {
        let payload = codec.payload() as usize;
        if self.failure.is_some() || !self.is_due(stream, payload, spread) {
            return None;
        }
        let target = self.target(stream, spread)?;
        let mut taken = self.deal(stream, payload, spread);
        if stream == Stream::Moved && taken.len() < payload {
            self.padding_left = self.padding_left.map(|left| left.saturating_sub(1));
            self.fill_up(&mut taken, payload);
        }
        let ended = self.ended();
        let first_sequence = self.next_sequences(payload as u64);
        let mut sectors = Vec::with_capacity(taken.len());
        let mut bytes = Vec::with_capacity(taken.len());
        for (logical, entry) in taken {
            let content = match (entry.content, logical) {
                (Content::Data(data), _) => data,
                (Content::Record(ranges), _) => engine::Buf::copy_from(&encode_record(&ranges)).freeze(),
                (Content::Page, Logical::Page(page)) => engine::Buf::copy_from(&self.map.take_page(page)).freeze(),
                (Content::Page, _) => unreachable!("only pages of the map are entered without content"),
            };
            self.totals.moved += u64::from(stream == Stream::Moved && !entry.is_owed);
            sectors.push(logical);
            bytes.push(content);
        }
        let tag = |index: usize| Tag { logical: sectors[index], sequence: first_sequence + index as u64 };
        let (data, oob) = codec.build(bytes.iter().enumerate().map(|(index, bytes)| (tag(index), &bytes[..])), ended);
        self.programs.insert(first_sequence);
        // Now, not when it ends: a root that is written meanwhile must not take the line for one that holds nothing behind it.
        self.lines.get_mut(target.line).last = self.sequence;
        let unit = codec.geometry.unit_of(codec.geometry.locate(target.first).0);
        self.busy[unit as usize] = true;
        self.totals.programmed += u64::from(codec.unit);
        self.totals.padding += (payload - sectors.len()) as u64;
        self.since_root += u64::from(codec.unit);
        Some(Job { target, first_sequence, sectors, data, oob })
    }
}

impl Spread {
    fn is_dealt(&self, stream: Stream) -> bool {
        self.part > 0 && stream.is_of_hosts()
    }
}

impl Core {
    fn spread(&self) -> Spread {
        let (interleave, payload) = (self.options.interleave, self.codec.payload());
        let part = if interleave < payload { interleave as usize } else { 0 };
        Spread { part, turn: (interleave / self.codec.unit).max(1) }
    }

    /// Begins every program that can begin.
    pub fn pump(self: &Rc<Core>) {
        let spread = self.spread();
        loop {
            let mut has_begun = false;
            for stream in Stream::ALL {
                let job = self.state.borrow_mut().next_job(stream, &self.codec, spread);
                if let Some(job) = job {
                    task::spawn(self.clone().program(job)).detach();
                    has_begun = true;
                }
            }
            if !has_begun {
                break;
            }
        }
        let mut state = self.state.borrow_mut();
        // Nothing that ends would wake collection, and what it had nothing to do for may be there.
        if state.is_at_rest && state.programs.is_empty() && state.hosts_are_blocked() {
            state.is_at_rest = false;
            self.changed.notify_all();
        }
    }

    async fn program(self: Rc<Core>, job: Job) {
        let result = self.device.write(job.target.first, job.data.clone(), job.oob.clone()).await;
        if let Err(error) = &result {
            self.judge(error);
        }
        self.ended(&job, &result);
        self.pump();
        self.changed.notify_all();
    }

    fn ended(&self, job: &Job, result: &Result<(), FlashError>) {
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        let Target { line, slot, first } = job.target;
        state.changes += 1;
        state.programs.remove(&job.first_sequence);
        let unit = self.codec.geometry.unit_of(self.codec.geometry.locate(first).0);
        state.busy[unit as usize] = false;
        let found = state.lines.get_mut(line);
        found.programs -= 1;
        if state.failure.is_some() {
            return;
        }
        if result.is_err() {
            tracing::warn!(chunk = %found.slots[slot].chunk, "a program failed: the chunk is emptied and given up");
            found.slots[slot].has_failed = true;
            job.sectors.iter().for_each(|&logical| state.buffer.failed(logical));
            state.failed.insert(job.first_sequence, job.sectors.iter().copied().collect());
            state.is_read_only |= !state.has_spare();
            return;
        }
        state.failed.retain(|_, left| {
            left.retain(|logical| !job.sectors.contains(logical));
            !left.is_empty()
        });
        for (index, &logical) in job.sectors.iter().enumerate() {
            let sector = self.codec.payload_sector(first, index as u32);
            let Some(entry) = state.buffer.stable(logical) else { continue };
            match (logical, entry.content) {
                (Logical::Data(logical), _) => state.place(logical, Place::At(sector)),
                (Logical::Page(page), _) => {
                    state.lines.add_valid(sector);
                    // The root in force names the old one: it stays valid.
                    let before = state.map.set_page_place(page, Place::At(sector));
                    state.held.extend(before.sector());
                }
                (Logical::Record, Content::Record(ranges)) => {
                    state.apply_record(&ranges);
                    state.lines.pin(line, job.first_sequence + index as u64);
                }
                (Logical::Record | Logical::Root | Logical::Padding, _) => {}
            }
        }
    }

    /// Sectors that may wait in the buffer for hosts, at the moment: the fewer lines are free, the fewer.
    fn host_room(&self) -> usize {
        let state = self.state.borrow();
        let reserve = state.reserve();
        let payload = self.codec.payload() as usize;
        let most = payload * self.codec.geometry.units() as usize * self.options.buffer_units.max(1) as usize;
        let spare = state.lines.free().saturating_sub(reserve.hosts);
        let span = reserve.soft - reserve.hosts + 1;
        // One unit at least: what collection needs it has apart, and a flush pads.
        (most * spare.min(span) / span).max(payload)
    }

    fn check_writable(&self) -> Result<(), Error> {
        let state = self.state.borrow();
        if state.is_read_only {
            return Err(Error::ReadOnly("the flash behind it has too few good chunks left"));
        }
        state.check()
    }

    /// Enters sectors into the buffer, as there is room. Returns the last ticket.
    ///
    /// The caller has the range to itself.
    pub async fn write(self: &Rc<Core>, first: u32, data: View, stream: Stream) -> Result<u64, Error> {
        let count = (data.len() / SECTOR_BYTES) as u32;
        // A record and a write of the same sector are never in the buffer together: which is the newer one would be in doubt.
        while self.state.borrow().buffer.recorded(first, count).is_some() {
            self.force_hosts(u64::MAX);
            self.wait_for_room().await?;
        }
        let mut ticket = 0;
        for index in 0..count {
            self.check_writable()?;
            while self.state.borrow().buffer.host_entries() >= self.host_room() {
                self.force_if_stuck();
                self.wait().await?;
                self.check_writable()?;
            }
            let sector = data.slice(index as usize * SECTOR_BYTES..(index as usize + 1) * SECTOR_BYTES);
            let mut state = self.state.borrow_mut();
            state.totals.host += 1;
            ticket = state.buffer.enter(Logical::Data(first + index), stream, true, Content::Data(sector));
            self.has_entered(state);
        }
        self.pump();
        Ok(ticket)
    }

    /// Makes sectors nothing, or unreadable; at most 2^31 - 1 of them. Returns the ticket. The caller has the range to itself.
    pub async fn record(self: &Rc<Core>, range: Range) -> Result<u64, Error> {
        loop {
            self.check_writable()?;
            let is_free = !self.state.borrow().buffer.holds_any(range.first, range.count);
            if is_free {
                let mut state = self.state.borrow_mut();
                if let Ok(ticket) = state.buffer.enter_range(range, Stream::Hot) {
                    self.has_entered(state);
                    return Ok(ticket);
                }
            }
            self.force_hosts(u64::MAX);
            self.force_moved();
            self.wait().await?;
        }
    }

    /// Something of hosts is in the buffer. It may be newer than what keeps a line from being empty, and have no room of its own:
    /// collection has to look again.
    fn has_entered(&self, mut state: std::cell::RefMut<'_, State>) {
        state.changes += 1;
        let is_emptying = state.is_emptying;
        drop(state);
        if is_emptying {
            self.changed.notify_all();
        }
    }

    /// What collection has in the buffer is not waited for longer.
    pub fn force_moved(self: &Rc<Core>) {
        let mut state = self.state.borrow_mut();
        let last = state.buffer.last_ticket();
        state.force(Stream::Moved, last);
        drop(state);
        self.pump();
    }

    /// What hosts have in the buffer up to a ticket is programmed, with padding where it must.
    fn force_hosts(self: &Rc<Core>, ticket: u64) {
        let mut state = self.state.borrow_mut();
        let ticket = ticket.min(state.buffer.last_ticket());
        state.force(Stream::Hot, ticket);
        state.force(Stream::Cold, ticket);
        if state.buffer.owes(Stream::Moved) {
            state.force(Stream::Moved, ticket);
        }
        drop(state);
        self.pump();
    }

    /// Hosts wait for room, which comes of full units alone: where the streams have none, each waits for what does not come.
    fn force_if_stuck(self: &Rc<Core>) {
        let (payload, spread) = (self.codec.payload() as usize, self.spread());
        let is_due = [Stream::Hot, Stream::Cold].map(|stream| self.state.borrow().is_due(stream, payload, spread));
        if is_due.contains(&true) { self.pump() } else { self.force_hosts(u64::MAX) }
    }

    /// Ends when everything that hosts entered up to a ticket is stable.
    pub async fn flush(self: &Rc<Core>, ticket: u64) -> Result<(), Error> {
        loop {
            self.state.borrow().check()?;
            let is_done = self.state.borrow().buffer.oldest_owed().is_none_or(|oldest| oldest > ticket);
            if is_done {
                return Ok(());
            }
            self.force_hosts(ticket);
            self.wait_for_room().await?;
        }
    }
}
