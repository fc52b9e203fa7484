//! A tree into the store, and a tree against the store: many files at once, in bounded number.
//!
//! Files are read from the page cache or the disk on the reactor's thread: these verbs do nothing else meanwhile.

use std::cell::Cell;
use std::fs::File;
use std::future::poll_fn;
use std::io::Read;
use std::time::Duration;

use engine::task::TaskSet;
use engine::time;
use kv::object::{self, ObjectError};
use kv::resp::Backend;
use serde::Serialize;

use super::timed::{Latency, Timed};
use super::{object_failure, store_failure};
use crate::exit::Failure;
use crate::output::many;
use crate::tree::{Tree, TreeFile};

/// Differing files that are named; more are only counted.
const NAMED_MAX: usize = 20;

/// What an import did.
#[derive(Clone, Default, Serialize, Debug)]
pub struct Imported {
    /// Files stored.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Parts of those that were cut.
    pub parts: u64,
    /// Links and special files that were left out.
    pub skipped: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// Times of the puts.
    pub put: Latency,
}

/// What a comparison found.
#[derive(Clone, Default, Serialize, Debug)]
pub struct Compared {
    /// Files compared.
    pub files: u64,
    /// Bytes compared.
    pub bytes: u64,
    /// Files whose bytes differ or that are not stored.
    pub different: u64,
    /// The first of them, with what is wrong.
    pub differences: Vec<String>,
    /// Seconds it took.
    pub seconds: f64,
    /// Times of the gets.
    pub get: Latency,
}

/// Runs `work` on each file, `depth` at once, until all are done or one fails. `done` hears of each result.
async fn each<'a, F, T>(
    files: &'a [TreeFile],
    depth: usize,
    work: impl Fn(&'a TreeFile) -> F,
    mut done: impl FnMut(T),
) -> Result<(), Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let (mut tasks, mut waiting) = (TaskSet::new(depth), files.iter());
    loop {
        while !tasks.is_full()
            && let Some(file) = waiting.next()
        {
            let pushed = tasks.push(work(file));
            assert!(pushed.is_ok(), "invariant: the set is not full");
        }
        match poll_fn(|context| tasks.poll_next(context)).await {
            Some((_, result)) => done(result?),
            None => return Ok(()),
        }
    }
}

/// Stores every file of `tree`; `progress` hears of the bytes of each file that is done.
pub async fn import<B: Backend>(
    store: &Timed<B>,
    tree: &Tree,
    part_bytes: usize,
    depth: usize,
    progress: impl Fn(u64),
) -> Result<Imported, Failure> {
    let started = time::now();
    let mut imported = Imported { skipped: tree.skipped, ..Imported::default() };
    let store_one = async |file: &TreeFile| {
        let named = |failure: Failure| failure.during(file.path.display());
        let mut source = File::open(&file.path).map_err(|error| named(Failure::usage(error)))?;
        let stored = object::put(store, &file.key, &mut source, part_bytes).await;
        let stored = stored.map_err(|error| named(object_failure(error)))?;
        progress(stored.bytes);
        Ok(stored)
    };
    each(&tree.files, depth, store_one, |stored| {
        imported.files += 1;
        imported.bytes += stored.bytes;
        imported.parts += stored.parts;
    })
    .await?;
    imported.seconds = started.elapsed().as_secs_f64();
    imported.put = store.watch.puts();
    Ok(imported)
}

/// Compares every file of `tree` with what is stored, byte by byte. A difference is a finding; an error of the store a failure.
pub async fn compare<B: Backend>(
    store: &Timed<B>,
    tree: &Tree,
    depth: usize,
    progress: impl Fn(u64),
) -> Result<Compared, Failure> {
    let started = time::now();
    let mut compared = Compared::default();
    let compare_one = async |file: &TreeFile| {
        let result = compare_file(store, file).await;
        progress(file.bytes);
        result.map_err(|failure| failure.during(file.name()))
    };
    each(&tree.files, depth, compare_one, |result: (u64, Option<String>)| {
        compared.files += 1;
        compared.bytes += result.0;
        if let Some(difference) = result.1 {
            compared.different += 1;
            if compared.differences.len() < NAMED_MAX {
                compared.differences.push(difference);
            }
        }
    })
    .await?;
    compared.seconds = started.elapsed().as_secs_f64();
    compared.get = store.watch.gets();
    Ok(compared)
}

/// Bytes compared, and what differs.
async fn compare_file<B: Backend>(store: &B, file: &TreeFile) -> Result<(u64, Option<String>), Failure> {
    let named = |error: std::io::Error| Failure::usage(error).during(file.path.display());
    let mut source = File::open(&file.path).map_err(named)?;
    let (place, difference) = (Cell::new(0), Cell::new(None));
    let mut buffer = Vec::new();
    let got = object::get(store, &file.key, |part| {
        buffer.clear();
        source.by_ref().take(part.len() as u64).read_to_end(&mut buffer)?;
        if difference.get().is_none() && buffer != part {
            let same = buffer.iter().zip(part).take_while(|(a, b)| a == b).count() as u64;
            difference.set(Some(place.get() + same));
        }
        place.set(place.get() + part.len() as u64);
        Ok(())
    });
    let name = file.name();
    match got.await {
        Ok(None) => return Ok((0, Some(format!("{name}: not stored")))),
        Ok(Some(_)) => {}
        Err(ObjectError::Store(error)) => return Err(store_failure(error)),
        Err(ObjectError::Io(error)) => return Err(named(error)),
        Err(other) => return Ok((place.get(), Some(format!("{name}: {other}")))),
    }
    if let Some(at) = difference.get() {
        return Ok((place.get(), Some(format!("{name}: differs from byte {at} on"))));
    }
    let longer = source.read(&mut [0]).map_err(named)? > 0;
    let difference = longer.then(|| format!("{name}: only the first {} bytes are stored", place.get()));
    Ok((place.get(), difference))
}

/// What an import did, for people.
pub fn describe_import(imported: &Imported) -> String {
    let Imported { files, bytes, parts, skipped, seconds, put } = imported;
    let mut text = format!(
        "{}, {} in {} ({} a second), {}\nput: {}\n",
        many(*files, "file"),
        crate::size::Size(*bytes),
        crate::output::duration(Duration::from_secs_f64(*seconds)),
        crate::size::Size((*bytes as f64 / seconds.max(1e-9)) as u64),
        many(*parts, "part"),
        put.describe()
    );
    if *skipped > 0 {
        text += &format!("{skipped} links and special files were left out\n");
    }
    text
}

/// What a comparison found, for people.
pub fn describe_comparison(compared: &Compared) -> String {
    let Compared { files, bytes, different, differences, seconds, get } = compared;
    let mut text = format!(
        "{}, {} compared in {}: {}\nget: {}\n",
        many(*files, "file"),
        crate::size::Size(*bytes),
        crate::output::duration(Duration::from_secs_f64(*seconds)),
        if *different == 0 { "every byte is right".into() } else { format!("{different} differ") },
        get.describe()
    );
    for line in differences {
        text += &format!("  {line}\n");
    }
    text
}
