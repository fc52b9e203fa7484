//! Following the pool's map while it changes.
//!
//! Safety rests on seals, not on clocks: a host that sleeps through a change meets sealed pages, which show it nothing and
//! take nothing from it. The lease only bounds how long a host works by an old map where no seal has come yet, so that a
//! change need not meet operations half way.
//!
//! An operation keeps the topology it began with. Refused by a seal it begins anew on the newer map, as long as nothing of
//! it was sent to be stored, or every home has refused it; after that its outcome is what the old map's majorities say, or
//! unknown. It must not go on in the newer epoch with its old timestamp: what was deleted in between, and the tombstone
//! dropped, would be back.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use engine::backoff::Backoff;
use engine::sync::Semaphore;
use engine::task::{LocalFuture, Task};
use engine::time::{self, Instant};
use pool::clock::{Clock, Moment};
use pool::{Map, MemberId};

use super::error::StoreError;
use super::member::Member;
use super::topology::Topology;
use super::{Inner, OPERATION_TIME_MAX, Store};
use fabric::host::AnyRemote;

/// How long a host works by a map before it asks whether it still is the newest. Chosen: as DESIGN-C has it, long against
/// the cost of asking a few voters, short against a change.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(5);
/// How long all members may take to tell of it where no operation waits for that. Chosen: members that were never reached are tried
/// twice by who asks, for as long as a connection may take, and one that is connected and silent takes ten seconds.
const ASKED_ALL_TIME_MAX: Duration = Duration::from_secs(30);
/// Pause between two tries to learn the newest map. Guessed: some round trips.
const REFRESH_PAUSE: Duration = Duration::from_millis(20);
/// How often who waits for the map looks whether its voters are within reach. Guessed: short against the patience of a gateway.
const REACH_LOOK: Duration = Duration::from_millis(50);
/// How long operations wait for connections to the members that are new in a map; who takes longer is waited for beside them.
/// Chosen: below the lease, and several round trips to any place.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// Between two looks for members that are missing, while none is.
const CONNECT_LOOK: Duration = Duration::from_secs(1);
/// First pause before a member that could not be found is looked for again; doubles.
const CONNECT_PAUSE_FIRST: Duration = Duration::from_secs(2);
/// Longest such pause. Guessed: an operator who puts a name right does not wait long.
const CONNECT_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Looks at what an older map has left to be freed before it is given up (the scrub collects it).
const RETIRED_LOOKS_MAX: usize = 20;
/// Between two looks.
const RETIRED_PAUSE: Duration = Duration::from_secs(5);

/// Where a store learns of the pool's newest map, and reaches members that are new in it.
pub trait MapSource {
    /// The newest map that a majority of its voters agrees on. An error says why there is none to be had now.
    fn newest(&self) -> LocalFuture<'_, Result<Map, String>>;
    /// The same where a seal shows that there is a newer one than that, or nothing might: others may have gone on without the
    /// voters who were asked, so that all members are.
    fn newest_of_all(&self) -> LocalFuture<'_, Result<Map, String>> {
        self.newest()
    }
    /// The same, agreed on anew, also where a map that member `by` carries was never in force, or is known to that member alone: it
    /// comes into force, or the member learns the one that is.
    fn settle_carried<'a>(&'a self, carried: &'a Map, by: MemberId) -> LocalFuture<'a, Result<Map, String>>;
    /// The map after `epoch` at rest, with the same members: agreed on now, unless there is a newer one. Needs the voters alone.
    fn raise_epoch(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>>;
    /// The same, or whatever is newer, once every member has a mark by which it is known if it is rolled back to before: what a
    /// sweep of the new epoch begins with, whoever has raised it.
    fn begin_sweep(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>>;
    /// Notes that `epoch` was swept just now, if it is still in force, and by what every member is known that is rolled back to
    /// before.
    fn note_swept(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>>;
    /// Notes that a page comes back which may lack what it alone knew, if a change still cleans up in `epoch`: the pool is
    /// `unequal` when that ends.
    fn note_unequal(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>>;
    /// Notes what time it is, in Unix milliseconds, at this moment by this machine's clock, unless somebody has noted another time
    /// since `before`.
    fn note_clock(&self, before: u64, now_ms: u64, by: Option<Moment>) -> LocalFuture<'_, Result<Map, String>>;
    /// A connection to a member of the map, or what will be one; `None`: none to be had.
    fn connect<'a>(&'a self, map: &'a Map, index: usize) -> LocalFuture<'a, Option<AnyRemote>>;
}

/// Who is asked for the newest map.
#[derive(Clone, Copy)]
enum Asked {
    Voters,
    All,
}

/// How a store follows its map.
pub(super) struct Follow {
    pub(super) source: RefCell<Option<Rc<dyn MapSource>>>,
    lease: Cell<Duration>,
    /// When the map in use was last known to be the newest: the moment before it was asked for.
    confirmed: Cell<Option<Instant>>,
    /// When the epoch of the map in use was raised to what it is, if this host was there.
    raised: Cell<Option<Instant>>,
    /// What time it was by the pool, and when that was learnt.
    pub(super) clock: RefCell<Option<(Clock, Instant)>>,
    /// One asks, the others wait for its answer.
    turn: Semaphore,
}

impl Follow {
    /// A store whose map is the only one it will know.
    pub(super) fn nothing() -> Follow {
        let (source, lease) = (RefCell::default(), Cell::new(LEASE_DEFAULT));
        let (confirmed, raised, clock) = (Cell::new(None), Cell::new(None), RefCell::default());
        Follow { source, lease, confirmed, raised, clock, turn: Semaphore::new(1) }
    }
}

impl Store {
    /// Follows the pool's map from now on, as long as the task is kept. An operation that begins when the map has not been
    /// confirmed for `lease` waits until it is.
    pub fn follow(&self, source: Rc<dyn MapSource>, lease: Duration) -> Task<()> {
        let follow = &self.inner.follow;
        *follow.source.borrow_mut() = Some(source);
        follow.lease.set(lease);
        self.inner.topology().members.iter().for_each(|member| member.follow(&self.inner));
        let store = Rc::downgrade(&self.inner);
        let connecting = keep_connecting(store.clone());
        engine::task::spawn(async move {
            let _connecting = engine::task::spawn(connecting);
            while let Some(inner) = store.upgrade() {
                if let Err(reason) = inner.refresh(|inner| inner.is_confirmed(lease / 2)).await {
                    tracing::debug!(%reason, "the pool's map could not be confirmed");
                }
                drop(inner);
                time::sleep(lease / 4).await;
            }
        })
    }

    /// Learns the newest map now, if the store follows one.
    pub fn refresh(&self) -> LocalFuture<'_, Result<(), String>> {
        Box::pin(async move { self.inner.refresh(|_| false).await })
    }
}

impl Inner {
    /// The pool as an operation that begins now may use it.
    pub(super) async fn current(self: &Rc<Self>) -> Result<Rc<Topology>, StoreError> {
        let lease = self.follow.lease.get();
        let confirming = async {
            while self.follow.source.borrow().is_some() && !self.is_confirmed(lease) {
                if self.refresh(|inner| inner.is_confirmed(lease)).await.is_err() {
                    time::sleep(REFRESH_PAUSE).await;
                }
            }
        };
        let mut confirming = pin!(confirming);
        while time::timeout(REACH_LOOK, confirming.as_mut()).await.is_err() {
            if let Some(error) = self.out_of_reach(self.patience.get()) {
                return Err(error);
            }
        }
        Ok(self.topology())
    }

    /// Runs an operation, and again on the newer map if a seal shows that there is one before anything was sent to be stored.
    pub(super) async fn on_newest<T>(
        self: &Rc<Self>,
        mut operation: impl AsyncFnMut(Rc<Topology>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        loop {
            let topology = self.current().await?;
            let epoch = topology.map.epoch;
            match operation(topology).await {
                Err(StoreError::MapChanged { epoch: sealed, .. }) if self.follow.source.borrow().is_some() => {
                    let mut asked = self.refresh(|inner| inner.topology().map.epoch > epoch).await;
                    if asked.is_ok() && self.topology().map.epoch < sealed {
                        asked = self.refresh_by(|inner| inner.topology().map.epoch >= sealed, Asked::All).await;
                    }
                    if asked.is_err() {
                        time::sleep(REFRESH_PAUSE).await;
                    }
                }
                result => return result,
            }
        }
    }

    fn is_confirmed(&self, within: Duration) -> bool {
        self.follow.confirmed.get().is_some_and(|at| at.elapsed() <= within)
    }

    /// Whether the map was asked for since, and there was an answer.
    pub(super) fn is_confirmed_since(&self, since: Instant) -> bool {
        self.follow.confirmed.get().is_some_and(|asked| asked >= since)
    }

    /// Learns the newest map, unless that has become needless when its turn comes.
    pub(super) async fn refresh(self: &Rc<Self>, needless: impl Fn(&Rc<Self>) -> bool) -> Result<(), String> {
        self.refresh_by(needless, Asked::Voters).await
    }

    /// Learns the newest map by all that any member carries: where one of them carries a later one than the voters known here.
    /// Where members are out of reach that may take longer than operations can wait for: they may ask the voters meanwhile.
    pub(super) async fn refresh_of_all(self: &Rc<Self>) -> Result<(), String> {
        let Some(source) = self.follow.source.borrow().clone() else { return Ok(()) };
        self.learn(source.newest_of_all(), ASKED_ALL_TIME_MAX).await
    }

    /// Learns the newest map once it is agreed on anew beside the one that a member carries.
    pub(super) async fn settle_carried(self: &Rc<Self>, carried: &Map, by: MemberId) -> Result<(), String> {
        let Some(source) = self.follow.source.borrow().clone() else { return Ok(()) };
        self.learn(source.settle_carried(carried, by), ASKED_ALL_TIME_MAX).await
    }

    async fn refresh_by(self: &Rc<Self>, needless: impl Fn(&Rc<Self>) -> bool, whom: Asked) -> Result<(), String> {
        let Some(source) = self.follow.source.borrow().clone() else { return Ok(()) };
        let _turn = self.follow.turn.acquire(1).await;
        if needless(self) {
            return Ok(());
        }
        let newest = match whom {
            Asked::Voters => source.newest(),
            Asked::All => source.newest_of_all(),
        };
        self.learn(newest, OPERATION_TIME_MAX).await
    }

    /// Takes the map into use that is asked for now.
    async fn learn(
        self: &Rc<Self>,
        newest: LocalFuture<'_, Result<Map, String>>,
        most: Duration,
    ) -> Result<(), String> {
        let asked = time::now();
        let map = time::timeout(most, newest).await.map_err(|_| "no answer in time".to_owned())??;
        // Else another has asked since: what he was told is no older.
        let is_latest = || self.follow.confirmed.get().is_none_or(|before| before <= asked);
        if is_latest() {
            self.learn_clock(&map, asked);
        }
        self.adopt(map).await;
        if is_latest() {
            self.follow.confirmed.set(Some(asked));
        }
        Ok(())
    }

    /// Takes a newer map into use, if there is one; where that can't be known, the old one goes on.
    pub(super) async fn look_for_newer_map(self: &Rc<Self>) {
        if let Err(reason) = self.refresh(|_| false).await {
            tracing::debug!(reason, "the map could not be read anew");
        }
    }

    /// How long a host that is awake may go by an older map.
    pub(super) fn lease(&self) -> Duration {
        self.follow.lease.get()
    }

    /// Whether this host has seen the epoch of its map begin, no longer ago than that.
    pub(super) fn was_raised_within(&self, time: Duration) -> bool {
        self.follow.raised.get().is_some_and(|at| at.elapsed() <= time)
    }

    /// Takes a map into use, if it is newer.
    pub(super) async fn adopt(self: &Rc<Self>, map: Map) {
        let before = self.topology();
        if map.version() <= before.map.version() || !differs(&map, &before.map) {
            return;
        }
        let map = Rc::new(map);
        let connected = pool::together(map.members.iter().enumerate().map(|(index, member)| {
            let (map, before) = (&map, &before);
            async move {
                let same =
                    |(known, _): &(&pool::Member, _)| known.id == member.id && known.incarnation == member.incarnation;
                let known = before.map.members.iter().zip(&before.members).find(same);
                Rc::new(match known {
                    Some((_, known)) if known.table().is_some() => known.successor(index, map),
                    _ => self.member(index, self.connect(map, index).await, map),
                })
            }
        }));
        let members = connected.await;
        if self.topology().map.version() >= map.version() {
            return; // Somebody was faster while new members were being connected.
        }
        tracing::info!(epoch = map.epoch, state = %map.state, members = members.len(), "the pool's map has changed");
        if map.epoch > before.map.epoch {
            self.follow.raised.set(Some(time::now()));
        }
        *self.topology.borrow_mut() = Rc::new(Topology::over(map, members));
        self.stale.notify_one();
        engine::task::spawn(retire(before)).detach();
    }
}

impl Inner {
    /// A connection to a member that is new to this host, if there is one to be had soon.
    async fn connect(&self, map: &Map, index: usize) -> Option<AnyRemote> {
        let source = self.follow.source.borrow().clone()?;
        time::timeout(CONNECT_TIME_MAX, source.connect(map, index)).await.ok().flatten()
    }

    fn member(self: &Rc<Self>, index: usize, namespace: Option<AnyRemote>, map: &Rc<Map>) -> Member {
        let member = Member::new(index, namespace, map);
        member.follow(self);
        member
    }

    /// Tries the members that have no connection to be waited for; whether none is left.
    async fn connect_missing(self: &Rc<Self>) -> bool {
        let topology = self.topology();
        let missing = |member: &&Rc<Member>| member.table().is_none() && !topology.map.members[member.index].lost;
        let missing: Vec<usize> = topology.members.iter().filter(missing).map(|member| member.index).collect();
        let tried = missing.iter().map(|&index| self.connect(&topology.map, index));
        let found = pool::together(tried).await;
        let left = found.iter().any(Option::is_none);
        let now = self.topology();
        if !Rc::ptr_eq(&now, &topology) || found.iter().all(Option::is_none) {
            return !left;
        }
        let mut members = topology.members.clone();
        for (index, namespace) in missing.into_iter().zip(found).filter(|(_, namespace)| namespace.is_some()) {
            tracing::info!(member = index, "a member is found at last");
            members[index] = Rc::new(self.member(index, namespace, &topology.map));
            // Others have written meanwhile.
            self.mark_stale(&members[index]);
        }
        *self.topology.borrow_mut() = Rc::new(Topology::over(topology.map.clone(), members));
        !left
    }
}

/// Looks for members that could not be found when their map was adopted, as long as there is the store.
async fn keep_connecting(store: Weak<Inner>) {
    let mut backoff = Backoff::new(CONNECT_PAUSE_FIRST, CONNECT_PAUSE_MAX);
    while let Some(inner) = store.upgrade() {
        let pause = match inner.connect_missing().await {
            true => {
                backoff.reset();
                CONNECT_LOOK
            }
            false => backoff.pause(),
        };
        drop(inner);
        time::sleep(pause).await;
    }
}

/// Whether a host has to work otherwise: progress alone is none of its business.
fn differs(newer: &Map, older: &Map) -> bool {
    let plain = |map: &Map| Map { revision: 0, change: None, swept: 0, clock: Clock::default(), ..map.clone() };
    plain(newer) != plain(older)
}

/// What an older map's tables have unlinked is freed, though nobody uses them any more.
async fn retire(topology: Rc<Topology>) {
    for _ in 0..RETIRED_LOOKS_MAX {
        time::sleep(RETIRED_PAUSE).await;
        let tables = || topology.members.iter().filter_map(|member| member.table());
        for table in tables() {
            table.quiesce().await;
        }
        if tables().all(|table| !table.has_leftovers()) {
            return;
        }
    }
}
