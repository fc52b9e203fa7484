//! The dashboard in `deploy/grafana` asks for figures that processes serve.

use std::collections::BTreeSet;

use crate::control::{Control, HOST, node_of};
use crate::support::{Server, http_get, http_status};

/// Names of figures in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("yagura_")).collect()
}

#[test]
fn the_dashboard_asks_for_what_is_served() {
    let dashboard: serde_json::Value =
        serde_json::from_str(include_str!("../../../../deploy/grafana/volumes.json")).expect("JSON");
    let directory = tempfile::tempdir().unwrap();
    let node = node_of("96MiB", directory.path(), "n1", "127.0.0.1:0");
    let control = Control::start(directory.path());
    control.register(&[("n1", &node)]);
    control.done("tenant", &["a", "--quota", "64MiB"]);
    control.done("create", &["db", "--size", "8MiB", "--replicas", "1", "--tenant", "a"]);
    let volume = control.attach("db", HOST, &["--metrics=127.0.0.1:0"]);
    let (nqn, medium) = ("--nqn=nqn.2026-11.io.yagura:figures", "--namespace=memory=16MiB");
    let target = Server::start(&["target", "--listen=127.0.0.1:0", nqn, medium, "--metrics=127.0.0.1:0"]);

    let bearer = format!("Authorization: Bearer {}\r\n", std::fs::read_to_string(&control.token).unwrap().trim());
    let at = control.url.trim_start_matches("http://").parse().expect("an address");
    let (status, of_the_control_plane) = http_status(at, "/metrics", &bearer);
    assert_eq!(status, 200, "{of_the_control_plane}");
    let served = [volume, target].map(|server| http_get(server.address("metrics"), "/metrics")).join("\n");
    let served = served + &of_the_control_plane;

    let asked = dashboard.to_string();
    let asked = names(&asked);
    assert!(asked.len() > 20, "{asked:?}");
    let missing: Vec<_> = asked.difference(&names(&served)).copied().collect();
    assert!(missing.is_empty(), "nobody serves {missing:?}");
}
