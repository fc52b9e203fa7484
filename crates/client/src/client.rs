//! [`Client`]: the store for programs, from any thread and any executor.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use kv::store::{ListPage, MemberStatus, PutOptions};
use kv::{StoreError, VALUE_BYTES_MAX, Value};

use crate::Store;
use crate::error::Error;
use crate::item::Versioned;
use crate::options::Options;
use crate::pending::{Pending, pending};
use crate::scan::Scan;
use crate::security::SecurityOptions;
use crate::worker::{Gathering, Worker, worker};

/// A pool, reached. Cheap to clone; clones share threads and connections, and may be used from any thread. When the last one is
/// gone its threads end by themselves, after all requests that were made; [`Client::close`] waits for that.
///
/// Every method returns at once with a [`Pending`]: `.await` it on any executor, or `.wait()` for it on a thread.
#[derive(Clone)]
pub struct Client {
    workers: Arc<[Worker]>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    /// By which others than the store are reached.
    pub(crate) security: Arc<SecurityOptions>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("reactors", &self.workers.len()).finish()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.is_foreign() {
            // Neither a lock that a thread held when the process was copied, nor the handle of a thread that is not here, may be
            // touched: what is dropped is one of two.
            std::mem::forget((self.workers.clone(), self.threads.clone()));
        }
    }
}

impl Client {
    /// Reaches the pool that the members at `addresses` (`host:port`) belong to. One that answers is enough: the others are
    /// found from the pool's map, and those that are away are connected to when they are back.
    ///
    /// ```
    /// # let pool = client::testing::MemoryPool::start(3)?;
    /// # let addresses = pool.addresses();
    /// let client = client::Client::connect(addresses, client::Options::default()).wait()?;
    /// # Ok::<(), client::Error>(())
    /// ```
    ///
    /// # Errors
    /// An option or a key file is wrong; no member answers; what answers belongs to no pool.
    pub fn connect<A: AsRef<str>>(addresses: impl IntoIterator<Item = A>, options: Options) -> Pending<Client> {
        let addresses: Arc<[String]> = addresses.into_iter().map(|address| address.as_ref().to_owned()).collect();
        if let Err(error) = options.check() {
            return Pending::failed(error);
        }
        let (workers, ends): (Vec<_>, Vec<_>) = (0..options.reactors).map(|_| worker(&options)).unzip();
        let threads: Arc<Mutex<Vec<_>>> = Arc::default();
        let security = Arc::new(options.security.clone());
        let client = Client { workers: workers.into(), threads: threads.clone(), security };
        let (answer, connecting) = pending(false);
        let arrival = Gathering::new(ends.len(), move |result| answer.send(result.map(|()| client)));
        for (index, end) in ends.into_iter().enumerate() {
            match Worker::start(index, addresses.clone(), &options, end, arrival.clone()) {
                Ok(thread) => threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread),
                Err(error) => arrival.come(Err(error)),
            }
        }
        connecting
    }

    /// The value of `key`; `None`: there is none.
    ///
    /// # Errors
    /// The key is too long; no majority of its members answers.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Pending<Option<Vec<u8>>> {
        self.on_key(false, key, |store, key| async move { Ok(store.get(&key).await?.map(|value| value.to_vec())) })
    }

    /// The value of `key` with its version, expiry and tag.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn get_versioned(&self, key: impl AsRef<[u8]>) -> Pending<Option<Versioned>> {
        self.on_key(false, key, |store, key| async move { Ok(store.get_versioned(&key).await?.map(Versioned::from)) })
    }

    /// Sets `key` to `value`, without an expiry, whatever was there.
    ///
    /// # Errors
    /// Key or value are too long; no majority of the key's members answers, or they are full. Then it may yet take effect:
    /// [`Error::outcome_unknown`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Pending<()> {
        self.put_with(key, value, PutOptions::default())
    }

    /// Sets `key` to `value` with an expiry and a tag, whatever was there.
    ///
    /// ```
    /// # let pool = client::testing::MemoryPool::start(3)?;
    /// # let client = client::Client::connect(pool.addresses(), client::Options::default()).wait()?;
    /// use std::time::Duration;
    /// use client::{PutOptions, expiry_in};
    ///
    /// let options = PutOptions { expiry: Some(expiry_in(Duration::from_secs(3600))), tag: 7 };
    /// client.put_with("session", "open", options).wait()?;
    /// let found = client.get_versioned("session").wait()?.expect("it was put");
    /// assert_eq!((found.value.as_slice(), found.tag, found.expiry), (&b"open"[..], 7, options.expiry));
    /// # Ok::<(), client::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn put_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, options: PutOptions) -> Pending<()> {
        let value = match checked(value.as_ref()) {
            Ok(value) => value,
            Err(error) => return Pending::failed(error),
        };
        self.on_key(true, key, move |store, key| async move { Ok(store.put_with(&key, value, options).await?) })
    }

    /// Removes `key`, whatever was there. Returns whether it was there when the delete looked: of two deletes at once both may
    /// have seen it.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Pending<bool> {
        self.on_key(true, key, |store, key| async move { Ok(store.delete(&key).await?) })
    }

    /// Some keys that begin with `prefix`, in the pool's own order, about `limit` of them, from `cursor` on (0: from the start).
    /// [`Client::scan`] walks over all.
    ///
    /// # Errors
    /// Too few members answer.
    pub fn list(&self, prefix: impl AsRef<[u8]>, cursor: u64, limit: usize) -> Pending<ListPage> {
        self.on_key(false, prefix, move |store, prefix| async move { Ok(store.list(&prefix, cursor, limit).await?) })
    }

    /// Walks over the keys that begin with `prefix`: an iterator that blocks, or [`Scan::next_entry`] to await.
    ///
    /// No snapshot: a key that is there throughout comes exactly once; one that comes or goes meanwhile may be among them.
    ///
    /// ```
    /// # let pool = client::testing::MemoryPool::start(3)?;
    /// # let client = client::Client::connect(pool.addresses(), client::Options::default()).wait()?;
    /// for number in 0..3 {
    ///     client.put(format!("lamp-{number}"), "lit").wait()?;
    /// }
    /// let keys: Result<Vec<_>, _> = client.scan("lamp-").map(|entry| entry.map(|entry| entry.key)).collect();
    /// assert_eq!(keys?.len(), 3);
    /// # Ok::<(), client::Error>(())
    /// ```
    pub fn scan(&self, prefix: impl AsRef<[u8]>) -> Scan {
        Scan::new(self.clone(), prefix.as_ref())
    }

    /// Has `call` made on a reactor thread, which it must not block. If the client is closed first it is dropped.
    ///
    /// # Errors
    /// The client is closed.
    pub fn call_on_reactor(&self, call: impl FnOnce() + Send + 'static) -> Pending<()> {
        let operation = move |_store: Store| {
            call();
            std::future::ready(Ok(()))
        };
        self.workers[0].call(false, operation)
    }

    /// How each member stands with this client, in the order of the pool's map.
    ///
    /// # Errors
    /// The client is closed.
    pub fn members(&self) -> Pending<Vec<MemberStatus>> {
        self.workers[0].call(false, |store| async move { Ok(store.members()) })
    }

    /// Ends the client, and all its clones, after what has begun; what has not is answered by [`Error::Closed`]. Waits up to
    /// 10 s for slow members, so that no replica is left behind. Closing again does nothing, as in a child of `fork`.
    ///
    /// # Errors
    /// None that are known.
    pub fn close(&self) -> Pending<()> {
        if self.is_foreign() {
            return Pending::done(Ok(()));
        }
        let (answer, closing) = pending(false);
        let closed = Gathering::new(self.workers.len(), move |result| answer.send(result));
        let sending: Vec<_> = self.workers.iter().map(|worker| worker.close(closed.clone())).collect();
        closing.behind(Box::pin(async move {
            for sending in sending {
                sending.await;
            }
            Ok(())
        }))
    }

    /// As [`Client::close`], and blocks until the threads are gone: for programs that unload the library, or end, right after.
    ///
    /// # Errors
    /// [`Error::Usage`] on a reactor thread, which would wait for itself.
    pub fn close_and_join(&self) -> Result<(), Error> {
        self.close().wait()?;
        if self.is_foreign() {
            return Ok(());
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panic there was told by the hook.
            let _ = thread.join();
        }
        Ok(())
    }

    /// Whether this process is a copy, made by `fork`, of the one that has the threads.
    fn is_foreign(&self) -> bool {
        self.workers.iter().any(Worker::is_foreign)
    }

    /// Has an operation on `key` done by the thread that the key belongs to: operations on one key from one client take turns
    /// there, and find what the one before has learnt.
    pub(crate) fn on_key<T, F, R>(&self, changes: bool, key: impl AsRef<[u8]>, operation: F) -> Pending<T>
    where
        T: Send + 'static,
        F: FnOnce(Store, Vec<u8>) -> R + Send + 'static,
        R: Future<Output = Result<T, Error>> + 'static,
    {
        let key = key.as_ref().to_vec();
        self.worker_of(&key).call(changes, move |store| operation(store, key))
    }

    pub(crate) fn first_worker(&self) -> &Worker {
        &self.workers[0]
    }

    pub(crate) fn worker_of(&self, key: &[u8]) -> &Worker {
        if self.workers.len() == 1 {
            return &self.workers[0];
        }
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        &self.workers[(hasher.finish() % self.workers.len() as u64) as usize]
    }
}

/// A copy in buffers of the engine, made by the caller's thread. One that is too long is refused before it is copied.
pub(crate) fn checked(value: &[u8]) -> Result<Value, Error> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(StoreError::Value { length: value.len() }.into());
    }
    Ok(Value::copy_from(value))
}
