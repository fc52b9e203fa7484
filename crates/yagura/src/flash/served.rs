//! The flash devices in files, and zoned block devices: how one is opened, and those that this process serves.

use std::cell::RefCell;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use device::{AnyNamespace, FileNamespace, FileOptions, Known, Mailed, Namespace};
use engine::task::{self, Task};
use engine::time;
use flash::nand::{Nand, NandError, Timing};
use flash::presets::Preset;
use flash::{
    FlashDevice, FlashError, FlashMetrics, FlashNamespace, Geometry, Manager, ManagerError, ManagerOptions, Metered,
    SECTOR_BYTES, Seen, Zones,
};

use super::over_zones;
use crate::exit::Failure;
use crate::size::Size;

/// The attribute that names the preset.
pub const PRESET: &str = "flash-preset";
/// Bytes of a model. Chosen: the map of the largest takes 1 GiB of memory.
const MODEL_BYTES_MAX: u64 = 1 << 40;
/// How old what is told of a device may be. Chosen: scrapes are further apart.
const LOOK: Duration = Duration::from_secs(1);
/// The attribute that says what is on it, of [`Use`].
pub const USE: &str = "flash-use";

/// What is on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// The log of our media manager. Of a device that says nothing it is this one.
    Log,
    /// Zones, of which whoever writes them knows what is in them.
    Zones,
}

impl Use {
    /// The attribute's value; none where nothing is said.
    pub fn attribute(self) -> &'static [u8] {
        match self {
            Use::Log => b"",
            Use::Zones => b"zones",
        }
    }
}

/// A failure of the media manager as an exit status.
pub fn manager_failure(path: &Path, error: ManagerError) -> Failure {
    let mend = match error {
        ManagerError::TooSmall { .. } => {
            return Failure::usage(format!("{error}; give a larger --size, or a smaller --spare"));
        }
        ManagerError::SpareTooSmall { least, .. } => return Failure::usage(format!("{error}; give --spare {least}")),
        ManagerError::RootTooLarge { .. } => return Failure::usage(format!("{error}; give a smaller --size")),
        ManagerError::Device(FlashError::NoRoom) | ManagerError::Stopped(device::Error::OutOfSpace) => {
            return Failure::out_of_space(format!("{}: {error}; make room there", path.display()));
        }
        ManagerError::NotFormatted if device::is_zoned(path) => {
            "; yagura flash format makes it one, and loses what is on it"
        }
        ManagerError::NotFormatted => ": the format was cut short; remove the file, and format it anew",
        _ => "",
    };
    Failure::refused(format!("{}: {error}{mend}", path.display()))
}

/// A failure of the model as an exit status.
pub fn nand_failure(path: &Path, error: NandError) -> Failure {
    match error {
        NandError::Geometry(error) => Failure::usage(error),
        NandError::Medium(FlashError::NoRoom) => {
            Failure::out_of_space(format!("{}: {error}; make room there", path.display()))
        }
        NandError::Medium(_) | NandError::NoDevice => Failure::refused(format!("{}: {error}", path.display())),
    }
}

/// That there is a model in the file. Looked at first: whatever else is opened as a namespace gets a sidecar.
fn check_file(path: &Path) -> Result<(), Failure> {
    let failed = |error| Failure::from(error).during(path.display());
    let (file, mut head) = (std::fs::metadata(path).map_err(failed)?, Vec::new());
    if file.is_file() {
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(SECTOR_BYTES as u64).read_to_end(&mut head).map_err(failed)?;
    }
    if Nand::is_laid_out(&head) {
        return Ok(());
    }
    let mend = "make a new file that is one: yagura flash format FILE --preset small";
    Err(Failure::refused(format!("{}: there is no flash device in it; {mend}", path.display())))
}

/// What a device is powered on for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing is written to its file.
    Look,
    Change,
    /// As `Change`, with the times of the preset.
    Serve,
}

/// A device that was powered on.
pub struct On {
    /// A zoned block device has none.
    pub preset: Option<Preset>,
    pub used: Use,
    pub device: Rc<dyn FlashDevice>,
}

impl On {
    /// A log is no zones: what one of them left there would be taken for the other's, and overwritten.
    pub fn check_use(&self, wanted: Use, path: &Path) -> Result<(), Failure> {
        let (there, mend) = match self.used {
            used if used == wanted => return Ok(()),
            Use::Log => ("a log of our media manager", "serve it by flash=FILE, or make another file: --zones"),
            Use::Zones => ("zones", "serve it by zones=FILE, or make another file: without --zones"),
        };
        Err(Failure::refused(format!("{}: it has {there} on it; {mend}", path.display())))
    }
}

/// The device in a file, or on the zones of a block device.
pub async fn power_on(path: &Path, access: Access) -> Result<On, Failure> {
    if device::is_zoned(path) {
        return Ok(On { preset: None, used: Use::Log, device: over_zones::open(path, access == Access::Look).await? });
    }
    check_file(path)?;
    let read_only = access == Access::Look;
    let options = FileOptions { block_size: SECTOR_BYTES as u32, create: None, read_only, nguid: None };
    let file = FileNamespace::open(path, &options).await.map_err(Failure::refused)?;
    let name = file.attribute(PRESET).map_err(Failure::refused)?.unwrap_or_default();
    let preset = Preset::named(&String::from_utf8_lossy(&name)).ok_or_else(|| {
        let mend = format!("bring back the file {}.yagura, which belongs to it", path.display());
        Failure::refused(format!("{}: of which preset it is, is not known; {mend}", path.display()))
    })?;
    let used = file.attribute(USE).map_err(Failure::refused)?.unwrap_or_default();
    let used = if used == Use::Zones.attribute() { Use::Zones } else { Use::Log };
    let mut config = preset.config(0);
    if access != Access::Serve {
        config.timing = Timing::default();
    }
    let expected = config.geometry;
    let nand = Nand::open(file.into(), config).await.map_err(|error| nand_failure(path, error))?;
    // Of a preset the number of chunks alone may be another one.
    let found = nand.config().geometry;
    if found != (Geometry { chunks: found.chunks, ..expected }) {
        let text = format!("its geometry is {found:?}, and that of the preset {} is {expected:?}", preset.name());
        let mend = format!("bring back the file {}.yagura, which belongs to it", path.display());
        return Err(Failure::refused(format!("{}: {text}; {mend}", path.display())));
    }
    Ok(On { preset: Some(preset), used, device: nand.device() })
}

/// A device with its media manager.
pub struct Opened {
    pub preset: Option<Preset>,
    pub device: Rc<dyn FlashDevice>,
    pub manager: Manager,
}

/// Opens it to be looked at, after a crash as well as after a close: the file stays as it is.
pub async fn look(path: &Path) -> Result<Opened, Failure> {
    let on = power_on(path, Access::Look).await?;
    on.check_use(Use::Log, path)?;
    let On { preset, device, .. } = on;
    let manager = Manager::look(device.clone()).await;
    Ok(Opened { preset, device, manager: manager.map_err(|error| manager_failure(path, error))? })
}

/// Chunks of a parallel unit for so many bytes in all.
pub fn chunks_for(size: Size, geometry: &Geometry) -> Result<u32, Failure> {
    if size.0 > MODEL_BYTES_MAX {
        let most = Size(MODEL_BYTES_MAX);
        return Err(Failure::usage(format!(
            "--size: a model has {most} at most: its map has 4 bytes a sector in memory"
        )));
    }
    let row = u64::from(geometry.units()) * u64::from(geometry.sectors) * SECTOR_BYTES as u64;
    Ok(u32::try_from(size.0.div_ceil(row)).unwrap_or(u32::MAX))
}

/// A device that this thread serves.
struct Served {
    path: PathBuf,
    metered: Rc<Metered>,
    /// What others have it by.
    known: Known,
    /// What is to be closed in order: of zones nothing.
    namespace: Option<Rc<FlashNamespace>>,
    mailed: Mailed,
}

thread_local! {
    /// What this thread serves, to be closed at the end.
    static SERVED: RefCell<Vec<Served>> = const { RefCell::new(Vec::new()) };
}

/// Nobody serves it yet; its name.
fn unserved(path: &Path) -> Result<PathBuf, Failure> {
    let key = std::fs::canonicalize(path).map_err(|error| Failure::from(error).during(path.display()))?;
    if SERVED.with_borrow(|all| all.iter().any(|served| served.path == key)) {
        let mend = "a flash device is one namespace: leave one of the two out";
        return Err(Failure::refused(format!("{}: is served already; {mend}", path.display())));
    }
    Ok(key)
}

fn begin(path: PathBuf, metered: Rc<Metered>, namespace: Option<Rc<FlashNamespace>>, mailed: Mailed) -> AnyNamespace {
    let erased = mailed.erased();
    let known = erased.known();
    SERVED.with_borrow_mut(|all| all.push(Served { path, metered, known, namespace, mailed }));
    AnyNamespace::Other(erased)
}

/// The namespace on the flash device in a file, which this thread has and all threads can use.
pub async fn serve(path: &Path) -> Result<AnyNamespace, Failure> {
    let key = unserved(path)?;
    let on = power_on(path, Access::Serve).await?;
    on.check_use(Use::Log, path)?;
    let metered = Rc::new(Metered::new(on.device));
    let manager = Manager::open(metered.device(), ManagerOptions::default()).await;
    let namespace = Rc::new(FlashNamespace::new(manager.map_err(|error| manager_failure(path, error))?));
    let mailed = namespace.mailed();
    Ok(begin(key, metered, Some(namespace), mailed))
}

/// The chunks of the flash device in a file as zones, likewise.
pub async fn serve_zones(path: &Path) -> Result<AnyNamespace, Failure> {
    let key = unserved(path)?;
    let on = power_on(path, Access::Serve).await?;
    on.check_use(Use::Zones, path)?;
    let metered = Rc::new(Metered::new(on.device));
    let zones = Zones::open(metered.device()).await.map_err(|error| manager_failure(path, error.into()))?;
    Ok(begin(key, metered, None, zones.mailed()))
}

/// Looks at what this thread serves each second, as long as the task is kept.
pub fn watch(metrics: &FlashMetrics) -> Task<()> {
    let metrics = metrics.clone();
    let look = || SERVED.with_borrow(|all| all.iter().map(Served::seen).collect());
    // At once: whoever asks next is told.
    metrics.set(look());
    task::spawn(async move {
        loop {
            time::sleep(LOOK).await;
            metrics.set(look());
        }
    })
}

impl Served {
    fn seen(&self) -> Seen {
        let manager = self.namespace.as_deref().map(FlashNamespace::manager);
        Seen::of(self.path.display().to_string(), &self.metered, manager)
    }
}

/// Closes those of the devices served that are wanted: nothing has to be looked for when they are opened next. They are given up
/// whatever comes of it.
async fn close_served(is_wanted: impl Fn(&Served) -> bool) -> Result<(), Failure> {
    let wanted = |served: &mut Served| is_wanted(served);
    let closing: Vec<Served> = SERVED.with_borrow_mut(|all| all.extract_if(.., wanted).collect());
    let mut result = Ok(());
    for Served { path, namespace, mailed, .. } in closing {
        let closed = match namespace {
            Some(namespace) => namespace.close().await,
            None => Ok(()),
        };
        mailed.leave();
        let closed = closed.map_err(|error| Failure::refused(format!("{}: {error}", path.display())));
        result = result.and(closed);
    }
    result
}

/// Closes all that this thread serves.
pub async fn close_all() -> Result<(), Failure> {
    close_served(|_| true).await
}

/// Closes the device that a namespace is on, if it is on one. By what is served, not by its identity: a copy of its file has the
/// same.
pub async fn close_of(namespace: &AnyNamespace) -> Result<(), Failure> {
    match namespace {
        AnyNamespace::Other(erased) => close_served(|served| erased.is(&served.known)).await,
        AnyNamespace::Memory(_) | AnyNamespace::File(_) | AnyNamespace::Drive(_) => Ok(()),
    }
}
