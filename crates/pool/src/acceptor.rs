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
//!   Copy B too is replaced by compare-and-write, only by a newer generation: a late write can't bring an old one back.

use device::Namespace;

use crate::geometry::{MAP_OFFSETS, SUPERBLOCK_OFFSETS};
use crate::map::{Map, MemberId};
use crate::slot::{leaves, leaves_bytes, read, read_body, swap, unit_bytes};
use crate::superblock::{Ballot, SUPERBLOCK_BYTES, Superblock, SuperblockError, crc64};

/// Times a step is begun again because somebody else was faster. Guessed: with random pauses between attempts a handful is
/// already rare.
const MISSES_MAX: u32 = 16;

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
    /// The namespace failed.
    #[error(transparent)]
    Device(#[from] device::Error),
}

impl From<SuperblockError> for Refusal {
    fn from(error: SuperblockError) -> Refusal {
        Refusal::NoVote(error.to_string())
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

impl<N: Namespace> Acceptor<'_, N> {
    /// Reads the superblock: the image of copy A and what it says. A damaged copy A is first replaced by what B says.
    async fn look(&self) -> Result<(Vec<u8>, Superblock), Refusal> {
        for _ in 0..MISSES_MAX {
            let [first, second] = [self.copy(0).await?, self.copy(1).await?];
            let member = MemberId(self.namespace.info().nguid);
            let decoded = Superblock::decode(&first, member);
            let other = Superblock::decode(&second, member);
            for copy in [&decoded, &other] {
                if let Err(error @ SuperblockError::Newer { .. }) = copy {
                    return Err(error.clone().into());
                }
            }
            match (decoded, other) {
                (Ok(found), other) if other.as_ref().map_or(true, |other| other.generation <= found.generation) => {
                    self.check(&found)?;
                    return Ok((first, found));
                }
                (_, Ok(other)) => {
                    self.check(&other)?;
                    let mended = Superblock { generation: other.generation + 1, ..other };
                    swap(self.namespace, SUPERBLOCK_OFFSETS[0], &first, &self.image(&mended)).await?;
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
        match self.life {
            Some((expected, _)) if found.incarnation != expected => {
                Err(SuperblockError::OtherIncarnation { found: found.incarnation, expected }.into())
            }
            Some((_, mark)) if found.generation < mark => {
                Err(SuperblockError::RolledBack { found: found.generation, mark }.into())
            }
            _ => Ok(()),
        }
    }

    async fn copy(&self, copy: usize) -> Result<Vec<u8>, device::Error> {
        match read(self.namespace, SUPERBLOCK_OFFSETS[copy], unit_bytes(self.namespace)).await {
            // A block that can't be read can't be compared with either, but the other copy may be whole.
            Err(device::Error::ReadFault(_)) => Ok(vec![0; unit_bytes(self.namespace)]),
            result => result,
        }
    }

    fn image(&self, superblock: &Superblock) -> Vec<u8> {
        let mut image = superblock.encode().to_vec();
        image.resize(unit_bytes(self.namespace).max(SUPERBLOCK_BYTES), 0);
        image
    }

    /// Replaces the superblock `from` by `to`, in both copies. `false`: it was no longer `from`.
    async fn replace(&self, from: &[u8], to: &Superblock) -> Result<bool, Refusal> {
        let image = self.image(to);
        if !swap(self.namespace, SUPERBLOCK_OFFSETS[0], from, &image).await? {
            return Ok(false);
        }
        self.follow(to, &image).await.map(|()| true)
    }

    /// Brings copy B up to `to`, unless it is as new already.
    async fn follow(&self, to: &Superblock, image: &[u8]) -> Result<(), Refusal> {
        for _ in 0..MISSES_MAX {
            let found = self.copy(1).await?;
            let decoded = Superblock::decode(&found, to.member);
            if decoded.is_ok_and(|other| other.generation >= to.generation)
                || swap(self.namespace, SUPERBLOCK_OFFSETS[1], &found, image).await?
            {
                return Ok(());
            }
        }
        Err(Refusal::Contended)
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
            if !self.replace(&found, &superblock).await? {
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
        match self.replace(&promise.image, &accepted).await? {
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

    /// Raises the superblock's generation to at least `at_least` and tells it.
    pub(crate) async fn raise(&self, at_least: u64) -> Result<u64, Refusal> {
        for _ in 0..MISSES_MAX {
            let (found, superblock) = self.look().await?;
            let generation = at_least.max(superblock.generation + 1);
            if self.replace(&found, &Superblock { generation, ..superblock }).await? {
                return Ok(generation);
            }
        }
        Err(Refusal::Contended)
    }
}
