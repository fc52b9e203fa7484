//! `yagura cache stats` and `top`, however the server listens; and what statistics and metrics tell.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Text, serve};
use crate::support::{certificate, http_get, run};

/// Runs `cache stats` with these arguments.
fn stats(arguments: &[&str]) -> (i32, String, String) {
    run(&[&["cache", "stats"], arguments].concat())
}

#[track_caller]
fn told(arguments: &[&str], expected: &str) {
    let (status, stdout, stderr) = stats(arguments);
    // Columns are as wide as the longest name.
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(status == 0 && words.contains(expected), "{arguments:?}: {status} {stdout} {stderr}");
}

#[track_caller]
fn refused(arguments: &[&str], with: i32, expected: &str) {
    let (status, _, stderr) = stats(arguments);
    assert!(status == with && stderr.contains(expected), "{arguments:?}: {status} {stderr}");
}

#[test]
fn a_name_and_a_path_are_asked() {
    let server = serve(&["-l", "localhost"]);
    let port = server.address("listening").port().to_string();
    let address = format!("localhost:{port}");
    told(&[&address], "curr_connections");
    // Any free port was asked for.
    let (_, settings, _) = stats(&[&address, "settings", "--json"]);
    let settings: serde_json::Value = serde_json::from_str(&settings).expect("a document");
    assert_eq!(settings["tcpport"], port);
    let (status, stdout, _) = run(&["cache", "top", &address, "-n", "1"]);
    assert!(status == 0 && stdout.contains("gets/s"), "{stdout}");
    refused(&["no..name:1"], 3, "no..name:1");
    refused(&["settings"], 2, "the server comes first");

    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("cache.sock");
    let path = path.to_str().expect("text");
    refused(&[path], 3, "cannot reach");
    let server = serve(&["-s", path]);
    told(&[path, "conns"], &format!("unix:{path}"));
    let (status, stdout, _) = run(&["cache", "top", path, "-n", "1", "--json"]);
    assert!(status == 0 && stdout.contains("per_second"), "{stdout}");
    refused(&[path, "--tls"], 2, "--tls goes with a host");
    assert_eq!(server.stop("TERM"), 0);
}

#[test]
fn names_may_have_several_words_and_are_one_line() {
    let server = serve(&[]);
    let address = &server.address("listening").to_string();
    told(&[address, "detail", "on"], "");
    Text::connect(server.address("listening")).expect(b"set p:a 0 0 1\r\nx\r\n", b"STORED\r\n");
    told(&[address, "cachedump", "1", "0"], "p:a [1 b; 0 s]");
    told(&[address, "detail", "dump"], "p get 0 hit 0 set 1 del 0");
    refused(&[address, "detail", "x"], 4, "usage: stats detail on|off|dump`\n");
    refused(&[address, "nonsense"], 4, "there are no statistics of that name");
    for name in ["a\r\nflush_all", "a\n", ""] {
        refused(&[address, name], 2, "no line ends");
    }
    told(&[address, "reset"], "");
    told(&[address, "items"], "items:1:number 1");
}

/// A file of that text and mode.
fn file(directory: &Path, name: &str, text: &str, mode: u32) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
    path.display().to_string()
}

#[test]
fn passwords_and_tls_are_served_and_said_where_they_are_missing() {
    let directory = tempfile::tempdir().expect("a directory");
    let [cert, key] = certificate(directory.path());
    let file = |name, text, mode| file(directory.path(), name, text, mode);
    let users = file("users", "ann:sec:ret\nbob:other\n", 0o600);
    let (wrong, open) = (file("wrong", "ann:other\n", 0o600), file("open", "ann:secret\n", 0o644));

    let server = serve(&["-Y", &users]);
    let address = &server.address("listening").to_string();
    refused(&[address], 4, "give --auth-file FILE");
    refused(&[address, "--auth-file", &wrong], 4, "does not know the name and the password");
    let mode =
        format!("yagura: --auth-file {open}: its mode 644 lets others than its owner read or change it: chmod 600");
    refused(&[address, "--auth-file", &open], 4, &mode);
    told(&[address, "-Y", &users], "curr_items");
    let (_, _, stderr) = run(&["cache", "serve", "-p", "0", "-Y", &open]);
    assert!(stderr.starts_with(&mode), "{stderr}");

    // Who does not ask for a password is not given one.
    let server = serve(&["--tls-cert", &cert, "--tls-key", &key, "--tls-ca", &cert]);
    let port = server.address("listening").port();
    let address = &format!("127.0.0.1:{port}");
    let trusts = [&address[..], "--tls", "--tls-ca", &cert, "-Y", &users];
    told(&[&trusts[..], &["--tls-cert", &cert, "--tls-key", &key]].concat(), "curr_items 0");
    refused(&trusts, 3, "--tls-cert");
    refused(&[address], 3, "--tls");
    refused(&[address, "--tls"], 4, "--tls-ca says whose certificates");
    refused(&[&trusts[..], &["--tls-name", "other.example"]].concat(), 4, "other.example is not trusted");
    refused(&[address, "--tls-ca", &cert], 2, "--tls");
}

#[test]
fn the_binary_protocol_is_asked_too_with_sasl_where_it_is_wanted() {
    let directory = tempfile::tempdir().expect("a directory");
    let users = file(directory.path(), "users", "ann:sec:ret\nbob:other\n", 0o600);
    let wrong = file(directory.path(), "wrong", "ann:other\n", 0o600);
    let server = serve(&["-S", "-Y", &users]);
    let address = &server.address("listening").to_string();
    refused(&[address, "-Y", &users], 3, "the binary protocol alone (--binary)?");
    refused(&[address, "--binary"], 4, "give --auth-file FILE");
    refused(&[address, "--binary", "-Y", &wrong], 4, "does not know the name and the password");
    let known = [&address[..], "--binary", "-Y", &users];
    told(&known, "curr_items 0");
    told(&[&known[..], &["settings"]].concat(), "binding_protocol");
    told(&[&known[..], &["detail", "on"]].concat(), "");
    told(&[&known[..], &["detail", "dump"]].concat(), "");
    told(&[&known[..], &["reset"]].concat(), "");
    refused(&[&known[..], &["nonsense"]].concat(), 4, "there are no statistics of that name");
    let (status, stdout, stderr) = run(&[&["cache", "top"][..], &known, &["-n", "1"]].concat());
    assert!(status == 0 && stdout.contains("gets/s"), "{stdout} {stderr}");

    // Who does not ask for a password is not given one; who speaks text alone says so.
    let server = serve(&[]);
    told(&[&server.address("listening").to_string(), "--binary", "-Y", &wrong], "curr_items 0");
    let server = serve(&["-Y", &users]);
    refused(&[&server.address("listening").to_string(), "--binary", "-Y", &users], 4, "ask without --binary");
}

#[test]
fn a_server_that_says_nothing_is_said_to() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("bound").to_string();
    refused(&[&address], 3, "gave no answer within 10s");
}

/// Statistics and the metrics that tell the same, where the name is another one.
const METRICS: [(&str, &str); 34] = [
    ("uptime", "start_time_seconds"),
    ("rusage_user", "cpu_seconds_total{mode=\"user\"}"),
    ("rusage_system", "cpu_seconds_total{mode=\"system\"}"),
    ("max_connections", "connections_max"),
    ("curr_connections", "connections"),
    ("total_connections", "connections_accepted_total"),
    ("rejected_connections", "connections_refused_total"),
    ("rejected_unauthenticated", "connections_refused_unauthenticated_total"),
    ("idle_kicks", "connections_idle_total"),
    ("cmd_get", "get_hits_total"),
    ("cmd_set", "sets_total"),
    ("cmd_flush", "flushes_total"),
    ("cmd_touch", "touch_hits_total"),
    ("cmd_meta", "meta_commands_total"),
    ("store_too_large", "too_large_total"),
    ("store_no_memory", "no_memory_total"),
    ("auth_cmds", "authentications_total"),
    ("auth_errors", "authentication_errors_total"),
    ("bytes_read", "received_bytes_total"),
    ("bytes_written", "sent_bytes_total"),
    ("limit_maxbytes", "memory_limit_bytes"),
    ("accepting_conns", "connections_max"),
    ("listen_disabled_num", "accept_pauses_total"),
    ("time_in_listen_disabled_us", "accept_pauses_total"),
    ("hash_bytes", "index_bytes"),
    ("bytes", "item_bytes"),
    ("curr_items", "items"),
    ("total_items", "stored_total"),
    ("memory_held", "memory_held_bytes"),
    ("evictions", "evictions_total{reason=\"no_flash\"}"),
    ("reclaimed", "expired_total"),
    ("log_watchers", "watchers"),
    ("log_watcher_sent", "watcher_lines_total"),
    ("log_watcher_skipped", "watcher_lines_skipped_total"),
];
/// Statistics that are no figures of the server.
const NO_METRIC: [&str; 5] = ["pid", "time", "version", "yagura_version", "pointer_size"];

#[test]
fn metrics_tell_what_statistics_do() {
    let server = serve(&["-m", "64", "--metrics", "127.0.0.1:0"]);
    let mut client = Text::connect(server.address("listening"));
    let commands = "set n 0 0 1\r\n1\r\nincr n 1\r\nincr none 1\r\ndecr n 1\r\ndecr none 1\r\ncas n 0 0 1 999\r\nx\r\n\
                    cas none 0 0 1 1\r\nx\r\ntouch n 0\r\nme n\r\nset e 0 -1 1\r\nx\r\nget e\r\nflush_all\r\nversion\r\n";
    client.ask(commands.as_bytes(), "VERSION");
    for number in 0..2000 {
        client.send(format!("set key{number} 0 0 60000 noreply\r\n{}\r\n", "v".repeat(60_000)).as_bytes());
    }
    let evictions = client.figure("evictions");
    assert!(evictions > 0 && client.figure("evicted_no_flash") == evictions);
    let flushed = client.figure("flushed_items");
    let text = http_get(server.address("metrics"), "/metrics");
    for line in [
        "get_expired_total 1",
        "incr_hits_total 1",
        "incr_misses_total 1",
        "decr_hits_total 1",
        "decr_misses_total 1",
        "cas_badval_total 1",
        "cas_misses_total 1",
        "touch_hits_total 1",
        "meta_commands_total 1",
        "flushes_total 1",
        &format!("flushed_items_total {flushed}"),
        &format!("evictions_total{{reason=\"no_flash\"}} {evictions}"),
        "evictions_total{reason=\"not_admitted\"} 0",
        "connections_accepted_total 1",
        "connections_max 1024",
        "tls_errors_total 0",
        "authentications_total 0",
        "watchers 0",
    ] {
        assert!(text.contains(&format!("yagura_cache_{line}\n")), "{line} is missing in\n{text}");
    }
    for line in client.ask(b"stats\r\n", "END") {
        let Some((name, _)) = line.strip_prefix("STAT ").and_then(|rest| rest.split_once(' ')) else { continue };
        let other = METRICS.iter().find(|(of, _)| *of == name).map(|(_, metric)| (*metric).to_owned());
        let labelled = |prefix, label| name.strip_prefix(prefix).map(|value| format!("{label}=\"{value}\"}}"));
        let is_told = |metric: &str| text.contains(&format!("\nyagura_cache_{metric} "));
        let any = [
            other,
            labelled("memory_", "memory_bytes{kind"),
            labelled("evicted_", "evictions_total{reason"),
            Some(name.to_owned()),
            Some(format!("{name}_total")),
        ];
        let is_told = any.iter().flatten().any(|metric| is_told(metric));
        assert!(is_told || NO_METRIC.contains(&name), "no metric tells {name}:\n{text}");
    }
}
