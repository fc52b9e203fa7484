//! Storing values, for all three protocols.

use engine::View;

use super::{CasResult, Context, Data, Event, Flow, Server, Session};
use crate::WHOLE_BYTES_MAX;
use crate::commands::store::{self, Incoming, Joined, Old, Outcome};
use crate::commands::{Mode, StoreCommand, Stored};
use crate::item::{Cas, Key};
use crate::slot::{Look, NoRoom, Slot, Slots, frozen};

/// What of a long value is here before memory is taken in which it is kept. Chosen: with its head it fits the buffer of 64 KiB.
const GATHERED_BYTES: usize = WHOLE_BYTES_MAX - engine::buf::ALIGN;

/// What became of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// What the command came to.
    Over(Stored),
    /// There was no room.
    NoMemory,
}

/// The value that came, `None` if its line's end is not behind it; or what to do before it is here.
pub(super) fn incoming<'a, P>(data: Data<'a>, length: usize, line_end: usize) -> Result<Option<Incoming<'a>>, Flow<P>> {
    match data {
        Data::Here(rest) if length > WHOLE_BYTES_MAX => {
            Err(if rest.len() < GATHERED_BYTES { Flow::More(GATHERED_BYTES) } else { Flow::Long(length) })
        }
        Data::Here(rest) if rest.len() < length + line_end => Err(Flow::More(length + line_end)),
        Data::Here(rest) => {
            let is_valid = line_end == 0 || rest[length..].starts_with(b"\r\n");
            Ok(is_valid.then_some(Incoming::Whole(&rest[..length])))
        }
        Data::Long(chunks, is_valid) => Ok(is_valid.then_some(Incoming::Long(chunks))),
    }
}

impl<S: Slots> Session<S> {
    /// Stores a value that came.
    pub(super) fn store<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        key: &Key<'_>,
        store: &StoreCommand,
        value: Incoming<'_>,
    ) -> Result<End, Flow<S::Place>> {
        let mut old_bytes = 0;
        loop {
            let look = if store.looks() { self.look(0) } else { Look::Unseen };
            let mut joined = self.joined.take();
            let visited = context.try_visit(key, look, |slot| {
                if store.mode.joins() {
                    old_bytes = slot.item().map_or(0, |item| item.value.len());
                }
                store::store(slot, store, value, joined.take())
            });
            match visited {
                Err(place) => {
                    self.joined = joined;
                    return Err(self.fetch_one(place));
                }
                Ok(Ok(Outcome::Over(stored))) => {
                    self.count_stored(context, store, stored);
                    let bytes = if matches!(stored, Stored::Stored(_)) { old_bytes + value.len() } else { value.len() };
                    context.tell_store(key, stored.name(), store.mode, store.expires, bytes);
                    return Ok(End::Over(stored));
                }
                Ok(Ok(Outcome::Join { of, old })) => match self.join(context, store.mode, of, &old, value) {
                    Ok(joined) => self.joined = Some(joined),
                    Err(no_room) => return self.no_room(store.mode, no_room),
                },
                Ok(Err(no_room)) => return self.no_room(store.mode, no_room),
            }
        }
    }

    fn no_room(&self, mode: Mode, no_room: NoRoom) -> Result<End, Flow<S::Place>> {
        match mode {
            _ if !self.is_out_of_room() => Err(Flow::Room(no_room)),
            // As in memcached: the condition is said to be the reason, and the item is as it was.
            Mode::Append | Mode::Prepend => Ok(End::Over(Stored::NotStored)),
            _ => Ok(End::NoMemory),
        }
    }

    /// Both values in new chunks.
    fn join<V: Server>(
        &self,
        context: Context<'_, S, V>,
        mode: Mode,
        of: Cas,
        old: &Old,
        new: Incoming<'_>,
    ) -> Result<Joined, NoRoom> {
        let old = old.as_incoming();
        let mut chunks = context.slots.chunks(old.len() + new.len())?;
        let (first, second) = if mode == Mode::Append { (old, new) } else { (new, old) };
        let mut places = chunks.iter_mut();
        let mut place = places.next();
        for mut piece in first.pieces().chain(second.pieces()) {
            while !piece.is_empty() {
                let Some(chunk) = &mut place else { break };
                let count = (chunk.capacity() - chunk.len()).min(piece.len());
                chunk.extend_from_slice(&piece[..count]);
                piece = &piece[count..];
                if chunk.len() == chunk.capacity() {
                    place = places.next();
                }
            }
        }
        let chunks: Vec<View> = frozen(chunks);
        Ok(Joined { of, chunks })
    }

    fn count_stored<V: Server>(&self, context: Context<'_, S, V>, store: &StoreCommand, stored: Stored) {
        let server = context.server;
        server.count(Event::Set);
        if store.mode == Mode::Cas {
            server.count(Event::Cas(match stored {
                Stored::Stored(_) => CasResult::Hit,
                Stored::Exists | Stored::NotStored => CasResult::BadValue,
                Stored::NotFound => CasResult::Miss,
            }));
        }
    }

    /// Takes an item away whose new value cannot be kept: the old one would be out of date.
    pub(super) fn drop_old<V: Server>(&self, context: Context<'_, S, V>, key: &Key<'_>) {
        // Unseen, it needs no fetch.
        let _ = context.slots.visit(key, context.now.at, Look::Unseen, |slot| slot.remove());
    }
}
