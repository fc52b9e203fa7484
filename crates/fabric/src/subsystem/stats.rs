//! What a target counts. Written by its reactors, read by anyone at any time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use engine::histogram::Histogram;
use engine::time::Instant;
use nvme::Status;
use nvme::opcode::NvmOpcode;

/// Kinds of I/O commands that are counted apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum CommandKind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Compare, alone.
    Compare,
    /// Both halves of a fused compare and write, counted once.
    CompareAndWrite,
    /// Write Zeroes.
    WriteZeroes,
    /// Dataset Management.
    Deallocate,
    /// Verify.
    Verify,
    /// Write Uncorrectable.
    WriteUncorrectable,
    /// Copy.
    Copy,
    /// The four reservation commands.
    Reservation,
    /// Zone Append.
    ZoneAppend,
    /// Zone Management Send.
    ZoneSend,
    /// Zone Management Receive.
    ZoneReceive,
}

impl CommandKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [CommandKind; 14] = [
        CommandKind::Read,
        CommandKind::Write,
        CommandKind::Flush,
        CommandKind::Compare,
        CommandKind::CompareAndWrite,
        CommandKind::WriteZeroes,
        CommandKind::Deallocate,
        CommandKind::Verify,
        CommandKind::WriteUncorrectable,
        CommandKind::Copy,
        CommandKind::Reservation,
        CommandKind::ZoneAppend,
        CommandKind::ZoneSend,
        CommandKind::ZoneReceive,
    ];

    /// The kind of an unfused command, where it is one of them.
    pub(super) fn of(opcode: NvmOpcode) -> Option<CommandKind> {
        Some(match opcode {
            NvmOpcode::READ => CommandKind::Read,
            NvmOpcode::WRITE => CommandKind::Write,
            NvmOpcode::FLUSH => CommandKind::Flush,
            NvmOpcode::COMPARE => CommandKind::Compare,
            NvmOpcode::WRITE_ZEROES => CommandKind::WriteZeroes,
            NvmOpcode::DATASET_MANAGEMENT => CommandKind::Deallocate,
            NvmOpcode::VERIFY => CommandKind::Verify,
            NvmOpcode::WRITE_UNCORRECTABLE => CommandKind::WriteUncorrectable,
            NvmOpcode::COPY => CommandKind::Copy,
            NvmOpcode::RESERVATION_REGISTER
            | NvmOpcode::RESERVATION_REPORT
            | NvmOpcode::RESERVATION_ACQUIRE
            | NvmOpcode::RESERVATION_RELEASE => CommandKind::Reservation,
            NvmOpcode::ZONE_APPEND => CommandKind::ZoneAppend,
            NvmOpcode::ZONE_MANAGEMENT_SEND => CommandKind::ZoneSend,
            NvmOpcode::ZONE_MANAGEMENT_RECEIVE => CommandKind::ZoneReceive,
            _ => return None,
        })
    }

    /// A name for labels: lower case with underscores.
    pub fn label(self) -> &'static str {
        match self {
            CommandKind::Read => "read",
            CommandKind::Write => "write",
            CommandKind::Flush => "flush",
            CommandKind::Compare => "compare",
            CommandKind::CompareAndWrite => "compare_and_write",
            CommandKind::WriteZeroes => "write_zeroes",
            CommandKind::Deallocate => "deallocate",
            CommandKind::Verify => "verify",
            CommandKind::WriteUncorrectable => "write_uncorrectable",
            CommandKind::Copy => "copy",
            CommandKind::Reservation => "reservation",
            CommandKind::ZoneAppend => "zone_append",
            CommandKind::ZoneSend => "zone_management_send",
            CommandKind::ZoneReceive => "zone_management_receive",
        }
    }
}

const KINDS: usize = CommandKind::ALL.len();
/// Status code types times codes.
const STATUSES: usize = 8 * 256;
/// What a target has done since it started.
#[derive(Debug)]
pub struct Stats {
    commands: [AtomicU64; KINDS],
    latency: [Histogram; KINDS],
    errors: Box<[AtomicU64]>,
    pub(super) admin_commands: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) protocol_errors: AtomicU64,
    pub(super) keep_alive_expired: AtomicU64,
    /// When the first connection came, and the latest look at the clock: nanoseconds, 0 for never.
    started_ns: AtomicU64,
    latest_ns: AtomicU64,
    pub(super) authenticated: AtomicU64,
    pub(super) authentications_failed: AtomicU64,
    pub(super) tls_connections: AtomicU64,
    pub(super) tls_failures: AtomicU64,
}

impl Default for Stats {
    fn default() -> Stats {
        let zero = || AtomicU64::new(0);
        Stats {
            commands: std::array::from_fn(|_| zero()),
            latency: std::array::from_fn(|_| Histogram::default()),
            errors: (0..STATUSES).map(|_| zero()).collect(),
            admin_commands: zero(),
            read_bytes: zero(),
            written_bytes: zero(),
            connections: zero(),
            accepted: zero(),
            refused: zero(),
            protocol_errors: zero(),
            keep_alive_expired: zero(),
            started_ns: zero(),
            latest_ns: zero(),
            authenticated: zero(),
            authentications_failed: zero(),
            tls_connections: zero(),
            tls_failures: zero(),
        }
    }
}

impl Stats {
    /// I/O commands of a kind that were answered, with success or not.
    pub fn commands(&self, kind: CommandKind) -> u64 {
        self.commands[kind as usize].load(Relaxed)
    }

    /// Time from a command's arrival to its answer being handed to the socket.
    pub fn latency(&self, kind: CommandKind) -> &Histogram {
        &self.latency[kind as usize]
    }

    /// Admin and Fabrics commands that were answered.
    pub fn admin_commands(&self) -> u64 {
        self.admin_commands.load(Relaxed)
    }

    /// Bytes read from namespaces for hosts, to be sent or compared.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Relaxed)
    }

    /// Bytes written to namespaces for hosts.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Relaxed)
    }

    /// Connections at the moment.
    pub fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    /// Connections accepted since the start.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Relaxed)
    }

    /// Connections closed at once because there were too many.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Connections ended because of a PDU that could not be accepted.
    pub fn protocol_errors(&self) -> u64 {
        self.protocol_errors.load(Relaxed)
    }

    /// Associations ended because the host's keep alive did not come.
    pub fn keep_alive_expired(&self) -> u64 {
        self.keep_alive_expired.load(Relaxed)
    }

    /// Authentications of queues that succeeded.
    pub fn authenticated(&self) -> u64 {
        self.authenticated.load(Relaxed)
    }

    /// Authentications of queues that failed or took too long; each ended its connection.
    pub fn authentications_failed(&self) -> u64 {
        self.authentications_failed.load(Relaxed)
    }

    /// Connections that were made over TLS.
    pub fn tls_connections(&self) -> u64 {
        self.tls_connections.load(Relaxed)
    }

    /// Connections that were closed because they were not secure as their port demands: failed handshakes, plain connections.
    pub fn tls_failures(&self) -> u64 {
        self.tls_failures.load(Relaxed)
    }

    /// How often each status other than success was answered.
    pub fn errors(&self) -> impl Iterator<Item = (Status, u64)> {
        let counts = self.errors.iter().enumerate().map(|(index, count)| (index, count.load(Relaxed)));
        counts
            .filter(|(_, count)| *count > 0)
            .map(|(index, count)| (Status::new((index >> 8) as u8, index as u8), count))
    }

    /// Time passes for the figures that count it.
    pub(super) fn look_at_clock(&self, now: Instant) {
        let now_ns = now.as_nanos().max(1);
        // Lost where another has been first: it has seen the same moment, give or take nothing that an hour shows.
        let _ = self.started_ns.compare_exchange(0, now_ns, Relaxed, Relaxed);
        self.latest_ns.fetch_max(now_ns, Relaxed);
    }

    /// Time from the first connection to the latest look at the clock.
    pub(super) fn time_served(&self) -> Duration {
        Duration::from_nanos(self.latest_ns.load(Relaxed).saturating_sub(self.started_ns.load(Relaxed)))
    }

    /// Commands that the media have failed.
    pub(super) fn media_errors(&self) -> u64 {
        let media = |status: &Status| [Status::UNRECOVERED_READ_ERROR, Status::WRITE_FAULT].contains(&status.kind());
        self.errors().filter(|(status, _)| media(status)).map(|(_, count)| count).sum()
    }

    pub(super) fn count(&self, kind: CommandKind, took: Duration) {
        self.commands[kind as usize].fetch_add(1, Relaxed);
        self.latency[kind as usize].record(took);
    }

    pub(super) fn count_status(&self, status: Status) {
        if !status.is_success() {
            let index = usize::from(status.code_type()) << 8 | usize::from(status.code());
            self.errors[index].fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_back() {
        let stats = Stats::default();
        stats.count(CommandKind::Read, Duration::from_micros(10));
        stats.count_status(Status::COMPARE_FAILURE.do_not_retry());
        stats.count_status(Status::SUCCESS);
        assert_eq!((stats.commands(CommandKind::Read), stats.commands(CommandKind::Write)), (1, 0));
        assert_eq!(stats.errors().collect::<Vec<_>>(), vec![(Status::COMPARE_FAILURE, 1)]);
        let latency = stats.latency(CommandKind::Read);
        assert_eq!((latency.count(), latency.sum()), (1, 10_000));
        assert!(latency.buckets().all(|(bound, _)| bound > 10_000));
    }
}
