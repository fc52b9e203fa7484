//! CRC32C, as header and data digest (NVMe/TCP 1.0 §3.4.1.1).

use crc_fast::{CrcAlgorithm, checksum};

/// Bytes of a digest on the wire.
pub const DIGEST_BYTES: usize = 4;

/// A digest over bytes that come in pieces.
#[derive(Clone, Debug)]
pub struct Digest(crc_fast::Digest);

impl Default for Digest {
    fn default() -> Digest {
        Digest(crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Digest {
    /// The digest of `bytes` as it stands on the wire.
    pub fn of(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
        (checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
    }

    /// Takes the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all pieces as it stands on the wire.
    pub fn finish(&self) -> [u8; DIGEST_BYTES] {
        (self.0.finalize() as u32).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720 appendix B.4.
    #[test]
    fn the_published_values() {
        assert_eq!(u32::from_le_bytes(Digest::of(&[0; 32])), 0x8A91_36AA);
        assert_eq!(u32::from_le_bytes(Digest::of(&[0xFF; 32])), 0x62A8_AB43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(u32::from_le_bytes(Digest::of(&ascending)), 0x46DD_794E);
    }

    #[test]
    fn pieces_make_the_whole() {
        let mut digest = Digest::default();
        digest.update(b"12345");
        digest.update(b"");
        digest.update(b"6789");
        assert_eq!(digest.finish(), Digest::of(b"123456789"));
    }
}
