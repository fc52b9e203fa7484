//! What memcached 1.6.18 reads and writes: numbers, tokens, flags and headers. Nothing here knows of items or connections.

pub mod base64;
pub mod binary;
pub mod meta;
pub mod number;
pub mod tokens;

use crate::item::{NEVER, Seconds};

/// The release of memcached that is followed; clients decide by it what they may send.
pub const VERSION: &str = "1.6.18";
/// Bytes of a line that may come without its end, but for `get` and `gets`: as in memcached. One that arrives whole may be longer.
pub const LINE_BYTES_MAX: usize = 2048;
/// Bytes of a `get` of many keys that are held at once; what is longer is answered in parts. Chosen: 4,000 of the longest keys;
/// memcached holds all.
pub const GET_BYTES_MAX: usize = 1 << 20;
/// An expiry above this many seconds is a moment since 1970, not a span from now: 30 days, as in memcached.
pub const SPAN_SECONDS_MAX: i64 = 60 * 60 * 24 * 30;
/// What memcached keeps of an item beside key, flags and value: its item limit counts it, so that the limit is met at the same
/// length of a value here (48 of the item, 8 of the cas, 1 behind the key, 2 behind the value).
pub const ITEM_OVERHEAD_BYTES: usize = 59;

/// An expiry that is always over.
const PAST: Seconds = Seconds(1);

/// The time of a step: whole seconds, as memcached's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// The time on the server's clock.
    pub at: Seconds,
    /// When that clock was 0, in seconds since 1970.
    pub began: u64,
}

impl Now {
    /// The moment that a client's expiry names: a span up to 30 days, a moment since 1970, or (below 0) the past.
    pub fn expiry(self, given: i64) -> Seconds {
        match given {
            0 => NEVER,
            ..0 => PAST,
            1..=SPAN_SECONDS_MAX => Seconds(self.at.0.saturating_add(given as u32)),
            // What is in the past is over, as is what lies before the clock's beginning.
            _ => given
                .checked_sub_unsigned(self.began)
                .filter(|&span| span > 0)
                .map_or(PAST, |span| Seconds(u32::try_from(span).unwrap_or(u32::MAX))),
        }
    }
}

/// Bytes of an item as memcached counts them against its item limit.
pub fn item_bytes(key_bytes: usize, flags: u32, value_bytes: usize) -> usize {
    key_bytes + value_bytes + ITEM_OVERHEAD_BYTES + if flags == 0 { 0 } else { size_of::<u32>() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_a_span_a_moment_or_past() {
        let now = Now { at: Seconds(100), began: 1_000_000_000 };
        assert_eq!(now.expiry(0), NEVER);
        assert_eq!(now.expiry(-1), PAST);
        assert_eq!(now.expiry(SPAN_SECONDS_MAX), Seconds(100 + 2_592_000));
        assert_eq!(now.expiry(SPAN_SECONDS_MAX + 1), PAST);
        assert_eq!(now.expiry(1_000_000_000), PAST);
        assert_eq!(now.expiry(1_000_000_007), Seconds(7));
        assert_eq!(now.expiry(i64::MAX), Seconds(u32::MAX));
    }
}
