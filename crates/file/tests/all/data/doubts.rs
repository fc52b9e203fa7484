//! Two clients change one record, and one of them does not learn what became of its change: what only one of them has taken out of
//! a map is freed by that one alone, and what is freed is never named again.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::task::Task;
use engine::{task, time};

use super::bed::{Bed, Fate, Gate, Node, drawn, in_world, rope};
use super::files::{Step, audit, content};

/// A file whose map is in spans, and another one in the same chunk, which stays; then the chunk is nobody's.
async fn two_files(bed: &Bed, rng: &mut SplitMix) {
    let host = bed.host();
    let (node, kept) = (Node::new(&host, 1), Node::new(&host, 2));
    node.create().await;
    kept.create().await;
    host.contents.write(&*kept, 0, rope(&drawn(rng, 5000))).await.unwrap();
    for n in 0..100 {
        host.contents.write(&*node, n * 5000, rope(&drawn(rng, 5000))).await.unwrap();
    }
    host.contents.space().close().await;
}

/// The client does the step. Of its first change of a span (to nothing, or to something) it learns nothing, and stands still.
fn in_doubt(bed: &Rc<Bed>, step: Step, removes: bool, fate: Fate) -> (Task<()>, Rc<Gate>) {
    let gate = Gate::at(None);
    bed.store.set_fates({
        let (bed, gate, is_done) = (Rc::clone(bed), Rc::clone(&gate), Cell::new(false));
        move |key, is_removal| {
            let is_it = !is_done.get() && bed.is_span(key) && is_removal == removes;
            if is_it {
                is_done.set(true);
                gate.stop_next();
            }
            is_it.then_some(fate)
        }
    });
    let slow = task::spawn({
        let (bed, gate) = (Rc::clone(bed), Rc::clone(&gate));
        async move {
            let host = bed.host_at(gate);
            let node = Node::new(&host, 1);
            step.run(&host, &node).await.unwrap();
            host.contents.space().settle().await;
        }
    });
    (slow, gate)
}

/// Two finish the same cut. The removal of one of them never takes effect; the other's does, and what lay there is soon another
/// file's: its rows are not the first one's to free.
#[test]
fn a_removal_by_another_frees_nothing_here() {
    in_world(1, async {
        let mut rng = SplitMix(1);
        let bed = Rc::new(Bed::new(1, (2, 1), 4, 20).await);
        two_files(&bed, &mut rng).await;
        let (slow, gate) = in_doubt(&bed, Step::Truncate(0), true, Fate::Never);
        time::sleep(Duration::from_secs(1)).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        host.contents.truncate(&*node, 0).await.unwrap();
        host.contents.space().settle().await;
        let other = Node::new(&host, 3);
        other.create().await;
        let bytes = drawn(&mut rng, 1_000_000);
        host.contents.write(&*other, 0, rope(&bytes)).await.unwrap();
        host.contents.space().close().await;
        assert!(!slow.is_finished(), "nothing was in doubt");
        gate.go_on();
        slow.await;
        assert_eq!(content(&host, &node).await, [0; 0]);
        audit(&bed, &[1, 2, 3]).await;
        assert!(content(&host, &other).await == bytes);
    });
}

/// What was put where nothing was is taken out by another before the first one reads again: it finds nothing, as before it. Its
/// rows are free by then.
#[test]
fn what_was_put_into_a_hole_and_taken_out_is_not_named_again() {
    for second in [Step::Punch(0, 20 << 20), Step::Truncate(1000)] {
        in_world(2, async {
            let mut rng = SplitMix(2);
            let bed = Rc::new(Bed::new(2, (2, 1), 4, 20).await);
            two_files(&bed, &mut rng).await;
            let host = bed.host();
            let node = Node::new(&host, 1);
            host.contents.truncate(&*node, 20 << 20).await.unwrap();
            let (at, bytes) = (9 << 20, drawn(&mut rng, 9000));
            let (slow, gate) = in_doubt(&bed, Step::Write(at, bytes.clone()), false, Fate::AtOnce);
            time::sleep(Duration::from_secs(1)).await;
            second.run(&host, &node).await.unwrap();
            host.contents.space().settle().await;
            assert!(!slow.is_finished(), "nothing was in doubt");
            gate.go_on();
            slow.await;
            audit(&bed, &[1, 2]).await;
            assert!(content(&host, &node).await[at..].starts_with(&bytes), "the write is the later one");
        });
    }
}
