//! [`FileSystem`]: one client of a file system: what it was opened with, and what it remembers. Its operations stand in `ops`, by
//! inode numbers; those on tries in `name`; what spans two names in `across`.
//!
//! Who may do what is not asked here: whoever mounts has the kernel do that (`default_permissions`).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use engine::task::LocalFuture;
use engine::time;

use crate::access::{Access, Held, Tries, draw};
use crate::data::Hold;
use crate::error::Error;
use crate::meta::Meta;
use crate::name::known::Known;
use crate::ops::{Locks, OpenDir, Standing, Turns, Wishes};
use crate::quota::Quotas;
use crate::record::inode::{Content, Inode};
use crate::record::node::{Leaf, Node, RootPart, Shape};
use crate::record::root::{MemberRecord, RootRecord, check_fs_name};
use crate::record::small::{ClientRecord, NextInode};
use crate::record::{Keys, Kind, Path, Record as _, Stamps, Time, key};

/// The inode of the directory that is in no other.
pub const ROOT: u64 = 1;
/// Inode numbers that a client takes at a time. Chosen: a million files cost a thousand changes of that record.
const NUMBERS_AT_ONCE: u64 = 1024;

/// What a new file system is to be.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Columns of data.
    pub data: u8,
    /// Columns of parity.
    pub parity: u8,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Where columns are.
    pub members: Vec<MemberRecord>,
    /// The twelve bits of permissions of its root.
    pub mode: u16,
    /// Owner of its root.
    pub uid: u32,
    /// Group of its root.
    pub gid: u32,
}

/// Frees what an inode's content holds outside of its record. Called once for an inode that goes, by whoever took its last link or
/// keeper; if that one dies, by nobody: what was freed twice could be another file's by then. `fsck` finds what is left.
pub trait Reap: 'static {
    /// Frees it; what it counted goes back by this.
    fn reap<'a>(&'a self, ino: u64, inode: &'a Inode, hold: &'a Hold) -> LocalFuture<'a, Result<(), Error>>;
}

/// One client of a file system.
pub struct FileSystem {
    pub(crate) access: Access,
    /// As it was met when this client began.
    pub(crate) root: Held<RootRecord>,
    /// What is known of tries.
    pub(crate) known: RefCell<Known>,
    numbers: Cell<(u64, u64)>,
    pub(crate) client: Cell<u64>,
    pub(crate) standing: Rc<Standing>,
    /// What this client has of quotas.
    pub(crate) quotas: Quotas,
    pub(crate) locks: Locks,
    pub(crate) host: String,
    /// What this client has open, and how many times.
    pub(crate) opened: RefCell<BTreeMap<u64, u64>>,
    /// What this client's record lists as open and without a name, or about to be; also where that failed half-way.
    pub(crate) orphans: RefCell<BTreeSet<u64>>,
    pub(crate) wishes: Wishes,
    pub(crate) turns: Turns,
    pub(crate) open_dirs: RefCell<BTreeMap<u64, OpenDir>>,
    reap: RefCell<Option<Rc<dyn Reap>>>,
}

impl FileSystem {
    /// Makes a file system of this name.
    pub fn create_root<'a>(
        meta: Rc<dyn Meta>,
        name: &'a str,
        options: &'a CreateOptions,
    ) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move { FileSystem::create_with(meta, name, options, FileSystem::draw_root(options)).await })
    }

    /// What a new file system is to be known by: for labels, which come before it.
    pub fn draw_root(options: &CreateOptions) -> RootRecord {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&draw().to_le_bytes());
        id[8..].copy_from_slice(&draw().to_le_bytes());
        id[0] |= 0x80; // never the '=' of a root record's key
        RootRecord {
            stamps: Stamps::default(),
            id,
            data: options.data,
            parity: options.parity,
            region_bytes: options.region_bytes,
            seed: draw(),
            members: options.members.clone(),
        }
    }

    /// Whether the name can be given to a file system, and is not given to one.
    pub fn check_free<'a>(meta: &'a Rc<dyn Meta>, name: &'a str) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            check_fs_name(name)?;
            let found = meta.get(&key::root(name)).await?;
            found.map_or(Ok(()), |_| Err(Error::Exists(format!("file system {name}"))))
        })
    }

    /// Makes a file system of this name with a record that was drawn before.
    pub fn create_with<'a>(
        meta: Rc<dyn Meta>,
        name: &'a str,
        options: &'a CreateOptions,
        record: RootRecord,
    ) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            FileSystem::check_free(&meta, name).await?;
            let access = Access::new(meta, Keys(record.id));
            let now = Time::now();
            let inode = Inode {
                mode: options.mode & 0o7777,
                uid: options.uid,
                gid: options.gid,
                parent: ROOT,
                links: vec![draw()],
                ..blank(Kind::Directory, now)
            };
            access.put(&access.keys.node(ROOT, Path::ROOT), None, empty_directory(now)).await?;
            access.put(&access.keys.inode(ROOT), None, inode).await?;
            let next = NextInode { stamps: Stamps::default(), next: ROOT + 1 };
            access.put(&access.keys.next_inode(), None, next).await?;
            // Last: from here on it is there.
            let put = access.put(&key::root(name), None, record).await?;
            put.map(drop).ok_or_else(|| Error::Exists(name.to_owned()))
        })
    }

    /// A new client of the file system of this name; `host` tells people where it runs.
    pub fn open<'a>(meta: Rc<dyn Meta>, name: &'a str, host: &'a str) -> LocalFuture<'a, Result<FileSystem, Error>> {
        Box::pin(async move {
            check_fs_name(name)?;
            let access = Access::new(meta, Keys([0; 16]));
            let found = access.get::<RootRecord>(&key::root(name)).await?;
            let root = found.ok_or_else(|| Error::NotFound(format!("file system {name}")))?;
            let (keys, client, standing) = (Keys(root.record.id), draw(), Rc::new(Standing::new(time::now())));
            let access = Access::new(Rc::clone(&access.meta), keys);
            let quotas = Quotas::new(Access::new(Rc::clone(&access.meta), keys), client, Rc::clone(&standing));
            let file_system = FileSystem {
                access,
                root,
                known: RefCell::default(),
                numbers: Cell::new((0, 0)),
                client: Cell::new(client),
                standing,
                quotas,
                locks: Locks::default(),
                host: crate::record::small::short_text(host),
                opened: RefCell::default(),
                orphans: RefCell::default(),
                wishes: Wishes::default(),
                turns: Turns::default(),
                open_dirs: RefCell::default(),
                reap: RefCell::new(None),
            };
            file_system.put_client(file_system.client(), ClientRecord::default()).await?;
            Ok(file_system)
        })
    }

    /// What the file system is.
    pub fn root(&self) -> &RootRecord {
        &self.root.record
    }

    /// The seam to the store.
    pub fn meta(&self) -> &Rc<dyn Meta> {
        &self.access.meta
    }

    /// From now on content is freed by this.
    pub fn set_reap(&self, reap: Rc<dyn Reap>) {
        *self.reap.borrow_mut() = Some(reap);
    }

    /// Frees content that lies outside of the inode.
    pub(crate) async fn reap_content(&self, ino: u64, inode: &Inode, hold: &Hold) -> Result<(), Error> {
        let reap = self.reap.borrow().clone();
        match reap {
            Some(reap) => reap.reap(ino, inode, hold).await,
            None => Ok(()),
        }
    }

    pub(crate) fn hash(&self, dir: u64, name: &[u8]) -> u64 {
        crate::record::hash(self.root.record.seed, dir, name)
    }

    fn take_number(&self) -> Option<u64> {
        let (next, end) = self.numbers.get();
        let is_left = next < end;
        self.numbers.set((next + u64::from(is_left), end));
        is_left.then_some(next)
    }

    /// An inode's number that nobody has had.
    pub(crate) async fn next_ino(&self) -> Result<u64, Error> {
        if let Some(number) = self.take_number() {
            return Ok(number);
        }
        // One fetches them for all who come meanwhile.
        let _turn = self.turns.alone(Turns::NUMBERS).await;
        if let Some(number) = self.take_number() {
            return Ok(number);
        }
        let key = self.access.keys.next_inode();
        let mut tries = Tries::new();
        loop {
            let Some(held) = self.access.get::<NextInode>(&key).await? else {
                return Err(Error::Damaged("the next inode's number is not there".to_owned()));
            };
            let first = held.record.next;
            let end =
                first.checked_add(NUMBERS_AT_ONCE).ok_or_else(|| Error::NoSpace("no inode numbers".to_owned()))?;
            let new = NextInode { next: end, ..held.record.clone() };
            if self.access.put(&key, Some(&held), new).await?.is_some() {
                self.numbers.set((first + 1, end));
                return Ok(first);
            }
            tries.again("other clients take inode numbers").await?;
        }
    }

    /// The inode, if it is there, and not going.
    pub(crate) async fn inode(&self, ino: u64) -> Result<Option<Held<Inode>>, Error> {
        let held = self.access.get::<Inode>(&self.access.keys.inode(ino)).await?;
        Ok(held.filter(|held| !held.record.is_going()))
    }

    /// The inode, or that it is gone.
    pub fn get_inode(&self, ino: u64) -> LocalFuture<'_, Result<Inode, Error>> {
        Box::pin(async move { Ok(self.inode(ino).await?.ok_or(Error::Stale)?.record) })
    }

    /// Changes an inode in one compare-and-set: `change` is called until what it has seen is what it replaces. An error of it
    /// changes nothing. The inode as it is then.
    pub async fn change_inode<T>(
        &self,
        ino: u64,
        mut change: impl FnMut(&mut Inode) -> Result<T, Error>,
    ) -> Result<(Inode, T), Error> {
        let key = self.access.keys.inode(ino);
        let mut tries = Tries::new();
        let mut guess = self.guess_inode(ino);
        loop {
            let is_guess = guess.is_some();
            let held = match guess.take() {
                Some(held) => held,
                None => self.inode(ino).await?.ok_or(Error::Stale)?,
            };
            let mut new = held.record.clone();
            match change(&mut new) {
                Ok(value) if new != held.record => {
                    if let Some(put) = self.access.put(&key, Some(&held), new).await? {
                        return Ok((put.record, value));
                    }
                }
                _ if is_guess => {}
                Ok(value) => return Ok((new, value)),
                Err(error) => return Err(error),
            }
            if !is_guess {
                tries.again("other clients change the inode").await?;
            }
        }
    }

    /// The inode as it was a moment ago, for whoever is to change it.
    pub(crate) fn guess_inode(&self, ino: u64) -> Option<Held<Inode>> {
        let held = self.access.guess::<Inode>(&self.access.keys.inode(ino));
        held.filter(|held| !held.record.is_going())
    }
}

/// An inode of a kind without anything.
pub(crate) fn blank(kind: Kind, now: Time) -> Inode {
    Inode {
        stamps: Stamps::default(),
        kind,
        mode: 0,
        uid: 0,
        gid: 0,
        device: 0,
        accessed: now,
        modified: now,
        changed: now,
        created: now,
        parent: 0,
        moved: 0,
        size: 0,
        links: Vec::new(),
        keepers: Vec::new(),
        attributes: BTreeMap::new(),
        quota: 0,
        has_quota: false,
        content: Content::Inline(Vec::new()),
    }
}

/// The root of a new directory's trie.
pub(crate) fn empty_directory(now: Time) -> Node {
    Node::new(Shape::Leaf(Leaf::default()), Some(RootPart { modified: now, changed: now, dying: None }))
}
