//! Quotas while one call of a client takes its time: whatever others do meanwhile, nothing counts too little, and nobody waits for
//! good.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use engine::task::LocalFuture;
use engine::{task, time};
use file::meta::{KeyPage, MemoryClient, MemoryMeta, Meta, Seen, Swapped, Version};
use file::{Amount, Error, Files, Fsck, ROOT};

use crate::fsck::MINUTE;
use crate::opened::Place;
use crate::quotas::{MIB, assert_covered, assert_exact, counted, limits, make_in, with_quota};
use crate::quotas_kept::look;
use crate::world::{client, create, file, fresh, kind_of, mkdir, over, run, run_long};

/// A share that nobody uses goes back after half a minute.
const IDLE: Duration = Duration::from_secs(31);

/// What is held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    /// A change that is made; its answer is on its way.
    Answer,
    /// A change that is not made yet.
    Change,
    /// A change that seems to fail, and is made when it is let go.
    Late,
    /// A read.
    Read,
}

/// A client of which one call is held until it is let go: the next one like this, of this kind of record.
struct Holding {
    inner: Rc<MemoryClient>,
    next: Cell<Option<(Call, u8)>>,
    is_held: Rc<Cell<bool>>,
}

impl Holding {
    fn new(meta: &MemoryMeta) -> Rc<Holding> {
        Rc::new(Holding { inner: meta.client(), next: Cell::new(None), is_held: Rc::default() })
    }

    fn hold(&self, call: Call, kind: u8) {
        self.next.set(Some((call, kind)));
    }

    /// Waits until there is one.
    async fn held(&self) {
        while !self.is_held.get() {
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn let_go(&self) {
        self.is_held.set(false);
    }

    /// Whether this is the call.
    fn begins(&self, call: Call, key: &[u8]) -> bool {
        let is_it = |(next, kind): (Call, u8)| next == call && kind_of(key) == Some(&kind);
        let begins = self.next.get().is_some_and(is_it);
        if begins {
            self.next.set(None);
            self.is_held.set(true);
        }
        begins
    }

    async fn pass(&self, call: Call, key: &[u8]) {
        if self.begins(call, key) {
            until_let_go(&self.is_held).await;
        }
    }
}

/// A client whose calls can be held, and a directory whose files count for a quota.
async fn scene() -> (Place, Rc<Holding>, Rc<Files>, u64) {
    let place = Place::new().await;
    let holding = Holding::new(&place.meta);
    let files = place.client_over(holding.clone()).await;
    let dir = with_quota(files.names(), ROOT, "dir", None, Some(100)).await;
    (place, holding, files, dir)
}

async fn until_let_go(is_held: &Cell<bool>) {
    while is_held.get() {
        time::sleep(Duration::from_millis(1)).await;
    }
}

impl Meta for Holding {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        Box::pin(async move {
            self.pass(Call::Read, key).await;
            self.inner.get(key).await
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        Box::pin(async move {
            if self.begins(Call::Late, key) {
                let (inner, is_held, key) = (Rc::clone(&self.inner), Rc::clone(&self.is_held), key.to_vec());
                task::spawn(async move {
                    until_let_go(&is_held).await;
                    inner.swap(&key, expected, new).await
                })
                .detach();
                return Err(Error::Unavailable("nobody learns what becomes of it".into()));
            }
            self.pass(Call::Change, key).await;
            let swapped = self.inner.swap(key, expected, new).await;
            self.pass(Call::Answer, key).await;
            swapped
        })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        self.inner.list(prefix, cursor, limit)
    }
}

/// The record had no share any more, and its client did not know yet, and removed a file by it: `fsck` counted without that file,
/// and the client took it off once more.
#[test]
fn nothing_is_removed_by_a_share_that_is_being_given_back() {
    run_long(1, async {
        let (place, holding, files, dir) = scene().await;
        // Open all the time, it has what is known of the share: else nobody would, once that is given back.
        let stays = make_in(&files, dir, "stays").await.unwrap();
        create(files.names(), dir, "goes").await;
        time::sleep(IDLE).await;
        holding.hold(Call::Answer, b'q');
        let settling = task::spawn({
            let files = Rc::clone(&files);
            async move { files.names().settle_quotas().await }
        });
        holding.held().await;
        assert!(counted(&place.meta)[&dir].1.shares.is_empty(), "it is given back");
        let removing = task::spawn({
            let files = Rc::clone(&files);
            async move { files.names().unlink(dir, b"goes").await }
        });
        time::sleep(Duration::from_secs(1)).await;
        look(&place.meta, true).await;
        holding.let_go();
        settling.await;
        removing.await.unwrap();
        // What was freed is told when there is a share again.
        create(files.names(), dir, "more").await;
        assert_covered(&place.meta);
        for _ in 0..2 {
            files.names().settle_quotas().await;
            time::sleep(IDLE).await;
            assert_covered(&place.meta);
        }
        files.close_file(&stays).await.unwrap();
        files.close().await.unwrap();
        assert_exact(&place.meta);
    });
}

/// Nobody knew whether a share was given back, and a file was made by it; then that change came.
#[test]
fn nothing_is_made_by_a_share_that_may_be_given_back_yet() {
    run_long(1, async {
        let (place, holding, files, dir) = scene().await;
        create(files.names(), dir, "before").await;
        time::sleep(IDLE).await;
        holding.hold(Call::Late, b'q');
        files.names().settle_quotas().await;
        holding.held().await;
        assert_eq!(counted(&place.meta)[&dir].1.shares.len(), 1, "it is not given back yet");
        create(files.names(), dir, "after").await;
        holding.let_go();
        time::sleep(Duration::from_secs(1)).await;
        for _ in 0..2 {
            assert_covered(&place.meta);
            time::sleep(IDLE).await;
            files.names().settle_quotas().await;
        }
        files.close().await.unwrap();
        assert_exact(&place.meta);
    });
}

/// Its inode took half a minute, and the share by which it counts was given back meanwhile: `fsck` counted without it, and then it
/// came.
#[test]
fn a_share_stays_as_long_as_an_inode_is_on_its_way() {
    run_long(1, async {
        let (place, holding, files, dir) = scene().await;
        create(files.names(), dir, "before").await;
        holding.hold(Call::Change, b'i');
        let making = task::spawn({
            let files = Rc::clone(&files);
            async move { files.names().create(dir, b"late", &file(), true).await.map(drop) }
        });
        holding.held().await;
        time::sleep(IDLE).await;
        files.names().settle_quotas().await;
        assert_eq!(counted(&place.meta)[&dir].1.shares.len(), 1, "it may come");
        look(&place.meta, true).await;
        time::sleep(Duration::from_secs(9)).await;
        holding.let_go();
        making.await.unwrap();
        assert_eq!(counted(&place.meta)[&dir].0, Amount { bytes: 0, files: 2 });
        assert_covered(&place.meta);
        time::sleep(IDLE).await;
        files.names().settle_quotas().await;
        assert_exact(&place.meta);
        files.close().await.unwrap();
    });
}

/// A last close took so long that others could take its client for dead, and was about to take part in the quota; a write had its
/// turn there, and waited for another number, which no client gets while a close uses the old one. So did all that came after.
#[test]
fn who_writes_does_not_wait_for_a_close_that_waits_for_it() {
    run_long(1, async {
        let place = Place::new().await;
        let holding = Holding::new(&place.meta);
        let files = place.client_over(holding.clone()).await;
        let dir = with_quota(files.names(), ROOT, "dir", Some(16 * MIB), Some(100)).await;
        let (goes, stays) = (make_in(&files, dir, "goes").await.unwrap(), make_in(&files, dir, "stays").await.unwrap());
        files.names().unlink(dir, b"goes").await.unwrap();
        time::sleep(Duration::from_secs(2)).await;
        holding.hold(Call::Read, b'i');
        let closing = task::spawn({
            let files = Rc::clone(&files);
            async move { files.close_file(&goes).await }
        });
        holding.held().await;
        time::sleep(11 * MINUTE).await;
        let writing = task::spawn({
            let stays = Rc::clone(&stays);
            async move { stays.write(0, &[1; 5000]).await }
        });
        time::sleep(Duration::from_secs(1)).await;
        holding.let_go();
        time::timeout(MINUTE, closing).await.expect("the close waits for good").unwrap();
        time::timeout(MINUTE, writing).await.expect("the write waits for good").unwrap();
        files.close_file(&stays).await.unwrap();
        assert_covered(&place.meta);
        files.close().await.unwrap();
        assert_exact(&place.meta);
    });
}

/// Whoever gave a directory a quota died before that had it, and left the record; `fsck` was about to remove it as another gave the
/// same once more, who found it there: the directory had a quota without a record, in which nobody could make anything.
#[test]
fn a_quota_that_is_given_again_beside_fsck_has_its_record() {
    run_long(1, async {
        let meta = fresh().await;
        let (dying, given) = (Holding::new(&meta), limits(None, Some(9)));
        let fs = over(dying.clone()).await;
        let dir = mkdir(&fs, ROOT, "dir").await;
        dying.hold(Call::Change, b'i');
        let setting = task::spawn(async move { fs.set_quota(dir, given).await });
        dying.held().await;
        drop(setting);
        let holding = Holding::new(&meta);
        let files = Files::open(holding.clone(), "test", "fsck").await.unwrap();
        holding.hold(Call::Change, b'q');
        let checking = task::spawn(async move {
            let report = Fsck::new(&files, true, None).run(true).await.unwrap();
            files.close().await.unwrap();
            report
        });
        holding.held().await;
        let (_, fs) = client(&meta).await;
        fs.set_quota(dir, given).await.unwrap();
        holding.let_go();
        let report = checking.await;
        assert!(!report.is_damaged() && report.damage.is_empty(), "{report:?}");
        let (_, fs) = client(&meta).await;
        assert_eq!(fs.quota_of(dir).await.unwrap().unwrap().limits, given);
        create(&fs, dir, "file").await;
        fs.close().await.unwrap();
    });
}

/// It was told EDQUOT, and its first part was in the file.
#[test]
fn a_write_that_a_quota_ends_within_says_how_far_it_came() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let dir = with_quota(files.names(), ROOT, "dir", Some(64 * 1024), None).await;
        let file = make_in(&files, dir, "file").await.unwrap();
        assert_eq!(file.write(MIB - 5000, &[7; 100_000]).await, Ok(5000));
        assert!(matches!(file.write(MIB, &[7; 95_000]).await, Err(Error::Quota(_))));
        // Whom nobody tells how much was written is told that not all was.
        assert!(matches!(file.write_all(MIB - 5000, &[7; 100_000]).await, Err(Error::Quota(_))));
        assert_eq!(file.write_all(MIB - 5000, &[7; 9000]).await, Ok(()));
        file.flush().await.unwrap();
        assert_eq!(file.read(MIB - 5000, 100_000).await.unwrap().to_vec(), [7; 9000]);
        files.close_file(&file).await.unwrap();
        files.close().await.unwrap();
        assert_exact(&place.meta);
    });
}
