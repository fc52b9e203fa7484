//! One command as it came: its arguments, and how Redis reads numbers in them.

/// One command: its name and arguments, in one allocation that is reused.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Command {
    pub(super) bytes: Vec<u8>,
    /// Where each argument ends in `bytes`.
    pub(super) ends: Vec<u32>,
    /// Argument bytes that were dropped because the command is longer than [`COMMAND_BYTES_MAX`].
    pub(super) dropped: u64,
    /// It was not kept, for want of memory.
    pub(super) refused: bool,
}

impl Command {
    /// A command of these arguments; for tests and for embedding.
    pub fn new(args: &[&[u8]]) -> Command {
        let mut command = Command::default();
        for arg in args {
            command.bytes.extend_from_slice(arg);
            command.end_argument();
        }
        command
    }

    /// How many arguments there are, the name included.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is not even a name.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Argument `index`; 0 is the name. Panics past the end, as indexing does.
    pub fn arg(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.bytes[start..self.ends[index] as usize]
    }

    /// Arguments from `first` on.
    pub fn args_from(&self, first: usize) -> impl Iterator<Item = &[u8]> + '_ {
        (first..self.len()).map(|index| self.arg(index))
    }

    /// Bytes held.
    pub fn bytes_held(&self) -> usize {
        self.bytes.len() + self.ends.len() * size_of::<u32>()
    }

    /// Bytes that were dropped: the command was longer than [`COMMAND_BYTES_MAX`] and may only be refused.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// It was not kept, for want of memory, and may only be refused.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Empties it, keeping its memory.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.dropped = 0;
        self.refused = false;
    }

    /// The bytes behind the last argument are one more.
    pub(super) fn end_argument(&mut self) {
        if self.refused && !self.ends.is_empty() {
            return;
        }
        self.ends.push(u32::try_from(self.bytes.len()).expect("invariant: bounded by COMMAND_BYTES_MAX"));
    }
}

/// A decimal number as Redis reads one: an optional minus, no plus, no leading zeros, no spaces.
pub fn parse_i64(digits: &[u8]) -> Option<i64> {
    let unsigned = digits.strip_prefix(b"-").unwrap_or(digits);
    let canonical = match unsigned {
        [b'0'] => digits.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !canonical {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// As much as C's functions see: what stands in front of the first zero byte.
pub fn c_string(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or(bytes)
}

/// The cursor of a scan as Redis reads one (C's `strtoul`): signs and leading zeroes are taken, and nothing at all is 0.
pub fn parse_cursor(text: &[u8]) -> Option<u64> {
    let text = c_string(text);
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() {
        return text.is_empty().then_some(0);
    }
    let digit = |number: u64, byte: &u8| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    };
    let number = digits.iter().try_fold(0, digit)?;
    Some(if negative { number.wrapping_neg() } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_canonical() {
        for good in ["0", "1", "-1", "9223372036854775807", "-9223372036854775808"] {
            assert_eq!(parse_i64(good.as_bytes()), good.parse().ok());
        }
        for bad in ["", "-", "+1", "01", "-0", " 1", "1 ", "9223372036854775808", "1x"] {
            assert_eq!(parse_i64(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn cursors_are_what_c_takes() {
        let cases = [
            ("0", 0),
            ("00", 0),
            ("", 0),
            ("+7", 7),
            ("7\0x", 7),
            ("-1", u64::MAX),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, number) in cases {
            assert_eq!(parse_cursor(text.as_bytes()), Some(number), "{text:?}");
        }
        for bad in ["-", "+", " 0", "0 ", "1.5", "0x1", "18446744073709551616"] {
            assert_eq!(parse_cursor(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
