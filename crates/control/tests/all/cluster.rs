//! An etcd of real processes on loopback.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::port::Port;

/// How long anything of etcd is waited for. Chosen: far more than a busy machine takes.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Members that were started; all end when this is dropped.
pub struct Cluster {
    folder: TempDir,
    members: Vec<Member>,
    more: Vec<String>,
    scheme: &'static str,
}

struct Member {
    client: Port,
    peer: Port,
    child: Option<Child>,
}

impl Cluster {
    /// Three members that have agreed on a leader.
    pub async fn start() -> Cluster {
        let cluster = Cluster::begin(3, "http", Vec::new());
        cluster.settle().await;
        cluster
    }

    /// So many members, with more words for each; nothing is waited for.
    pub fn begin(count: usize, scheme: &'static str, more: Vec<String>) -> Cluster {
        let member = |_| Member { client: Port::keep(), peer: Port::keep(), child: None };
        let folder = folder();
        let mut cluster = Cluster { folder, members: (0..count).map(member).collect(), more, scheme };
        for index in 0..count {
            cluster.run(index);
        }
        cluster
    }

    /// Starts a member that does not run.
    pub fn run(&mut self, index: usize) {
        let peers = |(index, member): (usize, &Member)| format!("m{index}=http://{}", member.peer.address);
        let peers: Vec<String> = self.members.iter().enumerate().map(peers).collect();
        let client = format!("{}://{}", self.scheme, self.members[index].client.address);
        let peer = format!("http://{}", self.members[index].peer.address);
        let log = File::options().create(true).append(true).open(self.log(index)).expect("a log");
        let child = Command::new("etcd")
            .args(["--name", &format!("m{index}"), "--initial-cluster", &peers.join(","), "--logger", "zap"])
            .arg("--data-dir")
            .arg(self.folder.path().join(format!("m{index}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--heartbeat-interval", "200", "--election-timeout", "2000"])
            .args(&self.more)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let child = child.expect("etcd is installed (`scripts/deps.sh test`)");
        assert!(self.members[index].child.replace(child).is_none(), "the member ran");
    }

    fn log(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("m{index}.log"))
    }

    /// `kill -9`.
    pub fn kill(&mut self, index: usize) {
        let mut child = self.members[index].child.take().expect("the member runs");
        child.kill().expect("a child of ours");
        child.wait().expect("it ends");
    }

    /// Copies the data of a member that does not run.
    pub fn copy(&self, index: usize, copy: &str) {
        self.clone_data(&format!("m{index}"), copy);
    }

    /// Puts a member that does not run back to a copy of its data.
    pub fn put_back(&self, index: usize, copy: &str) {
        self.clone_data(copy, &format!("m{index}"));
    }

    fn clone_data(&self, from: &str, to: &str) {
        let (from, to) = (self.folder.path().join(from), self.folder.path().join(to));
        if to.exists() {
            std::fs::remove_dir_all(&to).expect("a folder of ours");
        }
        assert!(Command::new("cp").arg("-a").args([&from, &to]).status().expect("cp").success());
    }

    pub fn address(&self, index: usize) -> SocketAddr {
        self.members[index].client.address
    }

    pub fn endpoint(&self, index: usize) -> String {
        format!("{}://{}", self.scheme, self.address(index))
    }

    pub fn endpoints(&self) -> Vec<String> {
        (0..self.members.len()).map(|index| self.endpoint(index)).collect()
    }

    /// Waits until all that run see a leader.
    pub async fn settle(&self) {
        self.leader().await;
    }

    /// The member that leads, when all that run agree on it.
    pub async fn leader(&self) -> usize {
        let end = Instant::now() + PATIENCE;
        loop {
            let running: Vec<usize> =
                (0..self.members.len()).filter(|&index| self.members[index].child.is_some()).collect();
            let states: Vec<Option<(String, String)>> = running.iter().map(|&index| self.state(index)).collect();
            let leaders: Vec<&String> = states.iter().flatten().map(|(_, leader)| leader).collect();
            let agreed =
                leaders.len() == running.len() && leaders.iter().all(|leader| *leader == leaders[0] && *leader != "0");
            if agreed {
                let own = |state: &Option<(String, String)>| state.as_ref().is_some_and(|(own, leader)| own == leader);
                if let Some(at) = states.iter().position(own) {
                    return running[at];
                }
            }
            assert!(Instant::now() < end, "no leader: {states:?}\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn logs(&self) -> String {
        let read = |index| std::fs::read_to_string(self.log(index)).unwrap_or_default();
        let tail = |text: String| text.lines().rev().take(5).map(str::to_owned).collect::<Vec<_>>().join("\n");
        (0..self.members.len()).map(|index| tail(read(index))).collect::<Vec<_>>().join("\n--\n")
    }

    /// A member's own number and its leader's.
    fn state(&self, index: usize) -> Option<(String, String)> {
        let answer = post(self.address(index), "/v3/maintenance/status", "{}").ok()?;
        let field = |value: &serde_json::Value| Some(value.as_str()?.to_owned());
        Some((field(&answer["header"]["member_id"])?, field(&answer["leader"]).unwrap_or_else(|| "0".to_owned())))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.members.iter_mut().filter_map(|member| member.child.as_mut()) {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A folder for the members' data: in memory where there is room, so that a disk which others keep busy makes no elections. What a
/// process has written outlives its `kill -9` there, too.
fn folder() -> TempDir {
    const ROOM: u64 = 2 << 30;
    let memory = "/dev/shm";
    let has_room = rustix::fs::statvfs(memory).is_ok_and(|there| there.f_bavail * there.f_frsize >= ROOM);
    let made = if has_room { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a folder for the members' data")
}

/// Asks etcd's gateway for JSON, which needs no client of ours.
pub fn post(address: SocketAddr, path: &str, body: &str) -> std::io::Result<serde_json::Value> {
    send(address, path, body, "")
}

/// The same in the name of whoever the token was given to.
pub fn post_as(address: SocketAddr, path: &str, body: &str, token: &str) -> std::io::Result<serde_json::Value> {
    send(address, path, body, &format!("Authorization: {token}\r\n"))
}

fn send(address: SocketAddr, path: &str, body: &str, who: &str) -> std::io::Result<serde_json::Value> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let length = body.len();
    write!(stream, "POST {path} HTTP/1.0\r\n{who}Content-Length: {length}\r\n\r\n{body}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    if !answer.split("\r\n").next().is_some_and(|line| line.contains(" 200 ")) {
        return Err(std::io::Error::new(ErrorKind::InvalidData, answer));
    }
    Ok(serde_json::from_str(body)?)
}
