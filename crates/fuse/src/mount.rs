//! [`Mount`]: where a file system is seen.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::Poll;
use std::thread::JoinHandle;

use engine::sync::{MailReceiver, mailbox};
use engine::task::LocalFuture;
use file::Files;
use fuser::{Config, MountOption, Notifier, Session, SessionACL, SessionUnmounter};

use crate::face::Face;
use crate::figures::FuseMetrics;
use crate::serve::{self, Job};

/// Requests on their way to the reactor. Chosen: more than the kernel sends at once in the background.
const LETTERS_MAX: usize = 1024;
/// Threads that read the kernel's requests. Chosen: they only hand on, and a second one does so while the first copies.
const THREADS: usize = 2;

/// How it is mounted.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// Nothing can be changed by this mount.
    pub read_only: bool,
    /// Other users than the one who mounts may use it; the kernel checks their rights by owner and mode.
    pub allow_other: bool,
}

/// Why it can't be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The place is no directory, or can't be looked at.
    #[error("{path} is no directory to mount at: {reason}")]
    Place {
        /// Where.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel, or the program that mounts for users, refuses.
    #[error(
        "FUSE does not mount at {path}: {source}; as another user than root this needs `fusermount3` (package fuse3)"
    )]
    Refused {
        /// Where.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
}

/// A file system that is mounted. Dropped, it is unmounted, as its requests have nobody who answers.
pub struct Mount {
    session: JoinHandle<io::Result<()>>,
    unmounter: SessionUnmounter,
    notifier: Notifier,
    letters: MailReceiver<Job>,
    metrics: FuseMetrics,
}

impl Mount {
    /// Mounts at a directory; requests wait until [`Mount::serve`].
    pub fn new(path: &Path, name: &str, options: &MountOptions) -> Result<Mount, MountError> {
        let place = |reason: String| MountError::Place { path: path.to_owned(), reason };
        let there = std::fs::metadata(path).map_err(|error| place(error.to_string()))?;
        if !there.is_dir() {
            return Err(place("it is something else".into()));
        }
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(name.to_owned()),
            MountOption::Subtype("yagura".into()),
            // Rights are checked by the kernel, by owner and mode.
            MountOption::DefaultPermissions,
        ];
        if options.read_only {
            config.mount_options.push(MountOption::RO);
        }
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(THREADS);
        let (letters, received) = mailbox(LETTERS_MAX);
        let refused = |source| MountError::Refused { path: path.to_owned(), source };
        let mut session = Session::new(Face::new(letters), path, &config).map_err(refused)?;
        let (unmounter, notifier) = (session.unmount_callable(), session.notifier());
        // tidy: thread: it waits in the kernel for requests; nothing of it runs in a simulated world.
        let session = std::thread::Builder::new().name("fuse".into()).spawn(move || session.run()).map_err(refused)?;
        Ok(Mount { session, unmounter, notifier, letters: received, metrics: FuseMetrics::default() })
    }

    /// What is counted of its requests.
    pub fn metrics(&self) -> &FuseMetrics {
        &self.metrics
    }

    /// Answers requests until it is unmounted by somebody, or `end` comes: then what was written goes out, it unmounts itself, and
    /// answers what comes until that is done.
    pub fn serve<'a>(self, files: Rc<Files>, end: LocalFuture<'a, ()>) -> LocalFuture<'a, io::Result<()>> {
        Box::pin(self.served(files, end))
    }

    async fn served(self, files: Rc<Files>, end: LocalFuture<'_, ()>) -> io::Result<()> {
        let Mount { session, mut unmounter, notifier, letters, metrics } = self;
        let serving = serve::serve(Rc::clone(&files), notifier, metrics, &letters);
        let unmounting = async move {
            end.await;
            let flushed = files.flush_all().await;
            // tidy: thread: it waits for requests that this thread has to answer.
            std::thread::spawn(move || {
                if let Err(error) = unmounter.unmount() {
                    let is_stored = if flushed.is_ok() { "what was written is stored" } else { "not all is stored" };
                    tracing::error!(%error, "it is in use, and ends once nobody uses it and it is unmounted; {is_stored}");
                }
            });
            std::future::pending::<()>().await;
        };
        let mut serving = std::pin::pin!(serving);
        let mut unmounting = std::pin::pin!(unmounting);
        let served = std::future::poll_fn(|context| {
            if let Poll::Ready(served) = serving.as_mut().poll(context) {
                return Poll::Ready(served);
            }
            let _never = unmounting.as_mut().poll(context);
            Poll::Pending
        });
        let served = served.await.map_err(io::Error::other);
        let ended =
            session.join().unwrap_or_else(|_| Err(io::Error::other("the thread that reads requests has panicked")));
        served.and(ended)
    }
}
