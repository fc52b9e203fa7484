//! Reads blocks of a holder's namespace itself, not of the volume.

use device::{Lba, Namespace};
use engine::Buf;

use crate::error::Error;
use crate::label::Label;

/// Bytes of one read, and of one write of zeroes where a target has no command for that. Chosen: costs little more than its
/// transfer.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// The label of a namespace.
pub(crate) async fn read_label(namespace: &impl Namespace, holder: &str) -> Result<Label, Error> {
    let failed = |source| Error::Device { holder: holder.to_owned(), source };
    let bytes = read_block(namespace, 0).await.map_err(failed)?;
    Label::decode(&bytes).map_err(|source| Error::Label { holder: holder.to_owned(), source })
}

/// Reads a block.
pub(crate) async fn read_block(namespace: &impl Namespace, lba: u64) -> Result<Buf, device::Error> {
    let (result, buf) = namespace.read(Lba(lba), Buf::with_len(namespace.info().block_size as usize)).await;
    result.map(|()| buf)
}

/// Reads blocks, in pieces.
pub(crate) async fn read_blocks(namespace: &impl Namespace, lba: u64, blocks: u64) -> Result<Vec<u8>, device::Error> {
    let info = namespace.info();
    let block_size = u64::from(info.block_size);
    let most = (PIECE_BYTES as u64 / block_size).min(u64::from(info.transfer_blocks_max)).max(1);
    let mut all = Vec::with_capacity((blocks * block_size) as usize);
    for first in (0..blocks).step_by(most as usize) {
        let now = most.min(blocks - first);
        let (result, piece) = namespace.read(Lba(lba + first), Buf::with_len((now * block_size) as usize)).await;
        result?;
        all.extend_from_slice(&piece);
    }
    Ok(all)
}
