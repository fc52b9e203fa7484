//! Changes whose outcome is unknown.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use engine::task::{self, LocalFuture};
use engine::time;
use file::meta::{KeyPage, MemoryClient, Meta, Seen, Swapped, Version};
use file::{Error, ROOT};

use crate::audit::{Leaks, audit};
use crate::world::{client, file, fresh, kind_of, over, run};

/// A change of a directory takes effect much later, and says nothing; those after it are refused.
struct Full {
    inner: Rc<MemoryClient>,
    late: Duration,
    has_begun: Cell<bool>,
}

impl Meta for Full {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        self.inner.get(key)
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        let is_node = kind_of(key) == Some(&b'd');
        if !is_node {
            return self.inner.swap(key, expected, new);
        }
        Box::pin(async move {
            if self.has_begun.replace(true) {
                return Err(Error::NoSpace("no room for a change".to_owned()));
            }
            let (inner, key, late) = (Rc::clone(&self.inner), key.to_vec(), self.late);
            let later = async move {
                time::sleep(late).await;
                inner.swap(&key, expected, new).await.unwrap();
            };
            task::spawn(later).detach();
            Ok(Swapped::Unknown)
        })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        self.inner.list(prefix, cursor, limit)
    }
}

/// The second try of a change was refused, and that was told: so what had been made for the name was removed, and then the first
/// try took effect, and the name led nowhere.
#[test]
fn no_space_after_unknown_is_unknown() {
    run(1, async {
        let meta = fresh().await;
        let late = Duration::from_secs(5);
        let fs = over(Rc::new(Full { inner: meta.client(), late, has_begun: Cell::new(false) })).await;
        let made = fs.create(ROOT, b"f", &file(), true).await;
        assert!(matches!(made, Err(Error::Unavailable(_))), "{made:?}");
        time::sleep(2 * late).await;
        let (_, other) = client(&meta).await;
        other.lookup(ROOT, b"f").await.unwrap();
        other.close().await.unwrap();
        fs.close().await.unwrap();
        assert_eq!(audit(&meta).await, Leaks::default());
    });
}
