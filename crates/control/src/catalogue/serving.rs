//! Who serves a catalogue that several machines reach. Each control plane has an entry of its own, bound to a lease, so that one
//! that dies is forgotten when that ends.
//!
//! Invariant: of a control plane that begins and a restore that begins, one at least sees the other. The one writes its entry
//! before it looks whether a restore is noted, the other its note before it looks for entries the last time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use super::contract::Catalogue;
use super::error::Error;
use super::types::{Change, Key, Lease, Outcome, Prefix, Range, Transaction, Ttl, Value};

/// How long a control plane counts that has died. Chosen: that of its operations.
pub const SERVING_TTL: Duration = Duration::from_secs(15);
/// Before the catalogue is asked again that has failed.
const PAUSE: Duration = Duration::from_secs(1);

fn all() -> Prefix {
    Prefix::new("/serving/").expect("a short word makes a prefix")
}

/// Who serves the catalogue, in its own words; none: nobody.
pub(super) async fn served_by(catalogue: &dyn Catalogue) -> Result<Option<String>, Error> {
    let page = catalogue.range(Range::of(all()).entries(1)?).await?;
    Ok(page.entries.first().map(|entry| String::from_utf8_lossy(entry.value.as_bytes()).into_owned()))
}

/// That this process serves a catalogue.
pub struct Serving {
    catalogue: Arc<dyn Catalogue>,
    who: String,
    lease: Mutex<Lease>,
}

impl Serving {
    /// Says so. Look then whether the catalogue may be served.
    pub async fn begin(catalogue: Arc<dyn Catalogue>, who: String) -> Result<Serving, Error> {
        let lease = Mutex::new(announced(&*catalogue, &who).await?);
        Ok(Serving { catalogue, who, lease })
    }

    fn lease(&self) -> Lease {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says so until it may have counted as dead for a while; then says so anew, and ends.
    pub async fn lapsed(&self) {
        let lease = self.lease();
        loop {
            sleep(lease.ttl / 3).await;
            match self.catalogue.keep_alive(lease.id).await {
                Err(Error::LeaseGone { .. }) => break,
                Err(error) => tracing::warn!(%error, "that the catalogue is served is not said anew yet"),
                Ok(_) => {}
            }
        }
        loop {
            match announced(&*self.catalogue, &self.who).await {
                Ok(lease) => {
                    *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = lease;
                    return;
                }
                Err(error) => tracing::warn!(%error, "who restores the catalogue can't see that it is served"),
            }
            sleep(PAUSE).await;
        }
    }

    /// It is served no more.
    pub async fn end(&self) -> Result<(), Error> {
        self.catalogue.revoke(self.lease().id).await
    }
}

async fn announced(catalogue: &dyn Catalogue, who: &str) -> Result<Lease, Error> {
    let lease = catalogue.grant(Ttl::new(SERVING_TTL)?).await?;
    let key = Key::new(format!("/serving/{}", uuid::Uuid::new_v4()))?;
    let put = Change::put_leased(key, Value::new(who)?, lease.id);
    match catalogue.commit(Transaction::new(Vec::new(), vec![put])?).await? {
        Outcome::Committed(_) | Outcome::Missed(_) => Ok(lease),
    }
}
