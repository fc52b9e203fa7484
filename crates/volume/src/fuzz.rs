//! Entry points for fuzzing: any bytes may stand in the blocks of a holder, and in a stream, and nothing may panic.

use crate::label::{Born, Kind, Label, Shape};
use crate::log::Log;
use crate::record::RecordBlock;
use crate::stream::{Decoder, Encoder, Item, StreamError};

const BLOCK: usize = 512;

fn number(bytes: &[u8]) -> u128 {
    bytes.first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes))
}

/// The blocks of a holder, with their checksums and magics right: without those nothing of the rest is looked at.
pub fn blocks_decode(bytes: &[u8]) {
    let mut block = [0; BLOCK];
    let taken = bytes.len().min(BLOCK);
    block[..taken].copy_from_slice(&bytes[..taken]);
    let mut again = [0; BLOCK];
    let mut with = |magic: &[u8; 8]| {
        device::sealed::seal(&mut block, *magic, 1);
        block
    };
    let label = with(b"YAGURAVL");
    if let Ok(label) = Label::decode(&label) {
        label.encode(&mut again);
        assert_eq!(Label::decode(&again), Ok(label));
    }
    let record = with(b"YAGURAVR");
    let life = number(&record[24..]);
    if let Ok(found) = RecordBlock::decode(&record, life) {
        found.encode(&mut again);
        assert_eq!(RecordBlock::decode(&again, life), Ok(found));
    }
    let shape =
        Shape { volume: 1, replicas: 3, block_size: BLOCK as u32, region_blocks: 8, blocks: 4000, lease_ms: 9000 };
    let (slot, kind, born, log_blocks, data_first) = (0, Kind::Replica, Born::Clean, 2, 2048);
    let log = with(b"YAGURAVI");
    let life = number(&log[24..]);
    let label = Label { shape, slot, kind, born, life, log_blocks, data_first };
    let log = Log::decode(&label, shape.regions(), &log);
    assert!((0..shape.regions()).all(|region| log.entry(region).is_some()), "every region has an entry");
}

/// A stream, with the checksum of its header right: without that nothing of the rest is looked at. What is whole is what would be
/// written of its items.
pub fn stream_decode(bytes: &[u8]) {
    let mut stream = bytes.to_vec();
    if let Some(header) = stream.first_chunk_mut::<128>() {
        device::sealed::seal(header, *b"YAGURAVS", 1);
    }
    let (mut decoder, mut items) = (Decoder::default(), Vec::new());
    let read = (|| {
        for some in stream.chunks(usize::from(bytes.first().copied().unwrap_or(0)).max(1)) {
            decoder.push(some);
            while let Some(item) = decoder.item()? {
                items.push(item);
            }
        }
        decoder.finish()
    })();
    let mut written: Option<(Encoder, Vec<u8>)> = None;
    for item in items {
        let said = match (item, &mut written) {
            (Item::Header(header), place) => {
                *place = Some(Encoder::new(&header));
                continue;
            }
            (Item::Data { offset, bytes }, Some((encoder, _))) => encoder.data(offset, &bytes),
            (Item::Zeroes { offset, bytes }, Some((encoder, _))) => encoder.zeroes(offset, bytes),
            (Item::End(counts), Some((encoder, _))) => {
                assert_eq!(encoder.counts(), counts);
                continue;
            }
            (item, None) => panic!("invariant: {item:?} comes behind the header"),
        };
        if let Some((_, all)) = &mut written {
            all.extend(said);
        }
    }
    let again = written.map(|(encoder, mut all)| {
        all.extend(encoder.end());
        all
    });
    match read {
        Ok(()) => assert!(again.is_some_and(|again| again == stream), "one way to write each"),
        Err(StreamError::Follows(at)) => assert!((at as usize) < stream.len()),
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_taken() {
        blocks_decode(&[]);
        for byte in [0, 1, 2, 0x7f, 0xff] {
            blocks_decode(&[byte; BLOCK + 9]);
            stream_decode(&[byte; BLOCK + 9]);
        }
        stream_decode(&[]);
    }
}
