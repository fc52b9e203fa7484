//! Locks and changes of which nobody can tell whether they took effect, and clients that were away.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use engine::task::{self, LocalFuture};
use engine::time;
use file::meta::{KeyPage, MemoryClient, Meta, Seen, Swapped, Version};
use file::{Error, Files};

use crate::fsck::{Hooked, MINUTE};
use crate::locks::{GOES_ON, locked, whole};
use crate::opened::{Place, bytes, make};
use crate::world::{kind_of, run};

/// What becomes of a change.
enum Fate {
    /// It is not made, and fails.
    Fails,
    /// It takes effect, then this happens; nobody tells what became of it.
    Made(LocalFuture<'static, ()>),
    /// One member has it, and a later change of the same keeps it out; nobody tells what became of it.
    Begun,
}

/// A change that may yet come: its key, what it expects, and what it makes.
type Begun = (Vec<u8>, Option<Version>, Option<Vec<u8>>);

/// A client of which the next changes of a kind of record have a fate.
struct Fated {
    inner: Rc<MemoryClient>,
    kind: u8,
    next: RefCell<Vec<Fate>>,
    begun: RefCell<Option<Begun>>,
}

impl Fated {
    fn new(place: &Place, kind: u8) -> Rc<Fated> {
        Rc::new(Fated { inner: place.meta.client(), kind, next: RefCell::default(), begun: RefCell::default() })
    }
}

impl Meta for Fated {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        self.inner.get(key)
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        Box::pin(async move {
            let is_fated = kind_of(key) == Some(&self.kind) && !self.next.borrow().is_empty();
            if !is_fated {
                return self.inner.swap(key, expected, new).await;
            }
            let fate = self.next.borrow_mut().remove(0);
            match fate {
                Fate::Fails => return Err(Error::Unavailable("a store that is away".into())),
                Fate::Made(then) => {
                    self.inner.swap(key, expected, new).await?;
                    then.await;
                }
                Fate::Begun => *self.begun.borrow_mut() = Some((key.to_vec(), expected, new)),
            }
            Ok(Swapped::Unknown)
        })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        self.inner.list(prefix, cursor, limit)
    }
}

/// A lock is given back whose change before may come late, by a change that nobody tells of; meanwhile another has got it, and a
/// third asks.
#[test]
fn who_gives_back_late_takes_nothing_from_another() {
    run(1, async {
        let place = Place::new().await;
        let fated = Fated::new(&place, b'l');
        let first = place.client_over(Rc::clone(&fated) as Rc<dyn Meta>).await;
        let [second, third] = [place.client().await, place.client().await];
        let file = make(&first, "a").await;
        let [theirs, last] = [second.open_file(file.ino()).await.unwrap(), third.open_file(file.ino()).await.unwrap()];
        first.lock(&file, &whole(1), None).await.unwrap();
        let has = Rc::new(Cell::new(false));
        let grant: LocalFuture<'static, ()> = Box::pin({
            let (second, theirs, has) = (Rc::clone(&second), Rc::clone(&theirs), Rc::clone(&has));
            async move {
                second.lock(&theirs, &whole(1), None).await.unwrap();
                has.set(true);
            }
        });
        *fated.next.borrow_mut() = vec![Fate::Fails, Fate::Made(grant)];
        assert!(first.leave(&file, 1).await.is_err());
        let _alive = [first.keep_alive(), second.keep_alive()];
        time::sleep(Duration::from_secs(16)).await;
        assert!(has.get());
        assert_eq!(third.lock(&last, &whole(1), None).await, Err(Error::Locked));
        second.leave(&theirs, 1).await.unwrap();
        third.lock(&last, &whole(1), None).await.unwrap();
        third.leave(&last, 1).await.unwrap();
        assert_eq!(locked(&place), 0);
    });
}

/// A process ends, and what it wrote under its lock can't be stored: one member of the pool has the change, and it may come when
/// somebody finds it there. Others have the lock when it can't any more.
#[test]
fn what_could_not_be_stored_does_not_come_under_the_next_lock() {
    run(1, async {
        let place = Place::new().await;
        let fated = Fated::new(&place, b'i');
        let first = place.client_over(Rc::clone(&fated) as Rc<dyn Meta>).await;
        let second = place.client().await;
        let _alive = [first.keep_alive(), second.keep_alive()];
        let file = make(&first, "a").await;
        file.write(0, b"before").await.unwrap();
        file.flush().await.unwrap();
        first.lock(&file, &whole(1), None).await.unwrap();
        let theirs = second.open_file(file.ino()).await.unwrap();
        file.write(0, b"mine").await.unwrap();
        *fated.next.borrow_mut() = vec![Fate::Begun, Fate::Fails, Fate::Fails];
        let begun = time::now();
        assert!(first.leave(&file, 1).await.is_err());
        let granted = time::timeout(Duration::from_secs(20), second.lock(&theirs, &whole(1), GOES_ON)).await;
        assert!(granted.is_err(), "it may come yet");
        second.lock(&theirs, &whole(1), GOES_ON).await.unwrap();
        assert!(begun.elapsed() < 2 * MINUTE, "{:?}", begun.elapsed());
        assert_eq!(bytes(&theirs).await, b"before");
        let (key, expected, new) = fated.begun.take().unwrap();
        assert!(matches!(fated.inner.swap(&key, expected, new).await, Ok(Swapped::Changed)), "it comes now");
        second.unlock(&theirs, &whole(1)).await.unwrap();
    });
}

/// The host slept for a while: what is written then is stored at once, under the client's next number.
#[test]
fn who_was_away_writes_at_once() {
    run(1, async {
        let place = Place::new().await;
        let files: Rc<Files> = place.client().await;
        let file = make(&files, "a").await;
        file.write(0, &[1; 100_000]).await.unwrap();
        file.flush().await.unwrap();
        let before = files.names().client();
        time::sleep(11 * MINUTE).await;
        file.write(0, &[2; 100_000]).await.unwrap();
        let flushing = task::spawn({
            let file = Rc::clone(&file);
            async move { file.flush().await }
        });
        assert_eq!(flushing.await, Ok(()));
        assert_ne!(files.names().client(), before);
        assert_eq!(bytes(&file).await, [2; 100_000]);
    });
}

/// A process ends, what it wrote can't be stored, and then its mount: others wait for as long as for one who died.
#[test]
fn who_ends_with_what_could_not_be_stored_keeps_others_waiting() {
    run(1, async {
        let place = Place::new().await;
        let fated = Fated::new(&place, b'i');
        let first = place.client_over(Rc::clone(&fated) as Rc<dyn Meta>).await;
        let second = place.client().await;
        let file = make(&first, "a").await;
        file.write(0, b"before").await.unwrap();
        file.flush().await.unwrap();
        first.lock(&file, &whole(1), None).await.unwrap();
        let theirs = second.open_file(file.ino()).await.unwrap();
        let _alive = second.keep_alive();
        file.write(0, b"mine").await.unwrap();
        *fated.next.borrow_mut() = vec![Fate::Begun, Fate::Fails, Fate::Fails];
        assert!(first.leave(&file, 1).await.is_err());
        first.close_file(&file).await.unwrap();
        first.close().await.unwrap();
        assert_eq!(second.lock(&theirs, &whole(1), None).await, Err(Error::Locked));
        second.lock(&theirs, &whole(1), GOES_ON).await.unwrap();
        let (key, expected, new) = fated.begun.take().unwrap();
        assert!(matches!(fated.inner.swap(&key, expected, new).await, Ok(Swapped::Changed)), "it comes now");
    });
}

/// A free lock is asked for, and the answer takes so long that another lock of the client is lost meanwhile; the record says its
/// old term again by then. A lock of a term that nobody knows of is none.
#[test]
fn no_lock_is_got_in_a_term_that_the_record_does_not_say() {
    run(1, async {
        let place = Place::new().await;
        let waits: Rc<Cell<bool>> = Rc::default();
        let hooked = Hooked::new(&place.meta, {
            let waits = Rc::clone(&waits);
            move |is_change, key| {
                let comes = !is_change && kind_of(key) == Some(&b'l') && waits.replace(false);
                comes.then(|| -> LocalFuture<'static, ()> { Box::pin(time::sleep(Duration::from_secs(42))) })
            }
        });
        let (first, second) = (place.client_over(hooked).await, place.client().await);
        let (held, free) = (make(&first, "held").await, make(&first, "free").await);
        let theirs = second.open_file(free.ino()).await.unwrap();
        first.lock(&held, &whole(1), None).await.unwrap();
        waits.set(true);
        let asking = task::spawn({
            let (first, free) = (Rc::clone(&first), Rc::clone(&free));
            async move { first.lock(&free, &whole(1), None).await }
        });
        time::sleep(Duration::from_secs(41)).await;
        first.names().renew().await.unwrap();
        let got = asking.await;
        let others = second.lock(&theirs, &whole(1), None).await;
        assert!(got.is_err() || others.is_err(), "two have it: {got:?}, {others:?}");
    });
}
