//! Two clients' operations in all interleavings of their calls with few switches between them: what they return and what is there
//! afterwards is as if one had come before the other. (Almost all faults of such protocols need no more than two switches:
//! Musuvathi and Qadeer, PLDI 2007.)

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use engine::task::{self, Task};
use engine::time;
use file::meta::MemoryMeta;
use file::{Error, FileSystem, ROOT, RenameFlags};

use crate::audit::{Leaks, audit};
use crate::gates::{Both, Gated, Plan, drive};
use crate::world::{Tree, at, client, create, file, fresh, mkdir, names, over, run, tree};

/// What the directory `a/e` has.
#[derive(Clone, Copy, PartialEq)]
enum Leaves {
    One,
    /// And names were met so long ago that nobody guesses what they lead to: all are read first.
    OneUnmet,
    Many,
    Closed,
}

use Leaves::{Closed, Many, One, OneUnmet};

#[derive(Clone, Copy)]
enum Op {
    Create(&'static str, &'static str),
    Mkdir(&'static str, &'static str),
    Unlink(&'static str, &'static str),
    Rmdir(&'static str, &'static str),
    Link(&'static str, &'static str, &'static str),
    Rename(&'static str, &'static str, &'static str, &'static str),
    Exchange(&'static str, &'static str, &'static str, &'static str),
    /// The file is open; and then another is made.
    UnlinkOpen(&'static str, &'static str, &'static str),
    /// Opens a file, looks at it, and closes it.
    Use(&'static str),
    /// The file is open, and its names are gone if it says so.
    Close(&'static str, &'static str, bool),
}

/// An operation with its directories by number, as a kernel calls it.
type Ready = (Op, u64, u64);

async fn ready(fs: &FileSystem, op: Op) -> Ready {
    let (from, to) = match op {
        Op::Create(dir, _) | Op::Mkdir(dir, _) | Op::Unlink(dir, _) | Op::Rmdir(dir, _) => (dir, dir),
        Op::Link(inode, dir, _) => (inode, dir),
        Op::Rename(from, _, to, _) | Op::Exchange(from, _, to, _) => (from, to),
        Op::Use(path) => (path, path),
        Op::UnlinkOpen(dir, name, _) | Op::Close(dir, name, _) => {
            let dir = at(fs, dir).await.unwrap().ino;
            let ino = fs.lookup(dir, name.as_bytes()).await.unwrap().ino;
            fs.open_inode(ino).await.unwrap();
            if let Op::Close(.., true) = op {
                fs.unlink(dir, name.as_bytes()).await.unwrap();
            }
            return (op, ino, dir);
        }
    };
    (op, at(fs, from).await.unwrap().ino, at(fs, to).await.unwrap().ino)
}

/// After all has come to rest: what is open is there, and what is not, and has no name, is gone.
async fn rest(fs: &FileSystem, (op, ino, _): Ready, code: i32, tree: &Tree) {
    match op {
        Op::UnlinkOpen(..) => {
            assert!(code != 0 || fs.getattr(ino).await.is_ok(), "the inode of an open file is gone");
            fs.release(ino).await.unwrap();
        }
        Op::Close(..) if !fs.is_open(ino) && tree.values().all(|(_, named)| *named != ino) => {
            assert_eq!(fs.getattr(ino).await, Err(Error::Stale), "a file that is closed and has no name is there");
        }
        _ => {}
    }
}

/// 0, or why not.
async fn act(fs: &FileSystem, (op, from, to): Ready) -> i32 {
    // As a kernel does: and so that nothing of what follows is done before both have begun.
    if matches!(op, Op::Use(_) | Op::Close(..)) {
        let _looked = fs.getattr(from).await;
    }
    let done = match op {
        Op::Create(_, name) => fs.create(to, name.as_bytes(), &file(), true).await.map(drop),
        Op::Mkdir(_, name) => fs.mkdir(to, name.as_bytes(), 0o755, 0, 0).await.map(drop),
        Op::Unlink(_, name) => fs.unlink(to, name.as_bytes()).await,
        Op::Rmdir(_, name) => fs.rmdir(to, name.as_bytes()).await,
        Op::Link(_, _, name) => fs.link(from, to, name.as_bytes()).await.map(drop),
        Op::Rename(_, name, _, new) => {
            fs.rename((from, name.as_bytes()), (to, new.as_bytes()), RenameFlags::default()).await
        }
        Op::Exchange(_, name, _, new) => {
            let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
            fs.rename((from, name.as_bytes()), (to, new.as_bytes()), exchange).await
        }
        Op::UnlinkOpen(_, name, new) => match fs.unlink(to, name.as_bytes()).await {
            Ok(()) if !new.is_empty() => fs.create(ROOT, new.as_bytes(), &file(), true).await.map(drop),
            done => done,
        },
        Op::Use(_) => match fs.open_inode(from).await {
            Ok(_) => {
                assert!(fs.getattr(from).await.is_ok(), "a file that was just opened is gone");
                fs.release(from).await
            }
            Err(error) => Err(error),
        },
        Op::Close(..) => fs.release(from).await,
    };
    match done {
        Ok(()) => 0,
        // That a directory or inode is gone can be told by either word.
        Err(Error::Stale) => Error::NotFound(String::new()).errno(),
        Err(error @ (Error::Unavailable(_) | Error::Damaged(_))) => panic!("{error}"),
        Err(error) => error.errno(),
    }
}

async fn prepare(meta: &MemoryMeta, leaves: Leaves) {
    let (_, fs) = client(meta).await;
    let (a, b) = (mkdir(&fs, ROOT, "a").await, mkdir(&fs, ROOT, "b").await);
    create(&fs, a, "f").await;
    let twice = create(&fs, b, "g").await;
    fs.link(twice, b, b"h").await.unwrap();
    let empty = mkdir(&fs, a, "e").await;
    let d = mkdir(&fs, a, "d").await;
    mkdir(&fs, b, "e").await;
    mkdir(&fs, d, "i").await;
    if matches!(leaves, Many | Closed) {
        // It has split, and is empty again.
        let name = |number: u32| format!("{number:0>200}");
        for number in 0..17 {
            create(&fs, empty, &name(number)).await;
        }
        for number in 0..17 {
            fs.unlink(empty, name(number).as_bytes()).await.unwrap();
        }
    }
    if leaves == Closed {
        // Somebody began to remove it, and found a name behind the place of "n".
        create(&fs, empty, "n").await;
        let mut last = String::new();
        for number in 0..64 {
            last = format!("{number}");
            create(&fs, empty, &last).await;
            let is_behind = names(&fs, empty, 100).await.unwrap()[0].0 == "n";
            if is_behind {
                break;
            }
            fs.unlink(empty, last.as_bytes()).await.unwrap();
        }
        fs.unlink(empty, b"n").await.unwrap();
        assert_eq!(fs.rmdir(a, b"e").await, Err(Error::NotEmpty("e".to_owned())));
        fs.unlink(empty, last.as_bytes()).await.unwrap();
    }
    fs.close().await.unwrap();
}

fn alike(tree: Tree, before: &Tree) -> Tree {
    let is_old = |ino: u64| before.values().any(|(_, old)| *old == ino);
    tree.into_iter().map(|(path, (kind, ino))| (path, (kind, if is_old(ino) { ino } else { 0 }))).collect()
}

/// What both returned, and what is there.
type End = ([i32; 2], Tree);

async fn serially(ops: [Op; 2], first: usize, leaves: Leaves) -> End {
    let meta = fresh().await;
    prepare(&meta, leaves).await;
    let (_, fs) = client(&meta).await;
    let before = tree(&fs).await;
    let both = [ready(&fs, ops[0]).await, ready(&fs, ops[1]).await];
    let mut codes = [0; 2];
    for which in [first, 1 - first] {
        codes[which] = act(&fs, both[which]).await;
    }
    let found = tree(&fs).await;
    for which in 0..2 {
        rest(&fs, both[which], codes[which], &found).await;
    }
    (codes, alike(found, &before))
}

/// Of two clients, or of two tasks of one.
async fn interleaved(ops: [Op; 2], leaves: Leaves, is_one: bool, plan: &mut Plan) -> End {
    let meta = fresh().await;
    prepare(&meta, leaves).await;
    let gated = [Gated::new(&meta), Gated::new(&meta)];
    let both_tasks = Both::new(&gated);
    let first = if is_one { over(both_tasks.clone()).await } else { over(gated[0].clone()).await };
    let second = if is_one { first.clone() } else { over(gated[1].clone()).await };
    let clients = [first, second];
    let before = tree(&clients[0]).await;
    let both = [ready(&clients[0], ops[0]).await, ready(&clients[1], ops[1]).await];
    if leaves == OneUnmet {
        time::sleep(Duration::from_secs(2)).await;
    }
    gated.iter().for_each(|gated| gated.is_open.set(false));
    let codes = Rc::new(RefCell::new([-1; 2]));
    let tasks: Vec<Task<()>> = (0..2)
        .map(|which| {
            let (fs, codes, ready) = (clients[which].clone(), codes.clone(), both[which]);
            task::spawn(both_tasks.task(which, async move {
                let code = act(&fs, ready).await;
                codes.borrow_mut()[which] = code;
            }))
        })
        .collect();
    drive(&gated, &tasks, plan).await;
    gated.iter().for_each(|gated| gated.is_open.set(true));
    let (found, codes) = (tree(&clients[0]).await, *codes.borrow());
    for which in 0..2 {
        rest(&clients[which], both[which], codes[which], &found).await;
    }
    for fs in &clients[usize::from(is_one)..] {
        fs.close().await.unwrap();
    }
    assert_eq!(audit(&meta).await, Leaks::default());
    (codes, alike(found, &before))
}

fn all(first: Op, second: Op, leaves: Leaves, is_one: bool) {
    let ops = [first, second];
    let mut ends = vec![run(1, serially(ops, 0, leaves)), run(1, serially(ops, 1, leaves))];
    if matches!(first, Op::UnlinkOpen(.., new) if !new.is_empty()) {
        ends.push(([0, libc::ENOENT], ends[0].1.clone())); // the second one between the removal and what is made then
    }
    let (mut plan, mut runs) = (Plan::default(), 0);
    loop {
        let end = run(1, interleaved(ops, leaves, is_one, &mut plan));
        assert!(ends.contains(&end), "{:?}: {end:#?} is neither of {ends:#?}", plan.taken);
        runs += 1;
        if !plan.next() {
            break;
        }
    }
    assert!(runs > if is_one { 1 } else { 15 }, "{runs} interleavings");
}

macro_rules! pairs {
    ($is_one:literal; $($name:ident: $first:expr, $second:expr, $leaves:expr;)*) => {
        $(#[test]
        fn $name() {
            all($first, $second, $leaves, $is_one);
        })*
    };
}

use Op::{Close, Create, Exchange, Link, Mkdir, Rename, Rmdir, Unlink, UnlinkOpen, Use};

pairs! {
    false;
    two_make_one_name: Create("a", "n"), Mkdir("a", "n"), One;
    two_make_two_names: Create("a", "n"), Create("a", "m"), One;
    two_remove_one_name: Unlink("a", "f"), Unlink("a", "f"), One;
    two_remove_both_links: Unlink("b", "g"), Unlink("b", "h"), One;
    a_link_and_the_last_removal: Link("a/f", "b", "n"), Unlink("a", "f"), One;
    a_link_over_a_name_that_is_made: Link("a/f", "b", "n"), Create("b", "n"), One;
    a_directory_goes_and_gets_a_name: Rmdir("a", "e"), Create("a/e", "n"), One;
    a_split_directory_goes_and_gets_a_name: Rmdir("a", "e"), Create("a/e", "n"), Many;
    a_directory_whose_leaves_are_closed_goes_and_gets_a_name: Rmdir("a", "e"), Create("a/e", "n"), Closed;
    two_remove_one_directory: Rmdir("a", "e"), Rmdir("a", "e"), One;
    a_directory_goes_and_is_renamed: Rmdir("a", "e"), Rename("a", "e", "b", "n"), One;
    a_directory_goes_and_a_file_moves_into_it: Rmdir("a", "e"), Rename("a", "f", "a/e", "n"), One;
    a_split_directory_goes_and_a_file_moves_into_it: Rmdir("a", "e"), Rename("a", "f", "a/e", "n"), Many;
    one_name_to_two_places: Rename("a", "f", "b", "n"), Rename("a", "f", "b", "m"), One;
    two_names_to_one_place: Rename("a", "f", "b", "n"), Rename("b", "g", "b", "n"), One;
    two_names_to_each_other: Rename("a", "f", "b", "g"), Rename("b", "g", "a", "f"), One;
    a_name_moves_and_is_removed: Rename("a", "f", "b", "n"), Unlink("a", "f"), One;
    a_name_moves_over_one_that_is_removed: Rename("a", "f", "b", "g"), Unlink("b", "g"), One;
    a_name_moves_over_one_that_is_linked: Rename("a", "f", "b", "g"), Link("b/g", "a", "n"), One;
    a_name_moves_where_one_is_made: Rename("a", "f", "b", "n"), Create("b", "n"), One;
    a_directory_takes_the_place_of_one_that_gets_a_name: Rename("a", "d", "b", "e"), Create("b/e", "n"), One;
    a_directory_takes_the_place_of_a_split_one_that_gets_a_name: Rename("b", "e", "a", "e"), Create("a/e", "n"), Many;
    a_directory_takes_the_place_of_one_that_is_removed: Rename("a", "d", "b", "e"), Rmdir("b", "e"), One;
    two_directories_into_each_other: Rename("a", "e", "b/e", "n"), Rename("b", "e", "a/e", "n"), One;
    a_directory_below_one_that_moves: Rename("", "b", "a/d/i", "n"), Rename("a", "d", "b/e", "n"), One;
    two_change_places_and_one_is_removed: Exchange("a", "f", "b", "g"), Unlink("b", "g"), One;
    two_change_places_twice: Exchange("a", "f", "b", "g"), Exchange("a", "f", "b", "g"), One;
    two_change_places_twice_that_nobody_has_met: Exchange("a", "f", "b", "g"), Exchange("a", "f", "b", "g"), OneUnmet;
    directories_change_places_and_one_moves: Exchange("a", "d", "b", "e"), Rename("", "b", "a/e", "n"), One;
    a_name_in_its_leaf_and_out_of_it: Rename("a", "f", "a", "n"), Rename("a", "f", "b", "n"), One;
    a_directory_moves_and_its_goal_goes: Rename("a", "d", "b/e", "n"), Rmdir("b", "e"), One;
    two_remove_both_links_of_what_they_have_open: UnlinkOpen("b", "g", ""), UnlinkOpen("b", "h", ""), One;
    two_remove_one_name_of_what_they_have_open: UnlinkOpen("a", "f", ""), UnlinkOpen("a", "f", ""), One;
    two_remove_both_links_and_one_has_it_open: UnlinkOpen("b", "g", ""), Unlink("b", "h"), One;
    a_link_fails_when_the_name_is_gone_of_what_is_open: UnlinkOpen("a", "f", "n"), Link("a/f", "", "n"), One;
    the_removal_of_another_link_and_a_close: UnlinkOpen("b", "h", ""), Close("b", "g", true), One;
}

// Two tasks of one client.
pairs! {
    true;
    an_open_and_the_last_removal: Use("a/f"), Unlink("a", "f"), One;
    an_open_and_a_rename_over_it: Use("a/f"), Rename("b", "g", "a", "f"), One;
    an_open_and_a_rename_over_it_in_its_leaf: Use("b/g"), Rename("b", "h", "b", "g"), One;
    a_close_and_the_last_removal: Close("a", "f", false), Unlink("a", "f"), One;
    an_open_of_what_has_no_name_and_a_close: Use("a/f"), Close("a", "f", true), One;
    two_closes_of_what_has_no_name: Close("b", "g", true), Close("b", "h", true), One;
    a_close_and_the_removal_of_the_other_link: Close("b", "g", true), Unlink("b", "h"), One;
    two_removals_of_what_is_open: UnlinkOpen("b", "g", ""), UnlinkOpen("b", "h", ""), One;
    two_tasks_make_one_name: Create("a", "n"), Create("a", "n"), One;
    two_tasks_rename_over_each_other: Rename("a", "f", "b", "g"), Rename("b", "g", "a", "f"), One;
}
