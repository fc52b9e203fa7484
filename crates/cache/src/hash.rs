//! The hash of keys: SipHash-1-3 under a secret of the server.
//!
//! Keys are chosen by clients. Without the secret nobody can find keys that meet in one place of the index; 1-3 is the variant
//! that hash tables use (Rust's, Linux's `hsiphash`): its margin is against such floods, not against forgery.

use siphasher::sip::SipHasher13;

/// Hashes keys under a secret.
#[derive(Clone, Copy)]
pub struct Hasher {
    sip: SipHasher13,
    secret: [u64; 2],
}

impl Hasher {
    /// Under this secret: drawn at random, and kept with what outlives the process.
    pub fn new(secret: [u64; 2]) -> Hasher {
        Hasher { sip: SipHasher13::new_with_keys(secret[0], secret[1]), secret }
    }

    /// The secret, to be kept with what outlives the process.
    pub fn secret(&self) -> [u64; 2] {
        self.secret
    }

    /// The hash of a key.
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.sip.hash(key)
    }
}

impl std::fmt::Debug for Hasher {
    /// Tells nothing of the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hasher")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of the function would make every item on flash unfindable after an upgrade. The first value is the one of
    /// SipHash-1-3's published test (bytes 0, 1, 2 ... under the key 0 to 15), of no bytes.
    #[test]
    fn the_function_does_not_change() {
        let hasher = Hasher::new([0x0706050403020100, 0x0f0e0d0c0b0a0908]);
        assert_eq!(hasher.hash(b""), 0xabac_0158_050f_c4dc);
        assert_eq!(hasher.hash(&[0]), 0xc9f4_9bf3_7d57_ca93);
    }

    #[test]
    fn another_secret_is_another_function() {
        let (one, other) = (Hasher::new([1, 2]), Hasher::new([1, 3]));
        assert_eq!(one.hash(b"key"), Hasher::new([1, 2]).hash(b"key"));
        assert_ne!(one.hash(b"key"), other.hash(b"key"));
        assert!(!format!("{one:?}").contains('1'));
    }
}
