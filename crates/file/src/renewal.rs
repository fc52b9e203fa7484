//! A client says that it lives, and its space goes by that: each minute, and where a write finds that it was not said in time.

use std::rc::Rc;

use crate::data::{Renew, Space};
use crate::fs::FileSystem;

/// Says that a client lives, under another number if it must.
pub(crate) async fn say_it_lives(names: &FileSystem) {
    if let Err(error) = names.renew().await {
        names.standing.failed.update(|failed| failed + 1);
        tracing::warn!(%error, "this client could not say that it lives");
    }
}

/// A client's space goes by the number that it has by now, and by its last renewal.
pub(crate) fn follow(names: &FileSystem, space: &Space) {
    if let Some((client, sent)) = names.standing() {
        space.begin_anew(client, sent);
    }
}

/// For a space whose client was not renewed in time: it says that it lives, under another number if it must.
pub(crate) fn renewing(names: &Rc<FileSystem>, space: &Rc<Space>) -> Renew {
    let (names, space) = (Rc::downgrade(names), Rc::downgrade(space));
    Rc::new(move || {
        let both = names.upgrade().zip(space.upgrade());
        Box::pin(async move {
            let Some((names, space)) = both else { return };
            say_it_lives(&names).await;
            follow(&names, &space);
        })
    })
}
