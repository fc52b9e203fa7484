//! The binary protocol.

use super::admin::{Told, told};
use super::storage::{End, incoming};
use super::{Authentication, Context, Data, Ending, Event, Flow, Server, Session, State, Stats, Step};
use crate::KEY_BYTES_MAX;
use crate::commands::{self, Counted, Delete, Deleted, Delta, Mode, StoreCommand, Stored};
use crate::item::{Cas, Item, Key, Meta, NewValue};
use crate::protocol::VERSION;
use crate::protocol::binary::{HEADER_BYTES, Lengths, Opcode, Request, Status};
use crate::protocol::number::Decimal;
use crate::slot::{NoRoom, Slot, Slots};

/// Bytes of the name of a SASL mechanism.
const MECHANISM_BYTES_MAX: usize = 32;
/// As the expiry of a number: none is made where there is none.
const NOT_MADE: u32 = u32::MAX;

/// A request without its value.
#[derive(Clone, Copy, Debug)]
struct Head<'a> {
    request: Request,
    extras: &'a [u8],
    key: &'a [u8],
    is_quiet: bool,
    /// Bytes behind the key.
    value_bytes: usize,
}

impl Head<'_> {
    fn extra_u32(&self, at: usize) -> u32 {
        self.extras.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes)
    }

    fn extra_u64(&self, at: usize) -> u64 {
        u64::from(self.extra_u32(at)) << 32 | u64::from(self.extra_u32(at + 4))
    }

    fn cas(&self) -> Option<Cas> {
        (self.request.cas != 0).then_some(Cas(self.request.cas))
    }
}

impl<S: Slots> Session<S> {
    /// Bytes of the header, the extras and the key at the front of the input, once they are there. What ends the connection
    /// does so before the rest is received.
    pub(super) fn binary_head(&mut self) -> Result<usize, Option<Step<S::Place>>> {
        let Some(header) = self.input.bytes().first_chunk::<HEADER_BYTES>() else { return Err(Some(Step::Receive)) };
        let Some(request) = Request::parse(header) else {
            self.state = State::Closing(Ending::Error);
            return Err(None);
        };
        let head_bytes = request.extras_bytes + request.key_bytes;
        let refused = if head_bytes > request.body_bytes {
            Some(Status::UnknownCommand)
        } else if !self.authenticated && !is_open(request.opcode) {
            Some(Status::AuthenticationError)
        } else {
            (request.key_bytes > KEY_BYTES_MAX).then_some(Status::InvalidArguments)
        };
        if let Some(status) = refused {
            self.fail(&request, status);
            self.state = State::Closing(Ending::Error);
            return Err(None);
        }
        let bytes = HEADER_BYTES + head_bytes;
        if self.input.bytes().len() < bytes {
            self.wanted = bytes;
            return Err(Some(Step::Receive));
        }
        Ok(bytes)
    }

    /// Runs the request of this header, extras and key.
    pub(super) fn binary<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        bytes: &[u8],
        data: Data<'_>,
    ) -> Flow<S::Place> {
        let Some(request) = bytes.first_chunk().and_then(Request::parse) else { return Flow::Close(Ending::Error) };
        let (extras, key) = bytes[HEADER_BYTES..].split_at(request.extras_bytes);
        let value_bytes = request.body_bytes - extras.len() - key.len();
        let Some((opcode, is_quiet)) = Opcode::parse(request.opcode) else {
            self.fail(&request, Status::UnknownCommand);
            // As in memcached: extras and key are counted again.
            return Flow::Swallow(request.body_bytes);
        };
        let head = Head { request, extras, key, is_quiet, value_bytes };
        let is_empty = request.body_bytes == 0;
        let has_key_only = extras.is_empty() && !key.is_empty() && value_bytes == 0;
        let is_valid = match opcode {
            Opcode::Version | Opcode::Noop | Opcode::Quit | Opcode::SaslList => is_empty,
            Opcode::Flush => key.is_empty() && value_bytes == 0 && matches!(extras.len(), 0 | 4),
            Opcode::Set | Opcode::Add | Opcode::Replace => extras.len() == 8 && !key.is_empty(),
            Opcode::Get | Opcode::GetKey | Opcode::Delete => has_key_only,
            Opcode::Increment | Opcode::Decrement => extras.len() == 20 && !key.is_empty() && value_bytes == 0,
            Opcode::Append | Opcode::Prepend | Opcode::SaslAuth | Opcode::SaslStep => {
                extras.is_empty() && !key.is_empty()
            }
            Opcode::Stat => extras.is_empty(),
            Opcode::Touch | Opcode::GetAndTouch | Opcode::GetKeyAndTouch => extras.len() == 4 && !key.is_empty(),
        };
        if !is_valid {
            self.fail(&request, Status::InvalidArguments);
            return Flow::Close(Ending::Error);
        }
        self.dispatch(context, opcode, &head, data)
    }

    fn dispatch<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        opcode: Opcode,
        head: &Head<'_>,
        data: Data<'_>,
    ) -> Flow<S::Place> {
        let result = match opcode {
            Opcode::Version => {
                self.succeed(head, 0, VERSION.as_bytes());
                Ok(())
            }
            Opcode::Noop => {
                self.succeed(head, 0, b"");
                Ok(())
            }
            Opcode::Quit => {
                self.succeed(head, 0, b"");
                return Flow::Close(Ending::Normal);
            }
            Opcode::Flush => {
                self.binary_flush(context, head);
                Ok(())
            }
            Opcode::Stat => {
                self.binary_stat(context, head);
                Ok(())
            }
            Opcode::SaslList | Opcode::SaslAuth | Opcode::SaslStep => return self.sasl(context, opcode, head, data),
            Opcode::Set => return self.binary_update(context, Mode::Set, head, data),
            Opcode::Add => return self.binary_update(context, Mode::Add, head, data),
            Opcode::Replace => return self.binary_update(context, Mode::Replace, head, data),
            Opcode::Append => return self.binary_update(context, Mode::Append, head, data),
            Opcode::Prepend => return self.binary_update(context, Mode::Prepend, head, data),
            Opcode::Get | Opcode::GetKey | Opcode::Touch | Opcode::GetAndTouch | Opcode::GetKeyAndTouch => {
                self.binary_get(context, opcode, head)
            }
            Opcode::Delete => self.binary_delete(context, head),
            Opcode::Increment => self.binary_count(context, head, false),
            Opcode::Decrement => self.binary_count(context, head, true),
        };
        result.err().unwrap_or(Flow::Next(0))
    }

    fn binary_get<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        opcode: Opcode,
        head: &Head<'_>,
    ) -> Result<(), Flow<S::Place>> {
        let touches = matches!(opcode, Opcode::Touch | Opcode::GetAndTouch | Opcode::GetKeyAndTouch);
        let with_key = matches!(opcode, Opcode::GetKey | Opcode::GetKeyAndTouch);
        let key_bytes = if with_key { head.key.len() } else { 0 };
        let Some(key) = self.key(head.key) else { return Ok(()) };
        let look = self.look(0);
        let output = &mut self.output;
        let tell = |item: &Item<'_>| {
            let value_bytes = if opcode == Opcode::Touch { 0 } else { item.value.len() };
            let lengths = Lengths { extras: 4, key: key_bytes, body: 4 + key_bytes + value_bytes };
            output.bytes(&head.request.response(Status::Success, lengths, item.meta.cas.0));
            output.bytes(&item.meta.flags.to_be_bytes());
            output.bytes(&head.key[..key_bytes]);
            if opcode != Opcode::Touch {
                output.value(item.value);
            }
        };
        let expires = context.now.expiry(i64::from(head.extra_u32(0)));
        let visited = context.visit(&key, look, |slot| match touches {
            false => commands::get(slot, tell),
            true => commands::get_and_touch(slot, expires, tell),
        });
        let is_hit = visited.map_err(|place| self.fetch_one(place))?;
        context.server.count(if touches { Event::Touch(is_hit) } else { Event::Get(is_hit) });
        context.count_prefix(head.key, Event::Get(is_hit));
        match is_hit || head.is_quiet {
            true => {}
            false if with_key => {
                let lengths = Lengths { extras: 0, key: key_bytes, body: key_bytes };
                self.output.bytes(&head.request.response(Status::KeyMissing, lengths, 0));
                self.output.bytes(head.key);
            }
            false => self.fail(&head.request, Status::KeyMissing),
        }
        Ok(())
    }

    fn binary_update<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        mode: Mode,
        head: &Head<'_>,
        data: Data<'_>,
    ) -> Flow<S::Place> {
        let Some(key) = self.key(head.key) else { return Flow::Close(Ending::Error) };
        let store = StoreCommand {
            mode: if head.request.cas != 0 && !mode.joins() { Mode::Cas } else { mode },
            cas: Cas(head.request.cas),
            takes_stale: false,
            flags: if mode.joins() { 0 } else { head.extra_u32(0) },
            expires: context.now.expiry(i64::from(head.extra_u32(4))),
            binary_key: false,
            item_bytes_max: self.rules.item_bytes_max,
            key_bytes: head.key.len(),
        };
        let length = head.value_bytes;
        if let Some(refusal) = self.refusal(&store, length, data) {
            return self.binary_refuse(context, &key, mode, head, refusal);
        }
        let value = match incoming(data, length, 0) {
            Err(flow) => return flow,
            Ok(Some(value)) => value,
            Ok(None) => return Flow::Close(Ending::Error),
        };
        let stored = match self.store(context, &key, &store, value) {
            Err(flow) => return flow,
            Ok(End::NoMemory) => return self.binary_refuse(context, &key, mode, head, Event::NoMemory),
            Ok(End::Over(stored)) => stored,
        };
        context.count_prefix(head.key, Event::Set);
        let status = match (stored, store.mode) {
            (Stored::Stored(cas), _) => {
                self.succeed(head, cas.0, b"");
                return Flow::Next(length);
            }
            (Stored::Exists, _) | (Stored::NotStored, Mode::Add) => Status::KeyExists,
            (Stored::NotFound, _) | (Stored::NotStored, Mode::Replace) => Status::KeyMissing,
            (Stored::NotStored, _) => Status::NotStored,
        };
        self.fail(&head.request, status);
        Flow::Next(length)
    }

    fn binary_refuse<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        key: &Key<'_>,
        mode: Mode,
        head: &Head<'_>,
        refusal: Event,
    ) -> Flow<S::Place> {
        context.count_prefix(head.key, Event::Set);
        context.refused(key, refusal, mode);
        match refusal {
            Event::TooLarge => self.fail(&head.request, Status::TooLarge),
            _ => self.fail_with(&head.request, Status::OutOfMemory, "Out of memory allocating item"),
        }
        if mode == Mode::Set {
            self.drop_old(context, key);
        }
        Flow::Swallow(head.value_bytes)
    }

    fn binary_delete<V: Server>(&mut self, context: Context<'_, S, V>, head: &Head<'_>) -> Result<(), Flow<S::Place>> {
        let Some(key) = self.key(head.key) else { return Ok(()) };
        let deleted = self.deleted(context, &key, head.cas(), Delete::Remove)?;
        context.count_prefix(head.key, Event::Delete(deleted == Deleted::Deleted));
        match deleted {
            Deleted::Deleted => self.succeed(head, 0, b""),
            Deleted::Exists => self.fail(&head.request, Status::KeyExists),
            Deleted::NotFound => self.fail(&head.request, Status::KeyMissing),
        }
        Ok(())
    }

    /// Counts; a number that is missing is made, unless its expiry says otherwise.
    fn binary_count<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        head: &Head<'_>,
        down: bool,
    ) -> Result<(), Flow<S::Place>> {
        let Some(key) = self.key(head.key) else { return Ok(()) };
        let delta = Delta { down, by: head.extra_u64(0), cas: head.cas() };
        let (initial, expiry) = (head.extra_u64(8), head.extra_u32(16));
        let expires = context.now.expiry(i64::from(expiry));
        let visited = self.try_visit(context, &key, |slot| -> Result<_, NoRoom> {
            match commands::arithmetic::add_delta(slot, delta)? {
                Counted::NotFound if expiry != NOT_MADE => {
                    let digits = Decimal::new(initial);
                    let meta = Meta { expires, ..Meta::default() };
                    let cas = slot.put(meta, NewValue::Pieces(&[digits.bytes()]))?;
                    Ok((Counted::Done { number: initial, meta: Meta { cas, ..meta } }, true))
                }
                counted => Ok((counted, false)),
            }
        })?;
        let (counted, made) = match visited {
            Ok(over) => over,
            Err(no_room) if !self.is_out_of_room() => return Err(Flow::Room(no_room)),
            Err(_) => {
                self.fail_with(&head.request, Status::OutOfMemory, "Out of memory incrementing value");
                return Ok(());
            }
        };
        let event = |is_hit| if down { Event::Decrement(is_hit) } else { Event::Increment(is_hit) };
        match counted {
            Counted::Done { number, meta } => {
                if made {
                    let bytes = Decimal::new(number).bytes().len();
                    context.tell_store(&key, "stored", Mode::Add, expires, bytes);
                } else {
                    context.server.count(event(true));
                }
                self.succeed(head, meta.cas.0, &number.to_be_bytes());
            }
            Counted::NonNumeric => self.fail(&head.request, Status::NonNumeric),
            Counted::Exists => self.fail(&head.request, Status::KeyExists),
            Counted::NotFound => {
                context.server.count(event(false));
                self.fail(&head.request, Status::KeyMissing);
            }
        }
        Ok(())
    }

    fn binary_flush<V: Server>(&mut self, context: Context<'_, S, V>, head: &Head<'_>) {
        if !self.rules.serves_flush {
            return self.fail(&head.request, Status::AuthenticationError);
        }
        self.flush(context, i64::from(head.extra_u32(0)));
        context.server.count(Event::Flush);
        self.succeed(head, 0, b"");
    }

    /// Statistics: a response for each, and one without a name.
    fn binary_stat<V: Server>(&mut self, context: Context<'_, S, V>, head: &Head<'_>) {
        let server = context.server;
        let mut text = Vec::new();
        let mut tell = |name: &str, value: &str| {
            let lengths = Lengths { extras: 0, key: name.len(), body: name.len() + value.len() };
            text.extend_from_slice(&head.request.response(Status::Success, lengths, 0));
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(value.as_bytes());
        };
        // memcached looks at the beginning of the name alone.
        let how = match head.key {
            b"" => told(server, Stats::General, &mut tell),
            name if name.starts_with(b"reset") => {
                server.reset_stats();
                Told::Whole
            }
            name if name.starts_with(b"settings") => told(server, Stats::Settings, &mut tell),
            name if name.starts_with(b"detail dump") => {
                tell("detailed", &format!("{}END\r\n", server.prefixes()));
                Told::Whole
            }
            name if name.starts_with(b"detail on") || name.starts_with(b"detail off") => {
                server.set_counts_prefixes(name.starts_with(b"detail on"));
                Told::Whole
            }
            name if name.starts_with(b"detail") => Told::Unknown,
            name => told(server, Stats::Named(name), &mut tell),
        };
        match how {
            Told::Unknown => return self.fail(&head.request, Status::KeyMissing),
            Told::Whole => tell("", ""),
            Told::WithoutEnd => {}
        }
        self.output.bytes(&text);
    }

    fn sasl<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        opcode: Opcode,
        head: &Head<'_>,
        data: Data<'_>,
    ) -> Flow<S::Place> {
        if !matches!(self.rules.authentication, Authentication::Sasl(_)) {
            self.fail(&head.request, Status::UnknownCommand);
            return Flow::Swallow(head.value_bytes);
        }
        if opcode == Opcode::SaslList {
            // As in memcached, whoever asks has to begin anew.
            self.authenticated = false;
            self.succeed(head, 0, b"PLAIN");
            return Flow::Next(0);
        }
        if head.key.len() > MECHANISM_BYTES_MAX {
            self.fail(&head.request, Status::InvalidArguments);
            return Flow::Swallow(head.value_bytes);
        }
        match self.sasl_message(context, opcode, head.key, head.value_bytes, data) {
            Err(flow) => return flow,
            Ok(Status::Success) => self.succeed(head, 0, b"Authenticated"),
            Ok(status) => self.fail(&head.request, status),
        }
        Flow::Swallow(head.value_bytes)
    }

    /// Answers, unless the request was a quiet one.
    fn succeed(&mut self, head: &Head<'_>, cas: u64, body: &[u8]) {
        if !head.is_quiet {
            let lengths = Lengths { body: body.len(), ..Lengths::default() };
            self.output.bytes(&head.request.response(Status::Success, lengths, cas));
            self.output.bytes(body);
        }
    }

    fn fail(&mut self, request: &Request, status: Status) {
        self.fail_with(request, status, status.text());
    }

    fn fail_with(&mut self, request: &Request, status: Status, text: &str) {
        let lengths = Lengths { body: text.len(), ..Lengths::default() };
        self.output.bytes(&request.response(status, lengths, 0));
        self.output.bytes(text.as_bytes());
    }
}

/// What may be asked for by anybody.
fn is_open(opcode: u8) -> bool {
    let opcode = Opcode::parse(opcode).map(|(opcode, _)| opcode);
    matches!(opcode, Some(Opcode::SaslList | Opcode::SaslAuth | Opcode::SaslStep | Opcode::Version))
}
