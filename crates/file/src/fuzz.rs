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

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::data::{SPAN_BYTES, Stripe, StripeId};

    /// A map of a shape, of stripes with their places, in what the target takes.
    fn seed(data: usize, parity: usize, stripes: &[(u64, u32)]) -> Vec<u8> {
        let shape = Shape::new(data, parity).expect("a shape that there is");
        let mut map = Map::default();
        for (number, &(at, length)) in (0..).zip(stripes) {
            let id = StripeId { chunk: number + 1, row: 200 * number, write: 77 * number };
            let sums = (0..shape.cut(length as usize).sums() as u32).collect();
            map.write(at, Rc::new(Stripe { id, length, missing: number & 1, sums }));
        }
        let mut bytes = vec![data as u8 - 1, parity as u8 - 1];
        map.encode(0, &mut bytes);
        assert_eq!(Map::decode(&bytes[2..], shape, 0..FILE_BYTES_MAX), Ok(map));
        bytes
    }

    /// The corpus in the tree is what this version writes; `YAGURA_WRITE_SEEDS=1` writes it.
    #[test]
    fn seeds_are_in_the_tree() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/file_map");
        let seeds = [
            // Of a stripe two extents are left, and a hole.
            ("split", seed(2, 1, &[(0, 1000), (100, 50), (4000, 700)])),
            ("wide", seed(8, 3, &[(0, 300_000), (SPAN_BYTES, 5000)])),
        ];
        for (name, bytes) in seeds {
            if std::env::var_os("YAGURA_WRITE_SEEDS").is_some() {
                std::fs::create_dir_all(&folder).expect("made");
                std::fs::write(folder.join(name), &bytes).expect("written");
            }
            let found = std::fs::read(folder.join(name)).unwrap_or_default();
            assert!(found == bytes, "{name} differs; write it anew: YAGURA_WRITE_SEEDS=1");
            file_map(&bytes);
        }
    }
}
