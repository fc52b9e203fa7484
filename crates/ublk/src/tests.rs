//! The server against a double of the kernel's queue, and devices against a double of its driver.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use device::{AnyNamespace, Durability, Error, Lba, Memory, Namespace, NamespaceInfo};
use engine::sync::Notify;
use engine::{Reactor, ReactorConfig, View, time};
use zerocopy::IntoBytes;

use crate::figures::Figures;
use crate::protocol::{Parameters, Shape};
use crate::server::{Requests, Server};

const BYTES: u64 = 16 << 20;
const BLOCK: u32 = 4096;
/// Operations and flags, as the kernel numbers them.
const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 2;
const DISCARD: u32 = 3;
const WRITE_ZEROES: u32 = 5;
const FUA: u32 = 1 << 13;
const NOUNMAP: u32 = 1 << 15;
const ENODEV: i32 = 19;

fn run<T>(main: impl Future<Output = T>) -> T {
    let bounded = async { time::timeout(Duration::from_secs(60), main).await.expect("the test hangs") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor")
}

fn memory() -> AnyNamespace {
    Memory::new(BYTES, BLOCK, [1; 16]).expect("a namespace").into()
}

fn serve(kernel: &Kernel, tags: u16, namespace: &AnyNamespace) -> Server {
    Server::over(kernel.clone(), tags, namespace, &Arc::default())
}

/// A request, and what there is of its data.
#[derive(Clone)]
struct Asked {
    number: usize,
    words: [u64; 3],
    data: Vec<u8>,
}

#[derive(Default)]
struct Tags {
    waiting: VecDeque<Asked>,
    held: Vec<Option<Asked>>,
    /// By the request's number.
    answers: Vec<Option<(i32, Vec<u8>)>>,
    stopped: bool,
}

/// Gives each request to a tag that has none, as the kernel does.
#[derive(Default)]
struct Double {
    tags: RefCell<Tags>,
    changed: Notify,
}

#[derive(Clone)]
struct Kernel(Rc<Double>);

impl Kernel {
    fn new(tags: u16) -> Kernel {
        let double = Double::default();
        double.tags.borrow_mut().held = vec![None; tags.into()];
        Kernel(Rc::new(double))
    }

    /// Asks for something; `data`: of a write, or room for a read's.
    fn ask(&self, flags: u32, offset: u64, bytes: u64, data: Vec<u8>) -> usize {
        let mut first = [0; 8];
        first[..4].copy_from_slice(&flags.to_ne_bytes());
        first[4..].copy_from_slice(&((bytes / 512) as u32).to_ne_bytes());
        let mut tags = self.0.tags.borrow_mut();
        let number = tags.answers.len();
        tags.answers.push(None);
        tags.waiting.push_back(Asked { number, words: [u64::from_ne_bytes(first), offset / 512, 0], data });
        self.0.changed.notify_all();
        number
    }

    fn answered(&self, number: usize) -> Option<(i32, Vec<u8>)> {
        self.0.tags.borrow().answers[number].clone()
    }

    async fn answer(&self, number: usize) -> (i32, Vec<u8>) {
        loop {
            let changed = self.0.changed.notified();
            if let Some(answer) = self.answered(number) {
                return answer;
            }
            changed.await;
        }
    }

    async fn write(&self, offset: u64, data: &[u8]) -> i32 {
        self.answer(self.ask(WRITE, offset, data.len() as u64, data.to_vec())).await.0
    }

    async fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let (result, data) = self.answer(self.ask(READ, offset, bytes as u64, vec![0xFF; bytes])).await;
        assert_eq!(result, bytes as i32);
        data
    }

    fn stop(&self) {
        self.0.tags.borrow_mut().stopped = true;
        self.0.changed.notify_all();
    }
}

impl Requests for Kernel {
    async fn fetch(&self, tag: u16, answer: Option<i32>) -> io::Result<()> {
        let place = usize::from(tag);
        if let Some(result) = answer {
            let mut tags = self.0.tags.borrow_mut();
            let asked = tags.held[place].take().expect("an answer to what was asked");
            let before = tags.answers[asked.number].replace((result, asked.data));
            assert!(before.is_none(), "answered twice");
            self.0.changed.notify_all();
        }
        loop {
            let changed = self.0.changed.notified();
            {
                let mut tags = self.0.tags.borrow_mut();
                assert!(tags.held[place].is_none(), "the tag has a request still");
                if tags.stopped {
                    return Err(io::Error::from_raw_os_error(ENODEV));
                }
                if let Some(next) = tags.waiting.pop_front() {
                    tags.held[place] = Some(next);
                    return Ok(());
                }
            }
            changed.await;
        }
    }

    fn description(&self, tag: u16) -> [u64; 3] {
        self.0.tags.borrow().held[usize::from(tag)].as_ref().expect("a request").words
    }

    fn read(&self, tag: u16, from: usize, into: &mut [u8]) -> io::Result<()> {
        let tags = self.0.tags.borrow();
        let data = &tags.held[usize::from(tag)].as_ref().expect("a request").data;
        into.copy_from_slice(data.get(from..from + into.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write(&self, tag: u16, from: usize, data: &[u8]) -> io::Result<()> {
        let mut tags = self.0.tags.borrow_mut();
        let room = &mut tags.held[usize::from(tag)].as_mut().expect("a request").data;
        room.get_mut(from..from + data.len()).ok_or(io::ErrorKind::WriteZero)?.copy_from_slice(data);
        Ok(())
    }
}

#[test]
fn what_was_written_is_read_also_in_parts_zeroed_and_discarded() {
    run(async {
        let (kernel, namespace) = (Kernel::new(2), memory());
        let server = serve(&kernel, 2, &namespace);
        // More than a namespace takes at once, and no multiple of that; no two parts are alike.
        let byte = |at: u32| (at >> 20) as u8 ^ (at >> 12) as u8 ^ at as u8;
        let data: Vec<u8> = (0..(5u32 << 19) + BLOCK).map(byte).collect();
        assert_eq!(kernel.write(8192, &data).await, data.len() as i32);
        assert!(kernel.read(8192, data.len()).await == data);
        let whole = u64::from(BLOCK);
        for flags in [WRITE_ZEROES, WRITE_ZEROES | NOUNMAP] {
            assert_eq!(kernel.answer(kernel.ask(flags, 8192 + whole, 2 * whole, vec![])).await.0, 0);
        }
        let zeroed = kernel.read(8192, 16384).await;
        assert_eq!((&zeroed[..4096], &zeroed[12288..]), (&data[..4096], &data[12288..16384]));
        assert_eq!(zeroed[4096..12288], [0; 8192]);
        assert_eq!(kernel.answer(kernel.ask(DISCARD, 8192, whole, vec![])).await.0, 0);
        assert_eq!(kernel.read(8192, 4096).await, [0; 4096], "memory gives it back");
        kernel.stop();
        server.ended().await;
    });
}

#[test]
fn every_request_of_many_is_answered_once() {
    run(async {
        let kernel = Kernel::new(4);
        let figures = Arc::<Figures>::default();
        let server = Server::over(kernel.clone(), 4, &memory(), &figures);
        let block = |number: u64| vec![number as u8; BLOCK as usize];
        let asked: Vec<usize> = (0..300).map(|n| kernel.ask(WRITE, n * 4096, 4096, block(n))).collect();
        for number in asked {
            assert_eq!(kernel.answer(number).await.0, 4096);
        }
        for number in [0, 77, 299] {
            assert_eq!(kernel.read(number * 4096, 4096).await, block(number));
        }
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        assert_eq!((count(&figures.requests), count(&figures.failed)), (303, 0));
        assert!(!server.is_over());
        assert_eq!((count(&figures.written_bytes), count(&figures.read_bytes)), (300 * 4096, 3 * 4096));
        kernel.stop();
        time::sleep(Duration::from_millis(20)).await;
        assert!(server.is_over(), "the device was stopped");
        server.ended().await;
    });
}

/// A namespace that notes how its commands were to be made stable, and waits for leave to flush.
struct Noting {
    memory: Memory,
    thin: bool,
    noted: Arc<Mutex<Vec<&'static str>>>,
    leave: Arc<AtomicUsize>,
}

impl Noting {
    fn note(&self, what: [&'static str; 2], durability: Durability) {
        self.noted.lock().unwrap().push(what[usize::from(durability == Durability::Stable)]);
    }
}

impl Namespace for Noting {
    device::delegate_namespace!(this => { Noting { memory, .. } => memory };
        read, compare, compare_and_write, deallocate, verify, write_uncorrectable, hint_lifetime, writability,
        used_blocks, link, attribute, set_attribute, zones);

    fn info(&self) -> NamespaceInfo {
        NamespaceInfo { thin: self.thin, ..self.memory.info() }
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        self.note(["write", "stable write"], durability);
        match lba.0 {
            1000 => Err(Error::Reserved("it".into())),
            1001 => Err(Error::OutOfSpace),
            1002 => Err(Error::Aborted),
            _ => self.memory.write(lba, data, durability).await,
        }
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        self.note(["zero", "stable zero"], durability);
        self.memory.write_zeroes(lba, blocks, durability).await
    }

    async fn flush(&self) -> Result<(), Error> {
        self.noted.lock().unwrap().push("flush");
        while self.leave.load(Relaxed) == 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        self.leave.fetch_sub(1, Relaxed);
        self.memory.flush().await
    }
}

fn noting(thin: bool) -> (AnyNamespace, Arc<Mutex<Vec<&'static str>>>, Arc<AtomicUsize>) {
    let noted = Arc::new(Mutex::new(Vec::new()));
    let memory = Memory::new(BYTES, BLOCK, [1; 16]).expect("a namespace");
    let leave = Arc::<AtomicUsize>::default();
    (AnyNamespace::other(Noting { memory, thin, noted: noted.clone(), leave: leave.clone() }), noted, leave)
}

#[test]
fn what_is_to_be_stable_is_told_to_the_namespace_and_waited_for() {
    run(async {
        let (namespace, noted, leave) = noting(true);
        let kernel = Kernel::new(2);
        let _server = serve(&kernel, 2, &namespace);
        let block = vec![1; BLOCK as usize];
        for (flags, expected) in [
            (WRITE, "write"),
            (WRITE | FUA, "stable write"),
            (WRITE_ZEROES, "zero"),
            (WRITE_ZEROES | FUA, "stable zero"),
            (WRITE_ZEROES | NOUNMAP, "write"),
            (WRITE_ZEROES | NOUNMAP | FUA, "stable write"),
        ] {
            let asked = kernel.ask(flags, 0, 4096, block.clone());
            assert!(kernel.answer(asked).await.0 >= 0);
            assert_eq!(std::mem::take(&mut *noted.lock().unwrap()), [expected], "{flags:#x}");
        }
        for flags in [FLUSH, DISCARD | FUA] {
            let asked = kernel.ask(flags, 0, if flags == FLUSH { 0 } else { 4096 }, vec![]);
            time::sleep(Duration::from_millis(20)).await;
            assert_eq!(std::mem::take(&mut *noted.lock().unwrap()), ["flush"]);
            assert_eq!(kernel.answered(asked), None, "before it was stable");
            leave.store(1, Relaxed);
            assert_eq!(kernel.answer(asked).await.0, 0);
        }
    });
}

#[test]
fn what_fails_is_told_by_an_error_that_the_kernel_knows() {
    run(async {
        let (namespace, ..) = noting(false);
        let kernel = Kernel::new(1);
        let _server = serve(&kernel, 1, &namespace);
        let cases = [
            (WRITE, 1000 * 4096, 4096, -52),
            (WRITE, 1001 * 4096, 4096, -28),
            (WRITE, 1002 * 4096, 4096, -5),
            (WRITE, BYTES, 4096, -5),
            (READ, 512, 4096, -5),
            (READ, 0, 512, -5),
            (READ, u64::MAX - 511, 4096, -5),
            (4, 0, 4096, -95),
            (15, 0, 4096, -95),
        ];
        for (flags, offset, bytes, expected) in cases {
            let asked = kernel.ask(flags, offset, bytes, vec![0; bytes as usize]);
            assert_eq!(kernel.answer(asked).await.0, expected, "{flags} at {offset}");
        }
        // Data that the kernel does not give.
        assert_eq!(kernel.answer(kernel.ask(WRITE, 0, 8192, vec![1; 4096])).await.0, -5);
        assert_eq!(kernel.read(0, 4096).await, [0; 4096], "nothing of it was written");
    });
}

#[test]
fn what_is_under_way_when_the_device_is_stopped_is_answered() {
    run(async {
        let (namespace, _, leave) = noting(false);
        let kernel = Kernel::new(3);
        let server = serve(&kernel, 3, &namespace);
        let asked = kernel.ask(FLUSH, 0, 0, vec![]);
        time::sleep(Duration::from_millis(10)).await;
        kernel.stop();
        let ended = engine::task::spawn(server.ended());
        time::sleep(Duration::from_millis(10)).await;
        assert!(!ended.is_finished(), "before the answer");
        leave.store(1, Relaxed);
        ended.await;
        assert_eq!(kernel.answered(asked), Some((0, vec![])));
    });
}

#[test]
fn the_kernel_is_told_what_the_namespace_is() {
    let info = memory().info();
    let info = NamespaceInfo { preferred_write_blocks: 4, preferred_deallocate_blocks: 16, ..info };
    let words = |parameters: Parameters| {
        let bytes = parameters.as_bytes().to_vec();
        (u32::from_ne_bytes(bytes[8..12].try_into().expect("four")), bytes)
    };
    let shape = Shape::of(NamespaceInfo { volatile_cache: true, ..info.clone() }, false).expect("small blocks");
    let (attributes, bytes) = words(shape.parameters());
    assert_eq!((bytes.len(), attributes), (64, 0b1100), "a cache, and FUA");
    assert_eq!(bytes[..8], [60u32.to_ne_bytes(), 3u32.to_ne_bytes()].concat(), "length, and which parts");
    assert_eq!(bytes[12..16], [12, 12, 14, 14], "shifts");
    assert_eq!(bytes[16..20], 2048u32.to_ne_bytes(), "a mebibyte at once");
    assert_eq!(bytes[24..32], (BYTES / 512).to_ne_bytes());
    assert_eq!(bytes[44..48], 65536u32.to_ne_bytes(), "granularity");
    assert_eq!(bytes[56..58], 1u16.to_ne_bytes(), "segments");
    let (attributes, bytes) = words(Shape::of(info.clone(), true).expect("small blocks").parameters());
    assert_eq!((attributes, &bytes[4..8]), (1, &1u32.to_ne_bytes()[..]), "read-only, without discard");
    assert!(Shape::of(NamespaceInfo { block_size: 8192, ..info }, false).is_none());
}

/// What a read gives is all there before it is answered: the buffer of a read that fails is not shown.
#[test]
fn a_read_that_fails_gives_no_data() {
    run(async {
        let kernel = Kernel::new(1);
        let _server = serve(&kernel, 1, &memory());
        let (result, data) = kernel.answer(kernel.ask(READ, BYTES, 4096, vec![0xAA; 4096])).await;
        assert_eq!((result, data), (-5, vec![0xAA; 4096]));
    });
}
