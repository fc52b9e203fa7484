//! Failures of file systems as exit statuses.

use ::file::Error;

use crate::exit::Failure;

/// A file system's failure as an exit status.
pub fn failure(error: Error) -> Failure {
    match error {
        Error::Unavailable(_) | Error::Lost { .. } => Failure::unavailable(error),
        Error::NoSpace(_) => Failure::out_of_space(error.to_string()),
        Error::Damaged(_) => Failure::check(error),
        Error::Exists(_) => Failure::refused(error),
        other => Failure::usage(other),
    }
}
