//! What each reactor thread serves of files.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::work::Served;

thread_local! {
    /// What this reactor thread serves.
    pub(super) static SERVED: RefCell<BTreeMap<u64, Rc<Served>>> = RefCell::default();
}
/// Ends what this thread serves, before it ends itself.
pub(crate) async fn end_all() {
    let all = SERVED.take();
    for served in all.into_values() {
        if let Err(error) = served.end().await {
            tracing::warn!(%error, "a file system was not left in good order");
        }
    }
}
