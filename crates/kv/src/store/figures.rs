//! The figures of stores, for Prometheus.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::figures::{counter, merged};
use engine::histogram::Histogram;
use engine::job;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::StoreStats;

/// The figures of the stores of a process, one per reactor, summed up.
#[derive(Default, Debug)]
pub struct StoreMetrics(Mutex<Vec<Arc<StoreStats>>>);

impl StoreMetrics {
    /// Adds the store of one more reactor.
    pub fn add(&self, stats: Arc<StoreStats>) {
        self.stores().push(stats);
    }

    fn stores(&self) -> MutexGuard<'_, Vec<Arc<StoreStats>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stores = self.stores().clone();
        let sum = |of: fn(&StoreStats) -> &AtomicU64| stores.iter().map(|store| of(store).load(Relaxed)).sum();
        let e = &mut encoder;
        counter(e, "yagura_store_gets", "Gets answered.", sum(|store| &store.gets))?;
        counter(e, "yagura_store_puts", "Puts acknowledged.", sum(|store| &store.puts))?;
        counter(e, "yagura_store_deletes", "Deletes acknowledged.", sum(|store| &store.deletes))?;
        counter(e, "yagura_store_failures", "Operations that failed.", sum(|store| &store.failures))?;
        counter(e, "yagura_store_write_backs", "Gets that stored the newest first.", sum(|store| &store.write_backs))?;
        counter(e, "yagura_store_repaired", "Replicas stored by repair.", sum(|store| &store.repaired))?;
        counter(e, "yagura_store_skips", "Times a slow member was passed over.", sum(|store| &store.skips))?;
        for (name, help, of) in [
            ("yagura_store_get_seconds", "Time of gets.", (|store| &store.get_time) as fn(&StoreStats) -> &Histogram),
            ("yagura_store_put_seconds", "Time of puts and deletes.", |store| &store.put_time),
        ] {
            merged(e, name, help, stores.iter().map(|store| of(store)))?;
        }
        job::tell(e, stores.iter().flat_map(|store| store.jobs.list()).collect())
    }
}
