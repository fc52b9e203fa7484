//! Restores into what is served, and what is served after a move.

use std::sync::{Arc, Mutex};

use control::catalogue::{
    Answer, Catalogue, Embedded, Key, Lease, LeaseId, Outcome, Page, Prefix, Range, Reading, Revision, SERVING_TTL,
    Serving, Transaction, TransferError, Ttl, Watch, check_not_moved, check_whole, mark_moved, move_all, move_marked,
    unmark_moved,
};
use tokio::time::sleep;

use crate::transfer::{WHOLE, content, dump, fill, fresh, restore};

/// A catalogue in which a control plane begins to serve when a restore has looked for one the first time.
struct Late<'c> {
    inner: Arc<Embedded>,
    begun: &'c Mutex<Option<Serving>>,
}

impl Catalogue for Late<'_> {
    fn commit(&self, transaction: Transaction) -> Answer<'_, Outcome> {
        Box::pin(async {
            if self.begun.lock().unwrap().is_none() {
                let serving = Serving::begin(self.inner.clone(), "a late one".into()).await?;
                *self.begun.lock().unwrap() = Some(serving);
            }
            self.inner.commit(transaction).await
        })
    }

    fn watch(&self, prefix: Prefix, after: Revision) -> Box<dyn Watch> {
        self.inner.watch(prefix, after)
    }

    fn identity(&self) -> Answer<'_, String> {
        self.inner.identity()
    }

    fn get(&self, key: Key) -> Answer<'_, Reading> {
        self.inner.get(key)
    }

    fn range(&self, range: Range) -> Answer<'_, Page> {
        self.inner.range(range)
    }

    fn compact(&self, through: Revision) -> Answer<'_, ()> {
        self.inner.compact(through)
    }

    fn grant(&self, ttl: Ttl) -> Answer<'_, Lease> {
        self.inner.grant(ttl)
    }

    fn keep_alive(&self, id: LeaseId) -> Answer<'_, Lease> {
        self.inner.keep_alive(id)
    }

    fn revoke(&self, id: LeaseId) -> Answer<'_, ()> {
        self.inner.revoke(id)
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_served_is_not_restored_whoever_begins_first() {
    let source = fresh().await;
    fill(&source).await;
    let text = dump(&source).await;
    let target = Arc::new(fresh().await);
    restore(&*target, &text, false).await.unwrap();
    let before = content(&*target).await;
    let serving = Serving::begin(target.clone(), "an early one".into()).await.unwrap();
    let told = restore(&*target, &text, true).await.unwrap_err();
    assert!(matches!(&told, TransferError::Served { by } if by == "an early one"), "{told}");
    serving.end().await.unwrap();
    // One that begins after the first look for it sees no restore, or the restore sees it.
    let begun = Mutex::new(None);
    let late = Late { inner: target.clone(), begun: &begun };
    let told = restore(&late, &text, true).await.unwrap_err();
    assert!(matches!(&told, TransferError::Served { by } if by == "a late one"), "{told}");
    check_whole(&*target).await.expect("nothing was changed, and that is what is noted");
    assert_eq!(content(&*target).await, before);
    // One that has died is waited for.
    sleep(SERVING_TTL * 2).await;
    assert_eq!(restore(&*target, &text, true).await.unwrap(), WHOLE);
}

#[tokio::test(start_paused = true)]
async fn what_was_moved_says_where_to_until_it_is_said_to_count() {
    let source = fresh().await;
    fill(&source).await;
    check_not_moved(&source).await.expect("not yet");
    let before = content(&source).await;
    for _ in 0..2 {
        mark_moved(&source, "there").await.unwrap();
        let told = check_not_moved(&source).await.unwrap_err();
        assert!(matches!(&told, TransferError::Moved { to } if to == "there"), "{told}");
    }
    // It is as it was, and where it goes nothing says that it was moved.
    assert_eq!(content(&source).await, before);
    let target = fresh().await;
    assert_eq!(move_all(&source, &target, false).await.unwrap(), WHOLE);
    check_not_moved(&target).await.expect("it is the one that counts");
    unmark_moved(&source).await.unwrap();
    check_not_moved(&source).await.expect("it counts again");
}

/// A file that was moved, and moved again after others had changed the target, was served beside it from then on.
#[tokio::test(start_paused = true)]
async fn a_move_that_is_refused_leaves_the_mark_as_it_was() {
    let (source, target) = (fresh().await, fresh().await);
    fill(&source).await;
    fill(&target).await;
    let told = move_marked(&source, (&target, "there"), false).await.unwrap_err();
    assert!(matches!(told, TransferError::NotEmpty { .. }), "{told}");
    check_not_moved(&source).await.expect("it was not moved before either");
    mark_moved(&source, "elsewhere").await.unwrap();
    move_marked(&source, (&target, "there"), false).await.unwrap_err();
    let told = check_not_moved(&source).await.unwrap_err();
    assert!(matches!(&told, TransferError::Moved { to } if to == "elsewhere"), "{told}");
    assert_eq!(move_marked(&source, (&target, "there"), true).await.unwrap(), WHOLE);
    let told = check_not_moved(&source).await.unwrap_err();
    assert!(matches!(&told, TransferError::Moved { to } if to == "there"), "{told}");
}
