//! What of a key's history can matter, and what nobody could tell apart.

use std::collections::{HashMap, HashSet};

use crate::fault::Fault;
use crate::{Action, Operation};

/// The operations that can matter, with one value for all that no answer and no condition could tell apart.
///
/// Left out: gets without an answer, and, on keys that are only put, deleted and got, puts of unknown outcome whose value nobody
/// saw (if an order contains one, the order without it explains the same answers; not so where a condition was found true or
/// false because of it). The second keeps crash-ridden histories small.
pub(crate) fn relevant(operations: &[&Operation]) -> Result<Vec<Operation>, Fault> {
    let counted = operations.iter().any(|operation| matches!(operation.action, Action::Increment { .. }));
    let mut written = HashSet::new();
    for write in operations.iter().filter(|operation| operation.action.writes_value()) {
        let Some(value) = write.value else { return Err(Fault::Malformed(format!("{write:?} writes nothing"))) };
        if !written.insert(value) && !counted {
            return Err(Fault::Malformed(format!("{write:?} writes the value of another one")));
        }
    }
    // A look that saw something does not say what: any put may be why.
    let saw =
        |operation: &Operation| operation.action == Action::Look && operation.returned.is_some() && operation.done;
    let plain = operations.iter().all(|operation| operation.action.is_plain() && !saw(operation));
    let told_apart = told_apart(operations);
    let matters = |operation: &Operation| match (operation.returned, operation.action, operation.value) {
        (None, Action::Get | Action::Look, _) => false,
        (None, Action::Put, Some(value)) if plain => told_apart.as_ref().is_none_or(|seen| seen.contains(&value)),
        _ => true,
    };
    let mut kept: Vec<Operation> = operations.iter().copied().filter(|operation| matters(operation)).cloned().collect();
    if let Some(seen) = told_apart {
        let one = (0..).find(|value| !seen.contains(value));
        for write in kept.iter_mut().filter(|operation| operation.action.writes_value()) {
            write.value = if write.value.is_some_and(|value| seen.contains(&value)) { write.value } else { one };
        }
    }
    Ok(kept)
}

/// The values that an answer or a condition names; `None`: on this key values become others, and any may be named by what came
/// of it.
fn told_apart(operations: &[&Operation]) -> Option<HashSet<u64>> {
    let mut seen = HashSet::new();
    for operation in operations {
        match operation.action {
            Action::Increment { .. } | Action::Append { .. } => return None,
            Action::Get | Action::Take if operation.returned.is_some() => seen.extend(operation.value),
            Action::CompareAndSet { expected } => seen.extend(expected),
            Action::Expire { of } => seen.extend([of]),
            _ => {}
        }
    }
    Some(seen)
}

/// Of each operation without an answer, the last one invoked before it that has no answer either and does the same.
///
/// Where an order has the later of two such and not the earlier before it, they can change places: what the earlier has to come
/// after, the later has to come after too, and neither has to come before anything.
pub(crate) fn twins(operations: &[Operation]) -> Vec<Option<usize>> {
    let mut unknown: Vec<usize> = (0..operations.len()).filter(|&index| operations[index].returned.is_none()).collect();
    unknown.sort_by_key(|&index| operations[index].invoked);
    let mut twins = vec![None; operations.len()];
    let mut last: HashMap<(Action, Option<u64>), usize> = HashMap::new();
    for index in unknown {
        let operation = &operations[index];
        // What is taken without an answer is deleted.
        let does = match operation.action {
            Action::Take => (Action::Delete, None),
            Action::Delete => (Action::Delete, None),
            // The value of an append is what it was told.
            Action::Increment { .. } | Action::Expire { .. } => (operation.action, None),
            action => (action, operation.value),
        };
        twins[index] = last.insert(does, index);
    }
    twins
}
