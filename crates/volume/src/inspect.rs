//! What a holder says of itself, to whoever only looks.

use device::Namespace;
use engine::task::LocalFuture;
use fabric::host::AnyRemote;

use crate::blocks::{read_block, read_label};
use crate::error::Error;
use crate::label::{Label, RECORD_BLOCK};
use crate::reach::{Reach, Takes};
use crate::record::RecordBlock;

/// What stands in the first two blocks of a holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspected {
    /// What the namespace is.
    pub label: Label,
    /// What it has promised and accepted.
    pub record: RecordBlock,
    /// Blocks of the namespace that take room, where its target tells.
    pub used_blocks: u64,
}

impl Inspected {
    /// Bytes of the volume, as the holder's record knows it.
    pub fn bytes(&self) -> u64 {
        self.record.accepted.size(self.label.shape.blocks) * u64::from(self.label.shape.block_size)
    }
}

/// Reads a holder's label and record. A holder has a reservation at all times, so that what was attached once is read only by who
/// takes it (`takes`): a host that has the volume attached then loses this holder for a moment, and takes it back.
///
/// # Errors
/// The namespace can't be reached, is no holder, or is damaged; [`device::Error::Reserved`] where it would have to be taken.
pub fn inspect(reach: &dyn Reach, takes: bool) -> LocalFuture<'_, Result<Inspected, Error>> {
    Box::pin(async move {
        let name = reach.name();
        match read(&reach.look().await?, &name).await {
            Err(Error::Device { source: device::Error::Reserved(_), .. }) if takes => {
                read(&reach.take(Takes::Holder).await?.namespace, &name).await
            }
            found => found,
        }
    })
}

async fn read(namespace: &AnyRemote, name: &str) -> Result<Inspected, Error> {
    let label = read_label(namespace, name).await?;
    let bytes = read_block(namespace, RECORD_BLOCK).await;
    let bytes = bytes.map_err(|source| Error::Device { holder: name.to_owned(), source })?;
    let record = RecordBlock::decode(&bytes, label.life);
    let record = record.map_err(|source| Error::Record { holder: name.to_owned(), source })?;
    Ok(Inspected { label, record, used_blocks: namespace.used_blocks() })
}
