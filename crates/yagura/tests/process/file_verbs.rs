//! Files without a mount: the verbs of `yagura file` on `NAME:PATH`, from outside.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::file::{Place, drawn, ok};
use crate::support::{PATIENCE, finished, kill, make_tree, yagura};

impl Place {
    fn command(&self, arguments: &[&OsStr]) -> Command {
        let mut command = yagura(&["file"]);
        command.args(arguments).arg(&self.pool);
        command
    }

    /// A verb: its exit status, and what it says.
    fn file(&self, arguments: &[&str]) -> (i32, String, String) {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        finished(self.command(&arguments))
    }

    /// One that must succeed: what it says.
    fn done(&self, arguments: &[&str]) -> String {
        let (status, said, error) = self.file(arguments);
        // What is logged of members that are away is no failure.
        assert!(status == 0 && !error.contains("yagura: "), "{arguments:?}: {status} {said}{error}");
        said
    }

    /// One that must not: its status, and what it says.
    fn refused(&self, arguments: &[&str]) -> (i32, String) {
        let (status, _, error) = self.file(arguments);
        assert_ne!(status, 0, "{arguments:?}");
        (status, error)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let said = self.done(&[arguments, &["--json"]].concat());
        serde_json::Deserializer::from_str(&said).into_iter().map(|value| value.expect("a document")).collect()
    }
}

fn lines(said: &str) -> Vec<&str> {
    said.lines().collect()
}

/// What must be the same of a copy: of each path its kind, permissions, time, and where it leads.
fn kept(root: &Path) -> Vec<(PathBuf, u32, i64, i64, Option<PathBuf>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(root).expect("a directory") {
        let path = entry.expect("a name").path();
        let told = path.symlink_metadata().expect("there");
        let name = PathBuf::from(path.file_name().expect("a name"));
        all.push((name, told.mode(), told.mtime(), told.mtime_nsec(), path.read_link().ok()));
        if told.is_dir() {
            all.extend(kept(&path));
        }
    }
    all.sort();
    all
}

fn make_source(source: &Path) {
    make_tree(source);
    fs::set_permissions(source.join("d2/f100"), fs::Permissions::from_mode(0o640)).expect("set");
    symlink("d2/f100", source.join("link")).expect("linked");
    symlink("/nowhere", source.join("d2/dangling")).expect("linked");
    let name = OsStr::from_bytes(b"not \xff text\n");
    fs::write(source.join(name), b"bytes").expect("written");
    let sparse = File::create(source.join("sparse")).expect("made");
    sparse.write_all_at(&drawn(3, 100_000), 50 << 20).expect("written");
    sparse.set_len(1 << 30).expect("grown");
    let then = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    fs::create_dir(source.join("empty")).expect("made");
    fs::set_permissions(source.join("empty"), fs::Permissions::from_mode(0o700)).expect("set");
    File::open(source.join("d1/f1")).expect("open").set_modified(then).expect("set");
    File::open(source.join("d1")).expect("open").set_modified(then).expect("set");
}

#[test]
fn a_tree_comes_out_as_it_went_in() {
    let place = Place::new(4);
    let source = place.path("source");
    make_source(&source);
    let said = place.done(&["cp", "-r", "--verify", &place.text("source"), "tree:"]);
    assert!(said.contains("14 files") && said.contains("read back, and the same"), "{said}");
    let out = place.json(&["cp", "-r", "--verify", "tree:source", &place.text("out")]);
    let figures = ["files", "directories", "links", "failed"].map(|name| out[0][name].as_u64().expect("a number"));
    assert_eq!(figures, [14, 5, 2, 0]);
    ok("diff", &["-r", "--no-dereference", "source", "out"], place.directory.path());
    assert_eq!(kept(&source), kept(&place.path("out")));
    let blocks = place.path("out/sparse").metadata().expect("there").blocks();
    assert!(blocks < 2048, "holes stay holes: {blocks}");

    // Within the file system, and once more over what is there.
    place.done(&["cp", "-r", "tree:source", "tree:again"]);
    place.done(&["cp", "-r", "tree:source/.", "tree:again/"]);
    place.done(&["cp", "-r", "tree:again", &place.text("again")]);
    assert_eq!(kept(&source), kept(&place.path("again")));
    ok("diff", &["-r", "--no-dereference", "source", "again"], place.directory.path());
    let stat = place.json(&["stat", "tree:again/sparse", "tree:again/d2/f100", "tree:again/link"]);
    assert_eq!((stat[0]["size"].as_u64(), stat[0]["content"]["kind"].as_str()), (Some(1 << 30), Some("map")));
    let stored = stat[0]["content"]["stored"].as_u64().expect("a number");
    assert!((150_000..400_000).contains(&stored), "data and parity of what is no hole: {stored}");
    assert_eq!((stat[1]["mode"].as_str(), stat[1]["content"]["kind"].as_str()), (Some("0640"), Some("inline")));
    assert_eq!((stat[2]["kind"].as_str(), stat[2]["target"].as_str()), (Some("symbolic link"), Some("d2/f100")));

    // A link that is named is followed, unless the tree is copied.
    place.done(&["cp", "tree:source/link", &place.text("followed")]);
    assert_eq!(fs::read(place.path("followed")).expect("there"), fs::read(source.join("d2/f100")).expect("there"));
    place.done(&["cp", "-r", "tree:source/link", &place.text("linked")]);
    assert_eq!(fs::read_link(place.path("linked")).expect("a link"), Path::new("d2/f100"));
}

#[test]
fn names_are_listed_moved_and_removed() {
    let place = Place::new(3);
    place.done(&["mkdir", "-p", "tree:a/b/c", "tree:a/b"]);
    let (status, error) = place.refused(&["mkdir", "tree:a"]);
    assert!(status == 4 && error.contains("tree:a: a exists"), "{status} {error}");
    assert_eq!(place.refused(&["mkdir", "tree:none/x"]).0, 1);
    fs::write(place.path("bytes"), drawn(1, 3_000_000)).expect("written");
    place.done(&["cp", &place.text("bytes"), "tree:a/"]);
    place.done(&["cp", &place.text("bytes"), "tree:/a/b/named"]);
    assert_eq!(lines(&place.done(&["ls", "tree:"])), ["a"]);
    assert_eq!(lines(&place.done(&["ls", "tree:a"])), ["b", "bytes"]);
    let said = place.done(&["ls", "-R", "tree:"]);
    assert_eq!(
        lines(&said),
        ["tree::", "a", "", "tree:a:", "b", "bytes", "", "tree:a/b:", "c", "named", "", "tree:a/b/c:"]
    );
    let said = place.done(&["ls", "-l", "tree:a"]);
    let all = lines(&said);
    assert!(all[0].starts_with("drwx") && all[1].starts_with("-rw") && all[1].contains("2.9 MiB"), "{said}");
    let listed = place.json(&["ls", "tree:a"]);
    assert_eq!((listed[1]["path"].as_str(), listed[1]["size"].as_u64()), (Some("tree:a/bytes"), Some(3_000_000)));

    // Moves: a new name, into a directory, over what is there, and not into itself.
    place.done(&["mv", "tree:a/bytes", "tree:a/moved"]);
    place.done(&["mv", "tree:a/moved", "tree:a/b/named", "tree:a/b/c"]);
    assert_eq!(lines(&place.done(&["ls", "tree:a/b/c/"])), ["moved", "named"]);
    assert_eq!(place.refused(&["mv", "-n", "tree:a/b/c/moved", "tree:a/b/c/named"]).0, 4);
    place.done(&["mv", "tree:a/b/c/moved", "tree:a/b/c/named"]);
    assert_eq!(lines(&place.done(&["ls", "tree:a/b/c"])), ["named"]);
    assert_eq!(place.refused(&["mv", "tree:a", "tree:a/b"]).0, 2);
    let (status, error) = place.refused(&["mv", "tree:a", "other:a"]);
    assert!(status == 2 && error.contains("another file system"), "{error}");

    let (status, error) = place.refused(&["rm", "tree:a"]);
    assert!(status == 2 && error.contains("--recursive"), "{error}");
    let (status, error) = place.refused(&["rm", "-r", "tree:none", "tree:a"]);
    assert!(status == 1 && error.contains("tree:none: no such file"), "{error}");
    assert_eq!(place.done(&["ls", "tree:"]), "", "what was there is removed all the same");
    for path in ["tree:", "tree:/", "tree:."] {
        assert_eq!(place.refused(&["rm", "-r", path]).0, 2, "{path}");
    }
    let df = place.json(&["df", "tree"]);
    assert_eq!(df[0]["members"].as_array().expect("members").len(), 3);
    let said = place.done(&["df", "tree:"]);
    assert!(said.contains("2 + 1 columns: room for ") && said.contains("active"), "{said}");
}

#[test]
fn bytes_flow_through_pipes_and_ranges() {
    let place = Place::new(3);
    let bytes = drawn(7, 20_000_000);
    let mut child = Flow::start(&place, &["cp", "-", "tree:piped"]);
    child.0.stdin.take().expect("piped").write_all(&bytes).expect("written");
    assert_eq!(child.end(), 0);
    let read = |arguments: &[&str]| {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        let output = place.command(&arguments).output().expect("run");
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    assert!(read(&["cat", "tree:piped"]) == bytes && read(&["cp", "tree:piped", "-"]) == bytes);
    assert_eq!(read(&["cat", "--range=1MiB:1048580", "tree:piped", "tree:piped"]), bytes[1 << 20..][..4].repeat(2));
    assert_eq!(read(&["cat", "--range=19999999:", "tree:piped"]), bytes[19_999_999..]);
    assert_eq!(read(&["cat", "--range=30000000:", "tree:piped"]), b"");

    // A reader that goes away ends it quietly, and nobody is left to be counted as a client.
    let mut child = Flow::start(&place, &["cat", "tree:piped"]);
    let mut some = [0; 1000];
    child.0.stdout.take().expect("piped").read_exact(&mut some).expect("read");
    assert_eq!((&some[..], child.end()), (&bytes[..1000], 0));

    // What is interrupted leaves nothing under its name, nor beside it.
    place.done(&["mkdir", "tree:dir"]);
    let mut child = Flow::start(&place, &["cp", "-", "tree:dir/half"]);
    let mut input = child.0.stdin.take().expect("piped");
    input.write_all(&bytes).expect("written");
    let deadline = Instant::now() + PATIENCE;
    while place.done(&["ls", "tree:dir"]).is_empty() {
        assert!(Instant::now() < deadline, "it does not begin");
    }
    assert!(place.done(&["ls", "tree:dir"]).starts_with(".yagura-draft-"));
    kill(child.0.id(), "INT");
    assert_eq!(child.end(), 130);
    drop(input);
    assert_eq!(place.done(&["ls", "tree:dir"]), "");
}

/// A verb between pipes.
struct Flow(Child);

impl Flow {
    fn start(place: &Place, arguments: &[&str]) -> Flow {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        let mut command = place.command(&arguments);
        Flow(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started"))
    }

    /// Its exit status, which comes within [`PATIENCE`].
    fn end(&mut self) -> i32 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().expect("waited") {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_is_in_the_way_is_named_and_the_rest_is_copied() {
    let place = Place::of(3, "8MiB", &[]);
    let source = place.path("source");
    fs::create_dir_all(source.join("sub")).expect("made");
    for name in ["a", "b", "sub/c"] {
        fs::write(source.join(name), name).expect("written");
    }
    // A directory where a file goes, a file where a directory goes.
    place.done(&["mkdir", "-p", "tree:source/a"]);
    place.done(&["cp", &place.text("source/b"), "tree:source/sub"]);
    let (status, error) = place.refused(&["cp", "-r", &place.text("source"), "tree:"]);
    assert!(status != 0 && error.contains("source/a: ") && error.contains("is a directory"), "{error}");
    assert!(error.contains("source/sub: ") && error.contains("is not a directory"), "{error}");
    assert_eq!(
        lines(&place.done(&["ls", "-R", "tree:source"])),
        ["tree:source:", "a", "b", "sub", "", "tree:source/a:"]
    );
    fs::create_dir_all(place.path("out/source/b")).expect("made");
    fs::write(place.path("out/source/a"), "in the way").expect("written");
    let (_, error) = place.refused(&["cp", "-r", "tree:source", &place.text("out")]);
    assert!(error.contains("tree:source/a: ") && error.contains("tree:source/b: "), "{error}");
    assert_eq!(fs::read(place.path("out/source/sub")).expect("copied"), b"b");

    let long = format!("tree:{}", "n".repeat(256));
    let longest = format!("tree:{}", "n".repeat(5000));
    let at = place.text("source/b");
    for (arguments, words) in [
        (vec!["cp", &at, "tree:none/x"], "no such file"),
        (vec!["cp", &at, &long], "255 bytes"),
        (vec!["cp", &at, &longest], "4096 bytes"),
        (vec!["cp", &at, "tree:source/b/x"], "not a directory"),
        (vec!["cp", &at, "tree:new/"], "no such directory"),
        (vec!["cp", &place.text("none"), "tree:x"], "No such file"),
        (vec!["cp", &place.text("source"), "tree:x"], "--recursive"),
        (vec!["cp", "-r", "tree:source", "tree:source/a"], "into itself"),
        (vec!["cp", "tree:source/b", "tree:source/b"], "the same"),
        (vec!["cp", &at, "elsewhere"], "NAME:PATH"),
        (vec!["cp", "-", "tree:"], "no name"),
        (vec!["cp", "--verify", "-", "tree:x"], "twice"),
        (vec!["cat", "tree:source"], "is a directory"),
        (vec!["cat", "./tree:a"], "NAME:PATH"),
        (vec!["cat", "--range=2:1", "tree:a"], "ends before"),
        (vec!["ls", "tree:none"], "no such file"),
        (vec!["ls", "none:"], "file system none"),
        (vec!["layout", "tree:source"], "is a directory"),
        (vec!["rm", "tree:source/b/.."], "no name"),
    ] {
        let (status, error) = place.refused(&arguments);
        assert!((1..=4).contains(&status) && error.contains(words), "{arguments:?}: {status} {error}");
    }

    // No room half-way: nothing is seen of it, and what fits is stored then.
    fs::write(source.join("large"), drawn(1, 30 << 20)).expect("written");
    fs::write(source.join("small"), drawn(2, 1 << 20)).expect("written");
    let (status, error) =
        place.refused(&["cp", "--depth=1", &place.text("source/large"), &place.text("source/small"), "tree:source"]);
    assert!(status == 5 && error.contains("source/large: ") && !error.contains("small: "), "{status} {error}");
    assert_eq!(lines(&place.done(&["ls", "tree:source"])), ["a", "b", "small", "sub"]);
}

#[test]
fn what_too_many_members_held_is_named_and_the_rest_is_copied() {
    let mut place = Place::new(3);
    let source = place.path("source");
    fs::create_dir_all(&source).expect("made");
    fs::write(source.join("inline"), b"in the inode").expect("written");
    fs::write(source.join("large"), drawn(1, 5_000_000)).expect("written");
    place.done(&["cp", "-r", &place.text("source"), "tree:"]);
    let whole = place.done(&["layout", "tree:source/large"]);
    assert!(whole.contains("0 B") && whole.contains('P') && !whole.contains('!'), "{whole}");
    assert!(whole.lines().all(|line| line.chars().count() <= 80 || line.contains("0, 1")), "{whole}");

    // One of three: everything is read; what is written then has a column less.
    drop(place.members.remove(0));
    place.done(&["cp", "-r", "--verify", "tree:source", &place.text("out")]);
    ok("diff", &["-r", "source", "out"], place.directory.path());
    let layout = &place.json(&["layout", "tree:source/large"])[0];
    let reached: Vec<bool> = layout["members"]
        .as_array()
        .expect("members")
        .iter()
        .map(|m| m["is_reached"].as_bool().expect("told"))
        .collect();
    assert_eq!(reached.iter().filter(|is_reached| !**is_reached).count(), 1, "{layout}");
    place.done(&["cp", &place.text("source/large"), "tree:short"]);
    let short = place.done(&["layout", "tree:short"]);
    assert!(short.contains('x') && short.contains("!: the member is not reached"), "{short}");

    // Two of three: what is in inodes is copied, of the rest it is said which bytes are lost.
    drop(place.members.remove(0));
    let (status, error) = place.refused(&["cp", "-r", "tree:source", &place.text("rest")]);
    assert!(
        status == 3 && error.contains("tree:source/large: ") && error.contains("can't be read"),
        "{status} {error}"
    );
    assert_eq!(fs::read(place.path("rest/inline")).expect("copied"), b"in the inode");
    let left: Vec<_> = fs::read_dir(place.path("rest")).expect("there").collect();
    assert_eq!(left.len(), 1, "nothing half-way: {left:?}");
}
