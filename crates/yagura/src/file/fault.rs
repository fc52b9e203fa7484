//! What went wrong with files, as exit statuses.

use crate::exit::Failure;

/// A file system's failure as an exit status.
pub fn failure(error: ::file::Error) -> Failure {
    use ::file::Error;
    match error {
        Error::Unavailable(_) | Error::Lost { .. } => Failure::unavailable(error),
        Error::NoSpace(_) | Error::Quota(_) => Failure::out_of_space(error.to_string()),
        Error::Damaged(_) => Failure::check(error),
        Error::Exists(_) => Failure::refused(error),
        other => Failure::usage(other),
    }
}

/// The failure of an operation on a path: one that is not there is told as a key is that is not there.
pub fn path_failure(path: impl std::fmt::Display, error: ::file::Error) -> Failure {
    let failure = match error {
        ::file::Error::NotFound(_) => Failure::check(error),
        error => failure(error),
    };
    failure.during(path)
}
