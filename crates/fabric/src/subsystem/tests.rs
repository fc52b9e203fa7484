//! Scenario tests of the connection core: two ends in memory and a clock that is moved by hand.

mod abort;
mod access;
mod admin;
mod association;
mod attachment;
mod authentication;
mod capsules;
mod changed_keys;
mod changes;
mod copy;
mod effects;
mod extension;
mod features;
mod identifiers;
mod io;
mod management;
mod media;
mod paths;
mod protocol;
mod reservation_features;
mod reservations;
mod rights;
mod secure;
mod shelf;
mod terms;
mod zns;

use device::{Memory, NamespaceInfo};
use nvme::opcode::NvmOpcode;
use nvme::{Completion, SglDescriptor, Status, Submission};

use super::Target;
use super::io::{Operation, Outcome};
use super::raw_host::{RawHost, subsystem};
use super::shared::Change;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;

fn memory() -> Memory {
    Memory::new(BLOCKS * BLOCK as u64, BLOCK as u32, [7; 16]).unwrap()
}

/// Lets a namespace look as its medium does not.
fn pretend(target: &Target, nsid: u32, info: NamespaceInfo) {
    let nqn = subsystem();
    let mut state = target.shared.lock();
    state.subsystem(&nqn).unwrap().namespaces.get_mut(&nsid).unwrap().info = target.shared.config.profile.of(info);
    target.shared.changed(&mut state, &Change::Namespace(&nqn, nsid));
}

/// A session whose connection is I/O queue 1.
fn io_session(header_digest: bool, data_digest: bool) -> RawHost {
    let mut session = RawHost::new(memory());
    session.open(header_digest, data_digest);
    session.connect_io();
    session.inbox.clear();
    session
}

/// A session whose connection is the admin queue of an enabled controller.
fn admin_session() -> RawHost {
    let mut session = RawHost::new(memory());
    session.open(false, false);
    session.connect_admin();
    session.inbox.clear();
    session
}

/// A command on blocks of namespace 1.
fn command(opcode: NvmOpcode, id: u16, lba: u64, blocks: u32) -> Submission {
    let mut command = Submission::nvm(opcode, id, 1);
    command.set_range(lba, blocks);
    command.sgl = SglDescriptor::transport(blocks * BLOCK as u32);
    command
}

/// The same with its data in the capsule.
fn in_capsule(opcode: NvmOpcode, id: u16, lba: u64, blocks: u32) -> Submission {
    Submission { sgl: SglDescriptor::in_capsule(blocks * BLOCK as u32), ..command(opcode, id, lba, blocks) }
}

/// What becomes of an operation on a namespace that never waits.
fn executed(operation: Operation) -> Outcome {
    crate::fuzz::poll_once(super::driver::execute(operation, |change| change)).expect("memory never waits")
}

fn status(answer: Option<(Completion, Vec<u8>)>) -> Status {
    answer.expect("the command was answered").0.status()
}

/// Blocks that say which they are.
fn pattern(blocks: usize, seed: u8) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| (at / 7) as u8 ^ seed).collect()
}

fn write(session: &mut RawHost, lba: u64, data: &[u8]) -> Status {
    let blocks = (data.len() / BLOCK) as u32;
    status(session.send(&in_capsule(NvmOpcode::WRITE, 0x77, lba, blocks), data))
}

fn read(session: &mut RawHost, lba: u64, blocks: u32) -> Vec<u8> {
    let (completion, data) = session.send(&command(NvmOpcode::READ, 0x78, lba, blocks), &[]).expect("answered");
    assert_eq!(completion.status(), Status::SUCCESS);
    data
}
