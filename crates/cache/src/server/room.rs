//! Memory of connections, beside that of items: counted, kept for reuse, and held within the limit.
//!
//! What a connection takes is counted before it is taken where that can be told: the connection itself, and every buffer longer
//! than a page. What cannot (heap that `malloc` keeps, pages of the program that were not touched before) is found by looking at
//! what is resident, four times a second; items then leave for it.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engine::net::SendBatch;
use engine::time::{self, Instant};

use super::{Holdings, Shared, TICK};
use crate::memory::{Budget, Kind};
use crate::slot::{ROOM_FOR_BUFFERS, Slots};

/// What a connection takes beside its buffers: task, session, what is known of it. Measured at 4,000 of them that had not asked for
/// anything (3,380), and rounded up.
const CONNECTION_BYTES: usize = 7 << 9;
/// The same of a TLS connection's state. Measured at 500 of them, and rounded up.
const TLS_BYTES: usize = 16 << 10;
/// The buffer into which a connection receives at first, with what belongs to it. At rest one with TLS holds it, and some others
/// ([`Resting`]).
const FIRST_BUFFER_BYTES: usize = 2 * engine::buf::ALIGN;
/// The part of the limit that connections may have. The next one is refused: items would leave for who does nothing, and then
/// nothing could be stored. Chosen: some 6,000 connections where the limit is 64 MiB.
const CONNECTIONS_PART: usize = 3;
/// The part of the limit that is kept for connections where items never leave for them.
const RESERVED_PART: usize = 8;

const _: () = assert!(CONNECTIONS_PART <= RESERVED_PART, "what is kept for connections is theirs");
/// How often room is made for one connection. Others may take it; an unlucky one is refused.
const TRIES_MAX: usize = 16;
/// Batches for replies that a thread keeps for its connections. Chosen: as many as have a command under way at once, mostly.
const SPARES_MAX: usize = 32;
/// The shortest and the longest pause between two looks for heap that can be given back to the system, which take a while.
const TRIM_PAUSE_MIN: Duration = Duration::from_secs(1);
const TRIM_PAUSE_MAX: Duration = Duration::from_secs(64);

/// Connections for which room is kept free of items.
#[derive(Default)]
pub(super) struct Reserve(AtomicUsize);

impl Reserve {
    /// Keeps room for so many, or for as many as a part of the limit holds.
    pub(super) fn fill(&self, budget: &Budget, connections: usize, with_tls: bool) {
        let each = place_bytes(with_tls);
        let count = connections.min(budget.limit() / RESERVED_PART / each);
        budget.take(Kind::Connections, count * each);
        self.0.store(count, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok()
    }
}

/// A connection at rest, all in.
fn place_bytes(with_tls: bool) -> usize {
    own_bytes(with_tls) + if with_tls { FIRST_BUFFER_BYTES } else { 0 }
}

/// What is counted of it for as long as it is there; buffers count for themselves.
fn own_bytes(with_tls: bool) -> usize {
    CONNECTION_BYTES + if with_tls { TLS_BYTES } else { 0 }
}

/// A connection that is counted, until it is dropped.
pub(super) struct Admitted {
    budget: Arc<Budget>,
    /// Where its room was kept.
    reserved_by: Option<Arc<Shared>>,
    with_tls: bool,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Some(shared) = &self.reserved_by {
            self.budget.take(Kind::Connections, place_bytes(self.with_tls));
            shared.reserve().0.fetch_add(1, Ordering::Relaxed);
        }
        self.budget.give(Kind::Connections, own_bytes(self.with_tls));
    }
}

/// Counts a connection, and makes room for it; `None`: there is none to be made.
pub(super) async fn admit<S: Slots + Holdings>(slots: &S, shared: &Arc<Shared>, with_tls: bool) -> Option<Admitted> {
    let budget = slots.budget();
    let admitted = |reserved_by: Option<Arc<Shared>>| {
        budget.take(Kind::Connections, own_bytes(with_tls));
        Admitted { budget: budget.clone(), reserved_by, with_tls }
    };
    if shared.reserve().take() {
        budget.give(Kind::Connections, place_bytes(with_tls));
        return Some(admitted(Some(shared.clone())));
    }
    let bytes = place_bytes(with_tls);
    let fits = budget.held(Kind::Connections) + bytes <= part(budget);
    (fits && has_room(slots, bytes).await).then(|| admitted(None))
}

/// Whether a connection may hold so many bytes more, after items have left for them.
async fn has_room<S: Slots>(slots: &S, bytes: usize) -> bool {
    for _ in 0..TRIES_MAX {
        if slots.may_hold(bytes) {
            return true;
        }
        if slots.make_room(ROOM_FOR_BUFFERS).await.is_err() {
            return false;
        }
    }
    false
}

/// Bytes that a connection holds beside what all do, until this is dropped.
pub(super) struct Held {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.give(Kind::Connections, self.bytes);
    }
}

/// Counts so many bytes, and makes room for them; `None`: there is none to be made.
pub(super) async fn hold<S: Slots + Holdings>(slots: &S, bytes: usize) -> Option<Held> {
    has_room(slots, bytes).await.then(|| keep(slots.budget(), bytes))
}

/// Counts bytes that are there already, until it is dropped.
pub(super) fn keep(budget: &Arc<Budget>, bytes: usize) -> Held {
    budget.take(Kind::Connections, bytes);
    Held { budget: budget.clone(), bytes }
}

/// So much of the memory connections may have, in bytes.
fn part(budget: &Budget) -> usize {
    budget.limit() / CONNECTIONS_PART
}

/// Whether connections hold more than their part: by what has come of commands that do not go on, as nobody else is let in then.
pub(super) fn is_over_part(budget: &Budget) -> bool {
    budget.held(Kind::Connections) > part(budget)
}

/// Connections of one thread that rest, or wait for the rest of a command, with a buffer to receive into: what comes is theirs by
/// one call of the system, where the others need two. So many may hold one that all of them are a little part of the memory,
/// however many connections there are.
#[derive(Debug)]
pub(super) struct Resting {
    count: Cell<usize>,
    max: usize,
}

impl Resting {
    /// For one of so many threads.
    pub(super) fn new(budget: &Budget, threads: usize) -> Resting {
        Resting { count: Cell::new(0), max: budget.slack() / FIRST_BUFFER_BYTES / threads.max(1) }
    }

    /// One more holds a buffer until this is dropped; `None`: as many as may do so already.
    pub(super) fn hold(&self) -> Option<Holding<'_>> {
        let may = self.count.get() < self.max;
        may.then(|| {
            self.count.set(self.count.get() + 1);
            Holding(&self.count)
        })
    }
}

/// See [`Resting::hold`].
#[derive(Debug)]
pub(super) struct Holding<'a>(&'a Cell<usize>);

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The memory for replies that connections of one thread have left behind when they came to rest.
#[derive(Default)]
pub(super) struct Spares(RefCell<Vec<SendBatch>>);

impl Spares {
    /// Keeps an empty batch, unless there are enough.
    pub(super) fn put(&self, batch: SendBatch) {
        let mut kept = self.0.borrow_mut();
        if kept.len() < SPARES_MAX {
            kept.push(batch);
        }
    }

    /// One of them.
    pub(super) fn take(&self) -> Option<SendBatch> {
        self.0.borrow_mut().pop()
    }
}

/// Resident memory of this process now.
///
/// # Errors
/// Without `/proc`.
pub fn resident_bytes() -> io::Result<usize> {
    // Of every machine that we run on.
    const PAGE_BYTES: usize = 4096;
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_ascii_whitespace().nth(1).and_then(|field| field.parse::<usize>().ok());
    let pages = pages.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidData, "no resident pages"))?;
    Ok(pages * PAGE_BYTES)
}

/// Keeps what the process has resident within the limit, until the future is dropped. `resident` tells its bytes.
pub async fn keep_memory<S: Holdings>(slots: Arc<S>, shared: Arc<Shared>, resident: impl Fn() -> io::Result<usize>) {
    let mut heap = Heap { pause: TRIM_PAUSE_MIN, trimmed: None, held_most: 0 };
    let mut was_over = false;
    loop {
        // At first before anything is stored: whoever fills all memory within a tick would else find no room kept for the program.
        match heap.resident(slots.budget(), &resident).await {
            Ok(bytes) => slots.budget().note_resident(bytes),
            Err(error) => tracing::warn!(%error, "what is resident is not known"),
        }
        // A little over the limit connections are expected to be at times, and what passes by itself is no shortage. Were items to
        // leave for it, one that was just stored could, with nobody asking for its room.
        let budget = slots.budget();
        let is_over = !budget.may_hold(0) && slots.shrink_items().await.is_err() && !budget.may_hold(0);
        let is_short = is_over && was_over;
        was_over = is_over;
        if is_short && !shared.is_short() {
            tracing::warn!("memory is over its limit, and no item is left to let go");
        }
        shared.set_short(is_short);
        time::sleep(TICK).await;
    }
}

/// What `malloc` keeps of memory that connections have freed, and when it was last told to give it back.
struct Heap {
    pause: Duration,
    trimmed: Option<Instant>,
    /// The most that connections held since then.
    held_most: usize,
}

impl Heap {
    /// What is resident, after what was freed was given back where it stands in somebody's way.
    async fn resident(&mut self, budget: &Budget, resident: &impl Fn() -> io::Result<usize>) -> io::Result<usize> {
        let (limit, slack) = (budget.limit(), budget.slack());
        let held = budget.buffers() + budget.held(Kind::Connections);
        self.held_most = self.held_most.max(held);
        let before = resident()?;
        // Were items to leave for it they would leave again and again, as nothing of what is resident goes with them.
        let was_freed = self.held_most > held + slack && before + slack > limit;
        let is_due = self.trimmed.is_none_or(|trimmed| trimmed.elapsed() >= self.pause);
        if !(was_freed || is_due && before > limit + slack) {
            return Ok(before);
        }
        if engine::offload::compute(engine::pages::trim_heap).await.is_err() {
            tracing::warn!("memory that was freed could not be given back");
        }
        (self.trimmed, self.held_most) = (Some(time::now()), held);
        let now = resident()?;
        // It is asked less often while that does not help.
        self.pause = if now + slack <= before { TRIM_PAUSE_MIN } else { (2 * self.pause).min(TRIM_PAUSE_MAX) };
        Ok(now)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use engine::sim::{SimConfig, World};

    use super::*;
    use crate::hash::Hasher;
    use crate::item::{Key, Meta, NewValue, Seconds};
    use crate::session::Rules;
    use crate::slot::{Look, Slot};
    use crate::store::{Store, StoreOptions};
    use crate::testing::{SECRET, shared};

    const LIMIT: usize = 64 << 20;
    const NOW: Seconds = Seconds(100);

    async fn put(store: &Store, number: u32, bytes: usize) {
        let name = number.to_le_bytes();
        let key = Key::new(&name, store.hasher().hash(&name)).expect("a key");
        let value = vec![7; bytes];
        loop {
            let Ok(stored) =
                store.visit(&key, NOW, Look::Unseen, |slot| slot.put(Meta::default(), NewValue::Pieces(&[&value])));
            match stored {
                Ok(_) => return,
                Err(no_room) => store.make_room(no_room).await.expect("items leave"),
            }
        }
    }

    async fn full() -> Arc<Store> {
        let budget = Arc::new(Budget::without_buffers(LIMIT));
        let store = Arc::new(Store::new(Hasher::new(SECRET), budget, StoreOptions::default()));
        for number in 0..30_000 {
            put(&store, number, 3000).await;
        }
        assert!(store.usage().counters.evicted > 0);
        store
    }

    fn run(test: impl Future<Output = ()> + 'static) {
        World::new(1, SimConfig::default()).run_until(test).expect("it ends");
    }

    /// Of items that were just stored one in sixty was gone a moment later, though nobody had asked for room: four times a second
    /// items left for what memory may be over its limit at times.
    #[test]
    fn nothing_leaves_while_all_is_right() {
        run(async {
            let store = full().await;
            let evicted = || store.usage().counters.evicted;
            let (before, slack) = (evicted(), store.budget().slack());
            let resident = Rc::new(Cell::new(LIMIT + slack / 2));
            let told = resident.clone();
            let _keeper =
                engine::task::spawn(keep_memory(store.clone(), shared(Rules::default(), 10), move || Ok(told.get())));
            time::sleep(8 * TICK).await;
            assert_eq!(evicted(), before, "what is resident may be a little over the limit");
            store.budget().take(Kind::Connections, slack / 4);
            time::sleep(8 * TICK).await;
            assert_eq!(evicted(), before, "so may what connections hold");
            resident.set(LIMIT + 4 * slack);
            time::sleep(8 * TICK).await;
            assert!(evicted() > before, "what passes all bounds costs items");
        });
    }

    /// 5,000 of them that did nothing pushed all items out; then nothing could be stored.
    #[test]
    fn connections_are_refused_before_they_take_more_than_their_share() {
        run(async {
            let (store, shared) = (full().await, shared(Rules::default(), 10));
            for with_tls in [false, true] {
                let mut admitted = Vec::new();
                while let Some(one) = admit(&*store, &shared, with_tls).await {
                    admitted.push(one);
                    assert!(admitted.len() < 1_000_000, "there is no end of them");
                }
                let held = store.budget().held(Kind::Connections);
                let share = LIMIT / CONNECTIONS_PART;
                assert!(held <= share && held + place_bytes(with_tls) > share, "{held}");
                put(&store, 1_000_000, 1).await;
                drop(admitted);
                assert_eq!(store.budget().held(Kind::Connections), 0);
            }
        });
    }

    #[test]
    fn few_of_those_that_rest_hold_a_buffer() {
        let budget = Budget::without_buffers(LIMIT);
        let resting = Resting::new(&budget, 2);
        let mut holding: Vec<_> = std::iter::from_fn(|| resting.hold()).collect();
        assert_eq!(holding.len(), LIMIT / 64 / FIRST_BUFFER_BYTES / 2);
        holding.pop();
        assert!(resting.hold().is_some());
    }
}
