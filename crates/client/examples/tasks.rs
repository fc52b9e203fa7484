//! The store from tasks, on tokio: `cargo run -p client --example tasks -- 127.0.0.1:4421`
//!
//! A `Pending` is a future for any executor: the client's own threads do the work and wake whoever waits.

use client::{Client, Error, Options};
use tokio::task::JoinSet;

/// What there is to show, on the pool that `addresses` lead to: how many jobs each of three workers has done.
pub async fn run(addresses: &[String]) -> Result<Vec<usize>, Error> {
    let client = Client::connect(addresses, Options::default()).await?;
    client
        .put_many((0..30).map(|number| (format!("job-{number}"), "to do")))
        .await?
        .into_iter()
        .collect::<Result<(), _>>()?;
    let mut workers = JoinSet::new();
    for _ in 0..3 {
        workers.spawn(work(client.clone()));
    }
    let mut done = Vec::new();
    while let Some(worker) = workers.join_next().await {
        // A panic there is this program's defect.
        done.push(worker.unwrap_or(Ok(0))?);
    }
    client.close().await?;
    Ok(done)
}

/// Takes jobs until none is left.
async fn work(client: Client) -> Result<usize, Error> {
    let (mut jobs, mut done) = (client.scan("job-"), 0);
    while let Some(job) = jobs.next_entry().await? {
        // Of several who take one at once, one gets it.
        done += usize::from(client.take(&job.key).await?.is_some());
    }
    Ok(done)
}

fn main() -> Result<(), Error> {
    let addresses: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| Error::Unavailable(error.to_string()))?;
    println!("jobs done by each worker: {:?}", runtime.block_on(run(&addresses))?);
    Ok(())
}
