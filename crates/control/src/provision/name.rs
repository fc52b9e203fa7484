//! Words that callers choose: names, addresses, request ids. A value that exists is well formed and short enough for a key.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Characters of a name. Derived: a label of DNS, which a name becomes part of in Kubernetes.
pub const NAME_CHARS_MAX: usize = 63;
/// Characters of an NVMe qualified name (NVMe Base 2.0c §4.5).
pub const NQN_CHARS_MAX: usize = 223;
/// Characters of an address. Derived: the longest host name of DNS, a colon, a port.
pub const ADDRESS_CHARS_MAX: usize = 260;
/// Characters of a request id. Chosen: three times those of a UUID.
pub const REQUEST_ID_CHARS_MAX: usize = 128;

/// What a caller said is not of the form that it has to have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} {given:?} is not accepted: {rule}")]
pub struct Malformed {
    /// What was named.
    pub what: &'static str,
    /// As it was given, shortened.
    pub given: String,
    /// What it has to be.
    pub rule: String,
}

impl Malformed {
    /// `given` breaks the rule.
    pub fn new(what: &'static str, given: &str, rule: impl Into<String>) -> Malformed {
        Malformed { what, given: given.chars().take(80).collect(), rule: rule.into() }
    }
}

/// Makes a word of a string that a function accepts.
macro_rules! word {
    ($(#[$doc:meta])* $word:ident, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schema(value_type = String)]
        pub struct $word(String);

        impl $word {
            /// The word, if it is one.
            pub fn new(text: impl Into<String>) -> Result<$word, Malformed> {
                let text = text.into();
                $check(&text)?;
                Ok($word(text))
            }

            /// As it was given.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $word {
            type Error = Malformed;

            fn try_from(text: String) -> Result<$word, Malformed> {
                $word::new(text)
            }
        }

        impl From<$word> for String {
            fn from(word: $word) -> String {
                word.0
            }
        }

        impl fmt::Display for $word {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $word {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

word! {
    /// Of a node, drive, rack, zone, tenant or volume: 1 to 63 of `a-z 0-9 - .`, with a letter or digit at both ends.
    Name, name
}
word! {
    /// An NVMe qualified name: of a subsystem or of a host.
    Nqn, nqn
}
word! {
    /// Where a target listens: HOST:PORT, an address of IPv6 in brackets.
    Address, address
}
word! {
    /// What a caller names a request by: 1 to 128 of `A-Z a-z 0-9 - . _ :`.
    RequestId, request_id
}

fn name(text: &str) -> Result<(), Malformed> {
    let is_end = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_inner = |byte: &u8| is_end(byte) || matches!(byte, b'-' | b'.');
    let bytes = text.as_bytes();
    let is_formed = bytes.iter().all(is_inner) && bytes.first().is_some_and(is_end) && bytes.last().is_some_and(is_end);
    if is_formed && bytes.len() <= NAME_CHARS_MAX {
        return Ok(());
    }
    let rule = format!(
        "a name has 1 to {NAME_CHARS_MAX} characters, small letters, digits, '-' and '.', with a letter or digit at both ends"
    );
    Err(Malformed::new("the name", text, rule))
}

fn nqn(text: &str) -> Result<(), Malformed> {
    let is_formed = text.starts_with("nqn.") && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_formed && text.len() <= NQN_CHARS_MAX {
        return Ok(());
    }
    let rule = format!("an NQN begins with \"nqn.\" and has at most {NQN_CHARS_MAX} printable characters");
    Err(Malformed::new("the NQN", text, rule))
}

fn address(text: &str) -> Result<(), Malformed> {
    let is_formed = text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
        let is_named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
        let is_host = !host.is_empty() && host.bytes().all(is_named);
        let is_v6 = is_bracketed && host[1..host.len() - 1].parse::<std::net::Ipv6Addr>().is_ok();
        (is_host || is_v6) && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if is_formed && text.len() <= ADDRESS_CHARS_MAX {
        return Ok(());
    }
    Err(Malformed::new("the address", text, "it is HOST:PORT, say 192.0.2.7:4420 or [2001:db8::7]:4420"))
}

fn request_id(text: &str) -> Result<(), Malformed> {
    let is_accepted = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
    if (1..=REQUEST_ID_CHARS_MAX).contains(&text.len()) && text.bytes().all(is_accepted) {
        return Ok(());
    }
    let rule = format!("a request id has 1 to {REQUEST_ID_CHARS_MAX} characters, letters, digits, '-', '.', '_', ':'");
    Err(Malformed::new("the request id", text, rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_label_and_nothing_that_a_key_would_be_cut_at() {
        for accepted in ["a", "0", "pvc-1.x", &"a".repeat(63)] {
            assert_eq!(Name::new(accepted).expect("a name").as_str(), accepted);
        }
        for refused in ["", "A", "a/b", "-a", "a-", ".a", "a_b", "ä", "a b", "a\n", &"a".repeat(64)] {
            assert!(Name::new(refused).is_err(), "{refused:?}");
            assert!(serde_json::from_value::<Name>(serde_json::json!(refused)).is_err(), "{refused:?}");
        }
    }

    #[test]
    fn addresses_and_qualified_names_are_parsed() {
        for accepted in ["10.0.0.1:4420", "a-b.example:1", "[::1]:65535"] {
            assert!(Address::new(accepted).is_ok(), "{accepted}");
        }
        for refused in ["", ":1", "a:", "a:0", "a:65536", "::1:4420", "[x]:1", "[]:1", "a b:1", "a"] {
            assert!(Address::new(refused).is_err(), "{refused:?}");
        }
        assert!(Nqn::new("nqn.2026-11.io.yagura:a").is_ok());
        for refused in ["", "iqn.x", "nqn.a b", "nqn.ä", &format!("nqn.{}", "a".repeat(220))] {
            assert!(Nqn::new(refused).is_err(), "{refused:?}");
        }
        assert!(RequestId::new("a:B_1.2-3").is_ok());
        for refused in ["", "a/b", "a b", &"a".repeat(129)] {
            assert!(RequestId::new(refused).is_err(), "{refused:?}");
        }
    }
}
