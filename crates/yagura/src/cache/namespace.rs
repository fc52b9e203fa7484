//! `--flash`: where what leaves memory is kept, reached from every thread of the server.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use device::{AnyNamespace, Durability, Error, Lba, Namespace, NamespaceInfo};
use engine::file::Lifetime;
use engine::{Buf, View, time};
use fabric::host::{Joiner, RemoteNamespace};
use fabric::target::ANA_GROUP_DEFAULT;

use crate::cli::{NvmeHost, NvmeNamespace};
use crate::exit::Failure;
use crate::namespaces::NamespaceSpec;
use crate::nvme::{CONNECT_TIME, options};
use crate::spec::{once, pairs};

/// A namespace as the command line says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FlashSpec {
    /// Of this machine.
    Local(NamespaceSpec),
    /// Over NVMe/TCP.
    Remote {
        /// The target.
        address: SocketAddr,
        /// Its subsystem; `None`: the only one.
        nqn: Option<String>,
        /// The namespace there.
        nsid: u32,
    },
}

impl FromStr for FlashSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<FlashSpec, String> {
        if !text.split(',').any(|part| part.starts_with("nvme=")) {
            let spec: NamespaceSpec = text.parse()?;
            let is_served = spec.subsystem.is_some() || spec.nsid.is_some() || spec.group != ANA_GROUP_DEFAULT;
            return if is_served {
                Err("subsystem, nsid and group go with a namespace that a target serves".into())
            } else {
                Ok(FlashSpec::Local(spec))
            };
        }
        let (mut address, mut nqn, mut nsid) = (None, None, None);
        for pair in pairs(text, &["nvme", "nqn", "nsid"]) {
            match pair? {
                ("nvme", value) => {
                    let wrong = || format!("`{value}` is no address: write one such as 10.0.0.1:4420");
                    once(&mut address, "nvme", value.parse().map_err(|_| wrong())?)?;
                }
                ("nqn", value) => once(&mut nqn, "nqn", value.to_owned())?,
                (_, value) => once(&mut nsid, "nsid", value.parse().map_err(|_| format!("`{value}` is no number"))?)?,
            }
        }
        let address = address.ok_or("which target? say nvme=ADDRESS")?;
        Ok(FlashSpec::Remote { address, nqn, nsid: nsid.unwrap_or(1) })
    }
}

impl FlashSpec {
    /// Where its journal is if nothing else is said.
    pub fn journal(&self) -> Option<PathBuf> {
        let FlashSpec::Local(spec) = self else { return None };
        spec.file().map(|path| {
            let mut name = path.as_os_str().to_owned();
            name.push(".journal");
            name.into()
        })
    }

    /// What it is in, for reports.
    pub fn describe(&self) -> String {
        match self {
            FlashSpec::Local(spec) => spec.describe(),
            FlashSpec::Remote { address, nsid, .. } => format!("namespace {nsid} at {address}"),
        }
    }

    /// Opens it, from the reactor that stays to the end; `others` more will use it.
    pub async fn open(&self, host: &NvmeHost, others: usize) -> Result<FlashNamespace, Failure> {
        let (address, nqn, nsid) = match self {
            FlashSpec::Local(spec) => return Ok(FlashNamespace::Local(spec.open().await?)),
            FlashSpec::Remote { address, nqn, nsid } => (*address, nqn.clone(), *nsid),
        };
        let host = host.clone();
        let namespace =
            NvmeNamespace { address, nqn, nsid, header_digest: false, data_digest: false, keep_alive: None, host };
        let mut options = options(&namespace).await?;
        options.queues_elsewhere = u16::try_from(others).unwrap_or(u16::MAX);
        let remote = RemoteNamespace::connect(options).await.map_err(Failure::unavailable)?;
        let remote_here = FlashNamespace::Remote { joiner: Box::new(remote.joiner()), info: remote.info() };
        HERE.set(Some(Rc::new(remote)));
        Ok(remote_here)
    }
}

thread_local! {
    /// This thread's queue of the flash namespace: there is one such namespace in a process.
    static HERE: RefCell<Option<Rc<RemoteNamespace>>> = const { RefCell::new(None) };
}

/// The namespace, on every thread that has joined.
pub enum FlashNamespace {
    /// Of this machine; any thread uses it as it is.
    Local(AnyNamespace),
    /// Over NVMe/TCP, with a queue for each thread.
    Remote {
        /// What a thread joins by.
        joiner: Box<Joiner>,
        /// What it is; it grows unnoticed.
        info: NamespaceInfo,
    },
}

/// How long a write waits for a target that is away before it fails; a few segments that fail so end the flash tier. Guessed: a
/// restart of the target, a path that fails over.
const AWAY_TIME: Duration = Duration::from_secs(10);
/// How long a thread waits for its queue before it serves without. Chosen: twice what connecting may take.
const JOIN_TIME: Duration = CONNECT_TIME.saturating_mul(2);

impl FlashNamespace {
    /// Makes it usable on another thread's reactor.
    pub async fn join(&self) {
        let FlashNamespace::Remote { joiner, .. } = self else { return };
        let remote = Rc::new(RemoteNamespace::join((**joiner).clone()));
        HERE.set(Some(remote.clone()));
        if time::timeout(JOIN_TIME, remote.connected()).await.is_err() {
            tracing::warn!("flash: a thread has no queue yet, what it looks for there is a miss meanwhile");
        }
    }

    /// The thread's reactor is about to end.
    pub fn leave(&self) {
        HERE.set(None);
    }

    fn here(&self) -> Result<Rc<RemoteNamespace>, Error> {
        HERE.with_borrow(|here| here.clone()).ok_or_else(|| Error::NotConnected("this thread".into()))
    }
}

/// Hands a command on.
macro_rules! on {
    ($self:ident, $target:ident => $command:expr) => {
        match $self {
            FlashNamespace::Local($target) => $command,
            FlashNamespace::Remote { .. } => {
                let $target = $self.here()?;
                $command
            }
        }
    };
}

impl Namespace for FlashNamespace {
    fn info(&self) -> NamespaceInfo {
        match self {
            FlashNamespace::Local(local) => local.info(),
            FlashNamespace::Remote { info, .. } => info.clone(),
        }
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        match self {
            FlashNamespace::Local(local) => local.read(lba, buf).await,
            FlashNamespace::Remote { .. } => match self.here() {
                Ok(remote) => remote.read(lba, buf).await,
                Err(error) => (Err(error), buf),
            },
        }
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        let again = data.clone();
        let result = on!(self, target => target.write(lba, data, durability).await);
        let FlashNamespace::Remote { .. } = self else { return result };
        match result {
            // The same bytes at the same place: whether the first write took effect makes no difference.
            Err(Error::NotConnected(_) | Error::Disconnected(_) | Error::Aborted) => {
                let remote = self.here()?;
                // Where it stays away, the second try says so.
                let _ = time::timeout(AWAY_TIME, remote.connected()).await;
                remote.write(lba, again, durability).await
            }
            result => result,
        }
    }

    async fn flush(&self) -> Result<(), Error> {
        on!(self, target => target.flush().await)
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        on!(self, target => target.compare(lba, expected).await)
    }

    async fn compare_and_write(
        &self,
        lba: Lba,
        expected: View,
        new: View,
        durability: Durability,
    ) -> Result<(), Error> {
        on!(self, target => target.compare_and_write(lba, expected, new, durability).await)
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        on!(self, target => target.write_zeroes(lba, blocks, durability).await)
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        on!(self, target => target.deallocate(lba, blocks).await)
    }

    async fn hint_lifetime(&self, lifetime: Lifetime) -> bool {
        match self {
            FlashNamespace::Local(local) => local.hint_lifetime(lifetime).await,
            FlashNamespace::Remote { .. } => match self.here() {
                Ok(remote) => remote.hint_lifetime(lifetime).await,
                Err(_) => false, // who cannot write either is told so then
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_of_this_machine_or_of_a_target() {
        let spec = |text: &str| text.parse::<FlashSpec>();
        assert!(matches!(spec("file=a,size=1G"), Ok(FlashSpec::Local(_))));
        let remote = FlashSpec::Remote { address: "10.0.0.1:4420".parse().expect("one"), nqn: None, nsid: 3 };
        assert_eq!(spec("nvme=10.0.0.1:4420,nsid=3"), Ok(remote));
        let error = |text: &str| spec(text).expect_err("refused");
        assert!(error("file=a,nsid=1").contains("that a target serves"));
        assert!(error("nvme=host").contains("`host` is no address"));
        assert!(error("nvme=10.0.0.1:4420,nq=x").contains("did you mean `nqn`?"));
        assert!(error("fil=a").contains("did you mean `file`?"));
    }

    #[test]
    fn a_journal_stands_beside_its_file_alone() {
        let journal = |text: &str| text.parse::<FlashSpec>().expect("right").journal();
        assert_eq!(journal("file=/a/b.flash,size=1G"), Some("/a/b.flash.journal".into()));
        assert_eq!((journal("device=/dev/x"), journal("nvme=10.0.0.1:4420")), (None, None));
    }
}
