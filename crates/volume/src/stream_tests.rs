use super::*;
use crate::ballot::Ballot;
use proptest::prelude::*;

const BLOCK: u64 = 512;

fn name(attempt: u32) -> SnapshotName {
    SnapshotName { ballot: Ballot { round: 3, host: 0x99 }, attempt }
}

fn header(from: Option<u64>) -> Header {
    let from = from.map(|bytes| (name(1), bytes));
    Header { to: SnapshotId { volume: 77, name: name(2) }, from, bytes: 64 * BLOCK, block_size: BLOCK as u32 }
}

/// What is written, as it is to be read.
fn written(header: Header, extents: &[(u64, u64, bool)]) -> (Vec<u8>, Vec<Item>) {
    let (mut encoder, mut bytes) = Encoder::new(&header);
    let mut items = vec![Item::Header(header)];
    for &(first, blocks, is_data) in extents {
        let (offset, length) = (first * BLOCK, blocks * BLOCK);
        if is_data {
            let data: Vec<u8> = (0..length).map(|at| (at % 251) as u8 ^ first as u8).collect();
            bytes.extend(encoder.data(offset, &data));
            items.push(Item::Data { offset, bytes: data });
        } else {
            bytes.extend(encoder.zeroes(offset, length));
            items.push(Item::Zeroes { offset, bytes: length });
        }
    }
    items.push(Item::End(encoder.counts()));
    bytes.extend(encoder.end());
    (bytes, items)
}

/// What is read of bytes that come so many at a time.
fn read(bytes: &[u8], at_once: usize) -> Result<Vec<Item>, StreamError> {
    let (mut decoder, mut items) = (Decoder::default(), Vec::new());
    for some in bytes.chunks(at_once) {
        decoder.push(some);
        while let Some(item) = decoder.item()? {
            items.push(item);
        }
    }
    decoder.finish().map(|()| items)
}

const EXTENTS: [(u64, u64, bool); 4] = [(0, 2, true), (2, 1, false), (9, 1, true), (60, 4, false)];

#[test]
fn the_bytes_are_those_of_the_page() {
    let (bytes, _) = written(header(Some(32 * BLOCK)), &EXTENTS[2..]);
    assert_eq!((&bytes[..8], bytes[8], bytes[13], bytes[24]), (&b"YAGURAVS"[..], 1, 2, 77));
    assert_eq!((bytes[40], bytes[41], bytes[48], bytes[56], bytes[64]), (0, 128, 3, 0x99, 2));
    assert_eq!((bytes[72], bytes[88], bytes[96], bytes[97]), (3, 1, 0, 64));
    let item = &bytes[128..];
    assert_eq!((item[0], u64_at(item, 8), u64_at(item, 16), item[32]), (1, 9 * 512, 512, 9));
    let zeroes = &item[32 + 512..];
    assert_eq!((zeroes[0], u64_at(zeroes, 8), u64_at(zeroes, 16)), (2, 60 * 512, 4 * 512));
    let trailer = &zeroes[32..];
    assert_eq!((trailer.len(), trailer[0]), (56, 3));
    assert_eq!([8, 16, 24, 32].map(|at| u64_at(trailer, at)), [1, 512, 1, 4 * 512]);
}

/// Written by a program that has nothing of this one but the page: the seeds of the fuzzer.
#[test]
fn a_stream_of_another_hand_is_read() {
    let data = Item::Data { offset: 0, bytes: (0..512).map(|at| at as u8).collect() };
    let counts = Counts { extents: 1, bytes: 512, zero_extents: 1, zero_bytes: 2048 };
    let items = [data, Item::Zeroes { offset: 1024, bytes: 2048 }, Item::End(counts)];
    let everything = include_bytes!("../../../fuzz/seeds/volume_stream/everything");
    let change = include_bytes!("../../../fuzz/seeds/volume_stream/change");
    for (bytes, header) in [(everything, header(None)), (change, header(Some(32 * BLOCK)))] {
        let expected = [&[Item::Header(header)], &items[..]].concat();
        assert_eq!(read(bytes, 100), Ok(expected));
    }
}

#[test]
fn a_damaged_byte_anywhere_is_an_error() {
    let (bytes, items) = written(header(Some(32 * BLOCK)), &EXTENTS);
    assert_eq!(read(&bytes, 1 << 20), Ok(items));
    for at in 0..bytes.len() {
        for bit in [0, 7] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            assert!(read(&damaged, 1 << 20).is_err(), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn what_is_cut_off_is_never_whole() {
    let (bytes, _) = written(header(None), &EXTENTS);
    for left in 0..bytes.len() {
        let said = read(&bytes[..left], 1 << 20);
        let expected = if left < 8 { StreamError::NotOne } else { StreamError::Cut(left as u64) };
        assert_eq!(said, Err(expected));
    }
    let mut more = bytes.clone();
    more.push(0);
    assert_eq!(read(&more, 1 << 20), Err(StreamError::Follows(bytes.len() as u64)));
    assert_eq!(read(&more, 1), Err(StreamError::Follows(bytes.len() as u64)));
}

/// Every item has its own checksum: what is left out, is there twice, or is of another stream, is seen by the one over all.
#[test]
fn items_that_are_missing_or_of_another_stream_are_seen() {
    let (bytes, _) = written(header(None), &EXTENTS);
    let (other, _) = written(header(Some(64 * BLOCK)), &EXTENTS);
    let first = HEADER_BYTES..HEADER_BYTES + HEAD_BYTES + 1024;
    let without = [&bytes[..first.start], &bytes[first.end..]].concat();
    assert_eq!(read(&without, 4096), Err(StreamError::NotAsWritten));
    let spliced = [&bytes[..HEADER_BYTES], &other[HEADER_BYTES..]].concat();
    assert_eq!(read(&spliced, 4096), Err(StreamError::NotAsWritten));
    // An extent of zeroes in the place of another one of as many: nothing but the checksum over all has anything else.
    let (elsewhere, _) = written(header(None), &[EXTENTS[0], (3, 1, false), EXTENTS[2], EXTENTS[3]]);
    let zeroes = first.end..first.end + HEAD_BYTES;
    let swapped = [&bytes[..zeroes.start], &elsewhere[zeroes.clone()], &bytes[zeroes.end..]].concat();
    assert_eq!(read(&swapped, 4096), Err(StreamError::NotAsWritten));
    let twice = [&bytes[..first.end], &bytes[first.start..]].concat();
    let overlaps = StreamError::Field("an extent that lies before the end of another", first.end as u64);
    assert_eq!(read(&twice, 4096), Err(overlaps));
}

#[test]
fn extents_that_nobody_writes_are_refused() {
    for (extent, what) in [
        ((60, 5, true), "has not"),
        ((u64::MAX / BLOCK, 2, false), "has not"),
        ((3, 0, false), "has not"),
        ((0, 1, false), "before the end"),
    ] {
        let (mut encoder, mut bytes) = Encoder::new(&header(None));
        bytes.extend(encoder.zeroes(0, 2 * BLOCK));
        let (offset, length) = (extent.0 * BLOCK, extent.1 * BLOCK);
        bytes.extend(if extent.2 {
            encoder.data(offset, &vec![1; length as usize])
        } else {
            encoder.zeroes(offset, length)
        });
        let said = read(&bytes, 4096).expect_err("refused").to_string();
        assert!(said.contains(what), "{extent:?}: {said}");
    }
    let (mut encoder, mut bytes) = Encoder::new(&header(None));
    bytes.extend(encoder.zeroes(1, BLOCK));
    assert!(read(&bytes, 4096).expect_err("refused").to_string().contains("whole blocks"));
    // Nothing is held for what says that it is long.
    let large = Header { bytes: 1 << 40, ..header(None) };
    let (mut encoder, mut bytes) = Encoder::new(&large);
    bytes.extend(encoder.extent(DATA, 0, EXTENT_BYTES_MAX as u64 + BLOCK, &[]));
    assert!(read(&bytes, 4096).expect_err("refused").to_string().contains("too long"));
}

#[test]
fn headers_that_nobody_writes_are_refused() {
    let said = |change: fn(&mut [u8])| {
        let (mut bytes, _) = written(header(Some(32 * BLOCK)), &[]);
        change(&mut bytes[..HEADER_BYTES]);
        let format = sealed::format(&bytes[..HEADER_BYTES]);
        let magic = *bytes.first_chunk().expect("a header");
        sealed::seal(&mut bytes[..HEADER_BYTES], magic, format);
        read(&bytes, 4096).err()
    };
    assert_eq!(said(|_| {}), None);
    assert_eq!(said(|bytes| bytes[24] ^= 1), Some(StreamError::NotAsWritten), "another volume's");
    assert_eq!(said(|bytes| bytes[0] = b'X'), Some(StreamError::NotOne));
    assert_eq!(said(|bytes| bytes[8] = 2), Some(StreamError::Newer(2)));
    let field = |at| Some(StreamError::Field("a field of the header", at));
    assert_eq!(said(|bytes| bytes[8] = 0), Some(StreamError::Field("a format", 8)));
    assert_eq!(said(|bytes| bytes[13] = 0), field(12));
    assert_eq!(said(|bytes| bytes[13] = 3), field(12));
    assert_eq!(said(|bytes| bytes[40..48].fill(0)), field(40));
    assert_eq!(said(|bytes| bytes[40] = 1), field(40));
    assert_eq!(said(|bytes| bytes[97] = 129), field(40));
    assert_eq!(said(|bytes| bytes[48..72].fill(0)), field(48));
    assert_eq!(said(|bytes| bytes[88] = 2), field(72), "from itself");
    assert_eq!(said(|bytes| bytes[72..96].fill(0)), field(40), "a size of nothing");
    assert_eq!(said(|bytes| bytes[127] = 1), field(104));
}

proptest! {
    #[test]
    fn what_was_written_is_read_however_it_comes(
        extents in prop::collection::vec((0u64..4, 1u64..6, any::<bool>()), 0..10),
        from in any::<bool>(),
        at_once in 1usize..3000,
    ) {
        let mut at = 0;
        let extents = extents.into_iter().filter_map(|(gap, blocks, is_data)| {
            let first = at + gap;
            at = first + blocks;
            (at <= 64).then_some((first, blocks, is_data))
        }).collect::<Vec<_>>();
        let (bytes, items) = written(header(from.then_some(16 * BLOCK)), &extents);
        prop_assert_eq!(read(&bytes, at_once), Ok(items));
    }
}
