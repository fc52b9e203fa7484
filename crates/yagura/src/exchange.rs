//! One request over HTTP/1.1, on a connection of its own, and its answer: from processes of ours.

use std::error::Error;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::StatusCode;
use axum::http::request::Builder;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// What an answer may take.
pub struct Bounds {
    /// From the connection on, all in all: whoever sends a byte now and then is waited for no longer.
    pub time: Duration,
    /// Of what is answered.
    pub bytes: usize,
}

/// Asks whoever is at the other end; this blocks.
pub fn ask<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    connected: impl Future<Output = io::Result<S>>,
    request: Builder,
    body: String,
    bounds: &Bounds,
) -> Result<(StatusCode, Bytes), Box<dyn Error + Send + Sync>> {
    let exchanged = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(connected.await?)).await?;
        // What goes wrong with the connection is told to whoever waits for the answer.
        let served = tokio::spawn(connection);
        let (head, answer) = sender.send_request(request.body(body)?).await?.into_parts();
        let answer = to_bytes(Body::new(answer), bounds.bytes).await?;
        served.abort();
        Ok((head.status, answer))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let late = || format!("no answer within {} s", bounds.time.as_secs_f64());
        tokio::time::timeout(bounds.time, exchanged).await.unwrap_or_else(|_| Err(late().into()))
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{Ipv4Addr, TcpListener};

    use axum::http::Request;

    use super::*;

    /// What is made of an answer that comes in these pieces, with a while between them; then the connection rests.
    fn asked(pieces: Vec<&'static str>, bounds: &Bounds) -> Result<(StatusCode, Bytes), String> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            // Asked first: an answer that comes before its request has been sent ends the connection.
            let mut asked = BufReader::new(&stream).lines();
            assert!(asked.any(|line| line.unwrap().is_empty()), "gone within the request");
            for piece in pieces {
                if stream.write_all(piece.as_bytes()).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            // Until the other end has gone.
            stream.read_to_end(&mut Vec::new()).unwrap_or_default();
        });
        let answer = ask(tokio::net::TcpStream::connect(at), Request::get("/"), String::new(), bounds);
        answering.join().unwrap();
        answer.map_err(|error| error.to_string())
    }

    #[test]
    fn an_answer_is_bounded_in_bytes_and_in_time() {
        let bounds = Bounds { time: Duration::from_secs(30), bytes: 5 };
        let head = "HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(asked(vec![head, "say", "no"], &bounds), Ok((StatusCode::NOT_FOUND, "sayno".into())));
        assert!(asked(vec![head, "say", "no"], &Bounds { bytes: 4, ..bounds }).is_err(), "a byte too many");
        // A byte now and then, for longer than is waited.
        let mut dribble = vec!["HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n"];
        dribble.extend(["a"; 500]);
        let brief = Bounds { time: Duration::from_millis(200), bytes: 1000 };
        assert_eq!(asked(dribble, &brief), Err("no answer within 0.2 s".to_owned()));
    }
}
