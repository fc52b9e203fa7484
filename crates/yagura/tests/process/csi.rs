//! The driver of the Container Storage Interface, judged by csi-sanity: a control plane and three targets as they are, and a
//! machine of which the calls alone count, since not every kernel has NVMe/TCP and not everybody may mount.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ::control::client::Access;
use ::csi::{Controller, Endpoint, Node, NodeService, Plane, Services};
use serde_json::Value;

use crate::control::{Control, node_of};
use crate::support::{Server, cached, finished_within, run};

#[path = "../../../csi/tests/all/double.rs"]
#[expect(dead_code, reason = "the crate's own tests use more of it")]
mod double;

/// Of all its tests. Chosen: several times what they take beside other work.
const SANITY_TIME: Duration = Duration::from_secs(200);
/// Why tests may be skipped: they are of what the driver does not offer.
const NOT_OFFERED: [&str; 12] = [
    "ControllerPublishVolume not supported",
    "ControllerUnpublishVolume not supported",
    "Controller Publish, UnpublishVolume not supported",
    "ControllerPublishVolume.readonly field not supported",
    "Snapshot not supported",
    "CreateSnapshot not supported",
    "DeleteSnapshot not supported",
    "ListSnapshots not supported",
    "Volume Cloning not supported",
    "ControllerExpandVolume not supported",
    "NodeExpandVolume not supported",
    "GroupControllerService not supported",
];

/// Serves until it is dropped.
fn driver(control: &Control, directory: &Path) -> (tokio::runtime::Runtime, String) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (at, token_file) = (control.url.clone(), control.token.clone().into());
    let access = Access { at, token_file, authorities: None, tenant: Some("a".into()) };
    let plane = || Plane::new(&access).expect("a token");
    let node = Node::open(double::Double::default(), &directory.join("state")).expect("opened");
    let node = NodeService { node: Arc::new(node), plane: plane(), id: "node-1".into() };
    let services = Services::new(Some(Controller::new(plane())), Some(node));
    let url = format!("unix://{}", directory.join("csi.sock").display());
    let endpoint = {
        let _entered = runtime.enter();
        Endpoint::bind(&url).expect("bound")
    };
    runtime.spawn(endpoint.serve(services));
    (runtime, url)
}

/// Runs tests, of which so many have to be passed: those that were skipped, with why.
fn sanity(url: &str, directory: &Path, more: &[&str], passed_min: usize) -> Vec<(String, String)> {
    let mut command = Command::new(cached("csi-sanity-v5.2.0").expect("csi-sanity: scripts/deps.sh test builds it"));
    let path = |name: &str| directory.join(name).display().to_string();
    command.arg(format!("--csi.endpoint={url}")).args(more).arg("--csi.testvolumesize=4194304");
    command.args([format!("--csi.mountdir={}", path("mount")), format!("--csi.stagingdir={}", path("staging"))]);
    command.args(["--ginkgo.no-color".into(), format!("--ginkgo.json-report={}", path("report"))]);
    let (status, stdout, stderr) = finished_within(SANITY_TIME, command);
    assert_eq!(status, 0, "{stdout}\n{stderr}");
    let report = std::fs::read_to_string(path("report")).expect("a report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let specs = report[0]["SpecReports"].as_array().expect("a list").iter();
    let (mut passed, mut skipped) = (0, Vec::new());
    for spec in specs.filter(|spec| spec["LeafNodeType"] == "It") {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match spec["State"].as_str() {
            Some("passed") => passed += 1,
            // Tests that its authors have switched off.
            Some("pending") => {}
            _ => skipped.push((word(&spec["LeafNodeText"]), word(&spec["Failure"]["Message"]))),
        }
    }
    assert!(passed >= passed_min, "{passed} passed");
    // Without a word: what was not asked for.
    skipped.retain(|(_, why)| more.is_empty() || !why.is_empty());
    skipped
}

#[test]
fn csi_sanity_finds_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let nodes: Vec<Server> =
        ["a", "b", "c"].iter().map(|name| node_of("4GiB", directory.path(), name, "127.0.0.1:0")).collect();
    let control = Control::start(directory.path());
    control.register(&[("a", &nodes[0]), ("b", &nodes[1]), ("c", &nodes[2])]);
    control.done("tenant", &["a"]);
    let (_serving, url) = driver(&control, directory.path());
    let mut skipped = BTreeSet::new();
    // All of them, and once more those to which a block device is something else.
    let block = ["--csi.testvolumeaccesstype=block", "--ginkgo.focus=Node Service"];
    for (more, passed_min) in [(&[][..], 41), (&block[..], 15)] {
        skipped.extend(sanity(&url, directory.path(), more, passed_min));
        assert_eq!(control.promised(), [0, 0, 0], "volumes are left behind");
        assert_eq!(std::fs::read_dir(directory.path().join("state")).expect("read").count(), 0, "the node has volumes");
    }
    for (test, why) in skipped {
        assert!(NOT_OFFERED.contains(&why.as_str()), "{test} was skipped: {why:?}");
    }
}

#[test]
fn the_driver_says_what_it_lacks() {
    let directory = tempfile::tempdir().expect("a directory");
    let [endpoint, state] = ["csi.sock", "state"].map(|name| directory.path().join(name).display().to_string());
    let endpoint = format!("--endpoint=unix://{endpoint}");
    let state = format!("--state-dir={state}");
    let refused = |arguments: &[&str], why: &str| {
        let (status, _, stderr) = run(&[&["csi"][..], arguments].concat());
        assert!(status == 2 && stderr.contains(why), "{arguments:?}: {status} {stderr}");
    };
    refused(&[], "--endpoint");
    refused(&[&endpoint, "--node-id=a"], "--state-dir");
    refused(&[&endpoint, "--mode=controller"], "--token-file");
    refused(&[&endpoint, "--mode=nothing"], "controller");
    let token = directory.path().join("token").display().to_string();
    std::fs::write(&token, "yagura_0_0").expect("written");
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("private");
    let token = format!("--token-file={token}");
    refused(&[&endpoint, "--node-id=a", &state, &token], "--host-nqn");
    let controller = Server::start(&["csi", &endpoint, "--mode=controller", &token]);
    assert_eq!(controller.ready["driver"], "csi.yagura.io");
    let (status, _, stderr) = run(&["csi", &endpoint, "--mode=controller", &token]);
    assert!(status == 4 && stderr.contains("another process"), "{status} {stderr}");
    assert_eq!(controller.stop("TERM"), 0);
    assert!(!directory.path().join("csi.sock").exists(), "the socket is left behind");
}
