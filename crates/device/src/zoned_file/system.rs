//! What the kernel tells of a zoned block device beside its zones.

use std::path::{Path, PathBuf};

use crate::identity;

/// Limits of a zoned device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    /// Bytes from a zone to the next one.
    pub zone_bytes: u64,
    pub open_max: Option<u32>,
    pub active_max: Option<u32>,
}

/// Bytes of the kernel's sectors.
const SECTOR: u64 = 512;

/// Whether there is a block device at `path` whose zones are written in order.
pub fn is_zoned(path: &Path) -> bool {
    model(path).is_some_and(|model| model == "host-managed")
}

/// The kernel's word for how a block device is zoned; `None`: it is no block device, or the kernel has no word.
pub(super) fn model(path: &Path) -> Option<String> {
    identity::attribute(&queue(path)?, "zoned")
}

/// `None`: the kernel does not say.
pub(super) fn limits(path: &Path) -> Option<Limits> {
    let queue = queue(path)?;
    let number = |name: &str| identity::attribute(&queue, name)?.parse::<u32>().ok();
    let zone_bytes = u64::from(number("chunk_sectors").filter(|&sectors| sectors > 0)?) * SECTOR;
    // 0 stands for no limit; kernels before 5.9 and 5.10 say nothing.
    let limit = |name: &str| number(name).filter(|&limit| limit > 0);
    Some(Limits { zone_bytes, open_max: limit("max_open_zones"), active_max: limit("max_active_zones") })
}

/// The folder of a device's queue: its own, or that of the device that it is a part of.
fn queue(path: &Path) -> Option<PathBuf> {
    let node = identity::node(path).ok()?;
    [node.join("queue"), node.parent()?.join("queue")].into_iter().find(|folder| folder.is_dir())
}
