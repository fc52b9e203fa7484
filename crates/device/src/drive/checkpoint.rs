//! Checkpoints: the whole metadata at one moment, so that the journal before it is no longer needed.
//!
//! ```text
//! slot    header (512 bytes used) in page 0 and again in page 1, then the body
//! header    0 magic "YGCHECK1"      8 generation u64      16 sequence u64 (what the body holds)
//!          24 frame u64 (the first one behind it)         32 its place in the ring u64
//!          40 body bytes u64       48 body checksum u64   56 drive id 16 bytes   504 checksum of bytes 0..504
//! body    next namespace u32 | namespaces u32 | for each: number u32, nguid, block size u32, bytes u64, read-only u8,
//!         source u32, name, attributes u32 (key, value)…, runs u32 (index u32, extent u32, count u32)…
//!         | table entries u32 | (page u32, entry u64)…
//! ```
//!
//! Order, each step stable before the next: changed checksum pages to their places that are not in force, and the body to the
//! slot that is not in force; everything that was written to extents; the header. The header is what makes a checkpoint: a
//! crash before it leaves the one before, with its pages and its journal, untouched.
//!
//! A header fits a sector, so no crash leaves one that is wrong in itself, and there are two: one that is damaged is passed
//! over for its twin. A body that does not match its header is damage, and never a reason to fall back to older metadata.

use std::io;
use std::sync::Arc;

use engine::Buf;
use engine::task::{self, TaskSet};

use super::bytes::{Reader, Short, Writer, unsealed};
use super::core::{Core, Inner};
use super::layout::{Layout, PAGE};
use super::map::ExtentMap;
use super::pages::{Values, page_entry};
use super::state::{NAME_BYTES_MAX, NAMESPACES_MAX, Space, State};
use super::window::{self, IN_FLIGHT_MAX};
use crate::{ATTRIBUTE_KEY_BYTES_MAX, Error};

const MAGIC: &[u8; 8] = b"YGCHECK1";
/// A header lies in one sector.
const HEADER: usize = 512;
/// Bytes of a checkpoint written in one command.
const PART: usize = 1 << 20;

/// What a checkpoint's header says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) generation: u64,
    pub(super) sequence: u64,
    pub(super) frame: u64,
    pub(super) head: u64,
    pub(super) body_bytes: u64,
    pub(super) body_sum: u64,
}

impl Header {
    /// The two pages that open a slot.
    pub(super) fn encode(&self, drive: &[u8; 16]) -> Buf {
        let mut out = Writer::default();
        out.raw(MAGIC).u64(self.generation).u64(self.sequence).u64(self.frame).u64(self.head);
        out.u64(self.body_bytes).u64(self.body_sum).raw(drive);
        let header = out.sealed(HEADER);
        let mut pages = Buf::zeroed(2 * PAGE);
        pages[..HEADER].copy_from_slice(&header);
        pages[PAGE..PAGE + HEADER].copy_from_slice(&header);
        pages
    }

    /// The newer of a slot's two headers. `None`: neither is one.
    pub(super) fn decode(pages: &[u8], drive: &[u8; 16]) -> Option<Header> {
        let copies = [0, PAGE].map(|at| Header::copy(&pages[at..], drive));
        copies.into_iter().flatten().max_by_key(|header| header.generation)
    }

    /// A header of some drive is at the front of `bytes`.
    pub(super) fn is_any(bytes: &[u8]) -> bool {
        unsealed(&bytes[..HEADER]).is_some_and(|content| content.starts_with(MAGIC))
    }

    /// One header, at the front of `bytes`.
    pub(super) fn copy(bytes: &[u8], drive: &[u8; 16]) -> Option<Header> {
        if !Header::is_any(bytes) {
            return None;
        }
        let content = &bytes[..HEADER - 8];
        let mut from = Reader(&content[MAGIC.len()..]);
        let fields = [(); 6].map(|()| from.u64());
        let [Ok(generation), Ok(sequence), Ok(frame), Ok(head), Ok(body_bytes), Ok(body_sum)] = fields else {
            return None;
        };
        (from.array16() == Ok(*drive)).then_some(Header { generation, sequence, frame, head, body_bytes, body_sum })
    }
}

/// Encodes the namespaces; the page table follows ([`encode_table`]).
pub(super) fn encode_state(state: &State) -> Writer {
    let mut out = Writer::default();
    out.u32(state.next_namespace).u32(state.namespaces.len() as u32);
    for (&number, space) in &state.namespaces {
        out.u32(number).raw(&space.nguid).u32(space.block_size).u64(space.bytes).u8(space.read_only.into());
        out.u32(space.source).counted(space.name.as_bytes()).u32(space.attributes.len() as u32);
        for (key, value) in &space.attributes {
            out.counted(key.as_bytes()).counted(value);
        }
        encode_map(&mut out, &space.map);
    }
    out
}

fn encode_map(out: &mut Writer, map: &ExtentMap) {
    let count_at = out.0.len();
    out.u32(0);
    let (mut runs, mut run): (u32, Option<(u32, u32, u32)>) = (0, None);
    for (index, extent) in map.iter() {
        run = match run {
            Some((first, start, count)) if first + count == index && start + count == extent => {
                Some((first, start, count + 1))
            }
            ended => {
                if let Some((first, start, count)) = ended {
                    out.u32(first).u32(start).u32(count);
                    runs += 1;
                }
                Some((index, extent, 1))
            }
        };
    }
    if let Some((first, start, count)) = run {
        out.u32(first).u32(start).u32(count);
        runs += 1;
    }
    out.0[count_at..count_at + 4].copy_from_slice(&runs.to_le_bytes());
}

pub(super) fn encode_table(out: &mut Writer, table: &[u64]) {
    out.u32(table.iter().filter(|&&entry| entry != 0).count() as u32);
    for (page, &entry) in table.iter().enumerate().filter(|(_, entry)| **entry != 0) {
        out.u32(page as u32).u64(entry);
    }
}

/// The state and page table of a body.
pub(super) fn decode(body: &[u8], layout: &Layout) -> Result<(State, Vec<u64>), String> {
    let mut from = Reader(body);
    let mut state = State::new(layout);
    let read = decode_state(&mut from, &mut state).and_then(|()| decode_table(&mut from, layout));
    match read {
        Ok(table) if from.is_empty() => Ok((state, table)),
        Ok(_) => Err("has bytes behind its end".into()),
        Err(reason) => Err(reason.to_owned()),
    }
}

impl From<Short> for &'static str {
    fn from(Short: Short) -> &'static str {
        "ends before its contents do"
    }
}

fn decode_state(from: &mut Reader<'_>, state: &mut State) -> Result<(), &'static str> {
    let (next, count) = (from.u32()?, from.u32()?);
    if count as usize > NAMESPACES_MAX {
        return Err("has more namespaces than a drive can have");
    }
    for _ in 0..count {
        let number = from.u32()?;
        let (nguid, block_size, bytes) = (from.array16()?, from.u32()?, from.u64()?);
        let (read_only, source, name) = (from.u8()? != 0, from.u32()?, from.text()?.to_owned());
        let mut space = Space { nguid, name, block_size, bytes, read_only, source, ..Space::default() };
        for _ in 0..from.u32()? {
            let (key, value) = (from.text()?, from.counted()?);
            if key.len() > ATTRIBUTE_KEY_BYTES_MAX || space.name.len() > NAME_BYTES_MAX {
                return Err("has a word that is too long");
            }
            space.attributes.insert(key.to_owned(), value.to_owned());
        }
        if number >= next || state.namespaces.insert(number, space).is_some() {
            return Err("has a namespace number twice, or one not given yet");
        }
        state.sound(number)?;
        for _ in 0..from.u32()? {
            let (first, start, count) = (from.u32()?, from.u32()?, from.u32()?);
            for step in 0..count {
                let (index, extent) = (first.checked_add(step).ok_or(Short)?, start.checked_add(step).ok_or(Short)?);
                let before = state.entries;
                state.refer(number, index, extent, 0)?;
                if state.entries != before + 1 {
                    return Err("maps a part of a namespace twice");
                }
            }
        }
    }
    state.next_namespace = next;
    Ok(())
}

fn decode_table(from: &mut Reader<'_>, layout: &Layout) -> Result<Vec<u64>, &'static str> {
    let mut table = vec![0; layout.pages as usize];
    for _ in 0..from.u32()? {
        let (page, entry) = (from.u32()?, from.u64()?);
        *table.get_mut(page as usize).ok_or("has a checksum page that is not there")? = entry;
    }
    Ok(table)
}

/// A checkpoint under way. Every write of it holds this: only when the kernel is done with the last of them may another
/// checkpoint write to the same places.
struct Run {
    inner: Arc<Inner>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.inner.with(|core| {
            // Nothing is left to thaw where it went well.
            core.pages.thaw(None);
            (core.admitted.checkpointing, core.admitted.freezing) = (false, false);
            core.changed();
        });
    }
}

/// A write or flush of a checkpoint whose caller has gone: the checkpoint has ended without its header, and its failure latches all
/// the same. It is told once: the next flush may well succeed over what this one has lost.
fn failed_late(run: Arc<Run>, result: io::Result<()>) {
    if let Err(error) = result {
        run.inner.checkpoint_failed(&error);
    }
}

/// What is true once the header is on the medium. It is noted also when the checkpoint's caller has gone: a drive that did not
/// know would give the next checkpoint the same number, and overwrite the pages and the body that this one refers to.
struct Completion {
    run: Arc<Run>,
    entries: Vec<(u32, u64)>,
    generation: u64,
    data_stable: u64,
    ended: bool,
}

impl Completion {
    fn end(mut self, result: &io::Result<()>) {
        self.ended = true;
        let inner = &self.run.inner;
        if let Err(error) = result {
            inner.checkpoint_failed(error);
            return;
        }
        inner.with(|core| {
            core.pages.thaw(Some(&self.entries));
            core.generation = self.generation;
            core.journal.used = core.journal.since_freeze;
            core.data.stable = core.data.stable.max(self.data_stable);
            core.changed();
        });
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if !self.ended {
            // Only the end of its world ends a write without a result.
            self.run.inner.checkpoint_failed(&io::Error::other("cut off"));
        }
    }
}

/// The state as the checkpoint takes it.
struct Frozen {
    body: Writer,
    pages: Vec<(u32, Arc<Values>)>,
    table: Vec<u64>,
    header: Header,
    data_stable: u64,
}

impl Inner {
    /// Begins a checkpoint in a task of its own, unless one is under way.
    pub(super) fn checkpoint_soon(self: &Arc<Self>) {
        if let Some(run) = self.begin_run() {
            let inner = Arc::clone(self);
            task::spawn(async move {
                // A failure has latched the drive, and everybody learns it from there.
                let _latched = inner.run(run).await;
            })
            .detach();
        }
    }

    fn begin_run(self: &Arc<Self>) -> Option<Arc<Run>> {
        let begins = self.with(|core| {
            let begins = !core.admitted.checkpointing && core.failed.is_none() && !core.read_only;
            core.admitted.checkpointing |= begins;
            begins
        });
        begins.then(|| Arc::new(Run { inner: Arc::clone(self) }))
    }

    /// Makes a checkpoint that holds everything recorded before this call.
    pub(super) async fn checkpoint(self: &Arc<Self>) -> Result<(), Error> {
        loop {
            if let Some(run) = self.begin_run() {
                return self.run(run).await;
            }
            self.wait(|core| match core.writable() {
                Err(error) => Some(Err(error)),
                Ok(()) => (!core.admitted.checkpointing).then_some(Ok(())),
            })
            .await?;
        }
    }

    async fn run(self: &Arc<Self>, run: Arc<Run>) -> Result<(), Error> {
        let frozen = self.freeze().await?;
        // Records whose callers went away: nobody else may come to write them, and they take room until somebody does.
        self.commit(frozen.header.sequence).await?;
        let written = self.write_out(frozen, &run).await;
        let written = written.map_err(|error| self.checkpoint_failed(&error));
        drop(run); // behind the latch: the next one would write to the same places
        written
    }

    /// Waits until nobody is admitted, and takes the state.
    async fn freeze(&self) -> Result<Frozen, Error> {
        self.with(|core| core.admitted.freezing = true);
        self.wait(|core| {
            if let Err(error) = core.writable() {
                return Some(Err(error));
            }
            if core.admitted.commands > 0 {
                return None;
            }
            core.admitted.freezing = false;
            core.changed();
            Some(Ok(core.take()))
        })
        .await
    }

    async fn write_out(&self, frozen: Frozen, run: &Arc<Run>) -> io::Result<()> {
        let Frozen { mut body, pages, mut table, mut header, data_stable } = frozen;
        let mut entries = Vec::with_capacity(pages.len());
        let mut writes = TaskSet::new(IN_FLIGHT_MAX);
        for (page, values) in pages {
            let copy = table[page as usize] & 1 ^ 1;
            let mut content = Buf::with_len(PAGE);
            for (place, value) in content.chunks_exact_mut(8).zip(values.iter()) {
                place.copy_from_slice(&value.to_le_bytes());
            }
            table[page as usize] = page_entry(self.seed, page, &content, copy);
            entries.push((page, table[page as usize]));
            let put = self.put(self.layout.page_at(page, copy), content, false, run);
            window::push(&mut writes, put).await.transpose()?;
        }
        while let Some((_, written)) = writes.next().await {
            written?;
        }
        encode_table(&mut body, &table);
        (header.body_bytes, header.body_sum) = (body.0.len() as u64, xxhash_rust::xxh3::xxh3_64(&body.0));
        if header.body_bytes > self.layout.body_bytes_max() {
            return Err(io::Error::other("the metadata has outgrown its place"));
        }
        let slot = self.layout.slot_at(header.generation);
        for (index, part) in body.0.chunks(PART).enumerate() {
            let mut padded = Buf::zeroed(part.len().div_ceil(PAGE) * PAGE);
            padded[..part.len()].copy_from_slice(part);
            self.put(slot + (2 * PAGE + index * PART) as u64, padded, false, run).await?;
        }
        self.file.sync_data_holding(Arc::clone(run), failed_late).await.0?;
        let completion =
            Completion { run: Arc::clone(run), entries, generation: header.generation, data_stable, ended: false };
        let late = |completion: Completion, result: io::Result<()>| completion.end(&result);
        let header = header.encode(&self.layout.id).freeze();
        let (result, completion) = self.file.write_at_holding(slot, header, true, completion, late).await;
        completion.end(&result);
        result
    }

    fn checkpoint_failed(&self, error: &io::Error) -> Error {
        self.with(|core| core.fail(format!("checkpoint on {}: {error}", self.path.display())))
    }

    async fn put(&self, at: u64, bytes: Buf, durable: bool, run: &Arc<Run>) -> io::Result<()> {
        self.file.write_at_holding(at, bytes.freeze(), durable, Arc::clone(run), failed_late).await.0
    }
}

impl Core {
    fn take(&mut self) -> Frozen {
        let journal = &mut self.journal;
        journal.since_freeze = 0;
        let header = Header {
            generation: self.generation + 1,
            sequence: journal.sequence,
            frame: journal.frame,
            head: journal.head,
            body_bytes: 0,
            body_sum: 0,
        };
        let data_stable = self.data.written(journal.sequence);
        let (body, pages) = (encode_state(&self.state), self.pages.freeze());
        Frozen { body, pages, table: self.pages.table().to_vec(), header, data_stable }
    }
}
