//! A client that knows its server by a certificate, over a socket that blocks: for commands that ask once and end.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::path::Path;

use openssl::ssl::{HandshakeError, Ssl, SslContext, SslMethod, SslStream, SslVerifyMode, SslVersion};
use openssl::x509::X509VerifyResult;
use openssl::x509::verify::X509CheckFlags;

use crate::certificate;
use crate::error::TlsError;

/// What such clients trust, and who they are.
pub struct AskingContext {
    context: SslContext,
}

impl AskingContext {
    /// A client that trusts the authorities of a PEM file, or else the system's. With `own`, PEM files of a certificate chain and
    /// its key, it shows who it is.
    ///
    /// # Errors
    /// A file can't be read or is no PEM, the key is not the certificate's, or OpenSSL can't be set up.
    pub fn new(authorities: Option<&Path>, own: Option<(&Path, &Path)>) -> Result<AskingContext, TlsError> {
        let mut builder = SslContext::builder(SslMethod::tls_client())?;
        // Servers of others may have no newer one.
        builder.set_min_proto_version(Some(SslVersion::TLS1_2))?;
        builder.set_verify(SslVerifyMode::PEER);
        match authorities {
            Some(path) => certificate::trust(&mut builder, path)?,
            None => builder.set_default_verify_paths()?,
        }
        if let Some((chain, key)) = own {
            certificate::show(&mut builder, chain, key)?;
        }
        Ok(AskingContext { context: builder.build() })
    }

    /// Makes a connection secure. The server's certificate has to be of `name`, which may be an IP address.
    ///
    /// # Errors
    /// The certificate is not trusted or not of that name, the handshake failed, or nothing came within the socket's own time.
    pub fn connect(&self, stream: TcpStream, name: &str) -> Result<AskingStream, TlsError> {
        let ssl = self.prepared(name)?;
        ssl.connect(stream).map(AskingStream).map_err(|error| match error {
            HandshakeError::SetupFailure(error) => error.into(),
            HandshakeError::WouldBlock(_) => TlsError::Timeout,
            HandshakeError::Failure(failed) => match failed.ssl().verify_result() {
                X509VerifyResult::OK => TlsError::of(failed.error()),
                result => TlsError::NotTrusted { name: name.to_owned(), reason: result.error_string().to_owned() },
            },
        })
    }

    /// What makes a connection secure to whom the certificate of `name` belongs, for those with streams of their own.
    ///
    /// # Errors
    /// OpenSSL can't be set up.
    pub fn prepared(&self, name: &str) -> Result<Ssl, TlsError> {
        let mut ssl = Ssl::new(&self.context)?;
        let checked = ssl.param_mut();
        checked.set_hostflags(X509CheckFlags::NO_PARTIAL_WILDCARDS);
        match name.parse::<IpAddr>() {
            Ok(address) => checked.set_ip(address)?,
            Err(_) => {
                checked.set_host(name)?;
                ssl.set_hostname(name)?;
            }
        }
        Ok(ssl)
    }
}

/// A connection that was made secure.
pub struct AskingStream(SslStream<TcpStream>);

impl Read for AskingStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes).map_err(in_words)
    }
}

impl Write for AskingStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(in_words)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The same error without OpenSSL's numbers, where it is OpenSSL's: a server tells so that it wants a certificate.
fn in_words(error: io::Error) -> io::Error {
    let told = error.get_ref().and_then(|inner| inner.downcast_ref()).map(TlsError::of);
    told.map_or(error, io::Error::from)
}
