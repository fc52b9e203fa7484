//! What clients that live are about to free, make or keep, while a check looks, is theirs.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use engine::task::{self, LocalFuture};
use engine::time;
use file::meta::Meta;
use file::{Files, Fsck, Left, ROOT};

use crate::audit::{Leaks, audit};
use crate::fsck::{Hooked, MINUTE, assert_clean, check};
use crate::opened::{Place, make};
use crate::world::{client, create, fresh, kind_of, run_long};

/// Its chunk has no owner, and was as it is for hours: the client that has removed the file is still to clear the marks.
#[test]
fn rows_that_were_freed_a_moment_ago_are_left_to_those_who_freed_them() {
    run_long(1, async {
        let place = Place::new().await;
        let first = place.client().await;
        for name in ["stays", "goes"] {
            let file = make(&first, name).await;
            file.write(0, &vec![1; 300_000]).await.unwrap();
            first.close_file(&file).await.unwrap();
        }
        first.close().await.unwrap();
        let (files, other) = (place.client().await, place.client().await);
        let _alive = other.keep_alive();
        let mut fsck = Fsck::new(&files, true, None);
        fsck.run(false).await.unwrap();
        // What no map names is noted by the first look a quarter of an hour after the chunk was known.
        time::sleep(16 * MINUTE).await;
        fsck.run(false).await.unwrap();
        time::sleep(61 * MINUTE).await;
        other.names().unlink(ROOT, b"goes").await.unwrap();
        let report = fsck.run(false).await.unwrap();
        let rows = report.left.get(&Left::Rows).copied().unwrap_or_default();
        assert_eq!((rows.mended, rows.waiting), (0, 1), "{report:?}");
        other.close().await.unwrap();
        files.close().await.unwrap();
        assert_clean(&place.meta).await;
    });
}

/// A map goes into spans, of which one is there when keys are listed, and all are when the inode is read.
#[test]
fn a_map_that_was_half_made_when_keys_were_listed_names_all_that_it_has() {
    run_long(1, async {
        let place = Place::new().await;
        let first = place.client().await;
        let file = make(&first, "long").await;
        for piece in 0..10 {
            file.write(piece * 9000, &[7; 5000]).await.unwrap();
            file.write((9 << 20) + piece * 9000, &[7; 5000]).await.unwrap();
            file.flush().await.unwrap();
        }
        first.close_file(&file).await.unwrap();
        first.close().await.unwrap();
        let (spans, go): (Rc<Cell<u32>>, Rc<Cell<bool>>) = Default::default();
        let hooked = Hooked::new(&place.meta, {
            let (spans, go) = (Rc::clone(&spans), Rc::clone(&go));
            move |is_change, key| {
                spans.set(spans.get() + u32::from(is_change && kind_of(key) == Some(&b'b')));
                let waits = is_change && kind_of(key) == Some(&b'b') && spans.get() == 2;
                let go = Rc::clone(&go);
                waits.then(|| -> LocalFuture<'static, ()> {
                    Box::pin(async move {
                        while !go.get() {
                            time::sleep(Duration::from_millis(1)).await;
                        }
                    })
                })
            }
        });
        let files = place.client_over(hooked).await;
        let _alive = files.keep_alive();
        let again = files.open_file(file.ino()).await.unwrap();
        let writing = task::spawn(async move {
            for piece in 10..120 {
                again.write(piece * 9000, &[8; 5000]).await.unwrap();
                again.flush().await.unwrap();
            }
        });
        time::sleep(MINUTE).await;
        assert!(spans.get() == 2 && !writing.is_finished());
        // Keys are listed, and inodes are read next.
        let writing = Rc::new(writing);
        let hooked = Hooked::new(&place.meta, {
            let (go, writing) = (Rc::clone(&go), Rc::clone(&writing));
            move |_, key| {
                let comes = kind_of(key) == Some(&b'i') && !go.replace(true);
                let writing = Rc::clone(&writing);
                comes.then(|| -> LocalFuture<'static, ()> {
                    Box::pin(async move {
                        while !writing.is_finished() {
                            time::sleep(Duration::from_millis(1)).await;
                        }
                    })
                })
            }
        });
        let report = check(hooked, false).await;
        assert!(go.get() && !report.is_damaged() && !report.left.contains_key(&Left::Rows), "{report:?}");
    });
}

/// Others took it for dead, and removed its record.
#[test]
fn a_client_whose_record_is_put_again_lists_what_it_keeps() {
    run_long(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let ino = create(&fs, ROOT, "x").await;
        fs.open_inode(ino).await.unwrap();
        fs.unlink(ROOT, b"x").await.unwrap();
        let other = meta.client();
        for (key, _) in meta.dump().into_iter().filter(|(key, _)| kind_of(key) == Some(&b'c')) {
            let seen = other.get(&key).await.unwrap().unwrap();
            other.swap(&key, Some(seen.version), None).await.unwrap();
        }
        fs.renew().await.unwrap();
        let files = Files::open(meta.client(), "test", "fsck").await.unwrap();
        Fsck::new(&files, true, None).run(false).await.unwrap();
        assert_eq!(fs.getattr(ino).await.map(|told| told.links), Ok(0), "it is open");
        fs.release(ino).await.unwrap();
        fs.close().await.unwrap();
        files.close().await.unwrap();
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}
