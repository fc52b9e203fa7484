//! One connection as a pure state machine: bytes in ([`Session::receive`]), work out ([`Session::next_job`]), results in
//! ([`Session::complete`]), bytes out ([`Session::output`]).
//!
//! Invariants:
//! - `entries` holds one entry per command that is not yet encoded, in the order of arrival; only its front is encoded.
//!   A reply out of turn would be taken for another command's.
//! - Commands start in order. One that conflicts with a running one waits, and so does all behind it.
//! - Connection commands act when they are decoded, so each entry keeps the protocol it was decoded under: the replies to
//!   what was sent before a `HELLO 3` are in RESP2.
//! - Nothing is decoded while [`PENDING_MAX`], [`PENDING_BYTES_MAX`], [`OWN_OUTPUT_BYTES_MAX`] or [`OUTPUT_BYTES_MAX`] is reached,
//!   and nothing started while the last of them is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::access::Access;
use super::command::Command;
use super::commands::{self, COMMANDS, TRANSACTION};
use super::connection;
use super::decode::{Decoder, ProtocolError};
use super::memory::Hold;
use super::reply::{Output, Protocol, Reply};
use super::request::{Request, unknown_command, wrong_arity};
use super::stats::{GatewayState, GatewayStats};
use super::{
    COMMAND_BYTES_FREE, COMMAND_BYTES_MAX, OUTPUT_BYTES_MAX, OWN_OUTPUT_BYTES_MAX, PENDING_BYTES_MAX, PENDING_MAX,
    RUNNING_MAX, UNTRUSTED_COMMANDS_MAX,
};

/// Work for the store: to be executed and handed back by [`Session::complete`].
#[derive(Debug)]
pub struct Job {
    /// Which command of the connection it is.
    pub sequence: u64,
    /// What to do.
    pub request: Request,
    /// Its arguments.
    pub command: Command,
    /// Its place in [`COMMANDS`].
    pub place: usize,
    /// What it touches.
    pub access: Access,
}

#[derive(Debug)]
enum Progress {
    Waiting(Job),
    Running(Access),
    Done(Reply, Hold),
}

#[derive(Debug)]
struct Entry {
    protocol: Protocol,
    /// Nobody is told (`CLIENT REPLY`).
    silent: bool,
    progress: Progress,
}

/// What `CLIENT REPLY` has chosen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Replies {
    /// All are sent.
    #[default]
    On,
    /// None is.
    Off,
    /// The next command's is not.
    SkipNext,
}

/// Who is connected, for `CLIENT LIST`.
#[derive(Default, Debug)]
pub(super) struct Identity {
    pub(super) id: u64,
    pub(super) peer: String,
    pub(super) local: String,
    pub(super) name: String,
    pub(super) library: String,
    pub(super) library_version: String,
    /// Set when others want it to end.
    pub(super) ends: Arc<AtomicBool>,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Session {
    decoder: Decoder,
    pub(super) protocol: Protocol,
    pub(super) identity: Identity,
    pub(super) shared: Arc<GatewayState>,
    /// A password was given, or none is asked for.
    pub(super) authenticated: bool,
    pub(super) replies: Replies,
    /// Nobody is told of the command that is being dispatched.
    pub(super) silent: bool,
    /// MULTI was refused. What follows was meant to be done as a whole or not at all: until its EXEC or DISCARD none of it is done.
    pub(super) in_refused_transaction: bool,
    entries: VecDeque<Entry>,
    /// Sequence number of the front entry.
    first: u64,
    /// Entries in front of this index are running or done.
    started: usize,
    running: usize,
    /// Bytes of commands that wait or run.
    held_bytes: usize,
    /// Memory of replies that are done and not at the front yet.
    done_bytes: usize,
    /// Room that is held for these.
    done_held: usize,
    /// Commands that were decoded before the password was given.
    untrusted: usize,
    output: Output,
    closing: bool,
    error: Option<ProtocolError>,
}

impl Session {
    /// A new connection between these addresses.
    pub fn new(shared: Arc<GatewayState>, peer: String, local: String) -> Session {
        let identity = Identity { id: shared.next_client_id(), peer, local, ..Identity::default() };
        let authenticated = !shared.asks_password();
        let mut decoder = Decoder::default();
        decoder.set_trusted(authenticated);
        let session = Session {
            decoder,
            authenticated,
            replies: Replies::default(),
            silent: false,
            in_refused_transaction: false,
            protocol: Protocol::default(),
            identity,
            shared,
            entries: VecDeque::new(),
            first: 0,
            started: 0,
            running: 0,
            held_bytes: 0,
            done_bytes: 0,
            done_held: 0,
            untrusted: 0,
            output: Output::default(),
            closing: false,
            error: None,
        };
        session.publish_identity();
        session
    }

    /// Takes bytes off `input`; stops early while too much is pending, and for good once the connection is closing.
    pub fn receive(&mut self, input: &mut &[u8]) {
        while self.accepts() && !input.is_empty() {
            match self.decoder.decode(input) {
                Ok(Some(command)) => self.dispatch(command),
                Ok(None) => {}
                Err(error) => {
                    GatewayStats::add(&self.shared.stats.protocol_errors, 1);
                    self.silent = false;
                    self.answer(None, Reply::error(&error));
                    self.error = Some(error);
                    self.closing = true;
                }
            }
        }
    }

    /// Whether more input is wanted now.
    pub fn accepts(&self) -> bool {
        let pending = self.entries.len() < PENDING_MAX && self.held_bytes < PENDING_BYTES_MAX;
        // What the connection answers itself never passes `next_job`: a peer that sends such commands and reads nothing
        // is held back here.
        let (output, held) = (self.output.len() + self.done_bytes, self.output.held() + self.done_held);
        let own = output.saturating_sub(held) < OWN_OUTPUT_BYTES_MAX;
        !self.closing && pending && own && output < OUTPUT_BYTES_MAX
    }

    /// Whether a command has come in part.
    pub fn is_amid_command(&self) -> bool {
        !self.decoder.is_at_boundary()
    }

    /// Bytes of commands that are held, and of the argument that is on its way.
    pub fn command_bytes(&self) -> usize {
        self.decoder.held_bytes() + self.held_bytes
    }

    /// Reads on to the end of the command that has come in part, keeps nothing of it, and refuses it. One that is not too long
    /// for a connection that holds no room waits: what is held is that of the others, which come to an end. So nothing is refused
    /// in part that begins or ends something, as MULTI and EXEC do.
    pub fn refuse_command(&mut self) {
        if self.decoder.held_bytes() > COMMAND_BYTES_FREE {
            self.decoder.refuse();
        }
    }

    /// Whether the peer has given the password, or none is asked for.
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Bytes that the current argument still lacks.
    pub fn expected_bytes(&self) -> u64 {
        self.decoder.expected_bytes()
    }

    /// The next command to execute now, if any may start.
    pub fn next_job(&mut self) -> Option<Job> {
        if self.running == RUNNING_MAX || self.output.len() + self.done_bytes >= OUTPUT_BYTES_MAX {
            return None;
        }
        while let Some(entry) = self.entries.get(self.started) {
            let Progress::Waiting(job) = &entry.progress else {
                self.started += 1;
                continue;
            };
            let access = job.access;
            let conflict = self
                .entries
                .range(..self.started)
                .any(|earlier| matches!(&earlier.progress, Progress::Running(running) if running.conflicts(access)));
            if conflict {
                return None;
            }
            let running = Progress::Running(access);
            let Progress::Waiting(job) = std::mem::replace(&mut self.entries[self.started].progress, running) else {
                unreachable!("invariant: matched above")
            };
            self.started += 1;
            self.running += 1;
            return Some(job);
        }
        None
    }

    /// Gives up what has not begun, and the command that has come in part: the peer is gone.
    pub fn forget_waiting(&mut self) {
        self.decoder = Decoder::default();
        let is_waiting = |entry: &Entry| matches!(entry.progress, Progress::Waiting(_));
        let begun = self.entries.iter().position(is_waiting).unwrap_or(self.entries.len());
        for entry in self.entries.drain(begun..) {
            if let Progress::Waiting(job) = entry.progress {
                self.held_bytes -= job.command.bytes_held();
            }
        }
        self.closing = true;
    }

    /// Hands back a job with its reply and the room that it holds.
    pub fn complete(&mut self, job: Job, reply: Reply, hold: Hold) {
        let index = usize::try_from(job.sequence - self.first).expect("invariant: at most PENDING_MAX entries");
        let entry = &mut self.entries[index];
        assert!(matches!(entry.progress, Progress::Running(_)), "job {} was completed twice", job.sequence);
        self.running -= 1;
        self.held_bytes -= job.command.bytes_held();
        self.done_bytes += reply.memory_bytes();
        self.count(Some(job.place), &reply);
        self.done_held += hold.bytes();
        self.entries[index].progress = Progress::Done(reply, hold);
        self.decoder.recycle(job.command);
        self.encode_front();
    }

    /// Encoded replies, in order.
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Whether the connection is to be closed now: it is closing, and all that was owed is sent.
    pub fn is_finished(&self) -> bool {
        self.closing && self.entries.is_empty() && self.output.is_empty()
    }

    /// Whether others want it to end.
    pub fn is_killed(&self) -> bool {
        self.identity.ends.load(Ordering::Relaxed)
    }

    /// Its number, by which others may end it.
    pub fn id(&self) -> u64 {
        self.identity.id
    }

    /// Takes no more commands; what came is still answered.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// The peer's error that ended the stream.
    pub fn protocol_error(&self) -> Option<&ProtocolError> {
        self.error.as_ref()
    }

    /// Commands that run.
    pub fn running(&self) -> usize {
        self.running
    }

    fn dispatch(&mut self, command: Command) {
        self.silent = self.replies != Replies::On;
        if self.replies == Replies::SkipNext {
            self.replies = Replies::On;
        }
        let place = commands::find(command.arg(0));
        match self.plan(place, &command) {
            Ok((place, request)) => {
                let access = request.access(&command);
                self.held_bytes += command.bytes_held();
                let sequence = self.first + self.entries.len() as u64;
                let progress = Progress::Waiting(Job { sequence, request, command, place, access });
                self.entries.push_back(Entry { protocol: self.protocol, silent: self.silent, progress });
            }
            Err(reply) => {
                self.count_untrusted();
                self.decoder.recycle(command);
                self.answer(place, reply);
            }
        }
    }

    /// Of somebody who has given no password few commands are run.
    fn count_untrusted(&mut self) {
        self.untrusted = if self.authenticated { 0 } else { self.untrusted + 1 };
        self.closing |= self.untrusted >= UNTRUSTED_COMMANDS_MAX;
    }

    /// The store's part of a command, or its reply where the connection alone can answer.
    fn plan(&mut self, place: Option<usize>, command: &Command) -> Result<(usize, Request), Reply> {
        if command.is_refused() {
            let sentence = "TRYAGAIN the gateway's memory for commands is in use by other connections: send it again";
            return Err(Reply::Error(sentence.into()));
        }
        if command.dropped() > 0 {
            return Err(Reply::error(format_args!(
                "command is too long: at most {COMMAND_BYTES_MAX} bytes of arguments are taken"
            )));
        }
        let name = command.arg(0);
        // A browser that was lured into posting to this port: its next lines may be commands of an attacker's choice.
        if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"HOST:") {
            self.closing = true;
            return Err(Reply::error("this is no HTTP server"));
        }
        let Some(place) = place else { return Err(unknown_command(command)) };
        let spec = &COMMANDS[place];
        if !spec.takes(command.len()) {
            return Err(wrong_arity(spec.name));
        }
        if !self.authenticated && !spec.has_flag("no_auth") {
            return Err(Reply::Error("NOAUTH Authentication required.".into()));
        }
        self.pass_transaction(spec.name)?;
        match Request::parse(spec, command)? {
            Some(request) => Ok((place, request)),
            None if connection::may_be_long(spec.name, command) => Ok((place, Request::Answer(spec.name))),
            None => Err(self.connection_command(spec, command)),
        }
    }

    /// Notes where a refused transaction begins and ends; an error for what stands between.
    fn pass_transaction(&mut self, name: &str) -> Result<(), Reply> {
        let is_inside = std::mem::replace(&mut self.in_refused_transaction, name == "multi");
        match name {
            _ if !is_inside => Ok(()),
            "discard" | "multi" | "reset" | "quit" => Ok(()),
            "exec" => Err(Reply::Error(format!("EXECABORT nothing was done: MULTI {TRANSACTION}"))),
            _ => {
                self.in_refused_transaction = true;
                Err(Reply::error("not done: it follows a MULTI, which was refused; EXEC or DISCARD ends that"))
            }
        }
    }

    /// From now on the connection may, or may not, send everything.
    pub(super) fn set_authenticated(&mut self, authenticated: bool) {
        self.authenticated = authenticated;
        self.decoder.set_trusted(authenticated);
    }

    /// Closes after the reply to the current command.
    pub(super) fn quit(&mut self) {
        self.closing = true;
    }

    fn answer(&mut self, place: Option<usize>, reply: Reply) {
        self.count(place, &reply);
        self.done_bytes += reply.memory_bytes();
        self.entries.push_back(Entry {
            protocol: self.protocol,
            silent: self.silent,
            progress: Progress::Done(reply, Hold::default()),
        });
        self.encode_front();
    }

    fn encode_front(&mut self) {
        let is_done = |entry: &mut Entry| matches!(entry.progress, Progress::Done(..));
        while let Some(Entry { progress: Progress::Done(reply, hold), protocol, silent }) =
            self.entries.pop_front_if(is_done)
        {
            self.done_bytes -= reply.memory_bytes();
            self.done_held -= hold.bytes();
            if !silent {
                self.output.push_holding(&reply, protocol, hold);
            }
            self.first += 1;
            self.started = self.started.saturating_sub(1);
        }
    }

    fn count(&self, place: Option<usize>, reply: &Reply) {
        GatewayStats::add(&self.shared.stats.commands, 1);
        if reply.is_error() {
            GatewayStats::add(&self.shared.stats.errors, 1);
        }
        if let Some(place) = place {
            self.shared.stats.by_command()[place].count(reply.is_error());
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.remove_client(self.identity.id);
    }
}
