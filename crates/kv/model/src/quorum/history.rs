//! Is a history linearizable? A complete search over the orders that respect real time.

use super::{ABSENT, Config, OPERATIONS_MAX, Operation, Record, Status};

impl Config {
    /// Whether some order explains all results. Operations that did not return may take effect at any time or never.
    pub fn linearizable(&self, history: &[Record; OPERATIONS_MAX]) -> bool {
        let operations: Vec<Operation> =
            self.hosts.iter().flatten().copied().filter(|operation| !operation.is_upkeep()).collect();
        extend(&operations, history, 0, ABSENT)
    }
}

/// Tries to append an operation to the order whose members are the set `placed` and which left `value`.
fn extend(operations: &[Operation], history: &[Record; OPERATIONS_MAX], placed: u8, value: u8) -> bool {
    let is_placed = |index: usize| placed >> index & 1 == 1;
    if (0..operations.len()).all(|index| history[index].status != Status::Done || is_placed(index)) {
        return true;
    }
    (0..operations.len()).any(|index| {
        let record = history[index];
        if record.status == Status::Never || is_placed(index) || record.preceding & !placed != 0 {
            return false;
        }
        let (after, result) = effect(operations[index], value);
        let contradicts = record.status == Status::Done && result.is_some_and(|result| result != record.result);
        !contradicts && extend(operations, history, placed | 1 << index, after)
    })
}

/// The value afterwards, and the result if the operation has one.
fn effect(operation: Operation, value: u8) -> (u8, Option<u8>) {
    match operation {
        Operation::Put(new) => (new, None),
        Operation::Delete => (ABSENT, None),
        Operation::Get => (value, Some(value)),
        Operation::Increment => (value + 1, Some(value + 1)),
        Operation::CompareAndSet(expected, new) if value == expected => (new, Some(1)),
        Operation::CompareAndSet(..) => (value, Some(0)),
        Operation::GetExpired(expired) if value == expired => (ABSENT, Some(ABSENT)),
        Operation::GetExpired(_) => (value, Some(value)),
        upkeep => unreachable!("{upkeep:?} is not in the history"),
    }
}
