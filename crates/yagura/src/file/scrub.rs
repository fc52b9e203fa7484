//! `yagura file scrub`; and what it and `rebuild` say of what they have found.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use ::file::Files;
use ::file::mend::{Fault, Mender, Report};
use engine::time::{self, Instant};
use serde::Serialize;

use super::fault::failure;
use super::paths;
use super::session::{Reach, Session};
use crate::cli::FileScrubArgs;
use crate::exit::Failure;
use crate::output::{self, many};
use crate::size::Size;

/// Columns of a member that were not as they should be.
#[derive(Serialize, Default)]
struct MemberFaults {
    member: u16,
    missing: u64,
    leaving: u64,
    rotten: u64,
    unread: u64,
}

/// Bytes that can't be read.
#[derive(Serialize)]
struct Lost {
    inode: u64,
    /// One of its names, if it has one.
    path: Option<String>,
    from: u64,
    to: u64,
    reason: String,
}

/// What a walk found, and what it did.
#[derive(Serialize)]
pub struct Found {
    files: u64,
    stripes: u64,
    /// Of data.
    bytes: u64,
    rewritten: u64,
    members: Vec<MemberFaults>,
    lost_bytes: u64,
    lost: Vec<Lost>,
    failed: u64,
    /// Stripes that could not be read now, as members did not answer.
    unread: u64,
    failures: Vec<String>,
}

#[derive(Serialize)]
struct Scrubbed {
    /// False: it was ended, and goes on when it is run again.
    is_whole: bool,
    /// Since when, by its clock, that one was at it which this has gone on with (seconds since 1970).
    went_on_since: Option<i64>,
    /// Bytes read and written on all members.
    moved_bytes: Option<u64>,
    seconds: f64,
    #[serde(flatten)]
    found: Found,
}

impl Found {
    pub async fn new(files: &Files, report: &Report) -> Found {
        let inodes: BTreeSet<u64> = report.lost.iter().map(|lost| lost.inode).collect();
        // Without paths it is a report as well.
        let paths = match paths::of(files.names(), inodes).await {
            (paths, None) => paths,
            (paths, Some(error)) => {
                tracing::warn!(%error, "not all names of files can be told: they are named by their inodes");
                paths
            }
        };
        let lost = report.lost.iter().map(|lost| Lost {
            inode: lost.inode,
            path: paths.get(&lost.inode).cloned(),
            from: lost.range.start,
            to: lost.range.end,
            reason: lost.reason.clone(),
        });
        let members: BTreeSet<u16> = report.faults.keys().map(|(member, _)| *member).collect();
        let of = |member: u16, fault: Fault| report.faults.get(&(member, fault)).copied().unwrap_or(0);
        let members = members.into_iter().map(|member| MemberFaults {
            member,
            missing: of(member, Fault::Missing),
            leaving: of(member, Fault::Leaving),
            rotten: of(member, Fault::Rotten),
            unread: of(member, Fault::Unread),
        });
        Found {
            files: report.files,
            stripes: report.stripes,
            bytes: report.bytes,
            rewritten: report.rewritten,
            members: members.collect(),
            lost_bytes: report.lost_bytes,
            lost: lost.collect(),
            failed: report.failed,
            unread: report.unread,
            failures: report.failures.clone(),
        }
    }

    /// Files with stripes.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Bytes of data in them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// For people, a line each.
    pub fn describe(&self, text: &mut String) {
        for MemberFaults { member, missing, leaving, rotten, unread } in &self.members {
            let kinds = [
                (missing, "not written"),
                (leaving, "to be moved away"),
                (rotten, "not what was written"),
                (unread, "not read, as it did not answer"),
            ];
            let told: Vec<String> = kinds
                .into_iter()
                .filter(|(count, _)| **count > 0)
                .map(|(count, what)| format!("{} {what}", many(*count, "column")))
                .collect();
            *text += &format!("  member {member}: {}\n", told.join(", "));
        }
        for Lost { inode, path, from, to, reason } in &self.lost {
            let name = path.as_deref().unwrap_or("a file of which no name is known");
            *text += &format!("  lost: {name} (inode {inode}), bytes {from} to {to}: {reason}\n");
        }
        for failure in &self.failures {
            *text += &format!("  not mended: {failure}\n");
        }
    }

    /// The exit status.
    pub fn verdict(&self) -> Result<(), Failure> {
        if self.lost_bytes > 0 {
            let bytes = Size(self.lost_bytes);
            return Err(Failure::check(format!(
                "{bytes} of files can't be read: more columns are lost than there is parity"
            )));
        }
        if self.failed > 0 {
            let what = many(self.failed, "stripe or file");
            return Err(Failure::check(format!(
                "{what} could not be mended now: see to what hinders, and run it again"
            )));
        }
        let silent: Vec<usize> =
            self.members.iter().filter(|of| of.unread > 0).map(|of| usize::from(of.member)).collect();
        if self.unread > 0 {
            let what = many(self.unread, "stripe");
            return Err(Failure::unavailable(format!(
                "{what} could not be read, as members did not answer: run it again when they do"
            )));
        }
        if !silent.is_empty() {
            let who = output::members(&silent);
            return Err(Failure::unavailable(format!("{who} did not answer: what is there is not known")));
        }
        Ok(())
    }
}

/// What is said of a walk that a signal has ended.
pub const INTERRUPTED: &str = "ended by a signal: what is done is done, and the same command goes on with the rest";

/// Runs `file scrub`.
pub fn run(args: &FileScrubArgs) -> Result<(), Failure> {
    Session::run(&args.walk.address, INTERRUPTED, async |session| scrub(args, session).await)
}

async fn scrub(args: &FileScrubArgs, session: &Session) -> Result<(), Failure> {
    let files = session.open(&args.name, Reach::LostToo).await?;
    let walk = &args.walk;
    let (bar, job) = output::walk_job(walk.rate.map(|rate| rate.0), walk.common.json);
    let begun = time::now();
    let mender = Rc::new(Mender::new(Rc::clone(&files), Rc::clone(&job)));
    let partial = || {
        let (files, mender) = (Rc::clone(&files), Rc::clone(&mender));
        tell_partial(files, mender, args.name.clone(), args.walk.common.json, begun)
    };
    let at_a_signal = partial();
    session.when_ended(async move {
        if let Err(failure) = at_a_signal.await {
            let _status = failure.report();
        }
    });
    let scrubbed = mender.scrub(args.anew).await;
    bar.finish_and_clear();
    session.is_over();
    let scrubbed = match scrubbed {
        Ok(scrubbed) => scrubbed,
        Err(error) => {
            partial().await?;
            return Err(failure(error).during("the scrub goes on where it was when it is run again"));
        }
    };
    let report = Scrubbed {
        is_whole: true,
        went_on_since: scrubbed.went_on.map(|began| began.seconds),
        moved_bytes: Some(job.end().await),
        seconds: begun.elapsed().as_secs_f64(),
        found: Found::new(&files, &scrubbed.report).await,
    };
    output::report(args.walk.common.json, &report, |report| describe(&args.name, report))?;
    mender.forget().await.map_err(failure)?;
    report.found.verdict()
}

/// However it ends, what it has found is told, and kept for whoever goes on with it.
async fn tell_partial(
    files: Rc<Files>,
    mender: Rc<Mender>,
    name: String,
    json: bool,
    begun: Instant,
) -> Result<(), Failure> {
    if let Err(error) = mender.note().await {
        tracing::warn!(%error, "what the scrub has found is not noted");
    }
    let (found, seconds) = (Found::new(&files, &mender.so_far()).await, begun.elapsed().as_secs_f64());
    let report = Scrubbed { is_whole: false, went_on_since: None, moved_bytes: None, seconds, found };
    output::report(json, &report, |report| describe(&name, report))
}

fn describe(name: &str, report: &Scrubbed) -> String {
    let Scrubbed { is_whole, went_on_since, moved_bytes, seconds, found } = report;
    let moved = moved_bytes.map_or(String::new(), |bytes| format!("{} read and written in ", Size(bytes)));
    let mut text = format!(
        "file system {name}: {}, {} of data in {}; {moved}{}\n",
        many(found.files, "file"),
        Size(found.bytes),
        many(found.stripes, "stripe"),
        output::duration(Duration::from_secs_f64(*seconds)),
    );
    if !is_whole {
        text += "  it was ended half-way: this is what it has found so far, and the next one goes on with it\n";
    }
    if went_on_since.is_some() {
        text += "  a scrub before was ended half-way: this one has gone on with it, and tells of both (begin anew: --anew)\n";
    }
    let clean = found.members.is_empty() && found.lost_bytes == 0 && found.failed + found.unread == 0;
    text += &match (clean, found.rewritten) {
        (true, _) => "  all columns are there, and what was written\n".to_owned(),
        (false, rewritten) => format!("  {} written anew\n", many(rewritten, "stripe")),
    };
    found.describe(&mut text);
    text
}
