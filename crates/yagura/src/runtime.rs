//! Tokio, for what is off the data path: REST, the catalogue, gRPC.

use tokio::runtime::{Builder, Runtime};

use crate::exit::Failure;

/// Threads. Chosen: requests are few, and most of their time they wait; what blocks has threads of its own.
const THREADS: usize = 2;

/// A runtime of few threads.
pub fn few_threads() -> Result<Runtime, Failure> {
    let runtime = Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    runtime.map_err(|error| Failure::from(error).during("a runtime"))
}
