//! A TCP connection under TLS: the tunnel and the socket.
//!
//! Invariants:
//! - Ciphertext is sent in the order in which the tunnel made it: one send at a time, and whoever sends takes all there is.
//!   What the tunnel has to say by itself (an answer to a key update) goes with the next data, as RFC 8446 §4.6.3 lets it.
//! - The tunnel is never borrowed across an await.
//! - Nothing is allocated per command: buffers come from the pool, and an idle connection holds one of [`IDLE_BYTES`].

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use engine::Buf;
use engine::net::{SendBatch, TcpStream};
use engine::task;

use crate::error::TlsError;
use crate::psk::Psk;
use crate::tunnel::{CertificateContext, Got, RECORD_BYTES, ServerContext, Tunnel};

/// What receives ciphertext while little comes. Chosen: a capsule with a page of data arrives in two pieces.
const IDLE_BYTES: usize = 4 << 10;
/// What receives ciphertext while much comes. Chosen: some four records.
const BUSY_BYTES: usize = 64 << 10;
/// Ciphertext of one send. Chosen: four buffers of the tunnel's, about 196 KiB of plaintext.
const SEND_BYTES: usize = 256 << 10;
/// What a peer may send before the handshake is complete. Derived: a ClientHello with the longest identity is below 2 KiB;
/// the rest is for hosts that send their first PDU right behind.
pub const HANDSHAKE_BYTES_MAX: usize = 16 << 10;

/// See the module. Cloning gives the same connection.
#[derive(Clone)]
pub struct TlsStream {
    inner: Rc<Inner>,
}

struct Inner {
    stream: TcpStream,
    tunnel: RefCell<Tunnel>,
    psk: Option<Arc<Psk>>,
    /// A send is under way.
    sending: Cell<bool>,
    closing: Cell<bool>,
    /// Kept between sends, so that a send allocates nothing.
    out: Cell<Option<SendBatch>>,
}

impl TlsStream {
    /// Makes a connection secure, as the one who made it. The caller bounds the time.
    pub async fn connect(stream: TcpStream, psk: Arc<Psk>) -> Result<TlsStream, TlsError> {
        TlsStream::handshake(stream, Tunnel::client(psk)?, Buf::default()).await
    }

    /// The same as the one who accepted it, who may have received `first` already. The caller bounds the time.
    pub async fn accept(stream: TcpStream, server: &ServerContext, first: Buf) -> Result<TlsStream, TlsError> {
        TlsStream::handshake(stream, Tunnel::server(server)?, first).await
    }

    /// The same with a certificate in place of keys. The caller bounds the time.
    pub async fn accept_certified(stream: TcpStream, server: &CertificateContext) -> Result<TlsStream, TlsError> {
        TlsStream::handshake(stream, Tunnel::certified(server)?, Buf::default()).await
    }

    async fn handshake(stream: TcpStream, mut tunnel: Tunnel, first: Buf) -> Result<TlsStream, TlsError> {
        let mut received = first.len();
        tunnel.feed(first);
        loop {
            let step = tunnel.handshake();
            if let Some(output) = tunnel.take_output() {
                let mut batch = SendBatch::new();
                batch.view(output.freeze());
                let (sent, _) = stream.send(batch).await;
                // An alert that does not leave must not hide what it was to tell.
                if step.is_ok() {
                    sent.map_err(|error| TlsError::Socket(error.to_string()))?;
                }
            }
            if step? {
                break;
            }
            if received >= HANDSHAKE_BYTES_MAX {
                return Err(TlsError::HandshakeTooLong(HANDSHAKE_BYTES_MAX));
            }
            drop(tunnel.take_input());
            let (result, buf) = stream.recv(Buf::with_capacity(IDLE_BYTES)).await;
            match result {
                Ok(0) => return Err(tunnel.handshake_cut()),
                Ok(bytes) => received += bytes,
                Err(error) => return Err(TlsError::Socket(error.to_string())),
            }
            tunnel.feed(buf);
        }
        let psk = tunnel.psk();
        if psk.is_none() && !tunnel.is_certified() {
            return Err(TlsError::KeyNotTaken);
        }
        let inner = Inner {
            stream,
            tunnel: RefCell::new(tunnel),
            psk,
            sending: Cell::new(false),
            closing: Cell::new(false),
            out: Cell::new(None),
        };
        Ok(TlsStream { inner: Rc::new(inner) })
    }

    /// The key it was made with; none where a certificate stood for it.
    pub fn psk(&self) -> Option<&Arc<Psk>> {
        self.inner.psk.as_ref()
    }

    /// The socket, for its addresses.
    pub fn socket(&self) -> &TcpStream {
        &self.inner.stream
    }

    /// As [`TcpStream::recv`]; `Ok(0)` only after a close_notify.
    pub async fn recv(&self, mut buf: Buf) -> (io::Result<usize>, Buf) {
        if buf.len() == buf.capacity() {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "receive into a buffer without spare capacity");
            return (Err(error), buf);
        }
        loop {
            match self.decrypt(&mut buf) {
                Ok(None) => {}
                Ok(Some(bytes)) => return (Ok(bytes), buf),
                Err(error) => {
                    self.send_last_word();
                    return (Err(error.into()), buf);
                }
            }
            let input = self.inner.tunnel.borrow_mut().take_input();
            let (result, input) = self.inner.stream.recv(next_input(input)).await;
            match result {
                Ok(0) => return (Err(TlsError::Truncated.into()), buf),
                Ok(_) => self.inner.tunnel.borrow_mut().feed(input),
                Err(error) => return (Err(error), buf),
            }
        }
    }

    /// Decrypts what has come in, as much as fits; `None`: more must come first.
    fn decrypt(&self, buf: &mut Buf) -> Result<Option<usize>, TlsError> {
        let mut tunnel = self.inner.tunnel.borrow_mut();
        let before = buf.len();
        while buf.len() < buf.capacity() {
            let got = tunnel.read(buf.spare_mut());
            let read = buf.len() - before;
            match got {
                Ok(Got::Bytes(bytes)) => buf.set_len(buf.len() + bytes),
                // What came before an end or an error is good; the next read finds it again.
                _ if read > 0 => break,
                Ok(Got::Nothing) => return Ok(None),
                Ok(Got::Closed) => return Ok(Some(0)),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(buf.len() - before))
    }

    /// As [`TcpStream::send`].
    pub async fn send(&self, batch: SendBatch) -> (io::Result<()>, SendBatch) {
        self.inner.sending.set(true);
        let result = self.encrypt_and_send(&batch).await;
        self.inner.sending.set(false);
        let mut batch = batch;
        batch.clear();
        (result, batch)
    }

    async fn encrypt_and_send(&self, batch: &SendBatch) -> io::Result<()> {
        let mut out = self.inner.out.take().unwrap_or_default();
        let mut gathered = Buf::default();
        for mut slice in batch.slices() {
            while !slice.is_empty() {
                let bytes = if gathered.is_empty() && slice.len() >= RECORD_BYTES {
                    self.encrypt(&slice[..RECORD_BYTES], &mut out)?;
                    RECORD_BYTES
                } else {
                    if gathered.capacity() == 0 {
                        gathered = Buf::with_capacity(RECORD_BYTES);
                    }
                    let bytes = slice.len().min(RECORD_BYTES - gathered.len());
                    gathered.extend_from_slice(&slice[..bytes]);
                    if gathered.len() == RECORD_BYTES {
                        self.encrypt(&gathered, &mut out)?;
                        gathered.set_len(0);
                    }
                    bytes
                };
                slice = &slice[bytes..];
                if out.len() >= SEND_BYTES {
                    let (result, returned) = self.inner.stream.send(out).await;
                    result?;
                    out = returned;
                }
            }
        }
        if !gathered.is_empty() {
            self.encrypt(&gathered, &mut out)?;
        }
        if let Some(output) = self.inner.tunnel.borrow_mut().take_output() {
            out.view(output.freeze());
        }
        let (result, out) = self.inner.stream.send(out).await;
        self.inner.out.set(Some(out));
        result
    }

    fn encrypt(&self, plain: &[u8], out: &mut SendBatch) -> Result<(), TlsError> {
        let mut tunnel = self.inner.tunnel.borrow_mut();
        if !tunnel.has_room()
            && let Some(output) = tunnel.take_output()
        {
            out.view(output.freeze());
        }
        tunnel.write(plain)
    }

    /// Sends what the tunnel has to say by itself, if no data is on its way and the socket has room at once: the connection
    /// ends either way, and nobody waits for a peer that does not listen.
    fn send_last_word(&self) {
        if self.inner.sending.get() || !task::in_world() {
            return;
        }
        let Some(output) = self.inner.tunnel.borrow_mut().take_output() else { return };
        let mut batch = SendBatch::new();
        batch.view(output.freeze());
        // Whether it left or not: the peer sees an end, in order or not.
        let _ = pin!(self.inner.stream.send(batch)).poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Ends both directions, with a close_notify where no data is on its way: what waits on them ends.
    pub fn shutdown(&self) {
        if self.inner.closing.replace(true) {
            return;
        }
        if !self.inner.sending.get() {
            self.inner.tunnel.borrow_mut().close();
            self.send_last_word();
        }
        self.inner.stream.shutdown();
    }
}

/// The buffer for the next receive: large where the last was filled, small where little came.
fn next_input(mut last: Buf) -> Buf {
    let wanted = match (last.capacity(), last.len()) {
        (0, _) => IDLE_BYTES,
        (IDLE_BYTES, IDLE_BYTES) => BUSY_BYTES,
        (BUSY_BYTES, bytes) if bytes < IDLE_BYTES => IDLE_BYTES,
        (capacity, _) => capacity,
    };
    if wanted != last.capacity() {
        return Buf::with_capacity(wanted);
    }
    last.set_len(0);
    last
}
