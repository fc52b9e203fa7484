//! Changes of maps that come late: rows that may be another's by then are not named, or not for long.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use engine::task::{self, LocalFuture};
use engine::time;
use file::meta::{KeyPage, MemoryClient, Meta, Seen, Swapped, Version};
use file::{Error, Files, Left, OpenFile, ROOT};

use crate::fsck::{MINUTE, assert_clean, mended};
use crate::locks::whole;
use crate::opened::{Place, bytes, make};
use crate::world::{kind_of, run_long};

/// Stripes of a file whose map is in its inode, and of one whose map is not.
const SHORT: u64 = 40;
const LONG: u64 = 120;
/// Rows of a chunk, and bytes of two columns in one.
const CHUNK_ROWS: u32 = 256;
const ROW_BYTES: u32 = 8192;

/// What becomes of a change.
#[derive(Clone, Copy)]
enum Late {
    /// It is never made; that nobody knows it is told after eleven minutes.
    Lost,
    /// It is sent when that is said.
    Held,
    /// It is made, and told when that is said.
    Told,
}

/// A client, one of whose changes of a kind of record is late.
struct Slow {
    inner: Rc<MemoryClient>,
    next: Cell<Option<(u8, Late)>>,
    go: Cell<bool>,
}

impl Slow {
    fn new(place: &Place) -> Rc<Slow> {
        Rc::new(Slow { inner: place.meta.client(), next: Cell::default(), go: Cell::default() })
    }

    async fn wait(&self) {
        while !self.go.get() {
            time::sleep(Duration::from_secs(1)).await;
        }
    }
}

impl Meta for Slow {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        self.inner.get(key)
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        Box::pin(async move {
            let next = self.next.get().filter(|(kind, _)| kind_of(key) == Some(kind));
            if let Some((_, late)) = next {
                self.next.set(None);
                match late {
                    Late::Lost => {
                        time::sleep(11 * MINUTE).await;
                        return Ok(Swapped::Unknown);
                    }
                    Late::Held => self.wait().await,
                    Late::Told => {
                        let swapped = self.inner.swap(key, expected, new).await;
                        self.wait().await;
                        return swapped;
                    }
                }
            }
            self.inner.swap(key, expected, new).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        self.inner.list(prefix, cursor, limit)
    }
}

/// A file whose map is in its inode, or in records of its own. Of so many stripes that marks are cleared as soon as these are free:
/// what waits for that is dropped once its client has found out that it was taken for dead.
async fn written(files: &Rc<Files>, is_long: bool) -> Rc<OpenFile> {
    let file = make(files, "a").await;
    write_rows(&file, 0..if is_long { LONG } else { SHORT }, 1).await;
    file
}

/// Stripes of a row each.
async fn write_rows(file: &Rc<OpenFile>, rows: Range<u64>, value: u8) {
    for row in rows {
        file.write(row * 9000, &[value; 5000]).await.unwrap();
        file.flush().await.unwrap();
    }
}

/// Nobody learns what became of the first try, and the second would come eleven minutes after the rows were taken.
#[test]
fn rows_are_named_by_no_try_that_comes_long_after_they_were_taken() {
    for (is_long, kind) in [(false, b'i'), (true, b'b')] {
        run_long(1, async move {
            let place = Place::new().await;
            let slow = Slow::new(&place);
            let files = place.client_over(Rc::clone(&slow) as Rc<dyn Meta>).await;
            let _alive = files.keep_alive();
            let file = written(&files, is_long).await;
            let before = bytes(&file).await;
            file.write(0, &[2; 20_000]).await.unwrap();
            slow.next.set(Some((kind, Late::Lost)));
            let late = file.flush().await;
            assert!(matches!(late, Err(Error::Unavailable(_))), "long: {is_long}, {late:?}");
            let other = place.client().await;
            let again = other.open_file(file.ino()).await.unwrap();
            assert!(bytes(&again).await == before, "long: {is_long}");
            file.flush().await.unwrap();
            other.close_file(&again).await.unwrap();
            let again = other.open_file(file.ino()).await.unwrap();
            assert!(bytes(&again).await[..20_000] == [2; 20_000] && bytes(&again).await[20_000..] == before[20_000..]);
        });
    }
}

/// It stands still right before its change of a map is sent, until others have taken it for dead, and its rows.
#[test]
fn rows_that_are_named_when_they_are_anothers_go_out_of_the_map_again() {
    for (is_long, is_inline, has_lock) in
        [(false, false, false), (false, true, false), (true, false, false), (false, false, true)]
    {
        run_long(1, async move {
            let kind = if is_long { b'b' } else { b'i' };
            let place = Place::new().await;
            let slow = Slow::new(&place);
            let files = place.client_over(Rc::clone(&slow) as Rc<dyn Meta>).await;
            let file = if is_inline { make(&files, "a").await } else { written(&files, is_long).await };
            if is_inline {
                file.write(0, &[1; 100]).await.unwrap();
                file.flush().await.unwrap();
            }
            let before = bytes(&file).await;
            if has_lock {
                files.lock(&file, &whole(1), None).await.unwrap();
            }
            file.write(if is_inline { 100 } else { 0 }, &[2; 20_000]).await.unwrap();
            slow.next.set(Some((kind, Late::Held)));
            let flushing = task::spawn({
                let file = Rc::clone(&file);
                async move { file.flush().await }
            });
            time::sleep(MINUTE).await;
            assert!(!flushing.is_finished());
            let report = mended(&place.meta).await;
            assert_eq!(report.left.get(&Left::Client).map(|tally| tally.mended), Some(1), "{report:?}");
            let other = place.client().await;
            let _alive = other.keep_alive();
            let theirs = make(&other, "theirs").await;
            theirs.write(0, &vec![3; 1_000_000]).await.unwrap();
            theirs.flush().await.unwrap();
            slow.go.set(true);
            let late = flushing.await;
            let is_told = matches!(&late, Err(Error::Unavailable(_))) || (has_lock && late == Err(Error::LostLock));
            assert!(is_told, "long: {is_long}, inline: {is_inline}, {late:?}");
            let again = other.open_file(file.ino()).await.unwrap();
            let expected = if is_inline { before } else { [&[0; 20_000], &before[20_000..]].concat() };
            assert!(bytes(&again).await == expected, "long: {is_long}, inline: {is_inline}");
            // What the file frees is its own.
            other.close_file(&again).await.unwrap();
            other.names().unlink(ROOT, b"a").await.unwrap();
            other.close_file(&theirs).await.unwrap();
            other.close().await.unwrap();
            let last = place.client().await;
            let more = make(&last, "more").await;
            more.write(0, &vec![4; 1_000_000]).await.unwrap();
            more.flush().await.unwrap();
            let theirs = last.open_file(theirs.ino()).await.unwrap();
            assert!(bytes(&theirs).await == vec![3; 1_000_000], "long: {is_long}, inline: {is_inline}");
            last.close_file(&theirs).await.unwrap();
            last.close_file(&more).await.unwrap();
            last.close().await.unwrap();
            assert!(!mended(&place.meta).await.is_damaged());
            assert_clean(&place.meta).await;
        });
    }
}

/// A file becomes shorter, or goes, by a change that takes effect; its author learns of that hours later, when others have taken it
/// for dead, and have the rows that it frees by it. Their chunk was nobody's; or it is the author's again, under another number.
///
/// It holds something else, too: a chunk that holds nothing goes, and what is freed of it late means nothing.
#[test]
fn what_is_known_late_to_be_free_is_freed_by_nobody() {
    for (is_long, goes) in [(false, false), (false, true), (true, false)] {
        for is_back in [false, true] {
            run_long(1, freed_late(is_long, goes, is_back));
        }
    }
}

async fn freed_late(is_long: bool, goes: bool, is_back: bool) {
    let case = format!("long: {is_long}, goes: {goes}, back: {is_back}");
    let place = Place::new().await;
    let slow = Slow::new(&place);
    let files = place.client_over(Rc::clone(&slow) as Rc<dyn Meta>).await;
    let file = written(&files, is_long).await;
    // All else of the chunk, and one more row: so it is nobody's.
    let stays = make(&files, "stays").await;
    let stripes = files.stripes_of(file.ino()).await.unwrap();
    let taken: u32 = stripes.iter().map(|(_, stripe)| stripe.length.div_ceil(ROW_BYTES)).sum();
    stays.write(0, &vec![2; ((CHUNK_ROWS - taken) * ROW_BYTES) as usize]).await.unwrap();
    stays.flush().await.unwrap();
    files.close_file(&stays).await.unwrap();
    let passes = make(&files, "passes").await;
    write_rows(&passes, 0..1, 2).await;
    files.close_file(&passes).await.unwrap();
    files.names().unlink(ROOT, b"passes").await.unwrap();
    if goes {
        files.close_file(&file).await.unwrap();
    }
    slow.next.set(Some((if is_long { b'b' } else { b'i' }, Late::Told)));
    let ending = task::spawn({
        let (files, file) = (Rc::clone(&files), Rc::clone(&file));
        async move { if goes { files.names().unlink(ROOT, b"a").await } else { file.truncate(0).await } }
    });
    time::sleep(MINUTE).await;
    assert!(!ending.is_finished());
    mended(&place.meta).await;
    let other = place.client().await;
    let theirs = make(&other, "theirs").await;
    write_rows(&theirs, 0..5, 3).await;
    let expected = bytes(&theirs).await;
    other.close_file(&theirs).await.unwrap();
    other.close().await.unwrap();
    let mine = if is_back { Some(make(&files, "mine").await) } else { None };
    if let Some(mine) = &mine {
        write_rows(mine, 0..1, 5).await;
    }
    assert!(!ending.is_finished());
    slow.go.set(true);
    let _whatever = ending.await;
    if let Some(mine) = &mine {
        write_rows(mine, 1..LONG, 5).await;
        files.close_file(mine).await.unwrap();
    }
    let _whatever = files.close().await;
    let last = place.client().await;
    let more = make(&last, "more").await;
    write_rows(&more, 0..LONG, 4).await;
    let theirs = last.open_file(theirs.ino()).await.unwrap();
    assert!(bytes(&theirs).await == expected, "{case}");
    last.close_file(&theirs).await.unwrap();
    last.close_file(&more).await.unwrap();
    last.close().await.unwrap();
    assert!(!mended(&place.meta).await.is_damaged(), "{case}");
}
