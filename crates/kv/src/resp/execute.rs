//! Requests against a [`Backend`].
//!
//! Commands over several keys run key by key, up to [`FAN_OUT_MAX`] at once; they are not atomic over keys, which `COMMAND DOCS`
//! says. One that fails midway answers the error; what it did to other keys stays done, as with any error of unknown outcome.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use engine::time::Instant;
pub use pool::together;

use super::backend::{Backend, Entry, Failure, Look, ScanKey, ScanPage, TAG_STRING};
use super::command::Command;
use super::connection;
use super::glob::Pace;
use super::hashes;
use super::info::{asks_for, info};
use super::keys::{self, Lifetime, Moment, type_name};
use super::memory::{Budget, Cost, Excess, Hold, LISTED_COST, LISTING_BYTES_MAX, One, Several};
use super::reply::{Reply, VIEW_BYTES_MIN};
use super::request::{Read, Request, ScanOptions, Update};
use super::stats::{GatewayState, GatewayStats};
use super::strings::{self, string};
use super::turn::Turn;
use super::{FAN_OUT_MAX, KEYS_MAX, REPLY_BYTES_MAX, ROOM_TIME_MAX, SCAN_COUNT_MAX};
use crate::types::KEY_BYTES_MAX;

/// Of more keys than these an estimate has to do. Guessed: counting them is a matter of a second.
const KEYS_COUNTED_MAX: u64 = 100_000;
/// How long keys are counted one by one before an estimate has to do: few keys may lie in a large table. Chosen: as long as any
/// operation may take.
const COUNT_TIME_MAX: Duration = crate::store::OPERATION_TIME_MAX;
/// The same for `INFO`, which tells of other things, too. Chosen: clients ask it before anything else, and give up after seconds.
const INFO_COUNT_TIME_MAX: Duration = Duration::from_secs(1);
/// How old the number of keys in `INFO` may be. Guessed: it is polled each second, and looked at now and then.
const COUNT_AGE_MAX: Duration = Duration::from_secs(10);

/// What the commands of a thread run against.
pub struct Executor<B> {
    /// The store.
    pub backend: Rc<B>,
    /// What all threads of the gateway share.
    pub shared: Arc<GatewayState>,
    /// What the commands may hold of the memory.
    pub budget: Budget,
}

type Executed = Result<(Reply, Hold), Failure>;

/// A reply that holds no room, being short.
fn short(reply: Reply) -> (Reply, Hold) {
    (reply, Hold::default())
}

impl<B: Backend> Executor<B> {
    /// Runs one request and gives its reply with the room that is to be held for it. Once `gone` is set nobody reads the reply:
    /// walks over all keys then end early.
    pub async fn execute(
        &self,
        request: Request,
        command: &Command,
        turn: Rc<Turn>,
        gone: &Cell<bool>,
    ) -> (Reply, Hold) {
        let turn = &turn;
        let (backend, shared) = (&*self.backend, &*self.shared);
        let executed = match request {
            Request::Read(what) => self.read(what, command, turn).await,
            Request::Update(what) => self.update(what, command, turn).await,
            Request::Put { value, lifetime } => self.put(value, lifetime, command, turn).await.map(short),
            Request::MGet => self.mget(command, turn).await,
            Request::MSet => self.mset(command, turn).await.map(short),
            Request::Delete => self.delete(command, turn).await.map(short),
            Request::Exists => self.exists(command).await.map(short),
            Request::Keys => self.all_keys(command.arg(1), turn, gone).await,
            Request::Scan(cursor, options) => self.scan(cursor, options, command, turn).await,
            Request::RandomKey => random_key(backend).await.map(short),
            Request::DbSize => {
                let count = count_keys(backend, shared, gone, COUNT_TIME_MAX).await;
                count.map(|count| short(Reply::Integer(count as i64)))
            }
            Request::Info => {
                // Whoever polls it must not have the pool walked every second.
                let keys = match (asks_for(command, "keyspace"), shared.keys_counted(COUNT_AGE_MAX)) {
                    (false, _) => Ok(0),
                    (true, Some(count)) => Ok(count),
                    (true, None) => count_keys(backend, shared, gone, INFO_COUNT_TIME_MAX).await,
                };
                Ok(short(Reply::Text(info(backend, shared, keys, command))))
            }
            Request::Time => Ok(short(time())),
            Request::Answer(name) => self.answer(name, command, turn).await,
            Request::Wait => Ok(short(Reply::Integer(backend.further_copies() as i64))),
        };
        let (reply, mut hold) = executed.unwrap_or_else(|failure| short(Reply::Error(failure.to_string())));
        hold.shrink_to(reply.memory_bytes());
        (reply, hold)
    }

    /// Room for `bytes`, within the time that a command has.
    async fn room(&self, bytes: usize, turn: &Turn) -> Result<Hold, Failure> {
        in_time(self.budget.take(bytes, turn)).await.map(|taken| Some(taken).into())
    }

    fn count_reads(&self, hits: usize, misses: usize) {
        GatewayStats::add(&self.shared.stats.hits, hits as u64);
        GatewayStats::add(&self.shared.stats.misses, misses as u64);
    }

    async fn look(&self, key: &[u8]) -> Result<Option<Look>, Failure> {
        let found = self.backend.look(key).await?;
        self.count_reads(usize::from(found.is_some()), usize::from(found.is_none()));
        Ok(found)
    }

    async fn read(&self, what: Read, command: &Command, turn: &Rc<Turn>) -> Executed {
        let key = command.arg(what.key_place());
        let cost = match what {
            Read::Key(read) => {
                let found = self.look(key).await?;
                return Ok(short(read.reply(found.as_ref(), command, &Moment::now())));
            }
            Read::String(_) => Cost::Value,
            // A field that is not there has a reply too.
            Read::Hash(hashes::Read::GetMany) => Cost::Hash(command.len() * LISTED_COST),
            Read::Hash(_) => Cost::Hash(0),
        };
        let mut room = One::of_read(&self.budget, turn, cost, None);
        let mut deadline = engine::time::now() + ROOM_TIME_MAX;
        let mut found = self.entry_within(&room, key).await;
        let entry = loop {
            let bytes = match found.map_err(|failure| why(&room, failure))? {
                Ok(entry) => break entry,
                Err(bytes) => bytes,
            };
            // The time that its own peer takes is not that of others.
            let waits = engine::time::now();
            self.budget.await_share(bytes, turn).await;
            deadline += waits.elapsed();
            // However often the value has grown meanwhile: who begins anew holds room that others wait for.
            let taken = in_time_until(deadline, self.budget.take(bytes, turn)).await?;
            room = One::of_read(&self.budget, turn, cost, Some(taken));
            found = in_time_until(deadline, self.entry_within(&room, key)).await?;
        };
        self.count_reads(usize::from(entry.is_some()), usize::from(entry.is_none()));
        // Where there is no value nobody has asked for room.
        let hold = match &entry {
            Some(_) => room.take(),
            None => {
                // First: who waits for room holds none.
                drop(room.take());
                Some(in_time_until(deadline, self.budget.take(cost.of(0), turn)).await?).into()
            }
        };
        let reply = match what {
            Read::String(read) => read.reply(entry.as_ref()),
            Read::Hash(read) => {
                let reply = read.reply(entry.as_ref(), command, &Moment::now());
                drop(entry);
                hashes::only_matching(read, reply, command).await?
            }
            Read::Key(_) => unreachable!("invariant: answered above"),
        };
        Ok((reply, hold))
    }

    /// What is under a key; else how much room the look lacks that is not there now.
    async fn entry_within(&self, room: &Rc<One>, key: &[u8]) -> Result<Result<Option<Entry>, usize>, Failure> {
        let mut read = pin!(self.backend.entry(key, Some(room.clone())));
        let look = poll_fn(|context| match read.as_mut().poll(context) {
            Poll::Ready(found) => Poll::Ready(found.map(Ok)),
            Poll::Pending => room.lacks().map_or(Poll::Pending, |bytes| Poll::Ready(Ok(Err(bytes)))),
        });
        look.await
    }

    async fn update(&self, what: Update, command: &Command, turn: &Rc<Turn>) -> Executed {
        let cost = match what {
            Update::String(strings::Update::SetRange(offset)) => {
                // What is longer than any value is refused before it is made.
                Cost::Grown(usize::try_from(offset).unwrap_or(usize::MAX).saturating_add(command.bytes_held()))
            }
            Update::String(update) if update.tells_what_was() => Cost::GrownAndTold(command.bytes_held()),
            Update::String(_) => Cost::Grown(command.bytes_held()),
            Update::Hash(_) => Cost::GrownHash(command.bytes_held()),
            Update::Key(_) => Cost::Value,
        };
        let decide = |entry: Option<&Entry>| match what {
            Update::String(update) => update.change(entry, command, &Moment::now()),
            Update::Hash(update) => update.change(entry, command),
            Update::Key(update) => update.change(entry, &Moment::now()),
        };
        let room = One::new(&self.budget, turn, cost);
        let reply = self.backend.update(command.arg(1), Some(room.clone()), decide).await;
        Ok((reply.map_err(|failure| why(&room, failure))?, room.take()))
    }

    /// What a connection could answer itself, but for the room that takes.
    async fn answer(&self, name: &str, command: &Command, turn: &Turn) -> Executed {
        let bytes = match connection::answer_bytes(name, &self.shared, command) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(short(error)),
        };
        let hold = self.room(bytes, turn).await?;
        let reply = connection::answer(name, &self.shared, command);
        Ok((reply.unwrap_or_else(|error| error), hold))
    }

    async fn put(
        &self,
        value: usize,
        lifetime: Lifetime,
        command: &Command,
        turn: &Rc<Turn>,
    ) -> Result<Reply, Failure> {
        let value = command.arg(value);
        let _room = self.room(value.len(), turn).await?;
        let entry = Entry { expiry: lifetime.expiry(None), ..string(value) };
        self.backend.put_entry(command.arg(1), entry).await.map(|()| Reply::OK)
    }

    async fn mget(&self, command: &Command, turn: &Rc<Turn>) -> Executed {
        let too_long = || {
            let sentence = format!("the values are more than {REPLY_BYTES_MAX} bytes together: ask for fewer keys");
            Failure::new("ERR", sentence)
        };
        let mut room = Several::new(&self.budget, turn, REPLY_BYTES_MAX);
        loop {
            match self.mget_within(&room, command).await? {
                Ok(reply) => return Ok((reply, room.take())),
                Err(Excess::Reply) => return Err(too_long()),
                Err(Excess::Room) => {
                    // First: who waits for room holds none.
                    drop(room);
                    room = in_time(Several::reserved(&self.budget, turn, REPLY_BYTES_MAX)).await?;
                }
            }
        }
    }

    async fn mget_within(&self, room: &Rc<Several>, command: &Command) -> Result<Result<Reply, Excess>, Failure> {
        if let Err(excess) = room.grow(command.len() * LISTED_COST) {
            return Ok(Err(excess));
        }
        let mut values = Vec::with_capacity(command.len() - 1);
        for first in (1..command.len()).step_by(FAN_OUT_MAX) {
            let end = (first + FAN_OUT_MAX).min(command.len());
            let reads = together((first..end).map(|index| self.backend.entry(command.arg(index), Some(room.part()))));
            let (mut reads, mut excess) = (pin!(reads), pin!(room.excess()));
            // The reads first: what one of them asks for may be too much.
            let found = poll_fn(|context| match reads.as_mut().poll(context) {
                Poll::Ready(found) => Poll::Ready(Ok(found)),
                Poll::Pending => excess.as_mut().poll(context).map(Err),
            });
            let found = match found.await {
                Ok(found) => found,
                Err(excess) => return Ok(Err(excess)),
            };
            let hits = found.iter().filter(|entry| matches!(entry, Ok(Some(_)))).count();
            self.count_reads(hits, found.iter().filter(|entry| matches!(entry, Ok(None))).count());
            for entry in found {
                // What is no string is as good as not there, as in Redis.
                let value = entry?.filter(|entry| entry.tag == TAG_STRING).map(|entry| entry.value);
                values.push(match value {
                    // A view would keep the whole page it was read with, which is more than it has room for.
                    Some(value) if value.len() < VIEW_BYTES_MIN => Reply::Bulk(value.to_vec()),
                    value => value.map_or(Reply::Null, Reply::Value),
                });
            }
        }
        Ok(Ok(Reply::Array(values)))
    }

    async fn mset(&self, command: &Command, turn: &Rc<Turn>) -> Result<Reply, Failure> {
        let _room = self.room(command.bytes_held() + command.len() * LISTED_COST, turn).await?;
        // The last value of a key that is given twice wins, as in Redis; two concurrent puts would leave it to chance.
        let pairs: BTreeMap<&[u8], &[u8]> =
            (1..command.len()).step_by(2).map(|index| (command.arg(index), command.arg(index + 1))).collect();
        let pairs: Vec<_> = pairs.into_iter().collect();
        for part in pairs.chunks(FAN_OUT_MAX) {
            let puts = part.iter().map(|(key, value)| (*key, string(value))).collect();
            for result in self.backend.put_entries(puts).await {
                result?;
            }
        }
        Ok(Reply::OK)
    }

    async fn delete(&self, command: &Command, turn: &Rc<Turn>) -> Result<Reply, Failure> {
        let mut removed = 0;
        for first in (1..command.len()).step_by(FAN_OUT_MAX) {
            // Each waits for room, so none is held for all. A key that is given twice is removed once: the second finds none, and
            // of those at once one is enough.
            let end = (first + FAN_OUT_MAX).min(command.len());
            let part: BTreeSet<&[u8]> = (first..end).map(|index| command.arg(index)).collect();
            let deletes = part.iter().map(|key| async move {
                // Conditional, so that of several at once one counts it.
                let decide = |entry: Option<&Entry>| keys::Update::Delete.change(entry, &Moment::now());
                let room = One::new(&self.budget, turn, Cost::Value);
                let removed = self.backend.update(key, Some(room.clone()), decide).await;
                removed.map_err(|failure| why(&room, failure))
            });
            for result in together(deletes).await {
                match result? {
                    Reply::Integer(count) => removed += count,
                    other => return Ok(other),
                }
            }
        }
        Ok(Reply::Integer(removed))
    }

    async fn exists(&self, command: &Command) -> Result<Reply, Failure> {
        // A key that is given twice counts twice, as in Redis.
        let mut found = 0;
        for first in (1..command.len()).step_by(FAN_OUT_MAX) {
            let end = (first + FAN_OUT_MAX).min(command.len());
            for look in together((first..end).map(|index| self.look(command.arg(index)))).await {
                found += i64::from(look?.is_some());
            }
        }
        Ok(Reply::Integer(found))
    }

    async fn all_keys(&self, pattern: &[u8], turn: &Rc<Turn>, gone: &Cell<bool>) -> Executed {
        let _place = in_time(self.budget.listing().acquire(1)).await?;
        let mut room = Several::new(&self.budget, turn, LISTING_BYTES_MAX);
        loop {
            match self.keys_within(&room, pattern, gone).await? {
                Ok(reply) => return Ok((reply, room.take())),
                Err(Excess::Reply) => {
                    return Err(Failure::new("ERR", format!("more than {KEYS_MAX} keys match: use SCAN")));
                }
                Err(Excess::Room) => {
                    // First: who waits for room holds none.
                    drop(room);
                    room = in_time(Several::reserved(&self.budget, turn, LISTING_BYTES_MAX)).await?;
                }
            }
        }
    }

    async fn keys_within(
        &self,
        room: &Several,
        pattern: &[u8],
        gone: &Cell<bool>,
    ) -> Result<Result<Reply, Excess>, Failure> {
        // A scan may meet a key twice, `KEYS` does not.
        let (mut found, mut cursor, mut bytes) = (BTreeSet::new(), 0, 0);
        loop {
            let ScanPage { keys, next } = self.backend.scan(cursor, SCAN_COUNT_MAX).await?;
            let (mut pace, mut more) = (Pace::new(), 0);
            for ScanKey { key, .. } in keys {
                if pace.matches(pattern, &key).await.ok_or_else(too_slow)? {
                    let length = key.len();
                    if found.insert(key) {
                        bytes += length;
                        more += length + LISTED_COST;
                    }
                }
            }
            if found.len() > KEYS_MAX || bytes > REPLY_BYTES_MAX {
                return Ok(Err(Excess::Reply));
            }
            if let Err(excess) = room.grow(more) {
                return Ok(Err(excess));
            }
            if next == 0 || gone.get() {
                return Ok(Ok(Reply::Array(found.into_iter().map(Reply::Bulk).collect())));
            }
            cursor = next;
        }
    }

    async fn scan(&self, cursor: u64, options: ScanOptions, command: &Command, turn: &Rc<Turn>) -> Executed {
        let hold = self.room(options.count * (KEY_BYTES_MAX + LISTED_COST), turn).await?;
        let page = self.backend.scan(cursor, options.count).await?;
        let pattern = options.pattern.map(|index| command.arg(index));
        let type_wanted = options.type_name.map(|index| command.arg(index));
        let is_wanted = |tag| type_wanted.is_none_or(|name| name.eq_ignore_ascii_case(type_name(tag).as_bytes()));
        let (mut found, mut pace) = (Vec::new(), Pace::new());
        for ScanKey { key, .. } in page.keys.into_iter().filter(|found| is_wanted(found.tag)) {
            let matches = match pattern {
                Some(pattern) => pace.matches(pattern, &key).await.ok_or_else(too_slow)?,
                None => true,
            };
            if matches {
                found.push(Reply::Bulk(key));
            }
        }
        Ok((Reply::Array(vec![Reply::bulk(page.next.to_string()), Reply::Array(found)]), hold))
    }
}

/// What a command is told whose pattern takes longer than any operation may.
pub(super) fn too_slow() -> Failure {
    Failure::new("ERR", format!("matching the pattern took longer than {ROOM_TIME_MAX:?}: use a simpler one"))
}

/// What is waited for, unless that takes longer than a command may wait for room.
async fn in_time<T>(wait: impl Future<Output = T>) -> Result<T, Failure> {
    in_time_until(engine::time::now() + ROOM_TIME_MAX, wait).await
}

/// The same of a command that has waited before.
async fn in_time_until<T>(deadline: Instant, wait: impl Future<Output = T>) -> Result<T, Failure> {
    let left = deadline.duration_since(engine::time::now());
    engine::time::timeout(left, wait).await.map_err(|_elapsed| no_room())
}

/// What a command is told that has waited too long for room.
fn no_room() -> Failure {
    Failure::new(Failure::TRY_AGAIN, "the gateway's memory for values is in use by other commands: send it again")
}

/// The failure of a command; that it was waiting for room is not the members' fault.
fn why(room: &One, failure: Failure) -> Failure {
    if room.waits() && failure.code == Failure::TRY_AGAIN { no_room() } else { failure }
}

/// How many keys there are: counted if they are few, since an estimate of few is far off; else about. Where the time is over first,
/// at least as many as were met.
pub(super) async fn count_keys<B: Backend>(
    backend: &B,
    shared: &GatewayState,
    gone: &Cell<bool>,
    time_max: Duration,
) -> Result<u64, Failure> {
    let begun = engine::time::now();
    let estimate = backend.estimate_keys().await?;
    if estimate > KEYS_COUNTED_MAX {
        shared.set_keys_counted(estimate);
        return Ok(estimate);
    }
    let (mut count, mut cursor) = (0, 0);
    loop {
        let page = backend.scan(cursor, SCAN_COUNT_MAX).await?;
        (count, cursor) = (count + page.keys.len() as u64, page.next);
        if cursor == 0 || gone.get() || begun.elapsed() > time_max {
            break;
        }
    }
    // A walk that was broken off has a cursor.
    let count = if cursor == 0 { count } else { count.max(estimate) };
    shared.set_keys_counted(count);
    Ok(count)
}

/// A key that stands behind a random place: one behind a long gap is chosen more often.
async fn random_key<B: Backend>(backend: &B) -> Result<Reply, Failure> {
    let (mut cursor, mut wrapped) = (backend.random_cursor(), false);
    loop {
        let ScanPage { keys, next } = backend.scan(cursor, FAN_OUT_MAX).await?;
        if !keys.is_empty() {
            let index = (engine::task::random_u64() % keys.len() as u64) as usize;
            return Ok(keys.into_iter().nth(index).map_or(Reply::Null, |found| Reply::Bulk(found.key)));
        }
        if next == 0 && wrapped {
            return Ok(Reply::Null);
        }
        wrapped |= next == 0;
        cursor = next;
    }
}

fn time() -> Reply {
    let now = engine::time::unix_time();
    Reply::Array(vec![Reply::bulk(now.as_secs().to_string()), Reply::bulk(now.subsec_micros().to_string())])
}

#[cfg(test)]
mod tests {
    use super::super::turn::Order;
    use super::*;

    /// What may have been done is told so, whether its command waits for room or not; only what was not may be sent again.
    #[test]
    fn only_what_was_not_done_is_told_that_there_was_no_room() {
        let room = One::new(&Budget::default(), &Order::default().turn(), Cost::Value);
        for waits in [false, true] {
            room.set_waits(waits);
            for code in ["ERR", Failure::UNKNOWN, Failure::OUT_OF_SPACE] {
                assert_eq!(why(&room, Failure::new(code, "as it was")).sentence, "as it was", "{code}, {waits}");
            }
            let told = why(&room, Failure::new(Failure::TRY_AGAIN, "the members"));
            assert_eq!(told.sentence == "the members", !waits);
        }
    }
}
