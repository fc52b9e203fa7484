//! What the tests stand on: a store in memory, members in memory, inodes, and clients that stop at any step.
//!
//! The store's fault model, by a seed: a change takes its time; of some nobody learns the outcome: they have taken effect, or
//! not, or take effect later if nothing has changed the key since they were sent. A test may say which fate a change has, and what
//! happens with it. A member's: it is down (commands are not sent), it can't be read, it hangs, it takes its time; of some writes
//! nobody learns the outcome: a part of them or all comes many minutes later, or never; its bytes are changed behind its back. A
//! client's: it stops for good before or after any change of the store or write to a member; its members are connected or not.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Lba, Memory, Namespace};
use engine::rng::SplitMix;
use engine::task::{self, LocalFuture};
use engine::{Buf, time};
use file::Error;
use file::data::{Content, Contents, Inode, Layout, MemberSpec, Members, Rope, Shape, Space, State, SumSeed};
use file::meta::{Meta, Seen, Swapped, Version};
use kv::types::{Ballot, OpId, Timestamp};

pub use super::shelf::{Gate, Shelf};

/// Each with the number of the change that it came by.
type Values = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;

/// What becomes of a change of which nobody learns the outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    AtOnce,
    Never,
    After(Duration),
}

/// Says of a change of a key (to nothing, or to something) which fate it has; `None`: it is made, and told.
type Fates = Box<dyn Fn(&[u8], bool) -> Option<Fate>>;

/// Small values in memory.
pub struct Store {
    values: RefCell<Values>,
    /// By which change each key became what it is, also those that are gone.
    changed: RefCell<BTreeMap<Vec<u8>, u64>>,
    version: Cell<u64>,
    fates: RefCell<Option<Fates>>,
    pub gets: Cell<u64>,
    /// What begins with this can't be read.
    pub silent: RefCell<Option<Vec<u8>>>,
    draws: RefCell<SplitMix>,
    /// Of a million changes, those that nobody learns the outcome of.
    pub unknown_ppm: Cell<u64>,
    pub delay: Cell<Duration>,
}

fn version(number: u64) -> Version {
    let op = OpId { host: 1, sequence: number };
    Version::new(Timestamp { counter: number, op, ballot: Ballot::NONE }, &[])
}

impl Store {
    pub fn new(seed: u64) -> Rc<Store> {
        Rc::new(Store {
            values: RefCell::default(),
            changed: RefCell::default(),
            version: Cell::new(0),
            fates: RefCell::default(),
            gets: Cell::new(0),
            silent: RefCell::default(),
            draws: RefCell::new(SplitMix(seed)),
            unknown_ppm: Cell::new(0),
            delay: Cell::default(),
        })
    }

    fn below(&self, end: u64) -> u64 {
        self.draws.borrow_mut().below(end)
    }

    pub fn keys(&self) -> usize {
        self.values.borrow().len()
    }

    /// From now on this says which changes nobody learns the outcome of.
    pub fn set_fates(&self, fates: impl Fn(&[u8], bool) -> Option<Fate> + 'static) {
        *self.fates.borrow_mut() = Some(Box::new(fates));
    }

    fn apply(&self, key: &[u8], expected: Option<Version>, new: Option<Vec<u8>>) -> Swapped {
        let mut values = self.values.borrow_mut();
        if values.get(key).map(|(_, number)| version(*number)) != expected {
            return Swapped::Changed;
        }
        self.version.set(self.version.get() + 1);
        self.changed.borrow_mut().insert(key.to_vec(), self.version.get());
        match new {
            Some(value) => drop(values.insert(key.to_vec(), (value, self.version.get()))),
            None => drop(values.remove(key)),
        }
        Swapped::Done(version(self.version.get()))
    }

    async fn swap(self: &Rc<Self>, key: Vec<u8>, expected: Option<Version>, new: Option<Vec<u8>>) -> Swapped {
        self.pause().await;
        let said = self.fates.borrow().as_ref().and_then(|fates| fates(&key, new.is_none()));
        let drawn = || match self.below(3) {
            0 => Fate::AtOnce,
            1 => Fate::Never,
            _ => Fate::After(Duration::from_nanos(self.below(20_000_000))),
        };
        let fate = said.or_else(|| (self.below(1_000_000) < self.unknown_ppm.get()).then(drawn));
        match fate {
            None => return self.apply(&key, expected, new),
            Some(Fate::AtOnce) => drop(self.apply(&key, expected, new)),
            Some(Fate::Never) => {}
            Some(Fate::After(delay)) => {
                let (store, sent) = (Rc::clone(self), self.last_change(&key));
                task::spawn(async move {
                    time::sleep(delay).await;
                    if store.last_change(&key) == sent {
                        store.apply(&key, expected, new);
                    }
                })
                .detach();
            }
        }
        Swapped::Unknown
    }

    fn last_change(&self, key: &[u8]) -> Option<u64> {
        self.changed.borrow().get(key).copied()
    }

    async fn pause(&self) {
        let delay = self.delay.get();
        if !delay.is_zero() {
            time::sleep(Duration::from_nanos(self.below(delay.as_nanos() as u64))).await;
        }
    }
}

/// The store as one client sees it.
pub struct Client {
    pub store: Rc<Store>,
    pub gate: Rc<Gate>,
}

impl Meta for Client {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        Box::pin(async move {
            self.gate.look().await;
            self.store.pause().await;
            self.store.gets.set(self.store.gets.get() + 1);
            if self.store.silent.borrow().as_ref().is_some_and(|prefix| key.starts_with(prefix)) {
                return Err(Error::Unavailable("a test's store".into()));
            }
            let values = self.store.values.borrow();
            Ok(values.get(key).map(|(value, number)| Seen { value: value.clone(), version: version(*number) }))
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        Box::pin(async move {
            self.gate.pass().await;
            let (store, key) = (Rc::clone(&self.store), key.to_vec());
            // Also where nobody waits for the answer any more.
            let outcome = task::to_its_end(async move { store.swap(key, expected, new).await }).await;
            self.gate.pass().await;
            Ok(outcome.expect("the world goes on"))
        })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], _: u64, _: usize) -> LocalFuture<'a, Result<(Vec<Vec<u8>>, u64), Error>> {
        let values = self.store.values.borrow();
        let keys = values.keys().filter(|key| key.starts_with(prefix)).cloned().collect();
        Box::pin(async move { Ok((keys, 0)) })
    }
}

/// A file system's store and members.
pub struct Bed {
    pub store: Rc<Store>,
    pub layout: Layout,
    pub shelves: Vec<Rc<Shelf>>,
    pub specs: Vec<MemberSpec>,
    clients: Cell<u64>,
}

/// A client of it.
pub struct Host {
    pub contents: Rc<Contents>,
    pub meta: Rc<Client>,
}

impl Bed {
    /// So many members, each with so many regions of a MiB.
    pub async fn new(seed: u64, shape: (usize, usize), members: usize, regions: u64) -> Bed {
        let layout = Layout {
            fs: *b"a file system   ",
            shape: Shape::new(shape.0, shape.1).unwrap(),
            region_bytes: 1 << 20,
            seed: SumSeed(seed ^ 77),
        };
        let bytes = (1 + regions) << 20;
        let (mut shelves, mut specs) = (Vec::new(), Vec::new());
        for index in 0..members {
            let shelf = Shelf::new(Memory::new(bytes, 4096, [index as u8 + 1; 16]).unwrap());
            layout.label(index as u16, bytes).format(&shelf.memory, false).await.unwrap();
            shelves.push(shelf);
            specs.push(MemberSpec { domain: format!("rack {index}"), bytes, is_out: false, is_lost: false });
        }
        Bed { store: Store::new(seed), layout, shelves, specs, clients: Cell::new(0) }
    }

    pub fn host(&self) -> Host {
        self.host_at(Gate::at(None))
    }

    pub fn host_at(&self, gate: Rc<Gate>) -> Host {
        let meta = Rc::new(Client { store: Rc::clone(&self.store), gate: Rc::clone(&gate) });
        let members = Members::new(self.layout.clone(), self.specs.clone());
        for (index, shelf) in self.shelves.iter().enumerate() {
            members.connect(index as u16, Some(shelf.reached(&gate)));
        }
        self.clients.set(self.clients.get() + 1);
        let dynamic: Rc<dyn Meta> = Rc::clone(&meta) as Rc<dyn Meta>;
        let space = Space::new(Rc::clone(&dynamic), Rc::clone(&members), self.clients.get());
        let contents = Contents::new(dynamic, members, space).unwrap();
        Host { contents, meta }
    }

    /// What keys of records of a kind begin with.
    pub fn keys_of(&self, kind: u8) -> Vec<u8> {
        [b"yagura-file:", &self.layout.fs[..], &[kind]].concat()
    }

    /// Whether a key is that of a span of a long file's map.
    pub fn is_span(&self, key: &[u8]) -> bool {
        key.starts_with(&self.keys_of(b'b'))
    }

    /// Changes a bit of a member's medium.
    pub async fn flip(&self, member: usize, byte: u64, bit: u8) {
        let memory = &self.shelves[member].memory;
        let lba = Lba(byte / 4096);
        let (result, mut page) = memory.read(lba, Buf::with_len(4096)).await;
        result.unwrap();
        page[byte as usize % 4096] ^= 1 << (bit % 8);
        memory.write(lba, page.freeze(), Durability::Stable).await.unwrap();
    }
}

/// An inode with nothing but what files' bytes need: size, content, and the numbers of its last changes.
pub struct Node {
    number: u64,
    meta: Rc<Client>,
    shape: Shape,
    seen: RefCell<Option<(Rc<State>, Version)>>,
}

const NUMBERS: usize = 64;

impl Node {
    pub fn new(host: &Host, number: u64) -> Rc<Node> {
        let shape = host.contents.members().layout().shape;
        Rc::new(Node { number, meta: Rc::clone(&host.meta), shape, seen: RefCell::default() })
    }

    fn key(&self) -> Vec<u8> {
        format!("inode {}", self.number).into_bytes()
    }

    async fn get(&self) -> Result<Option<(Vec<u64>, State, Version)>, Error> {
        let Some(seen) = self.meta.get(&self.key()).await? else { return Ok(None) };
        let words: Vec<u64> = seen.value[..8 * (NUMBERS + 1)]
            .chunks(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        let content = Content::decode(&seen.value[8 * (NUMBERS + 1)..], self.shape)?;
        let state = State { content, size: words[NUMBERS] };
        Ok(Some((words[..NUMBERS].to_vec(), state, seen.version)))
    }

    fn value(numbers: &[u64], number: u64, state: &State) -> Vec<u8> {
        let mut words = numbers[1..].to_vec();
        words.extend([number, state.size]);
        let mut value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        value.extend(state.content.encode());
        value
    }

    pub async fn create(&self) {
        let value = Node::value(&[0; NUMBERS], 1, &State { content: Content::empty(), size: 0 });
        while self.get().await.unwrap().is_none() {
            self.meta.swap(&self.key(), None, Some(value.clone())).await.unwrap();
        }
    }

    async fn put(&self, version: Version, state: State, may: &dyn Fn() -> Result<(), Error>) -> Result<bool, Error> {
        let number = task::random_u64();
        let mut value = None;
        let mut in_doubt = false;
        loop {
            let (numbers, _, now) = self.get().await?.ok_or(Error::Stale)?;
            if in_doubt && numbers.contains(&number) {
                return Ok(true);
            }
            if now != version {
                return Ok(false);
            }
            let value = value.get_or_insert_with(|| Node::value(&numbers, number, &state)).clone();
            may()?;
            match self.meta.swap(&self.key(), Some(version), Some(value)).await? {
                Swapped::Done(_) => return Ok(true),
                Swapped::Changed if !in_doubt => return Ok(false),
                Swapped::Changed => {}
                Swapped::Unknown => in_doubt = true,
            }
            time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Inode for Node {
    fn number(&self) -> u64 {
        self.number
    }

    fn load(&self, fresh: bool) -> LocalFuture<'_, Result<(Rc<State>, Version), Error>> {
        Box::pin(async move {
            if !fresh && let Some((state, version)) = &*self.seen.borrow() {
                return Ok((Rc::clone(state), *version));
            }
            let (_, state, version) = self.get().await?.ok_or(Error::Stale)?;
            let state = Rc::new(state);
            *self.seen.borrow_mut() = Some((Rc::clone(&state), version));
            Ok((state, version))
        })
    }

    fn store_while<'a>(
        &'a self,
        version: Version,
        state: State,
        may: &'a dyn Fn() -> Result<(), Error>,
    ) -> LocalFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let outcome = self.put(version, state, may).await;
            *self.seen.borrow_mut() = None;
            outcome
        })
    }
}

/// Bytes that are drawn.
pub fn drawn(rng: &mut SplitMix, length: usize) -> Vec<u8> {
    (0..length.div_ceil(8)).flat_map(|_| rng.draw().to_le_bytes()).take(length).collect()
}

/// Bytes as a rope of pieces.
pub fn rope(bytes: &[u8]) -> Rope {
    let mut rope = Rope::default();
    bytes.chunks(1 << 20).for_each(|part| rope.push(Buf::copy_from(part).freeze()));
    rope
}

/// Runs a test in a world of its own.
pub fn in_world(seed: u64, test: impl Future<Output = ()>) {
    run(seed, engine::sim::SimConfig::default(), test);
}

/// The same for a test of hours.
pub fn in_long_world(seed: u64, test: impl Future<Output = ()>) {
    let virtual_time_max = Duration::from_secs(24 * 3600);
    run(seed, engine::sim::SimConfig { virtual_time_max, ..engine::sim::SimConfig::default() }, test);
}

fn run(seed: u64, config: engine::sim::SimConfig, test: impl Future<Output = ()>) {
    let world = engine::sim::World::new(seed, config);
    world.run_until(test).expect("the test's tasks are never all asleep for good");
}
