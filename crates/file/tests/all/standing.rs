//! A client that could not say for too long that it lives, as its host was suspended or the pool was away: it takes another number,
//! and what it has open stays where it is still there.

use std::time::Duration;

use engine::time;
use file::meta::{Faults, MemoryMeta};
use file::record::Record as _;
use file::record::small::{ClientRecord, ORPHANS_MAX};
use file::{Error, FileSystem, ROOT};

use crate::audit::{Leaks, audit};
use crate::opened::{Place, bytes, make};
use crate::world::{client, create, fresh, kind_of, run};

const TOO_LONG: Duration = Duration::from_secs(11 * 60);

/// What clients keep, by their records.
fn kept(meta: &MemoryMeta) -> Vec<Vec<u64>> {
    let clients = meta.dump().into_iter().filter(|(key, _)| kind_of(key) == Some(&b'c'));
    clients.map(|(_, value)| ClientRecord::decode(&value).unwrap().orphans).collect()
}

async fn keepers(fs: &FileSystem, ino: u64) -> Vec<u64> {
    fs.get_inode(ino).await.unwrap().keepers
}

#[test]
fn what_is_open_without_a_name_is_kept_under_the_new_number() {
    run(1, async {
        let meta = fresh().await;
        let ((_, fs), (_, other)) = (client(&meta).await, client(&meta).await);
        let ino = create(&fs, ROOT, "x").await;
        fs.open_inode(ino).await.unwrap();
        fs.unlink(ROOT, b"x").await.unwrap();
        let old = fs.client();
        time::sleep(TOO_LONG).await;
        fs.renew().await.unwrap();
        assert_ne!(fs.client(), old);
        assert_eq!(keepers(&fs, ino).await, [fs.client()]);
        assert_eq!(kept(&meta).concat(), [ino], "the old record is gone");
        other.collect_client(old).await.unwrap();
        fs.write_inline(ino, 0, b"still there").await.unwrap();
        fs.release(ino).await.unwrap();
        assert_eq!(fs.getattr(ino).await, Err(Error::Stale));
        for fs in [fs, other] {
            fs.close().await.unwrap();
        }
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}

#[test]
fn what_is_gone_meanwhile_is_gone_for_its_handles_alone() {
    run(1, async {
        let meta = fresh().await;
        let ((_, fs), (_, other)) = (client(&meta).await, client(&meta).await);
        let inos = [create(&fs, ROOT, "x").await, create(&fs, ROOT, "y").await];
        for (ino, name) in inos.into_iter().zip([b"x", b"y"]) {
            fs.open_inode(ino).await.unwrap();
            fs.unlink(ROOT, name).await.unwrap();
        }
        let third = create(&fs, ROOT, "z").await;
        fs.open_inode(third).await.unwrap();
        time::sleep(TOO_LONG).await;
        // As fsck does with a client that is no more.
        other.collect_client(fs.client()).await.unwrap();
        fs.renew().await.unwrap();
        for ino in inos {
            assert_eq!(fs.getattr(ino).await, Err(Error::Stale));
            fs.release(ino).await.unwrap();
        }
        fs.write_inline(third, 0, b"open under its name").await.unwrap();
        fs.release(third).await.unwrap();
        for fs in [fs, other] {
            fs.close().await.unwrap();
        }
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}

/// The first thing that it does after it was suspended.
#[test]
fn nothing_is_kept_under_a_number_that_is_too_old() {
    run(1, async {
        let meta = fresh().await;
        let ((_, fs), (_, other)) = (client(&meta).await, client(&meta).await);
        let ino = create(&fs, ROOT, "x").await;
        fs.open_inode(ino).await.unwrap();
        let old = fs.client();
        time::sleep(TOO_LONG).await;
        fs.unlink(ROOT, b"x").await.unwrap();
        assert_ne!(fs.client(), old);
        assert_eq!(keepers(&fs, ino).await, [fs.client()]);
        // Others took it for dead, and said so before it was.
        other.collect_client(fs.client()).await.unwrap();
        assert_eq!(fs.getattr(ino).await, Err(Error::Stale));
        let next = create(&fs, ROOT, "y").await;
        fs.open_inode(next).await.unwrap();
        fs.unlink(ROOT, b"y").await.unwrap();
        assert_eq!(kept(&meta).concat(), [next]);
        assert_eq!(keepers(&fs, next).await, [fs.client()]);
        for ino in [ino, next] {
            fs.release(ino).await.unwrap();
        }
        for fs in [fs, other] {
            fs.close().await.unwrap();
        }
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}

/// It went on under the old one, and could not write ever again.
#[test]
fn a_mount_writes_again_after_a_long_outage() {
    for begin in 0..4 {
        run(begin, async move {
            let place = Place::new().await;
            let files = place.client().await;
            let _alive = files.keep_alive();
            let (file, lasting) = (make(&files, "a").await, make(&files, "b").await);
            lasting.write(0, &[1; 100_000]).await.unwrap();
            lasting.flush().await.unwrap();
            files.names().unlink(ROOT, b"b").await.unwrap();
            let old = files.names().client();
            time::sleep(Duration::from_secs(begin * 17)).await;
            place.meta.set_faults(Faults { refused_ppm: 1_000_000, ..Faults::default() });
            time::sleep(TOO_LONG).await;
            place.meta.set_faults(Faults::default());
            time::sleep(Duration::from_secs(6)).await;
            assert_ne!(files.names().client(), old);
            file.write(0, &[2; 100_000]).await.unwrap();
            file.flush().await.unwrap();
            assert_eq!(bytes(&lasting).await, [1; 100_000]);
            for file in [file, lasting] {
                files.close_file(&file).await.unwrap();
            }
            files.close().await.unwrap();
        });
    }
}

/// More files are open without a name than its record can list, but for one: what it keeps it keeps.
#[test]
fn as_many_as_a_client_may_keep_are_kept_under_the_new_number() {
    run(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let mut kept = Vec::new();
        // The one that finds no room is not the last by its number.
        let first = create(&fs, ROOT, "first").await;
        for number in 0..ORPHANS_MAX {
            let name = format!("{number}");
            let ino = create(&fs, ROOT, &name).await;
            fs.open_inode(ino).await.unwrap();
            fs.unlink(ROOT, name.as_bytes()).await.unwrap();
            kept.push(ino);
        }
        fs.open_inode(first).await.unwrap();
        assert!(matches!(fs.unlink(ROOT, b"first").await, Err(Error::NoSpace(_))));
        time::sleep(TOO_LONG).await;
        fs.renew().await.unwrap();
        let last = kept[ORPHANS_MAX - 1];
        assert_eq!(keepers(&fs, last).await, [fs.client()]);
        fs.release(last).await.unwrap();
        // There is room for it now.
        fs.unlink(ROOT, b"first").await.unwrap();
        assert_eq!(keepers(&fs, first).await, [fs.client()]);
    });
}
