//! [`Turns`]: of one client, who opens an inode, and who takes a name of it away or ends its last use, do so one after the other.
//! Else an open could count too late for a removal that found it closed, and give out a file that is gone the next moment.
//!
//! A turn is taken before anything else that others wait for: whoever has one waits for no other turn but that of the client's own
//! number, then those of its record and of numbers for inodes, which wait for nobody; and intents are put by those alone who have
//! theirs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use engine::sync::{Permit, Semaphore};

/// All that open at once share a turn. Chosen: more than a client has tasks.
const SHARES: usize = 1 << 20;

/// See the module.
#[derive(Default)]
pub(crate) struct Turns(RefCell<BTreeMap<u64, Rc<Semaphore>>>);

/// Somebody's turn, or the way to it.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    ino: u64,
    shares: Rc<Semaphore>,
    permit: Option<Permit>,
}

// No inode has one of these numbers.
impl Turns {
    /// The turn of the client's own number.
    pub(crate) const NAMING: u64 = 0;
    /// The turn of its record.
    pub(crate) const RECORD: u64 = u64::MAX;
    /// The turn of who fetches numbers for inodes.
    pub(crate) const NUMBERS: u64 = u64::MAX - 1;

    /// A turn beside others that open the inode.
    pub(crate) async fn share(&self, ino: u64) -> Turn<'_> {
        self.take(ino, 1).await
    }

    /// A turn alone.
    pub(crate) async fn alone(&self, ino: u64) -> Turn<'_> {
        self.take(ino, SHARES).await
    }

    /// One of so many turns that there are at once.
    pub(crate) async fn one_of(&self, ino: u64, count: usize) -> Turn<'_> {
        self.take(ino, SHARES / count).await
    }

    async fn take(&self, ino: u64, count: usize) -> Turn<'_> {
        let fresh = || Rc::new(Semaphore::new(SHARES));
        let shares = Rc::clone(self.0.borrow_mut().entry(ino).or_insert_with(fresh));
        // From here on dropping it tidies up, also if it never comes.
        let mut turn = Turn { turns: self, ino, shares, permit: None };
        turn.permit = Some(turn.shares.acquire(count).await);
        turn
    }
}

impl Turn<'_> {
    /// Whose turn it is.
    pub(crate) fn ino(&self) -> u64 {
        self.ino
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.permit = None;
        // This one's and the map's: nobody else is here or waits.
        if Rc::strong_count(&self.shares) == 2 {
            self.turns.0.borrow_mut().remove(&self.ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_turns() {
        let world = engine::sim::World::new(1, engine::sim::SimConfig::default());
        let done = world.run_until(async {
            let turns = Turns::default();
            let (first, second) = (turns.share(1).await, turns.share(1).await);
            let mut alone = Box::pin(turns.alone(1));
            let waits =
                std::future::poll_fn(|context| std::task::Poll::Ready(alone.as_mut().poll(context).is_pending()));
            assert!(waits.await);
            drop((first, second));
            drop(alone.await);
            let kept = turns.alone(2).await;
            assert_eq!(turns.0.borrow().keys().copied().collect::<Vec<_>>(), [2]);
            // One that is given up while it waits.
            let given_up = engine::time::timeout(std::time::Duration::from_millis(1), turns.share(2)).await;
            assert!(given_up.is_err());
            drop(kept);
            assert!(turns.0.borrow().is_empty());
        });
        done.unwrap();
    }
}
