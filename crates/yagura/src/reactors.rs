//! Reactor threads: one future of the same kind on each.

use engine::{Reactor, ReactorConfig};

use crate::exit::Failure;

/// Runs `main(0)`, `main(1)`, … each on a reactor of its own, of `configs` in this order, until all have ended. The first is on
/// the calling thread. The first failure counts.
pub fn run<M>(configs: &[ReactorConfig], main: M) -> Result<(), Failure>
where
    M: AsyncFn(usize) -> Result<(), Failure> + Sync,
{
    let one = |index: usize| {
        let ended = Reactor::run(configs[index].clone(), main(index));
        ended.map_err(|error| Failure::from(error).during(format!("reactor {index}")))?
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..configs.len())
            .map(|index| {
                std::thread::Builder::new().name(format!("reactor {index}")).spawn_scoped(scope, move || one(index))
            })
            .collect::<Result<_, _>>()?;
        let first = one(0);
        others.into_iter().fold(first, |result, other| {
            let ended = other.join().unwrap_or_else(|_| Err(Failure::refused("a reactor thread has panicked")));
            result.and(ended)
        })
    })
}

/// Runs one future on a reactor on the calling thread.
pub fn run_one<T>(main: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    Reactor::run(ReactorConfig::default(), main).map_err(|error| Failure::from(error).during("reactor"))?
}
