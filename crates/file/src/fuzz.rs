//! Entry points for fuzzing: any bytes as any record, and as a map.

use crate::data::{FILE_BYTES_MAX, Map, Shape};
use crate::record::Record;
use crate::record::inode::Inode;
use crate::record::intent::Intent;
use crate::record::lock::LockRecord;
use crate::record::node::Node;
use crate::record::quota::QuotaRecord;
use crate::record::root::RootRecord;
use crate::record::small::{ClientRecord, Moves, NextInode, ScrubPlace};

/// Bytes that are a record are, encoded again, the same bytes.
pub fn records(bytes: &[u8]) {
    let parsers: [fn(&[u8]); 10] = [
        round_trip::<Inode>,
        round_trip::<Intent>,
        round_trip::<Node>,
        round_trip::<RootRecord>,
        round_trip::<ClientRecord>,
        round_trip::<LockRecord>,
        round_trip::<Moves>,
        round_trip::<NextInode>,
        round_trip::<QuotaRecord>,
        round_trip::<ScrubPlace>,
    ];
    for parser in parsers {
        parser(bytes);
        // What begins as a record has to is looked at further.
        parser(&[&[1], bytes].concat());
    }
}

fn round_trip<R: Record>(bytes: &[u8]) {
    if let Ok(record) = R::decode(bytes) {
        assert_eq!(record.encode(), bytes);
    }
}

/// A map of any shape, which two first bytes tell: it is refused, or has this one form.
pub fn file_map(bytes: &[u8]) {
    let Some((&[data, parity], bytes)) = bytes.split_first_chunk() else { return };
    let Ok(shape) = Shape::new(usize::from(data) % 32 + 1, usize::from(parity) % 4 + 1) else { return };
    let Ok(map) = Map::decode(bytes, shape, 0..FILE_BYTES_MAX) else { return };
    let mut again = Vec::new();
    map.encode(0, &mut again);
    assert_eq!(again, bytes);
    assert_eq!(map.encoded_len(0), bytes.len());
}
