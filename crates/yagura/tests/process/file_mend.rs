//! Members of a file system fail, are replaced and rot, from outside: over targets that are killed, and files that are changed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::file::{Place, can_mount, ok};
use crate::support::{Server, make_tree, run};

/// A bit of every page of a member's file that holds something behind its label.
fn rot(path: &Path) -> usize {
    let bytes = fs::read(path).expect("read");
    let file = File::options().write(true).open(path).expect("opened");
    let pages = bytes.chunks(4096).enumerate().skip(256).filter(|(_, page)| page.iter().any(|byte| *byte != 0));
    let flip = |(number, page): (usize, &[u8])| {
        file.write_all_at(&[page[100] ^ 1], number as u64 * 4096 + 100).expect("written");
    };
    pages.map(flip).count()
}

/// What an operator types when a member has died: then another one may die.
#[test]
fn a_dead_member_is_replaced_and_rot_is_made_good() {
    if !can_mount() {
        return;
    }
    let mut place = Place::new(3);
    let pool = place.pool.clone();
    let file = |arguments: &[&str]| run(&[&["file"], arguments, &[&*pool]].concat());
    let source = place.directory.path().join("source");
    make_tree(&source);
    let text = |path: &Path| path.display().to_string();
    let reader = place.mount("reader");
    let writer = place.mount("writer");
    ok("cp", &["-a", &text(&source), &text(&writer.path("kept"))], &source);

    // One of three dies. What is written then lacks a column, and there is nowhere to put it.
    drop(place.members.remove(1));
    ok("cp", &["-a", &text(&source), &text(&writer.path("short"))], &source);
    assert_eq!(writer.unmount(), 0);
    let told = |arguments: &[&str], expected: i32, words: &str| {
        let (status, said, error) = file(arguments);
        assert!(status == expected && (said + &error).contains(words), "{arguments:?}: {status} {error}");
    };
    told(&["rebuild", "tree"], 1, "not written");
    told(&["member", "drain", "tree", "1"], 4, "2 failure domains are left");
    told(&["member", "remove", "tree", "1"], 4, "yagura file member drain tree 1");
    told(&["member", "drain", "tree", "7"], 2, "no member is `7`");

    // Another takes its place.
    let medium = place.directory.path().join("medium");
    let namespace = format!("--namespace=file={},size=256MiB", medium.display());
    let target = ["target", "--listen=127.0.0.1:0", "--nqn=nqn.2026-11.io.yagura:bytes-new", &namespace];
    let new = Server::start(&target);
    let address = new.address("listening").to_string();
    let (status, said, error) = file(&["member", "replace", "tree", "1", &address, "--lost"]);
    assert!(status == 0 && said.contains("member 3 is in the place of member 1"), "{status} {said}{error}");
    let (status, said, error) = file(&["member", "list", "tree", "--json"]);
    assert_eq!(status, 0, "{said}{error}");
    let listed: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let numbers: Vec<u64> =
        listed.as_array().expect("a list").iter().map(|member| member["member"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, [0, 2, 3], "{said}");
    // A mount that has not heard of it yet asks when it meets it.
    for name in ["kept", "short"] {
        ok("diff", &["-r", &text(&source), &text(&reader.path(name))], &source);
    }

    // All is there, until a medium rots.
    let scrub = || {
        let (status, said, error) = file(&["scrub", "tree", "--json"]);
        assert_eq!(status, 0, "{said}{error}");
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        (said["rewritten"].as_u64().expect("a number"), said["members"].as_array().expect("a list").len())
    };
    assert_eq!(scrub(), (0, 0));
    assert!(rot(&medium) > 0);
    let (rewritten, members) = scrub();
    assert!(rewritten > 0 && members == 1, "{rewritten} {members}");
    assert_eq!(scrub(), (0, 0));

    // And then another one dies.
    drop(place.members.remove(0));
    let again = place.mount("again");
    for name in ["kept", "short"] {
        ok("diff", &["-r", &text(&source), &text(&again.path(name))], &source);
        ok("diff", &["-r", &text(&source), &text(&reader.path(name))], &source);
    }
    told(&["scrub", "tree"], 3, "member 0 did not answer");
    assert_eq!((again.unmount(), reader.unmount()), (0, 0));
    told(&["member", "list", "tree"], 0, "not reached");
}
