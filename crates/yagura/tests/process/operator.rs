//! What an operator sees of a gateway: whether it is ready, what its pool is like; and that floods of connections do not keep it
//! from its members.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::nodes::{create, three};
use crate::support::{PATIENCE, Redis, Reply, Server, certificate, http_get, http_status, pool_of, run};

/// Waits for what `look` sees at last.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The value of a metric.
fn metric(address: SocketAddr, name: &str) -> f64 {
    let text = http_get(address, "/metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Each command took ten seconds although both losses were known at once, said that none had answered, and the probe said "ok".
#[test]
fn without_a_majority_a_gateway_says_so_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut nodes = three(directory.path(), "32MiB");
    let pool = create(&nodes, &[]);
    let gateway = Server::start(&["gateway", &pool, "--listen=127.0.0.1:0", "--metrics=127.0.0.1:0", "--reactors=2"]);
    let metrics = gateway.address("metrics");
    assert_eq!(http_get(metrics, "/healthz"), "ok\n");
    let mut redis = [(); 2].map(|()| Redis::connect(gateway.address("listening")));
    redis[0].set("k", b"v");
    wait_for("all vote", || (metric(metrics, "yagura_pool_members_voting") == 3.0).then_some(()));
    wait_for("a sample", || {
        http_get(metrics, "/metrics").contains("yagura_pool_member_heap_bytes{member=\"2\"}").then_some(())
    });
    assert_eq!(metric(metrics, "yagura_pool_change_in_progress"), 0.0);
    nodes.truncate(1);
    let reason = wait_for("it is not ready", || {
        let (status, body) = http_status(metrics, "/healthz", "");
        (status == 503).then_some(body)
    });
    assert!(
        reason.starts_with("not ready: unavailable: 1 of 3 voting members are connected, 2 are needed"),
        "{reason}"
    );
    assert_eq!((metric(metrics, "yagura_pool_members_connected"), metric(metrics, "yagura_pool_ready")), (1.0, 0.0));
    for redis in &mut redis {
        for command in [&[&b"SET"[..], b"k", b"w"][..], &[b"GET", b"k"], &[b"INCR", b"n"], &[b"DEL", b"k"]] {
            let Reply::Error(text) = redis.call(command) else { panic!("{command:?} was answered") };
            assert!(text.starts_with("TRYAGAIN unavailable: 1 of 3 ") && text.contains("not connected"), "{text}");
        }
    }
    // Beside a busy machine, too: together they took a minute and more.
    let begun = Instant::now();
    for _ in 0..10 {
        assert!(matches!(redis[0].call(&[b"GET", b"k"]), Reply::Error(_)));
    }
    assert!(begun.elapsed() < Duration::from_secs(50), "ten commands took {:?}", begun.elapsed());
}

/// What `promtool check metrics` finds fault with.
fn faults(text: &str) -> Vec<String> {
    let (mut kinds, mut helped, mut faults) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            if help.is_empty() || helped.insert(name, help).is_some() {
                faults.push(format!("{line}: no help, or a second one"));
            }
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            if kinds.insert(name, kind).is_some() || (kind == "counter") != name.ends_with("_total") {
                faults.push(format!("{line}: a counter's name, and no other, ends in _total; once"));
            }
        } else if line.starts_with('#') {
            faults.push(format!("{line}: is not plain text"));
        } else {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let family = of_histogram.filter(|family| kinds.get(family) == Some(&"histogram")).unwrap_or(name);
            let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
            if !helped.contains_key(family) || !kinds.contains_key(family) || value.is_none() {
                faults.push(format!("{line}: no help, no type or no value"));
            }
        }
    }
    faults
}

#[test]
fn every_metric_has_help_in_the_format_that_was_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = format!("--data={}", directory.path().display());
    let metrics = "--metrics=127.0.0.1:0";
    let servers = [
        Server::start(&["up", &data, "--listen=127.0.0.1:0", "--size=32MiB", metrics]),
        Server::start(&["target", "--listen=127.0.0.1:0", "--namespace=memory=16M", metrics]),
        Server::start(&["cache", "serve", "-p", "0", "-m", "64", metrics]),
    ];
    for server in &servers {
        let (status, plain) = http_status(server.address("metrics"), "/metrics", "Accept: text/plain\r\n");
        assert!(status == 200 && plain.lines().count() > 20, "{plain}");
        assert_eq!(faults(&plain), Vec::<String>::new());
        let (_, open) = http_status(
            server.address("metrics"),
            "/metrics",
            "Accept: application/openmetrics-text; version=1.0.0\r\n",
        );
        assert!(open.ends_with("# EOF\n"), "{open}");
    }
}

/// Over its limit it answered in plain text what speaks TLS alone.
#[test]
fn a_tls_port_over_its_limit_says_nothing_in_plain_text() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = format!("--data={}", directory.path().display());
    let up = Server::start(&["up", &data, "--listen=127.0.0.1:0", "--size=32MiB"]);
    let [cert, key] = certificate(directory.path());
    let [chain, private] = [format!("--tls-cert={cert}"), format!("--tls-key={key}")];
    let pool = pool_of(&up);
    let arguments = ["gateway", &pool, "--listen=127.0.0.1:0", &chain, &private];
    let gateway = Server::start(&[&arguments[..], &["--connections-max=1"]].concat());
    let connect = || {
        let stream = TcpStream::connect_timeout(&gateway.address("listening"), PATIENCE).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream
    };
    let (_first, mut second) = (connect(), connect());
    let mut told = Vec::new();
    // It may be reset.
    let _ = second.read_to_end(&mut told);
    assert_eq!(String::from_utf8_lossy(&told), "");
    // A key that others may read is refused, as a password is.
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("changed");
    let (status, _, stderr) = run(&arguments);
    assert!(status == 4 && stderr.contains("chmod 600"), "{status}: {stderr}");
}

/// With 400 silent connections at a limit of 300 descriptors a member that was started anew was never reached again.
#[test]
fn a_flood_of_connections_does_not_keep_a_gateway_from_its_members() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut nodes = three(directory.path(), "32MiB");
    let pool = create(&nodes, &[]);
    let gateway = {
        let arguments = ["gateway", &pool, "--listen=127.0.0.1:0", "--metrics=127.0.0.1:0", "--reactors=1", "--json"];
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 300; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_yagura")]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        Server::of(command)
    };
    let mut known = Redis::connect(gateway.address("listening"));
    known.set("k", b"v");
    let connect = |address: SocketAddr| TcpStream::connect_timeout(&address, PATIENCE).expect("connected");
    let _silent: Vec<TcpStream> = (0..400).map(|_| connect(gateway.address("listening"))).collect();
    let _at_metrics: Vec<TcpStream> = (0..100).map(|_| connect(gateway.address("metrics"))).collect();
    let voting = || metric(gateway.address("metrics"), "yagura_pool_members_connected");
    wait_for("all are connected", || (voting() == 3.0).then_some(()));
    // Two of three, one after the other: without those who came back there would be no majority.
    for index in [1, 2] {
        let address = nodes[index].address("listening");
        let name = ["a", "b", "c"][index];
        let namespace = format!("--namespace=file={}", directory.path().join(name).display());
        assert_eq!(nodes.remove(index).stop("TERM"), 0);
        let nqn = format!("--nqn=nqn.2026-11.io.yagura:test-{name}");
        nodes.insert(index, Server::start(&["target", &format!("--listen={address}"), &nqn, &namespace]));
        wait_for("the member is reached again", || (voting() == 3.0).then_some(()));
        known.set("k", b"w");
    }
}
