//! Replies to meta commands: the tokens that the flags ask for, in the order of the flags.

use crate::item::{Cas, Key, Meta, NEVER, Seconds};
use crate::protocol::meta::{Flags, OPAQUE_BYTES_MAX};
use crate::protocol::number::{Decimal, push};
use crate::protocol::tokens::Tokens;
use crate::protocol::{Now, base64};

pub(super) const OPAQUE_TOO_LONG: &str = "CLIENT_ERROR opaque token too long";

/// A line that ends a command. In the protocol's own sense it is an error, and is sent although nobody wants replies.
pub(super) type Refused = &'static str;

/// Some opaque token is over its limit.
pub(super) fn has_long_opaque(tokens: &Tokens<'_>, first: usize) -> bool {
    tokens.from(first).iter().any(|token| token[0] == b'O' && token.len() > OPAQUE_BYTES_MAX)
}

pub(super) fn push_token(text: &mut Vec<u8>, token: &[u8]) {
    text.push(b' ');
    text.extend_from_slice(token);
}

pub(super) fn push_number(text: &mut Vec<u8>, name: u8, number: u64) {
    text.extend_from_slice(&[b' ', name]);
    push(text, number);
}

pub(super) fn push_key(text: &mut Vec<u8>, key: &Key<'_>, is_binary: bool) {
    text.extend_from_slice(b" k");
    if is_binary {
        base64::encode(text, key.bytes());
        text.extend_from_slice(b" b");
    } else {
        text.extend_from_slice(key.bytes());
    }
}

/// The reply to `mg` or `ma` that is being made. Flags act in the order in which they came: a `t` behind a `T` tells the new time.
pub(super) struct Telling<'a> {
    pub text: &'a mut Vec<u8>,
    pub key: &'a Key<'a>,
    pub flags: &'a Flags,
    pub now: Now,
    pub length: usize,
    /// The item was made by this command.
    pub made: bool,
}

/// What the flags came to.
pub(super) struct Told {
    pub expires: Seconds,
    pub won: bool,
    pub refused: Option<Refused>,
}

impl Telling<'_> {
    fn code(&mut self) {
        if self.flags.value {
            self.text.extend_from_slice(b"VA ");
            push(self.text, self.length as u64);
        } else {
            self.text.extend_from_slice(b"HD");
        }
    }

    /// What `mg` and `ma` have in common. False: the token is none of it.
    fn common(&mut self, token: &[u8], expires: &mut Seconds, cas: Cas) -> bool {
        match token[0] {
            b'T' => *expires = self.flags.expires.unwrap_or(*expires),
            b'N' if self.made => *expires = self.flags.vivify.unwrap_or(*expires),
            b't' if *expires == NEVER => self.text.extend_from_slice(b" t-1"),
            // An expiry in the past wraps around, as in memcached.
            b't' => push_number(self.text, b't', u64::from(expires.0.wrapping_sub(self.now.at.0))),
            b'c' => push_number(self.text, b'c', cas.0),
            b'O' => push_token(self.text, token),
            _ => return false,
        }
        true
    }

    /// Of `mg`.
    pub fn hit(mut self, tokens: &Tokens<'_>, meta: Meta) -> Told {
        self.code();
        let mut expires = meta.expires;
        let mut wins = false;
        for token in tokens.from(2) {
            if token[0] == b'O' && token.len() > OPAQUE_BYTES_MAX {
                return Told { expires, won: meta.won, refused: Some(OPAQUE_TOO_LONG) };
            }
            if self.common(token, &mut expires, meta.cas) {
                wins |= token[0] == b'N' && self.made;
                continue;
            }
            match token[0] {
                b'R' if !meta.won && !self.made && expires != NEVER => {
                    wins |= self.flags.recache.is_some_and(|recache| expires < recache);
                }
                b's' => push_number(self.text, b's', self.length as u64),
                b'f' => push_number(self.text, b'f', u64::from(meta.flags)),
                b'l' => {
                    let idle = self.now.at.0.saturating_sub(meta.accessed.0);
                    push_number(self.text, b'l', u64::from(idle));
                }
                b'h' => push_number(self.text, b'h', u64::from(meta.fetched)),
                b'k' => push_key(self.text, self.key, meta.binary_key),
                _ => {}
            }
        }
        if meta.won {
            self.text.extend_from_slice(b" Z");
        }
        if meta.stale {
            self.text.extend_from_slice(b" X");
            wins |= !meta.won;
        }
        if wins {
            self.text.extend_from_slice(b" W");
        }
        self.text.extend_from_slice(b"\r\n");
        Told { expires, won: meta.won || wins, refused: None }
    }

    /// Of `ma`.
    pub fn number(mut self, tokens: &Tokens<'_>, meta: Meta, digits: Decimal) -> Told {
        self.code();
        let mut expires = meta.expires;
        for token in tokens.from(2) {
            if token[0] == b'O' && token.len() > OPAQUE_BYTES_MAX {
                return Told { expires, won: meta.won, refused: Some(OPAQUE_TOO_LONG) };
            }
            if !self.common(token, &mut expires, meta.cas) && token[0] == b'k' {
                push_key(self.text, self.key, self.flags.binary_key.is_some());
            }
        }
        self.text.extend_from_slice(b"\r\n");
        if self.flags.value {
            self.text.extend_from_slice(digits.bytes());
            self.text.extend_from_slice(b"\r\n");
        }
        Told { expires, won: meta.won, refused: None }
    }
}
