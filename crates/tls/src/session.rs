//! OpenSSL's callbacks for external keys of TLS 1.3, which its Rust crate does not wrap: the only `unsafe` of TLS.
//!
//! The old PSK callbacks know SHA-256 only; these take a session object that names cipher suite and key.

use std::ffi::{c_int, c_uchar, c_uint};
use std::ptr::{self, null};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use foreign_types::ForeignTypeRef;
use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{Ssl, SslContextBuilder, SslRef};
use openssl_sys::{
    EVP_MD, EVP_MD_size, SSL, SSL_CIPHER, SSL_CTX, SSL_SESSION, SSL_SESSION_free, SSL_client_hello_get0_ext,
    TLS1_3_VERSION,
};

use crate::psk::{FindPsk, Psk};

type FindSession = unsafe extern "C" fn(*mut SSL, *const c_uchar, usize, *mut *mut SSL_SESSION) -> c_int;
type UseSession =
    unsafe extern "C" fn(*mut SSL, *const EVP_MD, *mut *const c_uchar, *mut usize, *mut *mut SSL_SESSION) -> c_int;

// OpenSSL 1.1.1 and later, ssl.h: as declared there.
unsafe extern "C" {
    fn SSL_CTX_set_psk_find_session_callback(context: *mut SSL_CTX, callback: Option<FindSession>);
    fn SSL_CTX_set_psk_use_session_callback(context: *mut SSL_CTX, callback: Option<UseSession>);
    fn SSL_SESSION_new() -> *mut SSL_SESSION;
    fn SSL_SESSION_set1_master_key(session: *mut SSL_SESSION, key: *const c_uchar, length: usize) -> c_int;
    fn SSL_SESSION_set_cipher(session: *mut SSL_SESSION, cipher: *const SSL_CIPHER) -> c_int;
    fn SSL_SESSION_set_protocol_version(session: *mut SSL_SESSION, version: c_int) -> c_int;
    fn SSL_CIPHER_find(ssl: *mut SSL, code: *const c_uchar) -> *const SSL_CIPHER;
}

/// Keys of one connection. It is attached to the connection's `Ssl` and lives as long.
pub(crate) enum Keys {
    /// A client's: the one it offers.
    Client(Arc<Psk>),
    /// A server's: where it looks, and what the client has offered.
    Server(Arc<dyn FindPsk>, Mutex<Offered>),
}

/// What a client has offered.
#[derive(Default)]
pub(crate) struct Offered {
    /// The key that was found last: OpenSSL asks for one identity after the other, until one will do.
    pub found: Option<Arc<Psk>>,
    /// An identity without a key, as much of it as a log line should have.
    pub unknown: Option<String>,
    /// Identities that OpenSSL has asked for.
    asked: usize,
    /// There are more identities than [`IDENTITIES_MAX`].
    pub too_many: bool,
}

/// The extension `pre_shared_key` (RFC 8446 §4.2).
const EXTENSION_PSK: c_uint = 41;
/// Identities of a ClientHello that are looked at. Chosen: a host has one key for a subsystem, and perhaps the one before it, in
/// both versions and by both derivations; each costs the server computations before the client has shown anything.
pub(crate) const IDENTITIES_MAX: usize = 8;
/// The age of a ticket, behind each identity.
const AGE_BYTES: usize = 4;
/// As much of a foreign identity as is kept for the log. Derived: the names of a usual one.
const UNKNOWN_BYTES_MAX: usize = 160;

fn index() -> Result<Index<Ssl, Keys>, ErrorStack> {
    static INDEX: OnceLock<Index<Ssl, Keys>> = OnceLock::new();
    if let Some(index) = INDEX.get() {
        return Ok(*index);
    }
    let index = Ssl::new_ex_index()?;
    Ok(*INDEX.get_or_init(|| index))
}

/// Makes connections of a server find keys in what [`attach`] gives them.
pub(crate) fn serve(context: &mut SslContextBuilder) {
    // SAFETY: the context is alive, and the callback has the type that OpenSSL declares for it.
    unsafe { SSL_CTX_set_psk_find_session_callback(context.as_ptr(), Some(find_session)) }
}

/// Makes connections of a client offer the key that [`attach`] gives them.
pub(crate) fn offer(context: &mut SslContextBuilder) {
    // SAFETY: the context is alive, and the callback has the type that OpenSSL declares for it.
    unsafe { SSL_CTX_set_psk_use_session_callback(context.as_ptr(), Some(use_session)) }
}

/// Gives a connection its keys, before its handshake.
pub(crate) fn attach(ssl: &mut Ssl, keys: Keys) -> Result<(), ErrorStack> {
    ssl.set_ex_data(index()?, keys);
    Ok(())
}

/// What was attached.
pub(crate) fn keys_of(ssl: &SslRef) -> Option<&Keys> {
    ssl.ex_data(index().ok()?)
}

/// The identities that a client offers, while its ClientHello is looked at; nothing of a malformed extension. `None`: there are
/// too many.
pub(crate) fn identities_of(ssl: &SslRef) -> Option<Vec<&[u8]>> {
    let (mut place, mut length) = (null(), 0);
    // SAFETY: `ssl` is alive, and both places are writable. What is written, if 1 is returned, points into the ClientHello,
    // which OpenSSL keeps while its callback runs; the borrow of `ssl` is no longer than that.
    let extension = unsafe {
        match SSL_client_hello_get0_ext(ssl.as_ptr(), EXTENSION_PSK, &mut place, &mut length) {
            1 if !place.is_null() => std::slice::from_raw_parts(place, length),
            _ => &[],
        }
    };
    let identities = parse_identities(extension).unwrap_or_default();
    if identities.len() <= IDENTITIES_MAX {
        return Some(identities);
    }
    if let Some(Keys::Server(_, offered)) = keys_of(ssl) {
        offered.lock().unwrap_or_else(PoisonError::into_inner).too_many = true;
    }
    None
}

/// `OfferedPsks` of RFC 8446 §4.2.11: a list of identities, each with four bytes behind it, and what comes after the list.
fn parse_identities(extension: &[u8]) -> Option<Vec<&[u8]>> {
    let (length, rest) = extension.split_first_chunk()?;
    let mut list = rest.get(..usize::from(u16::from_be_bytes(*length)))?;
    let mut identities = Vec::new();
    while let Some((length, rest)) = list.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length));
        identities.push(rest.get(..length)?);
        list = rest.get(length + AGE_BYTES..)?;
    }
    Some(identities)
}

/// Server: the client offers `identity`. Writes the session of its key, or null if there is none; 0 is a failure that ends
/// the handshake.
///
/// # Safety
/// Called by OpenSSL: `ssl` is the connection, `identity` has `length` readable bytes, `session` is writable.
unsafe extern "C" fn find_session(
    ssl: *mut SSL,
    identity: *const c_uchar,
    length: usize,
    session: *mut *mut SSL_SESSION,
) -> c_int {
    // SAFETY: `session` is writable for the time of the call.
    unsafe { *session = ptr::null_mut() };
    if identity.is_null() {
        return 1;
    }
    // SAFETY: OpenSSL lends `length` bytes for the time of the call, and null was excluded.
    let identity = unsafe { std::slice::from_raw_parts(identity, length) };
    // SAFETY: `ssl` is alive for the time of the call, and only shared borrows of it are made here.
    let connection = unsafe { SslRef::from_ptr(ssl) };
    let Some(Keys::Server(keys, offered)) = keys_of(connection) else { return 0 };
    let mut offered = offered.lock().unwrap_or_else(PoisonError::into_inner);
    offered.asked += 1;
    // A ClientHello comes again where the server asks for another key share. This holds also for a malformed extension, whose
    // identities are asked for up to where it is wrong.
    if offered.asked > 2 * IDENTITIES_MAX {
        offered.too_many = true;
        return 0;
    }
    let Some(psk) = keys.find_psk(identity) else {
        let shown = &identity[..identity.len().min(UNKNOWN_BYTES_MAX)];
        offered.unknown = Some(shown.escape_ascii().to_string());
        return 1;
    };
    // SAFETY: `ssl` is alive.
    let made = unsafe { session_of(ssl, &psk) };
    if made.is_null() {
        return 0;
    }
    offered.found = Some(psk);
    // SAFETY: as above; the reference to the session goes to OpenSSL, which frees it.
    unsafe { *session = made };
    1
}

/// Client: which key to offer. With `digest`, the server has chosen a cipher suite of that hash (after a
/// HelloRetryRequest): a key of another can not be used.
///
/// # Safety
/// Called by OpenSSL: `ssl` is the connection, `digest` is null or a digest, the other three are writable.
unsafe extern "C" fn use_session(
    ssl: *mut SSL,
    digest: *const EVP_MD,
    identity: *mut *const c_uchar,
    length: *mut usize,
    session: *mut *mut SSL_SESSION,
) -> c_int {
    // SAFETY: all three are writable for the time of the call.
    unsafe {
        *session = ptr::null_mut();
        *identity = null();
        *length = 0;
    }
    // SAFETY: `ssl` is alive for the time of the call, and only shared borrows of it are made here.
    let connection = unsafe { SslRef::from_ptr(ssl) };
    let Some(Keys::Client(psk)) = keys_of(connection) else { return 0 };
    // SAFETY: not null, so it is a digest that OpenSSL keeps alive for the time of the call.
    if !digest.is_null() && unsafe { EVP_MD_size(digest) } != psk.suite().hash_bytes() as c_int {
        return 1;
    }
    // SAFETY: `ssl` is alive.
    let made = unsafe { session_of(ssl, psk) };
    if made.is_null() {
        return 0;
    }
    // SAFETY: as above. The identity lies in what is attached to the connection, which neither moves nor changes until the
    // connection is freed; the reference to the session goes to OpenSSL, which frees it.
    unsafe {
        *identity = psk.identity().as_ptr();
        *length = psk.identity().len();
        *session = made;
    }
    1
}

/// A session object with the key: a new reference, or null if OpenSSL failed.
///
/// # Safety
/// `ssl` is alive.
unsafe fn session_of(ssl: *mut SSL, psk: &Psk) -> *mut SSL_SESSION {
    let code = psk.suite().code();
    // SAFETY: `ssl` is alive, `code` has the two bytes that a TLS cipher suite's code has; what is returned is static.
    let cipher = unsafe { SSL_CIPHER_find(ssl, code.as_ptr()) };
    // SAFETY: takes nothing.
    let session = unsafe { SSL_SESSION_new() };
    if cipher.is_null() || session.is_null() {
        // SAFETY: null, or the one reference made above.
        unsafe { SSL_SESSION_free(session) };
        return ptr::null_mut();
    }
    let key = psk.key().expose();
    // SAFETY: the session is ours alone; the key is copied from `key.len()` readable bytes; the cipher is static.
    let done = unsafe {
        SSL_SESSION_set1_master_key(session, key.as_ptr(), key.len()) == 1
            && SSL_SESSION_set_cipher(session, cipher) == 1
            && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1
    };
    if done {
        return session;
    }
    // SAFETY: the one reference made above.
    unsafe { SSL_SESSION_free(session) };
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_found_in_what_is_well_formed_and_only_there() {
        let good = [0, 14, 0, 2, b'a', b'b', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 33];
        assert_eq!(parse_identities(&good), Some(vec![&b"ab"[..], b""]));
        for length in 0..16 {
            assert_eq!(parse_identities(&good[..length]), None, "{length}");
        }
        for (place, byte) in [(1, 13), (1, 200), (3, 3), (3, 255), (11, 1)] {
            let mut changed = good;
            changed[place] = byte;
            assert_eq!(parse_identities(&changed), None, "byte {place} is {byte}");
        }
    }
}
