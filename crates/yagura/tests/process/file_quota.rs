//! Quotas of directories, from outside: set by the verbs, met by programs on a mount.

use std::fs;
use std::io::Write;

use rustix::io::Errno;
use serde_json::Value;

use crate::file::{Mounted, Place, can_mount, drawn, ok};
use crate::support::run;

fn quota(place: &Place, arguments: &[&str]) -> (i32, String, String) {
    let all: Vec<&str> = ["file", "quota"].into_iter().chain(arguments.iter().copied()).chain([&*place.pool]).collect();
    run(&all)
}

fn shown(place: &Place, path: &str) -> Value {
    let (status, said, error) = quota(place, &["show", path, "--json"]);
    assert_eq!(status, 0, "{said}{error}");
    serde_json::from_str(&said).expect("a document")
}

fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().expect("the system's")
}

#[test]
fn a_directory_holds_as_much_as_its_quota_says() {
    if !can_mount() {
        return;
    }
    let place = Place::new(3);
    let (status, said, error) = run(&["file", "mkdir", "tree:a", "tree:b", &place.pool]);
    assert_eq!(status, 0, "{said}{error}");
    let (status, said, error) = quota(&place, &["set", "tree:a", "--bytes", "4MiB", "--files", "6"]);
    assert_eq!(status, 0, "{said}{error}");
    let (_, _, error) = quota(&place, &["show", "tree:b"]);
    assert!(error.contains("tree:b: it counts for no quota"), "{error}");

    let mounted = place.mount("one");
    let a = mounted.path("a");
    let df = ok("df", &["--block-size=1", "--output=size,avail,itotal,iavail", "."], &a);
    let figures: Vec<&str> = df.lines().last().expect("a line").split_whitespace().collect();
    assert_eq!(figures, ["4194304", "4194304", "6", "6"], "{df}");

    // The write is refused, and what came before it is there.
    let mut file = fs::File::create(a.join("file")).expect("made");
    let mut written = Vec::new();
    let refused = loop {
        let bytes = drawn(written.len() as u64, 100_000);
        match file.write_all(&bytes) {
            Ok(()) => written.extend(bytes),
            Err(error) => break error,
        }
    };
    assert_eq!(errno(&refused), Errno::DQUOT.raw_os_error());
    drop(file);
    assert!(written.len() > 3_500_000 && written.len() <= 4 << 20, "{}", written.len());
    assert!(fs::read(a.join("file")).expect("there").starts_with(&written));
    let told = shown(&place, "tree:a/file");
    let bytes = told["bytes"].as_u64().expect("a number");
    assert!(bytes >= written.len() as u64 && bytes <= 4 << 20, "{told}");
    assert_eq!((told["directory"].as_str(), told["files"].as_u64()), (Some("tree:/a"), Some(1)));
    let (_, said, error) = run(&["file", "df", "tree", &place.pool]);
    assert!(said.contains("quota tree:/a:") && said.contains("of 4 MiB"), "{said}{error}");

    // Names are counted; a file that goes makes room.
    for number in 0..5 {
        fs::write(a.join(format!("small{number}")), b"in its inode").expect("written");
    }
    assert_eq!(errno(&fs::create_dir(a.join("sub")).expect_err("one too many")), Errno::DQUOT.raw_os_error());
    fs::remove_file(a.join("file")).expect("removed");
    fs::create_dir(a.join("sub")).expect("made");
    fs::write(a.join("small0"), drawn(1, 3 << 20)).expect("written");

    copied_from_one_into_the_other(&place, &mounted);

    assert_eq!(mounted.unmount(), 0);
    let told = shown(&place, "tree:a");
    assert_eq!((told["bytes"].as_u64(), told["files"].as_u64()), (Some(0), Some(5)), "{told}");
    let (status, said, error) = quota(&place, &["clear", "tree:a"]);
    assert_eq!(status, 0, "{said}{error}");
    assert_eq!(shown(&place, "tree:a")["files_limit"], Value::Null);
    let (status, said, error) = run(&["file", "fsck", "tree", &place.pool, "--json"]);
    assert_eq!(status, 0, "{said}{error}");
    let checked: Value = serde_json::from_str(&said).expect("a document");
    assert_eq!(checked["sound"].as_bool(), Some(true), "{said}");
}

fn copied_from_one_into_the_other(place: &Place, mounted: &Mounted) {
    let (a, b) = (mounted.path("a"), mounted.path("b"));
    let refused = fs::rename(a.join("small0"), b.join("moved")).expect_err("it is across");
    assert_eq!(errno(&refused), Errno::XDEV.raw_os_error());
    assert_eq!(
        errno(&fs::hard_link(a.join("small1"), b.join("linked")).expect_err("likewise")),
        Errno::XDEV.raw_os_error()
    );
    ok("mv", &["a/small0", "b/moved"], &mounted.at);
    assert_eq!(fs::read(b.join("moved")).expect("there"), drawn(1, 3 << 20));
    let (status, _, error) = run(&["file", "mv", "tree:b/moved", "tree:a/moved", &place.pool]);
    assert!(status != 0 && error.contains("counts for another quota"), "{error}");
    let (status, _, error) = quota(place, &["set", "tree:b", "--bytes", "1GiB"]);
    assert!(status != 0 && error.contains("has names already"), "{status} {error}");
}

/// The kernel takes an answer that less was written for one that all was, where it writes what a mapping has changed: half a MiB
/// was gone, and `msync` and `fsync` said that all is well.
#[test]
fn what_a_mapping_has_changed_is_not_lost_where_a_quota_ends() {
    if !can_mount() {
        return;
    }
    let place = Place::new(3);
    let (status, said, error) = run(&["file", "mkdir", "tree:a", &place.pool]);
    assert_eq!(status, 0, "{said}{error}");
    let (status, said, error) = quota(&place, &["set", "tree:a", "--bytes", "768KiB"]);
    assert_eq!(status, 0, "{said}{error}");
    let mounted = place.mount("one");
    let script = "import mmap, os
file = os.open('mapped', os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 2 << 20)
mapping = mmap.mmap(file, 2 << 20)
mapping[512 << 10:1536 << 10] = bytes([7]) * (1 << 20)
try:
    mapping.flush()
    os.fsync(file)
except OSError as error:
    print(error.errno)
";
    let said = ok("python3", &["-c", script], &mounted.path("a"));
    assert_eq!(said.trim(), Errno::DQUOT.raw_os_error().to_string());
    mounted.unmount();
}
