//! A served pool, and a client that knows no more than HTTP/1.1.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control::provision::Quota;
use control::provision::Request;
use control::rest::{Server, ServerOptions};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::provision::world::{TENANT, World, name};

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|fault| panic!("{fault}: {self:?}"))
    }

    /// Of an answer that went well.
    pub fn ok(&self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        if self.status == 204 { Value::Null } else { self.json() }
    }

    /// Of a refusal: that it is a whole problem of RFC 9457.
    pub fn refused(&self, status: u16, kind: &str) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["type"], format!("tag:yagura.io,2026:{kind}"), "{self:?}");
        assert_eq!(problem["status"], status);
        assert!(problem["detail"].as_str().unwrap().len() > 20, "{self:?}");
        problem
    }
}

/// Says a request on a connection, and hears the answer to its end.
pub async fn say(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut head =
        format!("{method} {target} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    // A server that has heard enough of a body answers and closes.
    let _cut = stream.write_all(format!("{head}\r\n{body}").as_bytes()).await;
    let mut answer = Vec::new();
    let _cut = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).expect("text");
    let (head, text) =
        answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer to {method} {target}: {answer:?}"));
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().expect("a status");
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
    Answer { status, headers: lines.filter_map(header).collect(), text: text.to_owned() }
}

/// A pool that is served, with a worker.
pub struct Served {
    pub world: World,
    pub address: SocketAddr,
    pub operator: String,
    server: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Served {
    /// Nodes with a drive each, of so many GiB.
    pub async fn new(sizes: &[u64]) -> Served {
        let world = World::new(sizes).await;
        let (_, token) = world.provisioner.issue_token(None).await.expect("a token");
        let operator = String::from_utf8(token.expose().to_vec()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().unwrap();
        let server = Server::new(&world.provisioner, &ServerOptions::default()).expect("a server");
        let server = tokio::spawn(async move { panic!("{}", server.serve(listener).await) });
        Served { world, address, operator, server }
    }

    /// A tenant's token; the tenant is made if need be.
    pub async fn tenant(&self, tenant: &str) -> String {
        if tenant != TENANT {
            let quota = Quota::default();
            self.world.provisioner.put_tenant(&Request::unnamed(), &name(tenant), &quota).await.expect("a tenant");
        }
        let (_, token) = self.world.provisioner.issue_token(Some(&name(tenant))).await.expect("a token");
        String::from_utf8(token.expose().to_vec()).unwrap()
    }

    pub async fn say(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let stream = TcpStream::connect(self.address).await.expect("connected");
        say(stream, method, target, headers, body).await
    }

    /// With a token.
    pub async fn ask(&self, token: &str, method: &str, target: &str, body: &str) -> Answer {
        self.say(method, target, &[("authorization", &format!("Bearer {token}"))], body).await
    }

    /// With a token and a request id.
    pub async fn ask_as(&self, token: &str, id: &str, method: &str, target: &str, body: &str) -> Answer {
        let bearer = format!("Bearer {token}");
        self.say(method, target, &[("authorization", &bearer), ("request-id", id)], body).await
    }
}
