//! The plainest possible slots and server, for tests: a map behind a mutex.
//!
//! Faults: [`PlainSlots::with_flash`] answers looks with a place first, at every other visit of an item, as if it were on flash;
//! [`PlainSlots::with_limit`] has no room beyond a number of bytes, and makes some by dropping the first item.

mod program;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use engine::{Buf, View};
pub use program::shared;

use crate::WHOLE_BYTES_MAX;
use crate::hash::Hasher;
use crate::item::{Cas, Item, Key, Meta, NEVER, NewValue, Seconds, Value};
use crate::protocol::Now;
use crate::server::Prefixes;
use crate::session::{
    CasResult, Control, Event, FETCHES_MAX, Happening, Rules, Server, Session, Stats, Step, Switches,
};
use crate::slot::{Look, NoRoom, Slot, Slots, chunk_lengths};

#[derive(Debug)]
enum Stored {
    Whole(Vec<u8>),
    Chunks(Vec<View>),
}

#[derive(Debug)]
struct Entry {
    meta: Meta,
    stored: Seconds,
    value: Stored,
    /// The next look is answered with a place.
    is_on_flash: bool,
}

impl Entry {
    fn value(&self) -> Value<'_> {
        match &self.value {
            Stored::Whole(bytes) => Value::Whole(bytes),
            Stored::Chunks(chunks) => Value::Chunks(chunks),
        }
    }
}

#[derive(Debug, Default)]
struct Items {
    entries: BTreeMap<Vec<u8>, Entry>,
    cas: u64,
    bytes: usize,
    flush_at: Option<Seconds>,
}

/// Slots in a map.
#[derive(Debug)]
pub struct PlainSlots {
    items: Mutex<Items>,
    bytes_max: usize,
    buffer_max: usize,
    has_flash: bool,
}

impl Default for PlainSlots {
    fn default() -> PlainSlots {
        PlainSlots { items: Mutex::default(), bytes_max: usize::MAX, buffer_max: usize::MAX, has_flash: false }
    }
}

impl PlainSlots {
    /// Slots of which every other look has to be told what was fetched.
    pub fn with_flash() -> PlainSlots {
        PlainSlots { has_flash: true, ..PlainSlots::default() }
    }

    /// Slots for values of so many bytes together.
    pub fn with_limit(bytes_max: usize) -> PlainSlots {
        PlainSlots { bytes_max, ..PlainSlots::default() }
    }

    /// Slots beside which no connection may take more than so many bytes at once, whatever room is made.
    pub fn with_buffers(buffer_max: usize) -> PlainSlots {
        PlainSlots { buffer_max, ..PlainSlots::default() }
    }

    /// How many items there are, those that have expired among them.
    pub fn len(&self) -> usize {
        self.items().entries.len()
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn items(&self) -> MutexGuard<'_, Items> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Items {
    fn remove(&mut self, key: &[u8]) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= entry.value().len();
        }
    }
}

/// A slot of [`PlainSlots`].
#[derive(Debug)]
pub struct PlainSlot<'a> {
    items: MutexGuard<'a, Items>,
    key: Vec<u8>,
    now: Seconds,
    had_expired: bool,
    bytes_max: usize,
}

impl Slot for PlainSlot<'_> {
    fn item(&self) -> Option<Item<'_>> {
        self.items.entries.get(&self.key).map(|entry| Item { meta: entry.meta, value: entry.value() })
    }

    fn had_expired(&self) -> bool {
        self.had_expired
    }

    fn note_access(&mut self) {
        let now = self.now;
        if let Some(entry) = self.items.entries.get_mut(&self.key) {
            (entry.meta.fetched, entry.meta.accessed) = (true, now);
        }
    }

    fn set_meta(&mut self, change: impl FnOnce(&mut Meta)) {
        if let Some(entry) = self.items.entries.get_mut(&self.key) {
            let Meta { cas, accessed, .. } = entry.meta;
            change(&mut entry.meta);
            (entry.meta.cas, entry.meta.accessed) = (cas, accessed);
        }
    }

    fn renew_cas(&mut self) -> Cas {
        let items = &mut *self.items;
        let Some(entry) = items.entries.get_mut(&self.key) else { return Cas(0) };
        items.cas += 1;
        entry.meta.cas = Cas(items.cas);
        entry.meta.cas
    }

    fn remove(&mut self) {
        let key = std::mem::take(&mut self.key);
        self.items.remove(&key);
        self.key = key;
    }

    fn put(&mut self, mut meta: Meta, value: NewValue<'_>) -> Result<Cas, NoRoom> {
        let value = match value {
            NewValue::Pieces(pieces) => Stored::Whole(pieces.concat()),
            NewValue::Chunks(chunks) => {
                let bytes = chunks.iter().map(View::len).sum();
                assert!(chunks.iter().map(View::len).eq(chunk_lengths(bytes)), "chunks of other lengths");
                Stored::Chunks(chunks)
            }
        };
        let is_now = self.now;
        let mut entry = Entry { meta, stored: is_now, value, is_on_flash: false };
        let bytes = entry.value().len();
        assert_eq!(
            matches!(entry.value, Stored::Chunks(_)),
            bytes > WHOLE_BYTES_MAX,
            "{bytes} bytes in the wrong form"
        );
        let old = self.items.entries.get(&self.key).map_or(0, |entry| entry.value().len());
        if self.items.bytes - old + bytes > self.bytes_max {
            return Err(NoRoom { bytes });
        }
        if meta.cas == Cas(0) {
            self.items.cas += 1;
            meta.cas = Cas(self.items.cas);
        }
        meta.accessed = self.now;
        entry.meta = meta;
        self.remove();
        self.items.bytes += bytes;
        let key = self.key.clone();
        self.items.entries.insert(key, entry);
        Ok(meta.cas)
    }
}

impl Slots for PlainSlots {
    type Place = Vec<u8>;
    type Fetched = Vec<u8>;
    type Slot<'a> = PlainSlot<'a>;

    fn visit<R>(
        &self,
        key: &Key<'_>,
        now: Seconds,
        look: Look<Vec<u8>>,
        visit: impl FnOnce(&mut PlainSlot<'_>) -> R,
    ) -> Result<R, Vec<u8>> {
        let mut items = self.items();
        if let Some(at) = items.flush_at
            && at <= now
        {
            items.entries.retain(|_, entry| entry.stored >= at);
            items.bytes = items.entries.values().map(|entry| entry.value().len()).sum();
            items.flush_at = None;
        }
        let is_over = |entry: &Entry| entry.meta.expires != NEVER && entry.meta.expires <= now;
        let had_expired = items.entries.get(key.bytes()).is_some_and(is_over);
        if had_expired {
            items.remove(key.bytes());
        }
        if self.has_flash
            && let Some(entry) = items.entries.get_mut(key.bytes())
        {
            match look {
                Look::Fetched(fetched) => {
                    assert_eq!(fetched, key.bytes(), "another key's item was handed over");
                    entry.is_on_flash = false;
                }
                Look::Whole if entry.is_on_flash => return Err(key.bytes().to_vec()),
                Look::Whole => entry.is_on_flash = true,
                Look::Unseen => {}
            }
        }
        let mut slot = PlainSlot { items, key: key.bytes().to_vec(), now, had_expired, bytes_max: self.bytes_max };
        Ok(visit(&mut slot))
    }

    async fn fetch(&self, place: Vec<u8>) -> Vec<u8> {
        place
    }

    async fn make_room(&self, no_room: NoRoom) -> Result<(), NoRoom> {
        let mut items = self.items();
        let Some(first) = items.entries.keys().next().cloned() else { return Err(no_room) };
        items.remove(&first);
        Ok(())
    }

    fn chunks(&self, bytes: usize) -> Result<Vec<Buf>, NoRoom> {
        if bytes > self.bytes_max {
            return Err(NoRoom { bytes });
        }
        Ok(chunk_lengths(bytes).map(Buf::with_capacity).collect())
    }

    fn chunk(&self, bytes: usize, of: usize) -> Result<Buf, NoRoom> {
        if of > self.bytes_max { Err(NoRoom { bytes: of }) } else { Ok(Buf::with_capacity(bytes)) }
    }

    fn may_hold(&self, bytes: usize) -> bool {
        bytes <= self.buffer_max
    }

    fn flush(&self, at: Seconds, now: Seconds) {
        let mut items = self.items();
        if at <= now {
            items.entries.clear();
            items.bytes = 0;
            items.flush_at = None;
            // memcached spends one, and tests compare.
            items.cas += 1;
        } else {
            items.flush_at = Some(at);
        }
    }
}

/// What is counted.
const EVENTS: [Event; 21] = [
    Event::Expired,
    Event::Get(true),
    Event::Get(false),
    Event::Touch(true),
    Event::Touch(false),
    Event::Set,
    Event::Cas(CasResult::Hit),
    Event::Cas(CasResult::BadValue),
    Event::Cas(CasResult::Miss),
    Event::Delete(true),
    Event::Delete(false),
    Event::Increment(true),
    Event::Increment(false),
    Event::Decrement(true),
    Event::Decrement(false),
    Event::Flush,
    Event::Meta,
    Event::TooLarge,
    Event::NoMemory,
    Event::Authentication(true),
    Event::Authentication(false),
];

/// A server that answers as memcached does, counts, and changes nothing.
#[derive(Debug, Default)]
pub struct PlainServer {
    counts: [Cell<u64>; EVENTS.len()],
    /// `shutdown` was asked for: gracefully or not.
    pub shut_down: Cell<Option<bool>>,
    prefixes: Prefixes,
    /// Keys are watched.
    pub is_watched: Cell<bool>,
    /// What happened meanwhile.
    pub happenings: RefCell<Vec<(Vec<u8>, Happening)>>,
    switches: Switches,
    /// Commands are told on the log, which is `commands`.
    pub tells_commands: Cell<bool>,
    /// What was told of them.
    pub commands: RefCell<Vec<String>>,
}

impl PlainServer {
    /// How often this was counted.
    pub fn counted(&self, event: Event) -> u64 {
        EVENTS.iter().zip(&self.counts).filter(|(known, _)| **known == event).map(|(_, count)| count.get()).sum()
    }
}

impl Server for PlainServer {
    fn count(&self, event: Event) {
        for (_, count) in EVENTS.iter().zip(&self.counts).filter(|(known, _)| **known == event) {
            count.set(count.get() + 1);
        }
    }

    fn stats(&self, stats: Stats<'_>, tell: &mut dyn FnMut(&str, &str)) -> bool {
        match stats {
            Stats::General => tell("pid", "1"),
            Stats::Settings => tell("maxbytes", "67108864"),
            Stats::Connections | Stats::Extstore | Stats::Named(b"items" | b"slabs" | b"sizes") => {}
            Stats::Named(_) => return false,
        }
        true
    }

    fn reset_stats(&self) {
        self.counts.iter().for_each(|count| count.set(0));
        self.prefixes.clear();
    }

    fn is_watched(&self) -> bool {
        self.is_watched.get()
    }

    fn happened(&self, _: u64, key: &[u8], what: Happening) {
        self.happenings.borrow_mut().push((key.to_vec(), what));
    }

    fn counts_prefixes(&self) -> bool {
        self.prefixes.is_on()
    }

    fn set_counts_prefixes(&self, on: bool) {
        self.prefixes.set(on);
    }

    fn count_prefix(&self, key: &[u8], event: Event) {
        self.prefixes.count(key, event);
    }

    fn prefixes(&self) -> String {
        self.prefixes.dump()
    }

    fn cache_dump(&self, _: u32, _: u32) -> String {
        String::new()
    }

    fn switches(&self) -> &Switches {
        &self.switches
    }

    fn tells_commands(&self) -> bool {
        self.tells_commands.get()
    }

    fn tell_command(&self, _: u64, line: &str, answer: Option<&str>) {
        self.commands.borrow_mut().push(format!("<{line} >{}", answer.unwrap_or_default()));
    }

    fn control(&self, control: Control) -> String {
        let line = match control {
            Control::RefreshCertificates => "Error TLS not enabled",
            _ => "OK",
        };
        line.into()
    }

    fn shut_down(&self, gracefully: bool) {
        self.shut_down.set(Some(gracefully));
    }
}

/// The secret of the hash of keys in every [`Wire`].
pub const SECRET: [u64; 2] = [1, 2];

/// A session, with the driver that it needs.
pub struct Wire<S: Slots> {
    session: Session<S>,
    /// The session asked to be closed.
    pub is_closed: bool,
    /// Buffers are filled by so many bytes at a time at most, in turn.
    pub pieces: Vec<usize>,
    turn: usize,
    /// What was fetched is handed over after so many turns of others.
    pub turns: usize,
}

impl<S: Slots> Wire<S> {
    /// A new connection.
    pub fn new(rules: Arc<Rules>) -> Wire<S> {
        Wire {
            session: Session::new(rules, Hasher::new(SECRET), 1),
            is_closed: false,
            pieces: vec![usize::MAX],
            turn: 0,
            turns: 0,
        }
    }

    /// Gives these bytes to the session, and takes what it answers. For slots that need no reactor.
    pub fn feed(&mut self, slots: &S, server: &PlainServer, now: Now, bytes: &[u8]) -> Vec<u8> {
        ready(self.talk(slots, server, now, bytes))
    }

    /// Gives these bytes to the session, and takes what it answers.
    pub async fn talk(&mut self, slots: &S, server: &PlainServer, now: Now, mut bytes: &[u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        while !self.is_closed {
            let step = self.session.step(slots, server, now);
            if !matches!(step, Step::Fetch(_) | Step::MakeRoom(_)) {
                self.send(&mut answer);
            }
            match step {
                Step::Receive if bytes.is_empty() => break,
                Step::Receive => {
                    let piece = self.pieces[self.turn % self.pieces.len()];
                    self.turn += 1;
                    let mut buf = self.session.lend(true);
                    let count = piece.min(bytes.len()).min(buf.spare_mut().len());
                    assert!(count > 0, "a full buffer was lent");
                    buf.extend_from_slice(&bytes[..count]);
                    bytes = &bytes[count..];
                    self.session.receive(buf);
                }
                Step::Fetch(places) => {
                    assert!(places.len() <= FETCHES_MAX);
                    let mut fetched = Vec::new();
                    for place in places {
                        fetched.push(slots.fetch(place).await);
                    }
                    for _ in 0..self.turns {
                        engine::task::yield_now().await;
                    }
                    self.session.fetched(fetched);
                }
                Step::MakeRoom(no_room) => self.session.made_room(slots.make_room(no_room).await),
                Step::Dump(_) => self.session.output().line(b"END"),
                Step::Close(_) => self.is_closed = true,
                Step::Send | Step::Watch(_) => {}
            }
        }
        answer
    }

    fn send(&mut self, answer: &mut Vec<u8>) {
        while !self.session.output().is_empty() {
            let mut batch = self.session.output().take();
            answer.extend(batch.slices().flatten());
            batch.clear();
            self.session.output().give_back(batch);
        }
    }
}

/// The output of a future that waits for nobody else.
pub fn ready<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}
