//! `lru_crawler`. Nothing crawls here: what expired goes when its room is wanted. Answers are memcached's all the same, for scripts
//! that turn it off look at them, and `metadump` is served while it is on, as there.

use super::admin::{BAD_FORMAT, Line};
use super::{Context, Control, Dump, Flow, Server, Session};
use crate::protocol::number::unsigned_32;
use crate::protocol::tokens::Tokens;
use crate::slot::Slots;

/// Items of one class are told of: there are no classes of size here, so there is one.
pub(crate) const CLASS: u32 = 1;
/// The highest class of size that memcached may have.
pub(super) const CLASS_MAX: u32 = 63;

impl<S: Slots> Session<S> {
    pub(super) fn lru_crawler<V: Server>(&mut self, context: Context<'_, S, V>, tokens: &Tokens<'_>) -> Flow<S::Place> {
        let is_dump = tokens.len() == 3 && tokens.get(1) == b"metadump";
        let line = match is_dump.then(|| self.metadump(context.server, tokens.get(2))) {
            Some(Ok(dump)) => return Flow::Dump(dump),
            Some(Err(refusal)) => Err(refusal),
            None => lru_crawler(context.server, tokens),
        };
        match &line {
            Ok(line) => self.reply(false, line),
            Err(line) => self.reply(false, line),
        }
        Flow::Next(0)
    }

    fn metadump(&self, server: &impl Server, classes: &[u8]) -> Result<Dump, &'static str> {
        if !server.switches().crawls() {
            return Err(DISABLED);
        }
        if !self.rules.serves_dump {
            return Err("ERROR metadump not allowed");
        }
        let has_items = classes == b"hash" || has_ours(classes)?;
        Ok(Dump { has_items })
    }
}

const DISABLED: &str = "CLIENT_ERROR lru crawler disabled";

fn lru_crawler(server: &impl Server, tokens: &Tokens<'_>) -> Line {
    let value = tokens.get(2);
    match (tokens.len(), tokens.get(1)) {
        (3, b"crawl") if !server.switches().crawls() => Err(DISABLED),
        (3, b"crawl") if value == b"hash" => Err("ERROR an unknown error happened"),
        (3, b"crawl") => has_ours(value).map(|_| "OK".to_owned()),
        (3, b"tocrawl") => unsigned_32(value).map(|count| server.control(Control::CrawlCount(count))).ok_or(BAD_FORMAT),
        (3, b"sleep") => match unsigned_32(value) {
            None => Err(BAD_FORMAT),
            Some(1_000_001..) => Err("CLIENT_ERROR sleep must be one second or less"),
            Some(microseconds) => Ok(server.control(Control::CrawlSleep(microseconds))),
        },
        (2, b"enable") if server.switches().crawls() => Err("ERROR failed to start lru crawler thread"),
        (2, b"enable" | b"disable") => {
            server.switches().set_crawls(tokens.get(1) == b"enable");
            Ok("OK".to_owned())
        }
        _ => Err("ERROR"),
    }
}

/// Whether these classes (`all`, or numbers with commas between) have the one there is.
fn has_ours(classes: &[u8]) -> Result<bool, &'static str> {
    if classes == b"all" {
        return Ok(true);
    }
    let mut ours = None;
    for class in classes.split(|&byte| byte == b',').filter(|class| !class.is_empty()) {
        let class = unsigned_32(class).filter(|class| (1..=CLASS_MAX).contains(class));
        let class = class.ok_or("BADCLASS invalid class id")?;
        ours = Some(ours.unwrap_or(false) || class == CLASS);
    }
    ours.ok_or("NOTSTARTED no items to crawl")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_a_word_or_numbers() {
        let bad = Err("BADCLASS invalid class id");
        for (classes, ours) in [
            (&b"all"[..], Ok(true)),
            (b"1", Ok(true)),
            (b"+1", Ok(true)),
            (b"3,1", Ok(true)),
            (b",1,,2,", Ok(true)),
            (b"2", Ok(false)),
            (b",", Err("NOTSTARTED no items to crawl")),
            (b"0", bad),
            (b"-1", bad),
            (b"64", bad),
            (b"1,x", bad),
            (b"all,1", bad),
        ] {
            assert_eq!(has_ours(classes), ours, "{classes:?}");
        }
    }
}
