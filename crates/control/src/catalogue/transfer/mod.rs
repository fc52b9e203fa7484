//! Dump, restore, and the move from one engine to another.

mod dump;
mod format;
mod moved;
mod note;
mod restore;

use super::contract::Catalogue;

pub use dump::Dump;
pub use format::{LINE_BYTES_MAX, TransferError, VERSION};
pub use moved::{check_not_moved, mark_moved, unmark_moved};
pub use note::{Restoring, check_whole, restoring};
pub use restore::{Restore, Restored};

/// Moves all entries of `source` into `target`: a dump that is restored as it comes. The source stays as it is.
///
/// Nobody should change the source meanwhile; what is changed after the dump's moment is not moved. A move that was interrupted is
/// called again: it goes on as of the moment of that call if what was moved already is as it was, whatever the source's revision is
/// (others use the same etcd), and otherwise it says [`TransferError::OtherDump`] and is begun anew by force.
pub async fn move_all(
    source: &dyn Catalogue,
    target: &dyn Catalogue,
    is_forced: bool,
) -> Result<Restored, TransferError> {
    pour(source, &mut Restore::into(target, is_forced)).await
}

/// The same, with a mark in the source, so that nobody goes on with both. Where it is refused before anything was changed in the
/// target the mark is as it was before: one that an earlier move has made stays, for the target may have been used since.
pub async fn move_marked(
    source: &dyn Catalogue,
    (target, named): (&dyn Catalogue, &str),
    is_forced: bool,
) -> Result<Restored, TransferError> {
    let before = moved::read(source).await?;
    mark_moved(source, named).await?;
    let mut restore = Restore::into(target, is_forced);
    let moved = pour(source, &mut restore).await;
    if moved.is_err() && !restore.has_begun() {
        let marked = match &before {
            Some(before) => mark_moved(source, before).await,
            None => unmark_moved(source).await,
        };
        if let Err(error) = marked {
            tracing::warn!(%error, "the catalogue stays marked as moved");
        }
    }
    moved
}

async fn pour(source: &dyn Catalogue, restore: &mut Restore<'_>) -> Result<Restored, TransferError> {
    let mut dump = Dump::of(source);
    while let Some(lines) = dump.next().await? {
        for line in lines.lines() {
            restore.line(line).await?;
        }
    }
    restore.finish()
}
