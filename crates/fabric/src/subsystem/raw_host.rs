//! A host without I/O at the other end of a [`Connection`]: for scenario tests and for fuzzing.
//!
//! Time stands still unless it is moved. Operations run on a namespace whose futures never wait, a memory namespace as a
//! rule; what waits for another connection goes on with the next turn.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use device::AnyNamespace;
use engine::net::SendBatch;
use engine::time::Instant;
use nvme::auth::Fields;
use nvme::fabrics::{ConnectData, ConnectFields, PropertyFields, connect_attributes};
use nvme::opcode::FabricsType;
use nvme::register::{Capabilities, Configuration, offset};
use nvme::{CONTROLLER_ID_DYNAMIC, Completion, Nqn, SglDescriptor, Submission};
use zerocopy::{FromZeros, IntoBytes};

use super::connection::Connection;
use super::io::Outcome;
use super::ports::Origin;
use super::{HostConfig, PortConfig, PortId, Target, driver};
use crate::auth::{DhchapKey, HostKeys};
use crate::fuzz::poll_once;
use crate::tcp::{Decoder, Encoder, Event, IcReq, Pdu, Role, Rules};

/// A PDU from the target: what it says, its data, and whether the data's digest was right.
pub(crate) type Answer = (Pdu, Vec<u8>, bool);

/// See the module.
pub(crate) struct RawHost {
    pub target: Target,
    pub(super) core: Connection,
    pub encoder: Encoder,
    decoder: Decoder,
    pub now: Instant,
    pub inbox: Vec<Answer>,
    batch: SendBatch,
    /// Sent, and not taken yet by a connection that pauses.
    unread: Vec<u8>,
    pub controller: u16,
    /// The admin connection that keeps the controller of an I/O connection alive.
    pub admin: Option<Box<RawHost>>,
    /// Operations are left with the core; the test takes them itself.
    pub stalled: bool,
    /// Operations that wait for another connection.
    pending: Vec<Pin<Box<dyn Future<Output = Outcome>>>>,
    /// The name and the identifier in its Connect commands.
    pub host: Nqn,
    host_id: [u8; 16],
    /// It enables all I/O command sets.
    pub command_sets: bool,
}

/// The subsystem that a session's target has.
pub(crate) fn subsystem() -> Nqn {
    "nqn.2026-01.example.yagura:test".parse().expect("invariant: a well-formed name")
}

/// The host that a session is.
pub(crate) fn host() -> Nqn {
    "nqn.2026-01.example.yagura:host".parse().expect("invariant: a well-formed name")
}

impl RawHost {
    /// A connection to a new target with one subsystem and `namespace` as its namespace 1.
    pub fn new(namespace: impl Into<AnyNamespace>) -> RawHost {
        let target = Target::default();
        let ported = target.add_port(PortConfig::new(PortId(1)));
        debug_assert!(ported.is_ok());
        let added = target.add_subsystem(subsystem(), "SERIAL");
        let added = added.and_then(|()| target.add_namespace(&subsystem(), 1, namespace));
        debug_assert!(added.is_ok());
        RawHost::on(&target)
    }

    /// The connection is made by another host, which is known by this number.
    #[cfg(test)]
    pub fn by_host(mut self, number: u8) -> RawHost {
        let name = format!("{}{number}", host());
        self.host = name.parse().expect("invariant: a well-formed name");
        self.host_id = [number; 16];
        self
    }

    /// The connection, by port 1, comes from an address of its own.
    #[cfg(test)]
    pub fn at_address(mut self, number: u8) -> RawHost {
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 4420));
        let peer = SocketAddr::from((Ipv4Addr::new(192, 0, 2, number), 50_000));
        let origin = Origin { peer, local, port: PortId(1), psk: None };
        self.core = Connection::new(self.target.shared.clone(), origin, None, self.now);
        self
    }

    /// The connection is made by a host of this name, which has an identifier of its own.
    #[cfg(test)]
    pub fn name(&mut self, host: Nqn) {
        self.host_id = [0x80 | host.as_str().len() as u8; 16];
        self.host = host;
    }

    /// One more connection to a target, by its port 1.
    pub fn on(target: &Target) -> RawHost {
        RawHost::at(target, PortId(1))
    }

    /// One more connection, by a certain port.
    pub fn at(target: &Target, port: PortId) -> RawHost {
        let now = Instant::from_nanos(1_000_000_000);
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 4420));
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 50_000));
        let origin = Origin { peer, local, port, psk: None };
        RawHost {
            target: target.clone(),
            core: Connection::new(target.shared.clone(), origin, None, now),
            encoder: Encoder { header_digest: false, data_digest: false, alignment_code: 0 },
            decoder: Decoder::new(Role::Host),
            now,
            inbox: Vec::new(),
            batch: SendBatch::new(),
            unread: Vec::new(),
            controller: 0,
            admin: None,
            stalled: false,
            pending: Vec::new(),
            host: host(),
            host_id: [1; 16],
            command_sets: false,
        }
    }

    /// Exchanges ICReq and ICResp.
    pub fn open(&mut self, header_digest: bool, data_digest: bool) {
        let request = IcReq { alignment_code: 0, header_digest, data_digest, maxr2t: 0 };
        self.receive(&Encoder::ic_req(&request));
        self.encoder = Encoder { header_digest, data_digest, alignment_code: 0 };
    }

    /// Connects as an admin queue and enables the controller.
    pub fn connect_admin(&mut self) {
        self.connect(0, &subsystem(), |_, _| {});
        let all = Configuration::enable_all(Capabilities::fabrics(2, 1).with_command_sets());
        self.set_configuration(if self.command_sets { all } else { Configuration::ENABLE });
    }

    /// Connects as I/O queue 1 of a controller that a second session holds.
    pub fn connect_io(&mut self) {
        self.connect_io_of(32);
    }

    /// The same with a queue of `entries`.
    pub fn connect_io_of(&mut self, entries: u16) {
        let mut admin = Box::new(RawHost::at(&self.target, self.core.origin.port));
        (admin.host, admin.host_id) = (self.host.clone(), self.host_id);
        admin.command_sets = self.command_sets;
        admin.open(false, false);
        admin.connect_admin();
        self.controller = admin.controller;
        self.admin = Some(admin);
        self.connect(1, &subsystem(), |fields, _| fields.sqsize = (entries - 1).into());
    }

    /// Sends a Connect for queue `qid`, changed by `change`; the completion, if one came.
    pub fn connect(
        &mut self,
        qid: u16,
        subsystem: &Nqn,
        change: impl FnOnce(&mut ConnectFields, &mut ConnectData),
    ) -> Option<Completion> {
        let mut fields = ConnectFields { qid: qid.into(), sqsize: 31.into(), ..ConnectFields::default() };
        fields.cattr = connect_attributes::DISABLE_SQ_FLOW_CONTROL;
        let mut data = ConnectData::new_zeroed();
        data.hostid = self.host_id;
        data.cntlid = if qid == 0 { CONTROLLER_ID_DYNAMIC } else { self.controller }.into();
        data.subnqn = subsystem.to_field();
        data.hostnqn = self.host.to_field();
        change(&mut fields, &mut data);
        let mut command = Submission::fabrics(FabricsType::CONNECT, 0xC000);
        command.sgl = SglDescriptor::in_capsule(size_of::<ConnectData>() as u32);
        command.as_mut_bytes()[40..].copy_from_slice(fields.as_bytes());
        let completion = self.send(&command, data.as_bytes()).map(|(completion, _)| completion)?;
        if completion.status().is_success() && qid == 0 {
            self.controller = completion.result.get() as u16;
        }
        Some(completion)
    }

    /// Writes CC.
    pub fn set_configuration(&mut self, configuration: Configuration) -> Option<Completion> {
        let fields = PropertyFields {
            offset: offset::CC.into(),
            value: u64::from(configuration.0).into(),
            ..PropertyFields::default()
        };
        let mut command = Submission::fabrics(FabricsType::PROPERTY_SET, 0xC001);
        command.sgl = SglDescriptor::transport(0);
        command.as_mut_bytes()[40..].copy_from_slice(fields.as_bytes());
        self.send(&command, &[]).map(|(completion, _)| completion)
    }

    /// Gives the target new keys of this host, by SHA-256 and without an exchange.
    pub fn require_authentication(&mut self) {
        let key = DhchapKey::generate(None, None);
        let keys = key.ok().map(|key| HostKeys { host: Arc::new(key), controller: None });
        debug_assert!(keys.is_some(), "there are random bytes");
        let allowed = self.target.allow_host(&subsystem(), &self.host, HostConfig { keys, ..HostConfig::default() });
        debug_assert!(allowed.is_ok());
    }

    /// Begins a transaction, with number 1, SHA-256 and the null group.
    pub fn negotiate(&mut self) {
        let mut message = vec![0; 72];
        (message[4], message[7], message[8], message[10], message[11], message[12]) = (1, 1, 1, 1, 1, 1);
        self.send_authentication(&message);
    }

    /// Sends a message by Authentication Send.
    pub fn send_authentication(&mut self, message: &[u8]) -> Option<Completion> {
        let mut command = Submission::fabrics(FabricsType::AUTHENTICATION_SEND, 0xC002);
        command.sgl = SglDescriptor::in_capsule(message.len() as u32);
        command.as_mut_bytes()[40..].copy_from_slice(Fields::new(message.len() as u32).as_bytes());
        self.send(&command, message).map(|(completion, _)| completion)
    }

    /// Whether the connection is to be closed.
    pub fn is_over(&self) -> bool {
        self.core.ended().is_some()
    }

    /// Asks for a message of up to `bytes` by Authentication Receive.
    pub fn receive_authentication(&mut self, bytes: u32) -> Option<(Completion, Vec<u8>)> {
        self.receive_authentication_by(0xC003, bytes)
    }

    /// The same by a command of this identifier.
    pub fn receive_authentication_by(&mut self, command_id: u16, bytes: u32) -> Option<(Completion, Vec<u8>)> {
        let mut command = Submission::fabrics(FabricsType::AUTHENTICATION_RECEIVE, command_id);
        command.sgl = SglDescriptor::transport(bytes);
        command.as_mut_bytes()[40..].copy_from_slice(Fields::new(bytes).as_bytes());
        self.send(&command, &[])
    }

    /// Sends a command with in-capsule data and gives back its completion and the data that came with it, if it was
    /// answered. Other answers stay in the inbox.
    pub fn send(&mut self, command: &Submission, data: &[u8]) -> Option<(Completion, Vec<u8>)> {
        self.receive(&self.capsule(command, data));
        self.take_answer(command.command_id.get())
    }

    /// A command capsule.
    pub fn capsule(&self, command: &Submission, data: &[u8]) -> Vec<u8> {
        let mut bytes = self.encoder.capsule_cmd(command, data.len() as u32).to_vec();
        if !data.is_empty() {
            bytes.extend_from_slice(data);
            bytes.extend(self.encoder.data_digest_of(data).into_iter().flatten());
        }
        bytes
    }

    /// The completion of a command and the data that came before it, taken from the inbox. A SUCCESS flag makes one.
    pub fn take_answer(&mut self, command_id: u16) -> Option<(Completion, Vec<u8>)> {
        let mut data = Vec::new();
        let mut found = None;
        self.inbox.retain(|(pdu, bytes, digest_ok)| match pdu {
            Pdu::C2hData(pdu) if pdu.cccid == command_id && found.is_none() => {
                debug_assert!(*digest_ok, "the target's data digest was wrong");
                data.extend_from_slice(bytes);
                if pdu.success {
                    found = Some(Completion::new(command_id, nvme::Status::SUCCESS, 0, 0));
                }
                false
            }
            Pdu::CapsuleResp(completion) if completion.command_id.get() == command_id && found.is_none() => {
                found = Some(*completion);
                false
            }
            _ => true,
        });
        found.map(|completion| (completion, data))
    }

    /// Gives bytes to the target and lets it work.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        self.turn();
    }

    /// Lets time pass.
    pub fn advance(&mut self, duration: Duration) {
        self.now += duration;
        self.turn();
    }

    /// Runs operations and reads what the target says, until it has nothing more.
    pub fn turn(&mut self) {
        loop {
            let taken = self.core.receive(&self.unread, self.now);
            self.unread.drain(..taken);
            self.core.poll(self.now);
            while !self.stalled
                && let Some(operation) = self.core.next_operation()
            {
                self.pending.push(Box::pin(driver::execute(operation, |change| change)));
            }
            while !self.stalled
                && let Some((slot, request)) = self.core.next_request()
            {
                self.pending.push(Box::pin(driver::manage(slot, request, |change| change)));
            }
            for mut pending in std::mem::take(&mut self.pending) {
                match poll_once(&mut pending) {
                    Some(outcome) => self.core.complete(outcome),
                    None => self.pending.push(pending),
                }
            }
            if !self.core.has_output() {
                return;
            }
            self.core.transmit(&mut self.batch, self.now);
            let bytes: Vec<u8> = self.batch.slices().flatten().copied().collect();
            self.batch.clear();
            self.core.sent();
            self.read(&bytes);
        }
    }

    fn read(&mut self, mut bytes: &[u8]) {
        while let Ok(Some(event)) = self.decoder.next(&mut bytes) {
            match event {
                Event::Pdu(pdu) => {
                    if let Pdu::IcResp(response) = pdu {
                        self.decoder.establish(Rules {
                            header_digest: response.header_digest,
                            data_digest: response.data_digest,
                            alignment_code: 0,
                            capsule_data_bytes_max: 0,
                            data_pdu_bytes_max: 1 << 20,
                        });
                    }
                    self.inbox.push((pdu, Vec::new(), true));
                }
                Event::Data(data) => {
                    if let Some(last) = self.inbox.last_mut() {
                        last.1.extend_from_slice(data);
                    }
                }
                Event::DataEnd { digest_ok } => {
                    if let Some(last) = self.inbox.last_mut() {
                        last.2 = digest_ok;
                    }
                }
            }
        }
    }
}
