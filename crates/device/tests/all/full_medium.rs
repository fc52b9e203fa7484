//! A file system that is full behind a sparse file. Needs the right to mount one; says so where it has not.

use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::process::Command;
use std::task::Poll;
use std::time::Duration;

use device::{Drive, Durability, Error, FileNamespace, FileOptions, FormatOptions, Lba, Namespace, NamespaceSpec};
use engine::{Buf, Reactor, ReactorConfig, View, time};

/// A small file system in memory, unmounted when dropped.
struct Mount<'a>(&'a Path);

impl<'a> Mount<'a> {
    fn new(at: &'a Path, size: &str) -> Option<Mount<'a>> {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(at).output().ok()?;
        mounted.status.success().then_some(Mount(at))
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} stays mounted", self.0.display());
    }
}

fn filled(byte: u8, blocks: usize) -> View {
    let mut buf = Buf::with_len(4096 * blocks);
    buf.fill(byte);
    buf.freeze()
}

/// Room is given back by nobody but the operator: until then reads go on, and so does what needs no room.
#[test]
fn a_full_medium_is_out_of_space_and_stays_in_service() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(_mount) = Mount::new(directory.path(), "1m") else {
        eprintln!("skipped: no file system can be mounted here (root is needed)");
        return;
    };
    let path = directory.path().join("medium");
    let main = async {
        let options = FileOptions { create: Some(4 << 20), ..FileOptions::default() };
        let namespace =
            FileNamespace::open(&path, &options).await.expect("opened: direct access to tmpfs is Linux 6.6");
        let blocks = namespace.info().blocks;
        let mut written = 0;
        let full = loop {
            assert!(written < blocks, "4 MiB fit 1 MiB");
            match namespace.write(Lba(written), filled(1, 1), Durability::Stable).await {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(full, Error::OutOfSpace);
        assert!(written > 100, "full after {written} blocks");
        let swap = namespace.compare_and_write(Lba(blocks - 1), filled(0, 1), filled(3, 1), Durability::Stable).await;
        assert_eq!(swap, Err(Error::OutOfSpace));
        assert_eq!(namespace.flush().await, Ok(()));
        assert_eq!(namespace.fault(), None, "a full medium is not a failed one");

        assert_eq!(namespace.compare(Lba(0), filled(1, 64)).await, Ok(()));
        assert_eq!(namespace.compare(Lba(blocks - 1), filled(0, 1)).await, Ok(()), "refused, and not written");
        namespace.write(Lba(7), filled(2, 1), Durability::Stable).await.expect("this block has its room");
        namespace.deallocate(Lba(0), 4).await.expect("gives room back");
        namespace.write(Lba(blocks - 1), filled(4, 1), Durability::Stable).await.expect("there is room again");
        assert_eq!(namespace.compare(Lba(blocks - 1), filled(4, 1)).await, Ok(()));
    };
    let bounded = time::timeout(Duration::from_secs(30), main);
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor").expect("no operation hangs");
}

/// A drive whose first writes of blocks find no room below goes on; when their callers had gone it did not, though nothing refers
/// to what such a write leaves.
#[test]
fn a_drive_on_a_full_medium_stays_in_service_when_callers_go_away() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(_mount) = Mount::new(directory.path(), "3m") else {
        eprintln!("skipped: no file system can be mounted here (root is needed)");
        return;
    };
    let path = directory.path().join("medium");
    let main = async {
        let format = FormatOptions {
            create: Some(16 << 20),
            extent_bytes: 64 << 10,
            journal_bytes: Some(512 << 10),
            ..FormatOptions::default()
        };
        let drive = Drive::format(&path, &format).await.expect("formatted: direct access to tmpfs is Linux 6.6");
        let spec = NamespaceSpec { name: "a".into(), bytes: 8 << 20, block_size: 4096 };
        let a = drive.create(&spec).await.expect("created");
        let mut written = 0;
        while a.write(Lba(written), filled(1, 1), Durability::Stable).await.is_ok() {
            written += 1;
        }
        assert!((16..2048).contains(&written), "full after {written} blocks");
        for step in 0..20 {
            let mut write = pin!(a.write(Lba(written + step), filled(2, 2), Durability::Stable));
            poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx).is_ready())).await;
        }
        time::sleep(Duration::from_millis(50)).await;
        assert_eq!(drive.usage().fault, None, "a full medium is not a failed one");
        a.write(Lba(0), filled(3, 1), Durability::Stable).await.expect("this block has its room");
    };
    let bounded = time::timeout(Duration::from_secs(30), main);
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor").expect("no operation hangs");
}
