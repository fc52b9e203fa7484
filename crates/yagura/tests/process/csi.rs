//! The driver of the Container Storage Interface, judged by csi-sanity: a control plane and three targets as they are, and a
//! machine of which the calls alone count, since not every kernel has NVMe/TCP and not everybody may mount.

use std::collections::{BTreeMap, BTreeSet};
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
const NOT_OFFERED: [&str; 5] = [
    "ControllerPublishVolume not supported",
    "ControllerUnpublishVolume not supported",
    "Controller Publish, UnpublishVolume not supported",
    "ControllerPublishVolume.readonly field not supported",
    "GroupControllerService not supported",
];

/// What csi-sanity is asked for, part by part: a snapshot, and whatever is done to a volume that ever had one, takes eight seconds
/// of waiting for a host that may be there. The last part has to do with block devices, of those tests to which they are something
/// else.
const PARTS: [&[&str]; 6] = [
    &["--ginkgo.focus=ListSnapshots.*next token"],
    &["--ginkgo.focus=ListSnapshots.*specified snapshot id"],
    &["--ginkgo.focus=ListSnapshots", "--ginkgo.skip=next token|specified snapshot id"],
    &[r"--ginkgo.focus=(Create|Delete)Snapshot \[Controller Server\]"],
    &[r"--ginkgo.skip=(List|Create|Delete)Snapshots? \[Controller Server\]"],
    &["--ginkgo.focus=Node Service", "--csi.testvolumeaccesstype=block"],
];
/// Tests that are passed, at least: with a filesystem, and with a block device.
const PASSED_MIN: (usize, usize) = (67, 19);

/// Serves volumes of a tenant until it is dropped.
fn driver(control: &Control, tenant: &str, directory: &Path) -> (tokio::runtime::Runtime, String) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (at, token_file) = (control.url.clone(), control.token.clone().into());
    let access = Access { at, token_file, authorities: None, tenant: Some(tenant.into()) };
    let plane = || Plane::new(&access).expect("a token");
    let node = Node::open(double::Double::default(), &directory.join("state")).expect("opened");
    let topology = [("topology.yagura.io/zone".to_owned(), "a".to_owned())].into();
    let node = NodeService { node: Arc::new(node), plane: plane(), id: "node-1".into(), topology };
    let services = Services::new(Some(Controller::new(plane())), Some(node), true);
    let url = format!("unix://{}", directory.join("csi.sock").display());
    let endpoint = {
        let _entered = runtime.enter();
        Endpoint::bind(&url).expect("bound")
    };
    runtime.spawn(endpoint.serve(services));
    (runtime, url)
}

/// What has come of the tests: the names of those that passed, and why others did not run.
#[derive(Default)]
struct Outcome {
    passed: BTreeSet<String>,
    skipped: BTreeMap<String, String>,
}

/// Runs tests, of which none may fail.
fn sanity(url: &str, directory: &Path, more: &[&str]) -> Outcome {
    let mut command = Command::new(cached("csi-sanity-v5.2.0").expect("csi-sanity: scripts/deps.sh test builds it"));
    let path = |name: &str| directory.join(name).display().to_string();
    command.arg(format!("--csi.endpoint={url}")).args(more);
    command.args(["--csi.testvolumesize=4194304", "--csi.testvolumeexpandsize=8388608"]);
    command.args([format!("--csi.mountdir={}", path("mount")), format!("--csi.stagingdir={}", path("staging"))]);
    command.args(["--ginkgo.no-color".into(), format!("--ginkgo.json-report={}", path("report"))]);
    // It waits a minute for its connection to become ready, and in vain if that is ready before it has begun to wait: with one
    // thread it begins first.
    command.env("GOMAXPROCS", "1");
    let (status, stdout, stderr) = finished_within(SANITY_TIME, command);
    assert_eq!(status, 0, "{stdout}\n{stderr}");
    let report = std::fs::read_to_string(path("report")).expect("a report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let mut outcome = Outcome::default();
    let specs = report[0]["SpecReports"].as_array().expect("a list").iter();
    for spec in specs.filter(|spec| spec["LeafNodeType"] == "It") {
        let words = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten().chain([&spec["LeafNodeText"]]);
        let name = words.filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
        match (spec["State"].as_str(), spec["Failure"]["Message"].as_str()) {
            (Some("passed"), _) => drop(outcome.passed.insert(name)),
            // Tests that its authors have switched off, and what was not asked for.
            (Some("pending"), _) | (_, None | Some("")) => {}
            (_, Some(why)) => drop(outcome.skipped.insert(name, why.to_owned())),
        }
    }
    outcome
}

#[test]
fn csi_sanity_finds_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let nodes: Vec<Server> =
        ["a", "b", "c"].iter().map(|name| node_of("4GiB", directory.path(), name, "127.0.0.1:0")).collect();
    let control = Control::start(directory.path());
    control.register(&[("a", &nodes[0]), ("b", &nodes[1]), ("c", &nodes[2])]);
    let part = &|index: usize| {
        let tenant = format!("tenant-{index}");
        let own = directory.path().join(&tenant);
        std::fs::create_dir(&own).expect("made");
        control.done("tenant", &[&tenant]);
        let (_serving, url) = driver(&control, &tenant, &own);
        let outcome = sanity(&url, &own, PARTS[index]);
        assert_eq!(std::fs::read_dir(own.join("state")).expect("read").count(), 0, "the node has volumes");
        outcome
    };
    let mut outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..PARTS.len()).map(|index| scope.spawn(move || part(index))).collect();
        parts.into_iter().map(|part| part.join().expect("a part")).collect()
    });
    assert_eq!(control.promised(), [0, 0, 0], "volumes are left behind");
    let block = outcomes.pop().expect("the last part");
    let passed: BTreeSet<_> = outcomes.iter().flat_map(|outcome| &outcome.passed).collect();
    let counts = (passed.len(), block.passed.len());
    assert!(counts.0 >= PASSED_MIN.0 && counts.1 >= PASSED_MIN.1, "{counts:?} passed: {passed:?}");
    for (test, why) in outcomes.iter().chain([&block]).flat_map(|outcome| &outcome.skipped) {
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
