//! Writers of one file in step with one another, as of a pool that answers one after the other and takes as long for each.

use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::sync::Semaphore;
use engine::task::LocalFuture;
use engine::time;
use file::Error;
use file::meta::{KeyPage, MemoryClient, Meta, Seen, Swapped, Version};

use crate::opened::{Place, make};
use crate::world::run_long;

const ANSWERED_IN: Duration = Duration::from_micros(100);

/// A store that answers in the order in which it is asked.
struct Even {
    inner: Rc<MemoryClient>,
    turn: Semaphore,
}

impl Even {
    async fn call(&self) {
        let _turn = self.turn.acquire(1).await;
        time::sleep(ANSWERED_IN).await;
    }
}

impl Meta for Even {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        Box::pin(async move {
            self.call().await;
            self.inner.get(key).await
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        Box::pin(async move {
            self.call().await;
            self.inner.swap(key, expected, new).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        self.inner.list(prefix, cursor, limit)
    }
}

/// `fio` with small writes at random on a busy machine: blocks went out at once, and two of them lost to two others in each of a
/// hundred tries: these changed the inode between every read and change of theirs.
#[test]
fn blocks_that_go_out_in_step_do_not_lose_to_one_another_for_ever() {
    for members_take in (0..60).map(|n| Duration::from_micros(17 * n)) {
        run_long(1, async move {
            let place = Place::new().await;
            let even = Rc::new(Even { inner: place.meta.client(), turn: Semaphore::new(1) });
            let files = place.client_over(even).await;
            let file = make(&files, "a").await;
            file.truncate(8 << 20).await.unwrap();
            place.shelves.iter().for_each(|shelf| shelf.delay.set(members_take));
            let mut rng = SplitMix(3);
            for _ in 0..256 {
                file.write(rng.below(2048) * 4096, &[9; 4096]).await.unwrap();
            }
            assert_eq!(file.flush().await, Ok(()), "{members_take:?}");
        });
    }
}
