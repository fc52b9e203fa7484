//! Keys of DH-HMAC-CHAP: their text form, and what they are transformed to for one entity (NVMe Base 2.0 §8.13.5.7).
//!
//! ```text
//!  DHHC-1:hh:<base64 of key and CRC-32 of the key, low byte first>:
//!         hh: 00 used as it is; 01, 02, 03 transformed by HMAC with SHA-256, SHA-384, SHA-512
//! ```

use std::path::Path;
use std::sync::Arc;

use nvme::Nqn;
use openssl::base64;
use tls::{Secret, SecretError};
use zeroize::Zeroizing;

use super::suite::Hash;
use super::{CryptoError, random};

const PREFIX: &[u8] = b"DHHC-1:";
/// What is hashed behind the name when a key is transformed.
const PURPOSE: &[u8] = b"NVMe-over-Fabrics";
/// Lengths that a key may have, bytes.
const KEY_BYTES: [usize; 3] = [32, 48, 64];
const CRC_BYTES: usize = 4;

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Its file.
    #[error(transparent)]
    File(#[from] SecretError),
    /// Not the text form of a key. The message never repeats it.
    #[error(
        "not a DH-HMAC-CHAP key: {0}; it has the form DHHC-1:hh:<base64>: (`yagura nvme gen-dhchap-key` makes one)"
    )]
    Malformed(&'static str),
    /// A key in a file that is not one.
    #[error("{path}: {error}")]
    InFile {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with the key.
        error: Box<KeyError>,
    },
    /// The library.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

/// A key as an administrator gives it: to a host, and to the targets that are to know the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DhchapKey {
    transform: Option<Hash>,
    key: Secret,
}

impl DhchapKey {
    /// Reads the text form.
    ///
    /// # Errors
    /// It is not one, or its checksum is wrong: a character was lost or changed.
    pub fn parse(text: &[u8]) -> Result<DhchapKey, KeyError> {
        let rest = text.strip_prefix(PREFIX).ok_or(KeyError::Malformed("it does not begin with DHHC-1:"))?;
        let (id, rest) = rest.split_at_checked(3).ok_or(KeyError::Malformed("it is too short"))?;
        let transform = match id {
            b"00:" => None,
            b"01:" => Some(Hash::Sha256),
            b"02:" => Some(Hash::Sha384),
            b"03:" => Some(Hash::Sha512),
            _ => return Err(KeyError::Malformed("the hash is not one of 00, 01, 02, 03")),
        };
        let encoded = rest.strip_suffix(b":").ok_or(KeyError::Malformed("it does not end with a colon"))?;
        let encoded = std::str::from_utf8(encoded).map_err(|_| KeyError::Malformed("it is not base64"))?;
        let whole = base64::decode_block(encoded).map_err(|_| KeyError::Malformed("it is not base64"))?;
        let whole = Zeroizing::new(whole);
        // The decoder passes over white space and odd endings; the text form has neither.
        if *Zeroizing::new(base64::encode_block(&whole)) != encoded {
            return Err(KeyError::Malformed("it is not base64"));
        }
        let length = whole.len().saturating_sub(CRC_BYTES);
        if !KEY_BYTES.contains(&length) {
            return Err(KeyError::Malformed("the key does not have 32, 48 or 64 bytes"));
        }
        let (key, crc) = whole.split_at(length);
        if crc != checksum(key) {
            return Err(KeyError::Malformed("its checksum is wrong, so a character was lost or changed"));
        }
        Ok(DhchapKey { transform, key: Secret::new(key.to_vec()) })
    }

    /// Reads the text form from a file that nobody else can read, see [`Secret::from_file`].
    ///
    /// # Errors
    /// The file or what is in it is not as it must be.
    pub fn from_file(path: &Path) -> Result<DhchapKey, KeyError> {
        let text = Secret::from_file(path)?;
        let located = |error| KeyError::InFile { path: path.into(), error: Box::new(error) };
        DhchapKey::parse(text.expose()).map_err(located)
    }

    /// A new key, as long as the hash; without one 32 bytes that are used as they are. With a `name` the key is transformed
    /// here for that entity and needs no transformation any more: it then serves that entity alone.
    ///
    /// # Errors
    /// The library failed.
    pub fn generate(hash: Option<Hash>, name: Option<&Nqn>) -> Result<DhchapKey, CryptoError> {
        let key = Secret::new(random(hash.map_or(KEY_BYTES[0], Hash::bytes))?);
        let key = DhchapKey { transform: hash, key };
        match name {
            Some(name) => Ok(DhchapKey { transform: None, key: key.transformed(name)? }),
            None => Ok(key),
        }
    }

    /// The text form.
    pub fn text(&self) -> Secret {
        let mut whole = Zeroizing::new(Vec::with_capacity(self.key.len() + CRC_BYTES));
        whole.extend_from_slice(self.key.expose());
        whole.extend_from_slice(&checksum(self.key.expose()));
        let encoded = Zeroizing::new(base64::encode_block(&whole));
        let id = self.transform.map_or(0, |hash| hash.id().0);
        Secret::new(format!("DHHC-1:{id:02}:{}:", *encoded).into_bytes())
    }

    /// The hash it is transformed by, if it is.
    pub fn transform(&self) -> Option<Hash> {
        self.transform
    }

    /// The key of the entity called `name`.
    pub(super) fn transformed(&self, name: &Nqn) -> Result<Secret, CryptoError> {
        let Some(hash) = self.transform else { return Ok(self.key.clone()) };
        Ok(Secret::new(hash.hmac(self.key.expose(), &[name.as_str().as_bytes(), PURPOSE])?))
    }
}

fn checksum(key: &[u8]) -> [u8; CRC_BYTES] {
    (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, key) as u32).to_le_bytes()
}

/// The keys between one host and a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostKeys {
    /// By which the host authenticates itself.
    pub host: Arc<DhchapKey>,
    /// By which the target's controllers authenticate themselves. A host that has one demands that they do.
    pub controller: Option<Arc<DhchapKey>>,
}

impl HostKeys {
    /// Reads the keys from their files.
    ///
    /// # Errors
    /// A file or the key in it is not as it must be.
    pub fn from_files(host: &Path, controller: Option<&Path>) -> Result<HostKeys, KeyError> {
        let host = Arc::new(DhchapKey::from_file(host)?);
        let controller = controller.map(DhchapKey::from_file).transpose()?.map(Arc::new);
        Ok(HostKeys { host, controller })
    }
}

#[cfg(test)]
mod tests {
    use super::super::suite::hex;
    use super::*;

    /// The key of bytes 0 to n − 1; the text and the transformed key computed apart, with Python's zlib, base64 and hmac:
    /// `base64.b64encode(k + zlib.crc32(k).to_bytes(4, 'little'))`, `hmac.new(k, nqn + b'NVMe-over-Fabrics', hash)`.
    const NAME: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
    const KNOWN: [(&str, &str); 4] = [
        (
            "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        ),
        (
            "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
            "6ce1e4ea31e8331a4fe5826bfde17a5cd386b8f0338748919e279ba6c55bf727",
        ),
        (
            "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:",
            "273824c90ec8051360660a152504d1a8367ad879e3e7f919fafaebaa3884e13ce8659bf9c9c552e5c38b0a26756d07d5",
        ),
        (
            "DHHC-1:03:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P4zODhA=:",
            "0fe51c89d86bf4e874d3268a0ab30b076b3673f86ca23972c709e2d76a79f5467bf1fe1843a50ca447101b8c9a3e72c91649632be7aecadaf2bef41edab61286",
        ),
    ];

    fn bytes(length: usize) -> Vec<u8> {
        (0..length as u8).collect()
    }

    #[test]
    fn known_keys_and_what_they_are_transformed_to() {
        let name: Nqn = NAME.parse().expect("a name");
        for ((text, transformed), length) in KNOWN.into_iter().zip([32, 32, 48, 64]) {
            let key = DhchapKey::parse(text.as_bytes()).expect("a good key");
            assert_eq!(key.key.expose(), bytes(length));
            assert_eq!(key.text().expose(), text.as_bytes());
            assert_eq!(hex(key.transformed(&name).expect("computed").expose()), transformed, "{text}");
        }
    }

    #[test]
    fn a_changed_character_is_noticed() {
        let text = KNOWN[1].0;
        for at in 0..text.len() {
            for with in [b'A', b'z', b'=', b' ', b':', 0xFF] {
                let mut changed = text.as_bytes().to_vec();
                changed[at] = with;
                // The hash is not covered by the checksum: 00 and 01 are both keys.
                let same = changed == text.as_bytes();
                assert!(same || DhchapKey::parse(&changed).is_err(), "{at}: {with}");
            }
            assert!(DhchapKey::parse(&text.as_bytes()[..at]).is_err(), "cut to {at}");
        }
        assert!(DhchapKey::parse(b"DHHC-1:04:AAAA:").is_err());
    }

    #[test]
    fn an_error_does_not_repeat_the_key() {
        let text = KNOWN[0].0.replacen("AAEC", "AAED", 1);
        let error = DhchapKey::parse(text.as_bytes()).expect_err("its checksum is wrong");
        assert!(!format!("{error} {error:?}").contains("BAUGBw"), "{error}");
        assert!(!format!("{:?}", DhchapKey::parse(KNOWN[0].0.as_bytes())).contains("BAUGBw"));
    }

    #[test]
    fn a_new_key_is_read_back() {
        for hash in [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)] {
            let key = DhchapKey::generate(hash, None).expect("random bytes");
            assert_eq!(DhchapKey::parse(key.text().expose()).expect("its own text"), key);
            assert!(key != DhchapKey::generate(hash, None).expect("random bytes"));
            let name: Nqn = NAME.parse().expect("a name");
            let own = DhchapKey::generate(hash, Some(&name)).expect("random bytes");
            assert_eq!(own.transform(), None);
        }
    }
}
