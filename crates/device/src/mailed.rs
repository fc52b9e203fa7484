//! [`Mailed`]: a namespace that belongs to one thread, for all threads of a process.
//!
//! Invariants:
//! - The namespace is used by the thread that has it, and by no other: what another thread gives goes to that thread by mail, and
//!   the answer comes back by mail. No lock is held while a command runs.
//! - What other threads are told without asking is never older than the last answer that they got, nor than what the thread that
//!   has it was told when it asked last.
//! - What the thread has begun runs to its end, also when its caller has gone: then its outcome is open, as with any dropped
//!   command. What has not begun by then never does: whoever has waited for all that a host had under way takes what it finds for
//!   what is.
//!
//! Downside: a command of another thread costs two boxes and two wakes, and all commands end on one core. A namespace that every
//! thread can reach by itself (as `fabric::host::PerThread`) is better where there is one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::file::Lifetime;
use engine::sync::{MailReceiver, MailSender, mailbox};
use engine::task::{self, LocalFuture};
use engine::{Buf, View};

use crate::erased::{Erased, ErasedMethods};
use crate::{Durability, Error, Lba, Link, Namespace, NamespaceInfo, Writability, Zone, ZoneAction, ZonedInfo};

/// Commands on their way to the thread. Chosen: some queues' depths; who finds no room waits.
const MAIL_MAX: usize = 1024;

type Held = Rc<dyn ErasedMethods>;
type Command = Box<dyn FnOnce(Held) -> LocalFuture<'static, ()> + Send>;

thread_local! {
    /// What this thread has, by number.
    static HELD: RefCell<BTreeMap<u64, Held>> = const { RefCell::new(BTreeMap::new()) };
}

/// What other threads are told without asking.
#[derive(Clone)]
struct Told {
    info: NamespaceInfo,
    writability: Writability,
    used_blocks: u64,
    link: Link,
    zoned: Option<ZonedInfo>,
}

impl Told {
    fn by(namespace: &dyn ErasedMethods) -> Told {
        Told {
            // Attributes are not mailed: who serves the namespace must not promise that they are kept.
            info: NamespaceInfo { persists_attributes: false, ..namespace.info() },
            writability: namespace.writability(),
            used_blocks: namespace.used_blocks(),
            link: namespace.link(),
            zoned: namespace.zoned(),
        }
    }
}

struct Inner {
    /// Of all there were in this process.
    number: u64,
    mail: MailSender<Command>,
    told: Arc<Mutex<Told>>,
}

/// See the module. A clone is the same namespace.
#[derive(Clone)]
pub struct Mailed(Arc<Inner>);

const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Mailed>();
};

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner) // replaced whole, so always sound
}

fn gone() -> Error {
    Error::NotConnected("the thread that has the namespace: it has ended".into())
}

/// A result of a command that the thread did not take.
trait OrGone {
    fn or_gone(self) -> Result<(), Error>;
}

impl OrGone for Option<Result<(), Error>> {
    fn or_gone(self) -> Result<(), Error> {
        self.unwrap_or_else(|| Err(gone()))
    }
}

impl Mailed {
    /// Of a namespace that this thread has, as long as its reactor runs and until [`Mailed::leave`].
    pub fn new(namespace: Rc<impl Namespace>) -> Mailed {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let held: Held = namespace;
        let told = Arc::new(Mutex::new(Told::by(&*held)));
        let (mail, letters) = mailbox(MAIL_MAX);
        HELD.with_borrow_mut(|all| all.insert(number, held.clone()));
        task::spawn(serve(held, letters)).detach();
        Mailed(Arc::new(Inner { number, mail, told }))
    }

    /// As a namespace of any kind. Whoever makes it one itself compiles all of its commands.
    #[inline(never)]
    pub fn erased(&self) -> Erased {
        Erased::new(self.clone())
    }

    /// The thread that has it gives it up: commands fail from now on. To be called by that thread.
    pub fn leave(&self) {
        HELD.with_borrow_mut(|all| all.remove(&self.0.number));
    }

    /// The namespace itself, on the thread that has it.
    fn here(&self) -> Option<Held> {
        HELD.with_borrow(|all| all.get(&self.0.number).cloned())
    }

    fn told(&self) -> Told {
        let Some(here) = self.here() else { return lock(&self.0.told).clone() };
        // For the others, too: what has become of it by a command of this thread's own nobody would tell them.
        let now = Told::by(&*here);
        *lock(&self.0.told) = now.clone();
        now
    }

    /// Has the other thread run a command. `None`: it has ended.
    async fn ask<T: Send + 'static>(
        &self,
        command: impl FnOnce(Held) -> LocalFuture<'static, T> + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = mailbox(1);
        let told = self.0.told.clone();
        // Here as long as the caller waits.
        let caller = Arc::new(());
        let waits = Arc::downgrade(&caller);
        let command: Command = Box::new(move |namespace| {
            Box::pin(async move {
                if waits.strong_count() == 0 {
                    return;
                }
                let result = command(namespace.clone()).await;
                // Before the answer: who gets an error looks at once at what the namespace has become.
                *lock(&told) = Told::by(&*namespace);
                // Nobody waits any more: the outcome is open to them.
                let _ = reply.try_send(result);
            })
        });
        self.0.mail.send(command).await.ok()?;
        let result = answer.recv().await;
        drop(caller);
        result
    }
}

/// Runs what is mailed, as long as somebody can mail.
async fn serve(namespace: Held, letters: MailReceiver<Command>) {
    while let Some(command) = letters.recv().await {
        task::spawn(command(namespace.clone())).detach();
    }
}

impl Namespace for Mailed {
    crate::namespace_without!(attributes);

    fn info(&self) -> NamespaceInfo {
        self.told().info
    }

    fn writability(&self) -> Writability {
        self.told().writability
    }

    fn used_blocks(&self) -> u64 {
        self.told().used_blocks
    }

    fn link(&self) -> Link {
        self.told().link
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        if let Some(here) = self.here() {
            return here.read(lba, buf).await;
        }
        let len = buf.len();
        let answer = self.ask(move |namespace| Box::pin(async move { namespace.read(lba, buf).await })).await;
        answer.unwrap_or_else(|| (Err(gone()), Buf::with_len(len)))
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        if let Some(here) = self.here() {
            return here.write(lba, data, durability).await;
        }
        self.ask(move |namespace| Box::pin(async move { namespace.write(lba, data, durability).await })).await.or_gone()
    }

    async fn flush(&self) -> Result<(), Error> {
        if let Some(here) = self.here() {
            return here.flush().await;
        }
        self.ask(move |namespace| Box::pin(async move { namespace.flush().await })).await.or_gone()
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        if let Some(here) = self.here() {
            return here.compare(lba, expected).await;
        }
        self.ask(move |namespace| Box::pin(async move { namespace.compare(lba, expected).await })).await.or_gone()
    }

    async fn compare_and_write(
        &self,
        lba: Lba,
        expected: View,
        new: View,
        durability: Durability,
    ) -> Result<(), Error> {
        if let Some(here) = self.here() {
            return here.compare_and_write(lba, expected, new, durability).await;
        }
        let swap = move |namespace: Held| -> LocalFuture<'static, _> {
            Box::pin(async move { namespace.compare_and_write(lba, expected, new, durability).await })
        };
        self.ask(swap).await.or_gone()
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        if let Some(here) = self.here() {
            return here.write_zeroes(lba, blocks, durability).await;
        }
        let zero = move |namespace: Held| -> LocalFuture<'static, _> {
            Box::pin(async move { namespace.write_zeroes(lba, blocks, durability).await })
        };
        self.ask(zero).await.or_gone()
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        if let Some(here) = self.here() {
            return here.deallocate(lba, blocks).await;
        }
        self.ask(move |namespace| Box::pin(async move { namespace.deallocate(lba, blocks).await })).await.or_gone()
    }

    async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        if let Some(here) = self.here() {
            return here.verify(lba, blocks).await;
        }
        self.ask(move |namespace| Box::pin(async move { namespace.verify(lba, blocks).await })).await.or_gone()
    }

    async fn write_uncorrectable(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        if let Some(here) = self.here() {
            return here.write_uncorrectable(lba, blocks).await;
        }
        let spoil = move |namespace: Held| -> LocalFuture<'static, _> {
            Box::pin(async move { namespace.write_uncorrectable(lba, blocks).await })
        };
        self.ask(spoil).await.or_gone()
    }

    async fn hint_lifetime(&self, lifetime: Lifetime) -> bool {
        if let Some(here) = self.here() {
            return here.hint_lifetime(lifetime).await;
        }
        let hint = self.ask(move |namespace| Box::pin(async move { namespace.hint_lifetime(lifetime).await }));
        hint.await.unwrap_or(false)
    }

    fn zoned(&self) -> Option<ZonedInfo> {
        self.told().zoned
    }

    async fn zones(&self, from: Lba, max: usize) -> Result<Vec<Zone>, Error> {
        if let Some(here) = self.here() {
            return here.zones(from, max).await;
        }
        let zones = self.ask(move |namespace| Box::pin(async move { namespace.zones(from, max).await }));
        zones.await.unwrap_or_else(|| Err(gone()))
    }

    async fn change_zone(&self, zone: Option<Lba>, action: ZoneAction) -> Result<(), Error> {
        if let Some(here) = self.here() {
            return here.change_zone(zone, action).await;
        }
        self.ask(move |namespace| Box::pin(async move { namespace.change_zone(zone, action).await })).await.or_gone()
    }

    async fn append(&self, zone: Lba, data: View, durability: Durability) -> Result<Lba, Error> {
        if let Some(here) = self.here() {
            return here.append(zone, data, durability).await;
        }
        let append = self.ask(move |namespace| Box::pin(async move { namespace.append(zone, data, durability).await }));
        append.await.unwrap_or_else(|| Err(gone()))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    use engine::{Buf, Reactor, ReactorConfig, View};

    use super::{Mailed, gone};
    use crate::{Durability, Error, Lba, Memory, Namespace, Writability};

    /// Memory that fails at its first write, and takes none from then on. Once it has failed it takes its time to say so.
    struct Failing {
        memory: Memory,
        failed: Cell<bool>,
    }

    impl Namespace for Failing {
        crate::delegate_namespace!(this => { Failing { memory, .. } => memory };
            info, read, flush, compare, compare_and_write, write_zeroes, deallocate, verify, write_uncorrectable,
            hint_lifetime, used_blocks, link, attribute, set_attribute, zones);

        async fn write(&self, _lba: Lba, _data: View, _durability: Durability) -> Result<(), Error> {
            self.failed.set(true);
            Err(Error::WriteFault("told to".into()))
        }

        fn writability(&self) -> Writability {
            if !self.failed.get() {
                return Writability::Writable;
            }
            std::thread::sleep(Duration::from_millis(50));
            Writability::Failed
        }
    }

    /// A write that had been mailed was begun when its caller had gone, and came over what was written since: a target had told
    /// another host that nothing of the first one's was under way.
    #[test]
    fn what_has_not_begun_when_its_caller_goes_never_does() {
        let (sender, namespaces) = std::sync::mpsc::channel::<Mailed>();
        let (tell, told) = std::sync::mpsc::channel();
        let data = |byte: u8| Buf::copy_from(&[byte; 4096]).freeze();
        let other = std::thread::spawn(move || {
            let mailed = namespaces.recv().expect("it is sent");
            let body = async move {
                let write = mailed.write(Lba(0), data(7), Durability::Stable);
                let gone = engine::time::timeout(Duration::from_millis(1), write).await;
                tell.send(gone.is_err()).expect("the thread waits");
                mailed.flush().await
            };
            Reactor::run(ReactorConfig::default(), body).expect("a reactor")
        });
        let body = async move {
            let memory = Memory::new(16 * 4096, 4096, [1; 16]).expect("it fits");
            let mailed = Mailed::new(Rc::new(memory));
            sender.send(mailed.clone()).expect("the thread waits");
            // Nothing that is mailed begins before this thread goes on.
            assert_eq!(told.recv(), Ok(true));
            mailed.write(Lba(0), data(9), Durability::Stable).await.expect("it is here");
            while !other.is_finished() {
                engine::time::sleep(Duration::from_millis(1)).await;
            }
            // Behind the write.
            other.join().expect("it did not panic").expect("flushed");
            mailed.read(Lba(0), Buf::with_len(4096)).await.1
        };
        let found = Reactor::run(ReactorConfig::default(), body).expect("a reactor");
        assert!(found.iter().all(|byte| *byte == 9));
    }

    /// The answer went out before what other threads are told was renewed: a target on another thread that got the error found the
    /// namespace writable, and told its hosts nothing until the next command failed.
    #[test]
    fn who_gets_the_error_finds_what_the_namespace_has_become() {
        let (sender, namespaces) = std::sync::mpsc::channel::<Mailed>();
        let other = std::thread::spawn(move || {
            let mailed = namespaces.recv().expect("it is sent");
            let write = async move {
                let data = Buf::copy_from(&[7; 4096]).freeze();
                let before = mailed.writability();
                let written = mailed.write(Lba(0), data, Durability::Stable).await;
                (before, written, mailed.writability())
            };
            Reactor::run(ReactorConfig::default(), write).expect("a reactor")
        });
        let body = async move {
            let memory = Memory::new(16 * 4096, 4096, [1; 16]).expect("it fits");
            let mailed = Mailed::new(Rc::new(Failing { memory, failed: Cell::new(false) }));
            sender.send(mailed).expect("the thread waits");
            while !other.is_finished() {
                engine::time::sleep(Duration::from_millis(1)).await;
            }
            other.join().expect("it did not panic")
        };
        let told = Reactor::run(ReactorConfig::default(), body).expect("a reactor");
        let fault = Err(Error::WriteFault("told to".into()));
        assert_eq!(told, (Writability::Writable, fault, Writability::Failed));
    }

    /// A target told its hosts, by events, of a failure that the thread which has the namespace had met, and a host whose queue was
    /// on another thread then read in Identify that all was well.
    #[test]
    fn what_the_thread_that_has_it_was_told_the_others_are_told() {
        let body = async {
            let memory = Memory::new(16 * 4096, 4096, [1; 16]).expect("it fits");
            let mailed = Mailed::new(Rc::new(Failing { memory, failed: Cell::new(false) }));
            let data = Buf::copy_from(&[7; 4096]).freeze();
            assert!(mailed.write(Lba(0), data, Durability::Stable).await.is_err());
            let here = mailed.writability();
            let there = std::thread::spawn(move || mailed.writability()).join().expect("it did not panic");
            (here, there)
        };
        let told = Reactor::run(ReactorConfig::default(), body).expect("a reactor");
        assert_eq!(told, (Writability::Failed, Writability::Failed));
    }

    #[test]
    fn another_thread_reads_what_this_one_has() {
        let (sender, namespaces) = std::sync::mpsc::channel::<Mailed>();
        let other = std::thread::spawn(move || {
            let mailed = namespaces.recv().expect("it is sent");
            Reactor::run(ReactorConfig::default(), async move {
                let data = Buf::copy_from(&[7; 4096]).freeze();
                mailed.write(Lba(3), data.clone(), Durability::Stable).await.expect("it is there");
                let swapped = mailed.compare_and_write(Lba(3), data.clone(), data, Durability::Cached).await;
                assert_eq!(swapped, Ok(()));
                let (read, buf) = mailed.read(Lba(3), Buf::with_len(4096)).await;
                assert_eq!((read, &buf[..]), (Ok(()), &[7; 4096][..]));
                let beyond = mailed.write_zeroes(Lba(1 << 40), 1, Durability::Cached).await;
                assert!(matches!(beyond, Err(Error::OutOfRange { .. })), "{beyond:?}");
                assert_eq!(mailed.info().blocks, 16);
                mailed
            })
            .expect("a reactor")
        });
        let mailed = Reactor::run(ReactorConfig::default(), async move {
            let memory = Memory::new(16 * 4096, 4096, [1; 16]).expect("it fits");
            let mailed = Mailed::new(Rc::new(memory));
            sender.send(mailed.clone()).expect("the thread waits");
            while !other.is_finished() {
                engine::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            let (read, buf) = mailed.read(Lba(3), Buf::with_len(4096)).await;
            assert_eq!((read, buf[0]), (Ok(()), 7));
            mailed.leave();
            other.join().expect("it did not panic")
        });
        // Its thread's reactor has ended.
        let mailed = mailed.expect("a reactor");
        let flushed = Reactor::run(ReactorConfig::default(), async move { mailed.flush().await });
        assert_eq!(flushed.expect("a reactor"), Err(gone()));
    }
}
