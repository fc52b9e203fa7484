//! [`Funds`]: what is set aside of a quota for the rows of a file, so that nothing is written that does not count.
//!
//! First `draw` (what was set aside by `raise`, else beyond the limit), with the rows; then the [`Charge`] goes the way of the
//! rows: a map is *offered* them, and names them from then on (`named`), or is known not to (`recall`). One that is dropped before
//! it is offered goes back. **One that is dropped after that, and of which nobody has said that it was named, is in doubt**: a
//! change may come late by which it counts.
//!
//! What is freed goes back by a [`Hold`], which was had before the change that took it out of a map.

use std::cell::Cell;
use std::rc::Rc;

use engine::task::LocalFuture;

use super::shape::ROW_BYTES;
use crate::amount::Amount;
use crate::error::Error;

/// A client's share of a quota. What is said of a term that is over counts no more.
pub trait Payer {
    /// Whether what was taken in this term is there for sure.
    fn is_current(&self, term: u64) -> bool;
    /// Takes from the share, or from what is left of the quota, and beyond that where it is forced. The term.
    fn take(self: Rc<Self>, amount: Amount, is_forced: bool) -> LocalFuture<'static, Result<u64, Error>>;
    /// Has the share in the record until it is told that this one has left. The term.
    fn enter(self: Rc<Self>) -> LocalFuture<'static, Result<u64, Error>>;
    /// The same for who has taken from it, and so has it there.
    fn stay(&self);
    /// One who has entered leaves.
    fn leave(&self);
    /// What was taken counts from now on.
    fn spend(&self, term: u64, amount: Amount);
    /// It does not.
    fn recall(&self, term: u64, amount: Amount);
    /// What was taken goes back into the share.
    fn give_back(&self, term: u64, amount: Amount);
    /// What has counted does not any more.
    fn refund(&self, term: u64, amount: Amount);
    /// Something may yet come to count that was taken.
    fn doubt(&self);
}

/// What bytes of a stripe count.
pub(crate) fn counted(length: u64) -> u64 {
    length.next_multiple_of(ROW_BYTES as u64)
}

/// What is set aside for one file, by all that write it here.
struct Pot {
    payer: Rc<dyn Payer>,
    term: Cell<u64>,
    left: Cell<i64>,
}

impl Pot {
    /// Adds what was taken in a term; what is left of one before is nobody's.
    fn add(&self, term: u64, bytes: i64) {
        let left = if self.term.replace(term) == term { self.left.get() } else { 0 };
        self.left.set(left + bytes);
    }
}

impl Drop for Pot {
    fn drop(&mut self) {
        self.payer.give_back(self.term.get(), Amount { bytes: self.left.get(), files: 0 });
    }
}

/// See the module. Clones share what is set aside.
#[derive(Clone, Default)]
pub struct Funds(Option<Rc<Pot>>);

impl Funds {
    /// Of what counts for no quota.
    pub fn none() -> Funds {
        Funds(None)
    }

    /// Of this share.
    pub fn of(payer: Option<Rc<dyn Payer>>) -> Funds {
        Funds(payer.map(|payer| Rc::new(Pot { payer, term: Cell::new(0), left: Cell::new(0) })))
    }

    /// Whether it counts for a quota.
    pub(crate) fn counts(&self) -> bool {
        self.0.is_some()
    }

    /// What is set aside, as far as that is sure.
    pub(crate) fn left(&self) -> u64 {
        let pot = self.0.as_ref().filter(|pot| pot.payer.is_current(pot.term.get()));
        pot.map_or(0, |pot| pot.left.get().max(0) as u64)
    }

    /// Sets so much more aside.
    ///
    /// # Errors
    /// [`Error::Quota`]; what the store says.
    pub(crate) async fn raise(&self, bytes: u64) -> Result<(), Error> {
        if let Some(pot) = self.0.as_ref().filter(|_| bytes > 0) {
            let amount = Amount::of_bytes(bytes);
            let term = Rc::clone(&pot.payer).take(amount, false).await?;
            pot.add(term, amount.bytes);
        }
        Ok(())
    }

    /// No more than this is wanted: the rest goes back.
    pub(crate) fn trim(&self, wanted: u64) {
        let Some(pot) = &self.0 else { return };
        let most = Amount::of_bytes(wanted).bytes;
        if pot.left.get() > most {
            let back = Amount { bytes: pot.left.replace(most) - most, files: 0 };
            pot.payer.give_back(pot.term.get(), back);
        }
    }

    /// Takes so much for a stripe: what is set aside, and the rest also beyond the limit.
    pub(crate) async fn draw(&self, bytes: u64) -> Result<Charge, Error> {
        let Some(pot) = &self.0 else { return Ok(Charge::none()) };
        let wanted = Amount::of_bytes(bytes).bytes;
        // What was set aside in a term that may be over is nobody's.
        let from_pot = if pot.payer.is_current(pot.term.get()) { pot.left.get().min(wanted) } else { 0 };
        pot.left.set(pot.left.get() - from_pot);
        // From here on it goes back if nobody waits for this any more.
        let mut charge = Charge::of(&pot.payer, pot.term.get(), Amount { bytes: from_pot, files: 0 });
        charge.pot = Some(Rc::clone(pot));
        while charge.amount.bytes < wanted {
            let rest = Amount { bytes: wanted - charge.amount.bytes, files: 0 };
            let term = Rc::clone(&pot.payer).take(rest, true).await?;
            let had = if charge.term == term { charge.amount } else { Amount::ZERO };
            (charge.term, charge.amount) = (term, had + rest);
        }
        Ok(charge)
    }

    /// Before something is taken out of a map.
    pub(crate) async fn hold(&self) -> Result<Hold, Error> {
        match &self.0 {
            Some(pot) => Hold::of(&pot.payer).await,
            None => Ok(Hold::none()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ours,
    Offered,
    Named,
}

/// What was taken for something that does not count yet, or does.
pub struct Charge {
    payer: Option<Rc<dyn Payer>>,
    pot: Option<Rc<Pot>>,
    term: u64,
    amount: Amount,
    state: State,
}

impl Charge {
    pub(crate) fn none() -> Charge {
        Charge { payer: None, pot: None, term: 0, amount: Amount::ZERO, state: State::Named }
    }

    pub(crate) fn of(payer: &Rc<dyn Payer>, term: u64, amount: Amount) -> Charge {
        Charge { payer: Some(Rc::clone(payer)), pot: None, term, amount, state: State::Ours }
    }

    /// A change is sent by which it counts. **The share stays in the record until it is known what became of that**: else others
    /// may count without it before it is made.
    pub(crate) fn offer(&mut self) {
        if let Some(payer) = self.payer.as_ref().filter(|_| self.state == State::Ours) {
            payer.stay();
            payer.spend(self.term, self.amount);
            self.state = State::Offered;
        }
    }

    /// That was not made, and never will be.
    pub(crate) fn recall(&mut self) {
        if let Some(payer) = self.payer.as_ref().filter(|_| self.state != State::Ours) {
            payer.recall(self.term, self.amount);
            self.settle(State::Ours);
        }
    }

    /// It was made.
    pub(crate) fn named(&mut self) {
        if self.state == State::Offered {
            self.settle(State::Named);
        }
    }

    /// What became of the change is known.
    fn settle(&mut self, state: State) {
        if let Some(payer) = self.payer.as_ref().filter(|_| self.state == State::Offered) {
            payer.leave();
        }
        self.state = state;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Some(payer) = &self.payer else { return };
        match (self.state, &self.pot) {
            (State::Ours, Some(pot)) if pot.term.get() == self.term => pot.add(self.term, self.amount.bytes),
            (State::Ours, _) => payer.give_back(self.term, self.amount),
            (State::Offered, _) => {
                payer.doubt();
                payer.leave();
            }
            (State::Named, _) => {}
        }
    }
}

/// Who has this has a share in the quota's record, by which what is freed goes back.
pub struct Hold(Option<(Rc<dyn Payer>, u64)>);

impl Hold {
    /// Of what counts for no quota.
    pub(crate) fn none() -> Hold {
        Hold(None)
    }

    pub(crate) async fn of(payer: &Rc<dyn Payer>) -> Result<Hold, Error> {
        let term = Rc::clone(payer).enter().await?;
        Ok(Hold(Some((Rc::clone(payer), term))))
    }

    /// Whether it is one that goes with these funds.
    pub(crate) fn is_of(&self, funds: &Funds) -> bool {
        self.0.is_some() == funds.counts()
    }

    /// So much counts no more, by a change that this client has made, and knows it.
    pub(crate) fn refund(&self, amount: Amount) {
        if let Some((payer, term)) = &self.0 {
            payer.refund(*term, amount);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some((payer, _)) = &self.0 {
            payer.leave();
        }
    }
}
