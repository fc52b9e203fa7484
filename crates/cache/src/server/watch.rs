//! `watch`: what happens, as lines to those who asked for it. Whoever does not read fast enough misses lines and is told how many.

use std::fmt::Display;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::sync::{MailReceiver, MailSender, mailbox};
use engine::time;

use crate::session::{Event, Watch};

/// Lines that wait for one watcher. Chosen: about memcached's 256 KiB for each.
const LINES_MAX: usize = 4096;
/// Watchers at once, as in memcached (`WATCHER_LIMIT`).
const WATCHERS_MAX: usize = 20;

/// The watchers of a server.
#[derive(Default)]
pub(super) struct Watchers {
    /// How many there are: looked at with every command.
    count: AtomicUsize,
    all: Mutex<Vec<Watcher>>,
    next_line: AtomicU64,
    sent: AtomicU64,
    skipped: AtomicU64,
}

struct Watcher {
    number: u64,
    watch: Watch,
    lines: MailSender<String>,
    skipped: u64,
}

impl Watchers {
    /// Somebody watches.
    pub(super) fn any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// How many there are, and the lines that were sent to them, and not, since the last reset.
    pub(super) fn counts(&self) -> (usize, u64, u64) {
        (self.count.load(Relaxed), self.sent.load(Relaxed), self.skipped.load(Relaxed))
    }

    /// Counts lines anew.
    pub(super) fn reset(&self) {
        self.sent.store(0, Relaxed);
        self.skipped.store(0, Relaxed);
    }

    /// There may be one more.
    pub(super) fn has_room(&self) -> bool {
        self.count.load(Relaxed) < WATCHERS_MAX
    }

    /// One more, and the number to remove it by; `None`: there are as many as may be.
    pub(super) fn add(&self, watch: Watch) -> Option<(u64, MailReceiver<String>)> {
        let mut all = self.lock();
        if all.len() >= WATCHERS_MAX {
            return None;
        }
        let (lines, receiver) = mailbox(LINES_MAX);
        let number = all.last().map_or(1, |last| last.number + 1);
        all.push(Watcher { number, watch, lines, skipped: 0 });
        self.count.store(all.len(), Relaxed);
        Some((number, receiver))
    }

    /// One less.
    pub(super) fn remove(&self, number: u64) {
        let mut all = self.lock();
        all.retain(|watcher| watcher.number != number);
        self.count.store(all.len(), Relaxed);
    }

    /// A command met a key.
    pub(super) fn saw(&self, key: &[u8], event: Event) {
        let (kind, happened, status) = match event {
            Event::Get(hit) => ("fetchers", "item_get", if hit { "found" } else { "not_found" }),
            Event::Touch(hit) => ("fetchers", "item_touch", if hit { "found" } else { "not_found" }),
            Event::Set => ("mutations", "item_store", "asked"),
            Event::Delete(hit) => ("mutations", "item_delete", if hit { "found" } else { "not_found" }),
            Event::Increment(hit) => ("mutations", "item_incr", if hit { "found" } else { "not_found" }),
            Event::Decrement(hit) => ("mutations", "item_decr", if hit { "found" } else { "not_found" }),
            _ => return,
        };
        self.tell(kind, &format_args!("type={happened} key={} status={status}", Escaped(key)));
    }

    /// Something of the kind `kind` (one of [`Watch::NAMES`]) happened.
    pub(super) fn tell(&self, kind: &str, what: &dyn Display) {
        if !self.any() {
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
            // It is full, or its connection is about to remove it.
            match watcher.lines.try_send(line) {
                Ok(()) => {
                    watcher.skipped = 0;
                    self.sent.fetch_add(1, Relaxed);
                }
                Err(_) => {
                    watcher.skipped += 1;
                    self.skipped.fetch_add(1, Relaxed);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Watcher>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

    fn watch(names: &[&str]) -> Watch {
        let bit = |name| Watch::NAMES.iter().position(|known| known == name).expect("a known name");
        Watch { bits: names.iter().map(|name| 1 << bit(name)).sum() }
    }

    #[test]
    fn a_watcher_is_told_what_it_asked_for_and_what_it_missed() {
        let world = engine::sim::World::new(1, engine::sim::SimConfig::default());
        let lines = world.run_until(async {
            let watchers = Watchers::default();
            watchers.saw(b"nobody", Event::Get(true));
            let (number, lines) = watchers.add(watch(&["fetchers"])).expect("room");
            for number in 0..LINES_MAX + 3 {
                watchers.saw(format!("a b{number}").as_bytes(), Event::Get(number % 2 == 0));
                watchers.saw(b"k", Event::Set);
            }
            let mut got = Vec::new();
            got.extend(lines.recv().await);
            watchers.saw(b"last", Event::Touch(true));
            while got.len() < LINES_MAX + 1 {
                got.extend(lines.recv().await);
            }
            assert_eq!(watchers.counts(), (1, LINES_MAX as u64 + 1, 3));
            watchers.remove(number);
            watchers.reset();
            assert_eq!(watchers.counts(), (0, 0, 0));
            got
        });
        let lines = lines.expect("no stall");
        let end =
            |line: &str| line.split_once(" gid=").and_then(|(_, rest)| rest.split_once(' ')).map(|p| p.1.to_owned());
        assert_eq!(end(&lines[0]).as_deref(), Some("type=item_get key=a%20b0 status=found\n"));
        assert_eq!(end(&lines[1]).as_deref(), Some("type=item_get key=a%20b1 status=not_found\n"));
        let last = lines.last().expect("many");
        assert!(last.starts_with("skipped=3 ts="), "{last}");
        assert_eq!(end(last).as_deref(), Some("type=item_touch key=last status=found\n"));
    }

    #[test]
    fn there_are_so_many_watchers_and_no_more() {
        let watchers = Watchers::default();
        let all: Vec<_> = (0..WATCHERS_MAX).map(|_| watchers.add(watch(&["evictions"])).expect("room")).collect();
        assert!(watchers.add(watch(&["evictions"])).is_none());
        watchers.remove(all[3].0);
        let (number, _) = watchers.add(watch(&["evictions"])).expect("room");
        assert!(all.iter().all(|(other, _)| *other != number));
    }
}
