//! SASL in the binary protocol, beside memcached over libsasl2 with users in a file of its own.

use std::fs::{Permissions, set_permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use cache::session::{Authentication, Protocols, Rules, Users};
use cache::testing::{PlainSlots, ready};

use super::binary::{compare, request};
use super::memcached::{Memcached, Pair};

/// Makes memcached's users known to libsasl2. A name stands there in the realm of this host, as memcached looks for it.
fn configure(folder: &Path, users: &[(&str, &str)]) {
    let file = folder.join("users");
    for (name, password) in users {
        let mut command = Command::new("saslpasswd2");
        command.args(["-p", "-c", "-f"]).arg(&file).arg(name).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!(
                "saslpasswd2 cannot be started ({error}): run `scripts/deps.sh test`, or `apt-get install sasl2-bin`"
            )
        });
        child.stdin.take().expect("piped").write_all(password.as_bytes()).expect("it reads its password");
        assert!(child.wait().expect("it is our child").success());
    }
    let file = file.display();
    let text = format!("mech_list: PLAIN\npwcheck_method: auxprop\nauxprop_plugin: sasldb\nsasldb_path: {file}\n");
    std::fs::write(folder.join("memcached.conf"), text).expect("a folder of ours");
    // memcached reads them as nobody.
    set_permissions(folder, Permissions::from_mode(0o755)).expect("ours");
    set_permissions(folder.join("users"), Permissions::from_mode(0o644)).expect("ours");
}

const RIGHT: &[u8] = b"\0user\0pass";
const WRONG: &[u8] = b"\0user\0no";

fn step(text: &[u8]) -> Vec<u8> {
    request(0x22, b"", b"PLAIN", text, 0)
}

fn auth(mechanism: &[u8], text: &[u8]) -> Vec<u8> {
    request(0x21, b"", mechanism, text, 0)
}

fn cases() -> Vec<Vec<u8>> {
    let right = || auth(b"PLAIN", RIGHT);
    let get = || request(0x00, b"", b"a", b"", 0);
    let set = request(0x01, &[0; 8], b"a", b"value", 0);
    let long = |length: usize| vec![b'x'; length];
    let mut cases = vec![
        [request(0x20, b"", b"", b"", 0), request(0x0b, b"", b"", b"", 0)].concat(),
        [right(), set, get(), right(), get()].concat(),
        [request(0x21, b"1234", b"PLAIN", RIGHT, 0), get()].concat(),
        [request(0x20, b"", b"", b"x", 0), get()].concat(),
        [request(0x20, b"", b"a", b"", 0), get()].concat(),
    ];
    for mechanism in [&b"LOGIN"[..], b"plain", b"Plain", b"PLAIN ", b"PLAIN LOGIN", b"PLAI", b"", b"PLAIN\0"] {
        cases.push([auth(mechanism, RIGHT), get()].concat());
    }
    for length in [31, 32, 33, 200] {
        cases.push([auth(&long(length), RIGHT), get()].concat());
    }
    let texts: [&[u8]; 16] = [
        b"user\0user\0pass",
        b"other\0user\0pass",
        b"someone\0user\0pass",
        b"\0other\0with:a colon",
        b"\0other\0with",
        b"user\0pass",
        b"user pass",
        b"\0user\0",
        b"\0user",
        b"\0\0pass",
        b"\0\0",
        b"\0user\0pass\0",
        b"\0user\0pass\0more",
        b"\0user\0pass ",
        b"\0USER\0pass",
        b"\0user@nowhere\0pass",
    ];
    for text in texts {
        cases.push([auth(b"PLAIN", text), get()].concat());
    }
    for length in [100, 5000, 20_000] {
        cases.push([auth(b"PLAIN", &[b"\0user\0", &long(length)[..]].concat()), get()].concat());
        cases.push([auth(b"PLAIN", &[&long(length)[..], b"\0user\0pass"].concat()), get()].concat());
    }
    for opcode in 0..0x28 {
        cases.push(request(opcode, b"", b"a", b"", 0));
    }
    cases
}

/// Messages one after another: what libsasl2 remembers of those before.
fn sequences() -> Vec<Vec<u8>> {
    let first = [
        auth(b"PLAIN", RIGHT),
        auth(b"PLAIN", WRONG),
        auth(b"PLAIN", b""),
        auth(b"LOGIN", RIGHT),
        step(RIGHT),
        step(WRONG),
        step(b""),
        auth(&[b'x'; 33], RIGHT),
        request(0x20, b"", b"", b"", 0),
    ];
    let get = request(0x00, b"", b"a", b"", 0);
    let mut sequences = Vec::new();
    for one in &first {
        for two in &first {
            sequences.push([&one[..], two, &get].concat());
            for three in &first {
                sequences.push([&one[..], two, three, &auth(b"PLAIN", RIGHT), &get].concat());
            }
        }
    }
    sequences
}

#[test]
fn who_is_let_in_and_what_the_others_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let users = [("user", "pass"), ("other", "with:a colon")];
    configure(folder.path(), &users);
    let text: String = users.iter().map(|(name, password)| format!("{name}:{password}\n")).collect();
    let rules = Rules {
        protocols: Protocols::Binary,
        authentication: Authentication::Sasl(Users::parse(&text).expect("colons")),
        ..Rules::default()
    };
    let memcached = Memcached::start(&["-S"], &[("SASL_CONF_PATH", folder.path())]);
    let cases = cases().into_iter().chain(sequences()).collect();
    ready(compare(&mut Pair::of(memcached, rules, PlainSlots::default()), cases));
}
