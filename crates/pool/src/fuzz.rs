//! Entry points for fuzzing: any bytes may come in, and nothing may panic.

use crate::map::{Map, MemberId};
use crate::superblock::{Superblock, crc64};

/// A superblock as read from a medium.
pub fn superblock_decode(bytes: &[u8]) {
    if let Ok(superblock) = Superblock::decode(bytes, MemberId([0; 16])) {
        assert_eq!(Superblock::decode(&superblock.encode(), MemberId([0; 16])), Ok(superblock));
    }
}

/// A map's body whose checksum is right: all that stands between hostile text and a [`Map`] is its validation.
pub fn map_decode(bytes: &[u8]) {
    let Ok(map) = Map::decode(bytes, crc64(bytes)) else { return };
    // The longest maps may grow beyond the limit when they are written in our own way.
    if let Ok(encoded) = map.encode() {
        assert_eq!(Map::decode(&encoded, crc64(&encoded)), Ok(map));
    }
}
