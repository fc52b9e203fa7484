//! `--flash`: where what leaves memory is kept, reached from every thread of the server.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ::cache::flash::Medium;
use device::{AnyNamespace, Namespace};
use fabric::host::{PerThread, RemoteNamespace};
use fabric::subsystem::ANA_GROUP_DEFAULT;

use crate::cli::{NvmeHost, NvmeNamespace};
use crate::exit::Failure;
use crate::namespaces::NamespaceSpec;
use crate::nvme::{CONNECT_TIME, options};
use crate::size::Size;
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
            if spec.is_flash() {
                let mend = "let `yagura target --namespace flash=FILE` serve it, and say nvme=ADDRESS";
                return Err(format!("a model of a flash device is a target's: {mend}"));
            }
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
    pub async fn open(&self, host: &NvmeHost, others: usize) -> Result<Medium, Failure> {
        let (address, nqn, nsid) = match self {
            FlashSpec::Local(spec) => return open_local(spec).await.map(Medium::Local),
            FlashSpec::Remote { address, nqn, nsid } => (*address, nqn.clone(), *nsid),
        };
        let host = host.clone();
        let namespace = NvmeNamespace {
            address,
            nqn,
            nsid,
            header_digest: false,
            data_digest: false,
            keep_alive: None,
            timeout: None,
            host,
        };
        let mut options = options(&namespace).await?;
        options.queues_elsewhere = u16::try_from(others).unwrap_or(u16::MAX);
        let remote = RemoteNamespace::connect(options).await.map_err(Failure::unavailable)?;
        if remote.zoned().is_some() {
            let why = "its zones are written in order, and a cache's flash is written anywhere";
            return Err(Failure::refused(format!("{}: {why}", self.describe())));
        }
        Ok(Medium::Remote(PerThread::new(remote)))
    }
}

/// Opens one of this machine. All of it will be written: a file that its file system has no room for is not begun, and one that is
/// there serves as far as there is room.
async fn open_local(spec: &NamespaceSpec) -> Result<AnyNamespace, Failure> {
    let is_new = spec.new_file().is_some();
    if let Some((path, bytes)) = spec.new_file()
        && let Some(lacks) = lacking(path, bytes)
    {
        return Err(Failure::out_of_space(lacks));
    }
    let opened = spec.open().await?;
    if let Some(path) = spec.file().filter(|_| !is_new)
        && let Some(lacks) = lacking(path, opened.info().bytes())
    {
        tracing::warn!("{lacks}: flash is given up when the file system is full");
    }
    Ok(opened)
}

/// What the file system of the file at `path` lacks for so many bytes of it, in a sentence. `None`: nothing, or it does not tell.
fn lacking(path: &Path, bytes: u64) -> Option<String> {
    let allocated = std::fs::metadata(path).map_or(0, |metadata| metadata.blocks() * 512);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let system = rustix::fs::statvfs(folder).ok()?;
    let room = system.f_bavail.saturating_mul(system.f_frsize);
    let needed = bytes.saturating_sub(allocated);
    (needed > room).then(|| {
        let (path, bytes, needed, room) = (path.display(), Size(bytes), Size(needed), Size(room));
        format!(
            "a flash of {bytes} in {path} takes {needed} more of its file system, which has {room}: say a smaller size"
        )
    })
}

/// How long a thread waits for its queue before it serves without. Chosen: twice what connecting may take.
const JOIN_TIME: Duration = CONNECT_TIME.saturating_mul(2);

/// Makes it usable on another thread's reactor.
pub async fn join(medium: &Medium) {
    let Medium::Remote(remote) = medium else { return };
    if remote.join(JOIN_TIME).await.is_err() {
        tracing::warn!("flash: a thread has no queue yet, what it looks for there is a miss meanwhile");
    }
}

/// The thread's reactor is about to end.
pub fn leave(medium: &Medium) {
    if let Medium::Remote(remote) = medium {
        remote.leave();
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
    fn a_file_that_its_file_system_has_no_room_for_is_noticed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("flash");
        let lacks = lacking(&path, 1 << 62).expect("no file system has that");
        assert!(lacks.contains("a flash of 4096 PiB in ") && lacks.contains("say a smaller size"), "{lacks}");
        assert_eq!(lacking(&path, 4096), None);
        std::fs::write(&path, vec![1; 1 << 20]).expect("written");
        assert_eq!(lacking(&path, 1 << 20), None, "what it has already it need not find");
    }

    #[test]
    fn a_journal_stands_beside_its_file_alone() {
        let journal = |text: &str| text.parse::<FlashSpec>().expect("right").journal();
        assert_eq!(journal("file=/a/b.flash,size=1G"), Some("/a/b.flash.journal".into()));
        assert_eq!((journal("device=/dev/x"), journal("nvme=10.0.0.1:4420")), (None, None));
    }
}
