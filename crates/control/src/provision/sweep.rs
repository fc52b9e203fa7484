//! Forgets what has ended: operations and requests of more than a day ago, and of a tenant more of them than a thousand; and tokens
//! that let nobody in any more.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::catalogue::{Change, Key, Outcome, TRANSACTION_PARTS_MAX, Transaction};

use super::error::Error;
use super::keys;
use super::records::{Operation, Remembered, Token};
use super::store::{Store, Stored, now};

/// Seconds for which an ended operation, or a request, is remembered. Chosen: who has not asked again within a day does not.
const KEPT_SECONDS: u64 = 24 * 60 * 60;
/// Ended operations, and requests, of a caller that are remembered. Chosen: less than a megabyte.
const KEPT_MAX: usize = 1000;

/// One round. What another process forgets meanwhile is no error.
pub(super) async fn sweep(store: &Store) -> Result<usize, Error> {
    let mut ended: BTreeMap<Vec<u8>, Vec<(u64, Key)>> = BTreeMap::new();
    let operations: Vec<Stored<Operation>> = store.all(keys::all("operation")).await?;
    for Stored { record, entry } in operations {
        if let Some(at) = record.ended {
            let of: &Uuid = &record.tenant_id;
            ended.entry([b"operation".as_slice(), of.as_bytes()].concat()).or_default().push((at, entry.key));
        }
    }
    let requests: Vec<Stored<Remembered>> = store.all(keys::all("request")).await?;
    for Stored { record, entry } in requests {
        // Of one caller: all before the last slash.
        let scope = entry.key.as_bytes().rsplitn(2, |byte| *byte == b'/').last().unwrap_or_default();
        ended.entry(scope.to_vec()).or_default().push((record.at, entry.key.clone()));
    }
    let oldest = now().saturating_sub(KEPT_SECONDS);
    let mut gone = Vec::new();
    for (_, mut of_one) in ended {
        of_one.sort_unstable_by(|(a, key), (b, other)| b.cmp(a).then_with(|| key.cmp(other)));
        let is_kept = |(rank, (at, _)): &(usize, (u64, Key))| *rank < KEPT_MAX && *at >= oldest;
        let forgotten = of_one.into_iter().enumerate().filter(|one| !is_kept(one));
        gone.extend(forgotten.map(|(_, (_, key))| Change::delete(key)));
    }
    let tokens: Vec<Stored<Token>> = store.all(keys::all("token")).await?;
    let is_over = |token: &Token| token.ends.is_some_and(|ends| ends < now());
    gone.extend(tokens.into_iter().filter(|token| is_over(&token.record)).map(|token| Change::delete(token.entry.key)));
    let count = gone.len();
    for part in gone.chunks(TRANSACTION_PARTS_MAX) {
        // No conditions: an ended operation and a request never change, and no id comes again.
        match store.catalogue.commit(Transaction::new(Vec::new(), part.to_vec())?).await? {
            Outcome::Committed(_) | Outcome::Missed(_) => {}
        }
    }
    Ok(count)
}
