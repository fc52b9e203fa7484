//! Writes past the kernel's pages on a mount: refused, they take nothing from others; stable, they are.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::file::{Place, can_mount, drawn};
use crate::support::{PATIENCE, finished, run};

const MIB: usize = 1 << 20;

/// Writes 64 KiB of a byte by AIO to a file that is open past the pages, and says what came of it. It waits for a line when it has
/// opened the file, and before it closes it. Arguments: the file, how it is opened, where, and the byte.
const BY_AIO: &str = r#"
import ctypes, mmap, os, struct, sys
path, how, at, byte = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
flags = os.O_RDWR
for name in how.split("|"):
    flags |= getattr(os, name)
file = os.open(path, flags)
os.fstat(file)
print("open", flush=True)
sys.stdin.readline()
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (206, 209, 208), "aarch64": (0, 2, 4)}[os.uname().machine]
context = ctypes.c_ulong(0)
assert libc.syscall(numbers[0], 1, ctypes.byref(context)) == 0
memory = mmap.mmap(-1, 65536)
memory.write(bytes([byte]) * 65536)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
request = ctypes.create_string_buffer(struct.pack("=QIIHhIQQqQII", 0, 0, 0, 1, 0, file, address, 65536, at, 0, 0, 0))
requests = (ctypes.c_void_p * 1)(ctypes.addressof(request))
assert libc.syscall(numbers[1], context, 1, requests) == 1, ctypes.get_errno()
event = ctypes.create_string_buffer(32)
assert libc.syscall(numbers[2], context, 1, 1, event, None) == 1
print(struct.unpack("=QQqq", event.raw)[2], flush=True)
sys.stdin.readline()
"#;

/// A process that writes so; dropped, it ends.
struct ByAio {
    child: Child,
    told: BufReader<ChildStdout>,
}

impl ByAio {
    /// It has opened the file.
    fn open(path: &Path, how: &str, at: usize) -> ByAio {
        let mut command = Command::new("python3");
        command.args(["-c", BY_AIO, path.to_str().expect("text"), how, &at.to_string(), "9"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("begun");
        let told = BufReader::new(child.stdout.take().expect("piped"));
        let mut process = ByAio { child, told };
        assert_eq!(process.line(), "open");
        process
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.told.read_line(&mut line).expect("told");
        line.trim_end().to_owned()
    }

    /// Has it write: what came of that.
    fn write(&mut self) -> i64 {
        self.child.stdin.as_mut().expect("piped").write_all(b"\n").expect("it waits");
        let line = self.line();
        line.parse().unwrap_or_else(|_| panic!("{line}"))
    }
}

impl Drop for ByAio {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _status = self.child.wait();
    }
}

/// The kernel cut the file to the length that it had seen, and with that what another host had written and made stable since.
#[test]
fn a_write_past_the_pages_that_is_refused_cuts_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::new(3);
    let (status, said, error) = run(&["file", "mkdir", "tree:a", &place.pool]);
    assert_eq!(status, 0, "{said}{error}");
    let (status, said, error) = run(&["file", "quota", "set", "tree:a", "--bytes", "16MiB", &place.pool]);
    assert_eq!(status, 0, "{said}{error}");
    let (one, two) = (place.mount("one"), place.mount("two"));
    let kept = drawn(7, 2 * MIB);
    for (name, how) in [("placed", "O_DIRECT"), ("appended", "O_DIRECT|O_APPEND")] {
        let path = one.path("a").join(name);
        fs::write(&path, &kept[..MIB]).expect("written");
        let open = |flags: OFlags| fs::OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(&path);
        let direct = open(OFlags::DIRECT).expect("open");
        assert_eq!(direct.metadata().expect("told").len(), MIB as u64);
        let mut process = ByAio::open(&path, how, MIB);
        // Another host goes on with it, and then there is no room for anybody.
        // What was removed here before makes room there when it is told.
        let begun = Instant::now();
        while let Err(error) = fs::write(two.path("a").join(name), &kept) {
            assert!(begun.elapsed() < PATIENCE, "{error}");
            std::thread::sleep(Duration::from_millis(100));
        }
        for (host, filler) in [(&two, "a/filler"), (&one, "a/more")] {
            let mut filler = fs::File::create(host.path(filler)).expect("made");
            while filler.write_all(&[7; 4096]).is_ok() {}
        }
        let outcome = process.write();
        assert!(outcome < 0, "{name}: {outcome}");
        drop(process);
        if how == "O_DIRECT" {
            let told = by_pwrite(&path.display().to_string());
            assert_eq!(told.lines().collect::<Vec<_>>(), ["refused EDQUOT"; 3], "whoever tries again is told again");
        }
        assert!(fs::read(two.path("a").join(name)).expect("read") == kept, "{name}: it was cut");
        // A size that its user asks for is set.
        drop(direct);
        let open = open(OFlags::empty()).expect("open");
        open.set_len(100).expect("cut");
        assert!(fs::read(two.path("a").join(name)).expect("read") == kept[..100]);
        drop(open);
        [path, one.path("a/filler"), one.path("a/more")]
            .iter()
            .for_each(|path| fs::remove_file(path).expect("removed"));
    }
    assert_eq!((one.unmount(), two.unmount()), (0, 0));
}

/// The same by a call that waits: what its caller is told is the fault.
fn by_pwrite(path: &str) -> String {
    let script = r#"
import errno, mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
memory = mmap.mmap(-1, 65536)
# Half of it behind the end that this host knows.
at = os.fstat(file).st_size - 32768
for _ in range(3):
    try:
        print(os.pwritev(file, [memory], at))
    except OSError as error:
        print("refused", errno.errorcode[error.errno])
"#;
    let mut command = Command::new("python3");
    command.args(["-c", script, path]);
    let (status, said, error) = finished(command);
    assert_eq!(status, 0, "{said}{error}");
    said
}

/// It was told as done when it lay in memory.
#[test]
fn a_write_by_aio_that_is_to_be_stable_is() {
    if !can_mount() {
        return;
    }
    let place = Place::new(3);
    let mut one = place.mount("one");
    let path = one.path("log");
    fs::write(&path, vec![1; 4 * MIB]).expect("written");
    let mut process = ByAio::open(&path, "O_DIRECT|O_DSYNC", MIB);
    assert_eq!(process.write(), 65536);
    // Before it is closed, which would have it stable.
    assert_eq!(one.server.take().expect("it serves").stop("KILL"), -1);
    drop(process);
    let _status = Command::new("umount").arg("-l").arg(&one.at).status();
    let two = place.mount("two");
    let found = fs::read(two.path("log")).expect("read");
    assert!(found.len() == 4 * MIB && found[MIB..MIB + 65536].iter().all(|byte| *byte == 9));
    assert_eq!(two.unmount(), 0);
}
