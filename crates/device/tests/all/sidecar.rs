//! What a file's sidecar keeps: attributes and marks of unreadable blocks, over restarts, crashes and old versions.

use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use device::{
    ATTRIBUTE_BYTES_MAX, Durability, Error, FileNamespace, FileOptions, IdentityError, Lba, Mailed, Namespace,
    OpenError,
};
use engine::sim::{SimConfig, World};
use engine::{Buf, Reactor, ReactorConfig, time};

const PATH: &str = "/medium";

fn real<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { time::timeout(Duration::from_secs(60), main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

async fn open(path: &Path) -> Result<FileNamespace, OpenError> {
    FileNamespace::open(path, &FileOptions { create: Some(1 << 20), ..FileOptions::default() }).await
}

async fn is_unreadable(namespace: &FileNamespace, lba: u64) -> bool {
    let (result, _) = namespace.read(Lba(lba), Buf::with_len(4096)).await;
    matches!(result, Err(Error::ReadFault(_)))
}

#[test]
fn attributes_and_marks_outlive_the_opener() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("medium");
    real(async {
        let namespace = open(&path).await.unwrap();
        assert!(namespace.info().persists_attributes);
        namespace.set_attribute("a", b"one").await.unwrap();
        namespace.set_attribute("b", &[7; ATTRIBUTE_BYTES_MAX]).await.unwrap();
        namespace.set_attribute("a", b"two").await.unwrap();
        namespace.write_uncorrectable(Lba(3), 2).await.unwrap();
        drop(namespace);
        let namespace = open(&path).await.unwrap();
        assert_eq!(namespace.attribute("a"), Ok(Some(b"two".to_vec())));
        assert_eq!(namespace.attribute("b"), Ok(Some(vec![7; ATTRIBUTE_BYTES_MAX])));
        assert!(is_unreadable(&namespace, 3).await && is_unreadable(&namespace, 4).await);
        namespace.write(Lba(3), Buf::zeroed(4096).freeze(), Durability::Cached).await.unwrap();
        drop(namespace);
        let namespace = open(&path).await.unwrap();
        assert!(!is_unreadable(&namespace, 3).await && is_unreadable(&namespace, 4).await);
    });
}

/// A reservation that a host wants kept over power loss was taken for kept, where nothing keeps it.
#[test]
fn what_is_mailed_promises_to_keep_no_attributes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("medium");
    real(async {
        let mailed = Mailed::new(Rc::new(open(&path).await.unwrap()));
        assert!(!mailed.info().persists_attributes);
        assert!(matches!(mailed.set_attribute("a", b"one").await, Err(Error::Unsupported(_))));
        mailed.leave();
    });
}

/// Sidecars of version 1 had the identity alone. A conversion that was cut short is taken up again.
#[test]
fn an_old_sidecar_keeps_its_identity_and_gains_attributes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("medium");
    let sidecar = directory.path().join("medium.yagura");
    let text = format!("version = 1\nnguid = \"{}\"\nblock_size = 4096\n", "ab".repeat(16));
    for bytes in [4096, 20_000, 36_864] {
        let mut old = vec![b'\n'; 4096];
        old[..text.len()].copy_from_slice(text.as_bytes());
        old.resize(bytes, 0xEE);
        std::fs::write(&sidecar, old).unwrap();
        real(async {
            let namespace = open(&path).await.unwrap();
            assert_eq!(namespace.info().nguid, [0xAB; 16]);
            namespace.set_attribute("a", b"kept").await.unwrap();
            drop(namespace);
            let namespace = open(&path).await.unwrap();
            assert_eq!((namespace.info().nguid, namespace.attribute("a")), ([0xAB; 16], Ok(Some(b"kept".to_vec()))));
        });
    }
}

#[test]
fn lost_attributes_are_told_and_one_damaged_copy_costs_the_last_change() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("medium");
    let sidecar = directory.path().join("medium.yagura");
    real(async {
        let namespace = open(&path).await.unwrap();
        namespace.set_attribute("a", b"one").await.unwrap();
        namespace.set_attribute("a", b"two").await.unwrap();
    });
    let good = std::fs::read(&sidecar).unwrap();
    // The laying out went to copy A, the first change to B, the second to A again.
    let mut damaged = good.clone();
    damaged[4096 + 37] ^= 1;
    std::fs::write(&sidecar, &damaged).unwrap();
    real(async { assert_eq!(open(&path).await.unwrap().attribute("a"), Ok(Some(b"one".to_vec()))) });
    damaged[4096 + 16_384 + 37] ^= 1;
    std::fs::write(&sidecar, &damaged).unwrap();
    let lost = real(open(&path));
    assert!(matches!(lost, Err(OpenError::Identity(IdentityError::Damaged { .. }))), "{lost:?}");
}

/// A crash at any moment leaves the old value or the new one, and the new one once it was acknowledged.
#[test]
fn a_crash_leaves_the_old_attribute_or_the_new_one() {
    let mut seen = [0; 2];
    for seed in 0..300u64 {
        let world = World::new(seed, SimConfig::default());
        let node = world.node("n");
        let acknowledged = Rc::new(std::cell::Cell::new(0u64));
        let told = acknowledged.clone();
        let value = |number: u64| number.to_le_bytes().repeat(100);
        let set =
            world.spawn_on(node, async { open(Path::new(PATH)).await.unwrap().set_attribute("a", &[0; 800]).await });
        world.run_until(set).unwrap().unwrap();
        let setting = world.spawn_on(node, async move {
            let namespace = open(Path::new(PATH)).await.unwrap();
            for number in 1.. {
                namespace.set_attribute("a", &value(number)).await.unwrap();
                told.set(number);
            }
        });
        setting.detach();
        world.run_for(Duration::from_micros(150 + seed * 7)).unwrap();
        world.crash(node);
        world.restart(node);
        let found = world.spawn_on(node, async { open(Path::new(PATH)).await.unwrap().attribute("a") });
        let found = world.run_until(found).unwrap().unwrap().expect("it was set");
        let number = u64::from_le_bytes(found[..8].try_into().unwrap());
        assert_eq!(found, value(number), "seed {seed}: a mixture");
        let last = acknowledged.get();
        assert!([last, last + 1].contains(&number), "seed {seed}: {number} after {last} was acknowledged");
        seen[(number - last) as usize] += 1;
    }
    assert!(seen.iter().all(|&times| times > 5), "old and new must both be met: {seen:?}");
}

/// A block that was marked and then written stably reads as written after any crash; one still marked stays unreadable.
#[test]
fn a_crash_brings_no_mark_back_and_loses_none() {
    for seed in 0..200u64 {
        let world = World::new(seed, SimConfig::default());
        let node = world.node("n");
        let written = Rc::new(std::cell::Cell::new(false));
        let told = written.clone();
        let marking = world.spawn_on(node, async {
            let namespace = open(Path::new(PATH)).await.unwrap();
            namespace.write_uncorrectable(Lba(4), 2).await
        });
        world.run_until(marking).unwrap().unwrap();
        let writing = world.spawn_on(node, async move {
            let namespace = open(Path::new(PATH)).await.unwrap();
            let mut data = Buf::with_len(4096);
            data.fill(9);
            namespace.write(Lba(4), data.freeze(), Durability::Stable).await.unwrap();
            told.set(true);
            std::future::pending::<()>().await;
        });
        writing.detach();
        world.run_for(Duration::from_micros(100 + seed * 5)).unwrap();
        world.crash(node);
        world.restart(node);
        let look = world.spawn_on(node, async {
            let namespace = open(Path::new(PATH)).await.unwrap();
            let (result, data) = namespace.read(Lba(4), Buf::with_len(4096)).await;
            let whole = data.iter().all(|&byte| byte == 9);
            (result.is_ok(), whole, is_unreadable(&namespace, 5).await)
        });
        let (readable, whole, neighbour) = world.run_until(look).unwrap();
        assert!(neighbour, "seed {seed}: a mark was lost");
        assert!(!readable || whole, "seed {seed}: the mark is gone and the data is not there");
        assert!(readable || !written.get(), "seed {seed}: a mark came back over an acknowledged write");
    }
}

/// The caller of a Write Uncorrectable went away while the mark was on its way to the medium. It was there, and nobody knew: the
/// next write did not take it away, and after a restart hid what that write had made stable.
#[test]
fn a_mark_whose_caller_goes_away_hides_no_later_write() {
    for after in (0..600).step_by(10) {
        let world = World::new(after, SimConfig::default());
        let node = world.node("n");
        let task = world.spawn_on(node, async move {
            let namespace = Rc::new(open(Path::new(PATH)).await.unwrap());
            namespace.write(Lba(3), Buf::zeroed(4096).freeze(), Durability::Stable).await.unwrap();
            let marked = namespace.write_uncorrectable(Lba(3), 1);
            let _dropped = time::timeout(Duration::from_micros(after), marked).await;
            namespace.write(Lba(3), Buf::zeroed(4096).freeze(), Durability::Stable).await.unwrap();
        });
        world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
        world.crash(node);
        world.restart(node);
        let task = world.spawn_on(node, async move {
            let namespace = open(Path::new(PATH)).await.unwrap();
            assert!(!is_unreadable(&namespace, 3).await, "after {after} us: acknowledged and stable, and gone");
        });
        world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
    }
}
