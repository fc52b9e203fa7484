//! The flags of meta commands: each a character, some with a token behind it, each at most once.

use super::number::{signed_32, unsigned, unsigned_32};
use super::tokens::Tokens;
use super::{Now, base64::DecodedKey};
use crate::item::Seconds;

/// Tokens of a meta command, the name and the key among them: memcached's limit without the one that ends them.
pub const META_TOKENS_MAX: usize = 19;
/// Bytes of an opaque token with its `O`.
pub const OPAQUE_BYTES_MAX: usize = 32;

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";

/// What the flags of a command say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags {
    /// `b`: the key, which was in base64.
    pub binary_key: Option<DecodedKey>,
    /// `q`: nobody wants the usual answer.
    pub quiet: bool,
    /// `v`: the value is wanted.
    pub value: bool,
    /// `u`: this is no access.
    pub no_update: bool,
    /// `I`: a stale item is marked, or taken.
    pub stale: bool,
    /// `N`: what is missing is made, and expires then.
    pub vivify: Option<Seconds>,
    /// `T`: the expiry.
    pub expires: Option<Seconds>,
    /// `R`: what expires before is to be recached.
    pub recache: Option<Seconds>,
    /// `F`: the client's flags.
    pub client_flags: u32,
    /// `C`: the cas that the item has to have.
    pub cas: Option<u64>,
    /// `M`: the mode.
    pub mode: Option<u8>,
    /// `J`: where counting begins.
    pub initial: u64,
    /// `D`: by how much to count.
    pub delta: Option<u64>,
}

impl Flags {
    /// Reads the flags from token `first` on.
    ///
    /// # Errors
    /// memcached's answer.
    pub fn parse(tokens: &Tokens<'_>, first: usize, now: Now) -> Result<Flags, &'static str> {
        let mut flags = Flags::default();
        let mut seen = 0u128;
        let mut error = None;
        for token in tokens.from(first) {
            let name = token[0];
            if name >= 127 || seen & 1 << name != 0 {
                return Err("CLIENT_ERROR duplicate flag");
            }
            seen |= 1 << name;
            match flags.take(name, token, tokens.get(1), now) {
                Ok(()) => {}
                Err(Bad::Unknown) => return Err("CLIENT_ERROR invalid flag"),
                // The last one is told; of `F` memcached tells nothing of its own.
                Err(Bad::Value(told)) => error = Some(told.or(error.flatten())),
            }
        }
        match error {
            None => Ok(flags),
            Some(told) => Err(told.unwrap_or("CLIENT_ERROR bad command line format")),
        }
    }

    fn take(&mut self, name: u8, token: &[u8], key: &[u8], now: Now) -> Result<(), Bad> {
        let rest = &token[1..];
        let bad = |told| Bad::Value(Some(told));
        let time = || signed_32(rest).map(|given| now.expiry(i64::from(given))).ok_or(bad(BAD_TOKEN));
        match name {
            b'b' => {
                self.binary_key = Some(DecodedKey::decode(key).ok_or(bad("CLIENT_ERROR error decoding key"))?);
            }
            b'N' => self.vivify = Some(time()?),
            b'T' => self.expires = Some(time()?),
            b'R' => self.recache = Some(time()?),
            b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' => {}
            b'v' => self.value = true,
            b'u' => self.no_update = true,
            b'q' => self.quiet = true,
            b'F' => self.client_flags = unsigned_32(rest).ok_or(Bad::Value(None))?,
            b'C' => self.cas = Some(unsigned(rest).ok_or(bad(BAD_TOKEN))?),
            b'M' if rest.len() == 1 => self.mode = Some(rest[0]),
            b'M' => return Err(bad("CLIENT_ERROR incorrect length for M token")),
            b'J' => self.initial = unsigned(rest).ok_or(bad("CLIENT_ERROR invalid numeric initial value"))?,
            b'D' => self.delta = Some(unsigned(rest).ok_or(bad("CLIENT_ERROR invalid numeric delta value"))?),
            b'I' => self.stale = true,
            _ => return Err(Bad::Unknown),
        }
        Ok(())
    }
}

enum Bad {
    Unknown,
    Value(Option<&'static str>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[u8]) -> Result<Flags, &'static str> {
        Flags::parse(&Tokens::split(line), 2, Now { at: Seconds(50), began: 0 })
    }

    #[test]
    fn flags_and_their_tokens() {
        let flags = parse(b"mg key v q T30 C12 MS D5").expect("all is well");
        assert!(flags.value && flags.quiet && !flags.stale);
        assert_eq!((flags.expires, flags.cas, flags.mode), (Some(Seconds(80)), Some(12), Some(b'S')));
        assert_eq!(flags.delta, Some(5));
    }

    #[test]
    fn errors_are_memcacheds() {
        let error = |line: &[u8]| parse(line).expect_err("it is wrong");
        assert_eq!(error(b"mg key v v"), "CLIENT_ERROR duplicate flag");
        assert_eq!(error(b"mg key \xffv"), "CLIENT_ERROR duplicate flag");
        assert_eq!(error(b"mg key S"), "CLIENT_ERROR invalid flag");
        assert_eq!(error(b"mg key Tx"), BAD_TOKEN);
        assert_eq!(error(b"mg key Fx"), "CLIENT_ERROR bad command line format");
        assert_eq!(error(b"mg key Tx Fx"), BAD_TOKEN);
        assert_eq!(error(b"mg key b"), "CLIENT_ERROR error decoding key");
        assert_eq!(error(b"mg key M"), "CLIENT_ERROR incorrect length for M token");
    }
}
