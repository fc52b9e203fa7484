//! How namespaces in files are opened, and what is refused by name.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use device::{
    AnyNamespace, Drive, DriveOptions, Durability, Error, FileNamespace, FileOptions, FormatOptions, GrowError,
    IdentityError, Lba, Memory, MemoryError, Namespace, OpenError, Writability,
};
use engine::{Buf, Reactor, ReactorConfig, task, time};

fn run<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { time::timeout(Duration::from_secs(30), main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

async fn open(path: &Path, options: FileOptions) -> Result<FileNamespace, OpenError> {
    FileNamespace::open(path, &options).await
}

fn create(bytes: u64) -> FileOptions {
    FileOptions { create: Some(bytes), ..FileOptions::default() }
}

#[test]
fn a_new_file_is_sparse_and_keeps_its_identity() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("medium");
    run(async {
        let first = open(&path, create(1 << 30)).await.unwrap().info();
        assert_eq!(first.bytes(), 1 << 30);
        let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap());
        assert!(blocks < 2048, "{blocks} sectors are allocated for an empty file");
        let again = open(&path, FileOptions::default()).await.unwrap().info();
        assert_eq!(first, again);
        let other = open(&directory.path().join("other"), create(1 << 20)).await.unwrap().info();
        assert_ne!(first.nguid, other.nguid);
    });
}

/// As the kernel holds the file of a killed process until what that had under way is over.
#[test]
fn what_another_opener_leaves_within_a_moment_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let (path, drive) = (directory.path().join("medium"), directory.path().join("drive"));
    run(async {
        let held = open(&path, create(1 << 20)).await.unwrap();
        let leaves = task::spawn(async move {
            time::sleep(Duration::from_millis(200)).await;
            drop(held);
        });
        open(&path, FileOptions::default()).await.expect("it is left");
        leaves.await;

        let format = FormatOptions { create: Some(64 << 20), ..FormatOptions::default() };
        let held = Drive::format(&drive, &format).await.expect("formatted");
        let leaves = task::spawn(async move {
            time::sleep(Duration::from_millis(200)).await;
            held.close().await.expect("closed");
        });
        Drive::open(&drive, &DriveOptions::default()).await.expect("it is left");
        leaves.await;
    });
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("medium");
    run(async {
        let missing = open(&path, FileOptions::default()).await;
        assert!(matches!(missing, Err(OpenError::Io { .. })), "{missing:?}");
        for bytes in [0, 4095, 4097] {
            let odd = open(&path, create(bytes)).await;
            assert!(matches!(odd, Err(OpenError::Size { .. })), "{odd:?}");
        }
        assert!(!path.exists(), "a refused size creates nothing");
        let odd = open(&path, FileOptions { block_size: 1024, ..create(1 << 20) }).await;
        assert!(matches!(odd, Err(OpenError::BlockSize(1024))), "{odd:?}");

        let held = open(&path, create(1 << 20)).await.unwrap();
        let second = open(&path, FileOptions::default()).await;
        assert!(matches!(second, Err(OpenError::Busy { .. })), "{second:?}");
        drop(held);
        let size = open(&path, create(2 << 20)).await;
        assert!(matches!(size, Err(OpenError::ExistsWithOtherSize { bytes: 1_048_576, .. })), "{size:?}");
        let block_size = open(&path, FileOptions { block_size: 512, ..FileOptions::default() }).await;
        assert!(matches!(block_size, Err(OpenError::Identity(IdentityError::BlockSize { recorded: 4096, .. }))));

        std::fs::write(directory.path().join("medium.yagura"), "nonsense").unwrap();
        let damaged = open(&path, FileOptions::default()).await;
        assert!(matches!(damaged, Err(OpenError::Identity(IdentityError::Damaged { .. }))), "{damaged:?}");
        let odd = directory.path().join("odd");
        std::fs::write(&odd, [0; 5000]).unwrap();
        let odd = open(&odd, FileOptions::default()).await;
        assert!(matches!(odd, Err(OpenError::Size { bytes: 5000, .. })), "{odd:?}");
    });
}

#[test]
fn read_only_reads_and_refuses_writes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("medium");
    let read_only = FileOptions { read_only: true, ..FileOptions::default() };
    run(async {
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let unknown = open(&path, read_only.clone()).await;
        assert!(matches!(unknown, Err(OpenError::Identity(IdentityError::None { .. }))), "{unknown:?}");
        drop(open(&path, FileOptions::default()).await.unwrap());
        let namespace = open(&path, read_only).await.unwrap();
        let (read, buf) = namespace.read(Lba(3), Buf::with_len(4096)).await;
        assert_eq!((read, buf[4095]), (Ok(()), 7));
        let written = namespace.write(Lba(0), Buf::zeroed(4096).freeze(), Durability::Cached).await;
        assert!(matches!(written, Err(Error::ReadOnly(_))), "{written:?}");
        assert_eq!(namespace.writability(), Writability::ReadOnly);
        assert_eq!(namespace.flush().await, Ok(()));
    });
}

/// A slice at an odd address can't go to a direct file as it is.
#[test]
fn odd_slices_are_written_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    run(async {
        let namespace = open(&directory.path().join("medium"), create(1 << 20)).await.unwrap();
        let mut data = Buf::with_len(8192);
        (0..8192).for_each(|at| data[at] = (at / 3) as u8);
        let odd = data.freeze().slice(72..72 + 4096);
        namespace.write(Lba(1), odd.clone(), Durability::Stable).await.unwrap();
        assert_eq!(namespace.compare(Lba(1), odd).await, Ok(()));
    });
}

#[test]
fn memory_takes_only_what_it_can_be() {
    assert_eq!(Memory::new(4096, 1000, [1; 16]).unwrap_err(), MemoryError::BlockSize(1000));
    assert_eq!(Memory::new(4096, 1 << 17, [1; 16]).unwrap_err(), MemoryError::BlockSize(1 << 17));
    for bytes in [0, 4097, device::MEMORY_BYTES_MAX + 4096] {
        assert_eq!(Memory::new(bytes, 4096, [1; 16]).unwrap_err(), MemoryError::Size { bytes, block_size: 4096 });
    }
    let memory = Memory::new(64 << 20, 4096, [1; 16]).unwrap();
    assert_eq!(memory.allocated_bytes(), 0);
    run(async {
        memory.write(Lba(0), Buf::zeroed(4096).freeze(), Durability::Stable).await.unwrap();
        assert!((1..1 << 20).contains(&memory.allocated_bytes()), "one write allocates {}", memory.allocated_bytes());
        memory.deallocate(Lba(0), memory.info().blocks).await.unwrap();
        assert_eq!(memory.allocated_bytes(), 0);
    });
}

#[test]
fn zeroing_leaves_a_sparse_file_sparse() {
    // Making a pool zeroes whole members: once it filled the disk with blocks of zeroes.
    use std::os::unix::fs::MetadataExt as _;
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("sparse");
    let options = FileOptions { create: Some(64 << 20), ..FileOptions::default() };
    Reactor::run(ReactorConfig::default(), async {
        let namespace = FileNamespace::open(&path, &options).await.unwrap();
        namespace.write(Lba(7), Buf::zeroed(4096).freeze(), Durability::Stable).await.unwrap();
        namespace.write_zeroes(Lba(0), namespace.info().blocks, Durability::Stable).await.unwrap();
    })
    .unwrap();
    let used = std::fs::metadata(&path).unwrap().blocks() * 512;
    assert!(used < 1 << 20, "{used} bytes of the disk are used by 64 MiB of zeroes");
}

#[test]
fn a_file_grows_while_it_is_used_and_never_shrinks() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("grows");
    run(async {
        let namespace = open(&path, create(1 << 20)).await.expect("created");
        let data = Buf::copy_from(&[7; 4096]).freeze();
        namespace.write(Lba(255), data.clone(), Durability::Stable).await.expect("written");
        assert!(namespace.write(Lba(256), data.clone(), Durability::Stable).await.is_err(), "beyond the end");
        namespace.grow(2 << 20).await.expect("grown");
        assert_eq!(namespace.info().blocks, 512);
        let (result, found) = namespace.read(Lba(255), Buf::with_len(8192)).await;
        result.expect("read");
        assert!(found[..4096] == [7; 4096] && found[4096..] == [0; 4096], "the old block, and zeroes behind it");
        namespace.write(Lba(511), data, Durability::Stable).await.expect("the new end");
        let refused = |result: Result<(), GrowError>| result.expect_err("refused").to_string();
        assert!(refused(namespace.grow(1 << 20).await).contains("can only grow"));
        assert!(refused(namespace.grow((2 << 20) + 1).await).contains("block size 4096"));
        drop(namespace);
        let again = open(&path, FileOptions::default()).await.expect("opened");
        assert_eq!(again.info().blocks, 512, "it stays so");
        drop(again);
        let read_only = FileOptions { read_only: true, ..FileOptions::default() };
        let fixed = open(&path, read_only).await.expect("opened");
        assert!(refused(fixed.grow(4 << 20).await).contains("takes no writes"));
        let memory = AnyNamespace::from(Memory::new(1 << 20, 4096, [7; 16]).expect("memory"));
        assert!(refused(memory.grow(2 << 20).await).contains("memory"));
    });
}
