//! A file system mounted, from outside: programs that people run on it, a member killed, two hosts, and ends of all kinds.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use engine::rng::SplitMix;

use crate::support::{PATIENCE, Server, finished, http_get, make_tree, pool_of, run};
use crate::up::up_with_files;

/// A pool for names, and targets for bytes.
pub struct Place {
    pub directory: tempfile::TempDir,
    pub pool: String,
    pub members: Vec<Server>,
    _up: Server,
}

/// A file system at a directory. Dropped, it is taken away whatever holds it.
pub struct Mounted {
    pub at: PathBuf,
    pub server: Option<Server>,
}

impl Place {
    /// With a file system `tree`.
    pub fn new(members: usize) -> Place {
        Place::with(members, &[])
    }

    fn with(members: usize, more: &[&str]) -> Place {
        Place::of(members, "256MiB", more)
    }

    /// With members of this size.
    pub fn of(members: usize, size: &str, more: &[&str]) -> Place {
        let directory = tempfile::tempdir().expect("a directory");
        let up = up_with_files(&directory.path().join("pool"), &["--no-files"]);
        let target = |index| {
            let nqn = format!("--nqn=nqn.2026-11.io.yagura:bytes-{index}");
            Server::start(&["target", "--listen=127.0.0.1:0", &nqn, &format!("--namespace=memory={size}")])
        };
        let members: Vec<Server> = (0..members).map(target).collect();
        let pool = pool_of(&up);
        let place = Place { directory, pool, members, _up: up };
        let (status, said, error) = place.create("tree", more);
        assert_eq!(status, 0, "{said}{error}");
        place
    }

    fn create(&self, name: &str, more: &[&str]) -> (i32, String, String) {
        let members: Vec<String> =
            self.members.iter().map(|member| format!("--member={}", member.address("listening"))).collect();
        let mut arguments = vec!["file", "create", name, &self.pool];
        arguments.extend(members.iter().map(String::as_str));
        arguments.extend(more);
        run(&arguments)
    }

    pub fn mount(&self, name: &str) -> Mounted {
        self.mount_with(name, &[])
    }

    pub fn mount_with(&self, name: &str, more: &[&str]) -> Mounted {
        let at = self.directory.path().join(name);
        fs::create_dir_all(&at).expect("made");
        let place = at.display().to_string();
        let server = Server::start(&[&["file", "mount", "tree", &place, &self.pool][..], more].concat());
        Mounted { at, server: Some(server) }
    }
}

impl Mounted {
    pub fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    /// Unmounts as a user does: the status of the process that served.
    pub fn unmount(mut self) -> i32 {
        ok("umount", &[self.at.to_str().expect("text")], &self.at.join(".."));
        self.server.take().expect("it serves").wait()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            // A test that failed: whatever still uses it must not hold it.
            let _status = Command::new("umount").arg("-l").arg(&self.at).status();
            drop(server);
        }
    }
}

/// FUSE is there, and this user may mount.
pub fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !can {
        eprintln!("not tried: mounting needs root and /dev/fuse");
    }
    can
}

/// Runs a program that must succeed: what it says.
pub fn ok(program: &str, arguments: &[&str], within: &Path) -> String {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(within);
    let (status, said, error) = finished(command);
    assert_eq!(status, 0, "{program} {arguments:?}: {said}{error}");
    said
}

pub fn drawn(seed: u64, length: usize) -> Vec<u8> {
    let mut random = SplitMix(seed);
    std::iter::repeat_with(|| random.draw() as u8).take(length).collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o7777
}

#[test]
fn a_tree_is_kept_over_a_killed_member_and_a_killed_mount() {
    if !can_mount() {
        return;
    }
    let mut place = Place::new(4);
    let source = place.directory.path().join("source");
    make_tree(&source);
    let mounted = place.mount("one");
    let text = |path: &Path| path.display().to_string();
    ok("cp", &["-a", &text(&source), &text(&mounted.path("kept"))], &source);
    ok("diff", &["-r", &text(&source), &text(&mounted.path("kept"))], &source);

    // One of four members is gone: everything is read, and written.
    drop(place.members.remove(1));
    ok("diff", &["-r", &text(&source), &text(&mounted.path("kept"))], &source);
    ok("cp", &["-a", &text(&source), &text(&mounted.path("short"))], &source);

    // The mount is killed: what was closed is there, for the next one.
    let mut mounted = mounted;
    let server = mounted.server.take().expect("it serves");
    assert_eq!(server.stop("KILL"), -1);
    ok("umount", &["-l", &text(&mounted.at)], &source);
    let again = place.mount("two");
    for name in ["kept", "short"] {
        ok("diff", &["-r", &text(&source), &text(&again.path(name))], &source);
    }
    assert_eq!(again.unmount(), 0);
}

#[test]
fn a_mount_tells_what_it_does() {
    if !can_mount() {
        return;
    }
    let mut place = Place::new(3);
    let mounted = place.mount_with("one", &["--metrics=127.0.0.1:0"]);
    let metrics = mounted.server.as_ref().expect("it serves").address("metrics");
    let wait = |lines: &[&str]| {
        let begun = Instant::now();
        loop {
            let text = http_get(metrics, "/metrics");
            let missing = lines.iter().find(|line| !text.contains(**line));
            let Some(missing) = missing else { return };
            assert!(begun.elapsed() < PATIENCE, "no {missing}: {text}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let file = File::create(mounted.path("a")).expect("made");
    (&file).write_all(&drawn(1, 100_000)).expect("written");
    assert!(fs::metadata(mounted.path("none")).is_err());
    wait(&[
        "yagura_file_written_bytes_total 100000\n",
        "yagura_file_open_files 1\n",
        "yagura_file_members_reachable 3\n",
        "yagura_fuse_request_seconds_count{request=\"create\"} 1\n",
        "yagura_fuse_requests_failed_total{request=\"lookup\",reason=\"not_there\"} ",
    ]);
    file.sync_all().expect("stable");
    drop(file);
    wait(&[
        "yagura_file_dirty_bytes 0\n",
        "yagura_file_open_files 0\n",
        "yagura_fuse_request_seconds_count{request=\"fsync\"} 1\n",
    ]);
    drop(place.members.remove(1));
    wait(&["yagura_file_members_reachable 2\n"]);
    assert_eq!(http_get(metrics, "/healthz"), "ok\n");
    assert_eq!(mounted.unmount(), 0);
}

#[test]
fn programs_that_people_run_find_a_file_system() {
    if !can_mount() {
        return;
    }
    let place = Place::new(3);
    let mounted = place.mount("one");
    let at = &mounted.at;
    let git = |arguments: &[&str], within: &Path| {
        let who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"];
        ok("git", &[&who[..], arguments].concat(), within)
    };
    let work = mounted.path("work");
    fs::create_dir(&work).expect("made");
    git(&["init", "-q"], &work);
    make_tree(&work);
    git(&["add", "."], &work);
    git(&["commit", "-q", "-m", "one"], &work);
    fs::write(work.join("d1/f1"), b"changed").expect("written");
    git(&["commit", "-q", "-a", "-m", "two"], &work);
    git(&["gc", "-q"], &work);
    git(&["clone", "-q", "work", "clone"], at);
    git(&["fsck", "--strict"], &mounted.path("clone"));
    assert_eq!(git(&["status", "--short"], &mounted.path("clone")), "");

    let script = "create table t(a integer primary key, b blob); with recursive c(x) as (select 1 union all select x + 1 from c \
                  where x < 500) insert into t select x, randomblob(200) from c; pragma integrity_check;";
    for (name, journal) in [("rollback.db", "delete"), ("wal.db", "wal")] {
        let statements = format!("pragma journal_mode={journal}; {script}");
        assert_eq!(ok("sqlite3", &[name, &statements], at), format!("{journal}\nok\n"));
    }
    let job =
        ["--name=a", "--size=8M", "--bs=4k", "--rw=randwrite", "--ioengine=psync", "--verify=crc32c", "--fsync=256"];
    ok("fio", &job, at);
    let job =
        ["--name=b", "--size=64M", "--bs=1M", "--rw=write", "--ioengine=psync", "--verify=crc32c", "--end_fsync=1"];
    ok("fio", &job, at);
    ok("tar", &["-cf", "all.tar", "work", "a.0.0"], at);
    ok("tar", &["-df", "all.tar"], at);
    assert_eq!(mounted.unmount(), 0);
}

#[test]
fn calls_do_what_posix_says() {
    if !can_mount() {
        return;
    }
    let place = Place::new(3);
    let mounted = place.mount("one");
    let path = |name: &str| mounted.path(name);

    // A hole, truncation, growth.
    let mut file = File::options().read(true).write(true).create_new(true).open(path("holes")).expect("made");
    file.write_all_at(&drawn(1, 10_000), 5_000_000).expect("written");
    assert_eq!(file.metadata().expect("told").len(), 5_010_000);
    file.set_len(5_005_000).expect("cut");
    file.set_len(6_000_000).expect("grown");
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("sought");
    file.read_to_end(&mut bytes).expect("read");
    assert!(
        bytes[..5_000_000].iter().all(|byte| *byte == 0) && bytes[5_000_000..5_005_000] == drawn(1, 10_000)[..5_000]
    );
    assert!(
        bytes.len() == 6_000_000 && bytes[5_005_000..].iter().all(|byte| *byte == 0),
        "what was cut does not come back"
    );

    // Names: links, renames over others, what is open without a name.
    fs::write(path("a"), b"first").expect("written");
    fs::hard_link(path("a"), path("b")).expect("linked");
    assert_eq!(fs::metadata(path("a")).expect("there").nlink(), 2);
    symlink("a", path("c")).expect("linked");
    assert_eq!(fs::read(path("c")).expect("read"), b"first");
    fs::create_dir_all(path("d/e")).expect("made");
    fs::write(path("d/e/f"), b"second").expect("written");
    fs::rename(path("d/e/f"), path("a")).expect("moved over another");
    assert_eq!(
        (fs::read(path("a")).expect("read"), fs::read(path("b")).expect("read")),
        (b"second".into(), b"first".into())
    );
    assert!(fs::rename(path("d"), path("d/e/g")).is_err(), "into itself");
    assert!(fs::remove_dir(path("d")).is_err(), "it is not empty");
    let open = File::open(path("b")).expect("open");
    fs::remove_file(path("b")).expect("removed");
    let mut bytes = [0; 5];
    open.read_exact_at(&mut bytes, 0).expect("read");
    assert_eq!((&bytes, open.metadata().expect("told").nlink()), (b"first", 0));
    drop((open, file));

    // Modes and times.
    fs::set_permissions(path("a"), fs::Permissions::from_mode(0o4750)).expect("set");
    assert_eq!(mode(&path("a")), 0o4750);
    let file = File::options().append(true).open(path("a")).expect("open");
    let then = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    (&file).write_all(b" and more").expect("written");
    file.set_modified(then).expect("set");
    drop(file);
    let told = fs::metadata(path("a")).expect("there");
    assert_eq!((told.modified().expect("told"), told.len()), (then, 15));
    let long = "n".repeat(256);
    assert_eq!(fs::write(path(&long), b"").expect_err("too long").raw_os_error(), Some(36), "ENAMETOOLONG");
    assert_eq!(fs::write(path(&long[..255]), b"").ok(), Some(()));
    assert_eq!(mounted.unmount(), 0);
}

/// Room that a program has set aside before it writes, and where a file has none of it; times before 1970; attributes.
#[test]
fn what_tools_ask_of_the_kernel_is_answered() {
    if !can_mount() {
        return;
    }
    let place = Place::new(3);
    let mounted = place.mount_with("a", &["--allow-other"]);
    let path = |name: &str| mounted.path(name);
    let text = |name: &str| path(name).display().to_string();

    // The C library would write a byte into each 4 KiB of it.
    ok("fallocate", &["--length=100MiB", &text("set-aside")], &mounted.at);
    assert_eq!(fs::metadata(path("set-aside")).expect("there").len(), 100 << 20);
    ok("fallocate", &["--keep-size", "--offset=100MiB", "--length=1MiB", &text("set-aside")], &mounted.at);
    let mut too_much = Command::new("fallocate");
    too_much.args(["--length=1TiB", &text("too-much")]);
    let (status, _, error) = finished(too_much);
    assert!(status != 0 && error.contains("No space left"), "{error}");
    fs::write(path("written"), vec![7; 300_000]).expect("written");
    ok("fallocate", &["--zero-range", "--offset=100000", "--length=500000", &text("written")], &mounted.at);
    let bytes = fs::read(path("written")).expect("read");
    assert!(bytes.len() == 600_000 && bytes[..100_000].iter().all(|byte| *byte == 7));
    assert!(bytes[100_000..].iter().all(|byte| *byte == 0));

    // Holes are found: a terabyte of them takes no time.
    let sparse = File::create(path("sparse")).expect("made");
    sparse.write_all_at(&[7; 4096], 1 << 40).expect("written");
    sparse.sync_all().expect("stable");
    let next = |at, wants| rustix::fs::seek(&sparse, wants_of(at, wants)).ok();
    assert_eq!(
        (next(0, true), next(0, false), next((1 << 40) + 1, false)),
        (Some(1 << 40), Some(0), Some((1 << 40) + 4096))
    );
    assert_eq!(next((1 << 40) + 4096, true), None, "ENXIO");
    drop(sparse);

    // A quarter of a second after the last but one second before 1970.
    ok("touch", &["--date=1969-12-31T23:59:58.25Z", &text("old")], &mounted.at);
    assert_eq!(
        fs::metadata(path("old")).map(|told| (told.mtime(), told.mtime_nsec())).expect("there"),
        (-2, 250_000_000)
    );

    // Others than root are told nothing of what is for the trusted.
    let set = |name, value: &[u8]| rustix::fs::setxattr(path("written"), name, value, rustix::fs::XattrFlags::empty());
    assert_eq!((set("user.a", b"1"), set("trusted.b", b"2")), (Ok(()), Ok(())));
    assert_eq!(set("none", b"3"), Err(rustix::io::Errno::NOTSUP));
    let mut bytes = [0; 100];
    let length = rustix::fs::listxattr(path("written"), &mut bytes).expect("listed");
    assert_eq!(&bytes[..length], b"trusted.b\0user.a\0");
    assert_eq!(mounted.unmount(), 0);
}

/// From there on, what a program looks for that copies no holes.
fn wants_of(at: u64, data: bool) -> rustix::fs::SeekFrom {
    if data { rustix::fs::SeekFrom::Data(at) } else { rustix::fs::SeekFrom::Hole(at) }
}

/// Two mounts as of two hosts.
#[test]
fn what_one_host_has_closed_another_opens() {
    if !can_mount() {
        return;
    }
    let place = Place::new(3);
    let hosts = [place.mount("one"), place.mount("two")];
    let deadline = Instant::now() + PATIENCE;
    for round in 0..12_usize {
        let (writer, reader) = (&hosts[round % 2], &hosts[(round + 1) % 2]);
        let bytes = drawn(round as u64, 1 + round * 70_000);
        fs::write(writer.path("file"), &bytes).expect("written");
        assert!(fs::read(reader.path("file")).expect("read") == bytes, "round {round}");
        let name = format!("only-{round}");
        File::create_new(writer.path(&name)).expect("made");
        // The kernel may take a name that is not there for true as long as the mount has told it.
        while !reader.path(&name).exists() {
            assert!(Instant::now() < deadline, "{name} does not appear");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(File::create_new(reader.path(&name)).is_err(), "O_EXCL between hosts");
        // The writer's kernel takes a name that it has looked for in vain for not there.
        let second = format!("second-{round}");
        assert!(!writer.path(&second).exists());
        fs::write(reader.path(&second), b"what was there before is longer").expect("written");
        fs::write(writer.path(&second), b"new").expect("written");
        assert_eq!(
            fs::read(reader.path(&second)).expect("read"),
            b"new",
            "O_CREAT and O_TRUNC of what another has made"
        );
    }
    for host in hosts {
        assert_eq!(host.unmount(), 0);
    }
}

#[test]
fn refusals_say_what_to_do() {
    let place = Place::with(2, &["--data=1"]);
    let (status, _, error) = place.create("other", &["--data=3"]);
    assert!(status == 2 && error.contains("need 4 failure domains"), "{status} {error}");
    let (status, _, error) = place.create("tree", &["--data=1", "--force"]);
    assert!(status == 4 && error.contains("exists"), "{status} {error}");
    let (status, _, error) = place.create("other", &["--data=1"]);
    assert!(status == 4 && error.contains("--force"), "{status} {error}");
    let first = format!("--member={}", place.members[0].address("listening"));
    let (status, _, error) = place.create("other", &["--data=1", "--force", &format!("{first},machine=b"), &first]);
    assert!(status == 2 && error.contains("twice"), "{status} {error}");
    let (status, _, error) = place.create("other", &["--data=1", "--region=5000"]);
    assert!(status == 2 && error.contains("power of two"), "{status} {error}");
    let (status, _, error) = place.create("no/name", &["--data=1"]);
    assert!(status == 2 && error.contains("letters"), "{status} {error}");
    let (status, _, error) = run(&["file", "mount", "none", "/", &place.pool]);
    assert!(status == 2 && error.contains("file system none"), "{status} {error}");
    let (status, _, error) = run(&["file", "mount", "tree", "/no-such-place", &place.pool]);
    assert!(status == 4 && error.contains("/no-such-place"), "{status} {error}");
}
