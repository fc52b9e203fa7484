//! [`Space`]: rows of chunks to write into, taken and given back.
//!
//! Invariants:
//! - A row is marked in its chunk's record before it is written, and its mark goes when no map names it: no row is ever in two
//!   stripes that are named.
//! - Only the owner of a chunk marks rows of it; anybody clears marks, of stripes that it has itself taken out of a map.
//! - Marks of which nobody knows whether they were made, or cleared, are left alone: `fsck` finds rows that nobody names.
//! - Rows that a command may still write late (a column failed, or a write was given up) wait until it can't any more.

mod clear;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use engine::sync::Semaphore;
use engine::task::{self, LocalFuture};
use engine::time::{self, Instant};

use super::chunk::{CLOSED, Chunk, DYING, Marks, NOBODY, Run};
use super::chunks::Chunks;
use super::funds::Charge;
use super::member::{Layout, Members};
use super::place::Resort;
use super::places::Places;
use super::record::{self, Failed, Next};
use super::rest::unix_now;
use super::rows::{ChunkPlace, Marked, Owned, Rows};
use super::write::FAILED_MAX;
use crate::error::Error;
use crate::meta::Meta;

/// How often all chunks are looked at where there seems to be no room. Chosen: that takes seconds where there are many.
const LOOKED_AGAIN: Duration = Duration::from_secs(60);
/// Rows that are marked at once. Chosen: writing them takes many times as long as marking them.
const MARKED_ROWS: u32 = 512;
/// Chunks of the list that are looked at for one write.
const CLAIMS_TRIED: usize = 8;
/// A client whose record is older than this writes nothing: an hour after the last renewal others take its rows for lost.
pub(crate) const RENEWED_WITHIN: Duration = Duration::from_secs(10 * 60);

/// See the module.
pub struct Space {
    meta: Rc<dyn Meta>,
    members: Rc<Members>,
    pub(super) chunks: Chunks,
    client: Cell<u64>,
    renewed: Cell<Instant>,
    rows: RefCell<Rows>,
    places: Places,
    /// One at a time looks for more, or each of many writers would get a chunk of its own.
    turn: Semaphore,
    renew: RefCell<Option<Renew>>,
    /// When all chunks were last looked at.
    looked: Cell<Option<Instant>>,
}

/// Has the client say that it lives, under another number if it must.
pub type Renew = Rc<dyn Fn() -> LocalFuture<'static, ()>>;

/// Rows to be written. Dropped, they go back; once they were begun with, they are taken for written by commands that may come late;
/// from when a map is changed to name them on, also one whose caller goes away meanwhile, they are left to the map.
pub(crate) struct Taken {
    space: Rc<Space>,
    client: u64,
    pub(crate) place: Rc<ChunkPlace>,
    run: Run,
    pub(crate) at: Instant,
    /// What they count.
    charge: Charge,
    /// Commands may have been sent that write them.
    is_begun: bool,
    /// False: a map names them, or may yet.
    is_ours: bool,
}

impl Taken {
    pub(crate) fn row(&self) -> u32 {
        self.run.row
    }

    /// They are written from now on.
    ///
    /// # Errors
    /// None may: others can have taken them for lost.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        self.is_begun = true;
        self.check()
    }

    /// A map is changed to name them from now on.
    ///
    /// # Errors
    /// None may: others can have taken them for lost.
    pub(crate) fn offer(&mut self) -> Result<(), Error> {
        self.check().map(|()| {
            self.charge.offer();
            self.is_ours = false;
        })
    }

    /// What these rows count.
    pub(crate) fn pay(&mut self, charge: Charge) {
        self.charge = charge;
    }

    /// A map names them.
    pub(crate) fn named(&mut self) {
        self.charge.named();
    }

    /// Whether they may be used: others can't have taken them for lost, also where their chunk is nobody's by now.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let is_theirs = self.client != self.space.client.get() || self.at.elapsed() >= RENEWED_WITHIN;
        if is_theirs { Err(expired()) } else { self.space.check() }
    }

    /// No map names them, and none will.
    pub(crate) fn recall(&mut self) {
        self.charge.recall();
        self.is_ours = true;
    }

    /// Whether no map names them, or ever may have.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// Nothing was sent, or all that was has ended: they can be used again at once.
    pub(crate) fn give_back(mut self) {
        let is_ours = std::mem::replace(&mut self.is_ours, false);
        if is_ours && self.client == self.space.client.get() {
            self.space.rows.borrow_mut().put(self.place.number, self.run, time::now());
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.is_ours || self.client != self.space.client.get() {
            return;
        }
        // What may still be written may be taken for that once more.
        let may_be_used = !self.is_begun && self.check().is_ok();
        let mut rows = self.space.rows.borrow_mut();
        match may_be_used {
            true => rows.put(self.place.number, self.run, time::now()),
            false => rows.put_aside(self.place.number, self.run, u32::MAX, time::now()),
        }
    }
}

pub(crate) fn expired() -> Error {
    Error::Unavailable(
        "this client's record was not renewed for ten minutes, or a write took that long: it goes on under another number"
            .into(),
    )
}

impl Space {
    /// Chunks that this client takes rows of, and stretches of rows that wait until no late write can come to them any more.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let rows = self.rows.borrow();
        (rows.owned.len(), rows.count_aside())
    }

    /// Space for a client, whose record was just made: a number that no other client ever had, neither 0 nor all ones.
    pub fn new(meta: Rc<dyn Meta>, members: Rc<Members>, client: u64) -> Rc<Space> {
        let chunks = Chunks::new(Rc::clone(&meta), Rc::clone(&members));
        Rc::new(Space {
            meta,
            members,
            chunks,
            client: Cell::new(client),
            renewed: Cell::new(time::now()),
            rows: RefCell::default(),
            places: Places::default(),
            turn: Semaphore::new(1),
            renew: RefCell::default(),
            looked: Cell::default(),
        })
    }

    /// The client's record was renewed by a change that was sent at `sent`. One that was too old once stays so: others may have
    /// taken the client for dead meanwhile, and what it has of rows for lost.
    pub fn renewed(&self, sent: Instant) {
        if self.check().is_ok() {
            self.renewed.set(sent);
        }
    }

    /// The same, under the number that the client has now: another, if it was too old. What it had is left to `fsck` then.
    pub fn begin_anew(&self, client: u64, sent: Instant) {
        self.renewed.set(sent);
        if self.client.replace(client) != client {
            *self.rows.borrow_mut() = Rows::default();
        }
    }

    /// From now on this is asked where the client was not renewed in time.
    pub fn set_renew(&self, renew: Renew) {
        *self.renew.borrow_mut() = Some(renew);
    }

    /// Whether this client may write.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.renewed.get().elapsed() < RENEWED_WITHIN { Ok(()) } else { Err(expired()) }
    }

    pub(super) fn layout(&self) -> &Layout {
        self.members.layout()
    }

    /// Rows side by side in a chunk all of whose members are well and stay; where that can't be had, unless it must be, in any.
    pub(crate) async fn take(self: &Rc<Self>, rows: u32, must_be_well: bool) -> Result<Taken, Error> {
        if self.check().is_err() {
            // Its host slept, perhaps: it is there again, under another number.
            let renew = self.renew.borrow().clone();
            if let Some(renew) = renew {
                renew().await;
            }
        }
        self.check()?;
        if let Some(taken) = self.from_pool(rows, true) {
            return Ok(taken);
        }
        let _turn = self.turn.acquire(1).await;
        match self.obtain(rows, true).await {
            // Rather a stripe with a column missing than none.
            Err(_) if !must_be_well => self.obtain(rows, false).await,
            obtained => obtained,
        }
    }

    /// Rows of our chunks, of one that becomes ours, or of a new one: of one whose members are all `well`, or of any that will do.
    async fn obtain(self: &Rc<Self>, rows: u32, well: bool) -> Result<Taken, Error> {
        if let Some(taken) = self.obtain_own(rows, well).await? {
            return Ok(taken);
        }
        self.retire().await;
        if let Some(taken) = self.claim(rows, well).await? {
            return Ok(taken);
        }
        match self.create(rows, well).await {
            Err(Error::NoSpace(_)) if self.may_look_again() && self.chunks.list_forgotten().await? => {
                if let Some(taken) = self.claim(rows, well).await? {
                    return Ok(taken);
                }
                self.create(rows, well).await?;
            }
            created => created?,
        }
        // Nothing has come between: only a member can have failed since it was chosen.
        self.from_pool(rows, well).ok_or_else(|| Error::Unavailable("members fail while rows are taken".into()))
    }

    /// Whether all chunks may be looked at, as there seems to be no room.
    fn may_look_again(&self) -> bool {
        let may = self.looked.get().is_none_or(|looked| looked.elapsed() >= LOOKED_AGAIN);
        if may {
            self.looked.set(Some(time::now()));
        }
        may
    }

    /// Of chunks that are ours already.
    async fn obtain_own(self: &Rc<Self>, rows: u32, well: bool) -> Result<Option<Taken>, Error> {
        let mut tried = 0;
        loop {
            if let Some(taken) = self.from_pool(rows, well) {
                return Ok(Some(taken));
            }
            let next = {
                let state = self.rows.borrow();
                let mut fit = state.owned.range(tried..).filter(|(_, owned)| owned.longest_free >= rows);
                fit.find(|(_, owned)| self.will_do(&owned.place, well)).map(|(number, _)| *number)
            };
            let Some(number) = next else { return Ok(None) };
            let outcome = self.mark(number, rows, None).await?;
            self.admit(number, outcome);
            tried = number + 1;
        }
    }

    fn is_well(&self, place: &ChunkPlace) -> bool {
        let members = place.columns.iter().map(|column| self.members.get(column.member));
        members.into_iter().all(|member| member.is_some_and(|member| member.is_well() && !member.is_out()))
    }

    /// Whether all its members are well; or, without `well`, whether a stripe can be written there, perhaps, with no more columns
    /// missing than may be.
    fn will_do(&self, place: &ChunkPlace, well: bool) -> bool {
        let members = place.columns.iter().map(|column| self.members.get(column.member));
        let away = members.filter(|member| member.as_ref().is_none_or(|member| !member.is_reachable())).count();
        if well { self.is_well(place) } else { away <= FAILED_MAX }
    }

    /// Whether a member of it gets nothing new.
    fn is_going(&self, place: &ChunkPlace) -> bool {
        self.members.out_of(&place.columns) != 0
    }

    fn from_pool(self: &Rc<Self>, rows: u32, well: bool) -> Option<Taken> {
        let mut state = self.rows.borrow_mut();
        state.ripen(time::now());
        let mut owned = state.owned.values_mut().filter(|owned| self.will_do(&owned.place, well));
        let (run, place) = owned.find_map(|owned| Some((owned.take(rows)?, Rc::clone(&owned.place))))?;
        let (space, client, charge) = (Rc::clone(self), self.client.get(), Charge::none());
        Some(Taken { space, client, place, run, at: time::now(), charge, is_begun: false, is_ours: true })
    }

    /// Marks rows of a chunk that is ours; with `claims`, of one that is nobody's and becomes it, if its members are all well, or,
    /// where that says false, will do.
    async fn mark(&self, number: u32, rows: u32, claims: Option<bool>) -> Result<Marked, Error> {
        let client = self.client.get();
        let key = self.chunks.key(number);
        let marked = record::change(&*self.meta, &key, |body| {
            let Some(body) = body else { return Ok(Next::Keep(Marked::NotOurs)) };
            let mut chunk = self.chunks.decode(body)?;
            let place = Rc::new(ChunkPlace { number, columns: chunk.columns.clone() });
            if chunk.owner == DYING {
                return Ok(Next::Keep(Marked::Dying));
            }
            let expected = if claims.is_some() { NOBODY } else { client };
            if chunk.owner != expected {
                return Ok(Next::Keep(Marked::NotOurs));
            }
            chunk.marks.wake(unix_now(), 0);
            let longest = |chunk: &Chunk| chunk.marks.free_runs().iter().map(|run| run.rows).max().unwrap_or(0);
            if claims.is_some_and(|well| self.is_going(&place) || !self.will_do(&place, well)) {
                return Ok(Next::Keep(Marked::Short(longest(&chunk))));
            }
            let taken = chunk.marks.take(rows, MARKED_ROWS);
            if taken.is_empty() {
                return Ok(Next::Keep(Marked::Short(longest(&chunk))));
            }
            chunk.owner = client;
            Ok(Next::Put(chunk.encode(), Marked::Rows(taken, place, longest(&chunk))))
        });
        match marked.await {
            // What was marked under a name that is ours no more is left to `fsck`.
            Ok(_) if self.client.get() != client => Err(expired()),
            Ok(marked) => Ok(marked),
            Err(Failed { may_be_done: true, error, .. }) => {
                // Which of its rows are marked, and for whom, nobody knows: it is used no more.
                let mut rows = self.rows.borrow_mut();
                rows.owned.remove(&number);
                rows.doubtful.insert(number);
                Err(error)
            }
            Err(failed) => Err(failed.error),
        }
    }

    /// Keeps account of what was marked.
    fn admit(&self, number: u32, marked: Marked) {
        let mut state = self.rows.borrow_mut();
        match marked {
            Marked::Rows(runs, place, longest_free) => {
                let owned = state.owned.entry(number).or_insert(Owned { place, pool: Vec::new(), longest_free });
                owned.longest_free = longest_free;
                runs.into_iter().for_each(|run| owned.put(run));
            }
            Marked::Short(longest_free) => {
                if let Some(owned) = state.owned.get_mut(&number) {
                    owned.longest_free = longest_free;
                }
            }
            Marked::NotOurs | Marked::Dying => drop(state.owned.remove(&number)),
        }
    }

    /// Makes a chunk ours that is nobody's, and takes rows of it.
    async fn claim(self: &Rc<Self>, rows: u32, well: bool) -> Result<Option<Taken>, Error> {
        let mut list = self.chunks.unowned.load().await?;
        if list.is_empty() {
            return Ok(None);
        }
        let first = task::random_u64() as usize % list.len();
        list.rotate_left(first);
        for number in list.into_iter().take(CLAIMS_TRIED) {
            let marked = self.mark(number, rows, Some(well)).await?;
            match &marked {
                Marked::Short(_) => continue,
                Marked::Dying => self.chunks.bury(number).await?,
                _ => {}
            }
            let is_claimed = matches!(marked, Marked::Rows(..));
            // First: what is marked for us and not admitted is lost to everybody. And taken at once: as soon as this waits, others
            // who need no turn for it take what they find.
            let mut taken = None;
            if is_claimed {
                self.admit(number, marked);
                taken = self.from_pool(rows, well);
            }
            match self.chunks.unowned.remove(number).await {
                Err(error) if !is_claimed => return Err(error),
                // Whoever finds it there finds whose it is.
                Err(error) => {
                    tracing::debug!(chunk = number, %error, "a chunk stays in the list of those without an owner")
                }
                Ok(()) => {}
            }
            if is_claimed {
                return Ok(taken);
            }
        }
        Ok(None)
    }

    /// Makes a new chunk, with rows of it marked.
    async fn create(&self, rows: u32, well: bool) -> Result<(), Error> {
        let region_rows = self.members.layout().region_rows();
        if rows > region_rows {
            return Err(Error::Invalid("more rows are asked for than a chunk has"));
        }
        let number = (task::random_u64() as u32).clamp(1, CLOSED - 1);
        let key = self.chunks.key(number);
        if record::load(&*self.meta, &key).await?.is_some() {
            return Err(Error::Unavailable("a chunk's number was drawn twice: try again".into()));
        }
        let begun = time::now();
        let columns =
            self.chunks.regions.take(number, if well { Resort::First } else { Resort::Last(FAILED_MAX) }).await?;
        let place = Rc::new(ChunkPlace { number, columns: columns.clone() });
        let client = self.client.get();
        let mut chunk = Chunk { owner: client, columns, marks: Marks::new(region_rows) };
        let runs = chunk.marks.take(rows, MARKED_ROWS);
        let longest = chunk.marks.free_runs().iter().map(|run| run.rows).max().unwrap_or(0);
        let made = record::ensure(&*self.meta, &key, |body| {
            let Some(body) = body else { return Ok(Next::Put(chunk.encode(), true)) };
            // Nobody else has these regions: it is this one.
            Ok(Next::Keep(self.chunks.decode(body)?.columns == chunk.columns))
        });
        let made = made.await.inspect_err(|_| {
            if self.client.get() == client {
                self.rows.borrow_mut().doubtful.insert(number);
            }
        });
        match made? {
            // Regions without a chunk for an hour are given to others: those of one that was put so late may be theirs.
            true if self.client.get() != client || begun.elapsed() >= RENEWED_WITHIN => Err(expired()),
            true => {
                self.admit(number, Marked::Rows(runs, place, longest));
                Ok(())
            }
            // Another has drawn the same number at the same time.
            false => {
                self.chunks.regions.give_back(number, &place.columns).await?;
                Err(Error::Unavailable("a chunk's number was drawn twice: try again".into()))
            }
        }
    }

    /// Where a chunk lies; `None`: there is no such chunk.
    pub async fn place(&self, number: u32) -> Result<Option<Rc<ChunkPlace>>, Error> {
        self.places.get(&self.chunks, &self.members, number).await
    }

    /// What lies in the chunk does not verify: it may be another one of the same number.
    pub(crate) fn forget_place(&self, number: u32) {
        self.places.forget(number);
    }
}
