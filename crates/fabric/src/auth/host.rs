//! The host's side of a transaction: tells what to send and when to receive.

use nvme::auth::{
    Challenge, Concatenation, Descriptor, Failure, FailureMessage, HASH_BYTES_MAX, Header, IDENTIFIERS_MAX, Message,
    Negotiate, PROTOCOL_DH_HMAC_CHAP, REASON_FAILED, Reply, Success1, Success2,
};
use tls::Secret;
use zerocopy::{FromBytes, IntoBytes};

use super::derive::{self, GeneratedPsk, Role, Transaction};
use super::group::Exchange;
use super::key::HostKeys;
use super::suite::{Group, Hash, Policy};
use super::{CryptoError, Names, next_sequence, random};

/// Why a host did not authenticate.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AuthError {
    /// The controller says no.
    #[error("the target ended the authentication: {}{}", .0, hint(*.0))]
    Refused(Failure),
    /// The controller asks for an authentication, and there is no key.
    #[error("the target demands authentication, and this host has no key for it; give the key by --dhchap-key-file")]
    NoKey,
    /// The controller asks for a secure channel made by the authentication.
    #[error(
        "the target demands a secure channel; have the authentication make one by --concat, or give a key by --tls-key-file"
    )]
    SecureChannelRequired,
    /// A controller key is given, and the controller does not ask to authenticate.
    #[error(
        "the target does not offer authentication, so it cannot show that it knows the controller key; \
         leave --dhchap-ctrl-key-file out, or give the target this host's keys"
    )]
    NotOffered,
    /// It could not show that it knows the controller key.
    #[error(
        "the target does not know the controller key: it is another target than it says, or the key given by \
         --dhchap-ctrl-key-file is not the one that the target has for this host"
    )]
    WrongController,
    /// A message that is not as the specification has it.
    #[error("the target's {0} is not as NVMe Base 2.0 §8.13 has it: {1}")]
    Malformed(Message, &'static str),
    /// The library.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

fn hint(failure: Failure) -> &'static str {
    match failure {
        Failure::FAILED => {
            "; is the key in --dhchap-key-file the one that the target has for this host's NQN, and does the target \
             have a controller key if one is given here?"
        }
        Failure::CONCATENATION_MISMATCH => "; its port does no TLS, or it has no use for a secure channel here",
        Failure::PROTOCOL_NOT_USABLE => "; the target has no key for this host's NQN",
        Failure::HASH_NOT_USABLE => "; the target allows none of the hashes that this host offers",
        Failure::GROUP_NOT_USABLE => "; the target allows none of the DH groups that this host offers",
        _ => "",
    }
}

/// What is to be done next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Send this payload by Authentication Send.
    Send(Vec<u8>),
    /// Fetch a payload by Authentication Receive, and give it to [`HostSide::received`].
    Receive,
    /// Both ends are content. With a key for a secure channel, if one was asked for.
    Done(Option<GeneratedPsk>),
    /// It failed; the connection is to be closed.
    Failed(AuthError),
}

enum State {
    Start,
    /// Until the challenge.
    Challenge,
    /// Until the success. What the response must be, if there must be one.
    Success {
        hash: Hash,
        expected: Option<Vec<u8>>,
        psk: Option<GeneratedPsk>,
    },
    Over(Result<Option<GeneratedPsk>, AuthError>),
}

/// One queue's authentication, as the host sees it.
pub struct HostSide {
    names: Names,
    keys: HostKeys,
    policy: Policy,
    concatenation: Concatenation,
    transaction: u16,
    state: State,
    /// A message to send before anything else.
    outgoing: Option<Vec<u8>>,
}

impl HostSide {
    /// A transaction with the number `transaction` for a queue of the host and subsystem `names`. With
    /// [`Concatenation::NEW_TLS_PSK`] it makes a key for TLS; that is for admin queues.
    pub fn new(
        names: Names,
        keys: HostKeys,
        policy: Policy,
        transaction: u16,
        concatenation: Concatenation,
    ) -> HostSide {
        HostSide { names, keys, policy, concatenation, transaction, state: State::Start, outgoing: None }
    }

    /// The next step. A payload to send is given once.
    pub fn step(&mut self) -> Step {
        if let Some(message) = self.outgoing.take() {
            return Step::Send(message);
        }
        match &self.state {
            State::Start => {
                let message = self.negotiate();
                self.state = State::Challenge;
                Step::Send(message)
            }
            State::Challenge | State::Success { .. } => Step::Receive,
            State::Over(Ok(psk)) => Step::Done(psk.clone()),
            State::Over(Err(error)) => Step::Failed(error.clone()),
        }
    }

    /// Takes the payload that was asked for. Bytes behind the message do not count.
    pub fn received(&mut self, payload: &[u8]) {
        if let Err((error, tell)) = self.take(payload) {
            self.outgoing = tell.map(|failure| self.failure2(failure));
            self.state = State::Over(Err(error));
        }
    }

    fn negotiate(&self) -> Vec<u8> {
        // TLS has no SHA-512, and a key for it needs an exchange.
        let plain = self.concatenation == Concatenation::NONE;
        let hashes = self.policy.hashes().iter().filter(|hash| plain || **hash != Hash::Sha512);
        let groups = self.policy.groups().iter().filter(|group| plain || **group != Group::Null);
        let (hash_count, hashes) = identifiers(hashes.map(|hash| hash.id().0));
        let (group_count, groups) = identifiers(groups.map(|group| group.id().0));
        let protocol = PROTOCOL_DH_HMAC_CHAP;
        let descriptor = Descriptor { protocol, reserved: 0, hash_count, group_count, hashes, groups };
        let header = Header::new(Message::NEGOTIATE, self.transaction);
        let message = Negotiate { header, concatenation: self.concatenation.0, descriptors: 1 };
        [message.as_bytes(), descriptor.as_bytes()].concat()
    }

    fn failure2(&self, failure: Failure) -> Vec<u8> {
        let header = Header::new(Message::FAILURE2, self.transaction);
        FailureMessage { header, reason: REASON_FAILED, explanation: failure.0 }.as_bytes().to_vec()
    }

    fn take(&mut self, payload: &[u8]) -> Result<(), Fault> {
        let malformed = |message| fault(message, "it is too short", Failure::INCORRECT_PAYLOAD);
        let awaited = match self.state {
            State::Challenge => Message::CHALLENGE,
            _ => Message::SUCCESS1,
        };
        let (header, _) = Header::read_from_prefix(payload).map_err(|_| malformed(awaited))?;
        if header.message() == Message::FAILURE1 {
            let told = FailureMessage::read_from_prefix(payload);
            let failure = told.map_or(Failure::FAILED, |(message, _)| Failure(message.explanation));
            return Err((AuthError::Refused(failure), None));
        }
        if header.message() != awaited {
            return Err(fault(header.message(), "another message was to come", Failure::INCORRECT_MESSAGE));
        }
        if header.transaction.get() != self.transaction {
            let what = "it belongs to another transaction";
            return Err(fault(awaited, what, Failure::INCORRECT_PAYLOAD));
        }
        match std::mem::replace(&mut self.state, State::Start) {
            State::Challenge => self.on_challenge(payload),
            State::Success { hash, expected, psk } => self.on_success(payload, hash, expected, psk),
            over => {
                self.state = over;
                Ok(())
            }
        }
    }

    // DH-HMAC-CHAP_Challenge (NVMe Base 2.0 §8.13.5.2) and our reply.

    fn on_challenge(&mut self, payload: &[u8]) -> Result<(), Fault> {
        let bad = |what, failure| fault(Message::CHALLENGE, what, failure);
        let (challenge, rest) =
            Challenge::read_from_prefix(payload).map_err(|_| bad("it is too short", Failure::INCORRECT_PAYLOAD))?;
        let hash = Hash::from_id(challenge.hash).filter(|hash| self.policy.hashes().contains(hash));
        let hash = hash.ok_or(bad("it has a hash that was not offered", Failure::HASH_NOT_USABLE))?;
        let group = Group::from_id(challenge.group).filter(|group| self.policy.groups().contains(group));
        let group = group.ok_or(bad("it has a group that was not offered", Failure::GROUP_NOT_USABLE))?;
        let secure = self.concatenation != Concatenation::NONE;
        if secure && (hash == Hash::Sha512 || group == Group::Null) {
            let what = "its hash and group cannot make a key for TLS";
            return Err(bad(what, Failure::CONCATENATION_MISMATCH));
        }
        let dh_bytes = usize::from(challenge.dh_bytes.get());
        if usize::from(challenge.hash_bytes) != hash.bytes() || (dh_bytes == 0) != (group == Group::Null) {
            return Err(bad("its lengths do not belong to its hash and group", Failure::INCORRECT_PAYLOAD));
        }
        if challenge.sequence.get() == 0 {
            return Err(bad("its sequence number is zero", Failure::INCORRECT_PAYLOAD));
        }
        let short = || bad("it is too short", Failure::INCORRECT_PAYLOAD);
        let (c1, rest) = rest.split_at_checked(hash.bytes()).ok_or_else(short)?;
        let value = rest.get(..dh_bytes).ok_or_else(short)?;
        let exchange = Exchange::new(group).map_err(library)?;
        let session = match &exchange {
            None => None,
            Some(exchange) => {
                let shared = exchange.shared(value).map_err(library)?;
                let what = "its DH value is none of the group";
                let shared = shared.ok_or(bad(what, Failure::INCORRECT_PAYLOAD))?;
                Some(derive::session_key(hash, &shared).map_err(library)?)
            }
        };
        let transaction = Transaction { id: self.transaction, hash, concatenation: self.concatenation.0 };
        let sequence = challenge.sequence.get();
        self.reply(transaction, c1, sequence, exchange.as_ref(), session.as_ref()).map_err(library)
    }

    fn reply(
        &mut self,
        transaction: Transaction,
        c1: &[u8],
        s1: u32,
        exchange: Option<&Exchange>,
        session: Option<&Secret>,
    ) -> Result<(), CryptoError> {
        let hash = transaction.hash;
        let response = derive::response(transaction, Role::Host, &self.keys.host, &self.names, c1, s1, session)?;
        let secure = self.concatenation != Concatenation::NONE;
        let both = self.keys.controller.is_some();
        let mut c2 = vec![0; hash.bytes()];
        if both || secure {
            c2 = random(hash.bytes())?;
        }
        let s2 = if both { next_sequence()? } else { 0 };
        let expected = match &self.keys.controller {
            Some(key) => Some(derive::response(transaction, Role::Controller, key, &self.names, &c2, s2, session)?),
            None => None,
        };
        let psk = match session.filter(|_| secure) {
            Some(session) => Some(GeneratedPsk::new(hash, session, c1, &c2)?),
            None => None,
        };
        let value = exchange.map_or(&[][..], Exchange::public);
        let message = Reply {
            header: Header::new(Message::REPLY, self.transaction),
            hash_bytes: hash.bytes() as u8,
            reserved1: 0,
            challenge_valid: u8::from(both || secure),
            reserved2: 0,
            dh_bytes: (value.len() as u16).into(),
            sequence: s2.into(),
        };
        self.outgoing = Some([message.as_bytes(), &response, &c2, value].concat());
        self.state = State::Success { hash, expected, psk };
        Ok(())
    }

    // DH-HMAC-CHAP_Success1 (NVMe Base 2.0 §8.13.5.4) and our success.

    fn on_success(
        &mut self,
        payload: &[u8],
        hash: Hash,
        expected: Option<Vec<u8>>,
        psk: Option<GeneratedPsk>,
    ) -> Result<(), Fault> {
        let bad = |what| fault(Message::SUCCESS1, what, Failure::INCORRECT_PAYLOAD);
        let (success, rest) = Success1::read_from_prefix(payload).map_err(|_| bad("it is too short"))?;
        if usize::from(success.hash_bytes) != hash.bytes() {
            return Err(bad("its length does not belong to its hash"));
        }
        if let Some(expected) = expected {
            // A controller that leaves its response out has not shown anything: that it calls it a success counts for nothing.
            let response = rest.get(..hash.bytes()).filter(|_| success.response_valid == 1);
            if !response.is_some_and(|response| openssl::memcmp::eq(response, &expected)) {
                return Err((AuthError::WrongController, Some(Failure::FAILED)));
            }
            let header = Header::new(Message::SUCCESS2, self.transaction);
            self.outgoing = Some(Success2 { header, reserved: [0; 10] }.as_bytes().to_vec());
        }
        self.state = State::Over(Ok(psk));
        Ok(())
    }
}

/// What went wrong, and what AUTH_Failure2 tells the controller of it.
type Fault = (AuthError, Option<Failure>);

fn fault(message: Message, what: &'static str, failure: Failure) -> Fault {
    (AuthError::Malformed(message, what), Some(failure))
}

fn library(error: CryptoError) -> Fault {
    (AuthError::Crypto(error), Some(Failure::FAILED))
}

/// A list of a descriptor. A policy's lists are shorter: each has every identifier at most once.
fn identifiers(ids: impl Iterator<Item = u8>) -> (u8, [u8; IDENTIFIERS_MAX]) {
    let mut list = [0; IDENTIFIERS_MAX];
    let mut count = 0;
    for (place, id) in list.iter_mut().zip(ids) {
        *place = id;
        count += 1;
    }
    (count, list)
}

const _: () = assert!(HASH_BYTES_MAX <= u8::MAX as usize);
