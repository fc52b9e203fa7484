//! Closed loops: so many clients, each of which waits for its answer before it asks again.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use hdrhistogram::Histogram;

use crate::figures::{histogram, record};

/// What a run of closed loops saw.
pub struct Outcome {
    /// Latencies of everything that finished, by kind of operation (the step's return value).
    pub by_kind: Vec<Histogram<u64>>,
    /// From the first request to the last answer.
    pub wall: Duration,
}

impl Outcome {
    /// All kinds together.
    pub fn all(&self) -> Histogram<u64> {
        let mut sum = histogram();
        for kind in &self.by_kind {
            sum.add(kind).expect("all histograms are made by figures::histogram, so their bounds agree");
        }
        sum
    }
}

/// Runs `clients` loops of `step` for `time` on the current reactor. A step gets its client's number and returns the kind
/// (below `kinds`) of what it did; the first error ends the run.
pub async fn closed_loops<F>(clients: usize, kinds: usize, time: Duration, step: F) -> anyhow::Result<Outcome>
where
    F: AsyncFn(usize) -> anyhow::Result<usize> + 'static,
{
    let step = Rc::new(step);
    let by_kind = Rc::new(RefCell::new((0..kinds).map(|_| histogram()).collect::<Vec<_>>()));
    let begin = engine::time::now();
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let (step, by_kind) = (Rc::clone(&step), Rc::clone(&by_kind));
            engine::task::spawn(async move {
                let mut now = engine::time::now();
                while now.duration_since(begin) < time {
                    let kind = step(client).await?;
                    let done = engine::time::now();
                    let mut by_kind = by_kind.borrow_mut();
                    let latencies = by_kind.get_mut(kind).context("a step returned a kind out of range")?;
                    record(latencies, done.duration_since(now));
                    now = done;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    let wall = engine::time::now().duration_since(begin);
    let by_kind = by_kind.take();
    Ok(Outcome { by_kind, wall })
}

/// Runs `clients` loops of `step` for `time`, each of which asks at times set beforehand: client `i` at `i * interval`, and
/// then every `clients * interval`. Latencies count from the set time, so that a step that had to wait for a slow one before
/// it tells of that too (no coordinated omission). The first error ends the run.
pub async fn paced_loops<F>(clients: usize, interval: Duration, time: Duration, step: F) -> anyhow::Result<Outcome>
where
    F: AsyncFn(usize) -> anyhow::Result<()> + 'static,
{
    let step = Rc::new(step);
    let latencies = Rc::new(RefCell::new(histogram()));
    let begin = engine::time::now();
    let round = interval.saturating_mul(u32::try_from(clients).context("too many clients")?);
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let (step, latencies) = (Rc::clone(&step), Rc::clone(&latencies));
            let mut when = begin + interval.saturating_mul(client as u32); // below the count, which fits
            engine::task::spawn(async move {
                while when.duration_since(begin) < time {
                    engine::time::sleep_until(when).await;
                    step(client).await?;
                    record(&mut latencies.borrow_mut(), engine::time::now().duration_since(when));
                    when += round;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    let wall = engine::time::now().duration_since(begin);
    Ok(Outcome { by_kind: vec![latencies.replace(histogram())], wall })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use engine::sim::{SimConfig, World};

    use super::*;

    #[test]
    fn every_client_loops_and_kinds_are_kept_apart() {
        let world = World::new(1, SimConfig::default());
        let node = world.node("bench");
        let task = world.spawn_on(node, async {
            let turn = Cell::new(0usize);
            closed_loops(4, 2, Duration::from_millis(10), async move |_client| {
                engine::time::sleep(Duration::from_millis(1)).await;
                turn.set(turn.get() + 1);
                Ok(turn.get() % 2)
            })
            .await
        });
        let outcome = world.run_until(task).unwrap().unwrap();
        let counts: Vec<u64> = outcome.by_kind.iter().map(|h| h.len()).collect();
        assert_eq!(outcome.all().len(), counts.iter().sum::<u64>());
        assert!(counts[0] >= 20 && counts[1] >= 20, "{counts:?}");
    }

    /// Each step takes three intervals of its client: the third waits for two before it, and says so.
    #[test]
    fn paced_latencies_count_from_the_set_time() {
        let world = World::new(1, SimConfig::default());
        let node = world.node("bench");
        let task = world.spawn_on(node, async {
            let interval = Duration::from_millis(1);
            paced_loops(1, interval, Duration::from_millis(3), async |_client| {
                engine::time::sleep(Duration::from_millis(3)).await;
                Ok(())
            })
            .await
        });
        let all = world.run_until(task).unwrap().unwrap().all();
        assert_eq!(all.len(), 3);
        assert!(all.min() >= 2_990_000 && all.max() >= 6_990_000, "{} to {} ns", all.min(), all.max());
    }
}
