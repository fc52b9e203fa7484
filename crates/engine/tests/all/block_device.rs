//! A block device on the real reactor: a loop device over a file. Needs the right to set one up; says so where it has not.

use std::{io::ErrorKind, path::Path, process::Command, time::Duration};

use engine::{
    Buf, Reactor, ReactorConfig,
    file::{File, OpenOptions},
    time::timeout,
};

const SIZE: u64 = 8 << 20;

/// A loop device, detached when dropped.
struct Loop(String);

impl Loop {
    fn attach(backing: &Path) -> Option<Loop> {
        let output = Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(backing).output().ok()?;
        output.status.success().then(|| Loop(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(detached.is_ok_and(|status| status.success()), "{} stays attached", self.0);
    }
}

#[test]
fn a_block_device_is_read_written_zeroed_and_held_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let backing = directory.path().join("backing");
    std::fs::File::create(&backing).and_then(|file| file.set_len(SIZE)).expect("a sparse file");
    let Some(device) = Loop::attach(&backing) else {
        eprintln!("skipped: no loop device can be set up here (root and losetup are needed)");
        return;
    };
    let path = Path::new(&device.0);
    let file = File::open(path, &OpenOptions::default()).expect("opened");
    assert!(file.is_block_device() && file.size() == SIZE && file.logical_block_size() >= 512);

    let error = File::open(path, &OpenOptions::default()).err().expect("held");
    assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
    assert!(error.to_string().contains(&device.0), "{error}");

    let main = async move {
        let mut ones = Buf::with_len(1 << 20);
        ones.fill(1);
        file.write_at(0, ones.freeze(), true).await.expect("written");
        file.punch_hole(4096, 8192).await.expect("punched");
        file.write_zeroes(65_536, 4096).await.expect("zeroed");
        file.sync_data().await.expect("synced");
        let (result, bytes) = file.read_at(0, Buf::with_len(1 << 20)).await;
        result.expect("read");
        for (index, &byte) in bytes.iter().enumerate() {
            let zeroed = (4096..12_288).contains(&index) || (65_536..69_632).contains(&index);
            assert_eq!(byte, u8::from(!zeroed), "byte {index}");
        }
        let (result, _) = file.read_at(SIZE, Buf::with_len(4096)).await;
        assert_eq!(result.expect_err("beyond the end").kind(), ErrorKind::UnexpectedEof);
    };
    let bounded = timeout(Duration::from_secs(20), main);
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor").expect("no operation hangs");
}
