//! Quotas of directories, as one client has them: [`Quotas`], its shares of all. What they are is in the README of this crate.

mod local;
mod purse;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::access::Access;
use crate::amount::Amount;
use crate::data::{Charge, Funds, Hold, Payer, Renew};
use crate::error::Error;
use crate::ops::Standing;
use purse::{Purse, Shared};

/// See the module.
pub(crate) struct Quotas {
    shared: Rc<Shared>,
    purses: RefCell<BTreeMap<u64, Rc<Purse>>>,
}

impl Quotas {
    pub(crate) fn new(access: Access, client: u64, standing: Rc<Standing>) -> Quotas {
        let (client, renew) = (Cell::new(client), RefCell::default());
        Quotas { shared: Rc::new(Shared { access, client, standing, renew }), purses: RefCell::default() }
    }

    pub(crate) fn access(&self) -> &Access {
        &self.shared.access
    }

    /// The client has this number from now on.
    pub(crate) fn set_client(&self, client: u64) {
        self.shared.client.set(client);
    }

    /// From now on this is asked where the client was not renewed in time.
    pub(crate) fn set_renew(&self, renew: Renew) {
        *self.shared.renew.borrow_mut() = Some(renew);
    }

    fn payer(&self, quota: u64) -> Rc<Purse> {
        let mut purses = self.purses.borrow_mut();
        Rc::clone(purses.entry(quota).or_insert_with(|| Purse::new(&self.shared, quota)))
    }

    /// What rows of a file are paid from that counts for this quota (0: none).
    pub(crate) fn funds(&self, quota: u64) -> Funds {
        Funds::of((quota != 0).then(|| self.payer(quota) as Rc<dyn Payer>))
    }

    /// Takes one inode, where it is to be made.
    ///
    /// # Errors
    /// [`Error::Quota`]; what the store says.
    pub(crate) async fn count_file(&self, quota: u64, is_forced: bool) -> Result<Charge, Error> {
        if quota == 0 {
            return Ok(Charge::none());
        }
        let payer: Rc<dyn Payer> = self.payer(quota);
        let term = Rc::clone(&payer).take(Amount::FILE, is_forced).await?;
        Ok(Charge::of(&payer, term, Amount::FILE))
    }

    /// Before something is removed that counts. A quota hinders no removal: where its record is damaged, what goes stays counted.
    ///
    /// # Errors
    /// The store does not answer.
    pub(crate) async fn hold(&self, quota: u64) -> Result<Hold, Error> {
        if quota == 0 {
            return Ok(Hold::none());
        }
        let payer: Rc<dyn Payer> = self.payer(quota);
        match Hold::of(&payer).await {
            Err(error @ (Error::Damaged(_) | Error::NoSpace(_))) => {
                tracing::warn!(quota, %error, "what is removed stays counted until fsck counts");
                Ok(Hold::none())
            }
            held => held,
        }
    }

    /// What of a quota this client holds, and has not used.
    pub(crate) fn unused(&self, quota: u64) -> Amount {
        self.purses.borrow().get(&quota).map_or(Amount::ZERO, |purse| purse.unused())
    }

    /// Tells what was used, and gives back what is not wanted; at the end of the client all.
    pub(crate) async fn settle(&self, ends: bool) {
        let purses: Vec<Rc<Purse>> = self.purses.borrow().values().cloned().collect();
        for purse in purses {
            if let Err(error) = purse.settle(ends).await {
                tracing::warn!(quota = purse.quota(), %error, "what is used of a quota is not told yet");
            }
        }
        // Whoever has one of these goes on with it: it is that one that is found here, too.
        self.purses.borrow_mut().retain(|_, purse| Rc::strong_count(purse) > 1 || !purse.is_nothing());
    }
}
