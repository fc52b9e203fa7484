//! The seeds of the target's session fuzzer, and the proof that each gets where it should: a fuzzer that never passes the
//! handshake, or never sends an R2T's data, finds nothing there, and says so nowhere.
//!
//! `UPDATE_SEEDS=1 cargo test -p fabric --lib fuzz::seeds` writes them anew to `fuzz/seeds/target_session`.

use std::path::Path;

use nvme::fabrics::{ConnectData, ConnectFields, PropertyFields};
use nvme::log::LogId;
use nvme::opcode::{AdminOpcode, FabricsType, NvmOpcode};
use nvme::register::{Configuration, offset};
use nvme::zns::{ZoneReceive, ZoneSend, receive_action, send_action};
use nvme::{CONTROLLER_ID_DYNAMIC, Fuse, SglDescriptor, Submission};
use zerocopy::{FromZeros, IntoBytes};

use super::run_target_session;
use crate::tcp::{DataPdu, Encoder, Pdu};

/// The first byte: where the session stands, no digests, pieces of 961 bytes.
const OPENED: u8 = 0xF1;
const ADMIN: u8 = 0xF2;
const IO: u8 = 0xF3;

const ENCODER: Encoder = Encoder { header_digest: false, data_digest: false, alignment_code: 0 };

fn capsule(mut command: Submission, data: &[u8]) -> Vec<u8> {
    if !data.is_empty() {
        command.sgl = SglDescriptor::in_capsule(data.len() as u32);
    }
    [&ENCODER.capsule_cmd(&command, data.len() as u32)[..], data].concat()
}

fn nvm(opcode: NvmOpcode, id: u16, bytes: u32) -> Submission {
    let mut command = Submission::nvm(opcode, id, 1);
    command.set_range(0, (bytes / 4096).max(1));
    command.sgl = SglDescriptor::transport(bytes);
    command
}

fn admin(opcode: AdminOpcode, id: u16, cdw10: u32, bytes: u32) -> Vec<u8> {
    let mut command = Submission::admin(opcode, id, 0);
    command.cdw10 = cdw10.into();
    command.sgl = SglDescriptor::transport(bytes);
    capsule(command, &[])
}

/// The first 64 bytes of a log page.
fn log(id: u16, page: LogId) -> Vec<u8> {
    admin(AdminOpcode::GET_LOG_PAGE, id, u32::from(page.0) | 15 << 16, 64)
}

fn io_seed() -> Vec<u8> {
    let mut zeroes = nvm(NvmOpcode::WRITE_ZEROES, 4, 0);
    zeroes.set_range(9, 1);
    [
        capsule(nvm(NvmOpcode::WRITE, 1, 4096), &[7; 4096]),
        capsule(nvm(NvmOpcode::READ, 2, 4096), &[]),
        capsule(nvm(NvmOpcode::FLUSH, 3, 0), &[]),
        capsule(zeroes, &[]),
        capsule(nvm(NvmOpcode::COMPARE, 5, 4096), &[7; 4096]),
    ]
    .concat()
}

/// The first command of a queue has slot 0, which is its transfer tag.
fn r2t_seed() -> Vec<u8> {
    let part = |offset, last| DataPdu { cccid: 1, ttag: 0, offset, bytes: 4096, last, success: false };
    let data = |offset, last| [&ENCODER.h2c_data(&part(offset, last))[..], &[9; 4096]].concat();
    [capsule(nvm(NvmOpcode::WRITE, 1, 8192), &[]), data(0, false), data(4096, true)].concat()
}

fn fused_seed() -> Vec<u8> {
    let half = |opcode, id, fuse| {
        let mut command = nvm(opcode, id, 4096);
        command.set_fuse(fuse);
        command
    };
    [
        capsule(half(NvmOpcode::COMPARE, 1, Fuse::First), &[0; 4096]),
        capsule(half(NvmOpcode::WRITE, 2, Fuse::Second), &[5; 4096]),
    ]
    .concat()
}

fn admin_seed() -> Vec<u8> {
    [
        admin(AdminOpcode::IDENTIFY, 1, 1, 4096),
        log(2, LogId::ERROR),
        log(3, LogId::SMART),
        log(4, LogId::EFFECTS),
        admin(AdminOpcode::GET_FEATURES, 5, 7, 0),
        admin(AdminOpcode::SET_FEATURES, 6, 0x0B, 0),
        admin(AdminOpcode::ASYNC_EVENT_REQUEST, 7, 0, 0),
        admin(AdminOpcode::ABORT, 8, 7 << 16, 0),
        admin(AdminOpcode::KEEP_ALIVE, 9, 0, 0),
    ]
    .concat()
}

/// Of namespace 2, whose zones have eight blocks.
fn zones_seed() -> Vec<u8> {
    let of = |command: Submission, id: u16, bytes: u32| {
        let sgl = SglDescriptor::transport(bytes);
        Submission { command_id: id.into(), nsid: 2.into(), sgl, ..command }
    };
    let change = |zone, action, id| capsule(of(ZoneSend { zone, action }.to_submission(2), id, 0), &[]);
    let mut append = of(Submission::nvm(NvmOpcode::ZONE_APPEND, 1, 2), 1, 4096);
    append.set_range(8, 1);
    let report = ZoneReceive { lba: 8, bytes: 192, action: receive_action::REPORT, states: 0, partial: true };
    let mut zeroes = of(nvm(NvmOpcode::WRITE_ZEROES, 4, 0), 4, 0);
    zeroes.set_range(9, 2);
    [
        capsule(append, &[7; 4096]),
        capsule(of(report.to_submission(2), 2, 192), &[]),
        change(Some(16), send_action::OPEN, 3),
        capsule(zeroes, &[]),
        change(Some(8), send_action::FINISH, 5),
        change(None, send_action::RESET, 6),
    ]
    .concat()
}

fn discovery_seed() -> Vec<u8> {
    let mut data = ConnectData::new_zeroed();
    data.hostid = [1; 16];
    data.cntlid = CONTROLLER_ID_DYNAMIC.into();
    let name = |field: &mut [u8; 256], text: &[u8]| field[..text.len()].copy_from_slice(text);
    name(&mut data.subnqn, b"nqn.2014-08.org.nvmexpress.discovery");
    name(&mut data.hostnqn, b"nqn.2026-01.example.yagura:host");
    let mut connect = Submission::fabrics(FabricsType::CONNECT, 1);
    connect.as_mut_bytes()[40..].copy_from_slice(ConnectFields { sqsize: 31.into(), ..Default::default() }.as_bytes());
    connect.sgl = SglDescriptor::in_capsule(1024);
    let mut enable = Submission::fabrics(FabricsType::PROPERTY_SET, 2);
    let value = u64::from(Configuration::ENABLE.0).into();
    let fields = PropertyFields { offset: offset::CC.into(), value, ..PropertyFields::default() };
    enable.sgl = SglDescriptor::transport(0);
    enable.as_mut_bytes()[40..].copy_from_slice(fields.as_bytes());
    [capsule(connect, data.as_bytes()), capsule(enable, &[]), log(3, LogId::DISCOVERY)].concat()
}

/// Name, bytes, commands that must succeed, and those of them that bring data.
type Seed = (&'static str, Vec<u8>, Vec<u16>, Vec<u16>);

fn seeds() -> [Seed; 6] {
    let at = |mode: u8, bytes: Vec<u8>| [vec![mode], bytes].concat();
    [
        ("io", at(IO, io_seed()), vec![1, 2, 3, 4, 5], vec![2]),
        ("r2t", at(IO, r2t_seed()), vec![1], vec![]),
        ("fused", at(IO, fused_seed()), vec![1, 2], vec![]),
        ("zones", at(IO, zones_seed()), vec![1, 2, 3, 4, 5, 6], vec![2]),
        ("admin", at(ADMIN, admin_seed()), vec![1, 2, 3, 4, 5, 6, 8, 9], vec![1, 2, 3, 4]),
        ("discovery", at(OPENED, discovery_seed()), vec![1, 2, 3], vec![3]),
    ]
}

#[test]
fn every_seed_of_the_target_gets_where_it_should() {
    for (name, bytes, succeed, with_data) in seeds() {
        let session = run_target_session(&bytes).expect("a seed has a first byte");
        let succeeded = |id: u16| {
            session.inbox.iter().any(|(pdu, ..)| match pdu {
                Pdu::CapsuleResp(completion) => completion.command_id.get() == id && completion.status().is_success(),
                Pdu::C2hData(data) => data.cccid == id && data.success,
                _ => false,
            })
        };
        let brought = |id: u16| {
            session
                .inbox
                .iter()
                .any(|(pdu, bytes, _)| matches!(pdu, Pdu::C2hData(data) if data.cccid == id) && !bytes.is_empty())
        };
        for id in succeed {
            assert!(succeeded(id), "{name}: command {id} did not succeed: {:?}", session.inbox);
        }
        for id in with_data {
            assert!(brought(id), "{name}: command {id} brought no data");
        }
        let asked = session.inbox.iter().any(|(pdu, ..)| matches!(pdu, Pdu::R2t(_)));
        assert_eq!(asked, name == "r2t", "{name}: R2T");
    }
}

#[test]
fn the_seeds_on_file_are_these() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/target_session");
    for (name, bytes, ..) in seeds() {
        let file = folder.join(name);
        if std::env::var_os("UPDATE_SEEDS").is_some() {
            std::fs::create_dir_all(&folder).expect("made");
            std::fs::write(&file, &bytes).expect("written");
        }
        let on_file = std::fs::read(&file).unwrap_or_default();
        assert!(on_file == bytes, "{}: run with UPDATE_SEEDS=1 to write it anew", file.display());
    }
}
