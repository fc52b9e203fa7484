//! What this client's record lists as open and without a name. All that is to change at once goes in one compare-and-set: whoever
//! has the record's turn sees to what others have wished meanwhile, who find that done when their turn comes. Each by itself, a
//! process that ends with hundreds of such files would have its closes overtake one another until they fail, and the files would
//! stay.

use std::cell::RefCell;

use super::wishes::RECORD;
use crate::error::Error;
use crate::fs::FileSystem;

impl FileSystem {
    /// Has this client's record list an inode, or not; `false`: others took this client for dead and removed it.
    pub(super) async fn list(&self, ino: u64, listed: bool) -> Result<bool, Error> {
        let wish = self.wishes.wish(ino, listed);
        let _turn = self.turns.alone(RECORD).await;
        if let Some(outcome) = wish.outcome() {
            return outcome;
        }
        let (wishes, full) = (self.wishes.all(), RefCell::new(Vec::new()));
        let changed = self.change_client_in_turn(|record| {
            *full.borrow_mut() = wishes.iter().map(|wish| !wish.fulfil(&mut record.orphans)).collect();
            Ok(())
        });
        let changed = changed.await;
        for (number, wish) in wishes.iter().enumerate() {
            let is_full = changed == Ok(true) && full.borrow().get(number).is_some_and(|is_full| *is_full);
            let too_many = || Err(Error::NoSpace("too many files are open that have no name".to_owned()));
            wish.end(if is_full { too_many() } else { changed.clone() });
        }
        self.wishes.tidy();
        wish.outcome().unwrap_or(changed)
    }
}
