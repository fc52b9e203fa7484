//! What a holder says of itself, to whoever only looks: nothing is taken from the host that has the volume attached.

use device::Namespace;
use engine::task::LocalFuture;

use crate::conn::{read_block, read_label};
use crate::error::Error;
use crate::label::{Label, RECORD_BLOCK};
use crate::reach::Reach;
use crate::record::RecordBlock;

/// What stands in the first two blocks of a holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inspected {
    /// What the namespace is.
    pub label: Label,
    /// What it has promised and accepted.
    pub record: RecordBlock,
    /// Blocks of the namespace that take room, where its target tells.
    pub used_blocks: u64,
}

/// Reads a holder's label and record.
///
/// # Errors
/// The namespace can't be reached, is no holder, or is damaged; [`device::Error::Reserved`] while a host has it attached, which
/// then alone may read it.
pub fn inspect(reach: &dyn Reach) -> LocalFuture<'_, Result<Inspected, Error>> {
    Box::pin(async move {
        let namespace = reach.look().await?;
        let name = reach.name();
        let label = read_label(&namespace, &name).await?;
        let bytes = read_block(&namespace, RECORD_BLOCK).await;
        let bytes = bytes.map_err(|source| Error::Device { holder: name.clone(), source })?;
        let record = RecordBlock::decode(&bytes, label.life);
        let record = record.map_err(|source| Error::Record { holder: name, source })?;
        Ok(Inspected { label, record, used_blocks: namespace.used_blocks() })
    })
}
