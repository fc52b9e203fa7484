//! NVMe Qualified Names (NVMe Base 2.0 §4.5).

use std::fmt;
use std::str::FromStr;

/// The longest name, in bytes, without the null that ends it on the wire.
pub const NQN_BYTES_MAX: usize = 223;
/// The well-known name of the discovery subsystem.
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// A name: `nqn.yyyy-mm.reverse-domain:anything` or `nqn.2014-08.org.nvmexpress:uuid:…`; of a subsystem that somebody else serves
/// any text (see [`Nqn::foreign`]).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(Box<str>);

/// Why a string is no NQN.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NqnError {
    /// Too long.
    #[error("an NQN has at most {NQN_BYTES_MAX} bytes, this one has {0}")]
    TooLong(usize),
    /// Does not have the form.
    #[error("{0:?} is no NQN: it must look like nqn.2026-01.org.example:name")]
    Malformed(String),
    /// Not even another's.
    #[error("{0:?} is no name of a subsystem: it must have at least one character, and no control characters")]
    Unprintable(String),
    /// The wire field has no null byte, or no UTF-8.
    #[error("the NQN field is not a null-terminated UTF-8 string")]
    NotText,
}

impl Nqn {
    /// The discovery subsystem's well-known name.
    pub fn discovery() -> Nqn {
        Nqn(DISCOVERY.into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the well-known discovery name.
    pub fn is_discovery(&self) -> bool {
        self.as_str() == DISCOVERY
    }

    /// What stands for the name of a host that says none. No name is read as this one, so that none can be listed.
    pub fn unnamed() -> Nqn {
        Nqn("".into())
    }

    /// Whether it is that.
    pub fn is_unnamed(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the field of a Connect command that names the host: its first byte may be its end.
    pub fn host_field(field: &[u8; 256]) -> Result<Nqn, NqnError> {
        if field[0] == 0 { Ok(Nqn::unnamed()) } else { Nqn::from_field(field) }
    }

    /// The name of a subsystem that somebody else serves: any text without control characters. Linux's target takes whatever its
    /// operator has named a directory, and a host that insisted on the form could not reach it.
    pub fn foreign(text: &str) -> Result<Nqn, NqnError> {
        if text.len() > NQN_BYTES_MAX {
            return Err(NqnError::TooLong(text.len()));
        }
        if text.is_empty() || text.chars().any(char::is_control) {
            return Err(NqnError::Unprintable(text.into()));
        }
        Ok(Nqn(text.into()))
    }

    /// Reads the 256-byte field of a Connect command.
    pub fn from_field(field: &[u8; 256]) -> Result<Nqn, NqnError> {
        text_of(field)?.parse()
    }

    /// Reads the 256-byte field of a discovery entry, as [`Nqn::foreign`].
    pub fn foreign_field(field: &[u8; 256]) -> Result<Nqn, NqnError> {
        Nqn::foreign(text_of(field)?)
    }

    /// The 256-byte field: the name, padded with null bytes.
    pub fn to_field(&self) -> [u8; 256] {
        let mut field = [0; 256];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }
}

fn text_of(field: &[u8; 256]) -> Result<&str, NqnError> {
    let end = field.iter().position(|&b| b == 0).ok_or(NqnError::NotText)?;
    std::str::from_utf8(&field[..end]).map_err(|_| NqnError::NotText)
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Nqn, NqnError> {
        if text.len() > NQN_BYTES_MAX {
            return Err(NqnError::TooLong(text.len()));
        }
        if is_well_formed(text) { Ok(Nqn(text.into())) } else { Err(NqnError::Malformed(text.into())) }
    }
}

/// `nqn.` year `-` month `.` domain with at least one character; no control characters or spaces. The part after the
/// domain is not looked at: the specification leaves it to its owner, and the discovery name has none.
fn is_well_formed(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("nqn.") else { return false };
    let bytes = rest.as_bytes();
    let date = bytes.len() > 8
        && bytes[..4].iter().all(u8::is_ascii_digit)
        && bytes[4] == b'-'
        && bytes[5..7].iter().all(u8::is_ascii_digit)
        && bytes[7] == b'.';
    date && bytes[8] != b':' && !text.chars().any(|c| c.is_control() || c.is_whitespace())
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_unnamed() { "(unnamed)" } else { &self.0 })
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_and_are_not() {
        let good = [DISCOVERY, "nqn.2014-08.org.nvmexpress:uuid:0", "nqn.2026-01.example.yagura:node1"];
        for name in good {
            assert_eq!(name.parse::<Nqn>().unwrap().to_string(), name);
        }
        let bad = [
            "",
            "nqn",
            "nqn.2014-08.",
            "nqn.2014-8.org.x:y",
            "nqn.20x4-08.org.x",
            "iqn.2014-08.org.x",
            "nqn.2014-08.:x",
        ];
        for name in bad.into_iter().chain(["nqn.2014-08.org.x:a b", "nqn.2014-08.org.x:\n"]) {
            assert!(name.parse::<Nqn>().is_err(), "{name:?} passed");
        }
        let long = format!("nqn.2014-08.org.x:{}", "y".repeat(NQN_BYTES_MAX));
        assert!(matches!(long.parse::<Nqn>(), Err(NqnError::TooLong(_))));
    }

    /// Linux's target serves a subsystem under any name that a directory can have, its own test suite under one without a date.
    #[test]
    fn anothers_name_needs_no_form() {
        for name in ["blktests-subsystem-1", "nqn", "testnqn", "an array, shelf 2"] {
            assert!(name.parse::<Nqn>().is_err(), "{name:?} has the form");
            let foreign = Nqn::foreign(name).unwrap();
            assert_eq!(Nqn::foreign_field(&foreign.to_field()), Ok(foreign));
        }
        for name in ["", "a\nb", "a\u{85}b"] {
            assert!(matches!(Nqn::foreign(name), Err(NqnError::Unprintable(_))), "{name:?} passed");
        }
        assert!(matches!(Nqn::foreign(&"y".repeat(NQN_BYTES_MAX + 1)), Err(NqnError::TooLong(_))));
        assert_eq!(Nqn::foreign_field(&[0xFF; 256]), Err(NqnError::NotText));
    }

    #[test]
    fn the_wire_field_and_back() {
        let name: Nqn = "nqn.2026-01.example.yagura:a".parse().unwrap();
        assert_eq!(Nqn::from_field(&name.to_field()).unwrap(), name);
        assert_eq!(Nqn::from_field(&[b'n'; 256]), Err(NqnError::NotText));
        assert_eq!(Nqn::from_field(&[0xFF; 256]), Err(NqnError::NotText));
    }
}
