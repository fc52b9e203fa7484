//! What is said before commands are: options and their answers, up to the export that a client chooses.
//!
//! Fixed newstyle alone: oldstyle can refuse nothing, and no client that is still kept speaks it.

use std::rc::Rc;

use crate::export::Export;
use crate::wire::{IHAVEOPT, NBDMAGIC, OPTION_BYTES_MAX};
use crate::wire::{NAME_BYTES_MAX, answer, eight, four, handshake, info, option, option_reply};

/// Bytes of an option's head.
pub(crate) const OPTION_HEAD_BYTES: usize = 16;

/// What the server says first.
pub(crate) fn greeting() -> Vec<u8> {
    let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
    [&NBDMAGIC.to_be_bytes()[..], &IHAVEOPT.to_be_bytes(), &flags.to_be_bytes()].concat()
}

/// An option's number and the bytes of its data; `None` where the client speaks something else.
pub(crate) fn option_head(bytes: &[u8; OPTION_HEAD_BYTES]) -> Option<(u32, u32)> {
    (eight(bytes) == IHAVEOPT).then(|| (four(&bytes[8..]), four(&bytes[12..])))
}

/// What follows an option.
pub(crate) enum Next {
    /// Another option.
    Option,
    /// TLS begins with the next byte.
    Tls,
    /// Commands.
    Commands(Rc<Export>),
    /// The connection ends.
    End,
}

/// A client that has not chosen its export yet.
pub(crate) struct Negotiation<'a> {
    exports: &'a [Rc<Export>],
    /// TLS is offered, and so required, and has not begun.
    tls_due: bool,
    no_zeroes: bool,
    /// Replies are structured.
    pub structured: bool,
}

impl<'a> Negotiation<'a> {
    /// By these flags of the client; `None` where it wants what was not offered.
    pub fn new(exports: &'a [Rc<Export>], flags: u32, tls: bool) -> Option<Negotiation<'a>> {
        let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        let fixed = flags & u32::from(handshake::FIXED_NEWSTYLE) != 0;
        let no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
        (flags & !known == 0 && fixed).then_some(Negotiation { exports, tls_due: tls, no_zeroes, structured: false })
    }

    /// TLS has begun: what was said before no longer counts.
    pub fn secured(&mut self) {
        self.tls_due = false;
        self.structured = false;
    }

    /// The answer to an option whose data is too long to be read.
    pub fn too_big(&self, option: u32) -> Vec<u8> {
        let why = format!("an option has at most {OPTION_BYTES_MAX} bytes");
        option_reply(option, answer::TOO_BIG, why.as_bytes())
    }

    /// Answers an option.
    pub fn answer(&mut self, option: u32, data: &[u8]) -> (Vec<u8>, Next) {
        let refuse = |kind: u32, why: &str| (option_reply(option, kind, why.as_bytes()), Next::Option);
        let ack = || (option_reply(option, answer::ACK, &[]), Next::Option);
        match option {
            option::ABORT => (option_reply(option, answer::ACK, &[]), Next::End),
            option::STARTTLS if !data.is_empty() => refuse(answer::INVALID, "STARTTLS has no data"),
            option::STARTTLS if self.tls_due => (option_reply(option, answer::ACK, &[]), Next::Tls),
            option::STARTTLS => refuse(answer::POLICY, "there is no TLS here, or it has begun already"),
            // It can't be refused but by the end.
            option::EXPORT_NAME if self.tls_due => (Vec::new(), Next::End),
            _ if self.tls_due => refuse(answer::TLS_REQUIRED, "begin TLS first"),
            option::EXPORT_NAME => self.by_name(data),
            option::LIST if !data.is_empty() => refuse(answer::INVALID, "LIST has no data"),
            option::LIST => (self.list(), Next::Option),
            option::INFO | option::GO => match self.described(option, data) {
                Ok((text, export)) if option == option::GO => (text, Next::Commands(export)),
                Ok((text, _)) => (text, Next::Option),
                Err((kind, why)) => refuse(kind, &why),
            },
            option::STRUCTURED_REPLY if !data.is_empty() => refuse(answer::INVALID, "STRUCTURED_REPLY has no data"),
            option::STRUCTURED_REPLY => {
                self.structured = true;
                ack()
            }
            // There are no contexts: none is listed, none selected.
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT if !self.structured => {
                refuse(answer::INVALID, "ask for structured replies first")
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                match context_query(data).map(|name| self.find(name)) {
                    Ok(Some(_)) => ack(),
                    Ok(None) => refuse(answer::UNKNOWN, "there is no such export"),
                    Err(why) => refuse(answer::INVALID, why),
                }
            }
            _ => refuse(answer::UNSUPPORTED, "unknown option"),
        }
    }

    /// The export of this name; an empty one means the only one, or the first.
    fn find(&self, name: &str) -> Option<&Rc<Export>> {
        if name.is_empty() { self.exports.first() } else { self.exports.iter().find(|export| export.name() == name) }
    }

    fn by_name(&self, data: &[u8]) -> (Vec<u8>, Next) {
        let Some(export) = std::str::from_utf8(data).ok().and_then(|name| self.find(name)) else {
            return (Vec::new(), Next::End);
        };
        let mut bytes = [&export.bytes().to_be_bytes()[..], &export.flags(self.structured).to_be_bytes()].concat();
        bytes.resize(bytes.len() + if self.no_zeroes { 0 } else { 124 }, 0);
        (bytes, Next::Commands(export.clone()))
    }

    fn list(&self) -> Vec<u8> {
        let listed = self.exports.iter().flat_map(|export| {
            let name = export.name().as_bytes();
            let data = [&(name.len() as u32).to_be_bytes()[..], name, export.description().as_bytes()].concat();
            option_reply(option::LIST, answer::SERVER, &data)
        });
        listed.chain(option_reply(option::LIST, answer::ACK, &[])).collect()
    }

    /// INFO and GO: a name, and the kinds of information that are asked for.
    fn described(&self, option: u32, data: &[u8]) -> Result<(Vec<u8>, Rc<Export>), (u32, String)> {
        let malformed = || (answer::INVALID, "its data is no name and list of kinds".to_owned());
        let (name, rest) = text(data).ok_or_else(malformed)?;
        let kinds = rest
            .split_at_checked(2)
            .filter(|(count, kinds)| kinds.len() == 2 * usize::from(u16::from_be_bytes([count[0], count[1]])));
        let (_, kinds) = kinds.ok_or_else(malformed)?;
        let unknown = || (answer::UNKNOWN, "there is no such export; LIST names all".to_owned());
        let export = self.find(name).ok_or_else(unknown)?;
        let mut text = Vec::new();
        let mut tell = |kind: u16, content: &[u8]| {
            text.extend(option_reply(option, answer::INFO, &[&kind.to_be_bytes()[..], content].concat()));
        };
        let size = [&export.bytes().to_be_bytes()[..], &export.flags(self.structured).to_be_bytes()].concat();
        tell(info::EXPORT, &size);
        // Told whether asked for or not: whoever heeds them is faster.
        let sizes: Vec<u8> = export.block_sizes().into_iter().flat_map(u32::to_be_bytes).collect();
        tell(info::BLOCK_SIZE, &sizes);
        // Each once, however often it is asked for.
        for (kind, content) in [(info::NAME, export.name()), (info::DESCRIPTION, export.description())] {
            if kinds.chunks_exact(2).any(|asked| asked == kind.to_be_bytes()) {
                tell(kind, content.as_bytes());
            }
        }
        text.extend(option_reply(option, answer::ACK, &[]));
        Ok((text, export.clone()))
    }
}

/// A text with its length before it, and what follows.
fn text(data: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = data.split_at_checked(4)?;
    let (text, rest) = rest.split_at_checked(four(length) as usize)?;
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= NAME_BYTES_MAX)?;
    Some((text, rest))
}

/// The name of the export in a query of contexts, whose form is looked at.
fn context_query(data: &[u8]) -> Result<&str, &'static str> {
    const MALFORMED: &str = "its data is no name and list of queries";
    let (name, rest) = text(data).ok_or(MALFORMED)?;
    let (count, mut rest) = rest.split_at_checked(4).ok_or(MALFORMED)?;
    for _ in 0..four(count) {
        (_, rest) = text(rest).ok_or(MALFORMED)?;
    }
    if rest.is_empty() { Ok(name) } else { Err(MALFORMED) }
}
