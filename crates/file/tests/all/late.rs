//! Clients that stand still for long, and go on.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use engine::task::{self, LocalFuture};
use engine::time;
use file::meta::{KeyPage, MemoryClient, MemoryMeta, Meta, Seen, Swapped, Version};
use file::record::Record as _;
use file::record::intent::{Intent, State};
use file::{Error, FileSystem, ROOT, RenameFlags};

use crate::audit::{Leaks, audit};
use crate::world::{client, create, file, fresh, kind_of, mkdir, over, run};

/// Stands still before its next change of a kind of record, or after it, with the answer on its way.
struct Halting {
    inner: Rc<MemoryClient>,
    kind: Cell<Option<(u8, bool)>>,
    is_halted: Cell<bool>,
    /// The intent that others have aborted.
    aborted: RefCell<Vec<u8>>,
}

const HALT: Duration = Duration::from_secs(20 * 60);

impl Halting {
    fn new(meta: &MemoryMeta) -> Rc<Halting> {
        Rc::new(Halting {
            inner: meta.client(),
            kind: Cell::new(None),
            is_halted: Cell::new(false),
            aborted: RefCell::default(),
        })
    }

    async fn halted(&self) {
        while !self.is_halted.get() {
            time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Meta for Halting {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        self.inner.get(key)
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        let halts = self.kind.get().filter(|(kind, _)| kind_of(key) == Some(kind));
        if *self.aborted.borrow() == key {
            let is_committed = new.as_ref().is_some_and(|new| Intent::decode(new).unwrap().state == State::Committed);
            assert!(!is_committed, "what others have aborted is committed");
        }
        Box::pin(async move {
            let Some((_, takes_effect)) = halts else { return self.inner.swap(key, expected, new).await };
            self.kind.set(None);
            self.is_halted.set(true);
            if takes_effect {
                self.inner.swap(key, expected, new).await?;
                time::sleep(HALT).await;
                return Ok(Swapped::Unknown);
            }
            time::sleep(HALT).await;
            self.inner.swap(key, expected, new).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        self.inner.list(prefix, cursor, limit)
    }
}

/// Removes what nothing names, as whoever takes an author for dead.
async fn take(meta: &MemoryMeta, kind: u8, is_it: impl Fn(&[u8]) -> bool) {
    let raw = meta.client();
    for (key, value) in meta.dump() {
        if kind_of(&key) == Some(&kind) && is_it(&value) {
            let seen = raw.get(&key).await.unwrap().unwrap();
            raw.swap(&key, Some(seen.version), None).await.unwrap();
        }
    }
}

/// Its inode was taken for left over, and its name led nowhere.
#[test]
fn a_name_that_comes_late_does_not_lead_nowhere() {
    run(1, async {
        let meta = fresh().await;
        let halting = Halting::new(&meta);
        let fs = over(halting.clone()).await;
        halting.kind.set(Some((b'd', false)));
        let making = task::spawn({
            let fs = Rc::clone(&fs);
            async move { fs.create(ROOT, b"f", &file(), true).await }
        });
        halting.halted().await;
        let root = meta.dump().into_iter().find(|(key, _)| key.ends_with(&[&b"i"[..], &ROOT.to_be_bytes()].concat()));
        let root = root.unwrap().1;
        take(&meta, b'i', |value| value != root).await;
        assert!(matches!(making.await, Err(Error::Unavailable(_))));
        assert!(matches!(fs.lookup(ROOT, b"f").await, Err(Error::NotFound(_))));
        // Without anybody who takes it, it is made late.
        halting.kind.set(Some((b'd', false)));
        create(&fs, ROOT, "g").await;
        fs.close().await.unwrap();
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}

/// The root of its trie was taken for that of a directory that is not there, before its inode came: until its author was back once
/// more, a name led to a directory without names.
#[test]
fn what_is_late_before_it_has_a_name_gets_none() {
    run(1, async {
        let meta = fresh().await;
        let halting = Halting::new(&meta);
        let fs = over(halting.clone()).await;
        let root = || meta.dump().into_iter().find(|(key, _)| kind_of(key) == Some(&b'd')).unwrap().1;
        let before = root();
        halting.kind.set(Some((b'i', false)));
        let making = task::spawn({
            let fs = Rc::clone(&fs);
            async move { fs.mkdir(ROOT, b"d", 0o755, 0, 0).await }
        });
        halting.halted().await;
        take(&meta, b'd', |value| value != before).await;
        assert!(matches!(making.await, Err(Error::Unavailable(_))));
        assert_eq!(root(), before, "it had a name for a while");
    });
}

/// The author of an intent that others have aborted meanwhile found that its first put had taken effect, and went on to commit it.
#[test]
fn an_intent_that_was_aborted_is_not_committed() {
    run(1, async {
        let meta = fresh().await;
        let (_, other) = client(&meta).await;
        let dir = mkdir(&other, ROOT, "d").await;
        create(&other, ROOT, "f").await;
        let halting = Halting::new(&meta);
        let fs: Rc<FileSystem> = over(halting.clone()).await;
        halting.kind.set(Some((b'x', true)));
        let moving = task::spawn({
            let fs = Rc::clone(&fs);
            async move { fs.rename((ROOT, b"f"), (dir, b"f"), RenameFlags::default()).await }
        });
        halting.halted().await;
        halting.aborted.replace(abort(&meta).await);
        // It is begun anew.
        moving.await.unwrap();
        other.lookup(dir, b"f").await.unwrap();
        assert!(matches!(other.lookup(ROOT, b"f").await, Err(Error::NotFound(_))));
        fs.close().await.unwrap();
        other.close().await.unwrap();
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}

/// What others do who take an author for dead.
async fn abort(meta: &MemoryMeta) -> Vec<u8> {
    let raw = meta.client();
    let mut intents = meta.dump().into_iter().filter(|(key, _)| kind_of(key) == Some(&b'x'));
    let (key, value) = intents.next().unwrap();
    let seen = raw.get(&key).await.unwrap().unwrap();
    let intent = Intent { state: State::Aborted, ..Intent::decode(&value).unwrap() };
    raw.swap(&key, Some(seen.version), Some(intent.encode())).await.unwrap();
    key
}
