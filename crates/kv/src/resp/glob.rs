//! Redis's glob patterns: `*`, `?`, `[a-z]`, `[^a]` and `\` before a literal.
//!
//! Invariant: time is bounded by pattern x text. The obvious recursion takes exponential time on `a*a*a*…b`, and one client
//! could stop a reactor with it.

/// Whether `text` as a whole matches `pattern`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The last star, and how much text it has eaten: on a mismatch it eats one byte more. Earlier stars need no retry.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        match match_one(&pattern[p..], text[t]) {
            Some(used) => {
                p += used;
                t += 1;
            }
            None => match star {
                Some((after, eaten)) => {
                    (p, t) = (after, eaten + 1);
                    star = Some((after, eaten + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// How many bytes of `pattern` match the single `byte`; `None` if they do not.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [b'[', class @ ..] => match_class(class, byte).map(|used| used + 1),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// A class behind its `[`. One without a `]` ends with the pattern, as in Redis.
fn match_class(class: &[u8], byte: u8) -> Option<usize> {
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
    (found != negated).then_some(at)
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
