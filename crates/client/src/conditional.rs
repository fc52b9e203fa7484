//! Operations that depend on what was there, and many at once.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use kv::store::{CasOutcome, Increment, PutOptions};
use kv::types::Version;

use crate::client::{Client, checked};
use crate::error::Error;
use crate::item::{Change, Versioned};
use crate::pending::Pending;

impl Client {
    /// Changes `key` as `decide` says of what is there. Linearizable: nothing comes between what `decide` was shown and its
    /// change. It may be called several times, once per attempt, on a reactor thread, which it must not block; the result is
    /// that of the call whose change took effect. If it panics the panic goes on where the result is waited for.
    ///
    /// ```
    /// # let pool = client::testing::MemoryPool::start(3)?;
    /// # let client = client::Client::connect(pool.addresses(), client::Options::default()).wait()?;
    /// use client::{Change, PutOptions};
    ///
    /// client.put("stock", "2").wait()?;
    /// let sell = |found: Option<&client::Versioned>| {
    ///     let left: u32 = found.and_then(|found| String::from_utf8_lossy(&found.value).parse().ok()).unwrap_or(0);
    ///     match left {
    ///         0 => Change::Keep(false),
    ///         1 => Change::Delete(true),
    ///         _ => Change::Put { value: (left - 1).to_string().into(), options: PutOptions::default(), result: true },
    ///     }
    /// };
    /// assert!(client.update("stock", sell).wait()?);
    /// assert!(client.update("stock", sell).wait()?);
    /// assert!(!client.update("stock", sell).wait()?);
    /// # Ok::<(), client::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn update<R, D>(&self, key: impl AsRef<[u8]>, mut decide: D) -> Pending<R>
    where
        R: Clone + Send + 'static,
        D: FnMut(Option<&Versioned>) -> Change<R> + Send + 'static,
    {
        let key = key.as_ref().to_vec();
        let worker = self.worker_of(&key);
        let operation = move |store: crate::Store| async move {
            let panic: Rc<RefCell<Option<Payload>>> = Rc::default();
            let seen = panic.clone();
            let attempt = move |found: Option<&kv::store::Versioned>| {
                let found = found.cloned().map(Versioned::from);
                match catch_unwind(AssertUnwindSafe(|| decide(found.as_ref()))) {
                    Ok(change) => change.into_store(),
                    Err(payload) => {
                        seen.replace(Some(payload));
                        kv::store::Change::Keep(None)
                    }
                }
            };
            let result = store.update(&key, attempt).await?;
            Ok(result.ok_or_else(|| panic.take()))
        };
        worker.answer(true, operation, |answer, decided: Result<Result<R, Option<Payload>>, Error>| match decided {
            Ok(Ok(result)) => answer.send(Ok(result)),
            // `None` is decided only where there was a panic.
            Ok(Err(payload)) => {
                answer.panicked(payload.unwrap_or_else(|| Box::new("an update's closure has panicked")))
            }
            Err(error) => answer.send(Err(error)),
        })
    }

    /// Sets `key` if it is not there. Returns whether it did.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn add(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, options: PutOptions) -> Pending<bool> {
        let value = match checked(value.as_ref()) {
            Ok(value) => value,
            Err(error) => return Pending::failed(error),
        };
        self.on_key(true, key, move |store, key| async move { Ok(store.add(&key, value, options).await?) })
    }

    /// Sets `key` if it is there. Returns whether it did.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn replace(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, options: PutOptions) -> Pending<bool> {
        let value = match checked(value.as_ref()) {
            Ok(value) => value,
            Err(error) => return Pending::failed(error),
        };
        self.on_key(true, key, move |store, key| async move { Ok(store.replace(&key, value, options).await?) })
    }

    /// Sets `key` if its version is still `version`.
    ///
    /// ```
    /// # let pool = client::testing::MemoryPool::start(3)?;
    /// # let client = client::Client::connect(pool.addresses(), client::Options::default()).wait()?;
    /// use client::{CasOutcome, PutOptions};
    ///
    /// client.put("door", "closed").wait()?;
    /// let seen = client.get_versioned("door").wait()?.expect("it was just put");
    /// client.put("door", "locked").wait()?;
    /// let outcome = client.compare_and_set("door", seen.version, "open", PutOptions::default()).wait()?;
    /// assert!(matches!(outcome, CasOutcome::Changed(Some(_))), "somebody has locked it meanwhile");
    /// # Ok::<(), client::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn compare_and_set(
        &self,
        key: impl AsRef<[u8]>,
        version: Version,
        value: impl AsRef<[u8]>,
        options: PutOptions,
    ) -> Pending<CasOutcome> {
        let value = match checked(value.as_ref()) {
            Ok(value) => value,
            Err(error) => return Pending::failed(error),
        };
        self.on_key(true, key, move |store, key| async move {
            Ok(store.compare_and_set(&key, version, value, options).await?)
        })
    }

    /// Removes `key` if its version is still `version`. Returns whether it did.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn compare_and_delete(&self, key: impl AsRef<[u8]>, version: Version) -> Pending<bool> {
        self.update(key, move |found| match found {
            Some(found) if found.version == version => Change::Delete(true),
            _ => Change::Keep(false),
        })
    }

    /// Adds `delta` to the decimal number in `key`, as Redis does; one that is not there counts as `initial`, and without that
    /// nothing is done.
    ///
    /// ```
    /// # let pool = client::testing::MemoryPool::start(3)?;
    /// # let client = client::Client::connect(pool.addresses(), client::Options::default()).wait()?;
    /// use client::Increment;
    ///
    /// assert_eq!(client.increment("visits", 1, None).wait()?, Increment::Missing);
    /// assert_eq!(client.increment("visits", 1, Some(0)).wait()?, Increment::Value(1));
    /// assert_eq!(client.increment("visits", 41, None).wait()?, Increment::Value(42));
    /// # Ok::<(), client::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`]. One whose outcome is unknown may have counted: to try it again may count twice.
    pub fn increment(&self, key: impl AsRef<[u8]>, delta: i64, initial: Option<i64>) -> Pending<Increment> {
        self.on_key(true, key, move |store, key| async move { Ok(store.increment(&key, delta, initial).await?) })
    }

    /// Appends to the value of `key`, which is empty if it is not there. Returns the new length.
    ///
    /// # Errors
    /// As [`Client::put`]; the whole is too long.
    pub fn append(&self, key: impl AsRef<[u8]>, bytes: impl AsRef<[u8]>) -> Pending<usize> {
        let bytes = bytes.as_ref().to_vec();
        self.on_key(true, key, move |store, key| async move { Ok(store.append(&key, &bytes).await?) })
    }

    /// Removes `key` and returns what it had: of two at once only one has it.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn take(&self, key: impl AsRef<[u8]>) -> Pending<Option<Versioned>> {
        self.on_key(true, key, |store, key| async move { Ok(store.take(&key).await?.map(Versioned::from)) })
    }

    /// The values of many keys, pipelined, in the order of the keys; each for itself.
    ///
    /// # Errors
    /// The client is closed. The result of each key is as that of [`Client::get`].
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Pending<Vec<Result<Option<Versioned>, Error>>> {
        let keys: Vec<Vec<u8>> = keys.into_iter().map(|key| key.as_ref().to_vec()).collect();
        let worker = self.worker_of(keys.first().map_or(&[], Vec::as_slice));
        worker.call(false, |store| async move {
            let found = store.get_many(&keys).await;
            Ok(found.into_iter().map(|found| Ok(found?.map(Versioned::from))).collect())
        })
    }

    /// Sets many keys, pipelined; each for itself. The results are in their order.
    ///
    /// ```
    /// # let pool = client::testing::MemoryPool::start(3)?;
    /// # let client = client::Client::connect(pool.addresses(), client::Options::default()).wait()?;
    /// let stored = client.put_many([("north", "pine"), ("south", "palm")]).wait()?;
    /// assert!(stored.iter().all(Result::is_ok));
    /// let found = client.get_many(["north", "east"]).wait()?;
    /// assert_eq!(found[0].as_ref().map(Option::is_some), Ok(true));
    /// assert_eq!(found[1].as_ref().map(Option::is_some), Ok(false));
    /// # Ok::<(), client::Error>(())
    /// ```
    ///
    /// # Errors
    /// The client is closed; a value is too long: then nothing was done. The result of each key is as that of [`Client::put`].
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Pending<Vec<Result<(), Error>>> {
        let copy = |(key, value): (K, V)| Ok((key.as_ref().to_vec(), checked(value.as_ref())?, PutOptions::default()));
        let entries: Vec<_> = match entries.into_iter().map(copy).collect::<Result<_, Error>>() {
            Ok(entries) => entries,
            Err(error) => return Pending::failed(error),
        };
        let worker = self.worker_of(entries.first().map_or(&[], |(key, ..): &(Vec<u8>, _, _)| key.as_slice()));
        worker.call(true, |store| async move {
            let stored = store.put_many(&entries).await;
            Ok(stored.into_iter().map(|stored| Ok(stored?)).collect())
        })
    }
}

type Payload = Box<dyn Any + Send>;
