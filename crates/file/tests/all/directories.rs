//! Directories: their times, and those that are open and removed, or moved.

use std::rc::Rc;
use std::time::Duration;

use engine::task::{self, LocalFuture};
use engine::time;
use file::meta::{KeyPage, MemoryClient, Meta, Seen, Swapped, Version};
use file::record::Time;
use file::{Change, Error, FileSystem, ROOT, RenameFlags};

use crate::audit::{Leaks, audit};
use crate::world::{client, create, fresh, mkdir, names, over, run};

#[test]
fn a_directorys_times_are_those_of_its_entries() {
    run(1, async {
        let meta = fresh().await;
        let ((_, fs), (_, other)) = (client(&meta).await, client(&meta).await);
        let dir = mkdir(&fs, ROOT, "d").await;
        let times = async |fs: &FileSystem| {
            let told = fs.getattr(dir).await.unwrap();
            (told.modified, told.changed)
        };
        let pause = async || engine::time::sleep(std::time::Duration::from_secs(2)).await;
        let mut last = times(&other).await;
        let mut newer = async |fs: &FileSystem| {
            let now = times(fs).await;
            let is_newer = now.0 > last.0 && now.1 > last.1;
            last = now;
            is_newer
        };
        pause().await;
        create(&fs, dir, "f").await;
        assert!(newer(&other).await);
        pause().await;
        fs.rename((dir, b"f"), (dir, b"g"), RenameFlags::default()).await.unwrap();
        assert!(newer(&other).await);
        pause().await;
        fs.rename((dir, b"g"), (ROOT, b"g"), RenameFlags::default()).await.unwrap();
        assert!(newer(&other).await);
        let old = Time { seconds: -5, nanos: 7 };
        let told = fs.setattr(dir, &Change { modified: Some(old), ..Change::default() }).await.unwrap();
        assert_eq!(told.modified, old);
        // One of many leaves: this client knows at once, others when it is noted.
        for number in 0..60 {
            create(&fs, dir, &format!("{number:0>200}")).await;
        }
        fs.note_all_times().await;
        newer(&other).await;
        pause().await;
        fs.unlink(dir, format!("{:0>200}", 7).as_bytes()).await.unwrap();
        create(&fs, dir, "h").await;
        let at_once = times(&fs).await;
        fs.note_all_times().await;
        assert!(newer(&other).await);
        assert_eq!(times(&other).await, at_once);
        fs.setattr(dir, &Change { modified: Some(old), ..Change::default() }).await.unwrap();
        assert_eq!((times(&fs).await.0, times(&other).await.0), (old, old));
        assert_eq!(names(&other, dir, 10).await.unwrap().len(), 60);
    });
}

/// A client that had changed an entry before showed that time for ever, and could put it over one that was set since.
#[test]
fn a_time_that_another_client_sets_stays() {
    run(1, async {
        let meta = fresh().await;
        let ((_, fs), (_, other)) = (client(&meta).await, client(&meta).await);
        let dir = mkdir(&fs, ROOT, "d").await;
        for number in 0..60 {
            create(&fs, dir, &format!("{number:0>200}")).await;
        }
        let old = Time { seconds: -5, nanos: 7 };
        let set = Change { modified: Some(old), ..Change::default() };
        for is_noted in [false, true] {
            fs.note_all_times().await;
            time::sleep(Duration::from_secs(2)).await;
            create(&fs, dir, &format!("{is_noted}")).await;
            if is_noted {
                fs.note_all_times().await;
            }
            time::sleep(Duration::from_millis(10)).await;
            other.setattr(dir, &set).await.unwrap();
            assert_eq!(fs.getattr(dir).await.unwrap().modified, old);
            fs.note_all_times().await;
            assert_eq!(fs.getattr(dir).await.unwrap().modified, old);
            assert_eq!(other.getattr(dir).await.unwrap().modified, old);
        }
    });
}

/// Generic/035 of xfstests asks for it.
#[test]
fn a_directory_that_is_open_and_removed_has_no_links() {
    run(1, async {
        let meta = fresh().await;
        let ((_, fs), (_, other)) = (client(&meta).await, client(&meta).await);
        for by in [&fs, &other] {
            for is_replaced in [false, true] {
                let dir = mkdir(&fs, ROOT, "d").await;
                let before = fs.open_dir(dir).await.unwrap();
                fs.open_dir(dir).await.unwrap();
                if is_replaced {
                    mkdir(by, ROOT, "e").await;
                    by.rename((ROOT, b"e"), (ROOT, b"d"), RenameFlags::default()).await.unwrap();
                }
                by.rmdir(ROOT, b"d").await.unwrap();
                fs.release_dir(dir);
                let told = fs.getattr(dir).await.unwrap();
                assert_eq!((told.links, told.mode, told.uid), (0, before.mode, before.uid));
                fs.release_dir(dir);
                assert_eq!(fs.getattr(dir).await, Err(Error::Stale));
            }
        }
        let file = create(&fs, ROOT, "f").await;
        assert!(matches!(fs.open_dir(file).await, Err(Error::NotDirectory(_))));
    });
}

/// A client far away: each call takes its time.
struct Slow(Rc<MemoryClient>);

const CALL: Duration = Duration::from_millis(30);

impl Meta for Slow {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        Box::pin(async move {
            time::sleep(CALL).await;
            self.0.get(key).await
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        Box::pin(async move {
            time::sleep(CALL).await;
            self.0.swap(key, expected, new).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        self.0.list(prefix, cursor, limit)
    }
}

/// A directory that had many names once, and has none.
async fn wide(fs: &FileSystem, name: &str, names: u32) -> u64 {
    let dir = mkdir(fs, ROOT, name).await;
    for number in 0..names {
        create(fs, dir, &format!("{number:0>200}")).await;
    }
    for number in 0..names {
        fs.unlink(dir, format!("{number:0>200}").as_bytes()).await.unwrap();
    }
    dir
}

/// It held up all other moves while it closed the leaves of its goal; so the others took it for dead, each time.
#[test]
fn a_slow_move_ends_beside_others() {
    run(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        wide(&fs, "goal", 3000).await;
        let (a, b) = (mkdir(&fs, ROOT, "a").await, mkdir(&fs, ROOT, "b").await);
        let moved = mkdir(&fs, a, "moved").await;
        mkdir(&fs, a, "other").await;
        let slow = over(Rc::new(Slow(meta.client()))).await;
        let begin = time::now();
        let moving = task::spawn({
            let slow = Rc::clone(&slow);
            async move { slow.rename((a, b"moved"), (ROOT, b"goal"), RenameFlags::default()).await }
        });
        let mut longest = Duration::ZERO;
        let mut at = [a, b];
        while !moving.is_finished() {
            let begin = time::now();
            fs.rename((at[0], b"other"), (at[1], b"other"), RenameFlags::default()).await.unwrap();
            longest = longest.max(begin.elapsed());
            at.reverse();
            time::sleep(Duration::from_millis(400)).await;
        }
        moving.await.unwrap();
        assert!(begin.elapsed() > Duration::from_secs(2), "its goal has so few leaves that it is not slow");
        assert!(begin.elapsed() < Duration::from_secs(20), "it was begun anew again and again");
        assert!(longest < Duration::from_secs(1), "another move waited {longest:?}");
        assert_eq!(fs.lookup(ROOT, b"goal").await.unwrap().ino, moved);
        slow.close().await.unwrap();
        fs.close().await.unwrap();
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}

/// What a directory has had once is paid for in calls, but not one after the other.
#[test]
fn a_directory_that_was_large_once_is_read_and_removed_in_few_turns() {
    run(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let dir = wide(&fs, "wide", 3000).await;
        let nodes = meta.dump().iter().filter(|(key, _)| key.windows(9).any(|at| at == node_key(dir))).count();
        assert!(nodes > 256, "{nodes} nodes");
        let slow = over(Rc::new(Slow(meta.client()))).await;
        let took = async |what: &str, turns: u32, done: LocalFuture<'_, ()>| {
            let begin = time::now();
            done.await;
            let calls = (begin.elapsed().as_nanos() / CALL.as_nanos()) as u32;
            assert!(calls < turns, "{what} took {calls} calls one after the other");
        };
        let nodes = nodes as u32;
        let behind = fs.readdir(dir, 0, 2).await.unwrap()[1].cursor;
        let read = async || assert_eq!(slow.readdir(dir, behind, 64).await.unwrap(), []);
        took("reading it", nodes / 2, Box::pin(read())).await;
        took("reading it again", nodes / 8, Box::pin(read())).await;
        // A get and a change of each to close it, and the same to bury it.
        took("removing it", nodes / 2, Box::pin(async { slow.rmdir(ROOT, b"wide").await.unwrap() })).await;
        slow.close().await.unwrap();
        fs.close().await.unwrap();
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}

fn node_key(dir: u64) -> Vec<u8> {
    [b"d".as_slice(), &dir.to_be_bytes()].concat()
}
