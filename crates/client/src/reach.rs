//! Reaching a pool: from the addresses of some members to connections to all of them.
//!
//! The map is read from whichever member answers; the others are then found where it says, unless they were found at an address
//! that was given: what the operator says now counts more than what was true when the pool was made. Members are told apart by
//! their NGUID, never by their address, and pools by their UUID: ballots of one say nothing of another's.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use device::Namespace;
use engine::backoff::jittered;
use engine::task::LocalFuture;

use fabric::host::{AnyRemote, RemoteNamespace};
use kv::resp::execute::together;
use kv::store::{LEASE_DEFAULT, Store};
use nvme::Nqn;
use pool::search::Found as Heard;
use pool::{Map, Proposer, Report, Search, SuperblockError, Uuid, Word};

use crate::error::Error;
use crate::resolve::check;

/// Looks at a map that too few voters carry before it is proposed again: somebody may be in the middle of proposing it, and a
/// higher ballot only makes that take longer. Guessed.
const SETTLE_LOOKS: usize = 4;
/// Between two looks, at least half of it: with hosts that come together each would propose into the other's ballot. Guessed: a
/// half is longer than a ballot takes.
const SETTLE_PAUSE: Duration = Duration::from_millis(500);

/// Maps that are followed from one to the next before it is given up. Guessed: more changes than an outdated address misses.
const MAPS_MAX: usize = 16;

pub use crate::find::{Finding, Found, find};
pub use crate::resolve::resolve;
pub use crate::source::Source;
pub use crate::way::{CONNECT_TIME, Way};

/// A pool whose members are connected, as far as they answer.
pub struct Reached {
    way: Way,
    /// The map that the majority of its voters carry.
    pub map: Map,
    /// For each member of the map, in its order; none: no address that is known of it leads anywhere now.
    pub members: Vec<Option<Found>>,
    /// What did not answer, or could not be used, in words.
    pub troubles: Vec<String>,
}

/// Members of pools among what was found; and why the others belong to none, which counts only where no pool is found.
async fn look(way: &Way, given: &mut [Found], troubles: &mut Vec<String>) -> (Vec<(Found, Report)>, Vec<pool::Error>) {
    let (mut reports, mut strangers): (Vec<(Found, Report)>, _) = (Vec::new(), Vec::new());
    for found in given {
        match pool::inspect(&found.namespace, &found.address).await {
            Ok(report) => {
                found.part(way, reports.iter().map(|(found, _)| found)).await;
                reports.push((found.clone(), report));
            }
            Err(
                error @ pool::Error::Superblock { source: SuperblockError::Blank | SuperblockError::Foreign(_), .. },
            ) => strangers.push(error),
            Err(error) => troubles.push(error.to_string()),
        }
    }
    (reports, strangers)
}

/// Which map of a pool is wanted.
#[derive(Clone, Copy)]
enum Wanted {
    /// The one in force.
    InForce,
    /// The newest that any member carries which answers: whether it is in force nobody can tell, as its voters are gone.
    Newest,
}

/// Reaches the pool that some namespace at `addresses` is a member of: `pool`, if that is given.
pub fn reach<'a>(way: &'a Way, addresses: &'a [String], pool: Option<Uuid>) -> LocalFuture<'a, Result<Reached, Error>> {
    reach_by(way, addresses, pool, Wanted::InForce)
}

/// Reaches what is left of a pool whose voters have no majority any more: its map is the newest that is left. It can be seized
/// ([`Reached::seize`]); a store over it would be served by nobody.
pub fn reach_rest<'a>(
    way: &'a Way,
    addresses: &'a [String],
    pool: Option<Uuid>,
) -> LocalFuture<'a, Result<Reached, Error>> {
    reach_by(way, addresses, pool, Wanted::Newest)
}

fn reach_by<'a>(
    way: &'a Way,
    addresses: &'a [String],
    pool: Option<Uuid>,
    wanted: Wanted,
) -> LocalFuture<'a, Result<Reached, Error>> {
    Box::pin(async move {
        if addresses.is_empty() {
            return Err(Error::Usage("which pool? give the address of a member".to_owned()));
        }
        addresses.iter().try_for_each(|address| check(address))?;
        let (mut troubles, mut given) = (Vec::new(), Vec::new());
        for (address, found) in
            addresses.iter().zip(together(addresses.iter().map(|address| find(way, address, None, None))).await)
        {
            match found {
                Err(failure) => troubles.push(at(address, &failure)),
                Ok(Finding { found, troubles: others }) => {
                    troubles.extend(others.iter().map(|trouble| at(address, trouble)));
                    given.extend(found);
                }
            }
        }
        let (reports, strangers) = look(way, &mut given, &mut troubles).await;
        if reports.is_empty() {
            let is_blank =
                |error: &pool::Error| matches!(error, pool::Error::Superblock { source: SuperblockError::Blank, .. });
            let only_blank = troubles.is_empty() && strangers.iter().all(is_blank);
            troubles.extend(strangers.iter().map(ToString::to_string));
            let troubles = troubles.join("; ");
            if given.is_empty() && only_blank {
                return Err(Error::Unavailable(format!("no namespace at {}", addresses.join(", "))));
            }
            let mend = if only_blank { " (make a pool with `yagura pool create`)" } else { "" };
            let sentence = format!("no member of a pool answers: {troubles}{mend}");
            return Err(if given.is_empty() { Error::Unavailable(sentence) } else { Error::Refused(sentence) });
        }
        let map = identify(way, &reports, (pool, wanted), &mut given).await?;
        let mut members = Vec::with_capacity(map.members.len());
        for (member, trouble) in connect(way, &map, 0..map.members.len(), &mut given).await? {
            members.push(member);
            troubles.extend(trouble);
        }
        for (index, found) in members.iter().enumerate() {
            let Some(found) = found else { continue };
            if let Err(error) = pool::check_member(&found.namespace, &map, index).await {
                troubles.push(at(&found.address, &error));
            }
        }
        troubles.sort();
        troubles.dedup();
        Ok(Reached { way: way.clone(), map, members, troubles })
    })
}

/// What failed, with where in front, unless it says so itself.
fn at(address: &str, failure: &dyn std::fmt::Display) -> String {
    let failure = failure.to_string();
    if failure.contains(address) { failure } else { format!("{address}: {failure}") }
}

/// The map in force of `pool`, or of the one pool that members among the namespaces found belong to.
///
/// One that a pool has let go still names it, and a target may serve members of several: so where more than one pool is named
/// each is asked whether it counts these namespaces among its members. Which of several was meant nobody can know.
async fn identify(
    way: &Way,
    reports: &[(Found, Report)],
    (pool, wanted): (Option<Uuid>, Wanted),
    given: &mut Vec<Found>,
) -> Result<Map, Error> {
    let mut pools: BTreeMap<Uuid, Vec<&(Found, Report)>> = BTreeMap::new();
    for report in reports {
        pools.entry(report.1.superblock.pool).or_default().push(report);
    }
    let list = |pools: &mut dyn Iterator<Item = (&Uuid, &Vec<&(Found, Report)>)>| {
        let place = |(found, _): &&(Found, Report)| format!("{} namespace {}", found.address, found.nsid);
        let told = |(pool, reports): (&Uuid, &Vec<&(Found, Report)>)| {
            format!("{pool} ({})", reports.iter().map(place).collect::<Vec<_>>().join(", "))
        };
        pools.map(told).collect::<Vec<_>>().join("; ")
    };
    if let Some(pool) = pool {
        let Some(reports) = pools.get(&pool) else {
            return Err(Error::Refused(format!(
                "no member of pool {pool} answers there, but of {}",
                list(&mut pools.iter())
            )));
        };
        return find_map(way, newest(reports), wanted, given).await;
    }
    if let [reports] = pools.values().collect::<Vec<_>>().as_slice() {
        return find_map(way, newest(reports), wanted, given).await;
    }
    let (mut meant, mut others) = (Vec::new(), Vec::new());
    for (pool, reports) in &pools {
        let map = find_map(way, newest(reports), wanted, given).await;
        let has = |map: &Map| {
            let is = |member: &pool::Member, at: &pool::Superblock| {
                (member.id, member.incarnation) == (at.member, at.incarnation)
            };
            map.members.iter().any(|member| reports.iter().any(|(_, report)| is(member, &report.superblock)))
        };
        // Of one whose voters don't answer, what its members say of themselves has to do.
        match map.as_ref().map_or_else(|_| has(&newest(reports)), has) {
            true => meant.push((pool, map)),
            false => others.push((pool, map)),
        }
    }
    let mut meant = if meant.is_empty() { others } else { meant };
    match (meant.pop(), meant.is_empty()) {
        (Some((_, map)), true) => map,
        (last, _) => {
            meant.extend(last);
            let ids: Vec<&Uuid> = meant.iter().map(|(pool, _)| *pool).collect();
            let several = list(&mut pools.iter().filter(|(pool, _)| ids.contains(pool)));
            Err(Error::Usage(format!("several pools are there, say which by --pool-id: {several}")))
        }
    }
}

/// The map of the highest ballot, of members of one pool; of a seized pool the latest.
fn newest(reports: &[&(Found, Report)]) -> Map {
    let newest = reports.iter().max_by_key(|(_, report)| report.map.order(report.superblock.accepted));
    newest.expect("invariant: a pool is named by a report at least").1.map.clone()
}

async fn find_map(way: &Way, mut map: Map, wanted: Wanted, given: &mut Vec<Found>) -> Result<Map, Error> {
    if matches!(wanted, Wanted::InForce) {
        return settle(way, map, given).await;
    }
    let mut highest = None;
    for _ in 0..MAPS_MAX {
        let members = connect(way, &map, 0..map.members.len(), given).await?;
        for found in members.into_iter().filter_map(|(found, _)| found) {
            let Ok(report) = pool::inspect(&found.namespace, &found.address).await else { continue };
            let Report { superblock, map: carried, .. } = report;
            let order = carried.order(superblock.accepted);
            if superblock.pool == map.pool && highest.as_ref().is_none_or(|(highest, _)| *highest < order) {
                highest = Some((order, carried));
            }
        }
        match &highest {
            Some((_, newest)) if *newest != map => map = newest.clone(),
            _ => return Ok(map),
        }
    }
    Err(Error::Unavailable("the pool's map changes all the time; try again".into()))
}

/// From a map to the one in force, by all members that it names and those that these name.
pub(crate) async fn settle_of_all(way: &Way, map: Map, given: &mut Vec<Found>) -> Result<Map, Error> {
    let newest = find_map(way, map, Wanted::Newest, given).await?;
    settle(way, newest, given).await
}

/// From a map that some member carries to the one in force. Whoever is connected on the way is added to `given`.
pub(crate) async fn settle(way: &Way, map: Map, given: &mut Vec<Found>) -> Result<Map, Error> {
    let pool = map.pool;
    let (mut search, mut looks) = (Search::new(map), 0);
    let mut asked: Vec<(String, AnyRemote)> = Vec::new();
    for _ in 0..MAPS_MAX {
        let found = connect(way, search.map(), search.asks().into_iter(), given).await?;
        for found in found.into_iter().filter_map(|(found, _)| found) {
            if !asked.iter().any(|(_, namespace)| *namespace == found.namespace) {
                asked.push((found.address, found.namespace));
            }
        }
        let opened = pool::open(&asked, Some(pool)).await;
        match search.heard(opened) {
            Err(pool::Error::NoMembers { reasons }) => {
                return Err(Error::Unavailable(format!(
                    "no majority: nobody who votes on the pool's map answers ({reasons}); if they never come back: `yagura pool \
                     rebalance --lost MEMBER,... --force`, and --returned of those that were away for a time and are back"
                )));
            }
            Err(error) => return Err(error.into()),
            Ok(Heard::InForce(map)) => return Ok(map),
            Ok(Heard::More) => {}
            // There is nobody to propose it to.
            Ok(Heard::Unsettled(error)) if !is_majority_connected(search.map(), &asked) => return Err(error.into()),
            Ok(Heard::Unsettled(_)) if looks < SETTLE_LOOKS => {
                looks += 1;
                engine::time::sleep(jittered(SETTLE_PAUSE)).await;
            }
            // Who is only claimed for the pool agrees to nothing.
            Ok(Heard::Unsettled(error @ pool::Error::NoQuorum { half_made: true, .. })) => return Err(error.into()),
            Ok(Heard::Unsettled(error)) => {
                // Whoever proposed the newest map was stopped half-way: it is finished, or what was before it is.
                let namespaces: Vec<AnyRemote> = given.iter().map(|found| found.namespace.clone()).collect();
                let agreed = Proposer::new(&namespaces).agree(search.map(), |map| Ok(map.clone())).await;
                search = Search::new(agreed.map_err(|refused| Error::Unavailable(format!("{error}; {refused}")))?);
            }
        }
    }
    Err(Error::Unavailable("the pool's map changes all the time; try again".into()))
}

fn is_majority_connected(map: &Map, asked: &[(String, AnyRemote)]) -> bool {
    let is_connected = |index: &usize| {
        let id = map.members[*index].id.0;
        asked.iter().any(|(_, namespace)| namespace.info().nguid == id && namespace.link().is_up)
    };
    map.voter_indices().filter(is_connected).count() > map.voter_indices().count() / 2
}

/// Connections to members of the map, with what hindered them; new ones are added to `given`.
pub(crate) async fn connect(
    way: &Way,
    map: &Map,
    indices: impl Iterator<Item = usize>,
    given: &mut Vec<Found>,
) -> Result<Vec<(Option<Found>, Option<String>)>, Error> {
    let known: &[Found] = given;
    let found = together(indices.map(|index| member_at(way, map, index, known))).await;
    let found = found.into_iter().collect::<Result<Vec<_>, _>>()?;
    for member in found.iter().filter_map(|(member, _)| member.as_ref()) {
        if !given.iter().any(|known| known.namespace == member.namespace) {
            given.push(member.clone());
        }
    }
    Ok(found)
}

impl Reached {
    /// The store over the members. It follows the pool's map from now on, wherever members come and go.
    pub fn store(&self) -> Store {
        self.store_of(self.source())
    }

    /// The same, with where its maps come from.
    pub fn store_of(&self, source: Rc<Source>) -> Store {
        let members = self.members.iter().map(|found| Some(found.as_ref()?.namespace.clone())).collect();
        let store = Store::new(self.map.clone(), members);
        // The task ends with the store.
        store.follow(source, LEASE_DEFAULT).detach();
        store
    }

    /// Has the members that are left agree on a map without those that are lost for good and may be the majority of its voters.
    ///
    /// # Errors
    /// A member that is not named as lost does not answer; or the half of some keys' replicas that is left may not know all.
    pub fn seize<'a>(&'a self, word: Word<'a>) -> LocalFuture<'a, Result<Map, Error>> {
        Box::pin(async move {
            let namespaces: Vec<AnyRemote> =
                self.members.iter().flatten().map(|found| found.namespace.clone()).collect();
            Ok(Proposer::new(&namespaces).seize(&self.map, word).await?)
        })
    }

    /// Where the pool's newest map and connections to its members are to be had.
    pub fn source(&self) -> Rc<Source> {
        Rc::new(Source::new(self.way.clone(), self.map.clone(), self.members.iter().flatten().cloned().collect()))
    }
}

/// Member `index` of the map: as it was found, else where the map says. One that does not answer is waited for in the background;
/// one whose names are not known now is nowhere, and hinders nobody.
async fn member_at(
    way: &Way,
    map: &Map,
    index: usize,
    given: &[Found],
) -> Result<(Option<Found>, Option<String>), Error> {
    let member = &map.members[index];
    if let Some(found) = given.iter().find(|found| found.namespace.info().nguid == member.id.0) {
        return Ok((Some(found.clone()), None));
    }
    let nqn: Nqn = member.nqn.parse().map_err(|error| Error::Refused(format!("member {}: {error}", member.id)))?;
    let found = |namespace, address: &String| {
        let (address, nqn) = (address.clone(), nqn.clone());
        Some(Found { namespace: AnyRemote::from(namespace), address, nqn, nsid: member.nsid })
    };
    let (mut trouble, mut waited_for) = (None, None);
    for address in &member.addresses {
        let socket = match resolve(address).await {
            Ok(socket) => socket,
            Err(failure) => {
                trouble = Some(format!("member {}: {failure}", member.id));
                continue;
            }
        };
        waited_for.get_or_insert((socket, address));
        match RemoteNamespace::connect(way.options(socket, nqn.clone(), member.nsid)).await {
            Ok(namespace) if namespace.info().nguid == member.id.0 => return Ok((found(namespace, address), None)),
            Ok(_) => {
                trouble = Some(format!("member {} is no longer at {address}: give its address by --pool", member.id))
            }
            Err(failure) => trouble = Some(format!("member {} at {address}: {failure}", member.id)),
        }
    }
    let Some((socket, address)) = waited_for else { return Ok((None, trouble)) };
    let options = way.options(socket, nqn.clone(), member.nsid);
    Ok((found(RemoteNamespace::expecting(options, map.expected_info(index)), address), trouble))
}

#[cfg(test)]
#[path = "reach_tests.rs"]
mod tests;
