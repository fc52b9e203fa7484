//! `CLIENT`: names, lists and ends connections.

use std::collections::BTreeSet;

use super::command::{Command, c_string, parse_i64};
use super::connection::help;
use super::reply::Reply;
use super::request::{syntax_error, unknown_subcommand, wrong_arity};
use super::session::{Replies, Session};
use super::stats::{Client, GatewayState};

/// The longest client or library name that is kept. Chosen: what fits a line of `CLIENT LIST`.
const NAME_BYTES_MAX: usize = 256;

/// A name that fits a line of `CLIENT LIST`: printable, no blanks.
pub(super) fn client_text(bytes: &[u8], what: &str) -> Result<String, Reply> {
    if bytes.len() > NAME_BYTES_MAX {
        return Err(Reply::error(format_args!("{what} cannot be longer than {NAME_BYTES_MAX} bytes")));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(text.to_string()),
        _ => Err(Reply::error(format_args!("{what} cannot contain spaces, newlines or special characters."))),
    }
}

impl Session {
    /// Makes the connection's line for `CLIENT LIST` current.
    pub(super) fn publish_identity(&self) {
        let who = &self.identity;
        let (line, ends) = (self.client_line(), who.ends.clone());
        let client = Client { line, peer: who.peer.clone(), local: who.local.clone(), ends };
        self.shared.set_client(who.id, client);
    }

    fn client_line(&self) -> String {
        let who = &self.identity;
        format!(
            "id={} addr={} laddr={} name={} db=0 flags=N sub=0 psub=0 ssub=0 multi=-1 user=default redir=-1 resp={} \
             lib-name={} lib-ver={}",
            who.id,
            who.peer,
            who.local,
            who.name,
            self.protocol.number(),
            who.library,
            who.library_version,
        )
    }

    pub(super) fn client(&mut self, command: &Command) -> Result<Reply, Reply> {
        let subcommand = command.arg(1).to_ascii_lowercase();
        let wrong = || wrong_arity(&format!("client|{}", String::from_utf8_lossy(&subcommand)));
        let arity = |count: usize| if command.len() == count { Ok(()) } else { Err(wrong()) };
        match &subcommand[..] {
            b"id" => arity(2).map(|()| Reply::Integer(self.identity.id as i64)),
            b"getname" => arity(2).map(|()| match self.identity.name.as_str() {
                "" => Reply::Null,
                name => Reply::bulk(name),
            }),
            b"getredir" => arity(2).map(|()| Reply::Integer(-1)),
            b"info" => arity(2).map(|()| Reply::Text(self.client_line() + "\n")),
            b"kill" if command.len() < 3 => Err(wrong()),
            b"kill" => self.client_kill(command),
            b"reply" => arity(3).and_then(|()| self.client_reply(command.arg(2))),
            b"setname" => {
                arity(3)?;
                self.identity.name = client_text(command.arg(2), "Client names")?;
                self.publish_identity();
                Ok(Reply::OK)
            }
            b"setinfo" => arity(4).and_then(|()| self.client_set_info(command)),
            // Nothing is evicted and no access times are kept: both settings hold as they are.
            b"no-evict" | b"no-touch" => {
                arity(3)?;
                let on_off = command.arg(2).eq_ignore_ascii_case(b"on") || command.arg(2).eq_ignore_ascii_case(b"off");
                if on_off { Ok(Reply::OK) } else { Err(syntax_error()) }
            }
            b"help" => help(
                command,
                &[
                    "GETNAME", "GETREDIR", "ID", "INFO", "KILL", "LIST", "NO-EVICT", "NO-TOUCH", "REPLY", "SETINFO",
                    "SETNAME",
                ],
            ),
            _ => Err(unknown_subcommand(command)),
        }
    }

    fn client_set_info(&mut self, command: &Command) -> Result<Reply, Reply> {
        match &command.arg(2).to_ascii_lowercase()[..] {
            b"lib-name" => self.identity.library = client_text(command.arg(3), "lib-name")?,
            b"lib-ver" => self.identity.library_version = client_text(command.arg(3), "lib-ver")?,
            _ => return Err(Reply::error_bytes(&[b"Unrecognized option '", c_string(command.arg(2)), b"'"])),
        }
        self.publish_identity();
        Ok(Reply::OK)
    }

    /// `CLIENT REPLY ON|OFF|SKIP`
    fn client_reply(&mut self, mode: &[u8]) -> Result<Reply, Reply> {
        match &mode.to_ascii_lowercase()[..] {
            b"on" => {
                (self.replies, self.silent) = (Replies::On, false);
            }
            b"off" => (self.replies, self.silent) = (Replies::Off, true),
            // Where nothing is sent there is nothing to skip.
            b"skip" if self.replies == Replies::Off => self.silent = true,
            b"skip" => (self.replies, self.silent) = (Replies::SkipNext, true),
            _ => return Err(syntax_error()),
        }
        Ok(Reply::OK)
    }

    /// `CLIENT KILL address`, or `CLIENT KILL` with filters, which answers how many there were. Of a filter that is given again the
    /// last counts, as in Redis.
    fn client_kill(&mut self, command: &Command) -> Result<Reply, Reply> {
        let (mut id, mut peer, mut local, mut any, mut skip_me) = (None, None, None, true, true);
        if command.len() == 3 {
            return match self.end(|_, client| client.peer.as_bytes() == command.arg(2)) {
                0 => Err(Reply::error("No such client")),
                _ => Ok(Reply::OK),
            };
        }
        if !command.len().is_multiple_of(2) {
            return Err(syntax_error());
        }
        for at in (2..command.len()).step_by(2) {
            let value = command.arg(at + 1);
            match &command.arg(at).to_ascii_lowercase()[..] {
                b"id" => {
                    let number = parse_i64(value).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
                    id = Some(number.ok_or_else(|| Reply::error("client-id should be greater than 0"))?);
                }
                b"addr" => peer = Some(value),
                b"laddr" => local = Some(value),
                b"type" => any = is_normal(value)?,
                b"user" if value == b"default" => {}
                b"user" => return Err(Reply::error_bytes(&[b"No such user '", c_string(value), b"'"])),
                b"skipme" if value.eq_ignore_ascii_case(b"yes") => skip_me = true,
                b"skipme" if value.eq_ignore_ascii_case(b"no") => skip_me = false,
                _ => return Err(syntax_error()),
            }
        }
        let me = self.identity.id;
        let ended = self.end(|known, client| {
            any && id.is_none_or(|id| id == known)
                && peer.is_none_or(|peer| client.peer.as_bytes() == peer)
                && local.is_none_or(|local| client.local.as_bytes() == local)
                && !(skip_me && known == me)
        });
        Ok(Reply::Integer(ended as i64))
    }

    /// Ends the connections that are meant, this one after it was told; how many they are.
    fn end(&mut self, is_meant: impl Fn(u64, &Client) -> bool) -> usize {
        let me = self.identity.id;
        if self.shared.with_client(me, |client| is_meant(me, client)) == Some(true) {
            self.quit();
            return 1 + self.shared.kill(|id, client| id != me && is_meant(id, client));
        }
        self.shared.kill(is_meant)
    }
}

/// What [`list`] makes of all lines, and for what comes while it waits for room.
pub(super) fn list_bytes(shared: &GatewayState) -> usize {
    2 * (shared.clients_bytes() + (64 << 10))
}

/// `CLIENT LIST [TYPE type] [ID id…]`
pub(super) fn list(shared: &GatewayState, command: &Command) -> Result<Reply, Reply> {
    let all = match (command.len(), command.args_from(2).next().unwrap_or(b"")) {
        (2, _) => true,
        (4, option) if option.eq_ignore_ascii_case(b"TYPE") => is_normal(command.arg(3))?,
        (count, option) if count > 3 && option.eq_ignore_ascii_case(b"ID") => {
            let ids: Option<BTreeSet<i64>> = command.args_from(3).map(parse_i64).collect();
            let ids = ids.ok_or_else(|| Reply::error("Invalid client ID"))?;
            let is_wanted = |id: u64| i64::try_from(id).is_ok_and(|id| ids.contains(&id));
            return Ok(Reply::Text(shared.client_lines(is_wanted)));
        }
        _ => return Err(syntax_error()),
    };
    Ok(Reply::Text(shared.client_lines(|_| all)))
}

/// Whether it is the type of all connections here.
fn is_normal(name: &[u8]) -> Result<bool, Reply> {
    match &name.to_ascii_lowercase()[..] {
        b"normal" => Ok(true),
        b"master" | b"replica" | b"slave" | b"pubsub" => Ok(false),
        _ => Err(Reply::error_bytes(&[b"Unknown client type '", c_string(name), b"'"])),
    }
}
