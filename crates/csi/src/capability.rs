//! What a volume can be used for: by one node at a time, as a block device or mounted.

use serde::{Deserialize, Serialize};

use crate::wire::{AccessType, VolumeCapability, mode};

/// A request has so many capabilities at most. Chosen: all that there are, several times.
const CAPABILITIES_MAX: usize = 64;
/// Options of a mount, at most, and characters of one. Chosen: many times what anybody writes.
const MOUNT_FLAGS_MAX: usize = 64;
/// See [`MOUNT_FLAGS_MAX`].
const MOUNT_FLAG_CHARS_MAX: usize = 256;

/// How a volume is used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "as")]
pub enum Access {
    /// As a block device.
    Block,
    /// As a filesystem.
    Mount {
        /// Which one is made on a blank volume.
        filesystem: Filesystem,
        /// Options of the mount.
        flags: Vec<String>,
    },
}

/// Filesystems that are made and mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filesystem {
    /// The usual one.
    Ext4,
    /// XFS.
    Xfs,
}

impl Filesystem {
    /// As `mount` and `mkfs` know it.
    pub fn name(self) -> &'static str {
        match self {
            Filesystem::Ext4 => "ext4",
            Filesystem::Xfs => "xfs",
        }
    }
}

/// A capability that can be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Use {
    /// How.
    pub access: Access,
    /// Nothing is written.
    pub is_read_only: bool,
    /// At one path of the node alone.
    pub is_single: bool,
}

/// What the capability asks for, or why it can't be had.
pub fn understood(capability: &VolumeCapability) -> Result<Use, String> {
    let access = match &capability.access_type {
        None => return Err("the capability does not say block or mount".into()),
        Some(AccessType::Block(_)) => Access::Block,
        Some(AccessType::Mount(mount)) => {
            let filesystem = match mount.fs_type.as_str() {
                "" | "ext4" => Filesystem::Ext4,
                "xfs" => Filesystem::Xfs,
                other => return Err(format!("filesystem {other:?} is not made here: ext4 and xfs are")),
            };
            let flags = mount.mount_flags.clone();
            if flags.len() > MOUNT_FLAGS_MAX || flags.iter().any(|flag| flag.len() > MOUNT_FLAG_CHARS_MAX) {
                return Err(format!(
                    "a mount has {MOUNT_FLAGS_MAX} options of {MOUNT_FLAG_CHARS_MAX} characters at most"
                ));
            }
            Access::Mount { filesystem, flags }
        }
    };
    let asked = capability.access_mode.as_ref().map_or(0, |asked| asked.mode);
    match asked {
        mode::SINGLE_NODE_WRITER
        | mode::SINGLE_NODE_READER_ONLY
        | mode::SINGLE_NODE_SINGLE_WRITER
        | mode::SINGLE_NODE_MULTI_WRITER => Ok(Use {
            access,
            is_read_only: asked == mode::SINGLE_NODE_READER_ONLY,
            is_single: asked == mode::SINGLE_NODE_SINGLE_WRITER,
        }),
        0 => Err("the capability names no access mode".into()),
        other => Err(format!("access mode {other}: one node at a time has a volume")),
    }
}

/// The same of several, of which there is at least one.
pub fn all_understood(capabilities: &[VolumeCapability]) -> Result<(), String> {
    if capabilities.len() > CAPABILITIES_MAX {
        return Err(format!("{} capabilities: there may be {CAPABILITIES_MAX}", capabilities.len()));
    }
    capabilities.iter().try_for_each(|capability| understood(capability).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{AccessMode, MountVolume, Nothing};

    fn capability(access_type: Option<AccessType>, mode: i32) -> VolumeCapability {
        VolumeCapability { access_type, access_mode: Some(AccessMode { mode }) }
    }

    fn mount(fs_type: &str, flags: usize) -> Option<AccessType> {
        let mount_flags = vec!["noatime".to_owned(); flags];
        Some(AccessType::Mount(MountVolume { fs_type: fs_type.into(), mount_flags }))
    }

    #[test]
    fn one_node_may_have_a_volume_and_several_may_not() {
        for (mode, is_accepted) in
            [(0, false), (1, true), (2, true), (3, false), (4, false), (5, false), (6, true), (7, true)]
        {
            assert_eq!(
                understood(&capability(Some(AccessType::Block(Nothing {})), mode)).is_ok(),
                is_accepted,
                "{mode}"
            );
        }
        let found = understood(&capability(mount("xfs", 1), 2)).expect("understood");
        let access = Access::Mount { filesystem: Filesystem::Xfs, flags: vec!["noatime".into()] };
        assert_eq!(found, Use { access, is_read_only: true, is_single: false });
        assert!(understood(&capability(None, 1)).is_err());
        assert!(understood(&capability(mount("ntfs", 0), 1)).is_err());
        assert!(understood(&capability(mount("", MOUNT_FLAGS_MAX + 1), 1)).is_err());
        assert!(all_understood(&vec![capability(mount("", 0), 1); CAPABILITIES_MAX + 1]).is_err());
    }
}
