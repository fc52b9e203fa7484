//! What of a log's items still counts, told to whoever keeps the index: from journal and summaries, no item is read.

use std::collections::VecDeque;
use std::sync::Arc;

use device::{Error, Namespace};
use engine::Buf;
use engine::task::{self, Task};

use super::journal::Journal;
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
pub(super) async fn recover<N: Namespace>(
    namespace: &Arc<N>,
    geometry: &Geometry,
    journal: &Journal,
    recovery: &mut Recovery,
    state: &mut State,
    mut restore: impl Restore,
) {
    let lives = (1..geometry.segments).filter_map(|segment| Some((journal.life(segment)?, segment)));
    let mut segments: Vec<(u64, u32)> = lives.collect();
    segments.sort_unstable();
    let geometry = *geometry;
    let mut counted = InOrder::new(&segments, SUMMARIES_MAX, |life, segment| {
        let namespace = Arc::clone(namespace);
        async move { last_of(&*namespace, &geometry, segment, life).await }
    });
    let (mut items, mut longest) = (0, 1);
    while let Some((_, (last, bytes_read))) = counted.next().await {
        recovery.bytes_read += bytes_read;
        // What cannot be read now is told of when it is read with its records.
        let records = last.ok().flatten().map_or(0, |(last, _)| last.records);
        items += u64::from(records);
        longest = longest.max(records as usize);
    }
    restore.begin(items);
    let mut summaries = InOrder::new(&segments, reading_max(&geometry, longest), |life, segment| {
        let namespace = Arc::clone(namespace);
        async move { read_summary(&*namespace, &geometry, segment, life).await }
    });
    let mut displaced = Vec::new();
    while let Some((segment, Summary { records, bytes_read })) = summaries.next().await {
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

/// What is read of one segment after another, a few at a time.
struct InOrder<'a, T, F> {
    waiting: std::slice::Iter<'a, (u64, u32)>,
    reading: VecDeque<(u32, Task<T>)>,
    reading_max: usize,
    read: F,
}

impl<'a, T: 'static, R: Future<Output = T> + 'static, F: Fn(u64, u32) -> R> InOrder<'a, T, F> {
    fn new(segments: &'a [(u64, u32)], reading_max: usize, read: F) -> Self {
        InOrder { waiting: segments.iter(), reading: VecDeque::new(), reading_max, read }
    }

    /// A segment, and what was read.
    async fn next(&mut self) -> Option<(u32, T)> {
        while self.reading.len() < self.reading_max
            && let Some(&(life, segment)) = self.waiting.next()
        {
            self.reading.push_back((segment, task::spawn((self.read)(life, segment))));
        }
        let (segment, task) = self.reading.pop_front()?;
        Some((segment, task.await))
    }
}

/// The last page of a segment, and what it says; none if it is not of that life. With it the bytes that were read.
async fn last_of<N: Namespace>(
    namespace: &N,
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
pub(crate) async fn records_of<N: Namespace>(
    namespace: &N,
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

async fn read_summary<N: Namespace>(namespace: &N, geometry: &Geometry, segment: u32, life: u64) -> Summary {
    let (records, bytes_read) = records_of(namespace, geometry, segment, life).await;
    let records = records.unwrap_or_else(|error| {
        tracing::warn!(segment, %error, "flash: a summary cannot be read, what it lists is lost");
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
