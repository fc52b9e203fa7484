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
//! | lost | any | in the same tenure it is gone on with; in another one nobody answers it, and it is left |

use std::cell::RefCell;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
/// How often it is asked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

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

    /// The device of the recorded tenure, if the kernel holds something for it.
    fn held(&self) -> Option<(Uuid, DeviceInfo)> {
        let tenure = self.recorded()?;
        match self.of(tenure) {
            Ok(found) => found.filter(|info| info.state() != State::Dead).map(|info| (tenure, info)),
            Err(error) => {
                tracing::warn!(%error, "the kernel does not tell of its devices");
                None
            }
        }
    }

    /// Has the kernel give a device up; what its users have under way fails, where no process answers it.
    fn stop(&self, id: u32) {
        match self.control.stop(id) {
            Ok(()) | Err(Error::Gone(_)) => {}
            Err(error) => tracing::warn!(id, %error, "the kernel keeps its device"),
        }
    }

    /// After [`Kernel::stop`], and when this process has closed it.
    fn delete(&self, id: u32) {
        if let Err(error) = self.control.delete(id) {
            tracing::warn!(id, %error, "a device that does nothing any more is left");
        }
        if self.held().is_none()
            && let Err(error) = fs::remove_file(self.record())
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, "a file that says nothing any more is left");
        }
    }
}

/// The device of a volume, whether there is one or not.
pub struct Device {
    kernel: Kernel,
    figures: Arc<Figures>,
    /// As long as this process answers it.
    server: RefCell<Option<Server>>,
}

impl Device {
    /// Of a volume, on a machine whose kernel can have it.
    pub fn new(volume: u128) -> Result<Device, Failure> {
        let control = Control::open(Path::new("/dev/ublk-control")).map_err(failed)?;
        let (class, dev, records) = ("/sys/class/ublk-char".into(), "/dev".into(), "/run/yagura/ublk".into());
        Ok(Device::of(Kernel { control, volume, class, dev, records }))
    }

    fn of(kernel: Kernel) -> Device {
        Device { kernel, figures: Arc::default(), server: RefCell::default() }
    }

    /// What is counted of its requests.
    pub fn figures(&self) -> Arc<Figures> {
        self.figures.clone()
    }

    /// Whether the kernel holds something for the volume.
    pub fn is_connected(&self) -> bool {
        self.kernel.held().is_some()
    }

    /// Whether what the kernel holds is of that tenure, if it holds something.
    pub fn is_of(&self, tenure: Uuid) -> bool {
        self.kernel.held().is_none_or(|(held, _)| held == tenure)
    }

    /// Gives up what the kernel holds; what users of the device have under way fails.
    pub fn disconnect(&self) {
        if let Some((_, info)) = self.kernel.held() {
            self.kernel.stop(info.id);
            self.kernel.delete(info.id);
        }
    }

    async fn aside<T: Send + 'static>(&self, work: impl FnOnce(&Kernel) -> T + Send + 'static) -> Result<T, Failure> {
        let kernel = self.kernel.clone();
        aside(move || work(&kernel)).await
    }

    /// Goes on with the kernel's device of that tenure, or has the kernel make one; gives the block device.
    pub async fn connected(&self, namespace: &AnyNamespace, tenure: Uuid) -> Result<PathBuf, Failure> {
        let former = time::timeout(DEVICE_TIME, self.former(tenure)).await;
        let former = former.map_err(|_| late("the process that has the device does not end"))??;
        let id = match former {
            Some(info) => self.go_on(namespace, &info).await?,
            None => self.make(namespace, tenure).await?,
        };
        let path = self.kernel.dev.join(format!("ublkb{id}"));
        let there = async {
            while !is_there(&path) {
                time::sleep(LOOK_EVERY).await;
            }
        };
        time::timeout(DEVICE_TIME, there).await.map_err(|_| late("there is no block device"))?;
        Ok(path)
    }

    /// A device of that tenure, which waits for a server.
    async fn former(&self, tenure: Uuid) -> Result<Option<DeviceInfo>, Failure> {
        loop {
            let look = move |kernel: &Kernel| {
                let Some(info) = kernel.of(tenure)? else { return Ok(Some(None)) };
                if info.state() == State::Dead {
                    kernel.delete(info.id);
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
    async fn serve(&self, namespace: &AnyNamespace, info: &DeviceInfo) -> Result<(), Failure> {
        let path = self.kernel.dev.join(format!("ublkc{}", info.id));
        let opened = async {
            loop {
                match Queue::open(&path, info.depth) {
                    // The file comes a moment after the device; whoever looked at it goes.
                    Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ResourceBusy) => {
                        time::sleep(LOOK_EVERY).await;
                    }
                    opened => return opened,
                }
            }
        };
        let opened =
            time::timeout(DEVICE_TIME, opened).await.map_err(|_| late(&format!("{} is not there", path.display())))?;
        let queue = opened.map_err(|error| Failure::from(error).during(path.display()))?;
        *self.server.borrow_mut() = Some(Server::begin(queue, info.depth, namespace, &self.figures));
        Ok(())
    }

    async fn go_on(&self, namespace: &AnyNamespace, info: &DeviceInfo) -> Result<u32, Failure> {
        let id = info.id;
        self.serve(namespace, info).await?;
        let ended = time::timeout(DEVICE_TIME, self.aside(move |kernel| kernel.control.end_recovery(id))).await;
        match ended {
            Ok(ended) => ended?.map_err(failed).map(|()| id),
            Err(_) => {
                // A process died in the midst of going on: the kernel gives such a device to nobody. Its users had better be told.
                self.give_up(id).await?;
                let why = "the kernel does not go on with the device, which is given up: what it held is lost";
                Err(Failure::unavailable(format!("--device=ublk: {why}")))
            }
        }
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
            Err(failure) => Err(failure),
        };
        if let Err(failure) = started {
            self.give_up(id).await?;
            return Err(failure);
        }
        // Again: a process of this host that has lost the volume removes the file when its own device is gone.
        self.kernel.write_record(tenure)?;
        Ok(id)
    }

    /// Stops a device while its requests are answered, and deletes it.
    async fn give_up(&self, id: u32) -> Result<(), Failure> {
        self.aside(move |kernel| kernel.stop(id)).await?;
        let server = self.server.take();
        if let Some(server) = server
            && time::timeout(DEVICE_TIME, server.ended()).await.is_err()
        {
            tracing::warn!(id, "requests of a device that was stopped are left");
        }
        self.aside(move |kernel| kernel.delete(id)).await
    }

    /// Has the kernel give the device up, and what waits to be written to it be written before, where that can be: `is_lost` says
    /// that it can't. A device that this process has not come to answer is left to the next one, unless it is lost.
    pub async fn disconnected(&self, is_lost: bool) {
        let is_answered = self.server.borrow().is_some();
        let Some((_, DeviceInfo { id, .. })) = self.kernel.held().filter(|_| is_answered || is_lost) else { return };
        if !is_lost {
            let path = self.kernel.dev.join(format!("ublkb{id}"));
            let synced = aside(move || sync_block_device(&path)).await;
            if let Err(failure) = synced.and_then(|synced| Ok(synced?)) {
                tracing::warn!("what waited to be written to the kernel's device may be lost: {}", failure.sentence());
            }
        }
        if let Err(failure) = self.give_up(id).await {
            tracing::warn!("the kernel's device: {}", failure.sentence());
        }
    }

    /// Answers no more requests: what the kernel holds waits for the next process.
    pub fn leave(&self) {
        drop(self.server.take());
    }

    /// The volume has grown.
    pub fn grow(&self, namespace: &AnyNamespace) {
        let Some((_, info)) = self.kernel.held() else { return };
        let Some(shape) = Shape::of(namespace.info(), false) else { return };
        match self.kernel.control.grow(info.id, &shape) {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!("this kernel's ublk devices don't grow: attach the volume anew to have its new size")
            }
            Err(error) => tracing::warn!(%error, "the kernel's device is as large as it was"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io;
    use std::sync::Mutex;

    use ::ublk::{Driver, FEATURES};
    use device::Memory;
    use engine::ublk::Operation;
    use engine::{Reactor, ReactorConfig};
    use zerocopy::IntoBytes;

    use super::*;

    const TENURE: Uuid = Uuid::from_u128(7 << 64 | 8);
    const OTHER: Uuid = Uuid::from_u128(9);
    const LIVE: u16 = 1;
    const QUIESCED: u16 = 2;
    const EBUSY: i32 = 16;
    const ENODEV: i32 = 19;

    /// A driver with these devices. What was asked of them is noted.
    #[derive(Default)]
    struct Fake {
        devices: Mutex<BTreeMap<u32, DeviceInfo>>,
        asked: Mutex<Vec<(Operation, u32)>>,
        /// How often a live device's process is found at work before it has ended.
        ends_after: Mutex<usize>,
    }

    impl Driver for Fake {
        fn run(&self, operation: Operation, id: u32, _: u64, buffer: &mut [u8]) -> io::Result<()> {
            if operation == Operation::GetFeatures {
                let all = FEATURES.iter().fold(0, |all, (bit, _)| all | bit);
                buffer.copy_from_slice(&u64::to_ne_bytes(all));
                return Ok(());
            }
            let mut devices = self.devices.lock().unwrap();
            let info = devices.get_mut(&id).ok_or_else(|| io::Error::from_raw_os_error(ENODEV))?;
            if operation == Operation::GetDeviceInfo {
                buffer.copy_from_slice(info.as_bytes());
                return Ok(());
            }
            self.asked.lock().unwrap().push((operation, id));
            match operation {
                Operation::StopDevice => info.state = 0,
                Operation::DeleteDeviceAsync => drop(devices.remove(&id)),
                Operation::StartUserRecovery if info.state == LIVE => {
                    let mut left = self.ends_after.lock().unwrap();
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        info.state = QUIESCED;
                    }
                    return Err(io::Error::from_raw_os_error(EBUSY));
                }
                _ => {}
            }
            Ok(())
        }
    }

    /// A machine with devices: number, tenure, state; and with the file of a tenure.
    fn machine(devices: &[(u32, Uuid, u16)], recorded: Option<Uuid>) -> (tempfile::TempDir, Arc<Fake>, Device) {
        let root = tempfile::tempdir().expect("a folder");
        let (fake, class) = (Arc::new(Fake::default()), root.path().join("class"));
        fs::create_dir(&class).expect("made");
        for &(id, tenure, state) in devices {
            let mut info = DeviceInfo::default();
            (info.id, info.mark, info.state, info.queues, info.depth) = (id, mark(tenure), state, 1, 4);
            info.flags = FEATURES.iter().fold(0, |all, (bit, _)| all | bit);
            fake.devices.lock().unwrap().insert(id, info);
            fs::write(class.join(format!("ublkc{id}")), "").expect("written");
        }
        let (dev, records) = (root.path().join("dev"), root.path().join("run/ublk"));
        let control = Control::new(fake.clone()).expect("a driver");
        let device = Device::of(Kernel { control, volume: 1, class, dev, records });
        if let Some(tenure) = recorded {
            device.kernel.write_record(tenure).expect("written");
        }
        (root, fake, device)
    }

    #[test]
    fn a_device_is_the_volumes_by_its_mark_and_in_its_tenure_alone() {
        let devices = [(0, OTHER, QUIESCED), (3, TENURE, QUIESCED)];
        for (recorded, is_held) in [(None, false), (Some(Uuid::from_u128(5)), false), (Some(TENURE), true)] {
            let (_root, _, device) = machine(&devices, recorded);
            assert_eq!(device.is_connected(), is_held, "{recorded:?}");
            assert!(device.is_of(TENURE));
            assert_eq!(device.is_of(Uuid::from_u128(6)), !is_held, "nothing is held, or it is of another tenure");
        }
        let (_root, _, dead) = machine(&[(3, TENURE, 0)], Some(TENURE));
        assert!(!dead.is_connected() && dead.is_of(Uuid::from_u128(6)), "nothing can be written by it");
    }

    #[test]
    fn what_is_given_up_is_the_volumes_own_device() {
        let (_root, fake, device) = machine(&[(0, OTHER, LIVE), (3, TENURE, QUIESCED)], Some(TENURE));
        device.disconnect();
        assert_eq!(*fake.asked.lock().unwrap(), [(Operation::StopDevice, 3), (Operation::DeleteDeviceAsync, 3)]);
        assert!(!device.is_connected() && !device.kernel.record().exists());
        device.disconnect();
        assert_eq!(fake.asked.lock().unwrap().len(), 2, "there is none any more");
    }

    #[test]
    fn a_device_is_gone_on_with_when_its_process_has_ended() {
        let ran = Reactor::run(ReactorConfig::default(), async {
            let (_root, fake, device) = machine(&[(3, TENURE, LIVE)], Some(TENURE));
            *fake.ends_after.lock().unwrap() = 3;
            let found = device.former(TENURE).await.expect("found").expect("a device");
            assert_eq!((found.id, fake.asked.lock().unwrap().len()), (3, 4));
            // Of one that holds nothing, what is left is cleared away.
            let (_root, fake, device) = machine(&[(3, TENURE, 0)], Some(TENURE));
            assert!(device.former(TENURE).await.expect("looked for").is_none());
            assert_eq!(*fake.asked.lock().unwrap(), [(Operation::DeleteDeviceAsync, 3)]);
            let (_root, fake, device) = machine(&[(3, OTHER, QUIESCED)], None);
            assert!(device.former(TENURE).await.expect("looked for").is_none(), "another volume's");
            assert!(fake.asked.lock().unwrap().is_empty());
        });
        ran.expect("a reactor");
    }

    #[test]
    fn what_this_process_does_not_answer_it_leaves_to_the_next_one() {
        let ran = Reactor::run(ReactorConfig::default(), async {
            let (_root, fake, device) = machine(&[(3, TENURE, QUIESCED)], Some(TENURE));
            device.disconnected(false).await;
            assert!(device.is_connected() && fake.asked.lock().unwrap().is_empty());
            device.disconnected(true).await;
            assert!(!device.is_connected(), "another host has the volume");
            // The kernel is asked for nothing where a device can't be made.
            let large = AnyNamespace::from(Memory::new(1 << 20, 8192, [1; 16]).expect("a namespace"));
            let (_root, fake, device) = machine(&[], None);
            let said = device.connected(&large, TENURE).await.expect_err("refused");
            assert!(said.sentence().contains("at most 4096 bytes"), "{}", said.sentence());
            assert!(fake.asked.lock().unwrap().is_empty() && !device.kernel.record().exists());
        });
        ran.expect("a reactor");
    }
}
