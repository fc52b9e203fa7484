//! The disks of the nodes.
//!
//! The fault model:
//! - A sector (512 bytes) is written and read atomically, nothing larger is: an operation over several sectors may take
//!   effect in up to [`PARTS_MAX`] parts, in any order, between its start and its end. Whoever needs more has to lock.
//! - A write is visible when it ends, and lives in a volatile cache until it is *stable*: ended with `durable`, or ended
//!   before a flush began that itself ended well. Zeroing and punching holes are writes. (Config: no cache, all is stable.)
//! - At a crash every write that is not stable, also one still under way, is kept, lost or torn, independently of all others;
//!   torn: each of its sectors is kept or lost. (Config: not torn, then kept or lost.) A sector never goes back behind stable
//!   content.
//! - A read or write may fail with EIO; a failed write may have changed any of its sectors, a failed flush has made nothing
//!   stable. Corruption, where the test asks for it, changes content silently until it is overwritten.
//! - Contents survive a crash; handles and locks do not. A paused node's disks go on.
//!
//! Invariant: nothing here holds on to a future: an operation belongs to the disk from its start to its end, whoever waits.

mod medium;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Weak;
use std::task::{Poll, Waker};

pub(crate) use self::medium::SECTOR;
use self::medium::{Medium, Source};
use super::config::DiskConfig;
use super::core::Core;
use super::event::Event;
use super::id::{NodeId, OpId};
use super::trace::{Frequent, hash_bytes};
use crate::{Buf, View};

/// Parts in which one operation takes effect. Three show every kind of overlap: before, between, after.
const PARTS_MAX: u64 = 3;
/// Most bytes in a row that a misread gives wrongly.
const MISREAD_BYTES_MAX: u64 = 64;
/// What the buffer of a failed read holds.
const FAILED_READ: u8 = 0xEE;
/// The largest disk: far above any test, far below overflow.
pub(super) const DISK_BYTES_MAX: u64 = 1 << 50;

/// Names a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DiskId(usize);

/// What an operation does.
#[derive(Debug)]
pub(crate) enum Command {
    Read { offset: u64, buf: Buf },
    Write { offset: u64, data: View, durable: bool },
    Zero { offset: u64, len: u64 },
    Sync,
}

#[derive(Debug)]
enum Effect {
    Read {
        offset: u64,
        buf: Buf,
    },
    Write {
        offset: u64,
        source: Source,
        durable: bool,
    },
    /// Makes stable what was written by writes before `horizon` that were not `open` when the flush began.
    Sync {
        horizon: u64,
        open: BTreeSet<u64>,
    },
}

#[derive(Debug)]
struct Part {
    start: u64,
    len: u64,
    done: bool,
}

/// What a dropped future leaves to be told of the result.
pub(super) type Heir = Box<dyn FnOnce(io::Result<()>)>;

/// What [`Disks::abandon`] found.
pub(super) enum Abandoned {
    /// The operation goes on.
    GoesOn,
    /// It had ended, unnoticed.
    Ended(io::Result<()>),
    /// There is none any more.
    Gone,
}

struct Op {
    disk: DiskId,
    effect: Effect,
    parts: Vec<Part>,
    fails: bool,
    misread: bool,
    ended: bool,
    abandoned: bool,
    /// Told of the end, for somebody who no longer waits; holds what was held for the operation until then.
    heir: Option<Heir>,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Disk {
    node: NodeId,
    path: Rc<Path>,
    size: u64,
    config: DiskConfig,
    medium: Medium,
    /// Dead when the last handle of the exclusive opener is gone.
    lock: Weak<()>,
}

/// All that a disk held at some time ([`World::image`](super::World::image)).
#[derive(Debug)]
pub struct DiskImage(Medium);

/// All disks.
#[derive(Default)]
pub(super) struct Disks {
    disks: Vec<Disk>,
    by_path: BTreeMap<(NodeId, PathBuf), DiskId>,
    ops: BTreeMap<OpId, Op>,
    sequence: u64,
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// Cuts `len` bytes at `offset` at sector boundaries into at most [`PARTS_MAX`] parts, in random order.
fn cut(core: &mut Core, offset: u64, len: u64) -> Vec<Part> {
    let rng = &mut core.rngs.disks;
    let mut cuts = vec![0, len];
    if len > SECTOR as u64 && rng.coin() {
        for _ in 0..=rng.below(PARTS_MAX - 1) {
            let at = (offset + rng.below(len)) / SECTOR as u64 * SECTOR as u64;
            cuts.push(at.saturating_sub(offset));
        }
    }
    cuts.sort_unstable();
    cuts.dedup();
    let mut parts: Vec<Part> =
        cuts.windows(2).map(|cut| Part { start: cut[0], len: cut[1] - cut[0], done: false }).collect();
    for i in (1..parts.len()).rev() {
        parts.swap(i, rng.index(i + 1));
    }
    parts
}

impl Disks {
    /// Makes a disk of zeroes, or changes size and dials of one that is there.
    pub(super) fn create(&mut self, node: NodeId, path: &Path, size: u64, config: DiskConfig) -> io::Result<DiskId> {
        if size > DISK_BYTES_MAX {
            let message = format!("a simulated disk of {size} bytes is too large: at most {DISK_BYTES_MAX}");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        if let Some(id) = self.find(node, path) {
            let disk = &mut self.disks[id.0];
            (disk.size, disk.config) = (size, config);
            return Ok(id);
        }
        let id = DiskId(self.disks.len());
        self.by_path.insert((node, path.to_path_buf()), id);
        let path = path.into();
        self.disks.push(Disk { node, path, size, config, medium: Medium::default(), lock: Weak::new() });
        Ok(id)
    }

    /// The disk at `path` of `node`.
    pub(super) fn find(&self, node: NodeId, path: &Path) -> Option<DiskId> {
        self.by_path.get(&(node, path.to_path_buf())).copied()
    }

    /// The size in bytes.
    pub(super) fn size(&self, disk: DiskId) -> u64 {
        self.disks[disk.0].size
    }

    /// The dials of a disk.
    pub(super) fn config_mut(&mut self, disk: DiskId) -> &mut DiskConfig {
        &mut self.disks[disk.0].config
    }

    /// The dials of every disk.
    pub(super) fn configs_mut(&mut self) -> impl Iterator<Item = &mut DiskConfig> {
        self.disks.iter_mut().map(|disk| &mut disk.config)
    }

    /// Gives the disk to one opener until `lock` has no strong reference left.
    pub(super) fn lock(&mut self, disk: DiskId, lock: Weak<()>) -> io::Result<()> {
        let disk = &mut self.disks[disk.0];
        if disk.lock.strong_count() > 0 {
            let message = format!("{} is in use: another process or opener holds it", disk.path.display());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, message));
        }
        disk.lock = lock;
        Ok(())
    }

    /// The bytes a reader would see now.
    pub(super) fn peek(&self, disk: DiskId, offset: u64, into: &mut [u8]) {
        self.disks[disk.0].medium.read(offset, into);
    }

    /// Starts an operation.
    pub(super) fn submit(&mut self, core: &mut Core, disk: DiskId, command: Command) -> io::Result<OpId> {
        self.sequence += 1;
        let id = OpId(self.sequence);
        let (effect, parts) = self.begin(core, disk, command)?;
        let Disk { config, node, path, .. } = &self.disks[disk.0];
        let ppm = if matches!(effect, Effect::Read { .. }) { config.read_error_ppm } else { config.write_error_ppm };
        let fails = core.rngs.disks.happens(ppm);
        let may_misread = matches!(effect, Effect::Read { .. }) && config.misread_ppm > 0;
        let misread = may_misread && core.rngs.disks.happens(config.misread_ppm);
        let duration = core.rngs.disks.nanos(&config.delay);
        let (what, offset, len, stable) = match &effect {
            Effect::Read { offset, buf } => ("read", *offset, buf.len() as u64, false),
            Effect::Write { offset, source: source @ Source::Zeroes(_), durable } => {
                ("zero", *offset, source.len(), *durable)
            }
            Effect::Write { offset, source, durable } => ("write", *offset, source.len(), *durable),
            Effect::Sync { .. } => ("sync", 0, 0, false),
        };
        core.note_frequent(*node, Frequent::Begins { op: id.0, path: path.clone(), what, offset, len, stable });
        let mut times: Vec<u64> = parts.iter().map(|_| core.rngs.disks.below(duration + 1)).collect();
        times.sort_unstable();
        for (part, at) in times.into_iter().enumerate() {
            core.after(at, Event::DiskPart { op: id, part });
        }
        core.after(duration, Event::DiskDone(id));
        self.ops.insert(
            id,
            Op { disk, effect, parts, fails, misread, ended: false, abandoned: false, heir: None, waker: None },
        );
        Ok(id)
    }

    fn begin(&mut self, core: &mut Core, id: DiskId, command: Command) -> io::Result<(Effect, Vec<Part>)> {
        let disk = &mut self.disks[id.0];
        let end = |offset: u64, len: u64| {
            let end = offset.checked_add(len).filter(|end| *end <= DISK_BYTES_MAX);
            end.ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, format!("{offset}+{len} is out of bounds")))
        };
        Ok(match command {
            Command::Read { offset, buf } => {
                let len = buf.len() as u64;
                let parts = cut(core, offset, len);
                (Effect::Read { offset, buf }, parts)
            }
            Command::Write { offset, data, durable } => {
                let len = data.len() as u64;
                disk.size = disk.size.max(end(offset, len)?);
                let durable = durable || !disk.config.volatile_cache;
                (Effect::Write { offset, source: Source::Bytes(data), durable }, cut(core, offset, len))
            }
            Command::Zero { offset, len } => {
                // Like fallocate with KEEP_SIZE: what lies beyond the end is not there to be zeroed.
                let len = end(offset, len)?.min(disk.size).saturating_sub(offset);
                let durable = !disk.config.volatile_cache;
                (Effect::Write { offset, source: Source::Zeroes(len), durable }, cut(core, offset, len))
            }
            Command::Sync => {
                let open = self.ops.iter().filter(|(_, op)| op.disk == id && !op.ended).map(|(op, _)| op.0).collect();
                (Effect::Sync { horizon: self.sequence, open }, Vec::new())
            }
        })
    }

    /// [`Event::DiskPart`].
    pub(super) fn part(&mut self, core: &mut Core, id: OpId, part: usize) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        // A failed write has changed some of its sectors.
        if op.fails && core.rngs.disks.coin() {
            op.parts[part].done = true;
            return;
        }
        op.apply(id, part, &mut self.disks[op.disk.0].medium);
    }

    /// [`Event::DiskDone`].
    pub(super) fn done(&mut self, core: &mut Core, id: OpId) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        let Disk { medium, node, .. } = &mut self.disks[op.disk.0];
        op.ended = true;
        if let (true, Effect::Read { buf, .. }) = (op.fails, &mut op.effect) {
            // What a failed read leaves is nobody's data; above all not what a recycled buffer held, which is no
            // function of the seed.
            buf.fill(FAILED_READ);
        }
        if let (true, Effect::Read { buf, .. }) = (op.misread && !op.fails, &mut op.effect) {
            let at = core.rngs.disks.below(buf.len().max(1) as u64) as usize;
            let len = core.rngs.disks.below(MISREAD_BYTES_MAX) as usize + 1;
            buf[at..].iter_mut().take(len).for_each(|byte| *byte ^= 1 + core.rngs.disks.below(255) as u8);
        }
        let outcome = if op.fails { "EIO" } else { "ok" };
        let hash = if let Effect::Read { buf, .. } = &op.effect { Some(hash_bytes(0, buf)) } else { None };
        core.note_frequent(*node, Frequent::Ends { op: id.0, outcome, hash });
        match &op.effect {
            Effect::Write { offset, source, durable: true } if !op.fails => {
                medium.settle_bytes(*offset, source.len(), |write| write == id.0);
            }
            Effect::Sync { horizon, open } if !op.fails => {
                medium.settle_all(|write| write < *horizon && !open.contains(&write));
            }
            _ => {}
        }
        core.wake(&mut op.waker);
        if op.abandoned {
            let result = op.result();
            if let Some(heir) = op.heir.take() {
                core.later.push(Box::new(move || heir(result)));
            }
            self.ops.remove(&id);
        }
    }

    /// The outcome of an operation, and the buffer of a read. EIO for one that a crash has ended.
    pub(super) fn poll(&mut self, id: OpId, waker: &Waker) -> Poll<(io::Result<()>, Option<Buf>)> {
        match self.ops.get_mut(&id) {
            None => Poll::Ready((Err(eio()), None)),
            Some(op) if !op.ended => {
                op.waker = Some(waker.clone());
                Poll::Pending
            }
            Some(_) => {
                let Some(op) = self.ops.remove(&id) else { return Poll::Ready((Err(eio()), None)) };
                let result = op.result();
                let buf = if let Effect::Read { buf, .. } = op.effect { Some(buf) } else { None };
                Poll::Ready((result, buf))
            }
        }
    }

    /// Nobody waits for the operation any more; a read ends here, a write goes on and keeps its record.
    pub(super) fn abandon(&mut self, id: OpId) -> Abandoned {
        let Some(op) = self.ops.get_mut(&id) else { return Abandoned::Gone };
        if !op.ended && !matches!(op.effect, Effect::Read { .. }) {
            op.waker = None;
            op.abandoned = true;
            return Abandoned::GoesOn;
        }
        let left = if op.ended { Abandoned::Ended(op.result()) } else { Abandoned::Gone };
        self.ops.remove(&id);
        left
    }

    /// Tells `heir` when an operation that goes on has ended.
    pub(super) fn entrust(&mut self, id: OpId, heir: Heir) {
        if let Some(op) = self.ops.get_mut(&id) {
            op.heir = Some(heir);
        }
    }

    /// Power is lost on `node`.
    pub(super) fn crash(&mut self, core: &mut Core, node: NodeId) {
        let ids: Vec<OpId> =
            self.ops.iter().filter(|(_, op)| self.disks[op.disk.0].node == node).map(|(id, _)| *id).collect();
        for id in ids {
            let Some(mut op) = self.ops.remove(&id) else { continue };
            if let Some(heir) = op.heir.take() {
                core.later.push(Box::new(move || drop(heir))); // nobody is left to be told
            }
            let Disk { medium, config, .. } = &mut self.disks[op.disk.0];
            for part in 0..op.parts.len() {
                // Not torn: the whole write meets one fate below, so all of it has to be there to meet it.
                if !op.ended && !op.parts[part].done && (!config.torn || core.rngs.disks.coin()) {
                    op.apply(id, part, medium);
                }
            }
        }
        for disk in self.disks.iter_mut().filter(|disk| disk.node == node) {
            disk.lock = Weak::new();
            let sectors = disk.medium.pending_sectors();
            let mut fates = BTreeMap::new();
            let torn = disk.config.torn;
            let rng = &mut core.rngs.disks;
            let mut kept = 0;
            disk.medium.crash(|write, _| {
                let survives = match fates.entry(write).or_insert_with(|| rng.below(if torn { 3 } else { 2 })) {
                    0 => false,
                    1 => true,
                    _ => rng.coin(),
                };
                kept += u64::from(survives);
                survives
            });
            if sectors > 0 {
                let (writes, path) = (fates.len(), disk.path.display());
                core.note(node, format_args!("{path} loses power: {writes} unsynced writes, {kept} sectors survive"));
            }
        }
    }

    /// What the disk holds now, to be put back later.
    pub(super) fn image(&self, disk: DiskId) -> DiskImage {
        DiskImage(self.disks[disk.0].medium.image())
    }

    /// The disk holds again what it held when the image was taken.
    pub(super) fn put_back(&mut self, core: &mut Core, disk: DiskId, image: &DiskImage) {
        let Disk { medium, node, path, .. } = &mut self.disks[disk.0];
        core.note(*node, format_args!("{} is put back to what it was", path.display()));
        *medium = image.0.image();
    }

    /// Flips bits in the range.
    pub(super) fn corrupt(&mut self, core: &mut Core, disk: DiskId, offset: u64, len: u64) {
        let Disk { medium, node, path, .. } = &mut self.disks[disk.0];
        core.note(*node, format_args!("{} is corrupted at {offset}+{len}", path.display()));
        medium.corrupt(offset, len, |byte| *byte ^= 1 + core.rngs.disks.below(255) as u8);
    }
}

impl Op {
    fn result(&self) -> io::Result<()> {
        if self.fails { Err(eio()) } else { Ok(()) }
    }

    /// Lets one part take effect.
    fn apply(&mut self, id: OpId, part: usize, medium: &mut Medium) {
        let Part { start, len, done } = &mut self.parts[part];
        *done = true;
        match &mut self.effect {
            Effect::Read { offset, buf } => {
                medium.read(*offset + *start, &mut buf[*start as usize..(*start + *len) as usize]);
            }
            Effect::Write { offset, source, .. } => {
                medium.write(id.0, *offset + *start, &source.slice(*start..*start + *len));
            }
            Effect::Sync { .. } => {}
        }
    }
}
