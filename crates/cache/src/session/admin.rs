//! What administrators ask for in the text protocol: statistics, settings, watching.

use super::crawler::CLASS_MAX;
use super::{Context, Control, Ending, Flow, Server, Session, Stats, Watch};
use crate::protocol::number::{fraction, signed_32, unsigned_32};
use crate::protocol::tokens::Tokens;
use crate::slot::Slots;

pub(super) const BAD_FORMAT: &str = super::text::BAD_FORMAT;
/// The highest class of size that a memcached of the usual options has.
const CLASS_USED_MAX: i32 = 39;
/// memcached's bounds of `cache_memlimit`, in MiB.
const MEMORY_MEBIBYTES_MIN: u32 = 8;
const MEMORY_MEBIBYTES_MAX: u32 = 1_000_000_000;

/// A line that answers, from here or from the server.
pub(super) type Line = Result<String, &'static str>;

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
            b"lru_crawler" => return self.lru_crawler(context, tokens),
            b"verbosity" if matches!(count, 2 | 3) => match unsigned_32(tokens.get(1)) {
                Some(level) => Ok(server.control(Control::Verbosity(level))),
                None => Err(BAD_FORMAT),
            },
            b"cache_memlimit" if matches!(count, 2 | 3) => memory_limit(server, tokens),
            b"lru" if count >= 2 => lru(server, tokens),
            b"slabs" => slabs(server, tokens),
            b"extstore" => extstore(tokens),
            b"refresh_certs" => Ok(server.control(Control::RefreshCertificates)),
            // Known, with other arguments.
            b"replace" | b"prepend" | b"flush_all" | b"verbosity" | b"lru" => return self.error(),
            _ => return self.unknown(name, tokens),
        };
        // Not all take it in memcached.
        let noreply = noreply && (name != b"slabs" || tokens.get(1) == b"automove");
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
        let told = told(server, stats, &mut |name, value| {
            text.push_str("STAT ");
            text.push_str(name);
            text.push(' ');
            text.push_str(value);
            text.push_str("\r\n");
        });
        match told {
            Told::Unknown => return self.reply(false, "ERROR"),
            Told::Whole => text.push_str("END\r\n"),
            Told::WithoutEnd => {}
        }
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
            Some((class, _)) if class > CLASS_MAX => "CLIENT_ERROR Illegal slab id",
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

/// How statistics were told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    Unknown,
    /// Their end is told behind them.
    Whole,
    /// Nothing is told behind them.
    WithoutEnd,
}

/// Tells statistics. `stats sizes` has to be turned on, and memcached tells no end of the answers to that.
pub(super) fn told(server: &impl Server, stats: Stats<'_>, tell: &mut dyn FnMut(&str, &str)) -> Told {
    let switches = server.switches();
    let status = |on: bool| if on { "enabled" } else { "disabled" };
    match stats {
        Stats::Named(name @ (b"sizes_enable" | b"sizes_disable")) => {
            switches.set_tracks_sizes(name == b"sizes_enable");
            tell("sizes_status", status(switches.tracks_sizes()));
            Told::WithoutEnd
        }
        Stats::Named(b"sizes") if !switches.tracks_sizes() => {
            tell("sizes_status", status(false));
            Told::Whole
        }
        stats if server.stats(stats, tell) => Told::Whole,
        _ => Told::Unknown,
    }
}

/// `extstore`: memcached takes all of these also without one. Flash has rules of its own, so that none has an effect.
fn extstore(tokens: &Tokens<'_>) -> Line {
    let number = unsigned_32(tokens.get(2));
    let is_valid = match tokens.get(1) {
        b"free_memchunks" => number.is_some_and(|class| class <= CLASS_MAX) && unsigned_32(tokens.get(3)).is_some(),
        b"item_size" | b"item_age" | b"low_ttl" | b"recache_rate" | b"compact_under" | b"drop_under" => {
            number.is_some()
        }
        b"max_sleep" | b"drop_unread" => number.is_some(),
        b"max_frag" => fraction(tokens.get(2)).is_some(),
        _ => false,
    };
    if is_valid { Ok("OK".to_owned()) } else { Err("ERROR") }
}

/// `slabs reassign`: what memcached says as long as no class has more than one page.
fn reassign((from, to): (i32, i32)) -> &'static str {
    let is_class = |class: i32| (0..=CLASS_USED_MAX).contains(&class);
    match from == to {
        true => "SAME src and dst class are identical",
        false if is_class(from) && is_class(to) => "NOSPARE source class has no spare pages",
        false => "BADCLASS invalid src or dst class id",
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
            Some(classes) => Err(reassign(classes)),
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
