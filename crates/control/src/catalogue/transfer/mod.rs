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
    let (mut dump, mut restore) = (Dump::of(source), Restore::into(target, is_forced));
    while let Some(lines) = dump.next().await? {
        for line in lines.lines() {
            restore.line(line).await?;
        }
    }
    restore.finish()
}
