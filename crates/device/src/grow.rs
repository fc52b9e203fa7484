//! Why a namespace does not grow.

use std::io;
use std::path::PathBuf;

use crate::NamespaceInfo;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum GrowError {
    /// Its size is fixed.
    #[error("the namespace cannot grow: {0}")]
    Fixed(&'static str),
    /// It can not shrink.
    #[error("the namespace has {has} bytes and can only grow, not become {asked}")]
    Smaller {
        /// Its size.
        has: u64,
        /// The size asked for.
        asked: u64,
    },
    /// No multiple of the block size.
    #[error("{asked} bytes are no multiple of the block size {block_size}")]
    Blocks {
        /// The size asked for.
        asked: u64,
        /// The namespace's block size.
        block_size: u32,
    },
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Whether a namespace can become this large at all.
pub(crate) fn check_growth(info: &NamespaceInfo, bytes: u64) -> Result<(), GrowError> {
    if !bytes.is_multiple_of(u64::from(info.block_size)) {
        return Err(GrowError::Blocks { asked: bytes, block_size: info.block_size });
    }
    if bytes < info.bytes() {
        return Err(GrowError::Smaller { has: info.bytes(), asked: bytes });
    }
    Ok(())
}
