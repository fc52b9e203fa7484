//! `yagura drive …`: a medium carved into namespaces, worked on while nobody serves it; and the drives that a target serves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use device::drive::NamespaceUsage;
use device::{Drive, DriveError, DriveNamespace, DriveOptions, Error, FormatOptions, NamespaceSpec};
use serde::Serialize;

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
        | DriveError::Io { .. }
        | DriveError::NotADrive { .. }
        | DriveError::IsADrive { .. }
        | DriveError::Damaged { .. }
        | DriveError::ReadOnly(_)
        | DriveError::Device(_) => Failure::refused(error),
        other => Failure::usage(other),
    }
}

async fn open(path: &Path, read_only: bool) -> Result<Drive, Failure> {
    let options = DriveOptions { read_only, ..DriveOptions::default() };
    Drive::open(path, &options).await.map_err(failure)
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

#[derive(Serialize)]
struct Listed {
    number: u32,
    name: String,
    nguid: String,
    block_size: u32,
    bytes: u64,
    allocated_bytes: u64,
    own_bytes: u64,
    snapshot: bool,
    source: Option<u32>,
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
        }
    }
}

async fn list(args: &DriveArgs) -> Result<(), Failure> {
    let listed: Vec<Listed> = open(&args.path, true).await?.namespaces().into_iter().map(Listed::from).collect();
    output::report(args.common.json, &listed, |all| {
        let line = |one: &Listed| {
            let kind = if one.snapshot { "snapshot" } else { "namespace" };
            let (size, allocated, own) = (Size(one.bytes), Size(one.allocated_bytes), Size(one.own_bytes));
            format!("{} {kind} {}: {size}, {allocated} allocated, {own} of it its own\n", one.number, one.name)
        };
        all.iter().map(line).collect()
    })
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

#[derive(Serialize)]
struct Scrubbed {
    bytes: u64,
    damaged: u64,
    uncorrectable: u64,
    /// The first of them: namespace, block and what is wrong.
    damage: Vec<(String, u64, String)>,
}

async fn scrub(args: &DriveArgs) -> Result<(), Failure> {
    let drive = open(&args.path, true).await?;
    let bar = output::progress_share("scrub", args.common.json);
    let show = |done: u64, total: u64| output::show_share(&bar, done as f64 / total.max(1) as f64);
    let found = drive.scrub(show).await.map_err(Failure::refused)?;
    bar.finish_and_clear();
    let damage = found.damage.into_iter().map(|one| (one.namespace, one.lba.0, one.what)).collect();
    let (bytes, damaged, uncorrectable) = (found.bytes, found.damaged, found.uncorrectable);
    let report = Scrubbed { bytes, damaged, uncorrectable, damage };
    output::report(args.common.json, &report, |report| {
        let mut text: String =
            report.damage.iter().map(|(name, lba, what)| format!("{name}: block {lba} {what}\n")).collect();
        text += &format!("{} verified, {damaged} blocks damaged, {uncorrectable} marked uncorrectable", Size(bytes));
        text
    })?;
    match damaged {
        0 => Ok(()),
        _ => {
            Err(Failure::check(format!("{damaged} blocks are damaged; restore them from a copy by writing them anew")))
        }
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
    let show = |done: u64, total: u64| output::show_share(&bar, done as f64 / total.max(1) as f64);
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
        text += &format!("{} namespaces, {used} extents in use, {free} free, ", report.namespaces);
        text += &format!("{} checksum pages; {} faults", report.pages, report.faults.len());
        text
    })?;
    match report.faults.len() {
        0 => Ok(()),
        faults => Err(Failure::check(format!("the drive has {faults} faults"))),
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

#[derive(Serialize)]
struct Used {
    bytes: u64,
    used_bytes: u64,
    promised_bytes: u64,
    extent_bytes: u32,
    unit: u32,
}

async fn usage(args: &DriveArgs) -> Result<(), Failure> {
    let usage = open(&args.path, true).await?.usage();
    let device::drive::Usage { bytes, used_bytes, promised_bytes, extent_bytes, unit, .. } = usage;
    output::report(args.common.json, &Used { bytes, used_bytes, promised_bytes, extent_bytes, unit }, |used| {
        let (all, taken, promised) = (Size(used.bytes), Size(used.used_bytes), Size(used.promised_bytes));
        format!("{taken} of {all} used, {promised} promised, in extents of {}", Size(extent_bytes.into()))
    })
}

/// The drives that this process serves: several namespaces of one drive share it.
static SERVED: Mutex<BTreeMap<PathBuf, Drive>> = Mutex::new(BTreeMap::new());

/// The namespace called `name` of the drive at `path`, which this process keeps open from now on.
pub async fn serve(path: &Path, name: &str) -> Result<DriveNamespace, Failure> {
    let key = std::fs::canonicalize(path).map_err(|error| Failure::from(error).during(path.display()))?;
    let served = |key: &Path| SERVED.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
    let drive = match served(&key) {
        Some(drive) => drive,
        None => {
            let drive = open(path, false).await?;
            SERVED.lock().unwrap_or_else(PoisonError::into_inner).insert(key, drive.clone());
            drive
        }
    };
    let number = drive.find(name).map_err(failure)?;
    drive.namespace(number).map_err(failure)
}
