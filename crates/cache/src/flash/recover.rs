//! What of a log's items still counts, told to whoever keeps the index: from journal and summaries, no item is read.

use std::collections::VecDeque;

use device::Error;
use engine::Buf;
use engine::task::{self, Task};

use super::journal::Journal;
use super::medium::Medium;
use super::open::Recovery;
use super::options::Geometry;
use super::place::{PAGE_BYTES, Place};
use super::read::read_pages;
use super::state::State;
use super::summary::{Last, Records};

/// Segments whose summaries are read at the same time, at most. Guessed: what keeps a device busy; each takes a few pages to a few
/// hundred.
const SUMMARIES_MAX: usize = 32;
/// Bytes of memory that a record takes: read, put together, and as a word.
const RECORD_BYTES: usize = 3 * size_of::<u64>();

/// Who keeps the index of a log's items, and is told of them when it is opened.
///
/// By the end of [`Restore::end`] every place that was told and is not in the index has been added to `displaced`, and none that
/// is: those of items that were displaced, and of those that there was no room for. They are not told again at another start.
pub trait Restore {
    /// About so many items will be told at most.
    fn begin(&mut self, _items: u64) {}

    /// These items count: a segment's, the oldest segment first. Of two with the same bits of hash the later wins.
    fn found(&mut self, items: Records, displaced: &mut Vec<Place>);

    /// All were told.
    fn end(&mut self, _displaced: &mut Vec<Place>) {}
}

impl<F: FnMut(Records, &mut Vec<Place>)> Restore for F {
    fn found(&mut self, items: Records, displaced: &mut Vec<Place>) {
        self(items, displaced);
    }
}

/// Nobody does: nothing is found again.
impl Restore for () {
    fn found(&mut self, items: Records, displaced: &mut Vec<Place>) {
        displaced.extend(items.iter().map(|(_, place)| place));
    }
}

/// A segment's summary.
struct Summary {
    records: Option<Vec<u64>>,
    bytes_read: u64,
}

/// Tells of all items that count, and puts their segments into `state`, the oldest first.
pub(super) async fn recover(
    namespace: &Medium,
    geometry: &Geometry,
    journal: &Journal,
    recovery: &mut Recovery,
    state: &mut State,
    restore: &mut dyn Restore,
) {
    let lives = (1..geometry.segments).filter_map(|number| Some((journal.life(number)?, number)));
    let mut segments: Vec<Sealed> = lives.map(|(life, number)| Sealed { life, number, pages: 1, records: 0 }).collect();
    segments.sort_unstable_by_key(|segment| segment.life);
    let geometry = *geometry;
    let mut lasts = InOrder::new(segments, SUMMARIES_MAX, |segment| {
        let namespace = namespace.clone();
        async move { last_of(&namespace, &geometry, segment.number, segment.life).await }
    });
    let mut segments = Vec::new();
    while let Some((mut segment, (last, bytes_read))) = lasts.next().await {
        recovery.bytes_read += bytes_read;
        // What cannot be read now is told of when it is read with its records.
        if let Ok(Some((last, _))) = last {
            (segment.pages, segment.records) = (1 + last.pages_before(), last.records);
        }
        segments.push(segment);
    }
    restore.begin(segments.iter().map(|segment| u64::from(segment.records)).sum());
    let longest = segments.iter().map(|segment| segment.records as usize).max().unwrap_or(0);
    let mut summaries = InOrder::new(segments, reading_max(&geometry, longest.max(1)), |segment| {
        let namespace = namespace.clone();
        async move { read_summary(&namespace, &geometry, segment).await }
    });
    let mut displaced = Vec::new();
    while let Some((Sealed { number: segment, .. }, Summary { records, bytes_read })) = summaries.next().await {
        recovery.bytes_read += bytes_read;
        let Some(records) = records else {
            recovery.segments_lost += 1;
            journal.strike(segment);
            continue;
        };
        recovery.segments += 1;
        state.sealed.push_back(segment);
        let mut items = Records::new(records, geometry.first_page(segment));
        let is_marked = journal.marks(segment);
        items.retain(|place| !is_marked(place));
        recovery.items += items.len() as u64;
        restore.found(items, &mut displaced);
        // Nobody could mark them any more when their keys change.
        displaced.drain(..).for_each(|place| journal.mark(place));
    }
    restore.end(&mut displaced);
    displaced.into_iter().for_each(|place| journal.mark(place));
}

/// How many summaries of up to `longest` records are read at the same time. They have the memory of what will be on its way:
/// nothing is written yet.
fn reading_max(geometry: &Geometry, longest: usize) -> usize {
    let affordable = geometry.buffered_segments_max * geometry.segment_bytes() / (longest * RECORD_BYTES);
    affordable.clamp(1, SUMMARIES_MAX)
}

/// A segment whose summary counts.
#[derive(Clone, Copy, Debug)]
struct Sealed {
    life: u64,
    number: u32,
    /// What its last page says of the summary: all its pages, and its records.
    pages: u32,
    records: u32,
}

/// What is read of one segment after another, a few at a time.
struct InOrder<T, F> {
    waiting: std::vec::IntoIter<Sealed>,
    reading: VecDeque<(Sealed, Task<T>)>,
    reading_max: usize,
    read: F,
}

impl<T: 'static, R: Future<Output = T> + 'static, F: Fn(Sealed) -> R> InOrder<T, F> {
    fn new(segments: Vec<Sealed>, reading_max: usize, read: F) -> Self {
        InOrder { waiting: segments.into_iter(), reading: VecDeque::new(), reading_max, read }
    }

    /// A segment, and what was read.
    async fn next(&mut self) -> Option<(Sealed, T)> {
        while self.reading.len() < self.reading_max
            && let Some(segment) = self.waiting.next()
        {
            self.reading.push_back((segment, task::spawn((self.read)(segment))));
        }
        let (segment, task) = self.reading.pop_front()?;
        Some((segment, task.await))
    }
}

/// The last page of a segment, and what it says; none if it is not of that life. With it the bytes that were read.
async fn last_of(
    namespace: &Medium,
    geometry: &Geometry,
    segment: u32,
    life: u64,
) -> (Result<Option<(Last, Buf)>, Error>, u64) {
    match read_pages(namespace, geometry, last_page(geometry, segment), 1).await {
        Ok(page) => {
            let last = Last::decode(&page, geometry.segment_pages);
            let last = last.filter(|last| last.life == life && last.segment == segment);
            (Ok(last.map(|last| (last, page))), PAGE_BYTES as u64)
        }
        Err(error) => (Err(error), 0),
    }
}

fn last_page(geometry: &Geometry, segment: u32) -> u64 {
    u64::from(geometry.first_page(segment)) + u64::from(geometry.segment_pages) - 1
}

/// The summary of a segment; none if it is not of that life, or cannot be read.
pub(crate) async fn records_of(
    namespace: &Medium,
    geometry: &Geometry,
    segment: u32,
    life: u64,
) -> (Result<Option<Vec<u64>>, Error>, u64) {
    let (last, mut bytes_read) = last_of(namespace, geometry, segment, life).await;
    let (last, page) = match last {
        Ok(Some(last)) => last,
        Ok(None) => return (Ok(None), bytes_read),
        Err(error) => return (Err(error), bytes_read),
    };
    let last_page = last_page(geometry, segment);
    let mut before = Vec::with_capacity(last.pages_before() as usize * PAGE_BYTES);
    let mut left = last.pages_before();
    while left > 0 {
        let now = left.min(geometry.chunk_pages);
        match read_pages(namespace, geometry, last_page - u64::from(left), now).await {
            Ok(pages) => before.extend_from_slice(&pages),
            Err(error) => return (Err(error), bytes_read),
        }
        bytes_read += u64::from(now) * PAGE_BYTES as u64;
        left -= now;
    }
    (Ok(last.records(&page, &before)), bytes_read)
}

/// The same of a segment whose last page was read before: all at once, for nobody asks for the rest of one while the
/// index is filled.
async fn read_summary(namespace: &Medium, geometry: &Geometry, segment: Sealed) -> Summary {
    let Sealed { life, number, pages, .. } = segment;
    if pages <= geometry.chunk_pages {
        let first = last_page(geometry, number) + 1 - u64::from(pages);
        if let Ok(read) = read_pages(namespace, geometry, first, pages).await {
            let (before, page) = read.split_at((pages as usize - 1) * PAGE_BYTES);
            let last = Last::decode(page, geometry.segment_pages);
            let is_it = |last: &Last| last.life == life && last.segment == number && last.pages_before() + 1 == pages;
            if let Some(records) = last.filter(is_it).and_then(|last| last.records(page, before)) {
                return Summary { records: Some(records), bytes_read: read.len() as u64 };
            }
        }
    }
    let (records, bytes_read) = records_of(namespace, geometry, number, life).await;
    let records = records.unwrap_or_else(|error| {
        tracing::warn!(segment = number, %error, "flash: a summary cannot be read, what it lists is lost");
        None
    });
    Summary { records, bytes_read }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_that_are_read_take_no_more_memory_than_what_is_written_later() {
        let geometry = Geometry {
            segment_pages: 1024,
            segments: 100,
            chunk_pages: 64,
            blocks_per_page: 1,
            buffered_segments_max: 4,
        };
        assert_eq!(reading_max(&geometry, 1), SUMMARIES_MAX);
        // Items of ETC: all at once. The shortest there are: one in twelve bytes.
        assert_eq!(reading_max(&geometry, 16_000), SUMMARIES_MAX);
        assert_eq!(reading_max(&geometry, (4 << 20) / 12), 2);
        assert_eq!(reading_max(&geometry, 1 << 30), 1);
    }
}
