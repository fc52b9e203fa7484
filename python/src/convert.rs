//! Results as Python has them.

use std::sync::Arc;
use std::time::Duration;

use client::{Error, ErrorKind, Pending, Versioned};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::notifier::Notifier;

/// What Python holds.
pub type Object = Py<PyAny>;

/// The exception of `yagura._errors` for an error.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    if let Some(errno) = error.errno() {
        // Of the class that Python has for the number: FileNotFoundError, …
        return PyOSError::new_err((errno, error.to_string()));
    }
    let name = match error.kind() {
        // Whatever went wrong: what the caller must know first is that it may have happened.
        _ if error.outcome_unknown() => "OutcomeUnknown",
        ErrorKind::Usage => "UsageError",
        ErrorKind::Unavailable => "Unavailable",
        ErrorKind::Refused => "Refused",
        ErrorKind::OutOfSpace => "OutOfSpace",
        ErrorKind::TimedOut => "TimedOut",
        ErrorKind::Closed => "Closed",
        // A kind that this table does not know yet.
        _ => "Error",
    };
    named(py, name, error.to_string())
}

/// An exception of the package.
pub fn named(py: Python<'_>, name: &str, sentence: String) -> PyErr {
    let made = py.import("yagura._errors").and_then(|errors| errors.getattr(name)?.call1((sentence,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Value, version, expiry in milliseconds, tag.
pub fn versioned(py: Python<'_>, found: Option<Versioned>) -> PyResult<Object> {
    let Some(Versioned { value, version, expiry, tag }) = found else { return Ok(py.None()) };
    Ok((PyBytes::new(py, &value), version.to_string(), expiry, tag).into_pyobject(py)?.into_any().unbind())
}

/// What a result becomes, with the interpreter's lock held.
pub trait Convert<T>: FnOnce(Python<'_>, T) -> PyResult<Object> + Send + 'static {}
impl<T, F: FnOnce(Python<'_>, T) -> PyResult<Object> + Send + 'static> Convert<T> for F {}

/// How long a thread waits between looks for signals: what a user waits for Ctrl-C. Chosen: not felt.
const SIGNAL_TIME_MAX: Duration = Duration::from_millis(50);

/// Waits for the result, or has `done(result, error)` called with it.
pub fn deliver<T: Send + 'static>(
    py: Python<'_>,
    notifier: &Arc<Notifier>,
    mut pending: Pending<T>,
    done: Option<Object>,
    convert: impl Convert<T>,
) -> PyResult<Object> {
    let Some(done) = done else {
        loop {
            match py.detach(|| pending.wait_for(SIGNAL_TIME_MAX)) {
                Some(Ok(result)) => return convert(py, result),
                Some(Err(error)) => return Err(exception(py, &error)),
                // The request goes on without us if there is one.
                None => py.check_signals()?,
            }
        }
    };
    let told = move |py: Python<'_>, result: Result<T, Error>| {
        let result = result.map_err(|error| exception(py, &error)).and_then(|result| convert(py, result));
        let called = match result {
            Ok(result) => done.call1(py, (result, py.None())),
            Err(error) => done.call1(py, (py.None(), error.into_value(py))),
        };
        if let Err(error) = called {
            error.write_unraisable(py, Some(done.bind(py)));
        }
    };
    let notifier = notifier.clone();
    py.detach(|| pending.on_done(move |result| notifier.notify(Box::new(move |py| told(py, result)))));
    Ok(py.None())
}
