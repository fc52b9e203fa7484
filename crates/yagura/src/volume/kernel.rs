//! A volume as a block device of this machine: the kernel's NVMe/TCP initiator on what `yagura volume attach` serves, asked for as
//! `nvme connect` does.
//!
//! The kernel keeps the device, and what waits to be written to it, when the process is gone: it connects again once somebody
//! serves the volume at the same port. So whoever finds such a device goes on with it, and only if no other host had the volume
//! meanwhile: otherwise the kernel would write what it had in mind over what that host has written. How to tell that the kernel
//! keeps, as long as the device: the attachment's tenure is the Host Identifier with which the kernel is connected.
//!
//! Every user of the machine reaches the port, and may listen there while no process does: the kernel and who serves the volume
//! show each other keys, made for the device and kept by the kernel (DH-HMAC-CHAP), where the kernel can do that.

use std::fs;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::auth::{DhchapKey, HostKeys};
use uuid::Uuid;

use crate::aside::aside;
use crate::exit::Failure;

/// Where the kernel is asked to connect, among its devices.
const FABRICS: &str = "nvme-fabrics";
/// How long the kernel may take to have a block device once it is connected. Chosen: many times what it takes on a busy machine.
const DEVICE_TIME: Duration = Duration::from_secs(30);
/// How often it is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Seconds between the kernel's attempts to connect again, and how long it goes on. Chosen: a process that is started again is
/// found at once; and an hour is longer than anybody takes to mend what keeps the process from starting, after which users of the
/// device had better be told than wait on.
const RECONNECT: &str = "reconnect_delay=1,ctrl_loss_tmo=3600";

/// The kernel's keys of a connection, its own and that of who serves: as options and as attributes.
const KEYS: [&str; 2] = ["dhchap_secret", "dhchap_ctrl_secret"];

/// What the kernel is called that is connected in that tenure: it has one name for each identifier.
pub fn host_name(tenure: Uuid) -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{tenure}")
}

/// The device of a volume, whether there is one or not.
#[derive(Clone, Debug)]
pub struct Device {
    nqn: String,
    sys: PathBuf,
    dev: PathBuf,
}

/// A connection of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Controller {
    path: PathBuf,
    port: Option<u16>,
    tenure: Option<Uuid>,
}

impl Device {
    /// Of the volume that is served by this name, on a machine whose kernel can use it.
    pub fn new(nqn: &str) -> Result<Device, Failure> {
        Device::left(nqn).usable()
    }

    /// The same on any machine: that of a volume of which no device is asked for.
    pub fn left(nqn: &str) -> Device {
        Device { nqn: nqn.to_owned(), sys: "/sys/class".into(), dev: "/dev".into() }
    }

    fn usable(self) -> Result<Device, Failure> {
        let fabrics = self.dev.join(FABRICS);
        match fs::exists(&fabrics) {
            Ok(true) => Ok(self),
            _ => Err(Failure::refused(format!(
                "--device: there is no {}: load the kernel's part by: modprobe nvme-tcp",
                fabrics.display()
            ))),
        }
    }

    /// The port at which the kernel waits for the volume, if it has a connection to it; of several any.
    pub fn port(&self) -> Option<u16> {
        self.controllers().iter().find_map(|controller| controller.port)
    }

    /// Whether the kernel has a connection to the volume, or tries to have it again.
    pub fn is_connected(&self) -> bool {
        !self.controllers().is_empty()
    }

    /// Whether every connection was made in that tenure, or there is none.
    pub fn is_of(&self, tenure: Uuid) -> bool {
        self.controllers().iter().all(|controller| controller.tenure == Some(tenure))
    }

    /// The keys of the kernel's connection, new ones where it has none; no keys where the kernel knows of none.
    pub fn keys(&self) -> Result<Option<HostKeys>, Failure> {
        if let Some(Controller { path, .. }) = self.controllers().first() {
            let key = |name| match said(path, name) {
                None => Ok(None),
                Some(text) if text == "none" => Ok(None),
                Some(text) => DhchapKey::parse(text.as_bytes()).map(|key| Some(Arc::new(key))).map_err(|error| {
                    Failure::refused(format!("--device: {name} of the kernel's connection {}: {error}", path.display()))
                }),
            };
            let (host, controller) = (key(KEYS[0])?, key(KEYS[1])?);
            return Ok(host.map(|host| HostKeys { host, controller }));
        }
        // What the kernel may be asked for.
        let options = fs::read_to_string(self.dev.join(FABRICS)).unwrap_or_default();
        if !KEYS.iter().all(|key| options.contains(key)) {
            tracing::warn!("this kernel knows no keys: whoever is on this machine reaches the volume");
            return Ok(None);
        }
        let key = || DhchapKey::generate(None, None).map(Arc::new).map_err(Failure::refused);
        Ok(Some(HostKeys { host: key()?, controller: Some(key()?) }))
    }

    /// Has the kernel connect to the volume at that address, if it is not yet, and gives the block device.
    pub async fn connected(&self, at: SocketAddr, tenure: Uuid, keys: Option<HostKeys>) -> Result<PathBuf, Failure> {
        let device = self.clone();
        aside(move || device.connect(at, tenure, keys.as_ref())).await?
    }

    /// Has the kernel give the device up.
    pub async fn disconnected(&self) {
        let device = self.clone();
        if let Err(failure) = aside(move || device.disconnect()).await {
            tracing::warn!("the kernel's device: {}", failure.sentence());
        }
    }

    fn connect(&self, at: SocketAddr, tenure: Uuid, keys: Option<&HostKeys>) -> Result<PathBuf, Failure> {
        if !self.is_connected() {
            let (address, port, nqn) = (at.ip(), at.port(), &self.nqn);
            let host = format!("hostnqn={},hostid={tenure}", host_name(tenure));
            let mut asked = format!("transport=tcp,traddr={address},trsvcid={port},nqn={nqn},{host},{RECONNECT}");
            let keys = keys.map(|keys| [Some(&keys.host), keys.controller.as_ref()]);
            for (name, key) in KEYS.iter().zip(keys.into_iter().flatten()) {
                let text = key.map(|key| key.text());
                let text = text.as_ref().and_then(|text| std::str::from_utf8(text.expose()).ok());
                asked += &text.map(|text| format!(",{name}={text}")).unwrap_or_default();
            }
            let file = fs::OpenOptions::new().read(true).write(true).open(self.dev.join(FABRICS));
            // The call ends when the kernel is connected, or can't be.
            file.and_then(|mut file| file.write_all(asked.as_bytes())).map_err(|error| {
                let mend = match error.kind() {
                    ErrorKind::InvalidInput => ": load the kernel's part by: modprobe nvme-tcp",
                    ErrorKind::PermissionDenied => ": only root may do that",
                    _ => ", the kernel's log says why",
                };
                Failure::refused(format!("--device: the kernel does not connect to {at}: {error}{mend}"))
            })?;
        }
        // Also those of a connection whose maker did not come to it.
        self.conceal();
        let until = Instant::now() + DEVICE_TIME;
        loop {
            if let Some(found) = self.block_device() {
                return Ok(found);
            }
            if Instant::now() >= until {
                let why = format!("the kernel has no block device of {} within {DEVICE_TIME:?}", self.nqn);
                return Err(Failure::unavailable(format!("--device: {why}")));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The kernel shows keys to every user of the machine.
    fn conceal(&self) {
        for path in self.controllers().into_iter().flat_map(|controller| KEYS.map(|key| controller.path.join(key))) {
            match fs::set_permissions(&path, fs::Permissions::from_mode(0o600)) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "users of this machine may see a key of the volume");
                }
                _ => {}
            }
        }
    }

    /// Gives up every connection; what users of the device have under way fails.
    pub fn disconnect(&self) {
        for Controller { path, .. } in self.controllers() {
            // Another may have been quicker.
            match fs::write(path.join("delete_controller"), "1") {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "the kernel keeps its connection");
                }
                _ => {}
            }
        }
    }

    /// Whether a connection or a subsystem of the kernel is of this volume.
    fn is_ours(&self, path: &Path) -> bool {
        said(path, "subsysnqn").is_some_and(|nqn| nqn == self.nqn)
    }

    fn controllers(&self) -> Vec<Controller> {
        let entries = entries(&self.sys.join("nvme"));
        let controller = |path: PathBuf| {
            let address = said(&path, "address").unwrap_or_default();
            let port = address.split(',').find_map(|part| part.strip_prefix("trsvcid=")?.parse().ok());
            let tenure = said(&path, "hostid").and_then(|id| Uuid::try_parse(&id).ok());
            Controller { path, port, tenure }
        };
        entries.into_iter().filter(|path| self.is_ours(path)).map(controller).collect()
    }

    /// Below the subsystem where the kernel can use several paths, otherwise below the connection.
    fn block_device(&self) -> Option<PathBuf> {
        let subsystems = entries(&self.sys.join("nvme-subsystem")).into_iter().filter(|path| self.is_ours(path));
        let folders = subsystems.chain(self.controllers().into_iter().map(|controller| controller.path));
        let names = folders.flat_map(|folder| entries(&folder)).filter_map(|path| {
            let name = path.file_name()?.to_str()?.to_owned();
            is_block_device(&name).then_some(name)
        });
        names.map(|name| self.dev.join(name)).find(|path| is_there(path))
    }
}

/// The device's node, which comes a moment after its name.
pub fn is_there(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device() || cfg!(test))
}

/// `nvme0n1`, and not `nvme0`, `nvme0c0n1`, which are paths to it, nor `nvme0n1p1`.
fn is_block_device(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.strip_prefix("nvme")
        .and_then(|rest| rest.split_once('n'))
        .is_some_and(|(instance, namespace)| is_number(instance) && is_number(namespace))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    // What goes while it is read is not there.
    let mut found: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.sort();
    found
}

fn said(folder: &Path, name: &str) -> Option<String> {
    Some(fs::read_to_string(folder.join(name)).ok()?.trim().to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const NQN: &str = "nqn.2026-11.io.yagura:volume:a";
    const TENURE: Uuid = Uuid::from_u128(7);

    /// A machine's folders, of which only some files count.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Device) {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }
        let device = Device { nqn: NQN.into(), sys: root.path().join("sys"), dev: root.path().join("dev") };
        (root, device)
    }

    /// A machine whose kernel is connected in that tenure.
    pub fn connected_in(tenure: Uuid) -> (tempfile::TempDir, Device) {
        machine(&[("sys/nvme/nvme1/subsysnqn", NQN), ("sys/nvme/nvme1/hostid", &tenure.to_string())])
    }

    #[test]
    fn the_device_of_a_volume_is_found_among_others() {
        let others = [
            ("sys/nvme/nvme0/subsysnqn", "nqn.other\n"),
            ("sys/nvme/nvme0/nvme0n1/size", ""),
            ("sys/nvme-subsystem/nvme-subsys0/subsysnqn", "nqn.other\n"),
            ("sys/nvme-subsystem/nvme-subsys0/nvme0n1/size", ""),
            ("dev/nvme0n1", ""),
            ("dev/nvme2n1", ""),
        ];
        let (_root, none) = machine(&others);
        assert_eq!((none.port(), none.is_connected(), none.block_device()), (None, false, None));
        let connection = [
            ("sys/nvme/nvme1/subsysnqn", "nqn.2026-11.io.yagura:volume:a\n"),
            ("sys/nvme/nvme1/address", "traddr=127.0.0.1,trsvcid=14421,src_addr=127.0.0.1\n"),
            ("sys/nvme/nvme1/hostid", "00000000-0000-0000-0000-000000000007\n"),
        ];
        let with = |more: &[(&'static str, &'static str)]| machine(&[&others[..], &connection, more].concat());
        let (_root, before) = with(&[("sys/nvme/nvme1/nvme1c1n1/size", "")]);
        assert_eq!((before.port(), before.is_connected(), before.block_device()), (Some(14421), true, None));
        assert!(before.is_of(TENURE) && none.is_of(TENURE) && !before.is_of(Uuid::from_u128(8)));
        let (_root, unknown) = machine(&connection[..2]);
        assert!(!unknown.is_of(TENURE), "connected by somebody else");
        // Named after the subsystem's instance, where the kernel can use several paths.
        let subsystem = ("sys/nvme-subsystem/nvme-subsys2/subsysnqn", "nqn.2026-11.io.yagura:volume:a\n");
        let (root, found) = with(&[subsystem, ("sys/nvme-subsystem/nvme-subsys2/nvme2n1/size", "")]);
        assert_eq!(found.block_device(), Some(root.path().join("dev/nvme2n1")));
        let (root, found) = with(&[("sys/nvme/nvme1/nvme1n7/size", ""), ("dev/nvme1n7", "")]);
        assert_eq!(found.block_device(), Some(root.path().join("dev/nvme1n7")));
        found.disconnect();
        let asked = fs::read_to_string(root.path().join("sys/nvme/nvme1/delete_controller"));
        assert_eq!(asked.expect("written"), "1");
        assert!(!root.path().join("sys/nvme/nvme0/delete_controller").exists());
    }

    #[test]
    fn the_kernel_is_asked_once_and_a_kernel_that_cannot_is_named() {
        let at = "127.0.0.1:14420".parse().expect("an address");
        let (_root, without) = machine(&[]);
        let said = without.usable().expect_err("no such kernel");
        assert!(said.sentence().contains("modprobe nvme-tcp"), "{}", said.sentence());
        // A block device of the volume's subsystem, as it is when the kernel is connected.
        let disk = [
            ("sys/nvme-subsystem/nvme-subsys0/subsysnqn", NQN),
            ("sys/nvme-subsystem/nvme-subsys0/nvme0n1/size", ""),
            ("dev/nvme0n1", ""),
            ("dev/nvme-fabrics", ""),
        ];
        let asked = |root: &tempfile::TempDir| fs::read_to_string(root.path().join("dev/nvme-fabrics")).expect("read");
        let (root, device) = machine(&disk);
        let device = device.usable().expect("a kernel");
        assert_eq!(device.connect(at, TENURE, None).expect("connected"), root.path().join("dev/nvme0n1"));
        let host = "hostnqn=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000007";
        let host = format!("{host},hostid=00000000-0000-0000-0000-000000000007");
        let expected = format!("transport=tcp,traddr=127.0.0.1,trsvcid=14420,nqn={NQN},{host},{RECONNECT}");
        assert_eq!(asked(&root), expected);
        let (root, connected) = machine(&[&disk[..], &[("sys/nvme/nvme0/subsysnqn", NQN)]].concat());
        assert_eq!(connected.connect(at, TENURE, None).expect("connected"), root.path().join("dev/nvme0n1"));
        assert_eq!(asked(&root), "", "the kernel has a connection, and makes it anew by itself");
    }

    #[test]
    fn the_kernel_and_who_serves_have_keys_that_the_kernel_keeps() {
        let at = "127.0.0.1:14420".parse().expect("an address");
        let disk = [
            ("sys/nvme-subsystem/nvme-subsys0/subsysnqn", NQN),
            ("sys/nvme-subsystem/nvme-subsys0/nvme0n1/size", ""),
            ("dev/nvme0n1", ""),
        ];
        let (_root, without) = machine(&[&disk[..], &[("dev/nvme-fabrics", "transport,traddr")]].concat());
        assert_eq!(without.keys().expect("none"), None);
        let options = ("dev/nvme-fabrics", "traddr,dhchap_secret,dhchap_ctrl_secret");
        let (root, device) = machine(&[&disk[..], &[options]].concat());
        let (keys, others) = (device.keys().expect("made"), device.keys().expect("made"));
        assert_ne!(keys, others);
        device.connect(at, TENURE, keys.as_ref()).expect("connected");
        let asked = fs::read_to_string(root.path().join("dev/nvme-fabrics")).expect("read");
        let said =
            |name: &str| asked.split(',').find_map(|part| part.strip_prefix(name)).expect("said").trim().to_owned();
        let (own, servers) = (said("dhchap_secret="), said("dhchap_ctrl_secret="));
        assert_ne!(own, servers);
        // The next process finds them at the kernel's connection, which others do not see.
        let connection = [
            ("sys/nvme/nvme1/subsysnqn", NQN),
            ("sys/nvme/nvme1/dhchap_secret", own.as_str()),
            ("sys/nvme/nvme1/dhchap_ctrl_secret", servers.as_str()),
        ];
        let (root, found) = machine(&[&disk[..], &connection, &[options]].concat());
        assert_eq!(found.keys().expect("found"), keys);
        found.conceal();
        for key in KEYS {
            let mode = fs::metadata(root.path().join("sys/nvme/nvme1").join(key)).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
        }
    }

    #[test]
    fn names_of_block_devices() {
        for (name, is_one) in
            [("nvme0n1", true), ("nvme12n34", true), ("nvme0", false), ("nvme0c0n1", false), ("nvme0n1p1", false)]
        {
            assert_eq!(is_block_device(name), is_one, "{name}");
        }
    }
}
