//! `watch`: what happens, as lines to those who asked for it. Whoever does not read fast enough misses lines and is told how many.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU16, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::sync::{MailReceiver, MailSender, mailbox};
use engine::time;

use super::holdings::Holdings;
use super::shared::Shared;
use crate::item::{Meta, NEVER, Seconds};
use crate::session::CLASS;
use crate::session::{Happening, Watch};

/// Bytes of lines that wait for one watcher, as many as memcached's. They count against the memory limit whether there are lines or
/// not.
pub(super) const WAITING_BYTES: usize = 256 << 10;
/// Bytes that are taken of them to be sent at once.
const PIECE_BYTES: usize = 16 << 10;
/// Watchers at once, as in memcached (`WATCHER_LIMIT`).
const WATCHERS_MAX: usize = 20;

/// What is told with keys.
pub(super) const KEYS: Watch = Watch { bits: Watch::FETCHERS.bits | Watch::MUTATIONS.bits };

/// The watchers of a server.
#[derive(Default)]
pub(super) struct Watchers {
    /// What some of them wants to see: looked at with every command.
    wanted: AtomicU16,
    all: Mutex<Vec<Watcher>>,
    next_line: AtomicU64,
    sent: AtomicU64,
    skipped: AtomicU64,
    /// What these two were at the last reset.
    reset: Mutex<(u64, u64)>,
}

struct Watcher {
    number: u64,
    watch: Watch,
    waiting: Arc<Mutex<VecDeque<u8>>>,
    woken: MailSender<()>,
    skipped: u64,
}

impl Watcher {
    /// Adds a line, if there is room for it.
    fn tell(&self, line: &str) -> bool {
        let mut waiting = lock(&self.waiting);
        let fits = waiting.len() + line.len() <= WAITING_BYTES;
        if fits {
            waiting.extend(line.as_bytes());
        }
        // A mailbox that is full says it already; one that is closed is about to be removed.
        let _ = self.woken.try_send(());
        fits
    }
}

/// What waits for a watcher.
pub(super) struct Lines {
    waiting: Arc<Mutex<VecDeque<u8>>>,
    woken: MailReceiver<()>,
}

impl Lines {
    /// The next lines, or a piece of them, when there are any; `None`: it is a watcher no more.
    pub(super) async fn next(&self) -> Option<Vec<u8>> {
        loop {
            let piece = self.piece();
            if !piece.is_empty() {
                return Some(piece);
            }
            self.woken.recv().await?;
        }
    }

    fn piece(&self) -> Vec<u8> {
        let mut waiting = lock(&self.waiting);
        let bytes = waiting.len().min(PIECE_BYTES);
        waiting.drain(..bytes).collect()
    }
}

impl Watchers {
    /// Somebody wants to see one of these.
    pub(super) fn wants(&self, some: Watch) -> bool {
        Watch { bits: self.wanted.load(Relaxed) }.wants(some)
    }

    /// How many there are, and the lines that were sent to them, and not, since the last reset.
    pub(super) fn counts(&self) -> (usize, u64, u64) {
        let (watchers, sent, skipped) = self.totals();
        let (sent_before, skipped_before) = *self.reset.lock().unwrap_or_else(PoisonError::into_inner);
        (watchers, sent.saturating_sub(sent_before), skipped.saturating_sub(skipped_before))
    }

    /// The same since the server started.
    pub(super) fn totals(&self) -> (usize, u64, u64) {
        (self.lock().len(), self.sent.load(Relaxed), self.skipped.load(Relaxed))
    }

    /// Counts lines anew, but for [`Watchers::totals`].
    pub(super) fn reset(&self) {
        let (_, sent, skipped) = self.totals();
        *self.reset.lock().unwrap_or_else(PoisonError::into_inner) = (sent, skipped);
    }

    /// There may be one more.
    pub(super) fn has_room(&self) -> bool {
        self.lock().len() < WATCHERS_MAX
    }

    /// One more, and the number to remove it by; `None`: there are as many as may be.
    pub(super) fn add(&self, watch: Watch) -> Option<(u64, Lines)> {
        // Written to once (zeroes would come from the kernel untouched), so that it is resident as it is counted: a look at what is
        // resident takes the rest for the program, and what came in the place of unused room was over the limit until the next.
        let mut room = vec![1; WAITING_BYTES];
        room.clear();
        let mut all = self.lock();
        if all.len() >= WATCHERS_MAX {
            return None;
        }
        let (sender, woken) = mailbox(1);
        let waiting = Arc::new(Mutex::new(VecDeque::from(room)));
        let number = all.last().map_or(1, |last| last.number + 1);
        all.push(Watcher { number, watch, waiting: waiting.clone(), woken: sender, skipped: 0 });
        self.note_wanted(&all);
        Some((number, Lines { waiting, woken }))
    }

    /// One less.
    pub(super) fn remove(&self, number: u64) {
        let mut all = self.lock();
        all.retain(|watcher| watcher.number != number);
        self.note_wanted(&all);
    }

    fn note_wanted(&self, all: &[Watcher]) {
        self.wanted.store(all.iter().fold(0, |bits, watcher| bits | watcher.watch.bits), Relaxed);
    }

    /// A connection met a key.
    pub(super) fn happened(&self, connection: u64, key: &[u8], what: Happening) {
        let key = Escaped(key);
        match what {
            Happening::Fetch { bytes, had_expired } => {
                let (status, class) = match bytes {
                    Some(_) => ("found", CLASS),
                    None if had_expired => ("expired", 0),
                    None => ("not_found", 0),
                };
                let size = bytes.unwrap_or(0);
                let line =
                    format_args!("type=item_get key={key} status={status} clsid={class} cfd={connection} size={size}");
                self.tell(Watch::FETCHERS, &line);
            }
            Happening::Store { status, command, ttl, bytes } => {
                let line = format_args!(
                    "type=item_store key={key} status={status} cmd={command} ttl={ttl} clsid={CLASS} cfd={connection} size={bytes}"
                );
                self.tell(Watch::MUTATIONS, &line);
            }
        }
    }

    /// An item was let go for others.
    fn evicted(&self, key: &[u8], meta: &Meta, bytes: usize, now: Seconds) {
        let (key, fetched) = (Escaped(key), if meta.fetched { "yes" } else { "no" });
        let ttl = if meta.expires == NEVER { -1 } else { i64::from(meta.expires.0) - i64::from(now.0) };
        let idle = now.0.saturating_sub(meta.accessed.0);
        let line =
            format_args!("type=eviction key={key} fetch={fetched} ttl={ttl} la={idle} clsid={CLASS} size={bytes}");
        self.tell(Watch::EVICTIONS, &line);
    }

    /// Something of a kind happened.
    pub(super) fn tell(&self, kind: Watch, what: &dyn Display) {
        if !self.wants(kind) {
            return;
        }
        let now = time::unix_time();
        let number = self.next_line.fetch_add(1, Relaxed) + 1;
        for watcher in self.lock().iter_mut().filter(|watcher| watcher.watch.wants(kind)) {
            let skipped = match watcher.skipped {
                0 => String::new(),
                lines => format!("skipped={lines} "),
            };
            let (seconds, micros) = (now.as_secs(), now.subsec_micros());
            let line = format!("{skipped}ts={seconds}.{micros:06} gid={number} {what}\n");
            if watcher.tell(&line) {
                watcher.skipped = 0;
                self.sent.fetch_add(1, Relaxed);
            } else {
                watcher.skipped += 1;
                self.skipped.fetch_add(1, Relaxed);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Watcher>> {
        lock(&self.all)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has watchers told of items that are let go for others.
pub fn tell_evictions(slots: &impl Holdings, shared: &Arc<Shared>) {
    let shared = shared.clone();
    slots.tell_evicted(Box::new(move |key, meta, bytes| {
        // A shard is held meanwhile, so that without a watcher this is all.
        if shared.watchers().wants(Watch::EVICTIONS) {
            shared.watchers().evicted(key, meta, bytes, shared.now().at);
        }
    }));
}

/// A key as dumps and watchers are told it: what is no unreserved character of a URI is `%` and two digits.
pub(super) struct Escaped<'a>(pub(super) &'a [u8]);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for &byte in self.0 {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => write!(f, "{}", byte as char)?,
                _ => write!(f, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_is_told_what_it_asked_for_and_what_it_missed() {
        let world = engine::sim::World::new(1, engine::sim::SimConfig::default());
        let lines = world.run_until(async {
            let watchers = Watchers::default();
            let fetch = |bytes, had_expired| Happening::Fetch { bytes, had_expired };
            watchers.happened(7, b"nobody", fetch(None, false));
            let (number, lines) = watchers.add(Watch::FETCHERS).expect("room");
            assert!(watchers.wants(KEYS) && !watchers.wants(Watch::MUTATIONS) && !watchers.wants(Watch::EVICTIONS));
            let told = |number: usize| {
                watchers.happened(7, format!("a b{number}").as_bytes(), fetch((number == 0).then_some(9), number == 2));
                watchers.happened(7, b"k", Happening::Store { status: "stored", command: "set", ttl: 0, bytes: 1 });
            };
            // Until three did not fit.
            (0..)
                .take_while(|&number| {
                    told(number);
                    watchers.counts().2 < 3
                })
                .for_each(drop);
            let (_, sent, _) = watchers.counts();
            let mut got = lines.next().await.expect("lines");
            watchers.happened(8, b"last", fetch(Some(0), false));
            while !lock(&lines.waiting).is_empty() {
                got.extend(lines.next().await.expect("lines"));
            }
            assert!(got.len() > WAITING_BYTES - 200 && got.len() < WAITING_BYTES + PIECE_BYTES);
            assert_eq!(watchers.counts(), (1, sent + 1, 3));
            watchers.remove(number);
            watchers.reset();
            assert_eq!((watchers.counts(), watchers.totals()), ((0, 0, 0), (0, sent + 1, 3)));
            assert!(!watchers.wants(KEYS) && lines.next().await.is_none());
            let got = String::from_utf8(got).expect("text");
            got.split_inclusive('\n').map(str::to_owned).collect::<Vec<_>>()
        });
        let lines = lines.expect("no stall");
        let end =
            |line: &str| line.split_once(" gid=").and_then(|(_, rest)| rest.split_once(' ')).map(|p| p.1.to_owned());
        assert_eq!(end(&lines[0]).as_deref(), Some("type=item_get key=a%20b0 status=found clsid=1 cfd=7 size=9\n"));
        assert_eq!(end(&lines[1]).as_deref(), Some("type=item_get key=a%20b1 status=not_found clsid=0 cfd=7 size=0\n"));
        assert_eq!(end(&lines[2]).as_deref(), Some("type=item_get key=a%20b2 status=expired clsid=0 cfd=7 size=0\n"));
        let last = lines.last().expect("many");
        assert!(last.starts_with("skipped=3 ts="), "{last}");
        assert_eq!(end(last).as_deref(), Some("type=item_get key=last status=found clsid=1 cfd=8 size=0\n"));
    }

    #[test]
    fn there_are_so_many_watchers_and_no_more() {
        let watchers = Watchers::default();
        let all: Vec<_> = (0..WATCHERS_MAX).map(|_| watchers.add(Watch::EVICTIONS).expect("room")).collect();
        assert!(watchers.add(Watch::EVICTIONS).is_none());
        watchers.remove(all[3].0);
        let (number, _) = watchers.add(Watch::EVICTIONS).expect("room");
        assert!(all.iter().all(|(other, _)| *other != number));
    }
}
