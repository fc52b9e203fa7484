//! A new life for a member that has lost what it held, in its own place: rolled back, emptied, or given up as lost.
//!
//! It is formatted, under an incarnation that no map names, and then [`crate::Request::Renew`] makes it a member anew: the map
//! is joint, every key of its arcs comes from its other homes, and its old life counts as failed throughout. All that makes
//! a change of members safe (seals, joint quorums) so makes this safe, without a word of what the old life may have promised.
//!
//! Two that do so at once: the first block is claimed by compare-and-write from the image in which the member was seen to
//! have no vote, and named whole by another from the claim. Who loses either has not touched a member in use.

use device::Namespace;

use crate::create::{random_incarnation, write, zero};
use crate::error::Error;
use crate::geometry::{MAP_OFFSETS, SUPERBLOCK_OFFSETS, TABLE_OFFSET};
use crate::map::{Map, Member, MemberId};
use crate::open::{device_error, is_in_its_life, still_fits};
use crate::slot::{leaves, read, swap, unit_bytes};
use crate::superblock::{Ballot, SUPERBLOCK_BYTES, Superblock, SuperblockError, crc64};

/// Formats member `index` of `map`, which must have no vote; what stands for it in the next map. `label` names it in errors.
pub async fn renew<N: Namespace>(namespace: &N, label: &str, map: &Map, index: usize) -> Result<Member, Error> {
    let device = |source| device_error(label.to_owned(), source);
    let unfit = |reason: String| Error::Unfit { member: label.to_owned(), reason };
    let taken = || unfit("somebody else has begun it anew at the same time".into());
    let member = &map.members[index];
    still_fits(map, member, namespace).map_err(unfit)?;
    let unit = unit_bytes(namespace);
    let mut images = Vec::with_capacity(SUPERBLOCK_OFFSETS.len());
    for offset in SUPERBLOCK_OFFSETS {
        images.push(read(namespace, offset, unit).await.map_err(device)?);
    }
    let last = last_generation(map, member, label, &images)?;
    let body = map.encode().map_err(|source| Error::Map { member: label.to_owned(), source })?;
    let claim = Superblock {
        pool: map.pool,
        member: member.id,
        incarnation: random_incarnation(),
        generation: last + 1,
        epoch: map.epoch,
        promised: Ballot::default(),
        accepted: Ballot::default(),
        page_size: map.page_size,
        map_offset: MAP_OFFSETS[0],
        map_length: body.len() as u32,
        map_checksum: crc64(&body),
    };
    let image = |superblock: &Superblock| {
        let mut image = superblock.encode().to_vec();
        image.resize(unit.max(SUPERBLOCK_BYTES), 0);
        image
    };
    let claimed = image(&claim);
    if !swap(namespace, SUPERBLOCK_OFFSETS[0], &images[0], &claimed).await.map_err(device)? {
        return Err(taken());
    }
    zero(namespace, TABLE_OFFSET, map.geometry(index).bytes()).await.map_err(device)?;
    let leaves: Vec<u8> = leaves(&body, claim.accepted, unit).flatten().collect();
    write(namespace, MAP_OFFSETS[0], &leaves).await.map_err(device)?;
    namespace.flush().await.map_err(device)?;
    let whole = Superblock { generation: claim.generation + 1, ..claim };
    for (copy, from) in [(1, &images[1]), (0, &claimed)] {
        if !swap(namespace, SUPERBLOCK_OFFSETS[copy], from, &image(&whole)).await.map_err(device)? {
            return Err(taken());
        }
    }
    Ok(Member { incarnation: whole.incarnation, mark: whole.generation, lost: false, ..member.clone() })
}

/// The highest generation that is known of a member without a vote; one that has a vote, or is somebody else's, is refused.
fn last_generation(map: &Map, member: &Member, label: &str, images: &[Vec<u8>]) -> Result<u64, Error> {
    let in_use = |found: String| Err(Error::InUse { member: label.to_owned(), found });
    let mut last = member.mark;
    let mut votes = false;
    for (copy, image) in images.iter().enumerate() {
        match Superblock::decode(image, MemberId(member.id.0)) {
            Ok(found) if found.pool != map.pool => return in_use(format!("a member of pool {}", found.pool)),
            Ok(found) if found.epoch > map.epoch => {
                return in_use(format!("a member of a later map, of epoch {}", found.epoch));
            }
            Ok(found) => {
                last = last.max(found.generation);
                votes |= !member.lost && is_in_its_life((member.incarnation, member.mark), &found).is_ok();
            }
            Err(source @ SuperblockError::Newer { .. }) => {
                return Err(Error::Superblock { member: label.to_owned(), source });
            }
            // What stands at its start says whose it is; the other copy may be anything.
            Err(found @ (SuperblockError::Foreign(_) | SuperblockError::OtherMember { .. })) if copy == 0 => {
                return in_use(found.to_string());
            }
            Err(_) => {}
        }
    }
    match votes {
        true => in_use("a member with a vote: nothing is wrong with its superblock".into()),
        false => Ok(last),
    }
}
