//! A namespace that is to become a member: whether it can be a member, whether somebody uses it, and what the superblock of its
//! first life says.

use device::{Namespace, NamespaceInfo};

use crate::domain::Domain;
use crate::error::Error;
use crate::geometry::{Geometry, MAP_OFFSETS, SUPERBLOCK_OFFSETS, member_bytes_min, page_fits};
use crate::map::{Map, Member, MemberId};
use crate::slot::{read, unit_bytes};
use crate::superblock::{Ballot, Superblock, SuperblockError, crc64};

/// Generation of a member's first superblock.
pub(crate) const GENERATION_FIRST: u64 = 1;

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
    /// Reached at these addresses (`host:port`), without a word on its weight and what it fails together with.
    pub fn at(namespace: N, nqn: impl Into<String>, nsid: u32, addresses: Vec<String>) -> NewMember<N> {
        NewMember { namespace, nqn: nqn.into(), nsid, addresses, weight: None, domain: Domain::default() }
    }

    /// What to call it in messages.
    pub fn name(&self) -> String {
        format!("{} (namespace {} of {})", self.addresses.first().map_or("?", String::as_str), self.nsid, self.nqn)
    }
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

/// How a namespace would be divided, or why it cannot be a member.
pub(crate) fn fit(info: &NamespaceInfo, page_size: u32, table_share: u32) -> Result<Geometry, String> {
    page_fits(info, page_size)?;
    if info.nguid == [0; 16] {
        return Err("it has no globally unique id (NGUID)".into());
    }
    Geometry::divide(info.bytes(), page_size, table_share)
        .ok_or_else(|| format!("it has {} bytes, at least {} are needed", info.bytes(), member_bytes_min(page_size)))
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
    bytes.map_err(|source| Error::device(member.name(), source))
}
