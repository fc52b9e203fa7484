//! Intents: what becomes of two names, or of a name and a directory, at once. **It takes place when its intent becomes
//! committed, by one compare-and-set**, after all entries and directories in it have its number; until then all is as before.
//!
//! Whoever meets a number resolves its intent: a committed one is finished, a pending one is given time and then aborted. An intent
//! goes when all numbers are out. A number whose intent is not there came late, after others had aborted it, and is taken out.

use std::time::Duration;

use engine::task::LocalFuture;
use engine::time;

use crate::access::{Held, Tries, draw};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::name::{Step, spared};
use crate::record::intent::{Intent, Side, State};
use crate::record::small::Moves;
use crate::record::{Kind, Time};

/// How long a pending intent is left to its author. Chosen: many times what one takes, and less than people wait.
const PATIENCE: Duration = Duration::from_secs(1);

/// What became of an intent.
pub(crate) enum Outcome {
    /// It took place.
    Done,
    /// Nothing did: what it expected is not so any more, or others took its author for dead. It may be tried again.
    Again,
}

impl FileSystem {
    /// Carries out an intent that nobody knows.
    pub(crate) async fn carry_out(&self, intent: Intent) -> Result<Outcome, Error> {
        let number = draw();
        let key = self.access.keys.intent(number);
        let Some(held) = self.access.put(&key, None, intent).await? else { return Ok(Outcome::Again) };
        let committed = match held.record.state {
            State::Pending => self.prepare(number, &held.record).await,
            // It is found much later that it was put: others took its author for dead.
            State::Aborted | State::Committed => Ok(None),
        };
        let committed = match committed {
            Ok(Some(move_number)) => {
                let new = Intent { state: State::Committed, number: move_number, ..held.record.clone() };
                match self.access.put(&key, Some(&held), new).await {
                    Err(error @ Error::NoSpace(_)) => Err(error),
                    // What became of it is unknown. Whoever meets a name finds out.
                    Err(error) => return Err(error),
                    committed => committed,
                }
            }
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        match committed {
            // That it took place is sure; what could not be finished is by whoever meets a name.
            Ok(Some(held)) => {
                let finished = self.finish(number, &held).await;
                if let Err(error) = finished {
                    tracing::debug!(%error, "an intent is left to be finished");
                }
                Ok(Outcome::Done)
            }
            Ok(None) => {
                self.abort(number, &held).await?;
                Ok(Outcome::Again)
            }
            Err(error) => {
                // What was found is so for sure only if all that has the number had it until now.
                let is_ours = self.abort(number, &held).await?;
                if is_ours { Err(error) } else { Ok(Outcome::Again) }
            }
        }
    }

    /// Puts the number wherever it belongs. `None`: something is not as it was; else the number of the move, 0 for what is none.
    async fn prepare(&self, number: u64, intent: &Intent) -> Result<Option<u64>, Error> {
        let mut sides: Vec<&Side> = intent.sides.iter().collect();
        sides.sort_by(|a, b| (a.dir, &a.name).cmp(&(b.dir, &b.name))); // so that two intents never wait for each other
        for side in sides {
            if !self.hold_name(number, side).await? {
                return Ok(None);
            }
        }
        if let Some(target) = intent.replaced().filter(|target| target.kind == Kind::Directory) {
            self.make_dying(target.ino, number).await?;
        }
        // Last, as all other moves wait for it: what comes before may take long. Nobody who has it waits for a name.
        let is_move = intent.moved().next().is_some();
        let move_number = if is_move { self.claim_moves(number).await? } else { 0 };
        for (ino, _, to) in intent.moved() {
            if self.is_above(ino, to).await? {
                return Err(Error::Invalid("a directory can't be moved into itself"));
            }
        }
        Ok(Some(move_number))
    }

    async fn hold_name(&self, number: u64, side: &Side) -> Result<bool, Error> {
        self.change_leaf(side.dir, &side.name, |leaf, _| {
            let entry = leaf.get(&side.name);
            let (target, intent) = entry.map_or((None, None), |entry| (entry.target, entry.intent));
            match intent {
                Some(intent) if intent == number => return Ok(Step::Keep(true)),
                Some(other) => return Ok(Step::Resolve(other)),
                None if target != side.before => return Ok(Step::Keep(false)),
                None => leaf.set(&side.name, target, Some(number)),
            }
            Ok(Step::Put(true, false))
        })
        .await
    }

    pub(crate) async fn moves(&self) -> Result<Option<Held<Moves>>, Error> {
        self.access.get(&self.access.keys.moves()).await
    }

    /// Waits for the moves before, and begins one. No other can be committed from here on until this one is aborted.
    async fn claim_moves(&self, number: u64) -> Result<u64, Error> {
        let key = self.access.keys.moves();
        let mut tries = Tries::new();
        loop {
            let held = self.moves().await?;
            let before = held.as_ref().map(|held| held.record.clone()).unwrap_or_default();
            if let Some(current) = before.current {
                self.resolve(current).await?;
            }
            let new = Moves { number: before.number + 1, current: Some(number), ..before };
            if let Some(held) = self.access.put(&key, held.as_ref(), new).await?
                && held.record.current == Some(number)
            {
                return Ok(held.record.number);
            }
            tries.again("other clients move directories").await?;
        }
    }

    pub(crate) async fn release_moves(&self, number: u64) -> Result<(), Error> {
        let key = self.access.keys.moves();
        let mut tries = Tries::new();
        loop {
            let Some(held) = self.moves().await?.filter(|held| held.record.current == Some(number)) else {
                return Ok(());
            };
            let new = Moves { current: None, ..held.record.clone() };
            if self.access.put(&key, Some(&held), new).await?.is_some() {
                return Ok(());
            }
            tries.again("other clients move directories").await?;
        }
    }

    /// Waits until an intent is not there, or ends it.
    pub(crate) fn resolve(&self, number: u64) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let (begin, mut tries) = (time::now(), Tries::new());
            loop {
                let Some(held) = self.intent(number).await? else { return Ok(()) };
                match held.record.state {
                    State::Pending if begin.elapsed() < PATIENCE => {}
                    State::Pending | State::Aborted => return self.abort(number, &held).await.map(drop),
                    State::Committed => return self.finish(number, &held).await,
                }
                tries.again("another client changes these names").await?;
            }
        })
    }

    /// Resolves an intent that was met on a name, which does not have its number afterwards.
    pub(crate) fn resolve_on_name<'a>(
        &'a self,
        number: u64,
        dir: u64,
        name: &'a [u8],
    ) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.resolve(number).await?;
            // It is there no more, so a number that is still there says nothing.
            self.settle_name(number, dir, name, None).await
        })
    }

    /// Resolves an intent that was met on a directory's root.
    pub(crate) fn resolve_on_root(&self, number: u64, dir: u64) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.resolve(number).await?;
            self.revive(dir, number).await
        })
    }

    /// Ends a pending intent, or an aborted one; finishes one that was committed meanwhile. Whether nobody else had ended it
    /// before.
    fn abort<'a>(&'a self, number: u64, held: &'a Held<Intent>) -> LocalFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let key = self.access.keys.intent(number);
            let (mut now, mut is_ours, mut tries) = (Some(held.clone()), false, Tries::new());
            while let Some(pending) = now.as_ref().filter(|now| now.record.state == State::Pending) {
                let new = Intent { state: State::Aborted, ..pending.record.clone() };
                now = self.access.put(&key, Some(pending), new).await?;
                is_ours = now.is_some();
                if now.is_none() {
                    tries.again("other clients change these names").await?;
                    now = self.intent(number).await?;
                }
            }
            if let Some(now) = &now
                && now.record.state == State::Committed
            {
                return self.finish(number, now).await.map(|()| false);
            }
            for side in &held.record.sides {
                self.settle_name(number, side.dir, &side.name, None).await?;
            }
            if let Some(target) = held.record.replaced().filter(|target| target.kind == Kind::Directory) {
                self.revive(target.ino, number).await?;
            }
            self.forget_intent(number, State::Aborted, now).await?;
            Ok(is_ours)
        })
    }

    /// Does what a committed intent says, in an order in which the entries' numbers are the last to go: as long as one is there,
    /// whoever meets it does the rest. May be done by several at once, and again.
    fn finish<'a>(&'a self, number: u64, held: &'a Held<Intent>) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let intent = &held.record;
            match intent.replaced() {
                Some(target) if target.kind == Kind::Directory => self.bury(target.ino).await?,
                Some(target) => self.drop_link(target.ino, target.link).await?,
                None => {}
            }
            for (ino, _, to) in intent.moved() {
                let hear = self.change_inode(ino, |inode| {
                    // One that was moved again since has heard of that.
                    if inode.moved < intent.number {
                        (inode.parent, inode.moved, inode.changed) = (to, intent.number, Time::now());
                    }
                    Ok(())
                });
                match spared(hear.await, ino) {
                    Ok(_) | Err(Error::Stale) => {}
                    Err(error) => return Err(error),
                }
            }
            // Before a name is at another place alone: who reads all names while it goes from one to the other, and sees it at
            // neither, finds the inode changed.
            let moved: Vec<u64> = intent.moved().map(|(ino, ..)| ino).collect();
            let renamed = intent.sides.iter().filter_map(|side| side.after);
            for target in renamed.filter(|target| !moved.contains(&target.ino)) {
                let hear = self.change_inode(target.ino, |inode| {
                    inode.changed = Time::now();
                    Ok(())
                });
                match spared(hear.await, target.ino) {
                    Ok(_) | Err(Error::Stale) => {}
                    Err(error) => return Err(error),
                }
            }
            let mut settled = Ok(());
            for side in &intent.sides {
                // One that can't be told does not hold up the other.
                settled = settled.and(self.settle_name(number, side.dir, &side.name, Some(side)).await);
            }
            settled?;
            self.forget_intent(number, State::Committed, Some(held.clone())).await
        })
    }

    /// Takes an intent's number off a name; by `side` the name becomes what it says. A directory that is gone has no names.
    async fn settle_name(&self, number: u64, dir: u64, name: &[u8], side: Option<&Side>) -> Result<(), Error> {
        // Changing a leaf opens it and resolves what is on its root, which nobody needs for a name that is not held.
        let hash = self.hash(dir, name);
        match self.see(dir, hash).await {
            Ok(seen) if seen.entries.iter().all(|entry| entry.name != name || entry.intent != Some(number)) => {
                return Ok(());
            }
            Err(Error::NotFound(_)) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error),
        }
        let settled = self.change_leaf(dir, name, |leaf, _| {
            let Some(entry) = leaf.get(name).filter(|entry| entry.intent == Some(number)) else {
                return Ok(Step::Keep(()));
            };
            let target = side.map_or(entry.target, |side| side.after);
            leaf.set(name, target, None);
            Ok(Step::Put((), side.is_some()))
        });
        match settled.await {
            Err(Error::NotFound(_)) => Ok(()),
            settled => settled,
        }
    }

    /// Removes an intent that is done with in this state, and in no other.
    async fn forget_intent(&self, number: u64, state: State, held: Option<Held<Intent>>) -> Result<(), Error> {
        let mut held = held.filter(|held| held.record.state == state);
        if held.as_ref().is_some_and(|held| held.record.moved().next().is_some()) {
            self.release_moves(number).await?;
        }
        let key = self.access.keys.intent(number);
        let mut tries = Tries::new();
        while let Some(last) = held.filter(|held| held.record.state == state) {
            if self.access.remove(&key, &last).await? {
                break;
            }
            held = self.intent(number).await?;
            tries.again("other clients change these names").await?;
        }
        Ok(())
    }
}
