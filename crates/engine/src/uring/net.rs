//! Kernel sockets.

use std::{io, net::SocketAddr};

use crate::{Buf, net::SendBatch};

pub(crate) struct Listener {}

impl Listener {
    pub(crate) fn bind(_addr: SocketAddr) -> io::Result<Listener> {
        panic!("reactor")
    }
    pub(crate) fn local_addr(&self) -> SocketAddr {
        panic!("reactor")
    }
    pub(crate) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        panic!("reactor")
    }
}

pub(crate) struct Stream {}

impl Stream {
    pub(crate) async fn connect(_addr: SocketAddr) -> io::Result<Stream> {
        panic!("reactor")
    }
    pub(crate) async fn recv(&self, _buf: Buf) -> (io::Result<usize>, Buf) {
        panic!("reactor")
    }
    pub(crate) async fn send(&self, _batch: SendBatch) -> (io::Result<()>, SendBatch) {
        panic!("reactor")
    }
    pub(crate) fn shutdown(&self) {}
    pub(crate) fn peer_addr(&self) -> SocketAddr {
        panic!("reactor")
    }
    pub(crate) fn local_addr(&self) -> SocketAddr {
        panic!("reactor")
    }
    pub(crate) fn detach(self) -> Detached {
        panic!("reactor")
    }
}

/// `Send`: holds ids, no `Rc`.
pub(crate) struct Detached {}

impl Detached {
    pub(crate) fn attach(self) -> Stream {
        panic!("reactor")
    }
}
