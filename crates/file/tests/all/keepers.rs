//! Open files without a name, of several clients: each keeps its own, and one of all frees what it held.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use engine::task::{self, LocalFuture};
use engine::time;
use file::data::Hold;
use file::meta::{Death, Faults, MemoryMeta};
use file::record::inode::{Content, Inode};
use file::{Error, FileSystem, ROOT, Reap};

use crate::audit::{Leaks, audit};
use crate::world::{client, create, fresh, mkdir, run};

/// A file with two names: one client took the first away, another the second; both have it open.
struct Orphan {
    meta: MemoryMeta,
    one: Rc<FileSystem>,
    two: Rc<FileSystem>,
    dirs: [u64; 2],
    ino: u64,
}

impl Orphan {
    async fn new() -> Orphan {
        let meta = fresh().await;
        let ((_, one), (_, two)) = (client(&meta).await, client(&meta).await);
        let dirs = [mkdir(&one, ROOT, "a").await, mkdir(&one, ROOT, "b").await];
        let ino = create(&one, dirs[0], "x").await;
        one.link(ino, dirs[1], b"y").await.unwrap();
        one.open_inode(ino).await.unwrap();
        two.open_inode(ino).await.unwrap();
        one.unlink(dirs[0], b"x").await.unwrap();
        two.unlink(dirs[1], b"y").await.unwrap();
        Orphan { meta, one, two, dirs, ino }
    }

    /// The second still has it, up to its own close.
    async fn end(self) {
        let (_, three) = client(&self.meta).await;
        for dir in self.dirs {
            create(&three, dir, "next").await;
        }
        assert_eq!(self.two.getattr(self.ino).await.map(|told| told.links), Ok(0));
        self.two.write_inline(self.ino, 0, b"still there").await.unwrap();
        self.two.release(self.ino).await.unwrap();
        assert_eq!(self.two.getattr(self.ino).await, Err(Error::Stale));
        for fs in [self.one, self.two, three] {
            fs.close().await.unwrap();
        }
        assert_eq!(audit(&self.meta).await, Leaks::default());
    }
}

/// The close of whoever took away the first name saw a file without names, and removed it under the other's handle.
#[test]
fn a_close_does_not_take_another_clients_orphan() {
    run(1, async {
        let orphan = Orphan::new().await;
        orphan.one.release(orphan.ino).await.unwrap();
        orphan.end().await;
    });
}

/// So did whoever collected that client.
#[test]
fn a_client_that_is_collected_takes_nobody_elses_orphan_with_it() {
    run(1, async {
        let orphan = Orphan::new().await;
        let (_, three) = client(&orphan.meta).await;
        three.collect_client(orphan.one.client()).await.unwrap();
        three.close().await.unwrap();
        orphan.one.release(orphan.ino).await.unwrap();
        orphan.end().await;
    });
}

/// In one client: a removal has the turn, then an open waits for its own, then the last close of before.
#[test]
fn a_close_leaves_what_was_opened_again_before_its_turn() {
    for begin in 0..40 {
        run(begin, async move {
            let meta = fresh().await;
            let (_, fs) = client(&meta).await;
            let ino = create(&fs, ROOT, "x").await;
            fs.link(ino, ROOT, b"y").await.unwrap();
            fs.open_inode(ino).await.unwrap();
            fs.unlink(ROOT, b"x").await.unwrap();
            meta.set_faults(Faults { delay: Duration::from_millis(1), ..Faults::default() });
            let removal = task::spawn({
                let fs = Rc::clone(&fs);
                async move { fs.unlink(ROOT, b"y").await.unwrap() }
            });
            time::sleep(Duration::from_micros(250 * begin)).await;
            let opening = task::spawn({
                let fs = Rc::clone(&fs);
                async move { fs.open_inode(ino).await.unwrap() }
            });
            time::sleep(Duration::from_nanos(1)).await;
            fs.release(ino).await.unwrap();
            opening.await;
            removal.await;
            assert_eq!(fs.getattr(ino).await.map(|told| told.links), Ok(0), "begun after {begin}");
            fs.release(ino).await.unwrap();
            assert_eq!(fs.getattr(ino).await, Err(Error::Stale));
            fs.close().await.unwrap();
            assert_eq!(audit(&meta).await, Leaks::default());
        });
    }
}

/// Counts, and takes its time.
struct Counted(Rc<Cell<u32>>);

impl Reap for Counted {
    fn reap<'a>(&'a self, _ino: u64, inode: &'a Inode, _: &'a Hold) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            assert_eq!(inode.content, Content::Stripes(vec![7; 9]));
            self.0.set(self.0.get() + 1);
            time::sleep(Duration::from_millis(5)).await;
            Ok(())
        })
    }
}

async fn counted(meta: &MemoryMeta, count: &Rc<Cell<u32>>) -> Rc<FileSystem> {
    let (_, fs) = client(meta).await;
    fs.set_reap(Rc::new(Counted(Rc::clone(count))));
    fs
}

/// A file whose content is outside of its inode.
async fn striped(fs: &FileSystem, dir: u64, name: &str) -> u64 {
    let ino = create(fs, dir, name).await;
    let set = |inode: &mut Inode| {
        (inode.content, inode.size) = (Content::Stripes(vec![7; 9]), 5000);
        Ok(())
    };
    fs.change_inode(ino, set).await.unwrap();
    ino
}

/// Content that is freed twice is another file's the second time.
#[test]
fn two_who_finish_one_gone_free_it_once() {
    for seed in 0..40 {
        run(seed, async move {
            let (meta, count) = (fresh().await, Rc::default());
            let (dying, first) = client(&meta).await;
            let ino = striped(&first, ROOT, "f").await;
            dying.die_at(Some(Death { swaps: 0, takes_effect: true }));
            let removal = task::spawn({
                let first = Rc::clone(&first);
                async move { first.unlink(ROOT, b"f").await }
            });
            while !dying.is_dead() {
                time::sleep(Duration::from_millis(1)).await;
            }
            drop(removal);
            let others = [counted(&meta, &count).await, counted(&meta, &count).await, counted(&meta, &count).await];
            meta.set_faults(Faults { delay: Duration::from_millis(2), ..Faults::default() });
            let tasks: Vec<_> = (0..3)
                .map(|which| {
                    let fs = Rc::clone(&others[which]);
                    task::spawn(async move { create(&fs, ROOT, &format!("{which}")).await })
                })
                .collect();
            for task in tasks {
                task.await;
            }
            assert_eq!(count.get(), 1, "seed {seed}");
            assert_eq!(others[0].getattr(ino).await, Err(Error::Stale));
            others[0].collect_client(first.client()).await.unwrap();
            for fs in others {
                fs.close().await.unwrap();
            }
            assert_eq!(audit(&meta).await, Leaks::default());
        });
    }
}

/// While whoever took the last name frees the content, and if that client dies before the inode is gone.
#[test]
fn what_goes_is_gone_for_everybody_and_freed_by_nobody_else() {
    run(1, async {
        let (meta, count) = (fresh().await, Rc::default());
        let (dying, first) = client(&meta).await;
        let ino = striped(&first, ROOT, "f").await;
        let other = counted(&meta, &count).await;
        other.open_inode(ino).await.unwrap();
        // The leaf, the inode that goes, and then its removal.
        dying.die_at(Some(Death { swaps: 2, takes_effect: false }));
        let removal = task::spawn(async move { first.unlink(ROOT, b"f").await });
        while !dying.is_dead() {
            time::sleep(Duration::from_millis(1)).await;
        }
        drop(removal);
        assert_eq!(other.getattr(ino).await, Err(Error::Stale));
        assert_eq!(other.write_inline(ino, 0, b"a").await, Err(Error::Stale));
        assert_eq!(other.link(ino, ROOT, b"g").await, Err(Error::Stale));
        create(&other, ROOT, "next").await;
        other.release(ino).await.unwrap();
        other.close().await.unwrap();
        assert_eq!(count.get(), 0, "how far the other came with freeing it, nobody can tell");
        assert_eq!(audit(&meta).await.inodes, 1, "it is left to fsck");
    });
}

/// A process ends that has many files open without a name. Each close changed this client's record for itself; they overtook one
/// another until most had failed, and the files stayed for as long as the client did.
#[test]
fn many_closes_at_once_let_all_orphans_go() {
    run(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let mut inodes = Vec::new();
        for number in 0..300 {
            let name = number.to_string();
            inodes.push(create(&fs, ROOT, &name).await);
            fs.open_inode(inodes[number]).await.unwrap();
            fs.unlink(ROOT, name.as_bytes()).await.unwrap();
        }
        meta.set_faults(Faults { delay: Duration::from_millis(1), ..Faults::default() });
        let began = time::now();
        let closes: Vec<_> = inodes
            .iter()
            .map(|&ino| {
                task::spawn({
                    let fs = fs.clone();
                    async move { fs.release(ino).await }
                })
            })
            .collect();
        for close in closes {
            assert_eq!(close.await, Ok(()));
        }
        assert!(
            began.elapsed() < Duration::from_millis(100),
            "{:?}: each waits for a few others, not for all",
            began.elapsed()
        );
        fs.close().await.unwrap();
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}
