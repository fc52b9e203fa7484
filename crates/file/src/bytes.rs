//! Fields of records: little endian, written to a vector, and read back with every bound checked. Numbers that are mostly small
//! are varints: seven bits a byte, the lowest first, and no byte more than it needs, so that a record has one form.

use crate::error::Error;

/// Appends fields.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Writer {
        self.raw(&[value])
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A length of 8 bits, then the bytes; the records' bounds keep it below 256.
    pub(crate) fn short(&mut self, bytes: &[u8]) -> &mut Writer {
        debug_assert!(bytes.len() < 1 << 8);
        self.u8(bytes.len() as u8).raw(bytes)
    }

    /// A length of 16 bits, then the bytes; the records' bounds keep it below 65,536.
    pub(crate) fn counted(&mut self, bytes: &[u8]) -> &mut Writer {
        debug_assert!(bytes.len() < 1 << 16);
        self.u16(bytes.len() as u16).raw(bytes)
    }
}

/// Takes fields from the front of a record.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// What is parsed, for the error.
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes, what }
    }

    /// The error that says what is wrong.
    pub(crate) fn damaged(&self, why: &str) -> Error {
        Error::Damaged(format!("{}: {why}", self.what))
    }

    /// An error unless `holds`.
    pub(crate) fn check(&self, holds: bool, why: &str) -> Result<(), Error> {
        if holds { Ok(()) } else { Err(self.damaged(why)) }
    }

    /// Whether something is left.
    pub(crate) fn has_more(&self) -> bool {
        !self.rest.is_empty()
    }

    /// An error unless all was taken.
    pub(crate) fn end(self) -> Result<(), Error> {
        self.check(self.rest.is_empty(), "bytes behind its end")
    }

    pub(crate) fn raw(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(|| self.damaged("it is cut off"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let bytes = self.raw(N)?;
        bytes.try_into().map_err(|_| self.damaged("it is cut off"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Error> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Error> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number that is not zero, where zero is "none".
    pub(crate) fn number(&mut self) -> Result<u64, Error> {
        let number = self.u64()?;
        self.check(number != 0, "a number is zero")?;
        Ok(number)
    }

    pub(crate) fn array16(&mut self) -> Result<[u8; 16], Error> {
        self.array()
    }

    pub(crate) fn short(&mut self) -> Result<&'a [u8], Error> {
        let len = self.u8()?;
        self.raw(usize::from(len))
    }

    pub(crate) fn counted(&mut self) -> Result<&'a [u8], Error> {
        let len = self.u16()?;
        self.raw(usize::from(len))
    }

    /// A flag: 0 or 1, nothing else.
    pub(crate) fn flag(&mut self) -> Result<bool, Error> {
        let flag = self.u8()?;
        self.check(flag < 2, "a flag is neither 0 nor 1")?;
        Ok(flag == 1)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            self.check(shift < 63 || bits <= 1, "a number is too large")?;
            value |= bits << shift;
            if byte & 0x80 == 0 {
                self.check(byte != 0 || shift == 0, "a number is longer than it need be")?;
                return Ok(value);
            }
        }
        Err(self.damaged("a number is too long"))
    }

    /// A varint that is no larger than `most`.
    pub(crate) fn varint_to(&mut self, most: u64, why: &str) -> Result<u64, Error> {
        let value = self.varint()?;
        self.check(value <= most, why)?;
        Ok(value)
    }

    /// Bytes that are left.
    pub(crate) fn rest(&self) -> usize {
        self.rest.len()
    }
}

/// Appends a varint.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes that a varint takes.
pub(crate) fn varint_len(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()).div_ceil(7).max(1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_varint_has_one_form() {
        for value in [0, 1, 127, 128, 300, 1 << 32, (1 << 56) - 1, 1 << 63, u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(bytes.len(), varint_len(value));
            let mut reader = Reader::new("test", &bytes);
            assert_eq!(reader.varint(), Ok(value));
            assert_eq!(reader.end(), Ok(()));
        }
        for bytes in
            [&[][..], &[0x80], &[0x80, 0], &[0xff; 9], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]]
        {
            assert!(Reader::new("test", bytes).varint().is_err(), "{bytes:?}");
        }
    }
}
