//! Rows given back: cleared in the records of their chunks, or resting there for as long as late commands may write them.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use engine::time::{self, Instant};

use super::Space;
use crate::data::chunk::{After, DYING, Run};
use crate::data::record::{self, Failed, Next};
use crate::data::rest::{Rest, unix_now};
use crate::data::rows::{Owned, SETTLED_AFTER, may_clear};
use crate::data::stripe::Stripe;
use crate::error::Error;

/// Marks that wait to be cleared are cleared when they are so many, or the first has waited so long.
const CLEARS_WAITING: usize = 32;
const CLEARS_WAIT: Duration = Duration::from_secs(5);

impl Space {
    /// No map names these stripes any more: whoever calls this has itself taken them out of one, just now, and knows it.
    pub fn free(&self, stripes: &[Rc<Stripe>]) {
        let _timely = self.free_since(stripes, time::now());
    }

    /// The same, by a change that was sent then: its answer may have come hours later, when others have taken the rows for lost,
    /// and have them. False: so it is.
    pub(crate) fn free_since(&self, stripes: &[Rc<Stripe>], sent: Instant) -> bool {
        if !may_clear(sent, time::now()) {
            tracing::warn!(
                stripes = stripes.len(),
                "rows are left to fsck, as it came too late that nothing names them"
            );
            return false;
        }
        let mut state = self.rows.borrow_mut();
        for stripe in stripes {
            let run = Run { row: stripe.id.row, rows: stripe.rows(self.layout().shape) };
            // A column that failed may be written yet, and would spoil what comes there next: of a closed chunk on closed pages
            // nothing does.
            let place = self.places.known(stripe.id.chunk);
            let out = place.map_or(0, |place| self.members.out_of(&place.columns));
            match (stripe.missing, stripe.missing & !out) {
                (0, _) => state.put(stripe.id.chunk, run, sent),
                (_, 0) => state.put_closing(stripe.id.chunk, run, sent),
                _ => state.put_aside(stripe.id.chunk, run, stripe.missing, sent),
            }
        }
        true
    }

    /// What is ours of members that get nothing new goes back, so that they become empty: chunks, and rows that were aside for
    /// their sake.
    pub async fn leave(&self) {
        // Asked each minute, and nearly always for nothing.
        if self.members.all().iter().all(|member| !member.is_out()) {
            return;
        }
        let _turn = self.turn.acquire(1).await;
        let going = |owned: &Owned| self.is_going(&owned.place);
        self.release_those(going).await;
        self.release_doubtful().await;
        let aside = self.rows.borrow().chunks_aside();
        let mut harmless = BTreeMap::new();
        for number in aside {
            if let Ok(Some(place)) = self.place(number).await {
                harmless.insert(number, self.members.out_of(&place.columns));
            }
        }
        self.rows.borrow_mut().put_back(&harmless, time::now());
    }

    /// Clears marks that wait for it, if it is time.
    pub async fn tend(&self) {
        self.rows.borrow_mut().ripen(time::now());
        let (count, since) = self.rows.borrow().waiting();
        if count >= CLEARS_WAITING || since.is_some_and(|since| since.elapsed() >= CLEARS_WAIT) {
            self.settle().await;
        }
    }

    /// Clears all marks that wait for it. What fails is tried again with the next ones, or left to `fsck`.
    pub async fn settle(&self) {
        self.rows.borrow_mut().ripen(time::now());
        let clears = self.rows.borrow_mut().take_clears(time::now());
        for (number, runs) in clears {
            let closes = self.rows.borrow().is_closing(number);
            let changed = match self.close_pages(number, closes).await {
                Ok(()) => self.change_marks(number, &runs, false, closes).await,
                Err(error) => Err(Failed::from(error)),
            };
            let after = match changed {
                Ok(after) => {
                    // Rows that have come meanwhile may want it closed first.
                    if closes {
                        self.rows.borrow_mut().closed(number);
                    }
                    after
                }
                Err(failed) => {
                    tracing::warn!(chunk = number, error = %failed.error, "rows are not marked free");
                    if !failed.may_be_done {
                        self.rows.borrow_mut().put_clears(number, runs);
                    }
                    continue;
                }
            };
            self.see_to(number, after).await;
        }
    }

    /// Before a chunk is closed, so that late commands to its members that get nothing new do no harm, all their pages are.
    async fn close_pages(&self, number: u32, closes: bool) -> Result<(), Error> {
        if !closes {
            return Ok(());
        }
        let Some(place) = self.place(number).await? else { return Ok(()) };
        let out = self.members.out_of(&place.columns);
        for (_, column) in place.columns.iter().enumerate().filter(|(column, _)| out >> column & 1 == 1) {
            self.chunks.regions.close(column.member).await?;
        }
        Ok(())
    }

    /// Notes in their chunks which rows rest, and until when: whoever changes these next clears them.
    async fn note_rests(&self) {
        let rests = self.rows.borrow_mut().take_aside(time::now(), unix_now());
        for (number, rests) in rests {
            let key = self.chunks.key(number);
            let noted = record::change(&*self.meta, &key, |body| {
                let Some(body) = body else { return Ok(Next::Keep(After::Nothing)) };
                let mut chunk = self.chunks.decode(body)?;
                // Later than that `fsck` may have cleared them, and others have marked them.
                let is_ours = |since: Instant| may_clear(since + SETTLED_AFTER, time::now());
                let rests: Vec<Rest> =
                    rests.iter().filter(|(since, _)| is_ours(*since)).map(|(_, rest)| *rest).collect();
                if chunk.owner == DYING || rests.is_empty() {
                    return Ok(Next::Keep(After::Nothing));
                }
                let after = chunk.rest(number, &rests);
                Ok(Next::Put(chunk.encode(), after))
            });
            match noted.await {
                Ok(after) => self.see_to(number, after).await,
                Err(failed) => {
                    tracing::warn!(chunk = number, error = %failed.error, "rows that rest are left to fsck");
                }
            }
        }
    }

    /// Gives back what was marked and not used, and owns nothing any more. What rows rest, for late commands, is noted.
    pub async fn close(&self) {
        let _turn = self.turn.acquire(1).await;
        self.settle().await;
        self.note_rests().await;
        let owned = std::mem::take(&mut self.rows.borrow_mut().owned);
        for (number, owned) in owned {
            self.release(number, owned).await;
        }
        self.release_doubtful().await;
    }

    /// What may be ours by its record is not: whoever lives keeps nothing that it does not know of. What was marked is left to
    /// `fsck`, which leaves alone what is somebody's who lives.
    async fn release_doubtful(&self) {
        let numbers: Vec<u32> = self.rows.borrow().doubtful.iter().copied().collect();
        for number in numbers {
            if self.rows.borrow().owned.contains_key(&number) {
                self.rows.borrow_mut().doubtful.remove(&number);
                continue;
            }
            match self.change_marks(number, &[], true, false).await {
                Ok(after) => {
                    self.rows.borrow_mut().doubtful.remove(&number);
                    self.see_to(number, after).await;
                }
                Err(failed) => tracing::warn!(chunk = number, error = %failed.error, "a chunk may be ours yet"),
            }
        }
    }

    /// Chunks of ours of which nothing is left to take are ours no more.
    pub(super) async fn retire(&self) {
        let spent = |owned: &Owned| owned.pool.is_empty() && owned.longest_free == 0;
        self.release_those(spent).await;
    }

    async fn release_those(&self, fits: impl Fn(&Owned) -> bool) {
        let numbers: Vec<u32> =
            self.rows.borrow().owned.iter().filter(|(_, owned)| fits(owned)).map(|(number, _)| *number).collect();
        // One after the other out of what is remembered: whoever is stopped here has the others still.
        for number in numbers {
            let owned = self.rows.borrow_mut().owned.remove(&number);
            if let Some(owned) = owned {
                self.release(number, owned).await;
            }
        }
    }

    async fn release(&self, number: u32, owned: Owned) {
        let (now, client) = (time::now(), self.client.get());
        let pool: Vec<(Instant, Run)> = owned.pool.iter().map(|run| (now, *run)).collect();
        match self.change_marks(number, &pool, true, false).await {
            Ok(after) => self.see_to(number, after).await,
            // It is ours as before, unless we have another name by now, and is given back another time.
            Err(Failed { may_be_done: false, error, .. }) if self.client.get() == client => {
                tracing::warn!(chunk = number, %error, "a chunk is not given back");
                self.rows.borrow_mut().owned.entry(number).or_insert(owned);
            }
            Err(failed) => {
                tracing::warn!(chunk = number, error = %failed.error, "a chunk's free rows are left to fsck");
                if self.client.get() == client {
                    self.rows.borrow_mut().doubtful.insert(number);
                }
            }
        }
    }

    /// Clears marks of a chunk that have waited since then; with `releases` it is nobody's then, with `closes` nobody makes more.
    async fn change_marks(
        &self,
        number: u32,
        runs: &[(Instant, Run)],
        releases: bool,
        closes: bool,
    ) -> Result<After, Failed> {
        let client = self.client.get();
        record::change(&*self.meta, &self.chunks.key(number), |body| {
            let Some(body) = body else { return Ok(Next::Keep(After::Nothing)) };
            let mut chunk = self.chunks.decode(body)?;
            if chunk.owner == DYING || (releases && chunk.owner != client) {
                return Ok(Next::Keep(After::Nothing));
            }
            // Each time anew: as this record is read now, the marks may be those of others.
            let now = time::now();
            let timely: Vec<Run> =
                runs.iter().filter(|(since, _)| may_clear(*since, now)).map(|(_, run)| *run).collect();
            if timely.is_empty() && !releases {
                return Ok(Next::Keep(After::Nothing));
            }
            if closes {
                chunk.marks.close();
            }
            let after = chunk.clear(number, &timely, releases);
            Ok(Next::Put(chunk.encode(), after))
        })
        .await
    }

    async fn see_to(&self, number: u32, after: After) {
        if let Err(error) = self.chunks.see_to(number, after).await {
            tracing::warn!(chunk = number, %error, "a chunk's free rows are left to fsck");
        }
        if after == After::Bury {
            self.forget_place(number);
        }
    }
}
