//! The client's operations.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use client::files::Owner;
use client::{CasOutcome, Client, Error, Increment, Options, PutOptions, SecurityOptions, Uuid, Version};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::{Object, deliver, exception, named, versioned};
use crate::files::Files;
use crate::notifier::Notifier;

/// A pool, reached.
#[pyclass(frozen, module = "yagura._yagura")]
pub struct Core {
    client: Client,
    notifier: Arc<Notifier>,
}

fn put_options(expiry: Option<u64>, tag: u32) -> PutOptions {
    PutOptions { expiry, tag }
}

fn boolean(py: Python<'_>, yes: bool) -> PyResult<Object> {
    Ok(yes.into_pyobject(py)?.to_owned().into_any().unbind())
}

/// A list of what each key's result is: `convert`'s, or an exception.
fn each<T>(
    py: Python<'_>,
    results: Vec<Result<T, Error>>,
    convert: impl Fn(Python<'_>, T) -> PyResult<Object>,
) -> PyResult<Object> {
    let one = |result: Result<T, Error>| match result {
        Ok(result) => convert(py, result),
        Err(error) => Ok(exception(py, &error).into_value(py).into_any()),
    };
    let all: Vec<Object> = results.into_iter().map(one).collect::<PyResult<_>>()?;
    Ok(all.into_pyobject(py)?.into_any().unbind())
}

#[pymethods]
impl Core {
    /// Reaches a pool.
    #[staticmethod]
    #[pyo3(signature = (addresses, reactors, queue, timeout, repair, pool_id, host_nqn, dhchap_key_file, dhchap_ctrl_key_file,
        concat, tls_key_file, tls_identity_zero, tls_legacy, done))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the package's own code")]
    fn connect(
        py: Python<'_>,
        addresses: Vec<String>,
        reactors: usize,
        queue: Option<usize>,
        timeout: Option<f64>,
        repair: bool,
        pool_id: Option<String>,
        host_nqn: Option<String>,
        dhchap_key_file: Option<PathBuf>,
        dhchap_ctrl_key_file: Option<PathBuf>,
        concat: bool,
        tls_key_file: Option<PathBuf>,
        tls_identity_zero: bool,
        tls_legacy: bool,
        done: Option<Object>,
    ) -> PyResult<Object> {
        let security = SecurityOptions {
            host_nqn,
            dhchap_key_file,
            dhchap_ctrl_key_file,
            concatenation: concat,
            tls_key_file,
            tls_identity_zero,
            tls_legacy,
        };
        let timeout = timeout.map(Duration::try_from_secs_f64).transpose();
        let timeout = timeout.map_err(|error| named(py, "UsageError", format!("timeout: {error}")))?;
        let unknown =
            |id: &str, error: &dyn std::fmt::Display| named(py, "UsageError", format!("pool_id `{id}`: {error}"));
        let pool = pool_id.map(|id| id.parse::<Uuid>().map_err(|error| unknown(&id, &error))).transpose()?;
        let plain = Options::default();
        let options = Options { reactors, queue: queue.unwrap_or(plain.queue), timeout, repair, pool, security };
        let notifier = Notifier::new();
        let own = notifier.clone();
        deliver(py, &notifier, Client::connect(addresses, options), done, move |py, client| {
            Ok(Py::new(py, Core { client, notifier: own })?.into_any())
        })
    }

    fn close(&self, py: Python<'_>, done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.client.close(), done, |py, ()| Ok(py.None()))
    }

    /// A file system of the pool; what is made in it belongs to this user and group.
    fn file_system(&self, py: Python<'_>, name: &str, uid: u32, gid: u32, done: Option<Object>) -> PyResult<Object> {
        let notifier = self.notifier.clone();
        deliver(py, &self.notifier, self.client.file_system(name, Owner { uid, gid }), done, move |py, file_system| {
            Ok(Py::new(py, Files { file_system, notifier })?.into_any())
        })
    }

    fn get(&self, py: Python<'_>, key: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.client.get(key), done, |py, found| match found {
            Some(value) => Ok(PyBytes::new(py, &value).into_any().unbind()),
            None => Ok(py.None()),
        })
    }

    fn get_versioned(&self, py: Python<'_>, key: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.client.get_versioned(key), done, versioned)
    }

    #[pyo3(signature = (key, value, expiry, tag, done))]
    fn put(
        &self,
        py: Python<'_>,
        key: &[u8],
        value: &[u8],
        expiry: Option<u64>,
        tag: u32,
        done: Option<Object>,
    ) -> PyResult<Object> {
        deliver(py, &self.notifier, self.client.put_with(key, value, put_options(expiry, tag)), done, |py, ()| {
            Ok(py.None())
        })
    }

    fn delete(&self, py: Python<'_>, key: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.client.delete(key), done, boolean)
    }

    #[pyo3(signature = (key, value, expiry, tag, done))]
    fn add(
        &self,
        py: Python<'_>,
        key: &[u8],
        value: &[u8],
        expiry: Option<u64>,
        tag: u32,
        done: Option<Object>,
    ) -> PyResult<Object> {
        deliver(py, &self.notifier, self.client.add(key, value, put_options(expiry, tag)), done, boolean)
    }

    #[pyo3(signature = (key, value, expiry, tag, done))]
    fn replace(
        &self,
        py: Python<'_>,
        key: &[u8],
        value: &[u8],
        expiry: Option<u64>,
        tag: u32,
        done: Option<Object>,
    ) -> PyResult<Object> {
        deliver(py, &self.notifier, self.client.replace(key, value, put_options(expiry, tag)), done, boolean)
    }

    /// The new version; `None`: the key has another, or is gone.
    #[pyo3(signature = (key, version, value, expiry, tag, done))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the package's own code")]
    fn compare_and_set(
        &self,
        py: Python<'_>,
        key: &[u8],
        version: &str,
        value: &[u8],
        expiry: Option<u64>,
        tag: u32,
        done: Option<Object>,
    ) -> PyResult<Object> {
        let version = parse(py, version)?;
        let pending = self.client.compare_and_set(key, version, value, put_options(expiry, tag));
        deliver(py, &self.notifier, pending, done, |py, outcome| match outcome {
            CasOutcome::Stored(version) => Ok(version.to_string().into_pyobject(py)?.into_any().unbind()),
            CasOutcome::Changed(_) => Ok(py.None()),
        })
    }

    /// Removes the key if it has this version; whether it did.
    fn compare_and_delete(&self, py: Python<'_>, key: &[u8], version: &str, done: Option<Object>) -> PyResult<Object> {
        let version = parse(py, version)?;
        deliver(py, &self.notifier, self.client.compare_and_delete(key, version), done, boolean)
    }

    fn increment(
        &self,
        py: Python<'_>,
        key: &[u8],
        delta: i64,
        initial: Option<i64>,
        done: Option<Object>,
    ) -> PyResult<Object> {
        let wrong = |py: Python<'_>, sentence: &str| Err(named(py, "NotANumber", sentence.to_owned()));
        deliver(
            py,
            &self.notifier,
            self.client.increment(key, delta, initial),
            done,
            move |py, outcome| match outcome {
                Increment::Value(value) => Ok(value.into_pyobject(py)?.into_any().unbind()),
                Increment::Missing => Ok(py.None()),
                Increment::NotANumber => {
                    wrong(py, "the value is not a decimal number of 64 bits: it can't be counted with")
                }
                Increment::Overflow => wrong(py, "the sum would be out of the range of 64 bits: nothing was changed"),
            },
        )
    }

    fn append(&self, py: Python<'_>, key: &[u8], more: &[u8], done: Option<Object>) -> PyResult<Object> {
        let pending = self.client.append(key, more);
        deliver(py, &self.notifier, pending, done, |py, length| Ok(length.into_pyobject(py)?.into_any().unbind()))
    }

    fn take(&self, py: Python<'_>, key: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.client.take(key), done, versioned)
    }

    fn get_many(&self, py: Python<'_>, keys: Vec<Vec<u8>>, done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.client.get_many(keys), done, |py, results| each(py, results, versioned))
    }

    fn put_many(&self, py: Python<'_>, entries: Vec<(Vec<u8>, Vec<u8>)>, done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.client.put_many(entries), done, |py, results| {
            each(py, results, |py, ()| Ok(py.None()))
        })
    }

    /// Keys with the lengths of their values, and the cursor to go on with or `None`.
    fn list(&self, py: Python<'_>, prefix: &[u8], cursor: u64, limit: usize, done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.client.list(prefix, cursor, limit), done, |py, page| {
            let entries: Vec<_> =
                page.entries.iter().map(|entry| (PyBytes::new(py, &entry.key), entry.value_len)).collect();
            Ok((entries, page.next).into_pyobject(py)?.into_any().unbind())
        })
    }
}

fn parse(py: Python<'_>, version: &str) -> PyResult<Version> {
    version.parse().map_err(|error| named(py, "UsageError", format!("`{version}`: {error}")))
}
