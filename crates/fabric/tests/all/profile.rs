//! A controller that offers the least: what it says of itself, what it refuses, and our host on it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use device::{Durability, Error, Lba, Memory, Namespace};
use engine::net::TcpListener;
use engine::{Buf, Reactor, ReactorConfig, task, time};
use fabric::host::{Multipath, MultipathOptions, Options, RemoteNamespace};
use fabric::subsystem::{Profile, Target, TargetConfig};
use nvme::Nqn;

const TIME_MAX: Duration = Duration::from_secs(30);
const BLOCK: usize = 4096;

fn subsystem() -> Nqn {
    "nqn.2026-01.example.yagura:minimal".parse().expect("a well-formed name")
}

fn on_minimal<F: Future<Output = ()>>(body: impl FnOnce(RemoteNamespace) -> F) {
    let test = async {
        let target = Target::new(TargetConfig { profile: Profile::MINIMAL, ..TargetConfig::default() });
        target.add_subsystem(subsystem(), "SERIAL").expect("new");
        let memory = Memory::new(16 << 20, BLOCK as u32, [3; 16]).expect("a good size");
        target.add_namespace(&subsystem(), 1, memory).expect("new");
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let address = listener.local_addr();
        let served = task::spawn(async move { target.serve(listener, vec![]).await });
        body(RemoteNamespace::connect(Options::new(address, subsystem(), 1)).await.expect("connected")).await;
        drop(served);
    };
    let bounded = async { time::timeout(TIME_MAX, test).await.expect("ends in time") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor");
}

fn pattern(bytes: usize, seed: usize) -> Buf {
    let mut buf = Buf::with_len(bytes);
    buf.iter_mut().enumerate().for_each(|(at, byte)| *byte = ((at + seed) / 5) as u8);
    buf
}

#[test]
fn the_host_takes_it_for_what_it_is() {
    on_minimal(async |namespace| {
        let info = namespace.info();
        assert_eq!((info.block_size, info.atomic_blocks, info.compare_and_write_blocks_max), (4096, 1, 1));
        assert!(!info.write_uncorrectable);
        // Longer ones are cut by the host where nothing has to be atomic, and refused where it has.
        let long = pattern(1 << 20, 1).freeze();
        namespace.write(Lba(8), long.clone(), Durability::Stable).await.expect("written");
        let (result, read) = namespace.read(Lba(8), Buf::with_len(1 << 20)).await;
        result.expect("read");
        assert!(read[..] == long[..]);
        let two = pattern(2 * BLOCK, 2).freeze();
        let refused = namespace.compare_and_write(Lba(8), two.clone(), two, Durability::Stable).await;
        assert!(matches!(refused, Err(Error::InvalidLength { .. })), "{refused:?}");
        assert!(matches!(namespace.write_zeroes(Lba(0), 1, Durability::Stable).await, Err(Error::Unsupported(_))));
    });
}

/// What only the first path could do was promised for all.
#[test]
fn paths_can_do_what_all_of_them_can() {
    let test = async {
        let mut served = Vec::new();
        // The second one offers no optional commands.
        let ports = [Profile::FULL, Profile::MINIMAL].map(|profile| {
            let target = Target::new(TargetConfig { profile, ..TargetConfig::default() });
            target.add_subsystem(subsystem(), "SERIAL").expect("new");
            let memory = Memory::new(16 << 20, BLOCK as u32, [3; 16]).expect("a good size");
            target.add_namespace(&subsystem(), 1, memory).expect("new");
            let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
            let address = listener.local_addr();
            served.push(task::spawn(async move { target.serve(listener, vec![]).await }));
            address
        });
        let options = Options { keep_alive: Duration::from_secs(5), ..Options::new(ports[0], subsystem(), 1) };
        let alone = RemoteNamespace::connect(options.clone()).await.expect("connected").info();
        assert!(alone.write_uncorrectable && alone.deallocated_reads_zero);
        let paths = Multipath::connect(MultipathOptions::new(options, &ports[1..])).await.expect("connected");
        let all = paths.info();
        assert!(!all.write_uncorrectable && !all.deallocated_reads_zero, "{all:?}");
    };
    let bounded = async { time::timeout(TIME_MAX, test).await.expect("ends in time") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor");
}

#[test]
fn pairs_of_one_block_exclude_each_other_in_a_queue_of_three_entries() {
    on_minimal(async |namespace| {
        let namespace = &std::rc::Rc::new(namespace);
        let counter = |count: u64| {
            let mut block = Buf::zeroed(BLOCK);
            block[..8].copy_from_slice(&count.to_le_bytes());
            block.freeze()
        };
        let mut adders = Vec::new();
        for _ in 0..8 {
            let namespace = namespace.clone();
            adders.push(task::spawn(async move {
                for _ in 0..20 {
                    loop {
                        let (result, block) = namespace.read(Lba(0), Buf::with_len(BLOCK)).await;
                        result.expect("read");
                        let count = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
                        let (old, new) = (counter(count), counter(count + 1));
                        match namespace.compare_and_write(Lba(0), old, new, Durability::Stable).await {
                            Ok(()) => break,
                            Err(Error::CompareFailure) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            }));
        }
        for adder in adders {
            adder.await;
        }
        let (_, block) = namespace.read(Lba(0), Buf::with_len(BLOCK)).await;
        assert_eq!(block[..8], 160u64.to_le_bytes());
    });
}
