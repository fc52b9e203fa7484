//! Every bound of the target, and how it was chosen.

use std::time::Duration;

use engine::buf::BUF_BYTES_MAX;
use nvme::tcp::ADMIN_IN_CAPSULE_BYTES;

/// Entries of an I/O queue. Chosen: what fast devices offer; a host at depth 1,024 keeps any link busy.
pub const IO_QUEUE_ENTRIES_MAX: u16 = 1024;
/// Entries of an admin queue. Chosen: the Linux host asks for 32; four times as much for whoever pipelines discovery.
pub const ADMIN_QUEUE_ENTRIES_MAX: u16 = 128;
/// I/O queues of one controller. Chosen: one per core of a large host.
pub const IO_QUEUES_MAX: u16 = 64;
/// Data in an I/O command capsule. Chosen: four pages, so that small writes need no R2T; a longer one pays for its own round trip.
pub const IN_CAPSULE_BYTES_MAX: u32 = 16 << 10;
/// MDTS as a power of two of 4 KiB pages, and in bytes: 1 MiB.
pub const MDTS: u8 = 8;
/// The largest transfer, bytes. Derived from [`MDTS`].
pub const TRANSFER_BYTES_MAX: u32 = 4096 << MDTS;
/// Data of one H2CData PDU. Derived: a whole transfer, so that it is received into its buffer in one go.
pub const H2C_DATA_BYTES_MAX: u32 = TRANSFER_BYTES_MAX;
/// Source ranges of a Copy command. Chosen: as many as the field counts, so that a file of many extents is one command.
pub const COPY_RANGES_MAX: u32 = nvme::command::COPY_RANGES_MAX as u32;
/// Bytes that one Copy command may move. Chosen: sixteen of the largest transfers; longer ones would hide from Abort and
/// from fairness for too long.
pub const COPY_BYTES_MAX: u32 = 16 * TRANSFER_BYTES_MAX;
/// Bytes that a Copy command holds at a time. Chosen: enough to stream, and a queue full of them stays bounded by
/// [`CONNECTION_DATA_BYTES_MAX`] like everybody's data.
pub const COPY_BUFFER_BYTES: u32 = 256 << 10;
/// Data buffers that the commands of one connection may hold; further commands wait. Chosen: sixteen of the largest
/// transfers keep a medium busy; without it a queue of 1,024 entries could ask for 1 GiB.
pub const CONNECTION_DATA_BYTES_MAX: u32 = 16 << 20;
/// What of that a connection has whatever the others hold. Derived: both halves of the largest fused pair.
pub const CONNECTION_OWN_BYTES: u32 = 2 * TRANSFER_BYTES_MAX;
/// Data in command capsules that a connection may hold whatever the others hold. Chosen: four of the largest, which keep a
/// host with small writes at work; without a bound a queue of 1,024 of them could hold 16 MiB, and all connections 64 GiB.
pub const CONNECTION_CAPSULE_BYTES: u32 = 4 * IN_CAPSULE_BYTES_MAX;
/// What all connections of a target may hold beyond these two, bytes. Chosen: thirty-six at their bound at the same time keep
/// any network busy; without it a thousand hosts could make the target hold 16 GiB.
pub const SHARED_DATA_BYTES_MAX: u64 = 512 << 20;
/// Bytes that one send gathers before it is handed to the socket. Chosen: two of the largest transfers.
pub const SEND_BYTES_MAX: usize = 2 << 20;
/// Namespace identifiers of a subsystem: 1 to this. Chosen: a Changed Namespace List holds as many.
pub const NSID_MAX: u32 = 1024;
/// Snapshots that hosts take of one namespace. Chosen: one a day for more than half a year, and a quarter of all identifiers.
pub const SNAPSHOTS_MAX: usize = 256;
/// Identifiers of a subsystem that are for who manages: snapshots of other hosts leave so many. Chosen: a quarter.
pub const NSIDS_OF_MANAGERS: usize = 256;
/// Subsystems of a target. Guessed.
pub const SUBSYSTEMS_MAX: usize = 256;
/// Ports of a target. Guessed: several addresses for each network of a large machine.
pub const PORTS_MAX: usize = 64;
/// Hosts on the list of a subsystem. Chosen: as many as there can be controllers.
pub const HOSTS_MAX: usize = CONTROLLERS_MAX;
/// Referrals to other discovery services. Guessed.
pub const REFERRALS_MAX: usize = 64;
/// ANA groups of a subsystem: 1 to this. Chosen: what the Linux target has.
pub const ANA_GROUPS_MAX: u32 = 128;
/// ANATT: no change of a state takes longer, seconds. Ours are at once; chosen: room for the operator's own Change state.
pub const ANA_TRANSITION_SECONDS_MAX: u8 = 10;
/// Reactors that share the connections of a target. Derived: the one that accepts and 256 others.
pub const REACTORS_MAX: usize = 257;
/// Controllers of the subsystems of a target. Guessed.
pub const CONTROLLERS_MAX: usize = 1024;
/// Discovery controllers, beside those. Guessed: hosts look around for a moment, and few stay to hear of changes.
pub const DISCOVERY_CONTROLLERS_MAX: usize = 512;
/// Connections of a target. Derived: as many hosts as fit 64 MiB per GiB at 64 KiB each, rounded; the option can lower it.
pub const CONNECTIONS_MAX: usize = 4096;
/// Asynchronous Event Requests outstanding on a controller. Chosen: the smallest the specification recommends.
pub const ASYNC_EVENTS_MAX: usize = 4;
/// Abort commands outstanding on a controller (ACL). Chosen: the smallest the specification recommends.
pub const ABORTS_MAX: u8 = 4;
/// Entries of the Error Information log. Chosen: one page.
pub const ERROR_ENTRIES_MAX: usize = 64;
/// Bytes asked for by one Get Log Page. Derived: what one buffer takes.
pub const LOG_BYTES_MAX: u32 = TRANSFER_BYTES_MAX;
/// How long a connection may take from accept to the end of its Connect command. Guessed: far above any live host's need.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a Connect waits for the end of a queue with its number. Guessed: far above what the end of a connection takes to
/// be seen, and not felt by a host that has made a mistake.
pub const QUEUE_END_TIME_MAX: Duration = Duration::from_millis(100);
/// How often it looks. Chosen: SPDK looks again after 1 ms.
pub const QUEUE_END_STEP: Duration = Duration::from_millis(2);
/// How long a host may take to authenticate itself, and for each later transaction. Chosen: Linux's host has as much patience for
/// a command, SPDK's target twice as much for a host; with 8192 bits an emulated host on a busy machine took over 20 s. What a
/// peer holds meanwhile is bounded by its address and by its host's name.
pub const AUTHENTICATION_TIME_MAX: Duration = Duration::from_secs(60);
/// How long a host may take to send the first message of the authentication that its Connect was told it needs, which costs it no
/// computation. Chosen: as for the Connect itself. Without it whoever gives a host's name and says nothing more has its places.
pub const AUTHENTICATION_BEGIN_TIME_MAX: Duration = HANDSHAKE_TIME_MAX;
/// How long we wait for the host to close after a C2HTermReq. Guessed; the specification allows up to 30 s.
pub const TERM_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a controller may be neither enabled nor gone. Derived: the specification keeps an association at least two minutes
/// after a reset (NVMe Base 2.0c §3.3.2.4).
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(120);
/// How long a host may not answer the network, or take none of what is sent to it, before its connection is given up. Only here
/// a host that has died is noticed where it wanted no keep alive. Chosen: as long as an idle association may stay.
pub const SILENT_HOST_TIME_MAX: Duration = IDLE_TIME_MAX;
/// How long a host may owe data: of a capsule that it has begun, of an R2T, or the other half of a fused pair. Chosen: Linux gives
/// up a queue whose command takes 30 s, so that a host which is four times as late is not going to send it.
pub const WITHHELD_TIME_MAX: Duration = Duration::from_secs(120);
/// RTD3E: how long a shutdown may take, microseconds. Chosen: the most that Linux waits for; without it that waits for five
/// seconds, in which a slow disk has not flushed its cache, and goes on as if it had.
pub const SHUTDOWN_TIME_US_MAX: u32 = 60_000_000;
/// KAS: granularity of the keep alive timer, in units of 100 ms.
pub const KEEP_ALIVE_GRANULARITY_100MS: u16 = 1;
/// The longest keep alive timeout that is accepted. Chosen: a day; beyond it a dead host would hold its queues for ever.
pub const KEEP_ALIVE_MS_MAX: u32 = 24 * 60 * 60 * 1000;
/// The same for hosts that are let in as anybody is, the discovery subsystem's among them. Chosen: what hosts ask for there is
/// 30 s or 120 s. It is no bound on how long a host may be idle: one that asks for none (but for discovery, see
/// [`DISCOVERY_IDLE_TIME_MAX`]) is watched by the network ([`SILENT_HOST_TIME_MAX`]), and stays with an idle disk.
pub const GUEST_KEEP_ALIVE_MS_MAX: u32 = 10 * 60 * 1000;
/// How long a discovery controller without keep alive timeout may be idle. Derived: the specification's two minutes.
pub const DISCOVERY_IDLE_TIME_MAX: Duration = Duration::from_secs(120);
/// From this length on the rest of a PDU's data is received straight into its buffer. Guessed: below it the copy is
/// cheaper than a receive of its own.
pub const DIRECT_BYTES_MIN: usize = 8 << 10;
/// The receive buffer of a quiet connection: bytes. Derived: a full capsule, and idle queue pairs stay far below 64 KiB.
pub const RECEIVE_BYTES: usize = 16 << 10;
/// The receive buffer of a busy connection: bytes. Chosen: fifteen capsules with a page each in one receive.
pub const RECEIVE_BYTES_MAX: usize = 64 << 10;
/// Commands that execute at a time, first and by steps. Chosen: room for a shallow queue; deeper ones grow it once.
pub const COMMANDS_STEP: usize = 16;

const _: () = assert!(TRANSFER_BYTES_MAX as usize <= BUF_BYTES_MAX);
const _: () = assert!(H2C_DATA_BYTES_MAX >= nvme::tcp::MAXH2CDATA_MIN && H2C_DATA_BYTES_MAX.is_multiple_of(4));
// A fused pair's halves wait for their data together: were there room for one only, both would wait for ever.
const _: () = assert!(CONNECTION_OWN_BYTES >= 2 * TRANSFER_BYTES_MAX);
const _: () = assert!(CONNECTION_DATA_BYTES_MAX >= CONNECTION_OWN_BYTES);
const _: () =
    assert!(COPY_BUFFER_BYTES <= TRANSFER_BYTES_MAX, "or a lone Copy could wait for ever: its ranges are less");
// IOCCSZ counts units of 16 bytes.
const _: () = assert!(IN_CAPSULE_BYTES_MAX.is_multiple_of(16) && IN_CAPSULE_BYTES_MAX >= ADMIN_IN_CAPSULE_BYTES);
// TTAGs are slot numbers.
const _: () = assert!(IO_QUEUE_ENTRIES_MAX < u16::MAX);
