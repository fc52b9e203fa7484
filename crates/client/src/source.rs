//! Where a store learns of its pool's newest map, and by whom the next one is agreed on.

use std::cell::RefCell;

use engine::task::LocalFuture;
use fabric::host::AnyRemote;
use kv::store::{MapSource, Store};
use pool::clock::Moment;
use pool::rebalance::{carry_out, is_free};
use pool::{AgreeError, Change, HalfLeft, Map, MemberId, Proposer, Request};

use crate::Error;
use crate::find::Found;
use crate::reach::{connect, settle, settle_of_all};
use crate::way::Way;

/// A pool as its voters know it.
pub struct Source {
    way: Way,
    /// The newest map that was seen in force, and all connections there are.
    known: RefCell<(Map, Vec<Found>)>,
}

impl Source {
    pub(crate) fn new(way: Way, map: Map, members: Vec<Found>) -> Source {
        Source { way, known: RefCell::new((map, members)) }
    }

    /// The map in force.
    pub fn map(&self) -> LocalFuture<'_, Result<Map, Error>> {
        Box::pin(async move {
            let (map, mut given) = self.known.borrow().clone();
            let map = settle(&self.way, map, &mut given).await?;
            self.learn(&map, given);
            Ok(map)
        })
    }

    /// The map in force by all that any member carries: also where the voters known here are left behind by others who have gone on
    /// without them, and answer.
    pub fn map_of_all(&self) -> LocalFuture<'_, Result<Map, Error>> {
        Box::pin(async move {
            let (map, mut given) = self.known.borrow().clone();
            let map = settle_of_all(&self.way, map, &mut given).await?;
            self.learn(&map, given);
            Ok(map)
        })
    }

    /// Adds a namespace that is to become a member.
    ///
    /// # Errors
    /// The NQN is none.
    pub fn add(&self, namespace: AnyRemote, address: String, nqn: &str, nsid: u32) -> Result<(), Error> {
        let nqn = nqn.parse().map_err(|error| Error::Usage(format!("`{nqn}`: {error}")))?;
        self.known.borrow_mut().1.push(Found { namespace, address, nqn, nsid });
        Ok(())
    }

    fn learn(&self, map: &Map, given: Vec<Found>) {
        let mut known = self.known.borrow_mut();
        // Another one may have looked meanwhile: the newer map stays, and so does whoever was connected.
        if map.version() > known.0.version() {
            known.0 = map.clone();
        }
        for found in given {
            if !known.1.iter().any(|known| known.namespace == found.namespace) {
                known.1.push(found);
            }
        }
    }

    /// Has the voters agree on what `change` makes of the map in force; it may run several times, also on what it made itself.
    pub async fn agree(&self, mut change: impl FnMut(&Map) -> Result<Map, AgreeError>) -> Result<Map, Error> {
        self.agree_on(&mut change).await
    }

    fn agree_on<'a>(
        &'a self,
        change: &'a mut dyn FnMut(&Map) -> Result<Map, AgreeError>,
    ) -> LocalFuture<'a, Result<Map, Error>> {
        Box::pin(async move {
            // All members, so that they learn it too.
            let (map, namespaces) = self.everybody().await?;
            Ok(Proposer::new(&namespaces).agree(&map, change).await?)
        })
    }

    /// [`Proposer::settle_carried`].
    async fn settle_carried(&self, carried: &Map, by: MemberId) -> Result<Map, Error> {
        let (map, _) = self.everybody().await?;
        let mut given = self.known.borrow().1.clone();
        // Its voters may be others.
        connect(&self.way, carried, carried.voter_indices(), &mut given).await?;
        let namespaces: Vec<AnyRemote> = given.iter().map(|found| found.namespace.clone()).collect();
        self.learn(&map, given);
        Ok(Proposer::new(&namespaces).settle_carried(&map, carried, by).await?)
    }

    /// [`Proposer::settle`].
    pub fn settle<'a>(&'a self, carried: Option<&'a Map>) -> LocalFuture<'a, Result<Map, Error>> {
        Box::pin(async move {
            let (map, namespaces) = self.everybody().await?;
            Ok(Proposer::new(&namespaces).settle(&map, carried).await?)
        })
    }

    /// Begins a change, or refuses it. Every member's superblock is marked first: media that are rolled back later than this
    /// are known by it.
    pub fn begin<'a>(&'a self, request: &'a Request) -> LocalFuture<'a, Result<Map, Error>> {
        Box::pin(async move {
            let (map, namespaces) = self.everybody().await?;
            Proposer::new(&namespaces).roll_call(&map).await?;
            let id = engine::task::random_u64();
            self.agree(|map| Ok(map.begin(request, id)?)).await
        })
    }

    /// Goes on with the change under way without these members, which are lost for good; or, where that can't be, decides to
    /// go back to before it. Without a change under way: nothing, unless `half` says that what is left will do.
    pub fn give_up<'a>(&'a self, members: &'a [MemberId], half: HalfLeft) -> LocalFuture<'a, Result<Map, Error>> {
        Box::pin(async move { self.agree(|map| Ok(map.give_up(members, half)?)).await })
    }

    /// Decides that the placement before the change under way is to be the next one, if its map is still joint; else nothing.
    /// [`Source::carry_out`] goes back to it.
    ///
    /// # Errors
    /// Members that were given up leave too few homes of some keys there: the change can only be gone on with.
    pub fn take_back(&self) -> LocalFuture<'_, Result<Map, Error>> {
        Box::pin(async move { self.agree(|map| Ok(map.take_back()?)).await })
    }

    /// Marks every member's superblock, if no change is under way: media that are rolled back later than this are known by it.
    pub fn roll_call(&self) -> LocalFuture<'_, Result<Map, Error>> {
        Box::pin(async move {
            let (map, namespaces) = self.everybody().await?;
            match map.change {
                Some(_) => Ok(map),
                None => Ok(Proposer::new(&namespaces).roll_call(&map).await?),
            }
        })
    }

    /// The map in force, if nobody carries its change out at the moment; that takes some seconds to find out.
    pub fn unattended(&self) -> LocalFuture<'_, Result<Map, Error>> {
        Box::pin(async move {
            let (map, namespaces) = self.everybody().await?;
            Ok(is_free(&Proposer::new(&namespaces), &map).await?)
        })
    }

    /// Carries the change of the map in force out, to its end; `rate`: bytes a second at most.
    pub async fn carry_out(
        &self,
        store: &Store,
        rate: Option<u64>,
        mut progress: impl FnMut(&Change),
    ) -> Result<Map, Error> {
        self.carry_out_telling(store, rate, &mut progress).await
    }

    fn carry_out_telling<'a>(
        &'a self,
        store: &'a Store,
        rate: Option<u64>,
        progress: &'a mut dyn FnMut(&Change),
    ) -> LocalFuture<'a, Result<Map, Error>> {
        Box::pin(async move {
            let (map, namespaces) = self.everybody().await?;
            Ok(carry_out(&Proposer::new(&namespaces), store, map, rate, progress).await?)
        })
    }

    /// The map in force and connections to all its members, as far as they answer.
    async fn everybody(&self) -> Result<(Map, Vec<AnyRemote>), Error> {
        let map = self.map().await?;
        let mut given = self.known.borrow().1.clone();
        connect(&self.way, &map, 0..map.members.len(), &mut given).await?;
        let namespaces = given.iter().map(|found| found.namespace.clone()).collect();
        self.learn(&map, given);
        Ok((map, namespaces))
    }
}

impl MapSource for Source {
    fn newest(&self) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(async move { self.map().await.map_err(|error| error.to_string()) })
    }

    fn newest_of_all(&self) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(async move { self.map_of_all().await.map_err(|error| error.to_string()) })
    }

    fn settle_carried<'a>(&'a self, carried: &'a Map, by: MemberId) -> LocalFuture<'a, Result<Map, String>> {
        Box::pin(async move { Source::settle_carried(self, carried, by).await.map_err(|error| error.to_string()) })
    }

    fn raise_epoch(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(async move {
            let (map, namespaces) = self.everybody().await.map_err(|error| error.to_string())?;
            Proposer::new(&namespaces).raise_epoch(&map, epoch).await.map_err(|error| error.to_string())
        })
    }

    fn begin_sweep(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(async move {
            let (map, namespaces) = self.everybody().await.map_err(|error| error.to_string())?;
            Proposer::new(&namespaces).begin_sweep(&map, epoch).await.map_err(|error| error.to_string())
        })
    }

    fn note_swept(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(async move {
            let (map, namespaces) = self.everybody().await.map_err(|error| error.to_string())?;
            Proposer::new(&namespaces).note_swept(&map, epoch).await.map_err(|error| error.to_string())
        })
    }

    fn note_unequal(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        let note = move |map: &Map| Ok(map.note_unequal(epoch));
        Box::pin(async move { self.agree(note).await.map_err(|error| error.to_string()) })
    }

    fn note_clock(&self, before: u64, now_ms: u64, by: Option<Moment>) -> LocalFuture<'_, Result<Map, String>> {
        let note = move |map: &Map| Ok(map.note_clock(before, now_ms, by));
        Box::pin(async move { self.agree(note).await.map_err(|error| error.to_string()) })
    }

    fn connect<'a>(&'a self, map: &'a Map, index: usize) -> LocalFuture<'a, Option<AnyRemote>> {
        Box::pin(async move {
            let mut given = self.known.borrow().1.clone();
            let found = connect(&self.way, map, std::iter::once(index), &mut given).await;
            let (found, trouble) = match found {
                Ok(mut found) => found.pop()?,
                Err(error) => {
                    tracing::warn!(%error, "a member can't be reached");
                    return None;
                }
            };
            if let Some(trouble) = trouble {
                tracing::warn!("{trouble}");
            }
            let found = found?;
            let namespace = found.namespace.clone();
            self.learn(map, vec![found]);
            Some(namespace)
        })
    }
}
