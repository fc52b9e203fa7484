//! `yagura file quota`: what directories may hold.

use ::file::record::Kind;
use ::file::{Files, Limits, Quota};
use engine::Buf;
use serde::Serialize;

use super::fault::{failure, path_failure};
use super::place::{Inside, shown};
use super::session::Session;
use super::streams::Out;
use crate::cli::{FileQuotaArgs, FileQuotaSetArgs, FileQuotaVerb, Limit};
use crate::exit::Failure;
use crate::output;
use crate::size::Size;

/// A directory's quota, as programs are told it.
#[derive(Serialize)]
pub struct Told {
    /// The directory that has it.
    directory: String,
    inode: u64,
    /// Bytes of data that may be stored, and that are; with what clients have set aside.
    bytes_limit: Option<u64>,
    bytes: u64,
    files_limit: Option<u64>,
    files: u64,
    /// What of these clients have set aside, and perhaps not used.
    bytes_set_aside: u64,
    files_set_aside: u64,
}

impl Told {
    fn of(directory: String, quota: &Quota) -> Told {
        let count = |count: i64| count.max(0) as u64;
        Told {
            directory,
            inode: quota.dir,
            bytes_limit: quota.limits.bytes,
            bytes: count(quota.used.bytes),
            files_limit: quota.limits.files,
            files: count(quota.used.files),
            bytes_set_aside: count(quota.set_aside.bytes),
            files_set_aside: count(quota.set_aside.files),
        }
    }
}

/// Runs a verb.
pub async fn run(session: &Session, verb: &FileQuotaVerb) -> Result<(), Failure> {
    match verb {
        FileQuotaVerb::Set(args) => set(session, args).await,
        FileQuotaVerb::Show(args) => show(session, args).await,
        FileQuotaVerb::Clear(args) => clear(session, args).await,
    }
}

/// A directory, and its quota if it has one itself.
async fn directory(session: &Session, path: &Inside) -> Result<(std::rc::Rc<Files>, u64, Option<Quota>), Failure> {
    let files = session.files(path).await?;
    let failed = |error| path_failure(path, error);
    let told = files.resolve(&path.path, true).await.map_err(failed)?;
    if told.kind != Kind::Directory {
        return Err(Failure::usage("a quota is a directory's").during(path));
    }
    let quota = files.names().quota_of(told.ino).await.map_err(failed)?;
    Ok((files, told.ino, quota.filter(|quota| quota.dir == told.ino)))
}

async fn set(session: &Session, args: &FileQuotaSetArgs) -> Result<(), Failure> {
    let path = Inside::parse(&args.path)?;
    let (files, dir, quota) = directory(session, &path).await?;
    let before = quota.map(|quota| quota.limits).unwrap_or_default();
    let limits = Limits {
        bytes: args.bytes.map_or(before.bytes, |Limit(bytes)| bytes.map(|Size(bytes)| bytes)),
        files: args.files.map_or(before.files, |Limit(files)| files),
    };
    files.names().set_quota(dir, limits).await.map_err(|error| path_failure(&path, error))
}

async fn clear(session: &Session, args: &FileQuotaArgs) -> Result<(), Failure> {
    let paths = Inside::parse_all(&args.paths)?;
    session
        .each(&paths, async |path| {
            let (files, dir, quota) = directory(session, path).await?;
            if quota.is_none() {
                return Err(Failure::usage("it has no quota of its own").during(path));
            }
            files.names().set_quota(dir, Limits::default()).await.map_err(|error| path_failure(path, error))
        })
        .await
}

async fn show(session: &Session, args: &FileQuotaArgs) -> Result<(), Failure> {
    let paths = Inside::parse_all(&args.paths)?;
    let mut out = Out::new()?;
    let done = session.each(&paths, async |path| {
        let files = session.files(path).await?;
        let failed = |error| path_failure(path, error);
        let told = files.resolve(&path.path, true).await.map_err(failed)?;
        let Some(quota) = files.names().quota_of(told.ino).await.map_err(failed)? else {
            return Err(Failure::check("it counts for no quota").during(path));
        };
        let told = Told::of(named(&files, &path.name, quota.dir).await, &quota);
        let text = match args.common.json {
            true => serde_json::to_string(&told).map_err(Failure::usage)? + "\n",
            false => line(&told) + "\n",
        };
        out.write(Buf::copy_from(text.as_bytes()).freeze()).await.map(drop)
    });
    let done = done.await;
    out.finish().await.and(done)
}

/// How people call a directory.
async fn named(files: &Files, name: &str, dir: u64) -> String {
    match files.path_of(dir).await {
        Ok(path) => format!("{name}:{}", shown(&path)),
        Err(_) => format!("{name}: directory {dir}"),
    }
}

fn line(told: &Told) -> String {
    let bytes = match told.bytes_limit {
        Some(limit) => format!("{} of {}", Size(told.bytes), Size(limit)),
        None => format!("{}, no limit", Size(told.bytes)),
    };
    let files = match told.files_limit {
        Some(limit) => format!("{} of {}", told.files, output::many(limit, "file")),
        None => format!("{}, no limit", output::many(told.files, "file")),
    };
    let aside = match told.bytes_set_aside {
        0 => String::new(),
        bytes => format!(" (up to {} of it only set aside by clients)", Size(bytes)),
    };
    format!("{}: {bytes}{aside}; {files}", told.directory)
}

/// All quotas of a file system.
pub async fn all(files: &Files, name: &str) -> Result<Vec<Told>, Failure> {
    let mut all = Vec::new();
    for quota in files.names().quotas().await.map_err(failure)? {
        // Of a directory that is gone it is nobody's business any more.
        if let Ok(path) = files.path_of(quota.dir).await {
            all.push(Told::of(format!("{name}:{}", shown(&path)), &quota));
        }
    }
    Ok(all)
}

/// As lines for people.
pub fn lines(all: &[Told]) -> String {
    all.iter().map(|told| format!("quota {}\n", line(told))).collect()
}
