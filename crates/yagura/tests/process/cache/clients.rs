//! Clients that people use: libmemcached's tools, pymemcache, pylibmc; and TLS that is not ours.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use super::{Text, serve};
use crate::support::{Server, certificate, clients_python, finished, run, strangers};

#[test]
fn client_libraries_find_what_they_are_used_to() {
    let python = clients_python().expect("the clients' environment; make it with: scripts/deps.sh test");
    let server = serve(&[]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/process/cache/client.py");
    let mut command = Command::new(python);
    command.args([script, &server.address("listening").port().to_string()]).stdin(Stdio::null());
    let (status, stdout, stderr) = finished(command);
    assert_eq!((status, stdout.as_str()), (0, "done\n"), "{stderr}");
}

/// libmemcached's own test of a server, text and binary.
#[test]
fn memccapable_passes_as_with_memcached() {
    let server = serve(&[]);
    let port = server.address("listening").port().to_string();
    for protocol in ["-a", "-b"] {
        let mut command = Command::new("memccapable");
        command.args(["-h", "127.0.0.1", "-p", &port, protocol]).stdin(Stdio::null());
        let (status, stdout, stderr) = finished(command);
        assert_eq!(status, 0, "{protocol}: {stdout}\n{stderr}");
        assert!(stdout.contains("All tests passed"), "{protocol}: {stdout}\n{stderr}");
    }
}

#[test]
fn libmemcached_tools_store_and_find() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("item");
    std::fs::write(&file, "content").expect("written");
    let server = serve(&[]);
    let servers = format!("--servers={}", server.address("listening"));
    let tool = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(name);
        command.arg(&servers).args(arguments).stdin(Stdio::null());
        finished(command)
    };
    assert_eq!(tool("memccp", &[file.to_str().expect("text")]).0, 0);
    assert_eq!(tool("memccat", &["item"]).1.trim_end(), "content");
    assert_eq!(tool("memcexist", &["item"]).0, 0);
    assert_eq!(tool("memcdump", &[]).1.trim_end(), "item");
    assert!(tool("memcstat", &[]).1.contains("curr_items"));
    assert_eq!(tool("memcrm", &["item"]).0, 0);
    assert_ne!(tool("memcexist", &["item"]).0, 0);
    assert_eq!(tool("memcping", &[]).0, 0);
}

/// A client takes the answer for a broken handshake, and whoever listens reads it.
#[test]
fn a_tls_port_over_its_limit_answers_nothing_in_plain_text() {
    let directory = tempfile::tempdir().expect("a directory");
    let [cert, key] = certificate(directory.path());
    let server = serve(&["-t", "1", "-c", "1", "--tls-cert", &cert, "--tls-key", &key]);
    let address = server.address("listening");
    let first = super::Text::connect(address);
    super::Text::connect(address).ends();
    drop(first);
    // Where there is no TLS it is told.
    let server = serve(&["-t", "1", "-c", "1"]);
    let address = server.address("listening");
    let _first = super::Text::connect(address);
    super::Text::connect(address).expect(b"", b"ERROR Too many open connections\r\n");
}

#[test]
fn tls_of_others_is_understood_and_nothing_else_then() {
    let directory = tempfile::tempdir().expect("a directory");
    let [cert, key] = certificate(directory.path());
    let server = serve(&["--tls-cert", &cert, "--tls-key", &key]);
    let address = server.address("listening").to_string();
    let ask = |commands: &str| {
        let mut command = Command::new("sh");
        // The client ends when its input does; the answers come before that.
        let script = "(printf \"$2\"; sleep 1; printf 'quit\\r\\n'; sleep 1) | \
                      openssl s_client -quiet -verify_return_error -CAfile \"$1\" -connect \"$0\"";
        command.args(["-c", script, &address, &cert, commands]).stdin(Stdio::null());
        finished(command)
    };
    let (_, stdout, stderr) = ask("set a 0 0 1\\r\\nx\\r\\nget a\\r\\n");
    assert_eq!(stdout, "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n", "{stderr}");
    let mut plain = super::Text::connect(server.address("listening"));
    plain.send(b"get a\r\n");
    let mut rest = Vec::new();
    // A reset counts as an end.
    drop(std::io::Read::read_to_end(plain.reader.get_mut(), &mut rest));
    assert!(!String::from_utf8_lossy(&rest).contains("VALUE"), "{rest:?}");
    let (_, stdout, stderr) = ask("stats settings\\r\\nstats\\r\\n");
    let files = [("ssl_chain_cert", &cert[..]), ("ssl_key", &key), ("ssl_ca_cert", "NULL"), ("ssl_verify_mode", "0")];
    let told = files.into_iter().chain([("ssl_min_version", "tlsv1.3"), ("ssl_handshake_errors", "1")]);
    assert!(stdout.contains("STAT time_since_server_cert_refresh "), "{stdout}");
    for (name, value) in told {
        assert!(stdout.contains(&format!("STAT {name} {value}\r\n")), "no {name} {value} in\n{stdout}\n{stderr}");
    }
}

/// Forty silent connections had all forty places, and when they were ended after ten seconds forty others had them.
#[test]
fn who_says_nothing_leaves_places_to_other_addresses() {
    let directory = tempfile::tempdir().expect("a directory");
    let users = directory.path().join("users");
    std::fs::write(&users, "ann:secret\n").expect("written");
    std::fs::set_permissions(&users, std::fs::Permissions::from_mode(0o600)).expect("set");
    let server = serve(&["-c", "40", "-Y", users.to_str().expect("text")]);
    let address = server.address("listening");
    let _silent = strangers(address, 40, Some("ERROR Too many open connections\r\n"));
    // More than may be unauthenticated at a time: who has said who it is counts no longer.
    let mut clients: Vec<_> = (0..20)
        .map(|_| {
            let mut client = Text::connect(address);
            client.expect(b"set a 0 0 10\r\nann secret\r\n", b"STORED\r\n");
            client
        })
        .collect();
    let refused = clients[19].figure("rejected_unauthenticated");
    assert!(refused > 0 && refused == clients[0].figure("rejected_connections"), "{refused}");

    // The same before a handshake.
    let [cert, key] = certificate(directory.path());
    let server = serve(&["-c", "40", "--tls-cert", &cert, "--tls-key", &key]);
    let address = server.address("listening");
    let _silent = strangers(address, 40, None);
    let (status, stdout, stderr) = run(&["cache", "stats", &address.to_string(), "--tls", "--tls-ca", &cert]);
    assert!(status == 0 && !stdout.contains("rejected_unauthenticated 0"), "{stdout} {stderr}");

    // Where nobody is asked one address has them all.
    let server = serve(&["-c", "40"]);
    let address = server.address("listening");
    let mut all: Vec<_> = (0..40).map(|_| Text::connect(address)).collect();
    all.iter_mut().for_each(|client| client.expect(b"get a\r\n", b"END\r\n"));
    Text::connect(address).expect(b"", b"ERROR Too many open connections\r\n");
}

/// As many clients were let in as were asked for, until there were no descriptors: nobody was accepted then, nor told.
#[test]
fn a_cache_lets_in_no_more_clients_than_it_has_descriptors_for() {
    let mut command = Command::new("sh");
    let serve = "ulimit -n 160; exec \"$0\" cache serve -p 0 -t 1 -c 1024 --json";
    command.args(["-c", serve, env!("CARGO_BIN_EXE_yagura")]).stdin(Stdio::null()).stdout(Stdio::piped());
    let server = Server::of(command);
    let address = server.address("listening");
    let mut first = Text::connect(address);
    let most = first.figure("max_connections") as usize;
    assert!((32..128).contains(&most), "{most}");
    let mut others: Vec<_> = (1..most).map(|_| Text::connect(address)).collect();
    others.iter_mut().for_each(|client| client.expect(b"get a\r\n", b"END\r\n"));
    Text::connect(address).expect(b"", b"ERROR Too many open connections\r\n");
    assert_eq!((first.figure("rejected_connections"), first.figure("listen_disabled_num")), (1, 0));
}
