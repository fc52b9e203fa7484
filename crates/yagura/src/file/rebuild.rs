//! `yagura file rebuild`; and the same for whoever empties a member.

use std::rc::Rc;

use ::file::Files;
use ::file::mend::{Mender, Rebuilt};
use serde::Serialize;

use super::fault::failure;
use super::scrub::{Found, INTERRUPTED};
use super::session::{Reach, Session};
use crate::cli::{FileRebuildArgs, Walk};
use crate::exit::Failure;
use crate::output::{self, many};
use crate::size::Size;

/// Regions of a member that is to be empty.
#[derive(Serialize)]
struct Taken {
    member: u16,
    regions: u64,
}

/// What was done, and what is left.
#[derive(Serialize)]
pub struct Report {
    walks: u32,
    rewritten: u64,
    /// Bytes read and written on all members.
    moved_bytes: u64,
    taken: Vec<Taken>,
    left: Found,
}

/// Runs `file rebuild`.
pub fn run(args: &FileRebuildArgs) -> Result<(), Failure> {
    Session::run(&args.walk.address, INTERRUPTED, async |session| {
        let files = session.open(&args.name, Reach::LostToo).await?;
        let report = rebuild(&args.walk, &files).await?;
        output::report(args.walk.common.json, &report, |report| report.describe(&args.name))?;
        report.verdict()
    })
}

/// Writes anew what lacks something, until nothing more can be done.
pub async fn rebuild(walk: &Walk, files: &Rc<Files>) -> Result<Report, Failure> {
    let (bar, job) = output::walk_job(walk.rate.map(|rate| rate.0), walk.common.json);
    let rebuilt = Mender::new(Rc::clone(files), Rc::clone(&job)).rebuild().await;
    bar.finish_and_clear();
    let Rebuilt { walks, rewritten, left, taken } = rebuilt.map_err(failure)?;
    let taken = taken.into_iter().map(|(member, regions)| Taken { member, regions }).collect();
    let moved_bytes = job.end().await;
    Ok(Report { walks, rewritten, moved_bytes, taken, left: Found::new(files, &left).await })
}

impl Report {
    /// For people.
    pub fn describe(&self, name: &str) -> String {
        let Report { walks, rewritten, moved_bytes, taken, left } = self;
        let walks = many(u64::from(*walks), "walk");
        let stripes = many(*rewritten, "stripe");
        let mut text = format!(
            "file system {name}: {} with {} of data; {stripes} written anew in {walks}, {} read and written\n",
            many(left.files(), "file"),
            Size(left.bytes()),
            Size(*moved_bytes),
        );
        for Taken { member, regions } in taken {
            text += &format!("  member {member}: {} taken still\n", many(*regions, "region"));
        }
        left.describe(&mut text);
        text
    }

    /// Whether nothing of a member is taken any more.
    pub fn is_empty(&self, member: u16) -> bool {
        self.taken.iter().all(|taken| taken.member != member)
    }

    /// The exit status.
    pub fn verdict(&self) -> Result<(), Failure> {
        self.left.verdict()?;
        let members: Vec<usize> = self.taken.iter().map(|taken| usize::from(taken.member)).collect();
        if members.is_empty() {
            return Ok(());
        }
        Err(Failure::check(format!(
            "what is taken of {} still holds nothing that a file names: rows rest for 40 minutes where a column failed, and go \
             with the next run; what a client that died had taken goes by `yagura file fsck --repair --wait`",
            output::members(&members)
        )))
    }
}
