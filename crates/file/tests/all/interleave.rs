//! Two clients' operations in all interleavings of their calls with few switches between them: what they return and what is there
//! afterwards is as if one had come before the other. (Almost all faults of such protocols need no more than two switches:
//! Musuvathi and Qadeer, PLDI 2007.)

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use engine::sync::Notify;
use engine::task::{self, LocalFuture, Task};
use engine::time;
use file::meta::{KeyPage, MemoryClient, MemoryMeta, Meta, Seen, Swapped, Version};
use file::{Error, FileSystem, ROOT, RenameFlags};

use crate::audit::{Leaks, audit};
use crate::world::{Tree, at, client, create, file, fresh, mkdir, names, over, run, tree};

/// Switches from a client that could go on.
const SWITCHES_MAX: u32 = 2;

/// Holds every call of a client until it is let through.
struct Gated {
    inner: Rc<MemoryClient>,
    is_open: Cell<bool>,
    waits: Cell<bool>,
    go: Notify,
}

impl Gated {
    async fn pass(&self) {
        if !self.is_open.get() {
            self.waits.set(true);
            self.go.notified().await;
        }
    }

    fn step(&self) {
        self.waits.set(false);
        self.go.notify_one();
    }
}

impl Meta for Gated {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        Box::pin(async move {
            self.pass().await;
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
            self.pass().await;
            self.inner.swap(key, expected, new).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        self.inner.list(prefix, cursor, limit)
    }
}

/// What is decided at one place: of so many, this one.
#[derive(Default)]
struct Plan {
    taken: Vec<(usize, usize)>,
    at: usize,
}

impl Plan {
    fn choose(&mut self, count: usize) -> usize {
        if self.at == self.taken.len() {
            self.taken.push((0, count));
        }
        let (taken, of) = self.taken[self.at];
        assert_eq!(of, count, "the same choices lead to the same place");
        self.at += 1;
        taken
    }

    /// The next one; `false`: that was all.
    fn next(&mut self) -> bool {
        self.at = 0;
        while let Some((taken, count)) = self.taken.pop() {
            if taken + 1 < count {
                self.taken.push((taken + 1, count));
                return true;
            }
        }
        false
    }
}

/// What the directory `a/e` has.
#[derive(Clone, Copy, PartialEq)]
enum Leaves {
    One,
    Many,
    Closed,
}

use Leaves::{Closed, Many, One};

#[derive(Clone, Copy)]
enum Op {
    Create(&'static str, &'static str),
    Mkdir(&'static str, &'static str),
    Unlink(&'static str, &'static str),
    Rmdir(&'static str, &'static str),
    Link(&'static str, &'static str, &'static str),
    Rename(&'static str, &'static str, &'static str, &'static str),
    Exchange(&'static str, &'static str, &'static str, &'static str),
}

/// An operation with its directories by number, as a kernel calls it.
type Ready = (Op, u64, u64);

async fn ready(fs: &FileSystem, op: Op) -> Ready {
    let (from, to) = match op {
        Op::Create(dir, _) | Op::Mkdir(dir, _) | Op::Unlink(dir, _) | Op::Rmdir(dir, _) => (dir, dir),
        Op::Link(inode, dir, _) => (inode, dir),
        Op::Rename(from, _, to, _) | Op::Exchange(from, _, to, _) => (from, to),
    };
    (op, at(fs, from).await.unwrap().ino, at(fs, to).await.unwrap().ino)
}

/// 0, or why not.
async fn act(fs: &FileSystem, (op, from, to): Ready) -> i32 {
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
    if leaves != One {
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
    (codes, alike(tree(&fs).await, &before))
}

async fn interleaved(ops: [Op; 2], leaves: Leaves, plan: &mut Plan) -> End {
    let meta = fresh().await;
    prepare(&meta, leaves).await;
    let gated = [(); 2].map(|()| {
        let (inner, go) = (meta.client(), Notify::new());
        Rc::new(Gated { inner, is_open: Cell::new(true), waits: Cell::new(false), go })
    });
    let clients = [over(gated[0].clone()).await, over(gated[1].clone()).await];
    let before = tree(&clients[0]).await;
    let both = [ready(&clients[0], ops[0]).await, ready(&clients[1], ops[1]).await];
    gated.iter().for_each(|gated| gated.is_open.set(false));
    let codes = Rc::new(RefCell::new([-1; 2]));
    let tasks: Vec<Task<()>> = (0..2)
        .map(|which| {
            let (fs, codes, ready) = (clients[which].clone(), codes.clone(), both[which]);
            task::spawn(async move {
                let code = act(&fs, ready).await;
                codes.borrow_mut()[which] = code;
            })
        })
        .collect();
    drive(&gated, &tasks, plan).await;
    gated.iter().for_each(|gated| gated.is_open.set(true));
    let found = alike(tree(&clients[0]).await, &before);
    for fs in &clients {
        fs.close().await.unwrap();
    }
    assert_eq!(audit(&meta).await, Leaks::default());
    let codes = *codes.borrow();
    (codes, found)
}

/// Lets one client's calls through after another, and switches as planned. One that pauses leaves its turn to the other for
/// nothing; that it pauses on until the other's intent is too old costs a switch.
async fn drive(gated: &[Rc<Gated>; 2], tasks: &[Task<()>], plan: &mut Plan) {
    let mut left = SWITCHES_MAX;
    let mut turn = plan.choose(2);
    let mut insists = false;
    loop {
        time::sleep(Duration::from_nanos(1)).await; // all that can run has run then
        let other = 1 - turn;
        let (is_done, is_other_done) = (tasks[turn].is_finished(), tasks[other].is_finished());
        if is_done {
            if is_other_done {
                return;
            }
            (turn, insists) = (other, false);
            continue;
        }
        if gated[turn].waits.get() {
            let may_switch = left > 0 && !is_other_done && gated[other].waits.get();
            if may_switch && plan.choose(2) == 1 {
                left -= 1;
                (turn, insists) = (other, false);
                continue;
            }
            gated[turn].step();
        } else if !insists && !is_other_done && gated[other].waits.get() {
            if left > 0 && plan.choose(2) == 1 {
                left -= 1;
                insists = true;
            } else {
                turn = other;
            }
        } else {
            time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn all(first: Op, second: Op, leaves: Leaves) {
    let ops = [first, second];
    let ends = [run(1, serially(ops, 0, leaves)), run(1, serially(ops, 1, leaves))];
    let (mut plan, mut runs) = (Plan::default(), 0);
    loop {
        let end = run(1, interleaved(ops, leaves, &mut plan));
        assert!(ends.contains(&end), "{:?}: {end:#?} is neither of {ends:#?}", plan.taken);
        runs += 1;
        if !plan.next() {
            break;
        }
    }
    assert!(runs > 20, "{runs} interleavings");
}

macro_rules! pairs {
    ($($name:ident: $first:expr, $second:expr, $leaves:expr;)*) => {
        $(#[test]
        fn $name() {
            all($first, $second, $leaves);
        })*
    };
}

use Op::{Create, Exchange, Link, Mkdir, Rename, Rmdir, Unlink};

pairs! {
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
    directories_change_places_and_one_moves: Exchange("a", "d", "b", "e"), Rename("", "b", "a/e", "n"), One;
    a_name_in_its_leaf_and_out_of_it: Rename("a", "f", "a", "n"), Rename("a", "f", "b", "n"), One;
    a_directory_moves_and_its_goal_goes: Rename("a", "d", "b/e", "n"), Rmdir("b", "e"), One;
}
