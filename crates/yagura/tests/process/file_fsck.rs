//! `yagura file fsck` from outside, beside mounts and after one that was killed.

use std::fs;
use std::process::Command;

use crate::file::{Place, can_mount};
use crate::support::run;

#[test]
fn a_check_beside_mounts_finds_what_is_there_and_changes_nothing() {
    let place = Place::new(3);
    let fsck = |more: &[&str]| run(&[&["file", "fsck", "tree", &place.pool], more].concat());
    let (status, said, error) = fsck(&[]);
    assert!(status == 0 && said.contains("nothing is damaged, and nothing is left over"), "{status} {said}{error}");
    let (status, _, error) = fsck(&["--wait"]);
    assert!(status == 2 && error.contains("--repair"), "{status} {error}");
    let (status, _, error) = run(&["file", "fsck", "none", &place.pool]);
    assert!(status == 2 && error.contains("file system none"), "{status} {error}");
    if !can_mount() {
        return;
    }
    let (mut killed, kept) = (place.mount("one"), place.mount("two"));
    fs::create_dir_all(killed.path("a/b")).expect("made");
    fs::write(killed.path("a/b/long"), vec![7; 3_000_000]).expect("written");
    fs::write(killed.path("a/short"), b"some bytes").expect("written");
    let open = fs::File::open(killed.path("a/short")).expect("open");
    fs::remove_file(killed.path("a/short")).expect("removed");
    assert_eq!(killed.server.take().expect("it serves").stop("KILL"), -1);
    drop(open);
    let _status = Command::new("umount").arg("-l").arg(&killed.at).status();

    // What it kept and had marked may be its own for an hour yet.
    for flags in [&["--json"][..], &["--json", "--repair"]] {
        let (status, said, error) = fsck(flags);
        let told: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}{error}"));
        assert_eq!(
            (status, &told["sound"], &told["damage"]),
            (0, &true.into(), &serde_json::json!([])),
            "{said}{error}"
        );
        // The root, two directories, the file, and the one without a name.
        let counts = ["inodes", "names", "clients"].map(|what| told[what].as_u64());
        assert_eq!(counts, [Some(5), Some(3), Some(2)], "{said}");
    }
    assert_eq!(fs::read(kept.path("a/b/long")).expect("read"), vec![7; 3_000_000]);
    assert_eq!(kept.unmount(), 0);
}
