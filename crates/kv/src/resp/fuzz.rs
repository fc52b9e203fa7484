//! The entry point for fuzzing a session, and a store in memory for it and for the tests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use pool::together;

use super::backend::{Change, Entry, Look, Room, ScanKey, TAG_HASH};
use super::execute::Executor;
use super::hash;
use super::keys::now_ms;
use super::memory::Budget;
use super::reply::Reply;
use super::session::Session;
use super::strings::string;
use super::turn::Order;
use crate::types::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::value::Value;

use super::{Backend, Failure, GatewayState, ScanPage};

/// A store in memory whose futures are always ready where there is room; a get that waited too long for that fails. Keys whose time
/// is over end when somebody looks. Clones are the same store.
#[derive(Clone, Default)]
pub struct MemoryBackend {
    entries: Rc<RefCell<BTreeMap<Vec<u8>, Entry>>>,
    /// Looks that wait for room: each holds its place as long.
    waiting: Rc<()>,
    /// What is told of how many keys there are, if it is not the truth.
    estimate: Rc<Cell<Option<u64>>>,
}

impl MemoryBackend {
    async fn reserve(&self, key: &[u8], room: Room) {
        let length = self.entries.borrow().get(key).map_or(0, |entry| entry.value.len());
        if let Some(wait) = room.as_ref().and_then(|room| room.reserve(length)) {
            let _place = self.waiting.clone();
            wait.await;
        }
    }

    /// Says so from now on when it is asked about how many keys there are.
    pub fn estimates(&self, count: u64) {
        self.estimate.set(Some(count));
    }

    /// Looks that wait for room.
    pub fn waiting(&self) -> usize {
        Rc::strong_count(&self.waiting) - Rc::strong_count(&self.entries)
    }

    fn expire(&self, key: &[u8]) {
        let mut entries = self.entries.borrow_mut();
        if entries.get(key).is_some_and(|entry| !is_alive(entry)) {
            entries.remove(key);
        }
    }
}

fn is_alive(entry: &Entry) -> bool {
    entry.expiry.is_none_or(|at| at > now_ms())
}

fn check(key: &[u8], entry: &Entry) -> Result<(), Failure> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX || entry.value.len() > VALUE_BYTES_MAX {
        return Err(Failure::new("ERR", "key or value is too long"));
    }
    Ok(())
}

impl Backend for MemoryBackend {
    async fn entry(&self, key: &[u8], room: Room) -> Result<Option<Entry>, Failure> {
        let since = engine::time::now();
        self.reserve(key, room).await;
        if since.elapsed() > crate::store::OPERATION_TIME_MAX {
            return Err(Failure::new(Failure::TRY_AGAIN, "no time"));
        }
        check(key, &Entry::default())?;
        self.expire(key);
        Ok(self.entries.borrow().get(key).cloned())
    }

    async fn look(&self, key: &[u8]) -> Result<Option<Look>, Failure> {
        check(key, &Entry::default())?;
        self.expire(key);
        Ok(self.entries.borrow().get(key).map(Look::from))
    }

    async fn put_entry(&self, key: &[u8], entry: Entry) -> Result<(), Failure> {
        check(key, &entry)?;
        self.entries.borrow_mut().insert(key.to_vec(), entry);
        Ok(())
    }

    async fn put_entries(&self, puts: Vec<(&[u8], Entry)>) -> Vec<Result<(), Failure>> {
        together(puts.into_iter().map(|(key, entry)| self.put_entry(key, entry))).await
    }

    async fn delete(&self, key: &[u8]) -> Result<bool, Failure> {
        self.expire(key);
        Ok(self.entries.borrow_mut().remove(key).is_some())
    }

    async fn update(
        &self,
        key: &[u8],
        room: Room,
        mut decide: impl FnMut(Option<&Entry>) -> Change,
    ) -> Result<Reply, Failure> {
        self.reserve(key, room).await;
        check(key, &Entry::default())?;
        self.expire(key);
        let mut entries = self.entries.borrow_mut();
        match decide(entries.get(key)) {
            Change::Keep(reply) => Ok(reply),
            Change::Put(entry, reply) => {
                check(key, &entry)?;
                entries.insert(key.to_vec(), entry);
                Ok(reply)
            }
            Change::Delete(reply) => {
                entries.remove(key);
                Ok(reply)
            }
        }
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Value>, Failure> {
        Ok(self.entry(key, None).await?.map(|entry| entry.value))
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.put_entry(key, string(value)).await
    }

    async fn scan(&self, cursor: u64, count: usize) -> Result<ScanPage, Failure> {
        let entries = self.entries.borrow();
        let skip = usize::try_from(cursor).unwrap_or(usize::MAX);
        let looked_at = entries.iter().skip(skip).take(count);
        let alive = looked_at.clone().filter(|(_, entry)| is_alive(entry));
        let keys = alive.map(|(key, entry)| ScanKey { key: key.clone(), tag: entry.tag }).collect();
        let end = skip.saturating_add(looked_at.count());
        Ok(ScanPage { keys, next: if end < entries.len() { end as u64 } else { 0 } })
    }

    fn random_cursor(&self) -> u64 {
        engine::task::random_u64() % (self.entries.borrow().len() as u64).max(1)
    }

    async fn estimate_keys(&self) -> Result<u64, Failure> {
        let counted = || self.entries.borrow().values().filter(|entry| is_alive(entry)).count() as u64;
        Ok(self.estimate.get().unwrap_or_else(counted))
    }

    fn further_copies(&self) -> u64 {
        0
    }

    fn info(&self) -> Vec<(String, String)> {
        vec![("keys".into(), self.entries.borrow().len().to_string())]
    }
}

/// The output of a future that is ready at once, as those of [`MemoryBackend`] are.
pub fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Feeds bytes to a RESP session in pieces (the first byte says how long) and runs what it starts, last first, so that replies
/// complete out of order. Panics if what the session sends is not a row of well-formed replies.
pub fn resp_session(bytes: &[u8]) {
    let Some((&piece, mut rest)) = bytes.split_first() else { return };
    let output = run_session(&mut rest, usize::from(piece).max(1));
    let mut left = &output[..];
    while !left.is_empty() {
        left = skip_reply(left, 0).unwrap_or_else(|| panic!("invariant: replies are well-formed: {left:?}"));
    }
}

/// What every command of hashes makes of any bytes that are stored as one. What decodes must be what it encodes to.
pub fn resp_hash(bytes: &[u8]) {
    if let Some(fields) = hash::decode(bytes) {
        let fields: hash::Fields<'_> = fields.into_iter().map(|(f, v)| (f.into(), v.into())).collect();
        assert_eq!(hash::encode(&fields), bytes, "one set of fields has one encoding");
    }
    let commands =
        b"HLEN h\r\nHGETALL h\r\nHSCAN h 0 COUNT 3\r\nHRANDFIELD h 2 WITHVALUES\r\nHSTRLEN h a\r\nHINCRBY h a 1\r\n\
        HINCRBYFLOAT h b 0.5\r\nHSETNX h c 1\r\nHDEL h a b c\r\nHVALS h\r\nTYPE h\r\nDEL h\r\nHGETALL h\r\n";
    let (backend, value) = (MemoryBackend::default(), Value::copy_from(bytes));
    backend.entries.borrow_mut().insert(b"h".to_vec(), Entry { value, expiry: None, tag: TAG_HASH });
    let output = run_session_of(&backend, &Arc::default(), &mut &commands[..], commands.len());
    assert!(output.ends_with(b"*0\r\n"), "invariant: a hash, or what is none, can be deleted");
}

/// Everything a session sends on `input`, which comes in pieces of `piece` bytes.
pub fn run_session(input: &mut &[u8], piece: usize) -> Vec<u8> {
    run_session_of(&MemoryBackend::default(), &Arc::default(), input, piece)
}

/// The same in front of a store and of a gateway that others share.
pub fn run_session_of(backend: &MemoryBackend, shared: &Arc<GatewayState>, input: &mut &[u8], piece: usize) -> Vec<u8> {
    let mut session = Session::new(shared.clone(), "peer".into(), "local".into());
    let (gone, mut output) = (Cell::new(false), Vec::new());
    let executor = Executor { backend: Rc::new(backend.clone()), shared: shared.clone(), budget: Budget::default() };
    while !input.is_empty() && session.accepts() {
        let (mut now, rest) = input.split_at(piece.min(input.len()));
        *input = rest;
        // What is not accepted at once is offered again when the commands before it are answered.
        loop {
            session.receive(&mut now);
            let mut jobs: Vec<_> = std::iter::from_fn(|| session.next_job()).collect();
            let idle = jobs.is_empty() && session.output().is_empty();
            while let Some(job) = jobs.pop() {
                let done = ready(executor.execute(job.request, &job.command, Order::default().turn(), &gone));
                let (reply, hold) = done.expect("invariant: MemoryBackend is always ready, and there is room");
                session.complete(job, reply, hold);
            }
            while let Some(chunk) = session.output().pop() {
                output.extend_from_slice(&chunk);
            }
            session.output().sent();
            if idle {
                break;
            }
        }
    }
    assert_eq!(session.running(), 0, "invariant: every job was completed");
    output
}

/// The bytes behind the first reply of `bytes`, in RESP2 or RESP3; `None` if it is cut off or malformed.
pub fn skip_reply(bytes: &[u8], depth: usize) -> Option<&[u8]> {
    // Our deepest reply is COMMAND DOCS: a map of maps.
    const DEPTH_MAX: usize = 8;
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, rest) = (&bytes[..end], &bytes[end + 2..]);
    let number = || std::str::from_utf8(&line[1..]).ok()?.parse::<i64>().ok();
    let many = |count: i64| (0..count).try_fold(rest, |rest, _| skip_reply(rest, depth + 1));
    match line.first()? {
        b'+' | b'-' => Some(rest),
        b':' => number().map(|_| rest),
        b'_' => (line.len() == 1).then_some(rest),
        b'$' | b'*' if &line[1..] == b"-1" => Some(rest),
        b'$' | b'=' => rest.get(usize::try_from(number()?).ok()?..)?.strip_prefix(b"\r\n"),
        b'*' | b'~' if depth < DEPTH_MAX => many(number()?),
        b'%' if depth < DEPTH_MAX => many(number()?.checked_mul(2)?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::commands::COMMANDS;
    use super::*;

    #[test]
    fn every_command_has_code_and_answers_well_formed() {
        for spec in COMMANDS {
            for extra in 0..4 {
                let args = vec!["1"; spec.arity.unsigned_abs() as usize - 1 + extra];
                let line = format!("\x07HELLO 3\r\n{} {}\r\nPING\r\n", spec.name, args.join(" "));
                resp_session(line.as_bytes());
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_may_be_stored_as_a_hash(bytes in prop::collection::vec(0u8..3, 0..60)) {
            resp_hash(&bytes);
            resp_hash(&[&[1, 0, 0, 0][..], &bytes].concat());
        }

        #[test]
        fn any_bytes_get_well_formed_replies(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            resp_session(&bytes);
        }

        #[test]
        fn any_words_get_well_formed_replies(
            piece in 1u8..40,
            words in prop::collection::vec(prop::sample::select(&[
                "get", "set", "del", "mget", "mset", "scan", "0", "keys", "*", "k", "v", "\r\n", "hello", "3", "client", "list",
                "setname", "command", "docs", "config", "\"\\x0d\\x0a\"", "nosuch", "quit", "reset", "info", "getrange",
                "-1", "dbsize", "append", "incr", "incrbyfloat", "1e3", "hset", "h", "f", "hincrby", "hgetall", "hscan", "hdel",
                "hrandfield", "withvalues", "expire", "100", "ttl", "getex", "ex", "nx", "client", "reply", "skip", "off",
                "object", "encoding", "auth",
            ][..]), 0..60),
        ) {
            let mut bytes = vec![piece];
            bytes.extend_from_slice(words.join(" ").as_bytes());
            resp_session(&bytes);
        }
    }
}
