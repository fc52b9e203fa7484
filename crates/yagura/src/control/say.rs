//! What the control plane answered, said to who asked.

use serde_json::Value;

use crate::cli::Asking;
use crate::exit::Failure;
use crate::output;

/// Says it as the flags want it.
pub fn report(asking: &Asking, said: &Value) -> Result<(), Failure> {
    output::report(asking.common.json, said, shown)
}

/// A document for people: a line for each thing of a list, a line for each part of a thing.
fn shown(said: &Value) -> String {
    let word = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let line = |thing: &Value| {
        let parts = thing.as_object().into_iter().flatten();
        let parts = parts.filter(|(_, value)| !value.is_array() && !value.is_object());
        parts.map(|(name, value)| format!("{name} {}", word(value))).collect::<Vec<_>>().join("  ")
    };
    match (said["items"].as_array(), said.as_object()) {
        (Some(items), _) => items.iter().map(|thing| line(thing) + "\n").collect(),
        (None, Some(parts)) => parts
            .iter()
            .map(|(name, value)| match value.as_array() {
                Some(things) => things.iter().map(|thing| format!("{name}: {}\n", line(thing))).collect(),
                None => format!("{name}: {}\n", word(value)),
            })
            .collect(),
        (None, None) => String::new(),
    }
}
