//! What this client's record lists as open and without a name. All that is to change at once goes in one compare-and-set: whoever
//! has the record's turn sees to what others have wished meanwhile, who find that done when their turn comes. Each by itself, a
//! process that ends with hundreds of such files would have its closes overtake one another until they fail, and the files would
//! stay.

use super::Turns;
use crate::error::Error;
use crate::fs::FileSystem;

impl FileSystem {
    /// Has this client's record list an inode, or not; `false`: others took this client for dead and removed it.
    pub(super) async fn list(&self, ino: u64, listed: bool) -> Result<bool, Error> {
        let wish = self.wishes.wish(ino, listed);
        let _turn = self.turns.alone(Turns::RECORD).await;
        if let Some(outcome) = wish.outcome() {
            return outcome;
        }
        let wishes = self.wishes.all();
        let changed = self.change_client_in_turn(|record| {
            wishes.iter().for_each(|wish| wish.fulfil(&mut record.orphans));
            Ok(())
        });
        let changed = changed.await;
        wishes.iter().for_each(|wish| wish.end(&changed));
        self.wishes.tidy();
        wish.outcome().unwrap_or(changed)
    }
}
