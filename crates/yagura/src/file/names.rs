//! `yagura file rm`, `mkdir` and `mv`.

use ::file::record::Kind;
use ::file::{Error, RenameFlags};

use super::caller::{own, umask};
use super::fault::path_failure;
use super::place::Inside;
use super::session::Session;
use crate::cli::{FileMkdirArgs, FileMvArgs, FileRmArgs};
use crate::exit::Failure;

/// Removes names.
pub async fn rm(session: &Session, args: &FileRmArgs) -> Result<(), Failure> {
    let paths = Inside::parse_all(&args.paths)?;
    session
        .each(&paths, async |path| {
            let files = session.files(path).await?;
            let failed = |error| path_failure(path, error);
            let (dir, name) = files.resolve_parent(&path.path).await.map_err(failed)?;
            let told = files.lookup(dir, name).await.map_err(failed)?;
            if told.kind != Kind::Directory {
                return files.names().unlink(dir, name).await.map_err(failed);
            }
            if !args.recursive {
                let sentence = "is a directory: --recursive removes it with all that is in it";
                return Err(Failure::usage(sentence).during(path));
            }
            files.remove_below(told, |below, error| session.fail(&path_failure(path.below(below), error))).await;
            files.names().rmdir(dir, name).await.map_err(failed)
        })
        .await
}

/// Makes directories.
pub async fn mkdir(session: &Session, args: &FileMkdirArgs) -> Result<(), Failure> {
    let paths = Inside::parse_all(&args.paths)?;
    let ((uid, gid), mode) = (own(), 0o777 & !umask());
    session
        .each(&paths, async |path| {
            let files = session.files(path).await?;
            let failed = |error| path_failure(path, error);
            if args.parents {
                return files.make_dirs(&path.path, mode, uid, gid).await.map(drop).map_err(failed);
            }
            let (dir, name) = files.resolve_parent(&path.path).await.map_err(failed)?;
            files.names().mkdir(dir, name, mode, uid, gid).await.map(drop).map_err(failed)
        })
        .await
}

/// Gives names other names.
pub async fn mv(session: &Session, args: &FileMvArgs) -> Result<(), Failure> {
    let (sources, target) = (Inside::parse_all(&args.sources)?, Inside::parse(&args.target)?);
    if let Some(other) = sources.iter().find(|source| source.name != target.name) {
        return Err(Failure::usage(format!(
            "{other} is in another file system than {target}: copy it by `yagura file cp --recursive`, then remove it"
        )));
    }
    let files = session.files(&target).await?;
    let failed = |error| path_failure(&target, error);
    let into = match files.resolve(&target.path, true).await {
        Ok(told) => Some(told.ino).filter(|_| told.kind == Kind::Directory),
        Err(Error::NotFound(_)) => None,
        Err(error) => return Err(failed(error)),
    };
    if into.is_none() && sources.len() > 1 {
        return Err(Failure::usage(format!("{target}: there is no such directory")));
    }
    let flags = RenameFlags { no_replace: args.no_replace, exchange: false };
    session
        .each(&sources, async |source| {
            let told = async {
                let (dir, name) = files.resolve_parent(&source.path).await?;
                let (new_dir, new_name) = match into {
                    Some(into) => (into, name),
                    None => files.resolve_parent(&target.path).await?,
                };
                files.names().rename((dir, name), (new_dir, new_name), flags).await
            };
            told.await.map_err(|error| path_failure(source, error))
        })
        .await
}
