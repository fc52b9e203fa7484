//! The Commands Supported and Effects log says exactly what is served.

use std::sync::Arc;

use device::Namespace;
use nvme::extension::{Extension, ExtensionCommand};
use nvme::identify::{Cns, IdentifyController, oncs};
use nvme::log::LogId;
use nvme::opcode::AdminOpcode;
use zerocopy::FromBytes;

use super::admin::{identify, log};
use super::management::Shelf;
use super::*;
use crate::subsystem::raw_host::subsystem;
use crate::subsystem::{HostConfig, PortConfig, PortId, Profile, Target, TargetConfig};

/// Opcodes that a queue answers with anything but Invalid Command Opcode. Connect, Disconnect and the like are in no log.
fn served(queue: &mut RawHost) -> Vec<u8> {
    let is_served = |opcode: &u8| {
        let command = Submission::admin(AdminOpcode(*opcode), (*opcode).into(), 1);
        let command = Submission { sgl: SglDescriptor::transport(0), ..command };
        // An Asynchronous Event Request is not answered at all.
        let answer = queue.send(&command, &[]);
        answer.is_none_or(|(completion, _)| completion.status().kind() != Status::INVALID_OPCODE)
    };
    (0..=u8::MAX).filter(|&opcode| opcode != 0x7F).filter(is_served).collect()
}

/// The log promised Write Uncorrectable where no namespace could keep the marks: a host that had read it there, and not in
/// Identify, got Invalid Command Opcode.
#[test]
fn the_effects_log_names_what_is_served_and_nothing_else() {
    // Marks; a store that its hosts may use; one that has our own commands.
    let full = [
        (true, false, false),
        (false, false, false),
        (true, true, false),
        (false, true, false),
        (true, false, true),
        (true, true, true),
    ];
    let full = full.map(|kinds| (Profile::FULL, kinds));
    for (profile, (marks, managed, copying)) in full.into_iter().chain([(Profile::MINIMAL, (true, false, false))]) {
        let target = Target::new(TargetConfig { profile, ..TargetConfig::default() });
        target.add_port(PortConfig::new(PortId(1))).unwrap();
        target.add_subsystem(subsystem(), "SERIAL").unwrap();
        target.add_namespace(&subsystem(), 1, memory()).unwrap();
        if managed || copying {
            target.add_store(&subsystem(), Arc::new(Shelf::that_copies(copying))).unwrap();
        }
        if managed {
            let config = HostConfig { manage: true, ..HostConfig::default() };
            target.allow_host(&subsystem(), &crate::subsystem::raw_host::host(), config).unwrap();
        }
        // As a block device is, or a file with an identity from elsewhere.
        let info = target.namespace(&subsystem(), 1).unwrap().info();
        let info = device::NamespaceInfo { write_uncorrectable: marks, ..info };
        pretend(&target, 1, info);
        let mut io = RawHost::on(&target);
        io.open(false, false);
        io.connect_io_of(3);
        let mut admin = io.admin.take().expect("it holds the controller");
        let page = log(&mut admin, LogId::EFFECTS, 4096, 0).unwrap();
        let listed = |at: usize| -> Vec<u8> {
            (0..=u8::MAX).filter(|&opcode| page[at + 4 * usize::from(opcode)] & 1 == 1).collect()
        };
        let what = format!("{profile:?}, marks: {marks}, managed: {managed}, copying: {copying}");
        assert_eq!((listed(0), listed(1024)), (served(&mut admin), served(&mut io)), "{what}");
        let page = identify(&mut admin, Cns::CONTROLLER, 0).unwrap();
        let page = IdentifyController::read_from_bytes(&page).unwrap();
        let extension = Extension { copies: copying, grow: copying && managed, differences: copying };
        assert_eq!(Extension::of(&page), extension, "{what}");
        for opcode in ExtensionCommand::OPCODES {
            assert_eq!(extension.has(opcode), listed(0).contains(&opcode.0), "{what}: {opcode}");
        }
        let oncs = page.oncs.get();
        let promised = oncs & oncs::WRITE_UNCORRECTABLE != 0;
        assert_eq!(promised, listed(1024).contains(&NvmOpcode::WRITE_UNCORRECTABLE.0), "{what}");
    }
}
