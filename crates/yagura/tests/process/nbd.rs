//! A volume over NBD, by clients of others: libnbd's and QEMU's.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tls::AskingContext;

use crate::membership::address;
use crate::support::{Server, certificate, finished, run};
use crate::volume::{done, made, three};

fn attach(holders: &[String], more: &[&str]) -> Server {
    let mut arguments = vec!["volume", "attach", "--listen=127.0.0.1:0", "--give-up-after=200"];
    arguments.extend(holders.iter().map(String::as_str));
    arguments.extend(more);
    Server::start(&arguments)
}

fn uri(served: &Server) -> String {
    served.ready["nbd"].as_str().expect("a URI").to_owned()
}

fn client(program: &str, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(program);
    command.args(arguments);
    finished(command)
}

/// As long as the volume, and nowhere like itself.
fn image(path: &Path) -> Vec<u8> {
    let bytes: Vec<u8> =
        (0..2u64 << 20).flat_map(|word| (word as u32).wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    std::fs::write(path, &bytes).expect("written");
    bytes
}

#[test]
fn what_others_write_is_mirrored_over_the_loss_of_a_node() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut nodes, holders) = three(directory.path());
    made(&holders);
    let file = |name: &str| directory.path().join(name).display().to_string();
    let (before, after) = (file("before"), file("after"));
    let bytes = image(Path::new(&before));
    let socket = file("socket");
    let served = attach(&holders, &["--nbd", &format!("unix:{socket}")]);
    let uri = uri(&served);

    let told = done(client("nbdinfo", &["--json", &uri]));
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let export = &told["exports"][0];
    assert_eq!((&export["export-size"], &export["is_read_only"]), (&(8 << 20).into(), &false.into()), "{told}");
    for can in ["can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn"] {
        assert_eq!(export[can], true, "{can}: {told}");
    }
    done(client("nbdcopy", &["--flush", &before, &uri]));
    drop(nodes.pop());
    done(client("nbdcopy", &[&uri, &after]));
    assert!(std::fs::read(&after).expect("read") == bytes, "nbdcopy reads what it wrote");

    // QEMU: ranges that are no blocks of ours, zeroes, holes, and both images compared by it.
    let io = ["-f", "raw", "-c", "write -P 7 1000 100", "-c", "write -z 8192 8192", "-c", "discard 65536 65536"];
    let io = [&io[..], &["-c", "read -P 7 1000 100", "-c", "read -P 0 8192 8192", "-c", "flush", &uri]].concat();
    let said = done(client("qemu-io", &io));
    assert!(!said.contains("failed"), "{said}");
    done(client("qemu-img", &["convert", "-f", "raw", "-O", "raw", "-n", &before, &uri]));
    done(client("qemu-img", &["compare", "-f", "raw", "-F", "raw", &before, &uri]));

    // Over NVMe it is the same volume; what is detached is whole, and its socket is gone.
    let (at, file) = (address(&served), file("nvme"));
    done(run(&["nvme", "read", &at, "--length=8MiB", "--file", &file]));
    assert!(std::fs::read(&file).expect("read") == bytes, "both ways lead to one volume");
    assert_eq!(served.stop("TERM"), 0);
    assert!(!Path::new(&socket).exists());
}

#[test]
fn over_tls_who_shows_a_certificate_is_let_in() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_nodes, holders) = three(directory.path());
    made(&holders);
    let [cert, key] = certificate(directory.path());
    let flags = ["--nbd-tls-cert", &cert, "--nbd-tls-key", &key, "--nbd-tls-ca", &cert];
    let served = attach(&holders, &[&["--nbd", "127.0.0.1:0"][..], &flags].concat());
    let uri = uri(&served);
    assert!(uri.starts_with("nbds://"), "{uri}");
    let shown = directory.path().join("shown");
    std::fs::create_dir(&shown).expect("a directory");
    std::fs::copy(&cert, shown.join("ca-cert.pem")).expect("copied");
    let with = format!("{uri}?tls-certificates={}", shown.display());
    assert_ne!(client("nbdinfo", &["--size", &with]).0, 0, "a client that shows nothing");
    assert_ne!(client("nbdinfo", &["--size", &uri.replace("nbds", "nbd")]).0, 0, "a client without TLS");
    for (from, to) in [(&cert, "client-cert.pem"), (&key, "client-key.pem")] {
        std::fs::copy(from, shown.join(to)).expect("copied");
    }
    assert_eq!(done(client("nbdinfo", &["--size", &with])).trim(), (8 << 20).to_string());

    // Before TLS nothing is told, and what stood before its first byte ends the connection: it could be anybody's.
    let at = uri.trim_start_matches("nbds://").trim_end_matches('/');
    let said = |options: &[u8]| {
        let mut stream = TcpStream::connect(at).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a bound");
        stream.write_all(&[&[0, 0, 0, 3], options].concat()).expect("sent");
        let (mut all, mut piece) = (Vec::new(), [0; 256]);
        while let Ok(count @ 1..) = stream.read(&mut piece) {
            all.extend_from_slice(&piece[..count]);
        }
        all[18..].to_vec()
    };
    let (list, abort) = (b"IHAVEOPT\0\0\0\x03\0\0\0\0", b"IHAVEOPT\0\0\0\x02\0\0\0\0");
    assert_eq!(said(&[&list[..], abort].concat())[8..16], [0, 0, 0, 3, 0x80, 0, 0, 5], "TLS is required");
    let mut stream = TcpStream::connect(at).expect("connected");
    stream.write_all(&[&[0, 0, 0, 3][..], b"IHAVEOPT\0\0\0\x05\0\0\0\0", list].concat()).expect("sent");
    stream.read_exact(&mut [0; 18 + 20]).expect("greeted, and TLS acknowledged");
    let own = Some((Path::new(&cert), Path::new(&key)));
    let asking = AskingContext::new(Some(Path::new(&cert)), own).expect("certificates");
    assert!(asking.connect(stream, "127.0.0.1").is_err(), "TLS begins behind bytes that could be anybody's");

    // What would let strangers in is refused.
    let attach = |more: &[&str]| {
        let holders = holders.iter().map(String::as_str);
        run(&[&["volume", "attach"][..], &holders.collect::<Vec<_>>(), more].concat())
    };
    let (status, _, stderr) = attach(&["--nbd", "0.0.0.0:0"]);
    assert!(status == 2 && stderr.contains("--nbd-tls-ca"), "{status} {stderr}");
    let (status, _, stderr) = attach(&["--nbd", "0.0.0.0:0", "--nbd-tls-cert", &cert, "--nbd-tls-key", &key]);
    assert!(status == 2 && stderr.contains("--nbd-tls-ca"), "{status} {stderr}");
    let (status, _, stderr) = attach(&[&["--nbd", "unix:/tmp/a"][..], &flags].concat());
    assert!(status == 2 && stderr.contains("no TLS"), "{status} {stderr}");
    let (status, _, stderr) = attach(&["--nbd", "here"]);
    assert!(status == 2 && stderr.contains("unix:"), "{status} {stderr}");
}
