//! Content in the inode: of files up to 2 KiB.

use engine::task::LocalFuture;

use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::inode::{Content, INLINE_BYTES_MAX, Inode};
use crate::record::{Kind, Time};

impl FileSystem {
    /// Up to `len` bytes of a file from `offset` on; `None`: its content is not in the inode.
    pub fn read_inline(&self, ino: u64, offset: u64, len: usize) -> LocalFuture<'_, Result<Option<Vec<u8>>, Error>> {
        Box::pin(async move {
            let inode = self.get_inode(ino).await?;
            check_file(ino, &inode)?;
            let Content::Inline(bytes) = &inode.content else { return Ok(None) };
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
            let to = from.saturating_add(len).min(bytes.len());
            Ok(Some(bytes[from..to].to_vec()))
        })
    }

    /// Writes bytes of a file and returns its size; `None`: nothing was written, as its content is not in the inode or would not
    /// fit there. Bits to run it as others are the kernel's to clear.
    pub fn write_inline<'a>(
        &'a self,
        ino: u64,
        offset: u64,
        data: &'a [u8],
    ) -> LocalFuture<'a, Result<Option<u64>, Error>> {
        Box::pin(async move {
            let now = Time::now();
            let (_, size) = self
                .change_inode(ino, |inode| {
                    check_file(ino, inode)?;
                    let Some(size) = overwrite(inode, offset, data) else { return Ok(None) };
                    (inode.accessed, inode.modified, inode.changed) = (now, now, now);
                    Ok(Some(size))
                })
                .await?;
            Ok(size)
        })
    }
}

fn check_file(ino: u64, inode: &Inode) -> Result<(), Error> {
    match inode.kind {
        Kind::File => Ok(()),
        Kind::Directory => Err(Error::IsDirectory(format!("inode {ino}"))),
        _ => Err(Error::Invalid("only files have bytes")),
    }
}

/// The new size; `None`: it does not fit.
fn overwrite(inode: &mut Inode, offset: u64, data: &[u8]) -> Option<u64> {
    let Content::Inline(bytes) = &mut inode.content else { return None };
    let offset = usize::try_from(offset).ok()?;
    let end = offset.checked_add(data.len()).filter(|&end| end <= INLINE_BYTES_MAX)?;
    if !data.is_empty() {
        bytes.resize(bytes.len().max(end), 0);
        bytes[offset..end].copy_from_slice(data);
    }
    inode.size = bytes.len() as u64;
    Some(inode.size)
}
