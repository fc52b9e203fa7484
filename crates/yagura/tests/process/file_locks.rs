//! Locks between hosts: two mounts as of two, and the programs that rely on them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::file::{Place, can_mount, ok};
use crate::support::{PATIENCE, finished, finished_within, kill};

/// Takes a lock by `fcntl`, says so, keeps it until its input ends. Arguments: path, `x` or `s`, `w` or `n`, start, length.
const TAKE: &str = "import fcntl, sys
f = open(sys.argv[1], 'r+b', buffering=0)
how = {'x': fcntl.LOCK_EX, 's': fcntl.LOCK_SH}[sys.argv[2]] | {'w': 0, 'n': fcntl.LOCK_NB}[sys.argv[3]]
fcntl.lockf(f, how, int(sys.argv[5]), int(sys.argv[4]))
print('locked', flush=True)
sys.stdin.read()
";

/// Counts in a file, under a lock each time. Arguments: path, how often.
const COUNT: &str = "import fcntl, os, sys
f = os.open(sys.argv[1], os.O_RDWR)
for _ in range(int(sys.argv[2])):
    fcntl.lockf(f, fcntl.LOCK_EX)
    n = int(os.pread(f, 20, 0) or b'0')
    os.pwrite(f, b'%d' % (n + 1), 0)
    fcntl.lockf(f, fcntl.LOCK_UN)
";

/// What F_GETLK and F_OFD_SETLK find where another host has locked bytes 10 to 19. Argument: path.
const ASK: &str = "import errno, fcntl, os, struct, sys
form = 'hhqqi4x'
f = os.open(sys.argv[1], os.O_RDWR)
def ask(start, length):
    return struct.unpack(form, fcntl.fcntl(f, fcntl.F_GETLK, struct.pack(form, fcntl.F_WRLCK, 0, start, length, 0)))
assert ask(0, 0)[0] == fcntl.F_WRLCK and ask(0, 0)[2:4] == (10, 10), ask(0, 0)
assert ask(20, 5)[0] == fcntl.F_UNLCK, ask(20, 5)
try:
    fcntl.fcntl(f, fcntl.F_OFD_SETLK, struct.pack(form, fcntl.F_RDLCK, 0, 19, 1, 0))
    raise SystemExit('it is locked')
except OSError as error:
    assert error.errno in (errno.EAGAIN, errno.EACCES), error
fcntl.fcntl(f, fcntl.F_OFD_SETLK, struct.pack(form, fcntl.F_WRLCK, 0, 20, 1, 0))
";

/// A process that has a lock until its input ends, or it is killed.
struct Holder {
    child: Child,
}

impl Holder {
    fn new(mut command: Command) -> Holder {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("read");
        assert_eq!(line, "locked\n");
        Holder { child }
    }

    fn flock(path: &Path, how: &str) -> Holder {
        let mut command = Command::new("flock");
        command.args([how, &text(path), "sh", "-c", "echo locked; exec cat"]);
        Holder::new(command)
    }

    fn fcntl(path: &Path, how: &[&str]) -> Holder {
        let mut command = Command::new("python3");
        command.args(["-c", TAKE, &text(path)]).args(how);
        Holder::new(command)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _status = self.child.wait();
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn status(program: &str, arguments: &[&str]) -> i32 {
    let mut command = Command::new(program);
    command.args(arguments);
    finished(command).0
}

/// Whether a lock can be had at once.
fn is_free(path: &Path, how: &str) -> bool {
    status("flock", &[how, "-n", &text(path), "true"]) == 0
}

/// Whether it can be had soon: the kernel says that an open file is gone, and its `flock` with it, when its process has ended.
fn becomes_free(path: &Path, how: &str) -> bool {
    let begun = Instant::now();
    while !is_free(path, how) {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

#[test]
fn programs_on_two_hosts_exclude_one_another() {
    if !can_mount() {
        return;
    }
    let place = Place::new(3);
    let hosts = [place.mount("one"), place.mount("two")];
    let [one, two] = [0, 1].map(|at: usize| hosts[at].path("file"));
    fs::write(&one, b"0").expect("written");

    let holder = Holder::flock(&one, "-x");
    assert!(!is_free(&two, "-x") && !is_free(&two, "-s") && !is_free(&one, "-s"));
    // Those of fcntl are others.
    let other = Holder::fcntl(&two, &["x", "n", "0", "0"]);
    drop(other);
    // Who waits can be interrupted, and killed.
    for signal in ["TERM", "KILL"] {
        let mut waiting = Command::new("flock").args([&text(&two), "true"]).spawn().expect("started");
        std::thread::sleep(Duration::from_millis(700));
        assert!(waiting.try_wait().expect("told").is_none(), "it waits");
        let told = Instant::now();
        kill(waiting.id(), signal);
        waiting.wait().expect("ended");
        assert!(told.elapsed() < Duration::from_secs(5), "{signal} after {:?}", told.elapsed());
    }
    let waiting = Command::new("flock").args([&text(&two), "true"]).spawn().expect("started");
    drop(holder);
    assert!(waiting.wait_with_output().expect("ended").status.success());
    let shared = [Holder::flock(&one, "-s"), Holder::flock(&two, "-s")];
    assert!(is_free(&one, "-s") && !is_free(&one, "-x") && !is_free(&two, "-x"));
    drop(shared);
    assert!(becomes_free(&two, "-x"));

    // Ranges, of processes and of open files; what is killed gives back what it has.
    let mut holder = Holder::fcntl(&one, &["x", "n", "10", "10"]);
    ok("python3", &["-c", ASK, &text(&two)], &place_of(&two));
    let below = Holder::fcntl(&two, &["x", "n", "0", "10"]);
    let refused = ["-c", TAKE, &text(&two), "s", "n", "15", "1"];
    assert_ne!(status("python3", &refused), 0);
    holder.child.kill().expect("killed");
    drop(holder);
    drop((Holder::fcntl(&two, &["x", "w", "10", "100"]), below));

    // What is written under a lock is seen under the next one.
    let counters = [&one, &two, &one, &two]
        .map(|path| Command::new("python3").args(["-c", COUNT, &text(path), "50"]).spawn().expect("started"));
    for counter in counters {
        assert!(counter.wait_with_output().expect("ended").status.success());
    }
    assert_eq!(fs::read(&two).expect("read"), b"200");
    for host in hosts {
        assert_eq!(host.unmount(), 0);
    }
}

fn place_of(path: &Path) -> std::path::PathBuf {
    path.parent().expect("a directory").to_owned()
}

#[test]
fn a_database_is_changed_from_two_hosts() {
    if !can_mount() {
        return;
    }
    let place = Place::new(3);
    let hosts = [place.mount("one"), place.mount("two")];
    ok("sqlite3", &["all.db", "create table t(host integer, at integer, b blob);"], &hosts[0].at);
    let script = |host: usize| {
        let insert = |at| format!("insert into t values({host}, {at}, randomblob(3000));\n");
        let together: String =
            (0..40).map(|at| format!("begin immediate;\n{}{}commit;\n", insert(at), insert(at))).collect();
        format!(".timeout 50000\n{together}")
    };
    let writers = [0, 1].map(|host: usize| {
        let mut command = Command::new("sqlite3");
        command.args(["-bail", "all.db"]).current_dir(&hosts[host].at).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("started");
        child.stdin.take().expect("piped").write_all(script(host).as_bytes()).expect("said");
        child
    });
    for writer in writers {
        let ended = writer.wait_with_output().expect("ended");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
    for host in &hosts {
        let asked = "pragma integrity_check; select host, count(*), sum(at) from t group by host;";
        assert_eq!(ok("sqlite3", &["all.db", asked], &host.at), "ok\n0|80|1560\n1|80|1560\n");
    }
    for host in hosts {
        assert_eq!(host.unmount(), 0);
    }
}

/// The process that serves the holder's mount is killed: its host is as good as gone.
#[test]
fn the_locks_of_a_host_that_died_end() {
    if !can_mount() {
        return;
    }
    let place = Place::new(3);
    let [mut one, two] = [place.mount("one"), place.mount("two")];
    fs::write(one.path("file"), b"").expect("written");
    let holder = Holder::flock(&one.path("file"), "-x");
    assert_eq!(one.server.take().expect("it serves").stop("KILL"), -1);
    let died = Instant::now();
    let mut waiting = Command::new("flock");
    waiting.args(["-x", &text(&two.path("file")), "true"]);
    assert_eq!(finished_within(PATIENCE * 5, waiting).0, 0);
    assert!(died.elapsed() > Duration::from_secs(80), "{:?}", died.elapsed());
    ok("umount", &["-l", &text(&one.at)], &place_of(&one.at));
    drop(holder);
    assert_eq!(two.unmount(), 0);
}
