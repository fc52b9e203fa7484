//! Volumes by name from outside: a control plane, targets with drives, hosts, and a real `kill -9` of each.

use std::path::Path;

use serde_json::Value;

use crate::membership::address;
use crate::support::{Server, http_get, kill, run};

const CONTROL: &str = "nqn.2026-11.io.yagura:control";
pub const HOST: &str = "nqn.2026-11.io.yagura:host";
const OTHER: &str = "nqn.2026-11.io.yagura:other";

fn nqn(name: &str) -> String {
    format!("nqn.2026-11.io.yagura:drive-{name}")
}

/// A storage node: a target with a drive that the control plane manages, and that the hosts may use.
fn node(directory: &Path, name: &str, listen: &str) -> Server {
    node_of("96MiB", directory, name, listen)
}

/// The same with a drive of that size.
pub fn node_of(size: &str, directory: &Path, name: &str, listen: &str) -> Server {
    let file = directory.join(name).display().to_string();
    if !Path::new(&file).exists() {
        done(&["drive", "format", &file, "--size", size]);
    }
    let (nqn, manages) = (format!("--nqn={}", nqn(name)), format!("--host=nqn={CONTROL},manage=all"));
    let [host, other] = [HOST, OTHER].map(|host| format!("--host=nqn={host}"));
    let (listen, drive) = (format!("--listen={listen}"), format!("--drive={file}"));
    Server::start(&["target", &listen, &nqn, &manages, &host, &other, &drive])
}

fn done(arguments: &[&str]) -> String {
    let (status, stdout, stderr) = run(arguments);
    assert_eq!(status, 0, "{arguments:?}: {stdout} {stderr}");
    stdout
}

/// A control plane over a file.
pub struct Control {
    server: Server,
    catalogue: String,
    pub token: String,
    pub url: String,
}

impl Control {
    pub fn start(directory: &Path) -> Control {
        let path = |name: &str| directory.join(name).display().to_string();
        Control::serve(path("catalogue"), path("token"))
    }

    pub fn serve(catalogue: String, token: String) -> Control {
        Control { catalogue: catalogue.clone(), ..Control::over(&format!("--catalogue={catalogue}"), token) }
    }

    /// Over the catalogue that this flag names.
    pub fn over(catalogue: &str, token: String) -> Control {
        let flags = [format!("--operator-token={token}"), format!("--host-nqn={CONTROL}")];
        let mut arguments = vec!["control", "serve", "--listen=127.0.0.1:0", catalogue];
        arguments.extend(flags.iter().map(String::as_str));
        let server = Server::start(&arguments);
        let url = format!("http://{}", server.address("listening"));
        Control { server, catalogue: String::new(), token, url }
    }

    /// Stops it; the catalogue's file.
    pub fn end(self) -> String {
        assert_eq!(self.server.stop("TERM"), 0);
        self.catalogue
    }

    /// As after `kill -9`.
    fn again(self) -> Control {
        let Control { server, catalogue, token, .. } = self;
        kill(server.id(), "KILL");
        drop(server);
        Control::serve(catalogue, token)
    }

    fn run_by(&self, token: &str, verb: &str, more: &[&str]) -> (i32, String, String) {
        let who = ["--control", &self.url, "--token-file", token];
        run(&[&["control", verb][..], more, &who].concat())
    }

    fn run(&self, verb: &str, more: &[&str]) -> (i32, String, String) {
        self.run_by(&self.token, verb, more)
    }

    pub fn done(&self, verb: &str, more: &[&str]) -> Value {
        let (status, stdout, stderr) = self.run(verb, &[more, &["--json"]].concat());
        assert_eq!(status, 0, "{verb} {more:?}: {stdout} {stderr}");
        serde_json::from_str(&stdout).unwrap_or(Value::Null)
    }

    fn refused(&self, verb: &str, more: &[&str], why: &str) {
        let (status, stdout, stderr) = self.run(verb, more);
        assert!(status != 0 && stderr.contains(why), "{verb} {more:?}: {status} {stdout} {stderr}");
    }

    pub fn register(&self, nodes: &[(&str, &Server)]) {
        for (name, server) in nodes {
            self.done("node", &[name, "--rack", &format!("rack-{name}")]);
            let (at, nqn) = (address(server), nqn(name));
            self.done("drive", &[name, "--node", name, "--address", &at, "--nqn", &nqn]);
        }
    }

    pub fn attach(&self, volume: &str, host: &str, more: &[&str]) -> Server {
        let name = [volume, "--tenant=a", "--control", &self.url, "--token-file", &self.token];
        let how = ["--listen=127.0.0.1:0", "--give-up-after=200", "--host-nqn", host];
        Server::start(&[&["volume", "attach", "--name"][..], &name, &how, more].concat())
    }

    /// Bytes that the drives have promised, in their order.
    pub fn promised(&self) -> Vec<u64> {
        let drives = self.done("show", &["drives"]);
        let items = drives["items"].as_array().expect("a list").iter();
        items.map(|drive| drive["promised"].as_u64().expect("bytes")).collect()
    }
}

#[test]
fn a_volume_is_made_used_and_deleted_by_its_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut nodes: Vec<Server> =
        ["a", "b", "c"].iter().map(|name| node(directory.path(), name, "127.0.0.1:0")).collect();
    let control = Control::start(directory.path());
    control.register(&[("a", &nodes[0]), ("b", &nodes[1]), ("c", &nodes[2])]);
    control.done("tenant", &["a", "--quota=64MiB"]);
    control.done("create", &["db", "--tenant=a", "--size=8MiB"]);
    control.refused("create", &["db", "--tenant=a", "--size=8MiB"], "db");
    control.refused("create", &["big", "--tenant=a", "--size=65MiB"], "may have 67108864 bytes");

    let served = control.attach("db", HOST, &[]);
    let at = address(&served);
    done(&["nvme", "write", &at, "--pattern", "1", "--length=8MiB", "--deadline=10"]);
    control.refused("delete", &["db", "--tenant=a"], HOST);
    // A node dies, and nobody notices; the control plane dies, and nobody who has a volume notices.
    drop(nodes.pop());
    done(&["nvme", "write", &at, "--pattern", "2", "--length=8MiB", "--deadline=10"]);
    let control = control.again();
    done(&["nvme", "read", &at, "--length=8MiB", "--verify-pattern", "2"]);
    // Another host is told who has the volume, takes it, and finds what was written.
    let taken = [&["volume", "attach", "--name", "db", "--tenant=a"][..], &["--control", &control.url]].concat();
    let taken = [&taken[..], &["--token-file", &control.token, "--host-nqn", OTHER, "--listen=127.0.0.1:0"]].concat();
    let (status, _, stderr) = run(&taken);
    assert!(status == 6 && stderr.contains(HOST), "{status} {stderr}");
    // One whom the nodes do not let in takes it from nobody, and the catalogue does not forget that somebody has it.
    let stranger = |&word: &&str| if word == OTHER { format!("{OTHER}-stranger") } else { word.to_owned() };
    let stranger: Vec<String> = taken.iter().map(stranger).chain(["--take".to_owned()]).collect();
    let (status, _, stderr) = run(&stranger.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(status != 0, "{stderr}");
    control.refused("delete", &["db", "--tenant=a"], "-stranger");
    done(&["nvme", "read", &at, "--length=8MiB", "--verify-pattern", "2"]);
    let other = control.attach("db", OTHER, &["--take"]);
    assert_eq!(served.wait(), 6, "the former host has lost it");
    done(&["nvme", "read", &address(&other), "--length=8MiB", "--verify-pattern", "2"]);
    assert_eq!(other.stop("TERM"), 0);
    let volume = control.done("show", &["volumes", "db", "--tenant=a"]);
    assert_eq!((&volume["state"], &volume["attachment"]), (&"ready".into(), &Value::Null), "{volume}");

    // The node is back at its place: everything is given back, on it too.
    let node_c = control.done("show", &["drives", "c"]);
    nodes.push(node(directory.path(), "c", node_c["address"].as_str().expect("an address")));
    // Who can't say that it detaches ends otherwise, and has its place until it has said so.
    let untold = control.attach("db", OTHER, &[]);
    let control = control.again();
    assert_eq!(untold.stop("TERM"), 3);
    assert_eq!(control.done("show", &["volumes", "db", "--tenant=a"])["attachment"]["host"], OTHER);
    assert_eq!(control.attach("db", OTHER, &[]).stop("TERM"), 0);
    control.done("delete", &["db", "--tenant=a"]);
    assert_eq!(control.promised(), [0, 0, 0]);
    for name in ["a", "b", "c"] {
        let drive = control.done("show", &["drives", name]);
        assert_eq!((&drive["unrecorded"], &drive["holders"]), (&Value::Array(vec![]), &0.into()), "{drive}");
    }
    assert_eq!(control.server.stop("TERM"), 0);
}

#[test]
fn what_cannot_be_placed_says_what_each_drive_lacks() {
    let directory = tempfile::tempdir().expect("a directory");
    let nodes: Vec<Server> = ["a", "b"].iter().map(|name| node(directory.path(), name, "127.0.0.1:0")).collect();
    let control = Control::start(directory.path());
    control.register(&[("a", &nodes[0]), ("b", &nodes[1])]);
    control.done("tenant", &["a"]);
    control.refused("create", &["db", "--tenant=a", "--size=8MiB"], "no other drive is registered");
    control.done("create", &["db", "--tenant=a", "--size=8MiB", "--replicas=1"]);
    control.done("set-drive", &["a", "draining"]);
    control.done("set-drive", &["b", "draining"]);
    control.refused("create", &["db2", "--tenant=a", "--size=8MiB", "--replicas=1"], "drain");
    for (size, why) in [("0", "4096"), ("1000", "4096"), ("1PiB", "volume of")] {
        control.refused("create", &["odd", "--tenant=a", &format!("--size={size}"), "--replicas=1"], why);
    }
    control.refused("create", &["No", "--tenant=a", "--size=8MiB"], "a name has");
    control.refused("show", &["volumes", "nothing", "--tenant=a"], "nothing");

    // Nothing is served for all to read, and no token is left behind that nobody has.
    let catalogue = format!("--catalogue={}", directory.path().join("other").display());
    let serve = ["control", "serve", &catalogue, "--host-nqn", CONTROL];
    let (status, _, stderr) = run(&[&serve[..], &["--listen=0.0.0.0:0"]].concat());
    assert!(status == 2 && stderr.contains("--plain-text"), "{status} {stderr}");
    let (status, _, stderr) = run(&[&serve[..], &["--listen=127.0.0.1:0", "--operator-token=/nowhere/token"]].concat());
    assert!(status != 0 && stderr.contains("/nowhere/token"), "{status} {stderr}");
    let (status, _, stderr) = run(&serve[..3]);
    assert!(status == 2 && stderr.contains("manage=all"), "{status} {stderr}");

    // A tenant's token opens the tenant's volumes, and no others; a stranger's nothing.
    control.done("tenant", &["b"]);
    let token = control.done("token", &["--for", "b"]);
    let file = directory.path().join("b").with_extension("token");
    let write = |text: &str| {
        std::fs::remove_file(&file).ok();
        std::fs::write(&file, text).expect("written");
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("private");
    };
    write(token["token"].as_str().expect("a token"));
    let by = file.display().to_string();
    for (verb, arguments) in
        [("show", &["volumes", "db", "--tenant=a"][..]), ("delete", &["db", "--tenant=a"]), ("show", &["drives"])]
    {
        let (status, stdout, stderr) = control.run_by(&by, verb, arguments);
        assert!(status != 0 && stderr.contains("tenant b"), "{verb} {arguments:?}: {status} {stdout} {stderr}");
    }
    let (status, stdout, _) = control.run_by(&by, "show", &["volumes"]);
    assert_eq!((status, stdout.trim()), (0, ""), "of its own there are none");
    write("yagura_00000000000000000000000000000000_0");
    let (status, _, stderr) = control.run_by(&by, "show", &["volumes"]);
    assert!(status != 0 && stderr.contains("token"), "{stderr}");
}

fn write(at: &str, pattern: &str, length: &str) {
    done(&["nvme", "write", at, "--pattern", pattern, &format!("--length={length}"), "--deadline=20"]);
}

fn read(at: &str, pattern: &str, length: &str) {
    done(&["nvme", "read", at, &format!("--length={length}"), "--verify-pattern", pattern]);
}

/// Three nodes, and the volume `db` of the tenant `a` on them.
fn with_a_volume(directory: &Path) -> (Vec<Server>, Control) {
    let nodes: Vec<Server> = ["a", "b", "c"].iter().map(|name| node(directory, name, "127.0.0.1:0")).collect();
    let control = Control::start(directory);
    control.register(&[("a", &nodes[0]), ("b", &nodes[1]), ("c", &nodes[2])]);
    control.done("tenant", &["a"]);
    control.done("create", &["db", "--tenant=a", "--size=8MiB"]);
    (nodes, control)
}

#[test]
fn a_volume_grows_has_snapshots_and_is_cloned_while_it_is_used() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_nodes, control) = with_a_volume(directory.path());
    let served = control.attach("db", HOST, &["--metrics=127.0.0.1:0"]);
    let at = address(&served);
    write(&at, "1", "8MiB");
    control.done("snapshot", &["db", "monday", "--tenant=a"]);
    write(&at, "2", "8MiB");
    control.refused("snapshot", &["db", "monday", "--tenant=a"], "monday");
    control.refused("delete", &["db", "--tenant=a"], "monday");
    // What was written since is not in it.
    control.done("create", &["db2", "--tenant=a", "--from=db@monday"]);
    let clone = control.attach("db2", OTHER, &[]);
    read(&address(&clone), "1", "8MiB");
    read(&at, "2", "8MiB");
    // It needs neither the snapshot nor the volume.
    write(&address(&clone), "3", "8MiB");
    read(&at, "2", "8MiB");
    assert_eq!(clone.stop("TERM"), 0);

    control.done("grow", &["db", "--tenant=a", "--size=12MiB"]);
    read(&at, "2", "8MiB");
    write(&at, "4", "12MiB");
    read(&at, "4", "12MiB");
    control.refused("grow", &["db", "--tenant=a", "--size=8MiB"], "does not shrink");
    control.refused("grow", &["db", "--tenant=a", "--size=60GiB"], "not promised");
    control.done("set-volume", &["db", "--tenant=a", "--iops=77", "--bandwidth=64MiB"]);
    let metrics = served.address("metrics");
    let begun = std::time::Instant::now();
    while !http_get(metrics, "/metrics").contains("yagura_volume_limit_iops 77") {
        assert!(begun.elapsed().as_secs() < 20, "the host is told");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }

    // The host is gone without a word: nobody has to say so for a snapshot.
    kill(served.id(), "KILL");
    control.done("snapshot", &["db", "tuesday", "--tenant=a", "--request-id=once"]);
    control.done("snapshot", &["db", "tuesday", "--tenant=a", "--request-id=once"]);
    let listed = control.done("show", &["snapshots", "db", "--tenant=a"]);
    let sizes: Vec<_> = listed["items"].as_array().expect("a list").iter().map(|one| one["bytes"].clone()).collect();
    assert_eq!(sizes, [8 << 20, 12 << 20], "{listed}");
    control.done("create", &["db3", "--tenant=a", "--from=db@tuesday", "--size=16MiB"]);
    let clone = control.attach("db3", OTHER, &[]);
    read(&address(&clone), "4", "12MiB");
    write(&address(&clone), "5", "16MiB");
    assert_eq!(clone.stop("TERM"), 0);

    control.done("detach", &["db", "--tenant=a"]);
    for snapshot in ["monday", "tuesday"] {
        control.done("delete-snapshot", &["db", snapshot, "--tenant=a"]);
    }
    let operations = control.done("show", &["operations"]);
    assert_eq!(operations["items"].as_array().expect("a list").len(), 8, "{operations}");
    for volume in ["db", "db2", "db3"] {
        control.done("delete", &[volume, "--tenant=a"]);
    }
    assert_eq!(control.promised(), [0, 0, 0]);
    for name in ["a", "b", "c"] {
        let drive = control.done("show", &["drives", name]);
        assert_eq!((&drive["unrecorded"], &drive["holders"]), (&Value::Array(vec![]), &0.into()), "{drive}");
    }
}

#[test]
fn a_volume_is_put_back_to_its_snapshots_and_copied_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_nodes, control) = with_a_volume(directory.path());
    let served = control.attach("db", HOST, &[]);
    let at = address(&served);
    for (pattern, snapshot) in [("1", "monday"), ("2", "tuesday")] {
        write(&at, pattern, "8MiB");
        control.done("snapshot", &["db", snapshot, "--tenant=a"]);
    }
    write(&at, "3", "8MiB");
    control.done("create", &["db2", "--tenant=a", "--from=db"]);
    write(&at, "4", "8MiB");
    control.refused("restore-volume", &["db", "--snapshot=monday", "--tenant=a"], "yagura control detach db");
    assert_eq!(served.stop("TERM"), 0);
    control.refused("restore-volume", &["db", "--snapshot=sunday", "--tenant=a"], "sunday");
    // Older and newer ones stay.
    for (snapshot, pattern) in [("monday", "1"), ("tuesday", "2")] {
        let asked = ["db", "--tenant=a", &format!("--snapshot={snapshot}"), &format!("--request-id={snapshot}")];
        let first = control.done("restore-volume", &asked);
        assert_eq!(control.done("restore-volume", &asked)["id"], first["id"]);
        let served = control.attach("db", HOST, &[]);
        read(&address(&served), pattern, "8MiB");
        assert_eq!(served.stop("TERM"), 0);
    }
    let copy = control.attach("db2", OTHER, &[]);
    read(&address(&copy), "3", "8MiB");
    assert_eq!(copy.stop("TERM"), 0);
    let names = |listed: Value| -> Vec<String> {
        let items = listed["items"].as_array().expect("a list").clone();
        items.iter().map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(control.done("show", &["snapshots", "db", "--tenant=a"])), ["monday", "tuesday"]);
    for snapshot in ["monday", "tuesday"] {
        control.done("delete-snapshot", &["db", snapshot, "--tenant=a"]);
    }
    for volume in ["db", "db2"] {
        control.done("delete", &[volume, "--tenant=a"]);
    }
    assert_eq!(control.promised(), [0, 0, 0]);
}
