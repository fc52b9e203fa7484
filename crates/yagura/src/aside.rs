//! What blocks, on a thread of its own: the reactor serves meanwhile.

use std::io::ErrorKind;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use engine::sync::mailbox;
use engine::time;
use rustix::process::{Pid, Signal, kill_process};

use crate::exit::Failure;

/// The result of `work`.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    let (sender, receiver) = mailbox(1);
    let thread = std::thread::Builder::new().name("aside".into());
    thread.spawn(move || {
        // Whoever asked may have gone.
        let _ = sender.try_send(work());
    })?;
    receiver.recv().await.ok_or_else(|| Failure::refused("a thread has panicked"))
}

/// Runs a command to its end, which has to come within `time`.
pub async fn finished(mut command: Command, time: Duration) -> Result<Output, Failure> {
    let name = command.get_program().display().to_string();
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::refused(format!("{name} is not installed")),
        _ => Failure::from(error).during(&name),
    })?;
    let pid = Pid::from_child(&child);
    match time::timeout(time, aside(move || child.wait_with_output())).await {
        Ok(output) => Ok(output??),
        Err(_) => {
            // It may have ended at this moment; then nobody has its number yet.
            let _ = kill_process(pid, Signal::KILL);
            Err(Failure::check(format!("{name} has not ended after {time:?}, and is killed")))
        }
    }
}

/// Runs a command that has to succeed, and gives what it wrote to standard output.
pub async fn succeeded(command: Command, time: Duration) -> Result<Vec<u8>, Failure> {
    let arguments: Vec<_> = command.get_args().take(2).map(|argument| argument.display().to_string()).collect();
    let name = format!("{} {}", command.get_program().display(), arguments.join(" "));
    let Output { status, stdout, stderr } = finished(command, time).await?;
    match status.success() {
        true => Ok(stdout),
        false => {
            let said = String::from_utf8_lossy(&[stdout, stderr].concat()).trim().to_owned();
            Err(Failure::check(format!("{name}: {status}: {said}")))
        }
    }
}
