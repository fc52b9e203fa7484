//! One connection to one member.
//!
//! It knows whether a request was sent. That is the whole difference between a change that may be asked of another member and one
//! whose outcome is unknown, and the reason why the connection is ours: [`Failure::NotSent`] is said only where HTTP/2 gave the
//! request back.

use std::error::Error as _;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::PathAndQuery;
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::rt::{Read, Write};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use openssl::ssl::SslConnector;
use prost::Message;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::catalogue::limits::{KEY_BYTES_MAX, PAGE_ENTRIES_MAX, VALUE_BYTES_MAX};

/// Bytes of an answer. Derived: a page of the largest entries, and half as much again for entries that others have written.
const ANSWER_BYTES_MAX: usize = PAGE_ENTRIES_MAX * (VALUE_BYTES_MAX + KEY_BYTES_MAX) * 3 / 2;
/// When a silent member is asked whether it is there, while something is asked of it; and how long it may take. Derived: etcd ends
/// connections that ask more often than every five seconds.
const PING_INTERVAL: Duration = Duration::from_secs(6);
/// See [`PING_INTERVAL`]. Chosen: a busy machine answers within that.
const PING_TIMEOUT: Duration = Duration::from_secs(4);

/// Why a member did not do what it was asked.
#[derive(Debug)]
pub enum Failure {
    /// The request never left: it may be asked of another.
    NotSent(String),
    /// It left, and no answer came.
    Lost(String),
    /// The member said so.
    Told(Status),
}

/// A member's connection; clones share it.
#[derive(Clone)]
pub struct Connection {
    sender: SendRequest<Body>,
    origin: Uri,
    token: Option<MetadataValue<Ascii>>,
}

impl Connection {
    /// Connects, with TLS if there is any.
    pub async fn open(member: &Uri, tls: Option<&SslConnector>, until: Instant) -> Result<Connection, Failure> {
        let failed = |why: &dyn fmt::Display| Failure::NotSent(format!("{member}: {why}"));
        let opening = async {
            let host = member.host().unwrap_or_default();
            // An address of IPv6 stands in brackets.
            let name = host.trim_start_matches('[').trim_end_matches(']');
            let stream =
                TcpStream::connect((name, member.port_u16().unwrap_or(0))).await.map_err(|fault| failed(&fault))?;
            stream.set_nodelay(true).map_err(|fault| failed(&fault))?;
            let Some(tls) = tls else { return handshake(TokioIo::new(stream)).await.map_err(|fault| failed(&fault)) };
            let ssl = tls.configure().and_then(|tls| tls.into_ssl(name)).map_err(|fault| failed(&fault))?;
            let mut stream = tokio_openssl::SslStream::new(ssl, stream).map_err(|fault| failed(&fault))?;
            Pin::new(&mut stream).connect().await.map_err(|fault| failed(&fault))?;
            handshake(TokioIo::new(stream)).await.map_err(|fault| failed(&fault))
        };
        let sender = timeout_at(until, opening).await.map_err(|_| failed(&"no connection in time"))??;
        Ok(Connection { sender, origin: member.clone(), token: None })
    }

    /// The same connection, used in the name of whoever the token was given to.
    pub fn with_token(self, token: &str) -> Result<Connection, Failure> {
        let token = token.parse().map_err(|_| Failure::NotSent("the member gave a token that is none".into()))?;
        Ok(Connection { token: Some(token), ..self })
    }

    /// One request, one answer.
    pub async fn ask<M, A>(&self, path: &'static str, message: M, until: Instant) -> Result<A, Failure>
    where
        M: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.ready(until).await?;
        let codec = ProstCodec::<M, A>::default();
        let asking = grpc.unary(self.request(message), PathAndQuery::from_static(path), codec);
        match timeout_at(until, asking).await {
            Ok(answer) => answer.map(tonic::Response::into_inner).map_err(failure),
            Err(_) => Err(Failure::Lost(format!("{}: no answer in time", self.origin))),
        }
    }

    /// One request to a method that answers with a stream, and the stream's first message.
    pub async fn ask_first<M, A>(&self, path: &'static str, message: M, until: Instant) -> Result<A, Failure>
    where
        M: Message + Sync + 'static,
        A: Message + Default + 'static,
    {
        let asking = async {
            let requests = tokio_stream::once(message);
            let mut answers = self.stream::<_, M, A>(path, requests, until).await?;
            answers
                .message()
                .await
                .map_err(failure)?
                .ok_or_else(|| Failure::Lost("the answer's stream is empty".into()))
        };
        timeout_at(until, asking)
            .await
            .unwrap_or_else(|_| Err(Failure::Lost(format!("{}: no answer in time", self.origin))))
    }

    /// A stream each way.
    pub async fn stream<S, M, A>(
        &self,
        path: &'static str,
        requests: S,
        until: Instant,
    ) -> Result<Streaming<A>, Failure>
    where
        S: tokio_stream::Stream<Item = M> + Send + 'static,
        M: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.ready(until).await?;
        let codec = ProstCodec::<M, A>::default();
        let asking = grpc.streaming(self.request(requests), PathAndQuery::from_static(path), codec);
        match timeout_at(until, asking).await {
            Ok(answers) => answers.map(tonic::Response::into_inner).map_err(failure),
            Err(_) => Err(Failure::Lost(format!("{}: no answer in time", self.origin))),
        }
    }

    async fn ready(&self, until: Instant) -> Result<Grpc<Sender>, Failure> {
        let mut sender = self.sender.clone();
        match timeout_at(until, sender.ready()).await {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => return Err(Failure::NotSent(format!("{}: {fault}", self.origin))),
            Err(_) => return Err(Failure::NotSent(format!("{}: not ready in time", self.origin))),
        }
        let grpc = Grpc::with_origin(Sender(sender), self.origin.clone());
        Ok(grpc.max_decoding_message_size(ANSWER_BYTES_MAX))
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // A member cut off from the others refuses at once, before it begins anything, and ends its watches.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }
}

async fn handshake<I>(io: I) -> hyper::Result<SendRequest<Body>>
where
    I: Read + Write + Unpin + Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
    let (sender, connection) = builder.handshake(io).await?;
    // It ends when all senders and streams are dropped, or the member is gone; each of them is told.
    tokio::spawn(async move {
        if let Err(fault) = connection.await {
            tracing::debug!(%fault, "a connection to etcd has ended");
        }
    });
    Ok(sender)
}

/// What makes requests of gRPC's messages.
struct Sender(SendRequest<Body>);

/// Why no answer came, and whether the request was given back.
#[derive(Debug)]
struct Unsent {
    is_given_back: bool,
    fault: Arc<hyper::Error>,
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.fault)
    }
}

impl std::error::Error for Unsent {}

impl tower_service::Service<http::Request<Body>> for Sender {
    type Response = http::Response<Incoming>;
    type Error = Unsent;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Unsent>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Unsent>> {
        self.0.poll_ready(context).map_err(|fault| Unsent { is_given_back: true, fault: Arc::new(fault) })
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let sending = self.0.try_send_request(request);
        Box::pin(async move {
            sending.await.map_err(|mut fault| {
                let is_given_back = fault.take_message().is_some();
                Unsent { is_given_back, fault: Arc::new(fault.into_error()) }
            })
        })
    }
}

/// What a status is: one that was received has no cause of its own.
fn failure(status: Status) -> Failure {
    let mut cause = status.source();
    while let Some(fault) = cause {
        match fault.downcast_ref::<Unsent>() {
            Some(unsent) if unsent.is_given_back => return Failure::NotSent(unsent.to_string()),
            _ => cause = fault.source(),
        }
    }
    if status.source().is_some() { Failure::Lost(status.to_string()) } else { Failure::Told(status) }
}
