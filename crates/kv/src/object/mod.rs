//! Objects: values of any length, cut into parts that fit the store.
//!
//! A short object is a plain value under its key. A longer one is cut into parts; under its key stands a [`Manifest`].
//!
//! Invariants:
//! - Parts are written before the manifest that names them and deleted after it was replaced, by whoever has replaced it: what is
//!   replaced is told by the very operation that does it. Their keys hold the number of the upload, drawn at random: parts of two
//!   uploads never mix, whoever overtakes whom.
//! - A value that looks like a manifest is stored as an object in parts: what is read back is what was written, always.
//! - Bytes are delivered in order, and the checksum of the whole is compared at the end: a part that is another upload's, or is
//!   missing, ends in an error and not in a file that looks right.
//!
//! An upload or delete that is cut short, or whose outcome is unknown, leaves parts behind that nobody names; so does a plain `SET`
//! or `DEL` of a Redis client. They show in a listing with parts and can be deleted.

mod manifest;

use std::io;

use xxhash_rust::xxh3::Xxh3;

use crate::resp::execute::together;
use crate::resp::reply::Reply;
use crate::resp::strings::string;
use crate::resp::{Backend, Change, Entry, Failure};
use crate::value::Value;

pub use manifest::{Manifest, ManifestError, PART_BYTES_MAX, PART_SUFFIX_BYTES, is_part_key, part_key};

/// Parts of one object that are under way at once: enough to hide the round trips, few enough to bound memory.
pub const PARTS_AT_ONCE_MAX: usize = 4;

/// Why an object could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The store did not do it.
    #[error("{0}")]
    Store(#[from] Failure),
    /// The source could not be read, or the destination not be written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The manifest is no manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A part is not there, although its manifest is.
    #[error(
        "part {index} of {count} is missing: the object is being replaced, or an upload of it was cut short; read it again"
    )]
    PartMissing {
        /// Which.
        index: u64,
        /// Of how many.
        count: u64,
    },
    /// What the parts hold is not what was stored.
    #[error("the parts hold {length} bytes with checksum {found:016x}; the manifest names {expected:016x}")]
    Damaged {
        /// Bytes read.
        length: u64,
        /// Their checksum.
        found: u64,
        /// What it should be.
        expected: u64,
    },
}

/// What was stored.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stored {
    /// Bytes of the object.
    pub bytes: u64,
    /// Parts; 0: a plain value.
    pub parts: u64,
}

/// Stores what `source` gives (to its end) under `key`, in parts of `part_bytes` if it is longer than one.
pub async fn put<B: Backend>(
    store: &B,
    key: &[u8],
    source: &mut impl io::Read,
    part_bytes: usize,
) -> Result<Stored, ObjectError> {
    let part_bytes = part_bytes.clamp(1, PART_BYTES_MAX);
    let mut first = read_part(source, part_bytes)?;
    let second = if first.len() == part_bytes { read_part(source, part_bytes)? } else { Vec::new() };
    let stored = if second.is_empty() && !Manifest::is_one(&first) {
        replace(store, key, Some(&first)).await?;
        Stored { bytes: first.len() as u64, parts: 0 }
    } else {
        first.extend_from_slice(&second);
        put_parts(store, key, first, source, part_bytes).await?
    };
    Ok(stored)
}

/// Sets `key`, or deletes it, and removes the parts of what was there; whether anything was.
async fn replace<B: Backend>(store: &B, key: &[u8], bytes: Option<&[u8]>) -> Result<bool, ObjectError> {
    let value = bytes.map(string);
    // What was there is told by the operation that takes its place: looked up before, it would be another upload's by then.
    let decide = |found: Option<&Entry>| {
        // Of a value without parts it is enough that there was one.
        let before = found.map_or(Reply::Null, |found| match is_in_parts(&found.value) {
            true => Reply::Value(found.value.clone()),
            false => Reply::OK,
        });
        match &value {
            Some(value) => Change::Put(value.clone(), before),
            None if found.is_none() => Change::Keep(before),
            None => Change::Delete(before),
        }
    };
    match store.update(key, None, decide).await? {
        Reply::Null => Ok(false),
        Reply::Value(before) => delete_parts_of(store, key, &before).await.map(|()| true),
        _ => Ok(true),
    }
}

/// `buffer` holds what was read ahead, whole parts but for the object's end.
async fn put_parts<B: Backend>(
    store: &B,
    key: &[u8],
    mut buffer: Vec<u8>,
    source: &mut impl io::Read,
    part_bytes: usize,
) -> Result<Stored, ObjectError> {
    let mut checksum = Xxh3::new();
    let mut manifest =
        Manifest { length: 0, part_bytes: part_bytes as u32, upload: engine::task::random_u64(), checksum: 0 };
    let mut index = 0;
    loop {
        while buffer.len() < part_bytes * PARTS_AT_ONCE_MAX && buffer.len().is_multiple_of(part_bytes) {
            let part = read_part(source, part_bytes)?;
            if part.is_empty() {
                break;
            }
            buffer.extend_from_slice(&part);
        }
        checksum.update(&buffer);
        manifest.length += buffer.len() as u64;
        let puts = buffer.chunks(part_bytes).enumerate().map(|(offset, part)| {
            let key = part_key(key, manifest.upload, index + offset as u64);
            async move { store.put(&key, part).await }
        });
        for result in together(puts).await {
            result?;
        }
        index += buffer.len().div_ceil(part_bytes) as u64;
        if buffer.len() < part_bytes * PARTS_AT_ONCE_MAX {
            break;
        }
        buffer.clear();
    }
    manifest.checksum = checksum.digest();
    replace(store, key, Some(&manifest.encode())).await?;
    Ok(Stored { bytes: manifest.length, parts: index })
}

/// Delivers the object under `key` to `sink`, piece by piece; `Ok(None)`: there is none.
pub async fn get<B: Backend>(
    store: &B,
    key: &[u8],
    mut sink: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<Option<Stored>, ObjectError> {
    let Some(value) = store.get(key).await? else { return Ok(None) };
    if !is_in_parts(&value) {
        for segment in value.segments() {
            sink(segment)?;
        }
        return Ok(Some(Stored { bytes: value.len() as u64, parts: 0 }));
    }
    let manifest = Manifest::decode(&value.to_vec())?;
    let (mut checksum, mut length) = (Xxh3::new(), 0);
    for first in (0..manifest.parts()).step_by(PARTS_AT_ONCE_MAX) {
        let end = manifest.parts().min(first + PARTS_AT_ONCE_MAX as u64);
        let gets = (first..end).map(|index| {
            let key = part_key(key, manifest.upload, index);
            async move { store.get(&key).await }
        });
        for (index, part) in (first..).zip(together(gets).await) {
            let missing = ObjectError::PartMissing { index, count: manifest.parts() };
            let part = part?.ok_or(missing)?;
            length += part.len() as u64;
            for segment in part.segments() {
                checksum.update(segment);
                sink(segment)?;
            }
        }
    }
    if length != manifest.length || checksum.digest() != manifest.checksum {
        return Err(ObjectError::Damaged { length, found: checksum.digest(), expected: manifest.checksum });
    }
    Ok(Some(Stored { bytes: length, parts: manifest.parts() }))
}

/// Removes the object under `key` with its parts; whether it was there.
pub async fn delete<B: Backend>(store: &B, key: &[u8]) -> Result<bool, ObjectError> {
    replace(store, key, None).await
}

/// Removes the parts of an object that was replaced, if `before` was one in parts.
pub async fn delete_parts_of<B: Backend>(store: &B, key: &[u8], before: &Value) -> Result<(), ObjectError> {
    // The old manifest may be damaged or foreign; its parts are then not known, and stay.
    match is_in_parts(before).then(|| Manifest::decode(&before.to_vec())) {
        Some(Ok(manifest)) => delete_parts(store, key, &manifest).await,
        Some(Err(_)) | None => Ok(()),
    }
}

/// Ends where none of a batch was there: parts are written, and removed, in their order, and a manifest that somebody else has made
/// up may name four thousand million.
async fn delete_parts<B: Backend>(store: &B, key: &[u8], manifest: &Manifest) -> Result<(), ObjectError> {
    for first in (0..manifest.parts()).step_by(PARTS_AT_ONCE_MAX) {
        let end = manifest.parts().min(first + PARTS_AT_ONCE_MAX as u64);
        let deletes = (first..end).map(|index| {
            let key = part_key(key, manifest.upload, index);
            async move { store.delete(&key).await }
        });
        let mut any = false;
        for was_there in together(deletes).await {
            any |= was_there?;
        }
        if !any {
            break;
        }
    }
    Ok(())
}

/// Whether a stored value is to be taken for a manifest: the object is in parts. One is short, so it is in one piece; a long
/// value is none.
pub fn is_in_parts(value: &Value) -> bool {
    value.segments().first().is_some_and(|first| Manifest::is_one(first))
}

/// The next `part_bytes` of `source`; fewer only at its end.
fn read_part(source: &mut impl io::Read, part_bytes: usize) -> io::Result<Vec<u8>> {
    let mut part = Vec::with_capacity(part_bytes.min(64 << 10));
    io::Read::read_to_end(&mut io::Read::take(source, part_bytes as u64), &mut part)?;
    Ok(part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::cell::Cell;

    use super::*;
    use crate::resp::fuzz::{MemoryBackend, ready};
    use crate::resp::{Operation, Watch, Watched};

    /// Another upload is done just before the first change of `k` takes place.
    struct Overtaking {
        store: MemoryBackend,
        is_done: Cell<bool>,
    }

    impl Watch for Overtaking {
        async fn begins(&self, operation: Operation, key: &[u8]) {
            if operation != Operation::Get && key == b"k" && !self.is_done.replace(true) {
                put(&self.store, b"k", &mut &[9; 100][..], 10).await.expect("stored");
            }
        }
    }

    /// Takes so many operations and no more.
    struct Few(Cell<usize>);

    impl Watch for Few {
        async fn begins(&self, _: Operation, _: &[u8]) {
            self.0.set(self.0.get() + 1);
            assert!(self.0.get() <= 2 * PARTS_AT_ONCE_MAX, "part after part is asked for");
        }
    }

    /// The parts of the other upload stayed behind, and nobody named them.
    #[test]
    fn what_another_upload_has_put_meanwhile_goes_with_its_parts() {
        let overtaken = || {
            let inner = MemoryBackend::default();
            self::store(&inner, &[7; 50], 10);
            Watched { watch: Overtaking { store: inner.clone(), is_done: Cell::new(false) }, inner }
        };
        let (deleted, replaced, short) = (overtaken(), overtaken(), overtaken());
        assert!(ready(delete(&deleted, b"k")).expect("ready").expect("deleted"));
        assert_eq!(keys(&deleted.inner).len(), 0);
        ready(put(&replaced, b"k", &mut &[8; 30][..], 10)).expect("ready").expect("stored");
        assert_eq!(keys(&replaced.inner).len(), 4);
        assert_eq!(load(&replaced.inner).expect("loaded"), Some(vec![8; 30]));
        ready(put(&short, b"k", &mut &[8; 3][..], 10)).expect("ready").expect("stored");
        assert_eq!(keys(&short.inner).len(), 1);
    }

    fn store(store: &MemoryBackend, bytes: &[u8], part_bytes: usize) -> Stored {
        ready(put(store, b"k", &mut &bytes[..], part_bytes)).expect("ready").expect("stored")
    }

    fn load(store: &MemoryBackend) -> Result<Option<Vec<u8>>, ObjectError> {
        let mut bytes = Vec::new();
        let got = ready(get(store, b"k", |part| {
            bytes.extend_from_slice(part);
            Ok(())
        }));
        Ok(got.expect("ready")?.map(|_| bytes))
    }

    fn keys(store: &MemoryBackend) -> Vec<Vec<u8>> {
        let page = ready(store.scan(0, usize::MAX)).expect("ready").expect("scanned");
        page.keys.into_iter().map(|found| found.key).collect()
    }

    #[test]
    fn what_looks_like_a_manifest_is_read_back_as_written() {
        let memory = MemoryBackend::default();
        let manifest = Manifest { length: 1, part_bytes: 1, upload: 1, checksum: 1 }.encode();
        assert_eq!(store(&memory, &manifest, 4096), Stored { bytes: manifest.len() as u64, parts: 1 });
        assert_eq!(load(&memory).expect("loaded"), Some(manifest));
    }

    #[test]
    fn replacing_and_deleting_leave_no_parts_behind() {
        let memory = MemoryBackend::default();
        assert_eq!(store(&memory, &[7; 1000], 10), Stored { bytes: 1000, parts: 100 });
        assert_eq!(store(&memory, &[8; 95], 10), Stored { bytes: 95, parts: 10 });
        assert_eq!(keys(&memory).len(), 11);
        assert_eq!(load(&memory).expect("loaded"), Some(vec![8; 95]));
        assert!(ready(delete(&memory, b"k")).expect("ready").expect("deleted"));
        assert_eq!(keys(&memory).len(), 0);
    }

    #[test]
    fn parts_that_were_never_written_are_not_removed_one_by_one() {
        let memory = MemoryBackend::default();
        let claimed = Manifest { length: 1 << 32, part_bytes: 1, upload: 7, checksum: 1 }.encode();
        ready(memory.put(b"k", &claimed)).expect("ready").expect("put");
        let bounded = Watched { watch: Few(Cell::new(0)), inner: memory };
        assert!(ready(delete(&bounded, b"k")).expect("ready").expect("deleted"));
        assert_eq!(keys(&bounded.inner).len(), 0);
    }

    #[test]
    fn a_missing_or_wrong_part_is_an_error() {
        let memory = MemoryBackend::default();
        store(&memory, &[7; 100], 10);
        let part = keys(&memory).into_iter().find(|key| is_part_key(key)).expect("a part");
        ready(memory.put(&part, &[9; 10])).expect("ready").expect("put");
        assert!(matches!(load(&memory), Err(ObjectError::Damaged { length: 100, .. })));
        ready(memory.delete(&part)).expect("ready").expect("deleted");
        assert!(matches!(load(&memory), Err(ObjectError::PartMissing { count: 10, .. })));
    }

    proptest! {
        #[test]
        fn any_length_in_any_parts(length in 0usize..200, part_bytes in 1usize..50) {
            let memory = MemoryBackend::default();
            let bytes: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let stored = store(&memory, &bytes, part_bytes);
            prop_assert_eq!(stored.parts, if length > part_bytes { length.div_ceil(part_bytes) as u64 } else { 0 });
            prop_assert_eq!(keys(&memory).len() as u64, stored.parts + 1);
            prop_assert_eq!(load(&memory).expect("loaded"), Some(bytes));
        }
    }
}
