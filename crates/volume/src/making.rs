//! A namespace on its way to become a holder, which somebody may have had before.
//!
//! Invariants:
//! - The first block says at each moment what the namespace is, and is changed by compare-and-write alone.
//! - Nothing is written but while the first block is what this one has put there: it is looked at whenever the namespace has to be
//!   taken again. So of two who make something of a namespace the later one gets it, and the other one an error.
//!
//! To take it again is usual: a host that had the namespace in a volume takes it back within milliseconds. It sees then what has
//! become of it, and keeps away for a while.

use device::{Durability, Lba, Namespace};
use engine::View;
use fabric::host::AnyRemote;

use crate::blocks::read_block;
use crate::candidate::Candidate;
use crate::error::Error;
use crate::reach::Taken;

/// How often one step is begun again. Guessed: a former host takes the namespace once.
const TRIES_MAX: u32 = 4;

/// See the module.
pub(crate) struct Making<'a> {
    of: &'a Candidate,
    taken: Taken,
    /// What the first block is.
    first: View,
}

impl<'a> Making<'a> {
    /// Takes the namespace, and changes its first block from what was looked at.
    pub(crate) async fn begin(of: &'a Candidate, first: View) -> Result<Making<'a>, Error> {
        // Twice: the second one preempts the first. A target that can't do that would be found out by the second host that
        // attaches.
        of.reach.take(of.takes).await?;
        let taken = of.reach.take(of.takes).await?;
        let mut making = Making { of, taken, first: of.first.clone() };
        making.turn_into(first).await?;
        Ok(making)
    }

    /// Changes the first block.
    pub(crate) async fn turn_into(&mut self, first: View) -> Result<(), Error> {
        let from = self.first.clone();
        let swap = async |namespace: &AnyRemote| {
            let swap = namespace.compare_and_write(Lba(0), from.clone(), first.clone(), Durability::Stable);
            match swap.await {
                // A try before this one has done it, and its answer was lost.
                Err(device::Error::CompareFailure) if read_block(namespace, 0).await?[..] == first[..] => Ok(()),
                swapped => swapped,
            }
        };
        self.step_to(Some(&first), swap).await?;
        self.first = first;
        Ok(())
    }

    /// A step that comes out the same when it is made again.
    pub(crate) async fn step(
        &mut self,
        step: impl AsyncFn(&AnyRemote) -> Result<(), device::Error>,
    ) -> Result<(), Error> {
        self.step_to(None, step).await
    }

    async fn step_to(
        &mut self,
        first: Option<&View>,
        step: impl AsyncFn(&AnyRemote) -> Result<(), device::Error>,
    ) -> Result<(), Error> {
        use device::Error::{Aborted, CompareFailure, Disconnected, NotConnected, Reserved};
        for _ in 0..TRIES_MAX {
            match step(&self.taken.namespace).await {
                Err(Aborted | Disconnected(_) | NotConnected(_) | Reserved(_)) => self.take_again(first).await?,
                Err(CompareFailure) => return Err(self.lost()),
                done => return done.map_err(|error| self.of.failed(error)),
            }
        }
        Err(self.lost())
    }

    /// `first`: what the first block may be beside what it was.
    async fn take_again(&mut self, first: Option<&View>) -> Result<(), Error> {
        self.taken = self.of.reach.take(self.of.takes).await?;
        let found = read_block(&self.taken.namespace, 0).await.map_err(|error| self.of.failed(error))?;
        let is_ours = found[..] == self.first[..] || first.is_some_and(|first| found[..] == first[..]);
        if is_ours { Ok(()) } else { Err(self.lost()) }
    }

    fn lost(&self) -> Error {
        let by = "somebody else has written its first block, or takes it again and again".to_owned();
        Error::InUse { holder: self.of.name.clone(), by }
    }
}
