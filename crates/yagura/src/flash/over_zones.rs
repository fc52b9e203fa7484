//! A media manager on a zoned block device of Linux: how one is opened.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::rc::Rc;

use device::{IdentityError, OpenError, ZonedFile};
use flash::{FlashDevice, ZoneLayout};

use crate::exit::Failure;

/// Whether this path is a block device, and no model is made there. What it has no zones is told when it is opened.
pub fn is_meant(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// The device at `path`; one that is only looked at stays as it is.
pub async fn open(path: &Path, read_only: bool) -> Result<Rc<dyn FlashDevice>, Failure> {
    let file = match ZonedFile::open(path, None, read_only).await {
        // It can be had without one: then a media manager can't tell that the device is another one than it was formatted on.
        Err(OpenError::Identity(IdentityError::NoSerial { .. })) => {
            ZonedFile::open(path, Some([0; 16]), read_only).await
        }
        opened => opened,
    };
    let device = flash::zoned_device(file.map_err(Failure::refused)?, ZoneLayout::default()).await;
    device.map_err(|error| Failure::refused(format!("{}: {error}", path.display())))
}
