//! `yagura file ls`.

use ::file::record::Kind;
use ::file::{Attributes, DirEntry, Files};

use super::fault::path_failure;
use super::place::Inside;
use super::session::Session;
use super::streams::Out;
use super::told::{Told, mode_text, name_for_output, time_text};
use crate::cli::FileLsArgs;
use crate::exit::Failure;
use crate::size::Size;

/// Where a listing goes.
struct Listing<'a> {
    args: &'a FileLsArgs,
    out: Out,
    /// Whether anything was written: what comes then is apart from that.
    has_begun: bool,
    /// The reader has gone.
    is_over: bool,
}

/// Lists names.
pub async fn ls(session: &Session, args: &FileLsArgs) -> Result<(), Failure> {
    let paths = Inside::parse_all(&args.paths)?;
    let mut listing = Listing { args, out: Out::new()?, has_begun: false, is_over: false };
    let with_heads = args.recursive || paths.len() > 1;
    let listed = session.each(&paths, async |path| listing.list(session, path, with_heads).await).await;
    listing.out.finish().await.and(listed)
}

impl Listing<'_> {
    async fn list(&mut self, session: &Session, path: &Inside, with_heads: bool) -> Result<(), Failure> {
        let files = session.files(path).await?;
        let failed = |error| path_failure(path, error);
        // As others do: with the details, a link is what is asked about.
        let told = files.resolve(&path.path, !self.args.long).await.map_err(failed)?;
        if told.kind != Kind::Directory {
            return self.line(&files, path, &shown_path(path), &told).await;
        }
        // Directories that are still to be listed, the next one last.
        let mut waiting = vec![(path.clone(), told.ino)];
        while let Some((path, dir)) = waiting.pop()
            && !self.is_over
        {
            let failed = |error| path_failure(&path, error);
            let entries = match files.list(dir).await {
                Ok(entries) => entries,
                Err(error) if with_heads => {
                    session.fail(&failed(error));
                    continue;
                }
                Err(error) => return Err(failed(error)),
            };
            if with_heads && !self.args.common.json {
                let apart = if self.has_begun { "\n" } else { "" };
                let head = [apart.as_bytes(), &name_for_output(&shown_path(&path)), b":\n"].concat();
                self.write(&head).await?;
            }
            self.entries(session, &files, &path, &entries).await?;
            if self.args.recursive {
                let below = entries.iter().rev().filter(|entry| entry.kind == Kind::Directory);
                waiting.extend(below.map(|entry| (path.below(&entry.name), entry.ino)));
            }
        }
        Ok(())
    }

    async fn entries(
        &mut self,
        session: &Session,
        files: &Files,
        path: &Inside,
        entries: &[DirEntry],
    ) -> Result<(), Failure> {
        if !self.args.long && !self.args.common.json {
            let mut text = Vec::new();
            for entry in entries {
                text.extend(name_for_output(&entry.name));
                text.push(b'\n');
            }
            return self.write(&text).await;
        }
        for some in entries.chunks(256) {
            let inodes: Vec<u64> = some.iter().map(|entry| entry.ino).collect();
            for (entry, told) in some.iter().zip(files.getattr_all(&inodes).await) {
                let at = path.below(&entry.name);
                match told {
                    Ok(told) => self.line(files, &at, &entry.name, &told).await?,
                    // Removed since its name was read.
                    Err(::file::Error::Stale | ::file::Error::NotFound(_)) => {}
                    Err(error) => session.fail(&path_failure(&at, error)),
                }
            }
        }
        Ok(())
    }

    /// One name, as it is to be shown.
    async fn line(&mut self, files: &Files, at: &Inside, name: &[u8], told: &Attributes) -> Result<(), Failure> {
        let target = match told.kind {
            Kind::Symlink if self.args.long || self.args.common.json => files.names().readlink(told.ino).await.ok(),
            _ => None,
        };
        let mut text = Vec::new();
        if self.args.common.json {
            let told = Told::of(&shown_path(at), told, target.as_deref());
            text = serde_json::to_vec(&told).map_err(Failure::usage)?;
        } else {
            if self.args.long {
                let Attributes { kind, mode, uid, gid, size, modified, .. } = *told;
                let (mode, size, time) = (mode_text(kind, mode), Size(size).to_string(), time_text(modified));
                text.extend(format!("{mode} {uid:>5} {gid:>5} {size:>10} {time} ").into_bytes());
            }
            text.extend(name_for_output(name));
            if let Some(target) = target {
                text.extend(b" -> ");
                text.extend(name_for_output(&target));
            }
        }
        text.push(b'\n');
        self.write(&text).await
    }

    async fn write(&mut self, text: &[u8]) -> Result<(), Failure> {
        self.has_begun = true;
        if !self.is_over {
            self.is_over = !self.out.text(text).await?;
        }
        Ok(())
    }
}

/// A path as it was given.
fn shown_path(path: &Inside) -> Vec<u8> {
    [path.name.as_bytes(), b":", &path.path].concat()
}
