//! Guests: values that live in another page's spare room because their home page is full.
//!
//! Where a guest lies is found by rehash of its home and copy id, or is the roomiest page seen so far, and stands in the
//! reference. A page takes guests only up to [`GUEST_FILL_MAX`]: nobody moves them, and what is left must do for the
//! forward records of the page's own entries.

use engine::View;
use pool::TablePage;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ledger::Leftover;
use super::search::Search;
use super::{ATTEMPTS_MAX, Table, TableError, bump, uncertain};
use crate::page::{Draft, GUEST_FIXED_BYTES, Guest, PlaceKind, Reference};
use crate::types::OpId;
use crate::value::Value;

/// Fraction (in thirty-secondths) of a page's room that it may be filled to by a guest's arrival: the rest is for a forward record
/// of its own entries, which can all go elsewhere.
const GUEST_FILL_MAX: usize = 31;

/// What may happen to a page's guests. Harmless twice: guests are known by their copy id.
#[derive(Clone, Copy)]
enum Change<'a> {
    Insert(Guest<'a>),
    Remove { copy: u64, home: u32 },
    Condemn { copy: u64, home: u32, condemned: bool },
}

/// What became of a change.
enum Changed {
    Yes,
    No,
    /// A guest would fit that is so long at most.
    Full(usize),
}

impl Table {
    /// The longest guest there can be.
    pub(super) fn guest_bytes_max(&self) -> usize {
        self.guest_room() - GUEST_FIXED_BYTES
    }

    fn guest_room(&self) -> usize {
        self.room() / 32 * GUEST_FILL_MAX
    }

    /// Places a value of the key at home in `home` in some other page. `None`: none of the pages tried had room.
    pub(super) async fn place_guest(
        &self,
        home: TablePage,
        op: OpId,
        value: &Value,
        search: &mut Search,
    ) -> Result<Option<Reference>, TableError> {
        let copy = engine::task::random_u64().max(1);
        let bytes = value.contiguous();
        let (length, checksum) = (bytes.len() as u32, value.checksum(self.checksums.of(op)));
        let reference = |page: TablePage| {
            let place = u64::from(page.0);
            Reference { kind: PlaceKind::Guest, parts: 1, length, place, checksum, copy }
        };
        let rehash = |probe: usize| {
            let mut seed = [0; 16];
            seed[..8].copy_from_slice(&copy.to_le_bytes());
            seed[8..].copy_from_slice(&(probe as u64).to_le_bytes());
            self.layout.geometry.home(xxh3_64_with_seed(&seed, u64::from(home.0)))
        };
        for probe in 0.. {
            let Some(page) = search.page(value.len(), probe, || rehash(probe)) else { break };
            if page == home {
                continue;
            }
            let guest = Guest { copy, home: home.0, condemned: false, bytes: &bytes };
            match self.change_page(page, Change::Insert(guest)).await {
                Ok(Changed::Yes) => {
                    bump(&self.stats.guests);
                    return Ok(Some(reference(page)));
                }
                Ok(Changed::Full(room)) => search.too_full(page, room),
                Ok(Changed::No) => unreachable!("what is inserted is there, or finds no room"),
                // Damaged: another page will do.
                Err(TableError::Page { .. }) => {}
                Err(error) => {
                    if error.may_pass() {
                        // It may be there, and nobody knows of it.
                        self.keep(Leftover::Garbage(home, (reference(page), op)));
                    }
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// Frees a guest whose last reference is gone. Whether it was there.
    pub(super) async fn free_guest(&self, home: TablePage, reference: &Reference) -> Result<bool, TableError> {
        let page = TablePage(u32::try_from(reference.place).unwrap_or(u32::MAX));
        if page.0 >= self.layout.geometry.table_pages {
            return Ok(false);
        }
        self.remove_guest(page, reference.copy, home).await
    }

    /// Removes guest `copy` from `page`; whether it was there.
    pub(crate) async fn remove_guest(&self, page: TablePage, copy: u64, home: TablePage) -> Result<bool, TableError> {
        Ok(matches!(self.change_page(page, Change::Remove { copy, home: home.0 }).await?, Changed::Yes))
    }

    /// Marks guest `copy` in `page`, or takes the mark off; whether it was there.
    pub(super) async fn condemn_guest(
        &self,
        page: TablePage,
        copy: u64,
        home: TablePage,
        condemned: bool,
    ) -> Result<bool, TableError> {
        let changed = self.change_page(page, Change::Condemn { copy, home: home.0, condemned }).await?;
        Ok(matches!(changed, Changed::Yes))
    }

    /// Whether a guest is there, and no collector has marked it.
    pub(super) async fn guest_is_whole(&self, home: TablePage, reference: &Reference) -> Result<bool, TableError> {
        let page = TablePage(u32::try_from(reference.place).unwrap_or(u32::MAX));
        let bytes = self.read_raw(page).await?;
        let view = self.decode(page, &bytes)?;
        Ok(view.guest(reference.copy).is_some_and(|guest| guest.home == home.0 && !guest.condemned))
    }

    /// The guest's bytes; `None` if it is not there.
    pub(super) async fn fetch_guest(
        &self,
        reference: &Reference,
        home: TablePage,
    ) -> Result<Option<Value>, TableError> {
        let page = TablePage(u32::try_from(reference.place).unwrap_or(u32::MAX));
        if page.0 >= self.layout.geometry.table_pages {
            return Ok(None);
        }
        let bytes = self.read_raw(page).await?;
        let view = self.decode(page, &bytes)?;
        let guest = view.guest(reference.copy).filter(|guest| guest.home == home.0);
        Ok(guest.map(|guest| {
            let at = guest.bytes.as_ptr() as usize - bytes.as_ptr() as usize;
            Value::from(bytes.slice(at..at + guest.bytes.len()))
        }))
    }

    /// Applies `change` to a page, again on every newer image, until it is stored or turns out to be impossible.
    ///
    /// Where an outcome is unknown the page is read and changed again: a compare-and-write that is still under way fails
    /// once the page is another.
    async fn change_page(&self, page: TablePage, change: Change<'_>) -> Result<Changed, TableError> {
        let lock = self.locks.lock(u64::from(page.0)).await;
        let mut in_doubt = None;
        for _ in 0..ATTEMPTS_MAX {
            let expected: View = match lock.image() {
                Some(image) => image,
                None => self.read_raw(page).await?,
            };
            let view = self.decode(page, &expected)?;
            if matches!(change, Change::Insert(_)) {
                // What was unlinked may go in any epoch.
                self.check_seal(page, view.header().seal)?;
            }
            let mut draft = Draft::new(&view);
            match change {
                // An earlier attempt took effect after all.
                Change::Insert(guest) if !draft.put_guest(guest) => return Ok(Changed::Yes),
                Change::Insert(guest) if draft.committed() > self.guest_room() => {
                    let beyond = draft.committed() - self.guest_room();
                    return Ok(Changed::Full(guest.bytes.len().saturating_sub(beyond)));
                }
                Change::Remove { copy, home } if !draft.remove_guest(copy, home) => return Ok(Changed::No),
                Change::Condemn { copy, home, condemned } => match draft.condemn_guest(copy, home, condemned) {
                    Some(true) => {}
                    Some(false) => return Ok(Changed::Yes),
                    None => return Ok(Changed::No),
                },
                Change::Insert(_) | Change::Remove { .. } => {}
            }
            let new = draft.encode().expect("invariant: checked to fit, or shorter than before").freeze();
            lock.set_image(None);
            match self.replace(self.layout.table(page), expected, new.clone()).await {
                Ok(()) => {
                    lock.set_image(Some(new));
                    return Ok(Changed::Yes);
                }
                Err(device::Error::CompareFailure) => bump(&self.stats.misses),
                Err(error) if uncertain(&error) && in_doubt.is_none() => in_doubt = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(TableError::Contended)
    }
}
