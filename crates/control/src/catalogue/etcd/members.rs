//! The members of an etcd: which of them is asked, and what is asked again.
//!
//! One member is asked at a time, over one connection, until it fails; then the next. A member that sees no leader, or belongs to
//! another cluster, is passed over. **A change is asked again only where it surely was not begun**: the request never left, or the
//! member refused it before it was proposed. All else is [`Error::OutcomeUnknown`]; reads, and what may be done twice, are asked
//! again.

use std::pin::Pin;
use std::sync::{MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use engine::backoff::{Backoff, jittered};
use http::Uri;
use openssl::ssl::SslConnector;
use prost::Message;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::{Code, Status};

use super::connection::{Connection, Failure};
use super::options::{EtcdOptions, User};
use super::wire::{AuthenticateRequest, AuthenticateResponse, RangeRequest, RangeResponse, path};
use crate::catalogue::error::{Error, MAKE_ROOM};

/// Operations under way at once. Chosen: what is beyond waits in its future; etcd refuses too many by itself.
const CALLS_MAX: usize = 64;
/// Time for a connection to one member, with who asks and whether it has a leader. Chosen: a busy machine makes it.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
/// Time for one try. Derived: etcd answers within seven seconds, if only that it could not.
const TRY_LIMIT: Duration = Duration::from_secs(9);
/// Pause between tries: it begins with the first, and doubles up to the last; chance shortens it, so that control planes that lost
/// an etcd together do not come back in step. Chosen: an election takes a second.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// See [`PAUSE_FIRST`]. Chosen, as said there.
const PAUSE_LAST: Duration = Duration::from_millis(500);

/// Whether a request may be sent again when its answer was lost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// It reads, or doing it twice is doing it once.
    Safe,
    /// It changes something.
    Never,
}

/// One try.
type Attempt<A> = Pin<Box<dyn Future<Output = Result<A, Failure>> + Send>>;

/// Why an operation failed.
#[derive(Debug)]
pub enum Fault {
    /// A member's final word, for whoever knows what it means.
    Told(Status),
    /// All else.
    Error(Error),
}

/// What a member's word means for the request.
enum Verdict {
    /// It was not begun, and another member may do it.
    Elsewhere,
    /// Nobody knows.
    Unclear,
    /// There is no room. A change may have been made all the same: at its quota etcd applies a transaction, and refuses it then,
    /// in the same words in which it refuses what was not begun.
    Full,
    /// It is refused, here and elsewhere.
    Final,
}

fn verdict(status: &Status) -> Verdict {
    match status.code() {
        Code::Unavailable if status.message() == "etcdserver: no leader" => Verdict::Elsewhere,
        Code::ResourceExhausted if status.message().contains("too many requests") => Verdict::Elsewhere,
        // A token that is too old, or that another member gave: a new connection gets a new one.
        Code::Unauthenticated => Verdict::Elsewhere,
        _ if is_of_old_rights(status) => Verdict::Elsewhere,
        Code::ResourceExhausted => Verdict::Full,
        Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::PermissionDenied => Verdict::Final,
        // Of reads: the revision is compacted, or has not been.
        Code::OutOfRange if status.message().contains("required revision") => Verdict::Final,
        _ => Verdict::Unclear,
    }
}

/// A user, a role or a right has changed since the token was given, or since the request was sent on to be agreed on: each member
/// looks before it begins the request, and refuses. The code and the words are those of versions that have no name for it
/// (`Unknown`, "auth: revision in header is old"), and of those that have (`InvalidArgument`).
fn is_of_old_rights(status: &Status) -> bool {
    let words = status.message();
    words.contains("revision of auth store is old") || words.contains("revision in header is old")
}

/// The members, and the connection that is in use.
pub struct Members {
    members: Vec<Uri>,
    tls: Option<SslConnector>,
    user: Option<User>,
    time_limit: Duration,
    /// A key that whoever asks may read.
    probe: Vec<u8>,
    cluster: OnceLock<u64>,
    /// Never held while anything is waited for: who gives a connection up must not wait for who connects.
    current: std::sync::Mutex<Current>,
    /// Whose turn it is to connect.
    connecting: Mutex<()>,
    calls: Semaphore,
}

/// Which connection is in use; `turn` counts connections, so that one is given up once.
struct Current {
    connection: Option<Connection>,
    turn: usize,
}

impl Members {
    /// Nothing is connected yet.
    pub fn new(options: &EtcdOptions, probe: Vec<u8>) -> Result<Members, Error> {
        let members = options.members()?;
        let is_secret = members.iter().any(|member| member.scheme_str() == Some("https"));
        Ok(Members {
            tls: if is_secret { Some(options.tls()?) } else { None },
            members,
            user: options.user.clone(),
            time_limit: options.time_limit,
            probe,
            cluster: OnceLock::new(),
            current: std::sync::Mutex::new(Current { connection: None, turn: 0 }),
            connecting: Mutex::new(()),
            calls: Semaphore::new(CALLS_MAX),
        })
    }

    /// All members, for messages.
    pub fn place(&self) -> String {
        self.members.iter().map(Uri::to_string).collect::<Vec<_>>().join(", ")
    }

    /// The cluster's number, if any member was ever reached.
    pub fn cluster(&self) -> Option<u64> {
        self.cluster.get().copied()
    }

    pub fn no_answer(&self, why: String) -> Error {
        Error::NoAnswer { place: self.place(), why }
    }

    /// A new connection to a member that is well, the one of number `turn` asked first.
    pub async fn connect(&self, turn: usize, until: Instant) -> Result<Connection, Fault> {
        let (mut last, mut strangers, mut found) = (String::new(), 0, 0);
        for member in (0..self.members.len()).map(|step| &self.members[(turn + step) % self.members.len()]) {
            let until = until.min(Instant::now() + CONNECT_LIMIT);
            match self.connect_one(member, until).await {
                Ok((connection, cluster)) if *self.cluster.get_or_init(|| cluster) == cluster => return Ok(connection),
                Ok((_, cluster)) => {
                    (strangers, found) = (strangers + 1, cluster);
                    last = format!("{member}: it belongs to another cluster ({cluster:x})");
                }
                Err(Failure::Told(status)) if matches!(verdict(&status), Verdict::Final) => {
                    return Err(Fault::Told(status));
                }
                Err(Failure::Told(status)) => last = format!("{member}: {}", status.message()),
                Err(Failure::NotSent(why) | Failure::Lost(why)) => last = why,
            }
        }
        Err(Fault::Error(match self.cluster() {
            // One alone may be named wrongly, and others that are right may come back. If all are, waiting is of no use.
            Some(known) if strangers == self.members.len() => {
                Error::AnotherCluster { place: self.place(), known, found }
            }
            _ => self.no_answer(last),
        }))
    }

    /// A connection to a member that sees a leader, and the number of the member's cluster.
    async fn connect_one(&self, member: &Uri, until: Instant) -> Result<(Connection, u64), Failure> {
        let tls = self.tls.as_ref().filter(|_| member.scheme_str() == Some("https"));
        let mut connection = Connection::open(member, tls, until).await?;
        if let Some(user) = &self.user {
            let who = AuthenticateRequest { name: user.name.clone(), password: user.password.expose().to_vec() };
            let known: AuthenticateResponse = connection.ask(path::AUTHENTICATE, who, until).await?;
            connection = connection.with_token(&known.token)?;
        }
        // The member refuses it if it sees no leader, as all that is asked. Newer ones tell their status to administrators alone.
        let look = RangeRequest { key: self.probe.clone(), limit: 1, serializable: true, ..RangeRequest::default() };
        let answer: RangeResponse = connection.ask(path::RANGE, look, until).await?;
        Ok((connection, answer.header.unwrap_or_default().cluster_id))
    }

    fn state(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection in use and its number.
    fn connected(&self) -> Option<(Connection, usize)> {
        let current = self.state();
        current.connection.clone().map(|connection| (connection, current.turn))
    }

    /// The connection in use and its number, or a new one.
    async fn current(&self, until: Instant) -> Result<(Connection, usize), Fault> {
        if let Some(current) = self.connected() {
            return Ok(current);
        }
        let late = |_| Fault::Error(self.no_answer("no connection in time".into()));
        let _alone = timeout_at(until, self.connecting.lock()).await.map_err(late)?;
        if let Some(current) = self.connected() {
            return Ok(current);
        }
        // Counted before: if this is dropped midway, the next one begins with another member.
        let turn = {
            let mut current = self.state();
            current.turn += 1;
            current.turn
        };
        let connection = self.connect(turn - 1, until).await?;
        self.state().connection = Some(connection.clone());
        Ok((connection, turn))
    }

    /// The connection of that number has failed.
    fn give_up(&self, turn: usize) {
        let mut current = self.state();
        if current.turn == turn {
            current.connection = None;
        }
    }

    /// When an operation that begins now has to end, whatever it asks one after the other.
    pub fn until(&self) -> Instant {
        Instant::now() + self.time_limit
    }

    /// One request, one answer, from whichever member is well.
    pub async fn ask<M, A>(&self, path: &'static str, message: M, again: Again, until: Instant) -> Result<A, Fault>
    where
        M: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let attempt = move |connection: Connection, until| -> Attempt<A> {
            let message = message.clone();
            Box::pin(async move { connection.ask(path, message, until).await })
        };
        self.tries(again, until, attempt).await
    }

    /// One request, and the first message of the stream that answers it.
    pub async fn ask_first<M, A>(
        &self,
        path: &'static str,
        message: M,
        again: Again,
        until: Instant,
    ) -> Result<A, Fault>
    where
        M: Message + Clone + Sync + 'static,
        A: Message + Default + 'static,
    {
        let attempt = move |connection: Connection, until| -> Attempt<A> {
            let message = message.clone();
            Box::pin(async move { connection.ask_first(path, message, until).await })
        };
        self.tries(again, until, attempt).await
    }

    async fn tries<A, T>(&self, again: Again, until: Instant, attempt: T) -> Result<A, Fault>
    where
        T: Fn(Connection, Instant) -> Attempt<A>,
    {
        let turn = timeout_at(until, self.calls.acquire()).await;
        let _turn = turn.map_err(|_| Fault::Error(self.no_answer("too many operations are under way".into())))?;
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_LAST);
        loop {
            let why = match self.try_once(&attempt, until, again).await? {
                Ok(answer) => return Ok(answer),
                Err(why) => why,
            };
            let again = Instant::now() + jittered(backoff.pause());
            if again >= until {
                return Err(Fault::Error(self.no_answer(why)));
            }
            sleep_until(again).await;
        }
    }

    /// One try. The inner error is why another one is right; the outer one is final.
    async fn try_once<A, T>(&self, attempt: &T, until: Instant, again: Again) -> Result<Result<A, String>, Fault>
    where
        T: Fn(Connection, Instant) -> Attempt<A>,
    {
        let (connection, turn) = match self.current(until).await {
            Ok(current) => current,
            Err(Fault::Error(Error::NoAnswer { why, .. })) => return Ok(Err(why)),
            Err(fault) => return Err(fault),
        };
        let failure = match attempt(connection, until.min(Instant::now() + TRY_LIMIT)).await {
            Ok(answer) => return Ok(Ok(answer)),
            Err(failure) => failure,
        };
        let (is_unclear, why) = match failure {
            Failure::NotSent(why) => (false, why),
            Failure::Lost(why) => (true, why),
            Failure::Told(status) => match verdict(&status) {
                Verdict::Full if again == Again::Never => {
                    let why = format!("the catalogue at {} is full ({}): {MAKE_ROOM}", self.place(), status.message());
                    return Err(Fault::Error(Error::OutcomeUnknown { why }));
                }
                Verdict::Final | Verdict::Full => return Err(Fault::Told(status)),
                Verdict::Elsewhere => (false, status.message().to_owned()),
                Verdict::Unclear => (true, status.message().to_owned()),
            },
        };
        self.give_up(turn);
        if is_unclear && again == Again::Never {
            return Err(Fault::Error(Error::OutcomeUnknown { why }));
        }
        Ok(Err(why))
    }

    /// What a final word is to a caller who expects none.
    pub fn error(&self, fault: Fault) -> Error {
        let status = match fault {
            Fault::Error(error) => return error,
            Fault::Told(status) => status,
        };
        let (place, why) = (self.place(), status.message().to_owned());
        match status.code() {
            Code::ResourceExhausted if why.contains("space") => Error::Full { place, why },
            _ => Error::Refused { place, why },
        }
    }
}
