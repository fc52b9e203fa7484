//! Where a host of the simulation learns of its pool's newest map: from the voters' superblocks, as programs do
//! (`client::Source`); only that the addresses of all storage nodes are known beforehand.

use std::cell::RefCell;

use device::Namespace;
use engine::task::LocalFuture;
use kv::store::MapSource;
use pool::search::Found;
use pool::{AgreeError, Map, MemberId, Proposer, Search};

use crate::sim::cluster::Remote;

/// Maps that are followed from one to the next before it is given up.
const MAPS_MAX: usize = 16;

/// The pool's voters, as one host reaches them.
pub struct Voters {
    /// One for each storage node.
    namespaces: Vec<Remote>,
    /// The newest map that was seen in force.
    known: RefCell<Map>,
}

impl Voters {
    /// The voters of the pool of `map`.
    pub fn new(map: Map, namespaces: Vec<Remote>) -> Voters {
        Voters { namespaces, known: RefCell::new(map) }
    }

    /// The connection to a member.
    pub fn namespace(&self, map: &Map, index: usize) -> Option<Remote> {
        let id = map.members[index].id;
        self.namespaces.iter().find(|namespace| MemberId(namespace.info().nguid) == id).cloned()
    }

    /// The connections to all storage nodes.
    pub fn namespaces(&self) -> &[Remote] {
        &self.namespaces
    }

    /// Who has the voters agree on the next map.
    pub fn proposer(&self) -> Proposer<'_, Remote> {
        Proposer::new(&self.namespaces)
    }

    /// The newest map that this host has seen in force.
    pub fn known(&self) -> Map {
        self.known.borrow().clone()
    }

    /// Takes note of a map in force.
    pub fn learn(&self, map: &Map) {
        let mut known = self.known.borrow_mut();
        if map.version() > known.version() {
            *known = map.clone();
        }
    }

    /// The map in force; a proposal that was left half-way is finished, or made void.
    pub async fn settled(&self) -> Result<Map, AgreeError> {
        // An old map's voters may all be in other lives by now: who asks them as that map has them gets no answer.
        if let Err(error) = self.look().await {
            return Err(AgreeError::Refused(error));
        }
        let map = self.proposer().agree(&self.known(), |map| Ok(map.clone())).await?;
        self.learn(&map);
        Ok(map)
    }

    fn agreed(&self, agreed: Result<Map, AgreeError>) -> Result<Map, String> {
        let map = agreed.map_err(|error| error.to_string())?;
        self.learn(&map);
        Ok(map)
    }

    /// The newest map that any storage node tells of, as whoever names all their addresses learns it: of the members that this host
    /// knows none may be in the pool any more.
    pub async fn told(&self) -> Map {
        let labelled = |namespace: &Remote| (MemberId(namespace.info().nguid).to_string(), namespace.clone());
        let asked: Vec<_> = self.namespaces.iter().map(labelled).collect();
        let known = self.known();
        match pool::open(&asked, Some(known.pool)).await {
            Ok(opened) => {
                self.learn(&opened.map);
                self.known()
            }
            Err(pool::Error::NoQuorum { map, .. }) if map.version() > known.version() => *map,
            Err(_) => known,
        }
    }

    async fn look(&self) -> Result<Map, String> {
        let known = self.known();
        let (pool, mut search, mut asked) = (known.pool, Search::new(known), Vec::new());
        for _ in 0..MAPS_MAX {
            for namespace in search.asks().into_iter().filter_map(|index| self.namespace(search.map(), index)) {
                let label = namespace.info().nguid.iter().map(|byte| format!("{byte:02x}")).collect();
                if !asked.iter().any(|(other, _)| *other == label) {
                    asked.push((label, namespace));
                }
            }
            let opened = pool::open(&asked, Some(pool)).await;
            match search.heard(opened).map_err(|error| error.to_string())? {
                Found::InForce(map) => {
                    self.learn(&map);
                    return Ok(map);
                }
                Found::More => {}
                Found::Unsettled(_) => {
                    let agreed = self.proposer().agree(search.map(), |map| Ok(map.clone())).await;
                    search = Search::new(agreed.map_err(|error| error.to_string())?);
                }
            }
        }
        Err("the pool's map changes all the time".into())
    }
}

impl MapSource for Voters {
    fn newest(&self) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(self.look())
    }

    fn connect<'a>(&'a self, map: &'a Map, index: usize) -> LocalFuture<'a, Option<fabric::host::AnyRemote>> {
        Box::pin(async move { self.namespace(map, index).map(fabric::host::AnyRemote::from) })
    }

    fn settle_carried<'a>(&'a self, carried: &'a Map, by: MemberId) -> LocalFuture<'a, Result<Map, String>> {
        Box::pin(async move { self.agreed(self.proposer().settle_carried(&self.known(), carried, by).await) })
    }

    fn raise_epoch(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(async move { self.agreed(self.proposer().raise_epoch(&self.known(), epoch).await) })
    }

    fn begin_sweep(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(async move { self.agreed(self.proposer().begin_sweep(&self.known(), epoch).await) })
    }

    fn note_unequal(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        let note = move |map: &Map| Ok(map.note_unequal(epoch));
        Box::pin(async move { self.agreed(self.proposer().agree(&self.known(), note).await) })
    }

    fn note_clock(
        &self,
        before: u64,
        now_ms: u64,
        by: Option<pool::clock::Moment>,
    ) -> LocalFuture<'_, Result<Map, String>> {
        let note = move |map: &Map| Ok(map.note_clock(before, now_ms, by));
        Box::pin(async move { self.agreed(self.proposer().agree(&self.known(), note).await) })
    }

    fn note_swept(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(async move { self.agreed(self.proposer().note_swept(&self.known(), epoch).await) })
    }
}
