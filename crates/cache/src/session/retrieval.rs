//! `get`, `gets`, `gat` and `gats`, of any number of keys.

use super::text::BAD_FORMAT;
use super::{Context, Event, FETCHES_MAX, Flow, LOOK_AHEAD_MAX, Server, Session, TURN_KEYS_MAX};
use crate::KEY_BYTES_MAX;
use crate::commands;
use crate::item::{Item, Key, Seconds};
use crate::protocol::number;
use crate::protocol::tokens::{word_at, words};
use crate::slot::{Look, Slot, Slots};

/// What is told of an item, and done with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retrieval {
    pub(super) with_cas: bool,
    pub(super) expires: Option<Seconds>,
}

impl<S: Slots> Session<S> {
    /// `get`, `gets`: keys from `behind` on.
    pub(super) fn get<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        line: &[u8],
        behind: usize,
        with_cas: bool,
    ) -> Flow<S::Place> {
        if self.progress.is_none() && word_at(line, behind).is_none() {
            return self.error();
        }
        self.retrieve(context, line, behind, Retrieval { with_cas, expires: None })
    }

    /// `gat`, `gats`: the expiry, and keys.
    pub(super) fn get_and_touch<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        line: &[u8],
        behind: usize,
        with_cas: bool,
    ) -> Flow<S::Place> {
        let Some((at, expiry)) = word_at(line, behind) else { return self.error() };
        let Some(given) = number::signed_32(expiry) else {
            self.reply(false, "CLIENT_ERROR invalid exptime argument");
            return Flow::Next(0);
        };
        let expires = Some(context.now.expiry(i64::from(given)));
        self.retrieve(context, line, at + expiry.len(), Retrieval { with_cas, expires })
    }

    fn retrieve<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        line: &[u8],
        first: usize,
        retrieval: Retrieval,
    ) -> Flow<S::Place> {
        match self.tell_items(context, line, first, retrieval) {
            Err(flow) => return flow,
            Ok(true) => self.output.bytes(b"END\r\n"),
            Ok(false) => self.reply(false, BAD_FORMAT),
        }
        Flow::Next(0)
    }

    /// Tells the items of the keys from `first` on; with false of none, because there is a key that is too long.
    pub(super) fn tell_items<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        line: &[u8],
        first: usize,
        retrieval: Retrieval,
    ) -> Result<bool, Flow<S::Place>> {
        let is_first = self.progress.is_none();
        if is_first && line.len() - first > KEY_BYTES_MAX && words(&line[first..]).any(|key| key.len() > KEY_BYTES_MAX)
        {
            return Ok(false);
        }
        let mut at = self.progress.unwrap_or(first);
        let mut left = TURN_KEYS_MAX;
        while let Some((start, bytes)) = word_at(line, at) {
            if self.output.is_full() || left == 0 {
                self.progress = Some(at);
                return Err(Flow::Full);
            }
            let Some(key) = self.key(bytes) else { break };
            if let Err(place) = self.retrieve_one(context, &key, start, retrieval) {
                self.progress = Some(at);
                return Err(Flow::Fetch(self.look_ahead(context, line, start, place)));
            }
            at = start + bytes.len();
            left -= 1;
        }
        Ok(true)
    }

    /// Tells the item of a key that stands at `at` of the line.
    fn retrieve_one<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        key: &Key<'_>,
        at: usize,
        retrieval: Retrieval,
    ) -> Result<(), S::Place> {
        let look = self.look(at);
        let (output, scratch) = (&mut self.output, &mut self.scratch);
        let tell = |item: &Item<'_>| {
            scratch.clear();
            scratch.extend_from_slice(b"VALUE ");
            scratch.extend_from_slice(key.bytes());
            scratch.push(b' ');
            number::push(scratch, u64::from(item.meta.flags));
            scratch.push(b' ');
            number::push(scratch, item.value.len() as u64);
            if retrieval.with_cas {
                scratch.push(b' ');
                number::push(scratch, item.meta.cas.0);
            }
            scratch.extend_from_slice(b"\r\n");
            output.bytes(scratch);
            output.value(item.value);
            output.bytes(b"\r\n");
        };
        let is_hit = context.visit(key, look, |slot| match retrieval.expires {
            None => commands::get(slot, tell),
            Some(expires) => commands::get_and_touch(slot, expires, tell),
        })?;
        let event = if retrieval.expires.is_some() { Event::Touch(is_hit) } else { Event::Get(is_hit) };
        context.server.count(event);
        context.count_prefix(key.bytes(), Event::Get(is_hit));
        Ok(())
    }

    /// The item at `at` has to be fetched. So that those of the keys behind it are fetched meanwhile, they are looked for; nothing
    /// is done with what is found in memory before its turn.
    fn look_ahead<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        line: &[u8],
        at: usize,
        place: S::Place,
    ) -> Vec<S::Place> {
        let mut places = vec![place];
        self.asked.clear();
        self.asked.push(at);
        let mut next = at;
        for _ in 0..LOOK_AHEAD_MAX {
            let behind = word_at(line, next).map_or(line.len(), |(start, bytes)| start + bytes.len());
            let Some((start, bytes)) = word_at(line, behind) else { break };
            let Some(key) = self.key(bytes) else { break };
            next = start;
            // Fetched already, in an earlier round.
            if self.fetched.iter().any(|(of, _)| *of == start) {
                continue;
            }
            match context.slots.visit(&key, context.now.at, Look::Whole, |slot| slot.had_expired()) {
                Err(place) => {
                    places.push(place);
                    self.asked.push(start);
                }
                // It is gone when its turn comes.
                Ok(true) => context.server.count(Event::Expired),
                Ok(false) => {}
            }
            if places.len() == FETCHES_MAX {
                break;
            }
        }
        places
    }
}
