//! The text protocol: commands by their names.

use super::storage::{End, incoming};
use super::{Context, Data, Ending, Event, Flow, Server, Session};
use crate::commands::{self, Counted, Delete, Deleted, Delta, Mode, StoreCommand, Stored};
use crate::item::{Cas, Key};
use crate::protocol::number::{Decimal, signed_32, unsigned, unsigned_32};
use crate::protocol::tokens::{Tokens, word_at};
use crate::protocol::{VERSION, item_bytes};
use crate::slot::Slots;
use crate::{KEY_BYTES_MAX, WHOLE_BYTES_MAX};

pub(super) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
pub(super) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
pub(super) const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object";
pub(super) const NON_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const BAD_EXPIRY: &str = "CLIENT_ERROR invalid exptime argument";
const BAD_DELETE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
/// The longest length that a client may give: memcached keeps it, and two more, in an `int`.
pub(super) const LENGTH_MAX: i32 = i32::MAX - 2;

impl<S: Slots> Session<S> {
    /// Runs a line.
    pub(super) fn text<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        line: &[u8],
        data: Data<'_>,
    ) -> Flow<S::Place> {
        if !self.authenticated {
            return self.text_authentication(context, line, data);
        }
        let Some((at, name)) = word_at(line, 0) else { return self.error() };
        let behind = at + name.len();
        match name {
            b"get" | b"bget" => self.get(context, line, behind, false),
            b"gets" => self.get(context, line, behind, true),
            b"gat" => self.get_and_touch(context, line, behind, false),
            b"gats" => self.get_and_touch(context, line, behind, true),
            [b'm', kind] => self.meta(context, *kind, &Tokens::split(line), data),
            _ => self.named(context, name, &Tokens::split(line), data),
        }
    }

    fn named<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        name: &[u8],
        tokens: &Tokens<'_>,
        data: Data<'_>,
    ) -> Flow<S::Place> {
        let count = tokens.len();
        let storing = |mode| if matches!(count, 5 | 6) { Some(mode) } else { None };
        let mode = match name {
            b"set" => storing(Mode::Set),
            b"add" => storing(Mode::Add),
            b"replace" => storing(Mode::Replace),
            b"append" => storing(Mode::Append),
            b"prepend" => storing(Mode::Prepend),
            b"cas" if matches!(count, 6 | 7) => Some(Mode::Cas),
            _ => None,
        };
        if let Some(mode) = mode {
            return self.update(context, mode, tokens, data);
        }
        let result = match name {
            b"incr" if matches!(count, 3 | 4) => self.count(context, tokens, false),
            b"decr" if matches!(count, 3 | 4) => self.count(context, tokens, true),
            b"touch" if matches!(count, 3 | 4) => self.touch(context, tokens),
            b"delete" if matches!(count, 2..=4) => self.delete(context, tokens),
            b"flush_all" if count <= 3 => {
                self.flush_all(context, tokens);
                Ok(())
            }
            b"version" => {
                self.reply(false, &format!("VERSION {VERSION}"));
                Ok(())
            }
            b"quit" => return Flow::Close(Ending::Normal),
            _ => return self.administer(context, name, tokens),
        };
        result.err().unwrap_or(Flow::Next(0))
    }

    /// What memcached says to what it does not know.
    pub(super) fn error(&mut self) -> Flow<S::Place> {
        self.reply(false, "ERROR");
        Flow::Next(0)
    }

    /// A line of no known name. Requests of HTTP are hung up on: a browser can be made to send one whose body is commands. Where
    /// the name begins as some command does memcached does not look, and clients may count on its `ERROR`.
    pub(super) fn unknown(&mut self, name: &[u8], tokens: &Tokens<'_>) -> Flow<S::Place> {
        let is_looked_at = name.len() > 1 && !b"gsacidt".contains(&name[0]);
        let is_http = is_looked_at && tokens.from(0).last().is_some_and(|last| last.starts_with(b"HTTP/"));
        if is_http { Flow::Close(Ending::Error) } else { self.error() }
    }

    /// `set`, `add`, `replace`, `append`, `prepend`: key, flags, expiry, length; `cas` has the cas behind them.
    fn update<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        mode: Mode,
        tokens: &Tokens<'_>,
        data: Data<'_>,
    ) -> Flow<S::Place> {
        let noreply = tokens.noreply();
        let numbers = || {
            let length = usize::try_from(signed_32(tokens.get(4)).filter(|&length| length <= LENGTH_MAX)?).ok()?;
            let cas = if mode == Mode::Cas { unsigned(tokens.get(5))? } else { 0 };
            Some((unsigned_32(tokens.get(2))?, signed_32(tokens.get(3))?, length, cas))
        };
        let (Some(key), Some((flags, expiry, length, cas))) = (self.key(tokens.get(1)), numbers()) else {
            self.reply(noreply, BAD_FORMAT);
            return Flow::Next(0);
        };
        let store = StoreCommand {
            mode,
            cas: Cas(cas),
            takes_stale: false,
            flags,
            expires: context.now.expiry(i64::from(expiry)),
            binary_key: false,
            item_bytes_max: self.rules.item_bytes_max,
            key_bytes: key.bytes().len(),
        };
        if let Some(refusal) = self.refusal(&store, length, data) {
            return self.refuse(context, &key, mode, refusal, noreply, length + 2);
        }
        let value = match incoming(data, length, 2) {
            Ok(Some(value)) => value,
            Ok(None) => {
                context.server.count(Event::Set);
                context.count_prefix(key.bytes(), Event::Set);
                self.reply(noreply, "CLIENT_ERROR bad data chunk");
                return Flow::Next(length + 2);
            }
            Err(flow) => return flow,
        };
        match self.store(context, &key, &store, value) {
            Err(flow) => flow,
            Ok(End::NoMemory) => self.refuse(context, &key, mode, Event::NoMemory, noreply, length + 2),
            Ok(End::Over(stored)) => {
                context.count_prefix(key.bytes(), Event::Set);
                let told = match stored {
                    Stored::Stored(_) => "STORED",
                    Stored::NotStored => "NOT_STORED",
                    Stored::Exists => "EXISTS",
                    Stored::NotFound => "NOT_FOUND",
                };
                self.reply(noreply, told);
                Flow::Next(length + 2)
            }
        }
    }

    /// Why a value is not even received: it is too long, or no room could be made for it.
    pub(super) fn refusal(&self, store: &StoreCommand, length: usize, data: Data<'_>) -> Option<Event> {
        if item_bytes(store.key_bytes, store.flags, length) > store.item_bytes_max {
            return Some(Event::TooLarge);
        }
        let is_to_come = match data {
            Data::Here(rest) => length > WHOLE_BYTES_MAX || rest.len() < length,
            Data::Long(..) => false,
        };
        (is_to_come && self.is_out_of_room()).then_some(Event::NoMemory)
    }

    /// Refuses a value: passes it over, and where it was to replace an item in any case, takes that away.
    fn refuse<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        key: &Key<'_>,
        mode: Mode,
        refusal: Event,
        noreply: bool,
        bytes: usize,
    ) -> Flow<S::Place> {
        context.count_prefix(key.bytes(), Event::Set);
        context.refused(key, refusal, mode);
        self.reply(noreply, if refusal == Event::TooLarge { TOO_LARGE } else { NO_MEMORY });
        if mode == Mode::Set {
            self.drop_old(context, key);
        }
        Flow::Swallow(bytes)
    }

    /// `incr` and `decr`: key, by how much.
    fn count<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        tokens: &Tokens<'_>,
        down: bool,
    ) -> Result<(), Flow<S::Place>> {
        let noreply = tokens.noreply();
        let Some(key) = self.key(tokens.get(1)) else {
            self.reply(noreply, BAD_FORMAT);
            return Ok(());
        };
        let Some(by) = unsigned(tokens.get(2)) else {
            self.reply(noreply, "CLIENT_ERROR invalid numeric delta argument");
            return Ok(());
        };
        match self.counted(context, &key, Delta { down, by, cas: None })? {
            Some(Counted::Done { number, .. }) => {
                if !noreply {
                    self.output.line(Decimal::new(number).bytes());
                }
            }
            Some(Counted::NonNumeric) => self.reply(noreply, NON_NUMERIC),
            Some(Counted::NotFound | Counted::Exists) => self.reply(noreply, "NOT_FOUND"),
            None => self.reply(noreply, "SERVER_ERROR out of memory"),
        }
        Ok(())
    }

    /// Counts; `None`: there is no room.
    pub(super) fn counted<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        key: &Key<'_>,
        delta: Delta,
    ) -> Result<Option<Counted>, Flow<S::Place>> {
        let counted = match self.try_visit(context, key, |slot| commands::arithmetic::add_delta(slot, delta))? {
            Ok(counted) => counted,
            Err(no_room) if !self.is_out_of_room() => return Err(Flow::Room(no_room)),
            Err(_) => return Ok(None),
        };
        let is_hit = match counted {
            Counted::Done { .. } => Some(true),
            Counted::NotFound => Some(false),
            Counted::NonNumeric | Counted::Exists => None,
        };
        if let Some(is_hit) = is_hit {
            context.server.count(if delta.down { Event::Decrement(is_hit) } else { Event::Increment(is_hit) });
        }
        Ok(Some(counted))
    }

    /// `touch`: key, expiry.
    fn touch<V: Server>(&mut self, context: Context<'_, S, V>, tokens: &Tokens<'_>) -> Result<(), Flow<S::Place>> {
        let noreply = tokens.noreply();
        let Some(key) = self.key(tokens.get(1)) else {
            self.reply(noreply, BAD_FORMAT);
            return Ok(());
        };
        let Some(expiry) = signed_32(tokens.get(2)) else {
            self.reply(noreply, BAD_EXPIRY);
            return Ok(());
        };
        let expires = context.now.expiry(i64::from(expiry));
        let is_hit = self.visit(context, &key, |slot| commands::get_and_touch(slot, expires, |_| {}))?;
        context.server.count(Event::Touch(is_hit));
        self.reply(noreply, if is_hit { "TOUCHED" } else { "NOT_FOUND" });
        Ok(())
    }

    /// `delete`: key, and for old clients a 0.
    fn delete<V: Server>(&mut self, context: Context<'_, S, V>, tokens: &Tokens<'_>) -> Result<(), Flow<S::Place>> {
        let is_zero = tokens.get(2) == b"0";
        // Of a line of two tokens the second is the key, whatever it says.
        let noreply = tokens.len() > 2 && tokens.noreply();
        let is_valid = match tokens.len() {
            2 => true,
            3 => is_zero || noreply,
            _ => is_zero && noreply,
        };
        if !is_valid {
            self.reply(noreply, BAD_DELETE);
            return Ok(());
        }
        let Some(key) = self.key(tokens.get(1)) else {
            self.reply(noreply, BAD_FORMAT);
            return Ok(());
        };
        let deleted = self.deleted(context, &key, None, Delete::Remove)?;
        context.count_prefix(key.bytes(), Event::Delete(deleted == Deleted::Deleted));
        self.reply(noreply, if deleted == Deleted::Deleted { "DELETED" } else { "NOT_FOUND" });
        Ok(())
    }

    /// Deletes, and counts that.
    pub(super) fn deleted<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        key: &Key<'_>,
        cas: Option<Cas>,
        delete: Delete,
    ) -> Result<Deleted, Flow<S::Place>> {
        let deleted = self.visit(context, key, |slot| commands::delete(slot, cas, delete))?;
        if delete == Delete::Remove || deleted != Deleted::Deleted {
            context.server.count(Event::Delete(deleted == Deleted::Deleted));
        }
        Ok(deleted)
    }

    /// `flush_all`, now or later.
    fn flush_all<V: Server>(&mut self, context: Context<'_, S, V>, tokens: &Tokens<'_>) {
        let noreply = tokens.noreply();
        context.server.count(Event::Flush);
        if !self.rules.serves_flush {
            return self.reply(noreply, "CLIENT_ERROR flush_all not allowed");
        }
        let mut delay = 0;
        if tokens.len() != if noreply { 2 } else { 1 } {
            match signed_32(tokens.get(1)) {
                Some(given) => delay = i64::from(given),
                None => return self.reply(noreply, BAD_EXPIRY),
            }
        }
        self.flush(context, delay);
        self.reply(noreply, "OK");
    }

    /// Flushes, at once where the delay is not above 0.
    pub(super) fn flush<V: Server>(&self, context: Context<'_, S, V>, delay: i64) {
        let now = context.now.at;
        let at = if delay > 0 { context.now.expiry(delay).max(now) } else { now };
        context.slots.flush(at, now);
    }
}

const _: () = assert!(KEY_BYTES_MAX < 256, "a key's length is told in a byte by some");
