//! What can be done with files, by inode numbers.

mod attributes;
mod directories;
mod extended;
mod give;
mod inline;
mod listing;
mod lock;
mod lookup;
mod make;
mod open;
mod quota;
mod remove;
mod rename;
mod renew;
mod stakes;
mod standing;
mod told;
mod turns;
mod wishes;

pub use attributes::Change;
pub use extended::SetMode;
pub use make::New;
pub use quota::Quota;
pub use rename::RenameFlags;
pub use stakes::LockRequest;
pub(crate) use stakes::Locks;
pub(crate) use standing::{LEASE_RENEWED_EVERY, Standing};
pub use told::Attributes;
pub(crate) use told::OpenDir;
pub(crate) use turns::Turns;
pub(crate) use wishes::Wishes;

use crate::error::Error;

/// A name for people.
fn shown(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

fn not_found(name: &[u8]) -> Error {
    Error::NotFound(shown(name))
}
