//! A watch of etcd that outlives members.
//!
//! A task holds a connection of its own (a watcher that does not read must not hold up others) and a place: the last revision of
//! which all changes were given. When the connection fails it begins at that place with the next member. Three rules keep it
//! whole:
//! - A place moves only when the last part of a revision was received; a revision cut in two by a failure is received anew, whole.
//! - The watch is asked for from the place itself on, not from the revision after it, and what is there again is left out. etcd
//!   refuses a watch from before what was compacted, but not from that very revision, of which versions before 3.4.36 and 3.5.18
//!   had already forgotten the deletes: one that was asked for from the revision after the place could miss a delete without a
//!   word.
//! - Before each begin, a read that a majority confirms shows that the catalogue stands at the place or later. One that was put
//!   back to an older copy would let the watcher wait, and then give it other changes under the same revisions. Where such a copy
//!   has gone on past the place, one of two things shows it: its term is below one that was seen, or what it has put at the place
//!   is not what was put there (what, not whether it was deleted: a compaction of that very revision may have forgotten deletes).
//!
//! Notices of progress do not move the place: a watcher of what seldom changes may be told to read anew after a compaction, which
//! costs a reading; a notice that comes too early would cost a change.

use std::sync::Arc;
use std::time::Duration;

use engine::backoff::{Backoff, jittered};
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_stream::StreamExt;
use xxhash_rust::xxh3::xxh3_64;

use super::connection::Failure;
use super::members::{Again, Fault, Members};
use super::names::{Names, revision};
use super::wire::{DELETE, Event, RangeRequest, RangeResponse, WatchCreateRequest, WatchRequest, WatchResponse, path};
use crate::catalogue::contract::{Answer, Watch};
use crate::catalogue::error::Error;
use crate::catalogue::types::{Changed, Commit, Prefix, Revision};

/// Commits that wait for the watcher. Chosen: a burst; what is beyond waits in the connection, and then in etcd.
const COMMITS_WAITING_MAX: usize = 64;
/// Time until a watch is begun. Chosen: more than etcd takes to say that it cannot.
const BEGIN_LIMIT: Duration = Duration::from_secs(9);
/// Pause before the next member is asked: it begins with the first, and doubles up to the last; chance shortens it. Chosen: an
/// election takes a second.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// See [`PAUSE_FIRST`]. Chosen, as said there.
const PAUSE_LAST: Duration = Duration::from_secs(1);

/// A watcher's side.
pub struct EtcdWatch {
    commits: mpsc::Receiver<Result<Commit, Error>>,
    task: JoinHandle<()>,
}

impl EtcdWatch {
    pub fn new(members: Arc<Members>, names: Names, prefix: Prefix, after: Revision) -> EtcdWatch {
        let (sender, commits) = mpsc::channel(COMMITS_WAITING_MAX);
        let (partial, term) = (Vec::new(), 0);
        let follower =
            Follower { members, names, prefix, place: after.0, term, put: None, is_checked: false, partial, sender };
        EtcdWatch { commits, task: tokio::spawn(follower.run()) }
    }
}

impl Drop for EtcdWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watch for EtcdWatch {
    fn next(&mut self) -> Answer<'_, Commit> {
        Box::pin(async { self.commits.recv().await.unwrap_or(Err(Error::Closed)) })
    }
}

/// Why a connection's watch has ended.
enum End {
    /// Another member may go on.
    Failed(String),
    /// Nobody can.
    Over(Error),
    /// The watcher is gone.
    Unwanted,
}

struct Follower {
    members: Arc<Members>,
    names: Names,
    prefix: Prefix,
    /// All up to here was given.
    place: u64,
    /// The highest term that a majority has confirmed.
    term: u64,
    /// What was put at the place, once that is known.
    put: Option<u64>,
    /// Whether this connection has shown what it has put at the place.
    is_checked: bool,
    /// What was received of a revision of which more may follow.
    partial: Vec<Event>,
    sender: mpsc::Sender<Result<Commit, Error>>,
}

impl Follower {
    async fn run(mut self) {
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_LAST);
        for turn in 0.. {
            let place = self.place;
            match self.follow(turn).await {
                End::Failed(why) => {
                    tracing::info!(why, place = self.place, "a watch of etcd goes on with the next member")
                }
                End::Over(error) => {
                    // If the watcher is gone nobody is left to be told.
                    let _ = self.sender.send(Err(error)).await;
                    return;
                }
                End::Unwanted => return,
            }
            // One that was followed for a while begins anew at once.
            if self.place > place {
                backoff.reset();
            }
            sleep(jittered(backoff.pause())).await;
        }
    }

    /// Gives what one member tells, until it fails.
    async fn follow(&mut self, turn: usize) -> End {
        self.partial.clear();
        self.is_checked = false;
        if let Err(end) = self.confirm().await {
            return end;
        }
        let until = Instant::now() + BEGIN_LIMIT;
        let connection = match self.members.connect(turn, until).await {
            Ok(connection) => connection,
            Err(fault) => return self.end(fault),
        };
        // The request's stream stays open: etcd ends a watch whose stream has ended.
        let requests = tokio_stream::once(self.request()).chain(tokio_stream::pending());
        let mut answers = match connection.stream::<_, _, WatchResponse>(path::WATCH, requests, until).await {
            Ok(answers) => answers,
            Err(Failure::Told(status)) => return End::Failed(status.message().to_owned()),
            Err(Failure::NotSent(why) | Failure::Lost(why)) => return End::Failed(why),
        };
        loop {
            let answer = match answers.message().await {
                Ok(Some(answer)) => answer,
                Ok(None) => return End::Failed("the member ended it".into()),
                Err(status) => return End::Failed(status.message().to_owned()),
            };
            if let Err(end) = self.take(answer).await {
                return end;
            }
        }
    }

    fn request(&self) -> WatchRequest {
        let (key, range_end) = self.names.bounds(&self.prefix, None);
        // Revision 0 means "from now on" to etcd; nothing was ever committed at 1.
        let start_revision = self.place.max(1) as i64;
        WatchRequest { create: Some(WatchCreateRequest { key, range_end, start_revision, fragment: true }) }
    }

    /// A majority stands at the place, or later, and has not gone back.
    async fn confirm(&mut self) -> Result<(), End> {
        let (key, _) = self.names.bounds(&self.prefix, None);
        let read = RangeRequest { key, limit: 1, ..RangeRequest::default() };
        let answer: RangeResponse = self
            .members
            .ask(path::RANGE, read, Again::Safe, self.members.until())
            .await
            .map_err(|fault| self.end(fault))?;
        let (asked, present) = (Revision(self.place), revision(answer.header));
        if present < asked {
            return Err(End::Over(Error::NotYet { asked, present }));
        }
        // Of a read that a majority confirms: a term that was seen by one is seen by all that follow.
        let term = answer.header.unwrap_or_default().raft_term;
        if term < self.term {
            return Err(self.put_back());
        }
        self.term = term;
        Ok(())
    }

    fn put_back(&self) -> End {
        End::Over(Error::PutBack { place: self.members.place(), after: Revision(self.place) })
    }

    fn end(&self, fault: Fault) -> End {
        match fault {
            Fault::Error(Error::NoAnswer { why, .. }) => End::Failed(why),
            fault => End::Over(self.members.error(fault)),
        }
    }

    /// Gives what an answer completes.
    async fn take(&mut self, answer: WatchResponse) -> Result<(), End> {
        if answer.compact_revision > 0 {
            let oldest = Revision(answer.compact_revision as u64);
            return Err(End::Over(Error::Compacted { asked: Revision(self.place), oldest }));
        }
        if answer.canceled {
            let (place, why) = (self.members.place(), answer.cancel_reason);
            let is_refused = why.contains("permission denied");
            return Err(if is_refused { End::Over(Error::Refused { place, why }) } else { End::Failed(why) });
        }
        self.partial.extend(answer.events);
        while let Some(events) = self.complete(answer.fragment) {
            let (revision, put) = (revision_of(&events[0]), put_by(&events));
            // The watch is asked for from the place on: what is there comes first, if anything is.
            let put_at_place = if revision == self.place { put } else { put_by(&[]) };
            if !self.is_checked && revision >= self.place {
                if self.put.is_some_and(|known| known != put_at_place) {
                    return Err(self.put_back());
                }
                (self.is_checked, self.put) = (true, Some(put_at_place));
            }
            if revision <= self.place {
                // Given before.
                continue;
            }
            let mut changes: Vec<Changed> = events.iter().filter_map(|event| self.changed(event)).collect();
            changes.sort_by(|one, other| one.key().cmp(other.key()));
            let commit = Commit { revision: Revision(revision), changes };
            self.sender.send(Ok(commit)).await.map_err(|_| End::Unwanted)?;
            (self.place, self.put) = (revision, Some(put));
        }
        Ok(())
    }

    /// Takes the events of the next whole revision out of what was received; the last one is not whole while another part follows.
    fn complete(&mut self, is_partial: bool) -> Option<Vec<Event>> {
        let revision = revision_of(self.partial.first()?);
        let count = self.partial.iter().take_while(|event| revision_of(event) == revision).count();
        if is_partial && count == self.partial.len() {
            return None;
        }
        Some(self.partial.drain(..count).collect())
    }

    fn changed(&self, event: &Event) -> Option<Changed> {
        let stored = event.kv.as_ref()?;
        if event.kind == DELETE {
            self.names.key(&stored.key).map(Changed::Deleted)
        } else {
            self.names.entry(stored).map(Changed::Put)
        }
    }
}

/// What the events have put, in a number: keys and values, and when and how often each key was written before. Whatever order the
/// events come in the number is the same.
fn put_by(events: &[Event]) -> u64 {
    let put = events.iter().filter(|event| event.kind != DELETE).filter_map(|event| event.kv.as_ref());
    put.fold(0, |sum, stored| sum.wrapping_add(xxh3_64(&stored.encode_to_vec())))
}

fn revision_of(event: &Event) -> u64 {
    event.kv.as_ref().map_or(0, |stored| stored.mod_revision as u64)
}
