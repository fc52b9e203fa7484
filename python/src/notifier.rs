//! The thread that calls Python back.
//!
//! A reactor that waited for the interpreter's lock would keep every other request from its sockets meanwhile. So results go to
//! one thread, which takes the lock once for all that are there.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use pyo3::prelude::*;

/// A call to make with the interpreter's lock held.
type Call = Box<dyn FnOnce(Python<'_>) + Send>;

/// Has `call` made soon.
pub fn notify(call: Call) {
    static NOTIFIER: OnceLock<Option<Sender<Call>>> = OnceLock::new();
    let notifier = NOTIFIER.get_or_init(|| {
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
    });
    match notifier {
        // If the thread has ended, so has the interpreter.
        Some(sender) => drop(sender.send(call)),
        None => drop(Python::try_attach(call)),
    }
}
