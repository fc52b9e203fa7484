//! Entry points for fuzzing: any bytes may stand on a medium, and nothing may panic. Where a checksum stands between the
//! bytes and a decoder the decoder is asked without it: a checksum is no defence against whoever writes it himself.

use std::path::Path;

use super::checkpoint::{self, Header, encode_state, encode_table};
use super::frame::{self, Found};
use super::layout::{EXTENT_BYTES_MIN, Layout, PAGE};
use super::record::Record;
use super::recover::{NUMBER_MAX, Replay};
use super::state::State;

/// Bytes of a drive that the structures are read against.
const BYTES: u64 = 8 << 20;

/// What an opening reads. The first byte chooses: a superblock, a checkpoint's headers, its body, a ring of frames, or the
/// transactions of a frame on an empty drive, at the first number of all and at the last.
pub fn drive_open(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    let layout = Layout::new([1; 16], BYTES, 4096, EXTENT_BYTES_MIN, None)
        .expect("8 MiB hold some extents of 64 KiB: BYTES is a constant");
    match kind % 5 {
        0 => superblock(bytes),
        1 => {
            let mut pages = vec![0; 2 * PAGE];
            let len = bytes.len().min(pages.len());
            pages[..len].copy_from_slice(&bytes[..len]);
            if let Some(header) = Header::decode(&pages, &layout.id) {
                assert_eq!(Header::decode(&header.encode(&layout.id), &layout.id), Some(header));
            }
        }
        2 => body(bytes, &layout),
        3 => {
            for at in (0..bytes.len()).step_by(PAGE) {
                if let Found::Frame(range, ..) = frame::any(bytes, at) {
                    assert!(range.start == at && range.end <= bytes.len());
                }
            }
            frame::newest(bytes);
        }
        _ => [1, NUMBER_MAX].into_iter().for_each(|number| replay(bytes, number, &layout)),
    }
}

/// A superblock, its checksum made right.
fn superblock(bytes: &[u8]) {
    let mut page = Layout::new([1; 16], BYTES, 4096, EXTENT_BYTES_MIN, None)
        .expect("8 MiB hold some extents of 64 KiB: BYTES is a constant")
        .encode();
    let len = bytes.len().min(PAGE - 8);
    page[..len].copy_from_slice(&bytes[..len]);
    let sum = xxhash_rust::xxh3::xxh3_64(&page[..PAGE - 8]);
    page[PAGE - 8..].copy_from_slice(&sum.to_le_bytes());
    if let Ok(Some(layout)) = Layout::decode(&page) {
        assert_eq!(Layout::decode(&layout.encode()), Ok(Some(layout)));
    }
}

fn body(bytes: &[u8], layout: &Layout) {
    let Ok((state, table)) = checkpoint::decode(bytes, layout) else { return };
    consistent(&state);
    let mut again = encode_state(&state);
    encode_table(&mut again, &table);
    let (other, other_table) = checkpoint::decode(&again.0, layout).expect("what was encoded is decoded");
    assert!(other.namespaces.len() == state.namespaces.len() && other.references == state.references);
    assert_eq!(other_table, table);
}

fn replay(bytes: &[u8], number: u64, layout: &Layout) {
    if bytes.len() > frame::FRAME_CONTENT_MAX {
        return;
    }
    let mut ring = vec![0; frame::frame_bytes(bytes.len()) + PAGE];
    let end = ring.len() - PAGE;
    frame::seal(&mut ring[..end], frame::FrameHead { number, generation: number, stable: u64::MAX }, bytes);
    let header =
        Header { generation: number, sequence: number - 1, frame: number, head: 0, body_bytes: 0, body_sum: 0 };
    if let Ok(replay) = Replay::run(Path::new("fuzzed"), &ring, &header, State::new(layout), layout) {
        consistent(&replay.state);
    }
}

/// References are what the maps say, and what nobody refers to is free.
fn consistent(state: &State) {
    let mut counted = vec![0_u32; state.references.len()];
    for space in state.namespaces.values() {
        space.map.iter().for_each(|(_, extent)| counted[extent as usize] += 1);
    }
    assert_eq!(counted, state.references);
    assert_eq!(counted.iter().map(|&count| u64::from(count)).sum::<u64>(), state.entries);
    assert!((0..).zip(&counted).all(|(extent, &count)| state.is_free(extent) == (count == 0)));
}

/// One input for each kind, each as a drive writes it, named: the corpus to begin with.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let layout = Layout::new([1; 16], BYTES, 4096, EXTENT_BYTES_MIN, None)
        .expect("8 MiB hold some extents of 64 KiB: BYTES is a constant");
    let mut state = State::new(&layout);
    let records = [
        Record::Create { namespace: 1, nguid: [0xfe; 16], block_size: 4096, bytes: 1 << 20, name: "a" },
        Record::Map { namespace: 1, index: 3, extent: 5 },
        Record::Set { extent: 5, first: 1, values: &[9; 16] },
        Record::Attribute { namespace: 1, key: "k", value: b"v" },
        Record::Share { namespace: 2, source: 1, nguid: [0xfd; 16], read_only: true, name: "s" },
        Record::Move { namespace: 1, index: 3, extent: 6, values: &[9; 128] },
        Record::Unmap { namespace: 1, index: 0, count: 4 },
        Record::Grow { namespace: 1, bytes: 2 << 20 },
    ];
    let mut journal = Vec::new();
    for (sequence, record) in (1..).zip(&records) {
        let mut out = super::bytes::Writer::default();
        record.encode(&mut out);
        journal.extend_from_slice(&(out.0.len() as u32).to_le_bytes());
        journal.extend_from_slice(&u64::to_le_bytes(sequence));
        journal.extend_from_slice(&out.0);
        state.apply(record, sequence).expect("the records above fit one another: they are constants");
    }
    let mut body = encode_state(&state);
    encode_table(&mut body, &[0, 8]);
    let header = Header { generation: 2, sequence: 8, frame: 3, head: 4096, body_bytes: 100, body_sum: 7 };
    let mut ring = vec![0; frame::frame_bytes(journal.len())];
    frame::seal(&mut ring, frame::FrameHead { number: 3, generation: 2, stable: 1 }, &journal);
    let of_kind = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    vec![
        ("superblock", of_kind(0, &layout.encode())),
        ("headers", of_kind(1, &header.encode(&layout.id))),
        ("body", of_kind(2, &body.0)),
        ("ring", of_kind(3, &ring)),
        ("transactions", of_kind(4, &journal)),
    ]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What the fuzzer does for hours, for a moment: seeds with some bytes changed, and cut short.
        #[test]
        fn no_bytes_make_an_opening_panic(
            seed in 0..5_usize,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            keep in any::<prop::sample::Index>(),
        ) {
            let (_, mut bytes) = seeds().swap_remove(seed);
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            drive_open(&bytes);
            bytes.truncate(keep.index(bytes.len()) + 1);
            drive_open(&bytes);
        }
    }

    /// The corpus in the tree is what this version writes.
    #[test]
    fn seeds_are_in_the_tree() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/drive_open");
        for (name, bytes) in seeds() {
            let found = std::fs::read(folder.join(name)).unwrap_or_default();
            assert!(found == bytes, "{name} differs; write it anew: device::drive::fuzz::seeds()");
            drive_open(&bytes);
        }
    }
}
