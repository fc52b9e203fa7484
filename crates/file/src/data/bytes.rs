//! Fields of records, one after the other: fixed ones little endian, numbers that are mostly small as varints.
//!
//! A varint is seven bits a byte, the lowest first, and has no byte more than it needs: a record has one form.

use crate::error::Error;

/// Takes fields from the front. Whatever is too short or too long is damage, and is told with what it was to be.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { rest: bytes, what }
    }

    pub(crate) fn damaged(&self, why: &str) -> Error {
        Error::Damaged(format!("{}: {why}", self.what))
    }

    /// An error unless `is_so`.
    pub(crate) fn check(&self, is_so: bool, why: &str) -> Result<(), Error> {
        if is_so { Ok(()) } else { Err(self.damaged(why)) }
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.damaged("it is too short"))?;
        self.rest = rest;
        Ok(head)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.damaged("it is too short"))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Error> {
        self.fixed().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Error> {
        self.fixed().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Error> {
        self.fixed().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Error> {
        self.fixed().map(u64::from_le_bytes)
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

    pub(crate) fn rest(&self) -> usize {
        self.rest.len()
    }

    /// Nothing may be left.
    pub(crate) fn finish(self) -> Result<(), Error> {
        self.check(self.rest.is_empty(), "bytes behind the fields")
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
            let mut reader = Reader::new(&bytes, "test");
            assert_eq!(reader.varint(), Ok(value));
            assert_eq!(reader.finish(), Ok(()));
        }
        for bytes in
            [&[][..], &[0x80], &[0x80, 0], &[0xff; 9], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]]
        {
            assert!(Reader::new(bytes, "test").varint().is_err(), "{bytes:?}");
        }
    }
}
