//! The I/O engine for fio: built against the headers of Debian's fio and loaded by it, on a namespace and on a volume in memory.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use client::testing::MemoryNamespaces;

/// Where `scripts/deps.sh test` puts the source tree of the fio that is installed.
fn tree() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("a home")).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
    let version = Command::new("fio").arg("--version").output().expect("fio: scripts/deps.sh test installs it");
    cache.join("yagura").join(String::from_utf8_lossy(&version.stdout).trim())
}

/// Builds the engine into `folder`.
fn build(folder: &Path) -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a file");
    let library = test.parent().expect("it lies in a folder").join("libyagura.so");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/fio-engine.sh");
    let output = Command::new(script).args([&tree(), &library]).arg(folder).output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/deps.sh test gets fio's headers: {said}");
    folder.join("libyagura_fio.so")
}

fn fio(engine: &Path, device: &str, arguments: &[&str]) -> Output {
    let mut fio = Command::new("timeout");
    fio.args(["60", "fio", "--name=test"]).arg(format!("--ioengine=external:{}", engine.display()));
    // What fio keeps of a verification goes where the engine is.
    let device = Some(format!("--device={device}")).filter(|_| !device.is_empty());
    fio.args(device).args(arguments).current_dir(engine.parent().expect("a folder"));
    fio.output().expect("fio: scripts/deps.sh test installs it")
}

/// Runs that have to succeed.
fn runs(engine: &Path, device: &str, arguments: &[&str]) {
    let output = fio(engine, device, arguments);
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{device}: {arguments:?}: {}", String::from_utf8_lossy(&said));
}

#[test]
fn fio_uses_a_namespace_and_a_volume() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = build(folder.path());
    let (blank, holders) = (MemoryNamespaces::blank(1), MemoryNamespaces::volume());
    let (blank, holders) = (blank.expect("a target in memory"), holders.expect("a volume in memory"));
    let namespace = format!("namespace {}", blank.addresses()[0]);
    let volume = format!("volume {}", holders.addresses().join(" "));
    let verify = ["--bs=4k", "--iodepth=32", "--size=8m", "--verify=crc32c", "--verify_fatal=1"];
    for device in [&namespace, &volume] {
        runs(&engine, device, &[&verify[..], &["--rw=randwrite"]].concat());
        // What is there is what was written, to the next process, too.
        runs(&engine, device, &[&verify[..], &["--rw=randread", "--verify_only=1"]].concat());
        let jobs = ["--rw=randrw", "--bs=4k-64k", "--bsrange=4k-64k", "--iodepth=8", "--numjobs=3", "--size=8m"];
        runs(&engine, device, &[&jobs[..], &["--offset_increment=8m", "--fsync=16", "--sync=1"]].concat());
        runs(&engine, device, &["--rw=randtrim", "--bs=64k", "--iodepth=4", "--size=8m"]);
        // What was discarded does not verify: a check that can't fail would show nothing.
        let gone = fio(&engine, device, &[&verify[..], &["--rw=read", "--verify_only=1"]].concat());
        assert!(!gone.status.success(), "{device}: {}", String::from_utf8_lossy(&gone.stdout));
    }
}

#[test]
fn what_fio_can_not_do_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = build(folder.path());
    let blank = MemoryNamespaces::blank(1).expect("a target in memory");
    let namespace = format!("namespace {}", blank.addresses()[0]);
    let cases = [
        ("", "--bs=4k", "no device"),
        ("namespace 127.0.0.1:1", "--bs=4k", "refused"),
        (namespace.as_str(), "--bs=8m", "at most 1048576 bytes"),
        (namespace.as_str(), "--settings=no-such=1", "there is no option `no-such`"),
        (namespace.as_str(), "--settings=host-nqn", "write NAME=VALUE"),
    ];
    for (device, argument, sentence) in cases {
        let output = fio(&engine, device, &["--rw=read", "--size=8m", argument]);
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!output.status.success() && said.contains(sentence), "`{device}` {argument}: {said}");
    }
}
