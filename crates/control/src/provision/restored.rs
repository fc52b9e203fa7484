//! What is not believed of a catalogue that is restored: the copy may be older than what has happened since.

use crate::catalogue::{Key, Value};

use super::records::{self, Operation, OperationKind, Volume};

/// The entry as it is restored. That a host has had a volume without a break is known up to the copy's moment alone: another host
/// may have had it since, and what the first one holds still for the volume must not be written to it.
///
/// A volume that was to be put back to a snapshot may have been, and written to since: who still wants that asks again.
pub fn restored(key: &Key, value: Value) -> Value {
    if key.as_bytes().starts_with(b"/operation/") {
        let Ok(mut operation) = records::decode::<Operation>(value.as_bytes()) else { return value };
        if operation.kind != OperationKind::Restore || operation.ended.is_some() {
            return value;
        }
        operation.undo = Some("the catalogue was put back to an older copy meanwhile: ask again".to_owned());
        return Value::new(records::encode(&operation)).unwrap_or(value);
    }
    if !key.as_bytes().starts_with(b"/volume/") {
        return value;
    }
    // What can't be read stays as it is: who serves it says so.
    let Ok(mut volume) = records::decode::<Volume>(value.as_bytes()) else { return value };
    match &mut volume.attachment {
        Some(attachment) if !attachment.tenure.is_nil() => attachment.tenure = uuid::Uuid::nil(),
        _ => return value,
    }
    Value::new(records::encode(&volume)).unwrap_or(value)
}
