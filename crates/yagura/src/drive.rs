//! `yagura drive …`: a medium carved into namespaces, worked on while nobody serves it; and the drives that a target serves.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use device::drive::{NamespaceUsage, Scrub};
use device::{Drive, DriveError, DriveNamespace, DriveOptions, Error, FormatOptions, NamespaceSpec};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use serde::{Deserialize, Serialize};

use crate::cli::{DriveArgs, DriveCopyArgs, DriveCreateArgs, DriveFormatArgs, DriveGrowArgs, DriveVerb};
use crate::exit::Failure;
use crate::size::Size;
use crate::{output, reactors};

/// Runs a verb.
pub fn run(verb: &DriveVerb) -> Result<(), Failure> {
    match verb {
        DriveVerb::Format(args) => reactors::run_one(format(args)),
        DriveVerb::List(args) => reactors::run_one(list(args)),
        DriveVerb::Create(args) => reactors::run_one(create(args)),
        DriveVerb::Delete(args) => reactors::run_one(async {
            let drive = open(&args.drive.path, false).await?;
            let number = drive.find(&args.name).map_err(failure)?;
            drive.delete(number).await.map_err(failure)?;
            done(&args.drive, drive, &format!("{} is deleted", args.name)).await
        }),
        DriveVerb::Grow(args) => reactors::run_one(grow(args)),
        DriveVerb::Snapshot(args) => reactors::run_one(copy(args, true)),
        DriveVerb::Clone(args) => reactors::run_one(copy(args, false)),
        DriveVerb::Scrub(args) => reactors::run_one(scrub(args)),
        DriveVerb::Check(args) => reactors::run_one(check(args)),
        DriveVerb::Dump(args) => reactors::run_one(dump(args)),
        DriveVerb::Usage(args) => reactors::run_one(usage(args)),
    }
}

/// A drive's failure as an exit status.
pub fn failure(error: DriveError) -> Failure {
    match error {
        DriveError::Device(Error::OutOfSpace) | DriveError::MetadataFull { .. } => Failure::out_of_space(error),
        DriveError::Io { ref source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
            Failure::out_of_space(error)
        }
        DriveError::Busy { .. }
        | DriveError::Zoned { .. }
        | DriveError::Io { .. }
        | DriveError::NotADrive { .. }
        | DriveError::IsADrive { .. }
        | DriveError::InUse { .. }
        | DriveError::Damaged { .. }
        | DriveError::Undecided { .. }
        | DriveError::ReadOnly(_)
        | DriveError::Device(_) => Failure::refused(error),
        other => Failure::usage(other),
    }
}

async fn open(path: &Path, read_only: bool) -> Result<Drive, Failure> {
    let options = DriveOptions { read_only, ..DriveOptions::default() };
    Drive::open(path, &options).await.map_err(|error| match error {
        DriveError::Busy { path } => busy(&path),
        other => failure(other),
    })
}

/// A drive that somebody else has open.
fn busy(path: &Path) -> Failure {
    let who = holder(path).map_or_else(|| "another process".to_owned(), |id| format!("process {id}"));
    let mend = "if that is a yagura target with --control SOCKET, ask it: yagura target drive VERB --control SOCKET";
    Failure::refused(format!("{}: in use by {who}; {mend}", path.display()))
}

/// The process that has locked a file, as /proc/locks tells it: `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE …`.
fn holder(path: &Path) -> Option<u32> {
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).ok()?);
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let place = words.get(5)?.rsplit(':').next()?;
        (place.parse() == Ok(inode)).then(|| words.get(4)?.parse().ok())?
    })
}

#[derive(Serialize)]
struct Done<'a> {
    done: &'a str,
}

async fn done(args: &DriveArgs, drive: Drive, what: &str) -> Result<(), Failure> {
    drive.close().await.map_err(failure)?;
    output::report(args.common.json, &Done { done: what }, |done| done.done.to_owned())
}

async fn format(args: &DriveFormatArgs) -> Result<(), Failure> {
    let DriveFormatArgs { drive, size, extent, unit, journal, force } = args;
    if size.is_none() && !drive.path.exists() {
        let mend = "does not exist; give its size to create it, as in --size 100GiB";
        return Err(Failure::usage(format!("{}: {mend}", drive.path.display())));
    }
    let options = FormatOptions {
        create: size.map(|size| size.0),
        extent_bytes: u32::try_from(extent.0).map_err(|_| failure(DriveError::ExtentSize(u32::MAX)))?,
        unit: *unit,
        journal_bytes: journal.map(|journal| journal.0),
        force: *force,
    };
    let made = Drive::format(&drive.path, &options).await.map_err(failure)?;
    let sentence = format!("{}: a drive with room for {}", drive.path.display(), Size(made.usage().bytes));
    done(drive, made, &sentence).await
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Listed {
    pub number: u32,
    pub name: String,
    pub nguid: String,
    pub block_size: u32,
    pub bytes: u64,
    pub allocated_bytes: u64,
    pub own_bytes: u64,
    pub snapshot: bool,
    pub source: Option<u32>,
    /// Where a target serves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served: Option<String>,
}

impl From<NamespaceUsage> for Listed {
    fn from(one: NamespaceUsage) -> Listed {
        Listed {
            number: one.number,
            name: one.name,
            nguid: format!("{:032x}", u128::from_be_bytes(one.nguid)),
            block_size: one.block_size,
            bytes: one.bytes,
            allocated_bytes: one.allocated_bytes,
            own_bytes: one.own_bytes,
            snapshot: one.read_only,
            source: one.source,
            served: None,
        }
    }
}

async fn list(args: &DriveArgs) -> Result<(), Failure> {
    let listed: Vec<Listed> = open(&args.path, true).await?.namespaces().into_iter().map(Listed::from).collect();
    output::report(args.common.json, &listed, |all| describe_list(all))
}

/// A line for each namespace.
pub fn describe_list(all: &[Listed]) -> String {
    let line = |one: &Listed| {
        let kind = if one.snapshot { "snapshot" } else { "namespace" };
        let (size, allocated, own) = (Size(one.bytes), Size(one.allocated_bytes), Size(one.own_bytes));
        let served = one.served.as_ref().map_or_else(String::new, |place| format!(", served as {place}"));
        format!("{} {kind} {}: {size}, {allocated} allocated, {own} of it its own{served}\n", one.number, one.name)
    };
    all.iter().map(line).collect()
}

async fn create(args: &DriveCreateArgs) -> Result<(), Failure> {
    let drive = open(&args.drive.path, false).await?;
    let spec = NamespaceSpec { name: args.name.clone(), bytes: args.size.0, block_size: args.block };
    let number = drive.create(&spec).await.map_err(failure)?.number();
    done(&args.drive, drive, &format!("{} is namespace {number}", args.name)).await
}

async fn grow(args: &DriveGrowArgs) -> Result<(), Failure> {
    let drive = open(&args.drive.path, false).await?;
    let number = drive.find(&args.name).map_err(failure)?;
    drive.grow(number, args.size.0).await.map_err(failure)?;
    done(&args.drive, drive, &format!("{} has {}", args.name, args.size)).await
}

async fn copy(args: &DriveCopyArgs, read_only: bool) -> Result<(), Failure> {
    let drive = open(&args.drive.path, false).await?;
    let source = drive.find(&args.name).map_err(failure)?;
    let made = match read_only {
        true => drive.snapshot(source, &args.new).await,
        false => drive.clone_of(source, &args.new).await,
    };
    let number = made.map_err(failure)?.number();
    done(&args.drive, drive, &format!("{} is namespace {number}", args.new)).await
}

/// What a scrub has found.
#[derive(Clone, Serialize, Deserialize)]
pub struct Scrubbed {
    pub bytes: u64,
    pub damaged: u64,
    pub uncorrectable: u64,
    /// The first of them: namespace, block and what is wrong.
    pub damage: Vec<(String, u64, String)>,
    /// How much of it was done, 0 to 1, when it ended before it was through; none: all was read.
    pub stopped_at: Option<f64>,
}

async fn scrub(args: &DriveArgs) -> Result<(), Failure> {
    let drive = open(&args.path, true).await?;
    let (bar, job) = output::walk_job(None, args.common.json);
    let found = RefCell::default();
    let failed = drive.scrub_into(&job, &found).await.err().map(|error| error.to_string());
    bar.finish_and_clear();
    let stopped_at = failed.as_ref().map(|_| job.status().done);
    found_by_scrub(args.common.json, &Scrubbed { stopped_at, ..found.into_inner().into() }, failed)
}

impl From<Scrub> for Scrubbed {
    fn from(found: Scrub) -> Scrubbed {
        let damage = found.damage.into_iter().map(|one| (one.namespace, one.lba.0, one.what)).collect();
        let Scrub { bytes, damaged, uncorrectable, .. } = found;
        Scrubbed { bytes, damaged, uncorrectable, damage, stopped_at: None }
    }
}

impl Scrubbed {
    /// For people: the damage, line by line, and the figures.
    fn describe(&self) -> String {
        let Scrubbed { bytes, damaged, uncorrectable, ref damage, stopped_at } = *self;
        let mut text: String = damage.iter().map(|(name, lba, what)| format!("{name}: block {lba} {what}\n")).collect();
        let damaged = output::many(damaged, "block");
        text += &format!("{} verified, {damaged} damaged, {uncorrectable} marked uncorrectable", Size(bytes));
        if let Some(at) = stopped_at {
            text += &format!("; stopped at {}", output::percent(at));
        }
        text
    }
}

/// Reports what a scrub has found. Damage is a failure, and so is `cut`: why it was not to see all.
pub fn found_by_scrub(json: bool, report: &Scrubbed, cut: Option<String>) -> Result<(), Failure> {
    output::report(json, report, Scrubbed::describe)?;
    let damaged = output::many(report.damaged, "damaged block");
    let damage = format!("{damaged}: restore what stood there from a copy by writing it anew");
    match (report.damaged, cut) {
        (0, None) => Ok(()),
        (0, Some(cut)) => Err(Failure::refused(cut)),
        (_, None) => Err(Failure::check(damage)),
        (_, Some(cut)) => Err(Failure::check(format!("{damage}; {cut}"))),
    }
}

#[derive(Serialize)]
struct Checked {
    faults: Vec<String>,
    namespaces: u64,
    extents_used: u64,
    extents_free: u64,
    pages: u64,
    units_written: u64,
    units_uncorrectable: u64,
}

async fn check(args: &DriveArgs) -> Result<(), Failure> {
    let drive = open(&args.path, true).await?;
    let bar = output::progress_share("check", args.common.json);
    let show = |done: u64, total: u64| bar.show(done as f64 / total.max(1) as f64);
    let found = drive.check(show).await.map_err(Failure::refused)?;
    bar.finish_and_clear();
    let report = Checked {
        faults: found.faults,
        namespaces: found.namespaces,
        extents_used: found.extents_used,
        extents_free: found.extents_free,
        pages: found.pages,
        units_written: found.units_written,
        units_uncorrectable: found.units_uncorrectable,
    };
    output::report(args.common.json, &report, |report| {
        let mut text: String = report.faults.iter().map(|fault| format!("{fault}\n")).collect();
        let (used, free) = (report.extents_used, report.extents_free);
        let used = output::many(used, "extent");
        text += &format!("{}, {used} in use, {free} free, ", output::many(report.namespaces, "namespace"));
        let pages = output::many(report.pages, "checksum page");
        text += &format!("{pages}; {}", output::many(report.faults.len() as u64, "fault"));
        text
    })?;
    match report.faults.len() {
        0 => Ok(()),
        faults => Err(Failure::check(format!("the drive has {}", output::many(faults as u64, "fault")))),
    }
}

#[derive(Serialize)]
struct Dumped {
    dump: String,
}

async fn dump(args: &DriveArgs) -> Result<(), Failure> {
    let dump = open(&args.path, true).await?.dump().await.map_err(Failure::refused)?;
    output::report(args.common.json, &Dumped { dump }, |dumped| dumped.dump.clone())
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Used {
    pub bytes: u64,
    pub used_bytes: u64,
    pub promised_bytes: u64,
    pub extent_bytes: u32,
    pub unit: u32,
}

impl Used {
    /// The figures of a drive.
    pub fn of(drive: &Drive) -> Used {
        let device::drive::Usage { bytes, used_bytes, promised_bytes, extent_bytes, unit, .. } = drive.usage();
        Used { bytes, used_bytes, promised_bytes, extent_bytes, unit }
    }

    /// A sentence.
    pub fn describe(&self) -> String {
        let (all, taken, promised) = (Size(self.bytes), Size(self.used_bytes), Size(self.promised_bytes));
        format!("{taken} of {all} used, {promised} promised, in extents of {}", Size(self.extent_bytes.into()))
    }
}

async fn usage(args: &DriveArgs) -> Result<(), Failure> {
    let used = Used::of(&open(&args.path, true).await?);
    output::report(args.common.json, &used, Used::describe)
}

/// The drives that this process serves: several namespaces of one drive share it.
static SERVED: Mutex<BTreeMap<PathBuf, Drive>> = Mutex::new(BTreeMap::new());

/// What is told of them, for Prometheus.
#[derive(Debug)]
pub struct DriveMetrics;

impl Collector for DriveMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let served = SERVED.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let usages = served.iter().map(|(path, drive)| (path.display().to_string(), drive.usage()));
        device::drive::tell(&mut encoder, &usages.collect::<Vec<_>>())
    }
}

/// The drive at `path`, which this process keeps open from now on.
pub async fn hold(path: &Path) -> Result<Drive, Failure> {
    let key = std::fs::canonicalize(path).map_err(|error| Failure::from(error).during(path.display()))?;
    let served = |key: &Path| SERVED.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
    if let Some(drive) = served(&key) {
        return Ok(drive);
    }
    let drive = open(path, false).await?;
    SERVED.lock().unwrap_or_else(PoisonError::into_inner).insert(key, drive.clone());
    Ok(drive)
}

/// The namespace called `name` of the drive at `path`, which is held.
pub async fn serve(path: &Path, name: &str) -> Result<DriveNamespace, Failure> {
    let drive = hold(path).await?;
    let number = drive.find(name).map_err(failure)?;
    drive.namespace(number).map_err(failure)
}
