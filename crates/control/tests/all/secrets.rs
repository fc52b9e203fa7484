//! What a process that asks etcd keeps of a password: the process's own memory is searched when all that knew the password is gone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use control::catalogue::{Etcd, EtcdOptions, User};
use tls::Secret;

use crate::cluster::Cluster;
use crate::etcd::{PASSWORD, make_users};

/// Times that the password is said. Chosen: what is left by accident is written over by what follows.
const TIMES: usize = 12;
/// Bytes that are looked at in one go.
const STEP: usize = 1 << 16;

#[tokio::test(flavor = "multi_thread")]
async fn a_password_does_not_stay_in_memory() {
    let cluster = Cluster::begin(1, "http", Vec::new());
    cluster.settle().await;
    make_users(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    Secret::new(PASSWORD.into()).write_new(&file).unwrap();
    // In a process that knows the password from its file alone.
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "secrets::says_the_password_that_it_is_told_of", "--nocapture"])
        .env("CATALOGUE_MEMBER_WITH_USERS", cluster.endpoint(0))
        .env("CATALOGUE_PASSWORD", file)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&again.stdout).into_owned() + &String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success() && printed.contains("searched"), "{printed}");
}

/// The second process of the test above; by itself it says nothing. On one thread, so that memory is used alike each time.
#[tokio::test]
async fn says_the_password_that_it_is_told_of() {
    let Ok(member) = std::env::var("CATALOGUE_MEMBER_WITH_USERS") else { return };
    let file = std::env::var("CATALOGUE_PASSWORD").unwrap();
    let password = Secret::from_file(Path::new(&file)).unwrap();
    assert!(copies() > 0, "it is found where it is");
    let options = EtcdOptions { user: Some(User { name: "yagura".into(), password }), ..EtcdOptions::new([member]) };
    for _ in 0..TIMES {
        drop(Etcd::open(options.clone()).await.unwrap());
    }
    drop(options);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let left = copies();
    // HTTP/2 may hold the message that was sent last.
    assert!(left <= 1, "{left} copies are left");
    println!("searched");
}

/// How often the end of the password stands in memory that is written. What is looked for stands nowhere itself.
fn copies() -> usize {
    let veiled: Vec<u8> = PASSWORD.as_bytes()[PASSWORD.len() / 2..].iter().map(|byte| !byte).collect();
    let is_there = |window: &[u8]| window.iter().zip(&veiled).all(|(byte, veiled)| !byte == *veiled);
    let mut seen = vec![0; STEP];
    let own = seen.as_ptr() as u64..seen.as_ptr() as u64 + STEP as u64;
    let (maps, memory) = (std::fs::read_to_string("/proc/self/maps").unwrap(), File::open("/proc/self/mem").unwrap());
    let mut found = 0;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let bounds = line.split([' ', '-']).take(2).map(|bound| u64::from_str_radix(bound, 16).unwrap());
        let [mut at, end] = bounds.collect::<Vec<_>>()[..] else { panic!("{line}") };
        while at + veiled.len() as u64 <= end {
            let count = STEP.min((end - at) as usize);
            // What is no memory can't be read.
            if memory.read_exact_at(&mut seen[..count], at).is_err() {
                break;
            }
            let windows = seen[..count].windows(veiled.len()).enumerate();
            found += windows.filter(|(index, window)| !own.contains(&(at + *index as u64)) && is_there(window)).count();
            at += (count - veiled.len() + 1) as u64;
        }
    }
    found
}
