//! A namespace that is to be a holder, as it was found.

use std::rc::Rc;

use device::{Namespace, NamespaceInfo};
use engine::View;
use engine::task::LocalFuture;

use crate::blocks::{read_block, read_blocks};
use crate::error::Error;
use crate::label::{Label, LabelError, RECORD_BLOCK};
use crate::reach::{Reach, Takes};
use crate::record::{FORMAT_ROUND, RecordBlock};

/// Bytes at either end of a namespace that are zeroes where it is blank. Chosen: partition tables, file systems, md, LVM and others
/// have something in the one or in the other.
const ENDS_BYTES: u64 = 1 << 20;

/// A namespace that is to be a holder, with what stood in its first block.
pub(crate) struct Candidate {
    pub(crate) reach: Rc<dyn Reach>,
    pub(crate) name: String,
    pub(crate) info: NamespaceInfo,
    pub(crate) first: View,
    /// It is a holder that a host has attached, or may have.
    pub(crate) was_attached: bool,
    /// From whom it may be taken.
    pub(crate) takes: Takes,
}

impl Candidate {
    pub(crate) fn failed(&self, source: device::Error) -> Error {
        Error::Device { holder: self.name.clone(), source }
    }
}

/// Looks at a namespace. It is taken only by `force`, or where another host has it that may have made a part of the volume `of`.
pub(crate) async fn look(reach: &Rc<dyn Reach>, force: bool, of: Option<u128>) -> Result<Candidate, Error> {
    let (to_read, takes) = match (force, of) {
        (true, _) => (Some(Takes::Anything), Takes::Anything),
        (false, Some(_)) => (Some(Takes::Holder), Takes::Unreserved),
        (false, None) => (None, Takes::Unreserved),
    };
    let (info, first, was_attached) = look_at(&**reach, (force, to_read), of).await?;
    Ok(Candidate { reach: Rc::clone(reach), name: reach.name(), info, first, was_attached, takes })
}

/// Looks at a holder whose copy is to become another volume. It is taken to be read; from another program by `force`.
pub(crate) async fn look_at_copy(reach: &Rc<dyn Reach>, force: bool) -> Result<Candidate, Error> {
    let takes = if force { Takes::Anything } else { Takes::Holder };
    let (info, first, was_attached) = look_at(&**reach, (true, Some(takes)), None).await?;
    Ok(Candidate { reach: Rc::clone(reach), name: reach.name(), info, first, was_attached, takes })
}

/// `to_read`: what may be taken to read it.
async fn look_at(
    reach: &dyn Reach,
    (force, to_read): (bool, Option<Takes>),
    of: Option<u128>,
) -> Result<(NamespaceInfo, View, bool), Error> {
    let mut namespace = reach.look().await?;
    let (name, info) = (reach.name(), namespace.info());
    let failed = |source| Error::Device { holder: name.clone(), source };
    if info.compare_and_write_blocks_max == 0 {
        return Err(Error::Lacks { holder: name, what: "compare-and-write" });
    }
    let in_use = |by: String| Error::InUse { holder: name.clone(), by };
    let first = match read_block(&namespace, 0).await {
        Ok(first) => first,
        Err(device::Error::Reserved(_)) => match to_read {
            // Who takes it sees what is there when it is taken.
            Some(takes) => {
                namespace = reach.take(takes).await?.namespace;
                read_block(&namespace, 0).await.map_err(failed)?
            }
            None => return Err(in_use("another host has its reservation".into())),
        },
        Err(source) => return Err(failed(source)),
    };
    let mut was_attached = false;
    let by = match Label::decode(&first) {
        Err(LabelError::Blank) if force => None,
        Err(LabelError::Blank) => {
            let is_blank = has_blank_ends(&namespace).await.map_err(failed)?;
            (!is_blank).then(|| "there is something in its first or last MiB".to_owned())
        }
        Ok(label) if Some(label.shape.volume) == of => {
            let block = read_block(&namespace, RECORD_BLOCK).await.map_err(failed)?;
            // One that is damaged somebody may have written.
            was_attached =
                RecordBlock::decode(&block, label.life).map_or(true, |record| record.promised.round > FORMAT_ROUND);
            None
        }
        Err(LabelError::Unfinished { volume, .. }) if Some(volume) == of => None,
        Ok(label) => Some(format!("it is in slot {} of volume {:032x}", label.slot, label.shape.volume)),
        Err(_) if first.starts_with(b"YAGURASB") => Some("it is a member of a pool".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(by) = by.filter(|_| !force) {
        return Err(in_use(by));
    }
    Ok((info, first.freeze(), was_attached))
}

/// Whether [`format()`](crate::format()) would take the namespace without force. Nothing is changed.
///
/// # Errors
/// The namespace can't be reached or read, or lacks what a holder needs.
pub fn is_blank(reach: &dyn Reach) -> LocalFuture<'_, Result<bool, Error>> {
    Box::pin(async move {
        match look_at(reach, (false, None), None).await {
            Ok(_) => Ok(true),
            Err(Error::InUse { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    })
}

async fn has_blank_ends(namespace: &impl Namespace) -> Result<bool, device::Error> {
    let info = namespace.info();
    let most = (ENDS_BYTES / u64::from(info.block_size)).clamp(1, info.blocks);
    for first in [0, info.blocks - most] {
        if read_blocks(namespace, first, most).await?.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}
