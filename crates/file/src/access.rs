//! [`Access`]: records of one file system, got and changed. Here every read of names and inodes goes by, and what was met last is
//! remembered for whoever is to change it ([`Access::guess`]).
//!
//! **An unknown outcome ends here**: the record is read again until the change is found in it, or something that keeps it out.

use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use engine::backoff::{Backoff, jittered};
use engine::{task, time};

use crate::error::Error;
use crate::meta::{Meta, Seen, Swapped, Version};
use crate::recent::Recent;
use crate::record::{Keys, Mine, Record};

/// Times that something is tried again, at most. Chosen: with these pauses about two seconds, as an operation of the store.
const TRIES_MAX: u32 = 48;
const PAUSE_FIRST: Duration = Duration::from_millis(1);
/// The longest pause between two tries. Guessed.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Counts tries, and pauses between them.
pub(crate) struct Tries {
    left: u32,
    backoff: Backoff,
}

impl Tries {
    pub(crate) fn new() -> Tries {
        Tries { left: TRIES_MAX, backoff: Backoff::new(PAUSE_FIRST, PAUSE_MAX) }
    }

    /// Waits before another try, or says that there were enough.
    pub(crate) async fn again(&mut self, what: &str) -> Result<(), Error> {
        self.left = self.left.checked_sub(1).ok_or_else(|| Error::Unavailable(format!("{what}, again and again")))?;
        time::sleep(jittered(self.backoff.pause())).await;
        Ok(())
    }
}

/// A random number that is not zero.
pub(crate) fn draw() -> u64 {
    task::random_u64().max(1)
}

/// A record, and what a change of it has to name.
#[derive(Clone, Debug)]
pub(crate) struct Held<R> {
    pub(crate) record: R,
    version: Version,
}

impl<R> Held<R> {
    pub(crate) fn version(&self) -> Version {
        self.version
    }
}

/// Records of one file system.
pub(crate) struct Access {
    pub(crate) meta: Rc<dyn Meta>,
    pub(crate) keys: Keys,
    recent: RefCell<Recent>,
}

impl Access {
    pub(crate) fn new(meta: Rc<dyn Meta>, keys: Keys) -> Access {
        Access { meta, keys, recent: RefCell::default() }
    }

    pub(crate) async fn get<R: Record>(&self, key: &[u8]) -> Result<Option<Held<R>>, Error> {
        let sent = time::now();
        let Some(seen) = self.meta.get(key).await? else {
            self.recent.borrow_mut().forget(key);
            return Ok(None);
        };
        let record = R::decode(&seen.value)?;
        let version = seen.version;
        self.recent.borrow_mut().keep(key, seen, sent);
        Ok(Some(Held { record, version }))
    }

    /// What the record held a moment ago. Nothing may be told or done by it but a change that names it as what was seen.
    pub(crate) fn guess<R: Record>(&self, key: &[u8]) -> Option<Held<R>> {
        let recent = self.recent.borrow();
        let seen = recent.get(key)?;
        Some(Held { record: R::decode(&seen.value).ok()?, version: seen.version })
    }

    /// Puts `new` in the place of `old` (`None`: of nothing). `None`: something else is there.
    pub(crate) async fn put<R: Record>(
        &self,
        key: &[u8],
        old: Option<&Held<R>>,
        new: R,
    ) -> Result<Option<Held<R>>, Error> {
        self.put_while(key, old, new, || Ok(())).await
    }

    /// The same as long as it may be done, which is asked right before each try.
    pub(crate) async fn put_while<R: Record>(
        &self,
        key: &[u8],
        old: Option<&Held<R>>,
        mut new: R,
        may: impl Fn() -> Result<(), Error>,
    ) -> Result<Option<Held<R>>, Error> {
        // A copy of what others have seen go since.
        if old.is_some_and(|old| old.record.is_going()) {
            return Ok(None);
        }
        let stamp = draw();
        *new.stamps_mut() = match old {
            Some(old) => old.record.stamps().next(stamp),
            None => crate::record::Stamps::first(stamp),
        };
        let value = new.encode();
        let expected = old.map(|old| old.version);
        may()?;
        let swapped = self.meta.swap(key, expected, Some(value.clone())).await;
        self.recent.borrow_mut().forget(key);
        match swapped? {
            Swapped::Done(version) => {
                self.recent.borrow_mut().keep(key, Seen { value, version }, time::now());
                return Ok(Some(Held { record: new, version }));
            }
            Swapped::Changed => return Ok(None),
            Swapped::Unknown => {}
        }
        // From here on it may come at any time: whatever fails says nothing of it.
        let mut tries = Tries::new();
        loop {
            let found = self.get::<R>(key).await.map_err(lost_sight)?;
            match (found, old) {
                (Some(found), old) => match tell(&found.record, stamp, old.map(|old| &old.record)) {
                    Mine::Yes => return Ok(Some(found)), // with what others have made of it since
                    Mine::No => return Ok(None),
                    Mine::NotYet => {}
                    Mine::Forgotten => return Err(lost_sight("others have changed the same since")),
                },
                (None, Some(_)) => return Err(lost_sight("others have removed it, before that or after")),
                (None, None) => {}
            }
            tries.again("the store did not say what became of a change").await?;
            may()?;
            if let Swapped::Done(version) =
                self.meta.swap(key, expected, Some(value.clone())).await.map_err(lost_sight)?
            {
                // What was met since is of before it.
                self.recent.borrow_mut().forget(key);
                return Ok(Some(Held { record: new, version }));
            }
        }
    }

    /// Takes `old` away. Whether it is gone, by whomever; `false`: something else is there.
    pub(crate) async fn remove<R: Record>(&self, key: &[u8], old: &Held<R>) -> Result<bool, Error> {
        let (mut tries, mut is_unknown) = (Tries::new(), false);
        let fault = |error, is_unknown| if is_unknown { lost_sight(error) } else { error };
        loop {
            let swapped = self.meta.swap(key, Some(old.version), None).await;
            self.recent.borrow_mut().forget(key);
            match swapped.map_err(|error| fault(error, is_unknown))? {
                Swapped::Done(_) => return Ok(true),
                Swapped::Changed => {}
                Swapped::Unknown => is_unknown = true,
            }
            match self.get::<R>(key).await.map_err(|error| fault(error, is_unknown))? {
                None => return Ok(true),
                Some(found) if found.version != old.version => return Ok(false),
                Some(_) => {}
            }
            tries.again("the store did not say what became of a removal").await?;
        }
    }
}

/// Whether the change `stamp` of `old` (`None`: of nothing) is in what was found.
fn tell<R: Record>(found: &R, stamp: u64, old: Option<&R>) -> Mine {
    match old {
        Some(old) => found.stamps().tell(stamp, old.stamps()),
        None => found.stamps().tell_first(stamp),
    }
}

fn lost_sight(why: impl Display) -> Error {
    Error::Unavailable(format!("whether a change took effect is unknown: {why}"))
}

#[cfg(test)]
mod tests {
    use engine::sim::{SimConfig, World};

    use super::*;
    use crate::fs::blank;
    use crate::meta::MemoryMeta;
    use crate::record::inode::Inode;
    use crate::record::{Kind, Time};

    /// Of a file that goes its remover alone frees what was there: a writer who came late and put other content would free that
    /// once more.
    #[test]
    fn what_is_going_is_not_changed_but_removed() {
        let ended = World::new(1, SimConfig::default()).run_until(async {
            let access = Access::new(MemoryMeta::new().client(), Keys([1; 16]));
            let key = access.keys.inode(7);
            let inode = Inode { links: vec![3], ..blank(Kind::File, Time::default()) };
            let held = access.put(&key, None, inode.clone()).await?.expect("nothing was there");
            let going = Inode { links: Vec::new(), ..inode.clone() };
            let held = access.put(&key, Some(&held), going).await?.expect("it was not changed meanwhile");
            assert!(access.put(&key, Some(&held), inode).await?.is_none());
            assert!(access.remove(&key, &held).await?);
            Ok::<(), Error>(())
        });
        ended.expect("it ends").expect("no fault");
    }
}
