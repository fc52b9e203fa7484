//! Certificates and their private keys, in PEM files.

use std::path::{Path, PathBuf};

use openssl::error::ErrorStack;
use openssl::pkey::{PKey, Private};
use openssl::ssl::SslContextBuilder;

use crate::error::TlsError;
use crate::secret::Secret;

/// The longest file of a private key. Chosen: many times that of the longest keys, with its certificates beside it.
const PEM_BYTES_MAX: u64 = 64 << 10;

/// Where a server has its certificate from, and whose certificates it asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateFiles {
    /// The certificate chain.
    pub chain: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// Authorities: only who shows a certificate that one of them has signed is let in.
    pub authorities: Option<PathBuf>,
}

/// Has connections show the certificate chain of a file.
pub(crate) fn show(builder: &mut SslContextBuilder, chain: &Path, key: &Path) -> Result<(), TlsError> {
    builder.set_certificate_chain_file(chain).map_err(in_file(chain))?;
    let private = private_key(key)?;
    builder.set_private_key(&private).map_err(in_file(key))?;
    builder.check_private_key().map_err(in_file(key))
}

/// Has connections trust the authorities of a file.
pub(crate) fn trust(builder: &mut SslContextBuilder, authorities: &Path) -> Result<(), TlsError> {
    builder.set_ca_file(authorities).map_err(in_file(authorities))
}

/// The key in a PEM file, which is private: nobody but its owner may read it or put another in its place.
///
/// # Errors
/// [`TlsError::KeyFile`] where others can get at the file or the file can't be read, [`TlsError::File`] where it holds no key.
pub fn private_key(path: &Path) -> Result<PKey<Private>, TlsError> {
    let pem = Secret::from_file_within(path, PEM_BYTES_MAX).map_err(|error| TlsError::KeyFile(error.to_string()))?;
    PKey::private_key_from_pem(pem.expose()).map_err(in_file(path))
}

fn in_file(path: &Path) -> impl Fn(ErrorStack) -> TlsError {
    move |error| TlsError::File { path: path.to_owned(), reason: error.to_string() }
}
