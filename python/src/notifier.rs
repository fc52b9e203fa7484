//! The thread that calls Python back.
//!
//! A reactor that waited for the interpreter's lock would keep every other request from its sockets meanwhile. So results go to
//! one thread of the client's, which takes the lock once for all that are there. It ends with its client.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;

/// A call to make with the interpreter's lock held.
type Call = Box<dyn FnOnce(Python<'_>) + Send>;

/// A client's thread for calls, started when it is first needed.
pub struct Notifier {
    /// The process that has the thread: a fork copies none.
    process: u32,
    calls: OnceLock<Option<Sender<Call>>>,
}

impl Notifier {
    pub fn new() -> Arc<Notifier> {
        Arc::new(Notifier { process: std::process::id(), calls: OnceLock::new() })
    }

    /// Has `call` made soon.
    pub fn notify(&self, call: Call) {
        if self.is_foreign() {
            // A child is told at once that the client is not its own.
            Python::try_attach(call);
            return;
        }
        match self.calls.get_or_init(start) {
            // If the thread has ended, so has the interpreter.
            Some(calls) => drop(calls.send(call)),
            None => {
                Python::try_attach(call);
            }
        }
    }

    fn is_foreign(&self) -> bool {
        self.process != std::process::id()
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        if self.is_foreign() {
            // A lock of its queue may have been held when the process was copied.
            std::mem::forget(self.calls.take());
        }
    }
}

fn start() -> Option<Sender<Call>> {
    let (sender, calls) = channel::<Call>();
    let run = move || {
        while let Ok(first) = calls.recv() {
            // An interpreter that is ending is not attached to any more: nobody is left to be told.
            let attached = Python::try_attach(|py| {
                first(py);
                calls.try_iter().for_each(|call| call(py));
            });
            if attached.is_none() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("yagura-python".to_owned()).spawn(run).ok().map(|_| sender)
}
