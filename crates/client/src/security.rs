//! Who this host is to the members, and by which keys it shows that.

use std::path::{Path, PathBuf};

use fabric::auth::HostKeys;
use fabric::host::Options;
use fabric::psk::{ConfiguredPsk, Derivation, IdentityVersion, TlsKey};
use tls::Secret;

use crate::error::Error;

/// Name and keys of this host. Default: a random name, no keys. Keys stand in files that nobody but their owner may read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SecurityOptions {
    /// Name of this host (NQN), as targets know it; needed with any key.
    pub host_nqn: Option<String>,
    /// File with the key by which this host authenticates itself (DH-HMAC-CHAP).
    pub dhchap_key_file: Option<PathBuf>,
    /// File with the key by which the target has to authenticate itself; needs `dhchap_key_file`.
    pub dhchap_ctrl_key_file: Option<PathBuf>,
    /// Connect over TLS 1.3, with a key that the authentication makes anew for each association; needs `dhchap_key_file`.
    pub concatenation: bool,
    /// Connect over TLS 1.3, with the pre-shared key in this file; the target must have the same.
    pub tls_key_file: Option<PathBuf>,
    /// Offer the key under the identity of version 0, for targets that know no other.
    pub tls_identity_zero: bool,
    /// Derive keys as nvme-cli before 2.14 does, for targets whose keys were made so.
    pub tls_legacy: bool,
}

impl SecurityOptions {
    /// Puts the host's name and keys into the options of a connection.
    ///
    /// # Errors
    /// A name is none, a key file can't be used, or one thing lacks the other that it needs.
    pub fn apply(&self, options: &mut Options) -> Result<(), Error> {
        self.check()?;
        if let Some(nqn) = &self.host_nqn {
            options.host.nqn = nqn.parse().map_err(|error| Error::Usage(format!("host NQN: {error}")))?;
        }
        if let Some(file) = &self.dhchap_key_file {
            let keys = HostKeys::from_files(file, self.dhchap_ctrl_key_file.as_deref());
            options.security.dhchap = Some(keys.map_err(|error| Error::Usage(error.to_string()))?);
        }
        options.security.concatenation = self.concatenation;
        if let Some(file) = &self.tls_key_file {
            let derivation = if self.tls_legacy { Derivation::Legacy } else { Derivation::Standard };
            let key = tls_key(file)?.retain(&options.host.nqn, derivation);
            let key = key.map_err(|error| Error::Refused(error.to_string()))?;
            let version = if self.tls_identity_zero { IdentityVersion::Zero } else { IdentityVersion::One };
            options.security.tls = Some(TlsKey::Retained { key, version });
        }
        Ok(())
    }

    /// A key without a name would be offered under a random one, and a switch without its key would connect in the clear.
    fn check(&self) -> Result<(), Error> {
        let wrong = |sentence: &str| Err(Error::Usage(sentence.to_owned()));
        let keys = self.dhchap_key_file.is_some() || self.tls_key_file.is_some();
        if keys && self.host_nqn.is_none() {
            return wrong("a key without the name of this host: give its NQN, under which the targets know the key");
        }
        if self.dhchap_key_file.is_none() && (self.dhchap_ctrl_key_file.is_some() || self.concatenation) {
            return wrong("a controller's key, or TLS by concatenation, needs the host's own DH-HMAC-CHAP key");
        }
        if self.concatenation && self.tls_key_file.is_some() {
            return wrong("TLS by concatenation makes its own key: give no file with a pre-shared one");
        }
        Ok(())
    }
}

/// A pre-shared key for TLS from its file.
///
/// # Errors
/// The file can't be used, or holds no key in the interchange format.
pub fn tls_key(file: &Path) -> Result<ConfiguredPsk, Error> {
    let text = Secret::from_file(file).map_err(|error| Error::Usage(error.to_string()))?;
    ConfiguredPsk::parse(&text).map_err(|error| Error::Usage(format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_without_what_it_needs_is_refused() {
        let file = || Some(PathBuf::from("/nowhere/key"));
        let cases = [
            SecurityOptions { dhchap_key_file: file(), ..SecurityOptions::default() },
            SecurityOptions { concatenation: true, ..SecurityOptions::default() },
            SecurityOptions { dhchap_ctrl_key_file: file(), ..SecurityOptions::default() },
            SecurityOptions { host_nqn: Some("no name".into()), ..SecurityOptions::default() },
        ];
        for case in cases {
            let mut options = Options::discovery(([127, 0, 0, 1], 0).into());
            assert!(matches!(case.apply(&mut options), Err(Error::Usage(_))), "{case:?}");
        }
    }
}
