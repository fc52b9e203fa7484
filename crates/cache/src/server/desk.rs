//! What a session asks of its server: counting, statistics, and what administrators change.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::counters::Counters;
use super::holdings::Holdings;
use super::shared::{Shared, TELLS_COMMANDS};
use super::statistics;
use super::watch::KEYS;
use crate::protocol::item_bytes;
use crate::session::{CLASS, Control, Event, Happening, Server, Stats, Switches};

/// Bytes of `stats cachedump`, as in memcached.
const DUMP_BYTES_MAX: usize = 2 << 20;
/// Sizes within so many bytes are told as one, as in memcached.
const SIZE_STEP: usize = 32;

/// The server of one thread's sessions.
pub struct Desk<S> {
    slots: Arc<S>,
    shared: Arc<Shared>,
    counters: Arc<Counters>,
}

impl<S> Desk<S> {
    /// For the sessions of the thread whose counters these are.
    pub fn new(slots: Arc<S>, shared: Arc<Shared>, counters: Arc<Counters>) -> Desk<S> {
        Desk { slots, shared, counters }
    }
}

impl<S: Holdings> Desk<S> {
    /// How many items in memory there are of each size, in steps of 32 bytes. Nothing is counted before it is asked for: all items
    /// are looked at then, and the thread's other connections wait.
    fn sizes(&self, tell: &mut dyn FnMut(&str, &dyn std::fmt::Display)) {
        let now = self.shared.now();
        let mut counts = BTreeMap::<usize, u64>::new();
        let mut rest = Some(S::Scan::default());
        while let Some(at) = rest {
            rest = self.slots.scan(at, now.at, &mut |item| {
                let bytes = item_bytes(item.key.len(), item.meta.flags, item.value_bytes);
                *counts.entry(bytes.next_multiple_of(SIZE_STEP)).or_default() += 1;
            });
        }
        counts.iter().for_each(|(bytes, count)| tell(&bytes.to_string(), count));
    }
}

impl<S: Holdings> Server for Desk<S> {
    fn count(&self, event: Event) {
        self.counters.count(event);
    }

    fn stats(&self, stats: Stats<'_>, tell: &mut dyn FnMut(&str, &str)) -> bool {
        let mut tell = |name: &str, value: &dyn std::fmt::Display| tell(name, &value.to_string());
        let since_reset = || self.shared.since_reset(self.slots.figures());
        match stats {
            Stats::General => statistics::general(&self.shared, &since_reset(), &mut tell),
            Stats::Settings => statistics::settings(&self.shared, &self.slots.figures(), &mut tell),
            Stats::Connections => statistics::connections(&self.shared, &mut tell),
            // There is no extstore: flash tells of itself in the general statistics.
            Stats::Extstore => {}
            Stats::Named(b"items") => statistics::items(&since_reset().1, &mut tell),
            Stats::Named(b"slabs") => statistics::slabs(&since_reset(), &mut tell),
            Stats::Named(b"sizes") => self.sizes(&mut tell),
            Stats::Named(_) => return false,
        }
        true
    }

    fn reset_stats(&self) {
        self.shared.reset(self.slots.figures());
    }

    fn is_watched(&self) -> bool {
        self.shared.watchers().wants(KEYS)
    }

    fn happened(&self, connection: u64, key: &[u8], what: Happening) {
        self.shared.watchers().happened(connection, key, what);
    }

    fn counts_prefixes(&self) -> bool {
        self.shared.prefixes().is_on()
    }

    fn set_counts_prefixes(&self, on: bool) {
        self.shared.prefixes().set(on);
    }

    fn count_prefix(&self, key: &[u8], event: Event) {
        self.shared.prefixes().count(key, event);
    }

    fn prefixes(&self) -> String {
        self.shared.prefixes().dump()
    }

    fn cache_dump(&self, class: u32, limit: u32) -> String {
        let (mut text, mut lines) = (String::new(), 0);
        let mut rest = (class == CLASS).then(S::Scan::default);
        let now = self.shared.now();
        while let Some(at) = rest {
            rest = self.slots.scan(at, now.at, &mut |item| {
                let has_room = text.len() < DUMP_BYTES_MAX && (limit == 0 || lines < limit);
                if has_room {
                    lines += 1;
                    let key = String::from_utf8_lossy(item.key);
                    let expires = statistics::unix(item.meta.expires, now.began).unwrap_or(0);
                    let written = write!(text, "ITEM {key} [{} b; {expires} s]\r\n", item.value_bytes);
                    written.expect("invariant: a string takes all that is written to it");
                }
            });
            if text.len() >= DUMP_BYTES_MAX || limit != 0 && lines >= limit {
                break;
            }
        }
        text
    }

    fn control(&self, control: Control) -> String {
        let text = match control {
            Control::Verbosity(level) => {
                self.shared.set_verbosity(level);
                "OK"
            }
            Control::MemoryLimit(mebibytes) => {
                let least = self.slots.budget().limit_min().div_ceil(1 << 20);
                if (mebibytes as usize) < least {
                    return format!("MEMLIMIT_TOO_SMALL cannot set maxbytes to less than {least}m");
                }
                self.slots.set_memory_limit((mebibytes as usize) << 20);
                "OK"
            }
            // One queue order is as good as the other to clients; there is no crawler and there are no slabs to be moved, so what
            // would tune them has nothing to act on.
            Control::LruSegmented(_) | Control::LruTune(..) | Control::LruTemporary(_) => "OK",
            Control::SlabsAutomove(_) | Control::SlabsAutomoveRatio(_) => "OK",
            Control::CrawlCount(_) | Control::CrawlSleep(_) => "OK",
            Control::RefreshCertificates => match self.shared.refresh_certificates() {
                Ok(()) => "OK",
                Err(error) => return format!("SERVER_ERROR {error}"),
            },
        };
        text.to_owned()
    }

    fn switches(&self) -> &Switches {
        self.shared.switches()
    }

    fn tells_commands(&self) -> bool {
        self.shared.verbosity() >= TELLS_COMMANDS
    }

    fn tell_command(&self, connection: u64, line: &str, answer: Option<&str>) {
        tracing::debug!("<{connection} {line}");
        if let Some(answer) = answer {
            tracing::debug!(">{connection} {answer}");
        }
    }

    fn may_watch(&self) -> bool {
        self.shared.watchers().has_room()
    }

    fn shut_down(&self, gracefully: bool) {
        self.shared.shut_down(gracefully);
    }
}
