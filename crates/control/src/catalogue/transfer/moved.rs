//! That a catalogue was moved: two that are served beside each other would promise the same room, and each delete what the other
//! has made. It is noted in the source before anything is read there.

use super::format::TransferError;
use crate::catalogue::contract::Catalogue;
use crate::catalogue::types::{Change, Condition, Key, Outcome, Transaction, Value};

fn key() -> Key {
    Key::reserved("moved")
}

/// Notes that the catalogue is moved, and where to. It is not changed where that is noted already.
pub async fn mark_moved(catalogue: &dyn Catalogue, to: &str) -> Result<(), TransferError> {
    let value = Value::new(to)?;
    match catalogue.get(key()).await?.entry {
        Some(entry) if entry.value == value => Ok(()),
        Some(entry) => commit(catalogue, Condition::unchanged(&entry), Change::put(key(), value)).await,
        None => commit(catalogue, Condition::absent(key()), Change::put(key(), value)).await,
    }
}

/// It is the one that counts, whatever was noted.
pub async fn unmark_moved(catalogue: &dyn Catalogue) -> Result<(), TransferError> {
    match catalogue.get(key()).await?.entry {
        Some(entry) => commit(catalogue, Condition::unchanged(&entry), Change::delete(key())).await,
        None => Ok(()),
    }
}

/// Says where the catalogue was moved to, if it was.
pub async fn check_not_moved(catalogue: &dyn Catalogue) -> Result<(), TransferError> {
    match read(catalogue).await? {
        Some(to) => Err(TransferError::Moved { to }),
        None => Ok(()),
    }
}

/// Where the catalogue was moved to; none: nowhere.
pub async fn read(catalogue: &dyn Catalogue) -> Result<Option<String>, TransferError> {
    let entry = catalogue.get(key()).await?.entry;
    Ok(entry.map(|entry| String::from_utf8_lossy(entry.value.as_bytes()).into_owned()))
}

async fn commit(catalogue: &dyn Catalogue, condition: Condition, change: Change) -> Result<(), TransferError> {
    match catalogue.commit(Transaction::new(vec![condition], vec![change])?).await {
        Ok(Outcome::Committed(_)) => Ok(()),
        Ok(Outcome::Missed(_)) => Err(TransferError::Raced),
        Err(error) => Err(error.into()),
    }
}
