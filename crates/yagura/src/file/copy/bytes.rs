//! The bytes of one file: what is no hole is read and written piece by piece, several at once.

use std::collections::VecDeque;
use std::fs;
use std::ops::Range;
use std::rc::Rc;

use ::file::data::{Rope, SPAN_BYTES};
use ::file::{Files, Lying, OpenFile, Spot as Lies};
use engine::task::{LocalFuture, TaskSet};
use engine::{Buf, file};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::source::{Source, Trait};
use super::target::{Spot, Writing};
use super::work::Work;
use crate::exit::Failure;
use crate::file::fault::failure;
use crate::file::streams::In;

/// Bytes of a piece. Derived: one change of a map names all of it.
const PIECE_BYTES: u64 = SPAN_BYTES;
/// Pieces of one file that are under way at once. Chosen: some are read while others are written.
const PIECES_AT_ONCE: usize = 4;
/// Bytes that are read of a file of this machine by one command. Chosen: it fits the engine's buffers.
const READ_BYTES: usize = 1 << 20;

/// A file whose bytes are read.
pub enum Reading {
    Inside { files: Rc<Files>, file: Rc<OpenFile> },
    Local { plain: fs::File, file: file::File },
}

/// Where a file's bytes are no holes.
enum Data<'a> {
    Inside { lying: Box<Lying>, known: VecDeque<Range<u64>> },
    Local { plain: &'a fs::File, at: u64, size: u64 },
}

impl Data<'_> {
    /// Bytes that come next; none: that was all.
    async fn next(&mut self) -> Result<Option<Range<u64>>, Failure> {
        match self {
            Data::Inside { lying, known } => loop {
                if let Some(range) = known.pop_front() {
                    return Ok(Some(range));
                }
                let Some(parts) = lying.next().await.map_err(failure)? else { return Ok(None) };
                for part in parts.into_iter().filter(|part| part.spot != Lies::Hole) {
                    match known.back_mut() {
                        Some(last) if last.end == part.range.start => last.end = part.range.end,
                        _ => known.push_back(part.range),
                    }
                }
            },
            Data::Local { plain, at, size } => {
                if *at >= *size {
                    return Ok(None);
                }
                let start = match rustix::fs::seek(*plain, SeekFrom::Data(*at)) {
                    Ok(start) => start,
                    Err(Errno::NXIO) => *size,
                    // It does not know: all of it is taken for data.
                    Err(_) => *at,
                };
                let end = match rustix::fs::seek(*plain, SeekFrom::Hole(start)) {
                    Ok(end) if end > start => end.min(*size),
                    _ => *size,
                };
                *at = end;
                Ok(Some(start.min(end)..end).filter(|range| !range.is_empty()))
            }
        }
    }
}

impl Reading {
    /// Opens it.
    async fn open(source: &Source) -> Result<Reading, Failure> {
        match source {
            Source::Inside { files, told, .. } => {
                let file = files.open_file(told.ino).await.map_err(failure)?;
                Ok(Reading::Inside { files: Rc::clone(files), file })
            }
            Source::Local { path, .. } => {
                let plain = fs::File::open(path).map_err(Failure::check)?;
                let options = file::OpenOptions { create: None, direct: false, exclusive: false, read_only: true };
                Ok(Reading::Local { plain, file: file::File::open(path, &options).map_err(Failure::check)? })
            }
        }
    }

    async fn size(&self) -> Result<u64, Failure> {
        match self {
            Reading::Inside { files, file } => Ok(files.getattr(file.ino()).await.map_err(failure)?.size),
            Reading::Local { plain, .. } => Ok(plain.metadata().map_err(Failure::check)?.len()),
        }
    }

    async fn data(&self, size: u64) -> Result<Data<'_>, Failure> {
        match self {
            Reading::Inside { file, .. } => {
                let lying = Box::new(file.lying(0..size).await.map_err(failure)?);
                Ok(Data::Inside { lying, known: VecDeque::new() })
            }
            Reading::Local { plain, .. } => Ok(Data::Local { plain, at: 0, size }),
        }
    }

    /// All of these bytes.
    async fn read(&self, range: Range<u64>) -> Result<Rope, Failure> {
        let length = (range.end - range.start) as usize;
        match self {
            Reading::Inside { file, .. } => {
                let rope = file.read(range.start, length).await.map_err(failure)?;
                if rope.len() < length {
                    return Err(Failure::check("it became shorter while it was read"));
                }
                Ok(rope)
            }
            Reading::Local { file, .. } => read_local(file, range).await,
        }
    }

    async fn close(self) -> Result<(), Failure> {
        match self {
            Reading::Inside { files, file } => files.close_file(&file).await.map_err(failure),
            Reading::Local { .. } => Ok(()),
        }
    }
}

async fn read_local(file: &file::File, range: Range<u64>) -> Result<Rope, Failure> {
    let parts = range.clone().step_by(READ_BYTES).map(|at| {
        let length = (range.end - at).min(READ_BYTES as u64) as usize;
        file.read_at(at, Buf::with_len(length))
    });
    let mut rope = Rope::default();
    for (read, buf) in kv::resp::execute::together(parts).await {
        read.map_err(Failure::check)?;
        rope.push(buf.freeze());
    }
    Ok(rope)
}

/// Copies a file.
pub async fn copy(work: &Work<'_>, from: &Source, to: &Spot, told: &Trait) -> Result<(), Failure> {
    let reading = Reading::open(from).await?;
    let copied = match to.begin().await {
        Ok(writing) => fill(work, &reading, writing, to, told).await,
        Err(failure) => Err(failure),
    };
    reading.close().await.and(copied)
}

async fn fill(work: &Work<'_>, reading: &Reading, writing: Writing, to: &Spot, told: &Trait) -> Result<(), Failure> {
    let filled = async {
        let size = reading.size().await?;
        let bytes = transfer(work, reading, &writing, size).await?;
        writing.set_size(size).await?;
        if work.args.verify {
            verify(work, reading, &writing, size).await.map_err(|failure| failure.during(to))?;
        }
        Ok((bytes, size))
    };
    match filled.await {
        Ok((bytes, size)) => {
            writing.finish(told).await.map_err(|failure| failure.during(to))?;
            work.count(|copied| {
                copied.files += 1;
                copied.bytes += bytes;
                copied.holes += size.saturating_sub(bytes);
            });
            Ok(())
        }
        Err(failure) => {
            writing.give_up().await;
            Err(failure)
        }
    }
}

/// Does something with all pieces of data, some at a time; what is under way when one fails comes to its end. How many bytes they
/// were.
async fn each_piece<F>(mut data: Data<'_>, work: impl Fn(Range<u64>) -> F) -> Result<u64, Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    let mut running = TaskSet::new(PIECES_AT_ONCE);
    let (mut known, mut bytes, mut result) = (0..0, 0, Ok(()));
    let mut is_over = false;
    loop {
        while !running.is_full() && !is_over && result.is_ok() {
            if known.is_empty() {
                match data.next().await {
                    Ok(Some(range)) => known = range,
                    Ok(None) => is_over = true,
                    Err(failure) => result = Err(failure),
                }
                continue;
            }
            let end = known.end.min((known.start / PIECE_BYTES + 1) * PIECE_BYTES);
            let pushed = running.push(work(known.start..end));
            assert!(pushed.is_ok(), "invariant: the set is not full");
            bytes += end - known.start;
            known.start = end;
        }
        match running.next().await {
            Some((_, done)) => result = result.and(done),
            None => return result.map(|()| bytes),
        }
    }
}

async fn transfer(work: &Work<'_>, reading: &Reading, writing: &Writing, size: u64) -> Result<u64, Failure> {
    let data = reading.data(size).await?;
    let copied = each_piece(data, async |range: Range<u64>| {
        let length = range.end - range.start;
        // Taken here, where it is waited for beside the others that are to give theirs back.
        let _room = work.room(length as usize).await;
        let rope = reading.read(range.clone()).await?;
        writing.write(range.start, rope).await?;
        work.bar.inc(length);
        Ok(())
    });
    let bytes = copied.await?;
    // Holes are done, too.
    work.bar.inc(size.saturating_sub(bytes));
    Ok(bytes)
}

/// What was written is the same: where the one has data, and where the other has.
async fn verify(work: &Work<'_>, reading: &Reading, writing: &Writing, size: u64) -> Result<(), Failure> {
    let written = match writing {
        Writing::Inside { draft, files, .. } => {
            Reading::Inside { files: Rc::clone(files), file: Rc::clone(draft.file()) }
        }
        Writing::Local { draft } => Reading::Local { plain: draft.reopen()?, file: draft.file().clone() },
    };
    if written.size().await? != size {
        return Err(Failure::check("it is not as long as what was copied"));
    }
    for side in [reading, &written] {
        let data = side.data(size).await?;
        let compared = each_piece(data, async |range: Range<u64>| {
            let _room = work.room(2 * (range.end - range.start) as usize).await;
            let (from, to) = crate::race::both(reading.read(range.clone()), written.read(range.clone())).await?;
            if is_same(&from, &to) {
                return Ok(());
            }
            Err(Failure::check(format!("bytes {} to {} are not what was copied", range.start, range.end)))
        });
        compared.await?;
    }
    Ok(())
}

fn is_same(one: &Rope, other: &Rope) -> bool {
    let (mut ones, mut others) = (one.parts().iter(), other.parts().iter());
    let (mut left, mut right): (&[u8], &[u8]) = (&[], &[]);
    loop {
        if left.is_empty() {
            left = ones.next().map_or(&[], |part| part);
        }
        if right.is_empty() {
            right = others.next().map_or(&[], |part| part);
        }
        let length = left.len().min(right.len());
        if length == 0 {
            return left.len() == right.len();
        }
        if left[..length] != right[..length] {
            return false;
        }
        (left, right) = (&left[length..], &right[length..]);
    }
}

/// Standard input becomes the bytes of a file: how many they are.
pub async fn copy_stream(work: &Work<'_>, input: &mut In, writing: &Writing) -> Result<u64, Failure> {
    let mut running: TaskSet<LocalFuture<'_, Result<(), Failure>>> = TaskSet::new(PIECES_AT_ONCE);
    let (mut at, mut result, mut is_over) = (0, Ok(()), false);
    loop {
        while !running.is_full() && !is_over && result.is_ok() {
            let mut rope = Rope::default();
            while rope.len() < PIECE_BYTES as usize && !is_over {
                let part = input.read().await?;
                is_over = part.is_empty();
                rope.push(part);
            }
            let (from, length) = (at, rope.len() as u64);
            at += length;
            let pushed = running.push(Box::pin(async move {
                writing.write(from, rope).await?;
                work.bar.inc(length);
                Ok(())
            }));
            assert!(pushed.is_ok(), "invariant: the set is not full");
        }
        match running.next().await {
            Some((_, done)) => result = result.and(done),
            None => return result.map(|()| at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ropes_are_the_same_however_they_are_cut() {
        let rope = |parts: &[&[u8]]| {
            let mut rope = Rope::default();
            parts.iter().for_each(|part| rope.push(Buf::copy_from(part).freeze()));
            rope
        };
        let whole = rope(&[b"lantern"]);
        assert!(is_same(&whole, &rope(&[b"lan", b"t", b"ern"])) && is_same(&rope(&[]), &rope(&[])));
        for other in [rope(&[b"lan", b"tern", b"s"]), rope(&[b"lan", b"ter"]), rope(&[b"lan", b"Tern"]), rope(&[])] {
            assert!(!is_same(&whole, &other) && !is_same(&other, &whole));
        }
    }
}
