use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::types::{Applied, Ballot, OpId, Timestamp, VALUE_PART_BYTES};

const INCARNATION: u64 = 77;

fn identity(page: u32) -> Identity {
    Identity { kind: Kind::Table, page, incarnation: INCARNATION }
}

fn ts(counter: u64) -> Timestamp {
    Timestamp { counter, op: OpId { host: 1, sequence: counter }, ballot: Ballot::NONE }
}

fn inline<'a>(key: &'a [u8], value: &'a [u8]) -> Entry<'a> {
    Entry {
        key,
        timestamp: ts(1),
        promise: Ballot::NONE,
        ops: AppliedOps::default(),
        expiry: 0,
        tag: 0,
        stored: Stored::Inline(value),
    }
}

fn blank_page() -> Vec<u8> {
    let mut blank = vec![0; 4096];
    pool::blank::write(&mut blank, INCARNATION);
    blank
}

fn page_with(entries: &[Entry<'_>], guests: &[Guest<'_>]) -> engine::Buf {
    let blank = blank_page();
    let mut draft = Draft::new(&TablePageView::decode(&blank, 5, INCARNATION).unwrap());
    entries.iter().for_each(|entry| draft.put(*entry));
    guests.iter().for_each(|guest| assert!(draft.put_guest(*guest)));
    draft.encode().unwrap()
}

#[test]
fn zeroes_are_a_page_that_is_lost() {
    let zero = vec![0; 4096];
    assert_eq!(TablePageView::decode(&zero, 9, INCARNATION), Err(PageError::Zeroes));
    assert_eq!(AllocationPage::decode(&zero, 9, INCARNATION).map(|_| ()), Err(PageError::Zeroes));
    assert!(PageError::Zeroes.is_damage());
}

#[test]
fn a_blank_page_is_empty_in_its_life_and_no_page_in_another() {
    let mut blank = blank_page();
    let view = TablePageView::decode(&blank, 9, INCARNATION).unwrap();
    assert_eq!((view.header().version, view.entries().count(), view.free()), (0, 0, 4032));
    let mut draft = Draft::new(&view);
    draft.put(inline(b"k", b"v"));
    let written = draft.encode().unwrap();
    assert_eq!(TablePageView::decode(&written, 9, INCARNATION).unwrap().entries().count(), 1);
    assert!(AllocationPage::decode(&blank, 3, INCARNATION).is_ok());
    let other = TablePageView::decode(&blank, 9, INCARNATION + 1).map(|_| ());
    assert_eq!(other, Err(PageError::Incarnation { found: INCARNATION, expected: INCARNATION + 1 }));
    blank[4000] = 1;
    assert!(matches!(TablePageView::decode(&blank, 9, INCARNATION), Err(PageError::Foreign(_))));
}

#[test]
fn usual_entry_of_nearly_four_thousand_bytes_fits_a_page() {
    let (key, value) = ([7; 32], [9; 3968]);
    let bytes = page_with(&[inline(&key, &value)], &[]);
    assert_eq!(TablePageView::decode(&bytes, 5, INCARNATION).unwrap().free(), 0);
    let too_long = [9; 3969];
    let mut draft = Draft::rebuild(identity(5), 4096, 1);
    draft.put(inline(&key, &too_long));
    assert_eq!(draft.encode().unwrap_err(), Full { needed: 4033, room: 4032 });
}

#[test]
fn of_too_many_applied_operations_the_oldest_give_way_to_a_mark() {
    let op = |round| Applied { op: OpId { host: 1, sequence: round }, round };
    let all: Vec<Applied> = (1..=OPS_MAX as u64 + 3).map(op).collect();
    let kept = |ops: &[Applied]| AppliedOps::new(&AppliedOps::encode(ops)).iter().collect::<Vec<_>>();
    assert_eq!(kept(&all[..OPS_MAX]), &all[..OPS_MAX]);
    let cut = kept(&all);
    assert_eq!(cut[0], Applied { op: OpId::default(), round: 4 });
    assert_eq!(cut[1..], all[4..]);
    let again: Vec<Applied> = cut.into_iter().chain([op(99)]).collect();
    assert_eq!(kept(&again)[0], Applied { op: OpId::default(), round: 5 });
}

#[test]
fn bytes_are_exactly_these() {
    let bytes = page_with(&[inline(b"k", b"vw")], &[Guest { copy: 0x0102, home: 3, condemned: false, bytes: b"g" }]);
    assert_eq!(&bytes[..8], b"YGPG\x01\0\x01\0");
    assert_eq!(&bytes[16..32], [1, 0, 0, 0, 0, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&bytes[48..64], [5, 0, 0, 0, 52, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(&bytes[64..72], [0, 0, 1, 0, 2, 0, 0, 0]);
    assert_eq!(&bytes[96..99], b"kvw");
    assert_eq!(&bytes[99..116], [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, b'g']);
    assert!(bytes[116..].iter().all(|&byte| byte == 0));
}

#[test]
fn forward_records_are_exactly_these_bytes_and_keep_room_for_deletions() {
    let entries = [inline(b"a", b"1"), inline(b"b", b"2"), inline(b"c", b"3")];
    let bundle = encode_bundle(&entries);
    assert_eq!(decode_bundle(&bundle).unwrap(), entries);
    let length = bundle.len() as u32;
    let reference = Reference { kind: PlaceKind::Guest, parts: 1, length, place: 9, checksum: 7, copy: 0x0102 };
    let blank = blank_page();
    let mut draft = Draft::new(&TablePageView::decode(&blank, 5, INCARNATION).unwrap());
    draft.put_forward(Forward::new(reference, &entries));
    assert_eq!((draft.used(), draft.committed()), (39, 39 + 3 * DELETION_BYTES));
    draft.delete_bundled(0x0102, 2, &ts(0x0a0b));
    assert_eq!((draft.used(), draft.committed()), (39 + 26, 39 + 3 * DELETION_BYTES));
    draft.delete_bundled(0x0102, 0, &ts(1));
    assert_eq!(draft.take_back(0x0102, 0), None);
    assert_eq!((draft.used(), draft.committed()), (39 + 26, 39 + 2 * DELETION_BYTES));
    let page = draft.encode().unwrap();
    assert_eq!(&page[56..62], [0, 0, 0, 0, 1, 0]);
    assert_eq!(&page[64..80], [1, 0, 1, 0, length as u8, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&page[96..100], [3, 0, 1, 0]);
    assert!(page[100] == 0 && page[101] != 0 && page[102] != 0);
    assert_eq!(&page[103..121], [2, 0, 0x0b, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    let view = TablePageView::decode(&page, 5, INCARNATION).unwrap();
    let forward = view.forwards().next().unwrap();
    assert_eq!(forward.entry(0, entries[0]), None);
    assert_eq!(forward.entry(1, entries[1]), Some(entries[1]));
    let deleted = Entry { timestamp: ts(0x0a0b), stored: Stored::Tombstone, ..entries[2] };
    assert_eq!(forward.entry(2, entries[2]), Some(deleted));
    let mut draft = Draft::new(&view);
    assert_eq!(draft.take_back(0x0102, 1), None);
    assert_eq!(draft.take_back(0x0102, 2), Some(reference));
    assert_eq!(draft.committed(), 0);
}

#[test]
fn every_single_damaged_bit_is_noticed() {
    let good = page_with(&[inline(b"key", b"value"), inline(b"other", b"")], &[]);
    for at in 0..good.len() {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1 << (at % 8);
        assert!(TablePageView::decode(&bytes, 5, INCARNATION).is_err(), "byte {at}");
    }
}

#[test]
fn pages_out_of_place_or_life_are_named() {
    let bytes = page_with(&[inline(b"key", b"value")], &[]);
    let misplaced = TablePageView::decode(&bytes, 6, INCARNATION);
    assert_eq!(misplaced, Err(PageError::Misplaced { found_kind: 1, found: 5 }));
    let earlier = TablePageView::decode(&bytes, 5, 78);
    assert_eq!(earlier, Err(PageError::Incarnation { found: 77, expected: 78 }));
    assert!(matches!(AllocationPage::decode(&bytes, 5, INCARNATION), Err(PageError::Misplaced { .. })));
    assert!(matches!(TablePageView::decode(&[1; 4096], 5, INCARNATION), Err(PageError::Foreign(_))));
    assert!(matches!(TablePageView::decode(&[0; 63], 5, INCARNATION), Err(PageError::Malformed(_))));
    let mut newer = bytes.to_vec();
    newer[4] = 2;
    assert_eq!(TablePageView::decode(&newer, 5, INCARNATION), Err(PageError::Newer(2)));
}

/// A version that repeats would let a delayed compare-and-write succeed over an acknowledged write.
#[test]
fn images_never_repeat() {
    let first = page_with(&[inline(b"key", b"value")], &[]);
    let view = TablePageView::decode(&first, 5, INCARNATION).unwrap();
    let second = Draft::new(&view).encode().unwrap();
    assert_ne!(*first, *second, "the same records under the next version");
    let rebuilt = |salt| Draft::rebuild(identity(5), 4096, salt).encode().unwrap();
    assert_ne!(*rebuilt(1), *rebuilt(2));
    let again = rebuilt(3);
    let next = Draft::new(&TablePageView::decode(&again, 5, INCARNATION).unwrap()).encode().unwrap();
    assert_eq!(TablePageView::decode(&next, 5, INCARNATION).unwrap().header().salt, 3, "the salt stays");
}

#[test]
fn allocation_claims_the_shortest_run_and_frees_by_tag_only() {
    let mut page = AllocationPage::decode(&blank_page(), 2, INCARNATION).unwrap();
    page.claim(0, 4, 11, 1, 0);
    page.claim(7, 33, 12, 2, 500);
    assert_eq!((page.find_run(3), page.find_run(4), page.find_run(240)), (Some(4), Some(40), None));
    assert_eq!(page.free(), 240 - 37);
    let bytes = page.encode_next(4096);
    let mut page = AllocationPage::decode(&bytes, 2, INCARNATION).unwrap();
    assert_eq!(
        (page.version(), page.slots()[8]),
        (1, Claim { tag: 12, home: 2, stamp: 500, index: 1, pages: 33, condemned: false })
    );
    assert!(page.owns(7, 12) && !page.owns(8, 12) && !page.owns(7, 11) && !page.owns(60, 0));
    assert!(!page.release(13) && !page.release(0));
    assert!(page.release(12) && !page.release(12));
    assert_eq!(page.free(), 236);
}

#[test]
fn stock_is_bound_once_and_a_condemned_slot_never() {
    let mut page = AllocationPage::decode(&blank_page(), 2, INCARNATION).unwrap();
    page.stock(10, 6, 21, 3);
    assert_eq!(page.run_of(21), Some((10, 6)));
    assert!(page.bind(10, 2, 21, 31, 5, 4) && !page.bind(10, 2, 21, 32, 5, 4) && !page.bind(11, 2, 21, 32, 5, 4));
    assert_eq!((page.run_of(21), page.run_of(31)), (Some((12, 4)), Some((10, 2))));
    assert!(page.condemn(21, true) && !page.condemn(21, true) && !page.bind(12, 1, 21, 33, 5, 4));
    let mut page = AllocationPage::decode(&page.encode_next(4096), 2, INCARNATION).unwrap();
    assert!(page.slots()[12].condemned && page.slots()[12].home == UNBOUND && !page.slots()[10].condemned);
    assert!(page.condemn(21, false) && page.release_run(14, 9, 21) && !page.bind(13, 2, 21, 33, 5, 4));
    assert!(page.bind(12, 2, 21, 33, 5, 4));
    assert_eq!(page.free(), 240 - 4);
}

fn any_ballot() -> impl Strategy<Value = Ballot> {
    prop_oneof![
        Just(Ballot::NONE),
        (1..9u64, 0..3u64).prop_map(|(round, host)| Ballot { round, op: OpId { host, sequence: 4 } })
    ]
}

#[derive(Clone, Debug)]
struct Owned {
    timestamp: Timestamp,
    promise: Ballot,
    ops: Vec<u8>,
    expiry: u64,
    tag: u32,
    value: Result<Vec<u8>, Option<Reference>>,
}

impl Owned {
    fn entry<'a>(&'a self, key: &'a [u8]) -> Entry<'a> {
        let stored = match &self.value {
            Ok(value) => Stored::Inline(value),
            Err(Some(reference)) => Stored::Reference(900, *reference),
            Err(None) => Stored::Tombstone,
        };
        let (timestamp, promise, expiry, tag) = (self.timestamp, self.promise, self.expiry, self.tag);
        Entry { key, timestamp, promise, ops: AppliedOps::new(&self.ops), expiry, tag, stored }
    }
}

fn any_owned() -> impl Strategy<Value = Owned> {
    let reference = (any::<u64>(), any::<u64>(), 1..u64::MAX).prop_map(|(place, checksum, copy)| Reference {
        kind: PlaceKind::Extent,
        parts: 1,
        length: 900,
        place,
        checksum,
        copy,
    });
    let value = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..300).prop_map(Ok),
        reference.prop_map(|reference| Err(Some(reference))),
        Just(Err(None))
    ];
    let ops = (0..3usize).prop_map(|count| {
        let op = Applied { op: OpId { host: 5, sequence: 6 }, round: 1 };
        AppliedOps::encode(&vec![op; count])
    });
    (any::<u64>(), any_ballot(), any_ballot(), ops, 0..2u64, 0..2u32, value).prop_map(
        |(counter, ballot, promise, ops, expiry, tag, value)| Owned {
            timestamp: Timestamp { ballot, ..ts(counter) },
            promise,
            ops,
            expiry,
            tag,
            value,
        },
    )
}

/// A longer one would be claimed as an extent of more pages than an allocation page can say.
#[test]
fn a_reference_to_more_than_one_extent_takes_is_refused() {
    for (kind, parts) in [(PlaceKind::Extent, 1), (PlaceKind::Index, 2)] {
        let decode = |length: u32| {
            let reference = Reference { kind, parts, length, place: 9, checksum: 7, copy: 1 };
            let entry = Entry { stored: Stored::Reference(length, reference), ..inline(b"k", b"") };
            let page = page_with(&[entry], &[]);
            TablePageView::decode(&page, 5, INCARNATION).map(|view| view.entries().count())
        };
        let most = VALUE_PART_BYTES as u32;
        assert_eq!((decode(most), decode(most + 1)), (Ok(1), Err(PageError::Malformed("shape of a reference"))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Pages against the plainest structure: two maps.
    #[test]
    fn page_behaves_like_two_maps(steps in proptest::collection::vec(
        (0..3u8, proptest::collection::vec(any::<u8>(), 1..20), any_owned(), 1..6u64), 1..40))
    {
        let mut image = engine::Buf::zeroed(4096);
        image.copy_from_slice(&blank_page());
        let mut entries: BTreeMap<&[u8], &Owned> = BTreeMap::new();
        let mut guests: BTreeMap<u64, &[u8]> = BTreeMap::new();
        for (version, (what, key, owned, copy)) in steps.iter().enumerate() {
            let view = TablePageView::decode(&image, 5, INCARNATION).unwrap();
            prop_assert_eq!(view.header().version, version as u64);
            let mut draft = Draft::new(&view);
            match what {
                0 | 1 => draft.put(owned.entry(key)),
                _ if guests.contains_key(copy) => prop_assert!(draft.remove_guest(*copy, 8)),
                _ => drop(draft.put_guest(Guest { copy: *copy, home: 8, condemned: false, bytes: key })),
            }
            let Ok(next) = draft.encode() else {
                prop_assert!(draft.used() > 4032);
                break;
            };
            match what {
                0 | 1 => drop(entries.insert(key, owned)),
                _ => if guests.remove(copy).is_none() { guests.insert(*copy, key); },
            }
            image = next;
            let view = TablePageView::decode(&image, 5, INCARNATION).unwrap();
            prop_assert!(view.entries().eq(entries.iter().map(|(key, owned)| owned.entry(key))));
            prop_assert!(view.guests().map(|guest| (guest.copy, guest.bytes)).eq(guests.iter().map(|(k, v)| (*k, *v))));
            prop_assert_eq!(view.entry(key), entries.get(key.as_slice()).map(|owned| owned.entry(key)));
            prop_assert_eq!(view.guest(*copy).map(|guest| guest.bytes), guests.get(copy).copied());
        }
    }

    #[test]
    fn hostile_bytes_never_panic(mode in any::<u8>(), mut bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
        bytes.insert(0, mode);
        crate::fuzz::page_decode(&bytes);
    }

    /// Damage that a checksum was put over, as broken code would: still no panic.
    #[test]
    fn mutated_pages_never_panic(flips in proptest::collection::vec((0..300usize, any::<u8>()), 1..6)) {
        let page = page_with(&[inline(b"key", b"value"), inline(b"other", &[1; 20])], &[Guest { copy: 1, home: 0, condemned: false, bytes: b"g" }]);
        let reference = Reference { kind: PlaceKind::Guest, parts: 1, length: 34, place: 9, checksum: 7, copy: 1 };
        let mut draft = Draft::new(&TablePageView::decode(&page, 5, INCARNATION).unwrap());
        draft.put_forward(Forward::new(reference, &[inline(b"a", b"b")]));
        draft.delete_bundled(1, 0, &ts(3));
        let page = draft.encode().unwrap();
        let mut bytes = vec![2];
        bytes.extend_from_slice(&page);
        flips.iter().for_each(|(at, value)| bytes[17 + at] = *value);
        crate::fuzz::page_decode(&bytes);
    }
}

/// What has lost one bit, wherever, is what is left of a page; what bears nothing of one is not.
#[test]
fn a_page_of_which_a_bit_has_flipped_is_what_is_left_of_it() {
    let identity = Identity { kind: Kind::Table, page: 7, incarnation: 0x1234_5678_9abc_def1 };
    let mut bytes = vec![0; 4096];
    let header = Header { version: 1, salt: 2, seal: 3, used: 0, entries: 0, guests: 0, forwards: 0 };
    encode_header(&mut bytes, identity, &header);
    assert!(is_left_of(&bytes, identity));
    for bit in 0..8 * HEADER_BYTES {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(is_left_of(&bytes, identity), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    for other in [[0; 4096], [0xff; 4096]] {
        assert!(!is_left_of(&other, identity));
    }
}
