//! What asks a control plane, over HTTP/1.1: one connection for each request.

use std::fmt::Display;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tls::{AskingContext, Secret};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_openssl::SslStream;
use uuid::Uuid;

/// How long a request may take. Chosen: longer than an operation is waited for by the server.
const REQUEST_TIME: Duration = Duration::from_secs(60);
/// Bytes of an answer, at most. Chosen: a hundred of the largest records.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Where a control plane is, and who asks.
#[derive(Clone, Debug)]
pub struct Access {
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub at: String,
    /// The file with the token.
    pub token_file: PathBuf,
    /// Whose certificates are trusted; none: the machine's.
    pub authorities: Option<PathBuf>,
    /// Whose volumes are meant, for an operator's token.
    pub tenant: Option<String>,
}

/// Why there is no answer, or which.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// What was to be asked can't be.
    #[error("{0}")]
    Usage(String),
    /// Nobody answers.
    #[error("{at}: {why}")]
    Unreached {
        /// The control plane.
        at: Uri,
        /// What is wrong.
        why: String,
    },
    /// The control plane refuses.
    #[error("{0}")]
    Refused(Refused),
}

/// A refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The status of HTTP.
    pub status: StatusCode,
    /// What kind of problem it is: the last part of its `type`.
    pub kind: String,
    /// Of what is not there: what kind of thing, where the control plane says so.
    pub what: Option<String>,
    /// What is wrong and what to do; of a volume that can't be placed, what each drive lacks.
    pub detail: String,
}

impl Refused {
    /// Whether the volume that was asked about is another host's, or is no more.
    pub fn is_lost(&self) -> bool {
        match &*self.kind {
            "attached" | "not-attached" => true,
            "not-found" => self.what.as_deref() == Some("volume"),
            _ => false,
        }
    }
}

impl Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.detail)
    }
}

/// Asks one control plane.
pub struct Client {
    at: Uri,
    tls: Option<AskingContext>,
    token_file: PathBuf,
    tenant: Option<String>,
    /// Of what changes something.
    request_id: Option<String>,
}

impl Client {
    /// If there is a token in its file now. Each question is asked with the one that is there then: tokens end, and are replaced.
    pub fn new(access: &Access) -> Result<Client, ClientError> {
        let usage = |error: &dyn Display| ClientError::Usage(error.to_string());
        let at: Uri = access.at.parse().map_err(|error| ClientError::Usage(format!("--control: {error}")))?;
        let tls = match (at.scheme_str(), at.host()) {
            (Some("http"), Some(_)) => None,
            (Some("https"), Some(_)) => {
                Some(AskingContext::new(access.authorities.as_deref(), None).map_err(|error| usage(&error))?)
            }
            _ => return Err(ClientError::Usage("--control: write http://HOST:PORT or https://HOST:PORT".into())),
        };
        let (token_file, tenant) = (access.token_file.clone(), access.tenant.clone());
        let client = Client { at, tls, token_file, tenant, request_id: None };
        client.token().map(|_| client)
    }

    fn token(&self) -> Result<Secret, ClientError> {
        Secret::from_file(&self.token_file).map_err(|error| ClientError::Usage(error.to_string()))
    }

    /// With the id by which its requests that change something are named.
    pub fn named(self, request_id: Option<String>) -> Client {
        Client { request_id, ..self }
    }

    /// Asks; the answer's document, or the refusal.
    pub async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, ClientError> {
        let asked = tokio::time::timeout(REQUEST_TIME, self.send(method, path, body)).await;
        asked.map_err(|_| self.unreached(&format!("no answer within {REQUEST_TIME:?}")))?
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, ClientError> {
        let request = self.request(method, path, body)?;
        let stream = TokioIo::new(self.connect().await?);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(|error| self.unreached(&error))?;
        let connection = tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|error| self.unreached(&error))?;
        let status = response.status();
        let bytes = to_bytes(Body::new(response.into_body()), ANSWER_BYTES_MAX).await;
        connection.abort();
        let bytes = bytes.map_err(|error| self.unreached(&error))?;
        let said = if bytes.is_empty() { Ok(Value::Null) } else { serde_json::from_slice::<Value>(&bytes) };
        match said {
            Ok(said) if status.is_success() => Ok(said),
            Ok(said) => Err(ClientError::Refused(refused(status, &said))),
            Err(_) => Err(self.unreached(&format!("it answers {status}, and nothing that a control plane says"))),
        }
    }

    fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Request<Body>, ClientError> {
        let tenant = self.tenant.as_ref().map(|tenant| format!("tenant={}", escaped(tenant)));
        let path = match (tenant, path.contains('?')) {
            (Some(tenant), true) => format!("{path}&{tenant}"),
            (Some(tenant), false) => format!("{path}?{tenant}"),
            (None, _) => path.to_owned(),
        };
        let token = self.token()?;
        let token = std::str::from_utf8(token.expose());
        let token = token.map_err(|_| ClientError::Usage("--token-file: no text".into()))?;
        let mut request = Request::builder()
            .method(&method)
            .uri(path)
            .header(HOST, self.at.authority().map_or("", |authority| authority.as_str()))
            .header(AUTHORIZATION, format!("Bearer {}", token.trim()))
            .header(CONTENT_TYPE, "application/json");
        if method != Method::GET {
            // One that nobody has named nobody sends again: the id shows in the server's record which request it was.
            let id = self.request_id.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
            request = request.header("Request-Id", id);
        }
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        request.body(body).map_err(|error| ClientError::Usage(format!("what is asked for can't be written: {error}")))
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, ClientError> {
        let host = self.at.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = self.at.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await.map_err(|error| self.unreached(&error))?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let ssl = tls.prepared(host).map_err(|error| ClientError::Usage(error.to_string()))?;
        let mut stream = SslStream::new(ssl, stream).map_err(|error| self.unreached(&error))?;
        Pin::new(&mut stream).connect().await.map_err(|error| {
            self.unreached(&format!("no TLS connection ({error}); --control-ca says whose certificates are trusted"))
        })?;
        Ok(Box::new(stream))
    }

    fn unreached(&self, why: &dyn Display) -> ClientError {
        ClientError::Unreached { at: self.at.clone(), why: why.to_string() }
    }
}

/// A connection with or without TLS.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

fn refused(status: StatusCode, said: &Value) -> Refused {
    let kind = said["type"].as_str().and_then(|kind| kind.rsplit(':').next()).unwrap_or_default().to_owned();
    let mut detail = said["detail"].as_str().map_or_else(|| status.to_string(), str::to_owned);
    for lack in said["drives"].as_array().into_iter().flatten() {
        let (drive, says) = (lack["drive"].as_str().unwrap_or("?"), lack["says"].as_str().unwrap_or("?"));
        detail += &format!("\n  {drive}: {says}");
    }
    let what = said["what"].as_str().map(str::to_owned);
    Refused { status, kind, what, detail }
}

/// The path of a thing. What is no name goes into it, too: the server refuses it in words.
pub fn path_of(kind: &str, name: &str) -> String {
    format!("/v1/{kind}/{}", escaped(name))
}

/// A word as a part of a path or a query.
pub fn escaped(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    word.bytes().map(|byte| if plain(byte) { (byte as char).into() } else { format!("%{byte:02X}") }).collect()
}
