//! The port of `--metrics`: HTTP for whoever scrapes, and for whoever asks whether the process is ready, on a thread and a tokio
//! runtime of their own.
//!
//! Nobody is known here, and it must not take from the data port what that needs: [`CONNECTIONS_MAX`] connections at once, each for
//! [`CONNECTION_TIME_MAX`]; more wait in the kernel.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use engine::net::serving::ACCEPT_PAUSE;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

use crate::exit::Failure;

/// Connections at once. Guessed: several scrapers and probes.
pub const CONNECTIONS_MAX: usize = 32;
/// How long a connection may take, requests and pauses in all. Guessed: a scrape takes milliseconds, and whoever wants to go on
/// connects anew.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(10);

/// What OpenMetrics text is called, for whoever asks for that.
const OPEN_METRICS: &str = "application/openmetrics-text";
/// The same with its version.
const OPEN_METRICS_TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// What Prometheus's plain text is called.
const PLAIN_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Says whether the process is ready, or why it is not.
pub type Ready = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A process that is ready as long as it serves.
pub fn always() -> Ready {
    Box::new(|| Ok(()))
}

/// Serves `registry` at `address` (port 0: a free one) until the process ends. Returns where.
pub fn serve(address: SocketAddr, registry: Registry, ready: Ready) -> Result<SocketAddr, Failure> {
    let failed = |error: io::Error| Failure::from(error).during(format!("--metrics {address}"));
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (registry, ready) = (Arc::new(registry), Arc::new(ready));
    let metrics = move |headers: HeaderMap| {
        let registry = registry.clone();
        async move { answer(&registry, &headers) }
    };
    let health = move || {
        let ready = ready.clone();
        async move {
            match ready() {
                Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
                Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
            }
        }
    };
    let router = axum::Router::new().route("/metrics", get(metrics)).route("/healthz", get(health));
    std::thread::Builder::new()
        .name("metrics".into())
        .spawn(move || {
            let served = runtime.block_on(async {
                let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
                axum::serve(Listener { listener: TcpListener::from_std(listener)?, places }, router).await
            });
            if let Err(error) = served {
                tracing::error!(%error, "metrics are no longer served");
            }
        })
        .map_err(failed)?;
    Ok(bound)
}

/// The exposition in the format that was asked for.
fn answer(
    registry: &Registry,
    headers: &HeaderMap,
) -> (StatusCode, [(axum::http::HeaderName, &'static str); 1], String) {
    let asks = |value: &axum::http::HeaderValue| value.to_str().is_ok_and(|value| value.contains(OPEN_METRICS));
    let mut text = String::new();
    match encode(&mut text, registry) {
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, PLAIN_TEXT)], error.to_string()),
        Ok(()) if headers.get_all(ACCEPT).iter().any(asks) => {
            (StatusCode::OK, [(CONTENT_TYPE, OPEN_METRICS_TEXT)], text)
        }
        Ok(()) => (StatusCode::OK, [(CONTENT_TYPE, PLAIN_TEXT)], plain(&text)),
    }
}

/// OpenMetrics text as Prometheus's plain text: there a counter is named as its samples are, and nothing says where the end is.
pub(super) fn plain(text: &str) -> String {
    let (mut plain, mut help) = (String::with_capacity(text.len()), None);
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, help)) = help.take() {
                plain += &format!("# HELP {name}{suffix} {help}\n");
            }
            plain += &format!("# TYPE {name}{suffix} {kind}\n");
        } else if !line.starts_with('#') {
            plain += line;
            plain.push('\n');
        }
    }
    plain
}

/// Accepts while there is a place.
struct Listener {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl axum::serve::Listener for Listener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let Ok(place) = self.places.clone().acquire_owned().await else {
                // Nobody closes the semaphore.
                std::future::pending::<()>().await;
                continue;
            };
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let end = Box::pin(sleep(CONNECTION_TIME_MAX));
                    return (Connection { stream, end, _place: place }, peer);
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed at the metrics port");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends in time.
struct Connection {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn in_time(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.in_time(context)?;
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.in_time(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.in_time(context)?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    /// What a server of one counter answers.
    fn get(address: SocketAddr, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer
    }

    #[test]
    fn who_asks_for_openmetrics_gets_it_and_everybody_else_plain_text() {
        let mut registry = Registry::default();
        let count = prometheus_client::metrics::counter::Counter::<u64>::default();
        registry.register("things", "Things", count);
        let address = serve(([127, 0, 0, 1], 0).into(), registry, always()).expect("bound");
        let open = get(address, "/metrics", "Accept: text/html, application/openmetrics-text;version=1.0.0;q=0.5\r\n");
        assert!(
            open.contains(OPEN_METRICS_TEXT) && open.ends_with("# TYPE things counter\nthings_total 0\n# EOF\n"),
            "{open}"
        );
        for headers in ["", "Accept: text/plain\r\n", "Accept: */*\r\n"] {
            let plain = get(address, "/metrics", headers);
            let body = "# HELP things_total Things.\n# TYPE things_total counter\nthings_total 0\n";
            assert!(plain.contains(PLAIN_TEXT) && plain.ends_with(&format!("\r\n\r\n{body}")), "{plain}");
        }
    }

    #[test]
    fn who_says_nothing_gives_way_to_others() {
        let address = serve(([127, 0, 0, 1], 0).into(), Registry::default(), always()).expect("bound");
        let silent: Vec<TcpStream> =
            (0..2 * CONNECTIONS_MAX).map(|_| TcpStream::connect(address).expect("connected")).collect();
        // Half of a request, too.
        for mut stream in &silent {
            stream.write_all(b"GET /metrics HTTP/1.1\r\n").expect("sent");
        }
        assert!(get(address, "/healthz", "").ends_with("\r\n\r\nok\n"));
    }

    #[test]
    fn who_is_not_ready_says_why() {
        let not: Ready = Box::new(|| Err("no members".into()));
        let address = serve(([127, 0, 0, 1], 0).into(), Registry::default(), not).expect("bound");
        let answer = get(address, "/healthz", "");
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("not ready: no members\n"), "{answer}");
    }
}
