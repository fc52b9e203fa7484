//! A rebuild dies at any change of the store: another one ends what it began, and nothing is lost.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::time;
use file::meta::{Death, Meta};

use super::yard::{Yard, in_world, mender, put, rebuild};
use crate::data::bed::drawn;

#[test]
fn a_rebuild_that_dies_anywhere_is_gone_on_with_by_another() {
    for takes_effect in [false, true] {
        for swaps in 0..40 {
            in_world(swaps, async move {
                let mut rng = SplitMix(swaps);
                let yard = Yard::new(2, 1, 4).await;
                let files = yard.client().await;
                yard.set_down(1, true);
                let mut model = BTreeMap::new();
                for (name, length) in [("a", 5000), ("b", 300_000), ("c", 9_000_000)] {
                    let bytes = drawn(&mut rng, length);
                    put(&files, name, 0, &bytes).await.unwrap();
                    model.insert(name.to_owned(), bytes);
                }
                files.roster().drain(1, true).await.unwrap();
                files.close().await.unwrap();
                let meta = yard.meta.client();
                let dying = yard.client_over(Rc::clone(&meta) as Rc<dyn Meta>).await;
                meta.die_at(Some(Death { swaps, takes_effect }));
                let _never = time::timeout(Duration::from_secs(10), mender(&dying).rebuild()).await;
                let what = format!("{swaps} {takes_effect}");
                yard.verify(&model, &what).await;
                let rebuilt = rebuild(&yard).await;
                assert_eq!((rebuilt.left.failed, rebuilt.left.lost_bytes), (0, 0), "{what}: {rebuilt:?}");
                for member in [0, 2, 3] {
                    yard.set_down(member, true);
                    yard.verify(&model, &format!("{what}, without {member}")).await;
                    yard.set_down(member, false);
                }
                yard.audit().await;
            });
        }
    }
}
