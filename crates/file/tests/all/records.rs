//! Records: what is written is read again, and no bytes make a parser panic.

use std::collections::BTreeMap;

use file::record::inode::{ATTRIBUTES_BYTES_MAX, Content, INLINE_BYTES_MAX, Inode, KEEPERS_MAX, LINKS_MAX};
use file::record::intent::{Intent, Side, State};
use file::record::lock::{Holder, LOCK_END, Lock, LockKind, LockRecord};
use file::record::node::{Entry, Gone, Leaf, Node, RootPart, Shape, Target};
use file::record::quota::{QuotaRecord, Share};
use file::record::root::{MemberRecord, MemberState, RootRecord};
use file::record::small::{ClientRecord, Moves, NextInode};
use file::record::{Kind, Record, Stamps, Time};
use file::{Amount, Limits};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

fn time() -> impl Strategy<Value = Time> {
    (any::<i64>(), 0..1_000_000_000u32).prop_map(|(seconds, nanos)| Time { seconds, nanos })
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::File),
        Just(Kind::Directory),
        Just(Kind::Symlink),
        Just(Kind::Fifo),
        Just(Kind::Socket),
        Just(Kind::Character),
        Just(Kind::Block)
    ]
}

fn target() -> impl Strategy<Value = Target> {
    (1u64.., kind(), 1u64..).prop_map(|(ino, kind, link)| Target { ino, kind, link })
}

fn lock() -> impl Strategy<Value = Lock> {
    let holder = (1u64.., any::<u32>(), any::<u64>()).prop_map(|(client, term, owner)| Holder { client, term, owner });
    let kind = prop_oneof![Just(LockKind::Posix), Just(LockKind::Flock), Just(LockKind::Either)];
    (holder, kind, 0..LOCK_END, 1..LOCK_END, any::<bool>(), any::<u32>()).prop_map(
        |(holder, kind, start, length, is_exclusive, pid)| {
            let end = start.saturating_add(length).min(LOCK_END);
            Lock { holder, kind, start, end, is_exclusive, pid }
        },
    )
}

/// Also what is no text, but never `.`, `..`, or what has `/` or NUL.
fn name() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![1..b'.', b'0'..], 1..=255)
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let what = prop_oneof![
        (target(), proptest::option::of(1u64..)).prop_map(|(target, intent)| (Some(target), intent)),
        (1u64..).prop_map(|intent| (None, Some(intent))),
    ];
    let entry = |(name, (target, intent))| Entry { name, target, intent };
    btree_map(name(), what, 0..6).prop_map(move |entries| entries.into_iter().map(entry).collect())
}

fn node() -> impl Strategy<Value = Node> {
    let gone = (1u64.., 1u64..).prop_map(|(ino, link)| Gone { ino, link });
    let shape = prop_oneof![
        (entries(), vec(gone, 0..4)).prop_map(|(entries, gone)| Shape::Leaf(Leaf { entries, gone })),
        entries().prop_map(Shape::Splitting),
        Just(Shape::Split),
        Just(Shape::Dead),
    ];
    let root = (time(), time(), proptest::option::of(1u64..)).prop_map(|(modified, changed, dying)| RootPart {
        modified,
        changed,
        dying,
    });
    (shape, proptest::option::of(root)).prop_map(|(shape, mut root)| {
        let has_names = match &shape {
            Shape::Leaf(leaf) => !leaf.entries.is_empty(),
            Shape::Splitting(_) => true,
            Shape::Split | Shape::Dead => false,
        };
        if let Some(root) = root.as_mut().filter(|_| has_names) {
            root.dying = None;
        }
        Node::new(shape, root)
    })
}

fn intent() -> impl Strategy<Value = Intent> {
    let side = (1u64.., name(), proptest::option::of(target()), proptest::option::of(target()))
        .prop_map(|(dir, name, before, after)| Side { dir, name, before, after });
    let state = prop_oneof![Just(State::Pending), Just(State::Committed), Just(State::Aborted)];
    (vec(side, 1..=2), any::<u64>(), state).prop_map(|(sides, number, state)| Intent {
        state,
        number,
        ..Intent::new(sides)
    })
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        vec(any::<u8>(), 0..=INLINE_BYTES_MAX).prop_map(Content::Inline),
        vec(any::<u8>(), 0..2400).prop_map(Content::Stripes),
    ]
}

fn inode() -> impl Strategy<Value = Inode> {
    let attributes = btree_map(vec(any::<u8>(), 1..=255), vec(any::<u8>(), 0..400), 0..6);
    let owner = (0..=0o7777u16, any::<u32>(), any::<u32>(), any::<u64>());
    let times = (time(), time(), time(), time());
    let set = || btree_set(1u64.., 0..20).prop_map(|set| set.into_iter().collect::<Vec<u64>>());
    let quota = (prop_oneof![Just(0), any::<u64>()], any::<bool>());
    let numbers = (1u64.., any::<u64>(), any::<u64>());
    (kind(), owner, times, numbers, (set(), set()), attributes, (content(), quota)).prop_map(
        |(kind, owner, times, (parent, moved, size), (links, keepers), attributes, (content, quota))| {
            let content = if kind == Kind::File { content } else { Content::Inline(Vec::new()) };
            let size = if let Content::Inline(bytes) = &content { bytes.len() as u64 } else { size };
            Inode {
                stamps: Stamps::default(),
                kind,
                mode: owner.0,
                uid: owner.1,
                gid: owner.2,
                device: owner.3,
                accessed: times.0,
                modified: times.1,
                changed: times.2,
                created: times.3,
                parent: if kind == Kind::Directory { parent } else { 0 },
                moved,
                size,
                links,
                keepers,
                attributes,
                quota: quota.0,
                has_quota: quota.1 && kind == Kind::Directory,
                content,
            }
        },
    )
}

fn quota() -> impl Strategy<Value = QuotaRecord> {
    let count = || -(1i64 << 60)..(1i64 << 60);
    let amount = move || (count(), count()).prop_map(|(bytes, files)| Amount { bytes, files });
    let limit = || proptest::option::of(0..u64::MAX);
    let shares = btree_map(1u64.., (1u64.., amount()), 0..5)
        .prop_map(|shares| shares.into_iter().map(|(client, (number, held))| Share { client, number, held }).collect());
    ((limit(), limit()), amount(), shares).prop_map(|((bytes, files), used, shares)| QuotaRecord {
        stamps: Stamps::default(),
        limits: Limits { bytes, files },
        used,
        shares,
    })
}

fn root() -> impl Strategy<Value = RootRecord> {
    let state = prop_oneof![Just(MemberState::Active), Just(MemberState::Leaving), Just(MemberState::Lost)];
    let member = ("[a-z0-9:,=]{0,60}", any::<u64>(), state, "[a-z/]{0,60}")
        .prop_map(|(place, bytes, state, domain)| MemberRecord { place, bytes, state, domain });
    (any::<[u8; 16]>(), 1u8.., any::<u8>(), any::<u64>(), any::<u64>(), vec(member, 0..5)).prop_map(
        |(id, data, parity, region_bytes, seed, members)| RootRecord {
            stamps: Stamps::default(),
            id,
            data,
            parity,
            region_bytes,
            seed,
            members,
        },
    )
}

/// It is read as it was written; not with a byte too many or too few; and any byte of it may be another.
fn round_trip<R: Record + PartialEq + std::fmt::Debug>(record: &R, at: usize, bits: u8) -> Result<(), TestCaseError> {
    let mut bytes = record.encode();
    let decoded = R::decode(&bytes);
    prop_assert_eq!(decoded.as_ref(), Ok(record));
    prop_assert!(R::decode(&bytes[..bytes.len() - 1]).is_err());
    bytes.push(0);
    prop_assert!(R::decode(&bytes).is_err());
    bytes.pop();
    let at = at % bytes.len();
    bytes[at] ^= bits;
    if let Ok(other) = R::decode(&bytes) {
        prop_assert_eq!(other.encode(), bytes);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn nodes_are_read_as_written(node in node(), at: usize, bits in 1u8..) {
        round_trip(&node, at, bits)?;
    }

    #[test]
    fn intents_are_read_as_written(intent in intent(), at: usize, bits in 1u8..) {
        round_trip(&intent, at, bits)?;
    }

    #[test]
    fn inodes_are_read_as_written(inode in inode(), at: usize, bits in 1u8..) {
        round_trip(&inode, at, bits)?;
    }

    #[test]
    fn quotas_are_read_as_written(quota in quota(), at: usize, bits in 1u8..) {
        round_trip(&quota, at, bits)?;
    }

    #[test]
    fn root_records_are_read_as_written(root in root(), at: usize, bits in 1u8..) {
        round_trip(&root, at, bits)?;
    }

    #[test]
    fn small_records_are_read_as_written(
        number in 1u64..,
        current in proptest::option::of(1u64..),
        host in "[a-z.]{0,80}",
        renewed in time(),
        orphans in btree_set(1u64.., 0..9),
        at: usize,
        bits in 1u8..,
    ) {
        round_trip(&NextInode { stamps: Stamps::default(), next: number }, at, bits)?;
        round_trip(&Moves { stamps: Stamps::default(), number, current }, at, bits)?;
        let orphans = orphans.into_iter().collect();
        let (stamps, term) = (Stamps::default(), number as u32);
        round_trip(&ClientRecord { stamps, host, renewed, term, orphans }, at, bits)?;
    }

    #[test]
    fn locks_are_read_as_written(locks in btree_set(lock(), 0..9), claims in vec(lock(), 0..5), at: usize, bits in 1u8..) {
        let locks = locks.into_iter().collect();
        round_trip(&LockRecord { stamps: Stamps::default(), locks, claims }, at, bits)?;
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in vec(any::<u8>(), 0..400)) {
        file::fuzz::records(&bytes);
    }
}

#[test]
fn what_is_too_much_is_damaged() {
    let bytes = |links: usize, keepers: usize, attribute: usize| {
        let inode = Inode {
            stamps: Stamps::default(),
            kind: Kind::File,
            mode: 0,
            uid: 0,
            gid: 0,
            device: 0,
            accessed: Time::default(),
            modified: Time::default(),
            changed: Time::default(),
            created: Time::default(),
            parent: 0,
            moved: 0,
            size: 0,
            links: (1..=links as u64).collect(),
            keepers: (1..=keepers as u64).collect(),
            attributes: BTreeMap::from([(b"n".to_vec(), vec![0; attribute - 1])]),
            quota: 0,
            has_quota: false,
            content: Content::Inline(Vec::new()),
        };
        inode.encode()
    };
    assert!(Inode::decode(&bytes(LINKS_MAX, KEEPERS_MAX, ATTRIBUTES_BYTES_MAX)).is_ok());
    assert!(Inode::decode(&bytes(LINKS_MAX + 1, 0, 10)).is_err());
    assert!(Inode::decode(&bytes(1, 0, ATTRIBUTES_BYTES_MAX + 1)).is_err());
    assert!(Inode::decode(&bytes(1, KEEPERS_MAX + 1, 10)).is_err());
}
