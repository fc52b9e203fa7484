//! Damage: each kind of record, and what contradicts: told by `fsck`, and nothing else is touched.

use engine::{task, time};
use file::meta::{MemoryMeta, Meta};
use file::{Error, Left, ROOT, RenameFlags};

use crate::audit::{Leaks, audit};
use crate::fsck::{MINUTE, check, mended};
use crate::opened::{Place, make};
use crate::world::{at, client, create, fresh, kind_of, mkdir, run_long};

async fn damage(meta: &MemoryMeta, key: &[u8]) {
    let client = meta.client();
    let seen = client.get(key).await.unwrap().unwrap();
    let broken = [&seen.value[..seen.value.len() / 2], b"\xff"].concat();
    client.swap(key, Some(seen.version), Some(broken)).await.unwrap();
}

/// Of each kind, the first: it is told, and nothing is changed but what says so.
#[test]
fn what_is_damaged_is_told_and_nothing_is_touched() {
    for kind in *b"idkmbvnca" {
        run_long(1, async {
            let place = Place::new().await;
            let files = place.client().await;
            let fs = files.names();
            let dirs = [mkdir(fs, ROOT, "p").await, mkdir(fs, ROOT, "q").await];
            let inner = mkdir(fs, dirs[0], "r").await;
            create(fs, inner, "inside").await;
            fs.rename((dirs[0], b"r"), (dirs[1], b"r"), RenameFlags::default()).await.unwrap();
            let long = make(&files, "long").await;
            for piece in 0..120 {
                long.write(piece * 9000, &[7; 5000]).await.unwrap();
                long.flush().await.unwrap();
            }
            files.close_file(&long).await.unwrap();
            files.close().await.unwrap();
            // One that lives, and is renewed.
            let other = place.client().await;
            let of_kind = |key: &Vec<u8>| !key.contains(&b'=') && kind_of(key) == Some(&kind);
            let keys: Vec<Vec<u8>> = place.meta.dump().into_iter().map(|(key, _)| key).filter(of_kind).collect();
            let key = keys.last().unwrap_or_else(|| panic!("a record of kind {}", kind as char));
            damage(&place.meta, key).await;
            let others = || {
                let mut dump = place.meta.dump();
                dump.retain(|(key, _)| kind == b'c' || kind_of(key) != Some(&b'c'));
                dump
            };
            let before = others();
            let renewing = task::spawn(async move {
                loop {
                    time::sleep(MINUTE).await;
                    let _damaged = other.names().renew().await;
                }
            });
            let report = mended(&place.meta).await;
            assert!(report.is_damaged(), "{}: {report:?}", kind as char);
            assert!(others() == before, "{}: {report:?}", kind as char);
            drop(renewing);
        });
    }
}

/// An entry to nothing, a parent that is another, a directory without a way to it.
#[test]
fn what_contradicts_is_told_by_its_path_and_mended_where_that_is_sure() {
    run_long(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let dirs = [mkdir(&fs, ROOT, "p").await, mkdir(&fs, ROOT, "q").await];
        let (inner, lost) = (mkdir(&fs, dirs[0], "r").await, create(&fs, dirs[0], "lost").await);
        create(&fs, inner, "inside").await;
        let client = meta.client();
        let key = meta
            .dump()
            .into_iter()
            .map(|(key, _)| key)
            .find(|key| kind_of(key) == Some(&b'i') && key.ends_with(&lost.to_be_bytes()));
        let key = key.unwrap();
        let seen = client.get(&key).await.unwrap().unwrap();
        client.swap(&key, Some(seen.version), None).await.unwrap();
        let parent = fs.change_inode(inner, |inode| {
            inode.parent = dirs[1];
            Ok(())
        });
        parent.await.unwrap();
        let told = check(meta.client(), false).await;
        let words: Vec<&str> = told.damage.iter().map(|damage| damage.what.as_str()).collect();
        assert_eq!(words.len(), 2, "{words:?}");
        assert!(words.iter().any(|what| what.starts_with("/p/lost leads to inode")), "{words:?}");
        assert!(words.iter().any(|what| what.starts_with("/p/r has /q")), "{words:?}");
        assert_eq!(fs.lookup(inner, b"..").await.unwrap().ino, dirs[1], "a look changes nothing");
        let renewing = task::spawn({
            let fs = fs.clone();
            async move {
                loop {
                    time::sleep(MINUTE).await;
                    fs.renew().await.unwrap();
                }
            }
        });
        let report = mended(&meta).await;
        assert!(!report.is_damaged() && report.damage.len() == 2, "{report:?}");
        drop(renewing);
        assert!(matches!(at(&fs, "p/lost").await, Err(Error::NotFound(_))));
        assert_eq!(fs.lookup(inner, b"..").await.unwrap().ino, dirs[0]);
        fs.close().await.unwrap();
        assert_eq!(audit(&meta).await, Leaks::default());
        assert_eq!(report.left.get(&Left::Client), None);
    });
}

/// Its name has another link than it knows of: it can be reached.
#[test]
fn a_file_that_does_not_know_of_its_name_stays() {
    run_long(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let ino = create(&fs, ROOT, "x").await;
        let changed = fs.change_inode(ino, |inode| {
            inode.links = vec![12345];
            Ok(())
        });
        changed.await.unwrap();
        fs.close().await.unwrap();
        // One that says nothing more: so there is something to wait for.
        drop(client(&meta).await);
        let report = mended(&meta).await;
        assert!(report.is_damaged(), "{report:?}");
        assert!(client(&meta).await.1.getattr(ino).await.is_ok(), "a file that has a name was removed");
    });
}
