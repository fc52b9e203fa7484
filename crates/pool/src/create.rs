//! Making a pool: everything a member needs is stable before anything says that it is one.
//!
//! Order, and what a crash leaves: (1) the namespaces are claimed ([`crate::claim`]), old superblocks are gone: a half-made member
//! is of no pool, never half of two, and is taken by force alone; (2) table and heap are emptied (`blank`); (3) the map's body;
//! (4) superblocks, copy B then A. Each step is stable on all members before the next begins. What fails without a crash
//! leaves the namespaces blank.

use std::cell::Cell;

use device::{Durability, Lba, Namespace, NamespaceInfo};
use engine::Buf;

use crate::change::{Side, State};
use crate::claim::Claim;
use crate::clock::Clock;
use crate::domain::{Domain, Level};
use crate::error::Error;
use crate::geometry::{
    Geometry, MAP_OFFSETS, PAGE_SIZE_MAX, PAGE_SIZE_MIN, SUPERBLOCK_OFFSETS, TABLE_OFFSET, TABLE_PAGES_MIN,
};
use crate::map::{MAP_FORMAT, MEMBERS_MAX, Map, Member, MemberId, REPLICAS_MAX, WEIGHT_MAX};
use crate::open::device_error;
use crate::plan::{choose_voters, complete};
use crate::slot::{leaves, read, unit_bytes};
use crate::superblock::{Ballot, Superblock, SuperblockError, crc64};
use crate::together::together;

/// Thousandths of a member that become table. Half: entries that fit a page live in the table, all others in the heap, and
/// which kind prevails is not known when a pool is made. Guessed; `table_share` says otherwise.
pub const TABLE_SHARE_DEFAULT: u32 = 500;
/// Generation of a member's first superblock.
pub(crate) const GENERATION_FIRST: u64 = 1;
/// Blocks zeroed by one command: what a 16-bit count of 0's based blocks can say (NVM Command Set 1.0 §3.2.8).
const ZERO_BLOCKS_MAX: u64 = 65_536;
/// Members that are emptied at once. Chosen: what many drives do in the time of one, within bounds.
const EMPTIED_AT_ONCE_MAX: usize = 16;
/// Zeroes written by one call where there is no such command. Chosen: a megabyte keeps a link busy.
const ZERO_BYTES: u32 = 1 << 20;

/// A namespace that is to become a member.
pub struct NewMember<N> {
    /// The namespace itself.
    pub namespace: N,
    /// Its subsystem's NQN.
    pub nqn: String,
    /// Its namespace id.
    pub nsid: u32,
    /// Where it is reached, `host:port`.
    pub addresses: Vec<String>,
    /// Its share of the keys; `None`: in proportion to its size, 100 on average.
    pub weight: Option<u32>,
    /// What it fails together with; empty machine and drive labels become its own id.
    pub domain: Domain,
}

impl<N> NewMember<N> {
    /// What to call it in messages.
    pub fn name(&self) -> String {
        format!("{} (namespace {} of {})", self.addresses.first().map_or("?", String::as_str), self.nsid, self.nqn)
    }
}

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

/// Writes the map's body; stable when done, with all that was written before.
pub(crate) async fn write_body<N: Namespace>(
    namespace: &N,
    body: &[u8],
    accepted: Ballot,
) -> Result<(), device::Error> {
    let leaves: Vec<u8> = leaves(body, accepted, unit_bytes(namespace)).flatten().collect();
    write(namespace, MAP_OFFSETS[0], &leaves).await?;
    namespace.flush().await
}

/// A life that no member had before.
pub(crate) fn random_incarnation() -> u64 {
    engine::task::random_u64().max(1)
}

pub(crate) fn superblock(map: &Map, member: &Member, body: &[u8], accepted: Ballot) -> Superblock {
    Superblock {
        pool: map.pool,
        member: member.id,
        incarnation: member.incarnation,
        generation: GENERATION_FIRST,
        epoch: map.epoch,
        promised: accepted,
        accepted,
        page_size: map.page_size,
        map_offset: MAP_OFFSETS[0],
        map_length: body.len() as u32,
        map_checksum: crc64(body),
    }
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

/// Bytes that a member has at least.
pub fn member_bytes_min(page_size: u32) -> u64 {
    TABLE_OFFSET + u64::from(TABLE_PAGES_MIN) * u64::from(page_size)
}

/// How a namespace would be divided, or why it cannot be a member.
pub(crate) fn fit(info: &NamespaceInfo, page_size: u32, table_share: u32) -> Result<Geometry, String> {
    page_fits(info, page_size)?;
    if info.nguid == [0; 16] {
        return Err("it has no globally unique id (NGUID)".into());
    }
    Geometry::divide(info.bytes(), page_size, table_share)
        .ok_or_else(|| format!("it has {} bytes, at least {} are needed", info.bytes(), member_bytes_min(page_size)))
}

/// Whether pages of this size can be read and replaced atomically on a namespace.
pub(crate) fn page_fits(info: &NamespaceInfo, page_size: u32) -> Result<(), String> {
    if !info.block_size.is_power_of_two() || info.block_size > page_size {
        return Err(format!("its blocks have {} bytes, more than a page of {page_size}", info.block_size));
    }
    let blocks = page_size / info.block_size;
    if info.compare_and_write_blocks_max < blocks {
        let bytes = u64::from(info.compare_and_write_blocks_max) * u64::from(info.block_size);
        return Err(format!(
            "its atomic compare-and-write takes {bytes} bytes, a page of {page_size} bytes needs it whole"
        ));
    }
    if info.atomic_blocks < blocks {
        return Err(format!(
            "its reads and writes are atomic up to {} blocks, a page has {blocks}",
            info.atomic_blocks
        ));
    }
    Ok(())
}

/// Refuses a namespace that somebody uses; for `pool`, one that belongs to it is not in use. Gives copy A as it stands.
pub(crate) async fn refuse_if_used<N: Namespace>(
    member: &NewMember<N>,
    pool: Option<uuid::Uuid>,
) -> Result<Vec<u8>, Error> {
    let in_use = |found: String| Err(Error::InUse { member: member.name(), found });
    let mut images = [Vec::new(), Vec::new()];
    // Copy A last: it is what is claimed first.
    for copy in [1, 0] {
        images[copy] = image(member, copy).await?;
    }
    let mut belongs = false;
    for (copy, image) in images.iter().enumerate() {
        match Superblock::decode(image, MemberId(member.namespace.info().nguid)) {
            Ok(found) if pool == Some(found.pool) => belongs = true,
            Ok(found) => return in_use(format!("a member of pool {}", found.pool)),
            Err(SuperblockError::Blank) => {}
            // Copy B's place is ordinary data of whoever used the medium before; a label or file system shows at its start.
            Err(SuperblockError::Foreign(_)) if copy == 1 => {}
            Err(_) if copy == 1 && belongs => {}
            Err(found) => return in_use(found.to_string()),
        }
    }
    let [first, _] = images;
    Ok(first)
}

/// A copy of the superblock as it stands, whole blocks of it.
pub(crate) async fn image<N: Namespace>(member: &NewMember<N>, copy: usize) -> Result<Vec<u8>, Error> {
    let bytes = read(&member.namespace, SUPERBLOCK_OFFSETS[copy], unit_bytes(&member.namespace)).await;
    bytes.map_err(|source| device_error(member.name(), source))
}

/// Writes `bytes`, padded with zeroes to whole blocks, at byte `offset`; stable when done.
pub(crate) async fn write<N: Namespace>(namespace: &N, offset: u64, bytes: &[u8]) -> Result<(), device::Error> {
    let info = namespace.info();
    let block = info.block_size as usize;
    let chunk = (info.transfer_blocks_max as usize).clamp(1, 64) * block;
    for (index, part) in bytes.chunks(chunk).enumerate() {
        let mut buf = Buf::zeroed(part.len().next_multiple_of(block));
        buf[..part.len()].copy_from_slice(part);
        let lba = Lba((offset + (index * chunk) as u64) / block as u64);
        namespace.write(lba, buf.freeze(), Durability::Stable).await?;
    }
    Ok(())
}

/// Writes zeroes as data, where there is no command for it.
async fn write_zeroes<N: Namespace>(namespace: &N, mut lba: u64, blocks: u64) -> Result<(), device::Error> {
    let info = namespace.info();
    let most = (ZERO_BYTES / info.block_size).clamp(1, info.transfer_blocks_max.max(1));
    let zeroes = Buf::zeroed((most * info.block_size) as usize).freeze();
    let end = lba + blocks;
    while lba < end {
        let count = (end - lba).min(u64::from(most));
        let part = zeroes.slice(..(count * u64::from(info.block_size)) as usize);
        namespace.write(Lba(lba), part, Durability::Cached).await?;
        lba += count;
    }
    Ok(())
}

/// Makes bytes `from..to` read as zeroes; stable after the next flush.
pub(crate) async fn zero<N: Namespace>(namespace: &N, from: u64, to: u64) -> Result<(), device::Error> {
    let block_size = u64::from(namespace.info().block_size);
    let (mut lba, end) = (from / block_size, to / block_size);
    while lba < end {
        let blocks = (end - lba).min(ZERO_BLOCKS_MAX);
        match namespace.write_zeroes(Lba(lba), blocks, Durability::Cached).await {
            Err(device::Error::Unsupported(_)) => {
                write_zeroes(namespace, lba, blocks).await?;
            }
            result => result?,
        }
        lba += blocks;
    }
    Ok(())
}

fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&engine::task::random_u64().to_le_bytes());
    bytes[8..].copy_from_slice(&engine::task::random_u64().to_le_bytes());
    bytes
}
