//! The numbers of `INCRBYFLOAT`: x86's 80-bit extended floats, which Redis computes with.
//!
//! In 64-bit floats 0.1 + 0.2 is 0.30000000000000004, and Redis's clients see 0.3. The arithmetic is `rustc_apfloat`'s; C's
//! notation and Redis's print are here.

use std::fmt::{self, Display, Formatter};

use rustc_apfloat::Float;
use rustc_apfloat::ieee::X87DoubleExtended;

/// See the module.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Extended(X87DoubleExtended);

/// Redis's `MAX_LONG_DOUBLE_CHARS`, its final zero byte included.
const TEXT_BYTES_MAX: usize = 5 * 1024;
/// More digits than the largest number has.
const DIGITS_MAX: usize = 5_000;
/// What the exponent of 1 is in a number's bits.
const EXPONENT_BIAS: i32 = 16_383;
/// Decimals that Redis prints.
const DECIMALS: usize = 17;
const DECIMALS_SCALE: u128 = 100_000_000_000_000_000;

impl Extended {
    /// Zero.
    pub const ZERO: Extended = Extended(X87DoubleExtended::ZERO);

    /// The number that `text` is as a whole, in C's notation; `None` if it is none, or too large or small.
    pub fn parse(text: &[u8]) -> Option<Extended> {
        if text.is_empty() || text.len() >= TEXT_BYTES_MAX {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let sign = |number: X87DoubleExtended| Extended(if negative { -number } else { number });
        if rest.eq_ignore_ascii_case("inf") || rest.eq_ignore_ascii_case("infinity") {
            return Some(sign(X87DoubleExtended::INFINITY));
        }
        let is_zero = is_zero(rest)?;
        // The library wants a power behind hexadecimal digits.
        let is_short = rest.starts_with(['0']) && rest[1..].starts_with(['x', 'X']) && !rest.contains(['p', 'P']);
        let number = if is_short { format!("{rest}p0").parse() } else { rest.parse::<X87DoubleExtended>() }.ok()?;
        (number.is_finite() && number.is_zero() == is_zero).then(|| sign(number))
    }

    /// Whether it is infinite.
    pub fn is_infinite(self) -> bool {
        self.0.is_infinite()
    }

    /// The sum; `None` if that is infinite or no number.
    pub fn plus(self, other: Extended) -> Option<Extended> {
        let sum = (self.0 + other.0).value;
        sum.is_finite().then_some(Extended(sum))
    }
}

/// Whether all digits of a number without sign are zeroes; `None` if it is no number: the library lets pass what C does not, such
/// as `1e` and `nan`.
fn is_zero(text: &str) -> Option<bool> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix, power) = match hexadecimal {
        Some(digits) => (digits, 16, ['p', 'P']),
        None => (text, 10, ['e', 'E']),
    };
    let (digits, power) = match digits.split_once(power) {
        Some((digits, power)) => (digits, power.strip_prefix(['+', '-']).unwrap_or(power)),
        None => (digits, "0"),
    };
    let is_power = !power.is_empty() && power.bytes().all(|digit| digit.is_ascii_digit());
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut all = whole.chars().chain(fraction.chars()).peekable();
    let is_number = all.peek().is_some() && all.clone().all(|digit| digit.is_digit(radix));
    (is_power && is_number).then(|| all.all(|digit| digit == '0'))
}

/// Up to 17 decimals without zeroes at the end: Redis's `LD_STR_HUMAN`.
impl Display for Extended {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        // Of 80 bits: the sign, 15 of the exponent, and 64 of the mantissa, which counts units of its lowest bit here.
        let bits = self.0.to_bits();
        let (mantissa, exponent) = (bits as u64, (bits >> 64) as i32 & 0x7FFF);
        let shift = EXPONENT_BIAS + 63 - exponent;
        let (mut whole, mut fraction) = (String::from("0"), String::new());
        if shift <= 0 {
            whole = format!("{:DIGITS_MAX$.DIGITS_MAX$}", self.0.abs());
        } else if shift < 122 {
            // The product has less than 121 bits.
            let scaled = u128::from(mantissa) * DECIMALS_SCALE;
            let (mut number, rest, half) = (scaled >> shift, scaled & ((1 << shift) - 1), 1u128 << (shift - 1));
            number += u128::from(rest > half || (rest == half && number % 2 == 1));
            whole = (number / DECIMALS_SCALE).to_string();
            fraction = format!("{:0DECIMALS$}", number % DECIMALS_SCALE);
        }
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        let sign = if self.0.is_negative() && (whole != "0" || !fraction.is_empty()) { "-" } else { "" };
        write!(f, "{sign}{whole}{point}{fraction}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(a: &str, b: &str) -> String {
        let parse = |text: &str| Extended::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text} is a number"));
        parse(a).plus(parse(b)).map_or("none".into(), |sum| sum.to_string())
    }

    /// As `redis-server` 7.0.15 answers on x86-64.
    #[test]
    fn sums_as_redis_gives_them() {
        for (a, b, expected) in [
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("-5", "5", "0"),
            ("-0", "0", "0"),
            ("1e-20", "0", "0"),
            ("-1e-20", "0", "0"),
            ("3", "1.000000000000000005", "4.00000000000000001"),
            ("1e40", "1", "9999999999999999999783686092270256259072"),
            ("1000.1", "0.2", "1000.29999999999999999"),
            ("inf", "1", "none"),
            ("0x10", "-0X.8", "15.5"),
            ("0x1p3", "0x1P-1", "8.5"),
            ("0xffffffffffffffff", "1", "18446744073709551616"),
            ("0x1000000000000000000000000000000000000001p-160", "0", "0.0625"),
        ] {
            assert_eq!(sum(a, b), expected, "{a} + {b}");
        }
    }

    #[test]
    fn what_is_no_number() {
        for bad in [
            "",
            " 1",
            "1 ",
            "1e",
            "1e+",
            ".",
            "-",
            "nan",
            "0x",
            "0x.",
            "0x1p",
            "0x1p+",
            "0xg",
            "0x1p16384",
            "1.2.3",
            "1e5000",
            "1e-5000",
            "1\0",
        ] {
            assert_eq!(Extended::parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert!(Extended::parse(&[b'1'; TEXT_BYTES_MAX]).is_none());
        assert!(Extended::parse(b"-Infinity").is_some_and(Extended::is_infinite));
    }

    proptest! {
        /// Whole numbers below 2^62 are exact, and so are their sums.
        #[test]
        fn whole_numbers_add_as_integers(a in -(1i64 << 62)..1 << 62, b in -(1i64 << 62)..1 << 62) {
            prop_assert_eq!(sum(&a.to_string(), &b.to_string()), (a + b).to_string());
        }

        /// Halves, quarters… are exact in both formats.
        #[test]
        fn binary_fractions_add_as_64_bit_floats_do(a in -(1i64 << 40)..1 << 40, b in -(1i64 << 40)..1 << 40) {
            let text = |number: i64| format!("{:.10}", number as f64 / 1024.0);
            let expected = text(a + b);
            let expected = expected.trim_end_matches('0').trim_end_matches('.');
            prop_assert_eq!(sum(&text(a), &text(b)), if expected == "-0" { "0" } else { expected });
        }

        /// More than 64 bits hold every decimal of 64-bit floats' precision: it prints as the shortest text of that.
        #[test]
        fn short_decimals_survive(whole in 0u32..10, fraction in 0u32..1_000_000_000) {
            let text = format!("{whole}.{fraction:09}");
            let trimmed = text.trim_end_matches('0').trim_end_matches('.');
            prop_assert_eq!(sum(&text, "0"), trimmed);
        }

        #[test]
        fn any_bytes_are_harmless(text in "[-+]?(0x)?[-+0-9.eEinfp]{0,40}") {
            if let Some(number) = Extended::parse(text.as_bytes()) {
                let _ = number.plus(number).map(|sum| sum.to_string()); // only that it ends
            }
        }
    }
}
