//! A medium has one opener at a time. What one that was killed has left behind is waited for.
//!
//! The lock that says so is the open file's, and with it that of every request on it: a write under way when its process is killed
//! keeps the lock until the disk has answered and the kernel has taken its ring down, some 50 ms after the process is gone.
//! That is as it must be, since such a write changes the medium still. So who starts a server again at once finds the lock taken by
//! nobody, for a moment.

use std::io;
use std::path::Path;
use std::time::Duration;

use engine::file::{File, OpenOptions};
use engine::time;

/// How long a lock that is taken is asked for. Guessed: a disk's answer and then some; whoever starts a second server by mistake
/// waits as long for being told.
const CLAIM_TIME_MAX: Duration = Duration::from_secs(5);
/// Until it is said that somebody is waited for. Chosen: longer than a killed process leaves its lock behind.
const CLAIM_SILENCE_MAX: Duration = Duration::from_millis(500);
const CLAIM_PAUSE: Duration = Duration::from_millis(10);

/// Opens the file or device at `path` for nobody else.
///
/// # Errors
/// As [`File::open`]: `ResourceBusy` where another opener holds it, and goes on to.
pub(crate) async fn open(path: &Path, create: Option<u64>, read_only: bool) -> io::Result<File> {
    let options = OpenOptions { create, direct: true, exclusive: true, read_only };
    let (begin, mut said) = (time::now(), false);
    let mut result = File::open(path, &options);
    while result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
        && begin.elapsed() < CLAIM_TIME_MAX
    {
        if !said && begin.elapsed() > CLAIM_SILENCE_MAX {
            let (path, seconds) = (path.display(), CLAIM_TIME_MAX.as_secs());
            tracing::warn!(%path, "another process has it: waiting up to {seconds} s for the end of that");
            said = true;
        }
        time::sleep(CLAIM_PAUSE).await;
        result = File::open(path, &options);
        if result.is_ok() {
            tracing::info!(path = %path.display(), waited = ?begin.elapsed(), "its last user had something under way");
        }
    }
    result
}
