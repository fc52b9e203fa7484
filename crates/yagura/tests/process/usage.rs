//! Wrong input: named, with what would be right, by exit status 2, before anything is touched.

use crate::support::run;

fn refused(arguments: &[&str]) -> String {
    let (status, stdout, stderr) = run(arguments);
    assert_eq!((status, stdout.as_str()), (2, ""), "{arguments:?}: {stderr}");
    assert!(stderr.starts_with("yagura: "), "{stderr}");
    stderr
}

#[test]
fn help_and_version_are_no_errors() {
    let (status, stdout, stderr) = run(&["--help"]);
    assert_eq!((status, stderr.as_str()), (0, ""));
    for word in ["target", "drive", "pool", "kv", "gateway", "up", "nvme", "Exit status"] {
        assert!(stdout.contains(word), "{word} is not in the help:\n{stdout}");
    }
    assert_eq!(run(&["--version"]).1, format!("yagura {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn unknown_flags_and_verbs_are_named_with_the_nearest_right_one() {
    assert!(refused(&["targt"]).contains("'target'"));
    assert!(refused(&["target", "--lisen", "x"]).contains("'--listen'"));
    assert!(refused(&["kv", "improt", "x"]).contains("'import'"));
}

#[test]
fn unknown_config_keys_are_named_with_the_nearest_right_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("yagura.toml");
    let config = |text: &str| {
        std::fs::write(&file, text).expect("written");
        refused(&["gateway", "--config", file.to_str().expect("text")])
    };
    assert!(config("[gateway]\nlisen = 'x'").contains("unknown key `lisen` in [gateway]: did you mean `listen`?"));
    assert!(config("[gatewy]").contains("unknown table `gatewy`: did you mean `gateway`?"));
    assert!(config("[gateway]\nlisten = 'x'").contains("key `listen` cannot be `x`"), "it was no flag");
    assert!(refused(&["gateway", "--config", "/nonexistent.toml"]).contains("/nonexistent.toml"));
}

#[test]
fn wrong_values_say_what_is_right() {
    assert!(refused(&["target"]).contains("--namespace"));
    assert!(refused(&["target", "--namespace", "memory=1X"]).contains("K, M, G or T"));
    assert!(refused(&["target", "--namespace", "file=/nonexistent/x"]).contains("size"));
    assert!(refused(&["kv", "get", "k"]).contains("--pool"));
    assert!(refused(&["kv", "verify"]).contains("--against"));
    assert!(refused(&["kv", "get", "k", "--pool", "nonsense"]).contains("HOST:PORT"));
    assert!(refused(&["up", "--replicas", "9"]).contains("1..=7"));
    assert!(refused(&["up", "--once"]).contains("--drill"));
    let rule = "small letters, digits";
    assert!(refused(&["control", "create", "DB", "--size=1G"]).contains(rule));
    assert!(refused(&["volume", "attach", "--name=DB", "--token-file=x"]).contains(rule));
}

#[test]
fn a_target_whose_port_is_taken_makes_no_file() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = taken.local_addr().expect("an address").to_string();
    let directory = tempfile::tempdir().expect("a directory");
    let namespace = format!("file={},size=1MiB", directory.path().join("x").display());
    let (status, _, stderr) = run(&["target", "--listen", &at, "--namespace", &namespace]);
    assert!(status == 4 && stderr.contains("cannot listen"), "{status} {stderr}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("read").count(), 0, "nothing is left behind");
}

#[test]
fn nobody_there_is_status_3() {
    // Port 1 of loopback: nobody listens there.
    let (status, _, stderr) = run(&["kv", "get", "k", "--pool", "127.0.0.1:1"]);
    assert_eq!(status, 3, "{stderr}");
    assert!(stderr.contains("127.0.0.1:1"), "{stderr}");
}
