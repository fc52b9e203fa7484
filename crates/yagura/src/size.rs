//! Sizes as people write them: `4096`, `64K`, `1MiB`, `10G` (always powers of 1024), and back.

use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 5] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("PiB", 50)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let wrong =
            || format!("`{text}` is no size: write a number of bytes, or one with K, M, G or T, such as 64M or 10GiB");
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let unit = unit.trim();
        let shift = match unit {
            "" | "B" => 0,
            _ => {
                let is = |name: &str| {
                    [&name[..1], name, &name.replace('i', "")].iter().any(|form| form.eq_ignore_ascii_case(unit))
                };
                UNITS.iter().find(|(name, _)| is(name)).map(|(_, shift)| *shift).ok_or_else(wrong)?
            }
        };
        let bytes = number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is more than 2^64 bytes"))?;
        Ok(Size(bytes))
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match UNITS.iter().rev().find(|(_, shift)| self.0 >= 1 << shift) {
            None => write!(f, "{} B", self.0),
            Some((unit, shift)) => {
                let value = self.0 as f64 / (1u64 << shift) as f64;
                if value.fract() == 0.0 { write!(f, "{value} {unit}") } else { write!(f, "{value:.1} {unit}") }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65_536),
            ("64kib", 65_536),
            ("1MB", 1 << 20),
            ("10 GiB", 10 << 30),
            ("7B", 7),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "K", "1X", "-1", "1.5G", "99999999999G", "1KiBs"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_read_back() {
        for bytes in [0, 1023, 1024, 4 << 20, 10 << 30] {
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
        assert_eq!(Size(1536).to_string(), "1.5 KiB");
    }
}
