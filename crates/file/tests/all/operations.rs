//! What POSIX says of each operation.

use std::rc::Rc;

use file::meta::Meta as _;
use file::record::{Kind, Time};
use file::{Change, Error, FileSystem, New, ROOT, RenameFlags, SetMode};
use libc::{
    EEXIST, EINVAL, EISDIR, EMLINK, ENAMETOOLONG, ENODATA, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY, EOPNOTSUPP, EPERM,
    ERANGE, ESTALE,
};

use crate::audit::{Leaks, audit};
use crate::world::{at, client, create, file, fresh, mkdir, names, run};

/// A fresh file system, its first client, and a check of all that is left.
fn with<F: Future<Output = ()>>(act: impl FnOnce(Rc<FileSystem>) -> F) {
    run(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        act(fs.clone()).await;
        fs.close().await.unwrap();
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}

fn code<T: std::fmt::Debug>(done: Result<T, Error>) -> i32 {
    done.unwrap_err().errno()
}

async fn rename(fs: &FileSystem, from: (u64, &str), to: (u64, &str)) -> Result<(), Error> {
    fs.rename((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), RenameFlags::default()).await
}

#[test]
fn names_are_bytes_with_few_exceptions() {
    with(async |fs: Rc<FileSystem>| {
        let fs = &fs;
        let make = async |name: &[u8]| fs.create(ROOT, name, &file(), true).await;
        make(b"\xff\xfe no text").await.unwrap();
        make(&[b'n'; 255]).await.unwrap();
        assert_eq!(code(make(&[b'n'; 256]).await), ENAMETOOLONG);
        for refused in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(code(make(refused).await), EINVAL);
            assert_eq!(code(fs.mkdir(ROOT, refused, 0, 0, 0).await), EINVAL);
            assert_eq!(code(fs.unlink(ROOT, refused).await), EINVAL);
            assert_eq!(code(fs.rmdir(ROOT, refused).await), EINVAL);
        }
        assert_eq!(fs.lookup(ROOT, b"\xff\xfe no text").await.unwrap().kind, Kind::File);
        assert_eq!(fs.lookup(ROOT, b".").await.unwrap().ino, ROOT);
        assert_eq!(fs.lookup(ROOT, b"..").await.unwrap().ino, ROOT);
    });
}

#[test]
fn a_name_is_made_once() {
    with(async |fs| {
        let (first, was_there) = fs.create(ROOT, b"a", &file(), false).await.unwrap();
        assert!(!was_there);
        let (second, was_there) = fs.create(ROOT, b"a", &file(), false).await.unwrap();
        assert!(was_there && second.ino == first.ino);
        assert_eq!(code(fs.create(ROOT, b"a", &file(), true).await), EEXIST);
        assert_eq!(code(fs.mkdir(ROOT, b"a", 0, 0, 0).await), EEXIST);
        assert_eq!(code(fs.create(first.ino, b"b", &file(), true).await), ENOTDIR);
        assert_eq!(code(fs.lookup(first.ino, b"b").await), ENOTDIR);
        assert_eq!(code(fs.readdir(first.ino, 0, 10).await), ENOTDIR);
        assert_eq!(code(fs.lookup(ROOT, b"b").await), ENOENT);
        let device = New { device: 77, ..New::of(Kind::Character, 0o600, 0, 0) };
        assert_eq!(fs.make(ROOT, b"device", &device).await.unwrap().device, 77);
        let told = fs.symlink(ROOT, b"link", b"../else", 1, 1).await.unwrap();
        assert_eq!((told.size, fs.readlink(told.ino).await.unwrap()), (7, b"../else".to_vec()));
        assert_eq!(code(fs.readlink(first.ino).await), EINVAL);
        assert_eq!(code(fs.symlink(ROOT, b"empty", b"", 1, 1).await), EINVAL);
        assert_eq!(code(fs.symlink(ROOT, b"long", &[b'a'; 4096], 1, 1).await), ENAMETOOLONG);
        fs.symlink(ROOT, b"longest", &[b'a'; 4095], 1, 1).await.unwrap();
    });
}

#[test]
fn links_are_counted_and_bounded() {
    with(async |fs| {
        let ino = create(&fs, ROOT, "a").await;
        assert_eq!(fs.link(ino, ROOT, b"b").await.unwrap().links, 2);
        assert_eq!(code(fs.link(ino, ROOT, b"b").await), EEXIST);
        let dir = mkdir(&fs, ROOT, "d").await;
        assert_eq!(code(fs.link(dir, ROOT, b"e").await), EPERM);
        for number in 2..1000 {
            fs.link(ino, dir, format!("{number}").as_bytes()).await.unwrap();
        }
        assert_eq!(code(fs.link(ino, ROOT, b"c").await), EMLINK);
        fs.unlink(ROOT, b"a").await.unwrap();
        assert_eq!(fs.link(ino, ROOT, b"c").await.unwrap().links, 1000);
        assert_eq!(fs.getattr(dir).await.unwrap().links, 1, "of many names directories are not counted");
        let [one, other] = [mkdir(&fs, ROOT, "one").await, mkdir(&fs, ROOT, "other").await];
        let sub = fs.mkdir(one, b"sub", 0o755, 1, 2).await.unwrap();
        let (links_told, sub) = (sub.links, sub.ino);
        assert_eq!(links_told, 2);
        let links = async || {
            let mut links = Vec::new();
            for dir in [ROOT, one, other, sub] {
                links.push(fs.getattr(dir).await.unwrap().links);
            }
            links
        };
        assert_eq!(links().await, [5, 3, 2, 2]);
        fs.rename((one, b"sub"), (other, b"moved"), RenameFlags::default()).await.unwrap();
        assert_eq!(links().await, [5, 2, 3, 2]);
        fs.rmdir(ROOT, b"one").await.unwrap();
        assert_eq!(fs.getattr(ROOT).await.unwrap().links, 4);
    });
}

#[test]
fn directories_go_when_they_are_empty() {
    with(async |fs| {
        let dir = mkdir(&fs, ROOT, "d").await;
        create(&fs, dir, "f").await;
        assert_eq!(code(fs.rmdir(ROOT, b"d").await), ENOTEMPTY);
        assert_eq!(code(fs.unlink(ROOT, b"d").await), EISDIR);
        assert_eq!(code(fs.rmdir(dir, b"f").await), ENOTDIR);
        fs.unlink(dir, b"f").await.unwrap();
        fs.rmdir(ROOT, b"d").await.unwrap();
        assert_eq!(code(fs.rmdir(ROOT, b"d").await), ENOENT);
        assert_eq!(code(fs.create(dir, b"g", &file(), true).await), ENOENT);
        assert_eq!(code(fs.lookup(dir, b"g").await), ENOENT);
        assert_eq!(code(fs.getattr(dir).await), ESTALE);
    });
}

#[test]
fn renames_replace_what_they_may() {
    with(async |fs| {
        let (d, e) = (mkdir(&fs, ROOT, "d").await, mkdir(&fs, ROOT, "e").await);
        let f = create(&fs, ROOT, "f").await;
        create(&fs, e, "g").await;
        assert_eq!(code(rename(&fs, (ROOT, "f"), (ROOT, "d")).await), EISDIR);
        assert_eq!(code(rename(&fs, (ROOT, "d"), (ROOT, "f")).await), ENOTDIR);
        assert_eq!(code(rename(&fs, (ROOT, "d"), (ROOT, "e")).await), ENOTEMPTY);
        assert_eq!(code(rename(&fs, (ROOT, "no"), (ROOT, "e")).await), ENOENT);
        assert_eq!(code(rename(&fs, (ROOT, "d"), (d, "in")).await), EINVAL);
        rename(&fs, (ROOT, "f"), (ROOT, "f")).await.unwrap();
        fs.link(f, d, b"h").await.unwrap();
        rename(&fs, (ROOT, "f"), (d, "h")).await.unwrap(); // two names of one file: nothing happens
        assert_eq!(at(&fs, "f").await.unwrap().links, 2);
        let below = mkdir(&fs, d, "below").await;
        assert_eq!(code(rename(&fs, (ROOT, "d"), (below, "in")).await), EINVAL);
        assert_eq!(code(rename(&fs, (d, "below"), (ROOT, "d")).await), ENOTEMPTY);
        let no_replace = RenameFlags { no_replace: true, exchange: false };
        assert_eq!(code(fs.rename((ROOT, b"f"), (e, b"g"), no_replace).await), EEXIST);
        fs.rename((ROOT, b"f"), (e, b"new"), no_replace).await.unwrap();
        let exchange = RenameFlags { no_replace: false, exchange: true };
        assert_eq!(code(fs.rename((e, b"new"), (ROOT, b"no"), exchange).await), ENOENT);
        assert_eq!(code(fs.rename((ROOT, b"d"), (d, b"below"), exchange).await), EINVAL);
        assert_eq!(code(fs.rename((d, b"below"), (ROOT, b"d"), exchange).await), EINVAL);
        fs.rename((d, b"below"), (e, b"new"), exchange).await.unwrap();
        assert_eq!((at(&fs, "e/new").await.unwrap().ino, at(&fs, "d/below").await.unwrap().ino), (below, f));
        assert_eq!(fs.lookup(below, b"..").await.unwrap().ino, e);
        rename(&fs, (ROOT, "d"), (e, "new")).await.unwrap(); // over the empty directory
        assert_eq!(at(&fs, "e/new").await.unwrap().ino, d);
        assert_eq!(code(fs.getattr(below).await), ESTALE);
        rename(&fs, (d, "h"), (e, "g")).await.unwrap();
        assert_eq!(at(&fs, "e/g").await.unwrap().ino, f);
    });
}

#[test]
fn a_name_goes_from_leaf_to_leaf_of_its_directory() {
    with(async |fs| {
        let dir = mkdir(&fs, ROOT, "d").await;
        let name = |number: u32| format!("{number:0>200}");
        for number in 0..40 {
            create(&fs, dir, &name(number)).await;
        }
        for number in 0..40 {
            rename(&fs, (dir, &name(number)), (dir, &name(number + 100))).await.unwrap();
            fs.lookup(dir, name(number + 100).as_bytes()).await.unwrap();
        }
        assert_eq!(names(&fs, dir, 10).await.unwrap().len(), 40);
    });
}

#[test]
fn an_open_file_stays_until_its_last_close() {
    with(async |fs| {
        let ino = create(&fs, ROOT, "a").await;
        fs.open_inode(ino).await.unwrap();
        fs.open_inode(ino).await.unwrap();
        fs.unlink(ROOT, b"a").await.unwrap();
        fs.write_inline(ino, 0, b"still there").await.unwrap();
        assert_eq!(fs.getattr(ino).await.unwrap().links, 0);
        assert_eq!(code(fs.link(ino, ROOT, b"b").await), ENOENT);
        fs.release(ino).await.unwrap();
        assert_eq!(fs.read_inline(ino, 6, 100).await.unwrap().unwrap(), b"there");
        fs.release(ino).await.unwrap();
        assert_eq!(code(fs.getattr(ino).await), ESTALE);
        assert_eq!(code(fs.open_inode(ino).await), ESTALE);
    });
}

/// A first removal by a client that did not have the file open said so of its link alone; told again of it, by whoever changed
/// that leaf next, the inode went while the other client had it open.
#[test]
fn a_link_that_went_before_does_not_take_an_orphan_with_it() {
    run(1, async {
        let meta = fresh().await;
        let ((_, one), (_, two)) = (client(&meta).await, client(&meta).await);
        let (a, b) = (mkdir(&one, ROOT, "a").await, mkdir(&one, ROOT, "b").await);
        let ino = create(&one, a, "f").await;
        one.link(ino, b, b"f").await.unwrap();
        one.open_inode(ino).await.unwrap();
        two.unlink(a, b"f").await.unwrap();
        one.unlink(b, b"f").await.unwrap();
        let (_, three) = client(&meta).await;
        create(&three, a, "next").await;
        create(&three, b, "next").await;
        assert_eq!(one.getattr(ino).await.unwrap().links, 0);
        one.release(ino).await.unwrap();
        assert_eq!(code(one.getattr(ino).await), ESTALE);
        for fs in [one, two, three] {
            fs.close().await.unwrap();
        }
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}

#[test]
fn content_in_the_inode_is_bounded() {
    with(async |fs| {
        let ino = create(&fs, ROOT, "a").await;
        assert_eq!(fs.write_inline(ino, 2040, b"12345678").await, Ok(Some(2048)));
        assert_eq!(fs.write_inline(ino, 2041, b"12345678").await, Ok(None));
        assert_eq!(fs.read_inline(ino, 2039, 100).await.unwrap().unwrap(), b"\x0012345678");
        assert_eq!(fs.read_inline(ino, u64::MAX, 100).await.unwrap().unwrap(), b"");
        let size = |size| Change { size: Some(size), ..Change::default() };
        assert_eq!(fs.setattr(ino, &size(2041)).await.unwrap().size, 2041);
        assert_eq!(fs.setattr(ino, &size(2042)).await.unwrap().size, 2042);
        assert_eq!(fs.read_inline(ino, 2039, 100).await.unwrap().unwrap(), b"\x001\0");
        assert_eq!(code(fs.setattr(ino, &size(2049)).await), EOPNOTSUPP);
        assert_eq!(code(fs.setattr(ROOT, &size(0)).await), EISDIR);
        assert_eq!(code(fs.write_inline(ROOT, 0, b"a").await), EISDIR);
    });
}

#[test]
fn owners_and_modes() {
    with(async |fs| {
        let dir = fs.mkdir(ROOT, b"d", 0o2755, 5, 6).await.unwrap();
        assert_eq!((dir.mode, dir.gid), (0o2755, 6));
        let (told, _) = fs.create(dir.ino, b"f", &New::of(Kind::File, 0o6755, 1, 2), true).await.unwrap();
        assert_eq!((told.mode, told.uid, told.gid), (0o6755, 1, 6));
        let below = fs.mkdir(dir.ino, b"d", 0o700, 1, 2).await.unwrap();
        assert_eq!((below.mode, below.gid), (0o2700, 6));
        let told = fs.setattr(told.ino, &Change { uid: Some(9), ..Change::default() }).await.unwrap();
        assert_eq!((told.mode, told.uid, told.gid), (0o755, 9, 6));
        let told = fs.setattr(below.ino, &Change { gid: Some(9), ..Change::default() }).await.unwrap();
        assert_eq!((told.mode, told.gid), (0o2700, 9));
    });
}

/// As Linux's file systems do it, and as incremental backups need it.
#[test]
fn a_rename_is_a_change_of_what_has_another_name_then() {
    with(async |fs| {
        let (d, e) = (mkdir(&fs, ROOT, "d").await, mkdir(&fs, ROOT, "e").await);
        let (f, g) = (create(&fs, ROOT, "f").await, create(&fs, ROOT, "g").await);
        let below = mkdir(&fs, d, "below").await;
        let exchange = RenameFlags { no_replace: false, exchange: true };
        let plain = RenameFlags::default();
        type Place<'a> = (u64, &'a [u8]);
        let renames: [(Place<'_>, Place<'_>, RenameFlags, &[u64]); 7] = [
            ((ROOT, b"f"), (ROOT, b"h"), plain, &[f]),
            ((ROOT, b"h"), (d, b"h"), plain, &[f]),
            ((d, b"h"), (ROOT, b"g"), exchange, &[f, g]),
            ((ROOT, b"g"), (ROOT, b"e"), exchange, &[f, e]),
            ((d, b"below"), (d, b"in"), plain, &[below]),
            ((d, b"in"), (e, b"in"), plain, &[below]),
            ((ROOT, b"no"), (e, b"no"), plain, &[]),
        ];
        for (from, to, flags, changed) in renames {
            engine::time::sleep(std::time::Duration::from_millis(10)).await;
            let now = Time::now();
            assert_eq!(fs.rename(from, to, flags).await.is_ok(), !changed.is_empty());
            for ino in [f, g, e, below] {
                // A directory is also changed by what comes into it, or goes.
                let told = fs.get_inode(ino).await.unwrap();
                assert_eq!(told.changed >= now, changed.contains(&ino), "{from:?} to {to:?}: {ino}");
            }
        }
    });
}

/// Whoever met a link that was gone of an inode that does not parse could change nothing beside it any more.
#[test]
fn a_damaged_inode_does_not_hold_up_its_directory() {
    run(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let (d, e) = (mkdir(&fs, ROOT, "d").await, mkdir(&fs, ROOT, "e").await);
        for (dir, name) in [(d, "f"), (d, "g"), (e, "h")] {
            let ino = create(&fs, dir, name).await;
            let raw = meta.client();
            let (key, _) = meta.dump().into_iter().find(|(key, _)| key.ends_with(&inode_key(ino))).unwrap();
            let seen = raw.get(&key).await.unwrap().unwrap();
            raw.swap(&key, Some(seen.version), Some(b"no inode".to_vec())).await.unwrap();
        }
        fs.unlink(d, b"f").await.unwrap();
        // Over one that is damaged, and of one.
        create(&fs, e, "i").await;
        rename(&fs, (e, "i"), (d, "g")).await.unwrap();
        rename(&fs, (e, "h"), (d, "h")).await.unwrap();
        for number in 0..20 {
            create(&fs, d, &format!("{number:0>200}")).await;
            fs.unlink(d, format!("{number:0>200}").as_bytes()).await.unwrap();
        }
        fs.unlink(d, b"g").await.unwrap();
        fs.unlink(d, b"h").await.unwrap();
        fs.rmdir(ROOT, b"d").await.unwrap();
        fs.rmdir(ROOT, b"e").await.unwrap();
        fs.close().await.unwrap();
    });
}

fn inode_key(ino: u64) -> Vec<u8> {
    [b"i".as_slice(), &ino.to_be_bytes()].concat()
}

#[test]
fn attributes_are_bounded() {
    with(async |fs| {
        let ino = create(&fs, ROOT, "a").await;
        let (any, create, replace) = (SetMode::Any, SetMode::Create, SetMode::Replace);
        assert_eq!(code(fs.get_xattr(ino, b"user.a").await), ENODATA);
        assert_eq!(code(fs.set_xattr(ino, b"user.a", b"1", replace).await), ENODATA);
        fs.set_xattr(ino, b"user.a", b"1", create).await.unwrap();
        assert_eq!(code(fs.set_xattr(ino, b"user.a", b"2", create).await), EEXIST);
        fs.set_xattr(ino, b"user.a", b"2", replace).await.unwrap();
        fs.set_xattr(ino, b"user.b", b"", any).await.unwrap();
        assert_eq!(fs.get_xattr(ino, b"user.a").await.unwrap(), b"2");
        assert_eq!(fs.list_xattrs(ino).await.unwrap(), [b"user.a", b"user.b"]);
        assert_eq!(code(fs.set_xattr(ino, b"user.c", &[0; 4096], any).await), ENOSPC);
        assert_eq!(code(fs.set_xattr(ino, b"", b"", any).await), ERANGE);
        assert_eq!(code(fs.set_xattr(ino, &[b'n'; 256], b"", any).await), ERANGE);
        assert_eq!(code(fs.set_xattr(ino, b"system.posix_acl_access", b"", any).await), EOPNOTSUPP);
        fs.remove_xattr(ino, b"user.b").await.unwrap();
        assert_eq!(code(fs.remove_xattr(ino, b"user.b").await), ENODATA);
        assert_eq!(fs.list_xattrs(ino).await.unwrap(), [b"user.a"]);
    });
}
