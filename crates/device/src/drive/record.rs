//! What stands in the journal: records, grouped into transactions that take effect wholly or not at all.
//!
//! ```text
//! transaction   length u32 | sequence u64 | records
//! record        kind u8 | fields, little-endian, in the order of the variants below
//! ```
//!
//! `Intent` and `Set` carry checksums of neighbouring units of one extent. They differ in what they claim: an intent says
//! "these are about to be written over what was there", so after a crash the unit may hold either; a set says "so it is".

use super::bytes::{Reader, Short, Writer};

/// One change of the drive's metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Record<'a> {
    /// Extent `extent`, until now free, is number `index` of a namespace; none of its units was written.
    Map { namespace: u32, index: u32, extent: u32 },
    /// Units from `first` are about to be overwritten by ones with these checksums.
    Intent { extent: u32, first: u32, values: &'a [u8] },
    /// Units from `first` have these checksums.
    Set { extent: u32, first: u32, values: &'a [u8] },
    /// `count` units from `first` are in this state.
    Fill { extent: u32, first: u32, count: u32, value: u64 },
    /// As `Map`, in place of the extent that was there, with the checksums of what was copied into it before.
    Move { namespace: u32, index: u32, extent: u32, values: &'a [u8] },
    /// The namespace has no extents from `index` to `index + count` any more.
    Unmap { namespace: u32, index: u32, count: u32 },
    /// A new, empty namespace.
    Create { namespace: u32, nguid: [u8; 16], block_size: u32, bytes: u64, name: &'a str },
    /// The namespace has this size now.
    Grow { namespace: u32, bytes: u64 },
    /// A new namespace that shares all extents of `source`.
    Share { namespace: u32, source: u32, nguid: [u8; 16], read_only: bool, name: &'a str },
    /// The namespace is gone.
    Delete { namespace: u32 },
    /// The attribute has this value; an empty one is none.
    Attribute { namespace: u32, key: &'a str, value: &'a [u8] },
}

/// Bytes of a transaction before its records.
pub(super) const TRANSACTION_HEAD: usize = 12;

impl<'a> Record<'a> {
    pub(super) fn encode(&self, out: &mut Writer) {
        match *self {
            Record::Map { namespace, index, extent } => out.u8(1).u32(namespace).u32(index).u32(extent),
            Record::Intent { extent, first, values } => out.u8(2).u32(extent).u32(first).counted(values),
            Record::Set { extent, first, values } => out.u8(3).u32(extent).u32(first).counted(values),
            Record::Fill { extent, first, count, value } => out.u8(4).u32(extent).u32(first).u32(count).u64(value),
            Record::Move { namespace, index, extent, values } => {
                out.u8(5).u32(namespace).u32(index).u32(extent).counted(values)
            }
            Record::Unmap { namespace, index, count } => out.u8(6).u32(namespace).u32(index).u32(count),
            Record::Create { namespace, nguid, block_size, bytes, name } => {
                out.u8(7).u32(namespace).raw(&nguid).u32(block_size).u64(bytes).counted(name.as_bytes())
            }
            Record::Grow { namespace, bytes } => out.u8(8).u32(namespace).u64(bytes),
            Record::Share { namespace, source, nguid, read_only, name } => {
                out.u8(9).u32(namespace).u32(source).raw(&nguid).u8(read_only.into()).counted(name.as_bytes())
            }
            Record::Delete { namespace } => out.u8(10).u32(namespace),
            Record::Attribute { namespace, key, value } => {
                out.u8(11).u32(namespace).counted(key.as_bytes()).counted(value)
            }
        };
    }

    pub(super) fn decode(from: &mut Reader<'a>) -> Result<Record<'a>, Short> {
        Ok(match from.u8()? {
            1 => Record::Map { namespace: from.u32()?, index: from.u32()?, extent: from.u32()? },
            2 => Record::Intent { extent: from.u32()?, first: from.u32()?, values: values(from)? },
            3 => Record::Set { extent: from.u32()?, first: from.u32()?, values: values(from)? },
            4 => Record::Fill { extent: from.u32()?, first: from.u32()?, count: from.u32()?, value: from.u64()? },
            5 => {
                Record::Move { namespace: from.u32()?, index: from.u32()?, extent: from.u32()?, values: values(from)? }
            }
            6 => Record::Unmap { namespace: from.u32()?, index: from.u32()?, count: from.u32()? },
            7 => Record::Create {
                namespace: from.u32()?,
                nguid: from.array16()?,
                block_size: from.u32()?,
                bytes: from.u64()?,
                name: from.text()?,
            },
            8 => Record::Grow { namespace: from.u32()?, bytes: from.u64()? },
            9 => Record::Share {
                namespace: from.u32()?,
                source: from.u32()?,
                nguid: from.array16()?,
                read_only: from.u8()? != 0,
                name: from.text()?,
            },
            10 => Record::Delete { namespace: from.u32()? },
            11 => Record::Attribute { namespace: from.u32()?, key: from.text()?, value: from.counted()? },
            _ => return Err(Short),
        })
    }
}

fn values<'a>(from: &mut Reader<'a>) -> Result<&'a [u8], Short> {
    let values = from.counted()?;
    if values.len().is_multiple_of(8) { Ok(values) } else { Err(Short) }
}

/// The transactions of a frame: sequence and records of each.
pub(super) fn transactions<'a>(records: &'a [u8]) -> impl Iterator<Item = Result<(u64, Reader<'a>), Short>> {
    let mut from = Reader(records);
    std::iter::from_fn(move || {
        (!from.is_empty()).then(|| {
            let (length, sequence) = (from.u32()?, from.u64()?);
            from.raw(length as usize).map(|records| (sequence, Reader(records)))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_and_cut_ones_are_refused() {
        let values: Vec<u8> = (0..24).collect();
        let records = [
            Record::Map { namespace: 1, index: 2, extent: 3 },
            Record::Intent { extent: 4, first: 5, values: &values },
            Record::Set { extent: 6, first: 7, values: &[] },
            Record::Fill { extent: 8, first: 9, count: 10, value: 11 },
            Record::Move { namespace: 12, index: 13, extent: 14, values: &values },
            Record::Unmap { namespace: 15, index: 16, count: 17 },
            Record::Create { namespace: 18, nguid: [19; 16], block_size: 512, bytes: 20, name: "a" },
            Record::Grow { namespace: 21, bytes: 22 },
            Record::Share { namespace: 23, source: 24, nguid: [25; 16], read_only: true, name: "bc" },
            Record::Delete { namespace: 26 },
            Record::Attribute { namespace: 27, key: "k", value: b"v" },
        ];
        for record in records {
            let mut out = Writer::default();
            record.encode(&mut out);
            assert_eq!(Record::decode(&mut Reader(&out.0)), Ok(record));
            for len in 0..out.0.len() {
                assert_eq!(Record::decode(&mut Reader(&out.0[..len])), Err(Short), "{record:?} cut at {len}");
            }
        }
    }
}
