//! A process that is really killed, again and again, under load: what it finds when it is started anew is the latest
//! acknowledged value of each key, or nothing.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cache::flash::{Boot, Options};
use device::{FileNamespace, FileOptions, Namespace};
use engine::{Mapped, Reactor, ReactorConfig};

use crate::flash::owner::{Owner, SEGMENT_BYTES, Truth, options};

/// Tells the child where it lives.
const PLACE: &str = "FLASH_KILL_TEST_PLACE";
const KEYS: u32 = 300;
const KILLS: u32 = 12;

async fn open(place: &Path) -> Owner {
    let create = Some(24 * SEGMENT_BYTES as u64);
    let file = FileOptions { create, nguid: Some([1; 16]), ..FileOptions::default() };
    let namespace = Arc::new(FileNamespace::open(&place.join("log"), &file).await.expect("opened"));
    let options = Options { boot: Boot::current(), ..options() };
    let words = options.journal_words(&namespace.info()).expect("it holds a log");
    let journal = Arc::new(Mapped::open(&place.join("journal"), words).expect("mapped"));
    let truth = Mapped::open(&place.join("truth"), KEYS as usize + 1).expect("mapped");
    let truth = Rc::new(Truth::kept_in(truth));
    Owner::open(namespace, &journal, &options, &truth, u32::MAX).await.expect("opened")
}

/// The process that is killed. It says how many keys it has found, then when it has worked for a while, and works on.
#[test]
fn child_of_the_kill_test() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let endless = async move {
        let owner = Rc::new(open(Path::new(&place)).await);
        println!("\nfound {} {:?}", owner.verify(KEYS).await, owner.recovery.fresh);
        owner.live_together(2, 3000, KEYS).await;
        println!("\nworking");
        loop {
            owner.live_together(2, 1000, KEYS).await;
        }
    };
    Reactor::run(ReactorConfig::default(), endless).expect("a reactor");
}

#[test]
fn killed_under_load_it_serves_the_latest_values_or_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut found = 0;
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "flash::kill::child_of_the_kill_test", "--nocapture"])
            .env(PLACE, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        for line in output.lines().map_while(Result::ok) {
            if let Some(told) = line.strip_prefix("found ") {
                assert_eq!(told.ends_with("None"), kill > 0, "{told}");
                found += told.split(' ').next().and_then(|count| count.parse::<u32>().ok()).expect("a number");
            }
            if line == "working" {
                std::thread::sleep(Duration::from_millis(u64::from(kill) * 7 % 40));
                child.kill().expect("killed");
            }
        }
        let status = child.wait().expect("it has ended");
        assert_eq!(status.signal(), Some(9), "it did not end by itself: {status}");
    }
    assert!(found > KILLS * 20, "only {found} items outlived {KILLS} kills");
}
