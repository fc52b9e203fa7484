//! Disks that are put back to what they were: a snapshot that is restored, a clone that is booted by mistake.

use std::path::Path;

use super::disk::DiskImage;
use super::id::NodeId;
use super::world::World;

impl World {
    /// What a reader of the disk would see now, all of it, to be put back later ([`World::put_back`]).
    ///
    /// # Panics
    /// If there is no such disk.
    pub fn image(&self, node: NodeId, path: impl AsRef<Path>) -> DiskImage {
        let disk = self.find(node, path.as_ref());
        self.driver.state.borrow().disks.image(disk)
    }

    /// The disk holds again what it held when `image` was taken.
    ///
    /// # Panics
    /// If there is no such disk, or the node is up: what lies under a running program is not exchanged.
    pub fn put_back(&self, node: NodeId, path: impl AsRef<Path>, image: &DiskImage) {
        assert!(!self.is_up(node), "a disk is put back while its machine is off");
        let disk = self.find(node, path.as_ref());
        self.driver.step(|state| state.disks.put_back(&mut state.core, disk, image));
    }
}
