use std::path::Path;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

/// A process in the words of a shell.
fn keeper(script: &str, folder: &Path, begin: Begin) -> Keeper {
    let arguments = vec!["-c".to_owned(), script.to_owned(), "sh".to_owned(), folder.display().to_string()];
    Keeper::start("a", "sh".into(), arguments, begin).expect("started")
}

/// Serves until it is told to end by a signal, and writes that down.
fn serving(tenure: &str) -> String {
    format!(
        "echo run >> $1/runs; sleep 60 >/dev/null 2>&1 & trap 'echo signal > $1/end; kill $!; exit 0' TERM
        echo '{{\"device\": \"/dev/a\", \"tenure\": \"{tenure}\", \"nqn\": \"n\"}}'; wait"
    )
}

fn runs(folder: &Path) -> usize {
    std::fs::read_to_string(folder.join("runs")).map_or(0, |text| text.lines().count())
}

#[test]
fn a_device_is_told_and_the_process_ends_when_it_is_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    let kept = keeper(&serving("1"), folder.path(), Begin::New);
    assert_eq!(kept.device(PATIENCE), Ok((Device { path: "/dev/a".into(), tenure: "1".into() }, "n".into())));
    assert_eq!(kept.stop(PATIENCE), Ok(()));
    assert_eq!(std::fs::read_to_string(folder.path().join("end")).expect("written"), "signal\n");
    assert_eq!(runs(folder.path()), 1);
}

#[test]
fn one_that_never_served_is_given_up_and_one_that_did_is_started_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = keeper("echo run >> $1/runs; echo 'yagura: no such volume' >&2; exit 4", folder.path(), Begin::New);
    assert_eq!(refused.device(PATIENCE), Err(MachineError::Refused("no such volume".into())));
    assert_eq!(refused.stop(PATIENCE), Err(MachineError::Refused("no such volume".into())));
    assert_eq!(runs(folder.path()), 1);

    // The second of three runs does not serve, and each goes on with what the first one had.
    let folder = tempfile::tempdir().expect("a folder");
    let script = "echo $2 >> $1/runs; case $(wc -l < $1/runs) in
        1) echo '{\"device\": \"/dev/a\", \"tenure\": \"1\", \"nqn\": \"n\"}'; until [ -e $1/go ]; do sleep 0.05; done;;
        2) echo 'yagura: away' >&2; exit 3;;
        *) echo '{\"device\": \"/dev/b\", \"tenure\": \"1\", \"nqn\": \"n\"}'; exec sleep 60;; esac";
    let kept = keeper(script, folder.path(), Begin::New);
    assert_eq!(kept.device(PATIENCE), Ok((Device { path: "/dev/a".into(), tenure: "1".into() }, "n".into())));
    std::fs::write(folder.path().join("go"), "").expect("written");
    let until = Instant::now() + PATIENCE;
    loop {
        match kept.device(PATIENCE) {
            Ok((device, _)) if device.path == Path::new("/dev/b") => break,
            Ok(_) | Err(_) => assert!(Instant::now() < until, "it is not started again"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = std::fs::read_to_string(folder.path().join("runs")).expect("written");
    assert_eq!(said, "\n--tenure=1\n--tenure=1\n");
    let killed = kept.stop(PATIENCE);
    assert!(
        matches!(killed, Err(MachineError::Failed(_))),
        "one that the signal has killed has told nobody: {killed:?}"
    );
}

/// A volume that another host has taken was asked for again every twenty seconds, and had as soon as that host let go of it.
#[test]
fn one_that_another_host_has_taken_the_volume_from_is_not_started_again() {
    let first = "echo '{\"device\": \"/dev/a\", \"tenure\": \"1\", \"nqn\": \"n\"}'; echo run >> $1/runs; until [ -e $1/go ]; do sleep 0.05; done";
    let lost = "echo 'yagura: another host has it' >&2; exit 6";
    for begin in [Begin::New, Begin::Again { tenure: Some("1".into()) }] {
        let folder = tempfile::tempdir().expect("a folder");
        let kept = keeper(&format!("{first}; {lost}"), folder.path(), begin);
        kept.device(PATIENCE).expect("attached");
        std::fs::write(folder.path().join("go"), "").expect("written");
        let ended = kept.shared.wait(PATIENCE, |seen| seen.ended.is_some()).ended.clone();
        assert_eq!(ended, Some(Err(MachineError::Lost("another host has it".into()))));
        assert!(kept.has_ended());
        assert_eq!(kept.device(PATIENCE), Err(MachineError::Lost("another host has it".into())));
        assert_eq!(kept.stop(PATIENCE), Ok(()), "this host has nothing of it");
        assert_eq!(runs(folder.path()), 1);
    }
}

/// What a process says when it can't let go of the volume was heard by nobody: the volume stayed with a node that had unstaged it.
#[test]
fn one_that_could_not_let_go_of_the_volume_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "sleep 60 >/dev/null 2>&1 & trap 'echo \"yagura: it is not told\" >&2; kill $!; exit 3' TERM
        echo '{\"device\": \"/dev/a\", \"tenure\": \"1\", \"nqn\": \"n\"}'; wait";
    let kept = keeper(script, folder.path(), Begin::New);
    kept.device(PATIENCE).expect("attached");
    assert_eq!(kept.stop(PATIENCE), Err(MachineError::Unavailable("it is not told".into())));
}

#[test]
fn one_that_does_not_end_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "trap '' TERM; echo '{\"device\": \"/dev/a\", \"tenure\": \"1\", \"nqn\": \"n\"}'; exec sleep 60";
    let kept = keeper(script, folder.path(), Begin::New);
    kept.device(PATIENCE).expect("attached");
    let stopped = kept.stop(Duration::from_millis(100));
    assert!(matches!(stopped, Err(MachineError::Unavailable(_))), "{stopped:?}");
}
