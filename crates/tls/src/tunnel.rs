//! TLS 1.3 of one connection without I/O: ciphertext in and out in buffers, plaintext in and out in slices.
//!
//! Invariants:
//! - By a key: only TLS 1.3 with a pre-shared key and an ephemeral key exchange (psk_dhe_ke), one of the two AES-GCM
//!   suites; no certificates, no tickets, no early data (NVMe/TCP 1.0c §3.6.1). A handshake that ends without the key is refused.
//! - What waits here is bounded: one buffer of ciphertext that came in, one that is to go out.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use engine::Buf;
use openssl::error::ErrorStack;
use openssl::ssl::{
    ClientHelloResponse, ErrorCode, Ssl, SslAlert, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions,
    SslSessionCacheMode, SslStream, SslVerifyMode, SslVersion,
};

use crate::certificate::{self, CertificateFiles};
use crate::error::TlsError;
use crate::psk::{FindPsk, Psk, Suite};
use crate::session::{self, IDENTITIES_MAX, Keys, Offered};

/// Plaintext of one record (RFC 8446 §5.1).
pub const RECORD_BYTES: usize = 16 << 10;
/// What a record adds to it: header, content type, tag (RFC 8446 §5.2).
const RECORD_OVERHEAD: usize = 5 + 1 + 16;
/// What OpenSSL may put before it by itself: the answer to a key update.
const ASIDE_BYTES: usize = 64;
/// Ciphertext that goes out in one buffer. Chosen: three whole records, or any handshake flight.
const OUTPUT_BYTES: usize = 64 << 10;

const _: () = assert!(OUTPUT_BYTES >= 3 * (RECORD_BYTES + RECORD_OVERHEAD));

/// What a read has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Got {
    /// So many bytes.
    Bytes(usize),
    /// Nothing before more ciphertext comes.
    Nothing,
    /// The peer has closed in order.
    Closed,
}

/// The two ends of OpenSSL's pipe.
#[derive(Default)]
struct Wire {
    input: Buf,
    taken: usize,
    output: Buf,
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = into.len().min(self.input.len() - self.taken);
        if bytes == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        into[..bytes].copy_from_slice(&self.input[self.taken..self.taken + bytes]);
        self.taken += bytes;
        Ok(bytes)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.output.capacity() == 0 {
            self.output = Buf::with_capacity(OUTPUT_BYTES);
        }
        // Whoever writes makes room first; what comes unasked (alerts, answers to key updates) may fill what is left, and
        // a peer that makes us speak without listening gets no further.
        if bytes.len() > self.output.capacity() - self.output.len() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What all connections of a server have in common.
#[derive(Clone)]
pub struct ServerContext {
    context: SslContext,
    keys: Arc<dyn FindPsk>,
}

impl ServerContext {
    /// A server that lets in who has one of `keys`.
    ///
    /// # Errors
    /// OpenSSL can't be set up: it is older than 1.1.1, or its configuration forbids TLS 1.3.
    pub fn new(keys: Arc<dyn FindPsk>) -> Result<ServerContext, TlsError> {
        let mut builder = context(SslMethod::tls_server())?;
        builder.set_ciphersuites(&Suite::ALL.map(Suite::name).join(":"))?;
        session::serve(&mut builder);
        let known = keys.clone();
        // OpenSSL takes the first suite that both have, and then drops keys of another hash: the key must come first.
        builder.set_client_hello_callback(move |ssl, alert| {
            let Some(identities) = session::identities_of(ssl) else {
                *alert = SslAlert::ILLEGAL_PARAMETER;
                return Err(ErrorStack::get());
            };
            if let Some(psk) = identities.into_iter().find_map(|identity| known.find_psk(identity)) {
                ssl.set_ciphersuites(psk.suite().name())?;
            }
            Ok(ClientHelloResponse::SUCCESS)
        });
        Ok(ServerContext { context: builder.build(), keys })
    }
}

/// A server that shows a certificate.
#[derive(Clone)]
pub struct CertificateContext {
    context: SslContext,
}

impl CertificateContext {
    /// A server with the certificate, the key and the authorities that are in these PEM files now.
    ///
    /// # Errors
    /// A file can't be read or is no PEM, the key is not the certificate's, or OpenSSL can't be set up.
    pub fn new(files: &CertificateFiles) -> Result<CertificateContext, TlsError> {
        let mut builder = context(SslMethod::tls_server())?;
        certificate::show(&mut builder, &files.chain, &files.key)?;
        if let Some(authorities) = &files.authorities {
            certificate::trust(&mut builder, authorities)?;
            builder.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
        }
        Ok(CertificateContext { context: builder.build() })
    }

    /// For who has a socket of another kind than the engine's: the control plane, on tokio.
    pub fn context(&self) -> &SslContext {
        &self.context
    }
}

fn context(method: SslMethod) -> Result<SslContextBuilder, ErrorStack> {
    let mut builder = SslContextBuilder::new(method)?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_options(SslOptions::NO_TICKET | SslOptions::NO_COMPRESSION);
    builder.set_num_tickets(0)?;
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    // An idle connection holds no record buffers.
    builder.set_mode(SslMode::RELEASE_BUFFERS | SslMode::ENABLE_PARTIAL_WRITE | SslMode::ACCEPT_MOVING_WRITE_BUFFER);
    Ok(builder)
}

/// Clients differ in their suite only.
fn client_context(suite: Suite) -> Result<SslContext, ErrorStack> {
    static CONTEXTS: [OnceLock<SslContext>; 2] = [const { OnceLock::new() }; 2];
    let place = &CONTEXTS[suite as usize];
    if let Some(context) = place.get() {
        return Ok(context.clone());
    }
    let mut builder = context(SslMethod::tls_client())?;
    builder.set_ciphersuites(suite.name())?;
    // There is no authority: whatever certificate a server may show in place of the key is refused.
    builder.set_verify(SslVerifyMode::PEER);
    session::offer(&mut builder);
    Ok(place.get_or_init(|| builder.build()).clone())
}

/// See the module.
pub(crate) struct Tunnel {
    stream: SslStream<Wire>,
    established: bool,
    /// A certificate stands for the key.
    certified: bool,
}

impl Tunnel {
    /// The end that begins, with the key it offers.
    pub fn client(psk: Arc<Psk>) -> Result<Tunnel, TlsError> {
        let mut ssl = Ssl::new(client_context(psk.suite())?.as_ref())?;
        session::attach(&mut ssl, Keys::Client(psk))?;
        ssl.set_connect_state();
        Tunnel::new(ssl)
    }

    /// The end that answers.
    pub fn server(server: &ServerContext) -> Result<Tunnel, TlsError> {
        let mut ssl = Ssl::new(&server.context)?;
        session::attach(&mut ssl, Keys::Server(server.keys.clone(), Mutex::new(Offered::default())))?;
        ssl.set_accept_state();
        Tunnel::new(ssl)
    }

    /// The end that answers with a certificate.
    pub fn certified(server: &CertificateContext) -> Result<Tunnel, TlsError> {
        let mut ssl = Ssl::new(&server.context)?;
        ssl.set_accept_state();
        Ok(Tunnel { certified: true, ..Tunnel::new(ssl)? })
    }

    fn new(ssl: Ssl) -> Result<Tunnel, TlsError> {
        Ok(Tunnel { stream: SslStream::new(ssl, Wire::default())?, established: false, certified: false })
    }

    /// Goes on with the handshake as far as what has come in lets it; true once it is complete.
    pub fn handshake(&mut self) -> Result<bool, TlsError> {
        if self.established {
            return Ok(true);
        }
        match self.stream.do_handshake() {
            Ok(()) if self.certified || self.stream.ssl().session_reused() => {
                self.established = true;
                Ok(true)
            }
            // Without the key nobody has shown who they are, whatever else they have agreed on.
            Ok(()) => Err(self.key_error(TlsError::KeyNotTaken)),
            Err(error) if is_waiting(&error) => Ok(false),
            Err(error) => Err(self.key_error(TlsError::of(&error))),
        }
    }

    /// Whether a certificate stands for the key.
    pub fn is_certified(&self) -> bool {
        self.certified
    }

    /// What it means that the peer closes the connection during the handshake.
    pub fn handshake_cut(&self) -> TlsError {
        match session::keys_of(self.stream.ssl()) {
            Some(Keys::Client(_)) => TlsError::Refused("it closed the connection".to_owned()),
            _ => TlsError::Truncated,
        }
    }

    /// The error in the words of the keys, where they are its cause.
    fn key_error(&self, error: TlsError) -> TlsError {
        if self.certified {
            return error;
        }
        let Some(Keys::Server(_, offered)) = session::keys_of(self.stream.ssl()) else {
            return match error {
                TlsError::Protocol(reason) => TlsError::Refused(reason),
                error => error,
            };
        };
        let offered = offered.lock().unwrap_or_else(PoisonError::into_inner);
        if offered.too_many {
            return TlsError::TooManyIdentities(IDENTITIES_MAX);
        }
        match (&offered.found, &offered.unknown) {
            (Some(found), _) if error.is_wrong_binder() => {
                TlsError::WrongKey(String::from_utf8_lossy(found.identity()).into_owned())
            }
            (None, Some(unknown)) => TlsError::UnknownIdentity(unknown.clone()),
            (None, None) if self.stream.ssl().version2() == Some(SslVersion::TLS1_3) => match error {
                TlsError::Protocol(reason) if reason.contains("no suitable") => TlsError::NoKey,
                error => error,
            },
            _ => error,
        }
    }

    /// The key that the handshake was made with.
    pub fn psk(&self) -> Option<Arc<Psk>> {
        match session::keys_of(self.stream.ssl())? {
            Keys::Client(psk) => Some(psk.clone()),
            Keys::Server(_, offered) => offered.lock().unwrap_or_else(PoisonError::into_inner).found.clone(),
        }
        .filter(|_| self.established)
    }

    /// Takes ciphertext. What was given before must have been used up: [`Tunnel::handshake`] or [`Tunnel::read`] said so.
    pub fn feed(&mut self, input: Buf) {
        let wire = self.stream.get_mut();
        debug_assert_eq!(wire.taken, wire.input.len(), "ciphertext was fed before the last was used up");
        wire.input = input;
        wire.taken = 0;
    }

    /// The buffer fed last, for the next receive, once it is used up.
    pub fn take_input(&mut self) -> Buf {
        let wire = self.stream.get_mut();
        debug_assert_eq!(wire.taken, wire.input.len(), "ciphertext was taken back before it was used up");
        wire.taken = 0;
        std::mem::take(&mut wire.input)
    }

    /// Decrypts into `into`, at most one record.
    pub fn read(&mut self, into: &mut [u8]) -> Result<Got, TlsError> {
        match self.stream.ssl_read(into) {
            Ok(bytes) => Ok(Got::Bytes(bytes)),
            Err(error) if error.code() == ErrorCode::ZERO_RETURN => Ok(Got::Closed),
            Err(error) if is_waiting(&error) => Ok(Got::Nothing),
            Err(error) => Err(TlsError::of(&error)),
        }
    }

    /// Whether the output has room for one more record; if not it must be taken.
    pub fn has_room(&mut self) -> bool {
        let output = &self.stream.get_mut().output;
        output.capacity() == 0 || output.capacity() - output.len() >= RECORD_BYTES + RECORD_OVERHEAD + ASIDE_BYTES
    }

    /// Encrypts a record's worth of bytes or less, all of them. There must be room.
    pub fn write(&mut self, plain: &[u8]) -> Result<(), TlsError> {
        debug_assert!(plain.len() <= RECORD_BYTES && !plain.is_empty());
        let written = self.stream.ssl_write(plain).map_err(|error| TlsError::of(&error))?;
        debug_assert_eq!(written, plain.len(), "there was room");
        Ok(())
    }

    /// Ciphertext to send, if there is any.
    pub fn take_output(&mut self) -> Option<Buf> {
        let output = std::mem::take(&mut self.stream.get_mut().output);
        (!output.is_empty()).then_some(output)
    }

    /// Says to the peer that nothing more will come (RFC 8446 §6.1).
    pub fn close(&mut self) {
        if self.established {
            // If it can't be said the peer sees the connection cut, as it would anyway.
            let _ = self.stream.shutdown();
        }
    }
}

fn is_waiting(error: &openssl::ssl::Error) -> bool {
    matches!(error.code(), ErrorCode::WANT_READ)
}
