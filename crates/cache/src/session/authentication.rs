//! Who speaks: by a `set` in the text protocol, by SASL in the binary one.

use super::{Authentication, Context, Data, Ending, Event, Flow, Server, Session};
use crate::protocol::binary::Opcode;
use crate::protocol::number::unsigned_32;
use crate::protocol::tokens::Tokens;
use crate::slot::Slots;

/// Bytes of a name and a password. memcached closes a connection that sends more than its read buffer takes.
const TOKEN_BYTES_MAX: usize = 16 << 10;

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
        if length > TOKEN_BYTES_MAX {
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

    /// SASL PLAIN: a name to act as (which is not looked at), a zero byte, a name, a zero byte, a password. It is over after its
    /// first message: a second step is always one too many.
    pub(super) fn sasl_plain<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        opcode: Opcode,
        mechanism: &[u8],
        text: &[u8],
    ) -> bool {
        let is_plain = opcode == Opcode::SaslAuth && mechanism == b"PLAIN";
        let mut parts = text.splitn(3, |&byte| byte == 0);
        let (_, name, password) = (parts.next(), parts.next(), parts.next());
        self.authenticated = match (&self.rules.authentication, name, password) {
            (Authentication::Sasl(users), Some(name), Some(password)) if is_plain => users.accepts(name, password),
            _ => false,
        };
        context.server.count(Event::Authentication(self.authenticated));
        self.authenticated
    }
}
