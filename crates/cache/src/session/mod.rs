//! One connection as a pure state machine: bytes and the time in, replies out. It does no I/O and owns no clock.
//!
//! The driver calls [`Session::step`] and does what it says: sends what waits in [`Session::output`], receives into the buffer that
//! [`Session::lend`] gives and hands it back to [`Session::receive`], fetches from flash, makes room.
//!
//! Invariants:
//! - A command stays at the front of the input until it is over. What has to wait (for the rest of its value, for flash, for
//!   room) leaves it there, and it is read again: there is one way through each command, and nothing to be kept in step with
//!   it. What it has done so far is in `progress`, `fetched`, `joined` and `tries`, which end with it.
//! - Replies are in the order of commands; no command starts while the output is full.
//! - What a peer makes us hold is bounded: of a line [`GET_BYTES_MAX`](crate::protocol::GET_BYTES_MAX), a value by the item limit
//!   (which is checked before a byte of it is kept), output by [`OUTPUT_BYTES_MAX`] and the reply that passes it.
//! - Memory is taken for what has come, four times as much at most, never for what was announced.

mod admin;
mod authentication;
mod binary;
mod body;
mod context;
mod crawler;
mod input;
mod long_get;
mod meta;
mod output;
mod retrieval;
mod server;
mod storage;
mod telling;
#[cfg(test)]
mod tests;
mod text;
#[cfg(test)]
mod unknown_tests;
mod verbose;

use std::collections::VecDeque;
use std::sync::Arc;

use engine::{Buf, View};

pub use output::Output;
pub use server::{
    Authentication, CasResult, Control, Dump, Ending, Event, Happening, Protocols, Rules, Server, Stats, Step,
    Switches, USER_BYTES_MAX, Users, UsersError, Watch,
};

use crate::commands::store::Joined;
use crate::hash::Hasher;
use crate::item::Key;
use crate::protocol::binary::REQUEST;
use crate::protocol::{Now, tokens};
use crate::slot::{Look, NoRoom, ROOM_FOR_BUFFERS, Slots};
use authentication::Sasl;
use body::Body;
use context::Context;
pub(crate) use crawler::CLASS;
use input::Input;
pub use input::RECEIVE_BYTES;
use long_get::{LongGet, part_bytes};

/// Bytes that wait unsent before commands do. Chosen: what a socket takes at once.
pub const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// Bytes that wait unsent before commands do, where memory is short.
const OUTPUT_BYTES_SHORT: usize = 4 << 10;
/// Items that one command fetches from flash at the same time. Chosen: a device's queue is kept busy, and no other's is starved.
pub const FETCHES_MAX: usize = 32;
/// Keys behind one that is on flash that are looked up for more of these.
const LOOK_AHEAD_MAX: usize = 100;
/// Keys of one command that are looked up before others have their turn. Chosen: about a millisecond.
const TURN_KEYS_MAX: usize = 4096;
/// Commands of one connection that are run before it is known who speaks. Guessed: many times what a client needs to say who it is;
/// what they answer fits a page.
const UNKNOWN_COMMANDS_MAX: u8 = 64;
/// How often a command asks for room. Others may take what was made for it; an unlucky one ends.
const ROOM_TRIES_MAX: u8 = 16;

/// What came behind the head of a command.
#[derive(Clone, Copy, Debug)]
enum Data<'a> {
    /// The bytes in the input, as far as they are there.
    Here(&'a [u8]),
    /// A long value, whole; and whether the line's end was behind it.
    Long(&'a [View], bool),
}

/// How a command goes on.
#[derive(Debug)]
enum Flow<P> {
    /// It is over, and so are that many bytes behind its head.
    Next(usize),
    /// It is over; that many bytes behind its head are passed over.
    Swallow(usize),
    /// It wants that many bytes behind its head.
    More(usize),
    /// Its value is a long one, of that many bytes.
    Long(usize),
    /// It wants items from flash.
    Fetch(Vec<P>),
    /// It wants room.
    Room(NoRoom),
    /// It goes on when output was sent.
    Full,
    /// The connection ends.
    Close(Ending),
    /// The connection becomes a watcher's.
    Watch(Watch),
    /// The driver tells of all items.
    Dump(Dump),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Speaks {
    Unknown,
    Text,
    Binary,
}

#[derive(Debug)]
enum State {
    /// The next command is at the front of the input.
    Command,
    /// Bytes are passed over.
    Swallow(usize),
    /// A long value comes.
    Body(Body),
    /// What happens is sent; what comes is nothing.
    Watching,
    Closing(Ending),
}

/// What a session waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Awaits {
    /// A command, or the rest of one.
    Command,
    /// The rest of a value.
    Value,
    /// The rest of what is passed over.
    Nothing,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Session<S: Slots> {
    rules: Arc<Rules>,
    hasher: Hasher,
    /// The connection's number.
    id: u64,
    input: Input,
    output: Output,
    speaks: Speaks,
    state: State,
    authenticated: bool,
    /// Commands that were run of somebody who is not known.
    unknown_commands: u8,
    sasl: Sasl,
    /// Bytes from the front of the input on that the command waits for.
    wanted: usize,
    /// Of a command with many keys: where in its line the next one is looked for.
    progress: Option<usize>,
    /// Of a `get` whose line's end has not come: what its rest is.
    long_get: Option<LongGet>,
    /// Where in the line the keys are whose items are being fetched.
    asked: Vec<usize>,
    /// The items that were, and whose.
    fetched: VecDeque<(usize, S::Fetched)>,
    /// A joined value that is to be stored in the next visit.
    joined: Option<Joined>,
    /// How often the command asked for room.
    tries: u8,
    /// Gathers what is appended at once. Kept for its memory.
    scratch: Vec<u8>,
}

impl<S: Slots> Session<S> {
    /// A new connection, known by a number.
    pub fn new(rules: Arc<Rules>, hasher: Hasher, id: u64) -> Session<S> {
        let speaks = match (&rules.authentication, rules.protocols) {
            (Authentication::Text(_), _) | (Authentication::None, Protocols::Text) => Speaks::Text,
            (Authentication::Sasl(_), _) | (Authentication::None, Protocols::Binary) => Speaks::Binary,
            (Authentication::None, Protocols::Both) => Speaks::Unknown,
        };
        Session {
            authenticated: matches!(rules.authentication, Authentication::None),
            unknown_commands: 0,
            sasl: Sasl::default(),
            rules,
            hasher,
            id,
            input: Input::default(),
            output: Output::default(),
            speaks,
            state: State::Command,
            wanted: 0,
            progress: None,
            long_get: None,
            asked: Vec::new(),
            fetched: VecDeque::new(),
            joined: None,
            tries: 0,
            scratch: Vec::new(),
        }
    }

    /// Runs commands until something has to be done.
    pub fn step<V: Server>(&mut self, slots: &S, server: &V, now: Now) -> Step<S::Place> {
        let context = Context { slots, server, now, connection: self.id };
        loop {
            if self.output.is_full() || (self.output.len() >= OUTPUT_BYTES_SHORT && !slots.may_hold(0)) {
                return Step::Send;
            }
            let step = match &mut self.state {
                State::Command => self.command(context),
                State::Swallow(left) => {
                    let taken = (*left).min(self.input.bytes().len());
                    *left -= taken;
                    let is_over = *left == 0;
                    self.input.consume(taken);
                    if is_over {
                        self.state = State::Command;
                    }
                    (!is_over).then_some(Step::Receive)
                }
                State::Body(_) => self.body(context),
                State::Watching => {
                    self.input.shrink();
                    self.input.consume(self.input.bytes().len());
                    Some(Step::Receive)
                }
                State::Closing(ending) => Some(Step::Close(*ending)),
            };
            let step = if matches!(step, Some(Step::Receive)) { self.before_receiving(slots) } else { step };
            if let Some(step) = step {
                return step;
            }
        }
    }

    /// It is known who speaks, or nobody asks.
    pub fn is_known(&self) -> bool {
        self.authenticated
    }

    /// What waits to be sent.
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Sees that there may be a buffer for what is to be received; `None`: it was found that there may not.
    fn before_receiving(&mut self, slots: &S) -> Option<Step<S::Place>> {
        let lacks = if matches!(self.state, State::Body(_)) { 0 } else { self.input.lacks(self.wanted) };
        if lacks == 0 || slots.may_hold(lacks) {
            return Some(Step::Receive);
        }
        if !self.is_out_of_room() {
            // The command is read again then, and says what it wants, or finds that it cannot have it.
            self.wanted = 0;
            return Some(Step::MakeRoom(ROOM_FOR_BUFFERS));
        }
        if self.wanted > 0 || lacks <= RECEIVE_BYTES {
            // No value, which would have been refused, but one of the short things that are received whatever there is.
            return Some(Step::Receive);
        }
        self.reply(false, "SERVER_ERROR out of memory reading request");
        self.state = State::Closing(Ending::Error);
        None
    }

    /// Keeps what has come of a command without a buffer until the next [`Session::lend`], if that is little; tells its bytes.
    pub fn condense(&mut self) -> Option<usize> {
        self.may_condense().then(|| self.input.condense())
    }

    /// Whether [`Session::condense`] would.
    pub fn may_condense(&self) -> bool {
        !matches!(&self.state, State::Body(body) if body.lends()) && self.input.is_little()
    }

    /// A buffer to receive into, behind what it holds; to be handed back to [`Session::receive`] before the next step. Whoever has
    /// sent much gets a longer one if it `is_roomy`: if [`RECEIVE_BYTES`] may be held.
    pub fn lend(&mut self, is_roomy: bool) -> Buf {
        match &mut self.state {
            State::Body(body) if body.lends() => body.lend(),
            _ => self.input.lend(self.wanted, is_roomy),
        }
    }

    /// Takes the buffer back.
    pub fn receive(&mut self, buf: Buf) {
        match &mut self.state {
            State::Body(body) if body.lends() => body.receive(buf),
            _ => self.input.give_back(buf),
        }
    }

    /// Drops the input's memory if nothing is in it: true for a connection that rests between commands.
    pub fn rest(&mut self) -> bool {
        self.input.shrink() && self.long_get.is_none() && matches!(self.state, State::Command | State::Watching)
    }

    /// What it waits for.
    pub fn awaits(&self) -> Awaits {
        match self.state {
            State::Body(_) => Awaits::Value,
            State::Command if self.wanted > 0 => Awaits::Value,
            State::Command => Awaits::Command,
            State::Swallow(_) | State::Watching | State::Closing(_) => Awaits::Nothing,
        }
    }

    /// Hands over what [`Step::Fetch`] asked for, in its order.
    pub fn fetched(&mut self, items: impl IntoIterator<Item = S::Fetched>) {
        self.fetched.extend(self.asked.drain(..).zip(items));
        // A later round may have asked for what stands before an item of an earlier one.
        self.fetched.make_contiguous().sort_by_key(|(of, _)| *of);
    }

    /// Tells whether room was made, as [`Step::MakeRoom`] asked.
    pub fn made_room(&mut self, made: Result<(), NoRoom>) {
        self.tries = if made.is_ok() { self.tries.saturating_add(1) } else { ROOM_TRIES_MAX };
    }

    /// Looks for a whole command at the front of the input, and runs it.
    fn command<V: Server>(&mut self, context: Context<'_, S, V>) -> Option<Step<S::Place>> {
        if self.input.bytes().len() < self.wanted {
            return Some(Step::Receive);
        }
        if self.speaks == Speaks::Unknown {
            match self.input.bytes().first() {
                None => return Some(Step::Receive),
                Some(&REQUEST) => self.speaks = Speaks::Binary,
                Some(_) => self.speaks = Speaks::Text,
            }
        }
        let head_bytes = match self.speaks {
            Speaks::Binary => self.binary_head(),
            _ => self.line_head(),
        };
        let head_bytes = match head_bytes {
            Ok(bytes) => bytes,
            Err(step) => return step,
        };
        let (buf, used) = self.input.take();
        let (head, rest) = buf[used..].split_at(head_bytes);
        // Of a long line its first part is told.
        let heard = if self.long_get.is_none() { self.listen(context.server) } else { None };
        let flow = self.run(context, head, Data::Here(rest));
        heard.into_iter().for_each(|heard| self.tell_command(context, heard, head, &flow));
        let (consumed, step) = self.follow(flow, head);
        self.input.put(buf, used + consumed);
        step
    }

    /// Runs the command of this head.
    fn run<V: Server>(&mut self, context: Context<'_, S, V>, head: &[u8], data: Data<'_>) -> Flow<S::Place> {
        match self.speaks {
            Speaks::Binary => self.binary(context, head, data),
            _ if self.long_get.is_some() || !head.ends_with(b"\n") => self.part_of_get(context, head),
            _ => self.text(context, tokens::line(head, head.len() - 1).0, data),
        }
    }

    /// Bytes of the line at the front of the input, with its end, or of a part of a long one; or what to do before there is one.
    fn line_head(&mut self) -> Result<usize, Option<Step<S::Place>>> {
        if let Some(newline) = self.input.newline() {
            return Ok(newline + 1);
        }
        let bytes = self.input.bytes();
        if !self.input.may_go_on() && !self.may_be_long(bytes) {
            self.state = State::Closing(Ending::Error);
            return Err(None);
        }
        part_bytes(bytes).ok_or(Some(Step::Receive))
    }

    /// Does what a command came to. Tells how many bytes of the input are done with, and what the driver has to do.
    fn follow(&mut self, flow: Flow<S::Place>, head: &[u8]) -> (usize, Option<Step<S::Place>>) {
        let (consumed, state, step) = match flow {
            Flow::Next(data) => (head.len() + data, State::Command, None),
            Flow::Swallow(bytes) => (head.len(), State::Swallow(bytes), None),
            Flow::Close(ending) => (head.len(), State::Closing(ending), None),
            Flow::Watch(watch) => (head.len(), State::Watching, Some(Step::Watch(watch))),
            Flow::Dump(dump) => (head.len(), State::Command, Some(Step::Dump(dump))),
            Flow::More(data) => {
                self.wanted = head.len() + data;
                return (0, Some(Step::Receive));
            }
            Flow::Fetch(places) => return (0, Some(Step::Fetch(places))),
            Flow::Room(no_room) => return (0, Some(Step::MakeRoom(no_room))),
            Flow::Full => return (0, Some(Step::Send)),
            Flow::Long(bytes) => {
                let line_end = if self.speaks == Speaks::Binary { 0 } else { 2 };
                (head.len(), State::Body(Body::new(head, bytes, line_end)), None)
            }
        };
        self.state = state;
        self.wanted = 0;
        self.end_command();
        self.count_unknown();
        (consumed, step)
    }

    /// A command is over. Of somebody who is not known few are run: who does not read what they answer would pin it.
    fn count_unknown(&mut self) {
        self.unknown_commands = if self.authenticated { 0 } else { self.unknown_commands + 1 };
        if self.unknown_commands == UNKNOWN_COMMANDS_MAX {
            self.state = State::Closing(Ending::Error);
        }
    }

    /// Forgets what a command kept while it waited.
    fn end_command(&mut self) {
        self.progress = None;
        self.fetched.clear();
        self.joined = None;
        self.tries = 0;
    }

    /// No more room is asked for by this command.
    fn is_out_of_room(&self) -> bool {
        self.tries >= ROOM_TRIES_MAX
    }

    /// What is to be seen of the item whose key is at `at` of the line: it, fetched or not.
    fn look(&mut self, at: usize) -> Look<S::Fetched> {
        while self.fetched.front().is_some_and(|(of, _)| *of < at) {
            self.fetched.pop_front();
        }
        match self.fetched.front() {
            Some((of, _)) if *of == at => {
                self.fetched.pop_front().map_or(Look::Whole, |(_, fetched)| Look::Fetched(fetched))
            }
            _ => Look::Whole,
        }
    }

    /// Visits the slot of a command's only key.
    fn visit<V: Server, R>(
        &mut self,
        context: Context<'_, S, V>,
        key: &Key<'_>,
        visit: impl FnOnce(&mut S::Slot<'_>) -> R,
    ) -> Result<R, Flow<S::Place>> {
        let look = self.look(0);
        context.visit(key, look, visit).map_err(|place| self.fetch_one(place))
    }

    /// The same where room may be wanted.
    fn try_visit<V: Server, R>(
        &mut self,
        context: Context<'_, S, V>,
        key: &Key<'_>,
        visit: impl FnOnce(&mut S::Slot<'_>) -> Result<R, NoRoom>,
    ) -> Result<Result<R, NoRoom>, Flow<S::Place>> {
        let look = self.look(0);
        context.try_visit(key, look, visit).map_err(|place| self.fetch_one(place))
    }

    fn fetch_one(&mut self, place: S::Place) -> Flow<S::Place> {
        self.asked.clear();
        self.asked.push(0);
        Flow::Fetch(vec![place])
    }

    /// The key of these bytes.
    fn key<'k>(&self, bytes: &'k [u8]) -> Option<Key<'k>> {
        Key::new(bytes, self.hasher.hash(bytes)).ok()
    }

    /// Appends a line, unless nobody wants it.
    fn reply(&mut self, noreply: bool, line: &str) {
        if !noreply {
            self.output.line(line.as_bytes());
        }
    }
}
