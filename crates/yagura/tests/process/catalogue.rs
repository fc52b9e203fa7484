//! A catalogue that is dumped, restored and moved into a real etcd: what it says of volumes is the same afterwards.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::control::{Control, node_of};
use crate::port::Port;
use crate::support::{Server, kill, run};

/// A control plane whose volume has a snapshot and whose file nobody has open any more; what it showed.
fn filled(directory: &Path, node: &Server) -> (String, Value) {
    let control = Control::start(directory);
    control.register(&[("n1", node)]);
    control.done("tenant", &["a", "--quota", "64MiB"]);
    let named = ["--tenant", "a"];
    control.done("create", &[&["db", "--size", "8MiB", "--replicas", "1"][..], &named].concat());
    control.done("snapshot", &[&["db", "monday"][..], &named].concat());
    let shown = shown(&control);
    assert!(shown.to_string().contains("monday") && shown.to_string().contains("8388608"), "{shown}");
    (control.end(), shown)
}

/// All that the control plane says of what there is.
fn shown(control: &Control) -> Value {
    let of = |kind: &str, more: &[&str]| control.done("show", &[&[kind][..], more].concat());
    let volumes = of("volumes", &["--tenant", "a"]);
    let snapshots = of("snapshots", &["db", "--tenant", "a"]);
    let tenants = of("tenants", &[]);
    serde_json::json!([volumes, snapshots, tenants, of("nodes", &[]), of("tokens", &[])])
}

fn refused(arguments: &[&str], status: i32, why: &str) {
    let (ended, stdout, stderr) = run(arguments);
    assert!(ended == status && stderr.contains(why), "{arguments:?}: {ended} {stdout} {stderr}");
}

fn done(arguments: &[&str]) -> Value {
    let (status, stdout, stderr) = run(&[arguments, &["--json"]].concat());
    assert_eq!(status, 0, "{arguments:?}: {stdout} {stderr}");
    serde_json::from_str(&stdout).expect("a report")
}

/// An etcd of one process.
struct Etcd {
    child: Child,
    url: String,
    _ports: [Port; 2],
}

impl Etcd {
    fn start(directory: &Path) -> Etcd {
        let ports = [Port::keep(), Port::keep()];
        let [url, peer] = [0, 1].map(|index: usize| format!("http://{}", ports[index].address));
        let child = Command::new("etcd")
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url, "--logger", "zap", "--data-dir"])
            .arg(directory.join("etcd"))
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--name", "m0", "--initial-cluster", &format!("m0={peer}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Etcd { child: child.expect("etcd is installed (`make deps-test`)"), url, _ports: ports }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        kill(self.child.id(), "KILL");
        self.child.wait().expect("it ends");
    }
}

#[test]
fn a_catalogue_is_dumped_and_restored() {
    let directory = tempfile::tempdir().unwrap();
    let node = node_of("96MiB", directory.path(), "n1", "127.0.0.1:0");
    let (catalogue, before) = filled(directory.path(), &node);
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (from, dump, other) = (format!("--catalogue={catalogue}"), path("dump"), path("other"));
    let into = format!("--catalogue={other}");

    let said = done(&["control", "dump", &from, &dump]);
    assert!(said["entries"].as_u64().is_some_and(|entries| entries > 5), "{said}");
    // Nothing is written over, and nothing is made by a name that was mistyped.
    refused(&["control", "dump", &from, &dump], 4, "exists");
    refused(&["control", "dump", &format!("--catalogue={other}"), &path("more")], 4, "No such file");
    assert!(!Path::new(&other).exists() && !Path::new(&path("more")).exists());

    // Half a dump is said to be one, and the whole goes on where it ended.
    let text = std::fs::read_to_string(&dump).unwrap();
    let half = path("half");
    let lines: Vec<&str> = text.lines().collect();
    std::fs::write(&half, lines[..lines.len() / 2].join("\n")).unwrap();
    refused(&["control", "restore", &into, &half], 4, "without its last line");
    // On half a catalogue drives would be used of which the other half says by whom.
    refused(&["control", "serve", &into, "--host-nqn=nqn.2026-11.io.yagura:control"], 4, "only a part of a dump");
    let said = done(&["control", "restore", &into, &dump]);
    assert_eq!(said["to"].as_str(), Some(&*other));
    refused(&["control", "restore", &from, &path("nowhere")], 4, "No such file");
    let torn = path("torn");
    std::fs::write(&torn, text.replacen("monday", "sunday", 1)).unwrap();
    refused(&["control", "restore", &format!("--catalogue={}", path("third")), &torn], 4, "damaged");

    let control = Control::serve(other, path("token"));
    assert_eq!(shown(&control), before);
    // Whose entries would be lost is asked first.
    refused(&["control", "restore", &from, &dump], 4, "holds entries already");
}

#[test]
fn a_catalogue_is_moved_into_etcd() {
    let directory = tempfile::tempdir().unwrap();
    let node = node_of("96MiB", directory.path(), "n1", "127.0.0.1:0");
    let (catalogue, before) = filled(directory.path(), &node);
    let etcd = Etcd::start(directory.path());
    let (from, into) = (format!("--catalogue={catalogue}"), format!("--etcd={}", etcd.url));
    let said = done(&["control", "move", &from, &into]);
    assert_eq!(said["found"].as_u64(), Some(0), "{said}");
    // Once more: all is there.
    let again = done(&["control", "move", &from, &into]);
    assert_eq!(again["found"], said["entries"], "{again}");
    let token = || directory.path().join("token").display().to_string();
    let control = Control::over(&into, token());
    assert_eq!(shown(&control), before);
    control.done("delete-snapshot", &["db", "monday", "--tenant", "a"]);

    // The file would promise the same room, and delete what the other one makes.
    let serve = ["control", "serve", &from, "--listen=127.0.0.1:0", "--host-nqn=nqn.2026-11.io.yagura:control"];
    refused(&serve, 4, "was moved to http");
    // Nobody restores what a control plane serves, which would go on with what was there.
    let dump = directory.path().join("dump").display().to_string();
    done(&["control", "dump", &into, &dump]);
    refused(&["control", "restore", &into, &dump, "--force"], 4, "is served by yagura control at");
    control.done("show", &["volumes", "--tenant", "a"]);
    control.end();
    done(&["control", "restore", &into, &dump, "--force"]);
    // A move that is refused leaves the file as it was: moved, for what is there by now counts.
    refused(&["control", "move", &from, &into], 4, "holds");
    refused(&serve, 4, "was moved to http");
    done(&["control", "move", &from, &into, "--force"]);
    refused(&serve, 4, "was moved to http");
    let server = Server::start(&[&serve[..], &["--although-moved"]].concat());
    assert_eq!(server.stop("TERM"), 0);
    let server = Server::start(&serve);
    assert_eq!(server.stop("TERM"), 0);
}
