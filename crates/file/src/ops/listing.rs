//! What this client's record lists as open and without a name. All that is to change at once goes in one compare-and-set: whoever has
//! the record's turn sees to what others have wished meanwhile, who find that done when their turn comes. Each by itself, a process
//! that ends with hundreds of such files would have its closes overtake one another until they fail, and the files would stay.

use std::cell::RefCell;
use std::rc::Rc;

use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::small::ORPHANS_MAX;

/// The turn of this client's record: no inode has this number.
pub(super) const RECORD: u64 = u64::MAX;

/// What the list is to say of an inode, in the order in which that was wished. One whose owner has gone is fulfilled like the others:
/// what is listed without need is harmless, and what comes after it has its place behind it.
#[derive(Default)]
pub(crate) struct Wishes(RefCell<Vec<Rc<Wish>>>);

struct Wish {
    ino: u64,
    listed: bool,
    /// What has come of it.
    outcome: RefCell<Option<Result<bool, Error>>>,
}

impl Wish {
    /// False: the list is full.
    fn fulfil(&self, orphans: &mut Vec<u64>) -> bool {
        match (orphans.binary_search(&self.ino), self.listed) {
            (Err(_), true) if orphans.len() >= ORPHANS_MAX => return false,
            (Err(at), true) => orphans.insert(at, self.ino),
            (Ok(at), false) => drop(orphans.remove(at)),
            (Ok(_), true) | (Err(_), false) => {}
        }
        true
    }
}

impl FileSystem {
    /// Has this client's record list an inode, or not; `false`: others took this client for dead and removed it.
    pub(super) async fn list(&self, ino: u64, listed: bool) -> Result<bool, Error> {
        let wish = Rc::new(Wish { ino, listed, outcome: RefCell::default() });
        self.wishes.0.borrow_mut().push(Rc::clone(&wish));
        let _turn = self.turns.alone(RECORD).await;
        if let Some(outcome) = wish.outcome.take() {
            return outcome;
        }
        let wishes = self.wishes.0.borrow().clone();
        let full = RefCell::new(Vec::new());
        let changed = self.change_client_in_turn(|record| {
            *full.borrow_mut() = wishes.iter().map(|wish| !wish.fulfil(&mut record.orphans)).collect();
            Ok(())
        });
        let changed = changed.await;
        for (number, wish) in wishes.iter().enumerate() {
            let is_full = changed == Ok(true) && full.borrow().get(number).is_some_and(|is_full| *is_full);
            let too_many = || Err(Error::NoSpace("too many files are open that have no name".to_owned()));
            *wish.outcome.borrow_mut() = Some(if is_full { too_many() } else { changed.clone() });
        }
        self.wishes.0.borrow_mut().retain(|wish| wish.outcome.borrow().is_none());
        wish.outcome.take().unwrap_or(changed)
    }
}
