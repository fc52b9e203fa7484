//! Little-endian fields, written to a vector and read back with every bound checked.

/// Bytes of a checksum.
const SUM: usize = 8;

/// What is not there, or not as it should be; the caller says where it stood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Short;

/// Appends fields.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn u8(&mut self, value: u8) -> &mut Writer {
        self.0.push(value);
        self
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) -> &mut Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Zeroes up to `bytes`, of which the last eight are the checksum of all before them.
    pub(super) fn sealed(self, bytes: usize) -> Vec<u8> {
        let mut page = self.0;
        page.resize(bytes - SUM, 0);
        let sum = xxhash_rust::xxh3::xxh3_64(&page);
        page.extend_from_slice(&sum.to_le_bytes());
        page
    }

    /// A length of 32 bits, then the bytes.
    pub(super) fn counted(&mut self, bytes: &[u8]) -> &mut Writer {
        self.u32(bytes.len() as u32).raw(bytes)
    }
}

/// What stands before the checksum of [`Writer::sealed`]; `None` where that is wrong.
pub(super) fn unsealed(page: &[u8]) -> Option<&[u8]> {
    let (content, sum) = page.split_at_checked(page.len().checked_sub(SUM)?)?;
    (xxhash_rust::xxh3::xxh3_64(content).to_le_bytes() == *sum).then_some(content)
}

/// Takes fields from the front.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn raw(&mut self, len: usize) -> Result<&'a [u8], Short> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let bytes = self.raw(N)?;
        bytes.try_into().map_err(|_| Short)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Short> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn array16(&mut self) -> Result<[u8; 16], Short> {
        self.array()
    }

    pub(super) fn counted(&mut self) -> Result<&'a [u8], Short> {
        let len = self.u32()?;
        self.raw(len as usize)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Short> {
        std::str::from_utf8(self.counted()?).map_err(|_| Short)
    }
}

/// Number `index` of an array of 64-bit values.
pub(super) fn value(array: &[u8], index: usize) -> u64 {
    let bytes = &array[index * 8..index * 8 + 8];
    u64::from_le_bytes(bytes.try_into().expect("a slice of eight bytes is an array of eight"))
}

/// Replaces number `index` of an array of 64-bit values.
pub(super) fn set_value(array: &mut [u8], index: usize, value: u64) {
    array[index * 8..index * 8 + 8].copy_from_slice(&value.to_le_bytes());
}
