//! The volumes of a node: staged (attached, formatted where they are blank, mounted once for the node), then published (shown where
//! somebody uses them), and the reverse.
//!
//! Invariants:
//! - Each call does what is still to be done: it may be made again, after a crash between any two of its steps.
//! - A filesystem is made where nothing was ever written, and nowhere else; or where this node has begun to make it, and no other
//!   host has had the volume since. Anything else would destroy what somebody has.
//! - A volume is detached when nothing of it is mounted any more.

mod machine;
mod state;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tonic::Status;

use crate::capability::{Access, Use};
use crate::plane::is_name;

pub use machine::{Device, Free, Machine, MachineError, Shown, Usage};
use state::{Published, State, Step, Store};

/// Volumes of a node, at most. Chosen: a process and a port each.
pub const VOLUMES_MAX: usize = 128;
/// The ports at which volumes are served: below those that the kernel gives to connections by itself (ip_local_port_range), which
/// might be taken when a volume is to be served there again.
const PORTS: RangeInclusive<u16> = 14_420..=14_420 + VOLUMES_MAX as u16 - 1;
/// Paths at which a volume is shown, at most. Chosen: one for each of the containers that a node runs at most, and more.
const PUBLISHED_MAX: usize = 256;

/// A node.
pub struct Node<M> {
    machine: M,
    store: Store,
    /// Volumes of which something is being done.
    busy: Mutex<BTreeSet<String>>,
    /// Volumes of which somebody is finding out how full they are: apart from all else, which does not wait for that.
    measured: Mutex<BTreeSet<String>>,
    /// Held by who chooses a port until that is written down.
    choosing: Mutex<()>,
}

/// The right to do something with a volume, until it is dropped.
struct Turn<'a> {
    busy: &'a Mutex<BTreeSet<String>>,
    volume: &'a str,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        unpoisoned(self.busy).remove(self.volume);
    }
}

fn turn<'a>(busy: &'a Mutex<BTreeSet<String>>, volume: &'a str) -> Result<Turn<'a>, Status> {
    if unpoisoned(busy).insert(volume.to_owned()) {
        return Ok(Turn { busy, volume });
    }
    Err(Status::aborted(format!("something else is being done with volume {volume}: call again")))
}

/// Nothing that panics leaves a set half changed.
fn unpoisoned<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stored(error: io::Error) -> Status {
    Status::internal(format!("what this node knows of its volumes: {error}"))
}

fn done(error: MachineError) -> Status {
    match error {
        MachineError::Lost(why) | MachineError::Refused(why) => Status::failed_precondition(why),
        MachineError::Unavailable(why) => Status::unavailable(why),
        MachineError::Failed(why) => Status::internal(why),
    }
}

/// Of a volume that is attached: the code is one after which an orchestrator unstages what it gives up. After any other the volume
/// would stay with this node.
fn half_done(status: Status) -> Status {
    Status::unavailable(status.message())
}

impl<M: Machine> Node<M> {
    /// With what the folder has of a former process: its volumes are attached again.
    pub fn open(machine: M, folder: &Path) -> io::Result<Node<M>> {
        let store = Store::open(folder)?;
        for State { volume, port, tenure, step, .. } in store.all()? {
            // One that never was attached nobody waits for.
            if step != Step::Attaching {
                machine.resume(&volume, port, tenure.as_deref());
            }
        }
        let (busy, measured) = (Mutex::default(), Mutex::default());
        Ok(Node { machine, store, busy, measured, choosing: Mutex::default() })
    }

    /// Whether this node knows the volume already.
    pub fn knows(&self, volume: &str) -> Result<bool, Status> {
        Ok(self.load(volume)?.is_some())
    }

    /// Attaches a volume and makes it ready to be published.
    pub fn stage(&self, volume: &str, staging: &Path, access: &Access) -> Result<(), Status> {
        let _turn = turn(&self.busy, volume)?;
        let mut state = match self.load(volume)? {
            Some(state) if state.staging != staging || state.access != *access => {
                let how = "is staged on this node already, at another path or to be used otherwise";
                return Err(Status::already_exists(format!("volume {volume} {how}: unstage it first")));
            }
            Some(state) => state,
            None => self.begin(volume, staging, access)?,
        };
        let attached = self.machine.attach(volume, state.port);
        let device = attached
            .map_err(|error| if state.step == Step::Attaching { self.given_up(&state, error) } else { done(error) })?;
        self.attached(&mut state, &device)
            .and_then(|()| self.mounted(&mut state, &device))
            .and_then(|()| self.reached(&mut state, Step::Staged))
            .map_err(half_done)
    }

    /// The volume could not be attached. Nobody unstages what never was staged, so it is forgotten; but not before this host has
    /// nothing of it: a process that was killed, or an answer that was lost, may have left the volume to this host.
    fn given_up(&self, state: &State, error: MachineError) -> Status {
        let detached = match &error {
            MachineError::Lost(_) => Ok(()),
            _ => self.machine.detach(&state.volume, state.port).map_err(done),
        };
        match detached.and_then(|()| self.store.remove(&state.volume).map_err(stored)) {
            Ok(()) => done(error),
            Err(status) => {
                tracing::warn!(volume = state.volume, why = status.message(), "this host may have the volume still");
                half_done(done(error))
            }
        }
    }

    /// The volume is attached. Where another host may have had the volume since it was last, it holds what that host has written:
    /// it is written down before anything else that no filesystem of ours is half made there.
    fn attached(&self, state: &mut State, device: &Device) -> Result<(), Status> {
        if state.tenure.as_ref() == Some(&device.tenure) {
            return Ok(());
        }
        state.tenure = Some(device.tenure.clone());
        if state.step == Step::Formatting {
            state.step = Step::Attaching;
        }
        self.store.save(state).map_err(stored)
    }

    /// The volume is mounted for the node, if it is to be mounted, with a filesystem as large as the device: that may have grown
    /// while nobody had it mounted, and a clone may be larger than what it is made of.
    fn mounted(&self, state: &mut State, device: &Device) -> Result<(), Status> {
        let Access::Mount { filesystem, flags } = state.access.clone() else { return Ok(()) };
        let shown = self.machine.shown(&device.path, &state.staging).map_err(done)?;
        if shown == Shown::Other {
            // Of a device that was given up nothing comes any more but errors.
            self.machine.unmount(&state.staging).map_err(done)?;
        }
        if shown != Shown::Device {
            self.formatted(state, device)?;
            fs::create_dir_all(&state.staging).map_err(stored)?;
            self.machine.mount(&device.path, &state.staging, filesystem, &flags).map_err(done)?;
        }
        if shown == Shown::Device && state.step == Step::Staged || is_closed(&flags) {
            return Ok(());
        }
        self.machine.grow(&device.path, &state.staging, filesystem).map_err(done)
    }

    /// The device has a filesystem.
    fn formatted(&self, state: &mut State, device: &Device) -> Result<(), Status> {
        let Access::Mount { filesystem, .. } = state.access else { return Ok(()) };
        let broke_off = state.step == Step::Formatting;
        if broke_off || self.machine.is_blank(&device.path).map_err(done)? {
            self.reached(state, Step::Formatting)?;
            self.machine.format(&device.path, filesystem).map_err(done)?;
        }
        self.reached(state, Step::Formatted)
    }

    /// Undoes [`Node::stage`].
    pub fn unstage(&self, volume: &str, staging: &Path) -> Result<(), Status> {
        let _turn = turn(&self.busy, volume)?;
        let Some(mut state) = self.load(volume)? else { return self.unmounted(staging) };
        for Published { target, .. } in &state.published {
            if self.machine.is_mounted(target).map_err(done)? {
                let why = format!("volume {volume} is published at {}: unpublish it first", target.display());
                return Err(Status::failed_precondition(why));
            }
        }
        self.unmounted(&state.staging)?;
        if state.step == Step::Formatting {
            // Nobody could tell later that it broke off, and would take it for somebody's data.
            let finished = self
                .machine
                .attach(volume, state.port)
                .map_err(done)
                .and_then(|device| self.attached(&mut state, &device).map(|()| device))
                .and_then(
                    |device| if state.step == Step::Formatting { self.formatted(&mut state, &device) } else { Ok(()) },
                );
            if let Err(status) = finished {
                tracing::warn!(volume, why = status.message(), "a filesystem is half made, and stays so");
            }
        }
        self.machine.detach(volume, state.port).map_err(done)?;
        self.store.remove(volume).map_err(stored)
    }

    /// Shows a staged volume at a path.
    pub fn publish(&self, volume: &str, staging: &Path, target: &Path, wanted: &Use) -> Result<(), Status> {
        let _turn = turn(&self.busy, volume)?;
        let refused = |why: &str| Err(Status::failed_precondition(format!("volume {volume} {why}")));
        let state = self.load(volume)?.filter(|state| state.step == Step::Staged && state.staging == staging);
        let Some(mut state) = state else { return refused("is not staged there") };
        let is_block = wanted.access == Access::Block;
        if is_block != (state.access == Access::Block) {
            return refused("is staged to be used otherwise");
        }
        // A mount that is closed to writes closes a folder; who opens a device writes to it all the same.
        if is_block && wanted.is_read_only {
            return refused("is a block device, which can't be shown to be read alone: publish it as a filesystem");
        }
        let device = self.machine.device(volume).map_err(done)?.path;
        if !is_block && self.machine.shown(&device, staging).map_err(done)? != Shown::Device {
            return refused("is not mounted any more: stage it again");
        }
        if wanted.is_single && state.published.iter().any(|published| published.target != target) {
            return refused("is published elsewhere, and meant for one user alone");
        }
        let published = Published { target: target.to_owned(), is_read_only: wanted.is_read_only };
        let shown = self.machine.shown(&device, target).map_err(done)?;
        match state.published.iter().find(|published| published.target == target) {
            None if shown == Shown::Other => return refused("can't be shown where something else is"),
            Some(present) if *present != published => {
                return Err(Status::already_exists(format!("volume {volume} is published there otherwise")));
            }
            Some(_) => {}
            None if state.published.len() >= PUBLISHED_MAX => {
                return refused("is published at as many paths as may be");
            }
            None => {
                state.published.push(published);
                self.store.save(&state).map_err(stored)?;
            }
        }
        if shown == Shown::Other {
            self.machine.unmount(target).map_err(done)?;
        }
        if shown != Shown::Device {
            place(target, is_block).map_err(|error| Status::internal(format!("{}: {error}", target.display())))?;
        }
        let source = if is_block { &device } else { staging };
        self.machine.bind(source, target, wanted.is_read_only).map_err(done)
    }

    /// Undoes [`Node::publish`].
    pub fn unpublish(&self, volume: &str, target: &Path) -> Result<(), Status> {
        let _turn = turn(&self.busy, volume)?;
        let Some(mut state) = self.load(volume)? else { return Ok(()) };
        // Any other path is somebody else's: another volume's, under another turn, or none of ours at all.
        if state.published.iter().all(|published| published.target != target) {
            return Ok(());
        }
        self.unmounted(target)?;
        remove(target).map_err(|error| Status::internal(format!("{}: {error}", target.display())))?;
        state.published.retain(|published| published.target != target);
        self.store.save(&state).map_err(stored)
    }

    /// How full a volume is that is shown there.
    pub fn usage(&self, volume: &str, path: &Path) -> Result<Usage, Status> {
        let _turn = turn(&self.measured, volume)?;
        self.shown_at(volume, path)?;
        if !self.machine.is_mounted(path).map_err(done)? {
            return Err(not_at(volume, path));
        }
        self.machine.usage(path).map_err(done)
    }

    /// Makes what a volume is used as so large as the volume, which has that many bytes. The answer is the device's size.
    pub fn expand(&self, volume: &str, path: &Path, bytes: u64) -> Result<u64, Status> {
        let _turn = turn(&self.busy, volume)?;
        let state = match self.load(volume)? {
            // Of a block device any path will do: orchestrators don't agree on which.
            Some(state) if state.access == Access::Block => state,
            _ => self.shown_at(volume, path)?,
        };
        let device = self.machine.device(volume).map_err(done)?.path;
        let has = self.machine.size(&device, bytes).map_err(done)?;
        // A filesystem would be as large as the device is by now, and nobody would call again.
        if has < bytes {
            let why = format!("volume {volume} has {bytes} bytes, of which the kernel shows {has} yet: call again");
            return Err(Status::unavailable(why));
        }
        let Access::Mount { filesystem, flags } = &state.access else { return Ok(has) };
        let refused = |why: &str| Err(Status::failed_precondition(format!("volume {volume} {why}")));
        if is_closed(flags) {
            return refused("is mounted to be read alone: its filesystem does not grow");
        }
        if self.machine.shown(&device, &state.staging).map_err(done)? != Shown::Device {
            return refused("is not mounted any more: stage it again");
        }
        self.machine.grow(&device, &state.staging, *filesystem).map_err(done)?;
        Ok(has)
    }

    /// What is known of a volume that was staged or published there.
    fn shown_at(&self, volume: &str, path: &Path) -> Result<State, Status> {
        let is_there = |state: &State| state.published.iter().any(|published| published.target == path);
        let state = self.load(volume)?.filter(|state| state.staging == path || is_there(state));
        state.ok_or_else(|| not_at(volume, path))
    }

    fn load(&self, volume: &str) -> Result<Option<State>, Status> {
        if is_name(volume) { self.store.load(volume).map_err(stored) } else { Ok(None) }
    }

    /// Writes down a volume that is new here, with a port that no other has and nobody listens at.
    fn begin(&self, volume: &str, staging: &Path, access: &Access) -> Result<State, Status> {
        if !is_name(volume) {
            return Err(Status::not_found(format!("there is no volume {volume}")));
        }
        let _chosen = unpoisoned(&self.choosing);
        let taken = self.store.ports().map_err(stored)?;
        let is_free = |port: &u16| !taken.contains(port) && std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let port = PORTS.into_iter().find(is_free).ok_or_else(|| {
            Status::resource_exhausted(format!("this node has {} volumes, or their ports are taken", taken.len()))
        })?;
        let state = State::new(volume, staging, port, access);
        self.store.save(&state).map_err(stored)?;
        Ok(state)
    }

    fn reached(&self, state: &mut State, step: Step) -> Result<(), Status> {
        if state.step != step {
            state.step = step;
            self.store.save(state).map_err(stored)?;
        }
        Ok(())
    }

    fn unmounted(&self, target: &Path) -> Result<(), Status> {
        if self.machine.is_mounted(target).map_err(done)? {
            self.machine.unmount(target).map_err(done)?;
        }
        Ok(())
    }
}

fn not_at(volume: &str, path: &Path) -> Status {
    Status::not_found(format!("volume {volume} is not at {}", path.display()))
}

/// Whether nothing can be written to what is mounted with these options.
fn is_closed(flags: &[String]) -> bool {
    flags.iter().flat_map(|flag| flag.split(',')).any(|option| option == "ro")
}

/// What something is mounted on has to be there before.
fn place(target: &Path, is_block: bool) -> io::Result<()> {
    if !is_block {
        return fs::create_dir_all(target);
    }
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::OpenOptions::new().create(true).append(true).open(target).map(drop)
}

/// Removes what [`place`] has made. What is in a folder that is no mount any more is not ours.
fn remove(target: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => fs::remove_dir(target),
        Ok(_) => fs::remove_file(target),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
