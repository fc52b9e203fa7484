//! A client that stands still in the middle of what it does, and goes on when others have gone past it.

use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::{task, time};

use super::bed::{Bed, Gate, Node, drawn, in_world, rope};
use super::files::{Step, content};

/// A file of many pieces, whose map is in spans.
async fn long_file(bed: &Bed, pieces: usize) -> Vec<u8> {
    let host = bed.host();
    let node = Node::new(&host, 1);
    node.create().await;
    let mut rng = SplitMix(1);
    let mut model = Vec::new();
    for n in 0..pieces {
        let step = Step::Write(n * 5000, drawn(&mut rng, 5000));
        step.run(&host, &node).await.unwrap();
        step.apply(&mut model);
    }
    host.contents.space().close().await;
    model
}

/// Lets a client do `first`, which stands still at a step; then another one does `second`, and the first one goes on. False: it
/// came to its end before that step. The file is what both make of it, in the order of their ends.
async fn overtaken(step: u64, pieces: usize, first: &Step, second: &Step) -> bool {
    let bed = Rc::new(Bed::new(1, (2, 1), 4, 20).await);
    let mut model = long_file(&bed, pieces).await;
    let gate = Gate::at(Some(step));
    let slow = task::spawn({
        let (bed, gate, first) = (Rc::clone(&bed), Rc::clone(&gate), first.clone());
        async move {
            let host = bed.host_at(gate);
            let node = Node::new(&host, 1);
            first.run(&host, &node).await.unwrap();
        }
    });
    time::sleep(Duration::from_secs(5)).await;
    let was_held = !slow.is_finished();
    first.apply(&mut model);
    let host = bed.host();
    let node = Node::new(&host, 1);
    second.run(&host, &node).await.unwrap();
    second.apply(&mut model);
    gate.go_on();
    slow.await;
    let found = content(&host, &node).await;
    if let (Step::Write(at, bytes), Step::Write(..)) = (first, second) {
        // Which of two writes at once is the later one is open where they meet; here they do not.
        model[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    assert!(found == model, "the first one was held at step {step}: {} bytes, expected {}", found.len(), model.len());
    was_held
}

#[test]
fn a_late_truncation_takes_nothing_that_was_written_after_it() {
    // The truncation has taken place for all when it is in the inode: before that the second one comes first.
    // The second one writes where the file ends by then, so that it makes no cut of its own, and finishes that of the first.
    let second = Step::Write(150_000, vec![7; 9000]);
    let first = Step::Truncate(150_000);
    for step in 1.. {
        let mut was_held = false;
        in_world(step, async {
            was_held = overtaken(step, 120, &first, &second).await;
        });
        if !was_held {
            assert!(step > 3, "{step}");
            return;
        }
    }
}

/// A part of a span is read, written anew and put in place: what was written to it meanwhile stays.
#[test]
fn putting_pieces_together_takes_nothing_that_was_written_meanwhile() {
    let mut pieces = 0;
    in_world(0, async {
        let bed = Bed::new(1, (2, 1), 4, 20).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        while host.contents.figures().compactions.get() == 0 {
            host.contents.write(&*node, pieces as u64 * 5000, rope(&[1; 5000])).await.unwrap();
            pieces += 1;
        }
    });
    // The last one has made the map too long.
    let first = Step::Write((pieces - 1) * 5000, vec![6; 5000]);
    let second = Step::Write(1_500_000, vec![7; 9000]);
    let mut step = 0;
    loop {
        let mut was_held = false;
        in_world(step, async {
            was_held = overtaken(step, pieces - 1, &first, &second).await;
        });
        if !was_held {
            assert!(step > 20, "nothing was put together: {step}");
            return;
        }
        step += 1;
    }
}
