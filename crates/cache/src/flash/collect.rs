//! The oldest segment is given up, so that there is room for what comes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::task::LocalFuture;
use engine::time;

use super::FlashLog;
use super::counters::count;
use super::place::Place;
use super::read::{Fetched, Lookup, Which, is_away};
use super::recover::records_of;
use super::summary;

/// How often an item is read whose target is away, and the pause in between. Guessed: a restart of the target.
const AWAY_TRIES_MAX: usize = 100;
const AWAY_PAUSE: Duration = Duration::from_millis(100);

/// An item of a segment that is collected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The upper bits of its key's hash ([`super::HASH_BITS`]).
    pub hash: u64,
    /// Where it is.
    pub place: Place,
    /// In which slot of its page.
    slot: usize,
}

/// A segment that is collected. For every item that the index still has at its place the caller either drops that from
/// the index, or fetches the item, appends it anew ([`super::Reason::Kept`]) and changes the index; nothing of it needs
/// to be invalidated. (An append that is refused as full waits for [`FlashLog::room`], as long as there may be some, or
/// gives the item up.) Then the segment is given back by [`Collection::finish`]. Dropping a collection does that too.
pub struct Collection<'a> {
    log: &'a FlashLog,
    segment: u32,
    items: Vec<Listed>,
}

/// What a log wants of who collects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// That the oldest segment is collected.
    Collection,
    /// Nothing any more. Where it has failed the index should forget what was there.
    End,
}

/// What is to be collected next.
enum Oldest<'a> {
    /// What could not be written; its items are known.
    Abandoned(Collection<'a>),
    Sealed(u32),
}

impl FlashLog {
    /// Waits until a segment should be collected, or the log has ended.
    pub async fn collection_wanted(&self) -> Wanted {
        self.until(|state| {
            if state.failed.is_some() || self.is_closed.load(Ordering::Acquire) {
                return Some(Wanted::End);
            }
            state.wants_collection().then_some(Wanted::Collection)
        })
        .await
    }
}

impl FlashLog {
    /// Takes the oldest segment to be collected, if there are too few that are free, or one that could not be written. `None` also
    /// where its target is away, or somebody else has just taken it: to be tried again a little later.
    ///
    /// From now on its items do not outlive a kill of the process: they leave the index, and who changes a key later
    /// could not invalidate them.
    pub fn collect(&self) -> LocalFuture<'_, Option<Collection<'_>>> {
        Box::pin(async move {
            let segment = match self.oldest()? {
                Oldest::Abandoned(collection) => return Some(collection),
                Oldest::Sealed(segment) => segment,
            };
            let life = self.lives[segment as usize].load(Ordering::Acquire);
            let (records, bytes_read) = records_of(&self.namespace, &self.geometry, segment, life).await;
            count(&self.counters.device_read_bytes, bytes_read as usize);
            if records.as_ref().is_err_and(is_away)
                || self.lock().sealed.pop_front_if(|front| *front == segment).is_none()
            {
                return None;
            }
            self.change_journal(|journal| journal.strike(segment));
            // From here on the segment is given back however this ends.
            let mut collection = self.collection(segment, &[]);
            match records {
                Ok(Some(records)) => collection.list(&records),
                Ok(None) => {
                    count(&self.counters.checksum_errors, 1);
                    self.note_trouble(Some(format!("the summary of segment {segment} is damaged")));
                }
                Err(error) => {
                    count(&self.counters.read_errors, 1);
                    self.note_trouble(Some(format!("the summary of segment {segment} cannot be read: {error}")));
                }
            }
            tracing::trace!(segment, items = collection.items.len(), "flash: a segment is collected");
            Some(collection)
        })
    }

    fn oldest(&self) -> Option<Oldest<'_>> {
        let mut state = self.lock();
        // What is stable when it is closed stays as it is.
        if state.failed.is_some() || self.is_closed.load(Ordering::Acquire) || !state.wants_collection() {
            return None;
        }
        let Some((segment, records)) = state.abandoned.pop_front() else {
            return state.sealed.front().copied().map(Oldest::Sealed);
        };
        drop(state);
        Some(Oldest::Abandoned(self.collection(segment, &records)))
    }

    fn collection(&self, segment: u32, records: &[u64]) -> Collection<'_> {
        let mut collection = Collection { log: self, segment, items: Vec::new() };
        collection.list(records);
        collection
    }
}

impl Collection<'_> {
    fn list(&mut self, records: &[u64]) {
        let first = self.log.geometry.first_page(self.segment);
        let mut slots = vec![0; self.log.geometry.segment_pages as usize];
        self.items = records
            .iter()
            .map(|&record| summary::parts(record, first))
            .map(|(hash, place)| {
                // A damaged record's page may be any; its checksum has said that it is not.
                let count = slots.get_mut((place.page() - first) as usize);
                let slot = count.map_or(0, |count| std::mem::replace(count, *count + usize::from(place.is_shared())));
                Listed { hash, place, slot }
            })
            .collect();
    }

    /// Its items, in the order in which they came. Where the summary could not be read there are none; the index finds
    /// out by and by.
    pub fn items(&self) -> &[Listed] {
        &self.items
    }

    /// The segment is free: no place in it may be in the index any more.
    pub fn finish(self) {
        drop(self);
    }
}

impl Collection<'_> {
    /// Reads an item to be kept. Where the target is away that is waited for; should it stay away the log ends.
    pub async fn fetch(&self, item: Listed) -> Option<Fetched> {
        for _ in 0..AWAY_TRIES_MAX {
            match self.log.look_up(item.place, Which::Slot(item.slot)).await {
                Lookup::Found(fetched) => return Some(fetched),
                Lookup::Other | Lookup::Lost => return None,
                Lookup::Unread => time::sleep(AWAY_PAUSE).await,
            }
        }
        None
    }
}

impl Drop for Collection<'_> {
    fn drop(&mut self) {
        let mut state = self.log.lock();
        self.log.lives[self.segment as usize].store(0, Ordering::Release);
        state.free.push_back(self.segment);
        count(&self.log.counters.collected_segments, 1);
        drop(state);
        self.log.wake_waiters();
    }
}
