//! A page that items share. Pure bytes, no I/O.
//!
//! ```text
//!    0  the end of a longer item, up to `start` (0 where there is none)
//!       items, one right behind another, from `start` to `end`: the first is in slot 0
//!       zeroes
//! 4068  start         u16
//! 4070  end           u16
//! 4072  accessed      u32   seconds since 1970: what the items' differences are from ([`super::shared`])
//! 4076  cas           u64   likewise
//! 4084  life          u64   of the segment, when this was written
//! 4092  check         u32   CRC-32C of the page's number (u32) and all before: what was written elsewhere is none of ours
//! ```
//!
//! What describes the page is at its end, so that a longer item, which begins at the beginning of a page, can end
//! anywhere: what its last page has left is not wasted. One checksum for all: a page is read as a whole, and one for each
//! item would be as much as all that is told of its times. The check is last, so that it goes over one run of bytes.

use crc_fast::CrcAlgorithm::Crc32Iscsi;

use super::item::{Decoded, Origin, Reader};
use super::place::PAGE_BYTES;
use super::shared::{self, Base};

const CHECK_BYTES: usize = 4;
/// Bytes at the end of a page that describe it.
const TRAILER_BYTES: usize = 2 + 2 + 4 + 8 + 8 + CHECK_BYTES;
/// Bytes for items.
pub(crate) const ROOM_BYTES: usize = PAGE_BYTES - TRAILER_BYTES;

/// What describes a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Trailer {
    pub(crate) start: u16,
    pub(crate) end: u16,
    pub(crate) base: Base,
    pub(crate) life: u64,
}

fn check(bytes: &[u8; PAGE_BYTES], page: u32) -> [u8; CHECK_BYTES] {
    let mut sum = crc_fast::Digest::new(Crc32Iscsi);
    sum.update(&page.to_le_bytes());
    sum.update(&bytes[..PAGE_BYTES - CHECK_BYTES]);
    (sum.finalize() as u32).to_le_bytes()
}

/// Ends page number `page`, whose items are there: from now on a change of any of its bytes is noticed.
pub(crate) fn finish(bytes: &mut [u8; PAGE_BYTES], page: u32, trailer: &Trailer) {
    let Trailer { start, end, base, life } = trailer;
    let mut at = ROOM_BYTES;
    let mut add = |field: &[u8]| {
        bytes[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    };
    add(&start.to_le_bytes());
    add(&end.to_le_bytes());
    add(&base.accessed.to_le_bytes());
    add(&base.cas.to_le_bytes());
    add(&life.to_le_bytes());
    let check = check(bytes, page);
    bytes[PAGE_BYTES - CHECK_BYTES..].copy_from_slice(&check);
}

/// What describes the page, and its checksum.
fn trailer(bytes: &[u8; PAGE_BYTES]) -> Option<(Trailer, [u8; CHECK_BYTES])> {
    let mut reader = Reader(&bytes[ROOM_BYTES..]);
    let (start, end) = (u16::from_le_bytes(reader.array()?), u16::from_le_bytes(reader.array()?));
    let (accessed, cas) = (u32::from_le_bytes(reader.array()?), u64::from_le_bytes(reader.array()?));
    let life = u64::from_le_bytes(reader.array()?);
    Some((Trailer { start, end, base: Base { accessed, cas }, life }, reader.array()?))
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
    let (trailer, written) = trailer(bytes)?;
    if trailer.life != life || written != check(bytes, page) {
        return None;
    }
    let (mut at, end) = (usize::from(trailer.start), usize::from(trailer.end));
    let room = bytes.get(..end.min(ROOM_BYTES))?;
    Some(std::iter::from_fn(move || {
        let begin = at;
        let item = shared::decode(room.get(begin..)?, &trailer.base, origin)?;
        at = begin.checked_add(item.len()).filter(|&next| next <= room.len())?;
        Some((begin, item))
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::flash::shared::Head;
    use crate::item::{Cas, Meta};

    const BASE: Base = Base { accessed: 1_795_000_000, cas: 1000 };

    fn page(life: u64) -> [u8; PAGE_BYTES] {
        let mut bytes = vec![0; 100];
        for number in 0..5_u8 {
            let (key, value) = ([b'a' + number; 20], [number; 30]);
            let meta = Meta { cas: Cas(998 + u64::from(number)), ..Meta::default() };
            let head = Head::new(key.len(), &meta, value.len(), Origin(1_795_000_000));
            bytes.extend([head.to_bytes(&BASE).bytes(), &key, &value].concat());
        }
        let trailer = Trailer { start: 100, end: bytes.len() as u16, base: BASE, life };
        bytes.resize(PAGE_BYTES, 0);
        let mut bytes = *bytes.first_chunk().expect("a page");
        finish(&mut bytes, 7, &trailer);
        bytes
    }

    #[test]
    fn items_are_found_in_order_behind_the_end_of_another() {
        let bytes = page(5);
        let items = items(&bytes, 7, 5, Origin(0)).expect("that page");
        let (keys, cas): (Vec<_>, Vec<_>) = items.map(|(_, item)| (item.key[0], item.meta.cas.0)).unzip();
        assert_eq!((&*keys, &*cas), (&b"abcde"[..], &[998, 999, 1000, 1001, 1002][..]));
    }

    #[test]
    fn another_page_or_life_is_not_taken() {
        let bytes = page(5);
        assert!(items(&bytes, 8, 5, Origin(0)).is_none(), "another page's bytes");
        assert!(items(&bytes, 7, 6, Origin(0)).is_none(), "an earlier life's bytes");
        assert!(items(&bytes[1..], 7, 5, Origin(0)).is_none(), "short");
    }

    #[test]
    fn every_damaged_bit_is_noticed() {
        let mut bytes = page(5);
        for bit in 0..PAGE_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(items(&bytes, 7, 5, Origin(0)).is_none(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(items(&bytes, 7, 5, Origin(0)).is_some());
    }

    proptest! {
        #[test]
        fn hostile_items_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), PAGE_BYTES),
            (start, end) in (any::<u16>(), any::<u16>()),
            (accessed, cas) in (any::<u32>(), any::<u64>()),
        ) {
            let mut bytes = *bytes.first_chunk().expect("a page");
            finish(&mut bytes, 3, &Trailer { start, end, base: Base { accessed, cas }, life: 9 });
            let found = items(&bytes, 3, 9, Origin(0)).expect("its trailer is right");
            for (begin, item) in found {
                prop_assert!(begin + item.len() <= ROOM_BYTES);
            }
        }
    }
}
