//! What these tests stand on: a file system over members in memory, clients that learn of members, and what is true of it at rest.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Lba, Memory, Namespace};
use engine::Buf;
use engine::job::Jobs;
use engine::sim::{SimConfig, World};
use engine::task::LocalFuture;
use file::data::{Audit, Auditor, Region, Space, Stripe};
use file::mend::{Mender, Rebuilt};
use file::meta::{MemoryMeta, Meta};
use file::record::root::{MemberRecord, MemberState};
use file::{CreateOptions, FileSystem, Files, ROOT};

use crate::data::bed::{Gate, Shelf};
use crate::world::{HEAD, file, kind_of, options};

const MIB: u64 = 1 << 20;
/// Bytes of a member: 48 regions.
pub const MEMBER_BYTES: u64 = 49 * MIB;

/// See the module.
pub struct Yard {
    pub meta: MemoryMeta,
    pub shelves: Rc<RefCell<Vec<Rc<Shelf>>>>,
}

fn record(index: usize) -> MemberRecord {
    MemberRecord {
        place: format!("shelf {index}"),
        bytes: MEMBER_BYTES,
        state: MemberState::Active,
        domain: format!("rack {index}"),
    }
}

fn shelf(index: usize) -> Rc<Shelf> {
    Shelf::new(Memory::new(MEMBER_BYTES, 4096, [index as u8 + 1; 16]).unwrap())
}

impl Yard {
    pub async fn new(data: u8, parity: u8, members: usize) -> Yard {
        let meta = MemoryMeta::new();
        let options =
            CreateOptions { data, parity, region_bytes: MIB, members: (0..members).map(record).collect(), ..options() };
        FileSystem::create_root(meta.client(), "test", &options).await.unwrap();
        let shelves = (0..members).map(shelf).collect();
        Yard { meta, shelves: Rc::new(RefCell::new(shelves)) }
    }

    pub async fn client(&self) -> Rc<Files> {
        self.client_over(self.meta.client()).await
    }

    /// A client that reaches all members, and those that join when it hears of them.
    pub async fn client_over(&self, meta: Rc<dyn Meta>) -> Rc<Files> {
        let files = Files::open(meta, "test", "here").await.unwrap();
        self.connect(&files);
        let (shelves, members) = (Rc::clone(&self.shelves), Rc::downgrade(files.members()));
        files.roster().set_reach(Rc::new(move |index| -> LocalFuture<'static, ()> {
            if let (Some(shelf), Some(members)) = (shelves.borrow().get(usize::from(index)), members.upgrade()) {
                members.connect(index, Some(shelf.reached(&Gate::at(None))));
            }
            Box::pin(async {})
        }));
        files
    }

    fn connect(&self, files: &Files) {
        let gate = Gate::at(None);
        for (index, shelf) in self.shelves.borrow().iter().enumerate() {
            if files.roster().place_of(index as u16).is_some() {
                files.members().connect(index as u16, Some(shelf.reached(&gate)));
            }
        }
    }

    /// One more member joins.
    pub async fn add(&self, files: &Files) -> u16 {
        let index = self.shelves.borrow().len();
        self.shelves.borrow_mut().push(shelf(index));
        assert!(files.roster().add(index as u16, &record(index), None).await.unwrap());
        index as u16
    }

    pub fn shelf(&self, member: u16) -> Rc<Shelf> {
        Rc::clone(&self.shelves.borrow()[usize::from(member)])
    }

    pub fn set_down(&self, member: u16, is_down: bool) {
        self.shelf(member).is_down.set(is_down);
    }

    /// Changes a bit of a stripe's column: of its first row.
    pub async fn flip(&self, files: &Files, stripe: &Stripe, column: usize) -> u16 {
        let space = Space::new(self.meta.client(), Rc::clone(files.members()), 1);
        let place = space.place(stripe.id.chunk).await.unwrap().unwrap();
        let region = place.columns[column];
        let lba = Lba((MIB + u64::from(region.region) * MIB) / 4096 + u64::from(stripe.id.row));
        let memory = &self.shelf(region.member).memory;
        let (result, mut page) = memory.read(lba, Buf::with_len(4096)).await;
        result.unwrap();
        page[77] ^= 4;
        memory.write(lba, page.freeze(), Durability::Stable).await.unwrap();
        region.member
    }

    /// Where the columns of a chunk are.
    pub async fn columns_of(&self, chunk: u32) -> Vec<Region> {
        let files = self.client().await;
        let place = Space::new(self.meta.client(), Rc::clone(files.members()), 1).place(chunk).await.unwrap();
        files.close().await.unwrap();
        place.unwrap().columns.clone()
    }

    /// Whether an inode's map is in records of its own.
    pub fn has_spans(&self, ino: u64) -> bool {
        self.meta
            .dump()
            .iter()
            .any(|(key, _)| kind_of(key) == Some(&b'b') && key[HEAD + 1..].starts_with(&ino.to_be_bytes()))
    }

    /// What records of space say beside the maps of all files: nothing that contradicts.
    pub async fn audit(&self) -> Audit {
        let files = self.client().await;
        let mut named = Vec::new();
        for ino in inodes(&files).await.into_values() {
            named.extend(files.stripes_of(ino).await.unwrap().into_iter().map(|(_, stripe)| stripe));
        }
        let audit = Auditor::new(self.meta.client(), Rc::clone(files.members())).audit(&named).await.unwrap();
        assert_eq!(audit.faults, [""; 0]);
        files.close().await.unwrap();
        audit
    }

    /// All files are what they should be, for a client that knows nothing yet.
    pub async fn verify(&self, model: &BTreeMap<String, Vec<u8>>, what: &str) {
        let files = self.client().await;
        let inodes = inodes(&files).await;
        assert_eq!(inodes.keys().collect::<Vec<_>>(), model.keys().collect::<Vec<_>>(), "{what}");
        for (name, bytes) in model {
            let found = get(&files, name).await.unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
            assert!(found == *bytes, "{what}: {name} has other bytes");
        }
        files.close().await.unwrap();
    }
}

/// Names of the root, but its own, and where they lead.
pub async fn inodes(files: &Files) -> BTreeMap<String, u64> {
    let (mut all, mut from) = (BTreeMap::new(), 0);
    loop {
        let found = files.names().readdir(ROOT, from, 100).await.unwrap();
        let Some(last) = found.last() else { return all };
        from = last.cursor;
        let names = found.into_iter().map(|entry| (String::from_utf8(entry.name).unwrap(), entry.ino));
        all.extend(names.filter(|(name, _)| !name.starts_with('.')));
    }
}

/// Makes a file, or writes over one that is there.
pub async fn put(files: &Rc<Files>, name: &str, at: u64, bytes: &[u8]) -> Result<(), file::Error> {
    let (made, _) = files.names().create(ROOT, name.as_bytes(), &file(), false).await?;
    let file = files.open_file(made.ino).await?;
    let written = file.write(at, bytes).await;
    files.close_file(&file).await.and(written.map(drop))
}

pub async fn get(files: &Rc<Files>, name: &str) -> Result<Vec<u8>, file::Error> {
    let found = files.names().lookup(ROOT, name.as_bytes()).await?;
    let file = files.open_file(found.ino).await?;
    let read = file.read(0, 64 << 20).await;
    files.close_file(&file).await?;
    Ok(read?.to_vec())
}

/// As `yagura file rebuild` does it: a client of its own.
pub async fn rebuild(yard: &Yard) -> Rebuilt {
    let files = yard.client().await;
    files.roster().reach_lost();
    yard.connect(&files);
    let _alive = files.keep_alive();
    let rebuilt = mender(&files).rebuild().await.unwrap();
    files.close().await.unwrap();
    rebuilt
}

pub fn mender(files: &Rc<Files>) -> Mender {
    Mender::new(Rc::clone(files), Jobs::default().begin("a test", None, None))
}

/// Runs a test in a world of its own, for up to a day.
pub fn in_world(seed: u64, test: impl Future<Output = ()>) {
    let virtual_time_max = Duration::from_secs(24 * 3600);
    let config = SimConfig { virtual_time_max, ..SimConfig::default() };
    World::new(seed, config).run_until(test).expect("the test's tasks are never all asleep for good");
}
