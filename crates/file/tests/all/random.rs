//! Random operations: of one client against the plainest model, with outcomes unknown by the seed; of several at once, after which
//! everything must fit together.

use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::task;
use engine::time;
use file::meta::{Death, Faults, MemoryMeta};
use file::record::Kind;
use file::{Change, Error, FileSystem, ROOT, RenameFlags};

use crate::audit::{Leaks, audit};
use crate::model::{Id, Model};
use crate::world::{client, file, fresh, names, run};

const NAMES: [&str; 5] =
    ["a", "b", "c", "d", "a name that is so much longer than the others that leaves of few names split"];

struct Pair {
    fs: Rc<FileSystem>,
    model: Model,
    /// The inode of each object of the model.
    inodes: Vec<u64>,
    draw: SplitMix,
}

impl Pair {
    fn name(&mut self) -> String {
        let name = NAMES[self.draw.index(NAMES.len())];
        if name.len() > 1 { format!("{name}{}{}", "-".repeat(120), self.draw.below(60)) } else { name.to_owned() }
    }

    /// Some object that has a name, or had.
    fn any(&mut self) -> Id {
        self.draw.index(self.inodes.len())
    }

    /// A directory that can be reached, most of the time.
    fn dir(&mut self) -> Id {
        for _ in 0..8 {
            let id = self.any();
            if self.model.0[id].kind == Kind::Directory && (id == 0 || self.model.links(id) > 0) {
                return id;
            }
        }
        0
    }

    async fn make(&mut self, kind: Kind) {
        let (dir, name) = (self.dir(), self.name());
        let told = self.model.make(dir, &name, kind, 0o640);
        let made = match kind {
            Kind::Directory => self.fs.mkdir(self.inodes[dir], name.as_bytes(), 0o640, 3, 4).await,
            Kind::Symlink => self.fs.symlink(self.inodes[dir], name.as_bytes(), b"to", 3, 4).await,
            _ => self.fs.create(self.inodes[dir], name.as_bytes(), &file(), true).await.map(|(told, _)| told),
        };
        assert_eq!(made.as_ref().map(drop).map_err(Error::errno), told.map(drop), "{kind:?} {name}: {made:?}");
        if let Ok(told) = made {
            self.inodes.push(told.ino);
            if kind == Kind::File {
                self.model.0.last_mut().unwrap().mode = 0o644;
            }
        }
    }

    async fn write(&mut self) {
        let (id, offset, len) = (self.any(), self.draw.below(40), self.draw.index(30));
        if self.model.0[id].kind != Kind::File || self.model.links(id) == 0 {
            return;
        }
        let data: Vec<u8> = (0..len).map(|_| self.draw.draw() as u8).collect();
        let bytes = &mut self.model.0[id].bytes;
        if !data.is_empty() {
            bytes.resize(bytes.len().max(offset as usize + len), 0);
            bytes[offset as usize..][..len].copy_from_slice(&data);
        }
        let size = bytes.len() as u64;
        assert_eq!(self.fs.write_inline(self.inodes[id], offset, &data).await, Ok(Some(size)));
        assert_eq!(
            self.fs.read_inline(self.inodes[id], 0, 4096).await.unwrap().as_ref(),
            Some(&self.model.0[id].bytes)
        );
    }

    async fn set(&mut self) {
        let (id, mode, size) = (self.any(), self.draw.below(0o1000) as u16, self.draw.below(100));
        if id != 0 && self.model.links(id) == 0 {
            return;
        }
        let mut change = Change { mode: Some(mode), ..Change::default() };
        if self.model.0[id].kind == Kind::File {
            change.size = Some(size);
            self.model.0[id].bytes.resize(size as usize, 0);
        }
        self.model.0[id].mode = mode;
        assert_eq!(self.fs.setattr(self.inodes[id], &change).await.unwrap().mode, mode);
    }

    async fn step(&mut self) {
        match self.draw.below(20) {
            0..4 => self.make(Kind::File).await,
            4..7 => self.make(Kind::Directory).await,
            7 => self.make(Kind::Symlink).await,
            8 => {
                let (id, dir, name) = (self.any(), self.dir(), self.name());
                if self.model.links(id) == 0 {
                    return;
                }
                let told = self.model.link(id, dir, &name);
                let done = self.fs.link(self.inodes[id], self.inodes[dir], name.as_bytes()).await;
                assert_eq!(done.map(drop).map_err(|error| error.errno()), told, "link");
            }
            9..12 => {
                let (dir, name) = (self.dir(), self.name());
                let told = self.model.unlink(dir, &name);
                let done = self.fs.unlink(self.inodes[dir], name.as_bytes()).await;
                assert_eq!(done.map_err(|error| error.errno()), told, "unlink {name}");
            }
            12..14 => {
                let (dir, name) = (self.dir(), self.name());
                let told = self.model.rmdir(dir, &name);
                let done = self.fs.rmdir(self.inodes[dir], name.as_bytes()).await;
                assert_eq!(done.map_err(|error| error.errno()), told, "rmdir {name}");
            }
            14..17 => {
                let (dir, name, goal, new) = (self.dir(), self.name(), self.dir(), self.name());
                let flags = RenameFlags { no_replace: self.draw.below(5) == 0, exchange: false };
                let flags = RenameFlags { exchange: !flags.no_replace && self.draw.below(4) == 0, ..flags };
                let told = self.model.rename((dir, &name), (goal, &new), flags.no_replace, flags.exchange);
                let places = ((self.inodes[dir], name.as_bytes()), (self.inodes[goal], new.as_bytes()));
                let done = self.fs.rename(places.0, places.1, flags).await;
                assert_eq!(done.map_err(|error| error.errno()), told, "rename {name} to {new}, {flags:?}");
            }
            17 | 18 => self.write().await,
            _ => self.set().await,
        }
    }

    async fn compare(&self) {
        let mut waiting = vec![0];
        while let Some(dir) = waiting.pop() {
            let mut found = names(&self.fs, self.inodes[dir], 7).await.unwrap();
            found.sort();
            let told: Vec<(String, u64)> =
                self.model.0[dir].names.iter().map(|(name, id)| (name.clone(), self.inodes[*id])).collect();
            assert_eq!(found, told);
            for (name, &id) in &self.model.0[dir].names {
                let told = self.fs.lookup(self.inodes[dir], name.as_bytes()).await.unwrap();
                let object = &self.model.0[id];
                assert_eq!((told.kind, told.ino), (object.kind, self.inodes[id]));
                let is_directory = |id: &&usize| self.model.0[**id].kind == Kind::Directory;
                let links = match object.kind {
                    Kind::Directory => 2 + object.names.values().filter(is_directory).count(),
                    _ => self.model.links(id),
                };
                // Where names are many, directories are not counted.
                assert!(
                    told.links as usize == links || is_directory(&&id) && told.links == 1,
                    "{} links of {name}",
                    told.links
                );
                if is_directory(&&id) {
                    waiting.push(id);
                }
            }
        }
    }
}

fn one_client(seed: u64, steps: u32, unknown_ppm: u32) {
    run(seed, async move {
        let meta = fresh().await;
        meta.set_faults(Faults { delay: Duration::from_micros(100), unknown_ppm, ..Faults::default() });
        let (_, fs) = client(&meta).await;
        let mut pair = Pair { fs, model: Model::new(), inodes: vec![ROOT], draw: SplitMix(seed) };
        for step in 0..steps {
            pair.step().await;
            if step % 50 == 0 {
                pair.compare().await;
            }
        }
        pair.compare().await;
        pair.fs.close().await.unwrap();
        // What came late may have put again what was removed, never what has a name.
        let leaks = audit(&meta).await;
        if unknown_ppm == 0 {
            assert_eq!(leaks, Leaks::default());
        }
    });
}

#[test]
fn one_client_does_what_the_plainest_model_does() {
    for seed in 0..12 {
        one_client(seed, 400, 0);
    }
}

#[test]
fn unknown_outcomes_change_nothing_of_what_one_client_does() {
    for seed in 100..116 {
        one_client(seed, 300, 100_000);
    }
}

/// Some operation on few names; errors are the others' doing, but for what must never be.
pub async fn disturb(fs: &FileSystem, draw: &mut SplitMix, dirs: &mut Vec<u64>) {
    let name = |draw: &mut SplitMix| {
        format!("{}{}", draw.below(8), if draw.below(3) == 0 { "n".repeat(180) } else { String::new() })
    };
    let (dir, goal) = (dirs[draw.index(dirs.len())], dirs[draw.index(dirs.len())]);
    let (one, two) = (name(draw), name(draw));
    let done = match draw.below(12) {
        0..3 => fs.create(dir, one.as_bytes(), &file(), false).await.map(drop),
        3..5 => fs.mkdir(dir, one.as_bytes(), 0o755, 0, 0).await.map(|told| dirs.push(told.ino)),
        5 => match fs.lookup(dir, one.as_bytes()).await {
            Ok(told) => fs.link(told.ino, goal, two.as_bytes()).await.map(drop),
            Err(error) => Err(error),
        },
        6 => fs.unlink(dir, one.as_bytes()).await,
        7 => fs.rmdir(dir, one.as_bytes()).await,
        8 => match fs.lookup(dir, one.as_bytes()).await {
            Ok(told) if told.kind == Kind::File => {
                async {
                    fs.open_inode(told.ino).await?;
                    let done = fs.unlink(dir, one.as_bytes()).await;
                    if fs.get_inode(told.ino).await.is_ok_and(|inode| inode.keepers.contains(&fs.client())) {
                        time::sleep(Duration::from_millis(draw.below(5))).await;
                        assert_ne!(fs.getattr(told.ino).await, Err(Error::Stale), "it is gone, and kept by a client");
                    }
                    fs.release(told.ino).await?;
                    done
                }
                .await
            }
            _ => Ok(()),
        },
        9 => {
            let exchange = RenameFlags { exchange: true, no_replace: false };
            fs.rename((dir, one.as_bytes()), (goal, two.as_bytes()), exchange).await
        }
        _ => fs.rename((dir, one.as_bytes()), (goal, two.as_bytes()), RenameFlags::default()).await,
    };
    if let Err(error @ Error::Damaged(_)) = done {
        panic!("{error}");
    }
}

async fn collect(meta: &MemoryMeta, ended: impl Iterator<Item = u64>) {
    let (_, other) = client(meta).await;
    for client in ended {
        other.collect_client(client).await.unwrap();
    }
    other.close().await.unwrap();
}

/// Each client does two things at once.
fn several_clients(seed: u64, faults: Faults, deaths: bool) {
    run(seed, async move {
        let meta = fresh().await;
        let clients = [client(&meta).await, client(&meta).await, client(&meta).await];
        meta.set_faults(Faults { delay: Duration::from_micros(200), ..faults });
        let (mut tasks, mut ended) = (Vec::new(), Vec::new());
        for (which, (dying, fs)) in (0..).zip(clients) {
            let mut draw = SplitMix(seed * 10 + which);
            if deaths && which < 2 {
                dying.die_at(Some(Death { swaps: 20 + draw.below(200), takes_effect: draw.below(2) == 0 }));
            }
            let both = [0, 1].map(|_| {
                let (acting, mut draw) = (fs.clone(), SplitMix(draw.draw()));
                task::spawn(async move {
                    let mut dirs = vec![ROOT];
                    for _ in 0..60 {
                        disturb(&acting, &mut draw, &mut dirs).await;
                    }
                })
            });
            tasks.push((dying, fs, both));
        }
        for (dying, fs, both) in tasks {
            while !both.iter().all(|task| task.is_finished()) && !dying.is_dead() {
                time::sleep(Duration::from_millis(10)).await;
            }
            drop(both);
            ended.push(fs.client());
            if faults.refused_ppm == 0 {
                collect(&meta, ended.drain(..)).await;
            }
        }
        meta.set_faults(Faults::default());
        collect(&meta, ended.into_iter()).await;
        time::sleep(Duration::from_secs(1) + 2 * faults.late).await; // what is late has come
        let leaks = audit(&meta).await;
        if !deaths && faults.unknown_ppm == 0 && faults.refused_ppm == 0 {
            assert_eq!(leaks, Leaks::default(), "seed {seed}");
        }
    });
}

#[test]
fn what_several_clients_leave_fits_together() {
    for seed in 0..25 {
        several_clients(seed, Faults::default(), false);
    }
}

#[test]
fn what_several_clients_leave_with_unknown_outcomes_fits_together() {
    for seed in 100..120 {
        several_clients(seed, Faults { unknown_ppm: 30_000, ..Faults::default() }, false);
    }
}

#[test]
fn what_clients_leave_that_die_fits_together() {
    for seed in 200..220 {
        several_clients(seed, Faults { unknown_ppm: 10_000, ..Faults::default() }, true);
    }
}

/// Also what comes when others have long given up on it, and where there is no room.
#[test]
fn what_several_clients_leave_with_late_changes_and_refusals_fits_together() {
    for seed in 300..320 {
        let late = Duration::from_secs(4);
        several_clients(seed, Faults { unknown_ppm: 20_000, refused_ppm: 5_000, late, ..Faults::default() }, false);
    }
}
