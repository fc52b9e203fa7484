//! The numbers of `INCRBYFLOAT`: x86's 80-bit extended floats, which Redis computes with, in plain integers.
//!
//! In 64-bit floats 0.1 + 0.2 is 0.30000000000000004, and Redis's clients see 0.3. A value is `mantissa * 2^exponent`; results are
//! rounded half to even, as the hardware does. Denormal numbers are not told apart: 17 decimals show none of them.

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extended {
    negative: bool,
    infinite: bool,
    exponent: i32,
    /// The highest bit is set, except in zero.
    mantissa: u64,
}

/// Redis's `MAX_LONG_DOUBLE_CHARS`, its final zero byte included.
const TEXT_BYTES_MAX: usize = 5 * 1024;
/// Decimal exponents past this are infinite or zero (the largest number is about 1.2e4932).
const DECIMAL_EXPONENT_MAX: i64 = 5000;
/// The largest exponent of a finite number, counted at the highest bit.
const EXPONENT_MAX: i32 = 16_383;
/// The smallest one of a number that is not zero, denormal ones included.
const EXPONENT_MIN: i32 = -16_445;
/// Decimals that Redis prints.
const DECIMALS: usize = 17;
const DECIMALS_SCALE: u128 = 100_000_000_000_000_000;
/// Digits that one step of an arbitrarily large integer takes.
const STEP_DIGITS: usize = 9;
const STEP: u32 = 1_000_000_000;

impl Extended {
    /// The number that `text` is as a whole, in C's notation; `None` if it is none, or too large or small.
    pub fn parse(text: &[u8]) -> Option<Extended> {
        if text.is_empty() || text.len() >= TEXT_BYTES_MAX {
            return None;
        }
        let (negative, rest) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if rest.eq_ignore_ascii_case(b"inf") || rest.eq_ignore_ascii_case(b"infinity") {
            return Some(Extended { negative, infinite: true, exponent: 0, mantissa: 0 });
        }
        if let [b'0', b'x' | b'X', rest @ ..] = rest {
            return Extended::of_hexadecimal(negative, rest);
        }
        let (whole, fraction, rest) = split_number(rest, u8::is_ascii_digit)?;
        let power = match rest {
            [] => 0,
            [b'e' | b'E', rest @ ..] => parse_power(rest)?,
            _ => return None,
        };
        let digits: Vec<u8> = whole.iter().chain(fraction).copied().skip_while(|digit| *digit == b'0').collect();
        Extended::of_decimal(negative, &digits, power - fraction.len() as i64)
    }

    /// What stands behind `0x`: hexadecimal digits, and a power of two behind `p`.
    fn of_hexadecimal(negative: bool, text: &[u8]) -> Option<Extended> {
        let (whole, fraction, rest) = split_number(text, u8::is_ascii_hexdigit)?;
        let power = match rest {
            [] => 0,
            [b'p' | b'P', rest @ ..] => parse_power(rest)?,
            _ => return None,
        };
        let (mut number, mut inexact, mut exponent) = (0u128, false, power - 4 * fraction.len() as i64);
        for digit in whole.iter().chain(fraction) {
            let digit = char::from(*digit).to_digit(16)?;
            if number.leading_zeros() >= 4 {
                number = number << 4 | u128::from(digit);
            } else {
                (inexact, exponent) = (inexact || digit != 0, exponent + 4);
            }
        }
        if number == 0 {
            return Some(Extended { negative, ..Extended::ZERO });
        }
        // No mantissa brings an exponent past these back within bounds: the text is too short.
        let exponent = i32::try_from(exponent).ok().filter(|exponent| exponent.unsigned_abs() < 1 << 20)?;
        let rounded = Extended::rounded(negative, number, inexact, exponent);
        let highest = rounded.exponent + 63;
        (EXPONENT_MIN..=EXPONENT_MAX).contains(&highest).then_some(rounded)
    }

    /// `digits * 10^power`.
    fn of_decimal(negative: bool, digits: &[u8], power: i64) -> Option<Extended> {
        if digits.is_empty() {
            return Some(Extended { negative, infinite: false, exponent: 0, mantissa: 0 });
        }
        if (digits.len() as i64 + power).abs() > DECIMAL_EXPONENT_MAX {
            return None;
        }
        let mut number = Natural::default();
        for digits in digits.chunks(STEP_DIGITS) {
            let step = digits.iter().fold(0, |step, digit| step * 10 + u32::from(digit - b'0'));
            number.multiply_add(10u32.pow(digits.len() as u32), step);
        }
        number.scale_decimal(power.max(0) as usize);
        let rounded = if power >= 0 {
            let (top, lost, exponent) = number.top();
            Extended::rounded(negative, top, lost, exponent)
        } else {
            let mut divisor = Natural::of(1);
            divisor.scale_decimal(power.unsigned_abs() as usize);
            let (quotient, inexact, exponent) = number.divided(divisor);
            Extended::rounded(negative, quotient, inexact, exponent)
        };
        let highest = rounded.exponent + 63;
        (EXPONENT_MIN..=EXPONENT_MAX).contains(&highest).then_some(rounded)
    }

    /// The closest to `number * 2^exponent`, or to a little more if it is `inexact`.
    fn rounded(negative: bool, number: u128, inexact: bool, mut exponent: i32) -> Extended {
        let bits = 128 - number.leading_zeros() as i32;
        if bits <= 64 {
            let shift = if bits == 0 { 0 } else { 64 - bits };
            return Extended {
                negative,
                infinite: false,
                exponent: exponent - shift,
                mantissa: (number as u64) << shift,
            };
        }
        let shift = bits - 64;
        let (mut mantissa, rest, half) = ((number >> shift) as u64, number & ((1 << shift) - 1), 1u128 << (shift - 1));
        exponent += shift;
        if rest > half || (rest == half && (inexact || mantissa % 2 == 1)) {
            mantissa = mantissa.wrapping_add(1);
            if mantissa == 0 {
                (mantissa, exponent) = (1 << 63, exponent + 1);
            }
        }
        Extended { negative, infinite: false, exponent, mantissa }
    }

    /// Zero.
    pub const ZERO: Extended = Extended { negative: false, infinite: false, exponent: 0, mantissa: 0 };

    /// Whether it is infinite.
    pub fn is_infinite(self) -> bool {
        self.infinite
    }

    /// The sum; `None` if that is infinite or no number.
    pub fn plus(self, other: Extended) -> Option<Extended> {
        if self.infinite || other.infinite {
            return None;
        }
        let order = |number: &Extended| if number.mantissa == 0 { i32::MIN } else { number.exponent };
        let (large, small) = if order(&self) >= order(&other) { (self, other) } else { (other, self) };
        if small.mantissa == 0 {
            return Some(large);
        }
        // 62 bits below the mantissa and one above it: what falls off below is told by one bit.
        const BELOW: u32 = 62;
        let distance = (large.exponent - small.exponent) as u32;
        let (a, b) = (u128::from(large.mantissa) << BELOW, u128::from(small.mantissa) << BELOW);
        let (b, lost) = if distance < 128 { (b >> distance, b << (128 - distance).min(127)) } else { (0, 1) };
        let inexact = distance > 0 && lost != 0;
        let (negative, sum) = if large.negative == small.negative {
            (large.negative, a + b)
        } else if a >= b + u128::from(inexact) {
            (large.negative, a - b - u128::from(inexact))
        } else {
            (small.negative, b - a)
        };
        let sum = Extended::rounded(negative && sum != 0, sum, inexact, large.exponent - BELOW as i32);
        (sum.exponent + 63 <= EXPONENT_MAX).then_some(sum)
    }
}

/// Up to 17 decimals without zeroes at the end: Redis's `LD_STR_HUMAN`.
impl std::fmt::Display for Extended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (mut whole, mut fraction) = (String::from("0"), String::new());
        if self.exponent >= 0 {
            let mut number = Natural::of(self.mantissa);
            number.shift_left(self.exponent as usize);
            whole = number.to_decimal();
        } else {
            let scaled = u128::from(self.mantissa) * DECIMALS_SCALE;
            let shift = self.exponent.unsigned_abs();
            // The product has less than 121 bits.
            if shift < 122 {
                let (mut number, rest, half) = (scaled >> shift, scaled & ((1 << shift) - 1), 1u128 << (shift - 1));
                number += u128::from(rest > half || (rest == half && number % 2 == 1));
                whole = (number / DECIMALS_SCALE).to_string();
                fraction = format!("{:0DECIMALS$}", number % DECIMALS_SCALE);
            }
        }
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        let sign = if self.negative && (whole != "0" || !fraction.is_empty()) { "-" } else { "" };
        write!(f, "{sign}{whole}{point}{fraction}")
    }
}

/// The digits in front of the point, those behind it, and the rest; `None` if there are no digits.
fn split_number(text: &[u8], is_digit: fn(&u8) -> bool) -> Option<(&[u8], &[u8], &[u8])> {
    let end = |bytes: &[u8]| bytes.iter().take_while(|byte| is_digit(byte)).count();
    let (whole, rest) = text.split_at(end(text));
    let (fraction, rest) = match rest {
        [b'.', rest @ ..] => rest.split_at(end(rest)),
        rest => (&[][..], rest),
    };
    (!whole.is_empty() || !fraction.is_empty()).then_some((whole, fraction, rest))
}

/// What stands behind the `e` or `p`.
fn parse_power(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // Far past all exponents that count, and far from an overflow.
    let power = digits.iter().fold(0i64, |power, digit| (power * 10 + i64::from(digit - b'0')).min(1 << 40));
    Some(if negative { -power } else { power })
}

/// A natural number of any length, in limbs from the lowest; no zero limb on top.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Natural {
    limbs: Vec<u32>,
}

impl Natural {
    fn of(number: u64) -> Natural {
        let mut natural = Natural { limbs: vec![number as u32, (number >> 32) as u32] };
        natural.trim();
        natural
    }

    fn trim(&mut self) {
        while self.limbs.last() == Some(&0) {
            self.limbs.pop();
        }
    }

    fn bits(&self) -> usize {
        self.limbs.last().map_or(0, |top| self.limbs.len() * 32 - top.leading_zeros() as usize)
    }

    fn multiply_add(&mut self, factor: u32, summand: u32) {
        let mut carry = u64::from(summand);
        for limb in &mut self.limbs {
            let product = u64::from(*limb) * u64::from(factor) + carry;
            (*limb, carry) = (product as u32, product >> 32);
        }
        if carry > 0 {
            self.limbs.push(carry as u32);
        }
    }

    fn scale_decimal(&mut self, digits: usize) {
        for _ in 0..digits / STEP_DIGITS {
            self.multiply_add(STEP, 0);
        }
        self.multiply_add(10u32.pow((digits % STEP_DIGITS) as u32), 0);
    }

    fn shift_left(&mut self, bits: usize) {
        self.multiply_add(1 << (bits % 32), 0);
        self.limbs.splice(0..0, std::iter::repeat_n(0, bits / 32));
        self.trim();
    }

    fn halve(&mut self) {
        let mut carry = 0;
        for limb in self.limbs.iter_mut().rev() {
            (*limb, carry) = (*limb >> 1 | carry << 31, *limb & 1);
        }
        self.trim();
    }

    fn is_at_least(&self, other: &Natural) -> bool {
        self.limbs
            .len()
            .cmp(&other.limbs.len())
            .then_with(|| self.limbs.iter().rev().cmp(other.limbs.iter().rev()))
            .is_ge()
    }

    /// `other` must not be larger.
    fn subtract(&mut self, other: &Natural) {
        let mut borrow = 0;
        for (index, limb) in self.limbs.iter_mut().enumerate() {
            let less = i64::from(other.limbs.get(index).copied().unwrap_or(0)) + borrow;
            let difference = i64::from(*limb) - less;
            (*limb, borrow) = (difference as u32, i64::from(difference < 0));
        }
        self.trim();
    }

    /// The highest 128 bits, whether anything is below them, and their exponent.
    fn top(&self) -> (u128, bool, i32) {
        let mut top = 0u128;
        let shift = self.bits().saturating_sub(128);
        for bit in (shift..self.bits()).rev() {
            top = top << 1 | u128::from(self.limbs[bit / 32] >> (bit % 32) & 1);
        }
        let lost = (0..shift).any(|bit| self.limbs[bit / 32] >> (bit % 32) & 1 == 1);
        (top, lost, shift as i32)
    }

    /// The quotient by `divisor` with 66 or 67 bits, whether there is a rest, and the quotient's exponent.
    fn divided(mut self, mut divisor: Natural) -> (u128, bool, i32) {
        const BITS: usize = 66;
        let exponent = self.bits() as i32 - divisor.bits() as i32 - BITS as i32;
        self.shift_left((-exponent).max(0) as usize);
        divisor.shift_left(exponent.max(0) as usize + BITS + 1);
        let mut quotient = 0;
        for _ in 0..BITS + 2 {
            quotient <<= 1;
            if self.is_at_least(&divisor) {
                self.subtract(&divisor);
                quotient |= 1;
            }
            divisor.halve();
        }
        (quotient, !self.limbs.is_empty(), exponent)
    }

    fn to_decimal(&self) -> String {
        let (mut rest, mut steps) = (self.clone(), Vec::new());
        while !rest.limbs.is_empty() {
            let mut remainder = 0;
            for limb in rest.limbs.iter_mut().rev() {
                let number = remainder << 32 | u64::from(*limb);
                (*limb, remainder) = ((number / u64::from(STEP)) as u32, number % u64::from(STEP));
            }
            rest.trim();
            steps.push(remainder);
        }
        let highest = steps.pop().unwrap_or(0).to_string();
        steps.iter().rev().fold(highest, |text, step| text + &format!("{step:0STEP_DIGITS$}"))
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
