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
        self.answer(method, path, body)?.map_err(failure)
    }

    /// The same; the refusal as it came.
    pub fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Result<Value, ClientError>, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::from(error).during("a runtime"))?;
        Ok(runtime.block_on(self.0.ask(method, path, body)))
    }
}

/// As an exit status: room that is missing is no fault of the server's.
pub fn failure(error: ClientError) -> Failure {
    match &error {
        ClientError::Usage(_) => Failure::usage(error),
        ClientError::Unreached { .. } => Failure::unavailable(error),
        ClientError::Refused(refused)
            if refused.status.is_server_error() && refused.status != StatusCode::INSUFFICIENT_STORAGE =>
        {
            Failure::unavailable(error)
        }
        ClientError::Refused(_) => Failure::refused(error),
    }
}
