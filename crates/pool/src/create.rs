//! Making a pool: everything a member needs is stable before anything says that it is one.
//!
//! Order, and what a crash leaves: (1) the namespaces are claimed ([`crate::claim`]), old superblocks are gone: a half-made member
//! is of no pool, never half of two, and is taken by force alone; (2) table and heap are emptied (`blank`); (3) the map's body;
//! (4) superblocks, copy B then A. Each step is stable on all members before the next begins. What fails without a crash
//! leaves the namespaces blank.

use std::cell::Cell;

use device::{Namespace, NamespaceInfo};

use crate::change::{Side, State};
use crate::claim::Claim;
use crate::clock::Clock;
use crate::domain::Level;
use crate::error::Error;
use crate::geometry::{Geometry, PAGE_SIZE_MAX, PAGE_SIZE_MIN};
use crate::map::{MAP_FORMAT, MEMBERS_MAX, Map, Member, MemberId, REPLICAS_MAX, WEIGHT_MAX};
use crate::new_member::{GENERATION_FIRST, NewMember, fit, random_incarnation, superblock};
use crate::plan::{choose_voters, complete};
use crate::superblock::Ballot;
use crate::together::together;

/// Thousandths of a member that become table. Half: entries that fit a page live in the table, all others in the heap, and
/// which kind prevails is not known when a pool is made. Guessed; `table_share` says otherwise.
pub const TABLE_SHARE_DEFAULT: u32 = 500;
/// Members that are emptied at once. Chosen: what many drives do in the time of one, within bounds.
const EMPTIED_AT_ONCE_MAX: usize = 16;

/// What may be chosen when a pool is made.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Members that hold each key, 1 to 7.
    pub replicas: u8,
    /// Bytes of a table page, a power of two from 4 KiB to 64 KiB.
    pub page_size: u32,
    /// Thousandths of each member that become table.
    pub table_share: u32,
    /// Level at which replicas must differ; `None`: the widest that has as many domains as there are replicas.
    pub spread: Option<Level>,
    /// Take namespaces that are in use, and destroy what they hold.
    pub force: bool,
}

impl Default for CreateOptions {
    fn default() -> CreateOptions {
        CreateOptions {
            replicas: 3,
            page_size: PAGE_SIZE_MIN,
            table_share: TABLE_SHARE_DEFAULT,
            spread: None,
            force: false,
        }
    }
}

/// Makes a pool of `members` and returns its map. Nothing is written before every member has been found fit. `progress` is told the
/// share that is done of what takes time, emptying the tables.
pub async fn create<N: Namespace>(
    members: &[NewMember<N>],
    options: &CreateOptions,
    progress: impl Fn(f64),
) -> Result<Map, Error> {
    let map = plan(members, options)?;
    let body = map.encode().map_err(|source| Error::Map { member: "the new pool".into(), source })?;
    let accepted = Ballot { round: 1, host: engine::task::random_u64() };
    let mut claims = Vec::with_capacity(members.len());
    for member in members {
        claims.push(Claim::look(member, options.force).await?);
    }
    let made = make(&mut claims, &map, &body, accepted, progress).await;
    if made.is_err() {
        for claim in &claims {
            claim.release().await;
        }
    }
    made.map(|()| map)
}

/// Makes members of what was found fit.
async fn make<N: Namespace>(
    claims: &mut [Claim<'_, N>],
    map: &Map,
    body: &[u8],
    accepted: Ballot,
    progress: impl Fn(f64),
) -> Result<(), Error> {
    // Each step is stable on all members before the next begins.
    for (index, claim) in claims.iter_mut().enumerate() {
        claim.stake(map, index).await?;
    }
    let shares: Vec<Cell<f64>> = claims.iter().map(|_| Cell::default()).collect();
    let tell = |index: usize, share: f64| {
        shares[index].set(share);
        progress(shares.iter().map(Cell::get).sum::<f64>() / shares.len() as f64);
    };
    for first in (0..claims.len()).step_by(EMPTIED_AT_ONCE_MAX) {
        let some = first..claims.len().min(first + EMPTIED_AT_ONCE_MAX);
        let emptied = together(some.map(|index| claims[index].empty(map, index, &tell))).await;
        emptied.into_iter().collect::<Result<(), Error>>()?;
    }
    for claim in &*claims {
        claim.write_body(body, accepted).await?;
    }
    for (claim, entry) in claims.iter().zip(&map.members) {
        claim.fulfil(&superblock(map, entry, body, accepted)).await?;
    }
    Ok(())
}

/// The map of the new pool, if it can be.
fn plan<N: Namespace>(members: &[NewMember<N>], options: &CreateOptions) -> Result<Map, Error> {
    check_options(members.len(), options)?;
    let infos: Vec<NamespaceInfo> = members.iter().map(|member| member.namespace.info()).collect();
    for (index, info) in infos.iter().enumerate() {
        if let Some(first) = infos[..index].iter().position(|other| other.nguid == info.nguid) {
            let (first, second) = (members[first].name(), members[index].name());
            return Err(Error::Duplicate { id: MemberId(info.nguid), first, second });
        }
    }
    let mean = infos.iter().map(NamespaceInfo::bytes).sum::<u64>() / infos.len() as u64;
    let mut entries = Vec::with_capacity(members.len());
    for (member, info) in members.iter().zip(&infos) {
        let geometry = fit(info, options.page_size, options.table_share)
            .map_err(|reason| Error::Unfit { member: member.name(), reason })?;
        let by_size = u128::from(info.bytes()) * 100 / u128::from(mean.max(1));
        let weight = member.weight.unwrap_or((by_size as u32).clamp(1, WEIGHT_MAX));
        entries.push(entry(member, info, &geometry, weight));
    }
    let mut map = Map {
        format: MAP_FORMAT,
        pool: uuid::Builder::from_random_bytes(random_bytes()).into_uuid(),
        epoch: 1,
        revision: 0,
        state: State::Stable,
        replicas: options.replicas,
        spread: Level::Drive,
        page_size: options.page_size,
        hash_seed: engine::task::random_u64(),
        floor: 0,
        swept: 0,
        clock: Clock::begun(engine::time::unix_time()),
        seized: 0,
        unequal: false,
        change: None,
        members: entries,
    };
    let replicas = usize::from(options.replicas);
    let wide_enough = |level: &Level| map.domains(*level) >= replicas;
    let widest = || Level::WIDEST_FIRST.into_iter().find(wide_enough).unwrap_or(Level::Drive);
    map.spread = options.spread.unwrap_or_else(widest);
    choose_voters(&mut map, Side::New);
    if map.domains(map.spread) < replicas {
        return Err(Error::TooFewDomains { level: map.spread, domains: map.domains(map.spread), replicas });
    }
    Ok(map)
}

fn check_options(members: usize, options: &CreateOptions) -> Result<(), Error> {
    let refuse = |what, value: String, allowed| Err(Error::Option { what, value, allowed });
    if members == 0 || members > MEMBERS_MAX {
        return refuse("the number of members", members.to_string(), "1 to 1024");
    }
    if options.replicas == 0 || usize::from(options.replicas) > REPLICAS_MAX {
        return refuse("the replica count", options.replicas.to_string(), "1 to 7");
    }
    if !options.page_size.is_power_of_two() || !(PAGE_SIZE_MIN..=PAGE_SIZE_MAX).contains(&options.page_size) {
        return refuse("the page size", options.page_size.to_string(), "a power of two from 4096 to 65536");
    }
    if options.table_share == 0 || options.table_share > 1000 {
        return refuse("the table's share", options.table_share.to_string(), "1 to 1000 thousandths");
    }
    Ok(())
}

fn entry<N>(member: &NewMember<N>, info: &NamespaceInfo, geometry: &Geometry, weight: u32) -> Member {
    let id = MemberId(info.nguid);
    Member {
        id,
        nqn: member.nqn.clone(),
        nsid: member.nsid,
        addresses: member.addresses.clone(),
        size: info.bytes(),
        block_size: info.block_size,
        weight,
        voter: false,
        points: None,
        leaving: false,
        mark: GENERATION_FIRST,
        incarnation: random_incarnation(),
        table_pages: geometry.table_pages,
        heap_groups: geometry.heap_groups,
        domain: complete(&member.domain, id),
        old: None,
        lost: false,
        left_behind: false,
        written_off: false,
        renewed: false,
    }
}

fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&engine::task::random_u64().to_le_bytes());
    bytes[8..].copy_from_slice(&engine::task::random_u64().to_le_bytes());
    bytes
}
