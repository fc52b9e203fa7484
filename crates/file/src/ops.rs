//! What can be done with files, by inode numbers.

mod attributes;
mod directories;
mod extended;
mod inline;
mod lookup;
mod make;
mod open;
mod remove;
mod rename;
mod turns;

pub use attributes::{Attributes, Change};
pub(crate) use directories::OpenDir;
pub use extended::SetMode;
pub use make::New;
pub use rename::RenameFlags;
pub(crate) use turns::Turns;

use crate::error::Error;

/// A name for people.
fn shown(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

fn not_found(name: &[u8]) -> Error {
    Error::NotFound(shown(name))
}
