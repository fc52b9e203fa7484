//! A process that attaches a volume, kept alive by a thread of its own.
//!
//! Invariants:
//! - There is one process at a time. It holds the read end of a pipe from us, and ends when we are gone, however.
//! - One that ends unasked is started again after a pause that doubles, and that chance shortens: not all of a machine at once.
//!   Where it never served, that is told and given up, unless somebody used the volume before this driver was started.
//! - One that ends because another host has the volume is the last: started again, it would have the volume as soon as that host
//!   lets go of it, and keep it from the host that is to have it next.
//! - All processes have the volume in one tenure: none goes on with it where another host may have had it since.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::backoff::{Backoff, jittered};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Deserialize;

use crate::node::{Device, MachineError};

/// The first pause before a restart, and the longest. Chosen: whoever mends the cause waits no longer.
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(20);
/// Who served so long did start well.
const STEADY: Duration = Duration::from_secs(60);

/// What the process says once the volume has a device.
#[derive(Deserialize, Debug)]
struct Ready {
    device: PathBuf,
    tenure: String,
    nqn: String,
}

/// How a volume's first process begins.
pub enum Begin {
    /// With whatever the volume holds; it is tried once.
    New,
    /// Where a former driver's process ended, in the same tenure, if it is known; it is tried until it serves.
    Again {
        /// What that process said.
        tenure: Option<String>,
    },
}

#[derive(Default)]
struct Seen {
    /// The device, and the name of the subsystem that it is of.
    device: Option<(Device, String)>,
    /// Why the last process ended.
    failure: Option<MachineError>,
    /// The process.
    process: Option<OwnedFd>,
    is_stopping: bool,
    /// How the last process ended, after which there is none.
    ended: Option<Result<(), MachineError>>,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    changed: Condvar,
}

impl Shared {
    /// Nothing that panics leaves it half changed.
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen());
        self.changed.notify_all();
    }

    /// Waits until `until`, or for longer than that no more.
    fn wait(&self, time: Duration, until: impl Fn(&Seen) -> bool) -> MutexGuard<'_, Seen> {
        let waited = self.changed.wait_timeout_while(self.seen(), time, |seen| !until(seen));
        waited.map_or_else(|poisoned| poisoned.into_inner().0, |(seen, _)| seen)
    }
}

/// A process, from outside.
pub struct Keeper {
    shared: Arc<Shared>,
}

impl Keeper {
    /// Starts the process.
    pub fn start(name: &str, program: PathBuf, arguments: Vec<String>, begin: Begin) -> std::io::Result<Keeper> {
        let shared = Arc::new(Shared::default());
        let (is_patient, tenure) = match begin {
            Begin::New => (false, None),
            Begin::Again { tenure } => (true, tenure),
        };
        let kept = Kept { shared: shared.clone(), program, arguments, is_patient, tenure };
        std::thread::Builder::new().name(format!("attach {name}")).spawn(move || kept.run())?;
        Ok(Keeper { shared })
    }

    /// Waits for the device, and the name of the subsystem that it is of.
    pub fn device(&self, time: Duration) -> Result<(Device, String), MachineError> {
        let seen = self.shared.wait(time, |seen| seen.device.is_some() || seen.failure.is_some());
        match (&seen.device, &seen.failure) {
            (Some(device), _) => Ok(device.clone()),
            (None, Some(failure)) => Err(failure.clone()),
            (None, None) => Err(MachineError::Unavailable(format!("the volume has no device within {time:?}"))),
        }
    }

    /// Whether there is no process any more, nor will be.
    pub fn has_ended(&self) -> bool {
        self.shared.seen().ended.is_some()
    }

    /// Ends the process in good order; one that does not end in time is killed. Done: this host has nothing of the volume any more.
    pub fn stop(&self, time: Duration) -> Result<(), MachineError> {
        let signal = |signal| {
            self.shared.change(|seen| {
                seen.is_stopping = true;
                if let Some(process) = &seen.process
                    && let Err(error) = pidfd_send_signal(process, signal)
                {
                    tracing::debug!(%error, "a process that has ended");
                }
            });
        };
        signal(Signal::TERM);
        let ended = self.shared.wait(time, |seen| seen.ended.is_some()).ended.clone();
        match ended {
            Some(Ok(()) | Err(MachineError::Lost(_))) => Ok(()),
            Some(Err(error)) => Err(error),
            None => {
                signal(Signal::KILL);
                Err(MachineError::Unavailable(format!("the volume was not detached within {time:?}")))
            }
        }
    }
}

/// A process, from its thread.
struct Kept {
    shared: Arc<Shared>,
    program: PathBuf,
    arguments: Vec<String>,
    is_patient: bool,
    /// The one that the volume is had in.
    tenure: Option<String>,
}

impl Kept {
    fn run(mut self) {
        let (mut backoff, mut ended) = (Backoff::new(PAUSE_MIN, PAUSE_MAX), Ok(()));
        while !self.shared.seen().is_stopping {
            let began = Instant::now();
            ended = self.serve();
            if began.elapsed() >= STEADY {
                backoff.reset();
            }
            let is_stopping = self.shared.seen().is_stopping;
            let unasked = || MachineError::Failed("the volume's process has ended unasked".into());
            let failure = ended.clone().err().unwrap_or_else(unasked);
            let is_over = is_stopping || !self.is_patient || matches!(failure, MachineError::Lost(_));
            if !is_stopping {
                tracing::warn!(%failure, is_over, "a volume has lost its process");
            }
            self.shared.change(|seen| {
                (seen.process, seen.device, seen.failure) = (None, None, Some(failure));
            });
            if is_over {
                break;
            }
            drop(self.shared.wait(jittered(backoff.pause()), |seen| seen.is_stopping));
        }
        self.shared.change(|seen| seen.ended = Some(ended));
    }

    /// One process, from its start to its end: how it has ended.
    fn serve(&mut self) -> Result<(), MachineError> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).args(self.tenure.as_ref().map(|tenure| format!("--tenure={tenure}")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: an interrupt from the terminal is for us.
        let spawned = command.process_group(0).spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => return Err(MachineError::Failed(format!("{}: {error}", self.program.display()))),
        };
        let words = child.stderr.take().map(heard);
        // The end of its standard input is the order to stop, without letting go of the device.
        let stdin = child.stdin.take();
        let pid = Pid::from_child(&child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => {
                let is_stopping = {
                    let mut seen = self.shared.seen();
                    seen.process = Some(process);
                    seen.is_stopping
                };
                // Whoever stopped it meanwhile found no process.
                if !is_stopping {
                    self.listen(&mut child);
                }
            }
            Err(error) => tracing::error!(%error, "a process can't be watched, and is ended"),
        }
        drop(stdin);
        let status = child.wait();
        let words = words.and_then(|thread| thread.join().ok()).unwrap_or_default();
        outcome(status, words)
    }

    /// Waits for the process to say that it serves, and for its end: that of its standard output.
    fn listen(&mut self, child: &mut Child) {
        let Some(stdout) = child.stdout.take() else { return };
        let mut stdout = BufReader::new(stdout);
        match serde_json::Deserializer::from_reader(&mut stdout).into_iter::<Ready>().next() {
            Some(Ok(Ready { device, tenure, nqn })) => {
                self.is_patient = true;
                self.tenure = Some(tenure.clone());
                let device = Device { path: device, tenure };
                self.shared.change(|seen| (seen.device, seen.failure) = (Some((device, nqn)), None));
                // What else it says is for nobody; its end is what is waited for.
                let _ended = std::io::copy(&mut stdout, &mut std::io::sink());
            }
            Some(Err(error)) => tracing::error!(%error, "a process said something that is not understood"),
            // It ended before it served; its status says why.
            None => {}
        }
    }
}

/// Logs what a process says, and gives its last words.
fn heard(stderr: ChildStderr) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut last = String::new();
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            tracing::info!("{line}");
            last = line;
        }
        last
    })
}

fn outcome(status: std::io::Result<ExitStatus>, words: String) -> Result<(), MachineError> {
    let why = words.strip_prefix("yagura: ").unwrap_or(&words).to_owned();
    Err(match status.as_ref().ok().and_then(ExitStatus::code) {
        // Its statuses are those of the whole program.
        Some(0) => return Ok(()),
        Some(3) => MachineError::Unavailable(why),
        Some(4) => MachineError::Refused(why),
        Some(6) => MachineError::Lost(why),
        _ => MachineError::Failed(format!("the volume's process has ended ({status:?}): {why}")),
    })
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
