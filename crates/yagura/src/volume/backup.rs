//! `yagura volume diff`, `export` and `import`: snapshots as streams (`docs/volume-stream.md`).

use std::fs::File;
use std::io::IsTerminal;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use ::volume::{BackupError, Exported, Header, Imported, Options, Origin, SnapshotView, Volume};
use device::Error::{OutOfSpace, Reserved};
use engine::job::Job;
use engine::task::LocalFuture;
use serde::Serialize;

use super::snapshots::Snapshots;
use super::words::{failure, name};
use super::{named, reach};
use crate::aside::aside;
use crate::cli::{SnapshotsOf, VolumeDiffArgs, VolumeExportArgs, VolumeImportArgs};
use crate::exit::Failure;
use crate::nvme::files;
use crate::race::{First, first_of};
use crate::size::Size;
use crate::{output, stop};

/// Bytes that are read from a stream at once. Chosen: an extent with its head, and a little more.
const READ_BYTES: usize = 1 << 20;

/// A file or pipe, and why that failed: an exit status of its own.
struct Piped<F> {
    file: F,
    failed: Option<Failure>,
}

impl<F> Piped<F> {
    fn new(file: F) -> Piped<F> {
        Piped { file, failed: None }
    }

    /// The failure of the pipe, where that is why.
    fn failure(&mut self, error: BackupError) -> Failure {
        self.failed.take().unwrap_or_else(|| backup_failure(error))
    }

    fn told<T>(&mut self, said: Result<T, Failure>) -> Result<T, std::io::Error> {
        said.map_err(|failure| {
            let error = std::io::Error::other(failure.sentence().to_owned());
            self.failed = Some(failure.during("the stream"));
            error
        })
    }
}

impl ::volume::Sink for Piped<files::Sink> {
    fn write(&mut self, bytes: Vec<u8>) -> LocalFuture<'_, Result<(), std::io::Error>> {
        Box::pin(async move {
            let said = self.file.write(bytes).await;
            self.told(said)
        })
    }
}

impl ::volume::Source for Piped<files::Source> {
    fn read(&mut self) -> LocalFuture<'_, Result<Vec<u8>, std::io::Error>> {
        Box::pin(async move {
            let said = self.file.read(READ_BYTES).await;
            self.told(said)
        })
    }
}

/// Why an export or import came to nothing, as an exit status.
fn backup_failure(error: BackupError) -> Failure {
    match error {
        BackupError::Volume(error) => failure(error),
        BackupError::Device { source: OutOfSpace, .. } => Failure::out_of_space(error),
        BackupError::Device { source: Reserved(_), .. } => Failure::lost(error),
        BackupError::Device { .. } => Failure::unavailable(error),
        BackupError::NotOlder { .. } | BackupError::TooSmall { .. } | BackupError::BlockSize { .. } => {
            Failure::usage(error)
        }
        _ => Failure::refused(error.to_string().replace("by `force`", "by --force")),
    }
}

/// The snapshot, and the older one that it is compared with.
async fn opened(args: &SnapshotsOf, to: &str) -> Result<(SnapshotView, Option<SnapshotView>), Failure> {
    let snapshots = Snapshots::of(args).await?;
    let from = match &args.from {
        Some(from) => Some(snapshots.open(from).await?),
        None => None,
    };
    Ok((snapshots.open(to).await?, from))
}

/// The rate that was asked for, within what the control plane lets the volume be used: that holds for this host, too. 0 is none.
fn rate_within(asked: Option<u64>, limit: Option<u64>) -> Option<u64> {
    [asked, limit].into_iter().flatten().filter(|&rate| rate > 0).min()
}

/// A job of this rate that shows on a bar how far it has come.
fn job(what: &'static str, bytes_per_second: Option<u64>, quiet: bool) -> (Rc<output::ShareBar>, Rc<Job>) {
    let (bar, job) = output::walk_job(bytes_per_second, quiet);
    job.begin(what);
    (bar, job)
}

#[derive(Serialize, Debug)]
struct Different {
    from: Option<String>,
    to: String,
    volume: String,
    /// Whether both were read and compared, since no target that has both could tell where they differ.
    is_compared: bool,
    extents: Vec<Extent>,
    /// Bytes of all extents.
    bytes: u64,
}

#[derive(Serialize, Debug)]
struct Extent {
    offset: u64,
    bytes: u64,
}

/// `yagura volume diff`
pub async fn diff(args: &VolumeDiffArgs) -> Result<(), Failure> {
    let (to, from) = opened(&args.of, &args.to).await?;
    let (bar, job) = job("diff", None, args.common.json);
    let found = ::volume::differences(&to, from.as_ref(), &job).await;
    bar.finish_and_clear();
    let found = found.map_err(backup_failure)?;
    let different = Different {
        from: from.as_ref().map(|from| from.id().name.to_string()),
        to: to.id().name.to_string(),
        volume: name(to.id().volume),
        is_compared: found.is_compared,
        bytes: found.bytes(),
        extents: found
            .ranges
            .into_iter()
            .map(|Range { start, end }| Extent { offset: start, bytes: end - start })
            .collect(),
    };
    output::report(args.common.json, &different, |different| {
        let Different { extents, bytes, is_compared, .. } = different;
        let mut text: String = extents.iter().map(|extent| format!("{} {}\n", extent.offset, extent.bytes)).collect();
        text += &format!("{}, {} in all", output::many(extents.len() as u64, "extent"), Size(*bytes));
        if *is_compared {
            text += "; found by comparing, since no target that has both snapshots could tell";
        }
        text
    })
}

#[derive(Serialize, Debug)]
struct Transferred {
    volume: String,
    snapshot: String,
    from: Option<String>,
    /// Size of the volume.
    size: u64,
    extents: u64,
    /// Bytes of the data.
    bytes: u64,
    zero_bytes: u64,
    /// Of an export: whether both snapshots were read and compared.
    is_compared: bool,
    /// Of an import: the volume had it already, and nothing was read.
    is_known: bool,
    /// Of an import: the volume's own snapshot of it.
    own: Option<String>,
}

impl Transferred {
    fn of(header: &Header, counts: ::volume::Counts) -> Transferred {
        Transferred {
            volume: name(header.to.volume),
            snapshot: header.to.name.to_string(),
            from: header.from.map(|(name, _)| name.to_string()),
            size: header.bytes,
            extents: counts.extents,
            bytes: counts.bytes,
            zero_bytes: counts.zero_bytes,
            is_compared: false,
            is_known: false,
            own: None,
        }
    }

    fn describe(&self) -> String {
        let Transferred { volume, snapshot, from, bytes, zero_bytes, .. } = self;
        let from = from.as_ref().map_or_else(String::new, |from| format!(" from snapshot {from} on"));
        if self.is_known {
            return format!("the volume has snapshot {snapshot} of volume {volume} already");
        }
        let mut text = format!("snapshot {snapshot} of volume {volume}{from}: {} of data", Size(*bytes));
        if *zero_bytes > 0 {
            text += &format!(", {} of zeroes", Size(*zero_bytes));
        }
        if self.is_compared {
            text += "; found by comparing, since no target that has both snapshots could tell where they differ";
        }
        text
    }
}

fn is_pipe(file: &Path) -> bool {
    file == Path::new("-")
}

fn about(path: &Path, error: std::io::Error) -> Failure {
    Failure::from(error).during(path.display())
}

/// The file is on the disk, under its name.
fn stable(path: &Path) -> Result<(), std::io::Error> {
    File::open(path)?.sync_all()?;
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// `None`: a signal came first. What was begun is to be ended in good order then.
async fn or_stopped<T>(work: impl Future<Output = T>) -> Result<Option<T>, Failure> {
    let letter = stop::letters(1, false)?.pop().ok_or_else(|| Failure::usage("invariant: one letter was asked for"))?;
    Ok(match first_of(work, letter.recv()).await {
        First::A(done) => Some(done),
        First::B(_) => None,
    })
}

fn stopped() -> Failure {
    Failure::refused("stopped by a signal")
}

/// `yagura volume export`
pub async fn export(args: &VolumeExportArgs) -> Result<(), Failure> {
    if is_pipe(&args.file) && std::io::stdout().is_terminal() {
        return Err(Failure::usage("standard output is a terminal: name a file, or a command behind a |"));
    }
    let (to, from) = opened(&args.of, &args.snapshot).await?;
    let path = args.file.clone();
    let sink = match is_pipe(&path) {
        true => files::Sink::open(|| Ok(std::io::stdout())).await?,
        false => files::Sink::open(move || File::create_new(&path).map_err(|error| about(&path, error))).await?,
    };
    let mut sink = Piped::new(sink);
    let (bar, job) = job("export", args.rate.map(|rate| rate.0), args.quiet);
    let exported = or_stopped(::volume::export(&to, from.as_ref(), &job, &mut sink)).await?;
    bar.finish_and_clear();
    let path = args.file.clone();
    let Exported { header, counts, is_compared } = match exported {
        Some(Ok(exported)) => exported,
        not => {
            // What was written is no whole stream, and would be in the way of the next one.
            if !is_pipe(&path)
                && let Err(error) = std::fs::remove_file(&path)
            {
                tracing::warn!("{}: {error}", path.display());
            }
            return Err(not.and_then(Result::err).map_or_else(stopped, |error| sink.failure(error)));
        }
    };
    let transferred = Transferred { is_compared, ..Transferred::of(&header, counts) };
    if is_pipe(&path) {
        // Standard output holds the bytes.
        eprintln!("{}", transferred.describe());
        return Ok(());
    }
    aside(move || stable(&path).map_err(|error| about(&path, error))).await??;
    output::report(args.common.json, &transferred, Transferred::describe)
}

/// `yagura volume import`
pub async fn import(args: &VolumeImportArgs) -> Result<(), Failure> {
    if is_pipe(&args.file) && std::io::stdin().is_terminal() {
        return Err(Failure::usage("standard input is a terminal: name a file, or a command in front of a |"));
    }
    let path = args.file.clone();
    let source = match is_pipe(&path) {
        true => files::Source::open(|| Ok(std::io::stdin())).await?,
        false => files::Source::open(move || File::open(&path).map_err(|error| about(&path, error))).await?,
    };
    // The same host is another process perhaps: an import is no restart.
    if args.of.name.is_some()
        && !args.take
        && let Some(host) = named::known(&args.of)?.host
    {
        return Err(Failure::refused(format!("host {host} has the volume; --take takes it from that host")));
    }
    let (found, attachment) = named::attach(&args.of, args.take)?;
    let reaches = reach::named(&found.holders, &found.uids)?;
    if attachment.is_none() && !args.take {
        reach::check_untaken(&reaches).await?;
    }
    let options = Options { volume: attachment.as_ref().map(|attachment| attachment.volume), ..Options::default() };
    let volume = match ::volume::attach(reaches, options).await {
        Ok(volume) => volume,
        Err(error) => {
            named::failed(&args.of, attachment.as_ref());
            return Err(failure(error));
        }
    };
    let limit = attachment.as_ref().and_then(|attachment| attachment.limits.bandwidth);
    let imported = imported(args, &volume, Piped::new(source), limit).await.map_err(|failure| match volume.origin() {
        Some(origin @ Origin::InPart { .. }) => {
            failure.during(format!("the volume is {origin} now, and no more than that"))
        }
        _ => failure,
    });
    let detached = volume.detach().await.map_err(failure);
    let let_go = match volume.is_superseded() {
        true => Ok(()),
        false => named::detached(&args.of, attachment.as_ref()),
    };
    let Imported { header, counts, own } = imported?;
    detached.and(let_go)?;
    let own = own.map(|name| name.to_string());
    let is_known = counts.is_none();
    let transferred = Transferred { own, is_known, ..Transferred::of(&header, counts.unwrap_or_default()) };
    output::report(args.common.json, &transferred, Transferred::describe)
}

async fn imported(
    args: &VolumeImportArgs,
    volume: &Volume,
    mut source: Piped<files::Source>,
    limit: Option<u64>,
) -> Result<Imported, Failure> {
    let (bar, job) = job("import", rate_within(args.rate.map(|rate| rate.0), limit), args.quiet);
    let imported = or_stopped(::volume::import(volume, &mut source, args.force, &job)).await?;
    bar.finish_and_clear();
    imported.ok_or_else(stopped)?.map_err(|error| source.failure(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rate_that_is_asked_for_lifts_the_limit_of_the_control_plane() {
        for (asked, limit, expected) in [
            (None, None, None),
            (Some(0), None, None),
            (None, Some(5), Some(5)),
            (Some(0), Some(5), Some(5)),
            (Some(7), Some(5), Some(5)),
            (Some(3), Some(5), Some(3)),
        ] {
            assert_eq!(rate_within(asked, limit), expected, "{asked:?} within {limit:?}");
        }
    }
}
