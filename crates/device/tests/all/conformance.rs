//! Every kind of namespace, in both worlds, through the same checks.

use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use device::{
    AnyNamespace, Durability, Fault, FaultConfig, FileNamespace, FileOptions, Lba, Memory, Namespace, Writability,
    conformance,
};
use engine::sim::{DiskConfig, SimConfig, World};
use engine::{Buf, Reactor, ReactorConfig, time};

const BYTES: u64 = 4 << 20;
const PATH: &str = "/medium";

/// Runs `main` on the real reactor; a test that hangs fails.
fn real<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { time::timeout(Duration::from_secs(60), main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

fn simulated<T: 'static>(seed: u64, main: impl Future<Output = T> + 'static) -> T {
    let world = World::new(seed, SimConfig::default());
    let node = world.node("n");
    let task = world.spawn_on(node, main);
    world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"))
}

fn memory(block_size: u32) -> Memory {
    Memory::new(BYTES, block_size, device::random_nguid()).expect("a memory namespace")
}

async fn file(path: &Path, block_size: u32) -> FileNamespace {
    let options = FileOptions { block_size, create: Some(BYTES), ..FileOptions::default() };
    FileNamespace::open(path, &options).await.expect("a file namespace")
}

fn pattern(byte: u8) -> engine::View {
    let mut buf = Buf::with_len(4096);
    buf.fill(byte);
    buf.freeze()
}

#[test]
fn memory_in_both_worlds() {
    for block_size in [512, 4096] {
        real(conformance::check_all(Rc::new(AnyNamespace::from(memory(block_size))), 1));
        for seed in 0..4 {
            simulated(seed, async move { conformance::check_all(Rc::new(memory(block_size)), seed).await });
        }
    }
}

#[test]
fn file_in_both_worlds() {
    for block_size in [512, 4096] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("medium");
        real(async { conformance::check_all(Rc::new(AnyNamespace::from(file(&path, block_size).await)), 2).await });
        for seed in 0..8 {
            simulated(seed, async move {
                conformance::check_all(Rc::new(file(Path::new(PATH), block_size).await), seed).await;
            });
        }
    }
}

#[test]
fn delays_of_the_fault_wrapper_keep_every_promise() {
    for seed in 0..8 {
        simulated(seed, async move {
            let config = FaultConfig {
                seed,
                delay: Duration::from_micros(1)..Duration::from_millis(1),
                ..FaultConfig::default()
            };
            conformance::check_all(Rc::new(Fault::new(Arc::new(memory(512)), config)), seed).await;
        });
    }
}

/// The lock under test is what keeps these apart: four reactors on threads of their own share one medium.
fn threads_lose_no_increment(namespace: &AnyNamespace, rounds: u64) {
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let namespace = namespace.clone();
            std::thread::spawn(move || real(conformance::increments(Rc::new(namespace), 4, rounds)))
        })
        .collect();
    let added: u64 = threads.into_iter().map(|thread| thread.join().expect("no promise was broken")).sum();
    let counted = real(conformance::counter(namespace));
    assert_eq!(counted, added, "a compare-and-write lost another thread's increment");
}

#[test]
fn threads_share_memory() {
    // Many: two threads must meet within one compare-and-write, which takes a microsecond.
    threads_lose_no_increment(&memory(512).into(), 2000);
}

#[test]
fn threads_share_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let namespace = real(file(&directory.path().join("medium"), 512)).into();
    threads_lose_no_increment(&namespace, 25);
}

/// A compare-and-write whose future is dropped (its connection died) while its write is under way: the next one waits for
/// the write, or it would be acknowledged on bytes that are about to be overwritten.
#[test]
fn a_dropped_compare_and_write_keeps_its_range() {
    let mut late = 0;
    for seed in 0..200 {
        let found = simulated(seed, async move {
            let namespace = Rc::new(file(Path::new(PATH), 4096).await);
            let first = namespace.compare_and_write(Lba(0), pattern(0), pattern(1), Durability::Stable);
            let impatience = Duration::from_micros(50 + seed * 2);
            if time::timeout(impatience, first).await.is_ok() {
                return None;
            }
            // Whoever comes next must find either the old or the new bytes, for good.
            let mut found = None;
            for expected in [0, 1] {
                let result =
                    namespace.compare_and_write(Lba(0), pattern(expected), pattern(9), Durability::Stable).await;
                if result.is_ok() {
                    found = Some(expected);
                    break;
                }
            }
            time::sleep(Duration::from_millis(10)).await;
            let (result, buf) = namespace.read(Lba(0), Buf::with_len(4096)).await;
            result.expect("a read succeeds");
            assert!(
                buf.iter().all(|&byte| byte == 9),
                "seed {seed}: an acknowledged write was overwritten by a late one"
            );
            found
        });
        late += u64::from(found == Some(1));
    }
    assert!(late > 10, "only {late} runs dropped the future while its write was under way: nothing was tested");
}

/// What was acknowledged as stable, or before a flush, is there after a crash; so is the identity. Each promise in runs of
/// its own: a flush of one command would make stable what another one forgot.
#[test]
fn a_crash_keeps_what_is_stable() {
    for seed in 0..160 {
        let world = World::new(seed, SimConfig::default());
        let node = world.node("n");
        let open = || async { file(Path::new(PATH), 4096).await };
        let before = world.spawn_on(node, async move {
            let namespace = open().await;
            match seed % 4 {
                0 => {
                    namespace.write(Lba(0), pattern(1), Durability::Cached).await.expect("written");
                    namespace.flush().await.expect("flushed");
                }
                1 => namespace.write(Lba(0), pattern(1), Durability::Stable).await.expect("written"),
                2 => {
                    let swap = namespace.compare_and_write(Lba(0), pattern(0), pattern(1), Durability::Stable);
                    swap.await.expect("compared equal and written");
                }
                _ => {
                    namespace.write(Lba(0), pattern(1), Durability::Stable).await.expect("written");
                    namespace.write(Lba(1), pattern(2), Durability::Stable).await.expect("written");
                    namespace.write_zeroes(Lba(1), 1, Durability::Stable).await.expect("zeroed");
                }
            }
            namespace.info().nguid
        });
        let nguid = world.run_until(before).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        world.crash(node);
        world.restart(node);
        let after = world.spawn_on(node, async move {
            let namespace = open().await;
            let (result, buf) = namespace.read(Lba(0), Buf::with_len(2 * 4096)).await;
            result.expect("a read succeeds");
            (namespace.info().nguid, [buf[0], buf[4095], buf[4096], buf[8191]])
        });
        let after = world.run_until(after).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        assert_eq!(after, (nguid, [1, 1, 0, 0]), "seed {seed}");
    }
}

/// After one failed write nothing more is written, reads go on, and the reason is told.
#[test]
fn a_write_error_latches_the_namespace() {
    let world = World::new(1, SimConfig::default());
    let node = world.node("n");
    world.disk(node, PATH, BYTES, DiskConfig { write_error_ppm: 1_000_000, ..DiskConfig::default() });
    let task = world.spawn_on(node, async {
        let options = FileOptions { nguid: Some([7; 16]), ..FileOptions::default() };
        let namespace = FileNamespace::open(Path::new(PATH), &options).await.expect("opened");
        assert_eq!((namespace.fault(), namespace.writability()), (None, Writability::Writable));
        let first = namespace.write(Lba(5), pattern(1), Durability::Cached).await;
        assert!(matches!(first, Err(device::Error::WriteFault(_))), "{first:?}");
        assert_eq!(namespace.writability(), Writability::Failed);
        let zeroes = namespace.write_zeroes(Lba(9), 1, Durability::Cached).await;
        let swap = namespace.compare_and_write(Lba(0), pattern(0), pattern(1), Durability::Stable).await;
        for later in
            [namespace.write(Lba(0), pattern(1), Durability::Cached).await, zeroes, swap, namespace.flush().await]
        {
            assert!(matches!(later, Err(device::Error::ReadOnly(_))), "{later:?}");
        }
        let (read, _) = namespace.read(Lba(0), Buf::with_len(4096)).await;
        assert_eq!(read, Ok(()));
        namespace.fault().map(str::to_owned)
    });
    let fault = world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
    assert!(fault.is_some_and(|fault| fault.contains(PATH)), "the fault names the medium");
}

/// A writer or flusher that goes away (its connection died) while its command is under way: the failure latches all the same.
/// The flush of the next one may well report success over what was lost.
#[test]
fn a_failure_that_nobody_waits_for_latches_too() {
    for flush in [false, true] {
        let world = World::new(1, SimConfig::default());
        let node = world.node("n");
        let slow = Duration::from_millis(1)..Duration::from_millis(2);
        world.disk(node, PATH, BYTES, DiskConfig { write_error_ppm: 1_000_000, delay: slow, ..DiskConfig::default() });
        let task = world.spawn_on(node, async move {
            let options = FileOptions { nguid: Some([7; 16]), ..FileOptions::default() };
            let namespace = FileNamespace::open(Path::new(PATH), &options).await.expect("opened");
            let command = async {
                if flush {
                    namespace.flush().await
                } else {
                    namespace.write(Lba(5), pattern(1), Durability::Cached).await
                }
            };
            assert!(time::timeout(Duration::from_micros(100), command).await.is_err(), "it takes longer");
            assert_eq!(namespace.fault(), None, "nothing is known yet");
            time::sleep(Duration::from_millis(10)).await;
            let later = namespace.flush().await;
            assert!(matches!(later, Err(device::Error::ReadOnly(_))), "flush {flush}: {later:?}");
        });
        world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
    }
}

/// Of two flushes at the same time the kernel may tell only one that bytes were lost: the other is no success either.
#[test]
fn a_flush_that_ends_after_another_failed_is_no_success() {
    let mut seen = 0;
    for seed in 0..40 {
        let world = World::new(seed, SimConfig::default());
        let node = world.node("n");
        world.disk(node, PATH, BYTES, DiskConfig { write_error_ppm: 500_000, ..DiskConfig::default() });
        let task = world.spawn_on(node, async move {
            let options = FileOptions { nguid: Some([7; 16]), ..FileOptions::default() };
            let namespace = Rc::new(FileNamespace::open(Path::new(PATH), &options).await.expect("opened"));
            let order = Rc::new(std::cell::RefCell::new(vec![]));
            let flushes: Vec<_> = (0..2)
                .map(|_| {
                    let (namespace, order) = (namespace.clone(), order.clone());
                    engine::task::spawn(async move {
                        let result = namespace.flush().await;
                        order.borrow_mut().push(result);
                    })
                })
                .collect();
            for flush in flushes {
                flush.await;
            }
            order.take()
        });
        let order = world.run_until(task).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
        assert!(order[0].is_ok() || order[1].is_err(), "seed {seed}: {order:?}");
        seen += usize::from(order[0].is_err());
    }
    assert!(seen > 5, "a flush failed first in only {seen} runs");
}

/// Each fault alone and certain: what the caller is told, and what is on the medium at once and later.
#[test]
fn injected_faults_are_those_of_the_model() {
    const ALWAYS: u32 = 1_000_000;
    let base =
        || FaultConfig { seed: 3, delay: Duration::from_millis(1)..Duration::from_millis(2), ..FaultConfig::default() };
    type Told = fn(&device::Error) -> bool;
    let lost: Told = |error| matches!(error, device::Error::Disconnected(_));
    let fault: Told = |error| matches!(error, device::Error::WriteFault(_));
    let cases = [
        (FaultConfig { lost_command_ppm: ALWAYS, ..base() }, lost, 0, 0),
        (FaultConfig { lost_reply_ppm: ALWAYS, ..base() }, lost, 5, 5),
        (FaultConfig { late_command_ppm: ALWAYS, ..base() }, lost, 0, 5),
        (FaultConfig { write_error_ppm: ALWAYS, ..base() }, fault, 0, 0),
    ];
    for (config, told, at_once, later) in cases {
        simulated(1, async move {
            let namespace = Fault::new(Arc::new(memory(4096)), config.clone());
            let error = namespace.write(Lba(0), pattern(5), Durability::Stable).await.expect_err("a fault is certain");
            assert!(told(&error), "{config:?}: {error}");
            for expected in [at_once, later] {
                assert_eq!(namespace.inner().compare(Lba(0), pattern(expected)).await, Ok(()), "{config:?}");
                time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
    simulated(1, async move {
        let namespace = Fault::new(Arc::new(memory(4096)), FaultConfig { read_error_ppm: ALWAYS, ..base() });
        let (result, buf) = namespace.read(Lba(0), Buf::zeroed(4096)).await;
        assert!(matches!(result, Err(device::Error::ReadFault(_))), "{result:?}");
        assert!(buf.iter().any(|&byte| byte != 0), "a failed read must not look like data");
    });
}
