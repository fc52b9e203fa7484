//! Where a catalogue is kept; `yagura control dump`, `restore` and `move`.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use ::control::catalogue::{
    Catalogue, DUMP_LINE_BYTES_MAX, Dump, Embedded, EmbeddedOptions, Error, Etcd, EtcdOptions, Restore, Restored,
    TlsFiles, TransferError, move_marked,
};
use ::control::provision::restored;
use serde::Serialize;

use crate::cli::{CatalogueAt, CatalogueInEtcd, ControlDumpArgs, ControlMoveArgs, ControlRestoreArgs};
use crate::exit::Failure;
use crate::{output, runtime};

/// Opens a catalogue and names it. `who` is told to another process that would open the same file.
pub async fn open(at: &CatalogueAt, who: String) -> Result<(Arc<dyn Catalogue>, String), Failure> {
    match &at.catalogue {
        Some(path) => Ok((Arc::new(open_file(path, who).await?), path.display().to_string())),
        None => Ok((Arc::new(open_etcd(&at.etcd).await?), at.etcd.etcd.join(", "))),
    }
}

async fn open_file(path: &Path, owner: String) -> Result<Embedded, Failure> {
    Embedded::open(path, EmbeddedOptions { owner, ..Default::default() }).await.map_err(Failure::refused)
}

async fn open_etcd(at: &CatalogueInEtcd) -> Result<Etcd, Failure> {
    let mut options = EtcdOptions::new(at.etcd.iter().cloned());
    let certificate = at.etcd_cert.clone().zip(at.etcd_key.clone());
    options.tls = TlsFiles { authority: at.etcd_ca.clone(), certificate };
    Etcd::open(options).await.map_err(Failure::unavailable)
}

/// What is read must be there: a mistyped name would be an empty catalogue.
fn is_there(path: &Path) -> Result<(), Failure> {
    let there = std::fs::metadata(path).map(drop);
    there.map_err(|error| Failure::from(error).during(format!("--catalogue {}", path.display())))
}

/// What a dump, a restore or a move says at its end.
#[derive(Serialize, Debug)]
struct Said {
    entries: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<u64>,
    leased: u64,
    from: String,
    to: String,
}

impl Said {
    fn people(&self) -> String {
        let Said { entries, found, leased, from, to } = self;
        let found = found.filter(|&found| found > 0).map(|found| format!(", {found} of them were there already"));
        let leased = match leased {
            0 => String::new(),
            leased => format!("; {leased} that are bound to leases stay where they are"),
        };
        format!("{entries} entries of {from} to {to}{}{leased}\n", found.unwrap_or_default())
    }
}

/// Writes a catalogue to a file or to standard output.
pub fn dump(args: &ControlDumpArgs) -> Result<(), Failure> {
    if let Some(path) = &args.at.catalogue {
        is_there(path)?;
    }
    let to = args.to.display().to_string();
    if to == "-" {
        let said = runtime::few_threads()?.block_on(dump_to(args, io::stdout().lock(), "standard output"))?;
        eprint!("{}", said.people());
        return Ok(());
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&args.to);
    let file = file.map_err(|error| Failure::from(error).during(&to))?;
    let dumped = runtime::few_threads()?.block_on(dump_to(args, &file, &to));
    let dumped =
        dumped.and_then(|said| file.sync_all().map(|()| said).map_err(|error| Failure::from(error).during(&to)));
    match dumped {
        Ok(said) => output::report(args.common.json, &said, Said::people),
        Err(failure) => {
            // Half a dump has no use, and its name would stand in the way of the next.
            match std::fs::remove_file(&args.to) {
                Ok(()) => Err(failure),
                Err(error) => Err(failure.during(format!("{to} stays, half written ({error})"))),
            }
        }
    }
}

async fn dump_to(args: &ControlDumpArgs, mut to: impl Write, name: &str) -> Result<Said, Failure> {
    let (catalogue, from) = open(&args.at, "yagura control dump".into()).await?;
    let mut dump = Dump::of(&*catalogue);
    while let Some(lines) = dump.next().await.map_err(failed)? {
        to.write_all(lines.as_bytes()).map_err(|error| Failure::from(error).during(name))?;
    }
    to.flush().map_err(|error| Failure::from(error).during(name))?;
    Ok(Said { entries: dump.entries(), found: None, leased: dump.leased(), from, to: name.to_owned() })
}

/// Reads a dump into a catalogue.
pub fn restore(args: &ControlRestoreArgs) -> Result<(), Failure> {
    let from = args.from.display().to_string();
    let dump: Box<dyn BufRead> = if from == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(&args.from).map_err(|error| Failure::from(error).during(&from))?))
    };
    let (restored, to) = runtime::few_threads()?.block_on(async {
        let (catalogue, to) = open(&args.at, "yagura control restore".into()).await?;
        let mut restore = Restore::into(&*catalogue, args.force).changing(restored);
        for line in lines(dump) {
            let line = line.map_err(|error| Failure::from(error).during(&from))?;
            restore.line(&line).await.map_err(failed)?;
        }
        Ok::<_, Failure>((restore.finish().map_err(failed)?, to))
    })?;
    say(args.common.json, restored, from, to)
}

/// The lines of a dump, each held to its bound: what has no line feed is no dump.
fn lines(mut dump: impl BufRead) -> impl Iterator<Item = io::Result<String>> {
    std::iter::from_fn(move || {
        let mut line = String::new();
        // One byte more shows that the line is too long, which is then said with its number.
        match dump.by_ref().take(DUMP_LINE_BYTES_MAX as u64 + 2).read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(Ok(line.strip_suffix('\n').map(str::to_owned).unwrap_or(line))),
            Err(error) => Some(Err(error)),
        }
    })
}

/// Copies a catalogue that is a file into etcd.
pub fn move_to_etcd(args: &ControlMoveArgs) -> Result<(), Failure> {
    is_there(&args.catalogue)?;
    let to = args.etcd.etcd.join(", ");
    let moved = runtime::few_threads()?.block_on(async {
        let source = open_file(&args.catalogue, "yagura control move".into()).await?;
        let target = open_etcd(&args.etcd).await?;
        move_marked(&source, (&target, &to), args.force).await.map_err(failed)
    })?;
    say(args.common.json, moved, args.catalogue.display().to_string(), to)
}

fn say(json: bool, restored: Restored, from: String, to: String) -> Result<(), Failure> {
    let Restored { entries, found, leased } = restored;
    output::report(json, &Said { entries, found: Some(found), leased, from, to }, Said::people)
}

/// What is wrong is in the dump or in what is there, unless the catalogue did not answer or has no room.
fn failed(error: TransferError) -> Failure {
    match &error {
        TransferError::Catalogue(Error::NoAnswer { .. }) => Failure::unavailable(error),
        TransferError::Catalogue(Error::Full { .. }) => Failure::out_of_space(error),
        _ => Failure::refused(error),
    }
}
