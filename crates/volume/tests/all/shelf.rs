//! Snapshots of the storage nodes' namespaces, as a target would keep them, but with fewer promises: a snapshot or a deletion that
//! was asked for may execute late, also for a host that has lost the namespace meanwhile. It does not outlive the node.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use device::{AnyNamespace, Durability, Error, Lba, Memory, Namespace};
use engine::sync::Notify;
use engine::task::LocalFuture;
use engine::{Buf, time};
use fabric::host::{AnyRemote, CopyTag, NamespaceCopy};
use volume::{Copies, Label, Reach, RecordBlock, SnapshotName, Taken, Takes};

use crate::cluster::BLOCK;

/// How long an answer may take.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// A snapshot.
#[derive(Clone)]
pub struct Kept {
    pub nsid: u32,
    pub nguid: [u8; 16],
    pub tag: CopyTag,
    pub label: Label,
    /// Label, record and the first blocks of the log.
    pub head: Rc<Vec<u8>>,
    /// The volume's blocks.
    pub data: Rc<Vec<u8>>,
}

enum Asked {
    Take(CopyTag),
    Delete(u32, [u8; 16]),
}

struct Request {
    asked: Asked,
    answer: Rc<Cell<Option<u32>>>,
    answered: Notify,
}

#[derive(Default)]
struct Node {
    inbox: RefCell<VecDeque<Request>>,
    came: Notify,
    kept: RefCell<Vec<Kept>>,
    /// Snapshots that there were.
    count: Cell<u32>,
    /// It takes none, and says so.
    lacks: Cell<bool>,
    /// How much longer it takes for a snapshot.
    slow: Cell<Duration>,
    /// It refuses to delete this one.
    keeps: Cell<Option<CopyTag>>,
    /// The snapshots that it refuses from now on.
    refuses: Cell<u32>,
}

/// See the module. A clone is the same.
#[derive(Clone)]
pub struct Shelf(Rc<Vec<Node>>);

impl Shelf {
    pub fn new(nodes: usize) -> Shelf {
        Shelf(Rc::new((0..nodes).map(|_| Node::default()).collect()))
    }

    /// The snapshots of a node.
    pub fn of(&self, node: usize) -> Vec<Kept> {
        self.0[node].kept.borrow().clone()
    }

    /// How many a node has taken.
    pub fn count(&self, node: usize) -> u32 {
        self.0[node].count.get()
    }

    /// The names of those of a volume.
    pub fn names(&self, node: usize, volume: u128) -> Vec<SnapshotName> {
        self.of(node).iter().filter_map(|kept| SnapshotName::of_tag(&kept.tag, volume)).collect()
    }

    /// The node's target offers no snapshots.
    pub fn lacks(&self, node: usize) {
        self.0[node].lacks.set(true);
    }

    pub fn is_slow(&self, node: usize, slow: Duration) {
        self.0[node].slow.set(slow);
    }

    /// The node refuses to delete a snapshot.
    pub fn keeps(&self, node: usize, tag: Option<CopyTag>) {
        self.0[node].keeps.set(tag);
    }

    pub fn refuses(&self, node: usize, count: u32) {
        self.0[node].refuses.set(count);
    }

    /// The holder, with its snapshots.
    pub fn reach(&self, inner: Rc<dyn Reach>, node: usize) -> Rc<dyn Reach> {
        Rc::new(ShelfReach { inner, shelf: self.clone(), node })
    }

    /// A node's part: does what is asked as long as the node lives.
    pub async fn serve(self, node: usize, namespace: AnyNamespace) {
        let node = &self.0[node];
        node.inbox.borrow_mut().clear();
        loop {
            let came = node.came.notified();
            let request = node.inbox.borrow_mut().pop_front();
            let Some(Request { asked, answer, answered }) = request else {
                came.await;
                continue;
            };
            time::sleep_within(Duration::from_millis(3)).await;
            match asked {
                Asked::Take(tag) => {
                    time::sleep(node.slow.get()).await;
                    answer.set(take(node, &namespace, tag).await);
                }
                Asked::Delete(nsid, nguid) => {
                    node.kept.borrow_mut().retain(|kept| (kept.nsid, kept.nguid) != (nsid, nguid));
                    answer.set(Some(nsid));
                }
            }
            answered.notify_all();
        }
    }
}

async fn take(node: &Node, namespace: &AnyNamespace, tag: CopyTag) -> Option<u32> {
    if let Some(kept) = node.kept.borrow().iter().find(|kept| kept.tag == tag) {
        return Some(kept.nsid);
    }
    let read = async |first: u64, blocks: u64| {
        let (result, buf) = namespace.read(Lba(first), Buf::with_len(blocks as usize * BLOCK)).await;
        result.ok().map(|()| buf.to_vec())
    };
    let head = read(0, 4).await?;
    let label = Label::decode(&head[..BLOCK]).ok()?;
    let record = RecordBlock::decode(&head[BLOCK..2 * BLOCK], label.life).ok()?;
    let blocks = record.accepted.size(label.shape.blocks);
    let mut data = Vec::new();
    for first in (0..blocks).step_by(32) {
        data.extend(read(label.data_first + first, 32.min(blocks - first)).await?);
    }
    node.count.set(node.count.get() + 1);
    let mut nguid = [2; 16];
    nguid[..4].copy_from_slice(&node.count.get().to_be_bytes());
    // The lowest that is free, as targets have it.
    let is_used = |nsid: &u32| node.kept.borrow().iter().any(|kept| kept.nsid == *nsid);
    let nsid = (100..).find(|nsid| !is_used(nsid)).expect("there are as many as that");
    let (head, data) = (Rc::new(head), Rc::new(data));
    node.kept.borrow_mut().push(Kept { nsid, nguid, tag, label, head, data });
    Some(nsid)
}

struct ShelfReach {
    inner: Rc<dyn Reach>,
    shelf: Shelf,
    node: usize,
}

impl Reach for ShelfReach {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn look(&self) -> LocalFuture<'_, Result<AnyRemote, volume::Error>> {
        self.inner.look()
    }

    fn take(&self, takes: Takes) -> LocalFuture<'_, Result<Taken, volume::Error>> {
        Box::pin(async move {
            let taken = self.inner.take(takes).await?;
            let over = taken.namespace.clone();
            let copies = Rc::new(Client { shelf: self.shelf.clone(), node: self.node, over }) as Rc<dyn Copies>;
            let copies = Some(copies).filter(|_| !self.shelf.0[self.node].lacks.get());
            Ok(Taken { copies, ..taken })
        })
    }

    fn look_at_snapshot(&self, tag: CopyTag) -> LocalFuture<'_, Result<AnyRemote, volume::Error>> {
        Box::pin(async move {
            self.inner.look().await?;
            let kept = self.shelf.of(self.node).into_iter().find(|kept| kept.tag == tag);
            let Kept { label, head, data, .. } =
                kept.ok_or_else(|| volume::Error::NoSuchSnapshot { holder: self.name() })?;
            let bytes = label.data_first * BLOCK as u64 + data.len() as u64;
            let memory = Memory::new(bytes, BLOCK as u32, [9; 16]).expect("its size is sound");
            for (lba, bytes) in [(0, head), (label.data_first, data)] {
                for (index, block) in bytes.chunks(BLOCK).enumerate() {
                    let view = Buf::copy_from(block).freeze();
                    let written = memory.write(Lba(lba + index as u64), view, Durability::Cached).await;
                    written.expect("it is memory");
                }
            }
            Ok(AnyRemote::from(Rc::new(memory)))
        })
    }
}

/// A connection to a node's shelf.
struct Client {
    shelf: Shelf,
    node: usize,
    over: AnyRemote,
}

impl Client {
    /// To the node and back; whoever has lost the namespace is refused.
    async fn round(&self) -> Result<(), Error> {
        self.over.read(Lba(0), Buf::with_len(BLOCK)).await.0
    }

    async fn ask(&self, asked: Asked) -> Result<u32, Error> {
        self.round().await?;
        let (answer, answered) = (Rc::new(Cell::new(None)), Notify::new());
        let done = answered.notified();
        let node = &self.shelf.0[self.node];
        node.inbox.borrow_mut().push_back(Request { asked, answer: Rc::clone(&answer), answered: answered.clone() });
        node.came.notify_all();
        let lost = || Error::Disconnected(format!("node {}", self.node));
        time::timeout(ANSWER_TIME + node.slow.get(), done).await.map_err(|_| lost())?;
        self.round().await.map_err(|_| lost())?;
        answer.get().ok_or_else(|| Error::ReadFault("a snapshot of what can't be read".into()))
    }
}

impl Copies for Client {
    fn snapshot(&self, tag: CopyTag) -> LocalFuture<'_, Result<u32, Error>> {
        Box::pin(async move {
            let refuses = &self.shelf.0[self.node].refuses;
            if refuses.get() > 0 {
                refuses.set(refuses.get() - 1);
                return Err(Error::OutOfSpace);
            }
            self.ask(Asked::Take(tag)).await
        })
    }

    fn copies(&self) -> LocalFuture<'_, Result<Vec<NamespaceCopy>, Error>> {
        Box::pin(async move {
            self.round().await?;
            let copy = |Kept { nsid, nguid, tag, data, .. }: Kept| {
                let (source, bytes) = ([1; 16], data.len() as u64);
                NamespaceCopy { nsid, writable: false, source, nguid, bytes, tag }
            };
            Ok(self.shelf.of(self.node).into_iter().map(copy).collect())
        })
    }

    fn delete_copy(&self, nsid: u32, nguid: [u8; 16]) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let node = &self.shelf.0[self.node];
            let is_kept = |kept: &Kept| kept.nsid == nsid && node.keeps.get() == Some(kept.tag);
            if node.kept.borrow().iter().any(is_kept) {
                return Err(Error::ReadOnly("told to refuse"));
            }
            self.ask(Asked::Delete(nsid, nguid)).await.map(drop)
        })
    }
}
