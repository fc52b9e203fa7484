//! The hashes and groups there are, and which of them an end takes part with.

use nvme::auth::{GroupId, HashId};
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::sign::Signer;

use super::CryptoError;

/// A hash function of DH-HMAC-CHAP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// All of them.
    pub const ALL: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

    /// The hash of an identifier, if it is one.
    pub fn from_id(id: u8) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.id().0 == id)
    }

    /// The specification's identifier.
    pub fn id(self) -> HashId {
        match self {
            Hash::Sha256 => HashId::SHA256,
            Hash::Sha384 => HashId::SHA384,
            Hash::Sha512 => HashId::SHA512,
        }
    }

    /// Bytes of a hash value.
    pub fn bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// The name on command lines.
    pub fn label(self) -> &'static str {
        match self {
            Hash::Sha256 => "sha256",
            Hash::Sha384 => "sha384",
            Hash::Sha512 => "sha512",
        }
    }

    fn function(self) -> MessageDigest {
        match self {
            Hash::Sha256 => MessageDigest::sha256(),
            Hash::Sha384 => MessageDigest::sha384(),
            Hash::Sha512 => MessageDigest::sha512(),
        }
    }

    pub(super) fn digest(self, data: &[u8]) -> Result<Vec<u8>, CryptoError> {
        Ok(openssl::hash::hash(self.function(), data)?.to_vec())
    }

    /// HMAC over the parts, one after the other.
    pub(super) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Result<Vec<u8>, CryptoError> {
        let key = PKey::hmac(key)?;
        let mut signer = Signer::new(self.function(), &key)?;
        for part in parts {
            signer.update(part)?;
        }
        Ok(signer.sign_to_vec()?)
    }
}

/// A Diffie-Hellman group of DH-HMAC-CHAP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Group {
    /// No exchange: the responses depend on the keys and challenges alone.
    Null,
    /// 2048 bits.
    Ffdhe2048,
    /// 3072 bits.
    Ffdhe3072,
    /// 4096 bits.
    Ffdhe4096,
    /// 6144 bits.
    Ffdhe6144,
    /// 8192 bits.
    Ffdhe8192,
}

impl Group {
    /// All of them.
    pub const ALL: [Group; 6] =
        [Group::Null, Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096, Group::Ffdhe6144, Group::Ffdhe8192];

    /// The group of an identifier, if it is one.
    pub fn from_id(id: u8) -> Option<Group> {
        Group::ALL.into_iter().find(|group| group.id().0 == id)
    }

    /// The specification's identifier.
    pub fn id(self) -> GroupId {
        match self {
            Group::Null => GroupId::NULL,
            Group::Ffdhe2048 => GroupId::FFDHE2048,
            Group::Ffdhe3072 => GroupId::FFDHE3072,
            Group::Ffdhe4096 => GroupId::FFDHE4096,
            Group::Ffdhe6144 => GroupId::FFDHE6144,
            Group::Ffdhe8192 => GroupId::FFDHE8192,
        }
    }

    /// Bytes of a value of the group; 0 for the null group.
    pub fn bytes(self) -> usize {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 256,
            Group::Ffdhe3072 => 384,
            Group::Ffdhe4096 => 512,
            Group::Ffdhe6144 => 768,
            Group::Ffdhe8192 => 1024,
        }
    }

    /// The name on command lines.
    pub fn label(self) -> &'static str {
        match self {
            Group::Null => "null",
            Group::Ffdhe2048 => "ffdhe2048",
            Group::Ffdhe3072 => "ffdhe3072",
            Group::Ffdhe4096 => "ffdhe4096",
            Group::Ffdhe6144 => "ffdhe6144",
            Group::Ffdhe8192 => "ffdhe8192",
        }
    }
}

/// What an end takes part with: the preferred ones first. A host offers them in this order; a controller chooses the first
/// of its own that the host offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    hashes: Vec<Hash>,
    groups: Vec<Group>,
}

impl Default for Policy {
    /// Everything. The 2048-bit group comes first: it has the strength that a login needs, and an exchange over 8192 bits
    /// takes some thirty times as long. The null group is last: with it the responses are only as good as the keys.
    fn default() -> Policy {
        let groups = Group::ALL.into_iter().skip(1).chain([Group::Null]).collect();
        Policy { hashes: Hash::ALL.to_vec(), groups }
    }
}

/// Why a policy cannot be had.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PolicyError {
    /// Not a name.
    #[error("{found:?} is no {kind} of DH-HMAC-CHAP; there are {known}")]
    Unknown {
        /// Hash or group.
        kind: &'static str,
        /// What was given.
        found: String,
        /// The names there are.
        known: String,
    },
    /// Nothing to choose from.
    #[error("name at least one {0} of DH-HMAC-CHAP")]
    Empty(&'static str),
}

impl Policy {
    /// A policy of these hashes and groups, the preferred ones first.
    ///
    /// # Errors
    /// One of the lists is empty.
    pub fn new(hashes: Vec<Hash>, groups: Vec<Group>) -> Result<Policy, PolicyError> {
        match (hashes.is_empty(), groups.is_empty()) {
            (true, _) => Err(PolicyError::Empty("hash")),
            (_, true) => Err(PolicyError::Empty("DH group")),
            (false, false) => Ok(Policy { hashes, groups }),
        }
    }

    /// Reads lists of names such as `sha384,sha256` and `ffdhe3072,ffdhe2048`; an absent one is the default's.
    ///
    /// # Errors
    /// A name that is none, or an empty list.
    pub fn parse(hashes: Option<&str>, groups: Option<&str>) -> Result<Policy, PolicyError> {
        let default = Policy::default();
        let hashes = match hashes {
            Some(names) => parse_list("hash", names, &Hash::ALL, Hash::label)?,
            None => default.hashes,
        };
        let groups = match groups {
            Some(names) => parse_list("DH group", names, &Group::ALL, Group::label)?,
            None => default.groups,
        };
        Policy::new(hashes, groups)
    }

    /// The hashes, the preferred one first.
    pub fn hashes(&self) -> &[Hash] {
        &self.hashes
    }

    /// The groups, the preferred one first.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }
}

fn parse_list<T: Copy>(
    kind: &'static str,
    names: &str,
    all: &[T],
    label: impl Fn(T) -> &'static str,
) -> Result<Vec<T>, PolicyError> {
    let known = || all.iter().map(|item| label(*item)).collect::<Vec<_>>().join(", ");
    let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let found = all.iter().copied().find(|item| label(*item) == name);
            found.ok_or_else(|| PolicyError::Unknown { kind, found: name.to_owned(), known: known() })
        })
        .collect()
}

/// Lower-case hexadecimal, for tests against known answers.
#[cfg(test)]
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_in_the_order_given() {
        let policy = Policy::parse(Some("sha512, sha256"), Some("ffdhe8192,null")).expect("known names");
        assert_eq!(policy.hashes(), [Hash::Sha512, Hash::Sha256]);
        assert_eq!(policy.groups(), [Group::Ffdhe8192, Group::Null]);
        assert_eq!(Policy::parse(None, None), Ok(Policy::default()));
        let error = Policy::parse(Some("md5"), None).expect_err("no such hash").to_string();
        assert_eq!(error, "\"md5\" is no hash of DH-HMAC-CHAP; there are sha256, sha384, sha512");
        assert_eq!(Policy::parse(None, Some(",")), Err(PolicyError::Empty("DH group")));
    }

    #[test]
    fn identifiers_and_back() {
        assert!(Hash::ALL.into_iter().all(|hash| Hash::from_id(hash.id().0) == Some(hash)));
        assert!(Group::ALL.into_iter().all(|group| Group::from_id(group.id().0) == Some(group)));
        assert_eq!((Hash::from_id(0), Hash::from_id(4), Group::from_id(6)), (None, None, None));
    }
}
