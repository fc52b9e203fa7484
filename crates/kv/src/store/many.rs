//! Many keys in one call: all are under way together, so that the whole takes hardly longer than one.

use std::collections::BTreeMap;

use engine::task::TaskSet;

use super::error::StoreError;
use super::value::Versioned;
use super::{OPERATIONS_MAX, PutOptions, Store};
use crate::value::Value;

/// Keys of one call that are under way together; the rest follows. Derived: a quarter of what a store has under way, so that
/// one call leaves room for others.
pub const KEYS_AT_ONCE_MAX: usize = OPERATIONS_MAX / 4;

impl Store {
    /// [`Store::get_versioned`] of each key, in their order. Each is linearizable by itself; together they are no snapshot.
    pub async fn get_many(&self, keys: &[impl AsRef<[u8]>]) -> Vec<Result<Option<Versioned>, StoreError>> {
        all(keys.iter().map(|key| self.get_versioned(key.as_ref()))).await
    }

    /// [`Store::put_with`] of each, in their order. Each is linearizable by itself; of a key named twice the last value is
    /// put, and the earlier ones count as overwritten at once.
    pub async fn put_many(&self, puts: &[(impl AsRef<[u8]>, Value, PutOptions)]) -> Vec<Result<(), StoreError>> {
        let last: BTreeMap<&[u8], usize> =
            puts.iter().enumerate().map(|(index, (key, ..))| (key.as_ref(), index)).collect();
        let indices: Vec<usize> = last.values().copied().collect();
        let put = |&index: &usize| {
            let (key, value, options) = &puts[index];
            self.put_with(key.as_ref(), value.clone(), *options)
        };
        let done = all(indices.iter().map(put)).await;
        let outcomes: BTreeMap<usize, Result<(), StoreError>> = indices.iter().copied().zip(done).collect();
        let outcome = |(key, ..): &(_, Value, PutOptions)| {
            let key: &[u8] = AsRef::as_ref(key);
            outcomes[&last[key]].clone()
        };
        puts.iter().map(outcome).collect()
    }
}

/// Waits for all, of which some are under way at once; their outputs in order.
async fn all<F: Future>(futures: impl ExactSizeIterator<Item = F>) -> Vec<F::Output> {
    let mut outputs: Vec<Option<F::Output>> = (0..futures.len()).map(|_| None).collect();
    let mut under_way = TaskSet::new(futures.len().min(KEYS_AT_ONCE_MAX));
    let mut waiting = futures.enumerate();
    loop {
        while !under_way.is_full() {
            let Some((index, future)) = waiting.next() else { break };
            let pushed = under_way.push(async move { (index, future.await) }).is_ok();
            debug_assert!(pushed, "invariant: it is not full");
        }
        match under_way.next().await {
            Some((_, (index, output))) => outputs[index] = Some(output),
            None => return outputs.into_iter().flatten().collect(),
        }
    }
}
