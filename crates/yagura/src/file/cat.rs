//! `yagura file cat`.

use std::ops::Range;
use std::rc::Rc;

use ::file::{Files, OpenFile};

use super::fault::{failure, path_failure};
use super::place::Inside;
use super::session::Session;
use super::streams::Out;
use crate::cli::FileCatArgs;
use crate::exit::Failure;

/// Bytes that are fetched at once. Chosen: some stripes of the usual width.
const PIECE_BYTES: u64 = 4 << 20;
/// Pieces that are fetched before it is their turn.
const AHEAD: usize = 4;

/// Writes files to standard output.
pub async fn cat(session: &Session, args: &FileCatArgs) -> Result<(), Failure> {
    let paths = Inside::parse_all(&args.paths)?;
    let range = args.range.map_or(0..u64::MAX, |range| range.from..range.to);
    let mut out = Out::new()?;
    let mut is_over = false;
    let done = session.each(&paths, async |path| {
        if !is_over {
            is_over = !write(session, path, range.clone(), &mut out).await?;
        }
        Ok(())
    });
    let done = done.await;
    out.finish().await.and(done)
}

/// Writes one file. False: the reader has gone.
pub async fn write(session: &Session, path: &Inside, range: Range<u64>, out: &mut Out) -> Result<bool, Failure> {
    let files = session.files(path).await?;
    let failed = |error| path_failure(path, error);
    let told = files.resolve(&path.path, true).await.map_err(failed)?;
    let file = files.open_file(told.ino).await.map_err(failed)?;
    let written = stream(&files, &file, range, out).await;
    files.close_file(&file).await.map_err(failed)?;
    written.map_err(|failure| failure.during(path))
}

async fn stream(files: &Rc<Files>, file: &Rc<OpenFile>, range: Range<u64>, out: &mut Out) -> Result<bool, Failure> {
    let size = files.getattr(file.ino()).await.map_err(failure)?.size;
    let end = range.end.min(size);
    let mut starts = (range.start.min(end)..end).step_by(PIECE_BYTES as usize);
    // Each is fetched by a task of its own, and written in its turn.
    let fetch = |at: u64| {
        let (file, length) = (Rc::clone(file), PIECE_BYTES.min(end - at) as usize);
        engine::task::spawn(async move { file.read(at, length).await })
    };
    let mut ahead: std::collections::VecDeque<_> = starts.by_ref().take(AHEAD).map(fetch).collect();
    while let Some(task) = ahead.pop_front() {
        let rope = task.await.map_err(failure)?;
        ahead.extend(starts.next().map(fetch));
        for part in rope.parts() {
            if !out.write(part.clone()).await? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}
