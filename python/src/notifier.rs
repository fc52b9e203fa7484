//! The thread that calls Python back.
//!
//! A reactor that waited for the interpreter's lock would keep every other request from its sockets meanwhile. So results go to
//! one thread of the client's, which takes the lock once for all that are there. It ends with its client.
//!
//! Invariant: when the interpreter begins to end, no such thread is left ([`end_all`], by `atexit`). One that waited for its lock
//! then would be ended in the midst of our code by the interpreter, which takes the whole process with it.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use pyo3::prelude::*;

/// A call to make with the interpreter's lock held.
type Call = Box<dyn FnOnce(Python<'_>) + Send>;

/// What the thread is told.
enum Message {
    Call(Call),
    End,
}

/// The threads of one process. A fork copies the list, perhaps while its lock is held, and none of the threads: a child has a list
/// of its own.
struct Threads {
    process: OnceLock<u32>,
    list: Mutex<Vec<(Sender<Message>, JoinHandle<()>)>>,
    of_child: OnceLock<&'static Threads>,
}

static THREADS: Threads = Threads::new();
/// The interpreter is about to end: nobody is told anything any more.
static ENDS: AtomicBool = AtomicBool::new(false);

impl Threads {
    const fn new() -> Threads {
        Threads { process: OnceLock::new(), list: Mutex::new(Vec::new()), of_child: OnceLock::new() }
    }

    /// Those of this process.
    fn own() -> &'static Threads {
        let (process, mut threads) = (std::process::id(), &THREADS);
        while *threads.process.get_or_init(|| process) != process {
            threads = threads.of_child.get_or_init(|| Box::leak(Box::new(Threads::new())));
        }
        threads
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Sender<Message>, JoinHandle<()>)>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client's thread for calls, started when it is first needed.
pub struct Notifier {
    /// The process that has the thread.
    process: u32,
    calls: OnceLock<Option<Sender<Message>>>,
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
        if ENDS.load(SeqCst) {
            return;
        }
        match self.calls.get_or_init(start) {
            // If the thread has ended, the interpreter is about to: nobody is left to be told.
            Some(calls) => drop(calls.send(Message::Call(call))),
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
        let calls = self.calls.take();
        if self.is_foreign() {
            // A lock of its queue may have been held when the process was copied.
            std::mem::forget(calls);
        } else if let Some(Some(calls)) = calls {
            // It may have ended before.
            let _ = calls.send(Message::End);
        }
    }
}

fn start() -> Option<Sender<Message>> {
    let (sender, messages) = channel();
    let run = move || {
        while let Ok(Message::Call(first)) = messages.recv() {
            let made = Python::try_attach(|py| {
                first(py);
                for message in messages.try_iter() {
                    match message {
                        Message::Call(call) => call(py),
                        Message::End => return false,
                    }
                }
                true
            });
            // An interpreter that is ending is not attached to any more.
            if made != Some(true) {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("yagura-python".to_owned()).spawn(run).ok()?;
    let mut threads = Threads::own().lock();
    threads.retain(|(_, thread)| !thread.is_finished());
    threads.push((sender.clone(), thread));
    Some(sender)
}

/// Ends the threads of all clients, and waits until they are gone. What has not been told is not told any more.
pub fn end_all(py: Python<'_>) {
    ENDS.store(true, SeqCst);
    py.detach(|| {
        let threads = std::mem::take(&mut *Threads::own().lock());
        for (calls, thread) in threads {
            // It may have ended before; if it has panicked, that was told.
            let _ = calls.send(Message::End);
            let _ = thread.join();
        }
    });
}
