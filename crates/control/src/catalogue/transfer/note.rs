//! How far a restore has come: a key of the catalogue's own, written in the same transaction as what it tells of.
//!
//! States after a crash, and what the next restore of the same dump does if it is not by force; by force it begins anew:
//! - no note: nothing was restored; it begins.
//! - `clearing`: what was there is being deleted, by force; it goes on deleting.
//! - `filling`, N entries: exactly the first N entries of the dump are there; it leaves them out and goes on, with that dump or
//!   with another one of the same catalogue that begins with them.
//! - `done`: it has nothing to do.

use serde::{Deserialize, Serialize};

use super::format::{Header, TransferError};
use crate::catalogue::contract::Catalogue;
use crate::catalogue::error::Error;
use crate::catalogue::types::{Condition, Entry, Key};

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Clearing,
    Filling,
    Done,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub dump: Header,
    pub state: State,
    pub entries: u64,
    /// The sum of the lines of these entries: a header alone does not tell one dump from another.
    pub xxh3: String,
    /// Rises with each transaction, so that none is like the one before.
    pub step: u64,
}

/// Where the note is.
pub fn key() -> Key {
    Key::reserved("restore")
}

/// The note as it was read, and what must be true of it for the next step.
pub struct Noted {
    pub note: Option<Note>,
    pub condition: Condition,
}

pub async fn read(catalogue: &dyn Catalogue) -> Result<Noted, TransferError> {
    let entry: Option<Entry> = catalogue.get(key()).await?.entry;
    let Some(entry) = entry else {
        return Ok(Noted { note: None, condition: Condition::absent(key()) });
    };
    let foreign =
        |fault: serde_json::Error| Error::Foreign { place: "its note of a restore".into(), what: fault.to_string() };
    let note = serde_json::from_slice(entry.value.as_bytes()).map_err(foreign)?;
    Ok(Noted { note: Some(note), condition: Condition::unchanged(&entry) })
}

/// What was restored last into a catalogue, to be compared with what that is later.
#[derive(Clone, PartialEq, Eq)]
pub struct Restoring(Option<Note>);

/// What it is now.
pub async fn restoring(catalogue: &dyn Catalogue) -> Result<Restoring, TransferError> {
    Ok(Restoring(read(catalogue).await?.note))
}

/// Says whether a restore into the catalogue was begun and has not ended: what is there is a part of something.
pub async fn check_whole(catalogue: &dyn Catalogue) -> Result<(), TransferError> {
    match read(catalogue).await?.note.filter(|note| note.state != State::Done) {
        Some(note) => Err(TransferError::Unfinished { origin: note.dump.origin, revision: note.dump.revision }),
        None => Ok(()),
    }
}
