//! What flows on a connection: segments one way, credit for what was read the other.

use std::io;
use std::task::{Poll, Waker};

use super::super::Net;
use super::{Credit, Item};
use crate::sim::core::Core;
use crate::sim::event::Event;
use crate::sim::id::{ConnId, Side};
use crate::sim::rng::{Rng, nanos};
use crate::sim::trace::{Frequent, hash_bytes};

/// The longest segment: what Linux hands over at once with large receive offload.
const SEGMENT_BYTES_MAX: usize = 64 * 1024;

/// Segments are mostly whole, often short, sometimes tiny: a decoder meets every boundary within a few hundred messages.
fn segment_len(rng: &mut Rng) -> usize {
    1 + match rng.below(8) {
        0 => rng.index(32),
        1..=3 => rng.index(4096),
        _ => SEGMENT_BYTES_MAX - 1,
    }
}

impl Net {
    /// Puts `item` in flight from `side`.
    pub(super) fn launch(&mut self, core: &mut Core, id: ConnId, side: Side, item: Item) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (a, b) = conn.pair();
        let delay = self.delay(core, a, b);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = conn.end_mut(side);
        let bytes = if let Item::Data(bytes) = &item { bytes.len() as u64 } else { 0 };
        let transfer = core.config.link_bandwidth.map_or(0, |rate| bytes.saturating_mul(1_000_000_000) / rate.max(1));
        end.departure = end.departure.max(core.now).saturating_add(transfer);
        end.arrival = end.arrival.max(end.departure.saturating_add(delay));
        end.flight.push_back(item);
        core.events.schedule(end.arrival, Event::Arrive { conn: id, to: side.other() });
    }

    /// Takes as many bytes of `slices` as the window has room for, at least one.
    pub(in crate::sim) fn poll_send<'a>(
        &mut self,
        core: &mut Core,
        id: ConnId,
        side: Side,
        waker: &Waker,
        slices: impl Iterator<Item = &'a [u8]>,
    ) -> Poll<io::Result<usize>> {
        let window = core.config.link_window.max(1);
        let Some(conn) = self.conns.get_mut(&id) else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        let end = conn.end_mut(side);
        if let Some(kind) = end.error.take() {
            return Poll::Ready(Err(kind.into()));
        }
        if end.broken || end.shut || end.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = window.saturating_sub(end.outstanding);
        if room == 0 {
            end.sender = Some(waker.clone());
            return Poll::Pending;
        }
        let node = end.node;
        let taken = self.cut(core, id, side, slices, room);
        core.note_frequent(node, Frequent::Sends { conn: id.0, bytes: taken });
        if core.rngs.links.happens(core.config.connection_reset_ppm) {
            self.sever(core, id);
        }
        Poll::Ready(Ok(taken))
    }

    /// Sends up to `room` bytes of `slices` in segments of seeded lengths; their boundaries know nothing of the slices'.
    fn cut<'a>(
        &mut self,
        core: &mut Core,
        id: ConnId,
        side: Side,
        slices: impl Iterator<Item = &'a [u8]>,
        room: usize,
    ) -> usize {
        let mut taken = 0;
        let mut segment = Vec::new();
        let mut len = segment_len(&mut core.rngs.links);
        for mut slice in slices {
            while !slice.is_empty() && taken < room {
                let (part, rest) = slice.split_at(slice.len().min(len - segment.len()).min(room - taken));
                segment.extend_from_slice(part);
                taken += part.len();
                slice = rest;
                if segment.len() == len {
                    self.launch(core, id, side, Item::Data(std::mem::take(&mut segment)));
                    len = segment_len(&mut core.rngs.links);
                }
            }
        }
        if !segment.is_empty() {
            self.launch(core, id, side, Item::Data(segment));
        }
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.end_mut(side).outstanding += taken;
        }
        taken
    }

    /// Moves arrived bytes into `into`: `Ok(0)` is the end of the stream.
    pub(in crate::sim) fn poll_recv(
        &mut self,
        core: &mut Core,
        id: ConnId,
        side: Side,
        waker: &Waker,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let Some(conn) = self.conns.get_mut(&id) else { return Poll::Ready(Ok(0)) };
        let end = conn.end_mut(side);
        let available = end.inbound.len().min(into.len());
        if available == 0 {
            let error = if end.fin { None } else { end.error.take() };
            return match error {
                Some(kind) => Poll::Ready(Err(kind.into())),
                None if end.fin || end.broken || end.shut || end.closed || into.is_empty() => Poll::Ready(Ok(0)),
                None => {
                    end.receiver = Some(waker.clone());
                    Poll::Pending
                }
            };
        }
        // Now and then less than what is there, as if the rest had come a moment later.
        let count = if core.rngs.links.below(8) == 0 { 1 + core.rngs.links.index(available) } else { available };
        let (front, back) = end.inbound.as_slices();
        let split = front.len().min(count);
        into[..split].copy_from_slice(&front[..split]);
        into[split..count].copy_from_slice(&back[..count - split]);
        end.inbound.drain(..count);
        core.note_frequent(end.node, Frequent::Takes { conn: id.0, bytes: count });
        self.consume(core, id, side, count);
        Poll::Ready(Ok(count))
    }

    /// Whether a receive would end at once. Whoever waits for that takes nothing: dropping it loses nothing.
    pub(in crate::sim) fn poll_readable(&mut self, id: ConnId, side: Side, waker: &Waker) -> Poll<()> {
        let Some(conn) = self.conns.get_mut(&id) else { return Poll::Ready(()) };
        let end = conn.end_mut(side);
        let has_ended = end.fin || end.broken || end.shut || end.closed || end.error.is_some();
        if has_ended || !end.inbound.is_empty() {
            return Poll::Ready(());
        }
        end.receiver = Some(waker.clone());
        Poll::Pending
    }

    /// A waiting receive was dropped. What was about to arrive may have been taken by it, and is then lost: whoever drops a
    /// receive and goes on reading has lost the place in the stream.
    pub(in crate::sim) fn abandon_recv(&mut self, core: &mut Core, id: ConnId, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let held = conn.severed || self.partitions.contains(&conn.way_to(side));
        let end = conn.end_mut(side);
        end.receiver = None;
        if held || end.closed || end.broken {
            return;
        }
        let node = end.node;
        let flight = &mut conn.end_mut(side.other()).flight;
        if !matches!(flight.front(), Some(Item::Data(_))) || !core.rngs.links.coin() {
            return;
        }
        if let Some(Item::Data(bytes)) = flight.pop_front() {
            core.note(node, format_args!("c{} loses {} bytes to a dropped receive", id.0, bytes.len()));
            self.consume(core, id, side, bytes.len());
        }
    }

    /// Tells the peer of `side`, a little later, that its window has room again.
    fn consume(&mut self, core: &mut Core, id: ConnId, side: Side, count: usize) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (a, b) = conn.pair();
        let delay = self.delay(core, a, b);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let sender = conn.end_mut(side.other());
        sender.consumed += count;
        if sender.credit == Credit::None {
            sender.credit = Credit::UnderWay;
            core.after(delay, Event::Credit { conn: id, side: side.other() });
        }
    }

    /// [`Event::Credit`].
    pub(in crate::sim) fn credit(&mut self, core: &mut Core, id: ConnId, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let held = self.partitions.contains(&conn.way_to(side));
        let end = conn.end_mut(side);
        if held {
            end.credit = Credit::Held;
            return;
        }
        end.credit = Credit::None;
        end.outstanding -= std::mem::take(&mut end.consumed);
        core.wake(&mut end.sender);
    }

    /// [`Event::Arrive`].
    pub(in crate::sim) fn arrive(&mut self, core: &mut Core, id: ConnId, to: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let held = self.partitions.contains(&conn.way_to(to));
        let severed = conn.severed;
        let from = conn.end_mut(to.other());
        if held {
            from.held += 1;
            if from.held == 1 {
                let stalled = Event::Stalled { conn: id, side: to.other(), stall: from.stall };
                core.after(nanos(core.config.connection_timeout), stalled);
            }
            return;
        }
        let Some(item) = from.flight.pop_front() else { return };
        if severed {
            return;
        }
        let end = conn.end_mut(to);
        match item {
            Item::Data(bytes) if end.closed || end.shut || end.broken => {
                core.note(end.node, format_args!("c{} takes no more: {} bytes refused", id.0, bytes.len()));
                end.broken = true;
                self.launch(core, id, to, Item::Reset);
            }
            Item::Data(bytes) => {
                let hash = hash_bytes(0, &bytes);
                core.note_frequent(end.node, Frequent::Arrives { conn: id.0, bytes: bytes.len(), hash });
                end.inbound.extend(&bytes);
                core.wake(&mut end.receiver);
            }
            Item::Fin => {
                core.note(end.node, format_args!("c{} < end", id.0));
                end.fin = true;
                core.wake(&mut end.receiver);
            }
            Item::Reset => end.break_with(core, io::ErrorKind::ConnectionReset),
        }
    }

    /// [`Event::Stalled`].
    pub(in crate::sim) fn stalled(&mut self, core: &mut Core, id: ConnId, side: Side, stall: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = conn.end_mut(side);
        if end.held > 0 && end.stall == stall {
            end.flight.clear();
            end.break_with(core, io::ErrorKind::TimedOut);
        }
    }

    /// A partition has healed: what it held comes through.
    pub(in crate::sim::network) fn release(&mut self, core: &mut Core, id: ConnId) {
        for side in [Side::CLIENT, Side::SERVER] {
            let Some(conn) = self.conns.get(&id) else { return };
            let (a, b) = conn.pair();
            let delay = self.delay(core, a, b);
            let Some(conn) = self.conns.get_mut(&id) else { return };
            let end = conn.end_mut(side);
            end.stall += 1;
            end.arrival = end.arrival.max(core.now.saturating_add(delay));
            for _ in 0..std::mem::take(&mut end.held) {
                core.events.schedule(end.arrival, Event::Arrive { conn: id, to: side.other() });
            }
            if end.credit == Credit::Held {
                end.credit = Credit::UnderWay;
                core.events.schedule(end.arrival, Event::Credit { conn: id, side });
            }
        }
    }
}
