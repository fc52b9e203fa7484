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
use engine::time;

pub use crate::data::{Fault, Question};
use crate::data::{Few, Inode as _, Outcome, Seen};
use crate::error::Error;
use crate::files::Files;
use crate::record::inode::Content;
use crate::record::small::ScrubPlace;
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
                for range in ranges {
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
    /// Since it began, or went on.
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
}

impl Mender {
    /// As this client, which says that it lives; paced by the job, which is told how far it has come.
    pub fn new(files: Rc<Files>, job: Rc<Job>) -> Mender {
        Mender { files, job }
    }

    /// Reads all columns of all stripes, and mends what does not verify or is missing. It goes on where one before it was ended,
    /// unless `anew`.
    ///
    /// # Errors
    /// What the store says; where to go on is kept.
    pub async fn scrub(&self, anew: bool) -> Result<Scrubbed, Error> {
        let access = &self.files.names().access;
        let key = access.keys.scrub();
        self.job.begin("scrub");
        let held = access.get::<ScrubPlace>(&key).await?;
        let before = held.as_ref().map(|held| held.record.clone()).filter(|place| !anew && place.cursor != 0);
        let began = before.as_ref().map_or_else(Time::now, |place| place.began);
        let from = before.as_ref().map_or(0, |place| place.cursor);
        let report = RefCell::default();
        let noted = Cell::new(time::now());
        let note = async |cursor| {
            if noted.get().elapsed() < NOTED_EVERY {
                return;
            }
            noted.set(time::now());
            // Another one that notes its place at the same time has come so far itself.
            if let Err(error) = self.note(&key, cursor, began).await {
                tracing::warn!(%error, "how far the scrub has come is not noted");
            }
        };
        self.walk(Question::Scrub, from, &report, note).await?;
        if let Some(held) = access.get::<ScrubPlace>(&key).await? {
            access.remove(&key, &held).await?;
        }
        self.files.contents().space().settle().await;
        Ok(Scrubbed { report: report.into_inner(), went_on: before.map(|place| place.began) })
    }

    /// Keeps how far a scrub has come.
    async fn note(&self, key: &[u8], cursor: u64, began: Time) -> Result<(), Error> {
        let access = &self.files.names().access;
        let held = access.get::<ScrubPlace>(key).await?;
        let new = ScrubPlace { cursor, began, ..ScrubPlace::default() };
        access.put(key, held.as_ref(), new).await.map(drop)
    }

    /// Writes anew what has a column missing, or one on a member that is to be empty, until nothing more can be done. Then such a
    /// member has nothing, but where something hinders that: see [`Rebuilt::taken`] and [`Rebuilt::left`].
    ///
    /// # Errors
    /// What the store says; it is begun anew then.
    pub async fn rebuild(&self) -> Result<Rebuilt, Error> {
        let mut rebuilt = Rebuilt::default();
        // Clients that have not heard yet may put stripes there until they do, and settle later what they give back.
        let mut waits = [HEARD_WITHIN, SETTLED_WITHIN].into_iter();
        let mut again = 0;
        loop {
            self.files.refresh_members().await?;
            // Before the walk: what comes to lie there later than it would be found by no walk.
            self.files.roster().close_leaving().await?;
            let report = RefCell::default();
            self.job.begin("rebuild");
            self.walk(Question::Rebuild, 0, &report, async |_| {}).await?;
            self.files.contents().space().settle().await;
            rebuilt.left = report.into_inner();
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
            for index in self.files.roster().leaving() {
                self.files.roster().tidy(index).await?;
            }
            let is_undone = rebuilt.left.failed + rebuilt.left.unread + rebuilt.left.lost_bytes > 0;
            let is_in_vain = is_undone || rebuilt.walks >= WALKS_MAX;
            let wait = waits.next().filter(|_| !is_in_vain);
            rebuilt.taken = self.wait_until_empty(wait.unwrap_or_default()).await?;
            if wait.is_none() || rebuilt.taken.is_empty() {
                return Ok(rebuilt);
            }
        }
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
    /// told each time that all before a cursor is done.
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
