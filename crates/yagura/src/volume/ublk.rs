//! A volume as a block device of this machine whose requests this process answers: ublk.
//!
//! The kernel keeps the device, and what waits to be written to it, when the process is gone, and gives it to the process that goes
//! on with the device. That is done only if no other host had the volume meanwhile: the kernel keeps a mark of the attachment's
//! tenure with the device, and in which tenure this machine had a device of the volume last stands in a file that is as short-lived
//! as the device (`/run`). The file is written before the device is made, and removed when the device is gone:
//!
//! | file | device with its mark | what was begun |
//! |---|---|---|
//! | none | none | nothing |
//! | of a tenure | none | a device was to be made, or is deleted: nothing is held |
//! | of a tenure | dead | as above; it is deleted |
//! | of a tenure | live | a process answers, or has ended a moment ago |
//! | of a tenure | quiesced | the process has ended, and requests wait |
//! | lost | any | in the same tenure it is gone on with, and written anew; in another one nobody answers it, and it is left |
//!
//! Invariant: what the kernel can't be asked for it may hold. Such a device counts as held, and the file is kept.

#[cfg(test)]
pub(super) mod tests;

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use ::ublk::{Control, DeviceInfo, Error, Figures, Server, Shape, State};
use device::{AnyNamespace, Namespace, Writability};
use engine::time;
use engine::ublk::{Queue, sync_block_device};
use uuid::Uuid;

use super::kernel::is_there;
use super::words::name;
use crate::aside::aside;
use crate::exit::Failure;

/// How long the kernel may take to notice that a process has ended, to make a device's files, and to go on with a device. Chosen:
/// many times what it takes on a busy machine.
const DEVICE_TIME: Duration = Duration::from_secs(30);
/// How long a deletion is waited for that ends when nobody has the block device open. Chosen: many times what it takes where nobody
/// has.
const DELETE_TIME: Duration = Duration::from_secs(2);
/// How often it is asked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where it stands in which tenure this machine had devices last.
const RECORDS: &str = "/run/yagura/ublk";

/// By what the device of a tenure is known: 62 of its bits are chance.
fn mark(tenure: Uuid) -> u64 {
    tenure.as_u128() as u64
}

fn failed(error: Error) -> Failure {
    Failure::refused(format!("--device=ublk: {error}"))
}

fn late(what: &str) -> Failure {
    Failure::unavailable(format!("--device=ublk: {what} within {DEVICE_TIME:?}"))
}

fn unserved(id: u32, error: io::Error) -> Failure {
    Failure::from(error).during(format!("--device=ublk: the file of device {id}"))
}

/// What the kernel has of a volume. All of it blocks.
#[derive(Clone)]
struct Kernel {
    control: Control,
    volume: u128,
    class: PathBuf,
    dev: PathBuf,
    records: PathBuf,
}

impl Kernel {
    fn record(&self) -> PathBuf {
        self.records.join(name(self.volume))
    }

    /// The tenure in which the last device was made.
    fn recorded(&self) -> Option<Uuid> {
        Uuid::try_parse(fs::read_to_string(self.record()).ok()?.trim()).ok()
    }

    fn write_record(&self, tenure: Uuid) -> Result<(), Failure> {
        let written = fs::create_dir_all(&self.records).and_then(|()| fs::write(self.record(), tenure.to_string()));
        written.map_err(|error| Failure::from(error).during(self.record().display()))
    }

    fn of(&self, tenure: Uuid) -> Result<Option<DeviceInfo>, Error> {
        self.control.find(&self.class, mark(tenure))
    }

    /// The device of a tenure, if the kernel holds something for it.
    fn held_of(&self, tenure: Uuid) -> Result<Option<Held>, Error> {
        let found = self.of(tenure)?.filter(|info| info.state() != State::Dead);
        Ok(found.map(|info| Held { tenure, id: info.id }))
    }

    /// What the kernel holds: of this process's tenure, and of the recorded one.
    fn held(&self, own: Option<Uuid>) -> Result<Vec<Held>, Error> {
        let recorded = self.recorded().filter(|recorded| own != Some(*recorded));
        let held = own.into_iter().chain(recorded).map(|tenure| self.held_of(tenure));
        held.filter_map(Result::transpose).collect()
    }

    /// Has the kernel give a device up; what its users have under way fails, where no process answers it.
    fn stop(&self, id: u32) {
        match self.control.stop(id) {
            Ok(()) | Err(Error::Gone(_)) => {}
            Err(error) => tracing::warn!(id, %error, "the kernel keeps its device"),
        }
    }

    /// After [`Kernel::stop`], and when this process has closed it. The file is kept where it is another device's by now, or the
    /// device is not gone.
    fn delete(&self, Held { tenure, id }: Held) {
        let deleted = match self.control.delete(id) {
            Ok(false) => self.delete_and_wait(id),
            deleted => deleted.map(drop),
        };
        if let Err(error) = deleted {
            tracing::warn!(id, %error, "a device that does nothing any more is left");
        }
        if self.recorded() == Some(tenure)
            && matches!(self.held_of(tenure), Ok(None))
            && let Err(error) = fs::remove_file(self.record())
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, "a file that says nothing any more is left");
        }
    }

    /// What has the block device open keeps the driver from ending the command, for ever perhaps: that is left to a thread, which
    /// ends with the process at the latest.
    fn delete_and_wait(&self, id: u32) -> Result<(), Error> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let control = self.control.clone();
        let thread = thread::Builder::new().name("ublk-delete".into());
        let begun = thread.spawn(move || {
            // Nobody listens any more where it took long.
            let _ = sender.send(control.delete_and_wait(id));
        });
        begun.map_err(|error| Error::Failed("to delete the device", error))?;
        receiver.recv_timeout(DELETE_TIME).unwrap_or_else(|_| {
            tracing::info!(id, "the device is gone when nobody has it open any more");
            Ok(())
        })
    }
}

/// A device that the kernel holds something for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    tenure: Uuid,
    id: u32,
}

/// The device of a volume, whether there is one or not.
pub struct Device {
    kernel: Kernel,
    figures: Arc<Figures>,
    /// In which this process has the volume, once that is known: the file may be lost.
    tenure: Cell<Option<Uuid>>,
    /// How long the kernel is waited for.
    patience: Duration,
    /// As long as this process answers it.
    server: RefCell<Option<Server>>,
}

impl Device {
    /// Of a volume, on a machine whose kernel can have it.
    pub fn new(volume: u128) -> Result<Device, Failure> {
        let control = Control::open(Path::new("/dev/ublk-control")).map_err(failed)?;
        let class = "/sys/class/ublk-char".into();
        Ok(Device::of(Kernel { control, volume, class, dev: "/dev".into(), records: RECORDS.into() }))
    }

    /// Of a volume of which no device is asked for; none where this machine has none, as far as can be told.
    pub fn left(volume: u128) -> Result<Option<Device>, Failure> {
        match Device::new(volume) {
            Err(_) if !Path::new(RECORDS).join(name(volume)).exists() => Ok(None),
            opened => opened.map(Some),
        }
    }

    fn of(kernel: Kernel) -> Device {
        let (figures, tenure, server) = (Arc::default(), Cell::default(), RefCell::default());
        Device { kernel, figures, tenure, patience: DEVICE_TIME, server }
    }

    /// In which tenure this process has the volume.
    pub fn enter(&self, tenure: Uuid) {
        self.tenure.set(Some(tenure));
    }

    fn held(&self) -> Result<Vec<Held>, Error> {
        self.kernel.held(self.tenure.get())
    }

    /// What is counted of its requests.
    pub fn figures(&self) -> Arc<Figures> {
        self.figures.clone()
    }

    /// Whether the kernel holds something for the volume, or may do so.
    pub fn is_connected(&self) -> bool {
        match self.held() {
            Ok(held) => !held.is_empty(),
            Err(error) => {
                tracing::warn!(%error, "the kernel does not tell of its devices");
                true
            }
        }
    }

    /// Whether what the kernel holds is of that tenure, if it holds something.
    pub fn is_of(&self, tenure: Uuid) -> Result<bool, Failure> {
        let held = self.held().map_err(failed)?;
        Ok(held.iter().all(|held| held.tenure == tenure))
    }

    /// Gives up what the kernel holds; what users of the device have under way fails.
    pub fn disconnect(&self) -> Result<(), Failure> {
        for held in self.held().map_err(failed)? {
            self.kernel.stop(held.id);
            self.kernel.delete(held);
        }
        Ok(())
    }

    async fn aside<T: Send + 'static>(&self, work: impl FnOnce(&Kernel) -> T + Send + 'static) -> Result<T, Failure> {
        let kernel = self.kernel.clone();
        aside(move || work(&kernel)).await
    }

    /// Goes on with the kernel's device of that tenure, or has the kernel make one; gives the block device.
    pub async fn connected(&self, namespace: &AnyNamespace, tenure: Uuid) -> Result<PathBuf, Failure> {
        self.enter(tenure);
        let former = time::timeout(self.patience, self.former(tenure)).await;
        let former = former.map_err(|_| late("the process that has the device does not end"))??;
        let id = match former {
            Some(info) => self.go_on(namespace, &info, tenure).await?,
            None => self.make(namespace, tenure).await?,
        };
        let path = self.kernel.dev.join(format!("ublkb{id}"));
        let there = async {
            while !is_there(&path) {
                time::sleep(LOOK_EVERY).await;
            }
        };
        time::timeout(self.patience, there).await.map_err(|_| late("there is no block device"))?;
        Ok(path)
    }

    /// A device of that tenure, which waits for a server.
    async fn former(&self, tenure: Uuid) -> Result<Option<DeviceInfo>, Failure> {
        loop {
            let look = move |kernel: &Kernel| {
                let Some(info) = kernel.of(tenure)? else { return Ok(Some(None)) };
                if info.state() == State::Dead {
                    kernel.delete(Held { tenure, id: info.id });
                    return Ok(None);
                }
                if !info.is_served_so() {
                    return Err(Error::Busy("another version of this program has made the device"));
                }
                match kernel.control.begin_recovery(info.id) {
                    Ok(()) => Ok(Some(Some(info))),
                    // Its process has not ended, or it goes at this moment.
                    Err(Error::Busy(_) | Error::Gone(_)) => Ok(None),
                    Err(error) => Err(error),
                }
            };
            if let Some(found) = self.aside(look).await?.map_err(failed)? {
                return Ok(found);
            }
            time::sleep(LOOK_EVERY).await;
        }
    }

    /// Answers a device's requests from now on.
    async fn serve(&self, namespace: &AnyNamespace, info: &DeviceInfo) -> io::Result<()> {
        let path = self.kernel.dev.join(format!("ublkc{}", info.id));
        let until = time::now() + self.patience;
        let queue = loop {
            match Queue::open(&path, info.depth) {
                // The file comes a moment after the device; whoever looked at it goes.
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ResourceBusy) && time::now() < until =>
                {
                    time::sleep(LOOK_EVERY).await;
                }
                opened => break opened?,
            }
        };
        *self.server.borrow_mut() = Some(Server::begin(queue, info.depth, namespace, &self.figures));
        Ok(())
    }

    async fn go_on(&self, namespace: &AnyNamespace, info: &DeviceInfo, tenure: Uuid) -> Result<u32, Failure> {
        let id = info.id;
        self.kernel.write_record(tenure)?;
        match self.serve(namespace, info).await {
            Ok(()) => {
                let ended = self.aside(move |kernel| kernel.control.end_recovery(id));
                if let Ok(ended) = time::timeout(self.patience, ended).await {
                    return ended?.map_err(failed).map(|()| id);
                }
            }
            // Its memory, or the file, is another process's still.
            Err(error) if matches!(error.kind(), ErrorKind::ResourceBusy | ErrorKind::InvalidInput) => {}
            Err(error) => return Err(unserved(id, error)),
        }
        // Another process may have been quicker.
        let found = self.aside(move |kernel| kernel.of(tenure)).await?.map_err(failed)?;
        if found.is_some_and(|info| info.state() == State::Live) {
            self.leave();
            return Err(failed(Error::Busy("to go on with the device")));
        }
        // A process died in the midst of going on: the kernel gives such a device to nobody. Its users had better be told.
        self.give_up(Held { tenure, id }).await?;
        let why = "the kernel does not go on with the device, which is given up: what it held is lost";
        Err(Failure::unavailable(format!("--device=ublk: {why}")))
    }

    async fn make(&self, namespace: &AnyNamespace, tenure: Uuid) -> Result<u32, Failure> {
        let is_read_only = namespace.writability() != Writability::Writable;
        let shape = Shape::of(namespace.info(), is_read_only)
            .ok_or_else(|| Failure::refused("--device=ublk: the kernel takes blocks of at most 4096 bytes"))?;
        self.kernel.write_record(tenure)?;
        let info = self.aside(move |kernel| kernel.control.add(mark(tenure), &shape)).await?.map_err(failed)?;
        let id = info.id;
        let started = match self.serve(namespace, &info).await {
            Ok(()) => self.aside(move |kernel| kernel.control.start(id)).await?.map_err(failed),
            Err(error) => Err(unserved(id, error)),
        };
        if let Err(failure) = started {
            if let Err(other) = self.give_up(Held { tenure, id }).await {
                tracing::warn!("the kernel's device: {}", other.sentence());
            }
            return Err(failure);
        }
        // Again: a process of this host that has lost the volume in this tenure removes the file when its own device is gone.
        self.kernel.write_record(tenure)?;
        Ok(id)
    }

    /// Stops a device while its requests are answered, and deletes it.
    async fn give_up(&self, held: Held) -> Result<(), Failure> {
        self.aside(move |kernel| kernel.stop(held.id)).await?;
        let server = self.server.take();
        if let Some(server) = server
            && time::timeout(self.patience, server.ended()).await.is_err()
        {
            tracing::warn!(id = held.id, "requests of a device that was stopped are left");
        }
        self.aside(move |kernel| kernel.delete(held)).await
    }

    /// Whether this process answers the device's requests, and all of them.
    pub fn is_answered(&self) -> bool {
        self.server.borrow().as_ref().is_some_and(|server| !server.is_over())
    }

    /// Ends when this process has answered the device, and does not do so any more: somebody else has stopped the device.
    pub async fn ended(&self) {
        while !self.server.borrow().as_ref().is_some_and(Server::is_over) {
            time::sleep(LOOK_EVERY * 10).await;
        }
    }

    /// Has the kernel give the device up, and what waits to be written to it be written before, where that can be: `is_lost` says
    /// that it can't. A device that this process has not come to answer is left to the next one, unless it is lost.
    pub async fn disconnected(&self, is_lost: bool) {
        let is_answered = self.is_answered();
        let held = self.held().unwrap_or_else(|error| {
            tracing::warn!(%error, "the kernel does not tell of its devices, which it may keep");
            Vec::new()
        });
        let Some(held) = held.first().copied().filter(|_| is_answered || is_lost) else { return };
        if !is_lost {
            let path = self.kernel.dev.join(format!("ublkb{}", held.id));
            let synced = aside(move || sync_block_device(&path)).await;
            if let Err(failure) = synced.and_then(|synced| Ok(synced?)) {
                tracing::warn!("what waited to be written to the kernel's device may be lost: {}", failure.sentence());
            }
        }
        if let Err(failure) = self.give_up(held).await {
            tracing::warn!("the kernel's device: {}", failure.sentence());
        }
    }

    /// Answers no more requests: what the kernel holds waits for the next process.
    pub fn leave(&self) {
        drop(self.server.take());
    }

    /// The volume has grown.
    pub fn grow(&self, namespace: &AnyNamespace) {
        let Some(held) = self.held().ok().and_then(|held| held.first().copied()) else { return };
        let Some(shape) = Shape::of(namespace.info(), false) else { return };
        match self.kernel.control.grow(held.id, &shape) {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!("this kernel's ublk devices don't grow: attach the volume anew to have its new size")
            }
            Err(error) => tracing::warn!(%error, "the kernel's device is as large as it was"),
        }
    }
}
