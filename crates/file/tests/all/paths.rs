//! Paths and trees as people name them, files that get their names when they are whole, and where their bytes lie.

use std::rc::Rc;
use std::time::Duration;

use engine::{Buf, task};
use file::data::Rope;
use file::record::Kind;
use file::{Change, ContentKind, DRAFT_PREFIX, Error, Files, Part, Pass, ROOT, RenameFlags, Spot};

use crate::opened::Place;
use crate::world::{create, file, mkdir, names, run};

const MIB: u64 = 1 << 20;

fn rope(byte: u8, length: usize) -> Rope {
    let mut buf = Buf::with_len(length.min(MIB as usize));
    buf.fill(byte);
    let (view, mut rope) = (buf.freeze(), Rope::default());
    (0..length.div_ceil(MIB as usize)).for_each(|_| rope.push(view.clone()));
    rope.slice(0, length)
}

async fn link(files: &Files, dir: u64, name: &str, path: &str) {
    files.names().symlink(dir, name.as_bytes(), path.as_bytes(), 1, 2).await.unwrap();
}

async fn found(files: &Files, path: &str) -> Result<u64, Error> {
    files.resolve(path.as_bytes(), true).await.map(|told| told.ino)
}

#[test]
fn a_path_leads_where_the_kernel_says() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let names = files.names();
        let a = mkdir(names, ROOT, "a").await;
        let b = mkdir(names, a, "b").await;
        let leaf = create(names, b, "leaf").await;
        link(&files, a, "down", "b/leaf").await;
        link(&files, b, "up", "../b/../down").await;
        link(&files, b, "root", "/a/").await;
        link(&files, ROOT, "loop", "loop").await;
        link(&files, ROOT, "dir", "a/b").await;
        link(&files, ROOT, "gone", "a/none").await;
        let all = [
            ("", ROOT),
            ("/", ROOT),
            ("a", a),
            ("/a/", a),
            ("//a//b/./", b),
            ("a/b/../../../..", ROOT),
            ("a/down", leaf),
            ("a/b/up", leaf),
            ("a/b/root/b", b),
            ("dir", b),
            ("dir/..", a),
        ];
        for (path, ino) in all {
            assert_eq!(found(&files, path).await, Ok(ino), "{path}");
        }
        assert!(matches!(found(&files, "loop").await, Err(Error::Loop(_))));
        assert!(matches!(found(&files, "gone").await, Err(Error::NotFound(_))));
        assert!(matches!(found(&files, "a/down/").await, Err(Error::NotDirectory(_))), "a file with a / behind it");
        assert!(matches!(found(&files, "a/b/leaf/x").await, Err(Error::NotDirectory(_))));
        assert!(matches!(found(&files, "a/b/leaf/..").await, Err(Error::NotDirectory(_))));
        assert_eq!(found(&files, &"n".repeat(256)).await, Err(Error::NameTooLong(255)));
        assert_eq!(found(&files, &"a/../".repeat(1000)).await, Err(Error::NameTooLong(4096)));
        // The link itself, where it is not to be followed; with a / it is.
        let itself = async |path: &str| files.resolve(path.as_bytes(), false).await.map(|told| told.kind);
        assert_eq!((itself("dir").await, itself("dir/").await), (Ok(Kind::Symlink), Ok(Kind::Directory)));
        assert_eq!(itself("loop").await, Ok(Kind::Symlink));

        // The last name need not be there, and no link is followed there.
        let parent = async |path: &'static str| files.resolve_parent(path.as_bytes()).await;
        assert_eq!(parent("new").await, Ok((ROOT, &b"new"[..])));
        assert_eq!(parent("dir/new/").await, Ok((b, &b"new"[..])));
        assert_eq!(parent("/loop").await, Ok((ROOT, &b"loop"[..])));
        for path in ["", "/", "a/..", "a/."] {
            assert!(matches!(parent(path).await, Err(Error::Invalid(_))), "{path}");
        }
        assert!(matches!(parent("a/down/x").await, Err(Error::NotDirectory(_))));

        let made = files.make_dirs(b"a/./b/../new//deep/", 0o700, 1, 2).await.unwrap();
        assert_eq!(found(&files, "a/new/deep").await, Ok(made.ino));
        assert_eq!(files.make_dirs(b"dir/", 0o700, 1, 2).await.unwrap().ino, b, "by a link, and there already");
        assert!(matches!(files.make_dirs(b"a/b/leaf/x", 0o700, 1, 2).await, Err(Error::NotDirectory(_))));
        assert_eq!(files.make_dirs(b"", 0o700, 1, 2).await.unwrap().ino, ROOT);
        assert!(files.is_within(b, a).await.unwrap() && files.is_within(a, a).await.unwrap());
        assert!(files.is_within(b, ROOT).await.unwrap() && !files.is_within(a, b).await.unwrap());
    });
}

#[test]
fn a_walk_comes_by_everything_once_and_goes_on_behind_faults() {
    run(2, async {
        let place = Place::new().await;
        let files = place.client().await;
        let top = mkdir(files.names(), ROOT, "top").await;
        let (b, c) = (mkdir(files.names(), top, "b").await, mkdir(files.names(), top, "c").await);
        for number in 0..100 {
            create(files.names(), b, &format!("{number:02}")).await;
        }
        for name in ["a", "z"] {
            create(files.names(), top, name).await;
        }
        create(files.names(), c, "in c").await;
        link(&files, top, "d", "b").await;
        let mut walk = files.walk(files.getattr(top).await.unwrap());
        let mut steps = Vec::new();
        while let Some(visit) = walk.next().await {
            if visit.path == b"c" && visit.pass == Pass::Enter {
                walk.skip();
            }
            let mark = match visit.pass {
                Pass::Enter => '>',
                Pass::Leave => '<',
                Pass::Leaf => '=',
                Pass::Fault(error) => panic!("{error}"),
            };
            assert!(visit.path.ends_with(visit.name()));
            steps.push(format!("{mark}{}", String::from_utf8(visit.path).unwrap()));
        }
        let mut expected = vec![">".to_owned(), "=a".to_owned(), ">b".to_owned()];
        expected.extend((0..100).map(|number| format!("=b/{number:02}")));
        expected.extend(["<b", ">c", "=d", "=z", "<"].map(str::to_owned));
        assert_eq!(steps, expected);

        // A directory that is removed as it is come by, with what is in it.
        let mut walk = files.walk(files.getattr(top).await.unwrap());
        let mut count = 0;
        while let Some(visit) = walk.next().await {
            if visit.path == b"a" {
                files.names().unlink(c, b"in c").await.unwrap();
                files.names().rmdir(top, b"c").await.unwrap();
            }
            assert!(!matches!(visit.pass, Pass::Fault(_)), "{visit:?}");
            count += usize::from(!visit.path.starts_with(b"c"));
        }
        assert_eq!(count, 2 + 1 + 2 + 100 + 2);

        // All below it goes, and nothing that links lead to.
        let beside = mkdir(files.names(), ROOT, "beside").await;
        create(files.names(), beside, "stays").await;
        link(&files, b, "out", "/beside").await;
        files.remove_below(files.getattr(top).await.unwrap(), |path, error| panic!("{path:?}: {error}")).await;
        assert_eq!(names(files.names(), top, 100).await.unwrap(), []);
        assert_eq!(names(files.names(), beside, 100).await.unwrap().len(), 1);
    });
}

#[test]
fn a_draft_gets_its_name_whole_or_never() {
    run(3, async {
        let place = Place::new().await;
        let files = place.client().await;
        let old = create(files.names(), ROOT, "a").await;
        mkdir(files.names(), ROOT, "dir").await;
        let draft = files.draft(ROOT, &file()).await.unwrap();
        // In any order, and several at once.
        draft.file().write_through(MIB, rope(2, MIB as usize)).await.unwrap();
        draft.file().write_through(0, rope(1, MIB as usize)).await.unwrap();
        assert_eq!(found(&files, "a").await, Ok(old), "until it is whole the name leads elsewhere");
        let change = Change { mode: Some(0o640), ..Change::default() };
        let new = draft.finish(b"a", &change, RenameFlags::default()).await.unwrap();
        let told = files.resolve(b"a", true).await.unwrap();
        assert_eq!((told.ino, told.size, told.mode), (new, 2 * MIB, 0o640));
        let other = place.client().await;
        let read = other.open_file(new).await.unwrap().read(MIB - 1, 2).await.unwrap();
        assert_eq!(read.to_vec(), [1, 2]);

        // A directory in the way, a name that is taken: nothing of the draft is left.
        let exclusive = RenameFlags { no_replace: true, exchange: false };
        for (name, flags) in [("dir", RenameFlags::default()), ("a", exclusive)] {
            let draft = files.draft(ROOT, &file()).await.unwrap();
            draft.file().write_through(0, rope(3, 5000)).await.unwrap();
            assert!(draft.finish(name.as_bytes(), &change, flags).await.is_err(), "{name}");
        }
        files.draft(ROOT, &file()).await.unwrap().give_up().await;
        let left = names(files.names(), ROOT, 100).await.unwrap();
        assert_eq!(
            left.iter().map(|(name, _)| &**name).collect::<std::collections::BTreeSet<_>>(),
            ["a", "dir"].into()
        );

        // One that was forgotten goes with its client; one of a client that dies is told by its name.
        let draft = files.draft(ROOT, &file()).await.unwrap();
        draft.file().write(0, &[7; 10_000]).await.unwrap();
        drop(draft);
        let is_draft = |(name, _): &(String, u64)| name.as_bytes().starts_with(DRAFT_PREFIX);
        assert!(names(files.names(), ROOT, 100).await.unwrap().iter().any(is_draft));
        files.close().await.unwrap();
        assert!(!names(other.names(), ROOT, 100).await.unwrap().iter().any(is_draft));
    });
}

/// A client that makes many files at once in one directory is not in its own way until it gives up.
#[test]
fn many_drafts_at_once_get_their_names() {
    run(7, async {
        let place = Place::new().await;
        place.set_delay(Duration::from_millis(20));
        let files = place.client().await;
        let tasks: Vec<_> = (0..200)
            .map(|number| {
                let files = Rc::clone(&files);
                task::spawn(async move {
                    let draft = files.draft(ROOT, &file()).await?;
                    draft.file().write_through(0, rope(1, 100)).await?;
                    draft.finish(format!("{number}").as_bytes(), &Change::default(), RenameFlags::default()).await
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(names(files.names(), ROOT, 1000).await.unwrap().len(), 200);
        let root = files.getattr(ROOT).await.unwrap();
        files.remove_below(root, |path, error| panic!("{path:?}: {error}")).await;
        assert_eq!(names(files.names(), ROOT, 1000).await.unwrap(), []);
    });
}

/// What fills all members and is given up leaves them free, at once, for what this client copies next.
#[test]
fn a_draft_without_room_takes_none() {
    run(6, async {
        let place = Place::new().await;
        let files = place.client().await;
        // Of what is left a draft has fewer stripes than are cleared at once, when they are so many.
        let stays = files.draft(ROOT, &file()).await.unwrap();
        stays.file().write_through(0, rope(2, 32 * MIB as usize)).await.unwrap();
        stays.finish(b"stays", &Change::default(), RenameFlags::default()).await.unwrap();
        for _ in 0..3 {
            let draft = files.draft(ROOT, &file()).await.unwrap();
            let mut at = 0;
            let fault = loop {
                match draft.file().write_through(at, rope(1, 4 * MIB as usize)).await {
                    Ok(()) => at += 4 * MIB,
                    Err(error) => break error,
                }
            };
            assert!(matches!(fault, Error::NoSpace(_)) && at >= 20 * MIB, "after {at} bytes: {fault}");
            draft.give_up().await;
        }
        files.close().await.unwrap();
    });
}

/// What was gathered before must not go out later, over what was written past it.
#[test]
fn what_is_written_through_comes_behind_what_was_gathered() {
    run(5, async {
        let place = Place::new().await;
        let files = place.client().await;
        let open = files.open_file(create(files.names(), ROOT, "a").await).await.unwrap();
        open.write(0, &[1; 10_000]).await.unwrap();
        open.write_through(5000, rope(2, 10_000)).await.unwrap();
        open.flush().await.unwrap();
        let read = open.read(0, 100_000).await.unwrap().to_vec();
        assert!(read == [[1; 5000].as_slice(), &[2; 10_000]].concat());
        assert_eq!(open.write_through(u64::MAX, rope(1, 1)).await, Err(Error::TooLong(1 << 56)));
        files.close_file(&open).await.unwrap();
    });
}

#[test]
fn where_bytes_lie_is_told_and_where_they_do_not() {
    run(4, async {
        let place = Place::new().await;
        let files = place.client().await;
        let made = create(files.names(), ROOT, "a").await;
        let open = files.open_file(made).await.unwrap();
        let all = async |open: &Rc<file::OpenFile>| {
            let (mut lying, mut parts) = (open.lying(0..u64::MAX).await.unwrap(), Vec::<Part>::new());
            while let Some(some) = lying.next().await.unwrap() {
                parts.extend(some);
            }
            parts
        };
        assert_eq!(all(&open).await, []);
        open.write(0, &[1; 100]).await.unwrap();
        assert_eq!(all(&open).await, [Part { range: 0..100, spot: Spot::Inode }]);
        assert_eq!(open.footprint().await.unwrap().kind, ContentKind::Inline);

        // What lies far behind a hole: no time, and no memory, for what is not there.
        open.truncate(0).await.unwrap();
        let far = 1 << 50;
        open.write_through(MIB, rope(1, 12 * MIB as usize)).await.unwrap();
        open.write(far, &[2; 10]).await.unwrap();
        let parts = all(&open).await;
        let mut end = 0;
        for part in &parts {
            assert_eq!(part.range.start, end, "no gaps");
            end = part.range.end;
        }
        assert_eq!(end, far + 10);
        let data: u64 = parts.iter().filter(|part| part.spot != Spot::Hole).map(|p| p.range.end - p.range.start).sum();
        let footprint = open.footprint().await.unwrap();
        assert_eq!((data, footprint.data, footprint.kind), (12 * MIB + 10, 12 * MIB + 10, ContentKind::Spans));
        // Two columns of data, one of parity; the last stripe fills a row of a data column and one of parity.
        assert_eq!((footprint.stripes, footprint.short, footprint.stored), (13, 0, 18 * MIB + 8192));
        let Spot::Stripe(stripe) = &parts[1].spot else { panic!("{:?}", parts[1]) };
        let columns = open.columns_of(stripe.id).await.unwrap().expect("its chunk is there");
        let members: std::collections::BTreeSet<u16> = columns.iter().map(|column| column.member).collect();
        assert_eq!((columns.len(), members.len()), (3, 3));
        assert_eq!(file::column_bytes(stripe, files.members().layout().shape), [Some(MIB / 2); 3]);

        // Room, by members: what chunks have taken is no more free.
        let room = files.room().await.unwrap();
        assert_eq!(room.len(), 3);
        assert!(room.iter().all(|(all, free)| *all == 31 * MIB && *free < *all), "{room:?}");
        files.close_file(&open).await.unwrap();
    });
}
