//! What is computed from keys, challenges and the shared secret (NVMe Base 2.0 §8.13.5.2 to §8.13.5.9).
//!
//! ```text
//!  KS = H(g^xy mod p)                                  the session key, where there was an exchange
//!  Ca = HMAC(KS, C)                                    the augmented challenge; with the null group Ca = C
//!  R1 = HMAC(Kh, Ca1 ‖ S1 ‖ T_ID ‖ SC_C ‖ "HostHost" ‖ NQNh ‖ 00h ‖ NQNc)
//!  R2 = HMAC(Kc, Ca2 ‖ S2 ‖ T_ID ‖ SC_C ‖ "Controller" ‖ NQNc ‖ 00h ‖ NQNh)
//!  generated PSK = HMAC(KS, C1 ‖ C2)
//! ```
//! H and HMAC are those of the hash chosen, Kh and Kc the transformed keys, numbers have their low byte first.

use openssl::base64;
use tls::Secret;

use super::key::DhchapKey;
use super::suite::Hash;
use super::{CryptoError, Names};
use crate::psk::{PskError, TlsPsk};

/// The end that answers a challenge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Host,
    Controller,
}

/// What both ends of a transaction know, besides the keys and challenges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Transaction {
    pub id: u16,
    pub hash: Hash,
    /// SC_C.
    pub concatenation: u8,
}

/// The session key of a shared secret.
pub(super) fn session_key(hash: Hash, shared: &Secret) -> Result<Secret, CryptoError> {
    Ok(Secret::new(hash.digest(shared.expose())?))
}

/// The response of the end with `role` and `key` to `challenge`.
pub(super) fn response(
    transaction: Transaction,
    role: Role,
    key: &DhchapKey,
    names: &Names,
    challenge: &[u8],
    sequence: u32,
    session: Option<&Secret>,
) -> Result<Vec<u8>, CryptoError> {
    let Transaction { id, hash, concatenation } = transaction;
    let augmented = match session {
        Some(session) => hash.hmac(session.expose(), &[challenge])?,
        None => challenge.to_vec(),
    };
    let (purpose, own, peer): (&[u8], _, _) = match role {
        Role::Host => (b"HostHost", &names.host, &names.subsystem),
        Role::Controller => (b"Controller", &names.subsystem, &names.host),
    };
    let key = key.transformed(own)?;
    let (own, peer) = (own.as_str().as_bytes(), peer.as_str().as_bytes());
    let parts: [&[u8]; 8] =
        [&augmented, &sequence.to_le_bytes(), &id.to_le_bytes(), &[concatenation], purpose, own, &[0], peer];
    hash.hmac(key.expose(), &parts)
}

/// A key for TLS that an authentication has made (NVMe Base 2.0 §8.13.5.9), the same at both ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GeneratedPsk {
    /// The hash of the authentication, and so of the key: SHA-256 or SHA-384, which are those that TLS has.
    pub hash: Hash,
    /// The key, as long as the hash.
    pub key: Secret,
}

impl GeneratedPsk {
    pub(super) fn new(hash: Hash, session: &Secret, c1: &[u8], c2: &[u8]) -> Result<GeneratedPsk, CryptoError> {
        Ok(GeneratedPsk { hash, key: Secret::new(hash.hmac(session.expose(), &[c1, c2])?) })
    }

    /// The PSK digest, the last part of the key's identity in TLS, which tells the keys of one pair of names apart
    /// (NVMe/TCP 1.0 §3.6.1.3): Base64 of HMAC(PSK, NQNh ‖ " " ‖ NQNc ‖ " " ‖ "NVMe-over-Fabrics").
    ///
    /// # Errors
    /// The library failed.
    pub fn digest(&self, names: &Names) -> Result<String, CryptoError> {
        let (host, subsystem) = (names.host.as_str().as_bytes(), names.subsystem.as_str().as_bytes());
        let parts: [&[u8]; 5] = [host, b" ", subsystem, b" ", b"NVMe-over-Fabrics"];
        Ok(base64::encode_block(&self.hash.hmac(self.key.expose(), &parts)?))
    }

    /// The key that TLS begins with between the two.
    ///
    /// # Errors
    /// The library failed.
    pub fn tls_psk(&self, names: &Names) -> Result<TlsPsk, PskError> {
        let digest = self.digest(names).map_err(|error| PskError::Crypto(error.to_string()))?;
        TlsPsk::generated(&names.host, &names.subsystem, &digest, &self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::suite::hex;
    use super::*;

    fn names() -> Names {
        let name = |text: &str| text.parse().expect("a name");
        Names { host: name("nqn.2014-08.org.example:host"), subsystem: name("nqn.2014-08.org.example:subsystem") }
    }

    /// Computed apart, with Python's hmac and hashlib, as the formulas at the head of this file say: key bytes 0 to 31 that
    /// are transformed by SHA-256, challenges of bytes A0h…, session key from a shared secret of bytes 50h….
    const KNOWN: [(Hash, bool, &str, &str); 6] = [
        (
            Hash::Sha256,
            false,
            "eeb75d3e9d3638ad4fa16b9ec881e59a3308b7a0b039dace9f4b95a9b6fd3e41",
            "ad47be7208c08fd3d2036906baa1fc64a18aa08f7f7399415c1c5a5ac97f4361",
        ),
        (
            Hash::Sha256,
            true,
            "ba281b82c855502bcd95dfd63bdc4ffc120662f634559f0cc4f03a0bad3c2a29",
            "7cf7f18376c32bc07420a4c0e7e60be310acf368f54ee6c4081251ad1c57df87",
        ),
        (
            Hash::Sha384,
            false,
            "c0a7492a0600dad8ff19d895aaf83773154b86128cc895259e4eb009000dbc55834fa5d4d0d23633b9310f431e24af4e",
            "d0afa26dc6e92fbc574d1a88c0e2b3b31d013eef6fce677b635e0e9106c80be85104daf5587796ceb49b89ac8789a72b",
        ),
        (
            Hash::Sha384,
            true,
            "5d0e181ff568f573a25a6a3ffb3201c6d4c01f8fdbbe28df296ede5f89aaedf4a2831a33e6c480096a57b72b29e65d29",
            "b81569ff5316e1033271367ba38e5f89126c8ee51d44c6e50dcecaa32914893bc84634899338a048ca507553f92d6df9",
        ),
        (
            Hash::Sha512,
            false,
            "0e46bcdbc1fa69e659088624135f76839157cf2dc7b3108d8a2bf3d7ad6034a6201234cdfadd57de50238b96b521c37a81425c6c8d29be0c9aba284954d8f4ea",
            "c4e3a2f152f65a2f814b7f59955813811044148cbae10b3c86a91eb5be41238cd51cbafb5d7236a00516cdaa79b2c4b4879c6af0a641666d95deb9368cb3dcf2",
        ),
        (
            Hash::Sha512,
            true,
            "821ff612787f03d3a26862d05119cb0b3eb74eadda4733492310bcc6abffc79a85b2c0d168eff5ddc68f8dae72e1a5317f9dffdbea135d22c7c1185585fc1bfe",
            "5ea551251dd9d4e3dce05094a1a2cd810cc443cdb7ca0945b64165c5ec42004b2f3b3c4ba3f5ae5864422b6191fd6ebea1e81221240060b47fde9c3a724e3531",
        ),
    ];

    #[test]
    fn known_responses() {
        let key = DhchapKey::parse(b"DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:").expect("a key");
        for (hash, exchange, host, controller) in KNOWN {
            let transaction = Transaction { id: 0x1234, hash, concatenation: 0 };
            let challenge: Vec<u8> = (0xA0..).take(hash.bytes()).collect();
            let shared = Secret::new((0..=255).map(|i: u8| i.wrapping_add(0x50)).collect());
            let session = exchange.then(|| session_key(hash, &shared).expect("computed"));
            let compute = |role| {
                let response = response(transaction, role, &key, &names(), &challenge, 0x0102_0304, session.as_ref());
                hex(&response.expect("computed"))
            };
            assert_eq!(compute(Role::Host), host, "{hash:?}, exchange: {exchange}");
            assert_eq!(compute(Role::Controller), controller, "{hash:?}, exchange: {exchange}");
        }
    }

    /// The vectors of the Linux kernel's own unit test of its key derivation (drivers/nvme/common): session key 'A', 'B', …,
    /// C1 of bytes 0, 1, …, C2 of bytes 255, 254, …. The digest is computed apart, for names that are NQNs.
    #[test]
    fn known_generated_keys() {
        let known = [
            (
                Hash::Sha256,
                "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a",
                "jRFmHhGhTCcEES7863d22rDPXTesOM+POziGjaTCplg=",
            ),
            (
                Hash::Sha384,
                "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e118749001ce4bbe8640b9e3a748cb11ce4b1d71d359cce39",
                "cWEm38VJ9xTLX8xzvp5I57Jn2zdYIjuZJmpihj7SXjCUHkn9di+NknujQ7sKXclU",
            ),
        ];
        for (hash, key, digest) in known {
            let up = |first: u8| -> Vec<u8> { (first..).take(hash.bytes()).collect() };
            let c2: Vec<u8> = (0..=255).rev().take(hash.bytes()).collect();
            let psk = GeneratedPsk::new(hash, &Secret::new(up(b'A')), &up(0), &c2).expect("computed");
            assert_eq!(hex(psk.key.expose()), key);
            assert_eq!(psk.digest(&names()).expect("computed"), digest);
        }
    }
}
