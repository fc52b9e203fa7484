//! The device of a volume, by a double of the driver.

use std::collections::BTreeMap;
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
const ENOTSUPP: i32 = 524;

/// A driver with these devices. What was asked of them is noted.
#[derive(Default)]
pub struct Fake {
    devices: Mutex<BTreeMap<u32, DeviceInfo>>,
    asked: Mutex<Vec<(Operation, u32)>>,
    /// How often a live device's process is found at work before it has ended.
    ends_after: Mutex<usize>,
    /// Another process goes on with a device while this one tries to.
    another: Mutex<bool>,
    /// Locked by who has the block devices open, in a driver that deletes only when nobody has.
    open: Option<Mutex<()>>,
    /// By which error a look at a device is refused.
    unseen: Mutex<Option<i32>>,
}

impl Driver for Fake {
    fn run(&self, operation: Operation, id: u32, _: u64, buffer: &mut [u8]) -> io::Result<()> {
        if operation == Operation::GetFeatures {
            let all = FEATURES.iter().fold(0, |all, (bit, _)| all | bit);
            buffer.copy_from_slice(&u64::to_ne_bytes(all));
            return Ok(());
        }
        if let (Operation::DeleteDevice, Some(open)) = (operation, &self.open) {
            drop(open.lock().unwrap());
        }
        let mut devices = self.devices.lock().unwrap();
        let info = devices.get_mut(&id).ok_or_else(|| io::Error::from_raw_os_error(ENODEV))?;
        if let Some(error) = *self.unseen.lock().unwrap() {
            return Err(io::Error::from_raw_os_error(error));
        }
        if operation == Operation::GetDeviceInfo {
            buffer.copy_from_slice(info.as_bytes());
            return Ok(());
        }
        self.asked.lock().unwrap().push((operation, id));
        match operation {
            Operation::StopDevice => info.state = 0,
            Operation::DeleteDeviceAsync if self.open.is_some() => return Err(io::Error::from_raw_os_error(ENOTSUPP)),
            Operation::DeleteDeviceAsync | Operation::DeleteDevice => drop(devices.remove(&id)),
            Operation::StartUserRecovery if info.state == LIVE => {
                let mut left = self.ends_after.lock().unwrap();
                *left = left.saturating_sub(1);
                if *left == 0 {
                    info.state = QUIESCED;
                }
                return Err(io::Error::from_raw_os_error(EBUSY));
            }
            Operation::StartUserRecovery if *self.another.lock().unwrap() => info.state = LIVE,
            _ => {}
        }
        Ok(())
    }
}

/// A machine with devices: number, tenure, state; and with the file of a tenure.
pub fn machine(devices: &[(u32, Uuid, u16)], recorded: Option<Uuid>) -> (tempfile::TempDir, Arc<Fake>, Device) {
    machine_of(Fake::default(), devices, recorded)
}

fn machine_of(
    fake: Fake,
    devices: &[(u32, Uuid, u16)],
    recorded: Option<Uuid>,
) -> (tempfile::TempDir, Arc<Fake>, Device) {
    let root = tempfile::tempdir().expect("a folder");
    let (fake, class) = (Arc::new(fake), root.path().join("class"));
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
        assert!(device.is_of(TENURE).expect("looked"));
        assert_eq!(
            device.is_of(Uuid::from_u128(6)).expect("looked"),
            !is_held,
            "nothing is held, or it is of another tenure"
        );
    }
    let (_root, _, dead) = machine(&[(3, TENURE, 0)], Some(TENURE));
    assert!(!dead.is_connected() && dead.is_of(OTHER).expect("looked"), "nothing can be written by it");
}

#[test]
fn what_is_given_up_is_the_volumes_own_device() {
    let (_root, fake, device) = machine(&[(0, OTHER, LIVE), (3, TENURE, QUIESCED)], Some(TENURE));
    device.disconnect().expect("given up");
    assert_eq!(*fake.asked.lock().unwrap(), [(Operation::StopDevice, 3), (Operation::DeleteDeviceAsync, 3)]);
    assert!(!device.is_connected() && !device.kernel.record().exists());
    device.disconnect().expect("given up");
    assert_eq!(fake.asked.lock().unwrap().len(), 2, "there is none any more");
    // Another process has begun to make a device meanwhile.
    let (_root, _, device) = machine(&[(3, TENURE, QUIESCED)], Some(OTHER));
    device.enter(TENURE);
    device.disconnect().expect("given up");
    assert_eq!((device.is_connected(), device.kernel.recorded()), (false, Some(OTHER)));
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

/// As Linux before 6.9 has it.
#[test]
fn a_deletion_does_not_wait_for_who_has_the_device_open() {
    let driver = Fake { open: Some(Mutex::default()), ..Fake::default() };
    let (_root, fake, device) = machine_of(driver, &[(3, TENURE, 0)], Some(TENURE));
    let open = fake.open.as_ref().expect("such a driver").lock().unwrap();
    let (told, deleted) = mpsc::channel();
    let kernel = device.kernel.clone();
    thread::spawn(move || {
        kernel.delete(Held { tenure: TENURE, id: 3 });
        told.send(kernel.record().exists())
    });
    assert_eq!(deleted.recv_timeout(Duration::from_secs(30)), Ok(false), "it is not waited for");
    drop(open);
}

#[test]
fn what_the_kernel_does_not_tell_of_it_may_hold() {
    let ran = Reactor::run(ReactorConfig::default(), async {
        let (_root, fake, device) = machine(&[(3, TENURE, QUIESCED)], Some(TENURE));
        *fake.unseen.lock().unwrap() = Some(5);
        assert!(device.is_connected());
        device.is_of(TENURE).expect_err("not known");
        device.disconnect().expect_err("not known");
        device.kernel.delete(Held { tenure: TENURE, id: 3 });
        assert_eq!(device.kernel.recorded(), Some(TENURE), "who attaches next is to find it");
        *fake.unseen.lock().unwrap() = None;
        assert!(device.is_connected());
    });
    ran.expect("a reactor");
}

fn namespace() -> AnyNamespace {
    Memory::new(1 << 20, 4096, [1; 16]).expect("a namespace").into()
}

/// `/dev/zero` stands for the file of the device: it can be mapped, and gives no requests.
#[test]
fn a_device_whose_file_was_lost_is_gone_on_with_and_given_up_at_the_end() {
    let ran = Reactor::run(ReactorConfig::default(), async {
        let (root, fake, device) = machine(&[(3, TENURE, QUIESCED)], None);
        let dev = root.path().join("dev");
        fs::create_dir(&dev).expect("made");
        fs::write(dev.join("ublkb3"), "").expect("written");
        std::os::unix::fs::symlink("/dev/zero", dev.join("ublkc3")).expect("linked");
        let found = device.connected(&namespace(), TENURE).await.expect("gone on with");
        assert_eq!((found, device.kernel.recorded()), (dev.join("ublkb3"), Some(TENURE)));
        time::timeout(Duration::from_secs(30), device.ended()).await.expect("it gives no requests");
        assert!(!device.is_answered());
        fs::remove_file(device.kernel.record()).expect("lost again");
        device.disconnected(false).await;
        assert!(device.is_connected(), "the next process may have its requests");
        device.disconnected(true).await;
        assert!(!device.is_connected());
        assert_eq!(fake.asked.lock().unwrap()[2..], [(Operation::StopDevice, 3), (Operation::DeleteDeviceAsync, 3)]);
    });
    ran.expect("a reactor");
}

/// A file of no tags stands for one that the kernel refuses to the next process, since the former one has mapped it.
#[test]
fn a_device_that_the_kernel_gives_to_nobody_is_given_up_and_that_of_another_process_is_not() {
    let ran = Reactor::run(ReactorConfig::default(), async {
        for another in [false, true] {
            let (_root, fake, device) = machine(&[(3, TENURE, QUIESCED)], Some(TENURE));
            fake.devices.lock().unwrap().get_mut(&3).expect("there").depth = 0;
            *fake.another.lock().unwrap() = another;
            let said = device.connected(&namespace(), TENURE).await.expect_err("not gone on with");
            assert_eq!(said.sentence().contains("given up"), !another, "{}", said.sentence());
            assert_eq!((device.is_connected(), device.kernel.record().exists()), (another, another));
        }
        // One whose file is not there may be gone on with later.
        let (_root, _, mut device) = machine(&[(3, TENURE, QUIESCED)], Some(TENURE));
        device.patience = Duration::from_millis(50);
        device.connected(&namespace(), TENURE).await.expect_err("no file");
        assert!(device.is_connected());
    });
    ran.expect("a reactor");
}
