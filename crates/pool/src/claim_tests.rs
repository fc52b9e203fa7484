//! Two make pools of the same namespaces at the same time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::sim::{SimConfig, World};

use crate::open;
use crate::testing::{Plain, new_member, plain_pool};
use crate::{CreateOptions, Error, NewMember, candidate, create};

fn run<T>(future: impl Future<Output = T>) -> T {
    World::new(1, SimConfig::default()).run_until(future).expect("the test's tasks are never all asleep for good")
}

fn plain() -> (Vec<Plain>, Vec<NewMember<Plain>>) {
    let namespaces: Vec<Plain> = (1..=3).map(|id| Plain::new(id, 2 << 20, 4096)).collect();
    let members = namespaces.iter().map(new_member).collect();
    (namespaces, members)
}

fn labelled(namespaces: &[Plain]) -> Vec<(String, Plain)> {
    namespaces.iter().map(|plain| ("m".to_owned(), plain.clone())).collect()
}

/// While the tables of the first are being emptied the second finds its namespaces in use, in every moment; by force it takes
/// them, and the first ends with an error and writes nothing over what is the second's by then.
#[test]
fn a_namespace_that_a_pool_is_being_made_of_is_in_use() {
    for force in [false, true] {
        run(async {
            let (namespaces, members) = plain();
            let other = plain_pool(&[Plain::new(9, 2 << 20, 4096)], 1).await;
            let second = RefCell::new(None);
            // Told between two writes of the first.
            let meanwhile = |share: f64| {
                if share > 0.3 && second.borrow().is_none() {
                    let options = CreateOptions { force, ..CreateOptions::default() };
                    let made = crate::testing::ready(create(&members[..], &options, |_| ()));
                    *second.borrow_mut() = Some(made);
                    if !force {
                        let joins = crate::testing::ready(candidate(&members[0], &other, None, false));
                        assert!(matches!(joins, Err(Error::InUse { .. })), "{joins:?}");
                    }
                }
            };
            let first = create(&members, &CreateOptions::default(), meanwhile).await;
            let second = second.into_inner().expect("asked in the middle");
            let made = if force { (second, first) } else { (first, second) };
            let (Ok(map), Err(Error::InUse { .. })) = &made else { panic!("{force}: {made:?}") };
            let opened = open(&labelled(&namespaces), None).await.unwrap();
            assert_eq!(opened.map, *map, "{force}");
            for (index, plain) in namespaces.iter().enumerate() {
                let layout = crate::geometry::Layout::new(map.geometry(index), 4096);
                let bytes = plain.0.bytes.borrow();
                for page in 0..map.members[index].table_pages {
                    let at = layout.table(crate::geometry::TablePage(page)).0 as usize * 4096;
                    let life = crate::blank::incarnation_of(&bytes[at..at + 4096]);
                    assert_eq!(life, Some(map.members[index].incarnation), "page {page}, by force: {force}");
                }
            }
        });
    }
}

/// Somebody writes the namespace after it was found free: nothing of that is lost.
#[test]
fn what_was_written_since_a_namespace_was_found_free_is_kept() {
    run(async {
        let (namespaces, members) = plain();
        let mut claim = super::Claim::look(&members[0], false).await.unwrap();
        let map = plain_pool(&namespaces, 3).await;
        let refused = claim.stake(&map, 0).await;
        assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
        claim.release().await;
        assert_eq!(open(&labelled(&namespaces), None).await.unwrap().members.len(), 3);
    });
}

/// A device fails while the pool is made: what had been claimed is free again, and the same command does it without force.
#[test]
fn a_pool_that_could_not_be_made_leaves_its_namespaces_free() {
    run(async {
        let (namespaces, members) = plain();
        namespaces[2].0.writes_max.set(2);
        assert!(create(&members, &CreateOptions::default(), |_| ()).await.is_err());
        namespaces[2].0.writes_max.set(u32::MAX);
        for plain in &namespaces[..2] {
            assert!(plain.0.bytes.borrow()[..4096].iter().all(|byte| *byte == 0));
        }
        let third = create(&members[..2], &CreateOptions { replicas: 2, ..CreateOptions::default() }, |_| ()).await;
        assert!(third.is_ok(), "{third:?}");
    });
}

/// What a creation that was killed had left could not be decoded, for whoever opened it.
#[test]
fn what_a_creation_leaves_that_was_killed_is_told_with_what_mends_it() {
    let mut met = [0; 3];
    for writes in 0.. {
        let (namespaces, members) = plain();
        let left = Rc::new(Cell::new(writes));
        namespaces.iter().for_each(|plain| *plain.0.budget.borrow_mut() = left.clone());
        let made = crate::testing::ready(create(&members, &CreateOptions::default(), |_| ()));
        left.set(u32::MAX);
        match run(open(&labelled(&namespaces), None)) {
            Ok(_) => met[2] += 1,
            Err(Error::NoMembers { reasons }) => {
                let is_claimed = reasons.contains("not made to its end") && reasons.contains("--force");
                assert!(is_claimed || writes == 0, "{writes}: {reasons}");
                met[0] += 1;
            }
            Err(Error::NoQuorum { half_made, reasons, .. }) => {
                let told = if half_made { "--force" } else { "it is being written" };
                assert!(reasons.contains(told), "{writes}: {reasons}");
                met[1] += 1;
            }
            Err(other) => panic!("{writes}: {other}"),
        }
        if made.is_ok() {
            break;
        }
    }
    assert!(met.iter().all(|&times| times > 0), "{met:?}");
}
