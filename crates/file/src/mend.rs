//! [`Mender`]: one walk over the stripes of all files, with a question asked of each: what lacks something is written anew.
//!
//! The walk goes by the keys of inodes, beside whoever writes: a file that comes meanwhile is met or not, one that goes is passed
//! over, and what is moved meanwhile is found again by the next walk. It holds a part of a file's map at a time. Where it was is
//! a cursor among the store's keys, from which anybody can go on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use engine::job::Job;
use engine::task::LocalFuture;
use engine::time;

pub use crate::data::{Fault, Question};
use crate::data::{Few, Inode as _, Outcome, Seen};
use crate::error::Error;
use crate::files::Files;
use crate::record::inode::Content;
use crate::record::small::{SCRUB_FAULTS_MAX, SCRUB_WORDS_MAX, ScrubFound, ScrubPlace, short_text};
use crate::record::{Kind, Time};
use crate::stored::Stored;

/// Inodes that are listed at once, about. Chosen: where a walk goes on is known that often.
const INODES_LISTED: usize = 128;
/// Files, and stripes of each, that are looked at together. Chosen: members have something to do while others answer; with the
/// longest stripes that is half a GiB at most, and some MiB as a rule.
const FILES_TOGETHER: usize = 8;
const STRIPES_TOGETHER: usize = 4;
/// Findings that are kept in words; all are counted.
const FINDINGS_MAX: usize = 100;
/// How often it is noted how far a scrub has come.
const NOTED_EVERY: Duration = Duration::from_secs(10);
/// How often a file is begun anew that gets another map meanwhile. Chosen: it grows into a long one once, until it is emptied.
const CHANGES_MAX: u32 = 16;
/// Walks of one rebuild. Chosen: each but the last has found something; who writes to members that fail makes more all the time.
const WALKS_MAX: u32 = 16;
/// How often a walk that could mend nothing of what it has found is tried again, and when.
const AGAIN_MAX: u32 = 2;
const AGAIN_AFTER: Duration = Duration::from_secs(6);
/// How long clients are waited for that have not heard yet that a member is to be empty, and then for what they free: they read
/// the root record each minute, and see to what they have freed.
const HEARD_WITHIN: Duration = Duration::from_secs(150);
const SETTLED_WITHIN: Duration = Duration::from_secs(75);
const LOOKED_EVERY: Duration = Duration::from_secs(2);

/// Bytes of a file that can't be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostBytes {
    /// The file.
    pub inode: u64,
    /// Which of its bytes.
    pub range: Range<u64>,
    /// Which columns failed, and how.
    pub reason: String,
}

/// What a walk has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Files with stripes.
    pub files: u64,
    /// Their stripes.
    pub stripes: u64,
    /// Bytes of data in these.
    pub bytes: u64,
    /// Stripes that were written anew.
    pub rewritten: u64,
    /// Columns that were not as they should be, by member and by what was wrong.
    pub faults: BTreeMap<(u16, Fault), u64>,
    /// What can't be read, as far as it is kept.
    pub lost: Vec<LostBytes>,
    /// All bytes that can't be read.
    pub lost_bytes: u64,
    /// Stripes that could not be written anew now, and files that could not be looked at: how many, and why, as far as it is
    /// kept.
    pub failed: u64,
    /// Stripes that could not be read now, as members did not answer that could make them up: among `failures`, too.
    pub unread: u64,
    /// See there.
    pub failures: Vec<String>,
}

impl Report {
    /// Columns with this fault, on all members.
    pub fn count(&self, fault: Fault) -> u64 {
        self.faults.iter().filter(|((_, found), _)| *found == fault).map(|(_, count)| count).sum()
    }

    /// Whether all columns are there, and what was written, as far as was looked.
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty() && self.lost_bytes == 0 && self.failed + self.unread == 0
    }

    /// Files, stripes and bytes.
    fn seen(&self) -> [u64; 3] {
        [self.files, self.stripes, self.bytes]
    }

    /// As it is noted; of what is told in words only the first.
    fn noted(&self) -> ScrubFound {
        let counts = [self.files, self.stripes, self.bytes, self.rewritten, self.lost_bytes, self.failed, self.unread];
        let faults = self.faults.iter().map(|((member, fault), count)| (*member, *fault as u8, *count));
        let of_lost =
            |LostBytes { inode, range, reason }: &LostBytes| (*inode, range.start, range.end, short_text(reason));
        ScrubFound {
            counts,
            faults: faults.take(SCRUB_FAULTS_MAX).collect(),
            lost: self.lost.iter().take(SCRUB_WORDS_MAX).map(of_lost).collect(),
            failures: self.failures.iter().take(SCRUB_WORDS_MAX).map(|failure| short_text(failure)).collect(),
        }
    }

    /// As it was noted.
    fn of_noted(noted: &ScrubFound) -> Report {
        let [files, stripes, bytes, rewritten, lost_bytes, failed, unread] = noted.counts;
        let fault = |(member, fault, count): &(u16, u8, u64)| {
            let fault = Fault::ALL.into_iter().find(|of| *of as u8 == *fault)?;
            Some(((*member, fault), *count))
        };
        let lost = |(inode, from, to, reason): &(u64, u64, u64, String)| LostBytes {
            inode: *inode,
            range: *from..*to,
            reason: reason.clone(),
        };
        Report {
            files,
            stripes,
            bytes,
            rewritten,
            faults: noted.faults.iter().filter_map(fault).collect(),
            lost: noted.lost.iter().map(lost).collect(),
            lost_bytes,
            failed,
            unread,
            failures: noted.failures.clone(),
        }
    }

    fn add(&mut self, inode: u64, at: u64, seen: Seen) {
        for fault in seen.faults {
            *self.faults.entry(fault).or_default() += 1;
        }
        match seen.outcome {
            Outcome::Sound | Outcome::Overtaken => {}
            Outcome::Rewritten => self.rewritten += 1,
            Outcome::Failed(error) => self.fail(&format!("inode {inode}, at byte {at}"), &error),
            Outcome::Unread(reason) => {
                self.unread += 1;
                self.tell(format!("inode {inode}, at byte {at}: not read, as members did not answer: {reason}"));
            }
            Outcome::Lost { ranges, reason, is_rewritten } => {
                self.rewritten += u64::from(is_rewritten);
                // A scrub that goes on with another meets again what that has found last.
                let is_new = |range: &Range<u64>, lost: &[LostBytes]| {
                    !lost.iter().any(|lost| lost.inode == inode && lost.range == *range)
                };
                for range in ranges.into_iter().filter(|range| is_new(range, &self.lost)).collect::<Vec<_>>() {
                    self.lost_bytes += range.end - range.start;
                    if self.lost.len() < FINDINGS_MAX {
                        self.lost.push(LostBytes { inode, range, reason: reason.clone() });
                    }
                }
            }
        }
    }

    fn fail(&mut self, what: &str, error: &Error) {
        self.failed += 1;
        self.tell(format!("{what}: {error}"));
    }

    fn tell(&mut self, failure: String) {
        if self.failures.len() < FINDINGS_MAX {
            self.failures.push(failure);
        }
    }
}

/// What a scrub did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scrubbed {
    /// Of all of it, also before it was ended.
    pub report: Report,
    /// When the scrub began that this one has gone on with.
    pub went_on: Option<Time>,
}

/// What a rebuild did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rebuilt {
    /// Walks over all files.
    pub walks: u32,
    /// Stripes that were written anew, by all of them.
    pub rewritten: u64,
    /// What the last walk has found: what is left.
    pub left: Report,
    /// Members that are to be empty, and their regions that are taken still.
    pub taken: Vec<(u16, u64)>,
}

/// See the module.
pub struct Mender {
    files: Rc<Files>,
    job: Rc<Job>,
    /// Of the walk under way.
    report: RefCell<Report>,
    /// Of a scrub under way: its cursor, when it began, and what it had seen up to there.
    place: Cell<Option<(u64, Time, [u64; 3])>>,
}

impl Mender {
    /// As this client, which says that it lives; paced by the job, which is told how far it has come.
    pub fn new(files: Rc<Files>, job: Rc<Job>) -> Mender {
        Mender { files, job, report: RefCell::default(), place: Cell::default() }
    }

    /// What the walk that is under way has found, or the one that was ended; of a scrub also what was noted before it.
    pub fn so_far(&self) -> Report {
        self.report.borrow().clone()
    }

    /// Reads all columns of all stripes, and mends what does not verify or is missing. It goes on where one before it was ended,
    /// unless `anew`. Whoever has told what it has found says so ([`Mender::forget`]).
    ///
    /// # Errors
    /// What the store says; where to go on is kept.
    pub fn scrub(&self, anew: bool) -> LocalFuture<'_, Result<Scrubbed, Error>> {
        Box::pin(async move {
            let access = &self.files.names().access;
            let key = access.keys.scrub();
            self.job.begin("scrub");
            let held = access.get::<ScrubPlace>(&key).await?;
            let before = held.as_ref().map(|held| held.record.clone()).filter(|_| !anew);
            let began = before.as_ref().map_or_else(Time::now, |place| place.began);
            let from = before.as_ref().map_or(0, |place| place.cursor);
            let found = before.as_ref().map(|place| Report::of_noted(&place.found));
            *self.report.borrow_mut() = found.unwrap_or_default();
            let noted = Cell::new(time::now());
            self.place.set(Some((from, began, self.report.borrow().seen())));
            let note = async |cursor| {
                let last = self.place.get().filter(|(last, ..)| *last == cursor);
                self.place.set(last.or_else(|| Some((cursor, began, self.report.borrow().seen()))));
                if noted.get().elapsed() < NOTED_EVERY {
                    return;
                }
                noted.set(time::now());
                // Another one that notes its place at the same time has come so far itself.
                if let Err(error) = self.note().await {
                    tracing::warn!(%error, "how far the scrub has come is not noted");
                }
            };
            self.walk(Question::Scrub, from, &self.report, note).await?;
            self.place.set(None);
            self.files.contents().space().settle().await;
            Ok(Scrubbed { report: self.so_far(), went_on: before.map(|place| place.began) })
        })
    }

    /// What a scrub has found was told: the next one begins anew.
    ///
    /// # Errors
    /// What the store says.
    pub fn forget(&self) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let access = &self.files.names().access;
            let key = access.keys.scrub();
            match access.get::<ScrubPlace>(&key).await? {
                Some(held) => access.remove(&key, &held).await.map(drop),
                None => Ok(()),
            }
        })
    }

    /// Keeps how far a scrub has come that is under way, or was ended, and what it has found: also behind the cursor, where it
    /// may be mended by now.
    ///
    /// # Errors
    /// What the store says.
    pub fn note(&self) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let Some((cursor, began, seen)) = self.place.get() else { return Ok(()) };
            let access = &self.files.names().access;
            let key = access.keys.scrub();
            let mut found = self.report.borrow().noted();
            // Whoever goes on looks at all behind the cursor again.
            found.counts[..seen.len()].copy_from_slice(&seen);
            let held = access.get::<ScrubPlace>(&key).await?;
            let new = ScrubPlace { cursor, began, found, ..ScrubPlace::default() };
            access.put(&key, held.as_ref(), new).await.map(drop)
        })
    }

    /// Writes anew what has a column missing, or one on a member that is to be empty, until nothing more can be done. Then such a
    /// member has nothing, but where something hinders that: see [`Rebuilt::taken`] and [`Rebuilt::left`].
    ///
    /// # Errors
    /// What the store says; it is begun anew then.
    pub fn rebuild(&self) -> LocalFuture<'_, Result<Rebuilt, Error>> {
        Box::pin(async move {
            let mut rebuilt = Rebuilt::default();
            // Clients that have not heard yet may put stripes there until they do, and settle later what they give back.
            let mut waits = [HEARD_WITHIN, SETTLED_WITHIN].into_iter();
            let mut again = 0;
            loop {
                self.files.refresh_members().await?;
                // Before the walk: what comes to lie there later than it would be found by no walk.
                self.files.roster().close_leaving().await?;
                self.report.take();
                self.job.begin("rebuild");
                self.walk(Question::Rebuild, 0, &self.report, async |_| {}).await?;
                self.files.contents().space().settle().await;
                rebuilt.left = self.so_far();
                rebuilt.walks += 1;
                rebuilt.rewritten += rebuilt.left.rewritten;
                if rebuilt.left.rewritten > 0 && rebuilt.walks < WALKS_MAX {
                    continue;
                }
                // A member that has failed just now is shunned for some seconds.
                if rebuilt.left.failed + rebuilt.left.unread > 0 && again < AGAIN_MAX {
                    again += 1;
                    time::sleep(AGAIN_AFTER).await;
                    continue;
                }
                // Others may have begun to drain members since: nothing of those is tidied before they are closed.
                self.files.roster().close_leaving().await?;
                for index in self.files.roster().leaving() {
                    self.files.roster().tidy(index).await?;
                }
                // Whatever else is lost or fails: what others put there until they hear of it is to be found.
                let wait = waits.next().filter(|_| rebuilt.walks < WALKS_MAX);
                rebuilt.taken = self.wait_until_empty(wait.unwrap_or_default()).await?;
                if wait.is_none() || rebuilt.taken.is_empty() {
                    return Ok(rebuilt);
                }
            }
        })
    }

    /// Members that are to be empty, and how many of their regions are taken.
    async fn taken(&self) -> Result<Vec<(u16, u64)>, Error> {
        let roster = self.files.roster();
        let mut taken = Vec::new();
        for index in roster.leaving() {
            match roster.chunks_on(index).await?.len() {
                0 => {}
                regions => taken.push((index, regions as u64)),
            }
        }
        Ok(taken)
    }

    /// Waits so long until members that are to be empty are.
    async fn wait_until_empty(&self, patience: Duration) -> Result<Vec<(u16, u64)>, Error> {
        let begun = time::now();
        self.job.begin("wait for other clients");
        loop {
            let taken = self.taken().await?;
            if taken.is_empty() || begun.elapsed() >= patience {
                return Ok(taken);
            }
            self.job.reached(begun.elapsed().as_secs_f64() / patience.as_secs_f64());
            time::sleep(LOOKED_EVERY).await;
            self.files.contents().space().settle().await;
        }
    }

    /// Asks a question of all stripes of all files whose keys come from `from` on (0: of all), and mends what it can. `passed` is
    /// told again and again before which cursor all is done.
    ///
    /// # Errors
    /// What the store says to a list of keys; what hinders with one file or stripe is in the report, and all others are looked at.
    pub async fn walk(
        &self,
        question: Question,
        from: u64,
        report: &RefCell<Report>,
        passed: impl AsyncFn(u64),
    ) -> Result<(), Error> {
        let access = &self.files.names().access;
        let prefix = access.keys.inodes();
        let mut cursor = from;
        loop {
            let (keys, next) = access.meta.list(&prefix, cursor, INODES_LISTED).await?;
            let mut few = Few::new();
            let mut numbers =
                keys.iter().filter_map(|key| Some(u64::from_be_bytes(key.strip_prefix(&*prefix)?.try_into().ok()?)));
            loop {
                while few.keys().count() < FILES_TOGETHER
                    && let Some(ino) = numbers.next()
                {
                    few.push(ino, self.see_to_file(question, ino, report));
                }
                match few.next().await {
                    Some((ino, Err(error))) => report.borrow_mut().fail(&format!("inode {ino}"), &error),
                    Some((_, Ok(()))) => {}
                    None => break,
                }
                passed(cursor).await;
            }
            self.job.reached_hash((next != 0).then_some(next));
            if next == 0 {
                return Ok(());
            }
            passed(next).await;
            cursor = next;
        }
    }

    async fn see_to_file(&self, question: Question, ino: u64, report: &RefCell<Report>) -> Result<(), Error> {
        let (names, contents) = (self.files.names(), self.files.contents());
        let Some(held) = names.inode(ino).await? else { return Ok(()) };
        if held.record.kind != Kind::File || matches!(held.record.content, Content::Inline(_)) {
            return Ok(());
        }
        let shape = contents.members().layout().shape;
        let inode = Stored::moving(Rc::clone(names), ino, shape, held)?;
        report.borrow_mut().files += 1;
        for _ in 0..CHANGES_MAX {
            match self.see_to_parts(question, &inode, report).await {
                Ok(false) => {}
                Ok(true) | Err(Error::Stale) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Err(Error::Unavailable("others change where the file's map is all the time".into()))
    }

    /// Asks a question of all parts of a file's map. False: it has another map by now, and is to be asked again.
    async fn see_to_parts(&self, question: Question, inode: &Stored, report: &RefCell<Report>) -> Result<bool, Error> {
        let contents = self.files.contents();
        for part in contents.parts_of(inode).await? {
            let Some(stripes) = contents.stripes_at(inode, part).await? else { return Ok(false) };
            let (mut few, mut stripes) = (Few::new(), stripes.into_iter());
            loop {
                while few.keys().count() < STRIPES_TOGETHER
                    && let Some((at, stripe)) = stripes.next()
                {
                    let mut report = report.borrow_mut();
                    (report.stripes, report.bytes) = (report.stripes + 1, report.bytes + u64::from(stripe.length));
                    let job = &*self.job;
                    few.push(at, async move { contents.see_to(inode, at, &stripe, question, job).await });
                }
                let Some((at, seen)) = few.next().await else { break };
                report.borrow_mut().add(inode.number(), at, seen);
            }
        }
        Ok(true)
    }
}
