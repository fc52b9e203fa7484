//! The operations of a file system, as `yagura/_fsspec.py` uses them. Paths are bytes.

use std::sync::Arc;

use client::Error;
use client::files::{FileInfo, FileSystem, Kind, Time, Wanted};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::{Object, deliver, exception};
use crate::notifier::Notifier;

/// A file system of a pool.
#[pyclass(frozen, module = "yagura._yagura")]
pub struct Files {
    pub file_system: FileSystem,
    pub notifier: Arc<Notifier>,
}

/// Kind, permissions, owner, group, names, inode, size, times, where a link leads.
type Told<'py> = (&'static str, u16, u32, u32, u32, u64, u64, f64, f64, Option<Bound<'py, PyBytes>>);

fn seconds(time: Time) -> f64 {
    time.seconds as f64 + f64::from(time.nanos) / 1e9
}

fn told<'py>(py: Python<'py>, info: &FileInfo) -> Told<'py> {
    let kind = match info.kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        _ => "other",
    };
    let target = info.target.as_ref().map(|target| PyBytes::new(py, target));
    let FileInfo { mode, uid, gid, links, ino, size, modified, created, .. } = *info;
    (kind, mode, uid, gid, links, ino, size, seconds(modified), seconds(created), target)
}

fn nothing(py: Python<'_>, (): ()) -> PyResult<Object> {
    Ok(py.None())
}

fn number(py: Python<'_>, number: u64) -> PyResult<Object> {
    Ok(number.into_pyobject(py)?.into_any().unbind())
}

fn bytes(py: Python<'_>, bytes: &[u8]) -> Object {
    PyBytes::new(py, bytes).into_any().unbind()
}

#[pymethods]
impl Files {
    fn close(&self, py: Python<'_>, done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.close(), done, nothing)
    }

    fn info(&self, py: Python<'_>, path: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.info(path), done, |py, info| {
            Ok(told(py, &info).into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Names, each with what is told of it.
    fn list(&self, py: Python<'_>, path: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.list(path), done, |py, entries| {
            let entries: Vec<_> = entries.iter().map(|(name, info)| (PyBytes::new(py, name), told(py, info))).collect();
            Ok(entries.into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Of each path and its two ends bytes, or an exception.
    fn read_many(
        &self,
        py: Python<'_>,
        wanted: Vec<(Vec<u8>, Option<i64>, Option<i64>)>,
        done: Option<Object>,
    ) -> PyResult<Object> {
        let wanted = wanted.into_iter().map(|(path, from, to)| Wanted { path, from, to }).collect();
        deliver(py, &self.notifier, self.file_system.read_many(wanted), done, |py, all| {
            let one = |read: Result<Vec<u8>, Error>| match read {
                Ok(read) => bytes(py, &read),
                Err(error) => exception(py, &error).into_value(py).into_any(),
            };
            let all: Vec<Object> = all.into_iter().map(one).collect();
            Ok(all.into_pyobject(py)?.into_any().unbind())
        })
    }

    fn open(&self, py: Python<'_>, path: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.open(path), done, number)
    }

    fn read_at(&self, py: Python<'_>, open: u64, start: u64, end: u64, done: Option<Object>) -> PyResult<Object> {
        let pending = self.file_system.read_at(open, start, end);
        deliver(py, &self.notifier, pending, done, |py, read| Ok(bytes(py, &read)))
    }

    fn close_file(&self, py: Python<'_>, open: u64, done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.close_file(open), done, nothing)
    }

    fn begin(&self, py: Python<'_>, path: &[u8], exclusive: bool, done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.begin(path, exclusive), done, number)
    }

    fn write_at(&self, py: Python<'_>, begun: u64, at: u64, data: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.write_at(begun, at, data.to_vec()), done, nothing)
    }

    fn finish(&self, py: Python<'_>, begun: u64, done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.finish(begun), done, nothing)
    }

    fn give_up(&self, py: Python<'_>, begun: u64, done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.give_up(begun), done, nothing)
    }

    fn write_whole(
        &self,
        py: Python<'_>,
        path: &[u8],
        data: &[u8],
        exclusive: bool,
        done: Option<Object>,
    ) -> PyResult<Object> {
        let pending = self.file_system.write_whole(path, data.to_vec(), exclusive);
        deliver(py, &self.notifier, pending, done, nothing)
    }

    fn append(&self, py: Python<'_>, path: &[u8], data: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.append(path, data.to_vec()), done, nothing)
    }

    fn copy(&self, py: Python<'_>, from: &[u8], to: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.copy(from, to), done, nothing)
    }

    fn mkdir(&self, py: Python<'_>, path: &[u8], parents: bool, done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.mkdir(path, parents), done, nothing)
    }

    fn unlink(&self, py: Python<'_>, path: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.unlink(path), done, nothing)
    }

    fn rmdir(&self, py: Python<'_>, path: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.rmdir(path), done, nothing)
    }

    fn remove_all(&self, py: Python<'_>, path: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.remove_all(path), done, nothing)
    }

    fn rename(&self, py: Python<'_>, from: &[u8], to: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.rename(from, to), done, nothing)
    }

    fn touch(&self, py: Python<'_>, path: &[u8], done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.touch(path), done, nothing)
    }

    /// Bytes that fit, and that fit besides what is there.
    fn usage(&self, py: Python<'_>, done: Option<Object>) -> PyResult<Object> {
        deliver(py, &self.notifier, self.file_system.usage(), done, |py, usage| {
            Ok(usage.into_pyobject(py)?.into_any().unbind())
        })
    }
}
