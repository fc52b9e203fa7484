//! The meta protocol: `mg`, `ms`, `md`, `ma`, `mn` and `me`.

use super::storage::{End, incoming};
use super::telling::{OPAQUE_TOO_LONG, Refused, Telling, has_long_opaque, push_key, push_number, push_token};
use super::text::{BAD_FORMAT, LENGTH_MAX, NO_MEMORY, NON_NUMERIC, TOO_LARGE};
use super::{Context, Data, Event, Flow, Server, Session};
use crate::KEY_BYTES_MAX;
use crate::commands::{self, Counted, Delete, Deleted, Delta, Mode, StoreCommand, Stored};
use crate::item::{Cas, Key, Meta, NEVER, NewValue};
use crate::protocol::meta::{Flags, META_TOKENS_MAX};
use crate::protocol::number::{Decimal, signed_32};
use crate::protocol::tokens::Tokens;
use crate::protocol::{Now, base64, item_bytes};
use crate::slot::{NoRoom, Slot, Slots};

const FLAGS_TOO_LONG: &str = "CLIENT_ERROR options flags too long";
/// What memcached tells of the flags of `md` and `ma`, whatever is wrong.
const BAD_FLAGS: &str = "CLIENT_ERROR invalid or duplicate flag";

impl<S: Slots> Session<S> {
    /// Runs a meta command of the name `m` and `kind`.
    pub(super) fn meta<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        kind: u8,
        tokens: &Tokens<'_>,
        data: Data<'_>,
    ) -> Flow<S::Place> {
        let result = match kind {
            b'n' => Ok(Err("MN")),
            b'e' => self.meta_debug(context, tokens).map(Ok),
            b'g' | b's' | b'd' | b'a' if tokens.len() < 2 => return self.error(),
            b'g' | b's' | b'd' | b'a' if tokens.get(1).len() > KEY_BYTES_MAX => Ok(Err(BAD_FORMAT)),
            b's' => return self.meta_set(context, tokens, data),
            b'g' if tokens.len() > META_TOKENS_MAX => Ok(Err("CLIENT_ERROR options flags are too long")),
            b'd' | b'a' if tokens.len() > META_TOKENS_MAX => Ok(Err(FLAGS_TOO_LONG)),
            b'g' => self.meta_get(context, tokens),
            b'd' => self.meta_delete(context, tokens),
            b'a' => self.meta_arithmetic(context, tokens),
            _ => return self.error(),
        };
        match result {
            Err(flow) => flow,
            Ok(told) => {
                if let Err(line) = told {
                    self.reply(false, line);
                }
                Flow::Next(0)
            }
        }
    }

    fn meta_get<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        tokens: &Tokens<'_>,
    ) -> Result<Result<(), Refused>, Flow<S::Place>> {
        let flags = match Flags::parse(tokens, 2, context.now) {
            Ok(flags) => flags,
            Err(line) => return Ok(Err(line)),
        };
        let Some(key) = self.key(key_of(tokens, &flags)) else { return Ok(Err(BAD_FORMAT)) };
        let is_out_of_room = self.is_out_of_room();
        let mut text = std::mem::take(&mut self.scratch);
        let output = &mut self.output;
        let look = match self.fetched.pop_front() {
            Some((_, fetched)) => crate::slot::Look::Fetched(fetched),
            None => crate::slot::Look::Whole,
        };
        let visited = context.try_visit(&key, look, |slot| -> Result<_, NoRoom> {
            let mut made = false;
            if slot.item().is_none() && flags.vivify.is_some() {
                match slot.put(Meta::default(), NewValue::Pieces(&[])) {
                    Ok(_) => made = true,
                    Err(_) if is_out_of_room => {}
                    Err(no_room) => return Err(no_room),
                }
            }
            let Some(item) = slot.item() else { return Ok(Found::Miss) };
            text.clear();
            let length = item.value.len();
            let told = Telling { text: &mut text, key: &key, flags: &flags, now: context.now, length, made }
                .hit(tokens, item.meta);
            if told.refused.is_none() {
                output.bytes(&text);
                if flags.value {
                    output.value(item.value);
                    output.bytes(b"\r\n");
                }
            }
            let changed = told.expires != item.meta.expires || told.won != item.meta.won;
            if changed {
                slot.set_meta(|meta| (meta.expires, meta.won) = (told.expires, told.won));
            }
            if !flags.no_update && told.refused.is_none() {
                slot.note_access();
            }
            Ok(told.refused.map_or(Found::Hit, Found::Refused))
        });
        self.scratch = text;
        let found = match visited {
            Ok(Ok(found)) => found,
            Ok(Err(no_room)) => return Err(Flow::Room(no_room)),
            Err(place) => return Err(self.fetch_one(place)),
        };
        match found {
            Found::Refused(line) => return Ok(Err(line)),
            Found::Hit if flags.expires.is_some() => context.server.count(Event::Touch(true)),
            Found::Hit => context.server.count(Event::Get(true)),
            Found::Miss => {
                context.server.count(Event::Get(false));
                return Ok(self.tell(tokens, 2, &key, &flags, "EN", None, flags.quiet));
            }
        }
        Ok(Ok(()))
    }

    fn meta_set<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        tokens: &Tokens<'_>,
        data: Data<'_>,
    ) -> Flow<S::Place> {
        let refused = match tokens.len() {
            2 => Some(BAD_FORMAT),
            count if count > META_TOKENS_MAX => Some(FLAGS_TOO_LONG),
            _ => None,
        };
        let length = signed_32(tokens.get(2)).filter(|length| (0..=LENGTH_MAX).contains(length));
        let Some(length) = length.filter(|_| refused.is_none()).map(|length| length as usize) else {
            self.reply(false, refused.unwrap_or(BAD_FORMAT));
            return Flow::Next(0);
        };
        let (flags, mode) = match set_flags(tokens, context.now) {
            Ok(parsed) => parsed,
            Err(line) => {
                self.reply(false, line);
                return Flow::Swallow(length + 2);
            }
        };
        let Some(key) = self.key(key_of(tokens, &flags)) else {
            self.reply(false, BAD_FORMAT);
            return Flow::Swallow(length + 2);
        };
        let store = StoreCommand {
            mode,
            cas: Cas(flags.cas.unwrap_or(0)),
            takes_stale: flags.stale && mode == Mode::Cas,
            flags: flags.client_flags,
            expires: flags.expires.unwrap_or(NEVER),
            binary_key: flags.binary_key.is_some(),
            item_bytes_max: self.rules.item_bytes_max,
            key_bytes: key.bytes().len(),
        };
        if let Some(refusal) = self.refusal(&store, length, data) {
            return self.meta_refuse(context, &key, mode, refusal, length);
        }
        let stored = match incoming(data, length, 2) {
            Err(flow) => return flow,
            Ok(None) => {
                context.server.count(Event::Set);
                self.reply(false, "CLIENT_ERROR bad data chunk");
                return Flow::Next(length + 2);
            }
            Ok(Some(value)) => match self.store(context, &key, &store, value) {
                Err(flow) => return flow,
                Ok(End::NoMemory) => return self.meta_refuse(context, &key, mode, Event::NoMemory, length),
                Ok(End::Over(stored)) => stored,
            },
        };
        let (code, cas) = match stored {
            Stored::Stored(cas) => ("HD", cas),
            Stored::NotStored => ("NS", Cas(0)),
            Stored::Exists => ("EX", Cas(0)),
            Stored::NotFound => ("NF", Cas(0)),
        };
        // The opaque token was looked at before.
        let _ = self.tell(tokens, 3, &key, &flags, code, Some(cas), flags.quiet && code == "HD");
        Flow::Next(length + 2)
    }

    /// As `set` does, in any mode: the old item goes.
    fn meta_refuse<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        key: &Key<'_>,
        mode: Mode,
        refusal: Event,
        length: usize,
    ) -> Flow<S::Place> {
        context.refused(key, refusal, mode);
        self.reply(false, if refusal == Event::TooLarge { TOO_LARGE } else { NO_MEMORY });
        self.drop_old(context, key);
        Flow::Swallow(length + 2)
    }

    fn meta_delete<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        tokens: &Tokens<'_>,
    ) -> Result<Result<(), Refused>, Flow<S::Place>> {
        let Ok(flags) = Flags::parse(tokens, 2, context.now) else { return Ok(Err(BAD_FLAGS)) };
        if has_long_opaque(tokens, 2) {
            return Ok(Err(OPAQUE_TOO_LONG));
        }
        let Some(key) = self.key(key_of(tokens, &flags)) else { return Ok(Err(BAD_FORMAT)) };
        let delete = if flags.stale { Delete::MarkStale(flags.expires) } else { Delete::Remove };
        let code = match self.deleted(context, &key, flags.cas.map(Cas), delete)? {
            Deleted::Deleted => "HD",
            Deleted::Exists => "EX",
            Deleted::NotFound => "NF",
        };
        Ok(self.tell(tokens, 2, &key, &flags, code, None, flags.quiet && code == "HD"))
    }

    fn meta_arithmetic<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        tokens: &Tokens<'_>,
    ) -> Result<Result<(), Refused>, Flow<S::Place>> {
        let Ok(flags) = Flags::parse(tokens, 2, context.now) else { return Ok(Err(BAD_FLAGS)) };
        let down = match flags.mode {
            None | Some(b'I' | b'+') => false,
            Some(b'D' | b'-') => true,
            _ => return Ok(Err("CLIENT_ERROR invalid mode for ma M token")),
        };
        let Some(key) = self.key(key_of(tokens, &flags)) else { return Ok(Err(BAD_FORMAT)) };
        let delta = Delta { down, by: flags.delta.unwrap_or(1), cas: flags.cas.filter(|&cas| cas != 0).map(Cas) };
        let mut text = std::mem::take(&mut self.scratch);
        text.clear();
        let visited = self.try_visit(context, &key, |slot| -> Result<_, NoRoom> {
            let (number, meta, made) = match commands::arithmetic::add_delta(slot, delta)? {
                Counted::Done { number, meta } => (number, meta, false),
                Counted::NotFound if flags.vivify.is_some() => {
                    let digits = Decimal::new(flags.initial);
                    let cas = slot.put(Meta::default(), NewValue::Pieces(&[digits.bytes()]))?;
                    (flags.initial, Meta { cas, ..Meta::default() }, true)
                }
                other => return Ok((other, false, None)),
            };
            let digits = Decimal::new(number);
            let length = digits.bytes().len();
            let told = Telling { text: &mut text, key: &key, flags: &flags, now: context.now, length, made }
                .number(tokens, meta, digits);
            if told.expires != meta.expires {
                slot.set_meta(|meta| meta.expires = told.expires);
            }
            Ok((Counted::Done { number, meta }, made, told.refused))
        });
        self.scratch = text;
        let (counted, made, refused) = match visited? {
            Ok(over) => over,
            Err(no_room) if !self.is_out_of_room() => return Err(Flow::Room(no_room)),
            Err(_) => return Ok(Err("SERVER_ERROR out of memory")),
        };
        let event = |is_hit| if down { Event::Decrement(is_hit) } else { Event::Increment(is_hit) };
        match counted {
            Counted::Done { number, .. } => {
                if made {
                    let expires = flags.vivify.unwrap_or(NEVER);
                    context.tell_store(&key, "stored", Mode::Add, expires, Decimal::new(number).bytes().len());
                } else {
                    context.server.count(event(true));
                }
                if let Some(line) = refused {
                    return Ok(Err(line));
                }
                // As in memcached: of an item that was made is told although nobody wants the usual answer.
                if !flags.quiet || made {
                    self.output.bytes(&self.scratch);
                }
                Ok(Ok(()))
            }
            Counted::NonNumeric => Ok(Err(NON_NUMERIC)),
            Counted::Exists => Ok(self.tell(tokens, 2, &key, &flags, "EX", None, false)),
            Counted::NotFound => {
                context.server.count(event(false));
                Ok(self.tell(tokens, 2, &key, &flags, "NF", None, false))
            }
        }
    }

    /// `me`: everything that is kept with a value, for people.
    fn meta_debug<V: Server>(&mut self, context: Context<'_, S, V>, tokens: &Tokens<'_>) -> Result<(), Flow<S::Place>> {
        let given = tokens.get(1);
        let decoded = (tokens.get(2) == b"b").then(|| base64::DecodedKey::decode(given));
        let key = match &decoded {
            Some(Some(key)) => self.key(key.bytes()),
            Some(None) => None,
            None => self.key(given),
        };
        let Some(key) = key else {
            self.reply(false, BAD_FORMAT);
            return Ok(());
        };
        let found = self.visit(context, &key, |slot| slot.item().map(|item| (item.meta, item.value.len())))?;
        context.server.count(Event::Meta);
        let Some((meta, length)) = found else {
            self.reply(false, "EN");
            return Ok(());
        };
        let now = context.now.at;
        let expires = if meta.expires == NEVER { -1 } else { i64::from(now.0) - i64::from(meta.expires.0) };
        let mut text = b"ME ".to_vec();
        match meta.binary_key {
            true => base64::encode(&mut text, key.bytes()),
            false => text.extend_from_slice(key.bytes()),
        }
        // There are no slab classes; what reads the line wants a number.
        let rest = format!(
            " exp={expires} la={} cas={} fetch={} cls=1 size={}",
            now.0.saturating_sub(meta.accessed.0),
            meta.cas.0,
            if meta.fetched { "yes" } else { "no" },
            item_bytes(key.bytes().len(), meta.flags, length),
        );
        text.extend_from_slice(rest.as_bytes());
        self.output.line(&text);
        Ok(())
    }

    /// Tells a code, and the tokens that are told with any: opaque, key, and (of `ms`) the cas.
    #[expect(clippy::too_many_arguments, reason = "one line's parts, in the order of its making")]
    fn tell(
        &mut self,
        tokens: &Tokens<'_>,
        first: usize,
        key: &Key<'_>,
        flags: &Flags,
        code: &str,
        cas: Option<Cas>,
        is_quiet: bool,
    ) -> Result<(), Refused> {
        if has_long_opaque(tokens, first) {
            return Err(OPAQUE_TOO_LONG);
        }
        if is_quiet {
            return Ok(());
        }
        let text = &mut self.scratch;
        text.clear();
        text.extend_from_slice(code.as_bytes());
        for token in tokens.from(first) {
            match (token[0], cas) {
                (b'O', _) => push_token(text, token),
                (b'k', _) => push_key(text, key, flags.binary_key.is_some()),
                (b'c', Some(cas)) => push_number(text, b'c', cas.0),
                _ => {}
            }
        }
        text.extend_from_slice(b"\r\n");
        self.output.bytes(text);
        Ok(())
    }
}

enum Found {
    Hit,
    Miss,
    Refused(Refused),
}

/// The flags of `ms`, and its mode.
fn set_flags(tokens: &Tokens<'_>, now: Now) -> Result<(Flags, Mode), Refused> {
    let flags = Flags::parse(tokens, 3, now)?;
    let mode = match flags.mode {
        None | Some(b'S') => Mode::Set,
        Some(b'E') => Mode::Add,
        Some(b'A') => Mode::Append,
        Some(b'P') => Mode::Prepend,
        Some(b'R') => Mode::Replace,
        _ => return Err("CLIENT_ERROR invalid mode for ms M token"),
    };
    if has_long_opaque(tokens, 3) {
        return Err(OPAQUE_TOO_LONG);
    }
    match mode {
        Mode::Set | Mode::Replace if flags.cas.is_some() => Ok((flags, Mode::Cas)),
        _ => Ok((flags, mode)),
    }
}

/// The key, decoded where that is asked for.
fn key_of<'a>(tokens: &Tokens<'a>, flags: &'a Flags) -> &'a [u8] {
    flags.binary_key.as_ref().map_or(tokens.get(1), |key| key.bytes())
}
