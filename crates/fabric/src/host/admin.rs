//! The admin commands that an association needs, each as one call.

use std::time::Duration;

use engine::Buf;
use nvme::auth::Fields;
use nvme::fabrics::{ConnectData, ConnectFields, PropertyFields};
use nvme::feature::FeatureId;
use nvme::identify::Cns;
use nvme::log::{LogId, LogRequest};
use nvme::management::ManagementCommand;
use nvme::opcode::{AdminOpcode, FabricsType};
use nvme::register::{Capabilities, Configuration, offset, status_bits};
use nvme::zns::command_set;
use nvme::{CONTROLLER_ID_DYNAMIC, Completion, PAGE_BYTES, Submission};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::error::ConnectError;
use super::link::Link;
use super::options::Options;
use super::queue::Payload;
use super::slot::Ended;

/// How often CSTS.RDY is looked at while a controller is being enabled. Guessed.
const READY_POLL: Duration = Duration::from_millis(10);

/// A link that carries admin commands (and the Connect that every link begins with).
pub(super) struct Admin<'a> {
    pub(super) link: &'a Link,
    pub(super) address: std::net::SocketAddr,
}

impl Admin<'_> {
    pub(super) async fn run(
        &self,
        step: &'static str,
        command: Submission,
        payload: Payload,
    ) -> Result<(Completion, Payload), ConnectError> {
        self.run_within(step, command, payload, Duration::ZERO).await
    }

    /// The same for a command that may take as long as `patience`, where that is more than others may.
    pub(super) async fn run_within(
        &self,
        step: &'static str,
        command: Submission,
        payload: Payload,
        patience: Duration,
    ) -> Result<(Completion, Payload), ConnectError> {
        let (ended, payload) = match self.link.execute_within(command, payload, patience).await {
            Ok(outcome) => outcome,
            Err(_) => return Err(self.lost(step)),
        };
        match ended {
            Ended::Completed(completion) if completion.status().is_success() => Ok((completion, payload)),
            Ended::Completed(completion) => Err(ConnectError::Refused { step, status: completion.status() }),
            Ended::WrongDigest => Err(ConnectError::NoAnswer { step, ended: "the data's digest was wrong" }),
            Ended::ShortData => Err(ConnectError::NoAnswer { step, ended: "the target sent too little data" }),
            Ended::Lost | Ended::TimedOut => Err(self.lost(step)),
        }
    }

    fn lost(&self, step: &'static str) -> ConnectError {
        match self.link.error() {
            Some(error) => ConnectError::Link { address: self.address, error },
            None => ConnectError::NoAnswer { step, ended: "the command was lost" },
        }
    }

    /// Connects the queue (NVMe Base 2.0 §6.3); returns the controller's identifier, and AUTHREQ: what it
    /// wants to see before anything else.
    pub(super) async fn connect(&self, options: &Options, queue: &ConnectQueue) -> Result<(u16, u16), ConnectError> {
        let fields = ConnectFields {
            qid: queue.id.into(),
            sqsize: (queue.entries - 1).into(),
            kato: queue.keep_alive_ms.into(),
            ..ConnectFields::default()
        };
        let data = ConnectData {
            hostid: options.host.id,
            cntlid: queue.controller.into(),
            reserved1: [0; 238],
            subnqn: options.subsystem.to_field(),
            hostnqn: options.host.nqn.to_field(),
            reserved2: [0; 256],
        };
        let mut command = Submission::fabrics(FabricsType::CONNECT, 0);
        set_tail(&mut command, fields.as_bytes());
        let payload = Payload::Out(Buf::copy_from(data.as_bytes()).freeze());
        let step = if queue.id == 0 { "connect admin queue" } else { "connect I/O queue" };
        let (completion, _) = self.run(step, command, payload).await?;
        let result = completion.result.get();
        Ok((result as u16, (result >> 16) as u16))
    }

    /// Authentication Send (NVMe Base 2.0 §6.2).
    pub(super) async fn authentication_send(&self, message: &[u8]) -> Result<(), ConnectError> {
        let mut command = Submission::fabrics(FabricsType::AUTHENTICATION_SEND, 0);
        set_tail(&mut command, Fields::new(message.len() as u32).as_bytes());
        let payload = Payload::Out(Buf::copy_from(message).freeze());
        self.run("authentication send", command, payload).await.map(|_| ())
    }

    /// Authentication Receive (NVMe Base 2.0 §6.1): a message, and what stands behind it.
    pub(super) async fn authentication_receive(&self) -> Result<Buf, ConnectError> {
        let mut command = Submission::fabrics(FabricsType::AUTHENTICATION_RECEIVE, 0);
        set_tail(&mut command, Fields::new(PAGE_BYTES as u32).as_bytes());
        let payload = Payload::In(Buf::zeroed(PAGE_BYTES));
        let (_, payload) = self.run("authentication receive", command, payload).await?;
        Ok(buffer(payload))
    }

    async fn property(&self, property: u32, eight_bytes: bool) -> Result<u64, ConnectError> {
        let fields =
            PropertyFields { attrib: u8::from(eight_bytes), offset: property.into(), ..PropertyFields::default() };
        let mut command = Submission::fabrics(FabricsType::PROPERTY_GET, 0);
        set_tail(&mut command, fields.as_bytes());
        let (completion, _) = self.run("read controller property", command, Payload::None).await?;
        Ok(completion.result.get())
    }

    async fn set_configuration(&self, value: Configuration) -> Result<(), ConnectError> {
        let fields =
            PropertyFields { offset: offset::CC.into(), value: u64::from(value.0).into(), ..PropertyFields::default() };
        let mut command = Submission::fabrics(FabricsType::PROPERTY_SET, 0);
        set_tail(&mut command, fields.as_bytes());
        self.run("set controller configuration", command, Payload::None).await.map(|_| ())
    }

    /// Enables the controller, with all I/O command sets that it has, and waits until it is ready (NVMe Base 2.0 §3.5.1); returns
    /// its capabilities.
    pub(super) async fn enable(&self) -> Result<Capabilities, ConnectError> {
        self.enable_as(Configuration::enable_all).await
    }

    /// The same with the NVM Command Set alone.
    pub(super) async fn enable_plain(&self) -> Result<Capabilities, ConnectError> {
        self.enable_as(|_| Configuration::ENABLE).await
    }

    async fn enable_as(&self, how: fn(Capabilities) -> Configuration) -> Result<Capabilities, ConnectError> {
        let capabilities = Capabilities(self.property(offset::CAP, true).await?);
        let patience = self.time_to_ready(capabilities).await?;
        self.set_configuration(how(capabilities)).await?;
        let deadline = engine::time::now() + patience;
        loop {
            let status = self.property(offset::CSTS, false).await? as u32;
            // Whatever else a controller says then: it has failed (NVMe Base 2.0 §3.1.3.6).
            if status & status_bits::FATAL != 0 {
                return Err(ConnectError::Fatal(status));
            }
            if status & status_bits::READY != 0 {
                return Ok(capabilities);
            }
            if engine::time::now() >= deadline {
                return Err(ConnectError::NotReady(patience, status));
            }
            engine::time::sleep(READY_POLL).await;
        }
    }

    /// How long a controller may take until it is ready: CAP.TO, or more where that field is too small for it and CRTO.CRWMT
    /// says so (NVMe Base 2.0 §3.1.3.14). A controller that states zero still gets one unit.
    async fn time_to_ready(&self, capabilities: Capabilities) -> Result<Duration, ConnectError> {
        let mut units = u64::from(capabilities.timeout_500ms());
        if capabilities.ready_with_media() {
            match self.property(offset::CRTO, false).await {
                Ok(timeouts) => units = units.max(timeouts & 0xFFFF),
                // Some promise it and do not have it.
                Err(ConnectError::Refused { status, .. }) => tracing::debug!(%status, "CRTO can not be read"),
                Err(error) => return Err(error),
            }
        }
        Ok(Duration::from_millis(500 * units.max(1)))
    }

    /// Resets the controller: clears CC.EN and waits for CSTS.RDY to follow (NVMe Base 2.0 §3.7.2). Once this has returned no
    /// command of its I/O queues takes effect any more.
    pub(super) async fn reset(&self, capabilities: Capabilities) -> Result<(), ConnectError> {
        self.set_configuration(Configuration::default()).await?;
        let patience = Duration::from_millis(500) * u32::from(capabilities.timeout_500ms().max(1));
        let deadline = engine::time::now() + patience;
        loop {
            let status = self.property(offset::CSTS, false).await? as u32;
            if status & status_bits::READY == 0 {
                return Ok(());
            }
            if engine::time::now() >= deadline {
                return Err(ConnectError::NotReady(patience, status));
            }
            engine::time::sleep(READY_POLL).await;
        }
    }

    /// Abort (NVMe Base 2.0 §5.1) of a command on I/O queue `queue`.
    pub(super) async fn abort(&self, queue: u16, command_id: u16) -> Result<(), ConnectError> {
        let mut command = Submission::admin(AdminOpcode::ABORT, 0, 0);
        command.cdw10 = (u32::from(queue) | u32::from(command_id) << 16).into();
        self.run("abort", command, Payload::None).await.map(|_| ())
    }

    /// Tells the controller, which was enabled so, that the host is leaving (CC.SHN).
    pub(super) async fn announce_shutdown(&self, enabled: Configuration) -> Result<(), ConnectError> {
        self.set_configuration(enabled.with_normal_shutdown()).await
    }

    /// An Identify data structure, 4096 bytes.
    pub(super) async fn identify(&self, cns: Cns, nsid: u32) -> Result<Buf, ConnectError> {
        self.identify_of(cns, command_set::NVM, nsid).await
    }

    /// The same of an I/O command set.
    pub(super) async fn identify_of(&self, cns: Cns, set: u8, nsid: u32) -> Result<Buf, ConnectError> {
        let mut command = Submission::admin(AdminOpcode::IDENTIFY, 0, nsid);
        command.cdw10 = u32::from(cns.0).into();
        command.cdw11 = (u32::from(set) << 24).into();
        let step = cns.name().unwrap_or("Identify");
        let (_, payload) = self.run(step, command, Payload::In(Buf::zeroed(PAGE_BYTES))).await?;
        Ok(buffer(payload))
    }

    /// `bytes` (a multiple of 4) of a log page from `offset`.
    pub(super) async fn log(&self, log: LogId, offset: u64, bytes: usize) -> Result<Buf, ConnectError> {
        self.log_specific(log, 0, offset, bytes).await
    }

    /// The same with a log specific field (LSP).
    pub(super) async fn log_specific(
        &self,
        log: LogId,
        specific: u8,
        offset: u64,
        bytes: usize,
    ) -> Result<Buf, ConnectError> {
        let mut command = Submission::admin(AdminOpcode::GET_LOG_PAGE, 0, nvme::NSID_ALL);
        let request = LogRequest {
            log,
            specific,
            retain_event: false,
            bytes: bytes as u64,
            offset,
            offset_is_index: false,
            csi: 0,
        };
        request.fill(&mut command);
        if log == LogId::DISCOVERY {
            command.nsid = 0.into();
        }
        let (_, payload) = self.run("get log page", command, Payload::In(Buf::zeroed(bytes))).await?;
        Ok(buffer(payload))
    }

    /// Sets a feature; returns the completion's first dword.
    pub(super) async fn set_feature(&self, feature: FeatureId, value: u32) -> Result<u32, ConnectError> {
        let mut command = Submission::admin(AdminOpcode::SET_FEATURES, 0, 0);
        command.cdw10 = u32::from(feature.0).into();
        command.cdw11 = value.into();
        let step = feature.name().unwrap_or("Set Features");
        let (completion, _) = self.run(step, command, Payload::None).await?;
        Ok(completion.result.get() as u32)
    }

    /// Namespace Management or Attachment with its page of data, filled up with zeroes; returns the completion's first dword.
    pub(super) async fn manage(&self, asked: ManagementCommand, nsid: u32, data: &[u8]) -> Result<u32, ConnectError> {
        let mut command = Submission::admin(AdminOpcode::IDENTIFY, 0, nsid);
        asked.fill(&mut command);
        let payload = match asked.data_bytes() as usize {
            0 => Payload::None,
            bytes => {
                let mut page = Buf::zeroed(bytes);
                page[..data.len()].copy_from_slice(data);
                Payload::Out(page.freeze())
            }
        };
        let (completion, _) = self.run(asked.name(), command, payload).await?;
        Ok(completion.result.get() as u32)
    }

    /// Keep Alive (NVMe Base 2.0 §5.20).
    pub(super) async fn keep_alive(&self) -> Result<(), ConnectError> {
        let command = Submission::admin(AdminOpcode::KEEP_ALIVE, 0, 0);
        self.run("keep alive", command, Payload::None).await.map(|_| ())
    }
}

/// The queue that a Connect command is for.
pub(super) struct ConnectQueue {
    pub(super) id: u16,
    /// Entries, not zero based.
    pub(super) entries: u16,
    pub(super) controller: u16,
    pub(super) keep_alive_ms: u32,
}

impl ConnectQueue {
    /// The admin queue of a new controller.
    pub(super) fn admin(entries: u16, keep_alive_ms: u32) -> ConnectQueue {
        ConnectQueue { id: 0, entries, controller: CONTROLLER_ID_DYNAMIC, keep_alive_ms }
    }
}

/// Writes CDW10 to CDW15.
fn set_tail(command: &mut Submission, tail: &[u8]) {
    let bytes = command.as_mut_bytes();
    let start = bytes.len() - tail.len();
    bytes[start..].copy_from_slice(tail);
}

/// What a command has brought.
pub(super) fn buffer(payload: Payload) -> Buf {
    match payload {
        Payload::In(buf) => buf,
        Payload::Out(_) | Payload::None => Buf::default(),
    }
}

/// Reads a structure from the start of a page.
pub(super) fn read_page<T: FromBytes + FromZeros>(page: &[u8]) -> T {
    T::read_from_prefix(page).map(|(value, _)| value).unwrap_or_else(|_| T::new_zeroed())
}
