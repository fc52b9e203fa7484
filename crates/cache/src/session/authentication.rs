//! Who speaks: by a `set` in the text protocol, by SASL in the binary one.

use super::server::USER_BYTES_MAX;
use super::{Authentication, Context, Data, Ending, Event, Flow, Server, Session, Users};
use crate::protocol::binary::{Opcode, Status};
use crate::protocol::number::unsigned_32;
use crate::protocol::tokens::Tokens;
use crate::slot::Slots;

/// Bytes of a message with a name and a password. Derived: SASL may say the name twice. Nobody is known yet, and may make us hold
/// no more.
const MESSAGE_BYTES_MAX: usize = 1 << 10;

const _: () = assert!(2 * USER_BYTES_MAX <= MESSAGE_BYTES_MAX);

/// How far SASL is on a connection, as libsasl2 has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Sasl {
    /// A first message is expected.
    #[default]
    Idle,
    /// It came without a text: a step is expected.
    Begun,
    /// Somebody was let in. What comes then is refused, and only a first message that is refused ends it.
    Over,
}

impl<S: Slots> Session<S> {
    /// Every line but a `set` with a name and a password is refused.
    pub(super) fn text_authentication<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        line: &[u8],
        data: Data<'_>,
    ) -> Flow<S::Place> {
        let tokens = Tokens::split(line);
        let length = unsigned_32(tokens.get(4)).filter(|_| tokens.len() >= 5 && tokens.get(0) == b"set");
        let Some(length) = length.map(|length| length as usize) else {
            self.reply(false, "CLIENT_ERROR unauthenticated");
            return Flow::Next(0);
        };
        if length > MESSAGE_BYTES_MAX {
            return Flow::Close(Ending::Error);
        }
        let Data::Here(rest) = data else { return Flow::Close(Ending::Error) };
        if rest.len() < length + 2 {
            return Flow::More(length + 2);
        }
        if &rest[length..length + 2] != b"\r\n" {
            self.reply(false, "CLIENT_ERROR bad command line termination");
            return Flow::Next(length + 2);
        }
        let text = rest[..length].split(|&byte| byte == 0).next().unwrap_or_default();
        let tokens = Tokens::split(text);
        if tokens.len() < 2 {
            self.reply(false, "CLIENT_ERROR bad authentication token format");
            return Flow::Next(length + 2);
        }
        self.authenticated = match &self.rules.authentication {
            Authentication::Text(users) => users.accepts(tokens.get(0), tokens.get(1)),
            Authentication::None | Authentication::Sasl(_) => false,
        };
        context.server.count(Event::Authentication(self.authenticated));
        self.reply(false, if self.authenticated { "STORED" } else { "CLIENT_ERROR authentication failure" });
        Flow::Next(length + 2)
    }

    /// A message of SASL, of so many bytes behind the name of the mechanism. One that is too long is a wrong one, and passed over.
    pub(super) fn sasl_message<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        opcode: Opcode,
        mechanism: &[u8],
        length: usize,
        data: Data<'_>,
    ) -> Result<Status, Flow<S::Place>> {
        if length > MESSAGE_BYTES_MAX {
            return Ok(self.sasl_plain(context, opcode, mechanism, None));
        }
        match data {
            Data::Here(rest) if rest.len() < length => Err(Flow::More(length)),
            Data::Here(rest) => Ok(self.sasl_plain(context, opcode, mechanism, Some(&rest[..length]))),
            Data::Long(..) => Err(Flow::Close(Ending::Error)),
        }
    }

    /// What a message of SASL comes to. Whoever was let in begins anew, whatever it says.
    fn sasl_plain<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        opcode: Opcode,
        mechanism: &[u8],
        text: Option<&[u8]>,
    ) -> Status {
        let mechanism = mechanism.split(|&byte| byte == 0).next().unwrap_or_default();
        let is_empty = text.is_some_and(<[u8]>::is_empty);
        let accepts = || match &self.rules.authentication {
            Authentication::Sasl(users) => text.is_some_and(|text| accepts_plain(users, text)),
            Authentication::None | Authentication::Text(_) => false,
        };
        let (sasl, status) = match (opcode, self.sasl) {
            (Opcode::SaslAuth, _) if !mechanism.eq_ignore_ascii_case(b"PLAIN") => {
                (Sasl::Idle, Status::AuthenticationError)
            }
            (Opcode::SaslAuth, Sasl::Over) if is_empty => (Sasl::Over, Status::AuthenticationContinue),
            (Opcode::SaslAuth, _) if is_empty => (Sasl::Begun, Status::AuthenticationContinue),
            (Opcode::SaslAuth, Sasl::Idle | Sasl::Begun) if accepts() => (Sasl::Over, Status::Success),
            (Opcode::SaslAuth, _) => (Sasl::Idle, Status::AuthenticationError),
            (_, Sasl::Begun) if accepts() => (Sasl::Over, Status::Success),
            (_, sasl) => (sasl, Status::AuthenticationError),
        };
        self.sasl = sasl;
        self.authenticated = status == Status::Success;
        if status != Status::AuthenticationContinue {
            context.server.count(Event::Authentication(self.authenticated));
        }
        status
    }
}

/// A message of SASL PLAIN: a name to act as (none, or the name itself: nobody acts for others), a zero byte, a name, a zero byte,
/// a password.
fn accepts_plain(users: &Users, text: &[u8]) -> bool {
    let mut parts = text.splitn(3, |&byte| byte == 0);
    let (as_whom, name, password) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let named = name.zip(password).filter(|(name, _)| as_whom.is_empty() || as_whom == *name);
    named.is_some_and(|(name, password)| users.accepts(name, password))
}
