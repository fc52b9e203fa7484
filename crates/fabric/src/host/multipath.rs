//! [`Multipath`]: one namespace over several paths, each a controller of the subsystem at an address of its own.
//!
//! Which path: the best ANA state first (optimized, then non-optimized), among equals by turn or the one with the fewest
//! commands under way. A path error or the loss of a path moves a command to another path, and when there is none it waits for
//! one, until its deadline.
//!
//! Invariants:
//! - Reads are sent again at once. A change (write, write zeroes, deallocate, write uncorrectable) of unknown outcome is sent
//!   again only after the association that carried it has surely ended ([`super::fence`]): were it sent earlier, the first
//!   copy could still land, over what was acknowledged since.
//! - From its start until its end other changes of the same blocks are held back ([`doubts`]): the second copy of an old change
//!   must not overwrite a newer one, nor take effect again after one that was acknowledged meanwhile. So each change takes
//!   effect at some instant between its call and its answer, however often it was sent: as copies of one change, with nothing
//!   of ours between them.
//! - A fused pair is never sent again. After its association has surely ended its blocks are read, and the outcome follows from
//!   them or is said to be unknown; what that rests on stands at [`Multipath::compare_and_write`].
//! - A Zone Append is never sent again either: what it wrote could be anywhere in its zone, and is the caller's to look for. As
//!   long as a lost one may take effect other changes of its zone wait. A write in a zone that was sent again, and is refused there
//!   because it is not at the write pointer any more, was executed where its blocks hold its data; the zone can't have been reset
//!   by us in between, since a reset is a change of all of its zone's blocks.
//! - Where the volatile cache is on, every write is made stable by itself (FUA): a flush over one controller says nothing
//!   of what another one, or one that has been restarted, had in its cache.

mod doubts;
mod path;
mod retry;
mod zones;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Error, Lba, Link, Namespace, NamespaceInfo, Zone, ZoneAction, ZonedInfo};
use engine::backoff::jittered;
use engine::file::Lifetime;
use engine::sync::Notify;
use engine::task::LocalFuture;
use engine::time;
use engine::{Buf, View};
use nvme::AnaState;

use self::doubts::Doubts;
use self::path::Path;
use super::error::ConnectError;
use super::io::{Change, Swap};
use super::options::Options;
use super::remote::RemoteNamespace;

/// Paths of a namespace. Guessed: a few ports on a few networks.
pub const PATHS_MAX: usize = 16;

/// How equally good paths share the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PathPolicy {
    /// By turn.
    #[default]
    RoundRobin,
    /// The one with the fewest commands of ours under way.
    LeastQueued,
}

/// How a namespace is reached over several paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MultipathOptions {
    /// A path each: same subsystem, namespace and host, different addresses; 1 to [`PATHS_MAX`].
    pub paths: Vec<Options>,
    /// How equals share the work.
    pub policy: PathPolicy,
    /// How long a command may take in all, waiting for paths and associations' ends included. Then it fails with an error that
    /// says what is known.
    pub deadline: Duration,
}

impl MultipathOptions {
    /// `first` and the same at `others`. Where there are others the keep alive timeout is made 2 s if it is longer: a change
    /// that was under way when its path was lost waits for twice that and more before another path does it.
    pub fn new(mut first: Options, others: &[std::net::SocketAddr]) -> MultipathOptions {
        if !others.is_empty() {
            first.keep_alive = first.keep_alive.min(Duration::from_secs(2));
        }
        let also = others.iter().map(|&address| Options { address, ..first.clone() });
        let paths = std::iter::once(first.clone()).chain(also).collect();
        MultipathOptions { paths, policy: PathPolicy::default(), deadline: Duration::from_secs(60) }
    }
}

/// Why a namespace can't be had over several paths.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MultipathError {
    /// None, or more than there may be.
    #[error("{0} paths; give 1 to {PATHS_MAX}")]
    Paths(usize),
    /// The paths differ in what must be the same.
    #[error(
        "the paths to {0} and {1} differ in subsystem, namespace or host: several paths lead one host to one namespace"
    )]
    Differ(std::net::SocketAddr, std::net::SocketAddr),
    /// Without it nothing ever says that a lost association has ended.
    #[error(
        "the keep alive timeout of the path to {0} is zero: a write that was under way on a lost path could never be sent again"
    )]
    NoKeepAlive(std::net::SocketAddr),
    /// No path could be connected; the first one's reason.
    #[error("no path could be connected: {0}")]
    NoPath(ConnectError),
}

/// How a path stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathState {
    /// Its address.
    pub address: std::net::SocketAddr,
    /// Its ANA state; `None`: not connected.
    pub ana: Option<AnaState>,
    /// Connections that were made.
    pub epoch: u64,
    /// Commands of ours under way.
    pub under_way: u32,
    /// Why it is down, or was last.
    pub last_error: Option<String>,
}

/// A namespace over several paths. It belongs to the reactor thread that made it; another thread makes its own.
pub struct Multipath {
    inner: Rc<Inner>,
}

struct Inner {
    name: String,
    paths: Vec<Path>,
    policy: PathPolicy,
    deadline: Duration,
    turn: Cell<usize>,
    /// A path has come, gone or changed its state.
    changed: Notify,
    doubts: Doubts,
}

impl Multipath {
    /// Connects every path; at least one must answer, the others are connected in the background when they do.
    ///
    /// # Errors
    /// The paths do not go together, or none can be connected.
    pub fn connect(options: MultipathOptions) -> LocalFuture<'static, Result<Multipath, MultipathError>> {
        Box::pin(async move {
            check(&options.paths)?;
            let changed = Notify::new();
            let (info, connected) = connect_each(&options.paths, &changed).await.map_err(MultipathError::NoPath)?;
            let same = |remote: &RemoteNamespace| {
                let found = remote.info();
                found.nguid == info.nguid && found.block_size == info.block_size && found.blocks >= info.blocks
            };
            let paths =
                options.paths.iter().zip(connected).map(|(path, remote)| {
                    let remote = remote.filter(same);
                    Path::new(remote.unwrap_or_else(|| {
                        RemoteNamespace::expecting_noticed(path.clone(), info.clone(), changed.clone())
                    }))
                });
            let first = &options.paths[0];
            let name = format!("{} namespace {} over {} paths", first.subsystem, first.nsid, options.paths.len());
            let inner = Inner {
                name,
                paths: paths.collect(),
                policy: options.policy,
                deadline: options.deadline,
                turn: Cell::new(0),
                changed,
                doubts: Doubts::default(),
            };
            Ok(Multipath { inner: Rc::new(inner) })
        })
    }

    /// How each path stands, in the order given.
    pub fn paths(&self) -> Vec<PathState> {
        self.inner.paths.iter().map(Path::state).collect()
    }

    /// The namespace in words, as errors name it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Tells each target that the host is leaving. Commands under way are lost.
    pub fn disconnect(self) -> LocalFuture<'static, ()> {
        Box::pin(async move {
            // Its paths can be taken out only where nobody else holds them; dropping them disconnects them too, less politely.
            if let Ok(inner) = Rc::try_unwrap(self.inner) {
                for path in inner.paths {
                    path.remote.disconnect().await;
                }
            }
        })
    }

    /// A write is stable by itself where there is a volatile cache.
    fn durability(&self, asked: Durability) -> Durability {
        if self.info().volatile_cache { Durability::Stable } else { asked }
    }
}

/// Connects each path, with what the first of them says of the namespace; or the first one's error. One that is busy is asked again
/// only where no other one answers.
async fn connect_each(
    paths: &[Options],
    changed: &Notify,
) -> Result<(NamespaceInfo, Vec<Option<RemoteNamespace>>), ConnectError> {
    let longest = paths.iter().map(|path| path.connect_timeout).max().unwrap_or_default();
    let (deadline, mut backoff) = (time::now() + longest, paths[0].backoff());
    loop {
        let mut errors = Vec::new();
        let mut connected = Vec::with_capacity(paths.len());
        for path in paths {
            let made = RemoteNamespace::connect_noticed(path.clone(), changed.clone()).await;
            connected.push(made.map_err(|error| errors.push(error)).ok());
        }
        if let Some(info) = connected.iter().flatten().next().map(Namespace::info) {
            return Ok((info, connected));
        }
        let pause = backoff.pause();
        if !errors.iter().any(ConnectError::may_pass) || time::now() + pause >= deadline {
            return Err(errors.swap_remove(0));
        }
        time::sleep(jittered(pause)).await;
    }
}

fn check(paths: &[Options]) -> Result<(), MultipathError> {
    let Some(first) = paths.first().filter(|_| paths.len() <= PATHS_MAX) else {
        return Err(MultipathError::Paths(paths.len()));
    };
    for path in paths {
        if (&path.subsystem, path.nsid, &path.host) != (&first.subsystem, first.nsid, &first.host) {
            return Err(MultipathError::Differ(first.address, path.address));
        }
        if path.keep_alive.is_zero() {
            return Err(MultipathError::NoKeepAlive(path.address));
        }
    }
    Ok(())
}

impl Namespace for Multipath {
    // Of a remote medium that has failed each write learns by its error: what serves it on goes on saying that it takes writes.
    device::namespace_without!(writability, used_blocks, attributes);

    /// Up while a path is connected, as commands wait for its state. The epoch moves with each path's: a new connection may reach
    /// what was not there before.
    fn link(&self) -> Link {
        let paths = &self.inner.paths;
        let epoch = paths.iter().map(|path| path.remote.epoch()).sum();
        Link { is_up: paths.iter().any(|path| path.remote.is_connected()), epoch }
    }

    /// What all connected paths can do.
    fn info(&self) -> NamespaceInfo {
        let inner = &self.inner;
        let mut all = inner.paths.iter().filter(|path| path.remote.is_connected()).map(|path| path.remote.info());
        let first = all.next().unwrap_or_else(|| inner.paths[0].remote.info());
        all.fold(first, |least, other| NamespaceInfo {
            blocks: least.blocks.min(other.blocks),
            atomic_blocks: least.atomic_blocks.min(other.atomic_blocks),
            compare_and_write_blocks_max: least.compare_and_write_blocks_max.min(other.compare_and_write_blocks_max),
            transfer_blocks_max: least.transfer_blocks_max.min(other.transfer_blocks_max),
            volatile_cache: least.volatile_cache || other.volatile_cache,
            deallocated_reads_zero: least.deallocated_reads_zero && other.deallocated_reads_zero,
            write_uncorrectable: least.write_uncorrectable && other.write_uncorrectable,
            ..least
        })
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        self.inner.read(lba, buf).await
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        self.inner.change(Change::Write { lba, data, durability: self.durability(durability) }).await
    }

    async fn flush(&self) -> Result<(), Error> {
        self.inner.flush().await
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        self.inner.compare(lba, expected).await
    }

    /// A pair whose answer was lost is not sent again. When its association has surely ended the blocks are read:
    ///
    /// - they hold `new`: success;
    /// - they hold `expected`: it was not executed, and is not going to be ([`Error::NotConnected`]: the caller may try again);
    /// - anything else: the outcome stays unknown ([`Error::Disconnected`]).
    ///
    /// The first two rest on images that do not return: that no host writes `new` there for another reason, and none
    /// brings `expected` back. Whoever swaps versioned images (as the pages of a store are) has that; whoever swaps bare
    /// values must put something into them that is never the same twice.
    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, how: Durability) -> Result<(), Error> {
        let durability = self.durability(how);
        self.inner.swap(&Swap { lba, expected, new, durability }).await
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        self.inner.change(Change::WriteZeroes { lba, blocks, durability: self.durability(durability) }).await
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.inner.change(Change::Deallocate { lba, blocks }).await
    }

    async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.inner.verify(lba, blocks).await
    }

    async fn write_uncorrectable(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.inner.change(Change::WriteUncorrectable { lba, blocks }).await
    }

    /// Said on every path, as each places its own writes; true where one of them does.
    async fn hint_lifetime(&self, lifetime: Lifetime) -> bool {
        let mut placed = false;
        for path in &self.inner.paths {
            placed |= path.remote.hint_lifetime(lifetime).await;
        }
        placed
    }

    fn zoned(&self) -> Option<ZonedInfo> {
        self.inner.zoned()
    }

    async fn zones(&self, from: Lba, max: usize) -> Result<Vec<Zone>, Error> {
        self.inner.zones(from, max).await
    }

    async fn change_zone(&self, zone: Option<Lba>, action: ZoneAction) -> Result<(), Error> {
        self.inner.change(Change::Zone { zone, action }).await
    }

    async fn append(&self, zone: Lba, data: View, durability: Durability) -> Result<Lba, Error> {
        self.inner.append(zone, data, self.durability(durability)).await
    }
}
