//! A relay before a member, that can lose answers, end connections and refuse new ones.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

struct Faults {
    /// Who is behind it.
    member: Mutex<SocketAddr>,
    /// What the member says is not passed on.
    is_mute: AtomicBool,
    /// No connection is let in.
    is_closed: AtomicBool,
}

/// A relay; it ends with the runtime.
pub struct Proxy {
    pub endpoint: String,
    faults: Arc<Faults>,
    cuts: watch::Sender<u64>,
}

impl Proxy {
    pub async fn to(member: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let faults = Faults { member: Mutex::new(member), is_mute: false.into(), is_closed: false.into() };
        let (faults, cuts) = (Arc::new(faults), watch::Sender::new(0));
        tokio::spawn(accept(listener, faults.clone(), cuts.clone()));
        Proxy { endpoint, faults, cuts }
    }

    /// From now on answers are lost.
    pub fn mute(&self) {
        self.faults.is_mute.store(true, Ordering::SeqCst);
    }

    /// Ends all connections, and lets in new ones or not.
    pub fn cut(&self, is_closed: bool) {
        self.faults.is_closed.store(is_closed, Ordering::SeqCst);
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// New connections are another member's.
    pub fn turn_to(&self, member: SocketAddr) {
        *self.faults.member.lock().expect("nobody has panicked") = member;
    }

    pub fn open(&self) {
        self.faults.is_closed.store(false, Ordering::SeqCst);
    }
}

async fn accept(listener: TcpListener, faults: Arc<Faults>, cuts: watch::Sender<u64>) {
    while let Ok((client, _)) = listener.accept().await {
        if faults.is_closed.load(Ordering::SeqCst) {
            continue;
        }
        let member = *faults.member.lock().expect("nobody has panicked");
        let Ok(server) = TcpStream::connect(member).await else { continue };
        let (client_read, client_write) = client.into_split();
        let (server_read, server_write) = server.into_split();
        tokio::spawn(relay(client_read, server_write, cuts.subscribe(), None));
        tokio::spawn(relay(server_read, client_write, cuts.subscribe(), Some(faults.clone())));
    }
}

async fn relay(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut cut: watch::Receiver<u64>,
    faults: Option<Arc<Faults>>,
) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = tokio::select! {
            read = from.read(&mut bytes) => read.unwrap_or(0),
            _ = cut.changed() => 0,
        };
        // What the member says after a cut is not passed on, though it was read before the cut was seen.
        if cut.has_changed().unwrap_or(true) {
            return;
        }
        let is_mute = faults.as_ref().is_some_and(|faults| faults.is_mute.load(Ordering::SeqCst));
        if count == 0 || (!is_mute && to.write_all(&bytes[..count]).await.is_err()) {
            return;
        }
    }
}
