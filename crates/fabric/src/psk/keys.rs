//! Pre-shared keys: from the key that an operator configures to the one that TLS uses (NVMe/TCP 1.0c §3.6.1).
//!
//! ```text
//!  configured PSK   NVMeTLSkey-1:<hh>:<base64 of key and CRC-32>:      in a file, shared out of band
//!       │ HKDF, label "HostNQN", context the host's NQN; hh = 00: as it is
//!  retained PSK     what an entity keeps for a host
//!       │ HKDF, label "nvme-tls-psk", context the identity (version 0) or "<hash> <digest>" (version 1)
//!  TLS PSK          NVMe<version><R|G><hash> <host NQN> <subsystem NQN>[ <digest>]
//! ```
//! Invariants:
//! - A configured PSK is gone once the retained one is made: [`ConfiguredPsk::retain`] takes it.
//! - The hash of an identity is that of its cipher suite, and gives the key's length: 32 bytes for SHA-256, 48 for SHA-384.

use std::sync::Arc;

use nvme::Nqn;
use openssl::base64;
use openssl::error::ErrorStack;
use openssl::md::{Md, MdRef};
use openssl::pkey::{Id, PKey};
use openssl::pkey_ctx::PkeyCtx;
use openssl::sign::Signer;
use tls::{Psk, Secret, Suite};

use super::identity::{Identity, IdentityVersion, Origin};

/// The start of the interchange format, with its version.
const INTERCHANGE: &str = "NVMeTLSkey-1:";
/// RFC 8446 §7.1: every label of HKDF-Expand-Label begins so.
const LABEL_PREFIX: &str = "tls13 ";
/// What follows the names in the digest of an identity (NVMe/TCP 1.0c §3.6.1.3).
const DIGEST_SUFFIX: &str = "NVMe-over-Fabrics";
/// The context of HKDF-Expand-Label has a length of one byte.
const CONTEXT_BYTES_MAX: usize = 255;

/// Why a key can not be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PskError {
    /// Not the interchange format.
    #[error(
        "the key is not of the form NVMeTLSkey-1:<hash>:<base64>: with hash 00, 01 or 02; make one with `yagura nvme gen-tls-key`"
    )]
    Form,
    /// A hash that is none.
    #[error("the key asks for the hash {0:?}; 00 (none), 01 (SHA-256) and 02 (SHA-384) exist")]
    Hash(String),
    /// Wrong number of bytes.
    #[error("the key has {0} bytes; it must have 32 (hash 00 or 01) or 48 (hash 00 or 02)")]
    Length(usize),
    /// Damaged.
    #[error("the key's checksum is wrong: a character was lost or changed when it was copied")]
    Checksum,
    /// The names are too long for version 0.
    #[error(
        "an identity of version 0 with these names has {0} bytes, and {CONTEXT_BYTES_MAX} can be derived from: use version 1"
    )]
    IdentityTooLong(usize),
    /// OpenSSL failed.
    #[error("the key could not be derived: {0}")]
    Crypto(String),
}

impl From<ErrorStack> for PskError {
    fn from(error: ErrorStack) -> PskError {
        PskError::Crypto(error.to_string())
    }
}

/// The hash of a key, and with it its cipher suite.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum PskHash {
    /// SHA-256: TLS_AES_128_GCM_SHA256.
    Sha256 = 1,
    /// SHA-384: TLS_AES_256_GCM_SHA384.
    Sha384 = 2,
}

impl PskHash {
    /// Both, the preferred first.
    pub const ALL: [PskHash; 2] = [PskHash::Sha384, PskHash::Sha256];

    /// The hash of a code of two digits.
    pub fn from_code(code: &str) -> Option<PskHash> {
        PskHash::ALL.into_iter().find(|hash| hash.code() == code)
    }

    /// Its code in keys and identities.
    pub const fn code(self) -> &'static str {
        match self {
            PskHash::Sha256 => "01",
            PskHash::Sha384 => "02",
        }
    }

    /// Bytes of its output, and of every key that goes with it.
    pub const fn bytes(self) -> usize {
        self.suite().hash_bytes()
    }

    fn of_length(bytes: usize) -> Option<PskHash> {
        PskHash::ALL.into_iter().find(|hash| hash.bytes() == bytes)
    }

    /// The cipher suite.
    pub const fn suite(self) -> Suite {
        match self {
            PskHash::Sha256 => Suite::Aes128GcmSha256,
            PskHash::Sha384 => Suite::Aes256GcmSha384,
        }
    }

    fn md(self) -> &'static MdRef {
        match self {
            PskHash::Sha256 => Md::sha256(),
            PskHash::Sha384 => Md::sha384(),
        }
    }

    fn digest(self) -> openssl::hash::MessageDigest {
        match self {
            PskHash::Sha256 => openssl::hash::MessageDigest::sha256(),
            PskHash::Sha384 => openssl::hash::MessageDigest::sha384(),
        }
    }
}

/// How the context of a key is written into HKDF.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Derivation {
    /// HKDF-Expand-Label as RFC 8446 §7.1 has it: what the specification says.
    #[default]
    Standard,
    /// As nvme-cli did it up to 2.13 (libnvme 1.13): label and context without their lengths, the key's length in little
    /// endian. Keys that such a version has put into a kernel's keyring were made so.
    Legacy,
}

/// A key as an operator has it.
#[derive(Clone, Debug)]
pub struct ConfiguredPsk {
    /// How the retained key is made of it; `None`: it is the retained key.
    transform: Option<PskHash>,
    hash: PskHash,
    key: Secret,
}

impl ConfiguredPsk {
    /// A new random key. `transform`: the hash by which each host makes its retained key of it; `None`: none, and the key is
    /// as long as `hash` says.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn random(transform: Option<PskHash>, hash: PskHash) -> Result<ConfiguredPsk, PskError> {
        let hash = transform.unwrap_or(hash);
        let mut key = vec![0; hash.bytes()];
        openssl::rand::rand_priv_bytes(&mut key)?;
        Ok(ConfiguredPsk { transform, hash, key: Secret::new(key) })
    }

    /// Reads the interchange format (NVMe/TCP 1.0c §3.6.1.5).
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &Secret) -> Result<ConfiguredPsk, PskError> {
        let text = std::str::from_utf8(text.expose()).map_err(|_| PskError::Form)?;
        let rest = text.strip_prefix(INTERCHANGE).ok_or(PskError::Form)?;
        let (code, rest) = rest.split_once(':').ok_or(PskError::Form)?;
        let encoded = rest.strip_suffix(':').filter(|encoded| !encoded.contains(':')).ok_or(PskError::Form)?;
        let transform = match code {
            "00" => None,
            code => Some(PskHash::from_code(code).ok_or_else(|| PskError::Hash(code.chars().take(8).collect()))?),
        };
        let decoded = Secret::new(base64::decode_block(encoded).map_err(|_| PskError::Form)?);
        // OpenSSL forgives white space and padding bits; a key has one spelling.
        if Secret::new(base64::encode_block(decoded.expose()).into_bytes()).expose() != encoded.as_bytes() {
            return Err(PskError::Form);
        }
        let bytes = decoded.len().saturating_sub(4);
        let hash = PskHash::of_length(bytes).filter(|&hash| transform.is_none_or(|transform| transform == hash));
        let hash = hash.ok_or(PskError::Length(bytes))?;
        let (key, checksum) = decoded.expose().split_at(bytes);
        if crc(key).to_le_bytes() != checksum {
            return Err(PskError::Checksum);
        }
        Ok(ConfiguredPsk { transform, hash, key: Secret::new(key.to_vec()) })
    }

    /// The interchange format.
    pub fn to_interchange(&self) -> Secret {
        let mut bytes = Vec::with_capacity(self.key.len() + 4);
        bytes.extend_from_slice(self.key.expose());
        bytes.extend_from_slice(&crc(self.key.expose()).to_le_bytes());
        let bytes = Secret::new(bytes);
        let encoded = Secret::new(base64::encode_block(bytes.expose()).into_bytes());
        let mut text = Vec::with_capacity(INTERCHANGE.len() + 4 + encoded.len());
        text.extend_from_slice(INTERCHANGE.as_bytes());
        text.extend_from_slice(self.transform.map_or("00", PskHash::code).as_bytes());
        text.push(b':');
        text.extend_from_slice(encoded.expose());
        text.push(b':');
        Secret::new(text)
    }

    /// The hash, and so the cipher suite, that connections with this key use.
    pub fn hash(&self) -> PskHash {
        self.hash
    }

    /// The hash by which the retained key is made; `None`: the key is used as it is.
    pub fn transform(&self) -> Option<PskHash> {
        self.transform
    }

    /// Makes the keys that are kept for `host`; with `legacy`, also what versions of nvme-cli before 2.14 derive, and first:
    /// where the identity does not tell them apart (version 0), the first one counts.
    ///
    /// # Errors
    /// OpenSSL failed.
    pub fn retain_all(self, host: &Nqn, legacy: bool) -> Result<Vec<RetainedPsk>, PskError> {
        let mut keys = Vec::with_capacity(2);
        if legacy {
            keys.push(self.clone().retain(host, Derivation::Legacy)?);
        }
        keys.push(self.retain(host, Derivation::Standard)?);
        Ok(keys)
    }

    /// Makes the key that is kept for `host` (NVMe/TCP 1.0c §3.6.1.2).
    ///
    /// # Errors
    /// OpenSSL failed.
    pub fn retain(self, host: &Nqn, derivation: Derivation) -> Result<RetainedPsk, PskError> {
        let key = match self.transform {
            None => self.key,
            Some(hash) => expand(hash, derivation, &self.key, "HostNQN", host.as_str().as_bytes())?,
        };
        Ok(RetainedPsk { host: host.clone(), hash: self.hash, derivation, key })
    }
}

/// The CRC-32 of ISO HDLC (as in zlib), which the interchange format ends with.
fn crc(key: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, key) as u32
}

/// A key that is kept for one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RetainedPsk {
    host: Nqn,
    hash: PskHash,
    derivation: Derivation,
    key: Secret,
}

impl RetainedPsk {
    /// The hash, and so the cipher suite, that connections with this key use.
    pub fn hash(&self) -> PskHash {
        self.hash
    }

    /// The host it is kept for.
    pub fn host(&self) -> &Nqn {
        &self.host
    }

    /// The key with which its host and `subsystem` begin TLS, with its identity (NVMe/TCP 1.0c §3.6.1.3, §3.6.1.4).
    ///
    /// # Errors
    /// The names are too long for version 0, or OpenSSL failed.
    pub fn tls_psk(&self, version: IdentityVersion, subsystem: &Nqn) -> Result<TlsPsk, PskError> {
        let digest = match version {
            IdentityVersion::Zero => None,
            IdentityVersion::One => Some(self.digest(subsystem)?),
        };
        let identity = Identity {
            version,
            origin: Origin::Retained,
            hash: self.hash,
            host: self.host.clone(),
            subsystem: subsystem.clone(),
            digest,
        };
        let context = match &identity.digest {
            None => identity.to_string(),
            Some(digest) => format!("{} {digest}", self.hash.code()),
        };
        let key = expand(self.hash, self.derivation, &self.key, "nvme-tls-psk", context.as_bytes())?;
        Ok(TlsPsk::new(identity, key))
    }

    /// Whether a retained key's identity tells this one from others with the same names and hash. Without a digest (version 0)
    /// it tells nothing more, and the first key counts.
    pub(super) fn is_named_by(&self, identity: &Identity) -> bool {
        let Some(named) = &identity.digest else { return true };
        // The digest is no secret: it goes over the wire as it is.
        self.digest(&identity.subsystem).is_ok_and(|digest| digest == *named)
    }

    /// Base64 of HMAC(key, "<host> <subsystem> NVMe-over-Fabrics"): tells keys of the same names apart.
    fn digest(&self, subsystem: &Nqn) -> Result<String, PskError> {
        let key = PKey::hmac(self.key.expose())?;
        let mut signer = Signer::new(self.hash.digest(), &key)?;
        signer.update(format!("{} {subsystem} {DIGEST_SUFFIX}", self.host).as_bytes())?;
        Ok(base64::encode_block(&signer.sign_to_vec()?))
    }
}

#[cfg(test)]
thread_local! {
    /// Derivations by this thread.
    pub(super) static DERIVED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// HKDF-Extract without salt, then HKDF-Expand-Label to the hash's length (RFC 5869, RFC 8446 §7.1).
fn expand(
    hash: PskHash,
    derivation: Derivation,
    key: &Secret,
    label: &str,
    context: &[u8],
) -> Result<Secret, PskError> {
    let mut info = Vec::with_capacity(4 + LABEL_PREFIX.len() + label.len() + context.len());
    let bytes = hash.bytes() as u16;
    match derivation {
        Derivation::Standard => {
            let length = u8::try_from(context.len()).map_err(|_| PskError::IdentityTooLong(context.len()))?;
            info.extend_from_slice(&bytes.to_be_bytes());
            info.push((LABEL_PREFIX.len() + label.len()) as u8);
            info.extend_from_slice(LABEL_PREFIX.as_bytes());
            info.extend_from_slice(label.as_bytes());
            info.push(length);
        }
        Derivation::Legacy => {
            info.extend_from_slice(&bytes.to_le_bytes());
            info.extend_from_slice(LABEL_PREFIX.as_bytes());
            info.extend_from_slice(label.as_bytes());
        }
    }
    info.extend_from_slice(context);
    #[cfg(test)]
    DERIVED.set(DERIVED.get() + 1);
    let mut derived = vec![0; hash.bytes()];
    let mut hkdf = PkeyCtx::new_id(Id::HKDF)?;
    hkdf.derive_init()?;
    hkdf.set_hkdf_md(hash.md())?;
    hkdf.set_hkdf_key(key.expose())?;
    hkdf.add_hkdf_info(&info)?;
    hkdf.derive(Some(&mut derived))?;
    Ok(Secret::new(derived))
}

/// A host's key for TLS, as it connects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TlsKey {
    /// Made of one that an operator has configured.
    Retained {
        /// The key.
        key: RetainedPsk,
        /// How its identity is made.
        version: IdentityVersion,
    },
    /// Made by authentication, for one subsystem.
    Generated(Arc<TlsPsk>),
}

impl TlsKey {
    /// The key for connections to `subsystem`.
    ///
    /// # Errors
    /// The names are too long for version 0, or OpenSSL failed.
    pub fn psk(&self, subsystem: &Nqn) -> Result<Arc<TlsPsk>, PskError> {
        match self {
            TlsKey::Retained { key, version } => key.tls_psk(*version, subsystem).map(Arc::new),
            TlsKey::Generated(psk) => Ok(psk.clone()),
        }
    }
}

/// A key that TLS uses, and the identity under which the client offers it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsPsk {
    identity: Identity,
    psk: Arc<Psk>,
}

impl TlsPsk {
    fn new(identity: Identity, key: Secret) -> TlsPsk {
        let psk = Psk::new(identity.to_string().into_bytes(), identity.hash.suite(), key);
        TlsPsk { identity, psk: Arc::new(psk) }
    }

    /// The key that a connection was made with. `None`: it has no identity of NVMe/TCP, and so was found in no keyring.
    pub fn shown(psk: &Arc<Psk>) -> Option<TlsPsk> {
        let identity = std::str::from_utf8(psk.identity()).ok()?.parse().ok()?;
        Some(TlsPsk { identity, psk: psk.clone() })
    }

    /// The key for a secure channel that in-band authentication has prepared (NVMe Base 2.0c §8.13.5.9, NVMe/TCP 1.0c
    /// §3.6.1.4): derived from the generated PSK `key`, which has the length of its hash; `digest` is its PSK digest.
    ///
    /// # Errors
    /// The key has a length that no hash of TLS has, or OpenSSL failed.
    pub fn generated(host: &Nqn, subsystem: &Nqn, digest: &str, key: &Secret) -> Result<TlsPsk, PskError> {
        let hash = PskHash::of_length(key.len()).ok_or(PskError::Length(key.len()))?;
        let context = format!("{} {digest}", hash.code());
        let key = expand(hash, Derivation::Standard, key, "nvme-tls-psk", context.as_bytes())?;
        let identity = Identity {
            version: IdentityVersion::One,
            origin: Origin::Generated,
            hash,
            host: host.clone(),
            subsystem: subsystem.clone(),
            digest: Some(digest.to_owned()),
        };
        Ok(TlsPsk::new(identity, key))
    }

    /// Whose it is, and for what.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What TLS is given of it.
    pub fn psk(&self) -> &Arc<Psk> {
        &self.psk
    }

    pub(super) fn offered(&self) -> &[u8] {
        self.psk.identity()
    }

    pub(super) fn key(&self) -> &Secret {
        self.psk.key()
    }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
