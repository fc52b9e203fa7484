//! Entry point for fuzzing: any bytes as any record.

use crate::record::Record;
use crate::record::inode::Inode;
use crate::record::intent::Intent;
use crate::record::node::Node;
use crate::record::root::RootRecord;
use crate::record::small::{ClientRecord, Moves, NextInode};

/// Bytes that are a record are, encoded again, the same bytes.
pub fn records(bytes: &[u8]) {
    let parsers: [fn(&[u8]); 7] = [
        round_trip::<Inode>,
        round_trip::<Intent>,
        round_trip::<Node>,
        round_trip::<RootRecord>,
        round_trip::<ClientRecord>,
        round_trip::<Moves>,
        round_trip::<NextInode>,
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
