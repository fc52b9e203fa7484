//! What is written to another place, and named there late: stripes that are rewritten, and spans that are put together.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use engine::{task, time};
use file::Error;
use file::data::StripeId;

use super::bed::{Bed, Fate, Gate, Host, Node, in_long_world, rope};
use super::files::{audit, content};

const MINUTE: Duration = Duration::from_secs(60);
const STRIDE: u64 = 5000;

/// It says that it lives, whatever else it does.
fn alive(host: &Host) -> task::Task<()> {
    let contents = Rc::clone(&host.contents);
    task::spawn(async move {
        loop {
            time::sleep(MINUTE).await;
            contents.space().renewed(time::now());
        }
    })
}

/// The so many-th change of a map that comes from now on has this fate, and its client stands still behind it.
fn hold(bed: &Rc<Bed>, gate: &Rc<Gate>, is_long: bool, nth: u32, fate: Fate) {
    let (left, inner, gate) = (Cell::new(nth), Rc::clone(bed), Rc::clone(gate));
    bed.store.set_fates(move |key, _| {
        if left.get() == 0 || !(if is_long { inner.is_span(key) } else { key.starts_with(b"inode") }) {
            return None;
        }
        left.set(left.get() - 1);
        (left.get() == 0).then(|| {
            gate.stop_next();
            fate
        })
    });
}

async fn write_pieces(host: &Host, node: &Node, pieces: u64) {
    for piece in 0..pieces {
        let bytes = [piece as u8; STRIDE as usize];
        host.contents.write(node, piece * STRIDE, rope(&bytes)).await.unwrap();
    }
}

async fn named(host: &Host, node: &Node) -> Vec<StripeId> {
    let stripes = host.contents.stripes_of(node).await.unwrap();
    stripes.into_iter().map(|(_, stripe)| stripe.id).collect()
}

/// Rows that are marked, and that no map names, when their client is no more.
async fn unnamed(bed: &Bed, host: &Host) -> usize {
    host.contents.space().close().await;
    audit(bed, &[1]).await.chunks.iter().map(|chunk| chunk.unnamed.len()).sum()
}

/// Of a file whose map is in its inode, and of one whose map is in spans.
const SIZES: [(bool, u64); 2] = [(false, 4), (true, 120)];

#[test]
fn a_stripe_that_is_rewritten_is_named_by_no_late_try() {
    for (is_long, pieces) in SIZES {
        in_long_world(1, async {
            let bed = Rc::new(Bed::new(1, (2, 1), 4, 20).await);
            let gate = Gate::at(None);
            let host = Rc::new(bed.host_at(Rc::clone(&gate)));
            let (_alive, node) = (alive(&host), Node::new(&host, 1));
            node.create().await;
            write_pieces(&host, &node, pieces).await;
            let (before, old) = (content(&host, &node).await, named(&host, &node).await);
            hold(&bed, &gate, is_long, 1, Fate::Never);
            let rewriting = task::spawn({
                let (host, node, stripe) = (Rc::clone(&host), Rc::clone(&node), old[0]);
                async move { host.contents.rewrite(&*node, 0, stripe).await }
            });
            time::sleep(11 * MINUTE).await;
            gate.go_on();
            let late = rewriting.await;
            assert!(matches!(late, Err(Error::Unavailable(_))), "long: {is_long}, {late:?}");
            assert_eq!(named(&host, &node).await, old);
            assert!(content(&host, &node).await == before);
            audit(&bed, &[1]).await;
        });
    }
}

/// The bytes are nowhere else: what was named late is read, and goes to a third place.
#[test]
fn a_stripe_that_was_named_late_is_rewritten_once_more_and_nothing_is_freed() {
    for (is_long, pieces) in SIZES {
        in_long_world(1, async {
            let bed = Rc::new(Bed::new(1, (2, 1), 4, 20).await);
            let gate = Gate::at(None);
            let host = Rc::new(bed.host_at(Rc::clone(&gate)));
            let (_alive, node) = (alive(&host), Node::new(&host, 1));
            node.create().await;
            write_pieces(&host, &node, pieces).await;
            let (before, old) = (content(&host, &node).await, named(&host, &node).await);
            hold(&bed, &gate, is_long, 1, Fate::AtOnce);
            let rewriting = task::spawn({
                let (host, node, stripe) = (Rc::clone(&host), Rc::clone(&node), old[0]);
                async move { host.contents.rewrite(&*node, 0, stripe).await }
            });
            time::sleep(120 * MINUTE).await;
            let other = bed.host();
            let late = named(&other, &Node::new(&other, 1)).await;
            assert!(!rewriting.is_finished() && !late.contains(&old[0]));
            gate.go_on();
            assert_eq!(rewriting.await, Ok(true));
            let now = named(&host, &node).await;
            assert!(!now.contains(&old[0]) && !now.contains(&late[0]), "long: {is_long}");
            assert!(content(&host, &node).await == before);
            assert_eq!(unnamed(&bed, &host).await, 2, "long: {is_long}");
        });
    }
}

/// How many pieces make a span so long that it is put together.
fn pieces() -> u64 {
    let mut pieces = 0;
    in_long_world(1, async {
        let bed = Bed::new(1, (2, 1), 4, 20).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        while host.contents.figures().compactions.get() == 0 {
            host.contents.write(&*node, pieces * STRIDE, rope(&[pieces as u8; STRIDE as usize])).await.unwrap();
            pieces += 1;
        }
    });
    pieces
}

#[test]
fn what_is_put_together_is_named_in_time_or_goes_to_another_place() {
    let pieces = pieces();
    for fate in [Fate::Never, Fate::AtOnce] {
        in_long_world(1, async {
            let bed = Rc::new(Bed::new(1, (2, 1), 4, 20).await);
            let gate = Gate::at(None);
            let host = Rc::new(bed.host_at(Rc::clone(&gate)));
            let (_alive, node) = (alive(&host), Node::new(&host, 1));
            node.create().await;
            write_pieces(&host, &node, pieces - 1).await;
            let mut before = content(&host, &node).await;
            before.extend([9; STRIDE as usize]);
            // The first is that of the write.
            hold(&bed, &gate, true, 2, fate);
            let writing = task::spawn({
                let (host, node) = (Rc::clone(&host), Rc::clone(&node));
                async move { host.contents.write(&*node, (pieces - 1) * STRIDE, rope(&[9; STRIDE as usize])).await }
            });
            time::sleep(if fate == Fate::Never { 11 } else { 120 } * MINUTE).await;
            let other = bed.host();
            let late = named(&other, &Node::new(&other, 1)).await;
            assert!(!writing.is_finished());
            gate.go_on();
            writing.await.unwrap();
            let now = named(&host, &node).await;
            assert!(content(&host, &node).await == before);
            let made = host.contents.figures().compactions.get();
            if fate == Fate::Never {
                assert!(made == 0 && now == late, "it was named after eleven minutes");
            } else {
                assert!(made == 1 && now.len() == late.len() && now != late);
                assert!(unnamed(&bed, &host).await > 1, "what it was made of, and what was named late");
            }
        });
    }
}
