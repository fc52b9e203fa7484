//! The control plane, as the driver asks it; what it refuses becomes the code that the Container Storage Interface has for that.

use std::time::Duration;

use control::client::{Access, Client, ClientError, escaped, path_of};
use control::provision::{Drive, Name, Node, Pool, SnapshotView, Tenant, VolumeView};
use http::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::{Code, Status};

/// Seconds that the control plane is asked to wait for an operation at a time. Derived: less than a request may take there.
const WAIT_SECONDS: u64 = 20;
/// How long an operation is waited for in all; whoever calls again waits for the same one. Chosen: a delete takes eight seconds
/// where a host has ever had the volume, and some more when drives are slow.
const OPERATION_TIME: Duration = Duration::from_secs(50);
/// Pages of a list that are read, at most. Derived: all drives that there may be, in pages of a hundred.
const PAGES_MAX: usize = 100;

/// One control plane, and whose volumes are meant there.
pub struct Plane {
    client: Client,
    tenant: Option<String>,
}

/// How an operation has ended: done, or undone, and why.
pub type Ended = Result<(), String>;

/// A page of a list.
pub struct Page<T> {
    /// What is listed.
    pub items: Vec<T>,
    /// The name behind which the next page begins.
    pub next: Option<String>,
}

impl Plane {
    /// If there is a token in its file now.
    pub fn new(access: &Access) -> Result<Plane, ClientError> {
        Ok(Plane { client: Client::new(access)?, tenant: access.tenant.clone() })
    }

    /// The volume, if there is one.
    pub async fn volume(&self, name: &str) -> Result<Option<VolumeView>, Status> {
        found(self.ask(Method::GET, &path_of("volumes", name), None).await)
    }

    /// Makes a volume, and waits for its end.
    pub async fn create(&self, new: &Value) -> Result<Ended, Status> {
        self.begun("/v1/volumes", new).await
    }

    /// Deletes a volume, and waits for its end. That there is none is what was wanted.
    pub async fn delete(&self, name: &str) -> Result<Ended, Status> {
        self.gone(&path_of("volumes", name)).await
    }

    /// Makes a volume larger, and waits for its end.
    pub async fn grow(&self, name: &str, bytes: u64) -> Result<Ended, Status> {
        self.begun(&format!("{}/grow", path_of("volumes", name)), &json!({"bytes": bytes})).await
    }

    /// A volume's snapshots; none: there is no such volume.
    pub async fn snapshots(&self, volume: &str) -> Result<Option<Vec<SnapshotView>>, Status> {
        let listed = self.ask(Method::GET, &format!("{}/snapshots", path_of("volumes", volume)), None).await;
        found(listed.map(|mut said| said["items"].take()))
    }

    /// The snapshot, if there is one.
    pub async fn snapshot(&self, volume: &str, name: &str) -> Result<Option<SnapshotView>, Status> {
        found(self.ask(Method::GET, &snapshot_path(volume, name), None).await)
    }

    /// Takes a snapshot, and waits for its end.
    pub async fn take(&self, volume: &str, name: &str) -> Result<Ended, Status> {
        self.begun(&format!("{}/snapshots", path_of("volumes", volume)), &json!({"name": name})).await
    }

    /// Deletes a snapshot, and waits for its end. That there is none is what was wanted.
    pub async fn forget(&self, volume: &str, name: &str) -> Result<Ended, Status> {
        self.gone(&snapshot_path(volume, name)).await
    }

    /// Waits for an operation that is under way.
    pub async fn operation(&self, id: &str) -> Result<Ended, Status> {
        let path = format!("/v1/operations/{}?wait={WAIT_SECONDS}", escaped(id));
        self.ended(self.ask(Method::GET, &path, None).await.map_err(status)?).await
    }

    async fn begun(&self, path: &str, new: &Value) -> Result<Ended, Status> {
        let path = format!("{path}?wait={WAIT_SECONDS}");
        self.ended(self.ask(Method::POST, &path, Some(new)).await.map_err(status)?).await
    }

    async fn gone(&self, path: &str) -> Result<Ended, Status> {
        let path = format!("{path}?wait={WAIT_SECONDS}");
        match found::<Value>(self.ask(Method::DELETE, &path, None).await)? {
            Some(begun) => self.ended(begun).await,
            None => Ok(Ok(())),
        }
    }

    async fn ended(&self, mut operation: Value) -> Result<Ended, Status> {
        let until = Instant::now() + OPERATION_TIME;
        while operation["ended"].is_null() {
            if Instant::now() >= until {
                let waits = operation["waits"].as_str().unwrap_or("it has not ended");
                return Err(Status::aborted(format!("an operation on the volume is under way: {waits}: call again")));
            }
            let id = operation["id"].as_str().unwrap_or_default();
            let path = format!("/v1/operations/{}?wait={WAIT_SECONDS}", escaped(id));
            operation = self.ask(Method::GET, &path, None).await.map_err(status)?;
        }
        Ok(operation["failure"].as_str().map_or(Ok(()), |why| Err(why.to_owned())))
    }

    /// A page of the volumes behind one of that name.
    pub async fn volumes(&self, after: Option<&str>) -> Result<Page<VolumeView>, Status> {
        self.page("volumes", after).await.map_err(status)
    }

    /// All drives; none: the token is a tenant's, which does not see them.
    pub async fn drives(&self) -> Result<Option<Vec<Drive>>, Status> {
        seen(self.all("drives").await)
    }

    /// All nodes, where the token shows them.
    pub async fn nodes(&self) -> Result<Option<Vec<Node>>, Status> {
        seen(self.all("nodes").await)
    }

    /// What holds for all drives, where the token shows that.
    pub async fn pool(&self) -> Result<Option<Pool>, Status> {
        seen(self.ask(Method::GET, "/v1/pool", None).await.and_then(read))
    }

    /// The tenant whose volumes are meant, if that was said.
    pub async fn tenant(&self) -> Result<Option<Tenant>, Status> {
        match &self.tenant {
            Some(name) => found(self.ask(Method::GET, &path_of("tenants", name), None).await),
            None => Ok(None),
        }
    }

    async fn all<T: DeserializeOwned>(&self, kind: &str) -> Result<Vec<T>, ClientError> {
        let (mut all, mut after) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let page = self.page(kind, after.as_deref()).await?;
            all.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(all)
    }

    async fn page<T: DeserializeOwned>(&self, kind: &str, after: Option<&str>) -> Result<Page<T>, ClientError> {
        let behind = after.map(|name| format!("?after={}", escaped(name))).unwrap_or_default();
        let mut said = self.ask(Method::GET, &format!("/v1/{kind}{behind}"), None).await?;
        Ok(Page { next: said["next"].as_str().map(str::to_owned), items: read(said["items"].take())? })
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, ClientError> {
        self.client.ask(method, path, body).await
    }
}

fn read<T: DeserializeOwned>(said: Value) -> Result<T, ClientError> {
    serde_json::from_value(said).map_err(|error| {
        ClientError::Usage(format!("the control plane says what this driver does not understand: {error}"))
    })
}

fn found<T: DeserializeOwned>(said: Result<Value, ClientError>) -> Result<Option<T>, Status> {
    match said.and_then(read) {
        Ok(found) => Ok(Some(found)),
        Err(ClientError::Refused(refused)) if refused.kind == "not-found" => Ok(None),
        Err(error) => Err(status(error)),
    }
}

fn seen<T>(said: Result<T, ClientError>) -> Result<Option<T>, Status> {
    match said {
        Ok(seen) => Ok(Some(seen)),
        Err(ClientError::Refused(refused)) if refused.kind == "forbidden" => Ok(None),
        Err(error) => Err(status(error)),
    }
}

fn snapshot_path(volume: &str, name: &str) -> String {
    format!("{}/snapshots/{}", path_of("volumes", volume), escaped(name))
}

/// A name that no volume can have is the name of none.
pub fn is_name(text: &str) -> bool {
    Name::new(text).is_ok()
}

fn status(error: ClientError) -> Status {
    let code = match &error {
        ClientError::Usage(_) => Code::Internal,
        ClientError::Unreached { .. } => Code::Unavailable,
        ClientError::Refused(refused) => match refused.kind.as_str() {
            "malformed" | "impossible" => Code::InvalidArgument,
            "unauthenticated" => Code::Unauthenticated,
            "forbidden" => Code::PermissionDenied,
            "not-found" => Code::NotFound,
            "exists" => Code::AlreadyExists,
            "attached" | "in-use" => Code::FailedPrecondition,
            "busy" => Code::Aborted,
            "no-room" | "quota-exceeded" | "limit-reached" | "catalogue-full" => Code::ResourceExhausted,
            _ if refused.status.as_u16() == 429 || refused.status.is_server_error() => Code::Unavailable,
            _ => Code::Internal,
        },
    };
    Status::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::client::Refused;
    use http::StatusCode;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;

    /// A driver that had read its token once was refused for good when that token had been replaced.
    #[tokio::test]
    async fn a_token_that_is_replaced_is_the_one_that_is_shown() {
        let (folder, listener) =
            (tempfile::tempdir().expect("a folder"), TcpListener::bind("127.0.0.1:0").expect("bound"));
        let at = format!("http://{}", listener.local_addr().expect("an address"));
        let served = std::thread::spawn(move || {
            let answered = |stream: std::io::Result<std::net::TcpStream>| {
                let (mut stream, mut bytes, mut head) = (stream.expect("a client"), [0; 4096], String::new());
                while !head.contains("\r\n\r\n") {
                    let read = stream.read(&mut bytes).expect("read");
                    head += std::str::from_utf8(&bytes[..read]).expect("text");
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").expect("written");
                let shown = head.split("Bearer ").nth(1).and_then(|rest| rest.split("\r\n").next());
                shown.unwrap_or_default().to_owned()
            };
            listener.incoming().take(2).map(answered).collect::<Vec<_>>()
        });
        let token_file = folder.path().join("token");
        let written = |token: &str| {
            std::fs::write(&token_file, token).expect("written");
            std::fs::set_permissions(&token_file, PermissionsExt::from_mode(0o600)).expect("private");
        };
        written("one");
        let plane = Plane::new(&Access { at, token_file: token_file.clone(), authorities: None, tenant: None });
        let plane = plane.expect("a token");
        plane.ask(Method::GET, "/", None).await.expect("answered");
        written("two");
        plane.ask(Method::GET, "/", None).await.expect("answered");
        assert_eq!(served.join().expect("served"), ["one", "two"]);
    }

    #[test]
    fn refusals_have_the_codes_of_the_specification() {
        let refused = |status: u16, kind: &str| {
            let status = StatusCode::from_u16(status).expect("a status");
            super::status(ClientError::Refused(Refused { status, kind: kind.into(), what: None, detail: "why".into() }))
        };
        let cases = [
            (400, "malformed", Code::InvalidArgument),
            (401, "unauthenticated", Code::Unauthenticated),
            (403, "forbidden", Code::PermissionDenied),
            (404, "not-found", Code::NotFound),
            (409, "exists", Code::AlreadyExists),
            (409, "attached", Code::FailedPrecondition),
            (409, "in-use", Code::FailedPrecondition),
            (409, "busy", Code::Aborted),
            (429, "too-many-operations", Code::Unavailable),
            (507, "no-room", Code::ResourceExhausted),
            (507, "quota-exceeded", Code::ResourceExhausted),
            (502, "drive-failed", Code::Unavailable),
            (503, "outcome-unknown", Code::Unavailable),
            (418, "unheard-of", Code::Internal),
        ];
        for (http, kind, code) in cases {
            let status = refused(http, kind);
            assert_eq!((status.code(), status.message()), (code, "why"), "{kind}");
        }
        let at = "http://127.0.0.1:1".parse().expect("an address");
        assert_eq!(super::status(ClientError::Unreached { at, why: "gone".into() }).code(), Code::Unavailable);
    }
}
