//! [`Fsck`]: a look at everything, and, where it repairs, the mending of what is the dead's.
//!
//! Invariants, whoever else works on the file system, and wherever this one dies:
//! - It takes for left over only what it has seen unchanged for an hour, by its own clock, in its own memory; and it changes that
//!   by a compare-and-set of what it has seen.
//! - Inodes are read before names, so that one whose version is the same afterwards has no other names than were found; where a
//!   name can't be read, nothing is taken for nameless. Chunks are read before maps; where a map can't be read, no mark is cleared.
//! - Nothing that does not parse is changed.
//! - What it does may be done twice, and by several at once; what is to tell others that something is left goes last.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use engine::job::{Job, ShowProgress};
use engine::task::LocalFuture;
use engine::time::{self, Instant};

use super::clients::{Client, Collector, LOOKS_EVERY, QUIET};
use super::found::Found;
use super::listed::Listed;
use super::maps::{Inodes, Whose};
use super::names::Judge;
use super::noted::Noted;
use super::quotas::QuotasSeen;
use super::report::{Left, Report};
use super::space::Second;
use super::tries::Names;
use super::unnamed::Unnamed;
use crate::data::{Auditor, Contents, Region, SpanId, Stripe, Survey};
use crate::error::Error;
use crate::files::Files;
use crate::fs::FileSystem;
use crate::meta::Version;
use crate::record::Path;
use crate::record::small::{ClientRecord, NextInode, ScrubPlace};

/// Looks at everything, while what an hour brings is waited for. Chosen: what the first has found, what comes of that (an inode, or
/// spans, of which rows are nobody's then), a quarter of an hour before rows of each, and as many again, as one of them may come a
/// moment too early.
const LOOKS_MAX: u32 = 10;

/// See the module.
pub struct Fsck {
    pub(crate) names: Rc<FileSystem>,
    pub(crate) contents: Rc<Contents>,
    pub(crate) auditor: Auditor,
    pub(crate) collector: Collector,
    pub(crate) repairs: bool,
    /// Inodes with links that no name has.
    pub(crate) nameless: Noted<u64, Version>,
    pub(crate) nodes: Noted<(u64, Path), Version>,
    pub(crate) spans: Noted<SpanId, Version>,
    pub(crate) chunks: Unnamed,
    pub(crate) regions: Noted<(Region, u32), ()>,
    /// By quota and client; the number of the share.
    pub(crate) shares: Noted<(u64, u64), u64>,
    pub(crate) quotas: Noted<u64, Version>,
    /// When the look under way began.
    pub(crate) looked_at: Instant,
    job: Rc<Job>,
}

impl Fsck {
    /// A check by this client, which has nothing else to do. With `repairs` it mends what it can; `show` is told how far it has
    /// come.
    pub fn new(files: &Files, repairs: bool, show: Option<ShowProgress>) -> Fsck {
        let (names, contents) = (Rc::clone(files.names()), Rc::clone(files.contents()));
        let auditor = || Auditor::new(Rc::clone(names.meta()), Rc::clone(contents.members()));
        Fsck {
            auditor: auditor(),
            collector: Collector::new(Rc::clone(&names), auditor()),
            names,
            contents,
            repairs,
            nameless: Noted::new(),
            nodes: Noted::new(),
            spans: Noted::new(),
            chunks: Unnamed::default(),
            regions: Noted::new(),
            shares: Noted::new(),
            quotas: Noted::new(),
            looked_at: time::now(),
            job: Job::unlisted(None, show),
        }
    }

    /// Looks at everything; with `waits` again, for as long as there is something that an hour settles, nine looks more at most.
    ///
    /// # Errors
    /// The store does not answer. What was mended until then is.
    pub fn run(&mut self, waits: bool) -> LocalFuture<'_, Result<Report, Error>> {
        Box::pin(async move {
            let mut report = self.look().await?;
            for _ in 1..LOOKS_MAX {
                // A quota is counted when it was nobody's for all of a look.
                let can_count = self.repairs && report.uncounted > 0 && report.has_folded();
                if !waits || !(can_count || self.wait(&report).await?) {
                    break;
                }
                let before = std::mem::take(&mut report);
                report = self.look().await?;
                report.add_mended(&before);
            }
            Ok(report)
        })
    }

    /// Waits until what was found has been so for an hour. False: nothing has to be waited for.
    async fn wait(&mut self, report: &Report) -> Result<bool, Error> {
        self.job.begin("see which clients live");
        if report.clients > 0 {
            time::sleep(QUIET + Duration::from_secs(10)).await;
        }
        let quiet = self.quiet().await?;
        if quiet.is_empty() && report.waiting() == 0 {
            return Ok(false);
        }
        let noted =
            [self.nameless.left(), self.nodes.left(), self.spans.left(), self.chunks.left(), self.regions.left()];
        let noted = noted.into_iter().chain([self.shares.left(), self.quotas.left()]);
        let left = noted.fold(self.collector.watch.left(&quiet), Duration::max);
        let (begin, end) = (time::now(), time::now() + left + Duration::from_secs(1));
        self.job.begin("wait until what seems left over has been so for an hour");
        loop {
            let now = time::now();
            self.job.reached(now.duration_since(begin).as_secs_f64() / (end - begin).as_secs_f64());
            if now >= end {
                return Ok(true);
            }
            let looks_at = end.min(now + LOOKS_EVERY);
            while time::now() < looks_at {
                time::sleep_until(looks_at.min(time::now() + Duration::from_secs(1))).await;
                let done = time::now().duration_since(begin).as_secs_f64() / (end - begin).as_secs_f64();
                self.job.reached(done);
            }
            self.names.renew().await?;
            self.collector.look().await?;
        }
    }

    /// Clients that have said nothing for some minutes.
    async fn quiet(&mut self) -> Result<Vec<u64>, Error> {
        let clients = self.collector.look().await?;
        let numbers = clients.iter().map(|client| client.number).filter(|number| *number != self.names.client());
        Ok(numbers.filter(|number| self.collector.watch.is_quiet(*number)).collect())
    }

    /// Looks at everything once.
    async fn look(&mut self) -> Result<Report, Error> {
        self.names.renew().await?;
        let mut report = Report::default();
        let clients = self.collector.look().await?;
        self.begin();
        let quotas = QuotasSeen::read(&self.names).await?;
        let listed = Listed::read(&**self.names.meta(), self.names.access.keys).await?;
        report.clients = clients.iter().filter(|client| client.number != self.names.client()).count() as u64;
        let begun = time::now();
        let mut survey = self.auditor.survey().await?;
        let (names, contents) = (Rc::clone(&self.names), Rc::clone(&self.contents));
        let visit = |whose: Whose, stripe: &Stripe| match whose.goes {
            true => survey.hold(stripe),
            false => survey.name(stripe),
        };
        let mut inodes = Inodes::read(&names, &contents, &listed, &self.job, visit).await?;
        let living = clients.iter().map(|client| client.number).collect();
        self.check_quotas(&quotas, &inodes, &living, &mut report).await?;
        let second = Second { names: &names, contents: &contents, auditor: &self.auditor };
        let faults = second.stripes(&listed, &survey, &self.job).await?;
        let touched = faults.iter().flat_map(|fault| &fault.inos).copied();
        let wanted: Vec<u64> =
            touched.chain(inodes.damaged.keys().copied()).chain(inodes.unmapped.keys().copied()).collect();
        let found = Names::read(&names, &listed, &mut inodes, wanted.into_iter(), &self.job).await?;
        (report.inodes, report.names, report.chunks) =
            (inodes.all.len() as u64, found.count, survey.chunks.len() as u64);
        for fault in faults {
            let files: BTreeSet<String> = fault.inos.iter().map(|ino| found.paths.of(*ino)).collect();
            report.damage(format!("{}: {}", fault.what, files.into_iter().collect::<Vec<_>>().join(", ")), false);
        }
        let regions = self.regions(&survey, begun, &mut report).await?;
        self.tell_unread(&listed, &survey, &inodes, &found, &clients, &mut report).await?;
        let mut judge =
            Judge { names: &names, inodes: &inodes, found: &found, repairs: self.repairs, report: &mut report };
        let is_whole = judge.is_whole().await?;
        judge.suspects().await?;
        if is_whole {
            judge.lone().await?;
        }
        // A name leads to what is there, whatever is wrong with it.
        let mut spared = found.untold.clone();
        let loose = judge.loose(&listed, &mut spared).await?;
        let met = Found { listed, survey, inodes, found, clients, regions, loose, spared, is_whole, begun };
        self.judge_and_mend(met, &mut report).await?;
        self.end();
        Ok(report)
    }

    fn begin(&mut self) {
        self.nameless.begin();
        self.nodes.begin();
        self.spans.begin();
        self.chunks.begin();
        self.regions.begin();
        self.shares.begin();
        self.quotas.begin();
        self.looked_at = time::now();
    }

    fn end(&mut self) {
        self.nameless.end();
        self.nodes.end();
        self.spans.end();
        self.chunks.end();
        self.regions.end();
        self.shares.end();
        self.quotas.end();
    }

    /// Regions that no chunk has for an hour, which can be given back; others are told.
    async fn regions(
        &mut self,
        survey: &Survey,
        begun: Instant,
        report: &mut Report,
    ) -> Result<Vec<(Region, u32)>, Error> {
        let regions = self.auditor.regions(survey).await?;
        regions.damaged.into_iter().for_each(|why| report.damage(why, false));
        let (names, contents) = (&*self.names, &self.contents);
        let second = Second { names, contents, auditor: &self.auditor };
        for wrong in regions.wrong {
            if let Some(what) = second.region(wrong).await? {
                report.damage(what, false);
            }
        }
        let mut ripe = Vec::new();
        for (region, chunk) in regions.stray {
            if second.has(chunk, region).await? {
                continue; // it was made meanwhile
            }
            match self.regions.note((region, chunk), (), begun) {
                true => ripe.push((region, chunk)),
                false => report.leave(Left::Region, false, true),
            }
        }
        Ok(ripe)
    }

    /// Records that do not parse, and what they touch.
    async fn tell_unread(
        &self,
        listed: &Listed,
        survey: &Survey,
        inodes: &Inodes,
        found: &Names,
        clients: &[Client],
        report: &mut Report,
    ) -> Result<(), Error> {
        for key in &listed.odd {
            report.damage(format!("no record has the key {}", key.escape_ascii()), false);
        }
        for (ino, why) in &inodes.damaged {
            report.damage(format!("{} can't be read: {why}", found.paths.of(*ino)), false);
        }
        for (ino, why) in &inodes.unmapped {
            report.damage(format!("where the bytes of {} lie can't be read: {why}", found.paths.of(*ino)), false);
        }
        for (number, why) in &survey.damaged {
            report.damage(format!("chunk {number} can't be read, nor files that lie in it be written: {why}"), false);
        }
        let access = &self.names.access;
        for number in listed.clients.iter().filter(|number| clients.iter().all(|client| client.number != **number)) {
            if let Err(Error::Damaged(why)) = access.get::<ClientRecord>(&access.keys.client(*number)).await {
                report.damage(format!("client {number} can't be read, nor be collected: {why}"), false);
            }
        }
        if let Err(Error::Damaged(why)) = access.get::<NextInode>(&access.keys.next_inode()).await {
            report.damage(format!("the number of the next inode can't be read: nothing can be made: {why}"), false);
        }
        if let Err(Error::Damaged(why)) = access.get::<ScrubPlace>(&access.keys.scrub()).await {
            report.damage(format!("how far a scrub has come can't be read, and nothing can be scrubbed: {why}"), false);
        }
        Ok(())
    }

    pub(crate) fn job(&self) -> &Job {
        &self.job
    }
}
