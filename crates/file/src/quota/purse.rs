//! [`Purse`]: a client's share of one quota, and the record that it is a share of.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::sync::Semaphore;
use engine::task::LocalFuture;

use super::local::{Local, Want};
use crate::access::{Access, Held, Tries};
use crate::amount::Amount;
use crate::data::{Payer, Renew};
use crate::error::Error;
use crate::ops::Standing;
use crate::record::quota::QuotaRecord;

/// What the shares of a client have alike.
pub(crate) struct Shared {
    pub(crate) access: Access,
    /// The client's number.
    pub(crate) client: Cell<u64>,
    pub(crate) standing: Rc<Standing>,
    pub(crate) renew: RefCell<Option<Renew>>,
}

/// See the module.
pub(crate) struct Purse {
    shared: Rc<Shared>,
    quota: u64,
    local: RefCell<Local>,
    /// One at a time changes the record.
    turn: Semaphore,
}

impl Purse {
    pub(crate) fn new(shared: &Rc<Shared>, quota: u64) -> Rc<Purse> {
        let (shared, local) = (Rc::clone(shared), RefCell::default());
        Rc::new(Purse { shared, quota, local, turn: Semaphore::new(1) })
    }

    pub(crate) fn quota(&self) -> u64 {
        self.quota
    }

    /// What this client holds of the quota and has not used.
    pub(crate) fn unused(&self) -> Amount {
        self.local.borrow().unused()
    }

    /// Whether nothing would be lost with it.
    pub(crate) fn is_nothing(&self) -> bool {
        self.local.borrow().is_nothing()
    }

    /// Whether the share is in the record for sure: under a number that others do not take for dead.
    fn is_sure(&self) -> bool {
        self.shared.standing.is_young() && self.local.borrow().stands_for(self.shared.client.get())
    }

    /// Others do not take this client for dead, or it has another number.
    async fn stand(&self) -> Result<(), Error> {
        if !self.shared.standing.is_young() {
            let renew = self.shared.renew.borrow().clone();
            if let Some(renew) = renew {
                renew().await;
            }
        }
        match self.shared.standing.is_young() {
            true => Ok(()),
            false => Err(Error::Unavailable("this client could not say for ten minutes that it lives".into())),
        }
    }

    async fn load(&self) -> Result<Held<QuotaRecord>, Error> {
        let found = self.shared.access.get::<QuotaRecord>(&self.shared.access.keys.quota(self.quota)).await?;
        found.ok_or_else(|| Error::Damaged(format!("the quota of directory {} is not there", self.quota)))
    }

    /// Changes the record as it is wanted, once what became of the last change is known. In a turn.
    async fn change(&self, want: Want) -> Result<(), Error> {
        let key = self.shared.access.keys.quota(self.quota);
        let mut tries = Tries::new();
        loop {
            let held = self.load().await?;
            let (version, client) = (held.version(), self.shared.client.get());
            let is_again = self.local.borrow_mut().look(version, &held.record);
            if !is_again && !self.local.borrow_mut().plan((version, &held.record), client, want)? {
                return Ok(());
            }
            let new = self.local.borrow().sent.as_ref().map(|sent| sent.new.clone());
            let Some(new) = new else { continue };
            // An error, or one who waits no more, leaves it open: the next change finds out first.
            match self.shared.access.put(&key, Some(&held), new).await? {
                Some(_) if is_again => self.local.borrow_mut().made(),
                Some(_) => {
                    self.local.borrow_mut().made();
                    return Ok(());
                }
                None => {}
            }
            tries.again("other clients change the quota").await?;
        }
    }

    /// Tells what was used, and gives back what is not wanted; at the end of the client all.
    pub(crate) async fn settle(&self, ends: bool) -> Result<(), Error> {
        if !ends && !self.local.borrow().has_news(self.shared.client.get()) {
            return Ok(());
        }
        let _turn = self.turn.acquire(1).await;
        if self.is_nothing() {
            return Ok(());
        }
        self.change(if ends { Want::Leave } else { Want::Settle }).await
    }

    /// In a turn, so that what was got for one is not taken by another. **It has none while it sees to this client's standing**: a
    /// client gets another number only when nobody uses the old one, and who does may wait for a turn here, to remove something.
    async fn obtain(&self, amount: Amount, is_forced: bool) -> Result<u64, Error> {
        let mut tries = Tries::new();
        loop {
            self.stand().await?;
            if let Some(term) = self.obtain_now(amount, is_forced).await? {
                return Ok(term);
            }
            tries.again("others take this client for dead").await?;
        }
    }

    /// `None`: others may take this client for dead by now.
    async fn obtain_now(&self, amount: Amount, is_forced: bool) -> Result<Option<u64>, Error> {
        let _turn = self.turn.acquire(1).await;
        if let Some(term) = self.take_now(amount) {
            return Ok(Some(term));
        }
        if self.shared.standing.is_young() {
            self.change(Want::Take(amount, is_forced)).await?;
        }
        Ok(self.take_now(amount))
    }

    fn take_now(&self, amount: Amount) -> Option<u64> {
        let mut local = self.is_sure().then(|| self.local.borrow_mut())?;
        local.take(amount).then(|| local.term())
    }
}

impl Payer for Purse {
    fn is_current(&self, term: u64) -> bool {
        self.is_sure() && self.local.borrow().term() == term
    }

    fn take(self: Rc<Self>, amount: Amount, is_forced: bool) -> LocalFuture<'static, Result<u64, Error>> {
        Box::pin(async move {
            match self.take_now(amount) {
                Some(term) => Ok(term),
                None => self.obtain(amount, is_forced).await,
            }
        })
    }

    fn enter(self: Rc<Self>) -> LocalFuture<'static, Result<u64, Error>> {
        Box::pin(async move {
            if !self.is_sure() {
                // Not for long, perhaps, where others may take this client for dead: then what it frees stays counted. It is not
                // given another number for that, as it may be about to close something under this one.
                let _turn = self.turn.acquire(1).await;
                self.change(Want::Enter).await?;
            }
            let mut local = self.local.borrow_mut();
            local.enter();
            Ok(local.term())
        })
    }

    fn stay(&self) {
        self.local.borrow_mut().enter();
    }

    fn leave(&self) {
        self.local.borrow_mut().leave();
    }

    fn spend(&self, term: u64, amount: Amount) {
        self.local.borrow_mut().spend(term, amount);
    }

    fn recall(&self, term: u64, amount: Amount) {
        self.local.borrow_mut().recall(term, amount);
    }

    fn give_back(&self, term: u64, amount: Amount) {
        self.local.borrow_mut().give_back(term, amount);
    }

    fn refund(&self, term: u64, amount: Amount) {
        self.local.borrow_mut().refund(term, amount);
    }

    fn doubt(&self) {
        self.local.borrow_mut().doubt();
    }
}
