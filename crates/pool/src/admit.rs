//! Making a namespace ready to join a pool: formatted, and carrying the pool's map, in which it does not stand yet.
//!
//! Until a map names it, nobody asks it anything; a crash leaves a namespace that may be admitted anew.

use device::Namespace;

use crate::error::Error;
use crate::geometry::GROUP_PAGES;
use crate::map::{Map, Member, MemberId, WEIGHT_MAX};
use crate::new_member::{GENERATION_FIRST, NewMember, fit, image, random_incarnation, refuse_if_used};
use crate::plan::complete;
use crate::renew::begin;

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
    refuse_member(new, map)?;
    let share = table_share.unwrap_or_else(|| share_of(map));
    let unfit = |reason| Error::Unfit { member: new.name(), reason };
    let geometry = fit(&info, map.page_size, share).map_err(unfit)?;
    if !force {
        // By the superblock alone: who was stopped in the middle of admitting it has written no map yet.
        refuse_if_used(new, Some(map.pool)).await?;
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
        left_behind: false,
        written_off: false,
        renewed: false,
    })
}

/// Formats a [`candidate`] for the pool of `map`: whatever it holds is gone. Not if somebody else has made it a member since it
/// was found fit, or is doing so. The namespace is claimed by compare-and-write first, and each step looks whether the claim still
/// stands ([`crate::renew`]); and before any page is touched `newest` is asked for the newest map, in which it must not stand: one
/// that names it later names a life that this claim has ended before the member could take anything.
///
/// # Errors
/// [`Error::IsMember`] of this pool by now; [`Error::InUse`]: of another, and not to be taken by force.
pub async fn admit<N: Namespace>(
    new: &NewMember<N>,
    map: &Map,
    member: &Member,
    force: bool,
    newest: impl AsyncFn() -> Result<Map, Error>,
) -> Result<(), Error> {
    // One of this pool was let go, or never became a member: the newest map tells, not one that it may have been asked to accept.
    let first = if force { image(new, 0).await? } else { refuse_if_used(new, Some(map.pool)).await? };
    let is_free = async || refuse_member(new, &newest().await?);
    begin(&new.namespace, &new.name(), map, member, &first, is_free).await.map(|_generation| ())
}

/// Refuses who is a member of the pool.
fn refuse_member<N: Namespace>(new: &NewMember<N>, map: &Map) -> Result<(), Error> {
    let id = MemberId(new.namespace.info().nguid);
    match map.index_of(id) {
        Some(index) => Err(Error::IsMember { member: new.name(), id, index }),
        None => Ok(()),
    }
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
