//! A volume over NBD, beside the target of `yagura volume attach`.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use ::nbd::{Export, Figures, Server};
use device::AnyNamespace;
use engine::net::TcpListener;
use engine::task::{self, Task};

use crate::cli::{NbdAt, NbdTls, ServingTls, VolumeAttachArgs};
use crate::exit::Failure;
use crate::listening::{bind_path, once_it_is_free};

/// Who may use the socket of a path: its owner.
const SOCKET_MODE: u32 = 0o600;

/// A server, until it is stopped or dropped.
pub struct Nbd {
    server: Rc<Server>,
    /// What clients are told to connect to.
    pub uri: String,
    _accepting: Task<()>,
    /// To be removed at the end.
    path: Option<PathBuf>,
}

impl Nbd {
    /// What it counts.
    pub fn figures(&self) -> Arc<Figures> {
        self.server.figures()
    }

    /// Answers what was received, then ends all connections.
    pub async fn stop(self) {
        self.server.stop().await;
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        if let Some(path) = &self.path
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::warn!(path = %path.display(), %error, "the socket of NBD is left behind");
        }
    }
}

/// Whether what is asked for may be: an address that others reach wants clients who show who they are.
pub fn check(args: &VolumeAttachArgs) -> Result<(), Failure> {
    match &args.nbd {
        Some(NbdAt::Tcp(address)) if !address.ip().is_loopback() && args.nbd_tls.nbd_tls_ca.is_none() => {
            let why = "whoever reaches this address could write to the volume";
            Err(Failure::usage(format!(
                "--nbd {address}: say whose certificates are let in by --nbd-tls-ca, since {why}"
            )))
        }
        Some(NbdAt::Unix(path)) if args.nbd_tls.nbd_tls_cert.is_some() => {
            Err(Failure::usage(format!("--nbd unix:{}: a socket of this machine has no TLS", path.display())))
        }
        _ => Ok(()),
    }
}

/// Serves the namespace where the arguments say so.
pub async fn serve(args: &VolumeAttachArgs, namespace: &AnyNamespace) -> Result<Option<Nbd>, Failure> {
    let Some(at) = &args.nbd else { return Ok(None) };
    let NbdTls { nbd_tls_cert: tls_cert, nbd_tls_key: tls_key, nbd_tls_ca: tls_ca } = args.nbd_tls.clone();
    let tls = ServingTls { tls_cert, tls_key, tls_ca }.context()?;
    let scheme = if tls.is_some() { "nbds" } else { "nbd" };
    let export = Export::new("", "a volume of yagura", namespace.clone(), false);
    let server = Rc::new(Server::new(vec![export], tls).map_err(Failure::usage)?);
    let serving = server.clone();
    let (uri, accepting, path) = match at {
        NbdAt::Tcp(address) => {
            let listener = once_it_is_free(|| TcpListener::bind(*address)).await;
            let listener = listener.map_err(|error| {
                Failure::refused(format!("--nbd {address}: cannot listen: {error} (port 0 takes a free one)"))
            })?;
            let uri = format!("{scheme}://{}/", listener.local_addr());
            (uri, task::spawn(async move { serving.accept(&listener).await }), None)
        }
        NbdAt::Unix(path) => {
            let listener = bind_path(path, SOCKET_MODE).await?;
            let uri = format!("nbd+unix:///?socket={}", path.display());
            (uri, task::spawn(async move { serving.accept_local(&listener).await }), Some(path.clone()))
        }
    };
    Ok(Some(Nbd { server, uri, _accepting: accepting, path }))
}
