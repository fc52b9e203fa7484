//! Simulated sockets, as the dispatch in `net` holds them.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;

use super::driver::{Driver, State};
use super::id::ConnectId;
use super::network::{ListenerId, Socket};
use crate::runtime::{self, Context};
use crate::{Buf, net::SendBatch};

pub(crate) struct Listener {
    driver: Rc<Driver>,
    id: ListenerId,
    addr: SocketAddr,
}

impl Listener {
    pub(crate) fn bind(driver: &Rc<Driver>, addr: SocketAddr) -> io::Result<Listener> {
        let node = driver.node()?;
        let (id, addr) = driver.step(|state| state.net.bind(&mut state.core, node, addr))?;
        Ok(Listener { driver: driver.clone(), id, addr })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let accepted = poll_fn(|cx| self.driver.step(|state| state.net.poll_accept(self.id, cx.waker())));
        let socket = accepted.await?;
        Ok((Stream { driver: self.driver.clone(), socket, attached: true }, socket.peer))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.driver.step(|state| state.net.close_listener(&mut state.core, self.id));
    }
}

/// A connection that is being made; dropping it gives it up.
struct Connecting {
    driver: Rc<Driver>,
    id: Option<ConnectId>,
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.driver.step(|state| state.net.abandon_connect(&mut state.core, id));
        }
    }
}

pub(crate) struct Stream {
    driver: Rc<Driver>,
    socket: Socket,
    /// False once it was detached: the connection then goes on without this handle.
    attached: bool,
}

/// A receive that is waiting; dropping it may lose bytes, as it may with the kernel.
struct Receiving<'a> {
    stream: &'a Stream,
    waiting: bool,
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        if self.waiting {
            let Socket { conn, side, .. } = self.stream.socket;
            self.stream.driver.step(|state| state.net.abandon_recv(&mut state.core, conn, side));
        }
    }
}

impl Stream {
    pub(crate) async fn connect(driver: Rc<Driver>, addr: SocketAddr) -> io::Result<Stream> {
        let node = driver.node()?;
        let id = driver.step(|state| state.net.connect(&mut state.core, node, addr));
        let mut connecting = Connecting { driver: driver.clone(), id: Some(id) };
        let outcome = poll_fn(|cx| driver.step(|state| state.net.poll_connect(id, cx.waker()))).await;
        connecting.id = None;
        Ok(Stream { driver: driver.clone(), socket: outcome?, attached: true })
    }

    pub(crate) async fn recv(&self, mut buf: Buf) -> (io::Result<usize>, Buf) {
        let Socket { conn, side, .. } = self.socket;
        let mut receiving = Receiving { stream: self, waiting: false };
        let received = poll_fn(|cx| {
            let into = buf.spare_mut();
            let poll = self.driver.step(|state| state.net.poll_recv(&mut state.core, conn, side, cx.waker(), into));
            receiving.waiting = poll.is_pending();
            poll
        });
        let result = received.await;
        if let Ok(count) = result {
            buf.set_len(buf.len() + count);
        }
        (result, buf)
    }

    pub(crate) async fn readable(&self) -> io::Result<()> {
        let Socket { conn, side, .. } = self.socket;
        poll_fn(|cx| self.driver.step(|state| state.net.poll_readable(conn, side, cx.waker()))).await;
        Ok(())
    }

    pub(crate) async fn send(&self, batch: SendBatch) -> (io::Result<()>, SendBatch) {
        let Socket { conn, side, .. } = self.socket;
        let mut sent = 0;
        let all = poll_fn(|cx| {
            while sent < batch.len() {
                let mut skip = sent;
                let rest = batch.slices().map(|slice| {
                    let skipped = skip.min(slice.len());
                    skip -= skipped;
                    &slice[skipped..]
                });
                let step = |state: &mut State| state.net.poll_send(&mut state.core, conn, side, cx.waker(), rest);
                match self.driver.step(step) {
                    Poll::Ready(Ok(count)) => sent += count,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                }
            }
            Poll::Ready(Ok(()))
        });
        let result = all.await;
        (result, batch)
    }

    pub(crate) fn shutdown(&self) {
        let Socket { conn, side, .. } = self.socket;
        self.driver.step(|state| state.net.shutdown(&mut state.core, conn, side));
    }

    pub(crate) fn abort(&self) {
        let Socket { conn, side, .. } = self.socket;
        self.driver.step(|state| state.net.abort(&mut state.core, conn, side));
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.socket.peer
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.socket.local
    }

    pub(crate) fn detach(mut self) -> Detached {
        self.attached = false;
        Detached { world: self.driver.world, socket: Some(self.socket) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.attached {
            return;
        }
        let Socket { conn, side, .. } = self.socket;
        self.driver.step(|state| state.net.close(&mut state.core, conn, side));
    }
}

/// `Send`: holds ids, no `Rc`. Dropped outside its world it leaves the connection open, as nobody is there to close it.
pub(crate) struct Detached {
    world: u64,
    socket: Option<Socket>,
}

impl Detached {
    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.socket.as_ref().expect("invariant: only attach and drop take the socket").peer
    }

    pub(crate) fn attach(mut self, driver: &Rc<Driver>) -> Stream {
        assert_eq!(self.world, driver.world, "a stream of one simulated world was attached in another");
        let socket = self.socket.take().expect("invariant: only attach and drop take the socket");
        Stream { driver: driver.clone(), socket, attached: true }
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        let Some(Socket { conn, side, .. }) = self.socket.take() else { return };
        if let Some(Context::Sim(driver)) = runtime::try_current()
            && driver.world == self.world
        {
            driver.step(|state| state.net.close(&mut state.core, conn, side));
        }
    }
}
