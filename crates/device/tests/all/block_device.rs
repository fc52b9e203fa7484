//! A namespace on a block device: a loop device over a file. Needs the right to set one up; says so where it has not.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use device::{FileNamespace, FileOptions, IdentityError, OpenError, conformance};
use engine::{Reactor, ReactorConfig, time};

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
fn a_block_device_keeps_every_promise() {
    let directory = tempfile::tempdir().expect("a directory");
    let backing = directory.path().join("backing");
    std::fs::File::create(&backing).and_then(|file| file.set_len(4 << 20)).expect("a sparse file");
    let Some(device) = Loop::attach(&backing) else {
        eprintln!("skipped: no loop device can be set up here (root and losetup are needed)");
        return;
    };
    let main = async {
        let path = Path::new(&device.0);
        let nameless = FileNamespace::open(path, &FileOptions::default()).await;
        let refused = matches!(nameless, Err(OpenError::Identity(IdentityError::NoSerial { .. })));
        assert!(refused, "a loop device has no serial: {nameless:?}");
        let options = FileOptions { nguid: Some([7; 16]), ..FileOptions::default() };
        let namespace = Rc::new(FileNamespace::open(path, &options).await.expect("opened"));
        let second = FileNamespace::open(path, &options).await;
        assert!(matches!(second, Err(OpenError::Busy { .. })), "{second:?}");
        conformance::check_all(Rc::clone(&namespace), 3).await;
        assert_eq!(namespace.fault(), None);
    };
    let bounded = time::timeout(Duration::from_secs(60), main);
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor").expect("no operation hangs");
}
