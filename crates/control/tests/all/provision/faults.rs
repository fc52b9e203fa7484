//! Faults at the n-th effect, an effect being a commit to the catalogue or a change of a drive.

use std::sync::{Arc, Mutex};

use control::catalogue::{
    Answer, Catalogue, Error, Key, Lease, LeaseId, Outcome, Page, Prefix, Range, Reading, Revision, Transaction, Ttl,
    Watch,
};
use tokio::sync::Notify;

/// What happens at an effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The process dies before the effect.
    DiesBefore,
    /// The process dies after the effect.
    DiesAfter,
    /// The process dies, and the effect comes as late as it may. Of the catalogue: after it.
    DiesAndItComesLate,
    /// The answer is lost, and there is no effect.
    LostBefore,
    /// The answer is lost, the effect is there.
    LostAfter,
    /// The answer is lost, and the effect comes as late as it may. Of the catalogue: at once.
    LostAndItComesLate,
}

impl Fault {
    pub const ALL: [Fault; 6] = [
        Fault::DiesBefore,
        Fault::DiesAfter,
        Fault::DiesAndItComesLate,
        Fault::LostBefore,
        Fault::LostAfter,
        Fault::LostAndItComesLate,
    ];

    pub fn kills(self) -> bool {
        matches!(self, Fault::DiesBefore | Fault::DiesAfter | Fault::DiesAndItComesLate)
    }
}

#[derive(Default)]
struct State {
    count: u64,
    at: Option<(u64, Fault)>,
    strikes: u64,
    is_dead: bool,
}

/// When which fault strikes.
#[derive(Default)]
pub struct Faults {
    state: Mutex<State>,
    pub struck: Notify,
}

impl Faults {
    /// From now on, at the effect of that number.
    pub fn arm(&self, at: u64, fault: Fault) {
        let mut state = self.state.lock().unwrap();
        (state.count, state.at) = (0, Some((at, fault)));
    }

    /// Another process, and no more faults.
    pub fn clear(&self) {
        let mut state = self.state.lock().unwrap();
        (state.at, state.is_dead) = (None, false);
    }

    /// Faults that have struck.
    pub fn strikes(&self) -> u64 {
        self.state.lock().unwrap().strikes
    }

    pub fn is_dead(&self) -> bool {
        self.state.lock().unwrap().is_dead
    }

    /// The fault of this effect.
    pub fn next(&self) -> Option<Fault> {
        let mut state = self.state.lock().unwrap();
        let count = state.count;
        state.count += 1;
        let fault = state.at.filter(|(at, _)| *at == count)?.1;
        state.strikes += 1;
        state.is_dead = fault.kills();
        self.struck.notify_one();
        Some(fault)
    }
}

/// The end of a process: nothing comes back from it.
pub async fn dead<T>() -> T {
    std::future::pending().await
}

/// A catalogue whose commits have faults.
pub struct Faulty {
    pub inner: Arc<dyn Catalogue>,
    pub faults: Arc<Faults>,
    /// Whether leases can be prolonged.
    pub keeps: bool,
    /// The next read of a key that begins so waits for this before it is done.
    pub held: Mutex<Option<(&'static str, Arc<Notify>)>>,
    /// What somebody else commits right before the next commit.
    pub before: Mutex<Option<Transaction>>,
}

impl Faulty {
    pub fn new(inner: &Arc<dyn Catalogue>, faults: &Arc<Faults>) -> Faulty {
        Faulty {
            inner: inner.clone(),
            faults: faults.clone(),
            keeps: true,
            held: Mutex::default(),
            before: Mutex::default(),
        }
    }

    async fn alive<T>(&self, answer: Answer<'_, T>) -> Result<T, Error> {
        if self.faults.is_dead() { dead().await } else { answer.await }
    }
}

impl Catalogue for Faulty {
    fn identity(&self) -> Answer<'_, String> {
        Box::pin(self.alive(self.inner.identity()))
    }

    fn get(&self, key: Key) -> Answer<'_, Reading> {
        Box::pin(async move {
            let held = self.held.lock().unwrap().take_if(|(prefix, _)| key.as_bytes().starts_with(prefix.as_bytes()));
            if let Some((_, held)) = held {
                held.notified().await;
            }
            self.alive(self.inner.get(key)).await
        })
    }

    fn range(&self, range: Range) -> Answer<'_, Page> {
        Box::pin(self.alive(self.inner.range(range)))
    }

    fn commit(&self, transaction: Transaction) -> Answer<'_, Outcome> {
        Box::pin(async move {
            if self.faults.is_dead() {
                return dead().await;
            }
            let first = self.before.lock().unwrap().take();
            if let Some(first) = first {
                let _others = self.inner.commit(first).await?;
            }
            let Some(fault) = self.faults.next() else { return self.inner.commit(transaction).await };
            if !matches!(fault, Fault::DiesBefore | Fault::LostBefore) {
                let _applied = self.inner.commit(transaction).await?;
            }
            if fault.kills() { dead().await } else { Err(Error::OutcomeUnknown { why: "the answer was lost".into() }) }
        })
    }

    fn watch(&self, prefix: Prefix, after: Revision) -> Box<dyn Watch> {
        self.inner.watch(prefix, after)
    }

    fn compact(&self, through: Revision) -> Answer<'_, ()> {
        self.inner.compact(through)
    }

    fn grant(&self, ttl: Ttl) -> Answer<'_, Lease> {
        Box::pin(self.alive(self.inner.grant(ttl)))
    }

    fn keep_alive(&self, id: LeaseId) -> Answer<'_, Lease> {
        Box::pin(async move { if self.keeps { self.alive(self.inner.keep_alive(id)).await } else { dead().await } })
    }

    fn revoke(&self, id: LeaseId) -> Answer<'_, ()> {
        Box::pin(self.alive(self.inner.revoke(id)))
    }
}
