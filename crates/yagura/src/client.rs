//! Reaching a pool as the flags say; failures as exit statuses.

pub use ::client::reach::{Found, Reached, Source, Way};
use ::nvme::Nqn;
use kv::store::Store;

use crate::cli::{NvmeHost, PoolAddress};
use crate::exit::Failure;

/// Who connects to members, and what that needs.
pub fn way(flags: &NvmeHost) -> Result<Way, Failure> {
    Ok(Way::new(&crate::nvme::keys::security(flags))?)
}

/// Every namespace at `address`: of subsystem `nqn` or of all that are discovered; `nsid` or all. What else is there and can't be
/// used is said in the log.
pub async fn find(way: &Way, address: &str, nqn: Option<Nqn>, nsid: Option<u32>) -> Result<Vec<Found>, Failure> {
    let found = ::client::reach::find(way, address, nqn, nsid).await?;
    found.troubles.iter().for_each(|trouble| tracing::warn!("{address}: {trouble}"));
    Ok(found.found)
}

/// Reaches the pool that the flags mean.
pub async fn reach(way: &Way, address: &PoolAddress) -> Result<Reached, Failure> {
    if address.pool.is_empty() {
        return Err(Failure::usage("which pool? give the address of a member by --pool, or `pool` in a config file"));
    }
    Ok(::client::reach::reach(way, &address.pool, address.pool_id).await?)
}

/// Reaches what is left of a pool whose voters have no majority any more.
pub async fn reach_rest(way: &Way, address: &PoolAddress) -> Result<Reached, Failure> {
    Ok(::client::reach::reach_rest(way, &address.pool, address.pool_id).await?)
}

/// The store of the pool at an address; what does not answer is said in the log.
pub async fn open(address: &PoolAddress) -> Result<Store, Failure> {
    let reached = reach(&way(&address.host)?, address).await?;
    for trouble in &reached.troubles {
        tracing::warn!("{trouble}");
    }
    Ok(reached.store())
}

/// A pool's error as an exit status.
pub fn pool_failure(error: pool::Error) -> Failure {
    ::client::Error::from(error).into()
}
