//! A minimal host for tests of the target: one queue, one command at a time, nothing but the codec below it.
//!
//! It is not `fabric::host`: a fault that both ends shared would hide itself.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::net::SocketAddr;

use engine::net::{SendBatch, TcpStream};
use engine::{Buf, View};
use fabric::tcp::{Decoder, Encoder, Event, IcReq, Pdu, ReadyToTransfer, Role, Rules};
use nvme::fabrics::{ConnectData, ConnectFields, PropertyFields, connect_attributes};
use nvme::opcode::{FabricsType, NvmOpcode};
use nvme::register::{Configuration, offset};
use nvme::{CONTROLLER_ID_DYNAMIC, Completion, Nqn, SglDescriptor, Status, Submission};
use zerocopy::{FromZeros, IntoBytes};

/// Name of the subsystem that the tests serve.
pub fn subsystem() -> Nqn {
    "nqn.2026-01.example.yagura:test".parse().expect("a well-formed name")
}

/// What a [`Host`] holds, at least: its receive buffer, the arena of its batch, and room for the longest read.
pub const HOST_BYTES: i64 = (64 << 10) + (16 << 10) + (1 << 20);

/// One queue of a host.
pub struct Host {
    stream: TcpStream,
    encoder: Encoder,
    decoder: Decoder,
    received: Buf,
    /// Bytes of `received` that the decoder has taken.
    taken: usize,
    /// `None` while it is being sent: making another would allocate.
    batch: Option<SendBatch>,
    /// Data of the last read.
    pub data: Buf,
    pub controller: u16,
    /// Which host it is.
    pub number: u8,
}

/// The connection has ended; with the target's last word, if there was one.
#[derive(Debug)]
pub struct Ended(pub Option<fabric::tcp::TermReq>);

impl Host {
    /// Opens a connection, digests on if asked, without a Connect command.
    pub async fn open(address: SocketAddr, digests: bool) -> Result<Host, Ended> {
        let stream = TcpStream::connect(address).await.map_err(|_| Ended(None))?;
        let mut host = Host {
            stream,
            encoder: Encoder { header_digest: digests, data_digest: digests, alignment_code: 0 },
            decoder: Decoder::new(Role::Host),
            received: Buf::with_capacity(64 << 10),
            taken: 0,
            batch: Some(SendBatch::new()),
            data: Buf::with_capacity(1 << 20),
            controller: CONTROLLER_ID_DYNAMIC,
            number: 9,
        };
        let request = IcReq { alignment_code: 0, header_digest: digests, data_digest: digests, maxr2t: 0 };
        host.send_bytes(&Encoder::ic_req(&request)).await?;
        let Pdu::IcResp(response) = host.next_pdu().await? else { panic!("no ICResp came first") };
        host.decoder.establish(Rules {
            header_digest: response.header_digest,
            data_digest: response.data_digest,
            alignment_code: 0,
            capsule_data_bytes_max: 0,
            data_pdu_bytes_max: 1 << 20,
        });
        Ok(host)
    }

    /// A connected and enabled admin queue.
    pub async fn admin(address: SocketAddr, digests: bool, keep_alive_ms: u32) -> Result<Host, Ended> {
        Host::open(address, digests).await?.into_admin(keep_alive_ms).await
    }

    /// The same of host `number`, which is no other test's.
    pub async fn admin_by(address: SocketAddr, number: u8) -> Result<Host, Ended> {
        let mut host = Host::open(address, false).await?;
        host.number = number;
        host.into_admin(0).await
    }

    async fn into_admin(mut self, keep_alive_ms: u32) -> Result<Host, Ended> {
        let host = &mut self;
        let completion = host.connect(0, keep_alive_ms).await?;
        assert_eq!(completion.status(), Status::SUCCESS);
        host.controller = completion.result.get() as u16;
        let value = u64::from(Configuration::ENABLE.0).into();
        let fields = PropertyFields { offset: offset::CC.into(), value, ..PropertyFields::default() };
        let mut command = Submission::fabrics(FabricsType::PROPERTY_SET, 1);
        command.sgl = SglDescriptor::transport(0);
        command.as_mut_bytes()[40..].copy_from_slice(fields.as_bytes());
        assert_eq!(host.command(&command, View::default()).await?.status(), Status::SUCCESS);
        Ok(self)
    }

    /// I/O queue `qid` of `admin`'s controller.
    pub async fn io(address: SocketAddr, digests: bool, admin: &Host, qid: u16) -> Result<Host, Ended> {
        let mut host = Host::open(address, digests).await?;
        (host.controller, host.number) = (admin.controller, admin.number);
        assert_eq!(host.connect(qid, 0).await?.status(), Status::SUCCESS);
        Ok(host)
    }

    /// A Connect command for queue `qid`.
    pub async fn connect(&mut self, qid: u16, keep_alive_ms: u32) -> Result<Completion, Ended> {
        self.connect_to(&subsystem(), qid, keep_alive_ms).await
    }

    /// The same to another subsystem.
    pub async fn connect_to(&mut self, nqn: &Nqn, qid: u16, keep_alive_ms: u32) -> Result<Completion, Ended> {
        let fields = ConnectFields {
            qid: qid.into(),
            sqsize: 63.into(),
            cattr: connect_attributes::DISABLE_SQ_FLOW_CONTROL,
            kato: keep_alive_ms.into(),
            ..ConnectFields::default()
        };
        let mut data = ConnectData::new_zeroed();
        data.hostid = [self.number; 16];
        data.cntlid = self.controller.into();
        data.subnqn = nqn.to_field();
        let suffix = if self.number == 9 { String::new() } else { self.number.to_string() };
        let name = format!("nqn.2026-01.example.yagura:host{suffix}");
        data.hostnqn = name.parse::<Nqn>().expect("well-formed").to_field();
        let mut command = Submission::fabrics(FabricsType::CONNECT, 1);
        command.sgl = SglDescriptor::in_capsule(1024);
        command.as_mut_bytes()[40..].copy_from_slice(fields.as_bytes());
        self.command(&command, Buf::copy_from(data.as_bytes()).freeze()).await
    }

    /// Blocks of 4 KiB from `lba` on; the data is in `self.data`.
    pub async fn read(&mut self, lba: u64, blocks: u32) -> Result<Status, Ended> {
        let mut command = Submission::nvm(NvmOpcode::READ, 2, 1);
        command.set_range(lba, blocks);
        command.sgl = SglDescriptor::transport(blocks * 4096);
        Ok(self.command(&command, View::default()).await?.status())
    }

    /// Writes `data`, in the capsule if it is short.
    pub async fn write(&mut self, lba: u64, data: View) -> Result<Status, Ended> {
        let mut command = Submission::nvm(NvmOpcode::WRITE, 3, 1);
        command.set_range(lba, data.len() as u32 / 4096);
        let short = data.len() <= 8192;
        let length = data.len() as u32;
        command.sgl = if short { SglDescriptor::in_capsule(length) } else { SglDescriptor::transport(length) };
        Ok(self.command(&command, data).await?.status())
    }

    /// Reads `count` blocks from `lba` on, with a command each, all outstanding at once.
    pub async fn read_many(&mut self, lba: u64, count: u16) -> Result<(), Ended> {
        for id in 0..count {
            let mut command = Submission::nvm(NvmOpcode::READ, 100 + id, 1);
            command.set_range(lba + u64::from(id), 1);
            command.sgl = SglDescriptor::transport(4096);
            let header = self.encoder.capsule_cmd(&command, 0);
            self.batch().head(&header);
        }
        self.flush().await?;
        self.data.set_len(0);
        for _ in 0..count {
            let pdu = self.next_pdu().await?;
            assert!(matches!(pdu, Pdu::C2hData(data) if data.success), "{pdu:?}");
        }
        Ok(())
    }

    /// Sends a command, its data in the capsule or as the target asks for it, and waits for its end.
    pub async fn command(&mut self, command: &Submission, data: View) -> Result<Completion, Ended> {
        let in_capsule = command.sgl.identifier == SglDescriptor::IN_CAPSULE;
        let bytes = if in_capsule { data.len() as u32 } else { 0 };
        let header = self.encoder.capsule_cmd(command, bytes);
        self.batch().head(&header);
        if in_capsule {
            self.push_data(data.clone());
        }
        self.flush().await?;
        self.data.set_len(0);
        loop {
            match self.next_pdu().await? {
                Pdu::CapsuleResp(completion) => return Ok(completion),
                Pdu::C2hData(pdu) if pdu.success => {
                    return Ok(Completion::new(pdu.cccid, Status::SUCCESS, 0, 0));
                }
                Pdu::C2hData(_) => {}
                Pdu::R2t(request) => {
                    let (offset, bytes) = (request.offset, request.bytes);
                    let (cccid, ttag) = (request.cccid, request.ttag);
                    let pdu = fabric::tcp::DataPdu { cccid, ttag, offset, bytes, last: true, success: false };
                    let header = self.encoder.h2c_data(&pdu);
                    self.batch().head(&header);
                    self.push_data(data.slice(offset as usize..(offset + bytes) as usize));
                    self.flush().await?;
                }
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Sends a command, with its data if that goes in the capsule, and waits for nothing.
    pub async fn submit(&mut self, command: &Submission, data: View) -> Result<(), Ended> {
        let in_capsule = command.sgl.identifier == SglDescriptor::IN_CAPSULE;
        let header = self.encoder.capsule_cmd(command, if in_capsule { data.len() as u32 } else { 0 });
        self.batch().head(&header);
        if in_capsule {
            self.push_data(data);
        }
        self.flush().await
    }

    /// Begins a write of `blocks` from block 0 on, as command 70, and keeps its data back: the R2T that asks for it.
    pub async fn withhold(&mut self, blocks: u32) -> Result<ReadyToTransfer, Ended> {
        let mut command = Submission::nvm(NvmOpcode::WRITE, 70, 1);
        command.set_range(0, blocks);
        command.sgl = SglDescriptor::transport(blocks * 4096);
        self.submit(&command, View::default()).await?;
        match self.next_pdu().await? {
            Pdu::R2t(request) => Ok(request),
            other => panic!("an R2T was due, not {other:?}"),
        }
    }

    /// Answers an R2T with all that it asks for.
    pub async fn send_asked(&mut self, request: &ReadyToTransfer, data: View) -> Result<(), Ended> {
        let (cccid, ttag, offset, bytes) = (request.cccid, request.ttag, request.offset, request.bytes);
        let pdu = fabric::tcp::DataPdu { cccid, ttag, offset, bytes, last: true, success: false };
        let header = self.encoder.h2c_data(&pdu);
        self.batch().head(&header);
        self.push_data(data);
        self.flush().await
    }

    /// The next PDU, which must be a completion.
    pub async fn completion(&mut self) -> Result<Completion, Ended> {
        match self.next_pdu().await? {
            Pdu::CapsuleResp(completion) => Ok(completion),
            other => panic!("a completion was due, not {other:?}"),
        }
    }

    fn batch(&mut self) -> &mut SendBatch {
        self.batch.as_mut().expect("between sends")
    }

    fn push_data(&mut self, data: View) {
        let digest = self.encoder.data_digest_of(&data);
        self.batch().view(data);
        self.batch().head(digest.as_ref().map_or(&[], |digest| digest));
    }

    /// Sends bytes as they are.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        self.batch().head(bytes);
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), Ended> {
        let Some(batch) = self.batch.take() else { panic!("one send at a time") };
        let (result, batch) = self.stream.send(batch).await;
        self.batch = Some(batch);
        result.map_err(|_| Ended(None))
    }

    /// The next PDU, after its data has come, which is appended to `self.data`.
    pub async fn next_pdu(&mut self) -> Result<Pdu, Ended> {
        let mut whole = None;
        loop {
            let mut input = &self.received[self.taken..];
            while let Some(event) = self.decoder.next(&mut input).expect("the target's PDUs are good") {
                let mut done = None;
                match event {
                    Event::Pdu(pdu) if self.decoder.data_remaining() > 0 => whole = Some(pdu),
                    Event::Pdu(pdu) => done = Some(pdu),
                    Event::Data(data) => self.data.extend_from_slice(data),
                    Event::DataEnd { digest_ok } => {
                        assert!(digest_ok, "the target's data digest is wrong");
                        done = whole.take();
                    }
                }
                self.taken = self.received.len() - input.len();
                match done {
                    Some(Pdu::C2hTermReq(term)) => return Err(Ended(Some(term))),
                    Some(pdu) => return Ok(pdu),
                    None => {}
                }
            }
            self.received.set_len(0);
            self.taken = 0;
            let (result, received) = self.stream.recv(std::mem::take(&mut self.received)).await;
            self.received = received;
            if !result.is_ok_and(|bytes| bytes > 0) {
                return Err(Ended(None));
            }
        }
    }
}
