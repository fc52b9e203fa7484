//! Entry points for fuzzing: any bytes may come from a medium, and nothing may panic.

use super::item::Origin;
use super::page::{self, Trailer};
use super::place::{PAGE_BYTES, Place};
use super::read::{Parsed, Which, parse};
use super::shared::Base;
use super::summary::{self, Last};
use super::superblock::{Found, Superblock};

/// Pages as read from a medium, taken for each thing that they may be. The checksums of what describes a page and a
/// summary are made right, so that what stands behind them is reached.
pub fn flash_decode(bytes: &[u8]) {
    let Some((&[a, b, c, d, kind, accessed @ ..], bytes)) = bytes.split_first_chunk::<9>() else { return };
    let Some((&cas, bytes)) = bytes.split_first_chunk() else { return };
    let mut pages = bytes.to_vec();
    pages.resize(bytes.len().next_multiple_of(PAGE_BYTES).max(PAGE_BYTES), 0);
    if let Some(page) = pages.first_chunk()
        && let Found::Superblock(superblock) = Superblock::find(page)
    {
        assert_eq!(superblock.encode(), *page);
    }
    let (before, last) = pages.split_at(pages.len() - PAGE_BYTES);
    if let Some(found) = Last::decode(last, 1024) {
        let _ = found.records(last, before); // either way is right
    }
    let records: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    let encoded = summary::encode(7, 1, &records);
    let (before, last) = encoded.split_at(encoded.len() - PAGE_BYTES);
    let found = Last::decode(last, u32::MAX).and_then(|found| found.records(last, before));
    assert_eq!(found.as_ref(), Some(&records));
    records.iter().for_each(|&record| {
        let (hash, place) = summary::parts(record, 1024);
        assert_eq!(summary::record(hash, place, 1024), record);
    });
    let place = Place::from_parts(9, kind);
    if let Some(page) = pages.first_chunk_mut()
        && place.is_shared()
    {
        let base = Base { accessed: u32::from_le_bytes(accessed), cas: u64::from_le_bytes(cas) };
        let (start, end) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        page::finish(page, 9, &Trailer { start, end, base, life: 7 });
    }
    for which in [Which::Slot(usize::from(kind)), Which::Key(b"key")] {
        let (first, rest) = pages.split_at(PAGE_BYTES);
        let views = [first, rest].map(|part| engine::Buf::copy_from(&part[..part.len().min(1 << 20)]).freeze());
        if let Parsed::Found(fetched) = parse(place, which, 7, views.to_vec(), Origin(0)) {
            assert!(fetched.value_len() <= pages.len() && !fetched.key().is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hostile_pages_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..9000), kind: u8) {
            flash_decode(&bytes);
            // The whole page is items'.
            let [extent, base] = [&[0, 0, 0, 0x10, kind][..], &[0x80; 12]];
            flash_decode(&[extent, base, &*bytes].concat());
        }
    }
}
