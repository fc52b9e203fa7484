//! A controller that answers as it is told to: nothing but the codec below it, no medium behind it.
//!
//! Whatever is not told otherwise gets the usual answer: one subsystem with namespace 1 of [`BLOCKS`] blocks, which read as zeroes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use engine::net::{SendBatch, TcpListener, TcpStream};
use engine::sync::Notify;
use engine::time::Instant;
use engine::{Buf, task, time};
use fabric::tcp::{DataPdu, Decoder, Digest, Encoder, Event, IcResp, Pdu, ReadyToTransfer, Role, Rules};
use nvme::fabrics::{ConnectFields, PropertyFields};
use nvme::feature::FeatureId;
use nvme::identify::{Cns, IdentifyController, IdentifyNamespace, IdentifyNvmController, oncs};
use nvme::opcode::{AdminOpcode, FabricsType, NvmOpcode};
use nvme::register::{Capabilities, offset, status_bits};
use nvme::{Completion, SglDescriptor, Status, Submission};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

pub const BLOCK: usize = 4096;
pub const BLOCKS: u64 = 512;

/// A command as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: Instant,
    /// Counts the connections.
    pub connection: u64,
    pub queue: u16,
    pub command: Submission,
}

impl Seen {
    pub fn is_admin(&self, opcode: AdminOpcode) -> bool {
        self.queue == 0 && self.command.opcode == opcode.0
    }

    pub fn is_nvm(&self, opcode: NvmOpcode) -> bool {
        self.queue != 0 && self.command.opcode == opcode.0
    }

    pub fn is_identify(&self, cns: Cns) -> bool {
        self.is_admin(AdminOpcode::IDENTIFY) && self.command.cdw10.get() as u8 == cns.0
    }

    /// A Property Get (or Set) of the property at `offset`.
    pub fn is_property(&self, kind: FabricsType, offset: u32) -> bool {
        self.command.fabrics_type() == Some(kind) && self.property().offset.get() == offset
    }

    pub fn is_connect(&self) -> bool {
        self.command.fabrics_type() == Some(FabricsType::CONNECT)
    }

    pub fn connect(&self) -> ConnectFields {
        ConnectFields::read_from_bytes(&self.command.as_bytes()[40..]).expect("24 bytes")
    }

    pub fn property(&self) -> PropertyFields {
        PropertyFields::read_from_bytes(&self.command.as_bytes()[40..]).expect("24 bytes")
    }
}

/// What a command is answered.
#[derive(Clone, Debug)]
pub enum Answer {
    Usual,
    Status(Status),
    Result(u64),
    /// Success, with this data.
    Data(Vec<u8>),
    /// Success, with data whose digest is wrong.
    WrongDigest,
    /// Success, without all of the data.
    ShortData,
    Never,
    After(Duration, Box<Answer>),
}

type Script = Box<dyn Fn(&Seen) -> Answer>;

/// The controller; what it says of itself may be changed before anybody connects.
pub struct Fake {
    pub capabilities: Cell<u64>,
    pub ready_timeouts: Cell<u32>,
    pub maxh2cdata: Cell<u32>,
    pub controller: RefCell<IdentifyController>,
    pub namespace: RefCell<IdentifyNamespace>,
    pub limits: RefCell<IdentifyNvmController>,
    /// The discovery log: header and entries.
    pub log: RefCell<Vec<u8>>,
    pub seen: RefCell<Vec<Seen>>,
    configuration: Cell<u32>,
    script: RefCell<Script>,
    connections: Cell<u64>,
}

impl Fake {
    pub fn new() -> Rc<Fake> {
        let mut controller = IdentifyController::new_zeroed();
        (controller.kas, controller.nn, controller.ioccsz) = (1.into(), 1.into(), (4 + 8192 / 16).into());
        (controller.fuses, controller.acwu, controller.acl) = (1.into(), 7.into(), 3);
        controller.oncs = (oncs::COMPARE | oncs::WRITE_ZEROES | oncs::DATASET_MANAGEMENT | oncs::VERIFY).into();
        let mut namespace = IdentifyNamespace::new_zeroed();
        (namespace.nsze, namespace.ncap, namespace.nguid) = (BLOCKS.into(), BLOCKS.into(), [7; 16]);
        namespace.lbaf[0].lbads = BLOCK.trailing_zeros() as u8;
        Rc::new(Fake {
            capabilities: Cell::new(Capabilities::fabrics(128, 4).0),
            ready_timeouts: Cell::new(4),
            maxh2cdata: Cell::new(1 << 17),
            controller: RefCell::new(controller),
            namespace: RefCell::new(namespace),
            limits: RefCell::new(IdentifyNvmController::new_zeroed()),
            log: RefCell::new(vec![0; 1024]),
            seen: RefCell::default(),
            configuration: Cell::new(0),
            script: RefCell::new(Box::new(|_| Answer::Usual)),
            connections: Cell::new(0),
        })
    }

    /// What is answered from now on.
    pub fn script(&self, script: impl Fn(&Seen) -> Answer + 'static) {
        *self.script.borrow_mut() = Box::new(script);
    }

    /// How many commands came that are such.
    pub fn count(&self, such: impl Fn(&Seen) -> bool) -> usize {
        self.seen.borrow().iter().filter(|seen| such(seen)).count()
    }

    /// When they came.
    pub fn times(&self, such: impl Fn(&Seen) -> bool) -> Vec<Instant> {
        self.seen.borrow().iter().filter(|seen| such(seen)).map(|seen| seen.at).collect()
    }

    pub async fn serve(self: Rc<Fake>, address: SocketAddr) {
        let listener = TcpListener::bind(address).expect("a free port");
        while let Ok((stream, _)) = listener.accept().await {
            self.connections.set(self.connections.get() + 1);
            let line = Line {
                fake: Rc::clone(&self),
                number: self.connections.get(),
                queue: Cell::new(0),
                stream,
                outgoing: RefCell::default(),
                queued: Notify::new(),
                encoder: Cell::new(Encoder { header_digest: false, data_digest: false, alignment_code: 0 }),
                writes: RefCell::default(),
            };
            task::spawn(Rc::new(line).run()).detach();
        }
    }

    fn usual(&self, seen: &Seen) -> Answer {
        let command = &seen.command;
        if let Some(kind) = command.fabrics_type() {
            return self.fabrics(kind, seen);
        }
        if seen.queue != 0 {
            let bytes = command.sgl.length.get() as usize;
            return if command.opcode == NvmOpcode::READ.0 { Answer::Data(vec![0; bytes]) } else { Answer::Result(0) };
        }
        match AdminOpcode(command.opcode) {
            AdminOpcode::IDENTIFY => self.identify(Cns(command.cdw10.get() as u8), command.nsid.get()),
            AdminOpcode::ASYNC_EVENT_REQUEST => Answer::Never,
            AdminOpcode::SET_FEATURES if command.cdw10.get() as u8 == FeatureId::NUMBER_OF_QUEUES.0 => {
                Answer::Result(command.cdw11.get().into())
            }
            AdminOpcode::GET_LOG_PAGE if command.cdw10.get() as u8 == 0x70 => {
                let (start, bytes) = (command.cdw12.get() as usize, command.sgl.length.get() as usize);
                let mut page = self.log.borrow()[start..].to_vec();
                page.resize(bytes, 0);
                Answer::Data(page)
            }
            AdminOpcode::GET_LOG_PAGE => Answer::Status(Status::INVALID_LOG_PAGE.do_not_retry()),
            // Of an Abort bit 0 says that nothing was aborted.
            _ => Answer::Result(1),
        }
    }

    fn fabrics(&self, kind: FabricsType, seen: &Seen) -> Answer {
        let property = seen.property();
        let enabled = self.configuration.get() & 1;
        match (kind, property.offset.get()) {
            (FabricsType::CONNECT, _) => Answer::Result(1),
            (FabricsType::PROPERTY_SET, _) => {
                self.configuration.set(property.value.get() as u32);
                Answer::Result(0)
            }
            (_, offset::CAP) => Answer::Result(self.capabilities.get()),
            (_, offset::CSTS) => Answer::Result(u64::from(enabled * status_bits::READY)),
            (_, offset::CRTO) => Answer::Result(self.ready_timeouts.get().into()),
            _ => Answer::Status(Status::INVALID_FIELD.do_not_retry()),
        }
    }

    fn identify(&self, cns: Cns, nsid: u32) -> Answer {
        let mut page = vec![0; 4096];
        match cns {
            Cns::CONTROLLER => page.copy_from_slice(self.controller.borrow().as_bytes()),
            Cns::NAMESPACE if nsid == 1 => page.copy_from_slice(self.namespace.borrow().as_bytes()),
            Cns::NAMESPACE => {}
            Cns::ACTIVE_NAMESPACES => page[0] = 1,
            Cns::CSI_CONTROLLER => page.copy_from_slice(self.limits.borrow().as_bytes()),
            _ => return Answer::Status(Status::INVALID_FIELD.do_not_retry()),
        }
        Answer::Data(page)
    }
}

/// A connection.
struct Line {
    fake: Rc<Fake>,
    number: u64,
    queue: Cell<u16>,
    stream: TcpStream,
    outgoing: RefCell<VecDeque<Vec<u8>>>,
    queued: Notify,
    encoder: Cell<Encoder>,
    /// Writes whose data was asked for.
    writes: RefCell<BTreeMap<u16, (Seen, Answer)>>,
}

impl Line {
    async fn run(self: Rc<Line>) {
        let sender = Rc::clone(&self);
        let _sender = task::spawn(async move { sender.send().await });
        let mut decoder = Decoder::new(Role::Controller);
        let mut waiting: Option<Seen> = None;
        loop {
            let (received, buf) = self.stream.recv(Buf::with_capacity(64 << 10)).await;
            if !matches!(received, Ok(1..)) {
                return;
            }
            let mut input = &buf[..];
            while let Some(event) = decoder.next(&mut input).expect("the host's PDUs are good") {
                match event {
                    Event::Pdu(Pdu::IcReq(request)) => {
                        let (header_digest, data_digest) = (request.header_digest, request.data_digest);
                        let maxh2cdata = self.fake.maxh2cdata.get();
                        let answer = IcResp { alignment_code: 0, header_digest, data_digest, maxh2cdata };
                        self.push(Encoder::ic_resp(&answer).to_vec());
                        self.encoder.set(Encoder { header_digest, data_digest, alignment_code: 0 });
                        decoder.establish(Rules {
                            header_digest,
                            data_digest,
                            alignment_code: 0,
                            capsule_data_bytes_max: 8192,
                            data_pdu_bytes_max: 1 << 20,
                        });
                    }
                    Event::Pdu(Pdu::CapsuleCmd(capsule)) => {
                        let seen = Seen {
                            at: time::now(),
                            connection: self.number,
                            queue: self.queue.get(),
                            command: capsule.command,
                        };
                        if capsule.data_bytes > 0 { waiting = Some(seen) } else { self.take(seen) }
                    }
                    Event::Pdu(Pdu::H2cData(data)) if data.last => {
                        let (seen, answer) = self.writes.borrow_mut().remove(&data.cccid).expect("it was asked for");
                        self.answer(&seen, answer);
                    }
                    Event::DataEnd { .. } => waiting.take().into_iter().for_each(|seen| self.take(seen)),
                    _ => {}
                }
            }
        }
    }

    fn take(self: &Rc<Line>, seen: Seen) {
        if seen.is_connect() {
            self.queue.set(seen.connect().qid.get());
        }
        let seen = Seen { queue: self.queue.get(), ..seen };
        self.fake.seen.borrow_mut().push(seen.clone());
        let answer = (self.fake.script.borrow())(&seen);
        let transport = seen.command.sgl.identifier == SglDescriptor::transport(0).identifier;
        let command = &seen.command;
        let length = command.sgl.length.get();
        if seen.is_nvm(NvmOpcode::WRITE) && transport && length > 0 && !matches!(answer, Answer::Never) {
            let cccid = command.command_id.get();
            self.push(
                self.encoder.get().r2t(&ReadyToTransfer { cccid, ttag: cccid, offset: 0, bytes: length }).to_vec(),
            );
            self.writes.borrow_mut().insert(cccid, (seen, answer));
            return;
        }
        self.answer(&seen, answer);
    }

    fn answer(self: &Rc<Line>, seen: &Seen, answer: Answer) {
        let id = seen.command.command_id.get();
        let (status, result) = match answer {
            Answer::Never => return,
            Answer::Usual => return self.answer(seen, self.fake.usual(seen)),
            Answer::After(pause, then) => {
                let (line, seen) = (Rc::clone(self), seen.clone());
                return task::spawn(async move {
                    time::sleep(pause).await;
                    line.answer(&seen, *then);
                })
                .detach();
            }
            Answer::Status(status) => (status, 0),
            Answer::Result(result) => (Status::SUCCESS, result),
            Answer::Data(data) => (self.data(id, &data, false), 0),
            Answer::WrongDigest => (self.data(id, &vec![0; seen.command.sgl.length.get() as usize], true), 0),
            Answer::ShortData => (self.data(id, &[0; 512], false), 0),
        };
        let completion = Completion::new(id, status, result, 0);
        self.push(self.encoder.get().capsule_resp(&completion).to_vec());
    }

    fn data(&self, cccid: u16, data: &[u8], damaged: bool) -> Status {
        let bytes = data.len() as u32;
        let pdu = DataPdu { cccid, ttag: 0, offset: 0, bytes, last: true, success: false };
        let mut out = self.encoder.get().c2h_data(&pdu).to_vec();
        out.extend_from_slice(data);
        if self.encoder.get().data_digest {
            let mut digest = Digest::of(data);
            digest[0] ^= u8::from(damaged);
            out.extend_from_slice(&digest);
        }
        self.push(out);
        Status::SUCCESS
    }

    fn push(&self, bytes: Vec<u8>) {
        self.outgoing.borrow_mut().push_back(bytes);
        self.queued.notify_all();
    }

    async fn send(&self) {
        loop {
            let queued = self.queued.notified();
            let Some(next) = self.outgoing.borrow_mut().pop_front() else {
                queued.await;
                continue;
            };
            let mut batch = SendBatch::new();
            batch.view(Buf::copy_from(&next).freeze());
            if self.stream.send(batch).await.0.is_err() {
                return;
            }
        }
    }
}
