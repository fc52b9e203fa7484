//! A control plane of which every operation ends at once, and which leaves a question without an answer, or undoes an operation,
//! at a point that is chosen.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex, MutexGuard};

use control::client::Access;
use serde_json::{Value, json};

use crate::plane::Plane;

/// Of everything.
const NIL: &str = "00000000-0000-0000-0000-000000000000";
/// Volumes of a page.
const PAGE: usize = 2;
pub const GIB: u64 = 1 << 30;
/// No volume of the double grows beyond that.
pub const MOST: u64 = 64 * GIB;

#[derive(Default)]
pub struct World {
    pub volumes: BTreeMap<String, Value>,
    pub snapshots: BTreeMap<(String, String), Value>,
    /// Questions that are answered until one is not, and whether what that one asks for is done.
    pub dies: Option<(usize, bool)>,
    /// The next operation is not done.
    pub fails: bool,
}

pub struct Double {
    folder: tempfile::TempDir,
    at: String,
    world: Arc<Mutex<World>>,
}

impl Double {
    /// Serves for as long as the process lives.
    pub fn start() -> Double {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let at = format!("http://{}", listener.local_addr().expect("an address"));
        let double = Double { folder: tempfile::tempdir().expect("a folder"), at, world: Arc::default() };
        let token = double.folder.path().join("token");
        std::fs::write(&token, "token").expect("written");
        std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).expect("private");
        let world = double.world.clone();
        std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| serve(stream, &world)));
        double
    }

    pub fn plane(&self) -> Plane {
        let token_file = self.folder.path().join("token");
        let access = Access { at: self.at.clone(), token_file, authorities: None, tenant: None };
        Plane::new(&access).expect("a token")
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("nobody panics with it")
    }
}

fn serve(mut stream: TcpStream, world: &Mutex<World>) {
    let (mut bytes, mut asked) = ([0; 4096], String::new());
    loop {
        let read = stream.read(&mut bytes).expect("read");
        if read == 0 {
            return;
        }
        asked += std::str::from_utf8(&bytes[..read]).expect("text");
        let Some((head, body)) = asked.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() < length.unwrap_or(0) {
            continue;
        }
        let mut words = head.split(' ');
        let (method, target) = (words.next().expect("a method"), words.next().expect("a target"));
        let mut world = world.lock().expect("nobody panics with it");
        let death = match &mut world.dies {
            Some((0, is_done)) => Some(*is_done),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        if death == Some(false) {
            return;
        }
        let (status, answer) = match method != "GET" && world.is_failing() {
            true => (200, json!({"id": NIL, "ended": 1, "failure": "a drive is gone"})),
            false => world.answer(method, target, &serde_json::from_str(body).unwrap_or_default()),
        };
        if death.is_none() {
            let (answer, kind) = (answer.to_string(), "content-type: application/json");
            let head = format!("HTTP/1.1 {status} X\r\n{kind}\r\ncontent-length: {}\r\n\r\n", answer.len());
            stream.write_all((head + &answer).as_bytes()).expect("written");
        }
        return;
    }
}

fn refused(status: u16, kind: &str) -> (u16, Value) {
    (status, json!({"type": format!("tag:yagura.io,2026:{kind}"), "detail": kind}))
}

impl World {
    pub fn add(&mut self, name: &str, bytes: u64) {
        self.put(&json!({"name": name, "bytes": bytes, "replicas": 3, "level": "node", "from": null}));
    }

    fn is_failing(&mut self) -> bool {
        std::mem::take(&mut self.fails)
    }

    fn put(&mut self, new: &Value) {
        let holder = json!({"kind": "replica", "drive": "a", "address": "10.0.0.1:4420", "nqn": "nqn.2026-11.io.yagura:a",
            "namespace": null});
        let holders = vec![holder; new["replicas"].as_u64().expect("a number") as usize];
        let volume = json!({"id": NIL, "tenant": "a", "name": new["name"], "bytes": new["bytes"],
            "state": "ready", "level": new["level"], "holders": holders, "attachment": null, "operation": null, "limits": {},
            "snapshots": [], "from": new["from"], "created": 7});
        self.volumes.insert(new["name"].as_str().expect("a name").to_owned(), volume);
    }

    fn names(&self, volume: &str) -> Vec<String> {
        self.snapshots.keys().filter(|(of, _)| of == volume).map(|(_, name)| name.clone()).collect()
    }

    fn view(&self, name: &str) -> Option<Value> {
        let mut volume = self.volumes.get(name)?.clone();
        volume["snapshots"] = self.names(name).into();
        Some(volume)
    }

    fn answer(&mut self, method: &str, target: &str, body: &Value) -> (u16, Value) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path: Vec<&str> = path.trim_start_matches("/v1/").split('/').collect();
        let missing = refused(404, "not-found");
        let of_volume = path.get(1).is_none_or(|name| self.volumes.contains_key(*name));
        if !of_volume {
            return missing;
        }
        let key = |name: &str| (path[1].to_owned(), name.to_owned());
        match (method, &path[..]) {
            ("GET", ["volumes"]) => {
                let after = query.split('&').find_map(|word| word.strip_prefix("after=")).unwrap_or_default();
                let names: Vec<_> = self.volumes.keys().filter(|name| name.as_str() > after).collect();
                let items: Vec<_> = names.iter().take(PAGE).filter_map(|name| self.view(name)).collect();
                let next = names.get(PAGE - 1).filter(|_| names.len() > PAGE);
                (200, json!({"items": items, "next": next}))
            }
            ("POST", ["volumes"]) => self.made(body),
            ("GET", ["volumes", name]) => self.view(name).map_or(missing, |view| (200, view)),
            ("DELETE", ["volumes", name]) if self.names(name).is_empty() => {
                self.volumes.remove(*name);
                done()
            }
            ("POST", ["volumes", name, "grow"]) => {
                if body["bytes"].as_u64() > Some(MOST) {
                    return refused(400, "impossible");
                }
                self.volumes.get_mut(*name).expect("looked up")["bytes"] = body["bytes"].clone();
                done()
            }
            ("GET", ["volumes", name, "snapshots"]) => {
                let items =
                    self.snapshots.iter().filter(|((of, _), _)| of == name).map(|(_, snapshot)| snapshot.clone());
                (200, json!({"items": items.collect::<Vec<_>>(), "next": null}))
            }
            ("POST", ["volumes", volume, "snapshots"]) => {
                let name = body["name"].as_str().expect("a name");
                let snapshot = json!({"id": NIL, "volume": volume, "name": name,
                    "bytes": self.volumes[*volume]["bytes"], "copies": [0], "created": 7,
                    "moment": {"round": 1, "host": 1, "attempt": 1, "slots": 1}});
                match self.snapshots.insert(key(name), snapshot) {
                    None => done(),
                    Some(_) => refused(409, "exists"),
                }
            }
            ("GET", ["volumes", _, "snapshots", name]) => {
                self.snapshots.get(&key(name)).map_or(missing, |found| (200, found.clone()))
            }
            ("DELETE", ["volumes", _, "snapshots", name]) => {
                self.snapshots.remove(&key(name)).map_or(missing, |_| done())
            }
            _ => refused(409, "in-use"),
        }
    }

    fn made(&mut self, new: &Value) -> (u16, Value) {
        let bytes = new["bytes"].as_u64().expect("a number");
        if self.volumes.contains_key(new["name"].as_str().expect("a name")) {
            return refused(409, "exists");
        }
        if let Some(volume) = new["from"]["volume"].as_str() {
            let found = match new["from"]["snapshot"].as_str() {
                Some(snapshot) => self.snapshots.get(&(volume.to_owned(), snapshot.to_owned())),
                None => self.volumes.get(volume),
            };
            let Some(found) = found else { return refused(404, "not-found") };
            assert!(Some(bytes) >= found["bytes"].as_u64(), "smaller than what it is made of");
            if bytes > MOST {
                return refused(400, "impossible");
            }
        }
        if bytes > MOST {
            return refused(507, "no-room");
        }
        self.put(new);
        done()
    }
}

fn done() -> (u16, Value) {
    (200, json!({"id": NIL, "ended": 1, "failure": null}))
}
