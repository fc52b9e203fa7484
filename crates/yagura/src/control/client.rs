//! A verb asks a control plane: [`::control::client`] with the flags, one question after the other.

use ::control::client::{self, Access, ClientError};
use hyper::{Method, StatusCode};
use serde_json::Value;

use crate::cli::ControlAccess;
use crate::exit::Failure;

pub use ::control::client::path_of;

/// Asks one control plane.
pub struct Client(client::Client);

/// What the flags say.
pub fn access(flags: &ControlAccess) -> Result<Access, Failure> {
    let token_file = flags.token_file.clone().ok_or_else(|| {
        Failure::usage("--token-file: who asks a control plane shows a token; `yagura control token` makes one")
    })?;
    let ControlAccess { control, control_ca, tenant, .. } = flags.clone();
    Ok(Access { at: control, token_file, authorities: control_ca, tenant })
}

impl Client {
    /// What the flags say.
    pub fn new(flags: &ControlAccess) -> Result<Client, Failure> {
        client::Client::new(&access(flags)?).map(Client).map_err(failure)
    }

    /// With the id by which its requests that change something are named.
    pub fn named(self, request_id: Option<String>) -> Client {
        Client(self.0.named(request_id))
    }

    /// Asks; the answer's document, or the refusal in words.
    pub fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::from(error).during("a runtime"))?;
        runtime.block_on(self.0.ask(method, path, body)).map_err(failure)
    }
}

/// As an exit status, for every verb that asks a control plane: room that is missing is no fault of the server's.
fn failure(error: ClientError) -> Failure {
    match &error {
        ClientError::Usage(_) => Failure::usage(error),
        ClientError::Unreached { .. } => Failure::unavailable(error),
        ClientError::Refused(refused)
            if refused.status.is_server_error() && refused.status != StatusCode::INSUFFICIENT_STORAGE =>
        {
            Failure::unavailable(error)
        }
        ClientError::Refused(refused) if refused.is_lost() => Failure::lost(error),
        ClientError::Refused(_) => Failure::refused(error),
    }
}

#[cfg(test)]
mod tests {
    use ::control::client::Refused;

    use super::*;

    /// A verb of `control` ended with 4 where one of `volume` did with 6.
    #[test]
    fn a_volume_of_another_host_or_of_nobody_ends_every_verb_with_the_same_status() {
        let ends = |status: u16, kind: &str, what: Option<&str>| {
            let status = StatusCode::from_u16(status).expect("a status");
            let (kind, what, detail) = (kind.to_owned(), what.map(str::to_owned), "why".to_owned());
            failure(ClientError::Refused(Refused { status, kind, what, detail })).status()
        };
        assert_eq!([ends(409, "attached", None), ends(409, "not-attached", None)], [6, 6]);
        assert_eq!([ends(404, "not-found", Some("volume")), ends(404, "not-found", Some("node"))], [6, 4]);
        assert_eq!([ends(409, "busy", None), ends(507, "no-room", None), ends(503, "contended", None)], [4, 4, 3]);
    }
}
