//! Numbers as memcached reads them, which is as C's `strtoul` and `strtol` do: white space before them, a sign, and anything behind
//! a white space that ends them. A number of 32 bits is cut from one of 64.

/// What C calls white space.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// A sign and a magnitude; `None` without a digit, over 64 bits, or where neither white space nor the end follows.
fn magnitude(text: &[u8]) -> Option<(bool, u64)> {
    let start = text.iter().position(|&byte| !is_space(byte))?;
    let (negative, digits) = match text[start] {
        b'-' => (true, &text[start + 1..]),
        b'+' => (false, &text[start + 1..]),
        _ => (false, &text[start..]),
    };
    let count = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    if count == 0 || digits.get(count).is_some_and(|&next| next != 0 && !is_space(next)) {
        return None;
    }
    let add = |sum: u64, digit: &u8| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    digits[..count].iter().try_fold(0, add).map(|number| (negative, number))
}

/// An unsigned number of 64 bits. A negative one is taken where it wraps to one below 2^63, as in memcached.
pub fn unsigned(text: &[u8]) -> Option<u64> {
    let (negative, number) = magnitude(text)?;
    let number = if negative { number.wrapping_neg() } else { number };
    let refused = number > i64::MAX as u64 && text.iter().take_while(|&&byte| byte != 0).any(|&byte| byte == b'-');
    (!refused).then_some(number)
}

/// As [`unsigned`], cut to 32 bits.
pub fn unsigned_32(text: &[u8]) -> Option<u32> {
    unsigned(text).map(|number| number as u32)
}

/// A signed number of 64 bits, cut to 32.
pub fn signed_32(text: &[u8]) -> Option<i32> {
    let (negative, number) = magnitude(text)?;
    let number = if negative { 0i64.checked_sub_unsigned(number)? } else { i64::try_from(number).ok()? };
    Some(number as i32)
}

/// A number with a fraction.
pub fn fraction(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.split(|c: char| c.is_ascii_whitespace()).next()?.parse().ok()
}

/// A number as text.
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    digits: [u8; 20],
    start: u8,
}

impl Decimal {
    /// The text of `number`.
    pub fn new(mut number: u64) -> Decimal {
        let mut digits = [0; 20];
        let mut start = digits.len();
        loop {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Decimal { digits, start: start as u8 };
            }
        }
    }

    /// Its digits.
    pub fn bytes(&self) -> &[u8] {
        &self.digits[self.start as usize..]
    }
}

/// Appends a number as text.
pub fn push(text: &mut Vec<u8>, number: u64) {
    text.extend_from_slice(Decimal::new(number).bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_c_does() {
        assert_eq!(unsigned(b" \t+12"), Some(12));
        assert_eq!(unsigned(b"12 junk"), Some(12));
        assert_eq!(unsigned(b"1\0x"), Some(1));
        assert_eq!(unsigned(b"12x"), None);
        assert_eq!(unsigned(b""), None);
        assert_eq!(unsigned(b"-"), None);
        assert_eq!(unsigned(b"-1"), None);
        assert_eq!(unsigned(b"-18446744073709551615"), Some(1));
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"18446744073709551616"), None);
        assert_eq!(unsigned(b"18446744073709551615 -"), None);
        assert_eq!(unsigned_32(b"4294967297"), Some(1));
        assert_eq!(signed_32(b"-5"), Some(-5));
        assert_eq!(signed_32(b"2147483648"), Some(i32::MIN));
        assert_eq!(signed_32(b"9223372036854775808"), None);
        assert_eq!(signed_32(b"-9223372036854775808"), Some(0));
    }

    #[test]
    fn decimals_are_digits() {
        for number in [0, 9, 10, 12_345, u64::MAX] {
            assert_eq!(Decimal::new(number).bytes(), number.to_string().as_bytes());
        }
    }
}
