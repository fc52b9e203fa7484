//! What the load writes down: the history, and by what a value that is read is known.
//!
//! The kind of a key stands in its name: a value of which every byte follows from its identity, a number, pieces of eight bytes,
//! or a value that ends by the clock.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use check::{Action, Recorder, Token, appended};
use kv::{StoreError, Value};

use crate::sim::scenario::Rng;

/// What all clients share: the record of what happened, and the lengths of the values written.
#[derive(Clone)]
pub struct Book {
    /// The history.
    pub recorder: Recorder,
    /// The right calendar, which no node has.
    calendar: Calendar,
    /// By how much the clock of a node may be wrong.
    clock_error_max: Duration,
    ends: Rc<RefCell<Vec<End>>>,
    lengths: Rc<RefCell<BTreeMap<u64, usize>>>,
    full: Rc<Cell<u64>>,
    room: Rc<Cell<Room>>,
    epoch: Rc<Cell<u64>>,
}

/// What was seen of a gateway's room.
#[derive(Clone, Copy, Default, Debug)]
pub struct Room {
    /// Commands that were refused for lack of it.
    pub refused: u64,
    /// Looks at it that found somebody waiting.
    pub waited_for: u64,
}

/// A value that ends: when, by the right calendar, a clock may first say so; who wrote it, the key, and the value.
type End = (Duration, u32, String, u64);

/// Tells the time since the Unix epoch.
pub type Calendar = Rc<dyn Fn() -> Duration>;

/// What a key holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Values with an identity.
    Plain,
    /// A number.
    Number,
    /// Pieces.
    Pieces,
    /// Values with an identity, most of which end.
    Ending,
    /// Long pieces, of which every byte follows from their identity.
    Blocks,
}

impl Kind {
    /// That of a key.
    pub fn of(key: &str) -> Kind {
        match key.as_bytes() {
            [b'n', ..] => Kind::Number,
            [b'p', ..] => Kind::Pieces,
            [b'e', ..] => Kind::Ending,
            [b'b', ..] => Kind::Blocks,
            _ => Kind::Plain,
        }
    }
}

/// Bytes of a long piece. Chosen: two and the value they make are a long value.
pub const BLOCK_BYTES: usize = 24 << 10;

/// Shortest value: its identity.
pub const LENGTH_MIN: usize = 8;

impl Book {
    /// An empty one.
    pub fn new(calendar: Calendar, clock_error_max: Duration) -> Book {
        Book {
            recorder: Recorder::new(),
            calendar,
            clock_error_max,
            ends: Rc::default(),
            lengths: Rc::default(),
            full: Rc::default(),
            room: Rc::default(),
            epoch: Rc::default(),
        }
    }

    /// Values end whose time has come: before anything else is written down.
    fn end_due(&self) {
        let now = (self.calendar)();
        let due = self.ends.borrow_mut().extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>();
        for (_, client, key, of) in due {
            // Nobody is told of it.
            let _never_answered = self.recorder.invoked(client, &key, Action::Expire { of }, None);
        }
    }

    /// Writes down a request that is about to be made.
    pub fn invoked(&self, client: u32, key: &str, action: Action, value: Option<u64>) -> Token {
        self.end_due();
        self.recorder.invoked(client, key, action, value)
    }

    /// Writes down an answer.
    pub fn returned(&self, token: Token, value: Option<u64>) {
        self.end_due();
        self.recorder.returned(token, value);
    }

    /// Operations refused for lack of room.
    pub fn full(&self) -> u64 {
        self.full.get()
    }

    /// What was seen of the gateways' room.
    pub fn room(&self) -> Room {
        self.room.get()
    }

    /// Notes what was seen of it.
    pub fn saw_room(&self, refused: bool, waited_for: bool) {
        let Room { refused: before, waited_for: found } = self.room.get();
        self.room.set(Room { refused: before + u64::from(refused), waited_for: found + u64::from(waited_for) });
    }

    /// Epochs of the pool's map after the first.
    pub fn epochs(&self) -> u64 {
        self.epoch.get().saturating_sub(1)
    }

    /// The epoch of the pool's last map is this.
    pub fn changed(&self, epoch: u64) {
        self.epoch.set(epoch);
    }

    /// Writes down what a request came to; `told`: what its answer says.
    pub fn answered<T>(&self, token: Token, result: Result<T, StoreError>, told: impl FnOnce(&Recorder, Token, T)) {
        self.end_due();
        match result {
            Ok(answer) => told(&self.recorder, token, answer),
            Err(error) => {
                if matches!(error, StoreError::OutOfSpace { .. }) {
                    self.full.set(self.full.get() + 1);
                }
                if !error.outcome_unknown() {
                    self.recorder.failed(token);
                }
            }
        }
    }

    /// The value of identity `of` ends at `expiry`, in milliseconds of Unix time: by some clock that may be sooner.
    pub fn may_end(&self, client: u32, key: &str, of: u64, expiry: Option<u64>) {
        let Some(expiry) = expiry else { return };
        let from = Duration::from_millis(expiry).saturating_sub(self.clock_error_max);
        self.ends.borrow_mut().push((from, client, key.to_owned(), of));
    }

    /// A value nobody has written before: its identity, then bytes that follow from it.
    pub fn new_value(&self, rng: &mut Rng, length: usize) -> (u64, Value) {
        let id = rng.next();
        self.lengths.borrow_mut().insert(id, length);
        (id, Value::copy_from(&bytes_of(id, length)))
    }

    /// A long piece that nobody has put before: its identity, then bytes that follow from it.
    pub fn new_block(&self, rng: &mut Rng) -> (u64, Value) {
        let id = rng.next();
        (id, Value::copy_from(&bytes_of(id, BLOCK_BYTES)))
    }

    /// What stands for the value of a key in the history; all of its bytes must be those written.
    pub fn identify(&self, key: &str, value: &Value) -> u64 {
        match Kind::of(key) {
            Kind::Plain | Kind::Ending => self.identity(value),
            Kind::Number => number_of(value),
            Kind::Pieces => pieces_of(value),
            Kind::Blocks => blocks_of(value),
        }
    }

    fn identity(&self, value: &Value) -> u64 {
        let bytes = value.to_vec();
        assert!(bytes.len() >= LENGTH_MIN, "a value of {} bytes was never written", bytes.len());
        let id = u64::from_le_bytes(*bytes.first_chunk().expect("checked above"));
        let length = self.lengths.borrow().get(&id).copied();
        assert_eq!(length, Some(bytes.len()), "the value {id:x} was not written with this length");
        assert!(bytes == bytes_of(id, bytes.len()), "the bytes of value {id:x} are not those written");
        id
    }
}

fn bytes_of(id: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut word = id;
    while bytes.len() < length {
        bytes.extend_from_slice(&word.to_le_bytes());
        word = word.rotate_left(7) ^ bytes.len() as u64;
    }
    bytes.truncate(length);
    bytes
}

fn number_of(value: &Value) -> u64 {
    let text = String::from_utf8(value.to_vec()).expect("a number was written");
    text.parse().expect("a number was written")
}

/// The identity of a value of pieces.
pub fn pieces_of(value: &Value) -> u64 {
    let bytes = value.to_vec();
    let (pieces, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty() && !pieces.is_empty(), "{} bytes are no pieces", bytes.len());
    let whole = pieces.iter().fold(None, |before, piece| Some(appended(before, u64::from_le_bytes(*piece))));
    whole.expect("there is one at least")
}

fn blocks_of(value: &Value) -> u64 {
    let bytes = value.to_vec();
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    assert!(rest.is_empty() && !blocks.is_empty(), "{} bytes are no blocks", bytes.len());
    let whole = blocks.iter().fold(None, |before, block| {
        let id = u64::from_le_bytes(*block.first_chunk().expect("a block is longer"));
        assert!(block[..] == bytes_of(id, BLOCK_BYTES), "the bytes of block {id:x} are not those put");
        Some(appended(before, id))
    });
    whole.expect("there is one at least")
}
