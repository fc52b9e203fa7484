//! A new life for a member that has lost what it held, in its own place: rolled back, emptied, or given up as lost.
//!
//! It is formatted, under an incarnation that no map names, and then [`crate::Request::Renew`] makes it a member anew: the map
//! is joint, every key of its arcs comes from its other homes, and its old life counts as failed throughout. All that makes
//! a change of members safe (seals, joint quorums) so makes this safe, without a word of what the old life may have promised.
//!
//! **It may carry a later map than is in force**: one that it was asked to accept, before it was rolled back or as the member that
//! begins anew by it, and whose proposer was stopped. Whether that came into force, or may yet, it can't tell itself. So the map is
//! settled once the member has been read, by a ballot of voters of which it counts as one only if it is in its life and above
//! its mark in all maps that were met ([`crate::Proposer::settle`]). If a quorum has accepted the later map without it, one of
//! these shows it. If none has, none ever will: a quorum had promised its ballot before it was handed out, so the ballot
//! that settles is higher, and who has promised that accepts the other no more. And if it has its vote by the later map itself
//! that one is brought into force, if nothing was agreed on since: then nothing is lost. The claim compares with the very image
//! that was read before, so that nothing was promised or accepted here meanwhile.
//!
//! A namespace that is to join begins its life in the same way ([`crate::admit`]).
//!
//! Two that do so at once: both copies of the superblock are claimed by compare-and-write, copy A from the image in which the
//! member was seen to have no vote, and named whole by others from the claim; and who has claimed looks before each write whether
//! the claim still stands. Who loses has at most one write under way that may yet overwrite pages of a member in use: with pages
//! of a life that is none, which is noticed and repaired, or with another body of the map, which costs it its vote. No page is
//! touched before both are claimed: nothing is left then of the life before that a late step could go on from, or that would
//! count if copy A were lost.

use device::Namespace;

use crate::blank::begin_life;
use crate::change::Epoch;
use crate::error::Error;
use crate::geometry::SUPERBLOCK_OFFSETS;
use crate::lost::SEIZED_EPOCHS;
use crate::map::{Map, Member, MemberId};
use crate::new_member::{random_incarnation, superblock};
use crate::open::{inspect, still_fits};
use crate::plan::Request;
use crate::slot::{read, swap, unit_bytes, write_body};
use crate::superblock::{Ballot, Superblock, SuperblockError};

/// Late steps of the life before that copy B is claimed in spite of. Chosen: no host has so many under way.
const CLAIMS_MAX: u32 = 16;
/// Looks at a member that is changed meanwhile. Chosen: what it carries has it promise once, and the rest is for those who propose
/// something else at the same time.
const LOOKS_MAX: u32 = 4;

/// Begins a member anew that has no vote; what stands for it in the next map. `None`: there is nothing to begin, it has its vote by
/// the map in force, or is no member any more. `settle` has that agreed on from the moment it is called, also by those that the
/// map which the member carries names ([`crate::Proposer::settle`]). `label` names it in errors.
pub async fn renew<N: Namespace>(
    namespace: &N,
    label: &str,
    settle: impl AsyncFn(Option<&Map>) -> Result<Map, Error>,
) -> Result<Option<Member>, Error> {
    let bytes = namespace.info().bytes();
    if bytes < SUPERBLOCK_OFFSETS[1] + unit_bytes(namespace) as u64 {
        return Err(Error::Unfit { member: label.to_owned(), reason: format!("it has shrunk to {bytes} bytes") });
    }
    let carried = async || inspect(namespace, label).await.ok().map(|report| report.map);
    let mut met = carried().await;
    for _ in 0..LOOKS_MAX {
        let before = images(namespace, label).await?;
        let map = settle(met.as_ref()).await?;
        let Some(index) = map.index_of(MemberId(namespace.info().nguid)) else { return Ok(None) };
        let member = &map.members[index];
        still_fits(&map, member, namespace).map_err(|reason| Error::Unfit { member: label.to_owned(), reason })?;
        let images = images(namespace, label).await?;
        let carries = carried().await;
        let has_gone_on = |carried: &&Map| carried.pool == map.pool && carried.seized > map.seized;
        if let Some(carried) = carries.as_ref().filter(has_gone_on) {
            return Err(gone_on(label, carried.epoch));
        }
        let Some(last) = last_generation(&map, member, label, &images)? else { return Ok(None) };
        // It has promised, where it had its vote by what it carried, or somebody else has proposed. One that was given up is handed
        // every map that is agreed on.
        if images != before && carries.as_ref() != Some(&map) {
            met = Some(map);
            continue;
        }
        let member = Member { incarnation: random_incarnation(), mark: last + 1, lost: false, ..member.clone() };
        // Nothing is formatted for a change that can't be.
        let planned = map.begin(&Request::Renew(Box::new(member.clone())), 0);
        planned.map_err(|source| Error::Plan { member: label.to_owned(), source })?;
        let whole = begin(namespace, label, &map, &member, &images[0], async || Ok(())).await?;
        return Ok(Some(Member { mark: whole, ..member }));
    }
    Err(taken(label))
}

async fn images<N: Namespace>(namespace: &N, label: &str) -> Result<Vec<Vec<u8>>, Error> {
    let mut images = Vec::with_capacity(SUPERBLOCK_OFFSETS.len());
    for offset in SUPERBLOCK_OFFSETS {
        let image = read(namespace, offset, unit_bytes(namespace)).await;
        images.push(image.map_err(|source| Error::device(label, source))?);
    }
    Ok(images)
}

/// Ballots of those who know the map before say nothing of theirs.
fn gone_on(label: &str, epoch: Epoch) -> Error {
    let found = format!("a member that has gone on, in epoch {epoch}, without the voters asked here");
    Error::InUse { member: label.to_owned(), found }
}

fn taken(label: &str) -> Error {
    let reason = "somebody else has begun it anew at the same time, or written it late; try again".into();
    Error::Unfit { member: label.to_owned(), reason }
}

/// Begins the life of `member`, which need not stand in `map`, on a namespace whose copy A is `first`, if `may_begin` says so,
/// before that is claimed and once it is; else all is as before. The generation that it begins with: the one after `member.mark`.
pub(crate) async fn begin<N: Namespace>(
    namespace: &N,
    label: &str,
    map: &Map,
    member: &Member,
    first: &[u8],
    may_begin: impl AsyncFn() -> Result<(), Error>,
) -> Result<u64, Error> {
    // First: whoever is stopped between a claim and the next look leaves a member that was in use without a vote.
    may_begin().await?;
    let device = |source| Error::device(label, source);
    let body = map.encode().map_err(|source| Error::Map { member: label.to_owned(), source })?;
    // The lowest ballots there are: what they carry counts for nothing beside what any voter says.
    let accepted = Ballot::default();
    let claim = Superblock { generation: member.mark, ..superblock(map, member, &body, accepted) };
    let unit = unit_bytes(namespace);
    let claimed = claim.image(unit);
    if !swap(namespace, SUPERBLOCK_OFFSETS[0], first, &claimed).await.map_err(device)? {
        return Err(taken(label));
    }
    if let Err(refused) = may_begin().await {
        // Whoever has claimed it meanwhile keeps it.
        swap(namespace, SUPERBLOCK_OFFSETS[0], &claimed, first).await.map_err(device)?;
        return Err(refused);
    }
    if !claim_second(namespace, &claimed).await.map_err(device)? {
        return Err(taken(label));
    }
    let is_ours = async |_done| Ok(read(namespace, SUPERBLOCK_OFFSETS[0], unit).await? == claimed);
    let geometry = map.geometry_of(member);
    let emptied = begin_life(namespace, geometry, claim.incarnation, is_ours).await.map_err(device)?;
    if !emptied || !is_ours(1.0).await.map_err(device)? {
        return Err(taken(label));
    }
    write_body(namespace, &body, accepted).await.map_err(device)?;
    let whole = Superblock { generation: claim.generation + 1, ..claim };
    for copy in [1, 0] {
        if !swap(namespace, SUPERBLOCK_OFFSETS[copy], &claimed, &whole.image(unit)).await.map_err(device)? {
            return Err(taken(label));
        }
    }
    Ok(whole.generation)
}

/// Claims copy B, whatever stands there, as long as copy A is claimed: late steps of the life before may come in between.
pub(crate) async fn claim_second<N: Namespace>(namespace: &N, claimed: &[u8]) -> Result<bool, device::Error> {
    for _ in 0..CLAIMS_MAX {
        let found = read(namespace, SUPERBLOCK_OFFSETS[1], claimed.len()).await?;
        if read(namespace, SUPERBLOCK_OFFSETS[0], claimed.len()).await? != claimed {
            return Ok(false);
        }
        if swap(namespace, SUPERBLOCK_OFFSETS[1], &found, claimed).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The highest generation that is known of a member without a vote; `None`: it has one. Refused if it is somebody else's.
fn last_generation(map: &Map, member: &Member, label: &str, images: &[Vec<u8>]) -> Result<Option<u64>, Error> {
    let in_use = |found: String| Err(Error::InUse { member: label.to_owned(), found });
    let mut last = member.mark;
    let mut good = [None, None];
    for (copy, image) in images.iter().enumerate() {
        match Superblock::decode(image, MemberId(member.id.0)) {
            Ok(found) if found.pool != map.pool => return in_use(format!("a member of pool {}", found.pool)),
            // The map that would tell may be damaged. Who knows the one before has made fewer epochs since than half of these.
            Ok(found) if found.epoch >= map.epoch + SEIZED_EPOCHS / 2 => return Err(gone_on(label, found.epoch)),
            Ok(found) => {
                last = last.max(found.generation);
                good[copy] = Some(found);
            }
            Err(source @ SuperblockError::Newer { .. }) => {
                return Err(Error::Superblock { member: label.to_owned(), source });
            }
            // What stands at its start says whose it is; the other copy may be anything.
            Err(found) if copy == 0 && found.is_of_others() => {
                return Err(Error::Unfit { member: label.to_owned(), reason: format!("{found}{}", found.way_out()) });
            }
            Err(_) => {}
        }
    }
    let [first, second] = good;
    let votes = |found: &Superblock| found.is_in_life((member.incarnation, member.mark)).is_ok();
    let has_vote = Superblock::better(first, second).is_some_and(|found| !member.lost && votes(&found));
    Ok((!has_vote).then_some(last))
}

#[cfg(test)]
#[path = "renew_tests.rs"]
mod tests;
