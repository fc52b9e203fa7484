//! How a key changes on a member: what the register says (`register`), put into force.
//!
//! A loop around one compare-and-write of the home page. What was placed outside for an image is, in the end, either
//! referred to by the page, or freed, or abandoned: abandoned as long as an image that refers to it may yet land.
//!
//! After an attempt of unknown outcome the page is read again. If it shows other bytes than the attempt expected, the
//! attempt has happened or never will (images never repeat): the page itself tells which. If it shows the same bytes, the
//! attempt may still land; the same image is then issued again, and one of the two succeeds at most.

use std::rc::Rc;
use std::time::Duration;

use device::Namespace;
use engine::View;
use engine::backoff::Backoff;
use engine::time::Instant;
use pool::TablePage;

use super::bundle::Bundles;
use super::ledger::{Copy, FRESH_TIME_MAX, Leftover};
use super::locks::Guard;
use super::plan::{Change, Placed, Plan, Put, plan_put, unused};
use super::register::{Outcome, Request, Verdict, judge};
use super::search::Search;
use super::{ATTEMPTS_MAX, FREES_MAX, MOVES_MAX, PageImage, Table, TableError, bump, uncertain};
use crate::page::{ENTRY_FIXED_BYTES, Entry, PlaceKind, Reference, Stored, TablePageView};
use crate::types::{Key, OpId, Timestamp};
use crate::value::Value;

/// Misses after which a writer steps back, so that writers on several hosts do not undo each other's turns.
const MISSES_BEFORE_BACKOFF: u32 = 2;
/// First step back; doubles with each miss, randomly shortened. Guessed: two round trips.
const BACKOFF_FIRST: Duration = Duration::from_micros(100);
/// The longest.
const BACKOFF_MAX: Duration = Duration::from_micros(6400);

/// What a member answers.
#[derive(Clone, Debug)]
pub struct Reply {
    /// What came of the request.
    pub outcome: Outcome,
    /// The home page as it was then; for the next request.
    pub image: PageImage,
    /// A try before the one that was answered ended in doubt: where the answer is a refusal, that one may have happened.
    pub doubt: bool,
}

/// What the caller knows that spares a member a look, or tells it of damage.
#[derive(Default)]
pub struct Known {
    /// The home page, if it was read just now.
    pub image: Option<PageImage>,
    /// The record's value, if it was placed already.
    pub placed: Option<Early>,
    /// A reference under the record's timestamp whose copy does not verify; it is replaced.
    pub damaged: Option<Reference>,
}

/// A value that was placed before its home page was read: for a put by the operation that it was placed for, at once.
pub struct Early {
    reference: Reference,
    op: OpId,
    since: Instant,
    /// The connection that it was placed over. That it is another by now tells of a pause that the clock may know nothing of.
    connection: u64,
}

/// An attempt that may or may not have happened.
struct Doubt {
    expected: View,
    /// What it would have unlinked.
    unlinks: Vec<Copy>,
}

/// The state of one store.
struct Attempt<'a> {
    page: TablePage,
    request: &'a Request,
    put: Put<'a>,
    damaged: Option<Reference>,
    /// The home page as it was before anything was placed.
    given: Option<View>,
    placed: Vec<Placed>,
    bundles: Bundles,
    doubt: Option<Doubt>,
    /// There was one.
    doubted: bool,
    /// Copies that no page refers to any more, or ever did.
    garbage: Vec<Copy>,
    /// The page that was seen last has bundles: in one of them somebody may have put an entry that refers to a placed copy.
    bundled: bool,
    /// Of places for what leaves the page.
    search: Search,
    /// The page was written.
    written: bool,
}

/// What a page is to become.
struct Image {
    new: View,
    /// What it no longer refers to.
    unlinks: Vec<Copy>,
    outcome: Outcome,
}

enum Step {
    Done(Outcome, View),
    Place {
        key: Vec<u8>,
        timestamp: Timestamp,
        value: Value,
    },
    /// Something else is wanted to be placed.
    Again,
    Missed,
}

impl Table {
    /// Does what `request` says for `key`, by the rules of `register`. Done means stable.
    pub async fn apply(self: &Rc<Self>, key: &Key, request: &Request, known: Known) -> Result<Reply, TableError> {
        let room = self.room();
        let put = match request.record() {
            Some(record) => Put::new(key.bytes(), record, room),
            None => Put::promise(key.bytes()),
        };
        let placed = known.placed.map(|early| {
            debug_assert_eq!(
                early.op, put.timestamp.op,
                "invariant: copies verify under the operation that wrote them"
            );
            let Early { reference, since, connection, .. } = early;
            let (key, timestamp) = (key.bytes().to_vec(), put.timestamp);
            Placed { key, timestamp, reference, since, early: Some(connection), bundle: None }
        });
        let (given, bundles) = known.image.map(|image| (image.bytes, image.bundles)).unzip();
        let mut attempt = Attempt {
            page: self.home(key),
            request,
            put,
            damaged: known.damaged,
            given,
            placed: placed.into_iter().collect(),
            bundles: bundles.unwrap_or_default(),
            doubt: None,
            doubted: false,
            garbage: Vec::new(),
            bundled: false,
            search: self.search(),
            written: false,
        };
        let result = self.run(&mut attempt).await.map_err(|error| match error {
            // An earlier try may yet happen: "out of space" would say that nothing did.
            TableError::OutOfSpace(_) | TableError::Device(device::Error::OutOfSpace) if attempt.doubt.is_some() => {
                TableError::Contended
            }
            // It may have happened before the page was sealed.
            TableError::Sealed { .. } if attempt.doubted => TableError::Contended,
            error => error,
        });
        let (page, bundles, doubt) = (attempt.page, std::mem::take(&mut attempt.bundles), attempt.doubted);
        // After a promise comes what it was given for: nothing may get between.
        let written = attempt.written && !matches!(request, Request::Prepare(_));
        self.settle(attempt).await;
        if let (true, Ok((_, image))) = (written, &result) {
            self.bring_home_later(page, image);
        }
        result.map(|(outcome, bytes)| Reply { outcome, image: PageImage { page, bytes, bundles }, doubt })
    }

    /// Stores `record` under `key` unless the member holds the same or something newer.
    #[cfg(test)]
    pub(crate) async fn store_if_newer(
        self: &Rc<Self>,
        key: &Key,
        record: &super::Record,
        image: Option<PageImage>,
        damaged: Option<Reference>,
    ) -> Result<Outcome, TableError> {
        let known = Known { image, damaged, placed: None };
        Ok(self.apply(key, &Request::Store(record.clone()), known).await?.outcome)
    }

    /// Places the value of a put by `op` that is to follow, if it fits no page, so that this and the reading of the home page
    /// take one round trip together. Whether it was placed before or after the page was read is not known then: that no
    /// collector has condemned it rests on its age ([`FRESH_TIME_MAX`]), and on the connection, as with the stock (`stock`).
    pub async fn place_early(&self, key: &Key, op: OpId, value: &Value) -> Result<Option<Early>, TableError> {
        if ENTRY_FIXED_BYTES + key.bytes().len() + value.len() <= self.room() {
            return Ok(None);
        }
        let (since, connection) = (engine::time::now(), self.namespace.link().epoch);
        let reference = self.place_extents(self.home(key), op, value).await?;
        Ok(Some(Early { reference, op, since, connection }))
    }

    /// Frees what was placed for a put that did not follow.
    pub async fn discard_early(self: &Rc<Self>, key: &Key, early: Early) {
        self.free_later(self.home(key), early.reference, early.op).await;
    }

    async fn run(&self, attempt: &mut Attempt<'_>) -> Result<(Outcome, View), TableError> {
        let (mut misses, mut backoff) = (0, Backoff::new(BACKOFF_FIRST, BACKOFF_MAX));
        for _ in 0..ATTEMPTS_MAX {
            match self.step(attempt).await? {
                Step::Done(outcome, image) => return Ok((outcome, image)),
                Step::Place { key, timestamp, value } => {
                    // No lock is held here: the guest's page may be the one that another writer holds while it wants ours.
                    let since = engine::time::now();
                    let placed = self.place_wanted(attempt.page, timestamp.op, &value, &mut attempt.search).await?;
                    let copy = placed.map(|reference| Placed::new(key, timestamp, &value, reference, since));
                    attempt.placed.extend(copy);
                }
                Step::Again => {}
                Step::Missed => {
                    misses += 1;
                    if misses > MISSES_BEFORE_BACKOFF {
                        engine::time::sleep_within(backoff.pause()).await;
                    }
                }
            }
        }
        Err(TableError::Contended)
    }

    /// One look at the page and, if all is in place, one compare-and-write.
    async fn step(&self, attempt: &mut Attempt<'_>) -> Result<Step, TableError> {
        let page = attempt.page;
        let lock = self.locks.lock(u64::from(page.0)).await;
        let handed = lock.image();
        let older = handed.is_none() && attempt.given.is_some();
        let expected = match handed.or(attempt.given.take()) {
            Some(image) => image,
            None => self.read_raw(page).await?,
        };
        let view = self.decode(page, &expected)?;
        self.check_seal(page, view.header().seal)?;
        if !self.fetch_bundles(page, &view, Some(attempt.put.key), &mut attempt.bundles).await? {
            lock.set_image(None); // Either the page is another by now, or the next line says that it is damaged.
            attempt.bundles = self.complete(page, self.read_raw(page).await?, Some(attempt.put.key)).await?.bundles;
            return Ok(Step::Missed);
        }
        let bundles = attempt.bundles.clone();
        let bundled = bundles.entry(&view, attempt.put.key);
        let entry = view.entry(attempt.put.key).or(bundled.map(|bundled| bundled.entry));
        let old = entry.and_then(|entry| match entry.stored {
            Stored::Reference(_, reference) => Some((reference, entry.timestamp.op)),
            Stored::Inline(_) | Stored::Tombstone => None,
        });
        attempt.settle_doubt(entry.as_ref(), old, &view, &expected);
        let damaged = old.is_some_and(|(reference, _)| Some(reference) == attempt.damaged);
        let outcome = match judge(attempt.request, entry.as_ref(), damaged) {
            Verdict::Is(outcome) => {
                attempt.forget_used(&view);
                return Ok(Step::Done(outcome, expected));
            }
            Verdict::Becomes(change, promise, outcome) => {
                (attempt.put.change, attempt.put.promise) = (change, promise);
                outcome
            }
        };
        let old = old.filter(|_| attempt.put.change == Change::Replace);
        let connection = self.namespace.link().epoch;
        let is_doubtful = |copy: &Placed| {
            copy.since.elapsed() > FRESH_TIME_MAX || copy.early.map_or(!older, |before| before != connection)
        };
        if attempt.placed.iter().any(is_doubtful) {
            self.look_at_copies(attempt).await?;
        }
        let next = match plan_put(&view, &bundles, &attempt.put, &attempt.placed, &attempt.search) {
            Ok((Plan::Write(new), emptied)) => {
                let unlinks = old.into_iter().chain(emptied.into_iter().map(|bundle| (bundle, OpId::default())));
                let image = Image { new, unlinks: unlinks.collect(), outcome };
                return self.publish(attempt, &lock, expected, image).await;
            }
            Ok((Plan::Place { key, timestamp, value }, _)) => Step::Place { key, timestamp, value },
            Err(TableError::OutOfSpace(_)) if attempt.search.refused() => Step::Again,
            Err(error) => return Err(attempt.search.refusal(error)),
        };
        // What is placed now is younger than this image: no collector can have condemned it when the image is replaced.
        attempt.given = (older || attempt.placed.is_empty()).then_some(expected);
        Ok(next)
    }

    /// The compare-and-write of a step.
    async fn publish(
        &self,
        attempt: &mut Attempt<'_>,
        lock: &Guard<'_>,
        expected: View,
        Image { new, unlinks, outcome }: Image,
    ) -> Result<Step, TableError> {
        let page = attempt.page;
        lock.set_image(None);
        match self.replace(self.layout.table(page), expected.clone(), new.clone()).await {
            Ok(()) => {
                attempt.doubt = None;
                attempt.garbage.extend(unlinks);
                if !attempt.placed.is_empty() {
                    attempt.forget_used(&self.decode(page, &new)?);
                }
                attempt.written = true;
                lock.set_image(Some(new.clone()));
                Ok(Step::Done(outcome, new))
            }
            Err(device::Error::CompareFailure) => {
                bump(&self.stats.misses);
                Ok(Step::Missed)
            }
            Err(error) if uncertain(&error) => {
                attempt.doubted = true;
                if attempt.doubt.replace(Doubt { expected, unlinks }).is_some() {
                    return Err(error.into());
                }
                Ok(Step::Missed)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What was placed for an older image may have been condemned since (`collect`): only what is whole may be published.
    async fn look_at_copies(&self, attempt: &mut Attempt<'_>) -> Result<(), TableError> {
        let mut index = 0;
        while let Some(copy) = attempt.placed.get(index) {
            if self.is_whole(attempt.page, &copy.reference, copy.timestamp.op).await? {
                index += 1;
            } else if attempt.doubt.is_some() {
                // An image that refers to it may yet land: not ours to free.
                return Err(TableError::Contended);
            } else {
                let copy = attempt.placed.swap_remove(index);
                attempt.garbage.push((copy.reference, copy.timestamp.op));
            }
        }
        Ok(())
    }

    /// Frees what a store has left without a reference.
    async fn settle(self: &Rc<Self>, attempt: Attempt<'_>) {
        let Attempt { page, placed, doubt, mut garbage, bundled, .. } = attempt;
        let placed = placed.into_iter().map(|copy| (copy.reference, copy.timestamp.op));
        match doubt {
            // An image that refers to the one and not to the other may yet land.
            Some(doubt) => {
                let expected = *self.decode(page, &doubt.expected).expect("invariant: it was planned from").header();
                let undecided = placed.chain(doubt.unlinks);
                undecided.for_each(|copy| self.keep(Leftover::Undecided(page, copy, Some(expected))));
            }
            None if bundled => placed.for_each(|copy| self.keep(Leftover::Undecided(page, copy, None))),
            None => garbage.extend(placed),
        }
        for (reference, op) in garbage {
            self.free_later(page, reference, op).await;
        }
    }

    /// Frees a copy in the background, or in the foreground if too much is going on there.
    pub(super) async fn free_later(self: &Rc<Self>, home: TablePage, reference: Reference, op: OpId) {
        let table = self.clone();
        match self.frees.try_acquire(1) {
            Some(permit) => engine::task::spawn(async move {
                table.free_or_keep(home, reference, op).await;
                drop(permit);
            })
            .detach(),
            None => table.free_or_keep(home, reference, op).await,
        }
    }

    async fn free_or_keep(&self, home: TablePage, reference: Reference, op: OpId) {
        match self.free(home, &reference, op).await {
            Ok(()) => {}
            Err(error) if error.may_pass() => self.keep(Leftover::Garbage(home, (reference, op))),
            Err(error) => {
                bump(&self.stats.abandoned);
                tracing::debug!(home = home.0, ?reference, %error, "a copy could not be freed");
            }
        }
    }

    /// Frees a copy, if it is not free already.
    pub(super) async fn free(&self, home: TablePage, reference: &Reference, op: OpId) -> Result<(), TableError> {
        match reference.kind {
            PlaceKind::Guest => self.free_guest(home, reference).await.map(|_was_there| ()),
            PlaceKind::Extent | PlaceKind::Index => self.free_extents(reference, op).await,
        }
    }

    /// Waits until everything that is being freed is free, or known to be out of reach for now, and gives the stock back.
    pub async fn quiesce(&self) {
        // What has come home is then freed outside.
        drop(self.moves.acquire(MOVES_MAX).await);
        drop(self.frees.acquire(FREES_MAX).await);
        self.return_stock().await;
        self.sweep().await;
    }

    pub(super) fn check_seal(&self, page: TablePage, seal: u64) -> Result<(), TableError> {
        if seal > self.epoch { Err(TableError::Sealed { page: page.0, seal }) } else { Ok(()) }
    }
}

impl Attempt<'_> {
    /// Forgets the placed copies that `view`, the page as it is, refers to; the others are left for `settle`.
    fn forget_used(&mut self, view: &TablePageView<'_>) {
        self.bundled = view.header().forwards > 0;
        // The entry may be in one of them: whoever is given the page looks for it there.
        let bundles = self.placed.iter().filter_map(|copy| Some((copy.reference.copy, copy.bundle.clone()?)));
        bundles.for_each(|(copy, bytes)| self.bundles.add(copy, bytes));
        self.placed = unused(view, std::mem::take(&mut self.placed));
    }

    /// Settles what an earlier attempt has left in doubt, now that the page is `now`: `entry` of its and its copy `old`.
    fn settle_doubt(&mut self, entry: Option<&Entry<'_>>, old: Option<Copy>, view: &TablePageView<'_>, now: &View) {
        let Some(doubt) = self.doubt.take_if(|doubt| doubt.expected[..] != now[..]) else { return };
        if entry.is_some_and(|entry| entry.timestamp >= self.put.timestamp) {
            // It may have happened, and unlinked these; if another did, freeing them twice is harmless.
            let used = |copy: &Copy| Some(*copy) == old || view.forwards().any(|forward| forward.reference == copy.0);
            self.garbage.extend(doubt.unlinks.into_iter().filter(|copy| !used(copy)));
        }
    }
}
