//! Simulated sockets.

use std::{io, net::SocketAddr, rc::Rc};

use super::Driver;
use crate::{Buf, net::SendBatch};

pub(crate) struct Listener {}

impl Listener {
    pub(crate) fn bind(_driver: &Rc<Driver>, _addr: SocketAddr) -> io::Result<Listener> {
        panic!("simulation")
    }
    pub(crate) fn local_addr(&self) -> SocketAddr {
        panic!("simulation")
    }
    pub(crate) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        panic!("simulation")
    }
}

pub(crate) struct Stream {}

impl Stream {
    pub(crate) async fn connect(_driver: Rc<Driver>, _addr: SocketAddr) -> io::Result<Stream> {
        panic!("simulation")
    }
    pub(crate) async fn recv(&self, _buf: Buf) -> (io::Result<usize>, Buf) {
        panic!("simulation")
    }
    pub(crate) async fn send(&self, _batch: SendBatch) -> (io::Result<()>, SendBatch) {
        panic!("simulation")
    }
    pub(crate) fn shutdown(&self) {}
    pub(crate) fn peer_addr(&self) -> SocketAddr {
        panic!("simulation")
    }
    pub(crate) fn local_addr(&self) -> SocketAddr {
        panic!("simulation")
    }
    pub(crate) fn detach(self) -> Detached {
        panic!("simulation")
    }
}

/// `Send`: holds ids, no `Rc`.
pub(crate) struct Detached {}

impl Detached {
    pub(crate) fn attach(self, _driver: &Rc<Driver>) -> Stream {
        panic!("simulation")
    }
}
