//! A namespace that is claimed while a pool is made of it: both copies of its superblock say so, written by compare-and-write from
//! what was found there when it was judged free.
//!
//! A claim names the new pool, and no map: nobody opens a pool by it, and whoever else would take the namespace finds it in use. It
//! lies below the mark that the map gives the member, so that one that was left when others became members begins anew. Who has
//! lost a claim to somebody's force has at most one write under way ([`crate::renew`]).

use device::Namespace;

use crate::blank::begin_life;
use crate::error::Error;
use crate::geometry::SUPERBLOCK_OFFSETS;
use crate::map::Map;
use crate::new_member::{GENERATION_FIRST, NewMember, image, refuse_if_used, superblock};
use crate::renew::claim_second;
use crate::slot::{read, swap, unit_bytes, write, write_body};
use crate::superblock::{Ballot, Superblock};

/// A namespace that is to be a member of a new pool.
pub(crate) struct Claim<'a, N> {
    member: &'a NewMember<N>,
    /// What stood in copy A when it was judged.
    first: Vec<u8>,
    image: Vec<u8>,
}

impl<'a, N: Namespace> Claim<'a, N> {
    /// Looks at the namespace, which nobody must use. `force`: whoever does, and a first block that can't be read, nor compared
    /// with, is written over.
    pub(crate) async fn look(member: &'a NewMember<N>, force: bool) -> Result<Claim<'a, N>, Error> {
        let first = match force {
            false => refuse_if_used(member, None).await?,
            true => match image(member, 0).await {
                Err(Error::Device { source: device::Error::ReadFault(_), .. }) => {
                    let zeroes = vec![0; unit_bytes(&member.namespace)];
                    let written = write(&member.namespace, SUPERBLOCK_OFFSETS[0], &zeroes).await;
                    written.map_err(|source| Error::device(member.name(), source))?;
                    zeroes
                }
                first => first?,
            },
        };
        Ok(Claim { member, first, image: Vec::new() })
    }

    /// Claims it as member `index` of `map`, unless somebody else has written it since [`Claim::look`].
    pub(crate) async fn stake(&mut self, map: &Map, index: usize) -> Result<(), Error> {
        let claim = Superblock {
            generation: GENERATION_FIRST - 1,
            ..superblock(map, &map.members[index], &[], Ballot::default())
        };
        let namespace = &self.member.namespace;
        let image = claim.image(unit_bytes(namespace));
        let claimed = swap(namespace, SUPERBLOCK_OFFSETS[0], &self.first, &image).await;
        if !claimed.map_err(|source| self.device(source))? {
            return Err(self.taken());
        }
        self.image = image;
        match claim_second(namespace, &self.image).await.map_err(|source| self.device(source))? {
            true => Ok(()),
            false => Err(self.taken()),
        }
    }

    /// Empties table and heap.
    pub(crate) async fn empty(&self, map: &Map, index: usize, tell: &impl Fn(usize, f64)) -> Result<(), Error> {
        let may_go_on = async |share| {
            tell(index, share);
            self.stands().await
        };
        let incarnation = map.members[index].incarnation;
        let begun = begin_life(&self.member.namespace, map.geometry(index), incarnation, may_go_on).await;
        if !begun.map_err(|source| self.device(source))? {
            return Err(self.taken());
        }
        tell(index, 1.0);
        Ok(())
    }

    /// Writes the map's body; stable when done, with all that was written before.
    pub(crate) async fn write_body(&self, body: &[u8], accepted: Ballot) -> Result<(), Error> {
        if !self.stands().await.map_err(|source| self.device(source))? {
            return Err(self.taken());
        }
        write_body(&self.member.namespace, body, accepted).await.map_err(|source| self.device(source))
    }

    /// Says, in both places, that the namespace is a member.
    pub(crate) async fn fulfil(&self, superblock: &Superblock) -> Result<(), Error> {
        let whole = superblock.image(self.image.len());
        for copy in [1, 0] {
            let swapped = swap(&self.member.namespace, SUPERBLOCK_OFFSETS[copy], &self.image, &whole).await;
            if !swapped.map_err(|source| self.device(source))? {
                return Err(self.taken());
            }
        }
        Ok(())
    }

    /// Leaves it blank, unless it has become a member or somebody else's.
    pub(crate) async fn release(&self) {
        if self.image.is_empty() {
            return;
        }
        let blank = vec![0; self.image.len()];
        for copy in [1, 0] {
            if let Err(error) = swap(&self.member.namespace, SUPERBLOCK_OFFSETS[copy], &self.image, &blank).await {
                tracing::warn!(member = self.member.name(), %error, "it stays claimed for a pool that was not made");
                return;
            }
        }
    }

    async fn stands(&self) -> Result<bool, device::Error> {
        Ok(read(&self.member.namespace, SUPERBLOCK_OFFSETS[0], self.image.len()).await? == self.image)
    }

    fn taken(&self) -> Error {
        let found = "somebody else has written it at the same time";
        Error::InUse { member: self.member.name(), found: found.into() }
    }

    fn device(&self, source: device::Error) -> Error {
        Error::device(self.member.name(), source)
    }
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
