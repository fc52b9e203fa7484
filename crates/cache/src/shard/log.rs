//! The log of a shard: segments that items are appended to, in two queues.
//!
//! Invariants:
//! - A position leads to an item that is whole inside one segment, from the moment it is appended until the segment is freed.
//! - A segment's `live` is the extents of its items that are not dead. A closed one that has none is freed at once.

use std::collections::VecDeque;

use engine::Pages;

use super::header::{HEADER_BYTES, Header, UNIT_BYTES};
use crate::index::{POSITION_BITS, Position};
use crate::item::{NEVER, Seconds};
use crate::memory::{Pool, SEGMENT_BYTES};
use crate::policy::Queue;

const SEGMENT_UNITS: u64 = (SEGMENT_BYTES / UNIT_BYTES) as u64;
/// Segments of one shard: more than positions are there for. Derived.
const SEGMENTS_MAX: usize = 1 << (POSITION_BITS - SEGMENT_UNITS.ilog2());
/// Bytes of long values outside, from which on an open segment is closed: it may be nearly empty, and could not be reclaimed while
/// it is open. Chosen: what it wastes is a sixty-fourth of that.
const OUTSIDE_BYTES_MAX: usize = 64 * SEGMENT_BYTES;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Items are appended to it.
    Open,
    /// It stands in its queue.
    Closed,
    /// It has left its queue; its items are looked at one after another.
    Walked,
}

#[derive(Debug)]
pub(super) struct Segment {
    pages: Pages,
    pub(super) queue: Queue,
    pub(super) state: State,
    /// Its number in the order of all segments, which tells it from one that had the same place before.
    pub(super) number: u64,
    /// Where the next item goes.
    pub(super) tail: usize,
    pub(super) live: usize,
    /// Bytes that its items hold outside.
    outside: usize,
    /// When the last of its items expires; [`NEVER`] if one does not.
    expires: Option<Seconds>,
}

impl Segment {
    /// All its items have expired.
    pub(super) fn is_expired(&self, now: Seconds) -> bool {
        self.expires.is_some_and(|expires| expires != NEVER && expires <= now)
    }
}

/// What one queue has.
#[derive(Debug, Default)]
struct Line {
    /// Closed ones, oldest first: place and number. One that is not there any more was freed.
    closed: VecDeque<(u32, u64)>,
    open: Option<u32>,
    segments: usize,
    outside: usize,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    segments: Vec<Option<Segment>>,
    vacant: Vec<u32>,
    lines: [Line; 2],
    /// The number given last.
    last_number: u64,
    /// The place after the one looked at last by [`Log::emptiest`].
    hand: usize,
}

/// The place of the segment of a position, and the item's offset there.
fn split(position: Position) -> (usize, usize) {
    ((position.0 / SEGMENT_UNITS) as usize, (position.0 % SEGMENT_UNITS) as usize * UNIT_BYTES)
}

impl Log {
    pub(super) fn position(place: u32, offset: usize) -> Position {
        Position(u64::from(place) * SEGMENT_UNITS + (offset / UNIT_BYTES) as u64)
    }

    pub(super) fn segment(&self, place: usize) -> &Segment {
        self.segments[place].as_ref().expect("positions lead to segments that are held")
    }

    fn segment_mut(&mut self, place: usize) -> &mut Segment {
        self.segments[place].as_mut().expect("positions lead to segments that are held")
    }

    /// The segment at `place` if it is still the one of this number.
    pub(super) fn numbered(&self, place: u32, number: u64) -> Option<&Segment> {
        self.segments.get(place as usize)?.as_ref().filter(|segment| segment.number == number)
    }

    /// The bytes from an item's start on.
    pub(super) fn bytes(&self, position: Position) -> &[u8] {
        let (place, offset) = split(position);
        &self.segment(place).pages[offset..]
    }

    pub(super) fn bytes_mut(&mut self, position: Position) -> &mut [u8] {
        let (place, offset) = split(position);
        &mut self.segment_mut(place).pages[offset..]
    }

    pub(super) fn header_bytes_mut(&mut self, position: Position) -> &mut [u8; HEADER_BYTES] {
        self.bytes_mut(position).first_chunk_mut().expect("an item is whole inside its segment")
    }

    pub(super) fn header_bytes(&self, position: Position) -> &[u8; HEADER_BYTES] {
        self.bytes(position).first_chunk().expect("an item is whole inside its segment")
    }

    pub(super) fn header(&self, position: Position) -> Header {
        Header::read(self.header_bytes(position))
    }

    /// The queue of an item, and whether it stands in the older half of it.
    pub(super) fn standing(&self, position: Position) -> (Queue, bool) {
        let segment = self.segment(split(position).0);
        let oldest = self.lines[segment.queue as usize].closed.front().map_or(self.last_number, |&(_, number)| number);
        (segment.queue, segment.state != State::Open && segment.number < oldest.midpoint(self.last_number))
    }

    /// Bytes of a queue: its segments, and what their items hold outside.
    pub(super) fn weight(&self, queue: Queue) -> usize {
        let line = &self.lines[queue as usize];
        line.segments * SEGMENT_BYTES + line.outside
    }

    pub(super) fn segments(&self) -> usize {
        self.lines[0].segments + self.lines[1].segments
    }

    /// Room for an item of `extent` bytes that holds `outside` more: its header, key and value are to be written at once.
    pub(super) fn append(
        &mut self,
        queue: Queue,
        extent: usize,
        outside: usize,
        take: impl FnOnce() -> Option<Pages>,
    ) -> Option<Position> {
        let open = self.lines[queue as usize].open;
        let fits = open.filter(|&place| {
            let segment = self.segment(place as usize);
            segment.tail + extent <= SEGMENT_BYTES
                && (segment.outside == 0 || segment.outside + outside <= OUTSIDE_BYTES_MAX)
        });
        let place = match fits {
            Some(place) => place,
            None => self.open(queue, take()?)?,
        };
        let segment = self.segment_mut(place as usize);
        let offset = segment.tail;
        segment.tail += extent;
        segment.live += extent;
        segment.outside += outside;
        self.lines[queue as usize].outside += outside;
        Some(Log::position(place, offset))
    }

    fn open(&mut self, queue: Queue, pages: Pages) -> Option<u32> {
        if self.segments.len() == SEGMENTS_MAX && self.vacant.is_empty() {
            return None;
        }
        self.last_number += 1;
        let (number, state) = (self.last_number, State::Open);
        let segment = Segment { pages, queue, state, number, tail: 0, live: 0, outside: 0, expires: None };
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.segments.push(None);
            self.segments.len() as u32 - 1
        });
        self.segments[place as usize] = Some(segment);
        self.close(queue);
        let line = &mut self.lines[queue as usize];
        line.open = Some(place);
        line.segments += 1;
        Some(place)
    }

    /// Closes the open segment of a queue, if it has one.
    fn close(&mut self, queue: Queue) {
        let Some(place) = self.lines[queue as usize].open.take() else { return };
        let segment = self.segment_mut(place as usize);
        segment.state = State::Closed;
        let number = segment.number;
        // Segments that were reclaimed out of turn are taken out now and then.
        if self.lines[queue as usize].closed.len() > 2 * self.segments.len() {
            let mut closed = std::mem::take(&mut self.lines[queue as usize].closed);
            closed.retain(|&(place, number)| self.numbered(place, number).is_some_and(|it| it.state == State::Closed));
            self.lines[queue as usize].closed = closed;
        }
        self.lines[queue as usize].closed.push_back((place, number));
    }

    /// Takes back what [`Log::append`] gave last in that queue.
    pub(super) fn take_back(&mut self, position: Position, extent: usize, outside: usize) {
        let segment = self.segment_mut(split(position).0);
        debug_assert_eq!(segment.tail, split(position).1 + extent);
        segment.tail -= extent;
        segment.live -= extent;
        self.change_outside(position, outside, 0);
    }

    /// Copies an item's bytes to where another was appended; they are in different segments, for it is not an open one that loses
    /// items.
    pub(super) fn copy(&mut self, from: Position, to: Position, extent: usize) {
        let ((from_place, from_offset), (to_place, to_offset)) = (split(from), split(to));
        let segments = self.segments.get_disjoint_mut([from_place, to_place]);
        let Ok([Some(source), Some(target)]) = segments else {
            unreachable!("both segments are held, and not the same")
        };
        let bytes = &source.pages[from_offset..from_offset + extent];
        target.pages[to_offset..to_offset + extent].copy_from_slice(bytes);
    }

    /// Notes when an item of the segment expires.
    pub(super) fn note_expiry(&mut self, position: Position, expires: Seconds) {
        let segment = self.segment_mut(split(position).0);
        let last = match segment.expires {
            Some(known) if known == NEVER || expires == NEVER => NEVER,
            Some(known) => known.max(expires),
            None => expires,
        };
        segment.expires = Some(last);
    }

    /// An item's bytes outside are others now.
    pub(super) fn change_outside(&mut self, position: Position, before: usize, after: usize) {
        let segment = self.segment_mut(split(position).0);
        segment.outside = segment.outside + after - before;
        let line = segment.queue as usize;
        self.lines[line].outside = self.lines[line].outside + after - before;
    }

    /// Nothing leads to an item any more.
    pub(super) fn kill(&mut self, position: Position, outside: usize, pool: &Pool) {
        let extent = self.header(position).extent;
        Header::mark_dead(self.header_bytes_mut(position));
        self.change_outside(position, outside, 0);
        let (place, next_number) = (split(position).0, self.last_number + 1);
        let segment = self.segment_mut(place);
        segment.live -= extent;
        if segment.live == 0 {
            match segment.state {
                State::Closed => self.free(place as u32, pool),
                State::Open => {
                    // Another number: who is looking at it in pieces would go on in the middle of an item.
                    (segment.tail, segment.expires, segment.number) = (0, None, next_number);
                    self.last_number = next_number;
                }
                State::Walked => {}
            }
        }
    }

    /// Gives a segment back, whose items nothing leads to.
    pub(super) fn free(&mut self, place: u32, pool: &Pool) {
        let Some(segment) = self.segments[place as usize].take() else { return };
        self.lines[segment.queue as usize].segments -= 1;
        self.vacant.push(place);
        pool.give(segment.pages);
    }

    /// The next item, dead or not, from `offset` of the segment at `place` on, or from the start of that if it has another number.
    pub(super) fn next(&self, place: u32, number: u64, offset: usize) -> Option<(u32, u64, usize)> {
        let here = self.numbered(place, number).filter(|segment| offset < segment.tail);
        if here.is_some() {
            return Some((place, number, offset));
        }
        // Numbers begin at 1, so that a scan that has not begun stands at no segment.
        let first = if number == 0 { place } else { place + 1 };
        let mut rest = self.segments.iter().enumerate().skip(first as usize);
        rest.find_map(|(place, segment)| {
            let segment = segment.as_ref().filter(|segment| segment.tail > 0)?;
            Some((place as u32, segment.number, 0))
        })
    }

    /// Takes the oldest segment out of a queue, to be walked; the open one if there is no other and it has items.
    pub(super) fn oldest(&mut self, queue: Queue) -> Option<u32> {
        loop {
            if let Some((place, number)) = self.lines[queue as usize].closed.pop_front() {
                if self.numbered(place, number).is_some_and(|segment| segment.state == State::Closed) {
                    return Some(self.walk(place));
                }
            } else {
                let open = self.lines[queue as usize].open?;
                if self.segment(open as usize).live == 0 {
                    return None;
                }
                self.close(queue);
            }
        }
    }

    /// Of the next `count` closed segments the one with the fewest live bytes, inside and outside; one whose items have all expired
    /// counts as empty.
    pub(super) fn emptiest(&mut self, count: usize, now: Seconds) -> Option<(u32, usize)> {
        let mut best = None;
        for _ in 0..count.min(self.segments.len()) {
            self.hand = (self.hand + 1) % self.segments.len();
            let Some(segment) = &self.segments[self.hand] else { continue };
            if segment.state == State::Closed {
                // What is held outside counts: to move that to another segment would win nothing.
                let live = if segment.is_expired(now) { 0 } else { segment.live + segment.outside };
                if best.is_none_or(|(_, least)| live < least) {
                    best = Some((self.hand as u32, live));
                }
            }
        }
        best
    }

    /// Takes a closed segment to be walked. It leaves its queue when that comes to it.
    pub(super) fn walk(&mut self, place: u32) -> u32 {
        self.segment_mut(place as usize).state = State::Walked;
        place
    }

    /// Puts a segment that was walked in part back, as the oldest of its queue.
    pub(super) fn close_again(&mut self, place: u32) {
        let segment = self.segment_mut(place as usize);
        segment.state = State::Closed;
        let (queue, number) = (segment.queue, segment.number);
        self.lines[queue as usize].closed.push_front((place, number));
    }

    /// Frees all segments.
    pub(super) fn clear(&mut self, pool: &Pool) {
        for place in 0..self.segments.len() as u32 {
            self.free(place, pool);
        }
        let (last_number, old) = (self.last_number, std::mem::take(self));
        // Numbers go on, so that nobody takes a new segment for an old one.
        self.last_number = last_number;
        drop(old);
    }
}
