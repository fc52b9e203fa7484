//! Peers that a target must bear: they stop half-way, send slowly, break the protocol, vanish, or never read.
//!
//! Every act begins with a connection of its own. That the target refuses or ends it is the expected outcome, so errors of
//! the connection end the act and nothing else; what counts is what the target's other hosts see meanwhile.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fabric::tcp::{DataPdu, Encoder, IcReq};
use nvme::fabrics::{ConnectData, ConnectFields, PropertyFields, connect_attributes};
use nvme::opcode::{FabricsType, NvmOpcode};
use nvme::register::{Configuration, offset};
use nvme::{CONTROLLER_ID_DYNAMIC, Nqn, SglDescriptor, Submission};
use zerocopy::{FromZeros, IntoBytes};

/// How long a hostile peer waits for an answer before it goes on without. Guessed: it has no time to lose.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(500);
/// Connections that one peer leaves open behind it. Guessed: enough to be a burden, and far below a target's bound.
const HELD_MAX: usize = 32;
/// Entries of the queues it connects.
const QUEUE_ENTRIES: u16 = 4;
/// Bytes of the commands whose data never moves: the largest transfer.
const LARGE_BYTES: u32 = 1 << 20;
/// Steps of a connection's life at which it is reset.
const STEPS: u64 = 8;

/// What a hostile peer does, again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mischief {
    /// Connects and disconnects.
    ConnectStorm,
    /// Connects, sends half an ICReq or nothing, and stays.
    HalfOpen,
    /// Sends one byte at a time.
    SlowSender,
    /// Sends more commands than its queue has entries.
    QueueFlood,
    /// Sends data and headers with wrong digests.
    DigestErrors,
    /// Resets the connection at every step of the handshake and of a write.
    Resets,
    /// Announces PDUs that are too long, or no PDUs at all.
    BadPdus,
    /// Asks to write, and never sends the data that the target asks for.
    DataNeverSent,
    /// Asks to read, and never reads.
    NeverReads,
}

impl Mischief {
    /// Everything it can do.
    pub const ALL: [Mischief; 9] = [
        Mischief::ConnectStorm,
        Mischief::HalfOpen,
        Mischief::SlowSender,
        Mischief::QueueFlood,
        Mischief::DigestErrors,
        Mischief::Resets,
        Mischief::BadPdus,
        Mischief::DataNeverSent,
        Mischief::NeverReads,
    ];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Mischief::ConnectStorm => "connects and disconnects",
            Mischief::HalfOpen => "half-open connections",
            Mischief::SlowSender => "a slow sender",
            Mischief::QueueFlood => "more commands than entries",
            Mischief::DigestErrors => "wrong digests",
            Mischief::Resets => "resets at every step",
            Mischief::BadPdus => "oversized and senseless PDUs",
            Mischief::DataNeverSent => "data that never comes",
            Mischief::NeverReads => "a peer that never reads",
        }
    }
}

/// Does it to the subsystem `nqn` at `address` until told to stop or `acts_max` times, with a pause after each act (and after
/// each byte of a slow sender). Returns how often it was done.
pub fn run(
    mischief: Mischief,
    address: SocketAddr,
    nqn: &Nqn,
    acts_max: u64,
    pause: Duration,
    stop: &AtomicBool,
) -> u64 {
    let mut held = VecDeque::new();
    let mut acts = 0;
    while acts < acts_max && !stop.load(Ordering::Relaxed) {
        let rest = || {
            std::thread::sleep(pause);
            stop.load(Ordering::Relaxed)
        };
        // An error: the target has ended it, as it may.
        if let Ok(Some(peers)) = act(mischief, address, nqn, acts, &rest) {
            held.push_back(peers);
        }
        if held.len() > HELD_MAX {
            held.pop_front();
        }
        acts += 1;
        std::thread::sleep(pause);
    }
    acts
}

/// One act; the connections that are to stay open.
fn act(
    mischief: Mischief,
    address: SocketAddr,
    nqn: &Nqn,
    turn: u64,
    pause: &dyn Fn() -> bool,
) -> io::Result<Option<Vec<Peer>>> {
    match mischief {
        Mischief::ConnectStorm => {
            if turn.is_multiple_of(4) {
                Peer::admin(address, false, nqn)?;
            } else {
                TcpStream::connect(address)?;
            }
            return Ok(None);
        }
        Mischief::HalfOpen => {
            let mut peer = Peer::dial(address)?;
            if turn.is_multiple_of(2) {
                peer.stream.write_all(&ic_req(false)[..64])?;
            }
            return Ok(Some(vec![peer]));
        }
        Mischief::SlowSender => {
            let mut peer = Peer::dial(address)?;
            for byte in ic_req(false) {
                peer.stream.write_all(&[byte])?;
                if pause() {
                    break;
                }
            }
            return Ok(None);
        }
        Mischief::Resets => return reset(address, nqn, turn % STEPS).map(|()| None),
        Mischief::BadPdus => return bad_pdu(address, turn).map(|()| None),
        Mischief::QueueFlood | Mischief::DataNeverSent | Mischief::NeverReads | Mischief::DigestErrors => {}
    }
    let digests = mischief == Mischief::DigestErrors;
    let mut admin = Peer::admin(address, digests, nqn)?;
    let mut io = Peer::io(address, digests, nqn, admin.controller)?;
    match mischief {
        Mischief::QueueFlood => {
            for id in 0..4 * QUEUE_ENTRIES {
                io.write_by_r2t(id)?;
            }
            io.answer()?; // an R2T, or the C2HTermReq that says it was too much
            return Ok(None);
        }
        Mischief::DigestErrors => {
            io.write_with_wrong_digest(1)?;
            io.answer()?;
            admin.send_with_wrong_header_digest()?;
            admin.answer()?;
            return Ok(None);
        }
        Mischief::DataNeverSent => (0..QUEUE_ENTRIES - 1).try_for_each(|id| io.write_by_r2t(id))?,
        _ => (0..QUEUE_ENTRIES - 1).try_for_each(|id| io.read(id))?,
    }
    Ok(Some(vec![admin, io]))
}

/// Goes `step` steps into a connection's life and resets it there.
fn reset(address: SocketAddr, nqn: &Nqn, step: u64) -> io::Result<()> {
    let mut peers = Vec::new();
    if step < 4 {
        let mut peer = Peer::dial(address)?;
        match step {
            0 => {}
            1 => peer.stream.write_all(&ic_req(false)[..7])?,
            2 => peer.stream.write_all(&ic_req(false))?,
            _ => {
                peer.stream.write_all(&ic_req(false))?;
                peer.answer()?;
                let capsule = Encoder { header_digest: false, data_digest: false, alignment_code: 0 };
                let command = Submission::fabrics(FabricsType::CONNECT, 1);
                peer.stream.write_all(&capsule.capsule_cmd(&command, 1024)[..40])?;
            }
        }
        peers.push(peer);
    } else {
        let admin = Peer::admin(address, false, nqn)?;
        let mut io = Peer::io(address, false, nqn, admin.controller)?;
        match step {
            4 => {}
            5 => io.write_by_r2t(1)?,
            6 => {
                io.write_by_r2t(1)?;
                io.answer()?;
                let data = DataPdu { cccid: 1, ttag: 0, offset: 0, bytes: LARGE_BYTES, last: true, success: false };
                io.stream.write_all(&io.encoder.h2c_data(&data))?;
                io.stream.write_all(&[7; 5000])?;
            }
            _ => io.read(1)?,
        }
        peers.extend([io, admin]);
    }
    for peer in peers {
        // Lingering for no time is what makes the close a reset.
        rustix::net::sockopt::set_socket_linger(&peer.stream, Some(Duration::ZERO))?;
    }
    Ok(())
}

fn bad_pdu(address: SocketAddr, turn: u64) -> io::Result<()> {
    let mut peer = Peer::dial(address)?;
    if turn.is_multiple_of(2) {
        peer.stream.write_all(&ic_req(false))?;
        peer.answer()?;
        // A capsule of 4 GiB; its header is right otherwise.
        peer.stream.write_all(&[4, 0, 72, 0, 0xFF, 0xFF, 0xFF, 0xFF])?;
        peer.stream.write_all(&[0; 4096])?;
    } else {
        peer.stream.write_all(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")?;
    }
    peer.answer().map(drop)
}

fn ic_req(digests: bool) -> Vec<u8> {
    let request = IcReq { alignment_code: 0, header_digest: digests, data_digest: digests, maxr2t: 0 };
    Encoder::ic_req(&request).to_vec()
}

/// A connection of a hostile peer, with blocking calls.
struct Peer {
    stream: TcpStream,
    encoder: Encoder,
    controller: u16,
}

impl Peer {
    fn dial(address: SocketAddr) -> io::Result<Peer> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
        stream.set_nodelay(true)?;
        let encoder = Encoder { header_digest: false, data_digest: false, alignment_code: 0 };
        Ok(Peer { stream, encoder, controller: CONTROLLER_ID_DYNAMIC })
    }

    fn queue(address: SocketAddr, digests: bool, nqn: &Nqn, qid: u16, controller: u16) -> io::Result<Peer> {
        let mut peer = Peer::dial(address)?;
        peer.stream.write_all(&ic_req(digests))?;
        peer.answer()?;
        peer.encoder = Encoder { header_digest: digests, data_digest: digests, alignment_code: 0 };
        let fields = ConnectFields {
            qid: qid.into(),
            sqsize: (if qid == 0 { 31 } else { QUEUE_ENTRIES - 1 }).into(),
            cattr: connect_attributes::DISABLE_SQ_FLOW_CONTROL,
            kato: (if qid == 0 { 10_000 } else { 0 }).into(),
            ..ConnectFields::default()
        };
        let mut data = ConnectData::new_zeroed();
        data.hostid = [0xBA; 16];
        data.cntlid = controller.into();
        data.subnqn = nqn.to_field();
        data.hostnqn[..HOST_NQN.len()].copy_from_slice(HOST_NQN);
        let mut command = Submission::fabrics(FabricsType::CONNECT, 1);
        command.sgl = SglDescriptor::in_capsule(size_of::<ConnectData>() as u32);
        command.as_mut_bytes()[40..].copy_from_slice(fields.as_bytes());
        peer.send(&command, data.as_bytes())?;
        let answer = peer.answer()?;
        // The controller's identifier stands at the start of the completion.
        peer.controller = answer.get(8..10).map_or(controller, |id| u16::from_le_bytes([id[0], id[1]]));
        Ok(peer)
    }

    fn admin(address: SocketAddr, digests: bool, nqn: &Nqn) -> io::Result<Peer> {
        let mut peer = Peer::queue(address, digests, nqn, 0, CONTROLLER_ID_DYNAMIC)?;
        let value = u64::from(Configuration::ENABLE.0).into();
        let fields = PropertyFields { offset: offset::CC.into(), value, ..PropertyFields::default() };
        let mut command = Submission::fabrics(FabricsType::PROPERTY_SET, 2);
        command.sgl = SglDescriptor::transport(0);
        command.as_mut_bytes()[40..].copy_from_slice(fields.as_bytes());
        peer.send(&command, &[])?;
        peer.answer()?;
        Ok(peer)
    }

    fn io(address: SocketAddr, digests: bool, nqn: &Nqn, controller: u16) -> io::Result<Peer> {
        Peer::queue(address, digests, nqn, 1, controller)
    }

    fn send(&mut self, command: &Submission, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.encoder.capsule_cmd(command, data.len() as u32).to_vec();
        if !data.is_empty() {
            bytes.extend_from_slice(data);
            bytes.extend(self.encoder.data_digest_of(data).into_iter().flatten());
        }
        self.stream.write_all(&bytes)
    }

    fn write_by_r2t(&mut self, id: u16) -> io::Result<()> {
        self.transfer(NvmOpcode::WRITE, id)
    }

    fn read(&mut self, id: u16) -> io::Result<()> {
        self.transfer(NvmOpcode::READ, id)
    }

    fn transfer(&mut self, opcode: NvmOpcode, id: u16) -> io::Result<()> {
        let mut command = Submission::nvm(opcode, id, 1);
        command.set_range(0, LARGE_BYTES / 4096);
        command.sgl = SglDescriptor::transport(LARGE_BYTES);
        self.send(&command, &[])
    }

    /// Block 0 gets other bytes, if the target does not look at the digest.
    fn write_with_wrong_digest(&mut self, id: u16) -> io::Result<()> {
        let mut command = Submission::nvm(NvmOpcode::WRITE, id, 1);
        command.set_range(0, 1);
        command.sgl = SglDescriptor::in_capsule(4096);
        let mut bytes = self.encoder.capsule_cmd(&command, 4096).to_vec();
        bytes.extend([0xEE; 4096]);
        bytes.extend([0; 4]);
        self.stream.write_all(&bytes)
    }

    fn send_with_wrong_header_digest(&mut self) -> io::Result<()> {
        let mut bytes = self.encoder.capsule_cmd(&Submission::nvm(NvmOpcode::FLUSH, 3, 1), 0).to_vec();
        bytes[20] ^= 1;
        self.stream.write_all(&bytes)
    }

    /// The next PDU, whole.
    fn answer(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 8];
        self.stream.read_exact(&mut bytes)?;
        let length = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]).clamp(8, LARGE_BYTES);
        bytes.resize(length as usize, 0);
        self.stream.read_exact(&mut bytes[8..])?;
        Ok(bytes)
    }
}

const HOST_NQN: &[u8] = b"nqn.2026-11.io.yagura:hostile";
