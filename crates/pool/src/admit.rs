//! Making a namespace ready to join a pool: formatted, and carrying the pool's map, in which it does not stand yet.
//!
//! Until a map names it, nobody asks it anything; a crash leaves a namespace that may be admitted anew.

use device::Namespace;

use crate::blank::begin_life;
use crate::create::{
    GENERATION_FIRST, NewMember, fit, random_incarnation, refuse_if_used, superblock, wipe, write_body,
    write_superblocks,
};
use crate::error::Error;
use crate::geometry::{GROUP_PAGES, Geometry};
use crate::map::{Map, Member, MemberId, WEIGHT_MAX};
use crate::open::{device_error, inspect};
use crate::plan::complete;
use crate::superblock::Ballot;

/// What stands for a namespace in the next map, if it can be a member. Nothing is written. `table_share`: as at creation, by
/// default that of the pool's first member. A namespace that is in use is refused unless `force`; one that this pool has let
/// go is not in use.
pub async fn candidate<N: Namespace>(
    new: &NewMember<N>,
    map: &Map,
    table_share: Option<u32>,
    force: bool,
) -> Result<Member, Error> {
    let info = new.namespace.info();
    let id = MemberId(info.nguid);
    if map.index_of(id).is_some() {
        return Err(Error::InUse { member: new.name(), found: "it is a member of this pool already".into() });
    }
    let share = table_share.unwrap_or_else(|| share_of(map));
    let unfit = |reason| Error::Unfit { member: new.name(), reason };
    let geometry = fit(&info, map.page_size, share).map_err(unfit)?;
    let ours = inspect(&new.namespace, &new.name()).await.is_ok_and(|report| report.superblock.pool == map.pool);
    if !force && !ours {
        refuse_if_used(new).await?;
    }
    Ok(Member {
        id,
        nqn: new.nqn.clone(),
        nsid: new.nsid,
        addresses: new.addresses.clone(),
        size: info.bytes(),
        block_size: info.block_size,
        weight: new.weight.unwrap_or_else(|| weight_by_size(map, info.bytes())),
        voter: false,
        points: None,
        leaving: false,
        incarnation: random_incarnation(),
        mark: GENERATION_FIRST,
        table_pages: geometry.table_pages,
        heap_groups: geometry.heap_groups,
        domain: complete(&new.domain, id),
        old: None,
        lost: false,
        renewed: false,
    })
}

/// Formats a [`candidate`] for the pool of `map`: whatever it holds is gone.
pub async fn admit<N: Namespace>(new: &NewMember<N>, map: &Map, member: &Member) -> Result<(), Error> {
    let geometry =
        Geometry { page_size: map.page_size, table_pages: member.table_pages, heap_groups: member.heap_groups };
    let body = map.encode().map_err(|source| Error::Map { member: new.name(), source })?;
    // The lowest ballot there is: what it carries counts for nothing beside what any voter says.
    let accepted = Ballot::default();
    let device = |source| device_error(new.name(), source);
    wipe(new).await?;
    begin_life(&new.namespace, geometry, member.incarnation, async || Ok(true)).await.map_err(device)?;
    write_body(&new.namespace, &body, accepted).await.map_err(device)?;
    write_superblocks(new, &superblock(map, member, &body, accepted)).await
}

/// A weight that gives it the same share of keys per byte as the others have.
fn weight_by_size(map: &Map, bytes: u64) -> u32 {
    let holding = map.members.iter().filter(|member| member.weight > 0);
    let (weights, sizes) = holding.fold((0u128, 0u128), |(weights, sizes), member| {
        (weights + u128::from(member.weight), sizes + u128::from(member.size))
    });
    let weight = (u128::from(bytes) * weights + sizes / 2) / sizes.max(1);
    weight.clamp(1, u128::from(WEIGHT_MAX)) as u32
}

/// Thousandths of the first member's pages that are its table.
fn share_of(map: &Map) -> u32 {
    let member = &map.members[0];
    let (table, heap) = (u64::from(member.table_pages), u64::from(member.heap_groups) * u64::from(GROUP_PAGES));
    // Rounded down: a page more for the table could cost the heap a whole group.
    (table * 1000 / (table + heap)).clamp(1, 1000) as u32
}
