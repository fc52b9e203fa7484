//! The reactor threads of a client, and how requests get there.
//!
//! Invariants:
//! - A thread takes a request only when it has room for it: what is under way is bounded, what waits waits with its caller.
//! - A thread ends when its queue is closed or told to, and settles first: late stores on slow members are brought to their end.
//! - Nothing is sent from a process that a fork has made: threads are not copied, so nobody would ever answer there, and a lock
//!   that was held at that moment stays so.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::sync::{MailReceiver, MailSender, Permit, Semaphore, TrySendError, mailbox};
use engine::{Reactor, ReactorConfig, task, time};
use kv::store::RepairerOptions;

use crate::Store;
use crate::error::Error;
use crate::options::Options;
use crate::pending::{Answer, Pending, pending};
use crate::reach::reach;
use crate::way::Way;

/// Requests on their way to one thread. Chosen: enough that a busy thread finds the next one there, few beside the queue.
const MAILBOX_MAX: usize = 64;
/// How long a thread that ends waits for what outlives its operations. Chosen: as long as an operation may take.
const SETTLE_TIME_MAX: Duration = kv::store::OPERATION_TIME_MAX;

/// What a thread does with its store; the permit is held until it is done.
type Work = Box<dyn FnOnce(Store, Permit) + Send>;

enum Letter {
    Work(Work),
    /// Take no more, end what is under way, say when.
    Close(Closing),
}

/// Whoever is to be told that a thread is closed, which is when this is gone: the thread has ended, or it ends for another
/// who asked before and takes no more letters.
struct Closing(Arc<Gathering>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.come(Ok(()));
    }
}

/// Sends requests to one thread.
#[derive(Clone)]
pub(crate) struct Worker {
    letters: MailSender<Letter>,
    timeout: Option<Duration>,
    /// The process that has the thread.
    process: u32,
}

/// An answer that several threads give together: the first failure, else success.
pub(crate) struct Gathering(Mutex<Gathered>);

type End = Box<dyn FnOnce(Result<(), Error>) + Send>;

struct Gathered {
    missing: usize,
    end: Option<End>,
}

impl Gathering {
    /// `end` is called when all of `count` have come, or one has failed.
    pub fn new(count: usize, end: impl FnOnce(Result<(), Error>) + Send + 'static) -> Arc<Gathering> {
        Arc::new(Gathering(Mutex::new(Gathered { missing: count, end: Some(Box::new(end)) })))
    }

    pub fn come(&self, result: Result<(), Error>) {
        let mut gathered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gathered.missing = gathered.missing.saturating_sub(1);
        let end = if gathered.missing == 0 || result.is_err() { gathered.end.take() } else { None };
        drop(gathered);
        if let Some(end) = end {
            end(result);
        }
    }
}

impl Worker {
    /// Starts thread `index`, which reaches the pool and then serves requests; `arrival` is told.
    pub fn start(
        index: usize,
        addresses: Arc<[String]>,
        options: &Options,
        receiver: MailboxEnd,
        arrival: Arc<Gathering>,
    ) -> Result<JoinHandle<()>, Error> {
        let options = options.clone();
        let thread = std::thread::Builder::new().name(format!("yagura-{index}"));
        let failed = arrival.clone();
        let run = move || {
            let ended = Reactor::run(ReactorConfig::default(), main(index, &addresses, &options, receiver, arrival));
            match ended {
                // Only now, when nothing of the reactor is left: the program may end as soon as it hears of this.
                Ok(closing) => drop(closing),
                Err(error) => {
                    failed.come(Err(Error::Unavailable(format!("this machine gives no reactor (io_uring): {error}"))));
                }
            }
        };
        thread.spawn(run).map_err(|error| Error::Unavailable(format!("no thread for the client: {error}")))
    }

    /// Has `operation` done there. `changes`: whether it may change what is stored.
    pub fn call<T, F, R>(&self, changes: bool, operation: F) -> Pending<T>
    where
        T: Send + 'static,
        F: FnOnce(Store) -> R + Send + 'static,
        R: Future<Output = Result<T, Error>> + 'static,
    {
        self.answer(changes, operation, |answer, result| answer.send(result))
    }

    /// The same, where `finish` makes an answer of the output.
    pub fn answer<T, O, F, R>(
        &self,
        changes: bool,
        operation: F,
        finish: impl FnOnce(Answer<T>, Result<O, Error>) + Send + 'static,
    ) -> Pending<T>
    where
        T: Send + 'static,
        O: 'static,
        F: FnOnce(Store) -> R + Send + 'static,
        R: Future<Output = Result<O, Error>> + 'static,
    {
        if self.is_foreign() {
            let sentence = "the client belongs to the process that this one was forked from: connect anew in this one";
            return Pending::done(Err(Error::Usage(sentence.to_owned())));
        }
        let (mut answer, pending) = pending(changes);
        let timeout = self.timeout;
        let work: Work = Box::new(move |store, permit| {
            answer.begin();
            let operation = async move {
                let output = operation(store).await;
                drop(permit);
                output
            };
            let answered = async move {
                let output = match timeout {
                    None => operation.await,
                    Some(limit) => match time::timeout(limit, task::to_its_end(operation)).await {
                        Ok(Some(output)) => output,
                        Ok(None) => Err(Error::Closed { outcome_unknown: answer.unknown() }),
                        Err(time::Elapsed) => Err(Error::TimedOut { limit, outcome_unknown: answer.unknown() }),
                    },
                };
                finish(answer, output);
            };
            task::spawn(answered).detach();
        });
        self.send(Letter::Work(work), pending)
    }

    /// Whether this process is a copy of the one that has the thread.
    pub fn is_foreign(&self) -> bool {
        std::process::id() != self.process
    }

    /// Ends the thread after what it has begun; `closed` is told.
    pub fn close(&self, closed: Arc<Gathering>) -> impl Future<Output = ()> + Send + 'static {
        let letters = self.letters.clone();
        async move {
            // A thread that has ended before is closed as well: the letter comes back, and is dropped.
            let _sent = letters.send(Letter::Close(Closing(closed))).await;
        }
    }

    fn send<T>(&self, letter: Letter, pending: Pending<T>) -> Pending<T> {
        match self.letters.try_send(letter) {
            Ok(()) | Err(TrySendError::Closed(_)) => pending,
            Err(TrySendError::Full(letter)) => {
                let letters = self.letters.clone();
                pending.behind(Box::pin(async move { letters.send(letter).await }))
            }
        }
    }
}

/// The end of a queue at which its thread takes requests.
pub(crate) struct MailboxEnd(MailReceiver<Letter>);

/// A queue to a thread that [`Worker::start`] is to start.
pub(crate) fn worker(options: &Options) -> (Worker, MailboxEnd) {
    let (letters, receiver) = mailbox(MAILBOX_MAX);
    (Worker { letters, timeout: options.timeout, process: std::process::id() }, MailboxEnd(receiver))
}

/// Serves until the client is gone, or is closed: who is to be told then.
async fn main(
    index: usize,
    addresses: &[String],
    options: &Options,
    end: MailboxEnd,
    arrival: Arc<Gathering>,
) -> Option<Closing> {
    let reached = match Way::new(&options.security) {
        Ok(way) => reach(&way, addresses, options.pool).await,
        Err(error) => Err(error),
    };
    let store = match reached {
        Ok(reached) => reached.store(),
        Err(error) => {
            arrival.come(Err(error));
            return None;
        }
    };
    // One thread's repairer is enough: it looks at the members, not at who wrote.
    let repairer = (options.repair && index == 0).then(|| store.start_repairer(RepairerOptions::default()));
    arrival.come(Ok(()));
    drop(arrival);
    let room = Semaphore::new(options.queue);
    let closed = serve(&store, &room, end).await;
    room.acquire(options.queue).await;
    drop(repairer);
    crate::files::registry::end_all().await;
    if time::timeout(SETTLE_TIME_MAX, store.settle()).await.is_err() {
        tracing::debug!("a member is too slow to wait for: repair will bring it up to date");
    }
    closed
}

/// Serves requests as they come.
async fn serve(store: &Store, room: &Semaphore, end: MailboxEnd) -> Option<Closing> {
    loop {
        let permit = room.acquire(1).await;
        match end.0.recv().await? {
            Letter::Work(work) => work(store.clone(), permit),
            Letter::Close(closed) => return Some(closed),
        }
    }
}
