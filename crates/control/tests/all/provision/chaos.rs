//! Many operations at once, two workers, a fault after the other by seed.

use control::provision::{OperationState, Request};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::faults::Fault;
use super::world::*;

#[derive(Clone, Debug)]
struct Round {
    /// Of which volumes something is wanted, and whether they are to be there afterwards.
    volumes: Vec<(u8, u8)>,
    fault: (u64, usize),
}

fn round() -> impl Strategy<Value = Round> {
    let volumes = prop::collection::vec((0..6u8, 1..4u8), 1..6);
    (volumes, (0..80u64, 0..Fault::ALL.len())).prop_map(|(volumes, fault)| Round { volumes, fault })
}

async fn run(rounds: Vec<Round>) -> Result<(), TestCaseError> {
    let world = World::new(&[100, 100, 100]).await;
    for round in rounds {
        let mut begun = Vec::new();
        for (volume, replicas) in round.volumes {
            let volume = format!("v{volume}");
            let created =
                world.provisioner.create_volume(&Request::unnamed(), &owner(), &new_volume(&volume, 5, replicas)).await;
            // Who is there is deleted; on whom something is under way already that goes on.
            let id = match created {
                Ok(id) => Ok(id),
                Err(_) => world.provisioner.delete_volume(&Request::unnamed(), &owner(), &name(&volume), false).await,
            };
            begun.extend(id.ok());
        }
        let (at, fault) = round.fault;
        world.faults.arm(at, Fault::ALL[fault]);
        for operation in world.end_all(&begun, 2).await {
            prop_assert_eq!(operation.state, OperationState::Done, "{:?}", operation);
        }
        world.faults.clear();
        // What comes late is there by now.
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        world.at_rest().await;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, max_shrink_iters: 100, ..ProptestConfig::default() })]

    #[test]
    fn operations_at_once_end_and_leave_nothing(rounds in prop::collection::vec(round(), 1..6)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(run(rounds))?;
    }
}
