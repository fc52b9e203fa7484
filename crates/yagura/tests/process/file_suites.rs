//! A mounted file system, judged by the test suites of others.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::file::{Place, can_mount};
use crate::support::finished_within;

/// Of a suite. Chosen: several times what it takes beside other work.
const SUITE_TIME: Duration = Duration::from_secs(240);
/// Tests of pjdfstest that pass, at least. The others want a file system to be mounted read-only, or one that tells the links that
/// a file may have.
const PASSED_MIN: usize = 384;

fn suite(program: &str, arguments: &[&str], within: &Path) -> (i32, String) {
    // Where `scripts/deps.sh test` has installed it, which need not be where commands are looked for.
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"));
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home);
    let installed = cargo.map(|cargo| cargo.join("bin").join(program)).filter(|installed| installed.exists());
    let mut command = Command::new(installed.unwrap_or_else(|| program.into()));
    command.args(arguments).current_dir(within);
    let (status, said, error) = finished_within(SUITE_TIME, command);
    (status, said + &error)
}

/// What each system call of names and attributes does, by each kind of file, and whom it refuses.
#[test]
fn pjdfstest_passes() {
    if !can_mount() {
        return;
    }
    let place = Place::new(3);
    let mounted = place.mount_with("a", &["--allow-other"]);
    let config = place.directory.path().join("pjdfstest.toml");
    // Users that are on every machine. Names of another file system are for what refuses to cross over.
    let users = r#"[["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]"#;
    let features = "posix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n";
    let settings = "[settings]\nnaptime = 0.002\nallow_remount = false\n";
    std::fs::write(&config, format!("[features]\n{features}{settings}[dummy_auth]\nentries = {users}\n"))
        .expect("written");
    // Other users go through the folders above.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.directory.path(), open).expect("open to others");
    let (config, at) = (config.display().to_string(), mounted.at.display().to_string());
    let flags = ["-c", &config, "-p", &at, "-s", "/dev/shm"];
    let (status, said) = suite("pjdfstest", &flags, place.directory.path());
    let passed = said.lines().filter(|line| line.ends_with(" ok")).count();
    assert!(status == 0 && passed >= PASSED_MIN, "{passed} passed: {said}");
    assert_eq!(mounted.unmount(), 0);
}

/// One file written, read, mapped, cut, punched and copied within at random, each byte compared.
#[test]
fn fsx_finds_every_byte() {
    if !can_mount() {
        return;
    }
    let place = Place::new(3);
    let mounted = place.mount("a");
    let config = place.directory.path().join("fsx.toml");
    let sizes = "flen = 1048576\n[opsize]\nmax = 131072\nmin = 0\nalign = 1\n";
    let weights = "[weights]\nclose_open = 1.0\ninvalidate = 1.0\ntruncate = 1.0\nfsync = 0.5\nfdatasync = 0.5\npunch_hole = 1.0\n\
                   sendfile = 1.0\nposix_fadvise = 1.0\ncopy_file_range = 1.0\nread = 10.0\nwrite = 10.0\nmapread = 5.0\nmapwrite = 5.0\n";
    std::fs::write(&config, format!("{sizes}{weights}")).expect("written");
    let (config, file) = (config.display().to_string(), mounted.path("file").display().to_string());
    for seed in ["1", "2"] {
        let flags = ["-f", &config, "-N", "1500", "-S", seed, &file];
        let (status, said) = suite("fsx", &flags, place.directory.path());
        assert_eq!(status, 0, "seed {seed}: {said}");
    }
    assert_eq!(mounted.unmount(), 0);
}
