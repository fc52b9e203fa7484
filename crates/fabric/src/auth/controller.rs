//! The controller's side of a transaction: the host's messages in, ours out.

use nvme::auth::{
    Challenge, Concatenation, DESCRIPTORS_MAX, Descriptor, Failure, FailureMessage, HASH_BYTES_MAX, Header,
    IDENTIFIERS_MAX, MESSAGE_BYTES_MAX, Message, Negotiate, PROTOCOL_DH_HMAC_CHAP, REASON_FAILED, Reply, Success1,
    Success2,
};
use zerocopy::{FromBytes, IntoBytes};

use super::derive::{self, GeneratedPsk, Role, Transaction};
use super::group::Exchange;
use super::key::HostKeys;
use super::suite::{Group, Hash, Policy};
use super::{CryptoError, Names, next_sequence, random};

/// Where a queue stands after a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// There is more to come.
    Pending,
    /// The host knows its key, and if it asked for it, so do we.
    Authenticated {
        /// We have shown that we know ours.
        bidirectional: bool,
        /// The key for a secure channel, if the host asked for one.
        psk: Option<GeneratedPsk>,
    },
    /// It failed. The connection is to end.
    Failed(Failure),
}

/// Whether a host may have a key made for a secure channel (SC_C, NVMe Base 2.0 §8.13.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConcatenationPolicy {
    /// There is nowhere to use it.
    Refused,
    /// If it asks for one.
    Allowed,
    /// It has to ask for one.
    Required,
}

/// What a message has to be before it is looked at: the fault that is told to the host.
type Checked<T> = Result<T, Failure>;

/// A message that waits to be fetched, and what it means that it was.
struct Outgoing {
    bytes: Vec<u8>,
    verdict: Verdict,
}

/// What the host is to send next.
enum Expected {
    Negotiate,
    Reply(Box<Challenged>),
    Success2(Option<GeneratedPsk>),
    Nothing,
}

/// A challenge that was made for the host.
struct Challenged {
    transaction: Transaction,
    group: Group,
    exchange: Option<Exchange>,
    challenge: Vec<u8>,
    sequence: u32,
}

/// One queue's authentication, as the controller sees it. It begins anew after each success: a host may authenticate again
/// at any time (NVMe Base 2.0 §8.13.4).
pub struct ControllerSide {
    names: Names,
    /// The host has one of these.
    keys: Vec<HostKeys>,
    /// Those of them that it has shown to know, in the latest transaction.
    shown: Option<HostKeys>,
    policy: Policy,
    concatenation: ConcatenationPolicy,
    expected: Expected,
    outgoing: Option<Outgoing>,
    /// The transaction of the latest message, for AUTH_Failure1.
    transaction: u16,
}

impl ControllerSide {
    /// For a queue of the host and subsystem `names`: the host is to show that it knows one of `keys`. Without keys every attempt
    /// fails. `concatenation` says whether a host may ask for a key for TLS; that is for admin queues without a secure channel.
    pub fn new(
        names: Names,
        keys: impl IntoIterator<Item = HostKeys>,
        policy: Policy,
        concatenation: ConcatenationPolicy,
    ) -> ControllerSide {
        ControllerSide {
            names,
            keys: keys.into_iter().collect(),
            shown: None,
            policy,
            concatenation,
            expected: Expected::Negotiate,
            outgoing: None,
            transaction: 0,
        }
    }

    /// Other keys, for transactions that begin from now on.
    pub fn set_keys(&mut self, keys: impl IntoIterator<Item = HostKeys>) {
        self.keys = keys.into_iter().collect();
    }

    /// The keys by which the host has authenticated last. They were its keys when that began.
    pub fn shown(&self) -> Option<&HostKeys> {
        self.shown.as_ref()
    }

    /// Whether a transaction has begun and is not over.
    pub fn is_under_way(&self) -> bool {
        self.outgoing.is_some() || !matches!(self.expected, Expected::Negotiate)
    }

    /// Takes the payload of an Authentication Send.
    pub fn send(&mut self, payload: &[u8]) -> Verdict {
        match self.take(payload) {
            Ok(verdict) => verdict,
            Err(failure) => {
                self.fail(failure);
                Verdict::Pending
            }
        }
    }

    /// The message for an Authentication Receive, which has room for `room` bytes.
    ///
    /// # Errors
    /// The message is longer; it stays to be fetched. How long it is.
    pub fn receive(&mut self, room: usize) -> Result<(Vec<u8>, Verdict), usize> {
        if self.outgoing.is_none() {
            // The host is to speak, not we.
            self.fail(Failure::INCORRECT_MESSAGE);
        }
        match self.outgoing.take_if(|outgoing| outgoing.bytes.len() <= room) {
            Some(outgoing) => Ok((outgoing.bytes, outgoing.verdict)),
            None => Err(self.outgoing.as_ref().map_or(0, |outgoing| outgoing.bytes.len())),
        }
    }

    /// Leaves AUTH_Failure1 for the host to fetch.
    fn fail(&mut self, failure: Failure) {
        let header = Header::new(Message::FAILURE1, self.transaction);
        let message = FailureMessage { header, reason: REASON_FAILED, explanation: failure.0 };
        self.expected = Expected::Nothing;
        self.outgoing = Some(Outgoing { bytes: message.as_bytes().to_vec(), verdict: Verdict::Failed(failure) });
    }

    fn take(&mut self, payload: &[u8]) -> Checked<Verdict> {
        let (header, _) = Header::read_from_prefix(payload).map_err(|_| Failure::INCORRECT_PAYLOAD)?;
        if header.message() == Message::FAILURE2 {
            return Ok(self.on_failure2(payload));
        }
        let speaks_first = self.outgoing.is_some();
        if speaks_first {
            return Err(Failure::INCORRECT_MESSAGE); // ours is to be fetched first
        }
        match (std::mem::replace(&mut self.expected, Expected::Nothing), header.message()) {
            (Expected::Negotiate, Message::NEGOTIATE) => {
                self.transaction = header.transaction.get();
                self.on_negotiate(payload)?;
                Ok(Verdict::Pending)
            }
            (Expected::Reply(challenged), Message::REPLY) => {
                self.check_transaction(&header)?;
                self.on_reply(*challenged, payload)?;
                Ok(Verdict::Pending)
            }
            (Expected::Success2(psk), Message::SUCCESS2) => {
                self.check_transaction(&header)?;
                Success2::read_from_prefix(payload).map_err(|_| Failure::INCORRECT_PAYLOAD)?;
                self.expected = Expected::Negotiate;
                Ok(Verdict::Authenticated { bidirectional: true, psk })
            }
            _ => Err(Failure::INCORRECT_MESSAGE),
        }
    }

    fn check_transaction(&self, header: &Header) -> Checked<()> {
        if header.transaction.get() == self.transaction { Ok(()) } else { Err(Failure::INCORRECT_PAYLOAD) }
    }

    fn on_failure2(&mut self, payload: &[u8]) -> Verdict {
        self.expected = Expected::Nothing;
        self.outgoing = None;
        let message = FailureMessage::read_from_prefix(payload);
        Verdict::Failed(message.map_or(Failure::INCORRECT_PAYLOAD, |(message, _)| Failure(message.explanation)))
    }

    // AUTH_Negotiate (NVMe Base 2.0 §8.13.3.1) and our challenge.

    fn on_negotiate(&mut self, payload: &[u8]) -> Checked<()> {
        if self.keys.is_empty() {
            return Err(Failure::PROTOCOL_NOT_USABLE);
        }
        if payload.len() > MESSAGE_BYTES_MAX {
            return Err(Failure::INCORRECT_PAYLOAD);
        }
        let (negotiate, rest) = Negotiate::read_from_prefix(payload).map_err(|_| Failure::INCORRECT_PAYLOAD)?;
        let descriptor = find_descriptor(negotiate.descriptors, rest)?;
        let concatenation = Concatenation(negotiate.concatenation);
        let wanted = match concatenation {
            Concatenation::NONE if self.concatenation != ConcatenationPolicy::Required => false,
            Concatenation::NEW_TLS_PSK if self.concatenation != ConcatenationPolicy::Refused => true,
            _ => return Err(Failure::CONCATENATION_MISMATCH),
        };
        let offered = |list: &[u8], count: u8, id: u8| list[..usize::from(count)].contains(&id);
        // TLS has no cipher suite with SHA-512, and without an exchange there is no session key to make a PSK from.
        let hash = self.policy.hashes().iter().copied().find(|hash| {
            offered(&descriptor.hashes, descriptor.hash_count, hash.id().0) && !(wanted && *hash == Hash::Sha512)
        });
        let hash = hash.ok_or(Failure::HASH_NOT_USABLE)?;
        let group = self.policy.groups().iter().copied().find(|group| {
            offered(&descriptor.groups, descriptor.group_count, group.id().0) && !(wanted && *group == Group::Null)
        });
        let group = group.ok_or(Failure::GROUP_NOT_USABLE)?;
        let transaction = Transaction { id: self.transaction, hash, concatenation: concatenation.0 };
        self.challenge(transaction, group).map_err(library_failed)
    }

    fn challenge(&mut self, transaction: Transaction, group: Group) -> Result<(), CryptoError> {
        let hash = transaction.hash;
        let exchange = Exchange::new(group)?;
        let (challenge, sequence) = (random(hash.bytes())?, next_sequence()?);
        let message = Challenge {
            header: Header::new(Message::CHALLENGE, transaction.id),
            hash_bytes: hash.bytes() as u8,
            reserved: 0,
            hash: hash.id().0,
            group: group.id().0,
            dh_bytes: (group.bytes() as u16).into(),
            sequence: sequence.into(),
        };
        let mut bytes = message.as_bytes().to_vec();
        bytes.extend_from_slice(&challenge);
        bytes.extend_from_slice(exchange.as_ref().map_or(&[], Exchange::public));
        self.outgoing = Some(Outgoing { bytes, verdict: Verdict::Pending });
        self.expected = Expected::Reply(Box::new(Challenged { transaction, group, exchange, challenge, sequence }));
        Ok(())
    }

    // DH-HMAC-CHAP_Reply (NVMe Base 2.0 §8.13.5.3) and our success.

    fn on_reply(&mut self, challenged: Challenged, payload: &[u8]) -> Checked<()> {
        let reply = ReplyParts::read(&challenged, payload)?;
        let Challenged { transaction, ref challenge, sequence, .. } = challenged;
        let session = challenged.session(reply.dh_value)?;
        let session = session.as_ref();
        let answered = reply.challenge.is_some() && reply.sequence != 0;
        let mut shown: Option<&HostKeys> = None;
        for keys in &self.keys {
            let (names, key) = (&self.names, &keys.host);
            let expected = derive::response(transaction, Role::Host, key, names, challenge, sequence, session);
            // In constant time: how much of a guess was right must not be seen.
            let same = openssl::memcmp::eq(&expected.map_err(library_failed)?, reply.response);
            // Of two with one key for the host the one that can answer it.
            if same && shown.is_none_or(|shown| answered && shown.controller.is_none()) {
                shown = Some(keys);
            }
        }
        let keys = shown.cloned().ok_or(Failure::FAILED)?;
        let wants_psk = transaction.concatenation != Concatenation::NONE.0;
        // A challenge that repeats ours asks us to answer a question of our own.
        if reply.challenge == Some(challenge.as_slice()) || (wants_psk && reply.challenge.is_none()) {
            return Err(Failure::FAILED);
        }
        let psk = match (session, reply.challenge) {
            (Some(session), Some(c2)) if wants_psk => {
                Some(GeneratedPsk::new(transaction.hash, session, challenge, c2).map_err(library_failed)?)
            }
            _ => None,
        };
        // S2 is zero where a challenge is sent for the PSK alone.
        let answer = match reply.challenge.filter(|_| reply.sequence != 0) {
            None => None,
            Some(c2) => {
                let key = keys.controller.as_ref().ok_or(Failure::FAILED)?;
                let names = &self.names;
                let answer = derive::response(transaction, Role::Controller, key, names, c2, reply.sequence, session);
                Some(answer.map_err(library_failed)?)
            }
        };
        self.shown = Some(keys);
        self.succeed(transaction, answer, psk);
        Ok(())
    }

    fn succeed(&mut self, transaction: Transaction, answer: Option<Vec<u8>>, psk: Option<GeneratedPsk>) {
        let message = Success1 {
            header: Header::new(Message::SUCCESS1, transaction.id),
            hash_bytes: transaction.hash.bytes() as u8,
            reserved1: 0,
            response_valid: u8::from(answer.is_some()),
            reserved2: [0; 7],
        };
        let mut bytes = message.as_bytes().to_vec();
        let verdict = match answer {
            Some(answer) => {
                bytes.extend_from_slice(&answer);
                self.expected = Expected::Success2(psk);
                Verdict::Pending
            }
            None => {
                bytes.extend_from_slice(&[0; HASH_BYTES_MAX][..transaction.hash.bytes()]);
                self.expected = Expected::Negotiate;
                Verdict::Authenticated { bidirectional: false, psk }
            }
        };
        self.outgoing = Some(Outgoing { bytes, verdict });
    }
}

impl Challenged {
    /// The session key from the host's value.
    fn session(&self, dh_value: &[u8]) -> Checked<Option<tls::Secret>> {
        let Some(exchange) = &self.exchange else { return Ok(None) };
        let shared = exchange.shared(dh_value).map_err(library_failed)?.ok_or(Failure::INCORRECT_PAYLOAD)?;
        derive::session_key(self.transaction.hash, &shared).map(Some).map_err(library_failed)
    }
}

/// A reply taken apart.
struct ReplyParts<'a> {
    response: &'a [u8],
    challenge: Option<&'a [u8]>,
    sequence: u32,
    dh_value: &'a [u8],
}

impl<'a> ReplyParts<'a> {
    fn read(challenged: &Challenged, payload: &'a [u8]) -> Checked<ReplyParts<'a>> {
        let fault = Failure::INCORRECT_PAYLOAD;
        let (reply, rest) = Reply::read_from_prefix(payload).map_err(|_| fault)?;
        let hash_bytes = challenged.transaction.hash.bytes();
        let dh_bytes = usize::from(reply.dh_bytes.get());
        let has_value = dh_bytes != 0;
        let expects_value = challenged.group != Group::Null;
        if usize::from(reply.hash_bytes) != hash_bytes || has_value != expects_value || reply.challenge_valid > 1 {
            return Err(fault);
        }
        let (response, rest) = rest.split_at_checked(hash_bytes).ok_or(fault)?;
        let (challenge, rest) = rest.split_at_checked(hash_bytes).ok_or(fault)?;
        let dh_value = rest.get(..dh_bytes).ok_or(fault)?;
        let challenge = (reply.challenge_valid == 1).then_some(challenge);
        let sequence = reply.sequence.get();
        // Without a secure channel a challenge is there to be answered, so it has a number (NVMe Base 2.0 §8.13.5.3). The
        // Linux host numbers also the zeroes that it sends in place of a challenge.
        let plain = challenged.transaction.concatenation == Concatenation::NONE.0;
        if plain && challenge.is_some() && sequence == 0 {
            return Err(fault);
        }
        Ok(ReplyParts { response, challenge, sequence, dh_value })
    }
}

/// The DH-HMAC-CHAP descriptor among those of AUTH_Negotiate.
fn find_descriptor(count: u8, mut bytes: &[u8]) -> Checked<Descriptor> {
    let count = usize::from(count);
    if count == 0 || count > DESCRIPTORS_MAX {
        return Err(Failure::INCORRECT_PAYLOAD);
    }
    let mut found = None;
    for _ in 0..count {
        let (descriptor, rest) = Descriptor::read_from_prefix(bytes).map_err(|_| Failure::INCORRECT_PAYLOAD)?;
        bytes = rest;
        if descriptor.protocol == PROTOCOL_DH_HMAC_CHAP {
            found.get_or_insert(descriptor);
        }
    }
    let found = found.ok_or(Failure::PROTOCOL_NOT_USABLE)?;
    let most = usize::from(found.hash_count.max(found.group_count));
    if most > IDENTIFIERS_MAX { Err(Failure::INCORRECT_PAYLOAD) } else { Ok(found) }
}

fn library_failed(error: CryptoError) -> Failure {
    tracing::error!(%error, "an authentication could not be computed");
    Failure::FAILED
}
