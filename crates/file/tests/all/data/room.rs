//! Space as it is seen from outside: it is given back, refused in words, and a client that was silent too long writes no more.

use std::time::Duration;

use engine::rng::SplitMix;
use engine::time;
use file::Error;
use file::data::LabelError;

use super::bed::{Bed, Node, drawn, in_world, rope};
use super::files::{audit, content};

#[test]
fn what_files_had_is_there_again_when_they_are_gone() {
    in_world(1, async {
        let mut rng = SplitMix(1);
        let bed = Bed::new(1, (2, 1), 4, 8).await;
        let mut most = None;
        for round in 0..5 {
            let host = bed.host();
            let node = Node::new(&host, 10 + round);
            node.create().await;
            let mut filled = 0;
            let refusal = loop {
                match host.contents.write(&*node, filled, rope(&drawn(&mut rng, 250_000))).await {
                    Ok(()) => filled += 250_000,
                    Err(error) => break error,
                }
            };
            assert!(matches!(&refusal, Error::NoSpace(told) if told.contains("no free region")), "{refusal}");
            assert_eq!(*most.get_or_insert(filled), filled, "round {round}");
            host.contents.truncate(&*node, 0).await.unwrap();
            host.contents.space().close().await;
        }
        // The inodes, and neither chunks nor regions.
        assert_eq!(audit(&bed, &[]).await.chunks, []);
        assert!(bed.store.keys() <= 5 + 1, "{}", bed.store.keys());
    });
}

#[test]
fn a_refusal_names_the_members_and_why() {
    in_world(2, async {
        let mut bed = Bed::new(2, (2, 1), 3, 4).await;
        bed.specs[1].is_out = true;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        let refusal = host.contents.write(&*node, 0, rope(&[1; 5000])).await.unwrap_err().to_string();
        assert!(refusal.contains("member 1 (domain rack 1) is out"), "{refusal}");
    });
}

/// A column that failed may be written yet by the command that failed: what is written there next must not be hit.
#[test]
fn rows_of_a_stripe_with_a_column_missing_rest_for_half_an_hour() {
    in_world(5, async {
        let bed = Bed::new(5, (2, 1), 3, 4).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        let write = async |byte| {
            host.contents.write(&*node, 0, rope(&[byte; 5000])).await.unwrap();
            host.contents.stripes_of(&*node).await.unwrap().remove(0).1
        };
        bed.shelves[1].is_down.set(true);
        let short = write(1).await;
        bed.shelves[1].is_down.set(false);
        let renewed = async |seconds| {
            time::sleep(Duration::from_secs(seconds)).await;
            host.contents.space().renewed(time::now());
        };
        let rows = |from: u32| (from..from + 1, short.id.chunk);
        assert!(short.missing != 0);
        for _ in 0..7 {
            let next = write(2).await;
            assert_ne!(rows(next.id.row), rows(short.id.row), "taken again at once");
            renewed(250).await;
        }
        renewed(200).await;
        let mut again = false;
        for _ in 0..3 {
            again |= write(3).await.id.row == short.id.row;
        }
        assert!(again, "it is used again");
    });
}

#[test]
fn a_client_that_was_not_renewed_writes_no_more_until_it_has_another_name() {
    in_world(3, async {
        let bed = Bed::new(3, (2, 1), 3, 4).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        host.contents.write(&*node, 0, rope(&[1; 5000])).await.unwrap();
        time::sleep(Duration::from_secs(601)).await;
        let failed = host.contents.write(&*node, 0, rope(&[2; 5000])).await;
        assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
        assert_eq!(content(&host, &node).await, [1; 5000]);
        host.contents.space().begin_anew(77, time::now());
        host.contents.write(&*node, 0, rope(&[2; 5000])).await.unwrap();
        assert_eq!(content(&host, &node).await, [2; 5000]);
    });
}

#[test]
fn a_namespace_that_is_not_blank_or_another_ones_is_refused() {
    in_world(4, async {
        let bed = Bed::new(4, (2, 1), 3, 4).await;
        let memory = &*bed.shelves[1].memory;
        let label = bed.layout.label(1, 5 << 20);
        assert_eq!(label.check(memory).await, Ok(label));
        assert_eq!(label.format(memory, false).await, Err(LabelError::NotBlank(0)));
        let other = bed.layout.label(2, 5 << 20);
        assert_eq!(other.check(memory).await, Err(LabelError::OtherMember { found: 1, expected: 2 }));
        let mut layout = bed.layout.clone();
        layout.fs = [9; 16];
        assert_eq!(layout.label(1, 5 << 20).check(memory).await, Err(LabelError::OtherFileSystem(bed.layout.fs)));
        let larger = bed.layout.label(1, 6 << 20);
        assert_eq!(larger.check(memory).await, Err(LabelError::Smaller { found: 5 << 20, expected: 6 << 20 }));
        // A copy of it that rots is no loss; both are.
        bed.flip(1, 40, 1).await;
        assert_eq!(label.check(memory).await, Ok(label));
        bed.flip(1, (512 << 10) + 40, 1).await;
        assert_eq!(label.check(memory).await, Err(LabelError::None));
        label.format(memory, true).await.unwrap();
        assert_eq!(label.check(memory).await, Ok(label));
        let blank = device::Memory::new(5 << 20, 512, [7; 16]).unwrap();
        assert_eq!(label.check(&blank).await, Err(LabelError::None));
        assert_eq!(label.format(&blank, false).await, Ok(()));
    });
}
