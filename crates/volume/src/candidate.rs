//! A namespace that is to be a holder, as it was found.

use std::rc::Rc;

use device::{Namespace, NamespaceInfo};
use engine::View;

use crate::blocks::{read_block, read_blocks};
use crate::error::Error;
use crate::label::{Label, LabelError};
use crate::reach::Reach;

/// Bytes at either end of a namespace that are zeroes where it is blank. Chosen: partition tables, file systems, md, LVM and others
/// have something in the one or in the other.
const ENDS_BYTES: u64 = 1 << 20;

/// A namespace that is to be a holder, with what stood in its first block.
pub(crate) struct Candidate {
    pub(crate) reach: Rc<dyn Reach>,
    pub(crate) name: String,
    pub(crate) info: NamespaceInfo,
    pub(crate) first: View,
}

impl Candidate {
    pub(crate) fn failed(&self, source: device::Error) -> Error {
        Error::Device { holder: self.name.clone(), source }
    }
}

/// Looks at a namespace, without taking it.
pub(crate) async fn look(reach: &Rc<dyn Reach>, force: bool) -> Result<Candidate, Error> {
    let namespace = reach.look().await?;
    let (name, info) = (reach.name(), namespace.info());
    if info.compare_and_write_blocks_max == 0 {
        return Err(Error::Lacks { holder: name, what: "compare-and-write" });
    }
    let in_use = |by: String| Error::InUse { holder: name.clone(), by };
    let first = match read_block(&namespace, 0).await {
        Ok(first) => first,
        // Who takes it by force sees what is there when it is taken.
        Err(device::Error::Reserved(_)) if force => read_block(&reach.take().await?.namespace, 0)
            .await
            .map_err(|source| Error::Device { holder: name.clone(), source })?,
        Err(device::Error::Reserved(_)) => return Err(in_use("another host has its reservation".into())),
        Err(source) => return Err(Error::Device { holder: name, source }),
    };
    let by = match Label::decode(&first) {
        Err(LabelError::Blank) if force => None,
        Err(LabelError::Blank) => {
            let is_blank = is_blank(&namespace).await;
            let is_blank = is_blank.map_err(|source| Error::Device { holder: name.clone(), source })?;
            (!is_blank).then(|| "there is something in its first or last MiB".to_owned())
        }
        Ok(label) => Some(format!("it is in slot {} of volume {:032x}", label.slot, label.shape.volume)),
        Err(_) if first.starts_with(b"YAGURASB") => Some("it is a member of a pool".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(by) = by.filter(|_| !force) {
        return Err(in_use(by));
    }
    Ok(Candidate { reach: Rc::clone(reach), name, info, first: first.freeze() })
}

async fn is_blank(namespace: &impl Namespace) -> Result<bool, device::Error> {
    let info = namespace.info();
    let most = (ENDS_BYTES / u64::from(info.block_size)).clamp(1, info.blocks);
    for first in [0, info.blocks - most] {
        if read_blocks(namespace, first, most).await?.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}
