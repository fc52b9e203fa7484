//! Writes say where they go on a medium that places data. The medium is a wire before a target that places none: it answers the
//! question for the handles by a read of a block, and notes what writes say.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Lba, Memory, Namespace};
use engine::file::Lifetime;
use engine::net::{SendBatch, TcpListener, TcpStream};
use engine::sim::{SimConfig, World};
use engine::{Buf, View, task};
use fabric::host::{Multipath, MultipathOptions, Options, RemoteNamespace};
use fabric::subsystem::{Target, listen};
use nvme::Submission;
use nvme::opcode::NvmOpcode;
use nvme::tcp::{CapsuleCmd, CommonHeader, PduType};
use zerocopy::FromBytes;

const PORT: u16 = 4420;
const BLOCK: usize = 4096;
/// Where the answer to the question for the handles lies.
const STATUS: Lba = Lba(200);

/// What the wire does, and has seen.
#[derive(Default)]
struct Wire {
    places: Cell<bool>,
    refuses: Cell<bool>,
    /// What each write said since this was taken last.
    said: RefCell<Vec<Option<u16>>>,
}

impl Wire {
    fn change(&self, command: &mut Submission) {
        match NvmOpcode(command.opcode) {
            NvmOpcode::IO_MANAGEMENT_RECEIVE if self.places.get() => {
                assert_eq!(command.cdw10.get(), 1, "the status of the handles");
                assert_eq!(command.cdw11.get() as usize, BLOCK / 4 - 1);
                (command.opcode, command.cdw11) = (NvmOpcode::READ.0, 0.into());
                command.set_range(STATUS.0, 1);
            }
            NvmOpcode::WRITE => {
                self.said.borrow_mut().push(command.placement());
                if command.placement().is_some() && self.refuses.get() {
                    command.nsid = 77.into();
                }
                (command.cdw12, command.cdw13) = ((command.cdw12.get() & !(0xF << 20)).into(), 0.into());
            }
            _ => {}
        }
    }

    /// Passes PDUs on; commands are changed on their way.
    async fn pass(&self, from: &TcpStream, to: &TcpStream) {
        let mut waiting = Vec::new();
        loop {
            let (received, buf) = from.recv(Buf::with_capacity(64 << 10)).await;
            if !matches!(received, Ok(1..)) {
                return;
            }
            waiting.extend_from_slice(&buf);
            while let Ok((head, _)) = CommonHeader::read_from_prefix(&waiting)
                && waiting.len() >= head.plen.get() as usize
            {
                let mut pdu: Vec<u8> = waiting.drain(..head.plen.get() as usize).collect();
                if head.pdu_type == PduType::CAPSULE_CMD {
                    let (capsule, _) = CapsuleCmd::mut_from_prefix(&mut pdu).expect("a whole capsule");
                    self.change(&mut capsule.command);
                }
                send(to, &pdu).await;
            }
        }
    }

    async fn serve(self: Rc<Self>, at: SocketAddr, target: SocketAddr) {
        let listener = TcpListener::bind(at).expect("a free port");
        loop {
            let (host, _) = listener.accept().await.expect("accepted");
            let beyond = TcpStream::connect(target).await.expect("connected");
            let (host, beyond) = (Rc::new(host), Rc::new(beyond));
            let (wire, back) = (self.clone(), (beyond.clone(), host.clone()));
            task::spawn(async move { wire.pass(&host, &beyond).await }).detach();
            task::spawn(async move {
                while let (Ok(1..), bytes) = back.0.recv(Buf::with_capacity(64 << 10)).await {
                    send(&back.1, &bytes).await;
                }
            })
            .detach();
        }
    }
}

async fn send(to: &TcpStream, bytes: &[u8]) {
    let mut batch = SendBatch::new();
    batch.view(Buf::copy_from(bytes).freeze());
    to.send(batch).await.0.expect("sent");
}

fn page(bytes: &[u8]) -> View {
    let mut page = Buf::zeroed(BLOCK);
    page[..bytes.len()].copy_from_slice(bytes);
    page.freeze()
}

/// The status of these handles.
fn status(placements: &[u16]) -> View {
    let mut bytes = vec![0; 14];
    bytes.extend((placements.len() as u16).to_le_bytes());
    for placement in placements {
        // The handle has the same number.
        bytes.extend([placement.to_le_bytes(), placement.to_le_bytes()].concat());
        bytes.extend([0; 28]);
    }
    page(&bytes)
}

async fn told(wire: &Wire, namespace: &impl Namespace) -> Vec<Option<u16>> {
    wire.said.borrow_mut().clear();
    namespace.write(Lba(1), page(b"one"), Durability::Stable).await.expect("written");
    namespace.write(Lba(2), Buf::zeroed(64 * BLOCK).freeze(), Durability::Cached).await.expect("written");
    wire.said.take()
}

async fn place(wire: Rc<Wire>, options: Options) {
    let namespace = RemoteNamespace::connect(options.clone()).await.expect("connected");
    assert!(!namespace.hint_lifetime(Lifetime::Medium).await, "the target knows no such command");
    assert!(told(&wire, &namespace).await.iter().all(Option::is_none));

    wire.places.set(true);
    namespace.write(STATUS, status(&[7, 8, 9, 10, 11]), Durability::Stable).await.expect("written");
    for (lifetime, expected) in [(Lifetime::Short, 8), (Lifetime::Medium, 9), (Lifetime::Long, 10)] {
        assert!(namespace.hint_lifetime(lifetime).await);
        let said = told(&wire, &namespace).await;
        assert!(said.len() >= 2 && said.iter().all(|said| *said == Some(expected)), "{lifetime:?}: {said:?}");
    }
    // Over several paths each is told.
    let paths = Multipath::connect(MultipathOptions::new(options, &[])).await.expect("connected");
    assert!(paths.hint_lifetime(Lifetime::Medium).await);
    assert!(told(&wire, &paths).await.iter().all(|said| *said == Some(9)));
    drop(paths);
    // Pairs are what others rely on: they say nothing.
    wire.said.borrow_mut().clear();
    let swapped = namespace.compare_and_write(Lba(1), page(b"one"), page(b"two"), Durability::Stable).await;
    swapped.expect("as it was");
    assert_eq!(wire.said.take(), [None]);
    let (read, bytes) = namespace.read(Lba(1), Buf::with_len(BLOCK)).await;
    read.expect("read");
    assert!(bytes.starts_with(b"two"));

    // Fewer handles than lifetimes: the last; one is everybody's.
    namespace.write(STATUS, status(&[7, 65_000]), Durability::Stable).await.expect("written");
    assert!(namespace.hint_lifetime(Lifetime::Long).await);
    assert_eq!(told(&wire, &namespace).await[0], Some(65_000));
    namespace.write(STATUS, status(&[7]), Durability::Stable).await.expect("written");
    assert!(!namespace.hint_lifetime(Lifetime::Long).await);
    assert_eq!(told(&wire, &namespace).await[0], None);

    // A handle that is the namespace's no more: the write is made without it, and so are those that follow.
    namespace.write(STATUS, status(&[1, 2]), Durability::Stable).await.expect("written");
    assert!(namespace.hint_lifetime(Lifetime::Short).await);
    wire.refuses.set(true);
    wire.said.borrow_mut().clear();
    namespace.write(Lba(1), page(b"again"), Durability::Stable).await.expect("written the second time");
    assert_eq!(wire.said.take(), [Some(2), None]);
    assert!(told(&wire, &namespace).await.iter().all(Option::is_none));
}

#[test]
fn writes_name_the_handle_of_their_lifetime() {
    let world = World::new(1, SimConfig::default());
    let (node, middle, host) = (world.node("target"), world.node("wire"), world.node("host"));
    let target = Target::default();
    let nqn: nvme::Nqn = "nqn.2026-01.example.yagura:placement".parse().expect("an NQN");
    target.add_subsystem(nqn.clone(), "1").expect("a subsystem");
    let memory = Memory::new(1 << 20, BLOCK as u32, [7; 16]).expect("a memory namespace");
    target.add_namespace(&nqn, 1, memory).expect("a namespace");
    let (real, at) = (SocketAddr::new(world.addr(node), PORT), SocketAddr::new(world.addr(middle), PORT));
    let serving = async move { target.serve(listen(real).await.expect("a free port"), Vec::new()).await };
    world.spawn_on(node, serving).detach();
    let wire = Rc::new(Wire::default());
    world.spawn_on(middle, wire.clone().serve(at, real)).detach();
    world.run_for(Duration::from_millis(10)).expect("no stall");
    let placing = world.spawn_on(host, place(wire, Options::new(at, nqn, 1)));
    world.run_until(placing).unwrap_or_else(|stalled| panic!("{stalled}"));
}
