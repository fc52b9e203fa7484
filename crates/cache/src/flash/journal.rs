//! The journal: what must be known of the log although its process was killed a moment ago.
//!
//! ```text
//! words of 64 bits, little-endian, in a mapped file:
//!     0  magic        "YAGURACJ"
//!     1  format       lower half u32; upper half 0
//!     2  incarnation  of the log it belongs to
//!     3  shape        segments in the lower half, pages of a segment in the upper
//!     4  check        CRC-64/NVME of words 0 to 3
//!     5  state        1 in use, 2 closed (all that counts is on the medium, as is this file)
//!     6  boot         two words: the machine's boot in which it was last in use
//!     8  flushed      segments of lives before this one hold nothing any more
//!     9  flush at     seconds since 1970: when all there is will be flushed; 0 never
//!    10  cas floor    items with a smaller cas were flushed
//!    11  cas reserved cas values up to this one may have been given
//!    12  next life    above every life there was
//!    13  zeroes
//!    16  life         u64 per segment: its summary counts only if it is of this life; 0: the segment counts for nothing
//!        marks        u16 per page of the log: bit `kind` of an item that counts no more, bit 0 of one that has its pages alone;
//!                     four pages to a word. Slots are counted round: where a page has more than sixteen, a mark takes a neighbour
//!                     along, at a restart alone
//! ```
//!
//! **Why a restart finds the latest acknowledged value, or none.** A mapped file's words are the page cache's: a store
//! that was executed is there after `kill -9`. An item is found again only if its segment's summary is of the life that
//! stands here, and its mark is clear. Who replaces, changes or deletes an item that lies on flash marks it before that
//! is acknowledged. Marks are cleared only when a segment begins a new life, after the old one was struck here: so
//! nothing that was marked comes back. A segment that is being collected is struck first, since from then on items
//! leave the index that nobody could mark any more.
//!
//! **After power loss** (another boot, not closed) any mark may be missing, and with it the knowledge which items are
//! old: all are given up. The words that say so need no checksum: they are trusted in the same boot, where they are
//! memory, and after [`Journal::close`], which makes all others stable before it says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::Mapped;

use super::place::{Place, SLOT_KINDS};

const MAGIC: u64 = u64::from_le_bytes(*b"YAGURACJ");
const FORMAT: u64 = 1;
const IN_USE: u64 = 1;
const CLOSED: u64 = 2;

const STATE: usize = 5;
const BOOT: usize = 6;
const FLUSHED: usize = 8;
const FLUSH_AT: usize = 9;
const CAS_FLOOR: usize = 10;
const CAS_RESERVED: usize = 11;
const NEXT_LIFE: usize = 12;
const LIVES: usize = 16;
const MARK_BITS: u32 = SLOT_KINDS as u32;
const PAGES_PER_WORD: u32 = 64 / MARK_BITS;

const _: () = assert!(MARK_BITS == u16::BITS);

/// Which start of the machine this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Boot(pub [u64; 2]);

impl Boot {
    /// This one. A machine that does not tell (it is Linux that does) is taken for one that has just been started.
    pub fn current() -> Boot {
        let told = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let number = told.and_then(|text| u128::from_str_radix(&text.trim().replace('-', ""), 16).ok());
        match number {
            Some(number) => Boot([number as u64, (number >> 64) as u64]),
            None => Boot([engine::task::random_u64(), engine::task::random_u64()]),
        }
    }
}

/// Segments of a log, and their pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) segments: u32,
    pub(crate) segment_pages: u32,
}

impl Shape {
    fn word(self) -> u64 {
        u64::from(self.segments) | u64::from(self.segment_pages) << 32
    }

    /// Words of a journal for it.
    pub(crate) fn words(self) -> usize {
        LIVES + self.segments as usize + self.segments as usize * (self.segment_pages / PAGES_PER_WORD) as usize
    }
}

/// The mark of a place in its word. Segments have whole words.
fn mark_bit(place: Place) -> u64 {
    u64::from(place.journal_bit()) << (place.page() % PAGES_PER_WORD * MARK_BITS)
}

/// The journal of a log. Every call is a few stores to memory; none waits.
#[derive(Debug)]
pub(crate) struct Journal {
    mapped: Arc<Mapped>,
    shape: Shape,
}

fn check(words: [u64; 4]) -> u64 {
    let mut sum = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    words.iter().for_each(|word| sum.update(&word.to_le_bytes()));
    sum.finalize()
}

impl Journal {
    /// The journal in `mapped`, which has [`Shape::words`] at least.
    pub(crate) fn new(mapped: Arc<Mapped>, shape: Shape) -> Journal {
        Journal { mapped, shape }
    }

    // Release and Acquire: a process is killed between two instructions; the order of the stores is the argument above.
    fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    fn store(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::SeqCst);
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.mapped.words()[at]
    }

    fn head(&self, incarnation: u64) -> [u64; 4] {
        [MAGIC, FORMAT, incarnation, self.shape.word()]
    }

    /// Whether this is the journal of the log `incarnation`, and knows all that it must.
    pub(crate) fn is_of(&self, incarnation: u64) -> bool {
        let head = std::array::from_fn(|at| self.load(at));
        head == self.head(incarnation) && self.load(4) == check(head)
    }

    /// Whether nothing can have been lost of it since it was written: it was closed, or the machine has run on.
    pub(crate) fn is_whole(&self, boot: Boot) -> bool {
        match self.load(STATE) {
            CLOSED => true,
            IN_USE => [self.load(BOOT), self.load(BOOT + 1)] == boot.0,
            _ => false,
        }
    }

    /// Begins anew, for the log `incarnation`, whose first life is `life`: nothing is in it.
    pub(crate) fn reset(&self, incarnation: u64, life: u64) {
        self.store(0, 0); // a half made journal is none
        (1..self.shape.words()).for_each(|at| self.store(at, 0));
        self.store(NEXT_LIFE, life.max(1));
        self.store(FLUSHED, life.max(1));
        let head = self.head(incarnation);
        self.store(4, check(head));
        for (at, word) in head.into_iter().enumerate().rev() {
            self.store(at, word);
        }
    }

    /// From now on it is in use. Blocks.
    ///
    /// # Errors
    /// It could not be made stable that it is: power loss might go unnoticed.
    pub(crate) fn open(&self, boot: Boot) -> std::io::Result<()> {
        self.store(BOOT, boot.0[0]);
        self.store(BOOT + 1, boot.0[1]);
        self.store(STATE, IN_USE);
        self.mapped.sync()
    }

    /// It is not used any more, and outlives power loss. Blocks.
    ///
    /// # Errors
    /// As [`Journal::open`]; it is then not closed.
    pub(crate) fn close(&self) -> std::io::Result<()> {
        self.mapped.sync()?;
        self.store(STATE, CLOSED);
        self.mapped.sync().inspect_err(|_| self.store(STATE, IN_USE))
    }

    /// Its file was taken away.
    pub(crate) fn is_lost(&self) -> bool {
        self.mapped.is_lost()
    }

    /// It is in use again after it was closed. Blocks.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub(crate) fn reopen(&self) -> std::io::Result<()> {
        self.store(STATE, IN_USE);
        self.mapped.sync()
    }

    /// The life of a segment whose summary counts.
    pub(crate) fn life(&self, segment: u32) -> Option<u64> {
        let life = self.load(LIVES + segment as usize);
        (life != 0 && life >= self.load(FLUSHED)).then_some(life)
    }

    /// The segment's summary counts no more.
    pub(crate) fn strike(&self, segment: u32) {
        self.store(LIVES + segment as usize, 0);
    }

    /// A segment begins a new life.
    pub(crate) fn begin(&self, segment: u32) -> u64 {
        self.strike(segment);
        let life = self.load(NEXT_LIFE);
        self.store(NEXT_LIFE, life + 1);
        let words = self.shape.segment_pages / PAGES_PER_WORD;
        let marks = self.marks_at(segment * self.shape.segment_pages);
        (marks..marks + words as usize).for_each(|at| self.store(at, 0));
        self.store(LIVES + segment as usize, life);
        life
    }

    fn marks_at(&self, page: u32) -> usize {
        LIVES + self.shape.segments as usize + (page / PAGES_PER_WORD) as usize
    }

    /// Where the mark of a place is, if it is in the log at all.
    fn mark_of(&self, place: Place) -> Option<(usize, u64)> {
        let inside = place.page() / self.shape.segment_pages < self.shape.segments;
        inside.then(|| (self.marks_at(place.page()), mark_bit(place)))
    }

    /// The item at `place` counts no more.
    pub(crate) fn mark(&self, place: Place) {
        if let Some((at, bit)) = self.mark_of(place) {
            self.word(at).fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Tells of places in a segment whether what is there counts no more; what is not in it does not.
    pub(crate) fn marks(&self, segment: u32) -> impl Fn(Place) -> bool {
        let first = segment * self.shape.segment_pages;
        let words =
            &self.mapped.words()[self.marks_at(first)..][..(self.shape.segment_pages / PAGES_PER_WORD) as usize];
        move |place| {
            let word = words.get((place.page().wrapping_sub(first) / PAGES_PER_WORD) as usize);
            word.is_none_or(|word| word.load(Ordering::Acquire) & mark_bit(place) != 0)
        }
    }

    /// Nothing that is in the log now counts any more, nor does an item with a cas below `cas_floor`.
    pub(crate) fn flush(&self, cas_floor: u64) {
        self.word(CAS_FLOOR).fetch_max(cas_floor, Ordering::SeqCst);
        self.store(FLUSHED, self.load(NEXT_LIFE));
        self.store(FLUSH_AT, 0);
    }

    /// When all there is will be flushed, in seconds since 1970; 0: never.
    pub(crate) fn flush_at(&self) -> u64 {
        self.load(FLUSH_AT)
    }

    pub(crate) fn set_flush_at(&self, unix: u64) {
        self.store(FLUSH_AT, unix);
    }

    /// Items with a smaller cas were flushed.
    pub(crate) fn cas_floor(&self) -> u64 {
        self.load(CAS_FLOOR)
    }

    /// No cas above this one was given.
    pub(crate) fn cas_reserved(&self) -> u64 {
        self.load(CAS_RESERVED)
    }

    pub(crate) fn reserve_cas(&self, up_to: u64) {
        self.word(CAS_RESERVED).fetch_max(up_to, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { segments: 9, segment_pages: 16 };
    const BOOT: Boot = Boot([1, 2]);

    fn is_marked(journal: &Journal, place: Place) -> bool {
        journal.marks(place.page() / SHAPE.segment_pages)(place)
    }

    fn journal() -> Journal {
        let journal = Journal::new(Arc::new(Mapped::memory(SHAPE.words())), SHAPE);
        journal.reset(77, 1000);
        journal
    }

    #[test]
    fn it_is_one_logs_and_whole_in_one_boot_or_when_closed() {
        let journal = journal();
        assert!(journal.is_of(77) && !journal.is_of(78));
        let other = Shape { segments: 9, segment_pages: 8 };
        assert!(!Journal::new(Arc::clone(&journal.mapped), other).is_of(77), "another shape");
        assert!(!journal.is_whole(BOOT), "never opened");
        journal.open(BOOT).expect("memory");
        assert!(journal.is_whole(BOOT) && !journal.is_whole(Boot([1, 3])), "power was lost");
        journal.close().expect("memory");
        assert!(journal.is_whole(Boot([1, 3])));
        journal.open(Boot([1, 3])).expect("memory");
        assert!(!journal.is_whole(BOOT), "closed no more");
    }

    #[test]
    fn marks_are_of_one_place_and_end_with_the_life() {
        let journal = journal();
        let first = journal.begin(2);
        let (place, neighbour) = (Place::shared(37, 3), Place::shared(37, 4));
        journal.mark(place);
        journal.mark(Place::alone(39, 4));
        assert!(is_marked(&journal, place) && is_marked(&journal, Place::shared(37, 19)), "slots are counted round");
        assert!(!is_marked(&journal, neighbour) && !is_marked(&journal, Place::shared(36, 3)));
        assert!(is_marked(&journal, Place::alone(39, 9)) && is_marked(&journal, Place::shared(39, 0)));
        assert_eq!(journal.life(2), Some(first));
        let second = journal.begin(2);
        assert!(second > first && !is_marked(&journal, place) && journal.life(2) == Some(second));
        journal.strike(2);
        assert_eq!(journal.life(2), None);
        assert!(
            journal.marks(1)(Place::shared(2 * 16, 0)) && journal.marks(1)(Place::shared(15, 0)),
            "what is not in it"
        );
    }

    #[test]
    fn a_flush_ends_all_lives_that_have_begun() {
        let journal = journal();
        journal.begin(1);
        journal.set_flush_at(55);
        journal.flush(1234);
        journal.flush(1000);
        assert_eq!((journal.life(1), journal.flush_at(), journal.cas_floor()), (None, 0, 1234));
        let life = journal.begin(2);
        assert_eq!(journal.life(2), Some(life));
        journal.reserve_cas(9);
        journal.reserve_cas(7);
        assert_eq!(journal.cas_reserved(), 9);
    }

    #[test]
    fn a_page_has_marks_of_its_own() {
        let journal = journal();
        for page in 16..9 * 16 {
            let place = Place::shared(page, 0);
            assert!(!is_marked(&journal, place), "page {page} was marked by another");
            journal.mark(place);
            assert!(is_marked(&journal, place));
        }
        assert!((0..9).all(|segment| journal.load(LIVES + segment) == 0), "marks are not lives");
    }
}
