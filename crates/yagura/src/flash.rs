//! `yagura flash …`: a model of a flash device in a file, or a zoned block device, looked at while nobody serves it; and traces on
//! models in memory.
//!
//! Which preset the model is of is an attribute of the file, beside its identity: later verbs and a target need no flag.

mod bad;
mod over_zones;
mod picture;
mod replay;
pub mod served;
mod zones;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use device::{FileNamespace, FileOptions, Namespace};
use flash::nand::{Nand, NandConfig, Timing};
use flash::presets::Preset;
use flash::{ChunkState, FlashDevice, FlashError, FormatOptions, Manager, SECTOR_BYTES, Zones};
use serde::Serialize;

use crate::cli::{FlashFileArgs, FlashFormatArgs, FlashVerb};
use crate::exit::Failure;
use crate::size::Size;
use crate::{output, reactors};
use picture::Shown;
use served::{Access, Opened, PRESET, USE, Use, chunks_for, look, manager_failure, nand_failure, power_on};

/// Runs a verb.
pub fn run(verb: &FlashVerb) -> Result<(), Failure> {
    match verb {
        FlashVerb::Format(args) => reactors::run_one(format(args)),
        FlashVerb::Info(args) => reactors::run_one(info(args)),
        FlashVerb::Check(args) => reactors::run_one(check(args)),
        FlashVerb::Map(args) => reactors::run_one(picture::draw(args, Shown::Validity)),
        FlashVerb::Bbt(verb) => reactors::run_one(bad::run(verb)),
        FlashVerb::Replay(args) => replay::run(args),
        FlashVerb::Wear(args) => reactors::run_one(picture::draw(args, Shown::Wear)),
    }
}

async fn format(args: &FlashFormatArgs) -> Result<(), Failure> {
    let FlashFormatArgs { flash: FlashFileArgs { path, .. }, preset, spare, zones, size, .. } = args;
    if over_zones::is_meant(path) {
        format_zones(args).await?;
        return info(&args.flash).await;
    }
    let none = || Failure::usage("a new file is a model: say of which device, as in --preset small");
    let preset = preset.ok_or_else(none)?;
    let exists = |there: &Path| {
        let mend = format!("a new file is made; if nobody needs what is there: rm {0} {0}.yagura", path.display());
        Failure::refused(format!("{}: exists; {mend}", there.display()))
    };
    let used = if *zones { Use::Zones } else { Use::Log };
    // What stands beside a file that is away for a moment is its identity, and no less somebody's.
    for there in [path.clone(), sidecar_of(path)] {
        if there.exists() {
            return Err(exists(&there));
        }
    }
    let seed = device::random_nguid();
    let mut config = preset.config(u64::from_le_bytes(std::array::from_fn(|at| seed[at])));
    config.timing = Timing::default();
    if let Some(size) = size {
        config.geometry.chunks = chunks_for(*size, &config.geometry)?;
    }
    let options = FormatOptions { spare_percent: *spare, capacity: None };
    // First in memory: what can't work is refused before there is a file.
    let trial = Nand::in_memory(config.clone()).map_err(|error| nand_failure(path, error))?;
    plan(path, trial.device(), used, &options).await?;
    drop(trial);
    // Whoever makes the file has it: another one who formats at the same time finds it, and removes nothing.
    let file = std::fs::File::create_new(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exists(path),
        _ => Failure::from(error).during(path.display()),
    })?;
    let made = make(file, path, preset, used, config, &options).await;
    if made.is_err() {
        // Half a device is none: the file was made here, and nothing of anybody is in it.
        for path in [path.clone(), sidecar_of(path)] {
            let _absent = std::fs::remove_file(path);
        }
    }
    made?;
    info(&args.flash).await
}

/// Formats a zoned block device: what is on it is lost.
async fn format_zones(args: &FlashFormatArgs) -> Result<(), Failure> {
    let path = &args.flash.path;
    if args.preset.is_some() || args.size.is_some() || args.zones {
        let text = "a block device has the zones that it has: leave --preset, --size and --zones out";
        return Err(Failure::usage(format!("{}: {text}", path.display())));
    }
    let device = over_zones::open(path, false).await?;
    let failed = |error: FlashError| manager_failure(path, error.into());
    let used = device
        .report()
        .await
        .map_err(failed)?
        .iter()
        .any(|chunk| matches!(chunk.state, ChunkState::Open | ChunkState::Closed | ChunkState::ReadOnly));
    if used && !args.force {
        let mend = "say --force to lose what is on it";
        return Err(Failure::refused(format!("{}: something is written on it; {mend}", path.display())));
    }
    let options = FormatOptions { spare_percent: args.spare, capacity: None };
    Manager::format(device, &options).await.map_err(|error| manager_failure(path, error))
}

fn sidecar_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".yagura");
    name.into()
}

/// What can be said of a device before it is made. Zones need nothing but blocks that a namespace can have.
async fn plan(path: &Path, device: Rc<dyn FlashDevice>, used: Use, options: &FormatOptions) -> Result<(), Failure> {
    match used {
        Use::Log => Manager::plan(&*device, options).await.map(drop).map_err(|error| manager_failure(path, error)),
        Use::Zones => Zones::open(device).await.map(drop).map_err(|error| manager_failure(path, error.into())),
    }
}

async fn make(
    file: std::fs::File,
    path: &Path,
    preset: Preset,
    used: Use,
    config: NandConfig,
    options: &FormatOptions,
) -> Result<(), Failure> {
    let sized = file.set_len(Nand::bytes_on_namespace(config.geometry));
    sized.map_err(|error| Failure::from(error).during(path.display()))?;
    drop(file);
    let file = FileOptions { block_size: SECTOR_BYTES as u32, create: None, read_only: false, nguid: None };
    let file = FileNamespace::open(path, &file).await.map_err(Failure::refused)?;
    file.set_attribute(PRESET, preset.name().as_bytes()).await.map_err(Failure::refused)?;
    file.set_attribute(USE, used.attribute()).await.map_err(Failure::refused)?;
    let nand = Nand::create(file.into(), config).await.map_err(|error| nand_failure(path, error))?;
    match used {
        Use::Log => Manager::format(nand.device(), options).await.map_err(|error| manager_failure(path, error)),
        Use::Zones => Ok(()),
    }
}

#[derive(Serialize)]
struct Info {
    /// A zoned block device has none.
    preset: Option<&'static str>,
    nguid: String,
    bytes: u64,
    used_bytes: u64,
    flash_bytes: u64,
    groups: u32,
    units: u32,
    chunks: u32,
    chunk_bytes: u64,
    write_unit_bytes: u64,
    oob_bytes: u32,
    host_sectors: u64,
    programmed_sectors: u64,
    moved_sectors: u64,
    padding_sectors: u64,
    unknown_sectors: u64,
    lines_free: usize,
    lines: usize,
    wear_least: u32,
    wear_most: u32,
    endurance: u32,
    read_only: bool,
}

async fn info(args: &FlashFileArgs) -> Result<(), Failure> {
    let on = power_on(&args.path, Access::Look).await?;
    if on.used == Use::Zones {
        return zones::info(args, on).await;
    }
    drop(on);
    let Opened { preset, device, manager } = look(&args.path).await?;
    let (geometry, figures) = (device.geometry(), manager.figures());
    let bytes = |sectors: u64| sectors * SECTOR_BYTES as u64;
    let report = Info {
        preset: preset.map(Preset::name),
        nguid: format!("{:032x}", u128::from_be_bytes(manager.identity())),
        bytes: bytes(manager.capacity().into()),
        used_bytes: bytes(manager.used()),
        flash_bytes: bytes(geometry.sectors_total().into()),
        groups: geometry.groups,
        units: geometry.units(),
        chunks: geometry.chunks,
        chunk_bytes: bytes(geometry.sectors.into()),
        write_unit_bytes: bytes(geometry.write_unit.into()),
        oob_bytes: geometry.oob_bytes,
        host_sectors: figures.host_sectors,
        programmed_sectors: figures.programmed_sectors,
        moved_sectors: figures.moved_sectors,
        padding_sectors: figures.padding_sectors,
        unknown_sectors: figures.unknown_sectors,
        lines_free: figures.lines[0],
        lines: figures.lines.iter().sum(),
        wear_least: figures.wear[0],
        wear_most: figures.wear[1],
        endurance: preset.map_or(0, |preset| preset.config(0).endurance),
        read_only: figures.is_read_only,
    };
    output::report(args.common.json, &report, Info::describe)
}

impl Info {
    fn describe(&self) -> String {
        let Info { units, groups, chunks, host_sectors, programmed_sectors, .. } = self;
        let (bytes, used, all) = (Size(self.bytes), Size(self.used_bytes), Size(self.flash_bytes));
        let (chunk, unit) = (Size(self.chunk_bytes), Size(self.write_unit_bytes));
        let (name, what) = self.preset.map_or(("zoned block device", "zones"), |name| (name, "flash"));
        let mut text = format!("{name}: a namespace of {bytes} on {all} of {what}, {used} of it used\n");
        let [units, groups, chunks] = [(units, "parallel unit"), (groups, "group"), (chunks, "chunk")]
            .map(|(count, what)| output::many(u64::from(*count), what));
        text += &format!("{units} in {groups}, {chunks} of {chunk} each, ");
        text += &format!("written in units of {unit}\n");
        let written = output::many(*host_sectors, "sector");
        text += &format!("hosts have written {written}, for which {programmed_sectors} were programmed ");
        text += &format!("({} moved, {} padding)\n", self.moved_sectors, self.padding_sectors);
        text += &format!("{} of {} lines free", self.lines_free, self.lines);
        if self.preset.is_some() {
            text += &format!(", reset {} to {} times", self.wear_least, self.wear_most);
        }
        if self.unknown_sectors > 0 {
            text += &format!("\n{}", unknown(self.unknown_sectors));
        }
        if self.read_only {
            text += "\nno more writes are taken: too many chunks are bad";
        }
        text
    }
}

/// What was lost without a name.
fn unknown(sectors: u64) -> String {
    let sectors = output::many(sectors, "sector");
    format!("{sectors} could not be read after a crash, and which was not known: older content may have come back")
}

#[derive(Serialize)]
struct Checked {
    faults: Vec<String>,
    unknown_sectors: u64,
    sectors: u64,
    pages: u64,
}

async fn check(args: &FlashFileArgs) -> Result<(), Failure> {
    let manager = look(&args.path).await?.manager;
    let (found, unknown_sectors) = (manager.check().await, manager.figures().unknown_sectors);
    let report = Checked { faults: found.faults, unknown_sectors, sectors: found.sectors, pages: found.pages };
    output::report(args.common.json, &report, |report| {
        let mut text: String = report.faults.iter().map(|fault| format!("{fault}\n")).collect();
        if report.unknown_sectors > 0 {
            text += &format!("{}\n", unknown(report.unknown_sectors));
        }
        let (sectors, pages) = (output::many(report.sectors, "sector"), output::many(report.pages, "page"));
        let faults = output::many(report.faults.len() as u64, "fault");
        text += &format!("{sectors} and {pages} of the map looked at, {faults}");
        text
    })?;
    match report.faults.len() {
        0 => Ok(()),
        faults => Err(Failure::check(format!("the flash device has {}", output::many(faults as u64, "fault")))),
    }
}
