//! SIGINT and SIGTERM, and the end of a supervisor, as mail to the reactors, or as a flag.
//!
//! The first one asks every reactor to stop in good order; a second signal ends the process at once, by its usual status.
//! A server that stands in for memcached also does what memcached does at SIGUSR1 and SIGHUP.

use std::ffi::c_int;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use engine::sync::{MailReceiver, MailSender, mailbox};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::exit::Failure;

/// Why to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// A signal came.
    Signal,
    /// Standard input ended ([`crate::cli::Serving::until_stdin_closes`]).
    Orphaned,
}

/// Letters for `count` reactors: one comes to each when the process is to stop.
pub fn letters(count: usize, until_stdin_closes: bool) -> Result<Vec<MailReceiver<Reason>>, Failure> {
    letters_at(&[SIGINT, SIGTERM], count, until_stdin_closes, || {})
}

/// The same where SIGUSR1 is one more signal to stop, and SIGHUP none at all: `at_hangup` is called, and the process goes on.
pub fn letters_and_hangups(
    count: usize,
    until_stdin_closes: bool,
    at_hangup: impl Fn() + Send + 'static,
) -> Result<Vec<MailReceiver<Reason>>, Failure> {
    letters_at(&[SIGINT, SIGTERM, SIGUSR1, SIGHUP], count, until_stdin_closes, at_hangup)
}

fn letters_at(
    signals: &[c_int],
    count: usize,
    until_stdin_closes: bool,
    at_hangup: impl Fn() + Send + 'static,
) -> Result<Vec<MailReceiver<Reason>>, Failure> {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| mailbox(2)).unzip();
    let mut signals = Signals::new(signals).map_err(|error| Failure::from(error).during("signals"))?;
    let to_all: Vec<MailSender<Reason>> = senders.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut asked = false;
        for signal in signals.forever() {
            if signal == SIGHUP {
                at_hangup();
                continue;
            }
            if asked {
                // What the shell would show had the signal not been caught.
                std::process::exit(128 + signal);
            }
            asked = true;
            post(&to_all, Reason::Signal);
        }
    })?;
    if until_stdin_closes {
        std::thread::Builder::new().name("stdin".into()).spawn(move || {
            let mut ignored = [0; 256];
            while matches!(std::io::stdin().read(&mut ignored), Ok(1..)) {}
            post(&senders, Reason::Orphaned);
        })?;
    }
    Ok(receivers)
}

/// For what has no reactor to tell: set by the first signal; a second one ends the process at once.
pub fn flag() -> Result<Arc<AtomicBool>, Failure> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset, and sets it.
        flag::register_conditional_shutdown(signal, 128 + signal, asked.clone())?;
        flag::register(signal, asked.clone())?;
    }
    Ok(asked)
}

fn post(reactors: &[MailSender<Reason>], reason: Reason) {
    for reactor in reactors {
        // Full: it has been told already. Closed: it has stopped.
        let _ = reactor.try_send(reason);
    }
}
