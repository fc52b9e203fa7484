//! A medium that has no room, or fails, for a while: what the file engine says meanwhile, and that it goes on when the medium does.

use std::io::{Error as IoError, ErrorKind, Result as IoResult};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use control::catalogue::{Catalogue, Embedded, EmbeddedOptions, Error, Outcome, Prefix, Transaction};
use redb::StorageBackend;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::words::*;

#[derive(Debug)]
struct State {
    bytes: Mutex<Vec<u8>>,
    /// It takes no more bytes than these.
    room: AtomicU64,
    /// Nothing is written.
    is_broken: AtomicBool,
    /// Nothing is synced, though it is written.
    is_unsynced: AtomicBool,
}

/// A medium in memory; clones are the same one.
#[derive(Clone, Debug)]
struct Medium(Arc<State>);

impl Medium {
    fn holding(bytes: Vec<u8>) -> Medium {
        let (bytes, room) = (Mutex::new(bytes), u64::MAX.into());
        Medium(Arc::new(State { bytes, room, is_broken: false.into(), is_unsynced: false.into() }))
    }

    async fn open(&self) -> Embedded {
        Embedded::on(self.clone(), EmbeddedOptions::default()).await.expect("a catalogue")
    }

    fn image(&self) -> Vec<u8> {
        self.0.bytes.lock().unwrap().clone()
    }

    fn has_room_for(&self, bytes: u64) {
        self.0.room.store(bytes, Ordering::SeqCst);
    }

    fn is_broken(&self, is_broken: bool) {
        self.0.is_broken.store(is_broken, Ordering::SeqCst);
    }

    fn check(&self, fault: &AtomicBool) -> IoResult<()> {
        if fault.load(Ordering::SeqCst) { Err(IoError::other("the medium has failed")) } else { Ok(()) }
    }
}

impl StorageBackend for Medium {
    fn len(&self) -> IoResult<u64> {
        Ok(self.0.bytes.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> IoResult<()> {
        let (bytes, at) = (self.0.bytes.lock().unwrap(), offset as usize);
        out.copy_from_slice(bytes.get(at..at + out.len()).ok_or_else(|| IoError::other("beyond the end"))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> IoResult<()> {
        self.check(&self.0.is_broken)?;
        let mut bytes = self.0.bytes.lock().unwrap();
        if len > (bytes.len() as u64).max(self.0.room.load(Ordering::SeqCst)) {
            return Err(ErrorKind::StorageFull.into());
        }
        bytes.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> IoResult<()> {
        self.check(&self.0.is_broken)?;
        self.check(&self.0.is_unsynced)
    }

    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        self.check(&self.0.is_broken)?;
        let (mut bytes, at) = (self.0.bytes.lock().unwrap(), offset as usize);
        bytes[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_medium_is_told_and_gone_on_with_when_it_has_room() {
    let medium = Medium::holding(Vec::new());
    let catalogue = medium.open().await;
    let start = change(&catalogue, vec![put("a", "1")]).await;
    let mut watch = catalogue.watch(Prefix::all(), start);
    let lease = catalogue.grant(ttl(600)).await.unwrap();
    medium.has_room_for(0);
    let mut written = 0;
    let once =
        |count: usize| Transaction::new(Vec::new(), vec![put(format!("large/{count}"), vec![7; 500_000])]).unwrap();
    let told = loop {
        match catalogue.commit(once(written)).await {
            Ok(Outcome::Committed(_)) => written += 1,
            other => break other,
        }
        assert!(written < 1000, "it has room");
    };
    for told in [told, catalogue.commit(once(written)).await] {
        assert!(matches!(told, Err(Error::Full { .. })), "{told:?}");
        assert!(get(&catalogue, "a").await.is_some(), "what is there can be read");
        assert!(get(&catalogue, format!("large/{written}")).await.is_none());
    }
    medium.has_room_for(u64::MAX);
    let revision = change(&catalogue, vec![put_leased("b", "1", lease.id)]).await;
    for _ in 0..written {
        assert!(next(&mut watch).await.revision < revision);
    }
    assert_eq!(next(&mut watch).await.revision, revision);
    assert!(catalogue.keep_alive(lease.id).await.is_ok());
}

/// A disk that is full is made of a limit to the size of files, which a process must have been begun with: the second half is this
/// program again.
#[test]
fn a_file_that_could_not_grow_is_gone_on_with_when_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let again = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -S -f 4000; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "medium::fills_the_file_that_it_is_told_of", "--nocapture"])
        .env("CATALOGUE_TO_FILL", folder.path().join("catalogue.redb"))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&again.stdout).into_owned() + &String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success() && printed.contains("filled and gone on with"), "{printed}");
}

/// The second process of the test above; by itself it fills nothing.
#[tokio::test]
async fn fills_the_file_that_it_is_told_of() {
    let Some(file) = std::env::var_os("CATALOGUE_TO_FILL") else { return };
    let catalogue = Embedded::open(file, EmbeddedOptions::default()).await.unwrap();
    change(&catalogue, vec![put("a", "1")]).await;
    let once = || Transaction::new(Vec::new(), vec![put("large", vec![7; 500_000])]).unwrap();
    let mut told = catalogue.commit(once()).await;
    for _ in 0..1000 {
        if told.is_err() {
            break;
        }
        told = catalogue.commit(once()).await;
    }
    assert!(matches!(told, Err(Error::Full { .. })), "{told:?}");
    assert!(get(&catalogue, "a").await.is_some());
    let limit = Rlimit { current: None, ..getrlimit(Resource::Fsize) };
    setrlimit(Resource::Fsize, limit).unwrap();
    change(&catalogue, vec![put("large", vec![7; 500_000])]).await;
    println!("filled and gone on with");
}

#[tokio::test(start_paused = true)]
async fn a_medium_that_has_failed_once_is_opened_anew_and_says_what_was_committed() {
    let medium = Medium::holding(Vec::new());
    let catalogue = medium.open().await;
    let start = change(&catalogue, vec![put("a", "1")]).await;
    let mut watch = catalogue.watch(Prefix::all(), start);
    medium.0.is_unsynced.store(true, Ordering::SeqCst);
    let once = Transaction::new(Vec::new(), vec![put("b", "1")]).unwrap();
    let told = catalogue.commit(once).await;
    assert!(matches!(told, Err(Error::OutcomeUnknown { .. })), "{told:?}");
    let told = catalogue.get(key("a")).await;
    assert!(matches!(told, Err(Error::Storage { .. })), "{told:?}");
    medium.0.is_unsynced.store(false, Ordering::SeqCst);
    // Whether it was committed is what all are told alike.
    if let Some(entry) = get(&catalogue, "b").await {
        assert_eq!(next(&mut watch).await.revision, entry.modified);
    }
    let revision = change(&catalogue, vec![put("c", "1")]).await;
    assert_eq!(next(&mut watch).await.revision, revision);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_told_of_the_end_of_a_lease_that_a_crash_may_undo() {
    let medium = Medium::holding(Vec::new());
    let catalogue = medium.open().await;
    let (short, revoked) = (catalogue.grant(ttl(10)).await.unwrap(), catalogue.grant(ttl(600)).await.unwrap());
    change(&catalogue, vec![put_leased("a", "1", short.id), put_leased("b", "1", revoked.id)]).await;
    medium.is_broken(true);
    assert!(catalogue.revoke(revoked.id).await.is_err());
    tokio::time::sleep(Duration::from_secs(20)).await;
    for lease in [short.id, revoked.id] {
        let told = catalogue.keep_alive(lease).await;
        assert!(matches!(told, Err(Error::Storage { .. })), "{told:?}");
        let late = Transaction::new(Vec::new(), vec![put_leased("late", "1", lease)]).unwrap();
        let told = catalogue.commit(late).await;
        assert!(matches!(told, Err(Error::Storage { .. })), "{told:?}");
    }
    // Here is what a crash would leave: a lease of whose end nobody was told lasts on.
    let after = Medium::holding(medium.image()).open().await;
    assert!(after.keep_alive(short.id).await.is_ok());
    // The end that is told is the end, before and after a crash.
    medium.is_broken(false);
    for lease in [short.id, revoked.id] {
        let told = catalogue.keep_alive(lease).await;
        assert!(matches!(told, Err(Error::LeaseGone { id }) if id == lease), "{told:?}");
        let after = Medium::holding(medium.image()).open().await;
        assert!(matches!(after.keep_alive(lease).await, Err(Error::LeaseGone { .. })));
    }
    let after = Medium::holding(medium.image()).open().await;
    assert_eq!((get(&after, "a").await, get(&after, "b").await), (None, None));
}

#[tokio::test(start_paused = true)]
async fn whoever_is_told_first_of_the_end_of_a_lease_is_told_of_a_stable_one() {
    for is_asked_by_commit in [false, true] {
        let medium = Medium::holding(Vec::new());
        let catalogue = medium.open().await;
        let lease = catalogue.grant(ttl(10)).await.unwrap();
        change(&catalogue, vec![put_leased("a", "1", lease.id)]).await;
        // The lease's time is over, its keys could not be deleted, and nobody has tried again yet.
        medium.is_broken(true);
        tokio::time::sleep(Duration::from_millis(11_500)).await;
        medium.is_broken(false);
        let late = Transaction::new(Vec::new(), vec![put_leased("late", "1", lease.id)]).unwrap();
        let told = match is_asked_by_commit {
            true => catalogue.commit(late).await.map(|_| ()),
            false => catalogue.keep_alive(lease.id).await.map(|_| ()),
        };
        assert!(matches!(told, Err(Error::LeaseGone { .. })), "{told:?}");
        let after = Medium::holding(medium.image()).open().await;
        assert!(matches!(after.keep_alive(lease.id).await, Err(Error::LeaseGone { .. })));
        assert_eq!((get(&after, "a").await, get(&after, "late").await), (None, None));
    }
}
