//! Redis's glob patterns: `*`, `?`, `[a-z]`, `[^a]` and `\` before a literal.
//!
//! Invariants:
//! - Time is bounded by pattern x text. The obvious recursion takes exponential time on `a*a*a*…b`, and one client could stop a
//!   reactor with it.
//! - That product is still much where the text is a field of a hash, so matching goes on in steps, and whoever matches for a peer
//!   gives the reactor back between them ([`Pace`]).

use engine::time::{self, Instant};

use super::ROOM_TIME_MAX;

/// The longest pattern that is taken. Chosen: many times that of the longest key with each byte escaped.
pub const PATTERN_BYTES_MAX: usize = 16 << 10;
/// Bytes of the pattern that are looked at before the reactor is given back. Guessed: a fraction of a millisecond.
const STEPS_MAX: usize = 64 << 10;

/// Whether `text` as a whole matches `pattern`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    Matching::new(pattern, text).go_on(&mut { usize::MAX }) == Some(true)
}

/// A pattern that is being matched.
struct Matching<'a> {
    pattern: &'a [u8],
    text: &'a [u8],
    p: usize,
    t: usize,
    /// The last star, and how much text it has eaten: on a mismatch it eats one byte more. Earlier stars need no retry.
    star: Option<(usize, usize)>,
}

impl<'a> Matching<'a> {
    fn new(pattern: &'a [u8], text: &'a [u8]) -> Matching<'a> {
        Matching { pattern, text, p: 0, t: 0, star: None }
    }

    /// Whether it matches; `None`: `steps` bytes of the pattern have been looked at, and it is to go on.
    fn go_on(&mut self, steps: &mut usize) -> Option<bool> {
        while self.t < self.text.len() {
            if *steps == 0 {
                return None;
            }
            if self.pattern.get(self.p) == Some(&b'*') {
                self.p += 1;
                self.star = Some((self.p, self.t));
                *steps -= 1;
                continue;
            }
            let (used, is_match) = match_one(&self.pattern[self.p..], self.text[self.t]);
            *steps = steps.saturating_sub(used.max(1));
            if is_match {
                self.p += used;
                self.t += 1;
                continue;
            }
            let Some((after, eaten)) = self.star else { return Some(false) };
            (self.p, self.t) = (after, eaten + 1);
            self.star = Some((after, eaten + 1));
        }
        Some(self.pattern[self.p..].iter().all(|byte| *byte == b'*'))
    }
}

/// How fast many texts are matched for a peer.
pub(super) struct Pace {
    steps: usize,
    began: Instant,
}

impl Pace {
    pub(super) fn new() -> Pace {
        Pace { steps: STEPS_MAX, began: time::now() }
    }

    /// Whether `text` matches `pattern`; `None`: all of them have taken longer than a command may.
    pub(super) async fn matches(&mut self, pattern: &[u8], text: &[u8]) -> Option<bool> {
        let mut matching = Matching::new(pattern, text);
        loop {
            if let Some(matches) = matching.go_on(&mut self.steps) {
                return Some(matches);
            }
            if self.began.elapsed() > ROOM_TIME_MAX {
                return None;
            }
            engine::task::yield_now().await;
            self.steps = STEPS_MAX;
        }
    }
}

/// How many bytes the first element of `pattern` has, and whether it matches `byte`.
fn match_one(pattern: &[u8], byte: u8) -> (usize, bool) {
    match pattern {
        [] => (0, false),
        [b'?', ..] => (1, true),
        [b'\\', literal, ..] => (2, *literal == byte),
        [b'[', class @ ..] => {
            let (used, is_match) = match_class(class, byte);
            (used + 1, is_match)
        }
        [literal, ..] => (1, *literal == byte),
    }
}

/// A class behind its `[`. One without a `]` ends with the pattern, as in Redis.
fn match_class(class: &[u8], byte: u8) -> (usize, bool) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        at += match &class[at.min(class.len())..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', literal, ..] => {
                found |= *literal == byte;
                2
            }
            [low, b'-', high, ..] => {
                found |= (*low.min(high)..=*low.max(high)).contains(&byte);
                3
            }
            [literal, ..] => {
                found |= *literal == byte;
                1
            }
        };
    }
    (at, found != negated)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The plainest matcher of the part without classes: recursion.
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => slow(rest, text) || (!text.is_empty() && slow(pattern, &text[1..])),
            ([b'?', rest @ ..], [_, tail @ ..]) => slow(rest, tail),
            ([a, rest @ ..], [b, tail @ ..]) => a == b && slow(rest, tail),
            _ => false,
        }
    }

    #[test]
    fn redis_examples() {
        for (pattern, text, expected) in [
            ("h?llo", "hello", true),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hello", false),
            ("h[^e]llo", "hallo", true),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("h\\?llo", "h?llo", true),
            ("h\\?llo", "hello", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a[", "a", false),
            ("a[b", "ab", true),
            ("a[]", "ab", false),
            ("user:*:name", "user:12:name", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "a*".repeat(200) + "b";
        assert!(!matches(pattern.as_bytes(), &[b'a'; 4000]));
    }

    /// In the middle of a text too: one field of a hash has 64 MiB.
    #[test]
    fn matching_goes_on_in_steps() {
        let (pattern, text) = (format!("{}{}b", "*".repeat(1000), "a".repeat(100)), [b'a'; 4000]);
        let (mut matching, mut rounds) = (Matching::new(pattern.as_bytes(), &text), 0);
        while matching.go_on(&mut { 1000 }).is_none() {
            rounds += 1;
        }
        assert!((300..500).contains(&rounds), "{rounds}");
        let class = format!("*[{}]", "b".repeat(998));
        let mut matching = Matching::new(class.as_bytes(), &text);
        assert_eq!(
            (0..10).filter(|_| matching.go_on(&mut { 1000 }).is_none()).count(),
            10,
            "a class counts its length"
        );
    }

    proptest! {
        #[test]
        fn equals_the_plain_recursion(
            pattern in prop::collection::vec(prop::sample::select(&b"ab*?"[..]), 0..9),
            text in prop::collection::vec(prop::sample::select(&b"ab"[..]), 0..12),
        ) {
            prop_assert_eq!(matches(&pattern, &text), slow(&pattern, &text));
        }

        #[test]
        fn any_bytes_are_harmless(
            pattern in prop::collection::vec(any::<u8>(), 0..30),
            text in prop::collection::vec(any::<u8>(), 0..30),
        ) {
            matches(&pattern, &text);
        }
    }
}
