//! What a drive has promised: for every block the stamps it may hold, for every namespace whether it may be there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use device::drive::CopySpec;
use device::{Drive, Durability, Error, Lba, Namespace, NamespaceSpec};
use engine::{Buf, View, task};

pub const PATH: &str = "/drive";
/// The stamp of a block that was marked uncorrectable.
pub const BAD: u64 = u64::MAX;

/// Which blocks may be unreadable though nobody marked them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Faults {
    None,
    /// Those that were being written when the power failed.
    Torn,
    /// Any: the medium was damaged. What can be read is right all the same.
    Any,
}

/// One thing that may be one of several.
pub type May<T> = Vec<T>;

/// A namespace as promised.
#[derive(Clone, Debug, Default)]
pub struct Promise {
    /// Stamps that a block may hold, oldest first. The last one is what a reader sees before a crash.
    blocks: Vec<May<u64>>,
    /// More blocks than it was promised, all zero: it was about to grow.
    may_have: u64,
    may_be_absent: bool,
    attribute: May<Vec<u8>>,
    read_only: bool,
}

/// All promises of a drive.
#[derive(Debug, Default)]
pub struct Model {
    formatted: Cell<bool>,
    namespaces: RefCell<BTreeMap<String, Promise>>,
}

pub fn pattern(unit: u32, stamps: &[u64]) -> View {
    let mut buf = Buf::with_len(stamps.len() * unit as usize);
    for (block, stamp) in buf.chunks_exact_mut(unit as usize).zip(stamps) {
        block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
    }
    buf.freeze()
}

impl Model {
    pub fn formatted(&self) {
        self.formatted.set(true);
    }

    pub fn is_formatted(&self) -> bool {
        self.formatted.get()
    }

    fn with<T>(&self, name: &str, step: impl FnOnce(&mut Promise) -> T) -> T {
        let mut all = self.namespaces.borrow_mut();
        step(all.get_mut(name).expect("the script names what it has made"))
    }

    /// The blocks may hold the stamp from now on.
    fn may(&self, name: &str, lba: u64, blocks: u64, stamp: u64) {
        self.with(name, |promise| {
            promise.blocks[lba as usize..(lba + blocks) as usize].iter_mut().for_each(|may| may.push(stamp));
        });
    }

    /// They hold it, whatever happens.
    fn must(&self, name: &str, lba: u64, blocks: u64, stamp: u64) {
        self.with(name, |promise| {
            promise.blocks[lba as usize..(lba + blocks) as usize].iter_mut().for_each(|may| *may = vec![stamp]);
        });
    }

    /// The first block that holds what it may not, or namespace that may not be there or be missing.
    pub async fn differs(&self, drive: &Drive, faults: Faults) -> Option<(String, u64)> {
        let promised = self.namespaces.borrow().clone();
        let there: BTreeMap<String, u32> = drive.namespaces().into_iter().map(|one| (one.name, one.number)).collect();
        if let Some(stranger) = there.keys().find(|name| !promised.contains_key(*name)) {
            return Some((stranger.clone(), 0));
        }
        for (name, promise) in promised {
            let Some(&number) = there.get(&name) else {
                if promise.may_be_absent {
                    self.namespaces.borrow_mut().remove(&name);
                    continue;
                }
                return Some((name, 0));
            };
            let namespace = drive.namespace(number).expect("it was listed");
            let info = namespace.info();
            let blocks = promise.blocks.len() as u64;
            let attribute = namespace.attribute("one").expect("attributes are in memory").unwrap_or_default();
            if ![blocks, blocks.max(promise.may_have)].contains(&info.blocks) || !promise.attribute.contains(&attribute)
            {
                return Some((name, u64::MAX));
            }
            let mut found = Vec::new();
            for lba in 0..info.blocks {
                let may = promise.blocks.get(lba as usize).cloned().unwrap_or_else(|| vec![0]);
                let (result, buf) = namespace.read(Lba(lba), Buf::with_len(info.block_size as usize)).await;
                let stamp = u64::from_le_bytes(buf[..8].try_into().expect("eight bytes"));
                let whole = buf.chunks_exact(8).all(|word| word == stamp.to_le_bytes());
                found.push(match result {
                    Ok(()) if whole && may.contains(&stamp) => vec![stamp],
                    Err(Error::ReadFault(_)) if may.contains(&BAD) => vec![BAD],
                    Err(Error::ReadFault(_)) if faults == Faults::Torn && may.len() > 1 => vec![BAD],
                    Err(Error::ReadFault(_)) if faults == Faults::Any => vec![BAD],
                    _ => return Some((name, lba)),
                });
            }
            // What was found is what is there from now on.
            let promise =
                Promise { blocks: found, may_have: 0, may_be_absent: false, attribute: vec![attribute], ..promise };
            self.namespaces.borrow_mut().insert(name, promise);
        }
        None
    }

    /// The drive is consistent and holds what it may.
    pub async fn verify(&self, drive: &Drive, faults: Faults) {
        let report = drive.check(|_, _| {}).await.expect("a check");
        assert_eq!(report.faults, Vec::<String>::new(), "the drive is not consistent");
        if let Some((name, lba)) = self.differs(drive, faults).await {
            let promised =
                self.namespaces.borrow().get(&name).and_then(|promise| promise.blocks.get(lba as usize).cloned());
            panic!("namespace {name}, block {lba}: not what was promised, {promised:?}");
        }
    }

    /// Some more of everything, on the drive as it was found.
    pub async fn go_on(self: &Rc<Self>, drive: &Drive, block_size: u32) {
        let life = Life { drive: drive.clone(), model: Rc::clone(self), block_size };
        let names: Vec<(String, bool, u64)> = {
            let all = self.namespaces.borrow();
            all.iter().map(|(name, one)| (name.clone(), one.read_only, one.blocks.len() as u64)).collect()
        };
        for (name, read_only, blocks) in names {
            let number = drive.find(&name).expect("it was found");
            if !read_only && drive.usage().used_bytes < drive.usage().bytes {
                life.write(number, 0, 3, 1000, Durability::Stable).await;
                life.write(number, blocks - 2, 2, 1001, Durability::Stable).await;
                life.zero(number, 1, 1).await;
            }
        }
        let room = drive.usage();
        if room.bytes - room.used_bytes < 4 << 20 && room.bytes - room.used_bytes < 20 * u64::from(room.extent_bytes) {
            return; // a full drive that is full again is worth little
        }
        let e = life.create("e", 130).await;
        life.batch(e, 128, 2000).await;
        life.flush(e).await;
    }
}

/// A drive with the promises it has made.
pub struct Life {
    pub drive: Drive,
    pub model: Rc<Model>,
    pub block_size: u32,
}

impl Life {
    fn name(&self, number: u32) -> String {
        self.drive.namespace(number).expect("the script names what it has made").name().to_owned()
    }

    pub async fn create(&self, name: &str, blocks: u64) -> u32 {
        // With its attribute or not at all.
        let attribute = vec![name.as_bytes().to_vec()];
        let promise =
            Promise { blocks: vec![vec![0]; blocks as usize], may_be_absent: true, attribute, ..Promise::default() };
        self.model.namespaces.borrow_mut().insert(name.to_owned(), promise);
        let spec = NamespaceSpec {
            name: name.into(),
            bytes: blocks * u64::from(self.block_size),
            block_size: self.block_size,
        };
        let made = self.drive.create_with(&spec, Some(("one", name.as_bytes()))).await.expect("created");
        self.model.with(name, |promise| promise.may_be_absent = false);
        made.number()
    }

    pub async fn share(&self, source: u32, name: &str, read_only: bool) -> u32 {
        let promise = self.model.with(&self.name(source), |promise| promise.clone());
        // With its attribute or not at all.
        let attribute = vec![name.as_bytes().to_vec()];
        let promise = Promise { may_be_absent: true, may_have: 0, attribute, read_only, ..promise };
        self.model.namespaces.borrow_mut().insert(name.to_owned(), promise);
        let spec = CopySpec { source, name: name.into(), read_only };
        let made = self.drive.copy_with(&spec, Some(("one", name.as_bytes()))).await.expect("made");
        // What it holds is stable, whatever its source was written with.
        self.model.with(name, |promise| {
            promise.may_be_absent = false;
            promise.blocks.iter_mut().for_each(|may| *may = may.last().copied().into_iter().collect());
        });
        made.number()
    }

    pub async fn delete(&self, number: u32) {
        let name = self.name(number);
        self.model.with(&name, |promise| promise.may_be_absent = true);
        self.drive.delete(number).await.expect("deleted");
        self.model.namespaces.borrow_mut().remove(&name);
    }

    pub async fn grow(&self, number: u32, blocks: u64) {
        let name = self.name(number);
        self.model.with(&name, |promise| promise.may_have = blocks);
        self.drive.grow(number, blocks * u64::from(self.block_size)).await.expect("grown");
        self.model.with(&name, |promise| promise.blocks.resize(blocks as usize, vec![0]));
    }

    pub async fn attribute(&self, number: u32, key: &'static str, value: &[u8]) {
        let (name, namespace) = (self.name(number), self.drive.namespace(number).expect("it lives"));
        self.model.with(&name, |promise| promise.attribute.push(value.to_vec()));
        namespace.set_attribute(key, value).await.expect("kept");
        self.model.with(&name, |promise| promise.attribute = vec![value.to_vec()]);
    }

    pub async fn write(&self, number: u32, lba: u64, blocks: u64, stamp: u64, durability: Durability) {
        self.try_write(number, lba, blocks, stamp, durability).await.expect("written");
    }

    /// As `write`; where it fails the blocks may hold either.
    pub async fn try_write(
        &self,
        number: u32,
        lba: u64,
        blocks: u64,
        stamp: u64,
        durability: Durability,
    ) -> Result<(), Error> {
        let (name, namespace) = (self.name(number), self.drive.namespace(number).expect("it lives"));
        self.model.may(&name, lba, blocks, stamp);
        let data = pattern(self.block_size, &vec![stamp; blocks as usize]);
        namespace.write(Lba(lba), data, durability).await?;
        if durability == Durability::Stable {
            self.model.must(&name, lba, blocks, stamp);
        }
        Ok(())
    }

    /// Writes of one block each, all at once: one frame carries the records of several.
    pub async fn batch(self: &Life, number: u32, blocks: u64, stamp: u64) {
        let name = self.name(number);
        let tasks: Vec<_> = (0..blocks)
            .step_by((blocks / 8) as usize)
            .map(|lba| {
                let namespace = self.drive.namespace(number).expect("it lives");
                let (model, name, block_size) = (Rc::clone(&self.model), name.clone(), self.block_size);
                task::spawn(async move {
                    model.may(&name, lba, 1, stamp);
                    let durability = if lba % 3 == 0 { Durability::Stable } else { Durability::Cached };
                    namespace.write(Lba(lba), pattern(block_size, &[stamp]), durability).await.expect("written");
                    if durability == Durability::Stable {
                        model.must(&name, lba, 1, stamp);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    }

    pub async fn swap(&self, number: u32, lba: u64, old: u64, new: u64) {
        let (name, namespace) = (self.name(number), self.drive.namespace(number).expect("it lives"));
        let (expected, data) = (pattern(self.block_size, &[old]), pattern(self.block_size, &[new]));
        self.model.may(&name, lba, 1, new);
        namespace.compare_and_write(Lba(lba), expected, data, Durability::Stable).await.expect("swapped");
        self.model.must(&name, lba, 1, new);
    }

    pub async fn zero(&self, number: u32, lba: u64, blocks: u64) {
        let (name, namespace) = (self.name(number), self.drive.namespace(number).expect("it lives"));
        self.model.may(&name, lba, blocks, 0);
        namespace.deallocate(Lba(lba), blocks).await.expect("zeroed");
        self.model.must(&name, lba, blocks, 0);
    }

    pub async fn mark(&self, number: u32, lba: u64, blocks: u64) {
        let (name, namespace) = (self.name(number), self.drive.namespace(number).expect("it lives"));
        self.model.may(&name, lba, blocks, BAD);
        namespace.write_uncorrectable(Lba(lba), blocks).await.expect("marked");
        self.model.must(&name, lba, blocks, BAD);
    }

    /// A flush makes everything stable that was acknowledged before: on the whole drive, for it has one medium.
    pub async fn flush(&self, number: u32) {
        let namespace = self.drive.namespace(number).expect("it lives");
        namespace.flush().await.expect("flushed");
        for promise in self.model.namespaces.borrow_mut().values_mut() {
            promise.blocks.iter_mut().for_each(|may| *may = may.last().copied().into_iter().collect());
        }
    }

    /// A checkpoint implies a flush.
    pub async fn checkpoint(&self) {
        self.drive.checkpoint().await.expect("a checkpoint");
        for promise in self.model.namespaces.borrow_mut().values_mut() {
            promise.blocks.iter_mut().for_each(|may| *may = may.last().copied().into_iter().collect());
        }
    }
}
