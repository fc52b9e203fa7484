//! What somebody may do before it is known who he is.

use super::tests::{answers, request};
use super::{Authentication, Rules, UNKNOWN_COMMANDS_MAX, Users};
use crate::testing::PlainSlots;

fn users() -> Users {
    Users::parse("user:pass").expect("a colon")
}

fn text() -> Rules {
    Rules { authentication: Authentication::Text(users()), ..Rules::default() }
}

fn sasl() -> Rules {
    Rules { authentication: Authentication::Sasl(users()), ..Rules::default() }
}

#[test]
fn who_is_not_known_has_bodies_of_a_kibibyte() {
    let slots = PlainSlots::default();
    assert_eq!(answers(&slots, text(), b"set k 0 0 1024\r\n"), (String::new(), false));
    assert_eq!(answers(&slots, text(), b"set k 0 0 1025\r\n"), (String::new(), true));
    // It is passed over, and was answered before.
    let long = request(0x21, b"", b"PLAIN", b"", 1025);
    let (answer, is_closed) = answers(&slots, sasl(), &long);
    assert!(answer.ends_with("Auth failure.") && !is_closed, "{answer:?}");
    let right = request(0x21, b"", b"PLAIN", b"\0user\0pass", 10);
    assert!(answers(&slots, sasl(), &[&long[..], &[0; 1025], &right].concat()).0.ends_with("Authenticated"));
    assert_eq!(answers(&slots, sasl(), &request(0x21, b"", b"PLAIN", b"", 1024)).0, "");
}

/// 240 KB of `a\r\n` were answered by ten times as much, which nobody read.
#[test]
fn who_is_not_known_is_answered_little() {
    let slots = PlainSlots::default();
    let (answer, is_closed) = answers(&slots, text(), &b"a\r\n".repeat(80_000));
    assert!(is_closed && answer.len() < 4096, "{} bytes", answer.len());
    let version = request(0x0b, b"", b"", b"", 0);
    let (answer, is_closed) = answers(&slots, sasl(), &version.repeat(10_000));
    assert!(is_closed && answer.len() < 4096, "{} bytes", answer.len());
    // Who has a password has it after some tries, and then no such bound.
    let tries = b"a\r\n".repeat(usize::from(UNKNOWN_COMMANDS_MAX) - 1);
    let asked = [&tries[..], b"set u 0 0 9\r\nuser pass\r\n", &b"mn\r\n".repeat(1000)].concat();
    let (answer, is_closed) = answers(&slots, text(), &asked);
    assert!(!is_closed && answer.ends_with(&format!("STORED\r\n{}", "MN\r\n".repeat(1000))));
}
