//! Collection: lines are emptied of what is valid in them, reset, and free again; and the task that does it.
//!
//! Invariants:
//! - What is moved enters the buffer only while the map names the place that it was read from, and nothing of the same sector is in
//!   the buffer. So it never takes the place of something newer.
//! - A line is reset when nothing in it is valid, nobody reads or writes it, and the root in force is behind what pins it.
//! - Collection never waits for hosts: what they have in the buffer of a sector that keeps a line from being empty goes with what
//!   is moved, which has lines of its own in reserve.

use std::collections::BTreeSet;
use std::rc::Rc;

use device::Error;
use engine::View;
use engine::task::LocalFuture;

use super::buffer::{Content, Stream};
use super::core::{Core, Policy, State};
use super::join::join_all;
use super::lines::{Line, LineState};
use super::map::Place;
use super::tag::Logical;
use crate::address::Sector;
use crate::device::FlashError;

/// Lines that are reset between two looks at how much their wear differs. Chosen: moving what stays then costs an eighth at most.
const RESETS_PER_WEAR: u32 = 8;

enum Chore {
    Stop,
    Root,
    Collect(u32),
    /// Hosts wait, and nothing brings room.
    GiveUp,
    Wait,
}

/// What is known of a sector of a unit that is emptied: what it is, and its bytes; `None`: it is lost.
type Found = (Sector, Logical, Option<View>);

impl State {
    fn next_chore(&mut self, policy: Policy, spread: u32, is_root_due: bool) -> Chore {
        if self.is_stopping || self.failure.is_some() {
            return Chore::Stop;
        }
        if is_root_due {
            return Chore::Root;
        }
        if self.is_read_only {
            return Chore::Wait; // resets are what it has no more of
        }
        // What stays is moved now and then, also while room is scarce, but never when hosts wait for it: it brings none.
        if self.resets >= RESETS_PER_WEAR && self.lines.free() > self.reserve().hosts {
            self.resets = 0;
            if let Some(line) = self.least_worn(spread) {
                return Chore::Collect(line);
            }
        }
        let is_low = self.lines.free() <= self.reserve().soft;
        let chosen = if is_low { self.victim(policy) } else { None };
        let wait = self.hosts_are_blocked();
        match chosen.or_else(|| if wait { self.last_resort() } else { None }) {
            Some(line) => Chore::Collect(line),
            // Nothing is under way that could change it.
            None if wait && self.programs.is_empty() => Chore::GiveUp,
            None => Chore::Wait,
        }
    }

    /// Where no line brings a whole unit: one that has room in its last one. A line with pages has not, since pages go elsewhere.
    fn last_resort(&self) -> Option<u32> {
        let pages = self.map.page_places().map(|(_, sector)| sector).chain(self.held.iter().copied());
        let with_pages: BTreeSet<u32> = pages.map(|sector| self.lines.line_of(sector)).collect();
        let others = self.candidates().map(|(number, _)| number).filter(|number| !with_pages.contains(number));
        others.filter(|&number| self.lines.room_in(number) > 0).max_by_key(|&number| self.lines.room_in(number))
    }

    fn candidates(&self) -> impl Iterator<Item = (u32, &Line)> {
        let closed = |line: &Line| line.state == LineState::Closed && line.programs == 0 && !line.slots.is_empty();
        (0..).zip(&self.lines.all).filter(move |(_, line)| closed(line))
    }

    /// The line to be emptied, if that brings a unit or more.
    fn victim(&self, policy: Policy) -> Option<u32> {
        // Less is free than hosts leave: pages have taken of it, or a crash or a failure has. Then what can be emptied in what is
        // left comes first, and nothing that brings no room.
        let is_scarce = self.lines.free() < self.reserve().hosts;
        // A chunk that has failed is to be emptied first.
        let gains =
            self.candidates().filter(|(number, line)| self.lines.gain(*number) >= 1 || line.has_failed() && !is_scarce);
        let chosen = gains.max_by_key(|(number, line)| {
            let payload = self.lines.payload_of(*number).max(1);
            let valid = u64::from(line.valid);
            if is_scarce {
                return (false, u64::MAX - valid, u32::MAX - number);
            }
            let score = match policy {
                Policy::Greedy => payload.saturating_sub(valid),
                // (1 - u) * age / (1 + u), scaled: what comes of it over what it costs.
                Policy::CostBenefit if valid == 0 => u64::MAX,
                Policy::CostBenefit => {
                    let age = u128::from(self.sequence.saturating_sub(line.last));
                    let room = u128::from(payload.saturating_sub(valid));
                    (room * age * 1024 / u128::from(payload + valid)).min(u128::from(u64::MAX - 1)) as u64
                }
            };
            (line.has_failed(), score, u32::MAX - number)
        });
        chosen.map(|(number, _)| number)
    }

    /// A line whose content stays for so long that others are worn much more.
    fn least_worn(&self, spread: u32) -> Option<u32> {
        let most = self.lines.all.iter().map(Line::wear).max()?;
        let least = self.candidates().min_by_key(|(_, line)| line.wear())?;
        (most - least.1.wear() > spread).then_some(least.0)
    }
}

impl Core {
    /// The task of the log: roots, collection, wear.
    pub async fn maintain(self: Rc<Core>) {
        loop {
            let is_root_due = self.is_root_due();
            let chore = self.state.borrow_mut().next_chore(self.options.policy, self.options.wear_spread, is_root_due);
            let done = match chore {
                Chore::Stop => return,
                Chore::Root => self.checkpoint(false).await,
                Chore::Collect(line) => {
                    self.state.borrow_mut().is_emptying = true;
                    let result = self.collect(line).await;
                    self.state.borrow_mut().is_emptying = false;
                    result
                }
                Chore::GiveUp => {
                    self.give_up_writes();
                    Ok(())
                }
                Chore::Wait => {
                    self.state.borrow_mut().is_at_rest = true;
                    let result = self.wait().await;
                    self.state.borrow_mut().is_at_rest = false;
                    result
                }
            };
            if let Err(error) = done {
                tracing::debug!(%error, "the log is maintained no longer");
                return;
            }
            self.pump();
        }
    }

    /// Empties a line and makes it free.
    async fn collect(self: &Rc<Core>, line: u32) -> Result<(), Error> {
        let mut padding = {
            let mut state = self.state.borrow_mut();
            state.lines.get_mut(line).state = LineState::Emptying;
            // What was asked for before is on flash; a flush that goes on asks again.
            state.forced[Stream::Moved.index()] = 0;
            state.lines.gain(line).saturating_sub(1)
        };
        loop {
            let changes = self.state.borrow().changes;
            self.state.borrow_mut().padding_left = Some(padding);
            let result = self.empty(line).await;
            padding = self.state.borrow_mut().padding_left.take().unwrap_or(0);
            result?;
            self.force_moved();
            let is_empty = |state: &State| state.lines.get(line).valid == 0;
            // What is on its way out of the line ends one way or the other; then what is left is looked at again.
            while !is_empty(&self.state.borrow()) && self.state.borrow().buffer.moved_entries() > 0 {
                self.wait_for_moved().await?;
            }
            let needs_root = {
                let state = self.state.borrow();
                let found = state.lines.get(line);
                found.pinned > state.root.up_to || found.valid > 0 && self.holds_pages(&state, line)
            };
            if needs_root {
                self.checkpoint(false).await?;
            }
            if is_empty(&self.state.borrow())
                && self.state.borrow().lines.get(line).pinned <= self.state.borrow().root.up_to
            {
                break;
            }
            if self.state.borrow().is_stopping {
                self.state.borrow_mut().lines.get_mut(line).state = LineState::Closed;
                return Ok(());
            }
            // What failed meanwhile may wait for room that is to come of this line.
            if !needs_root && self.state.borrow().changes == changes {
                self.wait().await?;
            }
        }
        while self.state.borrow().lines.get(line).readers > 0 {
            self.wait().await?;
        }
        self.reset(line).await
    }

    /// Waits for a program, behind whatever could begin. Where none is under way a wait would have no end: crashes or failures have
    /// left too much unused. Then a line that is kept is taken, once; then what is kept for pages, and hosts bring nothing more.
    async fn wait_for_moved(self: &Rc<Core>) -> Result<(), Error> {
        self.state.borrow().check()?;
        if !self.state.borrow().programs.is_empty() {
            return self.wait().await;
        }
        let (is_pressed, is_read_only) = (self.state.borrow().is_pressed, self.state.borrow().is_read_only);
        match (is_pressed, is_read_only) {
            (false, false) => self.state.borrow_mut().is_pressed = true,
            (true, false) => self.give_up_writes(),
            (_, true) => {
                return Err(self.end_writing("no line is left for what collection moves: what was flushed is read on"));
            }
        }
        self.pump();
        Ok(())
    }

    /// Whether a page of the map is in the line, by the directory or by the root in force.
    fn holds_pages(&self, state: &State, line: u32) -> bool {
        let named = state.map.page_places().map(|(_, sector)| sector).chain(state.held.iter().copied());
        named.into_iter().any(|sector| state.lines.line_of(sector) == line)
    }

    /// Has everything valid in a line written elsewhere.
    async fn empty(self: &Rc<Core>, line: u32) -> Result<(), Error> {
        let slots = self.state.borrow().lines.get(line).slots.clone();
        let walks = slots.iter().map(|slot| -> LocalFuture<'_, Result<(), Error>> {
            Box::pin(async move {
                for offset in (0..slot.written).step_by(self.codec.unit as usize) {
                    let first = self.codec.geometry.sector(slot.chunk, offset);
                    if self.state.borrow().lines.valid_in_unit(first) > 0 {
                        self.empty_unit(line, first).await?;
                    }
                }
                Ok(())
            })
        });
        let walks = walks.collect();
        join_all(walks).await.into_iter().collect()
    }

    async fn empty_unit(self: &Rc<Core>, line: u32, first: Sector) -> Result<(), Error> {
        let found = match self.read_flash(first, self.codec.unit).await {
            Ok((data, oob)) => {
                let tagged = self.codec.tagged(first, data, &oob);
                tagged.map(|(sector, tag, bytes)| (sector, tag.logical, Some(bytes))).collect()
            }
            Err(error @ (FlashError::PowerLost | FlashError::Medium(_))) => {
                self.fail(&error);
                return self.state.borrow().check();
            }
            Err(_) => self.salvage(first).await,
        };
        let named = |found: &Vec<Found>| {
            let state = self.state.borrow();
            let is_named = |(sector, logical, _): &&Found| self.place_of(&state, *logical) == Place::At(*sector);
            found.iter().filter(is_named).count() as u32
        };
        // What the tags do not tell of is looked for in the map.
        let valid = self.state.borrow().lines.valid_in_unit(first);
        let found = if named(&found) + self.held_in(first) < valid { self.salvage(first).await } else { found };
        for (sector, logical, bytes) in found {
            self.move_out(line, sector, logical, bytes).await?;
        }
        Ok(())
    }

    /// Sectors of a unit that are valid for the root in force alone.
    fn held_in(&self, first: Sector) -> u32 {
        let unit = self.codec.unit_index(first);
        self.state.borrow().held.iter().filter(|&&sector| self.codec.unit_index(sector) == unit).count() as u32
    }

    fn place_of(&self, state: &State, logical: Logical) -> Place {
        match logical {
            Logical::Data(sector) => state.map.get(sector),
            Logical::Page(page) => state.map.page_place(page),
            Logical::Record | Logical::Root | Logical::Padding => Place::Nothing,
        }
    }

    /// Of a unit that can't be read as a whole what the map names, sector by sector.
    async fn salvage(&self, first: Sector) -> Vec<Found> {
        let unit = self.codec.unit_index(first);
        let named: Vec<(Sector, Logical)> = {
            let state = self.state.borrow();
            let data = state.map.places().map(|(logical, sector)| (sector, Logical::Data(logical)));
            let pages = state.map.page_places().map(|(page, sector)| (sector, Logical::Page(page)));
            data.chain(pages).filter(|(sector, _)| self.codec.unit_index(*sector) == unit).collect()
        };
        let mut found = Vec::new();
        for (sector, logical) in named {
            let bytes = match self.codec.in_band() {
                false => {
                    self.read_tagged(sector).await.filter(|(tag, _)| tag.logical == logical).map(|(_, bytes)| bytes)
                }
                // The sector of tags may be what is lost: then the map alone knows what the others are.
                true => self.read_flash(sector, 1).await.ok().map(|(bytes, _)| bytes),
            };
            found.push((sector, logical, bytes.map(engine::Buf::freeze)));
        }
        found
    }

    /// Has one sector written elsewhere, if it is still valid.
    async fn move_out(
        self: &Rc<Core>,
        line: u32,
        sector: Sector,
        logical: Logical,
        bytes: Option<View>,
    ) -> Result<(), Error> {
        let most = self.codec.payload() as usize * self.codec.geometry.units() as usize * 2;
        while self.state.borrow().buffer.moved_entries() >= most {
            self.wait_for_moved().await?; // so many make full units
        }
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        if self.place_of(state, logical) != Place::At(sector) {
            return Ok(());
        }
        match logical {
            Logical::Data(number) => {
                if state.buffer.cell(logical).is_some() {
                    state.buffer.move_to(logical, Stream::Moved);
                } else if state.buffer.recorded(number, 1).is_some() {
                    state.buffer.move_to(Logical::Record, Stream::Moved);
                } else if let Some(bytes) = bytes {
                    state.buffer.enter(logical, Stream::Moved, false, Content::Data(bytes));
                } else {
                    tracing::error!(sector = number, "a sector can't be read, and is lost");
                    state.place(number, Place::Spoilt);
                    // No tag says it: the line stays until a root does.
                    let now = state.sequence + 1;
                    state.next_sequences(1);
                    state.lines.pin(line, now);
                }
            }
            Logical::Page(page) => state.map.mark_dirty(page),
            Logical::Record | Logical::Root | Logical::Padding => {}
        }
        drop(guard);
        self.pump();
        Ok(())
    }

    /// Resets the chunks of an empty line; those that have failed are given up, where the device can't use them again.
    async fn reset(self: &Rc<Core>, line: u32) -> Result<(), Error> {
        let slots = self.state.borrow().lines.get(line).slots.clone();
        let resets = slots.iter().map(|slot| -> LocalFuture<'_, Result<(), FlashError>> {
            Box::pin(async move {
                if slot.has_failed {
                    let is_good = self.device.give_up(slot.chunk).await?;
                    return if is_good { Ok(()) } else { Err(FlashError::ProgramFailed(slot.chunk)) };
                }
                if slot.written > 0 {
                    self.device.reset(slot.chunk).await?;
                }
                Ok(())
            })
        });
        let results = join_all(resets.collect()).await;
        let mut good = Vec::new();
        for (slot, result) in slots.iter().zip(results) {
            match result {
                Ok(()) => {
                    let wear = slot.wear + u32::from(slot.written > 0);
                    good.push(super::lines::Slot { written: 0, has_failed: false, wear, ..*slot });
                }
                Err(error) if error.is_of_a_chunk() => {
                    tracing::warn!(chunk = %slot.chunk, %error, "a chunk is given up");
                }
                Err(error) => {
                    self.judge(&error);
                    return self.state.borrow().check();
                }
            }
        }
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        state.lines.get_mut(line).slots = good;
        state.lines.set_free(line);
        state.resets += 1;
        state.is_pressed &= state.lines.free() <= state.reserve().map;
        state.is_read_only |= !state.has_spare();
        drop(guard);
        self.changed.notify_all();
        Ok(())
    }
}
