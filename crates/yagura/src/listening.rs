//! Listening where somebody else may just have listened.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use engine::net::UnixListener;
use engine::time;

use crate::exit::Failure;

/// How long an address that is taken is asked for. A server that was killed leaves its listener behind for a moment: the kernel
/// takes its rings down after the process is gone, and who starts it again at once would be refused. Guessed: some 20 ms were seen;
/// who starts a second server by mistake waits as long for being told.
const TAKEN_TIME_MAX: Duration = Duration::from_secs(2);
const TAKEN_PAUSE: Duration = Duration::from_millis(10);

/// Listens at a path.
pub async fn bind_path(path: &Path, mode: u32) -> Result<UnixListener, Failure> {
    let listener = once_it_is_free(|| UnixListener::bind(path, mode)).await;
    listener.map_err(|error| {
        let mend = match error.kind() {
            ErrorKind::AddrInUse => "stop the other one, or say another path",
            ErrorKind::NotFound => "make its directory first",
            ErrorKind::AlreadyExists => "say another path, or remove it",
            ErrorKind::PermissionDenied => "the user of this process has to be allowed to write to its directory",
            ErrorKind::InvalidFilename | ErrorKind::InvalidInput => "a socket's path has 107 bytes at most",
            _ => return Failure::refused(format!("cannot listen: {error}")),
        };
        Failure::refused(format!("cannot listen: {error} ({mend})"))
    })
}

/// Binds, and waits a while for an address that is taken.
pub async fn once_it_is_free<L>(mut bind: impl FnMut() -> io::Result<L>) -> io::Result<L> {
    let begin = time::now();
    let mut result = bind();
    while result.as_ref().is_err_and(|error| error.kind() == ErrorKind::AddrInUse) && begin.elapsed() < TAKEN_TIME_MAX {
        time::sleep(TAKEN_PAUSE).await;
        result = bind();
        if result.is_ok() {
            tracing::info!(waited = ?begin.elapsed(), "who listened there before was not quite gone");
        }
    }
    result
}
