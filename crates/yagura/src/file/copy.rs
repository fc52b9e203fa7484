//! `yagura file cp`: trees and files into, out of and within file systems.
//!
//! One future goes over the sources and makes directories; files are copied by a bounded number of others, the bytes of each by
//! some pieces at a time, and all together hold a bounded number of bytes. A file gets its name when it is whole.

mod bytes;
mod local;
mod source;
mod target;
mod work;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use ::file::record::Kind;
use engine::task::{LocalFuture, TaskSet};
use engine::time;

use self::source::{Found, Source, Trait};
use self::target::{Goal, Spot};
use self::work::{Copied, Work};
use super::cat;
use super::place::Place;
use super::session::Session;
use super::streams::{In, Out};
use crate::cli::FileCpArgs;
use crate::exit::Failure;
use crate::output;
use crate::size::Size;

/// Files that are known and not yet begun. Chosen: the bar's end is the true one of most trees from the start.
const WAITING_MAX: usize = 4096;

/// A file that is to be copied.
struct Job {
    from: Source,
    to: Spot,
    told: Trait,
}

/// A directory that gets its attributes when all is in it.
type Made = (Spot, Trait);

/// Copies.
pub async fn cp(session: &Session, args: &FileCpArgs) -> Result<(), Failure> {
    let sources: Vec<Place> = args.sources.iter().map(|text| Place::parse(text)).collect::<Result<_, _>>()?;
    let goal = Place::parse(&args.target)?;
    check(&sources, &goal, args)?;
    if let (Place::Standard, [Place::Inside(path)]) = (&goal, &sources[..]) {
        let mut out = Out::new()?;
        let written = cat::write(session, path, 0..u64::MAX, &mut out).await;
        return out.finish().await.and(written.map(drop));
    }
    let bar = output::copying("copy", args.common.json);
    session.show(&bar);
    let work = Work::new(session, args, bar);
    let (began, failed) = (time::now(), session.failed());
    let done = copy_all(&work, &sources, &goal).await;
    work.bar.finish_and_clear();
    let mut copied = work.copied.take();
    copied.failed = session.failed() - failed + u64::from(done.is_err());
    (copied.verified, copied.seconds) = (args.verify, began.elapsed().as_secs_f64());
    // What one file alone came to is said by its failure.
    if done.is_ok() || copied.files + copied.links > 0 {
        output::report(args.common.json, &copied, describe)?;
    }
    done.and(session.outcome())
}

fn check(sources: &[Place], goal: &Place, args: &FileCpArgs) -> Result<(), Failure> {
    let is_inside = |place: &Place| matches!(place, Place::Inside(_));
    if !is_inside(goal) && !sources.iter().all(is_inside) {
        return Err(Failure::usage(
            "neither end is in a file system: write NAME:PATH for what is (`cp` of this machine copies the rest)",
        ));
    }
    if *goal == Place::Standard && (sources.len() > 1 || args.recursive || args.verify) {
        return Err(Failure::usage("standard output takes one file, and nothing can be read back from it"));
    }
    if sources.contains(&Place::Standard) && (sources.len() > 1 || args.verify) {
        return Err(Failure::usage("standard input is one file, alone, and can't be read twice to verify it"));
    }
    Ok(())
}

fn describe(copied: &Copied) -> String {
    let Copied { files, directories, links, bytes, holes, verified, failed, seconds } = copied;
    let took = output::duration(Duration::from_secs_f64(*seconds));
    let rate = Size((*bytes as f64 / seconds.max(1e-9)) as u64);
    let mut text = format!("{}, {} in {took} ({rate} a second)", output::many(*files, "file"), Size(*bytes));
    if *directories + *links > 0 {
        let of = if *directories == 1 { "directory" } else { "directories" };
        text += &format!("; {directories} {of}, {}", output::many(*links, "symbolic link"));
    }
    if *holes > 0 {
        text += &format!("; {} of holes", Size(*holes));
    }
    if *verified {
        text += "; read back, and the same";
    }
    if *failed > 0 {
        text += &format!("; {failed} not copied");
    }
    text
}

async fn copy_all(work: &Work<'_>, sources: &[Place], goal: &Place) -> Result<(), Failure> {
    let goal = Goal::find(work.session, goal, sources.len() > 1).await?;
    if sources[0] == Place::Standard {
        return copy_stream(work, &goal).await;
    }
    let jobs = RefCell::new(VecDeque::new());
    let (is_listed, made) = (Cell::new(false), RefCell::new(Vec::new()));
    let listing = async {
        let listed = list(work, sources, &goal, &jobs, &made).await;
        is_listed.set(true);
        listed
    };
    let listed = run_beside(work, listing, &jobs, &is_listed).await;
    // The deepest first: what is made in a directory changes its times.
    for (spot, told) in made.into_inner().iter().rev() {
        if let Err(failure) = spot.settle_directory(told).await {
            work.session.fail(&failure);
        }
    }
    listed
}

/// Copies files as they become known, until the listing has ended and all are done.
async fn run_beside(
    work: &Work<'_>,
    listing: impl Future<Output = Result<(), Failure>>,
    jobs: &RefCell<VecDeque<Job>>,
    is_listed: &Cell<bool>,
) -> Result<(), Failure> {
    let mut listing = std::pin::pin!(listing);
    let mut running: TaskSet<LocalFuture<'_, ()>> = TaskSet::new(usize::from(work.args.depth));
    let mut listed = Ok(());
    poll_fn(|context| {
        loop {
            if !is_listed.get()
                && let Poll::Ready(result) = listing.as_mut().poll(context)
            {
                listed = result;
            }
            while !running.is_full()
                && let Some(job) = jobs.borrow_mut().pop_front()
            {
                let pushed = running.push(Box::pin(copy_job(work, job)));
                assert!(pushed.is_ok(), "invariant: the set is not full");
            }
            match running.poll_next(context) {
                Poll::Ready(Some(_)) => {}
                // All that was known has been begun above.
                Poll::Ready(None) if is_listed.get() => return Poll::Ready(()),
                _ => return Poll::Pending,
            }
        }
    })
    .await;
    listed
}

async fn copy_job(work: &Work<'_>, Job { from, to, told }: Job) {
    if let Err(failure) = bytes::copy(work, &from, &to, &told).await {
        work.session.fail(&failure.during(&from));
    }
}

/// Goes over the sources: directories and links are made at once, files noted.
async fn list(
    work: &Work<'_>,
    sources: &[Place],
    goal: &Goal,
    jobs: &RefCell<VecDeque<Job>>,
    made: &RefCell<Vec<Made>>,
) -> Result<(), Failure> {
    work.session
        .each(sources, async |place| {
            let source = Source::find(work.session, place, !work.args.recursive).await?;
            let spot = goal.spot(place.last_name());
            list_one(work, source, spot, jobs, made).await
        })
        .await
}

async fn list_one(
    work: &Work<'_>,
    source: Source,
    spot: Spot,
    jobs: &RefCell<VecDeque<Job>>,
    made: &RefCell<Vec<Made>>,
) -> Result<(), Failure> {
    spot.check_apart(&source).await?;
    let mut walk = source.walk();
    // The directories that what comes is in, the outermost first.
    let mut within: Vec<Spot> = Vec::new();
    while let Some(Found { path, source, told }) = walk.next().await {
        let is_top = path.is_empty();
        let depth = if is_top { 0 } else { 1 + path.iter().filter(|byte| **byte == b'/').count() };
        within.truncate(depth);
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let spot = if is_top { spot.clone() } else { within.last().unwrap_or(&spot).below(name) };
        let is_directory = told.as_ref().is_ok_and(|told| told.kind == Kind::Directory);
        let placed = async {
            let told = told?;
            match told.kind {
                Kind::Directory if !work.args.recursive => {
                    return Err(Failure::usage("is a directory: --recursive copies it"));
                }
                Kind::Directory => {
                    let dir = spot.make_directory(&told).await?;
                    work.count(|copied| copied.directories += 1);
                    made.borrow_mut().push((dir.clone(), told));
                    within.push(dir);
                }
                Kind::Symlink => {
                    spot.make_link(&told).await?;
                    work.count(|copied| copied.links += 1);
                }
                Kind::File => {
                    while jobs.borrow().len() >= WAITING_MAX {
                        time::sleep(Duration::from_millis(1)).await;
                    }
                    work.bar.inc_length(told.size);
                    jobs.borrow_mut().push_back(Job { from: source.clone(), to: spot, told });
                }
                _ => return Err(Failure::usage("neither a file, a directory nor a symbolic link: it is left out")),
            }
            Ok(())
        };
        if let Err(failure) = placed.await {
            let failure = failure.during(&source);
            if is_top {
                return Err(failure);
            }
            if is_directory {
                walk.skip();
            }
            work.session.fail(&failure);
        }
    }
    Ok(())
}

/// Standard input becomes a file.
async fn copy_stream(work: &Work<'_>, goal: &Goal) -> Result<(), Failure> {
    if goal.is_directory() {
        return Err(Failure::usage("standard input has no name: say what it is to be called"));
    }
    let spot = goal.spot(b"");
    let mut input = In::new()?;
    let told = Trait::of_stream();
    let writing = spot.begin().await?;
    let copied = bytes::copy_stream(work, &mut input, &writing).await;
    match copied {
        Ok(size) => {
            writing.finish(&told).await.map_err(|failure| failure.during(&spot))?;
            work.count(|copied| copied.bytes += size);
        }
        Err(failure) => {
            writing.give_up().await;
            return Err(failure.during(&spot));
        }
    }
    work.count(|copied| copied.files += 1);
    Ok(())
}
