//! Devices, by a double of the driver.

use std::sync::Mutex;

use device::{Memory, Namespace, NamespaceInfo};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::protocol::REQUESTS_MAX;

fn info() -> NamespaceInfo {
    Memory::new(1 << 20, 4096, [1; 16]).expect("a namespace").info()
}

/// A driver that answers as it was told to, and notes what it was asked.
#[derive(Default)]
struct Fake {
    features: u64,
    refusals: Mutex<Vec<(Operation, i32)>>,
    asked: Mutex<Vec<(Operation, u32)>>,
    /// One that is refused whatever is asked of it, and by which error.
    refused_device: Mutex<Option<(u32, i32)>>,
}

impl Driver for Fake {
    fn run(&self, operation: Operation, device: u32, _: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.asked.lock().unwrap().push((operation, device));
        if let Some((_, error)) = self.refusals.lock().unwrap().iter().find(|(refused, _)| *refused == operation) {
            return Err(io::Error::from_raw_os_error(*error));
        }
        if let Some((_, error)) = self.refused_device.lock().unwrap().filter(|(refused, _)| *refused == device) {
            return Err(io::Error::from_raw_os_error(error));
        }
        match operation {
            Operation::GetFeatures => buffer.copy_from_slice(&self.features.to_ne_bytes()),
            Operation::AddDevice => {
                let mut info = DeviceInfo::read_from_bytes(buffer).expect("all of it");
                assert_eq!((info.id, info.queues, info.depth, info.mark), (u32::MAX, 1, REQUESTS_MAX, 7));
                info.id = 5;
                buffer.copy_from_slice(info.as_bytes());
            }
            Operation::GetDeviceInfo => {
                let mut info = DeviceInfo::read_from_bytes(buffer).expect("all of it");
                (info.id, info.mark) = (device, u64::from(device) + 1);
                buffer.copy_from_slice(info.as_bytes());
            }
            _ => {}
        }
        Ok(())
    }
}

const ALL: u64 = 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7;

fn fake(features: u64, refusals: &[(Operation, i32)]) -> (Arc<Fake>, Result<Control, Error>) {
    let fake = Arc::new(Fake { features, refusals: Mutex::new(refusals.to_vec()), ..Fake::default() });
    (fake.clone(), Control::new(fake))
}

#[test]
fn a_driver_that_lacks_something_is_named() {
    for (features, refusals, expected) in [
        (ALL & !(1 << 7), &[][..], "lacks USER_COPY: Linux 6.5"),
        (ALL & !(1 << 3), &[], "lacks USER_RECOVERY:"),
        (ALL, &[(Operation::GetFeatures, 95)], "lacks GET_FEATURES"),
        (ALL, &[(Operation::GetFeatures, 1)], "only root"),
    ] {
        let said = fake(features, refusals).1.err().expect("refused").to_string();
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_device_is_found_by_its_mark() {
    let class = tempfile::tempdir().expect("a folder");
    let class = class.path();
    for name in ["ublkc5", "ublkc6", "control"] {
        std::fs::create_dir_all(class.join(name)).expect("made");
    }
    let (driver, control) = fake(ALL, &[]);
    let control = control.expect("a driver");
    assert_eq!(control.find(class, 7).expect("looked for").map(|info| info.id), Some(6));
    assert_eq!(control.find(class, 8).expect("looked for"), None);
    let (_, failing) = fake(ALL, &[(Operation::GetDeviceInfo, 5)]);
    failing.expect("a driver").find(class, 7).expect_err("what can't be looked at may be the one");
    let find = |mark, refused| {
        let (driver, control) = fake(ALL, &[]);
        *driver.refused_device.lock().unwrap() = Some(refused);
        control.expect("a driver").find(class, mark).map(|found| found.map(|info| info.id))
    };
    assert_eq!(
        (find(7, (5, 5)).ok(), find(6, (6, 5)).ok()),
        (Some(Some(6)), Some(Some(5))),
        "beside one that is not shown"
    );
    find(7, (6, 5)).expect_err("it may be the one");
    assert_eq!(find(7, (6, 22)).expect("looked for"), None, "a user's own, which is none of ours");
    std::fs::write(class.join("file"), "").expect("written");
    control.find(&class.join("file"), 7).expect_err("what can't be listed may have it");
    let (_, gone) = fake(ALL, &[(Operation::GetDeviceInfo, ENODEV)]);
    assert_eq!(gone.expect("a driver").find(class, 7).expect("looked for"), None);
    std::fs::remove_dir_all(class).expect("removed");
    assert_eq!(control.find(class, 7).expect("no driver, no device"), None);
    assert!(driver.asked.lock().unwrap().contains(&(Operation::GetDeviceInfo, 5)));
}

#[test]
fn a_device_is_made_whole_or_not_at_all() {
    let shape = Shape::of(info(), false).expect("small blocks");
    let (driver, control) = fake(ALL, &[]);
    let info = control.expect("a driver").add(7, &shape).expect("made");
    assert_eq!((info.id, info.state(), info.is_served_so()), (5, State::Dead, true));
    assert_eq!(driver.asked.lock().unwrap()[1..], [(Operation::AddDevice, u32::MAX), (Operation::SetParameters, 5)]);
    let (driver, control) = fake(ALL, &[(Operation::SetParameters, 22), (Operation::DeleteDeviceAsync, 95)]);
    control.expect("a driver").add(7, &shape).expect_err("refused");
    let last = [(Operation::DeleteDeviceAsync, 5), (Operation::DeleteDevice, 5)];
    assert_eq!(driver.asked.lock().unwrap()[3..], last, "by the way that an older driver has");
}

#[test]
fn a_driver_that_deletes_only_when_nobody_has_the_device_open_is_known() {
    for (refusal, expected) in [(95, Some(false)), (524, Some(false)), (19, Some(true)), (5, None)] {
        let (driver, control) = fake(ALL, &[(Operation::DeleteDeviceAsync, refusal)]);
        assert_eq!(control.expect("a driver").delete(5).ok(), expected, "{refusal}");
        assert_eq!(driver.asked.lock().unwrap().last(), Some(&(Operation::DeleteDeviceAsync, 5)));
    }
    let waiting = |refusals: &[_]| fake(ALL, refusals).1.expect("a driver").delete_and_wait(5).is_ok();
    assert!(waiting(&[]) && waiting(&[(Operation::DeleteDevice, 19)]) && !waiting(&[(Operation::DeleteDevice, 5)]));
}

#[test]
fn who_goes_on_with_a_device_is_told_whether_its_server_has_ended() {
    let begun = |error| fake(ALL, &[(Operation::StartUserRecovery, error)]).1.expect("a driver").begin_recovery(5);
    assert!(matches!(begun(16), Err(Error::Busy(_))));
    assert!(matches!(begun(19), Err(Error::Gone(_))));
    assert!(begun(22).is_ok(), "begun by one that has ended");
    assert!(matches!(begun(5), Err(Error::Failed(..))));
    let (_, control) = fake(ALL, &[(Operation::DeleteDeviceAsync, 19)]);
    control.expect("a driver").delete(5).expect("it is gone already");
    let shape = Shape::of(info(), false).expect("small blocks");
    assert!(!fake(ALL, &[]).1.expect("a driver").grow(5, &shape).expect("asked"));
    assert!(fake(ALL | 1 << 10, &[]).1.expect("a driver").grow(5, &shape).expect("asked"));
}
