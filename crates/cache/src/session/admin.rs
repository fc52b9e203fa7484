//! What administrators ask for in the text protocol: statistics, settings, watching.

use super::{Context, Control, Dump, Ending, Flow, Server, Session, Stats, Watch};
use crate::protocol::number::{fraction, signed_32, unsigned_32};
use crate::protocol::tokens::Tokens;
use crate::slot::Slots;

const BAD_FORMAT: &str = super::text::BAD_FORMAT;
/// The highest number of a slab class in memcached, and one.
const CLASSES: u32 = 64;
/// memcached's bounds of `cache_memlimit`, in MiB.
const MEMORY_MEBIBYTES_MIN: u32 = 8;
const MEMORY_MEBIBYTES_MAX: u32 = 1_000_000_000;

/// A line that answers, from here or from the server.
type Line = Result<String, &'static str>;

impl<S: Slots> Session<S> {
    /// Runs a command of administrators, or says that there is none of this name.
    pub(super) fn administer<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        name: &[u8],
        tokens: &Tokens<'_>,
    ) -> Flow<S::Place> {
        let server = context.server;
        let noreply = tokens.noreply();
        let count = tokens.len();
        let line = match name {
            b"stats" => {
                self.stats(context, tokens);
                return Flow::Next(0);
            }
            b"watch" => return self.watch(server, tokens),
            b"shutdown" => return self.shutdown(context, tokens),
            b"lru_crawler" if count == 3 && tokens.get(1) == b"metadump" => {
                if self.rules.serves_dump {
                    return Flow::Dump(Dump { classes: tokens.get(2).to_vec() });
                }
                Err("ERROR metadump not allowed")
            }
            b"lru_crawler" => lru_crawler(server, tokens),
            b"verbosity" if matches!(count, 2 | 3) => match unsigned_32(tokens.get(1)) {
                Some(level) => Ok(server.control(Control::Verbosity(level))),
                None => Err(BAD_FORMAT),
            },
            b"cache_memlimit" if matches!(count, 2 | 3) => memory_limit(server, tokens),
            b"lru" if count >= 2 => lru(server, tokens),
            b"slabs" => slabs(server, tokens),
            b"extstore" if count >= 3 => Ok(server.control(Control::Extstore(tokens.from(1)))),
            b"refresh_certs" => Ok(server.control(Control::RefreshCertificates)),
            // Known, with other arguments.
            b"replace" | b"prepend" | b"flush_all" | b"verbosity" | b"lru" | b"extstore" => return self.error(),
            _ => return self.unknown(name, tokens),
        };
        // Not all take it in memcached.
        let noreply = noreply && name != b"lru_crawler" && (name != b"slabs" || tokens.get(1) == b"automove");
        match &line {
            Ok(line) => self.reply(noreply, line),
            Err(line) => self.reply(noreply, line),
        }
        Flow::Next(0)
    }

    fn stats<V: Server>(&mut self, context: Context<'_, S, V>, tokens: &Tokens<'_>) {
        let server = context.server;
        let stats = match tokens.get(1) {
            b"" => Stats::General,
            b"reset" => {
                server.reset_stats();
                return self.reply(false, "RESET");
            }
            b"detail" => return self.stats_detail(context, tokens.get(2)),
            b"cachedump" => return self.cache_dump(context, tokens),
            b"settings" => Stats::Settings,
            b"conns" => Stats::Connections,
            b"extstore" => Stats::Extstore,
            name => Stats::Named(name),
        };
        let mut text = String::new();
        let is_known = server.stats(stats, &mut |name, value| {
            text.push_str("STAT ");
            text.push_str(name);
            text.push(' ');
            text.push_str(value);
            text.push_str("\r\n");
        });
        if !is_known {
            return self.reply(false, "ERROR");
        }
        text.push_str("END\r\n");
        self.output.bytes(text.as_bytes());
    }

    fn stats_detail<V: Server>(&mut self, context: Context<'_, S, V>, what: &[u8]) {
        match what {
            b"on" | b"off" => {
                context.server.set_counts_prefixes(what == b"on");
                self.reply(false, "OK");
            }
            b"dump" => {
                self.output.bytes(context.server.prefixes().as_bytes());
                self.reply(false, "END");
            }
            _ => self.reply(false, "CLIENT_ERROR usage: stats detail on|off|dump"),
        }
    }

    fn cache_dump<V: Server>(&mut self, context: Context<'_, S, V>, tokens: &Tokens<'_>) {
        let numbers = unsigned_32(tokens.get(2)).zip(unsigned_32(tokens.get(3)));
        let refused = match numbers {
            _ if !self.rules.serves_dump => "CLIENT_ERROR stats cachedump not allowed",
            _ if tokens.len() < 4 => "CLIENT_ERROR bad command line",
            None => BAD_FORMAT,
            Some((class, _)) if class >= CLASSES => "CLIENT_ERROR Illegal slab id",
            Some((class, limit)) => {
                self.output.bytes(context.server.cache_dump(class, limit).as_bytes());
                "END"
            }
        };
        self.reply(false, refused);
    }

    fn watch(&mut self, server: &impl Server, tokens: &Tokens<'_>) -> Flow<S::Place> {
        let noreply = tokens.noreply();
        if !self.rules.serves_watch {
            self.reply(noreply, "CLIENT_ERROR watch commands not allowed");
            return Flow::Next(0);
        }
        let names = tokens.from(1);
        let mut watch = if names.is_empty() { Watch::FETCHERS } else { Watch::default() };
        if !names.iter().all(|name| watch.add(name)) {
            self.reply(noreply, "ERROR");
            return Flow::Next(0);
        }
        if !server.may_watch() {
            self.reply(noreply, "WATCHER_TOO_MANY log watcher limit reached");
            return Flow::Next(0);
        }
        self.reply(false, "OK");
        Flow::Watch(watch)
    }

    fn shutdown<V: Server>(&mut self, context: Context<'_, S, V>, tokens: &Tokens<'_>) -> Flow<S::Place> {
        let gracefully = match (tokens.len(), tokens.get(1)) {
            _ if !self.rules.serves_shutdown => {
                self.reply(false, "ERROR: shutdown not enabled");
                return Flow::Next(0);
            }
            (1, _) => false,
            (2, b"graceful") => true,
            _ => {
                self.reply(false, "CLIENT_ERROR invalid shutdown mode");
                return Flow::Next(0);
            }
        };
        context.server.shut_down(gracefully);
        Flow::Close(Ending::Shutdown)
    }
}

fn memory_limit(server: &impl Server, tokens: &Tokens<'_>) -> Line {
    match unsigned_32(tokens.get(1)) {
        None => Err("ERROR"),
        Some(..MEMORY_MEBIBYTES_MIN) => Err("MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m"),
        Some(mebibytes) if mebibytes > MEMORY_MEBIBYTES_MAX => {
            Err("MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes")
        }
        Some(mebibytes) => Ok(server.control(Control::MemoryLimit(mebibytes))),
    }
}

fn lru(server: &impl Server, tokens: &Tokens<'_>) -> Line {
    match tokens.get(1) {
        b"tune" if tokens.len() >= 6 => {
            let parts = unsigned_32(tokens.get(2)).zip(unsigned_32(tokens.get(3)));
            let factors = fraction(tokens.get(4)).zip(fraction(tokens.get(5)));
            let Some(((hot, warm), (hot_factor, warm_factor))) = parts.zip(factors) else { return Err("ERROR") };
            if hot.wrapping_add(warm) > 80 {
                return Err("ERROR hot and warm pcts must not exceed 80");
            }
            if hot_factor <= 0.0 || warm_factor <= 0.0 {
                return Err("ERROR hot/warm age factors must be greater than 0");
            }
            Ok(server.control(Control::LruTune(hot, warm, hot_factor, warm_factor)))
        }
        b"mode" if tokens.len() >= 3 => match tokens.get(2) {
            b"flat" => Ok(server.control(Control::LruSegmented(false))),
            b"segmented" => Ok(server.control(Control::LruSegmented(true))),
            _ => Err("ERROR"),
        },
        b"temp_ttl" if tokens.len() >= 3 => {
            signed_32(tokens.get(2)).map(|ttl| server.control(Control::LruTemporary(ttl))).ok_or("ERROR")
        }
        _ => Err("ERROR"),
    }
}

fn slabs(server: &impl Server, tokens: &Tokens<'_>) -> Line {
    match tokens.get(1) {
        b"reassign" if tokens.len() == 4 => match signed_32(tokens.get(2)).zip(signed_32(tokens.get(3))) {
            Some((from, to)) => Ok(server.control(Control::SlabsReassign(from, to))),
            None => Err(BAD_FORMAT),
        },
        b"automove" if tokens.len() >= 3 && tokens.get(2) == b"ratio" => {
            let ratio = fraction(tokens.get(3)).filter(|_| tokens.len() >= 4);
            ratio.map(|ratio| server.control(Control::SlabsAutomoveRatio(ratio))).ok_or("ERROR")
        }
        b"automove" if tokens.len() >= 3 => match unsigned_32(tokens.get(2)) {
            None => Err(BAD_FORMAT),
            Some(level @ 0..=2) => Ok(server.control(Control::SlabsAutomove(level))),
            Some(_) => Err("ERROR"),
        },
        _ => Err("ERROR"),
    }
}

fn lru_crawler(server: &impl Server, tokens: &Tokens<'_>) -> Line {
    let value = tokens.get(2);
    match (tokens.len(), tokens.get(1)) {
        (3, b"crawl") => Ok(server.control(Control::Crawl(value))),
        (3, b"tocrawl") => unsigned_32(value).map(|count| server.control(Control::CrawlCount(count))).ok_or(BAD_FORMAT),
        (3, b"sleep") => match unsigned_32(value) {
            None => Err(BAD_FORMAT),
            Some(1_000_001..) => Err("CLIENT_ERROR sleep must be one second or less"),
            Some(microseconds) => Ok(server.control(Control::CrawlSleep(microseconds))),
        },
        (2, b"enable") => Ok(server.control(Control::CrawlEnabled(true))),
        (2, b"disable") => Ok(server.control(Control::CrawlEnabled(false))),
        _ => Err("ERROR"),
    }
}
