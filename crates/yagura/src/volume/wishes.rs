//! A host that has a volume attached by name asks the control plane what is wanted of it, and does that: grows the volume, takes
//! and deletes snapshots, keeps to limits.
//!
//! Invariant: no I/O waits for the control plane. Questions are asked on a thread of their own; a control plane that is away, or
//! slow, is asked again later, and the volume is used meanwhile as it was.

use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use ::control::provision::{Ended, Noted, Outcome, Report, Wish, Work};
use ::volume::Volume;
use engine::sync::{MailReceiver, mailbox};
use engine::task::{self, Task};
use engine::time;
use hyper::Method;

use super::limited::Limiter;
use super::work::{Undone, moments, work};
use crate::cli::ControlAccess;
use crate::control::Client;
use crate::exit::Failure;

/// Between two questions; half as much again at most, so that many hosts do not ask at once. Chosen: what an operator waits for.
const PAUSE: Duration = Duration::from_secs(2);

/// What asks, on a thread of its own.
struct Asking {
    reports: mpsc::SyncSender<Report>,
    wishes: MailReceiver<Result<Wish, String>>,
}

impl Asking {
    /// Asks at that path.
    fn start(access: ControlAccess, path: String) -> Result<Asking, Failure> {
        let client = Client::new(&access)?;
        let (reports, asked) = mpsc::sync_channel::<Report>(1);
        let (told, wishes) = mailbox(1);
        let thread = std::thread::Builder::new().name("control".into());
        let begun = thread.spawn(move || {
            while let Ok(report) = asked.recv() {
                let answer = ask(&client, &path, &report);
                // Nobody listens where the process is ending already.
                let _ = told.try_send(answer);
            }
        });
        begun.map_err(|error| Failure::from(error).during("a thread for the control plane"))?;
        Ok(Asking { reports, wishes })
    }

    /// None: the thread has ended.
    async fn ask(&self, report: Report) -> Option<Result<Wish, String>> {
        self.reports.try_send(report).ok()?;
        self.wishes.recv().await
    }
}

fn ask(client: &Client, path: &str, report: &Report) -> Result<Wish, String> {
    let report = serde_json::to_value(report).map_err(|fault| fault.to_string())?;
    let said = client.ask(Method::POST, path, Some(&report)).map_err(|failure| failure.sentence().to_string())?;
    serde_json::from_value(said)
        .map_err(|fault| format!("the control plane says what this program does not know: {fault}"))
}

/// Follows what the control plane wants of the host that has this attachment, until it is dropped. `grown` is called when the
/// volume is larger.
pub fn follow(
    access: &ControlAccess,
    path: String,
    volume: Rc<Volume>,
    limiter: Rc<Limiter>,
    grown: impl Fn() + 'static,
) -> Result<Task<()>, Failure> {
    let asking = Asking::start(access.clone(), path)?;
    Ok(task::spawn(async move {
        let (mut ended, mut complaint) = (None, None);
        loop {
            let jitter = task::random_u64() % (PAUSE.as_millis() as u64 / 2);
            time::sleep(PAUSE + Duration::from_millis(jitter)).await;
            let report = Report { snapshots: moments(&volume), ended: ended.clone() };
            match asking.ask(report).await {
                None => return,
                Some(Ok(wish)) => {
                    complaint = None;
                    limiter.set(wish.limits);
                    ended = heed(&volume, ended, wish, &grown).await;
                }
                // Once for each reason: the volume is used as before.
                Some(Err(why)) if complaint.as_ref() != Some(&why) => {
                    tracing::warn!("the control plane does not say what is wanted of this host: {why}");
                    complaint = Some(why);
                }
                Some(Err(_)) => {}
            }
        }
    }))
}

/// Does what is wanted; returns what has ended and is not noted yet.
async fn heed(volume: &Volume, ended: Option<Ended>, wish: Wish, grown: &impl Fn()) -> Option<Ended> {
    match (wish.noted, &ended) {
        (Noted::Open, Some(_)) => return ended,
        (Noted::Unwanted, Some(Ended { outcome: Outcome::Done(done), .. })) => {
            if let Some(moment) = done.taken
                && let Err(Undone::Refused(why) | Undone::Unknown(why)) = work(volume, &Work::Forget { moment }).await
            {
                tracing::warn!("a snapshot that nobody wants any more is left: {why}");
            }
        }
        _ => {}
    }
    let assigned = wish.work?;
    let outcome = match work(volume, &assigned.work).await {
        Ok(done) => Outcome::Done(done),
        Err(Undone::Refused(why)) => Outcome::Refused(why),
        Err(Undone::Unknown(why)) => {
            tracing::warn!("what the control plane wants is not done yet: {why}");
            return None;
        }
    };
    if matches!(assigned.work, Work::Grow { .. }) {
        grown();
    }
    Some(Ended { operation: assigned.operation, outcome })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The token that a question shows.
    fn shown(mut stream: TcpStream) -> String {
        let (mut head, mut bytes) = (String::new(), [0; 4096]);
        while !head.contains("\r\n\r\n") {
            let read = stream.read(&mut bytes).expect("read");
            head += std::str::from_utf8(&bytes[..read]).expect("text");
        }
        stream.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}").expect("written");
        let shown = head.split("Bearer ").nth(1).and_then(|rest| rest.split("\r\n").next());
        shown.unwrap_or_default().to_owned()
    }

    /// A host that had read its token once asked in vain from that token's end on: limits, growth and snapshots stood still.
    #[test]
    fn each_question_shows_the_token_that_is_in_the_file_then() {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let control = format!("http://{}", listener.local_addr().expect("an address"));
        let token_file = folder.path().join("token");
        let access = ControlAccess { control, token_file: Some(token_file.clone()), control_ca: None, tenant: None };
        std::fs::write(&token_file, "one").expect("written");
        std::fs::set_permissions(&token_file, PermissionsExt::from_mode(0o600)).expect("private");
        let asking = Asking::start(access, "/".into()).expect("a thread");
        for token in ["one", "two"] {
            std::fs::write(&token_file, token).expect("written");
            asking.reports.send(Report { snapshots: Vec::new(), ended: None }).expect("asked");
            assert_eq!(shown(listener.accept().expect("a question").0), token);
        }
    }
}
