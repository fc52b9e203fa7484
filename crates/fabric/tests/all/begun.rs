//! What was begun and must not end half way, though its connection does.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use device::{AnyNamespace, Error, Memory, Namespace, NamespaceInfo};
use engine::net::TcpListener;
use engine::{Buf, Reactor, ReactorConfig, View, task, time};
use fabric::subsystem::Target;
use nvme::reservation::{PersistChange, RegisterAction, RegisterKeys, ReservationCommand, ReservationStatus};
use nvme::{SglDescriptor, Status};
use zerocopy::{FromBytes, IntoBytes};

use crate::common::{Host, subsystem};

const TIME_MAX: Duration = Duration::from_secs(30);

/// Keeps attributes, and takes its time to make them durable.
struct Slow {
    memory: Memory,
    kept: Mutex<Option<Vec<u8>>>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    reached: AtomicBool,
    open: AtomicBool,
}

impl Namespace for Slow {
    device::delegate_namespace!(this => { Slow { memory, .. } => memory };
        read, write, flush, compare, compare_and_write, write_zeroes, deallocate, verify, write_uncorrectable,
        hint_lifetime, writability, used_blocks, link, zones);

    fn info(&self) -> NamespaceInfo {
        NamespaceInfo { persists_attributes: true, ..self.memory.info() }
    }

    fn attribute(&self, _key: &'static str) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.kept.lock().expect("no panic").clone())
    }

    async fn set_attribute(&self, _key: &'static str, value: &[u8]) -> Result<(), Error> {
        *self.kept.lock().expect("no panic") = Some(value.to_vec());
        self.gate.reached.store(true, Ordering::Release);
        while !self.gate.open.load(Ordering::Acquire) {
            time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

/// A target with such a namespace, and where it is served.
fn serve(gate: &Arc<Gate>) -> (Target, SocketAddr, task::Task<()>) {
    let memory = Memory::new(1 << 20, 4096, [3; 16]).expect("a good size");
    let slow = Slow { memory, kept: Mutex::default(), gate: gate.clone() };
    let target = Target::default();
    target.add_subsystem(subsystem(), "SERIAL").expect("new");
    target.add_namespace(&subsystem(), 1, AnyNamespace::other(slow)).expect("new");
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
    let address = listener.local_addr();
    let served = task::spawn({
        let target = target.clone();
        async move {
            target.serve(listener, vec![]).await;
        }
    });
    (target, address, served)
}

async fn registrants(host: &mut Host) -> u16 {
    let mut command = ReservationCommand::Report { bytes: 4096, extended: true }.to_submission(1);
    command.sgl = SglDescriptor::transport(4096);
    assert_eq!(host.command(&command, View::default()).await.expect("answered").status(), Status::SUCCESS);
    let (head, _) = ReservationStatus::read_from_prefix(&host.data).expect("long enough");
    head.controllers.get()
}

/// Sends a registration.
async fn register(io: &mut Host, key: u64) {
    let (action, persist) = (RegisterAction::Register, PersistChange::Set);
    let mut command = ReservationCommand::Register { action, ignore_key: true, persist }.to_submission(1);
    (command.command_id, command.sgl) = (50.into(), SglDescriptor::in_capsule(16));
    let keys = RegisterKeys { current: 0.into(), new: key.into() };
    io.submit(&command, Buf::copy_from(keys.as_bytes()).freeze()).await.expect("sent");
}

/// What waited for its turn was done when that came, though its connection had ended, and its host been told so.
#[test]
fn a_reservation_that_waits_for_its_turn_goes_with_its_connection() {
    let run = async {
        let gate = Arc::new(Gate::default());
        let (target, address, served) = serve(&gate);
        let admin = Host::admin_by(address, 1).await.expect("connects");
        let mut first = Host::io(address, false, &admin, 1).await.expect("connects");
        register(&mut first, 7).await;
        while !gate.reached.load(Ordering::Acquire) {
            time::sleep(Duration::from_millis(1)).await;
        }
        let other = Host::admin_by(address, 2).await.expect("connects");
        let mut second = Host::io(address, false, &other, 1).await.expect("connects");
        register(&mut second, 8).await;
        // Begun behind it, and answered: it waits.
        assert_eq!(registrants(&mut second).await, 0);
        drop((other, second));
        while target.stats().connections() > 2 {
            time::sleep(Duration::from_millis(1)).await;
        }
        gate.open.store(true, Ordering::Release);
        assert_eq!(first.completion().await.expect("answered").status(), Status::SUCCESS);
        // Behind all that waited.
        register(&mut first, 7).await;
        assert_eq!(first.completion().await.expect("answered").status(), Status::SUCCESS);
        assert_eq!(registrants(&mut first).await, 1);
        drop(served);
    };
    let bounded = async { time::timeout(TIME_MAX, run).await.expect("it ends") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor");
}

/// The connection of a host ended while its reservation was being made durable, and the change with it: it was kept and not
/// published, and would have come true when the target was started anew.
#[test]
fn a_reservation_that_is_being_kept_is_published_though_its_connection_ends() {
    let run = async {
        let gate = Arc::new(Gate::default());
        let (target, address, served) = serve(&gate);
        let admin = Host::admin_by(address, 1).await.expect("connects");
        let mut io = Host::io(address, false, &admin, 1).await.expect("connects");
        register(&mut io, 7).await;
        while !gate.reached.load(Ordering::Acquire) {
            time::sleep(Duration::from_millis(1)).await;
        }
        drop((admin, io));
        while target.stats().connections() > 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        gate.open.store(true, Ordering::Release);
        let admin = Host::admin_by(address, 2).await.expect("connects");
        let mut other = Host::io(address, false, &admin, 1).await.expect("connects");
        while registrants(&mut other).await == 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
        drop(served);
    };
    let bounded = async { time::timeout(TIME_MAX, run).await.expect("what was kept is never published") };
    Reactor::run(ReactorConfig::default(), bounded).expect("a reactor");
}
