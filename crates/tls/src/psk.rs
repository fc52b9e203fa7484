//! Pre-shared keys as TLS 1.3 uses them (RFC 8446 §4.2.11): an identity, by which a client names its key, and the key.

use std::sync::Arc;

use crate::secret::Secret;

/// The cipher suites of pre-shared keys. A suite's hash is that of its keys, and as long as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Suite {
    /// TLS_AES_128_GCM_SHA256.
    Aes128GcmSha256,
    /// TLS_AES_256_GCM_SHA384.
    Aes256GcmSha384,
}

impl Suite {
    /// Both, the preferred first.
    pub const ALL: [Suite; 2] = [Suite::Aes256GcmSha384, Suite::Aes128GcmSha256];

    /// The suite's name.
    pub const fn name(self) -> &'static str {
        match self {
            Suite::Aes128GcmSha256 => "TLS_AES_128_GCM_SHA256",
            Suite::Aes256GcmSha384 => "TLS_AES_256_GCM_SHA384",
        }
    }

    /// The suite's number on the wire (RFC 8446 §B.4).
    pub(crate) const fn code(self) -> [u8; 2] {
        match self {
            Suite::Aes128GcmSha256 => [0x13, 0x01],
            Suite::Aes256GcmSha384 => [0x13, 0x02],
        }
    }

    /// Bytes of the hash's output, and of every key that goes with it.
    pub const fn hash_bytes(self) -> usize {
        match self {
            Suite::Aes128GcmSha256 => 32,
            Suite::Aes256GcmSha384 => 48,
        }
    }
}

/// A key, and the identity under which a client offers it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Psk {
    identity: Box<[u8]>,
    suite: Suite,
    key: Secret,
}

impl Psk {
    /// The key of connections with `suite`.
    pub fn new(identity: Vec<u8>, suite: Suite, key: Secret) -> Psk {
        Psk { identity: identity.into(), suite, key }
    }

    /// The identity, as it goes over the wire.
    pub fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// The cipher suite.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The key itself.
    pub fn key(&self) -> &Secret {
        &self.key
    }
}

/// Where a server looks for the keys that its clients name.
pub trait FindPsk: Send + Sync {
    /// The key of this identity. Whoever names it has shown nothing yet.
    fn find_psk(&self, identity: &[u8]) -> Option<Arc<Psk>>;
}
