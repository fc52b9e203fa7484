//! A page that items share. Pure bytes, no I/O.
//!
//! ```text
//!    0  the end of a longer item, up to `start` (0 where there is none)
//!       items, one right behind another, from `start` to `end`: the first is in slot 0
//!       zeroes
//! 4080  start       u16
//! 4082  end         u16
//! 4084  check       u32   CRC-32C of page number (u32), start, end and life: a page that was written elsewhere is none of ours
//! 4088  life        u64   of the segment, when this was written
//! ```
//!
//! What describes the page is at its end, so that a longer item, which begins at the beginning of a page, can end
//! anywhere: what its last page has left is not wasted.

use crc_fast::CrcAlgorithm::Crc32Iscsi;

use super::item::{self, Decoded, Origin};
use super::place::PAGE_BYTES;

/// Bytes at the end of a page that describe it.
pub(crate) const TRAILER_BYTES: usize = 16;
/// Bytes for items.
pub(crate) const ROOM_BYTES: usize = PAGE_BYTES - TRAILER_BYTES;

fn check(page: u32, extent: [u8; 4], life: u64) -> [u8; 4] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&page.to_le_bytes());
    bytes[4..8].copy_from_slice(&extent);
    bytes[8..].copy_from_slice(&life.to_le_bytes());
    (crc_fast::checksum(Crc32Iscsi, &bytes) as u32).to_le_bytes()
}

/// What stands at the end of page number `page`, whose items are in `start..end`.
pub(crate) fn trailer(page: u32, start: u16, end: u16, life: u64) -> [u8; TRAILER_BYTES] {
    let mut bytes = [0; TRAILER_BYTES];
    bytes[..2].copy_from_slice(&start.to_le_bytes());
    bytes[2..4].copy_from_slice(&end.to_le_bytes());
    bytes[8..].copy_from_slice(&life.to_le_bytes());
    let extent = [bytes[0], bytes[1], bytes[2], bytes[3]];
    bytes[4..8].copy_from_slice(&check(page, extent, life));
    bytes
}

/// The items of page number `page`, in order of their slots, each with where it begins. `None`: these bytes are not
/// that page, as it was written in this `life` of its segment. It ends where no item begins.
pub(crate) fn items(
    bytes: &[u8],
    page: u32,
    life: u64,
    origin: Origin,
) -> Option<impl Iterator<Item = (usize, Decoded<'_>)>> {
    let bytes: &[u8; PAGE_BYTES] = bytes.first_chunk()?;
    let trailer: [u8; TRAILER_BYTES] = *bytes.last_chunk()?;
    let [a, b, c, d, check_0, check_1, check_2, check_3, written_in @ ..] = trailer;
    let sound = [check_0, check_1, check_2, check_3] == check(page, [a, b, c, d], life);
    if !sound || u64::from_le_bytes(written_in) != life {
        return None;
    }
    let (mut at, end) = (usize::from(u16::from_le_bytes([a, b])), usize::from(u16::from_le_bytes([c, d])));
    let room = bytes.get(..end.min(ROOM_BYTES))?;
    Some(std::iter::from_fn(move || {
        let begin = at;
        let item = item::decode(room.get(begin..)?, origin)?;
        at = begin.checked_add(item.len()).filter(|&next| next <= room.len())?;
        Some((begin, item))
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::flash::item::Head;
    use crate::item::Meta;

    fn page(life: u64) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        for number in 0..5_u8 {
            let (key, value) = ([b'a' + number; 20], [number; 30]);
            let mut head = Head::new(key.len(), &Meta::default(), value.len(), false, Origin(0));
            head.seal(&key, &[&value]);
            bytes.extend([head.bytes(), &key, &value].concat());
        }
        let end = bytes.len() as u16;
        bytes.resize(ROOM_BYTES, 0);
        bytes.extend(trailer(7, 100, end, life));
        bytes
    }

    #[test]
    fn items_are_found_in_order_behind_the_end_of_another() {
        let bytes = page(5);
        let keys: Vec<_> = items(&bytes, 7, 5, Origin(0)).expect("that page").map(|(_, item)| item.key[0]).collect();
        assert_eq!(keys, b"abcde");
    }

    #[test]
    fn another_page_or_life_is_not_taken() {
        let bytes = page(5);
        assert!(items(&bytes, 8, 5, Origin(0)).is_none(), "another page's bytes");
        assert!(items(&bytes, 7, 6, Origin(0)).is_none(), "an earlier life's bytes");
        assert!(items(&bytes[1..], 7, 5, Origin(0)).is_none(), "short");
        for at in ROOM_BYTES..PAGE_BYTES {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(items(&damaged, 7, 5, Origin(0)).is_none(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn hostile_items_never_panic(bytes in proptest::collection::vec(any::<u8>(), ROOM_BYTES), start: u16, end: u16) {
            let bytes = [&*bytes, &trailer(3, start, end, 9)].concat();
            let found = items(&bytes, 3, 9, Origin(0)).expect("its trailer is right");
            for (begin, item) in found {
                prop_assert!(begin + item.len() <= ROOM_BYTES);
            }
        }
    }
}
