//! Clients that have not heard yet of members that joined, leave, or are another one by now.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::task::LocalFuture;
use engine::time;
use file::data::LabelError;
use file::meta::{KeyPage, MemoryClient, Meta, Seen, Swapped, Version};
use file::{Error, RosterError};

use super::yard::{MEMBER_BYTES, Yard, get, in_world, inodes, mender, put, rebuild};
use crate::data::bed::drawn;
use crate::opened::make;
use crate::world::kind_of;

/// One of three is replaced: a mount that writes all the time and has not heard finds its pages closed, asks, and goes on with the
/// new one.
#[test]
fn who_has_not_heard_of_a_replacement_writes_on() {
    for lost in [false, true] {
        in_world(20, async move {
            let yard = Yard::new(2, 1, 3).await;
            let (old, other) = (yard.client().await, yard.client().await);
            put(&old, "a", 0, &[1; 100_000]).await.unwrap();
            yard.set_down(1, lost);
            yard.add(&other).await;
            other.roster().drain(1, lost).await.unwrap();
            for number in 0..20 {
                put(&old, &format!("b{number}"), 0, &vec![number; 700_000]).await.unwrap();
            }
            assert_eq!(old.members().all().len(), 4, "it has asked");
            old.close().await.unwrap();
            let rebuilt = mender(&other).rebuild().await.unwrap();
            assert_eq!((rebuilt.taken, rebuilt.left.failed), (vec![], 0));
            other.roster().remove(1).await.unwrap();
            assert_eq!(get(&other, "b7").await.unwrap(), vec![7; 700_000]);
        });
    }
}

/// A client of which changes of chunks take effect, and nobody says so.
struct Doubting {
    inner: Rc<MemoryClient>,
    doubts: Cell<bool>,
}

impl Meta for Doubting {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        self.inner.get(key)
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        Box::pin(async move {
            let swapped = self.inner.swap(key, expected, new).await;
            match kind_of(key) {
                Some(b'k') if self.doubts.get() => Err(Error::Unavailable("no majority answers".into())),
                _ => swapped,
            }
        })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        self.inner.list(prefix, cursor, limit)
    }
}

/// A chunk that a mount has by its record, and does not know of, does not keep a member from becoming empty for as long as the
/// mount lives.
#[test]
fn a_chunk_of_which_nobody_knows_whose_it_is_goes_back() {
    in_world(21, async {
        let yard = Yard::new(2, 1, 4).await;
        let first = yard.client().await;
        put(&first, "a", 0, &[1; 300_000]).await.unwrap();
        first.close().await.unwrap();
        let meta = Rc::new(Doubting { inner: yard.meta.client(), doubts: Cell::new(true) });
        let mount = yard.client_over(Rc::clone(&meta) as Rc<dyn Meta>).await;
        let _alive = mount.keep_alive();
        let _failed = put(&mount, "b", 0, &[2; 300_000]).await;
        meta.doubts.set(false);
        let audit = yard.audit().await;
        let doubtful =
            audit.chunks.iter().find(|chunk| chunk.owner.is_some()).expect("by its record it is the mount's");
        let other = yard.client().await;
        let member = yard.columns_of(doubtful.number).await[0].member;
        other.roster().drain(member, false).await.unwrap();
        let rebuilt = rebuild(&yard).await;
        // What it had marked there stays marked until `fsck` is sure of it.
        let mended = crate::fsck::check(yard.meta.client(), true).await;
        assert!(!mended.is_damaged(), "{mended:?}");
        assert_eq!(other.roster().chunks_on(member).await.unwrap(), Vec::<u32>::new(), "{rebuilt:?}");
        put(&mount, "c", 0, &[3; 300_000]).await.unwrap();
        assert_eq!(get(&mount, "a").await.unwrap(), [1; 300_000]);
        assert_eq!(get(&mount, "c").await.unwrap(), [3; 300_000]);
    });
}

/// A file whose map fills its inode, and that needs more room there once its rows have longer numbers.
#[test]
fn a_file_whose_map_fills_its_inode_is_written_anew() {
    in_world(22, async {
        let yard = Yard::new(2, 1, 4).await;
        let files = yard.client().await;
        let write = async |name: &str, pieces: u64| {
            let file = make(&files, name).await;
            for piece in 0..pieces {
                file.write(piece * 9000, &drawn(&mut SplitMix(piece), 5000)).await.unwrap();
                file.flush().await.unwrap();
            }
            let is_long = yard.has_spans(file.ino());
            files.close_file(&file).await.unwrap();
            is_long
        };
        // The most that fits.
        let mut most = 0;
        while !write(&format!("try{most}"), most + 8).await {
            most += 8;
            files.names().unlink(file::ROOT, format!("try{}", most - 8).as_bytes()).await.unwrap();
        }
        let mut pieces = most;
        while !write(&format!("next{pieces}"), pieces + 1).await {
            pieces += 1;
        }
        let fresh = yard.client().await;
        let full = make(&fresh, "full").await;
        for piece in 0..pieces {
            full.write(piece * 9000, &drawn(&mut SplitMix(piece), 5000)).await.unwrap();
            full.flush().await.unwrap();
        }
        assert!(!yard.has_spans(full.ino()), "its map is in its inode");
        fresh.close_file(&full).await.unwrap();
        let before = get(&files, "full").await.unwrap();
        fresh.close().await.unwrap();
        files.close().await.unwrap();
        let mending = yard.client().await;
        put(&mending, "first", 0, &[1; 1_100_000]).await.unwrap();
        mending.roster().drain(0, false).await.unwrap();
        let rebuilt = mender(&mending).rebuild().await.unwrap();
        assert_eq!((rebuilt.left.failures, rebuilt.taken), (Vec::<String>::new(), vec![]));
        let ino = inodes(&mending).await["full"];
        assert!(yard.has_spans(ino), "it did not fit any more");
        assert!(get(&mending, "full").await.unwrap() == before);
        yard.audit().await;
    });
}

/// What answers over a new connection may be another medium: it is neither read nor written before its label was read.
#[test]
fn a_member_that_is_connected_anew_is_looked_at_again() {
    in_world(23, async {
        let yard = Yard::new(2, 1, 3).await;
        let files = yard.client().await;
        let label = |index| files.members().layout().label(index, MEMBER_BYTES);
        for index in 0..3 {
            label(index).format(&*yard.shelf(index).memory, true).await.unwrap();
        }
        put(&files, "a", 0, &[1; 300_000]).await.unwrap();
        let shelf = yard.shelf(1);
        shelf.epoch.set(1);
        let member = files.members().get(1).unwrap();
        assert!(member.is_strange() && !member.is_reachable());
        let (reads, writes) = (shelf.reads.get(), shelf.writes.get());
        put(&files, "b", 0, &[2; 300_000]).await.unwrap();
        assert_eq!(get(&files, "a").await.unwrap(), [1; 300_000]);
        assert_eq!((shelf.reads.get(), shelf.writes.get()), (reads, writes));
        files.members().recheck(1).await.unwrap();
        assert!(!member.is_strange() && member.is_reachable());
        // It does not answer: it is asked again.
        shelf.epoch.set(2);
        yard.set_down(1, true);
        assert!(matches!(files.members().recheck(1).await, Err(LabelError::Device(_))));
        assert!(member.is_strange());
        yard.set_down(1, false);
        // Another one is there by now.
        label(7).format(&*shelf.memory, true).await.unwrap();
        let refused = files.members().recheck(1).await;
        assert_eq!(refused, Err(LabelError::OtherMember { found: 7, expected: 1 }));
        assert!(!member.is_connected() && !member.is_reachable());
        time::sleep(Duration::from_secs(10)).await;
        assert_eq!(get(&files, "b").await.unwrap(), [2; 300_000]);
    });
}

/// At the place of one that was lost another one may be: it is not taken back then.
#[test]
fn a_lost_member_does_not_come_back_beside_the_one_in_its_place() {
    in_world(24, async {
        let yard = Yard::new(2, 1, 4).await;
        let files = yard.client().await;
        files.roster().drain(1, true).await.unwrap();
        let same = files.roster().root().members[1].clone();
        let same = file::record::root::MemberRecord { state: file::record::root::MemberState::Active, ..same };
        assert!(files.roster().add(4, &same, None).await.unwrap());
        assert_eq!(files.roster().drain(1, false).await, Err(RosterError::Twice(4)));
        files.roster().drain(1, true).await.unwrap();
    });
}
