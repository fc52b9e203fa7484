//! One member as an acceptor of maps: what it has promised and accepted stands in its superblock, and every step is a
//! compare-and-write from the image that was read.
//!
//! - *Prepare* writes the promise. *Accept* writes the body into the slot that is not in force, leaf by leaf, then the
//!   superblock that names it, from exactly the image in which the promise stands: whoever was promised more meanwhile makes
//!   it fail.
//! - Leaves are replaced only if they hold what they held **before** the superblock was last seen with our promise. A leaf
//!   that a later promise's owner has written since is none of those: without that order its map, in force by now, would be
//!   overwritten by us.
//! - Both copies of the superblock are stable before a step counts: if copy A is lost, copy B has all that was counted.
//!   Copy B too is replaced by compare-and-write, only by a newer generation: a late write can't bring an old one back. Where
//!   it is newer already, the step counts only if it shows it: copy A may have been lost, and mended without it, meanwhile.
//! - A lost copy A, or one that has fallen back, is mended from copy B, which is first replaced by itself under a generation
//!   that is later than any the lost copy can have had ([`MEND_STRIDE`]): what was on its way to it from the lost copy can't
//!   land any more, and be taken for what is in force, nor count. Copy B is read before copy A, which else would seem to have
//!   fallen back whenever somebody was faster.
//! - A generation is raised for a mark ([`MARK_STRIDE`]) in the same order, copy B first: were copy A ahead by so much when it
//!   is lost, no stride of a mend would do.
//!
//! `kv/model` (`superblock`) searches these rules and what happens without each.

use device::Namespace;

use crate::geometry::{MAP_OFFSETS, SUPERBLOCK_OFFSETS};
use crate::lost::SEIZED_EPOCHS;
use crate::map::{Map, MemberId};
use crate::open::inspect;
use crate::slot::{leaves, leaves_bytes, read, read_body, swap, unit_bytes};
use crate::superblock::{Ballot, Superblock, SuperblockError, crc64};

/// Times a step is begun again because somebody else was faster. Guessed: with random pauses between attempts a handful is
/// already rare.
const MISSES_MAX: u32 = 16;
/// Generations by which copy B is raised before a lost copy A is mended from it. Chosen: more than there are steps at any time
/// that have reached copy A and not copy B.
const MEND_STRIDE: u64 = 1 << 16;
/// Generations by which a member is raised when a mark of it is taken. Chosen: more than any number of steps by those who don't
/// know of the mark, and of mends, can make up for; and less than would ever come to the end of 64 bits.
pub(crate) const MARK_STRIDE: u64 = 1 << 32;

/// What a step writes, by which copy B shows that it has it.
#[derive(Clone, Copy)]
enum Step {
    Promise,
    Accept,
}

impl Step {
    fn is_in(self, other: &Superblock, to: &Superblock) -> bool {
        match self {
            Step::Promise => other.promised == to.promised,
            Step::Accept => other.accepted == to.accepted,
        }
    }
}

/// Why a member did not do a step.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// A higher ballot was promised.
    #[error("it has promised ballot {}.{:016x}", .0.round, .0.host)]
    Promised(Ballot),
    /// Others were faster, again and again.
    #[error("others change it at the same time")]
    Contended,
    /// It is no acceptor of this pool, or no longer.
    #[error("{0}")]
    NoVote(String),
    /// It carries the map by which others have gone on without the voters ([`Map::seized`]) since the one that it was handed.
    #[error("it has gone on, in epoch {}, without the voters that this map names", .0.epoch)]
    Seized(Box<Map>),
    /// The namespace failed.
    #[error(transparent)]
    Device(#[from] device::Error),
}

impl From<SuperblockError> for Refusal {
    fn from(error: SuperblockError) -> Refusal {
        Refusal::NoVote(format!("{error}{}", error.way_out()))
    }
}

/// A member that is asked.
pub(crate) struct Acceptor<'a, N> {
    pub(crate) namespace: &'a N,
    pub(crate) pool: uuid::Uuid,
    /// The life it must be in, and the smallest generation that counts; none: not known yet.
    pub(crate) life: Option<(u64, u64)>,
}

/// What stands in copy A after a promise, and what had been accepted before.
pub(crate) struct Promise {
    image: Vec<u8>,
    pub(crate) superblock: Superblock,
    /// The map the superblock names, if it is whole.
    pub(crate) map: Option<Map>,
}

impl Promise {
    /// Refuses if `next` comes from before others have gone on without the voters, as this member knows.
    pub(crate) fn follows(&self, next: &Map) -> Result<(), Refusal> {
        match &self.map {
            Some(map) if map.seized > next.seized => Err(Refusal::Seized(Box::new(map.clone()))),
            None if self.superblock.epoch >= next.epoch + SEIZED_EPOCHS => Err(Refusal::NoVote(format!(
                "its map is damaged, and of epoch {}, which others have gone on to without the voters that are asked here",
                self.superblock.epoch
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses if `member`, who shows this, carries a later map than `next` without a vote in it. Such a map was in force when it
    /// was handed to that member, so the voters that are about to agree on `next` were rolled back: nothing else may know of it.
    pub(crate) fn is_no_later(&self, member: MemberId, next: &Map) -> Result<(), Refusal> {
        let votes = |map: &Map| map.voter_indices().any(|index| map.members[index].id == member);
        let is_later = |map: &&Map| map.seized == next.seized && map.version() > next.version();
        match self.map.as_ref().filter(is_later).filter(|map| !votes(map)) {
            None => Ok(()),
            Some(map) => Err(Refusal::NoVote(format!(
                "it carries the map of epoch {}.{}, which was in force, and the voters know of none later than {}.{}: they were \
                 rolled back",
                map.epoch, map.revision, next.epoch, next.revision
            ))),
        }
    }
}

impl<N: Namespace> Acceptor<'_, N> {
    /// The refusal of a member that promises nothing, if it has gone on without the voters of `next`.
    pub(crate) async fn gone_on_since(&self, next: &Map) -> Option<Refusal> {
        let map = inspect(self.namespace, "").await.ok()?.map;
        (map.pool == self.pool && map.seized > next.seized).then(|| Refusal::Seized(Box::new(map)))
    }

    /// Reads the superblock: the images of both copies and what copy A says. A copy A that is damaged, or older than copy B,
    /// is first replaced by what that says.
    async fn look(&self) -> Result<([Vec<u8>; 2], Superblock), Refusal> {
        for _ in 0..MISSES_MAX {
            // Copy A is written first: read last it is older than copy B only if it has fallen back, or B was raised.
            let second = self.copy(1).await?;
            let first = self.copy(0).await?;
            let member = MemberId(self.namespace.info().nguid);
            let decoded = Superblock::decode(&first, member);
            let other = Superblock::decode(&second, member);
            for copy in [&decoded, &other] {
                if let Err(error @ SuperblockError::Newer { .. }) = copy {
                    return Err(error.clone().into());
                }
            }
            // A disk label, say: what copy B has kept is no reason to destroy what somebody else has written since.
            if let Err(error) = &decoded
                && error.is_of_others()
            {
                if self.copy(0).await? != first {
                    continue;
                }
                return Err(error.clone().into());
            }
            match (decoded, other) {
                (Ok(found), other) if other.as_ref().map_or(true, |other| !other.is_newer_than(&found)) => {
                    self.check(&found)?;
                    return Ok(([first, second], found));
                }
                (_, Ok(other)) => {
                    self.check(&other)?;
                    self.raise_from(&[first, second], other, MEND_STRIDE).await?;
                }
                (Err(error), Err(_)) => return Err(error.into()),
                // The first arm has taken it: a good copy A with no good copy B.
                (Ok(_), Err(error)) => return Err(error.into()),
            }
        }
        Err(Refusal::Contended)
    }

    fn check(&self, found: &Superblock) -> Result<(), Refusal> {
        let refuse = |reason: String| Err(Refusal::NoVote(reason));
        if found.pool != self.pool {
            return refuse(format!("it belongs to pool {}", found.pool));
        }
        Ok(self.life.map_or(Ok(()), |life| found.is_in_life(life))?)
    }

    async fn copy(&self, copy: usize) -> Result<Vec<u8>, Refusal> {
        match read(self.namespace, SUPERBLOCK_OFFSETS[copy], unit_bytes(self.namespace)).await {
            // What can't be read can't be compared with either, so no step can be done here. Nor may copy B be raised in vain to
            // mend it: it would come by as many generations as its mark is ahead.
            Err(device::Error::ReadFault(text)) if copy == 0 => Err(Refusal::NoVote(format!(
                "the first copy of its superblock can't be read ({text}): if that lasts, replace it (`yagura pool replace`)"
            ))),
            // The step fails when it is to be written, but what was done before is told by copy A.
            Err(device::Error::ReadFault(_)) => Ok(vec![0; unit_bytes(self.namespace)]),
            result => Ok(result?),
        }
    }

    fn image(&self, superblock: &Superblock) -> Vec<u8> {
        superblock.image(unit_bytes(self.namespace))
    }

    /// Replaces the superblock `from` by `to`, in both copies. `false`: it was no longer `from`.
    async fn replace(&self, from: &[u8], to: &Superblock, step: Step) -> Result<bool, Refusal> {
        let image = self.image(to);
        if !swap(self.namespace, SUPERBLOCK_OFFSETS[0], from, &image).await? {
            return Ok(false);
        }
        self.follow(to, &image, step).await.map(|()| true)
    }

    /// Brings copy B up to `to`, unless it is as new already and shows the step.
    async fn follow(&self, to: &Superblock, image: &[u8], step: Step) -> Result<(), Refusal> {
        for _ in 0..MISSES_MAX {
            let found = self.copy(1).await?;
            let other = Superblock::decode(&found, to.member);
            // What a late write has left of the life before, or nothing, is in nobody's way as long as the life goes on in copy A:
            // the member may have been emptied, or have begun a new one.
            let is_this_life = other.as_ref().is_ok_and(|other| other.incarnation == to.incarnation);
            if !is_this_life && !self.is_in_life_of(to).await? {
                return Err(Refusal::Contended);
            }
            match other {
                Ok(other) if is_this_life && other.generation >= to.generation => {
                    return match step.is_in(&other, to) {
                        true => Ok(()),
                        false if other.promised > to.promised => Err(Refusal::Promised(other.promised)),
                        false => Err(Refusal::Contended),
                    };
                }
                _ if swap(self.namespace, SUPERBLOCK_OFFSETS[1], &found, image).await? => return Ok(()),
                _ => {}
            }
        }
        Err(Refusal::Contended)
    }

    /// Whether copy A, in which a life begins, is still of this one.
    async fn is_in_life_of(&self, to: &Superblock) -> Result<bool, Refusal> {
        let found = Superblock::decode(&self.copy(0).await?, to.member);
        Ok(found.is_ok_and(|found| found.incarnation == to.incarnation))
    }

    /// Promises `ballot`, and tells what was accepted before.
    pub(crate) async fn prepare(&self, ballot: Ballot) -> Result<Promise, Refusal> {
        for _ in 0..MISSES_MAX {
            let (found, superblock) = self.look().await?;
            if superblock.promised >= ballot {
                return Err(Refusal::Promised(superblock.promised));
            }
            let generation = superblock.generation + 1;
            let superblock = Superblock { promised: ballot, generation, ..superblock };
            if !self.replace(&found[0], &superblock, Step::Promise).await? {
                continue;
            }
            let image = self.image(&superblock);
            let (offset, length) = (superblock.map_offset, superblock.map_length as usize);
            if !MAP_OFFSETS.contains(&offset) || length > crate::MAP_BYTES_MAX {
                return Err(Refusal::NoVote(format!("its superblock names a map of {length} bytes at byte {offset}")));
            }
            let body = read_body(self.namespace, offset, length).await?;
            // The slot in force is not written while the promise stands; a body that is damaged there has no vote.
            let map = match Map::decode(&body, superblock.map_checksum) {
                Ok(map) => Some(map),
                Err(error @ crate::MapError::Newer { .. }) => return Err(Refusal::NoVote(error.to_string())),
                Err(_) => None,
            };
            return Ok(Promise { image, superblock, map });
        }
        Err(Refusal::Contended)
    }

    /// Accepts `body`, the map of `epoch`, by the ballot of the promise.
    pub(crate) async fn accept(&self, promise: &Promise, epoch: u64, body: &[u8]) -> Result<(), Refusal> {
        // It may have been given when an older life or mark was known.
        self.check(&promise.superblock)?;
        let ballot = promise.superblock.promised;
        let offset = if promise.superblock.map_offset == MAP_OFFSETS[0] { MAP_OFFSETS[1] } else { MAP_OFFSETS[0] };
        self.write_body(promise, offset, body).await?;
        let accepted = Superblock {
            generation: promise.superblock.generation + 1,
            epoch,
            accepted: ballot,
            map_offset: offset,
            map_length: body.len() as u32,
            map_checksum: crc64(body),
            ..promise.superblock.clone()
        };
        match self.replace(&promise.image, &accepted, Step::Accept).await? {
            true => Ok(()),
            false => Err(self.lost().await),
        }
    }

    async fn write_body(&self, promise: &Promise, offset: u64, body: &[u8]) -> Result<(), Refusal> {
        let unit = unit_bytes(self.namespace);
        'again: for _ in 0..MISSES_MAX {
            let before = read(self.namespace, offset, leaves_bytes(body.len(), unit)).await?;
            // Only now: what was read is older than this look, so nobody with a later promise has written it.
            if self.copy(0).await? != promise.image {
                return Err(self.lost().await);
            }
            let new = leaves(body, promise.superblock.promised, unit);
            for (index, (old, new)) in before.chunks(unit).zip(new).enumerate() {
                let at = offset + (index * unit) as u64;
                if old != new && !swap(self.namespace, at, old, &new).await? {
                    continue 'again;
                }
            }
            return Ok(());
        }
        Err(Refusal::Contended)
    }

    /// Why the promise no longer stands.
    async fn lost(&self) -> Refusal {
        match self.look().await {
            Ok((_, superblock)) => Refusal::Promised(superblock.promised),
            Err(refusal) => refusal,
        }
    }

    /// Raises the superblock's generation by [`MARK_STRIDE`] and tells it: from now on it may be the member's mark.
    pub(crate) async fn raise(&self) -> Result<u64, Refusal> {
        for _ in 0..MISSES_MAX {
            let (found, superblock) = self.look().await?;
            if let Some(generation) = self.raise_from(&found, superblock, MARK_STRIDE).await? {
                return Ok(generation);
            }
        }
        Err(Refusal::Contended)
    }

    /// Replaces both copies by `to` under a generation that is later by `stride`, and tells it. Copy B first: what is on its way
    /// there from copy A then fails, and copy A is never ahead of copy B by more than the steps of the moment. `None`: somebody
    /// was faster.
    async fn raise_from(&self, from: &[Vec<u8>; 2], to: Superblock, stride: u64) -> Result<Option<u64>, Refusal> {
        let generation = to.generation.saturating_add(stride);
        let image = self.image(&Superblock { generation, ..to });
        for copy in [1, 0] {
            if !swap(self.namespace, SUPERBLOCK_OFFSETS[copy], &from[copy], &image).await? {
                return Ok(None);
            }
        }
        Ok(Some(generation))
    }
}

#[cfg(test)]
#[path = "acceptor_tests.rs"]
mod tests;
