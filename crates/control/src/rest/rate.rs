//! How often a tenant may ask: each has a store of requests that fills up with time, and nobody's questions crowd out another's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// Requests a second of a tenant, in the long run. Chosen: hundreds of hosts that ask what is wanted of them every two seconds.
const PER_SECOND: u32 = 200;
/// Requests at once of one that has been quiet. Chosen: a script that makes everything anew.
pub(super) const BURST: u32 = 1000;
/// Tenants that are remembered; beyond it those whose stores are full are forgotten. Derived: as many as there may be.
const TENANTS_MAX: usize = crate::provision::TENANTS_MAX;

/// The stores of all tenants, by tokio's clock and over its threads, neither of which `engine::pace` has; a clone is the same ones.
#[derive(Clone, Default)]
pub(super) struct Rates(Arc<Mutex<HashMap<Uuid, Instant>>>);

impl Rates {
    /// Takes one request of the tenant; false: there is none left.
    pub(super) fn take(&self, tenant: Uuid) -> bool {
        let now = Instant::now();
        let mut paid = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if paid.len() >= TENANTS_MAX {
            paid.retain(|_, until| *until > now);
        }
        // What was asked so far is paid for at that moment; a full store is what lies behind it.
        let until = paid.entry(tenant).or_insert(now);
        let next = (*until).max(now) + Duration::from_secs(1) / PER_SECOND;
        let is_left = next <= now + Duration::from_secs(1) * BURST / PER_SECOND;
        if is_left {
            *until = next;
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_tenant_has_a_store_of_its_own_that_fills_up() {
        let (rates, a, b) = (Rates::default(), Uuid::from_u128(1), Uuid::from_u128(2));
        let taken = (0..2 * BURST).filter(|_| rates.take(a)).count();
        assert_eq!(taken, BURST as usize);
        assert!(rates.take(b), "another one's");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..BURST).filter(|_| rates.take(a)).count(), PER_SECOND as usize);
    }
}
