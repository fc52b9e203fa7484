//! A host that has a volume attached by name asks the control plane what is wanted of it, and does that: grows the volume, takes
//! and deletes snapshots, keeps to limits.
//!
//! Invariant: no I/O waits for the control plane. Questions are asked on a thread of their own; a control plane that is away, or
//! slow, is asked again later, and the volume is used meanwhile as it was.

use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use ::control::provision::{Assigned, Ended, Noted, Outcome, Replacement, Report, Wish, Work, Working};
use ::volume::{Limiter, Set, Shape, Volume};
use engine::sync::{MailReceiver, mailbox};
use engine::task::{self, Task};
use engine::time;
use hyper::Method;
use uuid::Uuid;

use super::work::{Undone, moments, progress_of, work};
use super::{named, reach};
use crate::cli::{ControlAccess, NvmeHost};
use crate::control::Client;
use crate::exit::Failure;
use crate::holder::HolderSpec;

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

/// How a host reaches holders, and which namespaces it reaches (NGUID), by slot.
pub struct Holding {
    /// As whom.
    pub host: NvmeHost,
    /// Which.
    pub uids: Vec<[u8; 16]>,
}

impl Holding {
    /// Reaches the new holder from now on, when the volume can do without the former one. The control plane has seen to that: it is
    /// looked at once more because the former one may be the last in sync by now.
    async fn use_new(&mut self, volume: &Volume, replacement: &Replacement) {
        let (slot, uid) = (replacement.slot, replacement.namespace.uid.into_bytes());
        let Some(reached) = self.uids.get_mut(slot).filter(|reached| **reached != uid) else { return };
        let Replacement { address, nqn, namespace, .. } = replacement;
        let address = address.as_str().to_owned();
        // One that nobody knows is away: the former one is of more use. It is asked first: what is looked at then is so now.
        if let Err(error) = ::client::reach::resolve(&address).await {
            tracing::warn!(slot, "a holder is not replaced yet: {error}");
            return;
        }
        if !is_dispensable((volume.in_sync(), volume.holding()), &volume.shape(), slot) {
            tracing::warn!(slot, "a holder is not replaced yet: others are not in sync, or are away");
            return;
        }
        let spec = HolderSpec { address, nqn: Some(nqn.to_string()), nsid: namespace.nsid };
        tracing::info!(slot, "a new holder takes the place of the former one");
        volume.set_reach(slot, reach::known(&spec, &self.host, uid));
        *reached = uid;
    }
}

/// Whether a volume can do without the holder of a slot, whatever that holds: the others are a majority that has the record, so
/// that the new one can be taken in, and have every acknowledged write.
fn is_dispensable((in_sync, holding): (Set, Set), shape: &Shape, slot: usize) -> bool {
    let replicas = Set::first(shape.replicas.into());
    let others = replicas.without(Set::one(slot));
    if holding.without(Set::one(slot)).len() as usize <= shape.holders() / 2 {
        return false;
    }
    !replicas.has(slot)
        || !others.is_empty()
            && if in_sync.has(slot) { others.and(in_sync) == others } else { !others.and(in_sync).is_empty() }
}

/// Follows what the control plane wants of the host that has this attachment, until it is dropped. `grown` is called when the
/// volume is larger.
pub fn follow(
    access: &ControlAccess,
    path: String,
    (volume, mut holding): (Rc<Volume>, Holding),
    limiter: Rc<Limiter>,
    grown: impl Fn() + 'static,
) -> Result<Task<()>, Failure> {
    let asking = Asking::start(access.clone(), path)?;
    Ok(task::spawn(async move {
        let (mut ended, mut complaint) = (None, None);
        let mut replaced: Option<(Uuid, Replacement)> = None;
        loop {
            let jitter = task::random_u64() % (PAUSE.as_millis() as u64 / 2);
            time::sleep(PAUSE + Duration::from_millis(jitter)).await;
            let working = replaced.as_ref().map(|(operation, replacement)| Working {
                operation: *operation,
                progress: progress_of(&volume, replacement),
            });
            match asking.ask(Report { snapshots: moments(&volume), ended: ended.clone(), working }).await {
                None => return,
                Some(Ok(mut wish)) => {
                    complaint = None;
                    limiter.set(named::allowed(&wish.limits));
                    // It is done for as long as it is wanted, and what is asked for is said in the reports.
                    replaced = match wish.work.take_if(|wanted| matches!(wanted.work, Work::Replace(_))) {
                        Some(Assigned { operation, work: Work::Replace(replacement) }) => {
                            Some((operation, replacement))
                        }
                        _ => None,
                    };
                    if let Some((_, replacement)) = replaced.as_ref().filter(|(_, replacement)| replacement.go) {
                        holding.use_new(&volume, replacement).await;
                    }
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
                && let Err(Undone::Refused(why) | Undone::Unknown(why)) =
                    work(volume, &Work::Forget { moment }, Set::default()).await
            {
                tracing::warn!("a snapshot that nobody wants any more is left: {why}");
            }
        }
        _ => {}
    }
    let assigned = wish.work?;
    let outcome = match work(volume, &assigned.work, Set::default()).await {
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

    #[test]
    fn a_holder_is_given_up_only_where_the_others_have_everything() {
        for (in_sync, holding, replicas, slot, expected) in [
            (0b111, 0b111, 3, 0, true),
            (0b110, 0b111, 3, 0, true),
            (0b011, 0b111, 3, 0, false),
            (0b001, 0b111, 3, 0, false),
            (0b001, 0b001, 1, 0, false),
            (0b011, 0b111, 2, 1, true),
            (0b010, 0b111, 2, 1, false),
            (0b001, 0b111, 2, 1, true),
            // A witness has no data.
            (0b001, 0b111, 2, 2, true),
            // It counts for the majority, as the others do: beside a lost replica, and lost itself.
            (0b001, 0b101, 2, 2, false),
            (0b011, 0b011, 2, 0, false),
            // One is lost, and another one behind: the lost one goes first.
            (0b001, 0b101, 3, 2, false),
            (0b001, 0b101, 3, 1, true),
            // A record is being written.
            (0b111, 0b000, 3, 0, false),
        ] {
            let shape = Shape { volume: 1, replicas, block_size: 4096, region_blocks: 8, blocks: 64, lease_ms: 1000 };
            assert_eq!(
                is_dispensable((Set(in_sync), Set(holding)), &shape, slot),
                expected,
                "{in_sync:b} and {holding:b} of {replicas} without {slot}"
            );
        }
    }

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
            asking.reports.send(Report::default()).expect("asked");
            assert_eq!(shown(listener.accept().expect("a question").0), token);
        }
    }
}
