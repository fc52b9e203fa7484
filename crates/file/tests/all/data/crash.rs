//! A client stops at every step of what it does. Whoever comes then finds every byte that was acknowledged, and takes no row that
//! is in use.

use std::time::Duration;

use engine::rng::SplitMix;
use engine::time;

use super::bed::{Bed, Gate, Node, drawn, in_world, rope};
use super::files::{Step, audit, content};

/// What the client that stops does: through all kinds of content, over rows that it has freed, cut and grown again.
fn steps(rng: &mut SplitMix) -> Vec<Step> {
    let mut steps = vec![Step::Write(0, drawn(rng, 900)), Step::Write(900, drawn(rng, 9000))];
    steps.extend((0..14).map(|n| Step::Write(n * 1500, drawn(rng, 2000))));
    steps.push(Step::Write(0, drawn(rng, 8000)));
    steps.extend((14..60).map(|n| Step::Write(n * 500, drawn(rng, 700))));
    steps.push(Step::Punch(3000, 9000));
    steps.push(Step::Truncate(12_000));
    steps.push(Step::Write(20_000, drawn(rng, 6000)));
    steps.push(Step::Truncate(0));
    steps.push(Step::Write(5, drawn(rng, 3000)));
    steps.push(Step::scatter(rng, 100));
    steps.extend((0..40).map(|n| Step::Write(n * 2000, drawn(rng, 700))));
    steps.push(Step::scatter(rng, 50_000));
    steps.push(Step::scatter(rng, 85_000));
    steps
}

/// Whether each byte is as before or as after.
fn is_between(found: &[u8], before: &[u8], after: &[u8]) -> bool {
    let of = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or(0);
    (found.len() == before.len() || found.len() == after.len() || (found.is_empty() && after.len() < before.len()))
        && (0..found.len()).all(|at| found[at] == of(before, at) || found[at] == of(after, at))
}

/// The client stops at this step; false: it has come to its end before.
async fn stopped_at(step: u64) -> bool {
    let mut rng = SplitMix(1);
    // Little room: rows that are taken for free are soon written.
    let bed = Bed::new(1, (2, 1), 4, 5).await;
    let gate = Gate::at(Some(step));
    let host = bed.host_at(gate);
    let (node, kept) = (Node::new(&host, 1), Node::new(&host, 2));
    let mut model = Vec::new();
    let mut running: Option<Step> = None;
    let mut of_kept = Vec::new();
    let ended = time::timeout(Duration::from_secs(200), async {
        node.create().await;
        kept.create().await;
        let bytes = drawn(&mut rng, 30_000);
        host.contents.write(&*kept, 0, rope(&bytes)).await.unwrap();
        of_kept = bytes;
        for step in steps(&mut rng) {
            running = Some(step.clone());
            step.run(&host, &node).await.unwrap();
            step.apply(&mut model);
        }
        running = None;
        host.contents.space().close().await;
    })
    .await;
    drop((node, kept, host));
    let other = bed.host();
    let (node, kept) = (Node::new(&other, 1), Node::new(&other, 2));
    node.create().await;
    kept.create().await;
    let found = content(&other, &node).await;
    let mut after = model.clone();
    running.iter().for_each(|step| step.apply(&mut after));
    assert!(is_between(&found, &model, &after), "stopped at step {step}, in {running:?}");
    // A file that grows again has nothing behind its end of what was never acknowledged.
    let mut expected = found.clone();
    expected.resize(found.len() + 60_000, 0);
    other.contents.truncate(&*node, expected.len() as u64).await.unwrap();
    assert!(content(&other, &node).await == expected, "stopped at step {step}, in {running:?}: bytes behind the end");
    audit(&bed, &[1, 2]).await;
    // All the room there is is written: nothing that is named may be hit.
    let filler = Node::new(&other, 3);
    filler.create().await;
    let mut filled = 0;
    while other.contents.write(&*filler, filled, rope(&[0xee; 200_000])).await.is_ok() {
        filled += 200_000;
    }
    assert!(filled > 1_000_000, "{filled}");
    let last = bed.host();
    let (node, kept) = (Node::new(&last, 1), Node::new(&last, 2));
    assert!(content(&last, &node).await == expected, "stopped at step {step}: a row was taken twice");
    assert!(content(&last, &kept).await.starts_with(&of_kept), "stopped at step {step}: a row was taken twice");
    ended.is_err()
}

#[test]
fn a_client_that_stops_at_any_step_loses_nothing_that_was_acknowledged() {
    let mut step = 0;
    let mut has_stopped = true;
    while has_stopped {
        in_world(step, async {
            has_stopped = stopped_at(step).await;
        });
        // All of the first ones, where chunks are made; later every few, another set of them with each step.
        step += if step < 60 { 1 } else { 3 };
    }
    assert!(step > 300, "{step}");
}
